"""The gradient checker: is this backward the gradient of that forward, in every element?

    from numpy_gpt.gradcheck import check
    assert check(gelu_forward, gelu_backward, x).ok

Works on any pair `forward(*inputs) -> (out, cache)`, `backward(dout, cache) -> grads`, ours or
yours, and on a whole Model. A report says what is wrong, where, and, where it can, why.
"""

from .check import check
from .command import command
from .models import check_model, check_projections
from .report import Line, Report, Verdict
from .suite import fuzz, suite

__all__ = ["Line", "Report", "Verdict", "check", "check_model", "check_projections", "command", "fuzz", "suite"]
