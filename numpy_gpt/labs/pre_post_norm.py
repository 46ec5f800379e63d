"""LayerNorm inside the branch or on the skip path: what passes through a deep stack, fresh and in training."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..config import Config
from ..data import unigram_loss, windows
from ..model import BLOCK, Model
from ..ops import embedding_forward
from ..optim import AdamW, clip_by_global_norm
from ..parameters import Parameters
from .lab import Finding, Lab, Result
from .small_run import help_topics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEPTHS = (2, 6, 12, 24, 48)  # L
T, D, H = 32, 64, 4
L, B, LR, WARMUP, STEPS = 6, 8, 3e-3, 100, 200  # of the training runs
LOOK = 10  # updates, after which the gradients are looked at again
NORMS = ("pre", "post")


def measure(seed: int, steps: int = STEPS, depths: tuple[int, ...] = DEPTHS) -> Result:
    text = help_topics()
    V = text.tokenizer.V
    idx = text.held_out[: B * T].reshape(B, T)  # (B, T)
    unigram = unigram_loss(text.train, text.held_out, V)

    fresh, plain = (
        {(norm, depth): look(fresh_model(norm, depth, scaled, V, seed), idx) for norm in NORMS for depth in depths}
        for scaled in (True, False)
    )
    deepest, shallowest = depths[-1], depths[1]  # a stream's first few blocks add less than those behind
    slope, scaled_growth = (
        math.log(seen["pre", deepest].variance[-1] / seen["pre", shallowest].variance[-1])
        / math.log(deepest / shallowest)
        for seen in (plain, fresh)
    )
    pinned = max(abs(plain["post", depth].variance[1:] - 1).max() for depth in depths)
    uneven = {norm: spread(fresh[norm, deepest].gradients) for norm in NORMS}
    uneven_plain = {norm: spread(plain[norm, deepest].gradients) for norm in NORMS}

    def run(norm: str, depth: int, warmup: int) -> Run:
        return train(fresh_model(norm, depth, True, V, seed), text.train, idx, warmup, seed, steps)

    runs = {
        "pre-norm": run("pre", L, 1),
        "pre-norm, warm-up": run("pre", L, WARMUP),
        "post-norm": run("post", L, 1),
        "post-norm, warm-up": run("post", L, WARMUP),
    }
    pre, pre_warmed, post, warmed = runs.values()
    shallow = run("post", 2, 1)
    fades = {name: float(run.gradients[-1] / run.gradients[1]) for name, run in runs.items()}

    findings = (
        Finding(
            "pre-norm bounds the residual variance ≈ linearly in L",
            f"it grows as L to the power {slope:.2f}: {plain['pre', shallowest].variance[-1]:.1f} after "
            f"{shallowest} blocks, {plain['pre', deepest].variance[-1]:.0f} after {deepest} (branches at full size)",
            0.8 < slope < 1.2,
        ),
        Finding(
            "GPT-2's 1/√(2L) keeps it from growing with depth",
            f"as L to the power {scaled_growth:.2f}",
            abs(scaled_growth) < 0.1,
        ),
        Finding("post-norm pins it to 1 after every block", f"within {pinned:.1g}", pinned < 0.05),
        Finding(
            "post-norm routes the gradient through L LayerNorm Jacobians in series, and small errors compound: fresh",
            f"at L = {deepest} the gradients of blocks 2 to L differ by {uneven['post']:.2f} times with GPT-2's init, "
            f"by {uneven_plain['post']:.1f} times with branches at full size; pre-norm's by {uneven['pre']:.2f} and "
            f"{uneven_plain['pre']:.1f} times",
            min(uneven["post"] / uneven["pre"], uneven_plain["post"] / uneven_plain["pre"]) > 1.5,
        ),
        Finding(
            f"and so it is after {LOOK} updates without warm-up, L = {L}",
            f"the last block's gradient is {fades['post-norm']:.1f} times the second's, "
            f"{fades['post-norm'] ** (1 / (L - 2)):.1f} times more with each block; pre-norm "
            f"{fades['pre-norm']:.1f} times, post-norm with warm-up {fades['post-norm, warm-up']:.1f} times",
            fades["post-norm"] > 3 > fades["pre-norm"],
        ),
        Finding(
            "pre-norm trains without warm-up",
            f"loss {pre.last:.2f} after {steps} updates at lr {LR}, L = {L}; letters by their frequency give "
            f"{unigram:.2f}",
            pre.last < unigram - 0.1,
        ),
        Finding(
            "post-norm does not",
            f"loss {post.last:.2f}: it does not spike here, it gets stuck at what letter frequencies give; with "
            f"warm-up over {WARMUP} updates {warmed.last:.2f}",
            post.last > unigram - 0.1 > warmed.last,
        ),
        Finding(
            "it is a matter of depth: at L = 2 post-norm trains without warm-up",
            f"loss {shallow.last:.2f}",
            shallow.last < unigram - 0.1,
        ),
        Finding(
            "switching to pre-norm costs zero parameters and is a free win",
            f"{abs(post.n - pre.n)} parameters; but at this size post-norm with warm-up is ahead after {steps} "
            f"updates, {warmed.last:.2f} against pre-norm's {pre_warmed.last:.2f} with warm-up and "
            f"{pre.last:.2f} without",
            post.n == pre.n and pre.last < warmed.last + 0.05,
        ),
    )
    values = {"slope": slope, "slope_scaled": scaled_growth, "pinned": float(pinned), "unigram": unigram}
    values |= {f"uneven_{norm}": uneven[norm] for norm in NORMS} | {
        f"uneven_plain_{norm}": uneven_plain[norm] for norm in NORMS
    }
    values |= {
        "pre": pre.last,
        "pre_warmed": pre_warmed.last,
        "post": post.last,
        "warmed": warmed.last,
        "shallow": shallow.last,
    }
    values |= {"fades_pre": fades["pre-norm"], "fades_post": fades["post-norm"]}
    note = (
        "Fresh with GPT-2's init a branch adds so little to the stream that both norms pass gradients evenly. The "
        "first updates at full speed make the branches large, and then each LayerNorm on the skip path takes its part."
    )

    def draw(figure: Figure) -> None:
        axes = figure.subplots(2, 3)
        for row, norm in zip(axes, NORMS):
            for depth in depths:
                seen = plain[norm, depth]
                row[0].plot(np.arange(1, depth + 1), seen.variance[1:], marker=".", lw=2, label=f"L = {depth}")
                row[1].plot(np.arange(2, depth + 1), seen.gradients[1:], marker=".", lw=2, label=f"L = {depth}")
            row[0].set(title=f"{norm}-norm, fresh: the stream", xlabel="after block", ylabel="variance")
            row[1].set(title=f"{norm}-norm, fresh: gradients", xlabel="block", ylabel="norm", ylim=(0, None))
        axes[0, 0].legend()
        axes[1, 0].set_ylim(0, 2)
        for name, run in runs.items():
            axes[0, 2].plot(np.convolve(run.losses, np.ones(10) / 10, mode="valid"), lw=2, label=name)
            axes[1, 2].semilogy(np.arange(2, L + 1), run.gradients[1:], marker="o", lw=2, label=name)
        axes[0, 2].axhline(unigram, color="black", linestyle="--", label="letters by frequency")
        axes[0, 2].set(title=f"Training, L = {L}, lr {LR}", xlabel="update", ylabel="loss, mean of 10 updates")
        axes[1, 2].set(title=f"Gradients after {LOOK} updates", xlabel="block", ylabel="norm")
        axes[1, 2].set_xticks(range(2, L + 1))
        for ax in axes[:, 2]:
            ax.legend()
        figure.set_size_inches(20, 11)

    return Result(findings, values, note, draw)


class Seen(NamedTuple):
    """variance (L+1,) of the stream before the first block and after each; gradients (L,), the norm of each block's."""

    variance: np.ndarray
    gradients: np.ndarray


class Run(NamedTuple):
    """The losses of a run, its blocks' gradients (L,) after LOOK updates, and its parameters."""

    losses: list[float]
    gradients: np.ndarray
    n: int

    @property
    def last(self) -> float:
        return float(np.mean(self.losses[-20:]))


def fresh_model(norm: str, depth: int, scaled: bool, V: int, seed: int) -> Model:
    """Return a fresh model with GPT-2's weights, or, not scaled, with 1/√n_in in the blocks: branches at full size."""
    model = Model(Config(V=V, T_max=T, d=D, h=H, L=depth, norm=norm), seed)
    rng = np.random.default_rng([seed, depth])
    for name, p in model.params.items():
        if not scaled and name.startswith("block") and p.ndim == 2:
            p[...] = rng.standard_normal(p.shape) / math.sqrt(p.shape[0])
    return model


def look(model: Model, idx: np.ndarray) -> Seen:
    """Return the residual stream's variance by depth and the gradient's norm by block."""
    return Seen(stream_variance(model, idx), block_norms(model.step(idx).grads, model.config.L))


def stream_variance(model: Model, idx: np.ndarray) -> np.ndarray:
    """Return the variance (L+1,) of the stream at the input of each block and after the last one."""
    p, config = model.params, model.config
    x, _ = embedding_forward(idx, p["W_te"], p["W_pe"])  # (B, T, d)
    block_forward, _ = BLOCK[config.norm]
    variances = [x.var(axis=-1).mean()]
    for number in range(config.L):
        x, _ = block_forward(x, p.block(number), config)  # (B, T, d)
        variances.append(x.var(axis=-1).mean())
    return np.array(variances)


def block_norms(grads: Parameters, depth: int) -> np.ndarray:
    """Return the norm (L,) of the gradient of each block's parameters."""
    return np.array(
        [math.sqrt(sum(float((g**2).sum()) for g in grads.block(number).values())) for number in range(depth)]
    )


def spread(gradients: np.ndarray) -> float:
    """Return the largest by the smallest, the first block left out: it reads the embeddings, which are small."""
    return float(gradients[1:].max() / gradients[1:].min())


def train(model: Model, tokens: np.ndarray, probe: np.ndarray, warmup: int, seed: int, steps: int) -> Run:
    """Train model for some updates, the learning rate rising over the first `warmup` of them."""
    optimiser, rng = AdamW(model.params), np.random.default_rng(seed)
    losses = []
    for step in range(steps):
        if step == LOOK:
            gradients = block_norms(model.step(probe).grads, model.config.L)
        idx, _ = windows(tokens, B, model.config.T_max, rng)  # (B, T)
        loss, grads = model.step(idx)
        clip_by_global_norm(grads, 1.0)
        optimiser.update(grads, LR * min(1, (step + 1) / warmup))
        losses.append(float(loss))
    return Run(losses, gradients, model.params.flat.size)


LAB = Lab(
    name="pre_post_norm",
    section="§4",
    claim="pre-norm trains a deep stack without warm-up; post-norm, with L norms in series on the skip path, does not",
    measure=measure,
)
