"""A text's tokens, shown on the terminal: each piece in colour with its id, and the bytes a token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .data import load_text
from .tokenizer import GPT2Tokenizer, Tokenizer, make_tokenizer

if TYPE_CHECKING:
    from rich.console import Console

COLOURS = ("black on bright_cyan", "black on bright_yellow")  # in turn: neighbours differ


def run_tokenizing(text: str | None, file: str | None, kind: str, special: bool, n: int, console: Console) -> None:
    """Print the first n tokens of a text, or of a file, and how many bytes a token stands for.

    A space shows as ·, a control character or a part of a character as its escape.

    Raises ValueError unless there is one of text and file, and where special is not GPT-2's.
    """
    from rich.text import Text

    if (text is None) == (file is None):
        raise ValueError("give a text to tokenize or --file FILE, one of the two")
    if n < 0:
        raise ValueError(f"n must be at least 0, got {n}")
    if file is not None:
        text = load_text(file)
    assert text is not None
    tokenizer = make_tokenizer(kind, text)
    if isinstance(tokenizer, GPT2Tokenizer):
        ids = tokenizer.encode(text, special)
    elif special:
        raise ValueError(f"--special is for GPT-2's <|endoftext|>; the tokenizer {kind!r} has no such token")
    else:
        ids = tokenizer.encode(text)
    shown = Text()
    for position, token in enumerate(ids[:n]):
        shown.append(" " if position else "")
        shown.append(visible(tokenizer.token_bytes(int(token))), COLOURS[position % 2])
        shown.append(f"({token})", "dim")
    if len(ids) > n:
        shown.append(" ...")
    if shown:
        console.print(shown)
    n_bytes = count_bytes(tokenizer, ids)
    ratio = f": {n_bytes / len(ids):.2f} bytes a token" if len(ids) else ""
    console.print(f"{n_bytes:,} bytes, {len(ids):,} tokens{ratio}", highlight=False)


def visible(piece: bytes) -> str:
    """Return a token's bytes as text in which nothing is invisible."""
    text = piece.decode("utf-8", "backslashreplace").replace(" ", "·")
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def count_bytes(tokenizer: Tokenizer, ids: np.ndarray) -> int:
    """Return the bytes in UTF-8 that ids (N,) stand for; a part of a character counts its own."""
    tokens, counts = np.unique(ids, return_counts=True)
    return sum(len(tokenizer.token_bytes(int(token))) * int(count) for token, count in zip(tokens, counts))
