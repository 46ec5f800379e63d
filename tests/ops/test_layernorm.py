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
    check_out,
    layouts,
    random_array,
    seeds,
    shapes,
)
from hypothesis import given
from hypothesis import strategies as st

from numpy_gpt.ops import layernorm_backward, layernorm_forward

NAMES = ("x", "gamma", "beta")
OP = Op(layernorm_forward, layernorm_backward, NAMES)


def inputs(rng, shape, dtype="float64"):
    """x of this shape, and gamma and beta that are neither 1 nor 0."""
    return tuple(random_array(rng, part, dtype) for part in (shape, shape[-1:], shape[-1:]))


@given(shape=shapes(1, 4, 3), seed=seeds, dtype=st.sampled_from(["float64", "complex128"]))
def test_gradient_against_central_differences(shape, seed, dtype):
    """With a large ε: close to a constant row, differences of the default's are useless."""
    op = Op(lambda *inputs: layernorm_forward(*inputs, eps=0.5), layernorm_backward, NAMES)
    rng = np.random.default_rng(seed)
    check_gradients(op, inputs(rng, shape, dtype), rng)


@given(shape=shapes(1, 4, 3), seed=seeds, spread=st.sampled_from([1.0, 1e-3, 0.0, 1e3]))
def test_gradient_against_the_complex_step(shape, seed, spread):
    rng = np.random.default_rng(seed)
    x, gamma, beta = inputs(rng, shape)
    check_complex_step(OP, (0.25 + spread * x, gamma, beta), rng)


@given(shape=shapes(1, 4), seed=seeds, dtype=st.sampled_from(["float32", "float64", "complex128"]))
def test_contract(shape, seed, dtype):
    rng = np.random.default_rng(seed)
    check_contract(OP, inputs(rng, shape, dtype), rng)


@given(shape=shapes(1, 4), seed=seeds, chosen=st.lists(layouts, min_size=4, max_size=4))
def test_memory_layout_is_no_matter(shape, seed, chosen):
    rng = np.random.default_rng(seed)
    op = Op(lambda *inputs: layernorm_forward(*inputs, eps=0.5), layernorm_backward, NAMES)
    check_layout(op, inputs(rng, shape), chosen, rng)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_device(xp, dtype):
    rng = np.random.default_rng(0)
    check_device(xp, OP, inputs(rng, (2, 3, 8), dtype), rng)


@given(shape=shapes(1, 4), seed=seeds, dtype=st.sampled_from(["float32", "float64"]))
def test_out_gives_the_same_bits(shape, seed, dtype):
    rng = np.random.default_rng(seed)
    check_out(layernorm_backward, OP, inputs(rng, shape, dtype), rng, first=1)


def test_rows_have_mean_0_and_variance_1():
    rng = np.random.default_rng(0)
    y, _ = layernorm_forward(5 + 3 * random_array(rng, (4, 7, 50)), np.ones(50), np.zeros(50), eps=1e-12)
    np.testing.assert_allclose(y.mean(axis=-1), 0, atol=1e-14)
    np.testing.assert_allclose(y.var(axis=-1), 1, rtol=1e-12)


def test_against_the_formula():
    rng = np.random.default_rng(1)
    x, gamma, beta = inputs(rng, (3, 6))
    y, _ = layernorm_forward(x, gamma, beta, eps=0.1)
    for row in range(3):
        mu, var = sum(x[row]) / 6, sum((x[row] - sum(x[row]) / 6) ** 2) / 6
        np.testing.assert_allclose(y[row], gamma * (x[row] - mu) / (var + 0.1) ** 0.5 + beta, rtol=1e-13)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("value", [0, 0.1, -6e4, 51_234.7, 65_504, 1e15])
@pytest.mark.parametrize("d", [8, 48, 768, 1600])
def test_a_constant_row_gives_beta_and_a_finite_gradient(dtype, value, d):
    """Where d is no power of 2, the mean of equal numbers far from 0 is not quite that number."""
    rng = np.random.default_rng(0)
    _, gamma, beta = inputs(rng, (2, d), dtype)
    y, cache = layernorm_forward(np.full((2, d), value, dtype), gamma, beta)
    np.testing.assert_array_equal(y, np.broadcast_to(beta, (2, d)))
    for gradient in layernorm_backward(random_array(rng, (2, d), dtype), cache):
        assert np.isfinite(gradient).all()


def test_rows_far_from_0_are_exact_to_their_own_rounding():
    """The mean of 768 float32 numbers near 10,000 is right to 1e-3 alone; their distances from it are to be better."""
    rng = np.random.default_rng(5)
    x, gamma, beta = inputs(rng, (64, 768))
    x = (1e4 + x).astype("float32")
    y, _ = layernorm_forward(x, *(t.astype("float32") for t in (gamma, beta)))
    assert_close("y", y, layernorm_forward(x.astype("float64"), gamma, beta)[0], 2e-6)


def test_values_at_the_end_of_float16s_range():
    """6e4 squared would overflow float16; in float32 the result is exact to rounding."""
    rng = np.random.default_rng(0)
    x, gamma, beta = inputs(rng, (4, 64))
    x = np.where(x > 0, 6e4, -6e4) + x
    y, cache = layernorm_forward(x, gamma, beta)
    y_single, cache_single = layernorm_forward(*(t.astype("float32") for t in (x, gamma, beta)))
    assert_close("y", y_single, y, 1e-6)
    dy = random_array(rng, (4, 64))
    found = layernorm_backward(dy.astype("float32"), cache_single)
    for name, single, double in zip(NAMES, found, layernorm_backward(dy, cache)):
        assert_close(f"d{name}", single, double, 3e-6)


def test_a_large_mean_does_not_cost_the_variance():
    """E[x²] − E[x]² would lose it all here."""
    x = (1e4 + np.array([[-1.0, 0.0, 1.0, 2.0]])).astype("float32")
    y, _ = layernorm_forward(x, np.ones(4, "float32"), np.zeros(4, "float32"))
    assert_close("y", y, layernorm_forward(x.astype("float64"), np.ones(4), np.zeros(4))[0], 1e-6)


def test_dx_has_no_component_along_ones_or_xhat():
    """A row's mean and scale are taken out, so a step along them changes nothing."""
    rng = np.random.default_rng(2)
    x, gamma, beta = inputs(rng, (3, 9))
    _, cache = layernorm_forward(x, gamma, beta, eps=1e-14)
    dx, _, _ = layernorm_backward(random_array(rng, (3, 9)), cache)
    np.testing.assert_allclose(dx.sum(axis=-1), 0, atol=1e-13)
    np.testing.assert_allclose((dx * x).sum(axis=-1), 0, atol=1e-12)


def test_another_width_is_an_error(xp):
    ones = xp.ones(3)
    with pytest.raises(ValueError, match=r"x has shape \(2, 1\), but gamma \(3,\) expects its last axis to be 3"):
        layernorm_forward(xp.ones((2, 1)), ones, ones)
    with pytest.raises(ValueError, match=r"x has shape \(\)"):
        layernorm_forward(xp.ones(()), ones, ones)
