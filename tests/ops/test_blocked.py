"""The blocked ops give what the ops that a student reads give, on both sides of one block."""

import numpy as np
import pytest
from helpers import assert_close, random_array, snapshot, upstream

from numpy_gpt.cores import BLOCK_SIZE
from numpy_gpt.ops import (
    IGNORE_INDEX,
    cross_entropy_backward,
    cross_entropy_forward,
    gelu_backward,
    gelu_forward,
    layernorm_backward,
    layernorm_forward,
)
from numpy_gpt.ops.blocked import (
    LOSS_BLOCK,
    cross_entropy_blocked_backward,
    cross_entropy_blocked_forward,
    gelu_blocked_backward,
    gelu_blocked_forward,
    layernorm_blocked_backward,
    layernorm_blocked_forward,
    one_block,
)

d = 64
ROWS = BLOCK_SIZE // d
SHAPES = [(3, d), (2, ROWS // 2, d), (1, ROWS + 1, d), (3, ROWS, d), (ROWS * 4 + 5, d)]
DTYPES = ["float32", "float64", "complex128"]
RTOL = {"float32": 2e-5, "float64": 1e-12, "complex128": 1e-12}


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu(shape, dtype, rng):
    x = random_array(rng, shape, dtype)
    (y, cache), (y_whole, whole) = gelu_blocked_forward(x), gelu_forward(x)
    dy = upstream(rng, y)
    before = snapshot((x, dy, cache))
    dx, dx_whole = gelu_blocked_backward(dy, cache), gelu_backward(dy, whole)
    assert snapshot((x, dy, cache)) == before
    assert_close("y", y, y_whole, RTOL[dtype])
    assert_close("dx", dx, dx_whole, RTOL[dtype], RTOL[dtype])  # the slope taken another way


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gelu_of_large_numbers(dtype, rng):
    """As in the op itself: x, or 0, with slope 1, or 0, and no digit lost in 1 − tanh u."""
    x = np.concatenate([np.linspace(-12, 12, 20001), [-1e9, -1e4, 1e4, 1e9]]).astype(dtype)
    (y, cache), (y_whole, whole) = gelu_blocked_forward(x), gelu_forward(x)
    ones = np.ones_like(x)
    slope, slope_whole = gelu_blocked_backward(ones, cache), gelu_backward(ones, whole)
    assert snapshot(y) == snapshot(y_whole)
    assert_close("slope", slope, slope_whole, 0, 40 * np.finfo(dtype).eps)
    assert list(slope[-4:]) == [0, 0, 1, 1]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_layernorm(shape, dtype, rng):
    x, gamma, beta = (random_array(rng, size, dtype) for size in (shape, (d,), (d,)))
    (y, cache), (y_whole, whole) = layernorm_blocked_forward(x, gamma, beta), layernorm_forward(x, gamma, beta)
    dy = upstream(rng, y)
    before = snapshot((x, gamma, beta, dy, cache))
    dx, dgamma, dbeta = layernorm_blocked_backward(dy, cache)
    dx_whole, dgamma_whole, dbeta_whole = layernorm_backward(dy, whole)
    assert snapshot((x, gamma, beta, dy, cache)) == before
    assert snapshot((y, dx)) == snapshot((y_whole, dx_whole))
    for name, gradient, expected in (("dgamma", dgamma, dgamma_whole), ("dbeta", dbeta, dbeta_whole)):
        assert_close(name, gradient, expected, RTOL[dtype], RTOL[dtype] * np.abs(expected).max())
    out = (np.full_like(gamma, 7), np.full_like(gamma, 7))
    written = layernorm_blocked_backward(dy, cache, out)
    assert written[1] is out[0]
    assert written[2] is out[1]
    assert snapshot(written) == snapshot((dx, dgamma, dbeta))


@pytest.mark.parametrize(
    ("B", "T", "V"), [(2, 3, 5), (3, 7, 50257), (2, 40, 50257), (1, 3, LOSS_BLOCK), (1, 1, LOSS_BLOCK + 1)]
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_cross_entropy(B, T, V, dtype, rng):
    logits = random_array(rng, (B, T, V), dtype)
    targets = rng.integers(0, V, (B, T))
    targets[0, : T // 2] = IGNORE_INDEX  # blocks that count different numbers of targets, or none
    loss, cache = cross_entropy_blocked_forward(logits, targets)
    whole_loss, whole = cross_entropy_forward(logits, targets)
    assert loss.dtype == dtype
    assert_close("loss", np.asarray(loss), np.asarray(whole_loss), RTOL[dtype])
    before = snapshot(cache)
    dlogits, expected = cross_entropy_blocked_backward(1.7, cache), cross_entropy_backward(1.7, whole)
    assert dlogits.shape == logits.shape
    assert snapshot(cache) == before
    assert_close("dlogits", dlogits, expected, RTOL[dtype], RTOL[dtype] * np.abs(expected).max())


def test_cross_entropy_counts_nothing_where_all_targets_are_ignored(rng):
    logits = random_array(rng, (2, 10, 50257), "float32")
    loss, cache = cross_entropy_blocked_forward(logits, np.full((2, 10), IGNORE_INDEX))
    assert loss == 0
    assert not cross_entropy_blocked_backward(1.0, cache).any()


@pytest.mark.parametrize(("bad", "message"), [(50257, r"targets\[1, 9\] is 50257"), (-4, r"targets\[1, 9\] is -4")])
def test_cross_entropy_names_the_place_in_the_whole(bad, message, rng):
    targets = np.zeros((2, 15), dtype=int)
    targets[1, 9] = bad
    with pytest.raises(ValueError, match=message):
        cross_entropy_blocked_forward(random_array(rng, (2, 15, 50257), "float32"), targets)


def test_cross_entropy_shapes_must_fit(rng):
    with pytest.raises(ValueError, match="targets have shape"):
        cross_entropy_blocked_forward(random_array(rng, (2, 15, 50257), "float32"), np.zeros((2, 14), int))


def test_a_device_takes_the_op_itself(strict):
    assert one_block(strict.zeros((ROWS * 4 + 5, d)))
    assert not one_block(np.zeros((ROWS * 4 + 5, d)))
