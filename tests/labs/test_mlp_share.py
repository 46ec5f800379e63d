"""Where the weights are, against the lesson's 4d² and 8d²."""

from io import BytesIO

import pytest
from matplotlib.figure import Figure

from numpy_gpt.config import Config
from numpy_gpt.labs.mlp_share import LAB, doublings, parts_of, weigh_block
from numpy_gpt.model import Model


@pytest.fixture(scope="module")
def result():
    return LAB.measure(0)


def test_two_thirds_of_a_block_are_the_mlps(result):
    assert result.values["mlp_of_matrices"] == 2 / 3
    assert result.values["mlp_of_block"] == pytest.approx(4_722_432 / 7_087_872)


def test_a_block_is_weighed_whole():
    d = 12
    parts = weigh_block(Model(Config(V=5, T_max=3, d=d, h=2, L=1)))
    assert parts == {"attention": 4 * d * d + 4 * d, "MLP": 8 * d * d + 5 * d, "norms": 4 * d}


def test_the_embeddings_share_falls_with_scale(result):
    small, medium, large, xl = (result.values[f"emb_gpt2{size}"] for size in ("", "-medium", "-large", "-xl"))
    assert small > medium > large > xl
    assert small == pytest.approx((50257 + 1024) * 768 / 124_439_808)


def test_where_the_embeddings_are_half_and_a_hundredth(result):
    d = int(result.values["half_at_d"])
    assert (
        parts_of(Config.preset("gpt2", d=d))["embeddings"]
        > 0.5
        > parts_of(Config.preset("gpt2", d=d + 12))["embeddings"]
    )
    assert result.values["below_1_percent_at"] == Config.preset("gpt2", d=6144, L=96).n_parameters()


def test_shares_sum_to_one():
    for configs in doublings().values():
        for config in configs:
            assert sum(parts_of(config).values()) == pytest.approx(1)


def test_verdicts(result):
    """The lesson's 'all blocks' is not yet true of GPT-2 small."""
    assert [finding.holds for finding in result.findings] == [True, True, True, True, False]


def test_the_picture(result):
    figure = Figure()
    result.draw(figure)
    figure.savefig(BytesIO())
    assert all(ax.get_title() and ax.has_data() for ax in figure.axes)
