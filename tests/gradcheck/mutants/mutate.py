"""Faults planted systematically into numpy_gpt's backward functions, by rewriting their syntax trees.

    for mutant in mutants("layernorm_backward"):
        names = mutant.namespace()            # all ops and Model, one of them with the fault inside
        names["layernorm_backward"](dy, cache)

Every mutant is one fault in one place. No file and no module of the package is touched: the
package's source is read, changed as a tree, and run in a namespace of its own.
"""

from __future__ import annotations

import ast
import copy
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import resolve_name
from itertools import pairwise
from types import ModuleType

import numpy as np

from numpy_gpt import model


@dataclass(frozen=True)
class Mutant:
    """One fault in one function.

    id        stable and readable: the function, the line of its code (comments not counted), the fault,
              and what became of what
    function  "layernorm_backward", "Model.backward"
    fault     the kind of fault, such as "drop-term"
    source    the function's source with the fault inside
    """

    id: str
    function: str
    fault: str
    source: str

    def namespace(self, small_blocks: bool = False) -> dict:
        """Return every op and Model by name, with the fault inside; see `namespace`."""
        return namespace(small_blocks, self.function, self.source)


# What decides the size of a block or tile, made so small that small inputs need several.
SMALL = {"TILE": 3, "GROUP": 12, "BLOCK_SIZE": 8, "LOSS_BLOCK": 10}


def namespace(small_blocks: bool = False, function: str = "", source: str = "") -> dict:
    """Return every op and Model by name, run anew, each module apart; function has another source, if given."""
    copies: dict[str, dict] = {}
    defined: dict = {}
    settings = {**SMALL, "for_blocks": for_small_blocks, "in_threads": one_after_another} if small_blocks else {}
    for module, tree, code in package():
        names = copies[module.__name__] = {"__name__": f"copy of {module.__name__}", "PREVIOUS": [None], "BUFFERS": []}
        names |= {helper.__name__: helper for helper in HELPERS}
        for name, origin, original in relative_imports(module):
            found = copies[origin] if origin in copies else vars(sys.modules[origin])
            names[name] = settings.get(original, found[original])
        if function and find_function(tree, function) is not None:
            tree = copy.deepcopy(tree)
            find_function(tree, function).body = ast.parse(source).body[0].body
            code = compile(tree, f"<{function}>", "exec")
        exec(code, names)
        names |= {name: value for name, value in settings.items() if name in names}
        defined |= {node.name: names[node.name] for node in tree.body if hasattr(node, "name")}
    return defined


@cache
def relative_imports(module: ModuleType) -> tuple[tuple[str, str, str], ...]:
    """Return (name here, module it comes from, name there) for what a module imports from the package."""
    return tuple(
        (
            alias.asname or alias.name,
            resolve_name("." * node.level + (node.module or ""), module.__spec__.parent),
            alias.name,
        )
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.ImportFrom) and node.level
        for alias in node.names
    )


@cache
def modules() -> tuple[ModuleType, ...]:
    """Return Model's module and all ops that it is made of, each behind those that it imports."""
    found: list[ModuleType] = []

    def visit(module: ModuleType) -> None:
        for _, origin, _ in relative_imports(module):
            if origin.startswith("numpy_gpt.ops") or origin == "numpy_gpt.post_norm":
                visit(sys.modules[origin])
        if module not in found:
            found.append(module)

    visit(model)
    return tuple(found)


@cache
def package() -> tuple[tuple, ...]:
    """Return every module with its tree, free of relative imports, and its code.

    New memory is filled with NaN, so that no verdict hangs on what the memory held before.
    """
    found = []
    for module in modules():
        tree = ast.parse(inspect.getsource(module))
        tree.body = [node for node in tree.body if not (isinstance(node, ast.ImportFrom) and node.level)]
        tree = ast.fix_missing_locations(FillNewMemory().visit(tree))
        found.append((module, tree, compile(tree, module.__name__, "exec")))
    return tuple(found)


def backward_functions() -> list[str]:
    """Return the names of all backward functions, in the order of their modules."""
    names = [node.name for _, tree, _ in package() for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [name for name in names if name.endswith("_backward")] + ["Model.backward", "Model.loss_backward"]


class FillNewMemory(ast.NodeTransformer):
    """xp.empty(shape, dtype) -> xp.full(shape, nan, dtype)"""

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "empty":
            node.func.attr = "full"
            node.args.insert(1, parse("float('nan')"))
        return node


def find_function(tree: ast.Module, function: str) -> ast.FunctionDef | None:
    """Return the definition of "name" or "Class.name" in tree."""
    body = tree.body
    for name in function.split("."):
        node = next((node for node in body if getattr(node, "name", "") == name), None)
        if node is None:
            return None
        body = node.body
    return node


# What a fault needs at run time.


def for_small_blocks(work, size, xp, block=8):
    """`for_blocks` in blocks of at most 8, one after another: threads cost more than blocks as small as these."""
    step = min(block, 8)
    return [work(slice(start, min(start + step, size))) for start in range(0, size, step)]


def one_after_another(work, items):
    """`in_threads` without threads."""
    return [work(item) for item in items]


def previous(cache):
    """Stand for a backward that reads the cache of the call before."""
    names = inspect.currentframe().f_back.f_globals
    before, names["PREVIOUS"][0] = names["PREVIOUS"][0], cache
    return cache if before is None else before


def scribble(tree):
    """Double every array of numbers in tree, in place."""
    if isinstance(tree, (tuple, list)):
        for part in tree:
            scribble(part)
    elif isinstance(tree, np.ndarray) and tree.dtype.kind in "fiu":
        tree *= 2


def each(function, tree):
    return tuple(each(function, part) for part in tree) if isinstance(tree, tuple) else function(tree)


def ones_instead(tree):
    return each(lambda x: np.ones_like(np.asarray(x)), tree)


def clipped(tree):
    return each(lambda x: np.clip(x, -1, 1), tree)


def through_float32(tree):
    return each(lambda x: np.asarray(x).astype(np.float32).astype(np.asarray(x).dtype), tree)


def as_float64(tree):
    return each(lambda x: x.astype(np.float64), tree)


def same_buffer(tree):
    """Return what was returned at the first call, overwritten."""
    buffers = inspect.currentframe().f_back.f_globals["BUFFERS"]
    parts = tree if isinstance(tree, tuple) else (tree,)
    if [(x.shape, x.dtype) for x in buffers] != [(x.shape, x.dtype) for x in parts]:
        buffers[:] = [x.copy() for x in parts]
    for buffer, x in zip(buffers, parts):
        buffer[...] = x
    return tuple(buffers) if isinstance(tree, tuple) else buffers[0]


HELPERS: list[Callable] = [previous, scribble, ones_instead, clipped, through_float32, as_float64, same_buffer]


# The mutations.


@cache
def mutants(function: str) -> list[Mutant]:
    """Return every mutant of one backward function, in the order of its lines."""
    definition = next(found for _, tree, _ in package() if (found := find_function(tree, function)))
    plain = strip_docstring(definition)
    seen, found = {ast.unparse(plain)}, []
    confused = confused_names(plain)
    for number, node in enumerate(ast.walk(plain)):
        if number in out_of_bounds(plain):
            continue
        for fault, replacement in faults(node, confused):
            source = ast.unparse(with_replacement(plain, number, replacement))
            if source not in seen:
                seen.add(source)
                id = f"{function}:L{node.lineno} {fault} {change(node, replacement)}"
                found.append((node.lineno, Mutant(id, function, fault, source)))
    found += whole_function_faults(function, plain)
    return numbered(sorted(found, key=lambda pair: pair[0]))


def strip_docstring(definition: ast.FunctionDef) -> ast.FunctionDef:
    """Return the function without docstring and comments, its lines counted anew: ids outlive another wording."""
    plain = copy.deepcopy(definition)
    if ast.get_docstring(plain) is not None:
        plain.body = plain.body[1:]
    return ast.parse(ast.unparse(plain)).body[0]


def out_of_bounds(definition: ast.FunctionDef) -> set[int]:
    """Return the numbers of the nodes that only read shapes or unpack the cache: a slip there is no gradient bug."""
    inside = set()
    nodes = list(ast.walk(definition))
    numbers = {id(node): number for number, node in enumerate(nodes)}
    for node in nodes:
        parts: list[ast.AST] = []
        if isinstance(node, ast.arguments):
            parts = [node]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("reshape", "full", "zeros", "asarray"):
                parts = [*node.args, *node.keywords]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("array_module", "one_block"):
            parts = [*node.args]
        elif isinstance(node, (ast.Subscript, ast.Assign)):
            reads_shape = isinstance(node, ast.Subscript) and "shape" in ast.unparse(node.value)
            unpacks = isinstance(node, ast.Assign) and ast.unparse(node.value) == "cache"
            parts = [node] if reads_shape or unpacks else []
        for part in parts:
            inside |= {numbers[id(child)] for child in ast.walk(part)}
    return inside


def gradient_names(definition: ast.FunctionDef) -> list[str]:
    """Return the names of gradients: the upstream and every local "d...", in order."""
    names = [definition.args.args[definition.args.args[0].arg == "self"].arg]
    for node in ast.walk(definition):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and is_gradient(node.id):
            names.append(node.id)
    return list(dict.fromkeys(names))


def is_gradient(name: str) -> bool:
    return name.startswith("d") and name not in ("d", "d_head", "dtype") and not name.startswith("def")


def confused_names(definition: ast.FunctionDef) -> dict[str, list[str]]:
    """Return, for every name, those that a slip puts in its place: its neighbours in the cache, the next gradient."""
    confused: dict[str, list[str]] = {}
    gradients = gradient_names(definition)
    pairs = list(pairwise(gradients))
    for node in ast.walk(definition):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Name):
            names = [part.id for part in node.targets[0].elts]
            pairs += [pair for both in pairwise(names) for pair in (both, both[::-1])]
    for name, other in pairs:
        if other not in confused.setdefault(name, []):
            confused[name].append(other)
    return confused


def with_replacement(definition: ast.FunctionDef, number: int, replacement: ast.AST | list) -> ast.FunctionDef:
    """Return a copy of definition in which the node of that number in ast.walk is replaced."""
    changed = copy.deepcopy(definition)
    target = next(node for k, node in enumerate(ast.walk(changed)) if k == number)
    changed = Replace(target, copy.deepcopy(replacement)).visit(changed)
    for node in ast.walk(changed):
        if isinstance(getattr(node, "body", None), list) and not node.body:
            node.body = [ast.Pass()]
    return ast.fix_missing_locations(changed)


class Replace(ast.NodeTransformer):
    def __init__(self, target: ast.AST, replacement: ast.AST | list) -> None:
        self.target, self.replacement = target, replacement

    def visit(self, node: ast.AST) -> ast.AST | list:
        return self.replacement if node is self.target else self.generic_visit(node)


def change(node: ast.AST, replacement: ast.AST | list) -> str:
    """Return what became of what, for the id: "`a - b` → `a + b`"; a line that is new is told alone."""
    old = one_line(node)
    if not isinstance(replacement, list):
        return f"`{old}` → `{one_line(replacement)}`"
    if len(replacement) == 2 and replacement[0] is node and replacement[1] is not node:
        return f"`{old}`, then `{one_line(replacement[1])}`"
    return f"`{old}` → `{'; '.join(map(one_line, replacement))}`" if replacement else f"`{old}`"


def one_line(node: ast.AST) -> str:
    return " ".join(ast.unparse(ast.fix_missing_locations(copy.deepcopy(node))).split())


def numbered(found: list[tuple[int, Mutant]]) -> list[Mutant]:
    """Return the mutants; where one line holds the same change twice, the second is told apart by a number."""
    counts: dict[str, int] = {}
    result = []
    for _, mutant in found:
        count = counts[mutant.id] = counts.get(mutant.id, 0) + 1
        new_id = mutant.id if count == 1 else f"{mutant.id} ({count})"
        result.append(Mutant(new_id, mutant.function, mutant.fault, mutant.source))
    return result


def parse(expression: str) -> ast.expr:
    return ast.parse(expression, mode="eval").body


def statement(text: str) -> ast.stmt:
    return ast.parse(text).body[0]


Fault = tuple[str, "ast.AST | list"]


def faults(node: ast.AST, confused: dict[str, list[str]]) -> Iterator[Fault]:
    """Yield (kind, what stands in node's place) for every fault that fits the node."""
    match node:
        case ast.AugAssign():
            yield from faults_of_update(node)
        case ast.Assign():
            yield from faults_of_assignment(node)
        case ast.Expr(value=ast.Call(func=ast.Name(id="scatter_add"), args=[target, ids, rows])):
            target, ids, rows = map(ast.unparse, (target, ids, rows))
            yield "forget-write", []
            yield "overwrite", statement(f"{target}[{ids}] = {rows}")
            yield "repeats-lost", statement(f"{target}[{ids}] += {rows}")
        case ast.Expr(value=ast.Call()):
            yield "forget-write", []
        case ast.BinOp():
            yield from faults_of_operation(node)
        case ast.UnaryOp(op=ast.USub(), operand=operand) if not isinstance(operand, ast.Constant):
            yield "flip-sign", operand
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            yield "mask-inverted", operand
        case ast.Attribute(attr="T", value=value):
            whole = ast.unparse(value)
            yield "transpose-lost", value
            yield "reshape-for-transpose", parse(f"{whole}.reshape({whole}.T.shape)")
        case ast.Call():
            yield from faults_of_call(node)
        case ast.If():
            yield "branch-lost", [statement("if False: pass")] if not node.orelse else node.orelse
            yield "branch-always", node.body
        case ast.Subscript(slice=ast.Slice()):
            yield from faults_of_slice(node)
        case ast.Constant(value=str(text)):
            yield from (("wrong-variable", ast.Constant(other)) for other in confused_keys(text))
        case ast.Return(value=ast.Tuple(elts=parts)):
            for k in range(len(parts) - 1):
                swapped = [*parts[:k], parts[k + 1], parts[k], *parts[k + 2 :]]
                yield "swap-returns", ast.Return(ast.Tuple(swapped, ast.Load()))
        case ast.Name(id=name, ctx=ast.Load()):
            for other in confused.get(name, []):
                yield "wrong-variable", ast.Name(other, ast.Load())


def confused_keys(text: str) -> list[str]:
    """Return parameter names of the same shape, that a slip of the pen puts in another's place."""
    pairs = [("ln_1", "ln_2"), ("gamma", "beta"), ("b_o", "b_2"), ("W_te", "W_pe"), ("W_1", "W_2")]
    return [text.replace(a, b) for pair in pairs for a, b in (pair, pair[::-1]) if a in text]


def faults_of_update(node: ast.AugAssign) -> Iterator[Fault]:
    """`x += y` and its like."""
    target, value = ast.unparse(node.target), ast.unparse(node.value)
    sum_ = isinstance(node.op, (ast.Add, ast.Sub))
    own = isinstance(node.target, ast.Name)
    yield "drop-term" if sum_ else "drop-factor", []
    yield "overwrite", statement(f"{target} = {value}")
    if sum_:
        sign = "-" if isinstance(node.op, ast.Add) else "+"
        yield "flip-sign", statement(f"{target} {sign}= {value}")
        plain = "+" if isinstance(node.op, ast.Add) else "-"
        yield "wrong-factor", statement(f"{target} {plain}= 2 * ({value})")
        yield "wrong-factor", statement(f"{target} {plain}= 0.5 * ({value})")
    elif isinstance(node.op, ast.Div):
        yield "inverse-factor", statement(f"{target} *= {value}")
    if own and not sum_:
        yield "factor-twice", [node, node]
    if isinstance(node.value, ast.Constant):
        yield from wrong_constants(node.value, lambda c: ast.AugAssign(node.target, node.op, c))


def faults_of_assignment(node: ast.Assign) -> Iterator[Fault]:
    """`dx = ...`: its sign, its size, its write forgotten, or gone into the upstream or the cache."""
    target = node.targets[0]
    if isinstance(target, ast.Subscript):
        yield "forget-write", []
        return
    value = ast.unparse(node.value)
    if value == "out" or any(made in value for made in (".full(", ".zeros(", "empty_heads(")):
        return  # where to write; nothing is written yet
    names = [part.id for part in getattr(target, "elts", [target]) if isinstance(part, ast.Name)]
    for name in filter(is_gradient, names):
        yield "flip-sign", [node, statement(f"{name} = -{name}")]
        yield "wrong-factor", [node, statement(f"{name} = 2 * {name}")]
        yield "wrong-factor", [node, statement(f"{name} = 0.5 * {name}")]
    match node.value:
        case ast.BinOp(left=ast.Name(id=left), op=ast.Mult() | ast.Add() as op, right=right):
            in_place = ast.AugAssign(ast.Name(left, ast.Store()), op, right)
            yield "in-place", [in_place, ast.Assign(node.targets, ast.Name(left, ast.Load()))]


def faults_of_operation(node: ast.BinOp) -> Iterator[Fault]:
    left, right = node.left, node.right
    a, b = f"({ast.unparse(left)})", f"({ast.unparse(right)})"
    match node.op:
        case ast.Add():
            yield "drop-term", left
            yield "drop-term", right
            yield "flip-sign", parse(f"{a} - {b}")
        case ast.Sub():
            yield "drop-term", left
            yield "drop-term", parse(f"-{b}")
            yield "flip-sign", parse(f"{a} + {b}")
        case ast.Mult():
            yield "drop-factor", left
            yield "drop-factor", right
        case ast.Div():
            yield "drop-factor", left
            yield "inverse-factor", parse(f"{a} * {b}")
        case ast.Pow():
            yield "wrong-power", left
            yield "wrong-power", parse(f"{a} ** (2 * {b})") if b != "(0.5)" else parse(f"{a} ** 0.25")
        case ast.MatMult():
            yield "swap-operands", parse(f"{b} @ {a}")
            yield "drop-factor", left
            yield "drop-factor", right
            yield "transpose-lost", parse(f"({a} @ {b}).swapaxes(-2, -1)")
            yield "reshape-for-transpose", parse(f"({a} @ {b}).swapaxes(-2, -1).reshape(({a} @ {b}).shape)")
    if not isinstance(node.op, ast.Pow):
        yield from wrong_constants(left, lambda c: ast.BinOp(c, node.op, right))
        yield from wrong_constants(right, lambda c: ast.BinOp(left, node.op, c))


def wrong_constants(node: ast.expr, put: Callable) -> Iterator[Fault]:
    """A number, or a constant in capitals, twice and half as large."""
    number = isinstance(node, ast.Constant) and isinstance(node.value, (int, float))
    if number or (isinstance(node, ast.Name) and node.id.isupper()):
        for factor in ("2", "0.5"):
            yield "wrong-factor", put(parse(f"{factor} * {ast.unparse(node)}"))


def faults_of_call(node: ast.Call) -> Iterator[Fault]:
    yield from faults_of_keywords(node)
    arguments = [ast.unparse(argument) for argument in node.args]
    match node.func, arguments:
        case ast.Attribute(value=value, attr="swapaxes"), _:
            whole = ast.unparse(value)
            yield "transpose-lost", value
            yield "reshape-for-transpose", parse(f"{whole}.reshape({ast.unparse(node)}.shape)")
        case ast.Attribute(attr="sum" | "mean" as name), _:
            other = copy.deepcopy(node)
            other.func.attr = {"sum": "mean", "mean": "sum"}[name]
            yield "wrong-reduction", other
        case ast.Attribute(value=xp, attr="multiply"), [a, b]:
            yield "drop-factor", parse(f"{a} * 1.0")
            yield "drop-factor", parse(f"({b}) * {ast.unparse(xp)}.ones_like({a})")
        case (ast.Attribute(attr="matmul") | ast.Name(id="matmul")) as product, [a, b]:
            whole = f"{ast.unparse(product)}({a}, {b})"
            yield "swap-operands", parse(f"{ast.unparse(product)}({b}, {a})")
            yield "transpose-lost", parse(f"{whole}.T")
            yield "reshape-for-transpose", parse(f"{whole}.T.reshape({whole}.shape)")
        case ast.Attribute(attr="concatenate"), [parts]:
            yield "wrong-order", parse(f"xp.concatenate({parts}[::-1], axis=-1)")
        case (ast.Attribute(attr="exp" | "sqrt"), [argument]):
            yield "drop-function", parse(argument)
        case ast.Name(id="max"), [a, _]:
            yield "guard-lost", parse(a)
        case ast.Name(id="reversed"), [a]:
            yield "wrong-order", parse(a)
        case ast.Name(id="row_dot"), [a, b]:
            yield "keepdims-lost", parse(f"row_dot({a}, {b})[..., 0]")
            yield "drop-factor", parse(f"{a}.sum(axis=-1, keepdims=True)")
            yield "wrong-axis", parse(f"(({a}) * ({b})).sum(axis=0, keepdims=True)")
        case ast.Name(id="split_heads"), [t, h]:
            yield "reshape-for-transpose", parse(f"{t}.reshape(*{t}.shape[:-2], {h}, {t}.shape[-2], -1)")
        case ast.Name(id="merge_heads"), [t]:
            yield "reshape-for-transpose", parse(f"{t}.reshape(*{t}.shape[:-3], {t}.shape[-2], -1)")
        case ast.Name(id="softmax_backward"), [upstream, cached]:
            yield "mask-lost", parse(f"{upstream} * {cached}")
        case ast.Name(id=name), [upstream, *_] if name.endswith("layernorm_backward"):
            yield "drop-op", parse(f"({upstream}, None, None)")


def faults_of_keywords(node: ast.Call) -> Iterator[Fault]:
    """axis=, keepdims= and out= of a call, wrong or lost."""
    for k, keyword in enumerate(node.keywords):
        without = copy.deepcopy(node)
        del without.keywords[k]
        if keyword.arg == "axis":
            other = copy.deepcopy(node)
            other.keywords[k].value = parse("0" if ast.unparse(keyword.value) == "-1" else "-1")
            yield "wrong-axis", other
            yield "wrong-axis", without
        elif keyword.arg == "keepdims":
            yield "keepdims-lost", without
        elif keyword.arg == "out":
            yield "out-ignored", without
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
    if "axis" in given and "keepdims" not in given and ast.unparse(node.func).endswith(".sum"):
        yield "keepdims-added", parse(f"{ast.unparse(node.func)}(axis={given['axis']}, keepdims=True)")


def faults_of_slice(node: ast.Subscript) -> Iterator[Fault]:
    """`[:T]` and `[T:]`: off by one, or the other side."""
    whole, lower, upper = ast.unparse(node.value), node.slice.lower, node.slice.upper
    if isinstance(node.ctx, ast.Store) and upper is not None:
        shifted = parse(f"{whole}[1:{ast.unparse(upper)} + 1]")
        shifted.ctx = ast.Store()
        yield "off-by-one", shifted
    elif lower is not None or upper is not None:
        bound = ast.unparse(lower or upper)
        yield "wrong-slice", parse(f"{whole}[:{bound}]" if lower is not None else f"{whole}[{bound}:]")


def whole_function_faults(function: str, plain: ast.FunctionDef) -> Iterator[tuple[int, Mutant]]:
    """Yield the faults of a function as a whole: what it reads at the start, what it does before it returns."""
    arguments = [argument.arg for argument in plain.args.args if argument.arg != "self"]
    upstream, cached = arguments[0], arguments[1]
    at_start = {
        "stale-cache": f"{cached} = previous({cached})",
        "upstream-ignored": f"{upstream} = ones_instead({upstream})",
        "upstream-clipped": f"{upstream} = clipped({upstream})",
        "float32-inside": f"{upstream} = through_float32({upstream})",
    }
    at_end = {"write-upstream": "scribble(given)", "write-cache": f"scribble({cached})"}
    at_return = {"dtype-promoted": "as_float64", "buffer-reused": "same_buffer"}
    for fault, text in at_start.items():
        changed = copy.deepcopy(plain)
        changed.body.insert(0, statement(text))
        yield whole(function, fault, f"`{text}`", changed)
    for fault, text in at_end.items():
        changed = copy.deepcopy(plain)
        result = f"result = {ast.unparse(plain.body[-1].value)}"
        changed.body[-1:] = [*ast.parse(f"{result}\n{text}").body, ast.Return(ast.Name("result", ast.Load()))]
        changed.body.insert(0, statement(f"given = {upstream}"))
        yield whole(function, fault, f"`{text.replace('given', upstream)}`", changed)
    value = plain.body[-1].value
    if ast.unparse(value) == "g" or function.startswith("Model"):
        return  # a Parameters, not arrays
    for fault, helper in at_return.items():
        changed = copy.deepcopy(plain)
        changed.body[-1].value = parse(f"{helper}({ast.unparse(value)})")
        yield whole(function, fault, f"`return {helper}(...)`", changed)


def whole(function: str, fault: str, change: str, changed: ast.FunctionDef) -> tuple[int, Mutant]:
    source = ast.unparse(ast.fix_missing_locations(changed))
    return 10**6, Mutant(f"{function} {fault} {change}", function, fault, source)


FUNCTIONS = backward_functions()
