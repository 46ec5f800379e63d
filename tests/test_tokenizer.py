"""Tokenizers: known ids, round trips over all of Unicode, streaming, and every error."""

import base64
import hashlib
import json
import re
from itertools import pairwise

import numpy as np
import pytest
import regex
from hypothesis import example, given
from hypothesis import strategies as st

from numpy_gpt import tokenizer as module
from numpy_gpt.tokenizer import (
    VOCABULARY,
    VOCABULARY_SHA256,
    ByteTokenizer,
    CharTokenizer,
    GPT2Tokenizer,
    make_tokenizer,
    tokenizer_from_dict,
)

# ASCII, accents, the planes beyond the first, emoji of several code points, combining marks, controls.
SAMPLES = [
    "Hello world",
    "I'll say we're done, won't you?  They've said: 'd 's",
    "tabs\tand\n\nnewlines\r\nand   spaces   ",
    "naïve café: e\u0301 is not é; Å is not A\u030a",
    "日本語と한국어 и русский עברית हिन्दी",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 𠮷 \U0010fffd",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇫🇷",
    "\x00\x01\x1c\x1f\x7f\u0085\u00a0\u2028\ufeff\ufffd",
    "a <|endoftext|> b<|endoftext|><|endoftext|>",
    "1234567 3.14159 ½ Ⅷ",
    "def f(x):\n    return x  # " + "=" * 50,
    " ",
]
TOKENIZERS = [GPT2Tokenizer(), ByteTokenizer(), CharTokenizer.from_text("".join(SAMPLES))]


@pytest.fixture(params=TOKENIZERS, ids=lambda tokenizer: type(tokenizer).__name__)
def tokenizer(request):
    return request.param


# What all three share


@pytest.mark.parametrize("text", SAMPLES)
def test_decode_inverts_encode(tokenizer, text):
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int64
    assert ids.ndim == 1
    assert ((ids >= 0) & (ids < tokenizer.V)).all()
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids.tolist()) == text
    assert tokenizer.decode(ids.astype(np.uint16)) == text


@given(st.text())
def test_decode_inverts_encode_for_any_text(text):
    for tokenizer in (TOKENIZERS[0], ByteTokenizer(), CharTokenizer.from_text(text + "\n")):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_nothing_encodes_to_nothing(tokenizer):
    ids = tokenizer.encode("")
    assert ids.shape == (0,)
    assert ids.dtype == np.int64
    assert tokenizer.decode(ids) == ""
    assert tokenizer.decode([]) == ""
    assert list(tokenizer.decode_stream([])) == []


@given(st.text())
def test_a_stream_never_splits_a_character(text):
    for tokenizer in (TOKENIZERS[0], ByteTokenizer(), CharTokenizer.from_text(text + "\n")):
        pieces = list(tokenizer.decode_stream(iter(tokenizer.encode(text))))
        assert "".join(pieces) == text
        assert "" not in pieces


@given(st.binary())
def test_any_bytes_stream_to_what_python_decodes(data):
    """Unfinished, overlong and stray bytes too: one U+FFFD where bytes.decode has one."""
    assert ByteTokenizer().decode(data) == data.decode("utf-8", errors="replace")


@given(st.lists(st.integers(0, 50256)))
def test_any_gpt2_ids_stream_to_what_tiktoken_decodes(ids):
    assert TOKENIZERS[0].decode(ids) == TOKENIZERS[0]._encoding.decode(ids)


def test_a_stream_yields_as_the_ids_come():
    seen = []

    def ids():
        for byte in "a👍b".encode():
            seen.append(byte)
            yield byte

    stream = ByteTokenizer().decode_stream(ids())
    assert (next(stream), len(seen)) == ("a", 1)
    assert (next(stream), len(seen)) == ("👍", 5)
    assert (next(stream), len(seen)) == ("b", 6)


def test_an_unfinished_character_is_flushed_at_the_end():
    assert list(ByteTokenizer().decode_stream("a👍".encode()[:-1])) == ["a", "\ufffd"]
    ids = TOKENIZERS[0].encode("👍")
    assert len(ids) > 1  # or this would test nothing
    assert list(TOKENIZERS[0].decode_stream(ids[:-1])) == ["\ufffd"]


@pytest.mark.parametrize("bad", [-1, "V", 2**63, -(2**70), 1.0, np.float32(2), True, np.True_, None, "a", np.nan])
def test_decode_names_the_first_bad_id(tokenizer, bad):
    bad = tokenizer.V if bad == "V" else bad
    with pytest.raises(ValueError, match=rf"^ids\[2\] is {bad}; .* 0 <= id < V = {tokenizer.V}$"):
        tokenizer.decode([0, 1, bad, -5])


def test_a_stream_yields_what_came_before_the_bad_id():
    stream = ByteTokenizer().decode_stream([97, 256])
    assert next(stream) == "a"
    with pytest.raises(ValueError, match=r"ids\[1\] is 256"):
        next(stream)


def test_a_dict_that_went_through_json_restores_the_tokenizer(tokenizer):
    again = tokenizer_from_dict(json.loads(json.dumps(tokenizer.to_dict())))
    assert type(again) is type(tokenizer)
    assert (again.V, again.start_id) == (tokenizer.V, tokenizer.start_id)
    for text in SAMPLES:
        np.testing.assert_array_equal(again.encode(text), tokenizer.encode(text))


def test_dicts():
    assert GPT2Tokenizer().to_dict() == {"kind": "gpt2"}
    assert ByteTokenizer().to_dict() == {"kind": "bytes"}
    assert CharTokenizer("cab").to_dict() == {"kind": "char", "characters": "cab"}


@pytest.mark.parametrize(
    "values",
    [
        {"kind": "words"},
        {},
        {"kind": "char"},
        {"kind": "char", "characters": ["a"]},
        {"kind": "bytes", "colour": "red"},
        {"kind": "char", "characters": "ab", "colour": "red"},
        "gpt2",
        None,
    ],
)
def test_another_dict_is_refused_by_name(values):
    with pytest.raises(ValueError, match="not the description of a tokenizer") as error:
        tokenizer_from_dict(values)
    assert str(values) in str(error.value)


def test_a_dict_with_bad_characters_is_refused():
    with pytest.raises(ValueError, match="also stands at 0"):
        tokenizer_from_dict({"kind": "char", "characters": "aa"})


def test_make_tokenizer():
    assert type(make_tokenizer("gpt2", "ab")) is GPT2Tokenizer
    assert type(make_tokenizer("bytes", "ab")) is ByteTokenizer
    assert make_tokenizer("char", "ba\nb").to_dict() == {"kind": "char", "characters": "\nab"}
    with pytest.raises(ValueError, match=r"'gpt2', 'bytes' or 'char', got 'words'"):
        make_tokenizer("words", "ab")


@pytest.mark.parametrize("tokenizer", TOKENIZERS[:2])
def test_surrogates_are_replaced_alike(tokenizer):
    assert tokenizer.decode(tokenizer.encode("a\ud83db\udc00")) == "a\ufffdb\ufffd"
    assert tokenizer.decode(tokenizer.encode("\ud83d\ude00")) == "😀"


def test_repr():
    assert repr(ByteTokenizer()) == "ByteTokenizer(V=256)"


# GPT-2


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Hello world", [15496, 995]),
        ("Hello, I'm a language model,", [15496, 11, 314, 1101, 257, 3303, 2746, 11]),
        ("<|endoftext|>", [27, 91, 437, 1659, 5239, 91, 29]),
    ],
)
def test_known_gpt2_ids(text, ids):
    assert GPT2Tokenizer().encode(text).tolist() == ids


def brute_force_bpe(text):
    """GPT-2's encoder as it was published: its own pattern, then the lowest-ranked merge, again and again."""
    pattern = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    lines = VOCABULARY.read_text("ascii").splitlines()
    ranks = {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in lines}
    ids = []
    for piece in regex.findall(pattern, text):
        parts = [bytes([byte]) for byte in piece.encode("utf-8")]
        while True:
            pairs = [(ranks.get(a + b, np.inf), i) for i, (a, b) in enumerate(pairwise(parts))]
            rank, i = min(pairs, default=(np.inf, 0))
            if rank == np.inf:
                break
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        ids += [ranks[part] for part in parts]
    return ids


@pytest.mark.parametrize("text", SAMPLES)
def test_gpt2_ids_are_those_of_brute_force(text):
    assert GPT2Tokenizer().encode(text).tolist() == brute_force_bpe(text)


def test_end_of_text_is_special_by_explicit_option_alone():
    tokenizer = GPT2Tokenizer()
    text = "a<|endoftext|> b<|endoftext|><|endoftext|>"
    plain, special = tokenizer.encode(text), tokenizer.encode(text, special=True)
    assert 50256 not in plain
    assert special.tolist() == [64, 50256, 275, 50256, 50256]
    assert tokenizer.decode(plain) == tokenizer.decode(special) == text
    assert (tokenizer.V, tokenizer.start_id) == (50257, 50256)


@pytest.mark.parametrize("text", SAMPLES)
def test_special_is_tiktokens_own_special(text):
    tokenizer = GPT2Tokenizer()
    expected = tokenizer._encoding.encode(text, allowed_special="all")
    assert tokenizer.encode(text, special=True).tolist() == expected


def test_a_million_spaces():
    """Once a panic inside tiktoken (its issue 15), which no `except Exception` catches."""
    n = 1_000_000
    tokenizer = GPT2Tokenizer()
    ids = tokenizer.encode("a" + " " * n + "b" + "\n" * n)
    expected = [tokenizer.encode(part) for part in ("a", " " * (n - 1), " b", "\n" * n)]
    np.testing.assert_array_equal(ids, np.concatenate(expected))


@pytest.mark.parametrize(("character", "n_ids"), [("a", 250_000), ("é", 1_000_000), ("\0", 1_000_000)])
def test_a_million_of_one_character(character, n_ids):
    text = character * 1_000_000
    ids = GPT2Tokenizer().encode(text)
    assert len(ids) == n_ids
    assert GPT2Tokenizer().decode(ids) == text


@given(st.lists(st.sampled_from(["a", " ", "\n", "\n\n\n", "\x1c", "\u3000"]), max_size=12).map("".join))
@example("\n\n\n\n")  # the end of the text keeps its run
@example("\n\n\n\n\x1ca")  # a space to Python, not to GPT-2's pattern
def test_cutting_out_long_runs_changes_no_id(text):
    short = re.compile(module.LONG_RUN.pattern.replace("100000", "2"))
    tokenizer = GPT2Tokenizer()
    parts = [tokenizer.encode(part) for part in short.split(text)]
    np.testing.assert_array_equal(np.concatenate(parts), tokenizer.encode(text))


def test_the_vocabulary_is_openais():
    assert hashlib.sha256(VOCABULARY.read_bytes()).hexdigest() == VOCABULARY_SHA256
    assert VOCABULARY_SHA256 in (VOCABULARY.parent / "README.md").read_text("utf-8")


def test_a_copy_of_the_vocabulary_elsewhere(tmp_path):
    path = tmp_path / "copy.tiktoken"
    path.write_bytes(VOCABULARY.read_bytes())
    assert GPT2Tokenizer(path).encode("Hello world").tolist() == [15496, 995]


DAMAGE = {
    "truncated": lambda data: data[:-20],
    "altered": lambda data: data.replace(b"IQ== 0\n", b"IQ== 1\n"),
    "CRLF": lambda data: data.replace(b"\n", b"\r\n"),
    "empty": lambda data: b"",
    "a web page": lambda data: b"<!DOCTYPE html>",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_vocabulary_is_refused(tmp_path, damage):
    path = tmp_path / "r50k_base.tiktoken"
    path.write_bytes(damage(VOCABULARY.read_bytes()))
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(ValueError, match="expected sha256") as error:
        GPT2Tokenizer(path)
    for part in (str(path), VOCABULARY_SHA256, found):
        assert part in str(error.value)


@pytest.mark.parametrize("name", ["", "missing.tiktoken"])
def test_a_vocabulary_that_cannot_be_read_is_named(tmp_path, name):
    path = tmp_path / name  # the directory itself, and a file that is not there
    with pytest.raises(ValueError, match="cannot read the vocabulary") as error:
        GPT2Tokenizer(str(path))
    assert str(path) in str(error.value)


def test_tiktokens_downloader_is_never_asked(monkeypatch):
    import tiktoken.load

    def refuse(*args, **kwargs):
        raise AssertionError("tiktoken was asked to read the vocabulary")

    for name in ("read_file", "read_file_cached", "load_tiktoken_bpe", "data_gym_to_mergeable_bpe_ranks"):
        monkeypatch.setattr(tiktoken.load, name, refuse)
    module._load_encoding.cache_clear()
    assert GPT2Tokenizer().encode("Hello world").tolist() == [15496, 995]


# Bytes


def test_byte_ids_are_the_bytes():
    tokenizer = ByteTokenizer()
    assert tokenizer.encode("aé\n").tolist() == [97, 0xC3, 0xA9, 10]
    assert (tokenizer.V, tokenizer.start_id) == (256, 10)


# Characters


def test_char_ids_are_positions():
    tokenizer = CharTokenizer("cab")
    assert tokenizer.encode("abc").tolist() == [1, 2, 0]
    assert tokenizer.V == 3
    assert CharTokenizer.from_text("banana\n𝔘é").characters == "\nabné𝔘"


def test_char_start_id_is_the_newline_or_else_the_first():
    assert CharTokenizer("ab\n").start_id == 2
    assert CharTokenizer("ab").start_id == 0


@pytest.mark.parametrize(("character", "name"), [("é", r"'é' \(U\+00E9\)"), ("👍", r"'👍' \(U\+1F44D\)")])
def test_an_unknown_character_is_named(character, name):
    with pytest.raises(ValueError, match=rf"^text\[2\] is {name}, which is not among the vocabulary's 2 characters$"):
        CharTokenizer("ab").encode(f"ab{character}z")


def test_an_unknown_surrogate_is_named():
    with pytest.raises(ValueError, match=r"text\[0\] is '\\udc00' \(U\+DC00\)"):
        CharTokenizer("ab").encode("\udc00")


@pytest.mark.parametrize(
    ("characters", "message"),
    [
        ("abca", r"characters\[3\] is 'a' \(U\+0061\), which also stands at 0"),
        ("", "at least one"),
        ("a\ud83d", r"characters\[1\] is '\\ud83d' \(U\+D83D\), a surrogate"),
    ],
)
def test_characters_that_make_no_vocabulary(characters, message):
    with pytest.raises(ValueError, match=message):
        CharTokenizer(characters)
