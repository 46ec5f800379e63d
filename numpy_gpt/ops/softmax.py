"""Softmax over the last axis, with a mask (lesson §2)."""

from __future__ import annotations

import math
from types import ModuleType

import numpy as np

from ..backend import Array, array_module
from .checks import check_floating, check_mask


def causal_mask(T: int, xp: ModuleType = np) -> Array:
    """Return the (T, T) lower triangle: True where position t may attend to j ≤ t."""
    return xp.tri(T, dtype=bool)


def softmax_forward(scores: Array, mask: Array | None = None) -> tuple[Array, Array]:
    """attn[..., j] = exp(scores[..., j]) / Σ_k exp(scores[..., k]), k over the places that mask keeps.

    scores (..., n), mask boolean and broadcastable to it (True keeps)  ->  attn (..., n).
    A place masked out, or at −inf, has probability exactly 0; a row with no place left is all 0,
    one with +inf is nan.
    FLOPs an element, exp counted as one: 4 forward, 4 backward. Lesson §2; Bridle, 1990.

    Raises ValueError for a mask that is not boolean or does not broadcast to scores, and for whole numbers.
    """
    xp = array_module(scores)
    check_floating(scores=scores)
    if mask is not None:
        check_mask(mask, scores)
    zero, minus_inf = scores.dtype.type(0), scores.dtype.type(-math.inf)
    attn = scores.copy() if mask is None else xp.where(mask, scores, minus_inf)  # (..., n)
    # Shifting a row by a constant changes nothing and keeps exp from overflowing. The real part
    # alone decides, so that complex scores (the complex-step check) shift as their real twins do.
    row_max = attn.real.max(axis=-1, keepdims=True)  # (..., 1)
    attn -= xp.where(xp.isfinite(row_max), row_max, zero.real)
    xp.exp(attn, out=attn)
    total = attn.sum(axis=-1, keepdims=True)  # (..., 1)
    attn /= total + (total == 0)  # an empty row divides by 1 and stays 0
    return attn, attn


# ∂attn_i/∂scores_j = attn_i (δ_ij − attn_j), so dscores_j = attn_j (dattn_j − Σ_i dattn_i attn_i):
# each row sums to 0, and a masked place gets exactly 0.


def softmax_backward(dattn: Array, cache: Array) -> Array:
    """Return dscores (..., n)."""
    attn = cache
    dscores = dattn * attn
    dscores -= attn * dscores.sum(axis=-1, keepdims=True)
    return dscores
