"""One fused QKV GEMM against three."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from ..budget import linear_cost
from ..cores import one_blas_thread
from ..ops import linear_backward, linear_forward
from .lab import Finding, Lab, Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

R = 1024  # tokens, B·T
WIDTHS = (16, 32, 64, 128, 256, 768)  # the last is GPT-2 small's
SECONDS, MOST_RUNS = 2.0, 301  # what timing one width may cost


def measure(seed: int) -> Result:
    rng = np.random.default_rng(seed)
    d = WIDTHS[-1]
    difference = largest_difference(d, rng)
    with one_blas_thread():  # threads would add their own waiting to the times
        ratio = {d: time_ratio(d, rng) for d in WIDTHS}
    moved = {d: 3 * linear_cost(R, d, d).moved_forward / linear_cost(R, d, 3 * d).moved_forward for d in WIDTHS}
    one, three = linear_cost(R, d, 3 * d), linear_cost(R, d, d)
    saved = 3 * three.moved_forward - one.moved_forward
    share = saved / (3 * three.moved_forward)
    small = {d: time for d, time in ratio.items() if d <= 128}
    findings = (
        Finding(
            "one GEMM equals three, forward and backward",
            f"largest difference {difference:.0e} of each tensor's largest value, in float64: rounding",
            difference < 1e-13,
        ),
        Finding(
            "it does the same arithmetic",
            f"{one.forward:,} FLOPs for {R:,} tokens at d = {d}, 3 × {three.forward:,}",
            one.forward == 3 * three.forward,
        ),
        Finding(
            "it saves two reads of x from memory",
            f"{saved:,} = 2·{R:,}·{d} numbers fewer, {share:.0%} of what three move",
            saved == 2 * R * d,
        ),
        Finding(
            f"and so time, at GPT-2's d = {d}",
            f"three take {ratio[d]:.2f} times as long, at {one.forward / one.moved_forward:.0f} FLOPs a number moved",
            ratio[d] > 1.03,
        ),
        Finding(
            "and so time, where reading weighs more: in narrow models",
            "three take " + ", ".join(f"{time:.2f} (d = {d})" for d, time in small.items()) + " times as long",
            min(small.values()) > 1.03,
        ),
    )
    values = {"difference": difference, "numbers_saved": float(saved), "share_saved": share}
    values |= {f"time_ratio_{d}": time for d, time in ratio.items()}
    note = (
        "The fastest of runs that take turns, on one thread; timings differ from machine to machine. A GEMM does 2·3d "
        f"FLOPs for each number of x, so the reads weigh less the wider the model is, and "
        f"{share:.0%} fewer of them leave little to see at d = {d}."
    )

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        ax.semilogx(WIDTHS, list(ratio.values()), marker="o", label="time")
        ax.semilogx(WIDTHS, list(moved.values()), marker="o", label="numbers moved")
        ax.axhline(1, color="black", linestyle="--", label="no difference")
        ax.set(title=f"Three GEMMs against one, {R:,} tokens", xlabel="width d", ylabel="three / one")
        ax.set_xticks(WIDTHS, map(str, WIDTHS))
        ax.minorticks_off()
        ax.legend()

    return Result(findings, values, note, draw)


def largest_difference(d: int, rng: np.random.Generator) -> float:
    """Return how far fused and separate projections differ in any output or gradient."""
    x, W_qkv, b_qkv = rng.standard_normal((64, d)), rng.standard_normal((d, 3 * d)), rng.standard_normal(3 * d)
    dqkv = rng.standard_normal((64, 3 * d))
    qkv, cache = linear_forward(x, W_qkv, b_qkv)  # (rows, 3d)
    fused = (qkv, *linear_backward(dqkv, cache))

    parts = []
    for W, b, dy in zip(np.split(W_qkv, 3, axis=1), np.split(b_qkv, 3), np.split(dqkv, 3, axis=1)):
        y, cache = linear_forward(x, W, b)  # (rows, d)
        parts.append((y, *linear_backward(dy, cache)))
    y, dx, dW, db = zip(*parts)
    # One x went into all three, so that their gradients at x add up.
    separate = (np.hstack(y), sum(dx), np.hstack(dW), np.hstack(db))
    return max(float(abs(a - b).max() / abs(a).max()) for a, b in zip(fused, separate))


def time_ratio(d: int, rng: np.random.Generator) -> float:
    """Return how many times as long as one GEMM (R, d) @ (d, 3d) three of (R, d) @ (d, d) take."""
    x, W_qkv = (rng.standard_normal(shape, dtype="float32") for shape in ((R, d), (d, 3 * d)))
    W_q, W_k, W_v = (np.ascontiguousarray(W) for W in np.split(W_qkv, 3, axis=1))
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + SECONDS
    while len(times[0]) < MOST_RUNS and (len(times[0]) < 3 or time.perf_counter() < end):
        for weights, taken in zip(((W_qkv,), (W_q, W_k, W_v)), times):
            begin = time.perf_counter()
            for W in weights:
                x @ W
            taken.append(time.perf_counter() - begin)
    one, three = map(min, times)
    return three / one


LAB = Lab(
    name="fused_qkv",
    section="§2",
    claim="one fused linear produces q, k and v: one GEMM, one read of x from memory, instead of three",
    measure=measure,
)
