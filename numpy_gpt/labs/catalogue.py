"""The labs, in the lesson's order."""

from __future__ import annotations

from . import (
    budget_identity,
    bytes_per_token,
    causal_mask,
    failure_modes,
    first_loss,
    flops_2n4n6n,
    fused_qkv,
    gelu_shapes,
    heads_for_free,
    mlp_share,
    parameter_count,
    pre_post_norm,
    score_scale,
    score_tensor,
    sum_of_tables,
    weight_tying,
)
from .lab import Lab

LABS: dict[str, Lab] = {
    module.LAB.name: module.LAB
    for module in (
        bytes_per_token,
        sum_of_tables,
        fused_qkv,
        score_scale,
        causal_mask,
        heads_for_free,
        score_tensor,
        gelu_shapes,
        mlp_share,
        pre_post_norm,
        weight_tying,
        first_loss,
        parameter_count,
        flops_2n4n6n,
        budget_identity,
        failure_modes,
    )
}


def lab(name: str) -> Lab:
    """Return the lab called name. Raises ValueError."""
    if name not in LABS:
        raise ValueError(f"no lab called {name!r}; there are {', '.join(LABS)}")
    return LABS[name]
