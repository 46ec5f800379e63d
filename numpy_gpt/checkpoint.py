"""Checkpoints: one safetensors file, written whole or not at all. No pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from .backend import to_numpy
from .config import Config
from .model import Model

HEADER = "numpy_gpt"  # the one key of the file's own metadata; several would come in an order that varies
FORMAT = 1
LARGEST_SIZE = 2**20  # of V, T_max, d, h, L: keeps a file made to hurt from costing time and memory


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside path; rename it to path once the body has written it.

    The bytes are on the disk before the name is, so that a crash leaves the old file or the
    new one, never half of one. Where the body raises, the temporary file is removed.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode  # what the user's umask makes of a new file
        yield temporary
        temporary.chmod(mode)  # safetensors would leave it readable by its owner alone
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    if os.name == "posix":  # a rename is safe only once its folder is on the disk too
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def save_checkpoint(path: Path | str, model: Model, **metadata: Any) -> None:
    """Write the model's parameters and config to path, with metadata (anything that JSON holds) beside.

    Raises OSError where the file cannot be written; an older file at path is then untouched.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    header = {"format": FORMAT, "config": model.config.to_dict(), **metadata}
    tensors = {name: to_numpy(parameter) for name, parameter in model.params.items()}
    with atomic_write(Path(path)) as temporary:
        try:
            save_file(tensors, temporary, metadata={HEADER: json.dumps(header)})
        except SafetensorError as error:
            raise OSError(f"{path}: {error}") from error


def load_checkpoint(path: Path | str, xp: ModuleType = np) -> tuple[Model, dict[str, Any]]:
    """Return the model saved at path, on xp's device, and the metadata saved with it.

    Raises ValueError, naming the file, where it is missing, damaged, not one of ours, or where
    a parameter is missing, unknown, or of another shape or dtype than its config says.
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: no such checkpoint")
    try:
        with safe_open(path, framework="numpy") as file:
            header = json.loads((file.metadata() or {}).get(HEADER, "{}"))
            if not isinstance(header, dict) or header.pop("format", None) != FORMAT:
                raise ValueError(f"not a checkpoint of numpy_gpt, format {FORMAT}")
            config = header.pop("config", None)
            if not isinstance(config, dict):
                raise ValueError("holds no config")
            _check_shapes(file, config)
            model = Model(Config.from_dict(config), seed=None, dtype=_dtype(file), xp=xp)
            for name in model.params:
                model.params[name] = xp.asarray(file.get_tensor(name))
    except (ValueError, SafetensorError) as error:
        raise ValueError(f"{path}: {error}") from error
    return model, header


def _dtype(file: Any) -> str:
    dtypes = sorted({file.get_slice(name).get_dtype() for name in file.keys()})  # noqa: SIM118
    names = {"F32": "float32", "F64": "float64"}
    if len(dtypes) != 1 or dtypes[0] not in names:
        raise ValueError(f"parameters must be all F32 or all F64, got {', '.join(dtypes) or 'none'}")
    return names[dtypes[0]]


def _check_shapes(file: Any, config: dict[str, Any]) -> None:
    """Raise ValueError unless the file holds the config's parameters, before anything is made of their size."""
    for size in ("V", "T_max", "d", "h", "L"):
        if isinstance(config.get(size), int) and config[size] > LARGEST_SIZE:
            raise ValueError(f"Config.{size} is {config[size]}, above {LARGEST_SIZE}")
    found = set(file.keys())
    if isinstance(config.get("L"), int) and config["L"] > len(found):
        raise ValueError(f"Config.L is {config['L']}, but there are {len(found)} parameters in all")
    expected = Config.from_dict(config).parameter_shapes()
    for names, what in ((expected.keys() - found, "missing"), (found - expected.keys(), "unknown")):
        if names:
            raise ValueError(f"{what} parameter: {', '.join(sorted(names))}")
    for name, shape in expected.items():
        shape_found = tuple(file.get_slice(name).get_shape())
        if shape_found != shape:
            raise ValueError(f"{name} has shape {shape_found}, its config says {shape}")
