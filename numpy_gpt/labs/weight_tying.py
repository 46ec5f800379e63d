"""One matrix used twice: what tying saves, and what each use adds to its gradient."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..config import Config
from ..data import load_text, windows
from ..model import Model
from ..tokenizer import GPT2Tokenizer
from .lab import Finding, Lab, Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

D, L, B, T = 64, 2, 8, 64  # beside GPT-2's own vocabulary
CHARACTERS = 60_000  # of the help topics


def measure(seed: int) -> Result:
    tied, untied = (Config.preset("gpt2", tie=tie).n_parameters() for tie in (True, False))
    saved, V = untied - tied, GPT2Tokenizer.V

    tokens = GPT2Tokenizer().encode(load_text("stdlib")[:CHARACTERS])
    idx, _ = windows(tokens, B, T, np.random.default_rng(seed))  # (B, T)
    model = Model(Config.preset("gpt2", T_max=T, d=D, h=4, L=L), seed)
    from_head, from_embedding = both_shares(model, idx)  # each (V, d)
    grads = model.step(idx).grads
    apart = float(abs(from_head + from_embedding - grads["W_te"]).max() / abs(grads["W_te"]).max())

    rows = {name: np.linalg.norm(share, axis=1) for name, share in (("head", from_head), ("embedding", from_embedding))}
    touched = {name: int((norms > 0).sum()) for name, norms in rows.items()}
    different = len(np.unique(idx[:, :-1]))
    size = {name: float(np.linalg.norm(norms)) for name, norms in rows.items()}
    cosine = float(np.vdot(from_head, from_embedding) / (size["head"] * size["embedding"]))
    is_target = np.isin(np.arange(V), idx[:, 1:])
    on_targets = float((rows["head"][is_target] ** 2).sum() / size["head"] ** 2)

    findings = (
        Finding(
            "tying saves V·d = 50,257 × 768 ≈ 38.6M parameters",
            f"{saved:,}: {untied:,} without it, {tied:,} with it, {saved / untied:.0%} fewer",
            saved == 50_257 * 768 and round(saved / 1e6, 1) == 38.6,
        ),
        Finding(
            "the gradient of W_te is the sum of two contributions, the head's and the embedding's",
            "each computed alone, they add up to the model's, "
            + (f"within {apart:.0e} of its largest entry" if apart else "bit for bit"),
            apart < 1e-6,
        ),
        Finding(
            "the embedding touches the rows of the tokens that it read",
            f"{touched['embedding']:,} of {V:,} rows in a step of {B} × {T} tokens: as many as there are different "
            "ones (the last of each window left out: nothing is predicted from it)",
            touched["embedding"] == different,
        ),
        Finding(
            "the head touches every row: softmax pushes down all that was not the answer",
            f"{touched['head']:,} of {V:,}",
            touched["head"] == V,
        ),
        Finding(
            "tying gives the embedding rows far more gradient updates",
            f"{V / touched['embedding']:.0f} times as many rows get one in a step; but {on_targets:.2%} of the head's "
            f"squared gradient lies on the {is_target.sum():,} rows of the step's targets",
            touched["head"] > 10 * touched["embedding"],
        ),
    )
    values = {
        "saved": float(saved),
        "apart": apart,
        "rows_head": float(touched["head"]),
        "rows_embedding": float(touched["embedding"]),
        "different": float(different),
        "norm_head": size["head"],
        "norm_embedding": size["embedding"],
        "cosine": cosine,
        "on_targets": on_targets,
    }
    note = (
        f"In this fresh model the head's contribution has norm {size['head']:.2f} and the embedding's "
        f"{size['embedding']:.2f}; between them the cosine is {cosine:+.2f}. A model that forgets one of them still "
        "trains, which is why the sum is checked (`numpy-gpt gradcheck model`)."
    )

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        for name, norms in rows.items():
            ax.loglog(
                np.arange(1, V + 1), np.sort(norms)[::-1].clip(1e-12), label=f"{name}: {touched[name]:,} rows", lw=3
            )
        ax.axvline(different, color="black", linestyle="--", label=f"{different:,} different tokens in the step")
        ax.set_ylim(bottom=min(norms[norms > 0].min() for norms in rows.values()) / 2)
        ax.set(
            title="Gradient of W_te in one step, from its two uses",
            xlabel="row of W_te, largest gradient first",
            ylabel="norm of the row's gradient",
        )
        ax.legend()
        figure.set_size_inches(11, 6.5)

    return Result(findings, values, note, draw)


def both_shares(model: Model, idx: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what the head and the embedding each add to dW_te, each (V, d).

    Untied, with a W_head that is a copy of W_te, the model computes the same and keeps the two apart.
    """
    untied = Model(replace(model.config, tie=False), None, str(model.dtype))
    for name, value in {**model.params, "W_head": model.params["W_te"]}.items():
        untied.params[name] = value
    grads = untied.step(idx).grads
    return grads["W_head"], grads["W_te"]


LAB = Lab(
    name="weight_tying",
    section="§5",
    claim="tying saves V·d ≈ 38.6M parameters and gives the embedding rows far more gradient updates",
    measure=measure,
)
