"""The budget against the code: the real ops run on arrays that count, and their caches are weighed."""

import json
import math
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import walk
from hypothesis import given
from hypothesis import strategies as st

from numpy_gpt import PRESETS, AdamW, Config, Model, ops
from numpy_gpt.budget import (
    GROUP,
    ITEMSIZE,
    TILE,
    Cost,
    adamw_flops,
    attention_flops,
    budget,
    cross_entropy_cost,
    crossover,
    embedding_cost,
    gelu_cost,
    head_cost,
    kept_pairs,
    layernorm_cost,
    linear_cost,
    memory,
    parameters,
    residual_cost,
    scores_cost,
    softmax_cost,
    step_ops,
    tensors,
    tied_sum_cost,
    values_cost,
)
from numpy_gpt.ops import attend_tiled, attention
from numpy_gpt.ops.attend_tiled import BLAS_SHARES, SHARED, attend_tiled_backward, attend_tiled_forward
from numpy_gpt.ops.embedding_rows import embedding_rows_backward
from numpy_gpt.ops.mlp import GELU

# Arrays that count

ONE = {"add", "subtract", "multiply", "divide", "exp", "log", "sqrt", "tanh", "erf"}  # FLOPs an element
FREE = {"maximum", "equal", "not_equal", "isfinite", "invert"}
MOVES = {"where", "split", "array_split", "concatenate", "copyto", "swapaxes", "empty_like"}


class Counting(np.ndarray):
    """An array that adds up the FLOPs of what is done with it, by budget.py's rule.

    It knows nothing of the ops. A function that it does not know fails, so that nothing is missed.
    """

    flops = 0

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **keywords):
        plain = [as_plain(x) for x in inputs]
        if out is not None:
            keywords["out"] = tuple(as_plain(x) for x in out)
        result = getattr(ufunc, method)(*plain, **keywords)
        count(ufunc.__name__, method, plain, result)
        return out[0] if out is not None else as_counting(result)

    def __array_function__(self, func, types, args, keywords):
        plain = [as_plain(x) for x in args]
        result = func(*plain, **{name: as_plain(x) for name, x in keywords.items()})
        if func is np.einsum:
            _, *operands = plain
            assert args[0] == "...i,...i->..."
            Counting.flops += 2 * operands[0].size  # a product and a sum
        else:
            assert func.__name__ in MOVES, f"np.{func.__name__} is not counted"
        return as_counting(result)


def count(name, method, inputs, result):
    """Add the FLOPs of one ufunc call."""
    if result is None or result.dtype.kind not in "fc" or name in FREE:
        return
    if name == "matmul":
        Counting.flops += 2 * result.size * inputs[0].shape[-1]
    elif method == "reduce":
        assert name == "add"
        Counting.flops += inputs[0].size
    elif method == "reduceat":  # the groups' sums; each group's last addition is into scatter_add's target
        assert name == "add"
        Counting.flops += inputs[0].size - result.size
    else:
        assert method == "__call__", f"{name}.{method} is not counted"
        assert name in ONE, f"{name} is not counted"
        Counting.flops += result.size if result.ndim else 0  # one number for a whole array is free


def as_plain(x):
    if isinstance(x, (tuple, list)):
        return type(x)(as_plain(part) for part in x)
    return x.view(np.ndarray) if isinstance(x, Counting) else x


def as_counting(x):
    if isinstance(x, (tuple, list)):
        return type(x)(as_counting(part) for part in x)
    is_float = isinstance(x, (np.ndarray, np.generic)) and x.dtype.kind == "f"
    return np.asarray(x).view(Counting) if is_float else x


def flops_of(function, *args, **keywords):
    """Return what function returns, and the FLOPs that it took."""
    Counting.flops = 0
    result = function(*args, **keywords)
    return result, Counting.flops


def counting(*shape):
    return np.random.default_rng(0).standard_normal(shape).view(Counting)


COUNTING_NUMPY = SimpleNamespace(
    **{
        **vars(np),
        "zeros": lambda *args, **keywords: np.zeros(*args, **keywords).view(Counting),
        "empty": lambda *args, **keywords: np.empty(*args, **keywords).view(Counting),
    }
)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x + 1, 6),
        (lambda x: x @ x.T, 2 * 2 * 2 * 3),
        (lambda x: x.sum(axis=0), 6),
        (lambda x: x.mean(axis=-1), 6 + 2),
        (lambda x: x.max(), 0),
        (lambda x: x.sum() / 2, 6),
        (lambda x: np.einsum("...i,...i->...", x, x), 12),
        (lambda x: np.where(x > 0, x, 0).copy().reshape(3, 2), 0),
        (lambda x: np.exp(x, out=x), 6),
    ],
)
def test_counting_counts(function, expected):
    assert flops_of(function, counting(2, 3))[1] == expected


@pytest.mark.parametrize("function", [np.cos, np.cumsum, np.linalg.norm, lambda x: x**3])
def test_counting_lets_nothing_escape(function):
    with pytest.raises(AssertionError, match="not counted"):
        function(counting(2, 3))


# FLOPs and bytes of every op

sides = st.integers(1, 5)


def distinct_bytes(*trees):
    """Return the bytes of every float array in trees, each buffer once, at its largest view."""
    sizes = {}
    for _, x in walk(trees):
        if x.dtype.kind == "f" and x.ndim:
            key = root(x).__array_interface__["data"][0]
            sizes[key] = max(sizes.get(key, 0), x.nbytes)
    return sum(sizes.values())


def root(x):
    """Return the array whose memory x shows."""
    while isinstance(x.base, np.ndarray):
        x = x.base
    return x


def check_op(cost, forward, backward, inputs):
    """Hold cost to the FLOPs that an op does, and to the arrays that it reads and writes."""
    (y, cache), forward_flops = flops_of(forward, *inputs)
    dy = counting(*y.shape)
    gradients, backward_flops = flops_of(backward, dy, cache)
    assert (cost.forward, cost.backward) == (forward_flops, backward_flops)
    assert cost.moved_forward * ITEMSIZE["float64"] == distinct_bytes(inputs, y, cache)
    assert cost.moved_backward * ITEMSIZE["float64"] == distinct_bytes(dy, cache, gradients)


@given(sides, sides, sides)
def test_linear(R, n_in, n_out):
    inputs = counting(R, n_in), counting(n_in, n_out), counting(n_out)
    check_op(linear_cost(R, n_in, n_out), ops.linear_forward, ops.linear_backward, inputs)


@given(sides, sides, sides)
def test_head(R, d, V):
    check_op(head_cost(R, d, V), ops.head_forward, ops.head_backward, (counting(R, d), counting(V, d)))


@given(sides, sides)
def test_layernorm(R, d):
    inputs = counting(R, d), counting(d), counting(d)
    check_op(layernorm_cost(R, d), ops.layernorm_forward, ops.layernorm_backward, inputs)


@given(sides, sides)
def test_softmax(rows, n):
    check_op(softmax_cost(rows, n), ops.softmax_forward, ops.softmax_backward, (counting(rows, n),))


@pytest.mark.parametrize("gelu", ["tanh", "exact"])
@given(n=sides)
def test_gelu(gelu, n):
    forward, backward = {
        "tanh": GELU["tanh"],
        "exact": (ops.gelu_exact_forward, ops.gelu_exact_backward),
    }[gelu]
    check_op(gelu_cost(n, gelu), forward, backward, (counting(n),))


@given(sides, sides, sides, sides, st.booleans(), st.booleans())
def test_attend(B, h, T, d_head, causal, scale):
    q, k, v = (counting(B, h, T, d_head) for _ in range(3))
    (out, cache), forward = flops_of(ops.attend_forward, q, k, v, causal, scale)
    _, backward = flops_of(ops.attend_backward, counting(*out.shape), cache)
    costs = [scores_cost(B, h, T, d_head, scale), softmax_cost(B * h * T, T), values_cost(B, h, T, d_head)]
    assert (forward, backward) == (sum(c.forward for c in costs), sum(c.backward for c in costs))


def test_tiles_do_half_of_attention_for_a_long_T():
    q, k, v = (counting(1, 2, 8 * TILE, 16) for _ in range(3))
    (out, cache), forward = flops_of(ops.attend_forward, q, k, v)
    (_, tiled_cache), tiled_forward = flops_of(attend_tiled_forward, q, k, v)
    _, backward = flops_of(ops.attend_backward, out, cache)
    _, tiled_backward = flops_of(attend_tiled_backward, out, tiled_cache)
    assert tiled_forward / forward == pytest.approx(9 / 16, rel=0.02)  # 1 + ... + 8 tiles of 8 · 8
    assert tiled_backward / backward == pytest.approx(9 / 16, rel=0.05)


def test_bytes_of_attention_by_hand():
    B, h, T, d_head = 2, 3, 5, 7
    scores, q = B * h * T * T, B * h * T * d_head  # k, v, out and their gradients are q's size
    cost = scores_cost(B, h, T, d_head)
    assert cost.moved_forward == q + q + scores
    assert cost.moved_backward == scores + (q + q) + (q + q)  # dscores, q, k -> dq, dk
    cost = values_cost(B, h, T, d_head)
    assert cost.moved_forward == scores + q + q
    assert cost.moved_backward == q + (scores + q) + (scores + q)  # dout, attn, v -> dattn, dv


@given(sides, sides, sides, st.integers(1, 3))
def test_embedding(B, T, d, V):
    T_max = T + 2
    idx = np.random.default_rng(B).integers(0, V, (B, T))  # ids repeat
    (x, cache), forward = flops_of(ops.embedding_forward, idx, counting(V, d), counting(T_max, d))
    gradients, backward = flops_of(ops.embedding_backward, x, cache)
    cost = embedding_cost(B * T, T, d, V, T_max)
    # The rows of W_te that are looked up, W_pe[:T], and x
    assert cost.moved_forward == B * T * d + T * d + B * T * d
    assert cost.moved_backward * 8 == x.nbytes + sum(g.nbytes for g in gradients)
    assert (cost.forward, cost.backward) == (forward, backward)


@given(sides, sides, sides)
def test_embedding_of_a_tied_table(B, T, d):
    V, T_max = B * T + 1, T + 2
    idx = np.random.default_rng(B).permutation(V)[: B * T].reshape(B, T)  # all ids different
    (x, cache), _ = flops_of(ops.embedding_forward, idx, counting(V, d), counting(T_max, d))
    ((_, rows), dW_pe), backward = flops_of(embedding_rows_backward, x, cache)
    cost = embedding_cost(B * T, T, d, V, T_max, tie=True)
    assert cost.backward == backward
    assert cost.moved_backward * 8 == x.nbytes + rows.nbytes + dW_pe.nbytes


@given(sides, sides)
def test_cross_entropy(R, V):
    targets = np.random.default_rng(V).integers(0, V, R)
    (_, cache), forward = flops_of(ops.cross_entropy_forward, counting(R, V), targets)
    _, backward = flops_of(ops.cross_entropy_backward, 0.7, cache)
    cost = cross_entropy_cost(R, V)
    assert (cost.forward, cost.backward) == (forward, backward)
    assert cost.moved_forward == cost.moved_backward == 2 * R * V  # logits, probs; probs, dlogits


def test_additions():
    x, y = counting(4, 3), counting(4, 3)
    z, flops = flops_of(np.add, x, y)
    numbers = distinct_bytes(x, y, z) // ITEMSIZE["float64"]
    assert residual_cost(12) == Cost(flops, flops, numbers, numbers)
    assert tied_sum_cost(4, 3, V=9) == Cost(0, flops, 0, numbers)  # the forward has nothing to add
    assert tied_sum_cost(99, 3, V=4) == tied_sum_cost(4, 3, V=9)  # no more rows than there are ids


# The whole step

CONFIGS = {
    "lesson": Config(V=11, T_max=7, d=12, h=3, L=2),
    "one block, one head": Config(V=5, T_max=9, d=4, h=1, L=1),
    "untied": Config(V=13, T_max=6, d=8, h=4, L=3, tie=False),
    "post-norm, exact GELU": Config(V=11, T_max=7, d=12, h=2, L=3, norm="post", gelu="exact"),
    "no mask, no scale": Config(V=11, T_max=7, d=12, h=3, L=2, causal=False, scale=False),
}
every_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def batch(config, B, T):
    rng = np.random.default_rng(0)
    return rng.integers(0, config.V, (B, T)), rng.integers(0, config.V, (B, T))


def tied_rows_spared(config, idx):
    """The additions of the tied sum that ids standing in several places save: budget counts as many ids as can be."""
    return (min(idx.size, config.V) - np.unique(idx).size) * config.d if config.tie else 0


@every_config
@pytest.mark.parametrize(("B", "T"), [(2, 5), (1, 6), (3, 1)])
def test_flops_of_the_real_model(config, B, T, monkeypatch):
    monkeypatch.setattr(attention, "attend_pair", lambda q: (ops.attend_forward, ops.attend_backward))  # as on a GPU
    model = Model(config, dtype="float64", xp=COUNTING_NUMPY)
    idx, targets = batch(config, B, T)
    (_, cache), forward = flops_of(model.loss_forward, idx, targets)
    _, backward = flops_of(model.loss_backward, 1.0, cache)
    backward += tied_rows_spared(config, idx)
    flops = budget(config, B, T)["flops"]
    assert (flops["forward"], flops["backward"], flops["step"]) == (forward, backward, forward + backward)
    assert flops["per_token"]["train"] == pytest.approx((forward + backward) / (B * T), rel=1e-15)


@every_config
def test_flops_of_the_real_optimiser(config):
    model = Model(config, dtype="float64", xp=COUNTING_NUMPY)
    optimiser = AdamW(model.params)
    _, flops = flops_of(optimiser.update, model.params.zeros_like())
    assert adamw_flops(config) == flops


def test_ops_are_the_lessons_in_order():
    names = [op.name for op in step_ops(CONFIGS["lesson"], 1, 1)]
    assert " ".join(names) == (
        "embedding ln_1 qkv scores attn out W_o residual_attn ln_2 W_1 gelu W_2 residual_mlp ln_f head loss tied_sum"
    )
    post = [op.name for op in step_ops(CONFIGS["post-norm, exact GELU"], 1, 1)]
    assert post.index("residual_attn") < post.index("ln_1") < post.index("W_1") < post.index("ln_2")
    assert sorted(post) == sorted(names)
    assert "tied_sum" not in [op.name for op in step_ops(CONFIGS["untied"], 1, 1)]


def test_ops_name_functions_of_the_package():
    for config in CONFIGS.values():
        for op in step_ops(config, 1, 1):
            assert op.op == "residual" or hasattr(ops, f"{op.op}_forward")


# Bytes


@every_config
@pytest.mark.parametrize(("B", "T"), [(2, 5), (3, 4), (1, 6)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_saved_activations_are_the_real_caches(config, B, T, dtype):
    model = Model(config, dtype=dtype)
    _, cache = model.loss_forward(*batch(config, B, T))
    buffers = {id(root(x)): root(x).nbytes for _, x in walk(cache)}
    del buffers[id(root(model.params.flat))]
    assert memory(config, B, T, dtype)["activations"] == sum(buffers.values())


@every_config
def test_parameters_gradients_and_moments(config):
    model = Model(config)
    optimiser, grads = AdamW(model.params), model.params.zeros_like()
    found = memory(config, 1, 1)
    assert found["parameters"] == model.params.flat.nbytes
    assert found["gradients"] == grads.flat.nbytes
    assert found["moments"] == optimiser.m.flat.nbytes + optimiser.v.flat.nbytes
    assert found["peak"] == sum(found.values()) - found["peak"]
    assert budget(config, 1, 1)["flops"]["update_bytes"] == 7 * model.params.flat.nbytes
    double = memory(config, 1, 1, "float64")
    assert double["moments"] == 2 * found["moments"]
    assert double["workspace"] == 2 * found["workspace"]


def second_group(config, B):
    """The bytes of scores that a second core has in hand, or has not yet when the first is done with its own."""
    tile = config.T_max * min(config.T_max, TILE)
    shared = B * config.h * tile > SHARED or config.T_max**2 * config.d_head > BLAS_SHARES
    heads = min(max(1, GROUP // tile), -(-B * config.h // (2 if shared else 1)))
    n = tile + (config.T_max * config.d_head if config.T_max > TILE else 0)  # scores and k of a head
    return ITEMSIZE["float32"] * min(heads, B * config.h - heads) * n


@pytest.mark.parametrize(
    ("config", "B", "rel"),
    [
        (Config(V=64, T_max=128, d=32, h=8, L=2), 2, 0.02),  # attention's T² leads
        (Config(V=64, T_max=400, d=64, h=8, L=2), 2, 0.03),  # attention in tiles
        (Config(V=64, T_max=120, d=128, h=4, L=2), 2, 0.05),  # in one tile a head
        (Config(V=64, T_max=200, d=64, h=8, L=2, causal=False), 2, 0.03),  # in tiles that skip nothing
        (Config(V=65, T_max=64, d=128, h=4, L=3), 8, 0.02),  # the MLP
        (Config(V=20000, T_max=64, d=64, h=4, L=2), 2, 0.02),  # the tied embedding
        (Config(V=20000, T_max=64, d=64, h=4, L=2, tie=False), 2, 0.02),  # the logits
        (
            Config(V=64, T_max=64, d=128, h=4, L=3, norm="post", gelu="exact"),
            8,
            0.04,
        ),  # an array of 4d less where NumPy reuses one
    ],
    ids=["attention", "tiles", "one tile", "tiles, no mask", "mlp", "embedding", "logits", "post-norm"],
)
def test_peak_is_that_of_a_real_step(config, B, rel):
    idx, targets = batch(config, B, config.T_max)
    model = Model(config)
    grads = model.params.zeros_like()
    model.step(idx, targets, grads)  # imports and caches
    found = memory(config, B, config.T_max)
    tracemalloc.start()  # NumPy reports every array to it
    model.step(idx, targets, grads)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    expected = found["activations"] + found["workspace"]
    assert expected * (1 - rel) - second_group(config, B) <= peak <= expected * (1 + rel)


@pytest.mark.parametrize(("T", "B"), [(128, 2), (300, 2), (48, 8)])
def test_peak_without_tiles_as_on_a_gpu(T, B, monkeypatch):
    monkeypatch.setattr(attention, "attend_pair", lambda q: (ops.attend_forward, ops.attend_backward))
    config = Config(V=64, T_max=T, d=32, h=8, L=2)
    idx, targets = batch(config, B, T)
    model = Model(config)
    grads = model.params.zeros_like()
    model.step(idx, targets, grads)
    found = memory(config, B, T, tiled=False)
    tracemalloc.start()
    model.step(idx, targets, grads)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak == pytest.approx(found["activations"] + found["workspace"], rel=0.03)


# Shapes


@every_config
def test_shapes_are_those_of_the_real_model(config):
    B, T = 2, 5
    expected = budget(config, B, T)["tensors"]
    saved = [(tuple(t["shape"]), t["dtype"]) for t in expected if t["memory"] == "saved" for _ in range(t["times"])]
    model = Model(config)
    _, cache = model.loss_forward(*batch(config, B, T))
    parameter_memory = root(model.params.flat)
    real = {id(root(x)): root(x) for _, x in walk(cache) if root(x) is not parameter_memory}
    assert sorted(math.prod(shape) for shape, _ in saved) == sorted(x.size for x in real.values())
    assert sorted(dtype for _, dtype in saved) == sorted(str(x.dtype) for x in real.values())


def test_tensors_are_the_lessons_in_order():
    B, T, config = 2, 5, CONFIGS["lesson"]
    found = tensors(config, B, T)
    shapes = [(t.name, t.letters, t.shape) for t in found]
    d, h, V, L = config.d, config.h, config.V, config.L
    wanted = [
        ("idx", "(B, T)", (B, T)),
        ("tok", "(B, T, d)", (B, T, d)),
        ("pos", "(T, d)", (T, d)),
        ("x", "(B, T, d)", (B, T, d)),
        ("qkv", "(B, T, 3d)", (B, T, 3 * d)),
        ("q", "(B, h, T, d_head)", (B, h, T, d // h)),
        ("k", "(B, h, T, d_head)", (B, h, T, d // h)),
        ("v", "(B, h, T, d_head)", (B, h, T, d // h)),
        ("scores", "(B, h, T, T)", (B, h, T, T)),
        ("attn", "(B, h, T, T)", (B, h, T, T)),
        ("out", "(B, h, T, d_head)", (B, h, T, d // h)),
        ("out", "(B, T, d)", (B, T, d)),
        ("out", "(B, T, d)", (B, T, d)),
        ("x", "(B, T, d)", (B, T, d)),
        ("h1", "(B, T, 4d)", (B, T, 4 * d)),
        ("y", "(B, T, d)", (B, T, d)),
        ("x", "(B, T, d)", (B, T, d)),
        ("logits", "(B, T, V)", (B, T, V)),
        ("loss", "()", ()),
    ]
    rest = iter(shapes)
    assert all(line in rest for line in wanted)  # each after the one before
    assert {t.times for t in found if t.part == "block"} == {L}
    assert {t.times for t in found if t.part != "block"} == {1}
    assert next(t for t in found if t.name == "scores").bytes == B * h * T * T * 4
    assert next(t for t in tensors(config, B, T, "float64") if t.name == "scores").bytes == B * h * T * T * 8


# Parameters


@every_config
def test_parameters_are_the_models(config):
    params = Model(config, seed=None).params
    found = parameters(config)
    assert found["N"] == params.flat.size == config.n_parameters()
    assert found["norms_and_biases"] == params.vectors.size
    size = {name: array.size for name, array in params.items()}
    assert found["emb"] == size["W_te"] + size["W_pe"]
    assert found["attn_per_block"] == size["block.0.W_qkv"] + size["block.0.W_o"]
    assert found["mlp_per_block"] == size["block.0.W_1"] + size["block.0.W_2"]
    assert found["head"] == size.get("W_head", 0)
    assert found["N_lesson"] == found["N"] - found["norms_and_biases"] - found["head"]


@pytest.mark.parametrize(
    ("preset", "N"),
    [("gpt2", 124_439_808), ("gpt2-medium", 354_823_168), ("gpt2-large", 774_030_080), ("gpt2-xl", 1_557_611_200)],
)
def test_published_sizes(preset, N):
    config = Config.preset(preset)
    found = budget(config, 1, 1)
    assert found["parameters"]["N"] == N
    assert [found["flops"]["per_token"][key] for key in ("2N", "4N", "6N")] == [2 * N, 4 * N, 6 * N]
    assert found["parameters"]["N"] == pytest.approx(found["parameters"]["N_lesson"], rel=0.0015)


def test_the_lessons_gpt2_small():
    found = parameters(Config.preset("gpt2"))
    assert found["blocks"] == 12 * 12 * 768**2 == 84_934_656  # ≈ 85M
    assert found["emb"] == (50_257 + 1_024) * 768 == 39_383_808  # ≈ 39M
    assert found["N_lesson"] == 124_318_464  # ≈ 124M


# Attention's T² term


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("percent", [10, 50])
def test_crossover_by_counting(preset, percent):
    config = Config.preset(preset, T_max=100_000)

    def share(T, linears):
        cost = {op.name: op for op in step_ops(config, 1, T)}
        growing = sum(op.times * op.cost.forward for name, op in cost.items() if name in ("scores", "attn", "out"))
        growing -= config.L * config.h * T  # softmax's one FLOP a row
        rows = {"qkv": 3 * config.d, "W_o": config.d, "W_1": 4 * config.d, "W_2": config.d, "head": 0}
        products = sum(op.times * (op.cost.forward - T * rows[n]) for n, op in cost.items() if n in linears)
        return growing / products

    found = crossover(config, percent)
    block = ("qkv", "W_o", "W_1", "W_2")
    for T, linears in ((found["T_block"], block), (found["T"], (*block, "head"))):
        assert share(T, linears) >= percent / 100
        assert T == 1 or share(T - 1, linears) < percent / 100
    assert found["share"] == percent / 100


def test_crossover_is_exact_where_it_divides():
    # A block's linears: 24·4² = 384 a token; a pair: 4·4 + 4·1 = 20. 10% at T = 1.92; 50% at 9.6.
    # With the head, V = 2: 384 + 16 = 400, so 10% at exactly T = 2 and 50% at exactly T = 10.
    config = Config(V=2, T_max=4, d=4, h=1, L=1, scale=False)
    assert [crossover(config, percent) for percent in (10, 50)] == [
        {"share": 0.1, "T": 2, "T_block": 2},
        {"share": 0.5, "T": 10, "T_block": 10},
    ]


@every_config
def test_attention_is_the_sum_of_its_ops(config):
    B, T = 2, 5
    found = attention_flops(config, B, T)
    inside = [op for op in step_ops(config, B, T) if op.name in ("scores", "attn", "out")]
    guards = config.L * B * config.h * T  # softmax's one FLOP a row
    assert found["forward"] == sum(op.times * op.cost.forward for op in inside) - guards
    assert found["backward"] == sum(op.times * op.cost.backward for op in inside)
    dropped = int((~ops.causal_mask(T, np)).sum()) if config.causal else 0
    assert found["masked_forward"] * T * T == found["forward"] * dropped
    assert found["masked_backward"] * T * T == found["backward"] * dropped


# A run


def test_run():
    config, B, T = CONFIGS["lesson"], 2, 5
    found = budget(config, B, T, tokens=1e6, rate=2.0)
    run, step = found["run"], found["flops"]["step"]
    assert run["C"] == 6 * config.n_parameters() * 1e6
    assert run["counted"] == pytest.approx(step / (B * T) * 1e6, rel=1e-14)
    assert run["hours"] == pytest.approx(run["C"] / 2e9 / 3600, rel=1e-14)
    assert run["hours_counted"] == pytest.approx(run["counted"] / 2e9 / 3600, rel=1e-14)
    assert run["step_seconds"] == pytest.approx(step / 2e9, rel=1e-14)
    assert set(budget(config, B, T)["run"].values()) == {None}
    assert budget(config, B, T, tokens=10)["run"]["hours"] is None
    assert budget(config, B, T, rate=1)["run"]["step_seconds"] == pytest.approx(step / 1e9, rel=1e-14)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"B": 0}, ["B", "0"]),
        ({"B": 1.5}, ["B", "1.5"]),
        ({"T": True}, ["T", "True"]),
        ({"T": 8}, ["T = 8", "T_max = 7"]),
        ({"dtype": "float16"}, ["dtype", "float16"]),
        ({"tokens": -1.0}, ["tokens", "-1.0"]),
        ({"tokens": math.inf}, ["tokens", "inf"]),
        ({"tokens": 0.4}, ["tokens must be a number from 1 to 1e+36, got 0.4"]),
        ({"tokens": 1e300, "rate": 1e-300}, ["tokens", "1e+300"]),
        ({"rate": 1e-300}, ["rate must be a number from 1e-09 to 1e+36, got 1e-300"]),
        ({"rate": 0.0}, ["rate", "0.0"]),
        ({"rate": math.nan}, ["rate", "nan"]),
    ],
)
def test_mistakes(changes, words):
    with pytest.raises(ValueError) as error:
        budget(CONFIGS["lesson"], **{"B": 1, "T": 4, **changes})
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("number", [int, np.int16, np.int32, np.int64])
def test_numbers_of_numpy_are_counted_in_pythons(number):
    config = Config.preset("gpt2")
    found = budget(config, number(4), number(1024), tokens=number(9999), rate=np.float32(150))
    assert found == budget(config, 4, 1024, tokens=9999, rate=150)
    json.dumps(found)


@pytest.mark.parametrize("T", [1, 127, 128, 129, 1000, 10**24])
def test_kept_pairs_are_those_of_the_tiles(T):
    config = Config(T_max=T)
    if T < 10**6:
        assert kept_pairs(config, T) == sum(
            min(start + TILE, T) for start in range(0, T, TILE) for _ in range(start, min(start + TILE, T))
        )
    assert T * T < 2 * kept_pairs(config, T) <= 2 * T * T
    assert kept_pairs(Config(T_max=T, causal=False), T) == T * T


@pytest.mark.parametrize("name", ["V", "T_max", "d", "L", "B"])
def test_sizes_without_end_are_refused(name):
    sizes = {"V": 2, "T_max": 2, "d": 2, "L": 2, "B": 2, name: 10**400}
    B = sizes.pop("B")
    with pytest.raises(ValueError, match=rf"^{name} must be at most 1e\+36, got a number of 401 digits$"):
        budget(Config(h=1, **sizes), B, 2)
    sizes[name] = B = 10**36
    sizes.pop("B", None)
    json.dumps(budget(Config(h=1, **sizes), B, 2, tokens=1e36, rate=1e-9), allow_nan=False)


@pytest.mark.parametrize(("d", "h", "nearest"), [(768, 11, 12), (6, 4, 3), (7, 100, 7), (10**21 + 1, 6, 7), (8, 7, 8)])
def test_the_nearest_heads(d, h, nearest):
    with pytest.raises(ValueError, match=rf"the nearest h that divides it is {nearest}$"):
        Config(d=d, h=h)


def test_heads_that_do_not_divide_name_the_nearest():
    with pytest.raises(ValueError, match="nearest h that divides it is 12"):
        Config(d=768, h=11)


# All together


@every_config
def test_json_adds_up(config):
    found = budget(config, 2, 5)
    flops, listed = found["flops"], found["flops"]["ops"]
    assert flops["bytes"] == sum(op["times"] * (op["bytes_forward"] + op["bytes_backward"]) for op in listed)
    assert flops["intensity"] == flops["step"] / flops["bytes"]
    for op in listed:
        assert op["intensity_backward"] == op["backward"] / op["bytes_backward"]
    doubled = budget(config, 2, 5, "float64")["flops"]
    assert doubled["bytes"] == 2 * flops["bytes"]
    assert doubled["step"] == flops["step"]


def test_tiles_are_those_of_the_op():
    assert TILE == attend_tiled.TILE
    assert GROUP == attend_tiled.GROUP
    config = Config(V=7, T_max=300, d=4, h=2, L=1)
    q = np.random.default_rng(0).normal(size=(2, 300, 2))  # (h, T, d_head)
    for T in (300, TILE):
        _, (*_, tiles, _) = attend_tiled_forward(q[:, :T], q[:, :T], q[:, :T])
        assert 2 * kept_pairs(config, T) == sum(attn.size for _, group in tiles for *_, attn in group)
