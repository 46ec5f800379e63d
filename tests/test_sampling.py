"""Streaming a sample, and what is said of its speed."""

import io

import pytest
from rich.console import Console

from numpy_gpt import Config, Model, sampling
from numpy_gpt.sampling import bytes_a_token, continue_prompt, describe_speed, note_times, stream_text, time_to_read
from numpy_gpt.tokenizer import ByteTokenizer


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=80)


@pytest.mark.parametrize("tie", [True, False])
def test_bytes_a_token_are_all_weights_but_the_rows_not_looked_up(tie):
    V, T_max, d = 13, 7, 4
    model = Model(Config(V=V, T_max=T_max, d=d, h=2, L=2, tie=tie))
    rows_left_out = T_max - 1 if tie else T_max - 1 + V - 1
    assert bytes_a_token(model) == model.params.flat.nbytes - 4 * d * rows_left_out


def test_time_to_read_is_that_of_the_bytes_a_token():
    assert time_to_read(Model(Config(V=13, T_max=7, d=4, h=2, L=1))) > 0


def test_times_are_noted_as_the_tokens_come():
    times = []
    noted = note_times(iter([5, 6]), times)
    assert next(noted) == 5
    assert len(times) == 1
    assert list(noted) == [6]
    assert len(times) == 2
    assert times == sorted(times)


def test_speed_is_told_from_the_first_token_to_the_last(monkeypatch):
    model = Model(Config(V=13, T_max=7, d=4, h=2, L=1))
    times = [10.0, 10.5, 11.0]  # 2 tokens in a second
    monkeypatch.setattr(sampling, "time_to_read", lambda model: 0.25)
    assert describe_speed(model, times) == "2 tokens/s"  # it stays in the cache
    monkeypatch.setattr(sampling, "WORTH_TELLING", bytes_a_token(model))
    told = describe_speed(model, times)
    assert told.startswith("2 tokens/s, 50% of the 4 that the memory allows: ")
    assert f"{bytes_a_token(model) / 1e6:,.1f} MB" in told
    monkeypatch.setattr(sampling, "time_to_read", lambda model: 0.6)
    assert describe_speed(model, times) == "2 tokens/s"  # not 120% of what is possible


def test_an_interrupted_text_ends_its_line():
    def tokens():
        yield ord("a")
        raise KeyboardInterrupt

    file = io.StringIO()
    with pytest.raises(KeyboardInterrupt):
        stream_text(ByteTokenizer(), tokens(), Console(file=file))
    assert file.getvalue() == "a\n"


class Parts(io.StringIO):
    """A file that remembers what it was given, piece by piece, and when it was flushed."""

    def __init__(self):
        super().__init__()
        self.parts = []

    def write(self, text):
        self.parts.append(text)
        return super().write(text)

    def flush(self):
        self.parts.append("flush")


def test_whole_characters_only_and_each_at_once():
    file = Parts()
    stream_text(ByteTokenizer(), iter("aß€".encode()), Console(file=file))
    assert file.parts == ["a", "flush", "ß", "flush", "€", "flush", "\n", "flush"]


EXACT = "all:\r\n\techo [b]hi[/b]\x0c\r\n\x07\x08\x0b\x1b[2J" + "a word and a number 1234 " * 20


def test_the_models_text_comes_out_exactly(console):
    stream_text(ByteTokenizer(), iter(EXACT.encode()), console)
    assert console.file.getvalue() == EXACT + "\n"


def test_the_prompt_comes_out_exactly(console):
    model = Model(Config(V=ByteTokenizer.V, T_max=len(EXACT), d=4, h=2, L=1))
    continue_prompt(model, ByteTokenizer(), EXACT, dict(n=0), console)
    assert console.file.getvalue() == EXACT + "\n"


def test_a_prompt_longer_than_the_window_is_told(console, capsys):
    model = Model(Config(V=ByteTokenizer.V, T_max=3, d=4, h=2, L=1))
    continue_prompt(model, ByteTokenizer(), "abcdef", dict(n=2, temperature=0), console)
    shown = console.file.getvalue()
    assert "the prompt has 6 tokens; the model sees its last 3" in shown
    assert "abcdef" in shown
    assert "tokens/s" in capsys.readouterr().err
