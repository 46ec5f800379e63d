"""The (B, h, T, T) score tensor: bytes against T."""

from __future__ import annotations

import math
import tracemalloc
from typing import TYPE_CHECKING

import numpy as np

from ..budget import kept_pairs, parameters, tensors
from ..config import PRESETS, Config
from ..ops import attend_forward
from .lab import Finding, Lab, Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GPT2 = Config.preset("gpt2", T_max=2**15)
LENGTHS = tuple(2**n for n in range(7, 16))  # T, counted
MEASURED = (64, 128, 256, 512, 1024)  # T, allocated
ITEMSIZE = 4  # float32
MB = 1e6


def measure(seed: int) -> Result:
    counted = {T: score_bytes(T) for T in LENGTHS}
    allocated = {T: attend_bytes(T, seed) for T in MEASURED}
    slope_counted = slope(counted, LENGTHS[0], LENGTHS[-1])
    slope_short, slope_long = slope(allocated, 64, 128), slope(allocated, 512, 1024)

    weights = parameters(Config.preset("gpt2"))["N"] * ITEMSIZE
    one = passes_weights("gpt2", blocks=1)  # T
    every = passes_weights("gpt2", blocks=GPT2.L)
    at_1024 = counted[1024]
    kept = GPT2.L * GPT2.h * kept_pairs(GPT2, 1024) * ITEMSIZE
    largest = passes_weights("gpt2-xl", blocks=PRESETS["gpt2-xl"]["L"])

    findings = (
        Finding("the score tensor is quadratic in T: by count", f"slope {slope_counted:.3f}", slope_counted == 2),
        Finding(
            "the score tensor is quadratic in T: what attention asks of memory",
            f"slope {slope_long:.2f} from T = 512 to 1,024 ({slope_short:.2f} from 64 to 128, where out, linear in T, "
            f"still weighs); at 1,024 {allocated[1024] / MB:.0f} MB at its peak, "
            f"{allocated[1024] / at_1024:.2f} score tensors",
            abs(slope_long - 2) < 0.1,
        ),
        Finding(
            "materializing it is fine at T = 1,024: in one block",
            f"{at_1024 / MB:.0f} MB for GPT-2 small and one sequence, {at_1024 / weights:.0%} of the model's weights",
            at_1024 < weights / 4,
        ),
        Finding(
            "materializing it is fine at T = 1,024: in training, which keeps every block's for the backward",
            f"{GPT2.L * at_1024 / MB:.0f} MB beside {weights / MB:.0f} MB of weights: it passes them at T = {every:,}. "
            f"Tiles that leave out what the mask drops keep {kept / MB:.0f} MB of it",
            GPT2.L * at_1024 < weights / 4,
        ),
        Finding(
            "but becomes the memory wall at long context",
            f"one block's passes the model's own weights at T = {one:,}; at T = {LENGTHS[-1]:,} it is "
            f"{counted[LENGTHS[-1]] / weights:.0f} times as large",
            counted[LENGTHS[-1]] > weights,
        ),
    )
    values = {
        "slope_counted": slope_counted,
        "slope_allocated": slope_long,
        "weights_bytes": float(weights),
        "scores_bytes_1024": float(at_1024),
        "T_one_block": float(one),
        "T_every_block": float(every),
        "T_every_block_xl": float(largest),
    }
    note = (
        "The batch multiplies the scores and not the weights, so with B sequences the crossing comes √B times earlier. "
        f"A larger model has more weights to pass, and passes them at much the same T: "
        f"GPT-2 XL's {PRESETS['gpt2-xl']['L']} blocks at {largest:,}. FlashAttention never writes the tensor down, "
        "which is the entire reason it exists (§2)."
    )

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        T, one_block = np.array(LENGTHS), np.array(list(counted.values()))
        ax.loglog(T, GPT2.L * one_block / MB, marker="o", label="scores, all 12 blocks, kept in training")
        ax.loglog(T, one_block / MB, marker="o", label="scores of one block: h·T² numbers")
        ax.loglog(
            MEASURED, np.array(list(allocated.values())) / MB, "kx", markersize=10, label="measured: peak of attention"
        )
        ax.axhline(weights / MB, color="C3", linestyle="--", label="the model's weights")
        for crossing, beside, side in ((every, (-10, 14), "right"), (one, (20, -30), "left")):
            ax.annotate(
                f"T = {crossing:,}",
                (crossing, weights / MB),
                xytext=beside,
                textcoords="offset points",
                ha=side,
                arrowprops={"arrowstyle": "->"},
            )
        ax.set(title="GPT-2 small, one sequence, float32", xlabel="T", ylabel="MB")
        ax.set_xticks((MEASURED[0], *T), [f"{t:,}" for t in (MEASURED[0], *T)])
        ax.minorticks_off()
        ax.legend()

    return Result(findings, values, note, draw)


def score_bytes(T: int) -> int:
    """Return the bytes of GPT-2 small's score tensor (1, h, T, T) in one block."""
    return next(t.bytes for t in tensors(GPT2, 1, T) if t.name == "scores")


def attend_bytes(T: int, seed: int) -> int:
    """Return the most bytes that attention over T tokens holds at one time, q, k and v apart."""
    q, k, v = np.random.default_rng(seed).standard_normal((3, GPT2.h, T, GPT2.d_head), dtype="float32")
    tracemalloc.start()
    attend_forward(q, k, v)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def slope(sizes: dict[int, int], start: int, stop: int) -> float:
    """Return the slope of sizes against T, both as logarithms, between two T."""
    return math.log(sizes[stop] / sizes[start]) / math.log(stop / start)


def passes_weights(preset: str, blocks: int) -> int:
    """Return the least T at which the scores of so many blocks, h·T² numbers each, outweigh the model's N."""
    config = Config.preset(preset)
    return math.isqrt(parameters(config)["N"] // (blocks * config.h)) + 1


LAB = Lab(
    name="score_tensor",
    section="§2",
    claim="the score tensor (B, h, T, T) is quadratic in T: fine at T = 1,024, the memory wall at long context",
    measure=measure,
)
