"""The kill matrix: every mutant against every check, and against three checkers of the usual kind.

python tests/gradcheck/mutants/matrix.py                              prints it
python tests/gradcheck/mutants/matrix.py --write docs/kill-matrix.md  and keeps it
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, wraps
from pathlib import Path
from typing import Any

import numpy as np
from mutate import FUNCTIONS, Mutant, mutants, namespace
from planted import PLANTED, Planted

from numpy_gpt.config import Config
from numpy_gpt.gradcheck import Report
from numpy_gpt.gradcheck.cases import (
    CASES,
    Case,
    Sizes,
    cross_entropy_none,
    gelu_far,
    in_place,
    layernorm_constant,
    weights,
)
from numpy_gpt.gradcheck.check import run
from numpy_gpt.gradcheck.models import model_invariants, model_problem, randomise
from numpy_gpt.gradcheck.problem import Problem, is_floating
from numpy_gpt.gradcheck.trees import flatten, leaves, map_leaves

SEED = 0
SIZES = Sizes(B=(2,), T=4, h=3, d_head=2, V=5)
BLOCK = Config(V=5, T_max=4, d=4, h=2, L=1)
MODELS = {
    "model": Config(V=5, T_max=4, d=3, h=1, L=2),
    "model_blocked": Config(V=5, T_max=4, d=3, h=1, L=1),
    "model_logits": Config(V=5, T_max=4, d=3, h=1, L=1),
    "model_untied": Config(V=5, T_max=4, d=3, h=1, L=1, tie=False, norm="post"),
}
IDX = ((1, 3, 1), (0, 1, 4))  # no array: a mutant that writes into its ids must not reach the next one's

CHECKS = ("differences", "complex step", "adjoint", "linearity", "contract", "invariants")
BASELINES = ("float32", "ones", "projection")

# Where a function's mutants are checked: in turn, until one of these catches it. What passes them all
# is checked inside a model too, whole and in small blocks, where what it does with out= matters.
TARGETS = {function: [function.removesuffix("_backward")] for function in FUNCTIONS}
TARGETS |= {
    "softmax_backward": ["softmax", "softmax_masked"],
    "attend_backward": ["attend", "attend_plain"],
    "attend_tiled_backward": ["attend_tiled", "attend_tiled_plain"],
    "mlp_backward": ["mlp", "mlp_exact"],
    "cross_entropy_backward": ["cross_entropy", "cross_entropy_none"],
    "Model.backward": ["model", "model_logits", "model_untied"],
    "Model.loss_backward": ["model"],
}
FALLBACKS = ["model", "model_blocked"]


# What a failing line must say (a regular expression) to have named the kind of fault. A kind for which
# the checker has no words counts as not named.
FACTOR = "times the right one|another factor"
ORDER = "this is d|order of the forward's inputs"
AXIS = r"summed|mean was taken|axis \d|axes \d"
TERM = "not subtracted|is missing|another factor|is 0 everywhere|has to be added"
NAMES = {
    "flip-sign": r"sign (is|of .* is) flipped|every element is −|is -1 times the right one|another factor",
    "wrong-factor": FACTOR,
    "drop-factor": f"{FACTOR}|left out|is missing|right for an upstream of ones",
    "inverse-factor": FACTOR,
    "factor-twice": FACTOR,
    "wrong-power": FACTOR,
    "branch-lost": FACTOR,
    "branch-always": FACTOR,
    "drop-function": FACTOR,
    "wrong-reduction": f"{FACTOR}|{AXIS}",
    "drop-term": TERM,
    "drop-op": TERM,
    "forget-write": "is 0 everywhere|NaN",
    "out-ignored": "is 0 everywhere|NaN|out= is written",
    "overwrite": f"{TERM}|keeps only the last|only: the others have to be added",
    "repeats-lost": "keeps only the last",
    "transpose-lost": "transposed",
    "swap-operands": "transposed",
    "reshape-for-transpose": "reshaped where a transpose",
    "wrong-axis": AXIS,
    "keepdims-lost": f"{AXIS}|shape|not subtracted",
    "keepdims-added": f"{AXIS}|shape",
    "wrong-variable": f"{ORDER}|stands in its order|itself: a factor is left out",
    "swap-returns": ORDER,
    "wrong-order": ORDER,
    "wrong-slice": ORDER,
    "off-by-one": "off by one",
    "mask-lost": "mask|rows sum to 0|not subtracted",
    "mask-inverted": "mask",
    "guard-lost": "NaN|divide by zero",
    "stale-cache": "another call in between|second backward",
    "in-place": "wrote into",
    "write-upstream": "wrote into dout",
    "write-cache": "wrote into (cache|inputs)",
    "buffer-reused": "overwrites the first",
    "upstream-ignored": "right for an upstream of ones",
    "upstream-clipped": "linearity",
    "float32-inside": "float32 inside",
    "dtype-promoted": "float32 in, .* is float64",
}


# Reviewed by hand: the same function written otherwise. The tests hold each to the right one within 1e-12.
SAME_ARRAY = "softmax's cache is its output: attn and cache_softmax are one array"
OWN_ARRAY = "dx is by then an array that the function has made itself, neither the upstream nor the cache"
ANY_BLOCKS = "one block or several: the numbers are the same, only the time is not"
EQUIVALENT = {
    "embedding_rows_backward:L6 keepdims-added `dx.reshape(-1, T, d).sum(axis=0)` → "
    "`dx.reshape(-1, T, d).sum(axis=0, keepdims=True)`": "(1, T, d) assigned to (T, d) is the same numbers",
    "embedding_backward:L7 keepdims-added `dx.reshape(-1, T, d).sum(axis=0)` → "
    "`dx.reshape(-1, T, d).sum(axis=0, keepdims=True)`": "(1, T, d) assigned to (T, d) is the same numbers",
    "attend_backward:L5 wrong-variable `attn` → `cache_softmax`": SAME_ARRAY,
    "attend_backward:L6 wrong-variable `cache_softmax` → `attn`": SAME_ARRAY,
    "block_backward:L8 in-place `dx = dx + dy` → `dx += dy; dx = dx`": OWN_ARRAY,
    "post_norm_block_backward:L5 in-place `dx = dx + dy` → `dx += dy; dx = dx`": OWN_ARRAY,
    "post_norm_block_backward:L8 in-place `dx = dx + dy` → `dx += dy; dx = dx`": OWN_ARRAY,
    "gelu_blocked_backward:L9 wrong-variable `dy` → `dx`": "dy and dx have one size, and only that is read",
    "attend_tiled_backward:L5 wrong-variable `q` → `k`": "q and k have one shape, and only that is read",
    "layernorm_blocked_backward:L2 branch-lost `if one_block(dy): "
    "return layernorm_backward(dy, cache, out)` → "
    "`if False: pass`": ANY_BLOCKS,
    "layernorm_blocked_backward:L2 branch-always `if one_block(dy): "
    "return layernorm_backward(dy, cache, out)` → "
    "`return layernorm_backward(dy, cache, out)`": ANY_BLOCKS,
    "cross_entropy_blocked_backward:L3 branch-lost `if len(blocks) == 1: return cross_entropy_backward(dloss, "
    "blocks[0][2]).reshape(shape)` → `if False: pass`": ANY_BLOCKS,
    "cross_entropy_blocked_backward:L3 wrong-variable `blocks` → `shape`": ANY_BLOCKS,
}


# Subjects: a Problem made from a namespace, the real one or a mutant's.


def subject(
    target: str, make_names: Callable[..., dict] = namespace, seed: int = SEED, sizes: Sizes = SIZES
) -> tuple[Problem, Sequence[Callable]]:
    """Return the Problem and the invariants of target, with the functions of a new namespace."""
    op, in_blocks = re.fullmatch(r"(.*?)(_blocked|_tiled)?(?:_plain)?", target).groups()
    names = make_names(small_blocks=in_blocks is not None)
    rng = np.random.default_rng(seed)
    if target in MODELS:
        return model_subject(target, names, seed)
    if target in ("block", "post_norm_block"):
        case = block(rng, names, target)
        return case.problem(seed, target=target), case.invariants
    if target == "embedding_rows":
        pair = names["embedding_forward"], in_place(names["embedding_rows_backward"])
        return CASES["embedding"](rng, sizes).problem(seed, target=target, pair=pair), []
    make_case = CORNERS.get(target) or CASES[target.replace(in_blocks or "", "")]
    case = make_case(rng, sizes)
    pair = names[case.forward.__name__], names[case.backward.__name__]
    if in_blocks:
        pair = names[f"{op}{in_blocks}_forward"], names[f"{op}{in_blocks}_backward"]
    return case.problem(seed, target=target, pair=pair), case.invariants


def model_subject(target: str, names: dict, seed: int) -> tuple[Problem, Sequence[Callable]]:
    """A small Model from parameters to loss, as `check_model` takes it.

    "model_logits" goes to the logits instead, whose upstream can be anything; "model_untied" writes
    its gradients into used ones, as the training loop does.
    """
    model, idx = names["Model"](MODELS[target], dtype="float64"), np.array(IDX)
    randomise(model.params, seed)
    problem = model_problem(model, idx, None, seed, to_logits=target == "model_logits")
    problem.target = target
    if target == "model_logits":
        return problem, []

    def into_used(dloss: Any, cache: tuple) -> dict:
        params, cache = cache
        twin = copy.copy(model)
        twin.params, grads = params, params.zeros_like()
        grads.flat[...] = np.nan
        return dict(twin.loss_backward(dloss, cache, grads))

    if target == "model_untied":
        problem.backward = into_used
    return problem, model_invariants(model, idx, None)


def block(rng: np.random.Generator, names: dict, target: str) -> Case:
    """A whole block: x and its parameters in, dx and their gradients out, written over what was there."""
    block_forward, block_backward = names[f"{target}_forward"], names[f"{target}_backward"]
    shapes = {name: shape for name, shape in BLOCK.parameter_shapes().items() if name.startswith("block.0.")}
    parameters = {
        name.removeprefix("block.0."): weights(rng, *shape) if len(shape) == 2 else rng.standard_normal(shape)
        for name, shape in shapes.items()
    }
    x = rng.standard_normal((2, 3, BLOCK.d))

    def forward(x: np.ndarray, *values: np.ndarray) -> tuple:
        return block_forward(x, dict(zip(parameters, values)), BLOCK)

    def backward(dx: np.ndarray, cache: tuple) -> tuple:
        g = {name: np.full(value.shape, np.nan, dx.dtype) for name, value in parameters.items()}
        dx = block_backward(dx, cache, g)
        return dx, *g.values()

    return Case(forward, backward, (x, *parameters.values()), ("x", *parameters), leading=("x",))


# Inputs at which only some bugs show. In a square, an axis that is lost broadcasts all the same.
SQUARE = Sizes(B=(), T=4, h=2, d_head=2, V=4)
CORNERS = {
    "cross_entropy_none": cross_entropy_none,
    "gelu_far": gelu_far,
    "layernorm_constant": layernorm_constant,
    "layernorm_square": lambda rng, _: CASES["layernorm"](rng, SQUARE),
    "softmax_square": lambda rng, _: CASES["softmax"](rng, SQUARE),
}


class CacheForgotten(BaseException):
    """A backward was handed the cache of a forward that was only remembered."""


class Remembered:
    """A forward's outputs, computed once at each point: hundreds of mutants share the numeric side.

    Only numbers are shared. Every check computes with a forward of its own, and a point whose cache a
    backward has used is computed anew each time, for a mutant may write into it. What a check has
    seen is forgotten if the forward is not afterwards what it was before.
    """

    def __init__(self) -> None:
        self.outs: dict[tuple, Any] = {}
        self.needed: set[tuple] = set()

    def check(self, problem: Problem, invariants: Sequence[Callable]) -> Report:
        """Check the problem, its forward helped by what is remembered."""
        forward, backward = problem.forward, problem.backward
        fresh: dict[int, tuple] = {}  # by the cache's id: what this check is the first to see

        def helped(*inputs: Any, **kwargs: Any) -> tuple:
            point = place(inputs)
            if point in self.outs:
                return self.outs[point], CacheForgotten
            out, cache = forward(*inputs, **kwargs)
            fresh[id(cache)] = map_leaves(np.array, out), cache, point
            return out, cache

        @wraps(backward)  # a check looks whether it takes out=
        def watched(dout: Any, cache: Any, **kwargs: Any) -> Any:
            if cache is CacheForgotten:
                raise CacheForgotten(problem.target)
            if id(cache) in fresh:
                self.needed.add(fresh[id(cache)][2])
            return backward(dout, cache, **kwargs)

        before = flatten(problem.call()[0])
        problem.forward, problem.backward = helped, watched
        report = run(problem, invariants)
        problem.forward, problem.backward = forward, backward
        if unchanged(problem, before):
            self.outs |= {point: out for out, _, point in fresh.values() if point not in self.needed}
        return report


def unchanged(problem: Problem, before: np.ndarray) -> bool:
    """Return whether the problem's forward still gives what it gave before."""
    try:
        return np.array_equal(flatten(problem.call()[0]), before, equal_nan=True)
    except Exception:  # its inputs are no more what they were
        return False


def place(inputs: Sequence[Any]) -> tuple:
    """Return what tells a point from all others: its numbers (as a hash), dtypes and memory layout."""
    arrays = [x if isinstance(x, np.ndarray) else np.asarray(x) for x in inputs]
    layout = tuple((x.dtype.char, x.shape, x.strides, x.flags.writeable) for x in arrays)
    return layout, hashlib.blake2b(b"".join([x.tobytes() for x in arrays]), digest_size=16).digest()


@cache
def remembered(target: str) -> Remembered:
    """Return the target's memory, with the right op's check behind it. Raises AssertionError if that fails."""
    problem, invariants = subject(target)
    memory = Remembered()
    report = memory.check(problem, invariants)
    assert report.ok, f"the right {target} fails:\n{report}"
    return memory


# What became of a mutant.


@dataclass
class Outcome:
    """What became of one mutant.

    error     its backward raises: anything that calls it finds out
    checks    the checks that caught it
    raised    the checks in which it raised, though a single call does not
    named     a message names the kind of fault
    said      what the messages say
    usual     those of the three usual checkers that caught it
    """

    id: str
    op: str
    fault: str
    error: bool = False
    checks: set[str] = field(default_factory=set)
    raised: set[str] = field(default_factory=set)
    named: bool = False
    said: str = ""
    usual: set[str] = field(default_factory=set)

    @property
    def caught(self) -> bool:
        return self.error or bool(self.checks or self.raised)


def outcome(mutant: Mutant, compare_usual: bool = False) -> Outcome:
    """Check the mutant at its op's targets; if all pass, inside a model."""
    found = Outcome(mutant.id, mutant.function.removesuffix("_backward"), mutant.fault)
    targets = TARGETS[mutant.function]
    for target in dict.fromkeys((*targets, *FALLBACKS)):
        if target in FALLBACKS and target not in targets and (found.caught or mutant.id in EQUIVALENT):
            break
        if not found.error and not found.checks:
            examine_at(target, mutant, found, NAMES[mutant.fault])
        if compare_usual:
            found.usual |= usual_at(target, mutant)
    return settled(found)


def settled(found: Outcome) -> Outcome:
    """Return the outcome; only what nothing but exceptions inside later checks caught is put down to those checks."""
    if not found.error and not found.checks:
        found.checks |= found.raised
    return found


def planted_outcome(planted: Planted, compare_usual: bool = False) -> Outcome:
    """Check a bug planted by hand."""
    mutant = planted.mutant()
    op = mutant.function.removesuffix("_backward").removesuffix("_forward")
    found = Outcome(mutant.id, op, mutant.fault)
    for target in planted.targets or TARGETS[mutant.function]:
        if not found.error and not found.checks:
            examine_at(target, mutant, found, planted.names)
        if compare_usual:
            found.usual |= usual_at(target, mutant)
    return settled(found)


def usual_at(target: str, mutant: Mutant) -> set[str]:
    """Return which of the usual checkers catch a mutant at a target, those left out that fail the right op there."""
    return caught_by_usual(target, mutant.namespace) - false_alarms(target)


def control(target: str) -> Report:
    """Check the right op with the memory that the mutants have used: if that fails, they have reached each other."""
    return remembered(target).check(*subject(target))


def examine_at(target: str, mutant: Mutant, found: Outcome, names: str) -> None:
    """Check a mutant at one target, and add to its outcome what the report says."""
    problem, invariants = subject(target, mutant.namespace)
    if mutant.function.endswith("_forward"):
        report = run(problem, invariants)
    else:
        report = remembered(target).check(problem, invariants)
    for line in report.failures:
        check = category(line.check)
        found.error |= check == "error"
        undefined = re.search(r"NameError: name '(\w+)'", line.note)
        assert not undefined or binds(mutant.source, undefined[1]), f"{mutant.id}: our own slip, {line.note}"
        raised = not line.name and line.check.partition(":")[0] in ("contract", "invariant", "linearity")
        (found.raised if raised else found.checks).update({check} - {"error"})
        found.said += f"{line.name} {line.check}: {line.note} {line.diagnosis}\n"
    found.named |= not found.error and re.search(names, found.said) is not None


def binds(source: str, name: str) -> bool:
    """Return whether a function's source gives name a value somewhere, if out of the reach of who asks for it."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)]
    return any(node.id == name and isinstance(node.ctx, ast.Store) for node in nodes)


def category(check: str) -> str:
    if check.startswith("invariant"):
        return "invariants"
    if check in CHECKS:
        return check
    return "error" if check == "call" else "contract"


# Three checkers of the usual kind.


@dataclass
class Usual:
    """What the usual checkers hold a backward to: numbers of the forward alone, so taken once a target."""

    float32: list[np.ndarray]
    ones: list[np.ndarray]
    projection: list[list[float]]


def directions(problem: Problem, purpose: str, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return one vector for each array, uniform in [0, 1) and of length 1, as torch's fast mode draws them."""
    rng = problem.rng(purpose)
    drawn = [rng.random(np.shape(x)) for x in arrays]
    return [v / np.linalg.norm(v) for v in drawn]


def one_output_at_a_time(problem: Problem) -> Iterator[Any]:
    """Yield upstreams: torch's fast mode projects each output alone."""
    out, _ = problem.call()
    parts = [y for _, y in leaves(out)]
    drawn = directions(problem, "projected output", parts)
    for k in range(len(parts)):
        upstream = [v if j == k else np.zeros_like(v) for j, v in enumerate(drawn)]
        yield tuple(upstream) if isinstance(out, tuple) else np.asarray(upstream[0])


def real_slopes(problem: Problem, dtype: type, step: float, u: np.ndarray) -> list[np.ndarray]:
    """Return plain central differences of ⟨u, f⟩, all in dtype."""
    inputs = [x.astype(dtype) if is_floating(x) else x for x in problem.inputs]
    h, u = dtype(step), u.astype(dtype)
    slopes = []
    for number in problem.differentiable:
        x = inputs[number]
        slope = np.zeros(x.shape, dtype)
        for i in np.ndindex(x.shape):
            here = x[i].copy()
            x[i] = here + h
            up = problem.outputs(inputs) @ u
            x[i] = here - h
            down = problem.outputs(inputs) @ u
            x[i] = here
            slope[i] = (up - down) / (2 * h)
        slopes.append(slope)
    return slopes


@cache
def usual(target: str) -> Usual:
    """Return the usual checkers' numbers for a target."""
    problem, _ = subject(target)
    out, _ = problem.call()
    y = flatten(out)
    projections = []
    inputs = [problem.inputs[number] for number in problem.differentiable]
    for upstream in one_output_at_a_time(problem):
        u = flatten(upstream)
        row = []
        for number, v in zip(problem.differentiable, directions(problem, "projected input", inputs)):
            moved = [list(problem.inputs), list(problem.inputs)]
            moved[0][number] = problem.inputs[number] + 1e-6 * v
            moved[1][number] = problem.inputs[number] - 1e-6 * v
            row.append(float((problem.outputs(moved[0]) - problem.outputs(moved[1])) @ u / 2e-6))
        projections.append(row)
    upstream = flatten(problem.upstream(out))
    return Usual(
        real_slopes(problem, np.float32, 3e-3, upstream),
        real_slopes(problem, np.float64, 1e-5, np.ones_like(y)),
        projections,
    )


def caught_by_usual(target: str, make_names: Callable[..., dict]) -> set[str]:
    """Return which of the three usual checkers fail the target, each with a namespace of its own."""
    checkers = {"float32": by_float32, "ones": by_ones, "projection": by_projection}
    with np.errstate(all="ignore"):
        return {
            name for name, checker in checkers.items() if fails(checker, subject(target, make_names)[0], usual(target))
        }


def fails(checker: Callable, problem: Problem, numbers: Usual) -> bool:
    try:
        return not checker(problem, numbers)
    except Exception:  # whatever a mutant raises: to raise is to be caught
        return True


def by_float32(problem: Problem, numbers: Usual) -> bool:
    """Central differences in float32, h = 3e-3, `np.allclose(..., rtol=1e-2, atol=1e-3)`."""
    inputs = [x.astype(np.float32) if is_floating(x) else x for x in problem.inputs]
    out, cache = problem.call(inputs)
    dout = map_leaves(lambda u: u.astype(np.float32), problem.upstream(out))
    grads = problem.gradients(dout, cache)
    return all(np.allclose(grad, slope, rtol=1e-2, atol=1e-3) for grad, slope in zip(grads, numbers.float32))


def by_ones(problem: Problem, numbers: Usual) -> bool:
    """The gradient of the plain sum of the output: central differences in float64, rtol 1e-6, atol 1e-8."""
    out, cache = problem.call()
    grads = problem.gradients(map_leaves(np.ones_like, out), cache)
    return all(np.allclose(grad, slope, rtol=1e-6, atol=1e-8) for grad, slope in zip(grads, numbers.ones))


def by_projection(problem: Problem, numbers: Usual) -> bool:
    """torch.autograd.gradcheck(fast_mode=True): one number uᵀJv an input, and the same numbers twice.

    atol = 1e-5 · Σu · Σv and rtol = 1e-3, its defaults; a gradient of another size fails too.
    """
    _, cache = problem.call()
    inputs = [problem.inputs[number] for number in problem.differentiable]
    vs = directions(problem, "projected input", inputs)
    for upstream, row in zip(one_output_at_a_time(problem), numbers.projection):
        grads, again = problem.gradients(upstream, cache), problem.gradients(upstream, cache)
        for x, v, grad, second, expected in zip(inputs, vs, grads, again, row):
            if np.size(grad) != x.size or not np.array_equal(grad, second):
                return False
            allowed = 1e-5 * flatten(upstream).sum() * v.sum() + 1e-3 * abs(expected)
            if not abs(np.ravel(grad) @ v.ravel() - expected) <= allowed:
                return False
    return True


@cache
def false_alarms(target: str) -> set[str]:
    """Return which of the usual checkers fail the right op: what they say of its mutants means nothing."""
    return caught_by_usual(target, namespace)


# The page.

TITLE = """# The kill matrix

A gradient checker is worth what it catches. Here faults are planted, one at a time, in the package's
own backward functions: systematically, by rewriting their syntax trees, and by hand, as public code
got them wrong. A mutant is caught when `numpy_gpt.gradcheck` does not call it ok.

This page is generated; do not edit it. After a change to an op or to the checker, run

    python tests/gradcheck/mutants/matrix.py --write docs/kill-matrix.md
"""

USUAL_MEANING = {
    "float32": "central differences in float32: h = 3e-3, normal upstream, `np.allclose(rtol=1e-2, atol=1e-3)`",
    "ones": "the gradient of the plain sum of the outputs, float64, central differences, rtol 1e-6, atol 1e-8",
    "projection": "`torch.autograd.gradcheck(fast_mode=True)` in NumPy: one number uᵀJv an input, its vectors, "
    "its rtol 1e-3 and atol 1e-5, its test that a second backward gives the same numbers",
}


def page(found: Sequence[Outcome], by_hand: Sequence[Outcome]) -> str:
    """Return the whole page as Markdown."""
    alive = [mutant for mutant in (*found, *by_hand) if not mutant.caught and mutant.id not in EQUIVALENT]
    parts = [
        TITLE,
        summary(found, by_hand, alive),
        "## Each op\n",
        groups(found, "op", "op"),
        "## Each kind of fault\n",
        groups([mutant for mutant in found if not mutant.error], "fault", "fault"),
        "## Planted by hand\n",
        f"The last three columns are {', '.join(f'{name}' for name in BASELINES)}: the usual checkers.\n",
        rows(by_hand, {planted.mutant().id: planted.report for planted in PLANTED}),
        "## Equivalent mutants\n",
        "The same function written otherwise: the tests hold each to the right one within 1e-12.\n",
        table(["mutant", "why it is no fault"], [[f"{escaped(id)}", why] for id, why in EQUIVALENT.items()]),
        "## Every mutant\n",
        "● caught. A mutant that raises is caught by whoever calls it, and is marked `error`.\n",
        *(
            f"### {op}\n\n{rows([mutant for mutant in found if mutant.op == op])}"
            for op in dict.fromkeys(mutant.op for mutant in found)
        ),
    ]
    return "\n".join(parts)


def summary(found: Sequence[Outcome], by_hand: Sequence[Outcome], alive: Sequence[Outcome]) -> str:
    """Return the numbers that matter, and what each check and each usual checker adds."""
    everything = [*found, *by_hand]
    faulty = [mutant for mutant in everything if mutant.id not in EQUIVALENT]
    raised = [mutant for mutant in faulty if mutant.error]
    quiet = [mutant for mutant in faulty if not mutant.error]
    caught = [mutant for mutant in quiet if mutant.caught]
    named = [mutant for mutant in caught if mutant.named]
    numbers = table(
        ["", "mutants"],
        [
            ["planted systematically", str(len(found))],
            ["planted by hand", str(len(by_hand))],
            ["equivalent, and proven so", str(len(everything) - len(faulty))],
            ["raise an error", str(len(raised))],
            ["give a wrong result in silence", str(len(quiet))],
            ["… of these caught by the checker", f"**{len(caught)}**"],
            ["… of these not caught", f"**{len(alive)}**"],
            [
                "… of these named: what fails, or its message, tells the kind of fault",
                count(named, caught),
            ],
        ],
    )
    checks = [[name, *added(quiet, name)] for name in CHECKS]
    numbers_wrong = [mutant for mutant in quiet if mutant.checks & {"differences", "complex step"}]
    others = []
    for name in BASELINES:
        missed = [mutant for mutant in quiet if name not in mutant.usual]
        wrong = [mutant for mutant in numbers_wrong if name not in mutant.usual]
        others.append([name, USUAL_MEANING[name], count(missed, quiet), count(wrong, numbers_wrong), kinds(missed)])
    alarms = [f"{name} at {target}" for target in all_targets() for name in sorted(false_alarms(target))]
    return "\n".join(
        [
            numbers,
            "Each check of the checker, over the mutants that are wrong in silence, "
            "at the first inputs that show them:\n",
            table(["check", "catches", "alone catches", "such as"], checks),
            "What checkers of the usual kind miss of the same mutants:\n",
            table(["checker", "what it does", "misses", "of wrong numbers misses", "most of them"], others),
            "Wrong numbers: the gradient of a single call is wrong. The others break the contract: they write into "
            "what they are given, share state between calls or change the dtype.\n",
            "Where one of them fails the right op too, what it says of that op's mutants is not counted: "
            f"{', '.join(alarms) or 'nowhere'}.\n",
            *([f"Not caught: {', '.join(mutant.id for mutant in alive)}\n"] if alive else []),
        ]
    )


def all_targets() -> list[str]:
    """Return every target, those of the bugs planted by hand too."""
    targets = [*TARGETS.values(), *(planted.targets for planted in PLANTED)]
    return list(dict.fromkeys(target for group in targets for target in group))


def added(mutants_: Sequence[Outcome], check: str) -> list[str]:
    """Return how many mutants a check catches, how many no other does, and the kinds of the latter.

    Differences and complex step are two measures of one thing, so each counts as the other's equal.
    """
    twins = {"differences", "complex step"} if check in ("differences", "complex step") else {check}
    alone = [mutant for mutant in mutants_ if check in mutant.checks and mutant.checks <= twins]
    return [str(sum(check in mutant.checks for mutant in mutants_)), str(len(alone)), kinds(alone)]


def kinds(mutants_: Sequence[Outcome]) -> str:
    """Return the most frequent kinds of fault with their numbers."""
    counts = Counter(mutant.fault for mutant in mutants_)
    return ", ".join(f"{fault} {count}" for fault, count in counts.most_common(5))


def count(part: Sequence, whole: Sequence) -> str:
    """Return how many, and what share of the whole that is."""
    return f"{len(part)} ({100 * len(part) / max(len(whole), 1):.0f}%)"


def groups(mutants_: Sequence[Outcome], attribute: str, title: str) -> str:
    """Return the counts by op or by kind of fault."""
    lines = []
    for name in sorted({getattr(mutant, attribute) for mutant in mutants_}):
        group = [mutant for mutant in mutants_ if getattr(mutant, attribute) == name]
        quiet = [mutant for mutant in group if not mutant.error and mutant.id not in EQUIVALENT]
        lines.append(
            [
                name,
                str(len(group)),
                str(sum(mutant.error for mutant in group)),
                str(sum(mutant.id in EQUIVALENT for mutant in group)),
                str(len(quiet)),
                str(sum(mutant.caught for mutant in quiet)),
                str(sum(mutant.named for mutant in quiet)),
                *(str(sum(name in mutant.usual for mutant in quiet)) for name in BASELINES),
            ]
        )
    heads = [title, "mutants", "error", "equivalent", "silent", "caught", "named", *BASELINES]
    return table(heads, lines)


def rows(mutants_: Sequence[Outcome], reports: dict[str, str] | None = None) -> str:
    """Return one line a mutant, with a mark for every check that caught it."""
    lines = []
    for mutant in mutants_:
        state = "error" if mutant.error else "equivalent" if mutant.id in EQUIVALENT else ""
        marks = [mark(check in mutant.checks) for check in CHECKS]
        name = mutant.id if reports is not None else within_its_op(mutant.id)
        report = [reports.get(mutant.id, "")] if reports is not None else []
        lines.append(
            [escaped(name), *report, state, *marks, mark(mutant.named), *(mark(b in mutant.usual) for b in BASELINES)]
        )
    heads = ["mutant", *(["report"] if reports is not None else []), "", *CHECKS, "named", *BASELINES]
    return table(heads, lines)


def within_its_op(id: str) -> str:
    """Return a mutant's id as it stands under its op's heading."""
    return id.partition("_backward")[2].lstrip(":. ") or id


def mark(yes: bool) -> str:
    return "●" if yes else ""


def escaped(text: str) -> str:
    return text.replace("|", "\\|")


def table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    drawn = [f"| {' | '.join(line)} |" for line in (heads, ["---"] * len(heads), *lines)]
    return "\n".join(drawn) + "\n"


def main() -> None:
    """Check every mutant, and print or write the page; exit with 1 where one is neither caught nor equivalent."""
    parser = argparse.ArgumentParser(description="Check every mutant with every check.")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page here instead of printing it")
    parser.add_argument("--function", action="append", choices=FUNCTIONS, help="only this function's mutants")
    arguments = parser.parse_args()
    chosen = [mutant for function in arguments.function or FUNCTIONS for mutant in mutants(function)]
    start = time.perf_counter()
    found = [outcome(mutant, compare_usual=True) for mutant in chosen]
    by_hand = [planted_outcome(planted, compare_usual=True) for planted in PLANTED]
    for target in all_targets():
        assert control(target).ok, f"after its mutants the right {target} fails: they have reached each other"
    text = page(found, by_hand)
    if arguments.write:
        arguments.write.parent.mkdir(exist_ok=True)
        arguments.write.write_text(text, encoding="utf-8")
    else:
        print(text)
    alive = [mutant.id for mutant in (*found, *by_hand) if not mutant.caught and mutant.id not in EQUIVALENT]
    print(f"{len(found) + len(by_hand)} mutants in {time.perf_counter() - start:.0f} s", file=sys.stderr)
    if alive:
        sys.exit("not caught:\n" + "\n".join(alive))


if __name__ == "__main__":
    main()
