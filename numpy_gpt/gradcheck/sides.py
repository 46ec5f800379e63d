"""The numeric side of a check: the forward, moved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from .compare import NOISE, doubt
from .numeric import (
    BASE_STEP,
    EPS,
    SAFETY,
    Estimates,
    NotAnalytic,
    complex_step,
    differences,
    evaluate_complex,
    jacobian,
    refine,
)
from .problem import Problem, largest

MOST_ENTRIES = 2_000_000  # of a Jacobian that is kept


class Sides:
    """The numeric side: the forward at float64 and at complex inputs that may be moved."""

    def __init__(self, problem: Problem, y: np.ndarray, u: np.ndarray) -> None:
        self.problem, self.y, self.u = problem, y, u
        self.inputs = [np.array(x) if isinstance(x, np.ndarray) else x for x in problem.inputs]
        self.complex_inputs = [
            np.array(x, np.complex128) if number in problem.differentiable else x
            for number, x in enumerate(problem.inputs)
        ]
        self.found: dict[int, np.ndarray] = {}
        self.jacobians: dict[int, np.ndarray] = {}
        self.not_analytic = ""
        try:  # on the real line the complex forward must be the real one
            evaluate_complex(self.complex_f, y)
        except NotAnalytic as reason:
            self.not_analytic = str(reason)

    def f(self) -> np.ndarray:
        return self.problem.outputs(self.inputs)

    def complex_f(self) -> np.ndarray:
        return self.problem.outputs(self.complex_inputs)

    def slopes(self, number: int, u: np.ndarray | None = None) -> np.ndarray:
        """Return ∂⟨u, f⟩/∂(input number) by real differences alone; u, if not given, is the problem's upstream."""
        if u is None and number in self.found:
            return self.found[number]
        u, jacobian, x = self.u if u is None else u, self.jacobian(number), self.inputs[number]
        if jacobian is None:
            return differences(self.f, x, self.y, u).value
        return (u @ jacobian).reshape(x.shape)

    def jacobian(self, number: int) -> np.ndarray | None:
        """Return ∂f/∂(input number), (outputs, elements), for diagnoses; None where it is too large to keep."""
        x = self.inputs[number]
        if self.y.size * x.size > MOST_ENTRIES:
            return None
        if number not in self.jacobians:
            self.jacobians[number] = jacobian(self.f, x, self.y)
        return self.jacobians[number]

    @contextmanager
    def replaced(self, number: int, x: np.ndarray) -> Iterator[None]:
        """Let an input be another for a while."""
        here = self.inputs[number]
        self.inputs[number] = np.array(x)
        try:
            yield
        finally:
            self.inputs[number] = here

    def estimates(self, number: int, analytic: np.ndarray) -> tuple[Estimates, Estimates | None, str]:
        """Return real differences, the complex step or None, and why there is none."""
        x = self.inputs[number]
        imaginary, reason = None, self.not_analytic
        if not reason:
            try:
                imaginary = complex_step(self.complex_f, self.complex_inputs[number], self.y, self.u)
            except NotAnalytic as error:
                reason = str(error)
        unseen = None if imaginary is None else imaginary.error
        real = differences(self.f, x, self.y, self.u, unseen)
        size = np.abs(real.value).max(initial=0, where=np.isfinite(real.value))
        refine(self.f, x, self.y, self.u, real, analytic, doubt(analytic, real, imaginary, size), unseen)
        faintest = EPS / 4 * np.abs(self.u * self.y).max(initial=0, where=np.isfinite(self.y))
        real.error[...] = np.fmax(real.error, faintest)  # the backward rounds, too
        if imaginary is not None:
            real.error[...] = np.fmax(real.error, self.hidden(x, real, imaginary))
            imaginary.error[...] = np.fmax(imaginary.error, np.fmax(real.rounding, faintest))
            scale = max(size, np.abs(analytic).max(initial=0, where=np.isfinite(analytic)))
            unconfirmed = SAFETY * real.error > NOISE * scale  # then the complex step alone calls nothing wrong
            unconfirmed &= np.abs(analytic - imaginary.value) > SAFETY * imaginary.error
            imaginary.error[unconfirmed] = real.error[unconfirmed]
            reason = cauchy_riemann(self.problem.names[number], real, imaginary)
        self.found[number] = real.value
        return real, None if reason else imaginary, reason

    def hidden(self, x: np.ndarray, real: Estimates, imaginary: Estimates) -> np.ndarray:
        """Return what the slope may be where nothing moves: what the complex step says, if rounding can hide as much.

        log(1 + 1e-17) is 0 however x moves.
        """
        rounding = EPS * np.abs(self.u).max(initial=0) * largest([x, self.y])
        found = np.abs(imaginary.value)
        return np.where((real.value == 0) & (found <= rounding / BASE_STEP), found, 0)


def cauchy_riemann(name: str, real: Estimates, imaginary: Estimates) -> str:
    """Return why the complex step cannot be trusted, or "" where it agrees with the real slopes.

    An analytic f has the same slope along i as along the real axis (Cauchy-Riemann); abs, var
    and norm, which drop the imaginary part, have not.
    """
    scale = np.abs(real.value).max(initial=0, where=np.isfinite(real.value))
    allowed = SAFETY * (real.error + imaginary.error) + 1e-8 * scale
    far = ~(np.abs(real.value - imaginary.value) <= allowed)
    if not far.any():
        return ""
    i = np.unravel_index(int(far.argmax()), far.shape)
    place = f"{name}[{', '.join(map(str, map(int, i)))}]"
    return (
        f"not analytic: the slope along i is {imaginary.value[i]:.6g} at {place}, along the real axis "
        f"{real.value[i]:.6g} (abs, var, norm or a kink?)"
    )
