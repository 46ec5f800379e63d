"""A run's folder: its checkpoints, its history, and which of them to go on from.

    step-000500.safetensors   all that it takes to go on after update 500; the newest few and the best are kept
    model.safetensors         the finished model: parameters and tokenizer
    loss.csv                  one row an update
    loss.png                  the same, drawn

Whoever reads a folder gets its newest checkpoint that verifies, the one with the most updates.
"""

from __future__ import annotations

import csv
import math
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from .backend import Array, device_module
from .checkpoint import (
    HEADER,
    Checkpoint,
    load_checkpoint,
    read_checkpoint,
    read_metadata,
    writing_checkpoint,
)
from .files import atomic_write, check_writable, naming
from .model import Model
from .pretrained import load_exactly
from .stored import read_header
from .tokenizer import GPT2Tokenizer, Tokenizer, tokenizer_from_dict
from .training import Progress, State

RUNS = Path("runs")
FINISHED = "model.safetensors"
HISTORY = "loss.csv"
PICTURE = "loss.png"
STEP = re.compile(r"step-(\d{6,15})\.safetensors")
OURS = re.compile("|".join([STEP.pattern, *map(re.escape, (FINISHED, HISTORY, PICTURE))]))  # all that a run writes


@contextmanager
def new_folder(out: str | None, overwrite: bool) -> Iterator[Path]:
    """Make and yield the folder of a new run; take it away again if nothing came to stand in it.

    Raises ValueError where it holds what a run writes already, unless overwrite, and OSError where
    nothing can be written to it: better now than after the training.
    """
    folder, made = next_numbered(RUNS) if out is None else made_or_there(Path(out))
    held = results(folder)
    if held and not overwrite:
        raise ValueError(f"{held[0]} is there already; choose another --out, or give --overwrite")
    try:
        check_writable(folder)
        with held_alone(folder):
            yield folder
    finally:
        if made and not any(folder.iterdir()):
            folder.rmdir()


@contextmanager
def held_alone(folder: Path) -> Iterator[None]:
    """Keep other processes of ours from training into folder until the end, however it comes (not on Windows).

    Raises ValueError where one does so already, and where there is no such folder.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder of a run")
    if os.name != "posix":
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if is_locked_by_another(descriptor):
            raise ValueError(f"{folder}: another process is training into it")
        yield
    finally:
        os.close(descriptor)  # and with it the lock, as where the process is killed


def is_locked_by_another(descriptor: int) -> bool:
    """Lock what the descriptor stands for, or return True; a file system that knows no locks has none."""
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def results(folder: Path) -> list[Path]:
    """Return the files in folder that have the names of a run's."""
    return sorted(path for path in folder.iterdir() if OURS.fullmatch(path.name))


def next_numbered(runs: Path) -> tuple[Path, bool]:
    """Make the folder with the next free number in runs, also where another process does so at the same time."""
    made_or_there(runs)
    number = max((int(path.name) for path in runs.iterdir() if path.name.isdecimal()), default=0)
    while True:
        number += 1
        folder, made = made_or_there(runs / f"{number:03d}")
        if made:
            return folder, made


def made_or_there(folder: Path) -> tuple[Path, bool]:
    """Make folder where there is none; return it, and whether it was made. Raises OSError, naming folder."""
    try:
        folder.mkdir(parents=True)
        return folder, True
    except FileExistsError:
        if not folder.is_dir():
            raise OSError(f"{folder}: is a file, not a folder") from None
        return folder, False
    except OSError as error:
        raise OSError(f"{folder}: cannot make the folder: {error.strerror or error}") from error


def step_file(folder: Path, step: int) -> Path:
    """Return the path of the checkpoint after update number step."""
    return folder / f"step-{step:06d}.safetensors"


def step_files(folder: Path) -> dict[int, Path]:
    """Return the checkpoints to go on from, by the number of updates done, newest first."""
    found = {int(match[1]): path for path in folder.glob("step-*") if (match := STEP.fullmatch(path.name))}
    return dict(sorted(found.items(), reverse=True))


def checkpoint_files(folder: Path) -> list[Path]:
    """Return all checkpoints in folder, newest first; of two with as many updates, the finished model."""
    by_step = step_files(folder)
    files = list(by_step.values())
    finished = folder / FINISHED
    if finished.exists():
        try:
            step = read_metadata(finished).get("step")
        except ValueError:
            step = None  # whoever reads it is told what is wrong with it
        n_newer = sum(other > step for other in by_step) if isinstance(step, int) else 0
        files.insert(n_newer, finished)
    return files


class Found(NamedTuple):
    """A checkpoint that verified, and what was wrong with each newer one."""

    path: Path
    checkpoint: Checkpoint
    refused: list[str]


def newest_that_verifies(folder: Path, xp: ModuleType = np, with_moments: bool = False) -> Found:
    """Return the newest checkpoint in folder that verifies; with moments, one to go on from.

    Raises ValueError, naming the folder, where there is none, or none that verifies.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder of a run")
    refused: list[str] = []
    for path in step_files(folder).values() if with_moments else checkpoint_files(folder):
        try:
            return Found(path, read_checkpoint(path, xp, with_moments), refused)
        except ValueError as error:
            refused.append(str(error))
    if refused:
        raise ValueError(f"{folder}: no checkpoint verifies: {'; '.join(refused)}")
    raise ValueError(f"{folder}: holds no checkpoint{' to go on from' if with_moments else ''}")


def newest_run(xp: ModuleType = np, with_moments: bool = False) -> tuple[Path, Found]:
    """Return the folder in runs/ with the newest checkpoints of which one verifies, and that one.

    Newer folders of which none does are named on stderr. Raises ValueError where there is none.
    """
    written = {folder: last_written(folder) for folder in RUNS.glob("*/") if checkpoint_files(folder)}
    if not written:
        raise ValueError(f"no checkpoint in {RUNS}/: train first (numpy-gpt train), or name one")
    refused = []
    for folder in sorted(written, key=lambda folder: written[folder], reverse=True):
        try:
            found = newest_that_verifies(folder, xp, with_moments)
        except ValueError as error:
            refused.append(str(error))
            continue
        for line in refused:
            print(f"Passed over: {line}", file=sys.stderr)
        return folder, found
    raise ValueError("; ".join(refused))


def last_written(folder: Path) -> float:
    """Return when the newest checkpoint in folder was written; one that is pruned meanwhile counts no more."""
    times = [0.0]
    for path in checkpoint_files(folder):
        with suppress(FileNotFoundError):
            times.append(path.stat().st_mtime)
    return max(times)


def is_ours(source: Path | str) -> bool:
    """Return whether source is a checkpoint of ours, or the folder of a run, not weights as Hugging Face keeps them."""
    path = Path(source)
    if path.is_dir():
        if step_files(path):
            return True
        path = path / FINISHED
    return path.is_file() and path.suffix != ".json" and HEADER in read_header(path)[1]  # .json: an index of shards


def load_ours(source: Path | str | None, xp: ModuleType = np) -> tuple[Path, Model, dict[str, Any]]:
    """Return a checkpoint's path, its model and its metadata; source is the checkpoint, or the folder of its run.

    Of a folder it is the newest checkpoint that verifies; newer ones that do not are named on stderr.
    None is the newest run.
    """
    if source is not None and not Path(source).is_dir():
        return Path(source), *load_checkpoint(source, xp)
    found = newest_run(xp)[1] if source is None else newest_that_verifies(Path(source), xp)
    path, (model, _, metadata), refused = found
    for line in refused:
        print(f"Passed over: {line}", file=sys.stderr)
    return path, model, metadata


def load_run(source: str | None, device: str) -> tuple[Model, Tokenizer]:
    """Return a model and its tokenizer: a checkpoint's, a run's, or GPT-2's as Hugging Face keeps it.

    source  a checkpoint, the folder of a run, or what `load_pretrained` takes: a folder of Hugging
            Face's, or a name to download by; None is the newest run

    Raises ValueError, naming the file, where the two do not fit each other.
    """
    xp = device_module(device)
    if source is not None and not is_ours(source):
        model = load_exactly(source, xp)
        if model.config.V != GPT2Tokenizer.V:
            raise ValueError(f"{source}: holds no tokenizer, and V = {model.config.V} is not GPT-2's {GPT2Tokenizer.V}")
        return model, GPT2Tokenizer()
    path, model, metadata = load_ours(source, xp)
    if "tokenizer" not in metadata:
        raise ValueError(f"{path}: holds no tokenizer")
    with naming(path):
        tokenizer = tokenizer_from_dict(metadata["tokenizer"])
    if tokenizer.V != model.config.V:
        raise ValueError(f"{path}: the tokenizer has {tokenizer.V} tokens, the model V = {model.config.V}")
    return model, tokenizer


def save_step(folder: Path, model: Model, state: State, keep: int, metadata: dict[str, Any]) -> Path:
    """Write the history and all that it takes to go on; remove what is older, but for the last `keep` and the best.

    Nothing in the checkpoint depends on the clock: the same run writes the same bytes.

    Raises OSError where it cannot be written; older checkpoints and their history are then untouched.
    """
    step = state.optimiser.t
    path = step_file(folder, step)
    held_out_loss = state.history[-1].held_out_loss
    place = dict(step=step, tokens=state.tokens, rng=state.rng.bit_generator.state, held_out_loss=held_out_loss)
    with writing_checkpoint(path, model, state.optimiser, metadata | place):
        write_history(folder / HISTORY, state.history)
    saved = {file: told_loss(file) for number, file in step_files(folder).items() if number <= step}  # newest first
    best = min(reversed(saved), key=lambda file: saved[file])
    for file in list(saved)[keep:]:
        if file != best or saved[file] == math.inf:
            file.unlink(missing_ok=True)
    return path


def told_loss(path: Path) -> float:
    """Return the held-out loss that a checkpoint tells of; inf where it tells of none."""
    try:
        loss = read_metadata(path).get("held_out_loss")
    except ValueError:  # damaged: whoever reads it is told what is wrong with it
        return math.inf
    return loss if isinstance(loss, (int, float)) and math.isfinite(loss) else math.inf


def restore(state: State, moments: tuple[Array, Array], metadata: dict[str, Any]) -> None:
    """Move state, that of a start, to where metadata and moments were saved.

    Raises ValueError where they do not make a state.
    """
    step, tokens = metadata.get("step"), metadata.get("tokens")
    for name, value in (("step", step), ("tokens", tokens)):
        if type(value) is not int or not 1 <= value < 2**63:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r:.80}")
    try:
        state.rng.bit_generator.state = metadata["rng"]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError("rng is not the state of a generator") from error
    state.optimiser.m, state.optimiser.v = moments
    state.optimiser.t, state.tokens = metadata["step"], metadata["tokens"]


NAMES = [item.name for item in fields(Progress) if item.name != "shares"]


def write_history(path: Path, history: list[Progress]) -> None:
    """Write one row an update: step, loss, lr, grad_norm, seconds, tokens, held_out_loss."""
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(NAMES)
        rows.writerows([getattr(progress, name) for name in NAMES] for progress in history)


def read_history(path: Path, step: int) -> list[Progress]:
    """Return what `write_history` wrote, up to update number step.

    Raises ValueError, naming path, where it cannot be read or has no such row.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            if rows.fieldnames != NAMES:
                raise ValueError(f"its columns are not {', '.join(NAMES)}")
            history = [read_row(row) for row in rows]
    except OSError as error:
        raise ValueError(f"{path}: cannot read it: {error.strerror}") from error
    except (ValueError, TypeError, csv.Error) as error:
        raise ValueError(f"{path}: not the history of a run: {error}") from error
    history = [progress for progress in history if progress.step <= step]
    if [progress.step for progress in history] != list(range(step - len(history) + 1, step + 1)) or not history:
        raise ValueError(f"{path}: does not hold every update up to {step}")
    return history


def read_row(row: dict[str, str]) -> Progress:
    """Return one row of loss.csv as the update it tells of."""
    loss, lr, grad_norm, seconds = (float(row[name]) for name in ("loss", "lr", "grad_norm", "seconds"))
    held_out_loss = float(row["held_out_loss"]) if row["held_out_loss"] else None
    if not math.isfinite(seconds):
        raise ValueError(f"seconds is {seconds}")
    return Progress(int(row["step"]), loss, lr, grad_norm, seconds, int(row["tokens"]), {}, held_out_loss)
