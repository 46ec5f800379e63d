"""A model that knows nothing: its loss is ln V, unless it was not initialised as it should be."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ..config import Config
from ..model import Model
from ..ops import softmax_forward
from .lab import Finding, Lab, Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES = (64, 256, 1024, 8192, 50257)  # V
DEPTHS = (2, 6, 12, 24, 48)  # L
SPREADS = (0.002, 0.02, 0.2, 1.0)  # of the initial weights; GPT-2's is 0.02
SMALL = Config(V=256, T_max=64, d=64, h=4, L=4)


def measure(seed: int) -> Result:
    fresh = {V: loss_of(Model(Config(V=V, T_max=64, d=64, h=4, L=2), seed), seed) for V in SIZES}
    gpt2 = loss_of(Model(Config.preset("gpt2"), seed), seed)
    excess = 0.02**2 * 768 / 2
    joint, summed = two_likelihoods(seed)

    spread = {std: loss_of(respread(Model(SMALL, seed), std), seed) for std in SPREADS}
    loss_with, loss_without = (loss_of(deep(48, scaled, seed), seed) for scaled in (True, False))
    stream = {scaled: [stream_variance(deep(L, scaled, seed), seed) for L in DEPTHS] for scaled in (True, False)}
    growth = {scaled: variances[-1] / variances[0] for scaled, variances in stream.items()}

    findings = (
        Finding(
            "a fresh model's cross-entropy is ln V",
            ", ".join(f"{loss:.3f} (ln {V:,} = {math.log(V):.3f})" for V, loss in fresh.items()),
            all(abs(loss - math.log(V)) < 0.05 for V, loss in fresh.items()),
        ),
        Finding(
            "GPT-2 small's too: ln 50,257 = 10.825",
            f"{gpt2:.3f}; the {gpt2 - math.log(50257):.3f} above are ½σ² = {excess:.3f}, as its logits, of d = 768 "
            f"terms each, spread by σ = 0.02·√768 = {0.02 * math.sqrt(768):.2f}",
            abs(gpt2 - math.log(50257) - excess) < 0.05,
        ),
        Finding(
            "cross-entropy is the negative log-likelihood: the loss times T − 1 is −log p(x₂ … x_T | x₁)",
            f"{summed:.12f} from the loss, {joint:.12f} from the product of the T − 1 probabilities",
            abs(summed - joint) < 1e-9,
        ),
        Finding(
            "a wrong init shows in the first loss: weights too large",
            ", ".join(f"{spread[std]:.2f} at {std}" for std in SPREADS[1:]) + f"; ln V = {math.log(SMALL.V):.2f}",
            spread[0.2] > math.log(SMALL.V) + 0.3,
        ),
        Finding(
            "a wrong init shows in the first loss: weights too small",
            f"{spread[0.002]:.3f} at 0.002: nearer to ln V = {math.log(SMALL.V):.3f} than GPT-2's {spread[0.02]:.3f}",
            abs(spread[0.002] - math.log(SMALL.V)) > 0.1,
        ),
        Finding(
            "a missing 1/√(2L) shows in the first loss",
            f"{loss_without:.3f} without, {loss_with:.3f} with it at L = 48: the last LayerNorm hides it",
            abs(loss_without - loss_with) > 0.1,
        ),
        Finding(
            "it shows in the residual stream, whose scale grows with depth",
            f"from L = 2 to 48 the variance after the last block grows {growth[False]:.1f} times without, "
            f"{growth[True]:.2f} times with it",
            growth[False] > 5 and growth[True] < 1.5,
        ),
    )
    values = {f"fresh_{V}": loss for V, loss in fresh.items()}
    values |= {f"spread_{std}": loss for std, loss in spread.items()}
    values |= {"gpt2": gpt2, "joint": joint, "summed": summed, "loss_scaled": loss_with, "loss_unscaled": loss_without}
    values |= {"growth_scaled": growth[True], "growth_unscaled": growth[False]}
    note = (
        "Before any training: a first loss far above ln V is a wrong init, and one below it a leak. It is blind to the "
        "two faults that only training or the stream's variance bring out: weights too small, and the missing 1/√(2L)."
    )

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        left.semilogx(SIZES, list(fresh.values()), "o", markersize=10, label="fresh models, d = 64")
        left.semilogx([50257], [gpt2], "s", markersize=10, label="GPT-2 small, d = 768")
        left.semilogx(SIZES, np.log(SIZES), "k--", label="ln V")
        left.semilogx(
            [SMALL.V] * 2, [spread[0.2], spread[1.0]], "x", markersize=12, mew=3, label="weights of 0.2 and of 1"
        )
        left.set(title="The first loss", xlabel="V", ylabel="nats a token")
        for scaled, name in ((True, "W_o and W_2 divided by √(2L)"), (False, "not divided")):
            right.loglog(DEPTHS, stream[scaled], marker="o", markersize=8, label=name)
        right.set(title="The stream after the last block, fresh", xlabel="L", ylabel="variance")
        right.set_xticks(DEPTHS, map(str, DEPTHS))
        right.minorticks_off()
        left.legend()
        right.legend()
        figure.set_size_inches(15, 6)

    return Result(findings, values, note, draw)


def random_ids(config: Config, seed: int) -> np.ndarray:
    """Return ids (B, T) that nothing could predict."""
    return np.random.default_rng([seed, 1]).integers(config.V, size=(4, 64))


def loss_of(model: Model, seed: int) -> float:
    """Return the model's loss on random ids."""
    return float(model.loss(random_ids(model.config, seed)))


def respread(model: Model, std: float) -> Model:
    """Make every matrix's initial weights larger or smaller, as if drawn with std in place of 0.02."""
    model.params.matrices *= std / 0.02
    return model


def deep(L: int, scaled: bool, seed: int) -> Model:
    """Return a fresh model of L blocks, its W_o and W_2 divided by √(2L) or not."""
    model = Model(Config(V=256, T_max=64, d=128, h=4, L=L), seed)
    if not scaled:
        for block in range(L):
            for name in ("W_o", "W_2"):
                model.params.block(block)[name] *= math.sqrt(2 * L)
    return model


def stream_variance(model: Model, seed: int) -> float:
    """Return the variance of the residual stream after the last block, from what the last LayerNorm saved."""
    _, (_, _, (_, rstd, _), _) = model.forward(random_ids(model.config, seed))
    return float((1 / rstd**2 - model.config.eps).mean())


def two_likelihoods(seed: int) -> tuple[float, float]:
    """Return −log p(x₂ … x_T | x₁) as the log of a product of probabilities, and as (T − 1) times the loss."""
    model = Model(SMALL, seed, dtype="float64")
    respread(model, 0.2)  # so that the probabilities differ
    idx = random_ids(SMALL, seed)[:1]  # (1, T)
    logits, _ = model.forward(idx)
    probs, _ = softmax_forward(logits[0, :-1])  # (T−1, V)
    product = 1.0
    for p, target in zip(probs, idx[0, 1:]):
        product *= float(p[target])
    return -math.log(product), float(model.loss(idx)) * (idx.shape[1] - 1)


LAB = Lab(
    name="first_loss",
    section="§5",
    claim="cross-entropy is the negative log-likelihood; a fresh model's is ln V",
    measure=measure,
)
