"""One pair forward/backward with its inputs, made ready to be checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .trees import flatten, map_leaves

FAILURES = (Exception, SystemExit)  # what a stranger's code may raise: exit() too, which must not end ours in success
Forward = Callable[..., tuple[Any, Any]]
Backward = Callable[..., Any]


@dataclass
class Problem:
    """A pair forward/backward at one point.

    inputs      what the forward takes, in order: floating arrays in float64 (our own copies), the rest as given
    names       the inputs' names
    wrt         the numbers of the inputs whose gradients are compared
    leading     the names of the inputs that carry leading axes (B, T, ...) that the op does not mix
    zero        the names of inputs whose gradient is 0 in theory, here
    directions  how many random directions of each input to compare along; 0 for element by element
    parts       name -> the shares of a gradient that several uses of one input have, for the diagnosis
    """

    forward: Forward
    backward: Backward
    inputs: list[Any]
    names: list[str]
    kwargs: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    wrt: list[int] = field(default_factory=list)
    out_names: list[str] = field(default_factory=list)
    leading: tuple[str, ...] = ()
    zero: tuple[str, ...] = ()
    notices: list[str] = field(default_factory=list)
    directions: int = 0
    reproduce: str = ""
    target: str = ""
    parts: Callable[[str], dict[str, np.ndarray]] | None = None

    @property
    def differentiable(self) -> list[int]:
        """The numbers of the inputs that have a gradient: the floating arrays."""
        return [number for number, x in enumerate(self.inputs) if is_floating(x)]

    def call(self, inputs: Sequence[Any] | None = None, copies: bool = True) -> tuple[Any, Any]:
        """Return the forward's outputs and cache at inputs, by default the problem's own.

        copies  of the inputs are given: what writes into them, or into the cache, must not reach the next check
        """
        inputs = self.inputs if inputs is None else inputs
        if copies:
            inputs = [np.array(x) if isinstance(x, np.ndarray) else x for x in inputs]
        result = self.forward(*inputs, **self.kwargs)
        if not (isinstance(result, tuple) and len(result) == 2):
            raise TypeError(f"{title(self.forward)} must return (out, cache), got {type(result).__name__}")
        if not isinstance(result[0], np.ndarray):
            self.refuse_what_is_no_array(result[0])
        return result

    def refuse_what_is_no_array(self, out: Any) -> None:
        """Raise ValueError where the outputs hold something else than arrays, numbers, and tuples or lists of them."""
        if isinstance(out, (tuple, list)):
            for part in out:
                self.refuse_what_is_no_array(part)
        elif np.asarray(out).dtype.kind not in "biufc":
            what = f"{title(self.forward)}'s outputs must be arrays, or a tuple of arrays"
            raise ValueError(f"{what}; found {type(out).__name__} {str(out)[:40]}")

    def outputs(self, inputs: Sequence[Any]) -> np.ndarray:
        """Return every number of the outputs as one new vector."""
        return flatten(self.call(inputs)[0])

    def gradients(self, upstream: Any, cache: Any, copies: bool = True) -> list[Any]:
        """Return the backward's gradients as a list, one for every differentiable input. Raises TypeError.

        copies  a copy of the upstream is given, as in `call`
        """
        result = self.backward(map_leaves(np.array, upstream) if copies else upstream, cache)
        if isinstance(result, Mapping):
            result = self.in_order(result)
        found = list(result) if isinstance(result, (tuple, list)) else [result]
        if len(found) != len(self.differentiable):
            expected = ", ".join(f"d{self.names[number]}" for number in self.differentiable)
            numbers = "".join(
                f"; {name} = {x!r} is no array, so it has no gradient"
                for name, x in zip(self.names, self.inputs)
                if isinstance(x, float)
            )
            raise TypeError(
                f"{title(self.backward)} returned {len(found)} gradients for {len(self.differentiable)}: "
                f"{expected}{numbers}"
            )
        return found

    def in_order(self, result: Mapping) -> list[Any]:
        """Return gradients given by the inputs' names, or those with d before them, as a list. Raises TypeError."""
        names = [self.names[number] for number in self.differentiable]
        for keys in (names, [f"d{name}" for name in names]):
            if all(key in result for key in keys):
                return [result[key] for key in keys]
        found, wanted = (", ".join(map(str, keys)) or "nothing" for keys in (result, keys))
        raise TypeError(f"{title(self.backward)} returned {found} by name; wanted are {wanted}")

    def rng(self, purpose: str) -> np.random.Generator:
        """Return a generator of the problem's seed, another for every purpose."""
        return np.random.default_rng([self.seed, *purpose.encode()])

    def upstream(self, out: Any, purpose: str = "upstream") -> Any:
        """Draw a standard normal gradient at out. Ones would be blind to softmax and LayerNorm.

        An output that counts, or says yes or no, has none: there it is 0.
        """
        rng = self.rng(purpose)
        return map_leaves(lambda y: np.asarray(rng.standard_normal(y.shape) * (y.dtype.kind not in "iub")), out)


def is_floating(x: Any) -> bool:
    return isinstance(x, (np.ndarray, np.generic)) and x.dtype.kind in "fc"


def largest(arrays: Iterable[np.ndarray]) -> float:
    """Return the largest finite magnitude, at least 1."""
    return max([1.0, *(float(np.abs(x[np.isfinite(x)]).max(initial=0)) for x in arrays)])


def title(function: Callable) -> str:
    return getattr(function, "__name__", type(function).__name__)


def described(value: Any) -> str:
    """Return a few words for what should have been something else: "None", "a list"."""
    return "None" if value is None else f"a {type(value).__name__}"


def prepare(
    forward: Forward,
    backward: Backward,
    inputs: Sequence[Any],
    *,
    names: Sequence[str] | None = None,
    wrt: Sequence[str | int] | None = None,
    **settings: Any,
) -> Problem:
    """Return the Problem: copies of the inputs in float64, each with its name. Raises ValueError."""
    seed = settings.get("seed", 0)
    if not isinstance(seed, (int, np.integer)) or seed < 0:
        raise ValueError(f"seed must be a whole number of at least 0, got {seed!r}")
    names = list(names) if names is not None else input_names(forward, len(inputs))
    if len(names) != len(inputs):
        raise ValueError(f"names has {len(names)} entries, {names}, for {len(inputs)} inputs")
    for setting in ("leading", "zero"):
        unknown = [name for name in settings.get(setting, ()) if name not in names]
        if unknown:
            raise ValueError(f"{setting} holds {unknown[0]!r}, which is no input; there are {', '.join(names)}")
    copies, notices = [], []
    for name, x in zip(names, inputs):
        if is_floating(x) and x.dtype.kind == "c":
            raise ValueError(f"input {name} is {x.dtype}; gradients are checked at real inputs")
        if is_floating(x) and x.dtype != np.float64:
            notices.append(f"{name} is {x.dtype}; checked in float64, where a difference has digits to spare")
        if is_floating(x) and (np.isnan(x).any() or np.isposinf(x).any()):
            place = tuple(map(int, np.argwhere(np.isnan(x) | np.isposinf(x))[0]))
            raise ValueError(f"input {name} is {x[place]} at {list(place)}: there is no gradient to check there")
        copies.append(np.array(x, np.float64) if is_floating(x) else x.copy() if isinstance(x, np.ndarray) else x)
    problem = Problem(forward, backward, copies, names, notices=notices, **settings)
    if not problem.differentiable:
        raise ValueError(f"none of the inputs {', '.join(names)} is a floating-point array: no gradient to check")
    problem.wrt = problem.differentiable if wrt is None else [find(problem, item) for item in wrt]
    if not problem.reproduce:
        problem.reproduce = f"check({title(forward)}, {title(backward)}, *inputs, seed={problem.seed})"
    return problem


def find(problem: Problem, item: str | int) -> int:
    """Return the number of the input that item, a name or a number, means. Raises ValueError."""
    number = problem.names.index(item) if item in problem.names else item
    if number not in problem.differentiable:
        known = ", ".join(problem.names[number] for number in problem.differentiable)
        raise ValueError(f"wrt holds {item!r}, which is no differentiable input; there are {known}")
    return int(number)


def input_names(forward: Forward, number: int) -> list[str]:
    """Return the forward's own names of its first inputs, numbered where it does not tell."""
    try:
        parameters = list(inspect.signature(forward).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return positional[:number] + [f"input{n}" for n in range(len(positional), number)]
