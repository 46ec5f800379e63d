"""Real bugs, planted by hand: what public code got wrong, put into our functions.

Each is an edit of one function's source, as `ast.unparse` prints it, checked at inputs where the
bug shows. Bugs of other people's code carry the report that tells of them.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from mutate import Mutant, find_function, package, strip_docstring


@dataclass(frozen=True)
class Planted:
    """One bug.

    title     what went wrong
    function  where; a forward too, when the bug is that its backward cannot be right
    edits     pairs of old text, which must be there, and new text
    names     what a message must say (a regular expression) to have named the bug
    targets   where it is checked, if not where the function's other mutants are
    report    where the bug was reported
    """

    title: str
    function: str
    edits: Sequence[tuple[str, str]]
    names: str
    targets: Sequence[str] = ()
    report: str = ""

    def mutant(self) -> Mutant:
        """Return the mutant. Raises AssertionError where the old text is not in the function any more."""
        tree = next(found for _, tree, _ in package() if (found := find_function(tree, self.function)))
        source = ast.unparse(strip_docstring(tree))
        for old, new in self.edits:
            assert old in source, f"{self.function} holds no {old!r} to plant {self.title!r} in:\n{source}"
            source = source.replace(old, new)
        return Mutant(f"{self.function} planted: {self.title}", self.function, "planted", source)


N_COUNTED = "max(n_counted, 1)"
SUM_OF_ROWS = "dscores -= attn * dscores.sum(axis=-1, keepdims=True)"

PLANTED = [
    # Embedding
    Planted(
        "a repeated id keeps only its last gradient, written one after another",
        "embedding_backward",
        [("scatter_add(dW_te, idx.reshape(-1), dx.reshape(-1, d))", "dW_te[idx] = dx")],
        "keeps only the last",
        report="HIPS/autograd#39",
    ),
    Planted(
        "a repeated id keeps only its last gradient, added by fancy indexing",
        "embedding_backward",
        [("scatter_add(dW_te, idx.reshape(-1), dx.reshape(-1, d))", "dW_te[idx] += dx")],
        "keeps only the last",
        report="HIPS/autograd#39",
    ),
    Planted(
        "the position's gradient is that of the last sequence alone",
        "embedding_backward",
        [("dx.reshape(-1, T, d).sum(axis=0)", "dx.reshape(-1, T, d)[-1]")],
        "axis|batch|leading",
    ),
    # The tied head
    Planted(
        "the tied matrix gets the head's share alone",
        "Model.backward",
        [("g['W_te'][ids] += rows", "pass")],
        "the embedding's share, is missing",
        ["model"],
    ),
    Planted(
        "the tied matrix gets the embedding's share alone",
        "Model.backward",
        [("g['W_te'][ids] += rows", "g['W_te'][...] = 0; g['W_te'][ids] = rows")],
        "the head's share, is missing",
        ["model"],
    ),
    # Attention
    Planted(
        "dK reshaped instead of transposed",
        "attend_backward",
        [("dscores.swapaxes(-2, -1) @ q", "(q.swapaxes(-2, -1) @ dscores).reshape(k.shape)")],
        "reshaped where a transpose",
    ),
    Planted(
        "the scale is √d, not √d_head",
        "attend_backward",
        [("d_head ** 0.5", "(d_head * q.shape[-3]) ** 0.5")],
        "times the right one",
    ),
    Planted(
        "np.sqrt makes float32 into float64",
        "attend_backward",
        [("dscores /= d_head ** 0.5", "dscores = dscores / array_module(q).sqrt(d_head)")],
        "float32 in, .* is float64",
        report="NEP 50",
    ),
    Planted(
        "the mask is transposed in the backward",
        "attend_backward",
        [
            (
                "dscores = softmax_backward(dattn, cache_softmax)",
                "dscores = softmax_backward(dattn, cache_softmax) * causal_mask(q.shape[-2], array_module(q)).T",
            )
        ],
        "future|rows sum|mask",
    ),
    Planted(
        "the gradient of the key's bias, 0 in theory, is a little off",
        "qkv_backward",
        [
            (
                "return linear_backward(dqkv, cache, out=out)",
                "dx, dW_qkv, db_qkv = linear_backward(dqkv, cache, out=out)\n    return (dx, dW_qkv, db_qkv + 1e-07)",
            )
        ],
        "K third|right to",
        ["attention"],
    ),
    # Softmax
    Planted(
        "a row that is masked as a whole gives NaN",
        "softmax_forward",
        [("xp.where(xp.isfinite(row_max), row_max, zero.real)", "row_max"), ("total + (total == 0)", "total")],
        "NaN|nan|not finite",
        ["softmax_masked"],
        "pytorch#41508",
    ),
    Planted(
        "taken for a function of each element alone: a (1 − a)",
        "softmax_backward",
        [(SUM_OF_ROWS, "dscores -= attn * dscores")],
        "not subtracted|is missing|rows sum to 0",
    ),
    Planted(
        "keepdims is missing, and the square shape broadcasts all the same",
        "softmax_backward",
        [(SUM_OF_ROWS, "dscores -= attn * dscores.sum(axis=-1)")],
        "keepdims|rows sum to 0|axis",
        ["softmax_square"],
        "nn-zero-to-hero#59",
    ),
    Planted(
        "the gradient is written into the saved probabilities",
        "softmax_backward",
        [("return dscores", "attn[...] = dscores\n    return attn")],
        "wrote into",
        report="ggml#1521",
    ),
    # GELU
    Planted(
        "the tanh form's derivative for the exact form",
        "gelu_exact_backward",
        [
            (
                "return dy * (cdf + x * pdf)",
                "t = xp.tanh(SQRT_2_OVER_PI * (x + CUBIC * x * x * x))\n    return gelu_backward(dy, (x, t))",
            )
        ],
        "GELU|gelu|tanh|right to",
    ),
    Planted(
        "the exact form's derivative for the tanh form",
        "gelu_backward",
        [
            (
                "x, t = cache",
                "x, t = cache\n    return gelu_exact_backward(dy, (x, 0.5 * (1 + erf(x / math.sqrt(2)))))",
            )
        ],
        "GELU|gelu|tanh|right to",
    ),
    Planted(
        "the derivative of x·σ(1.702 x)",
        "gelu_backward",
        [
            (
                "x, t = cache",
                "x, t = cache\n    s = 1 / (1 + array_module(x).exp(-1.702 * x))\n"
                "    return dy * (s + 1.702 * x * s * (1 - s))",
            )
        ],
        "GELU|gelu|tanh|right to",
    ),
    Planted(
        "exp overflows far out: sech² as 4e²ᵘ / (e²ᵘ + 1)²",
        "gelu_backward",
        [
            (
                "dx *= 1 - t * t",
                "e = array_module(x).exp(2 * SQRT_2_OVER_PI * (x + CUBIC * x * x * x))\n    dx *= 4 * e / (e + 1) ** 2",
            )
        ],
        "NaN",
        ["gelu_far"],
        "llm.c#19",
    ),
    Planted(
        "the gradient is written into the saved tanh",
        "gelu_backward",
        [("return dx", "t[...] = dx\n    return t")],
        "wrote into",
        report="ggml#1521",
    ),
    # LayerNorm
    Planted(
        "mean and variance taken for constants",
        "layernorm_backward",
        [("dx -= dx.mean(axis=-1, keepdims=True)", "pass"), ("dx -= xhat * g_xhat", "pass")],
        "not subtracted|is missing|orthogonal",
    ),
    Planted(
        "the variance divided by d − 1 in the backward",
        "layernorm_backward",
        [("row_dot(dx, xhat) / d", "row_dot(dx, xhat) / (d - 1)")],
        "times the right one",
    ),
    Planted(
        "another ε in the backward",
        "layernorm_backward",
        [("dgamma, dbeta = out", "dgamma, dbeta = out\n    rstd = (rstd ** -2 - 1e-05 + 1e-06) ** -0.5")],
        "ε",
    ),
    Planted(
        "ε outside the square root in the backward",
        "layernorm_backward",
        [("dgamma, dbeta = out", "dgamma, dbeta = out\n    rstd = 1 / ((rstd ** -2 - 1e-05) ** 0.5 + 1e-05)")],
        "ε",
    ),
    Planted(
        "dgamma from the output, not from x̂",
        "layernorm_backward",
        [("(dy * xhat)", "(dy * (xhat * gamma))")],
        "gamma times the right one",
    ),
    Planted(
        "a constant row gives NaN: no ε in the forward",
        "layernorm_forward",
        [("var + eps", "var")],
        "NaN|nan|not finite",
        ["layernorm_constant"],
        "pytorch#41527",
    ),
    Planted(
        "keepdims is missing, and the square shape broadcasts all the same",
        "layernorm_backward",
        [("dx.mean(axis=-1, keepdims=True)", "dx.mean(axis=-1)")],
        "keepdims|orthogonal to ones|not subtracted|axis",
        ["layernorm_square"],
        "nn-zero-to-hero#59",
    ),
    # Linear and MLP
    Planted(
        "the bias gradient keeps an axis of size 1, which allclose broadcasts away",
        "linear_backward",
        [("dy_rows.sum(axis=0, out=db)", "dy_rows.sum(axis=0, keepdims=True)")],
        "shape",
        report="nn-zero-to-hero#59",
    ),
    Planted(
        "an unseeded random number in the last digits",
        "embedding_backward",
        [("return (dW_te", "dW_pe *= 1 + 1e-13 * xp.random.default_rng().standard_normal()\n    return (dW_te")],
        "other bits",
    ),
    Planted(
        "GELU's derivative at its output, not at its input",
        "mlp_backward",
        [
            (
                "activate_backward(dh1, cache_gelu)",
                "activate_backward(dh1, (cache_2[0].reshape(dh1.shape), cache_gelu[1]))",
            )
        ],
        "GELU|gelu|saved|cache",
        ["mlp_exact"],
    ),
    # Cross-entropy
    Planted(
        "a mean loss whose gradient is not divided",
        "cross_entropy_backward",
        [(N_COUNTED, "1")],
        "times the right one",
    ),
    Planted(
        "divided by all positions, also those not counted",
        "cross_entropy_backward",
        [(N_COUNTED, "len(rows)")],
        "times the right one",
    ),
    Planted(
        "ignored targets still pull on their logits",
        "cross_entropy_backward",
        [("dlogits[~counted] = 0", "pass")],
        "wrong only at|ignored|not counted|rows",
    ),
    Planted(
        "no target is counted: 0/0 in the loss",
        "cross_entropy_forward",
        [(N_COUNTED, "xp.float64(n_counted)")],
        "NaN|nan|not finite",
        ["cross_entropy_none"],
        "pytorch#70348",
    ),
    Planted(
        "no target is counted: 0/0 in the gradient",
        "cross_entropy_backward",
        [(N_COUNTED, "n_counted"), ("dlogits[~counted] = 0", "pass")],
        "NaN",
        ["cross_entropy_none"],
        "pytorch#70348",
    ),
    Planted(
        "the mean of two micro-batches' means, though their counts differ",
        "cross_entropy_backward",
        [
            (
                "dloss = xp.asarray(dloss, dtype=probs.dtype)",
                "dloss = xp.asarray(dloss, dtype=probs.dtype)\n    half = len(rows) // 2\n"
                "    n = 2 * xp.where(rows < half, counted[:half].sum(), counted[half:].sum()).astype(probs.dtype)",
            ),
            (f"xp.multiply(probs, dloss / {N_COUNTED}, out=out)", "probs * (dloss / n)[:, None]"),
            (f"-= dloss / {N_COUNTED}", "-= dloss / n"),
        ],
        "batch|counted|ratio",
        report="transformers#34191",
    ),
    Planted(
        "the gradient takes the target one place too early",
        "cross_entropy_backward",
        [("dlogits[rows, targets]", "dlogits[rows, xp.roll(targets, 1)]")],
        "off by one|shifted",
    ),
    Planted(
        "the loss's gradient is shifted by one position",
        "Model.loss_backward",
        [
            (
                "dlogits = cross_entropy_backward(dloss, cache_loss)",
                "dlogits = self.xp.roll(cross_entropy_backward(dloss, cache_loss), 1, axis=1)",
            )
        ],
        "off by one|shifted",
        ["model"],
    ),
]
