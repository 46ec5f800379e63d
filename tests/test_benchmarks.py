"""The benchmarks run: what they measure is no test's business."""

import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def run(script, *argv):
    command = [sys.executable, BENCHMARKS / script, *map(str, argv)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_our_step():
    B, T, V, L, h, d, steps = 3, 8, 11, 1, 2, 4, 2
    forward, backward, optimiser, step = map(float, run("our_step.py", B, T, V, L, h, d, steps).split())
    assert 0 < min(forward, backward, optimiser) < step
