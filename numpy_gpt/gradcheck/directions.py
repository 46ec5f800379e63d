"""Gradients held to the forward's slope along one random direction: a few forwards, whatever the number of inputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from .compare import compare
from .numeric import (
    BASE_STEP,
    EPS,
    QUICK,
    SAFETY,
    Estimates,
    Walk,
    far_and_near,
    forgiving,
    settled,
    slope,
    thorough,
)
from .problem import Problem, largest
from .report import Line


def compare_direction(
    name: str, check_name: str, walk: Walk, y: np.ndarray, u: np.ndarray, size: float, pairs: Sequence[tuple]
) -> Line:
    """⟨u, J v⟩ = ⟨Jᵀ u, v⟩: hold the slope of walk to what pairs of (gradient, v) add up to.

    The third derivative along a random v grows with the number n of its elements faster than the
    slope, so the step is size / n^⅕, as found by trial. Where that settles nothing, many steps are made.
    """
    right = sum(float(np.vdot(grad, v)) for grad, v in pairs)
    size /= sum(v.size for _, v in pairs) ** 0.2
    found = slope(walk, y, u, size, QUICK)
    unsettled = abs(right - found.value) > SAFETY * found.error or found.error > 1e-6 * abs(found.value)
    if found.kink or unsettled:  # whatever moves in a direction through all the inputs may do so unseen
        unseen = EPS * float(np.abs(u) @ np.where(np.isfinite(y), np.abs(y), 0))
        found = slope(walk, y, u, size, thorough(size), unseen)
        if not settled(found):
            closest = slope(forgiving(walk, y, size), y, u, size, far_and_near(size), unseen)
            found = closest if settled(closest) or not found.kink else found
        if found.value == found.left == found.right == 0:  # an output of 0 can be log(1 + 1e-17)
            found = found._replace(error=max(found.error, EPS * float(np.abs(u).max(initial=0)) / size))
    absolute = sum(float(np.abs(grad).ravel() @ np.abs(v).ravel()) for grad, v in pairs)
    error = found.error + EPS * absolute
    numeric = Estimates(*map(np.asarray, found._replace(error=error)))
    return compare(name, check_name, np.asarray(right), numeric)


def through(problem: Problem, directions: dict[int, np.ndarray]) -> tuple[Walk, float]:
    """Return the walk from the inputs along directions, by their numbers, and the step for it."""

    def walk(t: float) -> tuple[np.ndarray, float]:
        moved = list(problem.inputs)
        for number, v in directions.items():
            moved[number] = problem.inputs[number] + t * v
        return problem.outputs(moved), t

    return walk, BASE_STEP * largest(problem.inputs[number] for number in directions)


def draw(problem: Problem, numbers: Iterable[int], rng: np.random.Generator) -> dict[int, np.ndarray]:
    """Return a standard normal direction through each input; an element at ±∞ stays there."""
    inputs = {number: problem.inputs[number] for number in numbers}
    return {number: np.where(np.isfinite(x), rng.standard_normal(x.shape), 0) for number, x in inputs.items()}
