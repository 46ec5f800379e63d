import io
import math

import numpy as np
import pytest

from numpy_gpt.labs import picture, score_scale
from numpy_gpt.labs.score_scale import LAB, WIDTHS, look, one_ahead, score_spread


@pytest.fixture(scope="module")
def result():
    return LAB.measure(0)


def test_claims(result):
    # With many keys the Jacobian grows before it vanishes, and a fresh GPT-2's q and k are smaller than 1.
    assert [finding.holds for finding in result.findings] == [True, True, True, True, True, False, True, False]


def test_spread(result):
    for d_head in WIDTHS:
        assert result.values[f"unscaled_{d_head}"] == pytest.approx(math.sqrt(d_head), rel=0.03)
        assert result.values[f"scaled_{d_head}"] == pytest.approx(1, rel=0.03)
        assert score_spread(d_head, np.random.default_rng(1), scale=True) == pytest.approx(1, rel=0.03)


def test_one_key_8_ahead(result):
    assert math.exp(8) == pytest.approx(3000, rel=0.01)
    for n in (2, 16, 128, 1024):
        assert result.values[f"ahead_{n}"] == pytest.approx(math.exp(8) / (math.exp(8) + n - 1), rel=1e-12)
    assert one_ahead(5, 0) == pytest.approx(1 / 5)


def test_many_keys_go_dead_later_than_two(result):
    values = result.values
    assert values["jacobian_2_at_8"] < 0.005
    assert values["jacobian_128_at_8"] > values["jacobian_128_at_1"]
    assert 8 < values["vanishes"] <= 23  # d_head of some hundreds
    assert values["reached_128_at_8"] < 0.1 < 0.7 < values["reached_128_at_1"]


def test_gradient_at_q_is_not_smaller_for_want_of_the_scale(result):
    assert result.values["dq_unscaled"] > 4 * result.values["dq_scaled"]


def test_fresh_gpt2(result):
    assert result.values["fresh"] == pytest.approx(0.02**2 * 768 * 8, rel=0.1)  # q and k of std 0.02·√768
    assert result.values["fresh_unit"] == pytest.approx(8, rel=0.1)


def test_figures_of_softmax_are_those_of_its_jacobian(monkeypatch):
    monkeypatch.setattr(score_scale, "ROWS", 1)
    found = look(5, 2.0, np.random.default_rng(3))
    rng = np.random.default_rng(3)
    scores, dattn = 2.0 * rng.standard_normal(5), rng.standard_normal((1, 5))[0]
    p = np.exp(scores) / np.exp(scores).sum()
    jacobian = np.diag(p) - np.outer(p, p)
    gradient = abs(jacobian @ dattn)
    assert found["jacobian"] == pytest.approx(np.linalg.norm(jacobian), rel=1e-12)
    assert found["entropy"] == pytest.approx(-(p * np.log(p)).sum(), rel=1e-12)
    assert found["largest"] == pytest.approx(p.max(), rel=1e-12)
    assert found["reached"] == (gradient > 0.01 * gradient.max()).mean()


def test_picture(result):
    picture(result).savefig(io.BytesIO())
