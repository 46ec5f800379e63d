"""Gradients that are right for something else: another upstream, another order, other ids, a transposed matrix."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from .numeric import differences
from .problem import Problem, is_floating
from .sides import Sides
from .terms import close, fits
from .trees import flatten


def repeated_ids(problem: Problem, analytic: np.ndarray, right: np.ndarray) -> Iterator[str]:
    """The rows of ids that occur more than once are wrong, and no others: += lost all but one of them."""
    if analytic.ndim < 2:
        return
    wrong = np.unique(np.nonzero(~close(analytic, right))[0])
    for name, x in zip(problem.names, problem.inputs):
        if isinstance(x, np.ndarray) and x.dtype.kind in "iu" and x.size:
            ids, counts = np.unique(x, return_counts=True)
            repeated = ids[counts > 1]
            if len(wrong) and set(wrong) == set(repeated) and set(ids) - set(repeated):
                rows = ", ".join(map(str, wrong[:5]))
                yield (
                    f"wrong only at ids that {name} repeats (rows {rows}): their gradients must add up; "
                    f"`dW[ids] += rows` keeps only the last one"
                )


def ignored_targets(problem: Problem, analytic: np.ndarray, right: np.ndarray) -> Iterator[str]:
    """Wrong only where an id is negative, as of a target that is not counted."""
    wrong = ~close(analytic, right)
    for name, ids in zip(problem.names, problem.inputs):
        if isinstance(ids, np.ndarray) and ids.dtype.kind == "i" and ids.shape == right.shape[:-1]:
            ignored = np.broadcast_to((ids < 0)[..., None], right.shape)
            if ignored.any() and not ignored.all() and not wrong[~ignored].any() and not right[ignored].any():
                yield f"wrong only where {name} is negative: a target that is not counted has gradient 0"


def shifted_targets(problem: Problem, analytic: np.ndarray, right: np.ndarray) -> Iterator[str]:
    """The −1 of softmax minus one-hot stands where the target of the position before or after is."""
    for name, ids in zip(problem.names, problem.inputs):
        if not (isinstance(ids, np.ndarray) and ids.dtype.kind in "iu" and ids.shape == right.shape[:-1]):
            continue
        features = np.arange(right.shape[-1])
        counted = right.any(axis=-1, keepdims=True)
        one_hot = (features == ids[..., None]) * counted
        for step in (1, -1):
            for moved in (np.roll(ids, step, axis=-1), np.roll(ids.ravel(), step).reshape(ids.shape)):
                rows = (moved >= 0)[..., None] & counted
                gap = np.where(rows, one_hot.astype(float) - (features == moved[..., None]), 0)
                error = np.where(rows, analytic - right, 0)
                size = float(np.vdot(error, gap)) / max(float((gap * gap).sum()), 1.0)
                if size and fits(error, size * gap):
                    yield f"off by one: the gradient takes {name} shifted by {step}"


def ones_only(sides: Sides, number: int, analytic: np.ndarray) -> Iterator[str]:
    """The gradient for an upstream that is one number everywhere: the upstream is ignored, or enters as a whole."""
    if sides.u.size == 1:
        return
    for_ones = sides.slopes(number, np.ones_like(sides.u))
    if fits(analytic, for_ones):
        yield "right for an upstream of ones only: the upstream is ignored"
    size = float(np.vdot(analytic, for_ones)) / max(float(np.vdot(for_ones, for_ones)), 1e-300)
    if fits(analytic, size * for_ones):
        yield "right for an upstream of ones only, but for a factor: does every element get its own upstream?"


def another_upstream(problem: Problem, sides: Sides, number: int, analytic: np.ndarray) -> Iterator[str]:
    """The gradient for an upstream that was mixed up before use."""
    if sides.jacobian(number) is None or sides.u.size == 1:
        return
    out, _ = problem.call()
    for meaning, upstream in mixed_up(problem.upstream(out)):
        if fits(analytic, sides.slopes(number, flatten(upstream))):
            yield meaning


def mixed_up(upstream: Any) -> Iterator[tuple[str, Any]]:
    """Yield slips with an upstream, each with what it makes of it."""
    parts = upstream if isinstance(upstream, tuple) else (upstream,)

    def only(k: int, part: np.ndarray) -> Any:
        return tuple(part if j == k else other for j, other in enumerate(parts))

    for k, part in enumerate(parts):
        which = f"the upstream of output {k}" if len(parts) > 1 else "the upstream"
        for j, other in enumerate(parts):
            if j != k and other.shape == part.shape:
                yield f"{which} is not used, that of output {j} stands in its order", only(k, other)
                swap = tuple(part if i == j else other if i == k else one for i, one in enumerate(parts))
                yield f"the upstreams of outputs {k} and {j} are swapped: they come in the order of the outputs", swap
        if len(parts) > 1:
            yield f"{which} is missing: it reaches nothing", only(k, np.zeros_like(part))
            for factor in (2.0, 0.5, -1.0):
                yield f"{which} has another factor, {factor:g}", only(k, factor * part)
        for axis in range(part.ndim):
            for step in (1, -1):
                yield f"off by one: {which} is shifted by {step} along axis {axis}", only(k, np.roll(part, step, axis))
            yield f"{which} is reversed along axis {axis}", only(k, np.flip(part, axis))
            for place, index in (("first", 0), ("last", -1)):
                alone = np.zeros_like(part)
                alone[(slice(None),) * axis + (index,)] = part[(slice(None),) * axis + (index,)]
                yield (
                    f"{which} counts at the {place} place of axis {axis} only: the others have to be added",
                    only(k, alone),
                )
        for one, other_axis in itertools.combinations(range(part.ndim), 2):
            turned = np.swapaxes(part, one, other_axis)
            if turned.shape == part.shape:
                yield f"{which} is transposed: axes {one} and {other_axis} are swapped", only(k, turned)
            renamed = turned.reshape(part.shape)
            yield f"{which} is reshaped where a transpose was due: axes {one} and {other_axis}", only(k, renamed)


def swapped(problem: Problem, sides: Sides, number: int, analytic: np.ndarray) -> Iterator[str]:
    """The gradient of another input of the same shape: returned in its place, or not told apart from it."""
    for other in problem.differentiable:
        same_shape = other != number and problem.inputs[other].shape == analytic.shape
        if same_shape and fits(analytic, sides.slopes(other)):
            yield (
                f"this is d{problem.names[other]}: given in another's place (gradients come in the order of the "
                "forward's inputs), or what tells the two apart is left out"
            )


def something_left_out(problem: Problem, sides: Sides, analytic: np.ndarray, right: np.ndarray) -> Iterator[str]:
    """The gradient is an array at hand, the right one times such an array, or Σ upstream · such an array."""
    at_hand = {name: x for name, x in zip(problem.names, problem.inputs) if is_floating(x)}
    if not isinstance(problem.upstream(problem.call()[0]), tuple):
        out_shape = np.shape(problem.call()[0])
        at_hand |= {"the output": sides.y.reshape(out_shape), "the upstream": sides.u.reshape(out_shape)}
    for name, x in at_hand.items():
        if x.shape == analytic.shape and fits(analytic, x):
            yield f"this is {name} itself: a factor is left out, or a branch beside the skip path"
        if x.shape == analytic.shape and fits(analytic, right * x):
            yield f"{name} times the right one: a factor too many"
    u = at_hand.get("the upstream")
    if u is None or analytic.shape != u.shape[-1:]:
        return
    for name, x in at_hand.items():
        if (
            name != "the upstream"
            and x.shape == u.shape
            and fits(analytic, (u * x).reshape(-1, u.shape[-1]).sum(axis=0))
        ):
            yield f"this is Σ upstream · {name} over the rows, and another array should stand for {name}"


def transposed_inside(problem: Problem, sides: Sides, number: int, analytic: np.ndarray) -> Iterator[str]:
    """The gradient that a transposed, or only reshaped, matrix would make; asked of an op, not of a model's many."""
    if len(problem.differentiable) > 8:
        return
    for other in problem.differentiable:
        W = problem.inputs[other]
        if other == number or W.ndim != 2:
            continue
        for word, turned in (("transposed", W.T), ("reshaped where a transpose was due", W.T.reshape(W.shape))):
            if turned.shape == W.shape and not np.array_equal(turned, W):
                with sides.replaced(other, turned):
                    found = differences(sides.f, sides.inputs[number], sides.f(), sides.u).value
                if fits(analytic, found):
                    yield f"{problem.names[other]} is {word} in the product that gives this gradient"
