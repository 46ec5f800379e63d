from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numpy_gpt import Config, Model
from numpy_gpt.generation import draw, generate, generate_batch, next_token_probabilities
from numpy_gpt.kv_cache import KVCache
from numpy_gpt.one_row import OneRow

CONFIG = Config(V=11, T_max=6, d=8, h=2, L=2)
LOGITS = np.log([0.1, 0.4, 0.2, 0.3])


@pytest.fixture(scope="module")
def model():
    model = Model(CONFIG, seed=3, dtype="float64")
    model.params.flat[:] += np.random.default_rng(0).normal(0, 0.3, model.params.flat.size)
    return model


def test_softmax_at_temperature_one():
    np.testing.assert_allclose(next_token_probabilities(LOGITS), [0.1, 0.4, 0.2, 0.3], rtol=1e-14)


def test_temperature_sharpens_as_a_power():
    powers = np.array([0.1, 0.4, 0.2, 0.3]) ** 2
    np.testing.assert_allclose(next_token_probabilities(LOGITS, temperature=0.5), powers / powers.sum(), rtol=1e-13)


def test_temperature_zero_is_the_first_largest():
    assert next_token_probabilities(np.array([1.0, 3.0, 3.0]), temperature=0).tolist() == [0, 1, 0]


@pytest.mark.parametrize("temperature", [1e-300, 1e-320, 5e-324])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tiny_temperature_is_quiet_and_exact(temperature, dtype):
    logits = np.array([1000.0, -1000.0, 999.0, 1000.0, -np.inf], dtype)
    assert next_token_probabilities(logits, temperature).tolist() == [0.5, 0, 0, 0.5, 0]


def test_logits_further_apart_than_floats_reach():
    assert next_token_probabilities(np.array([-1.5e308, 1.5e308])).tolist() == [0, 1]


def test_top_k():
    np.testing.assert_allclose(next_token_probabilities(LOGITS, top_k=2), [0, 4 / 7, 0, 3 / 7], rtol=1e-14)


def test_top_k_above_V_keeps_all():
    assert next_token_probabilities(LOGITS, top_k=99).tobytes() == next_token_probabilities(LOGITS).tobytes()


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.39, [1]), (0.4, [1]), (0.41, [1, 3]), (0.7, [1, 3]), (0.71, [1, 2, 3]), (1.0, [0, 1, 2, 3])]
)
def test_top_p_keeps_the_fewest_that_hold_p(top_p, kept):
    assert np.flatnonzero(next_token_probabilities(LOGITS, top_p=top_p)).tolist() == kept


@given(
    st.lists(st.floats(-50, 50, allow_subnormal=False, width=32), min_size=1, max_size=20),
    st.floats(0.01, 10),
    st.none() | st.integers(1, 30),
    st.none() | st.floats(0.01, 1),
)
def test_always_a_distribution_that_holds_the_likeliest(logits, temperature, top_k, top_p):
    p = next_token_probabilities(np.array(logits, np.float32), temperature, top_k, top_p)
    assert p.min() >= 0
    assert abs(p.sum() - 1) < 1e-12
    assert p[int(np.argmax(logits))] == p.max() > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_k": 0}, "top_k must be at least 1, got 0"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
    ],
)
def test_settings_that_make_no_distribution(model, settings, message):
    with pytest.raises(ValueError, match=message):
        next_token_probabilities(LOGITS, **settings)
    with pytest.raises(ValueError, match=message):
        generate(model, [1], 1, **settings)


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize(
    ("logits", "message"),
    [
        ([0, 1, np.nan], r"logits\[2\] is nan"),
        ([0, np.inf, 1], r"logits\[1\] is inf"),
        ([-np.inf, -np.inf], r"logits\[0\] is -inf"),
    ],
)
def test_a_largest_logit_that_is_not_finite_is_named(logits, message, temperature):
    with pytest.raises(ValueError, match=message):
        next_token_probabilities(np.array(logits, np.float32), temperature)


def test_a_logit_of_minus_inf_is_never_drawn():
    assert next_token_probabilities(np.array([-np.inf, 0, 0])).tolist() == [0, 0.5, 0.5]


@given(
    st.lists(st.integers(-3, 3), min_size=1, max_size=20),
    st.none() | st.integers(1, 21),
    st.none() | st.floats(0.01, 1),
)
def test_what_is_kept_is_what_sorting_keeps(logits, top_k, top_p):
    """Whole logits, so that many are equal."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))[:top_k]
    p = np.exp(np.array(logits, float)[order])
    p /= p.sum()
    if top_p is not None:
        n = next((n for n in range(1, len(p)) if top_p < 1 and p[:n].sum() >= top_p * (1 - 1e-12)), len(p))
        order, p = order[:n], p[:n] / p[:n].sum()
    found = next_token_probabilities(np.array(logits, np.float32), top_k=top_k, top_p=top_p)
    assert np.flatnonzero(found).tolist() == sorted(order)
    np.testing.assert_allclose(found[order], p, rtol=1e-13)


def test_draw_follows_the_probabilities():
    p = np.array([0.0, 0.5, 0.0, 0.3, 0.2, 0.0])
    rng = np.random.default_rng(0)
    counts = np.bincount([draw(p, rng) for _ in range(20_000)], minlength=6)
    assert counts[[0, 2, 5]].tolist() == [0, 0, 0]
    np.testing.assert_allclose(counts / 20_000, p, atol=0.02)


class Always:
    def __init__(self, u):
        self.u = u

    def random(self):
        return self.u


def test_draw_at_the_ends_of_u():
    p = np.array([0.0, 0.1, 0.2, 0.7, 0.0])
    assert draw(p, Always(0.0)) == 1
    assert draw(p, Always(1.0)) == 3


def test_seed_repeats_the_text(model):
    first = list(generate(model, [1, 2], 30, seed=5))
    assert first == list(generate(model, [1, 2], 30, seed=5))
    assert first != list(generate(model, [1, 2], 30, seed=6))
    assert len(first) == 30
    assert all(0 <= token < CONFIG.V for token in first)


def test_greedy_is_the_argmax_over_the_last_T_max_tokens(model):
    ids = [1, 2, 3]
    for token in generate(model, ids.copy(), 12, temperature=0):
        logits, _ = model.forward(np.array([ids[-CONFIG.T_max :]]))
        assert token == logits[0, -1].argmax()
        ids.append(token)


def test_long_prompt_is_cropped_to_its_end(model):
    long = np.arange(20) % CONFIG.V
    assert list(generate(model, long, 9)) == list(generate(model, long[-CONFIG.T_max :], 9))


def test_prompt_is_not_changed(model):
    prompt = [1, 2]
    list(generate(model, prompt, 3))
    assert prompt == [1, 2]


@pytest.mark.parametrize(
    ("prompt", "n", "message"),
    [
        ([], 1, "is empty"),
        ([1], -1, "n must be at least 0, got -1"),
        ([11], 1, r"\[0\] is 11; ids must lie in 0 <= id < V = 11"),
        ([11], 0, r"\[0\] is 11"),
        ([11] + [1] * 40, 1, r"\[0\] is 11"),  # although cropped away
        ([1.7, 2], 3, "must be integers, got dtype float64"),
        ("12", 3, r"must be the ids of one text, \(T,\), got shape \(\)"),
        ([[1, 2]], 3, r"must be the ids of one text, \(T,\), got shape \(1, 2\)"),
    ],
)
def test_bad_prompt(model, prompt, n, message):
    """Told at the call, before anything is drawn."""
    with pytest.raises(ValueError, match=message):
        generate(model, prompt, n)
    with pytest.raises(ValueError, match=message):
        generate_batch(model, [[1], prompt], n)


def test_bad_seed(model):
    with pytest.raises(ValueError, match="seed must be at least 0, got -1"):
        generate(model, [1], 3, seed=-1)


# Generation with the key/value cache, in batches


def other_model(xp=np, **changes):
    model = Model(replace(CONFIG, **changes), seed=3, dtype="float64", xp=xp)
    noise = np.random.default_rng(0).normal(0, 0.3, model.params.flat.size)
    model.params.flat[:] += xp.asarray(noise)
    return model


def uncached(model, prompt, n, seed=0, **settings):
    """Draw from whole forwards, with no cache."""
    ids, rng = list(prompt), np.random.default_rng(seed)
    for _ in range(n):
        logits, _ = model.forward(np.array([ids[-CONFIG.T_max :]]))
        ids.append(draw(next_token_probabilities(logits[0, -1], **settings), rng))
    return ids[len(prompt) :]


@pytest.mark.parametrize(
    "changes",
    [{}, {"norm": "post"}, {"tie": False}, {"gelu": "exact"}, {"scale": False}, {"causal": False}],
    ids=str,
)
@pytest.mark.parametrize("length", [1, 5, 6, 7, 15])
def test_the_same_draws_as_from_whole_forwards(changes, length):
    model = other_model(**changes)
    prompt = np.random.default_rng(length).integers(0, CONFIG.V, length).tolist()
    assert list(generate(model, prompt, 15, seed=4, top_k=7)) == uncached(model, prompt, 15, seed=4, top_k=7)
    assert list(generate(model, prompt, 15, temperature=0)) == uncached(model, prompt, 15, temperature=0)


def test_one_row_of_work_a_token_until_the_window_slides(model, monkeypatch):
    read, forward, forward_token = [], KVCache.forward, OneRow.forward

    def spy(self, idx, *arguments, **keywords):
        read.append(idx.shape)
        return forward(self, idx, *arguments, **keywords)

    def spy_token(self, token):
        read.append(token)
        return forward_token(self, token)

    monkeypatch.setattr(KVCache, "forward", spy)
    monkeypatch.setattr(OneRow, "forward", spy_token)
    monkeypatch.setattr(Model, "forward", None)
    tokens = list(generate(model, [1, 2, 3], 6))
    assert read == [(1, 3), *tokens[:3], (1, 6), (1, 6)]
    read.clear()
    texts = generate_batch(model, [[1, 2, 3], [4, 5]], 2)
    assert read == [(2, 3), (2, 1)]
    assert len(texts) == 2


PROMPTS = [[1, 2, 3], [4], list(range(9)), [5, 5, 5, 5, 5], [1, 2, 3]]


@pytest.mark.parametrize("causal", [True, False])
def test_each_row_of_a_batch_is_as_if_alone(causal):
    """Prompts shorter and longer than T_max; the rows reach it one after another."""
    model = other_model(causal=causal)
    texts = generate_batch(model, PROMPTS, 10, temperature=0)
    assert texts == [uncached(model, prompt, 10, temperature=0) for prompt in PROMPTS]
    sampled = generate_batch(model, PROMPTS, 10, seed=7)
    assert sampled == [uncached(model, prompt, 10, seed=[7, row]) for row, prompt in enumerate(PROMPTS)]
    assert sampled[0] == list(generate(model, PROMPTS[0], 10, seed=7))
    assert sampled[0] != sampled[4]  # the same prompt, another stream
    assert sampled == generate_batch(model, PROMPTS, 10, seed=7)


def test_a_stop_token_ends_its_row_alone_and_is_left_out(model):
    whole = generate_batch(model, PROMPTS, 12, seed=2)
    stop = {whole[0][3], whole[3][7]}
    expected = [row[: next((t for t, token in enumerate(row) if token in stop), 12)] for row in whole]
    assert len({len(row) for row in expected}) > 2
    assert generate_batch(model, PROMPTS, 12, seed=2, stop=stop) == expected
    assert list(generate(model, PROMPTS[0], 12, seed=2, stop=stop)) == expected[0]


def test_when_every_row_has_stopped_nothing_more_is_computed(model, monkeypatch):
    stop = range(CONFIG.V)
    calls, forward = [], KVCache.forward
    monkeypatch.setattr(KVCache, "forward", lambda *a, **k: calls.append(1) or forward(*a, **k))
    assert generate_batch(model, [[1], [2, 3]], 10**15, stop=stop) == [[], []]
    assert len(calls) == 1


def test_batches_of_nothing(model):
    assert generate_batch(model, [], 5) == []
    assert generate_batch(model, [[1], [2]], 0) == [[], []]


def test_batch_on_every_device(xp):
    model, on_device = other_model(), other_model(xp)
    assert generate_batch(on_device, PROMPTS, 9, temperature=0) == generate_batch(model, PROMPTS, 9, temperature=0)


@pytest.mark.parametrize(
    ("prompts", "settings", "message"),
    [
        ([[1], []], {}, r"prompts\[1\] is empty"),
        ([[1], [2, 11]], {}, r"prompts\[1\]\[1\] is 11"),
        ([[1], [-1]], {}, r"prompts\[1\]\[0\] is -1"),
        ([[1.5]], {}, r"prompts\[0\] must be integers"),
        ([[1]], {"n": -1}, "n must be at least 0, got -1"),
        ([[1]], {"top_k": 0}, "top_k"),
        ([[1]], {"stop": [3, 11]}, "stop holds 11"),
    ],
)
def test_bad_batch(model, prompts, settings, message):
    with pytest.raises(ValueError, match=message):
        generate_batch(model, prompts, **{"n": 1, **settings})


def test_bad_stop(model):
    with pytest.raises(ValueError, match="stop holds -1; ids must lie in 0 <= id < V = 11"):
        generate(model, [1], 1, stop=[-1])


def test_top_p_of_1_cuts_nothing():
    assert (next_token_probabilities(np.array([0.0, -40.0, -100.0]), top_p=1.0) > 0).all()
