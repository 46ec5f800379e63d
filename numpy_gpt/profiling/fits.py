"""Least squares for the growth of a cost: a power of what grows, or a constant, a line and a square."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def fit_power(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Return p and c of y = c·xᵖ, by least squares on the logarithms: log y = p·log x + log c.

    Raises ValueError for fewer than two different x, and for numbers that are not above 0.
    """
    if min(*x, *y) <= 0 or len(set(x)) < 2:
        raise ValueError(f"a power needs two different x at least, and numbers above 0; got x = {x}, y = {y}")
    p, log_c = np.polyfit(np.log(x), np.log(y), 1)
    return float(p), float(np.exp(log_c))


def fit_quadratic(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float]:
    """Return c, a and b, none below 0, of y = c + a·x + b·x², by least squares on relative errors.

    The constant is what a step costs however short it is: without it, it would be taken out of b·x².

    Raises ValueError for fewer than three different x, and for numbers that are not above 0.
    """
    from scipy.optimize import nnls

    if min(*x, *y) <= 0 or len(set(x)) < 3:
        raise ValueError(f"a parabola needs three different x at least, and numbers above 0; got {x}, {y}")
    x_array, y_array = np.asarray(x, float), np.asarray(y, float)
    scale = x_array.max()  # in units of the largest, so that all columns are of one size
    powers = scale ** np.arange(3)  # 1, x, x²
    columns = (x_array[:, None] / scale) ** np.arange(3) / y_array[:, None]
    coefficients, _ = nnls(columns, np.ones(len(y_array)))
    c, a, b = (coefficients / powers).tolist()
    return c, a, b
