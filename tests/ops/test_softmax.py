import numpy as np
import pytest
from helpers import (
    Op,
    assert_close,
    check_complex_step,
    check_contract,
    check_device,
    check_gradients,
    check_layout,
    layouts,
    random_array,
    seeds,
    shapes,
)
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from numpy_gpt.backend import array_module
from numpy_gpt.ops import softmax_backward, softmax_forward

PLAIN = Op(softmax_forward, softmax_backward, ("scores",))


def masked(mask):
    """Softmax under a mask, which goes where the scores are."""
    return Op(lambda scores: softmax_forward(scores, array_module(scores).asarray(mask)), softmax_backward, ("scores",))


def random_op(rng, shape):
    """Plain, or under a random mask that may empty a row and may be broadcast."""
    kind = rng.integers(3)
    return PLAIN if kind == 0 else masked(rng.random(shape[-1:] if kind == 1 else shape) < 0.6)


@given(shape=shapes(1, 4, 3), seed=seeds, dtype=st.sampled_from(["float64", "complex128"]))
def test_gradient_against_central_differences(shape, seed, dtype):
    rng = np.random.default_rng(seed)
    check_gradients(random_op(rng, shape), (2 * random_array(rng, shape, dtype),), rng)


@given(scores=arrays("float64", shapes(1, 4, 3), elements=st.floats(-50, 50, allow_subnormal=False)), seed=seeds)
def test_gradient_against_the_complex_step(scores, seed):
    rng = np.random.default_rng(seed)
    check_complex_step(random_op(rng, scores.shape), (scores,), rng)


@given(shape=shapes(1, 4), seed=seeds, dtype=st.sampled_from(["float32", "float64", "complex128"]))
def test_contract(shape, seed, dtype):
    rng = np.random.default_rng(seed)
    check_contract(random_op(rng, shape), (random_array(rng, shape, dtype),), rng)


@given(shape=shapes(1, 4), seed=seeds, chosen=st.lists(layouts, min_size=2, max_size=2))
def test_memory_layout_is_no_matter(shape, seed, chosen):
    rng = np.random.default_rng(seed)
    check_layout(random_op(rng, shape), (random_array(rng, shape),), chosen, rng)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mask", [None, np.tri(5, dtype=bool), np.array([True, False, True, True, False])])
def test_device(xp, mask, dtype):
    rng = np.random.default_rng(0)
    check_device(xp, PLAIN if mask is None else masked(mask), (random_array(rng, (2, 5, 5), dtype),), rng)


def test_known_values():
    attn, _ = softmax_forward(np.log([[1.0, 2.0, 5.0], [3.0, 3.0, 3.0]]))
    np.testing.assert_allclose(attn, [[1 / 8, 2 / 8, 5 / 8], [1 / 3, 1 / 3, 1 / 3]], rtol=1e-15)


@given(scores=arrays("float64", shapes(1, 3), elements=st.floats(-1e300, 1e300, allow_subnormal=False)))
def test_rows_are_distributions_however_large_the_scores(scores):
    attn, _ = softmax_forward(scores)
    assert (attn >= 0).all()
    np.testing.assert_allclose(attn.sum(axis=-1), 1, rtol=1e-14)


@given(seed=seeds, shift=st.floats(-1e3, 1e3, allow_subnormal=False))
def test_a_shift_of_a_row_changes_nothing(seed, shift):
    """So each row of dscores sums to 0, whatever the upstream."""
    rng = np.random.default_rng(seed)
    scores = random_array(rng, (3, 5))
    attn, cache = softmax_forward(scores)
    assert_close("attn", softmax_forward(scores + shift)[0], attn, 1e-12)
    dscores = softmax_backward(random_array(rng, (3, 5)), cache)
    np.testing.assert_allclose(dscores.sum(axis=-1), 0, atol=1e-15)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("by_mask", [True, False])
def test_fully_masked_row(xp, dtype, by_mask):
    """A row with no place left is all 0, and so is its gradient; the other row never notices."""
    rng = np.random.default_rng(0)
    scores = random_array(rng, (2, 3), dtype)
    alone, alone_cache = softmax_forward(scores[1:])
    mask = xp.asarray(np.array([[False], [True]])) if by_mask else None
    if not by_mask:
        scores[0] = -np.inf
    attn, cache = softmax_forward(xp.asarray(scores), mask)
    dattn = random_array(rng, (2, 3), dtype)
    dscores = softmax_backward(xp.asarray(dattn), cache)
    for name, x, expected in (("attn", attn, alone), ("dscores", dscores, softmax_backward(dattn[1:], alone_cache))):
        assert not x[0].any()
        assert_close(name, x[1:], expected, 1e-6)


def test_masked_places_are_exactly_zero():
    rng = np.random.default_rng(0)
    mask = rng.random((4, 6)) < 0.5
    attn, cache = softmax_forward(random_array(rng, (3, 4, 6)), mask)
    assert not attn[:, ~mask].any()
    assert (attn[:, mask] > 0).all()
    assert not softmax_backward(random_array(rng, (3, 4, 6)), cache)[:, ~mask].any()


def test_a_masked_score_may_be_anything():
    """Even inf, nan or a score far above the row's kept ones."""
    scores = np.array([[1.0, np.nan], [1.0, np.inf], [-800.0, 800.0]])
    attn, _ = softmax_forward(scores, np.array([True, False]))
    np.testing.assert_array_equal(attn, [[1, 0], [1, 0], [1, 0]])
