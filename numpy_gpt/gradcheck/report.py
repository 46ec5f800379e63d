"""What a check found: lines, their verdicts, and the report that holds them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np


class Verdict(str, Enum):
    """What one line of a report concludes."""

    PASS = "PASS"
    WRONG = "WRONG"
    INCONCLUSIVE = "INCONCLUSIVE"  # a kink, or noise above the signal
    VACUOUS = "VACUOUS"  # both sides are zero: agreement shows nothing
    SKIPPED = "SKIPPED"  # the check does not apply, and the note says why

    def __str__(self) -> str:
        return self.value


@dataclass
class Line:
    """One check of one tensor. Numbers are None where the check compares none.

    name            the tensor: "dx", "dW_te", or what the check is about
    check           "differences", "complex step", "adjoint", "linearity", a clause of the op
                    contract, "contract: ..." for a clause that raised, or "invariant: ..."
    worst           the largest |analytic − numeric| of the elements that decide the verdict
    index           where it is; analytic, numeric, error_estimate and tolerance stand there
    error_estimate  of numeric; None where numeric is what an identity says, and no estimate
    share           worst as a share of the tolerance there; above 1 is too far
    relative        worst divided by the tensor's largest magnitude
    expected        a VACUOUS line that theory foretells
    errors          |analytic − numeric| of every element, where the tensor is small enough to draw
    """

    name: str
    check: str
    verdict: Verdict
    worst: float | None = None
    index: tuple[int, ...] | None = None
    analytic: float | None = None
    numeric: float | None = None
    error_estimate: float | None = None
    share: float | None = None
    note: str = ""
    diagnosis: str = ""
    target: str = ""
    tolerance: float | None = None
    relative: float | None = None
    shape: tuple[int, ...] | None = None
    seed: int = 0
    reproduce: str = ""
    expected: bool = False
    errors: np.ndarray | None = field(default=None, repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """PASS, SKIPPED with its reason, or a VACUOUS that theory foretells."""
        return self.verdict in (Verdict.PASS, Verdict.SKIPPED) or (self.verdict is Verdict.VACUOUS and self.expected)

    @property
    def compared(self) -> bool:
        """Whether numbers stood against numbers here."""
        return self.share is not None

    @property
    def place(self) -> str:
        """The tensor with the index: "dx[0, 3]"."""
        return f"{self.name}[{', '.join(map(str, self.index))}]" if self.index else self.name

    def to_dict(self) -> dict[str, Any]:
        """Return the line ready for JSON, the errors apart."""
        values = {name: value for name, value in vars(self).items() if name != "errors"}
        return {**values, "verdict": str(self.verdict), "ok": self.ok}

    def message(self) -> str:
        """Return all that is known about the line, a fact a row, for whoever must act on it."""
        title = " ".join(filter(None, (self.target, self.place)))
        rows = [f"{self.verdict}  {title}  ({self.check})"]
        if self.analytic is not None and self.numeric is not None:
            estimate = self.error_estimate
            rows.append(f"analytic        {self.analytic:.15g}")
            if estimate is None:
                rows.append(f"expected        {self.numeric:.15g}")
            else:
                rows.append(f"numeric         {self.numeric:.15g}  ± {estimate:.2g} (estimated)")
        if self.worst is not None and self.share is not None:
            here = f"difference      {abs((self.analytic or 0) - (self.numeric or 0)):.3g}"
            rows.append(f"{here}, {self.share:.3g} times the tolerance of {self.tolerance or 0:.3g}")
        facts = {"note": self.note, "diagnosis": self.diagnosis, "reproduce": self.reproduce}
        rows += [f"{name:<16}{fact}" for name, fact in facts.items() if fact]
        rows.append(f"{'seed':<16}{self.seed}")
        return "\n    ".join(rows)


@dataclass
class Report:
    """The lines of one check, or of many.

    ok        every line is ok, and something was compared
    failures  the lines that are not
    notices   what was changed or left out on the way, such as float32 raised to float64
    """

    lines: list[Line]
    notices: list[str] = field(default_factory=list)
    seed: int = 0
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return not self.failures

    @property
    def failures(self) -> list[Line]:
        failures = [line for line in self.lines if not line.ok]
        if not failures and not any(line.compared for line in self.lines):
            note = "no number was compared with a number, so nothing is shown"
            failures = [Line("", "nothing compared", Verdict.WRONG, note=note, seed=self.seed)]
        return failures

    @property
    def targets(self) -> list[str]:
        """The names of what was checked, in order."""
        return list(dict.fromkeys(line.target for line in self.lines))

    def __str__(self) -> str:
        from .table import plain

        return plain(self)

    def _repr_html_(self) -> str:
        from .html import fragment

        return fragment(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the whole report ready for JSON."""
        return {
            "ok": self.ok,
            "seed": self.seed,
            "seconds": self.seconds,
            "notices": self.notices,
            "lines": [line.to_dict() for line in self.lines],
            "failures": [line.to_dict() for line in self.failures],
        }

    def to_json(self) -> str:
        """Return the whole report as JSON; a number that is not finite becomes a string."""
        return json.dumps(_finite(self.to_dict()), ensure_ascii=False, indent=2, allow_nan=False)


def _finite(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _finite(part) for name, part in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [_finite(part) for part in tree]
    return str(tree) if isinstance(tree, float) and not np.isfinite(tree) else tree


def merge(reports: Iterable[Report], seed: int = 0) -> Report:
    """Return one report of many."""
    reports = list(reports)
    return Report(
        lines=[line for report in reports for line in report.lines],
        notices=list(dict.fromkeys(notice for report in reports for notice in report.notices)),
        seed=seed,
        seconds=sum(report.seconds for report in reports),
    )
