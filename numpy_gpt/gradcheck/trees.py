"""Arrays in nested tuples: what a forward returns, what a cache holds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np


def leaves(tree: Any, path: str = "", around: tuple[int, ...] = ()) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (path, array) for every array in nested tuples, lists, mappings and objects, in none that holds itself.

    around  the ids of what the tree lies in
    """
    if isinstance(tree, (np.ndarray, np.generic)):
        yield path, np.asarray(tree)
        return
    if isinstance(tree, Mapping):
        parts = [(f"[{name!r}]", part) for name, part in tree.items()]
    elif isinstance(tree, (tuple, list)):
        parts = [(f"[{number}]", part) for number, part in enumerate(tree)]
    elif hasattr(tree, "__dict__") and not callable(tree) and not isinstance(tree, ModuleType):
        parts = [(f".{name}", part) for name, part in vars(tree).items()]
    else:
        return
    for name, part in parts:
        if id(tree) not in around:
            yield from leaves(part, path + name, (*around, id(tree)))


def map_leaves(function: Callable[[np.ndarray], Any], tree: Any) -> Any:
    """Return tree with function applied to every array of its tuples and lists; numbers count as arrays.

    A list becomes a tuple, a named tuple keeps its names.
    """
    if isinstance(tree, (tuple, list)):
        parts = (map_leaves(function, part) for part in tree)
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return function(np.asarray(tree))


def flatten(tree: Any) -> np.ndarray:
    """Return every number of an output, an array or nested tuples of them, as one new vector."""
    if isinstance(tree, (tuple, list)):
        return np.concatenate([flatten(part) for part in tree])
    return np.array(tree).reshape(-1)


def digests(tree: Any, path: str) -> dict[str, tuple]:
    """Return dtype, shape and a hash of the bits of every array in tree, to be compared later."""
    return {
        place: (str(x.dtype), x.shape, hashlib.blake2b(x.tobytes(), digest_size=16).digest())
        for place, x in leaves(tree, path)
    }


def changed(before: dict[str, tuple], after: dict[str, tuple]) -> list[str]:
    """Return the paths at which two digests differ."""
    return [path for path in {**before, **after} if before.get(path) != after.get(path)]
