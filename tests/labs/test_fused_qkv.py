import io

import numpy as np
import pytest

from numpy_gpt.labs import fused_qkv, picture
from numpy_gpt.labs.fused_qkv import LAB, WIDTHS, R, largest_difference


@pytest.fixture(scope="module")
def result():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused_qkv, "SECONDS", 0)
        return LAB.measure(0)


def test_claims_hold_that_are_no_timings(result):
    equal, arithmetic, reads, *timings = result.findings
    assert equal.holds
    assert arithmetic.holds
    assert reads.holds
    assert all("times as long" in finding.measured for finding in timings)


def test_what_it_saves(result):
    d = WIDTHS[-1]
    assert result.values["numbers_saved"] == 2 * R * d
    three = 3 * (R * d + d * d + d + R * d)  # x, W, b, y
    assert result.values["share_saved"] == 2 * R * d / three
    assert all(result.values[f"time_ratio_{d}"] > 0 for d in WIDTHS)


def test_columns_in_another_order_would_be_found(monkeypatch):
    rng = np.random.default_rng(0)
    assert largest_difference(16, rng) < 1e-14

    def interleaved(array, n, axis=-1):
        return [array[..., part::n] for part in range(n)]

    monkeypatch.setattr(np, "split", interleaved)
    assert largest_difference(16, rng) > 0.1


def test_picture(result):
    picture(result).savefig(io.BytesIO())
