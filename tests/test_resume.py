"""A run that stops on the way and goes on: nothing lost, and the same bits as one that never stopped."""

import csv
import json
import math
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from numpy_gpt import AdamW, resume
from numpy_gpt import run as run_module
from numpy_gpt.checkpoint import read_checkpoint, read_metadata, save_checkpoint
from numpy_gpt.cli import main
from numpy_gpt.runs import checkpoint_files, held_alone
from numpy_gpt.training import train as train_loop

TINY = ["--preset", "tiny", "--T", "8", "--d", "12", "--L", "1", "--B", "2", "--sample", "0"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = np.random.default_rng(0).choice(["the ", "cat ", "sät ", "on ", "a ", "mat.\n"], 500)
    (tmp_path / "words.txt").write_text("".join(words), encoding="utf-8")
    return tmp_path


def train(*flags):
    return main(["train", "--data", "words.txt", *TINY, *flags])


@pytest.fixture
def stop_after(monkeypatch):
    """Let a signal come while the given update is under way."""

    def stop_after(update, number=signal.SIGINT):
        def train_and_signal(model, tokens, held_out_tokens, schedule, report, stop, state, save):
            def report_and_signal(progress):
                report(progress)
                if progress.step == update:
                    os.kill(os.getpid(), number)

            return train_loop(model, tokens, held_out_tokens, schedule, report_and_signal, stop, state, save)

        monkeypatch.setattr(run_module, "train", train_and_signal)

    return stop_after


def files(path):
    return sorted(file.name for file in Path(path).iterdir())


def history(path):
    """The rows of loss.csv, but for the seconds."""
    with (Path(path) / "loss.csv").open(encoding="utf-8", newline="") as file:
        return [{name: value for name, value in row.items() if name != "seconds"} for row in csv.DictReader(file)]


def error_line(capsys, *argv):
    """Run argv, which must fail with exit code 2 and one line; return the line."""
    capsys.readouterr()
    assert main(list(argv)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("flags", [[], ["--accumulate", "2", "--workers", "2", "--no-tie"]])
def test_2_and_2_updates_are_4_bit_for_bit(stop_after, dtype, flags):
    settings = ["--steps", "4", "--dtype", dtype, "--eval-every", "3", "--warmup", "1", *flags]
    assert train(*settings) == 0
    stop_after(2)
    assert train(*settings) == 130
    assert files("runs/002") == ["loss.csv", "step-000002.safetensors"]
    stop_after(None)
    assert main(["train", "--resume"]) == 0
    for name in ("step-000004.safetensors", "model.safetensors"):
        assert (Path("runs/001") / name).read_bytes() == (Path("runs/002") / name).read_bytes()
    assert history("runs/001") == history("runs/002")
    assert len(history("runs/002")) == 4


def test_on_a_device_too(stop_after, strict, monkeypatch):
    for module in (run_module, resume):
        monkeypatch.setattr(module, "device_module", lambda device: strict if device == "cuda" else np)
    settings = ["--steps", "4", "--device", "cuda"]
    train(*settings)
    stop_after(2)
    train(*settings)
    stop_after(None)
    assert main(["train", "--resume"]) == 0
    assert (
        Path("runs/001/step-000004.safetensors").read_bytes() == Path("runs/002/step-000004.safetensors").read_bytes()
    )


def test_killed_50_times_at_random_moments_a_run_loses_nothing_saved(folder):
    """At a constant learning rate `steps` bears on nothing, so that the killed run has one that is whole to match."""
    if not hasattr(os, "fork"):
        pytest.skip("forks its trainings")
    flags = ["--data", "words.txt", *TINY, "--workers", "1", "--warmup", "0", "--lr", "1e-3", "--min-lr", "1e-3"]
    flags += ["--eval-every", "1000000", "--save-every", "3"]
    script = Path(__file__).with_name("kill_training.py")
    command = [sys.executable, script, "50", "0", "killed", *flags, "--steps", "1000000"]
    result = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=300)
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    assert len(told["newest"]) == 50
    assert told["half_written"] >= 10  # of the 16 or 17 that are meant to
    done = told["newest"][-1]
    assert main(["train", *flags, "--steps", str(done), "--out", "whole"]) == 0
    name = f"step-{done:06d}.safetensors"
    assert_same_state(folder / "killed" / name, folder / "whole" / name)
    assert [row["loss"] for row in history("killed")[:done]] == [row["loss"] for row in history("whole")]


def assert_same_state(one, other):
    """Hold two checkpoints to the same parameters, moments, generator and updates, bit for bit."""
    tensors, expected = load_file(one), load_file(other)
    assert tensors.keys() == expected.keys()
    for name, numbers in expected.items():
        assert tensors[name].tobytes() == numbers.tobytes(), name
    metadata, expected = read_metadata(one), read_metadata(other)
    for name in ("rng", "step", "tokens", "tokens_sha256", "tokenizer", "config"):
        assert metadata[name] == expected[name], name


def test_half_written_files_of_the_dead_are_removed_at_a_resume(stop_after, folder):
    stop_after(1)
    train("--steps", "2")
    stop_after(None)
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    dead = folder / f"runs/001/.step-000002.safetensors.{child.pid}.tmp"
    alive = folder / f"runs/001/.step-000002.safetensors.{os.getppid()}.tmp"
    others = [folder / "runs/001/.notes.tmp", folder / f"runs/001/.diary.{child.pid}.tmp"]
    for path in (dead, alive, *others):
        path.write_bytes(b"half of it")
    assert main(["train", "--resume"]) == 0
    assert (dead.exists(), alive.exists()) == (False, True)
    assert all(path.exists() for path in others)


@pytest.mark.parametrize(("number", "status", "by"), [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "SIGTERM")])
def test_a_signal_ends_the_run_saved_and_says_how_to_go_on(stop_after, capsys, number, status, by):
    stop_after(2, number)
    assert train("--steps", "9", "--out", "mein lauf") == status
    told = capsys.readouterr()
    (line,) = told.err.splitlines()
    assert f"stopped by {by} after update 2 of 9, saved as {Path('mein lauf/step-000002.safetensors')}" in line
    assert line.endswith("numpy-gpt train --resume 'mein lauf'")
    assert "this model" not in told.out
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    stop_after(None)
    assert main(["train", "--resume", "mein lauf"]) == 0
    assert "Going on with mein lauf after update 2" in capsys.readouterr().out


@pytest.mark.skipif(os.name != "posix", reason="Windows ends a process without asking it")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_from_outside(folder, number, status):
    command = [sys.executable, "-m", "numpy_gpt", "train", "--data", "words.txt", *TINY, "--save-every", "5"]
    with subprocess.Popen([*command, "--steps", "1000000"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as run:
        while not list(folder.glob("runs/001/step-*")) and run.poll() is None:
            time.sleep(0.01)
        run.send_signal(number)
        _, error = run.communicate(timeout=60)
    assert run.returncode == status
    first, last = error.decode().strip().splitlines()
    assert first.startswith("Finishing the update in hand")
    assert "--resume" in last


def test_a_second_ctrl_c_ends_at_once(stop_after, capsys, monkeypatch):
    stop_after(2)
    evaluations = []

    def evaluate_and_interrupt(*arguments):
        evaluations.append(arguments)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(run_module, "save_step", evaluate_and_interrupt)
    assert train("--steps", "9") == 130
    assert len(evaluations) == 1
    assert capsys.readouterr().err == "numpy-gpt: interrupted\n"


def test_a_signal_at_the_last_update_lets_the_run_end_well(stop_after):
    stop_after(3)
    assert train("--steps", "3") == 0


def test_in_another_thread_there_are_no_signals_and_no_error():
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(train, "--steps", "1").result() == 0


def test_the_newest_and_the_best_are_kept(monkeypatch):
    losses = iter([math.nan, 1.0, 2.5, math.nan, 2.0, 1.5])
    monkeypatch.setattr("numpy_gpt.training.evaluate", lambda model, tokens, B: next(losses))
    train("--steps", "6", "--eval-every", "1", "--keep", "2", "--overwrite", "--out", "run")
    steps = [name for name in files("run") if name.startswith("step-")]
    assert steps == ["step-000002.safetensors", "step-000005.safetensors", "step-000006.safetensors"]


def test_overwrite_leaves_no_checkpoint_of_the_run_before():
    train("--steps", "5", "--out", "run")
    train("--steps", "3", "--out", "run", "--overwrite")
    assert files("run") == ["loss.csv", "loss.png", "model.safetensors", "step-000003.safetensors"]


def test_overwrite_keeps_the_run_before_until_there_is_another(capsys):
    train("--steps", "5", "--out", "run")
    before = files("run")
    assert train("--steps", "5", "--out", "run", "--overwrite", "--lr", "1e30", "--warmup", "0") == 1
    assert files("run") == before


def test_overwrite_keeps_the_run_before_where_the_first_checkpoint_fails(capsys):
    """The weights overflow in the last update, of which no gradient tells."""
    train("--steps", "5", "--out", "run")
    before = {path.name: path.read_bytes() for path in Path("run").iterdir()}
    lost = ["--steps", "1", "--lr", "1e39", "--min-lr", "0", "--warmup", "0", "--weight-decay", "0"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert train(*lost, "--out", "run", "--overwrite") == 1
    assert "not written, because" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in Path("run").iterdir()} == before


TRAIN = [sys.executable, "-m", "numpy_gpt", "train", "--data", "words.txt", *TINY, "--eval-every", "1"]


@pytest.mark.skipif(os.name != "posix", reason="Windows has other words for a lost reader")
def test_a_run_whose_reader_goes_is_saved_and_says_so(folder):
    with subprocess.Popen([*TRAIN, "--steps", "1000000"], stderr=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        for line in run.stdout:
            if line.startswith(b"update"):
                break
        run.stdout.close()
        error = run.stderr.read().decode()
        run.wait(timeout=60)
    assert run.returncode == 128 + 13
    (line,) = error.splitlines()
    assert "stopped by the loss of its output (Broken pipe) after update" in line
    assert "go on with: numpy-gpt train --resume" in line
    assert str(max(Path("runs/001").glob("step-*"))) in line


@pytest.mark.skipif(os.name != "posix", reason="Windows ends a process without asking it")
def test_a_ctrl_c_that_ends_the_reader_too_still_says_how_to_go_on(folder):
    """As in `numpy-gpt train | tee log`."""
    argv = [*TRAIN[:-1], "1000000", "--save-every", "5", "--steps", "1000000"]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        while not list(folder.glob("runs/001/step-*")) and run.poll() is None:
            time.sleep(0.01)
        run.stdout.close()
        run.send_signal(signal.SIGINT)
        error = run.stderr.read().decode()
    assert run.returncode == 130
    assert "stopped by Ctrl-C after update" in error
    assert "go on with: numpy-gpt train --resume" in error


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="no device that is always full")
def test_output_without_room_is_told_in_one_line():
    with FULL.open("w") as full, subprocess.Popen([*TRAIN, "--steps", "9"], stderr=subprocess.PIPE, stdout=full) as run:
        (line,) = run.stderr.read().decode().splitlines()
    assert "No space left on device" in line
    assert run.returncode == 2


def test_a_run_ended_while_its_picture_is_drawn_is_finished_by_a_resume(monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "draw_history", interrupted)
        assert train("--steps", "3") == 130
    assert main(["train", "--resume"]) == 0
    assert {"loss.png", "model.safetensors"} <= set(files("runs/001"))


def test_a_folder_with_no_name_is_refused(capsys):
    assert "out is empty" in error_line(capsys, "train", "--data", "words.txt", *TINY, "--out", "")
    assert not Path("loss.csv").exists()


@pytest.fixture
def stopped(stop_after, capsys):
    """A run of 6 updates, with a checkpoint at 2 and 4, stopped at 4."""
    stop_after(4)
    train("--steps", "6", "--save-every", "2", "--seed", "3")
    stop_after(None)
    capsys.readouterr()
    return Path("runs/001")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--steps", "8"], ["steps was 6, not 8", "--change"]),
        (["--lr", "1e-4", "--B", "3"], ["lr was 0.001, not 0.0001", "B was 2, not 3", "--change"]),
        (["--data", "other.txt"], ["other.txt is not the text", "--change"]),
        (["--d", "24", "--change"], ["d was 12, not 24", "new run"]),
        (["--seed", "4", "--change"], ["seed was 3, not 4", "new run"]),
        (["--no-causal"], ["causal was True, not False"]),
        (["--steps", "3", "--change"], ["4 updates are done"]),
        (["--data", "stdlib", "--change"], ["stdlib", "not the text"]),
        (["--out", "elsewhere"], ["--out"]),
        (["--device", "tpu"], ["device was cpu, not tpu"]),
    ],
)
def test_changed_settings_are_named_and_refused(stopped, capsys, flags, words):
    Path("other.txt").write_text("the mat. sät on a cat\n" * 100, encoding="utf-8")
    before = files(stopped)
    line = error_line(capsys, "train", "--resume", str(stopped), *flags)
    for word in (*words, "stdlib" if "stdlib" in flags else "--out" if "--out" in flags else str(stopped)):
        assert word in line
    assert files(stopped) == before


def test_settings_that_are_given_again_are_no_change(stopped):
    again = ["--steps", "6", "--data", "words.txt", "--seed", "3", "--workers", "2"]  # 2 by default
    assert main(["train", "--resume", str(stopped), *again]) == 0


@pytest.mark.parametrize("flags", [["--steps", "8"], ["--lr", "1e-4"], ["--data", "other.txt"], ["--B", "3"]])
def test_changed_settings_with_leave(stopped, flags):
    Path("other.txt").write_text("the mat. sät on a cat\n" * 100, encoding="utf-8")
    assert main(["train", "--resume", str(stopped), *flags, "--change"]) == 0
    steps = 8 if "--steps" in flags else 6
    rows = history(stopped)
    assert [row["step"] for row in rows] == [str(number) for number in range(1, steps + 1)]
    assert int(rows[-1]["tokens"]) == 4 * 16 + (steps - 4) * (24 if "--B" in flags else 16)


def test_what_bears_on_no_number_may_change(stopped):
    assert main(["train", "--resume", str(stopped), "--keep", "1", "--save-every", "1", "--sample", "3"]) == 0
    assert [name for name in files(stopped) if name.startswith("step-")] == ["step-000006.safetensors"]


def test_a_finished_run_goes_on_with_more_steps(capsys):
    train("--steps", "3")
    assert "3 updates are done already" in error_line(capsys, "train", "--resume")
    assert main(["train", "--resume", "--steps", "5", "--change"]) == 0
    assert read_metadata("runs/001/model.safetensors")["step"] == 5


def test_a_run_that_died_after_its_last_update_is_finished(capsys):
    train("--steps", "3")
    finished = Path("runs/001/model.safetensors").read_bytes()
    for name in ("model.safetensors", "loss.png"):
        (Path("runs/001") / name).unlink()
    assert main(["train", "--resume"]) == 0
    assert Path("runs/001/model.safetensors").read_bytes() == finished


@pytest.mark.skipif(os.name != "posix", reason="Windows has no lock on a folder")
def test_a_run_that_another_process_trains_is_left_to_it(stopped, capsys):
    before = {path.name: path.read_bytes() for path in stopped.iterdir()}
    with held_alone(stopped):
        assert "another process is training into it" in error_line(capsys, "train", "--resume", str(stopped))
    assert {path.name: path.read_bytes() for path in stopped.iterdir()} == before
    assert main(["train", "--resume", str(stopped)]) == 0


def test_nothing_to_go_on_from(capsys, folder):
    assert "train first" in error_line(capsys, "train", "--resume")
    assert "absent: no such folder" in error_line(capsys, "train", "--resume", "absent")
    (folder / "empty").mkdir()
    assert "empty: holds no checkpoint" in error_line(capsys, "train", "--resume", "empty")
    assert "--change goes with --resume" in error_line(capsys, "train", "--change")


def test_the_newest_that_verifies_is_taken(stopped, capsys):
    path = stopped / "step-000004.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert main(["sample", "--n", "5"]) == 0
    assert "Passed over: " in capsys.readouterr().err
    assert main(["train", "--resume"]) == 0
    told = capsys.readouterr().out.replace("\n", "")
    assert f"Passed over: {path}: " in told
    assert "after update 2" in told
    train("--steps", "6", "--save-every", "2", "--seed", "3")
    assert path.read_bytes() == Path("runs/002/step-000004.safetensors").read_bytes()


def test_no_checkpoint_verifies(stopped, capsys):
    for path in stopped.glob("step-*"):
        path.write_bytes(b"")
    for argv in (["train", "--resume"], ["sample"], ["evaluate", "words.txt"]):
        line = error_line(capsys, *argv)
        assert "no checkpoint verifies" in line
        assert "step-000002.safetensors" in line


def test_sample_takes_a_newer_checkpoint_before_the_finished_model(stop_after, capsys):
    train("--steps", "3")
    stop_after(4)
    assert main(["train", "--resume", "--steps", "9", "--change"]) == 130
    assert [path.name for path in checkpoint_files(Path("runs/001"))] == [
        "step-000004.safetensors",
        "model.safetensors",
        "step-000003.safetensors",
    ]


@pytest.mark.parametrize("damage", ["", "step,loss\n1,2\n", "gone"])
def test_a_lost_history_does_not_stop_the_run(stopped, capsys, damage):
    (stopped / "loss.csv").unlink() if damage == "gone" else (stopped / "loss.csv").write_text(damage, encoding="utf-8")
    assert main(["train", "--resume"]) == 0
    assert "begins anew" in capsys.readouterr().out.replace("\n", " ")
    assert [row["step"] for row in history(stopped)] == ["5", "6"]


def test_rows_after_the_checkpoint_are_dropped(stopped):
    train("--steps", "6", "--save-every", "2", "--seed", "3")
    (stopped / "loss.csv").write_bytes(Path("runs/002/loss.csv").read_bytes())
    main(["train", "--resume", str(stopped)])
    assert history(stopped) == history("runs/002")


def rewrite(path, **changes):
    """Write a checkpoint again, its checksum right, with some of its metadata changed."""
    model, moments, metadata = read_checkpoint(path, with_moments=True)
    optimiser = AdamW(model.params)
    optimiser.m, optimiser.v = moments
    save_checkpoint(path, model, optimiser, **metadata | changes)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"setup": None}, "setup"),
        ({"schedule": []}, "schedule"),
        ({"setup": {"sneaky": 1}}, "sneaky"),
        ({"schedule": {"steps": "6"}}, "steps"),
        ({"schedule": {"steps": -6}}, "steps"),
        ({"setup": {"preset": "gpt2"}}, "fit"),
        ({"tokenizer": {"kind": "pickle"}}, "tokenizer"),
        ({"tokenizer": 7}, "tokenizer"),
        ({"rng": {"bit_generator": "MT19937"}}, "rng"),
        ({"rng": 7}, "rng"),
        ({"step": "4"}, "step"),
        ({"step": True}, "step"),
        ({"tokens": None}, "tokens"),
    ],
)
def test_metadata_that_makes_no_run_names_the_file(stopped, capsys, changes, word):
    rewrite(stopped / "step-000004.safetensors", **changes)
    line = error_line(capsys, "train", "--resume")
    assert "step-000004.safetensors" in line
    assert word in line


def test_a_model_alone_is_not_gone_on_from(capsys, folder):
    (folder / "run").mkdir()
    train("--steps", "2")
    (folder / "runs/001/model.safetensors").rename(folder / "run/step-000002.safetensors")
    assert "without the optimiser's moments" in error_line(capsys, "train", "--resume", "run")


# A disk that is full, a folder that cannot be written to

LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
from numpy_gpt.cli import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.skipif(os.name != "posix", reason="limits the size of files")
@pytest.mark.parametrize("limit", [1000, 20_000])
def test_a_full_disk_is_one_line_and_leaves_the_older_checkpoint(stopped, limit):
    before = {path.name: path.read_bytes() for path in stopped.glob("step-*")}
    command = [sys.executable, "-c", LIMITED, str(limit), "train", "--resume"]
    result = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60)
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert "runs/001/step-000006.safetensors" in line or (limit == 1000 and "runs/001/loss.csv" in line)
    assert {path.name: path.read_bytes() for path in stopped.glob("step-*")} == before
    assert not list(stopped.glob(".*"))
    assert main(["train", "--resume"]) == 0


@pytest.mark.parametrize("argv", [["train", "--resume"], ["train", "--out", "runs/001", "--overwrite"]])
def test_a_read_only_folder_is_one_line_before_any_training(stopped, capsys, monkeypatch, argv):
    def refuse(*arguments, **settings):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    monkeypatch.setattr(run_module, "train", None)
    before = files(stopped)
    assert "001: cannot write to it: Permission denied" in error_line(capsys, *argv)
    assert files(stopped) == before


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="has no folder that even root cannot write to")
def test_a_folder_that_is_read_only_indeed(capsys):
    line = error_line(capsys, "train", "--data", "words.txt", *TINY, "--out", "/sys/kernel")
    assert line.startswith("numpy-gpt: /sys/kernel: cannot write to it: ")
