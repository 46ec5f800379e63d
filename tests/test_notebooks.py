"""The notebooks: what is saved in them is whole, and they still run."""

from __future__ import annotations

import getpass
import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "notebooks"
LESSON = ROOT.parent / "shared" / "lesson.txt"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
TOLD_BY_THE_PACKAGE = {  # cells whose words are the package's, at whatever settings and on whatever machine
    "01_read_along": "",
    "03_forward_vs_backward": r"getsource|linear_cost\(|per_token|flops\[|gelu\.backward|crossover\(",
}
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def read(name, folder=FOLDER):
    return json.loads((folder / f"{name}.ipynb").read_text(encoding="utf-8"))


def cells(notebook, kind):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == kind]


def text(cell):
    return "".join(cell["source"])


def outputs(notebook):
    return [output for cell in cells(notebook, "code") for output in cell["outputs"]]


def assert_whole(notebook):
    """Every code cell ran, in order, without an error or a warning, and left no trace of the machine."""
    code = cells(notebook, "code")
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    for output in outputs(notebook):
        assert output["output_type"] in ("stream", "display_data", "execute_result"), output
        assert output.get("name") != "stderr", output["text"]
    assert notebook["metadata"] == METADATA
    assert all(cell["metadata"] == {} for cell in notebook["cells"])
    saved = json.dumps(notebook, ensure_ascii=False)
    traces = ["/home/", "/Users/", "site-packages", "ipykernel_", ":\\\\Users", str(ROOT), str(Path.home())]
    traces += [name for name in (socket.gethostname(), getpass.getuser()) if len(name) > 4]
    assert [trace for trace in traces if trace in saved] == []


def test_there_are_six_in_reading_order():
    expected = ["read_along", "gradcheck", "forward_vs_backward", "train_and_sample", "labs_and_failure_modes"]
    expected.append("gpu_switch")
    assert [f"{number:02d}_{name}" for number, name in enumerate(expected, start=1)] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_saved_outputs_are_whole(name):
    notebook = read(name)
    assert_whole(notebook)
    pictures = [output for output in outputs(notebook) if "image/png" in output.get("data", {})]
    assert len(pictures) >= 2


@pytest.mark.parametrize("name", NAMES)
def test_opens_with_its_aims_and_ends_with_three_answered_questions(name):
    notebook = read(name)
    first = text(notebook["cells"][0])
    assert first.startswith(f"# {name[:2]} · ")
    assert "After this notebook you can" in first
    headings = re.findall(r"^### Question (\d)$", "\n".join(map(text, cells(notebook, "markdown"))), re.MULTILINE)
    assert headings == ["1", "2", "3"]
    kinds = [cell["cell_type"] for cell in notebook["cells"][-8:]]
    assert kinds == ["code", "code", "markdown", "code", "code", "markdown", "code", "code"]
    for answer, question in zip(cells(notebook, "code")[-6::2], cells(notebook, "code")[-5::2]):
        assert text(answer).startswith("answer = ")
        assert "assert" in text(question)
        assert any("right: " in "".join(output.get("text", "")) for output in question["outputs"])


def test_every_interview_prompt_has_a_cell_that_shows_the_answer():
    if not LESSON.is_file():
        pytest.skip("the lesson is not beside this repository")
    _, prompts = LESSON.read_text(encoding="utf-8").split("Interview prompts")
    asked = re.findall(r"^• (.*?\?|.*?\.) \(§", prompts, re.MULTILINE)
    assert len(asked) == 7
    for prompt in asked:
        assert any(shows(read(name), prompt) for name in NAMES), prompt


def shows(notebook, prompt):
    """Whether a heading asks the prompt, and code with an output follows before the next heading."""
    under = False
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            *_, last = ["", *re.findall(r"^#+ (.*)$", text(cell), re.MULTILINE)]
            under = last.endswith(prompt) or (under and not last)
        elif under and cell["outputs"]:
            return True
    return False


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("nbclient", "ipykernel")),
    reason="running notebooks needs nbclient and ipykernel: pip install 'numpy_gpt[notebooks]'",
)
@pytest.mark.parametrize("name", NAMES)
def test_runs(name, tmp_path):
    """In a process of its own, by the script that saves the notebooks, at small settings."""
    command = [sys.executable, str(FOLDER / "execute.py"), "--small", "--out", str(tmp_path), name]
    environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    environment["IPYTHONDIR"] = str(tmp_path / "ipython")  # nothing of this user's takes part
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", env=environment, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    ran, saved = read(name, tmp_path), read(name)
    assert_whole(ran)
    assert [text(cell) for cell in ran["cells"]] == [text(cell) for cell in saved["cells"]]
    for now, then in zip(cells(ran, "code"), cells(saved, "code")):
        if re.search(TOLD_BY_THE_PACKAGE.get(name, "$^"), text(now)):
            assert told(now) == told(then), f"run the notebook anew: python notebooks/execute.py {name}"


def told(cell):
    """What a cell prints, pictures apart."""
    shown = [output.get("data", {}) for output in cell["outputs"]]
    return [output.get("text") for output in cell["outputs"]], [data.get("text/markdown") for data in shown]


def test_the_gpu_notebook_keeps_to_what_a_gpu_allows(strict, monkeypatch, capsys):
    """Its cells on the stand-in for CuPy, as they would run on a GPU."""
    plt = pytest.importorskip("matplotlib.pyplot", exc_type=ImportError)
    pytest.importorskip("IPython", reason="the notebook shows source through IPython", exc_type=ImportError)
    monkeypatch.setitem(sys.modules, "cupy", strict)
    monkeypatch.setenv("NUMPY_GPT_NOTEBOOK", "small")
    monkeypatch.setattr(plt, "show", lambda: plt.close("all"))
    names = {"__name__": "__main__"}
    for cell in cells(read("06_gpu_switch"), "code"):
        exec(text(cell), names)
    assert names["xp"] is strict
    assert isinstance(names["batch"], strict.ndarray)
    assert "This notebook runs on the GPU" in capsys.readouterr().out


def test_read_along_shows_the_source_with_the_shapes_of_what_ran(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(FOLDER))
    reading = importlib.import_module("reading")
    x = np.ones((2, 3))
    y = reading.read_along(lines_to_read, x, twice=False)
    shown = re.sub(r"\x1b\[\d+m", "", capsys.readouterr().out)
    assert np.array_equal(y, np.full((3, 2), 3.0))
    assert shown.splitlines() == [
        "def lines_to_read(x, twice):",
        "    total = (",
        "        x",
        "        + x",
        "    )  # (B, d)",
        "    └─ total (2, 3)",
        "    if twice:",
        "        total = total[None]",
        "    else:",
        "        total += x",
        "        └─ total (2, 3)",
        "    n, (y, _) = 1, (total.T, total)",
        "    └─ y (3, 2)",
        "    return n * y",
    ]


# fmt: off
def lines_to_read(x, twice):
    """Not shown."""
    total = (
        x
        + x
    )  # (B, d)
    if twice:
        total = total[None]
    else:
        total += x
    n, (y, _) = 1, (total.T, total)
    return n * y
# fmt: on
