import multiprocessing
import os
import platform
import re
import signal
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace

import numpy as np
import pytest
import strict_device
from helpers import seeds
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_info, threadpool_limits

from numpy_gpt import cores
from numpy_gpt.backend import to_numpy
from numpy_gpt.cores import axpby, for_blocks, in_threads, keep_freed_memory, matmul, matmul_both, one_core, spare_cores


def blas_threads():
    """Return the numbers of threads that BLAS libraries have now; MKL as `mkl` loads it has one for good."""
    blas = [library for library in threadpool_info() if library["user_api"] == "blas"]
    return {library["num_threads"] for library in blas if library.get("threading_layer") != "sequential"}


@given(size=st.integers(0, 40), block=st.integers(1, 11))
def test_for_blocks_covers_everything_once_and_in_order(size, block):
    parts = for_blocks(lambda part: np.arange(size)[part], size, np, block)
    assert all(len(part) <= block for part in parts)
    np.testing.assert_array_equal(np.concatenate(parts), np.arange(size))


def test_for_blocks_gives_a_gpu_one_slice():
    assert for_blocks(lambda block: block, 10, strict_device, 3) == [slice(0, 10)]


@pytest.mark.parametrize("size", [3, 10])
def test_for_blocks_hands_on_errors(size):
    with pytest.raises(ZeroDivisionError):
        for_blocks(lambda block: 1 // (size - block.stop), size, np, 3)


def test_for_blocks_keeps_the_callers_errstate():
    """A thread starts with NumPy's defaults: what the caller silenced would warn there."""
    with np.errstate(over="ignore", divide="raise"):
        found = for_blocks(lambda block: np.geterr(), 10, np, 3)
    assert len(found) == 4
    assert {(err["over"], err["divide"]) for err in found} == {("ignore", "raise")}


@pytest.mark.parametrize(("platform", "n_calls"), [("linux", 3), ("darwin", 0), ("win32", 0)])
def test_keep_freed_memory_speaks_to_glibc_alone(monkeypatch, platform, n_calls):
    calls = []
    library = SimpleNamespace(mallopt=lambda *arguments: calls.append(arguments))
    monkeypatch.setattr(cores.sys, "platform", platform)
    monkeypatch.setattr(cores.ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(cores, "ask_for_huge_pages", lambda: None)
    keep_freed_memory()
    assert len(calls) == n_calls


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or not Path("/sys/kernel/mm/transparent_hugepage").exists(),
    reason="huge pages are asked of glibc's heap, where Linux has them",
)
def test_the_heap_is_advised_to_use_huge_pages():
    code = "from numpy_gpt import Config, Model; Model(Config.preset('char')); print(open('/proc/self/smaps').read())"
    smaps = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    sizes = re.findall(r"^Size: +(\d+) kB$", smaps, re.MULTILINE)
    flags = re.findall(r"^VmFlags: (.*)$", smaps, re.MULTILINE)  # hg: advised to huge pages
    advised = sum(int(size) for size, flag in zip(sizes, flags, strict=True) if "hg" in flag.split())
    assert advised * 2**10 >= cores.HUGE_PAGES - 2**22


def test_keep_freed_memory_where_the_c_library_has_no_mallopt(monkeypatch):
    monkeypatch.setattr(cores.sys, "platform", "linux")
    monkeypatch.setattr(cores.ctypes, "CDLL", lambda name: SimpleNamespace())
    keep_freed_memory()


def test_in_threads_holds_blas_to_one_thread_and_gives_results_in_order():
    cores._blas.cache_clear()  # it knows the libraries that were loaded at its first use
    with threadpool_limits(2, user_api="blas"):
        assert in_threads(lambda item: (item, blas_threads()), range(5)) == [(item, {1}) for item in range(5)]
        assert blas_threads() == {2}


def test_in_threads_waits_for_no_helper_that_has_not_begun(monkeypatch):
    """With every helper busy, the caller does all the work itself."""
    monkeypatch.setattr(cores, "_calls", lambda: queue)
    queue = SimpleQueue()  # from which no thread takes
    monkeypatch.setattr(cores, "n_cores", lambda: 3)
    assert in_threads(lambda item: threading.current_thread(), range(4)) == 4 * [threading.main_thread()]
    while not queue.empty():
        queue.get().make()  # too late: taken back


def test_in_threads_shares_the_work(monkeypatch):
    monkeypatch.setattr(cores, "n_cores", lambda: 2)
    meeting = threading.Barrier(2, timeout=60)  # which takes two threads at once
    cores._calls.cache_clear()
    assert set(in_threads(lambda item: meeting.wait(), range(2))) == {0, 1}


def test_in_threads_keeps_nothing_alive(monkeypatch):
    monkeypatch.setattr(cores, "n_cores", lambda: 2)
    items = [np.ones(3), np.ones(3)]
    alive = [weakref.ref(item) for item in items]
    meeting = threading.Barrier(2, timeout=60)
    in_threads(lambda item: meeting.wait(), items)
    del items
    deadline = time.monotonic() + 60
    while any(ref() is not None for ref in alive) and time.monotonic() < deadline:
        time.sleep(0.001)  # the helper is still leaving the call
    assert [ref() for ref in alive] == [None, None]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python 3.12 warns of threads and forks
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork a process")
def test_in_threads_in_a_forked_process(monkeypatch):
    """Threads are not forked along: the child starts its own, and neither hangs."""
    monkeypatch.setattr(cores, "n_cores", lambda: 2)
    meeting = threading.Barrier(2, timeout=60)
    in_threads(lambda item: meeting.wait(), range(2))
    context = multiprocessing.get_context("fork")
    child = context.Process(target=in_threads, args=(lambda item: meeting.wait(), range(2)))
    child.start()
    child.join(60)
    assert child.exitcode == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_blas_gets_its_threads_back_whatever_happens(monkeypatch, error):
    def work(item):
        raise error

    monkeypatch.setattr(cores, "n_cores", lambda: 2)
    with threadpool_limits(2, user_api="blas"):
        with pytest.raises(error):
            in_threads(work, range(2))
        assert blas_threads() == {2}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_in_threads_begins_nothing_after_an_error(monkeypatch, error):
    monkeypatch.setattr(cores, "spare_cores", lambda: 2)
    meeting, done = threading.Barrier(2, timeout=10), []

    def work(item):
        if item < 2:
            meeting.wait()  # both threads are at work
        if threading.current_thread() is threading.main_thread():
            raise error
        time.sleep(0.05)
        done.append(item)

    with pytest.raises(error):
        in_threads(work, range(100))
    n_done = len(done)
    time.sleep(0.2)
    assert len(done) == n_done < 50


def test_in_threads_hands_on_errors():
    with pytest.raises(ZeroDivisionError):
        in_threads(lambda item: 1 // item, [1, 0])


def share_between_two(patch):
    """Make it two cores, whatever the machine has, and no product too small to share between them."""
    patch.setattr(cores, "n_cores", lambda: 2)
    patch.setattr(cores, "SHARED_PRODUCT", 0)


@pytest.fixture
def two_cores(monkeypatch):
    share_between_two(monkeypatch)


@given(st.integers(1, 9), st.integers(0, 5), st.integers(1, 9), st.sampled_from(["C", "F", "strided"]), seeds)
def test_matmul_is_the_product_whoever_shares_it(M, K, N, order, seed):
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((M, K)), rng.standard_normal((K, 2 * N))
    b = b[:, ::2] if order == "strided" else np.asarray(b[:, :N], order=order)
    with pytest.MonkeyPatch.context() as patch:
        share_between_two(patch)
        shared = matmul(a, b)
        out = np.full((M, N), 7.0)
        assert matmul(a, b, out=out) is out
    np.testing.assert_allclose(shared, a @ b, rtol=1e-13, atol=1e-13)
    np.testing.assert_array_equal(out, shared)
    np.testing.assert_array_equal(matmul(a, b), a @ b)  # too small to share


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_matmul_keeps_the_dtype(two_cores, dtype):
    a, b = np.ones((4, 3), dtype), np.ones((3, 6), dtype)
    assert matmul(a, b).dtype == dtype
    assert matmul(a.real, b).dtype == dtype  # a complex step in one of them


@pytest.mark.parametrize(("shape_a", "shape_b"), [((3, 4), (4, 8)), ((8, 4), (4, 3))])
def test_matmul_gives_each_core_a_half(two_cores, monkeypatch, shape_a, shape_b):
    parts = []
    monkeypatch.setattr(cores, "gemm", lambda a, b, out: parts.append(out.shape) or np.matmul(a, b, out=out))
    matmul(np.ones(shape_a), np.ones(shape_b))
    half = {(3, 8): (3, 4), (8, 3): (4, 3)}[(shape_a[0], shape_b[1])]
    assert parts == [half, half]


def test_matmul_leaves_many_cores_to_blas(two_cores, monkeypatch):
    monkeypatch.setattr(cores, "n_cores", lambda: 64)
    monkeypatch.setattr(cores, "in_threads", None)
    np.testing.assert_array_equal(matmul(np.ones((4, 3)), np.ones((3, 6))), np.full((4, 6), 3.0))


@pytest.mark.parametrize("n", [1, 2, 3, 64])
def test_matmul_both_is_both_products(monkeypatch, n):
    share_between_two(monkeypatch)
    monkeypatch.setattr(cores, "n_cores", lambda: n)
    rng = np.random.default_rng(0)
    a, b, c = rng.standard_normal((5, 4)), rng.standard_normal((4, 3)), rng.standard_normal((4, 6))
    out = np.full((5, 6), 7.0)
    first, second = matmul_both((a, b, None), (a, c, out))
    assert second is out
    np.testing.assert_allclose(first, a @ b, rtol=1e-14)
    np.testing.assert_allclose(second, a @ c, rtol=1e-14)


def test_for_blocks_gives_every_core_as_many(monkeypatch):
    monkeypatch.setattr(cores, "n_cores", lambda: 2)
    assert for_blocks(lambda block: block, 10, np, 3) == [slice(0, 2), slice(2, 5), slice(5, 7), slice(7, 10)]
    assert for_blocks(lambda block: block, 3, np, 3) == [slice(0, 3)]
    assert for_blocks(lambda block: block, 3, np, 1) == [slice(0, 1), slice(1, 2), slice(2, 3)]
    with ThreadPoolExecutor(1) as pool:  # a thread beside others keeps to itself
        blocks = pool.submit(for_blocks, lambda block: block, 10, np, 3).result()
    assert blocks == [slice(0, 2), slice(2, 5), slice(5, 7), slice(7, 10)]


def test_in_threads_hands_on_the_error_of_any_item():
    done = []

    def work(number):
        if number == 1:
            raise ValueError("one")
        done.append(number)

    with pytest.raises(ValueError, match="one"):
        in_threads(work, range(4))
    assert {0} <= set(done) <= {0, 2, 3}


coefficients = st.floats(-2, 2, width=32)


@given(coefficients, coefficients, st.integers(0, 70), st.sampled_from(["float32", "float64"]), seeds)
def test_axpby(a, b, n, dtype, seed):
    x, y = np.random.default_rng(seed).standard_normal((2, n)).astype(dtype)
    expected = a * x.astype("float64") + b * y.astype("float64")
    before = x.copy()
    axpby(a, x, b, y)
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(y, expected, rtol=4 * eps, atol=40 * eps)
    np.testing.assert_array_equal(x, before)


def in_wheels_blas():
    return any("libscipy_openblas64" in library["filepath"] for library in threadpool_info())


@pytest.mark.skipif(not in_wheels_blas(), reason="this NumPy has another BLAS than its wheels for Linux")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_axpby_is_found_in_numpys_wheels(dtype):
    """Else every test of axpby would pass by NumPy's own three passes."""
    assert cores._blas_axpby(np.dtype(dtype)) is not None


def test_axpby_leaves_the_neighbours_alone():
    y = np.arange(9.0, dtype="float32")
    axpby(2.0, np.ones(4, "float32"), 10.0, y[3:7])
    np.testing.assert_array_equal(y, [0, 1, 2, 32, 42, 52, 62, 7, 8])


def test_axpby_on_every_device(xp):
    x, y = xp.asarray([1.0, 2.0]), xp.asarray([3.0, 4.0])
    axpby(2.0, x, -1.0, y)
    np.testing.assert_array_equal(to_numpy(y), [-1.0, 0.0])


@pytest.mark.parametrize("dtype", ["float16", "complex128", ">f4", "float32"])
@pytest.mark.parametrize("step", [1, 2])
def test_axpby_of_what_blas_does_not_take(dtype, step):
    x, y = (np.arange(6).astype(dtype)[::step] for _ in range(2))
    axpby(2.0, x, 0.5, y)
    np.testing.assert_array_equal(y, 2.5 * np.arange(6)[::step])
    assert y.dtype == dtype


def test_axpby_without_the_wheels_blas(monkeypatch):
    monkeypatch.setattr(cores, "_blas_axpby", lambda dtype: None)
    y = np.ones(3)
    axpby(2.0, np.arange(3.0), 0.5, y)
    np.testing.assert_array_equal(y, [0.5, 2.5, 4.5])


def test_axpby_refuses_what_it_cannot_write_to():
    y = np.ones(3)
    y.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        axpby(2.0, np.ones(3), 1.0, y)


def test_matmul_on_every_device(xp):
    a, b = xp.asarray([[1.0, 2.0]]), xp.asarray([[3.0], [4.0]])
    np.testing.assert_array_equal(to_numpy(matmul(a, b)), [[11.0]])


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not say which cores a process has")
def test_n_cores_are_those_the_process_may_use():
    core = min(os.sched_getaffinity(0))
    code = f"import os; from numpy_gpt.cores import n_cores; os.sched_setaffinity(0, {{{core}}}); print(n_cores())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "1\n"
    assert cores.n_cores() == len(os.sched_getaffinity(0))


def test_n_cores_where_the_system_does_not_say(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cores.n_cores() == 1
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert cores.n_cores() == 7


def test_held_to_one_core(monkeypatch):
    monkeypatch.setattr(cores, "n_cores", lambda: 4)
    with threadpool_limits(2, user_api="blas"):
        with one_core():
            assert spare_cores() == 1
            assert blas_threads() == {1}
            assert in_threads(lambda item: threading.current_thread(), range(3)) == 3 * [threading.main_thread()]
        assert spare_cores() == 4
        with pytest.raises(ZeroDivisionError), one_core():
            raise ZeroDivisionError
        assert spare_cores() == 4
        assert blas_threads() == {2}


def test_axpby_of_an_array_and_itself(monkeypatch):
    for _ in range(2):  # by the wheels' BLAS where there is one, then by NumPy
        y = np.arange(4.0)
        axpby(2.0, y, 3.0, y)
        np.testing.assert_array_equal(y, 5 * np.arange(4.0))
        monkeypatch.setattr(cores, "_blas_axpby", lambda dtype: None)


@pytest.mark.parametrize("n", [0, 1, 3])
def test_to_its_end_comes_back_from_every_ctrl_c(n):
    tries = []

    def work():
        tries.append(1)
        if len(tries) <= n:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) if n else nullcontext():
        cores.to_its_end(work)
    assert len(tries) == n + 1


@pytest.mark.skipif(os.name != "posix", reason="sends itself signals")
def test_ctrl_c_while_a_helper_is_waited_for(monkeypatch):
    """The second thread works on when the first is done; Ctrl-C comes again and again, and nothing is left behind."""
    monkeypatch.setattr(cores, "spare_cores", lambda: 2)
    meeting, ended = threading.Barrier(2, timeout=10), []

    def work(item):
        meeting.wait()
        if threading.current_thread() is threading.main_thread():
            signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        else:
            time.sleep(0.3)
            ended.append(item)

    def interrupt(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with threadpool_limits(2, user_api="blas"):
            with pytest.raises(KeyboardInterrupt):
                in_threads(work, range(2))
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert len(ended) == 1
            assert blas_threads() == {2}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
