"""How well a model predicts a text: loss, perplexity and bits per byte over a strided window."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import NamedTuple

import numpy as np

from .kv_cache import last_logits
from .model import Model
from .ops import cross_entropy_forward
from .ops.checks import check_ids


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate_text` found.

    loss           mean of −log p(token), in nats, over the scored tokens
    n_scored       their number: every token of the text but the first
    bits_per_byte  loss · n_scored / (ln 2 · n_bytes); None where n_bytes was not given
    """

    loss: float
    n_scored: int
    bits_per_byte: float | None = None

    @property
    def perplexity(self) -> float:
        """exp(loss): inf where no float holds it."""
        return perplexity(self.loss)


def perplexity(loss: float) -> float:
    """Return exp(loss), of a loss in nats a token: inf where no float holds it."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


class Window(NamedTuple):
    """tokens[start:stop] as one window, of which tokens[stop - n_scored : stop] are scored."""

    start: int
    stop: int
    n_scored: int


def strided_windows(n: int, T: int, stride: int) -> Iterator[Window]:
    """Yield windows of T tokens, each stride further on, that score tokens 1..n−1 exactly once.

    The first window scores all it can, tokens 1..T−1; each later one its last stride tokens, so
    that they see T − stride tokens of context or more. The last ends with the text and may be shorter.
    Source: the protocol for fixed-length models in transformers' documentation of perplexity.

    Raises ValueError unless 1 <= stride < T and n >= 2.
    """
    if T < 2:
        raise ValueError(f"T_max = {T}: a window of one token holds no next token to score")
    if not 1 <= stride < T:
        raise ValueError(
            f"stride must lie in 1 <= stride < T_max = {T}, got {stride}: windows must overlap by a token, "
            "whose logits predict the next window's first"
        )
    if n < 2:
        raise ValueError(f"the text has {n} tokens; a next token to score takes 2")
    n_steps = max(0, -(-(n - T) // stride))  # windows after the first, rounded up
    stops = [min(T + step * stride, n) for step in range(n_steps + 1)]
    return (Window(step * stride, stop, stop - (stops[step - 1] if step else 1)) for step, stop in enumerate(stops))


def evaluate_text(
    model: Model,
    tokens: np.ndarray | Sequence[int],
    stride: int,
    B: int = 4,
    n_bytes: int | None = None,
    report: Callable[[int, int], None] = lambda n_scored, n_total: None,
) -> Evaluation:
    """Return how well model predicts tokens (N,), each but the first scored exactly once.

    Windows of T_max tokens, each stride further on, score the tokens that the one before did not
    (`strided_windows`); B of them go through the model at a time. A small stride gives each token
    more context, T_max − stride tokens at least, and takes T_max / stride forwards over the text.

    n_bytes  the length in bytes of the text that tokens[1:] stand for, for bits_per_byte; a text that
             begins with <|endoftext|> has all its own tokens scored
    report   called with (scored so far, to be scored) after each batch

    Raises ValueError for fewer than 2 tokens, ids outside 0 <= id < V (naming the first), a stride
    outside 1 <= stride < T_max, B < 1 and n_bytes < 1.
    """
    tokens = np.asarray(tokens)
    if tokens.ndim != 1:
        raise ValueError(f"tokens must be one text (N,), got shape {tokens.shape}")
    if B < 1:
        raise ValueError(f"B must be at least 1, got {B}")
    if n_bytes is not None and n_bytes < 1:
        raise ValueError(f"n_bytes must be at least 1, got {n_bytes}")
    windows = strided_windows(len(tokens), model.config.T_max, stride)
    check_ids(tokens, model.config.V, "tokens")
    nats, n_scored = 0.0, 0
    for batch in batches(windows, B):
        last = batch[0].n_scored
        window_tokens = np.stack([tokens[window.start : window.stop] for window in batch]).astype(np.int64)  # (≤ B, T)
        logits = last_logits(model, window_tokens[:, :-1], last)  # (≤ B, last, V)
        loss, _ = cross_entropy_forward(logits, model.xp.asarray(window_tokens[:, -last:]))
        nats += float(loss) * last * len(batch)
        n_scored += last * len(batch)
        report(n_scored, len(tokens) - 1)
    bits_per_byte = None if n_bytes is None else nats / (math.log(2) * n_bytes)
    return Evaluation(nats / n_scored, n_scored, bits_per_byte)


def batches(windows: Iterator[Window], B: int) -> Iterator[list[Window]]:
    """Yield up to B neighbours at a time that are of one length and score as many tokens."""
    for _, alike in groupby(windows, key=lambda window: (window.stop - window.start, window.n_scored)):
        while batch := list(islice(alike, B)):
            yield batch
