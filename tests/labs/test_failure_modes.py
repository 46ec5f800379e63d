"""Each of the eight mistakes is found by its check, and the healthy model by none."""

from io import BytesIO

import numpy as np
import pytest
from matplotlib.figure import Figure

from numpy_gpt.labs import failure_modes
from numpy_gpt.labs.failure_modes import CHECKED, CHECKS, MISTAKES, Run, measure, worse
from numpy_gpt.model import Model

FOUND = {
    "mask off": {"the past does not see the future"},
    "scale off": {"attention is its formula"},
    "loss unshifted": {"the loss is the lesson's"},
    "mean forgotten": {"gradcheck"},
    "tied gradient lost": {"gradcheck"},
    "position table forgotten": {"positions differ", "gradcheck"},
    "LayerNorm after the add": {"the skip is clear"},
    "lr × 30": {"the first update is small"},
}


@pytest.fixture(scope="module")
def result():
    return measure(0, steps=25)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_each_mistake_is_found_by_its_check(result, mistake):
    assert {check for check in CHECKS if result.values[f"{mistake.name}, {check}"]} == FOUND[mistake.name]
    assert mistake.check in FOUND[mistake.name]


def test_findings(result):
    holds = {finding.claim: finding.holds for finding in result.findings}
    assert holds["no check cries wolf: the healthy model passes all"]
    assert not holds["gradcheck alone finds them all"]
    assert result.values["gradcheck_finds"] == 3


def test_gradcheck_names_the_mistake(result):
    measured = {finding.claim: finding.measured for finding in result.findings}
    assert "8 times" in measured["mean forgotten: found by 'gradcheck'"]  # B (T − 1) = 2 · 4
    assert "tied" in measured["tied gradient lost: found by 'gradcheck'"]


def test_what_shows_at_once(result):
    assert result.values["loss unshifted"] < 2.5 < result.values["healthy"]
    times = result.values["mean forgotten, norm"] / result.values["healthy, norm"]
    assert times == pytest.approx(failure_modes.B * (failure_modes.T - 1), rel=1e-3)


def test_every_check_is_some_mistakes():
    assert {mistake.check for mistake in MISTAKES} == set(CHECKS)


def test_broken_models_are_not_the_healthy_one():
    idx = np.array([[1, 5, 5, 2, 1]])
    healthy = Model(CHECKED, 0, "float64").step(idx)
    for mistake in MISTAKES:
        if mistake.times_lr == 1:
            step = mistake.build(CHECKED, 0, "float64").step(idx)
            assert not np.array_equal(step.grads.flat, healthy.grads.flat), mistake.name


def test_worse_is_worse_than_every_healthy_run():
    runs = [Run(np.full(20, loss), np.ones(20)) for loss in (2.0, 3.0)]
    assert worse(Run(np.full(20, 3.1), np.ones(20)), runs)
    assert not worse(Run(np.full(20, 2.9), np.ones(20)), runs)


def test_the_picture(result):
    figure = Figure()
    result.draw(figure)
    figure.savefig(BytesIO())
    assert all(ax.get_title() and ax.has_data() for ax in figure.axes)
