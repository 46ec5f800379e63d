"""Gradient accumulation: one update's batch in several parts, one after another or side by side."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType

import numpy as np

from .backend import Array, synchronize
from .cores import one_core
from .model import Model, Step
from .ops import IGNORE_INDEX
from .parameters import Parameters
from .workers import Processes, Threads, start_workers


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
        self.add(name, time.perf_counter() - start)

    def add(self, name: str, seconds: float) -> None:
        """Add seconds that were measured elsewhere."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def shares(self) -> dict[str, float]:
        """Return each part's share of the seconds of all parts."""
        total = sum(self.seconds.values())
        return {name: seconds / total for name, seconds in self.seconds.items()}


class Accumulator:
    """Computes the gradients of several micro-batches as if they were one batch.

    A micro-batch's loss is the mean over its own n_i counted targets; weighted by n_i / Σ n_i,
    losses and gradients add up to those of the whole, however the n_i differ.

    workers  how many share the micro-batches, each with gradients of its own and a core: this
             thread, and processes or threads beside it (`workers.py`). They keep the cores busy
             where the arrays are too small for BLAS to do so. They start with the first step,
             knowing the code as it is then, and anew after an error; `close` ends them.
    clock    where the seconds of forward and backward are added up
    """

    def __init__(self, model: Model, workers: int = 1, clock: Clock | None = None) -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        self.model, self.clock = model, clock or Clock(model.xp)
        self.n_workers = workers
        self.grads = model.params.zeros_like()
        self.others: Processes | Threads | None = None

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
        shares = [jobs[worker :: self.n_workers] for worker in range(self.n_workers)]
        try:
            results = self._side_by_side(shares)
        except BaseException:
            self.close()  # whatever the others are at: nobody will ask for it
            raise
        for _, seconds in results:
            for part in seconds.items():
                self.clock.add(*part)
        return Step(sum(loss for loss, _ in results), self.grads)

    def close(self) -> None:
        """End the workers beside this one."""
        if self.others is not None:
            self.others.close()
            self.others = None

    def _side_by_side(self, shares: list[list[tuple]]) -> list[tuple[float, dict[str, float]]]:
        """Let every worker do its share, and add their gradients to this one's."""
        if self.n_workers == 1:
            return [self._work(shares[0], self.grads)]
        if self.others is None:
            self.others = start_workers(self.n_workers - 1, self.model, self._work)
        self.others.begin(shares[1:])
        with one_core():
            own = self._work(shares[0], self.grads)
        results = [own, *self.others.results()]
        for grads in self.others.grads:
            self.grads.flat += grads.flat
        return results

    def _work(self, jobs: list[tuple[Array, Array, float]], grads: Parameters) -> tuple[float, dict[str, float]]:
        """Write the gradients of jobs; return their loss and the seconds that forward and backward took."""
        clock = Clock(self.model.xp)
        total_loss, into = 0.0, grads
        if not jobs:
            grads.flat[...] = 0
        with np.errstate(over="ignore", invalid="ignore"):  # clipping finds inf and nan, and names the parameter
            for number, (idx, targets, weight) in enumerate(jobs):
                if number == 1:
                    into = grads.zeros_like()
                with clock("forward"):
                    loss, cache = self.model.loss_forward(idx, targets)
                    total_loss += weight * float(loss)
                with clock("backward"):
                    self.model.loss_backward(weight, cache, into)
                    del cache  # before the next one is made beside it
                    if number > 0:
                        grads.flat += into.flat
        return total_loss, clock.seconds
