import math

import numpy as np
import pytest
from helpers import (
    LAYOUTS,
    Op,
    assert_close,
    assert_dtype,
    check_complex_step,
    check_contract,
    check_device,
    check_gradients,
    layouts,
    random_array,
    seeds,
    shapes,
)
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from numpy_gpt.backend import array_module, to_numpy
from numpy_gpt.ops import IGNORE_INDEX, cross_entropy_backward, cross_entropy_forward


def op_for(targets):
    """The op with these targets, which go where the logits are."""
    return Op(
        lambda logits: cross_entropy_forward(logits, array_module(logits).asarray(targets)),
        cross_entropy_backward,
        ("logits",),
    )


def random_op(rng, shape):
    """Random targets, about a third of them ignored, so that sometimes all are."""
    targets = rng.integers(0, shape[-1], shape[:-1])
    return op_for(np.where(rng.random(shape[:-1]) < 0.3, IGNORE_INDEX, targets))


@given(shape=shapes(1, 4, 3), seed=seeds, dtype=st.sampled_from(["float64", "complex128"]))
def test_gradient_against_central_differences(shape, seed, dtype):
    rng = np.random.default_rng(seed)
    check_gradients(random_op(rng, shape), (2 * random_array(rng, shape, dtype),), rng)


@given(logits=arrays("float64", shapes(1, 4, 3), elements=st.floats(-50, 50, allow_subnormal=False)), seed=seeds)
def test_gradient_against_the_complex_step(logits, seed):
    rng = np.random.default_rng(seed)
    check_complex_step(random_op(rng, logits.shape), (logits,), rng)


@given(shape=shapes(1, 4), seed=seeds, dtype=st.sampled_from(["float32", "float64", "complex128"]))
def test_contract(shape, seed, dtype):
    rng = np.random.default_rng(seed)
    check_contract(random_op(rng, shape), (random_array(rng, shape, dtype),), rng)


@given(shape=shapes(1, 4), seed=seeds, layout=layouts)
def test_memory_layout_is_no_matter(shape, seed, layout):
    rng = np.random.default_rng(seed)
    op, logits = random_op(rng, shape), LAYOUTS[layout](random_array(rng, shape))
    loss, cache = op.forward(logits)
    loss_plain, cache_plain = op.forward(logits.copy(order="C"))
    assert_close("loss", loss, loss_plain, 1e-14)
    assert_close("dlogits", op.backward(1.0, cache), op.backward(1.0, cache_plain), 1e-14)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_device(xp, dtype):
    rng = np.random.default_rng(0)
    check_device(xp, random_op(rng, (3, 4, 7)), (random_array(rng, (3, 4, 7), dtype),), rng)


def test_uniform_logits_cost_ln_V():
    loss, _ = cross_entropy_forward(np.full((4, 50), 3.0), np.arange(4))
    assert loss == pytest.approx(math.log(50), rel=1e-15)


def test_against_the_definition():
    rng = np.random.default_rng(0)
    logits, targets = random_array(rng, (2, 3, 5)), rng.integers(0, 5, (2, 3))
    loss, _ = cross_entropy_forward(logits, targets)
    probs = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    total = sum(-math.log(probs[b, t, targets[b, t]]) for b in range(2) for t in range(3))
    assert loss == pytest.approx(total / 6, rel=1e-14)


def test_gradient_is_divided_by_the_counted_targets(xp):
    """By neither the number of places nor 1, which Adam would hide."""
    rng = np.random.default_rng(0)
    logits = random_array(rng, (6, 4))
    targets = np.array([1, IGNORE_INDEX, 3, 0, IGNORE_INDEX, 2])
    _, cache = cross_entropy_forward(xp.asarray(logits), xp.asarray(targets))
    dlogits = to_numpy(cross_entropy_backward(1.0, cache))
    probs = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    expected = (probs - np.eye(4)[targets * (targets >= 0)]) / 4
    expected[targets < 0] = 0
    assert_close("dlogits", dlogits, expected, 1e-14)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_all_targets_ignored_is_0_with_zero_gradients(xp, dtype):
    logits = xp.asarray(random_array(np.random.default_rng(0), (2, 3, 5), dtype))
    loss, cache = cross_entropy_forward(logits, xp.full((2, 3), IGNORE_INDEX))
    assert float(loss) == 0
    dlogits = cross_entropy_backward(1.0, cache)
    assert dlogits.dtype == dtype
    assert not dlogits.any()


def test_another_ignore_index(xp):
    logits = xp.asarray(random_array(np.random.default_rng(0), (3, 5)))
    loss, cache = cross_entropy_forward(logits, xp.asarray([4, -1, 2]), ignore_index=-1)
    expected, _ = cross_entropy_forward(logits, xp.asarray([4, IGNORE_INDEX, 2]))
    assert float(loss) == float(expected)
    assert not cross_entropy_backward(1.0, cache)[1].any()


def test_an_ignore_index_inside_the_vocabulary_wins(xp):
    """Padding is often id 0: its places are not counted."""
    logits = xp.asarray(random_array(np.random.default_rng(0), (3, 5)))
    loss, cache = cross_entropy_forward(logits, xp.asarray([4, 0, 2]), ignore_index=0)
    expected, _ = cross_entropy_forward(logits, xp.asarray([4, IGNORE_INDEX, 2]))
    assert float(loss) == float(expected)
    assert not cross_entropy_backward(1.0, cache)[1].any()


@pytest.mark.parametrize("dloss", [1, 2.5, np.float64(2.5), np.float32(2.5), np.array(2.5)])
def test_no_scalar_upstream_promotes(xp, dloss):
    rng = np.random.default_rng(0)
    logits = random_array(rng, (3, 5), "float32")
    _, cache = cross_entropy_forward(xp.asarray(logits), xp.asarray([4, 0, 2]))
    dlogits = cross_entropy_backward(dloss, cache)
    assert_dtype(dlogits, np.float32)
    assert_close("dlogits", dlogits, float(dloss) * to_numpy(cross_entropy_backward(1, cache)), 1e-6)


@pytest.mark.parametrize("scale", [1e4, 1e30])
def test_large_logits_neither_overflow_nor_warn(scale):
    loss, cache = cross_entropy_forward(np.array([[0, scale, -scale]], "float32"), np.array([1]))
    assert loss == 0
    np.testing.assert_array_equal(cross_entropy_backward(1.0, cache), [[0, 0, 0]])
    loss, _ = cross_entropy_forward(np.array([[0, scale, -scale]], "float32"), np.array([0]))
    assert loss == np.float32(scale)


@pytest.mark.parametrize(("bad", "shown"), [(-4, "-4"), (5, "5"), (-1, "-1"), (-101, "-101")])
def test_a_bad_target_is_named(xp, bad, shown):
    targets = np.array([[0, 1, IGNORE_INDEX], [2, bad, bad]])
    with pytest.raises(ValueError, match=rf"targets\[1, 1\] is {shown}; ids must lie in 0 <= id < V = 5"):
        cross_entropy_forward(xp.zeros((2, 3, 5)), xp.asarray(targets))


def test_targets_are_integers_of_the_right_shape(xp):
    with pytest.raises(ValueError, match=r"targets have shape \(3, 2\), but logits \(2, 3, 5\) want \(2, 3\)"):
        cross_entropy_forward(xp.zeros((2, 3, 5)), xp.zeros((3, 2), dtype=int))
    with pytest.raises(ValueError, match="targets must be integers, got dtype float64"):
        cross_entropy_forward(xp.zeros((2, 3, 5)), xp.zeros((2, 3)))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32"])
def test_narrow_targets(xp, dtype):
    logits = xp.asarray(random_array(np.random.default_rng(0), (3, 5)))
    loss, _ = cross_entropy_forward(logits, xp.asarray(np.array([4, 0, 2], dtype)))
    expected, _ = cross_entropy_forward(logits, xp.asarray([4, 0, 2]))
    assert float(loss) == float(expected)


def test_logits_of_no_axes():
    with pytest.raises(ValueError, match=r"^logits must be \(\.\.\., V\), got shape \(\)$"):
        cross_entropy_forward(np.array(1.0), np.array(0))
