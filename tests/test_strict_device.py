"""The stand-in for CuPy: each refusal is real, and each allowed thing does what NumPy does."""

import numpy as np
import pytest
import strict_device as xp

from numpy_gpt.backend import array_module


@pytest.fixture
def x():
    return xp.asarray(np.arange(6.0, dtype="float32").reshape(2, 3))


HOST = np.ones((2, 3), "float32")
REFUSED = {
    "operator": lambda x: x + HOST,
    "reflected operator": lambda x: HOST + x,
    "0-d host array": lambda x: x * np.array(2.0),
    "comparison": lambda x: x < HOST,
    "reflected comparison": lambda x: HOST == x,
    "matmul": lambda x: x @ HOST.T,
    "reflected matmul": lambda x: HOST.T @ x,
    "in place": lambda x: x.__iadd__(HOST),
    "in place on the host": lambda x: HOST.copy().__iadd__(x),
    "list operand": lambda x: x * [1, 2, 3],
    "ufunc": lambda x: xp.multiply(x, HOST),
    "ufunc out": lambda x: xp.multiply(x, x, out=HOST.copy()),
    "ufunc of a host array": lambda x: xp.exp(HOST),
    "where": lambda x: xp.where(x > 1, x, HOST),
    "where condition": lambda x: xp.where(HOST > 1, x, 0),
    "concatenate": lambda x: xp.concatenate([x, HOST]),
    "split": lambda x: xp.split(HOST, 2),
    "einsum": lambda x: xp.einsum("ij,ij->i", x, HOST),
    "vdot": lambda x: xp.vdot(x, HOST),
    "matmul function": lambda x: xp.matmul(x, HOST.T),
    "copyto": lambda x: xp.copyto(x, HOST),
    "sum out": lambda x: x.sum(axis=0, out=np.empty(3, "float32")),
    "take": lambda x: x.take(np.array([0]), axis=0),
    "index": lambda x: x[np.array([0, 1])],
    "index in a tuple": lambda x: x[np.array([0, 1]), 0],
    "mask": lambda x: x[HOST > 0],
    "assignment": lambda x: x.__setitem__(0, HOST[0]),
    "assignment of a list": lambda x: x.__setitem__(0, [1, 2, 3]),
    "assignment at a host index": lambda x: x.__setitem__(np.array([0]), 1),
    "assignment on the host": lambda x: HOST.copy().__setitem__(0, x[0]),
    "np.asarray": np.asarray,
    "np.array of a list": lambda x: np.array([x[0, 0], x[0, 1]]),
    "np.exp": np.exp,
    "np.sum": lambda x: np.add.reduce(x),
    "np.concatenate": lambda x: np.concatenate([x, x]),
    "list of device scalars": lambda x: xp.array([x[0, 0], x[0, 1]]),
    "list of device arrays": lambda x: xp.asarray([x[0], x[1]]),
    "range": lambda x: range(xp.asarray(3)),
    "host shape": lambda x: np.zeros(xp.asarray(3)),
    "list index": lambda x: [1, 2][xp.asarray(1)],
    "hash": hash,
    "bytes": memoryview,
    "keyword CuPy lacks": lambda x: xp.exp(x, where=x > 1),
    "method keyword CuPy lacks": lambda x: x.sum(initial=0),
    "function keyword CuPy lacks": lambda x: xp.concatenate([x, x], where=None),
    "narrowing in place": lambda x: xp.arange(3).__iadd__(0.5),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(x, name):
    before = x.get()
    with pytest.raises(TypeError):
        REFUSED[name](x)
    np.testing.assert_array_equal(x.get(), before)


@pytest.mark.parametrize("attempt", [lambda x: float(x), lambda x: bool(x), lambda x: x.item()])
def test_only_one_element_becomes_a_number(x, attempt):
    with pytest.raises((TypeError, ValueError)):
        attempt(x)


def test_host_index_by_a_device_array(x):
    with pytest.raises((TypeError, IndexError)):
        HOST[xp.asarray([0])]


@pytest.mark.parametrize("name", ["errstate", "trapz", "vectorize", "nditer", "apply_along_axis", "save"])
def test_an_unknown_name_says_so(name):
    assert not hasattr(xp, name)
    with pytest.raises(AttributeError, match=f"strict_device has no '{name}'"):
        getattr(xp, name)


@pytest.mark.parametrize("name", ["setflags", "ctypes", "__array_interface__", "itemset", "__index__"])
def test_an_unknown_attribute_says_so(x, name):
    assert not hasattr(x, name)


ALLOWED = {
    "numbers": lambda xp, x: 2 * x + 1.5 - x / 3,
    "NumPy scalars": lambda xp, x: x * np.float32(2) + np.float32(1) * x,
    "NumPy's promotion": lambda xp, x: x * np.float64(2),
    "weak Python numbers": lambda xp, x: x * 2.0,
    "power": lambda xp, x: x**2,
    "negative": lambda xp, x: -x,
    "absolute": lambda xp, x: abs(x - 3),
    "matmul": lambda xp, x: x @ x.T,
    "comparison": lambda xp, x: (x > 1) & ~(x == 4) | (x <= 0),
    "functions": lambda xp, x: xp.exp(x) + xp.sqrt(x) + xp.tanh(x) + xp.log(x + 1),
    "where": lambda xp, x: xp.where(x > 2, x, np.float32(-np.inf)),
    "reductions": lambda xp, x: x.sum(axis=-1, keepdims=True) + x.mean() + x.max(axis=0),
    "reduction to 0-d": lambda xp, x: x.sum(),
    "concatenate": lambda xp, x: xp.concatenate([x, 2 * x], axis=-1),
    "stack": lambda xp, x: xp.stack([x[0], x[1]]),
    "split": lambda xp, x: xp.split(x, 3, axis=-1),
    "einsum": lambda xp, x: xp.einsum("ij,kj->ik", x, x),
    "vdot": lambda xp, x: xp.vdot(x, x),
    "tri": lambda xp, x: xp.tri(3, dtype=bool),
    "arange": lambda xp, x: xp.arange(4),
    "full": lambda xp, x: xp.full((2, 2), -100, dtype="int64"),
    "like": lambda xp, x: xp.zeros_like(x),
    "argsort": lambda xp, x: xp.argsort(-x, axis=-1, kind="stable"),
    "take_along_axis": lambda xp, x: xp.take_along_axis(x, xp.argsort(-x, axis=-1), axis=-1),
    "unique": lambda xp, x: xp.unique(xp.asarray([3, 1, 3]), return_inverse=True),
    "flatnonzero": lambda xp, x: xp.flatnonzero(x > 1),
    "isfinite": lambda xp, x: xp.isfinite(x / x),
    "views": lambda xp, x: x.reshape(3, -1).T.swapaxes(0, 1)[::-1, None],
    "element": lambda xp, x: x[1, 2],
    "gather": lambda xp, x: x[xp.asarray([1, 0, 1])],
    "pairs": lambda xp, x: x[xp.arange(2), xp.asarray([2, 0])],
    "list index": lambda xp, x: x[[1, 0]],
    "negative ids": lambda xp, x: x[xp.asarray([-1])],
    "mask": lambda xp, x: x[x > 2],
    "mask of rows": lambda xp, x: x[xp.asarray([True, False])],
    "ellipsis": lambda xp, x: x[..., xp.asarray([0, 2])],
    "astype": lambda xp, x: x.astype("float64"),
    "real and imag": lambda xp, x: (x + 2j).real + (x + 2j).imag,
    "array of numbers": lambda xp, x: xp.array([[1.0, 2.0], [3.0, 4.0]]),
    "iteration": lambda xp, x: [2 * row for row in x],
    "silence": lambda xp, x: xp.exp(1e3 * x) / 0,
}


@pytest.mark.parametrize("name", ALLOWED)
def test_allowed_is_numpys(x, name):
    found = ALLOWED[name](xp, x)
    with np.errstate(all="ignore"):
        expected = ALLOWED[name](np, x.get())
    many = isinstance(expected, (tuple, list))
    for part, part_expected in zip(*(pair if many else [pair] for pair in (found, expected)), strict=True):
        assert isinstance(part, xp.ndarray)
        assert part.dtype == part_expected.dtype
        assert part.shape == part_expected.shape
        np.testing.assert_array_equal(part.get(), part_expected)


def test_views_share_memory(x):
    x.reshape(-1)[0] = 10
    x.T[1, 1] = 20
    x[1:][..., :1] += 5
    x[0, 2] = x[0, 0]
    row = x[0]
    row *= 2
    element = x[1, 2]
    element += 100  # NumPy would give a number here; on the device it is a view
    np.testing.assert_array_equal(x.get(), [[20, 2, 20], [8, 20, 105]])
    assert xp.shares_memory(x, x.reshape(6))
    assert not xp.shares_memory(x, x.copy())


def test_in_place_keeps_the_object(x):
    y = x
    y += 1
    y *= np.float32(2)
    y /= 2
    y -= x * 0
    assert y is x
    np.testing.assert_array_equal(x.get(), np.arange(1, 7).reshape(2, 3))
    assert x.dtype == np.float32
    assert xp.exp(x, out=x) is x
    total = xp.zeros(3, dtype="float32")
    assert x.sum(axis=0, out=total) is total


def test_moving_in_and_out(x):
    host = np.arange(3.0)
    device = xp.asarray(host)
    host[0] = 9
    assert float(device[0]) == 0, "the device has its own memory"
    assert xp.asarray(device) is device
    assert xp.asarray(device, dtype="float32").dtype == np.float32
    back = xp.asnumpy(device)
    back[0] = 7
    assert float(device[0]) == 0
    device.set(back)
    assert device.tolist() == [7, 1, 2]


def test_numbers_out(x):
    last = x[1, 2]
    assert (float(last), int(last), complex(last), last.item()) == (5.0, 5, 5 + 0j, 5.0)
    assert bool(last)
    assert f"{last:.2f}" == "5.00"
    assert [int(row[0]) for row in x] == [0, 3]
    assert len(x) == 2


def test_ids_out_of_range_wrap_in_silence(x):
    """The trap that CUDA sets for code which trusts IndexError."""
    np.testing.assert_array_equal(x[xp.asarray([2, 3, -3])].get(), x.get()[[0, 1, 1]])
    np.testing.assert_array_equal(x[xp.asarray([0]), xp.asarray([4])].get(), [1])
    np.testing.assert_array_equal(x[..., None, xp.asarray([4])].get(), x.get()[..., None, [1]])
    with pytest.raises(IndexError):
        x[2]


def test_scatter_add_adds_repeated_ids(strict):
    import cupyx

    target = xp.zeros((3, 2))
    cupyx.scatter_add(target, xp.asarray([2, 0, 2]), xp.ones((3, 2)))
    np.testing.assert_array_equal(target.get(), [[1, 1], [0, 0], [2, 2]])
    for wrong in (
        lambda: cupyx.scatter_add(np.zeros((3, 2)), xp.asarray([0]), xp.ones((1, 2))),
        lambda: cupyx.scatter_add(target, np.array([0]), xp.ones((1, 2))),
        lambda: cupyx.scatter_add(target, xp.asarray([0]), np.ones((1, 2))),
    ):
        with pytest.raises(TypeError):
            wrong()


def test_erf(strict, x):
    from cupyx.scipy.special import erf
    from scipy.special import erf as on_host

    np.testing.assert_array_equal(erf(x).get(), on_host(x.get()))
    for wrong in (HOST, x + 1j):
        with pytest.raises((TypeError, AttributeError)):
            erf(wrong)


def test_the_package_takes_it_for_an_array_module(x):
    assert array_module(x) is xp
    assert array_module(x.sum()) is xp


def test_stream_counts():
    before = xp.cuda.get_current_stream().n_synchronized
    xp.cuda.get_current_stream().synchronize()
    assert xp.cuda.get_current_stream().n_synchronized == before + 1


def test_names_are_cupys():
    """Where CuPy is installed (it needs no GPU for this), it has every name that the stand-in offers."""
    cupy = pytest.importorskip("cupy", exc_type=ImportError)
    names = [*xp.CREATION, *xp.FUNCTIONS, *xp.UFUNCS, "asarray", "array", "asnumpy", "einsum", "shares_memory"]
    assert [name for name in names if not hasattr(cupy, name)] == []
    assert [name for name in xp.METHODS if not hasattr(cupy.ndarray, name)] == []
