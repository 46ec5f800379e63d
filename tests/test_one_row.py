import numpy as np
import pytest
from helpers import assert_close, random_array, seeds, snapshot
from hypothesis import given
from test_kv_cache import ALL_SWITCHES, T_MAX, TOLERANCE, V, random_ids, random_model

from numpy_gpt import one_row
from numpy_gpt.kv_cache import KVCache
from numpy_gpt.one_row import OneRow


@pytest.mark.parametrize("narrow", [0, 1024])  # with W_o and W_2 as they lie, and copied
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("switches", ALL_SWITCHES, ids=lambda switches: "-".join(map(str, switches.values())))
def test_logits_are_the_models_at_every_position(switches, dtype, narrow, monkeypatch):
    monkeypatch.setattr(one_row, "NARROW", narrow)
    model = random_model(dtype, **switches)
    idx = random_ids(np.random.default_rng(1), 1, T_MAX)
    before = snapshot(model.params.flat)
    expected, _ = model.forward(idx)
    row = OneRow(KVCache(model))
    logits = np.stack([row.forward(token) for token in idx[0].tolist()])
    assert logits.dtype == dtype
    assert_close("logits", logits, expected[0], TOLERANCE[dtype])
    assert snapshot(model.params.flat) == before


@given(seeds)
def test_reads_on_in_turn_with_its_cache(seed):
    model, rng = random_model(), np.random.default_rng(seed)
    idx = random_ids(rng, 1, T_MAX)
    expected, _ = model.forward(idx)
    cache = KVCache(model)
    row, t = OneRow(cache), 0
    while t < T_MAX:
        if rng.random() < 0.5:
            assert_close(f"logits {t}", row.forward(int(idx[0, t])), expected[0, t], 1e-12)
            t += 1
        else:
            more = idx[:, t : t + int(rng.integers(1, 4))]
            assert_close(f"logits {t}", cache.forward(more)[0], expected[0, t : t + more.shape[1]], 1e-12)
            t += more.shape[1]
        assert cache.lengths.tolist() == [t]


@pytest.mark.parametrize("d", [48, 768])
def test_a_constant_row_gives_beta(d):
    x, gamma, beta = np.full(d, 51_234.7, "float32"), *random_array(np.random.default_rng(3), (2, d), "float32")
    np.testing.assert_array_equal(one_row.layernorm(x, gamma, beta, 1e-5), beta)


def test_logits_are_not_written_over_by_the_next_token():
    row = OneRow(KVCache(random_model()))
    first = row.forward(3)
    before = snapshot(first)
    row.forward(4)
    assert snapshot(first) == before


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (64, 7), (200, 9)])
def test_copy_into_another_order(shape):
    W, copy = random_array(np.random.default_rng(2), shape), np.empty(shape, order="F")
    one_row.copy_some_rows_at_a_time(W, copy)
    np.testing.assert_array_equal(copy, W)


def test_only_narrow_matrices_are_copied(monkeypatch):
    blocks = [random_model().params.block(number) for number in range(2)]
    laid = one_row.lay_for_one_row(blocks)
    for p, of_row in zip(blocks, laid):
        assert [name for name in p if of_row[name] is not p[name]] == ["W_o", "W_2"]
        for name in ("W_o", "W_2"):
            assert of_row[name].flags.f_contiguous
            assert not np.shares_memory(of_row[name], p[name])
            np.testing.assert_array_equal(of_row[name], p[name])
    assert laid[0]["W_o"].base is laid[1]["W_2"].base  # one piece of memory
    monkeypatch.setattr(one_row, "NARROW", 11)  # d is 12
    assert all(of_row[name] is p[name] for p, of_row in zip(blocks, one_row.lay_for_one_row(blocks)) for name in p)


def test_a_refused_token_leaves_the_cache_as_it_was():
    cache = KVCache(random_model())
    row = OneRow(cache)
    for token in range(T_MAX - 1):
        row.forward(token)
    before = snapshot((cache.kv, cache.lengths))
    for token in (-1, V):
        with pytest.raises(ValueError, match=rf"idx\[0, 0\] is {token}; ids must lie in 0 <= id < V = {V}"):
            row.forward(token)
    for token in (3.0, True, "a", None):
        with pytest.raises(ValueError, match="idx must be integers, got dtype"):
            row.forward(token)
    assert snapshot((cache.kv, cache.lengths)) == before
    row.forward(np.int64(0))
    before = snapshot((cache.kv, cache.lengths))
    with pytest.raises(ValueError, match=rf"row 0 holds {T_MAX} positions; 1 more pass T_max = {T_MAX}"):
        row.forward(0)
    assert snapshot((cache.kv, cache.lengths)) == before


def test_one_row_on_the_cpu(strict):
    with pytest.raises(ValueError, match="one row on the CPU, got a cache of 2 on numpy"):
        OneRow(KVCache(random_model(), 2))
    with pytest.raises(ValueError, match="one row on the CPU, got a cache of 1 on "):
        OneRow(KVCache(random_model(xp=strict)))
