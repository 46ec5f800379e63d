"""What `numpy-gpt budget` prints: the counts of `budget` as tables."""

from __future__ import annotations

import json
from textwrap import fill
from typing import TYPE_CHECKING, Any

from .budget import budget
from .config import Config
from .terminal import new_console, new_table, print_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def command(
    config: Config,
    B: int,
    T: int,
    dtype: str = "float32",
    tokens: float | None = None,
    rate: float | None = None,
    as_json: bool = False,
) -> int:
    """Print the budget as tables, or as JSON for other programs; return 0."""
    counted = budget(config, B, T, dtype, tokens, rate)
    if as_json:
        print(json.dumps(counted, indent=2, allow_nan=False))
    else:
        print_budget(counted)
    return 0


def print_budget(counted: dict[str, Any]) -> None:
    """Print what `budget` returned: shapes, parameters, FLOPs, memory, and what follows from them."""
    console = new_console()
    for table in (shapes_table, parameters_table, flops_table):
        print_table(console, table(counted))
    console.print(fill(counted["flops"]["rule"], 80) + "\n")
    print_table(console, memory_table(counted))
    print_conclusions(console, counted)


def shapes_table(counted: dict[str, Any]) -> Table:
    """Every intermediate tensor; those of a block stand there once and are made L times."""
    from rich.filesize import decimal

    table = new_table("Shapes, in the order of the forward pass", "", "tensor", "", "", "memory", "bytes", right=1)
    for t in counted["tensors"]:
        times = f"{t['times']} ×" if t["part"] == "block" else ""
        shape = "(" + ", ".join(map(str, t["shape"])) + ")"
        table.add_row(times, t["name"], t["letters"], shape, t["memory"], decimal(t["bytes"]))
    return table


def parameters_table(counted: dict[str, Any]) -> Table:
    """The parameters by part, exact and by the lesson's formula."""
    p, L = counted["parameters"], counted["config"]["L"]
    rows = {
        ("emb", "V·d + T_max·d"): p["emb"],
        ("attn per block", "4d²"): p["attn_per_block"],
        ("mlp per block", "8d²"): p["mlp_per_block"],
        ("blocks", f"{L} × 12d²"): p["blocks"],
        ("norms and biases", "13Ld + 2d"): p["norms_and_biases"],
        ("head", "tied: 0" if counted["config"]["tie"] else "V·d"): p["head"],
        ("N", "exact"): p["N"],
        ("N, the lesson's", "12Ld² + V·d + T_max·d"): p["N_lesson"],
    }
    table = new_table("Parameters", "part", "", "number", right=1)
    for (part, formula), number in rows.items():
        table.add_row(part, formula, f"{number:,}", style="bold" if part == "N" else None)
    return table


def flops_table(counted: dict[str, Any]) -> Table:
    """FLOPs op by op, all blocks together; b/f is backward / forward."""
    flops = counted["flops"]
    table = new_table("FLOPs of a step", "", "op", "forward", "backward", "b/f", "FLOP/\nbyte", right=4)
    for op in flops["ops"]:
        forward, backward, moved = (
            op["times"] * number
            for number in (op["forward"], op["backward"], op["bytes_forward"] + op["bytes_backward"])
        )
        times = f"{op['times']} ×" if op["part"] == "block" else ""
        ratio = f"{backward / forward:.2f}" if forward else ""
        intensity = f"{(forward + backward) / moved:.1f}"
        is_norm = op["op"] == "layernorm"  # one formula in three places
        what = f"{op['name']}  {op['formula']}" if is_norm else op["formula"]
        table.add_row(times, what, f"{forward:,}", f"{backward:,}", ratio, intensity)
    forward, backward, D = flops["forward"], flops["backward"], counted["B"] * counted["T"]
    ratio, intensity = f"{backward / forward:.2f}", f"{flops['intensity']:.1f}"
    table.add_row("", "all", f"{forward:,}", f"{backward:,}", ratio, intensity, style="bold")
    two_n, four_n = (flops["per_token"][key] * D for key in ("2N", "4N"))
    table.add_row("", "2N, 4N", f"{two_n:,}", f"{four_n:,}", "2.00", "")
    table.add_row("", "exact / 2N, 4N", f"{forward / two_n:.4f}", f"{backward / four_n:.4f}", "", "")
    return table


def memory_table(counted: dict[str, Any]) -> Table:
    """The bytes that a training step holds."""
    from rich.filesize import decimal

    table = new_table(f"Memory of a training step, {counted['dtype']}", "", "bytes", "", right=2)
    for name, number in counted["memory"].items():
        table.add_row(name, f"{number:,}", decimal(number), style="bold" if name == "peak" else None)
    return table


def print_conclusions(console: Console, counted: dict[str, Any]) -> None:
    """Print what tiles save, where attention's T² term stands, and what a run costs."""
    from rich.filesize import decimal

    whole = sum(t["times"] * t["bytes"] for t in counted["tensors"] if t["memory"] == "saved")
    left_out = whole - counted["memory"]["activations"]
    if left_out:
        console.print(f"On a CPU attention goes in tiles: {decimal(left_out)} of attn, all masked, are never made")
    flops, attention, run = counted["flops"], counted["attention"], counted["run"]
    per_token = flops["per_token"]
    console.print(f"A token to train: {per_token['train']:,.0f} FLOPs; 6N = {per_token['6N']:,}")
    share = (attention["forward"] + attention["backward"]) / flops["step"]
    masked = (attention["masked_forward"] + attention["masked_backward"]) / flops["step"]
    console.print(f"Attention's T² term takes {share:.1%} of the step; its pairs under the mask, {masked:.1%}")
    for at in counted["crossover"]:
        console.print(
            f"It is {at['share']:.0%} of the linears' forward at T = {at['T']:,}, "
            f"in a block alone at T = {at['T_block']:,}"
        )
    console.print(f"AdamW: {flops['update']:,} FLOPs an update, {flops['update_bytes']:,} bytes moved")
    if run["gflop_per_second"]:
        console.print(f"A step at {run['gflop_per_second']:g} GFLOP/s: {run['step_seconds']:.3g} s")
    if run["tokens"]:
        console.print(f"A run of D = {run['tokens']:,.0f} tokens: C = 6·N·D = {run['C']:.4g} FLOPs")
        console.print(f"  as counted, {run['counted']:.4g} FLOPs")
    if run["hours"] is not None:
        console.print(f"  at that rate, {run['hours']:,.4g} hours by C, {run['hours_counted']:,.4g} as counted")
