"""The whole model against PyTorch's transformers GPT-2, from values committed in golden/."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from numpy_gpt import AdamW, Config, Model

FILE = Path(__file__).parent / "golden" / "gpt2_small.safetensors"
TOLERANCE = {"float64": 1e-10, "float32": 2e-5}


@pytest.fixture(scope="module")
def golden():
    return load_file(FILE)


@pytest.fixture(params=["float64", "float32"])
def model(request, golden):
    model = Model(Config(V=97, T_max=16, d=48, h=3, L=2), seed=None, dtype=request.param)
    for name in model.params:
        model.params[name] = golden[f"param.{name}"]
    return model


def assert_close(name, ours, golden, dtype):
    """Hold every element of a tensor to the tolerance, relative to the tensor's largest element."""
    error = np.abs(ours - golden)
    worst = np.unravel_index(error.argmax(), error.shape)
    share = error[worst] / (TOLERANCE[dtype.name] * np.abs(golden).max())
    assert ours.dtype == dtype
    assert ours.shape == golden.shape
    assert share <= 1, f"{name}{list(map(int, worst))}: {ours[worst]} against {golden[worst]}, {share:.2f} of tolerance"


def test_file_covers_every_parameter(golden):
    names = {"idx", "logits", "losses"}
    for name in Config(V=97, T_max=16, d=48, h=3, L=2).parameter_shapes():
        names |= {f"{kind}.{name}" for kind in ("param", "grad", "final")}
    assert set(golden) == names


def test_logits_loss_and_every_gradient(model, golden):
    idx = golden["idx"][0]
    logits, _ = model.forward(idx)
    assert_close("logits", logits, golden["logits"], model.dtype)
    loss, grads = model.step(idx)
    assert_close("loss", np.asarray(loss), golden["losses"][0], model.dtype)
    for name, gradient in grads.items():
        assert_close(f"grad.{name}", gradient, golden[f"grad.{name}"], model.dtype)


def test_ten_optimiser_steps(model, golden):
    optimiser = AdamW(model.params, lr=3e-3, betas=(0.9, 0.95), eps=1e-4, weight_decay=0.1)
    for idx, golden_loss in zip(golden["idx"], golden["losses"], strict=True):
        loss, grads = model.step(idx)
        assert_close("loss", np.asarray(loss), golden_loss, model.dtype)
        optimiser.update(grads)
    for name, parameter in model.params.items():
        assert_close(f"final.{name}", parameter, golden[f"final.{name}"], model.dtype)
