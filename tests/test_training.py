import json
import math
import re
import sys
import tracemalloc
from dataclasses import asdict

import numpy as np
import pytest

from numpy_gpt import Config, Model
from numpy_gpt.budget import memory
from numpy_gpt.training import Schedule, evaluate, gradient_copies, n_workers, train

CONFIG = Config(V=11, T_max=8, d=12, h=3, L=2)
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(0, 11, 500)


def small_model(seed=3):
    model = Model(CONFIG, seed=seed, dtype="float64")
    model.params.flat[:] += np.random.default_rng(1).normal(0, 0.1, model.params.flat.size)
    return model


@pytest.mark.parametrize("n", [2, 9, 17, 20, 100])
def test_evaluate_scores_every_token_after_the_first_once(n):
    model, tokens = small_model(), TOKENS[:n]
    nll = []
    for start in range(0, n - 1, 8):
        window = tokens[start : start + 9]
        logits, _ = model.forward(window[None, :-1])
        shifted = logits[0] - logits[0].max(-1, keepdims=True)
        log_p = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        nll += [-row[target] for row, target in zip(log_p, window[1:])]
    assert len(nll) == n - 1
    assert evaluate(model, tokens, B=3) == pytest.approx(np.mean(nll), rel=1e-12)


def run(**changes):
    model = small_model()
    schedule = Schedule(**{"steps": 6, "B": 2, "warmup": 2, "eval_every": 4, "accumulate": 2, **changes})
    return model, train(model, TOKENS[:400], TOKENS[400:], schedule)


def test_a_run_repeats_bit_for_bit_from_its_seed():
    (model_1, history_1), (model_2, history_2) = run(), run()
    assert model_1.params.flat.tobytes() == model_2.params.flat.tobytes()
    assert [p.loss for p in history_1] == [p.loss for p in history_2]
    assert run(seed=1)[0].params.flat.tobytes() != model_1.params.flat.tobytes()


def test_workers_change_nothing_but_rounding():
    (model_1, history_1), (model_2, history_2) = run(workers=1), run(workers=2)
    np.testing.assert_allclose([p.loss for p in history_1], [p.loss for p in history_2], rtol=1e-12)
    np.testing.assert_allclose(model_1.params.flat, model_2.params.flat, rtol=0, atol=1e-9)


def test_more_workers_than_windows():
    assert len(run(workers=5, accumulate=1)[1]) == 6


def test_history_says_what_each_update_did():
    _, history = run()
    assert [p.step for p in history] == [1, 2, 3, 4, 5, 6]
    assert [p.tokens for p in history] == [32 * step for step in range(1, 7)]
    assert [p.held_out_loss is not None for p in history] == [False, False, False, True, False, True]
    assert history[0].lr == pytest.approx(0.5e-3)
    assert history[-1].lr == pytest.approx(1e-4)
    assert all(p.grad_norm > 0 for p in history)
    assert sum(history[-1].shares.values()) == pytest.approx(1)
    assert set(history[-1].shares) == {"forward", "backward", "optimiser"}
    assert 0 < history[0].seconds < history[-1].seconds


def test_held_out_loss_is_that_of_the_model_returned():
    model, history = run()
    assert history[-1].held_out_loss == evaluate(model, TOKENS[400:], 2)


@pytest.mark.parametrize("changes", [dict(workers=1), dict(workers=2), dict(workers=2, accumulate=3)])
def test_training_takes_the_memory_that_budget_predicts(changes, monkeypatch):
    """All of a run: parameters, moments, every worker's gradients, and evaluating beside them."""
    monkeypatch.setattr(sys, "platform", "darwin")  # threads: tracemalloc does not see into other processes
    config = Config(V=65, T_max=64, d=64, h=2, L=2)
    tokens = np.random.default_rng(0).integers(0, 65, 3000)
    schedule = Schedule(steps=2, B=4, eval_every=1, **changes)
    small = Model(CONFIG)
    train(small, TOKENS[:400], TOKENS[400:], schedule)  # imports and caches
    tracemalloc.start()
    model = Model(config)
    train(model, tokens[:2000], tokens[2000:], schedule)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak == pytest.approx(memory(config, 4, 64, gradients=gradient_copies(schedule, model))["peak"], rel=0.1)


def test_no_more_workers_than_windows():
    assert [n_workers(Schedule(B=4, workers=n), small_model()) for n in (None, 1, 3, 10**6)] == [2, 1, 3, 4]


@pytest.mark.parametrize(("platform", "beside"), [("linux", 1 + 3 * 4), ("darwin", 0)])
def test_copies_of_the_gradients(monkeypatch, platform, beside):
    monkeypatch.setattr(sys, "platform", platform)
    model = small_model()
    assert gradient_copies(Schedule(B=4, workers=4), model) == 4 + beside
    assert gradient_copies(Schedule(B=4, workers=10**6, accumulate=2), model) == 8 + beside
    assert gradient_copies(Schedule(B=4, workers=1, accumulate=2), model) == 2


def test_training_learns_a_text_that_repeats():
    tokens = np.tile(np.arange(11), 60)
    model = Model(CONFIG)
    schedule = Schedule(steps=120, B=8, lr=1e-2, min_lr=1e-3, warmup=10, eval_every=1000)
    history = train(model, tokens[:500], tokens[500:], schedule)
    assert history[0].loss == pytest.approx(math.log(11), rel=0.03)
    assert history[-1].held_out_loss < 0.1


def test_stop_ends_after_the_update_in_hand_saved_but_not_evaluated():
    updates, saved = [], []
    history = train(
        small_model(),
        TOKENS,
        TOKENS,
        Schedule(steps=50, B=2, eval_every=1000),
        report=updates.append,
        stop=lambda: len(updates) == 3,
        save=lambda state: saved.append(state.optimiser.t),
    )
    assert [p.step for p in history] == [1, 2, 3]
    assert history[-1].held_out_loss is None
    assert saved == [3]


@pytest.mark.parametrize(
    ("changes", "saves"), [({}, [4, 6]), ({"save_every": 5}, [5, 6]), ({"save_every": 2, "eval_every": 99}, [2, 4, 6])]
)
def test_saves_at_each_look_or_as_told_and_at_the_end(changes, saves):
    saved = []
    schedule = Schedule(**{"steps": 6, "B": 2, "eval_every": 4, **changes})
    train(small_model(), TOKENS, TOKENS, schedule, save=lambda state: saved.append(state.optimiser.t))
    assert saved == saves


@pytest.mark.parametrize("changes", [{"lr": 1e300}, {"weight_decay": 1e300}])
def test_weights_that_overflow_are_named_without_a_warning(changes):
    """Warnings are errors here."""
    with pytest.raises(FloatingPointError, match=r"update 2: the gradient of .* is nan at \[.*lower lr"):
        train(small_model(), TOKENS, TOKENS, Schedule(steps=3, B=2, warmup=0, **changes))


def test_non_finite_gradient_names_update_and_parameter_and_leaves_the_parameters():
    model = small_model()
    model.params["block.1.W_2"][3, 4] = np.inf
    before = model.params.flat.tobytes()
    with pytest.raises(FloatingPointError, match=r"update 1: the gradient of .* is nan at \[.*lower lr"):
        train(model, TOKENS, TOKENS, Schedule(steps=2, B=2))
    assert model.params.flat.tobytes() == before


def test_text_shorter_than_a_window_says_so():
    with pytest.raises(ValueError, match="9"):
        train(small_model(), TOKENS[:8], TOKENS, Schedule(steps=1, B=2))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steps", 0),
        ("steps", 2.5),
        ("steps", True),
        ("warmup", 1.5),
        ("seed", None),
        ("B", 0),
        ("accumulate", -1),
        ("workers", 0),
        ("eval_every", 0),
        ("save_every", 0),
        ("warmup", -1),
        ("seed", -1),
        ("min_lr", -1.0),
        ("lr", 1e-5),
        ("lr", math.inf),
        ("clip", 0.0),
        ("clip", math.nan),
    ],
)
def test_schedule_refuses_a_number_outside_its_range(name, value):
    with pytest.raises(ValueError, match=rf"{name} must be .*{value}"):
        Schedule(**{name: value})


def test_schedule_of_numpys_numbers_goes_into_json():
    schedule = Schedule(steps=np.int64(3), save_every=np.int32(2), lr=np.float32(0.5), min_lr=np.float64(0.25), clip=2)
    assert json.loads(json.dumps(asdict(schedule))) == asdict(
        Schedule(steps=3, save_every=2, lr=0.5, min_lr=0.25, clip=2.0)
    )


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("beta1", 2, "beta1 must lie in 0 <= beta1 < 1, got 2.0"),
        ("beta2", -1, "beta2 must lie in 0 <= beta2 < 1, got -1.0"),
        ("beta2", np.nan, "beta2 must lie in 0 <= beta2 < 1, got nan"),
        ("weight_decay", -5, "weight_decay must be a finite number of at least 0, got -5.0"),
        ("weight_decay", np.inf, "weight_decay must be a finite number of at least 0, got inf"),
    ],
)
def test_schedule_refuses_rates_out_of_range(name, value, message):
    with pytest.raises(ValueError, match=rf"^{re.escape(message)}$"):
        Schedule(**{name: value})


@pytest.mark.parametrize("value", ["0.1", None, True, [0.1]])
def test_schedule_refuses_what_is_no_number(value):
    with pytest.raises(ValueError, match=re.escape(f"weight_decay must be a number, got {value!r}")):
        Schedule(weight_decay=value)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ((TOKENS, TOKENS[:1]), "held_out has 1 tokens; a next token takes 2"),
        ((TOKENS, np.full(50, 10**6)), r"held_out\[0\] is 1000000"),
        ((np.append(TOKENS, -1), TOKENS), rf"train\[{len(TOKENS)}\] is -1"),
    ],
)
def test_a_text_that_cannot_work_is_told_before_the_first_update(texts, message):
    model = small_model()
    before = model.params.flat.copy()
    with pytest.raises(ValueError, match=message):
        train(model, *texts, Schedule(steps=3, B=2))
    np.testing.assert_array_equal(model.params.flat, before)
