"""Problems whose destinations hold all data from the start: every function handles the empty schedule."""

import warnings

import numpy as np
import pytest

import taccl
from taccl import collectives
from taccl.errors import ExportError, InputError, LossyConversionWarning
from taccl.problem.chunks import Chunk, Derivation
from taccl.problem.collective import Collective
from taccl.problem.making import make_problem
from taccl.program.interpret import interpret
from taccl.schedule.schedule import make_schedule
from taccl.synthesis.proposers.large import schedule_large
from taccl.topology.builder import TopologyBuilder
from tests.analysis.valid_schedules import full
from tests.arguments import arguments_for
from tests.effort import AMPLE_S, brief_synthesis
from tests.synthesis.small_problems import MB, custom, ring

BACKENDS = ("auto", "greedy", "highs", "scip", "cbc", "cpsat")


def alone():
    """A topology of one rank without links."""
    return TopologyBuilder("alone", [0]).build()


def problems():
    """Every collective on one rank, and others on a ring of three that need no send."""
    found = {}
    for name in collectives.COLLECTIVES:
        collective = collectives.make(name, 1, chunks_per_rank=2, **arguments_for(name, 1))
        found[f"one rank, {name}"] = make_problem(alone(), collective, size_bytes=MB)
    groups = [collectives.allreduce(1).among((r,), num_ranks=3) for r in range(3)]
    derived = Collective(
        "derived", 3, (Chunk((1,), (1,)), Chunk((), (1,))), True, derivations=(Derivation(0, 1, 1),)
    )
    met = {
        "met": custom(3, [([0, 1], [1])]),
        "nobody asks": custom(3, [([0], [])]),
        "no chunks": custom(3, []),
        "one contributor that stays": custom(3, [([1], [1])], combining=True),
        "one contributor, gathered elsewhere": Collective("sum", 3, (Chunk((1,), (1,), 0),), True),
        "groups of one": collectives.together(groups),
        "made from what is there": derived,
    }
    return found | {name: make_problem(ring(3), each, chunk_bytes=MB) for name, each in met.items()}


PROBLEMS = problems()
every = pytest.mark.parametrize("name", PROBLEMS)


@pytest.fixture(autouse=True)
def _no_warnings():
    """Turn warnings into errors, except those of lossy formats."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", LossyConversionWarning)
        yield


def empty(problem):
    """The schedule without sends."""
    return make_schedule(problem, chunk=[], link=[], start=[], end=[])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "name", ["one rank, allreduce", "one rank, scan", "met", "no chunks", "groups of one"]
)
def test_every_backend_finds_the_empty_schedule(name, backend):
    """Every backend returns the empty schedule, which finishes at the bound, 0."""
    result = brief_synthesis(PROBLEMS[name], backend=backend)
    assert (result.schedule.num_transfers, result.finish_us, result.bound_us) == (0, 0, 0)
    assert result.stopped == "bound met"
    assert (result.gap, result.schedule.algbw_gb_per_s) == (0, None)
    assert taccl.verify(result.schedule).ok
    assert result.facts()[0] == ("finish", "0 us")


@pytest.mark.parametrize("options", [{"keep": "summary"}, {"sketch": "none"}], ids=str)
def test_options_change_nothing(options):
    """With ``keep="summary"`` or without sketches, finish and bound are still 0."""
    result = brief_synthesis(PROBLEMS["met"], **options)
    assert (result.finish_us, result.bound_us) == (0, 0)


@pytest.mark.slow
def test_a_large_problem_is_as_empty():
    """For 70,000 chunks that are at their destinations the compiled list scheduler sends nothing."""
    chunks = tuple(Chunk((0,), (0,)) for _ in range(70_000))
    result = taccl.synthesize(
        make_problem(ring(3), Collective("kept", 3, chunks), chunk_bytes=1), time_limit_s=AMPLE_S
    )
    assert (result.schedule.num_transfers, result.finish_us, result.bound_us) == (0, 0, 0)


@every
def test_a_search_finds_the_empty_schedule(name):
    """The portfolio returns the empty schedule of every problem."""
    result = brief_synthesis(PROBLEMS[name])
    assert (result.schedule.num_transfers, result.finish_us, result.bound_us) == (0, 0, 0)


@pytest.mark.parametrize("name", sorted(set(PROBLEMS) - {"made from what is there"}))
def test_the_compiled_scheduler_sends_nothing(name):
    """The compiled scheduler's columns are empty and verify, also in full form."""
    schedule = schedule_large(PROBLEMS[name])
    assert (len(schedule), schedule.finish, schedule.algbw_gb_per_s) == (0, 0, None)
    assert taccl.verify(schedule).ok
    assert taccl.verify(full(schedule)).ok


@every
def test_the_bound_is_nothing_and_checks(name):
    """If there is nothing to send, the bound is 0, and its certificate passes the check."""
    bound = taccl.lower_bound(PROBLEMS[name])
    assert (bound.bound, bound.limits, bound.algbw_gb_per_s) == (
        0,
        "nothing: every rank holds its data at the start",
        None,
    )
    assert bound.check()


@every
def test_explain_finds_no_conflict(name):
    """`explain` finds no conflict in a problem without sends."""
    assert taccl.explain(PROBLEMS[name]).feasible


@every
def test_empty_schedule_is_simulated(name):
    """`simulate` finishes at 0, also with four tiles."""
    simulation = taccl.simulate(empty(PROBLEMS[name]), tiles=4)
    assert (simulation.finish_us, simulation.algbw_gb_per_s, simulation.busbw_gb_per_s) == (0, None, None)
    assert "finish 0 us" in repr(simulation)
    assert taccl.initiation_interval(empty(PROBLEMS[name])).interval == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one rank, allreduce", "no chunks"])
def test_empty_schedule_is_drawn_and_reported(name):
    """The Gantt chart is empty, the figure has no bandwidths, and the report contains both."""
    import matplotlib.pyplot as plt

    schedule = empty(PROBLEMS[name])
    for by in ("link", "resource", "rank"):
        taccl.plot.gantt(schedule, by=by)
    if PROBLEMS[name].size_bytes:
        words = taccl.plot.bandwidth(schedule).get_xlabel()
        assert "nothing is sent" in words
    plt.close("all")
    assert "<html" in taccl.report(schedule)


@every
def test_empty_schedule_is_saved_and_read(name, tmp_path):
    """A saved empty schedule is equal when it is loaded."""
    taccl.save(empty(PROBLEMS[name]), tmp_path / "s.json")
    assert taccl.load(tmp_path / "s.json") == empty(PROBLEMS[name])


@pytest.mark.parametrize("ending", ["xml", "plan.json", "perfetto.json", "csv", "parquet", "et"])
def test_empty_schedule_is_written(ending, tmp_path):
    """The empty schedule is written without transfers, or refused if the format has no such collective."""
    for number, name in enumerate(sorted(set(PROBLEMS) - {"made from what is there"})):
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            taccl.write(empty(PROBLEMS[name]), folder / f"s.{ending}")
        except ExportError as error:
            assert "MSCCL" in str(error), name
        else:
            assert list(folder.iterdir()), name


@pytest.mark.parametrize("ending", ["xml", "plan.json"])
def test_runtimes_have_no_algorithms_without_data(ending, tmp_path):
    """Runtime formats refuse a collective without chunks, as buffers would have no size."""
    with pytest.raises(ExportError, match="requires chunks, but .* has none"):
        taccl.write(empty(PROBLEMS["no chunks"]), tmp_path / f"s.{ending}")


@pytest.mark.parametrize("name", sorted(set(PROBLEMS) - {"made from what is there"}))
def test_empty_schedule_is_lowered_and_interpreted(name):
    """The lowered program copies data that a rank keeps from its input to its output."""
    program = taccl.lower(empty(PROBLEMS[name]))
    assert interpret(program).ok


@every
def test_empty_schedule_is_replanned(name):
    """`replan` of an empty schedule keeps and adds nothing."""
    assert len(taccl.replan(empty(PROBLEMS[name]), PROBLEMS[name]).schedule) == 0


@pytest.mark.parametrize("baseline", ["ring", "tree", "recursive", "pairwise"])
def test_baselines_of_one_rank(baseline):
    """Baselines that support the collective send nothing on one rank."""
    for name in (each for each in PROBLEMS if each.startswith("one rank")):
        try:
            schedule = getattr(taccl.baselines, baseline)(PROBLEMS[name])
        except InputError as error:
            assert "cannot do" in str(error), name
        else:
            assert len(schedule) == 0, name


@pytest.mark.parametrize("collective", ["allgather", "reduce-scatter", "allreduce", "alltoall"])
def test_an_implicit_schedule_of_one_rank(collective):
    """An implicit schedule of one rank has no rows, and verifies as it is and expanded."""
    result = taccl.synthesize_implicit(alone(), collective)
    assert (len(result.schedule), result.schedule.finish, result.bound.bound, result.gap) == (0, 0, 0, 0)
    assert result.schedule.algbw_gb_per_s is None
    assert taccl.verify(result.schedule).ok
    assert taccl.verify(result.schedule.expand()).ok


@pytest.mark.slow
def test_runs_are_compared():
    """`compare` reports the empty schedule as proven, without a bandwidth."""
    table = taccl.compare(PROBLEMS["met"], backends=["highs"], time_limit_s=1)
    assert list(table["status"]) == ["proven"]
    assert list(table["finish_us"]) == [0]


@pytest.mark.parametrize("collective", ["allgather", "allreduce", "scan"])
def test_a_plan_of_one_rank(collective):
    """A plan for one rank has one range, with a finish of 0 for all sizes."""
    plan = taccl.plan(alone(), collective, sizes=["1KB", "1MB"], time_limit_s=1)
    (only,) = plan.ranges
    assert (only.finish_min, only.finish_max, only.gap) == (0, 0, 0)
    assert only.to_dict()["algbw_gb_per_s_at_max"] is None
    assert "0 us to 0 us" in repr(plan)


@pytest.mark.slow
def test_the_reduce_phase_may_be_empty():
    """Rank 1 is the only contributor, so the sum has only a broadcast phase: 1 -> 2 and 2 us in total."""
    problem = make_problem(ring(3), custom(3, [([1], [1, 2])], combining=True), chunk_bytes=MB)
    for backend in ("auto", "highs"):
        assert brief_synthesis(problem, backend=backend).finish_us == 2


def test_a_size_without_chunks_is_kept():
    """The size of a problem without chunks is kept, without padding."""
    problem = make_problem(ring(3), custom(3, []), size_bytes=MB)
    assert (problem.size_bytes, problem.notes) == (MB, ())
    assert np.array_equal(problem.chunk_bytes, ())
