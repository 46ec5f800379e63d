"""How fast GPT-2 124M reads 1,024 tokens: python benchmarks/evaluate.py [--rounds N]

Random weights, float32. Prints median seconds of Model.forward, which gives all logits, and of a window
of `numpy-gpt evaluate` at stride 512, which gives the last 512; and how many times faster that is than
the 10.5 s a forward that a public NumPy GPT-2 publishes (its machine, not this one).
"""

import argparse
import statistics
import time

import numpy as np

from numpy_gpt import Config, Model
from numpy_gpt.evaluation import evaluate_text

PUBLISHED = 10.5  # seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    model = Model(Config.preset("gpt2"))
    T_max = model.config.T_max
    ids = np.random.default_rng(0).integers(0, model.config.V, T_max + 512 * args.rounds)
    forwards, windows = [], [time.perf_counter()]
    for _ in range(args.rounds):
        start = time.perf_counter()
        model.forward(ids[None, :T_max])
        forwards.append(time.perf_counter() - start)
    evaluate_text(model, ids, 512, B=1, report=lambda *_: windows.append(time.perf_counter()))
    steps = np.diff(windows)[1:]  # the first window scores all it can, each other one 512
    for what, seconds in (("Model.forward", forwards), ("a window at stride 512", steps)):
        median = statistics.median(seconds)
        print(f"{what}: {median:.2f} s, {PUBLISHED / median:.1f} times as fast as the published {PUBLISHED} s")


if __name__ == "__main__":
    main()
