"""The post-norm block of 2017, which the lesson compares with its own (lesson §4)."""

from __future__ import annotations

from .backend import Array
from .config import Config
from .ops import attention_backward, attention_forward, mlp_backward, mlp_forward

# The ops of the lesson, called in blocks that fit the cache: the same numbers.
from .ops.blocked import layernorm_blocked_backward as layernorm_backward
from .ops.blocked import layernorm_blocked_forward as layernorm_forward


def post_norm_block_forward(x: Array, p: dict[str, Array], config: Config) -> tuple[Array, tuple]:
    """x = LN(x + Attn(x));  x = LN(x + MLP(x)): the norm stands on the skip path itself.

    x (B, T, d), p the block's parameters, the same as the pre-norm block's  ->  x (B, T, d).
    FLOPs a token: 24d² + 4·T·d forward, norms, softmax and GELU apart; twice that backward.
    Lesson §4; Vaswani et al., 2017.
    """
    # x = LN(x + Attn(x))
    y, cache_attn = attention_forward(
        x, p["W_qkv"], p["b_qkv"], p["W_o"], p["b_o"], config.h, config.causal, config.scale
    )  # (B, T, d)
    x, cache_ln_1 = layernorm_forward(x + y, p["ln_1.gamma"], p["ln_1.beta"], config.eps)  # (B, T, d)
    # x = LN(x + MLP(x))
    y, cache_mlp = mlp_forward(x, p["W_1"], p["b_1"], p["W_2"], p["b_2"], config.gelu)  # (B, T, d)
    x, cache_ln_2 = layernorm_forward(x + y, p["ln_2.gamma"], p["ln_2.beta"], config.eps)  # (B, T, d)
    return x, (cache_attn, cache_ln_1, cache_mlp, cache_ln_2)


def post_norm_block_backward(dx: Array, cache: tuple, g: dict[str, Array]) -> Array:
    """Return dx (B, T, d) at the block's input; write the block's parameter gradients into g."""
    cache_attn, cache_ln_1, cache_mlp, cache_ln_2 = cache
    # x = LN(x + MLP(x))
    dx, *_ = layernorm_backward(dx, cache_ln_2, out=(g["ln_2.gamma"], g["ln_2.beta"]))  # (B, T, d)
    dy, *_ = mlp_backward(dx, cache_mlp, out=(g["W_1"], g["b_1"], g["W_2"], g["b_2"]))  # (B, T, d)
    dx = dx + dy
    # x = LN(x + Attn(x))
    dx, *_ = layernorm_backward(dx, cache_ln_1, out=(g["ln_1.gamma"], g["ln_1.beta"]))  # (B, T, d)
    dy, *_ = attention_backward(dx, cache_attn, out=(g["W_qkv"], g["b_qkv"], g["W_o"], g["b_o"]))  # (B, T, d)
    dx = dx + dy
    return dx
