import numpy as np
import pytest

from numpy_gpt import Config, Model
from numpy_gpt.accumulation import Accumulator, Clock
from numpy_gpt.ops import IGNORE_INDEX

CONFIG = Config(V=11, T_max=8, d=12, h=3, L=2)
RNG = np.random.default_rng(0)


def small_model(seed=3):
    model = Model(CONFIG, seed=seed, dtype="float64")
    model.params.flat[:] += np.random.default_rng(1).normal(0, 0.1, model.params.flat.size)
    return model


def batch(B, n_ignored=0):
    idx, targets = RNG.integers(0, 11, (2, B, 8))
    targets.reshape(-1)[:n_ignored] = IGNORE_INDEX
    return idx, targets


@pytest.mark.parametrize("workers", [1, 2, 3, 6])
def test_micro_batches_equal_the_full_batch(workers):
    """Even though they count different numbers of targets (a mean of means would not)."""
    model = small_model()
    micro_batches = [batch(2, 13), batch(2), batch(2, 5), batch(2, 16)]
    idx, targets = (np.concatenate(part) for part in zip(*micro_batches))
    full = model.step(idx, targets)
    step = Accumulator(model, workers).step(micro_batches)
    assert step.loss == pytest.approx(float(full.loss), rel=1e-13)
    np.testing.assert_allclose(step.grads.flat, full.grads.flat, rtol=0, atol=1e-14)
    mean_of_means = np.mean([model.step(*micro_batch).grads.flat for micro_batch in micro_batches], axis=0)
    assert np.abs(mean_of_means - full.grads.flat).max() > 1e-3


def test_accumulated_gradients_are_bitwise_a_step_for_one_batch():
    model = small_model()
    one = batch(3)
    assert Accumulator(model).step([one]).grads.flat.tobytes() == model.step(*one).grads.flat.tobytes()


def test_accumulate_where_nothing_is_counted_is_zero():
    step = Accumulator(small_model()).step([batch(2, 16), batch(2, 16)])
    assert step.loss == 0
    assert not step.grads.flat.any()


def test_the_same_gradients_are_used_again():
    accumulator = Accumulator(small_model(), workers=2)
    micro_batches = [batch(2), batch(2), batch(2)]
    first = accumulator.step(iter(micro_batches))
    bits = first.grads.flat.tobytes()
    second = accumulator.step(micro_batches)
    assert second.grads is first.grads
    assert second.grads.flat.tobytes() == bits


def test_an_error_in_a_worker_comes_out():
    idx, targets = batch(2)
    with pytest.raises(ValueError, match=r"idx\[0, 0\] is 11"):
        Accumulator(small_model(), workers=2).step([(idx, targets), (np.full_like(idx, 11), targets)])


def test_workers_must_be_at_least_one():
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        Accumulator(small_model(), workers=0)


def test_clock_adds_up_parts():
    clock = Clock(np)
    for name in ("forward", "backward", "forward"):
        with clock(name):
            pass
    assert set(clock.seconds) == {"forward", "backward"}
    assert sum(clock.shares().values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("micro_batches", "message"),
    [
        ([], "there is no micro-batch"),
        ([np.zeros((2, 4), int)], "micro-batch 0 must be a pair"),
        ([batch(2, 16), (np.zeros((2, 4), int), None)], "micro-batch 1 must be a pair"),
        ([(np.zeros(4, int), np.zeros(4, int))], r"micro-batch 0 must be a pair \(idx, targets\) of arrays \(B, T\)"),
    ],
)
def test_what_is_no_micro_batch(micro_batches, message):
    with pytest.raises(ValueError, match=message):
        Accumulator(small_model()).step(micro_batches)
