"""What a lab is: a claim of the lesson, measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Finding:
    """One claim beside what was measured.

    claim     in the lesson's words, with its number where it has one
    measured  the figure found, with its unit
    holds     the verdict: whether the measurement bears the claim out
    """

    claim: str
    measured: str
    holds: bool


@dataclass(frozen=True)
class Result:
    """What a lab found.

    findings  claim beside measurement, in reading order
    values    the same measurements as plain numbers by name, for notebooks and tests
    note      what to make of it, in a sentence or two; where a claim does not show at this scale, why
    draw      draws the picture into an empty figure, where a picture says more
    """

    findings: tuple[Finding, ...]
    values: dict[str, float]
    note: str = ""
    draw: Callable[[Figure], None] | None = None

    @property
    def holds(self) -> bool:
        """Whether every finding bears its claim out."""
        return all(finding.holds for finding in self.findings)


@dataclass(frozen=True)
class Lab:
    """One claim of the lesson as an experiment.

    name     as `numpy-gpt lab run NAME` takes it
    section  of the lesson
    claim    the lesson's, in one sentence
    measure  runs the experiment: seed -> Result. Seconds, offline, the same for the same seed
             (timings apart)
    """

    name: str
    section: str
    claim: str
    measure: Callable[[int], Result]
