"""The check of a whole Model: every element of a small one, random directions of a real one."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from ..config import Config
from ..cores import n_cores, one_blas_thread
from ..model import BLOCK, Model, next_ids
from ..ops import embedding_forward
from ..parameters import Parameters
from .check import attempt, run
from .compare import near
from .directions import compare_direction
from .invariants import Invariant, key_bias_zero, same_gradients
from .numeric import BASE_STEP, differences
from .problem import Problem, described, prepare
from .report import Line, Report, merge
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

    The upstream of the loss is drawn too, so that a backward that takes it for 1 is caught; and
    `Model.backward` is checked by itself, along random directions, for a drawn dlogits.
    """
    if model is None:
        model = Model(config, dtype="float64")
        randomise(model.params, seed)
    idx = (
        IDX[:, : model.config.T_max] % model.config.V if idx is None else np.array(idx)
    )  # a copy: a student's model may write into it
    problem = model_problem(model, idx, targets, seed)
    to_logits = model_problem(model, idx, targets, seed, to_logits=True)
    to_logits.directions = 1
    for either in (problem, to_logits):
        either.target = target
        either.reproduce = reproduce or f"check_model({model.config}, seed={seed})"
    report = run(problem, model_invariants(model, idx, targets), contract)
    if report.lines[0].check == "call":  # the same would be told of the logits
        return report
    logits_report = run(to_logits, contract=False)
    for line in logits_report.lines:
        line.name += " of logits"
    return merge([report, logits_report], seed)


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


def model_problem(
    model: Model, idx: np.ndarray, targets: np.ndarray | None, seed: int, to_logits: bool = False
) -> Problem:
    """Return the Problem from the ids and the model's parameters to its loss, or to its logits."""
    names = list(model.params)
    ids = {"idx": idx} if targets is None or to_logits else {"idx": idx, "targets": targets}

    def forward(*inputs: np.ndarray) -> tuple[Any, Any]:
        ids_here, parameters = inputs[: len(ids)], inputs[len(ids) :]
        twin = twin_of(model, dict(zip(names, parameters)))
        out, cache = (twin.forward if to_logits else twin.loss_forward)(*ids_here)
        return out, (twin.params, cache)

    def backward(upstream: Any, cache: tuple) -> dict[str, np.ndarray]:
        params, cache = cache
        twin = copy.copy(model)
        twin.params = params
        return by_name(model, (twin.backward if to_logits else twin.loss_backward)(upstream, cache))

    inputs = [*ids.values(), *model.params.values()]
    problem = prepare(forward, backward, inputs, names=[*ids, *names], seed=seed)
    if model.config.tie:
        untied = model_problem(untie(model), idx, targets, seed, to_logits)
        problem.parts = lambda name: tied_shares(untied) if name == "W_te" else {}
    return problem


def by_name(model: Model, grads: Any) -> dict[str, np.ndarray]:
    """Return what the model's backward returns as a dict. Raises TypeError where it is no Parameters."""
    backward = f"{type(model).__name__}.backward"
    if not isinstance(grads, Mapping):
        raise TypeError(f"{backward} returns {described(grads)}; it must return Parameters")
    missing = [name for name in model.params if name not in grads]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise TypeError(f"{backward} returns no gradient of {missing[0]}{more}; it must return Parameters")
    return dict(grads)


def untie(model: Model) -> Model:
    """Return the untied model that computes the same: its W_head is a copy of W_te."""
    values = {name: value.copy() for name, value in model.params.items()}
    untied = copy.copy(model)
    untied.config = replace(model.config, tie=False)
    return twin_of(untied, {**values, "W_head": values["W_te"]})


def tied_shares(untied: Problem) -> dict[str, np.ndarray]:
    """Return what the embedding and the head each add to dW_te, by real differences of the untied model."""
    out, _ = untied.call()
    y, u = flatten(out), flatten(untied.upstream(out))
    inputs = [x.copy() for x in untied.inputs]
    places = {"embedding": inputs[untied.names.index("W_te")], "head": inputs[untied.names.index("W_head")]}
    return {part: differences(lambda: untied.outputs(inputs), x, y, u).value for part, x in places.items()}


def model_invariants(model: Model, idx: np.ndarray, targets: np.ndarray | None) -> list[Invariant]:
    """Return what holds of every model.

    The K third of every db_qkv is 0; used gradients are written over; no logit sees the future; the tied
    gradient is the sum of the untied model's two.
    """

    def into_used(upstream: Any) -> dict[str, np.ndarray]:
        used = model.params.zeros_like()
        used.flat[...] = np.nan
        _, cache = model.loss_forward(idx, targets)
        model.loss_backward(upstream, cache, used)
        return dict(used)

    invariants = [key_bias_zero(), same_gradients("invariant: used gradients are written over", into_used)]
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
    of each. A wrong gradient passes only if its error happens to be orthogonal to v. A direction
    costs four forwards, of the blocks from the parameter's own on; the names are shared among the
    cores. float32 is raised to float64, with a notice.

    progress  called with the parameter's name, its number and how many there are
    """

    start = time.perf_counter()
    notices = []
    if model.dtype != np.float64:
        notices.append(f"the model is {model.dtype}; checked in float64, where a difference has digits to spare")
        model = twin_of(model, {name: value.astype(np.float64) for name, value in model.params.items()})
    idx = np.asarray(idx)
    targets = next_ids(idx, np) if targets is None else np.asarray(targets)
    loss, grads = model.step(idx, targets)
    rests = rests_of(model, idx, targets, loss)
    groups = {**{name: [name] for name in (names or model.params)}, "all parameters": list(model.params)}

    def work(number: int, name: str) -> list[Line]:
        rest, rng = rests[first_block(name, model.config)], np.random.default_rng([seed, number])
        lines = []
        with np.errstate(all="ignore"):
            for _ in range(directions):
                lines += attempt("projection", lambda: [projection(rest, loss, grads, groups[name], rng)])
        return lines

    lines = []
    with one_blas_thread(), ThreadPoolExecutor(n_cores()) as threads:
        *alone, jointly = groups
        found = threads.map(work, range(len(alone)), alone)  # the joint one, which needs the most memory, by itself
        try:
            for number, name in enumerate(groups):
                if progress is not None:
                    progress(name, number, len(groups))
                lines += next(found) if name != jointly else work(number, name)
        finally:
            threads.shutdown(cancel_futures=True)  # Ctrl-C must not wait for all that is left
    for line in lines:
        line.target, line.seed = "model", seed
        line.reproduce = f"check_projections(model, idx, seed={seed}, directions={directions})"
    return Report(lines, notices, seed, time.perf_counter() - start)


def check_preset(
    name: str, seed: int = 0, reproduce: str = "", progress: Callable[[str, int, int], None] | None = None
) -> Report:
    """Check a preset of real size by projections, its parameters drawn so that none is 0 or 1."""
    model = Model(Config.preset(name), None, dtype="float64")
    rng = np.random.default_rng(seed)
    for parameter_name, parameter in model.params.items():
        rng.standard_normal(out=parameter)
        parameter *= 0.03
        parameter += parameter_name.endswith("gamma")
    idx = rng.integers(0, model.config.V, (2, 4))
    idx[1, -1] = idx[0, 1] = idx[0, 0]  # an id that stands in several places
    report = check_projections(model, idx, seed, progress=progress)
    for line in report.lines:
        line.target, line.reproduce = name, reproduce
    return report


class Views(dict[str, np.ndarray]):
    """Arrays by name that need not lie in one vector: as much of Parameters as a forward asks for."""

    def block(self, number: int) -> dict[str, np.ndarray]:
        prefix = f"block.{number}."
        return {name.removeprefix(prefix): value for name, value in self.items() if name.startswith(prefix)}


def with_arrays(model: Model, arrays: dict[str, np.ndarray]) -> Model:
    """Return the model with other parameters, for forwards alone; none is copied."""
    twin = copy.copy(model)
    twin.params = cast(Parameters, Views(arrays))
    return twin


@dataclass
class Rest:
    """A Model's blocks from the first one in question on, which are a Model too.

    Its W_te is the table of what enters that block, one row a position; nothing before is computed again.
    """

    model: Model
    idx: np.ndarray
    targets: np.ndarray
    first: int = 0

    def loss(self, changed: dict[str, np.ndarray]) -> np.ndarray:
        """Return the loss with some parameters changed, by their names in the whole model."""
        arrays = {**self.model.params, **{renamed(name, -self.first): x for name, x in changed.items()}}
        return np.array(with_arrays(self.model, arrays).loss(self.idx, self.targets)).reshape(-1)

    def value(self, name: str) -> np.ndarray:
        """Return a parameter by its name in the whole model."""
        return self.model.params[renamed(name, -self.first)]


def rests_of(model: Model, idx: np.ndarray, targets: np.ndarray, loss: Any) -> list[Rest]:
    """Return the Rest for each block; the whole model where it has another loss, as a subclass's own forward may."""
    p, config = model.params, model.config
    block_forward, _ = BLOCK[config.norm]
    rests = [Rest(model, idx, targets)]
    x, _ = embedding_forward(idx, p["W_te"], p["W_pe"])  # (B, T, d)
    positions = np.arange(idx.size).reshape(idx.shape)
    for first in range(1, config.L):
        x, _ = block_forward(x, p.block(first - 1), config)  # (B, T, d)
        arrays = {renamed(name, -first): value for name, value in p.items()}
        arrays |= {"W_te": x.reshape(idx.size, -1), "W_pe": np.zeros(x.shape[-2:])}
        arrays["W_head"] = p["W_te" if config.tie else "W_head"]
        twin = with_arrays(model, arrays)
        twin.config = replace(config, L=config.L - first, tie=False)
        rest = Rest(twin, positions, targets, first)
        rests.append(rest if np.allclose(rest.loss({}), loss, rtol=1e-12, atol=0) else rests[0])
    return rests


def renamed(name: str, shift: int) -> str:
    """Return "block.7.W_1" as "block.5.W_1" for a shift of −2; another name stays."""
    if not name.startswith("block."):
        return name
    _, number, short_name = name.split(".", 2)
    return f"block.{int(number) + shift}.{short_name}"


def first_block(name: str, config: Config) -> int:
    """Return the first block to compute again after a change of the parameter."""
    if name.startswith("block."):
        return int(name.split(".")[1])
    return config.L - 1 if name.startswith(("ln_f", "W_head")) else 0


def projection(rest: Rest, loss: Any, grads: Parameters, group: list[str], rng: np.random.Generator) -> Line:
    """Compare one direction through the parameters of a group."""
    here = {name: rest.value(name) for name in group}
    v = {name: rng.standard_normal(x.shape) for name, x in here.items()}

    def walk(t: float) -> tuple[np.ndarray, float]:
        return rest.loss({name: here[name] + t * v[name] for name in group}), t

    size = BASE_STEP * max(1.0, *(float(np.abs(x).max()) for x in here.values()))
    pairs = [(grads[name], v[name]) for name in group]
    name = f"⟨d{group[0]}, v⟩" if len(group) == 1 else "⟨∇L, v⟩"
    line = compare_direction(name, "projection", walk, np.array(loss).reshape(-1), np.ones(1), size, pairs)
    line.shape = here[group[0]].shape if len(group) == 1 else (sum(x.size for x in here.values()),)
    return line
