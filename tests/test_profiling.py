import json
import math
import sys
import threading
import tracemalloc
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from helpers import snapshot
from hypothesis import given
from hypothesis import strategies as st

from numpy_gpt import Config, Model, budget, cores, mkl, profiling
from numpy_gpt.ops import mlp
from numpy_gpt.profiling import (
    Limits,
    OpTimer,
    Sweep,
    Timing,
    fit_power,
    fit_quadratic,
    limits,
    measure_bandwidth,
    measure_gemm_peak,
    measure_own_gemms,
    profile_step,
    sweep,
    timed_ops,
)
from numpy_gpt.profiling import step as step_module
from numpy_gpt.profiling.scaling import default_axes, settings_along
from numpy_gpt.profiling.step import COUNTED_AS, KINDS
from numpy_gpt.profiling.tables import why
from numpy_gpt.profiling.timers import modules_of_ops

SMALL = Config(V=11, T_max=9, d=8, h=2, L=3)
IN_BLOCKS = {"ln_1", "qkv", "attend", "W_o", "ln_2", "W_1", "gelu", "W_2"}
ONCE = {"embedding", "ln_f", "head", "loss"}


class Ticks:
    """A clock that is a second later at each look."""

    def __init__(self):
        self.now = 0

    def __call__(self):
        self.now += 1
        return self.now


class Manual:
    """A clock that is moved by hand."""

    now = 0.0

    def __call__(self):
        return self.now


def ids(config, B=2, T=5, seed=0):
    return np.random.default_rng(seed).integers(0, config.V, (B, T))


def run_timed(model, idx):
    """Run a step under a timer whose clock ticks; return the timer, the loss and the gradients."""
    timer = OpTimer(model, Ticks())
    with timed_ops(timer):
        with timer.measure("rest", "forward"):
            loss, cache = model.loss_forward(idx)
        with timer.measure("rest", "backward"):
            grads = model.loss_backward(1.0, cache)
    return timer, loss, grads


def small_profile(config=SMALL, B=2, T=5, **settings):
    return profile_step(Model(config), ids(config, B, T), repeats=2, limits=False, clock=Ticks(), **settings)


def synthetic(profile, forward, backward):
    """Return profile as if its step had taken these seconds."""
    return replace(profile, plain_forward=Timing((forward,)), plain_backward=Timing((backward,)))


@pytest.fixture
def small_limits(monkeypatch):
    """Machine limits from products that take no time."""
    for function, size in (("measure_gemm_peak", {"sizes": (16,)}), ("measure_bandwidth", {"size": 4096})):
        quick = partial(getattr(profiling, function), seconds=0, **size)
        monkeypatch.setattr(step_module, function, quick)
    monkeypatch.setattr(step_module, "measure_own_gemms", partial(measure_own_gemms, seconds=0))


# Timers


@pytest.mark.parametrize(
    ("changes", "T"),
    [
        ({}, 5),
        ({"norm": "post"}, 5),
        ({"tie": False}, 5),
        ({"gelu": "exact"}, 5),
        ({"causal": False, "scale": False}, 5),
        ({"T_max": 200}, 130),  # attention in tiles
        ({"d": 256, "T_max": 200}, 200),  # LayerNorm and GELU in blocks, in threads
    ],
)
def test_every_op_is_seen_once_a_call_both_ways(changes, T):
    config = replace(SMALL, **changes)
    timer, _, _ = run_timed(Model(config), ids(config, T=T))
    for way in ("forward", "backward"):
        found = {name: seconds for (name, w), seconds in timer.seconds.items() if w == way}
        assert set(found) == {*IN_BLOCKS, *ONCE, "residual", "rest"} == set(KINDS)
        # An op's two looks at the clock are a second apart.
        assert {name: found[name] for name in IN_BLOCKS} == dict.fromkeys(IN_BLOCKS, config.L)
        assert {name: found[name] for name in ONCE} == dict.fromkeys(ONCE, 1)


def test_timers_change_no_number():
    model, idx = Model(SMALL), ids(SMALL)
    _, loss, grads = run_timed(model, idx)
    expected = model.step(idx)
    assert loss == expected.loss
    assert grads.flat.tobytes() == expected.grads.flat.tobytes()


def test_seconds_within_a_call_count_once_and_add_up():
    model, clock = Model(SMALL), Manual()
    timer = OpTimer(model, clock)

    def linear_forward(x, W, b):
        clock.now += 4
        return x, (x, W)

    def linear_backward(dy, cache):
        clock.now += 8
        return dy

    linear, linear_back = map(timer.wrap, (linear_forward, linear_backward))

    def mlp_forward(x, W_1, b_1, W_2, b_2):
        clock.now += 1
        x, cache_1 = linear(x, W_1, b_1)
        clock.now += 2
        x, cache_2 = linear(x, W_2, b_2)
        return x, (cache_1, cache_2)

    def head_forward(x, W):
        clock.now += 16
        return linear(x, W, None)  # a part of the head

    p = model.params.block(1)
    with timer.measure("rest", "forward"):
        y, (cache_1, cache_2) = timer.wrap(mlp_forward)(0, p["W_1"], p["b_1"], p["W_2"], p["b_2"])
        clock.now += 32
        timer.wrap(head_forward)(y, model.params["W_te"])
    linear_back(0, cache_2)
    linear_back(0, cache_2)
    linear_back(0, cache_1)
    assert timer.seconds == {
        ("W_1", "forward"): 4,
        ("W_2", "forward"): 4,
        ("head", "forward"): 20,
        ("rest", "forward"): 1 + 2 + 32,
        ("W_2", "backward"): 16,
        ("W_1", "backward"): 8,
    }


def test_ops_in_other_threads_belong_to_the_op_that_started_them():
    model, clock = Model(SMALL), Manual()
    timer = OpTimer(model, clock)

    def gelu_forward(x):
        clock.now += 3
        return x, ()

    gelu = timer.wrap(gelu_forward)

    def attend_forward(x):
        thread = threading.Thread(target=gelu, args=(x,))
        thread.start()
        thread.join()
        return x, ()

    timer.wrap(attend_forward)(0)
    thread = threading.Thread(target=gelu, args=(0,))
    thread.start()
    thread.join()
    assert timer.seconds == {("attend", "forward"): 3}


def everything():
    """Return what every name and table of the modules of ops holds."""
    found = {}
    for module in modules_of_ops():
        for name, value in vars(module).items():
            found[module.__name__, name] = dict(value) if isinstance(value, dict) and name[0] != "_" else value
    return found


def test_all_is_put_back_after_an_error_too():
    before = everything()
    gelu_table = mlp.GELU
    timer = OpTimer(Model(SMALL))
    during = {}

    def fail_under_timers():
        with timed_ops(timer):
            during.update(everything())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_under_timers()
    after = everything()
    changed = {name for _, name in before if any(during[key] is not before[key] for key in before if key[1] == name)}
    assert {"layernorm_forward", "linear_backward", "attend_tiled_forward", "BLOCK", "GELU"} <= changed
    assert during["numpy_gpt.ops.mlp", "GELU"]["tanh"] != before["numpy_gpt.ops.mlp", "GELU"]["tanh"]
    assert mlp.GELU is gelu_table
    assert after.keys() == before.keys()
    for key, value in before.items():
        assert after[key] == value if isinstance(value, dict) else after[key] is value, key


def test_an_op_that_fails_leaves_the_timer_whole():
    timer = OpTimer(Model(SMALL), Ticks())

    def gelu_forward(x):
        raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            timer.wrap(gelu_forward)(0)
    assert timer.seconds == {("gelu", "forward"): 2}


# A profile


def test_ops_add_up_to_the_step_in_every_repeat():
    profile = small_profile()
    for way in ("forward", "backward"):
        sums = [sum(getattr(op, way).samples[n] for op in profile.ops) for n in range(profile.repeats)]
        assert sums == list(getattr(profile.total, way).samples)
    assert profile.repeats == 2
    assert profile.together(*set(KINDS.values())).samples == profile.total.both.samples
    assert sum(map(profile.share, set(KINDS.values()))) == pytest.approx(1)
    assert sum(excess for _, excess in profile.excess()) == pytest.approx(
        profile.total.backward.median - 2 * profile.total.forward.median
    )


def test_short_steps_are_repeated_within_a_turn():
    ticks = Ticks()
    profile = profile_step(Model(SMALL), ids(SMALL), repeats=2, limits=False, clock=lambda: ticks() / 1e4)
    assert profile.repeats > 4
    assert {len(op.forward.samples) for op in profile.ops} == {profile.repeats}


def test_the_model_is_as_before():
    model = Model(SMALL)
    before = snapshot(model.params)
    profile_step(model, ids(SMALL), repeats=2, limits=False)
    assert snapshot(model.params) == before


@pytest.mark.parametrize("changes", [{}, {"norm": "post", "tie": False, "gelu": "exact", "scale": False}])
@pytest.mark.parametrize("T", [9, 130])
def test_flops_and_bytes_are_the_budgets(changes, T):
    config = replace(SMALL, T_max=T, **changes)
    profile, counted = small_profile(config, T=T), budget.budget(config, 2, T)["flops"]
    for way in ("forward", "backward"):
        for what, key in (("flops", way), ("bytes", f"bytes_{way}")):
            for op in profile.ops:
                own = [entry for entry in counted["ops"] if COUNTED_AS.get(entry["name"], entry["name"]) == op.name]
                assert getattr(op, f"{what}_{way}") == sum(entry["times"] * entry[key] for entry in own)
            total = sum(entry["times"] * entry[key] for entry in counted["ops"])
            assert getattr(profile.total, f"{what}_{way}") == total
    assert profile.memory == budget.memory(config, 2, T)


def test_rates_leave_out_what_attention_skips():
    profile = small_profile(replace(SMALL, T_max=130), T=130)
    skipped = 130**2 - (128 * 128 + 2 * 130)  # of a tile of 128 queries, and one of 2 that sees every key
    for op in profile.ops:
        heads = 3 * 2 * 2 if op.name == "attend" else 0  # L·B·h
        pair = 4 * 4 + 5, 8 * 4 + 5  # d_head = 4: the products, then scale and softmax
        assert op.done_forward == op.flops_forward - skipped * heads * pair[0]
        assert op.done_backward == op.flops_backward - skipped * heads * pair[1]
    short = small_profile()
    assert short.total.done_forward == short.total.flops_forward


def test_ratios_rates_and_intensity():
    op = replace(
        small_profile()["gelu"],
        forward=Timing((2.0, 1.0, 9.0)),
        backward=Timing((4.0, 3.0, 5.0)),
        flops_forward=6,
        flops_backward=18,
        done_forward=6,
        done_backward=12,
        bytes_forward=4,
        bytes_backward=8,
    )
    assert (op.ratio, op.counted_ratio) == (2, 3)
    assert (op.rate("forward"), op.rate("backward"), op.rate()) == (3, 3, 3)
    assert (op.bandwidth("forward"), op.bandwidth("backward"), op.bandwidth()) == (2, 2, 2)
    assert (op.intensity("forward"), op.intensity()) == (1.5, 1.5)
    assert math.isnan(replace(op, forward=Timing((0.0,))).ratio)
    timing = Timing((1.0, 2.0, 3.0, 4.0, 5.0))
    assert (timing.median, timing.low, timing.high, timing.spread) == (3, 2, 4, 1)


def test_rest_is_where_an_op_that_nobody_knows_would_stand(monkeypatch):
    monkeypatch.setitem(mlp.GELU, "tanh", (swish_forward, swish_backward))
    profile = small_profile()
    assert (profile["swish"].kind, profile["swish"].flops_forward) == ("rest", 0)
    assert profile["swish"].forward.samples == (3, 3)
    assert profile["gelu"].forward.samples == (0, 0)


def swish_forward(x):
    return x, ()


def swish_backward(dy, cache):
    return dy


swish_forward.__module__ = swish_backward.__module__ = "numpy_gpt.elsewhere"


seconds = st.floats(1e-9, 1e9)


@given(st.lists(seconds, min_size=5, max_size=5), st.lists(seconds, min_size=5, max_size=5), st.floats(1e-3, 1e30))
def test_mfu_is_never_above_one(plain, timed, gemm):
    profile = PROFILE
    ops = tuple(replace(op, forward=Timing(tuple(timed)), backward=Timing(tuple(timed))) for op in profile.ops)
    profile = replace(
        profile,
        ops=ops,
        plain_forward=Timing(tuple(plain)),
        plain_backward=Timing(tuple(plain)),
        limits=Limits({"square": gemm}, 1.0),
    )
    name, limit = profile.limit
    assert 0 < profile.mfu <= 1
    assert limit >= max(gemm, profile.rate, *(op.rate("backward") for op in ops if op.done_backward))
    assert (name == "square") == (limit == gemm)


PROFILE = small_profile()


def test_limits_are_measured_before_and_after(small_limits):
    profile = profile_step(Model(SMALL), ids(SMALL), repeats=1, clock=Ticks())
    gemm = profile.limits.gemm
    assert gemm["square, before"] == gemm["square, after"] == 2 * 16**3
    assert gemm["W_1: y = x W"] == 2 * 10 * 8 * 32
    assert gemm["head: dW = xᵀ dy"] == 2 * 10 * 8 * 11
    assert len(gemm) == 2 + 5 * 3
    assert profile.limits.peak == max(gemm.values()) == gemm[profile.limits.peak_name]
    assert profile.limits.ridge == profile.limits.peak / profile.limits.bandwidth


def test_a_profile_as_json_and_as_text(small_limits):
    profile = profile_step(Model(SMALL), ids(SMALL), repeats=1)
    found = json.loads(json.dumps(profile.to_dict(), allow_nan=False))
    assert [op["name"] for op in found["ops"]] == list(KINDS)
    assert found["ops"][2]["counted_ratio"] == profile.ops[2].counted_ratio
    assert found["limits"]["gemm"].keys() == profile.limits.gemm.keys()
    assert found["mfu"] == profile.mfu
    text = str(profile)
    assert max(map(len, text.splitlines())) <= 120
    for part in (*KINDS, "counted", "of the", "MFU", "tokens/s", "square products reached", "backward − 2·forward"):
        assert part in text
    assert "MFU" not in str(replace(profile, limits=None))


@pytest.mark.parametrize(
    ("device", "at_hand", "n_cores", "told"),
    [("numpy", True, 2, True), ("numpy", False, 2, False), ("cupy", True, 2, False), ("numpy", True, 64, False)],
)
def test_a_profile_says_who_multiplies(small_limits, monkeypatch, device, at_hand, n_cores, told):
    profile = replace(profile_step(Model(SMALL), ids(SMALL), repeats=1), device=device)
    monkeypatch.setattr(mkl, "is_at_hand", lambda: at_hand)
    monkeypatch.setattr(cores, "n_cores", lambda: n_cores)
    assert ("MKL does the large ones" in str(profile)) == told


@pytest.mark.parametrize(("settings", "word"), [({"repeats": 0}, "repeats"), ({"warmup": -1}, "warmup")])
def test_profile_mistakes(settings, word):
    with pytest.raises(ValueError, match=word):
        profile_step(Model(SMALL), ids(SMALL), **settings)


# The machine


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rates_of_a_clock_that_is_known(xp, dtype):
    assert measure_gemm_peak(dtype, xp, sizes=(4, 8, 6), clock=Ticks()) == 2 * 8**3
    assert measure_bandwidth(dtype, xp, size=2**22, clock=Ticks()) == 3 * 2**22
    rates = measure_own_gemms(SMALL, 2, 5, dtype, xp, clock=Ticks())
    assert rates["W_2: dx = dy Wᵀ"] == 2 * 10 * 8 * 32


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("config", [Config(V=50_000, T_max=8, d=64, h=2, L=1), Config(V=9, T_max=8, d=256, h=2, L=1)])
def test_limits_take_no_more_memory_than_is_told(config, dtype, monkeypatch):
    monkeypatch.setattr(limits, "SQUARES", {True: (64,)})
    monkeypatch.setattr(limits, "large", lambda xp: 2**20)
    tracemalloc.start()
    measure_gemm_peak(dtype, seconds=0, clock=Ticks())
    measure_bandwidth(dtype, seconds=0, clock=Ticks())
    measure_own_gemms(config, 2, 8, dtype, seconds=0, clock=Ticks())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak == pytest.approx(limits.limits_memory(config, 2, 8, dtype, np), rel=0.02)


@pytest.mark.parametrize(
    ("changes", "gelu", "rest"),
    [({}, "takes its slope on the way forward", "tied sum"), ({"gelu": "exact", "tie": False}, "exact form", "Python")],
)
def test_reasons_are_those_of_the_config(changes, gelu, rest):
    config = replace(SMALL, **changes)
    profile = profile_step(Model(config), ids(config), repeats=1, warmup=0, limits=False, clock=Ticks())
    assert gelu in why(profile["gelu"], config)
    assert why(profile["rest"], config).startswith(("the " if config.tie else "") + rest)
    assert "two of the same size backward" in why(profile["W_1"], config)
    assert why(profile["loss"], config).startswith("forward makes a softmax over V")


@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4)])
def test_ids_of_another_shape(shape):
    with pytest.raises(ValueError, match=r"^idx has shape .*; expected \(B, T\)$"):
        profile_step(Model(SMALL), np.zeros(shape, int))


def test_the_device_is_waited_for_before_each_look_at_the_clock(strict):
    stream = strict.cuda.get_current_stream()
    looks = []

    def clock():
        looks.append(stream.n_synchronized)
        return len(looks)

    measure_gemm_peak("float32", strict, sizes=(4,), clock=clock)
    assert all(end > start for start, end in zip(looks[::2], looks[1::2], strict=True))
    timer = OpTimer(Model(SMALL, xp=strict), clock)
    looks.clear()

    def gelu_forward(x):
        return x, ()

    timer.wrap(gelu_forward)(0)
    assert looks[1] > looks[0]


def test_profile_on_a_device(strict, small_limits):
    config = replace(SMALL, T_max=130)
    profile = profile_step(Model(config, xp=strict), ids(config, T=130), repeats=1, clock=Ticks())
    assert profile.device == "strict_device"
    assert profile["W_1"].forward.samples == (3,)
    assert profile.total.done_forward == profile.total.flops_forward  # no tiles there
    assert profile.mfu <= 1


# Fits and sweeps

exponents, factors = st.floats(-3, 3), st.floats(1e-6, 1e6)
sizes = st.lists(st.integers(1, 5000), min_size=3, max_size=8, unique=True)


@given(exponents, factors, sizes)
def test_fit_power_finds_the_power(p, c, x):
    found_p, found_c = fit_power(x, [c * n**p for n in x])
    assert found_p == pytest.approx(p, abs=1e-7)
    assert found_c == pytest.approx(c, rel=1e-6)


@given(factors, factors, factors, sizes)
def test_fit_quadratic_finds_the_curve(c, a, b, x):
    y = [c + a * n + b * n**2 for n in x]
    found_c, found_a, found_b = fit_quadratic(x, y)
    for n, expected in zip(x, y):
        assert found_c + found_a * n + found_b * n**2 == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("c", [0.0, 2.0, 8.0, 50.0])
def test_fit_quadratic_leaves_a_fixed_cost_out_of_the_square(c):
    x = [32, 64, 128, 256, 512, 1024]
    found = fit_quadratic(x, [c + 0.15 * n + 1.2e-4 * n**2 for n in x])
    assert found == pytest.approx((c, 0.15, 1.2e-4), rel=1e-6, abs=1e-6)


def test_fit_quadratic_takes_no_part_below_zero():
    x = [1, 2, 4, 8]
    assert fit_quadratic(x, [n**0.5 for n in x])[2] == 0
    assert fit_quadratic(x, [n**3 for n in x])[:2] == (0, 0)


@pytest.mark.parametrize("fit", [fit_power, fit_quadratic])
@pytest.mark.parametrize(("x", "y"), [([1, 1], [1, 2]), ([1, 2], [0, 1]), ([0, 1], [1, 1])])
def test_fits_refuse_what_cannot_be_fitted(fit, x, y):
    with pytest.raises(ValueError, match="above 0"):
        fit(x, y)


def test_sweep_measures_what_it_says():
    found = sweep(SMALL, 2, 4, {"d": (16, 8), "T": (4, 12, 8), "B": (1, 3), "L": (2, 1)}, 2, clock=Ticks())
    assert {axis: [value for value, _ in points] for axis, points in found.axes.items()} == {
        "d": [8, 16],
        "T": [4, 8, 12],
        "B": [1, 3],
        "L": [1, 2],
    }
    for axis, points in found.axes.items():
        for value, profile in points:
            sizes = {"d": profile.config.d, "L": profile.config.L, "T": profile.T, "B": profile.B}
            assert sizes == {"d": 8, "L": 3, "T": 4, "B": 2, axis: value}
            assert profile.repeats == 2
            assert profile.limits is None
    assert found.axes["T"][-1][1].config.T_max == 12
    text = str(found)
    for part in ("Along d", "Along B", "cost ∝ T^", "farthest from 2", "c + a·T + b·T²", "counted"):
        assert part in text
    parsed = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert [point["value"] for point in parsed["axes"]["T"]] == [4, 8, 12]
    assert parsed["fits"]["L"]["expected"] == 1
    for axes in ({"d": (8, 16)}, {"T": (2, 4)}):
        without = sweep(SMALL, 2, 4, axes, 1)
        assert without.to_dict()["quadratic"] is None
        assert "b·T²" not in str(without)


def test_sweep_recovers_the_growth_of_what_it_measured():
    d = tuple((n, synthetic(PROFILE, 1e-9 * n**2, 2e-9 * n**2)) for n in (64, 128, 256))
    T = tuple((n, synthetic(PROFILE, 1e-4 + 2e-6 * n, 1e-8 * n**2)) for n in (50, 100, 200))
    found = Sweep(SMALL, 2, 5, {"d": d, "T": T})
    assert (found.fit("d").exponent, found.fit("d").last_slope) == (pytest.approx(2), pytest.approx(2))
    assert found.fit("d").counted_exponent == pytest.approx(0)  # the same profile each time
    assert 0 < found.fit("T").exponent < found.fit("T").last_slope < 2
    quadratic = found.quadratic()
    assert quadratic.constant == pytest.approx(1e-4)
    assert (quadratic.linear, quadratic.quadratic) == (pytest.approx(2e-6), pytest.approx(1e-8))
    assert quadratic.share == pytest.approx(4 / 9)  # 1e-4, 4e-4 and 4e-4 s
    assert quadratic.attend_share == pytest.approx(PROFILE.share("attention"))
    assert quadratic(np.array([200]))[0] == pytest.approx(9e-4)
    assert quadratic.T == 200


def test_counted_exponents_are_the_lessons():
    """At widths where the blocks are all, the counted cost grows with d² and with L."""
    config = Config(V=2, T_max=2, d=4, h=1, L=2)
    found = sweep(config, 1, 2, {"d": (256, 512), "L": (4, 8)}, 1, clock=Ticks())
    assert found.fit("d").counted_exponent == pytest.approx(2, abs=0.02)
    assert found.fit("L").counted_exponent == pytest.approx(1, abs=0.02)


@given(st.integers(1, 300), st.integers(1, 8), st.integers(1, 30), st.integers(1, 300), st.integers(1, 30))
def test_default_axes_make_models(width, h, L, T, B):
    config = Config(V=5, T_max=T, d=width * h, h=h, L=L)
    axes = default_axes(config, B, T)
    for axis, values in axes.items():
        assert len(values) >= 2
        assert {"d": config.d, "L": L, "T": T, "B": B}[axis] in values
        settings_along(axis, values, config, B, T)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"axes": {"h": (1, 2)}}, "'h'"),
        ({"axes": {"d": (8,)}}, "two"),
        ({"axes": {"B": (0, 1)}}, "at least 1"),
        ({"axes": {"d": (8, 9)}}, "divisible"),
        ({"repeats": 0}, "repeats"),
    ],
)
def test_sweep_mistakes(settings, word):
    with pytest.raises(ValueError, match=word):
        sweep(SMALL, **settings)


# Pictures


def test_pictures_show_every_op_and_axis(small_limits):
    figure_module = pytest.importorskip("matplotlib.figure")
    profile = profile_step(Model(SMALL), ids(SMALL), repeats=1)
    figure = figure_module.Figure(figsize=(16, 8))
    profiling.draw_profile(profile, figure)
    ratios, roofline = figure.axes
    names = [label.get_text() for label in ratios.get_yticklabels()]
    assert names == [name for name in (*KINDS, "step") if name != "rest"]
    assert {line for text in roofline.texts for line in text.get_text().splitlines()} >= set(names)
    figure = figure_module.Figure()
    profiling.draw_profile(replace(profile, limits=None), figure)
    assert len(figure.axes) == 1
    figure = figure_module.Figure(figsize=(16, 8))
    profiling.draw_sweep(sweep(SMALL, 2, 4, {"d": (8, 16), "T": (2, 4)}, 1), figure)
    assert [axes.get_xlabel() for axes in figure.axes[2:]] == ["d", "T"]


def test_a_picture_needs_matplotlib_and_a_known_ending(monkeypatch):
    pytest.importorskip("matplotlib")
    with pytest.raises(ValueError, match=r"\.png, \.pdf or \.svg"):
        profiling.pictures.picture_format("time.txt")
    assert profiling.pictures.picture_format("a/b.SVG") == "svg"
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"numpy_gpt\[plots\]"):
        profiling.pictures.picture_format("time.png")
