"""A profile and a sweep on the terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .. import mkl
from ..budget import ITEMSIZE
from ..config import Config
from ..cores import FEW_CORES, spare_cores
from ..terminal import Row, print_rows
from .profile import OpProfile, Profile, Timing
from .scaling import Fit, Sweep, done

if TYPE_CHECKING:
    from rich.console import Console

# Why backward is not twice forward, by what `why` looks up.
WHY = {
    "loss": "forward makes a softmax over V; backward only subtracts the targets from it and scales",
    "tanh gelu": "GPT-2's form takes its slope on the way forward; backward only multiplies by it",
    "GEMM": "one product forward, two of the same size backward; what differs is how fast their shapes run",
    "attention": "two products forward, four backward; softmax costs about the same both ways",
    "element-wise": "no product: it reads and writes large arrays, about as often in one way as in the other",
    "look-up": "forward copies a row for each id; backward adds up the rows of ids that repeat",
    "exact gelu": "the exact form takes five steps an element forward, and seven back",
    "tied rest": "the tied sum of dW_te is backward's alone; else Python between the ops, which does not grow",
    "rest": "Python between the ops, which does not grow with them",
}


BUSY = 0.1  # half the distance between the quartiles, beside the median: a quiet machine stays far below


def why(op: OpProfile, config: Config) -> str:
    """Return why backward is not twice forward: by the op in this config, by the op, or by its kind."""
    switch = {"gelu": config.gelu, "rest": "tied" if config.tie else "untied"}.get(op.name, "")
    return next(WHY[key] for key in (f"{switch} {op.name}", op.name, op.kind) if key in WHY)


def milliseconds(timing: Timing) -> str:
    """The median and half the distance between the quartiles, in ms."""
    return f"{1e3 * timing.median:.2f} ±{1e3 * timing.spread:.2f}"


def figure(x: float, form: str) -> str:
    """x in a form, or a dash where there is none."""
    return format(x, form) if math.isfinite(x) else "–"


def print_ops(profile: Profile, console: Console) -> None:
    """Op by op: measured backward/forward beside counted, and how near each comes to the machine's limits."""
    rounds = "1 round" if profile.repeats == 1 else f"{profile.repeats} rounds"
    title = f"A step op by op, medians of {rounds} ± half the distance between the quartiles"
    columns = ["op", "forward ms", "backward ms", "b/f", "counted", "of the\nstep", "GFLOP/s", "FLOP/\nbyte"]
    if profile.limits:
        columns += ["of the\npeak", "of the\nmemory", "bound\nby"]
    rows = [(profile_row(profile, op), "bold" if op is profile.total else None) for op in (*profile.ops, profile.total)]
    print_rows(console, title, columns, rows, right=len(columns) - 1, cut=6)


def profile_row(profile: Profile, op: OpProfile) -> list[str]:
    row = [
        op.name,
        milliseconds(op.forward),
        milliseconds(op.backward),
        figure(op.ratio, ".2f"),
        figure(op.counted_ratio, ".2f"),
        f"{op.both.share_of(profile.total.both):.1%}",
        figure(op.rate() / 1e9, ".1f"),
        figure(op.intensity(), ".1f"),
    ]
    if profile.limits:
        bound = "memory" if op.intensity() < profile.limits.ridge else "arithmetic"
        row += [
            figure(op.rate() / profile.limit[1], ".0%"),
            figure(op.bandwidth() / profile.limits.bandwidth, ".0%"),
            bound if op.name not in ("rest", "step") else "",
        ]
    return row


def print_profile(profile: Profile, console: Console) -> None:
    """Print the table and what follows from it."""
    from rich.table import Table

    print_ops(profile, console)
    facts = Table(show_header=False, box=None, pad_edge=False)
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    for name, value in conclusions(profile).items():
        facts.add_row(name, value)
    console.print(facts)
    plain = profile.plain_forward, profile.plain_backward
    if any(timing.spread > BUSY * timing.median for timing in plain):
        console.print("The rounds lie far apart: other programs were running. Measure again when they are not.")
    console.print(f"\nBackward takes {ratio(profile):.2f} times forward.")
    console.print("What makes it more or less than twice, backward − 2·forward:")
    table = Table(show_header=False, box=None, pad_edge=False)
    for _ in range(3):
        table.add_column(overflow="fold")
    for name, seconds in profile.excess()[:5]:
        op = profile[name]
        table.add_row(f"  {1e3 * seconds:+.2f} ms", f"{name} ({op.kind})", why(op, profile.config))
    console.print(table)


def conclusions(profile: Profile) -> dict[str, str]:
    """Return, by name, what the whole step comes to."""
    forward, backward, step = profile.plain_forward, profile.plain_backward, profile.step_seconds
    under_timers = profile.total.both.median / step
    facts = {
        "without timers": f"forward {milliseconds(forward)} ms, backward {milliseconds(backward)} ms; "
        f"with them {under_timers:.2f} times as long",
        "optimiser": f"clip {milliseconds(profile.clip)} ms, AdamW {milliseconds(profile.adamw)} ms",
        "update": f"{1e3 * profile.update_seconds:.2f} ms, {profile.tokens_per_second:,.0f} tokens/s "
        f"(B = {profile.B}, T = {profile.T}, with one worker; `train` may have two)",
        "rate": f"{profile.rate / 1e9:.1f} GFLOP/s in forward and backward",
    }
    skipped = 1 - done(profile) / (profile.total.flops_forward + profile.total.flops_backward)
    if skipped:
        facts["rate"] += f"; the {skipped:.1%} of the counted FLOPs that the causal mask saves get no credit"
    if profile.limits:
        moved = 7 * profile.config.n_parameters() * ITEMSIZE[profile.dtype] / profile.adamw.median
        name, limit = profile.limit
        squares = " and ".join(
            f"{rate / 1e9:.1f} {name.removeprefix('square, ')}"
            for name, rate in profile.limits.gemm.items()
            if name.startswith("square")
        )
        facts["optimiser"] += f" at {moved / profile.limits.bandwidth:.0%} of the memory bandwidth"
        facts["limit"] = (
            f"{limit / 1e9:.1f} GFLOP/s, the largest rate measured in this run, by {name}; "
            f"square products reached {squares}"
        )
        if profile.device == "numpy" and mkl.is_at_hand() and spare_cores() <= FEW_CORES:
            facts["limit"] += "; MKL does the large ones"
        facts["MFU"] = f"{profile.mfu:.1%} of that limit, forward and backward"
        facts["memory"] = (
            f"{profile.limits.bandwidth / 1e9:.1f} GB/s; arithmetic is the limit from "
            f"{profile.limits.ridge:.0f} FLOP/byte on. An op above 100% of it found its arrays in the cache"
        )
    return facts


# Ops by what makes their backward / forward: products alone are 2 exactly.
GROUPS = {"GEMMs": ("GEMM",), "attention": ("attention",), "other": ("element-wise", "look-up", "rest")}


def print_axis(sweep: Sweep, axis: str, console: Console) -> None:
    """The points of one axis: seconds, backward/forward as a whole and by group, and where the time goes."""
    base = ", ".join(
        f"{name} = {size}"
        for name, size in (("d", sweep.config.d), ("L", sweep.config.L), ("T", sweep.T), ("B", sweep.B))
        if name != axis
    )
    title = f"Along {axis}, with {base}, h = {sweep.config.h}, V = {sweep.config.V}"
    columns = [axis, "forward ms", "backward ms", "b/f", "counted", "GFLOP/s"]
    columns += [f"{name}\nb/f" for name in GROUPS] + [f"{name}\ntime" for name in GROUPS]
    rows: list[Row] = []
    for value, profile in sweep.axes[axis]:
        cells = [
            str(value),
            milliseconds(profile.plain_forward),
            milliseconds(profile.plain_backward),
            f"{ratio(profile):.2f}",
            f"{profile.total.counted_ratio:.2f}",
            f"{profile.rate / 1e9:.1f}",
            *(figure(profile.kind_ratio(*kinds), ".2f") for kinds in GROUPS.values()),
            *(f"{profile.share(*kinds):.0%}" for kinds in GROUPS.values()),
        ]
        rows.append((cells, None))
    print_rows(console, title, columns, rows, right=len(columns), cut=6)


def ratio(profile: Profile) -> float:
    """Backward / forward of the step without timers."""
    return profile.plain_backward.median / profile.plain_forward.median


def print_sweep(sweep: Sweep, console: Console) -> None:
    """Print a table for each axis, the exponents, and where backward is farthest from twice forward."""
    for axis in sweep.axes:
        print_axis(sweep, axis, console)
        console.print(fit_text(sweep.fit(axis)))
        found = sweep.quadratic() if axis == "T" else None
        if found:
            console.print(
                f"  fitted c + a·T + b·T²: at T = {found.T:,} the T² part is {found.share:.0%} of the time, where "
                f"`attend` takes {found.attend_share:.0%}\n  and T² pairs {found.counted_share:.0%} of the FLOPs "
                "that are computed"
            )
        console.print()
    console.print(
        "Where is backward/forward (b/f) not 2? Only a product has two products behind it; what else takes time"
    )
    console.print("has a ratio of its own, and counts for more where the products are small:")
    for axis in sweep.axes:
        console.print(f"  {departure_text(sweep, axis)}")


def fit_text(fit: Fit) -> str:
    return (
        f"  cost ∝ {fit.axis}^{fit.exponent:.2f} (counted {fit.counted_exponent:.2f}); between the two largest "
        f"{fit.axis}^{fit.last_slope:.2f} (counted {fit.counted_last_slope:.2f}); at scale {fit.expected:g}"
        + (" and the quadratic share" if fit.axis == "T" else "")
    )


def departure_text(sweep: Sweep, axis: str) -> str:
    """Tell where along an axis backward is farthest from twice forward, and what its parts say of the reason."""
    value, profile = max(sweep.axes[axis], key=lambda point: abs(ratio(point[1]) - 2))
    parts = "; ".join(
        f"{name} {profile.kind_ratio(*kinds):.2f} in {profile.share(*kinds):.0%} of the time"
        for name, kinds in GROUPS.items()
    )
    return f"Along {axis} it is farthest from 2 at {axis} = {value}: {ratio(profile):.2f}. There {parts}"
