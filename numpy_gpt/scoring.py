"""A text's score on the terminal: how well a trained model predicts it, under a bar that fills."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from .data import load_text
from .evaluation import Evaluation, evaluate_text
from .files import naming
from .model import Model
from .pieces import count_bytes
from .runs import load_run

if TYPE_CHECKING:
    from rich.console import Console


def run_evaluation(
    text: str, checkpoint: str | None, stride: int | None, B: int, device: str, console: Console
) -> Evaluation:
    """Print a trained model's loss, perplexity and bits per byte on a text; return them.

    Raises ValueError, naming the text, where it cannot be read, has a character that the model does
    not know, or fewer than 2 tokens.
    """
    model, tokenizer = load_run(checkpoint, device)
    content = load_text(text)
    with naming(text):
        ids = tokenizer.encode(content)
        if len(ids) < 2:
            raise ValueError(f"has {len(ids)} tokens; a next token to score takes 2")
    stride = max(1, model.config.T_max // 2) if stride is None else stride
    n_bytes = count_bytes(tokenizer, ids[1:])
    start = time.perf_counter()
    result = evaluate_with_progress(model, ids, stride, B, n_bytes, text, console)
    seconds = time.perf_counter() - start
    console.print(
        f"{text}: {result.n_scored:,} tokens scored, stride {stride}\n"
        f"loss          {result.loss:.4f} nats a token\n"
        f"perplexity    {result.perplexity:.2f}\n"
        f"bits per byte {result.bits_per_byte:.4f}\n"
        f"{result.n_scored / seconds:,.0f} tokens/s",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    return result


def evaluate_with_progress(
    model: Model, ids: np.ndarray, stride: int, B: int, n_bytes: int, text: str, console: Console
) -> Evaluation:
    """Return what `evaluate_text` finds, under a live bar that carries the text's name."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    name = TextColumn("{task.description}", markup=False)  # a path may hold [ and ]
    columns = (name, BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(text, total=len(ids) - 1)
        return evaluate_text(model, ids, stride, B, n_bytes, lambda n_scored, _: bar.update(task, completed=n_scored))
