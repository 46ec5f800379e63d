"""A text's tokens on the terminal."""

import io

import pytest
from rich.console import Console

from numpy_gpt.pieces import run_tokenizing, visible


def shown(text, kind="bytes", special=False, n=100, file=None):
    console = Console(file=io.StringIO(), width=80)
    run_tokenizing(text, file, kind, special, n, console)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("piece", "text"),
    [(b"a", "a"), (b" the", "·the"), (b"\n", r"\n"), (b"\xc3", r"\xc3"), ("ß".encode(), "ß"), (b"\x1b[2J", r"\x1b[2J")],
)
def test_nothing_is_invisible(piece, text):
    assert visible(piece) == text


def test_pieces_with_ids_and_the_bytes_a_token():
    assert shown("ab c") == "a(97) b(98) ·(32) c(99)\n4 bytes, 4 tokens: 1.00 bytes a token\n"
    assert shown("ab c", n=2) == "a(97) b(98) ...\n4 bytes, 4 tokens: 1.00 bytes a token\n"
    assert shown("", n=2) == "0 bytes, 0 tokens\n"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(text=None), "give a text"),
        (dict(text="a", file="b"), "give a text"),
        (dict(text="a", n=-1), "n must be at least 0, got -1"),
        (dict(text="a", special=True), "'bytes' has no such token"),
    ],
)
def test_mistakes(settings, message):
    with pytest.raises(ValueError, match=message):
        shown(**settings)
