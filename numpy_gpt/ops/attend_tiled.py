"""Attention in tiles that fit the cache: `attend_forward` and `attend_backward` for long T on a CPU.

The same numbers as in attention.py, with two differences in how they are had. Scores that the
causal mask would drop are never computed, which halves the work. And each head is done tile by
tile, the heads shared among the cores, instead of one (B, h, T, T) tensor at a time, which is too
large for any cache.
"""

from __future__ import annotations

import numpy as np

from ..backend import Array, array_module, in_threads
from .softmax import causal_mask, softmax_backward, softmax_forward

TILE = 128  # queries a tile


def attend_tiled_forward(q: Array, k: Array, v: Array, causal: bool = True, scale: bool = True) -> tuple[Array, tuple]:
    """out = softmax(q kᵀ / √d_head, masked) v, as `attend_forward` defines it.

    q, k, v (B, h, T, d_head)  ->  out (B, h, T, d_head).
    FLOPs a head: about half of `attend_forward`'s, forward and backward.
    """
    xp = array_module(q)
    *B, h, T, d_head = q.shape
    out = xp.empty((*B, T, h, d_head), q.dtype).swapaxes(-3, -2)  # so that merge_heads need not copy
    mask = causal_mask(T, xp)
    tiles = {}

    def attend_head(head: tuple[int, ...]) -> None:
        attns = []
        for start in range(0, T, TILE):
            rows = slice(start, start + TILE)
            keys = slice(0, min(start + TILE, T) if causal else T)  # the mask would drop the later ones
            scores = q[head][rows] @ k[head][keys].T  # (rows, keys)
            if scale:
                scores /= d_head**0.5
            attn, _ = softmax_forward(scores, mask[rows, keys] if causal else None)  # (rows, keys)
            out[head][rows] = attn @ v[head][keys]  # (rows, d_head)
            attns.append((rows, keys, attn))
        tiles[head] = attns

    in_threads(attend_head, np.ndindex(*B, h))
    return out, (q, k, v, tiles, scale)


# A tile of queries sees the gradient of its own rows; its keys and values are seen by every later
# tile too, so dk and dv add up.


def attend_tiled_backward(dout: Array, cache: tuple) -> tuple[Array, Array, Array]:
    """Return dq, dk, dv, each (B, h, T, d_head)."""
    q, k, v, tiles, scale = cache
    xp = array_module(dout)
    d_head = q.shape[-1]
    dq, dk, dv = (xp.zeros(q.shape, q.dtype) for _ in range(3))

    def attend_head(head: tuple[int, ...]) -> None:
        for rows, keys, attn in tiles[head]:
            # out = attn @ v
            dattn = dout[head][rows] @ v[head][keys].T  # (rows, keys)
            dv[head][keys] += attn.T @ dout[head][rows]  # (keys, d_head)
            # attn = softmax(scores)
            dscores = softmax_backward(dattn, attn)  # (rows, keys)
            # scores = q @ k.T / √d_head
            if scale:
                dscores /= d_head**0.5
            dq[head][rows] = dscores @ k[head][keys]  # (rows, d_head)
            dk[head][keys] += dscores.T @ q[head][rows]  # (keys, d_head)

    in_threads(attend_head, tiles)
    return dq, dk, dv
