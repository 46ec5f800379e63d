"""The backward of an op, or of a block, to write."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np

from .. import ops
from ..config import Config
from ..gradcheck import Report
from ..gradcheck.cases import CASES, Case, Sizes, case, more_cases
from ..gradcheck.invariants import causal, key_bias_zero
from ..gradcheck.models import SMALL, randomise
from ..gradcheck.problem import is_floating
from ..gradcheck.report import merge
from ..gradcheck.suite import check_cases
from ..gradcheck.trees import map_leaves
from ..model import Model, block_backward, block_forward
from .exercise import Contest, Exercise, part, rehearsal, same_forward
from .stub import equation, imports, in_numpy, names_in, page, source_of, unwritten

Pair = tuple[Callable, Callable]
TIMED = Sizes(B=(4,), T=128, h=4, d_head=64, V=512)
BRIEF = Sizes(B=(2,), T=32, h=2, d_head=64, V=256)
BLOCKS = (
    (SMALL, (2, 5)),
    (Config(V=1, T_max=3, d=4, h=1, L=1), (1, 3)),
    (Config(V=1, T_max=1, d=4, h=2, L=1), (3, 1)),
)


@dataclass(frozen=True)
class OpExercise(Exercise):
    """NAME_backward, given NAME_forward.

    cases    of the checker at which it must hold; default: the one of its own name
    helpers  names of the op's module that the forward needs, and that belong into the stub
    """

    cases: tuple[str, ...] = ()
    helpers: tuple[str, ...] = ()

    @property
    def pair(self) -> Pair:
        """Our own forward and backward."""
        return getattr(ops, f"{self.name}_forward"), getattr(ops, f"{self.name}_backward")

    @property
    def function(self) -> str:
        return f"{self.name}_backward"

    @property
    def one_batch(self) -> bool:
        """Whether the stub promises one leading axis, (B, T, d), where others leave them free, (..., d)."""
        return "(B, " in self.shapes

    @property
    def answer(self) -> str:
        return self.pair[1].__module__

    def stub(self) -> str:
        forward, backward = self.pair
        module = sys.modules[forward.__module__]
        doc = f"The gradients of\n\n    {indented(equation(forward))}\n\n{self.shapes}"
        code = [*(source_of(module, name) for name in self.helpers), in_numpy(inspect.getsource(forward))]
        tools = names_in(inspect.getsource(backward)) & set(ops.__all__)  # the other ops that a backward is made of
        own = {forward.__name__, backward.__name__, *self.helpers}
        imported = imports("\n".join([*code, *sorted(tools)]), module, own)
        title = f"The backward of {self.name}"
        return page(
            self.name, self.place, title, self.function, imported, *code, unwritten(backward, self.function, doc)
        )

    def student_pair(self, module: ModuleType) -> Pair:
        """Return the student's forward and backward. Raises NotYet."""
        return part(module, f"{self.name}_forward"), part(module, self.function)

    def cases_at(self, name: str, pair: Pair, seed: int) -> list[Case]:
        """Return one of the checker's cases and the same case at other sizes, with another pair in its place."""
        forward, backward = pair
        ours = [case(name, seed), *more_cases(name, seed, self.one_batch)]
        free = () if self.one_batch else ours[0].leading
        return [replace(found, forward=forward, backward=backward, leading=free) for found in ours]

    def check(self, module: ModuleType, seed: int = 0) -> Report:
        """Check every case in turn, up to the first that fails."""
        reports: list[Report] = []
        for name in self.cases or (self.name,):
            cases = self.cases_at(name, self.student_pair(module), seed)
            problem = cases[0].problem(seed)
            with rehearsal(module, self.function):
                out, cache = problem.call()
                problem.gradients(problem.upstream(out), cache)
            ours = self.cases_at(name, self.pair, seed)[0].problem(seed)
            same_forward(out, ours.call()[0], f"{self.name}_forward")
            reports.append(check_cases(name, cases, seed))
            if not reports[-1].ok:
                return reports[-1]
        return merge(reports, seed)

    def contest(self, module: ModuleType, brief: bool = False) -> Contest:
        sized = CASES[(self.cases or (self.name,))[0]](np.random.default_rng(0), BRIEF if brief else TIMED)
        return duel(self.student_pair(module), self.pair, sized.inputs, sized.names, sized.kwargs)


def duel(theirs: Pair, ours: Pair, inputs: Sequence[Any], names: Sequence[str], kwargs: dict[str, Any]) -> Contest:
    """Return both backwards, each with its own forward's cache, in float32."""
    inputs = [x.astype(np.float32) if is_floating(x) else x for x in inputs]

    def ready(forward: Callable, backward: Callable) -> Callable[[], Any]:
        out, cache = forward(*inputs, **kwargs)
        dout = map_leaves(lambda y: np.random.default_rng(1).standard_normal(y.shape, np.float32), out)
        return lambda: backward(dout, cache)

    return Contest(ready(*theirs), ready(*ours), f"{names[0]} {np.shape(inputs[0])}, float32")


@dataclass(frozen=True)
class BlockExercise(OpExercise):
    """block_backward, which writes the parameters' gradients into g."""

    @property
    def pair(self) -> Pair:
        return block_forward, block_backward

    def cases_at(self, name: str, pair: Pair, seed: int) -> list[Case]:
        return [block_case(pair, config, leading, seed) for config, leading in BLOCKS]

    def contest(self, module: ModuleType, brief: bool = False) -> Contest:
        config = Config(V=1, T_max=1, d=32 if brief else 128, h=4, L=1)
        x, params = block_inputs(config, (2, 64) if brief else (4, 64), seed=0)
        theirs = on_arrays(*self.student_pair(module), tuple(params), config)
        ours = on_arrays(*self.pair, tuple(params), config)
        return duel(theirs, ours, (x, *params.values()), ("x",), {})


def block_case(pair: Pair, config: Config, leading: tuple[int, int], seed: int) -> Case:
    """Return a block's pair at x (*leading, d)."""
    x, params = block_inputs(config, leading, seed)
    forward, backward = on_arrays(*pair, tuple(params), config)
    return Case(forward, backward, (x, *params.values()), ("x", *params), invariants=[causal("x"), key_bias_zero()])


def block_inputs(config: Config, leading: tuple[int, int], seed: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Draw x (B, T, d) and one block's parameters."""
    model = Model(config, seed=None, dtype="float64")
    randomise(model.params, seed)
    return np.random.default_rng(seed).standard_normal((*leading, config.d)), model.params.block(0)


def on_arrays(forward: Callable, backward: Callable, names: tuple[str, ...], config: Config) -> Pair:
    """Return a block's pair as the checker wants one: arrays in, their gradients out."""

    def arrays_forward(x: Any, *params: Any) -> tuple[Any, tuple]:
        out, cache = forward(x, dict(zip(names, params)), config)
        return out, (cache, [p.shape for p in params])

    def arrays_backward(dx: Any, cache: tuple) -> tuple:
        cache, shapes = cache
        # NaN: a gradient that is added to, or bound to another array, is not written into g
        grads = [np.full(shape, np.nan, dx.dtype) for shape in shapes]
        dx = backward(dx, cache, dict(zip(names, grads)))
        for name, grad in zip(names, grads):
            if grad.size and np.isnan(grad).all():
                raise ValueError(f'g["{name}"] is never set: write into it, g["{name}"][...] = d{name}')
        return dx, *grads

    return arrays_forward, arrays_backward


def indented(text: str) -> str:
    return text.replace("\n", "\n    ")
