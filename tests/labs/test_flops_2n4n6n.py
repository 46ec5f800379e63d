"""2N, 4N, 6N against exact counts; the clock is not asserted."""

from io import BytesIO

import pytest
from matplotlib.figure import Figure

from numpy_gpt.budget import budget
from numpy_gpt.config import Config
from numpy_gpt.labs.flops_2n4n6n import LENGTHS, TIMED, TOKENS, measure, t2_share


@pytest.fixture(scope="module")
def result():
    return measure(0, lengths=(64, 256))


def test_gpt2_small_at_its_longest(result):
    per_token = budget(Config(), 1, 1024)["flops"]["per_token"]
    assert result.values["forward"] == per_token["forward"] / (2 * 124_439_808)
    assert result.values["train"] == pytest.approx(1.148, abs=0.001)


def test_the_t2_term_grows_and_is_a_tenth_at_d(result):
    shares = [result.values[f"share_{T}"] for T in (64, 128, 256, 512, 768, 1024, 4096, 16384)]
    assert shares == sorted(shares)
    assert result.values["share_768"] == pytest.approx(0.104, abs=0.001)
    assert t2_share(Config(), 1) < 1e-3


def test_where_it_is_as_much_as_the_linears(result):
    assert result.values["T_10"] < 768 < result.values["T_50"] < result.values["T_100"]


def test_the_counted_work_grows_with_T(result):
    assert result.values["more"] > 1


def test_verdicts_that_no_clock_decides(result):
    assert [result.findings[i].holds for i in (0, 1, 2, 4, 5)] == [True, True, True, False, True]


def test_every_length_fills_the_step():
    assert all(TOKENS % T == 0 and T <= TIMED.T_max for T in LENGTHS)


def test_the_picture(result):
    figure = Figure()
    result.draw(figure)
    figure.savefig(BytesIO())
    assert all(ax.get_title() and ax.has_data() for ax in figure.axes)
