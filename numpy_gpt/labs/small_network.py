"""A network of one MLP, trained to predict the next character: for the labs that compare activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..backend import scatter_add
from ..data import windows
from ..ops import cross_entropy_backward, cross_entropy_forward, linear_backward, linear_forward
from ..optim import AdamW, warmup_cosine
from ..parameters import Parameters
from .small_run import help_topics

T, E, H = 8, 16, 128  # characters that it sees, width of each, hidden width
STEPS, B, LR = 400, 64, 5e-3

Activation = tuple[Callable[..., Any], Callable[..., Any]]  # forward and backward, as in `numpy_gpt.ops`


def held_out_loss(activation: Activation, seed: int) -> float:
    """Train a network with this activation for about a second; return its loss on text held out.

    The same seed gives the same first weights and the same batches whatever the activation.
    """
    text, rng = help_topics(), np.random.default_rng(seed)
    p = initialise(text.tokenizer.V, rng)
    optimiser = AdamW(p)
    for step in range(STEPS):
        idx, targets = windows(text.train, B, T, rng)  # (B, T)
        _, cache = loss_forward(p, activation, idx, targets[:, -1])
        optimiser.update(loss_backward(p, activation, cache), warmup_cosine(step, LR, LR / 10, warmup=20, steps=STEPS))
    seen = np.lib.stride_tricks.sliding_window_view(text.held_out, T + 1)[::2]  # (n, T + 1)
    loss, _ = loss_forward(p, activation, seen[:, :-1], seen[:, -1])
    return float(loss)


def initialise(V: int, rng: np.random.Generator) -> Parameters:
    """Draw the first weights: W_1's give the activation unit variance, W_2's, which are small, a loss of ln V."""
    p = Parameters({"W_te": (V, E), "W_1": (T * E, H), "b_1": (H,), "W_2": (H, V), "b_2": (V,)})
    for name, std in (("W_te", 1.0), ("W_1", (T * E) ** -0.5), ("W_2", 0.02)):
        p[name] = std * rng.standard_normal(p[name].shape)
    return p


def loss_forward(p: Parameters, activation: Activation, idx: np.ndarray, targets: np.ndarray) -> tuple[Any, tuple]:
    """loss = cross_entropy(f(x @ W_1 + b_1) @ W_2 + b_2),  x the T characters' rows of W_te side by side."""
    activate, _ = activation
    x = p["W_te"][idx].reshape(len(idx), T * E)  # (B, T·E)
    u, cache_1 = linear_forward(x, p["W_1"], p["b_1"])  # (B, H)
    h1, cache_activation = activate(u)  # (B, H)
    logits, cache_2 = linear_forward(h1, p["W_2"], p["b_2"])  # (B, V)
    loss, cache_loss = cross_entropy_forward(logits, targets)
    return loss, (idx, cache_1, cache_activation, cache_2, cache_loss)


def loss_backward(p: Parameters, activation: Activation, cache: tuple) -> Parameters:
    """Return the gradient of every parameter."""
    _, activate_backward = activation
    idx, cache_1, cache_activation, cache_2, cache_loss = cache
    g = p.zeros_like()
    dlogits = cross_entropy_backward(1.0, cache_loss)  # (B, V)
    dh1, *_ = linear_backward(dlogits, cache_2, out=(g["W_2"], g["b_2"]))  # (B, H)
    du = activate_backward(dh1, cache_activation)  # (B, H)
    dx, *_ = linear_backward(du, cache_1, out=(g["W_1"], g["b_1"]))  # (B, T·E)
    scatter_add(g["W_te"], idx.reshape(-1), dx.reshape(-1, E))
    return g
