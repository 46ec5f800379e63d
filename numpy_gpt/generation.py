"""Sampling from a model, one token after another."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from .backend import to_numpy
from .kv_cache import KVCache, last_logits
from .model import Model
from .one_row import OneRow
from .ops.checks import check_ids


def next_token_probabilities(
    logits: np.ndarray, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> np.ndarray:
    """Return the probabilities (V,) to draw the next token from, in float64.

        p = softmax(logits / temperature), kept on the top_k likeliest tokens, then on the fewest
        likeliest tokens that together hold at least top_p of what is left; divided by their sum

    temperature 0 puts everything on the largest logit. top_k above V keeps all. Of equals, the first come first.
    Source: Fan, Lewis & Dauphin, 2018 (top-k); Holtzman et al., 2020 (top-p).

    Raises ValueError for temperature < 0, top_k < 1, top_p outside 0 < top_p ≤ 1, or a largest logit
    that is not finite.
    """
    check_sampling(temperature, top_k, top_p)
    logits = np.asarray(logits)
    best = likeliest(logits)
    if temperature == 0:
        p = np.zeros(logits.shape)
        p[best] = 1
        return p
    with np.errstate(over="ignore"):  # beyond every float is −inf, whose exp is the 0 that is meant
        p = np.exp((logits.astype(np.float64) - logits[best]) / temperature)
    p /= p.sum()
    if top_k is not None:
        p = keep_largest(p, top_k)
    if top_p is not None and top_p < 1:
        descending = np.sort(p)[::-1]
        p = keep_largest(p, int(np.searchsorted(np.cumsum(descending), top_p * (1 - 1e-12))) + 1)
    return p


def likeliest(logits: np.ndarray) -> int:
    """Return the index of the largest of logits (V,), the first of equals; raise ValueError where it is not finite."""
    best = int(logits.argmax())  # the first nan, where there is one
    if not np.isfinite(logits[best]):
        raise ValueError(f"logits[{best}] is {logits[best]}")
    return best


def keep_largest(p: np.ndarray, n: int) -> np.ndarray:
    """Return p (V,) with all but its n largest set to 0, divided by their sum; of equals, the first are kept."""
    if n >= p.size:
        return p
    smallest = np.partition(p, -n)[-n]  # of those kept
    kept = p > smallest
    equals = np.flatnonzero(p == smallest)
    kept[equals[: n - np.count_nonzero(kept)]] = True
    p = np.where(kept, p, 0)
    return p / p.sum()


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
    stop: Collection[int] = (),
) -> Iterator[int]:
    """Yield up to n tokens that continue prompt, each drawn from the model's next-token probabilities.

    A token of stop ends the text and is not yielded. The same seed gives the same tokens.

    The model sees the last T_max tokens: a longer prompt is cropped to its end, and a longer text
    slides through the window. Until then a key/value cache leaves one row of work a token. A window
    that slides moves every token to another position, so each token then takes a forward over all
    T_max; so does, from the start, each token of a model without the causal mask.

    Raises ValueError for a prompt that is empty or not one text of ids in 0 <= id < V, for n < 0, seed < 0,
    stop tokens outside 0 <= id < V, and settings that make no distribution.
    """
    check_sampling(temperature, top_k, top_p)
    ids = _checked_prompt(prompt, model.config.V, "prompt")
    _check_numbers(model, n, seed, stop)
    drawn = _generate(model, [ids], n, temperature, top_k, top_p, seed, stop)
    return (token for _, token in drawn)


def generate_batch(
    model: Model,
    prompts: Sequence[Sequence[int] | np.ndarray],
    n: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    stop: Collection[int] = (),
) -> list[list[int]]:
    """Return what continues each prompt, up to n tokens each; the prompts may differ in length.

    Like `generate` for each, but the rows share the reading of the weights. Row i draws from a
    stream of its own, decided by seed and i; row 0's is that of `generate`.

    Raises ValueError as `generate` does, naming the prompt.
    """
    check_sampling(temperature, top_k, top_p)
    ids = [_checked_prompt(prompt, model.config.V, f"prompts[{row}]") for row, prompt in enumerate(prompts)]
    _check_numbers(model, n, seed, stop)
    texts: list[list[int]] = [[] for _ in ids]
    for row, token in _generate(model, ids, n, temperature, top_k, top_p, seed, stop):
        texts[row].append(token)
    return texts


def _checked_prompt(prompt: Sequence[int] | np.ndarray, V: int, name: str) -> list[int]:
    """Return the ids of one text; raise ValueError, by its name, where it is none."""
    ids = to_numpy(prompt) if hasattr(prompt, "shape") else np.array(prompt)
    if ids.size == 0:
        raise ValueError(f"{name} is empty; begin with the tokenizer's start_id")
    if ids.ndim != 1:
        raise ValueError(f"{name} must be the ids of one text, (T,), got shape {ids.shape}")
    return check_ids(ids, V, name).tolist()


def _check_numbers(model: Model, n: int, seed: int, stop: Collection[int]) -> None:
    for name, value in (("n", n), ("seed", seed)):
        if value < 0:
            raise ValueError(f"{name} must be at least 0, got {value}")
    for token in stop:
        if not 0 <= token < model.config.V:
            raise ValueError(f"stop holds {token}; ids must lie in 0 <= id < V = {model.config.V}")


def _generate(
    model: Model,
    ids: list[list[int]],
    n: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int,
    stop: Collection[int],
) -> Iterator[tuple[int, int]]:
    """Yield (row, token), each row's next token in turn, and append them to ids."""
    rngs = [np.random.default_rng([seed, row]) for row in range(len(ids))]
    reader = Reader(model, ids)
    going = list(range(len(ids)))
    for _ in range(n):
        if not going:
            return
        logits = reader.next_logits(going)
        for row in list(going):
            if temperature == 0:
                token = likeliest(logits[row])
            else:
                token = draw(next_token_probabilities(logits[row], temperature, top_k, top_p), rngs[row])
            if token in stop:
                going.remove(row)
            else:
                ids[row].append(token)
                yield row, token


class Reader:
    """Rows of text as they grow, and the cache of those that it can serve."""

    def __init__(self, model: Model, ids: list[list[int]]) -> None:
        self.model, self.ids = model, ids
        self.cached: list[int] = []  # the rows in the cache, in its order
        if model.config.causal:
            self.cached = [row for row, tokens in enumerate(ids) if len(tokens) <= model.config.T_max]
        if self.cached:
            self.cache = KVCache(model, len(self.cached))
        # On a CPU a single text is read on token by token.
        self.one_row = OneRow(self.cache) if len(self.cached) == 1 and model.xp is np else None

    def next_logits(self, rows: list[int]) -> dict[int, np.ndarray]:
        """Return, for each of rows, the logits (V,) of the token after its last T_max tokens."""
        T_max = self.model.config.T_max
        logits = {}
        served = [row for row in self.cached if row in rows and len(self.ids[row]) <= T_max]
        if served != self.cached:
            self.cache.keep([self.cached.index(row) for row in served])
            self.cached = served
        if served:
            logits = dict(zip(served, self._read_on()))
        for row in rows:
            if row not in logits:  # its window slides: all its positions are new
                idx = np.array([self.ids[row][-T_max:]])  # (1, T)
                logits[row] = to_numpy(last_logits(self.model, idx))[0, 0]
        return logits

    def _read_on(self) -> np.ndarray:
        """Feed the cache what it has not read of each row; return (rows, V)."""
        new = [self.ids[row][length:] for row, length in zip(self.cached, self.cache.lengths)]
        counts = [len(tokens) for tokens in new]
        if self.one_row is not None and counts == [1]:
            return self.one_row.forward(new[0][0])[None]
        idx = np.zeros((len(new), max(counts)), dtype=np.int64)  # (rows, T), filled up with id 0
        for row, tokens in enumerate(new):
            idx[row, : len(tokens)] = tokens
        return to_numpy(self.cache.forward(idx, counts, last=1))[:, 0]


def draw(p: np.ndarray, rng: np.random.Generator) -> int:
    """Return an index drawn with probabilities p (V,): the distribution function, inverted at a uniform u.

    Only indices with p > 0 can come, however the sum of p is rounded.
    """
    possible = np.flatnonzero(p > 0)
    cumulative = np.cumsum(p[possible])
    return int(possible[np.searchsorted(cumulative[:-1], rng.random() * cumulative[-1], side="right")])
