from pathlib import Path

import pytest

from numpy_gpt.files import atomic_write, naming, one_line


def test_what_cannot_be_finished_is_not_begun(tmp_path):
    file = tmp_path / "file"
    file.write_text("old")

    def fail():
        with atomic_write(file) as temporary:
            temporary.write_text("half")
            raise KeyError("ours")

    with pytest.raises(KeyError, match="ours"):
        fail()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert file.read_text() == "old"
    with atomic_write(file) as temporary:
        temporary.write_text("new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert file.read_text() == "new"


def test_a_missing_folder_is_named(tmp_path):
    with (
        pytest.raises(OSError, match=r"nowhere.file: cannot write it: No such file"),
        atomic_write(tmp_path / "nowhere" / "file"),
    ):
        pass


@pytest.mark.parametrize("error", [ValueError("two\nlines \x1b[2J"), RecursionError("two lines ?[2J")])
def test_what_is_wrong_becomes_one_printable_line(error):
    with pytest.raises(ValueError, match=r"\Aa file: two lines \?\[2J\Z"), naming(Path("a file")):
        raise error


@pytest.mark.parametrize(("n", "shown"), [(20, "x" * 20), (21, "x" * 17 + "..."), (10**6, "x" * 17 + "...")])
def test_what_is_long_is_cut(n, shown):
    assert one_line("x" * n, 20) == shown


def test_what_is_not_the_files_fault_passes():
    with pytest.raises(KeyError), naming("a file"):
        raise KeyError("ours")
