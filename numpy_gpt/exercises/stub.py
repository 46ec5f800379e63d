"""A stub: the package's own forward as it stands there, in plain NumPy, with the backward left open."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .. import ops


def in_numpy(source: str) -> str:
    """Return source for NumPy alone: what a student writes needs no xp."""
    source = re.sub(r"\barray_module\(\w+\)", "np", source)
    source = re.sub(r"\b(self\.)?(params\.)?xp\b", "np", source)
    source = re.sub(r"(?<!\.)\bmatmul\((\w+), ([\w.]+)\)", r"\1 @ \2", source)
    return re.sub(r"^ *np = np\n", "", source, flags=re.MULTILINE)


def source_of(module: ModuleType, name: str) -> str:
    """Return the source of a function or a constant of module."""
    text = inspect.getsource(module)
    for node in ast.parse(text).body:
        targets = [ast.unparse(target) for target in node.targets] if isinstance(node, ast.Assign) else []
        if name in targets or getattr(node, "name", None) == name:
            return in_numpy(ast.get_source_segment(text, node) or "")
    raise LookupError(f"{module.__name__} defines no {name}")


def unwritten(function: Callable, title: str, doc: str) -> str:
    """Return function's signature with another docstring, and nothing below but the cache unpacked.

    Its `out`, which saves memory and changes no gradient, is left out.
    """
    node = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(node, ast.FunctionDef)
    assert node.returns is not None
    if node.args.args[-1].arg == "out":
        node.args.args.pop()
        node.args.defaults.pop()
    unpacked = [ast.unparse(line) for line in node.body if isinstance(line, ast.Assign) and is_cache(line.value)]
    body = [f'"""{doc}\n"""', *unpacked[:1], f'raise NotImplementedError("{title} is not written yet")']
    arguments = ast.unparse(node.args).replace("=", " = ")
    head = f"def {node.name}({arguments}) -> {ast.unparse(node.returns)}:"
    return in_numpy(f"{head}\n{textwrap.indent(chr(10).join(body), '    ')}\n")


def is_cache(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "cache"


def equation(forward: Callable) -> str:
    """Return the equation that opens forward's docstring."""
    return inspect.cleandoc(forward.__doc__ or "").split("\n\n")[0]


def names_in(source: str) -> set[str]:
    """Return every name that source reads and does not set itself."""
    names = [node for node in ast.walk(ast.parse(textwrap.dedent(source))) if isinstance(node, ast.Name)]
    own = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    return {node.id for node in names} - own


def imports(sources: str, module: ModuleType, own: set[str]) -> str:
    """Return import lines for what sources, which stood in module, take from elsewhere; own stays out."""
    plain: set[str] = set()
    homes: dict[str, set[str]] = {}
    for name in names_in(sources) & vars(module).keys() - own - {"np", "Array"}:
        value = vars(module)[name]
        if inspect.ismodule(value):
            plain.add(f"import {name}")
        else:
            homes.setdefault(home_of(name, value, module), set()).add(name)
    lines = [from_import(home, sorted(names)) for home, names in sorted(homes.items())]
    return "\n".join([*(f"{line}\n" for line in sorted(plain)), "import numpy as np", *([""] if lines else []), *lines])


def home_of(name: str, value: Any, module: ModuleType) -> str:
    """Return the module to import name from."""
    return "numpy_gpt.ops" if name in ops.__all__ else getattr(value, "__module__", module.__name__)


def from_import(home: str, names: list[str]) -> str:
    """Return `from home import names`, over several lines where it is long."""
    line = f"from {home} import {', '.join(names)}"
    return line if len(line) <= 120 else f"from {home} import (\n{''.join(f'    {name},{chr(10)}' for name in names)})"


def page(name: str, place: str, title: str, function: str, imported: str, *code: str) -> str:
    """Return the whole file."""
    array = "\nArray = np.ndarray" if "Array" in "".join(code) else ""
    opening = f'''"""{title} ({place}).

Write {function}, below: it says what it takes and what it returns. Then

    numpy-gpt exercise check {name}.py

checks it, element by element. `--hint 1`, `--hint 2` and `--hint 3` help more and more.
"""

{imported}

EXERCISE = "{name}"  # tells the checker what this file is{array}
'''
    return "\n\n".join([opening, *(f"{part.strip()}\n" for part in code)])
