"""A fresh model's loss, the likelihood behind it, and what a wrong init shows."""

import math
from io import BytesIO

import numpy as np
import pytest
from matplotlib.figure import Figure

from numpy_gpt.labs.first_loss import LAB, SIZES, deep


@pytest.fixture(scope="module")
def result():
    return LAB.measure(0)


def test_fresh_models_cost_ln_V(result):
    for V in SIZES:
        assert result.values[f"fresh_{V}"] == pytest.approx(math.log(V), abs=0.05)
    assert result.values["gpt2"] == pytest.approx(math.log(50257) + 0.02**2 * 768 / 2, abs=0.05)


def test_the_loss_is_the_likelihood(result):
    assert result.values["summed"] == pytest.approx(result.values["joint"], rel=1e-12)
    assert abs(result.values["joint"] - 63 * math.log(256)) > 1  # not merely a model that knows nothing


def test_what_shows_and_what_does_not(result):
    values = result.values
    assert values["spread_1.0"] > values["spread_0.2"] > math.log(256) + 0.3
    assert abs(values["spread_0.002"] - math.log(256)) < 0.01
    assert abs(values["loss_unscaled"] - values["loss_scaled"]) < 0.1
    assert values["growth_scaled"] < 1.5 < 5 < values["growth_unscaled"]
    assert [finding.holds for finding in result.findings] == [True, True, True, True, False, False, True]


def test_only_what_writes_into_the_stream_is_divided():
    scaled, unscaled = deep(8, True, 0), deep(8, False, 0)
    for name in scaled.params:
        factor = 4 if name.endswith(("W_o", "W_2")) else 1
        np.testing.assert_allclose(unscaled.params[name], factor * scaled.params[name], rtol=1e-6)


def test_the_picture(result):
    figure = Figure()
    result.draw(figure)
    figure.savefig(BytesIO())
    assert all(ax.get_title() and ax.has_data() for ax in figure.axes)
