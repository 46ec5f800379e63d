"""What the README says of the code, held against the code."""

import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import numpy_gpt
from numpy_gpt.cli import parser
from numpy_gpt.exercises import EXERCISES
from numpy_gpt.labs import LABS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAP = re.findall(r"^\| ((?:§|Token|Beside).*?) \| `(.*?)` \| (.*?) \| (.*?) ?\| (.*?) ?\|$", README, re.MULTILINE)


def test_map_covers_every_section_with_code_and_every_op():
    assert {section for row in MAP for section in re.findall(r"§\d", row[0])} == {f"§{n}" for n in range(1, 8)}
    ops = {f"numpy_gpt/ops/{path.name}" for path in (ROOT / "numpy_gpt/ops").glob("*.py")}
    assert ops - {"numpy_gpt/ops/__init__.py", "numpy_gpt/ops/checks.py"} <= {file for _, file, *_ in MAP}


def test_map_leads_to_every_exercise_and_lab():
    exercises, labs = ({name for row in MAP for name in row[column].split(", ") if name} for column in (3, 4))
    assert exercises == set(EXERCISES)
    assert labs == set(LABS)


@pytest.mark.parametrize(("section", "file", "functions", "exercises", "labs"), MAP)
def test_map_names_what_exists(section, file, functions, exercises, labs):
    assert (ROOT / file).is_file()
    module = import_module(file.removesuffix(".py").replace("/", "."))
    for name in re.findall(r"`(.*?)`", functions):
        thing = module
        for part in name.split("."):
            thing = getattr(thing, part)


def test_python_example_runs():
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict = {}
    exec(example, names)
    assert float(names["loss"]) == pytest.approx(np.log(65), rel=0.05)


def test_commands_parse():
    commands = re.findall(r"numpy-gpt ((?:[a-z]+)[^`\n]*)", README)
    assert len(commands) >= 5
    for command in commands:
        if "--help" not in command:
            parser().parse_args([word.strip('"') for word in re.findall(r'"[^"]*"|\S+', command)])


def test_parameter_count():
    assert f"{numpy_gpt.Config.preset('gpt2').n_parameters():,} parameters" in README


def test_pictures_exist():
    for picture in re.findall(r"!\[.*?\]\((.*?)\)", README):
        assert (ROOT / picture).is_file()
