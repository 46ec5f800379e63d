"""Each clause of the op contract, broken on purpose, is caught by its own line."""

import numpy as np
import pytest

from numpy_gpt.gradcheck import Verdict, check
from numpy_gpt.gradcheck.cases import case

X = np.random.default_rng(2).standard_normal((3, 4))


def broken(forward, backward, **settings):
    """Return the checks that fail, with their notes."""
    return {line.check: line.note for line in check(forward, backward, X, **settings).failures}


def square(x):
    return x * x, x


def square_backward(dy, x):
    return 2 * x * dy


def test_nothing_is_broken():
    assert broken(square, square_backward, leading=["x"]) == {}


def test_input_written_by_forward():
    def forward(x):
        if x.flags.writeable and x.dtype.kind == "f":
            x[0, 0] += 1
        return x * x, x.copy()

    assert "forward wrote into inputs['x']" in broken(forward, square_backward)["inputs unmodified"]


def test_upstream_written():
    def backward(dy, x):
        dy *= 2 * x
        return dy

    assert broken(square, backward, leading=["x"]) == {"upstream unmodified": "backward wrote into dout"}


def test_input_written_and_used():
    def forward(x):
        x *= 2
        return x * x, x

    def backward(dy, x):
        return 4 * x * dy

    assert broken(forward, backward, leading=["x"]) == {"inputs unmodified": "forward wrote into inputs['x']"}


def test_what_is_written_into_is_told_first():
    def backward(dy, cache):
        cache *= 2
        return dy * cache + 1

    report = check(lambda x: (x * x, x.copy()), backward, X)
    assert report.failures[0].check == report.lines[0].check == "cache unmodified"
    assert "differences" in {line.check for line in report.failures}


def test_cache_written():
    def forward(x):
        return x * x, {"x": x.copy()}

    def backward(dy, cache):
        dx = 2 * cache["x"] * dy
        cache["x"] *= 0
        return dx

    notes = broken(forward, backward)
    assert notes["cache unmodified"] == "backward wrote into cache['x']"
    assert "other bits in dx" in notes["same bits twice"]


def test_cache_used_up():
    def backward(dy, cache):
        return 2 * cache.pop() * dy

    notes = broken(lambda x: (x * x, [x]), backward)
    note = "a second backward with the same cache raises IndexError: pop from empty list"
    assert notes == {"cache unmodified": "backward wrote into cache[0]", "same bits twice": note}


def test_a_clause_that_raises_leaves_the_others():
    def backward(dy, x):
        if dy.dtype == np.float32:
            raise RuntimeError("no float32")
        return 2 * x * dy

    report = check(square, backward, X, leading=["x"])
    assert {line.note.partition(" (")[0] for line in report.failures} == {"RuntimeError: no float32"}
    assert [line.check for line in report.failures] == ["contract: dtype and shape", "contract: float32 values"]
    assert report.lines[-1].check == "ranks"


def test_one_buffer_for_all_gradients():
    buffer = np.zeros_like(X)

    def backward(dy, x):
        if x.shape != buffer.shape or x.dtype != buffer.dtype:
            return 2 * x * dy
        np.multiply(2 * x, dy, out=buffer)
        return buffer

    notes = broken(square, backward)
    assert notes["same bits twice"] == "a second backward overwrites the first one's dx"
    assert "linearity" in notes


def test_state_shared_between_calls():
    state = {}

    def forward(x):
        state["x"] = x
        return x * x, None

    notes = broken(forward, lambda dy, cache: 2 * state["x"] * dy)
    assert "another call in between changes dx" in notes["interleaved calls"]


def linear(x, W):
    return x @ W, (x, W)


def remembered_in_backward():
    turned = {}

    def backward(dy, cache):
        x, W = cache
        return dy @ turned.setdefault((W.shape, W.dtype), W.T.copy()), x.T @ dy

    return linear, backward


def remembered_in_forward():
    first = {}

    def forward(x, W):
        return x @ W, (x, first.setdefault((W.shape, W.dtype), W.copy()))

    return forward, lambda dy, cache: (dy @ cache[1].T, cache[0].T @ dy)


@pytest.mark.parametrize("pair", [remembered_in_backward, remembered_in_forward])
def test_what_the_first_call_leaves_behind(pair):
    W = np.random.default_rng(3).standard_normal((4, 2))
    report = check(*pair(), X, W, contract=False)
    assert [line.check for line in report.failures] == ["other inputs"]
    assert "kept from an earlier call" in report.failures[0].diagnosis
    assert check(linear, lambda dy, cache: (dy @ cache[1].T, cache[0].T @ dy), X, W).ok


def only_where(holds, forward):
    def checked(x):
        if not holds(x.real):
            raise ValueError("not there")
        return forward(x), x

    return checked


@pytest.mark.parametrize(
    ("holds", "x"),
    [
        (lambda x: (x > 0).all(), np.array([0.5, 1.5, 2.0])),
        (lambda x: (np.abs(x.sum(axis=-1) - 1) < 1e-2).all(), np.array([[0.2, 0.3, 0.5], [0.1, 0.8, 0.1]])),
        (lambda x: (np.diff(x) > 0).all(), np.array([0.5, 1.5, 2.0])),
    ],
    ids=["positive", "rows of sum 1", "rising"],
)
def test_a_forward_that_asks_something_of_its_inputs(holds, x):
    report = check(only_where(holds, np.log), lambda dy, x: dy / x, x)
    assert report.ok, str(report)
    assert {line.verdict for line in report.lines if "other inputs" in line.check} == {Verdict.PASS}


def test_a_forward_that_takes_no_other_inputs():
    report = check(only_where(lambda x: abs(x.sum() - 2) < 1e-2, np.log), lambda dy, x: dy / x, np.array([2.0]))
    skipped = {line.check: line.note for line in report.lines if line.verdict is Verdict.SKIPPED}
    assert set(skipped) == {"other inputs", "interleaved calls"}
    assert "does not take the other inputs" in skipped["other inputs"]


def test_random_draws():
    rng = np.random.default_rng(0)

    def backward(dy, x):
        return 2 * x * dy * (1 + 1e-15 * rng.standard_normal(x.shape))

    assert "other bits" in broken(square, backward)["same bits twice"]


def test_layout_assumed():
    def backward(dy, x):
        return (2 * x.ravel(order="K") * dy.ravel(order="K")).reshape(x.shape)

    note = broken(square, backward)["memory layouts"]
    assert "Fortran order: dx is off" in note


@pytest.mark.parametrize(
    ("f", "backward"),
    [
        (np.linalg.inv, lambda dy, A: -np.linalg.inv(A).T @ dy @ np.linalg.inv(A).T),
        (np.linalg.det, lambda dy, A: dy * np.linalg.det(A) * np.linalg.inv(A).T),
    ],
    ids=["inv", "det"],
)
def test_a_layout_whose_numbers_are_refused(f, backward):
    A = np.array([[2.0, 1.0], [1.0, 3.0]])  # its first row in every row is a singular matrix
    report = check(lambda A: (f(A), A), backward, A)
    assert report.ok, str(report)


@pytest.mark.parametrize(
    ("backward", "words"),
    [
        (lambda dy, x: 2 * x * dy * np.float64(1), "float32 in, dx is float64"),
        (lambda dy, x: (2 * x * dy)[None], "dx has shape (1, 3, 4), x has (3, 4)"),
    ],
)
def test_dtype_and_shape(backward, words):
    assert words in broken(square, backward)["dtype and shape"]


def test_a_promoted_gradient_is_told_the_cure():
    note = broken(square, lambda dy, x: dy * x * np.sqrt(4))["dtype and shape"]
    assert note == (
        "float32 in, dx is float64; np.sqrt(2) and np.zeros(shape) are float64: "
        "write math.sqrt(2), or np.zeros(shape, x.dtype)"
    )
    assert "math.sqrt" not in broken(square, lambda dy, x: np.float32(2 * x * dy))["dtype and shape"]


def softmax(scores):
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True), scores


def softmax_without_max(dattn, scores):
    attn = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    return attn * (dattn - (dattn * attn).sum(axis=-1, keepdims=True))


def test_wrong_in_float32_only():
    notes = {line.check: line.note for line in check(softmax, softmax_without_max, X + 100).failures}
    assert notes == {"float32 values": "dscores is not finite in float32"}
    assert check(softmax, softmax_without_max, X).ok

    def doubled(dy, x):
        return 2 * x * dy * (2 if dy.dtype == np.float32 else 1)

    assert broken(square, doubled) == {"float32 values": "dx is off by 1 of its size in float32"}


def difference(x):
    return x[:, 1:] ** 2 - x[:, :-1] ** 2, x


def difference_backward(dy, x):
    dx = np.zeros_like(x)
    dx[:, 1:] += 2 * x[:, 1:] * dy
    dx[:, :-1] -= 2 * x[:, :-1] * dy
    return dx


@pytest.mark.parametrize("x", [X, 1e4 + X, 1e-30 * X])
def test_what_float32_only_rounds(x):
    c = case("layernorm")
    report = check(c.forward, c.backward, x, *(t[:4] for t in c.inputs[1:]), names=c.names)
    assert "float32 values" not in {line.check for line in report.failures}
    for pair in ((difference, difference_backward), (square, square_backward)):
        assert "float32 values" not in {line.check for line in check(*pair, x).failures}


def test_inputs_beyond_float32():
    report = check(lambda x: (np.log(x), x), lambda dy, x: dy / x, np.array([1e60, 1e-60]))
    assert [line.note for line in report.lines if line.check == "float32 values"] == [
        "inputs or outputs lie beyond float32"
    ]


def test_ranks():
    def backward(dy, cache):
        x, W, _ = cache
        return dy @ W.T, x.reshape(-1, x.shape[-1]).T @ dy.reshape(-1, dy.shape[-1]), dy.sum(axis=(0, 1))

    c = case("linear")
    report = check(lambda x, W, b: (x @ W + b, (x, W, b)), backward, *c.inputs, leading=["x"])
    assert [line.check for line in report.failures] == ["ranks"]
    assert "db has shape" in report.failures[0].note


def test_ranks_tell_what_was_tried():
    def backward(dy, x):
        n, d = dy.shape
        return 2 * x * dy.reshape(n, d)

    note = broken(square, backward, leading=["x"])["ranks"]
    assert note.startswith("with 1 more leading axis of size 1: ValueError: too many values to unpack")
    assert "; with 2 more leading axes of size 1: ValueError" in note


def test_not_linear_in_the_upstream():
    assert "linearity" in broken(square, lambda dy, x: 2 * x * dy + 1e-6 * dy**2)


def test_a_floating_point_warning_is_told():
    def backward(dy, x):  # right, but cosh overflows on the way
        return dy * (1 + 1 / np.cosh(400 * np.abs(x) + 700))

    notes = broken(lambda x: (x + 0, x), backward)
    assert set(notes) == {"no floating-point warning"}
    assert "backward: overflow encountered in cosh (test_gradcheck_contract.py:" in notes["no floating-point warning"]
    assert broken(lambda x: (x + 0, x), backward, contract=False) == {}


@pytest.mark.parametrize("name", ["linear", "layernorm", "embedding", "head", "cross_entropy", "mlp", "attention"])
def test_out_must_be_written(name):
    c = case(name)

    def adds(dout, cache, out=c.backward.__defaults__[0]):
        """Leave what was in the last array."""
        last = out[-1] if isinstance(out, tuple) else out
        before = 0 if last is None else last.copy()
        grads = c.backward(dout, cache, out)
        if last is not None:
            last += before
        return grads

    assert check(c.forward, c.backward, *c.inputs, kwargs=c.kwargs, names=c.names, invariants=c.invariants).ok
    report = check(c.forward, adds, *c.inputs, kwargs=c.kwargs, names=c.names, invariants=c.invariants)
    assert {line.check for line in report.failures} == {"invariant: out= is written"}


class Node:
    def __init__(self, x):
        self.x, self.me, self.parts = x, self, [x]
        self.parts.append(self.parts)


@pytest.mark.parametrize("around", [lambda x: (x, np), Node, lambda x: {"x": x, "node": Node(x)}])
def test_a_cache_may_hold_a_module_or_itself(around):
    def backward(dy, cache):
        x = cache[0] if isinstance(cache, tuple) else cache["x"] if isinstance(cache, dict) else cache.x
        return 2 * x * dy

    assert broken(lambda x: (x * x, around(x)), backward) == {}


def test_a_write_into_a_cache_that_holds_itself_is_found():
    def backward(dy, cache):
        dx = 2 * cache.x * dy
        cache.x *= 0
        return dx

    notes = broken(lambda x: (x * x, Node(x.copy())), backward)
    assert notes["cache unmodified"] == "backward wrote into cache.x; backward wrote into cache.parts[0]"


def test_contract_can_be_left_out():
    assert broken(square, lambda dy, x: 2 * x * dy * np.float64(1), contract=False) == {}
