"""A text's score on the terminal."""

import io
import math

import pytest
from rich.console import Console

from numpy_gpt import Config, Model
from numpy_gpt.checkpoint import save_checkpoint
from numpy_gpt.evaluation import evaluate_text
from numpy_gpt.scoring import run_evaluation
from numpy_gpt.tokenizer import make_tokenizer


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def checkpoint(kind="bytes", text=""):
    """Return the path of a small model, saved with a tokenizer, and both."""
    tokenizer = make_tokenizer(kind, text)
    model = Model(Config(V=tokenizer.V, T_max=8, d=4, h=2, L=1), seed=1)
    save_checkpoint("model.safetensors", model, tokenizer=tokenizer.to_dict())
    return "model.safetensors", model, tokenizer


@pytest.mark.parametrize(
    ("kind", "text", "n_bytes"), [("bytes", "猫", 2), ("gpt2", "😀 hi", 4), ("char", "猫 hi", 3), ("bytes", "hi", 1)]
)
def test_bits_per_byte_are_of_the_bytes_that_were_scored(folder, kind, text, n_bytes):
    (folder / "text.txt").write_text(text, encoding="utf-8")
    path, model, tokenizer = checkpoint(kind, text)
    ids = tokenizer.encode(text)
    console = Console(file=io.StringIO(), width=80)
    found = run_evaluation("text.txt", path, 3, 2, "cpu", console)
    nats = evaluate_text(model, ids, 3).loss * (len(ids) - 1)
    assert found.bits_per_byte == pytest.approx(nats / math.log(2) / n_bytes, rel=1e-12)
    assert f"bits per byte {found.bits_per_byte:.4f}\n" in console.file.getvalue()
    assert console.file.getvalue().startswith("text.txt: ")  # no line of a bar that no terminal shows


@pytest.mark.parametrize("name", ["notes[final].txt", "notes[bold].txt", "x[/b].txt", "a name " * 20 + ".txt"])
def test_a_name_is_shown_as_it_is(folder, name):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("hi there", encoding="utf-8")
    path, *_ = checkpoint()
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    run_evaluation(name, path, 3, 2, "cpu", console)
    bar, result = console.file.getvalue().rsplit("\r", 1)
    assert f"{name}: 7 tokens scored" in result
    assert name[:12] in bar
