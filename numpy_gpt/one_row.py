"""The next token of a single text on a CPU: the model's forward on one vector.

This is what sampling on a laptop does. Every weight is read once a token, so the memory's bandwidth sets
the limit. Those reads also push everything else out of the processor's cache: a small call between two
products starts cold, and takes many times what it takes in a loop of its own. Hence vectors where
kv_cache.py has rows, few calls, and W_o and W_2 copied column by column, which memory delivers faster.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from .cores import in_threads
from .kv_cache import KVCache
from .ops import gelu_exact_forward, gelu_forward
from .ops.checks import check_ids

NARROW = 1024  # columns, of a matrix that is read faster column by column


class OneRow:
    """Reads a cache of one row on, token by token.

        one_row = OneRow(cache)
        logits = one_row.forward(token)  # (V,), as cache.forward([[token]]) gives them in (1, 1, V)

    Both may read on in turn: the keys and values are the cache's. W_o and W_2 are copies, where they are
    narrow: 141 MB and 40 ms at GPT-2 small, whose tokens then take 0.93 of the time. They are the parameters'
    as they were; after an update they are stale, like the cache.

    Raises ValueError for a cache of more rows and for a model on another device.
    """

    def __init__(self, cache: KVCache) -> None:
        if len(cache.lengths) != 1 or cache.model.xp is not np:
            raise ValueError(
                f"OneRow reads one row on the CPU, got a cache of {len(cache.lengths)} on {cache.model.xp.__name__}"
            )
        self.cache, self.config = cache, cache.model.config
        self.blocks = lay_for_one_row([cache.model.params.block(number) for number in range(self.config.L)])
        scratch = np.empty(4 * self.config.d, cache.model.dtype)  # GELU's one array, kept from block to block
        self.gelu = gelu_exact_forward if self.config.gelu == "exact" else partial(gelu_forward, out=(scratch, scratch))

    def forward(self, token: int) -> np.ndarray:
        """Read one token on: its id  ->  the logits (V,) of the one after it.

        FLOPs: ≈ 2N.
        Raises ValueError for an id outside 0 <= id < V and for a row that is full.
        """
        p, config, t = self.cache.model.params, self.config, int(self.cache.lengths[0])
        if type(token) is not int or not 0 <= token < config.V:
            token = int(check_ids(np.array([[token]]), config.V, "idx")[0, 0])
        if t == config.T_max:
            raise ValueError(f"row 0 holds {t} positions; 1 more pass T_max = {t}")
        x = p["W_te"][token] + p["W_pe"][t]  # (d,)
        for p_block, past in zip(self.blocks, self.cache.kv[:, :, 0]):
            x = self._block(x, p_block, past, t)
        self.cache.lengths += 1
        x = layernorm(x, p["ln_f.gamma"], p["ln_f.beta"], config.eps)
        return p["W_te" if config.tie else "W_head"] @ x

    def _block(self, x: np.ndarray, p: dict[str, np.ndarray], past: np.ndarray, t: int) -> np.ndarray:
        """One block of the model, (d,) -> (d,), pre-norm or post-norm (lesson §4); writes over x."""
        eps = self.config.eps
        if self.config.norm == "post":
            x += self._attention(x, p, past, t)
            x = layernorm(x, p["ln_1.gamma"], p["ln_1.beta"], eps)
            x += self._mlp(x, p)
            return layernorm(x, p["ln_2.gamma"], p["ln_2.beta"], eps)
        x += self._attention(layernorm(x, p["ln_1.gamma"], p["ln_1.beta"], eps), p, past, t)
        x += self._mlp(layernorm(x, p["ln_2.gamma"], p["ln_2.beta"], eps), p)
        return x

    def _attention(self, x: np.ndarray, p: dict[str, np.ndarray], past: np.ndarray, t: int) -> np.ndarray:
        """Write the keys and values of position t into the past (2, h, T_max, d_head); attend from t to all of it."""
        _, h, _, d_head = past.shape
        qkv = x @ p["W_qkv"]  # (3d,)
        qkv += p["b_qkv"]
        qkv = qkv.reshape(3, h, d_head, 1)
        past[:, :, t] = qkv[1:, :, :, 0]
        k, v = past[0, :, : t + 1], past[1, :, : t + 1]  # each (h, t + 1, d_head), a view
        scores = k @ qkv[0]  # (h, t + 1, 1)
        if self.config.scale:
            scores *= d_head**-0.5
        scores -= np.maximum.reduce(scores, axis=1, keepdims=True)
        attn = np.exp(scores, out=scores)
        out = v.swapaxes(1, 2) @ attn  # (h, d_head, 1)
        out /= np.add.reduce(attn, axis=1, keepdims=True)
        y = out.reshape(-1) @ p["W_o"]  # (d,)
        y += p["b_o"]
        return y

    def _mlp(self, x: np.ndarray, p: dict[str, np.ndarray]) -> np.ndarray:
        h1 = x @ p["W_1"]  # (4d,)
        h1 += p["b_1"]
        h1, _ = self.gelu(h1)
        y = h1 @ p["W_2"]  # (d,)
        y += p["b_2"]
        return y


def layernorm(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, eps: float) -> np.ndarray:
    """`kv_cache.layernorm` of one vector x (d,), whose mean and variance are plain numbers: 1% less a token."""
    y = x - x[0]
    y -= np.add.reduce(y) / y.size
    y /= math.sqrt(y @ y / x.size + eps)
    y *= gamma
    y += beta
    return y


def lay_for_one_row(blocks: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """Return the blocks' parameters with W_o and W_2, where they are narrow, copied column by column.

    Of a row times W, BLAS gives each core some of W's columns. Of a narrow W laid row by row these are a
    short strip of every row, which the memory is slower to hand over than columns in one piece. All the
    copies share one vector, large enough for huge pages, of which the processor can keep track.
    """
    laid = [dict(p) for p in blocks]
    narrow = [(p, name) for p in laid for name in ("W_o", "W_2") if p[name].shape[1] <= NARROW]
    flat = np.empty(sum(p[name].size for p, name in narrow), blocks[0]["W_o"].dtype)
    pairs, stop = [], 0
    for p, name in narrow:
        W = p[name]
        start, stop = stop, stop + W.size
        p[name] = flat[start:stop].reshape(W.shape[::-1]).T  # of W's shape, column by column
        pairs.append((W, p[name]))
    in_threads(lambda pair: copy_some_rows_at_a_time(*pair), pairs)
    return laid


def copy_some_rows_at_a_time(W: np.ndarray, copy: np.ndarray, rows: int = 64) -> None:
    """Copy W (n_in, n_out) into a matrix that is laid column by column; so many rows fit the cache."""
    for start in range(0, len(W), rows):
        copy[start : start + rows] = W[start : start + rows]
