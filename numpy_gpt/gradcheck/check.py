"""The check of one pair forward/backward."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .compare import compare
from .contract import REFUSED, clauses, linearity, nudged, others, writes
from .diagnosis import diagnose
from .directions import compare_direction, draw, through
from .numeric import EPS, ROUGH, SAFETY, roughness
from .problem import FAILURES, Backward, Forward, Problem, largest, prepare
from .report import Line, Report, Verdict
from .sides import Sides
from .trees import flatten

ELSEWHERE = "other inputs"
DRAWS = 8  # of other inputs, until one lies at no kink
NEARLY = 1e-6  # of a tensor's largest magnitude: what more is wrong is no matter of rounding


def check(
    forward: Forward,
    backward: Backward,
    *inputs: Any,
    seed: int = 0,
    wrt: Sequence[str | int] | None = None,
    out_names: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    kwargs: dict[str, Any] | None = None,
    invariants: Sequence[Callable] = (),
    contract: bool = True,
    leading: Sequence[str] = (),
    zero: Sequence[str] = (),
    directions: int = 0,
) -> Report:
    """Check backward against forward at inputs: every element of every gradient, and the op's contract.

        out, cache = forward(*inputs, **kwargs)
        grads      = backward(dout, cache)       in the order of the floating-point inputs, or by name: {"dx": ...}

    seed        decides the upstream gradient, standard normal, and every other draw
    wrt         names or numbers of the inputs to check; default: every floating-point one
    names       of the inputs, default the forward's own; out_names: of the outputs
    invariants  functions of `invariants.py`, or of your own: Problem -> list of Line
    contract    also check purity, repetition, floating-point warnings, memory layouts, dtype, and float32's numbers
    leading     inputs whose leading axes are free: checks that one or two more of size 1 in front change no number
    zero        inputs whose gradient is 0 in theory: VACUOUS is then what is expected
    directions  where the elements are too many: compare each gradient along so many random directions instead

    `assert check(...).ok` is a test. Raises ValueError for inputs that cannot be checked; what
    forward and backward raise themselves becomes a line of the report.
    """
    problem = prepare(
        forward,
        backward,
        inputs,
        names=names,
        wrt=wrt,
        kwargs=dict(kwargs or {}),
        seed=seed,
        out_names=list(out_names or ()),
        leading=tuple(leading),
        zero=tuple(zero),
        directions=directions,
    )
    return run(problem, invariants, contract)


def run(problem: Problem, invariants: Sequence[Callable] = (), contract: bool = True) -> Report:
    """Run every check of problem."""
    start = time.perf_counter()
    with np.errstate(all="ignore"):
        lines = attempt("call", lambda: compare_gradients(problem))
        if lines[0].check == "call":  # it raised, or had no gradient to give: nothing else can be asked of it
            invariants, contract = (), False
        elif any(line.check == "gradient missing" for line in lines):
            lines.append(Line("", "contract", Verdict.SKIPPED, note="asked once every gradient is there"))
            invariants, contract = (), False
        else:
            lines += attempt("linearity", lambda: [linearity(problem)])
            if all(line.verdict is not Verdict.WRONG for line in lines):
                lines += attempt(ELSEWHERE, lambda: elsewhere(problem))
        for name, clause in clauses(problem).items() if contract else ():
            if name == "memory layouts" and any(map(writes, lines)):  # read-only arrays would tell the same again
                note = "asked once nothing is written into"
                lines.append(Line("", name, Verdict.SKIPPED, note=note))
            else:
                lines += attempt(f"contract: {name}", partial(clause, problem))
        for invariant in invariants:
            lines += attempt("invariant", partial(invariant, problem))
    lines.sort(key=lambda line: not writes(line))  # first what may be the cause of the others
    for line in lines:
        line.target, line.seed, line.reproduce = problem.target, problem.seed, problem.reproduce
    return Report(lines, problem.notices, problem.seed, time.perf_counter() - start)


def attempt(check: str, make: Callable[[], list[Line]]) -> list[Line]:
    """Return make()'s lines; what forward or backward raises inside becomes a WRONG line."""
    try:
        return make()
    except FAILURES as error:  # all of it belongs in the report
        frame = traceback.extract_tb(error.__traceback__)[-1]
        note = f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})"
        return [Line("", check, Verdict.WRONG, note=note)]


def compare_gradients(problem: Problem) -> list[Line]:
    out, cache = problem.call()
    y = flatten(out)
    found = zip(problem.differentiable, problem.gradients(problem.upstream(out), cache))
    grads = {number: grad for number, grad in found if number in problem.wrt}
    sides = Sides(problem, y, flatten(problem.upstream(out)))
    compare_one = projections if problem.directions else compare_tensor
    lines = [line for number, grad in grads.items() for line in compare_one(problem, sides, number, grad)]
    if any(line.verdict is Verdict.INCONCLUSIVE for line in lines):  # these elements take part in every direction
        note = "not asked where an element is inconclusive"
        lines.append(Line("⟨u, Jv⟩", "adjoint", Verdict.SKIPPED, note=note))
    else:
        lines += adjoint(problem, sides.y, sides.u, grads)
    return [*lines, float64_throughout(problem, sides)]


def compare_tensor(problem: Problem, sides: Sides, number: int, grad: Any) -> list[Line]:
    """Return the lines of one gradient: real differences, and the complex step where it means something."""
    name, shape = f"d{problem.names[number]}", problem.inputs[number].shape
    if grad is None:
        note = f"the backward gives None for {name}; the input is of floating point, so it has a gradient"
        return [Line(name, "gradient missing", Verdict.WRONG, note=note, shape=shape)]
    found = np.asarray(grad, np.float64)
    real, imaginary, reason = sides.estimates(number, found if found.shape == shape else np.zeros(shape))
    lines = []
    for check_name, numeric in (("differences", real), ("complex step", imaginary)):
        if numeric is None:
            line = Line(name, check_name, Verdict.SKIPPED, note=reason, shape=shape)
        elif found.shape != shape:
            note = f"the backward gives shape {found.shape}, but {problem.names[number]} has shape {shape}"
            line = Line(name, check_name, Verdict.WRONG, note=note, shape=shape)
        else:
            line = compare(name, check_name, found, numeric)
            line.expected = problem.names[number] in problem.zero
        lines.append(line)
    wrong = [line for line in lines if line.verdict is Verdict.WRONG]
    if wrong and ill_conditioned(problem, number, found, wrong):
        wrong = []
    if wrong:
        try:
            diagnosis = diagnose(problem, sides, number, found, real if imaginary is None else imaginary)
        except FAILURES:  # a forward may refuse the inputs that a diagnosis tries; what is wrong stands without it
            diagnosis = ""
        for line in wrong:
            line.diagnosis = diagnosis
    return lines


def ill_conditioned(problem: Problem, number: int, analytic: np.ndarray, wrong: list[Line]) -> bool:
    """Call small errors INCONCLUSIVE where the last bits of the inputs make as much of a difference to the gradient."""
    if not np.isfinite(analytic).all() or any(line.relative is None or line.relative > NEARLY for line in wrong):
        return False
    try:
        out, cache = problem.call(nudged(problem, EPS))
    except FAILURES:  # a forward may refuse what is next to the inputs
        return False
    moved = problem.gradients(problem.upstream(out), cache)[problem.differentiable.index(number)]
    rounding = SAFETY * float(np.abs(moved - analytic).max(initial=0))
    if not all((line.worst or 0) <= rounding for line in wrong):
        return False
    for line in wrong:
        line.verdict = Verdict.INCONCLUSIVE
        line.note = f"ill-conditioned: the inputs' own rounding moves the gradient by {rounding / SAFETY:.2g}"
    return True


def projections(problem: Problem, sides: Sides, number: int, grad: Any) -> list[Line]:
    """Compare one gradient along random directions, where its elements are too many."""
    name, shape = problem.names[number], problem.inputs[number].shape
    if np.shape(grad) != shape:
        note = f"the backward gives shape {np.shape(grad)}, but {name} has shape {shape}"
        return [Line(f"d{name}", "projection", Verdict.WRONG, note=note, shape=shape)]
    rng, lines = problem.rng(f"projections of {name}"), []
    for _ in range(problem.directions):
        v = draw(problem, [number], rng)
        walk, size = through(problem, v)
        line = compare_direction(f"⟨d{name}, v⟩", "projection", walk, sides.y, sides.u, size, [(grad, v[number])])
        line.shape, line.expected = shape, name in problem.zero
        lines.append(line)
    return lines


def adjoint(problem: Problem, y: np.ndarray, u: np.ndarray, grads: dict[int, Any]) -> list[Line]:
    """⟨u, J v⟩ = ⟨Jᵀ u, v⟩ for one random direction v through all compared inputs at once.

    The left side is one slope of the forward, the right one is the backward's: a check that
    costs a few forwards whatever the number of inputs.
    """
    if any(grad is None or np.shape(grad) != problem.inputs[number].shape for number, grad in grads.items()):
        return []
    if not any(problem.inputs[number].size for number in grads):
        return []
    directions = draw(problem, grads, problem.rng("adjoint"))
    walk, size = through(problem, directions)
    pairs = [(grad, directions[number]) for number, grad in grads.items()]
    line = compare_direction("⟨u, Jv⟩", "adjoint", walk, y, u, size, pairs)
    line.expected = {problem.names[number] for number in problem.wrt} <= set(problem.zero)
    if line.verdict is Verdict.INCONCLUSIVE:  # then the elements, each compared by itself, decide
        note = "the random direction meets a kink, or noise"
        return [Line(line.name, "adjoint", Verdict.SKIPPED, note=note)]
    return [line]


def elsewhere(problem: Problem) -> list[Line]:
    """The adjoint at other inputs: what is right at the first call only keeps something of it.

    A matrix that is transposed once and remembered by its shape gives right gradients until the
    weights change, as they do in training.
    """
    lines: list[Line] = []
    for draw_number in range(DRAWS):  # a draw can lie at a kink
        inputs = others(replace(problem, seed=problem.seed + draw_number))
        if inputs is None:
            return [Line("⟨u, Jv⟩", ELSEWHERE, Verdict.SKIPPED, note=REFUSED)]
        lines = adjoint_at(replace(problem, inputs=inputs))
        if all(line.verdict is not Verdict.SKIPPED for line in lines):
            break
    return lines


def adjoint_at(there: Problem) -> list[Line]:
    """Return the adjoint's lines at other inputs, which are those of there."""
    out, cache = there.call()
    upstream = there.upstream(out)
    grads = dict(zip(there.differentiable, there.gradients(upstream, cache)))
    lines = adjoint(there, flatten(out), flatten(upstream), {number: grads[number] for number in there.wrt})
    for line in lines:
        line.check = ELSEWHERE
        if line.verdict is Verdict.WRONG:
            line.diagnosis = "right at the given inputs, wrong at others: is something kept from an earlier call?"
        elif line.verdict is Verdict.VACUOUS and not line.expected:
            line.verdict, line.note = Verdict.SKIPPED, "the gradient is 0 at the other inputs"
    return lines


def float64_throughout(problem: Problem, sides: Sides) -> Line:
    """The forward computes in float64: rounding to float32 on the way would leave 1e-3 of a slope, or less."""
    directions = draw(problem, problem.wrt, problem.rng("roughness"))
    walk, _ = through(problem, {number: v * at_most_1(problem.inputs[number]) for number, v in directions.items()})
    found, speed = roughness(walk, sides.y, sides.u)
    rough = found > ROUGH + SAFETY * EPS * largest(problem.inputs[number] for number in problem.wrt) * speed
    note = f"the forward moves in jumps, {found:.1g} of its size: does it compute in float32, round, or draw at random?"
    return Line(
        "out", "float64 throughout", Verdict.INCONCLUSIVE if rough else Verdict.PASS, note=note if rough else ""
    )


def at_most_1(x: np.ndarray) -> float:
    """Return the largest magnitude of small inputs, on whose length a forward may bend; else 1."""
    return min(1.0, float(np.abs(x[np.isfinite(x)]).max(initial=0))) or 1.0
