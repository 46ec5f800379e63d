import sys
from types import ModuleType

import numpy as np
import pytest
import strict_device
from helpers import assert_close, random_array, seeds
from hypothesis import given
from hypothesis import strategies as st

from numpy_gpt.backend import array_module, device_module, erf, scatter_add, synchronize, to_numpy


def test_array_module(xp):
    x = xp.ones((2, 3))
    assert array_module(x) is xp
    assert array_module(x.sum()) is xp


def test_array_module_of_a_numpy_scalar():
    assert array_module(np.float32(1)) is np


class Sub(np.ndarray):
    pass


def test_array_module_of_a_subclass():
    assert array_module(np.ones(3).view(Sub)) is np


STRANGE = type("Strange", (), {"__module__": "not_loaded"})()


@pytest.mark.parametrize("x", [[1.0, 2.0], (1,), 1.0, None, "abc", {}, object(), STRANGE, strict_device, np.float32])
def test_array_module_refuses_what_is_no_array(x):
    with pytest.raises(TypeError, match=f"expected a NumPy or CuPy array, got {type(x).__name__}"):
        array_module(x)


def test_cpu():
    assert device_module("cpu") is np


def test_another_device_is_an_error():
    with pytest.raises(ValueError, match="device must be 'cpu' or 'cuda', got 'tpu'"):
        device_module("tpu")


def test_cuda_without_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ValueError, match=r"needs CuPy \(pip install 'numpy_gpt\[gpu\]'\)"):
        device_module("cuda")


def test_cuda_with_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", strict_device)
    assert device_module("cuda") is strict_device


def test_cuda_without_a_gpu(monkeypatch):
    class NoGPU(RuntimeError):
        pass

    def count():
        raise NoGPU("cudaErrorNoDevice: no CUDA-capable device is detected")

    cupy = ModuleType("cupy")
    cupy.cuda = type("cuda", (), {"runtime": type("runtime", (), {"getDeviceCount": count, "CUDARuntimeError": NoGPU})})
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    with pytest.raises(ValueError, match="no usable GPU: cudaErrorNoDevice"):
        device_module("cuda")


def test_to_numpy(xp):
    x = to_numpy(xp.asarray([[1.0, 2.0]]))
    assert type(x) is np.ndarray
    np.testing.assert_array_equal(x, [[1, 2]])
    assert to_numpy(xp.ones(3).sum()) == 3


def test_to_numpy_gives_a_numpy_array_back_itself():
    x = np.ones(3)
    assert to_numpy(x) is x


def test_synchronize_waits_for_the_device():
    before = strict_device.cuda.get_current_stream().n_synchronized
    synchronize(np)
    assert strict_device.cuda.get_current_stream().n_synchronized == before
    synchronize(strict_device)
    assert strict_device.cuda.get_current_stream().n_synchronized == before + 1


@given(
    ids=st.lists(st.integers(0, 5), max_size=20),
    dtype=st.sampled_from(["int16", "int64", "uint8", "uint64"]),
    seed=seeds,
)
def test_scatter_add_is_a_sum_over_places(ids, dtype, seed):
    rng = np.random.default_rng(seed)
    target, rows = random_array(rng, (6, 3)), random_array(rng, (len(ids), 3))
    expected = target.copy()
    for n, i in enumerate(ids):
        expected[i] += rows[n]
    ids = np.array(ids, dtype)
    before = ids.copy(), rows.copy()
    scatter_add(target, ids, rows)
    assert_close("target", target, expected, 1e-14)
    np.testing.assert_array_equal(ids, before[0])
    np.testing.assert_array_equal(rows, before[1])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scatter_add(xp, dtype):
    target = xp.ones((4, 2), dtype=dtype)
    scatter_add(target, xp.asarray([3, 0, 3, 3]), xp.asarray([[1, 2], [3, 4], [5, 6], [7, 8]], dtype=dtype))
    np.testing.assert_array_equal(to_numpy(target), [[4, 5], [1, 1], [1, 1], [14, 17]])
    assert target.dtype == dtype
    scatter_add(target, xp.zeros(0, dtype=int), xp.zeros((0, 2), dtype=dtype))
    np.testing.assert_array_equal(to_numpy(target)[0], [4, 5])


def test_scatter_add_writes_through_a_view(xp):
    flat = xp.zeros(8)
    scatter_add(flat[2:].reshape(3, 2), xp.asarray([1, 1]), xp.ones((2, 2)))
    np.testing.assert_array_equal(to_numpy(flat), [0, 0, 0, 0, 2, 2, 0, 0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_erf(xp, dtype):
    y = erf(xp.asarray([-np.inf, -1, 0, 0.5, np.inf], dtype=dtype))
    assert y.dtype == dtype
    np.testing.assert_allclose(to_numpy(y), [-1, -0.8427007929497149, 0, 0.5204998778130465, 1], rtol=1e-7)


def test_erf_continues_into_the_complex_plane():
    h = 1e-30
    derivative = erf(np.array([0.3 + 1j * h])).imag / h
    assert derivative[0] == pytest.approx(2 / np.sqrt(np.pi) * np.exp(-0.09), rel=1e-14)
