"""Tasks in worker processes, especially failing ones."""

import errno
import logging
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier, BrokenBarrierError, Event, Timer

import numpy as np
import pytest

from taccl._internal.address_space import means_out_of_memory
from taccl.solvers.process import Process
from taccl.solvers.worker import run_task
from tests.effort import AMPLE_S

DRILLS = "tests.solvers.faults:"


def drill(name, payload=None, *, time_limit_s=20, **options):
    """Run a faulty task in the solver family that loads fastest."""
    return run_task("pulp", DRILLS + name, payload or {}, time_limit_s=time_limit_s, **options)


def run_script(text):
    """Output of a Python script."""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_payload_round_trip():
    """Arrays and values reach the function and come back."""
    outcome = drill("echo", {"array": np.eye(2), "list": [1, "two", None]})
    assert outcome.status == "done"
    assert np.array_equal(outcome.result["payload"]["array"], np.eye(2))
    assert outcome.result["payload"]["list"] == [1, "two", None]


def test_workers_are_reused():
    """Two tasks in sequence use the same process."""
    assert drill("echo").result["pid"] == drill("echo").result["pid"] != os.getpid()


@pytest.mark.slow
def test_tasks_at_once_have_a_process_each():
    """Simultaneous tasks have a process each."""
    begun, enough = Event(), Event()

    def until_enough(_):
        begun.set()
        if enough.is_set():
            raise KeyError("enough")

    with ThreadPoolExecutor() as pool:
        slow = pool.submit(drill, "linger", time_limit_s=AMPLE_S, on_progress=until_enough)
        try:
            assert begun.wait(60)
            assert drill("echo").status == "done"
            assert not slow.done()
        finally:
            enough.set()
        with pytest.raises(KeyError, match="enough"):
            slow.result()


@pytest.mark.slow
def test_signal_death_is_named_and_the_next_task_works():
    """A worker that aborts gives a status, and the next task gets a new worker."""
    outcome = drill("abort")
    assert (outcome.status, outcome.result) == ("crashed", None)
    assert "SIGABRT" in outcome.message
    assert drill("echo").status == "done"


@pytest.mark.slow
def test_exit_code_is_named():
    """A worker that exits by itself is a crash with its exit code."""
    outcome = drill("leave", {"code": 3})
    assert outcome.status == "crashed"
    assert "exited with code 3" in outcome.message


def test_exception_is_named(caplog):
    """A Python exception is a crash with its text; its traceback is logged at debug level."""
    with caplog.at_level(logging.DEBUG, "taccl"):
        outcome = drill("fail")
    assert outcome.status == "crashed"
    assert "this drill always fails" in outcome.message
    assert "Traceback" in caplog.text


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds the address space of a process")
def test_memory_limit():
    """A task above its memory limit has status "out-of-memory", and the next task works."""
    assert drill("exhaust_memory", {"megabytes": 2000}, memory_limit_mb=200).status == "out-of-memory"
    assert drill("echo").status == "done"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds the address space of a process")
def test_memory_limit_ends_with_its_task():
    """The memory limit of one task does not hold for the next task of the same worker."""
    assert drill("echo", memory_limit_mb=50).status == "done"
    assert drill("exhaust_memory", {"megabytes": 200}).status == "done"


@pytest.mark.slow
def test_worker_that_failed_under_a_memory_limit_is_not_used_again():
    """A worker that failed under a memory limit is not reused; one that succeeded is."""
    pid = drill("echo", memory_limit_mb=500).result["pid"]
    assert drill("fail", memory_limit_mb=500).status == "crashed"
    assert drill("echo").result["pid"] != pid
    pid = drill("echo", memory_limit_mb=500).result["pid"]
    assert drill("echo").result["pid"] == pid


@pytest.mark.parametrize(
    ("error", "bounded", "expected"),
    [
        (MemoryError(), False, True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), False, True),
        (RuntimeError("can't start new thread"), True, True),
        (RuntimeError("can't start new thread"), False, False),
        (ImportError("x.so: failed to map segment from shared object"), True, True),
        (ImportError("No module named 'x'"), True, False),
    ],
)
def test_errors_that_count_as_out_of_memory(error, bounded, expected):
    """Thread and library errors count as out of memory only if the address space is limited."""
    assert means_out_of_memory(error, bounded=bounded) is expected


@pytest.mark.slow
def test_task_that_ignores_its_limit_is_killed():
    """A task that exceeds its time limit by a few seconds is killed; its last progress is kept."""
    outcome = drill("overrun", time_limit_s=0.1)
    assert outcome.status == "timed-out"
    assert outcome.last_progress == {"count": 1}


def test_a_task_is_killed_at_its_end_even_if_its_limit_has_not_passed():
    """`end_s` also bounds the start of a process; the message states the limit and the advice."""
    drill("echo")  # so that a worker is idle
    outcome = drill("overrun", time_limit_s=30, end_s=time.monotonic() + 0.2)
    assert outcome.status == "timed-out"
    assert outcome.seconds < 2.5
    assert outcome.message == "gave no answer within its time of 30 s; give more time"


def test_progress_reaches_the_caller_in_order():
    """`on_progress` receives every progress message, arrays included."""
    seen = []
    drill("linger", time_limit_s=0.4, on_progress=seen.append)
    assert [news["count"] for news in seen] == list(range(1, len(seen) + 1))
    assert len(seen[-1]["values"]) == len(seen)


@pytest.mark.slow
def test_exception_of_the_caller_passes_through():
    """An exception in `on_progress` reaches the caller, and the task is ended."""

    def complain(news):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        drill("linger", on_progress=complain)


@pytest.mark.slow
def test_native_output_stays_quiet_unless_asked(capfd):
    """Native output is discarded, or goes to standard error with `log`."""
    drill("print_natively")
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_log_shows_native_output():
    """With `log`, descriptors 1 and 2 of the worker reach standard error, and standard output stays clean."""
    text = (
        "from taccl.solvers.worker import run_task\n"
        f"run_task('pulp', '{DRILLS}print_natively', {{}}, time_limit_s=9, log=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == ""
    assert done.stderr == "printed on 1\nprinted on 2\n"


def ctrl_c(*_):
    """Interrupt this process, as Ctrl-C does."""
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("grace_s", "name", "said"),
    [(600.0, "linger", ("interrupted", True, True)), (0.1, "overrun", ("interrupted", False, True))],
    ids=["it stops", "it does not listen"],
)
def test_interrupt_of_a_task(grace_s, name, said, monkeypatch):
    """Ctrl-C asks a task to stop and returns its result, or its last progress, without an exception."""
    monkeypatch.setattr("taccl.solvers.worker._INTERRUPT_S", grace_s)
    heard = []

    def interrupt_once(news):
        if not heard:
            Timer(0.02, ctrl_c).start()
        heard.append(news)

    outcome = drill(name, time_limit_s=AMPLE_S, on_progress=interrupt_once)
    assert (outcome.status, outcome.result is not None, outcome.last_progress is not None) == said
    assert drill("echo").status == "done"


@pytest.mark.slow
def test_interrupt_of_a_worker_that_may_not_react():
    """HiGHS may not react for long, and has reported its best: its worker is killed after a third of a second."""
    outcome = run_task("highs", f"{DRILLS}overrun", {}, time_limit_s=AMPLE_S, on_progress=ctrl_c)
    assert outcome.status == "interrupted"
    assert drill("echo").status == "done"


@pytest.mark.slow
def test_interrupt_of_a_worker_that_has_not_read_its_task():
    """A worker that has not read its task yet (80 MB) is killed immediately."""
    printed = run_script(
        f"""
import os, signal, threading
import numpy as np
from taccl.solvers.worker import run_task
threading.Timer(0.15, os.kill, (os.getpid(), signal.SIGINT)).start()
print(run_task("pulp", "{DRILLS}overrun", {{"array": np.zeros(10**7)}}, time_limit_s=3600).status)
print(run_task("pulp", "{DRILLS}echo", {{}}, time_limit_s=30).status)
"""
    )
    assert printed.splitlines() == ["interrupted", "done"]


@pytest.mark.slow
def test_forked_child_has_workers_of_its_own():
    """A forked process neither uses nor ends its parent's workers."""
    printed = run_script(
        f"""
import os
from taccl.solvers.process import Process
from taccl.solvers.worker import run_task
def pid():
    return run_task("pulp", "{DRILLS}echo", {{}}, time_limit_s=9).result["pid"]
before = pid()
child = os.fork()
if child == 0:
    print(pid() != before, flush=True)
    raise SystemExit
os.waitpid(child, 0)
print(pid() == before)
"""
    )
    assert printed.split() == ["True", "True"]


@pytest.mark.slow
def test_worker_ends_with_its_parent():
    """A parent that is killed leaves no worker behind."""
    text = (
        "import os, signal\nfrom taccl.solvers.process import WORKERS\n"
        "from taccl.solvers.worker import run_task\n"
        "def die(news):\n"
        "    print(WORKERS._all[0]._popen.pid, flush=True)\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        f"run_task('pulp', '{DRILLS}overrun', {{}}, time_limit_s=60, on_progress=die)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False
    )
    worker = int(done.stdout)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and is_running(worker):
        time.sleep(0.05)
    assert not is_running(worker)


def is_running(pid):
    """True if a process exists and is not a zombie."""
    if not os.path.exists("/proc/self/stat"):
        found = subprocess.run(
            ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
        )
        return bool(found.stdout.strip()) and not found.stdout.strip().startswith("Z")
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class Meeting:
    """A channel that two threads close at once: `close` waits up to 0.2 s for a second thread to call it."""

    def __init__(self, channel):
        self.channel, self.together, self.is_open = channel, Barrier(2), True

    def close(self):
        """Close the channel; `OSError` if another thread closes it at the same time and finishes first."""
        if self.is_open:
            with suppress(BrokenBarrierError):
                self.together.wait(0.2)
            if not self.is_open:
                raise OSError(errno.EBADF, "closed twice")
            self.is_open = False
            self.channel.close()


@pytest.mark.slow
def test_two_threads_may_end_a_process():
    """Two threads may end a process at the same time, and both get its exit code."""
    process = Process("pulp", None)
    process._channel = Meeting(process._channel)
    with ThreadPoolExecutor(2) as threads:
        ended = [each.result()[0] for each in [threads.submit(process.end) for _ in range(2)]]
    assert ended == [-signal.SIGKILL] * 2
