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

from numpy_gpt.ops import linear_backward, linear_forward

OP = Op(linear_forward, linear_backward, ("x", "W", "b"))
widths = st.integers(1, 4)


def inputs(rng, shape, n_out, dtype="float64"):
    return tuple(random_array(rng, part, dtype) for part in (shape, (shape[-1], n_out), (n_out,)))


@given(shape=shapes(1, 4, 3), n_out=widths, seed=seeds, dtype=st.sampled_from(["float64", "complex128"]))
def test_gradient_against_central_differences(shape, n_out, seed, dtype):
    rng = np.random.default_rng(seed)
    check_gradients(OP, inputs(rng, shape, n_out, dtype), rng)


@given(shape=shapes(1, 4, 3), n_out=widths, seed=seeds)
def test_gradient_against_the_complex_step(shape, n_out, seed):
    rng = np.random.default_rng(seed)
    check_complex_step(OP, inputs(rng, shape, n_out), rng)


@given(shape=shapes(1, 4), n_out=widths, seed=seeds, dtype=st.sampled_from(["float32", "float64", "complex128"]))
def test_contract(shape, n_out, seed, dtype):
    rng = np.random.default_rng(seed)
    check_contract(OP, inputs(rng, shape, n_out, dtype), rng)


@given(shape=shapes(1, 4), n_out=widths, seed=seeds, chosen=st.lists(layouts, min_size=4, max_size=4))
def test_memory_layout_is_no_matter(shape, n_out, seed, chosen):
    rng = np.random.default_rng(seed)
    check_layout(OP, inputs(rng, shape, n_out), chosen, rng)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_device(xp, dtype):
    rng = np.random.default_rng(0)
    check_device(xp, OP, inputs(rng, (2, 3, 8), 5, dtype), rng)


@given(shape=shapes(1, 4), n_out=widths, seed=seeds, dtype=st.sampled_from(["float32", "float64"]))
def test_out_gives_the_same_bits(shape, n_out, seed, dtype):
    rng = np.random.default_rng(seed)
    check_out(linear_backward, OP, inputs(rng, shape, n_out, dtype), rng, first=1)


def test_known_values():
    y, cache = linear_forward(
        np.array([[1.0, 2.0]]), np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), np.array([1.0, 0, 0])
    )
    np.testing.assert_array_equal(y, [[10, 12, 15]])
    dx, dW, db = linear_backward(np.array([[1.0, 0.0, -1.0]]), cache)
    np.testing.assert_array_equal(dx, [[-2, -2]])
    np.testing.assert_array_equal(dW, [[1, 0, -1], [2, 0, -2]])
    np.testing.assert_array_equal(db, [1, 0, -1])


def test_another_width_is_an_error(xp):
    with pytest.raises(ValueError, match=r"x has shape \(2, 4\), but W \(3, 5\) expects its last axis to be 3"):
        linear_forward(xp.ones((2, 4)), xp.ones((3, 5)), xp.ones(5))
    with pytest.raises(ValueError, match=r"x has shape \(\)"):
        linear_forward(xp.ones(()), xp.ones((3, 5)), xp.ones(5))
