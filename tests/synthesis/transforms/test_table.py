"""Every problem transform of the search, and the whole schedule made from that of an easier problem."""

from __future__ import annotations

from dataclasses import replace

import pytest

import taccl
from taccl.problem.chunks import Chunk
from taccl.problem.collective import Collective
from taccl.problem.problem import Problem
from taccl.synthesis.proposers.greedy import critical_priorities, expand, list_schedule
from taccl.synthesis.symmetry.quotient import take_quotient
from taccl.synthesis.symmetry.timing_group import timing_group
from taccl.synthesis.transforms.phases import join, split
from taccl.synthesis.transforms.requirements import OtherRoots, ReleaseDates, Transform
from taccl.synthesis.transforms.switches import PlainLinks
from taccl.topology.builder import TopologyBuilder

RING = taccl.topologies.ring(4, alpha_us=1, bandwidth_gb_per_s=100)


def of_ring(collective, **given):
    return taccl.make_problem(RING, collective, chunk_bytes=1_000_000, chunks_per_rank=1, **given)


#: {transform: a problem that it applies to}.
PROBLEMS = {
    ReleaseDates: lambda: replace(of_ring("allgather"), release_us=((0, 0, 5),)),
    PlainLinks: lambda: taccl.make_problem(
        taccl.topologies.in_network(4), "allreduce", chunk_bytes=1_000_000, chunks_per_rank=1
    ),
}


def scheduled(problem):
    """A schedule found by a search without in-network reduction."""
    return taccl.synthesize(problem, backend="greedy", in_network="off", time_limit_s=2).schedule


def in_phases(problem):
    """A schedule joined from those of the phases."""
    return join(problem, [scheduled(half.problem) for half in split(problem)])


def on_quotient(problem):
    """A list schedule of the quotient, expanded."""
    quotient = take_quotient(problem, timing_group(problem))
    found = list_schedule(quotient, critical_priorities(quotient))
    return expand(quotient, found.sends, producer="list scheduler")


def transformed_by(transform):
    """Function from a problem to the inverted schedule of its transform."""

    def inverted(problem):
        applied = transform.apply(problem)
        return applied.invert(scheduled(applied.part))

    return inverted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("problem", "found"),
    [
        *((make, transformed_by(transform)) for transform, make in PROBLEMS.items()),
        (lambda: of_ring("allreduce"), in_phases),
        (lambda: of_ring("allgather"), on_quotient),
    ],
    ids=["dates", "plain links", "phases", "quotient"],
)
def test_inverted_schedules_are_schedules_of_the_problem(problem, found):
    """The schedule of an easier problem gives a schedule of the problem that the verifier accepts."""
    whole = found(given := problem())
    assert whole.problem == given
    assert taccl.verify(whole).ok


def test_every_transform_is_tried_here():
    """Every transform is above, or is `OtherRoots`, which `test_other_roots_keep_the_sketch` tests."""
    assert {*Transform.__subclasses__()} == {*PROBLEMS, OtherRoots}


@pytest.mark.parametrize("transform", PROBLEMS)
def test_a_transform_that_does_not_apply_is_none(transform):
    """No transform applies to a broadcast on a ring: no dates and no switches that add."""
    assert transform.apply(of_ring("broadcast")) is None


def test_other_roots_keep_the_sketch():
    """With links 0 -> 2, 1 -> 2 and 2 -> 3, the sum is formed at rank 2 instead of root 0, same sketch."""
    builder = TopologyBuilder("one-way", [0] * 4)
    for src, dst in ((0, 2), (1, 2), (2, 3)):
        builder.add_link(src, dst, alpha_us=1, beta_us_per_mb=10)
    collective = Collective("sums", 4, (Chunk((0, 1), (2, 3), 0),), combining=True)
    problem = Problem(builder.build(), collective, (1_000_000,))
    applied = OtherRoots.apply(problem)
    rooted = applied.part
    assert [chunk.root for chunk in rooted.collective.chunks] == [2]
    whole = applied.invert(scheduled(rooted))
    assert whole.problem == problem and taccl.verify(whole).ok
