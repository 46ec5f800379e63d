"""The training loop: batches in, a trained model and its history out. It prints nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from .backend import Array, synchronize
from .data import ordered_windows, windows
from .model import Model, Step
from .ops import IGNORE_INDEX
from .optim import AdamW, clip_by_global_norm, warmup_cosine
from .parameters import Parameters


def setting(default: Any, help: str) -> Any:
    """Return a dataclass field that carries the help text of its command-line flag."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Schedule:
    """How a model is trained. The defaults are the main job's.

    Raises ValueError for a number outside its range.
    """

    steps: int = setting(1500, "optimiser updates")
    B: int = setting(12, "windows a micro-batch")
    accumulate: int = setting(1, "micro-batches an update; their gradients are averaged over all targets")
    lr: float = setting(1e-3, "peak learning rate")
    min_lr: float = setting(1e-4, "learning rate at the end of the cosine")
    warmup: int = setting(100, "updates over which the learning rate rises to its peak")
    beta1: float = setting(0.9, "AdamW's decay of the mean gradient")
    beta2: float = setting(0.95, "AdamW's decay of the mean squared gradient")
    weight_decay: float = setting(0.1, "AdamW's decoupled decay, on the matrices alone")
    clip: float = setting(1.0, "largest global norm of the gradients")
    eval_every: int = setting(250, "updates between two looks at the held-out text")
    seed: int = setting(0, "decides weights, batches and sample")

    def __post_init__(self) -> None:
        for name in ("steps", "B", "accumulate", "eval_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("warmup", "seed", "min_lr"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if not self.min_lr <= self.lr < math.inf:
            raise ValueError(f"lr must be finite and at least min_lr = {self.min_lr}, got {self.lr}")
        if not self.clip > 0:
            raise ValueError(f"clip must be above 0, got {self.clip}")


@dataclass
class Progress:
    """One update of a run, as `train` reports it."""

    step: int  # updates done, this one included
    loss: float  # nats a token, on this update's batch
    lr: float
    grad_norm: float  # before clipping
    seconds: float  # since the start of training, evaluation left out
    tokens: int  # trained on since the start
    shares: dict[str, float]  # of the seconds: forward, backward, optimiser
    held_out_loss: float | None = None  # where this update was followed by an evaluation


class Clock:
    """Adds up the seconds spent in named parts."""

    def __init__(self, xp: ModuleType) -> None:
        self.xp = xp
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        synchronize(self.xp)
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def shares(self) -> dict[str, float]:
        """Return each part's share of the seconds of all parts."""
        total = sum(self.seconds.values())
        return {name: seconds / total for name, seconds in self.seconds.items()}


def accumulate(
    model: Model,
    micro_batches: Sequence[tuple[Array, Array]],
    grads: Parameters | None = None,
    clock: Clock | None = None,
) -> Step:
    """Return the loss and gradients of several (idx, targets), as if they were one batch.

    A micro-batch's loss is the mean over its n_i counted targets; weighted by n_i / Σ n_i they
    add up to the mean over all, however the n_i differ. grads as in `Model.backward`.
    """
    clock = clock or Clock(model.xp)
    grads = model.params.zeros_like() if grads is None else grads
    counts = [int((targets != IGNORE_INDEX).sum()) for _, targets in micro_batches]
    total_loss, part = 0.0, grads
    for number, ((idx, targets), count) in enumerate(zip(micro_batches, counts)):
        weight = count / max(sum(counts), 1)
        if number == 1:
            part = grads.zeros_like()
        with clock("forward"):
            loss, cache = model.loss_forward(idx, targets)
            total_loss += weight * float(loss)
        with clock("backward"):
            model.loss_backward(weight, cache, part)
            if number > 0:
                grads.flat += part.flat
    return Step(total_loss, grads)


def evaluate(model: Model, tokens: np.ndarray, B: int = 32) -> float:
    """Return the mean loss in nats over every token of tokens after the first, each scored once.

    The text is cut into windows of T_max tokens side by side; a token sees its window's past.
    """
    total, n = 0.0, 0
    for idx, targets in ordered_windows(tokens, B, model.config.T_max):
        count = int((targets != IGNORE_INDEX).sum())
        total += count * float(model.loss(idx, targets))
        n += count
    return total / n


def train(
    model: Model,
    train_tokens: np.ndarray,
    held_out_tokens: np.ndarray,
    schedule: Schedule,
    report: Callable[[Progress], None] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
) -> list[Progress]:
    """Train model in place; return what each update did, and hand it to report as it happens.

    Each update draws schedule.accumulate micro-batches of B windows of T_max tokens. The same
    model, tokens and schedule give the same bits. stop is asked after each update.

    Raises FloatingPointError, naming the update and the parameter, where a gradient is inf or
    nan; the parameters are then as the update before left them.
    """
    T = model.config.T_max
    rng = np.random.default_rng([schedule.seed, 1])  # apart from the stream that drew the weights
    optimiser = AdamW(model.params, schedule.lr, (schedule.beta1, schedule.beta2), weight_decay=schedule.weight_decay)
    grads = model.params.zeros_like()
    clock = Clock(model.xp)
    history: list[Progress] = []
    for step in range(schedule.steps):
        batch = [windows(train_tokens, schedule.B, T, rng) for _ in range(schedule.accumulate)]
        lr = warmup_cosine(step, schedule.lr, schedule.min_lr, schedule.warmup, schedule.steps)
        with np.errstate(over="ignore", invalid="ignore"):  # clipping names the parameter instead
            loss, grads = accumulate(model, batch, grads, clock)
            with clock("optimiser"):
                try:
                    norm = clip_by_global_norm(grads, schedule.clip)
                except FloatingPointError as error:
                    raise FloatingPointError(f"update {step + 1}: {error}; a lower lr may help") from error
                optimiser.update(grads, lr)
        done = step + 1
        tokens = done * schedule.accumulate * schedule.B * T
        progress = Progress(done, float(loss), lr, norm, sum(clock.seconds.values()), tokens, clock.shares())
        stopping = stop() or done == schedule.steps
        if stopping or done % schedule.eval_every == 0:
            progress.held_out_loss = evaluate(model, held_out_tokens)
        history.append(progress)
        report(progress)
        if stopping:
            break
    return history
