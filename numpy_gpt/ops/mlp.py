"""The MLP: d -> 4d -> d, at every position alike (lesson §3)."""

from __future__ import annotations

from ..backend import Array
from .blocked import gelu_blocked_backward, gelu_blocked_forward
from .gelu import gelu_exact_backward, gelu_exact_forward
from .linear import linear_backward, linear_forward

# GPT-2's form in blocks: `gelu_forward`'s numbers, its slope taken on the way forward.
GELU = {"tanh": (gelu_blocked_forward, gelu_blocked_backward), "exact": (gelu_exact_forward, gelu_exact_backward)}


def mlp_forward(x: Array, W_1: Array, b_1: Array, W_2: Array, b_2: Array, gelu: str = "tanh") -> tuple[Array, tuple]:
    """y = GELU(x @ W_1 + b_1) @ W_2 + b_2

    x (..., d), W_1 (d, 4d), b_1 (4d,), W_2 (4d, d), b_2 (d,)  ->  y (..., d).
    gelu: "tanh" (GPT-2's) or "exact". FLOPs a token: 16d² forward, GELU apart; twice that backward.
    Lesson §3.

    Raises ValueError where a shape does not fit the others, and for another gelu.
    """
    if gelu not in GELU:
        raise ValueError(f"gelu must be one of {', '.join(GELU)}, got {gelu!r}")
    activate, _ = GELU[gelu]
    u, cache_1 = linear_forward(x, W_1, b_1)  # (..., 4d)  expand
    h1, cache_gelu = activate(u)  # (..., 4d)
    y, cache_2 = linear_forward(h1, W_2, b_2)  # (..., d)  contract
    return y, (cache_1, cache_gelu, cache_2, gelu)


def mlp_backward(
    dy: Array, cache: tuple, out: tuple = (None, None, None, None)
) -> tuple[Array, Array, Array, Array, Array]:
    """Return dx (..., d), dW_1 (d, 4d), db_1 (4d,), dW_2 (4d, d), db_2 (d,).

    out: arrays to write the four parameter gradients into, like NumPy's own out=.
    """
    cache_1, cache_gelu, cache_2, gelu = cache
    _, activate_backward = GELU[gelu]
    # y = h1 @ W_2 + b_2
    dh1, dW_2, db_2 = linear_backward(dy, cache_2, out=out[2:])  # (..., 4d)
    # h1 = GELU(u)
    du = activate_backward(dh1, cache_gelu)  # (..., 4d)
    # u = x @ W_1 + b_1
    dx, dW_1, db_1 = linear_backward(du, cache_1, out=out[:2])  # (..., d)
    return dx, dW_1, db_1, dW_2, db_2
