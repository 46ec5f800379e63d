"""The causal mask: what it forbids, and what a model learns that is trained without it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ..config import Config
from ..data import unigram_loss
from ..generation import generate
from ..model import Model
from ..ops import attend_forward, cross_entropy_forward
from .lab import Finding, Lab, Result
from .small_run import CONTEXT, help_topics, small_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PROMPT, DRAWN = "The value of the ", 50
N = 256  # held-out sequences


def measure(seed: int) -> Result:
    rng = np.random.default_rng(seed)
    weight = largest_masked_weight(rng)
    changed = {causal: changed_logits(causal, seed) for causal in (True, False)}

    text = help_topics()
    runs = {causal: small_run(seed, causal=causal) for causal in (True, False)}
    idx = text.held_out[: N * CONTEXT].reshape(N, CONTEXT)  # (N, T)
    whole = {causal: float(run.model.loss(idx)) for causal, run in runs.items()}
    prefix = {causal: prefix_losses(run.model, idx) for causal, run in runs.items()}
    honest = {causal: float(losses.mean()) for causal, losses in prefix.items()}
    trained = {causal: float(np.mean(run.losses[-20:])) for causal, run in runs.items()}
    unigram = unigram_loss(text.train, text.held_out, text.tokenizer.V)
    drawn = {causal: continue_prompt(run.model, seed) for causal, run in runs.items()}

    findings = (
        Finding("masked weights are exactly 0", f"the largest is {weight}", weight == 0),
        Finding(
            "the prediction at t never sees the answer at t + 1: editing a token leaves earlier logits as they are",
            f"{changed[True]} of the logits before it change, not by a bit; without the mask all {changed[False]:,} do",
            changed[True] == 0 < changed[False],
        ),
        Finding(
            "one forward pass = T−1 honest supervised targets",
            f"held-out loss {whole[True]:.4f} in one pass, {honest[True]:.4f} from each prefix alone",
            abs(whole[True] - honest[True]) < 1e-5,
        ),
        Finding(
            "drop the mask and the training loss crashes to zero",
            f"{trained[False]:.3f} in the last 20 of {len(runs[False].losses)} updates, with the mask "
            f"{trained[True]:.2f}",
            trained[False] < 0.1,
        ),
        Finding(
            "it copies: text that it has not seen is as easy",
            f"held-out loss {whole[False]:.3f} in one pass over all of it",
            whole[False] < 0.2,
        ),
        Finding(
            "while inference, where future tokens do not exist, is impossible",
            f"{honest[False]:.1f} nats a token from each prefix alone; letters by their frequency give "
            f"{unigram:.2f}, chance gives ln V = {math.log(text.tokenizer.V):.2f}",
            honest[False] > math.log(text.tokenizer.V),
        ),
    )
    values = {"masked_weight": weight, "unigram": unigram, "chance": math.log(text.tokenizer.V)}
    for causal, name in ((True, "causal"), (False, "unmasked")):
        values |= {
            f"{name}_changed": float(changed[causal]),
            f"{name}_trained": trained[causal],
            f"{name}_whole": whole[causal],
            f"{name}_prefix": honest[causal],
        }
    note = (
        "For a while both learn the same, how often letters come. Then, within some dozens of updates, the model "
        "without the mask finds out that position t may look at t + 1. "
        f"Continuing {PROMPT!r}: with the mask {drawn[True]!r}, without {drawn[False]!r}."
    )

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        for causal, name in ((True, "with the mask"), (False, "without")):
            left.plot(runs[causal].losses, label=name)
            right.plot(range(1, CONTEXT), prefix[causal], marker="o", label=name)
        for ax in (left, right):
            ax.axhline(unigram, color="black", linestyle="--", label="letters by frequency")
            ax.set_ylim(bottom=0)
            ax.set_ylabel("loss, nats a token")
            ax.legend()
        left.set(title="In training", xlabel="update")
        right.set(title="Predicting the next token, held out", xlabel="tokens it is given")
        figure.set_size_inches(14, 6)

    return Result(findings, values, note, draw)


def largest_masked_weight(rng: np.random.Generator) -> float:
    """Return the largest attention weight from a position to a later one."""
    q, k, v = rng.standard_normal((3, 4, 64, 16))  # (h, T, d_head)
    _, (_, _, _, attn, _, _) = attend_forward(q, k, v)  # (h, T, T)
    return float(np.triu(attn, 1).max())


def changed_logits(causal: bool, seed: int) -> int:
    """Return how many logits before the middle of a sequence change when the token in the middle does."""
    model = Model(Config.preset("tiny", causal=causal), seed)
    V, T = model.config.V, model.config.T_max
    idx = np.random.default_rng(seed).integers(V, size=(1, T))
    edited = idx.copy()
    edited[0, T // 2] = (idx[0, T // 2] + 1) % V
    before, after = (model.forward(tokens)[0][:, : T // 2] for tokens in (idx, edited))  # (1, T/2, V)
    return int((before != after).sum())


def prefix_losses(model: Model, idx: np.ndarray) -> np.ndarray:
    """Return the loss (T−1,) of predicting token t of idx (N, T) with nothing but the t tokens before it there."""
    losses = []
    for t in range(1, idx.shape[1]):
        logits, _ = model.forward(idx[:, :t])  # (N, t, V)
        loss, _ = cross_entropy_forward(logits[:, -1], idx[:, t])
        losses.append(float(loss))
    return np.array(losses)


def continue_prompt(model: Model, seed: int) -> str:
    """Return the text that the model goes on with."""
    tokenizer = help_topics().tokenizer
    return tokenizer.decode(generate(model, tokenizer.encode(PROMPT), DRAWN, temperature=0.8, seed=seed))


LAB = Lab(
    name="causal_mask",
    section="§2",
    claim="drop the mask and the training loss crashes to zero while inference is impossible",
    measure=measure,
)
