"""What `numpy-gpt exercise list | start | check` do; each returns the exit status."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..gradcheck.command import load
from ..terminal import new_console, new_table, print_table
from .catalogue import EXERCISES, exercise
from .exercise import Contest, Exercise, NotYet, rehearsal

if TYPE_CHECKING:
    from rich.console import Console

MARKER = re.compile(r"^EXERCISE = [\"'](\w+)[\"']", re.MULTILINE)
SECONDS, MOST_RUNS = 1.0, 31  # what timing may cost
GROWTH = 32  # a full contest takes up to so many times as long as a brief one


def list_exercises() -> int:
    """Print every exercise, its place in the lesson, what to write, and the files of it in this folder."""
    table = new_table("", "exercise", "lesson", "to write", "here already", right=0)
    for column in table.columns:
        column.no_wrap = column.header in ("exercise", "to write")
    here = files_here(Path())
    for name, item in EXERCISES.items():
        table.add_row(name, item.section, item.function, ", ".join(here.get(name, [])))
    console = new_console(markup=True)
    print_table(console, table)
    say(console, "numpy-gpt exercise start NAME writes NAME.py; numpy-gpt exercise check NAME.py checks it.")
    return 0


def files_here(folder: Path) -> dict[str, list[str]]:
    """Return the names of the files of each exercise in folder."""
    here: dict[str, list[str]] = {}
    for path in sorted(path for path in folder.glob("*.py") if path.is_file()):
        found = MARKER.search(path.read_text(encoding="utf-8", errors="replace"))
        if found:
            here.setdefault(found[1], []).append(path.name)
    return here


def start(name: str, out: str | Path | None = None) -> int:
    """Write the stub of an exercise to out, by default NAME.py.

    Raises ValueError where that file exists, or cannot be written, or could not be checked.
    """
    item = exercise(name)
    path = Path(f"{name}.py" if out is None else out)
    if path.suffix != ".py":
        raise ValueError(f"--out {path}: the name of a Python file must end in .py")
    text = item.stub().replace(f"exercise check {name}.py", f"exercise check {shlex.quote(path.name)}")
    try:
        write_new(path, text)
    except FileExistsError as error:
        raise ValueError(f"{path} exists already and is left as it is; --out FILE writes another") from error
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}") from error
    console = new_console(markup=True)
    say(console, f"Wrote {path}. Write {item.function} in it, {item.place}, then:")
    say(console, f"    numpy-gpt exercise check {shlex.quote(str(path))}")
    return 0


def write_new(path: Path, text: str) -> None:
    """Write text to a new file at path, whole or not at all. Raises OSError."""
    file = path.open("x", encoding="utf-8")  # whatever stands there stays
    try:
        with file:
            file.write(text)
    except BaseException:
        path.unlink()
        raise


def check(file: str | Path, hint: int = 0) -> int:
    """Check a student's file and print what was found; return 0 where it is solved, 1 where it is not yet.

    file  or the name of an exercise, whose NAME.py is then checked
    hint  1, 2 or 3: also print so many hints if it is not

    Raises ValueError for a file that cannot be imported, or that is no exercise.
    """
    from ..gradcheck.table import show

    if hint not in range(4):
        raise ValueError(f"--hint must be 1, 2 or 3, got {hint}")
    if str(file) in EXERCISES and not Path(file).is_file():
        file = f"{file}.py"
    module = load(Path(file))
    item = exercise_of(module, file)
    console = new_console(markup=True)
    try:
        report = item.check(module)
    except NotYet as reason:
        say(console, f"{reason}.", "bold red")
    else:
        for line in report.lines:
            line.reproduce = f"numpy-gpt exercise check {shlex.quote(str(file))}"
        show(report, console)
        if report.ok:
            say(console, f"{item.function} is right.", "bold green")
            say(console, told_speed(item, module))
            return 0
    show_hints(console, item, hint, file)
    return 1


def exercise_of(module: ModuleType, file: str | Path) -> Exercise:
    """Return the exercise that a module says it is. Raises ValueError."""
    name = getattr(module, "EXERCISE", None)
    if not isinstance(name, str):
        raise ValueError(f'{file} does not say which exercise it is: a line such as EXERCISE = "gelu" is missing')
    if name not in EXERCISES:
        raise ValueError(f"{file} says EXERCISE = {name!r}, but there is no such exercise: {', '.join(EXERCISES)}")
    return EXERCISES[name]


def show_hints(console: Console, item: Exercise, hint: int, file: str | Path) -> None:
    """Print the first hints, and how to get the next one."""
    for number, text in enumerate(item.hints[:hint], start=1):
        say(console, f"\nHint {number}: {text}")
    if hint < len(item.hints):
        command = f"numpy-gpt exercise check {shlex.quote(str(file))} --hint {hint + 1}"
        say(console, f"\n{'The next' if hint else 'A'} hint: {command}")
    else:
        say(console, f"\nThe answer stands in {item.answer.replace('.', '/')}.py.")


def told_speed(item: Exercise, module: ModuleType) -> str:
    """Return how fast the student's function is, or why it cannot be told."""
    try:
        with rehearsal(module, item.function):
            brief = item.contest(module, brief=True)
            small = seconds_of(brief.theirs) > SECONDS / GROWTH  # loops in Python: at full size they would take minutes
            return speed(brief if small else item.contest(module))
    except NotYet as reason:
        return f"How fast it is cannot be told: at the size that is timed, {reason}."


def speed(contest: Contest) -> str:
    """Return how fast the student's function is against ours: medians of runs that take turns, while there is time."""
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + SECONDS
    while len(times[0]) < MOST_RUNS and (not times[0] or time.perf_counter() < end):
        for function, taken in zip((contest.theirs, contest.ours), times):
            taken.append(seconds_of(function))
    theirs, ours = (1000 * median(taken) for taken in times)
    runs = f"medians of {len(times[0])} alternating runs" if len(times[0]) > 1 else "one run each"
    return (
        f"It takes {theirs / ours:.2f} times as long as ours: {theirs:.3g} ms against {ours:.3g} ms "
        f"({runs} at {contest.at})."
    )


def seconds_of(function: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def say(console: Console, text: str, style: str = "") -> None:
    console.print(text, style=style, markup=False, highlight=False)
