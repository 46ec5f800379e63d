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

from numpy_gpt.backend import array_module, to_numpy
from numpy_gpt.ops import embedding_backward, embedding_forward

V, T_MAX, D = 5, 6, 3


def op_for(idx):
    """The op with these ids, which go where the tables are."""
    return Op(
        lambda W_te, W_pe: embedding_forward(array_module(W_te).asarray(idx), W_te, W_pe),
        embedding_backward,
        ("W_te", "W_pe"),
    )


def random_op(rng, shape):
    """Few ids for many places: nearly every one repeats."""
    return op_for(rng.integers(0, V, shape).astype(rng.choice(["int32", "int64"])))


def tables(rng, dtype="float64"):
    return random_array(rng, (V, D), dtype), random_array(rng, (T_MAX, D), dtype)


@given(shape=shapes(1, 3), seed=seeds, dtype=st.sampled_from(["float64", "complex128"]))
def test_gradient_against_central_differences(shape, seed, dtype):
    rng = np.random.default_rng(seed)
    check_gradients(random_op(rng, shape), tables(rng, dtype), rng)


@given(shape=shapes(1, 3), seed=seeds)
def test_gradient_against_the_complex_step(shape, seed):
    rng = np.random.default_rng(seed)
    check_complex_step(random_op(rng, shape), tables(rng), rng)


@given(shape=shapes(1, 4, 6), seed=seeds, dtype=st.sampled_from(["float32", "float64", "complex128"]))
def test_contract(shape, seed, dtype):
    rng = np.random.default_rng(seed)
    check_contract(random_op(rng, shape), tables(rng, dtype), rng)


@given(shape=shapes(1, 3), seed=seeds, chosen=st.lists(layouts, min_size=3, max_size=3))
def test_memory_layout_is_no_matter(shape, seed, chosen):
    rng = np.random.default_rng(seed)
    check_layout(random_op(rng, shape), tables(rng), chosen, rng)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_device(xp, dtype):
    rng = np.random.default_rng(0)
    check_device(xp, random_op(rng, (3, T_MAX)), tables(rng, dtype), rng)


@given(shape=shapes(1, 3), seed=seeds, dtype=st.sampled_from(["float32", "float64"]))
def test_out_gives_the_same_bits(shape, seed, dtype):
    rng = np.random.default_rng(seed)
    check_out(embedding_backward, random_op(rng, shape), tables(rng, dtype), rng, first=0)


def test_each_out_may_be_given_alone():
    rng = np.random.default_rng(0)
    y, cache = random_op(rng, (2, 3)).forward(*tables(rng))
    dy = random_array(rng, y.shape)
    dW_te, dW_pe = embedding_backward(dy, cache)
    buffer = np.full_like(dW_pe, 7)
    given_te, given_pe = embedding_backward(dy, cache, out=(None, buffer))
    assert given_pe is buffer
    np.testing.assert_array_equal(given_pe, dW_pe)
    np.testing.assert_array_equal(given_te, dW_te)


def test_repeated_ids_add_up(xp):
    """ids [0, 0]: the row's gradient is the sum, not the last."""
    W_te, W_pe = xp.ones((3, 2)), xp.ones((4, 2))
    _, cache = embedding_forward(xp.asarray([0, 0]), W_te, W_pe)
    dW_te, dW_pe = embedding_backward(xp.asarray([[1.0, 2.0], [10.0, 20.0]]), cache)
    np.testing.assert_array_equal(to_numpy(dW_te), [[11, 22], [0, 0], [0, 0]])
    np.testing.assert_array_equal(to_numpy(dW_pe), [[1, 2], [10, 20], [0, 0], [0, 0]])


def test_position_gradient_sums_over_the_batch():
    dx = np.arange(12.0).reshape(2, 3, 2)
    _, cache = embedding_forward(np.zeros((2, 3), int), np.ones((1, 2)), np.ones((3, 2)))
    np.testing.assert_array_equal(embedding_backward(dx, cache)[1], dx[0] + dx[1])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint16", "int32", "uint32", "int64", "uint64"])
def test_every_integer_dtype_is_an_id(xp, dtype):
    """uint16 is how token files are stored."""
    rng = np.random.default_rng(0)
    idx = rng.integers(0, V, (2, 4))
    idx[0, 0] = 0
    check_device(xp, op_for(idx.astype(dtype)), tables(rng), rng)


@pytest.mark.parametrize(
    ("idx", "message"),
    [
        ([[0, 1], [-1, 9]], r"idx\[1, 0\] is -1; ids must lie in 0 <= id < V = 5"),
        ([[0, 1], [4, 5]], r"idx\[1, 1\] is 5; ids must lie in 0 <= id < V = 5"),
        ([7], r"idx\[0\] is 7; ids must lie in 0 <= id < V = 5"),
    ],
)
def test_a_bad_id_is_named(xp, idx, message):
    """Negative ids never wrap; neither do ids past the end, which CUDA would wrap in silence."""
    W_te, W_pe = (xp.asarray(table) for table in tables(np.random.default_rng(0)))
    with pytest.raises(ValueError, match=message):
        embedding_forward(xp.asarray(idx), W_te, W_pe)


@pytest.mark.parametrize("idx", [[0.0, 1.0], [True, False]])
def test_ids_are_integers(xp, idx):
    W_te, W_pe = (xp.asarray(table) for table in tables(np.random.default_rng(0)))
    with pytest.raises(ValueError, match="idx must be integers, got dtype"):
        embedding_forward(xp.asarray(idx), W_te, W_pe)


def test_a_sequence_longer_than_the_table_is_an_error(xp):
    W_te, W_pe = (xp.asarray(table) for table in tables(np.random.default_rng(0)))
    embedding_forward(xp.zeros((2, 6), dtype=int), W_te, W_pe)
    with pytest.raises(ValueError, match="T = 7 positions, more than T_max = 6"):
        embedding_forward(xp.zeros((2, 7), dtype=int), W_te, W_pe)
