"""`mkl.gemm` by MKL where it is installed, and everywhere by NumPy's own OpenBLAS in its place: both speak CBLAS."""

import ctypes
import importlib.metadata
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import seeds
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_info

from numpy_gpt import Config, Model, cores, mkl


def is_installed():
    try:
        return bool(importlib.metadata.version("mkl"))
    except importlib.metadata.PackageNotFoundError:
        return False


needs_mkl = pytest.mark.skipif(
    not is_installed() or os.environ.get("NUMPY_GPT_MKL") == "0",
    reason="MKL is not installed (pip install 'numpy_gpt[mkl]'), or not wanted",
)


def openblas():
    """Return the OpenBLAS in NumPy's wheels under the names that `mkl` calls."""
    paths = [library["filepath"] for library in threadpool_info() if "libscipy_openblas64" in library["filepath"]]
    if not paths:
        pytest.skip("this NumPy has another BLAS than its wheels for Linux")
    library = ctypes.CDLL(paths[0])
    return SimpleNamespace(
        cblas_sgemm_64=library.scipy_cblas_sgemm64_,
        cblas_dgemm_64=library.scipy_cblas_dgemm64_,
        MKL_Set_Num_Threads_Local=lambda n: n,
    )


@pytest.fixture(params=[pytest.param("MKL", marks=needs_mkl), "OpenBLAS"])
def library(request, monkeypatch):
    """The BLAS that `gemm` calls; it lists in `calls` the shapes it was given."""
    found = mkl._library() if request.param == "MKL" else openblas()
    calls = []

    def counted(multiply):
        def call(*arguments):
            calls.append(arguments[3:6])
            multiply(*arguments)

        return call

    monkeypatch.setattr(mkl, "_library", lambda: found)
    multiply = {np.dtype(dtype): counted(mkl._multiply.__wrapped__(np.dtype(dtype))) for dtype in ("f", "d")}
    monkeypatch.setattr(mkl, "_multiply", multiply.get)
    return SimpleNamespace(calls=calls)


@needs_mkl
def test_mkl_is_found_where_it_is_installed():
    """Else every test would pass by NumPy's own products."""
    assert mkl.is_at_hand()
    assert mkl._multiply(np.dtype("float32")) is not None


LAYOUTS = {
    "rows": lambda t: t,
    "columns": np.asfortranarray,
    "rows apart": lambda t: np.pad(t, ((0, 0), (2, 1)))[:, 2:-1],
    "columns apart": lambda t: np.pad(t, ((1, 3), (0, 0))).T.copy().T[1:-3],
}
GAPS = {
    "every second": lambda t: np.repeat(np.repeat(t, 2, 0), 2, 1)[::2, ::2],
    "backwards": lambda t: t[::-1, ::-1].copy()[::-1, ::-1],
    "of another byte order": lambda t: t.astype(t.dtype.newbyteorder()),
}
sizes = st.integers(1, 9)
layouts = st.sampled_from(sorted(LAYOUTS))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gemm_is_the_product(library, dtype):
    @given(sizes, sizes, sizes, layouts, layouts, seeds)
    def check(M, K, N, order_a, order_b, seed):
        rng = np.random.default_rng(seed)
        a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((M, K), (K, N)))
        expected = a.astype("float64") @ b.astype("float64")
        a, b = LAYOUTS[order_a](a), LAYOUTS[order_b](b)
        library.calls.clear()
        y = mkl.gemm(a, b)
        around = np.full((M + 2, N + 3), 7, dtype)
        out = around[1:-1, 1:-2]
        assert mkl.gemm(a, b, out) is out
        if min(M, K, N) > 1:  # else the stride of an axis of length 1 may say anything
            assert library.calls == 2 * [(M, N, K)]
        atol = 40 * np.finfo(dtype).eps
        np.testing.assert_allclose(y, expected, rtol=0, atol=atol)
        assert y.dtype == dtype
        np.testing.assert_array_equal(out, y)
        around[1:-1, 1:-2] = 7
        np.testing.assert_array_equal(around, 7)  # nothing beside out is written

    check()


@pytest.mark.parametrize("gaps", sorted(GAPS))
@pytest.mark.parametrize("side", [0, 1])
def test_gemm_leaves_to_numpy_what_blas_cannot_read(library, gaps, side):
    pair = list(np.random.default_rng(0).standard_normal((2, 4, 4)))
    expected = pair[0] @ pair[1]
    pair[side] = GAPS[gaps](pair[side])
    np.testing.assert_allclose(mkl.gemm(*pair), expected, rtol=1e-14)
    assert library.calls == []


@pytest.mark.parametrize("dtypes", [("float16", "float16"), ("complex128", "complex128"), ("float32", "float64")])
def test_gemm_leaves_other_types_to_numpy(library, dtypes):
    a, b = (np.arange(6).reshape(shape).astype(dtype) for shape, dtype in zip([(2, 3), (3, 2)], dtypes))
    y = mkl.gemm(a, b)
    assert y.dtype == np.result_type(*dtypes)
    np.testing.assert_array_equal(y, [[10, 13], [28, 40]])
    assert library.calls == []


@pytest.mark.parametrize(("M", "K", "N"), [(0, 3, 2), (2, 0, 3), (2, 3, 0)])
def test_gemm_of_nothing(library, M, K, N):
    out = np.full((M, N), 7.0)
    np.testing.assert_array_equal(mkl.gemm(np.ones((M, K)), np.ones((K, N)), out), np.zeros((M, N)))


@pytest.mark.parametrize("order", ["C", "F"])
def test_gemm_into_any_array_of_the_right_shape(library, order):
    a, b = np.random.default_rng(0).standard_normal((2, 4, 4))
    out = np.full((4, 8), 7.0, order=order)[:, ::2]
    assert mkl.gemm(a, b, out) is out
    np.testing.assert_allclose(out, a @ b, rtol=1e-14)


def test_gemm_refuses_what_numpy_refuses(library):
    """A BLAS would read and write beyond the arrays."""
    a, b = np.ones((4, 3)), np.ones((3, 2))
    with pytest.raises(ValueError, match="size 4 is different from 3"):
        mkl.gemm(a, np.ones((4, 2)))
    for out in (np.ones((4, 3)), np.ones((2, 4)), np.ones(8)):
        with pytest.raises(ValueError, match="matmul"):
            mkl.gemm(a, b, out)
    with pytest.raises(TypeError, match="Cannot cast"):
        mkl.gemm(a, b, np.ones((4, 2), int))
    frozen = np.ones((4, 2))
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        mkl.gemm(a, b, frozen)
    assert library.calls == []


def test_gemm_does_not_add_to_what_stands_there(library):
    out = np.full((2, 2), np.nan)
    mkl.gemm(np.eye(2), np.eye(2), out)
    np.testing.assert_array_equal(out, np.eye(2))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_same_bits_wherever_the_arrays_lie(library, dtype):
    """The same seed must give the same run, and memory is never handed out the same way twice."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((96, 200), (200, 64)))

    def moved(t, by):
        memory = np.empty(t.size + 64, t.dtype)
        start = -memory.ctypes.data // t.itemsize % (64 // t.itemsize) + by  # so many numbers from a cache line's start
        memory[start : start + t.size] = t.ravel()
        return memory[start : start + t.size].reshape(t.shape)

    found = {mkl.gemm(moved(a, i), moved(b, j)).tobytes() for i in range(8) for j in range(8)}
    assert len(found) == 1


def test_matmul_goes_through_it(library, monkeypatch):
    a, b = np.ones((4, 3)), np.ones((3, 6))
    monkeypatch.setattr(cores, "SHARED_PRODUCT", 0)
    monkeypatch.setattr(cores, "n_cores", lambda: 2)
    np.testing.assert_array_equal(cores.matmul(a, b), np.full((4, 6), 3))
    assert library.calls == 2 * [(4, 3, 3)]  # a half each
    cores.matmul_both((a, b, None), (b.T, a.T, None))
    assert sorted(library.calls[2:]) == [(4, 6, 3), (6, 4, 3)]
    monkeypatch.setattr(cores, "n_cores", lambda: 1)
    cores.matmul(a, b)
    assert library.calls[4:] == [(4, 6, 3)]
    monkeypatch.setattr(cores, "n_cores", lambda: 64)
    cores.matmul(a, b)
    assert len(library.calls) == 5  # many cores are NumPy's to share


def test_a_models_step_is_the_same(library, monkeypatch):
    model = Model(Config(V=50, T_max=16, d=32, h=2, L=2), seed=0, dtype="float64")
    idx = np.random.default_rng(0).integers(0, 50, (2, 16))
    monkeypatch.setattr(cores, "n_cores", lambda: 1)
    loss, grads = model.step(idx)
    grads = {name: grad.copy() for name, grad in grads.items()}
    assert library.calls
    monkeypatch.setattr(mkl, "_multiply", lambda dtype: None)
    numpys_loss, numpys_grads = model.step(idx)
    assert loss == pytest.approx(numpys_loss, rel=1e-14)
    for name, grad in grads.items():
        np.testing.assert_allclose(grad, numpys_grads[name], rtol=1e-9, atol=1e-14, err_msg=name)


AT_WORK_ALREADY = """
import ctypes, sys
import numpy as np
from numpy_gpt import mkl

library = ctypes.CDLL(sys.argv[1])
library.MKL_Set_Num_Threads_Local(3)  # another package's MKL, with its threads
multiply, seen = mkl._multiply(np.dtype(float)), []
mkl._multiply = lambda dtype: lambda *arguments: seen.append(library.MKL_Get_Max_Threads()) or multiply(*arguments)
mkl.gemm(np.eye(2), np.eye(2))
print(seen, library.MKL_Get_Max_Threads())
"""


@needs_mkl
def test_mkl_that_is_at_work_already_keeps_its_threads():
    command = [sys.executable, "-c", AT_WORK_ALREADY, mkl._library()._name]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[1] 3\n"


@needs_mkl
def test_mkl_starts_no_threads_of_its_own():
    code = "from numpy_gpt.mkl import gemm, np; gemm(np.eye(2), np.eye(2)); print(open('/proc/self/maps').read())"
    maps = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "libmkl_sequential" in maps
    assert "libiomp5" not in maps  # OpenMP


def found_by(monkeypatch, tmp_path, *files):
    """Return what `_library` makes of files of these names and contents in a folder of libraries."""
    (tmp_path / "lib").mkdir()
    for name, content in files:
        (tmp_path / "lib" / name).write_bytes(content)
    for base in ("prefix", "base_prefix"):
        monkeypatch.setattr(sys, base, str(tmp_path))
    monkeypatch.setattr(mkl.site, "getuserbase", lambda: str(tmp_path / "none"))
    monkeypatch.delenv("NUMPY_GPT_MKL", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    return mkl._library.__wrapped__()


def test_without_mkl(monkeypatch, tmp_path):
    assert found_by(monkeypatch, tmp_path) is None


def test_an_mkl_that_does_not_load_is_told(monkeypatch, tmp_path):
    with pytest.warns(UserWarning, match=r"NumPy's own, since .*libmkl_rt.so.3 cannot be used: .*file too short"):
        assert found_by(monkeypatch, tmp_path, ("libmkl_rt.so.3", b"")) is None


def test_an_mkl_that_is_too_old_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(mkl.ctypes, "CDLL", lambda name: SimpleNamespace(cblas_sgemm_64=None))
    with pytest.warns(UserWarning, match="cblas_dgemm_64"):
        assert found_by(monkeypatch, tmp_path, ("libmkl_rt.so.1", b"")) is None


@pytest.mark.parametrize(("platform", "wanted"), [("darwin", "1"), ("win32", "1"), ("linux", "0")])
def test_mkl_is_not_looked_for(monkeypatch, platform, wanted):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv("NUMPY_GPT_MKL", wanted)
    monkeypatch.setattr(mkl.site, "getuserbase", None)
    assert mkl._library.__wrapped__() is None


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux which libraries are loaded")
def test_importing_the_package_does_not_load_it():
    code = (
        "import numpy_gpt; print('libmkl' in open('/proc/self/maps').read())"
        if sys.platform == "linux"
        else "print(False)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
