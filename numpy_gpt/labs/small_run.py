"""A small model trained on Python's own help topics, for the labs that look into one."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from ..config import Config
from ..cores import one_blas_thread
from ..data import load_text, split, windows
from ..model import Model
from ..optim import AdamW, clip_by_global_norm, warmup_cosine
from ..tokenizer import CharTokenizer

STEPS, CONTEXT, B, LR = 600, 24, 16, 5e-3


class Text(NamedTuple):
    """The help topics as characters, and those held out."""

    tokenizer: CharTokenizer
    train: np.ndarray
    held_out: np.ndarray


class Run(NamedTuple):
    """A trained model, and its loss at each update."""

    model: Model
    losses: list[float]


@cache
def help_topics() -> Text:
    """Return the text to train on."""
    text = load_text("stdlib")
    tokenizer = CharTokenizer.from_text(text)
    train, held_out = split(tokenizer.encode(text), T=1024)
    return Text(tokenizer, train, held_out)


@cache
def small_run(seed: int, causal: bool) -> Run:
    """Train a model of two blocks for some seconds, with the causal mask or without. The same run is made once."""
    text = help_topics()
    model = Model(Config(V=text.tokenizer.V, T_max=CONTEXT, d=64, h=4, L=2, causal=causal), seed)
    optimiser, rng, losses = AdamW(model.params), np.random.default_rng(seed), []
    with one_blas_thread():  # more threads only wait for each other in a model this small
        for step in range(STEPS):
            idx, _ = windows(text.train, B, CONTEXT, rng)  # (B, T)
            loss, grads = model.step(idx)  # logits[:, :-1] against idx[:, 1:]
            clip_by_global_norm(grads, 1.0)
            optimiser.update(grads, warmup_cosine(step, LR, LR / 10, warmup=20, steps=STEPS))
            losses.append(float(loss))
    return Run(model, losses)
