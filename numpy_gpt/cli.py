"""The command line, one thin function a subcommand."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any, get_args, get_type_hints

from . import __version__


def train(args: argparse.Namespace) -> int:
    from rich.console import Console

    from .run import Setup, run_training
    from .training import Schedule

    run_training(from_flags(Setup, args), from_flags(Schedule, args), Console())
    return 0


def sample(args: argparse.Namespace) -> int:
    from rich.console import Console

    from .run import run_sampling

    values = {name: value for name, value in vars(args).items() if name != "run"}
    run_sampling(**values, console=Console())
    return 0


def gradcheck(args: argparse.Namespace) -> int:
    from .gradcheck import command

    return command(args.targets, args.seed, args.json, args.html, args.fuzz)


def evaluate(args: argparse.Namespace) -> int:
    from rich.console import Console

    from .run import run_evaluation

    run_evaluation(args.text, args.checkpoint, args.stride, args.B, args.device, Console())
    return 0


def budget(args: argparse.Namespace) -> int:
    from .budget import command
    from .config import Config

    sizes = {name: getattr(args, name) for name in ("V", "T_max", "d", "h", "L")}
    changes = {name: size for name, size in sizes.items() if size is not None}
    config = Config.preset(args.preset, **changes, norm=args.norm, tie=args.tie, gelu=args.gelu)
    T = config.T_max if args.T is None else args.T
    return command(config, args.B, T, args.dtype, args.tokens, args.rate, args.json)


def convert(args: argparse.Namespace) -> int:
    from .pretrained import convert

    print(f"Wrote {convert(args.source, args.target, args.overwrite)}")
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    from .config import PRESETS
    from .run import Setup
    from .training import Schedule

    top = argparse.ArgumentParser(prog="numpy-gpt", description="GPT-2 in NumPy, every gradient written by hand.")
    top.add_argument("--version", action="version", version=f"numpy_gpt {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(name: str, run: Any, help: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name, help=help, description=help, formatter_class=argparse.ArgumentDefaultsHelpFormatter
        )
        sub.set_defaults(run=run)
        return sub

    sub = command("train", train, "train a model on a text, evaluate it, save it, and print a sample")
    add_flags(sub, Setup, "what is trained on what")
    add_flags(sub, Schedule, "how it is trained")

    sub = command("sample", sample, "continue a prompt with a trained model")
    sub.add_argument("checkpoint", nargs="?", help="a checkpoint, or its folder; default: the newest in runs/")
    sub.add_argument("--prompt", default="", help="text to continue; empty begins with the tokenizer's start token")
    sub.add_argument("--n", type=int, default=500, help="tokens to draw")
    sub.add_argument("--temperature", type=float, default=0.8, help="0 takes the likeliest token every time")
    sub.add_argument("--top-k", type=int, default=None, help="draw from the k likeliest tokens only")
    sub.add_argument("--top-p", type=float, default=None, help="draw from the fewest tokens that hold p together")
    sub.add_argument("--seed", type=int, default=0, help="the same seed draws the same text")
    sub.add_argument("--device", default="cpu", help="'cpu' or 'cuda'")

    sub = command("evaluate", evaluate, "measure how well a trained model predicts a text")
    sub.add_argument("text", help="'stdlib', 'shakespeare', or a UTF-8 file")
    sub.add_argument("--checkpoint", help="a checkpoint, or its folder; default: the newest in runs/")
    sub.add_argument("--stride", type=int, help="tokens from one window to the next; default: half of T_max")
    sub.add_argument("--B", type=int, default=4, help="windows at a time")
    sub.add_argument("--device", default="cpu", help="'cpu' or 'cuda'")

    sub = command("gradcheck", gradcheck, "check hand-written gradients, ours or those of a file of yours")
    sub.add_argument(
        "targets", nargs="*", help="ops of ours, 'model', or FILE.py:NAME for its NAME_forward, NAME_backward"
    )
    sub.add_argument("--seed", type=int, default=0, help="decides inputs, upstream gradients and directions")
    sub.add_argument("--json", action="store_true", help="print JSON")
    sub.add_argument("--html", metavar="FILE", help="also write the report as a page")
    sub.add_argument("--fuzz", type=int, metavar="N", default=0, help="check ops at N random shapes and seeds")

    sub = command("budget", budget, "count a model's shapes, parameters, FLOPs and bytes, exactly")
    sub.add_argument("--preset", default="gpt2", help="model size: " + ", ".join(PRESETS))
    for name, what in (
        ("V", "vocabulary"),
        ("T_max", "longest sequence"),
        ("d", "width"),
        ("h", "heads"),
        ("L", "blocks"),
    ):
        sub.add_argument(f"--{name.replace('_', '-')}", type=int, help=f"{what}; default: the preset's")
    sub.add_argument("--B", type=int, default=1, help="batch")
    sub.add_argument("--T", type=int, help="sequence length; default: T_max")
    sub.add_argument("--norm", default="pre", help="'pre' or 'post'")
    sub.add_argument("--gelu", default="tanh", help="'tanh' or 'exact'")
    sub.add_argument("--tie", action=argparse.BooleanOptionalAction, default=True, help="the head is W_te.T")
    sub.add_argument("--dtype", default="float32", help="'float32' or 'float64'")
    sub.add_argument("--tokens", type=float, help="D, to train on: C = 6·N·D")
    sub.add_argument("--rate", type=float, help="GFLOP/s reached, to tell how long that takes")
    sub.add_argument("--json", action="store_true", help="print JSON")

    sub = command("convert", convert, "bring GPT-2's weights from Hugging Face's files to a checkpoint, or back")
    sub.add_argument("source", help="a folder of Hugging Face's, a name there ('gpt2'), or a checkpoint of ours")
    sub.add_argument("target", help="the checkpoint to write, or the folder if the source is a checkpoint")
    sub.add_argument("--overwrite", action="store_true", help="replace what target holds already")
    return top


def add_flags(sub: argparse.ArgumentParser, settings: type, title: str) -> None:
    """Give sub one flag for each field of a dataclass of settings, with its default and its help."""
    group = sub.add_argument_group(title)
    types = get_type_hints(settings)
    for item in fields(settings):
        assert item.default is not MISSING  # every setting has a default: the main job takes no arguments
        flag = "--" + item.name.replace("_", "-")
        help = item.metadata["help"]
        kind = next(t for t in (*get_args(types[item.name]), types[item.name]) if t is not type(None))
        if kind is bool:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=item.default, help=help)
        else:
            default = argparse.SUPPRESS if item.default is None else item.default
            group.add_argument(flag, type=kind, metavar=kind.__name__.upper(), default=default, help=help)


def from_flags(settings: type, args: argparse.Namespace) -> Any:
    """Return the dataclass of settings with the values that the flags gave."""
    names = [item.name for item in fields(settings)]
    return settings(**{name: getattr(args, name) for name in names if hasattr(args, name)})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status: 0 done, 1 failed, 2 a mistake in what was asked."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show √ shows ? and goes on
            stream.reconfigure(errors="replace")
    args = parser().parse_args(argv)
    try:
        return args.run(args)
    except BrokenPipeError:  # the reader of our output has gone, as in `numpy-gpt sample | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError) as error:
        status, message = 2, str(error)
    except FloatingPointError as error:
        status, message = 1, str(error)
    except KeyboardInterrupt:
        status, message = 130, "interrupted"
    print(f"numpy-gpt: {message}", file=sys.stderr)
    return status
