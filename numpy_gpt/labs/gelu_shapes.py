"""GELU beside ReLU and SiLU, and GPT-2's tanh beside the exact GELU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..budget import step_ops
from ..config import Config
from ..ops import gelu_backward, gelu_exact_backward, gelu_exact_forward, gelu_forward
from .lab import Finding, Lab, Result
from .small_network import Activation, T, held_out_loss

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEEDS = 3  # trainings of each


def relu_forward(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """y = max(x, 0)"""
    return np.maximum(x, 0), x


def relu_backward(dy: np.ndarray, cache: np.ndarray) -> np.ndarray:
    x = cache
    return dy * (x > 0)


def silu_forward(x: np.ndarray) -> tuple[np.ndarray, tuple]:
    """y = x·σ(x),  σ(x) = 1 / (1 + exp(−x)); also called Swish."""
    sigmoid = 1 / (1 + np.exp(-x))
    return x * sigmoid, (x, sigmoid)


def silu_backward(dy: np.ndarray, cache: tuple) -> np.ndarray:
    x, sigmoid = cache
    return dy * sigmoid * (1 + x * (1 - sigmoid))


ACTIVATIONS: dict[str, Activation] = {
    "GELU": (gelu_exact_forward, gelu_exact_backward),
    "SiLU": (silu_forward, silu_backward),
    "ReLU": (relu_forward, relu_backward),
}


def measure(seed: int) -> Result:
    x = np.linspace(-6, 6, 120_001)  # a step of 1e-4
    ones = np.ones_like(x)
    curves, slopes = {}, {}
    for name, (forward, backward) in ACTIVATIONS.items():
        curves[name], cache = forward(x)
        slopes[name] = backward(ones, cache)
    exact = curves["GELU"]
    tanh, cache_tanh = gelu_forward(x)
    bottom = int(exact.argmin())
    at = int(abs(x + 0.5).argmin())  # x = −0.5, slightly negative
    left = {name: float(slope[at]) for name, slope in slopes.items()}

    error = abs(tanh - exact)
    worst = float(abs(x[error.argmax()]))
    slope_error = float(abs(gelu_backward(ones, cache_tanh) - slopes["GELU"]).max())
    silu_off, relu_off = (float(abs(curves[name] - exact).max()) for name in ("SiLU", "ReLU"))
    swish, _ = silu_forward(1.702 * x)
    swish_off = float(abs(swish / 1.702 - exact).max())

    z = np.random.default_rng(seed).standard_normal(100_000)
    dead, faint = (float((abs(slope(z, name)) < 0.01).mean()) for name in ("ReLU", "GELU"))
    losses = {name: [held_out_loss(pair, seed + n) for n in range(SEEDS)] for name, pair in ACTIVATIONS.items()}
    mean = {name: float(np.mean(found)) for name, found in losses.items()}
    gain = np.subtract(losses["ReLU"], losses["GELU"])  # (SEEDS,)
    cost = gelu_share()

    findings = (
        Finding(
            "GELU dips slightly negative for small negative inputs: −0.17 at −0.75",
            f"{exact[bottom]:.4f} at {x[bottom]:.4f}",
            bool(abs(exact[bottom] + 0.17) < 0.005 and abs(x[bottom] + 0.75) < 0.005),
        ),
        Finding(
            "it is non-monotonic: it falls until there and rises after",
            f"gradient below 0 for x < {x[bottom]:.2f}, above 0 for x > {x[bottom]:.2f}",
            bool((slopes["GELU"][:bottom] < 0).all() and (slopes["GELU"][bottom + 1 :] > 0).all()),
        ),
        Finding(
            "a small nonzero gradient for slightly negative inputs, where ReLU has none",
            "at −0.5: " + ", ".join(f"{name} {slope:.3f}" for name, slope in left.items()),
            left["GELU"] > 0.1 and left["ReLU"] == 0,
        ),
        Finding(
            "so fewer inputs go without gradient",
            f"of standard normal ones {dead:.0%} have less than 0.01 with ReLU, {faint:.1%} with GELU",
            faint < dead / 10,
        ),
        Finding(
            "close to SiLU, x·σ(x)",
            f"within {silu_off:.2f}; ReLU is as near, within {relu_off:.2f}",
            silu_off < relu_off / 2,
        ),
        Finding("close to Swish, x·σ(βx), where β = 1.702", f"within {swish_off:.3f}", swish_off < 0.05),
        Finding(
            "GPT-2's tanh form is GELU but for little: within 4.8e-4",
            f"{error.max():.2e} at ±{worst:.2f}; their gradients within {slope_error:.1e}",
            bool(error.max() < 4.8e-4),
        ),
        Finding(
            "it trains marginally better than ReLU",
            f"held-out loss {mean['GELU']:.3f} against {mean['ReLU']:.3f}, means of {SEEDS} seeds; better by "
            f"{gain.min():.3f} to {gain.max():.3f} from the same seed",
            bool(gain.min() > 0),
        ),
        Finding("at negligible cost", f"{cost:.2%} of the forward FLOPs of GPT-2 small's blocks", cost < 0.01),
    )
    values = {
        "dip": float(exact[bottom]),
        "dip_at": float(x[bottom]),
        "tanh_error": float(error.max()),
        "tanh_error_at": worst,
        "tanh_slope_error": slope_error,
        "silu_off": silu_off,
        "swish_off": swish_off,
        "relu_off": relu_off,
        "relu_dead": dead,
        "gelu_faint": faint,
        "flops_share": cost,
    }
    values |= {f"slope_{name.lower()}": slope for name, slope in left.items()}
    values |= {f"loss_{name.lower()}": loss for name, loss in mean.items()}
    values |= {"least_gain": float(gain.min()), "largest_gain": float(gain.max())}
    note = (
        f"Trained were networks of one MLP that predict a character from the {T} before it, from the same "
        f"first weights and on the same batches. SiLU reaches {mean['SiLU']:.3f}."
    )

    def draw(figure: Figure) -> None:
        values_of, slopes_of, difference = figure.subplots(1, 3)
        near = abs(x) <= 3
        for name, y in curves.items():
            values_of.plot(x[near], y[near], label=name)
            slopes_of.plot(x[near], slopes[name][near], label=name)
        values_of.annotate(
            f"{exact[bottom]:.2f} at {x[bottom]:.2f}",
            (x[bottom], exact[bottom]),
            xytext=(-2.8, 0.8),
            arrowprops={"arrowstyle": "->"},
        )
        values_of.set(title="Value", xlabel="x", ylim=(-0.5, 3))
        slopes_of.set(title="Gradient", xlabel="x")
        difference.plot(x, tanh - exact)
        difference.set(title="tanh form − exact", xlabel="x")
        difference.ticklabel_format(axis="y", style="sci", scilimits=(-4, -4))
        for ax in (values_of, slopes_of, difference):
            ax.axhline(0, color="black", linewidth=0.8)
        values_of.legend()
        figure.set_size_inches(15, 5)

    return Result(findings, values, note, draw)


def slope(z: np.ndarray, name: str) -> np.ndarray:
    """Return an activation's derivative at z."""
    forward, backward = ACTIVATIONS[name]
    _, cache = forward(z)
    return backward(np.ones_like(z), cache)


def gelu_share() -> float:
    """Return GELU's share of the forward FLOPs of GPT-2 small's blocks, at T = 1,024."""
    block = {op.name: op.cost.forward for op in step_ops(Config.preset("gpt2"), 1, 1024) if op.part == "block"}
    return block["gelu"] / sum(block.values())


LAB = Lab(
    name="gelu_shapes",
    section="§3",
    claim="GELU is a smooth, non-monotonic gate: it dips below zero and keeps a gradient left of it",
    measure=measure,
)
