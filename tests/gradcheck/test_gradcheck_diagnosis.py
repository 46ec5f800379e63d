"""Each kind of mistake, planted on purpose, is caught and named."""

import numpy as np
import pytest

from numpy_gpt import Config, Model, ops
from numpy_gpt.gradcheck import Verdict, check, check_model
from numpy_gpt.gradcheck.cases import case


def failures(name, backward, check_name="complex step", kwargs=None):
    """Check our op's forward with another backward; return its wrong lines by tensor."""
    c = case(name)
    report = check(c.forward, backward, *c.inputs, names=c.names, kwargs=c.kwargs, contract=False)
    assert not report.ok
    return {line.name: line for line in report.lines if line.verdict is Verdict.WRONG and line.check == check_name}


def changed(name, index, change):
    """Return our op's backward with gradient number index changed."""
    backward = case(name).backward

    def wrong(dy, cache):
        grads = backward(dy, cache)
        grads = list(grads) if isinstance(grads, tuple) else [grads]
        grads[index] = change(grads[index])
        return tuple(grads)

    return wrong


@pytest.mark.parametrize(
    ("name", "index", "change", "words"),
    [
        ("gelu", 0, lambda g: -g, "sign"),
        ("gelu", 0, lambda g: 2 * g, "is 2 times"),
        ("gelu", 0, lambda g: 0 * g, "0 everywhere"),
        ("gelu", 0, lambda g: 1.2345 * g, "1.2345"),
        ("linear", 1, lambda g: g / 10, "1/10 (rows of x)"),
        ("layernorm", 1, lambda g: g / 12, "1/12"),
        ("attend", 0, lambda g: g * 2, "is 2 times"),
        ("attend", 1, lambda g: g[..., ::-1, :], "reversed"),
        ("attend", 2, lambda g: np.roll(g, 1, -2), "shifted by 1 along axis 2"),
        ("attend", 1, lambda g: g.reshape(2, 3, 4, 5).swapaxes(-1, -2), "must be swapped, not renamed"),
        ("linear", 1, lambda g: g.T.reshape(g.shape), "must be swapped, not renamed"),
        ("linear", 1, lambda g: g.T, "swap the last two axes"),
        ("linear", 2, lambda g: np.broadcast_to(g / 10, (2, 5, 7)), "sum the gradient over them"),
        ("linear", 1, lambda g: g.sum(0), "axis 0 is summed"),
        ("linear", 1, lambda g: np.broadcast_to(g.sum(0), g.shape), "axis 0 is summed"),
        ("linear", 1, lambda g: np.broadcast_to(g.mean(0), g.shape), "mean was taken over axis 0"),
        ("linear", 2, lambda g: g[None], "sum the gradient over them"),
        ("softmax", 0, lambda g: g + 1.5 * (g.max(-1, keepdims=True)), "mean over the last axis"),
        ("head", 1, lambda g: np.where(np.arange(7)[:, None] == 3, 0, g), "wrong only at 3"),
        ("gelu", 0, lambda g: np.where(g > 0, np.nan, g), "NaN"),
        ("gelu", 0, lambda g: g.astype(np.float32), "float32"),
    ],
)
def test_named(name, index, change, words):
    lines = failures(name, changed(name, index, change))
    line = next(iter(lines.values()))
    assert words in line.diagnosis, line.message()
    assert words in line.message()


def test_only_the_wrong_tensor_is_blamed():
    assert set(failures("linear", changed("linear", 1, lambda g: 2 * g))) == {"dW"}


def softmax_without_its_sum(dattn, attn):
    return dattn * attn


def test_softmax_sum_missing():
    line = failures("softmax", softmax_without_its_sum)["dscores"]
    assert "Σ(upstream · output)" in line.diagnosis


def layernorm_backward_without(term):
    def backward(dy, cache):
        xhat, rstd, gamma = cache
        g = dy * gamma
        mean = 0 if term == "mean" else g.mean(-1, keepdims=True)
        along = 0 if term == "x̂" else xhat * (g * xhat).mean(-1, keepdims=True)
        axes = tuple(range(dy.ndim - 1))
        return rstd * (g - mean - along), (dy * xhat).sum(axes), dy.sum(axes)

    return backward


@pytest.mark.parametrize(("term", "words"), [("mean", "mean over the last axis"), ("x̂", "term along x̂")])
def test_layernorm_term_missing(term, words):
    assert words in failures("layernorm", layernorm_backward_without(term))["dx"].diagnosis


def attend_backward_without_scale(dout, cache):
    return ops.attend_backward(dout, (*cache[:-1], False))


def test_root_of_d_head_named():
    lines = failures("attend", attend_backward_without_scale)
    assert "2 times" in lines["dq"].diagnosis  # √4
    c = case("attend")
    q, k, v = (x[..., :3] for x in c.inputs)
    report = check(c.forward, attend_backward_without_scale, q, k, v, contract=False)
    assert "√3 (axis 1 of q" in report.failures[0].diagnosis


def test_swapped_gradients():
    def backward(dout, cache):
        dq, dk, dv = ops.attend_backward(dout, cache)
        return dk, dq, dv

    lines = failures("attend", backward)
    assert lines["dq"].diagnosis.startswith("this is dk")
    assert lines["dk"].diagnosis.startswith("this is dq")


def test_repeated_ids():
    def backward(dx, cache):
        idx, te_shape, _ = cache
        _, dW_pe = ops.embedding_backward(dx, cache)
        dW_te = np.zeros(te_shape)
        dW_te[idx] = dx  # the last one stays
        return dW_te, dW_pe

    idx = np.array([[0, 0, 1], [3, 3, 5]])
    c = case("embedding")
    report = check(c.forward, backward, idx, *c.inputs[1:], names=c.names, contract=False)
    line = report.failures[0]
    assert line.name == "dW_te"
    assert "wrong only at ids that idx repeats (rows 0, 3)" in line.diagnosis


def test_all_ones_only():
    def forward(x):
        return x**3, x

    def backward(dy, x):
        return 3 * x**2

    report = check(forward, backward, np.linspace(0.5, 2, 12).reshape(3, 4))
    assert "upstream of ones only" in report.failures[0].diagnosis
    assert any(line.check == "linearity" for line in report.failures)


def test_upstream_summed_before_use():
    def backward(dy, x):
        return 3 * x**2 * dy.mean()

    report = check(lambda x: (x**3, x), backward, np.linspace(0.5, 2, 12).reshape(3, 4))
    assert "upstream of ones only" in report.failures[0].diagnosis


class WithoutEmbedding(Model):
    def backward(self, dlogits, cache, grads=None):
        g = super().backward(dlogits, cache, grads)
        if self.config.tie:
            _, dW_te = ops.head_backward(dlogits, cache[-1])
            g["W_te"][...] = dW_te
        return g


def test_tied_term_missing():
    config = Config(V=5, T_max=4, d=4, h=2, L=1)
    model = WithoutEmbedding(config, seed=None, dtype="float64")
    model.params.flat[:] = np.random.default_rng(0).standard_normal(model.params.flat.size)
    report = check_model(model=model, idx=np.array([[1, 2, 2, 0]]))
    line = next(line for line in report.failures if line.check == "complex step")
    assert line.name == "dW_te"
    assert "the embedding's share" in line.diagnosis
    assert any("sum of both parts" in line.check for line in report.failures)


def test_message_tells_everything():
    line = failures("gelu", changed("gelu", 0, lambda g: 2 * g), "differences")["dx"]
    message = line.message()
    for part in ("dx[", "analytic", "numeric", "±", "tolerance", "seed", "check(gelu_forward, wrong, *inputs, seed=0)"):
        assert part in message
