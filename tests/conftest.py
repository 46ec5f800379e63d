"""Settings that every test shares: one BLAS thread, hypothesis without chance, and the devices."""

import os
import signal

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")  # before NumPy loads its BLAS; child processes inherit it

import sys

import hypothesis
import numpy as np
import pytest
from threadpoolctl import threadpool_limits

pytest.register_assert_rewrite("helpers")
import strict_device

THREADS = threadpool_limits(1)  # for the session, also where NumPy was loaded before: `pytest -n 2` must not crawl

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what it runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile(
    "numpy_gpt",
    derandomize=True,
    deadline=None,
    max_examples=int(os.environ.get("NUMPY_GPT_EXAMPLES", "30")),
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("numpy_gpt")


def cupy_or_skip():
    try:
        import cupy
    except ImportError as error:
        pytest.skip(f"CuPy is not installed: {error}")
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        pytest.skip(f"CuPy finds no GPU: {error}")
    return cupy


@pytest.fixture
def strict(monkeypatch):
    """The stand-in for CuPy, with cupyx beside it."""
    for name, module in strict_device.cupyx_modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    return strict_device


@pytest.fixture(params=["numpy", "strict_device", "cupy"])
def xp(request):
    """Every array package in turn: NumPy, the strict stand-in for CuPy, and CuPy where there is a GPU."""
    if request.param == "numpy":
        return np
    return request.getfixturevalue("strict") if request.param == "strict_device" else cupy_or_skip()
