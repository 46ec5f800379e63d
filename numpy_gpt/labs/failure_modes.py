"""Eight broken models: what each one shows in its first 200 updates, and the check that finds it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..config import Config
from ..data import unigram_loss, windows
from ..gradcheck import check_model
from ..gradcheck.models import IDX, past_unmoved, randomise
from ..model import BLOCK, Model
from ..ops import attention_weights, causal_mask, cross_entropy_forward, head_backward, softmax_forward
from ..optim import AdamW, clip_by_global_norm
from ..parameters import Parameters
from .lab import Finding, Lab, Result
from .small_run import help_topics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

T, D, H, L = 16, 64, 4, 6
B, LR, STEPS = 12, 2e-3, 200
HEALTHY = 3  # runs on the same batches from other weights: what differs by less than they do does not differ
CHECKED = Config(V=7, T_max=6, d=6, h=3, L=1)  # small enough for every element of every gradient


# Eight mistakes, each a few lines around the model as it is


def mask_off(config: Config, seed: int, dtype: str = "float32") -> Model:
    return Model(replace(config, causal=False), seed, dtype)


def scale_off(config: Config, seed: int, dtype: str = "float32") -> Model:
    return Model(replace(config, scale=False), seed, dtype)


def norm_after_the_add(config: Config, seed: int, dtype: str = "float32") -> Model:
    return Model(replace(config, norm="post"), seed, dtype)


class LossUnshifted(Model):
    """Each position is scored on the token that it reads, not on the next."""

    def loss_forward(self, idx: np.ndarray, targets: np.ndarray | None = None) -> tuple:
        return super().loss_forward(idx, idx)


class MeanForgotten(Model):
    """The loss is a mean over B·(T−1) targets; its gradient is that of their sum."""

    def loss_backward(self, dloss: float, cache: tuple, grads: Parameters | None = None) -> Parameters:
        _, ((B, T, _), _) = cache
        return super().loss_backward(dloss * B * (T - 1), cache, grads)


class TiedGradientLost(Model):
    """The head's share of dW_te is written over the sum; the embedding's is lost."""

    def backward(self, dlogits: np.ndarray, cache: tuple, grads: Parameters | None = None) -> Parameters:
        grads = super().backward(dlogits, cache, grads)
        *_, cache_head = cache
        head_backward(dlogits, cache_head, out=grads["W_te"])
        return grads


class PositionsForgotten(Model):
    """x = tok, where the lesson has tok + pos."""

    def forward(self, idx: np.ndarray) -> tuple:
        self.params["W_pe"][...] = 0
        return super().forward(idx)


# What finds them. A check takes a small model and the learning rate; it returns what is wrong, or "".


def sees_the_future(model: Model, lr: float) -> str:
    line = past_unmoved(model, IDX)
    return "" if line.ok else f"another token at t + 1 moves the logits at t by {line.worst:.2g}"


def attention_formula(model: Model, lr: float) -> str:
    _, (_, cache_blocks, _, _) = model.forward(IDX)
    cache_attention = cache_blocks[0][1 if model.config.norm == "pre" else 0]
    q, k, *_ = cache_attention[1]  # (B, h, T, d_head)
    attn = attention_weights(cache_attention)  # (B, h, T, T)
    mask = causal_mask(q.shape[-2], np) if model.config.causal else None  # the mask has a check of its own
    expected, _ = softmax_forward(q @ k.swapaxes(-2, -1) / math.sqrt(q.shape[-1]), mask)
    gap = float(abs(attn - expected).max())
    return "" if gap < 1e-12 else f"weights differ from softmax(q kᵀ / √d_head) by up to {gap:.2g}"


def lessons_loss(model: Model, lr: float) -> str:
    logits, _ = model.forward(IDX)
    expected, _ = cross_entropy_forward(logits[:, :-1], IDX[:, 1:])
    gap = abs(float(model.loss(IDX)) - float(expected))
    return "" if gap < 1e-12 else f"differs from cross_entropy(logits[:, :-1], idx[:, 1:]) by {gap:.2g}"


def gradients(model: Model, lr: float) -> str:
    failures = [line for line in check_model(model=model, contract=False).failures if line.analytic is not None]
    if not failures:
        return ""
    line = next((line for line in failures if line.diagnosis), failures[0])
    names = dict.fromkeys(line.name.removesuffix(" of logits") for line in failures)
    which = ", ".join(names) if len(names) < 4 else f"{len(names)} gradients"
    return f"{which} wrong: {line.diagnosis or line.check}"


def positions_differ(model: Model, lr: float) -> str:
    logits, _ = model.forward(np.full((1, model.config.T_max), 3))  # one token, again and again
    gap = float(abs(logits - logits[:, :1]).max())
    return "" if gap > 1e-6 else "a token repeated gets the same logits at every position"


def skip_is_clear(model: Model, lr: float) -> str:
    silent = {name: 0 * p if name in ("W_o", "b_o", "W_2", "b_2") else p for name, p in model.params.block(0).items()}
    x = np.random.default_rng(0).standard_normal((1, 4, model.config.d))
    block_forward, _ = BLOCK[model.config.norm]
    y, _ = block_forward(x, silent, model.config)
    gap = float(abs(y - x).max())
    return "" if gap == 0 else f"with W_o = W_2 = 0 a block still changes the stream, by {gap:.2g}"


def first_update(model: Model, lr: float) -> str:
    fresh = type(model)(model.config, 0)
    weights = fresh.params.matrices.copy()
    AdamW(fresh.params).update(fresh.step(IDX).grads, lr)
    moved = np.std(fresh.params.matrices - weights) / np.std(weights)
    return "" if moved < 1 else f"the first update is {moved:.1f} times as large as the weights"


CHECKS: dict[str, Callable[[Model, float], str]] = {
    "the past does not see the future": sees_the_future,
    "attention is its formula": attention_formula,
    "the loss is the lesson's": lessons_loss,
    "gradcheck": gradients,
    "positions differ": positions_differ,
    "the skip is clear": skip_is_clear,
    "the first update is small": first_update,
}


class Run(NamedTuple):
    """The loss, and the gradient's norm before clipping, of each update."""

    losses: np.ndarray
    norms: np.ndarray

    @property
    def last(self) -> float:
        return float(self.losses[-20:].mean())


def worse(run: Run, healthy: list[Run]) -> bool:
    """Whether a run ends above all the healthy ones, whose first weights differ."""
    return run.last > max(other.last for other in healthy)


@dataclass(frozen=True)
class Mistake:
    """A mistake, the symptom that it is said to have, and the check that finds it.

    shows  whether the symptom is there, given its run and some healthy ones
    build  makes the broken model; times_lr  what its learning rate is multiplied by
    """

    name: str
    symptom: str
    check: str
    shows: Callable[[Run, list[Run]], bool]
    build: Callable[..., Model] = Model
    times_lr: float = 1.0


MISTAKES = (
    Mistake(
        "mask off",
        "the loss falls far below any honest model's, on its way to 0",
        "the past does not see the future",
        lambda run, healthy: run.last < min(other.last for other in healthy) - 1,
        mask_off,
    ),
    Mistake(
        "scale off",
        "the layer stops learning: the loss stays higher",
        "attention is its formula",
        worse,
        scale_off,
    ),
    Mistake(
        "loss unshifted",
        "the loss crashes to 0: the answer is the input",
        "the loss is the lesson's",
        lambda run, healthy: run.last < 0.1,
        LossUnshifted,
    ),
    Mistake(
        "mean forgotten",
        "gradients are B·(T−1) times too large; clipping and Adam hide it from the loss",
        "gradcheck",
        lambda run, healthy: run.norms[0] > 100 * healthy[0].norms[0] and not worse(run, healthy),
        MeanForgotten,
    ),
    Mistake("tied gradient lost", "it trains all the same, but worse", "gradcheck", worse, TiedGradientLost),
    Mistake(
        "position table forgotten", "it trains all the same, but worse", "positions differ", worse, PositionsForgotten
    ),
    Mistake(
        "LayerNorm after the add",
        "without warm-up it is unstable: it spikes or gets stuck",
        "the skip is clear",
        lambda run, healthy: worse(run, healthy) or run.losses.max() > 1.5 * healthy[0].losses[0],
        norm_after_the_add,
    ),
    Mistake(
        "lr × 30",
        "the loss spikes, then gets stuck at what letter frequencies give",
        "the first update is small",
        lambda run, healthy: worse(run, healthy) and run.losses[:20].max() > 1.2 * healthy[0].losses[0],
        times_lr=30,
    ),
)


def measure(seed: int, steps: int = STEPS) -> Result:
    text = help_topics()
    config = Config(V=text.tokenizer.V, T_max=T, d=D, h=H, L=L)
    unigram = unigram_loss(text.train, text.held_out, config.V)
    healthy = [train(Model(config, other), text.train, LR, seed, steps) for other in range(seed, seed + HEALTHY)]
    runs = {m.name: train(m.build(config, seed), text.train, LR * m.times_lr, seed, steps) for m in MISTAKES}
    passed = not any(run_checks(Model, LR).values())
    found = {m.name: run_checks(m.build, LR * m.times_lr) for m in MISTAKES}

    findings = []
    for m in MISTAKES:
        run, what = runs[m.name], found[m.name][m.check]
        findings += [
            Finding(f"{m.name}: {m.symptom}", describe(run, healthy), bool(m.shows(run, healthy))),
            Finding(f"{m.name}: found by '{m.check}'", what or "it finds nothing", bool(what)),
        ]
    by_gradcheck = [name for name, what in found.items() if what["gradcheck"]]
    findings += [
        Finding(
            "no check cries wolf: the healthy model passes all",
            f"{len(CHECKS)} checks pass" if passed else "no",
            passed,
        ),
        Finding(
            "gradcheck alone finds them all",
            f"{len(by_gradcheck)} of {len(MISTAKES)}: {', '.join(by_gradcheck)}. It asks whether the backward is the "
            "gradient of the forward; a wrong forward has a right gradient",
            len(by_gradcheck) == len(MISTAKES),
        ),
    ]
    values = {
        "healthy": healthy[0].last,
        "worst_healthy": max(run.last for run in healthy),
        "unigram": unigram,
        "gradcheck_finds": float(len(by_gradcheck)),
        "healthy, norm": float(healthy[0].norms[0]),
    }
    for m in MISTAKES:
        values |= {f"{m.name}, {check}": float(bool(what)) for check, what in found[m.name].items()}
        values |= {m.name: runs[m.name].last, f"{m.name}, norm": float(runs[m.name].norms[0])}
    note = (
        f"All trained alike: {steps} updates of the same batches, lr {LR}, no warm-up, gradients clipped at 1. Letters "
        f"by their frequency give {unigram:.2f}, {HEALTHY} healthy models that start from different weights "
        f"{', '.join(f'{run.last:.2f}' for run in healthy)}. The scale matters once q and k have grown (lab "
        "score_scale), the norm's place at higher rates: at lr 0.003 post-norm gets stuck (lab pre_post_norm). "
        "Whatever the curves hide, the checks tell before the first update."
    )

    def draw(figure: Figure) -> None:
        for ax, m in zip(figure.subplots(2, 4).flat, MISTAKES):
            by_norm = m.name == "mean forgotten"
            coloured = [(run, "gray") for run in healthy] + [(runs[m.name], "tab:red")]
            for run, colour in coloured:
                curve = run.norms if by_norm else run.losses
                smooth = np.convolve(curve, np.ones(10) / 10, mode="valid")
                ax.plot(np.arange(5, len(curve) - 4), smooth, color=colour, lw=3 if colour == "tab:red" else 1.5)
            if by_norm:
                ax.set(yscale="log", ylabel="gradient's norm")
            else:
                ax.axhline(unigram, color="black", linestyle="--")
                ax.set(ylim=(0, 5.5), ylabel="loss, mean of 10 updates")
            ax.set_title(m.name, fontweight="bold")
            ax.set_xlabel(f"update\nfound by: {m.check}")
        lines = figure.axes[0].lines
        figure.axes[1].legend(
            [lines[0], lines[-2], lines[-1]], ["healthy", "broken", "letters by frequency"], loc="lower left"
        )
        figure.set_size_inches(20, 9.5)

    return Result(tuple(findings), values, note, draw)


def train(model: Model, tokens: np.ndarray, lr: float, seed: int, steps: int) -> Run:
    """Train model for some updates, without warm-up."""
    optimiser, rng = AdamW(model.params, lr), np.random.default_rng(seed)
    losses, norms = [], []
    for _ in range(steps):
        idx, _ = windows(tokens, B, model.config.T_max, rng)  # (B, T)
        loss, grads = model.step(idx)
        norms.append(clip_by_global_norm(grads, 1.0))
        optimiser.update(grads)
        losses.append(float(loss))
    return Run(np.array(losses), np.array(norms))


def run_checks(build: Callable[..., Model], lr: float) -> dict[str, str]:
    """Return what each check says of a small model with this mistake, its parameters neither 0 nor 1."""
    found = {}
    for name, check in CHECKS.items():
        model = build(CHECKED, 0, "float64")
        randomise(model.params, seed=0)
        found[name] = check(model, lr)
    return found


def describe(run: Run, healthy: list[Run]) -> str:
    """Return what a run looks like from outside."""
    lasts, highest = [other.last for other in healthy], max(other.losses.max() for other in healthy)
    return (
        f"loss {run.last:.2f} at last, at most {run.losses.max():.2f} (healthy {min(lasts):.2f} to {max(lasts):.2f}, "
        f"at most {highest:.2f}); the first gradient's norm {run.norms[0]:.3g} (healthy {healthy[0].norms[0]:.3g})"
    )


LAB = Lab(
    name="failure_modes",
    section="Failure modes",
    claim="each of eight mistakes has a symptom in its first 200 updates, and a check that finds it",
    measure=measure,
)
