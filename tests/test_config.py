import json
import math
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numpy_gpt import PRESETS, Config, Model


@pytest.mark.parametrize(
    ("preset", "N"),
    [
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
    ],
)
def test_the_published_sizes(preset, N):
    """The parameters of OpenAI's four checkpoints, to the last one."""
    assert Config.preset(preset).n_parameters() == N


def test_defaults_are_gpt2_small_and_the_lessons_block():
    assert Config() == Config.preset("gpt2")
    config = Config()
    assert (config.causal, config.scale, config.norm, config.tie, config.gelu) == (True, True, "pre", True, "tanh")
    assert (config.d_head, config.eps) == (64, 1e-5)


@given(V=st.integers(1, 50), T_max=st.integers(1, 20), d=st.integers(1, 12), L=st.integers(1, 4), tie=st.booleans())
def test_the_lessons_count(V, T_max, d, L, tie):
    """12 L d² + V d + T_max d, plus the terms in d that the lesson neglects: 13 a block and the last norm's 2."""
    N = 12 * L * d * d + V * d + T_max * d + 13 * L * d + 2 * d
    config = Config(V=V, T_max=T_max, d=d, h=1, L=L, tie=tie)
    assert config.n_parameters() == N + (0 if tie else V * d)
    assert sum(map(math.prod, config.parameter_shapes().values())) == config.n_parameters()


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_a_config(preset):
    config = Config.preset(preset)
    assert config.to_dict() == {**Config().to_dict(), **PRESETS[preset]}


def test_parameter_names_and_shapes():
    shapes = Config(V=7, T_max=5, d=4, h=2, L=1, tie=False).parameter_shapes()
    assert shapes == {
        "W_te": (7, 4),
        "W_pe": (5, 4),
        "block.0.ln_1.gamma": (4,),
        "block.0.ln_1.beta": (4,),
        "block.0.W_qkv": (4, 12),
        "block.0.b_qkv": (12,),
        "block.0.W_o": (4, 4),
        "block.0.b_o": (4,),
        "block.0.ln_2.gamma": (4,),
        "block.0.ln_2.beta": (4,),
        "block.0.W_1": (4, 16),
        "block.0.b_1": (16,),
        "block.0.W_2": (16, 4),
        "block.0.b_2": (4,),
        "ln_f.gamma": (4,),
        "ln_f.beta": (4,),
        "W_head": (7, 4),
    }
    tied = Config(V=7, T_max=5, d=4, h=2, L=12).parameter_shapes()
    assert "W_head" not in tied
    assert list(tied)[:2] == ["W_te", "W_pe"]
    assert list(tied)[-3:] == ["block.11.b_2", "ln_f.gamma", "ln_f.beta"]
    assert len(tied) == 2 + 12 * 12 + 2


def test_the_model_has_just_these_parameters():
    config = Config.preset("tiny", tie=False)
    assert {name: p.shape for name, p in Model(config).params.items()} == config.parameter_shapes()


@pytest.mark.parametrize(
    ("d", "h", "nearest"),
    [
        (768, 10, 8),
        (768, 13, 12),
        (768, 11, 12),
        (768, 20, 16),
        (48, 5, 4),
        (7, 3, 1),
        (7, 5, 7),
        (4, 9, 4),
        (10, 8, 10),
    ],
)
def test_heads_that_do_not_divide(d, h, nearest):
    message = f"d = {d} is not divisible by h = {h} heads; the nearest h that divides it is {nearest}$"
    with pytest.raises(ValueError, match=message):
        Config(d=d, h=h)
    assert Config(d=d, h=nearest).d_head == d // nearest


@given(d=st.integers(1, 60), h=st.integers(1, 80))
def test_every_d_and_h_make_a_config_or_an_error(d, h):
    if d % h == 0:
        assert Config(d=d, h=h).d_head * h == d
    else:
        with pytest.raises(ValueError, match="the nearest h") as error:
            Config(d=d, h=h)
        nearest = int(str(error.value).rsplit(" ", 1)[1])
        assert d % nearest == 0
        assert not [k for k in range(1, d + 1) if d % k == 0 and abs(k - h) < abs(nearest - h)]


@pytest.mark.parametrize("name", ["V", "T_max", "d", "h", "L"])
@pytest.mark.parametrize("value", [0, -1, 2.0, "3", None, True, math.nan])
def test_sizes_are_whole_numbers_of_at_least_1(name, value):
    with pytest.raises(ValueError, match=f"Config.{name} must be a whole number of at least 1, got {value!r}"):
        Config(**{name: value})


def test_numpy_integers_are_whole_numbers():
    config = Config(V=np.int64(7), d=np.int32(4), h=np.uint8(2), eps=np.float32(0.5))
    assert config.d_head == 2
    assert json.loads(json.dumps(config.to_dict())) == config.to_dict()


@pytest.mark.parametrize("name", ["causal", "scale", "tie"])
@pytest.mark.parametrize("value", [0, 1, "yes", None])
def test_switches_are_true_or_false(name, value):
    with pytest.raises(ValueError, match=f"Config.{name} must be True or False, got {value!r}"):
        Config(**{name: value})


@pytest.mark.parametrize(
    ("name", "value", "choices"),
    [("norm", "rms", "'pre', 'post'"), ("gelu", "relu", "'tanh', 'exact'"), ("norm", None, "'pre', 'post'")],
)
def test_choices(name, value, choices):
    with pytest.raises(ValueError, match=rf"Config.{name} must be one of \({choices}\), got {value!r}"):
        Config(**{name: value})


@pytest.mark.parametrize("eps", [0, -1e-5, math.nan, math.inf, 10**400, "x", True])
def test_eps_is_above_0(eps):
    with pytest.raises(ValueError, match=r"Config\.eps must be a finite number above 0, got"):
        Config(eps=eps)


@pytest.mark.parametrize("change", [dict(V=0), dict(d=7), dict(norm="x")])
def test_a_change_is_checked_too(change):
    with pytest.raises(ValueError, match=r"Config\.|divisible"):
        replace(Config(), **change)


def test_preset_with_changes():
    config = Config.preset("char", V=96, gelu="exact")
    assert (config.V, config.gelu, config.d) == (96, "exact", 128)
    assert PRESETS["char"]["V"] == 65


def test_an_unknown_preset_lists_the_known():
    with pytest.raises(ValueError, match=r"no preset called 'gpt3'; there are gpt2, gpt2-medium,.* mini"):
        Config.preset("gpt3")


def test_frozen():
    with pytest.raises(FrozenInstanceError):
        Config().d = 5


def test_to_json_and_back():
    config = Config.preset("tiny", norm="post", tie=False, eps=1e-6)
    assert Config.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_from_dict_names_what_it_does_not_know():
    with pytest.raises(ValueError, match="Config has no dropout, n_embd"):
        Config.from_dict({"d": 4, "h": 2, "n_embd": 8, "dropout": 0.1})
