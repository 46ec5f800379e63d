"""Time our generation with GPT-2 124M at random weights: python our_generate.py PROMPT NEW REPEATS.

Greedy, float32, one sequence. Prints median ms a token: over the whole call; from the first new token
to the last; and of one matrix-vector product over all weights, timed between the calls, for the share
of them that a token reads.
"""

import statistics
import sys
import time

import numpy as np

from numpy_gpt import Config, Model
from numpy_gpt.generation import generate
from numpy_gpt.sampling import note_times, time_to_read

PROMPT, NEW, REPEATS = map(int, sys.argv[1:4])

model = Model(Config.preset("gpt2"))
prompt = np.random.default_rng(0).integers(0, model.config.V, PROMPT)
rows = []
for _ in range(1 + REPEATS):
    times = [time.perf_counter()]
    for _ in note_times(generate(model, prompt, NEW, temperature=0), times):
        pass
    rows.append(((times[-1] - times[0]) / NEW, (times[-1] - times[1]) / (NEW - 1), time_to_read(model)))
print(*(f"{1e3 * statistics.median(column):.3f}" for column in zip(*rows[1:])))
