"""Our training step beside PyTorch's: python benchmarks/step_time.py [SETTING ...] [--rounds N] [--others]

Runs the sides in processes that alternate, since a machine's speed drifts and two libraries' threads
in one process disturb each other. Prints each round, then for each peer the median and the quartiles
of the rounds' ratios ours / theirs. The peer is PyTorch at its best; --others runs it too with its
default optimiser and with torch.compile, and transformers' GPT-2 as people run it. Needs torch, and
for --others transformers (the extra `peers`).
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
PEER = {"PyTorch": ("torch_step.py",)}
OTHERS = {
    "PyTorch, default AdamW": ("torch_step.py", "default"),
    "PyTorch, compiled": ("torch_step.py", "compile"),
    "transformers": ("transformers_step.py",),
}


def milliseconds(script: str, setting: tuple[int, ...], *words: str) -> list[float]:
    command = [sys.executable, str(HERE / script), *map(str, setting), *words]
    return [float(word) for word in subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()]


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
    for name in args.settings:
        ratios: dict[str, list[float]] = {peer: [] for peer in peers}
        print(f"{name}: ms forward, backward, optimiser, step")
        for _ in range(args.rounds):
            ours = milliseconds("our_step.py", SETTINGS[name])
            print(f"  ours {ours}", flush=True)
            for peer, (script, *words) in peers.items():
                theirs = milliseconds(script, SETTINGS[name], *words)
                ratios[peer].append(ours[-1] / theirs[-1])
                print(f"    {peer} {theirs}  ratio {ratios[peer][-1]:.3f}", flush=True)
        for peer, found in ratios.items():
            low, median, high = statistics.quantiles(found, n=4) if len(found) > 1 else found * 3
            print(
                f"{name}, ours / {peer}: median {median:.3f}, quartiles {low:.3f} and {high:.3f}, {len(found)} rounds"
            )
        print()


if __name__ == "__main__":
    main()
