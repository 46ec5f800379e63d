"""h heads instead of one: what they cost, and what each looks at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..budget import parameters, step_ops, tensors
from ..config import Config
from ..model import Model
from ..ops import attend_forward, attention_weights, merge_heads, split_heads
from ..ops.attend_tiled import attend_tiled_forward
from .lab import Finding, Lab, Result
from .small_run import CONTEXT, STEPS, help_topics, small_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # of GPT-2 small's width
T = 1024
SENTENCE = "is the value of the name"


def measure(seed: int) -> Result:
    configs = {h: Config.preset("gpt2", h=h) for h in HEADS}
    N = {h: parameters(config)["N"] for h, config in configs.items()}
    products = {h: forward_flops(config, products=True) for h, config in configs.items()}
    all_flops = {h: forward_flops(config) for h, config in configs.items()}
    scores = {h: next(t.bytes for t in tensors(config, 1, T) if t.name == "scores") for h, config in configs.items()}
    split, merge, after, tiled = view_or_copy(np.random.default_rng(seed))

    model, text = small_run(seed, causal=True).model, help_topics()
    attn = attention_patterns(model, text.held_out[: 100 * CONTEXT].reshape(100, CONTEXT))  # (L, 100, h, T, T)
    apart, previous = distance(attn), previous_token_weight(attn).max()
    evenly = np.mean([1 / (t + 1) for t in range(1, CONTEXT)])

    findings = (
        Finding(
            "parameters are the same for every h",
            f"N = {N[1]:,} for h = {', '.join(map(str, HEADS))}",
            len(set(N.values())) == 1,
        ),
        Finding(
            "total FLOPs are unchanged: those of the matrix products",
            f"{products[1]:,} in a forward pass of {T:,} tokens, for every h",
            len(set(products.values())) == 1,
        ),
        Finding(
            "total FLOPs are unchanged: all of them",
            f"h = 12 takes {all_flops[12] / all_flops[1] - 1:.1%} more than h = 1, h = 32 "
            f"{all_flops[32] / all_flops[1] - 1:.1%}: scale and softmax work on (B, h, T, T)",
            len(set(all_flops.values())) == 1,
        ),
        Finding(
            "the split (B, T, d) -> (B, h, T, d_head) is a free view", "the same memory" if split else "a copy", split
        ),
        Finding("the merge of a split is a view too", "the same memory" if merge else "a copy", merge),
        Finding(
            "the merge of attention's output is a view: after attn @ v",
            "the same memory" if after else "a copy of B·T·d numbers: attn @ v lays head after head, not side by side",
            after,
        ),
        Finding(
            "the merge of attention's output is a view: after attention in tiles, as on a CPU",
            "the same memory: it writes each head where the merge wants it" if tiled else "a copy",
            tiled,
        ),
        Finding(
            "h independent attention patterns",
            f"two heads of a block disagree on {apart:.0%} of their weight, in a small trained model",
            apart > 0.1,
        ),
        Finding(
            "previous-token heads emerge on their own",
            f"a leaning, after {STEPS} updates of a small model: the head that looks there most gives {previous:.0%} "
            f"of its weight; looking evenly at all tokens so far would give {evenly:.0%}",
            bool(previous > 0.5),
        ),
    )
    values = {
        "N": float(N[1]),
        "products": float(products[1]),
        "apart": apart,
        "previous": float(previous),
        "evenly": float(evenly),
    }
    values |= {
        "split_is_view": float(split),
        "merge_is_view": float(merge),
        "merge_after_attention": float(after),
        "merge_after_tiles": float(tiled),
    }
    values |= {f"flops_{h}": float(flops) for h, flops in all_flops.items()}
    values |= {f"scores_bytes_{h}": float(size) for h, size in scores.items()}
    note = (
        f"Free in parameters and in matrix products; not in memory: each head has scores of its own, {scores[1]:,} "
        f"bytes at T = {T:,} with one head, {scores[12]:,} with twelve."
    )

    def draw(figure: Figure) -> None:
        attn = attention_patterns(model, text.tokenizer.encode(SENTENCE)[None])[:, 0]  # (L, h, T, T)
        letters = [letter.replace(" ", "·") for letter in SENTENCE]
        axes = figure.subplots(*attn.shape[:2], sharex=True, sharey=True)
        for (layer, head), ax in np.ndenumerate(axes):
            ax.imshow(attn[layer, head], cmap="Blues", vmin=0, vmax=1)
            ax.set_title(f"block {layer}, head {head}")
            ax.set_xticks(range(len(letters)), letters, fontsize=9)
            ax.set_yticks(range(len(letters)), letters, fontsize=9)
        figure.suptitle("Where each head looks: a row for each token, a column for each token it may attend to")
        figure.set_size_inches(16, 8.5)

    return Result(findings, values, note, draw)


def forward_flops(config: Config, products: bool = False) -> int:
    """Return the FLOPs of a forward pass of T tokens: of all ops, or of the matrix products alone."""
    total = 0
    for op in step_ops(config, 1, T):
        flops = op.cost.forward
        if products and op.name == "scores":
            flops -= config.h * T * T  # the division by √d_head
        if not products or op.op in ("linear", "attend", "head"):
            total += op.times * flops
    return total


def view_or_copy(rng: np.random.Generator) -> tuple[bool, ...]:
    """Tell whether x and its split share memory, the split and its merge, each attention's output and its merge."""
    x = rng.standard_normal((2, 16, 48))  # (B, T, d)
    heads = split_heads(x, 4)  # (B, h, T, d_head)
    outs = [attend(heads, heads, heads)[0] for attend in (attend_forward, attend_tiled_forward)]  # (B, h, T, d_head)
    return (
        np.shares_memory(heads, x),
        np.shares_memory(merge_heads(heads), heads),
        *(np.shares_memory(merge_heads(out), out) for out in outs),
    )


def attention_patterns(model: Model, idx: np.ndarray) -> np.ndarray:
    """Return the attention weights (L, B, h, T, T) of a model that reads idx (B, T)."""
    _, (_, cache_blocks, _, _) = model.forward(idx)
    return np.array([attention_weights(cache_attention) for _, cache_attention, _, _ in cache_blocks])


def distance(attn: np.ndarray) -> float:
    """Return the share of its weight that a head would have to move to look as another of its block does (the mean)."""
    h = attn.shape[2]
    pairs = [(a, b) for a in range(h) for b in range(a)]
    return float(np.mean([abs(attn[:, :, a] - attn[:, :, b]).sum(axis=-1) / 2 for a, b in pairs]))


def previous_token_weight(attn: np.ndarray) -> np.ndarray:
    """Return the mean weight (L, h) that each head gives, at t ≥ 1, to the token before."""
    return np.diagonal(attn, offset=-1, axis1=-2, axis2=-1).mean(axis=(1, -1))


LAB = Lab(
    name="heads_for_free",
    section="§2",
    claim="h attention patterns for free: total FLOPs are unchanged, the split is a view",
    measure=measure,
)
