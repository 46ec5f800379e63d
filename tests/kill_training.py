"""Train, be killed at a random moment, go on: python kill_training.py KILLS SEED RUN FLAGS...

Starts `numpy-gpt train FLAGS... --out RUN`, and KILLS times over kills it (SIGKILL) and resumes it: in turn
a random while after it has saved, while it writes, and a random while after its start. After every kill all
checkpoints must verify, the newest must be as new as any seen before, and loss.csv must hold all of its
updates. Prints as JSON the updates that the newest held after each kill, and how many kills left a
half-written checkpoint.

The processes are forked from this one, which has imported everything: only the training costs time.
"""

import contextlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import rich.progress
import rich.table  # noqa: F401  (both imported once, here)

from numpy_gpt.checkpoint import read_checkpoint
from numpy_gpt.cli import main
from numpy_gpt.runs import read_history, step_files

SYNC = os.fsync


def slow_sync(file):
    """As on a disk that takes its time, so that a kill can find a file still under its temporary name."""
    time.sleep(0.005)
    SYNC(file)


def start(argv):
    """Return the pid of a new process that runs numpy-gpt with argv."""
    pid = os.fork()
    if pid == 0:
        os.fsync = slow_sync
        log = os.open("training.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os._exit(main(argv))
    return pid


def wait_for(condition, pid):
    """Wait until condition holds, for a minute at most, while pid lives."""
    deadline = time.monotonic() + 60
    while not condition():
        if os.waitpid(pid, os.WNOHANG)[0] or time.monotonic() > deadline:
            sys.exit(f"the training ended by itself, or hangs:\n{Path('training.log').read_text(encoding='utf-8')}")


def is_writing(run):
    """Return whether a checkpoint is being written in the folder of the run."""
    with contextlib.suppress(FileNotFoundError):
        return any(entry.name.startswith(".step-") for entry in os.scandir(run))
    return False


def kill_and_check(argv, run, rng, moment):
    """Run argv until such a moment; return the newest checkpoint's updates, and whether a write was cut short."""
    before = max(step_files(run), default=0)
    pid = start(argv)
    if moment == "start":
        time.sleep(rng.uniform(0, 0.2))
    else:
        wait_for(lambda: max(step_files(run), default=0) > before, pid)
        time.sleep(rng.uniform(0, 0.05))
    if moment == "write":
        wait_for(lambda: is_writing(run), pid)
        time.sleep(rng.uniform(0, 0.0003))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    found = step_files(run)
    for path in found.values():
        read_checkpoint(path, with_moments=True)
    newest = max(found)
    assert newest >= before + (moment != "start")
    assert len(read_history(run / "loss.csv", newest)) == newest
    return newest, is_writing(run)


def kill_all_over(kills, seed, run, flags):
    """Do the whole; see above."""
    rng = random.Random(seed)
    argv = ["train", *flags, "--out", str(run)]
    results = []
    for number in range(kills):
        results.append(kill_and_check(argv, run, rng, ("save", "write", "start")[number % 3]))
        argv = ["train", "--resume", str(run)]
    return {"newest": [newest for newest, _ in results], "half_written": sum(half for _, half in results)}


if __name__ == "__main__":
    print(json.dumps(kill_all_over(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])))
