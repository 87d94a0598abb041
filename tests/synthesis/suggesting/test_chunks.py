"""How many chunks the data is cut into where a problem leaves it open, and where it does not."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

import taccl
from taccl.errors import CollectiveError
from taccl.problem import Clauses, make_problem
from taccl.synthesis.suggesting.chunks import merged

#: No test waits for so long: what is tried takes moments, and no count hangs on the clock.
_AMPLE_S = 3600.0


def _problem(collective="broadcast", size=10**9, **options):
    """On a ring of four with a latency of 1 us a hop, where large data is passed on in pieces."""
    ring = taccl.topologies.ring(4, alpha_us=1, bandwidth_gb_per_s=100)
    return taccl.make_problem(ring, collective, size_bytes=size, **options)


def test_a_name_and_a_size_leave_the_number_open():
    """Whoever gives no more than these has not said how the data is cut."""
    assert _problem().chunks_open
    assert _problem().collective.chunks_per_rank == 1


@pytest.mark.parametrize("options", [{"chunks_per_rank": 1}, {"chunks_per_rank": 4}])
def test_a_number_that_is_given_holds(options):
    """One chunk a rank is a number as well."""
    problem = _problem(**options)
    assert not problem.chunks_open
    assert problem.collective.chunks_per_rank == options["chunks_per_rank"]


def test_a_collective_keeps_its_own_number():
    """It was made with a number, whether that was named or not."""
    assert not _problem(taccl.collectives.broadcast(4)).chunks_open
    with pytest.raises(CollectiveError, match="made already"):
        _problem(taccl.collectives.broadcast(4), chunks_per_rank=2)


def test_a_chunk_size_is_a_cut():
    """The size of the whole follows from it."""
    ring = taccl.topologies.ring(4)
    assert not taccl.make_problem(ring, "allgather", chunk_bytes=1000).chunks_open


def test_a_sketch_leaves_it_open_unless_it_says_it():
    """``per_rank`` in a sketch is a number that is given."""
    ring = taccl.topologies.ring(4)
    said = taccl.Sketch.from_dict({"schema": 1, "chunks": {"per_rank": 1}})
    assert taccl.Sketch().apply(ring, "allgather", size="1MB").chunks_open
    assert not said.apply(ring, "allgather", size="1MB").chunks_open
    assert not taccl.Sketch().apply(ring, "allgather", size="1MB", chunks_per_rank=2).chunks_open


@pytest.mark.slow
def test_large_data_is_cut_into_more_chunks_than_small_data():
    """Pieces of 1 GB overlap on their ways around the ring; of 1 KB each would pay the latency once more.

    Two chunks of the latter go both ways around: each over two links of 1.005 us.
    """
    large = taccl.choose_chunks(_problem(), time_limit_s=_AMPLE_S)
    small = taccl.choose_chunks(_problem(size=1000), time_limit_s=_AMPLE_S)
    assert large.collective.chunks_per_rank == 16
    assert small.collective.chunks_per_rank == 2
    assert not large.chunks_open
    assert not small.chunks_open


def test_no_chunk_is_less_than_a_byte():
    """2 B are cut into two chunks at most."""
    ring = taccl.topologies.ring(4, alpha_us=0, bandwidth_gb_per_s=100)
    problem = taccl.make_problem(ring, "broadcast", size_bytes=2)
    assert taccl.choose_chunks(problem, time_limit_s=_AMPLE_S).collective.chunks_per_rank == 2


def test_what_is_cut_already_stays_as_it_is():
    """A problem whose number is given is returned itself."""
    problem = _problem(chunks_per_rank=2)
    assert taccl.choose_chunks(problem) is problem


@pytest.mark.slow
def test_synthesis_chooses_and_says_so():
    """The result is of more chunks, finishes before any schedule of one, and a note names their number."""
    result = taccl.synthesize(_problem(), time_limit_s=5)
    count = result.schedule.problem.collective.chunks_per_rank
    assert count > 1
    assert any(f"cut into {count} chunks a rank" in note for note in result.notes)
    assert taccl.verify(result.schedule).ok
    assert result.finish_us < taccl.lower_bound(_problem(chunks_per_rank=1)).bound_us


def test_a_named_solver_takes_one_chunk_a_rank():
    """Its models grow with every chunk."""
    result = taccl.synthesize(_problem(size=1000), backend="highs", time_limit_s=5)
    assert result.schedule.problem.collective.chunks_per_rank == 1


def test_a_proposal_brings_its_number_of_chunks():
    """What was suggested for a size searches the problem of that size."""
    problem = _problem("allgather")
    proposal = taccl.suggest_sketches(problem.topology, "allgather", problem.size_bytes, most=1)[0]
    result = taccl.synthesize(problem, sketch=proposal, time_limit_s=2)
    assert result.schedule.problem.collective == proposal.problem.collective


@pytest.mark.slow
def test_the_bound_of_an_open_problem_holds_for_every_number():
    """It is that of divisible data, which no number of chunks beats."""
    bound = taccl.lower_bound(_problem())
    assert bound.divisible
    for count in (1, 2, 4, 8):
        assert bound.bound <= taccl.baselines.best(_problem(chunks_per_rank=count)).finish


@pytest.mark.slow
def test_clauses_of_a_sketch_hold_for_every_number():
    """Links that the sketch takes away stay away; what merges by default is worked out anew."""
    machine = taccl.topologies.ndv2(nodes=2)
    sketch = taccl.Sketch.from_dict({"schema": 1, "internode": {"connections": {"0": [1]}}})
    problem = sketch.apply(machine, "allgather", size="1MB")
    chosen = taccl.choose_chunks(problem, time_limit_s=_AMPLE_S)
    assert chosen.clauses == problem.clauses


@pytest.mark.slow
def test_a_large_machine_is_cut_as_on_the_command_line():
    """The 16 ranks of two DGX-H100 pass 1 GB on in pieces: 1875 us is the bound, and one piece takes 2222."""
    machine = taccl.topologies.dgx_h100(nodes=2, profile="nominal")
    problem = taccl.Sketch().apply(machine, "allgather", size="1GB")
    assert taccl.choose_chunks(problem).collective.chunks_per_rank > 1


@pytest.mark.slow
def test_the_number_of_chunks_does_not_hang_on_the_time():
    """1 GB on four nodes of 8 takes several chunks a rank, whether there are five seconds to look or a minute."""
    topology = taccl.topologies.dgx_h100(4)
    problem = taccl.make_problem(topology, "allgather", size_bytes=10**9)
    found = {
        taccl.choose_chunks(problem, time_limit_s=limit_s).collective.chunks_per_rank for limit_s in (5, 60)
    }
    assert len(found) == 1
    assert found != {1}


@pytest.mark.slow
def test_a_ring_competes_with_chunks():
    """Four racks behind a narrow core: a list scheduler is sooner with many chunks, and a ring than either."""
    topology = taccl.topologies.in_network(8, racks=4, core_oversubscription=4)
    pairs = frozenset(i for i, link in enumerate(topology.links) if len(link.srcs) + len(link.dsts) == 2)
    problem = taccl.make_problem(topology, "allreduce", size_bytes=10**8).with_clauses(links_allowed=pairs)
    assert problem.chunks_open
    chosen = taccl.choose_chunks(problem, time_limit_s=20)
    assert chosen.collective.chunks_per_rank == 1


@pytest.mark.parametrize(
    ("collective", "most_us"),
    [("allgather", Fraction("1.33")), ("allreduce", 2), ("alltoall", Fraction("1.47"))],
)
def test_small_chunks_merge_in_a_node_where_that_is_sooner(collective, most_us):
    """Of 16 KB on a DGX-2 every send holds a port 0.3 us for its latency, and one chunk 0.008 us: four steps."""
    problem = make_problem(taccl.topologies.dgx2(), collective, size_bytes=16_000)
    result = taccl.synthesize(problem, time_limit_s=3)
    found = result.schedule.problem
    assert result.finish_us <= most_us
    assert found.clauses.merging == frozenset(range(len(problem.topology.links)))
    if collective != "allreduce":  # which merges by default
        assert any("chunks merge into one send on 240 links" in note for note in result.notes)
    apart = make_problem(taccl.topologies.dgx2(), collective, size_bytes=16_000, chunks_per_rank=1)
    assert taccl.choose_chunks(apart) == apart


def test_large_chunks_do_not_merge_in_a_node():
    """What takes longer than its latency gains little by waiting for others."""
    problem = make_problem(taccl.topologies.dgx2(), "allgather", size_bytes=16_000_000)
    assert merged(replace(problem, chunks_open=False)) is None


def test_clauses_of_a_sketch_say_what_merges():
    """Nothing merges that a sketch does not let merge."""
    problem = make_problem(taccl.topologies.dgx2(), "allgather", size_bytes=16_000, clauses=Clauses())
    assert taccl.choose_chunks(problem).clauses == Clauses()
