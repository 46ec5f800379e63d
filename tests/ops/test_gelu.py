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

from numpy_gpt.ops import gelu_backward, gelu_exact_backward, gelu_exact_forward, gelu_forward
from numpy_gpt.ops.blocked import gelu_blocked_backward, gelu_blocked_forward

OPS = {
    "tanh": Op(gelu_forward, gelu_backward, ("x",)),
    "exact": Op(gelu_exact_forward, gelu_exact_backward, ("x",)),
}


@pytest.fixture(params=OPS, scope="module")
def op(request):
    return OPS[request.param]


@given(shape=shapes(1, 4, 3), seed=seeds, dtype=st.sampled_from(["float64", "complex128"]))
def test_gradient_against_central_differences(op, shape, seed, dtype):
    rng = np.random.default_rng(seed)
    check_gradients(op, (2 * random_array(rng, shape, dtype),), rng, rtol=1e-9, atol=1e-10)


@given(x=arrays("float64", shapes(1, 4, 3), elements=st.floats(-30, 30, allow_subnormal=False)), seed=seeds)
def test_gradient_against_the_complex_step(op, x, seed):
    check_complex_step(op, (x,), np.random.default_rng(seed))


@given(shape=shapes(1, 4), seed=seeds, dtype=st.sampled_from(["float32", "float64", "complex128"]))
def test_contract(op, shape, seed, dtype):
    rng = np.random.default_rng(seed)
    check_contract(op, (random_array(rng, shape, dtype),), rng)


@given(shape=shapes(1, 4), seed=seeds, chosen=st.lists(layouts, min_size=2, max_size=2))
def test_memory_layout_is_no_matter(op, shape, seed, chosen):
    rng = np.random.default_rng(seed)
    check_layout(op, (random_array(rng, shape),), chosen, rng)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_device(op, xp, dtype):
    rng = np.random.default_rng(0)
    check_device(xp, op, (3 * random_array(rng, (2, 3, 5), dtype),), rng)


def test_known_values():
    x = np.array([-1.0, 0.0, 1.0, 2.0])
    exact = [-0.15865525393145707, 0, 0.8413447460685429, 1.9544997361036416]  # x·Φ(x), from tables of Φ
    np.testing.assert_allclose(gelu_exact_forward(x)[0], exact, rtol=1e-15)
    tanh = [-0.15880800939172324, 0, 0.8411919906082768, 1.954597694087775]
    np.testing.assert_allclose(gelu_forward(x)[0], tanh, rtol=1e-15)


def test_tanh_and_exact_are_told_apart():
    """They differ by up to 4.7e-4, near ±2.7."""
    x = np.linspace(-6, 6, 12001)
    difference = np.abs(gelu_forward(x)[0] - gelu_exact_forward(x)[0])
    assert 4.6e-4 < difference.max() < 4.8e-4
    assert abs(abs(x[difference.argmax()]) - 2.7) < 0.1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_far_out_the_gradient_is_1_and_0_without_warnings(op, dtype):
    x = np.array([100, -100], dtype)
    y, cache = op.forward(x)
    np.testing.assert_array_equal(y, [100, 0])
    np.testing.assert_array_equal(op.backward(np.ones_like(x), cache), [1, 0])


def test_single_precision_is_as_good_as_single_precision_gets(op):
    x = np.linspace(-8, 8, 1001)
    y, cache = op.forward(x)
    y_single, cache_single = op.forward(x.astype("float32"))
    assert_close("y", y_single, y, 2e-7)
    assert_close("dx", op.backward(np.ones(1001, "float32"), cache_single), op.backward(np.ones(1001), cache), 2e-6)


@pytest.mark.parametrize("form", [(gelu_forward, gelu_backward), (gelu_exact_forward, gelu_exact_backward)])
def test_a_single_number(form):
    forward, backward = form
    y, cache = forward(np.float64(0.7))
    (many,), many_cache = forward(np.array([0.7]))
    assert y == many
    assert backward(1.3, cache) == backward(np.array([1.3]), many_cache)[0]


@pytest.mark.parametrize("pair", [(gelu_forward, gelu_backward), (gelu_blocked_forward, gelu_blocked_backward)])
@pytest.mark.parametrize(("dtype", "far"), [("float32", 1e18), ("float64", 1e150)])
def test_far_out_where_the_cube_is_beyond_every_float(pair, dtype, far):
    forward, backward = pair
    x = np.array([-far, far], dtype)
    with np.errstate(over="ignore"):
        y, cache = forward(x)
    np.testing.assert_array_equal(y, [0, x[1]])
    np.testing.assert_array_equal(backward(np.ones_like(x), cache), [0, 1])
