"""Make gpt2_small.safetensors: what PyTorch, through the transformers GPT-2, computes in float64.

    pip install torch transformers && python tests/golden/make_golden.py

A small GPT-2 (V 97, T_max 16, d 48, h 3, L 2) with every parameter drawn away from its usual
start, so that no zero hides a mistake. Kept by our names: the parameters ("param."), the ids,
logits, loss and every gradient ("grad.") of one step, and the loss of each of ten AdamW steps
with the parameters after them ("final.").
"""

from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel

V, T_MAX, D, H, L = 97, 16, 48, 3, 2
B, STEPS = 3, 10
LR, BETAS, WEIGHT_DECAY = 3e-3, (0.9, 0.95), 0.1
# The K third of b_qkv has gradient 0 but for rounding, and Adam would divide that rounding by its
# own size into full steps; an ε far above it keeps float32 comparable with float64.
EPS = 1e-4

OUR_NAMES = {
    "transformer.wte.weight": "W_te",
    "transformer.wpe.weight": "W_pe",
    "transformer.ln_f.weight": "ln_f.gamma",
    "transformer.ln_f.bias": "ln_f.beta",
}
OUR_NAMES_IN_BLOCK = {
    "ln_1.weight": "ln_1.gamma",
    "ln_1.bias": "ln_1.beta",
    "attn.c_attn.weight": "W_qkv",
    "attn.c_attn.bias": "b_qkv",
    "attn.c_proj.weight": "W_o",
    "attn.c_proj.bias": "b_o",
    "ln_2.weight": "ln_2.gamma",
    "ln_2.bias": "ln_2.beta",
    "mlp.c_fc.weight": "W_1",
    "mlp.c_fc.bias": "b_1",
    "mlp.c_proj.weight": "W_2",
    "mlp.c_proj.bias": "b_2",
}
for number in range(L):
    for theirs, ours in OUR_NAMES_IN_BLOCK.items():
        OUR_NAMES[f"transformer.h.{number}.{theirs}"] = f"block.{number}.{ours}"


def main() -> None:
    torch.manual_seed(2019)
    torch.set_default_dtype(torch.float64)
    config = GPT2Config(
        vocab_size=V,
        n_positions=T_MAX,
        n_embd=D,
        n_head=H,
        n_layer=L,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="eager",
    )
    model = GPT2LMHeadModel(config).double().train()
    parameters = {OUR_NAMES[name]: parameter for name, parameter in model.named_parameters()}
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.normal_(1.0 if name.endswith("gamma") else 0.0, 0.15)
    golden = {f"param.{name}": parameter.detach().clone() for name, parameter in parameters.items()}

    idx = torch.randint(0, V, (STEPS, B, T_MAX))
    idx[:, :, 5] = idx[:, :, 2]  # repeated ids in every sequence
    golden["idx"] = idx

    matrices = [p for p in parameters.values() if p.ndim == 2]
    vectors = [p for p in parameters.values() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS)
    losses = []
    for step in range(STEPS):
        logits = model(input_ids=idx[step]).logits
        # The lesson's loss; the one that transformers computes by itself rounds the logits to float32.
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, V), idx[step, :, 1:].reshape(-1))
        optimiser.zero_grad()
        loss.backward()
        losses.append(loss.detach())
        if step == 0:
            golden["logits"] = logits.detach()
            golden |= {f"grad.{name}": parameter.grad.clone() for name, parameter in parameters.items()}
        optimiser.step()
    golden["losses"] = torch.stack(losses)
    golden |= {f"final.{name}": parameter.detach() for name, parameter in parameters.items()}
    metadata = {"torch": torch.__version__.partition("+")[0]}
    save_file(
        {k: t.contiguous() for k, t in golden.items()}, Path(__file__).parent / "gpt2_small.safetensors", metadata
    )


if __name__ == "__main__":
    main()
