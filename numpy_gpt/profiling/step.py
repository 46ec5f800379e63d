"""A training step measured op by op, by timers around its ops and without them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np

from .. import budget
from ..backend import Array, synchronize
from ..config import Config
from ..model import Model
from ..optim import AdamW, clip_scale
from .limits import Clock, Limits, measure_bandwidth, measure_gemm_peak, measure_own_gemms
from .profile import WAYS, OpProfile, Profile, Timing
from .timers import OpTimer, timed_ops

# The ops in the order of the forward pass, and what each is. "rest" is the step outside its ops:
# the tied sum of dW_te, merging the heads, and Python.
KINDS = {
    "embedding": "look-up",
    "ln_1": "element-wise",
    "qkv": "GEMM",
    "attend": "attention",
    "W_o": "GEMM",
    "ln_2": "element-wise",
    "W_1": "GEMM",
    "gelu": "element-wise",
    "W_2": "GEMM",
    "residual": "element-wise",
    "ln_f": "element-wise",
    "head": "GEMM",
    "loss": "element-wise",
    "rest": "rest",
}

# Where the ops belong that `budget.step_ops` counts apart.
COUNTED_AS = {
    "scores": "attend",
    "attn": "attend",
    "out": "attend",
    "residual_attn": "residual",
    "residual_mlp": "residual",
    "tied_sum": "rest",
}

TURN = 0.05  # seconds


def profile_step(
    model: Model,
    idx: Array,
    targets: Array | None = None,
    repeats: int = 5,
    warmup: int = 1,
    limits: bool = True,
    clock: Clock = time.perf_counter,
    report: Callable[[str], None] = lambda doing: None,
) -> Profile:
    """Measure a training step on idx (B, T) op by op; the model's parameters stay as they are.

    repeats, warmup  turns that count, and turns before them that do not: each is a step under timers
                     and a plain one, more of them where they are over within TURN seconds
    limits           measure the machine's limits too: the GEMM peak before and after the steps, the
                     model's own products, and the memory bandwidth
    report           told what is being measured

    Raises ValueError where repeats < 1 or warmup < 0, and as `Model.loss_forward`.
    """
    for name, value, least in (("repeats", repeats, 1), ("warmup", warmup, 0)):
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    stepper = Stepper(model, idx, targets, clock)
    xp, dtype = model.xp, str(model.dtype)
    gemm, bandwidths = {}, []
    if limits:
        report("the machine's limits")
        gemm["square, before"] = measure_gemm_peak(dtype, xp, clock=clock)
        bandwidths.append(measure_bandwidth(dtype, xp, clock=clock))
    for number in range(warmup + repeats):
        report(f"turn {number + 1} of {warmup + repeats}" + (", to warm up" if number < warmup else ""))
        stepper.turn(counts=number >= warmup)
    if not limits:
        return stepper.profile()
    report("the machine's limits again")
    gemm["square, after"] = measure_gemm_peak(dtype, xp, clock=clock)
    gemm |= measure_own_gemms(model.config, stepper.B, stepper.T, dtype, xp, clock=clock)
    bandwidths.append(measure_bandwidth(dtype, xp, clock=clock))
    return stepper.profile(Limits(gemm, max(bandwidths)))


class Stepper:
    """Measures training steps of one model on the same batch, a turn at a time."""

    def __init__(
        self, model: Model, idx: Array, targets: Array | None = None, clock: Clock = time.perf_counter
    ) -> None:
        self.model, self.clock, self.xp = model, clock, model.xp
        self.idx = self.xp.asarray(idx)  # on the device before the clock runs
        if self.idx.ndim != 2:
            raise ValueError(f"idx has shape {self.idx.shape}; expected (B, T)")
        self.targets = None if targets is None else self.xp.asarray(targets)
        self.T = self.idx.shape[-1]
        self.B = self.idx.size // max(self.T, 1)
        self.grads = model.params.zeros_like()
        self.optimiser = AdamW(model.params)
        self.op_seconds: list[dict[tuple[str, str], float]] = []
        self.samples: dict[str, list[float]] = {name: [] for name in (*WAYS, "clip", "adamw")}

    def turn(self, counts: bool = True) -> None:
        """Run a round, and more where they are short: a median of many is hard to disturb."""
        start = self.clock()
        self.round(counts)
        while self.clock() - start < TURN:
            self.round(counts)

    def round(self, counts: bool = True) -> None:
        """Run a step under the timers, a plain one, and an update that moves nothing."""
        timer = OpTimer(self.model, self.clock)
        with timed_ops(timer):
            with timer.measure("rest", "forward"):
                _, cache = self.model.loss_forward(self.idx, self.targets)
            with timer.measure("rest", "backward"):
                self.model.loss_backward(1.0, cache, self.grads)
        del cache
        seconds = self._plain_round()
        if counts:
            self.op_seconds.append(dict(timer.seconds))
            for name, value in seconds.items():
                self.samples[name].append(value)

    def _plain_round(self) -> dict[str, float]:
        times = [self._now()]
        _, cache = self.model.loss_forward(self.idx, self.targets)
        times.append(self._now())
        self.model.loss_backward(1.0, cache, self.grads)
        times.append(self._now())
        _, scale = clip_scale(self.grads, 1.0)
        times.append(self._now())
        self.optimiser.update(self.grads, lr=0.0, scale=scale)  # the same work, and θ stays
        times.append(self._now())
        return {name: end - start for name, start, end in zip(self.samples, times, times[1:])}

    def _now(self) -> float:
        synchronize(self.xp)
        return self.clock()

    def profile(self, limits: Limits | None = None) -> Profile:
        """Return what the rounds so far have found."""
        config, dtype = self.model.config, str(self.model.dtype)
        counted = counted_costs(config, self.B, self.T, dtype, tiled=self.xp is np)
        names = [*KINDS, *sorted({name for found in self.op_seconds for name, _ in found} - set(KINDS))]
        nothing = dict.fromkeys(counted["rest"], 0)

        def timing(name: str, way: str) -> Timing:
            return Timing(tuple(found.get((name, way), 0.0) for found in self.op_seconds))

        ops = tuple(
            OpProfile(
                name,
                KINDS.get(name, "rest"),
                timing(name, "forward"),
                timing(name, "backward"),
                **counted.get(name, nothing),
            )
            for name in names
        )
        whole = {key: sum(cost[key] for cost in counted.values()) for key in nothing}
        forward, backward = (
            Timing(tuple(math.fsum(v for (_, w), v in found.items() if w == way) for found in self.op_seconds))
            for way in WAYS
        )
        plain_forward, plain_backward, clip, adamw = (Timing(tuple(values)) for values in self.samples.values())
        return Profile(
            config=config,
            B=self.B,
            T=self.T,
            dtype=dtype,
            device=self.xp.__name__,
            ops=ops,
            total=OpProfile("step", "step", forward, backward, **whole),
            plain_forward=plain_forward,
            plain_backward=plain_backward,
            clip=clip,
            adamw=adamw,
            limits=limits,
            memory=budget.memory(config, self.B, self.T, dtype, tiled=self.xp is np),
        )


def counted_costs(config: Config, B: int, T: int, dtype: str, tiled: bool) -> dict[str, dict[str, int]]:
    """Return the counted FLOPs and bytes of each op of KINDS, all blocks together; what is not counted is 0.

    tiled  attention skips the tiles that the causal mask would drop, as it does on a CPU
    """
    keys = [f"{what}_{way}" for what in ("flops", "done", "bytes") for way in WAYS]
    costs = {name: dict.fromkeys(keys, 0) for name in KINDS}
    for op in budget.step_ops(config, B, T):
        cost = costs[COUNTED_AS.get(op.name, op.name)]
        for way in WAYS:
            flops, moved = getattr(op.cost, way), getattr(op.cost, f"moved_{way}")
            cost[f"flops_{way}"] += op.times * flops
            cost[f"done_{way}"] += op.times * flops
            cost[f"bytes_{way}"] += op.times * moved * budget.ITEMSIZE[dtype]
    if tiled:
        skipped = config.L * B * (T * T - budget.kept_pairs(config, T))
        for way, flops in zip(WAYS, budget.pair_flops(config)):
            costs["attend"][f"done_{way}"] -= skipped * flops
    return costs
