"""Searches with equal chunks (origins, root, destinations, bytes) fused into one.

This requires that one send may merge all chunks.
"""

from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import taccl
from taccl.problem.problem import Clauses
from taccl.schedule.timing import exact_times
from taccl.synthesis.transforms.exchange import exchanged
from taccl.synthesis.transforms.fused import fused, parted
from tests.effort import BRIEF, brief_synthesis
from tests.fuzzing import cases, some
from tests.synthesis.small_problems import custom


def sums(topology, name, *, per_rank, size="16KB", clauses=None):
    made = taccl.collectives.make(name, topology.num_ranks, chunks_per_rank=per_rank)
    return taccl.make_problem(
        topology, made, size_bytes=taccl._internal.units.parse_size(size), clauses=clauses
    )


def test_one_chunk_a_rank_is_left_alone():
    """A problem of one chunk per rank has nothing to fuse."""
    assert fused(sums(taccl.topologies.ring(4), "allreduce", per_rank=1)) is None


def test_chunks_that_may_not_all_merge_are_left_alone():
    """Chunks that exceed the limit of one merged send are not fused."""
    ring = taccl.topologies.ring(4)
    some = Clauses(max_merge=6, merging=frozenset(range(len(ring.links))))
    assert fused(sums(ring, "allreduce", per_rank=4, clauses=some)) is None


@pytest.mark.parametrize("name", ["allreduce", "reduce_scatter", "reduce"])
def test_fused_chunks_hold_what_their_parts_do(name):
    """A fused chunk has the ranks of its parts and their total bytes; each chunk is in one fused chunk."""
    problem = sums(taccl.topologies.ring(4), name, per_rank=4)
    whole, parts = fused(problem)
    assert sorted(c for each in parts for c in each) == list(range(problem.collective.num_chunks))
    assert sum(whole.chunk_bytes) == sum(problem.chunk_bytes)
    for chunk, each in zip(whole.collective.chunks, parts, strict=True):
        assert {problem.collective.chunks[c] for c in each} == {chunk}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["allreduce", "reduce_scatter", "reduce"])
def test_where_all_merges_parts_finish_when_the_whole_does(name):
    """If all links merge, the parts can be sent at the times of the fused chunks, up to padding."""
    problem = sums(taccl.topologies.ring(4), name, per_rank=4, size="16000B")
    whole, parts = fused(problem)
    found = brief_synthesis(whole, threads=1, sketch="none").schedule
    schedule = parted(found, problem, parts)
    assert taccl.verify(schedule).ok
    assert schedule.num_transfers == 4 * found.num_transfers
    assert schedule.finish == found.finish


@pytest.mark.slow
def test_where_some_may_not_merge_parts_go_one_after_another():
    """On links that do not merge every part is a separate send; the finish is no later than with fused chunks."""
    ring = taccl.topologies.ring(4)
    merging = frozenset(e for e, link in enumerate(ring.links) if link.srcs[0] % 2)
    problem = sums(ring, "allreduce", per_rank=4, clauses=Clauses(max_merge=16, merging=merging))
    whole, parts = fused(problem)
    for seed in range(some(5, 21)):
        found = brief_synthesis(whole, threads=1, seed=seed, sketch="none").schedule
        schedule = parted(found, problem, parts)
        taccl.verify(schedule).raise_if_failed()
        alone = ~np.isin(schedule.link, sorted(merging))
        assert len(set(schedule.group[alone].tolist())) == alone.sum() > 0
        assert schedule.finish <= found.finish, seed


def exchanged_on_a_ring(merging):
    """(schedule of a sum as one chunk, problem with that sum in four chunks, {(src, dst): link}).

    On a ring of four ranks, ranks 0 and 3 exchange partial sums at the same time. Sends may merge on the
    links that leave ranks in `merging`.
    """
    ring, everyone = taccl.topologies.ring(4), range(4)
    link = {(each.src, each.dst): e for e, each in enumerate(ring.links)}
    merges = frozenset(e for (src, _), e in link.items() if src in merging)
    parts = [(everyone, everyone)] * 4
    made = replace(custom(4, parts, combining=True), chunks_per_rank=4)
    problem = taccl.make_problem(ring, made, chunk_bytes=1000, clauses=Clauses(max_merge=4, merging=merges))
    whole, _ = fused(problem)
    sends = [(2, 3, True), (1, 0, True), (3, 0, True), (0, 3, True), (0, 1, False), (3, 2, False)]
    first = whole.costs.duration(link[2, 3], whole.costs.chunk_units[0])
    schedule = exact_times(
        whole, chunk=[0] * 6, link=[link[a, b] for a, b, _ in sends], reduce=[added for _, _, added in sends],
        starts=[0, 0, first, first, 3 * first, 3 * first], producer="by hand",
    )  # fmt: skip
    taccl.verify(schedule).raise_if_failed()
    return schedule, problem, link


def test_sums_exchanged_over_a_link_that_merges_and_one_that_does_not():
    """If only one direction of an exchange can merge sends, the four chunks are sent in sequence both ways.

    A merged send 3 -> 0 would deadlock: it waits for the last chunk from 0 -> 3, whose first chunk waits for
    the merged send. The link 1 -> 0, which takes no part in the exchange, sends its four chunks merged.
    """
    whole, problem, link = exchanged_on_a_ring(merging=(1, 3))
    schedule = parted(whole, problem, [range(4)])
    taccl.verify(schedule).raise_if_failed()
    assert schedule.finish < whole.finish
    groups = {e: len(set(schedule.group[schedule.link == e].tolist())) for e in link.values()}
    assert groups[link[3, 0]] == groups[link[0, 3]] == 4
    assert groups[link[1, 0]] == 1


def test_sums_exchanged_over_links_that_merge_stay_merged():
    """If both directions of an exchange merge, the four chunks of each direction are one send."""
    whole, problem, link = exchanged_on_a_ring(merging=(0, 1, 3))
    schedule = parted(whole, problem, [range(4)])
    taccl.verify(schedule).raise_if_failed()
    assert schedule.finish == whole.finish
    assert len(set(schedule.group[schedule.link == link[3, 0]].tolist())) == 1


@pytest.mark.fuzz
def test_parts_of_random_sums_are_verified():
    """Fused schedules of random sums on rings, meshes and full graphs, split into parts, verify."""
    some_parted = 0
    for seed in cases("sums of fused chunks in parts", few=5, many=600):
        rng = np.random.default_rng(seed)
        build, most = [(taccl.topologies.ring, 7), (partial(taccl.topologies.mesh, 2), 4),
                       (taccl.topologies.fully_connected, 5)][rng.integers(3)]  # fmt: skip
        topology = build(int(rng.integers(3, most)))
        merging = frozenset(np.flatnonzero(rng.random(len(topology.links)) < 0.5).tolist())
        name, per_rank = rng.choice(["allreduce", "allreduce", "reduce"]), int(rng.integers(2, 5))
        problem = sums(
            topology, name, per_rank=per_rank, size=f"{rng.choice([2, 16, 160])}KB",
            clauses=Clauses(max_merge=64, merging=merging),
        )  # fmt: skip
        whole, parts = fused(problem)
        found = brief_synthesis(whole, backend="greedy", threads=1, seed=seed, sketch="none")
        every = [found.schedule]
        with suppress(ValueError):
            every.append(exchanged(found.schedule))
        for each in filter(None, every):
            taccl.verify(parted(each, problem, parts)).raise_if_failed()
            some_parted += 1
    assert some_parted


@pytest.mark.slow
def test_small_sums_in_many_chunks_finish_as_in_one():
    """Without baselines, sums in 16 chunks on each of 9 ranks finish within 1.3 times those in one chunk.

    Sums in 16 chunks take 4.36 us without the search in fused chunks.
    """
    alone = replace(BRIEF, portfolio=replace(BRIEF.portfolio, baseline_arrivals=500, first_transfers=0))
    topology = taccl.topologies.mesh(3, 3)
    finishes = [
        brief_synthesis(sums(topology, "allreduce", per_rank=k), threads=1, parameters=alone).finish_us
        for k in (1, 16)
    ]
    assert finishes[1] <= 1.3 * finishes[0]


@pytest.mark.slow
def test_large_chunks_are_not_searched_as_one():
    """Large chunks (1 GB) are not fused, as latency is a small part of a send."""
    ring = taccl.topologies.ring(4)
    some = Clauses(max_merge=16, merging=frozenset(range(len(ring.links))))
    for size, is_searched in (("16KB", True), ("1GB", False)):
        problem = sums(ring, "allreduce", per_rank=4, size=size, clauses=some)
        found = brief_synthesis(problem, threads=1, sketch="none")
        assert ("single-chunk reduction" in [stage.name for stage in found.stages]) == is_searched
