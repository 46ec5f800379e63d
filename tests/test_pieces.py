"""A text's tokens on the terminal."""

import io

import numpy as np
import pytest
from rich.console import Console

from numpy_gpt.pieces import count_bytes, run_tokenizing, visible
from numpy_gpt.tokenizer import make_tokenizer


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


@pytest.mark.parametrize("kind", ["gpt2", "bytes", "char"])
def test_bytes_are_counted_by_the_tokens_themselves(kind):
    text = "猫 😀 hi, hi"
    tokenizer = make_tokenizer(kind, text)
    ids = tokenizer.encode(text)
    assert count_bytes(tokenizer, ids) == len(text.encode())
    for cut in range(len(ids) + 1):  # within a character too
        left = sum(len(tokenizer.token_bytes(int(token))) for token in ids[:cut])
        assert count_bytes(tokenizer, ids[cut:]) == len(text.encode()) - left
    assert count_bytes(tokenizer, np.array([], np.int64)) == 0


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
