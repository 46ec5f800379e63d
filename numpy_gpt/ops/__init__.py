"""The lesson's operations, each a forward directly above its backward.

    y, cache = x_forward(x, ...)
    dx, ...  = x_backward(dy, cache)

Pure: neither writes into what it is given. dtype in, dtype out: float32, float64 and, for the
complex-step check, complex128. Gradients come back in the order of the forward's inputs.
"""

from .attention import (
    attend_backward,
    attend_forward,
    attention_backward,
    attention_forward,
    attention_weights,
    merge_heads,
    qkv_backward,
    qkv_forward,
    split_heads,
)
from .cross_entropy import IGNORE_INDEX, cross_entropy_backward, cross_entropy_forward
from .embedding import embedding_backward, embedding_forward
from .gelu import gelu_backward, gelu_exact_backward, gelu_exact_forward, gelu_forward
from .head import head_backward, head_forward
from .layernorm import layernorm_backward, layernorm_forward
from .linear import linear_backward, linear_forward
from .mlp import mlp_backward, mlp_forward
from .softmax import causal_mask, softmax_backward, softmax_forward

__all__ = [
    "IGNORE_INDEX",
    "attend_backward",
    "attend_forward",
    "attention_backward",
    "attention_forward",
    "attention_weights",
    "causal_mask",
    "cross_entropy_backward",
    "cross_entropy_forward",
    "embedding_backward",
    "embedding_forward",
    "gelu_backward",
    "gelu_exact_backward",
    "gelu_exact_forward",
    "gelu_forward",
    "head_backward",
    "head_forward",
    "layernorm_backward",
    "layernorm_forward",
    "linear_backward",
    "linear_forward",
    "merge_heads",
    "mlp_backward",
    "mlp_forward",
    "qkv_backward",
    "qkv_forward",
    "softmax_backward",
    "softmax_forward",
    "split_heads",
]
