"""Dissemination bounds: merged sends carry no more than their senders hold; values by hand and random tests."""

import random
from dataclasses import replace
from fractions import Fraction
from functools import partial

import pytest

import taccl
from taccl import collectives
from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.certificates.first_arrivals import (
    Dissemination,
    byte_dissemination_bounds,
    dissemination_bounds,
)
from taccl.synthesis.synthesize import synthesize
from tests.analysis.claims import certificates_of, raised
from tests.fuzzing import MANY, cases, some
from tests.synthesis.brute_force import optimal_ticks
from tests.synthesis.small_problems import joined, merged, problem_of

#: Certificates of the claims about ranks and about nodes.
certificates = partial(certificates_of, dissemination_bounds, in_network=False)
#: Certificates of the claims over all chunkings.
of_bytes = partial(certificates_of, byte_dissemination_bounds, in_network=False, divisible=True)


def claims(problem):
    """Claims about ranks and about nodes, in microseconds."""
    return [each.bound for each in certificates(problem)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["allgather", "reduce_scatter"])
def test_what_ranks_have_doubles(name):
    """The number of ranks whose data a rank can have doubles with every send.

    A send takes 1 us, and 1 us more for each chunk. After 1 + 1 us a rank can have the data of two of the
    four ranks. After 1 + 2 us more it can have that of all four.
    """
    problem = merged(joined([0] * 4), name, 4)
    assert claims(problem) == [5]
    bound = lower_bound(problem)
    assert (bound.bound, bound.kind) == (5, "dissemination")
    assert bound.check()
    assert not raised(bound).check()
    assert synthesize(problem).schedule.finish == 5


def test_sends_of_one_chunk_come_one_by_one():
    """If sends merge up to two chunks, four more chunks arrive in 7 us; without merging there is no claim.

    The first send brings one chunk in 2 us, the second two in 3 us, and the third the last one in 2 us.
    """
    assert claims(merged(joined([0] * 5), "allgather", 2)) == [7]
    assert claims(merged(joined([0] * 5), "allgather", 1)) == []


def test_what_other_nodes_have_comes_late():
    """Three chunks of another node, 20 us away, arrive after 23 us at the earliest.

    The ranks of that node share two chunks after 2 us and all three after 4 us. One send of all three would
    arrive at 4 + 20 + 3 us; three sends through a port arrive at 21, 22 and 23 us.
    """
    problem = merged(joined([0, 0, 0, 1, 1, 1], far=20), "allgather", 3)
    assert max(claims(problem)) == 23


def test_the_certificate_states_its_claim():
    """The certificate describes its witness in words and as plain values."""
    bound = lower_bound(merged(joined([0] * 4), "allgather", 4))
    assert bound.witness_text == "dissemination: ranks 0, anywhere (4), inside (4)"
    ticks = {"anywhere": [0, 0, 2, 4], "inside": [0, 2, 4, 5]}
    assert bound.to_dict()["witness"] == {"kind": "dissemination", "ranks": [0], **ticks}


@pytest.mark.parametrize("field", ["anywhere", "inside"])
@pytest.mark.parametrize("i", range(4))
def test_a_time_raised_by_a_tick_is_refused(field, i):
    """A time raised by one tick is refused: each time is the least possible, given the others."""
    bound = lower_bound(merged(joined([0] * 4), "allgather", 4))
    assert isinstance(bound.witness, Dissemination)
    times = list(getattr(bound.witness, field))
    times[i] += 1
    later = replace(bound, witness=replace(bound.witness, **{field: tuple(times)}))
    assert not later.check()
    assert not raised(later).check()


@pytest.mark.parametrize("field", ["anywhere", "inside"])
def test_a_missing_time_is_refused(field):
    """A witness without one of its times is refused."""
    bound = lower_bound(merged(joined([0] * 4), "allgather", 4))
    assert isinstance(bound.witness, Dissemination)
    fewer = replace(bound.witness, **{field: getattr(bound.witness, field)[:-1]})
    assert not replace(bound, witness=fewer).check()


@pytest.mark.parametrize("ranks", [(), (0, 1, 2, 3), (9,)])
def test_other_ranks_prove_nothing(ranks):
    """A witness for no ranks, for all ranks or for an unknown rank is refused."""
    bound = lower_bound(merged(joined([0] * 4), "allgather", 4))
    assert isinstance(bound.witness, Dissemination)
    assert not replace(bound, witness=replace(bound.witness, ranks=frozenset(ranks))).check()


def random_merged(seed):
    """A random problem on two to four ranks in up to two nodes, some of whose links merge."""
    rng = random.Random(f"dissemination {seed}")
    nodes = rng.choice(([0, 0, 0], [0, 0, 0, 0], [0, 0, 1], [0, 0, 1, 1], [0, 1, 1]))
    topology = joined(
        nodes,
        alpha=rng.choice((1, 2)),
        beta=rng.choice((1, 1, 2)),
        far=rng.choice((1, 2, 3)),
        shared=rng.random() < 0.5,
    )
    name = rng.choice(("allgather", "allgather", "alltoall", "gather", "reduce_scatter"))
    collective = collectives.make(name, len(nodes))
    merging = frozenset(e for e in range(len(topology.links)) if rng.random() < 0.8)
    return problem_of(topology, collective, max_merge=rng.choice((2, 3, 4)), merging=merging)


@pytest.mark.fuzz
def test_no_dissemination_is_above_the_optimum():
    """Each dissemination claim is at most the optimum and is proven; one tick above the optimum is never
    proven."""
    compared = 0
    for seed in cases("dissemination against the optimum", few=12, many=500):
        problem = random_merged(seed)
        found, base = certificates(problem), lower_bound(problem)
        assert all(each.check() for each in found), seed
        known = int(base.bound * problem.costs.ticks_per_us) - 2
        optimum = optimal_ticks(problem, least=known, max_states=4000 if MANY else 1000)
        if optimum is None:
            continue
        compared += 1
        least = Fraction(optimum, problem.costs.ticks_per_us)
        for each in found:
            assert each.bound <= least and not raised(replace(each, bound=least)).check(), seed
    assert compared > some(2, 20)


@pytest.mark.parametrize("name", ["allgather", "reduce_scatter", "gather", "scatter"])
@pytest.mark.parametrize(("kilobytes", "expected_us"), [(64, 1.68), (256, 3.12), (1000, 8.7)])
def test_doubling_is_optimal_over_all_chunkings_at_one_port(name, kilobytes, expected_us):
    """On a DGX-2, where a send of any size holds a port for 0.3 us, no chunks finish before four sends in a
    row and the time of 15/16 of all bytes."""
    problem = taccl.make_problem(taccl.topologies.dgx2(1), name, size_bytes=kilobytes * 1000)
    bound = lower_bound(problem, divisible=True)
    assert (bound.bound_us, bound.kind) == (pytest.approx(expected_us), "dissemination")
    assert bound.check() and not raised(bound).check()


@pytest.mark.fuzz
def test_no_dissemination_of_bytes_is_above_the_optimum():
    """A claim over all chunkings holds for every number of chunks: on tiny problems no schedule finishes
    earlier, whole chunks or cut in two."""
    compared = claimed = 0
    for seed in cases("dissemination of bytes against the optimum", few=12, many=800):
        rng = random.Random(f"bytes {seed}")
        nodes = rng.choice(([0, 0, 0], [0, 0, 0, 0], [0, 0, 1], [0, 0, 1, 1]))
        costs = {"alpha": rng.choice((1, 2, 3)), "beta": rng.choice((1, 2)), "far": rng.choice((1, 3))}
        topology = joined(nodes, **costs, shared=rng.random() < 0.3)
        names = "allgather", "allgather", "alltoall", "gather", "scatter", "reduce_scatter", "broadcast"
        collective = collectives.make(rng.choice(names), len(nodes), chunks_per_rank=rng.choice((1, 1, 2)))
        every = frozenset(range(len(topology.links)))
        problem = problem_of(topology, collective, max_merge=collective.num_chunks, merging=every)
        found = of_bytes(problem)
        assert all(each.check() for each in found), seed
        optimum = optimal_ticks(problem, max_states=4000 if MANY else 1000)
        if optimum is None:
            continue
        compared += 1
        least = Fraction(optimum, problem.costs.ticks_per_us)
        claimed += any(each.bound == least for each in found)
        for each in found:
            assert each.bound <= least and not raised(replace(each, bound=least)).check(), seed
    assert compared > some(1, 20) and claimed
