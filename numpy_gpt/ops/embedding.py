"""Token and position embedding: the residual stream is born (lesson §1)."""

from __future__ import annotations

from ..backend import Array, array_module, scatter_add
from .checks import check_axes, check_floating, check_ids, check_shape


def embedding_forward(idx: Array, W_te: Array, W_pe: Array) -> tuple[Array, tuple]:
    """x[..., t, :] = W_te[idx[..., t]] + W_pe[t]

    idx (..., T) integer ids, W_te (V, d), W_pe (T_max, d)  ->  x (..., T, d).
    FLOPs: d a token forward (one addition), 2d backward. Lesson §1; Radford et al., 2019.

    Raises ValueError for ids that are not integers in 0 <= id < V (naming the first bad
    position and value), for T = 0 and T > T_max, and for tables of other shapes or of two precisions.
    """
    check_floating(W_te=W_te, W_pe=W_pe)
    check_axes(W_te, "W_te", "V", "d")
    check_axes(W_pe, "W_pe", "T_max", "d")
    (V, d), T_max = W_te.shape, len(W_pe)
    check_shape(W_pe, (T_max, d), "W_pe", f"W_te {W_te.shape}")
    idx = check_ids(idx, V, "idx")
    if idx.ndim == 0 or idx.shape[-1] == 0:
        raise ValueError(f"idx must be (..., T) with T >= 1, got shape {idx.shape}")
    T = idx.shape[-1]
    if T > T_max:
        raise ValueError(f"idx has T = {T} positions, more than T_max = {T_max}")
    tok = W_te[idx]  # (..., T, d)  what token is here
    pos = W_pe[:T]  #       (T, d)  where in the sequence
    x = tok + pos  # (..., T, d)
    return x, (idx, W_te.shape, W_pe.shape)


# ∂x[n, t]/∂W_te[v] is the identity where idx[n, t] = v and 0 elsewhere, so row v gathers the
# gradient of every place where token v stands; row t of W_pe gathers position t of every sequence.


def embedding_backward(dx: Array, cache: tuple, out: tuple = (None, None)) -> tuple[Array, Array]:
    """Return dW_te (V, d) and dW_pe (T_max, d); the ids have no gradient.

    out: arrays to write them into, like NumPy's own out=.
    """
    idx, te_shape, pe_shape = cache
    xp = array_module(dx)
    T, d = dx.shape[-2:]
    dW_te = xp.empty(te_shape, dx.dtype) if out[0] is None else out[0]
    dW_pe = xp.empty(pe_shape, dx.dtype) if out[1] is None else out[1]
    # pos = W_pe[:T], broadcast over the batch
    dW_pe[:T] = dx.reshape(-1, T, d).sum(axis=0)
    dW_pe[T:] = 0
    # tok = W_te[idx]; an id that stands in several places gets the sum
    dW_te[...] = 0
    scatter_add(dW_te, idx.reshape(-1), dx.reshape(-1, d))
    return dW_te, dW_pe
