import io

import pytest

from numpy_gpt.labs import picture
from numpy_gpt.labs.bytes_per_token import EMOJI, ENGLISH, GERMAN, LAB, bytes_in_spaces
from numpy_gpt.tokenizer import GPT2Tokenizer


@pytest.fixture(scope="module")
def result():
    return LAB.measure(0)


def test_claims_hold(result):
    assert result.holds
    values = result.values
    # Texts of our own: to the token. Python's differ a little from version to version.
    assert values["english_story"] == 432 / 98
    assert values["german"] == 431 / 162
    assert values["emoji"] == 119 / 84
    assert values["english_help"] == pytest.approx(3.6, abs=0.2)
    assert values["code"] == pytest.approx(2.2, abs=0.3)


def test_ratio_is_bytes_over_tokens(result):
    tokenizer = GPT2Tokenizer()
    for text in (ENGLISH, GERMAN, EMOJI):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert result.values["german_tokens_per_english"] == 162 / 98


def test_each_space_of_an_indentation_but_the_last_is_a_token():
    tokenizer = GPT2Tokenizer()
    for n in (2, 4, 8, 12):
        pieces = [tokenizer.token_bytes(int(token)) for token in tokenizer.encode("\n" + " " * n + "return")]
        assert pieces == [b"\n", *[b" "] * (n - 1), b" return"]


def test_indentation_counts_leading_spaces_alone():
    assert bytes_in_spaces("a b\n  c\n    d = 1\n") == 6 / 18


def test_picture(result):
    picture(result).savefig(io.BytesIO())
