"""Our training step beside PyTorch's: python benchmarks/step_time.py [SETTING ...] [--rounds N]

Runs the two in processes that alternate, ours then theirs, since a machine's speed drifts and two
libraries' threads in one process disturb each other. Prints each round, then the median and the
quartiles of the rounds' ratios ours / PyTorch. Needs torch (the extra `peers`).
"""

import argparse
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SETTINGS = {  # B, T, V, L, h, d, steps
    "characters": (12, 64, 65, 4, 4, 128, 100),
    "gpt2-short": (4, 64, 50257, 12, 12, 768, 8),
    "gpt2-long": (1, 1024, 50257, 12, 12, 768, 4),
}


def milliseconds(script: str, setting: tuple[int, ...]) -> list[float]:
    command = [sys.executable, str(HERE / script), *map(str, setting)]
    return [float(word) for word in subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", nargs="*", default=list(SETTINGS), help=", ".join(SETTINGS))
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    for name in args.settings:
        ratios = []
        print(f"{name}: ms forward, backward, optimiser, step")
        for _ in range(args.rounds):
            ours, theirs = (milliseconds(script, SETTINGS[name]) for script in ("our_step.py", "torch_step.py"))
            ratios.append(ours[-1] / theirs[-1])
            print(f"  ours {ours}  PyTorch {theirs}  ratio {ratios[-1]:.3f}", flush=True)
        low, median, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        print(f"{name}: ratio median {median:.3f}, quartiles {low:.3f} and {high:.3f}, {len(ratios)} rounds\n")


if __name__ == "__main__":
    main()
