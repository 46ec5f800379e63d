import io

import pytest

from numpy_gpt import Config
from numpy_gpt.budget import tensors
from numpy_gpt.labs import picture
from numpy_gpt.labs.score_tensor import LAB, attend_bytes, passes_weights, slope


@pytest.fixture(scope="module")
def result():
    return LAB.measure(0)


def test_claims(result):
    # All blocks' scores, which training keeps, outweigh the model before T = 1,024.
    assert [finding.holds for finding in result.findings] == [True, True, True, False, True]
    assert result.values["slope_counted"] == 2
    assert result.values["slope_allocated"] == pytest.approx(2, abs=0.06)


@pytest.mark.parametrize(("preset", "blocks"), [("gpt2", 1), ("gpt2", 12), ("gpt2-xl", 48)])
def test_crossing_is_the_first_T_above_the_weights(preset, blocks):
    T = passes_weights(preset, blocks)
    config = Config.preset(preset, T_max=2**15)
    weights = 4 * Config.preset(preset).n_parameters()
    scores = {t: next(x.bytes for x in tensors(config, 1, t) if x.name == "scores") for t in (T - 1, T)}
    assert blocks * scores[T - 1] <= weights < blocks * scores[T]


def test_crossings(result):
    assert result.values["T_one_block"] == 3221
    assert result.values["T_every_block"] == 930
    assert result.values["T_every_block_xl"] == 1140


def test_attention_holds_the_scores_and_their_softmax():
    scores, out = 4 * 12 * 512**2, 4 * 12 * 512 * 64
    assert 2 * scores <= attend_bytes(512, 0) < 2.1 * scores + 2 * out


def test_slope():
    assert slope({10: 3.0, 20: 24.0}, 10, 20) == pytest.approx(3)


def test_picture(result):
    picture(result).savefig(io.BytesIO())
