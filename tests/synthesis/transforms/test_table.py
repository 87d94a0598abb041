"""Every problem transform of the search: its parts, and the whole schedule made from theirs."""

from __future__ import annotations

from dataclasses import replace

import pytest

import taccl
from taccl.problem.chunks import Chunk
from taccl.problem.collective import Collective
from taccl.problem.problem import Problem
from taccl.synthesis.proposers.greedy import critical_priorities, list_schedule
from taccl.synthesis.transforms.fused import SingleChunk
from taccl.synthesis.transforms.halves import Phases, SeparateContributions
from taccl.synthesis.transforms.requirements import OtherRoots, ReleaseDates
from taccl.synthesis.transforms.switches import PlainLinks
from taccl.synthesis.transforms.symmetry import Symmetry
from taccl.synthesis.transforms.transform import Transform
from taccl.topology.builder import TopologyBuilder

RING = taccl.topologies.ring(4, alpha_us=1, bandwidth_gb_per_s=100)


def of_ring(collective, **given):
    return taccl.make_problem(RING, collective, chunk_bytes=1_000_000, chunks_per_rank=1, **given)


def merging_sums():
    """Two chunks per rank that may all merge."""
    problem = taccl.make_problem(RING, "allreduce", chunk_bytes=1_000, chunks_per_rank=2)
    most = problem.collective.num_chunks
    return problem.with_clauses(merging=frozenset(range(len(RING.links))), max_merge=most)


#: {transform: a problem that it applies to}.
PROBLEMS = {
    ReleaseDates: lambda: replace(of_ring("allgather"), release_us=((0, 0, 5),)),
    PlainLinks: lambda: taccl.make_problem(
        taccl.topologies.in_network(4), "allreduce", chunk_bytes=1_000_000, chunks_per_rank=1
    ),
    SingleChunk: merging_sums,
    Phases: lambda: of_ring("allreduce"),
    SeparateContributions: lambda: of_ring("allreduce"),
    Symmetry: lambda: of_ring("allgather"),
}


def scheduled(part):
    """A schedule of a part: by the list scheduler for a quotient, else by a search."""
    if hasattr(part, "hops"):
        return list_schedule(part, critical_priorities(part))
    return taccl.synthesize(part, backend="greedy", in_network="off", time_limit_s=2).schedule


@pytest.mark.slow
@pytest.mark.parametrize("transform", PROBLEMS, ids=lambda each: each.name)
def test_inverted_schedules_are_schedules_of_the_problem(transform):
    """Schedules of the parts give a schedule of the problem that the verifier accepts."""
    problem = PROBLEMS[transform]()
    applied = transform.apply(problem)
    whole = applied.invert([scheduled(part) for part in applied.parts])
    assert whole.problem == problem
    assert taccl.verify(whole).ok


def test_every_transform_is_tried_here():
    """Every transform is above, or is `OtherRoots`, which `test_other_roots_keep_the_sketch` tests."""
    assert {*Transform.__subclasses__()} == {*PROBLEMS, OtherRoots}


@pytest.mark.parametrize("transform", [each for each in PROBLEMS if each is not Symmetry])
def test_a_transform_that_does_not_apply_is_none(transform):
    """No transform applies to a broadcast on a ring: no dates, switches, merging or sums."""
    assert transform.apply(of_ring("broadcast")) is None


def test_other_roots_keep_the_sketch():
    """With links 0 -> 2, 1 -> 2 and 2 -> 3, the sum is formed at rank 2 instead of root 0, same sketch."""
    builder = TopologyBuilder("one-way", [0] * 4)
    for src, dst in ((0, 2), (1, 2), (2, 3)):
        builder.add_link(src, dst, alpha_us=1, beta_us_per_mb=10)
    collective = Collective("sums", 4, (Chunk((0, 1), (2, 3), 0),), combining=True)
    problem = Problem(builder.build(), collective, (1_000_000,))
    applied = OtherRoots.apply(problem)
    (rooted,) = applied.parts
    assert [chunk.root for chunk in rooted.collective.chunks] == [2]
    whole = applied.invert([scheduled(rooted)])
    assert whole.problem == problem and taccl.verify(whole).ok
