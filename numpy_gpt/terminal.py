"""The console and the tables of the command line."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDTH = 120  # columns, where there is no terminal to ask: in a file or a pipe


def new_console(stderr: bool = False, markup: bool = False) -> Console:
    """Return a console as wide as the terminal, or WIDTH where there is none.

    Where its reader has gone, as in `numpy-gpt train | head`, printing raises BrokenPipeError.
    """
    from rich.console import Console

    class NewConsole(Console):
        def on_broken_pipe(self) -> None:  # rich's own would end the process here, whatever is still to be saved
            raise

    console = NewConsole(stderr=stderr, highlight=False, markup=markup)
    if not console.is_terminal:
        console.width = max(console.width, WIDTH)
    return console


def print_nowhere(file: IO[str]) -> None:
    """Let what is written to file from now on be lost: its reader has gone, or its disk is full."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, file.fileno())
    os.close(nowhere)


def as_text(show: Callable[[Console], None]) -> str:
    """Return what show prints, as plain text."""
    from rich.console import Console

    file = io.StringIO()
    show(Console(file=file, width=WIDTH, highlight=False, markup=False, color_system=None, force_jupyter=False))
    return file.getvalue().rstrip("\n")


def new_table(title: str, *columns: str, right: int) -> Table:
    """Return an empty table whose last `right` columns are numbers, which stay on one line."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number, column in enumerate(columns):
        is_number = number >= len(columns) - right
        table.add_column(column, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    return table


def least_width(console: Console, table: Table) -> int:
    """Return the width at which numbers stand whole and text wraps between words."""
    for column in table.columns:
        if column.no_wrap:
            lines = [line for cell in (column.header, *column.cells) for line in str(cell).splitlines()]
            column.min_width = max(map(len, lines), default=0)
    return console.measure(table, options=console.options.update(max_width=10 * WIDTH)).minimum


def print_table(console: Console, table: Table) -> None:
    """Print a table; where its numbers are wider than the terminal its lines are too, and nothing is cut."""
    width = console.width
    console.width = max(width, least_width(console, table))
    console.print(table)
    console.width = width


Row = tuple[list[str], str | None]  # cells, and a style


def print_rows(console: Console, title: str, columns: list[str], rows: list[Row], right: int, cut: int) -> None:
    """Print a table of rows; where it is too wide, two: the columns before cut, then the first and those from cut."""

    def table_of(title: str, chosen: list[int]) -> Table:
        n_right = sum(number >= len(columns) - right for number in chosen)
        table = new_table(title, *(columns[number] for number in chosen), right=n_right)
        for cells, style in rows:
            table.add_row(*(cells[number] for number in chosen), style=style)
        return table

    whole = table_of(title, list(range(len(columns))))
    if least_width(console, whole) <= console.width:
        print_table(console, whole)
    else:
        print_table(console, table_of(title, list(range(cut))))
        print_table(console, table_of("", [0, *range(cut, len(columns))]))
