"""All our ops and small whole models; and the same at random, many times over."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..config import PRESETS
from .cases import CASES, LARGE, Case, case, random_case
from .check import run
from .models import CONFIGS, check_model, check_preset
from .report import Line, Report, Verdict, merge

TARGETS = (*CASES, *LARGE, *CONFIGS)


Progress = Callable[[str, int, int], None]


class UnknownTarget(ValueError):
    """A target that there is not."""


def check_known(targets: Sequence[str], known: Sequence[str]) -> None:
    """Raise UnknownTarget for the first target that is not known."""
    for target in targets:
        if target not in known:
            raise UnknownTarget(f"no target called {target!r}; there are {', '.join(known)}")


def check_target(name: str, seed: int = 0, progress: Progress | None = None) -> Report:
    """Check one of our ops or small models at its standard sizes, or a preset by projections. Raises ValueError."""
    reproduce = f"numpy-gpt gradcheck {name} --seed {seed}"
    if name in CONFIGS:
        return check_model(CONFIGS[name], seed, target=name, reproduce=reproduce)
    if name in PRESETS:
        return check_preset(name, seed, reproduce, progress)
    found = case(name, seed)
    return run(found.problem(seed, target=name, reproduce=reproduce), found.invariants)


def check_cases(name: str, found: Sequence[Case], seed: int = 0, reproduce: str = "") -> Report:
    """Check a pair at its first case and, if that is ok, at the others in turn, of which the first to fail is told."""
    first, *others = found
    report = run(first.problem(seed, target=name, reproduce=reproduce), first.invariants)
    for other in others if report.ok else ():
        there = other.special or f"{other.names[0]} {np.shape(other.inputs[0])}"
        at_other = run(other.problem(seed, target=f"{name} at {there}", reproduce=reproduce), other.invariants)
        if not at_other.ok:
            return at_other
    if report.ok:
        report.lines.append(Line("", "other sizes", Verdict.PASS, target=name, seed=seed, reproduce=reproduce))
    return report


def suite(
    seed: int = 0,
    targets: Sequence[str] = TARGETS,
    progress: Progress | None = None,
) -> Report:
    """Check all our ops and small whole models: repeated ids, both GELUs, tied and untied, pre- and post-norm.

    targets   names of ops and small models, by default all; or of presets, checked by projections
    progress  called with the target's name, its number and how many there are

    Raises UnknownTarget, a ValueError.
    """
    check_known(targets, (*TARGETS, *PRESETS))
    reports = []
    for number, name in enumerate(targets):
        if progress is not None:
            progress(name, number, len(targets))
        reports.append(check_target(name, seed, progress))
    return merge(reports, seed)


def fuzz(
    number: int,
    seed: int = 0,
    targets: Sequence[str] = tuple(CASES),
    progress: Progress | None = None,
) -> Report:
    """Check ops at random sizes, number times in all, taking turns, with the seeds seed, seed + 1, ...

    Raises UnknownTarget, a ValueError, for a target that is no op.
    """
    check_known(targets, tuple(CASES))
    reports = []
    for k in range(number):
        name, this = targets[k % len(targets)], seed + k
        if progress is not None:
            progress(name, k, number)
        found = random_case(name, this)
        reproduce = f"numpy-gpt gradcheck {name} --fuzz 1 --seed {this}"
        reports.append(run(found.problem(this, target=name, reproduce=reproduce), found.invariants))
    return merge(reports, seed)
