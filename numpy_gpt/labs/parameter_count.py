"""The lesson's parameter count against the exact one, from a model of 50,000 parameters to GPT-2 XL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..budget import parameters
from ..config import PRESETS, Config
from ..model import Model
from .lab import Finding, Lab, Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PUBLISHED = {"gpt2": 124_439_808, "gpt2-medium": 354_823_168, "gpt2-large": 774_030_080, "gpt2-xl": 1_557_611_200}
BUILT = ("tiny", "char", "mini", "gpt2")  # those that fit any laptop


def measure(seed: int) -> Result:
    counts = {size: parameters(Config.preset(size)) for size in sorted(PRESETS, key=n_of)}
    N = {size: p["N"] for size, p in counts.items()}
    built = {size: Model(Config.preset(size), None).params.flat.size for size in BUILT}
    left_out = {size: 1 - p["N_lesson"] / p["N"] for size, p in counts.items()}
    small = counts["gpt2"]
    negligible = [left_out[size] for size in N]

    findings = (
        Finding(
            "GPT-2 small has 124M parameters: 124,439,808",
            f"{built['gpt2']:,} numbers in the model that was built",
            built["gpt2"] == 124_439_808,
        ),
        Finding(
            "N counted from the Config is N of the model",
            ", ".join(f"{size} {number:,}" for size, number in built.items()),
            all(N[size] == number for size, number in built.items()),
        ),
        Finding(
            "the others as published: medium 354,823,168, large 774,030,080, XL 1,557,611,200",
            ", ".join(f"{N[size]:,}" for size in PUBLISHED if size not in BUILT),
            all(N[size] == number for size, number in PUBLISHED.items()),
        ),
        Finding(
            "blocks = 12 · 12 · 768² ≈ 85M; embeddings = (50,257 + 1,024) · 768 ≈ 39M",
            f"{small['blocks']:,} and {small['emb']:,}",
            (round(small["blocks"] / 1e6), round(small["emb"] / 1e6)) == (85, 39),
        ),
        Finding(
            "N ≈ 12Ld² + V·d + T_max·d, from tiny to XL",
            "it falls short by " + ", ".join(f"{share:.2%} ({size})" for size, share in left_out.items()),
            max(negligible) < 0.03,
        ),
        Finding(
            "what is left out is 13Ld + 2d: every bias, gamma and beta, nothing else",
            f"{small['N'] - small['N_lesson']:,} in GPT-2 small = 13 · 12 · 768 + 2 · 768",
            all(p["N"] - p["N_lesson"] == exact_rest(Config.preset(size)) for size, p in counts.items()),
        ),
        Finding(
            "it is negligible at scale: below a thousandth, and less the larger the model",
            f"{left_out['gpt2']:.3%} in small, {left_out['gpt2-xl']:.3%} in XL; {left_out['tiny']:.1%} in tiny",
            left_out["gpt2"] < 1e-3 and negligible == sorted(negligible, reverse=True),
        ),
    )
    values = {f"N_{size}": float(number) for size, number in N.items()}
    values |= {f"left_out_{size}": share for size, share in left_out.items()}

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        left.loglog(list(N.values()), [p["N_lesson"] for p in counts.values()], "o", markersize=10, label="the presets")
        left.loglog(list(N.values()), list(N.values()), "k--", label="exact")
        for size, number in N.items():
            left.annotate(f"  {size}", (number, counts[size]["N_lesson"]), va="top")
        left.set(title="12Ld² + V·d + T_max·d", xlabel="N, counted", ylabel="N, by the formula")
        left.set_xlim(right=2e10)
        left.legend()
        right.loglog(list(N.values()), negligible, marker="o", markersize=10)
        for size, number in N.items():
            right.annotate(f"  {size}", (number, left_out[size]), va="bottom")
        right.set(title="What the formula leaves out", xlabel="N, counted", ylabel="share of N")
        right.set_xlim(right=2e10)
        figure.set_size_inches(15, 6)

    return Result(findings, values, draw=draw)


def n_of(size: str) -> int:
    """Return the exact number of parameters of a preset."""
    return Config.preset(size).n_parameters()


def exact_rest(config: Config) -> int:
    """Return 13Ld + 2d: in a block 4d for two norms and 9d for four biases; 2d for the last norm."""
    return 13 * config.L * config.d + 2 * config.d


LAB = Lab(
    name="parameter_count",
    section="§6",
    claim="N ≈ 12Ld² + V·d + T_max·d; GPT-2 small has 124,439,808",
    measure=measure,
)
