"""What a file system like that of Windows refuses, refused here: our files are written and removed all the same.

Windows lets no one rename, replace or remove a file that is open or mapped, nor open a folder to sync
it, and ends the process that os.kill asks after.
"""

import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from numpy_gpt import Config, Model, files, run
from numpy_gpt.checkpoint import load_checkpoint, save_checkpoint
from numpy_gpt.cli import main

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="asks /proc which files are open"),
    pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10's pathlib keeps functions of os of its own"),
]

TINY = ["--preset", "tiny", "--T", "8", "--d", "12", "--L", "1", "--B", "2", "--sample", "0"]


def in_use(path):
    """Tell whether this process has the file open, or mapped into its memory."""
    real = os.path.realpath(path)
    if real in [os.path.realpath(descriptor) for descriptor in Path("/proc/self/fd").iterdir()]:
        return True
    return real in Path("/proc/self/maps").read_text("utf-8")


class LikeWindows:
    """`os` as files.py sees it there."""

    name = "nt"

    def __getattr__(self, name):
        return getattr(os, name)

    def open(self, path, *arguments):
        if Path(path).is_dir():
            raise PermissionError(13, "Permission denied", path)
        return os.open(path, *arguments)

    def kill(self, pid, number):
        raise AssertionError(f"os.kill({pid}, {number}) would end the process")


@pytest.fixture(autouse=True)
def like_windows(monkeypatch, tmp_path):
    """Refuse what Windows refuses; return the list of the names that files were replaced under or removed by."""
    changed = []

    def refusing(function):
        def change(*paths, **keywords):
            for path in paths:
                if in_use(path):
                    raise PermissionError(13, "The process cannot access the file, it is being used", str(path))
            changed.append(Path(paths[-1]).name)
            return function(*paths, **keywords)

        return change

    for name in ("replace", "rename", "unlink", "remove"):
        monkeypatch.setattr(os, name, refusing(getattr(os, name)))
    monkeypatch.setattr(files, "os", LikeWindows())
    monkeypatch.chdir(tmp_path)
    words = np.random.default_rng(0).choice(["the ", "cat ", "sät ", "on ", "a ", "mat.\n"], 500)
    (tmp_path / "wörter.txt").write_text("".join(words), encoding="utf-8")
    return changed


def test_the_stand_in_refuses(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(4096))
    with path.open("rb"), pytest.raises(PermissionError):
        path.unlink()
    mapped = np.memmap(path, mode="r")
    with pytest.raises(PermissionError):
        path.rename(tmp_path / "other")
    del mapped
    path.unlink()


def test_train_go_on_and_begin_anew(like_windows):
    train = ["train", "--data", "wörter.txt", *TINY, "--out", "läufe", "--save-every", "1", "--eval-every", "2"]
    assert main([*train, "--steps", "4"]) == 0
    Path("läufe/.step-000004.safetensors.1.tmp").touch()  # of a process that was killed; 1 lives, but not on Windows
    assert main(["train", "--resume", "läufe", "--steps", "6", "--change"]) == 0
    names = sorted(path.name for path in Path("läufe").iterdir())
    assert [name for name in names if name.startswith("step-")] == [
        "step-000005.safetensors",
        "step-000006.safetensors",
    ]
    assert not [name for name in names if name.endswith(".tmp")]
    assert like_windows.count("model.safetensors") == 2
    assert {f"step-00000{number}.safetensors" for number in range(1, 5)} <= set(like_windows)
    assert main([*train, "--steps", "2", "--overwrite"]) == 0
    assert main(["sample", "läufe", "--n", "3"]) == 0
    assert main(["evaluate", "wörter.txt", "--checkpoint", "läufe"]) == 0


def test_a_model_is_saved_over_the_files_that_it_came_from(like_windows):
    model = Model(Config(V=11, T_max=6, d=8, h=2, L=2))
    model.save_pretrained("modèle")
    model = Model.from_pretrained("modèle")
    model.save_pretrained("modèle")
    assert like_windows.count("model.safetensors") == 2
    assert like_windows.count("config.json") == 2
    save_checkpoint("prüfpunkt.safetensors", model)
    save_checkpoint("prüfpunkt.safetensors", load_checkpoint("prüfpunkt.safetensors")[0])
    assert like_windows.count("prüfpunkt.safetensors") == 2


def test_stops_where_it_is_told_to_and_saves(monkeypatch, capsys):
    """Ctrl-C: Windows has SIGINT, and a path in the line that tells how to go on is quoted as its shell reads it."""
    original = run.train

    def interrupted(model, tokens, held_out_tokens, schedule, report, stop, state, save):
        signal.raise_signal(signal.SIGINT)
        return original(model, tokens, held_out_tokens, schedule, report, stop, state, save)

    with monkeypatch.context() as patch:
        patch.setattr(run, "train", interrupted)
        patch.setattr(run, "os", LikeWindows())
        assert main(["train", "--data", "wörter.txt", *TINY, "--out", "meine läufe"]) == 130
    told = capsys.readouterr().err.strip().splitlines()[-1]
    assert told.endswith('go on with: numpy-gpt train --resume "meine läufe"')
    assert main(["train", "--resume", "meine läufe", "--steps", "3", "--change"]) == 0
