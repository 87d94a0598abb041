"""Problems that only the compiled list schedulers reach: limits, Ctrl-C, news on the way, and what is said."""

from __future__ import annotations

import contextlib
import itertools
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
from taccl.analysis.certificates.bounds import lower_bound
from taccl.errors import InputError, NoSolutionError
from taccl.problem import make_problem
from taccl.schedule.compact import CompactSchedule
from taccl.schedule.summary import ScheduleSummary
from taccl.synthesis import choice, large_search
from taccl.synthesis.compiled import events, relays, ways
from taccl.synthesis.compiled.events import Watch, is_stopped, part, stopping, time_left_s, watched
from taccl.synthesis.large import schedule_large

topologies = taccl.topologies


def problem_of(topology, name="allgather"):
    return make_problem(topology, collectives.make(name, topology.num_ranks), chunk_bytes=10**6)


MESH = problem_of(topologies.mesh(8, 8))


@pytest.fixture(autouse=True)
def few_moves(monkeypatch):
    """More than a thousand moves are many, so that tests need not be large."""
    monkeypatch.setattr(choice, "_MOST_MOVES", 1000)


def kernel_that_waits(signal):
    """Runs until it is stopped, as a kernel does."""
    with part("waiting", done=lambda: 0.25), stopping(signal, None):
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
        """Seconds so far, what the kernel is doing, and the part that it says is done."""
        told = []
        watched(
            lambda: kernel_that_waits(np.zeros(1, np.int64)),
            seconds=0.6,
            tell=lambda *what: told.append(what),
        )
        assert told and all(past > 0 and known == ["waiting", 0.25] for past, *known in told)


class TestParts:
    """How far a search is, by the parts that it has."""

    def test_steps_of_parts_add_up(self):
        """Half of the first step of four is an eighth; the third of what follows, a quarter and a third of 3/4."""
        watch = Watch()
        token = events._WATCH.set(watch)
        with part("first", done=lambda: 0.5, steps=1, ahead=3):
            assert (watch.doing, watch.done) == ("first", 1 / 8)
        with part("second", steps=3), part("pass 1 of 3", done=lambda: 1.0, steps=1, ahead=2):
            assert (watch.doing, watch.done) == ("second, pass 1 of 3", 1 / 4 + 3 / 4 / 3)
        events._WATCH.reset(token)

    def test_nothing_is_known_before_the_first_part(self):
        """Neither what is done, nor how much of it."""
        assert (Watch().doing, Watch().done) == ("", None)

    def test_parts_without_a_watch(self):
        """There is nobody to know, and nothing happens."""
        with part("alone", done=lambda: 1.0):
            assert time_left_s() == float("inf")

    def test_limit_is_known_to_what_runs(self):
        """Of a minute some is left."""
        assert 0 < watched(time_left_s, seconds=60)[0] <= 60


class TestPhases:
    """Balancing routes, ordering and queueing sends: each tells how far it is, and can be stopped."""

    def test_each_is_told_with_the_part_that_is_done(self, monkeypatch):
        """Of an alltoall on 16 x 16 ranks, in this order, and never less of it done than a tenth before."""
        monkeypatch.setattr(events, "_TICK_S", 0.005)
        told = []
        problem = problem_of(topologies.mesh(16, 16), "alltoall")
        watched(lambda: schedule_large(problem, num_runs=1), tell=lambda *what: told.append(what[1:]))
        phases = [doing.split(",")[0] for doing, done in told if doing and done is not None]
        assert list(dict.fromkeys(phases)) == ["balancing routes", "ordering sends", "queueing sends"]
        assert "balancing routes, pass 2 of 8" in dict(told)
        parts = [done for _, done in told if done is not None]
        assert all(0 <= before <= after + 0.1 <= 1.1 for before, after in itertools.pairwise(parts))

    @pytest.mark.parametrize("phase", ["balancing routes", "queueing sends"])
    def test_ctrl_c_ends_it_at_once(self, phase, monkeypatch):
        """An alltoall on 20 x 20 ranks takes seconds; there is no schedule yet."""
        monkeypatch.setattr(events, "_TICK_S", 0.01)
        monkeypatch.setattr(ways, "_STEPS", ways._STEPS[: 8 if phase == "balancing routes" else 1])
        since = []

        def press(_, doing, __):
            if doing.startswith(phase):
                since.append(time.monotonic())
                raise KeyboardInterrupt

        problem = problem_of(topologies.mesh(20, 20), "alltoall")
        with pytest.raises(KeyboardInterrupt):
            watched(lambda: schedule_large(problem, num_runs=1), tell=press)
        assert time.monotonic() - since[0] < 2.0

    def test_limit_keeps_the_best(self):
        """A thousand runs take longer than half a second; the best of those that were made is whole."""
        problem = problem_of(topologies.mesh(8, 8), "alltoall")
        found, why = watched(lambda: schedule_large(problem, num_runs=1000), seconds=0.5)
        assert why == "time limit"
        assert taccl.verify(found).ok

    def test_no_pass_that_leaves_no_time_for_sending(self, monkeypatch):
        """With no time left routes are those of the first pass, and complete."""
        trees = []
        find_trees = ways.find_trees
        monkeypatch.setattr(ways, "time_left_s", lambda: 0.0)
        monkeypatch.setattr(ways, "find_trees", lambda *what: (trees.append(what[3]), find_trees(*what)))
        assert taccl.verify(schedule_large(problem_of(topologies.mesh(5, 5), "alltoall"), num_runs=1)).ok
        assert trees == [0]

    def test_relays_stop(self, monkeypatch):
        """A search for relays that is stopped says that there was not the time."""

        @contextlib.contextmanager
        def at_once(signal, seconds):
            signal[0] = 1
            yield

        monkeypatch.setattr(relays, "_MOST_STEPS", 0)
        monkeypatch.setattr(relays, "stopping", at_once)
        some = collectives.custom(9, precondition={0: [0]}, postcondition={0: [4, 8]})
        problem = make_problem(topologies.mesh(3, 3), some, chunk_bytes=10**6)
        with pytest.raises(NoSolutionError, match="before every chunk had its relays"):
            schedule_large(problem)


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
        assert any("before a lower bound was proven" in note for note in result.notes)

    def test_limit_in_the_proof(self, monkeypatch):
        """When time is up a bound is still proven, and what takes longer is left out."""
        asked = []

        def bound(*args, **options):
            asked.append(options["limit_s"])
            return lower_bound(*args, **options)

        verified = large_search.verify
        monkeypatch.setattr(large_search, "verify", lambda found: (time.sleep(0.6), verified(found))[1])
        monkeypatch.setattr(large_search, "lower_bound", bound)
        result = taccl.synthesize(MESH, backend="greedy", time_limit_s=0.5)
        assert asked == [0.5]
        assert (result.finish_us, result.bound_us) == (656, 656)

    def test_ctrl_c_in_a_further_run(self, monkeypatch):
        """The first run's schedule is returned."""
        calls = []

        def second_time(run, **options):
            calls.append(run.func)
            if calls.count(schedule_large) == 2:
                raise KeyboardInterrupt
            return watched(run, **options)

        monkeypatch.setattr(large_search, "watched", second_time)
        result = taccl.synthesize(problem_of(topologies.mesh(7, 9), "allreduce"), backend="greedy")
        assert result.stopped == "interrupted"
        assert taccl.verify(result.schedule).ok

    def test_same_seed_same_schedule(self):
        """A second synthesis finds the same."""
        one, two = (taccl.synthesize(MESH, backend="greedy", seed=3).schedule.digest() for _ in range(2))
        assert one == two

    def test_progress_is_told(self, monkeypatch):
        """A run that takes long says how far it is and when it will be done."""
        monkeypatch.setattr(large_search, "_TOLD_AFTER_S", 0.0)
        told = []

        def slowly(run, **options):
            if run.func is schedule_large:
                options["tell"](10.0, "queueing sends", 0.25)
            return watched(run, **options)

        monkeypatch.setattr(large_search, "watched", slowly)
        taccl.synthesize(MESH, backend="greedy", progress=lambda *what: told.append(what[0]))
        assert "greedy (compiled), queueing sends, 25% done, about 30 s left (time limit in 20 s)" in told


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
