"""C = 6·N·D for a run that the reader can do: predicted before, measured after."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np

from ..budget import budget
from ..config import Config
from ..data import windows
from ..model import Model
from ..optim import AdamW, clip_by_global_norm
from .lab import Finding, Lab, Result
from .small_run import Text, help_topics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

B, T = 8, 64
STEPS = 50  # updates of the run
PILOT = 10  # updates to measure the rate with
WIDTHS = {"half as wide": 64, "the run": 128, "half again as wide": 192}  # d


def measure(seed: int, steps: int = STEPS) -> Result:
    text = help_topics()
    configs = {name: Config(V=text.tokenizer.V, T_max=T, d=d, h=4, L=4) for name, d in WIDTHS.items()}
    N = {name: config.n_parameters() for name, config in configs.items()}
    D = steps * B * T
    C = {name: 6 * n * D for name, n in N.items()}
    counted = {name: budget(config, B, T, tokens=D)["run"]["counted"] for name, config in configs.items()}

    pilot, _ = train(configs["the run"], text, PILOT, seed)
    rate = C["the run"] / steps / float(np.median(pilot))  # FLOP/s, 6·N·B·T an update
    predicted = {name: flops / rate for name, flops in C.items()}
    runs = {name: train(config, text, steps, seed) for name, config in configs.items()}
    measured = {name: float(sum(seconds)) for name, (seconds, _) in runs.items()}
    off = {name: measured[name] / predicted[name] for name in runs}
    losses = runs["the run"][1]

    others = [name for name in runs if name != "the run"]
    findings = (
        Finding(
            "a run of D tokens costs C ≈ 6·N·D",
            f"6 · {N['the run']:,} · {D:,} = {C['the run']:.3g} FLOPs; op by op {counted['the run']:.3g}, "
            f"{counted['the run'] / C['the run'] - 1:+.0%}",
            abs(counted["the run"] / C["the run"] - 1) < 0.1,
        ),
        Finding(
            f"predicted before: at {rate / 1e9:.1f} GFLOP/s, the rate of {PILOT} updates, it takes",
            f"{predicted['the run']:.1f} s predicted, {measured['the run']:.1f} s measured: {off['the run']:.2f} times",
            abs(math.log(off["the run"])) < math.log(1.5),
        ),
        *(
            Finding(
                f"the same rate predicts a model {name}: N = {N[name]:,}",
                f"{predicted[name]:.1f} s predicted, {measured[name]:.1f} s measured: {off[name]:.2f} times",
                abs(math.log(off[name])) < math.log(1.5),
            )
            for name in others
        ),
        Finding(
            "and the budget bought something",
            f"loss {losses[0]:.2f} at the first update (ln V = {math.log(text.tokenizer.V):.2f}), "
            f"{np.mean(losses[-5:]):.2f} at the last",
            float(np.mean(losses[-5:])) < losses[0] - 0.5,
        ),
    )
    values = {"D": float(D), "N": float(N["the run"]), "C": float(C["the run"]), "counted": counted["the run"]}
    values |= {"rate": rate, "first_loss": losses[0], "last_loss": float(np.mean(losses[-5:]))}
    for name, d in WIDTHS.items():
        values |= {f"predicted_{d}": predicted[name], f"measured_{d}": measured[name]}
    N_small = Config.preset("gpt2").n_parameters()
    hours = 6 * N_small * 20 * N_small / rate / 3600
    note = (
        "The time is predicted from the rate, and a rate is a machine's and a size's: narrow models spend more of "
        "their time outside matrix products. At the rate measured here GPT-2 small, on 20 tokens a parameter, would "
        f"take {hours / 24 / 365:,.1f} years."
    )

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        elapsed = np.cumsum(runs["the run"][0])
        flops = C["the run"] / steps * np.arange(1, steps + 1)
        left.plot(flops, elapsed, lw=3, label="measured")
        left.plot([0, C["the run"]], [0, predicted["the run"]], "k--", label="predicted")
        left.set(title="The run", xlabel="6·N·D so far, FLOPs", ylabel="seconds")
        left.legend()
        right.plot(flops, losses, lw=2)
        right.axhline(math.log(text.tokenizer.V), color="black", linestyle="--", label="ln V")
        right.set(title="What it bought", xlabel="6·N·D so far, FLOPs", ylabel="loss, nats a token", ylim=(0, None))
        right.legend()
        figure.set_size_inches(15, 6)

    return Result(findings, values, note, draw)


def train(config: Config, text: Text, steps: int, seed: int) -> tuple[list[float], list[float]]:
    """Train a model of this config; return the seconds and the loss of each update."""
    model = Model(config, seed)
    optimiser, rng = AdamW(model.params), np.random.default_rng(seed)
    seconds, losses = [], []
    for _ in range(steps):
        start = time.perf_counter()
        idx, targets = windows(text.train, B, T, rng)  # (B, T)
        loss, grads = model.step(idx, targets)
        clip_by_global_norm(grads, 1.0)
        optimiser.update(grads)
        seconds.append(time.perf_counter() - start)
        losses.append(float(loss))
    return seconds, losses


LAB = Lab(
    name="budget_identity",
    section="§6",
    claim="training on D tokens costs C ≈ 6·N·D FLOPs",
    measure=measure,
)
