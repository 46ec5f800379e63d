"""Timers around the ops, put there from outside and taken away again: the model's own code holds none."""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FunctionType, ModuleType
from typing import Any

from ..backend import synchronize
from ..model import Model

PACKAGE = __name__.partition(".")[0]

# A function's name, as it begins, and whose seconds its own are. The seconds of a function that is
# made of ops are those between its ops: a block adds up the residual stream there.
OPS = {
    "embedding": "embedding",
    "layernorm": None,  # named by its parameters: ln_1, ln_2, ln_f
    "qkv": "qkv",
    "attend": "attend",
    "linear": None,  # W_o, W_1, W_2
    "gelu": "gelu",
    "head": "head",
    "cross_entropy": "loss",
}
MADE_OF_OPS = {"block": "residual", "post_norm_block": "residual", "attention": "rest", "mlp": "rest"}


class OpTimer:
    """Adds up the seconds of every op of a step, forward and backward, all blocks together.

    seconds  {(op, "forward" or "backward"): seconds}. A call inside another is counted once, where
             it belongs: seconds spent in no op are "residual" or "rest", so that all add up to the step
    clock    tells the time in seconds; the device is waited for before each look at it
    """

    def __init__(self, model: Model, clock: Callable[[], float] = time.perf_counter) -> None:
        self.xp, self.clock = model.xp, clock
        self.seconds: dict[tuple[str, str], float] = defaultdict(float)
        self._parameter_names = {id(array): short_name(name) for name, array in model.params.items()}
        self._cache_names: dict[int, str] = {}
        self._inner: list[float] = []  # for each call in hand, the seconds of the timed calls inside it
        self._in_op = False
        self._thread = threading.get_ident()

    @contextmanager
    def measure(self, name: str, way: str) -> Iterator[None]:
        """Add the seconds until the end, less those of what is measured inside, to (name, way)."""
        self._inner.append(0.0)
        start = self.clock()
        try:
            yield
            synchronize(self.xp)
        finally:
            seconds = self.clock() - start
            self.seconds[name, way] += seconds - self._inner.pop()
            if self._inner:
                self._inner[-1] += seconds

    def wrap(self, function: Callable) -> Callable:
        """Return function with its calls timed, but for those that another op makes, in whatever thread."""
        stem, _, way = function.__name__.rpartition("_")

        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._in_op or threading.get_ident() != self._thread:
                return function(*args, **kwargs)
            name = MADE_OF_OPS.get(stem) or self._op_name(stem, way, args)
            self._in_op = stem not in MADE_OF_OPS
            try:
                with self.measure(name, way):
                    result = function(*args, **kwargs)
            finally:
                self._in_op = False
            if way == "forward":
                self._cache_names[id(result[1])] = name
            return result

        vars(timed)["is_timed"] = True
        return timed

    def _op_name(self, stem: str, way: str, args: tuple) -> str:
        kind = next((kind for kind in OPS if stem.startswith(kind)), stem)
        name = OPS.get(kind, kind)
        if name is not None:
            return name
        if way == "backward":
            return self._cache_names.get(id(args[1]), kind)  # x_backward(dy, cache)
        return next((self._parameter_names[id(x)] for x in args if id(x) in self._parameter_names), kind)


def short_name(parameter: str) -> str:
    """ "block.3.ln_1.gamma" -> "ln_1", "block.3.W_o" -> "W_o"."""
    parts = parameter.removesuffix(".gamma").removesuffix(".beta").split(".")
    return parts[-1]


@contextmanager
def timed_ops(timer: OpTimer) -> Iterator[None]:
    """Let timer see every call of an op by the model until the end, which puts everything back.

    For that time each x_forward and x_backward in the namespaces of the model and the ops, and in
    the tables there, is replaced by its timed self.
    """
    replaced: list[tuple[dict, Any, Any]] = []
    try:
        for module in modules_of_ops():
            replace(vars(module), timer.wrap, replaced)
        yield
    finally:
        for namespace, name, value in reversed(replaced):
            namespace[name] = value


def modules_of_ops() -> list[ModuleType]:
    """Return the modules whose functions call ops."""
    names = (f"{PACKAGE}.model", f"{PACKAGE}.post_norm", f"{PACKAGE}.ops")
    return [module for name, module in sys.modules.items() if name in names or name.startswith(f"{PACKAGE}.ops.")]


def replace(namespace: dict, wrap: Callable, replaced: list[tuple[dict, Any, Any]]) -> None:
    """Put wrap(op) in the place of every op in a namespace or table; note in replaced what stood there."""
    for name, value in list(namespace.items()):
        if isinstance(name, str) and name.startswith("__"):
            continue
        if isinstance(value, dict):
            replace(value, wrap, replaced)
        elif is_op(value) or (isinstance(value, tuple) and any(map(is_op, value))):
            replaced.append((namespace, name, value))
            namespace[name] = wrap(value) if is_op(value) else tuple(wrap(v) if is_op(v) else v for v in value)


def is_op(value: Any) -> bool:
    """Tell whether value is an op of this package, not yet wrapped."""
    return (
        isinstance(value, FunctionType)
        and value.__name__.endswith(("_forward", "_backward"))
        and value.__module__.startswith(f"{PACKAGE}.")
        and not hasattr(value, "is_timed")
    )
