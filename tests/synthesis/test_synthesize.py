"""`synthesize` end to end: every backend, limits, seeds, fallbacks, Ctrl-C, and crashing solvers."""

import contextlib
import inspect
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import taccl
from taccl import collectives
from taccl._internal.deadline import Deadline
from taccl.errors import FallbackWarning, InputError, SolverUnavailableError, TopologyError
from taccl.problem.chunks import Chunk
from taccl.problem.collective import Collective
from taccl.problem.problem import Clauses, Problem
from taccl.sketch.upstream import load_problem
from taccl.solvers import solver as solver_module
from taccl.solvers.process import WORKERS
from taccl.synthesis import bounding, checking
from taccl.synthesis import search as searching
from taccl.synthesis import synthesize as synthesizing
from taccl.synthesis.improve.improvement import compile_improvement
from taccl.synthesis.milp import jobshop
from taccl.synthesis.parameters import DEFAULTS
from taccl.synthesis.proposers import baseline_proposals, finer, solver_loop, table
from taccl.synthesis.proposers.stages import choose
from taccl.synthesis.search import Options, Search
from taccl.topology.builder import TopologyBuilder
from taccl.topology.registry import parse
from tests.effort import AMPLE_S, BRIEF, HASTY, PATIENT, assert_sound, brief_synthesis
from tests.fuzzing import MANY, cases, thinned
from tests.synthesis.small_problems import full, linked, problem_of, ring, two_nodes

BACKENDS = ("auto", "greedy", "highs", "scip", "cbc", "gurobi", "cpsat", "pulp:HiGHS", "pulp:PULP_CBC_CMD")
MILP = tuple(name for name in BACKENDS if name not in ("auto", "greedy", "cpsat"))


def small(collective="alltoall"):
    """Five ranks in a ring of links of 2, 3 and 4 us."""
    return problem_of(ring(5, betas=(0, 1, 2)), collectives.make(collective, 5))


def large():
    """An alltoall on a ring of 9 without symmetry: 1152 hops, too large for Gurobi's bundled licence."""
    return problem_of(ring(9), collectives.alltoall(9))


#: Stages of every search besides those of its solvers.
AROUND = (
    *("transforms", "baselines", "choice", "chunks", "kernels", "phases", "inverted"),
    *("verification", "bound over all chunkings", "overhead"),
)


def own_stages(result):
    """Stages of the solvers that were neither skipped nor cut off, without rows of time between stages."""
    return [
        stage
        for stage in result.stages
        if stage.name not in AROUND
        and stage.status not in ("skipped", "timed-out")
        and stage.message != "time outside its stages"  # such a row depends on the load of the machine
    ]


def stage_names(result):
    return [stage.name for stage in own_stages(result)]


def stage(result, name):
    return next(stage for stage in result.stages if stage.name == name)


@pytest.fixture
def drilled(monkeypatch):
    """A function that makes every task of a solver run a faulty task."""

    def install(solver, drill):
        function = f"tests.solvers.faults:{drill}"
        if solver == "cpsat":
            run = jobshop.run_task
            monkeypatch.setattr(
                jobshop,
                "run_task",
                lambda family, _, *rest, **options: run(family, function, *rest, **options),
            )
        normal = solver_module.solver_task
        monkeypatch.setattr(
            solver_module,
            "solver_task",
            lambda name: (normal(name)[0], function) if name == solver else normal(name),
        )

    return install


class TestBackends:
    """Choices of ``backend=``."""

    @pytest.mark.slow
    @pytest.mark.parametrize("backend", BACKENDS)
    def test_verified_schedule(self, backend, loose_bound):
        """Each backend's schedule passes the verifier, without a fallback."""
        problem = small()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            result = brief_synthesis(problem, backend=backend)
        assert_sound(result, problem)
        assert (result.backend, result.notes) == (backend, ())

    @pytest.mark.parametrize("backend", MILP)
    def test_stages_of_a_solver(self, backend):
        """A named solver runs routing and contiguity, and proves the routing of a small problem."""
        result = brief_synthesis(small("allgather"), backend=backend)
        assert stage_names(result)[-4:] == ["greedy", "routing", "ordering", "contiguity"]
        assert {stage(result, name).solver for name in ("routing", "contiguity")} == {backend}
        assert stage(result, "routing").status == "optimal"
        assert stage(result, "contiguity").finish_us >= result.finish_us

    @pytest.mark.parametrize("backend", [*MILP, "cpsat"])
    def test_routing_that_cannot_be_sequenced_is_done_again(self, backend):
        """Routing is repeated, with orders on resources, if no schedule of the first one is as early as loads allow.

        On an NDv2 of eight GPUs loads allow 69.9 us, but schedules of most such routings take 92.6 us.
        """
        problem = taccl.make_problem(taccl.topologies.ndv2(1), collectives.allgather(8), chunk_bytes="1MB")
        result = brief_synthesis(problem, backend=backend)
        assert_sound(result, problem)
        assert result.finish_us == pytest.approx(69.9)
        assert result.notes == ()
        rounds = [each for each in result.stages if each.name == "routing"]
        # CBC's threads may find a good routing in the first round.
        assert len(rounds) == 1 or "order on 32 of 32 resources" in rounds[-1].message
        assert [each.bound_us for each in rounds] == pytest.approx([69.9] * len(rounds), rel=1e-5)

    @pytest.mark.parametrize("backend", ["highs", "scip", "cbc", "gurobi", "cpsat"])
    def test_row_of_the_published_sketch(self, backend, shared_data):
        """On the published NDv2 sketch and topology for 1 MB each solver alone finds the optimum, 69 us."""
        folder = shared_data / "upstream-taccl"
        sketch, topology = folder / "sketch/sk1-ndv2-n1.json", folder / "topo/topo-ndv2-1MB.json"
        problem = load_problem(sketch, topology, collective="allgather")
        result = brief_synthesis(problem, backend=backend)
        assert (result.finish_us, result.bound_us) == (69, 69)

    @pytest.mark.parametrize("backend", ["highs", "cpsat"])
    def test_no_solver_is_worse_than_what_it_started_from(self, backend, monkeypatch):
        """If a solver's routing finishes later, the list scheduler's schedule is returned, with a note."""
        route = solver_loop.route

        def detour(search, *given, **options):
            """Route around the ring of three in one direction: links 0 -> 1 -> 2 -> 0."""
            found, links = route(search, *given, **options), search.problem.topology.links
            steps = [e for e, link in enumerate(links) if link.dst == (link.src + 1) % 3]
            starts = {(c, steps[(c + i) % 3]): i for c in range(3) for i in range(2)}
            return replace(found, starts=starts, bound_ticks=10**9)

        monkeypatch.setattr(solver_loop, "route", detour)
        problem = problem_of(full(3), collectives.allgather(3))
        result = brief_synthesis(problem, backend=backend)
        assert result.finish_us == 1
        assert result.schedule.producer == "list scheduler"
        assert "alone reached 2 us; the list scheduler's schedule, from which it started" in result.notes[0]
        assert "takes 1 us and is returned" in result.notes[0]

    def test_stages_of_cpsat(self):
        """CP-SAT runs routing, then ordering and contiguity as one job shop."""
        result = brief_synthesis(small("allgather"), backend="cpsat")
        assert stage_names(result)[-3:] == ["greedy", "routing", "job shop"]
        assert stage(result, "job shop").solver == stage(result, "routing").solver == "cpsat"

    def test_stages_of_greedy(self, loose_bound):
        """The list scheduler runs alone, without any solver."""
        result = brief_synthesis(small(), backend="greedy")
        assert {each.solver for each in result.stages} <= {"taccl", "compiled"}
        assert stage_names(result)[-1] == "greedy"

    @pytest.mark.slow
    def test_stages_of_auto(self, loose_bound):
        """While the bound is not met, the portfolio runs every stage."""
        compile_improvement()
        result = brief_synthesis(small())
        names = stage_names(result)
        improving = ["ruin and recreate", "improve", "ruin and recreate"]
        assert names[-5:] == ["greedy", "joint", *improving]
        assert result.stopped != "bound met"

    @pytest.mark.slow
    def test_a_schedule_that_takes_too_long_to_read_is_not_improved(self, loose_bound):
        """If time is too short to read a schedule's transfers, it is not improved, and the stage says so."""
        compile_improvement()
        slow = replace(BRIEF, ruin=replace(BRIEF.ruin, s_per_transfer=AMPLE_S))
        result = brief_synthesis(small(), parameters=slow)
        skipped = [each for each in result.stages if each.name == "ruin and recreate"]
        assert skipped and {each.status for each in skipped} == {"skipped"}
        assert all(each.message.startswith("too little time to read ") for each in skipped)

    def test_auto_stops_at_the_bound(self):
        """Allgather on a ring of 4 takes 3 sends per rank over 2 links of 2 us: 4 us, as a baseline does.

        No stage runs after the bound.
        """
        result = brief_synthesis(problem_of(ring(4), collectives.allgather(4)))
        assert (result.finish_us, result.stopped) == (4, "bound met")
        assert stage_names(result)[-1] == "bound"

    @pytest.mark.slow
    def test_one_after_another_in_one_process(self):
        """Solver libraries that cannot share a process run in turn, twice each."""
        problem = problem_of(two_nodes(), collectives.allgather(4))
        for backend in (*BACKENDS, *reversed(BACKENDS)):
            result = brief_synthesis(problem, backend=backend)
            assert result.finish_us == 7, backend
            assert {each.status for each in result.stages} <= {"done", "optimal"}

    @pytest.mark.parametrize("backend", ["higs", "", "GREEDY", "cplex"])
    def test_unknown(self, backend):
        """The error for an unknown backend lists the known ones."""
        with pytest.raises(InputError) as caught:
            taccl.synthesize(small(), backend=backend)
        for name in ("auto", "greedy", "highs", "scip", "cbc", "gurobi", "cpsat", "pulp:NAME"):
            assert name in str(caught.value)

    @pytest.mark.parametrize("backend", ["pulp", "pulp:", "PuLP"])
    def test_pulp_alone(self, backend):
        """The error for "pulp" lists PuLP's available solvers, as `taccl.backends` does."""
        here = [each.name for each in taccl.backends() if each.name.startswith("pulp:")]
        with pytest.raises(InputError, match=r"expected one of .*") as caught:
            taccl.synthesize(small(), backend=backend)
        assert here
        assert all(name in str(caught.value) for name in here)

    @pytest.mark.parametrize(
        ("options", "error", "said"),
        [
            ({"backend": "gurobbi"}, InputError, "did you mean 'gurobi'"),
            ({"backend": "pulp:NOPE"}, InputError, "pulp:HiGHS"),
            ({"backend": "pulp:MIPCL_CMD"}, SolverUnavailableError, "pulp:MIPCL_CMD cannot run here"),
            ({"time_limit_s": 0}, InputError, "time_limit_s"),
            ({"time_limit_s": -1.0}, InputError, "time_limit_s"),
        ],
    )
    def test_wrong_options_are_refused(self, options, error, said):
        """Errors suggest the nearest name of a misspelt backend, list PuLP's solvers, name absent ones, and
        refuse time limits of 0 or less."""
        with pytest.raises(error, match=said):
            taccl.synthesize(small(), **{"time_limit_s": 5, **options})

    @pytest.mark.parametrize("backend", ["auto", "greedy", "highs"])
    def test_unreachable(self, backend):
        """An unreachable destination is reported with its ranks before any solver runs."""
        topology = linked("one way", [0, 0], [(0, 1)], alpha_us=0, beta_us_per_mb=1)
        problem = problem_of(topology, collectives.allgather(2))
        with pytest.raises(InputError, match="from rank 1 to rank 0"):
            taccl.synthesize(problem, backend=backend)


#: Script: synthesize with 1 MB of memory for each solver, in a new process without workers.
WITHOUT_MEMORY = """
import taccl, warnings
warnings.simplefilter("ignore")
problem = taccl.make_problem(taccl.topologies.ring(12), taccl.collectives.alltoall(12), chunk_bytes=1000)
brief = taccl.SearchParameters.from_dict({brief!r})
for backend in {backends!r}:
    result = taccl.synthesize(
        problem, backend=backend, time_limit_s={limit_s}, memory_limit_mb=1, parameters=brief
    )
    taccl.verify(result.schedule).raise_if_failed()
    print("verified", *(stage.status for stage in result.stages if stage.name == "routing"))
"""


class TestLimits:
    """Limits on time, memory and threads; seeds and progress."""

    @pytest.mark.parametrize("backend", BACKENDS)
    @pytest.mark.parametrize("collective", ["alltoall", "allreduce"])
    def test_twentieth_of_a_second(self, backend, collective):
        """A limit of 0.05 s still gives a verified schedule; a fallback gives a warning."""
        problem = small(collective)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)
            result = taccl.synthesize(problem, backend=backend, time_limit_s=0.05, parameters=PATIENT)
        assert_sound(result, problem)

    @pytest.mark.slow
    @pytest.mark.parametrize("backend", ["auto", "highs", "cpsat"])
    def test_too_short_for_a_real_sketch(self, backend):
        """Two DGX-2 nodes, too large to route in the limit, still get a schedule."""
        problem = _two_dgx2()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)
            result = taccl.synthesize(problem, backend=backend, time_limit_s=0.05, parameters=PATIENT)
        assert_sound(result, problem)

    @pytest.mark.slow
    @pytest.mark.parametrize("backend", ["auto", "greedy", "highs", "cpsat"])
    @pytest.mark.parametrize("collective", ["allgather", "allreduce"])
    def test_same_seed(self, backend, collective, loose_bound):
        """The same problem, options and seed give the same schedule, transfer by transfer."""
        problem = problem_of(full(3, port=True), collectives.make(collective, 3))
        run = partial(brief_synthesis, problem, backend=backend, threads=1, seed=7)
        first, second = run(), run()
        assert first.schedule.digest() == second.schedule.digest()
        assert list(first.schedule) == list(second.schedule)
        assert first.seed == 7

    @pytest.mark.slow
    def test_same_seed_on_two_threads(self):
        """CP-SAT on two threads finds the same schedule in each run, although many routings have equal cost."""
        problem = taccl.make_problem(parse("dgx1"), "allgather", size_bytes="1GB", chunks_per_rank=2)
        found = [brief_synthesis(problem, backend="cpsat", threads=2).schedule.digest() for _ in range(3)]
        assert len(set(found)) == 1

    @pytest.mark.slow
    @pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds the address space of a process")
    def test_memory_limit(self):
        """Solvers without memory are recorded as stage statuses, and a schedule is returned."""
        backends = ["auto", "highs", *(["cpsat", "gurobi", "scip", "cbc"] if MANY else [])]
        script = WITHOUT_MEMORY.format(backends=backends, limit_s=AMPLE_S, brief=BRIEF.to_dict())
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        answers = [line.split() for line in done.stdout.splitlines()]
        assert [verified for verified, *_ in answers] == ["verified"] * len(backends)
        assert {status for _, *statuses in answers for status in statuses} <= {"out-of-memory", "crashed"}

    @pytest.mark.slow
    def test_one_solver_never_passes_the_list_schedulers(self):
        """A named solver's schedule finishes no later than the list scheduler's."""
        problem = small()
        first = taccl.synthesize(problem, backend="greedy", time_limit_s=0.05)
        found = brief_synthesis(problem, backend="highs")
        assert found.finish_us <= first.finish_us

    @pytest.mark.slow
    @pytest.mark.parametrize("collective", ["alltoall", "allreduce"])
    def test_progress(self, collective, loose_bound):
        """Progress reports every stage; the finish never rises, and the bound stays below it."""
        heard = []
        result = brief_synthesis(small(collective), progress=lambda *news: heard.append(news))
        doing = [what for what, _, _ in heard]
        prefixes = ("reduce: ", "broadcast: ") if collective == "allreduce" else ("",)
        assert f"{prefixes[0]}list scheduler" in doing
        for prefix in prefixes:
            own = [news for news in heard if news[0].startswith(prefix)]
            finishes = [finish for _, finish, _ in own if finish is not None]
            assert finishes == sorted(finishes, reverse=True)
            bounds = [bound for _, _, bound in own if bound is not None]
            assert bounds == sorted(bounds)
            assert 0 < bounds[-1] <= finishes[-1]
        if collective == "alltoall":
            assert (finishes[-1], bounds[-1]) == (result.finish_us, result.bound_us)
            assert any("on cpsat" in what for what in doing)

    @pytest.mark.slow
    def test_error_in_progress_reaches_the_caller(self, loose_bound):
        """An exception in `progress` ends the synthesis, and the next synthesis works."""

        def refuse(doing, finish_us, bound_us):
            if "joint" in doing:
                raise LookupError("from the caller")

        with pytest.raises(LookupError, match="from the caller"):
            brief_synthesis(small(), progress=refuse)
        assert brief_synthesis(small()).finish_us == 12


#: A quarter of a second for each model of a named solver, within an ample time limit.
SHORTLY = replace(
    BRIEF,
    solver=replace(
        BRIEF.solver, routing_share=0.25 / AMPLE_S, contiguity_share=0.25 / AMPLE_S, least_round_s=2 * AMPLE_S
    ),
)


@pytest.mark.slow
class TestFallbacks:
    """Solvers without a licence, that crash, or that find nothing."""

    @pytest.fixture
    def size_limited(self):
        """Skip if Gurobi is absent, or has a licence for models of any size."""
        row = next(row for row in taccl.backends() if row.name == "gurobi")
        if not row.available or not row.licence.startswith("size-limited"):
            pytest.skip(f"needs Gurobi with its bundled licence; here: {row.why_not or row.licence}")

    def test_gurobi_beyond_its_licence(self, size_limited):
        """A model too large for Gurobi's licence is solved by HiGHS, with a warning that gives both sizes."""
        problem = large()
        with pytest.warns(FallbackWarning, match="gurobi has no licence for this model") as caught:
            result = brief_synthesis(problem, backend="gurobi", parameters=SHORTLY)
        assert_sound(result, problem)
        tried = [(each.solver, each.status) for each in result.stages if each.name == "routing"]
        assert tried[0] == ("gurobi", "unlicensed")
        assert tried[1][0] == "highs"
        assert result.notes == (str(caught[0].message),)
        assert "2000 variables" in result.notes[0]
        assert result.choice == "gurobi, replaced by highs where the licence does not admit the model"

    def test_said_once(self, size_limited):
        """If both phases of an allreduce fall back for one reason, there is one warning and one note."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            problem = problem_of(ring(8), collectives.allreduce(8, chunks_per_rank=8))
            result = brief_synthesis(problem, backend="gurobi", parameters=SHORTLY)
        assert_sound(result, problem)
        tried = [each for each in result.stages if each.solver == "gurobi"]
        assert {each.status for each in tried} == {"unlicensed"}
        assert len(result.notes) == 1
        assert "replaced by highs" in result.choice
        assert [each.category for each in caught] == [FallbackWarning]

    @pytest.mark.parametrize(
        ("solver", "drill", "word"),
        [
            *((solver, "abort", "SIGABRT") for solver in thinned(("highs", "cpsat", "cbc"), every=2)),
            ("highs", "fail", "this drill always fails"),
        ],
    )
    def test_solver_dies(self, drilled, solver, drill, word):
        """A crash of a named solver gives a "crashed" stage and the list scheduler's schedule."""
        drilled(solver, drill)
        problem = small()
        with pytest.warns(FallbackWarning, match=f"{solver} found no schedule"):
            result = brief_synthesis(problem, backend=solver)
        assert_sound(result, problem)
        assert stage(result, "routing").status == "crashed"
        assert word in stage(result, "routing").message
        assert word in result.notes[0]

    def test_a_solver_dies_under_auto(self, drilled, loose_bound):
        """If a solver crashes, the portfolio continues without it."""
        drilled("cpsat", "abort")
        problem = small()
        result = brief_synthesis(problem)
        assert_sound(result, problem)
        assert stage(result, "joint").status == "crashed"

    @pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="finds worker processes in /proc")
    def test_workers_killed_from_outside(self, loose_bound):
        """Workers killed by SIGKILL are recorded as stage statuses; later stages start new workers."""
        killed = threading.Event()
        WORKERS.end_idle()  # or one of these might be given the routing before it is seen to be dead

        def kill_once(doing, finish_us, bound_us):
            if "joint on cpsat" in doing and not killed.is_set():
                killed.set()
                threading.Timer(0.05, _kill_workers).start()

        problem = problem_of(
            ring(7, betas=(0, 1, 2)), collectives.alltoall(7)
        )  # large enough to keep CP-SAT busy
        result = brief_synthesis(problem, progress=kill_once)
        assert killed.is_set()
        assert_sound(result, problem)
        assert stage(result, "joint").status in ("crashed", "out-of-memory")
        assert "SIGKILL" in stage(result, "joint").message
        assert stage(result, "improve").status in ("optimal", "feasible", "no-solution", "done")


def _kill_workers():
    """Send SIGKILL to every child of this process, as soon as there is one; on a busy machine it starts late."""
    for _ in range(6000):
        if _killed():
            break
        time.sleep(0.01)


def _killed():
    """Number of children of this process to which SIGKILL was sent."""
    number = 0
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # the thread, or the child, has just ended
            children = Path(f"/proc/self/task/{thread}/children").read_text()
            for pid in children.split():
                os.kill(int(pid), signal.SIGKILL)
                number += 1
    return number


#: A long search: the alltoall of one NDv2 node, with its proven bound halved.
LONG = ("synthesize", "ndv2/sk1-n1", "--collective", "alltoall", "--time-limit", "300", "--log")
LOOSE = """
import dataclasses, os, signal, sys, taccl
from taccl import cli
from taccl.synthesis import bounding

proven = bounding.lower_bound

def half(problem, **options):
    bound = proven(problem, **options)
    return dataclasses.replace(bound, bound=bound.bound / 2)

bounding.lower_bound = half
"""
LIBRARY = f"""{LOOSE}
sketch = taccl.load_sketch("ndv2/sk1-n1")
problem = sketch.apply(sketch.topology(), taccl.collectives.alltoall(8))

def progress(doing, finish_us, bound_us):
    print("now:", doing, flush=True)

result = taccl.synthesize(problem, time_limit_s=300, progress=progress)
taccl.verify(result.schedule).raise_if_failed()
print("returned", result.stopped, result.interrupted)
"""
COMMAND = f"{LOOSE}sys.exit(cli.main(sys.argv[1:]))"
#: Script: the command line gets SIGINT before it has any schedule.
EARLY = f"""{LOOSE}
from taccl.synthesis.proposers import table

def interrupted(search):
    os.kill(os.getpid(), signal.SIGINT)

table.offer_first = interrupted
sys.exit(cli.main(sys.argv[1:]))
"""


def synthesized(problem, **options):
    """The result; a KeyboardInterrupt, which would end the test run, becomes a failure."""
    try:
        return brief_synthesis(problem, **options)
    except KeyboardInterrupt:
        pytest.fail("KeyboardInterrupt, though there is a schedule")


def interrupt_once(stage, *, time=1):
    """A `progress` that raises KeyboardInterrupt at its first (or `time`-th) call for a stage."""
    heard = []

    def progress(doing, finish_us, bound_us):
        if doing.startswith(stage):
            heard.append(doing)
            if len(heard) == time:
                signal.raise_signal(signal.SIGINT)

    return progress


def _two_ndv2():
    sketch = taccl.load_sketch("ndv2/sk2")
    return sketch.apply(sketch.topology(), collectives.allreduce(16))


def _two_dgx2():
    sketch = taccl.load_sketch("dgx2/sk1")
    return sketch.apply(sketch.topology(), collectives.allgather(32, chunks_per_rank=2))


def interrupted(command, *, word, stream, whole_group=False):
    """(exit code, stdout, stderr) of a command that gets SIGINT once it has printed a word."""
    process = subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    lines = []
    while word not in (line := getattr(process, stream).readline()):
        assert line, f"ended before {word!r}: {lines}"
        lines.append(line)
    if whole_group:
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    watchdog.cancel()
    return process.returncode, out, err


@pytest.mark.skipif(sys.platform == "win32", reason="sends POSIX signals")
class TestCtrlC:
    """Ctrl-C returns the best so far."""

    @pytest.mark.slow
    @pytest.mark.parametrize("stage", ["joint on cpsat", "improve"])
    def test_stage_of_auto(self, stage, loose_bound):
        """Interrupted at any stage, the portfolio returns a verified result marked as interrupted."""
        problem = small()
        improves = replace(BRIEF, portfolio=replace(BRIEF.portfolio, least_improve_s=60))
        result = synthesized(problem, parameters=improves, progress=interrupt_once(stage))
        assert_sound(result, problem)
        assert (result.stopped, result.interrupted) == ("interrupted", True)
        assert result.finish_us == 12

    def test_nothing_found(self, loose_bound):
        """Interrupted before the first list schedule, a baseline is returned."""
        result = synthesized(small(), progress=interrupt_once("list scheduler"))
        assert taccl.verify(result.schedule).ok
        assert result.interrupted

    @pytest.mark.parametrize(("next_tried", "best"), [("2 chunks", 1), ("4 chunks", 2)])
    def test_chunks_are_chosen(self, next_tried, best, monkeypatch):
        """Interrupted during the choice of chunks, a schedule in the best number tried so far is returned.

        Baselines in finer chunks and trees are disabled. The opposite rank is two hops away: one chunk makes
        them in sequence, while hops of two half chunks overlap. A bound that was found before counts.
        """
        for module in (table, finer):
            monkeypatch.setattr(module, "offer_cut", lambda search, until: None)
        monkeypatch.setattr(table, "offer_trees", lambda search: None)
        problem = taccl.make_problem(taccl.topologies.ring(4), "broadcast", size_bytes=10**9)
        result = synthesized(problem, progress=interrupt_once(next_tried))
        assert taccl.verify(result.schedule).ok and result.interrupted
        assert result.schedule.problem.collective.num_chunks == best
        known = [each.bound_us for each in result.stages if each.name == "bound over all chunkings"]
        assert result.bound_us == result.bound_over_all_chunkings.bound_us == known[0] > 0

    @pytest.mark.slow
    def test_no_chunks_are_tried(self):
        """Interrupted before the first number of chunks, a baseline is returned, and no number is chosen."""
        problem = taccl.make_problem(taccl.topologies.ring(4), "broadcast", size_bytes=10**6)
        assert synthesized(problem, progress=interrupt_once("1 chunk")).interrupted
        with pytest.raises(KeyboardInterrupt):  # a script that asks for a number alone is to end
            taccl.choose_chunks(problem, progress=interrupt_once("2 chunks"))

    @pytest.mark.parametrize("backend", ["highs", "cpsat"])
    def test_named_solver_is_prepared(self, backend):
        """The list scheduler's schedule exists before a named solver starts, and is returned."""
        problem = small()
        result = synthesized(problem, backend=backend, progress=interrupt_once(f"routing on {backend}"))
        assert_sound(result, problem)
        assert result.interrupted

    @pytest.mark.slow
    @pytest.mark.parametrize("backend", ["highs", "cpsat"])
    def test_named_solver_runs(self, backend):
        """The list scheduler's schedule exists while a named solver runs, and is returned."""
        problem = _two_dgx2()
        progress = interrupt_once(f"routing on {backend}", time=2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)  # unless the solver has an incumbent already
            result = synthesized(problem, backend=backend, progress=progress)
        assert_sound(result, problem)
        assert result.interrupted
        routings = [each.status for each in result.stages if each.name == "routing"]
        assert routings[-1] in ("interrupted", "no-solution")  # the solver may end by itself at that moment

    def test_while_the_best_is_verified(self, monkeypatch, loose_bound):
        """Interrupted during the last verification, the result is verified again and returned."""
        whole, times = searching.verify, []

        def verify(schedule):
            times.append(schedule)
            if len(times) == 1:
                signal.raise_signal(signal.SIGINT)
            return whole(schedule)

        monkeypatch.setattr(searching, "verify", verify)
        result = synthesized(small(), backend="greedy")
        assert (len(times), result.interrupted) == (2, True)

    @pytest.mark.slow
    def test_second_half(self, loose_bound):
        """An allreduce interrupted in its broadcast phase is complete."""
        problem = problem_of(full(3, port=True), collectives.allreduce(3))
        result = synthesized(problem, progress=interrupt_once("broadcast: joint"))
        assert_sound(result, problem)
        assert result.interrupted

    @pytest.mark.slow
    def test_first_half(self, loose_bound):
        """An allreduce interrupted in its reduce phase is completed by the list scheduler's first run."""
        problem = _two_ndv2()
        improves = replace(BRIEF, portfolio=replace(BRIEF.portfolio, least_improve_s=60))
        progress = interrupt_once("reduce: improve")
        result = synthesized(problem, parameters=improves, progress=progress)
        assert_sound(result, problem)
        assert result.interrupted
        spreading = [each for each in result.stages if each.name.startswith("broadcast")]
        assert {each.solver for each in spreading} == {"taccl"}
        assert "improve" not in {each.name.removeprefix("broadcast: ") for each in spreading}

    @pytest.mark.slow
    def test_library(self):
        """A script that calls `synthesize` continues after Ctrl-C, with the result."""
        code, out, err = interrupted(["-c", LIBRARY], word="now: improve", stream="stdout")
        assert (code, err) == (0, "")
        assert out.splitlines()[-1] == "returned interrupted True"

    @pytest.mark.slow
    def test_command_line(self, tmp_path):
        """The command exits with 0 and a message on stderr; figures are printed, and the schedule is written.

        As on a terminal, its solvers get the signal, too; those of `test_library` do not.
        """
        path = tmp_path / "best.json"
        command = ["-c", COMMAND, *LONG, "--json", "-o", str(path)]
        code, out, err = interrupted(command, word="Starting CP-SAT", stream="stderr", whole_group=True)
        values = json.loads(out)
        assert code == 0
        assert "stopped by Ctrl-C; this is the best schedule so far" in err
        assert "Traceback" not in err
        assert (values["interrupted"], values["stopped"], values["verified"]) == (True, "interrupted", True)
        assert taccl.verify(taccl.load(path)).ok

    @pytest.mark.slow
    def test_before_anything_is_found(self, tmp_path):
        """Without any schedule the exit code is 130, and nothing is written."""
        path = tmp_path / "none.json"
        done = subprocess.run(
            [sys.executable, "-c", EARLY, *LONG, "-o", str(path)], capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stdout) == (130, "")
        assert "interrupted before any result" in done.stderr
        assert "Traceback" not in done.stderr
        assert not path.exists()


@pytest.mark.slow
def test_baselines_that_break_the_sketch_are_left():
    """Baselines that use links forbidden by ndv2/sk1 do not replace the schedule found."""
    topology = taccl.topologies.ndv2(2)
    problem = taccl.load_sketch("ndv2/sk1").apply(topology, taccl.collectives.alltoall(16))
    found = brief_synthesis(problem, backend="greedy").schedule
    late = replace(found, start=found.start + 10**9, end=found.end + 10**9)
    search = Search(problem, Options(), Deadline(), best=late)
    baseline_proposals.offer_rest(search)
    assert search.best is late
    assert [stage.message for stage in search.stages] == ["last: none better"]


def test_with_little_time_many_hops_are_left_to_the_compiled_scheduler():
    """400 chunks over 380 links are 152000 hops: the compiled scheduler runs within 1 s, the portfolio within
    60 s."""
    problem = problem_of(full(20), collectives.alltoall(20))
    is_large, choice = choose(problem, "greedy", 1.0)
    assert is_large
    assert "the compiled list scheduler" in choice
    assert "more than the limit of 100000 for models in" in choice
    assert choose(problem, "greedy", 60.0) == (False, "the list scheduler (up to 200000 hops; here 152000)")


def test_with_little_time_small_chunks_are_still_merged():
    """DGX-2 x2 with chunks of 1 KB has 33000 reduced hops, few enough for two seconds: its chunks merge."""
    sketch = taccl.load_sketch("dgx2/sk2")
    topology = sketch.topology()
    problem = sketch.apply(topology, collectives.alltoall(topology.num_ranks))
    assert not choose(problem, "auto", 2.0)[0]


@pytest.mark.slow
def test_how_many_modules_a_synthesis_goes_through(monkeypatch):
    """A synthesis with symmetry calls functions of at most 26 modules.

    More modules would suggest that two of them do the same work. Transforms and proposers that do not apply
    are counted, as they are called to find this out. Time limits count CPU time, so that a busy machine
    changes nothing.
    """
    monkeypatch.setattr(time, "monotonic", time.process_time)
    sketch = taccl.load_sketch("ndv2/sk1")
    topology = sketch.topology()
    problem = sketch.apply(topology, collectives.allgather(topology.num_ranks))
    entered = set()

    def note(frame, event, _):
        is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED  # and no body of a class or a module
        if event == "call" and is_function and frame.f_code.co_name != "__create_fn__":
            entered.add(frame.f_globals.get("__name__", ""))

    sys.setprofile(note)
    threading.setprofile(note)
    try:
        taccl.synthesize(problem, time_limit_s=4)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    own = {name for name in entered if name.startswith("taccl.synthesis.")}
    assert len(own) <= 26


@pytest.mark.slow
@pytest.mark.parametrize("collective", ["allgather", "allreduce"])
def test_each_is_worked_out_once(collective, monkeypatch):
    """The choice of search and the whole problem's bound are computed once each.

    The baseline that meets the bound was verified when it was proposed, and is not verified again.
    """
    counts = Counter()
    for module, name in ((synthesizing, "choose"), (bounding, "lower_bound"), (checking, "check_reachable")):
        asked = getattr(module, name)

        def counted(problem, *rest, name=name, asked=asked, **options):
            counts[name, problem.collective.name] += 1
            return asked(problem, *rest, **options)

        monkeypatch.setattr(module, name, counted)
    verdict = searching.verify
    monkeypatch.setattr(searching, "verify", lambda found: (counts.update(["verify"]), verdict(found))[1])
    problem = problem_of(two_nodes(), collectives.make(collective, 4))
    assert brief_synthesis(problem).stopped == "bound met"
    name = problem.collective.name
    assert [counts[each, name] for each in ("choose", "lower_bound", "check_reachable")] == [1, 1, 1]
    assert counts["verify"] == 0


def one_sum(num_ranks):
    """Every rank contributes to one chunk and needs its sum."""
    ranks = tuple(range(num_ranks))
    return Collective("allreduce", num_ranks, (Chunk(ranks, ranks, 0),), combining=True)


@pytest.mark.slow
class TestContributionsApart:
    """Small sums in which ranks exchange individual contributions, without a root."""

    @pytest.mark.parametrize(
        ("topology", "steps"),
        [(ring(5), 2), (full(4), 1), (full(3, port=True), 2)],
        ids=["ring", "full", "port"],
    )
    def test_contributions_are_kept_apart(self, topology, steps):
        """Contributions that are sent without partial sums take as many steps as the bound requires.

        These are two steps on a ring of five, one step with links between all ranks, and two steps for three
        ranks with ports.
        """
        problem = problem_of(topology, one_sum(topology.num_ranks))
        result = synthesized(problem)
        assert_sound(result, problem)
        assert result.schedule.contributions is not None
        assert result.gap == 0
        assert (
            result.schedule.finish == steps * taccl.lower_bound(problem_of(topology, one_way(topology))).bound
        )

    def test_one_message_a_link_for_all_chunks(self):
        """An allreduce of 1,000 bytes between directly linked ranks takes the time of one send, proven optimal.

        The send takes 0.5 us of latency and 0.02 us at 20 us/MB.
        """
        problem = taccl.make_problem(
            taccl.topologies.fully_connected(4), "allreduce", size_bytes=1000, chunks_per_rank=1
        )
        result = brief_synthesis(problem)
        assert (result.finish_us, result.bound_us) == (0.52, 0.52)
        assert taccl.interpret(taccl.lower(result.schedule)).ok

    def test_small_sums_are_no_slower_than_baselines(self):
        """On two nodes of eight ranks (two in a quick run) small sums finish no later than any baseline."""
        topology = taccl.topologies.ndv2(2)
        if not MANY:
            topology = topology.without(ranks=[*range(2, 8), *range(10, 16)])
        made = collectives.allreduce(topology.num_ranks)
        problem = taccl.make_problem(topology, made, size_bytes=1000)
        result = brief_synthesis(problem, parameters=HASTY)
        assert result.finish_us <= taccl.baselines.best(problem).finish_us


def test_a_first_schedule_that_no_chunking_beats_ends_the_search():
    """If a baseline meets the bound over all chunkings, no number of chunks is tried."""
    problem = taccl.make_problem(taccl.topologies.fully_connected(4), "alltoall", size_bytes="64MB")
    result = brief_synthesis(problem)
    assert (result.stopped, result.gap, result.standing) == ("bound met", 0, "proven best")
    assert {each.name for each in result.stages} <= {"preparation", "verification", "bound", *AROUND}
    assert "chunks" not in {each.name for each in result.stages}
    assert result.choice == "the first schedule; it meets the bound over all chunkings"


class TestRootsOutOfReach:
    """Sums whose root is unreachable or reaches no rank, though another rank could form them."""

    @staticmethod
    def sums(num_ranks, links, *chunks):
        builder = TopologyBuilder("one-way", [0] * num_ranks)
        for src, dst in links:
            builder.add_link(src, dst, alpha_us=1, beta_us_per_mb=10)
        collective = Collective("sums", num_ranks, tuple(Chunk(*each) for each in chunks), combining=True)
        return Problem(builder.build(), collective, (1_000_000,) * len(chunks))

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("backend", "root"),
        [("auto", 0), ("highs", 1), ("cpsat", 3), *(("greedy", root) for root in (0, 1, 3))],
    )
    def test_another_rank_makes_the_sum(self, backend, root):
        """Links 0 -> 2, 1 -> 2 and 2 -> 3: only rank 2 can form the sum of 0 and 1 for 2 and 3.

        The root is a contributor, another rank, or a destination.
        """
        problem = self.sums(4, [(0, 2), (1, 2), (2, 3)], ((0, 1), (2, 3), root))
        result = synthesized(problem, backend=backend)
        assert_sound(result, problem)
        assert result.finish_us == result.bound_us == 22

    def test_each_destination_adds_up_itself(self):
        """No rank can form the sum for both destinations: every contribution goes to each of them."""
        links = [(src, dst) for src in (0, 1) for dst in (2, 3)]
        problem = self.sums(4, links, ((0, 1), (2, 3), 2))
        result = synthesized(problem)
        assert_sound(result, problem)
        assert result.finish_us == result.bound_us == 11
        assert "no rank can make a sum for all" in result.choice

    def test_no_rank_can_form_the_sum(self):
        """If rank 3 can get only one of two contributions, an error is raised."""
        problem = self.sums(4, [(0, 2), (1, 2), (0, 3)], ((0, 1), (2, 3), 2))
        with pytest.raises(TopologyError, match="cannot get from rank 2 to rank 3"):
            synthesized(problem)

    @pytest.mark.slow
    def test_a_whole_sum_crosses_from_the_rank_that_made_it(self):
        """Root 0 cannot form the sum; rank 1 of its node can, and sends it directly to rank 2."""
        builder = TopologyBuilder("two nodes", [0, 0, 1])
        for src, dst in ((0, 1), (1, 2), (2, 1)):
            builder.add_link(src, dst, alpha_us=1, beta_us_per_mb=10)
        collective = Collective("sum", 3, (Chunk((0, 1, 2), (1, 2), 0),), combining=True)
        problem = Problem(builder.build(), collective, (1_000_000,), Clauses(direct_crossing=True))
        result = synthesized(problem)
        assert_sound(result, problem)
        assert result.finish_us == result.bound_us == 22
        assert result.schedule.contributions[-1] == (0, 1, 2)

    @pytest.mark.fuzz
    def test_what_is_possible_is_found(self):
        """On random directed graphs of four ranks, bound and synthesis are refused for the same problems."""
        found = 0
        for seed in cases("sums with roots anywhere", few=7, many=1000):
            draw = random.Random(seed)
            pairs = [(a, b) for a in range(4) for b in range(4) if a != b and draw.random() < 0.45]
            chunks = [
                (
                    tuple(sorted(draw.sample(range(4), 2))),
                    tuple(sorted(draw.sample(range(4), 2))),
                    draw.randrange(4),
                )
                for _ in range(2)
            ]
            problem = self.sums(4, pairs, *chunks)
            try:
                bound = taccl.lower_bound(problem)
            except InputError:
                with pytest.raises(InputError):
                    synthesized(problem, backend="greedy")
                continue
            result = synthesized(problem, backend="greedy")
            assert_sound(result, problem)
            assert result.finish_us >= bound.bound_us - 1e-9
            found += 1
        assert found


def one_way(topology):
    """A collective of one chunk from rank 0 to a neighbour, to time one step."""
    neighbour = min(link.dst for link in topology.links if link.src == 0)
    return collectives.custom(topology.num_ranks, precondition={0: [0]}, postcondition={0: [neighbour]})


def test_time_that_is_kept_for_later_counts_for_the_bound(monkeypatch):
    """The bound of a search of 100 s that reserves 900 s for improvement has the time limit of a search of
    1,000 s."""
    limits = []
    monkeypatch.setattr(bounding, "lower_bound", lambda problem, *, limit_s, **_: limits.append(limit_s))
    problem = taccl.make_problem(taccl.topologies.ring(4), "allgather", size_bytes=4)
    until, budget = Deadline(time.monotonic() + 100), DEFAULTS.budget
    bounding.bound_within(problem, until, budget)
    bounding.bound_within(problem, until, budget, kept_s=900)
    assert 49 < limits[0] <= 50 < 199 < limits[1] <= 200
