import numpy as np
import pytest
from helpers import assert_close, central_differences

from numpy_gpt.labs import small_network
from numpy_gpt.labs.small_network import T, initialise, loss_backward, loss_forward
from numpy_gpt.ops import gelu_exact_backward, gelu_exact_forward
from numpy_gpt.parameters import Parameters

GELU = (gelu_exact_forward, gelu_exact_backward)


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setattr(small_network, "E", 3)
    monkeypatch.setattr(small_network, "H", 5)


def test_every_gradient():
    rng = np.random.default_rng(0)
    single = initialise(7, rng)
    p = Parameters(single.shapes, "float64")
    p.flat[...] = 0.5 * rng.standard_normal(p.flat.shape)
    idx, targets = rng.integers(7, size=(4, T)), rng.integers(7, size=4)
    _, cache = loss_forward(p, GELU, idx, targets)
    grads = loss_backward(p, GELU, cache)
    for name in p:

        def loss_at(value, name=name):
            before, p[name][...] = p[name].copy(), value
            loss, _ = loss_forward(p, GELU, idx, targets)
            p[name][...] = before
            return loss

        assert_close(name, grads[name], central_differences(loss_at, p[name].copy()), 1e-9, 1e-11)


def test_seed_decides_weights_and_batches(monkeypatch):
    monkeypatch.setattr(small_network, "STEPS", 3)
    first, again, other = (small_network.held_out_loss(GELU, seed) for seed in (0, 0, 1))
    assert first == again != other
