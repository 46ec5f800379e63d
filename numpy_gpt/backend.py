"""The xp switch: NumPy on the CPU, CuPy on CUDA, chosen by the array in hand.

Every op asks `array_module(x)` for the package that x belongs to and calls its
functions as `xp.exp`, `xp.matmul`, ... What the two packages spell differently
stands here and nowhere else.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np

Array = Any  # numpy.ndarray or cupy.ndarray: the two share no base class


def array_module(x: Array) -> ModuleType:
    """Return the package whose array x is: `numpy`, or `cupy`.

    Raises TypeError for anything that is not an array (a list, a float, a tensor).
    """
    if isinstance(x, (np.ndarray, np.generic)):
        return np
    module = sys.modules.get(type(x).__module__.partition(".")[0], np)
    if isinstance(x, getattr(module, "ndarray", ())):
        return module
    raise TypeError(f"expected a NumPy or CuPy array, got {type(x).__name__}: {x!r:.60}")


def device_module(device: str) -> ModuleType:
    """Return the array package of a device: "cpu" is NumPy, "cuda" is CuPy.

    Raises ValueError for another name, and where CuPy or a CUDA device is missing.
    """
    if device == "cpu":
        return np
    if device != "cuda":
        raise ValueError(f"device must be 'cpu' or 'cuda', got {device!r}")
    try:
        import cupy
    except ImportError as error:
        raise ValueError(f"device 'cuda' needs CuPy (pip install 'numpy_gpt[gpu]'): {error}") from error
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise ValueError(f"device 'cuda': CuPy finds no usable GPU: {error}") from error
    return cupy


def to_numpy(x: Array) -> np.ndarray:
    """Return x on the host: x itself if it is a NumPy array, else a copy of the device's."""
    xp = array_module(x)
    return np.asarray(x) if xp is np else xp.asnumpy(x)


def synchronize(xp: ModuleType) -> None:
    """Wait until the device has finished what it was given. NumPy always has."""
    if xp is not np:
        xp.cuda.get_current_stream().synchronize()


def scatter_add(target: Array, ids: Array, rows: Array) -> None:
    """target[ids[n]] += rows[n] for every n; an id that repeats adds up.

    target (V, d), ids (N,), rows (N, d). Plain `target[ids] += rows` would keep only the
    last row of a repeated id. On CUDA the order of the additions, and so the last bit of a
    repeated id's sum, is the hardware's.
    """
    xp = array_module(target)
    if ids.size == 0:
        return
    if xp is not np:
        import cupyx

        cupyx.scatter_add(target, ids, rows)
        return
    # Equal ids side by side, then one sum a group: many times faster than np.add.at.
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    starts = np.flatnonzero(np.append(True, ids[1:] != ids[:-1]))
    target[ids[starts]] += np.add.reduceat(rows[order], starts, axis=0)


def erf(x: Array) -> Array:
    """The error function, 2/√π ∫₀ˣ exp(−t²) dt, in x's dtype (complex on the CPU too)."""
    if array_module(x) is np:
        from scipy.special import erf as erf_of
    else:
        from cupyx.scipy.special import erf as erf_of
    return erf_of(x)
