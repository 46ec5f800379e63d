"""The main job, from a text to a trained model, told on the terminal as it goes."""

from __future__ import annotations

import csv
import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .backend import device_module
from .checkpoint import atomic_write, load_checkpoint, save_checkpoint
from .config import Config
from .data import bigram_loss, load_text, split, unigram_loss
from .evaluation import Evaluation, evaluate_text
from .generation import generate
from .model import Model
from .tokenizer import Tokenizer, make_tokenizer, tokenizer_from_dict
from .training import Progress, Schedule, setting, train

if TYPE_CHECKING:
    from rich.console import Console

RUNS = Path("runs")
CHECKPOINT = "model.safetensors"


@dataclass(frozen=True)
class Setup:
    """What is trained on what, and where it goes: the main job's settings beside its Schedule."""

    data: str = setting(
        "stdlib", "text: 'stdlib' (Python's own documentation), 'shakespeare' (one download), or a UTF-8 file"
    )
    validation: float = setting(0.1, "share of the text, at its end, held out")
    tokenizer: str = setting("char", "'char', 'bytes', or 'gpt2' (its BPE, V = 50,257)")
    preset: str = setting("char", "model size: tiny, char, mini, gpt2, gpt2-medium, gpt2-large, gpt2-xl")
    T: int | None = setting(None, "sequence length, T_max too; default: the preset's")
    d: int | None = setting(None, "model width; default: the preset's")
    h: int | None = setting(None, "heads; default: the preset's")
    L: int | None = setting(None, "blocks; default: the preset's")
    norm: str = setting("pre", "'pre' or 'post': where the block's LayerNorms stand")
    gelu: str = setting("tanh", "'tanh' (GPT-2's) or 'exact'")
    tie: bool = setting(True, "the head is W_te.T")
    causal: bool = setting(True, "the causal mask")
    scale: bool = setting(True, "scores divided by √d_head")
    dtype: str = setting("float32", "'float32' or 'float64'")
    device: str = setting("cpu", "'cpu' or 'cuda'")
    out: str | None = setting(None, "folder for the results; default: the next free runs/NNN")
    overwrite: bool = setting(False, "replace the results that --out holds already")
    sample: int = setting(300, "tokens of the sample at the end")

    def __post_init__(self) -> None:
        if self.sample < 0:
            raise ValueError(f"sample must be at least 0, got {self.sample}")

    def config(self, V: int) -> Config:
        """Return the model's Config for a vocabulary of V tokens."""
        sizes = {"T_max": self.T, "d": self.d, "h": self.h, "L": self.L}
        changes = {name: size for name, size in sizes.items() if size is not None}
        switches = {name: getattr(self, name) for name in ("norm", "gelu", "tie", "causal", "scale")}
        return Config.preset(self.preset, V=V, **changes, **switches)


def run_training(setup: Setup, schedule: Schedule, console: Console) -> Path:
    """Do the main job; return the folder that holds model.safetensors, loss.csv and loss.png.

    Raises ValueError for a setting or a text that cannot work, before anything is trained.
    """
    xp = device_module(setup.device)
    text = load_text(setup.data)
    tokenizer = make_tokenizer(setup.tokenizer, text)
    config = setup.config(tokenizer.V)
    train_tokens, held_out_tokens = split(tokenizer.encode(text), config.T_max, setup.validation)
    model = Model(config, schedule.seed, setup.dtype, xp)
    with results_folder(setup) as folder:
        print_setup(console, setup, schedule, model, len(text), len(train_tokens), len(held_out_tokens))
        history = train_with_progress(model, train_tokens, held_out_tokens, schedule, console)
        baselines = {
            "uniform, ln V": math.log(config.V),
            "unigram": unigram_loss(train_tokens, held_out_tokens, config.V),
            "bigram": bigram_loss(train_tokens, held_out_tokens, config.V),
        }
        save_checkpoint(
            folder / CHECKPOINT,
            model,
            tokenizer=tokenizer.to_dict(),
            setup=asdict(setup),
            schedule=asdict(schedule),
            step=history[-1].step,
            held_out_loss=history[-1].held_out_loss,
        )
        write_history(folder / "loss.csv", history)
        pictured = draw_history(folder / "loss.png", history, baselines)
        print_result(console, history, baselines)
        names = [CHECKPOINT, "loss.csv", *(["loss.png"] if pictured else [])]
        console.print(f"Wrote {', '.join(names)} in {folder}", highlight=False)
        if not pictured:
            console.print("No picture: matplotlib is missing (pip install 'numpy_gpt\\[plots]')", highlight=False)
    if setup.sample:
        console.print(f"\nA sample of {setup.sample} tokens:", highlight=False)
        prompt = np.array([tokenizer.start_id])
        stream_text(tokenizer, generate(model, prompt, setup.sample, temperature=0.8, seed=schedule.seed), console)
    return folder


@contextmanager
def results_folder(setup: Setup) -> Iterator[Path]:
    """Make and yield the folder for the results; take it away again if nothing came to stand in it."""
    if setup.out is None:
        RUNS.mkdir(exist_ok=True)
        taken = [int(path.name) for path in RUNS.iterdir() if path.name.isdecimal()]
        folder = RUNS / f"{max(taken, default=0) + 1:03d}"
    else:
        folder = Path(setup.out)
        if (folder / CHECKPOINT).exists() and not setup.overwrite:
            raise ValueError(f"{folder / CHECKPOINT} is there already; choose another --out, or give --overwrite")
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    finally:
        if made and not any(folder.iterdir()):
            folder.rmdir()


def latest_checkpoint() -> Path:
    """Return the checkpoint of the newest run in runs/. Raises ValueError where there is none."""
    found = sorted(RUNS.glob(f"*/{CHECKPOINT}"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise ValueError(f"no checkpoint in {RUNS}/: train first (numpy-gpt train), or name one")
    return found[-1]


def load_run(checkpoint: str | None, device: str) -> tuple[Model, Tokenizer]:
    """Return the model of a checkpoint, or of its folder, and its tokenizer; None is the newest run's.

    Raises ValueError, naming the file, where the two do not fit each other.
    """
    path = latest_checkpoint() if checkpoint is None else Path(checkpoint)
    model, metadata = load_checkpoint(path / CHECKPOINT if path.is_dir() else path, device_module(device))
    if "tokenizer" not in metadata:
        raise ValueError(f"{path}: holds no tokenizer")
    tokenizer = tokenizer_from_dict(metadata["tokenizer"])
    if tokenizer.V != model.config.V:
        raise ValueError(f"{path}: the tokenizer has {tokenizer.V} tokens, the model V = {model.config.V}")
    return model, tokenizer


def run_sampling(
    checkpoint: str | None,
    prompt: str,
    n: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int,
    device: str,
    console: Console,
) -> None:
    """Continue prompt with a trained model, streamed to the terminal."""
    model, tokenizer = load_run(checkpoint, device)
    ids = tokenizer.encode(prompt) if prompt else np.array([tokenizer.start_id])
    T_max = model.config.T_max
    if len(ids) > T_max:
        console.print(f"(the prompt has {len(ids)} tokens; the model sees its last {T_max})", style="yellow")
    tokens = generate(model, ids, n, temperature, top_k, top_p, seed)
    console.out(prompt, end="", highlight=False)
    stream_text(tokenizer, tokens, console)


def run_evaluation(
    text: str, checkpoint: str | None, stride: int | None, B: int, device: str, console: Console
) -> Evaluation:
    """Print a trained model's loss, perplexity and bits per byte on a text; return them."""
    from rich.progress import Progress as Bar

    model, tokenizer = load_run(checkpoint, device)
    ids = tokenizer.encode(load_text(text))
    stride = max(1, model.config.T_max // 2) if stride is None else stride
    n_bytes = len(tokenizer.decode(ids[1:]).encode("utf-8"))
    start = time.perf_counter()
    with Bar(console=console, transient=True) as bar:
        task = bar.add_task(text)
        result = evaluate_text(
            model,
            ids,
            stride,
            B,
            n_bytes,
            lambda n_scored, n_total: bar.update(task, completed=n_scored, total=n_total),
        )
    seconds = time.perf_counter() - start
    console.print(
        f"{text}: {result.n_scored:,} tokens scored, stride {stride}\n"
        f"loss          {result.loss:.4f} nats a token\n"
        f"perplexity    {result.perplexity:.2f}\n"
        f"bits per byte {result.bits_per_byte:.4f}\n"
        f"{result.n_scored / seconds:,.0f} tokens/s",
        highlight=False,
    )
    return result


def stream_text(tokenizer: Tokenizer, tokens: Iterator[int], console: Console) -> None:
    """Print tokens as they come, whole characters only."""
    for piece in tokenizer.decode_stream(tokens):
        console.out(piece, end="", highlight=False)
        console.file.flush()
    console.out("")


def print_setup(
    console: Console, setup: Setup, schedule: Schedule, model: Model, n_text: int, n_train: int, n_held_out: int
) -> None:
    """Print what is about to be trained."""
    from rich.table import Table

    config = model.config
    switches = [name for name in ("causal", "scale", "tie") if not getattr(config, name)]
    rows = {
        "text": f"{setup.data}: {n_text:,} characters, {n_train:,} tokens to train on, {n_held_out:,} held out",
        "tokenizer": f"{setup.tokenizer}, V = {config.V:,}",
        "model": f"L = {config.L}, h = {config.h}, d = {config.d}, d_head = {config.d_head}, T = {config.T_max}; "
        f"{config.norm}-norm, {config.gelu} GELU{''.join(f', no {name}' for name in switches)}",
        "parameters": f"{config.n_parameters():,} in {model.dtype} on {setup.device}",
        "run": f"{schedule.steps:,} updates of {schedule.accumulate * schedule.B} windows "
        f"= {schedule.steps * schedule.accumulate * schedule.B * config.T_max:,} tokens",
        "AdamW": f"lr {schedule.lr:g} -> {schedule.min_lr:g} (cosine, {schedule.warmup} to warm up), "
        f"betas {schedule.beta1:g}, {schedule.beta2:g}, decay {schedule.weight_decay:g}, clip {schedule.clip:g}",
        "seed": str(schedule.seed),
    }
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table, highlight=False)


def train_with_progress(
    model: Model, train_tokens: np.ndarray, held_out_tokens: np.ndarray, schedule: Schedule, console: Console
) -> list[Progress]:
    """Train under a live progress bar; the first Ctrl-C ends the run after the update in hand."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    interrupted: list[int] = []

    def note_interrupt(number: int, frame: Any) -> None:
        interrupted.append(number)
        signal.signal(signal.SIGINT, previous)  # a second Ctrl-C stops at once

    columns = (
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"),
        TimeRemainingColumn(),
    )
    previous = signal.signal(signal.SIGINT, note_interrupt)
    try:
        with Bar(*columns, console=console, transient=True) as bar:
            task = bar.add_task("", total=schedule.steps, state="")

            def report(progress: Progress) -> None:
                rate = progress.tokens / progress.seconds
                shares = "  ".join(f"{name} {share:.0%}" for name, share in progress.shares.items())
                state = f"loss {progress.loss:.3f}  {rate:,.0f} tokens/s  {shares}"
                bar.update(task, completed=progress.step, state=state)
                if progress.held_out_loss is not None:
                    console.print(
                        f"update {progress.step:>{len(str(schedule.steps))}}  held-out loss "
                        f"{progress.held_out_loss:.4f}  {state}",
                        highlight=False,
                        soft_wrap=True,
                    )

            history = train(model, train_tokens, held_out_tokens, schedule, report, lambda: bool(interrupted))
    finally:
        signal.signal(signal.SIGINT, previous)
    if interrupted:
        console.print(f"Stopped by Ctrl-C after update {history[-1].step}", style="yellow", highlight=False)
    return history


def print_result(console: Console, history: list[Progress], baselines: dict[str, float]) -> None:
    """Print the held-out loss beside the baselines, in nats a token and as perplexity."""
    from rich.table import Table

    held_out_loss = history[-1].held_out_loss
    assert held_out_loss is not None  # train evaluates after the last update
    table = Table(title="Held-out text", title_justify="left")
    table.add_column("model")
    table.add_column("loss (nats/token)", justify="right")
    table.add_column("perplexity", justify="right")
    for name, loss in {**baselines, "this model": held_out_loss}.items():
        style = "bold" if name == "this model" else None
        table.add_row(name, f"{loss:.4f}", f"{math.exp(min(loss, 700)):.2f}", style=style)
    console.print(table)


def write_history(path: Path, history: list[Progress]) -> None:
    """Write one row an update: step, loss, lr, grad_norm, seconds, tokens, held_out_loss."""
    names = [item.name for item in fields(Progress) if item.name != "shares"]
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(names)
        rows.writerows([getattr(progress, name) for name in names] for progress in history)


def draw_history(path: Path, history: list[Progress], baselines: dict[str, float]) -> bool:
    """Draw the loss curves beside the baselines as a PNG. Return False where matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    steps, losses = [p.step for p in history], np.array([p.loss for p in history])
    held_out = [(p.step, p.held_out_loss) for p in history if p.held_out_loss is not None]
    figure = Figure(figsize=(8, 4.8), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    axes.plot(steps, losses, color="tab:blue", alpha=0.25, linewidth=0.8, label="training batch")
    width = max(1, len(losses) // 50)
    if width > 1:
        mean = np.convolve(losses, np.ones(width) / width, mode="valid")
        axes.plot(steps[width // 2 :][: len(mean)], mean, color="tab:blue", label=f"mean of {width} batches")
    axes.plot(*zip(*held_out), "o-", color="tab:orange", label="held-out text")
    for name, loss in baselines.items():
        axes.axhline(loss, color="gray", linestyle="--", linewidth=1)
        axes.text(steps[-1], loss, f"{name}: {loss:.2f}", color="dimgray", ha="right", va="bottom")
    axes.set(xlabel="update", ylabel="loss (nats per token)", ylim=(None, 1.07 * max([*baselines.values(), *losses])))
    axes.grid(alpha=0.2)
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    with atomic_write(path) as temporary:
        figure.savefig(temporary, format="png")
    return True
