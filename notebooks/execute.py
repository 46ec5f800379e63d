"""Run the notebooks and save what they print and draw.

python notebooks/execute.py                  all of them, in place
python notebooks/execute.py 02_gradcheck     one of them
python notebooks/execute.py --small --out /tmp/notebooks     as the tests do: small settings, saved elsewhere
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import nbformat
from jupyter_client import AsyncKernelManager
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def execute(name: str, out: Path) -> None:
    """Run notebooks/NAME.ipynb in a fresh kernel and save it into the folder out.

    What tells of this machine rather than of the notebook, the interpreter's version and the
    kernel's name for itself, is left out. Raises CellExecutionError where a cell fails.
    """
    notebook = nbformat.read(HERE / f"{name}.ipynb", as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        kernel = AsyncKernelManager(
            kernel_name="python3",
            transport="tcp" if os.name == "nt" else "ipc",  # no port is opened where a file will do
            connection_file=str(Path(folder) / "kernel.json"),
        )
        client = NotebookClient(notebook, km=kernel, timeout=1800, record_timing=False, coalesce_streams=True)
        client.execute(cwd=str(HERE), cleanup_kc=True)  # the kernel ends with it
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({})
    nbformat.write(notebook, out / f"{name}.ipynb")


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the notebooks and save what they print and draw.")
    parser.add_argument("names", nargs="*", help="without .ipynb; default: all")
    parser.add_argument("--small", action="store_true", help="small settings: seconds, and numbers that mean little")
    parser.add_argument("--out", type=Path, default=HERE, help="the folder to save into; default: where they are")
    args = parser.parse_args()
    if args.small:
        os.environ["NUMPY_GPT_NOTEBOOK"] = "small"  # the kernel inherits it
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.names or sorted(path.stem for path in HERE.glob("*.ipynb")):
        start = time.perf_counter()
        execute(name, args.out)
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
