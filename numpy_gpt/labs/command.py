"""What `numpy-gpt lab list | run` do; each returns the exit status."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files import atomic_write
from ..terminal import new_console
from .catalogue import LABS, lab
from .lab import Lab, Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console
    from rich.status import Status


def list_labs() -> int:
    """Print every lab, its place in the lesson, and the claim that it measures."""
    from rich import box
    from rich.table import Table

    table = Table("lab", "lesson", "claim", box=box.SIMPLE_HEAD, pad_edge=False)
    for item in LABS.values():
        table.add_row(item.name, item.section, item.claim)
    console = new_console()
    console.print(table)
    console.print("numpy-gpt lab run NAME measures one, numpy-gpt lab run all measures all of them.")
    return 0


def run(names: Sequence[str], seed: int = 0, plot: str | Path | None = None, as_json: bool = False) -> int:
    """Run labs by name, or all of them, and print each claim beside its measurement; return 0.

    plot     the folder to write each lab's picture to, NAME.png; made where it is missing
    as_json  print JSON in place of the tables

    Raises ValueError for a name that is no lab's, a negative seed, a folder that cannot be
    written, and for plot without matplotlib.
    """
    chosen = [lab(name) for name in dict.fromkeys(LABS if "all" in names else names)]
    if seed < 0:
        raise ValueError(f"--seed must be at least 0, got {seed}")
    folder = None if plot is None else picture_folder(plot)
    console = new_console()
    reports = []
    begin = time.perf_counter()
    with status_on(None if as_json else console) as status:
        for number, item in enumerate(chosen, start=1):
            if status is not None:
                status.update(f"{number} of {len(chosen)}  {item.name}")
            start = time.perf_counter()
            result = item.measure(seed)
            seconds = time.perf_counter() - start
            file = None if folder is None or result.draw is None else folder / f"{item.name}.png"
            if file is not None:
                with atomic_write(file) as temporary:
                    picture(result).savefig(temporary, format="png")
            reports.append(report(item, result, seconds, file))
            if not as_json:
                show(item, result, console, seconds, file)
    if as_json:
        print(json.dumps({"seed": seed, "labs": reports}, indent=2, ensure_ascii=False, allow_nan=False))
    elif len(chosen) > 1:
        held = [finding["holds"] for entry in reports for finding in entry["findings"]]
        seconds = time.perf_counter() - begin
        console.print(f"{len(chosen)} labs, {sum(held)} of {len(held)} findings hold, {seconds:.0f} s")
    return 0


def picture_folder(path: str | Path) -> Path:
    """Return the folder for pictures, made where it is missing. Raises ValueError."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ValueError(f"--plot needs matplotlib (pip install 'numpy_gpt[plots]'): {error}") from error
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot write pictures to {folder}: {error.strerror}") from error
    return folder


def picture(result: Result) -> Figure:
    """Return the figure of a result, drawn large; for files and notebooks.

    Raises ValueError where the lab draws none.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    if result.draw is None:
        raise ValueError("this lab draws no picture")
    with rc_context({"font.size": 13, "axes.titlesize": 15, "lines.linewidth": 2}):
        figure = Figure(figsize=(10, 6), dpi=100, layout="constrained")
        result.draw(figure)
        return figure


def show(item: Lab, result: Result, console: Console, seconds: float | None = None, file: Path | None = None) -> None:
    """Print what a lab found: claim, measurement and verdict, and what to make of it."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    took = "" if seconds is None else f", {seconds:.1f} s"
    console.print(Text.assemble((item.name, "bold"), f"  {item.section}{took}\n", (item.claim, "italic")))
    table = Table(
        "the lesson says", "measured", "", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), leading=1
    )
    for finding in result.findings:
        verdict = Text("holds", "green") if finding.holds else Text("does not", "bold yellow")
        table.add_row(Text(finding.claim), Text(finding.measured), verdict)
    console.print(table)
    for line in (result.note, f"Picture: {file}" if file else ""):
        if line:
            console.print(Text(line))
    console.print()


def report(item: Lab, result: Result, seconds: float, file: Path | None) -> dict[str, Any]:
    """Return what a lab found, ready for JSON; a number that is not finite becomes a string."""
    return {
        "name": item.name,
        "section": item.section,
        "claim": item.claim,
        "holds": bool(result.holds),
        "seconds": seconds,
        "findings": [
            {"claim": finding.claim, "measured": finding.measured, "holds": bool(finding.holds)}
            for finding in result.findings
        ],
        "values": {name: float(x) if math.isfinite(x) else str(float(x)) for name, x in result.values.items()},
        "note": result.note,
        "picture": None if file is None else str(file),
    }


@contextmanager
def status_on(console: Console | None) -> Iterator[Status | None]:
    """Yield what shows on a terminal which lab is running; None elsewhere."""
    if console is None or not console.is_terminal:
        yield None
        return
    with console.status("") as status:
        yield status
