"""Two ways to a derivative that need the forward alone: real differences, and the complex step."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

EPS = float(np.finfo(np.float64).eps)
BASE_STEP = (3 * EPS) ** (1 / 3)  # ≈ 8.7e-6: where truncation h²/6 and rounding ε/h are about equal
QUICK = (1.0, 2.0)  # in base steps
THOROUGH = tuple(2.0**k for k in range(-4, 8))
COMPLEX_STEP = 1e-20  # its square is nothing beside 1, and far from underflow
MAX_REFINED = 64  # elements of one tensor that get the thorough steps, the most suspicious first

Evaluate = Callable[[], np.ndarray]  # the forward's outputs at the inputs' present values, as one new vector
Walk = Callable[[float], tuple[np.ndarray, float]]  # t -> the outputs a step t away, and the step really made


class Slope(NamedTuple):
    """A derivative along one direction, and how far it can be trusted."""

    value: float
    error: float  # estimated: truncation and rounding
    left: float  # the one-sided slopes
    right: float
    kink: bool  # they do not meet as the step shrinks


class Estimates(NamedTuple):
    """The slopes of ⟨u, f(x)⟩ along every element of x, each array of x's shape."""

    value: np.ndarray
    error: np.ndarray
    left: np.ndarray
    right: np.ndarray
    kink: np.ndarray


class NotAnalytic(Exception):
    """The forward is not analytic, or drops the imaginary part: its complex step means nothing."""


def slope(walk: Walk, y: np.ndarray, u: np.ndarray, size: float, multiples: Sequence[float]) -> Slope:
    """Return d⟨u, f⟩/dt at t = 0 from central differences, extrapolated; the steps are size times multiples.

        D(h) = ⟨u, f(h) − f(−h)⟩ / (h₊ − h₋)          h± the steps really made, after rounding
        T[k][m] = (4ᵐ T[k][m−1] − T[k+1][m−1]) / (4ᵐ − 1),   T[k][0] = D(hₖ),  hₖ₊₁ = 2hₖ

    The outputs are subtracted before they are projected, so that all that did not move
    cancels exactly. Each T's error is estimated by its distance from the two entries it came
    from, plus the rounding of D(hₖ); the entry of least error wins.

    At a kink the left and the right slope differ by a jump that does not shrink with h:
    2·jump(h) − jump(2h), which is 0 up to h³ for a smooth f, is then the jump itself.

    Richardson, 1911; Ridders, 1982 (Advances in Engineering Software 4); Press et al.,
    Numerical Recipes, §5.7.
    """
    steps = [size * multiple for multiple in multiples]
    D, left, right, rounding = [], [], [], []
    weight = np.abs(u) * np.abs(y)
    for h in steps:
        up, h_up = walk(h)
        down, h_down = walk(-h)
        D.append(float(u @ (up - down)) / (h_up - h_down))
        right.append(float(u @ (up - y)) / h_up)
        left.append(float(u @ (down - y)) / h_down)
        rounding.append(EPS * float(weight @ ((up != y) | (down != y))) / h)
    if len(steps) > 3:  # the smallest steps, where truncation is nil, measure what rounding really is
        measured = max(abs(D[k] - D[k + 1]) * steps[k] for k in range(3))
        rounding = [max(bound, measured / h) for bound, h in zip(rounding, steps)]

    value, error, finest = D[0], np.inf, 0
    row = D
    for m in range(1, min(len(D), 4)):
        finer = row
        row = [(4**m * a - b) / (4**m - 1) for a, b in pairwise(finer)]
        for k, candidate in enumerate(row):
            estimate = max(abs(candidate - finer[k]), abs(candidate - finer[k + 1])) + rounding[k]
            if estimate < error:
                value, error, finest = candidate, estimate, k

    k = min(finest, multiples.index(1.0))
    jump = 2 * (right[k] - left[k]) - (right[k + 1] - left[k + 1])
    kink = abs(jump) > 20 * max(rounding[k : k + 2]) + 1e-6 * (abs(left[k]) + abs(right[k]))
    return Slope(value, error, left[k], right[k], bool(kink))


def element_slope(
    f: Evaluate, x: np.ndarray, i: tuple, y: np.ndarray, u: np.ndarray, multiples: Sequence[float]
) -> Slope:
    """Return ∂⟨u, f⟩/∂x[i], with steps of (3ε)^⅓·max(1, |x[i]|) times multiples. x is moved, and put back.

    An element at ±∞ stays there under every finite step: its slope is 0.
    """
    here = x[i].copy()
    if not np.isfinite(here):
        return Slope(0.0, 0.0, 0.0, 0.0, False)

    def walk(t: float) -> tuple[np.ndarray, float]:
        x[i] = here + t
        return f(), float(x[i] - here)

    size = BASE_STEP * max(1.0, abs(float(here)))
    try:
        found = slope(walk, y, u, size, multiples)
    finally:
        x[i] = here
    return found


def differences(f: Evaluate, x: np.ndarray, y: np.ndarray, u: np.ndarray) -> Estimates:
    """Return ∂⟨u, f⟩/∂x for every element of x by two central differences and their extrapolation."""
    estimates = Estimates(*(np.zeros(x.shape, kind) for kind in (float, float, float, float, bool)))
    for i in np.ndindex(x.shape):
        store(estimates, i, element_slope(f, x, i, y, u, QUICK))
    return estimates


def refine(f: Evaluate, x: np.ndarray, y: np.ndarray, u: np.ndarray, estimates: Estimates, doubt: np.ndarray) -> None:
    """Do the elements of greatest doubt again, with twelve step sizes; doubt of 1 or less is none."""
    order = np.argsort(-doubt, axis=None, kind="stable")[:MAX_REFINED]
    for i in zip(*np.unravel_index(order, x.shape)):
        if doubt[i] > 1:
            store(estimates, i, element_slope(f, x, i, y, u, THOROUGH))


def store(estimates: Estimates, i: tuple, found: Slope) -> None:
    for array, number in zip(estimates, found):
        array[i] = number


def complex_step(f: Evaluate, x: np.ndarray, y: np.ndarray, u: np.ndarray) -> Estimates:
    """Return ∂⟨u, f⟩/∂x = Im⟨u, f(x + ih)⟩ / h for every element of x, exact to rounding.

    x is complex, y the outputs at the real x. Nothing is subtracted, so h can be 1e-20.
    Squire & Trapp, 1998 (SIAM Review 40); Martins, Sturdza & Alonso, 2003 (ACM TOMS 29).

    Raises NotAnalytic where the forward refuses complex numbers, returns real ones, gives NaN
    or changes its real part. That the value is right at all is for the caller to confirm by
    the Cauchy-Riemann equations: the slope along i must be the slope along the real axis.
    """
    value, error = np.zeros(x.shape), np.zeros(x.shape)
    for i in np.ndindex(x.shape):
        here = x[i].copy()
        if not np.isfinite(here):
            continue
        x[i] = here + 1j * COMPLEX_STEP
        try:
            moved = evaluate_complex(f, y)
        finally:
            x[i] = here
        value[i] = u @ moved.imag / COMPLEX_STEP
        error[i] = EPS * (np.abs(u) @ (np.abs(moved.imag) / COMPLEX_STEP + np.abs(y) * (moved.imag != 0)))
    return Estimates(value, error, value, value, np.zeros(x.shape, bool))


def evaluate_complex(f: Evaluate, y: np.ndarray) -> np.ndarray:
    """Return f at complex inputs next to the real line, where its real part must be y. Raises NotAnalytic."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", np.exceptions.ComplexWarning)
            moved = f()
    except Exception as error:  # whatever a stranger's forward raises: it does not take complex numbers
        raise NotAnalytic(f"the forward does not take complex numbers ({type(error).__name__}: {error})") from error
    if moved.dtype.kind != "c":
        raise NotAnalytic("the forward drops the imaginary part: its output is real where its input is complex")
    if moved.shape != y.shape:
        raise NotAnalytic("the forward gives another shape for complex inputs")
    finite = np.isfinite(y)
    if not np.isfinite(moved.imag[finite]).all():
        raise NotAnalytic("the forward gives NaN or infinity for complex inputs (−inf times a complex number?)")
    far = np.abs(moved.real - y)[finite] > 1e-9 * (np.abs(y[finite]).max(initial=0) + EPS)
    if far.any():
        raise NotAnalytic("the forward's real part changes with complex inputs (max, sort or compare of complex?)")
    return moved
