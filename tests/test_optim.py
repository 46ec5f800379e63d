import math
from itertools import pairwise

import numpy as np
import pytest
from helpers import assert_close
from hypothesis import given
from hypothesis import strategies as st

from numpy_gpt import AdamW, Config, Model, Parameters, optim
from numpy_gpt.backend import to_numpy
from numpy_gpt.cores import for_blocks
from numpy_gpt.optim import check_finite, clip_by_global_norm, clip_scale, global_norm, warmup_cosine

SHAPES = Config(V=7, T_max=5, d=4, h=2, L=1).parameter_shapes()


def random_parameters(seed, dtype="float64", xp=np):
    p = Parameters(SHAPES, dtype, xp)
    p.flat[...] = xp.asarray(np.random.default_rng(seed).standard_normal(p.flat.size).astype(dtype))
    return p


def textbook(params, all_grads, lrs, beta1, beta2, eps, weight_decay):
    """One parameter after another, from the paper's Algorithm 2."""
    params = {name: p.copy() for name, p in params.items()}
    for name, p in params.items():
        m, v = np.zeros_like(p), np.zeros_like(p)
        for t, (grads, lr) in enumerate(zip(all_grads, lrs), start=1):
            g = grads[name]
            m = beta1 * m + (1 - beta1) * g
            v = beta2 * v + (1 - beta2) * g**2
            m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
            decay = weight_decay if p.ndim == 2 else 0
            p[...] = p - lr * decay * p - lr * m_hat / (np.sqrt(v_hat) + eps)
    return params


def cut_into(block_size, monkeypatch):
    """Let the optimiser work in blocks of this size."""
    monkeypatch.setattr(optim, "for_blocks", lambda work, size, xp, _=None: for_blocks(work, size, xp, block_size))


@pytest.mark.parametrize("block_size", [2**17, 7])
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_adamw_against_the_textbook(xp, monkeypatch, block_size, weight_decay):
    cut_into(block_size, monkeypatch)
    params = random_parameters(0, xp=xp)
    all_grads = [random_parameters(seed) for seed in range(1, 11)]
    lrs = [0.01 * step for step in range(1, 11)]
    start = {name: to_numpy(p).copy() for name, p in params.items()}
    expected = textbook(start, all_grads, lrs, 0.8, 0.97, 1e-3, weight_decay)
    optimiser = AdamW(params, lr=99, betas=(0.8, 0.97), eps=1e-3, weight_decay=weight_decay)
    for seed, lr in enumerate(lrs, start=1):
        optimiser.update(random_parameters(seed, xp=xp), lr=lr)
    assert optimiser.t == 10
    for name in SHAPES:
        assert_close(name, params[name], expected[name], 1e-12)


def test_adamw_uses_its_own_lr():
    one, other = random_parameters(0), random_parameters(0)
    AdamW(one, lr=0.02).update(random_parameters(1))
    AdamW(other, lr=9.0).update(random_parameters(1), lr=0.02)
    assert one.flat.tobytes() == other.flat.tobytes()


def test_only_its_own_parameters_gradients_update_it():
    optimiser = AdamW(random_parameters(0))
    with pytest.raises(ValueError, match="are not those of the optimiser's parameters"):
        optimiser.update(dict(random_parameters(1)))
    assert optimiser.t == 0


def test_lr_0_moves_nothing():
    params = random_parameters(0)
    before = params.flat.copy()
    AdamW(params).update(random_parameters(1), lr=0.0)
    np.testing.assert_array_equal(params.flat, before)


def test_zero_gradients_decay_the_matrices_alone():
    """With zero gradients only the documented matrices shrink, the tied one once."""
    params = random_parameters(0)
    before = {name: p.copy() for name, p in params.items()}
    AdamW(params, lr=0.1, weight_decay=0.5).update(params.zeros_like())
    for name, p in params.items():
        factor = 1 - 0.1 * 0.5 if "W_" in name else 1
        np.testing.assert_array_equal(p, before[name] * factor, err_msg=name)


def test_bias_correction_makes_the_first_step_lr():
    """m̂/√v̂ = ±1 after one update, however small the gradient."""
    params, grads = random_parameters(0), random_parameters(1)
    before = params.flat.copy()
    AdamW(params, lr=0.01, eps=1e-20, weight_decay=0).update(grads)
    np.testing.assert_allclose(params.flat - before, -0.01 * np.sign(grads.flat), rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_adamw_keeps_dtype_and_gradients(xp, dtype):
    params, grads = random_parameters(0, dtype, xp), random_parameters(1, dtype, xp)
    before = to_numpy(grads.flat).copy()
    optimiser = AdamW(params)
    optimiser.update(grads, lr=np.float64(0.01))
    for p in (params, optimiser.m, optimiser.v):
        assert p.flat.dtype == dtype
    np.testing.assert_array_equal(to_numpy(grads.flat), before)


def test_adamw_on_every_device_is_numpys(xp):
    found, expected = random_parameters(0, "float32", xp), random_parameters(0, "float32")
    optimiser, on_host = AdamW(found), AdamW(expected)
    for seed in range(1, 6):
        optimiser.update(random_parameters(seed, "float32", xp))
        on_host.update(random_parameters(seed, "float32"))
    assert_close("params", found.flat, expected.flat, 1e-6)


def test_adamw_moves_the_model_through_its_views():
    model = Model(Config.preset("tiny"))
    optimiser = AdamW(model.params)
    idx = np.arange(32).reshape(2, 16)
    losses = []
    for _ in range(5):
        loss, grads = model.step(idx)
        optimiser.update(grads)
        losses.append(float(loss))
    assert all(later < earlier for earlier, later in pairwise(losses))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(lr=-1), "lr must be a finite number of at least 0, got -1"),
        (dict(lr=math.inf), "lr must be a finite number of at least 0, got inf"),
        (dict(lr=math.nan), "lr must be a finite number"),
        (dict(eps=-1e-9), "eps must be a finite number"),
        (dict(weight_decay=-0.1), "weight_decay must be a finite number"),
        (dict(betas=(1.0, 0.9)), "beta1 must lie in 0 <= beta1 < 1, got 1.0"),
        (dict(betas=(0.9, -0.1)), "beta2 must lie in 0 <= beta2 < 1, got -0.1"),
        (dict(betas=(0.9, math.nan)), "beta2 must lie in"),
        (dict(betas=(0.9,)), r"betas must be two numbers, got \(0\.9,\)"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        AdamW(random_parameters(0), **arguments)


@pytest.mark.parametrize("block_size", [2**17, 7])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_clip_scales_everything_alike(xp, monkeypatch, dtype, block_size):
    cut_into(block_size, monkeypatch)
    grads, before = random_parameters(3, dtype, xp), random_parameters(3, dtype)
    norm = math.sqrt(sum(float((g.astype("float64") ** 2).sum()) for g in before.values()))
    assert global_norm(grads) == pytest.approx(norm, rel=1e-6)
    assert clip_by_global_norm(grads, 2.5) == pytest.approx(norm, rel=1e-6)
    assert grads.flat.dtype == dtype
    assert_close("grads", grads.flat, before.flat * (2.5 / norm), 1e-6)
    assert global_norm(grads) == pytest.approx(2.5, rel=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_update_by_scaled_gradients_is_that_of_clipped_ones(xp, dtype):
    one, other = random_parameters(0, dtype, xp), random_parameters(0, dtype, xp)
    optimiser, clipper = AdamW(one), AdamW(other)
    for seed in range(1, 6):
        grads, clipped = random_parameters(seed, dtype, xp), random_parameters(seed, dtype, xp)
        norm, scale = clip_scale(grads, 2.5)
        assert scale == 2.5 / norm < 1
        assert norm == clip_by_global_norm(clipped, 2.5)
        optimiser.update(grads, scale=scale)
        clipper.update(clipped)
        assert to_numpy(grads.flat).tobytes() == to_numpy(random_parameters(seed, dtype, xp).flat).tobytes()
    rtol = {"float32": 1e-5, "float64": 1e-13}[dtype]
    for found, expected in ((one, other), (optimiser.m, clipper.m), (optimiser.v, clipper.v)):
        assert_close("after", found.flat, expected.flat, rtol, rtol)


@pytest.mark.parametrize("scale", [-1.0, math.inf, math.nan])
def test_bad_scale_moves_nothing(scale):
    params = random_parameters(0)
    before = params.flat.copy()
    with pytest.raises(ValueError, match=f"scale must be a finite number of at least 0, got {scale}"):
        AdamW(params).update(random_parameters(1), scale=scale)
    np.testing.assert_array_equal(params.flat, before)


def test_clip_leaves_small_gradients_bit_identical(xp):
    grads = random_parameters(3, xp=xp)
    norm = global_norm(grads)
    for max_norm in (norm, 2 * norm, math.inf):
        assert clip_by_global_norm(grads, max_norm) == norm
    assert to_numpy(grads.flat).tobytes() == random_parameters(3).flat.tobytes()


def test_clip_of_zeros(xp):
    grads = Parameters(SHAPES, xp=xp)
    assert clip_by_global_norm(grads, 1.0) == 0
    assert not grads.flat.any()


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_clip_names_what_is_not_finite_and_leaves_it_alone(xp, value):
    grads = random_parameters(3, "float32", xp)
    grads["block.0.W_qkv"][2, 7] = value
    grads["block.0.W_1"][1, 1] = value
    before = to_numpy(grads.flat).tobytes()
    message = rf"the gradient of block\.0\.W_qkv is {value} at \[2, 7\] \(1 such values\)"
    with pytest.raises(FloatingPointError, match=message):
        clip_by_global_norm(grads, 1.0)
    with pytest.raises(FloatingPointError, match=message):
        check_finite(grads)
    assert to_numpy(grads.flat).tobytes() == before


def test_check_finite_counts():
    grads = random_parameters(3)
    check_finite(grads)
    grads["ln_f.beta"][1:] = math.nan
    with pytest.raises(FloatingPointError, match=r"ln_f\.beta is nan at \[1\] \(3 such values\)"):
        check_finite(grads)


@pytest.mark.parametrize("block_size", [2**17, 7])
def test_clip_where_float32_squares_overflow(xp, monkeypatch, block_size):
    """1e25² is beyond float32; the gradients themselves are not."""
    cut_into(block_size, monkeypatch)
    grads = random_parameters(3, "float32", xp)
    grads.flat *= 1e25
    norm = 1e25 * np.linalg.norm(random_parameters(3).flat)
    assert clip_by_global_norm(grads, 1.0) == pytest.approx(norm, rel=1e-5)
    assert global_norm(grads) == pytest.approx(1, rel=1e-5)
    assert_close("grads", grads.flat, random_parameters(3, "float32").flat * (1e25 / norm), 1e-5)


def test_norm_is_summed_block_by_block(monkeypatch):
    grads = random_parameters(3)
    whole = global_norm(grads)
    cut_into(5, monkeypatch)
    assert global_norm(grads) == pytest.approx(whole, rel=1e-14)


def test_schedule_endpoints():
    lr = [warmup_cosine(step, 1e-3, 1e-4, 10, 100) for step in range(120)]
    assert lr[0] == pytest.approx(1e-4)
    assert lr[4] == pytest.approx(5e-4)
    assert lr[9] == lr[10] == pytest.approx(1e-3)
    assert lr[99] == pytest.approx(1e-4)
    assert lr[100:] == [lr[99]] * 20
    middle = 10 + (99 - 10) / 2
    assert warmup_cosine(middle, 1e-3, 1e-4, 10, 100) == pytest.approx((1e-3 + 1e-4) / 2)


@given(
    warmup=st.integers(0, 30),
    steps=st.integers(1, 100),
    lr=st.floats(1e-6, 1, allow_subnormal=False),
    share=st.floats(0, 1, allow_subnormal=False),
)
def test_schedule_rises_then_falls(warmup, steps, lr, share):
    values = [warmup_cosine(step, lr, share * lr, warmup, steps) for step in range(steps)]
    peak = min(warmup, steps)
    assert all(0 < value <= lr * (1 + 1e-15) for value in values[:peak])
    assert all(earlier <= later for earlier, later in pairwise(values[:peak]))
    assert all(later <= earlier * (1 + 1e-15) for earlier, later in pairwise(values[peak:]))
    assert all(share * lr * (1 - 1e-15) <= value for value in values[peak:])
    if steps > warmup:
        assert values[peak] == pytest.approx(lr)
    if steps > warmup + 1:
        assert values[-1] == pytest.approx(share * lr, abs=1e-15 * lr)


@pytest.mark.parametrize("eps", [0.0, -1e-8, np.inf, np.nan])
def test_eps_must_be_above_zero(eps):
    with pytest.raises(ValueError, match="eps must be"):
        AdamW(Parameters({"W": (2, 2)}), eps=eps)


@pytest.mark.parametrize("lr", [-1.0, np.inf, np.nan])
def test_update_refuses_an_impossible_lr_and_changes_nothing(lr):
    params = Parameters({"W": (2, 2)})
    optimiser = AdamW(params)
    with pytest.raises(ValueError, match="lr must be"):
        optimiser.update(params.zeros_like(), lr=lr)
    assert optimiser.t == 0


def test_update_refuses_another_models_gradients():
    with pytest.raises(ValueError, match="not those of the optimiser's parameters"):
        AdamW(Parameters({"W": (2, 3)})).update(Parameters({"W": (3, 2)}))


@pytest.mark.parametrize("max_norm", [0.0, -1.0, np.nan])
def test_clip_refuses_a_norm_that_is_not_above_zero(max_norm):
    with pytest.raises(ValueError, match="max_norm must be above 0"):
        clip_by_global_norm(Parameters({"W": (2, 2)}), max_norm)


def test_a_model_is_no_parameters():
    with pytest.raises(TypeError, match=r"params must be Parameters, as model\.params is, got Model"):
        AdamW(Model(Config.preset("tiny")))
