"""The rows of the embedding's gradient are those of embedding_backward."""

import numpy as np
from helpers import assert_close, random_array, seeds, snapshot
from hypothesis import given
from hypothesis import strategies as st

from numpy_gpt.backend import to_numpy
from numpy_gpt.ops import embedding_backward, embedding_forward
from numpy_gpt.ops.embedding_rows import embedding_rows_backward

V, T_MAX, D = 5, 6, 3
shapes = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)


@given(shapes, st.sampled_from(["float32", "float64", "complex128"]), seeds)
def test_equals_the_op_that_a_student_reads(shape, dtype, seed):
    rng = np.random.default_rng(seed)
    idx = rng.integers(0, V, shape)  # few ids for many places
    x, cache = embedding_forward(idx, random_array(rng, (V, D), dtype), random_array(rng, (T_MAX, D), dtype))
    dx = random_array(rng, x.shape, dtype)
    before = snapshot((dx, cache))
    (ids, rows), dW_pe = embedding_rows_backward(dx, cache)
    assert snapshot((dx, cache)) == before
    assert ids.tolist() == sorted(set(idx.reshape(-1).tolist()))
    dW_te = np.zeros((V, D), dtype)
    dW_te[ids] += rows
    expected_te, expected_pe = embedding_backward(dx, cache)
    rtol = 1e-6 if dtype == "float32" else 1e-14
    assert_close("dW_te", dW_te, expected_te, rtol, rtol)
    assert rows.dtype == dtype
    assert snapshot(dW_pe) == snapshot(expected_pe)


def test_writes_into_out(xp):
    W_te, W_pe = xp.ones((V, D)), xp.ones((T_MAX, D))
    x, cache = embedding_forward(xp.asarray([[1, 1, 4]]), W_te, W_pe)
    out = xp.full((T_MAX, D), 7.0)
    (ids, rows), dW_pe = embedding_rows_backward(x * 3, cache, out)
    assert dW_pe is out
    np.testing.assert_array_equal(to_numpy(ids), [1, 4])
    np.testing.assert_array_equal(to_numpy(rows), [[12.0] * D, [6.0] * D])
    np.testing.assert_array_equal(to_numpy(out), [[6.0] * D] * 3 + [[0.0] * D] * 3)


def test_no_ids_no_rows():
    x, cache = embedding_forward(np.zeros((0, 4), int), np.ones((V, D)), np.ones((T_MAX, D)))
    (ids, rows), dW_pe = embedding_rows_backward(x, cache)
    assert (ids.shape, rows.shape) == ((0,), (0, D))
    assert not dW_pe.any()
