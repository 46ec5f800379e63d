"""What was found of a training step: seconds op by op, beside what `budget` counts (lesson §6)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..config import Config
from .limits import Limits

WAYS = ("forward", "backward")


@dataclass(frozen=True)
class Timing:
    """Seconds of the same work, repeat by repeat."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return float(np.median(self.samples))

    @property
    def low(self) -> float:
        """The lower quartile."""
        return float(np.quantile(self.samples, 0.25))

    @property
    def high(self) -> float:
        """The upper quartile."""
        return float(np.quantile(self.samples, 0.75))

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles."""
        return (self.high - self.low) / 2

    def __add__(self, other: Timing) -> Timing:
        return Timing(tuple(a + b for a, b in zip(self.samples, other.samples, strict=True)))

    def share_of(self, whole: Timing) -> float:
        """Return the median over the repeats of this part's share of a whole."""
        return float(np.median([a / b for a, b in zip(self.samples, whole.samples, strict=True)]))

    def to_dict(self) -> dict[str, Any]:
        return {"median": self.median, "low": self.low, "high": self.high, "samples": list(self.samples)}


@dataclass(frozen=True)
class OpProfile:
    """One op, all its calls in a step together: measured seconds, and counted FLOPs and bytes.

    flops_*  as `budget` counts them
    done_*   the same less the pairs of positions under the causal mask that attention on a CPU never
             computes: what rates are made of, so that skipping work is not taken for speed
    bytes_*  each array that is read or written, once
    """

    name: str
    kind: str
    forward: Timing
    backward: Timing
    flops_forward: int
    flops_backward: int
    done_forward: int
    done_backward: int
    bytes_forward: int
    bytes_backward: int

    @property
    def both(self) -> Timing:
        """Forward and backward together."""
        return self.forward + self.backward

    @property
    def ratio(self) -> float:
        """Measured backward / forward, of the medians; nan where there is no forward."""
        return quotient(self.backward.median, self.forward.median)

    @property
    def counted_ratio(self) -> float:
        """Counted backward / forward FLOPs; nan where there is no forward."""
        return quotient(self.flops_backward, self.flops_forward)

    def rate(self, way: str = "both") -> float:
        """Return FLOP/s in the median."""
        return quotient(self._sum("done", way), getattr(self, way).median)

    def bandwidth(self, way: str = "both") -> float:
        """Return bytes/s in the median."""
        return quotient(self._sum("bytes", way), getattr(self, way).median)

    def intensity(self, way: str = "both") -> float:
        """Return FLOP/byte."""
        return quotient(self._sum("done", way), self._sum("bytes", way))

    def _sum(self, what: str, way: str) -> int:
        return sum(getattr(self, f"{what}_{one}") for one in WAYS if way in (one, "both"))

    def to_dict(self) -> dict[str, Any]:
        """Return everything by name, ready for JSON; what is not a number is None."""
        values = {name: value for name, value in vars(self).items() if name not in WAYS}
        values |= {way: getattr(self, way).to_dict() for way in WAYS}
        values |= {"ratio": number(self.ratio), "counted_ratio": number(self.counted_ratio)}
        for way in (*WAYS, "both"):
            values |= {
                f"flop_per_second_{way}": number(self.rate(way)),
                f"bytes_per_second_{way}": number(self.bandwidth(way)),
                f"intensity_{way}": number(self.intensity(way)),
            }
        return values


def quotient(a: float, b: float) -> float:
    """a / b, and nan where b is 0."""
    return a / b if b else math.nan


def number(x: float) -> float | None:
    """Return x for JSON, which knows no nan."""
    return x if math.isfinite(x) else None


@dataclass(frozen=True)
class Profile:
    """A training step of B sequences of T tokens, measured.

    ops             op by op, in the forward's order; in each repeat they add up to `total` exactly
    total           the timed step: forward and backward
    plain_forward, plain_backward  the same step without timers, run in turn with the timed one
    clip, adamw     clipping by the global norm, and the optimiser's update
    limits          what the machine can do, measured before and after; None if not asked for
    memory          bytes, as `budget.memory` predicts them
    """

    config: Config
    B: int
    T: int
    dtype: str
    device: str
    ops: tuple[OpProfile, ...]
    total: OpProfile
    plain_forward: Timing
    plain_backward: Timing
    clip: Timing
    adamw: Timing
    limits: Limits | None
    memory: dict[str, int]

    def __getitem__(self, name: str) -> OpProfile:
        return {op.name: op for op in self.ops}[name]

    @property
    def repeats(self) -> int:
        return len(self.plain_forward.samples)

    @property
    def plain(self) -> Timing:
        """Forward and backward without timers."""
        return self.plain_forward + self.plain_backward

    @property
    def step_seconds(self) -> float:
        """Forward and backward, without timers."""
        return self.plain.median

    @property
    def update_seconds(self) -> float:
        """A whole training update: forward, backward, clipping and AdamW."""
        return (self.plain + self.clip + self.adamw).median

    @property
    def tokens_per_second(self) -> float:
        """Tokens trained on in a second."""
        return self.B * self.T / self.update_seconds

    @property
    def rate(self) -> float:
        """FLOP/s of forward and backward."""
        return (self.total.done_forward + self.total.done_backward) / self.step_seconds

    @property
    def limit(self) -> tuple[str, float]:
        """The largest FLOP/s seen in this run and what reached it: a product alone, or the step's own ops."""
        rates = dict(self.limits.gemm) if self.limits else {}
        rates |= {f"{op.name} {way} in the step": op.rate(way) for op in self.ops for way in WAYS}
        rates |= {"the step itself": self.rate}
        return max(((name, rate) for name, rate in rates.items() if math.isfinite(rate)), key=lambda item: item[1])

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation: rate / limit, which nothing in the run can bring above 1."""
        return self.rate / self.limit[1]

    def excess(self) -> list[tuple[str, float]]:
        """Return (op, backward − 2·forward in seconds), the largest first: what makes the step's ratio miss 2."""
        found = [(op.name, op.backward.median - 2 * op.forward.median) for op in self.ops]
        return sorted(found, key=lambda item: -abs(item[1]))

    def together(self, *kinds: str, way: str = "both") -> Timing:
        """Return the seconds of all ops of some kinds."""
        zero = Timing((0.0,) * self.repeats)
        return sum((getattr(op, way) for op in self.ops if op.kind in kinds), zero)

    def share(self, *kinds: str, way: str = "both") -> float:
        """Return the share of the timed step's seconds that ops of some kinds take."""
        return self.together(*kinds, way=way).share_of(getattr(self.total, way))

    def kind_ratio(self, *kinds: str) -> float:
        """Return backward / forward of all ops of some kinds together."""
        return quotient(*(self.together(*kinds, way=way).median for way in ("backward", "forward")))

    def to_dict(self) -> dict[str, Any]:
        """Return everything by name, ready for JSON."""
        timings = {name: getattr(self, name).to_dict() for name in ("plain_forward", "plain_backward", "clip", "adamw")}
        limits = None
        if self.limits:
            limits = {"gemm": self.limits.gemm, "bandwidth": self.limits.bandwidth, "ridge": self.limits.ridge}
        name, limit = self.limit
        return {
            "config": self.config.to_dict(),
            "B": self.B,
            "T": self.T,
            "dtype": self.dtype,
            "device": self.device,
            "repeats": self.repeats,
            "ops": [op.to_dict() for op in self.ops],
            "total": self.total.to_dict(),
            **timings,
            "step_seconds": self.step_seconds,
            "update_seconds": self.update_seconds,
            "tokens_per_second": self.tokens_per_second,
            "flop_per_second": self.rate,
            "limit": {"name": name, "flop_per_second": limit},
            "mfu": self.mfu,
            "limits": limits,
            "memory": self.memory,
        }

    def __str__(self) -> str:
        from ..terminal import as_text
        from .tables import print_profile

        return as_text(lambda console: print_profile(self, console))
