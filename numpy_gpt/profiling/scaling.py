"""How the cost of a step grows with d, L, T and B, one at a time around a base (lesson §6)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from ..config import Config
from ..cores import one_core
from ..model import Model
from .fits import fit_power, fit_quadratic
from .limits import Clock
from .profile import Profile
from .step import Stepper

EXPECTED = {"d": 2.0, "L": 1.0, "T": 1.0, "B": 1.0}  # the exponents at scale; T has its quadratic share besides

# The multiples of the base that are measured.
MULTIPLES = {
    "d": (0.25, 0.5, 1, 2, 3),
    "L": (0.17, 0.5, 1, 2),
    "T": (0.25, 0.5, 1, 2, 4, 8),
    "B": (0.5, 1, 2, 4),
}


@dataclass(frozen=True)
class Fit:
    """cost = c·xᵖ along one axis, of forward and backward together.

    exponent, counted_exponent      p over all points: of the measured seconds, of the counted FLOPs
    last_slope, counted_last_slope  p between the two largest points alone: where it is heading
    """

    axis: str
    expected: float
    exponent: float
    counted_exponent: float
    last_slope: float
    counted_last_slope: float


@dataclass(frozen=True)
class QuadraticShare:
    """cost = c + a·T + b·T²: constant = c, linear = a, quadratic = b, and the share of b·T² at the largest T.

    attend_share   the share of the op `attend` there, as its timer has it; some of that is linear in T
    counted_share  the share of the counted FLOPs, less what attention never computes, that T² pairs take
    """

    T: int
    constant: float
    linear: float
    quadratic: float
    share: float
    attend_share: float
    counted_share: float

    def __call__(self, T: np.ndarray) -> np.ndarray:
        """The fitted cost at T."""
        return self.constant + self.linear * T + self.quadratic * T**2


Point = tuple[int, Profile]


@dataclass(frozen=True)
class Sweep:
    """Profiles (without limits) along each axis, around a base of config, B and T."""

    config: Config
    B: int
    T: int
    axes: dict[str, tuple[Point, ...]]

    def fit(self, axis: str) -> Fit:
        """Return the exponents along an axis."""
        x = [value for value, _ in self.axes[axis]]
        seconds = [profile.step_seconds for _, profile in self.axes[axis]]
        flops = [done(profile) for _, profile in self.axes[axis]]
        return Fit(
            axis,
            EXPECTED[axis],
            *(fit_power(x, y)[0] for y in (seconds, flops)),
            *(fit_power(x[-2:], y[-2:])[0] for y in (seconds, flops)),
        )

    def quadratic(self) -> QuadraticShare | None:
        """Return the quadratic share along T, or None where that has not three points."""
        points = self.axes.get("T", ())
        if len(points) < 3:
            return None
        c, a, b = fit_quadratic([T for T, _ in points], [profile.step_seconds for _, profile in points])
        T, profile = points[-1]
        attend = profile["attend"]
        counted = (attend.done_forward + attend.done_backward) / done(profile)
        share = b * T**2 / (c + a * T + b * T**2)
        return QuadraticShare(T, c, a, b, share, attend.both.share_of(profile.total.both), counted)

    def to_dict(self) -> dict[str, Any]:
        """Return everything by name, ready for JSON."""
        quadratic = self.quadratic()
        axes = {
            axis: [{"value": value, **profile.to_dict()} for value, profile in points]
            for axis, points in self.axes.items()
        }
        return {
            "config": self.config.to_dict(),
            "B": self.B,
            "T": self.T,
            "axes": axes,
            "fits": {axis: asdict(self.fit(axis)) for axis in self.axes},
            "quadratic": None if quadratic is None else asdict(quadratic),
        }

    def __str__(self) -> str:
        from ..terminal import as_text
        from .tables import print_sweep

        return as_text(lambda console: print_sweep(self, console))


def done(profile: Profile) -> int:
    """Return the FLOPs of forward and backward that are computed."""
    return profile.total.done_forward + profile.total.done_backward


def default_axes(config: Config, B: int, T: int) -> dict[str, tuple[int, ...]]:
    """Return the values to measure along each axis: multiples of the base, d in steps that h divides."""
    base = {"d": config.d, "L": config.L, "T": T, "B": B}
    steps = {"d": config.h, "L": 1, "T": 1, "B": 1}
    return {
        axis: tuple(sorted({max(round(base[axis] * m / steps[axis]), 1) * steps[axis] for m in multiples}))
        for axis, multiples in MULTIPLES.items()
    }


def sweep(
    config: Config | None = None,
    B: int = 2,
    T: int = 128,
    axes: Mapping[str, Sequence[int]] | None = None,
    repeats: int = 5,
    dtype: str = "float32",
    xp: ModuleType = np,
    clock: Clock = time.perf_counter,
    report: Callable[[str], None] = lambda doing: None,
) -> Sweep:
    """Measure a step along each axis, the other sizes at the base's; T_max grows with T where it must.

    config  the base; by default the preset "mini"
    axes    the values, two at least, of any of d, L, T and B; by default `default_axes`
    report  told what is being measured

    The points of an axis take turns again and again, so that a machine that grows slower or
    faster meanwhile does so for all of them. A CPU is kept to one core: a second one joins in
    from some size on, and would bend the exponents there.

    Raises ValueError for another axis, fewer than two values, or values that make no model.
    """
    config = config or Config.preset("mini")
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    axes = default_axes(config, B, T) if axes is None else axes
    chosen = {axis: sorted(set(values)) for axis, values in axes.items()}
    for axis, values in chosen.items():
        if axis not in EXPECTED:
            raise ValueError(f"no axis called {axis!r}; there are {', '.join(EXPECTED)}")
        if len(values) < 2 or values[0] < 1:
            raise ValueError(f"axis {axis} needs two different values of at least 1, got {values}")
    settings = {axis: settings_along(axis, values, config, B, T) for axis, values in chosen.items()}
    measure = partial(measure_axis, repeats=repeats, dtype=dtype, xp=xp, clock=clock, report=report)
    with one_core() if xp is np else nullcontext():
        points = {axis: tuple(zip(chosen[axis], measure(axis, settings[axis]))) for axis in chosen}
    return Sweep(config, B, T, points)


def settings_along(axis: str, values: Sequence[int], config: Config, B: int, T: int) -> list[tuple[Config, int, int]]:
    """Return config, B and T with one size changed, for each value. Raises ValueError where that makes no model."""
    settings = []
    for value in values:
        sizes = {"B": B, "T": T, "d": config.d, "L": config.L, axis: value}
        changed = replace(config, d=sizes["d"], L=sizes["L"], T_max=max(config.T_max, sizes["T"]))
        settings.append((changed, sizes["B"], sizes["T"]))
    return settings


def measure_axis(
    axis: str,
    settings: Sequence[tuple[Config, int, int]],
    repeats: int,
    dtype: str,
    xp: ModuleType,
    clock: Clock,
    report: Callable[[str], None],
) -> list[Profile]:
    """Return the profiles of some models, measured in turn."""
    rng = np.random.default_rng(0)
    steppers = []
    for config, B, T in settings:
        idx, targets = rng.integers(0, config.V, (2, B, T))
        steppers.append(Stepper(Model(config, 0, dtype, xp), idx, targets, clock))
    for number in range(1 + repeats):
        report(f"along {axis}, turn {number + 1} of {1 + repeats}" + ("" if number else ", to warm up"))
        for stepper in steppers:
            stepper.turn(counts=number > 0)
    return [stepper.profile() for stepper in steppers]
