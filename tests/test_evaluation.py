import math

import numpy as np
import pytest
from helpers import seeds
from hypothesis import given
from hypothesis import strategies as st

from numpy_gpt import Config, Model
from numpy_gpt.evaluation import Evaluation, evaluate_text, perplexity, strided_windows

CONFIG = dict(V=11, T_max=8, d=12, h=3, L=2)
TOKENS = np.random.default_rng(0).integers(0, 11, 200)


def small_model(dtype="float64", xp=np, **changes):
    model = Model(Config(**{**CONFIG, **changes}), seed=3, dtype=dtype, xp=xp)
    noise = np.random.default_rng(1).normal(0, 0.3, model.params.flat.size).astype(dtype)
    model.params.flat[:] += xp.asarray(noise)
    return model


def nll(model, context, token):
    """−log p(token | context), from a forward over the context alone."""
    logits, _ = model.forward(np.asarray(context)[None])
    shifted = logits[0, -1] - logits[0, -1].max()
    return float(np.log(np.exp(shifted).sum()) - shifted[token])


def token_by_token(model, tokens, stride):
    """The loop of transformers' documentation, one token at a time: the nats of each scored token."""
    T_max, nats, scored = model.config.T_max, {}, 1
    for start in range(0, len(tokens), stride):
        stop = min(start + T_max, len(tokens))
        for position in range(scored, stop):
            assert position not in nats
            nats[position] = nll(model, tokens[start:position], tokens[position])
        scored = stop
        if stop == len(tokens):
            break
    return nats


@pytest.mark.parametrize("stride", [1, 3, 4, 7])
@pytest.mark.parametrize("n", [2, 3, 7, 8, 9, 10, 12, 13, 40])
@pytest.mark.parametrize("B", [1, 3])
def test_the_same_as_a_loop_over_the_tokens(n, stride, B):
    model, tokens = small_model(), TOKENS[:n]
    nats = token_by_token(model, tokens, stride)
    assert sorted(nats) == list(range(1, n))
    found = evaluate_text(model, tokens, stride, B, n_bytes=3 * n)
    assert found.n_scored == n - 1
    assert found.loss == pytest.approx(sum(nats.values()) / (n - 1), rel=1e-12)
    assert found.perplexity == pytest.approx(math.exp(found.loss), rel=1e-14)
    assert found.bits_per_byte == pytest.approx(sum(nats.values()) / math.log(2) / (3 * n), rel=1e-12)


@pytest.mark.parametrize(
    "changes", [dict(norm="post"), dict(tie=False), dict(gelu="exact"), dict(scale=False)], ids=str
)
def test_every_kind_of_causal_model(changes):
    model = small_model(**changes)
    nats = token_by_token(model, TOKENS[:21], 3)
    assert evaluate_text(model, TOKENS[:21], 3).loss == pytest.approx(np.mean(list(nats.values())), rel=1e-12)


def test_a_model_without_the_mask_sees_its_whole_window():
    model, tokens = small_model(causal=False), TOKENS[:8]
    logits = model.forward(tokens[None, :-1])[0][0]
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = -log_p[np.arange(7), tokens[1:]].mean()
    assert evaluate_text(model, tokens, 4).loss == pytest.approx(expected, rel=1e-12)


def test_stride_one_gives_every_token_all_the_context_there_is():
    model, tokens = small_model(), TOKENS[:30]
    expected = np.mean([nll(model, tokens[max(0, t - 7) : t], tokens[t]) for t in range(1, 30)])
    assert evaluate_text(model, tokens, 1).loss == pytest.approx(expected, rel=1e-12)


@given(st.integers(2, 60), st.integers(2, 20), st.data())
def test_windows_score_each_token_once_with_the_context_promised(n, T, data):
    stride = data.draw(st.integers(1, T - 1))
    windows = list(strided_windows(n, T, stride))
    scored = [t for window in windows for t in range(window.stop - window.n_scored, window.stop)]
    assert scored == list(range(1, n))
    assert [window.start for window in windows] == [stride * step for step in range(len(windows))]
    for window in windows:
        assert window.stop - window.start <= T
        assert window.n_scored >= 1
        context = window.stop - window.n_scored - window.start  # of the first token scored
        assert context == (T - stride if window.start else 1)


@given(seeds, st.integers(1, 9))
def test_the_batch_size_changes_nothing_but_rounding(seed, B):
    model = small_model()
    tokens = np.random.default_rng(seed).integers(0, 11, 50)
    assert evaluate_text(model, tokens, 3, B).loss == pytest.approx(evaluate_text(model, tokens, 3, 1).loss, rel=1e-13)


def test_a_uniform_model_has_perplexity_V():
    model = Model(Config(**CONFIG), seed=None)
    found = evaluate_text(model, TOKENS, 4, n_bytes=len(TOKENS) - 1)
    assert found.loss == pytest.approx(math.log(11), rel=1e-6)
    assert found.perplexity == pytest.approx(11, rel=1e-6)
    assert found.bits_per_byte == pytest.approx(math.log2(11), rel=1e-6)


def test_float32_is_close_to_float64():
    assert evaluate_text(small_model("float32"), TOKENS, 4).loss == pytest.approx(
        evaluate_text(small_model(), TOKENS, 4).loss, rel=1e-6
    )


def test_every_device(xp):
    expected = evaluate_text(small_model(), TOKENS[:50], 3).loss
    assert evaluate_text(small_model(xp=xp), TOKENS[:50], 3).loss == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("kind", [np.uint16, np.int32, list])
def test_any_integers_will_do(kind):
    tokens = TOKENS.tolist() if kind is list else TOKENS.astype(kind)
    assert evaluate_text(small_model(), tokens, 4) == evaluate_text(small_model(), TOKENS, 4)


def test_without_n_bytes_there_are_no_bits_per_byte():
    assert evaluate_text(small_model(), TOKENS, 4).bits_per_byte is None


def test_report_tells_what_is_done_after_each_batch():
    told = []
    evaluate_text(small_model(), TOKENS[:34], 4, B=2, report=lambda *numbers: told.append(numbers))
    assert told == [(7, 33), (15, 33), (23, 33), (31, 33), (33, 33)]


@pytest.mark.parametrize(("loss", "expected"), [(0, 1), (1.5, math.exp(1.5)), (709.5, math.exp(709.5))])
def test_perplexity_is_exp_of_the_loss(loss, expected):
    assert perplexity(loss) == perplexity(np.float64(loss)) == Evaluation(loss, n_scored=1).perplexity == expected


def test_perplexity_beyond_floats_is_inf():
    for loss in (710, 1e4, np.float64(1e4), math.inf):
        assert perplexity(loss) == Evaluation(loss, n_scored=1).perplexity == math.inf
    assert math.isnan(perplexity(math.nan))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(tokens=TOKENS[:1]), "the text has 1 tokens"),
        (dict(tokens=[]), "the text has 0 tokens"),
        (dict(tokens=TOKENS.reshape(2, -1)), r"one text \(N,\), got shape \(2, 100\)"),
        (dict(tokens=TOKENS / 2), "tokens must be integers"),
        (dict(tokens=[0, 3, 11, 2]), r"tokens\[2\] is 11"),
        (dict(tokens=[0, -3]), r"tokens\[1\] is -3"),
        (dict(stride=0), r"stride must lie in 1 <= stride < T_max = 8, got 0"),
        (dict(stride=8), "stride must lie in 1 <= stride < T_max = 8, got 8"),
        (dict(B=0), "B must be at least 1, got 0"),
        (dict(n_bytes=0), "n_bytes must be at least 1, got 0"),
        (dict(model=small_model(T_max=1)), "T_max = 1: a window of one token"),
    ],
)
def test_mistakes(changes, message):
    with pytest.raises(ValueError, match=message):
        evaluate_text(**{**dict(model=small_model(), tokens=TOKENS, stride=4), **changes})
