"""PyTorch's fastest product, in GFLOP/s: python benchmarks/torch_product.py.

Square matrices of 1,024, 2,048 and 4,096 in float32, eight products each, on all cores. Beside it, and
the FLOPs of `numpy-gpt budget`, torch_step.py's forward and backward become an MFU.
"""

import time

import torch

rates = []
for n in (1024, 2048, 4096):
    a, b, out = torch.randn(n, n), torch.randn(n, n), torch.empty(n, n)
    torch.mm(a, b, out=out)
    for _ in range(8):
        start = time.perf_counter()
        torch.mm(a, b, out=out)
        rates.append(2 * n**3 / (time.perf_counter() - start))
print(f"{max(rates) / 1e9:.1f}")
