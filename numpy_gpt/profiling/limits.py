"""What the machine can do at most, measured on the spot: matrix products and memory traffic."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from ..backend import Array, synchronize
from ..config import Config
from ..cores import for_blocks, matmul

Clock = Callable[[], float]


@dataclass(frozen=True)
class Limits:
    """The largest rates seen on this machine.

    gemm       FLOP/s of the best run of each product measured
    bandwidth  bytes/s to and from memory, the best of copying and adding large arrays
    """

    gemm: dict[str, float]
    bandwidth: float

    @property
    def peak_name(self) -> str:
        """The fastest product."""
        return max(self.gemm, key=lambda name: self.gemm[name])

    @property
    def peak(self) -> float:
        """FLOP/s of the fastest product."""
        return self.gemm[self.peak_name]

    @property
    def ridge(self) -> float:
        """FLOP/byte from which on arithmetic is the limit, and below which memory is."""
        return self.peak / self.bandwidth


def best_seconds(
    work: Callable[[], object], xp: ModuleType, seconds: float = 0.2, clock: Clock = time.perf_counter
) -> float:
    """Return the least seconds that work takes: once to warm up, then at least twice and for `seconds` in all."""
    work()
    synchronize(xp)
    found: list[float] = []
    while len(found) < 2 or sum(found) < seconds:
        start = clock()
        work()
        synchronize(xp)
        found.append(clock() - start)
    return min(found)


def random_matrix(shape: tuple[int, ...], dtype: str, xp: ModuleType) -> Array:
    numbers = np.random.default_rng(0).random(shape, dtype=np.dtype(dtype))
    numbers -= 0.5
    return xp.asarray(numbers)


def gemm_rate(a: Array, b: Array, xp: ModuleType, seconds: float, clock: Clock) -> float:
    """Return FLOP/s of a @ b into an array that is there already."""
    out = xp.empty((a.shape[0], b.shape[1]), dtype=a.dtype)
    least = best_seconds(lambda: matmul(a, b, out), xp, seconds, clock)
    return 2 * a.shape[0] * a.shape[1] * b.shape[1] / least


SQUARES = {True: (512, 1024, 2048), False: (2048, 4096, 8192)}  # on a CPU, on a GPU


def measure_gemm_peak(
    dtype: str = "float32",
    xp: ModuleType = np,
    sizes: Sequence[int] | None = None,
    seconds: float = 0.2,
    clock: Clock = time.perf_counter,
) -> float:
    """Return the FLOP/s of the fastest of some square products, (n, n) @ (n, n) costing 2n³.

    sizes  of n; by default those at which a CPU, or a GPU, is at its best. Each is run for `seconds`.
    """
    sizes = sizes or SQUARES[xp is np]
    rates = []
    for n in sizes:
        a, b = (random_matrix((n, n), dtype, xp) for _ in range(2))
        rates.append(gemm_rate(a, b, xp, seconds, clock))
    return max(rates)


def large(xp: ModuleType) -> int:
    """Return the bytes of an array that is far too large for a cache."""
    return 2**26 if xp is np else 2**30


def measure_bandwidth(
    dtype: str = "float32",
    xp: ModuleType = np,
    size: int | None = None,
    seconds: float = 0.2,
    clock: Clock = time.perf_counter,
) -> float:
    """Return bytes/s to and from memory: the better of b = a and c = a + b, each array counted once.

    size  bytes of each array; `large` by default. A CPU's cores share the work, in the blocks in
          which the model's own element-wise ops do.
    """
    size = size or large(xp)
    n = size // np.dtype(dtype).itemsize
    a, b, c = (xp.full(n, value, dtype=dtype) for value in (1.0, 2.0, 3.0))

    def copy() -> None:
        for_blocks(lambda part: xp.copyto(b[part], a[part]), n, xp)

    def add() -> None:
        for_blocks(lambda part: xp.add(a[part], b[part], out=c[part]), n, xp)

    moved = {copy: 2 * size, add: 3 * size}
    return max(moved[work] / best_seconds(work, xp, seconds, clock) for work in moved)


def own_products(config: Config) -> dict[str, tuple[int, int]]:
    """Return the matrices of the linear layers and of the head, (in, out)."""
    d = config.d
    return {"qkv": (d, 3 * d), "W_o": (d, d), "W_1": (d, 4 * d), "W_2": (4 * d, d), "head": (d, config.V)}


def limits_memory(config: Config, B: int, T: int, dtype: str, xp: ModuleType) -> int:
    """Return the most bytes that measuring the limits takes: three large arrays, or the matrices of one layer."""
    R = B * T
    layers = [
        R * n_in + R * n_out + n_in * n_out + max(R * n_in, R * n_out, n_in * n_out)
        for n_in, n_out in own_products(config).values()
    ]
    squares = 3 * max(SQUARES[xp is np]) ** 2
    return max(3 * large(xp), max(squares, *layers) * np.dtype(dtype).itemsize)


def measure_own_gemms(
    config: Config,
    B: int,
    T: int,
    dtype: str = "float32",
    xp: ModuleType = np,
    seconds: float = 0.1,
    clock: Clock = time.perf_counter,
) -> dict[str, float]:
    """Return FLOP/s of the products of the model's linear layers and head alone, forward and backward."""
    R = B * T

    def rates_of(name: str, n_in: int, n_out: int) -> dict[str, float]:
        x, dy = (random_matrix((R, n), dtype, xp) for n in (n_in, n_out))
        W = random_matrix((n_out, n_in), dtype, xp).T if name == "head" else random_matrix((n_in, n_out), dtype, xp)
        products = {"y = x W": (x, W), "dx = dy Wᵀ": (dy, W.T), "dW = xᵀ dy": (x.T, dy)}
        return {f"{name}: {product}": gemm_rate(*pair, xp, seconds, clock) for product, pair in products.items()}

    rates: dict[str, float] = {}
    for name, (n_in, n_out) in own_products(config).items():
        rates |= rates_of(name, n_in, n_out)
    return rates
