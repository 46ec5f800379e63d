"""From two gradients to a verdict."""

from __future__ import annotations

import numpy as np

from .numeric import EPS, SAFETY, Estimates
from .report import Line, Verdict

RELATIVE = {"differences": 1e-8, "complex step": 1e-11, "adjoint": 1e-8, "projection": 1e-8}
FLOOR = 1e-11  # of the tensor's largest magnitude
NOISE = 1e-3  # of the tensor's largest magnitude: a tolerance above it would let anything pass
NOTHING = 1e-6  # gradients above it are not called 0, however badly they are known
DRAWN = 1024  # elements up to which the errors are kept for a picture


def absolute_tolerance(numeric: Estimates) -> np.ndarray:
    """Return the absolute tolerance of every element, from what the estimate says of its own error.

    The tensor's scale sets a floor: an element that is 0 by cancellation is known no better.
    """
    scale = np.abs(numeric.value).max(initial=0, where=np.isfinite(numeric.value))
    return SAFETY * numeric.error + FLOOR * scale


def tolerance(analytic: np.ndarray, numeric: Estimates, check: str) -> np.ndarray:
    """Return what |analytic − numeric| may be: absolute or relative, whichever is larger."""
    relative = RELATIVE[check] * np.maximum(np.abs(analytic), np.abs(numeric.value))
    return np.fmax(absolute_tolerance(numeric), relative)


def kinks(numeric: Estimates, scale: float) -> np.ndarray:
    """Return where the slope jumps, by more than rounding makes of a slope of 0."""
    return numeric.kink & (np.abs(numeric.right - numeric.left) > 1e-6 * scale)


def doubt(analytic: np.ndarray, numeric: Estimates, other: Estimates | None, scale: float) -> np.ndarray:
    """Return, by element, how much closer a look it deserves: above 1 it deserves one.

    An element is in doubt where it bends, is known less well than the check promises, or
    disagrees: with the other oracle or, where there is none, with the analytic side. Where two
    oracles agree, a closer look at one would find nothing new.
    """
    allowed = absolute_tolerance(numeric) + EPS * scale + np.finfo(float).tiny
    against = analytic if other is None else other.value
    share = np.maximum(np.abs(against - numeric.value) / allowed, allowed / (1e-6 * scale + np.finfo(float).tiny))
    return np.where(kinks(numeric, scale) | ~np.isfinite(share), np.inf, share)


def compare(name: str, check: str, analytic: np.ndarray, numeric: Estimates) -> Line:
    """Hold every element of analytic to numeric; the worst decides. All numbers of a line are those of one element.

    WRONG         further apart than the tolerance
    INCONCLUSIVE  a kink, or a tolerance so wide that agreement would mean nothing
    VACUOUS       no element of either side differs from 0 by more than the error
    PASS          everything else
    """
    if analytic.size == 0:
        return Line(name, check, Verdict.SKIPPED, note="the tensor is empty", shape=analytic.shape)
    allowed = tolerance(analytic, numeric, check)
    error = np.abs(analytic - numeric.value)
    known = np.isfinite(numeric.value) & np.isfinite(numeric.error)
    scale = max(np.abs(analytic[known]).max(initial=0), np.abs(numeric.value[known]).max(initial=0))

    kink = kinks(numeric, scale)
    wrong = ~np.isfinite(analytic) | (known & ~kink & ~(error <= allowed))
    zero = (np.abs(analytic) <= allowed) & (np.abs(numeric.value) <= allowed)
    vacuous = bool(zero.all()) and scale <= NOTHING and not wrong.any()
    noisy = known & (allowed > NOISE * scale) & ~np.bool_(vacuous)
    unsure = ~wrong & (kink | ~known | noisy)

    share = np.where(allowed > 0, error / np.where(allowed > 0, allowed, 1), np.where(error > 0, np.inf, 0))
    share = np.nan_to_num(share, nan=np.inf, posinf=np.inf)
    if wrong.any():
        verdict, among = Verdict.WRONG, wrong
    elif unsure.any():
        verdict, among = Verdict.INCONCLUSIVE, unsure
    else:
        verdict, among = Verdict.VACUOUS if vacuous else Verdict.PASS, np.ones(error.shape, bool)
    index = np.unravel_index(int(np.where(among, np.nan_to_num(error, nan=np.inf), -1).argmax()), error.shape)
    worst = float(np.nan_to_num(error[index], nan=np.inf))
    return Line(
        name,
        check,
        verdict,
        worst=worst,
        index=tuple(int(i) for i in index),
        analytic=float(analytic[index]),
        numeric=float(numeric.value[index]),
        error_estimate=float(numeric.error[index]),
        share=float(share[index]),
        note=explain(verdict, index, analytic, numeric, int(among.sum()), float(allowed[index]), scale),
        tolerance=float(allowed[index]),
        relative=worst / scale if scale > 0 else 0.0,
        shape=analytic.shape,
        errors=error if error.size <= DRAWN else None,
    )


def explain(
    verdict: Verdict, index: tuple, analytic: np.ndarray, numeric: Estimates, number: int, allowed: float, scale: float
) -> str:
    """Return the sentence that goes with a verdict."""
    many = f"{number} of {analytic.size} elements"
    if verdict is Verdict.WRONG:
        if not np.isfinite(analytic[index]) and not np.isfinite(numeric.value[index]):
            return f"the forward is not finite around here, and the backward gives {analytic[index]}; {many} are wrong"
        if not np.isfinite(analytic[index]):
            return f"the backward gives {analytic[index]}; {many} are wrong"
        return f"{many} are further off than the error explains"
    if verdict is Verdict.VACUOUS:
        return "both sides are 0 within the error: agreement shows nothing"
    if verdict is Verdict.INCONCLUSIVE:
        if kinks(numeric, scale)[index]:
            sides = numeric.left[index], numeric.right[index]
            slopes = f"the slope is {sides[0]:.6g} on the left and {sides[1]:.6g} on the right"
            if not min(sides) - allowed <= analytic[index] <= max(sides) + allowed:
                slopes += ", and the backward's lies outside them"
            return f"a kink: {slopes}; no derivative to compare with ({many}). Move the input or the seed"
        if not np.isfinite(numeric.value[index]):
            return f"the forward is not finite around here ({many})"
        return (
            f"noise above the signal: the difference is only known to {allowed:.2g}, the largest gradient is "
            f"{scale:.2g} ({many}). Does the forward compute in float32, round, or draw at random?"
        )
    return ""


def near(name: str, check: str, found: np.ndarray, expected: np.ndarray | float, allowed: float) -> Line:
    """Hold found to what an identity says it is, in every element, within allowed."""
    found = np.asarray(found)
    expected = np.broadcast_to(np.asarray(expected, np.float64), found.shape)
    error = np.nan_to_num(np.abs(found - expected), nan=np.inf)
    if error.size == 0:
        return Line(name, check, Verdict.SKIPPED, note="the tensor is empty")
    index = np.unravel_index(int(error.argmax()), error.shape)
    worst = float(error[index])
    share = worst / allowed if allowed > 0 else (np.inf if worst > 0 else 0.0)
    return Line(
        name,
        check,
        Verdict.PASS if share <= 1 else Verdict.WRONG,
        worst=worst,
        index=tuple(int(i) for i in index),
        analytic=float(found[index]),
        numeric=float(expected[index]),
        share=share,
        tolerance=allowed,
    )
