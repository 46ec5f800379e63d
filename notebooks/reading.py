"""Read a function of the package line by line, with the shape of every array that its lines make."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

BLUE, PLAIN = "\x1b[34m", "\x1b[0m"


def read_along(function: Callable, *arguments: Any, **keywords: Any) -> Any:
    """Call function; print its own source as it stands in the package, below each line what it made; return the result.

    The lines are those that ran, and the shapes those of the arrays in hand: neither is copied by hand.
    """
    lines, first = inspect.getsourcelines(function)
    lines = textwrap.dedent("".join(lines)).splitlines()
    definition = ast.parse("\n".join(lines)).body[0]
    assert isinstance(definition, ast.FunctionDef)
    statements = {node.lineno: node for node in simple_statements(definition)}
    made: dict[int, str] = {}  # by the number of a statement's first line
    result, last = None, 0

    def note(frame: FrameType, event: str, value: Any) -> Callable:
        nonlocal last
        if last in statements:
            made[last] = shapes_of(statements[last], frame.f_locals)
        here = frame.f_lineno - first + 1
        last = max((start for start, node in statements.items() if start <= here <= end_of(node)), default=0)
        return note

    def enter(frame: FrameType, event: str, value: Any) -> Callable | None:
        return note if frame.f_code is function.__code__ else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        result = function(*arguments, **keywords)
    finally:
        sys.settrace(before)

    skip = range(definition.body[0].lineno, end_of(definition.body[0]) + 1) if ast.get_docstring(definition) else ()
    ends = {end_of(node): start for start, node in statements.items()}
    for number, line in enumerate(lines, start=1):
        if number in skip:
            continue
        print(line)
        found = made.get(ends.get(number, 0))
        if found:
            indent = " " * (len(line) - len(line.lstrip()))
            print(f"{indent}{BLUE}└─ {found}{PLAIN}")
    return result


def end_of(node: ast.stmt) -> int:
    """Return the number of a statement's last line."""
    return node.end_lineno or node.lineno


def simple_statements(definition: ast.FunctionDef) -> Iterator[ast.stmt]:
    """Yield the assignments of a function, those inside its ifs and loops too."""
    for node in ast.walk(definition):
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
            yield node


def shapes_of(statement: ast.stmt, names: dict[str, Any]) -> str:
    """Return "attn (2, 3, 5, 5)" for every array that a statement assigns to a name."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]  # type: ignore[attr-defined]
    found = {}
    for node in (node for target in targets for node in ast.walk(target)):
        shape = getattr(names.get(node.id), "shape", None) if isinstance(node, ast.Name) else None
        if isinstance(shape, tuple) and node.id != "_":
            found[node.id] = f"{node.id} {shape}"
    return ", ".join(found.values())
