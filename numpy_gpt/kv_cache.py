"""The key/value cache: what generation need not compute again.

Under the causal mask the keys and values of a position never change once they are computed:
nothing after it reaches it (lesson §2). Kept, each further token costs one row of work, and
every weight is read once a token. The model's own forward knows nothing of this file.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .backend import Array, array_module
from .model import Model
from .ops import head_forward, layernorm_forward, linear_forward, merge_heads, mlp_forward, qkv_forward, softmax_forward
from .ops.checks import check_ids

QUERY_BLOCK = 128  # queries at a time: their scores fit the processor's cache, and few are computed to be masked


class KVCache:
    """The keys and values of the tokens that B rows of text have read so far.

        cache = KVCache(model, B=2)
        logits = cache.forward(idx)              # (2, T, V), as model.forward(idx) gives them
        logits = cache.forward(next_idx, last=1) # (2, 1, V), each row read on from where it was

    k, v     a pair for each block, (B, h, T_max, d_head): slot t belongs to position t of its row
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
        shape = (B, config.h, config.T_max, config.d_head)
        # Zeros, as what a short row has not filled meets probability 0, and 0 times garbage may be nan.
        self.k = [model.xp.zeros(shape, model.dtype) for _ in range(config.L)]
        self.v = [model.xp.zeros(shape, model.dtype) for _ in range(config.L)]
        self.lengths = np.zeros(B, dtype=np.int64)
        self.model = model

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
        T = idx.shape[1]
        positions = xp.asarray(np.minimum(self.lengths[:, None] + np.arange(T), config.T_max - 1))  # (B, T)
        x = p["W_te"][idx] + p["W_pe"][positions]  # (B, T, d)
        for number in range(config.L):
            x = self._block(x, p.block(number), number, positions, counts)  # (B, T, d)
        self.lengths += counts
        if last is not None:
            columns = counts[:, None] + np.arange(-last, 0)  # (B, last)
            x = x[xp.arange(len(counts))[:, None], xp.asarray(columns)]  # (B, last, d)
        x, _ = layernorm_forward(x, p["ln_f.gamma"], p["ln_f.beta"], config.eps)
        logits, _ = head_forward(x, p["W_te" if config.tie else "W_head"])
        return logits

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

    def _block(self, x: Array, p: dict[str, Array], number: int, positions: Array, counts: np.ndarray) -> Array:
        """One block of the model, (B, T, d) -> (B, T, d), pre-norm or post-norm (lesson §4)."""
        config = self.model.config

        def ln(x: Array, name: str) -> Array:
            return layernorm_forward(x, p[f"{name}.gamma"], p[f"{name}.beta"], config.eps)[0]

        def mlp(x: Array) -> Array:
            return mlp_forward(x, p["W_1"], p["b_1"], p["W_2"], p["b_2"], config.gelu)[0]

        def attn(x: Array) -> Array:
            return self._attention(x, p, number, positions, counts)

        if config.norm == "post":
            x = ln(x + attn(x), "ln_1")
            return ln(x + mlp(x), "ln_2")
        x = x + attn(ln(x, "ln_1"))
        return x + mlp(ln(x, "ln_2"))

    def _attention(self, x: Array, p: dict[str, Array], number: int, positions: Array, counts: np.ndarray) -> Array:
        """Write the new keys and values into their slots; attend from the new queries to all so far."""
        config, T = self.model.config, x.shape[1]
        (q, k, v), _ = qkv_forward(x, p["W_qkv"], p["b_qkv"], config.h)  # each (B, h, T, d_head)
        for row, (start, n) in enumerate(zip(self.lengths.tolist(), counts.tolist())):
            self.k[number][row, :, start : start + n] = k[row, :, :n]
            self.v[number][row, :, start : start + n] = v[row, :, :n]
        blocks = []
        for first in range(0, T, QUERY_BLOCK):
            t = slice(first, min(first + QUERY_BLOCK, T))
            filled = slice(0, min(int(self.lengths.max()) + t.stop, config.T_max))  # what the last of t may see
            past_k, past_v = self.k[number][:, :, filled], self.v[number][:, :, filled]  # views
            blocks.append(attend_to_past(q[:, :, t], past_k, past_v, positions[:, t], config.scale))
        out = array_module(x).concatenate(blocks, axis=2)  # (B, h, T, d_head)
        out, _ = linear_forward(merge_heads(out), p["W_o"], p["b_o"])  # (B, T, d)
        return out

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows alone, in this order; row i is then what rows[i] was."""
        index = np.asarray(rows, dtype=np.int64)
        on_device = self.model.xp.asarray(index)
        self.k = [k[on_device] for k in self.k]
        self.v = [v[on_device] for v in self.v]
        self.lengths = self.lengths[index]


def attend_to_past(q: Array, k: Array, v: Array, positions: Array, scale: bool = True) -> Array:
    """out = softmax(q kᵀ / √d_head, masked) v,  where the query at position t sees the keys in slots j ≤ t.

    q (B, h, T, d_head), k and v (B, h, n, d_head), positions (B, T)  ->  out (B, h, T, d_head).
    The causal mask of lesson §2, its rows those of the queries' positions. FLOPs a head: 4·T·n·d_head.
    """
    xp = array_module(q)
    n, d_head = k.shape[-2:]
    scores = q @ k.swapaxes(-2, -1)  # (B, h, T, n)
    if scale:
        scores /= d_head**0.5
    seen = xp.arange(n) <= positions[:, None, :, None]  # (B, 1, T, n)
    attn, _ = softmax_forward(scores, seen)  # (B, h, T, n)
    return attn @ v  # (B, h, T, d_head)


def last_logits(model: Model, idx: Array, last: int = 1) -> Array:
    """Return the logits of the last positions of idx (B, T), (B, last, V), by a forward that keeps nothing.

    They are model.forward(idx)'s. Under the causal mask the logits of the other positions are not
    computed; without it, all are, as the model's own forward does.
    """
    if not model.config.causal:
        logits, _ = model.forward(idx)  # (B, T, V)
        return logits[:, -last:]
    return KVCache(model, len(idx)).forward(idx, last=last)
