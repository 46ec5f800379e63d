import csv
import io
import json
import os
import re
import subprocess
import sys
from dataclasses import fields
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from numpy_gpt import Config, Model, run, sampling
from numpy_gpt.checkpoint import load_checkpoint
from numpy_gpt.cli import main
from numpy_gpt.evaluation import evaluate_text
from numpy_gpt.profiling import step
from numpy_gpt.run import Setup, print_result
from numpy_gpt.terminal import new_console
from numpy_gpt.tokenizer import GPT2Tokenizer
from numpy_gpt.training import Progress, Schedule

QUICK = ["--preset", "tiny", "--steps", "4", "--B", "2", "--eval-every", "2", "--sample", "20", "--T", "8"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    words = rng.choice(["the ", "cat ", "sät ", "on ", "a ", "mat.\n"], 2000)
    (tmp_path / "words.txt").write_text("".join(words), encoding="utf-8")
    return tmp_path


def train(*flags):
    return main(["train", "--data", "words.txt", *QUICK, *flags])


def error_line(capsys, argv):
    """Run argv, which must fail with exit code 2, no traceback and one clear line; return the line."""
    try:
        status = main(argv)
    except SystemExit as stop:  # argparse's own way out
        status = stop.code
    error = capsys.readouterr().err
    assert status == 2
    assert "Traceback" not in error
    return error.splitlines()[-1]


def test_train_tells_the_whole_story(capsys, folder):
    assert train() == 0
    told = " ".join(capsys.readouterr().out.split())
    for part in (
        "words.txt",
        "L = 2",
        "parameters",
        "predicted",
        "held-out loss",
        "tokens/s",
        "forward",
        "backward",
        "optimiser",
    ):
        assert part in told
    for part in ("uniform, ln V", "unigram", "bigram", "this model", "A sample of 20 tokens"):
        assert part in told
    model, metadata = load_checkpoint("runs/001/model.safetensors")
    assert f"{model.config.n_parameters():,} in float32" in told
    assert metadata["step"] == 4
    assert sorted(path.name for path in (folder / "runs/001").iterdir()) == [
        "loss.csv",
        "loss.png",
        "model.safetensors",
        "step-000002.safetensors",
        "step-000004.safetensors",
    ]


@pytest.mark.parametrize("name", ["notes[final].txt", "x[bold].txt", "x[red]y[/b].txt"])
def test_a_name_is_shown_as_it_is(folder, name, capsys):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / "words.txt").rename(name)
    assert main(["train", "--data", name, *QUICK, "--out", f"{name} out"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert f"{name}: " in told
    assert f"in {name} out" in told
    assert main(["train", "--resume", f"{name} out", "--change", "--steps", "5"]) == 0
    assert f"Going on with {name} out" in capsys.readouterr().out
    assert main(["evaluate", name, "--checkpoint", f"{name} out"]) == 0
    assert capsys.readouterr().out.startswith(f"{name}: ")


def test_train_without_matplotlib_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert train() == 0
    assert "pip install 'numpy_gpt[plots]'" in capsys.readouterr().out


def test_a_loss_beyond_every_perplexity_is_told_as_inf(capsys):
    last = Progress(1, 1e4, lr=0, grad_norm=0, seconds=1, tokens=1, shares={}, held_out_loss=1e4)
    print_result(new_console(), [last], {})
    assert re.search(r"this model │ +10000.0000 │ +inf │", capsys.readouterr().out)


def test_files_hold_what_they_promise(folder):
    train()
    with (folder / "runs/001/loss.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["1", "2", "3", "4"]
    assert [bool(row["held_out_loss"]) for row in rows] == [False, True, False, True]
    _, metadata = load_checkpoint("runs/001/model.safetensors")
    assert metadata["held_out_loss"] == float(rows[-1]["held_out_loss"])
    assert (folder / "runs/001/loss.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_repeats_bit_for_bit(folder):
    train()
    train()
    train("--seed", "1")
    one, two, other = ((folder / f"runs/00{n}/model.safetensors").read_bytes() for n in (1, 2, 3))
    assert one == two
    assert one != other


@pytest.mark.parametrize(
    "flags",
    [
        ["--tokenizer", "bytes"],
        ["--tokenizer", "gpt2", "--d", "8", "--h", "2", "--L", "1"],
        ["--norm", "post", "--gelu", "exact", "--no-tie"],
        ["--no-causal", "--no-scale", "--dtype", "float64", "--accumulate", "2"],
    ],
)
def test_train_with_other_settings_and_sample_from_it(flags, capsys):
    assert train(*flags) == 0
    capsys.readouterr()
    assert main(["sample", "--prompt", "the cat", "--n", "10", "--top-k", "5", "--top-p", "0.9"]) == 0
    assert capsys.readouterr().out.startswith("the cat")


def test_sample_repeats_by_seed(capsys):
    train()
    capsys.readouterr()
    texts = []
    for seed in ("1", "1", "2"):
        assert main(["sample", "runs/001", "--seed", seed, "--n", "40", "--temperature", "1"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]


def test_training_beyond_the_memory_there_is_is_refused(folder, capsys, monkeypatch):
    available = run.available_memory()
    assert available is None or available > 10**7
    monkeypatch.setattr(run, "available_memory", lambda: 10**6)
    monkeypatch.setattr(run, "Model", None)  # nothing is made
    message = error_line(capsys, ["train", "--data", "words.txt", "--steps", "1"])
    assert re.search(r"training would take [\d.]+ MB of memory, and 1\.0 MB are available; a smaller preset", message)
    assert not (folder / "runs").exists()


def test_sample_tells_the_speed_of_a_small_model_alone(capsys):
    train()
    capsys.readouterr()
    assert main(["sample", "--n", "40"]) == 0
    assert re.fullmatch(r"[\d.,]+ tokens/s\n", capsys.readouterr().err)


@pytest.mark.parametrize("tie", [True, False])
def test_sample_tells_its_speed_beside_the_bound_on_stderr(capsys, monkeypatch, tie):
    monkeypatch.setattr(sampling, "WORTH_TELLING", 0)
    train("--tie" if tie else "--no-tie")
    capsys.readouterr()
    assert main(["sample", "--n", "40"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    rate, share, bound, megabytes, gigabytes = map(float, re.fullmatch(SPEED, line.replace(",", "")).groups())
    config = load_checkpoint("runs/001/model.safetensors")[0].config
    read_in_one_row = (config.T_max - 1) + (0 if tie else config.V - 1)
    n_bytes = 4 * (config.n_parameters() - config.d * read_in_one_row)
    assert megabytes == pytest.approx(n_bytes / 1e6, abs=0.05)
    assert gigabytes == pytest.approx(bound * n_bytes / 1e9, abs=0.06)
    assert share == pytest.approx(100 * rate / bound, abs=1)
    assert main(["sample", "--n", "1"]) == 0
    assert capsys.readouterr().err == ""  # one token is no speed


SPEED = (
    r"([\d.]+) tokens/s ([\d.]+)% of the ([\d.]+) that the memory allows: "
    r"([\d.]+) MB of weights a token at ([\d.]+) GB/s"
)


def test_sample_prompt_after_prompt(capsys, monkeypatch):
    train()
    capsys.readouterr()
    main(["sample", "--prompt", "the ", "--n", "8", "--seed", "5"])
    one = capsys.readouterr().out
    main(["sample", "--prompt", "the ", "--n", "8", "--seed", "7"])
    two = capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.StringIO("the \n€\nthe \n"))
    assert main(["sample", "--interactive", "--n", "8", "--seed", "5"]) == 0
    told = capsys.readouterr()
    assert told.out == f"> {one}> > {two}> \n"
    assert [line.split()[0] for line in told.err.splitlines() if "tokens/s" not in line] == ["numpy-gpt:"]


def test_a_closed_input_is_at_its_end(capsys, monkeypatch):
    train()
    capsys.readouterr()
    monkeypatch.setattr("sys.stdin", None)
    assert main(["sample", "--interactive"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_input_that_is_not_utf8_ends_no_session(capsys, monkeypatch, errors):
    train()
    capsys.readouterr()
    main(["sample", "--prompt", "the ", "--n", "8", "--seed", "1"])
    text = capsys.readouterr().out
    input_bytes = io.BytesIO(b"the \xff\nthe \n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(input_bytes, encoding="utf-8", errors=errors))
    assert main(["sample", "--interactive", "--n", "8"]) == 0
    told = capsys.readouterr()
    assert told.out == f"> > {text}> \n"
    assert "text[4] is '\ufffd'" in told.err


def test_ctrl_c_ends_a_text_and_not_the_session(capsys, monkeypatch):
    train()
    capsys.readouterr()
    prompts = iter(["the ", "cat "])
    monkeypatch.setattr("builtins.input", lambda question: next_or_end(prompts))
    monkeypatch.setattr(sampling, "generate", interrupted_generate)
    assert main(["sample", "--interactive", "--n", "8"]) == 0
    assert capsys.readouterr().out == "the \ncat \n\n"


def next_or_end(prompts):
    for prompt in prompts:
        return prompt
    raise EOFError


def interrupted_generate(*arguments, **settings):
    def tokens():
        raise KeyboardInterrupt
        yield

    return tokens()


@pytest.mark.parametrize(
    ("flags", "word"),
    [(["--prompt", "the"], "--prompt"), (["--temperature", "-1"], "temperature"), (["--n", "-1"], "n must")],
)
def test_interactive_mistakes_are_told_before_the_first_prompt(capsys, monkeypatch, flags, word):
    train()
    monkeypatch.setattr("builtins.input", None)
    assert word in error_line(capsys, ["sample", "--interactive", *flags])


def test_tokenize_shows_pieces_ids_and_bytes_a_token(capsys):
    assert main(["tokenize", "Hello wörld\n"]) == 0
    shown, count = capsys.readouterr().out.splitlines()
    tokenizer = GPT2Tokenizer()
    ids = tokenizer.encode("Hello wörld\n")
    pieces = ["Hello", "·w", "ör", "ld", "\\n"]
    assert shown.split() == [f"{piece}({token})" for piece, token in zip(pieces, ids, strict=True)]
    assert count == "13 bytes, 5 tokens: 2.60 bytes a token"


def test_tokenize_shows_parts_of_a_character_as_bytes(capsys):
    main(["tokenize", "漢", "--tokenizer", "bytes"])
    assert capsys.readouterr().out.splitlines()[0].split() == [r"\xe6(230)", r"\xbc(188)", r"\xa2(162)"]


def test_tokenize_a_file(folder, capsys):
    assert main(["tokenize", "--file", "words.txt", "--tokenizer", "char", "--n", "3"]) == 0
    shown, count = capsys.readouterr().out.splitlines()
    assert len(shown.split()) == 4
    assert shown.endswith("...")
    text = (folder / "words.txt").read_text(encoding="utf-8")
    n_bytes = (folder / "words.txt").stat().st_size
    assert count == f"{n_bytes:,} bytes, {len(text):,} tokens: {n_bytes / len(text):.2f} bytes a token"


def test_tokenize_end_of_text_is_text_unless_special(capsys):
    main(["tokenize", "<|endoftext|>"])
    assert "13 bytes, 7 tokens" in capsys.readouterr().out
    main(["tokenize", "<|endoftext|>", "--special"])
    assert capsys.readouterr().out == "<|endoftext|>(50256)\n13 bytes, 1 tokens: 13.00 bytes a token\n"


def test_tokenize_nothing(capsys):
    assert main(["tokenize", ""]) == 0
    assert capsys.readouterr().out == "0 bytes, 0 tokens\n"


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        ([], "--file"),
        (["text", "--file", "words.txt"], "--file"),
        (["--file", "absent.txt"], "absent.txt"),
        (["text", "--n", "-1"], "n must"),
        (["text", "--tokenizer", "bytes", "--special"], "--special"),
        (["text", "--tokenizer", "words"], "'words'"),
    ],
)
def test_tokenize_mistakes(argv, word, capsys):
    assert word in error_line(capsys, ["tokenize", *argv])


def test_sample_says_that_it_crops_a_long_prompt(capsys):
    train()
    capsys.readouterr()
    assert main(["sample", "--prompt", "the cat on the mat", "--n", "3"]) == 0
    assert "the model sees its last 8" in capsys.readouterr().out


def test_sample_takes_the_newest_run(folder, capsys):
    train()
    train("--out", "runs/older", "--seed", "9")
    for path in (folder / "runs/older").iterdir():
        os.utime(path, (1, 1))
    capsys.readouterr()
    main(["sample"])
    newest = capsys.readouterr().out
    main(["sample", "runs/001/model.safetensors"])
    assert newest == capsys.readouterr().out


def test_results_are_not_overwritten_unless_told(folder, capsys):
    train("--out", "results")
    before = (folder / "results/model.safetensors").read_bytes()
    argv = ["train", "--data", "words.txt", *QUICK, "--out", "results", "--seed", "1"]
    assert "--overwrite" in error_line(capsys, argv)
    assert (folder / "results/model.safetensors").read_bytes() == before
    assert main([*argv, "--overwrite"]) == 0
    assert (folder / "results/model.safetensors").read_bytes() != before


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--data", "absent.txt"], ["absent.txt"]),
        (["--data", "."], ["."]),
        (["--preset", "gpt5"], ["gpt5", "gpt2-medium"]),
        (["--tokenizer", "words"], ["words", "gpt2"]),
        (["--h", "5"], ["48", "5", "nearest h"]),
        (["--steps", "0"], ["steps", "0"]),
        (["--steps", "many"], ["--steps", "many"]),
        (["--lr", "nan"], ["lr", "nan"]),
        (["--weight-decay", "-1"], ["weight_decay", "-1"]),
        (["--beta2", "1"], ["beta2", "1"]),
        (["--T", "100000"], ["words.txt: ", "100001"]),
        (["--dtype", "float16"], ["dtype", "float16"]),
        (["--device", "tpu"], ["device", "tpu"]),
        (["--norm", "none"], ["norm", "none"]),
        (["--sample", "-1"], ["sample", "-1"]),
        (["--validation", "2"], ["validation", "2"]),
        (["--out", "words.txt/x"], ["words.txt"]),
    ],
)
def test_mistakes_are_one_clear_line_and_leave_nothing(flags, words, capsys, folder):
    line = error_line(capsys, ["train", "--data", "words.txt", *QUICK, *flags])
    for word in words:
        assert word in line
    assert not list(folder.glob("**/*.safetensors"))
    assert not list(folder.glob("runs/*"))


def test_text_that_is_not_utf8(capsys, folder):
    (folder / "latin.txt").write_bytes("naïve ".encode("latin-1") * 100)
    line = error_line(capsys, ["train", "--data", "latin.txt", *QUICK])
    assert "latin.txt" in line
    assert "2" in line


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], ["runs"]),
        (["absent.safetensors"], ["absent.safetensors"]),
        (["words.txt"], ["words.txt"]),
    ],
)
def test_sample_without_a_checkpoint(argv, words, capsys):
    line = error_line(capsys, ["sample", *argv])
    for word in words:
        assert word in line


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--prompt", "€uro"], "'€'"),
        (["--temperature", "-1"], "temperature"),
        (["--top-k", "0"], "top_k"),
        (["--top-p", "2"], "top_p"),
        (["--n", "-1"], "n must"),
    ],
)
def test_sample_mistakes(flags, word, capsys):
    train()
    capsys.readouterr()
    assert word in error_line(capsys, ["sample", *flags])


def test_evaluate_agrees_with_the_run(folder, capsys):
    train("--tokenizer", "bytes", "--steps", "2")
    capsys.readouterr()
    assert main(["evaluate", "words.txt", "--stride", "3"]) == 0
    told = capsys.readouterr().out
    model, _ = load_checkpoint("runs/001/model.safetensors")
    tokens = np.frombuffer((folder / "words.txt").read_bytes(), np.uint8)
    result = evaluate_text(model, tokens, 3)
    assert f"{len(tokens) - 1:,} tokens scored" in told
    assert f"{result.loss:.4f} nats" in told
    assert f"bits per byte {result.loss / np.log(2):.4f}" in told  # a token is a byte here


def test_evaluate_mistakes(capsys):
    train()
    assert "absent.txt" in error_line(capsys, ["evaluate", "absent.txt"])
    assert "stride" in error_line(capsys, ["evaluate", "words.txt", "--stride", "0"])
    for text, word in (("t", "has 1 tokens"), ("the €", "'€'")):
        Path("other.txt").write_text(text, encoding="utf-8")
        line = error_line(capsys, ["evaluate", "other.txt"])
        assert "other.txt: " in line
        assert word in line


def test_gradcheck_exit_codes(folder, capsys):
    assert main(["gradcheck", "gelu"]) == 0
    assert "PASS" in capsys.readouterr().out
    (folder / "wrong.py").write_text(
        "def gelu_forward(x):\n    return 2 * x, x\ndef gelu_backward(dy, cache):\n    return dy\n", encoding="utf-8"
    )
    assert main(["gradcheck", "wrong.py:gelu"]) == 1
    assert "WRONG" in capsys.readouterr().out
    assert "absent" in error_line(capsys, ["gradcheck", "absent"])


def test_budget_counts_gpt2(capsys):
    assert main(["budget"]) == 0
    assert "124,439,808" in capsys.readouterr().out
    assert main(["budget", "--preset", "gpt2-xl", "--T", "512", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["config"]["L"] == 48


@pytest.mark.parametrize(
    ("flags", "word"), [(["--h", "7"], "nearest h"), (["--T", "5000"], "T_max"), (["--B", "0"], "B")]
)
def test_budget_mistakes(flags, word, capsys):
    assert word in error_line(capsys, ["budget", *flags])


TINY = ["time", "--preset", "tiny", "--d", "6", "--h", "1", "--L", "1", "--V", "7", "--repeats", "1"]


@pytest.fixture
def small_limits(monkeypatch):
    """The machine's limits measured by products that take no time."""
    monkeypatch.setattr(step, "measure_gemm_peak", partial(step.measure_gemm_peak, sizes=(16,), seconds=0))
    monkeypatch.setattr(step, "measure_bandwidth", partial(step.measure_bandwidth, size=4096, seconds=0))
    monkeypatch.setattr(step, "measure_own_gemms", partial(step.measure_own_gemms, seconds=0))


def test_time_tells_memory_table_and_limits(capsys, folder, small_limits):
    assert main([*TINY, "--B", "2", "--T", "5", "--dtype", "float64", "--plot", "time.png"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("Predicted memory of a step")
    for part in ("attend", "counted", "MFU", "tokens/s", "B = 2, T = 5", "Wrote time.png"):
        assert part in told
    assert (folder / "time.png").read_bytes().startswith(b"\x89PNG")


def test_time_as_json(capsys, small_limits):
    assert main([*TINY, "--json"]) == 0
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert (found["B"], found["T"], found["config"]["d"], found["repeats"] >= 1) == (4, 32, 6, True)
    assert "Predicted memory" in told.err


def test_time_of_a_sweep(capsys, folder):
    assert main([*TINY, "--sweep", "--B", "1", "--T", "4", "--plot", "sweep.svg", "--json"]) == 0
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert set(found["axes"]) == set(found["fits"]) == {"d", "L", "T", "B"}
    assert "Predicted memory of the sweep" in told.err
    assert "<svg" in (folder / "sweep.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--h", "5"], "nearest h"),
        (["--T", "5000"], "T_max"),
        (["--B", "0"], "B must"),
        (["--T", "0", "--sweep"], "T must"),
        (["--repeats", "0"], "repeats"),
        (["--dtype", "float16"], "float16"),
        (["--device", "tpu"], "tpu"),
        (["--plot", "time.txt"], "time.txt"),
        (["--plot", "absent/time.png"], "absent"),
        (["--plot", "folder.png"], "it is a folder"),
        (["--plot", "file/time.png"], "no folder file"),
    ],
)
def test_time_mistakes_are_told_before_anything_runs(flags, word, folder, capsys, monkeypatch):
    monkeypatch.setattr(step, "Stepper", None)
    (folder / "folder.png").mkdir()
    (folder / "file").touch()
    assert word in error_line(capsys, [*TINY, *flags])


def test_time_without_matplotlib(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "numpy_gpt[plots]" in error_line(capsys, [*TINY, "--plot", "time.png"])


def test_exercise_from_list_to_check(folder, capsys):
    assert main(["exercise", "list"]) == 0
    assert "layernorm" in capsys.readouterr().out
    assert main(["exercise", "start", "gelu"]) == 0
    assert main(["exercise", "check", "gelu.py"]) == 1
    assert "not written yet" in capsys.readouterr().out
    assert main(["exercise", "check", "gelu.py", "--hint", "1"]) == 1
    assert "gelu.py" in error_line(capsys, ["exercise", "start", "gelu"])
    assert "absent" in error_line(capsys, ["exercise", "start", "absent"])


def test_convert_there_and_back(folder, capsys):
    train()
    assert main(["convert", "runs/001", "theirs"]) == 0
    assert sorted(path.name for path in (folder / "theirs").iterdir()) == ["config.json", "model.safetensors"]
    assert main(["convert", "theirs", "ours.safetensors"]) == 0
    assert "Wrote ours.safetensors" in capsys.readouterr().out
    before, after = (load_checkpoint(path)[0] for path in ("runs/001/model.safetensors", "ours.safetensors"))
    assert after.params.flat.tobytes() == before.params.flat.tobytes()
    assert "overwrite" in error_line(capsys, ["convert", "theirs", "ours.safetensors"])


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["convert", "", "theirs"], "source"),
        (["convert", "run", ""], "target"),
        (["sample", ""], "checkpoint"),
        (["evaluate", ""], "text"),
        (["evaluate", "words.txt", "--checkpoint", ""], "--checkpoint"),
        (["tokenize", "--file", ""], "--file"),
        (["gradcheck", "gelu", "--html", ""], "--html"),
        (["exercise", "start", "gelu", "--out", ""], "--out"),
        (["exercise", "check", ""], "file"),
        (["lab", "run", "first_loss", "--plot", ""], "--plot"),
        (["time", "--plot", ""], "--plot"),
    ],
)
def test_an_empty_name_is_not_the_current_folder(argv, name, folder, capsys):
    Model(Config(V=50257, T_max=16, d=2, h=1, L=1)).save_pretrained(folder)
    before = sorted(folder.rglob("*"))
    assert f"argument {name}: the name is empty" in error_line(capsys, argv)
    assert sorted(folder.rglob("*")) == before


@pytest.fixture
def theirs(folder):
    """The smallest GPT-2 that Hugging Face's files can hold."""
    Model(Config(V=50257, T_max=16, d=2, h=1, L=1)).save_pretrained(folder / "theirs")


@pytest.mark.parametrize("source", ["theirs", "theirs/model.safetensors"])
def test_sample_and_evaluate_hugging_faces_files(theirs, capsys, source):
    assert main(["sample", source, "--prompt", "Größe", "--n", "3"]) == 0
    assert capsys.readouterr().out.startswith("Größe")
    assert main(["evaluate", "words.txt", "--checkpoint", source]) == 0
    n = len(GPT2Tokenizer().encode(Path("words.txt").read_text(encoding="utf-8")))
    assert f"{n - 1:,} tokens scored" in capsys.readouterr().out


def test_weights_without_a_tokenizer_that_fits(folder, capsys):
    Model(Config(V=50, T_max=8, d=2, h=1, L=1)).save_pretrained(folder / "theirs")
    for argv in (["sample", "theirs"], ["evaluate", "words.txt", "--checkpoint", "theirs"]):
        line = error_line(capsys, argv)
        assert "theirs: " in line
        assert "V = 50 is not GPT-2's 50257" in line


def test_diverged_run_says_so_and_leaves_nothing(capsys, folder):
    assert train("--lr", "1e30", "--warmup", "0") == 1
    assert "gradient of" in capsys.readouterr().err
    assert not list(folder.glob("runs/*"))


def test_help_shows_every_setting_with_its_default(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for item in (*fields(Setup), *fields(Schedule)):
        assert f"--{item.name.replace('_', '-')}" in text
        entry = text.split(item.metadata["help"], 1)[1]
        if item.default is None:
            assert "default: " in item.metadata["help"]
        elif item.default is not False:  # a switch that only turns on
            assert entry.startswith(f" (default: {item.default})")


@pytest.mark.parametrize("command", ["train", "sample", "evaluate", "tokenize", "convert"])
def test_help_tells_no_default_where_there_is_none(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "default: None" not in text
    assert "default: )" not in text
    if command != "convert":
        assert "default: " in text


def test_python_dash_m():
    result = subprocess.run(
        [sys.executable, "-m", "numpy_gpt", "train", "--data", "words.txt", *QUICK],
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
        env={**os.environ, "PYTHONWARNINGS": "error", "PYTHONIOENCODING": "utf-8"},
    )
    assert "this model" in result.stdout
    assert result.stderr == ""


def test_output_into_a_closed_pipe_is_no_traceback(folder):
    train()
    command = f"{sys.executable} -m numpy_gpt sample --n 2000 | head -c 1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert "Traceback" not in result.stderr
