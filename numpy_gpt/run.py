"""The main job, from a text to a trained model, told on the terminal as it goes."""

from __future__ import annotations

import hashlib
import math
import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .backend import device_module
from .budget import check_batch, memory
from .checkpoint import save_checkpoint
from .config import Config
from .data import bigram_loss, load_text, split, unigram_loss
from .evaluation import perplexity
from .files import atomic_write, naming
from .generation import generate
from .model import Model
from .runs import FINISHED, HISTORY, PICTURE, new_folder, results, save_step, step_file
from .sampling import stream_text
from .terminal import print_nowhere
from .tokenizer import Tokenizer, make_tokenizer
from .training import Progress, Schedule, State, gradient_copies, held_out_loss, setting, start, train

if TYPE_CHECKING:
    from rich.console import Console


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
    keep: int = setting(2, "newest checkpoints that are kept, beside the best one")
    sample: int = setting(300, "tokens of the sample at the end")

    def __post_init__(self) -> None:
        if self.out == "":
            raise ValueError("out is empty; name a folder")
        if self.keep < 1:
            raise ValueError(f"keep must be at least 1, got {self.keep}")
        if self.sample < 0:
            raise ValueError(f"sample must be at least 0, got {self.sample}")

    def config(self, V: int) -> Config:
        """Return the model's Config for a vocabulary of V tokens."""
        sizes = {"T_max": self.T, "d": self.d, "h": self.h, "L": self.L}
        changes = {name: size for name, size in sizes.items() if size is not None}
        switches = {name: getattr(self, name) for name in ("norm", "gelu", "tie", "causal", "scale")}
        return Config.preset(self.preset, V=V, **changes, **switches)


class Stopped(Exception):
    """A run that a signal, or the loss of its output, ended early: it was saved, and --resume goes on from there."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.signal = number


@dataclass
class Run:
    """A run in hand: its settings, its text, its model, and where it stands."""

    setup: Setup
    schedule: Schedule
    tokenizer: Tokenizer
    n_text: int  # characters
    tokens: np.ndarray
    model: Model
    state: State

    def metadata(self) -> dict[str, Any]:
        """Return what every checkpoint of the run tells beside its model."""
        return dict(
            tokenizer=self.tokenizer.to_dict(),
            setup=asdict(self.setup),
            schedule=asdict(self.schedule),
            tokens_sha256=sha256(self.tokens),
        )


def sha256(tokens: np.ndarray) -> str:
    """Return what tells one text's tokens from another's."""
    return hashlib.sha256(tokens.astype("<i8").tobytes()).hexdigest()


def run_training(setup: Setup, schedule: Schedule, console: Console) -> Path:
    """Do the main job; return the folder that holds model.safetensors, loss.csv and loss.png.

    Raises ValueError for a setting or a text that cannot work, before anything is trained, and
    Stopped where Ctrl-C or SIGTERM ended it.
    """
    xp = device_module(setup.device)
    text = load_text(setup.data)
    tokenizer = make_tokenizer(setup.tokenizer, text)
    config = setup.config(tokenizer.V)
    tokens = tokenizer.encode(text)
    with naming(setup.data):
        split(tokens, config.T_max, setup.validation)  # a text too short is told before a model is made
    if xp is np:
        check_memory(config, schedule, setup.dtype)
    model = Model(config, schedule.seed, setup.dtype, xp)
    run = Run(setup, schedule, tokenizer, len(text), tokens, model, start(model, schedule))
    with new_folder(setup.out, setup.overwrite) as folder:
        complete(run, folder, console)
    print_sample(run, console)
    return folder


def check_memory(config: Config, schedule: Schedule, dtype: str) -> None:
    """Raise ValueError where training would take more memory than the system has left, as far as it tells."""
    from rich.filesize import decimal

    check_batch(config, schedule.B, config.T_max, dtype)
    peak = memory(config, schedule.B, config.T_max, dtype, gradients=2 if schedule.accumulate > 1 else 1)["peak"]
    available = available_memory()
    if available is not None and peak > available:
        raise ValueError(
            f"training would take {decimal(peak)} of memory, and {decimal(available)} are available; "
            "a smaller preset, --B or --T-max takes less"
        )


def available_memory() -> int | None:
    """Return the bytes that the system could still hand out (Linux; elsewhere None)."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)


def complete(run: Run, folder: Path, console: Console) -> None:
    """Train a run to its end from where it stands, saved into folder, and tell how it went."""
    config, schedule = run.model.config, run.schedule
    train_tokens, held_out_tokens = split(run.tokens, config.T_max, run.setup.validation)
    print_setup(console, run.setup, schedule, run.model, run.n_text, len(train_tokens), len(held_out_tokens))
    history = train_with_progress(run, train_tokens, held_out_tokens, folder, console)
    if history[-1].held_out_loss is None:  # a resume made the run no longer than it was
        history[-1].held_out_loss = held_out_loss(run.model, held_out_tokens, schedule)
    baselines = {
        "uniform, ln V": math.log(config.V),
        "unigram": unigram_loss(train_tokens, held_out_tokens, config.V),
        "bigram": bigram_loss(train_tokens, held_out_tokens, config.V),
    }
    pictured = draw_history(folder / PICTURE, history, baselines)
    save_checkpoint(  # last: where it stands, nothing is left to do
        folder / FINISHED,
        run.model,
        **run.metadata(),
        step=history[-1].step,
        held_out_loss=history[-1].held_out_loss,
    )
    print_result(console, history, baselines)
    names = [FINISHED, HISTORY, *([PICTURE] if pictured else [])]
    console.print(f"Wrote {', '.join(names)} in {folder}", highlight=False)
    if not pictured:
        console.print(
            "No picture: matplotlib is missing (pip install 'numpy_gpt[plots]')", highlight=False, markup=False
        )


def print_sample(run: Run, console: Console) -> None:
    """Print a sample of the trained model."""
    if run.setup.sample:
        console.print(f"\nA sample of {run.setup.sample} tokens:", highlight=False)
        prompt = np.array([run.tokenizer.start_id])
        drawn = generate(run.model, prompt, run.setup.sample, temperature=0.8, seed=run.schedule.seed)
        stream_text(run.tokenizer, drawn, console)


def print_setup(
    console: Console, setup: Setup, schedule: Schedule, model: Model, n_text: int, n_train: int, n_held_out: int
) -> None:
    """Print what is about to be trained."""
    from rich.filesize import decimal
    from rich.table import Table

    config = model.config
    copies = gradient_copies(schedule, model)
    tiled = model.xp is np  # attention, on a CPU
    peak = memory(config, schedule.B, config.T_max, str(model.dtype), copies, tiled)["peak"]
    switches = [name for name in ("causal", "scale", "tie") if not getattr(config, name)]
    rows = {
        "text": f"{setup.data}: {n_text:,} characters, {n_train:,} tokens to train on, {n_held_out:,} held out",
        "tokenizer": f"{setup.tokenizer}, V = {config.V:,}",
        "model": f"L = {config.L}, h = {config.h}, d = {config.d}, d_head = {config.d_head}, T = {config.T_max}; "
        f"{config.norm}-norm, {config.gelu} GELU{''.join(f', no {name}' for name in switches)}",
        "parameters": f"{config.n_parameters():,} in {model.dtype} on {setup.device}",
        "run": f"{schedule.steps:,} updates of {schedule.accumulate * schedule.B} windows "
        f"= {schedule.steps * schedule.accumulate * schedule.B * config.T_max:,} tokens",
        "AdamW": f"lr {schedule.lr:g} -> {schedule.min_lr:g} (cosine, {schedule.warmup} to warm up"
        f"{', which these updates do not end' if schedule.warmup >= schedule.steps else ''}), "
        f"betas {schedule.beta1:g}, {schedule.beta2:g}, decay {schedule.weight_decay:g}, clip {schedule.clip:g}",
        "memory": f"{decimal(peak)} predicted, beside Python and NumPy themselves",
        "seed": str(schedule.seed),
    }
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table, highlight=False)


def train_with_progress(
    run: Run, train_tokens: np.ndarray, held_out_tokens: np.ndarray, folder: Path, console: Console
) -> list[Progress]:
    """Train under a live progress bar, saving into folder; return the history.

    Raises Stopped where Ctrl-C or SIGTERM ended it, or its output was lost; the update in hand was finished and
    saved.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    schedule, state = run.schedule, run.state
    metadata = run.metadata()
    replaced = results(folder) if state.optimiser.t == 0 else []
    tokens_before, seconds_before = state.tokens, state.seconds

    def save(state: State) -> None:
        nonlocal replaced
        path = save_step(folder, run.model, state, run.setup.keep, metadata)
        for old in replaced:  # by --overwrite: kept until this checkpoint stood in its place
            if old not in (path, folder / HISTORY):
                old.unlink(missing_ok=True)
        replaced = []

    columns = (
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"),
        TimeRemainingColumn(),
    )
    lost: list[OSError] = []  # why nothing can be printed
    live = Bar(*columns, console=console, transient=True, disable=not console.is_terminal)
    with stop_signals() as received, live as bar:
        task = bar.add_task("", total=schedule.steps, completed=state.optimiser.t, state="")

        def report(progress: Progress) -> None:
            rate = (progress.tokens - tokens_before) / max(progress.seconds - seconds_before, 1e-9)
            shares = "  ".join(f"{name} {share:.0%}" for name, share in progress.shares.items())
            told = f"loss {progress.loss:.3f}  {rate:,.0f} tokens/s  {shares}"
            bar.update(task, completed=progress.step, state=told)
            if progress.held_out_loss is None:
                return
            update = f"update {progress.step:>{len(str(schedule.steps))}}"
            try:
                console.print(f"{update}  held-out loss {progress.held_out_loss:.4f}  {told}", soft_wrap=True)
            except OSError as error:
                lost.append(error)
                print_nowhere(console.file)

        def stop() -> bool:
            return bool(received or lost)

        history = train(run.model, train_tokens, held_out_tokens, schedule, report, stop, state, save)
    if state.optimiser.t < schedule.steps:
        number, by = why_stopped(received, lost)
        raise Stopped(
            number,
            f"stopped by {by} after update {state.optimiser.t} of {schedule.steps}, saved as "
            f"{step_file(folder, state.optimiser.t)}; go on with: numpy-gpt train --resume {quoted(folder)}",
        )
    return history


SIGPIPE = 13  # by which the shell tells of a lost reader; Windows has no name for it


def why_stopped(received: list[int], lost: list[OSError]) -> tuple[int, str]:
    """Return the number of the signal that ended a run, or would have, and its name."""
    if not received:
        return SIGPIPE, f"the loss of its output ({lost[0].strerror})"
    return received[0], "Ctrl-C" if received[0] == signal.SIGINT else signal.Signals(received[0]).name


def quoted(path: Path) -> str:
    """Return path as the shell wants it."""
    return subprocess.list2cmdline([path]) if os.name == "nt" else shlex.quote(str(path))


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Yield a list that notes the first Ctrl-C or SIGTERM in place of ending at once; a second one does."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # Python lets no other thread handle signals
        yield received
        return

    def note(number: int, frame: Any) -> None:
        received.append(number)
        with suppress(OSError):  # straight to stderr: the signal may have come in the middle of a print
            os.write(2, b"\nFinishing the update in hand, to save it; once more, and it ends at once\n")
        put_back()

    def put_back() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    previous = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        put_back()


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
        table.add_row(name, f"{loss:.4f}", f"{perplexity(loss):.2f}", style=style)
    console.print(table)


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
