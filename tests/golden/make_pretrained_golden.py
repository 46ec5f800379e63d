"""Make pretrained/: small GPT-2s as transformers saves them, and what PyTorch computes with each.

    pip install torch transformers && python tests/golden/make_pretrained_golden.py

Every case is a folder with config.json and weights, single or in shards, in one of the dtypes, and
expected.safetensors: ids, their logits in float64, and the 200 tokens that greedy decoding adds to
the first sequence. Parameters are drawn away from their usual start, so that no zero hides a mistake;
the seeds are such that no near tie makes the greedy tokens a matter of luck.
"""

import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel

B, T, N_GREEDY = 2, 8, 200
FOLDER = Path(__file__).parent / "pretrained"
BASE = {"n_positions": T + N_GREEDY, "bos_token_id": None, "eos_token_id": None}
CASES = {  # name: seed, options, dtype, largest shard
    # One block of 4×4 c_proj: a transposed one has the right shape and the wrong numbers.
    "square": (0, dict(vocab_size=11, n_embd=4, n_head=2, n_layer=1), "float32", "1GB"),
    "shards": (
        1,
        dict(
            vocab_size=61,
            n_embd=24,
            n_head=3,
            n_layer=2,
            activation_function="gelu",
            scale_attn_weights=False,
            tie_word_embeddings=False,
        ),
        "float32",
        "40KB",
    ),
    "bf16": (1, dict(vocab_size=97, n_embd=32, n_head=4, n_layer=3, layer_norm_epsilon=1e-3), "bfloat16", "1GB"),
    "f16": (0, dict(vocab_size=13, n_embd=6, n_head=3, n_layer=2), "float16", "1GB"),
}


def main() -> None:
    for name, (seed, options, dtype, max_shard_size) in CASES.items():
        torch.manual_seed(seed)
        shutil.rmtree(FOLDER / name, ignore_errors=True)
        model = GPT2LMHeadModel(GPT2Config(**BASE, **options, attn_implementation="eager")).eval()
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                gamma = ".ln_" in parameter_name and parameter_name.endswith("weight")
                # Strong positions keep greedy decoding from saying one token for ever.
                parameter.normal_(1.0 if gamma else 0.0, 2.0 if "wpe" in parameter_name else 0.4)
        model = model.to(getattr(torch, dtype))
        model.save_pretrained(FOLDER / name, max_shard_size=max_shard_size)
        (FOLDER / name / "generation_config.json").unlink(missing_ok=True)
        save_file(
            expected(model.double()),
            FOLDER / name / "expected.safetensors",
            {"torch": torch.__version__.partition("+")[0]},
        )


@torch.no_grad()
def expected(model: GPT2LMHeadModel) -> dict[str, torch.Tensor]:
    idx = torch.randint(0, model.config.vocab_size, (B, T))
    ids = model.generate(idx[:1], max_new_tokens=N_GREEDY, do_sample=False)
    two_largest = model(input_ids=ids[:, :-1]).logits[0, T - 1 :].topk(2).values
    margin = (two_largest[:, 0] - two_largest[:, 1]).min()
    assert margin > 1e-3, f"a near tie, {margin:.1e}: float32 may take the other token"
    assert len(ids[0, T:].unique()) >= 5, "greedy decoding has too little to say"
    return {"idx": idx, "logits": model(input_ids=idx).logits, "greedy": ids[0, T:].contiguous()}


if __name__ == "__main__":
    main()
