"""The verdicts: right gradients pass, kinks and noise are not called wrong, nothing compared is a failure."""

from typing import NamedTuple

import numpy as np
import pytest

from numpy_gpt import Config, Model
from numpy_gpt.gradcheck import Report, Verdict, check, check_model, check_projections, fuzz, suite
from numpy_gpt.gradcheck.cases import CASES, LARGE, case
from numpy_gpt.gradcheck.models import CONFIGS, IDX
from numpy_gpt.ops import blocked
from numpy_gpt.ops.attend_tiled import TILE

X = np.random.default_rng(1).standard_normal((3, 4))


def square(x):
    return x * x, x


def square_backward(dy, x):
    return 2 * x * dy


def relu(x):
    return np.maximum(x, 0), x


def relu_backward(dy, x):
    return dy * (x > 0)


def line_of(report: Report, check_name: str, name: str | None = None):
    return next(line for line in report.lines if line.check == check_name and name in (None, line.name))


@pytest.fixture(scope="module")
def everything():
    return suite(seed=0)


def test_all_of_ours_pass(everything):
    assert everything.ok, str(everything)
    assert everything.targets == [*CASES, *LARGE, *CONFIGS]
    assert {line.verdict for line in everything.lines} == {Verdict.PASS}


def test_all_of_ours_agree_as_closely_as_promised(everything):
    for check_name, most in (("differences", 1e-8), ("complex step", 1e-11)):
        relative = {
            f"{line.target} {line.name}": line.relative for line in everything.lines if line.check == check_name
        }
        assert len(relative) > 100
        assert max(relative.values()) <= most, max(relative, key=relative.get)


def test_small_models_cover_the_switches():
    assert {c.tie for c in CONFIGS.values()} == {True, False}
    assert {c.gelu for c in CONFIGS.values()} == {"tanh", "exact"}
    assert {c.norm for c in CONFIGS.values()} == {"pre", "post"}
    assert all(len(set(row)) < len(row) for row in IDX)


def test_no_false_alarm_at_random_shapes():
    report = fuzz(150, seed=20_000)
    assert report.ok, str(report)


def test_every_check_is_there(everything):
    found = {line.check for line in everything.lines}
    assert found >= {
        "differences",
        "complex step",
        "adjoint",
        "linearity",
        "inputs unmodified",
        "upstream unmodified",
        "cache unmodified",
        "same bits twice",
        "interleaved calls",
        "other inputs",
        "memory layouts",
        "dtype and shape",
        "float32 values",
        "ranks",
        "invariant: rows sum to 0",
        "invariant: dx orthogonal to ones",
        "invariant: dx orthogonal to x̂",
        "invariant: gradient of the future is 0",
        "invariant: the past does not see the future",
        "invariant: K third is 0",
        "invariant: tied gradient is the sum of both parts",
        "invariant: out= is written",
        "invariant: used gradients are written over",
        "invariant: as in one piece",
        "no floating-point warning",
        "float64 throughout",
        "projection",
    }


def test_usable_as_a_test():
    assert check(square, square_backward, X).ok
    assert not check(square, lambda dy, x: x * dy, X).ok


def test_same_seed_same_report():
    first, second, other = (check(square, square_backward, X, seed=seed) for seed in (4, 4, 5))
    assert first.lines == second.lines
    assert first.lines != other.lines


def test_tuple_outputs_integer_inputs_and_kwargs():
    def forward(x, ids, y, power=1):
        return (x[ids] ** power, x * y), (x, ids, y, power)

    def backward(dout, cache):
        (da, db), (x, ids, y, power) = dout, cache
        dx = db * y
        np.add.at(dx, ids, da * power * x[ids] ** (power - 1))
        return dx, db * x

    ids = np.array([0, 2, 2])
    report = check(forward, backward, X, ids, X + 1, kwargs={"power": 3})
    assert report.ok, str(report)
    assert {line.name for line in report.lines if line.check == "complex step"} == {"dx", "dy"}


class Largest(NamedTuple):
    value: np.ndarray
    index: np.ndarray
    positive: np.ndarray


def test_outputs_without_a_gradient_and_their_names():
    def forward(x):
        return Largest(x.max(axis=-1), x.argmax(axis=-1), x.max(axis=-1) > 0), x

    def backward(dout, x):
        return dout.value[..., None] * (np.arange(x.shape[-1]) == x.argmax(axis=-1)[..., None])

    report = check(forward, backward, X)
    assert report.ok, str(report)
    assert not check(forward, lambda dout, x: 2 * backward(dout, x), X).ok


def test_wrt_limits_what_is_compared():
    def forward(x, y):
        return x * y, (x, y)

    def backward(dout, cache):
        return dout * cache[1], 0 * dout

    assert check(forward, backward, X, X + 1, wrt=["x"]).ok
    report = check(forward, backward, X, X + 1, wrt=[1], contract=False)
    assert [line.name for line in report.lines if line.check == "differences"] == ["dy"]
    with pytest.raises(ValueError, match="'z', which is no differentiable input; there are x, y"):
        check(forward, backward, X, X, wrt=["z"])


@pytest.mark.parametrize(
    ("forward", "backward"),
    [(relu, relu_backward), (lambda x: (np.abs(x), x), lambda dy, x: dy * np.sign(x))],
    ids=["relu", "abs"],
)
def test_kinks_are_inconclusive(forward, backward):
    report = check(forward, backward, np.array([1.0, 0.0, -1.0]))
    line = line_of(report, "differences")
    assert line.verdict is Verdict.INCONCLUSIVE
    assert "a kink" in line.note
    assert line.index == (1,)
    assert not report.ok
    assert check(forward, backward, np.array([1.0, 1e-4, 3e-5, -1e-5, -1.0])).ok  # near a kink is not at it


def test_a_gradient_outside_both_slopes_of_a_kink_never_passes():
    report = check(relu, lambda dy, x: dy * np.where(x == 0, 5, x > 0), np.array([1.0, 0.0, -1.0]))
    assert line_of(report, "differences").verdict is Verdict.INCONCLUSIVE
    assert "the backward's lies outside them" in line_of(report, "differences").note
    assert not report.ok


RNG = np.random.default_rng(0)
PADDED = np.vstack([RNG.standard_normal((5, 5)), np.zeros((1, 5))])


def test_kinks_of_several_outputs_at_once_are_inconclusive():
    """The zero row of a relu layer: dx lies in no interval of ⟨u, f⟩'s two slopes."""

    def forward(x, W, b):
        h = x @ W + b
        return np.maximum(h, 0), (x, W, h)

    def backward(dy, cache):
        x, W, h = cache
        dh = dy * (h > 0)
        return dh @ W.T, x.T @ dh, dh.sum(axis=0)

    def through_another_layer(x, W, b, V):
        y, cache = forward(x, W, b)
        return y @ V, (cache, y, V)

    def back_through_it(dout, cache):
        cache, y, V = cache
        return (*backward(dout @ V.T, cache), y.T @ dout)

    inputs = (PADDED, RNG.standard_normal((5, 9)), np.zeros(9))
    for seed in range(20):
        for report in (
            check(forward, backward, *inputs, seed=seed, contract=False),
            check(through_another_layer, back_through_it, *inputs, RNG.standard_normal((9, 3)), seed=seed),
        ):
            assert {line.verdict for line in report.failures} == {Verdict.INCONCLUSIVE}, str(report)


TIED = np.array([[0.0, 1, 2, 3], [5, 2, 4, 8]]), np.array([[1.0, 2, 3, 0], [2, 5, 8, 4]])


def test_a_kink_at_the_other_inputs_is_no_fault():
    found = []
    for seed in range(12):
        report = check(
            lambda a, b: (np.maximum(a, b), a > b), lambda dy, m: (dy * m, dy * ~m), *TIED, seed=seed, contract=False
        )
        assert report.ok, str(report)
        found.append(line_of(report, "other inputs").verdict)
    assert found[2] is Verdict.PASS  # its first draw has ties, the second none


def layernorm_at(x):
    c = case("layernorm")
    gamma, beta = c.inputs[1][: x.shape[-1]], c.inputs[2][: x.shape[-1]]
    return check(c.forward, c.backward, x, gamma, beta, names=c.names, zero=["gamma"] if np.ptp(x) == 0 else ())


@pytest.mark.parametrize("x", [[1e5, 1e5 + 1], [1e9, 1e9 + 1], [1e5], np.random.default_rng(0).uniform(0, 1e5, 50)])
def test_numbers_large_beside_the_length_on_which_the_forward_bends(x):
    report = check(lambda x: (np.sin(x), x), lambda dy, x: dy * np.cos(x), np.array(x))
    assert report.ok, str(report)
    assert not check(lambda x: (np.sin(x), x), lambda dy, x: dy * np.cos(x) * 1.001, np.array(x)).ok


@pytest.mark.parametrize("size", [1e-8, 1e-6, 1e-5, 1e-4])
@pytest.mark.parametrize("through", [lambda x: x, np.abs], ids=["complex", "real"])
def test_numbers_as_small_as_the_length_on_which_the_forward_bends(size, through):
    x = size * np.array([1.0, 2, 3])
    for f, derivative in (lambda x: 1 / x, lambda x: -1 / x**2), (np.log, lambda x: 1 / x):
        report = check(lambda x, f=f: (f(through(x)), x), lambda dy, x, d=derivative: dy * d(x), x)
        assert report.ok, str(report)
        lines = check(lambda x, f=f: (f(through(x)), x), lambda dy, x, d=derivative: dy * d(x) * 1.0001, x).failures
        assert lines[0].verdict is Verdict.WRONG
    c = case("layernorm")
    x = size * np.random.default_rng(0).standard_normal((3, 12))
    assert check(c.forward, c.backward, x, *c.inputs[1:], kwargs={"eps": 1e-12}).ok


def test_a_forward_that_turns_many_times_within_a_step():
    for k in (1e6, 1e8):
        report = check(lambda x, k=k: (np.sin(k * x), x), lambda dy, x, k=k: dy * k * np.cos(k * x), X, contract=False)
        assert {line.check for line in report.failures} <= {"differences", "float64 throughout"}
        assert all(line.verdict is Verdict.INCONCLUSIVE for line in report.failures)


def softmax_in_reals(scores):
    e = np.exp(np.abs(scores - scores.max(axis=-1, keepdims=True)) * -1)
    attn = e / e.sum(axis=-1, keepdims=True)
    return attn, attn


@pytest.mark.parametrize("forward", [case("softmax").forward, softmax_in_reals], ids=["complex", "real"])
def test_outputs_that_saturate_make_nothing_wrong(forward):
    """Beside a probability of 1 the others are 1e-13; it moves by less than its own rounding."""
    backward = case("softmax").backward
    for seed in range(20):
        report = check(forward, backward, np.array([[0.0, 10, 30]]), seed=seed, contract=False)
        assert report.ok or forward is softmax_in_reals
        scores = np.random.default_rng(seed).standard_normal((3, 4))
        for size in (20, 30, 50, 100, 300):
            report = check(forward, backward, size * scores, seed=seed, contract=False)
            assert all(line.verdict is not Verdict.WRONG for line in report.lines), str(report)


def test_a_wrong_gradient_beside_outputs_that_saturate():
    c = case("softmax")
    for seed in range(20):
        scores = 20 * np.random.default_rng(seed).standard_normal((3, 4))
        report = check(c.forward, lambda dy, attn: 1.001 * c.backward(dy, attn), scores, seed=seed, contract=False)
        assert not report.ok


def test_a_loss_of_nearly_nothing_makes_nothing_wrong():
    c = case("cross_entropy")
    logits = np.array([[30.0, 0, 0], [0, 30, 1]])
    for seed in range(20):
        report = check(c.forward, c.backward, logits, np.array([0, 1]), seed=seed, contract=False)
        assert all(line.verdict is not Verdict.WRONG for line in report.lines), str(report)


def test_a_steep_sigmoid_makes_nothing_wrong():
    for seed in range(10):
        x = np.random.default_rng(seed).standard_normal((2, 3))
        report = check(
            lambda x: (1 / (1 + np.exp(-100 * x)),) * 2,
            lambda dy, y: 100 * dy * y * (1 - y),
            x,
            seed=seed,
            contract=False,
        )
        assert all(line.verdict is not Verdict.WRONG for line in report.lines), str(report)


FAR = 1e6 + np.random.default_rng(0).standard_normal((12, 12))


@pytest.mark.parametrize("x", [np.full((2, 4), 300.0), 1e4 + X, FAR])
def test_rows_far_from_0(x):
    report = layernorm_at(x)
    assert report.ok, str(report)


def test_what_rounding_alone_moves_is_not_wrong():
    """A LayerNorm without gamma and beta, whose mean is taken where the rows lie, loses digits of theirs."""

    def forward(x):
        xhat = x - x.mean(axis=-1, keepdims=True)
        rstd = 1 / np.sqrt((xhat * xhat).mean(axis=-1, keepdims=True) + 1e-5)
        return xhat * rstd, (xhat * rstd, rstd)

    def backward(dy, cache):
        xhat, rstd = cache
        return rstd * (dy - dy.mean(axis=-1, keepdims=True) - xhat * (dy * xhat).mean(axis=-1, keepdims=True))

    report = check(forward, backward, FAR, names=["x"])
    assert {line.verdict for line in report.failures} == {Verdict.INCONCLUSIVE}
    assert "ill-conditioned: the inputs' own rounding" in line_of(report, "complex step", "dx").note


def test_an_input_of_no_axes():
    def backward(dout, cache):
        s, x = cache
        return (dout * x).sum(), dout * s

    for s in (np.array(2.0), np.float64(2.0)):
        report = check(lambda s, x: (s * x, (s, x)), backward, s, X)
        assert report.ok, str(report)


def test_noise_is_inconclusive():
    def forward(x):
        return np.sin(np.float16(x)).astype(x.dtype), x

    line = line_of(check(forward, lambda dy, x: dy * np.cos(x), X, contract=False), "differences")
    assert line.verdict is Verdict.INCONCLUSIVE
    assert "noise above the signal" in line.note


def inside_float32(f):
    """A forward that computes f in float32, though it takes and gives float64."""
    return lambda x: (f(np.float32(x)).astype(x.dtype), x) if x.dtype.kind == "f" else (f(x), x)


@pytest.mark.parametrize(
    ("f", "derivative"),
    [(np.sin, np.cos), (np.square, lambda x: 2 * x), (lambda x: 1 + np.sin(x) / 64, lambda x: np.cos(x) / 64)],
    ids=["sin", "square", "small slope"],
)
def test_a_forward_in_float32_never_passes(f, derivative):
    def backward(dy, x):
        return dy * derivative(x)

    for seed in range(25):
        x = np.random.default_rng(seed).standard_normal((3, 4))
        report = check(inside_float32(f), backward, x, seed=seed, contract=False)
        assert {line.verdict for line in report.failures} <= {Verdict.WRONG, Verdict.INCONCLUSIVE}
        assert not report.ok
        assert check(lambda x: (f(x), x), backward, x, seed=seed, contract=False).ok
    assert "float32" in line_of(report, "float64 throughout").note


def test_a_wrong_tensor_costs_few_forwards():
    calls = []

    def forward(x):
        calls.append(1)
        return np.abs(x).sum(axis=0), x

    x = np.random.default_rng(0).standard_normal((10, 10))
    assert check(forward, lambda dy, x: dy * np.sign(x), x, contract=False).ok
    right, calls[:] = len(calls), []
    assert not check(forward, lambda dy, x: 2 * dy * np.sign(x), x, contract=False).ok
    assert len(calls) < 3 * right


def test_directions_stand_for_elements_that_are_too_many():
    def wrong_in_one(dy, x):
        dx = 2 * x * dy
        dx[3, 5] *= 1.001
        return dx

    x = np.random.default_rng(0).standard_normal((300, 200))
    report = check(square, square_backward, x, directions=2)
    assert report.ok, str(report)
    assert [line.name for line in report.lines if line.check == "projection"] == ["⟨dx, v⟩"] * 2
    assert {line.check for line in check(square, wrong_in_one, x, directions=2).failures} >= {"projection", "adjoint"}
    report = check(square, lambda dy, x: (2 * x * dy).sum(0), x, directions=1)
    assert "gives shape (200,)" in line_of(report, "projection").note


@pytest.mark.parametrize("name", ["gelu_blocked", "layernorm_blocked", "cross_entropy_blocked"])
def test_what_is_large_takes_several_blocks(name, monkeypatch):
    blocks = []
    op = "gelu_and_slope" if name == "gelu_blocked" else f"{name.removesuffix('_blocked')}_forward"
    whole = getattr(blocked, op)
    monkeypatch.setattr(blocked, op, lambda *args, **out: blocks.append(1) or whole(*args, **out))
    c = case(name)
    c.forward(*c.inputs)
    assert len(blocks) >= 2


def test_what_is_large_takes_several_tiles():
    assert case("attend_tiled").inputs[0].shape[-2] > TILE


def cube_off_by(*errors):
    x = np.array([1000.0, 0.1])
    return check(lambda x: (x**3, x), lambda dy, x: 3 * x**2 * dy + np.array(errors), x, contract=False)


def test_the_numbers_of_a_line_are_those_of_one_element():
    line = line_of(cube_off_by(1e-2, 1e-3), "differences")  # 1e-2 is within the tolerance of a slope of 1e6
    assert (line.verdict, line.index) == (Verdict.WRONG, (1,))
    assert line.worst == abs(line.analytic - line.numeric) == pytest.approx(1e-3, rel=1e-2)
    line = line_of(cube_off_by(1.0, 0.1), "differences")  # both are wrong; the second by more of its tolerance
    assert line.index == (0,)
    assert line.worst == abs(line.analytic - line.numeric) == line.errors.max()
    assert line.share == pytest.approx(line.worst / line.tolerance)


def test_an_identity_is_expected_and_not_estimated():
    message = line_of(check(square, lambda dy, x: 2 * x * dy + 1, X), "linearity").message()
    assert "\n    expected        " in message
    assert "numeric" not in message
    assert "±" not in message


def test_agreement_on_zero_is_vacuous():
    def forward(x):
        return x - x, x

    report = check(forward, lambda dy, x: 0 * dy, X)
    assert line_of(report, "differences").verdict is Verdict.VACUOUS
    assert not report.ok
    assert check(forward, lambda dy, x: 0 * dy, X, zero=["x"]).ok
    assert line_of(check(forward, lambda dy, x: dy, X, zero=["x"]), "differences").verdict is Verdict.WRONG


def test_nothing_compared_is_a_failure():
    report = check(square, square_backward, np.zeros((0, 3)))
    assert not report.ok
    assert report.failures[0].check == "nothing compared"
    assert not Report([]).ok


def test_nan_is_wrong_and_never_passes():
    report = check(square, lambda dy, x: np.full_like(x, np.nan), X, contract=False)
    assert line_of(report, "differences").verdict is Verdict.WRONG
    report = check(lambda x: (np.sqrt(x), x), lambda dy, x: dy / np.sqrt(x), np.array([1.0, -1.0]), contract=False)
    assert "the forward is not finite around here" in line_of(report, "differences").note
    report = check(lambda x: (x * np.nan, x), square_backward, X, contract=False)
    assert line_of(report, "differences").verdict is Verdict.INCONCLUSIVE


def test_minus_infinity_stays_where_it_is():
    c = case("softmax")
    scores = np.array([[0.3, -np.inf, 1.0], [0.1, 0.2, -np.inf]])
    report = check(c.forward, c.backward, scores, names=["scores"])
    assert report.ok, str(report)


def test_float32_is_raised_with_a_notice():
    report = check(square, square_backward, X.astype(np.float32))
    assert report.ok
    assert report.notices == ["x is float32; checked in float64, where a difference has digits to spare"]
    assert "Notice: x is float32" in str(report)


def test_bad_inputs():
    with pytest.raises(ValueError, match="input x is complex128"):
        check(square, square_backward, X + 0j)
    with pytest.raises(ValueError, match="none of the inputs x is a floating-point array"):
        check(square, square_backward, np.arange(3))
    with pytest.raises(ValueError, match="names has 2 entries"):
        check(square, square_backward, X, names=["a", "b"])
    for setting in ("leading", "zero"):
        with pytest.raises(ValueError, match=f"{setting} holds 'y', which is no input; there are x"):
            check(square, square_backward, X, **{setting: ["x", "y"]})
    for seed in (-1, 0.5):
        with pytest.raises(ValueError, match=f"seed must be a whole number of at least 0, got {seed}"):
            check(square, square_backward, X, seed=seed)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_inputs_that_are_not_finite(bad):
    x = X.copy()
    x[1, 2] = bad
    with pytest.raises(ValueError, match=rf"input x is {bad} at \[1, 2\]: there is no gradient to check there"):
        check(square, square_backward, x)


@pytest.mark.parametrize("make", [lambda x: {"y": x}, lambda x: (x, {"y": x}), lambda x: None, lambda x: [x, "y"]])
def test_outputs_that_are_no_arrays(make):
    note = check(lambda x: (make(x), x), lambda dy, x: dy, X).failures[0].note
    assert note.startswith("ValueError: <lambda>'s outputs must be arrays, or a tuple of arrays; found ")


def test_what_a_stranger_raises_is_a_line():
    def backward(dy, x):
        raise RuntimeError("no such thing")

    report = check(square, backward, X)
    assert not report.ok
    assert "RuntimeError: no such thing (test_gradcheck_check.py:" in report.failures[0].note


def test_exit_is_no_success():
    def after(n):
        calls = []

        def backward(dy, x):
            calls.append(1)
            if len(calls) > n:
                raise SystemExit(0)
            return 2 * x * dy

        return backward

    for n in range(8):
        report = check(square, after(n), X)
        assert "SystemExit: 0" in report.failures[0].note


def test_missing_gradients_leave_the_others_checked():
    def forward(x, y):
        return x * y, (x, y)

    report = check(forward, lambda dout, cache: (dout * cache[1], None), X, X + 1)
    assert [line.name for line in report.failures] == ["dy"]
    assert "None" in report.failures[0].note
    report = check(forward, lambda dout, cache: dout * cache[1], X, X + 1)
    assert "returned 1 gradients for 2: dx, dy" in report.failures[0].note
    report = check(lambda x, a: (a * x, a), lambda dout, a: (a * dout, 0.0), X, 2.0)
    assert "returned 2 gradients for 1: dx; a = 2.0 is no array, so it has no gradient" in report.failures[0].note
    report = check(forward, lambda dout, cache: {"x": dout * cache[1]}, X, X + 1)
    assert "returned x by name; wanted are dx, dy" in report.failures[0].note


@pytest.mark.parametrize("d", ["", "d"])
def test_gradients_by_name(d):
    def backward(dout, cache):
        x, y = cache
        return {f"{d}y": dout * x, f"{d}x": dout * y}  # in another order

    report = check(lambda x, y: (x * y, (x, y)), backward, X, X + 1)
    assert report.ok, str(report)


# The complex step and its traps


def normalise_by_var(x):
    return x / np.sqrt(np.var(x) + 1), x


def normalise_by_var_backward(dy, x):
    rstd = 1 / np.sqrt(np.var(x) + 1)
    return dy * rstd - (dy * x).sum() * rstd**3 * (x - x.mean()) / x.size


@pytest.mark.parametrize(
    ("forward", "backward", "words"),
    [
        (normalise_by_var, normalise_by_var_backward, "not analytic: the slope along i"),
        (lambda x: (np.abs(x + 9), x), lambda dy, x: dy, "drops the imaginary part"),
        (lambda x: (np.float64(x) ** 2, x), square_backward, "does not take complex numbers"),
        (lambda x: (np.hypot(x, 1), x), lambda dy, x: dy * x / np.hypot(x, 1), "does not take complex numbers"),
    ],
)
def test_not_analytic_gives_no_number(forward, backward, words):
    report = check(forward, backward, X, contract=False)
    line = line_of(report, "complex step")
    assert line.verdict is Verdict.SKIPPED
    assert words in line.note
    assert line.analytic is None
    assert report.ok, str(report)


def test_complex_step_sees_what_differences_cannot():
    def backward(dy, x):
        return 2 * x * dy * (1 + 1e-10)

    report = check(square, backward, X, contract=False)
    assert line_of(report, "differences").verdict is Verdict.PASS
    assert line_of(report, "complex step").verdict is Verdict.WRONG


# Whole models


def test_check_model_finds_an_ignored_upstream():
    class Model1(Model):
        def loss_backward(self, dloss, cache, grads=None):
            return super().loss_backward(1.0, cache, grads)

    config = Config(V=5, T_max=3, d=2, h=1, L=1)
    report = check_model(model=Model1(config, dtype="float64"), idx=np.array([[1, 2, 1]]))
    assert "the upstream is ignored" in report.failures[0].diagnosis


def failed(model, **settings):
    report = check_model(model=model, idx=np.array([[1, 2, 1, 0], [2, 3, 3, 1]]), **settings)
    return {line.check: line for line in report.failures}


TINY = Config(V=5, T_max=4, d=4, h=2, L=1)


def tiny(kind, config=TINY):
    model = kind(config, None, dtype="float64")
    model.params.flat[...] = np.random.default_rng(0).standard_normal(model.params.flat.size)
    return model


def test_check_model_of_a_forgotten_return():
    class Forgetful(Model):
        def backward(self, dlogits, cache, grads=None):
            super().backward(dlogits, cache, grads)

    report = check_model(model=Forgetful(CONFIGS["model"], dtype="float64"))
    assert [line.check for line in report.lines] == ["call"]
    assert "Forgetful.backward returns None; it must return Parameters" in report.lines[0].note


def test_check_model_asks_backward_itself():
    class Wrong(Model):
        def backward(self, dlogits, cache, grads=None):  # right for a loss, whose dlogits sum to 0 in each row
            return super().backward(dlogits + dlogits.sum(axis=-1, keepdims=True), cache, grads)

    report = check_model(model=tiny(Wrong), idx=np.array([[1, 2, 1, 0]]))
    assert report.failures
    assert all(line.name.endswith(" of logits") for line in report.failures)
    assert {line.name for line in report.failures} >= {"⟨dW_te, v⟩ of logits", "⟨dblock.0.W_1, v⟩ of logits"}


def test_check_model_sees_weights_remembered():
    first = {}

    class Remembers(Model):
        def backward(self, dlogits, cache, grads=None):
            *others, (x_rows, W_te, x_shape) = cache
            W_te = first.setdefault((W_te.shape, W_te.dtype), W_te.copy())
            return super().backward(dlogits, (*others, (x_rows, W_te, x_shape)), grads)

    assert "other inputs" in failed(tiny(Remembers))


def test_check_model_sees_old_numbers_in_used_gradients():
    class Adds(Model):
        def backward(self, dlogits, cache, grads=None):
            before = 0 if grads is None else grads["ln_f.beta"].copy()
            grads = super().backward(dlogits, cache, grads)
            grads["ln_f.beta"] += before
            return grads

    failures = failed(tiny(Adds))
    assert set(failures) == {"invariant: used gradients are written over"}
    assert failures["invariant: used gradients are written over"].name == "dln_f.beta"


def test_check_model_sees_ids_written():
    class Writes(Model):
        def loss_forward(self, idx, targets=None):
            found = super().loss_forward(idx, targets)
            if idx.flags.writeable:
                idx[0, 0] = (idx[0, 0] + 1) % self.config.V
            return found

    idx = np.array([[1, 2, 1, 0]])
    report = check_model(model=tiny(Writes), idx=idx)
    assert any("forward wrote into inputs['idx']" in line.note for line in report.failures)
    np.testing.assert_array_equal(idx, [[1, 2, 1, 0]])


def test_check_model_takes_targets():
    targets = np.array([[2, -100, 0, 3]])
    assert check_model(model=tiny(Model), idx=np.array([[1, 2, 1, 0]]), targets=targets).ok


# Projections

IDX_5 = np.array([[1, 2, 2, 5, 9]])
BLOCKS = {
    "pre": Config(V=11, T_max=8, d=12, h=3, L=3),
    "post": Config(V=11, T_max=8, d=12, h=3, L=3, norm="post", tie=False, gelu="exact"),
}


def drawn(kind, config):
    model = kind(config, 1, dtype="float64")
    model.params.flat[...] += 0.2 * np.random.default_rng(1).standard_normal(model.params.flat.size)
    return model


def test_projections_pass_and_leave_the_model_alone():
    model = Model(Config(V=11, T_max=8, d=12, h=3, L=2))
    before = model.params.flat.copy()
    report = check_projections(model, IDX_5, directions=2)
    assert report.ok, str(report)
    assert len(report.lines) == 2 * (len(model.params) + 1)
    assert report.notices[0].startswith("the model is float32")
    np.testing.assert_array_equal(model.params.flat, before)


def test_projections_do_not_hang_on_the_number_of_threads(monkeypatch):
    model = drawn(Model, BLOCKS["pre"])
    lines = check_projections(model, IDX_5).lines
    monkeypatch.setattr("numpy_gpt.gradcheck.models.n_cores", lambda: 1)
    assert check_projections(model, IDX_5).lines == lines


@pytest.mark.parametrize("config", BLOCKS.values(), ids=BLOCKS)
def test_projections_find_one_wrong_element_of_any_parameter(config):
    class Wrong(Model):
        wrong = ""

        def loss_backward(self, dloss, cache, grads=None):
            g = super().loss_backward(dloss, cache, grads)
            largest = np.unravel_index(np.abs(g[self.wrong]).argmax(), g[self.wrong].shape)
            g[self.wrong][largest] *= 1.001
            return g

    model = drawn(Wrong, config)
    for name in model.params:
        model.wrong = name
        report = check_projections(model, IDX_5, names=[name, "W_pe" if name != "W_pe" else "ln_f.beta"])
        assert {line.name for line in report.failures} == {f"⟨d{name}, v⟩", "⟨∇L, v⟩"}, str(report)


def test_projections_of_a_forward_that_is_not_the_sum_of_its_blocks():
    class Penalised(Model):
        """The loss has a term that no block after the first can see."""

        def loss_forward(self, idx, targets=None):
            loss, cache = super().loss_forward(idx, targets)
            penalty = (self.params["block.0.W_o"][0] * self.params["block.2.W_o"][0]).sum() if self.config.L == 3 else 0
            return loss + penalty, cache

        def loss_backward(self, dloss, cache, grads=None):
            g = super().loss_backward(dloss, cache, grads)
            g["block.0.W_o"][0] += dloss * self.params["block.2.W_o"][0]
            g["block.2.W_o"][0] += dloss * self.params["block.0.W_o"][0]
            return g

    report = check_projections(drawn(Penalised, BLOCKS["pre"]), IDX_5)
    assert report.ok, str(report)


def test_check_model_of_a_context_shorter_than_its_ids():
    assert check_model(Config(V=7, T_max=3, d=4, h=2, L=1)).ok
