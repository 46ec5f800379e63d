"""A stand-in for CuPy where there is no GPU: NumPy's numbers behind a device's walls.

Code that runs here and never leaves `xp` runs on CUDA too. The stand-in offers only names and
keywords that CuPy 13 and later offer, and refuses what CuPy refuses, or what it would do only by
a hidden copy between host and device:

- host arrays in functions, operators, indices and assignments (numbers and NumPy scalars may pass)
- implicit conversion: np.asarray(x), np.exp(x), np.zeros(3)[x], range(x)
- lists of device arrays in array([...]), one kernel launch an element

As in CuPy, x[0] and x.sum() are 0-d device arrays; float(x), bool(x) and x.item() wait for the
device; an array of ids out of range wraps silently instead of raising; overflow and 0/0 do not warn.
"""

from __future__ import annotations

from builtins import all as all_of
from builtins import any as any_of  # this module's own all, any and sum are the device's
from builtins import sum as sum_of
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

# What CuPy spells like NumPy: names and the parameters they take. A name or a keyword that is
# not here fails in the tests as it would fail on the GPU.
CREATION = {
    "empty": "shape dtype order",
    "zeros": "shape dtype order",
    "ones": "shape dtype order",
    "full": "shape fill_value dtype order",
    "arange": "start stop step dtype",
    "linspace": "start stop num endpoint retstep dtype axis",
    "eye": "N M k dtype order",
    "tri": "N M k dtype",
}
FUNCTIONS = {
    "all": "a axis out keepdims",
    "any": "a axis out keepdims",
    "argmax": "a axis dtype out keepdims",
    "argmin": "a axis dtype out keepdims",
    "argpartition": "a kth axis",
    "argsort": "a axis kind",
    "array_equal": "a1 a2 equal_nan",
    "ascontiguousarray": "a dtype",
    "bincount": "x weights minlength",
    "broadcast_to": "array shape",
    "clip": "a a_min a_max out",
    "concatenate": "tup axis out dtype casting",
    "copyto": "dst src casting where",
    "count_nonzero": "a axis",
    "cumsum": "a axis dtype out",
    "diff": "a n axis prepend append",
    "dot": "a b out",
    "empty_like": "prototype dtype order subok shape",
    "expand_dims": "a axis",
    "flatnonzero": "a",
    "flip": "a axis",
    "full_like": "a fill_value dtype order subok shape",
    "isin": "element test_elements assume_unique invert",
    "max": "a axis out keepdims",
    "mean": "a axis dtype out keepdims",
    "min": "a axis out keepdims",
    "moveaxis": "a source destination",
    "nonzero": "a",
    "ones_like": "a dtype order subok shape",
    "outer": "a b out",
    "prod": "a axis dtype out keepdims",
    "ravel": "a order",
    "repeat": "a repeats axis",
    "reshape": "a newshape order",
    "roll": "a shift axis",
    "searchsorted": "a v side sorter",
    "sort": "a axis kind",
    "split": "ary indices_or_sections axis",
    "squeeze": "a axis",
    "stack": "tup axis out dtype casting",
    "std": "a axis dtype out ddof keepdims",
    "sum": "a axis dtype out keepdims",
    "swapaxes": "a axis1 axis2",
    "take": "a indices axis out",
    "take_along_axis": "a indices axis",
    "tensordot": "a b axes",
    "tile": "A reps",
    "transpose": "a axes",
    "tril": "m k",
    "triu": "m k",
    "unique": "ar return_index return_inverse return_counts axis equal_nan",
    "var": "a axis dtype out ddof keepdims",
    "vdot": "a b",
    "where": "condition x y",
    "zeros_like": "a dtype order subok shape",
}
TAKE_A_LIST = {"concatenate", "stack"}
UFUNCS = [
    "abs",
    "add",
    "ceil",
    "conj",
    "conjugate",
    "cos",
    "divide",
    "equal",
    "exp",
    "expm1",
    "floor",
    "floor_divide",
    "greater",
    "greater_equal",
    "imag",
    "invert",
    "isfinite",
    "isinf",
    "isnan",
    "less",
    "less_equal",
    "log",
    "log1p",
    "log2",
    "logaddexp",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "matmul",
    "maximum",
    "minimum",
    "multiply",
    "negative",
    "not_equal",
    "power",
    "real",
    "reciprocal",
    "remainder",
    "sign",
    "signbit",
    "sin",
    "sqrt",
    "square",
    "subtract",
    "tanh",
    "true_divide",
]
UFUNC_KEYWORDS = "out dtype casting"
METHODS = {
    "all": "axis out keepdims",
    "any": "axis out keepdims",
    "argmax": "axis out dtype keepdims",
    "argmin": "axis out dtype keepdims",
    "argsort": "axis kind",
    "astype": "dtype order casting subok copy",
    "clip": "min max out",
    "conj": "",
    "copy": "order",
    "cumsum": "axis dtype out",
    "diagonal": "offset axis1 axis2",
    "dot": "b out",
    "fill": "value",
    "flatten": "order",
    "max": "axis out keepdims",
    "mean": "axis dtype out keepdims",
    "min": "axis out keepdims",
    "nonzero": "",
    "prod": "axis dtype out keepdims",
    "ravel": "order",
    "repeat": "repeats axis",
    "round": "decimals out",
    "sort": "axis kind",
    "squeeze": "axis",
    "std": "axis dtype out ddof keepdims",
    "sum": "axis dtype out keepdims",
    "swapaxes": "axis1 axis2",
    "take": "indices axis out",
    "var": "axis dtype out ddof keepdims",
    "view": "dtype",
}
BINARY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "truediv": np.true_divide,
    "floordiv": np.floor_divide,
    "mod": np.remainder,
    "pow": np.power,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "matmul": np.matmul,
}
COMPARISONS = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
UNARY = {"neg": np.negative, "pos": np.positive, "abs": np.absolute, "invert": np.invert}

# Types and constants are NumPy's own in CuPy too.
dtype, finfo, iinfo = np.dtype, np.finfo, np.iinfo
bool_, int8, int16, int32, int64 = np.bool_, np.int8, np.int16, np.int32, np.int64
uint8, uint16, uint32, uint64 = np.uint8, np.uint16, np.uint32, np.uint64
float16, float32, float64, complex64, complex128 = np.float16, np.float32, np.float64, np.complex64, np.complex128
inf, nan, pi, e, newaxis = np.inf, np.nan, np.pi, np.e, np.newaxis


class ndarray:
    """An array on the device. Made by `asarray` and by the functions, never directly."""

    __slots__ = ("_host",)
    __array_priority__ = 100
    __array_ufunc__ = None  # np.exp(x) raises TypeError; host + x comes to __radd__, which refuses
    __hash__ = None

    def __init__(self, host: np.ndarray) -> None:
        self._host = host

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise TypeError("implicit conversion to a NumPy array is not allowed; use asnumpy or .get()")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"strict_device.ndarray has no attribute {name!r}")

    shape = property(lambda self: self._host.shape)
    dtype = property(lambda self: self._host.dtype)
    ndim = property(lambda self: self._host.ndim)
    size = property(lambda self: self._host.size)
    nbytes = property(lambda self: self._host.nbytes)
    itemsize = property(lambda self: self._host.itemsize)
    strides = property(lambda self: self._host.strides)
    T = property(lambda self: ndarray(self._host.T))
    mT = property(lambda self: ndarray(self._host.mT))
    real = property(lambda self: ndarray(self._host.real))
    imag = property(lambda self: ndarray(self._host.imag))

    def reshape(self, *shape: Any, order: str = "C") -> ndarray:
        return ndarray(self._host.reshape(*shape, order=order))

    def transpose(self, *axes: Any) -> ndarray:
        return ndarray(self._host.transpose(*axes))

    def __len__(self) -> int:
        return len(self._host)

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: Any) -> ndarray:
        return ndarray(self._host[_index(self._host.shape, key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        with np.errstate(all="ignore"):
            self._host[_index(self._host.shape, key)] = _operand(value)

    # The explicit ways out, each of which waits for the device.

    def __float__(self) -> float:
        return float(self._host)

    def __int__(self) -> int:
        return int(self._host)

    def __complex__(self) -> complex:
        return complex(self._host)

    def __bool__(self) -> bool:
        return bool(self._host)

    def item(self) -> Any:
        return self._host.item()

    def tolist(self) -> Any:
        return self._host.tolist()

    def tobytes(self, order: str = "C") -> bytes:
        return self._host.tobytes(order)

    def get(self) -> np.ndarray:
        return self._host.copy()

    def set(self, host: np.ndarray) -> None:
        self._host[...] = host

    def __repr__(self) -> str:
        return repr(self._host)

    def __str__(self) -> str:
        return str(self._host)

    def __format__(self, spec: str) -> str:
        return format(self._host[()], spec)


def _refuse(value: Any) -> TypeError:
    return TypeError(f"Unsupported type {type(value)}: only device arrays and scalars may be mixed; use asarray")


def _operand(value: Any) -> Any:
    """Unwrap what stands beside device arrays in arithmetic: a device array or a scalar."""
    if isinstance(value, ndarray):
        return value._host
    if isinstance(value, (bool, int, float, complex, np.generic)):
        return value
    raise _refuse(value)


def _argument(value: Any) -> Any:
    """Unwrap any other argument: a host array may not pass, nor a device array inside a list."""
    if isinstance(value, ndarray):
        return value._host
    if isinstance(value, np.ndarray):
        raise _refuse(value)
    if isinstance(value, (list, tuple)):
        if any_of(isinstance(part, ndarray) for part in value):
            raise TypeError("a list of device arrays: every element would be copied by a call of its own; use stack")
        return type(value)(_argument(part) for part in value)
    return value


def _result(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic, bool)):
        return ndarray(np.asarray(value))
    if isinstance(value, (list, tuple)):
        return type(value)(_result(part) for part in value)
    return value


def _run(function: Any, arguments: list, keywords: dict[str, Any]) -> Any:
    """Call NumPy's function on unwrapped arguments; keep out='s identity."""
    keywords = dict(keywords)
    out = keywords.get("out")
    if out is not None and not isinstance(out, ndarray):
        raise _refuse(out)
    keywords = {name: _argument(value) for name, value in keywords.items()}
    with np.errstate(all="ignore"):
        value = function(*arguments, **keywords)
    return _result(value) if out is None else out


def _check_keywords(name: str, arguments: tuple, keywords: dict[str, Any], allowed: str) -> None:
    unknown = set(keywords) - set(allowed.split())
    if unknown:
        raise TypeError(f"{name} takes no {', '.join(sorted(unknown))} in CuPy")
    if len(arguments) > len(allowed.split()):
        raise TypeError(f"{name} takes at most {len(allowed.split())} arguments, got {len(arguments)}")


def _creation(name: str, allowed: str) -> Any:
    def function(*arguments: Any, **keywords: Any) -> ndarray:
        _check_keywords(name, arguments, keywords, allowed)
        return _run(getattr(np, name), [_argument(value) for value in arguments], keywords)

    return function


def _function(name: str, allowed: str) -> Any:
    def function(array: Any, *arguments: Any, **keywords: Any) -> Any:
        _check_keywords(name, (array, *arguments), keywords, allowed)
        if name in TAKE_A_LIST:
            if not all_of(isinstance(part, ndarray) for part in array):
                raise TypeError(f"{name}: only device arrays can be joined")
            array = [part._host for part in array]
        elif isinstance(array, ndarray):
            array = array._host
        else:
            raise _refuse(array)
        return _run(getattr(np, name), [array, *(_argument(value) for value in arguments)], keywords)

    return function


def _ufunc(name: str) -> Any:
    def function(*operands: Any, **keywords: Any) -> ndarray:
        _check_keywords(name, (), keywords, UFUNC_KEYWORDS)
        return _run(getattr(np, name), [_operand(value) for value in operands], keywords)

    return function


def _method(name: str, allowed: str) -> Any:
    def method(self: ndarray, *arguments: Any, **keywords: Any) -> Any:
        _check_keywords(name, arguments, keywords, allowed)
        return _run(getattr(self._host, name), [_argument(value) for value in arguments], keywords)

    return method


def _operator(function: Any, reflected: bool = False) -> Any:
    def operator(self: ndarray, other: Any) -> ndarray:
        operands = [_operand(other), self._host] if reflected else [self._host, _operand(other)]
        return _run(function, operands, {})

    return operator


def _in_place(function: Any) -> Any:
    def operator(self: ndarray, other: Any) -> ndarray:
        return _run(function, [self._host, _operand(other)], {"out": self})

    return operator


def _unary(function: Any) -> Any:
    return lambda self: _run(function, [self._host], {})


def _index(shape: tuple[int, ...], key: Any) -> tuple:
    """Return key for NumPy: unwrapped, ids wrapped into range, one element as a 0-d view."""
    parts = [_index_part(part) for part in (key if isinstance(key, tuple) else (key,))]
    if not any_of(part is Ellipsis for part in parts):
        parts.append(Ellipsis)
    n_axes = [_n_axes(part) for part in parts]
    axis = 0
    for number, part in enumerate(parts):
        if isinstance(part, np.ndarray) and part.dtype.kind in "iu":
            parts[number] = part.astype(np.int64) % shape[axis]  # CUDA's kernels wrap; they cannot raise
        axis += len(shape) - sum_of(n_axes) if part is Ellipsis else n_axes[number]
    return tuple(parts)


def _n_axes(part: Any) -> int:
    """Return how many axes one part of an index takes up, an Ellipsis left out."""
    if part is None or part is Ellipsis:
        return 0
    return part.ndim if isinstance(part, np.ndarray) and part.dtype.kind == "b" else 1


def _index_part(part: Any) -> Any:
    if isinstance(part, list):
        return np.asarray(_argument(part))
    return _argument(part)


def asarray(a: Any, dtype: Any = None, order: str | None = None) -> ndarray:
    """Move a host array, a number or nested lists of numbers to the device; a device array stays."""
    if isinstance(a, ndarray):
        host = np.asarray(a._host, dtype=dtype, order=order)
        return a if host is a._host else ndarray(host)
    return array(a, dtype=dtype, order=order or "K")


def array(obj: Any, dtype: Any = None, copy: bool = True, order: str = "K", ndmin: int = 0) -> ndarray:
    """Copy a host array, a number, nested lists of numbers or a device array to the device."""
    if not isinstance(obj, np.ndarray):
        obj = _argument(obj)
    return ndarray(np.array(obj, dtype=dtype, copy=copy, order=order, ndmin=ndmin))


def asnumpy(a: ndarray) -> np.ndarray:
    """Copy a device array to the host."""
    return a.get()


def einsum(subscripts: str, *operands: ndarray, **keywords: Any) -> ndarray:
    """Einstein summation over device arrays."""
    _check_keywords("einsum", (), keywords, "dtype optimize out")
    return _run(np.einsum, [subscripts, *(_operand(value) for value in operands)], keywords)


def shares_memory(a: ndarray, b: ndarray) -> bool:
    """Return whether two device arrays share memory."""
    return np.shares_memory(_operand(a), _operand(b))


class Stream:
    """The one stream; it counts how often it was waited for."""

    def __init__(self) -> None:
        self.n_synchronized = 0

    def synchronize(self) -> None:
        self.n_synchronized += 1


class CUDARuntimeError(RuntimeError):
    """What CuPy raises for CUDA's own errors."""


_stream = Stream()
cuda = SimpleNamespace(
    Stream=Stream,
    get_current_stream=lambda: _stream,
    runtime=SimpleNamespace(getDeviceCount=lambda: 1, CUDARuntimeError=CUDARuntimeError),
)


def scatter_add(a: ndarray, slices: Any, value: Any) -> None:
    """cupyx.scatter_add: a[slices] += value, where a repeated index adds up."""
    if not isinstance(a, ndarray):
        raise _refuse(a)
    np.add.at(a._host, _index(a.shape, slices), _operand(value))


def erf(x: ndarray) -> ndarray:
    """cupyx.scipy.special.erf: real numbers only."""
    from scipy import special

    if x.dtype.kind == "c":
        raise TypeError(f"Wrong type ({x.dtype}) of arguments for erf")
    return _run(special.erf, [_operand(x)], {})


def cupyx_modules() -> dict[str, ModuleType]:
    """Return what stands in for cupyx, by the names to import it under."""
    modules = {name: ModuleType(name) for name in ("cupyx", "cupyx.scipy", "cupyx.scipy.special")}
    modules["cupyx"].scatter_add = scatter_add
    modules["cupyx"].scipy = modules["cupyx.scipy"]
    modules["cupyx.scipy"].special = modules["cupyx.scipy.special"]
    modules["cupyx.scipy.special"].erf = erf
    return modules


def __getattr__(name: str) -> Any:
    raise AttributeError(f"strict_device has no {name!r}: CuPy lacks it, or it is to be added to the stand-in")


for _name, _allowed in CREATION.items():
    globals()[_name] = _creation(_name, _allowed)
for _name, _allowed in FUNCTIONS.items():
    globals()[_name] = _function(_name, _allowed)
for _name in UFUNCS:
    globals()[_name] = _ufunc(_name)
for _name, _allowed in METHODS.items():
    setattr(ndarray, _name, _method(_name, _allowed))
for _name, _numpy_ufunc in BINARY.items():
    setattr(ndarray, f"__{_name}__", _operator(_numpy_ufunc))
    setattr(ndarray, f"__r{_name}__", _operator(_numpy_ufunc, reflected=True))
    if _name != "matmul":  # CuPy has no __imatmul__
        setattr(ndarray, f"__i{_name}__", _in_place(_numpy_ufunc))
for _name, _numpy_ufunc in COMPARISONS.items():
    setattr(ndarray, f"__{_name}__", _operator(_numpy_ufunc))
for _name, _numpy_ufunc in UNARY.items():
    setattr(ndarray, f"__{_name}__", _unary(_numpy_ufunc))
