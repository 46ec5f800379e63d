"""GELU, x·Φ(x), and the tanh form that GPT-2 computes (lesson §3).

The formulas are spelled out in steps that work in place on arrays made here: the arrays are
large, and what costs time is writing a new one for each step.
"""

from __future__ import annotations

import math

from ..backend import Array, array_module, erf
from .checks import check_floating

SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
CUBIC = 0.044715


def gelu_forward(x: Array, out: tuple = (None, None)) -> tuple[Array, tuple]:
    """y = ½ x (1 + tanh z),  z = √(2/π) (x + 0.044715 x³): GPT-2's GELU, within 4.8e-4 of x·Φ(x).

    x of any shape  ->  y of the same shape.
    FLOPs an element, tanh counted as one: 8 forward, 11 backward.
    out: arrays to write y and t into, like NumPy's own out=.
    Hendrycks & Gimpel, 2016; lesson §3.

    Raises ValueError for whole numbers.
    """
    check_floating(x=x)
    xp = array_module(x)
    t = xp.multiply(x, x, out=out[1])
    t *= SQRT_2_OVER_PI * CUBIC
    t += SQRT_2_OVER_PI
    t *= x  # z
    t = xp.tanh(t, out=out[1])
    y = xp.add(t, 1, out=out[0])
    y *= x
    y *= 0.5
    return y, (x, t)


# dy/dx = ½ (1 + t) + ½ x (1 − t²) dz/dx,   dz/dx = √(2/π) (1 + 3·0.044715 x²)


def gelu_backward(dy: Array, cache: tuple, out: Array | None = None) -> Array:
    """Return dx = dy · dy/dx, of x's shape.

    out: an array to write dx into, like NumPy's own out=.
    """
    x, t = cache
    dx = array_module(x).multiply(x, x, out=out)
    dx *= 3 * SQRT_2_OVER_PI * CUBIC
    dx += SQRT_2_OVER_PI  # dz/dx
    dx *= 1 - t * t  # before x: far out it is 0, and x³ is inf
    dx *= x
    dx += 1 + t
    dx *= 0.5  # dy/dx
    dx *= dy
    return dx


def gelu_exact_forward(x: Array) -> tuple[Array, tuple]:
    """y = x·Φ(x),  Φ(x) = ½ (1 + erf(x/√2)): the standard normal's distribution function.

    x of any shape  ->  y of the same shape.
    FLOPs an element, erf and exp counted as one each: 5 forward, 7 backward.
    Hendrycks & Gimpel, 2016; lesson §3.

    Raises ValueError for whole numbers.
    """
    check_floating(x=x)
    cdf = 0.5 * (1 + erf(x / math.sqrt(2)))  # Φ(x)
    return x * cdf, (x, cdf)


# dy/dx = Φ(x) + x φ(x),   φ(x) = exp(−x²/2) / √(2π)


def gelu_exact_backward(dy: Array, cache: tuple) -> Array:
    """Return dx = dy · (Φ(x) + x φ(x)), of x's shape."""
    x, cdf = cache
    xp = array_module(x)
    pdf = xp.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)  # φ(x)
    return dy * (cdf + x * pdf)
