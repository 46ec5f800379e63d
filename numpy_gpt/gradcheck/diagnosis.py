"""From a wrong gradient to the mistake that makes just this one.

Each hypothesis says what the analytic gradient would be, had that mistake been made; the first
that fits in every element is named. None fitting, it is said where the wrong elements lie.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from .mixups import (
    another_upstream,
    ignored_targets,
    ones_only,
    repeated_ids,
    shifted_targets,
    something_left_out,
    swapped,
    transposed_inside,
)
from .numeric import Estimates
from .problem import Problem
from .sides import Sides
from .terms import (
    FIT,
    another_gelu,
    close,
    fits,
    gamma_left_out,
    missing_row_term,
    rows_by_factors,
    softmax_slips,
    wrong_epsilon,
    wrong_terms,
)

FEW_DIGITS = 1e-3  # of an element: what is further off is no matter of digits


def diagnose(problem: Problem, sides: Sides, number: int, analytic: np.ndarray, numeric: Estimates) -> str:
    """Return the mistake that fits, in one sentence, or where the error lies."""
    right = numeric.value
    if not np.isfinite(analytic).all():
        return f"{int((~np.isfinite(analytic)).sum())} elements are NaN or infinite"
    if analytic.shape != right.shape:
        return next(wrong_shape(problem, sides, number, analytic, right))
    hypotheses = itertools.chain(
        simple(analytic, right),
        constant_ratio(problem, sides, analytic, right),
        rearranged(analytic, right),
        repeated_ids(problem, analytic, right),
        wrong_epsilon(problem, sides, number, analytic, right),
        something_left_out(problem, sides, analytic, right),
        wrong_terms(problem, sides, number, analytic, right),
        softmax_slips(problem, sides, number, analytic, right),
        gamma_left_out(problem, sides, number, analytic, right),
        ignored_targets(problem, analytic, right),
        shifted_targets(problem, analytic, right),
        another_gelu(problem, sides, number, analytic),
        missing_row_term(problem, sides, number, analytic, right),
        summed_axis(analytic, right),
        ones_only(sides, number, analytic),
        swapped(problem, sides, number, analytic),
        another_upstream(problem, sides, number, analytic),
        transposed_inside(problem, sides, number, analytic),
    )
    return (
        next(hypotheses, "")
        or on_one_side(problem, number, analytic, right)
        or where(analytic, right)
        or rows_by_factors(analytic, right)
    )


def wrong_shape(problem: Problem, sides: Sides, number: int, analytic: np.ndarray, right: np.ndarray) -> Iterator[str]:
    """A broadcast input's gradient not summed, one summed too far or over another axis, another's gradient."""
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
    yield from swapped(problem, sides, number, analytic)
    if analytic.ndim == right.ndim == 1 and fits(analytic.sum(keepdims=True), right.sum(keepdims=True)):
        yield "the total is right, but another axis is summed: each feature has its own gradient, summed over the rows"
    yield "the gradient must have its input's shape"


def simple(analytic: np.ndarray, right: np.ndarray) -> Iterator[str]:
    if close(analytic, right).all() and right.any():
        gap = np.abs(analytic - right)
        worst = np.unravel_index(int(gap.argmax()), gap.shape)
        if gap[worst] > FEW_DIGITS * np.abs(right[worst]):
            share = gap[worst] / max(np.abs(right[worst]), 1e-300)
            yield f"off by {share:.2g} of itself at {list(map(int, worst))}, which is small beside the largest element"
        else:
            size = float(gap.max() / np.abs(right).max())
            yield f"right to {size:.1g} only: a constant with few digits, a wrong ε, or float32 inside?"
    if not analytic.any():
        yield "the gradient is 0 everywhere: is it ever written, or lost on the way?"
    if fits(-analytic, right):
        yield "the sign is flipped"


def constant_ratio(problem: Problem, sides: Sides, analytic: np.ndarray, right: np.ndarray) -> Iterator[str]:
    """The gradient is the right one times a number, which is named where the shapes name it."""
    if not right.any():
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
    sides: dict[int, list[str]] = {}
    for name, x in zip(problem.names, problem.inputs):
        if isinstance(x, np.ndarray):
            for axis, side in enumerate(x.shape):
                sides.setdefault(side, []).append(f"axis {axis} of {name}")
            sides.setdefault(math.prod(x.shape[:-1]), []).append(f"rows of {name}")
            sides.setdefault(x.size, []).append(f"size of {name}")
    h = problem.kwargs.get("h")
    widths = [x.shape[-1] for x in problem.inputs if isinstance(x, np.ndarray) and x.ndim]
    if h and widths and widths[0] % h == 0:
        sides.setdefault(widths[0] // h, []).insert(0, "d_head")
    told = {side: " or ".join(dict.fromkeys(names[:3])) for side, names in sides.items()}
    roots = [(math.sqrt(side), f"√{side} ({names})") for side, names in told.items() if side > 1]
    whole = [(float(side), f"{side} ({names})") for side, names in told.items() if side > 2]
    return [(2.0, "2"), *whole, *roots, (math.sqrt(2), "√2"), (math.pi, "π"), (math.sqrt(math.pi), "√π")]


def rearranged(analytic: np.ndarray, right: np.ndarray) -> Iterator[str]:
    """Transposed, reshaped where a transpose was due, reversed, or shifted by one."""
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


def summed_axis(analytic: np.ndarray, right: np.ndarray) -> Iterator[str]:
    """Sums, or means, over axes that the gradient keeps, spread out again by broadcasting."""
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


def on_one_side(problem: Problem, number: int, analytic: np.ndarray, right: np.ndarray) -> str:
    """Say so where all elements of one sign are wrong and all others right, as on one branch of a forward."""
    x, wrong = problem.inputs[number], ~close(analytic, right)
    for word, branch in (("negative", x < 0), ("positive", x > 0)):
        if 2 <= branch.sum() < x.size and np.array_equal(wrong, branch):
            found, expected = analytic[branch], right[branch]
            factor = float(np.vdot(found, expected) / np.vdot(expected, expected)) if expected.any() else 0.0
            there = ""
            if not found.any():
                there = ", where the gradient is 0"
            elif fits(found, factor * expected):
                there = f", where every element is {factor:.6g} times the right one"
            return f"wrong only where {problem.names[number]} is {word}{there}"
    return ""


def where(analytic: np.ndarray, right: np.ndarray) -> str:
    """Say where the wrong elements lie, if they lie together, and their factor, if they have one."""
    if not right.any():
        return ""
    wrong = ~close(analytic, right)
    places = [np.unique(axis) for axis in np.nonzero(wrong)]
    for axis, (rows, side) in enumerate(zip(places, right.shape)):
        if 0 < len(rows) < side and np.array_equal(rows, np.arange(rows[0], rows[-1] + 1)):
            span = str(rows[0]) if len(rows) == 1 else f"{rows[0]} to {rows[-1]}"
            found, expected = (np.take(t, rows, axis) for t in (analytic, right))
            factor = float(np.vdot(found, expected) / np.vdot(expected, expected)) if expected.any() else 0.0
            there = ""
            if found.size > 1 and fits(found, factor * expected):
                there = f", where every element is {factor:.6g} times the right one"
            elif not found.any():
                there = ", where the gradient is 0"
            return f"wrong only at {span} (of 0 to {side - 1}) along axis {axis}{there}"
    return ""
