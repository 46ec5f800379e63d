"""What every op asks of its inputs: one wording, the same on both backends."""

from __future__ import annotations

import numpy as np

from ..backend import Array, array_module


def check_floating(**arrays: Array) -> None:
    """Raise TypeError for what is no array, and ValueError for whole numbers and for a mix of precisions, by name.

    Of one precision are float64 and complex128, say: the complex step needs both.
    """
    precisions: dict[np.dtype, str] = {}
    for name, x in arrays.items():
        array_module(x)
        if x.dtype.kind not in "fc":
            raise ValueError(f"{name} must be floating-point, got dtype {x.dtype}")
        precisions.setdefault(x.real.dtype, name)
    if len(precisions) > 1:
        one, other, *_ = precisions.values()
        raise ValueError(f"{one} is {arrays[one].dtype}, but {other} {arrays[other].dtype}: an op has one precision")


def check_ids(ids: Array, V: int, name: str, ignore_index: int | None = None) -> Array:
    """Return ids as int64; raise ValueError unless they are integers with 0 ≤ id < V, naming the first that is not.

    ignore_index, where given, is allowed besides. Negative ids never wrap. What is no array is a TypeError.
    """
    xp = array_module(ids)
    if ids.dtype.kind not in "iu":
        raise ValueError(f"{name} must be integers, got dtype {ids.dtype}")
    given = ids
    ids = ids.astype("int64", copy=False)  # a narrow dtype could not even be compared with −100 or V
    bad = (ids < 0) | (ids >= V)
    if ignore_index is not None and given.dtype.kind == "i":  # among unsigned ones it is a huge one, wrapped
        bad &= ids != ignore_index
    if bad.any():
        first = int(xp.flatnonzero(bad)[0])
        position = tuple(int(i) for i in np.unravel_index(first, ids.shape))
        value = int(given.reshape(-1)[first])
        raise ValueError(f"{name}[{', '.join(map(str, position))}] is {value}; ids must lie in 0 <= id < V = {V}")
    return ids


def check_axes(x: Array, name: str, *axes: str) -> None:
    """Raise ValueError unless x has as many axes as are named."""
    if x.ndim != len(axes):
        raise ValueError(f"{name} must be ({', '.join(axes)}), got shape {x.shape}")


def check_features(x: Array, n: int, x_name: str, owner: str) -> None:
    """Raise ValueError unless x's last axis has the n features that owner expects."""
    if x.ndim == 0 or x.shape[-1] != n:
        raise ValueError(f"{x_name} has shape {x.shape}, but {owner} expects its last axis to be {n}")


def check_shape(x: Array, shape: tuple[int, ...], name: str, owner: str) -> None:
    """Raise ValueError unless x has the shape that owner asks of it; to broadcast would hide a mistake."""
    if x.shape != shape:
        raise ValueError(f"{name} has shape {x.shape}, but {owner} expects {shape}")


def check_qkv(q: Array, k: Array, v: Array) -> None:
    """Raise ValueError unless q, k and v are of one shape (..., T, d_head)."""
    if q.ndim < 2:
        raise ValueError(f"q must be (..., T, d_head), got shape {q.shape}")
    for name, t in (("k", k), ("v", v)):
        check_shape(t, q.shape, name, f"q {q.shape}")


def check_heads(d: int, h: int, owner: str) -> None:
    """Raise ValueError unless the width d can be cut into h heads."""
    if h < 1 or d % h:
        raise ValueError(f"{owner} has d = {d}, which h = {h} heads do not divide")


def check_mask(mask: Array, scores: Array) -> None:
    """Raise ValueError unless mask is boolean, and broadcasts to scores and no further.

    Of PyTorch's additive masks (0 keeps, −inf drops) the truth values would say the opposite.
    """
    if mask.dtype.kind != "b":
        raise ValueError(f"mask must be boolean (True keeps), got dtype {mask.dtype}")
    n = mask.ndim
    if n > scores.ndim or any(m not in (1, s) for m, s in zip(mask.shape, scores.shape[scores.ndim - n :])):
        raise ValueError(f"mask has shape {mask.shape}, which does not broadcast to the scores' {scores.shape}")
