"""The backward of a whole model to write, whose head and embedding share one matrix."""

from __future__ import annotations

import inspect
import textwrap
from types import ModuleType

import numpy as np

from .. import model as model_module
from .. import ops
from ..config import Config
from ..gradcheck import Line, Report, Verdict, check_model, check_projections
from ..gradcheck.check import attempt
from ..gradcheck.models import IDX, SMALL, by_name, randomise
from ..model import Model
from .exercise import Contest, Exercise, part, rehearsal, same_forward
from .stub import imports, in_numpy, names_in, page, unwritten

CLASS = "TiedModel"
OTHERS = (Config(V=9, T_max=4, d=4, h=1, L=1, norm="post"), Config(V=8, T_max=5, d=4, h=2, L=3))
EQUATION = """The gradients of `forward`, whose first and last lines use the same matrix:

    x = W_te[idx] + W_pe[:T],  x = blocks(x),  x = LN_final(x),  logits = x @ W_te.T"""


class TiedHeadExercise(Exercise):
    """TiedModel.backward, given Model.forward."""

    @property
    def function(self) -> str:
        return f"{CLASS}.backward"

    @property
    def answer(self) -> str:
        return Model.__module__

    def stub(self) -> str:
        forward = in_numpy(inspect.getsource(Model.forward))
        backward = unwritten(Model.backward, self.function, f"{EQUATION}\n\n{self.shapes}")
        backward = textwrap.indent(backward, "    ")
        code = f'class {CLASS}(Model):\n    """GPT-2; its head is W_te.T."""\n\n{forward}\n{backward}'
        tools = names_in("class _:\n" + inspect.getsource(Model.backward)) & {*ops.__all__}
        imported = imports("\n".join([code, *sorted(tools)]), model_module, {CLASS})
        title = "The backward of a model whose head is tied to its embedding"
        return page(self.name, self.place, title, self.function, imported, code)

    def check(self, module: ModuleType, seed: int = 0) -> Report:
        student, ours = part(module, CLASS), Model(SMALL, seed=None, dtype="float64")
        randomise(ours.params, seed)
        with rehearsal(module, self.function):
            model = student(SMALL, seed=None, dtype="float64")
            model.params.flat[:] = ours.params.flat
            loss, cache = model.loss_forward(IDX)
            by_name(model, model.loss_backward(1.0, cache))
        same_forward(loss, ours.loss(IDX), f"{CLASS}.forward")
        report = check_model(model=model, seed=seed, idx=IDX, target=self.name)
        for config in OTHERS if report.ok else ():
            found = along_directions(student, config, seed)
            if not found.ok:
                return found
        if report.ok:
            report.lines.append(Line("", "other sizes", Verdict.PASS, target=self.name, seed=seed))
        return report

    def contest(self, module: ModuleType, brief: bool = False) -> Contest:
        config = SMALL if brief else Config.preset("tiny")
        idx = np.random.default_rng(0).integers(0, config.V, (4, config.T_max))
        theirs, ours = part(module, CLASS)(config), Model(config)
        (logits, cache), (_, own_cache) = theirs.forward(idx), ours.forward(idx)
        dlogits = np.random.default_rng(1).standard_normal(logits.shape, np.float32)
        at = f"{'a small model' if brief else 'preset tiny'}, idx {idx.shape}, float32"
        return Contest(lambda: theirs.backward(dlogits, cache), lambda: ours.backward(dlogits, own_cache), at)


def along_directions(kind: type[Model], config: Config, seed: int) -> Report:
    """Check one random direction of each parameter of a model of that kind."""
    model = kind(config, seed=None, dtype="float64")
    randomise(model.params, seed)
    lines = attempt("call", lambda: check_projections(model, IDX[:1, : config.T_max] % config.V, seed).lines)
    for line in lines:
        line.target, line.seed = f"tied_head with L = {config.L}, norm = {config.norm}", seed
    return Report(lines, seed=seed)
