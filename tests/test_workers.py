import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import strict_device

from numpy_gpt import Config, Model, workers
from numpy_gpt import model as model_module
from numpy_gpt.accumulation import Accumulator
from numpy_gpt.parameters import Parameters
from numpy_gpt.workers import Processes, Threads, start_workers

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="processes share a batch on Linux alone")
KINDS = [pytest.param(Processes, marks=on_linux), Threads]


def small_model():
    return Model(Config(V=11, T_max=8, d=12, h=3, L=2), seed=3, dtype="float64")


def micro_batches(n=4):
    return [tuple(batch) for batch in np.random.default_rng(0).integers(0, 11, (n, 2, 2, 8))]


@pytest.fixture(params=KINDS)
def kind(request, monkeypatch):
    """Both kinds of workers, the one in hand chosen for every Accumulator too."""
    if request.param is Threads:
        monkeypatch.setattr(sys, "platform", "darwin")
    return request.param


@pytest.fixture
def started(kind):
    """A function that starts workers, which are ended after the test."""
    all_of_them = []

    def start(n, model, work):
        all_of_them.append(start_workers(n, model, work))
        assert type(all_of_them[-1]) is kind
        return all_of_them[-1]

    yield start
    for some in all_of_them:
        some.close()


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until_gone(pid):
    deadline = time.monotonic() + 60
    while is_alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_each_worker_has_its_share_and_its_gradients(started):
    def work(share, grads):
        grads.flat[...] = share
        return share + 1

    both = started(2, small_model(), work)
    for shares in ([10, 20], [30, 40]):
        both.begin(shares)
        assert both.results() == [share + 1 for share in shares]
        assert [float(grads.flat[-1]) for grads in both.grads] == shares


def test_workers_see_the_parameters_as_they_are_now(started):
    model = small_model()
    one = started(1, model, lambda share, grads: float(model.params["W_te"].sum()))
    for value in (1, 2):
        model.params["W_te"] = np.full((11, 12), value)
        one.begin([None])
        assert one.results() == [value * 11 * 12]


@on_linux
def test_all_kinds_give_the_same_bits(monkeypatch):
    found = []
    for platform in (sys.platform, "darwin"):
        monkeypatch.setattr(sys, "platform", platform)
        accumulator = Accumulator(small_model(), workers=3)
        for _ in range(2):
            loss, grads = accumulator.step(micro_batches())
        found.append((loss, grads.flat.tobytes()))
        accumulator.close()
    assert found[0] == found[1]


def test_workers_compute_with_the_ops_of_the_day(kind, monkeypatch):
    """A student who puts an own op into the model trains with it, in every part of the batch."""
    backward = model_module.layernorm_backward

    def wrong(*args, **kwargs):
        dx, dgamma, dbeta = backward(*args, **kwargs)
        dgamma *= 2
        return dx, dgamma, dbeta

    whole = [np.concatenate(part) for part in zip(*micro_batches())]
    right = small_model().step(*whole).grads["ln_f.gamma"].copy()
    monkeypatch.setattr(model_module, "layernorm_backward", wrong)
    accumulator = Accumulator(small_model(), workers=2)
    np.testing.assert_allclose(accumulator.step(micro_batches()).grads["ln_f.gamma"], 2 * right, rtol=1e-10)
    accumulator.close()


class Picky(Exception):
    def __init__(self, one, other):
        super().__init__(f"{one} and {other}")


@pytest.mark.parametrize(
    ("error", "as_told"),
    [(ValueError("no"), ValueError), (Picky(1, 2), RuntimeError), (KeyError("x"), KeyError)],
)
def test_an_error_comes_out_with_its_place(started, error, as_told):
    def in_my_own_op(share, grads):
        raise error

    one = started(1, small_model(), in_my_own_op)
    one.begin([None])
    with pytest.raises(Exception, match=str(error).strip("'")) as caught:
        one.results()
    if isinstance(one, Threads):
        assert caught.value is error
    else:
        assert type(caught.value) is as_told
        assert "in_my_own_op" in str(caught.value.__cause__)


def test_after_an_error_the_next_step_is_right(kind):
    accumulator = Accumulator(small_model(), workers=2)
    expected = accumulator.step(micro_batches())
    expected = (expected.loss, expected.grads.flat.tobytes())
    idx = np.full((2, 8), 11)
    for number in range(2):  # in this worker's share, and in the other's
        bad = micro_batches()
        bad[number] = (idx, idx)
        with pytest.raises(ValueError, match=r"idx\[0, 0\] is 11"):
            accumulator.step(bad)
        assert accumulator.others is None
    step = accumulator.step(micro_batches())
    assert (step.loss, step.grads.flat.tobytes()) == expected
    accumulator.close()


def test_a_ctrl_c_amid_a_step_ends_the_others(kind, monkeypatch):
    accumulator = Accumulator(small_model(), workers=2)
    work = accumulator._work

    def interrupted(jobs, grads):
        raise KeyboardInterrupt

    accumulator.step(micro_batches())
    monkeypatch.setattr(accumulator, "_work", interrupted)  # in this process: the others run already
    with pytest.raises(KeyboardInterrupt):
        accumulator.step(micro_batches())
    assert accumulator.others is None
    monkeypatch.setattr(accumulator, "_work", work)
    accumulator.step(micro_batches())
    accumulator.close()


def pid_of(share, grads):
    return os.getpid()


@pytest.fixture
def process():
    """A process that tells its own number, and that number."""
    if sys.platform != "linux":
        pytest.skip("processes share a batch on Linux alone")
    one = Processes(1, small_model(), pid_of)
    yield one, one.members[0].pid
    one.close()


def test_a_process_leaves_signals_to_its_caller(process):
    """Ctrl-C and a scheduler's SIGTERM reach it too; the update in hand must be finished all the same."""
    one, pid = process
    for _ in range(2):
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
        one.begin([None])
        assert one.results() == [pid]


def test_close_ends_the_process_and_leaves_no_zombie(process):
    one, pid = process
    one.close()
    one.close()
    assert not is_alive(pid)
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, 0)


@on_linux
def test_forgotten_processes_end():
    one = Processes(1, small_model(), pid_of)
    pid = one.members[0].pid
    del one
    gc.collect()
    assert not is_alive(pid)


@pytest.mark.parametrize("when", ["before it is asked", "while it works"])
def test_a_killed_process_is_told(process, when):
    one, pid = process
    if when == "while it works":
        os.kill(pid, signal.SIGSTOP)
        one.begin([None])
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    ask = one.results if when == "while it works" else lambda: one.begin([None])
    with pytest.raises(RuntimeError, match=f"process {pid}, which had a part of the batch, is gone"):
        ask()


def test_a_process_that_somebody_else_waited_for(process):
    one, pid = process
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    one.close()


@on_linux
def test_a_process_holds_none_of_the_callers_files(tmp_path):
    """Else the lock on a run's folder would outlive the run."""
    with (tmp_path / "lock").open("w") as file:
        one = Processes(
            1, small_model(), lambda share, grads: [entry.name for entry in Path("/proc/self/fd").iterdir()]
        )
        assert file.fileno() > 2
        one.begin([None])
        (held,) = one.results()
        one.close()
    assert len([number for number in held if int(number) > 2]) <= 3  # two pipes, and the listing's own


ORPHAN = """
import os, signal
from numpy_gpt import Config, Model
from numpy_gpt.workers import Processes

one = Processes(1, Model(Config(V=5, T_max=4, d=4, h=1, L=1)), lambda share, grads: None)
print(one.members[0].pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@on_linux
def test_a_process_ends_with_its_caller():
    found = subprocess.run([sys.executable, "-c", ORPHAN], capture_output=True, text=True)
    assert found.returncode == -signal.SIGKILL
    wait_until_gone(int(found.stdout))
    assert found.stderr == ""


@on_linux
def test_a_process_keeps_to_one_core(monkeypatch):
    from numpy_gpt.cores import spare_cores

    one = Processes(1, small_model(), lambda share, grads: spare_cores())
    one.begin([None])
    assert one.results() == [1]
    one.close()


@on_linux
@pytest.mark.parametrize("n_allowed", [0, 1])
def test_threads_where_no_process_can_be_started(monkeypatch, n_allowed):
    fork, started = workers.fork, []

    def limited():
        if len(started) == n_allowed:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        pid = fork()
        started.append(pid)
        return pid

    monkeypatch.setattr(workers, "fork", limited)
    with pytest.warns(UserWarning, match="threads share the batch, since no process could be started: .*unavailable"):
        some = start_workers(2, small_model(), pid_of)
    assert isinstance(some, Threads)
    some.close()
    assert len(started) == n_allowed
    assert not any(map(is_alive, started))


def test_threads_on_a_gpu(strict):
    model = Model(Config(V=5, T_max=4, d=4, h=1, L=1), xp=strict_device)
    some = start_workers(1, model, pid_of)
    assert isinstance(some, Threads)
    some.close()


@on_linux
def test_another_process_does_not_end_them(process):
    """A fork of the caller's own, say a data loader's, drops its copy of what it never started."""
    one, pid = process
    workers.end(one.members, os.getpid() + 1)
    assert is_alive(pid)
    one.begin([None])
    assert one.results() == [pid]


@on_linux
def test_shared_memory_is_shared():
    params = Parameters({"W": (2, 3), "b": (3,)}, "float64")
    shared = workers.shared_like(params)
    assert list(shared) == ["W", "b"]
    assert shared.flat.dtype == "float64"
    pid = workers.fork()
    if pid == 0:
        shared["W"][...] = 7
        os._exit(0)
    os.waitpid(pid, 0)
    np.testing.assert_array_equal(shared.flat, [7] * 6 + [0] * 3)
