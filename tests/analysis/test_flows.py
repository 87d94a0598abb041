"""Multicommodity bounds: flows derived by hand, the fallback for large programs, and cheapest paths."""

from fractions import Fraction

import pytest

import taccl
from taccl import collectives
from taccl.analysis.certificates import flows
from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.certificates.evaluation.facts import Facts
from taccl.analysis.certificates.finding.volume import Volume
from taccl.analysis.certificates.flows import _commodities, _ends_in_fewer, multicommodity
from taccl.sketch.group import Symmetries, find_symmetries
from taccl.topology.builder import TopologyBuilder
from tests.fuzzing import some
from tests.synthesis.small_problems import custom, full, problem_of, random_problem, ring, star, two_nodes

MB = 10**6


def linked(num_ranks, costs):
    """A topology from {(source, destination): us per MB}."""
    builder = TopologyBuilder("linked", [0] * num_ranks)
    for (src, dst), beta in costs.items():
        builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=beta)
    return builder.build()


def flowed(problem, *, divisible=True):
    """The multicommodity bound in microseconds, its witness, and True if the linear program was solved."""
    found = multicommodity(Volume(problem, divisible=divisible), find_symmetries(problem))
    return found[0] / problem.costs.ticks_per_us, found[1], found[2]


ONE_WAY = {(r, (r + 1) % 4): 1 for r in range(4)}

HAND = {
    # Each rank's chunks travel 1 + 2 + 3 hops: 24 over 4 links of 1 us.
    "one-way ring": (linked(4, ONE_WAY), collectives.alltoall(4), Fraction(6)),
    # Each rank's chunks travel 1 + 1 + 2 hops: 16 over 8 links of 1 us.
    "ring both ways": (
        linked(4, ONE_WAY | {(b, a): 1 for a, b in ONE_WAY}),
        collectives.alltoall(4),
        Fraction(2),
    ),
    # Each pair has a link of its own.
    "fully joined": (full(4), collectives.alltoall(4), Fraction(1)),
    # Each port passes 3 chunks of 1 us.
    "ports": (full(4, port=True), collectives.alltoall(4), Fraction(3)),
    # 3 chunks leave leaf 3 over its link of 3 us.
    "star": (star(3), collectives.alltoall(4), Fraction(9)),
    # A share f takes the slow link: 4 f = 1 - f, so 4/5 us.
    "detour": (linked(3, {(0, 1): 4, (0, 2): 1, (2, 1): 1}), custom(3, [([0], [1])]), Fraction(4, 5)),
    # Two chunks start at the first and second rank of a path of two hops; both need the last hop: 2 us.
    "shared hop": (linked(3, {(0, 1): 1, (1, 2): 1}), custom(3, [([0], [2]), ([1], [2])]), Fraction(2)),
    # Chunk 0 starts at ranks 0 and 1, and divides over both links.
    "two origins": (linked(3, {(0, 2): 5, (1, 2): 1}), custom(3, [([0, 1], [2])]), Fraction(5, 6)),
    # Rank 0 sends a chunk each to ranks 1 and 2 over its only link of 1 us.
    "scatter": (linked(3, {(0, 1): 1, (1, 2): 1, (2, 0): 1}), collectives.scatter(3), Fraction(2)),
    "gather": (linked(3, {(0, 1): 1, (1, 2): 1, (2, 0): 1}), collectives.gather(3), Fraction(2)),
}


@pytest.mark.parametrize("name", HAND)
def test_flows_by_hand(name):
    """The multicommodity bound equals the optimum of the linear program derived by hand, exactly."""
    topology, collective, expected = HAND[name]
    bound, _, solved = flowed(problem_of(topology, collective))
    assert solved
    assert bound == expected


@pytest.mark.parametrize("name", HAND)
def test_flows_that_were_not_solved_say_no_more(name, monkeypatch):
    """Above the size limit of the program, distance times volume over capacity is a valid, no larger bound."""
    monkeypatch.setattr(flows, "_MAX_FLOWS", 0)
    topology, collective, expected = HAND[name]
    problem = problem_of(topology, collective)
    bound, witness, solved = flowed(problem)
    assert not solved
    assert 0 < bound <= expected
    certificate = lower_bound(problem, divisible=True)
    assert certificate.check()


def test_distance_times_volume_by_hand(monkeypatch):
    """On a one-way ring, 24 hops over 4 links of equal price give the tight bound, whose description names
    both figures."""
    monkeypatch.setattr(flows, "_MAX_FLOWS", 0)
    bound = lower_bound(problem_of(HAND["one-way ring"][0], collectives.alltoall(4)), divisible=True)
    assert (bound.bound, bound.kind) == (6, "multicommodity")
    assert bound.limits.startswith("distance times volume: total traffic over all paths")
    assert bound.check()


def test_distance_times_volume_between_nodes(monkeypatch):
    """Prices of links and of a shared NIC give different bounds, of which the best counts.

    Two chunks go over links of 2 + 1 us that share a NIC for 1 + 1 us. With one price for both links and the
    NIC, each chunk pays for 5 us, at a total price of 3: 10/3 us. With a price for the NIC alone, the holds
    take 4 us, and the send of the last hold ends 1 us later.
    """
    monkeypatch.setattr(flows, "_MAX_FLOWS", 0)
    problem = problem_of(two_nodes(), custom(4, [([0], [2]), ([1], [3])]), links_allowed=frozenset({4, 5}))
    assert flowed(problem)[0] == 5


def test_a_single_program_is_within_reach():
    """A program below the size limit is solved, and `limits` says so."""
    bound = lower_bound(problem_of(HAND["one-way ring"][0], collectives.alltoall(4)), divisible=True)
    assert bound.kind == "multicommodity"
    assert bound.limits.startswith("total traffic over all paths, at the rate of ")


def test_whole_chunks_pay_alpha_and_end_in_whole_ticks():
    """Whole chunks pay alpha on every hop: on a ring of four, 16 hops of 2 us over 8 links take 4 us."""
    assert flowed(problem_of(ring(4), collectives.alltoall(4)), divisible=False)[0] == 4


def test_sizes_count():
    """Chunks of different sizes count by their bytes: 1 and 3 MB over a link of 2 us/MB take 8 us."""
    problem = problem_of(linked(2, {(0, 1): 2}), custom(2, [([0], [1])] * 2), chunk_bytes=[MB, 3 * MB])
    assert flowed(problem)[0] == 8


def test_a_chunk_for_several_counts_for_the_farthest():
    """A chunk for several ranks counts only the hops to its farthest destination, as it may be copied on the
    way."""
    problem = problem_of(linked(3, {(0, 1): 1, (1, 2): 1}), custom(3, [([0], [1, 2])]))
    assert flowed(problem)[0] == 1


def test_chunks_with_other_allowed_links_are_separate_commodities():
    """Chunks with other allowed links are separate commodities.

    Chunks of ranks 0 and 1 go to rank 2; 0 -> 2 takes 1 us, 1 -> 2 takes 3 us, 1 -> 0 takes 1 us. A share f
    of rank 1's chunk goes directly: 3 f = 1 + (1 - f), so f = 1/2, and 3/2 us. If link 0 -> 2 carries chunks
    of rank 0 alone, rank 1's takes 3 us.
    """
    topology = linked(3, {(0, 2): 1, (1, 2): 3, (1, 0): 1})
    collective = custom(3, [([0], [2]), ([1], [2])])
    free = flowed(problem_of(topology, collective))[0]
    assert free == Fraction(3, 2)
    bound = problem_of(topology, collective, carries_from={0: frozenset({0})})
    assert flowed(bound)[0] == 3


def test_sums_have_no_multicommodity_bound():
    """Sums have no multicommodity bound, since their contributions share paths."""
    problem = problem_of(ring(3), collectives.allreduce(3))
    volume = Volume(problem, divisible=True)
    assert multicommodity(volume, find_symmetries(problem)) is None


def test_nothing_to_send_has_no_price():
    """There is no bound if every chunk starts where it must end."""
    problem = problem_of(ring(3), custom(3, [([0], [0])]))
    volume = Volume(problem, divisible=True)
    assert multicommodity(volume, find_symmetries(problem)) is None


@pytest.mark.slow
def test_random_fallbacks_hold(monkeypatch):
    """On random problems the bound from distance times volume is at most the multicommodity bound, and its
    witness passes the check."""
    for seed in range(some(50, 120)):
        problem = random_problem(seed, combining=False)
        volume = Volume(problem, divisible=True)
        symmetries = find_symmetries(problem)
        solved = multicommodity(volume, symmetries)
        with monkeypatch.context() as small:
            small.setattr(flows, "_MAX_FLOWS", 0)
            flat = multicommodity(volume, symmetries)
        assert (solved is None) == (flat is None)
        if solved is not None and flat is not None:
            assert flat[0] <= solved[0] * (1 + Fraction(1, 10**5))


@pytest.mark.parametrize("name", ["ports", "detour", "scatter", "two origins"])
def test_costs_beyond_double_precision_are_not_rounded_up(name, monkeypatch):
    """Paths of 2^53 ticks and more are added exactly, or rounded down if there are too many arcs."""
    topology, collective, _ = HAND[name]
    problem = taccl.make_problem(topology, collective, chunk_bytes=2**55 + 1)
    bound, witness, *_ = multicommodity(Volume(problem, divisible=True), find_symmetries(problem))
    assert bound == flows._priced(Facts(problem, divisible=True, in_network=False), witness)
    monkeypatch.setattr(flows, "_MOST_WHOLE", 0)
    rounded, *_ = multicommodity(Volume(problem, divisible=True), find_symmetries(problem))
    assert bound * (1 - Fraction(1, 2**48)) <= rounded <= bound


def test_a_gather_is_one_commodity():
    """A gather is one commodity, rooted where its chunks end; an alltoall has one commodity per origin."""
    topology = ring(5)
    for collective, number in ((collectives.gather(5), 1), (collectives.alltoall(5), 5)):
        volume = Volume(problem_of(topology, collective), divisible=True)
        backwards = _ends_in_fewer(volume)
        symmetries = Symmetries(volume.problem)
        assert len([*_commodities(volume, symmetries, backwards=backwards)]) == number
