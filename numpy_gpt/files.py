"""Files written whole or not at all, and errors of one line that name the file."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside path; rename it to path once the body has written it.

    The bytes are on the disk before the name is, so that a crash leaves the old file or the
    new one, never half of one. Where the body raises, the temporary file is removed.

    Raises OSError, naming path, where it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        try:
            temporary.touch()
            mode = temporary.stat().st_mode  # what the user's umask makes of a new file
            yield temporary
            temporary.chmod(mode)  # safetensors would leave it readable by its owner alone
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            if temporary.exists():
                temporary.unlink()
        if os.name == "posix":  # a rename is safe only once its folder is on the disk too
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except NotWrittenError:  # a file that was to be written within this one's body
        raise
    except OSError as error:
        raise NotWrittenError(f"{path}: cannot write it: {error.strerror or error}") from error


class NotWrittenError(OSError):
    """A file could not be written; the message names it."""


def check_writable(folder: Path) -> None:
    """Raise OSError, naming folder, where no file can be made in it."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(f"{folder}: cannot write to it: {error.strerror or error}") from error


def remove_stale(folder: Path, names: re.Pattern[str]) -> None:
    """Remove from folder what a killed process's `atomic_write` of a file so named left there.

    What a living process is writing stays, and so does what another program calls alike.
    """
    for temporary in folder.glob(".*.*.tmp"):
        name, pid = temporary.name[1:-4].rsplit(".", 1)
        if names.fullmatch(name) and pid.isdecimal() and not _is_another(int(pid)):
            with suppress(PermissionError):  # Windows: a living process has it open
                temporary.unlink(missing_ok=True)


def _is_another(pid: int) -> bool:
    """Return whether pid is a living process other than this one."""
    if os.name != "posix" or pid == os.getpid():  # Windows has no way to ask
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:  # it lives, and is someone else's
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Make whatever the body finds wrong with the file at path a ValueError of one line that names it."""
    from safetensors import SafetensorError

    try:
        yield
    except (ValueError, SafetensorError, RecursionError) as error:
        raise ValueError(f"{path}: {one_line(error)}") from error
    except OSError as error:
        raise ValueError(f"{path}: cannot read it: {error.strerror or error}") from error


def one_line(value: object, longest: int = 300) -> str:
    """Return value, an error or a name that may come from a file, as one short line of printable characters."""
    text = " ".join(str(value).split())
    shown = "".join(character if character.isprintable() else "?" for character in text[: longest + 1])
    return shown if len(shown) <= longest else f"{shown[: longest - 3]}..."
