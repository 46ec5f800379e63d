"""Time transformers' generate with its cache: python transformers_generate.py PROMPT NEW REPEATS.

GPT-2 124M at random weights, greedy, float32, one sequence. Prints median ms a token over the whole call.
"""

import statistics
import sys
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

PROMPT, NEW, REPEATS = map(int, sys.argv[1:4])

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config()).eval()
prompt = torch.randint(0, model.config.vocab_size, (1, PROMPT))
settings = dict(attention_mask=torch.ones_like(prompt), do_sample=False, use_cache=True, pad_token_id=0)
seconds = []
with torch.inference_mode():
    for _ in range(1 + REPEATS):
        start = time.perf_counter()
        ids = model.generate(prompt, min_new_tokens=NEW, max_new_tokens=NEW, **settings)
        seconds.append(time.perf_counter() - start)
        assert ids.shape == (1, PROMPT + NEW)
print(f"{1e3 * statistics.median(seconds[1:]) / NEW:.3f}")
