import re

import numpy as np
import pytest
from helpers import random_array

from numpy_gpt import ops
from numpy_gpt.ops.checks import check_features, check_floating, check_ids, check_mask, check_shape


def test_good_ids_pass(xp):
    check_ids(xp.asarray([[0, 4], [2, 3]]), 5, "idx")
    check_ids(xp.asarray([[0, -100], [2, 3]]), 5, "targets", ignore_index=-100)
    check_ids(xp.zeros((2, 0), dtype="int64"), 5, "idx")


@pytest.mark.parametrize(
    ("ids", "place", "value"),
    [([[0, 4], [5, -1]], "1, 0", 5), ([[-1, 9]], "0, 0", -1), ([[[0, 1], [2, 99]]], "0, 1, 1", 99)],
)
def test_the_first_bad_id_is_named(xp, ids, place, value):
    with pytest.raises(ValueError, match=rf"^idx\[{place}\] is {value}; ids must lie in 0 <= id < V = 5$"):
        check_ids(xp.asarray(ids), 5, "idx")


def test_ignore_index_is_allowed_only_where_given(xp):
    with pytest.raises(ValueError, match=r"idx\[0\] is -100"):
        check_ids(xp.asarray([-100, 0]), 5, "idx")
    with pytest.raises(ValueError, match=r"targets\[1\] is -4"):
        check_ids(xp.asarray([-100, -4]), 5, "targets", ignore_index=-100)


def test_position_is_the_shape_s_own_whatever_the_strides():
    ids = np.zeros((3, 4), int)
    ids[2, 1] = 8
    for layout in (ids, np.asfortranarray(ids), ids[::-1].copy()[::-1]):
        with pytest.raises(ValueError, match=r"idx\[2, 1\] is 8"):
            check_ids(layout, 5, "idx")


@pytest.mark.parametrize("dtype", ["float32", "float64", "bool", "complex128"])
def test_ids_of_another_kind_are_refused(xp, dtype):
    with pytest.raises(ValueError, match=f"idx must be integers, got dtype {dtype}"):
        check_ids(xp.zeros(3, dtype=dtype), 5, "idx")


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int8"])
def test_narrow_ids_meet_a_wide_vocabulary(xp, dtype):
    check_ids(xp.asarray(np.arange(5, dtype=dtype)), 100_000, "idx", ignore_index=-100)


@pytest.mark.parametrize("value", [2**64 - 1, 2**64 - 100])  # −1 and −100, wrapped
def test_huge_unsigned_ids_do_not_wrap(value):
    with pytest.raises(ValueError, match=rf"^targets\[1\] is {value}; ids must lie in"):
        check_ids(np.array([0, value], np.uint64), 5, "targets", ignore_index=-100)


def test_check_features(xp):
    check_features(xp.ones((2, 3)), 3, "x", "W")
    with pytest.raises(ValueError, match=r"^x has shape \(2, 3\), but W expects its last axis to be 2$"):
        check_features(xp.ones((2, 3)), 2, "x", "W")
    with pytest.raises(ValueError, match=r"x has shape \(\)"):
        check_features(xp.ones(()), 1, "x", "W")


def test_check_floating(xp):
    for real, complex_ in (("float32", "complex64"), ("float64", "complex128")):
        check_floating(x=xp.ones(2, dtype=real), W=xp.ones(2, dtype=complex_), b=xp.ones(2, dtype=real))
    for other in ("float64", "complex128"):
        with pytest.raises(ValueError, match=rf"^x is float32, but W {other}: an op has one precision$"):
            check_floating(x=xp.ones(2, dtype="float32"), W=xp.ones(2, dtype=other))
    with pytest.raises(ValueError, match=r"^W must be floating-point, got dtype int64$"):
        check_floating(x=xp.ones(2), W=xp.ones(2, dtype="int64"))
    with pytest.raises(TypeError, match=r"^expected a NumPy or CuPy array, got list: \[1.0\]$"):
        check_floating(x=[1.0])


def test_check_shape(xp):
    check_shape(xp.ones((2, 3)), (2, 3), "W", "d = 2")
    with pytest.raises(ValueError, match=r"^b has shape \(1,\), but W \(2, 3\) expects \(3,\)$"):
        check_shape(xp.ones(1), (3,), "b", "W (2, 3)")


@pytest.mark.parametrize("shape", [(), (4,), (3, 4), (1, 4), (3, 1), (2, 3, 4), (2, 1, 1)])
def test_masks_that_broadcast_pass(xp, shape):
    check_mask(xp.ones(shape, dtype=bool), xp.ones((2, 3, 4)))


@pytest.mark.parametrize("shape", [(3,), (4, 4), (2, 4), (5, 2, 3, 4), (1, 2, 3, 4), (3, 3, 4)])
def test_masks_of_another_shape_are_refused(xp, shape):
    with pytest.raises(ValueError, match=r"^mask has shape .*, which does not broadcast to the scores' \(2, 3, 4\)$"):
        ops.softmax_forward(xp.ones((2, 3, 4)), xp.ones(shape, dtype=bool))


def test_an_additive_mask_is_refused(xp):
    mask = xp.where(ops.causal_mask(3, xp), 0.0, -np.inf)
    with pytest.raises(ValueError, match=r"^mask must be boolean \(True keeps\), got dtype float64$"):
        ops.softmax_forward(xp.ones((3, 3)), mask)


FORWARDS = {
    "embedding_forward": ("ids (2, 3)", (7, 4), (5, 4)),
    "layernorm_forward": ((2, 3, 4), (4,), (4,)),
    "linear_forward": ((2, 3, 4), (4, 5), (5,)),
    "qkv_forward": ((2, 3, 4), (4, 12), (12,), 2),
    "attend_forward": ((2, 2, 3, 2), (2, 2, 3, 2), (2, 2, 3, 2)),
    "attention_forward": ((2, 3, 4), (4, 12), (12,), (4, 4), (4,), 2),
    "softmax_forward": ((2, 3, 4),),
    "gelu_forward": ((2, 3, 4),),
    "gelu_exact_forward": ((2, 3, 4),),
    "mlp_forward": ((2, 3, 4), (4, 16), (16,), (16, 4), (4,)),
    "head_forward": ((2, 3, 4), (7, 4)),
    "cross_entropy_forward": ((2, 3, 7), "ids (2, 3)"),
}


def inputs_of(name):
    rng = np.random.default_rng(0)
    return [
        x if isinstance(x, int) else rng.integers(0, 5, (2, 3)) if isinstance(x, str) else random_array(rng, x)
        for x in FORWARDS[name]
    ]


def places(name):
    return [number for number, x in enumerate(FORWARDS[name]) if not isinstance(x, int)]


EVERY_INPUT = [(name, number) for name in FORWARDS for number in places(name)]


@pytest.mark.parametrize(("name", "number"), EVERY_INPUT)
def test_every_op_refuses_lists(name, number):
    inputs = inputs_of(name)
    getattr(ops, name)(*inputs)
    inputs[number] = inputs[number].tolist()
    with pytest.raises(TypeError, match="expected a NumPy or CuPy array, got list"):
        getattr(ops, name)(*inputs)


@pytest.mark.parametrize(("name", "number"), EVERY_INPUT)
def test_every_op_refuses_numbers_of_the_wrong_kind(name, number):
    inputs = inputs_of(name)
    ids = inputs[number].dtype.kind == "i"
    inputs[number] = inputs[number].astype("float64" if ids else "int64")
    with pytest.raises(ValueError, match="must be integers, got" if ids else "must be floating-point, got dtype int64"):
        getattr(ops, name)(*inputs)


@pytest.mark.parametrize(
    ("name", "number", "shape", "message"),
    [
        ("linear_forward", 2, (1,), r"^b has shape \(1,\), but W \(4, 5\) expects \(5,\)$"),
        ("layernorm_forward", 2, (1,), r"^beta has shape \(1,\), but gamma \(4,\) expects \(4,\)$"),
        ("qkv_forward", 1, (4, 24), r"^W_qkv has shape \(4, 24\), but d = 4 expects \(4, 12\)$"),
        ("qkv_forward", 2, (4,), r"^b has shape \(4,\), but W \(4, 12\) expects \(12,\)$"),
        ("attend_forward", 1, (2, 2, 1, 2), r"^k has shape \(2, 2, 1, 2\), but q \(2, 2, 3, 2\) expects"),
        ("qkv_forward", 1, (4,), r"^W_qkv must be \(d, 3d\), got shape \(4,\)$"),
        ("attend_forward", 0, (2,), r"^q must be \(\.\.\., T, d_head\), got shape \(2,\)$"),
        ("attention_forward", 3, (4, 7), r"^W_o has shape \(4, 7\), but W_qkv \(4, 12\) expects \(4, 4\)$"),
        ("mlp_forward", 4, (1,), r"^b has shape \(1,\)"),
        ("embedding_forward", 1, (7,), r"^W_te must be \(V, d\), got shape \(7,\)$"),
        ("embedding_forward", 2, (5, 4, 1), r"^W_pe must be \(T_max, d\), got shape \(5, 4, 1\)$"),
        ("embedding_forward", 2, (5, 1), r"^W_pe has shape \(5, 1\), but W_te \(7, 4\) expects \(5, 4\)$"),
        ("layernorm_forward", 1, (4, 4), r"^gamma must be \(d\), got shape \(4, 4\)$"),
        ("layernorm_forward", 1, (), r"^gamma must be \(d\), got shape \(\)$"),
        ("linear_forward", 1, (4,), r"^W must be \(n_in, n_out\), got shape \(4,\)$"),
        ("head_forward", 1, (4,), r"^W_te must be \(V, d\), got shape \(4,\)$"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(name, number, shape, message):
    inputs = inputs_of(name)
    inputs[number] = np.ones(shape)
    with pytest.raises(ValueError, match=message):
        getattr(ops, name)(*inputs)


@pytest.mark.parametrize("h", [0, -2, 3])
def test_heads_that_do_not_divide_d_are_refused(h):
    x, W_qkv, b_qkv, _ = inputs_of("qkv_forward")
    with pytest.raises(ValueError, match=f"W_qkv has d = 4, which h = {h} heads do not divide"):
        ops.qkv_forward(x, W_qkv, b_qkv, h)


def test_split_heads_names_the_heads_that_do_not_divide_d():
    with pytest.raises(ValueError, match=r"^an array \(2, 3, 4\) has d = 4, which h = 3 heads do not divide$"):
        ops.split_heads(np.ones((2, 3, 4)), 3)


FLOATING = {name: [n for n in places(name) if not isinstance(FORWARDS[name][n], str)] for name in FORWARDS}


@pytest.mark.parametrize(("name", "number"), [(name, n) for name, ns in FLOATING.items() for n in ns if len(ns) > 1])
def test_every_op_refuses_two_precisions(name, number):
    inputs = inputs_of(name)
    inputs[number] = inputs[number].astype("float32")
    with pytest.raises(ValueError, match=r"float.*: an op has one precision"):
        getattr(ops, name)(*inputs)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0)])
def test_ids_without_a_position_are_refused(shape):
    with pytest.raises(
        ValueError, match=rf"^idx must be \(\.\.\., T\) with T >= 1, got shape {re.escape(str(shape))}$"
    ):
        ops.embedding_forward(np.zeros(shape, int), np.ones((7, 4)), np.ones((5, 4)))


def test_no_row_at_all_is_an_empty_batch():
    x, cache = ops.embedding_forward(np.zeros((0, 3), int), np.ones((7, 4)), np.ones((5, 4)))
    assert x.shape == (0, 3, 4)
    assert not any(gradient.any() for gradient in ops.embedding_backward(x, cache))


def test_another_gelu_is_refused():
    with pytest.raises(ValueError, match=r"^gelu must be one of tanh, exact, got 'relu'$"):
        ops.mlp_forward(*inputs_of("mlp_forward"), gelu="relu")
