"""The two oracles against derivatives known in closed form."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numpy_gpt.gradcheck.numeric import (
    BASE_STEP,
    QUICK,
    THOROUGH,
    NotAnalytic,
    complex_step,
    differences,
    element_slope,
    thorough,
)

FUNCTIONS = {
    "exp": (np.exp, np.exp),
    "sin": (np.sin, np.cos),
    "cube": (lambda x: x**3, lambda x: 3 * x**2),
    "steep": (lambda x: np.tanh(30 * x), lambda x: 30 / np.cosh(30 * x) ** 2),
    "1/x": (lambda x: 1 / (x * x + 0.01), lambda x: -2 * x / (x * x + 0.01) ** 2),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("multiples", [QUICK, THOROUGH], ids=["quick", "thorough"])
@given(st.floats(-3, 3, allow_subnormal=False))
def test_the_error_is_within_the_estimate(name, multiples, at):
    f, derivative = FUNCTIONS[name]
    x = np.array([at])
    found = element_slope(lambda: f(x), x, (0,), f(x), np.ones(1), BASE_STEP * max(1, abs(at)), multiples)
    assert abs(found.value - derivative(at)) <= 10 * found.error + 1e-11 * max(1, abs(derivative(at)))
    assert x[0] == at
    if multiples is THOROUGH:
        assert found.error <= 1e-7 * max(1, abs(derivative(at)), abs(f(at)))
        assert not found.kink


@pytest.mark.parametrize("at", [30.5, 1e3 + 0.3, 1e5, 1e9])
def test_steps_shrink_to_the_length_on_which_a_forward_bends(at):
    x = np.array([at])
    size = BASE_STEP * at
    found = element_slope(lambda: np.sin(x), x, (0,), np.sin(x), np.ones(1), size, thorough(size))
    assert abs(found.value - np.cos(at)) <= 10 * found.error
    assert found.error <= 1e-5


@given(st.floats(-3, 3, allow_subnormal=False))
def test_complex_step_is_exact_to_rounding(at):
    for f, derivative in FUNCTIONS.values():
        x = np.array([at + 0j])
        found = complex_step(lambda f=f, x=x: f(x), x, f(np.array([at])), np.ones(1))
        assert abs(found.value[0] - derivative(at)) <= 1e-13 * max(1, abs(derivative(at)))


def test_what_does_not_move_cancels_exactly():
    x, u = np.array([1.0, 2.0]), np.array([1.0, 1e12])
    f = lambda: np.array([x[0], np.sin(x[1])])  # noqa: E731
    assert abs(differences(f, x, f(), u).value[0] - 1) < 1e-9


def test_steps_are_those_really_made():
    x = np.array([1e6 + 0.1])  # h is no binary fraction: x + h is rounded
    f = lambda: x.copy()  # noqa: E731
    assert differences(f, x, f(), np.ones(1)).value[0] == 1
    assert BASE_STEP == pytest.approx(8.73e-6, rel=1e-3)


def test_a_real_forward_is_not_analytic():
    x = np.array([1 + 0j])
    with pytest.raises(NotAnalytic, match="drops the imaginary part"):
        complex_step(lambda: np.abs(x), x, np.ones(1), np.ones(1))
    assert x[0] == 1
