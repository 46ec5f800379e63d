"""The training loop: batches in, a trained model and its history out. It prints nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

import numpy as np

from .accumulation import Accumulator, Clock
from .cores import one_blas_thread
from .data import check_corpora, ordered_windows, windows
from .model import Model
from .ops import IGNORE_INDEX
from .optim import AdamW, clip_scale, warmup_cosine
from .workers import are_processes

SMALL_MODEL = 20_000_000  # parameters; above, large products keep the cores busy, and gradients cost more to add up


def setting(default: Any, help: str) -> Any:
    """Return a dataclass field that carries the help text of its command-line flag."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Schedule:
    """How a model is trained. The defaults are the main job's.

    Raises ValueError for a number outside its range.
    """

    steps: int = setting(2000, "optimiser updates")
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
    save_every: int | None = setting(None, "updates between two checkpoints; default: one at each look")
    workers: int | None = setting(
        None,
        "processes (threads, where the system cannot fork them) that share a micro-batch, a core each; "
        f"default: 2 on a CPU for models under {SMALL_MODEL:,} parameters, else 1",
    )
    seed: int = setting(0, "decides weights, batches and sample")

    def __post_init__(self) -> None:
        counts = {"steps": 1, "B": 1, "accumulate": 1, "eval_every": 1, "save_every": 1, "workers": 1}
        for name, least in (counts | {"warmup": 0, "seed": 0}).items():
            value = getattr(self, name)
            if value is None and name in ("save_every", "workers"):
                continue
            if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
            object.__setattr__(self, name, int(value))  # NumPy's numbers do not go into a checkpoint's JSON
        for name in ("lr", "min_lr", "beta1", "beta2", "weight_decay", "clip"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Real):
                raise ValueError(f"{name} must be a number, got {value!r}")
            object.__setattr__(self, name, float(value))
        if not self.min_lr >= 0:
            raise ValueError(f"min_lr must be at least 0, got {self.min_lr}")
        if not self.min_lr <= self.lr < math.inf:
            raise ValueError(f"lr must be finite and at least min_lr = {self.min_lr}, got {self.lr}")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must lie in 0 <= {name} < 1, got {getattr(self, name)}")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay must be a finite number of at least 0, got {self.weight_decay}")
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
    shares: dict[str, float]  # of the seconds since the start or the resume: forward, backward, optimiser
    held_out_loss: float | None = None  # where this update was followed by an evaluation


@dataclass
class State:
    """Where a run stands: with its model, its tokens and its Schedule, all that decides what is to come.

    The number of updates done is optimiser.t; the next windows are the generator's.
    """

    optimiser: AdamW
    rng: np.random.Generator
    tokens: int = 0  # trained on so far
    seconds: float = 0.0  # of training so far, evaluation left out
    history: list[Progress] = field(default_factory=list)


def start(model: Model, schedule: Schedule) -> State:
    """Return the state of a run before its first update."""
    betas = (schedule.beta1, schedule.beta2)
    optimiser = AdamW(model.params, schedule.lr, betas, weight_decay=schedule.weight_decay)
    return State(optimiser, np.random.default_rng([schedule.seed, 1]))  # apart from the stream that drew the weights


def n_workers(schedule: Schedule, model: Model) -> int:
    """Return how many workers share a micro-batch; by default 2 on a CPU for a small model, else 1.

    It does not ask how many cores there are, so that a run has the same bits everywhere.
    """
    default = 2 if model.xp is np and model.params.flat.size < SMALL_MODEL else 1
    return min(schedule.workers or default, schedule.B)


def gradient_copies(schedule: Schedule, model: Model) -> int:
    """Return how many copies of the gradients training holds: one a worker, another to accumulate into.

    Worker processes hold more of the same size, which count too: the parameters that all of them see, and
    in each of them the parameters, gradients and moments as they were when it was forked.
    """
    workers = n_workers(schedule, model)
    copies = workers * (2 if schedule.accumulate > 1 else 1)
    return copies + 1 + 4 * (workers - 1) if workers > 1 and are_processes(model) else copies


def evaluate(model: Model, tokens: np.ndarray, B: int) -> float:
    """Return the mean loss in nats over every token of tokens after the first, each scored once.

    The text is cut into windows of T_max tokens side by side, B at a time; a token sees its window's past.
    """
    total, n = 0.0, 0
    for idx, targets in ordered_windows(tokens, B, model.config.T_max):
        count = int((targets != IGNORE_INDEX).sum())
        total += count * float(model.loss(idx, targets))
        n += count
    return total / n


def held_out_loss(model: Model, tokens: np.ndarray, schedule: Schedule) -> float:
    """Return `evaluate` by as many windows at a time as a worker has in a step: it takes no more memory than that."""
    return evaluate(model, tokens, -(-schedule.B // n_workers(schedule, model)))


def train(
    model: Model,
    train_tokens: np.ndarray,
    held_out_tokens: np.ndarray,
    schedule: Schedule,
    report: Callable[[Progress], None] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
    state: State | None = None,
    save: Callable[[State], None] = lambda state: None,
) -> list[Progress]:
    """Train model in place; return what each update did, and hand it to report as it happens.

    Each update draws schedule.accumulate micro-batches of B windows of T_max tokens. The same
    model, tokens and schedule give the same bits, in one go or resumed from a state on the way.

    stop   asked after each update; where it says so, the run ends there, saved but not evaluated
    state  where to go on from; the start, if not given. It is moved along in place
    save   called with the state every schedule.save_every updates, at the end, and at a stop

    Raises ValueError for a text without a next token, and for ids that the model does not know.
    Raises FloatingPointError, naming the update and the parameter, where a gradient is inf or
    nan; the parameters are then as the update before left them.
    """
    T = model.config.T_max
    check_corpora(train_tokens, held_out_tokens, model.config.V)
    workers = n_workers(schedule, model)
    state = start(model, schedule) if state is None else state
    optimiser = state.optimiser
    save_every = schedule.save_every or schedule.eval_every
    clock = Clock(model.xp)
    stopping = False
    with (
        closing(Accumulator(model, workers, clock)) as accumulator,
        one_blas_thread() if workers > 1 else nullcontext(),
    ):
        while optimiser.t < schedule.steps and not stopping:
            begin = time.perf_counter()
            lr = warmup_cosine(optimiser.t, schedule.lr, schedule.min_lr, schedule.warmup, schedule.steps)
            micro_batches: list[tuple[np.ndarray, np.ndarray]] = []
            for _ in range(schedule.accumulate):
                idx, targets = windows(train_tokens, schedule.B, T, state.rng)  # (B, T)
                micro_batches += zip(np.array_split(idx, workers), np.array_split(targets, workers))
            loss, grads = accumulator.step(micro_batches)
            with clock("optimiser"):
                try:
                    norm, scale = clip_scale(grads, schedule.clip)
                except FloatingPointError as error:
                    raise FloatingPointError(f"update {optimiser.t + 1}: {error}; a lower lr may help") from error
                with np.errstate(over="ignore", invalid="ignore"):  # the next gradients, or the save, will name it
                    optimiser.update(grads, lr, scale)
            state.seconds += time.perf_counter() - begin
            state.tokens += schedule.accumulate * schedule.B * T
            done, last = optimiser.t, optimiser.t == schedule.steps
            progress = Progress(done, float(loss), lr, norm, state.seconds, state.tokens, clock.shares())
            if last or done % schedule.eval_every == 0:
                progress.held_out_loss = held_out_loss(model, held_out_tokens, schedule)
            state.history.append(progress)
            report(progress)
            stopping = stop()
            if last or stopping or done % save_every == 0:
                save(state)
    return state.history
