"""The two contributions to the tied gradient, and the rows that each touches."""

from io import BytesIO

import numpy as np
import pytest
from matplotlib.figure import Figure

from numpy_gpt.config import Config
from numpy_gpt.labs.weight_tying import LAB, both_shares
from numpy_gpt.model import Model


@pytest.fixture(scope="module")
def result():
    return LAB.measure(0)


def test_both_shares_add_up_to_the_models_gradient():
    model = Model(Config(V=11, T_max=6, d=8, h=2, L=2), 3, dtype="float64")
    idx = np.random.default_rng(1).integers(11, size=(3, 6))
    from_head, from_embedding = both_shares(model, idx)
    assert from_head.any()
    assert from_embedding.any()
    np.testing.assert_allclose(from_head + from_embedding, model.step(idx).grads["W_te"], rtol=1e-13)


def test_rows(result):
    assert result.values["rows_head"] == 50257
    assert result.values["rows_embedding"] == result.values["different"] < 8 * 63


def test_saved(result):
    assert result.values["saved"] == 38_597_376


def test_almost_all_of_the_heads_gradient_is_on_the_targets(result):
    assert 0.99 < result.values["on_targets"] < 1


def test_every_claim_holds(result):
    assert result.holds


def test_the_picture(result):
    figure = Figure()
    result.draw(figure)
    figure.savefig(BytesIO())
    assert all(ax.get_title() and ax.has_data() for ax in figure.axes)
