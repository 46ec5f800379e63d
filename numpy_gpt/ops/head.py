"""The tied head: logits = x @ W_te.T (lesson §5)."""

from __future__ import annotations

from ..backend import Array
from ..cores import matmul, matmul_both
from .checks import check_axes, check_features, check_floating


def head_forward(x: Array, W_te: Array) -> tuple[Array, tuple]:
    """logits = x @ W_te.T: the head shares its storage with the embedding.

    x (..., d), W_te (V, d)  ->  logits (..., V).
    FLOPs a row: 2·d·V forward, twice that backward. Lesson §5; Press & Wolf, 2017.

    Raises ValueError where a shape does not fit the other, and for whole numbers and mixed precisions.
    """
    check_floating(x=x, W_te=W_te)
    check_axes(W_te, "W_te", "V", "d")
    V, d = W_te.shape
    check_features(x, d, "x", f"W_te {W_te.shape}")
    x_rows = x.reshape(-1, d)  # (rows, d)
    logits = matmul(x_rows, W_te.T)  # (rows, V)
    return logits.reshape(*x.shape[:-1], V), (x_rows, W_te, x.shape)


# logits[n, v] = Σ_i x[n, i] W_te[v, i], so dx = dlogits @ W_te and dW_te = dlogitsᵀ @ x.


def head_backward(dlogits: Array, cache: tuple, out: Array | None = None) -> tuple[Array, Array]:
    """Return dx (..., d) and the head's share of dW_te (V, d); the embedding's share is to be added.

    out: an array to write dW_te into, like NumPy's own out=.
    """
    x_rows, W_te, x_shape = cache
    dlogits_rows = dlogits.reshape(-1, W_te.shape[0])  # (rows, V)
    # logits = x @ W_te.T
    # dx = dlogits @ W_te, dW_te = dlogits.T @ x
    dx, dW_te = matmul_both((dlogits_rows, W_te, None), (dlogits_rows.T, x_rows, out))  # (rows, d), (V, d)
    return dx.reshape(x_shape), dW_te
