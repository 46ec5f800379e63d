"""Gradients that are sums of known terms: has one of them been lost, or got another sign or factor?

Every family below says what the terms of a right gradient are. It is believed only where they do
add up to the numeric gradient; then the analytic one is fitted by the same terms, each with a factor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ..ops import gelu_backward, gelu_exact_backward, gelu_exact_forward, gelu_forward
from ..ops.gelu import CUBIC, SQRT_2_OVER_PI
from .numeric import EPS
from .problem import Problem
from .sides import Sides

FIT = 1e-6  # of the tensor's largest magnitude
Terms = dict[str, np.ndarray]  # what a term is -> its numbers


def fits(found: np.ndarray, expected: np.ndarray) -> bool:
    """Whether two arrays agree in every element, and are not just both 0."""
    if found.shape != expected.shape or found.size == 0:
        return False
    size = np.abs(expected).max()
    return bool(size > 1e-12 and np.abs(found - expected).max() <= FIT * size)


def close(analytic: np.ndarray, right: np.ndarray) -> np.ndarray:
    return np.abs(analytic - right) <= FIT * max(float(np.abs(right).max(initial=0)), EPS)


def wrong_terms(problem: Problem, sides: Sides, number: int, analytic: np.ndarray, right: np.ndarray) -> Iterator[str]:
    """Say which terms of the right gradient are lost, or have another sign or factor."""
    if analytic.shape != right.shape:
        return
    for family in (tied, softmax, layernorm, gelu_tanh, gelu_exact, product_rule, cross_entropy, residual):
        terms = family(problem, sides, number, right)
        if terms and fits(sum(terms.values(), np.zeros(right.shape)), right):
            factors = factors_of(analytic, terms)
            wrong = {name: factor for name, factor in factors.items() if abs(factor - 1) > FIT}
            if wrong:
                yield "; ".join(told(name, factor) for name, factor in wrong.items())


def factors_of(analytic: np.ndarray, terms: Terms) -> dict[str, float]:
    """Return the factors with which the terms add up to analytic; none where they do not, or not in one way only."""
    columns = np.stack([term.ravel() for term in terms.values()], axis=1)
    columns = columns / np.maximum(np.abs(columns).max(axis=0), 1e-300)
    sizes = [max(float(np.abs(term).max()), 1e-300) for term in terms.values()]
    singular = np.linalg.svd(columns, compute_uv=False)
    if len(columns) < 2 * len(terms) or singular[-1] < 1e-3 * singular[0]:
        return {}
    found, *_ = np.linalg.lstsq(columns, analytic.ravel(), rcond=None)
    if not fits((columns @ found).reshape(analytic.shape), analytic):
        return {}
    return {name: float(factor) / size for name, factor, size in zip(terms, found, sizes)}


def told(name: str, factor: float) -> str:
    if abs(factor) <= FIT:
        return f"{name} is missing"
    if abs(factor + 1) <= FIT:
        return f"the sign of {name} is flipped"
    return f"{name} is {factor:.6g} times the right one"


def arrays(problem: Problem, sides: Sides, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return input, output and upstream where the output is one array of the input's shape."""
    x = problem.inputs[number]
    if x.ndim == 0 or sides.y.size != x.size or not np.isfinite(x).all():
        return None
    return x, sides.y.reshape(x.shape), sides.u.reshape(x.shape)


def tied(problem: Problem, sides: Sides, number: int, right: np.ndarray) -> Terms:
    """A matrix used in two places has two shares."""
    if problem.parts is None:
        return {}
    return {
        f"the tied term, the {part}'s share,": share for part, share in problem.parts(problem.names[number]).items()
    }


def softmax(problem: Problem, sides: Sides, number: int, right: np.ndarray) -> Terms:
    found = arrays(problem, sides, number)
    if found is None:
        return {}
    _, y, u = found
    return {
        "the term upstream · output": u * y,
        "the term −output · Σ(upstream · output) of a row": -y * (u * y).sum(axis=-1, keepdims=True),
    }


def layernorm(problem: Problem, sides: Sides, number: int, right: np.ndarray) -> Terms:
    found = arrays(problem, sides, number)
    if found is None or found[0].shape[-1] < 3:
        return {}
    x, _, u = found
    xhat, rstd = normalised(problem, x)
    for g in (u, *(u * gamma for gamma in problem.inputs if np.shape(gamma) == x.shape[-1:])):
        terms = {
            "the term upstream · γ, as it is,": rstd * g,
            "the term −mean(upstream · γ) of a row": np.broadcast_to(-rstd * g.mean(axis=-1, keepdims=True), x.shape),
            "the term −x̂ · mean(upstream · γ · x̂) of a row": -rstd * xhat * (g * xhat).mean(axis=-1, keepdims=True),
        }
        if fits(sum(terms.values(), np.zeros(x.shape)), right):
            return terms
    return {}


def softmax_slips(
    problem: Problem, sides: Sides, number: int, analytic: np.ndarray, right: np.ndarray
) -> Iterator[str]:
    """The Jacobian's diagonal alone, or the row's sum taken over another axis."""
    found = arrays(problem, sides, number)
    if found is None or not fits(sum(softmax(problem, sides, number, right).values(), np.zeros(right.shape)), right):
        return
    _, y, u = found
    if fits(analytic, u * y * (1 - y)):
        yield "only the Jacobian's diagonal, p(1 − p): every output depends on every score of its row, by −p_i p_j"
    for axis in range(y.ndim - 1):
        if fits(analytic, y * (u - (u * y).sum(axis=axis, keepdims=True))):
            yield f"Σ(upstream · output) is summed over axis {axis}, and should be over the last"
    if fits(analytic, y * (u - (u * y).sum())):
        yield "Σ(upstream · output) is summed over all axes, and should be over the last"


def gamma_left_out(
    problem: Problem, sides: Sides, number: int, analytic: np.ndarray, right: np.ndarray
) -> Iterator[str]:
    """LayerNorm's gradient for γ = 1."""
    found = arrays(problem, sides, number)
    if found is None or not layernorm(problem, sides, number, right):
        return
    x, _, u = found
    xhat, rstd = normalised(problem, x)
    centred = u - u.mean(axis=-1, keepdims=True) - xhat * (u * xhat).mean(axis=-1, keepdims=True)
    if fits(analytic, rstd * centred):
        yield "γ is left out: the gradient at x̂ is upstream · γ"


def normalised(problem: Problem, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return x̂ and 1/√(σ² + ε) of every row."""
    rstd = 1 / np.sqrt(x.var(axis=-1, keepdims=True) + problem.kwargs.get("eps", 1e-5))
    return (x - x.mean(axis=-1, keepdims=True)) * rstd, rstd


def gelu_tanh(problem: Problem, sides: Sides, number: int, right: np.ndarray) -> Terms:
    found = arrays(problem, sides, number)
    if found is None or not fits(gelu_forward(found[0])[0], found[1]):
        return {}
    x, _, u = found
    t = np.tanh(SQRT_2_OVER_PI * (x + CUBIC * x**3))
    slope = u * 0.5 * x * (1 - t * t) * SQRT_2_OVER_PI
    return {
        "the term ½(1 + tanh)": u * 0.5 * (1 + t),
        "the term ½x(1 − tanh²)·√(2/π)": slope,
        "the term ½x(1 − tanh²)·√(2/π)·3·0.044715x²": slope * 3 * CUBIC * x * x,
    }


def gelu_exact(problem: Problem, sides: Sides, number: int, right: np.ndarray) -> Terms:
    found = arrays(problem, sides, number)
    if found is None or not fits(gelu_exact_forward(found[0])[0], found[1]):
        return {}
    x, _, u = found
    _, (_, cdf) = gelu_exact_forward(x)
    return {"the term Φ(x)": u * cdf, "the term x·φ(x)": u * x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)}


def product_rule(problem: Problem, sides: Sides, number: int, right: np.ndarray) -> Terms:
    """y = x·g(x) element by element: dy/dx = g + x·g'."""
    found = arrays(problem, sides, number)
    if found is None or not (found[0] != 0).all():
        return {}
    jacobian = sides.jacobian(number)
    if jacobian is None or np.abs(jacobian - np.diag(np.diag(jacobian))).max() > FIT * np.abs(jacobian).max():
        return {}
    x, y, u = found
    first = u * y / x
    return {
        "the product rule's term g, output = input · g,": first,
        "the product rule's term input · g'": right - first,
    }


def cross_entropy(problem: Problem, sides: Sides, number: int, right: np.ndarray) -> Terms:
    """p − 1 at the target, both divided by the number of counted targets."""
    x = problem.inputs[number]
    for ids in problem.inputs:
        if not (isinstance(ids, np.ndarray) and ids.dtype.kind in "iu" and ids.shape == x.shape[:-1] and x.ndim > 1):
            continue
        counted = right.any(axis=-1, keepdims=True)
        probs = counted * np.exp(x - x.max(axis=-1, keepdims=True))
        probs /= np.where(counted, probs.sum(axis=-1, keepdims=True), 1)
        one_hot = counted * (np.arange(x.shape[-1]) == ids[..., None])
        size = float(np.vdot(right, probs - one_hot)) / max(float(np.square(probs - one_hot).sum()), 1e-300)
        return {"softmax(logits)": size * probs, "the −1 at the target": -size * one_hot}
    return {}


def residual(problem: Problem, sides: Sides, number: int, right: np.ndarray) -> Terms:
    """y = x + f(x): the gradient goes both ways."""
    found = arrays(problem, sides, number)
    if found is None or len(problem.differentiable) == 1:
        return {}
    return {"the skip path, the upstream as it is,": found[2], "the branch beside the skip path": right - found[2]}


def wrong_epsilon(
    problem: Problem, sides: Sides, number: int, analytic: np.ndarray, right: np.ndarray
) -> Iterator[str]:
    """LayerNorm's gradient, each row with the factor that another ε in the root would make."""
    factor = row_factors(analytic, right)
    if factor is None or len(factor) < 3 or not layernorm(problem, sides, number, right) or (factor <= 0).any():
        return
    eps = problem.kwargs.get("eps", 1e-5)
    var = problem.inputs[number].reshape(len(factor), -1).var(axis=-1)
    other = (var + eps) / factor**2 - var  # factor = √((σ² + ε) / (σ² + ε'))
    middle = float(np.median(other))
    if np.ptp(other) <= 1e-2 * abs(middle - eps):
        yield f"wrong ε: this is the gradient for ε = {middle:.2g}, where the forward has {eps:g}"


def row_factors(analytic: np.ndarray, right: np.ndarray) -> np.ndarray | None:
    """Return one factor for each row of features that turns the right row into the analytic one, or None."""
    if analytic.ndim < 2 or analytic.shape[-1] < 2:
        return None
    a, r = (t.reshape(-1, t.shape[-1]) for t in (analytic, right))
    norm = (r * r).sum(axis=-1)
    if not (norm > 0).all():
        return None
    factor = (a * r).sum(axis=-1) / norm
    fit = np.abs(a - factor[:, None] * r).max(axis=-1) <= 1e-9 * np.abs(a).max(axis=-1)
    return factor if fit.all() else None


def rows_by_factors(analytic: np.ndarray, right: np.ndarray) -> str:
    """Say so where each row is the right one times a number of its own."""
    factor = row_factors(analytic, right)
    if factor is None or len(factor) < 3:
        return ""
    span = f"from {factor.min():.6g} to {factor.max():.6g}"
    return f"each row is a number of its own, {span}, times the right one: a factor of the row (1/σ, a count, an ε)?"


def another_gelu(problem: Problem, sides: Sides, number: int, analytic: np.ndarray) -> Iterator[str]:
    """The derivative of another form of GELU than the forward's; the forms differ by 5e-4, or by 2e-2."""
    found = arrays(problem, sides, number)
    if found is None:
        return
    x, y, u = found
    sigmoid = 1 / (1 + np.exp(-1.702 * x))
    derivatives = {
        "tanh form": gelu_backward(u, gelu_forward(x)[1]),
        "exact form x·Φ(x)": gelu_exact_backward(u, gelu_exact_forward(x)[1]),
        "form x·σ(1.702 x)": u * (sigmoid + 1.702 * x * sigmoid * (1 - sigmoid)),
    }
    for form, derivative in derivatives.items():
        if fits(analytic, derivative) and np.abs(y - gelu_exact_forward(x)[0]).max() < 0.03:
            yield f"this is the derivative of GELU's {form}, which is not the form of the forward"


def missing_row_term(
    problem: Problem, sides: Sides, number: int, analytic: np.ndarray, right: np.ndarray
) -> Iterator[str]:
    """The error of each row is one number times a known row: ones, the output, the normalised input."""
    if analytic.ndim == 0 or analytic.shape[-1] < 3:
        return
    gap = analytic - right
    x = problem.inputs[number]
    candidates = [
        (
            np.ones_like(x),
            "the mean over the last axis is not subtracted, or has another factor (an error constant in a row)",
        ),
        (
            x - x.mean(axis=-1, keepdims=True),
            "the term along x̂, the normalised input, is missing, or has another factor",
        ),
    ]
    if sides.y.size == x.size:
        meaning = "the term output · Σ(upstream · output) of a row is missing, or has another factor"
        candidates.insert(1, (sides.y.reshape(x.shape), meaning))
    for row, meaning in candidates:
        norm = (row * row).sum(axis=-1, keepdims=True)
        along = row * ((gap * row).sum(axis=-1, keepdims=True) / np.where(norm > 0, norm, 1))
        if fits(along, gap):
            yield meaning
    if analytic.ndim > 1:
        column = np.broadcast_to(gap.mean(axis=0), gap.shape)
        if analytic.shape[0] > 2 and fits(column, gap):
            yield "the mean over the first axis is not subtracted (a term that is constant along it)"
