"""The verifier of compact schedules: faults found whether it keeps all pairs of chunk and rank, or few."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import taccl
from taccl import collectives
from taccl.analysis.verification.arrival_table import ArrivalTable
from taccl.analysis.verification.columns import Columns, pairs
from taccl.analysis.verification.verify import verify
from taccl.problem import make_problem
from taccl.schedule.compact import CompactSchedule
from taccl.synthesis.large import schedule_large

#: Ticks of a send of a chunk of 1 MB over a link of 50 GB/s: 0.5 us and 20 us, in halves of a microsecond.
SEND = 41


def ring_exchange(num_ranks):
    """Every rank's chunk for its neighbour, sent at once over a ring of one direction's links.

    A chunk is at two ranks at most: of many ranks, few of all pairs of chunk and rank are kept.
    """
    conditions = {r: [r] for r in range(num_ranks)}, {r: [(r + 1) % num_ranks] for r in range(num_ranks)}
    collective = collectives.custom(num_ranks, precondition=conditions[0], postcondition=conditions[1])
    problem = make_problem(taccl.topologies.ring(num_ranks), collective, chunk_bytes=10**6)
    links = {(e.src, e.dst): i for i, e in enumerate(problem.topology.links)}
    link = [links[r, (r + 1) % num_ranks] for r in range(num_ranks)]
    return (
        problem,
        np.arange(num_ranks, dtype=np.int32),
        np.array(link, np.int32),
        np.zeros(num_ranks, np.int32),
    )


#: Of 3 ranks 9 pairs are all kept; of 20 only the 40 that a chunk starts or ends at, of 400.
SIZES = pytest.mark.parametrize(("num_ranks", "num_kept"), [(3, 0), (20, 40)])


@SIZES
def test_few_pairs_are_kept_by_key(num_ranks, num_kept):
    """As many keys as chunks start and are sent to; none where all pairs have a place."""
    problem, chunk, link, start = ring_exchange(num_ranks)
    places = ArrivalTable(Columns(CompactSchedule(problem, chunk, link, start)), [], 0)
    assert len(places.keys) == num_kept


@SIZES
def test_a_valid_schedule_passes(num_ranks, num_kept):
    """All sends at once, each over a link of its own."""
    del num_kept
    problem, chunk, link, start = ring_exchange(num_ranks)
    found = verify(CompactSchedule(problem, chunk, link, start))
    assert found.ok
    assert found.finish_us == SEND / 2


@SIZES
def test_a_chunk_that_is_not_there_is_found(num_ranks, num_kept):
    """The last chunk is also sent on to rank 1, one tick before it is at rank 0."""
    del num_kept
    problem, chunk, link, start = ring_exchange(num_ranks)
    columns = np.append(chunk, chunk[-1]), np.append(link, link[0]), np.append(start, np.int32(SEND - 1))
    found = verify(CompactSchedule(problem, *columns)).violations
    assert {fault.kind for fault in found} == {"presence", "contention"}  # nor is its link free by then
    later = np.append(start, np.int32(SEND))
    assert verify(CompactSchedule(problem, *columns[:2], later)).ok


@SIZES
def test_a_chunk_from_where_it_never_is_is_found(num_ranks, num_kept):
    """Chunk 0 leaves rank 2, where nothing brings it."""
    del num_kept
    problem, chunk, link, start = ring_exchange(num_ranks)
    columns = np.append(chunk, np.int32(0)), np.append(link, link[2]), np.append(start, np.int32(SEND))
    (fault,) = verify(CompactSchedule(problem, *columns)).violations
    assert fault.kind == "presence"


@SIZES
def test_a_chunk_that_never_arrives_is_found(num_ranks, num_kept):
    """The last send is left out."""
    del num_kept
    problem, chunk, link, start = ring_exchange(num_ranks)
    (fault,) = verify(CompactSchedule(problem, chunk[:-1], link[:-1], start[:-1])).violations
    assert fault.kind == "postcondition"
    assert (fault.chunk, fault.rank) == (num_ranks - 1, 0)


def test_a_link_that_does_not_exist_is_found():
    """Without it no send has an end, so that there is no finish."""
    problem, chunk, link, start = ring_exchange(3)
    found = verify(CompactSchedule(problem, chunk, link + 4, start))
    assert "index" in {fault.kind for fault in found.violations}
    assert np.isnan(found.finish_us)


def test_pairs_number_chunks_from_the_first():
    """Chunk 5 at ranks 1 and 2, chunk 6 at none, chunk 7 at rank 0."""
    chunk, rank = pairs([(1, 2), (), (0,)], first=5)
    assert chunk.tolist() == [5, 5, 7]
    assert rank.tolist() == [1, 2, 0]


@pytest.mark.slow
def test_links_of_several_ends_that_carry_nothing_are_no_hindrance():
    """A switch that adds is left alone: the sends are judged, as their list is."""
    topology = taccl.topologies.dgx_h100(1, nvls=True)
    pairs = frozenset(i for i, link in enumerate(topology.links) if len(link.srcs) + len(link.dsts) == 2)
    problem = make_problem(topology, collectives.allgather(8), chunk_bytes=10**6)
    schedule = schedule_large(problem.with_clauses(links_allowed=pairs))
    assert taccl.verify(schedule).ok and taccl.verify(schedule.expand()).ok
    early = replace(schedule, start=np.zeros_like(schedule.start))
    assert not taccl.verify(early).ok
