"""What the command prints and returns."""

import json
import os
import re
import sys
from contextlib import contextmanager
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from numpy_gpt.gradcheck import Report, Verdict, check, check_model, command, suite
from numpy_gpt.gradcheck.command import collect
from numpy_gpt.gradcheck.models import CONFIGS
from numpy_gpt.gradcheck.table import plain

suite_module = sys.modules["numpy_gpt.gradcheck.suite"]  # the package has a function of that name

RIGHT = """
import numpy as np

def gelu_forward(x):
    t = np.tanh(0.7978845608028654 * (x + 0.044715 * x**3))
    return 0.5 * x * (1 + t), (x, t)

def gelu_backward(dy, cache):
    x, t = cache
    du = 0.7978845608028654 * (1 + 3 * 0.044715 * x**2)
    return dy * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * du)

def cube_forward(x):
    return x**3, x

def cube_backward(dy, x):
    return 3 * x**2 * dy

def cube_inputs(rng):
    return rng.standard_normal((2, 3))

def lonely_forward(x):
    return x, None

def strange_forward(x):
    return x, None

def strange_backward(dy, cache):
    return dy
"""


@pytest.fixture
def ops_file(tmp_path):
    def write(text=RIGHT):
        path = tmp_path / "my_ops.py"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_all_ok_is_0_and_plain_when_piped(capsys):
    assert command(["gelu", "linear"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "gelu" in out
    assert out.splitlines()[-1].startswith("ok: ")


def test_one_target_lists_every_line(capsys):
    assert command(["linear"], seed=3) == 0
    out = capsys.readouterr().out
    for part in ("dx", "dW", "db", "complex step", "memory layouts", "seed 3"):
        assert part in out


def test_a_students_file_with_our_inputs(ops_file, capsys):
    assert command([f"{ops_file()}:gelu"]) == 0
    wrong = RIGHT.replace("0.5 * x * (1 - t * t) * du)", "0)")
    path = ops_file(wrong)
    assert command([f"{path}:gelu"], seed=7) == 1
    out = capsys.readouterr().out
    assert "WRONG  gelu dx[" in out
    assert f"numpy-gpt gradcheck {path}:gelu --seed 7" in out


def test_a_students_file_with_its_own_inputs(ops_file):
    assert command([f"{ops_file()}:cube"]) == 0


def test_a_students_file_shows_progress(ops_file):
    told = []

    class Terminal:
        @contextmanager
        def status(self, text):
            yield self

        def update(self, text):
            told.append(text)

    path = ops_file()
    assert collect([f"{path}:gelu", f"{path}:cube"], 0, 0, Terminal()).ok
    assert told == [f"1 of 2  {path}:gelu", f"2 of 2  {path}:cube"]


def test_a_students_file_is_held_to_other_inputs_of_ours(ops_file, capsys):
    cut = RIGHT.replace("return dy * (0.5", "return dy * np.where(x > 6, 0, 0.5")
    assert command([f"{ops_file(cut)}:gelu"]) == 1
    assert "WRONG  gelu at |x| up to 100 dx[" in capsys.readouterr().out


def test_a_diagnosis_reaches_the_terminal(ops_file, capsys):
    assert command([f"{ops_file(RIGHT.replace('3 * x**2 * dy', '6 * x**2 * dy'))}:cube"]) == 1
    assert "every element is 2 times the right one" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("gelux", "no target called 'gelux'; there are embedding, embedding_rows, linear"),
        ("nowhere.py:gelu", "no file nowhere.py"),
        ("FILE:tanh", "has no tanh_forward and no tanh_backward; it has gelu, cube, lonely, strange"),
        ("FILE:lonely", "has no lonely_backward"),
        ("FILE:strange", "strange is none of our ops"),
        ("FILE:", "no name after the colon"),
    ],
)
def test_a_mistake_is_2_and_one_line(ops_file, capsys, target, words):
    assert command([target.replace("FILE", str(ops_file()))]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
    assert captured.err.startswith("numpy-gpt gradcheck: ")
    assert captured.err.count("\n") == 1


LIKE_OURS = """
import numpy as np

def linear_forward(x, W):
    return x @ W, (x, W)

def linear_backward(dy, cache):
    x, W = cache
    return dy @ W.T, x.T @ dy

def linear_inputs(rng):
    return rng.standard_normal((3, 4)), rng.standard_normal((4, 2))
"""


def test_an_op_named_like_ours_with_other_inputs(ops_file, capsys):
    assert command([f"{ops_file(LIKE_OURS)}:linear"]) == 0
    assert command([f"{ops_file(LIKE_OURS.partition('def linear_inputs')[0])}:linear"]) == 2
    error = capsys.readouterr().err
    assert "linear_forward was called with our inputs, x, W, b: too many positional arguments" in error
    assert "def linear_inputs(rng) gives it inputs of its own" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ("None", "linear_inputs(rng) returns None; it must return the inputs of linear_forward"),
        ("1, 2", "linear_inputs(rng) gives nothing to check: none of the inputs x, W is a floating-point array"),
    ],
)
def test_inputs_that_are_none(ops_file, capsys, inputs, words):
    text = LIKE_OURS.partition("    return rng")[0] + f"    return {inputs}\n"
    assert command([f"{ops_file(text)}:linear"]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["\ndef f(:\n", "\nraise SystemExit(0)\n", "\nimport nothing_of_this_name\n", "def f():\n    1 / 0\nf()\n"]
)
def test_a_file_that_cannot_be_imported(ops_file, capsys, text):
    path = ops_file(text)
    assert command([f"{path}:gelu"]) == 2
    assert f"{path}:2 cannot be imported" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["\n\ndef f(:\n", "def f():\n\n    1 / 0\nf()\n"])
def test_the_line_of_a_file_named_from_here(ops_file, capsys, monkeypatch, text):
    path = ops_file(text)
    monkeypatch.chdir(path.parent)
    assert command([f"{path.name}:gelu"]) == 2
    assert f"{path.name}:3 cannot be imported" in capsys.readouterr().err


def test_our_own_errors_are_not_called_a_mistake(monkeypatch):
    def broken(*inputs):
        raise ValueError("operands could not be broadcast together")

    monkeypatch.setattr(suite_module, "check_target", broken)
    with pytest.raises(ValueError, match=r"^operands could not be broadcast together$"):
        command(["gelu"])


@pytest.mark.skipif(os.name != "posix", reason="limits the size of files")
def test_a_report_is_written_whole_or_not_at_all(tmp_path, capsys):
    import resource

    page = tmp_path / "page.html"
    page.write_text("an older report")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        assert command(["gelu"], html=page) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert f"{page}: cannot write it: File too large" in capsys.readouterr().err
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"page.html": "an older report"}


def test_settings_that_make_no_sense(ops_file, tmp_path, capsys):
    assert command(["gelu"], seed=-1) == 2
    assert command(["model"], fuzz=1) == 2
    assert command([f"{ops_file()}:gelu"], fuzz=1) == 2
    assert command(["gelu"], html=tmp_path / "no" / "page.html") == 2
    assert capsys.readouterr().err.count("\n") == 4


def test_json_round_trip(capsys):
    assert command(["layernorm"], json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is True
    assert found["failures"] == []
    line = next(line for line in found["lines"] if line["name"] == "dx" and line["check"] == "complex step")
    assert line["verdict"] == "PASS"
    assert line["share"] < 1
    assert line["shape"] == [2, 5, 12]


def test_json_of_a_gradient_that_is_not_finite(ops_file, capsys):
    text = RIGHT.replace("return 3 * x**2 * dy", "return x * np.nan")
    assert command([f"{ops_file(text)}:cube"], json=True) == 1
    assert json.loads(capsys.readouterr().out)["failures"][0]["analytic"] == "nan"


def test_json_beside_a_students_prints(ops_file, capsys):
    text = RIGHT.replace("    x, t = cache", "    x, t = cache\n    print('at', x.shape)") + "\nprint('loaded')\n"
    assert command([f"{ops_file(text)}:gelu"], json=True) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["ok"] is True
    assert "loaded" in captured.err
    assert "at (2, 5, 12)" in captured.err


class Balanced(HTMLParser):
    """Remembers the tags left open."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_html_has_a_heat_map(ops_file, tmp_path):
    page = tmp_path / "report.html"
    assert command([f"{ops_file(RIGHT.replace('3 * x**2 * dy', '6 * x**2 * dy'))}:cube"], html=page) == 1
    text = page.read_text(encoding="utf-8")
    assert "2 times the right one" in text
    assert "cube dx (differences)" in text
    assert text.count("<rect") == 2 * 6  # one cell an element, for each of the two oracles
    assert "|analytic − numeric|" in text
    marked = re.findall(r'stroke="black"><title>(.*?):', text)
    assert marked == re.findall(r">WRONG  cube (dx\S+ \S+\])  \((?:differences|complex step)", text)


def test_html_looks_the_same_in_a_notebook():
    """There a notebook's own style makes <pre> proportional in a <div> of another font, and aligns cells right."""
    text = check(lambda x: (x * x, x), lambda dy, x: x * dy, np.ones(3))._repr_html_()
    assert "<h1" in text
    for tag, style in (("pre", "font-family:monospace"), ("td", "text-align:left"), ("th", "text-align:left")):
        tags = re.findall(f"<{tag}[ >].*?>", text)
        assert tags
        assert all(style in found for found in tags), tags


def test_html_groups_rows_by_target():
    report = suite(0, ["softmax", "head"])
    text = report._repr_html_()
    groups = re.findall(r"<tbody>(.*?)</tbody>", text, re.DOTALL)
    for target, group in zip(["softmax", "head"], groups, strict=True):
        assert group.startswith("<tr><th colspan='6'")
        assert group.count(f">{target}</th>") == 1
        assert group.count("<tr>") == 1 + sum(line.target == target for line in report.lines)


def test_html_is_well_formed_and_escaped():
    report = Report(check_model().lines[:3])
    parser = Balanced()
    parser.feed(report._repr_html_())
    assert parser.open == []
    report.lines[0].note = '<script>"'
    assert "<script>" not in report._repr_html_()


@pytest.fixture(scope="module")
def model_report():
    return check_model(CONFIGS["model_post"])


@pytest.mark.parametrize("width", [60, 80, 100, 120])
@pytest.mark.parametrize("what", ["one target", "a failure", "the model", "several"])
def test_nothing_is_cut(model_report, what, width):
    report = model_report if what == "the model" else suite(0, ["attend", "cross_entropy_blocked"])
    if what in ("one target", "a failure"):
        report.lines = [line for line in report.lines if line.target == "attend"]
    if what == "a failure":
        report.lines[0] = replace(report.lines[0], verdict=Verdict.INCONCLUSIVE, index=(1, 2, 4, 3))
        report.lines[1] = replace(report.lines[1], verdict=Verdict.VACUOUS, expected=True)
    table = plain(report, width).partition("\n\n")[0].splitlines()
    assert max(map(len, table)) <= width
    assert "…" not in "".join(table)
    words = " ".join(table).split()
    names = [word for line in report.lines for word in f"{line.name} {line.check}".split()]
    if what == "several":
        assert {"attend", "cross_entropy_blocked"} <= set(words)
        assert words.count("PASS") == 2
        return
    assert set(names) <= set(words)
    for verdict in Verdict:
        assert words.count(verdict) == sum(line.verdict is verdict for line in report.lines)
    if "difference" in words:
        assert words.count("0.0e+00") >= sum(line.worst == 0 for line in report.lines)
    assert ("difference" in words) or (what, width) == ("the model", 60)


def test_narrower_than_any_table(model_report):
    lines = plain(model_report, 20).splitlines()
    assert "…" not in "".join(lines)
    assert sum(line.rstrip().endswith("PASS") for line in lines) == len(model_report.lines)


def test_fuzz(capsys):
    assert command(["softmax", "head"], fuzz=4) == 0
    out = capsys.readouterr().out
    assert "softmax" in out
    assert "head" in out


def test_many_lines_are_summed_up(capsys):
    assert command(["gelu"], fuzz=30) == 0
    assert len(capsys.readouterr().out.splitlines()) < 12


def test_a_notebook_prints_the_report_too(monkeypatch):
    pytest.importorskip("IPython")
    report = check_model()
    expected = str(report)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)  # where rich shows HTML in place of writing
    assert str(report) == expected != ""


LINEAR = """
import numpy as np

def linear_forward(x, W, b):
    return x @ W + b, (x, W)

def linear_backward(dy, cache):
    x, W = cache
    rows, dy_rows = x.reshape(-1, W.shape[0]), dy.reshape(-1, W.shape[1])
    dx, dW, db = dy @ W.T, rows.T @ dy_rows, dy_rows.sum(axis=0)
    FAULT
    return dx, dW, db
"""


@pytest.mark.parametrize(
    ("fault", "place"),
    [
        ("if len(rows) == 1: dW = 2 * dW", "x (1, 1, 4)"),
        ("if len(rows) == 1: db = 2 * db", "x (1, 1, 4)"),
        ("if W.shape[0] == 1: dW = 2 * dW", "x (4, 3, 1)"),
        ("if W.shape[0] == W.shape[1]: dW = dW.T", "x (3, 2, 8)"),
        ("if x.ndim == 1: dx = 2 * dx", "x (6,)"),
        ("pass", ""),
    ],
)
def test_faults_of_one_size_alone(tmp_path, fault, place):
    path = tmp_path / "mine.py"
    path.write_text(LINEAR.replace("FAULT", fault), encoding="utf-8")
    report = collect([f"{path}:linear"], 0, 0, None)
    assert report.ok == (not place), str(report)
    assert all(line.target == f"linear at {place}" for line in report.failures)
