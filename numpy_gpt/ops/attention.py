"""Causal multi-head self-attention, shape by shape (lesson §2).

    x ── qkv ──> q, k, v ── attend ──> out ── merge heads, output projection ──> out

Leading axes are written B here; any number of them works.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..backend import Array, array_module
from .attend_tiled import attend_tiled_backward, attend_tiled_forward, tiled_weights
from .checks import check_axes, check_floating, check_heads, check_qkv, check_shape
from .linear import linear_backward, linear_forward
from .softmax import causal_mask, softmax_backward, softmax_forward


def split_heads(t: Array, h: int) -> Array:
    """(B, T, d) -> (B, T, h, d_head) -> (B, h, T, d_head): a view. Its backward is `merge_heads`.

    Raises ValueError where h does not divide d.
    """
    *B, T, d = t.shape
    check_heads(d, h, f"an array {t.shape}")
    return t.reshape(*B, T, h, d // h).swapaxes(-3, -2)


def merge_heads(t: Array) -> Array:
    """(B, h, T, d_head) -> (B, T, h, d_head) -> (B, T, d). Its backward is `split_heads`."""
    *B, h, T, d_head = t.shape
    return t.swapaxes(-3, -2).reshape(*B, T, h * d_head)


def qkv_forward(x: Array, W_qkv: Array, b_qkv: Array, h: int) -> tuple[tuple[Array, Array, Array], tuple]:
    """q, k, v = split(x @ W_qkv + b_qkv), each cut into h heads: one GEMM instead of three.

    x (B, T, d), W_qkv (d, 3d), b_qkv (3d,)  ->  q, k, v, each (B, h, T, d_head).
    FLOPs a token: 6d² forward, 12d² backward. Lesson §2; Vaswani et al., 2017.

    Raises ValueError where a shape does not fit the others, or h does not divide d, and for whole numbers and
    mixed precisions.
    """
    check_floating(x=x, W_qkv=W_qkv, b_qkv=b_qkv)
    xp = array_module(x)
    check_axes(W_qkv, "W_qkv", "d", "3d")
    d = len(W_qkv)
    check_shape(W_qkv, (d, 3 * d), "W_qkv", f"d = {d}")
    check_heads(d, h, "W_qkv")
    qkv, cache = linear_forward(x, W_qkv, b_qkv)  # (B, T, 3d)
    q, k, v = xp.split(qkv, 3, axis=-1)  # each (B, T, d)
    q, k, v = (split_heads(t, h) for t in (q, k, v))  # each (B, h, T, d_head)
    return (q, k, v), cache


def qkv_backward(
    dqkv: tuple[Array, Array, Array], cache: tuple, out: tuple = (None, None)
) -> tuple[Array, Array, Array]:
    """Take (dq, dk, dv), each (B, h, T, d_head); return dx (B, T, d), dW_qkv (d, 3d), db_qkv (3d,).

    The K third of db_qkv is 0 when dk comes from attention: adding one vector to every key
    shifts each row of scores by a constant, and softmax does not see it.
    out: arrays to write dW_qkv and db_qkv into, like NumPy's own out=.
    """
    dq, dk, dv = dqkv
    xp = array_module(dq)
    # q, k, v = split(qkv), cut into heads
    dqkv = xp.concatenate([merge_heads(dt) for dt in (dq, dk, dv)], axis=-1)  # (B, T, 3d)
    # qkv = x @ W_qkv + b_qkv
    return linear_backward(dqkv, cache, out=out)


def attend_forward(q: Array, k: Array, v: Array, causal: bool = True, scale: bool = True) -> tuple[Array, tuple]:
    """out = softmax(q kᵀ / √d_head, masked) v

    q, k, v (B, h, T, d_head)  ->  out (B, h, T, d_head).
    causal=False drops the mask, scale=False the √d_head (the lesson's experiments).
    On a CPU the model calls `attend_tiled_forward`, which gives the same numbers.
    FLOPs a head: 4·T²·d_head for the two products, twice that backward; 5·T² for scale and
    softmax, forward and backward alike.
    Lesson §2; Vaswani et al., 2017.

    Raises ValueError where q, k and v are not of one shape, and for whole numbers and mixed precisions.
    """
    check_floating(q=q, k=k, v=v)
    check_qkv(q, k, v)
    xp = array_module(q)
    T, d_head = q.shape[-2:]
    scores = q @ k.swapaxes(-2, -1)  # (B, h, T, T)
    if scale:
        scores /= d_head**0.5
    attn, cache_softmax = softmax_forward(scores, causal_mask(T, xp) if causal else None)  # (B, h, T, T)
    out = attn @ v  # (B, h, T, d_head)
    return out, (q, k, v, attn, cache_softmax, scale)


def attend_backward(dout: Array, cache: tuple) -> tuple[Array, Array, Array]:
    """Return dq, dk, dv, each (B, h, T, d_head)."""
    q, k, v, attn, cache_softmax, scale = cache
    d_head = q.shape[-1]
    # out = attn @ v
    dattn = dout @ v.swapaxes(-2, -1)  # (B, h, T, T)
    dv = attn.swapaxes(-2, -1) @ dout  # (B, h, T, d_head)
    # attn = softmax(scores); a masked score gets exactly 0
    dscores = softmax_backward(dattn, cache_softmax)  # (B, h, T, T)
    # scores = q @ k.T / √d_head
    if scale:
        dscores /= d_head**0.5
    dq = dscores @ k  # (B, h, T, d_head)
    dk = dscores.swapaxes(-2, -1) @ q  # (B, h, T, d_head)
    return dq, dk, dv


def attend_pair(q: Array) -> tuple[Callable, Callable]:
    """Return the forward and backward to attend with: these on a GPU, on a CPU those in tiles, the same numbers."""
    return (attend_tiled_forward, attend_tiled_backward) if array_module(q) is np else (attend_forward, attend_backward)


def attention_weights(cache: tuple) -> Array:
    """Return attn (B, h, T, T) from the cache of `attention_forward`: how much of position j goes into position t."""
    (_, _, x_shape), cache_attend, _, h, attend_back = cache
    attn = tiled_weights(cache_attend) if attend_back is attend_tiled_backward else cache_attend[3]
    *B, T, _ = x_shape
    return attn.reshape(*B, h, T, T)


def attention_forward(
    x: Array,
    W_qkv: Array,
    b_qkv: Array,
    W_o: Array,
    b_o: Array,
    h: int,
    causal: bool = True,
    scale: bool = True,
) -> tuple[Array, tuple]:
    """out = merge_heads(attend(q, k, v)) @ W_o + b_o,  with q, k, v from `qkv_forward`.

    x (B, T, d), W_qkv (d, 3d), b_qkv (3d,), W_o (d, d), b_o (d,)  ->  out (B, T, d).
    FLOPs a token: 8d² + 4·T·d forward, softmax apart; twice that backward.
    Lesson §2; Vaswani et al., 2017.

    Raises ValueError where a shape does not fit the others, or h does not divide d, and for whole numbers and
    mixed precisions.
    """
    check_floating(x=x, W_qkv=W_qkv, b_qkv=b_qkv, W_o=W_o, b_o=b_o)
    (q, k, v), cache_qkv = qkv_forward(x, W_qkv, b_qkv, h)  # each (B, h, T, d_head)
    check_shape(W_o, x.shape[-1:] * 2, "W_o", f"W_qkv {W_qkv.shape}")
    attend, attend_back = attend_pair(q)
    out, cache_attend = attend(q, k, v, causal, scale)  # (B, h, T, d_head)
    out = merge_heads(out)  # (B, T, d)
    out, cache_o = linear_forward(out, W_o, b_o)  # (B, T, d)
    return out, (cache_qkv, cache_attend, cache_o, h, attend_back)


def attention_backward(
    dout: Array, cache: tuple, out: tuple = (None, None, None, None)
) -> tuple[Array, Array, Array, Array, Array]:
    """Return dx (B, T, d), dW_qkv (d, 3d), db_qkv (3d,), dW_o (d, d), db_o (d,).

    out: arrays to write the four parameter gradients into, like NumPy's own out=.
    """
    cache_qkv, cache_attend, cache_o, h, attend_back = cache
    # out = out @ W_o + b_o
    dout, dW_o, db_o = linear_backward(dout, cache_o, out=out[2:])  # (B, T, d)
    # out = merge_heads(out)
    dout = split_heads(dout, h)  # (B, h, T, d_head)
    # out = attend(q, k, v)
    dq, dk, dv = attend_back(dout, cache_attend)  # each (B, h, T, d_head)
    # q, k, v = qkv(x)
    dx, dW_qkv, db_qkv = qkv_backward((dq, dk, dv), cache_qkv, out=out[:2])
    return dx, dW_qkv, db_qkv, dW_o, db_o
