"""The linear layer, y = x @ W + b (lesson §2, §3, §6)."""

from __future__ import annotations

from ..backend import Array
from ..cores import matmul, matmul_both
from .checks import check_axes, check_features, check_floating, check_shape


def linear_forward(x: Array, W: Array, b: Array) -> tuple[Array, tuple]:
    """y = x @ W + b

    x (..., n_in), W (n_in, n_out), b (n_out,)  ->  y (..., n_out).
    FLOPs a row: 2·n_in·n_out forward, twice that backward (lesson §6), and n_out each for the bias.

    Raises ValueError where a shape does not fit the others, and for whole numbers and mixed precisions.
    """
    check_floating(x=x, W=W, b=b)
    check_axes(W, "W", "n_in", "n_out")
    n_in, n_out = W.shape
    check_features(x, n_in, "x", f"W {W.shape}")
    check_shape(b, (n_out,), "b", f"W {W.shape}")
    x_rows = x.reshape(-1, n_in)  # one GEMM of two matrices, not a stack of small ones
    y = matmul(x_rows, W)  # (rows, n_out)
    y += b
    return y.reshape(*x.shape[:-1], n_out), (x_rows, W, x.shape)


# y[n, j] = Σ_i x[n, i] W[i, j] + b[j], so
#   ∂L/∂x[n, i] = Σ_j dy[n, j] W[i, j]     ∂L/∂W[i, j] = Σ_n x[n, i] dy[n, j]     ∂L/∂b[j] = Σ_n dy[n, j]


def linear_backward(dy: Array, cache: tuple, out: tuple = (None, None)) -> tuple[Array, Array, Array]:
    """Return dx (..., n_in), dW (n_in, n_out), db (n_out,).

    out: arrays to write dW and db into, like NumPy's own out=.
    """
    x_rows, W, x_shape = cache
    dW, db = out
    dy_rows = dy.reshape(-1, W.shape[1])  # (rows, n_out)
    # y = x @ W + b
    # dx = dy @ W.T, dW = x.T @ dy
    dx, dW = matmul_both((dy_rows, W.T, None), (x_rows.T, dy_rows, dW))  # (rows, n_in), (n_in, n_out)
    db = dy_rows.sum(axis=0, out=db)
    return dx.reshape(x_shape), dW, db
