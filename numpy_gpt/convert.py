"""From Hugging Face's files to our checkpoint, and back."""

from __future__ import annotations

import sys
from pathlib import Path

from .checkpoint import save_checkpoint
from .pretrained import CONFIG, INDEX, WEIGHTS, filling, load_exactly, save_pretrained
from .runs import is_ours, load_ours
from .tokenizer import GPT2Tokenizer


def convert(source: Path | str, target: Path | str, overwrite: bool = False) -> Path:
    """Convert Hugging Face's files to our checkpoint, or our checkpoint to theirs; return what was written.

    source  our checkpoint, or a run's folder, whose newest that verifies it is: target is then the
            folder for Hugging Face's two files. Anything else that `load_pretrained` takes: target is
            then the checkpoint, or a folder for it to stand in as model.safetensors

    Every weight keeps its bits, but that F16 and BF16 become float32. With V = 50257 the checkpoint
    gets GPT-2's tokenizer; Hugging Face's two files hold none, and a tokenizer left behind is told on stderr.

    Raises ValueError as `load_pretrained` and `load_checkpoint` do, and, without overwrite, where
    a file that would be written is there already.
    """
    target = Path(target)
    if is_ours(source):
        if target.suffix == ".safetensors":
            raise ValueError(f"{target}: Hugging Face's two files want a folder, and its name ends like a file's")
        check_absent([target / CONFIG, target / WEIGHTS, target / INDEX], overwrite)
        path, model, metadata = load_ours(source)
        save_pretrained(model, target)
        tokenizer = metadata.get("tokenizer")
        if tokenizer is not None and tokenizer != GPT2Tokenizer().to_dict():
            print(f"{target} holds no tokenizer: keep {path} for its own", file=sys.stderr)
        return target
    if target.suffix != ".safetensors":
        target = target / WEIGHTS
    check_absent([target], overwrite)
    model = load_exactly(source)
    metadata = {"tokenizer": GPT2Tokenizer().to_dict()} if model.config.V == GPT2Tokenizer.V else {}
    with filling(target.parent):
        save_checkpoint(target, model, **metadata)
    return target


def check_absent(paths: list[Path], overwrite: bool) -> None:
    """Raise ValueError for the first path that is there, unless it may be overwritten."""
    for path in paths:
        if path.exists() and not overwrite:
            raise ValueError(f"{path} is there already; choose another target, or give --overwrite")
