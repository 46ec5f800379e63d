"""The product of two matrices by Intel's MKL, where it is installed: `pip install 'numpy_gpt[mkl]'`.

NumPy's wheels multiply by OpenBLAS. On Intel's processors MKL takes less time for the same; what that
brings a step is in docs/performance.md. Nothing needs it: without it, on more cores than `cores.FEW_CORES`,
or with NUMPY_GPT_MKL=0 in the environment, every large product is NumPy's.
"""

from __future__ import annotations

import ctypes
import os
import site
import sys
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from .backend import Array

KINDS = {np.dtype("float32"): ("s", ctypes.c_float), np.dtype("float64"): ("d", ctypes.c_double)}  # as BLAS names them
ROW_MAJOR, AS_IT_STANDS, TRANSPOSED = 101, 111, 112  # cblas.h
SEQUENTIAL = 1  # mkl_service.h


def gemm(a: Array, b: Array, out: Array | None = None) -> Array:
    """a @ b of NumPy's matrices (M, K) and (K, N), into out (M, N) if given, which must overlap neither.

    MKL does it on this thread's core alone. NumPy does it where there is no MKL, and for arrays that
    MKL does not take: of another type than float32 and float64, or with gaps both ways.

    FLOPs: 2·M·K·N.
    """
    multiply = _multiply(a.dtype)
    if multiply is None:
        return np.matmul(a, b, out=out)
    (M, K), N = a.shape, b.shape[1]
    y = np.empty((M, N), a.dtype) if out is None else out
    fits = len(b) == K and y.shape == (M, N) and y.flags.writeable
    (a_order, a_step), (b_order, b_step), (y_order, y_step) = (layout(t, a.dtype) for t in (a, b, y))
    if not (fits and a_order and b_order and y_order == AS_IT_STANDS):
        return np.matmul(a, b, out=out)
    a_data, b_data, y_data = (t.ctypes.data for t in (a, b, y))
    set_threads = _library().MKL_Set_Num_Threads_Local
    before = set_threads(1)
    try:  # y = 1·a b + 0·y
        multiply(ROW_MAJOR, a_order, b_order, M, N, K, 1.0, a_data, a_step, b_data, b_step, 0.0, y_data, y_step)
    finally:
        set_threads(before)
    return y


def is_at_hand() -> bool:
    """Tell whether MKL is installed, loads, and is wanted."""
    return _library() is not None


def layout(t: Array, dtype: np.dtype) -> tuple[int, int]:
    """Return how BLAS reads the matrix t: its order, and how many numbers lie from one row, or column, to the next.

    An order of 0 says that it cannot: t is empty, of another dtype, or has gaps both ways.
    """
    if type(t) is not np.ndarray or t.dtype != dtype or t.ndim != 2 or t.size == 0 or not t.flags.aligned:
        return 0, 0
    (rows, columns), (down, across), size = t.shape, t.strides, t.itemsize
    if across == size and down >= columns * size:
        return AS_IT_STANDS, down // size
    if down == size and across >= rows * size:
        return TRANSPOSED, across // size
    return 0, 0


@cache
def _multiply(dtype: np.dtype) -> Callable | None:
    """Return MKL's product of matrices of this dtype: C = α A B + β C. None for another dtype, and without MKL."""
    library = _library()
    if library is None or dtype not in KINDS:
        return None
    letter, number = KINDS[dtype]
    function = getattr(library, f"cblas_{letter}gemm_64")  # lengths of 64 bits
    word, length, array = ctypes.c_int, ctypes.c_int64, ctypes.c_void_p
    matrix = [array, length]
    function.argtypes = [word, word, word, length, length, length, number, *matrix, *matrix, number, *matrix]
    function.restype = None
    return function


@cache
def _library() -> Any:
    """Return MKL as ctypes loads it; None where it is not installed, does not load, or is not wanted."""
    if sys.platform != "linux" or os.environ.get("NUMPY_GPT_MKL") == "0":
        return None
    folders = (Path(base, "lib") for base in (sys.prefix, sys.base_prefix, site.getuserbase()))
    files = [file for folder in folders for file in sorted(folder.glob("libmkl_rt.so*"), reverse=True)]
    if not files:
        return None
    try:
        library = ctypes.CDLL(str(files[0]))
        for name in ("cblas_sgemm_64", "cblas_dgemm_64", "MKL_Set_Num_Threads_Local"):
            getattr(library, name)
        library.MKL_Set_Threading_Layer(SEQUENTIAL)  # without OpenMP; nothing happens if MKL is at work already
    except (OSError, AttributeError) as error:  # it does not load, or is too old
        warnings.warn(f"products are NumPy's own, since {files[0]} cannot be used: {error}", stacklevel=2)
        return None
    return library
