"""The command line, one thin function a subcommand."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any, get_args, get_type_hints

from . import __version__

WEIGHTS_HELP = (
    "a checkpoint or its folder, a folder of Hugging Face's, or a name there ('gpt2'); default: the newest in runs/"
)


def train(args: argparse.Namespace) -> int:
    from .resume import resume_training
    from .run import Setup, run_training
    from .terminal import new_console
    from .training import Schedule

    setup, schedule = given_flags(Setup, args), given_flags(Schedule, args)
    if args.resume is None:
        if args.change:
            raise ValueError("--change goes with --resume")
        run_training(Setup(**setup), Schedule(**schedule), new_console())
    else:
        if "out" in setup or "overwrite" in setup:
            raise ValueError("a resumed run stays in its folder: no --out or --overwrite with --resume")
        resume_training(args.resume or None, setup | schedule, args.change, new_console())
    return 0


def sample(args: argparse.Namespace) -> int:
    from .sampling import run_sampling
    from .terminal import new_console

    values = {name: value for name, value in vars(args).items() if name != "run"}
    run_sampling(**values, console=new_console())
    return 0


def tokenize(args: argparse.Namespace) -> int:
    from .pieces import run_tokenizing
    from .terminal import new_console

    run_tokenizing(args.text, args.file, args.tokenizer, args.special, args.n, new_console())
    return 0


def gradcheck(args: argparse.Namespace) -> int:
    from .gradcheck import command

    return command(args.targets, args.seed, args.json, args.html, args.fuzz)


def evaluate(args: argparse.Namespace) -> int:
    from .scoring import run_evaluation
    from .terminal import new_console

    run_evaluation(args.text, args.checkpoint, args.stride, args.B, args.device, new_console())
    return 0


def budget(args: argparse.Namespace) -> int:
    from .budget_tables import command
    from .config import Config

    config = Config.preset(args.preset, **given_config(args))
    T = config.T_max if args.T is None else args.T
    return command(config, args.B, T, args.dtype, args.tokens, args.rate, args.json)


def time(args: argparse.Namespace) -> int:
    from .config import Config
    from .profiling.command import command

    config = Config.preset(args.preset or ("mini" if args.sweep else "gpt2"), **given_config(args))
    B, T = (2, 128) if args.sweep else (4, 64)
    B = B if args.B is None else args.B
    T = min(T, config.T_max) if args.T is None else args.T
    return command(config, B, T, args.dtype, args.device, args.repeats, args.json, args.plot, args.sweep)


def explore(args: argparse.Namespace) -> int:
    from .explorer import command

    return command(args.preset, args.open)


def exercise(args: argparse.Namespace) -> int:
    from . import exercises

    if args.action == "list":
        return exercises.list_exercises()
    if args.action == "start":
        return exercises.start(args.name, args.out)
    return exercises.check(args.file, args.hint)


def lab(args: argparse.Namespace) -> int:
    from . import labs

    if args.action == "list":
        return labs.list_labs()
    return labs.run(args.names, args.seed, args.plot, args.json)


def convert(args: argparse.Namespace) -> int:
    from .convert import convert

    print(f"Wrote {convert(args.source, args.target, args.overwrite)}")
    return 0


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Tells the default of each flag that has one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        has_none = action.default in (None, "") or action.default is False
        return action.help if has_none else super()._get_help_string(action)


def file_name(text: str) -> str:
    """Return text, the name of a file or folder; an empty one, as of an unset variable, would be the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("the name is empty; the current folder is called .")
    return text


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    from .config import PRESETS
    from .run import Setup
    from .training import Schedule

    top = argparse.ArgumentParser(prog="numpy-gpt", description="GPT-2 in NumPy, every gradient written by hand.")
    top.add_argument("--version", action="version", version=f"numpy_gpt {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(name: str, run: Any, help: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help, description=help, formatter_class=HelpFormatter)
        sub.set_defaults(run=run)
        return sub

    sub = command("train", train, "train a model on a text, evaluate it, save it, and print a sample")
    add_flags(sub, Setup, "what is trained on what")
    add_flags(sub, Schedule, "how it is trained")
    group = sub.add_argument_group("to go on with a run")
    group.add_argument(
        "--resume",
        metavar="RUN",
        nargs="?",
        const="",
        help="go on with the run in this folder (by itself: the newest in runs/), with its own settings and text, "
        "from its newest checkpoint that verifies: bit for bit as if it had never stopped",
    )
    group.add_argument(
        "--change",
        action="store_true",
        help="let other flags beside --resume change the run, --steps too: the learning rate falls until the last step",
    )
    sub.epilog = (
        "Ctrl-C, or SIGTERM, ends the run after the update in hand, saves it and tells how to go on; "
        "the exit status is then 130, or 143."
    )

    sub = command("sample", sample, "continue a prompt with a trained model")
    sub.add_argument("checkpoint", nargs="?", type=file_name, help=WEIGHTS_HELP)
    sub.add_argument("--prompt", default="", help="text to continue; empty begins with the tokenizer's start token")
    sub.add_argument("--interactive", action="store_true", help="ask for prompt after prompt, until Ctrl-D")
    sub.add_argument("--n", type=int, default=500, help="tokens to draw")
    sub.add_argument("--temperature", type=float, default=0.8, help="0 takes the likeliest token every time")
    sub.add_argument("--top-k", type=int, default=None, help="draw from the k likeliest tokens only")
    sub.add_argument("--top-p", type=float, default=None, help="draw from the fewest tokens that hold p together")
    sub.add_argument("--seed", type=int, default=0, help="the same seed draws the same text")
    sub.add_argument("--device", default="cpu", help="'cpu' or 'cuda'")

    sub = command("evaluate", evaluate, "measure how well a trained model predicts a text")
    sub.add_argument("text", type=file_name, help="'stdlib', 'shakespeare', or a UTF-8 file")
    sub.add_argument("--checkpoint", type=file_name, help=WEIGHTS_HELP)
    sub.add_argument("--stride", type=int, help="tokens from one window to the next; default: half of T_max")
    sub.add_argument("--B", type=int, default=4, help="windows at a time")
    sub.add_argument("--device", default="cpu", help="'cpu' or 'cuda'")

    sub = command("tokenize", tokenize, "show a text's tokens, and how many bytes a token stands for")
    sub.add_argument("text", nargs="?", help="the text itself")
    sub.add_argument("--file", type=file_name, help="or where it stands: 'stdlib', 'shakespeare', or a UTF-8 file")
    sub.add_argument("--tokenizer", default="gpt2", help="'gpt2', 'bytes' or 'char'")
    sub.add_argument("--special", action="store_true", help="take <|endoftext|> for the one token that it names")
    sub.add_argument("--n", type=int, default=200, help="tokens to show")

    sub = command("gradcheck", gradcheck, "check hand-written gradients, ours or those of a file of yours")
    sub.add_argument(
        "targets",
        nargs="*",
        help="ops of ours, 'model', a preset ('gpt2': along random directions), "
        "or FILE.py:NAME for its NAME_forward, NAME_backward; default: all ops and small models",
    )
    sub.add_argument("--seed", type=int, default=0, help="decides inputs, upstream gradients and directions")
    sub.add_argument("--json", action="store_true", help="print JSON")
    sub.add_argument("--html", type=file_name, metavar="FILE", help="also write the report as a page")
    sub.add_argument("--fuzz", type=int, metavar="N", default=0, help="check ops at N random shapes and seeds")

    sub = command("exercise", exercise, "write a backward yourself, and have it checked")
    actions = sub.add_subparsers(dest="action", metavar="list|start|check", required=True)
    actions.add_parser("list", help="print every exercise and its section of the lesson")
    action = actions.add_parser("start", help="write the file of an exercise: the forward is given")
    action.add_argument("name", help="as `numpy-gpt exercise list` prints it")
    action.add_argument("--out", type=file_name, help="the file to write; default: NAME.py here")
    action = actions.add_parser("check", help="check what you wrote; once it is right, time it against ours")
    action.add_argument("file", type=file_name)
    action.add_argument("--hint", type=int, choices=(1, 2, 3), default=0, help="print one of three hints")

    sub = command("lab", lab, "measure the lesson's claims: each printed beside what is found")
    actions = sub.add_subparsers(dest="action", metavar="list|run", required=True)
    actions.add_parser("list", help="print every lab, its section of the lesson and its claim")
    action = actions.add_parser(
        "run", help="measure what one lab or several claim, or all: seconds each, minutes for some"
    )
    action.add_argument("names", nargs="+", metavar="NAME", help="as `numpy-gpt lab list` prints it, or 'all'")
    action.add_argument("--seed", type=int, default=0, help="decides what is drawn: weights, batches, inputs")
    action.add_argument(
        "--plot", type=file_name, metavar="FOLDER", help="also draw each lab's picture, FOLDER/NAME.png"
    )
    action.add_argument("--json", action="store_true", help="print JSON")

    sub = command("budget", budget, "count a model's shapes, parameters, FLOPs and bytes, exactly")
    sub.add_argument("--preset", default="gpt2", help="model size: " + ", ".join(PRESETS))
    add_config(sub)
    sub.add_argument("--B", type=int, default=1, help="batch")
    sub.add_argument("--T", type=int, help="sequence length; default: T_max")
    sub.add_argument("--dtype", default="float32", help="'float32' or 'float64'")
    sub.add_argument("--tokens", type=float, help="D, to train on: C = 6·N·D")
    sub.add_argument("--rate", type=float, help="GFLOP/s reached, to tell how long that takes")
    sub.add_argument("--json", action="store_true", help="print JSON")

    sub = command("time", time, "measure a training step op by op, beside what is counted and what the machine can do")
    sub.add_argument("--sweep", action="store_true", help="measure how the cost grows with d, L, T and B instead")
    sub.add_argument("--preset", help="model size: " + ", ".join(PRESETS) + "; default: gpt2, for a sweep mini")
    add_config(sub)
    sub.add_argument("--B", type=int, help="batch; default: 4, for a sweep 2")
    sub.add_argument("--T", type=int, help="sequence length, at most T_max; default: 64, for a sweep 128")
    sub.add_argument("--dtype", default="float32", help="'float32' or 'float64'")
    sub.add_argument("--device", default="cpu", help="'cpu' or 'cuda'")
    sub.add_argument(
        "--repeats", type=int, default=5, help="turns that count, after one to warm up; a turn is two steps or more"
    )
    sub.add_argument("--plot", type=file_name, metavar="FILE", help="also draw a picture: .png, .pdf or .svg")
    sub.add_argument("--json", action="store_true", help="print JSON")

    sub = command("explore", explore, "open the page of shapes and budget, with a slider for every size")
    sub.add_argument("--preset", help="model size to open it at: " + ", ".join(PRESETS))
    sub.add_argument("--open", action=argparse.BooleanOptionalAction, default=True, help="open it in the browser")

    sub = command("convert", convert, "bring GPT-2's weights from Hugging Face's files to a checkpoint, or back")
    sub.add_argument(
        "source",
        type=file_name,
        help="a folder of Hugging Face's, a name there ('gpt2'), or our checkpoint or its folder",
    )
    sub.add_argument(
        "target", type=file_name, help="the checkpoint to write, or the folder if the source is a checkpoint"
    )
    sub.add_argument("--overwrite", action="store_true", help="replace what target holds already")
    return top


SIZES = {"V": "vocabulary", "T_max": "longest sequence", "d": "width", "h": "heads", "L": "blocks"}


CHOICES = {"norm": "'pre' or 'post'; default: pre", "gelu": "'tanh' or 'exact'; default: tanh"}
SWITCHES = {
    "causal": "a position attends to those before it only; default: it does",
    "scale": "scores are divided by √d_head; default: they are",
    "tie": "the head is W_te.T; default: it is",
}


def add_config(sub: argparse.ArgumentParser) -> None:
    """Give sub one flag for each size of a model, in the lesson's letters, and for each other way to build it."""
    for name, what in SIZES.items():
        flag = "--" + name.replace("_", "-")
        sub.add_argument(flag, type=int, default=argparse.SUPPRESS, help=f"{what}; default: the preset's")
    for name, what in CHOICES.items():
        sub.add_argument(f"--{name}", default=argparse.SUPPRESS, help=what)
    for name, what in SWITCHES.items():
        sub.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=what)


def given_config(args: argparse.Namespace) -> dict[str, Any]:
    """Return, by name, what was given of a model's config."""
    return {name: getattr(args, name) for name in (*SIZES, *CHOICES, *SWITCHES) if hasattr(args, name)}


def add_flags(sub: argparse.ArgumentParser, settings: type, title: str) -> None:
    """Give sub one flag for each field of a dataclass of settings, with its default and its help.

    The defaults stay with the dataclass, so that a flag that was given can be told from one that was not.
    """
    group = sub.add_argument_group(title)
    types = get_type_hints(settings)
    for item in fields(settings):
        assert item.default is not MISSING  # every setting has a default: the main job takes no arguments
        flag = "--" + item.name.replace("_", "-")
        has_none = item.default is None or item.default is False
        help = item.metadata["help"] + ("" if has_none else f" (default: {item.default})")
        kind = next(t for t in (*get_args(types[item.name]), types[item.name]) if t is not type(None))
        if kind is bool:
            action = argparse.BooleanOptionalAction if item.default else "store_true"
            group.add_argument(flag, action=action, default=argparse.SUPPRESS, help=help)
        else:
            group.add_argument(flag, type=kind, default=argparse.SUPPRESS, help=help)


def given_flags(settings: type, args: argparse.Namespace) -> dict[str, Any]:
    """Return, by name, the values of the flags that were given, for a dataclass of settings."""
    return {item.name: getattr(args, item.name) for item in fields(settings) if hasattr(args, item.name)}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status.

    0 done, 1 failed, 2 a mistake in what was asked, 130 and 143 stopped by Ctrl-C and SIGTERM.
    """
    from .run import Stopped
    from .terminal import print_nowhere

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show √ shows ? and goes on
            stream.reconfigure(errors="replace")
    args = parser().parse_args(argv)
    try:
        return args.run(args)
    except BrokenPipeError:  # the reader of our output has gone, as in `numpy-gpt sample | head`
        print_nowhere(sys.stdout)
        return 1
    except (ValueError, OSError) as error:
        status, message = 2, str(error)
    except FloatingPointError as error:
        status, message = 1, str(error)
    except MemoryError as error:
        status, message = 1, f"not enough memory: {error}"
    except Stopped as stopped:
        status, message = 128 + stopped.signal, str(stopped)
    except KeyboardInterrupt:
        status, message = 130, "interrupted"
    print(f"numpy-gpt: {message}", file=sys.stderr)
    try:
        sys.stdout.flush()
    except OSError:  # no room for it: told above
        print_nowhere(sys.stdout)
    return status
