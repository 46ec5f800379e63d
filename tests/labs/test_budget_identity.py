"""C = 6·N·D for a short run; the clock is not asserted."""

from io import BytesIO

import pytest
from matplotlib.figure import Figure

from numpy_gpt.config import Config
from numpy_gpt.labs.budget_identity import B, T, measure
from numpy_gpt.labs.small_run import help_topics


@pytest.fixture(scope="module")
def result():
    return measure(0, steps=12)


def test_the_identity(result):
    N = Config(V=help_topics().tokenizer.V, T_max=T, d=128, h=4, L=4).n_parameters()
    assert result.values["N"] == N
    assert result.values["C"] == 6 * N * 12 * B * T
    assert result.values["counted"] == pytest.approx(result.values["C"], rel=0.1)


def test_it_learns(result):
    assert result.values["last_loss"] < result.values["first_loss"] - 0.5


def test_predictions_follow_from_the_rate(result):
    assert result.values["predicted_128"] == pytest.approx(result.values["C"] / result.values["rate"])
    assert result.values["predicted_64"] < result.values["predicted_128"] < result.values["predicted_192"]


def test_the_picture(result):
    figure = Figure()
    result.draw(figure)
    figure.savefig(BytesIO())
    assert all(ax.get_title() and ax.has_data() for ax in figure.axes)
