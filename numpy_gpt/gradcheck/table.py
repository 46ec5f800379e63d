"""The report as text: a table and, below it, whatever failed; in colour on a terminal, plain when piped."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from ..terminal import WIDTH
from .report import Line, Report, Verdict

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

STYLES = {
    Verdict.PASS: "green",
    Verdict.WRONG: "bold red",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.VACUOUS: "yellow",
    Verdict.SKIPPED: "dim",
}
ORDER = (Verdict.WRONG, Verdict.INCONCLUSIVE, Verdict.VACUOUS, Verdict.PASS, Verdict.SKIPPED)  # the gravest first
MOST_MESSAGES = 10
MOST_ROWS = 250  # more lines than that, as of many random shapes, are summed up


def plain(report: Report, width: int = WIDTH) -> str:
    """Return the report as text without colour."""
    from rich.console import Console

    text = io.StringIO()
    show(report, Console(file=text, width=width, color_system=None, highlight=False, force_jupyter=False))
    return text.getvalue().rstrip()


def show(report: Report, console: Console) -> None:
    """Print the report to a rich console."""
    if report.lines:
        many = len(report.targets) > 1 or len(report.lines) > MOST_ROWS
        console.print(by_target(report) if many else by_line(report))
    for notice in report.notices:
        console.print(f"Notice: {notice}", markup=False, soft_wrap=True)
    for line in report.failures[:MOST_MESSAGES]:
        console.print()
        console.print(line.message(), style=STYLES[line.verdict], markup=False, highlight=False, soft_wrap=True)
    more = len(report.failures) - MOST_MESSAGES
    if more > 0:
        console.print(f"\nand {more} more that are not ok")
    console.print()
    console.print(summary(report), style="bold green" if report.ok else "bold red", markup=False, highlight=False)


def summary(report: Report) -> str:
    """Return the report in one sentence."""
    counts = {verdict: sum(line.verdict is verdict for line in report.lines) for verdict in ORDER}
    found = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    state = "ok" if report.ok else "NOT ok"
    return f"{state}: {found or 'nothing compared'}; seed {report.seed}; {report.seconds:.1f} s"


def new_table() -> Table:
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, pad_edge=False)


def by_line(report: Report) -> Table:
    """Return one row a line."""
    table = new_table()
    for column in ("tensor", "check", "shape", "at"):
        table.add_column(column, no_wrap=True)
    for column in ("difference", "relative", "of tolerance"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for line in report.lines:
        shape = "" if line.shape is None else "×".join(map(str, line.shape)) or "scalar"
        at = "" if line.index is None or line.verdict is Verdict.PASS else ", ".join(map(str, line.index))
        table.add_row(
            line.name, line.check, shape, at, number(line.worst), number(line.relative), number(line.share), paint(line)
        )
    return table


def by_target(report: Report) -> Table:
    """Return one row a target, one column a kind of check."""
    table = new_table()
    table.add_column("target", no_wrap=True)
    for column in ("tensors", "differences", "complex step", "adjoint,\nlinearity", "contract", "invariants"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for target in report.targets:
        lines = [line for line in report.lines if line.target == target]
        kinds = {kind: [line for line in lines if kind_of(line) == kind] for kind in KINDS}
        tensors = kinds["differences"] or [line for line in lines if line.check == "projection"]
        gravest = min(lines, key=lambda line: (line.ok, ORDER.index(line.verdict)))
        table.add_row(
            target,
            str(len({line.name for line in tensors})),
            largest(kinds["differences"]),
            largest(kinds["complex step"]),
            *(passed(kinds[kind]) for kind in ("linear", "contract", "invariant")),
            "[green]PASS[/]" if gravest.ok else paint(gravest),
        )
    return table


KINDS = ("differences", "complex step", "linear", "invariant", "contract")


def kind_of(line: Line) -> str:
    """Return the column that a line belongs to."""
    if line.check in ("differences", "complex step"):
        return line.check
    if line.check in ("adjoint", "linearity", "projection"):
        return "linear"
    return "invariant" if line.check.startswith("invariant") else "contract"


def largest(lines: list[Line]) -> str:
    values = [line.relative for line in lines if line.relative is not None and line.verdict is not Verdict.VACUOUS]
    return number(max(values)) if values else "[dim]not analytic[/]" if lines else ""


def passed(lines: list[Line]) -> str:
    return f"{sum(line.ok for line in lines)}/{len(lines)}" if lines else ""


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"


def paint(line: Line) -> str:
    expected = " (expected)" if line.expected and line.verdict is Verdict.VACUOUS else ""
    return f"[{STYLES[line.verdict] if not line.ok else 'green'}]{line.verdict}{expected}[/]"
