"""Time our training step: python our_step.py B T V L h d STEPS.

Prints median ms: forward, backward, optimiser, step.
"""

import statistics
import sys
import time

import numpy as np
from threadpoolctl import threadpool_limits

from numpy_gpt import AdamW, Config, Model
from numpy_gpt.accumulation import Accumulator, Clock
from numpy_gpt.optim import clip_scale
from numpy_gpt.training import Schedule, n_workers

B, T, V, L, h, d, STEPS = map(int, sys.argv[1:8])
WARM_UP = 2

model = Model(Config(V=V, T_max=max(T, 64), d=d, h=h, L=L))
optimiser = AdamW(model.params)
workers = n_workers(Schedule(B=B), model)
clock = Clock(np)
accumulator = Accumulator(model, workers, clock)
rng = np.random.default_rng(0)
rows = []
with threadpool_limits(1 if workers > 1 else None, user_api="blas"):
    for _ in range(WARM_UP + STEPS):
        idx = rng.integers(0, V, (B, T + 1))
        shards = [(part[:, :-1], part[:, 1:]) for part in np.array_split(idx, workers)]
        clock.seconds.clear()
        start = time.perf_counter()
        _, grads = accumulator.step(shards)
        middle = time.perf_counter()
        _, scale = clip_scale(grads, 1.0)
        optimiser.update(grads, scale=scale)
        end = time.perf_counter()
        forward, backward = (clock.seconds[name] / workers for name in ("forward", "backward"))
        rows.append((forward, backward, end - middle, end - start))
print(*(f"{1e3 * statistics.median(column):.2f}" for column in zip(*rows[WARM_UP:])))
