"""Release and due dates of chunks: scheduling, verification, bounds and files."""

from dataclasses import replace
from fractions import Fraction

import pytest

import taccl
from taccl import collectives, topologies
from taccl.analysis.certificates.certificate import Late
from taccl.problem.chunks import Chunk, Derivation
from taccl.problem.collective import Collective
from taccl.schedule.listing import Tasks
from taccl.schedule.schedule import make_schedule
from taccl.schedule.timing import exact_times
from taccl.synthesis.transforms.requirements import ReleaseDates
from taccl.topology.builder import TopologyBuilder
from tests.effort import first_schedule
from tests.synthesis.small_problems import custom, linked, problem_of


@pytest.fixture
def problem():
    """An allgather over a ring of three; 1 MB takes 1 + 10 us per link."""
    ring = topologies.ring(3, alpha_us=1, bandwidth_gb_per_s=100)
    return taccl.make_problem(ring, "allgather", chunk_bytes=1_000_000, chunks_per_rank=1)


@pytest.mark.slow
def test_nothing_leaves_before_its_release(problem):
    """Rank 0's chunk is released at 100 us; the finish is 111 us, which the bound proves optimal."""
    late = replace(problem, release_us=((0, 0, 100),))
    result = taccl.synthesize(late, backend="greedy")
    assert result.finish_us == 111
    assert result.bound_us == 111
    assert result.bound.check()
    assert taccl.verify(result.schedule).ok
    assert result.stopped == "bound met"


def test_a_bound_is_checked_with_its_release_date(problem):
    """A certificate with a bound 1 us higher, or another release date, is refused."""
    bound = taccl.lower_bound(replace(problem, release_us=((0, 0, 100),)))
    assert not replace(bound, bound=bound.bound + 1).check()
    assert not replace(bound, witness=replace(bound.witness, date_us=Fraction(101))).check()


def test_the_verifier_names_what_leaves_early(problem):
    """The verifier names the sends that start before a release date, in a schedule made without release
    dates."""
    schedule = first_schedule(problem)
    verdict = taccl.verify(replace(schedule, problem=replace(problem, release_us=((0, 0, 5),))))
    assert {each.kind for each in verdict.violations} == {"release"}
    assert {each.chunk for each in verdict.violations} == {0}


@pytest.mark.slow
def test_a_sum_is_added_to_what_is_there(problem):
    """A contribution that reaches a rank before the release of the rank's own contribution is a violation."""
    sums = taccl.make_problem(problem.topology, "reduce", chunk_bytes=1_000_000, root=0, chunks_per_rank=1)
    schedule = first_schedule(sums)
    verdict = taccl.verify(replace(schedule, problem=replace(sums, release_us=((0, 0, 500),))))
    assert [each.rank for each in verdict.violations if each.kind == "release"] == [0, 0]
    result = taccl.synthesize(replace(sums, release_us=((0, 0, 500),)), backend="greedy")
    assert result.finish_us >= 500


@pytest.mark.slow
def test_what_comes_late_is_named_and_refused(problem):
    """A due date below one hop, 11 us, is a violation for the verifier, and infeasible for the search."""
    due = replace(problem, due_us=((0, 1, 10),))
    schedule = first_schedule(problem)
    assert [each.kind for each in taccl.verify(replace(schedule, problem=due)).violations] == ["due"]
    with pytest.raises(taccl.NoSolutionError, match="due"):
        taccl.synthesize(due, backend="greedy")
    assert taccl.synthesize(replace(problem, due_us=((0, 1, 11),)), backend="greedy").finish_us == 11


def derived_chunks(origins, first_needed):
    """A line of three, 2 us per hop: rank 1 derives chunk 1 from chunk 0; rank 2 needs it."""
    builder = TopologyBuilder("line", [0, 0, 0])
    for src, dst in ((0, 1), (1, 2)):
        builder.add_link(src, dst, alpha_us=1, beta_us_per_mb=1)
    chunks = (Chunk(origins, first_needed), Chunk((), (1, 2)))
    made = Collective("made", 3, chunks, derivations=(Derivation(0, 1, 1),))
    return taccl.make_problem(builder.build(), made, chunk_bytes=1_000_000)


def test_a_derived_chunk_is_available_no_earlier_than_its_source():
    """A derived chunk is available no earlier than its source.

    Rank 1 has chunk 0, and so the derived chunk, at 2 us: a due date of 1 us is violated.
    """
    problem = derived_chunks((0,), (1,))
    columns = {"chunk": [0, 1], "link": [0, 1], "start": [0, 2], "end": [2, 4]}
    for due_us, kinds in ((1, ["due"]), (2, [])):
        due = replace(problem, due_us=((1, 1, due_us),))
        found = taccl.verify(make_schedule(due, **columns))
        assert [each.kind for each in found.violations] == kinds


def test_a_derived_chunk_waits_for_the_release_of_its_source():
    """Rank 1 may send the derived chunk only after the release of chunk 0 at 100 us."""
    problem = replace(derived_chunks((1,), (1,)), release_us=((0, 1, 100),))
    for start, kinds in ((0, ["presence"]), (99, ["presence"]), (100, [])):
        schedule = make_schedule(problem, chunk=[1], link=[1], start=[start], end=[start + 2])
        assert [each.kind for each in taccl.verify(schedule).violations] == kinds
    assert first_schedule(problem).finish == 102


def test_chunks_that_need_no_send_do_not_bound_the_finish(problem):
    """The release date of a chunk that every destination already has does not bound the finish of 11 us."""
    both = collectives.custom(3, precondition={0: [0], 1: [1]}, postcondition={0: [1], 1: [1]})
    late = taccl.make_problem(problem.topology, both, chunk_bytes=1_000_000)
    late = replace(late, release_us=((1, 1, 100),))
    result = taccl.synthesize(late, backend="greedy")
    assert result.finish_us == result.bound_us == 11
    claimed = replace(result.bound, bound=Fraction(100), witness=Late(Fraction(100), None))
    assert not claimed.check()


@pytest.mark.slow
def test_due_times_order_sends():
    """The chunk with a due date goes first over a link that two chunks share."""
    line = topologies.ring(2, alpha_us=1, bandwidth_gb_per_s=100)
    both = collectives.custom(2, precondition={0: [0], 1: [0]}, postcondition={0: [1], 1: [1]})
    for urgent in (0, 1):
        problem = taccl.make_problem(line, both, chunk_bytes=1_000_000)
        result = taccl.synthesize(replace(problem, due_us=((urgent, 1, 11),)), backend="greedy")
        assert result.finish_us == 22


def test_sums_that_are_exchanged_wait_for_a_release():
    """An exchange of partial sums between two ranks waits for the release of rank 1's contribution at 5 us."""
    topology = topologies.fully_connected(2, alpha_us=1, bandwidth_gb_per_s=100)
    problem = taccl.make_problem(topology, "allreduce", chunk_bytes=1_000_000, chunks_per_rank=1)
    links = [topology.links_between(src, 1 - src)[0] for src in (0, 1)]
    columns = {"chunk": [0, 0, 1, 1], "link": links * 2, "start": [0, 0, 11, 11], "end": [11, 11, 22, 22]}
    exchanged = make_schedule(problem, **columns, reduce=[True] * 4)
    taccl.verify(exchanged).raise_if_failed()
    late = replace(problem, release_us=((0, 1, 5), (1, 1, 5)))
    timed = ReleaseDates.apply(late).invert(exchanged)
    taccl.verify(timed).raise_if_failed()
    assert timed.finish_us == 5 + 2 * 11


@pytest.mark.slow
def test_release_and_due_dates_are_kept_in_files(problem, tmp_path):
    """Release and due dates are stored in files and change the digest; problems without them keep theirs."""
    late = replace(problem, release_us=((0, 0, Fraction(1, 3)),), due_us=((1, 2, 50),))
    taccl.save(first_schedule(late), tmp_path / "late.json")
    assert taccl.load(tmp_path / "late.json").problem == late
    assert late.digest() != problem.digest()
    assert "release_us" not in problem.to_dict()
    assert late.without_dates().digest() == problem.digest()


@pytest.mark.parametrize(
    ("moments", "said"),
    [
        ({"release_us": ((9, 0, 1),)}, "chunk"),
        ({"release_us": ((0, 1, 1),)}, "origins"),
        ({"release_us": ((0, 0, -1),)}, "-1"),
        ({"due_us": ((0, 1, 1), (0, 1, 2))}, "twice"),
        ({"due_us": ((0, 1, "soon"),)}, "soon"),
    ],
)
def test_invalid_release_and_due_dates_are_refused(problem, moments, said):
    """Invalid release and due dates are refused in one sentence with chunk, rank and remedy."""
    with pytest.raises(taccl.CollectiveError, match=said):
        replace(problem, **moments)


def test_the_most_urgent_task_goes_first():
    """The task with the longer tail goes first if two tasks need the same resource.

    These two take 3 and 5 ticks, and a third task waits for the second.
    """
    tasks = Tasks()
    for duration in (3, 5):
        tasks.add(duration, resource=0)
    last = tasks.add(4)
    tasks.after[1].append((last, 5))
    assert tasks.tails() == [3, 9, 4]
    assert tasks.starts([(-tail,) for tail in tasks.tails()]) == [5, 0, 5]
    assert tasks.starts([(0,), (1,), (2,)]) == [0, 3, 8]


def test_tasks_that_wait_for_each_other_are_refused():
    """A cycle of precedences is refused, as its tasks could never start."""
    tasks = Tasks()
    tasks.after = [[(1, 0)], [(0, 0)]]
    tasks.duration, tasks.holds = [1, 1], [[], []]
    with pytest.raises(ValueError, match="wait for each other"):
        tasks.tails()


def test_resources_have_any_numbers():
    """Lanes of dimensions have numbers below 0; such a resource differs from those with other numbers."""
    tasks = Tasks()
    for resource in (-1, 1, -1, 0):
        tasks.add(5, resource)
    assert tasks.starts([(0,), (1,), (2,), (3,)]) == [0, 0, 5, 0]


def test_gaps_before_late_holds_are_filled():
    """A message that arrives after 10 us leaves its receiver's port to another one until then.

    A send holds its sender's port first. With gaps, the late one is sent first, although its hold at the
    receiver blocks that port afterwards.
    """
    ports = [[(0, 0, 1), (2, 10, 11)], [(1, 0, 1), (2, 1, 2)], [(0, 0, 1), (1, 1, 2)]]
    tasks = Tasks([11, 2, 2], ports, [[], [], []])
    assert tasks.starts([(0,), (1,), (2,)]) == [0, 10, 1]
    assert tasks.starts_in_gaps(urgency=[0, 1, 2]) == [0, 0, 1]
    assert tasks.starts_in_gaps([1, 0, 0]) == [1, 0, 0]


def test_tasks_in_stages_do_not_let_later_tasks_go_first():
    """A resource waits for the urgent task if stages order all tasks: 12 ticks, and 16 if a long one goes first."""
    tasks = Tasks()
    first, urgent, long, last = tasks.add(1, 0), tasks.add(1, 1), tasks.add(5, 1), tasks.add(10, 2)
    tasks.after[first].append((urgent, 1))
    tasks.after[urgent].append((last, 1))
    assert tasks.starts([(task,) for task in (first, urgent, long, last)]) == [0, 5, 0, 6]
    assert tasks.starts_in_gaps([first, urgent, long, last]) == [0, 1, 2, 2]


def test_paths_of_sums_stay_short_under_release_dates():
    """Rank 1 sends a sum to rank 0, and later gets it back from rank 2, over a third link.

    Rank 0's contribution is released at 9 us. Until then rank 1 holds the sum twice, so all sends start after
    that.
    """
    topology = linked("line", [0, 0, 0], [(2, 1, 0, 1), (1, 2, 0, 1), (1, 0, 0, 1)])
    problem = problem_of(topology, custom(3, [([0, 1, 2], [0])], combining=True), max_hops=2)
    dates = ReleaseDates.apply(replace(problem, release_us=((0, 0, 9),)))
    sums = [(2,), (1,), (1, 2), (1, 2)]
    found = exact_times(
        dates.part, chunk=[0] * 4, link=[0, 1, 2, 0], sequence=[0, 0, 1, 1], contributions=sums
    )
    timed = dates.invert(found)
    assert (found.finish, timed.finish) == (2, 11) and taccl.verify(timed).ok


def test_named_sums_over_links_of_several_sources_start_after_all_dates():
    """Ranks 1 and 2 send their sum over one link to rank 0, which has its contribution from 5 us on."""
    topology = linked("joined", [0, 0, 0], [((1, 2), 0, 0, 1), (0, 1, 0, 1)])
    problem = problem_of(topology, custom(3, [([0, 1, 2], [0])], combining=True))
    dates = ReleaseDates.apply(replace(problem, release_us=((0, 0, 5),)))
    found = make_schedule(dates.part, chunk=[0], link=[0], start=[0], contributions=[(1, 2)])
    timed = dates.invert(found)
    assert (found.finish, timed.finish) == (1, 6) and taccl.verify(timed).ok
