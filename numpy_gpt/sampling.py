"""Sampling on the terminal: one prompt or one after another, streamed, and how fast it went."""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from .backend import synchronize
from .generation import generate
from .model import Model
from .runs import load_run
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from rich.console import Console

WORTH_TELLING = 2**26  # bytes of weights: below that, calls and not the memory take a token's time


def run_sampling(
    checkpoint: str | None,
    prompt: str,
    interactive: bool,
    n: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int,
    device: str,
    console: Console,
) -> None:
    """Continue prompt, or prompt after prompt, with a trained model, streamed to the terminal; the speed to stderr."""
    if interactive and prompt:
        raise ValueError("--interactive asks for its prompts; no --prompt beside it")
    model, tokenizer = load_run(checkpoint, device)
    settings: dict[str, Any] = dict(n=n, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    generate(model, [tokenizer.start_id], **settings)  # a setting that cannot work is told before the first prompt
    if interactive:
        interact(model, tokenizer, settings, console)
    else:
        continue_prompt(model, tokenizer, prompt, settings, console)


def interact(model: Model, tokenizer: Tokenizer, settings: dict[str, Any], console: Console) -> None:
    """Ask for a prompt and continue it, until the end of the input (Ctrl-D); Ctrl-C ends a text before its end.

    Bytes of the input that are not characters are read as U+FFFD, which the tokenizer may know or not.
    Each prompt has a seed of its own, the first that of settings, the next one more.
    """
    with contextlib.suppress(ImportError):  # Windows has none
        import readline  # noqa: F401  (lets input() edit its line and remember the ones before)
    if isinstance(sys.stdin, io.TextIOWrapper):
        with contextlib.suppress(io.UnsupportedOperation):  # it has been read from already
            sys.stdin.reconfigure(errors="replace")
    while (prompt := next_prompt()) is not None:
        try:
            continue_prompt(model, tokenizer, prompt, settings, console)
        except ValueError as error:
            print(f"numpy-gpt: {error}", file=sys.stderr)
        except KeyboardInterrupt:  # its line has been ended
            pass
        settings = {**settings, "seed": settings["seed"] + 1}


def next_prompt() -> str | None:
    """Return the line that answers "> "; None at the end of the input, and where there is no input at all."""
    if sys.stdin is None:  # as `<&-` leaves it
        return None
    try:
        return input("> ")
    except EOFError:
        print()
        return None


def continue_prompt(
    model: Model, tokenizer: Tokenizer, prompt: str, settings: dict[str, Any], console: Console
) -> None:
    """Print prompt and its continuation as it is drawn; then, on stderr, how fast that went."""
    ids = tokenizer.encode(prompt) if prompt else np.array([tokenizer.start_id])
    T_max = model.config.T_max
    if len(ids) > T_max:
        console.print(f"(the prompt has {len(ids)} tokens; the model sees its last {T_max})", style="yellow")
    times: list[float] = []
    write(prompt, console)
    stream_text(tokenizer, note_times(generate(model, ids, **settings), times), console)
    if len(times) > 1:
        print(describe_speed(model, times), file=sys.stderr)


def stream_text(tokenizer: Tokenizer, tokens: Iterator[int], console: Console) -> None:
    """Print tokens as they come, whole characters only, and end the line."""
    try:
        for piece in tokenizer.decode_stream(tokens):
            write(piece, console)
    finally:
        write("\n", console)


def write(text: str, console: Console) -> None:
    """Write text at once and as it is: rich would expand its tabs and leave control characters out."""
    console.file.write(text)
    console.file.flush()


def note_times(tokens: Iterator[int], times: list[float]) -> Iterator[int]:
    """Yield tokens; append to times when each of them came."""
    for token in tokens:
        times.append(time.perf_counter())
        yield token


def describe_speed(model: Model, times: list[float]) -> str:
    """Return tokens/s from the first token to the last, beside the bound that reading the weights sets.

    A small model has no such bound worth telling: its weights stay in the cache, and its time goes
    into the calls. Nor is a bound told that was passed: the machine was busy when it was measured.
    """
    rate = (len(times) - 1) / (times[-1] - times[0])
    told = f"{rate:,.0f} tokens/s"
    n_bytes = bytes_a_token(model)
    if n_bytes < WORTH_TELLING:
        return told
    seconds = time_to_read(model)
    if rate * seconds > 1:  # the machine was busier when the bound was measured
        return told
    return (
        f"{told}, {rate * seconds:.0%} of the {1 / seconds:,.0f} that the memory allows: "
        f"{n_bytes / 1e6:,.1f} MB of weights a token at {n_bytes / seconds / 1e9:.1f} GB/s"
    )


def bytes_a_token(model: Model) -> int:
    """Return the bytes of weights that drawing a token reads: all, but that it is one row of W_pe.

    (An untied W_te too is read in one row.)
    """
    p = model.params
    tables = [p["W_pe"]] if model.config.tie else [p["W_pe"], p["W_te"]]
    return p.flat.nbytes - sum(table.nbytes - table[0].nbytes for table in tables)


def time_to_read(model: Model) -> float:
    """Return the seconds that reading a token's weights takes, by a matrix-vector product with all of them.

    A token needs every weight once, for one multiplication and one addition: no machine draws one
    faster than its memory hands them over. The best of three products tells how fast that is.
    """
    xp, flat, d = model.xp, model.params.flat, model.config.d
    weights = flat[: flat.size // d * d].reshape(-1, d)  # (N / d, d)
    x = xp.ones(d, dtype=flat.dtype)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        weights @ x
        synchronize(xp)
        seconds.append(time.perf_counter() - start)
    return min(seconds) * bytes_a_token(model) / weights.nbytes
