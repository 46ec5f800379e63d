import json
import math
import sys

import pytest

from numpy_gpt import labs
from numpy_gpt.cli import main
from numpy_gpt.labs import LABS, Finding, Lab, Result, lab, picture


def line(figure):
    figure.subplots().plot([1, 2, 3])


ONE = Lab(
    "one",
    "§1",
    "water is wet [almost]",
    lambda seed: Result((Finding("wet", f"seed {seed}", True), Finding("dry", "√2", False)), {"x": 1.5}, "So.", line),
)
TWO = Lab("two", "§2", "nothing diverges", lambda seed: Result((Finding("∞", "∞", True),), {"loss": math.inf}))


@pytest.fixture
def two_labs(monkeypatch):
    """Two labs that take no time, in place of all others."""
    for module in ("catalogue", "command"):
        monkeypatch.setattr(f"numpy_gpt.labs.{module}.LABS", {"one": ONE, "two": TWO})


def told(capsys, *argv):
    assert main(["lab", *argv]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def error_line(capsys, *argv):
    assert main(["lab", *argv]) == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_catalogue_is_in_the_lessons_order():
    order = [
        *("bytes_per_token", "sum_of_tables", "fused_qkv", "score_scale", "causal_mask", "heads_for_free"),
        *("score_tensor", "gelu_shapes", "mlp_share", "pre_post_norm", "weight_tying", "first_loss"),
        *("parameter_count", "flops_2n4n6n", "budget_identity", "failure_modes"),
    ]
    assert list(LABS) == order
    for name, item in LABS.items():
        assert item.name == name
        assert item.measure.__module__ == f"numpy_gpt.labs.{name}"
        assert item.claim
        assert item.section


def test_list_names_every_lab(capsys):
    out = told(capsys, "list")
    for name in LABS:
        assert name in out


def test_run_prints_claim_measurement_and_verdict(capsys, two_labs):
    out = told(capsys, "run", "one", "--seed", "3")
    rows = [row.split() for row in out.splitlines()]
    assert ["wet", "seed", "3", "holds"] in rows
    assert ["dry", "√2", "does", "not"] in rows
    assert "water is wet [almost]" in out
    assert "So." in out
    assert "§2" not in out


def test_run_all_sums_up(capsys, two_labs):
    out = told(capsys, "run", "all")
    assert out.index("water is wet") < out.index("nothing diverges")
    assert "2 labs, 2 of 3 findings hold" in out


def test_lab_named_twice_runs_once(capsys, two_labs):
    assert told(capsys, "run", "one", "one").count("water is wet") == 1


def test_json(capsys, two_labs):
    report = json.loads(told(capsys, "run", "all", "--json", "--seed", "5"))
    assert report["seed"] == 5
    one, two = report["labs"]
    assert one["findings"] == [
        {"claim": "wet", "measured": "seed 5", "holds": True},
        {"claim": "dry", "measured": "√2", "holds": False},
    ]
    assert (one["name"], one["section"], one["holds"], one["values"], one["note"]) == (
        "one",
        "§1",
        False,
        {"x": 1.5},
        "So.",
    )
    assert one["seconds"] >= 0
    assert two["holds"] is True
    assert two["values"] == {"loss": "inf"}


def test_plot_writes_the_pictures_of_labs_that_draw_one(capsys, two_labs, tmp_path):
    folder = tmp_path / "new" / "pictures"
    out = told(capsys, "run", "all", "--plot", str(folder))
    assert [path.name for path in folder.iterdir()] == ["one.png"]
    assert (folder / "one.png").read_bytes().startswith(b"\x89PNG")
    assert out.count("Picture:") == 1
    report = json.loads(told(capsys, "run", "all", "--plot", str(folder), "--json"))
    assert [entry["picture"] for entry in report["labs"]] == [str(folder / "one.png"), None]


def test_real_labs_from_the_command_line(capsys, tmp_path):
    told(capsys, "run", "score_tensor", "bytes_per_token", "--plot", str(tmp_path))
    for name in ("score_tensor", "bytes_per_token"):
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000


def test_mistakes_are_named(capsys, two_labs, tmp_path, monkeypatch):
    assert "no lab called 'three'; there are one, two" in error_line(capsys, "run", "one", "three")
    assert "--seed must be at least 0, got -1" in error_line(capsys, "run", "one", "--seed", "-1")
    file = tmp_path / "file"
    file.write_text("", encoding="utf-8")
    assert f"cannot write pictures to {file}" in error_line(capsys, "run", "one", "--plot", str(file))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "--plot needs matplotlib (pip install 'numpy_gpt[plots]')" in error_line(
        capsys, "run", "one", "--plot", str(tmp_path)
    )


def test_nothing_is_measured_where_there_is_a_mistake(capsys, two_labs):
    assert main(["lab", "run", "one", "three"]) == 2
    assert capsys.readouterr().out == ""


def test_in_a_notebook(two_labs):
    result = lab("one").measure(0)
    assert not result.holds
    figure = picture(result)
    assert len(figure.axes) == 1
    with pytest.raises(ValueError, match="draws no picture"):
        picture(lab("two").measure(0))
    with pytest.raises(ValueError, match="no lab called 'three'"):
        lab("three")
    assert set(labs.__all__) <= set(dir(labs))
