"""Pre-norm against post-norm, fresh and in a few updates; the full run is `numpy-gpt lab run pre_post_norm`."""

from io import BytesIO

import numpy as np
import pytest
from matplotlib.figure import Figure

from numpy_gpt.labs.pre_post_norm import block_norms, fresh_model, look, measure, spread
from numpy_gpt.parameters import Parameters


@pytest.fixture(scope="module")
def result():
    return measure(0, steps=30, depths=(2, 6, 48))


def test_the_stream(result):
    assert 0.8 < result.values["slope"] < 1.2
    assert abs(result.values["slope_scaled"]) < 0.1
    assert result.values["pinned"] < 1e-4


def test_gradients_are_even_when_fresh_and_fade_in_post_norm_after_ten_updates(result):
    assert max(result.values[f"uneven_{norm}"] for norm in ("pre", "post")) < 1.5
    assert result.values["fades_post"] > 10 > 3 > result.values["fades_pre"]


def test_verdicts_that_need_no_long_run(result):
    assert [finding.holds for finding in result.findings[:5]] == [True, True, True, False, True]


def test_both_norms_start_from_the_same_weights():
    for scaled in (True, False):
        pre, post = (fresh_model(norm, 3, scaled, 11, 0) for norm in ("pre", "post"))
        np.testing.assert_array_equal(pre.params.flat, post.params.flat)


def test_branches_at_full_size_keep_variance():
    model = fresh_model("pre", 2, False, 11, 0)
    for name in ("W_qkv", "W_o", "W_1", "W_2"):
        W = model.params.block(1)[name]
        assert W.std() == pytest.approx(W.shape[0] ** -0.5, rel=0.05)


def test_the_last_variance_is_the_last_norms():
    model = fresh_model("pre", 3, False, 11, 0)
    idx = np.random.default_rng(0).integers(11, size=(2, 8))
    _, (_, _, (_, rstd, _), _) = model.forward(idx)
    assert look(model, idx).variance[-1] == pytest.approx((1 / rstd**2 - model.config.eps).mean(), rel=1e-5)


def test_norms_by_block():
    grads = Parameters({"block.0.W_o": (1, 2), "block.0.b_o": (1,), "block.1.W_o": (1, 2)})
    grads.flat[...] = [3, 4, 6, 8, 12]  # the matrices first
    np.testing.assert_allclose(block_norms(grads, 2), [13, 10])
    assert spread(np.array([100.0, 2, 6])) == 3


def test_the_picture(result):
    figure = Figure()
    result.draw(figure)
    figure.savefig(BytesIO())
    assert all(ax.get_title() and ax.has_data() for ax in figure.axes)
