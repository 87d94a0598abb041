"""Chunks that start, are summed and end alike searched as one, where all may travel together."""

from __future__ import annotations

import numpy as np
import pytest

import taccl
from taccl.problem import Clauses
from taccl.synthesis.fused import fused, parted


def sums(topology, name, *, per_rank, size="16KB", clauses=None):
    made = taccl.collectives.make(name, topology.num_ranks, chunks_per_rank=per_rank)
    return taccl.make_problem(topology, made, size_bytes=taccl.units.parse_size(size), clauses=clauses)


def test_one_chunk_a_rank_is_left_alone():
    """There is nothing to fuse in one chunk a rank."""
    assert fused(sums(taccl.topologies.ring(4), "allreduce", per_rank=1)) is None


def test_chunks_that_may_not_all_merge_are_left_alone():
    """What would not fit in one send is not searched as one chunk."""
    ring = taccl.topologies.ring(4)
    some = Clauses(max_merge=6, merging=frozenset(range(len(ring.links))))
    assert fused(sums(ring, "allreduce", per_rank=4, clauses=some)) is None


@pytest.mark.parametrize("name", ["allreduce", "reduce_scatter", "reduce"])
def test_fused_chunks_hold_what_their_parts_do(name):
    """Every fused chunk has the ends and the bytes of its parts, each of which is in one of them."""
    problem = sums(taccl.topologies.ring(4), name, per_rank=4)
    whole, parts = fused(problem)
    assert sorted(c for each in parts for c in each) == list(range(problem.collective.num_chunks))
    assert sum(whole.chunk_bytes) == sum(problem.chunk_bytes)
    for chunk, each in zip(whole.collective.chunks, parts, strict=True):
        assert {problem.collective.chunks[c] for c in each} == {chunk}


@pytest.mark.parametrize("name", ["allreduce", "reduce_scatter", "reduce"])
def test_where_all_merges_parts_finish_when_the_whole_does(name):
    """A schedule in one chunk a rank is one of all chunks, at the same times up to what padding adds."""
    problem = sums(taccl.topologies.ring(4), name, per_rank=4, size="16000B")
    whole, parts = fused(problem)
    found = taccl.synthesize(whole, time_limit_s=1, threads=1, sketch="none").schedule
    schedule = parted(found, problem, parts)
    assert taccl.verify(schedule).ok
    assert schedule.num_transfers == 4 * found.num_transfers
    assert schedule.finish == found.finish


def test_where_some_may_not_merge_parts_go_one_after_another():
    """Over a link that merges nothing each part is a send of its own, and none ends later than the whole."""
    ring = taccl.topologies.ring(4)
    merging = frozenset(e for e, link in enumerate(ring.links) if link.srcs[0] % 2)
    problem = sums(ring, "allreduce", per_rank=4, clauses=Clauses(max_merge=16, merging=merging))
    whole, parts = fused(problem)
    found = taccl.synthesize(whole, time_limit_s=1, threads=1, sketch="none").schedule
    schedule = parted(found, problem, parts)
    assert taccl.verify(schedule).ok
    alone = ~np.isin(schedule.link, sorted(merging))
    assert len(set(schedule.group[alone].tolist())) == alone.sum() > 0
    assert schedule.finish <= found.finish


@pytest.mark.slow
def test_small_sums_in_many_chunks_finish_as_in_one():
    """Of 20 ranks with 16 chunks each no baseline competes, and no search merges as many chunks as one has."""
    topology = taccl.topologies.mesh(4, 5)
    finishes = [
        taccl.synthesize(sums(topology, "allreduce", per_rank=k), time_limit_s=3, threads=1).finish_us
        for k in (1, 16)
    ]
    assert finishes[1] <= 1.3 * finishes[0]


def test_large_chunks_are_not_searched_as_one():
    """Where latency is a small part of what a send takes, the chunks of one only wait for each other."""
    ring = taccl.topologies.ring(4)
    some = Clauses(max_merge=16, merging=frozenset(range(len(ring.links))))
    for size, is_searched in (("16KB", True), ("1GB", False)):
        problem = sums(ring, "allreduce", per_rank=4, size=size, clauses=some)
        found = taccl.synthesize(problem, time_limit_s=1, threads=1, sketch="none")
        assert ("in one chunk a rank" in [stage.name for stage in found.stages]) == is_searched
