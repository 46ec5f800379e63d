"""The folder of a run: which checkpoint is the newest, which stay, and the history beside them."""

import math
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from numpy_gpt import Config, Model
from numpy_gpt.checkpoint import save_checkpoint
from numpy_gpt.files import check_writable
from numpy_gpt.runs import (
    checkpoint_files,
    held_alone,
    is_ours,
    load_ours,
    load_run,
    new_folder,
    newest_run,
    newest_that_verifies,
    next_numbered,
    read_history,
    restore,
    results,
    save_step,
    step_file,
    step_files,
    write_history,
)
from numpy_gpt.tokenizer import ByteTokenizer, CharTokenizer
from numpy_gpt.training import Progress, Schedule, start

CONFIG = Config(V=5, T_max=4, d=4, h=2, L=1)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def progress(step, held_out_loss=None):
    return Progress(step, 1 / step, 1e-3, 0.5, 0.25 * step, 48 * step, {}, held_out_loss)


def run_of(folder, losses, keep):
    """Save a step for each held-out loss, as a training run would."""
    model = Model(CONFIG)
    state = start(model, Schedule())
    for step, held_out_loss in enumerate(losses, 1):
        state.optimiser.t = step
        state.tokens = 48 * step
        state.history.append(progress(step, held_out_loss))
        save_step(folder, model, state, keep, {})
    return model, state


@pytest.mark.parametrize(
    ("losses", "keep", "kept"),
    [
        ([4, 3, 2, 1], 2, [4, 3]),
        ([4, 1, 2, 3], 2, [4, 3, 2]),  # the best besides
        ([1, 4, 2, 3], 1, [4, 1]),
        ([math.nan, 2, math.inf, 3], 1, [4, 2]),  # no loss at all is not the best
        ([None, None, None], 1, [3]),
    ],
)
def test_the_last_and_the_best_stay(folder, losses, keep, kept):
    run_of(folder, losses, keep)
    assert list(step_files(folder)) == kept


def test_files_by_the_updates_done(folder):
    for step in (9, 10, 123456789):
        step_file(folder, step).write_bytes(b"")
    for other in ("step-1.safetensors", "step-000011.txt", "step-000012.safetensors.tmp", "other.safetensors"):
        (folder / other).write_bytes(b"")
    assert list(step_files(folder)) == [123456789, 10, 9]
    assert checkpoint_files(folder)[0].name == "step-123456789.safetensors"
    assert {path.name for path in results(folder)} == {path.name for path in step_files(folder).values()}


@pytest.mark.parametrize(("step", "place"), [(0, 2), (1, 1), (2, 0), (3, 0), (None, 0)])
def test_the_finished_model_stands_among_the_steps(folder, step, place):
    model, _ = run_of(folder, [2, 1], keep=2)
    save_checkpoint(folder / "model.safetensors", model, **({} if step is None else {"step": step}))
    names = [path.name for path in checkpoint_files(folder)]
    assert names.index("model.safetensors") == place
    assert len(names) == 3


def test_a_damaged_newest_is_passed_over_and_told(folder, capsys):
    model, _ = run_of(folder, [3, 2, 1], keep=3)
    newest = step_file(folder, 3)
    newest.write_bytes(newest.read_bytes()[:-1])
    path, checkpoint, (refused,) = newest_that_verifies(folder, with_moments=True)
    assert path == step_file(folder, 2)
    assert checkpoint.model.params.flat.tobytes() == model.params.flat.tobytes()
    assert refused.startswith(f"{newest}: ")
    path, _, metadata = load_ours(folder)
    assert (path, metadata["step"]) == (step_file(folder, 2), 2)
    assert capsys.readouterr().err == f"Passed over: {refused}\n"


def test_no_checkpoint_to_be_had(folder):
    with pytest.raises(ValueError, match=r"absent: no such folder"):
        newest_that_verifies(folder / "absent")
    with pytest.raises(ValueError, match=r"holds no checkpoint$"):
        newest_that_verifies(folder)
    save_checkpoint(folder / "model.safetensors", Model(CONFIG))  # without moments
    with pytest.raises(ValueError, match="holds no checkpoint to go on from"):
        newest_that_verifies(folder, with_moments=True)
    step_file(folder, 1).write_bytes(b"\0" * 9)
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=r"no checkpoint verifies: .*model\.safetensors.*; .*step-000001"):
        newest_that_verifies(folder)


def test_runs_are_numbered_and_empty_ones_go(folder):
    (folder / "runs" / "007").mkdir(parents=True)
    (folder / "runs" / "notes").mkdir()
    with new_folder(None, overwrite=False) as path:
        assert path.name == "008"
        assert path.is_dir()
    assert not path.exists()  # nothing came to stand in it
    with new_folder(None, overwrite=False) as path:
        save_checkpoint(path / "model.safetensors", Model(CONFIG))
    with pytest.raises(ValueError, match=r"model\.safetensors is there already"), new_folder(str(path), False):
        pass
    with new_folder(str(path), overwrite=True):
        pass
    assert checkpoint_files(path)


def test_what_a_run_would_write_over_is_refused(folder):
    """Whether it comes from a run or not."""
    for name in ("loss.csv", "loss.png", "model.safetensors", "step-000001.safetensors"):
        path = folder / name.replace(".", " ") / name
        path.parent.mkdir()
        path.write_text("mine")
        with pytest.raises(ValueError, match=f"{name} is there already"), new_folder(str(path.parent), False):
            pass
        with new_folder(str(path.parent), overwrite=True):
            pass
        assert path.read_text() == "mine"
    (folder / "notes").mkdir()
    (folder / "notes" / "notes.csv").touch()
    with new_folder(str(folder / "notes"), False):
        pass


@pytest.mark.skipif(os.name != "posix", reason="Windows has no lock on a folder")
def test_a_folder_in_hand_is_no_one_elses(folder):
    with new_folder("run", overwrite=False) as path:
        (path / "notes").touch()
        with pytest.raises(ValueError, match="run: another process is training into it"), held_alone(path):
            pass
        with pytest.raises(ValueError, match="another process"), new_folder("run", overwrite=True):
            pass
    with held_alone(path):
        pass


def test_a_file_is_no_folder(folder):
    (folder / "file").touch()
    with pytest.raises(OSError, match="file: is a file, not a folder"), new_folder("file", False):
        pass
    with pytest.raises(OSError, match=r"below: cannot make the folder: "), new_folder("file/below", False):
        pass


def test_runs_that_begin_at_the_same_time_have_folders_of_their_own(folder):
    n = 8
    together = threading.Barrier(n)

    def begin(_):
        together.wait()
        return next_numbered(folder / "runs")

    with ThreadPoolExecutor(n) as threads:
        for _ in range(5):
            found = list(threads.map(begin, range(n)))
            assert all(made for _, made in found)
            assert len({path for path, _ in found}) == n


def test_the_newest_run_is_one_that_verifies(folder, capsys):
    for number, name in enumerate(("damaged", "good", "older")):
        path = folder / "runs" / name / "model.safetensors"
        path.parent.mkdir(parents=True)
        save_checkpoint(path, Model(CONFIG))
        if name == "damaged":
            path.write_bytes(path.read_bytes()[:-1])
        os.utime(path, (1000 - number, 1000 - number))
    assert newest_run()[0].name == "good"
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"Passed over: {Path('runs/damaged')}: no checkpoint verifies: ")
    with pytest.raises(ValueError, match=r"older: holds no checkpoint to go on from"):
        newest_run(with_moments=True)


def test_the_best_is_known_without_the_history(folder):
    model, state = run_of(folder, [3, 1, 2], 1)
    state.history = state.history[-1:]
    for step in (4, 5):
        state.optimiser.t = step
        state.history.append(progress(step, 4))
        save_step(folder, model, state, 1, {})
    assert list(step_files(folder)) == [5, 2]


def test_a_checkpoint_that_cannot_be_written_leaves_the_history_too(folder):
    model, state = run_of(folder, [3], 1)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    state.optimiser.t, state.history = 2, [*state.history, progress(2)]
    model.params["W_te"][0, 0] = math.inf
    with pytest.raises(FloatingPointError, match="W_te"):
        save_step(folder, model, state, 1, {})
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_the_newest_run(folder):
    with pytest.raises(ValueError, match="train first"):
        newest_run()
    for number, name in enumerate(("b", "a", "c")):
        path = folder / "runs" / name / "model.safetensors"
        path.parent.mkdir(parents=True)
        save_checkpoint(path, Model(CONFIG))
        os.utime(path, (1000 - number, 1000 - number))
    (folder / "runs" / "empty").mkdir()
    folder, found = newest_run()
    assert folder.name == "b"
    assert found.path == folder / "model.safetensors"


def test_runs_that_is_a_file_is_named(folder):
    (folder / "runs").touch()
    with pytest.raises(OSError, match=r"^runs: is a file, not a folder$"), new_folder(None, False):
        pass


@pytest.mark.skipif(os.name != "posix", reason="makes a link")
def test_a_checkpoint_that_is_pruned_meanwhile_is_no_error(folder):
    for number, name in enumerate(("newer", "older")):
        path = folder / "runs" / name / "model.safetensors"
        path.parent.mkdir(parents=True)
        save_checkpoint(path, Model(CONFIG))
        os.utime(path, (1000 - number, 1000 - number))
        step_file(path.parent, 9).symlink_to("gone")  # listed, and not there when it is asked for
    assert newest_run()[0].name == "newer"


def test_a_folder_that_cannot_be_written_to_is_named(folder):
    with pytest.raises(OSError, match=r"absent: cannot write to it"):
        check_writable(folder / "absent")
    check_writable(folder)
    assert not any(folder.iterdir())


def test_what_is_ours(folder):
    assert not is_ours(folder)
    assert not is_ours(folder / "absent.safetensors")
    save_checkpoint(folder / "model.safetensors", Model(CONFIG))
    assert is_ours(folder)
    assert is_ours(folder / "model.safetensors")
    Model(CONFIG).save_pretrained(folder / "theirs")
    assert not is_ours(folder / "theirs")
    (folder / "theirs" / "model.safetensors.index.json").write_text("{}")
    assert not is_ours(folder / "theirs" / "model.safetensors.index.json")


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        (None, "holds no tokenizer"),
        (ByteTokenizer().to_dict(), "the tokenizer has 256 tokens, the model V = 5"),
        ({"kind": "words"}, r"model\.safetensors: .*words"),
    ],
)
def test_a_tokenizer_that_does_not_fit_is_told_before_any_text(folder, tokenizer, message):
    tokenizers = {} if tokenizer is None else {"tokenizer": tokenizer}
    save_checkpoint(folder / "model.safetensors", Model(CONFIG), **tokenizers)
    with pytest.raises(ValueError, match=message):
        load_run(str(folder), "cpu")


def test_a_run_with_its_tokenizer(folder):
    tokenizer = CharTokenizer("abcde")
    model = Model(Config(V=tokenizer.V, T_max=4, d=4, h=2, L=1), seed=4)
    save_checkpoint(folder / "model.safetensors", model, tokenizer=tokenizer.to_dict())
    loaded, found = load_run(str(folder), "cpu")
    assert loaded.params.flat.tobytes() == model.params.flat.tobytes()
    assert found.to_dict() == tokenizer.to_dict()


def test_restore_goes_back_to_the_generator_and_the_moments(folder):
    model, state = run_of(folder, [1, 2], keep=1)
    state.rng.random(3)
    state.history.append(progress(3))
    state.optimiser.t, state.tokens = 3, 144
    expected = state.rng.bit_generator.state
    save_step(folder, model, state, 1, {})
    found = newest_that_verifies(folder, with_moments=True)
    other = start(Model(CONFIG), Schedule())
    restore(other, found.checkpoint.moments, found.checkpoint.metadata)
    assert other.rng.bit_generator.state == expected
    assert (other.optimiser.t, other.tokens) == (3, 144)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"step": 0, "tokens": 4}, "step must be .* got 0"),
        ({"step": True, "tokens": 4}, "step must be .* got True"),
        ({"step": 1}, "tokens must be .* got None"),
        ({"step": 1, "tokens": 10**400}, "tokens must be .* got 1000"),
        ({"step": 1, "tokens": 4, "rng": {"bit_generator": "PCG64"}}, "rng is not the state"),
    ],
)
def test_restore_refuses_what_makes_no_state(metadata, message):
    state = start(Model(CONFIG), Schedule())
    moments = state.optimiser.m, state.optimiser.v
    with pytest.raises(ValueError, match=message):
        restore(state, moments, metadata)


def test_history_there_and_back(folder):
    history = [progress(1), progress(2, 1.25), progress(3, math.inf)]
    write_history(folder / "loss.csv", history)
    assert read_history(folder / "loss.csv", 3) == history
    assert read_history(folder / "loss.csv", 2) == history[:2]
    with pytest.raises(ValueError, match=r"loss\.csv: does not hold every update up to 4"):
        read_history(folder / "loss.csv", 4)


@pytest.mark.parametrize(
    "damage", [lambda data: data[7:], lambda data: data + b"4,x\n", lambda data: b"", lambda data: b"\xff\xfe\0" * 50]
)
def test_a_file_that_is_no_history(folder, damage):
    path = folder / "loss.csv"
    write_history(path, [progress(1)])
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"loss\.csv: "):
        read_history(path, 1)
