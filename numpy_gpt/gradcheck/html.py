"""The report as HTML, with a heat map of the error for small tensors; for notebooks and files."""

from __future__ import annotations

import html

import numpy as np

from .report import Line, Report, Verdict
from .table import number, summary

COLOURS = {
    Verdict.PASS: "#1a7f37",
    Verdict.WRONG: "#cf222e",
    Verdict.INCONCLUSIVE: "#9a6700",
    Verdict.VACUOUS: "#9a6700",
    Verdict.SKIPPED: "#6e7781",
}
COLUMNS = ("tensor", "check", "difference", "relative", "of tolerance", "verdict")
LEFT = "text-align:left;padding:2px 10px"  # a notebook's own style aligns right
CELL = 14  # pixels
MOST_CELLS = 64  # along an axis


def page(report: Report) -> str:
    """Return a whole HTML document that needs nothing beside it."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Gradient check</title></head>\n'
        f'<body style="margin:2em">{fragment(report)}</body></html>\n'
    )


def fragment(report: Report) -> str:
    """Return the failures with their heat maps, the table, and the heat maps of the rest, folded away."""
    head = "".join(f"<th style='{LEFT}'>{column}</th>" for column in COLUMNS)
    rows = "\n".join(group(report, target) for target in report.targets)
    notices = "".join(f"<p>Notice: {html.escape(notice)}</p>" for notice in report.notices)
    failures = "\n".join(failure(line) for line in report.failures)
    others = "\n".join(heat_map(line) for line in report.lines if line.ok and line.check == "differences")
    colour = COLOURS[Verdict.PASS if report.ok else Verdict.WRONG]
    return (
        f"<div style='font-family:sans-serif;font-size:14px'><h1 style='font-size:18px'>Gradient check</h1>"
        f"<p style='color:{colour};font-weight:bold'>{html.escape(summary(report))}</p>{notices}{failures}"
        f"<table style='border-collapse:collapse'><thead><tr>{head}</tr></thead>\n{rows}</table>"
        + (f"<details><summary>Where the differences lie</summary>{others}</details>" if others.strip() else "")
        + "</div>"
    )


def group(report: Report, target: str) -> str:
    """Return the rows of one target, below its name."""
    heading = f"<tr><th colspan='{len(COLUMNS)}' style='{LEFT};padding-top:10px'>{html.escape(target)}</th></tr>"
    rows = "\n".join(row(line) for line in report.lines if line.target == target)
    return f"<tbody>{heading if target else ''}\n{rows}</tbody>"


def row(line: Line) -> str:
    cells = (
        line.name,
        line.check,
        number(line.worst),
        number(line.relative),
        number(line.share),
    )
    text = "".join(f"<td style='{LEFT}'>{html.escape(cell)}</td>" for cell in cells)
    colour = COLOURS[Verdict.PASS if line.ok and line.verdict is not Verdict.SKIPPED else line.verdict]
    note = html.escape(line.note, quote=True)
    return f"<tr>{text}<td style='{LEFT};color:{colour}' title=\"{note}\">{line.verdict}</td></tr>"


def failure(line: Line) -> str:
    """Return a failed line's message, with the picture of its errors."""
    style = f"font-family:monospace;color:{COLOURS[line.verdict]};white-space:pre-wrap"
    return f"<pre style='{style}'>{html.escape(line.message())}</pre>" + heat_map(line)


def heat_map(line: Line) -> str:
    """Return an SVG of |analytic − numeric|, white none and red the largest; "" for one element, or many."""
    if line.errors is None or line.errors.size < 2:
        return ""
    errors = np.nan_to_num(line.errors, nan=np.inf, posinf=np.inf)
    grid = errors.reshape(-1, errors.shape[-1]) if errors.ndim else errors.reshape(1, 1)
    shown = grid[:MOST_CELLS, :MOST_CELLS]
    finite = shown[np.isfinite(shown)]
    largest = float(finite.max(initial=0)) or 1.0
    cells = []
    for r, c in np.ndindex(shown.shape):
        index = ", ".join(map(str, np.unravel_index(r * grid.shape[1] + c, errors.shape)))
        share = min(float(shown[r, c]) / largest, 1.0)
        colour = f"rgb(255,{round(255 * (1 - share))},{round(255 * (1 - share))})"
        told = not line.ok and line.index == tuple(np.unravel_index(r * grid.shape[1] + c, errors.shape))
        cells.append(
            f'<rect x="{c * CELL}" y="{r * CELL}" width="{CELL}" height="{CELL}" fill="{colour}" '
            f'stroke="{"black" if told else "#ddd"}">'
            f"<title>{html.escape(line.name)}[{index}]: {shown[r, c]:.3g}</title></rect>"
        )
    cut = (
        ""
        if shown.shape == grid.shape
        else f", the first {shown.shape[0]}×{shown.shape[1]} of {grid.shape[0]}×{grid.shape[1]}"
    )
    title = html.escape(f"{line.target} {line.name} ({line.check})".strip())
    caption = f"|analytic − numeric| of {title}, red = {largest:.3g}{cut}"
    width, height = shown.shape[1] * CELL, shown.shape[0] * CELL
    return (
        f'<figure style="margin:8px 0"><svg width="{width}" height="{height}" role="img" '
        f'aria-label="{caption}">{"".join(cells)}</svg><figcaption>{caption}</figcaption></figure>'
    )
