"""Tokenizers: text to ids and back. GPT-2's byte-pair encoding, plain bytes, or characters.

ids = tokenizer.encode(text)      # (N,) int64, 0 <= id < tokenizer.V
text = tokenizer.decode(ids)
"""

from __future__ import annotations

import base64
import codecs
import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from functools import cache
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tiktoken import Encoding

VOCABULARY = Path(__file__).with_name("vocabulary") / "r50k_base.tiktoken"
VOCABULARY_SHA256 = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"
END_OF_TEXT = "<|endoftext|>"

# How GPT-2 cuts text into the pieces that merges stay inside (Radford et al., 2019): a contraction;
# letters, numbers or other signs, each with the one space before them; spaces. The possessive ++ and
# the three last branches match what GPT-2's \s+(?!\S)|\s+ does, with less backtracking.
GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"

# A run of spaces before a word is one piece up to its last space, which goes with the word. A run of
# a million would overflow the stack of tiktoken's regex engine, so such a piece is cut out beforehand.
# Python's \s has four separators, \x1c to \x1f, that are no spaces to GPT-2's pattern.
_SPACE, _NO_SPACE = r"[^\S\x1c-\x1f]", r"[\S\x1c-\x1f]"
LONG_RUN = re.compile(f"(?<!{_SPACE})({_SPACE}{{100000,}})(?={_SPACE}{_NO_SPACE})")


class Tokenizer(ABC):
    """What every tokenizer can do.

    V         vocabulary size
    start_id  the token that an empty prompt begins with
    """

    V: int
    start_id: int

    @abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """Return the ids of text, (N,) int64."""

    @abstractmethod
    def token_bytes(self, token: int) -> bytes:
        """Return what one token stands for, in UTF-8; it may be a part of a character."""

    @abstractmethod
    def to_dict(self) -> dict[str, str]:
        """Return what `tokenizer_from_dict` needs to make this tokenizer again."""

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids; bytes that are not UTF-8 become U+FFFD.

        Raises ValueError for an id that is no integer in 0 <= id < V, naming position and value.
        """
        return "".join(self.decode_stream(ids))

    def decode_stream(self, ids: Iterable[int]) -> Iterator[str]:
        """Yield the text of ids as they come; a character that spans tokens waits for its last byte.

        The pieces joined are `decode(ids)`, with the same errors.
        """
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        for position, token in enumerate(ids):
            if isinstance(token, bool) or not isinstance(token, Integral) or not 0 <= token < self.V:
                raise ValueError(f"ids[{position}] is {token}; ids must be integers in 0 <= id < V = {self.V}")
            piece = decoder.decode(self.token_bytes(int(token)))
            if piece:
                yield piece
        piece = decoder.decode(b"", final=True)
        if piece:
            yield piece

    def __repr__(self) -> str:
        return f"{type(self).__name__}(V={self.V})"


class GPT2Tokenizer(Tokenizer):
    """GPT-2's byte-pair encoding: V = 50257, the last of which is <|endoftext|> (Radford et al., 2019).

    path: a copy of the vocabulary file to read in place of the package's own.

    Raises ValueError, naming the file, where it cannot be read or is not OpenAI's byte for byte.
    """

    V = 50257
    start_id = 50256  # <|endoftext|>

    def __init__(self, path: Path | str = VOCABULARY) -> None:
        self._encoding = _load_encoding(Path(path))

    def encode(self, text: str, special: bool = False) -> np.ndarray:
        """Return the ids of text, (N,) int64.

        `<|endoftext|>` inside text is plain text, seven tokens; with special=True it is the one
        token 50256. A lone surrogate, which UTF-8 cannot hold, is encoded as U+FFFD.
        """
        ids: list[int] = []
        for number, document in enumerate(text.split(END_OF_TEXT) if special else [text]):
            if number > 0:
                ids.append(self.start_id)
            for part in LONG_RUN.split(_replace_surrogates(document)):
                ids += self._encoding.encode_ordinary(part)
        return np.array(ids, dtype=np.int64)

    def token_bytes(self, token: int) -> bytes:
        return self._encoding.decode_single_token_bytes(token)

    def to_dict(self) -> dict[str, str]:
        return {"kind": "gpt2"}


@cache
def _load_encoding(path: Path) -> Encoding:
    from tiktoken import Encoding

    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: cannot read the vocabulary: {error.strerror}") from error
    found = hashlib.sha256(data).hexdigest()
    if found != VOCABULARY_SHA256:
        raise ValueError(f"{path}: not GPT-2's vocabulary: expected sha256 {VOCABULARY_SHA256}, found {found}")
    ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, data.splitlines())}
    return Encoding(
        "gpt2",
        pat_str=GPT2_PATTERN,
        mergeable_ranks=ranks,
        special_tokens={END_OF_TEXT: GPT2Tokenizer.start_id},
        explicit_n_vocab=GPT2Tokenizer.V,
    )


def _replace_surrogates(text: str) -> str:
    """Join the halves of a surrogate pair to the character they mean; make lone ones U+FFFD, as tiktoken does."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class ByteTokenizer(Tokenizer):
    """The bytes of the text in UTF-8: V = 256, id = byte."""

    V = 256
    start_id = ord("\n")

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of text, (N,) int64. A lone surrogate is encoded as U+FFFD."""
        return np.frombuffer(_replace_surrogates(text).encode("utf-8"), np.uint8).astype(np.int64)

    def token_bytes(self, token: int) -> bytes:
        return bytes([token])

    def to_dict(self) -> dict[str, str]:
        return {"kind": "bytes"}


class CharTokenizer(Tokenizer):
    """One id a character (a Unicode code point): the position it has in `characters`.

    start_id is the newline's, where there is one, else 0.

    Raises ValueError where there are no characters, where one comes twice, and for a surrogate,
    which no text that can be printed or saved holds.
    """

    def __init__(self, characters: str) -> None:
        self.characters = characters
        self.V = len(characters)
        self._ids: dict[str, int] = {}
        if not characters:
            raise ValueError("a vocabulary of characters needs at least one")
        for position, character in enumerate(characters):
            if character in self._ids:
                raise ValueError(
                    f"characters[{position}] is {_name(character)}, which also stands at {self._ids[character]}"
                )
            if "\ud800" <= character <= "\udfff":
                raise ValueError(f"characters[{position}] is {_name(character)}, a surrogate, not a character")
            self._ids[character] = position
        self.start_id = self._ids.get("\n", 0)

    @classmethod
    def from_text(cls, text: str) -> CharTokenizer:
        """Return the tokenizer of the characters that text holds, sorted by code point."""
        return cls("".join(sorted(set(text))))

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of text, (N,) int64.

        Raises ValueError for a character that is not in the vocabulary, naming it and its position.
        """
        ids = np.fromiter((self._ids.get(character, -1) for character in text), dtype=np.int64, count=len(text))
        unknown = np.flatnonzero(ids < 0)
        if unknown.size:
            position = int(unknown[0])
            raise ValueError(
                f"text[{position}] is {_name(text[position])}, which is not among the vocabulary's {self.V} characters"
            )
        return ids

    def token_bytes(self, token: int) -> bytes:
        return self.characters[token].encode("utf-8")

    def to_dict(self) -> dict[str, str]:
        return {"kind": "char", "characters": self.characters}


def _name(character: str) -> str:
    return f"{character!r} (U+{ord(character):04X})"


def make_tokenizer(kind: str, text: str) -> Tokenizer:
    """Return the tokenizer of a kind: "gpt2", "bytes", or "char" with the characters of text.

    Raises ValueError for another kind.
    """
    if kind == "gpt2":
        return GPT2Tokenizer()
    if kind == "bytes":
        return ByteTokenizer()
    if kind == "char":
        return CharTokenizer.from_text(text)
    raise ValueError(f"tokenizer must be 'gpt2', 'bytes' or 'char', got {kind!r}")


def tokenizer_from_dict(values: dict[str, str]) -> Tokenizer:
    """Return the tokenizer that `to_dict` described.

    Raises ValueError for anything that no tokenizer's `to_dict` returns.
    """
    match values:
        case {"kind": "gpt2" | "bytes" as kind, **rest} if not rest:
            return make_tokenizer(kind, "")
        case {"kind": "char", "characters": str(characters), **rest} if not rest:
            return CharTokenizer(characters)
    raise ValueError(f"not the description of a tokenizer: {str(values)[:200]}")
