"""The lesson's count against the exact one."""

from io import BytesIO

import pytest
from matplotlib.figure import Figure

from numpy_gpt.config import PRESETS, Config
from numpy_gpt.labs.parameter_count import LAB, exact_rest


@pytest.fixture(scope="module")
def result():
    return LAB.measure(0)


def test_gpt2_small(result):
    assert result.values["N_gpt2"] == 124_439_808


def test_what_is_left_out_is_exact_and_falls(result):
    left_out = [
        result.values[f"left_out_{size}"] for size in sorted(PRESETS, key=lambda s: Config.preset(s).n_parameters())
    ]
    assert left_out == sorted(left_out, reverse=True)
    assert left_out[-1] == pytest.approx(exact_rest(Config.preset("gpt2-xl")) / 1_557_611_200)


@pytest.mark.parametrize("size", sorted(PRESETS))
def test_the_rest_by_hand(size):
    shapes = Config.preset(size).parameter_shapes()
    assert exact_rest(Config.preset(size)) == sum(shape[0] for shape in shapes.values() if len(shape) == 1)


def test_every_claim_holds(result):
    assert result.holds


def test_the_picture(result):
    figure = Figure()
    result.draw(figure)
    figure.savefig(BytesIO())
    assert all(ax.get_title() and ax.has_data() for ax in figure.axes)
