"""What makes a CPU fast: how work is shared among its cores, and how freed memory is kept for the next step.

On a GPU every function here does the plain thing.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import cache, partial
from itertools import pairwise
from queue import SimpleQueue
from types import ModuleType
from typing import Any

import numpy as np

from .backend import Array, array_module
from .mkl import KINDS, gemm


def keep_freed_memory() -> None:
    """Ask the C library to keep the memory of freed arrays for the next ones (glibc; elsewhere nothing).

    By default it hands the memory of large arrays back to the system, which clears every page
    anew for the next step. The process then stays as large as its largest step. The memory of a
    small model is asked for in pages of 2 MiB: the processor remembers the addresses of few pages.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    mallopt = getattr(libc, "mallopt", None)
    if mallopt is not None:
        M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8  # malloc.h
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)  # the end of the heap is not given back below 2 GiB
        mallopt(M_MMAP_MAX, 0)  # no array gets pages of its own, which would go with it
        mallopt(M_ARENA_MAX, 1)  # nor a thread a heap of its own, which is given back more readily
        ask_for_huge_pages()


HUGE_PAGES = 2**28  # bytes of the heap; for arrays from 4 MiB on NumPy itself asks for huge pages


@cache
def ask_for_huge_pages() -> None:
    """Advise the system to back the next HUGE_PAGES bytes of the heap with pages of 2 MiB; none is taken yet."""
    libc = ctypes.CDLL(None)
    MADV_HUGEPAGE, page = 14, 2**21  # mman.h
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    start = libc.malloc(HUGE_PAGES)
    if start is not None:
        libc.madvise(-(-start // page) * page, HUGE_PAGES - page, MADV_HUGEPAGE)
        libc.free(start)


SHARED_PRODUCT = 2**27  # FLOPs: about a millisecond of one core; below it waking a second one does not pay

FEW_CORES = 4  # beyond, BLAS cuts a product both ways, where columns alone would be too narrow


def matmul(a: Array, b: Array, out: Array | None = None) -> Array:
    """a @ b of matrices (M, K) and (K, N), into out if given.

    On a CPU of few cores a large product's columns, or its rows if they are more, are shared out,
    each core's to a BLAS of one thread. BLAS would share them too; but its threads go on spinning
    for a while after each product, on the core that the op after it wants.
    """
    if array_module(a) is np and spare_cores() == 1:
        return gemm(a, b, out)
    if spare_cores() > FEW_CORES or not is_large_product(a, b):
        return array_module(a).matmul(a, b, out=out)
    M, N = len(a), b.shape[1]
    y = np.empty((M, N), np.result_type(a, b)) if out is None else out
    step = -(-max(M, N) // spare_cores())

    def share(start: int) -> None:
        part = slice(start, start + step)
        if N >= M:
            gemm(a, b[:, part], out=y[:, part])
        else:
            gemm(a[part], b, out=y[part])

    in_threads(share, range(0, max(M, N), step))
    return y


def matmul_both(first: tuple, second: tuple) -> tuple[Array, Array]:
    """Return a @ b of first and of second, each (a, b, out); on two cores large ones run side by side.

    A linear layer's backward is such a pair: its two products cost the same, so that neither has to be cut.
    """
    if spare_cores() == 2 and is_large_product(*first[:2]) and is_large_product(*second[:2]):
        one, other = in_threads(lambda product: gemm(*product), (first, second))
        return one, other
    return matmul(*first), matmul(*second)


def is_large_product(a: Array, b: Array) -> bool:
    """Tell whether a @ b is for a CPU, and large enough to be worth the waking of another core."""
    return array_module(a) is np and 2 * len(a) * b.size >= SHARED_PRODUCT


BLOCK_SIZE = 2**18  # numbers: small enough for the cache, large enough that threads seldom meet at Python's lock


def spare_cores() -> int:
    """Return how many cores this thread may keep busy: all from the main thread, else one.

    Another thread has others beside it, the workers of `accumulation` say, that fill the cores.
    """
    alone = threading.current_thread() is threading.main_thread() and not _HELD.get()
    return n_cores() if alone else 1


def n_cores() -> int:
    """Return how many cores this process may use: a cluster's scheduler, say, allots it fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_HELD = ContextVar("held to one core", default=False)


@contextmanager
def one_core() -> Iterator[None]:
    """Run the body on one core, BLAS too: to compare sizes of which only the large ones would use a second core."""
    token = _HELD.set(True)
    try:
        with one_blas_thread():
            yield
    finally:
        _HELD.reset(token)


def for_blocks(work: Callable[[slice], Any], size: int, xp: ModuleType, block: int = BLOCK_SIZE) -> list[Any]:
    """Call work(slice) for slices that cover 0..size, block long; return its results in order.

    On the CPU the blocks fit the cache, and where there are several they are shared among the cores;
    what work writes in one must not depend on another. A GPU, which wants big calls, gets one slice.
    """
    if xp is not np or size <= block:
        return [work(slice(0, size))]
    n_shares = min(spare_cores(), -(-size // block))
    n_blocks = n_shares * -(-size // (block * n_shares))  # as many for every core
    cuts = [size * number // n_blocks for number in range(n_blocks + 1)]
    return in_threads(work, [slice(start, stop) for start, stop in pairwise(cuts) if start < stop])


def in_threads(work: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """Call work(item) for every item, in this thread and one more for each spare core; return the results in order.

    BLAS is held to one thread meanwhile, so that they do not get in each other's way.
    """
    items = list(items)
    n_helpers = min(spare_cores(), len(items)) - 1
    if n_helpers < 1:
        return [work(item) for item in items]
    results = [None] * len(items)
    waiting = iter(enumerate(items))  # whoever is free takes the next

    def take() -> None:
        for number, item in waiting:
            results[number] = work(item)

    with one_blas_thread():
        # A copy of the context, so that np.errstate of the caller holds in the threads too.
        calls = [Call(partial(copy_context().run, take)) for _ in range(n_helpers)]
        try:
            for call in calls:
                _calls().put(call)
            take()
        finally:

            def settle() -> None:
                for _ in waiting:  # after an error or Ctrl-C nothing more is begun
                    pass
                for call in calls:
                    call.settle()

            to_its_end(settle)
    for call in calls:
        if call.error is not None:
            raise call.error
    return results


def to_its_end(work: Callable[[], None]) -> None:
    """Call work, again after each Ctrl-C until it has ended, and only then let the Ctrl-C go on."""
    interrupted = None
    while True:
        try:
            work()
            break
        except KeyboardInterrupt as error:
            interrupted = error
    if interrupted is not None:
        raise interrupted


class Call:
    """A call that a helper thread may make: an executor's future with less ado, since a step makes hundreds of them."""

    def __init__(self, function: Callable[[], None]) -> None:
        self.function: Callable[[], None] | None = function
        self.error: BaseException | None = None  # that the function raised
        self.settled = False
        self.begun, self.done = threading.Lock(), threading.Lock()
        self.done.acquire()

    def make(self) -> None:
        """Make the call, unless it has been taken back."""
        if self.begun.acquire(blocking=False):
            try:
                assert self.function is not None
                self.function()
            except BaseException as error:  # in_threads raises it
                self.error = error
        self.function, self.settled = None, True  # and with the function go the arrays that it works on
        self.done.release()

    def settle(self) -> None:
        """Wait until the call is done; take it back if no helper has begun it. May be called again."""
        if self.begun.acquire(blocking=False):
            self.function, self.settled = None, True
        while not self.settled:
            self.done.acquire()


@cache
def _calls() -> SimpleQueue[Call]:
    """Return the queue from which helper threads, one for each core but one, take calls."""
    calls: SimpleQueue[Call] = SimpleQueue()

    def help_out() -> None:
        while True:
            calls.get().make()

    for _ in range(n_cores() - 1):
        threading.Thread(target=help_out, name="numpy_gpt helper", daemon=True).start()
    return calls


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_calls.cache_clear)  # threads do not live on in a forked process


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Hold BLAS to one thread for what runs inside: threadpoolctl's `limit` at less than half the cost."""
    libraries = _blas()
    n_threads = [library.num_threads for library in libraries]
    try:
        for library in libraries:
            library.set_num_threads(1)
        yield
    finally:

        def give_back() -> None:
            for library, n in zip(libraries, n_threads):
                library.set_num_threads(n)

        to_its_end(give_back)


@cache
def _blas() -> list[Any]:
    """Return threadpoolctl's controllers of the BLAS libraries that are loaded now."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas").lib_controllers


def axpby(a: float, x: Array, b: float, y: Array) -> None:
    """y = a x + b y, in place; x and y are of one shape.

    NumPy passes over the arrays three times, the BLAS inside its wheels once. What a factor of 0 meets
    BLAS does not read, be it nan.
    """
    alike = type(x) is type(y) is np.ndarray and (x.shape, x.dtype) == (y.shape, y.dtype)
    flat = alike and x.flags.c_contiguous and y.flags.c_contiguous and y.flags.writeable
    blas = _blas_axpby(y.dtype) if flat else None
    if blas is None:
        scaled = a * x  # first: x may be y
        y *= b
        y += scaled
    else:
        blas(y.size, a, x.ctypes.data, 1, b, y.ctypes.data, 1)


@cache
def _blas_axpby(dtype: np.dtype) -> Callable | None:
    """Return axpby from the OpenBLAS in NumPy's wheels, or None: for another dtype, and in a NumPy built otherwise."""
    if dtype not in KINDS:
        return None
    letter, number = KINDS[dtype]
    for library in _blas():
        function = getattr(ctypes.CDLL(library.filepath), f"scipy_cblas_{letter}axpby64_", None)  # the wheels' own name
        if function is not None:
            length, array = ctypes.c_int64, ctypes.c_void_p
            function.argtypes = [length, number, array, length, number, array, length]
            function.restype = None
            return function
    return None
