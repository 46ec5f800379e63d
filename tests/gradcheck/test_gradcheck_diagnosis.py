"""Each kind of mistake, planted on purpose, is caught and named."""

import numpy as np
import pytest

from numpy_gpt import Config, Model, ops
from numpy_gpt.gradcheck import Verdict, check, check_model
from numpy_gpt.gradcheck.cases import case

X = np.random.default_rng(2).standard_normal((3, 4))


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


def test_one_percent_of_a_small_element_is_no_matter_of_digits():
    sizes = np.array([1e6, 1e6, 1e6, 1e-3])

    def backward(dy, x):
        return dy * np.cos(x) * sizes * np.array([1, 1, 1, 1.01])

    report = check(lambda x: (np.sin(x) * sizes, x), backward, np.array([1.0, 2, 3, 4]), contract=False)
    assert report.failures[0].diagnosis == "off by 0.01 of itself at [3], which is small beside the largest element"


def test_a_padding_row_is_not_taken_for_a_repeated_id():
    def forward(idx, W):
        return W[idx], (idx, W.shape)

    def backward(dy, cache):
        dW = np.zeros(cache[1], dy.dtype)
        np.add.at(dW, cache[0], dy)
        dW[0] = 0
        return dW

    idx = np.array([[0, 1, 2, 1], [3, 3, 0, 4]])
    report = check(forward, backward, idx, np.random.default_rng(0).standard_normal((6, 3)), contract=False)
    assert report.failures[0].diagnosis == "wrong only at 0 (of 0 to 5) along axis 0, where the gradient is 0"


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


@pytest.mark.parametrize(
    ("backward", "words"),
    [
        (lambda dattn, attn: dattn * attn * (1 - attn), "only the Jacobian's diagonal"),
        (lambda dattn, attn: attn * (dattn - (dattn * attn).sum(axis=1, keepdims=True)), "summed over axis 1, and"),
        (lambda dattn, attn: attn * (dattn - (dattn * attn).sum()), "summed over all axes, and"),
    ],
)
def test_softmax_slips(backward, words):
    assert words in failures("softmax", backward)["dscores"].diagnosis


def test_layernorm_without_gamma():
    right = case("layernorm").backward

    def backward(dy, cache):
        xhat, rstd, gamma = cache
        return (right(dy, (xhat, rstd, np.ones_like(gamma)))[0], *right(dy, cache)[1:])

    assert failures("layernorm", backward)["dx"].diagnosis == "γ is left out: the gradient at x̂ is upstream · γ"


@pytest.mark.parametrize(
    ("slope", "words"),
    [
        (-0.1, "wrong only where x is negative, where every element is -1 times the right one"),
        (0.2, "wrong only where x is negative, where every element is 2 times the right one"),
        (0.0, "wrong only where x is negative, where the gradient is 0"),
    ],
)
def test_one_branch_is_wrong(slope, words):
    def forward(x):
        return np.where(x.real > 0, x, 0.1 * x), x

    x = np.array([[-1.0, -2, 3, 1], [-4, -5, 6, 2]])  # also the first two columns
    report = check(forward, lambda dy, x: dy * np.where(x > 0, 1, slope), x, contract=False)
    assert report.failures[0].diagnosis == words


def layernorm_backward_without(term):
    def backward(dy, cache):
        xhat, rstd, gamma = cache
        g = dy * gamma
        mean = 0 if term == "mean" else g.mean(-1, keepdims=True)
        along = 0 if term == "x̂" else xhat * (g * xhat).mean(-1, keepdims=True)
        axes = tuple(range(dy.ndim - 1))
        return rstd * (g - mean - along), (dy * xhat).sum(axes), dy.sum(axes)

    return backward


@pytest.mark.parametrize(("term", "words"), [("mean", "−mean(upstream · γ)"), ("x̂", "−x̂ · mean")])
def test_layernorm_term_missing(term, words):
    assert words in failures("layernorm", layernorm_backward_without(term))["dx"].diagnosis


def linear_forward(x, W, b):
    return x @ W + b, (x, W)


def square_case():
    rng = np.random.default_rng(3)
    return rng.standard_normal((2, 5, 4)), rng.standard_normal((4, 4)), rng.standard_normal(4)


def linear_gradients(dy, cache, turned):
    x, W = cache
    return dy @ turned(W).T, np.einsum("bti,btj->ij", x, dy), dy.sum((0, 1))


def diagnosis_of(forward, backward, *inputs, **settings):
    """Return the diagnoses of the wrong tensors by name."""
    report = check(forward, backward, *inputs, contract=False, **settings)
    return {line.name: line.diagnosis for line in report.failures if line.check == "complex step"}


@pytest.mark.parametrize(
    ("turned", "words"),
    [(lambda W: W.T, "W is transposed"), (lambda W: W.T.reshape(4, 4), "W is transposed")],
)
def test_a_matrix_transposed_inside(turned, words):
    found = diagnosis_of(linear_forward, lambda dy, c: linear_gradients(dy, c, turned), *square_case())
    assert words in found["dx"]


def test_what_a_diagnosis_tries_may_be_refused():
    """A forward that wants a lower triangle is not asked what its transpose would give."""

    def forward(x, L):
        if np.triu(L, 1).any():
            raise ValueError("L must be lower triangular")
        return x @ np.tril(L), (x, L)

    def backward(dy, cache):
        x, L = cache
        return 3 * dy @ L.T, np.tril(x.T @ dy)

    L = np.tril(np.random.default_rng(0).standard_normal((4, 4)))
    report = check(forward, backward, X, L, names=["x", "L"], wrt=["x"], contract=False)
    assert {line.check for line in report.failures} >= {"differences", "complex step"}
    assert {line.name for line in report.failures} <= {"dx", "⟨u, Jv⟩"}


def test_gradients_of_other_shapes_swapped():
    def backward(dy, cache):
        dx, dW, db = ops.linear_backward(dy, cache)
        return dx, db, dW

    lines = failures("linear", backward)
    assert lines["dW"].diagnosis.startswith("this is db")
    assert lines["db"].diagnosis.startswith("this is dW")


def test_the_wrong_axis_summed():
    def backward(dy, cache):
        dx, dW, _ = ops.linear_backward(dy, cache)
        return dx, dW, dy.sum(axis=-1).ravel()

    assert "the total is right, but another axis is summed" in failures("linear", backward)["db"].diagnosis


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("gelu_exact", "tanh", "derivative of GELU's tanh form"),
        ("gelu", "exact", "derivative of GELU's exact form x·Φ(x)"),
        ("gelu", "sigmoid", "derivative of GELU's form x·σ(1.702 x)"),
    ],
)
def test_another_gelu(name, kind, words):
    def backward(dy, cache):
        x = cache[0]
        s = 1 / (1 + np.exp(-1.702 * x))
        return {
            "tanh": ops.gelu_backward(dy, ops.gelu_forward(x)[1]),
            "exact": ops.gelu_exact_backward(dy, ops.gelu_exact_forward(x)[1]),
            "sigmoid": dy * (s + 1.702 * x * s * (1 - s)),
        }[kind]

    assert words in failures(name, backward)["dx"].diagnosis


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (1, 0, "the term x·φ(x) is missing"),
        (0, 1, "the term Φ(x) is missing"),
        (1, -1, "the sign of the term x·φ(x) is flipped"),
        (0.5, 1, "the term Φ(x) is 0.5 times the right one"),
    ],
)
def test_terms_of_gelu(first, second, words):
    def backward(dy, cache):
        x, cdf = cache
        return dy * (first * cdf + second * x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi))

    assert failures("gelu_exact", backward)["dx"].diagnosis == words


def test_half_of_a_product_rule():
    def forward(x):
        return x * np.sin(x), x

    x = np.random.default_rng(0).standard_normal((3, 4)) + 2
    assert "term input · g' is missing" in diagnosis_of(forward, lambda dy, x: dy * np.sin(x), x)["dx"]
    wrong = diagnosis_of(forward, lambda dy, x: dy * (np.sin(x) + 3 * x * np.cos(x)), x)["dx"]
    assert "term input · g' is 3 times the right one" in wrong


@pytest.mark.parametrize(("eps", "words"), [(1e-6, "ε = 1e-06, where the forward has 1e-05"), (1e-3, "ε = 0.001")])
def test_wrong_epsilon(eps, words):
    def backward(dy, cache):
        xhat, rstd, gamma = cache
        return ops.layernorm_backward(dy, (xhat, (rstd**-2 - 1e-5 + eps) ** -0.5, gamma))

    assert words in failures("layernorm", backward)["dx"].diagnosis


def test_rows_by_factors():
    def backward(dy, cache):
        xhat, rstd, gamma = cache
        return ops.layernorm_backward(dy, (xhat, np.ones_like(rstd), gamma))

    assert "each row is a number of its own" in failures("layernorm", backward)["dx"].diagnosis


def softmax_rows(logits):
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("shifted", "off by one: the gradient takes targets shifted by"),
        ("ignored", "wrong only where targets is negative"),
        ("no target", "the −1 at the target is missing"),
        ("probabilities twice", "softmax(logits) is 2 times the right one"),
    ],
)
def test_mistakes_of_the_loss(mistake, words):
    c = case("cross_entropy")
    logits, targets = c.inputs

    def backward(dloss, cache):
        counted = targets >= 0
        probs = softmax_rows(logits)
        used = np.roll(targets, 1, axis=-1) if mistake == "shifted" else targets
        one_hot = (np.arange(logits.shape[-1]) == used[..., None]) * (mistake != "no target")
        dlogits = (1 + (mistake == "probabilities twice")) * probs - one_hot
        if mistake != "ignored":
            dlogits *= counted[..., None]
        return dloss * dlogits / counted.sum()

    report = check(c.forward, backward, *c.inputs, contract=False)
    assert words in report.failures[0].diagnosis


@pytest.mark.parametrize(
    ("mix", "words"),
    [
        (lambda q, k, v: (q, q, v), "the upstream of output 1 is not used, that of output 0 stands in its order"),
        (lambda q, k, v: (q, v, k), "the upstreams of outputs 1 and 2 are swapped"),
        (lambda q, k, v: (q, k, 0 * v), "the upstream of output 2 is missing"),
        (lambda q, k, v: (2 * q, k, v), "the upstream of output 0 has another factor, 2"),
        (
            lambda q, k, v: (q, np.roll(k, 1, -2), v),
            "off by one: the upstream of output 1 is shifted by 1 along axis 2",
        ),
    ],
)
def test_an_upstream_mixed_up(mix, words):
    def backward(dqkv, cache):
        return ops.qkv_backward(mix(*dqkv), cache)

    assert words in failures("qkv", backward, kwargs={"h": 3})["dx"].diagnosis


def test_one_place_of_several_counts():
    def backward(dx, cache):
        return ops.embedding_backward(dx, cache)[0], np.vstack([dx[-1], 0 * dx[0, :1]])

    diagnosis = failures("embedding", backward)["dW_pe"].diagnosis
    assert "the upstream counts at the last place of axis 0 only" in diagnosis


def test_a_factor_left_out():
    assert "this is x itself: a factor is left out" in diagnosis_of(lambda x: (x**2, x), lambda dy, x: x, X)["dx"]
    c = case("layernorm")
    y = c.forward(*c.inputs)[0]

    def of_output(dy, cache):
        dx, _, dbeta = ops.layernorm_backward(dy, cache)
        return dx, (dy * y).sum((0, 1)), dbeta

    assert "this is Σ upstream · the output over the rows" in failures("layernorm", of_output)["dgamma"].diagnosis


def test_the_skip_path():
    def forward(x, w):
        return x + w * np.tanh(x), (x, w)

    def backward(dy, cache, skip=1, branch=1):
        x, w = cache
        return dy * (skip + branch * w * (1 - np.tanh(x) ** 2)), (dy * np.tanh(x)).sum(0)

    w = np.linspace(0.5, 2, 4)
    assert diagnosis_of(forward, backward, X, w) == {}
    found = diagnosis_of(forward, lambda dy, c: backward(dy, c, skip=0), X, w)["dx"]
    assert found == "the skip path, the upstream as it is, is missing"
    found = diagnosis_of(forward, lambda dy, c: backward(dy, c, branch=-1), X, w)["dx"]
    assert found == "the sign of the branch beside the skip path is flipped"


@pytest.mark.parametrize(
    ("factor", "words"), [(2, "is 2 times"), (-1, "the sign of the tied term, the embedding's share")]
)
def test_the_tied_term_has_another_factor(factor, words):
    class Model1(Model):
        def backward(self, dlogits, cache, grads=None):
            g = super().backward(dlogits, cache, grads)
            if self.config.tie:
                _, dW_te = ops.head_backward(dlogits, cache[-1])
                g["W_te"][...] = dW_te + factor * (g["W_te"] - dW_te)
            return g

    model = Model1(Config(V=5, T_max=4, d=4, h=2, L=1), seed=None, dtype="float64")
    model.params.flat[:] = np.random.default_rng(0).standard_normal(model.params.flat.size)
    report = check_model(model=model, idx=np.array([[1, 2, 2, 0]]))
    assert words in next(line for line in report.failures if line.check == "complex step").diagnosis


def test_nothing_is_said_where_nothing_fits():
    rng = np.random.default_rng(5)
    for name in ("gelu", "softmax", "layernorm", "linear", "attend", "cross_entropy", "qkv", "embedding"):
        noise = changed(name, 0, lambda g: g + rng.standard_normal(g.shape))
        for line in failures(name, noise).values():
            assert line.diagnosis == "", line.message()


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
