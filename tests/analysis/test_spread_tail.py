"""The spread-tail bound: what enters a node last must still spread to its ranks; derived by hand, and tried."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest

from taccl import collectives
from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.certificates.certificate import Certificate
from taccl.analysis.certificates.needed_sends import NeededSends
from taccl.analysis.certificates.spread_tail import spread_tail_bounds
from taccl.analysis.certificates.witnesses import SpreadTail
from taccl.topology.topology import TopologyBuilder
from tests.fuzzing import cases, some
from tests.synthesis.brute_force import TooLarge, optimal_ticks
from tests.synthesis.small_problems import custom, full, problem_of, two_levels

if TYPE_CHECKING:
    from taccl.problem import Problem

MB = 10**6


def tails(problem: Problem, *, in_network: bool = False) -> list[Fraction]:
    """What the bound says, in microseconds, of each set and least number of ranks."""
    found = spread_tail_bounds(NeededSends(problem), in_network=in_network)
    return [Fraction(ticks, problem.costs.ticks_per_us) for ticks, _, _ in found]


@pytest.mark.parametrize(
    ("per_node", "local", "nic", "expected"),
    [
        (4, 2, 3, 16),  # 4 chunks over the NIC, 12 us; the last one doubles twice, 2 us each
        (8, 1, 4, 35),  # 8 chunks, 32 us, and three times 1 us
    ],
)
def test_the_last_chunk_doubles_inside(per_node: int, local: int, nic: int, expected: int) -> None:
    """An allgather on two nodes: however it enters, a rank that has it sends it to one other at a time."""
    bound = lower_bound(
        problem_of(two_levels(per_node, local=local, nic=nic), collectives.allgather(2 * per_node))
    )
    assert (bound.bound, bound.kind) == (expected, "spread tail")
    assert bound.check()
    assert not replace(bound, bound=bound.bound + 1).check()


def test_what_others_add_to_a_sum_spreads_like_a_chunk() -> None:
    """An allreduce of 8 sums: 24 us over the NIC, and twice 2 us for what the other node added to the last."""
    problem = problem_of(two_levels(4, local=2, nic=3), collectives.allreduce(8))
    assert tails(problem) == [28]


def test_switches_that_reduce_have_none() -> None:
    """They may multicast what they added up."""
    problem = problem_of(two_levels(4, local=2, nic=3), collectives.allreduce(8))
    assert tails(problem, in_network=True) == []


def test_only_those_that_want_a_chunk_must_get_it() -> None:
    """4 chunks for two ranks of the node each: the last is in at 12 us, and 2 us later at the other."""
    problem = problem_of(two_levels(4, local=2, nic=3), custom(8, [([4 + i], [0, 1]) for i in range(4)]))
    assert tails(problem) == [14]


def test_chunks_that_fewer_want_count_by_themselves() -> None:
    """Two chunks for four ranks: 6 us, and twice 2 us; with two more for one rank, the last enters at 12 us."""
    chunks = [([4], [0, 1, 2, 3]), ([5], [0, 1, 2, 3]), ([6], [0]), ([7], [1])]
    problem = problem_of(two_levels(4, local=2, nic=3), custom(8, chunks))  # type: ignore[arg-type]
    assert tails(problem) == [10, 12]


def test_a_rank_that_is_hard_to_reach_is_waited_for() -> None:
    """A chunk is in after 1 us; whoever sends it to rank 2 takes 10 us."""
    builder = TopologyBuilder("slow rank", [0, 0, 0, 1])
    for a, b, beta in ((3, 0, 1), (0, 1, 1), (1, 0, 1), (0, 2, 10), (1, 2, 10)):
        builder.add_link(a, b, alpha_us=0, beta_us_per_mb=beta)
    assert tails(problem_of(builder.build(), custom(4, [([3], [0, 1, 2])]))) == [11]


def test_merged_chunks_enter_together() -> None:
    """4 chunks over a NIC of 1 us each after 4 us: the third and the fourth come at 7 us, or later.

    A rank passes one on in 2 us, and the NIC may bring one more every 1 us: ends at 7, 8, 9, 9, 10, 10, 11, 11.
    """
    topology = two_levels(4, local=2, nic=1, alpha=4)
    merging = frozenset(topology.internode_links)
    problem = problem_of(topology, custom(8, [([4], [0, 1, 2, 3])] * 4), max_merge=4, merging=merging)
    assert tails(problem) == [11]


def test_sends_that_merge_inside_have_none() -> None:
    """A rank could then pass on many chunks at once."""
    topology = two_levels(4, local=2, nic=3)
    merging = frozenset(range(len(topology.links)))
    assert tails(problem_of(topology, collectives.allgather(8), max_merge=2, merging=merging)) == []


@pytest.mark.parametrize(
    "problem",
    [
        problem_of(full(4), collectives.allgather(4)),
        problem_of(two_levels(2, local=1, nic=2), collectives.scan(4)),
        problem_of(two_levels(2, local=1, nic=2), collectives.allgather(4), chunk_bytes=(MB, MB, MB, 2 * MB)),
        problem_of(two_levels(1, local=1, nic=2), collectives.allgather(2)),
    ],
    ids=["one node", "made of others", "two sizes", "nodes of one rank"],
)
def test_where_the_argument_does_not_hold_nothing_is_claimed(problem: Problem) -> None:
    """Rather than too much."""
    assert tails(problem) == []


def test_it_waits_for_what_comes_from_afar() -> None:
    """A broadcast to a second node 3 us from the first rank that can send there: 2 + 3 us, and twice 2 us."""
    topology = two_levels(4, local=2, nic=3)
    only = [e for e, link in enumerate(topology.links) if topology.is_internode(e) and link.src != 1]
    allowed = frozenset(range(len(topology.links))) - frozenset(only)
    problem = problem_of(topology, collectives.broadcast(8), links_allowed=allowed)
    assert tails(problem) == [9]


def test_the_certificate_says_what_it_is() -> None:
    """In words, and as plain values."""
    problem = problem_of(two_levels(4, local=2, nic=3), collectives.allgather(8))
    bound = Certificate(problem, Fraction(1), "spread tail", "that", SpreadTail(frozenset(range(4)), 4, 1))
    assert bound.witness_text == "the last 1 chunk to enter ranks 0-3, which must then spread there"
    assert bound.to_dict()["witness"] == {
        "kind": "spread tail",
        "ranks": [0, 1, 2, 3],
        "least": 4,
        "last": 1,
    }


@pytest.mark.parametrize(
    "witness",
    [
        SpreadTail(frozenset(range(8)), 4, 1),
        SpreadTail(frozenset(), 1, 1),
        SpreadTail(frozenset(range(4)), 5, 1),
        SpreadTail(frozenset(range(4)), 4, 5),
        SpreadTail(frozenset(range(4)), 4, 0),
        SpreadTail(frozenset(range(4)), 4, -1),
        SpreadTail(frozenset((0, 99)), 4, 1),
        SpreadTail(frozenset((0, 1)), 2, 1),
    ],
    ids=str,
)
def test_other_ranks_and_numbers_prove_less(witness: SpreadTail) -> None:
    """Ranks that lack nothing, chunks that nobody wants, and ranks that are not there prove nothing at all."""
    bound = lower_bound(problem_of(two_levels(4, local=2, nic=3), collectives.allgather(8)))
    assert isinstance(bound.witness, SpreadTail)
    assert not replace(bound, witness=witness).check()


def random_two_levels(seed: int) -> Problem:
    """Two nodes of two ranks with ports and NICs of random costs, and some chunks that cross."""
    rng = random.Random(f"two levels {seed}")
    topology = two_levels(
        2,
        local=rng.choice((1, 1, 2, 3)),
        nic=rng.choice((1, 2, 3)),
        alpha=rng.choice((0, 0, 1)),
        meaning=rng.choice(("occupies", "pipelined")),
    )
    clauses: dict[str, object] = {}
    if rng.random() < 0.2:
        clauses = {"max_merge": 2, "merging": frozenset(topology.internode_links)}
    if rng.random() < 0.3:
        return problem_of(topology, collectives.allreduce(4), **clauses)
    wanted = [[0], [1], [0, 1], [0, 1], [0, 1, 3], [0, 1, 2, 3]]
    chunks = [([rng.choice((2, 3))], rng.choice(wanted)) for _ in range(rng.randint(1, 3))]
    return problem_of(topology, custom(4, chunks), **clauses)


@pytest.mark.slow
@pytest.mark.fuzz
def test_no_spread_tail_is_above_the_optimum() -> None:
    """On two nodes of two ranks: it holds, is proven, and one tick above the optimum is never."""
    compared = 0
    for seed in cases("spread tails against the optimum", few=12, many=600):
        problem = random_two_levels(seed)
        found = list(spread_tail_bounds(NeededSends(problem), in_network=False))
        base = lower_bound(problem)
        for ticks, limits, witness in found:
            bound = Fraction(ticks, problem.costs.ticks_per_us)
            claim = replace(base, bound=bound, kind="spread tail", limits=limits, witness=witness)
            assert claim.check(), seed
        try:
            optimum = optimal_ticks(problem, max_states=400)
        except TooLarge:
            continue
        compared += 1
        assert max((ticks for ticks, _, _ in found), default=0) <= optimum, seed
        above = Fraction(optimum + 1, problem.costs.ticks_per_us)
        for _, _, witness in found:
            for least in range(4):
                for last in range(6):
                    other = replace(witness, least=least, last=last)
                    assert not replace(base, bound=above, witness=other).check(), seed
    assert compared > some(4, 20)
