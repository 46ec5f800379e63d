import numpy as np
import pytest
from helpers import (
    Op,
    check_complex_step,
    check_contract,
    check_device,
    check_gradients,
    check_layout,
    check_out,
    layouts,
    random_array,
    seeds,
    shapes,
)
from hypothesis import given
from hypothesis import strategies as st

from numpy_gpt.ops import head_backward, head_forward

OP = Op(head_forward, head_backward, ("x", "W_te"))
vocabularies = st.integers(1, 5)


def inputs(rng, shape, V, dtype="float64"):
    return random_array(rng, shape, dtype), random_array(rng, (V, shape[-1]), dtype)


@given(shape=shapes(1, 4, 3), V=vocabularies, seed=seeds, dtype=st.sampled_from(["float64", "complex128"]))
def test_gradient_against_central_differences(shape, V, seed, dtype):
    rng = np.random.default_rng(seed)
    check_gradients(OP, inputs(rng, shape, V, dtype), rng)


@given(shape=shapes(1, 4, 3), V=vocabularies, seed=seeds)
def test_gradient_against_the_complex_step(shape, V, seed):
    rng = np.random.default_rng(seed)
    check_complex_step(OP, inputs(rng, shape, V), rng)


@given(shape=shapes(1, 4), V=vocabularies, seed=seeds, dtype=st.sampled_from(["float32", "float64", "complex128"]))
def test_contract(shape, V, seed, dtype):
    rng = np.random.default_rng(seed)
    check_contract(OP, inputs(rng, shape, V, dtype), rng)


@given(shape=shapes(1, 4), V=vocabularies, seed=seeds, chosen=st.lists(layouts, min_size=3, max_size=3))
def test_memory_layout_is_no_matter(shape, V, seed, chosen):
    rng = np.random.default_rng(seed)
    check_layout(OP, inputs(rng, shape, V), chosen, rng)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_device(xp, dtype):
    rng = np.random.default_rng(0)
    check_device(xp, OP, inputs(rng, (2, 3, 8), 11, dtype), rng)


@given(shape=shapes(1, 4), V=vocabularies, seed=seeds, dtype=st.sampled_from(["float32", "float64"]))
def test_out_gives_the_same_bits(shape, V, seed, dtype):
    rng = np.random.default_rng(seed)
    check_out(head_backward, OP, inputs(rng, shape, V, dtype), rng, first=1, single=True)


def test_shares_the_embedding_table():
    """No copy of W_te: a logit is x's scalar product with a row of it."""
    W_te = np.arange(6.0).reshape(3, 2)
    logits, (_, kept, _) = head_forward(np.array([1.0, 10.0]), W_te)
    np.testing.assert_array_equal(logits, [10, 32, 54])
    assert np.shares_memory(kept, W_te)


def test_another_width_is_an_error(xp):
    with pytest.raises(ValueError, match=r"x has shape \(2, 4\), but W_te \(5, 3\) expects its last axis to be 3"):
        head_forward(xp.ones((2, 4)), xp.ones((5, 3)))
