"""The checker, proven: it catches the faults planted in our own backward functions.

Here each kind of fault is tried in a few functions, by one mutant each; all of them, against every
check, by `python tests/gradcheck/mutants/matrix.py`.
"""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent / "mutants"))

import matrix
from mutate import FUNCTIONS, mutants, namespace, package
from planted import PLANTED

from numpy_gpt.gradcheck.cases import Sizes
from numpy_gpt.gradcheck.check import run

ALL = [mutant for function in FUNCTIONS for mutant in mutants(function)]
BY_ID = {mutant.id: mutant for mutant in ALL}
PAGE = Path(__file__).parents[2] / "docs" / "kill-matrix.md"
CORNER_TARGETS = sorted({target for planted in PLANTED for target in planted.targets} & set(matrix.CORNERS))


def representatives(per_kind=3):
    """For every kind of fault, the last mutant of about per_kind functions, each kind beginning at another one.

    A function that this leaves out has its first mutant.
    """
    of_kind = {}
    for mutant in ALL:
        of_kind.setdefault(mutant.fault, {})[mutant.function] = mutant
    chosen = []
    for number, fault in enumerate(sorted(of_kind)):
        candidates = list(of_kind[fault].values())
        step = max(1, len(candidates) // per_kind)
        chosen += candidates[number % step :: step]
    left_out = [function for function in FUNCTIONS if function not in {mutant.function for mutant in chosen}]
    return chosen + [mutants(function)[0] for function in left_out]


REPRESENTATIVES = representatives()


def test_the_mutants_are_many_and_told_apart():
    assert len(ALL) >= 150
    assert {mutant.function for mutant in REPRESENTATIVES} == set(FUNCTIONS)
    assert len(BY_ID) == len(ALL)
    for function in FUNCTIONS:
        sources = [mutant.source for mutant in mutants(function)]
        assert len(set(sources)) == len(sources), function


@pytest.mark.parametrize("function", FUNCTIONS)
def test_planted_faults_are_caught(function):
    outcomes = [matrix.outcome(mutant) for mutant in REPRESENTATIVES if mutant.function == function]
    alive = [found.id for found in outcomes if not found.caught and found.id not in matrix.EQUIVALENT]
    assert not alive
    # No mutant has reached the next one: otherwise everything after it would count as caught.
    for target in matrix.TARGETS[function]:
        assert matrix.control(target).ok, target


written_as_here = pytest.mark.skipif(
    sys.version_info < (3, 11),
    reason="Python 3.10 writes tuples in brackets: the planted faults do not find their lines",
)


@written_as_here
@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: f"{planted.function}: {planted.title}")
def test_bugs_planted_by_hand_are_caught(planted):
    found = matrix.planted_outcome(planted)
    assert found.checks
    assert not found.error, found.said  # the bugs were silent ones


@pytest.mark.parametrize("target", CORNER_TARGETS)
def test_the_right_op_passes_where_the_bugs_were_planted(target):
    assert matrix.control(target).ok


@pytest.mark.parametrize("id", matrix.EQUIVALENT)
def test_equivalent_mutants_give_the_right_gradients(id):
    mutant = BY_ID[id]
    assert not matrix.outcome(mutant).caught
    for target in matrix.TARGETS[mutant.function]:
        for seed in range(5):
            sizes = Sizes.random(np.random.default_rng(seed))
            found, right = (gradients(target, make_names, seed, sizes) for make_names in (mutant.namespace, namespace))
            for grad, expected in zip(found, right, strict=True):
                np.testing.assert_allclose(grad, expected, rtol=0, atol=1e-12, equal_nan=False)


def gradients(target, make_names, seed, sizes):
    problem, _ = matrix.subject(target, make_names, seed, sizes)
    out, cache = problem.call()
    with np.errstate(all="ignore"):
        return problem.gradients(problem.upstream(out), cache)


def test_no_mutant_is_in_the_package():
    before = {module: dict(vars(module)) for module, _, _ in package()}
    BY_ID["softmax_backward stale-cache `cache = previous(cache)`"].namespace()
    assert all(vars(module) == names for module, names in before.items())


@pytest.mark.parametrize("target", ["layernorm", "block"])
def test_what_is_remembered_changes_no_line(target):
    mutant = next(mutant for mutant in mutants(f"{target}_backward") if mutant.fault == "drop-term")
    matrix.remembered(target)
    helped = matrix.remembered(target).check(*matrix.subject(target, mutant.namespace))
    alone = run(*matrix.subject(target, mutant.namespace))
    assert not helped.ok
    assert [line.to_dict() for line in helped.lines] == [line.to_dict() for line in alone.lines]


@written_as_here
def test_the_page_is_of_these_mutants():
    text = PAGE.read_text(encoding="utf-8")
    assert f"| planted systematically | {len(ALL)} |" in text, "write docs/kill-matrix.md anew: see its first lines"
    named = [matrix.escaped(matrix.within_its_op(mutant.id)) for mutant in ALL]
    assert [name for name in named if f"| {name} |" not in text] == [], "write docs/kill-matrix.md anew"
    assert "| … of these not caught | **0** |" in text
    for planted in PLANTED:
        assert planted.title in text
