"""tok + pos: a projection of the sum is the sum of the projections, and both can be read off again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..budget import parameters
from ..config import Config
from ..ops import linear_forward
from .lab import Finding, Lab, Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GPT2 = Config.preset("gpt2")
WIDTHS = (4, 8, 16, 32, 64, 128, 256, 768)
N = 128  # places looked at


def measure(seed: int) -> Result:
    rng = np.random.default_rng(seed)
    W_te, W_pe = (0.02 * rng.standard_normal((rows, GPT2.d), dtype="float32") for rows in (GPT2.V, GPT2.T_max))
    idx, t = rng.integers(GPT2.V, size=N), rng.integers(GPT2.T_max, size=N)  # tokens, and where they stand
    error = projection_error(W_te[idx], W_pe[t], rng)

    found = {}  # width -> share of tokens, and of positions, read off rightly
    for d in WIDTHS:
        x = W_te[idx, :d] + W_pe[t, :d]  # (N, d)
        token = (x @ W_te[:, :d].T).argmax(axis=-1)  # (N,)  a linear layer's largest output: whose row is x nearest to?
        position = (x @ W_pe[:, :d].T).argmax(axis=-1)
        found[d] = float((token == idx).mean()), float((position == t).mean())

    wide = parameters(Config.preset("gpt2", d=2 * GPT2.d))["blocks"] / parameters(GPT2)["blocks"]
    enough = next(d for d in WIDTHS if min(found[d]) > 0.99)
    token, position = found[GPT2.d]
    findings = (
        Finding(
            "a projection of a sum is the sum of projections: (tok + pos) @ W = tok @ W + pos @ W",
            f"largest difference {error['float32']:.0e} of the largest value in float32, {error['float64']:.0e} in "
            "float64: rounding",
            error["float32"] < 1e-5 and error["float64"] < 1e-14,
        ),
        Finding(
            "any linear layer can still read off either component, at d = 768",
            f"of fresh tables, with {GPT2.V:,} tokens and {GPT2.T_max:,} positions to tell apart: token {token:.0%}, "
            f"position {position:.0%} right",
            token == position == 1,
        ),
        Finding(
            "concatenation would force every downstream matrix wider",
            f"a stream of 2d makes the blocks' parameters {wide:.0f} times as many",
            wide > 1,
        ),
    )
    values = {
        "error_float32": error["float32"],
        "error_float64": error["float64"],
        "enough_width": enough,
        "wide": wide,
    }
    values |= {f"token_{d}": share[0] for d, share in found.items()}
    values |= {f"position_{d}": share[1] for d, share in found.items()}
    note = (
        "The sum costs nothing because in many dimensions random directions are nearly at right angles: token and "
        f"position hardly disturb each other. It does cost something in few: at d = {WIDTHS[1]} the token is read off "
        f"rightly {found[WIDTHS[1]][0]:.0%} of the time, and it takes d = {enough} for both to be safe."
    )

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        for name, shares in zip(("token, of 50,257", "position, of 1,024"), zip(*found.values())):
            ax.semilogx(WIDTHS, shares, marker="o", label=name)
        ax.set(title="Read off tok + pos by a linear layer", xlabel="width d", ylabel="share right")
        ax.set_xticks(WIDTHS, map(str, WIDTHS))
        ax.minorticks_off()
        ax.legend()

    return Result(findings, values, note, draw)


def projection_error(tok: np.ndarray, pos: np.ndarray, rng: np.random.Generator) -> dict[str, float]:
    """Return, by dtype, how far (tok + pos) @ W is from tok @ W + pos @ W, as a share of the largest value."""
    W = 0.02 * rng.standard_normal((GPT2.d, 3 * GPT2.d))  # (d, 3d), as W_qkv
    error = {}
    for dtype in ("float32", "float64"):
        a, b, W_, zero = (array.astype(dtype) for array in (tok, pos, W, np.zeros(3 * GPT2.d)))
        of_sum, _ = linear_forward(a + b, W_, zero)  # (N, 3d)
        sum_of = linear_forward(a, W_, zero)[0] + linear_forward(b, W_, zero)[0]  # (N, 3d)
        error[dtype] = float(abs(of_sum - sum_of).max() / abs(of_sum).max())
    return error


LAB = Lab(
    name="sum_of_tables",
    section="§1",
    claim="tok + pos keeps both: a projection of the sum is the sum of the projections",
    measure=measure,
)
