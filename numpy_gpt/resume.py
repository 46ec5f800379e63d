"""A run that was stopped, gone on with: its settings, its text, its state, and what may change."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

import numpy as np

from .backend import device_module
from .checkpoint import load_checkpoint, read_checkpoint
from .data import load_text
from .files import check_writable, naming, remove_stale
from .run import Run, Setup, complete, print_sample, sha256
from .runs import (
    FINISHED,
    HISTORY,
    OURS,
    held_alone,
    newest_run,
    newest_that_verifies,
    read_history,
    restore,
)
from .tokenizer import tokenizer_from_dict
from .training import Schedule, n_workers, start

if TYPE_CHECKING:
    from rich.console import Console

Settings = TypeVar("Settings")

# What a run keeps to its end, and what --resume may change at any time; the rest takes --change.
FIXED = ("tokenizer", "preset", "T", "d", "h", "L", "norm", "gelu", "tie", "causal", "scale", "dtype", "seed")
FREE = ("sample", "keep", "save_every")


def resume_training(folder: str | None, given: dict[str, Any], change: bool, console: Console) -> Path:
    """Go on with a run from its newest checkpoint that verifies; None is the newest run. Return its folder.

    given   settings by name, in place of the run's own; those that change its numbers need change
    change  let them, and another text: the run is then no longer the one it would have been

    The same settings on the same machine give the same bits as a run that was never stopped.

    Raises ValueError, naming what is wrong, where there is nothing to go on from, settings change
    without leave, or they can never change; Stopped as `run_training` does.
    """
    path = newest_run(with_moments=True)[0] if folder is None else Path(folder)
    with held_alone(path):
        run = resumed_run(path, given, change, console)
        check_writable(path)
        remove_stale(path, OURS)
        console.print(f"Going on with {path} after update {run.state.optimiser.t}", highlight=False)
        complete(run, path, console)
    print_sample(run, console)
    return path


def resumed_run(folder: Path, given: dict[str, Any], change: bool, console: Console) -> Run:
    """Return the run in folder as its newest checkpoint that verifies left it."""
    file, checkpoint, refused = newest_that_verifies(folder, with_moments=True)
    for line in refused:
        console.print(f"Passed over: {line}", style="yellow", highlight=False, markup=False)
    metadata = checkpoint.metadata
    with naming(file):
        old_setup = settings_from(Setup, metadata.get("setup"))
        old_schedule = settings_from(Schedule, metadata.get("schedule"))
        tokenizer = tokenizer_from_dict(metadata.get("tokenizer", {}))
        if old_setup.config(tokenizer.V) != checkpoint.model.config:
            raise ValueError("its settings and its model do not fit each other")
    setup, schedule = changed(old_setup, given), changed(old_schedule, given)
    if n_workers(old_schedule, checkpoint.model) == n_workers(schedule, checkpoint.model):
        old_schedule = replace(old_schedule, workers=schedule.workers)  # two ways to say the same
    text = load_text(setup.data)
    changes = differences(old_setup, setup) | differences(old_schedule, schedule)
    try:
        tokens = tokenizer.encode(text)
    except ValueError as error:
        raise ValueError(f"{setup.data}: not the text that the run began with: {error}") from error
    if sha256(tokens) != metadata.get("tokens_sha256"):
        changes["data"] = f"{setup.data} is not the text that the run began with"
    check_changes(folder, changes, change)

    xp = device_module(setup.device)
    if xp is not np:
        checkpoint = read_checkpoint(file, xp, with_moments=True)
    assert checkpoint.moments is not None
    state = start(checkpoint.model, schedule)
    with naming(file):
        restore(state, checkpoint.moments, metadata)
    done = state.optimiser.t
    if done > schedule.steps or (done == schedule.steps and is_finished(folder, done)):
        raise ValueError(f"{folder}: {done} updates are done already; to train longer, --steps N --change")
    try:
        state.history = read_history(folder / HISTORY, done)
        state.seconds = state.history[-1].seconds
    except ValueError as error:
        if done == schedule.steps:
            raise
        console.print(f"{error}; it begins anew here", style="yellow", highlight=False, markup=False)
    return Run(setup, schedule, tokenizer, len(text), tokens, checkpoint.model, state)


def settings_from(kind: type[Settings], values: Any) -> Settings:
    """Return the dataclass of settings that a checkpoint tells of; one it does not know has its default.

    Raises ValueError for what no such settings are.
    """
    if not isinstance(values, dict):
        raise ValueError(f"holds no {kind.__name__.lower()}, so that its run cannot go on")
    types = get_type_hints(kind)
    for name, value in values.items():
        if name not in types:
            raise ValueError(f"{kind.__name__} has no {name!r:.80}")
        allowed = get_args(types[name]) or (types[name],)
        if type(value) not in (*allowed, *([int] if float in allowed else [])):
            raise ValueError(f"{kind.__name__}.{name} cannot be {value!r:.80}")
    return kind(**values)


def changed(settings: Any, given: dict[str, Any]) -> Any:
    """Return settings with those of given that they have."""
    names = {item.name for item in fields(settings)}
    return replace(settings, **{name: value for name, value in given.items() if name in names})


def differences(old: Any, new: Any) -> dict[str, str]:
    """Return, by name and in words, the settings that differ and bear on a run's numbers; not its text, by data."""
    names = [item.name for item in fields(old) if item.name not in (*FREE, "data", "out", "overwrite")]
    return {
        name: f"{name} was {getattr(old, name)}, not {getattr(new, name)}"
        for name in names
        if getattr(old, name) != getattr(new, name)
    }


def check_changes(folder: Path, changes: dict[str, str], change: bool) -> None:
    """Raise ValueError for changes that can never be, or that nobody gave leave for."""
    impossible = [what for name, what in changes.items() if name in FIXED]
    if impossible:
        raise ValueError(f"{folder}: {', '.join(impossible)}, and stays so: start a new run")
    if changes and not change:
        raise ValueError(
            f"{folder}: {', '.join(changes.values())}; add --change to go on like that, another run from here"
        )


def is_finished(folder: Path, step: int) -> bool:
    """Return whether folder holds the finished model of that many updates."""
    try:
        _, metadata = load_checkpoint(folder / FINISHED)
    except ValueError:
        return False
    return metadata.get("step") == step
