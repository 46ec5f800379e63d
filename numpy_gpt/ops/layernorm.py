"""LayerNorm over the feature axis (lesson §4)."""

from __future__ import annotations

from ..backend import Array, array_module
from .checks import check_axes, check_features, check_floating, check_shape


def layernorm_forward(x: Array, gamma: Array, beta: Array, eps: float = 1e-5) -> tuple[Array, tuple]:
    """y = γ x̂ + β,  x̂ = (x − μ) / √(σ² + ε),  μ and σ² the mean and variance of each row of d features.

    x (..., d), gamma (d,), beta (d,)  ->  y (..., d). A constant row gives beta.
    FLOPs an element: 8 forward, 11 backward. Ba, Kiros & Hinton, 2016; lesson §4.

    Raises ValueError where a shape does not fit the others, and for whole numbers and mixed precisions.
    """
    check_floating(x=x, gamma=gamma, beta=beta)
    check_axes(gamma, "gamma", "d")
    check_features(x, len(gamma), "x", f"gamma {gamma.shape}")
    check_shape(beta, gamma.shape, "beta", f"gamma {gamma.shape}")
    xp = array_module(x)
    # A shift of the row changes nothing; but near 0 the mean keeps the digits that it would lose far away.
    xhat = x - x[..., :1]  # (..., d)
    xhat -= xhat.mean(axis=-1, keepdims=True)
    var = row_dot(xhat, xhat) / x.shape[-1]  # (..., 1)
    rstd = 1 / xp.sqrt(var + eps)  # (..., 1)
    xhat *= rstd
    y = xhat * gamma
    y += beta
    return y, (xhat, rstd, gamma)


# With g = dy · γ the gradient at x̂: every x of a row moves its mean and its variance too, and
#   dx = rstd · (g − mean(g) − x̂ · mean(g · x̂))
# which is, but for ε, rstd times g with its components along the ones vector and along x̂ taken out.


def layernorm_backward(dy: Array, cache: tuple, out: tuple = (None, None)) -> tuple[Array, Array, Array]:
    """Return dx (..., d), dgamma (d,), dbeta (d,).

    out: arrays to write dgamma and dbeta into, like NumPy's own out=.
    """
    xhat, rstd, gamma = cache
    dgamma, dbeta = out
    d = gamma.shape[0]
    # y = xhat * gamma + beta
    dgamma = (dy * xhat).reshape(-1, d).sum(axis=0, out=dgamma)
    dbeta = dy.reshape(-1, d).sum(axis=0, out=dbeta)
    dx = dy * gamma  # (..., d)  g
    # xhat = (x - mean) * rstd
    g_xhat = row_dot(dx, xhat) / d  # (..., 1)
    dx -= dx.mean(axis=-1, keepdims=True)
    dx -= xhat * g_xhat
    dx *= rstd
    return dx, dgamma, dbeta


def row_dot(a: Array, b: Array) -> Array:
    """Σ a·b over the last axis, which is kept: (..., d), (..., d) -> (..., 1), in one pass."""
    return array_module(a).einsum("...i,...i->...", a, b)[..., None]
