import copy
import math
from itertools import product

import numpy as np
import pytest
from helpers import assert_close, assert_dtype, device_tolerance, random_array, snapshot

from numpy_gpt import Config, Model, Parameters
from numpy_gpt.backend import to_numpy
from numpy_gpt.model import BLOCK
from numpy_gpt.ops import (
    IGNORE_INDEX,
    attention_forward,
    cross_entropy_backward,
    cross_entropy_forward,
    embedding_backward,
    layernorm_forward,
    mlp_forward,
)

SWITCHES = dict(
    causal=(True, False), scale=(True, False), norm=("pre", "post"), tie=(True, False), gelu=("tanh", "exact")
)
ALL_SWITCHES = [dict(zip(SWITCHES, values)) for values in product(*SWITCHES.values())]


def switches_id(switches):
    return "-".join(f"{name}={value}" for name, value in switches.items() if value != SWITCHES[name][0]) or "lesson"


every_switch = pytest.mark.parametrize("switches", ALL_SWITCHES, ids=switches_id)


def random_model(config, dtype="float64", xp=np, spread=0.5):
    """A model with no zero bias and no unit gamma to hide a bug behind."""
    model = Model(config, seed=None, dtype=dtype, xp=xp)
    rng = np.random.default_rng(0)
    for name, p in model.params.items():
        values = (
            1 + 0.3 * rng.standard_normal(p.shape) if name.endswith("gamma") else spread * rng.standard_normal(p.shape)
        )
        p[...] = xp.asarray(values.astype(dtype))
    return model


def small(**changes):
    return Config(**{**dict(V=7, T_max=6, d=6, h=3, L=2), **changes})


def ids(B=2, T=5, V=7):
    return np.random.default_rng(1).integers(0, V, (B, T))


@every_switch
def test_every_parameters_gradient_against_central_differences(switches):
    """Ids repeat, and L = 1 covers every line of the block; ε is large enough for differences to see through."""
    model = random_model(Config(V=5, T_max=4, d=4, h=2, L=1, eps=0.1, **switches))
    idx = np.array([[1, 1, 3], [4, 1, 0]])
    _, grads = model.step(idx)
    flat, h = model.params.flat, 1e-5
    numeric = model.params.zeros_like()
    for i in range(flat.size):
        here = flat[i]
        flat[i] = here + h
        above = model.loss(idx)
        flat[i] = here - h
        numeric.flat[i] = (above - model.loss(idx)) / (2 * h)
        flat[i] = here
    for name in grads:
        assert_close(f"d{name}", grads[name], numeric[name], rtol=1e-8, atol=1e-9)


@every_switch
def test_deep_gradient_along_random_directions(switches):
    """Three blocks, all heads: the directional derivative of the whole model."""
    model = random_model(small(L=3, eps=0.1, **switches), spread=0.3)
    idx = ids()
    _, grads = model.step(idx)
    for name in grads:
        direction = random_array(np.random.default_rng(2), grads[name].shape)
        h, values = 1e-3, []
        for step in (-2, -1, 1, 2):
            model.params[name] += step * h * direction
            values.append(float(model.loss(idx)))
            model.params[name] -= step * h * direction
        numeric = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * h)
        assert_close(f"d{name}", (grads[name] * direction).sum(), np.float64(numeric), rtol=1e-6, atol=1e-8)


@every_switch
def test_device(xp, switches):
    """Every switch's step on every device is NumPy's."""
    for dtype in ("float32", "float64"):
        tolerance = device_tolerance(xp, dtype)
        model = random_model(small(**switches), dtype, xp, spread=0.2)
        loss, grads = model.step(ids())
        expected_loss, expected = random_model(small(**switches), dtype, spread=0.2).step(ids())
        assert loss.dtype == grads.flat.dtype == dtype
        assert float(loss) == pytest.approx(float(expected_loss), rel=tolerance)
        for name in grads:
            assert_close(f"d{name}", grads[name], expected[name], rtol=2 * tolerance, atol=tolerance)


@pytest.mark.parametrize("switches", [{}, dict(norm="post"), dict(gelu="exact"), dict(tie=False)], ids=switches_id)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_dtype_from_end_to_end(xp, switches, dtype):
    model = random_model(small(**switches), dtype, xp)
    logits, cache = model.forward(ids())
    assert logits.dtype == dtype
    assert_dtype(cache, dtype, "cache")
    loss, cache = model.loss_forward(ids())
    assert loss.dtype == dtype
    assert_dtype(cache, dtype, "cache")
    for dloss in (1.0, np.float64(0.5), loss):
        assert_dtype(model.loss_backward(dloss, cache), dtype, "grads")
    assert model.dtype == dtype


def naive_logits(model, idx):
    """The lesson's lines, with none of the model's own code."""
    p, config = model.params, model.config
    x = p["W_te"][idx] + p["W_pe"][: idx.shape[1]]
    for number in range(config.L):
        b = p.block(number)

        def attn(x, b=b):
            return attention_forward(x, b["W_qkv"], b["b_qkv"], b["W_o"], b["b_o"], config.h)[0]

        def mlp(x, b=b):
            return mlp_forward(x, b["W_1"], b["b_1"], b["W_2"], b["b_2"])[0]

        def ln(x, which, b=b):
            return layernorm_forward(x, b[f"{which}.gamma"], b[f"{which}.beta"])[0]

        if config.norm == "pre":
            x = x + attn(ln(x, "ln_1"))
            x = x + mlp(ln(x, "ln_2"))
        else:
            x = ln(x + attn(x), "ln_1")
            x = ln(x + mlp(x), "ln_2")
    x, _ = layernorm_forward(x, p["ln_f.gamma"], p["ln_f.beta"])
    return x @ p["W_te" if config.tie else "W_head"].T


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("tie", [True, False])
def test_forward_is_the_lessons(norm, tie):
    model = random_model(small(norm=norm, tie=tie))
    logits, _ = model.forward(ids())
    assert logits.shape == (2, 5, 7)
    assert_close("logits", logits, naive_logits(model, ids()), 1e-12)


@pytest.mark.parametrize("preset", ["tiny", "char"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_first_loss_is_ln_V(preset, norm):
    """An untrained model knows nothing: every token is equally likely."""
    config = Config.preset(preset, norm=norm)
    idx = np.random.default_rng(0).integers(0, config.V, (4, config.T_max))
    assert float(Model(config).loss(idx)) == pytest.approx(math.log(config.V), rel=0.03)


def test_without_targets_the_loss_is_the_lessons(xp):
    """cross_entropy(logits[:, :-1], idx[:, 1:]), and its gradient."""
    model = random_model(small(), xp=xp)
    idx = xp.asarray(ids())
    logits, cache = model.forward(idx)
    loss, cache_loss = cross_entropy_forward(logits[:, :-1], idx[:, 1:])
    assert float(model.loss(idx)) == pytest.approx(float(loss), rel=1e-14)
    dlogits = xp.zeros(logits.shape)
    dlogits[:, :-1] = cross_entropy_backward(1.0, cache_loss)
    expected = model.backward(dlogits, cache)
    assert_close("grads", model.step(idx).grads.flat, expected.flat, 1e-13)


def test_explicit_targets():
    model = random_model(small())
    idx = ids()
    following = np.full_like(idx, IGNORE_INDEX)
    following[:, :-1] = idx[:, 1:]
    assert float(model.loss(idx, following)) == float(model.loss(idx))
    other = np.roll(idx, 2)
    expected, _ = cross_entropy_forward(model.forward(idx)[0], other)
    assert float(model.loss(idx, other)) == float(expected)


def test_all_targets_ignored_is_0_with_zero_gradients(xp):
    model = random_model(small(), xp=xp)
    loss, grads = model.step(ids(), np.full((2, 5), IGNORE_INDEX))
    assert float(loss) == 0
    assert not grads.flat.any()


def test_dloss_scales_the_gradients():
    model = random_model(small())
    _, cache = model.loss_forward(ids())
    assert_close("grads", model.loss_backward(-2.5, cache).flat, -2.5 * model.loss_backward(1, cache).flat, 1e-14)


@pytest.mark.parametrize("switches", [{}, dict(norm="post"), dict(tie=False), dict(gelu="exact")], ids=switches_id)
def test_step_is_pure(switches):
    """Parameters, ids and targets untouched; the same bits again, another step in between or not."""
    model = random_model(small(**switches), "float32")
    idx, targets = ids(), np.roll(ids(), 1)
    before = snapshot((model.params, idx, targets))
    loss, grads = model.step(idx, targets)
    bits = snapshot((loss, grads))
    model.step(np.flip(idx))
    assert snapshot(model.step(idx, targets)) == bits
    assert snapshot((loss, grads)) == bits, "a later step wrote into an earlier one's gradients"
    assert snapshot((model.params, idx, targets)) == before


def test_backward_twice_gives_the_same_bits_and_leaves_the_cache():
    model = random_model(small(), "float32")
    logits, cache = model.forward(ids())
    dlogits = random_array(np.random.default_rng(3), logits.shape, "float32")
    before = snapshot((cache, dlogits, logits))
    first = model.backward(dlogits, cache)
    assert snapshot(model.backward(dlogits, cache)) == snapshot(first)
    assert snapshot((cache, dlogits, logits)) == before


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_block_is_pure_too(norm):
    model = random_model(small(norm=norm))
    block_forward, block_backward = BLOCK[norm]
    x = random_array(np.random.default_rng(3), (2, 5, 6))
    before = snapshot(x)
    y, cache = block_forward(x, model.params.block(0), model.config)
    dy = random_array(np.random.default_rng(4), y.shape)
    given, first, second = snapshot((y, cache, dy)), model.params.zeros_like(), model.params.zeros_like()
    dx = block_backward(dy, cache, first.block(0))
    assert snapshot(block_backward(dy, cache, second.block(0))) == snapshot(dx)
    assert snapshot(second) == snapshot(first)
    assert snapshot((y, cache, dy)) == given
    assert snapshot(x) == before


def test_interleaved_steps_share_nothing():
    model = random_model(small(), "float32")
    one, other = ids(), np.flip(ids())
    (_, cache_one), (_, cache_other) = model.loss_forward(one), model.loss_forward(other)
    assert snapshot(model.loss_backward(1.0, cache_one)) == snapshot(model.step(one).grads)
    assert snapshot(model.loss_backward(1.0, cache_other)) == snapshot(model.step(other).grads)


@every_switch
def test_reused_gradients_have_the_same_bits(switches):
    model = random_model(small(**switches), "float32")
    fresh = model.step(ids()).grads
    buffer = model.params.zeros_like()
    buffer.flat[:] = np.nan
    for _ in range(2):
        assert model.step(ids(), grads=buffer).grads is buffer
        assert buffer.flat.tobytes() == fresh.flat.tobytes()


def test_same_seed_same_bits():
    bits = [Model(Config.preset("tiny"), seed=seed).params.flat.tobytes() for seed in (3, 3, 4)]
    assert bits[0] == bits[1] != bits[2]


def test_the_seed_does_not_depend_on_numpys_global_state():
    np.random.seed(0)  # noqa: NPY002
    one = Model(Config.preset("tiny")).params.flat.tobytes()
    np.random.seed(1)  # noqa: NPY002
    assert Model(Config.preset("tiny")).params.flat.tobytes() == one


def test_every_dtype_and_device_starts_from_the_same_weights(xp):
    config = Config.preset("tiny")
    expected = Model(config, seed=5).params.flat
    for dtype in ("float32", "float64"):
        found = Model(config, seed=5, dtype=dtype, xp=xp).params.flat
        assert found.dtype == dtype
        np.testing.assert_array_equal(to_numpy(found), expected)


def test_float32_follows_float64():
    double, single = (Model(Config.preset("tiny"), dtype=dtype) for dtype in ("float64", "float32"))
    idx = ids(4, 32, 256)
    expected, found = double.step(idx), single.step(idx)
    assert float(found.loss) == pytest.approx(float(expected.loss), rel=1e-6)
    for name in expected.grads:
        assert_close(f"d{name}", found.grads[name], expected.grads[name], rtol=2e-5, atol=1e-7)


def test_initial_weights():
    config = Config.preset("char", V=500)
    model = Model(config)
    residual = 0.02 / math.sqrt(2 * config.L)
    for name, p in model.params.items():
        if p.ndim == 2:
            assert p.std() == pytest.approx(residual if name.endswith(("W_o", "W_2")) else 0.02, rel=0.03), name
            assert abs(p.mean()) < 5 * p.std() / math.sqrt(p.size), name
        else:
            np.testing.assert_array_equal(p, 1 if name.endswith("gamma") else 0, err_msg=name)
    matrices = [p for p in model.params.values() if p.ndim == 2]
    assert len({p.tobytes() for p in matrices}) == len(matrices), "two matrices drew the same numbers"


def test_no_seed_leaves_zeros():
    assert not Model(Config.preset("tiny"), seed=None).params.flat.any()


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("T", range(1, 6))
def test_editing_a_future_token_leaves_earlier_logits_bit_identical(norm, T):
    model = random_model(small(norm=norm), "float32")
    idx = ids()
    logits, _ = model.forward(idx)
    idx[:, T:] = (idx[:, T:] + 1) % 7
    edited, _ = model.forward(idx)
    assert edited[:, :T].tobytes() == logits[:, :T].tobytes()
    assert T == 5 or (edited[:, T:] != logits[:, T:]).any()


def test_without_the_mask_the_future_leaks():
    model = random_model(small(causal=False))
    idx = ids()
    logits, _ = model.forward(idx)
    idx[:, -1] = (idx[:, -1] + 1) % 7
    assert (model.forward(idx)[0][:, 0] != logits[:, 0]).any()


def test_batch_rows_do_not_mix():
    model = random_model(small())
    idx = ids(B=3)
    logits, _ = model.forward(idx)
    idx[1] = (idx[1] + 1) % 7
    edited, _ = model.forward(idx)
    assert_close("logits", edited[::2], logits[::2], 1e-13)
    assert np.abs(edited[1] - logits[1]).max() > 1e-3


def test_the_tied_gradient_is_the_sum_of_both_parts(xp):
    """An untied model whose W_head holds W_te's numbers shows the two shares apart."""
    tied, untied = random_model(small(), xp=xp), Model(small(tie=False), seed=None, dtype="float64", xp=xp)
    for name in tied.params:
        untied.params[name] = tied.params[name]
    untied.params["W_head"] = tied.params["W_te"]
    loss, grads = tied.step(ids())
    loss_untied, grads_untied = untied.step(ids())
    assert float(loss) == float(loss_untied)
    for name in grads:
        expected = grads_untied[name] + grads_untied["W_head"] if name == "W_te" else grads_untied[name]
        assert_close(f"d{name}", grads[name], expected, 1e-14)
    head, embedding = (to_numpy(grads_untied[name]) for name in ("W_head", "W_te"))
    assert min(np.abs(head).max(), np.abs(embedding).max()) > 1e-3, "neither share is small enough to be overlooked"


def test_the_model_adds_the_embeddings_share_for_repeated_ids():
    model = random_model(small(tie=False))
    _, cache = model.loss_forward([[2, 2, 2, 2]])
    grads = model.loss_backward(1.0, cache)
    dx = grads["W_pe"][:4]  # one sequence: each position's own gradient
    assert_close("dW_te[2]", grads["W_te"][2], dx.sum(axis=0), 1e-14)
    assert not np.delete(grads["W_te"], 2, axis=0).any()
    dW_te, _ = embedding_backward(dx[None], cache[0][0])
    np.testing.assert_array_equal(dW_te, grads["W_te"])


def test_unused_positions_have_no_gradient(xp):
    grads = random_model(small(), xp=xp).step(ids(T=4)).grads
    assert not grads["W_pe"][4:].any()
    assert bool((grads["W_pe"][:3] != 0).all())


@pytest.mark.parametrize("causal", [True, False])
def test_the_k_third_of_b_qkv_has_no_gradient(causal):
    grads = random_model(small(causal=causal)).step(ids()).grads
    for number in range(2):
        dq, dk, dv = np.abs(grads.block(number)["b_qkv"]).reshape(3, 6).max(axis=1)
        assert dk < 1e-13 * max(dq, dv)


def test_lists_are_ids_too(xp):
    model = random_model(small(), xp=xp)
    idx = ids().tolist()
    expected = model.step(xp.asarray(ids()), xp.asarray(np.roll(ids(), 1)))
    loss, grads = model.step(idx, np.roll(ids(), 1).tolist())
    assert float(loss) == float(expected.loss)
    assert_close("grads", grads.flat, expected.grads.flat, 1e-14)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32"])
def test_narrow_ids(xp, dtype):
    """Token files hold uint16."""
    model = random_model(small(), xp=xp)
    idx = ids()
    idx[0, 0] = 0
    expected = model.step(idx)
    loss, grads = model.step(idx.astype(dtype))
    assert float(loss) == float(expected.loss)
    assert_close("grads", grads.flat, expected.grads.flat, 1e-14)


@pytest.mark.parametrize("T", [1, 6])
def test_shortest_and_longest_sequence(T):
    model = random_model(small())
    logits, _ = model.forward(np.zeros((1, T), int))
    assert logits.shape == (1, T, 7)
    targets = np.ones((1, T), int)
    assert np.isfinite(model.step(np.zeros((1, T), int), targets).grads.flat).all()


@pytest.mark.parametrize(
    ("idx", "message"),
    [
        ([[0, 1], [2, -1]], r"idx\[1, 1\] is -1; ids must lie in 0 <= id < V = 7"),
        ([[0, 7], [2, 3]], r"idx\[0, 1\] is 7"),
        ([[0] * 7], "T = 7 positions, more than T_max = 6"),
        ([[0.0, 1.0]], "idx must be integers, got dtype float64"),
        ([[3], [4]], r"idx \(2, 1\) has no next token to predict; without targets it needs T >= 2"),
        (3, r"idx \(\) has no next token"),
    ],
)
def test_bad_ids(xp, idx, message):
    model = random_model(small(), xp=xp)
    for attempt in (model.step, model.loss):
        with pytest.raises(ValueError, match=message):
            attempt(idx)


@pytest.mark.parametrize("bad", [-4, 7])
def test_bad_targets(xp, bad):
    model = random_model(small(), xp=xp)
    with pytest.raises(ValueError, match=rf"targets\[0, 2\] is {bad}; ids must lie in 0 <= id < V = 7"):
        model.step([[0, 1, 2]], [[1, 2, bad]])
    with pytest.raises(ValueError, match=r"targets have shape \(1, 2\), but logits \(1, 3, 7\) want \(1, 3\)"):
        model.step([[0, 1, 2]], [[1, 2]])


@pytest.mark.parametrize("dtype", ["float16", "int64", "complex128", "foo", None])
def test_another_dtype_is_an_error(dtype):
    with pytest.raises(ValueError, match=f"dtype must be float32 or float64, got {dtype!r}"):
        Model(Config.preset("tiny"), dtype=dtype)


def test_numpys_own_dtypes_name_a_dtype():
    assert Model(Config.preset("tiny"), dtype=np.float64).dtype == np.dtype("float64")


def test_a_deep_copy_keeps_the_weights_as_they_are():
    class Other(Model):
        pass

    model = Other(Config.preset("tiny"), seed=1, dtype="float64")
    kept = copy.deepcopy(model)
    assert type(kept) is Other
    logits, _ = model.forward([[1, 2, 3]])
    model.params.flat[...] += 1
    assert kept.dtype == model.dtype
    np.testing.assert_array_equal(kept.forward([[1, 2, 3]])[0], logits)
    kept.params["W_te"][...] = 0  # a view of its own flat vector
    assert not kept.params.flat[: kept.params["W_te"].size].any()


def test_repr():
    assert "53" in repr(Model(small(V=53)))
    assert "dtype=float32" in repr(Model(small()))


def test_grads_are_parameters(xp):
    model = random_model(small(), xp=xp)
    step = model.step(ids())
    loss, grads = step
    assert step.loss is loss
    assert isinstance(grads, Parameters)
    assert list(grads) == list(model.params)
    assert {name: g.shape for name, g in grads.items()} == model.config.parameter_shapes()


@pytest.mark.parametrize("idx", [3, [], [[]]])
def test_no_ids_at_all(idx):
    with pytest.raises(ValueError, match="at least one id"):
        Model(Config.preset("tiny")).forward(np.array(idx, dtype=int))


def test_what_is_no_config_or_seed():
    with pytest.raises(TypeError, match=r"config must be a Config, got 'gpt2'; a preset is Config\.preset\(name\)"):
        Model("gpt2")
    for seed in (-1, 0.5, True):
        with pytest.raises(ValueError, match=f"seed must be None or a whole number of at least 0, got {seed}"):
            Model(Config.preset("tiny"), seed)


def test_another_models_gradients_are_refused():
    model, other = Model(Config(V=5, T_max=4, d=4, h=2, L=1)), Model(Config(V=5, T_max=4, d=8, h=2, L=1))
    with pytest.raises(ValueError, match=r"grads, .*, are not shaped as the model's parameters"):
        model.step(np.zeros((1, 4), int), grads=other.params.zeros_like())
