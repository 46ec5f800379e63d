import numpy as np
import pytest
from helpers import Op, assert_close, check_complex_step, check_contract, check_device, check_gradients, random_array

from numpy_gpt import Config, Parameters
from numpy_gpt.backend import array_module
from numpy_gpt.ops import attention_forward, layernorm_forward, mlp_forward
from numpy_gpt.post_norm import post_norm_block_backward, post_norm_block_forward

CONFIG = Config(V=2, T_max=3, d=4, h=2, L=1, norm="post", eps=0.1)
SHAPES = {
    name.removeprefix("block.0."): shape
    for name, shape in CONFIG.parameter_shapes().items()
    if name.startswith("block.0.")
}


def inputs(rng, dtype="float64", T=3):
    return tuple(random_array(rng, shape, dtype) for shape in ((2, T, 4), *SHAPES.values()))


def block_op(config=CONFIG):
    """The block as an op of x and its twelve parameters."""

    def forward(x, *parameters):
        return post_norm_block_forward(x, dict(zip(SHAPES, parameters, strict=True)), config)

    def backward(dx, cache):
        g = {name: array_module(dx).zeros(shape, dtype=dx.dtype) for name, shape in SHAPES.items()}
        return post_norm_block_backward(dx, cache, g), *g.values()

    return Op(forward, backward, ("x", *SHAPES))


@pytest.mark.parametrize("gelu", ["tanh", "exact"])
@pytest.mark.parametrize("causal", [True, False])
def test_gradients(gelu, causal):
    rng = np.random.default_rng(0)
    op = block_op(Config(**{**CONFIG.to_dict(), "gelu": gelu, "causal": causal}))
    check_gradients(op, inputs(rng), rng, rtol=1e-7, atol=1e-9)
    check_complex_step(op, inputs(rng), rng)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_contract(dtype):
    rng = np.random.default_rng(0)
    check_contract(block_op(), inputs(rng, dtype), rng)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_device(xp, dtype):
    rng = np.random.default_rng(0)
    check_device(xp, block_op(), inputs(rng, dtype), rng)


def test_the_norm_stands_on_the_skip_path():
    rng = np.random.default_rng(0)
    x, *parameters = inputs(rng)
    p = dict(zip(SHAPES, parameters))
    y, _ = post_norm_block_forward(x, p, CONFIG)
    attn, _ = attention_forward(x, p["W_qkv"], p["b_qkv"], p["W_o"], p["b_o"], 2)
    x, _ = layernorm_forward(x + attn, p["ln_1.gamma"], p["ln_1.beta"], 0.1)
    mlp, _ = mlp_forward(x, p["W_1"], p["b_1"], p["W_2"], p["b_2"])
    expected, _ = layernorm_forward(x + mlp, p["ln_2.gamma"], p["ln_2.beta"], 0.1)
    assert_close("y", y, expected, 1e-14)


def test_every_gradient_is_overwritten_not_added_to():
    rng = np.random.default_rng(0)
    x, *parameters = inputs(rng)
    y, cache = post_norm_block_forward(x, dict(zip(SHAPES, parameters)), CONFIG)
    dy = random_array(rng, y.shape)
    fresh, used = Parameters(SHAPES, "float64"), Parameters(SHAPES, "float64")
    used.flat[:] = np.nan
    post_norm_block_backward(dy, cache, fresh)
    post_norm_block_backward(dy, cache, used)
    assert used.flat.tobytes() == fresh.flat.tobytes()
