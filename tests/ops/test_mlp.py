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

from numpy_gpt.ops import gelu_exact_forward, gelu_forward, mlp_backward, mlp_forward

NAMES = ("x", "W_1", "b_1", "W_2", "b_2")
OPS = {
    gelu: Op(lambda *inputs, gelu=gelu: mlp_forward(*inputs, gelu=gelu), mlp_backward, NAMES)
    for gelu in ("tanh", "exact")
}


@pytest.fixture(params=OPS, scope="module")
def op(request):
    return OPS[request.param]


def inputs(rng, shape, dtype="float64"):
    d = shape[-1]
    return tuple(random_array(rng, part, dtype) for part in (shape, (d, 4 * d), (4 * d,), (4 * d, d), (d,)))


@given(shape=shapes(1, 4, 2), seed=seeds, dtype=st.sampled_from(["float64", "complex128"]))
def test_gradient_against_central_differences(op, shape, seed, dtype):
    rng = np.random.default_rng(seed)
    check_gradients(op, inputs(rng, shape, dtype), rng, rtol=1e-8, atol=1e-10)


@given(shape=shapes(1, 4, 2), seed=seeds)
def test_gradient_against_the_complex_step(op, shape, seed):
    rng = np.random.default_rng(seed)
    check_complex_step(op, inputs(rng, shape), rng)


@given(shape=shapes(1, 4, 3), seed=seeds, dtype=st.sampled_from(["float32", "float64", "complex128"]))
def test_contract(op, shape, seed, dtype):
    rng = np.random.default_rng(seed)
    check_contract(op, inputs(rng, shape, dtype), rng)


@given(shape=shapes(1, 4, 3), seed=seeds, chosen=st.lists(layouts, min_size=6, max_size=6))
def test_memory_layout_is_no_matter(op, shape, seed, chosen):
    rng = np.random.default_rng(seed)
    check_layout(op, inputs(rng, shape), chosen, rng)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_device(op, xp, dtype):
    rng = np.random.default_rng(0)
    check_device(xp, op, inputs(rng, (2, 3, 4), dtype), rng)


@given(shape=shapes(1, 4, 3), seed=seeds, dtype=st.sampled_from(["float32", "float64"]))
def test_out_gives_the_same_bits(op, shape, seed, dtype):
    rng = np.random.default_rng(seed)
    check_out(mlp_backward, op, inputs(rng, shape, dtype), rng, first=1)


@pytest.mark.parametrize(("gelu", "activate"), [("tanh", gelu_forward), ("exact", gelu_exact_forward)])
def test_is_the_lessons_two_lines(gelu, activate):
    rng = np.random.default_rng(0)
    x, W_1, b_1, W_2, b_2 = inputs(rng, (2, 3, 4))
    y, _ = mlp_forward(x, W_1, b_1, W_2, b_2, gelu)
    np.testing.assert_allclose(y, activate(x @ W_1 + b_1)[0] @ W_2 + b_2, rtol=1e-12)


def test_positions_do_not_mix():
    """Editing one position leaves the others' outputs alone."""
    rng = np.random.default_rng(0)
    x, *parameters = inputs(rng, (1, 5, 4))
    y, _ = mlp_forward(x, *parameters)
    x[0, 2] += 1
    y_edited, _ = mlp_forward(x, *parameters)
    np.testing.assert_array_equal((y != y_edited).any(axis=-1), [[False, False, True, False, False]])


def test_another_width_is_an_error():
    _, *parameters = inputs(np.random.default_rng(0), (1, 4))
    with pytest.raises(ValueError, match=r"x has shape \(2, 3\), but W \(4, 16\) expects its last axis to be 4"):
        mlp_forward(np.ones((2, 3)), *parameters)
