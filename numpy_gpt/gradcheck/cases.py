"""Our ops, each with the inputs at which it is checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from .. import ops
from ..cores import BLOCK_SIZE
from ..ops import blocked
from ..ops.attend_tiled import TILE, attend_tiled_backward, attend_tiled_forward
from ..ops.embedding_rows import embedding_rows_backward
from .invariants import (
    Invariant,
    causal,
    key_bias_zero,
    layernorm_orthogonal,
    rows_sum_to_zero,
    same_gradients,
    writes_out,
)
from .problem import Backward, Forward, Problem, prepare

Rng = np.random.Generator


@dataclass(frozen=True)
class Sizes:
    """The sides of an op's inputs: B leading axes, and the lesson's letters; or one row alone, of rank 1.

    The defaults differ from each other, so that no two axes can be taken for one another.
    """

    B: tuple[int, ...] = (2,)
    T: int = 5
    h: int = 3
    d_head: int = 4
    V: int = 7
    alone: bool = False

    @property
    def rows(self) -> tuple[int, ...]:
        return () if self.alone else (*self.B, self.T)

    @property
    def d(self) -> int:
        return self.h * self.d_head

    def in_one_batch(self) -> Sizes:
        """Return the same sizes with all leading axes made one."""
        return replace(self, B=(math.prod(self.B),))

    @classmethod
    def random(cls, rng: Rng) -> Sizes:
        """Draw sizes; axes of size 1 are common, and ranks go from T's own to two more."""
        B = tuple(int(side) for side in rng.integers(1, 4, rng.integers(0, 3)))
        T, h, d_head, V = (int(rng.integers(1, most + 1)) for most in (4, 2, 3, 6))
        return cls(B, T, h, d_head, V)


@dataclass(frozen=True)
class Case:
    """An op at one point: a pair, its inputs, and what is known about it.

    special  what is special about the inputs, in a few words
    """

    forward: Forward
    backward: Backward
    inputs: tuple
    names: tuple[str, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    invariants: Sequence[Invariant] = ()
    leading: tuple[str, ...] = ()
    zero: tuple[str, ...] = ()
    directions: int = 0
    special: str = ""

    def problem(self, seed: int, target: str = "", reproduce: str = "", pair: tuple | None = None) -> Problem:
        """Return the Problem of this case, with another pair forward/backward in its place if given."""
        forward, backward = pair or (self.forward, self.backward)
        return prepare(
            forward,
            backward,
            self.inputs,
            names=self.names,
            kwargs=self.kwargs,
            seed=seed,
            leading=self.leading,
            zero=self.zero,
            directions=self.directions,
            target=target,
            reproduce=reproduce,
        )


def weights(rng: Rng, *shape: int) -> np.ndarray:
    """Draw a matrix whose product with normal rows is again about normal."""
    return rng.standard_normal(shape) / np.sqrt(shape[0])


def gelu(rng: Rng, s: Sizes, exact: bool = False) -> Case:
    x = 1.5 * rng.standard_normal((*s.rows, s.d))
    pair = (ops.gelu_exact_forward, ops.gelu_exact_backward) if exact else (ops.gelu_forward, ops.gelu_backward)
    return Case(*pair, (x,), ("x",), {}, [writes_out("x")], ("x",))


def linear(rng: Rng, s: Sizes) -> Case:
    x, W, b = rng.standard_normal((*s.rows, s.d)), weights(rng, s.d, s.V), rng.standard_normal(s.V)
    return Case(ops.linear_forward, ops.linear_backward, (x, W, b), ("x", "W", "b"), {}, [writes_out("W", "b")], ("x",))


def embedding(rng: Rng, s: Sizes, backward: Backward = ops.embedding_backward) -> Case:
    idx = rng.integers(0, s.V, (*s.B, s.T))
    ids = idx.reshape(-1)
    ids[:2] = [s.V - 1, 0][: ids.size]  # the last row and the first are never left out
    ids[-1] = ids[ids.size // 2]  # an id that stands in two places
    inputs = (idx, rng.standard_normal((s.V, s.d)), rng.standard_normal((s.T + 1, s.d)))
    return Case(
        ops.embedding_forward,
        backward,
        inputs,
        ("idx", "W_te", "W_pe"),
        invariants=[writes_out("W_te", "W_pe")],
        leading=("idx",),
    )


def in_place(rows_backward: Backward) -> Backward:
    """Return `embedding_rows_backward` with its rows put where they belong."""

    def backward(dx: np.ndarray, cache: tuple) -> tuple[np.ndarray, np.ndarray]:
        (ids, rows), dW_pe = rows_backward(dx, cache)
        dW_te = np.zeros(cache[1], dx.dtype)
        dW_te[ids] = rows
        return dW_te, dW_pe

    return backward


def layernorm(rng: Rng, s: Sizes) -> Case:
    x, gamma, beta = rng.standard_normal((*s.rows, s.d)) + 1, rng.standard_normal(s.d), rng.standard_normal(s.d)
    return Case(
        ops.layernorm_forward,
        ops.layernorm_backward,
        (x, gamma, beta),
        ("x", "gamma", "beta"),
        invariants=[layernorm_orthogonal, writes_out("gamma", "beta")],
        leading=("x",),
        zero=("x", "gamma") if s.d == 1 else (),  # a row of one number is its own mean
    )


def softmax(rng: Rng, s: Sizes, masked: bool = False) -> Case:
    scores = 2 * rng.standard_normal((*s.rows, s.V))
    mask = rng.random((s.T, s.V)) < 0.6
    mask[0] = False  # a row with no place left
    few = masked and (mask.sum(axis=-1) <= 1).all()
    return Case(
        ops.softmax_forward,
        ops.softmax_backward,
        (scores, mask) if masked else (scores,),
        ("scores", "mask")[: 1 + masked],
        invariants=[rows_sum_to_zero("scores")],
        leading=("scores",),
        zero=("scores",) if s.V == 1 or few else (),  # one place has probability 1 whatever its score
    )


def qkv(rng: Rng, s: Sizes) -> Case:
    inputs = (rng.standard_normal((*s.B, s.T, s.d)), weights(rng, s.d, 3 * s.d), rng.standard_normal(3 * s.d))
    names = ("x", "W_qkv", "b_qkv")
    invariants = [writes_out("W_qkv", "b_qkv")]
    return Case(ops.qkv_forward, ops.qkv_backward, inputs, names, {"h": s.h}, invariants, leading=("x",))


def attend(rng: Rng, s: Sizes, causal_: bool = True, scale: bool = True) -> Case:
    inputs = tuple(rng.standard_normal((*s.B, s.h, s.T, s.d_head)) for _ in "qkv")
    return Case(
        ops.attend_forward,
        ops.attend_backward,
        inputs,
        ("q", "k", "v"),
        {"causal": causal_, "scale": scale},
        invariants=[causal("q", "k", "v")] if causal_ else [],
        leading=("q", "k", "v"),
        zero=("q", "k") if s.T == 1 else (),  # one key has weight 1 whatever its score
    )


def attention(rng: Rng, s: Sizes) -> Case:
    inputs = (
        rng.standard_normal((*s.B, s.T, s.d)),
        weights(rng, s.d, 3 * s.d),
        rng.standard_normal(3 * s.d),
        weights(rng, s.d, s.d),
        rng.standard_normal(s.d),
    )
    return Case(
        ops.attention_forward,
        ops.attention_backward,
        inputs,
        ("x", "W_qkv", "b_qkv", "W_o", "b_o"),
        {"h": s.h},
        invariants=[causal("x"), key_bias_zero(), writes_out("W_qkv", "b_qkv", "W_o", "b_o")],
        leading=("x",),
    )


def mlp(rng: Rng, s: Sizes, form: str = "tanh") -> Case:
    d = s.d_head + 1
    inputs = (
        rng.standard_normal((*s.rows, d)),
        weights(rng, d, 4 * d),
        rng.standard_normal(4 * d),
        weights(rng, 4 * d, d),
        rng.standard_normal(d),
    )
    names = ("x", "W_1", "b_1", "W_2", "b_2")
    invariants = [writes_out(*names[1:])]
    return Case(ops.mlp_forward, ops.mlp_backward, inputs, names, {"gelu": form}, invariants, leading=("x",))


def head(rng: Rng, s: Sizes) -> Case:
    inputs = (rng.standard_normal((*s.rows, s.d)), weights(rng, s.V, s.d))
    names = ("x", "W_te")
    return Case(ops.head_forward, ops.head_backward, inputs, names, {}, [writes_out("W_te")], leading=("x",))


def cross_entropy(rng: Rng, s: Sizes) -> Case:
    logits = 2 * rng.standard_normal((*s.B, s.T, s.V))
    targets = rng.integers(0, s.V, (*s.B, s.T))
    targets[rng.random(targets.shape) < 0.3] = ops.IGNORE_INDEX
    if targets.size > 1 and (targets != ops.IGNORE_INDEX).all():
        targets.reshape(-1)[0] = ops.IGNORE_INDEX  # one at least is not counted
    none = s.V == 1 or (targets == ops.IGNORE_INDEX).all()  # nothing to tell apart, or nothing counted
    return Case(
        ops.cross_entropy_forward,
        ops.cross_entropy_backward,
        (logits, targets),
        ("logits", "targets"),
        invariants=[rows_sum_to_zero("logits"), writes_out("logits", rows=True)],
        leading=("logits", "targets"),
        zero=("logits",) if none else (),
    )


# Inputs at which only some faults show.


def gelu_far(rng: Rng, s: Sizes, exact: bool = False) -> Case:
    """Far out the derivative is 0 or 1, and exp overflows."""
    x = np.array([[-100, -30, -12, -7, -1], [0.5, 7, 12, 30, 100]])
    return replace(gelu(rng, s, exact), inputs=(x,), special="|x| up to 100")


def layernorm_constant(rng: Rng, s: Sizes) -> Case:
    """A row of equal numbers has no variance: ε alone stands below the root."""
    found = layernorm(rng, s)
    found.inputs[0][0, 0] = 1.5
    return replace(found, invariants=(), special="a row of equal numbers")


def softmax_far(rng: Rng, s: Sizes, masked: bool = False) -> Case:
    """Scores whose exp overflows: only what is less than the largest counts."""
    found = softmax(rng, s, masked)
    return replace(found, inputs=(found.inputs[0] + 800, *found.inputs[1:]), special="scores near 800")


def cross_entropy_none(rng: Rng, s: Sizes) -> Case:
    """No target is counted: loss and gradient are 0."""
    found = cross_entropy(rng, s)
    logits, targets = found.inputs
    ignored = np.full_like(targets, ops.IGNORE_INDEX)
    return replace(found, inputs=(logits, ignored), zero=("logits",), special="no target that is counted")


CORNERS: dict[str, Callable[[Rng, Sizes], Case]] = {
    "gelu": gelu_far,
    "gelu_exact": partial(gelu_far, exact=True),
    "layernorm": layernorm_constant,
    "softmax": softmax_far,
    "softmax_masked": partial(softmax_far, masked=True),
    "cross_entropy": cross_entropy_none,
}
OTHER_SIZES = (  # every side is 1 once, and none is what it is by default
    Sizes(B=(), T=3, h=1, d_head=5, V=9),
    Sizes(B=(3,), T=1, h=2, d_head=3, V=5),
    Sizes(B=(2, 1), T=1, h=1, d_head=2, V=4),
    Sizes(B=(1, 3), T=2, h=2, d_head=1, V=1),
    Sizes(B=(1,), T=1, h=2, d_head=2, V=3),  # one row in all
    Sizes(B=(4,), T=3, h=1, d_head=1, V=6),  # rows of one number
    Sizes(B=(3,), T=2, h=2, d_head=4, V=8),  # as many outputs as inputs
)
ALONE = Sizes(h=2, d_head=3, V=4, alone=True)
ROW_WISE = ("linear", "layernorm", "softmax", "gelu", "gelu_exact", "mlp", "mlp_exact", "head")
CASES: dict[str, Callable[[Rng, Sizes], Case]] = {
    "embedding": embedding,
    "embedding_rows": partial(embedding, backward=in_place(embedding_rows_backward)),
    "linear": linear,
    "layernorm": layernorm,
    "softmax": softmax,
    "softmax_masked": partial(softmax, masked=True),
    "qkv": qkv,
    "attend": attend,
    "attend_plain": partial(attend, causal_=False, scale=False),
    "attention": attention,
    "gelu": gelu,
    "gelu_exact": partial(gelu, exact=True),
    "mlp": mlp,
    "mlp_exact": partial(mlp, form="exact"),
    "head": head,
    "cross_entropy": cross_entropy,
}


# The same ops in blocks and tiles, at the smallest sizes that take several.


def in_pieces(make_case: Callable[[Rng, Sizes], Case], forward: Forward, backward: Backward, sizes: Sizes) -> Callable:
    """Return what makes an op's case at large sizes, with another pair that must give the op's own gradients."""

    def make(rng: Rng) -> Case:
        whole = make_case(rng, sizes)

        def of_the_whole(upstream: Any) -> dict[str, np.ndarray]:
            problem = whole.problem(seed=0)
            _, cache = problem.call()
            found = problem.gradients(upstream, cache)
            return {problem.names[number]: grad for number, grad in zip(problem.differentiable, found)}

        return replace(
            whole,
            forward=forward,
            backward=backward,
            invariants=[same_gradients("invariant: as in one piece", of_the_whole)],
            directions=1,
        )

    return make


ROWS = 3 * BLOCK_SIZE // 96 + 1  # rows of 2 · 48 features: four blocks, which threads share
LOSS_ROWS = blocked.LOSS_BLOCK // 500 + 1
LARGE: dict[str, Callable[[Rng], Case]] = {
    "gelu_blocked": in_pieces(
        gelu, blocked.gelu_blocked_forward, blocked.gelu_blocked_backward, Sizes(T=ROWS // 2 + 1, h=1, d_head=96)
    ),
    "layernorm_blocked": in_pieces(
        layernorm,
        blocked.layernorm_blocked_forward,
        blocked.layernorm_blocked_backward,
        Sizes(T=ROWS // 2 + 1, h=1, d_head=96),
    ),
    "cross_entropy_blocked": in_pieces(
        cross_entropy,
        blocked.cross_entropy_blocked_forward,
        blocked.cross_entropy_blocked_backward,
        Sizes(T=LOSS_ROWS // 2 + 1, V=500),
    ),
    "attend_tiled": in_pieces(
        attend, attend_tiled_forward, attend_tiled_backward, Sizes(B=(), T=TILE + 3, h=2, d_head=3)
    ),
    "attend_tiled_plain": in_pieces(
        partial(attend, causal_=False, scale=False),
        attend_tiled_forward,
        attend_tiled_backward,
        Sizes(B=(), T=TILE + 3, h=2, d_head=3),
    ),
}


def case(name: str, seed: int = 0) -> Case:
    """Return our op called name at its standard sizes. Raises ValueError for an unknown name."""
    rng = np.random.default_rng(seed)
    if name in LARGE:
        return LARGE[name](rng)
    if name not in CASES:
        raise ValueError(f"no op called {name!r}; there are {', '.join((*CASES, *LARGE))}")
    return CASES[name](rng, Sizes())


def more_cases(name: str, seed: int = 0, one_batch: bool = False) -> list[Case]:
    """Return our op called name where a pair that is right at the standard sizes can still be wrong.

    one_batch  with one leading axis B throughout, as at the standard sizes, and not none or two
    """
    rng = np.random.default_rng([seed, 1])
    corners = [CORNERS[name](rng, Sizes())] if name in CORNERS else []
    found = corners + [CASES[name](rng, sizes.in_one_batch() if one_batch else sizes) for sizes in OTHER_SIZES]
    return [*found, CASES[name](rng, ALONE)] if name in ROW_WISE and not one_batch else found


def random_case(name: str, seed: int) -> Case:
    """Return our op called name at random sizes."""
    rng = np.random.default_rng(seed)
    return CASES[name](rng, Sizes.random(rng))
