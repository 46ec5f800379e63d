"""What a training step costs, counted from a Config, B and T alone (lesson §6-§7): no array is made.

FLOPs are those of the ops in `numpy_gpt.ops`, by one rule:

- one FLOP each, for every element: add, subtract, multiply, divide, exp, log, tanh, erf, sqrt;
- the sum of n numbers is n additions, starting from 0, so that a product (R, in) @ (in, out) is
  2·R·in·out as in the lesson;
- free: comparisons, maxima, masks, copies, look-ups, transposes, work on integers, and what is
  one number for a whole array (√d_head, 1/n, AdamW's rates);
- attention is counted as `attend_forward` does it, over all T² pairs like the lesson, those that
  the causal mask drops too; `masked` says how much of it they are. All B·T targets count in the loss;
- GELU's tanh form is counted as the model does it, with its slope taken on the way forward.

Bytes moved, for the arithmetic intensity, are each array that an op reads or writes, once: its
inputs, parameters, outputs, and what it saves. Ids are left out.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from fractions import Fraction
from numbers import Integral, Real
from typing import Any

from .config import Config

TILE = 128  # queries a tile of attention
GROUP = 2**18  # scores of the heads that it does together
LARGEST = 1e36  # of any size, of tokens and of GFLOP/s: all that is counted with them is then finite
RULE = (
    "One FLOP for every element: add, subtract, multiply, divide, exp, log, tanh, erf, sqrt; n for the sum of n. "
    "Free: maxima, masks, copies, look-ups. Attention is counted over all T² pairs."
)
ITEMSIZE = {"float32": 4, "float64": 8, "int64": 8, "bool": 1}  # bytes of one number


# Parameters


def parameters(config: Config) -> dict[str, int]:
    """Count the parameters by part, N exactly, and N by the lesson's 12Ld² + V·d + T_max·d.

    attn and mlp are the matrices of one block; what the lesson leaves out as negligible, every
    bias, gamma and beta, is norms_and_biases. A tied head is W_te again: 0.
    """
    V, T_max, d, L = config.V, config.T_max, config.d, config.L
    parts = {
        "emb": V * d + T_max * d,
        "attn_per_block": 3 * d * d + d * d,  # W_qkv, W_o
        "mlp_per_block": 4 * d * d + 4 * d * d,  # W_1, W_2
        "norms_and_biases": L * (4 * d + 9 * d) + 2 * d,  # a block: two norms, b_qkv + b_o + b_1 + b_2; ln_f
        "head": 0 if config.tie else V * d,
    }
    blocks = L * (parts["attn_per_block"] + parts["mlp_per_block"])
    N = parts["emb"] + blocks + parts["norms_and_biases"] + parts["head"]
    return {**parts, "blocks": blocks, "N": N, "N_lesson": 12 * L * d * d + V * d + T_max * d}


# Shapes


@dataclass(frozen=True)
class Tensor:
    """An intermediate tensor of the forward pass.

    part     "embedding", "block" (there are `times` = L of those) or "head"
    letters  its shape in the lesson's letters: "(B, T, d)"
    memory   "saved" for the backward; "freed" before it; "view" of another tensor, no memory of its own
    """

    part: str
    name: str
    formula: str
    letters: str
    shape: tuple[int, ...]
    dtype: str
    memory: str
    times: int

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * ITEMSIZE[self.dtype]


def tensors(config: Config, B: int, T: int, dtype: str = "float32") -> list[Tensor]:
    """Return every intermediate tensor of the forward pass and the loss, in order, by the lesson's names."""
    d, h, V = config.d, config.h, config.V
    sizes = {"B": B, "T": T, "d": d, "h": h, "V": V}
    sizes |= {"d_head": config.d_head, "3d": 3 * d, "4d": 4 * d, "B·T": B * T, "1": 1}
    found: list[Tensor] = []

    def add(part: str, name: str, formula: str, letters: str, memory: str, dtype: str = dtype) -> None:
        shape = tuple(sizes[letter] for letter in letters.split(", ") if letter)
        times = config.L if part == "block" else 1
        found.append(Tensor(part, name, formula, f"({letters})", shape, dtype, memory, times))

    def add_layernorm(part: str, name: str) -> None:
        add(part, f"{name}.xhat", "(x - mean) / √(var + ε)", "B, T, d", "saved")
        add(part, f"{name}.rstd", "1 / √(var + ε)", "B, T, 1", "saved")
        # Saved as the input of the linear layer that follows. The last post-norm block has none,
        # but there the first block's input is saved: as many tensors of the same size.
        add(part, name, "LN(x)", "B, T, d", "saved")

    def add_attention() -> None:
        add("block", "qkv", "x @ W_qkv + b_qkv", "B, T, 3d", "saved")
        for name in ("q", "k", "v"):
            add("block", name, "a third of qkv, in heads", "B, h, T, d_head", "view")
        add("block", "scores", "q @ k.T / √d_head" if config.scale else "q @ k.T", "B, h, T, T", "freed")
        add("block", "attn", "softmax(scores)", "B, h, T, T", "saved")
        add("block", "out", "attn @ v", "B, h, T, d_head", "freed")
        add("block", "out", "merge heads", "B, T, d", "saved")
        add("block", "out", "out @ W_o + b_o", "B, T, d", "freed")
        add("block", "x", "x + out", "B, T, d", "freed")

    def add_mlp() -> None:
        if config.gelu == "tanh":
            add("block", "u", "x @ W_1 + b_1", "B, T, 4d", "freed")
            add("block", "slope", "dGELU(u)/du", "B, T, 4d", "saved")
        else:
            add("block", "u", "x @ W_1 + b_1", "B, T, 4d", "saved")
            add("block", "cdf", "Φ(u)", "B, T, 4d", "saved")
        add("block", "h1", "GELU(u)", "B, T, 4d", "saved")
        add("block", "y", "h1 @ W_2 + b_2", "B, T, d", "freed")
        add("block", "x", "x + y", "B, T, d", "freed")

    add("embedding", "idx", "token ids", "B, T", "saved", "int64")
    add("embedding", "tok", "W_te[idx]", "B, T, d", "freed")
    add("embedding", "pos", "W_pe[:T]", "T, d", "view")
    add("embedding", "x", "tok + pos", "B, T, d", "freed")
    if config.norm == "pre":
        add_layernorm("block", "ln_1")
    add_attention()
    add_layernorm("block", "ln_2" if config.norm == "pre" else "ln_1")
    add_mlp()
    if config.norm == "post":
        add_layernorm("block", "ln_2")
    add_layernorm("head", "ln_f")
    add("head", "logits", "x @ W_te.T" if config.tie else "x @ W_head.T", "B, T, V", "freed")
    add("head", "targets", "the ids to predict", "B·T", "saved", "int64")
    add("head", "rows", "0, 1, ..., B·T - 1", "B·T", "saved", "int64")
    add("head", "counted", "targets ≠ -100", "B·T", "saved", "bool")
    add("head", "probs", "softmax(logits)", "B·T, V", "saved")
    add("head", "loss", "mean(-log probs[targets])", "", "freed")
    return found


# FLOPs, op by op. R is the number of rows, B·T.


@dataclass(frozen=True)
class Cost:
    """FLOPs of an op's forward and backward, and the numbers (not bytes) that each moves."""

    forward: int
    backward: int
    moved_forward: int
    moved_backward: int


def embedding_cost(R: int, T: int, d: int, V: int, T_max: int, tie: bool = False) -> Cost:
    """x = W_te[idx] + W_pe[:T]; back, each row of dx is added to one row of dW_te and one of dW_pe.

    With a tied head dW_te comes as the rows of the ids that occur, here as many as there can be.
    """
    rows = min(R, V) if tie else V
    return Cost(R * d, 2 * R * d, 2 * R * d + T * d, R * d + rows * d + T_max * d)


def layernorm_cost(R: int, d: int) -> Cost:
    """y = γ x̂ + β: 8 an element and 5 a row (1/√(σ² + ε)); back, 11 and 2."""
    return Cost(R * (8 * d + 5), R * (11 * d + 2), R * (3 * d + 1) + 2 * d, R * (3 * d + 1) + 3 * d)


def linear_cost(R: int, n_in: int, n_out: int) -> Cost:
    """y = x @ W + b: one product; back, two, dx = dy @ W.T and dW = x.T @ dy. The bias is one addition."""
    product, bias = 2 * R * n_in * n_out, R * n_out
    moved = R * n_in + n_in * n_out + R * n_out
    return Cost(product + bias, 2 * product + bias, moved + n_out, moved + R * n_in + n_in * n_out + n_out)


def scores_cost(B: int, h: int, T: int, d_head: int, scale: bool = True) -> Cost:
    """scores = q @ k.T / √d_head: one product; back, two, dq and dk."""
    product, pairs, qk = 2 * B * h * T * T * d_head, B * h * T * T, 2 * B * h * T * d_head
    division = pairs if scale else 0
    return Cost(product + division, 2 * product + division, qk + pairs, 2 * qk + pairs)


def softmax_cost(rows: int, n: int) -> Cost:
    """attn = softmax(scores): shift, exp, sum, divide, and the guard of an empty row; back, 4."""
    return Cost(rows * (4 * n + 1), rows * 4 * n, 2 * rows * n, 3 * rows * n)


def values_cost(B: int, h: int, T: int, d_head: int) -> Cost:
    """out = attn @ v: one product; back, two, dattn and dv."""
    product, pairs, v = 2 * B * h * T * T * d_head, B * h * T * T, B * h * T * d_head
    return Cost(product, 2 * product, pairs + 2 * v, 2 * pairs + 3 * v)


def gelu_cost(n: int, gelu: str = "tanh") -> Cost:
    """y = GELU(x), of n elements; in the tanh form dy/dx with it, which leaves one product for the backward."""
    forward, backward = {"tanh": (15, 1), "exact": (5, 7)}[gelu]
    return Cost(forward * n, backward * n, 3 * n, (3 if gelu == "tanh" else 4) * n)


def residual_cost(n: int) -> Cost:
    """x = x + y: one addition; back, one where the two gradients meet."""
    return Cost(n, n, 3 * n, 3 * n)


def head_cost(R: int, d: int, V: int) -> Cost:
    """logits = x @ W_te.T: one product; back, two."""
    product, moved = 2 * R * d * V, R * d + V * d + R * V
    return Cost(product, 2 * product, moved, moved + R * d + V * d)


def cross_entropy_cost(R: int, V: int) -> Cost:
    """loss = mean(−log softmax(logits)[target]): a softmax, and 3 a row; back, probs − [v = target], scaled."""
    return Cost(R * (4 * V + 3), R * (V + 1), 2 * R * V, 2 * R * V)


def tied_sum_cost(R: int, d: int, V: int) -> Cost:
    """W_te is used twice: to the head's share of its gradient comes the embedding's, one row an id that occurs.

    Counted as if as many of the V ids occurred as can in R places.
    """
    rows = min(R, V)
    return Cost(0, rows * d, 0, 3 * rows * d)


def adamw_flops(config: Config) -> int:
    """Return the FLOPs of one AdamW update: 14 a parameter."""
    return 14 * config.n_parameters()


@dataclass(frozen=True)
class Op:
    """One op of the step; op is its name in `numpy_gpt.ops`, or "residual" for the model's own additions."""

    part: str
    name: str
    op: str
    formula: str
    cost: Cost
    times: int = 1


def step_ops(config: Config, B: int, T: int) -> list[Op]:
    """Return every op of a forward and backward pass in the forward's order, with the cost of one of its `times`."""
    V, d, h, d_head, L, R = config.V, config.d, config.h, config.d_head, config.L, B * T

    def block(name: str, op: str, formula: str, cost: Cost) -> Op:
        return Op("block", name, op, formula, cost, L)

    ln_1, ln_2 = (block(name, "layernorm", "LN(x)", layernorm_cost(R, d)) for name in ("ln_1", "ln_2"))
    scores = "q @ k.T / √d_head" if config.scale else "q @ k.T"
    attention = [
        block("qkv", "linear", "x @ W_qkv + b_qkv", linear_cost(R, d, 3 * d)),
        block("scores", "attend", scores, scores_cost(B, h, T, d_head, config.scale)),
        block("attn", "softmax", "softmax(scores)", softmax_cost(B * h * T, T)),
        block("out", "attend", "attn @ v", values_cost(B, h, T, d_head)),
        block("W_o", "linear", "out @ W_o + b_o", linear_cost(R, d, d)),
        block("residual_attn", "residual", "x + out", residual_cost(R * d)),
    ]
    mlp = [
        block("W_1", "linear", "x @ W_1 + b_1", linear_cost(R, d, 4 * d)),
        block("gelu", "gelu" if config.gelu == "tanh" else "gelu_exact", "GELU(u)", gelu_cost(4 * R * d, config.gelu)),
        block("W_2", "linear", "h1 @ W_2 + b_2", linear_cost(R, 4 * d, d)),
        block("residual_mlp", "residual", "x + y", residual_cost(R * d)),
    ]
    head = "x @ W_te.T" if config.tie else "x @ W_head.T"
    ops = [
        Op(
            "embedding",
            "embedding",
            "embedding",
            "W_te[idx] + W_pe[:T]",
            embedding_cost(R, T, d, V, config.T_max, config.tie),
        ),
        *([ln_1, *attention, ln_2, *mlp] if config.norm == "pre" else [*attention, ln_1, *mlp, ln_2]),
        Op("head", "ln_f", "layernorm", "LN(x)", layernorm_cost(R, d)),
        Op("head", "head", "head", head, head_cost(R, d, V)),
        Op("head", "loss", "cross_entropy", "-log softmax(logits)", cross_entropy_cost(R, V)),
    ]
    if config.tie:
        ops.append(Op("head", "tied_sum", "residual", "dW_te, head + emb", tied_sum_cost(R, d, V)))
    return ops


# Attention's T² term


def pair_flops(config: Config) -> tuple[int, int]:
    """Return the FLOPs that one pair of positions (t, j) costs one block, all heads: forward, backward.

    4d and 8d for the two products, and for each head 1 to scale and 4 for softmax, both ways.
    """
    elementwise = (5 if config.scale else 4) * config.h
    return 4 * config.d + elementwise, 8 * config.d + elementwise


def attention_flops(config: Config, B: int, T: int) -> dict[str, int]:
    """Return the FLOPs of the T² term in all blocks, and how much of it the causal mask drops."""
    forward, backward = pair_flops(config)
    pairs = config.L * B * T * T
    masked = config.L * B * T * (T - 1) // 2 if config.causal else 0
    return {
        "forward": pairs * forward,
        "backward": pairs * backward,
        "masked_forward": masked * forward,
        "masked_backward": masked * backward,
    }


def crossover(config: Config, percent: int) -> dict[str, float | int]:
    """Return the least T at which attention's T² term reaches a share of the linears, in the forward.

    A token pays for T pairs in every block, against products of 24d² there and 2·V·d at the head.
    T counts the head among the linears, T_block does not. For attention's two products alone
    T_block would be share · 6d.
    """
    block, head = 24 * config.d**2, 2 * config.V * config.d
    pair, _ = pair_flops(config)
    return {
        "share": percent / 100,
        "T": math.ceil(Fraction(percent * (config.L * block + head), 100 * config.L * pair)),
        "T_block": math.ceil(Fraction(percent * block, 100 * pair)),
    }


# Bytes


def kept_pairs(config: Config, T: int) -> int:
    """Return how many of a head's T² attention weights the forward on a CPU makes and keeps.

    Up to T = TILE all of them; beyond, it works in tiles of TILE queries, each of which meets no
    key after its last query (`numpy_gpt/ops/attend_tiled.py`).
    """
    if not config.causal:
        return T * T
    whole, rest = divmod(T, TILE)  # tile number i of the whole ones meets i · TILE keys, those that are left all T
    return TILE * TILE * whole * (whole + 1) // 2 + rest * T


def memory(
    config: Config, B: int, T: int, dtype: str = "float32", gradients: int = 1, tiled: bool = True
) -> dict[str, int]:
    """Return the bytes that a training step holds, by kind, and the most of them at one time.

    gradients    how many copies of the gradients it keeps: `training.gradient_copies` tells
    tiled        attention goes in tiles, as on a CPU; on a GPU whole (B, h, T, T) tensors come and go
    activations  what the forward saves for the backward: the tensors marked so, less the attention
                 weights that tiles leave out (`kept_pairs`)
    workspace    the largest that comes and goes: the loss's gradient at the logits, with the widest
                 moment of a block's backward
    peak         all of it, without what Python and NumPy themselves take (some tens of MB)
    """
    itemsize, N = ITEMSIZE[dtype], config.n_parameters()
    R, d, V = B * T, config.d, config.V
    pairs = B * config.h * T * T
    skipped = config.L * (pairs - B * config.h * kept_pairs(config, T)) if tiled else 0
    # dx before and after the MLP, its dy and dout; dq, dk and dv; then the scores that two cores have in
    # hand, and their heads' k where several tiles read it (without tiles dattn, dscores and a product of
    # all heads), or dqkv and what goes on from it
    tile = T * min(T, TILE)
    heads = min(B * config.h, 2 * max(1, GROUP // tile))
    in_hand = heads * (tile + (T * config.d_head if T > TILE else 0)) if tiled else 3 * pairs
    attend_backward = 7 * R * d + max(in_hand, 4 * R * d)
    # dy, dh1 and the gradient before GELU, whose exact form has two more at a time
    mlp_backward = (9 if config.gelu == "tanh" else 17) * R * d
    parts = {
        "parameters": N * itemsize,
        "gradients": gradients * N * itemsize,
        "moments": 2 * N * itemsize,
        "activations": sum(t.times * t.bytes for t in tensors(config, B, T, dtype) if t.memory == "saved")
        - skipped * itemsize,
        "workspace": (R * V + max(attend_backward, mlp_backward)) * itemsize,
    }
    return {**parts, "peak": sum(parts.values())}


# All together


def budget(
    config: Config,
    B: int,
    T: int,
    dtype: str = "float32",
    tokens: float | None = None,
    rate: float | None = None,
) -> dict[str, Any]:
    """Return everything that this file counts, for B sequences of T tokens, ready for JSON.

    tokens  D, the length of a run; rate  GFLOP/s, as measured. What they are not given for is None.

        config      the Config's own fields;  B, T, dtype  as given
        tensors     in order: part, name, formula, letters, shape, dtype, bytes, memory, times
        parameters  emb, attn_per_block, mlp_per_block, norms_and_biases, head, blocks, N, N_lesson
        flops
          ops       in order, each for one of its `times`: part, name, op, formula, times, forward,
                    backward, bytes_forward, bytes_backward, intensity_forward, intensity_backward
          rule      what counts as a FLOP
          forward, backward, step        exact, of all B·T tokens
          bytes, intensity               moved in a step, and step FLOPs / bytes
          per_token                      forward, backward, train (exact / B·T), and 2N, 4N, 6N
          update, update_bytes           of one AdamW update
        attention   forward, backward, masked_forward, masked_backward: FLOPs of the T² term
        memory      parameters, gradients, moments, activations, workspace, peak: bytes
        crossover   for 0.1 and 0.5: share, T, T_block
        run         tokens, C (6·N·D), counted (exact), gflop_per_second, step_seconds, hours (of C),
                    hours_counted

    Raises ValueError where B, T, dtype, tokens or rate make no step, and for T > T_max.
    """
    B, T = check_batch(config, B, T, dtype)
    itemsize, N = ITEMSIZE[dtype], config.n_parameters()
    ops = [op_entry(op, itemsize) for op in step_ops(config, B, T)]
    forward, backward, moved_forward, moved_backward = (
        sum(op["times"] * op[key] for op in ops) for key in ("forward", "backward", "bytes_forward", "bytes_backward")
    )
    step, moved = forward + backward, moved_forward + moved_backward
    return {
        "config": config.to_dict(),
        "B": B,
        "T": T,
        "dtype": dtype,
        "tensors": [{**asdict(t), "shape": list(t.shape), "bytes": t.bytes} for t in tensors(config, B, T, dtype)],
        "parameters": parameters(config),
        "flops": {
            "ops": ops,
            "rule": RULE,
            "forward": forward,
            "backward": backward,
            "step": step,
            "bytes": moved,
            "intensity": step / moved,
            "per_token": {
                "forward": forward / (B * T),
                "backward": backward / (B * T),
                "train": step / (B * T),
                "2N": 2 * N,
                "4N": 4 * N,
                "6N": 6 * N,
            },
            "update": adamw_flops(config),
            "update_bytes": 7 * N * itemsize,  # reads θ, g, m, v; writes θ, m, v
        },
        "attention": attention_flops(config, B, T),
        "memory": memory(config, B, T, dtype),
        "crossover": [crossover(config, percent) for percent in (10, 50)],
        "run": run_cost(N, step, B * T, tokens, rate),
    }


def check_batch(config: Config, B: int, T: int, dtype: str) -> tuple[int, int]:
    """Return B and T as Python's numbers, which do not overflow.

    Raises ValueError unless B sequences of T tokens in dtype fit the config, and for sizes above LARGEST.
    """
    for name, value in (("B", B), ("T", T)):
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
    for name, value in (("B", B), *((name, getattr(config, name)) for name in ("V", "T_max", "d", "L"))):
        if value > LARGEST:
            raise ValueError(f"{name} must be at most {LARGEST:g}, got a number of {len(str(value))} digits")
    if T > config.T_max:
        raise ValueError(f"T = {T} is more than T_max = {config.T_max}")
    if dtype not in ("float32", "float64"):
        raise ValueError(f"dtype must be float32 or float64, got {dtype!r}")
    return int(B), int(T)


def op_entry(op: Op, itemsize: int) -> dict[str, Any]:
    """Return an op's JSON: its cost in FLOPs and bytes, and their ratio (0 where nothing is moved)."""
    entry = {"part": op.part, "name": op.name, "op": op.op, "formula": op.formula, "times": op.times}
    for way in ("forward", "backward"):
        flops, moved = getattr(op.cost, way), getattr(op.cost, f"moved_{way}") * itemsize
        entry |= {way: flops, f"bytes_{way}": moved, f"intensity_{way}": flops / moved if moved else 0.0}
    return entry


def run_cost(N: int, step_flops: int, step_tokens: int, tokens: float | None, rate: float | None) -> dict[str, Any]:
    """Return the FLOPs of a run of D = tokens, by C = 6·N·D and as counted, and its hours at rate GFLOP/s.

    Raises ValueError for tokens or a rate that no run has.
    """
    for name, value, least in (("tokens", tokens, 1), ("rate", rate, 1e-9)):
        if value is not None and not (isinstance(value, Real) and least <= value <= LARGEST):
            raise ValueError(f"{name} must be a number from {least:g} to {LARGEST:g}, got {value!r:.80}")
    tokens, rate = (None if value is None else float(value) for value in (tokens, rate))
    C = None if tokens is None else 6 * N * tokens
    counted = None if tokens is None else step_flops / step_tokens * tokens
    seconds_a_flop = None if rate is None else 1 / (rate * 1e9)

    def hours(flops: float | None) -> float | None:
        return None if flops is None or seconds_a_flop is None else flops * seconds_a_flop / 3600

    return {
        "tokens": tokens,
        "C": C,
        "counted": counted,
        "gflop_per_second": rate,
        "step_seconds": None if seconds_a_flop is None else step_flops * seconds_a_flop,
        "hours": hours(C),
        "hours_counted": hours(counted),
    }
