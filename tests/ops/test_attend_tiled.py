"""The tiled attention gives what attention.py's gives, whatever the tiles."""

import numpy as np
import pytest
from helpers import (
    Op,
    assert_close,
    check_contract,
    check_gradients,
    check_layout,
    layouts,
    random_array,
    seeds,
    upstream,
)
from hypothesis import given
from hypothesis import strategies as st

from numpy_gpt.ops import (
    attend_backward,
    attend_forward,
    attend_tiled,
    attention,
    attention_backward,
    attention_forward,
)
from numpy_gpt.ops.attend_tiled import GROUP, TILE, attend_tiled_backward, attend_tiled_forward, head_groups
from numpy_gpt.ops.attention import attend_pair, attention_weights

switches = st.booleans()
leading = st.lists(st.integers(1, 2), max_size=2).map(tuple)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(attend_tiled, "TILE", 4)
    monkeypatch.setattr(attend_tiled, "GROUP", 60)


def heads(rng, shape, dtype="float64"):
    """q, k, v (..., h, T, d_head)."""
    return tuple(random_array(rng, shape, dtype) for _ in range(3))


def tiled(causal=True, scale=True):
    return Op(lambda *inputs: attend_tiled_forward(*inputs, causal, scale), attend_tiled_backward, ("q", "k", "v"))


@given(leading, st.integers(1, 2), st.integers(1, 13), st.integers(1, 3), switches, switches, seeds)
def test_equals_the_op_that_a_student_reads(B, h, T, d_head, causal, scale, seed):
    rng = np.random.default_rng(seed)
    q, k, v = heads(rng, (*B, h, T, d_head))
    out, cache = attend_forward(q, k, v, causal, scale)
    tiled_out, tiled_cache = attend_tiled_forward(q, k, v, causal, scale)
    assert_close("out", tiled_out, out, rtol=1e-12, atol=1e-13)
    dout = upstream(rng, out)
    gradients = zip("qkv", attend_tiled_backward(dout, tiled_cache), attend_backward(dout, cache))
    for name, tiled_gradient, gradient in gradients:
        assert_close(f"d{name}", tiled_gradient, gradient, rtol=1e-12, atol=1e-12)


@given(st.integers(1, 9), switches, switches, seeds)
def test_gradient_against_central_differences(T, causal, scale, seed):
    rng = np.random.default_rng(seed)
    check_gradients(tiled(causal, scale), heads(rng, (2, T, 2)), rng, rtol=1e-7, atol=1e-8)


@given(st.sampled_from(["float32", "float64", "complex128"]), seeds)
def test_contract(dtype, seed):
    rng = np.random.default_rng(seed)
    check_contract(tiled(), heads(rng, (2, 2, 9, 3), dtype), rng)


@given(st.lists(layouts, min_size=4, max_size=4), seeds)
def test_memory_layout_is_no_matter(chosen, seed):
    rng = np.random.default_rng(seed)
    check_layout(tiled(), heads(rng, (2, 9, 3)), chosen, rng)


@pytest.mark.parametrize("shape", [(9, 6), (3, 9, 6), (2, 1, 9, 6)])
def test_attention_weights_are_the_ops(shape, monkeypatch):
    rng = np.random.default_rng(0)
    x = random_array(rng, shape, "float64")
    weights = tuple(random_array(rng, size, "float64") for size in ((6, 18), (18,), (6, 6), (6,)))
    _, cache = attention_forward(x, *weights, 2)
    attn = attention_weights(cache)
    monkeypatch.setattr(attention, "attend_pair", lambda q: (attend_forward, attend_backward))
    _, cache = attention_forward(x, *weights, 2)
    assert attn.shape == (*shape[:-2], 2, 9, 9)
    assert_close("attn", attn, attention_weights(cache), rtol=1e-12, atol=1e-15)


def test_a_masked_score_is_never_computed():
    """A key that is nan reaches no query before it."""
    rng = np.random.default_rng(0)
    q, k, v = heads(rng, (1, 12, 2))
    out, _ = attend_tiled_forward(q, k, v)
    k[:, 8:], v[:, 8:] = np.nan, np.nan
    spoilt, _ = attend_tiled_forward(q, k, v)
    assert spoilt[:, :8].tobytes() == out[:, :8].tobytes()


def test_one_head_alone():
    rng = np.random.default_rng(6)
    q, k, v, dout = random_array(rng, (4, 9, 3))
    out, cache = attend_tiled_forward(q, k, v)
    expected, expected_cache = attend_forward(q, k, v)
    assert_close("out", out, expected, 1e-13)
    for found, wanted in zip(attend_tiled_backward(dout, cache), attend_backward(dout, expected_cache), strict=True):
        assert_close("gradient", found, wanted, 1e-13)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_bad_inputs_are_refused_by_name_as_by_the_plain_op(number):
    shape, name = (2, 3, 5, 4), "qkv"[number]
    for bad, error, message in (
        (np.ones((1, 3, 5, 4)), ValueError, "has shape .*, but q .* expects"),  # would broadcast
        (np.ones(shape, int), ValueError, f"{name} must be floating-point, got dtype int64"),
        (np.ones(shape, "float32"), ValueError, "float.*: an op has one precision"),
        ([1.0], TypeError, "expected a NumPy or CuPy array, got list"),
    ):
        inputs = [np.ones(shape) for _ in range(3)]
        inputs[number] = bad
        for forward in (attend_forward, attend_tiled_forward):
            with pytest.raises(error, match=message):
                forward(*inputs)


def test_attention_takes_tiles_on_a_cpu(strict):
    q = np.ones((1, 3, 2))
    assert attend_pair(q) == (attend_tiled_forward, attend_tiled_backward)
    assert attend_pair(strict.asarray(q)) == (attend_forward, attend_backward)


@given(st.integers(0, 4), st.integers(1, 5), st.integers(1, 13), st.sampled_from([1, 40, 200, 5000]))
def test_groups_cover_every_head_once(B, h, T, group):
    """Groups are of whole sequences or of one sequence's heads, and within GROUP where a head is."""
    q = np.zeros((B, h, T, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attend_tiled, "GROUP", group)
        groups = head_groups(q)
    for found in groups:
        q[found] += 1
        assert q[found].shape[0] * q[found].shape[1] <= max(1, group // (T * min(T, attend_tiled.TILE)))
    assert (q == 1).all()


@pytest.mark.parametrize(("cores", "n_groups"), [(1, 1), (2, 2), (4, 4)])
def test_what_blas_would_share_is_cut_for_every_core(cores, n_groups, monkeypatch):
    monkeypatch.setattr(attend_tiled, "TILE", TILE)
    monkeypatch.setattr(attend_tiled, "GROUP", GROUP)
    monkeypatch.setattr(attend_tiled, "spare_cores", lambda: cores)
    assert len(head_groups(np.zeros((1, 4, 64, 64)))) == 1  # M·K·N = 2**18: BLAS leaves it to one thread
    assert len(head_groups(np.zeros((1, 4, 64, 65)))) == n_groups


@pytest.mark.parametrize(("cores", "n_groups"), [(1, 1), (2, 2), (4, 4)])
def test_many_scores_are_cut_for_every_core(cores, n_groups, monkeypatch):
    monkeypatch.setattr(attend_tiled, "TILE", TILE)
    monkeypatch.setattr(attend_tiled, "GROUP", GROUP)
    monkeypatch.setattr(attend_tiled, "spare_cores", lambda: cores)
    assert len(head_groups(np.zeros((4, 8, 64, 2)))) == 1  # 2**17 scores in all
    assert len(head_groups(np.zeros((4, 12, 64, 2)))) == n_groups


def test_attention_whole_on_both_sides_of_a_tile():
    """The first TILE positions do not change when one more, masked from them, calls for a second tile."""
    rng = np.random.default_rng(0)
    d, T = 6, TILE + 1
    x = random_array(rng, (2, T, d), "float64")
    weights = tuple(random_array(rng, shape, "float64") for shape in ((d, 3 * d), (3 * d,), (d, d), (d,)))
    long, cache = attention_forward(x, *weights, 2)
    short, short_cache = attention_forward(x[:, :TILE], *weights, 2)
    assert_close("out", long[:, :TILE], short, rtol=1e-12, atol=1e-12)
    dout = upstream(rng, long)
    dout[:, TILE:] = 0  # the last position, unheard, leaves the gradients as they are without it
    dx, *gradients = attention_backward(dout, cache)
    short_dx, *short_gradients = attention_backward(dout[:, :TILE], short_cache)
    assert_close("dx", dx[:, :TILE], short_dx, rtol=1e-11, atol=1e-11)
    assert not dx[:, TILE:].any()
    for name, gradient, short_gradient in zip(("dW_qkv", "db_qkv", "dW_o", "db_o"), gradients, short_gradients):
        assert_close(name, gradient, short_gradient, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("causal", [True, False])
def test_scores_beyond_every_float_are_as_in_the_plain_op(dtype, causal):
    q, k, v, dout = random_array(np.random.default_rng(7), (4, 2, 9, 3), dtype)
    largest = float(np.finfo(dtype).max) ** 0.5
    q[0, 2], k[0] = 4 * largest, -4 * largest  # a query of the first head that sees −inf alone
    with np.errstate(over="ignore", invalid="ignore"):
        (out, cache), (expected, plain) = (f(q, k, v, causal) for f in (attend_tiled_forward, attend_forward))
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
        assert not out[0, 2].any()
        for found, wanted in zip(attend_tiled_backward(dout, cache), attend_backward(dout, plain), strict=True):
            assert np.isfinite(found[1]).all()
            np.testing.assert_allclose(found[1], wanted[1], rtol=1e-4, atol=1e-5)


def test_no_position_at_all():
    q = np.zeros((2, 3, 0, 4))
    out, cache = attend_tiled_forward(q, q, q)
    assert out.shape == q.shape
    assert [t.shape for t in attend_tiled_backward(out, cache)] == 3 * [q.shape]
