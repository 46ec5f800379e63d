"""The op contract: pure, repeatable, the same for every memory layout, rank and dtype."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .compare import near
from .problem import FAILURES, Problem, is_floating, largest
from .report import Line, Verdict
from .trees import changed, digests, flatten, leaves, map_leaves

SMALLER = 0.75
REFUSED = "the forward does not take the other inputs that were tried"
EPS_32 = float(np.finfo(np.float32).eps)
COARSE = 1e-3  # of a gradient's size: float32 mostly keeps 1e-6
FAINT = 0.1  # of the upstream
CONDITION = 30  # times what a last bit of every input changes
PROMOTED = "np.sqrt(2) and np.zeros(shape) are float64: write math.sqrt(2), or np.zeros(shape, x.dtype)"
ROUNDING = 1e-12  # of the largest magnitude: another layout or rank may add up in another order


def clauses(problem: Problem) -> dict[str, Callable[[Problem], list[Line]]]:
    """Return the clauses by name, each to be asked by itself: where one raises, the others still have their say."""
    singles = {
        "no floating-point warning": quiet,
        "interleaved calls": interleaved,
        "memory layouts": memory_layouts,
        "dtype and shape": dtypes,
        "float32 values": float32_values,
        "ranks": ranks,
    }
    if not problem.leading:
        del singles["ranks"]
    return {"purity": purity, **{name: in_a_list(clause) for name, clause in singles.items()}}


def in_a_list(clause: Callable[[Problem], Line]) -> Callable[[Problem], list[Line]]:
    return lambda problem: [clause(problem)]


def writes(line: Line) -> bool:
    """Return whether a line says that the pair has written into what is not its own."""
    return line.check.endswith(" unmodified") and not line.ok


def fact(check: str, faults: Sequence[str]) -> Line:
    """Return the line of a clause that compares no numbers: PASS without faults."""
    return Line("", check, Verdict.WRONG if faults else Verdict.PASS, note="; ".join(faults))


def purity(problem: Problem) -> list[Line]:
    """Neither forward nor backward writes into what it is given; a second call gives the same bits."""
    inputs = [np.array(x) if isinstance(x, np.ndarray) else x for x in problem.inputs]
    named = dict(zip(problem.names, inputs))
    given = digests(named, "inputs")
    out, cache = problem.call(inputs, copies=False)
    forward_wrote = changed(given, digests(named, "inputs"))
    same_out = digests(problem.call()[0], "out") == digests(out, "out")

    dout = problem.upstream(out)
    before = {place: digests(tree, place) for place, tree in (("dout", dout), ("cache", cache), ("out", out))}
    grads = problem.gradients(dout, cache, copies=False)
    bits = digests(grads, "grads")
    wrote = {
        place: changed(before[place], digests(tree, place))
        for place, tree in (("dout", dout), ("cache", cache), ("out", out))
    }
    backward_wrote = changed(given, digests(named, "inputs"))
    faults = [] if same_out else ["a second forward gives other bits"]
    faults += second_backward(problem, out, cache, grads, bits)
    return [
        fact(
            "inputs unmodified",
            [f"forward wrote into {place}" for place in forward_wrote]
            + [f"backward wrote into {place}" for place in backward_wrote if place not in forward_wrote],
        ),
        fact("upstream unmodified", [f"backward wrote into {place}" for place in wrote["dout"]]),
        fact("cache unmodified", [f"backward wrote into {place}" for place in wrote["cache"] + wrote["out"]]),
        fact("same bits twice", faults),
    ]


def second_backward(problem: Problem, out: Any, cache: Any, grads: list[Any], bits: dict[str, tuple]) -> list[str]:
    """Say what a second backward with the same cache does otherwise than the first, or to its gradients."""
    try:
        problem.gradients(problem.upstream(out, "other upstream"), cache)
        reused = changed(bits, digests(grads, "grads"))
        moved = changed(bits, digests(problem.gradients(problem.upstream(out), cache), "grads"))
    except FAILURES as error:
        return [f"a second backward with the same cache raises {type(error).__name__}: {error}"]
    faults = [f"a second backward with the same cache gives other bits in {label(problem, place)}" for place in moved]
    return faults + [f"a second backward overwrites the first one's {label(problem, place)}" for place in reused]


def quiet(problem: Problem) -> Line:
    """The backward overflows nowhere, and computes nothing like 0/0, on the way to its gradients."""
    out, cache = problem.call()
    with warnings.catch_warnings(record=True) as caught, np.errstate(over="warn", invalid="warn", divide="warn"):
        warnings.simplefilter("always")
        problem.gradients(problem.upstream(out), cache)
    told = [w for w in caught if issubclass(w.category, RuntimeWarning)]
    faults = [f"backward: {w.message} ({Path(w.filename).name}:{w.lineno})" for w in told]
    return fact("no floating-point warning", list(dict.fromkeys(faults)))


def label(problem: Problem, place: str) -> str:
    """Turn "grads[1]" into the gradient's name."""
    number = int(place.removeprefix("grads[").partition("]")[0])
    return f"d{problem.names[problem.differentiable[number]]}"


def interleaved(problem: Problem) -> Line:
    """forward(a), forward(b), backward(a) gives what forward(a), backward(a) gives: calls share nothing."""
    other = others(problem)
    if other is None:
        return Line("", "interleaved calls", Verdict.SKIPPED, note=REFUSED)
    out, cache = problem.call()
    alone = digests(problem.gradients(problem.upstream(out), cache), "grads")
    bits = digests(out, "out")

    out, cache = problem.call()
    other_out, other_cache = problem.call(other)
    shared = changed(bits, digests(out, "out"))
    problem.gradients(problem.upstream(other_out, "other upstream"), other_cache)
    after = digests(problem.gradients(problem.upstream(out), cache), "grads")
    faults = [f"another forward in between changes {place}" for place in shared]
    faults += [f"another call in between changes {label(problem, place)}" for place in changed(alone, after)]
    return fact("interleaved calls", faults)


def others(problem: Problem) -> list[Any] | None:
    """Return other inputs of the same shapes, or None where the forward takes none of those tried.

    They are made of the given ones, so that what a forward may ask of its inputs, a sign or a sum
    of 1, holds for them too: shuffled within the rows and smaller, shuffled, smaller. Ids are reversed.
    """
    rng = problem.rng("other inputs")
    shuffled = [shuffle(x, rng) if isinstance(x, np.ndarray) else x for x in problem.inputs]
    for inputs, size in ((shuffled, SMALLER), (shuffled, 1.0), (problem.inputs, SMALLER)):
        found = [np.asarray(size * x) if is_floating(x) else x for x in inputs]
        if all(np.array_equal(x, given) for x, given in zip(found, problem.inputs)):
            continue
        try:
            y = problem.outputs(found)
        except FAILURES:  # each forward refuses inputs in its own way
            continue
        if not np.isnan(y).any():
            return found
    return None


def shuffle(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return x with each row in another order, ids in reverse, and a mask as it is."""
    if is_floating(x) and x.ndim:
        return rng.permuted(x, axis=-1)
    return np.flip(x) if x.dtype.kind in "iu" else x


def nudged(problem: Problem, size: float) -> list[Any]:
    """Return the inputs, each number moved up or down by so small a part of itself."""
    rng = problem.rng("nudge")
    return [x * (1 + size * rng.choice([-1, 1], x.shape)) if is_floating(x) else x for x in problem.inputs]


def strided(x: np.ndarray) -> np.ndarray:
    if x.ndim == 0:
        return x
    big = np.zeros([2 * n + 1 for n in x.shape], x.dtype)
    view = big[tuple(slice(1, None, 2) for _ in x.shape)]
    view[...] = x
    return view


def read_only(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x.flags.writeable = False
    return x


LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Fortran order": np.asfortranarray,
    "strided": strided,
    "negative strides": lambda x: np.flip(np.flip(x).copy()),
    "read-only": read_only,
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape) if x.ndim and x.size else x,
}


def memory_layouts(problem: Problem) -> Line:
    """The same numbers in another memory layout give the same results; what is refused in every layout is no fault."""
    faults, rounding = [], rounding_of(problem)
    for layout, arrange in LAYOUTS.items():
        inputs = [arrange(x) if isinstance(x, np.ndarray) else x for x in problem.inputs]
        plain = [contiguous(arrange, x) if isinstance(x, np.ndarray) else x for x in problem.inputs]
        try:
            expected = once(problem, plain, partial(contiguous, arrange))
        except FAILURES:  # a broadcast matrix is singular, for one: the numbers are refused, not their layout
            continue
        try:
            found = once(problem, inputs, arrange)
        except FAILURES as error:  # what it raises is the finding
            faults.append(f"{layout}: {type(error).__name__}: {error}")
            continue
        names = ["out", *(f"d{problem.names[number]}" for number in problem.differentiable)]
        faults += [
            f"{layout}: {name} is off by {worst:.2g}"
            for name, x, same in zip(names, found, expected)
            if (worst := distance(x, same)) > rounding
        ]
    return fact("memory layouts", faults)


def contiguous(arrange: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
    """Return the numbers that arrange makes of x, in C order."""
    return np.array(arrange(x), order="C")


def once(problem: Problem, inputs: Sequence[Any], arrange: Callable[[np.ndarray], np.ndarray]) -> list[Any]:
    """Return the output and the gradients at inputs, the upstream arranged in a memory layout."""
    out, cache = problem.call(inputs, copies=False)
    return [out, *problem.gradients(map_leaves(arrange, problem.upstream(out)), cache, copies=False)]


def rounding_of(problem: Problem) -> float:
    """Return what another order of adding may change; where large inputs cancel, it changes more."""
    return ROUNDING * largest(problem.inputs[number] for number in problem.differentiable)


def distance(x: Any, expected: Any) -> float:
    """Return the largest difference as a share of the largest magnitude, at least 1; NaN is infinitely far."""
    x, expected = flatten(x), flatten(expected)
    if x.shape != expected.shape:
        return np.inf
    equal = (x == expected) | (np.isnan(x) & np.isnan(expected))
    gap = np.abs(np.where(equal, 0, x - expected))
    size = np.abs(expected[np.isfinite(expected)]).max(initial=1)
    return float(np.nan_to_num(gap, nan=np.inf).max(initial=0) / size)


def dtypes(problem: Problem) -> Line:
    """float32 in, float32 out; float64 in, float64 out; every gradient has its input's shape."""
    faults = []
    for dtype in (np.float32, np.float64):
        inputs = [x.astype(dtype) if is_floating(x) else x for x in problem.inputs]
        out, cache = problem.call(inputs)
        dout = map_leaves(partial(np.asarray, dtype=dtype), problem.upstream(out))
        found = [("out" + place, y) for place, y in leaves(out) if y.dtype.kind not in "iub"]
        for number, grad in zip(problem.differentiable, problem.gradients(dout, cache)):
            name, x = f"d{problem.names[number]}", problem.inputs[number]
            if np.shape(grad) != x.shape:
                faults.append(f"{name} has shape {np.shape(grad)}, {problem.names[number]} has {x.shape}")
            found += [(name + place, y) for place, y in leaves(grad)]
        faults += [f"{np.dtype(dtype)} in, {name} is {y.dtype}" for name, y in found if y.dtype != dtype]
    if any(f"float32 in, {name} is float64" in faults for name, _ in found):
        faults.append(PROMOTED)
    return fact("dtype and shape", list(dict.fromkeys(faults)))


def float32_values(problem: Problem) -> Line:
    """float32 gives float64's gradients of the same numbers, but for rounding, and stays finite.

    What rounding may do is seen in float64: the inputs are moved by a last bit of float32.
    """
    single = [x.astype(np.float32) if is_floating(x) else x for x in problem.inputs]
    same = replace(problem, inputs=[x.astype(np.float64) if is_floating(x) else x for x in single])
    out, cache = problem.call(single)
    dout = map_leaves(partial(np.asarray, dtype=np.float32), problem.upstream(out))
    if not np.isfinite(flatten(out)).all() or not same_but_for_rounding(problem, same):
        return Line("", "float32 values", Verdict.SKIPPED, note="inputs or outputs lie beyond float32")
    found = problem.gradients(dout, cache)
    double = map_leaves(partial(np.asarray, dtype=np.float64), dout)
    exact, moved = (same.gradients(double, same.call(inputs)[1]) for inputs in (None, nudged(same, EPS_32)))
    faint = FAINT * float(np.abs(flatten(dout)).max(initial=0))
    faults = []
    for number, *grads in zip(problem.differentiable, found, exact, moved):
        in_single, in_double, nearby = map(np.asarray, grads)
        fault = float32_fault(in_single, in_double, nearby, faint)
        faults += [f"d{problem.names[number]} {fault}"] if fault else []
    return fact("float32 values", faults)


def same_but_for_rounding(problem: Problem, other: Problem) -> bool:
    """Return whether another problem's inputs are this one's, rounded to float32."""
    pairs = zip(problem.inputs, other.inputs)
    return all(np.allclose(x, rounded, rtol=EPS_32, atol=0) for x, rounded in pairs if is_floating(x))


def float32_fault(found: np.ndarray, exact: np.ndarray, moved: np.ndarray, faint: float) -> str:
    """Say how far a float32 gradient is from the exact one, if by more than rounding explains.

    A gradient below faint may be what is left of larger numbers that cancel.
    """
    if found.shape != exact.shape or not np.isfinite(exact).all():
        return ""
    size = float(np.abs(exact).max(initial=0))
    if not np.isfinite(found).all():
        return "is not finite in float32" if size < np.finfo(np.float32).max else ""
    error = float(np.abs(found - exact).max(initial=0))
    moves = float(np.nan_to_num(np.abs(moved - exact), nan=np.inf).max(initial=0))
    wrong = error > COARSE * max(size, faint) + CONDITION * moves
    return f"is off by {error / max(size, faint):.2g} of its size in float32" if wrong else ""


def ranks(problem: Problem) -> Line:
    """Leading axes of size 1 before the leading inputs change no number, only shapes."""
    out, cache = problem.call()
    dout = problem.upstream(out)
    grads = problem.gradients(dout, cache)
    faults, rounding = [], rounding_of(problem)
    for extra in (1, 2):
        index, tried = (None,) * extra, f"with {extra} more leading {'axis' if extra == 1 else 'axes'} of size 1"
        inputs = [x[index] if name in problem.leading else x for name, x in zip(problem.names, problem.inputs)]
        try:
            new_out, new_cache = problem.call(inputs)
            new_grads = problem.gradients(upstream_like(new_out, dout), new_cache)
        except FAILURES as error:  # what it raises is the finding
            faults.append(f"{tried}: {type(error).__name__}: {error}")
            continue
        if distance(new_out, out) > rounding:
            faults.append(f"{tried}: out is another")
            continue
        for number, grad, new in zip(problem.differentiable, grads, new_grads):
            name = f"d{problem.names[number]}"
            if np.shape(new) != inputs[number].shape:
                faults.append(f"{tried}: {name} has shape {np.shape(new)}")
            elif distance(new, grad) > rounding:
                faults.append(f"{tried}: {name} is another")
    return fact("ranks", faults)


def upstream_like(out: Any, dout: Any) -> Any:
    """Return dout's numbers in the shapes of out."""
    parts = leaves(dout)
    return map_leaves(lambda y: next(parts)[1].reshape(y.shape), out)


def linearity(problem: Problem) -> Line:
    """backward(a u + b w) = a backward(u) + b backward(w): every backward is linear in the upstream."""
    out, _ = problem.call()
    u, w = problem.upstream(out), problem.upstream(out, "second upstream")
    a, b = 0.7, -1.3
    other = iter(leaves(w))
    mixed = map_leaves(lambda part: np.asarray(a * part + b * next(other)[1]), u)
    g_u, g_w, g = (problem.gradients(upstream, problem.call()[1]) for upstream in (u, w, mixed))
    lines = []
    for number, part_u, part_w, part in zip(problem.differentiable, g_u, g_w, g):
        size = max(np.abs(part_u).max(initial=0), np.abs(part_w).max(initial=0), 1e-3)
        expected = a * np.asarray(part_u) + b * np.asarray(part_w)
        lines.append(near(f"d{problem.names[number]}", "linearity", np.asarray(part), expected, 1e-11 * float(size)))
    return max(lines, key=lambda line: line.share or 0)
