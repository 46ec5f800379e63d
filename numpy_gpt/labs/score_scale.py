"""Why scores are divided by √d_head, and what softmax does where they are not."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ..config import Config
from ..model import Model
from ..ops import attend_backward, attend_forward, softmax_backward, softmax_forward
from .lab import Finding, Lab, Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTHS = (16, 32, 64, 128, 256)  # d_head
KEYS = (2, 16, 128)  # that a query attends to
SPREADS = 2.0 ** np.arange(0, 7.25, 0.25)  # standard deviations of the scores
ROWS = 2000  # queries, each with keys of its own


def measure(seed: int) -> Result:
    rng = np.random.default_rng(seed)
    unscaled = {d_head: score_spread(d_head, rng, scale=False) for d_head in WIDTHS}
    scaled = {d_head: score_spread(d_head, rng, scale=True) for d_head in WIDTHS}
    off = max(abs(spread / math.sqrt(d_head) - 1) for d_head, spread in unscaled.items())

    ahead = {n: one_ahead(n, 8) for n in (*KEYS, 1024)}  # weight of a key 8 above the n − 1 others
    seen = {n: [look(n, sigma, rng) for sigma in SPREADS] for n in KEYS}
    at_1, at_8 = ({n: seen[n][list(SPREADS).index(sigma)] for n in KEYS} for sigma in (1, 8))
    many = KEYS[-1]
    vanishes = next(s for s, row in zip(SPREADS, seen[many]) if s > 1 and row["jacobian"] < at_1[many]["jacobian"] / 2)
    dq_1, dq_8 = (query_gradient(64, many, scale, rng) for scale in (True, False))
    fresh, unit = (fresh_spread(std, seed) for std in (0.02, 1 / math.sqrt(768)))

    findings = (
        Finding(
            "unscaled scores have a standard deviation of √d_head",
            ", ".join(f"{spread:.1f}" for spread in unscaled.values()) + f" at d_head = {', '.join(map(str, WIDTHS))}",
            off < 0.03,
        ),
        Finding(
            "with the scale it is ≈ 1, whatever the head's width",
            ", ".join(f"{spread:.2f}" for spread in scaled.values()),
            max(abs(spread - 1) for spread in scaled.values()) < 0.03,
        ),
        Finding(
            "a logit 8 above its neighbours has e⁸ ≈ 3,000 times the mass: essentially one-hot",
            f"{math.exp(8):,.0f} times; of all the weight, "
            + ", ".join(f"{weight:.1%} among {n:,} keys" for n, weight in ahead.items()),
            ahead[many] > 0.9,
        ),
        Finding(
            "at a spread of 8 softmax saturates toward one-hot",
            f"of {many} keys the first takes {at_8[many]['largest']:.0%} of the weight (at 1: "
            f"{at_1[many]['largest']:.0%}); entropy {at_8[many]['entropy']:.2f} nats, as of "
            f"{math.exp(at_8[many]['entropy']):.1f} equal keys (at 1: {math.exp(at_1[many]['entropy']):.0f})",
            at_8[many]["largest"] > 0.5,
        ),
        Finding(
            "its Jacobian is near zero: with 2 keys",
            f"norm {at_8[2]['jacobian']:.4f}, at a spread of 1 {at_1[2]['jacobian']:.2f} (medians)",
            at_8[2]["jacobian"] < 0.01 * at_1[2]["jacobian"],
        ),
        Finding(
            f"its Jacobian is near zero: with {many} keys",
            f"norm {at_8[many]['jacobian']:.2f}, at a spread of 1 {at_1[many]['jacobian']:.2f}: larger, since 8 leaves "
            f"two or three keys to choose from. It has halved by a spread of {vanishes:.0f}, "
            f"d_head ≈ {vanishes**2:.0f}",
            at_8[many]["jacobian"] < 0.1 * at_1[many]["jacobian"],
        ),
        Finding(
            "so the gradient vanishes: most keys get none",
            f"{at_8[many]['reached']:.0%} of {many} scores get more than a hundredth of their row's largest gradient, "
            f"at a spread of 1 {at_1[many]['reached']:.0%}",
            at_8[many]["reached"] < 0.2,
        ),
        Finding(
            "all this before training even starts",
            f"a fresh GPT-2's unscaled scores spread by {fresh:.1f}: its weights' 0.02 makes q and k smaller than 1. "
            f"Weights of 1/√768 = {1 / math.sqrt(768):.3f} make it {unit:.1f}",
            fresh > 7,
        ),
    )
    values = {f"unscaled_{d_head}": spread for d_head, spread in unscaled.items()}
    values |= {f"scaled_{d_head}": spread for d_head, spread in scaled.items()}
    values |= {f"ahead_{n}": weight for n, weight in ahead.items()}
    for sigma, at in ((1, at_1), (8, at_8)):
        values |= {f"{name}_{n}_at_{sigma}": value for n in KEYS for name, value in at[n].items()}
    values |= {"vanishes": float(vanishes), "fresh": fresh, "fresh_unit": unit, "dq_scaled": dq_1, "dq_unscaled": dq_8}
    note = (
        f"Without the scale the gradient that does arrive at q is large, {dq_8 / dq_1:.0f} times the scaled one at "
        "d_head = 64, as nothing divides it by 8 either; but it speaks of two or three keys and is silent on the rest. "
        "It is the typical row that goes dead, and it takes more spread the more keys there are."
    )

    def draw(figure: Figure) -> None:
        left, middle, right = figure.subplots(1, 3)
        left.loglog(WIDTHS, list(unscaled.values()), marker="o", label="q kᵀ")
        left.loglog(WIDTHS, list(scaled.values()), marker="o", label="q kᵀ / √d_head")
        left.loglog(WIDTHS, np.sqrt(WIDTHS), "k--", label="√d_head")
        left.set(title="Spread of the scores", xlabel="d_head", ylabel="standard deviation")
        left.set_xticks(WIDTHS, map(str, WIDTHS))
        left.set_yticks((1, 2, 4, 8, 16), ("1", "2", "4", "8", "16"))
        left.minorticks_off()
        for ax, name, title in (
            (middle, "entropy", "Entropy of softmax, nats"),
            (right, "jacobian", "Norm of its Jacobian"),
        ):
            for n in KEYS:
                ax.semilogx(SPREADS, [row[name] for row in seen[n]], label=f"{n} keys")
            ax.axvline(8, color="black", linestyle="--", label="d_head = 64, unscaled")
            ax.set(title=title, xlabel="spread of the scores")
            ax.set_xticks((1, 2, 4, 8, 16, 32, 64, 128), ("1", "2", "4", "8", "16", "32", "64", "128"))
            ax.minorticks_off()
        left.legend()
        middle.legend()
        figure.set_size_inches(15, 5)

    return Result(findings, values, note, draw)


def score_spread(d_head: int, rng: np.random.Generator, scale: bool) -> float:
    """Return the standard deviation of the scores of unit-variance q and k."""
    q, k = rng.standard_normal((2, 512, d_head))  # (T, d_head)
    scores = q @ k.T  # (T, T)
    if scale:
        scores /= d_head**0.5
    return float(scores.std())


def one_ahead(n: int, ahead: float) -> float:
    """Return softmax's weight for one key whose score is so far ahead of n − 1 equal ones."""
    scores = np.zeros(n)
    scores[0] = ahead
    attn, _ = softmax_forward(scores)
    return float(attn[0])


def look(n: int, sigma: float, rng: np.random.Generator) -> dict[str, float]:
    """Return medians over rows of n normal scores with standard deviation sigma.

    largest   the largest weight
    entropy   −Σ p log p (the mean over rows)
    jacobian  the Frobenius norm of diag(p) − p pᵀ
    reached   the share of scores whose gradient, under a random one from above, is more than a hundredth
              of their row's largest
    """
    scores, dattn = sigma * rng.standard_normal((ROWS, n)), rng.standard_normal((ROWS, n))
    p, cache = softmax_forward(scores)  # (ROWS, n)
    dscores = abs(softmax_backward(dattn, cache))  # (ROWS, n)
    # ‖diag(p) − p pᵀ‖² = Σ p² − 2 Σ p³ + (Σ p²)²
    p2, p3 = (p**2).sum(axis=-1), (p**3).sum(axis=-1)  # (ROWS,)
    return {
        "largest": float(np.median(p.max(axis=-1))),
        "entropy": float(-(p * np.log(np.maximum(p, 1e-300))).sum(axis=-1).mean()),
        "jacobian": float(np.median(np.sqrt(np.maximum(p2 - 2 * p3 + p2**2, 0)))),
        "reached": float((dscores > 0.01 * dscores.max(axis=-1, keepdims=True)).mean()),
    }


def query_gradient(d_head: int, n: int, scale: bool, rng: np.random.Generator) -> float:
    """Return the median norm of the gradient that reaches a query through attention, given a unit-variance one."""
    q, k, v, dout = rng.standard_normal((4, 8, n, d_head))  # (h, T, d_head)
    _, cache = attend_forward(q, k, v, causal=False, scale=scale)
    dq, _, _ = attend_backward(dout, cache)  # (h, T, d_head)
    return float(np.median(np.linalg.norm(dq, axis=-1)))


def fresh_spread(std: float, seed: int) -> float:
    """Return the spread of the unscaled scores in the first block of a fresh GPT-2 whose W_qkv has this deviation."""
    model = Model(Config.preset("gpt2", V=1024, T_max=128, L=1), seed)
    model.params["block.0.W_qkv"] *= std / 0.02
    idx = np.random.default_rng(seed).integers(1024, size=(1, 128))
    _, (_, cache_blocks, _, _) = model.forward(idx)
    _, cache_attention, _, _ = cache_blocks[0]
    q, k, *_ = cache_attention[1]  # (B, h, T, d_head)
    return float((q @ k.swapaxes(-2, -1)).std())


LAB = Lab(
    name="score_scale",
    section="§2",
    claim="unscaled scores grow like √d_head, saturate softmax and stop the gradient; dividing by √d_head pins them",
    measure=measure,
)
