"""From a wrong gradient to the mistake that makes just this one.

Each hypothesis says what the analytic gradient would be, had that mistake been made; the first
that fits in every element is named. None fitting, it is said where the wrong elements lie.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from .numeric import EPS, Estimates
from .problem import Problem
from .trees import flatten, map_leaves

if TYPE_CHECKING:
    from .check import Sides

FIT = 1e-6  # of the tensor's largest magnitude


def diagnose(problem: Problem, sides: Sides, number: int, analytic: np.ndarray, numeric: Estimates) -> str:
    """Return the mistake that fits, in one sentence, or where the error lies."""
    right = numeric.value
    if not np.isfinite(analytic).all():
        return f"{int((~np.isfinite(analytic)).sum())} elements are NaN or infinite"
    hypotheses = itertools.chain(
        wrong_shape(analytic, right),
        simple(analytic, right),
        constant_ratio(problem, sides, analytic, right),
        rearranged(analytic, right),
        repeated_ids(problem, analytic, right),
        tied_part(problem, number, analytic, right),
        missing_row_term(problem, sides, number, analytic, right),
        summed_axis(analytic, right),
        ones_only(problem, sides, number),
        swapped(problem, sides, number, analytic),
    )
    return next(hypotheses, "") or where(analytic, right)


def fits(found: np.ndarray, expected: np.ndarray) -> bool:
    """Whether two arrays agree in every element, and are not just both 0."""
    if found.shape != expected.shape or found.size == 0:
        return False
    size = np.abs(expected).max()
    return bool(size > 1e-12 and np.abs(found - expected).max() <= FIT * size)


def wrong_shape(analytic: np.ndarray, right: np.ndarray) -> Iterator[str]:
    """A broadcast input whose gradient was not summed, or one summed too far, or left transposed."""
    if analytic.shape == right.shape:
        return
    extra = analytic.ndim - right.ndim
    if extra > 0 and fits(analytic.sum(axis=tuple(range(extra))), right):
        yield f"the input was broadcast over {extra} leading axes: sum the gradient over them"
    for axes in subsets(right.ndim):
        if fits(analytic, right.sum(axis=axes)) or fits(analytic, right.sum(axis=axes, keepdims=True)):
            yield f"{plural('axis', axes)} summed that should not be"
    if analytic.ndim >= 2 and fits(np.swapaxes(analytic, -1, -2), right):
        yield "transposed: swap the last two axes"
    if analytic.size == right.size and fits(analytic.reshape(right.shape), right):
        yield "the numbers are right, the shape is not: reshape to the input's shape"
    yield "the gradient must have its input's shape"


def simple(analytic: np.ndarray, right: np.ndarray) -> Iterator[str]:
    if analytic.shape != right.shape:
        return
    if close(analytic, right).all() and right.any():
        size = float(np.abs(analytic - right).max() / np.abs(right).max())
        yield f"right to {size:.1g} only: a constant with few digits, a wrong ε, or float32 inside?"
    if not analytic.any():
        yield "the gradient is 0 everywhere: is it ever written, or lost on the way?"
    if fits(-analytic, right):
        yield "the sign is flipped"


def constant_ratio(problem: Problem, sides: Sides, analytic: np.ndarray, right: np.ndarray) -> Iterator[str]:
    """The gradient is the right one times a number, which is named where the shapes name it."""
    if analytic.shape != right.shape or not right.any():
        return
    ratio = float(np.vdot(analytic, right) / np.vdot(right, right))
    if abs(ratio) < 1e-9 or not fits(analytic, ratio * right):
        return
    if sides.u.size == 1 and abs(ratio * sides.u[0] - 1) < FIT:
        yield "right for an upstream of ones only: the upstream is ignored"
    size, sign = abs(ratio), "−" if ratio < 0 else ""
    for value, name in named_numbers(problem):
        if abs(size / value - 1) < FIT:
            yield f"every element is {sign}{name} times the right one"
        if abs(size * value - 1) < FIT:
            yield f"every element is {sign}1/{name} times the right one"
    yield f"every element is {ratio:.6g} times the right one"


def named_numbers(problem: Problem) -> list[tuple[float, str]]:
    """Return numbers that a factor may be, each with what it is here; the plain ones first."""
    sides: dict[int, str] = {}
    for name, x in zip(problem.names, problem.inputs):
        if isinstance(x, np.ndarray):
            for axis, side in enumerate(x.shape):
                sides.setdefault(side, f"axis {axis} of {name}")
            sides.setdefault(math.prod(x.shape[:-1]), f"rows of {name}")
            sides.setdefault(x.size, f"size of {name}")
    h = problem.kwargs.get("h")
    widths = [x.shape[-1] for x in problem.inputs if isinstance(x, np.ndarray) and x.ndim]
    if h and widths and widths[0] % h == 0:
        sides[widths[0] // h] = "d_head"
    roots = [(math.sqrt(side), f"√{side} ({name})") for side, name in sides.items() if side > 1]
    whole = [(float(side), f"{side} ({name})") for side, name in sides.items() if side > 2]
    return [(2.0, "2"), *whole, *roots, (math.sqrt(2), "√2"), (math.pi, "π"), (math.sqrt(math.pi), "√π")]


def rearranged(analytic: np.ndarray, right: np.ndarray) -> Iterator[str]:
    """Transposed, reshaped where a transpose was due, reversed, or shifted by one."""
    if analytic.shape != right.shape:
        return
    for one, other in itertools.combinations(range(analytic.ndim), 2):
        swapped_right = np.swapaxes(right, one, other)
        if fits(analytic, swapped_right):
            yield f"transposed: axes {one} and {other} are swapped"
        if fits(analytic, swapped_right.reshape(right.shape)):
            yield f"reshaped where a transpose was due: axes {one} and {other} must be swapped, not renamed"
        if fits(analytic, right.reshape(swapped_right.shape).swapaxes(one, other)):
            yield f"reshaped where a transpose was due: axes {one} and {other} must be swapped, not renamed"
    for axis in range(analytic.ndim):
        for step in (1, -1):
            if fits(analytic, np.roll(right, step, axis)):
                yield f"off by one: shifted by {step} along axis {axis}"
        if fits(analytic, np.flip(right, axis)):
            yield f"reversed along axis {axis}"


def repeated_ids(problem: Problem, analytic: np.ndarray, right: np.ndarray) -> Iterator[str]:
    """Only rows of ids that occur more than once are wrong: += lost all but one of them."""
    if analytic.shape != right.shape or analytic.ndim < 2:
        return
    wrong = np.unique(np.nonzero(~close(analytic, right))[0])
    for name, x in zip(problem.names, problem.inputs):
        if isinstance(x, np.ndarray) and x.dtype.kind in "iu" and x.size:
            ids, counts = np.unique(x, return_counts=True)
            repeated = ids[counts > 1]
            if len(wrong) and set(wrong) <= set(repeated) and set(ids) - set(repeated):
                rows = ", ".join(map(str, wrong[:5]))
                yield (
                    f"wrong only at ids that {name} repeats (rows {rows}): their gradients must add up; "
                    f"`dW[ids] += rows` keeps only the last one"
                )


def close(analytic: np.ndarray, right: np.ndarray) -> np.ndarray:
    return np.abs(analytic - right) <= FIT * max(float(np.abs(right).max(initial=0)), EPS)


def tied_part(problem: Problem, number: int, analytic: np.ndarray, right: np.ndarray) -> Iterator[str]:
    """One matrix used in two places: the gradient holds the share of one place only."""
    if problem.parts is None or analytic.shape != right.shape:
        return
    for part, share in problem.parts(problem.names[number]).items():
        if fits(right - analytic, share):
            yield f"the tied term is missing: the {part}'s share has to be added"
        if fits(analytic - right, share):
            yield f"the {part}'s share is counted twice"


def missing_row_term(
    problem: Problem, sides: Sides, number: int, analytic: np.ndarray, right: np.ndarray
) -> Iterator[str]:
    """The error of each row is one number times a known row: ones, the output, the normalised input."""
    if analytic.shape != right.shape or analytic.ndim == 0 or analytic.shape[-1] < 3:
        return
    gap = analytic - right
    x = problem.inputs[number]
    y = sides.y.reshape(x.shape) if sides.y.size == x.size else None
    xhat = x - x.mean(axis=-1, keepdims=True)
    candidates = [(np.ones_like(x), "the mean over the last axis is not subtracted (a term that is constant in a row)")]
    if y is not None:
        candidates.append((y, "the term output · Σ(upstream · output) of a row is missing, or has another factor"))
    candidates.append((xhat, "the term along x̂, the normalised input, is missing, or has another factor"))
    for row, meaning in candidates:
        norm = (row * row).sum(axis=-1, keepdims=True)
        along = row * ((gap * row).sum(axis=-1, keepdims=True) / np.where(norm > 0, norm, 1))
        if fits(along, gap):
            yield meaning
    if analytic.ndim > 1:
        column = np.broadcast_to(gap.mean(axis=0), gap.shape)
        if analytic.shape[0] > 2 and fits(column, gap):
            yield "the mean over the first axis is not subtracted (a term that is constant along it)"


def summed_axis(analytic: np.ndarray, right: np.ndarray) -> Iterator[str]:
    """Sums, or means, over axes that the gradient keeps, spread out again by broadcasting."""
    if analytic.shape != right.shape:
        return
    for axes in subsets(right.ndim):
        if all(right.shape[axis] == 1 for axis in axes):
            continue
        total = np.broadcast_to(right.sum(axis=axes, keepdims=True), right.shape)
        if fits(analytic, total):
            yield f"{plural('axis', axes)} summed that should not be, and spread out again by broadcasting"
        if fits(analytic, np.broadcast_to(right.mean(axis=axes, keepdims=True), right.shape)):
            yield f"the mean was taken over {plural('axis', axes, False)} where every element keeps its own gradient"


def subsets(n: int) -> list[tuple[int, ...]]:
    return [axes for size in range(1, n + 1) for axes in itertools.combinations(range(n), size)]


def plural(word: str, axes: tuple[int, ...], verb: bool = True) -> str:
    several = len(axes) > 1
    words = f"{'axes' if several else word} {' and '.join(map(str, axes))}"
    return f"{words} {'are' if several else 'is'}" if verb else words


def ones_only(problem: Problem, sides: Sides, number: int) -> Iterator[str]:
    """Right for an upstream of ones, wrong for another: the upstream is ignored, or enters as a whole."""
    if sides.u.size == 1:
        return
    out, cache = problem.call()
    ones = map_leaves(np.ones_like, problem.upstream(out))
    try:
        grad = problem.gradients(ones, cache)[problem.differentiable.index(number)]
    except Exception:  # a stranger's backward that takes no ones: then this is not its mistake
        return
    real = sides.slopes(number, flatten(ones))
    if np.shape(grad) == real.shape and fits(np.asarray(grad), real):
        yield "right for an upstream of ones only: does every element get its own upstream?"


def swapped(problem: Problem, sides: Sides, number: int, analytic: np.ndarray) -> Iterator[str]:
    """The gradient of another input of the same shape: returned in another order."""
    for other in problem.differentiable:
        same_shape = other != number and problem.inputs[other].shape == analytic.shape
        if same_shape and fits(analytic, sides.slopes(other)):
            yield f"this is d{problem.names[other]}: gradients come in the order of the forward's inputs"


def where(analytic: np.ndarray, right: np.ndarray) -> str:
    """Say where the wrong elements lie, if they lie together; or how large the error is."""
    if analytic.shape != right.shape or not right.any():
        return ""
    wrong = ~close(analytic, right)
    places = [np.unique(axis) for axis in np.nonzero(wrong)]
    for axis, (rows, side) in enumerate(zip(places, right.shape)):
        if len(rows) <= side / 2 and np.array_equal(rows, np.arange(rows[0], rows[-1] + 1)):
            span = str(rows[0]) if len(rows) == 1 else f"{rows[0]} to {rows[-1]}"
            return f"wrong only at {span} (of 0 to {side - 1}) along axis {axis}"
    return ""
