"""GELU, LayerNorm and the loss again, in blocks that fit the cache and are shared among the cores.

Each works on large arrays, and what costs time is not the arithmetic but carrying them to and from
memory once for every step of the formula. Here a block of rows takes all the steps of the op while
it stays in the cache. LayerNorm's and the loss's mathematics is the op's own, called block by block;
an array that is one block, or lies on a GPU, takes the op itself. GELU's is written out once more:
its slope comes almost for free on the way forward, and so the backward is one product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..backend import Array, array_module
from ..cores import BLOCK_SIZE, for_blocks
from .checks import check_ids
from .cross_entropy import IGNORE_INDEX, cross_entropy_backward, cross_entropy_forward
from .gelu import CUBIC, SQRT_2_OVER_PI
from .layernorm import layernorm_backward, layernorm_forward


def one_block(x: Array, block: int = BLOCK_SIZE) -> bool:
    """Tell whether x is best left whole."""
    return array_module(x) is not np or x.size <= block


def for_rows(work: Callable[[slice], Any], x: Array, block: int = BLOCK_SIZE) -> list[Any]:
    """Call work(rows) for slices of the rows of x (rows, width), about block numbers each."""
    n_rows, width = x.shape
    return for_blocks(work, n_rows, np, max(1, block // width))


def gelu_blocked_forward(x: Array) -> tuple[Array, tuple]:
    """`gelu_forward`, block by block; saves dy/dx, one array, in place of x and tanh z.

    FLOPs an element, tanh counted as one: 15 forward, 1 backward.
    """
    xp = array_module(x)
    y, slope = xp.empty_like(x, order="C"), xp.empty_like(x, order="C")
    x_flat, y_flat, slope_flat = x.reshape(-1), y.reshape(-1), slope.reshape(-1)

    def work(block: slice) -> None:
        gelu_and_slope(x_flat[block], y_flat[block], slope_flat[block])

    for_blocks(work, x.size, xp)
    return y, (slope,)


def gelu_and_slope(x: Array, y: Array, slope: Array) -> None:
    """Write GELU(x) into y and its derivative into slope. With half = ½ (1 + tanh z), as in gelu.py,

    y = x · half,  dy/dx = half + 2x dz/dx · half · (1 − half).
    """
    xp = array_module(x)
    half = x * x
    xp.multiply(half, 6 * SQRT_2_OVER_PI * CUBIC, out=slope)
    slope += 2 * SQRT_2_OVER_PI  # 2 dz/dx
    half *= SQRT_2_OVER_PI * CUBIC
    half += SQRT_2_OVER_PI
    half *= x  # z
    xp.tanh(half, out=half)
    half += 1
    half *= 0.5
    slope *= xp.subtract(1, half, out=y)  # y's memory serves meanwhile
    slope *= half  # these two before x: far out one of them is 0, and x³ is inf
    slope *= x
    slope += half
    xp.multiply(x, half, out=y)


def gelu_blocked_backward(dy: Array, cache: tuple) -> Array:
    """Return dx = dy · dy/dx, of x's shape."""
    (slope,) = cache
    xp = array_module(dy)
    dx = xp.empty(dy.shape, dy.dtype)
    dy_flat, slope_flat, dx_flat = dy.reshape(-1), slope.reshape(-1), dx.reshape(-1)

    def work(block: slice) -> None:
        xp.multiply(dy_flat[block], slope_flat[block], out=dx_flat[block])

    for_blocks(work, dy.size, xp)
    return dx


def layernorm_blocked_forward(x: Array, gamma: Array, beta: Array, eps: float = 1e-5) -> tuple[Array, tuple]:
    """`layernorm_forward`, some rows at a time."""
    if one_block(x):
        return layernorm_forward(x, gamma, beta, eps)
    x_rows = x.reshape(-1, x.shape[-1])  # (rows, d)
    y, xhat = np.empty(x_rows.shape, x.dtype), np.empty(x_rows.shape, x.dtype)
    rstd = np.empty((len(x_rows), 1), x.dtype)

    def work(rows: slice) -> None:
        y[rows], (xhat[rows], rstd[rows], _) = layernorm_forward(x_rows[rows], gamma, beta, eps)

    for_rows(work, x_rows)
    return y.reshape(x.shape), (xhat.reshape(x.shape), rstd.reshape(*x.shape[:-1], 1), gamma)


def layernorm_blocked_backward(dy: Array, cache: tuple, out: tuple = (None, None)) -> tuple[Array, Array, Array]:
    """`layernorm_backward`, some rows at a time; dgamma and dbeta add up over them."""
    if one_block(dy):
        return layernorm_backward(dy, cache, out)
    xhat, rstd, gamma = cache
    dy_rows, xhat_rows, rstd_rows = (t.reshape(-1, t.shape[-1]) for t in (dy, xhat, rstd))  # (rows, d), (rows, 1)
    dx = np.empty(dy_rows.shape, dy.dtype)

    def work(rows: slice) -> list[Array]:
        dx[rows], *gradients = layernorm_backward(dy_rows[rows], (xhat_rows[rows], rstd_rows[rows], gamma))
        return gradients

    parts = np.array(for_rows(work, dy_rows))  # (blocks, 2, d)
    dgamma, dbeta = out
    dgamma = parts[:, 0].sum(axis=0, out=dgamma)
    dbeta = parts[:, 1].sum(axis=0, out=dbeta)
    return dx.reshape(dy.shape), dgamma, dbeta


LOSS_BLOCK = 2**19  # numbers: some rows of GPT-2's vocabulary


def cross_entropy_blocked_forward(
    logits: Array, targets: Array, ignore_index: int = IGNORE_INDEX
) -> tuple[Array, tuple]:
    """`cross_entropy_forward`, some rows at a time: their means, weighted by their counted targets."""
    if one_block(logits, LOSS_BLOCK) or targets.shape != logits.shape[:-1]:
        loss, cache = cross_entropy_forward(logits, targets, ignore_index)
        return loss, (logits.shape, [(slice(None), 1, cache)])
    V = logits.shape[-1]
    targets = check_ids(targets, V, "targets", ignore_index).reshape(-1)  # (N,)
    logits_rows = logits.reshape(-1, V)  # (N, V)
    n_counted = max(int((targets != ignore_index).sum()), 1)

    def work(rows: slice) -> tuple:
        loss, cache = cross_entropy_forward(logits_rows[rows], targets[rows], ignore_index)
        share = int((targets[rows] != ignore_index).sum()) / n_counted
        return loss * share, (rows, share, cache)

    losses, blocks = zip(*for_rows(work, logits_rows, LOSS_BLOCK))
    return sum(losses), (logits.shape, blocks)


def cross_entropy_blocked_backward(dloss: Array | float, cache: tuple) -> Array:
    """`cross_entropy_backward`, some rows at a time."""
    shape, blocks = cache
    if len(blocks) == 1:
        return cross_entropy_backward(dloss, blocks[0][2]).reshape(shape)
    dtype = blocks[0][2][0].dtype  # of the probabilities
    dlogits = np.empty(shape, dtype)
    dlogits_rows = dlogits.reshape(-1, shape[-1])  # (N, V)
    dloss = np.asarray(dloss, dtype=dtype)

    def work(part: slice) -> None:
        for rows, share, block_cache in blocks[part]:
            cross_entropy_backward(dloss * share, block_cache, out=dlogits_rows[rows])

    for_blocks(work, len(blocks), np, 1)
    return dlogits
