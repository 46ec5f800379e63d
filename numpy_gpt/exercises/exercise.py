"""What an exercise is."""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from ..gradcheck import Report
from ..gradcheck.problem import FAILURES
from ..gradcheck.trees import flatten

BESIDE = "beside the lesson"  # the section of what the lesson has no section for


class NotYet(Exception):
    """Why nothing can be compared yet: one sentence for the student."""


class Contest(NamedTuple):
    """The student's function and ours, each ready to be called, and what they are called with."""

    theirs: Callable[[], Any]
    ours: Callable[[], Any]
    at: str


@dataclass(frozen=True)
class Exercise(ABC):
    """One function to write.

    name      also the stub's: NAME.py
    section   of the lesson, or BESIDE
    shapes    what the function takes and returns, for its docstring
    hints     three, from a nudge to nearly the answer
    """

    name: str
    section: str
    shapes: str
    hints: tuple[str, str, str]

    @property
    def place(self) -> str:
        """Where the exercise stands: "lesson §4"."""
        return self.section if self.section == BESIDE else f"lesson {self.section}"

    @property
    @abstractmethod
    def function(self) -> str:
        """The name of the function to write."""

    @property
    @abstractmethod
    def answer(self) -> str:
        """The module of the package that holds the solution."""

    @abstractmethod
    def stub(self) -> str:
        """Return the file to start from."""

    @abstractmethod
    def check(self, module: ModuleType, seed: int = 0) -> Report:
        """Check the student's module. Raises NotYet."""

    @abstractmethod
    def contest(self, module: ModuleType, brief: bool = False) -> Contest:
        """Return the student's function and ours at a size worth timing or, brief, at about a thirtieth of it."""


def part(module: ModuleType, name: str) -> Any:
    """Return what the student's module calls name. Raises NotYet."""
    if not hasattr(module, name):
        raise NotYet(f"{Path(str(module.__file__)).name} has no {name}")
    return getattr(module, name)


@contextmanager
def rehearsal(module: ModuleType, function: str) -> Iterator[None]:
    """Turn what the student's code raises into one sentence that says where. Raises NotYet."""
    try:
        with np.errstate(all="ignore"):
            yield
    except NotImplementedError as error:
        raise NotYet(f"{function} is not written yet") from error
    except FAILURES as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == module.__file__]
        if not frames:  # not the student's own: what it returned could not be used
            raise NotYet(str(error)) from error
        place = f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}"
        raise NotYet(f"{frames[-1].name} raises {type(error).__name__}: {error} ({place})") from error


def same_forward(found: Any, expected: Any, name: str) -> None:
    """Hold the student's copy of the forward to what was handed out. Raises NotYet."""
    found, expected = flatten(found), flatten(expected)
    if found.shape != expected.shape or not np.allclose(found, expected, rtol=1e-12, atol=1e-12):
        raise NotYet(f"{name} no longer computes what the stub's did; `numpy-gpt exercise start` writes a fresh one")
