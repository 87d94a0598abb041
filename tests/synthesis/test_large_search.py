"""Problems that only the compiled list schedulers reach: limits, Ctrl-C, news on the way, and what is said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import taccl
from taccl import collectives
from taccl.errors import InputError, NoSolutionError
from taccl.problem import make_problem
from taccl.schedule.compact import CompactSchedule
from taccl.schedule.summary import ScheduleSummary
from taccl.synthesis import large_search, pipeline
from taccl.synthesis.compiled.events import is_stopped, stopping, watched

topologies = taccl.topologies


def problem_of(topology, name="allgather"):
    return make_problem(topology, collectives.make(name, topology.num_ranks), chunk_bytes=10**6)


MESH = problem_of(topologies.mesh(8, 8))


@pytest.fixture(autouse=True)
def few_moves(monkeypatch):
    """More than a thousand moves are many, so that tests need not be large."""
    monkeypatch.setattr(pipeline, "_MOST_MOVES", 1000)


def kernel_that_waits(signal):
    """Runs until it is stopped, as a kernel does."""
    with stopping(signal, None, done=lambda: 0.25):
        while not signal[0]:
            time.sleep(0.01)
    return "stopped"


class TestWatched:
    """`watched` looks after compiled code in a thread of its own."""

    def test_result_of_what_ends_by_itself(self):
        """It is returned, and nothing was stopped."""
        assert watched(lambda: 7) == (7, "")

    def test_error_of_what_fails(self):
        """It is raised where the result is waited for."""
        with pytest.raises(ZeroDivisionError):
            watched(lambda: 1 / 0)

    def test_time_limit_stops_a_kernel(self):
        """After a tenth of a second it is told to stop, and what it has is returned."""
        assert watched(lambda: kernel_that_waits(np.zeros(1, np.int64)), seconds=0.1) == (
            "stopped",
            "time limit",
        )

    def test_time_limit_without_a_result(self):
        """A kernel that finds nothing in time is a `TimeoutError`."""

        def fails():
            kernel_that_waits(np.zeros(1, np.int64))
            raise NoSolutionError("nothing")

        with pytest.raises(TimeoutError):
            watched(fails, seconds=0.1)

    def test_ctrl_c_stops_a_kernel(self):
        """It reaches the thread that waits, and what the kernel has is returned."""
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        assert watched(lambda: kernel_that_waits(np.zeros(1, np.int64)))[1] == "interrupted"

    def test_later_kernels_are_stopped_too(self):
        """One that begins after the limit ends at once."""

        def two():
            kernel_that_waits(np.zeros(1, np.int64))
            return kernel_that_waits(np.zeros(1, np.int64)), is_stopped()

        assert watched(two, seconds=0.1)[0] == ("stopped", True)

    def test_news_of_how_far_it_is(self):
        """Seconds so far, and the part that the kernel says is done."""
        told = []
        watched(
            lambda: kernel_that_waits(np.zeros(1, np.int64)),
            seconds=0.6,
            tell=lambda *what: told.append(what),
        )
        assert told and all(past > 0 and done == 0.25 for past, done in told)


class TestChoice:
    """What runs, and why, is said with the figures."""

    def test_result_says_why(self):
        """The number of moves, and what they are more than."""
        result = taccl.synthesize(MESH, backend="greedy")
        assert "compiled list scheduler: about 1.4e+04 moves" in result.choice
        assert "more than the 1000" in result.choice
        assert result.choice in repr(result) and result.to_dict()["choice"] == result.choice

    def test_few_moves_are_left_to_the_portfolio(self):
        """Twelve chunks... over eight links: 32 moves."""
        result = taccl.synthesize(problem_of(topologies.ring(4)), time_limit_s=2)
        assert result.choice == "the portfolio: 32 moves, at most 1000"

    def test_named_solver_was_asked_for(self):
        """Nothing was chosen."""
        result = taccl.synthesize(problem_of(topologies.ring(4)), backend="highs", time_limit_s=2)
        assert result.choice == "highs, as asked"


class TestKept:
    """What is left of a schedule that was found and verified."""

    def test_summary(self):
        """The figures are those of the whole schedule, and the result says that it is gone."""
        result = taccl.synthesize(MESH, backend="greedy", keep="summary")
        assert isinstance(result.schedule, ScheduleSummary)
        assert (result.finish_us, result.schedule.num_transfers) == (656, 4032)
        assert any("verified and then dropped" in note for note in result.notes)

    def test_spilled(self, tmp_path):
        """The columns are in the folder, and the result says where."""
        result = taccl.synthesize(MESH, backend="greedy", spill_dir=tmp_path / "columns")
        assert isinstance(result.schedule, CompactSchedule)
        assert taccl.load_spilled(tmp_path / "columns").digest() == result.schedule.digest()
        assert any(str(tmp_path / "columns") in note for note in result.notes)

    def test_spilling_what_is_small(self, tmp_path):
        """Nothing would be in the folder: an error, before any work."""
        with pytest.raises(InputError, match="spill_dir: only the compiled list scheduler spills"):
            taccl.synthesize(problem_of(topologies.ring(4)), spill_dir=tmp_path)

    def test_keep_has_two_values(self):
        """A word that means nothing is an error."""
        with pytest.raises(InputError, match="keep: found 'all'; expected 'schedule' or 'summary'"):
            taccl.synthesize(MESH, keep="all")


class TestLimits:
    """The time limit, and Ctrl-C, in each part of the search."""

    def test_first_run_obeys_the_limit(self, monkeypatch):
        """No schedule in time is an error that knows a bound: 14 links of 20.5 us from corner to corner."""

        def waits(*_, **__):
            kernel_that_waits(np.zeros(1, np.int64))
            raise NoSolutionError("nothing")

        monkeypatch.setattr(large_search, "compile_kernels", lambda _: 0.0)
        monkeypatch.setattr(large_search, "schedule_large", waits)
        since = time.monotonic()
        with pytest.raises(NoSolutionError, match="no schedule in 0") as caught:
            taccl.synthesize(MESH, backend="greedy", time_limit_s=0.5)
        assert caught.value.bound_us >= 14 * 20.5
        assert time.monotonic() - since < 5

    def test_ctrl_c_in_the_first_run(self, monkeypatch):
        """There is nothing to return."""

        def interrupts(*_, **__):
            raise KeyboardInterrupt

        monkeypatch.setattr(large_search, "watched", interrupts)
        with pytest.raises(KeyboardInterrupt):
            taccl.synthesize(MESH, backend="greedy")

    def test_ctrl_c_in_the_proof(self, monkeypatch):
        """The schedule is returned, without a bound, and the result says that it was interrupted."""

        def interrupts(*_, **__):
            raise KeyboardInterrupt

        monkeypatch.setattr(large_search, "lower_bound", interrupts)
        result = taccl.synthesize(MESH, backend="greedy")
        assert (result.stopped, result.bound_us, result.finish_us) == ("interrupted", 0, 656)

    def test_ctrl_c_in_a_further_run(self, monkeypatch):
        """The first run's schedule is returned."""
        calls = []

        def second_time(run, **options):
            calls.append(run)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return watched(run, **options)

        monkeypatch.setattr(large_search, "watched", second_time)
        result = taccl.synthesize(problem_of(topologies.mesh(7, 9), "allreduce"), backend="greedy")
        assert (len(calls), result.stopped) == (2, "interrupted")
        assert taccl.verify(result.schedule).ok

    def test_same_seed_same_schedule(self):
        """A second synthesis finds the same."""
        one, two = (taccl.synthesize(MESH, backend="greedy", seed=3).schedule.digest() for _ in range(2))
        assert one == two

    def test_progress_is_told(self, monkeypatch):
        """A run that takes long says how far it is and when it will be done."""
        monkeypatch.setattr(large_search, "_TOLD_AFTER_S", 0.0)
        told = []

        def slowly(run, *, tell, **options):
            tell(10.0, 0.25)
            return watched(run, tell=tell, **options)

        monkeypatch.setattr(large_search, "watched", slowly)
        taccl.synthesize(MESH, backend="greedy", progress=lambda *what: told.append(what[0]))
        assert "greedy (compiled), 25% of the sends found, about 30 s left" in told


@pytest.mark.parametrize("fabric", ["mesh:64x64", "mesh:63x65"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_killed_run_leaves_no_part_of_a_file(number, fabric, tmp_path):
    """Killed in the middle; the first is implicit and may have been quicker, and then its file is whole."""
    words = (
        f"synthesize --topology {fabric} --collective allgather --chunk-size 1MB --backend greedy -o x.json"
    )
    command = [sys.executable, "-m", "taccl", *words.split()]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    time.sleep(2)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert b"Traceback" not in said
    left = os.listdir(tmp_path)
    if fabric == "mesh:63x65":
        assert process.returncode == (-number if number == signal.SIGKILL else 130)
        assert left == []
    elif left:
        assert left == ["x.json"]
        assert json.loads((tmp_path / "x.json").read_text())["verified"]
