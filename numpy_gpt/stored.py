"""A safetensors file's tensors, found without reading them and read one at a time; a bad file is one clear line."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from .files import naming

DTYPES = {"BF16": "<u2", "F16": "<f2", "F32": "<f4", "F64": "<f8"}
LARGEST_HEADER = 2**22  # bytes: GPT-2 XL with AdamW's moments takes 200,000, a tokenizer of all characters 2,000,000


class StoredTensor(NamedTuple):
    """One tensor of a file: where its numbers lie, and as what."""

    file: Path
    dtype: str  # one of DTYPES, or of those that no weights of ours have
    shape: tuple[int, ...]
    offset: int

    def read(self) -> np.ndarray:
        """Return the numbers; each keeps its value, BF16 as a float32."""
        numbers = np.fromfile(self.file, DTYPES[self.dtype], math.prod(self.shape), offset=self.offset)
        if self.dtype == "BF16":  # the upper half of a float32's bits
            bits = numbers.astype("<u4")
            bits <<= 16
            numbers = bits.view("<f4")
        return numbers.reshape(self.shape)


def read_header(path: Path) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """Return the tensors of a safetensors file by name, none of them read yet, and the file's metadata.

    Raises ValueError as `naming` makes it: for a damaged header, whose length, shapes and offsets are
    all checked against the file, and for one of more than LARGEST_HEADER bytes.
    """
    from safetensors import safe_open

    with naming(path):
        with path.open("rb") as start:
            length = header_length(start)
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
            entries = json.loads(start.read(length))
        entries.pop("__metadata__", None)
        tensors = {
            name: StoredTensor(path, entry["dtype"], tuple(entry["shape"]), 8 + length + entry["data_offsets"][0])
            for name, entry in entries.items()
        }
    return tensors, metadata


def header_length(start: BinaryIO) -> int:
    """Read the length of the header from a file's first bytes. Raises ValueError where it passes LARGEST_HEADER."""
    length = int.from_bytes(start.read(8), "little")
    if length > LARGEST_HEADER:
        raise ValueError(
            f"not a safetensors file of weights: its header takes {length:,} bytes, more than {LARGEST_HEADER:,}"
        )
    return length


def check_finite(name: str, numbers: np.ndarray) -> None:
    """Raise ValueError for the first of numbers that is inf or nan, naming its place."""
    finite = np.isfinite(numbers)
    if not finite.all():
        place = np.unravel_index(finite.argmin(), numbers.shape)
        raise ValueError(f"{name} is {numbers[place]} at [{', '.join(map(str, place))}]")


def save_tensors(path: Path, tensors: Mapping[str, np.ndarray], metadata: dict[str, str]) -> None:
    """Write a safetensors file. Raises OSError where it cannot be written."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    try:
        save_file(dict(tensors), path, metadata)
    except SafetensorError as error:
        raise OSError(str(error)) from error


def check_fit_to_save(path: Path | str, tensors: Mapping[str, np.ndarray]) -> None:
    """Raise FloatingPointError, naming path and the weight, where one is inf or nan."""
    for name, numbers in tensors.items():
        try:
            check_finite(name, numbers)
        except ValueError as error:
            raise FloatingPointError(f"{path}: not written, because {error}") from error
