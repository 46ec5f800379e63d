"""Cross-entropy: the one number that the model exists to make small (lesson §5)."""

from __future__ import annotations

from ..backend import Array, array_module
from .checks import check_floating, check_ids

IGNORE_INDEX = -100  # PyTorch's default too


def cross_entropy_forward(logits: Array, targets: Array, ignore_index: int = IGNORE_INDEX) -> tuple[Array, tuple]:
    """loss = mean over counted targets of −log softmax(logits)[target]

    logits (..., V), targets (...) integer ids  ->  loss, a scalar of logits' dtype, in nats.
    A target equal to ignore_index is not counted; where none is counted the loss is 0 and so
    is its gradient. FLOPs an element, exp counted as one: 4 forward, 1 backward. Lesson §5.

    Raises ValueError for a target that is neither ignore_index nor in 0 <= target < V (naming
    position and value), and where the shapes do not fit.
    """
    check_floating(logits=logits)
    xp = array_module(logits)
    if logits.ndim == 0:
        raise ValueError("logits must be (..., V), got shape ()")
    V = logits.shape[-1]
    targets = check_ids(targets, V, "targets", ignore_index)
    if targets.shape != logits.shape[:-1]:
        raise ValueError(f"targets have shape {targets.shape}, but logits {logits.shape} want {logits.shape[:-1]}")
    targets = targets.reshape(-1)  # (N,)
    rows, counted = xp.arange(targets.size), targets != ignore_index  # (N,)
    targets = xp.where(counted, targets, 0)
    n_counted = int(counted.sum())

    logits_rows = logits.reshape(-1, V)  # (N, V)
    probs = logits_rows - logits_rows.real.max(axis=-1, keepdims=True)  # (N, V), the largest logit at 0
    target_logits = probs[rows, targets]  # (N,)
    xp.exp(probs, out=probs)
    total = probs.sum(axis=-1, keepdims=True)  # (N, 1)
    probs /= total
    nll = xp.log(total[:, 0]) - target_logits  # (N,)  −log p(target)
    loss = nll[counted].sum() / max(n_counted, 1)
    return loss, (probs, rows, targets, counted, n_counted, logits.shape)


# ∂(−log p_target)/∂logits_v = p_v − [v = target]; the mean divides by the number of counted targets.


def cross_entropy_backward(dloss: Array | float, cache: tuple, out: Array | None = None) -> Array:
    """Return dlogits (..., V); dloss is the scalar gradient at the loss, 1 to train.

    out: an array (N, V) to write dlogits into, like NumPy's own out=.
    """
    probs, rows, targets, counted, n_counted, shape = cache
    xp = array_module(probs)
    dloss = xp.asarray(dloss, dtype=probs.dtype)
    # loss = mean(−log probs[targets])
    dlogits = xp.multiply(probs, dloss / max(n_counted, 1), out=out)  # (N, V)
    dlogits[rows, targets] -= dloss / max(n_counted, 1)
    dlogits[~counted] = 0
    return dlogits.reshape(shape)
