from itertools import product

import numpy as np
import pytest
from helpers import assert_close, random_array, seeds, snapshot
from hypothesis import given
from hypothesis import strategies as st

from numpy_gpt import Config, Model, kv_cache
from numpy_gpt.kv_cache import KVCache, attend_to_past, last_logits
from numpy_gpt.ops import attend_forward, layernorm_forward, linear_forward, mlp_forward

TOLERANCE = {"float32": 1e-5, "float64": 1e-12}
SWITCHES = dict(norm=("pre", "post"), tie=(True, False), gelu=("tanh", "exact"), scale=(True, False))
ALL_SWITCHES = [dict(zip(SWITCHES, values)) for values in product(*SWITCHES.values())]
V, T_MAX = 13, 12


def random_model(dtype="float64", xp=np, **changes):
    """A model with no zero bias and no unit gamma to hide a bug behind."""
    model = Model(Config(**{**dict(V=V, T_max=T_MAX, d=12, h=3, L=2), **changes}), seed=None, dtype=dtype, xp=xp)
    rng = np.random.default_rng(0)
    for name, p in model.params.items():
        model.params[name] = xp.asarray(
            (0.3 * rng.standard_normal(p.shape) + name.endswith("gamma")).astype(dtype),
        )
    return model


def random_ids(rng, B, T):
    return rng.integers(0, V, (B, T))


def cut(rng, n):
    """Cut 0..n anywhere into slices that follow one another."""
    inner = np.flatnonzero(rng.random(n - 1) < rng.random()) + 1
    return [slice(start, stop) for start, stop in zip([0, *inner], [*inner, n])]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("switches", ALL_SWITCHES, ids=lambda switches: "-".join(map(str, switches.values())))
def test_cached_logits_are_the_models_at_every_position_wherever_the_text_is_cut(switches, dtype):
    model = random_model(dtype, **switches)
    rng = np.random.default_rng(1)
    for _ in range(10):
        idx = random_ids(rng, rng.integers(1, 4), rng.integers(1, T_MAX + 1))
        expected, _ = model.forward(idx)
        cache = KVCache(model, len(idx))
        logits = np.concatenate([cache.forward(idx[:, t]) for t in cut(rng, idx.shape[1])], axis=1)
        assert logits.dtype == dtype
        assert_close("logits", logits, expected, TOLERANCE[dtype])
        assert cache.lengths.tolist() == [idx.shape[1]] * len(idx)


@given(seeds, st.integers(1, 4))
def test_rows_of_different_lengths_do_not_see_one_another_nor_the_padding(seed, B):
    model, rng = random_model(), np.random.default_rng(seed)
    rows = [random_ids(rng, 1, rng.integers(3, T_MAX + 1))[0] for _ in range(B)]
    cache = KVCache(model, B)
    found = [[] for _ in rows]
    while all(cache.lengths < [len(row) for row in rows]):
        counts = [int(rng.integers(1, len(row) - length + 1)) for row, length in zip(rows, cache.lengths)]
        idx = random_ids(rng, B, max(counts) + rng.integers(0, 3))  # what is not written over is padding
        for b, (length, count) in enumerate(zip(cache.lengths, counts)):
            idx[b, :count] = rows[b][length : length + count]
        logits = cache.forward(idx, counts)
        for b, count in enumerate(counts):
            found[b].append(logits[b, :count])
    for b, row in enumerate(rows):
        read = int(cache.lengths[b])
        assert_close(f"row {b}", np.concatenate(found[b]), model.forward(row[None, :read])[0][0], 1e-12)


def test_padding_may_run_past_T_max():
    model, rng = random_model(), np.random.default_rng(2)
    idx = random_ids(rng, 2, T_MAX)
    cache = KVCache(model, 2)
    cache.forward(idx[:, : T_MAX - 1], [T_MAX - 1, 1])
    chunk = np.stack([np.roll(idx[0], 1), idx[1]])[:, : T_MAX - 1]
    chunk[1] = idx[1, 1:]
    logits = cache.forward(chunk, [1, T_MAX - 1])
    expected, _ = model.forward(np.stack([[*idx[0, :-1], chunk[0, 0]], idx[1]]))
    assert_close("full row", logits[0, 0], expected[0, -1], 1e-12)
    assert_close("other row", logits[1], expected[1, 1:], 1e-12)


@pytest.mark.parametrize("last", [1, 3])
def test_last_gives_the_last_real_positions_of_each_row(last):
    model, idx = random_model(), random_ids(np.random.default_rng(3), 2, 7)
    logits = KVCache(model, 2).forward(idx, [7, 4], last=last)
    expected, _ = model.forward(idx)
    assert logits.shape == (2, last, V)
    assert_close("row 0", logits[0], expected[0, 7 - last :], 1e-12)
    assert_close("row 1", logits[1], expected[1, 4 - last : 4], 1e-12)


@pytest.mark.parametrize("forward", [lambda model, idx: KVCache(model, 2).forward(idx, last=2), last_logits])
def test_the_head_computes_no_logits_that_were_not_asked_for(forward, monkeypatch):
    shapes, original = [], kv_cache.product

    def spy(x, W):
        shapes.append((*x.shape, W.shape[1]))
        return original(x, W)

    monkeypatch.setattr(kv_cache, "product", spy)
    logits = forward(random_model(), random_ids(np.random.default_rng(4), 2, 5))
    assert shapes[-1] == (2 * logits.shape[1], 12, V)
    assert logits.shape[1] < 5


@pytest.mark.parametrize("rows", [1, kv_cache.FEW_ROWS, kv_cache.FEW_ROWS + 1])
@pytest.mark.parametrize("order", ["C", "F"])
def test_product_of_few_rows_and_of_many(rows, order):
    rng = np.random.default_rng(13)
    x, W = random_array(rng, (rows, 7)), np.asarray(random_array(rng, (7, 5)), order=order)
    before = snapshot((x, W))
    y = kv_cache.product(x, W)
    assert y.shape == (rows, 5)
    assert_close("x @ W", y, np.einsum("ri,ij->rj", x, W), 1e-14)
    assert snapshot((x, W)) == before


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("last", [1, 4])
def test_last_logits_are_the_models_with_and_without_the_mask(causal, last):
    model, idx = random_model(causal=causal), random_ids(np.random.default_rng(5), 3, 6)
    assert_close("logits", last_logits(model, idx, last), model.forward(idx)[0][:, -last:], 1e-12)


@given(seeds)
def test_keep_goes_on_with_some_rows_in_another_order(seed):
    model, rng = random_model(), np.random.default_rng(seed)
    idx, counts, rows = random_ids(rng, 4, 6), rng.integers(1, 7, 4), rng.permutation(4)[: rng.integers(1, 5)]
    cache = KVCache(model, 4)
    cache.forward(idx, counts)
    cache.keep(rows.tolist())
    new = random_ids(rng, len(rows), 2)
    logits = cache.forward(new, last=1)
    for place, row in enumerate(rows):
        text = np.concatenate([idx[row, : counts[row]], new[place]])
        assert_close(f"row {row}", logits[place, 0], model.forward(text[None])[0][0, -1], 1e-12)


def test_keep_of_no_row_leaves_none():
    cache = KVCache(random_model(), 2)
    cache.keep([])
    assert len(cache.lengths) == cache.kv.shape[2] == 0


@pytest.mark.parametrize(
    ("rows", "message"), [([1, -1], r"rows\[1\] is -1"), ([2], r"rows\[0\] is 2"), ([0.5], "integers")]
)
def test_keep_refuses_rows_that_there_are_not(rows, message):
    cache = KVCache(random_model(), 2)
    with pytest.raises(ValueError, match=message):
        cache.keep(rows)
    assert len(cache.lengths) == 2


@pytest.mark.parametrize("block", [1, 3, 7])
def test_blocks_of_queries_change_nothing(block, monkeypatch):
    model, idx = random_model(), random_ids(np.random.default_rng(6), 2, 11)
    monkeypatch.setattr(kv_cache, "QUERY_BLOCK", block)
    cache = KVCache(model, 2)
    logits = np.concatenate([cache.forward(idx[:, :2]), cache.forward(idx[:, 2:])], axis=1)
    assert_close("logits", logits, model.forward(idx)[0], 1e-12)


def test_a_text_longer_than_one_block_of_queries():
    model = random_model(T_max=2 * kv_cache.QUERY_BLOCK + 5)
    idx = random_ids(np.random.default_rng(7), 1, model.config.T_max)
    assert_close("logits", KVCache(model).forward(idx), model.forward(idx)[0], 1e-12)


def test_keys_and_values_are_written_in_place_into_their_slots():
    model, idx = random_model("float32"), random_ids(np.random.default_rng(8), 2, 9)
    before = snapshot((model.params, idx))
    cache = KVCache(model, 2)
    kv = cache.kv
    cache.forward(idx[:, :5])
    early = kv[..., :5, :].copy()
    cache.forward(idx[:, 5:], [4, 2])
    assert cache.kv is kv
    assert kv.shape == (2, 2, 2, 3, T_MAX, 4)
    assert kv.dtype == np.float32
    assert kv[..., :5, :].tobytes() == early.tobytes()
    assert np.abs(kv[:, :, 0, :, :9]).min() > 0
    assert np.abs(kv[:, :, 1, :, :7]).min() > 0
    assert not kv[:, :, 0, :, 9:].any()
    assert not kv[:, :, 1, :, 7:].any()
    assert snapshot((model.params, idx)) == before


def test_attention_to_no_past_is_the_lessons():
    rng = np.random.default_rng(9)
    q, k, v = (random_array(rng, (2, 3, 5, 4)) for _ in range(3))
    for scale in (True, False):
        expected, _ = attend_forward(q, k, v, scale=scale)
        assert_close("out", attend_to_past(q, k, v, np.tri(5, dtype=bool)[None, None], scale), expected, 1e-14)


@pytest.mark.parametrize("gelu", ["tanh", "exact"])
def test_the_ops_without_caches_are_the_ops(gelu):
    rng = np.random.default_rng(13)
    x, W_1, b_1, W_2, b_2 = (random_array(rng, shape) for shape in ((5, 4), (4, 16), (16,), (16, 4), (4,)))
    p = dict(W_1=W_1, b_1=b_1, W_2=W_2, b_2=b_2)
    before = snapshot((x, p))
    assert_close("linear", kv_cache.linear(x, W_1, b_1), linear_forward(x, W_1, b_1)[0], 1e-14)
    assert_close("layernorm", kv_cache.layernorm(x, b_2, x[0], 1e-3), layernorm_forward(x, b_2, x[0], 1e-3)[0], 1e-13)
    assert_close("mlp", kv_cache.mlp(x, p, gelu), mlp_forward(x, W_1, b_1, W_2, b_2, gelu)[0], 1e-13)
    assert snapshot((x, p)) == before


@pytest.mark.parametrize("d", [48, 768])
def test_a_constant_row_gives_beta(d):
    gamma, beta = random_array(np.random.default_rng(3), (2, d), "float32")
    y = kv_cache.layernorm(np.full((3, d), 51_234.7, "float32"), gamma, beta, 1e-5)
    np.testing.assert_array_equal(y, np.broadcast_to(beta, (3, d)))


def test_every_device(xp):
    model, on_device = random_model(), random_model(xp=xp)
    idx = random_ids(np.random.default_rng(10), 2, 8)
    expected = KVCache(model, 2).forward(idx)
    cache = KVCache(on_device, 2)
    first = cache.forward(xp.asarray(idx[:, :5]), [5, 3])
    cache.keep([1, 0])
    second = cache.forward(np.stack([idx[1, 3:6], idx[0, 5:]]), last=2)
    assert isinstance(second, xp.ndarray)
    assert_close("first", first[0], expected[0, :5], 1e-12)
    assert_close("second", second[1], expected[0, 6:], 1e-12)
    assert_close("second", second[0], expected[1, 4:6], 1e-12)


def test_without_the_causal_mask_there_is_no_cache():
    with pytest.raises(ValueError, match=r"needs Config.causal = True"):
        KVCache(random_model(causal=False))


def test_a_refused_read_leaves_the_cache_as_it_was():
    model, idx = random_model(), random_ids(np.random.default_rng(11), 2, T_MAX)
    cache = KVCache(model, 2)
    cache.forward(idx[:, :4], [4, 2])
    before = snapshot((cache.kv, cache.lengths))
    for bad, counts, last, message in [
        (idx, None, None, rf"row 0 holds 4 positions; {T_MAX} more pass T_max = {T_MAX}"),
        (idx[:, : T_MAX - 3], None, None, "row 0 holds 4"),
        (idx[:1], None, None, r"idx has shape \(1, 12\), but a cache of B = 2"),
        (idx[0], None, None, r"idx has shape \(12,\)"),
        (idx[:, :0], None, None, r"idx has shape \(2, 0\)"),
        (np.full((2, 3), V), None, None, rf"idx\[0, 0\] is {V}"),
        (-idx[:, :3] - 1, None, None, r"idx\[0, 0\] is -"),
        (idx[:, :2] / 2, None, None, "idx must be integers"),
        (idx[:, :3], [3, 0], None, r"counts must be B = 2 integers in 1..T = 3, got \[3, 0\]"),
        (idx[:, :3], [3, 4], None, "counts must be"),
        (idx[:, :3], [3], None, "counts must be"),
        (idx[:, :3], [3.0, 1.0], None, "counts must be"),
        (idx[:, :3], [3, 2], 3, r"last must lie in 1..2, .* got 3"),
        (idx[:, :3], None, 0, "last must lie in 1..3"),
    ]:
        with pytest.raises(ValueError, match=message):
            cache.forward(bad, counts, last)
    assert snapshot((cache.kv, cache.lengths)) == before
    with pytest.raises(ValueError, match="B must be at least 1, got 0"):
        KVCache(model, 0)


def test_a_row_may_fill_up_to_T_max():
    model, idx = random_model(), random_ids(np.random.default_rng(12), 1, T_MAX)
    cache = KVCache(model)
    cache.forward(idx[:, :-1])
    assert_close("logits", cache.forward(idx[:, -1:])[0, 0], model.forward(idx)[0][0, -1], 1e-12)
    with pytest.raises(ValueError, match=rf"row 0 holds {T_MAX} positions; 1 more pass"):
        cache.forward(idx[:, :1])
