import io

import pytest
from rich.console import Console

from numpy_gpt.terminal import WIDTH, as_text, new_console, new_table, print_rows, print_table

COLUMNS = ["op", "forward ms", "backward ms", "FLOP/\nbyte"]
ROWS = [(["embedding", "1,234.50 ±0.25", "12,345,678.90 ±0.25", "0.1"], None), (["all", "1 ±0", "2 ±0", "9"], "bold")]


def printed(width, show):
    file = io.StringIO()
    console = Console(file=file, width=width, color_system=None, highlight=False, markup=False)
    show(console)
    assert console.width == width
    return file.getvalue()


def test_without_a_terminal_a_console_is_wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    assert new_console().width == WIDTH
    assert not new_console(stderr=True).is_terminal


def test_as_text_is_plain():
    assert as_text(lambda console: console.print("[bold] 1.5")) == "[bold] 1.5"


@pytest.mark.parametrize("width", [10, 30, 60, 120])
def test_no_number_is_cut(width):
    table = new_table("Title", *COLUMNS, right=3)
    for cells, style in ROWS:
        table.add_row(*cells, style=style)
    text = printed(width, lambda console: print_table(console, table))
    for cells, _ in ROWS:
        for cell in cells:
            assert cell in text
    assert "…" not in text


def test_text_wraps_between_words_before_a_line_gets_longer():
    table = new_table("", "op", "FLOPs", right=1)
    table.add_row("W_te[idx] + W_pe[:T]", "1,024,000")
    text = printed(29, lambda console: print_table(console, table))
    assert max(map(len, text.splitlines())) <= 29
    assert "W_te[idx] +" in text
    assert "1,024,000" in text


@pytest.mark.parametrize(("width", "tables"), [(120, 1), (40, 2)])
def test_a_table_too_wide_is_two(width, tables):
    text = printed(width, lambda console: print_rows(console, "A title", COLUMNS, ROWS, right=3, cut=2))
    assert text.count("embedding") == tables
    assert text.count("A title") == 1
    for cells, _ in ROWS:
        for cell in cells:
            assert cell in text
    first = text.index("1,234.50 ±0.25"), text.index("12,345,678.90 ±0.25")
    assert ("\n" in text[slice(*first)]) == (tables == 2)
