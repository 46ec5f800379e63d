"""AdamW's update to write, held to the textbook's."""

from __future__ import annotations

import inspect
import textwrap
import time
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from .. import optim
from ..config import Config
from ..gradcheck import Line, Report, Verdict
from ..gradcheck.compare import near
from ..gradcheck.contract import fact
from ..optim import AdamW
from ..parameters import Parameters
from .exercise import Contest, Exercise, part, rehearsal
from .stub import imports, in_numpy, page, unwritten

SHAPES = {"W_te": (5, 4), "block.0.W_1": (4, 16), "block.0.b_1": (16,), "ln_f.gamma": (4,), "ln_f.beta": (4,)}
LR, BETAS, EPS, WEIGHT_DECAY = 0.02, (0.8, 0.97), 1e-3, 0.3  # each shows in the result
LRS = (None, 0.01, None, 0.0, 0.05)  # what each update is given: None is the optimiser's own
SCALES = (1.0, 0.5, 1.5, 1.0, 0.25)


class AdamWExercise(Exercise):
    """AdamW.update, given the rest of the class."""

    @property
    def function(self) -> str:
        return "AdamW.update"

    @property
    def answer(self) -> str:
        return AdamW.__module__

    def stub(self) -> str:
        given, _, _ = in_numpy(inspect.getsource(AdamW)).partition("    def update")
        update = unwritten(AdamW.update, self.function, self.shapes)
        update = textwrap.indent(update, "    ")
        imported = imports(given + update, optim, {"AdamW"})
        return page(self.name, self.place, "AdamW's update", self.function, imported, given + update)

    def check(self, module: ModuleType, seed: int = 0) -> Report:
        """Do a few updates in float64 with the student's optimiser and with the textbook's."""
        start = time.perf_counter()
        params, *gradients = (drawn(seed + number) for number in range(1 + len(LRS)))
        theta, matrix = params.flat.copy(), np.arange(params.flat.size) < params.matrices.size
        given = [grads.flat.copy() for grads in gradients]
        with rehearsal(module, self.function):
            optimiser = part(module, "AdamW")(params, LR, BETAS, EPS, WEIGHT_DECAY)
            for grads, lr, scale in zip(gradients, LRS, SCALES):
                optimiser.update(grads, lr, scale)
            expected = textbook(theta, given, matrix)
            lines = [same(name, params[name], value) for name, value in named(expected.theta).items()]
            lines += [same("m", optimiser.m.flat, expected.m), same("v", optimiser.v.flat, expected.v)]
            counted = [] if optimiser.t == len(LRS) else [f"after {len(LRS)} updates self.t is {optimiser.t}"]
        wrote = any((grads.flat != before).any() for grads, before in zip(gradients, given))
        lines += [
            fact("updates counted", counted),
            fact("gradients unmodified", ["update wrote into grads"] if wrote else []),
        ]
        if any(line.verdict is Verdict.WRONG for line in lines):
            diagnosis = diagnose(params.flat, theta, given, matrix)
            for line in lines:
                line.diagnosis = diagnosis if line.verdict is Verdict.WRONG and line.compared else ""
        for line in lines:
            line.target, line.seed = self.name, seed
        return Report(lines, seed=seed, seconds=time.perf_counter() - start)

    def contest(self, module: ModuleType, brief: bool = False) -> Contest:
        config = Config.preset("tiny" if brief else "char")
        grads, params, own = (Parameters(config.parameter_shapes()) for _ in range(3))
        grads.flat[:] = np.random.default_rng(0).standard_normal(grads.flat.size, np.float32)
        theirs, ours = part(module, "AdamW")(params), AdamW(own)
        at = f"{params.flat.size:,} parameters, float32"
        return Contest(lambda: theirs.update(grads), lambda: ours.update(grads), at)


def drawn(seed: int) -> Parameters:
    """Draw Parameters of the small model's shapes."""
    params = Parameters(SHAPES, "float64")
    params.flat[:] = np.random.default_rng(seed).standard_normal(params.flat.size)
    return params


def named(flat: np.ndarray) -> dict[str, np.ndarray]:
    """Return the parameters that a flat vector holds, by name."""
    params = Parameters(SHAPES, "float64")
    params.flat[:] = flat
    return dict(params)


def same(name: str, found: np.ndarray, expected: np.ndarray) -> Line:
    line = near(name, f"after {len(LRS)} updates", found, expected, 1e-12 * float(np.abs(expected).max()))
    line.shape = expected.shape
    return line


@dataclass(frozen=True)
class State:
    """The textbook's θ, m and v."""

    theta: np.ndarray
    m: np.ndarray
    v: np.ndarray


MISTAKES = {
    "still": "the parameters have not moved: write into self.params.flat, in place",
    "decay all": "the decay reaches biases, gammas and betas too: only the matrices shrink",
    "decay none": "the weight decay is missing: the matrices shrink by 1 − lr·λ",
    "decay vectors": "the decay reaches the biases, gammas and betas in place of the matrices",
    "decay without lr": "the matrices shrink by 1 − λ, and should by 1 − lr·λ",
    "coupled": "the decay is added to the gradient (Adam with L2): AdamW shrinks θ itself, apart from m and v",
    "decay last": "the decay shrinks the step too: it belongs to θ before the step",
    "m uncorrected": "m is not corrected: m̂ = m / (1 − β1ᵗ)",
    "v uncorrected": "v is not corrected: v̂ = v / (1 − β2ᵗ)",
    "uncorrected": "m and v are not corrected for their start at 0: m̂ = m / (1 − β1ᵗ), v̂ = v / (1 − β2ᵗ)",
    "t ahead": "the corrections are one update ahead: t is 1 in the first update",
    "t fixed": "the corrections are always those of the first update: does self.t count on?",
    "eps inside": "ε stands inside the root: √v̂ + ε, not √(v̂ + ε)",
    "eps early": "ε is added to √v, before the correction: √v̂ + ε",
    "no root": "the step divides by v̂, not by √v̂",
    "m sums": "the factor 1 − β1 of g is missing in m",
    "v sums": "the factor 1 − β2 of g² is missing in v",
    "v of g": "v is the mean of g², not of g",
    "betas swapped": "β1 and β2 have changed places: β1 is m's",
    "lr ignored": "the lr that update is given counts in place of self.lr",
    "lr 0 ignored": "an lr of 0 counts as none given: ask whether it is None",
    "scale ignored": "the gradient is scale · grads, for v as for m: the scale is left out",
    "scale in m only": "v takes the gradients without their scale: g is scale · grads in both",
    "uphill": "the sign of the step is flipped: θ moves against the gradient",
}


def diagnose(found: np.ndarray, theta: np.ndarray, gradients: list[np.ndarray], matrix: np.ndarray) -> str:
    """Return the mistake that makes just these parameters, or ""."""
    with np.errstate(all="ignore"):
        for mistake, meaning in MISTAKES.items():
            if np.allclose(
                found, textbook(theta, gradients, matrix, mistake).theta, rtol=1e-10, atol=1e-12, equal_nan=True
            ):
                return meaning
    return ""


def textbook(theta: np.ndarray, gradients: list[np.ndarray], matrix: np.ndarray, mistake: str = "") -> State:
    """AdamW as Loshchilov & Hutter, 2019, write it (Algorithm 2), or with one of MISTAKES made.

    theta, each of the gradients and matrix (which parameters are decayed) are vectors of one size.
    """
    beta1, beta2 = reversed(BETAS) if mistake == "betas swapped" else BETAS
    others = {"decay all": matrix | True, "decay none": matrix & False, "decay vectors": ~matrix}
    decayed = others.get(mistake, matrix)
    m, v = np.zeros_like(theta), np.zeros_like(theta)
    for t, (g, lr, scale) in enumerate(zip(gradients, LRS, SCALES), start=1):
        lr = LR if lr is None or mistake == "lr ignored" or (mistake == "lr 0 ignored" and not lr) else lr
        unscaled, g = g, g if mistake == "scale ignored" else scale * g
        if mistake == "coupled":
            g = g + WEIGHT_DECAY * np.where(decayed, theta, 0)
        m = beta1 * m + (1 if mistake == "m sums" else 1 - beta1) * g
        g = unscaled if mistake == "scale in m only" else g
        v = beta2 * v + (1 if mistake == "v sums" else 1 - beta2) * (g if mistake == "v of g" else g**2)
        t = {"t ahead": t + 1, "t fixed": 1}.get(mistake, t)
        m_hat = m if mistake in ("m uncorrected", "uncorrected") else m / (1 - beta1**t)
        v_hat = v if mistake in ("v uncorrected", "uncorrected") else v / (1 - beta2**t)
        step = lr * m_hat / denominator(v, v_hat, 1 - beta2**t, mistake)
        shrink = np.where(decayed, 1 - WEIGHT_DECAY * (1 if mistake == "decay without lr" else lr), 1.0)
        if mistake == "coupled":
            shrink = np.ones_like(theta)
        if mistake == "decay last":
            theta = (theta - step) * shrink
        elif mistake != "still":
            theta = theta * shrink + (step if mistake == "uphill" else -step)
    return State(theta, m, v)


def denominator(v: np.ndarray, v_hat: np.ndarray, correction: float, mistake: str) -> np.ndarray:
    """√v̂ + ε, or what a mistake makes of it."""
    if mistake == "eps inside":
        return np.sqrt(v_hat + EPS)
    if mistake == "eps early":
        return (np.sqrt(v) + EPS) / np.sqrt(correction)
    return (v_hat if mistake == "no root" else np.sqrt(v_hat)) + EPS
