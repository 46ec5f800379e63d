"""The check of a whole Model: every element of a small one, random directions of a real one."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..config import Config
from ..model import Model
from ..parameters import Parameters
from .check import attempt, run
from .compare import SAFETY, compare, near
from .invariants import Invariant, key_bias_zero, same_gradients
from .numeric import BASE_STEP, EPS, QUICK, THOROUGH, Estimates, differences, slope
from .problem import Problem, prepare
from .report import Line, Report
from .trees import flatten

SMALL = Config(V=7, T_max=6, d=6, h=3, L=2)
IDX = np.array([[1, 5, 5, 2, 1], [4, 1, 3, 3, 3]])  # ids that repeat within a row and across rows
CONFIGS = {
    "model": SMALL,
    "model_untied": Config(V=7, T_max=6, d=6, h=3, L=1, tie=False, gelu="exact"),
    "model_post": Config(V=7, T_max=6, d=6, h=3, L=1, norm="post", gelu="exact"),
    "model_post_untied": Config(V=7, T_max=6, d=6, h=3, L=1, norm="post", tie=False),
}


def check_model(
    config: Config = SMALL,
    seed: int = 0,
    idx: np.ndarray | None = None,
    targets: np.ndarray | None = None,
    model: Model | None = None,
    contract: bool = True,
    target: str = "model",
    reproduce: str = "",
) -> Report:
    """Check every element of every parameter of a small Model, from ids to loss.

    config   decides the parameters; they are drawn so that nothing is 0 or 1, as a fresh model's are
    model    a Model, or a subclass's, whose forward and backward are to be used; its weights count
    idx      (B, T) ids, by default some that repeat

    The upstream of the loss is drawn too, so that a backward that takes it for 1 is caught.
    """
    if model is None:
        model = Model(config, dtype="float64")
        randomise(model.params, seed)
    idx = IDX % model.config.V if idx is None else np.asarray(idx)
    problem = model_problem(model, idx, targets, seed)
    problem.target = target
    problem.reproduce = reproduce or f"check_model({model.config}, seed={seed})"
    return run(problem, model_invariants(model, idx, targets), contract)


def randomise(params: Parameters, seed: int) -> None:
    """Draw every parameter anew, normal: gammas around 1, matrices so that signals keep their size."""
    rng = np.random.default_rng(seed)
    for name, parameter in params.items():
        size = 1 / np.sqrt(parameter.shape[0]) if parameter.ndim == 2 and "_te" not in name else 0.5
        parameter[...] = size * rng.standard_normal(parameter.shape) + name.endswith("gamma")


def twin_of(model: Model, values: dict[str, Any]) -> Model:
    """Return the model with other parameters, of their dtype: complex ones for the complex step."""
    twin = copy.copy(model)
    dtype = next(iter(values.values())).dtype
    twin.params = Parameters(model.config.parameter_shapes(), dtype)
    for name, value in values.items():
        twin.params[name] = value
    return twin


def model_problem(model: Model, idx: np.ndarray, targets: np.ndarray | None, seed: int) -> Problem:
    """Return the Problem whose inputs are the model's parameters and whose output is its loss."""
    names = list(model.params)

    def forward(*parameters: np.ndarray) -> tuple[Any, Any]:
        twin = twin_of(model, dict(zip(names, parameters)))
        loss, cache = twin.loss_forward(idx, targets)
        return loss, (twin.params, cache)

    def backward(dloss: Any, cache: tuple) -> dict[str, np.ndarray]:
        params, cache = cache
        twin = copy.copy(model)
        twin.params = params
        return dict(twin.loss_backward(dloss, cache))

    problem = prepare(forward, backward, list(model.params.values()), names=names, seed=seed)
    if model.config.tie:
        problem.parts = lambda name: tied_shares(model, idx, targets, problem) if name == "W_te" else {}
    return problem


def untie(model: Model) -> Model:
    """Return the untied model that computes the same: its W_head is a copy of W_te."""
    values = {name: value.copy() for name, value in model.params.items()}
    untied = copy.copy(model)
    untied.config = Config(**{**model.config.to_dict(), "tie": False})
    return twin_of(untied, {**values, "W_head": values["W_te"]})


def tied_shares(model: Model, idx: np.ndarray, targets: np.ndarray | None, problem: Problem) -> dict[str, np.ndarray]:
    """Return what the embedding and the head each add to dW_te, by real differences of the untied model."""
    other = model_problem(untie(model), idx, targets, problem.seed)
    out, _ = other.call()
    y, u = flatten(out), flatten(problem.upstream(out))
    inputs = [x.copy() for x in other.inputs]
    places = {"embedding": other.names.index("W_te"), "head": other.names.index("W_head")}
    return {
        part: differences(lambda: other.outputs(inputs), inputs[number], y, u).value for part, number in places.items()
    }


def model_invariants(model: Model, idx: np.ndarray, targets: np.ndarray | None) -> list[Invariant]:
    """The K third of every db_qkv is 0; logits do not see the future; tied is the sum of untied."""
    invariants = [key_bias_zero()]
    if model.config.causal and idx.shape[-1] > 1:
        invariants.append(lambda problem: [past_unmoved(model, idx)])
    if model.config.tie:

        def both_parts(upstream: Any) -> dict[str, np.ndarray]:
            untied = untie(model)
            _, cache = untied.loss_forward(idx, targets)
            grads = untied.loss_backward(upstream, cache)
            return {"W_te": grads["W_te"] + grads["W_head"]}

        invariants.append(same_gradients("invariant: tied gradient is the sum of both parts", both_parts))
    return invariants


def past_unmoved(model: Model, idx: np.ndarray) -> Line:
    """Other ids at later positions change no logit of an earlier one."""
    logits, _ = model.forward(idx)
    worst = 0.0
    for t in range(idx.shape[-1] - 1):
        later = idx.copy()
        later[..., t + 1 :] = (later[..., t + 1 :] + 1) % model.config.V
        moved, _ = model.forward(later)
        worst = max(worst, float(np.abs(moved - logits)[..., : t + 1, :].max()))
    return near("logits", "invariant: the past does not see the future", np.asarray(worst), 0, 0.0)


def check_projections(
    model: Model,
    idx: np.ndarray,
    seed: int = 0,
    directions: int = 1,
    targets: np.ndarray | None = None,
    names: Sequence[str] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Report:
    """Check the whole gradient of a Model of real size along random directions.

        ⟨∇L, v⟩ = dL/dt at θ + t v,    v standard normal

    For each named parameter alone (names: default all) and for all of them jointly, `directions`
    of each. A direction costs four forwards; a wrong gradient passes only if its error happens to
    be orthogonal to v. float32 is raised to float64, with a notice.

    progress  called with the parameter's name, its number and how many there are
    """
    start = time.perf_counter()
    notices = []
    if model.dtype != np.float64:
        notices.append(f"the model is {model.dtype}; checked in float64, where a difference has digits to spare")
    twin = twin_of(model, {name: value.astype(np.float64) for name, value in model.params.items()})
    loss, grads = twin.step(idx, targets)
    rng = np.random.default_rng(seed)
    groups = {**{name: [name] for name in (names or twin.params)}, "all parameters": list(twin.params)}
    lines = []
    for number, (name, group) in enumerate(groups.items()):
        if progress is not None:
            progress(name, number, len(groups))
        for _ in range(directions):
            lines += attempt("projection", partial(projection, twin, loss, grads, idx, targets, name, group, rng))
    for line in lines:
        line.target, line.seed = "model", seed
        line.reproduce = f"check_projections(model, idx, seed={seed}, directions={directions})"
    return Report(lines, notices, seed, time.perf_counter() - start)


def check_preset(name: str, seed: int = 0, reproduce: str = "") -> Report:
    """Check a preset of real size by projections, its initial weights moved so that none is 0 or 1."""
    model = Model(Config.preset(name), seed, dtype="float64")
    rng = np.random.default_rng(seed)
    for parameter in model.params.values():
        parameter[...] += 0.02 * rng.standard_normal(parameter.shape)
    idx = rng.integers(0, model.config.V, (1, 8))
    idx[0, -1] = idx[0, 0]  # an id that stands in two places
    report = check_projections(model, idx, seed)
    for line in report.lines:
        line.target, line.reproduce = name, reproduce
    return report


def projection(
    model: Model,
    loss: Any,
    grads: Parameters,
    idx: np.ndarray,
    targets: np.ndarray | None,
    name: str,
    group: list[str],
    rng: np.random.Generator,
) -> list[Line]:
    """Compare one direction; the model's parameters are moved in place, and put back bit for bit."""
    here = {part: model.params[part].copy() for part in group}
    v = {part: rng.standard_normal(here[part].shape) for part in group}

    def walk(t: float) -> tuple[np.ndarray, float]:
        for part in group:
            np.multiply(v[part], t, out=model.params[part])
            model.params[part][...] += here[part]
        return np.array(model.loss(idx, targets)).reshape(-1), t

    y, u = np.array(loss).reshape(-1), np.ones(1)
    size = BASE_STEP * max(1.0, *(float(np.abs(x).max()) for x in here.values()))
    try:
        found = slope(walk, y, u, size, QUICK)
        analytic = sum(float(np.vdot(grads[part], v[part])) for part in group)
        unsettled = abs(analytic - found.value) > SAFETY * found.error or found.error > 1e-5 * abs(found.value)
        if found.kink or unsettled:
            found = slope(walk, y, u, size, THOROUGH)
    finally:
        for part in group:
            model.params[part][...] = here[part]
    rounding = sum(EPS * float(np.abs(grads[part]).ravel() @ np.abs(v[part]).ravel()) for part in group)
    numeric = Estimates(
        *(np.asarray(x) for x in (found.value, found.error + rounding, found.left, found.right, found.kink))
    )
    line = compare(f"⟨d{name}, v⟩" if len(group) == 1 else "⟨∇L, v⟩", "projection", np.asarray(analytic), numeric)
    line.shape = here[group[0]].shape if len(group) == 1 else (model.params.flat.size,)
    return [line]
