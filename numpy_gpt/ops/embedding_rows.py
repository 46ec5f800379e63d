"""The embedding's backward again, for a table that others add to as well: only the rows that are not 0.

A batch holds few of a large vocabulary's tokens. Where the head is tied, dW_te is added to the head's
share; adding these rows alone spares writing, reading and adding up a whole (V, d) array of zeros.
"""

from __future__ import annotations

from ..backend import Array, array_module, scatter_add


def embedding_rows_backward(dx: Array, cache: tuple, out: Array | None = None) -> tuple[tuple[Array, Array], Array]:
    """Return dW_te as (ids, rows), and dW_pe (T_max, d), from the cache of `embedding_forward`.

    ids (n,) are those that occur, each once; rows (n, d) are theirs; every other row of dW_te is 0.
    out: an array to write dW_pe into, like NumPy's own out=.
    """
    idx, _, pe_shape = cache
    xp = array_module(dx)
    T, d = dx.shape[-2:]
    dW_pe = xp.empty(pe_shape, dx.dtype) if out is None else out
    # pos = W_pe[:T], broadcast over the batch
    dW_pe[:T] = dx.reshape(-1, T, d).sum(axis=0)
    dW_pe[T:] = 0
    # tok = W_te[idx]; an id that stands in several places gets the sum
    ids, places = xp.unique(idx.reshape(-1), return_inverse=True)  # (n,), (rows of dx,)
    rows = xp.zeros((ids.size, d), dx.dtype)  # (n, d)
    scatter_add(rows, places, dx.reshape(-1, d))
    return (ids, rows), dW_pe
