import numpy as np
import pytest

from numpy_gpt.ops.checks import check_features, check_ids


def test_good_ids_pass(xp):
    check_ids(xp.asarray([[0, 4], [2, 3]]), 5, "idx")
    check_ids(xp.asarray([[0, -100], [2, 3]]), 5, "targets", ignore_index=-100)
    check_ids(xp.zeros((2, 0), dtype="int64"), 5, "idx")


@pytest.mark.parametrize(
    ("ids", "place", "value"),
    [([[0, 4], [5, -1]], "1, 0", 5), ([[-1, 9]], "0, 0", -1), ([[[0, 1], [2, 99]]], "0, 1, 1", 99)],
)
def test_the_first_bad_id_is_named(xp, ids, place, value):
    with pytest.raises(ValueError, match=rf"^idx\[{place}\] is {value}; ids must lie in 0 <= id < V = 5$"):
        check_ids(xp.asarray(ids), 5, "idx")


def test_ignore_index_is_allowed_only_where_given(xp):
    with pytest.raises(ValueError, match=r"idx\[0\] is -100"):
        check_ids(xp.asarray([-100, 0]), 5, "idx")
    with pytest.raises(ValueError, match=r"targets\[1\] is -4"):
        check_ids(xp.asarray([-100, -4]), 5, "targets", ignore_index=-100)


def test_position_is_the_shape_s_own_whatever_the_strides():
    ids = np.zeros((3, 4), int)
    ids[2, 1] = 8
    for layout in (ids, np.asfortranarray(ids), ids[::-1].copy()[::-1]):
        with pytest.raises(ValueError, match=r"idx\[2, 1\] is 8"):
            check_ids(layout, 5, "idx")


@pytest.mark.parametrize("dtype", ["float32", "float64", "bool", "complex128"])
def test_ids_of_another_kind_are_refused(xp, dtype):
    with pytest.raises(ValueError, match=f"idx must be integers, got dtype {dtype}"):
        check_ids(xp.zeros(3, dtype=dtype), 5, "idx")


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int8"])
def test_narrow_ids_meet_a_wide_vocabulary(xp, dtype):
    check_ids(xp.asarray(np.arange(5, dtype=dtype)), 100_000, "idx", ignore_index=-100)


def test_check_features(xp):
    check_features(xp.ones((2, 3)), 3, "x", "W")
    with pytest.raises(ValueError, match=r"^x has shape \(2, 3\), but W expects its last axis to be 2$"):
        check_features(xp.ones((2, 3)), 2, "x", "W")
    with pytest.raises(ValueError, match=r"x has shape \(\)"):
        check_features(xp.ones(()), 1, "x", "W")
