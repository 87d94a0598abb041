"""Schedules combined from others; each result is verified."""

import pytest

from taccl import collectives
from taccl.analysis.verification.verify import verify
from taccl.problem.making import make_problem
from taccl.problem.problem import Clauses
from taccl.schedule.combine import broadcast_phase, concatenate, prune, reduce_phase, reverse
from taccl.schedule.timing import exact_times
from taccl.synthesis.synthesize import synthesize
from taccl.topology.builder import TopologyBuilder
from tests.synthesis.small_problems import custom, linked, problem_of

MB = 10**6


def line(num_ranks):
    """Builder of a line of ranks: links r -> r + 1, then the links back, each of 2 us for 1 MB."""
    builder = TopologyBuilder("line", [0] * num_ranks)
    for r in range(num_ranks - 1):
        builder.add_link(r, r + 1, alpha_us=1, beta_us_per_mb=1)
    for r in range(num_ranks - 1):
        builder.add_link(r + 1, r, alpha_us=1, beta_us_per_mb=1)
    return builder


def test_reduce_phase_spreads_from_the_root_over_reversed_links():
    """A reduce to rank 2 becomes a broadcast from rank 2 over reversed links."""
    half = reduce_phase(problem_of(line(3).build(), collectives.reduce(3, root=2)))
    (chunk,) = half.collective.chunks
    assert (chunk.origins, chunk.destinations, chunk.root) == ((2,), (0, 1, 2), None)
    assert not half.collective.combining
    assert (half.topology.links[0].src, half.topology.links[0].dst) == (1, 0)


def test_reduce_phase_takes_the_clauses_for_reducing():
    """The reduce phase, reversed into a broadcast, turns limits on a chunk's root into limits on its origin.

    Link 0 may carry chunks to root 1 only, so the reversed link may carry chunks from origin 1 only.
    """
    problem = make_problem(
        line(3).build(),
        collectives.allreduce(3),
        chunk_bytes=MB,
        clauses=Clauses(carries_to={0: frozenset({1})}, carries_from={1: frozenset({2})}),
    )
    half = reduce_phase(problem)
    assert half.clauses.carries_from == {0: frozenset({1})}
    assert half.clauses.carries_to == {}


def test_parts_of_a_chunk_stay_one_object():
    """The phases of sums that are cut into parts have one chunk object per sum, which is read once."""
    problem = problem_of(line(3).build(), collectives.allreduce(3, chunks_per_rank=1).split(100))
    for half in (reduce_phase(problem), broadcast_phase(problem)):
        chunks = half.collective.chunks
        assert (len(chunks), len(set(map(id, chunks)))) == (300, 3)


def test_broadcast_phase_starts_at_the_roots():
    """In the broadcast phase chunk c of an allreduce starts at rank c."""
    half = broadcast_phase(problem_of(line(3).build(), collectives.allreduce(3)))
    assert [chunk.origins for chunk in half.collective.chunks] == [(0,), (1,), (2,)]
    assert all(chunk.destinations == (0, 1, 2) for chunk in half.collective.chunks)


def test_a_reversed_broadcast_is_a_reduction():
    """A broadcast over reversed links, reversed in time, is a reduction.

    0 -> 1 -> 2 becomes 2 -> 1 -> 0, which takes 4 us again.
    """
    problem = problem_of(line(3).build(), collectives.reduce(3))
    half = reduce_phase(problem)
    spread = exact_times(half, chunk=[0, 0], link=[2, 3], starts=[0, 2])
    reduction = reverse(spread, problem)
    assert verify(reduction).ok
    assert reduction.reduce.all()
    assert [(t.link, t.start_ticks) for t in reduction] == [(3, 0), (2, 2)]


def test_reversal_keeps_the_finish_of_an_asymmetric_machine():
    """Reversing a schedule twice restores its times, even if sends hold a port at the receiver's side."""
    builder = line(3)
    port = builder.add_resource("port")
    for link in (2, 3):
        builder.add_hold(link, port, alpha_us=0, beta_us_per_mb=1, side="receive")
    problem = problem_of(builder.build(), collectives.reduce_scatter(3))
    half = reduce_phase(problem)
    spread = synthesize(half, backend="greedy", time_limit_s=0.1).schedule
    reduction = reverse(prune(spread), problem)
    assert verify(reduction).ok
    assert reduction.finish_ticks <= spread.finish_ticks


def test_prune_drops_second_arrivals():
    """`prune` keeps only the first of two arrivals of a chunk at a rank.

    Chunk 0 reaches rank 2 over 0 -> 1 -> 2 at 4 us and over 0 -> 2 at 9 us: the later send is dropped.
    """
    topology = linked("two ways", [0] * 3, [(0, 1, 1, 1), (1, 2, 1, 1), (0, 2, 8, 1)])
    problem = problem_of(topology, collectives.broadcast(3))
    schedule = prune(exact_times(problem, chunk=[0, 0, 0], link=[0, 1, 2], starts=[0, 2, 0]))
    assert [t.link for t in schedule] == [0, 1]
    assert verify(schedule).ok


def test_prune_drops_what_no_destination_needs_and_closes_the_gap():
    """`prune` drops a send that no destination needs, and moves the next send over link 0 to time 0."""
    problem = problem_of(line(2).build(), custom(2, [([0], [0]), ([0], [1])]))
    schedule = prune(exact_times(problem, chunk=[0, 1], link=[0, 0], starts=[0, 2]))
    assert [(t.chunk, t.start_ticks) for t in schedule] == [(1, 0)]


def test_prune_keeps_the_relays_that_are_needed():
    """`prune` keeps the send to rank 1, which relays the chunk to rank 2."""
    problem = problem_of(line(3).build(), custom(3, [([0], [2])]))
    schedule = exact_times(problem, chunk=[0, 0], link=[0, 1], starts=[0, 2])
    assert prune(schedule) is schedule


def test_prune_leaves_reductions_alone():
    """`prune` returns a schedule with reductions unchanged."""
    problem = problem_of(line(2).build(), collectives.reduce(2))
    schedule = exact_times(problem, chunk=[0], link=[1], starts=[0], reduce=[True])
    assert prune(schedule) is schedule


def test_concatenated_halves_overlap_where_they_can():
    """The two phases of an allreduce of two chunks on two ranks follow each other on both links, 2 us each.

    Chunk 0 (root 0) is reduced over 1 -> 0 and copied over 0 -> 1; chunk 1 uses the opposite links.
    """
    problem = problem_of(line(2).build(), collectives.allreduce(2))
    reduction = exact_times(problem, chunk=[0, 1], link=[1, 0], starts=[0, 0], reduce=[True, True])
    spreading = exact_times(problem, chunk=[0, 1], link=[0, 1], starts=[8, 8], reduce=[False, False])
    both = concatenate([reduction, spreading], problem)
    assert verify(both).ok
    assert both.finish_ticks == 4


def test_concatenated_merged_sends_stay_apart():
    """If two schedules are concatenated, the second one's merged sends stay separate from the first one's."""
    problem = problem_of(line(2).build(), custom(2, [([0], [1])] * 4), merging=frozenset({0}), max_merge=2)
    parts = [
        exact_times(problem, chunk=chunks, link=[0, 0], starts=[0, 0], group=[0, 0])
        for chunks in ([0, 1], [2, 3])
    ]
    both = concatenate(parts, problem)
    assert both.num_sends == 2
    assert verify(both).ok


@pytest.mark.parametrize("name", ["scan"])
def test_prune_leaves_derived_chunks_alone(name):
    """Chunks that derive from one another are not pruned."""
    problem = problem_of(line(2).build(), collectives.make(name, 2))
    schedule = exact_times(problem, chunk=[0, 0], link=[0, 1], starts=[0, 2])
    assert prune(schedule) is schedule
