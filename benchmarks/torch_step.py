"""Time PyTorch's training step at its best on a CPU: python torch_step.py B T V L h d STEPS [default] [compile].

A lean GPT-2 with scaled_dot_product_attention, clipping and fused AdamW, in float32; "default" takes
PyTorch's default AdamW instead, "compile" runs the model through torch.compile. Prints median ms:
forward, backward, optimiser, step.
"""

import statistics
import sys
import time
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

B, T, V, L, h, d, STEPS = map(int, sys.argv[1:8])
WARM_UP = 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.W_qkv, self.W_o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.W_1, self.W_2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        qkv = self.W_qkv(self.ln_1(x)).view(B, T, 3, h, d // h)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.W_o(out.transpose(1, 2).reshape(B, T, d))
        return x + self.W_2(functional.gelu(self.W_1(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self):
        super().__init__()
        self.W_te, self.W_pe = nn.Embedding(V, d), nn.Embedding(max(T, 64), d)
        self.blocks, self.ln_f = nn.Sequential(*(Block() for _ in range(L))), nn.LayerNorm(d)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, 0, 0.02)

    def forward(self, idx, targets):
        x = self.ln_f(self.blocks(self.W_te(idx) + self.W_pe.weight[:T]))
        logits = functional.linear(x, self.W_te.weight)
        return functional.cross_entropy(logits.view(-1, V), targets.reshape(-1))


torch.manual_seed(0)
model = GPT2()
run = torch.compile(model) if "compile" in sys.argv else model
fused = {} if "default" in sys.argv else {"fused": True}
optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, **fused)
rows = []
for _ in range(WARM_UP + STEPS):
    ids = torch.randint(0, V, (B, T + 1))
    times = [time.perf_counter()]
    loss = run(ids[:, :-1], ids[:, 1:])
    times.append(time.perf_counter())
    loss.backward()
    times.append(time.perf_counter())
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    times.append(time.perf_counter())
    rows.append((*(b - a for a, b in pairwise(times)), times[-1] - times[0]))
print(*(f"{1e3 * statistics.median(column):.2f}" for column in zip(*rows[WARM_UP:])))
