import io

import numpy as np
import pytest

from numpy_gpt import Config, Model
from numpy_gpt.budget import attention_flops, budget
from numpy_gpt.labs import picture
from numpy_gpt.labs.heads_for_free import (
    HEADS,
    LAB,
    T,
    attention_patterns,
    distance,
    forward_flops,
    previous_token_weight,
)


@pytest.fixture(scope="module")
def result():
    return LAB.measure(0)


def test_claims(result):
    # Scale and softmax cost a little for each head, attn @ v is copied, and previous-token heads take longer.
    assert [finding.holds for finding in result.findings] == [True, True, False, True, True, False, True, True, False]


def test_counts(result):
    assert result.values["N"] == 124_439_808
    for h in HEADS:
        config = Config.preset("gpt2", h=h)
        counted = budget(config, 1, T)["flops"]["forward"]
        assert result.values[f"flops_{h}"] == forward_flops(config) == counted
        assert result.values[f"scores_bytes_{h}"] == 4 * h * T * T
    # What grows with h is 5 FLOPs a pair and 1 a row, in 12 blocks.
    grown = result.values["flops_12"] - result.values["flops_1"]
    assert grown == 12 * 11 * (5 * T * T + T)
    products = 4 * 768 * 12 * T * T
    assert attention_flops(Config.preset("gpt2", h=1), 1, T)["forward"] - 12 * 5 * T * T == products


def test_heads_differ(result):
    assert 0.3 < result.values["apart"] < 0.8
    assert result.values["previous"] > 2 * result.values["evenly"]


def test_patterns_are_the_models_own_attention():
    model = Model(Config(V=9, T_max=7, d=12, h=3, L=2), seed=0)
    idx = np.random.default_rng(0).integers(9, size=(4, 7))
    attn = attention_patterns(model, idx)
    assert attn.shape == (2, 4, 3, 7, 7)
    assert np.allclose(attn.sum(axis=-1), 1)
    assert (np.triu(attn, 1) == 0).all()


def test_figures_of_known_patterns():
    previous = np.eye(4, k=-1)
    previous[0, 0] = 1
    attn = np.stack([previous, np.eye(4)])[None, None]  # (L, B, h, T, T)
    assert previous_token_weight(attn).tolist() == [[1, 0]]
    assert distance(attn) == 3 / 4  # they agree on the first row alone
    assert distance(np.stack([previous, previous])[None, None]) == 0


def test_picture(result):
    picture(result).savefig(io.BytesIO())
