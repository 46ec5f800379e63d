"""What `numpy-gpt gradcheck` does."""

from __future__ import annotations

import importlib.util
import inspect
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ..files import atomic_write
from ..terminal import new_console
from .cases import CASES, Case, case, more_cases
from .check import run
from .problem import FAILURES, Backward, Forward, Problem, prepare
from .report import Report, merge
from .suite import TARGETS, UnknownTarget, check_cases, fuzz, suite


def command(
    targets: Sequence[str] = (),
    seed: int = 0,
    json: bool = False,
    html: str | Path | None = None,
    fuzz: int = 0,
) -> int:
    """Check targets and print what was found; return 0 where all is ok, 1 for a failure, 2 for a mistake.

    targets  names of ours ("gelu", "model", ...; none: all ops and small models; "gpt2" and other
             presets: random directions of the whole gradient), or FILE.py:NAME: the pair
             NAME_forward, NAME_backward of that file, at the inputs that its NAME_inputs(rng)
             returns or, where NAME is one of ours, at ours, of other sizes too
    json     print JSON in place of the table
    html     also write the report to this file
    fuzz     check ops at this many random shapes and seeds in place of the standard ones
    """
    from .html import page
    from .table import show

    console = new_console(markup=True)
    terminal = console.is_terminal
    try:
        if html is not None and not Path(html).absolute().parent.is_dir():
            raise Mistake(f"cannot write {html}: there is no folder {Path(html).parent}")
        with redirect_stdout(sys.stderr) if json else nullcontext():  # a student's own prints are no JSON
            report = collect(targets, seed, fuzz, console if terminal and not json else None)
        if html is not None:
            write(Path(html), page(report))
    except Mistake as mistake:
        print(f"numpy-gpt gradcheck: {mistake}", file=sys.stderr)
        return 2
    if json:
        print(report.to_json())
    else:
        show(report, console)
    return 0 if report.ok else 1


class Mistake(ValueError):
    """What the user asked for cannot be done; one line says why."""


def collect(targets: Sequence[str], seed: int, number: int, console: Any) -> Report:
    """Return the report of all targets. Raises Mistake."""
    ours = [target for target in targets if ":" not in target]
    files = [target for target in targets if ":" in target]
    if number < 0 or seed < 0:
        raise Mistake(f"--seed and --fuzz must be at least 0, got {seed} and {number}")
    if number and files:
        raise Mistake(f"--fuzz draws shapes for ops of ours alone, not for {files[0]}")
    reports = []
    with progress_on(console) as progress:
        for k, target in enumerate(files):
            if progress is not None:
                progress(target, k, len(files))
            reports.append(check_file(target, seed))
        try:
            if number:
                reports.append(fuzz(number, seed, ours or tuple(CASES), progress))
            elif ours or not files:
                reports.append(suite(seed, ours or TARGETS, progress))
        except UnknownTarget as error:
            raise Mistake(str(error) if number else f"{error}, or FILE.py:NAME") from error
    return merge(reports, seed)


@contextmanager
def progress_on(console: Any) -> Iterator[Callable[[str, int, int], None] | None]:
    """Yield what shows the target in hand on the terminal; None where there is no console."""
    if console is None:
        yield None
        return
    with console.status("checking") as status:
        yield lambda name, number, total: status.update(f"{number + 1} of {total}  {name}")


def write(path: Path, text: str) -> None:
    """Write text to path, whole or not at all. Raises Mistake."""
    try:
        with atomic_write(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Mistake(str(error)) from error


def check_file(target: str, seed: int) -> Report:
    """Check the pair that FILE.py:NAME means. Raises Mistake."""
    path_text, _, name = target.rpartition(":")
    module = load(Path(path_text))
    pairs = ", ".join(item.removesuffix("_forward") for item in vars(module) if item.endswith("_forward"))
    if not name:
        raise Mistake(f"{target} has no name after the colon; {path_text} has {pairs or 'no NAME_forward'}")
    missing = [f"{name}_{part}" for part in ("forward", "backward") if not hasattr(module, f"{name}_{part}")]
    if missing:
        raise Mistake(f"{path_text} has no {' and no '.join(missing)}; it has {pairs or 'no NAME_forward'}")
    pair = (getattr(module, f"{name}_forward"), getattr(module, f"{name}_backward"))
    reproduce = f"numpy-gpt gradcheck {shlex.quote(target)} --seed {seed}"
    if hasattr(module, f"{name}_inputs"):
        return run(own_problem(module, name, pair, seed, reproduce))
    if name in CASES:
        forward, backward = pair
        check_taken(name, forward, case(name, seed))
        ours = (case(name, seed), *more_cases(name, seed))
        cases = [replace(found, forward=forward, backward=backward) for found in ours]
        return check_cases(name, cases, seed, reproduce)
    raise Mistake(
        f"{name} is none of our ops, so {path_text} must say at which inputs to check it: "
        f"def {name}_inputs(rng): return rng.standard_normal((2, 3, 4)),"
    )


def check_taken(name: str, forward: Forward, ours: Case) -> None:
    """Raise Mistake where a forward does not take the inputs of our op of the same name."""
    try:
        inspect.signature(forward).bind(*ours.inputs, **ours.kwargs)
    except TypeError as error:
        given = ", ".join([*ours.names, *(f"{key}={value!r}" for key, value in ours.kwargs.items())])
        raise Mistake(
            f"{name} is an op of ours too, so {name}_forward was called with our inputs, {given}: {error}; "
            f"def {name}_inputs(rng) gives it inputs of its own"
        ) from error
    except ValueError:  # what is written in C may have no signature; calling it will tell
        return


def own_problem(module: ModuleType, name: str, pair: tuple[Forward, Backward], seed: int, reproduce: str) -> Problem:
    """Return the Problem at what NAME_inputs(rng) gives. Raises Mistake."""
    inputs = own_inputs(module, name, seed)
    try:
        return prepare(*pair, inputs, seed=seed, target=name, reproduce=reproduce)
    except ValueError as error:
        raise Mistake(f"{name}_inputs(rng) gives nothing to check: {error}") from error


def own_inputs(module: ModuleType, name: str, seed: int) -> tuple:
    """Return what NAME_inputs(rng) gives, as a tuple. Raises Mistake."""
    try:
        inputs = getattr(module, f"{name}_inputs")(np.random.default_rng(seed))
    except FAILURES as error:
        raise Mistake(f"{name}_inputs(rng) raises {type(error).__name__}: {error}") from error
    if inputs is None:
        raise Mistake(f"{name}_inputs(rng) returns None; it must return the inputs of {name}_forward")
    return tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)


def load(path: Path) -> ModuleType:
    """Import the file at path under a name of its own. Raises Mistake."""
    if not path.is_file():
        raise Mistake(f"no file {path}")
    spec = importlib.util.spec_from_file_location(f"gradcheck_of_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise Mistake(f"{path} is no Python file (its name must end in .py)")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))  # the file's own neighbours can be imported
    try:
        spec.loader.exec_module(module)
    except FAILURES as error:
        raise Mistake(f"{path}:{line_of(error, path)} cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(path.resolve().parent))
    return module


def line_of(error: BaseException, path: Path) -> int:
    """Return the line of the file at path from which the error came; 1 where it tells none."""
    absolute = str(path.absolute())  # as the loader calls it
    if isinstance(error, SyntaxError) and error.filename == absolute:
        return error.lineno or 1
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == absolute]
    return (lines[-1] if lines else None) or 1
