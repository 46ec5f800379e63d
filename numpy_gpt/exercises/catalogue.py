"""The exercises, in the lesson's order, with their hints."""

from __future__ import annotations

from .adamw import AdamWExercise
from .exercise import BESIDE, Exercise
from .op import BlockExercise, OpExercise
from .tied_head import TiedHeadExercise

ALL: list[Exercise] = [
    OpExercise(
        "embedding",
        "§1",
        "dx (..., T, d), and the forward's cache  ->  dW_te (V, d), dW_pe (T_max, d). The ids have no gradient.",
        (
            "x is a sum, so dx goes to tok and to pos unchanged. For each row of W_te and of W_pe ask: "
            "which places of x (..., T, d) did it go into?",
            "Row t of W_pe stands at position t of every sequence: sum dx over the leading axes, "
            "(..., T, d) -> (T, d). The rows from T on were not used. Row v of W_te stands wherever idx is v: its "
            "gradient is the sum of dx over those places, and an id may repeat.",
            "Start from zeros of the tables' shapes in dx.dtype. dW_pe[:T] = dx.reshape(-1, T, d).sum(axis=0). "
            "np.add.at(dW_te, idx, dx) adds up at repeated ids; dW_te[idx] += dx would keep only the last one.",
        ),
    ),
    OpExercise(
        "linear",
        "§3, §6",
        "dy (..., n_out), and the forward's cache  ->  dx (..., n_in), dW (n_in, n_out), db (n_out,).",
        (
            "Write one element out: y[n, j] = Σ_i x[n, i] W[i, j] + b[j]. Into which elements of y does one W[i, j] "
            "go, and with what factor? Each gradient has the shape of what it belongs to.",
            "∂L/∂W[i, j] = Σ_n x[n, i] dy[n, j] sums over the rows n: a product (n_in, rows) @ (rows, n_out). "
            "dx sums over j: (rows, n_out) @ (n_out, n_in). b is added to every row.",
            "With dy_rows = dy.reshape(-1, n_out): dx = dy_rows @ W.T, reshaped to x_shape; dW = x_rows.T @ dy_rows; "
            "db = dy_rows.sum(axis=0).",
        ),
    ),
    OpExercise(
        "qkv",
        "§2",
        "dqkv = (dq, dk, dv), each (B, h, T, d_head), and the forward's cache\n"
        "->  dx (B, T, d), dW_qkv (d, 3d), db_qkv (3d,).",
        (
            "Splitting and reshaping only move numbers: going back moves them back. "
            "Undo the forward's three steps from the last to the first: heads, split, linear.",
            "merge_heads undoes split_heads: dq, dk and dv become (B, T, d) each. Splitting in three is undone by "
            "laying the three side by side on the last axis, (B, T, 3d). The cache is linear_forward's.",
            "dqkv = np.concatenate([merge_heads(dt) for dt in (dq, dk, dv)], axis=-1), and "
            "linear_backward(dqkv, cache) gives all three. With real attention above, the K third of db_qkv will be 0: "
            "can you see why?",
        ),
    ),
    OpExercise(
        "softmax",
        "§2",
        "dattn (..., n), and the forward's cache, attn itself  ->  dscores (..., n). A mask has no gradient.",
        (
            "Each attn of a row depends on every score of that row, through the total below the fraction. "
            "The Jacobian of one row is a full (n, n) matrix, but you need not build it.",
            "∂attn_i/∂scores_j = attn_i (δ_ij − attn_j). Multiply by dattn_i and sum over i: the δ leaves one term, "
            "and the other holds one number that the whole row shares.",
            "That number is Σ_i dattn_i attn_i, of shape (..., 1): sum with keepdims=True. Then "
            "dscores = attn · (dattn − that number). A masked place has attn = 0 and gets 0; every row sums to 0.",
        ),
        cases=("softmax", "softmax_masked"),
    ),
    OpExercise(
        "attend",
        "§2",
        "dout (B, h, T, d_head), and the forward's cache  ->  dq, dk, dv, each (B, h, T, d_head).",
        (
            "Three steps: scores, softmax, out. Take them from the last to the first. At each matrix product let the "
            "shapes lead you: dattn is (B, h, T, T).",
            "From out = attn @ v: dattn = dout @ vᵀ and dv = attnᵀ @ dout, where ᵀ swaps the last two axes "
            "(swapaxes(-2, -1); a reshape to the same shape is not a transpose). softmax_backward leads on to dscores; "
            "the mask needs no line of its own.",
            "dscores = softmax_backward(dattn, cache_softmax), divided by d_head**0.5 if scale, as scores were. "
            "From scores = q @ kᵀ: dq = dscores @ k and dk = dscoresᵀ @ q.",
        ),
        cases=("attend", "attend_plain"),
    ),
    OpExercise(
        "attention",
        "§2",
        "dout (B, T, d), and the forward's cache\n"
        "->  dx (B, T, d), dW_qkv (d, 3d), db_qkv (3d,), dW_o (d, d), db_o (d,).",
        (
            "Each line of the forward has a backward already. Call them from the last line to the first, "
            "each with the cache of its own line.",
            "linear_backward gives the gradient at the merged heads, (B, T, d), with dW_o and db_o. split_heads is "
            "merge_heads backwards: (B, h, T, d_head). attend_back gives dq, dk, dv, and qkv_backward takes the three.",
            "dout, dW_o, db_o = linear_backward(dout, cache_o); dout = split_heads(dout, h); "
            "dq, dk, dv = attend_back(dout, cache_attend); dx, dW_qkv, db_qkv = qkv_backward((dq, dk, dv), cache_qkv). "
            "Return them in the order of the inputs.",
        ),
    ),
    OpExercise(
        "gelu",
        "§3",
        "dy, and the forward's cache  ->  dx, of x's shape. t in the cache is tanh u.",
        (
            "GELU acts on each number alone, so dx is dy times the slope dy/dx there. For the slope use the product "
            "rule: x stands in front, and again inside tanh.",
            "The derivative of tanh u is 1 − tanh² u, so the slope is ½ (1 + t) + ½ x (1 − t²) du/dx. What is du/dx "
            "for u = √(2/π) (x + 0.044715 x³)?",
            "du/dx = √(2/π) (1 + 3·0.044715 x²), with SQRT_2_OVER_PI and CUBIC from above. "
            "dx = dy · (½ (1 + t) + ½ x (1 − t²) du/dx).",
        ),
        helpers=("SQRT_2_OVER_PI", "CUBIC"),
    ),
    OpExercise(
        "gelu_exact",
        "§3",
        "dy, and the forward's cache  ->  dx, of x's shape. cdf in the cache is Φ(x).",
        (
            "GELU acts on each number alone, so dx is dy times the slope of x · Φ(x). Use the product rule. "
            "What is the derivative of a distribution function?",
            "It is the density: Φ'(x) = φ(x). So the slope is Φ(x) + x φ(x), and Φ(x) is in the cache already.",
            "φ(x) = exp(−x²/2) / √(2π): np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi). math.sqrt, not np.sqrt, "
            "so that float32 stays float32. dx = dy · (cdf + x · pdf).",
        ),
    ),
    OpExercise(
        "mlp",
        "§3",
        "dy (..., d), and the forward's cache\n->  dx (..., d), dW_1 (d, 4d), db_1 (4d,), dW_2 (4d, d), db_2 (d,).",
        (
            "Three lines, expand, GELU, contract, and each has a backward already. Start with the last.",
            "linear_backward(dy, cache_2) leads from d to 4d and gives dW_2 and db_2 on the way. GELU's backward keeps "
            "(..., 4d). A second linear_backward leads back to d. GELU[gelu] holds the pair that the forward used.",
            "dh1, dW_2, db_2 = linear_backward(dy, cache_2); _, activate_backward = GELU[gelu]; "
            "dh1 = activate_backward(dh1, cache_gelu); dx, dW_1, db_1 = linear_backward(dh1, cache_1). "
            "Return them in the order of the inputs.",
        ),
        cases=("mlp", "mlp_exact"),
        helpers=("GELU",),
    ),
    OpExercise(
        "layernorm",
        "§4",
        "dy (..., d), and the forward's cache  ->  dx (..., d), dgamma (d,), dbeta (d,).\n"
        "In the cache are x̂, rstd = 1 / √(σ² + ε) of shape (..., 1), and γ.",
        (
            "dgamma and dbeta belong to a product and a sum. dx is the hard one: each x of a row moves the row's mean "
            "and its variance too, and through them every x̂ of the row.",
            "Let g = dy · γ (..., d), the gradient at x̂. If μ and σ were constants, dx would be rstd · g. The mean "
            "takes away a term that is constant in a row, the variance one along x̂. "
            "dgamma and dbeta are sums over all rows.",
            "dx = rstd · (g − mean(g) − x̂ · mean(g · x̂)), both means over the last axis with keepdims=True, (..., 1). "
            "dgamma = (dy * xhat).reshape(-1, d).sum(axis=0), and dbeta the same of dy.",
        ),
        helpers=("row_dot",),
    ),
    BlockExercise(
        "block",
        "§4",
        "dx (B, T, d) at the block's output, and the forward's cache  ->  dx (B, T, d) at its input.\n"
        'g holds an array for each of the parameters, g["W_1"] and so on: write their gradients into those arrays.',
        (
            "At x = x + f(x) the gradient goes two ways, along the skip untouched and through the branch f. "
            "Where the two meet they are added. Undo the MLP's line first.",
            "The branch is f(x) = MLP(LN(x)), so mlp_backward and then layernorm_backward lead dx (B, T, d) through "
            "it, and the result is added to dx: a new array, since the upstream is not yours to change. "
            "Then the same with attention.",
            'dy, dW_1, db_1, dW_2, db_2 = mlp_backward(dx, cache_mlp); g["W_1"][...] = dW_1, and so on; '
            'dy, dgamma, dbeta = layernorm_backward(dy, cache_ln_2); g["ln_2.gamma"][...] = dgamma, and so on; '
            "dx = dx + dy. Then attention_backward with cache_attn and layernorm_backward with cache_ln_1, alike.",
        ),
    ),
    OpExercise(
        "head",
        "§5",
        "dlogits (..., V), and the forward's cache  ->  dx (..., d), dW_te (V, d): the head's share of it.",
        (
            "A linear layer without a bias, whose matrix is W_te transposed. Write one element out: "
            "logits[n, v] = Σ_i x[n, i] W_te[v, i].",
            "dx sums over the vocabulary: (rows, V) @ (V, d). dW_te sums over the rows, and comes out as W_te lies, "
            "(V, d), not as the head uses it, (d, V).",
            "With dlogits_rows = dlogits.reshape(-1, V): dx = dlogits_rows @ W_te, reshaped to x_shape; "
            "dW_te = dlogits_rows.T @ x_rows. The embedding's share comes on top: exercise tied_head.",
        ),
    ),
    OpExercise(
        "cross_entropy",
        "§5",
        "dloss, a scalar, and the forward's cache  ->  dlogits, of the logits' shape (..., V). The cache holds\n"
        "probs (N, V) = softmax(logits), rows and targets (N,), and which of them are counted (N,).",
        (
            "One position's loss is log Σ_v exp(logits_v) − logits_target. Differentiate both terms by one logit. "
            "Then ask what the mean does to it, and what happens where the target is not counted.",
            "∂/∂logits_v = p_v − [v = target], (N, V). The mean divides by n_counted, not by N. dloss multiplies "
            "everything: it is 1 in training alone. Positions that are not counted get 0.",
            "n = max(n_counted, 1); dlogits = probs * (dloss / n), a new array; dlogits[rows, targets] -= dloss / n; "
            "dlogits[~counted] = 0; reshape it to shape.",
        ),
    ),
    TiedHeadExercise(
        "tied_head",
        "§5",
        "dlogits (B, T, V), and the forward's cache\n"
        "->  Parameters with the gradient of each parameter, by name. Write into grads if it is given,\n"
        "else into self.params.zeros_like().",
        (
            "`backward` is `forward` read from the bottom up: head, ln_f, the blocks from L − 1 to 0, embedding. "
            "W_te stands in two of these lines.",
            "A matrix used twice gets the sum of the gradients of its uses, one from head_backward and one from "
            "embedding_backward, each (V, d). A second `=` would overwrite the first. BLOCK[config.norm] holds the "
            "block's backward, which takes g.block(number) to write into.",
            'g is grads, or new zeros; dx, g["W_te"] = head_backward(dlogits, cache_head); '
            'dx, g["ln_f.gamma"], g["ln_f.beta"] = layernorm_backward(dx, cache_ln_f); '
            "for number in reversed(range(self.config.L)): "
            "dx = block_backward(dx, cache_blocks[number], g.block(number)); "
            'dW_te, g["W_pe"] = embedding_backward(dx, cache_embedding); g["W_te"] += dW_te; return g.',
        ),
    ),
    AdamWExercise(
        "adamw",
        BESIDE,
        "One update, in place: self.params, self.m, self.v and self.t as the class says above. The gradient g is\n"
        "scale · grads; grads itself is not written into. lr counts in place of self.lr unless it is None.\n"
        "Of Parameters p, p.flat (N,) is every number, p.matrices and p.vectors are its two parts.",
        (
            "Four lines, each on whole flat vectors (N,): m, v, the decay, the step. "
            "Count first: self.t is 1 in the first update. Which part of self.params is decayed?",
            "m and v start at 0 and are too small by 1 − β1ᵗ and 1 − β2ᵗ: divide, but keep m and v themselves as they "
            "are. The decay shrinks self.params.matrices alone, by 1 − lr·λ, before the step. ε stands outside "
            "the root.",
            "g = scale * grads.flat; m = self.m.flat; m *= beta1; m += (1 - beta1) * g; the same for v with g * g. "
            "self.params.matrices *= 1 - lr * self.weight_decay. "
            "self.params.flat -= lr * m_hat / (np.sqrt(v_hat) + self.eps).",
        ),
    ),
]
EXERCISES: dict[str, Exercise] = {item.name: item for item in ALL}


def exercise(name: str) -> Exercise:
    """Return the exercise called name. Raises ValueError for an unknown one."""
    if name not in EXERCISES:
        raise ValueError(f"no exercise called {name!r}; there are {', '.join(EXERCISES)}")
    return EXERCISES[name]
