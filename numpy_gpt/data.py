"""Text to train on, its windows of tokens, and two baselines that a model must beat."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from .backend import array_module
from .ops import IGNORE_INDEX
from .ops.checks import check_ids

SHAKESPEARE_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


def load_text(source: Path | str = "stdlib") -> str:
    """Return a text: one of the two known by name, or a UTF-8 file's.

    "stdlib"       the help topics that come with Python, about 465,000 characters of English and
                   code: on every machine, without a network, and a little different in every
                   version of Python
    "shakespeare"  tiny Shakespeare, 1,115,394 characters, downloaded once into the user's cache
    anything else  the path of a file, returned as it is, line ends included

    Raises ValueError, naming the source, where there is no such text to be had, it is not UTF-8
    (with the offset of the first bad byte), or it is empty.
    """
    if source == "stdlib":
        try:
            from pydoc_data.topics import topics
        except ImportError as error:  # some systems keep the help topics in a package of their own
            raise ValueError(f"stdlib: this Python comes without its help topics: {error}; name a file") from error
        return "\n".join(topics[name] for name in sorted(topics))
    return _read_text(download_shakespeare() if source == "shakespeare" else Path(source))


def _read_text(path: Path) -> str:
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise ValueError(f"{path}: cannot read the text: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 at byte {error.start}: {error.reason}") from error
    if not text:
        raise ValueError(f"{path}: the file is empty")
    return text


def download_shakespeare(cache: Path | str | None = None) -> Path:
    """Return the path of tiny Shakespeare in cache (default: the user's), downloaded if not there yet.

    Its sha256 is checked every time. A download that does not match leaves nothing behind.

    Raises ValueError where it cannot be downloaded.
    """
    import pooch
    import requests

    try:
        path = pooch.retrieve(
            SHAKESPEARE_URL,
            known_hash=f"sha256:{SHAKESPEARE_SHA256}",
            fname="tinyshakespeare.txt",
            path=cache or pooch.os_cache("numpy_gpt"),
        )
    except (OSError, ValueError) as error:  # requests' errors are OSErrors, pooch's wrong hash a ValueError
        reason: object = error
        if isinstance(error, requests.ConnectionError):
            reason = f"no connection ({type(error).__name__})"
        raise ValueError(
            f"cannot download tiny Shakespeare from {SHAKESPEARE_URL}: {reason}; a copy of yours works by its path"
        ) from error
    return Path(path)


def split(tokens: np.ndarray, T: int, validation: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    """Return (train, held_out): the last share `validation` of tokens (N,) is held out.

    Raises ValueError for a share outside 0 < validation < 1, and where either side is too short for one
    window, T + 1 tokens.
    """
    if not 0 < validation < 1:
        raise ValueError(f"validation must lie in 0 < validation < 1, got {validation!r}")
    n_train = len(tokens) - round(len(tokens) * validation)
    train, held_out = tokens[:n_train], tokens[n_train:]
    if min(len(train), len(held_out)) < T + 1:
        raise ValueError(
            f"{len(tokens)} tokens make {len(train)} to train on and {len(held_out)} held out; "
            f"each side needs T + 1 = {T + 1}: take a longer text, a smaller T or another share"
        )
    return train, held_out


def windows(tokens: np.ndarray, B: int, T: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return idx and targets, each (B, T) int64: B random windows of tokens (N,), and their next ids.

    Every start is equally likely, and one may come twice. The same rng state gives the same windows.

    Raises ValueError for fewer than T + 1 tokens, and for tokens that are not whole numbers.
    """
    _check_window(tokens, B, T)
    if len(tokens) < T + 1:
        raise ValueError(f"{len(tokens)} tokens hold no window of T + 1 = {T + 1}")
    starts = rng.integers(len(tokens) - T, size=(B, 1))  # (B, 1)
    positions = starts + np.arange(T)  # (B, T)
    return tokens[positions].astype(np.int64), tokens[positions + 1].astype(np.int64)


def ordered_windows(tokens: np.ndarray, B: int, T: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (idx, targets), each (≤ B, T) int64, that score every token after the first exactly once.

    The windows stand side by side in order: each begins afresh, without the context before it. The
    last is filled up with id 0 and targets −100, which are not counted; the last batch may have
    fewer rows. The mean over the text weighs each batch by its counted targets.

    Raises ValueError for fewer than 2 tokens, and for tokens that are not whole numbers.
    """
    _check_window(tokens, B, T)
    if len(tokens) < 2:
        raise ValueError(f"{len(tokens)} tokens hold no next token to score; it takes 2")
    n = len(tokens) - 1
    n_windows = -(-n // T)  # rounded up
    idx = np.zeros((n_windows, T), dtype=np.int64)  # (n_windows, T)
    targets = np.full((n_windows, T), IGNORE_INDEX, dtype=np.int64)  # (n_windows, T)
    idx.reshape(-1)[:n] = tokens[:-1]
    targets.reshape(-1)[:n] = tokens[1:]
    return ((idx[row : row + B], targets[row : row + B]) for row in range(0, n_windows, B))


def _check_window(tokens: np.ndarray, B: int, T: int) -> None:
    if array_module(tokens) is not np or tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise ValueError(f"tokens must be one row of whole numbers (N,), got {tokens.dtype} {tokens.shape}")
    if B < 1 or T < 1:
        raise ValueError(f"B and T must be at least 1, got B = {B} and T = {T}")


def unigram_loss(train: np.ndarray, held_out: np.ndarray, V: int) -> float:
    """Return the loss, in nats a token, of predicting each token by its share of train alone.

        p(v) = (c(v) + 1) / (N + V)                             add-one smoothing (Laplace)
        loss = mean over t ≥ 1 of −log p(held_out[t])

    c(v) counts token v in train (N,). The first token held out is not scored, as in the model's loss.

    Raises ValueError for fewer than 2 tokens on a side, and for an id outside 0 <= id < V.
    """
    check_corpora(train, held_out, V)
    p = _unigram(train, V)  # (V,)
    return float(-np.log(p[held_out[1:]]).mean())


def _unigram(train: np.ndarray, V: int) -> np.ndarray:
    return (np.bincount(train.astype(np.int64), minlength=V) + 1) / (len(train) + V)  # (V,)


def bigram_loss(train: np.ndarray, held_out: np.ndarray, V: int) -> float:
    """Return the loss, in nats a token, of predicting each token from the one before it.

        p(v | u) = (c(u, v) + n(u) p(v)) / (c(u) + n(u))        Witten–Bell interpolation
        loss = mean over t ≥ 1 of −log p(held_out[t] | held_out[t−1])

    c(u, v) counts v right after u in train, c(u) = Σ_v c(u, v), and n(u) is the number of different
    tokens that follow u, or 1 where none does, which leaves p(v), the unigram's share as above. The
    more varied what follows u, the more weight on the unigram. Only pairs that occur in train are
    stored, so V may be large. Source: Witten & Bell, 1991; Chen & Goodman, 1998.

    Raises ValueError as `unigram_loss` does.
    """
    check_corpora(train, held_out, V)
    pairs, pair_counts = np.unique(_pairs(train, V), return_counts=True)  # sorted; (P,), (P,)
    c_u = np.bincount(train[:-1].astype(np.int64), minlength=V)  # (V,)
    n_u = np.maximum(np.bincount(pairs // V, minlength=V), 1)  # (V,)

    wanted = _pairs(held_out, V)  # (N,), one a scored token
    place = np.searchsorted(pairs, wanted).clip(max=len(pairs) - 1)
    c_uv = np.where(pairs[place] == wanted, pair_counts[place], 0)  # (N,)
    u, v = wanted // V, wanted % V
    p_v = _unigram(train, V)[v]  # (N,)
    p = (c_uv + n_u[u] * p_v) / (c_u[u] + n_u[u])  # (N,)
    return float(-np.log(p).mean())


def _pairs(tokens: np.ndarray, V: int) -> np.ndarray:
    """Return u V + v for each token v and the token u before it: one whole number a pair."""
    tokens = tokens.astype(np.int64)
    return tokens[:-1] * V + tokens[1:]


def check_corpora(train: np.ndarray, held_out: np.ndarray, V: int) -> None:
    """Raise ValueError unless both hold two tokens or more, and ids of the vocabulary alone."""
    for tokens, name in ((train, "train"), (held_out, "held_out")):
        if len(tokens) < 2:
            raise ValueError(f"{name} has {len(tokens)} tokens; a next token takes 2")
        check_ids(tokens, V, name)
