"""2N forward, 4N backward, 6N to train a token: against exact counts, and against time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from ..budget import attention_flops, budget, crossover
from ..config import Config
from ..model import Model
from .lab import Finding, Lab, Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LENGTHS = (64, 128, 256, 512, 1024, 2048)  # T
TOKENS = 2048  # B·T, the same at every T
TIMED = Config(V=256, T_max=2048, d=128, h=4, L=2)
REPEATS = 3


def measure(seed: int, lengths: tuple[int, ...] = LENGTHS) -> Result:
    small = Config.preset("gpt2")
    per_token = budget(small, 1, 1024)["flops"]["per_token"]
    forward, backward, train = (
        per_token[exact] / per_token[lesson]
        for exact, lesson in (("forward", "2N"), ("backward", "4N"), ("train", "6N"))
    )
    short = budget(small, 1, 64)["flops"]["per_token"]
    shares = {T: t2_share(Config.preset("gpt2", T_max=T), T) for T in (64, 128, 256, 512, 768, 1024, 4096, 16384)}
    at_10, at_50, at_100 = (crossover(small, percent) for percent in (10, 50, 100))

    counted = {T: budget(TIMED, TOKENS // T, T)["flops"] for T in lengths}
    seconds = {T: step_seconds(TIMED, T, seed) for T in lengths}
    shortest, longest = lengths[0], lengths[-1]
    back = seconds[shortest][1] / seconds[shortest][0]
    total = {T: sum(parts) for T, parts in seconds.items()}
    slower = total[longest] / total[shortest]
    more = counted[longest]["step"] / counted[shortest]["step"]
    masked = attention_flops(TIMED, TOKENS // longest, longest)
    kept = counted[longest]["step"] - masked["masked_forward"] - masked["masked_backward"]

    findings = (
        Finding(
            "a forward pass costs ≈ 2N FLOPs a token",
            f"{forward:.3f} · 2N in GPT-2 small at T = 1,024; {short['forward'] / short['2N']:.3f} at T = 64",
            abs(forward - 1) < 0.25,
        ),
        Finding(
            "the backward pass about twice the forward: ≈ 4N",
            f"{backward:.3f} · 4N; backward / forward is {per_token['backward'] / per_token['forward']:.3f}",
            abs(per_token["backward"] / per_token["forward"] - 2) < 0.05,
        ),
        Finding(
            "training ≈ 6N a token",
            f"{train:.3f} · 6N at T = 1,024, {short['train'] / short['6N']:.3f} at T = 64",
            abs(train - 1) < 0.25,
        ),
        Finding(
            "in time too the backward is twice the forward",
            f"{back:.2f} times, at d = {TIMED.d}, B·T = {TOKENS:,}, T = {shortest}",
            1.5 < back < 2.7,
        ),
        Finding(
            "attention's T² term is a rounding error until T approaches d",
            f"at T = d = 768 it is {shares[768]:.0%} of a step's FLOPs in GPT-2 small; {shares[64]:.1%} at T = 64",
            shares[768] < 0.05,
        ),
        Finding(
            "it stops being one where",
            f"T = {at_10['T']:,}: a tenth of the linears; {at_50['T']:,}: half; {at_100['T']:,}: as much. In a block "
            f"without the head T = {at_10['T_block']:,}, {at_50['T_block']:,} and {at_100['T_block']:,}: "
            f"{at_10['T_block'] / 768:.1f} d, {at_50['T_block'] / 768:.1f} d and {at_100['T_block'] / 768:.1f} d",
            at_10["T_block"] < 768 < at_50["T_block"],
        ),
        Finding(
            "time shows it: the same tokens in longer sequences take longer",
            f"{slower:.1f} times as long at T = {longest:,} as at T = {shortest}; counted {more:.1f} times the FLOPs, "
            f"{kept / counted[shortest]['step']:.1f} without the pairs under the mask; 6N says 1",
            slower > 1.3,
        ),
    )
    values = {
        "forward": forward,
        "backward": backward,
        "train": train,
        "time_ratio": back,
        "slower": slower,
        "more": more,
    }
    values |= {f"share_{T}": share for T, share in shares.items()}
    values |= {f"T_{name}": float(at["T"]) for name, at in (("10", at_10), ("50", at_50), ("100", at_100))}
    values |= {f"seconds_{T}": t for T, t in total.items()}
    note = (
        "6N leaves out attention's T² term, GELU, softmax and the norms, and counts W_pe, which multiplies nothing. "
        "Time is not FLOPs: tanh and exp, most of them in the forward, count as one and take many times as long as an "
        "addition, and attention's narrow products run slower than the wide ones of the linears; on the other hand, "
        "beyond 128 tokens most pairs under the causal mask are not computed."
    )

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        left.loglog(list(shares), list(shares.values()), marker="o", markersize=8)
        left.axvline(768, color="black", linestyle="--", label="T = d")
        left.axhline(0.1, color="gray", linestyle=":", label="a tenth")
        left.set(title="Attention's T² term in GPT-2 small", xlabel="T", ylabel="share of a step's FLOPs")
        left.legend()
        right.loglog(lengths, [total[T] / total[shortest] for T in lengths], marker="o", markersize=8, label="time")
        exact = [counted[T]["step"] / counted[shortest]["step"] for T in lengths]
        right.loglog(lengths, exact, marker="s", label="exact FLOPs, all T² pairs")
        right.axhline(1, color="black", linestyle="--", label="6N")
        right.set(title=f"A step of {TOKENS:,} tokens, d = {TIMED.d}", xlabel="T", ylabel=f"relative to T = {shortest}")
        right.set_xticks(lengths, map(str, lengths))
        right.set_yticks((1, 2, 4), ("1", "2", "4"))
        right.minorticks_off()
        right.legend()
        figure.set_size_inches(15, 6)

    return Result(findings, values, note, draw)


def t2_share(config: Config, T: int) -> float:
    """Return the share of a step's FLOPs that attention's T² term has."""
    attention = attention_flops(config, 1, T)
    return (attention["forward"] + attention["backward"]) / budget(config, 1, T)["flops"]["step"]


def step_seconds(config: Config, T: int, seed: int) -> tuple[float, float]:
    """Return the seconds of a forward and of a backward pass over TOKENS tokens, the best of some."""
    model = Model(config, seed)
    idx = np.random.default_rng(seed).integers(config.V, size=(TOKENS // T, T))
    times = []
    for _ in range(REPEATS + 1):  # the first one finds memory and is slower
        start = time.perf_counter()
        _, cache = model.loss_forward(idx)
        middle = time.perf_counter()
        model.loss_backward(1.0, cache)
        times.append((middle - start, time.perf_counter() - middle))
    forwards, backwards = zip(*times)
    return min(forwards), min(backwards)


LAB = Lab(
    name="flops_2n4n6n",
    section="§6",
    claim="a token costs ≈ 2N FLOPs forward, ≈ 4N backward, ≈ 6N to train; attention's T² adds little until T ≈ d",
    measure=measure,
)
