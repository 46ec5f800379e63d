"""The lines of source that the page shows for each op: found in the ops, kept in the page.

The page must open without a server, so it carries them. After an edit to an op,

    python -m numpy_gpt.explorer.excerpts

writes them anew; a test fails until then.
"""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import model, ops
from ..ops import blocked
from . import PAGE

ROOT = Path(__file__).parents[2]

# For each op of `budget.step_ops`, forward and backward: a function, and how the first and the last
# of its lines to show begin.
Span = tuple[Callable, str, str]
LINEAR: tuple[Span, Span] = (
    (ops.linear_forward, "x_rows = x.reshape", "y += b"),
    (ops.linear_backward, "# y = x @ W + b", "db = dy_rows.sum"),
)
LAYERNORM: tuple[list[Span], list[Span]] = (
    [(ops.layernorm_forward, "xhat = x - x[", "y += beta")],
    [(ops.layernorm_backward, "# y = xhat * gamma + beta", "dx *= rstd")],
)
SPANS: dict[str, tuple[list[Span], list[Span]]] = {
    "embedding": (
        [(ops.embedding_forward, "tok = W_te[idx]", "x = tok + pos")],
        [(ops.embedding_backward, "# pos = W_pe[:T]", "scatter_add")],
    ),
    "ln_1": LAYERNORM,
    "qkv": (
        [(ops.qkv_forward, "qkv, cache = linear_forward", "q, k, v = (split_heads")],
        [(ops.qkv_backward, "# q, k, v = split(qkv)", "return linear_backward"), LINEAR[1]],
    ),
    "scores": (
        [(ops.attend_forward, "scores = q @ k", "scores /= d_head")],
        [(ops.attend_backward, "# scores = q @ k.T", "dk = dscores")],
    ),
    "attn": (
        [(ops.softmax_forward, "attn = scores.copy() if", "attn /= total")],
        [(ops.softmax_backward, "dscores = dattn * attn", "dscores -= attn")],
    ),
    "out": (
        [(ops.attend_forward, "out = attn @ v", "out = attn @ v")],
        [(ops.attend_backward, "# out = attn @ v", "dv = attn")],
    ),
    "W_o": (
        [(ops.attention_forward, "out = merge_heads(out)", "out, cache_o = linear_forward"), LINEAR[0]],
        [(ops.attention_backward, "# out = out @ W_o + b_o", "dout = split_heads"), LINEAR[1]],
    ),
    "residual_attn": (
        [(model.block_forward, "# x = x + Attn(LN(x))", "x = x + y")],
        [(model.block_backward, "# x = x + Attn(LN(x))", "dx = dx + dy")],
    ),
    "ln_2": LAYERNORM,
    "W_1": (
        [(ops.mlp_forward, "u, cache_1 = linear_forward", "u, cache_1 = linear_forward"), LINEAR[0]],
        [(ops.mlp_backward, "# u = x @ W_1 + b_1", "dx, dW_1, db_1 = linear_backward"), LINEAR[1]],
    ),
    "gelu": (
        [(blocked.gelu_and_slope, "half = x * x", "xp.multiply(x, half, out=y)")],
        [(blocked.gelu_blocked_backward, "xp.multiply(dy_flat", "xp.multiply(dy_flat")],
    ),
    "W_2": (
        [(ops.mlp_forward, "y, cache_2 = linear_forward", "y, cache_2 = linear_forward"), LINEAR[0]],
        [(ops.mlp_backward, "# y = h1 @ W_2 + b_2", "dh1, dW_2, db_2 = linear_backward"), LINEAR[1]],
    ),
    "residual_mlp": (
        [(model.block_forward, "# x = x + MLP(LN(x))", "x = x + y")],
        [(model.block_backward, "# x = x + MLP(LN(x))", "dx = dx + dy")],
    ),
    "ln_f": LAYERNORM,
    "head": (
        [(ops.head_forward, "x_rows = x.reshape", "logits = matmul")],
        [(ops.head_backward, "dlogits_rows = ", "dx, dW_te = matmul_both")],
    ),
    "loss": (
        [(ops.cross_entropy_forward, "logits_rows = ", "loss = nll[counted]")],
        [(ops.cross_entropy_backward, "# loss = mean", "dlogits[~counted] = 0")],
    ),
    "tied_sum": (
        [(model.Model.forward, "logits, cache_head = head_forward", "logits, cache_head = head_forward")],
        [(model.Model.backward, "if config.tie:", 'g["W_te"][ids] += rows')],
    ),
}
SLOT = re.compile(r'(<script type="application/json" id="excerpts">\n).*?(\n</script>)', re.DOTALL)


def excerpt(function: Callable, first: str, last: str) -> dict[str, Any]:
    """Return the file, the number of the first line, and the text of some lines of a function."""
    lines, start = inspect.getsourcelines(function)
    firsts = [i for i, line in enumerate(lines) if line.strip().startswith(first)]
    if len(firsts) != 1:
        raise ValueError(f"{function.__qualname__} has {len(firsts)} lines that begin with {first!r}; expected one")
    lasts = [i for i, line in enumerate(lines) if i >= firsts[0] and line.strip().startswith(last)]
    if not lasts:
        raise ValueError(f"{function.__qualname__} has no line after {first!r} that begins with {last!r}")
    path = Path(inspect.getfile(function)).relative_to(ROOT).as_posix()
    text = textwrap.dedent("".join(lines[firsts[0] : lasts[0] + 1])).rstrip("\n")
    return {"function": function.__qualname__, "file": path, "line": start + firsts[0], "text": text}


def excerpts() -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Return for each op, forward and backward, the lines of source that do it."""
    return {
        op: {"forward": [excerpt(*span) for span in forward], "backward": [excerpt(*span) for span in backward]}
        for op, (forward, backward) in SPANS.items()
    }


def with_excerpts(page: str) -> str:
    """Return the page with the excerpts of the source as it is now."""
    text = json.dumps(excerpts(), indent=1, ensure_ascii=False).replace("</", "<\\/")
    return SLOT.sub(lambda slot: slot[1] + text + slot[2], page)


if __name__ == "__main__":
    PAGE.write_text(with_excerpts(PAGE.read_text(encoding="utf-8")), encoding="utf-8", newline="\n")
