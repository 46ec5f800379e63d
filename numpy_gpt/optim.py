"""AdamW on one flat vector, clipping by the global norm, and the learning rate's schedule."""

from __future__ import annotations

import math

import numpy as np

from .backend import Array
from .cores import axpby, for_blocks
from .parameters import Parameters


class AdamW:
    """Adam with decoupled weight decay (Loshchilov & Hutter, 2019), in place.

        m = β1 m + (1 − β1) g          m̂ = m / (1 − β1ᵗ)
        v = β2 v + (1 − β2) g²         v̂ = v / (1 − β2ᵗ)
        θ = θ (1 − lr·λ) − lr · m̂ / (√v̂ + ε)

    λ = weight_decay applies to the matrices alone (W_te, W_pe, W_qkv, W_o, W_1, W_2 and an
    untied W_head; the tied W_te once), never to biases, gammas and betas.

    params  the Parameters to update
    m, v    Parameters beside them, the means of g and g²
    t       the number of updates done
    FLOPs: 14 a parameter; 7 numbers of memory traffic.

    Raises ValueError for rates outside their range, TypeError for what is no Parameters.
    """

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
    ) -> None:
        if not isinstance(params, Parameters):
            raise TypeError(f"params must be Parameters, as model.params is, got {type(params).__name__}")
        for name, value in (("lr", lr), ("weight_decay", weight_decay)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be a finite number of at least 0, got {value!r}")
        if not 0 < eps < math.inf:
            raise ValueError(f"eps must be a finite number above 0, got {eps!r}")
        if len(betas) != 2:
            raise ValueError(f"betas must be two numbers, got {betas!r}")
        for name, value in zip(("beta1", "beta2"), betas, strict=True):
            if not 0 <= value < 1:
                raise ValueError(f"{name} must lie in 0 <= {name} < 1, got {value!r}")
        self.params, self.lr, self.betas, self.eps, self.weight_decay = params, lr, betas, eps, weight_decay
        self.m, self.v = params.zeros_like(), params.zeros_like()
        self.t = 0

    def update(self, grads: Parameters, lr: float | None = None, scale: float = 1.0) -> None:
        """Move the parameters one step against scale · grads, with lr in place of the optimiser's own if given.

        scale  what `clip_scale` says; the gradients are copied anyway, and the copy takes it along

        Raises ValueError for an lr or scale that is negative or not finite, and for another model's gradients.
        """
        lr = self.lr if lr is None else lr
        for name, value in (("lr", lr), ("scale", scale)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be a finite number of at least 0, got {value!r}")
        if not isinstance(grads, Parameters) or grads.shapes != self.params.shapes:
            raise ValueError(
                f"these gradients, {grads!r:.200}, are not those of the optimiser's parameters, {self.params}"
            )
        lr, scale = float(lr), float(scale)  # a number of NumPy's would carry its dtype into the arrays
        self.t += 1
        p, m, v = self.params, self.m, self.v
        self._update(p.matrices, grads.matrices, m.matrices, v.matrices, lr, scale, self.weight_decay)
        self._update(p.vectors, grads.vectors, m.vectors, v.vectors, lr, scale, 0.0)

    def _update(
        self, theta: Array, grads: Array, m: Array, v: Array, lr: float, scale: float, weight_decay: float
    ) -> None:
        xp = self.params.xp
        beta1, beta2 = self.betas
        # m̂ / (√v̂ + ε) = (root / (1 − β1ᵗ)) · m / (√v + root · ε), with root = √(1 − β2ᵗ)
        root = math.sqrt(1 - beta2**self.t)
        step_size, eps = lr * root / (1 - beta1**self.t), root * self.eps

        def update_block(block: slice) -> None:
            theta_b, m_b, v_b = theta[block], m[block], v[block]
            s = scale * grads[block]  # g
            # m = β1 m + (1 − β1) g
            axpby(1 - beta1, s, beta1, m_b)
            # v = β2 v + (1 − β2) g²
            s *= s
            axpby(1 - beta2, s, beta2, v_b)
            # θ = θ (1 − lr·λ) − lr · m̂ / (√v̂ + ε)
            xp.sqrt(v_b, out=s)
            s += eps
            xp.divide(m_b, s, out=s)
            axpby(-step_size, s, 1 - lr * weight_decay, theta_b)

        for_blocks(update_block, theta.size, xp)


NORM_BLOCK = 2**20  # numbers: a smaller sum of squares is done before another core is awake


def global_norm(grads: Parameters) -> float:
    """Return √(Σ g²) over every gradient, in the gradients' dtype within a block and in double across blocks."""
    g, xp = grads.flat, grads.xp
    return math.sqrt(sum(for_blocks(lambda block: float(xp.vdot(g[block], g[block])), g.size, xp, NORM_BLOCK)))


def clip_scale(grads: Parameters, max_norm: float) -> tuple[float, float]:
    """Return the gradients' global norm, and the scale min(1, max_norm / norm) that clips it (Pascanu et al., 2013).

    The gradients stay as they are: `AdamW.update` takes the scale.

    Raises FloatingPointError, naming the parameter and the place, where a gradient is inf or
    nan: scaling would spread it to every parameter. Raises ValueError unless max_norm > 0.
    """
    if not max_norm > 0:
        raise ValueError(f"max_norm must be above 0, got {max_norm!r}")
    with np.errstate(over="ignore"):
        norm = global_norm(grads)
    if not math.isfinite(norm):
        check_finite(grads)
        # Finite numbers whose squares overflow: measure them against the largest.
        largest = float(abs(grads.flat).max())
        norm = largest * math.sqrt(float(((grads.flat / largest) ** 2).sum()))
    return norm, max_norm / norm if norm > max_norm else 1.0


def clip_by_global_norm(grads: Parameters, max_norm: float) -> float:
    """Scale the gradients in place so that their global norm is at most max_norm; return the norm before.

    Raises what `clip_scale` raises, and then leaves the gradients as they are.
    """
    norm, scale = clip_scale(grads, max_norm)
    if scale < 1:
        g, xp = grads.flat, grads.xp
        for_blocks(lambda block: xp.multiply(g[block], scale, out=g[block]), g.size, xp)
    return norm


def check_finite(grads: Parameters) -> None:
    """Raise FloatingPointError naming the first gradient that holds inf or nan, and where."""
    for name, gradient in grads.items():
        bad = ~grads.xp.isfinite(gradient)
        if bad.any():
            first = int(grads.xp.flatnonzero(bad)[0])
            position = ", ".join(str(int(i)) for i in np.unravel_index(first, gradient.shape))
            value = float(gradient.reshape(-1)[first])
            raise FloatingPointError(
                f"the gradient of {name} is {value} at [{position}] ({int(bad.sum())} such values)"
            )


def warmup_cosine(step: int, lr: float, min_lr: float, warmup: int, steps: int) -> float:
    """Return the learning rate of update number step (0, 1, ...) of a run of steps.

    Linear from lr/warmup to lr over the first warmup updates, then half a cosine from lr
    down to min_lr at the last (Loshchilov & Hutter, 2017; Radford et al., 2018).
    """
    if step < warmup:
        return lr * (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, steps - 1 - warmup))
    return min_lr + 0.5 * (lr - min_lr) * (1 + math.cos(math.pi * progress))
