"""Two ways to a derivative that need the forward alone: real differences, and the complex step."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from .problem import FAILURES

EPS = float(np.finfo(np.float64).eps)
BASE_STEP = (3 * EPS) ** (1 / 3)  # ≈ 8.7e-6: where truncation h²/6 and rounding ε/h are about equal
QUICK = (1.0, 2.0)  # in base steps
THOROUGH = tuple(2.0**k for k in range(-4, 8))
FAR_AND_NEAR = tuple(2.0**k for k in range(-28, 15))  # from 3e-14, for inputs near 1e-8, to 0.14, for what saturates
SETTLED = 1e-6  # of itself: a slope that is known less well deserves the far and the near steps
IN_VAIN = 4  # elements for which those steps find nothing better: they are not tried on more
OTHERS = 1.3
MOST_OCTAVES = 20  # that steps shrink for a large number: the smallest still moves it by thousands of its roundings
COMPLEX_STEP = 1e-20  # its square is nothing beside 1, and far from underflow
MAX_REFINED = 64  # elements of one tensor that get the thorough steps, the most suspicious first
ENOUGH = 4  # elements that a closer look finds far off: the tensor is wrong, and no other is looked at
ROUGH = 1e-10  # of the outputs' size: float64 rounds 1e5 times finer, float32 1e3 times more coarsely
SAFETY = 10  # an error estimate is an estimate: this many times it is allowed

Evaluate = Callable[[], np.ndarray]  # the forward's outputs at the inputs' present values, as one new vector
Walk = Callable[[float], tuple[np.ndarray, float]]  # t -> the outputs a step t away, and the step really made


class Slope(NamedTuple):
    """A derivative along one direction, and how far it can be trusted."""

    value: float
    error: float  # estimated: truncation and rounding
    left: float  # the one-sided slopes
    right: float
    kink: bool  # they do not meet as the step shrinks; then the error is that of the slopes
    rounding: float  # of the sum whose slope it is


class Estimates(NamedTuple):
    """The slopes of ⟨u, f(x)⟩ along every element of x, each array of x's shape."""

    value: np.ndarray
    error: np.ndarray
    left: np.ndarray
    right: np.ndarray
    kink: np.ndarray
    rounding: np.ndarray


class NotAnalytic(Exception):
    """The forward is not analytic, or drops the imaginary part: its complex step means nothing."""


def slope(
    walk: Walk, y: np.ndarray, u: np.ndarray, size: float, multiples: Sequence[float], unseen: float = 0.0
) -> Slope:
    """Return d⟨u, f⟩/dt at t = 0 from central differences, extrapolated; the steps are size times multiples.

        D(h) = ⟨u, f(h) − f(−h)⟩ / (h₊ − h₋)          h± the steps really made, after rounding
        T[k][m] = (4ᵐ T[k][m−1] − T[k+1][m−1]) / (4ᵐ − 1),   T[k][0] = D(hₖ),  hₖ₊₁ = 2hₖ

    The outputs are subtracted before they are projected, so that all that no step moves cancels
    exactly; where nothing moved, it may have by half a rounding. unseen is the least rounding of
    ⟨u, f⟩: an output of 1 that moves by 1e-17 stands still. The entry T of least estimated
    error wins; its error is its distance from the two entries it came from, plus the rounding of
    D(hₖ), plus the jump at its steps:

        jump(h) = 2 (right(h) − left(h)) − (right(2h) − left(2h)),   right and left the one-sided slopes

    which is 0 up to h³ for a smooth f, and at a kink the jump of the slope itself, at every h.
    Where it is most of the error, the point is called a kink.

    Richardson, 1911; Ridders, 1982 (Advances in Engineering Software 4); Press et al.,
    Numerical Recipes, §5.7.
    """
    steps = [size * multiple for multiple in multiples]
    D, left, right, shifts = [], [], [], []
    moved = np.zeros(y.shape, bool)
    for h in steps:
        up, h_up = walk(h)
        down, h_down = walk(-h)
        D.append(float(u @ (up - down)) / (h_up - h_down))
        right.append(float(u @ (up - y)) / h_up)
        left.append(float(u @ (down - y)) / h_down)
        moved |= (up != y) | (down != y)
        if len(steps) > 7:
            shifts.append((np.abs(up - y), np.abs(down - y)))
    bend = [b - a for a, b in zip(left, right)]
    jump = [abs(2 * near - far) for near, far in pairwise(bend)]
    weight = np.abs(u) * np.abs(y)
    if moved.any():
        least = EPS * float(weight[moved].sum())
    else:
        least = 0.5 * EPS * float(weight.max(initial=0, where=np.isfinite(weight)))
    least = max(least, unseen)
    if len(steps) > 7:
        least = max(least, stairs(shifts, u))
    measured = measured_rounding(D, jump, steps) if len(steps) > 7 else 0.0
    rounding = [max(least, measured) / h for h in steps]
    value, error, k, jumped = extrapolate(D, rounding, jump)
    kink = jumped > max(0.5 * error, 20 * rounding[k], 1e-5 * abs(left[k]), 1e-5 * abs(right[k]))
    return Slope(value, error - jumped if kink else error, left[k], right[k], kink, least)


def measured_rounding(D: Sequence[float], jump: Sequence[float], steps: Sequence[float]) -> float:
    """Return the rounding of ⟨u, f⟩ as the six smallest steps show it, where truncation is nil.

    It is in the jumps, unless a kink makes them: hence their median. And it is in what
    neighbouring slopes disagree by beyond their jumps: a forward that rounds to float32 inside
    moves in stairs, on which slopes and jumps can look perfect for several steps.
    """
    R = [(4 * near - far) / 3 for near, far in pairwise(D)]
    stairs = max((abs(R[k] - R[k + 1]) - 2 * max(jump[k : k + 3])) * steps[k] for k in range(5))
    return max(stairs, float(np.median([jump[k] * steps[k] for k in range(6)])))


def stairs(shifts: Sequence[tuple[np.ndarray, np.ndarray]], u: np.ndarray) -> float:
    """Return the rounding of ⟨u, f⟩ that outputs show which stand still for small steps, then move to both sides.

    The first move is a stair; of a smooth output half of it would have been seen at half the step.
    """
    stair, still = np.zeros(u.shape), (shifts[0][0] == 0) | (shifts[0][1] == 0)
    for up, down in shifts[1:]:
        first = still & (up > 0) & (down > 0)
        stair[first] = np.maximum(up, down)[first]
        still &= ~first
    return float(np.abs(u) @ stair)


def extrapolate(
    D: Sequence[float], rounding: Sequence[float], jump: Sequence[float]
) -> tuple[float, float, int, float]:
    """Return the entry of Richardson's table with the least error, that error, its finest step, and its jump.

    An entry of larger steps may sharpen one of smaller steps, but not contradict it: where a forward
    turns many times within a step, its slopes all come close to 0.
    """
    entries = []
    row = list(D)
    for m in range(1, min(len(D), 4)):
        finer = row
        row = [(4**m * a - b) / (4**m - 1) for a, b in pairwise(finer)]
        for k, value in enumerate(row):
            jumped = max(jump[k : k + m])
            error = max(abs(value - finer[k]), abs(value - finer[k + 1])) + rounding[k] + jumped
            entries.append((value, error, k, jumped))
    best = (D[0], np.inf, 0, 0.0)
    for entry in sorted(entries, key=lambda entry: entry[2]):
        if entry[1] < best[1] and not abs(entry[0] - best[0]) > SAFETY * (best[1] - best[3]):
            best = entry
    return best


def thorough(size: float) -> Sequence[float]:
    """Return the multiples of a step size that look closely, from what suits a number of 1 on.

    The size grows with the number that is moved, but the length on which the forward bends need not:
    sin(x) at 1e5 has a period of 6.
    """
    octaves = min(MOST_OCTAVES, max(0, math.ceil(math.log2(size / BASE_STEP))))
    return [*(THOROUGH[0] / 2.0**k for k in range(octaves, 0, -1)), *THOROUGH]


def step_sizes(x: np.ndarray) -> np.ndarray:
    """Return the step for each element of x: (3ε)^⅓·max(1, |x[i]|), or less where the elements differ by less.

    Rows of 1e6 ± 1 are in most forwards something plus or minus 1.
    """
    finite = x[np.isfinite(x)]
    spread = np.ptp(finite) if finite.size > 1 else np.inf
    return BASE_STEP * np.maximum(1, np.minimum(np.abs(x), spread))


def far_and_near(size: float) -> Sequence[float]:
    """Return the multiples of a step size for what the thorough ones leave unsettled."""
    least = min(FAR_AND_NEAR[0], thorough(size)[0])
    return [2.0**k for k in range(round(math.log2(least)), round(math.log2(FAR_AND_NEAR[-1])) + 1)]


def forgiving(walk: Walk, y: np.ndarray, size: float) -> Walk:
    """Return walk with NaN for the outputs where the forward refuses a step beyond the thorough ones."""

    def walk_or_nan(t: float) -> tuple[np.ndarray, float]:
        try:
            return walk(t)
        except FAILURES:
            if abs(t) <= size * THOROUGH[-1]:
                raise
            return np.full(y.shape, np.nan), t

    return walk_or_nan


def element_slope(
    f: Evaluate,
    x: np.ndarray,
    i: tuple,
    y: np.ndarray,
    u: np.ndarray,
    size: float,
    multiples: Sequence[float],
    unseen: float = 0.0,
) -> Slope:
    """Return ∂⟨u, f⟩/∂x[i], with steps of size times multiples. x is moved, and put back.

    An element at ±∞ stays there under every finite step: its slope is 0.
    """
    here = x[i].copy()
    if not np.isfinite(here):
        return Slope(0.0, 0.0, 0.0, 0.0, False, 0.0)

    def walk(t: float) -> tuple[np.ndarray, float]:
        x[i] = here + t
        return f(), float(x[i] - here)

    try:
        found = slope(forgiving(walk, y, size), y, u, size, multiples, unseen)
    finally:
        x[i] = here
    return found


def differences(
    f: Evaluate, x: np.ndarray, y: np.ndarray, u: np.ndarray, unseen: np.ndarray | None = None
) -> Estimates:
    """Return ∂⟨u, f⟩/∂x for every element of x by two central differences and their extrapolation.

    unseen  the least rounding of ⟨u, f⟩ when that element moves, where known
    """
    estimates = Estimates(*(np.zeros(x.shape, kind) for kind in (float, float, float, float, bool, float)))
    sizes, unseen = step_sizes(x), np.zeros(x.shape) if unseen is None else unseen
    for i in np.ndindex(x.shape):
        store(estimates, i, element_slope(f, x, i, y, u, float(sizes[i]), QUICK, float(unseen[i])))
    return estimates


def jacobian(f: Evaluate, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return ∂f/∂x, (outputs, elements of x), by one central difference each: good to about 1e-9."""
    columns, sizes = np.zeros((y.size, x.size)), step_sizes(x)
    for k, i in enumerate(np.ndindex(x.shape)):
        here, h = x[i].copy(), float(sizes[i])
        if np.isfinite(here):
            x[i] = here + h
            up, h_up = f(), x[i] - here
            x[i] = here - h
            columns[:, k] = (up - f()) / (h_up + here - x[i])
            x[i] = here
    return columns


def refine(
    f: Evaluate,
    x: np.ndarray,
    y: np.ndarray,
    u: np.ndarray,
    estimates: Estimates,
    analytic: np.ndarray,
    doubt: np.ndarray,
    unseen: np.ndarray | None = None,
) -> None:
    """Do the elements of greatest doubt again, each twice; doubt of 1 or less is none.

    Twelve step sizes, or more for a large number, and as many that share no power of two with them:
    where rounding moves in stairs, one run's slopes can look perfect by chance, but the two then disagree.
    What that leaves unsettled gets steps from far to near. Where it is not known which outputs an
    element moves, each may have moved, unseen.
    """
    all_outputs = EPS * float(np.abs(u) @ np.where(np.isfinite(y), np.abs(y), 0))
    unseen = np.full(x.shape, all_outputs) if unseen is None else unseen
    order = np.argsort(-doubt, axis=None, kind="stable")
    far_off, in_vain = 0, 0
    for n, k in enumerate(order):
        i = np.unravel_index(int(k), x.shape)
        if doubt[i] <= 1 or far_off == ENOUGH:
            return
        size = BASE_STEP * max(1.0, abs(float(x[i])))
        if n >= MAX_REFINED:
            estimates.error[i] = max(estimates.error[i], unseen[i] / size)
            continue

        def closer(multiples: Sequence[float], i: tuple = i, size: float = size) -> Slope:
            shifted = (size, OTHERS * size)
            return both(*(element_slope(f, x, i, y, u, h, multiples, float(unseen[i])) for h in shifted))

        found = closer(thorough(size))
        if in_vain < IN_VAIN and not settled(found):
            closest = closer(far_and_near(size))
            in_vain += not better(closest, found)
            found = closest if settled(closest) or not found.kink else found
        store(estimates, i, found)
        gap = abs(analytic[i] - found.value)
        far_off += not found.kink and gap > SAFETY * found.error and gap > 1e-3 * abs(found.value)


def settled(found: Slope) -> bool:
    return not found.kink and found.error <= SETTLED * abs(found.value)


def better(closest: Slope, found: Slope) -> bool:
    """Whether a closer look was worth it."""
    contradicts = abs(closest.value - found.value) > SAFETY * closest.error
    return settled(closest) or (not closest.kink and (contradicts or closest.error < 0.1 * found.error))


def both(one: Slope, other: Slope) -> Slope:
    """Return the better known of two slopes, with no less error than they are apart."""
    best = min(one, other, key=lambda found: found.error)
    return best._replace(error=max(best.error, abs(one.value - other.value)), kink=one.kink and other.kink)


def store(estimates: Estimates, i: tuple, found: Slope) -> None:
    for array, number in zip(estimates, found):
        array[i] = number


def roughness(walk: Walk, y: np.ndarray, u: np.ndarray) -> tuple[float, float]:
    """Return how unevenly ⟨u, f⟩ moves along tiny even steps, and how far along a step of 1, as shares of its size.

    The first is about 1e-16 in float64, or what the inputs' own rounding moves.

    A forward that rounds to float32 inside stands still and jumps by 1e-7 of its size. The steps are
    such that each output would move by about one such jump. The third differences of a smooth f are
    0; of most of them, so that a kink on the way does not count.
    """
    finite = np.isfinite(y)
    y, u = y[finite], np.abs(u[finite])
    moved = float(u @ np.abs(walk(BASE_STEP)[0][finite] - y))
    size = float(u @ np.abs(y))
    if not moved > 0 or not size > 0:
        return 0.0, 0.0
    step = float(np.clip(1e-7 * size / (moved / BASE_STEP), 3e-8, 1e-5))
    path = [float(u @ (walk(k * step)[0][finite] - y)) for k in range(16)]
    return float(np.quantile(np.abs(np.diff(path, 3)), 0.7)) / size, moved / BASE_STEP / size


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
    return Estimates(value, error, value, value, np.zeros(x.shape, bool), np.zeros(x.shape))


def evaluate_complex(f: Evaluate, y: np.ndarray) -> np.ndarray:
    """Return f at complex inputs next to the real line, where its real part must be y. Raises NotAnalytic."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", np.exceptions.ComplexWarning)
            moved = f()
    except FAILURES as error:  # whatever it raises: it does not take complex numbers
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
