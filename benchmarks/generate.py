"""Our generation beside transformers' and beside the memory: python benchmarks/generate.py [--rounds N]

GPT-2 124M at random weights, greedy, one sequence, float32. Ours and theirs run in processes that
alternate. Prints each round, then the median and the quartiles of the rounds' ratios ours / transformers
of the whole call's time, and of the share that we reach of what the memory allows: bytes of weights read
a token / bandwidth, the bandwidth that of a matrix-vector product over the same weights in the same
process, between the generations. Needs torch and transformers (the extra `peers`).
"""

import argparse
import statistics

from step_time import milliseconds


def quartiles(values: list[float]) -> str:
    low, median, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return f"median {median:.3f}, quartiles {low:.3f} and {high:.3f}, {len(values)} rounds"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompt", type=int, default=16, help="tokens in the prompt")
    parser.add_argument("--new", type=int, default=64, help="tokens generated")
    parser.add_argument("--repeats", type=int, default=3, help="generations a process, after one to warm up")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    setting = (args.prompt, args.new, args.repeats)
    ratios, shares = [], []
    for _ in range(args.rounds):
        (whole, token, bound), (theirs,) = (
            milliseconds(script, setting) for script in ("our_generate.py", "transformers_generate.py")
        )
        ratios.append(whole / theirs)
        shares.append(bound / token)
        print(
            f"  ms a token: ours {whole:.2f}  transformers {theirs:.2f}  ratio {ratios[-1]:.3f};  "
            f"from the first token on {token:.2f}, the memory's bound {bound:.2f}, share {shares[-1]:.3f}",
            flush=True,
        )
    print(f"ours / transformers: {quartiles(ratios)}")
    print(f"share of the memory's bound: {quartiles(shares)}")


if __name__ == "__main__":
    main()
