"""Byte-counting bounds (each rank needs its bytes in sends that pay alpha): values by hand, and random tests."""

import contextlib
import math
import random
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from functools import partial

import pytest

import taccl
from taccl import collectives
from taccl.analysis.certificates import pair_counting
from taccl.analysis.certificates.byte_counting import (
    ByteCounting,
    Port,
    byte_counting_bounds,
    copies_served,
    first_served,
    sums_served,
)
from taccl.analysis.certificates.evaluation import arrivals
from taccl.analysis.certificates.pair_counting import windows_of
from taccl.analysis.certificates.scopes import bound_over_all_chunkings, gap_text
from taccl.analysis.certificates.transformed import merging_freely
from taccl.synthesis.synthesize import synthesize
from tests.analysis.claims import certificates_of, is_unbeaten, raised
from tests.fuzzing import cases, some
from tests.synthesis.small_problems import joined, linked

#: Certificates of the claims for ranks and for nodes, over all chunkings.
certificates = partial(certificates_of, byte_counting_bounds, divisible=True, in_network=False)


def test_four_merged_sends_bring_data_of_fifteen_ranks():
    """Four merged sends may deliver the data of 1, 2, 4 and 8 ranks.

    On a DGX-2 their alphas take 1.2 us, and 15 KB take 0.12 us more.
    """
    problem = merging_freely(taccl.make_problem(taccl.topologies.dgx2(), "reduce-scatter", size_bytes=16_000))
    assert max(each.bound for each in certificates(problem)) == Fraction(132, 100)


def test_holds_at_starts_and_ends_of_sends_leave_no_gap():
    """Sends over one link hold a resource at their start, and over another at their end: 1 MB each in 20 us."""
    builder = taccl.topologies.TopologyBuilder("mixed", [0, 0, 0], alpha_meaning="pipelined")
    shared = builder.add_resource("shared")
    for src, side in ((0, "send"), (1, "receive")):
        link = builder.add_link(src, 2, alpha_us=10, beta_us_per_mb=10)
        builder.add_hold(link, shared, alpha_us=0, beta_us_per_mb=10, side=side)
    gather = collectives.custom(3, precondition={0: [0], 1: [1]}, postcondition={0: [2], 1: [2]})
    problem = taccl.make_problem(builder.build(), gather, chunk_bytes=1_000_000)
    assert synthesize(problem, backend="greedy").schedule.finish == 20
    found = list(certificates(problem))
    assert found and all(each.bound <= 20 and each.check() for each in found)
    assert not any(replace(each, bound=Fraction(30)).check() for each in found)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["allgather", "reduce-scatter", "alltoall"])
def test_a_met_bound_reads_proven_best(name):
    """Two rounds over links of 0.5 us and 1 us/MB: recursive multiplying meets the bound exactly."""
    problem = taccl.make_problem(taccl.topologies.parse("fully-connected:4"), name, size_bytes=16_000)
    finish = taccl.baselines.baseline("multiplying", problem).finish
    bound = taccl.lower_bound(problem)
    every = bound_over_all_chunkings(bound)
    assert every is not None and every.kind == "byte counting" and every.check()
    assert every.bound == finish
    assert gap_text(bound, finish, every) == "0.00% (proven best)"


def _random_ports(rng):
    return Counter(
        Port(
            rng.choice((0, 1, 3, 5)),
            rng.choice((0, 1, 2, 7)),
            rng.randint(1, 9),
            rng.choice((0, 0, 2)),
            rng.choice((0, 0, 4)),
        )
        for _ in range(rng.randint(1, 3))
    )


@pytest.mark.fuzz
def test_the_least_time_is_exact():
    """The computed least time is exact: just before it, too few (byte, rank) pairs can be served; just after
    it, enough."""
    for seed in cases("least times of byte counting", few=100, many=2_000):
        rng = random.Random(f"least time {seed}")
        ports, needed = _random_ports(rng), rng.randint(1, 60)
        steps = [sorted(rng.sample(range(12), 2)) for _ in range(2)]
        collected, spread = ([(0, 1), (some[0], 2), (some[1], 3)] for some in steps)
        scale = math.lcm(*(port.beta for port in ports if port.beta))
        served = sums_served(ports, windows_of(collected, spread), scale)
        if seed % 2:
            served = copies_served(ports, collected, spread, needed, scale)

        def enough(ticks, served=served, least=needed * scale):
            return sum(gain * min(each(ticks) for each in some) for gain, some in served) >= least

        found = first_served(served, needed * scale)
        little = Fraction(1, 10**9)
        assert enough(found + little) and not enough(found - little), seed


@pytest.mark.slow
def test_sums_that_all_need_take_the_bytes_of_every_send():
    """A sum of 16 KB over 16 ranks takes at least four sends, of 1, 2, 4 and 8 contributions.

    The four take 1.2 us and move 64 KB; five sends would move no fewer bytes. Within 1.5 us no fifth send
    fits, and 64 KB take 0.512 us besides four alphas.
    """
    problem = taccl.make_problem(taccl.topologies.dgx2(), "allreduce", size_bytes=16_000)
    best = max(each.bound for each in certificates(problem))
    assert Fraction(3, 2) < best < synthesize(problem, backend="greedy", time_limit_s=0.2).schedule.finish


def test_data_that_enters_a_node_last_has_no_time_to_spread():
    """A byte that enters a node of two in the last 2 us reaches one rank, so it enters twice or arrives
    earlier.

    Sends between nodes take 3 us and 4 us/MB. 1 MB must reach both ranks, which are 2 us apart.
    """
    topology = joined([0, 1, 1], alpha=2, beta=4, far=3, shared=True)
    problem = taccl.make_problem(
        topology, "broadcast", size_bytes="1MB", clauses=taccl.problem.problem.Clauses()
    )
    node = next(each for each in certificates(problem) if each.witness.ranks == {1, 2})
    # With a finish of T, bytes enter the node for x = T - 3 us, at 4 us/MB.
    # Bytes that enter until 2 us before the finish reach both ranks, later bytes reach one.
    # Both ranks need 2 * 4 us of bytes, so x + (x - 2) = 8, x = 5 and T = 8.
    assert node.bound == 8


@pytest.mark.parametrize("name", ["broadcast", "reduce"])
def test_data_that_leaves_the_root_late_reaches_one_rank(name):
    """A byte that leaves the root in the last 1 us reaches one rank, so it leaves once for each rank, or earlier.

    Every port passes 1 MB in 1 us, and sends take 1 us longer. 3 MB must reach four ranks.
    """
    topology = joined([0, 1, 2, 3, 4], alpha=1, beta=1, far=1, shared=True)
    problem = taccl.make_problem(topology, name, root=3, size_bytes="3MB")
    best = max(certificates(merging_freely(problem)), key=lambda each: each.bound)
    # With a finish of T, T - 1 MB leave the root, T - 2 MB of them early enough for all four ranks.
    # T - 1 + 3 (T - 2) = 4 * 3 gives T = 19 / 4.
    assert best.bound == Fraction(19, 4) and best.witness.ranks == {0, 1, 2, 4}
    assert best.check() and not raised(best).check()


def test_data_enters_a_set_once_it_can_be_at_its_border():
    """Sends of 3 MB from the only neighbour of a rank start after the 2 us in which any data reach it."""
    line = linked("line", [0, 0, 0], [(0, 1), (1, 2)], alpha_us=2, beta_us_per_mb=1)
    problem = taccl.make_problem(line, "broadcast", size_bytes="3MB")
    bounds = {each.witness.ranks: each for each in certificates(merging_freely(problem))}
    assert bounds[frozenset({2})].bound == 2 + 2 + 3
    assert all(each.check() and not raised(each).check() for each in bounds.values())


@pytest.mark.parametrize("topology", [taccl.topologies.torus(4, 4), taccl.topologies.mi300x()])
def test_a_scatter_is_bounded_as_a_gather_in_reversed_time(topology):
    """Data that leave a root take as long as data that enter it, with the latency of every send."""
    bounds = []
    for name in ("gather", "scatter"):
        problem = taccl.make_problem(topology, name, size_bytes=4_000_000)
        bounds.append(taccl.lower_bound(problem, divisible=True))
    gather, scatter = bounds
    assert scatter.bound == gather.bound and scatter.check() and not raised(scatter).check()
    assert "data out of rank 0" in scatter.limits
    assert not replace(scatter, witness=replace(scatter.witness, backwards=False)).check()


def test_the_certificate_proves_no_more():
    """The witness proves no larger bound, and a witness without resources proves nothing."""
    problem = merging_freely(taccl.make_problem(taccl.topologies.dgx2(), "reduce-scatter", size_bytes=16_000))
    bound = certificates(problem)[0]
    assert bound.check() and bound.kind == "byte counting"
    assert not raised(bound).check()
    assert not replace(bound, witness=ByteCounting(bound.witness.ranks, ())).check()
    assert not replace(bound, divisible=False).check()


def quick(problem):
    """The finish of the fastest of some baselines."""
    found = []
    for name in ("pairwise", "multiplying", "one-shot", "tree", "ring"):
        with contextlib.suppress(taccl.InputError):
            found.append(taccl.baselines.baseline(name, problem, cut=False).finish)
    return min(found)


def random_bytes(seed):
    """A random collective of up to four ranks, in one and in two chunks per rank; sends may merge or not."""
    rng = random.Random(f"bytes {seed}")
    nodes = rng.choice([[0, 0], [0, 0, 0], [0, 0, 1], [0, 1, 1], [0, 1, 2], [0, 0, 1, 1], [0, 0, 0, 0]])
    far = rng.choice((1, 2, 3))
    topology = joined(
        nodes, alpha=rng.choice((0, 1, 2)), beta=rng.choice((1, 2)), far=far, shared=rng.random() < 0.5
    )
    name = rng.choice(
        ["allgather", "allreduce", "reduce_scatter", "broadcast", "gather", "scatter", "alltoall"]
    )
    is_free = rng.random() < 0.7
    links, most = frozenset(e for e in range(len(topology.links)) if rng.random() < 0.5), rng.choice((1, 2))
    found = []
    for parts in (1, 2):
        collective = getattr(collectives, name)(len(nodes), chunks_per_rank=parts)
        problem = taccl.make_problem(topology, collective, chunk_bytes=2 // parts * 1_000_000)
        limited = problem.with_clauses(merging=links, max_merge=most * parts)
        found.append(merging_freely(problem) if is_free else limited)
    return found


def limit_distances(patch):
    """Use distances between nodes as if all problems had many ranks."""
    patch.setattr(pair_counting, "_MOST_RANKS", 0)
    patch.setattr(arrivals, "_MOST_STARTS", 0)


def test_distances_between_nodes_limit_where_data_is(monkeypatch):
    """Bytes that leave the root's node less than 3 us before the end reach one node of two ranks, others two.

    With a finish of T, T - 3 MB leave at 1 us/MB, and T - 6 MB of them early. 4 MB must reach four ranks:
    2 (T - 3) + 2 (T - 6) = 4 * 4 gives T = 17 / 2.
    """
    topology = joined([0, 1, 1, 2, 2], alpha=0, beta=1, far=3, shared=True)
    problem = merging_freely(taccl.make_problem(topology, "broadcast", size_bytes="4MB"))
    for _ in range(2):
        best = max(certificates(problem), key=lambda each: each.bound)
        assert best.bound == Fraction(17, 2)
        assert best.check() and not raised(best).check()
        limit_distances(monkeypatch)


@pytest.mark.fuzz
def test_no_schedule_in_any_chunks_beats_the_bytes(monkeypatch):
    """The largest claim over all chunkings holds for each chunking: exhaustive search finds no schedule of
    tiny problems that beats it."""
    decided = 0
    for seed in cases("byte counting, over all schedules", few=2, many=400):
        problems = random_bytes(seed)
        with monkeypatch.context() as patch:
            if seed % 2:
                limit_distances(patch)
            found = [each for problem in problems for each in certificates(problem)]
            assert all(each.check() for each in found), seed
        best = max((each.bound for each in found), default=Fraction(0))
        for problem in problems:
            assert best <= quick(problem), seed
            decided += is_unbeaten(problem, best, max_states=1_500)
    assert decided >= some(1, 40)
