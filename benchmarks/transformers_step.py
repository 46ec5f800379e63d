"""Time a training step of transformers' GPT-2 as people run it: python transformers_step.py B T V L h d STEPS.

GPT2LMHeadModel as its config makes it, dropout and all, with PyTorch's default AdamW and clipping, in
float32. Prints median ms: forward, backward, optimiser, step.
"""

import statistics
import sys
import time
from itertools import pairwise

import torch
from transformers import GPT2Config, GPT2LMHeadModel

B, T, V, L, h, d, STEPS = map(int, sys.argv[1:8])
WARM_UP = 2

torch.manual_seed(0)
config = GPT2Config(vocab_size=V, n_positions=max(T, 64), n_embd=d, n_layer=L, n_head=h)
config.bos_token_id = config.eos_token_id = None  # 50256 lies outside a small vocabulary
model = GPT2LMHeadModel(config).train()
optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
rows = []
for _ in range(WARM_UP + STEPS):
    ids = torch.randint(0, V, (B, T))
    times = [time.perf_counter()]
    loss = model(ids, labels=ids).loss
    times.append(time.perf_counter())
    loss.backward()
    times.append(time.perf_counter())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    optimiser.zero_grad()
    times.append(time.perf_counter())
    rows.append((*(b - a for a, b in pairwise(times)), times[-1] - times[0]))
print(*(f"{1e3 * statistics.median(column):.2f}" for column in zip(*rows[WARM_UP:])))
