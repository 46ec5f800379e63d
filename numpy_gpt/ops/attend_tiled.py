"""Attention in tiles that fit the cache: `attend_forward` and `attend_backward` as the model runs them on a CPU.

The same numbers as in attention.py, computed in another order. Scores that the causal mask would drop are
never computed, which for a long T halves the work. Some heads are done together, tile by tile, and
such groups shared among the cores, instead of one (B, h, T, T) tensor at a time, which is too large
for any cache. Scores and weights stand transposed, key by query, so that softmax's maxima and sums
run over whole vectors of queries. And what can be done on (T, d_head) is not done on (T, T): the
scale goes to q, dq and dk, and the row sums that softmax's backward asks for come from dout and
out (Dao et al., 2022).
"""

from __future__ import annotations

import math

from ..backend import Array, array_module
from ..cores import in_threads, spare_cores
from .checks import check_floating, check_qkv
from .layernorm import row_dot

TILE = 128  # queries a tile

GROUP = 2**18  # scores of the heads that are done together

SHARED = 2**17  # scores in all: below, waking a second core does not pay

BLAS_SHARES = 2**18  # M·K·N of the largest product that OpenBLAS leaves to one thread


def attend_tiled_forward(q: Array, k: Array, v: Array, causal: bool = True, scale: bool = True) -> tuple[Array, tuple]:
    """out = softmax(q kᵀ / √d_head, masked) v, as `attend_forward` defines it.

    q, k, v (B, h, T, d_head)  ->  out (B, h, T, d_head).
    FLOPs a head: those of `attend_forward`; for a long T about half of them, forward and backward.

    Raises ValueError as `attend_forward`.
    """
    check_floating(q=q, k=k, v=v)
    check_qkv(q, k, v)
    xp = array_module(q)
    shape = q.shape
    T, d_head = shape[-2:]
    root = d_head**0.5 if scale else 1.0
    q, k, v = (merge_leading(t) for t in (q, k, v))  # (B, h, T, d_head)
    out = empty_heads(q)
    future = xp.tri(min(T, TILE), k=-1, dtype=bool)  # (keys, rows): the causal mask's opposite, transposed
    groups = head_groups(q)

    def attend_group(group: tuple[slice, slice]) -> list[tuple]:
        tiles = []
        v_group = together(v[group])
        for start in range(0, T, TILE):
            rows = slice(start, min(start + TILE, T))
            keys = slice(0, rows.stop if causal else T)  # the mask would drop the later ones
            attn = k[group][..., keys, :] @ transpose(q[group][..., rows, :] / root)  # (..., keys, rows)  scores
            if causal:  # of these keys, the tile's own may lie in a query's future
                n = rows.stop - start
                xp.copyto(attn[..., start:, :], -math.inf, where=future[:n, :n])
            # attn = softmax(scores), where they stand
            query_max = attn.real.max(axis=-2, keepdims=True)  # (..., 1, rows)
            attn -= xp.where(xp.isfinite(query_max), query_max, query_max.dtype.type(0))
            xp.exp(attn, out=attn)
            total = attn.sum(axis=-2, keepdims=True)  # (..., 1, rows)
            attn /= total + (total == 0)  # a query that sees nothing divides by 1 and stays 0
            xp.matmul(transpose(attn), v_group[..., keys, :], out=out[group][..., rows, :])
            tiles.append((rows, keys, attn))
        return tiles

    tiles = list(zip(groups, in_threads(attend_group, groups)))
    return out.reshape(shape), (q, k, v, out, tiles, root)


def tiled_weights(cache: tuple) -> Array:
    """Return attn (B, h, T, T), put together from the tiles that `attend_tiled_forward` saved."""
    q, _, _, _, tiles, _ = cache
    B, h, T, _ = q.shape
    attn = array_module(q).zeros((B, h, T, T), q.dtype)
    for group, its_tiles in tiles:
        for rows, keys, weights in its_tiles:
            attn[group][..., rows, keys] = transpose(weights)
    return attn


# A tile of queries sees the gradient of its own rows; its keys and values are seen by every later
# tile too, so dk and dv add up. The sum that softmax's backward takes from each row is
#   Σ_j attn_tj dattn_tj = Σ_j attn_tj (dout_t · v_j) = dout_t · out_t


def attend_tiled_backward(dout: Array, cache: tuple) -> tuple[Array, Array, Array]:
    """Return dq, dk, dv, each (B, h, T, d_head)."""
    q, k, v, out, tiles, root = cache
    xp = array_module(dout)
    shape, dout = dout.shape, merge_leading(dout)
    dq, dk, dv = (empty_heads(q) for _ in range(3))

    def attend_group(group_and_tiles: tuple) -> None:
        group, tiles = group_and_tiles
        row_sums = transpose(row_dot(dout[group], out[group]))  # (..., 1, T)
        k_group = together(k[group])
        for rows, keys, attn in reversed(tiles):  # the last sees every key
            last = rows.stop == dout.shape[-2]
            # out = attn @ v
            dscores = v[group][..., keys, :] @ transpose(dout[group][..., rows, :])  # (..., keys, rows)  dattn
            add_product(attn, dout[group][..., rows, :], dv[group][..., keys, :], first=last)
            # attn = softmax(scores)
            dscores -= row_sums[..., rows]
            dscores *= attn
            # scores = q @ k.T / √d_head
            xp.matmul(transpose(dscores), k_group[..., keys, :], out=dq[group][..., rows, :])
            add_product(dscores, q[group][..., rows, :], dk[group][..., keys, :], first=last)
            del dscores  # before the next is made beside it
        dq[group] /= root
        dk[group] /= root

    in_threads(attend_group, tiles)
    return dq.reshape(shape), dk.reshape(shape), dv.reshape(shape)


def add_product(a: Array, b: Array, total: Array, first: bool) -> None:
    """total += a @ b; the first product is written over what stands there."""
    if first:
        array_module(a).matmul(a, b, out=total)
    else:
        total += a @ b


def together(t: Array) -> Array:
    """Return t (..., T, d_head) with its rows side by side in memory, a copy where several tiles will read them."""
    return array_module(t).ascontiguousarray(t) if t.shape[-2] > TILE else t


def transpose(t: Array) -> Array:
    """(..., n, m) -> (..., m, n): a view."""
    return t.swapaxes(-2, -1)


def merge_leading(t: Array) -> Array:
    """(..., h, T, d_head) -> (B, h, T, d_head): the axes before the heads made one; a matrix is one head."""
    return t.reshape(math.prod(t.shape[:-3]), *(1, *t.shape)[-3:])


def empty_heads(like: Array) -> Array:
    """Return an array (B, h, T, d_head) that lies in memory as (B, T, h, d_head), so that `merge_heads` is a view."""
    B, h, T, d_head = like.shape
    return array_module(like).empty((B, T, h, d_head), like.dtype).swapaxes(1, 2)


def head_groups(q: Array) -> list[tuple[slice, slice]]:
    """Cut q (B, h, T, d_head) into groups, as indices of its first two axes, of about GROUP scores a tile.

    With many scores there is a group for every core. So too where BLAS would split a head's products
    among its own threads, which then keep spinning on the cores that the next op wants.
    """
    B, h, T, d_head = q.shape
    n = max(1, GROUP // max(1, T * min(T, TILE)))  # heads
    if B * h * T * min(T, TILE) > SHARED or T * T * d_head > BLAS_SHARES:
        n = min(n, -(-B * h // spare_cores()))
    if n < h:
        return [(slice(b, b + 1), slice(head, head + n)) for b in range(B) for head in range(0, h, n)]
    return [(slice(b, b + n // h), slice(0, h)) for b in range(0, B, n // h)]
