"""What every op asks of its inputs: one wording, the same on both backends."""

from __future__ import annotations

import numpy as np

from ..backend import Array, array_module


def check_floating(**arrays: Array) -> None:
    """Raise TypeError for what is no array, and ValueError for an array of whole numbers, each by its name."""
    for name, x in arrays.items():
        array_module(x)
        if x.dtype.kind not in "fc":
            raise ValueError(f"{name} must be floating-point, got dtype {x.dtype}")


def check_ids(ids: Array, V: int, name: str, ignore_index: int | None = None) -> Array:
    """Return ids as int64; raise ValueError unless they are integers with 0 ≤ id < V, naming the first that is not.

    ignore_index, where given, is allowed besides. Negative ids never wrap. What is no array is a TypeError.
    """
    xp = array_module(ids)
    if ids.dtype.kind not in "iu":
        raise ValueError(f"{name} must be integers, got dtype {ids.dtype}")
    ids = ids.astype("int64", copy=False)  # a narrow dtype could not even be compared with −100 or V
    bad = (ids < 0) | (ids >= V)
    if ignore_index is not None:
        bad &= ids != ignore_index
    if bad.any():
        first = int(xp.flatnonzero(bad)[0])
        position = tuple(int(i) for i in np.unravel_index(first, ids.shape))
        value = int(ids.reshape(-1)[first])
        raise ValueError(f"{name}[{', '.join(map(str, position))}] is {value}; ids must lie in 0 <= id < V = {V}")
    return ids


def check_features(x: Array, n: int, x_name: str, owner: str) -> None:
    """Raise ValueError unless x's last axis has the n features that owner expects."""
    if x.ndim == 0 or x.shape[-1] != n:
        raise ValueError(f"{x_name} has shape {x.shape}, but {owner} expects its last axis to be {n}")


def check_shape(x: Array, shape: tuple[int, ...], name: str, owner: str) -> None:
    """Raise ValueError unless x has the shape that owner asks of it; to broadcast would hide a mistake."""
    if x.shape != shape:
        raise ValueError(f"{name} has shape {x.shape}, but {owner} expects {shape}")
