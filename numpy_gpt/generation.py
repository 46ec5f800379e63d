"""Sampling from a model, one token after another."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from .backend import to_numpy
from .model import Model


def next_token_probabilities(
    logits: np.ndarray, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> np.ndarray:
    """Return the probabilities (V,) to draw the next token from, in float64.

        p = softmax(logits / temperature), kept on the top_k likeliest tokens, then on the fewest
        likeliest tokens that together hold at least top_p of what is left; divided by their sum

    temperature 0 puts everything on the largest logit (the first of equals). top_k above V keeps all.
    Source: Fan, Lewis & Dauphin, 2018 (top-k); Holtzman et al., 2020 (top-p).

    Raises ValueError for temperature < 0, top_k < 1, top_p outside 0 < top_p ≤ 1, or a logit
    that is nan.
    """
    check_sampling(temperature, top_k, top_p)
    logits = np.asarray(logits, dtype=np.float64)
    if np.isnan(logits).any():
        raise ValueError(f"logits[{np.flatnonzero(np.isnan(logits))[0]}] is nan")
    order = np.argsort(-logits, kind="stable")  # likeliest first
    if temperature == 0:
        kept, p = order[:1], np.ones(1)
    else:
        kept = order[:top_k]
        p = np.exp((logits[kept] - logits[order[0]]) / temperature)
        p /= p.sum()
        if top_p is not None:
            n = int(np.searchsorted(np.cumsum(p), top_p * (1 - 1e-12))) + 1
            kept, p = kept[:n], p[:n]
    probabilities = np.zeros(logits.shape)
    probabilities[kept] = p / p.sum()
    return probabilities


def check_sampling(temperature: float, top_k: int | None, top_p: float | None) -> None:
    """Raise ValueError unless the three settings make a distribution."""
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature must be a finite number of at least 0, got {temperature!r}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be at least 1, got {top_k!r}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p must lie in 0 < top_p <= 1, got {top_p!r}")


def generate(
    model: Model,
    prompt: Sequence[int] | np.ndarray,
    n: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
) -> Iterator[int]:
    """Yield n tokens that continue prompt, each drawn from the model's next-token probabilities.

    The model sees the last T_max tokens: a longer prompt is cropped to its end, and a longer
    text slides through the window. The same seed gives the same tokens.

    Raises ValueError for an empty prompt, n < 0 and settings that make no distribution.
    """
    check_sampling(temperature, top_k, top_p)
    if len(prompt) == 0:
        raise ValueError("prompt is empty; begin with the tokenizer's start_id")
    if n < 0:
        raise ValueError(f"n must be at least 0, got {n}")
    return _generate(model, [int(token) for token in prompt], n, temperature, top_k, top_p, seed)


def _generate(
    model: Model, ids: list[int], n: int, temperature: float, top_k: int | None, top_p: float | None, seed: int
) -> Iterator[int]:
    rng = np.random.default_rng(seed)
    for _ in range(n):
        idx = np.array([ids[-model.config.T_max :]])  # (1, T)
        logits, _ = model.forward(idx)  # (1, T, V)
        p = next_token_probabilities(to_numpy(logits[0, -1]), temperature, top_k, top_p)  # (V,)
        token = draw(p, rng)
        ids.append(token)
        yield token


def draw(p: np.ndarray, rng: np.random.Generator) -> int:
    """Return an index drawn with probabilities p (V,): the distribution function, inverted at a uniform u.

    Only indices with p > 0 can come, however the sum of p is rounded.
    """
    possible = np.flatnonzero(p)
    cumulative = np.cumsum(p[possible])
    return int(possible[np.searchsorted(cumulative[:-1], rng.random() * cumulative[-1], side="right")])
