"""All our ops and small whole models; and the same at random, many times over."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .cases import CASES, case, random_case
from .check import run
from .models import CONFIGS, check_model
from .report import Report, merge

TARGETS = (*CASES, *CONFIGS)


def check_target(name: str, seed: int = 0) -> Report:
    """Check one of our ops, or one of the small models, at its standard sizes. Raises ValueError."""
    reproduce = f"numpy-gpt gradcheck {name} --seed {seed}"
    if name in CONFIGS:
        return check_model(CONFIGS[name], seed, target=name, reproduce=reproduce)
    if name not in CASES:
        raise ValueError(f"no target called {name!r}; there are {', '.join(TARGETS)}, or FILE.py:NAME")
    found = case(name, seed)
    return run(found.problem(seed, target=name, reproduce=reproduce), found.invariants)


def suite(
    seed: int = 0,
    targets: Sequence[str] = TARGETS,
    progress: Callable[[str, int, int], None] | None = None,
) -> Report:
    """Check all our ops and small whole models: repeated ids, both GELUs, tied and untied, pre- and post-norm.

    progress  called with the target's name, its number and how many there are
    """
    reports = []
    for number, name in enumerate(targets):
        if progress is not None:
            progress(name, number, len(targets))
        reports.append(check_target(name, seed))
    return merge(reports, seed)


def fuzz(
    number: int,
    seed: int = 0,
    targets: Sequence[str] = tuple(CASES),
    progress: Callable[[str, int, int], None] | None = None,
) -> Report:
    """Check ops at random sizes, number times in all, taking turns, with the seeds seed, seed + 1, ...

    Raises ValueError for a target that is no op.
    """
    reports = []
    for k in range(number):
        name, this = targets[k % len(targets)], seed + k
        if name not in CASES:
            raise ValueError(f"only ops have random sizes, not {name!r}; there are {', '.join(CASES)}")
        if progress is not None:
            progress(name, k, number)
        found = random_case(name, this)
        reproduce = f"numpy-gpt gradcheck {name} --fuzz 1 --seed {this}"
        reports.append(run(found.problem(this, target=name, reproduce=reproduce), found.invariants))
    return merge(reports, seed)
