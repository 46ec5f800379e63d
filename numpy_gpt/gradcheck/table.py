"""The report as text: a table and, below it, whatever failed; in colour on a terminal, plain when piped."""

from __future__ import annotations

import io
from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, NamedTuple

from ..terminal import WIDTH, least_width, new_table, print_table
from .report import Line, Report, Verdict

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

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
        columns, leave = (by_target(report), LEAVE_TARGET) if many else (by_line(report), LEAVE_LINE)
        print_table(console, fitted(columns, leave, console))
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


class Column(NamedTuple):
    """A column of a table: its heading, and a cell for each row."""

    heading: str
    cells: list[str | Text]
    right: bool = False
    wraps: bool = False  # between words


def fitted(columns: list[Column], leave: Sequence[str], console: Console) -> Table:
    """Return a table for which the console is wide enough.

    Where it is not, the columns whose headings are in leave go one after another; then lines are as
    long as the table, and nothing is cut.
    """
    tables = []
    for number in range(len(leave) + 1):
        kept = [column for column in columns if column.heading not in leave[:number] and any(map(str, column.cells))]
        narrow = [folded(column) for column in kept]
        tables += [table_of(kept, ENOUGH), table_of(narrow, ENOUGH)]
        if number >= len(leave) - 1:  # before the last of the numbers goes
            tables.append(table_of(narrow, 0))
    return next((table for table in tables if least_width(console, table) <= console.width), tables[-1])


def table_of(columns: list[Column], enough: int) -> Table:
    """Return the table; a column that wraps has room for its longest word, and for names no longer than enough."""
    table = new_table("", *(column.heading for column in columns), right=0)
    for made, column in zip(table.columns, columns):
        made.justify = "right" if column.right else "left"
        made.no_wrap = not column.wraps
        made.min_width = longest_word(column, enough) if column.wraps else None
    for cells in zip(*(column.cells for column in columns)):
        table.add_row(*(styled(cell) if isinstance(cell, str) else cell for cell in cells))  # "db[d:2d]" is no markup
    return table


def folded(column: Column) -> Column:
    """Return a column of names with each on as many lines as make it narrow; another column as it is."""
    if column.heading not in NAMES:
        return column
    width = longest_word(column, len("⟨u, Jv⟩"))
    return column._replace(cells=["\n".join(wrap(str(cell), width, break_on_hyphens=False)) for cell in column.cells])


def longest_word(column: Column, enough: int) -> int:
    """Return the length of a column's longest word, or of its longest cell of no more than enough."""
    cells = [str(cell) for cell in (column.heading, *column.cells)]
    words = [word for cell in cells for word in ([cell] if len(cell) <= enough else cell.split())]
    return max(map(len, words))


def by_line(report: Report) -> list[Column]:
    """Return one row a line."""
    lines = report.lines
    shapes = ["" if line.shape is None else "×".join(map(str, line.shape)) or "scalar" for line in lines]
    places = ["" if line.index is None or line.ok else ", ".join(map(str, line.index)) for line in lines]
    return [
        Column("tensor", [line.name for line in lines]),
        Column("check", [line.check for line in lines], wraps=True),
        Column("shape", [*shapes]),
        Column("at", [*places]),
        Column("difference", [number(line.worst) for line in lines], right=True),
        Column("relative", [number(line.relative) for line in lines], right=True),
        Column("of tolerance", [number(line.share) for line in lines], right=True),
        Column("verdict", [paint(line) for line in lines]),
    ]


def by_target(report: Report) -> list[Column]:
    """Return one row a target, one column a kind of check."""
    columns = [
        Column("target", []),
        Column("tensors", [], right=True),
        Column("differences", [], right=True),
        Column("complex\nstep", [], right=True),
        Column("adjoint,\nlinearity", [], right=True),
        Column("contract", [], right=True),
        Column("invariants", [], right=True),
        Column("verdict", []),
    ]
    for target in report.targets:
        lines = [line for line in report.lines if line.target == target]
        kinds = {kind: [line for line in lines if kind_of(line) == kind] for kind in KINDS}
        tensors = kinds["differences"] or [line for line in lines if line.check == "projection"]
        gravest = min(lines, key=lambda line: (line.ok, ORDER.index(line.verdict)))
        row: tuple[str | Text, ...] = (
            target,
            str(len({line.name for line in tensors})),
            largest(kinds["differences"]),
            largest(kinds["complex step"]),
            *(passed(kinds[kind]) for kind in ("linear", "contract", "invariant")),
            styled("PASS", "green") if gravest.ok else paint(gravest),
        )
        for column, cell in zip(columns, row):
            column.cells.append(cell)
    return columns


NAMES = ("tensor", "target")
ENOUGH = len("no floating-point warning")  # longer names of checks wrap
LEAVE_LINE = ("shape", "at", "relative", "of tolerance", "difference")  # where it is narrow, in this order
LEAVE_TARGET = ("tensors", "adjoint,\nlinearity", "invariants", "contract", "complex\nstep", "differences")
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
    return number(max(values)) if values else "not\nanalytic" if lines else ""


def passed(lines: list[Line]) -> str:
    return f"{sum(line.ok for line in lines)}/{len(lines)}" if lines else ""


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"


def paint(line: Line) -> Text:
    expected = "\n(expected)" if line.expected and line.verdict is Verdict.VACUOUS else ""
    return styled(f"{line.verdict}{expected}", STYLES[line.verdict] if not line.ok else "green")


def styled(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(text, style=style)
