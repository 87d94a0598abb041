"""The delayed-source bound: who holds nothing at first can only send later; derived by hand, and by brute force.

The default run takes some dozens of problems; with TACCL_MANY=1 in the environment it takes thousands.
"""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taccl import collectives
from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.certificates.certificate import Certificate
from taccl.analysis.certificates.delayed_source import delayed_source_bounds
from taccl.analysis.certificates.needed_sends import NeededSends
from taccl.analysis.certificates.readings import as_spreading
from taccl.analysis.certificates.witnesses import DelayedSource
from taccl.errors import InputError
from taccl.problem import Clauses, Problem, make_problem
from taccl.sketch.reachability import check_reachable
from taccl.topology.machines import dgx_h100
from taccl.topology.topology import TopologyBuilder
from tests.fuzzing import fuzzed
from tests.synthesis.brute_force import TooLarge, optimal_ticks
from tests.synthesis.small_problems import MB, custom, full, problem_of, random_problem, ring, two_levels

#: What a chunk of 1 MB holds a port of NVSwitch for; a NIC it holds for 20 us.
PORT_US = Fraction(20, 9)


def h100(name: str, *, nodes: int = 4, chunks: int = 16, **clauses: object) -> Problem:
    """Chunks of 1 MB on DGX-H100; no sends merge unless the clauses say so."""
    topology = dgx_h100(nodes, profile="nominal")
    made = collectives.make(name, topology.num_ranks, chunks_per_rank=chunks)
    return make_problem(topology, made, chunk_bytes=MB, clauses=Clauses(**clauses))  # type: ignore[arg-type]


def claims(problem: Problem, *, in_network: bool = False) -> list[tuple[int, DelayedSource]]:
    """(ticks, witness) of every claim."""
    found = delayed_source_bounds(NeededSends(as_spreading(problem)), in_network=in_network)
    return [(ticks, witness) for ticks, _, witness in found]


def best_us(problem: Problem, *, in_network: bool = False) -> Fraction:
    """The best claim; 0 without one."""
    ticks = max((ticks for ticks, _ in claims(problem, in_network=in_network)), default=0)
    return Fraction(ticks, problem.costs.ticks_per_us)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["broadcast", "reduce"])
def test_three_nodes_wait_for_the_first(name: str) -> None:
    """16 chunks enter each of 3 nodes, 48 entries over 24 NICs, of 20 us each: not 40 us but 60, and then more.

    Until 20 us only the 8 NICs of the root's node have anything to send, and each starts one send. What starts
    later ends by 40 us, one for each of 24 NICs, or not before 60. So until then 32 are in, and 16 are missing:
    some node lacks 6. Of these a rank's own NIC brings one at 60 us, its port the other 5. (A reduce is the
    same read backwards.)
    """
    assert best_us(h100(name)) == 60 + 5 * PORT_US
    bound = lower_bound(h100(name))
    assert (bound.bound, bound.kind) == (60 + 5 * PORT_US, "delayed source")


def test_few_chunks_spread_in_rounds() -> None:
    """4 chunks for 3 nodes are 12 entries: 8 can be in at 20 us, so that some node lacks 2 until 40, one port more."""
    assert best_us(h100("broadcast", chunks=4)) == 40 + PORT_US


def test_where_little_time_is_left_for_what_comes_by_other_ranks() -> None:
    """Each rank gets 16 chunks of the other node, over a NIC of its own and a port that brings them later.

    A NIC brings a chunk at 11 us and then one each us; by the other rank's NIC and then a port, which takes 6 us,
    they come from 17 us on. By T there are (T - 10) + (T - 16) of them: 16 at 21 us.
    """
    builder = TopologyBuilder("late ports", [0, 0, 1, 1], alpha_meaning="pipelined")
    for a, b in ((0, 1), (2, 3), (0, 2), (1, 3)):
        for src, dst in ((a, b), (b, a)):
            builder.add_link(src, dst, alpha_us=5 if b == a + 1 else 10, beta_us_per_mb=1)
    problem = problem_of(builder.build(), collectives.allgather(4, chunks_per_rank=8))
    assert best_us(problem) == 21
    assert lower_bound(problem).bound == 21 and lower_bound(problem).check()


@pytest.mark.slow
def test_merged_chunks_enter_no_sooner() -> None:
    """Sends that start before 20 us may carry more, but hold the NIC they enter by for it: still 32 before 60 us.

    But three chunks may come to a rank at 60 us over its own NIC, if merging them is of any use: here there is a
    latency, of one tick, that they share. Of 16 missing, 3 * 3 do, and of the 7 others some node has 3.
    """
    problem, tick = h100("broadcast"), Fraction(1, 9)
    merging = frozenset(problem.topology.internode_links)
    topology = problem.topology
    links = tuple(
        replace(link, alpha_us=tick) if e in merging else link for e, link in enumerate(topology.links)
    )
    holds = tuple(replace(hold, alpha_us=tick) if hold.link in merging else hold for hold in topology.holds)
    late = replace(problem, topology=replace(topology, links=links, holds=holds))
    merged = late.with_clauses(max_merge=6, merging=merging)
    assert best_us(late) == 60 + 3 * tick + 5 * PORT_US
    assert best_us(merged) == 60 + tick + 3 * PORT_US
    assert lower_bound(merged).check()


def test_merging_without_latency_gains_nothing() -> None:
    """What n chunks take together they take one after another: the bound is that of sends of one chunk each."""
    merging = frozenset(dgx_h100(4, profile="nominal").internode_links)
    problem = h100("broadcast", max_merge=6, merging=merging)
    assert best_us(problem) == best_us(h100("broadcast")) == 60 + 5 * PORT_US
    certificate = lower_bound(problem)
    assert certificate.check()
    tick = Fraction(1, problem.costs.ticks_per_us)
    assert not replace(certificate, bound=certificate.bound + tick).check()


@pytest.mark.parametrize(("ranks", "rounds"), [(2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4)])
def test_a_chunk_doubles_in_each_round(ranks: int, rounds: int) -> None:
    """Every rank sends to one other at a time, 1 us: 1, 2, 4, 8 ranks have it."""
    assert best_us(problem_of(full(ranks, port=True), collectives.broadcast(ranks))) == rounds


@pytest.mark.parametrize(("per_node", "tail_us"), [(1, 0), (2, 1), (4, 2), (8, 3)])
@pytest.mark.parametrize(("num_nodes", "chunks", "entered_us"), [(3, 1, 8), (5, 1, 12), (5, 2, 16)])
def test_what_enters_last_must_still_spread(
    num_nodes: int, chunks: int, entered_us: int, per_node: int, tail_us: int
) -> None:
    """Nodes double every 4 us, over a NIC each; then the last node's 1, 2, 4, 8 ranks have the chunk, 1 us each time."""
    topology = two_levels(per_node, local=1, nic=4, num_nodes=num_nodes)
    several = collectives.broadcast(topology.num_ranks, chunks_per_rank=chunks)
    assert best_us(problem_of(topology, several)) == entered_us + tail_us


def test_a_merged_send_brings_each_chunk_once() -> None:
    """However many chunks a send may carry, the one that is missing comes to one rank by it."""
    topology = two_levels(4, local=1, nic=4, num_nodes=3)
    merging = Clauses(max_merge=6, merging=frozenset(topology.internode_links))
    problem = replace(problem_of(topology, collectives.broadcast(12)), clauses=merging)
    assert best_us(problem) == best_us(problem_of(topology, collectives.broadcast(12)))


def test_a_sum_reaches_as_late_as_a_chunk() -> None:
    """What one rank contributes to a sum that all need must reach all, as a chunk that it holds alone."""
    summed = problem_of(full(8, port=True), custom(8, [(range(8), range(8))], combining=True))
    assert best_us(summed) == best_us(problem_of(full(8, port=True), collectives.broadcast(8))) == 3
    assert best_us(summed, in_network=True) == 0


def test_several_origins_start_together() -> None:
    """Two of 8 ranks have the chunk: 2, 4, 8 have it after 2 us."""
    assert best_us(problem_of(full(8, port=True), custom(8, [((0, 1), range(8))]))) == 2


def test_who_has_it_need_not_wait() -> None:
    """A destination that is an origin is no late starter: only rank 2 is."""
    problem = problem_of(full(3, port=True), custom(3, [((0, 1), (1, 2))]))
    ((ticks, witness),) = claims(problem)
    assert (ticks, witness.sets, witness.targets) == (1, (frozenset({2}),), (2,))


def _multicast() -> Problem:
    builder = TopologyBuilder("multicast", [0] * 3)
    builder.add_link(0, (1, 2), alpha_us=0, beta_us_per_mb=1)
    return problem_of(builder.build(), collectives.broadcast(3))


def _sizes() -> Problem:
    return problem_of(ring(4), custom(4, [((0,), (1, 2, 3))] * 2), chunk_bytes=(MB, 2 * MB))


@pytest.mark.parametrize(
    "problem",
    [
        problem_of(ring(4), collectives.allgather(4)),
        problem_of(ring(4), collectives.scan(4)),
        _multicast(),
        _sizes(),
    ],
    ids=["all hold something", "derived", "links of several ends", "several sizes"],
)
def test_what_is_not_covered_is_not_claimed(problem: Problem) -> None:
    """No rank is late, chunks are made on the way, a send reaches several ranks, or chunks differ in size."""
    assert claims(problem) == []


@pytest.mark.slow
def test_the_certificate_is_checked_by_arithmetic() -> None:
    """It holds, one tick more does not, and it says what it is."""
    certificate = lower_bound(h100("broadcast"))
    assert certificate.check()
    tick = Fraction(1, certificate.problem.costs.ticks_per_us)
    assert not replace(certificate, bound=certificate.bound + tick).check()
    assert certificate.limits == "the last 16 of 48 entries into 3 nodes, which only 1 node can feed at first"
    assert certificate.witness_text.startswith("delayed source: sets (3), targets (3), fed ")


def corrupted(witness: DelayedSource) -> dict[str, DelayedSource]:
    """Witnesses that would say too much, or nothing."""
    everyone = frozenset(range(32))
    return {
        "the origin in a set": replace(witness, sets=(witness.sets[0] | {0}, *witness.sets[1:])),
        "a target elsewhere": replace(witness, targets=(0, *witness.targets[1:])),
        "a set twice": replace(
            witness, sets=(*witness.sets, witness.sets[0]), targets=(*witness.targets, witness.targets[0])
        ),
        "a set less": replace(witness, sets=witness.sets[1:], targets=witness.targets[1:]),
        "all fed from the beginning": replace(witness, fed=0),
        "fed much longer": replace(witness, fed=10 * witness.fed),
        "a tick later": replace(witness, since=witness.since + 1),
        "before the beginning": replace(witness, since=-1),
        "everyone is late": DelayedSource((everyone,), (1,), witness.fed, witness.since),
    }


@cache
def bound_of_a_broadcast() -> Certificate:
    """On four nodes."""
    return lower_bound(h100("broadcast"))


@pytest.mark.slow
@pytest.mark.parametrize("how", list(corrupted(DelayedSource((frozenset(),), (0,), 0, 0))))
def test_a_corrupted_witness_is_refused(how: str) -> None:
    """Whatever is changed in the witness of a broadcast, it proves the bound no longer."""
    certificate = bound_of_a_broadcast()
    assert isinstance(certificate.witness, DelayedSource)
    assert not replace(certificate, witness=corrupted(certificate.witness)[how]).check()


def test_it_proves_nothing_where_switches_reduce() -> None:
    """Of sums: what passes a switch that reduces may be several contributions at once."""
    problem = problem_of(full(8, port=True), custom(8, [(range(8), range(8))], combining=True))
    ((ticks, witness),) = claims(problem)
    bound = Fraction(ticks, problem.costs.ticks_per_us)
    certificate = Certificate(problem, bound, "delayed source", "that", witness)
    assert certificate.check()
    assert not replace(certificate, in_network=True).check()


def test_it_is_written_down() -> None:
    """As plain values."""
    witness = DelayedSource((frozenset({2, 1}),), (2,), 3, 4)
    assert witness.to_dict() == {
        "kind": "delayed source",
        "sets": [[1, 2]],
        "targets": [2],
        "fed": 3,
        "since": 4,
        "backwards": False,
    }


def few_start(seed: int, *, combining: bool) -> Problem:
    """A random problem in which one or two ranks hold all chunks, or need all sums."""
    rng = random.Random(seed)
    base = random_problem(seed)
    num_ranks = base.topology.num_ranks
    homes = rng.sample(range(num_ranks), rng.choice((1, 1, 2)))
    ways = []
    for _ in range(rng.choice((1, 2, 3) if combining else (1, 2, 3, 3, 4))):
        few = sorted(set(rng.choices(homes, k=rng.choice((1, 1, 2)))))
        many = sorted(rng.sample(range(num_ranks), rng.randint(max(1, num_ranks - 2), num_ranks)))
        ways.append((many, few[:1]) if combining else (few, many))
    clauses: dict[str, object] = {}
    if not combining and rng.random() < 0.2:
        admitted = frozenset(rng.sample(range(num_ranks), rng.randint(1, num_ranks)))
        clauses["carries_from"] = {rng.randrange(len(base.topology.links)): admitted}
    return problem_of(
        base.topology,
        custom(num_ranks, ways, combining=combining),
        merging=base.clauses.merging,
        max_merge=base.clauses.max_merge,
        own_first=frozenset() if combining else base.clauses.own_first,
        **clauses,
    )


def least_ticks(problem: Problem) -> int | None:
    """The least finish; None where the search would take too long, or a chunk has no way."""
    try:
        check_reachable(problem)
        return optimal_ticks(problem, max_states=1000)
    except (TooLarge, InputError):
        return None


def test_contributions_of_one_rank_each_are_read_both_ways() -> None:
    """Such sums spread from their roots where they are read backwards, and come together backwards again."""
    problem = few_start(30000, combining=True)
    backwards = [(ticks, witness) for ticks, witness in claims(problem) if witness.backwards]
    assert backwards
    for ticks, witness in backwards:
        bound = Fraction(ticks, problem.costs.ticks_per_us)
        assert Certificate(problem, bound, "delayed source", "that", witness).check()


@pytest.mark.slow
@fuzzed(few=15, many=1000)
@given(seed=st.integers(0, 2**32 - 1), combining=st.booleans(), few=st.booleans())
def test_no_claim_is_above_the_optimum(seed: int, combining: bool, few: bool) -> None:
    """Of any random problem: at most the least finish, proven by the witness, and by no more than it says."""
    problem = (few_start if few else random_problem)(seed, combining=combining)
    least = least_ticks(problem)
    for ticks, witness in claims(problem) if least is not None else ():
        assert ticks <= least
        certificate = Certificate(
            problem, Fraction(ticks, problem.costs.ticks_per_us), "delayed source", "that", witness
        )
        assert certificate.check()
        assert not replace(certificate, bound=Fraction(ticks + 1, problem.costs.ticks_per_us)).check()


@pytest.mark.slow
def test_on_small_broadcasts_it_is_often_exact() -> None:
    """Of the first problems in which few start, more than half are decided by it or by what it equals."""
    exact = compared = 0
    for seed in range(40):
        problem = few_start(seed, combining=False)
        least = least_ticks(problem)
        found = [ticks for ticks, _ in claims(problem)] if least is not None else []
        compared += bool(found)
        exact += max(found, default=-1) == least
    assert compared > 20
    assert exact > compared / 2
