"""Problems that only the compiled list schedulers can handle: limits, Ctrl-C, progress and messages."""

import itertools
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from functools import partial
from importlib import import_module

import numpy as np
import pytest

import taccl
from taccl import collectives
from taccl._internal import deadline
from taccl._internal.deadline import Deadline, OutOfTime
from taccl.errors import InputError, NoSolutionError
from taccl.problem.making import make_problem
from taccl.schedule.spill import ScheduleSummary
from taccl.synthesis.options import Observer
from taccl.synthesis.parameters import SearchParameters
from taccl.synthesis.proposers import compiling, large, large_search, queues, router, spreading, table
from taccl.synthesis.proposers.large import schedule_large
from taccl.synthesis.search import Options, Search
from taccl.topology.named import parse_named
from taccl.topology.transform import degraded
from tests.effort import AMPLE_S, brief_synthesis
from tests.fuzzing import MANY

topologies = taccl.topologies


def problem_of(topology, name="allgather"):
    return make_problem(topology, collectives.make(name, topology.num_ranks), chunk_bytes=10**6)


MESH = problem_of(topologies.mesh(8, 8))
synthesize_module = import_module("taccl.synthesis.synthesize")


#: Problems of more than a thousand hops count as large, so that tests stay small.
FEW = SearchParameters.from_dict({"choice": {"most_hops": 1000}})
synthesize = partial(taccl.synthesize, parameters=FEW)


@pytest.mark.parametrize(("limit_s", "is_simple"), [(5.0, True), (20.0, False)])
def test_the_size_decides_how_a_first_schedule_orders_its_sends(monkeypatch, limit_s, is_simple):
    """Within a short limit, the size decides whether sends go in a simple order, not the time left."""
    monkeypatch.setattr(large_search, "_ORDER_SHARE", 0.0)  # any order takes longer than this share
    problem = make_problem(topologies.mesh(4, 4), "alltoall", size_bytes=10**6, chunks_per_rank=1)
    now_s = time.monotonic()
    search = Search(problem, Options(began_s=now_s, ends_s=now_s + limit_s), Deadline.after(AMPLE_S))
    large_search.offer_compiled(search, budget_s=AMPLE_S, num_runs=1)
    fabric, demand = large.problem_arrays(problem)
    simple = queues.send_at_once(fabric, demand, router.find_paths(fabric, demand))
    assert (search.best.finish_ticks == simple.finish_ticks) == is_simple
    assert search.best.finish_ticks <= simple.finish_ticks


@pytest.mark.parametrize(("merge_s", "rounds"), [(0.0, 2), (1.0, 1), (10.0, 0)])
def test_sends_are_merged_while_there_is_time(monkeypatch, merge_s, rounds):
    """Sends merge once or twice, or not at all, by the estimated time to merge them."""
    problem = make_problem(topologies.ndv2(2), "alltoall", size_bytes=1000, chunks_per_rank=16)
    num_sends, merged, send_together = len(schedule_large(problem, num_runs=1)), [], large.send_together
    monkeypatch.setattr(large, "busy_factor", lambda: 1.0)
    monkeypatch.setattr(large, "_MERGE_S", merge_s * 100 / num_sends)
    monkeypatch.setattr(large, "send_together", lambda *given: merged.append(1) or send_together(*given))
    assert taccl.verify(schedule_large(problem, merges=True, num_runs=1, time_limit_s=150.0)).ok
    assert len(merged) == rounds


def test_phases_that_are_alike_are_searched_once(monkeypatch):
    """The copies of an allreduce take over the schedule of its sums if links look alike in both phases.

    They differ if one link is slower than its reverse.
    """
    searched, search = [], large.spread
    monkeypatch.setattr(large, "spread", lambda *given: searched.append(1) or search(*given))
    pipelined = parse_named("torus:3x4", alpha_meaning="pipelined").to_topology()
    slower = degraded(topologies.ring(5), {(0, 1): 0.5})
    for topology, runs in ((pipelined, 1), (topologies.dgx_h100(2), 1), (slower, 2)):
        searched.clear()
        schedule = schedule_large(problem_of(topology, "allreduce"), num_runs=1)
        assert taccl.verify(schedule).ok and len(searched) == runs


def test_phases_with_other_ranks_are_searched_twice():
    """Sums whose contributors do not want them have phases of their own, even if links look alike in both."""
    asked = {"precondition": {0: [0, 1], 1: [1, 2]}, "postcondition": {0: [2, 3], 1: [0, 3]}}
    collective = collectives.custom(4, **asked, combining=True)
    topology = topologies.ring(4, alpha_meaning="pipelined")
    schedule = schedule_large(make_problem(topology, collective, chunk_bytes=10**6), num_runs=1)
    taccl.verify(schedule).raise_if_failed()


class TestPhases:
    """Route balancing, ordering and sending report progress and can be interrupted."""

    @pytest.mark.slow
    def test_each_phase_reports_its_fraction_done(self, monkeypatch):
        """An alltoall on 16 x 16 ranks reports all three phases in order.

        The reported fraction of work done never falls by more than a tenth.
        """
        monkeypatch.setattr(deadline, "_TICK_S", 0.005)
        told = []
        problem = problem_of(topologies.mesh(16, 16), "alltoall")
        never = Deadline()
        never.run(
            lambda: schedule_large(problem, num_runs=1, deadline=never),
            tell=lambda *what: told.append(what[1:]),
        )
        phases = [doing.split(",")[0] for doing, done in told if doing and done is not None]
        assert list(dict.fromkeys(phases)) == ["balancing routes", "ordering sends", "queueing sends"]
        assert "balancing routes, pass 2 of 8" in dict(told)
        parts = [done for _, done in told if done is not None]
        assert all(0 <= before <= after + 0.1 <= 1.1 for before, after in itertools.pairwise(parts))

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("phase", "ends"),
        [("balancing routes", pytest.raises(KeyboardInterrupt)), ("queueing sends", nullcontext())],
    )
    def test_ctrl_c_ends_each_phase_at_once(self, phase, ends, monkeypatch):
        """Ctrl-C while routes are balanced ends the search; Ctrl-C while sends are queued gives a valid schedule of
        the routes, usually a later one."""
        monkeypatch.setattr(deadline, "_TICK_S", 0.01)
        size = 24  # routes of so many ranks take seconds, in which even a busy machine looks at the keyboard
        if phase != "balancing routes":
            size = 9
            monkeypatch.setattr(router, "_PATH_EXPONENTS", (0,))
            monkeypatch.setattr(router, "_PATH_CHOICES", ((1,),))

        def press(_, doing, __):
            if doing.startswith(phase):
                raise KeyboardInterrupt

        problem = problem_of(topologies.mesh(size, size), "alltoall")
        never = Deadline()
        with ends:
            found = never.run(
                lambda: schedule_large(problem, num_runs=1, deadline=never), tell=press, patience_s=math.inf
            )
            assert taccl.verify(found).ok
            assert found.finish >= schedule_large(problem, num_runs=1).finish  # equal if it came too late

    @pytest.mark.slow
    def test_limit_keeps_the_best(self):
        """At a limit of 1 s, during 1000 runs, the best complete schedule is returned."""
        problem = problem_of(topologies.mesh(8, 8), "alltoall")
        schedule_large(problem, num_runs=1)  # which loads the kernels
        limit = Deadline.after(1.0)
        found = limit.run(lambda: schedule_large(problem, num_runs=1000, deadline=limit), patience_s=5)
        assert limit.has_passed
        assert taccl.verify(found).ok

    @pytest.mark.slow
    @pytest.mark.parametrize("sketch", ["auto", "none"])
    def test_the_run_before_the_search_is_not_repeated(self, sketch):
        """The search continues from the schedule that the compiled list scheduler made beside the baselines."""
        few = SearchParameters.from_dict({"choice": {"most_hops": 1000, "few_hops": 1000}})
        problem = problem_of(topologies.mesh(7, 7))
        result = taccl.synthesize(problem, parameters=few, time_limit_s=AMPLE_S, sketch=sketch)
        runs = [each.message for each in result.stages if (each.name, each.solver) == ("greedy", "compiled")]
        assert runs == [""] and result.stopped == "bound met"

    def test_no_pass_that_leaves_no_time_for_sending(self, monkeypatch):
        """If no time is left for further passes, the routes of the first pass are used, which are complete."""
        searches = []
        search = router.route
        monkeypatch.setattr(router, "_MARGIN", 1e9)
        monkeypatch.setattr(router, "_LEAST_PASSES_S", 0.0)
        monkeypatch.setattr(router, "route", lambda *what: (searches.append(what[3]), search(*what))[1])
        problem = problem_of(topologies.mesh(5, 5), "alltoall")
        assert taccl.verify(schedule_large(problem, num_runs=1, deadline=Deadline.after(60))).ok
        assert {prices.exponent for prices in searches} == {0}  # and none of a later pass

    @pytest.mark.slow
    def test_relays_stop(self):
        """If a search with relays is interrupted before every chunk has a tree, it raises OutOfTime."""
        stopped = Deadline()
        stopped.cancellation.cancel("interrupted")
        some = collectives.custom(9, precondition={0: [0]}, postcondition={0: [4, 8]})
        problem = make_problem(topologies.mesh(3, 3), some, chunk_bytes=10**6)
        with pytest.raises(OutOfTime, match="before every chunk had a tree"):
            schedule_large(problem, deadline=stopped)

    @pytest.mark.slow
    @pytest.mark.parametrize("relays", [{}, {0: (0,), 1: (1,)}], ids=["free", "guided"])
    def test_no_first_run_in_time(self, monkeypatch, relays):
        """Stopped before its first run has ended, the search raises OutOfTime, not "no solution"."""
        for module in (queues, spreading):
            monkeypatch.setattr(module, "best_of", lambda *_, **__: None)
        internode = {"internode": {"connections": "direct-map", "relays": relays}} if relays else {}
        sketch = taccl.Sketch.from_dict({"schema": 1, "name": "some", **internode})
        problem = sketch.apply(topologies.dgx_a100(2), "allgather", chunk_size="1MB")
        with pytest.raises(OutOfTime, match="give more time"):
            schedule_large(problem)


class TestChoice:
    """The choice of search, and its reason with figures."""

    @pytest.mark.slow
    def test_result_says_why(self):
        """The result of a compiled search states the number of hops and the limit that it exceeds."""
        result = synthesize(MESH, backend="greedy")
        assert "compiled list scheduler: about 14,000 hops" in result.choice
        assert "more than the limit of 1000 for models" in result.choice
        assert result.choice in repr(result) and result.to_dict()["choice"] == result.choice

    def test_few_hops_are_left_to_the_portfolio(self):
        """Four chunks over eight links are 32 hops, few enough for the portfolio."""
        result = synthesize(problem_of(topologies.ring(4)), time_limit_s=AMPLE_S)
        assert result.choice == "the portfolio (up to 1000 hops; here 32)"

    def test_named_solver_was_asked_for(self):
        """With a named solver the result says that it was requested."""
        result = synthesize(problem_of(topologies.ring(4)), backend="highs", time_limit_s=AMPLE_S)
        assert result.choice == "highs alone, as asked"


class TestKept:
    """Schedules kept after verification: whole, as a summary, or in files."""

    def test_summary(self):
        """With ``keep="summary"`` the result has the figures of the whole schedule."""
        result = synthesize(MESH, backend="greedy", keep="summary")
        assert isinstance(result.schedule, ScheduleSummary)
        assert (result.finish_us, result.schedule.num_transfers) == (656, 4032)
        assert any("verified and then dropped" in note for note in result.notes)
        said = "ScheduleSummary(allgather on mesh:8x8: 4032 transfers in 4032 sends, finish 656 us)"
        assert repr(result.schedule) == said

    @pytest.mark.slow
    def test_summary_of_what_switches_or_ranks_do(self):
        """With ``keep="summary"``, the transfers are dropped only after schedules with and without in-network
        reduction were compared."""
        topology = topologies.dgx_h100(1, nvls=True)
        problem = make_problem(topology, collectives.allreduce(8), chunk_bytes=10)
        result = brief_synthesis(problem, keep="summary")
        assert isinstance(result.schedule, ScheduleSummary)
        assert "ranks alone" in result.choice

    def test_spilled(self, tmp_path):
        """Columns are written to the folder, and the result names it."""
        result = synthesize(MESH, backend="greedy", spill_dir=tmp_path / "columns")
        assert isinstance(result.schedule.kept.chunk, np.memmap)
        assert taccl.load_spilled(tmp_path / "columns").digest() == result.schedule.digest()
        assert any(str(tmp_path / "columns") in note for note in result.notes)

    @pytest.mark.slow
    def test_what_a_baseline_does_sooner_is_spilled(self, tmp_path, compiled_search):
        """If a baseline beats the compiled list scheduler, the baseline's columns are written to `spill_dir`."""
        problem = make_problem(topologies.ring(4), collectives.allreduce(4), chunk_bytes=1000)
        nothing = SearchParameters.from_dict({"choice": {"most_hops": 0, "few_hops": 0}})
        result = synthesize(problem, spill_dir=tmp_path, parameters=nothing, time_limit_s=2)
        assert result.schedule.producer != "compiled list scheduler"
        assert taccl.load_spilled(tmp_path) == result.schedule

    def test_spilling_what_is_small(self, tmp_path):
        """Spilling a small problem is refused before any work, as nothing would be written."""
        with pytest.raises(InputError, match="spill_dir: only the compiled list scheduler spills"):
            synthesize(problem_of(topologies.ring(4)), spill_dir=tmp_path)

    def test_keep_has_two_values(self):
        """Any `keep` besides 'schedule' and 'summary' is an error."""
        with pytest.raises(InputError, match="keep: found 'all'; expected 'schedule' or 'summary'"):
            synthesize(MESH, keep="all")


class TestLimits:
    """Time limits and Ctrl-C in each part of the search."""

    @pytest.mark.slow
    def test_first_run_obeys_the_limit(self, monkeypatch):
        """A first run that exceeds the limit is stopped, and a baseline is returned."""

        def waits(*_, deadline, **__):
            signal = np.zeros(1, np.int64)
            with deadline.stopping(signal):
                while not signal[0]:
                    time.sleep(0.01)
            raise OutOfTime("nothing")

        monkeypatch.setattr(compiling, "compile_kernels", lambda _: None)
        monkeypatch.setattr(large_search, "schedule_large", waits)
        result = synthesize(MESH, backend="greedy", time_limit_s=0.5)  # or it waits for ever
        assert result.stopped == "time limit"
        assert result.choice.startswith("the first schedule")
        assert taccl.verify(result.schedule).ok

    def test_without_a_baseline_the_time_needed_is_reported(self, monkeypatch):
        """If no schedule is found in time, the error states how long the whole search needs, not only the
        rest of its run."""

        def waits(*_, deadline, **__):
            with deadline.scope("queueing sends", done=lambda: 0.5), deadline.stopping(np.zeros(1, np.int64)):
                while not deadline.has_passed:
                    time.sleep(0.01)
            raise OutOfTime("nothing")

        monkeypatch.setattr(compiling, "compile_kernels", lambda _: None)
        monkeypatch.setattr(large_search, "schedule_large", waits)
        monkeypatch.setattr(table, "offer_first", lambda _: None)
        with pytest.raises(NoSolutionError, match=r"give about [\d.]+ s in all") as caught:
            synthesize(MESH, backend="greedy", time_limit_s=2)
        advice = re.search(r"no schedule in ([\d.]+) s.*about ([\d.]+) s in all", str(caught.value))
        assert float(advice[2]) > float(advice[1])

    @pytest.mark.slow
    def test_ctrl_c_in_the_first_run(self, monkeypatch):
        """After Ctrl-C in the first run a baseline is returned."""

        def interrupts(*_, **__):
            raise KeyboardInterrupt

        monkeypatch.setattr(large_search, "schedule_large", interrupts)
        result = synthesize(MESH, backend="greedy")
        assert result.stopped == "interrupted"
        assert taccl.verify(result.schedule).ok

    @pytest.mark.slow
    def test_ctrl_c_in_the_proof(self, monkeypatch):
        """After Ctrl-C during the bound for its chunks the schedule has that over all chunkings, found before."""

        def interrupts(*_, **__):
            raise KeyboardInterrupt

        monkeypatch.setattr(large_search, "lower_bound", interrupts)
        result = synthesize(MESH, backend="greedy")
        assert (result.stopped, result.finish_us) == ("interrupted", 656)
        # 63 chunks enter a corner by two links: 31.5 on each.
        assert result.bound_us == result.bound_over_all_chunkings.bound_us >= 630

    @pytest.mark.slow
    def test_limit_in_the_proof(self, monkeypatch):
        """If time runs out while the schedule is verified, a bound is still proven."""
        verified = large_search.verify
        monkeypatch.setattr(large_search, "verify", lambda found: (time.sleep(0.6), verified(found))[1])
        result = synthesize(MESH, backend="greedy", time_limit_s=0.5)
        assert result.stopped == "time limit"
        assert 0 < result.bound_us <= result.finish_us

    @pytest.mark.slow
    def test_ctrl_c_in_a_further_run(self, monkeypatch):
        """After Ctrl-C in a later run the first run's schedule is returned."""
        calls = []

        def second_time(*args, **options):
            calls.append(args)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return schedule_large(*args, **options)

        monkeypatch.setattr(large_search, "schedule_large", second_time)
        result = synthesize(
            problem_of(topologies.mesh(5, 5), "allreduce"), backend="greedy", time_limit_s=AMPLE_S
        )
        assert result.stopped == "interrupted"
        assert taccl.verify(result.schedule).ok

    @pytest.mark.slow
    def test_same_seed_same_schedule(self):
        """Two runs with one seed find the same schedule."""
        one, two = (synthesize(MESH, backend="greedy", seed=3).schedule.digest() for _ in range(2))
        assert one == two

    def test_progress_is_reported(self, monkeypatch):
        """A long run reports its fraction done and the time left."""
        told = []
        options = Options(observer=Observer(progress=lambda *what: told.append(what[0])))
        runs = large_search._Runs(Search(MESH, options, Deadline()))
        runs._tell(Deadline(30.0), 0.0, 10.0, "queueing sends", 0.25)
        assert told == [
            "compiled list scheduler, queueing sends, 25% done, about 30 s left (time limit in 20 s)"
        ]


@pytest.mark.slow
def test_the_compiled_list_scheduler_is_named_after_an_improvement_of_its_own():
    """Its schedule of merged sends names it, although ruin and recreate in the stage made it finish sooner."""
    problem = make_problem(topologies.ndv2(2), collectives.allgather(16), chunk_bytes=1000)
    found = schedule_large(problem, deadline=Deadline(time.monotonic() + AMPLE_S), merges=True)
    assert found.producer == "compiled list scheduler"


def test_a_first_schedule_has_the_time_that_is_kept_for_later():
    """Part of a search may use time that is reserved for later until a schedule exists, but not afterwards.

    Here 90 of 100 s are reserved.
    """
    search = Search(MESH, Options(), Deadline.after(100))
    with search.keeping(90):
        part = search.part(MESH, "", search.deadline.sooner(5), serves_above=True)
        assert part.deadline.left_s <= 5
        assert 90 < part.patience.left_s <= 100
        search.best = schedule_large(MESH, num_runs=1)
        assert part.patience.left_s <= 5
    assert search.kept_s == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "fabric"),
    [
        (signal.SIGKILL, "mesh:63x65"),
        (signal.SIGINT, "mesh:63x65"),
        *([(signal.SIGKILL, "mesh:64x64"), (signal.SIGINT, "mesh:64x64")] if MANY else []),
    ],
)
def test_killed_run_leaves_no_part_of_a_file(number, fabric, tmp_path):
    """A run killed while it writes leaves no partial file: the file is whole or missing."""
    words = (
        f"synthesize --topology {fabric} --collective allgather --chunk-size 1MB --backend greedy -o x.json"
    )
    command = [sys.executable, "-m", "taccl", *words.split()]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    time.sleep(1)
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
