import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numpy_gpt import Config, Parameters
from numpy_gpt.backend import to_numpy

SHAPES = Config(V=7, T_max=5, d=4, h=2, L=2, tie=False).parameter_shapes()


def numbered(shapes=SHAPES, dtype="float64"):
    p = Parameters(shapes, dtype)
    p.flat[:] = np.arange(p.flat.size)
    return p


def test_every_number_has_one_place(xp):
    p = Parameters(SHAPES, "float32", xp)
    p.flat[...] = xp.arange(p.flat.size, dtype="float32")
    assert p.flat.dtype == np.float32
    assert {name: view.shape for name, view in p.items()} == SHAPES
    gathered = np.concatenate([to_numpy(view).reshape(-1) for view in p.values()])
    np.testing.assert_array_equal(np.sort(gathered), np.arange(p.flat.size))


def test_views_share_the_flat_vector(xp):
    p = Parameters(SHAPES, "float64", xp)
    p["W_te"][2, 1] = 5
    assert float(p.flat.sum()) == 5
    p.flat[...] = 3
    assert all(bool((view == 3).all()) for view in p.values())
    p.matrices[...] = 0
    p.vectors[...] = 1
    for name, view in p.items():
        assert bool((view == (0 if len(SHAPES[name]) == 2 else 1)).all()), name


@given(shapes=st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=2).map(tuple), min_size=1, max_size=6))
def test_matrices_and_vectors_partition_flat(shapes):
    p = numbered({f"p{n}": shape for n, shape in enumerate(shapes)})
    np.testing.assert_array_equal(np.concatenate([p.matrices, p.vectors]), p.flat)
    assert p.matrices.size == sum(view.size for view in p.values() if view.ndim == 2)
    for view in p.values():
        assert np.shares_memory(view, p.matrices if view.ndim == 2 else p.vectors)
        assert not np.shares_memory(view, p.vectors if view.ndim == 2 else p.matrices)
        assert view.flags.c_contiguous


def test_decayed_are_the_documented_matrices():
    p = numbered()
    decayed = {name for name, view in p.items() if np.shares_memory(view, p.matrices)}
    blocks = {f"block.{number}.{name}" for number in range(2) for name in ("W_qkv", "W_o", "W_1", "W_2")}
    assert decayed == {"W_te", "W_pe", "W_head"} | blocks


def test_setitem_copies_into_the_view(xp):
    p = Parameters(SHAPES, "float32", xp)
    view, value = p["W_pe"], xp.ones((5, 4), dtype="float64")
    p["W_pe"] = value
    value[...] = 9
    assert p["W_pe"].dtype == np.float32
    assert bool((view == 1).all())
    assert float(p.flat.sum()) == 20


def test_setitem_checks(xp):
    p = Parameters(SHAPES, "float64", xp)
    with pytest.raises(ValueError, match=r"W_pe has shape \(5, 4\), got \(4,\)"):
        p["W_pe"] = xp.ones(4)  # which would broadcast
    with pytest.raises(ValueError, match=r"block.0.W_o has shape \(4, 4\), got \(1, 4\)"):
        p["block.0.W_o"] = xp.ones((1, 4))
    with pytest.raises(KeyError, match="no parameter called 'W_xx'"):
        p["W_xx"] = xp.ones(4)
    assert not p.flat.any()


def test_in_place_sum_keeps_the_storage(xp):
    p = Parameters(SHAPES, "float64", xp)
    view = p["W_te"]
    p["W_te"] += xp.ones((7, 4))
    assert bool((view == 1).all())
    assert float(p.flat.sum()) == 28


def test_mapping():
    p = numbered()
    assert list(p) == list(SHAPES)
    assert len(p) == len(SHAPES)
    assert "W_head" in p
    assert "W_xx" not in p
    with pytest.raises(KeyError):
        p["W_xx"]


def test_flat_is_copied_into():
    p = numbered()
    flat = p.flat
    p.flat = np.ones(flat.size)
    assert p.flat is flat
    assert p["W_te"].sum() == p["W_te"].size
    p.flat += 1
    assert p.flat is flat
    assert (flat == 2).all()
    with pytest.raises(ValueError, match="could not broadcast"):
        p.flat = np.ones(3)


def test_equal_is_the_same():
    p = numbered()
    assert p in [p]
    assert p != copy.deepcopy(p)  # and no error about the truth value of an array
    assert {p: 1}[p] == 1


def test_block_has_the_short_names():
    p = numbered(Config(V=2, T_max=2, d=2, h=1, L=11).parameter_shapes())
    for number in (0, 1, 10):
        prefix = f"block.{number}."
        block = p.block(number)
        assert set(block) == {name.removeprefix(prefix) for name in p if name.startswith(prefix)}
        for name, view in block.items():
            assert view is p[prefix + name]
    with pytest.raises(KeyError):
        p.block(11)


def test_zeros_like(xp):
    p = Parameters(SHAPES, "float32", xp)
    p.flat[...] = 1
    zeros = p.zeros_like()
    assert zeros.flat.dtype == np.float32
    assert zeros.xp is xp
    assert {name: view.shape for name, view in zeros.items()} == SHAPES
    zeros.flat[...] += 2
    assert bool((p.flat == 1).all())


def test_a_deep_copy_is_another_storage(xp):
    p = Parameters(SHAPES, "float32", xp)
    p.flat[...] = 1
    kept = copy.deepcopy(p)
    p.flat[...] += 1
    assert kept.xp is xp
    assert bool((kept.flat == 1).all())
    for view in kept.values():
        assert bool((view == 1).all())


def test_repr():
    assert repr(Parameters({"a": (20, 60), "b": (5,)})) == "Parameters(2 arrays, 1,205 numbers, float32)"


def test_a_list_can_be_assigned():
    params = Parameters({"W": (2, 2)})
    params["W"] = [[1, 2], [3, 4]]
    assert params["W"].tolist() == [[1, 2], [3, 4]]
