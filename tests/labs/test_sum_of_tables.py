import io

import numpy as np
import pytest

from numpy_gpt.labs import picture, sum_of_tables
from numpy_gpt.labs.sum_of_tables import LAB, WIDTHS, projection_error


@pytest.fixture(scope="module")
def result():
    return LAB.measure(0)


def test_claims_hold(result):
    assert result.holds
    assert result.values["wide"] == 4  # 12(2d)² / 12d²


def test_both_are_read_off_better_the_wider_the_stream(result):
    for name in ("token", "position"):
        shares = [result.values[f"{name}_{d}"] for d in WIDTHS]
        assert shares == sorted(shares)
        assert shares[0] < 0.1
        assert shares[-1] == 1
    # 50,257 tokens are harder to tell apart than 1,024 positions.
    assert result.values["token_32"] < result.values["position_32"]
    assert result.values["enough_width"] in (64, 128)


def test_projection_that_is_not_linear_would_be_found(monkeypatch):
    rng = np.random.default_rng(0)
    tok, pos = rng.standard_normal((2, 8, sum_of_tables.GPT2.d))
    assert projection_error(tok, pos, rng)["float64"] < 1e-14
    monkeypatch.setattr(sum_of_tables, "linear_forward", lambda x, W, b: (np.tanh(x @ W), None))
    assert projection_error(tok, pos, rng)["float64"] > 0.01


def test_picture(result):
    picture(result).savefig(io.BytesIO())
