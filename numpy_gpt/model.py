"""The decoder-only Transformer: forward, and the same lines upside down (lesson §1-§5)."""

from __future__ import annotations

import math
from copy import copy, deepcopy
from numbers import Integral
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np

from .backend import Array
from .config import Config
from .cores import keep_freed_memory
from .ops import (
    IGNORE_INDEX,
    attention_backward,
    attention_forward,
    embedding_backward,
    embedding_forward,
    head_backward,
    head_forward,
    mlp_backward,
    mlp_forward,
)

# The ops of the lesson in forms that spare memory traffic: the same numbers.
from .ops.blocked import cross_entropy_blocked_backward as cross_entropy_backward
from .ops.blocked import cross_entropy_blocked_forward as cross_entropy_forward
from .ops.blocked import layernorm_blocked_backward as layernorm_backward
from .ops.blocked import layernorm_blocked_forward as layernorm_forward
from .ops.embedding_rows import embedding_rows_backward
from .parameters import Parameters
from .post_norm import post_norm_block_backward, post_norm_block_forward


class Step(NamedTuple):
    """What one step returns: the loss in nats (a scalar) and every parameter's gradient."""

    loss: Array
    grads: Parameters


class Model:
    """GPT-2 with hand-written gradients.

        model = Model(Config.preset("char"))
        loss, grads = model.step(idx)

    params  Parameters: every weight by name, views into one flat vector
    dtype   "float32" or "float64"; xp  numpy or cupy: how precisely and where it computes
    seed    decides the initial weights, the same ones for every dtype and device;
            None leaves them 0, to be loaded

    `copy.deepcopy(model)` keeps its weights as they are now. The first model on a CPU asks the C library
    to keep freed memory, for the whole process (`cores.keep_freed_memory`).

    Raises ValueError for another dtype and a seed that is none, TypeError for what is no Config.
    """

    def __init__(self, config: Config, seed: int | None = 0, dtype: str = "float32", xp: ModuleType = np) -> None:
        if not isinstance(config, Config):
            raise TypeError(f"config must be a Config, got {config!r:.60}; a preset is Config.preset(name)")
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0):
            raise ValueError(f"seed must be None or a whole number of at least 0, got {seed!r}")
        if dtype not in ("float32", "float64", np.float32, np.float64):
            raise ValueError(f"dtype must be float32 or float64, got {dtype!r}")
        if xp is np:
            keep_freed_memory()
        self.config, self.xp = config, xp
        self.params = Parameters(config.parameter_shapes(), dtype, xp)
        if seed is not None:
            self.initialise(seed)

    def initialise(self, seed: int) -> None:
        """Draw GPT-2's initial weights: normal with standard deviation 0.02; biases 0, gammas 1.

        W_o and W_2 write into the residual stream, 2L times in all; dividing theirs by √(2L)
        keeps the stream's variance from growing with depth (Radford et al., 2019, §2.3). OpenAI's
        own code gives W_pe 0.01; here, as in Hugging Face's, it has 0.02.
        """
        rng = np.random.default_rng(seed)
        for name, parameter in self.params.items():
            if name.endswith("gamma"):
                parameter[...] = 1
            elif parameter.ndim == 1:
                parameter[...] = 0
            else:
                std = 0.02 / math.sqrt(2 * self.config.L) if name.endswith(("W_o", "W_2")) else 0.02
                weights = rng.standard_normal(parameter.shape, dtype=np.float32) * np.float32(std)
                parameter[...] = self.xp.asarray(weights)

    @classmethod
    def from_pretrained(cls, path_or_name: Path | str, dtype: str = "float32", xp: ModuleType = np) -> Model:
        """Return a GPT-2 from Hugging Face's files, or by its name there ("gpt2"); see `pretrained`."""
        from .pretrained import load_pretrained

        return load_pretrained(path_or_name, dtype, xp)

    def save_pretrained(self, folder: Path | str) -> None:
        """Write config.json and model.safetensors into folder as Hugging Face keeps them; see `pretrained`."""
        from .pretrained import save_pretrained

        save_pretrained(self, folder)

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the parameters, and so of everything computed from them."""
        return self.params.flat.dtype

    def __deepcopy__(self, memo: dict) -> Model:
        twin = copy(self)
        twin.params = deepcopy(self.params, memo)
        return twin

    def __repr__(self) -> str:
        return f"Model({self.config}, dtype={self.dtype}, {self.params.flat.size:,} parameters)"

    def forward(self, idx: Array) -> tuple[Array, tuple]:
        """idx (B, T) ids  ->  logits (B, T, V): position t's are the scores of the token after t.

        FLOPs a token: ≈ 2N (lesson §6).
        Raises ValueError for ids that are not integers in 0 <= id < V, for T > T_max, and for none at all.
        """
        p, config = self.params, self.config
        idx = self.xp.asarray(idx)
        if idx.ndim == 0 or idx.size == 0:
            raise ValueError(f"idx has shape {idx.shape}; expected (B, T) with at least one id")
        x, cache_embedding = embedding_forward(idx, p["W_te"], p["W_pe"])  # (B, T, d)
        cache_blocks = []
        block_forward, _ = BLOCK[config.norm]
        for number in range(config.L):
            x, cache = block_forward(x, p.block(number), config)  # (B, T, d)
            cache_blocks.append(cache)
        x, cache_ln_f = layernorm_forward(x, p["ln_f.gamma"], p["ln_f.beta"], config.eps)  # (B, T, d)
        logits, cache_head = head_forward(x, p["W_te" if config.tie else "W_head"])  # (B, T, V)
        return logits, (cache_embedding, cache_blocks, cache_ln_f, cache_head)

    def backward(self, dlogits: Array, cache: tuple, grads: Parameters | None = None) -> Parameters:
        """dlogits (B, T, V)  ->  the gradient of every parameter. FLOPs a token: ≈ 4N (lesson §6).

        grads: where to write them, to be used again step after step; new Parameters if not given.
        Raises ValueError where they are another model's.
        """
        config = self.config
        g = self._room_for_grads(grads)
        cache_embedding, cache_blocks, cache_ln_f, cache_head = cache
        dx, _ = head_backward(dlogits, cache_head, out=g["W_te" if config.tie else "W_head"])  # (B, T, d)
        dx, _, _ = layernorm_backward(dx, cache_ln_f, out=(g["ln_f.gamma"], g["ln_f.beta"]))  # (B, T, d)
        _, block_backward = BLOCK[config.norm]
        for number in reversed(range(config.L)):
            dx = block_backward(dx, cache_blocks[number], g.block(number))  # (B, T, d)
        if config.tie:
            (ids, rows), _ = embedding_rows_backward(dx, cache_embedding, out=g["W_pe"])
            g["W_te"][ids] += rows  # one matrix used twice: the head's share plus the embedding's
        else:
            embedding_backward(dx, cache_embedding, out=(g["W_te"], g["W_pe"]))
        return g

    def _room_for_grads(self, grads: Parameters | None) -> Parameters:
        if grads is None:
            return self.params.zeros_like()
        if grads.shapes != self.params.shapes:
            raise ValueError(f"grads, {grads}, are not shaped as the model's parameters, {self.params}")
        return grads

    def loss_forward(self, idx: Array, targets: Array | None = None) -> tuple[Array, tuple]:
        """Return the mean cross-entropy of predicting targets from idx, in nats, and its cache.

        idx (B, T); targets (B, T), −100 where a position is not counted. With no targets, each
        position's target is the next id: the lesson's cross_entropy(logits[:, :-1], idx[:, 1:]).

        Raises ValueError as `forward` and `cross_entropy_forward` do, and for T < 2 without targets.
        """
        idx = self.xp.asarray(idx)
        targets = next_ids(idx, self.xp) if targets is None else self.xp.asarray(targets)
        logits, cache = self.forward(idx)  # (B, T, V)
        loss, cache_loss = cross_entropy_forward(logits, targets)
        return loss, (cache, cache_loss)

    def loss_backward(self, dloss: Array | float, cache: tuple, grads: Parameters | None = None) -> Parameters:
        """Return the gradient of every parameter, given dloss at the loss (1 to train)."""
        cache, cache_loss = cache
        dlogits = cross_entropy_backward(dloss, cache_loss)  # (B, T, V)
        return self.backward(dlogits, cache, grads)

    def loss(self, idx: Array, targets: Array | None = None) -> Array:
        """Return the loss alone, as `loss_forward` defines it; raise what it raises."""
        loss, _ = self.loss_forward(idx, targets)
        return loss

    def step(self, idx: Array, targets: Array | None = None, grads: Parameters | None = None) -> Step:
        """Return the loss and every gradient: one forward, one backward. Nothing is updated.

        FLOPs a token: ≈ 6N (lesson §6). grads as in `backward`. Raises ValueError as `loss_forward` does.
        """
        loss, cache = self.loss_forward(idx, targets)
        return Step(loss, self.loss_backward(1.0, cache, grads))


def next_ids(idx: Array, xp: ModuleType) -> Array:
    """Return the id after each position; the last has none and is marked as not counted.

    Counting these against all T logits is the lesson's logits[:, :-1] against idx[:, 1:]
    without a copy of the logits.

    Raises ValueError for T < 2.
    """
    if idx.ndim == 0 or idx.shape[-1] < 2:
        raise ValueError(f"idx {idx.shape} has no next token to predict; without targets it needs T >= 2")
    targets = xp.full(idx.shape, IGNORE_INDEX, dtype="int64")  # (B, T)
    targets[..., :-1] = idx[..., 1:]
    return targets


def block_forward(x: Array, p: dict[str, Array], config: Config) -> tuple[Array, tuple]:
    """x = x + Attn(LN(x));  x = x + MLP(LN(x)): two sublayers, the norm inside the branch.

    x (B, T, d), p the block's parameters  ->  x (B, T, d).
    FLOPs a token: 24d² + 4·T·d forward, norms, softmax and GELU apart; twice that backward.
    Lesson §4; Radford et al., 2019; Xiong et al., 2020.
    """
    # x = x + Attn(LN(x))
    y, cache_ln_1 = layernorm_forward(x, p["ln_1.gamma"], p["ln_1.beta"], config.eps)  # (B, T, d)
    y, cache_attn = attention_forward(
        y, p["W_qkv"], p["b_qkv"], p["W_o"], p["b_o"], config.h, config.causal, config.scale
    )  # (B, T, d)
    x = x + y
    # x = x + MLP(LN(x))
    y, cache_ln_2 = layernorm_forward(x, p["ln_2.gamma"], p["ln_2.beta"], config.eps)  # (B, T, d)
    y, cache_mlp = mlp_forward(y, p["W_1"], p["b_1"], p["W_2"], p["b_2"], config.gelu)  # (B, T, d)
    x = x + y
    return x, (cache_ln_1, cache_attn, cache_ln_2, cache_mlp)


def block_backward(dx: Array, cache: tuple, g: dict[str, Array]) -> Array:
    """Return dx (B, T, d) at the block's input; write the block's parameter gradients into g.

    At x = x + f(x) the gradient goes both ways, along the skip untouched and through the
    branch f; where they meet they are added.
    """
    cache_ln_1, cache_attn, cache_ln_2, cache_mlp = cache
    # x = x + MLP(LN(x))
    dy, *_ = mlp_backward(dx, cache_mlp, out=(g["W_1"], g["b_1"], g["W_2"], g["b_2"]))  # (B, T, d)
    dy, *_ = layernorm_backward(dy, cache_ln_2, out=(g["ln_2.gamma"], g["ln_2.beta"]))  # (B, T, d)
    dx = dx + dy
    # x = x + Attn(LN(x))
    dy, *_ = attention_backward(dx, cache_attn, out=(g["W_qkv"], g["b_qkv"], g["W_o"], g["b_o"]))  # (B, T, d)
    dy, *_ = layernorm_backward(dy, cache_ln_1, out=(g["ln_1.gamma"], g["ln_1.beta"]))  # (B, T, d)
    dx = dx + dy
    return dx


BLOCK = {
    "pre": (block_forward, block_backward),
    "post": (post_norm_block_forward, post_norm_block_backward),
}
