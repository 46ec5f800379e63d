"""A profile and a sweep as pictures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..files import atomic_write, check_writable
from .profile import Profile
from .scaling import Sweep
from .tables import GROUPS, ratio

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {
    "GEMM": "tab:blue",
    "attention": "tab:purple",
    "element-wise": "tab:orange",
    "look-up": "tab:green",
    "rest": "tab:gray",
    "step": "black",
}
LETTER, LINE = 0.016, 0.036  # size of a letter beside a point, as shares of the axes
NEAR = 0.02  # points closer than this share a label
WIDEST = 4.0  # backward/forward: a longer bar is cut there and its number stands beside it


def draw_profile(profile: Profile, figure: Figure) -> None:
    """Draw backward/forward op by op beside the counted, and the roofline if the limits were measured."""
    figure.set_layout_engine("constrained")
    axes = figure.subplots(1, 2 if profile.limits else 1, squeeze=False)[0]
    draw_ratios(profile, axes[0])
    if profile.limits:
        draw_roofline(profile, axes[1])
    config = profile.config
    figure.suptitle(
        f"A step of L = {config.L}, d = {config.d}, h = {config.h}, V = {config.V:,}; B = {profile.B}, T = {profile.T}"
        f"  ({profile.dtype}, {profile.device})",
        fontsize=16,
    )


def draw_ratios(profile: Profile, axes: Axes) -> None:
    """Bars: measured backward/forward; black marks: counted; the numbers of both beside them."""
    ops = [op for op in (*profile.ops, profile.total) if np.isfinite(op.ratio) and op.name != "rest"]
    places = np.arange(len(ops))[::-1]
    axes.barh(places, [min(op.ratio, WIDEST) for op in ops], color=[COLOURS[op.kind] for op in ops], alpha=0.8)
    for place, op in zip(places, ops):
        if op.ratio > WIDEST:
            axes.text(WIDEST - 0.05, place, "»", va="center", ha="right", fontsize=18)
        counted = min(op.counted_ratio, WIDEST)
        axes.plot([counted, counted], [place - 0.42, place + 0.42], color="black", linewidth=3)
        for x, number in ((WIDEST + 0.6, op.ratio), (WIDEST + 1.4, op.counted_ratio)):
            axes.text(x, place, f"{number:.2f}", va="center", ha="right", fontsize=14)
    for x, heading in ((WIDEST + 0.6, "measured"), (WIDEST + 1.4, "counted")):
        axes.text(x, len(ops) - 0.4, heading, ha="right", va="bottom", fontsize=12)
    axes.axvline(2, color="tab:red", linestyle="--", linewidth=1.5)
    axes.set_yticks(places, [op.name for op in ops], fontsize=14)
    axes.set_xlim(0, WIDEST + 1.5)
    axes.set_ylim(-0.6, len(ops) + 0.2)
    axes.set_xticks(range(int(WIDEST) + 1))
    axes.set_xlabel("backward / forward    (bar: measured, black: counted)", fontsize=14)
    axes.tick_params(axis="x", labelsize=13)
    axes.set_title("Is backward twice forward?", fontsize=15)
    add_kinds(axes)


def add_kinds(axes: Axes) -> None:
    """Add a legend of the kinds of ops."""
    from matplotlib.patches import Patch

    kinds = [kind for kind in COLOURS if kind not in ("rest", "step")]
    handles = [Patch(color=COLOURS[kind], alpha=0.8, label=kind) for kind in kinds]
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.4, -0.1), ncols=4, fontsize=13, frameon=False)


def draw_roofline(profile: Profile, axes: Axes) -> None:
    """Each op, forward and backward together, by its FLOP/byte and FLOP/s, under what was measured to be possible."""
    assert profile.limits is not None
    limit, bandwidth = profile.limit[1], profile.limits.bandwidth
    ops = [op for op in (*profile.ops, profile.total) if op.done_forward and op.name != "rest"]
    left = min(min(op.intensity() for op in ops), 0.3) / 2
    right = max(max(op.intensity() for op in ops), limit / bandwidth) * 5
    intensity = np.geomspace(left, right, 200)
    axes.plot(intensity, np.minimum(intensity * bandwidth, limit) / 1e9, color="black", linewidth=2)
    axes.fill_between(intensity, np.minimum(intensity * bandwidth, limit) / 1e9, 1e-6, color="black", alpha=0.05)
    axes.axvline(limit / bandwidth, color="black", linestyle=":", linewidth=1)
    told = f"slope: memory, {bandwidth / 1e9:.1f} GB/s\nroof: the fastest product, {limit / 1e9:.0f} GFLOP/s"
    axes.text(0.02, 0.98, told, transform=axes.transAxes, va="top", fontsize=13)
    points = [(op.intensity(), op.rate() / 1e9) for op in ops]
    for op, (x, y) in zip(ops, points):
        axes.plot(
            x, y, "*" if op.name == "step" else "o", color=COLOURS[op.kind], markersize=16 if op.name == "step" else 10
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(left, right)
    axes.set_ylim(min(y for _, y in points) / 2, limit / 1e9 * 3)
    label_points(axes, [op.name for op in ops], points, roof=limit / 1e9)
    axes.set_xlabel("FLOP per byte", fontsize=14)
    axes.set_ylabel("GFLOP/s", fontsize=14)
    axes.tick_params(labelsize=13)
    axes.grid(alpha=0.2, which="both")
    axes.set_title("Roofline", fontsize=15)


def label_points(axes: Axes, names: list[str], points: list[tuple[float, float]], roof: float) -> None:
    """Write the names beside their points and below roof; those that lie on each other share a label.

    Labels keep clear of points and of other labels.
    """
    to_share = axes.transData + axes.transAxes.inverted()
    shares = [tuple(point) for point in to_share.transform(points)]  # of the width and height of the axes
    _, ceiling = to_share.transform((1, roof))
    groups: dict[tuple[float, float], list[str]] = {}
    for name, (x, y) in sorted(zip(names, shares), key=lambda item: -item[1][1]):
        near = (spot for spot in groups if abs(spot[0] - x) < NEAR and abs(spot[1] - y) < NEAR)
        groups.setdefault(next(near, (x, y)), []).append(name)
    taken = [(x, 0.01, y) for x, y in shares]  # left end, width, height above the bottom
    for (x, y), group in groups.items():
        text, start = "\n".join(group), x + 0.03
        width, height = LETTER * max(map(len, group)), LINE * len(group)
        text_y = min(y, ceiling - height / 2)
        while any(
            start < left + wide and left < start + width and abs(text_y - other) < (height + LINE) / 2
            for left, wide, other in taken
        ):
            text_y -= LINE / 4
        taken += [(start, width, text_y + height / 2 - LINE * (n + 0.5)) for n in range(len(group))]
        axes.annotate(
            text,
            (x, y),
            (start, text_y),
            xycoords="axes fraction",
            va="center",
            fontsize=13,
            arrowprops=dict(arrowstyle="-", color="gray", linewidth=0.8),
        )


def draw_sweep(sweep: Sweep, figure: Figure) -> None:
    """Draw, for each axis, the growing cost with its fitted power, and backward/forward below."""
    figure.set_layout_engine("constrained")
    columns = figure.subplots(2, len(sweep.axes), squeeze=False, sharex="col").T
    for axis, (top, bottom) in zip(sweep.axes, columns):
        draw_cost(sweep, axis, top)
        draw_ratio(sweep, axis, bottom)
    columns[0][0].set_ylabel("seconds of a step", fontsize=15)
    columns[0][1].set_ylabel("backward / forward", fontsize=15)
    columns[0][1].legend(fontsize=12, loc="upper right")
    config = sweep.config
    figure.suptitle(
        f"One size at a time around d = {config.d}, L = {config.L}, T = {sweep.T}, B = {sweep.B}"
        f"  (h = {config.h}, V = {config.V:,})",
        fontsize=17,
    )


def draw_cost(sweep: Sweep, axis: str, axes: Axes) -> None:
    """Seconds against one size, both logarithmic, and the lines fitted to them."""
    from .fits import fit_power

    x = np.array([value for value, _ in sweep.axes[axis]], float)
    seconds = [profile.step_seconds for _, profile in sweep.axes[axis]]
    fit = sweep.fit(axis)
    p, c = fit_power(list(x), seconds)
    line = np.geomspace(x[0], x[-1], 100)
    axes.plot(x, seconds, "o", color="tab:blue", markersize=10)
    axes.plot(line, c * line**p, color="tab:blue", linewidth=2)
    lines = [
        rf"${axis}^{{{p:.2f}}}$  (counted {fit.counted_exponent:.2f})",
        f"at the end {fit.last_slope:.2f} ({fit.counted_last_slope:.2f})",
    ]
    found = sweep.quadratic() if axis == "T" else None
    if found:
        axes.plot(line, found(line), color="tab:red", linestyle="--", linewidth=2)
        lines.append(
            f"dashed: $c + aT + bT^2$, {found.share:.0%} is $T^2$\n"
            f"at T = {found.T:,} (counted {found.counted_share:.0%})"
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(min(seconds) / 2, max(seconds) * 12)
    axes.text(0.04, 0.96, "\n".join(lines), transform=axes.transAxes, va="top", fontsize=13)
    axes.tick_params(labelsize=12)
    axes.grid(alpha=0.2)
    axes.set_title(f"along {axis}", fontsize=16)


def draw_ratio(sweep: Sweep, axis: str, axes: Axes) -> None:
    """Backward/forward of the step, of its groups of ops, and as counted."""
    x = [value for value, _ in sweep.axes[axis]]
    profiles = [profile for _, profile in sweep.axes[axis]]
    axes.plot(x, [ratio(p) for p in profiles], "o-", color="black", linewidth=3, markersize=9, label="the step")
    axes.plot(x, [p.total.counted_ratio for p in profiles], "k:", linewidth=2, label="counted")
    for (name, kinds), colour in zip(GROUPS.items(), ("tab:blue", "tab:purple", "tab:orange")):
        axes.plot(x, [p.kind_ratio(*kinds) for p in profiles], "s-", color=colour, alpha=0.8, label=name)
    axes.axhline(2, color="tab:red", linestyle="--", linewidth=1.5)
    axes.set_xscale("log")
    axes.set_xticks(x, [f"{value:,}" for value in x])
    axes.minorticks_off()
    axes.set_ylim(0, 4)
    axes.set_xlabel(axis, fontsize=15)
    axes.tick_params(labelsize=12)
    axes.grid(alpha=0.2)


def save_picture(path: Path | str, draw: Callable[[Any], None], size: tuple[float, float]) -> None:
    """Draw into a new figure and write it to path as its ending says. Raises ValueError."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=110)
    draw(figure)
    path = Path(path)
    with atomic_write(path) as temporary:
        figure.savefig(temporary, format=picture_format(path))


def check_picture(path: Path | str) -> None:
    """Raise ValueError or OSError, naming path, where no picture can be written to it."""
    path = Path(path)
    picture_format(path)
    if path.is_dir():
        raise ValueError(f"cannot draw into {path}: it is a folder")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"cannot write {path}: there is no folder {path.parent}")
    check_writable(path.absolute().parent)


def picture_format(path: Path | str) -> str:
    """Return "png", "pdf" or "svg", as path ends. Raises ValueError for another ending, and without matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ValueError(f"a picture needs matplotlib: pip install 'numpy_gpt[plots]' ({error})") from error
    ending = Path(path).suffix.lower().removeprefix(".")
    if ending not in ("png", "pdf", "svg"):
        raise ValueError(f"cannot draw into {path}: its name must end in .png, .pdf or .svg")
    return ending
