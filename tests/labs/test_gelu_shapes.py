import io

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import norm

from numpy_gpt.labs import gelu_shapes, picture
from numpy_gpt.labs.gelu_shapes import ACTIVATIONS, LAB


@pytest.fixture(scope="module")
def result():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gelu_shapes, "SEEDS", 1)  # seconds less
        return LAB.measure(0)


def test_claims(result):
    wrong = [finding.claim for finding in result.findings if not finding.holds]
    assert wrong == ["close to SiLU, x·σ(x)"]


def test_dip(result):
    bottom = minimize_scalar(lambda x: x * norm.cdf(x), bounds=(-2, 0), method="bounded")
    assert result.values["dip"] == pytest.approx(bottom.fun, abs=1e-8)
    assert result.values["dip_at"] == pytest.approx(bottom.x, abs=1e-4)


def test_gradients_at_minus_a_half(result):
    assert result.values["slope_gelu"] == pytest.approx(norm.cdf(-0.5) - 0.5 * norm.pdf(-0.5), rel=1e-9)
    assert result.values["slope_relu"] == 0
    assert result.values["relu_dead"] == pytest.approx(0.5, abs=0.01)
    assert result.values["gelu_faint"] < 0.02


def test_tanh_form(result):
    assert result.values["tanh_error"] == pytest.approx(4.73e-4, abs=1e-6)
    assert result.values["tanh_error_at"] == pytest.approx(2.7, abs=0.01)


def test_gelu_trains_better_than_relu_by_little(result):
    assert 0.01 < result.values["least_gain"] <= result.values["largest_gain"] < 0.1
    assert result.values["loss_gelu"] < 2.3


@pytest.mark.parametrize("name", ["ReLU", "SiLU"])
def test_gradients_of_the_others(name):
    forward, backward = ACTIVATIONS[name]
    x, dy = np.array([-3.0, -0.5, 0.7, 2.0]), np.array([0.3, -1.2, 2.0, 0.7])
    differences = (forward(x + 1e-6)[0] - forward(x - 1e-6)[0]) / 2e-6
    assert backward(dy, forward(x)[1]) == pytest.approx(dy * differences, abs=1e-9)


def test_picture(result):
    picture(result).savefig(io.BytesIO())
