"""Named arrays that share one flat vector."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import ModuleType

import numpy as np

from .backend import Array


class Parameters(Mapping[str, Array]):
    """A model's parameters, or their gradients, by name; each a view into `flat`.

    flat      (N,) every number once: what the optimiser, clipping and the sum over micro-batches see
    matrices  the part of flat that holds the 2-D parameters: what weight decay shrinks
    vectors   the rest: biases, gammas and betas, which are never decayed

    Given a vector as flat, it is the storage, as it stands; else new zeros are.

    `p["W_te"] = value` and `p.flat = values` copy into the storage, so that it stays one.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        dtype: str = "float32",
        xp: ModuleType = np,
        flat: Array | None = None,
    ) -> None:
        self.shapes = dict(shapes)
        self.xp = xp
        self._flat = xp.zeros(sum(map(math.prod, shapes.values())), dtype=dtype) if flat is None else flat
        n_matrices = sum(math.prod(shape) for shape in shapes.values() if len(shape) == 2)
        self.matrices, self.vectors = self.flat[:n_matrices], self.flat[n_matrices:]
        self._views: dict[str, Array] = {}
        self._blocks: dict[int, dict[str, Array]] = {}
        next_start = {True: 0, False: n_matrices}  # matrices lie first, so that decay is one slice
        for name, shape in self.shapes.items():
            start = next_start[len(shape) == 2]
            stop = next_start[len(shape) == 2] = start + math.prod(shape)
            self._views[name] = self.flat[start:stop].reshape(shape)
            if name.startswith("block."):
                _, number, short_name = name.split(".", 2)
                self._blocks.setdefault(int(number), {})[short_name] = self._views[name]

    @property
    def flat(self) -> Array:
        """The one vector, (N,)."""
        return self._flat

    @flat.setter
    def flat(self, values: Array) -> None:
        if values is not self._flat:  # as after `p.flat += ...`, which has written already
            self._flat[...] = values

    __eq__, __hash__ = object.__eq__, object.__hash__  # a Mapping's would ask arrays for one truth value

    def __getitem__(self, name: str) -> Array:
        return self._views[name]

    def __setitem__(self, name: str, value: Array) -> None:
        if name not in self._views:
            raise KeyError(f"no parameter called {name!r}")
        value = self.xp.asarray(value)
        if value.shape != self.shapes[name]:
            raise ValueError(f"{name} has shape {self.shapes[name]}, got {value.shape}")
        self._views[name][...] = value

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)

    def __repr__(self) -> str:
        return f"Parameters({len(self)} arrays, {self.flat.size:,} numbers, {self.flat.dtype})"

    def __deepcopy__(self, memo: dict) -> Parameters:
        copy = self.zeros_like()
        copy.flat[...] = self.flat
        return copy

    def block(self, number: int) -> dict[str, Array]:
        """Return the views of one block under their short names: "W_qkv", "ln_1.gamma", ..."""
        return self._blocks[number]

    def zeros_like(self) -> Parameters:
        """Return new Parameters of the same names, shapes, dtype and device, all zero."""
        return Parameters(self.shapes, dtype=self.flat.dtype, xp=self.xp)
