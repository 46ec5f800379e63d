"""Our training step beside PyTorch's: python benchmarks/step_time.py [SETTING ...] [--rounds N] [--others]

Runs the sides in processes that alternate, since a machine's speed drifts and two libraries' threads
in one process disturb each other. Prints each round, then for each peer the median and the quartiles
of the rounds' ratios ours / theirs. Where MKL is installed (the extra `mkl`), ours runs with NumPy's
own products and with MKL's, which are PyTorch's too. The peer is PyTorch at its best; --others runs
it too with its default optimiser and with torch.compile, and transformers' GPT-2 as people run it.
Needs torch, and for --others transformers (the extra `peers`).
"""

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

from numpy_gpt import mkl

HERE = Path(__file__).parent
SETTINGS = {  # B, T, V, L, h, d, steps
    "characters": (12, 64, 65, 4, 4, 128, 100),
    "gpt2-short": (4, 64, 50257, 12, 12, 768, 8),
    "gpt2-long": (1, 1024, 50257, 12, 12, 768, 4),
}
OURS = {"ours": {"NUMPY_GPT_MKL": "0"}, "ours with MKL": {"NUMPY_GPT_MKL": "1"}}  # environments
PEER = {"PyTorch": ("torch_step.py",)}
OTHERS = {
    "PyTorch, default AdamW": ("torch_step.py", "default"),
    "PyTorch, compiled": ("torch_step.py", "compile"),
    "transformers": ("transformers_step.py",),
}


def milliseconds(script: str, setting: tuple[int, ...], *words: str, **environment: str) -> list[float]:
    command = [sys.executable, str(HERE / script), *map(str, setting), *words]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | environment)
    return [float(word) for word in run.stdout.split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", nargs="*", default=list(SETTINGS), help=", ".join(SETTINGS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--others", action="store_true", help="three more peers, in every round")
    args = parser.parse_args()
    for name in args.settings:
        if name not in SETTINGS:
            parser.error(f"no setting called {name!r}; there are {', '.join(SETTINGS)}")
    peers = PEER | OTHERS if args.others else PEER
    sides = OURS if mkl.is_at_hand() else {"ours": OURS["ours"]}
    for name in args.settings:
        ratios: dict[str, list[float]] = {f"{side} / {peer}": [] for peer in peers for side in sides}
        print(f"{name}: ms forward, backward, optimiser, step")
        for _ in range(args.rounds):
            ours = {}
            for side, environment in sides.items():
                ours[side] = milliseconds("our_step.py", SETTINGS[name], **environment)
                print(f"  {side} {ours[side]}", flush=True)
            for peer, (script, *words) in peers.items():
                theirs = milliseconds(script, SETTINGS[name], *words)
                for side in sides:
                    ratios[f"{side} / {peer}"].append(ours[side][-1] / theirs[-1])
                latest = ", ".join(f"{ratios[f'{side} / {peer}'][-1]:.3f}" for side in sides)
                print(f"    {peer} {theirs}  ratio {latest}", flush=True)
        for pair, found in ratios.items():
            low, median, high = statistics.quantiles(found, n=4) if len(found) > 1 else found * 3
            print(f"{name}, {pair}: median {median:.3f}, quartiles {low:.3f} and {high:.3f}, {len(found)} rounds")
        print()


if __name__ == "__main__":
    main()
