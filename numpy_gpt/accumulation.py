"""Gradient accumulation: one update's batch in several parts, one after another or side by side."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import ModuleType

import numpy as np

from .backend import Array, synchronize
from .model import Model, Step
from .ops import IGNORE_INDEX
from .parameters import Parameters


class Clock:
    """Adds up the seconds spent in named parts, by any number of threads."""

    def __init__(self, xp: ModuleType) -> None:
        self.xp = xp
        self.seconds: dict[str, float] = {}
        self._lock = threading.Lock()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        synchronize(self.xp)
        with self._lock:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def shares(self) -> dict[str, float]:
        """Return each part's share of the seconds of all parts."""
        total = sum(self.seconds.values())
        return {name: seconds / total for name, seconds in self.seconds.items()}


class Accumulator:
    """Computes the gradients of several micro-batches as if they were one batch.

    A micro-batch's loss is the mean over its own n_i counted targets; weighted by n_i / Σ n_i,
    losses and gradients add up to those of the whole, however the n_i differ.

    workers  threads that share the micro-batches, each with gradients of its own. NumPy leaves
             Python's lock inside its loops, so that two threads keep two cores busy where the
             arrays are too small for BLAS to do so; hold BLAS to one thread meanwhile.
    clock    where the seconds of forward and backward are added up
    """

    def __init__(self, model: Model, workers: int = 1, clock: Clock | None = None) -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        self.model, self.clock = model, clock or Clock(model.xp)
        self.parts = [model.params.zeros_like() for _ in range(workers)]
        self.pool = ThreadPoolExecutor(workers) if workers > 1 else None

    def step(self, micro_batches: Iterable[tuple[Array, Array]]) -> Step:
        """Return the loss and gradients of all (idx, targets); the next call writes over the gradients.

        Raises ValueError for no micro-batch at all, and for one that is no pair of arrays (B, T).
        """
        micro_batches = list(micro_batches)
        if not micro_batches:
            raise ValueError("there is no micro-batch to compute gradients of")
        for number, batch in enumerate(micro_batches):
            if not isinstance(batch, (tuple, list)) or [getattr(part, "ndim", 0) for part in batch] != [2, 2]:
                raise ValueError(f"micro-batch {number} must be a pair (idx, targets) of arrays (B, T)")
        counts = [int((targets != IGNORE_INDEX).sum()) for _, targets in micro_batches]
        jobs = [(*batch, count / max(sum(counts), 1)) for batch, count in zip(micro_batches, counts)]
        shares = [jobs[worker :: len(self.parts)] for worker in range(len(self.parts))]
        run = map if self.pool is None else self.pool.map
        losses = list(run(self._work, shares, self.parts))
        grads = self.parts[0]
        for part in self.parts[1:]:
            grads.flat += part.flat
        return Step(sum(losses), grads)

    def _work(self, jobs: list[tuple[Array, Array, float]], grads: Parameters) -> float:
        total_loss, into = 0.0, grads
        if not jobs:
            grads.flat[...] = 0
        with np.errstate(over="ignore", invalid="ignore"):  # clipping finds inf and nan, and names the parameter
            for number, (idx, targets, weight) in enumerate(jobs):
                if number == 1:
                    into = grads.zeros_like()
                with self.clock("forward"):
                    loss, cache = self.model.loss_forward(idx, targets)
                    total_loss += weight * float(loss)
                with self.clock("backward"):
                    self.model.loss_backward(weight, cache, into)
                    del cache  # before the next one is made beside it
                    if number > 0:
                        grads.flat += into.flat
        return total_loss
