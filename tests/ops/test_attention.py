import numpy as np
import pytest
from helpers import (
    Op,
    check_complex_step,
    check_contract,
    check_device,
    check_gradients,
    check_layout,
    check_out,
    layouts,
    random_array,
    seeds,
)
from hypothesis import given
from hypothesis import strategies as st

from numpy_gpt.backend import to_numpy
from numpy_gpt.ops import (
    attend_backward,
    attend_forward,
    attention_backward,
    attention_forward,
    causal_mask,
    merge_heads,
    qkv_backward,
    qkv_forward,
    split_heads,
)

dtypes = st.sampled_from(["float32", "float64", "complex128"])
sides = st.integers(1, 3)
leading = st.lists(st.integers(1, 2), max_size=2).map(tuple)  # ranks 2 to 4
switches = st.booleans()


def attention(h, causal=True, scale=True):
    return Op(
        lambda *inputs: attention_forward(*inputs, h, causal, scale),
        attention_backward,
        ("x", "W_qkv", "b_qkv", "W_o", "b_o"),
    )


def qkv(h):
    return Op(lambda *inputs: qkv_forward(*inputs, h), qkv_backward, ("x", "W_qkv", "b_qkv"))


def attend(causal=True, scale=True):
    return Op(lambda *inputs: attend_forward(*inputs, causal, scale), attend_backward, ("q", "k", "v"))


def inputs(rng, shape, dtype="float64"):
    """x (..., T, d) and the four parameters of attention; the first three are qkv's."""
    d = shape[-1]
    parts = (shape, (d, 3 * d), (3 * d,), (d, d), (d,))
    return tuple(random_array(rng, part, dtype) for part in parts)


def heads(rng, shape, dtype="float64"):
    """q, k, v (..., h, T, d_head)."""
    return tuple(random_array(rng, shape, dtype) for _ in range(3))


@given(B=leading, T=sides, h=st.integers(1, 2), d_head=st.integers(1, 2), causal=switches, scale=switches, seed=seeds)
def test_gradient_against_central_differences(B, T, h, d_head, causal, scale, seed):
    rng = np.random.default_rng(seed)
    dtype = rng.choice(["float64", "complex128"])
    check_gradients(attention(h, causal, scale), inputs(rng, (*B, T, h * d_head), dtype), rng, rtol=1e-7, atol=1e-8)


@given(B=leading, T=sides, h=st.integers(1, 2), d_head=st.integers(1, 2), causal=switches, scale=switches, seed=seeds)
def test_gradient_against_the_complex_step(B, T, h, d_head, causal, scale, seed):
    rng = np.random.default_rng(seed)
    check_complex_step(attention(h, causal, scale), inputs(rng, (*B, T, h * d_head)), rng)


@given(B=leading, T=sides, h=sides, d_head=sides, seed=seeds)
def test_gradients_of_the_parts(B, T, h, d_head, seed):
    rng = np.random.default_rng(seed)
    check_gradients(qkv(h), inputs(rng, (*B, T, h * d_head))[:3], rng)
    check_complex_step(qkv(h), inputs(rng, (*B, T, h * d_head))[:3], rng)
    for causal in (True, False):
        for scale in (True, False):
            op = attend(causal, scale)
            check_complex_step(op, heads(rng, (*B, h, T, d_head)), rng)
            check_gradients(op, heads(rng, (*B, h, T, d_head)), rng, rtol=1e-7, atol=1e-8)


@given(B=leading, T=sides, h=sides, d_head=sides, dtype=dtypes, causal=switches, scale=switches, seed=seeds)
def test_contract(B, T, h, d_head, dtype, causal, scale, seed):
    rng = np.random.default_rng(seed)
    check_contract(attention(h, causal, scale), inputs(rng, (*B, T, h * d_head), dtype), rng)
    check_contract(qkv(h), inputs(rng, (*B, T, h * d_head), dtype)[:3], rng)
    check_contract(attend(causal, scale), heads(rng, (*B, h, T, d_head), dtype), rng)


@given(B=leading, T=sides, h=sides, d_head=sides, chosen=st.lists(layouts, min_size=6, max_size=6), seed=seeds)
def test_memory_layout_is_no_matter(B, T, h, d_head, chosen, seed):
    rng = np.random.default_rng(seed)
    check_layout(attention(h), inputs(rng, (*B, T, h * d_head)), chosen, rng)
    check_layout(qkv(h), inputs(rng, (*B, T, h * d_head))[:3], chosen[:4], rng)
    check_layout(attend(), heads(rng, (*B, h, T, d_head)), chosen[:4], rng)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("scale", [True, False])
def test_device(xp, dtype, causal, scale):
    rng = np.random.default_rng(0)
    check_device(xp, attention(2, causal, scale), inputs(rng, (2, 5, 4), dtype), rng)
    check_device(xp, attend(causal, scale), heads(rng, (2, 2, 5, 3), dtype), rng)
    check_device(xp, qkv(2), inputs(rng, (2, 5, 4), dtype)[:3], rng)


@given(B=leading, T=sides, h=sides, d_head=sides, dtype=st.sampled_from(["float32", "float64"]), seed=seeds)
def test_out_gives_the_same_bits(B, T, h, d_head, dtype, seed):
    rng = np.random.default_rng(seed)
    check_out(attention_backward, attention(h), inputs(rng, (*B, T, h * d_head), dtype), rng, first=1)
    check_out(qkv_backward, qkv(h), inputs(rng, (*B, T, h * d_head), dtype)[:3], rng, first=1)


def naive_attention(x, W_qkv, b_qkv, W_o, b_o, h, causal, scale):
    """One sequence, one head, one position after another, from the lesson's words."""
    T, d = x.shape
    d_head = d // h
    merged = np.zeros((T, d))
    for head in range(h):
        columns = [slice(part * d + head * d_head, part * d + (head + 1) * d_head) for part in range(3)]
        q, k, v = (x @ W_qkv[:, column] + b_qkv[column] for column in columns)
        for t in range(T):
            seen = range(t + 1) if causal else range(T)
            weights = np.exp([q[t] @ k[j] / (d_head**0.5 if scale else 1) for j in seen])
            merged[t, head * d_head : (head + 1) * d_head] = (weights / weights.sum()) @ v[list(seen)]
    return merged @ W_o + b_o


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("scale", [True, False])
def test_against_the_naive_loop(causal, scale):
    rng = np.random.default_rng(0)
    x, *parameters = inputs(rng, (2, 5, 6))
    y, _ = attention_forward(x, *parameters, 3, causal, scale)
    for b in range(2):
        np.testing.assert_allclose(y[b], naive_attention(x[b], *parameters, 3, causal, scale), rtol=1e-11, atol=1e-12)


def test_split_heads_is_a_view_and_merge_heads_its_inverse():
    x = np.arange(24.0).reshape(2, 3, 4)
    split = split_heads(x, 2)
    assert np.shares_memory(split, x)
    assert split.shape == (2, 2, 3, 2)
    np.testing.assert_array_equal(split[1, 0, 2], x[1, 2, :2])  # head 0 has the first features, not every second
    np.testing.assert_array_equal(split[1, 1, 2], x[1, 2, 2:])
    np.testing.assert_array_equal(merge_heads(split), x)


def test_causal_mask(xp):
    mask = causal_mask(3, xp)
    assert mask.dtype == bool
    np.testing.assert_array_equal(to_numpy(mask), [[1, 0, 0], [1, 1, 0], [1, 1, 1]])


def test_masked_attention_is_exactly_zero():
    rng = np.random.default_rng(0)
    _, (_, _, _, attn, *_) = attend_forward(*heads(rng, (2, 2, 6, 3), "float32"))
    above = ~np.tri(6, dtype=bool)
    assert not attn[..., above].any()
    assert (attn[..., ~above] > 0).all()
    np.testing.assert_allclose(attn.sum(axis=-1), 1, rtol=1e-6)


@pytest.mark.parametrize("t", range(5))
def test_no_gradient_reaches_a_later_position(t):
    """∂out_t/∂x_s = 0 exactly for s > t, and not for s ≤ t."""
    rng = np.random.default_rng(0)
    x, *parameters = inputs(rng, (2, 5, 4))
    y, cache = attention_forward(x, *parameters, 2)
    dy = np.zeros_like(y)
    dy[:, t] = random_array(rng, (2, 4))
    dx, *_ = attention_backward(dy, cache)
    assert not dx[:, t + 1 :].any()
    assert (dx[:, : t + 1] != 0).all()


def test_editing_a_later_position_leaves_earlier_outputs_bit_identical():
    rng = np.random.default_rng(0)
    x, *parameters = inputs(rng, (2, 5, 4), "float32")
    y, _ = attention_forward(x, *parameters, 2)
    x[:, 3] = 1e3
    edited, _ = attention_forward(x, *parameters, 2)
    assert y[:, :3].tobytes() == edited[:, :3].tobytes()
    assert (y[:, 3:] != edited[:, 3:]).any()
    bidirectional, _ = attention_forward(x, *parameters, 2, causal=False)
    assert (bidirectional[:, 0] != edited[:, 0]).any()


@pytest.mark.parametrize("causal", [True, False])
def test_the_k_third_of_db_qkv_is_zero(causal):
    """One vector added to every key shifts each row of scores by a constant, which softmax does not see."""
    rng = np.random.default_rng(0)
    x, *parameters = inputs(rng, (2, 5, 6))
    y, cache = attention_forward(x, *parameters, 3, causal)
    _, _, db_qkv, _, _ = attention_backward(random_array(rng, y.shape), cache)
    dq, dk, dv = np.abs(db_qkv).reshape(3, 6)
    assert dk.max() < 1e-13 * max(dq.max(), dv.max())
    assert dq.min() > 1e-4
    assert dv.min() > 1e-4


def test_scale_keeps_the_scores_variance_at_1():
    """Lesson §2: unscaled, random scores have standard deviation √d_head = 8."""
    q, k, v = heads(np.random.default_rng(0), (1, 1, 300, 64))
    assert (q @ k.swapaxes(-2, -1)).std() == pytest.approx(8, rel=0.02)
    scaled, _ = attend_forward(q, k, v)
    by_hand, _ = attend_forward(q / 8, k, v, scale=False)
    np.testing.assert_allclose(scaled, by_hand, rtol=1e-9, atol=1e-12)


def test_shapes_that_do_not_fit_are_errors(xp):
    x, W_qkv, b_qkv, W_o, b_o = (xp.asarray(part) for part in inputs(np.random.default_rng(0), (2, 3, 4)))
    with pytest.raises(ValueError, match="W_qkv has d = 4, which h = 3 heads do not divide"):
        attention_forward(x, W_qkv, b_qkv, W_o, b_o, 3)
    with pytest.raises(ValueError, match=r"x has shape \(2, 3, 2\), but W \(4, 12\) expects its last axis to be 4"):
        attention_forward(x[..., :2], W_qkv, b_qkv, W_o, b_o, 2)
