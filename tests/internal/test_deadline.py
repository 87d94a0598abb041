"""`Deadline`: time limits, and all long work that checks them."""

import contextlib
import importlib
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from dataclasses import replace

import numpy as np
import pytest

import taccl
from taccl import collectives, topologies
from taccl._internal import deadline
from taccl._internal.deadline import NEVER, Deadline, OutOfTime
from taccl.analysis.certificates import bounds
from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.certificates.scopes import bound_over_all_chunkings
from taccl.errors import NoSolutionError
from taccl.problem.making import make_problem
from taccl.sketch.group import find_symmetries
from taccl.synthesis.parameters import SearchParameters
from taccl.synthesis.proposers.greedy import critical_priorities, list_schedule
from taccl.synthesis.proposers.large import schedule_large
from taccl.synthesis.search import Options, Search
from taccl.synthesis.suggesting.chunks import choose_with_sketches
from taccl.synthesis.suggesting.proposals import find_shape
from taccl.synthesis.suggesting.suggest import suggest_for
from taccl.synthesis.symmetry.quotient import take_quotient
from tests.effort import AMPLE_S, cpu_s
from tests.fuzzing import some, thinned

PAST = Deadline(0.0)


@pytest.fixture(scope="module")
def problem():
    """An allgather on two NDv2 nodes, which has no sketch."""
    return make_problem(
        topologies.ndv2(2), collectives.allgather(16, chunks_per_rank=1), size_bytes=1_000_000
    )


def test_never_comes():
    """`NEVER` leaves infinite time and never raises."""
    NEVER.check()
    assert NEVER.left_s == math.inf
    assert not NEVER.has_passed


def test_what_has_passed_leaves_nothing():
    """A past deadline leaves no time, and its check raises an error with advice."""
    assert PAST.has_passed
    assert PAST.left_s == 0.0
    with pytest.raises(NoSolutionError, match="give more time"):
        PAST.check()


def test_the_sooner_of_two():
    """`sooner` only moves a deadline to an earlier time."""
    far = Deadline.after(1000)
    assert time.monotonic() < far.sooner(10).at_s < far.at_s
    assert far.sooner(10_000) == far
    assert PAST.sooner(10) == PAST


@pytest.mark.parametrize(
    "work",
    [
        lambda problem: take_quotient(problem, give_up=PAST),
        lambda problem: list_schedule(*_quotient(problem), deadline=PAST),
        lambda problem: Search(problem, Options(), PAST, gives_up=True).quotient,
        lambda problem: find_shape(problem.topology, deadline=PAST),
        lambda problem: suggest_for([1], lambda _: problem, Options(), most=1, time_limit_s=20, give_up=PAST),
        lambda problem: find_symmetries(problem.with_clauses(name="not looked at yet"), PAST),
    ],
    ids=["quotient", "list scheduler", "search", "shape", "suggestions", "symmetries"],
)
def test_long_work_is_given_up(problem, work):
    """Long work is stopped early with `OutOfTime`."""
    with pytest.raises(OutOfTime):
        work(problem)


def test_chunks_are_not_chosen_late():
    """Without time to choose chunks and sketches, one chunk per rank and no sketch are used."""
    problem = make_problem(topologies.ndv2(2), "allgather", size_bytes=1_000_000)
    chosen, sketches = choose_with_sketches(problem, Options(), PAST, give_up=PAST)
    assert (chosen.collective.chunks_per_rank, sketches) == (1, [])


def test_a_bound_that_is_cut_is_throughput(problem, monkeypatch):
    """With a time limit of 0, the bound of a large problem is the throughput bound (volume over rates)."""
    monkeypatch.setattr(bounds, "_MAX_BRIEF", 0)
    assert lower_bound(problem, limit_s=0.0).kind == "throughput"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "collective"),
    thinned([("fully-connected:32", "allreduce"), ("ring:64", "reduce-scatter"), ("mesh:8x8", "allgather")]),
)
def test_a_short_limit_is_kept(topology, collective):
    """A short limit is exceeded only by the first schedule and the throughput bound.

    A baseline in Python takes several times as long as the compiled first schedule.
    """

    def problem():
        return make_problem(topologies.parse(topology), collective, size_bytes=10**6)

    def first():
        whole = problem().in_its_chunks
        assert taccl.verify(schedule_large(whole, num_runs=1)).ok
        bound = lower_bound(whole, budget_s=0.0, limit_s=0.0)
        assert bound_over_all_chunkings(bound) is not None

    def synthesized():
        assert taccl.verify(taccl.synthesize(problem(), time_limit_s=1e-3).schedule).ok

    synthesized()  # compiles
    assert cpu_s(synthesized) < 12 * cpu_s(first)


def _quotient(problem):
    quotient = take_quotient(problem)
    return quotient, critical_priorities(quotient)


@pytest.mark.slow
def test_a_bound_needs_no_time(problem):
    """With a budget of 0 s a proven bound is returned; a longer search may find a larger one."""
    least = lower_bound(problem, budget_s=0.0, limit_s=0.0)
    assert 0 < least.bound <= lower_bound(problem).bound
    assert least.check()


@pytest.mark.slow
def test_without_time_the_first_schedule_is_returned(problem):
    """Without time the first schedule is returned, verified and bounded, and the result says so."""
    result = taccl.synthesize(problem, time_limit_s=1e-3)
    assert taccl.verify(result.schedule).ok
    assert 0 < result.bound_us <= result.finish_us
    assert result.stopped == ("bound met" if result.gap == 0 else "time limit")
    assert result.choice.startswith("the first schedule")


class TestEnforced:
    """`Deadline.enforced`: an interrupt for code that never checks its deadline."""

    @staticmethod
    def endless():
        """Python code without an end."""
        while True:
            pass

    def test_code_that_checks_nothing_ends(self):
        """An endless loop is ended at the deadline."""
        with pytest.raises(OutOfTime), Deadline.after(0.01).enforced():
            self.endless()

    def test_handlers_of_exceptions_do_not_delay_the_interrupt(self):
        """Handlers of `Exception` do not catch the interrupt."""
        with pytest.raises(OutOfTime), Deadline.after(0.01).enforced():
            while True:
                with contextlib.suppress(Exception):
                    self.endless()

    def test_what_ends_in_time_is_not_interrupted(self):
        """The thread that watches a deadline ends with the work that it watches, long before the deadline."""
        with Deadline.after(1000).enforced():
            pass
        watches = [each for each in threading.enumerate() if each.name == "taccl-deadline"]
        for each in watches:
            each.join(60)
        assert not any(each.is_alive() for each in watches)

    def test_nested_deadlines_are_distinguished(self):
        """Each of two nested deadlines raises its error at its own `with` statement."""
        reached = []
        for outer_s in (0.05, 0.5, 5.0):  # a busy machine may stop the process past both deadlines
            outer = Deadline.after(outer_s)
            with pytest.raises(OutOfTime), outer.enforced():
                with contextlib.suppress(OutOfTime), outer.sooner(0.01).enforced():
                    self.endless()
                reached.append("after the inner")
                self.endless()
            if reached:
                break
        assert reached

    def test_the_interrupt_waits_until_it_is_allowed(self):
        """The interrupt waits until a given condition is true, here that a first result exists."""
        found = []
        with pytest.raises(OutOfTime), PAST.enforced(lambda: bool(found)):
            for i in range(1000):
                found += [i] * (i == 999)
            self.endless()
        assert found == [999]

    def test_a_past_deadline_begins_nothing(self):
        """A past deadline starts no work."""
        with pytest.raises(OutOfTime), PAST.enforced():
            pytest.fail("it began")


def kernel_that_waits(limit):
    """Run until stopped, as a kernel does."""
    signal = np.zeros(1, np.int64)
    with limit.scope("waiting", done=lambda: 0.25), limit.stopping(signal):
        while not signal[0]:
            time.sleep(0.01)
    return "stopped"


class TestRun:
    """`Deadline.run` supervises compiled code in its own thread."""

    def test_result_of_what_ends_by_itself(self):
        """The result of work that ends in time is returned, and nothing is cancelled."""
        limit = Deadline()
        assert (limit.run(lambda: 7), limit.cancellation.why) == (7, "")

    def test_error_of_what_fails(self):
        """An exception in the work is raised in the waiting thread."""
        with pytest.raises(ZeroDivisionError):
            Deadline().run(lambda: 1 / 0)

    def test_time_limit_stops_a_kernel(self):
        """At the time limit of 0.1 s a kernel is told to stop, and its result so far is returned."""
        limit = Deadline.after(0.1)
        assert limit.run(lambda: kernel_that_waits(limit), patience_s=AMPLE_S) == "stopped"

    def test_time_limit_without_a_result(self):
        """A kernel without a result at the limit raises `OutOfTime`."""
        limit = Deadline.after(0.1)

        def fails():
            kernel_that_waits(limit)
            raise NoSolutionError("nothing")

        with pytest.raises(OutOfTime):
            limit.run(fails, patience_s=AMPLE_S)

    def test_what_does_not_end_is_left_behind(self):
        """Work that ignores the deadline is abandoned in its thread, without an exception there."""
        ended, limit = threading.Event(), Deadline.after(0.1)
        with pytest.raises(OutOfTime):
            limit.run(lambda: ended.wait(30), patience_s=0.1)
        names = [thread.name for thread in threading.enumerate()]
        ended.set()
        assert "taccl-work" in names

    def test_ctrl_c_stops_a_kernel(self):
        """Ctrl-C reaches the waiting thread, and the kernel's result so far is returned."""
        limit = Deadline()
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        assert limit.run(lambda: kernel_that_waits(limit), patience_s=AMPLE_S) == "stopped"
        assert limit.cancellation.why == "interrupted"

    def test_later_kernels_are_stopped_too(self):
        """A kernel that starts after the limit ends immediately."""
        limit = Deadline.after(0.1)

        def two():
            kernel_that_waits(limit)
            return kernel_that_waits(limit), limit.has_passed

        assert limit.run(two, patience_s=AMPLE_S) == ("stopped", True)

    def test_deadlines_of_one_task_are_cancelled_together(self):
        """Ctrl-C cancels all deadlines derived from one task, and none of another task."""
        limit = Deadline.after(60)
        sooner, other = limit.sooner(30), Deadline.after(60)
        sooner.cancellation.cancel("interrupted")
        assert limit.has_passed
        assert limit.left_s == 0
        assert not other.has_passed

    def test_reports_of_the_fraction_done(self):
        """Progress has the seconds so far, the kernel's activity, and the fraction done."""
        told, limit = [], Deadline()

        def hear(*what):
            told.append(what)
            raise KeyboardInterrupt  # which ends it

        limit.run(lambda: kernel_that_waits(limit), tell=hear, patience_s=AMPLE_S)
        [(past, *known)] = told
        assert past > 0 and known == ["waiting", 0.25]


class TestScopes:
    """Progress of a task, by its parts."""

    def test_steps_of_scopes_add_up(self):
        """Fractions done of nested steps add up.

        Half of the first of four steps is 1/8. A third of the next step, which is the rest, is 1/4 + 3/4 / 3.
        """
        limit = Deadline()
        told = limit.cancellation
        with limit.scope("first", done=lambda: 0.5, steps=1, ahead=3):
            assert (told.doing, told.done) == ("first", 1 / 8)
        with limit.scope("second", steps=3), limit.scope("pass 1 of 3", done=lambda: 1.0, steps=1, ahead=2):
            assert (told.doing, told.done) == ("second, pass 1 of 3", 1 / 4 + 3 / 4 / 3)

    def test_nothing_is_known_before_the_first_scope(self):
        """Before the first scope activity and fraction are unknown."""
        assert (Deadline().cancellation.doing, Deadline().cancellation.done) == ("", None)


def test_a_deadline_ends_although_its_end_is_interrupted(monkeypatch):
    """A deadline whose end is interrupted by an outer one still ends: it sends no interrupt afterwards."""
    end, calls = deadline.Interrupt.end, []

    def interrupted(self):
        calls.append(self)
        if len(calls) == 1:
            raise OutOfTime("of a deadline around it")
        end(self)

    monkeypatch.setattr(deadline.Interrupt, "end", interrupted)
    with contextlib.suppress(OutOfTime), Deadline.after(1000).enforced():
        pass
    assert calls[0]._left.is_set()


@pytest.mark.slow
def test_no_interrupt_while_a_module_is_imported(tmp_path, monkeypatch):
    """An interrupt waits until an import is complete."""
    name = "imported_beyond_a_deadline"
    (tmp_path / f"{name}.py").write_text(
        "import time\nuntil = time.monotonic() + 0.2\nwhile time.monotonic() < until:\n    pass\nwhole = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(OutOfTime), Deadline.after(0.05).enforced():
        importlib.import_module(name)
        while True:
            pass
    assert sys.modules[name].whole


def test_imports_around_a_deadline_do_not_put_it_off(tmp_path, monkeypatch):
    """If a script that is being imported sets a deadline, the deadline interrupts the script."""
    name = "interrupted_as_it_is_imported"
    (tmp_path / f"{name}.py").write_text(
        "from taccl._internal.deadline import Deadline\n"
        "with Deadline.after(0.05).enforced():\n    while True:\n        pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(OutOfTime):
        importlib.import_module(name)


@pytest.mark.slow
def test_an_interrupted_search_leaves_nothing_behind():
    """After an interrupt at any time, a search of the same problem finds the same schedule as before."""
    brief = SearchParameters()
    brief = replace(brief, list=replace(brief.list, alone_share=0.001, least_alone_s=0.02))

    def found(problem):
        result = taccl.synthesize(
            problem, backend="greedy", sketch="none", parameters=brief, time_limit_s=600
        )
        return result.schedule.digest()

    def made():
        return make_problem(topologies.mesh(2, 3), "reduce-scatter", size_bytes=10**6, chunks_per_rank=2)

    began = time.monotonic()
    first = found(made())
    took_s, moments = time.monotonic() - began, random.Random(0)
    for _ in range(some(2, 8)):
        problem = made()
        with contextlib.suppress(OutOfTime), Deadline.after(moments.uniform(0.0, took_s)).enforced():
            found(problem)
        assert found(problem) == first


@pytest.mark.slow
def test_the_interpreter_waits_for_work_that_was_left_behind():
    """The interpreter's exit waits for an abandoned thread."""
    script = """
import os, threading, time
from contextlib import suppress
from taccl._internal.deadline import Deadline, OutOfTime

is_left = threading.Event()

def work():
    is_left.wait()
    time.sleep(0.3)
    os.write(1, b"ended")

with suppress(OutOfTime):
    Deadline.after(0.0).run(work, patience_s=0.0)
os.write(1, b"left, ")
is_left.set()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "left, ended"


@pytest.mark.slow
def test_an_interrupt_waits_until_a_context_is_left():
    """An interrupt waits while a thread leaves a context of `contextlib`, where it could not be caught."""
    with pytest.raises(OutOfTime) as error, Deadline.after(0.05).enforced():
        with contextlib.ExitStack() as stack:
            stack.callback(time.sleep, 0.3)
        while True:
            pass
    trace = error.value.__context__.__traceback__
    assert trace is not None
    modules = [frame.f_globals["__name__"] for frame, _ in traceback.walk_tb(trace)]
    assert modules[-1] == __name__


def test_an_interrupt_that_comes_as_its_deadline_is_left_is_out_of_time():
    """If an inner deadline's interrupt arrives after its `with` was left, the outer one raises
    `OutOfTime`."""
    with pytest.raises(OutOfTime), Deadline.after(1000).enforced():
        inner = deadline.Interrupt(math.inf, None)
        raise inner.kind


def test_an_interrupt_of_a_deadline_around_passes_the_one_within():
    """Only the deadline whose time is up raises `OutOfTime`."""
    outer = deadline.Interrupt(math.inf, None)
    with pytest.raises(outer.kind), Deadline.after(1000).enforced():
        raise outer.kind


def test_an_error_that_replaces_the_interrupt_is_out_of_time():
    """If compiled code replaces the interrupt by its own error, `OutOfTime` is raised."""

    def compiled():
        try:
            while True:
                pass
        except BaseException:
            raise ValueError("not an array") from None

    with pytest.raises(OutOfTime), Deadline.after(0.01).enforced():
        compiled()


def test_an_error_before_time_is_up_is_unchanged():
    """An error before the interrupt is raised unchanged."""
    with pytest.raises(ValueError, match="not an array"), Deadline.after(1000).enforced():
        raise ValueError("not an array")


def test_an_interrupt_that_python_drops_is_sent_again_unreported(monkeypatch):
    """An interrupt that Python drops during object deletion is sent again."""
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)

    class Lasting:
        def __del__(self):
            while time.monotonic() < since + 0.1:
                pass

    since = time.monotonic()
    with pytest.raises(OutOfTime), Deadline.after(0.01).enforced():
        Lasting()
        while True:
            pass
    assert reported == []
