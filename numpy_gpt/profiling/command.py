"""What `numpy-gpt time` does."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import budget
from ..backend import device_module
from ..config import Config
from ..model import Model
from ..terminal import new_console
from .limits import limits_memory
from .pictures import check_picture, draw_profile, draw_sweep, save_picture
from .scaling import default_axes, settings_along, sweep
from .step import profile_step
from .tables import print_profile, print_sweep

if TYPE_CHECKING:
    from rich.console import Console


def command(
    config: Config,
    B: int,
    T: int,
    dtype: str = "float32",
    device: str = "cpu",
    repeats: int = 5,
    as_json: bool = False,
    plot: str | Path | None = None,
    sweeping: bool = False,
) -> int:
    """Measure a step, or a sweep of them, and print what was found as tables or as JSON; return 0.

    The memory that it will take, as `budget` predicts, is printed first.

    Raises ValueError for what makes no step, and where a picture cannot be drawn, before anything runs.
    """
    B, T = budget.check_batch(config, B, T, dtype)
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    xp = device_module(device)
    if plot is not None:
        check_picture(plot)
    console, notes = new_console(), new_console(stderr=as_json)
    found: Any
    print_memory(notes, config, B, T, dtype, xp, sweeping)
    with notes.status("measuring") as status:
        if sweeping:
            found = sweep(config, B, T, repeats=repeats, dtype=dtype, xp=xp, report=status.update)
        else:
            idx, targets = np.random.default_rng(0).integers(0, config.V, (2, B, T))
            found = profile_step(Model(config, 0, dtype, xp), idx, targets, repeats, report=status.update)
    if as_json:
        print(json.dumps(found.to_dict(), indent=2, allow_nan=False))
    else:
        (print_sweep if sweeping else print_profile)(found, console)
    if plot is not None:
        if sweeping:
            save_picture(plot, lambda figure: draw_sweep(found, figure), (17, 9))
        else:
            save_picture(plot, lambda figure: draw_profile(found, figure), (16, 8))
        notes.print(f"Wrote {plot}")
    return 0


def print_memory(console: Console, config: Config, B: int, T: int, dtype: str, xp: ModuleType, sweeping: bool) -> None:
    """Print the most memory that a step, or the models of one axis of a sweep together, will hold."""
    from rich.filesize import decimal

    if sweeping:
        settings = {
            axis: settings_along(axis, values, config, B, T) for axis, values in default_axes(config, B, T).items()
        }
        peaks = [together([budget.memory(*one, dtype, tiled=xp is np) for one in along]) for along in settings.values()]
        peak = max(peaks)
        console.print(f"Predicted memory of the sweep: {decimal(peak)}, beside Python and NumPy themselves")
    else:
        step = budget.memory(config, B, T, dtype, tiled=xp is np)
        kept = step["parameters"] + step["gradients"] + step["moments"]
        limits = kept + limits_memory(config, B, T, dtype, xp)
        console.print(
            f"Predicted memory of a step: {decimal(step['peak'])}, and while the machine's limits are measured "
            f"beside its model: {decimal(limits)}; both beside Python and NumPy themselves"
        )


def together(memories: list[dict[str, int]]) -> int:
    """Return the bytes that models hold which are all kept and take turns to run a step."""
    kept = sum(memory["parameters"] + memory["gradients"] + memory["moments"] for memory in memories)
    return kept + max(memory["activations"] + memory["workspace"] for memory in memories)
