"""Who computes a part of the batch beside the caller: processes, or threads where the system cannot fork itself.

Threads share the model for nothing. But for every call of NumPy they need Python's lock, and where a step
is hundreds of small calls they keep waiting for each other. Processes have a lock each; the parameters and
the gradients lie in memory that all of them see.
"""

from __future__ import annotations

import gc
import mmap
import os
import signal
import sys
import traceback
import warnings
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from .cores import one_core
from .model import Model
from .parameters import Parameters

Work = Callable[[Any, Parameters], Any]  # work(share, grads) writes the gradients of a share of the batch


def are_processes(model: Model) -> bool:
    """Tell whether this model's workers are processes: on Linux, on the CPU."""
    return sys.platform == "linux" and model.xp is np


def start_workers(n: int, model: Model, work: Work) -> Threads | Processes:
    """Return n workers, processes or threads."""
    if are_processes(model):
        try:
            return Processes(n, model, work)
        except OSError as error:  # there are too many, or there is too little memory
            warnings.warn(f"threads share the batch, since no process could be started: {error}", stacklevel=2)
    return Threads(n, model, work)


class Threads:
    """n threads, each with gradients of its own."""

    def __init__(self, n: int, model: Model, work: Work) -> None:
        self.work = work
        self.grads = [model.params.zeros_like() for _ in range(n)]
        self.pool = ThreadPoolExecutor(n)

    def begin(self, shares: Sequence[Any]) -> None:
        """Begin with a share each."""
        self.calls = [self.pool.submit(self.work, share, grads) for share, grads in zip(shares, self.grads)]

    def results(self) -> list[Any]:
        """Wait for what the work returns; raise what it raises."""
        return [call.result() for call in self.calls]

    def close(self) -> None:
        """End them, once they have done what they are at."""
        self.pool.shutdown()


class Processes:
    """n processes forked from this one, which know all that it knows by then, each with gradients of its own.

    Raises OSError where the system does not let them start.
    """

    def __init__(self, n: int, model: Model, work: Work) -> None:
        self.model = model
        self.params = shared_like(model.params)
        self.grads = [shared_like(model.params) for _ in range(n)]
        self.members: list[Process] = []
        self._end = weakref.finalize(self, end, self.members, os.getpid())
        try:
            for grads in self.grads:
                self.members.append(Process(model, work, self.params, grads))
        except BaseException:
            self.close()
            raise

    def begin(self, shares: Sequence[Any]) -> None:
        """Begin with a share each, and with the model's parameters as they are now."""
        self.params.flat = self.model.params.flat
        for member, share in zip(self.members, shares):
            member.send(share)

    def results(self) -> list[Any]:
        """Wait for what the work returns; raise what it raises, and RuntimeError where a process is gone."""
        return [member.receive() for member in self.members]

    def close(self) -> None:
        """End them, whatever they are at."""
        self._end()


# A terminal, or a cluster's scheduler, sends them to all processes; it is the caller's to answer them.
THE_CALLERS = {signal.SIGINT, signal.SIGTERM}


class Process:
    """A process that works on what it is sent until it is ended, or nobody is left to send."""

    def __init__(self, model: Model, work: Work, params: Parameters, grads: Parameters) -> None:
        requests, self.requests = Pipe(duplex=False)
        self.replies, replies = Pipe(duplex=False)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, THE_CALLERS)
        try:
            self.pid = fork()
            if self.pid == 0:  # the new process, where they stay blocked
                model.params = params
                serve(work, grads, requests, replies)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        requests.close()
        replies.close()

    def send(self, share: Any) -> None:
        """Hand it a share."""
        try:
            self.requests.send(share)
        except BrokenPipeError as error:
            raise self.gone() from error

    def receive(self) -> Any:
        """Wait for what its work returns; raise what it raises."""
        try:
            result, where = self.replies.recv()
        except EOFError as error:
            raise self.gone() from error
        if where is not None:
            raise result from RuntimeError(f"in process {self.pid}:\n{where}")
        return result

    def gone(self) -> RuntimeError:
        return RuntimeError(f"process {self.pid}, which had a part of the batch, is gone; was there too little memory?")


def fork() -> int:
    """os.fork, without Python's warning that a child has none of the other threads: it does not ask for them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def serve(work: Work, grads: Parameters, requests: Connection, replies: Connection) -> NoReturn:
    """Answer requests, on one core, until there is nobody to ask: all that a forked process does."""
    try:
        gc.freeze()  # what is garbage already is the caller's to clear away, with the files that it may stand for
        let_go_of_files({requests.fileno(), replies.fileno()})
        with one_core(), suppress(EOFError, BrokenPipeError):
            while True:
                replies.send(answer(work, requests.recv(), grads))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)  # without clearing up: that too is the caller's


def answer(work: Work, share: Any, grads: Parameters) -> tuple[Any, str | None]:
    """Return what work returns, or the error that it raises and where."""
    try:
        return work(share, grads), None
    except BaseException as error:
        try:
            ForkingPickler.loads(ForkingPickler.dumps(error))
        except Exception:  # an error of a kind that does not travel
            return RuntimeError(f"{type(error).__name__}: {error}"), traceback.format_exc()
        return error, traceback.format_exc()


def let_go_of_files(keep: set[int]) -> None:
    """Close all files but these and the standard ones: the lock on a run's folder must end with the caller, say."""
    for descriptor in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if descriptor > 2 and descriptor not in keep:
            with suppress(OSError):  # the listing's own, closed by now
                os.close(descriptor)


def end(members: list[Process], owner: int) -> None:
    """Kill the processes and forget them; where a forked process comes here, they are not its own."""
    while members and os.getpid() == owner:
        member = members.pop()
        with suppress(ProcessLookupError, ChildProcessError):  # somebody else has waited for it
            os.kill(member.pid, signal.SIGKILL)
            os.waitpid(member.pid, 0)
        member.requests.close()
        member.replies.close()


def shared_like(params: Parameters) -> Parameters:
    """Return new Parameters of the same names, shapes and dtype, all zero, in memory that forked processes share."""
    memory = mmap.mmap(-1, params.flat.nbytes)
    return Parameters(params.shapes, params.flat.dtype, flat=np.frombuffer(memory, params.flat.dtype))
