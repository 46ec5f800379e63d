"""Checkpoints: one safetensors file, written whole or not at all, and read only if it verifies. No pickle.

The file holds the parameters by our names and, to train on, AdamW's two moments as adam.m.NAME and
adam.v.NAME. Its metadata has one key, a JSON object: the format, the version that wrote it, the
config, what the writer adds (tokenizer, settings, step, ...), and the sha256 of all that and of
every number, without which the file is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from . import __version__
from .backend import to_numpy
from .config import Config
from .files import atomic_write, naming
from .model import Model
from .optim import AdamW
from .parameters import Parameters
from .stored import StoredTensor, check_finite, check_fit_to_save, header_length, read_header, save_tensors

HEADER = "numpy_gpt"  # the one key of the file's own metadata; several would come in an order that varies
FORMAT = 2
FORMAT_WITHOUT_CHECKSUM = 1  # parameters alone; still read
OWN_METADATA = {"format", "version", "config", "sha256"}
MOMENTS = ("adam.m.", "adam.v.")  # what stands before a parameter's name in the names of its moments
DTYPES = {"F32": "float32", "F64": "float64"}
LARGEST_SIZE = 2**20  # of V, T_max, d, h, L: keeps a file made to hurt from costing time and memory


def save_checkpoint(path: Path | str, model: Model, optimiser: AdamW | None = None, /, **metadata: Any) -> None:
    """Write the model's parameters and config to path, and metadata (anything that JSON holds).

    optimiser: whose moments to write too, to train on.

    Raises ValueError for metadata under a name that the checkpoint needs itself, for another model's
    optimiser, and for sizes and metadata larger than `read_checkpoint` takes.
    Raises OSError where the file cannot be written; an older file at path is then untouched.
    Raises FloatingPointError, naming the weight, where one is inf or nan.
    """
    with writing_checkpoint(path, model, optimiser, metadata):
        pass


@contextmanager
def writing_checkpoint(
    path: Path | str, model: Model, optimiser: AdamW | None, metadata: dict[str, Any]
) -> Iterator[None]:
    """`save_checkpoint`, whose file gets its name once the body is done: what belongs beside it goes before it."""
    taken = OWN_METADATA & metadata.keys()
    if taken:
        raise ValueError(f"metadata cannot be called {', '.join(sorted(taken))}: the checkpoint's own")
    config = model.config.to_dict()
    _check_sizes(config)
    parts = {"": model.params}
    if optimiser is not None:
        if optimiser.params.shapes != model.params.shapes:
            raise ValueError(f"the optimiser's parameters, {optimiser.params}, are not the model's, {model.params}")
        parts |= dict(zip(MOMENTS, (optimiser.m, optimiser.v), strict=True))
    tensors = {prefix + name: to_numpy(part[name]) for prefix, part in parts.items() for name in part}
    header = {"format": FORMAT, "version": __version__, "config": config, **metadata}
    header = json.loads(json.dumps(header))  # as it will be read: JSON has strings alone for keys
    check_fit_to_save(path, tensors)
    digest = _digest(header)
    for tensor in tensors.values():
        digest.update(tensor)
    header["sha256"] = digest.hexdigest()
    with atomic_write(Path(path)) as temporary:
        save_tensors(temporary, tensors, {HEADER: json.dumps(header)})
        with naming(path), temporary.open("rb") as start:
            header_length(start)
        yield


class Checkpoint(NamedTuple):
    """What a file holds: the model, AdamW's moments if they were read, and the writer's metadata."""

    model: Model
    moments: tuple[Parameters, Parameters] | None
    metadata: dict[str, Any]


def load_checkpoint(path: Path | str, xp: ModuleType = np) -> tuple[Model, dict[str, Any]]:
    """Return the model saved at path, on xp's device, and the metadata saved with it.

    Raises ValueError as `read_checkpoint` does.
    """
    model, _, metadata = read_checkpoint(path, xp)
    return model, metadata


def read_checkpoint(path: Path | str, xp: ModuleType = np, with_moments: bool = False) -> Checkpoint:
    """Return all that is saved at path, on xp's device; the moments only if asked for, but verified anyway.

    Memory: what is returned, and one tensor at a time.

    Raises ValueError, in one line that names the file, where it is missing, damaged, not one of
    ours, or has no moments though they are asked for; where a parameter is missing, unknown, not
    finite, or of another shape or dtype than its config says; and where the checksum is another.
    """
    path = Path(path)
    tensors, header = _read_header(path)
    with naming(path):
        digest = _digest(header)
        expected = header.pop("sha256", None)
        if expected is None and header["format"] != FORMAT_WITHOUT_CHECKSUM:
            raise ValueError("holds no checksum")
        config = header.pop("config", None)
        if not isinstance(config, dict):
            raise ValueError("holds no config")
        has_moments = any(name.startswith(MOMENTS) for name in tensors)
        if with_moments and not has_moments:
            raise ValueError("holds parameters alone, without the optimiser's moments")
        _check_shapes(tensors, config, ("", *MOMENTS) if has_moments else ("",))
        model = Model(Config.from_dict(config), seed=None, dtype=_dtype(tensors), xp=xp)
        moments = (model.params.zeros_like(), model.params.zeros_like()) if with_moments else None
        _read_tensors(tensors, "", model.params, model.params, digest)
        for prefix, part in zip(MOMENTS if has_moments else (), moments or (None, None)):
            _read_tensors(tensors, prefix, model.params, part, digest)
        if moments and (moments[1].flat < 0).any():
            raise ValueError("a mean of squared gradients, adam.v, is negative")
        if expected is not None and expected != digest.hexdigest():
            raise ValueError("damaged: what it holds is not what was written, by its sha256")
    del header["format"]
    header.pop("version", None)
    return Checkpoint(model, moments, header)


def read_metadata(path: Path | str) -> dict[str, Any]:
    """Return the metadata of the checkpoint at path, without reading or verifying its tensors.

    Raises ValueError, naming the file, where its header is damaged or not one of ours.
    """
    _, header = _read_header(Path(path))
    return header


def _read_header(path: Path) -> tuple[dict[str, StoredTensor], dict[str, Any]]:
    """Return the tensors of the checkpoint at path, none read yet, and our own header in it."""
    if path.is_dir():
        raise ValueError(f"{path}: is a folder; name the checkpoint in it")
    if not path.is_file():
        raise ValueError(f"{path}: no such checkpoint")
    tensors, metadata = read_header(path)
    with naming(path):
        header = json.loads(metadata.get(HEADER, "{}"))
        if not isinstance(header, dict) or header.get("format") not in (FORMAT_WITHOUT_CHECKSUM, FORMAT):
            raise ValueError(f"not a checkpoint of numpy_gpt, format {FORMAT}")
    return tensors, header


def _digest(header: dict[str, Any]) -> Any:
    """Return the sha256 of the header, but for the sha256 in it, to be updated with the tensors."""
    values = {name: value for name, value in header.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode("utf-8"))


def _read_tensors(
    tensors: dict[str, StoredTensor], prefix: str, names: Iterable[str], into: Parameters | None, digest: Any
) -> None:
    """Read the tensors prefix + name into `into`, and through the digest."""
    for name in names:
        numbers = tensors[prefix + name].read()
        digest.update(numbers)
        check_finite(prefix + name, numbers)
        if into is not None:
            into[name] = into.xp.asarray(numbers)


def _dtype(tensors: dict[str, StoredTensor]) -> str:
    dtypes = sorted({tensor.dtype for tensor in tensors.values()})
    if len(dtypes) != 1 or dtypes[0] not in DTYPES:
        raise ValueError(f"parameters must be all F32 or all F64, got {', '.join(dtypes) or 'none'}")
    return DTYPES[dtypes[0]]


def _check_sizes(config: dict[str, Any]) -> None:
    """Raise ValueError for a size above LARGEST_SIZE."""
    for name in ("V", "T_max", "d", "h", "L"):
        if isinstance(config.get(name), int) and config[name] > LARGEST_SIZE:
            raise ValueError(f"Config.{name} is {config[name]}, above {LARGEST_SIZE}")


def _check_shapes(tensors: dict[str, StoredTensor], config: dict[str, Any], prefixes: tuple[str, ...]) -> None:
    """Raise ValueError unless there are the config's parameters, before anything is made of their size."""
    _check_sizes(config)
    if isinstance(config.get("L"), int) and config["L"] > len(tensors):
        raise ValueError(f"Config.L is {config['L']}, but there are {len(tensors)} parameters in all")
    shapes = Config.from_dict(config).parameter_shapes()
    expected = {prefix + name: shape for prefix in prefixes for name, shape in shapes.items()}
    for names, what in ((expected.keys() - tensors.keys(), "missing"), (tensors.keys() - expected.keys(), "unknown")):
        if names:
            raise ValueError(f"{what} parameter: {', '.join(sorted(names))}")
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            raise ValueError(f"{name} has shape {tensors[name].shape}, its config says {shape}")
