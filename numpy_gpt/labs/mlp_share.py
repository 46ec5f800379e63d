"""Where a block's weights are, and what is left to the embeddings as a model grows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..budget import parameters
from ..config import Config
from ..model import Model
from .lab import Finding, Lab, Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
PARTS = ("embeddings", "attention", "MLP", "norms and biases")


def measure(seed: int) -> Result:
    built = weigh_block(Model(Config.preset("gpt2", V=1, T_max=1, L=1), seed))
    with_biases = built["MLP"] / sum(built.values())
    matrices = {size: parameters(Config.preset(size)) for size in SIZES}
    mlp = {size: p["mlp_per_block"] / (p["mlp_per_block"] + p["attn_per_block"]) for size, p in matrices.items()}

    shares = {size: parts_of(Config.preset(size)) for size in SIZES}
    emb = [shares[size]["embeddings"] for size in SIZES]
    at_once = {name: [parts_of(config)["embeddings"] for config in wider] for name, wider in doublings().items()}
    lost = next(config for config in doublings()["both double"] if parts_of(config)["embeddings"] < 0.01)
    d, L, N = lost.d, lost.L, lost.n_parameters()
    narrow = max(d for d in range(12, 769, 12) if parts_of(Config.preset("gpt2", d=d))["embeddings"] > 0.5)

    findings = (
        Finding(
            "about 2/3 of every block's weights live in the MLP: 8d² of 12d²",
            f"{mlp['gpt2']:.4f} of the matrices, in GPT-2 small and XL alike",
            set(mlp.values()) == {2 / 3},
        ),
        Finding(
            "and of all a block's parameters, biases and norms with them",
            f"{with_biases:.4f}, counted in a block that was built: {built['MLP']:,} of {sum(built.values()):,}",
            abs(with_biases - 2 / 3) < 0.001,
        ),
        Finding(
            "the embeddings' share falls with scale",
            ", ".join(f"{share:.1%}" for share in emb) + " from small to XL",
            emb == sorted(emb, reverse=True),
        ),
        Finding(
            "the block term is quadratic in d, the embeddings linear: twice the width halves emb : blocks",
            f"1 : {ratio('gpt2', 1):.2f} in GPT-2 small, 1 : {ratio('gpt2', 2):.2f} at twice its d",
            math.isclose(ratio("gpt2", 2), 2 * ratio("gpt2", 1)),
        ),
        Finding(
            "at any real scale the model is all blocks",
            f"embeddings are still {emb[0]:.0%} of GPT-2 small, {emb[-1]:.0%} of XL; doubling small's d and L "
            f"together, they fall below 1% at d = {d}, L = {L}: {N / 1e9:,.0f} billion parameters",
            emb[0] < 0.1,
        ),
    )
    values = {f"emb_{size}": share for size, share in zip(SIZES, emb)}
    values |= {
        "mlp_of_matrices": mlp["gpt2"],
        "mlp_of_block": with_biases,
        "half_at_d": float(narrow),
        "below_1_percent_at": float(N),
    }
    note = (
        f"Two thirds is exact at every width. 'All blocks' is not yet true of GPT-2 small; with its vocabulary and 12 "
        f"blocks the embeddings are more than half of the model up to d = {narrow}."
    )

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        bottom = [0.0] * len(shares)
        for part in PARTS:
            heights = [parts[part] for parts in shares.values()]
            left.bar(list(shares), heights, bottom=bottom, label=part)
            bottom = [low + high for low, high in zip(bottom, heights)]
        left.set(title="Where the parameters are", ylabel="share of N", ylim=(0, 1))
        left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2)
        for name, line in at_once.items():
            N = [config.n_parameters() for config in doublings()[name]]
            right.loglog(N, line, marker="o", label=name)
        right.set(title="Embeddings' share as GPT-2 small grows", xlabel="N, parameters", ylabel="share of N")
        right.legend()
        figure.set_size_inches(15, 6.5)

    return Result(findings, values, note, draw)


def weigh_block(model: Model) -> dict[str, int]:
    """Return the parameters of a built model's first block by part: attention, MLP and what is neither."""
    parts = {"attention": 0, "MLP": 0, "norms": 0}
    for name, parameter in model.params.block(0).items():
        part = "norms" if name.startswith("ln") else "MLP" if name.endswith(("_1", "_2")) else "attention"
        parts[part] += parameter.size
    return parts


def parts_of(config: Config) -> dict[str, float]:
    """Return the share of N that each part has."""
    p = parameters(config)
    counts = (p["emb"], config.L * p["attn_per_block"], config.L * p["mlp_per_block"], p["norms_and_biases"])
    return {part: count / p["N"] for part, count in zip(PARTS, counts)}


def doublings() -> dict[str, list[Config]]:
    """Return GPT-2 small grown one way at a time, and both."""
    return {
        "d doubles": [Config.preset("gpt2", d=768 * 2**k) for k in range(6)],
        "L doubles": [Config.preset("gpt2", L=12 * 2**k) for k in range(6)],
        "both double": [Config.preset("gpt2", d=768 * 2**k, L=12 * 2**k) for k in range(6)],
    }


def ratio(size: str, times: int) -> float:
    """Return blocks : embeddings for a preset that many times as wide."""
    p = parameters(Config.preset(size, d=times * Config.preset(size).d))
    return p["blocks"] / p["emb"]


LAB = Lab(
    name="mlp_share",
    section="§3, §6",
    claim="about 2/3 of every block's weights live in the MLP; the embeddings' share falls with scale",
    measure=measure,
)
