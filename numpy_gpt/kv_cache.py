"""The key/value cache: what generation need not compute again.

Under the causal mask the keys and values of a position never change once they are computed:
nothing after it reaches it (lesson §2). Kept, each further token costs one row of work, and
every weight is read once a token. The model's own forward knows nothing of this file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .backend import Array, array_module
from .model import Model
from .ops import gelu_exact_forward, gelu_forward, merge_heads
from .ops.checks import check_ids

FEW_ROWS = 4  # on a CPU up to so many go one by one: 2 rows of GPT-2 small then take 0.43 of the time, 4 0.69, 8 1.04
QUERY_BLOCK = 128  # queries at a time: their scores fit the processor's cache, and few are computed to be masked


class Queries(NamedTuple):
    """Some of the new positions: which, how many slots they may see, and where in them (None: everywhere)."""

    t: slice
    n: int
    seen: Array | None  # (B, 1, T, n)


class KVCache:
    """The keys and values of the tokens that B rows of text have read so far.

        cache = KVCache(model, B=2)
        logits = cache.forward(idx)              # (2, T, V), as model.forward(idx) gives them
        logits = cache.forward(next_idx, last=1) # (2, 1, V), each row read on from where it was

    kv       (L, 2, B, h, T_max, d_head): each block's keys and values; slot t belongs to position t of its row
    lengths  (B,) the positions of each row that are filled, at most T_max; they may differ

    Positions are absolute (W_pe), so a full row has no room to slide: begin it anew. The cache
    belongs to the parameters as they were; after an update it is stale.

    Raises ValueError for a model without the causal mask: there every new token changes what
    all positions before it compute, and nothing can be kept.
    """

    def __init__(self, model: Model, B: int = 1) -> None:
        config = model.config
        if not config.causal:
            raise ValueError("a key/value cache needs Config.causal = True; without the mask, use model.forward")
        if B < 1:
            raise ValueError(f"B must be at least 1, got {B}")
        # Zeros, as what a short row has not filled meets probability 0, and 0 times garbage may be nan.
        self.kv = model.xp.zeros((config.L, 2, B, config.h, config.T_max, config.d_head), model.dtype)
        self.lengths = np.zeros(B, dtype=np.int64)
        self.model = model
        self.blocks = [model.params.block(number) for number in range(config.L)]

    def forward(self, idx: Array, counts: Sequence[int] | np.ndarray | None = None, last: int | None = None) -> Array:
        """Read on: idx (B, T) ids  ->  logits (B, T, V), the same as of one forward over each whole row.

        counts  (B,) how many of each row's T ids are real; what follows them is padding, whose
                logits mean nothing. Default: all.
        last    return only the logits of each row's last real positions, (B, last, V): the head is
                a third of GPT-2 small's work.

        FLOPs a token: ≈ 2N, the head's share only where logits are asked for.
        Raises ValueError for ids that are not integers in 0 <= id < V, a row that would pass T_max,
        counts outside 1..T and last outside 1..min(counts).
        """
        xp, p, config = self.model.xp, self.model.params, self.model.config
        idx = xp.asarray(idx)
        counts = self._check(idx, counts, last)
        check_ids(idx, config.V, "idx")
        B, T = idx.shape
        positions = np.minimum(self.lengths[:, None] + np.arange(T), config.T_max - 1)  # (B, T)
        queries = self._queries(positions)
        x = p["W_te"][idx] + p["W_pe"][xp.asarray(positions)]  # (B, T, d)
        x = x.reshape(B * T, config.d)  # rows, so that every product below reads its weights once
        for number in range(config.L):
            x = self._block(x, self.blocks[number], self.kv[number], queries, counts.tolist())  # (B·T, d)
        self.lengths += counts
        x = x.reshape(B, T, config.d)
        if last is not None:
            columns = counts[:, None] + np.arange(-last, 0)  # (B, last)
            x = x[xp.arange(B)[:, None], xp.asarray(columns)]  # (B, last, d)
        x = layernorm(x, p["ln_f.gamma"], p["ln_f.beta"], config.eps)
        logits = product(x.reshape(-1, config.d), p["W_te" if config.tie else "W_head"].T)  # (rows, V)
        return logits.reshape(B, -1, config.V)

    def _check(self, idx: Array, counts: Sequence[int] | np.ndarray | None, last: int | None) -> np.ndarray:
        B, T_max = len(self.lengths), self.model.config.T_max
        if idx.ndim != 2 or idx.shape[0] != B or idx.shape[1] == 0:
            raise ValueError(f"idx has shape {idx.shape}, but a cache of B = {B} rows reads (B, T) with T >= 1")
        T = idx.shape[1]
        counts = np.full(B, T) if counts is None else np.asarray(counts)
        if counts.shape != (B,) or counts.dtype.kind not in "iu" or counts.min() < 1 or counts.max() > T:
            raise ValueError(f"counts must be B = {B} integers in 1..T = {T}, got {counts.tolist()}")
        full = self.lengths + counts > T_max
        if full.any():
            row = int(full.argmax())
            raise ValueError(f"row {row} holds {self.lengths[row]} positions; {counts[row]} more pass T_max = {T_max}")
        if last is not None and not 1 <= last <= counts.min():
            raise ValueError(f"last must lie in 1..{counts.min()}, the fewest tokens of a row, got {last}")
        return counts.astype(np.int64)

    def _queries(self, positions: np.ndarray) -> list[Queries]:
        """Cut the new positions (B, T) into blocks of queries: the causal mask of lesson §2, row by row of the text."""
        xp, blocks = self.model.xp, []
        for first in range(0, positions.shape[1], QUERY_BLOCK):
            t = slice(first, first + QUERY_BLOCK)
            n = int(positions[:, t].max()) + 1
            seen = np.arange(n) <= positions[:, None, t, None]  # (B, 1, T, n)
            blocks.append(Queries(t, n, None if seen.all() else xp.asarray(seen)))
        return blocks

    def _block(self, x: Array, p: dict[str, Array], past: Array, queries: list[Queries], counts: list[int]) -> Array:
        """One block of the model, (B·T, d) -> (B·T, d), pre-norm or post-norm (lesson §4)."""
        config = self.model.config
        ln_1, ln_2 = (p["ln_1.gamma"], p["ln_1.beta"], config.eps), (p["ln_2.gamma"], p["ln_2.beta"], config.eps)
        if config.norm == "post":
            x = layernorm(x + self._attention(x, p, past, queries, counts), *ln_1)
            return layernorm(x + mlp(x, p, config.gelu), *ln_2)
        x = x + self._attention(layernorm(x, *ln_1), p, past, queries, counts)
        return x + mlp(layernorm(x, *ln_2), p, config.gelu)

    def _attention(
        self, x: Array, p: dict[str, Array], past: Array, queries: list[Queries], counts: list[int]
    ) -> Array:
        """Write the new keys and values into their slots of the past; attend from the new queries to all of it."""
        _, B, h, _, d_head = past.shape
        qkv = linear(x, p["W_qkv"], p["b_qkv"])  # (B·T, 3d)
        qkv = qkv.reshape(B, -1, 3, h, d_head).transpose(2, 0, 3, 1, 4)  # (3, B, h, T, d_head), a view
        for row, (start, n) in enumerate(zip(self.lengths.tolist(), counts)):
            past[:, row, :, start : start + n] = qkv[1:, row, :, :n]
        blocks = []
        for t, n, seen in queries:
            k, v = past[:, :, :, :n]  # each (B, h, n, d_head), a view
            blocks.append(attend_to_past(qkv[0, :, :, t], k, v, seen, self.model.config.scale))
        out = blocks[0] if len(blocks) == 1 else array_module(x).concatenate(blocks, axis=2)  # (B, h, T, d_head)
        return linear(merge_heads(out).reshape(x.shape), p["W_o"], p["b_o"])  # (B·T, d)

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows alone, in this order; row i is then what rows[i] was. Raises ValueError for another."""
        index = check_ids(np.array(rows, None if len(rows) else np.int64), len(self.lengths), "rows")
        on_device = self.model.xp.asarray(index)
        self.kv = self.kv[:, :, on_device]
        self.lengths = self.lengths[index]


# The ops once more, as a few rows want them: a token takes a few hundred calls, each a matter of
# microseconds beside products that last not much longer, and no backward will ask for what they saw.


def product(x: Array, W: Array) -> Array:
    """x @ W; of a few rows one by one, as BLAS would first copy W into an order of its own, which takes longer."""
    if len(x) <= FEW_ROWS and array_module(x) is np:
        return (x[:, None] @ W)[:, 0]
    return x @ W


def linear(x: Array, W: Array, b: Array) -> Array:
    """`ops.linear_forward` without its cache: x (rows, n_in)  ->  y (rows, n_out)."""
    y = product(x, W)
    y += b
    return y


def layernorm(x: Array, gamma: Array, beta: Array, eps: float) -> Array:
    """`ops.layernorm_forward` without its cache: x (..., d)  ->  y (..., d)."""
    d = x.shape[-1]
    y = x - x[..., :1]
    y -= y.sum(axis=-1, keepdims=True) / d
    var = (y * y).sum(axis=-1, keepdims=True) / d  # (..., 1)
    y /= (var + eps) ** 0.5
    y *= gamma
    y += beta
    return y


def mlp(x: Array, p: dict[str, Array], gelu: str) -> Array:
    """`ops.mlp_forward` without its cache: x (rows, d)  ->  y (rows, d)."""
    activate = gelu_forward if gelu == "tanh" else gelu_exact_forward
    h1, _ = activate(linear(x, p["W_1"], p["b_1"]))  # (rows, 4d)
    return linear(h1, p["W_2"], p["b_2"])


def attend_to_past(q: Array, k: Array, v: Array, seen: Array | None, scale: bool = True) -> Array:
    """out = softmax(q kᵀ / √d_head, masked) v,  the mask `seen`, which shows every query one key at least.

    q (B, h, T, d_head), k and v (B, h, n, d_head), seen (B, 1, T, n), None where that is all True
    ->  out (B, h, T, d_head). FLOPs a head: 4·T·n·d_head.
    """
    xp = array_module(q)
    scores = q @ k.swapaxes(-2, -1)  # (B, h, T, n)
    if scale:
        scores /= k.shape[-1] ** 0.5
    if seen is not None:
        scores = xp.where(seen, scores, scores.dtype.type(-math.inf))
    scores -= scores.max(axis=-1, keepdims=True)
    attn = xp.exp(scores, out=scores)
    return attn @ v / attn.sum(axis=-1, keepdims=True)  # (B, h, T, d_head)


def last_logits(model: Model, idx: Array, last: int = 1) -> Array:
    """Return the logits of the last positions of idx (B, T), (B, last, V), by a cache that nobody keeps.

    They are model.forward(idx)'s. Under the causal mask the logits of the other positions are not
    computed; without it, all are, as the model's own forward does.
    """
    if not model.config.causal:
        logits, _ = model.forward(idx)  # (B, T, V)
        return logits[:, -last:]
    return KVCache(model, len(idx)).forward(idx, last=last)
