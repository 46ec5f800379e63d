"""What must hold for an op's gradients whatever the numbers are.

An invariant is a function (Problem) -> list[Line]; `check(..., invariants=[...])` takes them,
and any that you write with `near`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from .compare import near
from .problem import Problem
from .report import Line

Invariant = Callable[[Problem], list[Line]]
ROUNDING = 1e-12


def gradients(problem: Problem) -> dict[str, np.ndarray]:
    """Return the gradients by their inputs' names, for the problem's upstream."""
    out, cache = problem.call()
    found = problem.gradients(problem.upstream(out), cache)
    return {problem.names[number]: np.asarray(grad) for number, grad in zip(problem.differentiable, found)}


def rows_sum_to_zero(name: str) -> Invariant:
    """Each row of dname sums to 0: a constant added to a row of softmax's input changes nothing."""

    def invariant(problem: Problem) -> list[Line]:
        grad = gradients(problem)[name]
        size = max(np.abs(grad).max(initial=0), 1e-3) * max(grad.shape[-1], 1)
        return [near(f"d{name} rows", "invariant: rows sum to 0", grad.sum(axis=-1), 0, ROUNDING * size)]

    return invariant


def layernorm_orthogonal(problem: Problem) -> list[Line]:
    """dx of each row is orthogonal to ones, and to x̂ but for ε: LayerNorm sees neither shift nor scale.

        Σ dx = 0,      Σ dx·x̂ = ε rstd³ Σ g·x̂,      g = dy·γ, the gradient before γ

    Ba, Kiros & Hinton, 2016.
    """
    x, gamma, _ = problem.inputs
    eps = problem.kwargs.get("eps", 1e-5)
    out, _ = problem.call()
    g = problem.upstream(out) * gamma
    rstd = 1 / np.sqrt(x.var(axis=-1, keepdims=True) + eps)
    xhat = (x - x.mean(axis=-1, keepdims=True)) * rstd
    dx = gradients(problem)[problem.names[0]]
    allowed = ROUNDING * max(float(np.abs(g * rstd).max(initial=0)), 1e-3) * max(x.shape[-1], 1)
    expected = eps * rstd[..., 0] ** 3 * (g * xhat).sum(axis=-1)
    return [
        near("dx rows", "invariant: dx orthogonal to ones", dx.sum(axis=-1), 0, allowed),
        near("dx rows", "invariant: dx orthogonal to x̂", (dx * xhat).sum(axis=-1), expected, allowed),
    ]


def causal(*names: str) -> Invariant:
    """∂out_t/∂x_s = 0 exactly for s > t, by the backward and by the forward; T is the last axis but one."""

    def invariant(problem: Problem) -> list[Line]:
        out, cache = problem.call()
        dout = np.asarray(problem.upstream(out))
        T = dout.shape[-2]
        future, moved = 0.0, 0.0
        for t in range(T - 1):
            only_t = np.zeros_like(dout)
            only_t[..., t, :] = dout[..., t, :]
            grads = dict(
                zip((problem.names[number] for number in problem.differentiable), problem.gradients(only_t, cache))
            )
            future = max([future, *(float(np.abs(grads[name][..., t + 1 :, :]).max(initial=0)) for name in names)])
            inputs = [later_changed(x, t) if name in names else x for name, x in zip(problem.names, problem.inputs)]
            gap = np.abs(problem.call(inputs)[0] - out)[..., : t + 1, :]
            moved = max(moved, float(gap.max(initial=0)))
        return [
            near("d" + ", d".join(names), "invariant: gradient of the future is 0", np.asarray(future), 0, 0.0),
            near("out", "invariant: the past does not see the future", np.asarray(moved), 0, 0.0),
        ]

    return invariant


def later_changed(x: np.ndarray, t: int) -> np.ndarray:
    """Return x with every position after t replaced."""
    x = x.copy()
    x[..., t + 1 :, :] = 1 - 2 * x[..., t + 1 :, :]
    return x


def key_bias_zero(name: str = "b_qkv") -> Invariant:
    """The K third of db_qkv is 0: one vector added to every key shifts each row of scores by a constant."""

    def invariant(problem: Problem) -> list[Line]:
        lines = []
        grads = gradients(problem)
        for full_name, grad in grads.items():
            if full_name.endswith(name):
                d = grad.shape[0] // 3
                size = max(float(np.abs(grad).max(initial=0)), 1e-3)
                lines.append(near(f"d{full_name}[d:2d]", "invariant: K third is 0", grad[d : 2 * d], 0, 1e-11 * size))
        return lines

    return invariant


def writes_out(*names: str, rows: bool = False) -> Invariant:
    """backward(dout, cache, out=...) leaves every dname in the array given for it, whatever that held before.

    out is one array where it is None by default, else one for each name; rows: it has shape (rows, features).
    """

    def invariant(problem: Problem) -> list[Line]:
        out_parameter = inspect.signature(problem.backward).parameters.get("out")
        if out_parameter is None:  # a student's backward need not have it
            return []
        expected = gradients(problem)
        used = {name: np.full_like(expected[name], np.nan) for name in names}
        one = used[names[0]]
        one = one.reshape(-1, one.shape[-1]) if rows else one
        out, cache = problem.call()
        problem.backward(problem.upstream(out), cache, out=one if out_parameter.default is None else (*used.values(),))
        lines = []
        for name, found in used.items():
            allowed = ROUNDING * max(float(np.abs(expected[name]).max(initial=0)), 1e-3)
            lines.append(near(f"d{name}", "invariant: out= is written", found, expected[name], allowed))
        return lines

    return invariant


def same_gradients(check: str, expected: Callable[[Any], dict[str, np.ndarray]]) -> Invariant:
    """The gradients equal those that another way, expected(upstream), gives by name; the worst is told."""

    def invariant(problem: Problem) -> list[Line]:
        out, _ = problem.call()
        grads = gradients(problem)
        lines = [
            near(f"d{name}", check, grads[name], other, ROUNDING * max(float(np.abs(grads[name]).max(initial=0)), 1e-3))
            for name, other in expected(problem.upstream(out)).items()
        ]
        return [max(lines, key=lambda line: line.share or 0)]

    return invariant
