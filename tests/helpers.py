"""What the tests of ops and model share: random arrays, memory layouts, and the checks of the op contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from numpy_gpt.backend import to_numpy


class Op(NamedTuple):
    """An op as its tests see it."""

    forward: Callable[..., tuple[Any, Any]]  # (*inputs) -> y (an array or a tuple of them), cache
    backward: Callable[[Any, Any], Any]  # (dy, cache) -> the gradient of every input, in order
    names: tuple[str, ...]  # of the inputs


# Strategies

seeds = st.integers(0, 2**32 - 1)


def shapes(min_rank: int, max_rank: int, max_side: int = 4) -> st.SearchStrategy[tuple[int, ...]]:
    """Draw a shape; sides of 1 are common."""
    return st.lists(st.integers(1, max_side), min_size=min_rank, max_size=max_rank).map(tuple)


# Arrays


def random_array(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any = "float64") -> np.ndarray:
    """Draw standard normal numbers; complex ones have a smaller imaginary part."""
    values = np.asarray(rng.standard_normal(shape), dtype=np.dtype(dtype))
    if values.dtype.kind == "c":
        values += 0.2j * rng.standard_normal(shape)
    return values


def upstream(rng: np.random.Generator, y: Any) -> Any:
    """Draw a random gradient for y, which may be a tuple."""
    if isinstance(y, tuple):
        return tuple(upstream(rng, part) for part in y)
    return random_array(rng, y.shape, y.dtype)


def _sliced(x: np.ndarray) -> np.ndarray:
    big = np.full([2 * n + 1 for n in x.shape], 9e9, x.dtype)
    view = big[tuple(slice(1, None, 2) for _ in x.shape)]
    view[...] = x
    return view


def _read_only(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x.setflags(write=False)
    return x


LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "C": np.ascontiguousarray,
    "F": np.asfortranarray,
    "sliced": _sliced,
    "negative": lambda x: np.flip(np.flip(x).copy()),
    "read-only": _read_only,
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),  # repeats x[0]: stride 0, read-only
}
layouts = st.sampled_from(sorted(LAYOUTS))


def walk(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, array) for every array in nested tuples, lists and mappings."""
    if isinstance(tree, Mapping):
        for name, part in tree.items():
            yield from walk(part, f"{path}.{name}")
    elif isinstance(tree, (tuple, list)):
        for number, part in enumerate(tree):
            yield from walk(part, f"{path}[{number}]")
    elif hasattr(tree, "dtype"):
        yield path, tree


def snapshot(tree: Any) -> dict[str, tuple]:
    """Return shape, dtype and bits of every array in tree, to be compared later."""
    return {path: (x.shape, x.dtype, x.tobytes()) for path, x in walk(tree)}


# Assertions


def assert_dtype(tree: Any, dtype: Any, name: str = "") -> None:
    """Hold every real or complex array in tree to dtype; ids and masks may pass."""
    found = [(path, x.dtype) for path, x in walk(tree, name) if x.dtype.kind in "fc"]
    assert found, f"{name} holds no floating-point array"
    wrong = [(path, str(found_dtype)) for path, found_dtype in found if found_dtype != dtype]
    assert not wrong, f"not {dtype}: {wrong}"


def assert_close(name: str, actual: Any, expected: Any, rtol: float, atol: float = 0.0) -> None:
    """Hold every element to rtol times the tensor's largest magnitude, plus atol; say which is worst."""
    actual, expected = to_numpy(actual), to_numpy(expected)
    assert actual.shape == expected.shape, f"{name} has shape {actual.shape}, expected {expected.shape}"
    if actual.size == 0:
        return
    assert np.isfinite(expected).all(), f"the expected {name} is not finite"
    error = np.nan_to_num(np.abs(actual - expected), nan=np.inf)
    worst = np.unravel_index(error.argmax(), error.shape)
    tolerance = rtol * np.abs(expected).max() + atol
    place = ", ".join(str(int(i)) for i in worst)
    share = error[worst] / max(tolerance, np.finfo(float).tiny)
    assert error[worst] <= tolerance, (
        f"{name}[{place}]: {actual[worst]} against {expected[worst]}, {share:.3g} of tolerance"
    )


def central_differences(f: Callable[[np.ndarray], Any], x: np.ndarray, h: float = 1e-3) -> np.ndarray:
    """Return df/dx for every element of x from four points around it; the error falls as h⁴."""
    gradient, x = np.empty_like(x), x.copy()
    for i in np.ndindex(x.shape):
        here, value = x[i], []
        for step in (-2, -1, 1, 2):
            x[i] = here + step * h
            value.append(f(x))
        x[i] = here
        gradient[i] = (value[0] - 8 * value[1] + 8 * value[2] - value[3]) / (12 * h)
    return gradient


def complex_step(f: Callable[[np.ndarray], Any], x: np.ndarray, h: float = 1e-30) -> np.ndarray:
    """Return df/dx = Im f(x + ih) / h for every element of x: no subtraction, so no rounding to fear."""
    gradient, x = np.empty_like(x), x.astype(np.complex128)
    for i in np.ndindex(x.shape):
        x[i] += 1j * h
        gradient[i] = f(x).imag / h
        x[i] = x[i].real
    return gradient


# The op contract


def gradients(op: Op, dy: Any, cache: Any) -> tuple:
    """Return op's gradients as a tuple."""
    result = op.backward(dy, cache)
    return result if isinstance(result, tuple) else (result,)


def inner(dy: Any, y: Any) -> Any:
    """Return Σ dy·y, not conjugated."""
    if isinstance(y, tuple):
        return sum(inner(*pair) for pair in zip(dy, y))
    return (dy * y).sum()


def _check_against(
    differentiate: Callable, op: Op, inputs: tuple, rng: np.random.Generator, rtol: float, atol: float, dtype: Any
) -> None:
    y, cache = op.forward(*inputs)
    dy = upstream(rng, y)
    others = [x.astype(dtype) for x in inputs]
    for number, (name, gradient) in enumerate(zip(op.names, gradients(op, dy, cache), strict=True)):

        def f(x: np.ndarray, number: int = number) -> Any:
            return inner(dy, op.forward(*others[:number], x, *others[number + 1 :])[0])

        assert_close(f"d{name}", gradient, differentiate(f, inputs[number]), rtol, atol)


def check_gradients(op: Op, inputs: tuple, rng: np.random.Generator, rtol: float = 1e-9, atol: float = 1e-11) -> None:
    """Hold the backward to central differences of the forward in every element, under a random upstream.

    Complex inputs hold it to the analytic derivative, which conjugates nothing.
    """
    _check_against(central_differences, op, inputs, rng, rtol, atol, inputs[0].dtype)


def check_complex_step(op: Op, inputs: tuple, rng: np.random.Generator, rtol: float = 1e-11) -> None:
    """Hold the backward to the complex step, and the complex forward on the real line to the real one."""
    _check_against(complex_step, op, inputs, rng, rtol, 1e-14, np.complex128)
    y, _ = op.forward(*inputs)
    y_complex, _ = op.forward(*(x.astype(np.complex128) for x in inputs))
    for (path, real), (_, continued) in zip(walk(y, "y"), walk(y_complex, "y")):
        assert_close(path, continued, real, 1e-13, 1e-14)


def check_contract(op: Op, inputs: tuple, rng: np.random.Generator) -> None:
    """dtype and shape are kept; nothing given is written into; the same call gives the same bits."""
    dtype, before = inputs[0].dtype, snapshot(inputs)
    y, cache = op.forward(*inputs)
    dy = upstream(rng, y)
    given = snapshot((y, cache, dy))
    first = gradients(op, dy, cache)
    assert_dtype((y, cache), dtype, "forward")
    assert_dtype(first, dtype, "backward")
    assert [gradient.shape for gradient in first] == [x.shape for x in inputs]
    assert snapshot((y, cache, dy)) == given, "backward wrote into dy, y or the cache"
    # Again, after another call in between
    bits = snapshot(first)
    others = tuple(random_array(rng, x.shape, dtype) for x in inputs)
    _, other_cache = op.forward(*others)
    gradients(op, dy, other_cache)
    assert snapshot(gradients(op, dy, cache)) == bits, "a second backward gave other bits"
    assert snapshot(first) == bits, "a second backward wrote into the first one's gradients"
    assert snapshot(op.forward(*inputs)) == snapshot((y, cache)), "a second forward gave other bits"
    assert snapshot(inputs) == before, "an input was written into"


def check_layout(op: Op, inputs: tuple, layouts: list[str], rng: np.random.Generator) -> None:
    """Memory layout is no matter: layouts[0] for the upstream, then one an input."""
    inputs = tuple(LAYOUTS[layout](x) for layout, x in zip(layouts[1:], inputs))
    y, cache = op.forward(*inputs)
    dy = upstream(rng, y)
    dy = tuple(map(LAYOUTS[layouts[0]], dy)) if isinstance(dy, tuple) else LAYOUTS[layouts[0]](dy)
    y_plain, cache_plain = op.forward(*(x.copy(order="C") for x in inputs))
    dy_plain = tuple(part.copy(order="C") for part in dy) if isinstance(dy, tuple) else dy.copy(order="C")
    found = walk((y, gradients(op, dy, cache)))
    plain = walk((y_plain, gradients(op, dy_plain, cache_plain)))
    for (path, x), (_, x_plain) in zip(found, plain, strict=True):
        assert_close(path, x, x_plain, 1e-13, 1e-14)


def check_out(
    backward: Callable[..., Any], op: Op, inputs: tuple, rng: np.random.Generator, first: int, single: bool = False
) -> None:
    """backward(dy, cache, out=...) fills and returns the given arrays, bit for bit the fresh ones.

    first: the number of the first gradient that has a place in out; single: out is no tuple.
    """
    y, cache = op.forward(*inputs)
    dy = upstream(rng, y)
    fresh = backward(dy, cache)
    buffers = tuple(np.full_like(gradient, np.nan) for gradient in fresh[first:])
    given = backward(dy, cache, out=buffers[0] if single else buffers)
    assert snapshot(given) == snapshot(fresh)
    for gradient, buffer in zip(given[first:], buffers, strict=True):
        assert np.shares_memory(gradient, buffer)
    assert snapshot(given[first:]) == snapshot(buffers)


def to_device(xp: Any, tree: Any) -> Any:
    """Move an array, or a tuple of them, to xp."""
    return tuple(to_device(xp, part) for part in tree) if isinstance(tree, tuple) else xp.asarray(tree)


def device_tolerance(xp: Any, dtype: str) -> float:
    """Return how far xp may be from NumPy; a GPU adds up in another order."""
    return {"float32": 1e-6, "float64": 1e-13}[dtype] * (10 if xp.__name__ == "cupy" else 1)


def check_device(xp: Any, op: Op, inputs: tuple, rng: np.random.Generator) -> None:
    """xp gives NumPy's results, in its own arrays."""
    y, cache = op.forward(*inputs)
    dy = upstream(rng, y)
    y_device, cache_device = op.forward(*to_device(xp, inputs))
    gradients_device = gradients(op, to_device(xp, dy), cache_device)
    tolerance = device_tolerance(xp, str(inputs[0].dtype))
    found = list(walk((y_device, gradients_device)))
    for (path, on_device), (_, expected) in zip(found, walk((y, gradients(op, dy, cache))), strict=True):
        assert xp is np or isinstance(on_device, xp.ndarray), f"{path} left the device"
        assert on_device.dtype == inputs[0].dtype
        assert_close(path, on_device, expected, tolerance, tolerance)
