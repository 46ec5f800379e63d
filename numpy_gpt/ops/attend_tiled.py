"""Attention in tiles that fit the cache: `attend_forward` and `attend_backward` for long T on a CPU.

The same numbers as in attention.py, had in other ways. Scores that the causal mask would drop are
never computed, which halves the work. Each head is done tile by tile, the heads shared among the
cores, instead of one (B, h, T, T) tensor at a time, which is too large for any cache. And what can
be done on (T, d_head) is not done on (T, T): the scale goes to q, dq and dk, and the row sums that
softmax's backward asks for come from dout and out (Dao et al., 2022).
"""

from __future__ import annotations

import math

import numpy as np

from ..backend import Array, array_module, in_threads
from .layernorm import row_dot
from .softmax import causal_mask

TILE = 128  # queries a tile

BLAS_SHARES = 2**18  # M·K·N of the largest product that OpenBLAS leaves to one thread


def attend_tiled_forward(q: Array, k: Array, v: Array, causal: bool = True, scale: bool = True) -> tuple[Array, tuple]:
    """out = softmax(q kᵀ / √d_head, masked) v, as `attend_forward` defines it.

    q, k, v (B, h, T, d_head)  ->  out (B, h, T, d_head).
    FLOPs a head: about half of `attend_forward`'s, forward and backward.
    """
    xp = array_module(q)
    *B, h, T, d_head = q.shape
    root = d_head**0.5 if scale else 1.0
    out = xp.empty((*B, T, h, d_head), q.dtype).swapaxes(-3, -2)  # so that merge_heads need not copy
    future = ~causal_mask(min(T, TILE), xp)
    tiles = {}

    def attend_head(head: tuple[int, ...]) -> None:
        attns = []
        for start in range(0, T, TILE):
            rows = slice(start, start + TILE)
            keys = slice(0, min(start + TILE, T) if causal else T)  # the mask would drop the later ones
            attn = (q[head][rows] / root) @ k[head][keys].T  # (rows, keys)  scores
            if causal:  # of these keys, the tile's own may lie in a query's future
                attn[:, start:][future[: len(attn), : len(attn)]] = -math.inf
            # attn = softmax(scores), where they stand
            attn -= attn.real.max(axis=-1, keepdims=True)
            xp.exp(attn, out=attn)
            attn /= attn.sum(axis=-1, keepdims=True)
            out[head][rows] = attn @ v[head][keys]  # (rows, d_head)
            attns.append((rows, keys, attn))
        tiles[head] = attns

    in_threads(attend_head, np.ndindex(*B, h))
    return out, (q, k, v, out, tiles, root)


# A tile of queries sees the gradient of its own rows; its keys and values are seen by every later
# tile too, so dk and dv add up. The sum that softmax's backward takes from each row is
#   Σ_j attn_tj dattn_tj = Σ_j attn_tj (dout_t · v_j) = dout_t · out_t


def attend_tiled_backward(dout: Array, cache: tuple) -> tuple[Array, Array, Array]:
    """Return dq, dk, dv, each (B, h, T, d_head)."""
    q, k, v, out, tiles, root = cache
    xp = array_module(dout)
    dq, dk, dv = (xp.zeros(q.shape, q.dtype) for _ in range(3))

    def attend_head(head: tuple[int, ...]) -> None:
        row_sums = row_dot(dout[head], out[head])  # (T, 1)
        for rows, keys, attn in tiles[head]:
            # out = attn @ v
            dscores = dout[head][rows] @ v[head][keys].T  # (rows, keys)  dattn
            dv[head][keys] += attn.T @ dout[head][rows]  # (keys, d_head)
            # attn = softmax(scores)
            dscores -= row_sums[rows]
            dscores *= attn
            # scores = q @ k.T / √d_head
            dq[head][rows] = dscores @ k[head][keys]  # (rows, d_head)
            dk[head][keys] += dscores.T @ q[head][rows]  # (keys, d_head)
        dq[head] /= root
        dk[head] /= root

    in_threads(attend_head, tiles)
    return dq, dk, dv
