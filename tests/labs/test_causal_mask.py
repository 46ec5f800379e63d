import io
import math

import numpy as np
import pytest

from numpy_gpt import Config, Model
from numpy_gpt.labs import causal_mask, picture
from numpy_gpt.labs.causal_mask import LAB, changed_logits, largest_masked_weight, prefix_losses
from numpy_gpt.labs.small_run import help_topics


@pytest.fixture(scope="module")
def result():
    return LAB.measure(0)


def test_claims_hold(result):
    assert [finding.claim for finding in result.findings if not finding.holds] == []


def test_training_loss_collapses_and_inference_does_not_follow(result):
    values = result.values
    assert values["unmasked_trained"] < 0.05
    assert values["unmasked_whole"] < 0.05
    assert values["unmasked_prefix"] > values["chance"] + 2
    assert 1.5 < values["causal_trained"] < 2.4
    assert values["causal_prefix"] == pytest.approx(values["causal_whole"], abs=1e-5)
    assert values["causal_prefix"] < values["unigram"] < values["chance"] == math.log(help_topics().tokenizer.V)


def test_what_the_mask_forbids(result):
    assert result.values["masked_weight"] == 0
    assert result.values["causal_changed"] == 0
    V, T = 256, 32
    assert result.values["unmasked_changed"] == V * T // 2


def test_leak_would_be_found(monkeypatch):
    assert changed_logits(causal=False, seed=1) > 0
    unmasked = causal_mask.attend_forward
    monkeypatch.setattr(causal_mask, "attend_forward", lambda q, k, v: unmasked(q, k, v, causal=False))
    assert largest_masked_weight(np.random.default_rng(0)) > 0


def test_prefix_losses_weigh_up_to_the_loss_of_the_whole():
    model = Model(Config(V=7, T_max=6, d=8, h=2, L=1), seed=0, dtype="float64")
    idx = np.random.default_rng(0).integers(7, size=(4, 6))
    losses = prefix_losses(model, idx)
    assert losses.shape == (5,)
    assert losses.mean() == pytest.approx(float(model.loss(idx)), rel=1e-12)


def test_picture(result):
    picture(result).savefig(io.BytesIO())
