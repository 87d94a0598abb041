"""The spread-tail bound: the last chunk to enter a node must still reach its ranks; by hand and at random."""

import random
from dataclasses import replace
from fractions import Fraction

import pytest

from taccl import collectives, make_problem, synthesize, topologies
from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.certificates.certificate import Certificate
from taccl.analysis.certificates.spread_tail import SpreadTail, spread_tail_bounds
from taccl.topology.builder import TopologyBuilder
from tests.analysis.claims import certificates_of, raised
from tests.fuzzing import cases, some
from tests.synthesis.brute_force import optimal_ticks
from tests.synthesis.small_problems import custom, full, problem_of, two_levels

MB = 10**6


def tails(problem, *, in_network=False):
    """Spread-tail claims in microseconds, one for each family of sets and minimum number of destinations in a
    set."""
    return [each.bound for each in certificates_of(spread_tail_bounds, problem, in_network=in_network)]


@pytest.mark.parametrize(
    ("per_node", "local", "nic", "expected"),
    [
        (4, 2, 3, 16),  # 4 chunks over the NIC, 12 us; the last one doubles twice, 2 us each
        (8, 1, 4, 35),  # 8 chunks, 32 us, and three times 1 us
    ],
)
def test_the_last_chunk_doubles_inside(per_node, local, nic, expected):
    """Allgather on two nodes: after the last chunk enters, its holders double with each send inside."""
    bound = lower_bound(
        problem_of(two_levels(per_node, local=local, nic=nic), collectives.allgather(2 * per_node))
    )
    assert (bound.bound, bound.kind) == (expected, "spread tail")
    assert bound.check()
    assert not raised(bound).check()


def test_what_others_add_to_a_sum_spreads_like_a_chunk():
    """The other node's part of the last sum must still spread inside the node.

    Eight sums take 24 us over the NIC, and the last one 2 * 2 us more.
    """
    problem = problem_of(two_levels(4, local=2, nic=3), collectives.allreduce(8))
    assert tails(problem)[0] == 28


def test_what_one_rank_adds_to_a_sum_reaches_the_others_one_by_one():
    """One rank's contribution spreads as a chunk does: 2, 4 and 8 ranks have it after 1, 2 and 3 us."""
    summed = problem_of(full(8, port=True), custom(8, [(range(8), range(8))], combining=True))
    assert tails(summed) == [3]
    assert tails(summed, in_network=True) == []


def test_switches_that_reduce_have_none():
    """With in-network reduction there is no claim, since switches may multicast sums."""
    problem = problem_of(two_levels(4, local=2, nic=3), collectives.allreduce(8))
    assert tails(problem, in_network=True) == []


def test_only_those_that_want_a_chunk_must_get_it():
    """Each of 4 chunks is for two ranks of the node: the last enters at 12 us, and reaches its second rank 2
    us later."""
    problem = problem_of(two_levels(4, local=2, nic=3), custom(8, [([4 + i], [0, 1]) for i in range(4)]))
    assert tails(problem) == [14]


def test_chunks_that_fewer_want_count_by_themselves():
    """Chunks wanted by fewer ranks form a larger group with a shorter tail.

    Two chunks for four ranks enter in 6 us and spread in 2 * 2 us. With two more for one rank each, the last
    one enters at 12 us.
    """
    chunks = [([4], [0, 1, 2, 3]), ([5], [0, 1, 2, 3]), ([6], [0]), ([7], [1])]
    problem = problem_of(two_levels(4, local=2, nic=3), custom(8, chunks))
    assert tails(problem) == [10, 12]


def test_a_rank_that_is_hard_to_reach_is_waited_for():
    """The tail is at least the time to the rank that is hardest to reach.

    A chunk enters after 1 us, and each link to rank 2 takes 10 us: 11 us.
    """
    builder = TopologyBuilder("slow rank", [0, 0, 0, 1])
    for a, b, beta in ((3, 0, 1), (0, 1, 1), (1, 0, 1), (0, 2, 10), (1, 2, 10)):
        builder.add_link(a, b, alpha_us=0, beta_us_per_mb=beta)
    assert tails(problem_of(builder.build(), custom(4, [([3], [0, 1, 2])]))) == [11]


def test_merged_chunks_enter_together():
    """Merged chunks enter a node together, but each occupies the NIC for 1 us after the one before.

    The third and the fourth of four chunks arrive at 7 us or later. A rank passes a chunk on in 2 us, and the
    NIC may deliver one more every 1 us. So arrivals end at 7, 8, 9, 9, 10, 10, 11 and 11 us. The second
    claim, 8 us, is about the set of all ranks but the root. There the last chunk leaves rank 4 at 3 us, and
    is copied on from 5.
    """
    topology = two_levels(4, local=2, nic=1, alpha=4)
    merging = frozenset(topology.internode_links)
    problem = problem_of(topology, custom(8, [([4], [0, 1, 2, 3])] * 4), max_merge=4, merging=merging)
    assert tails(problem) == [11, 8]


def test_merged_chunks_are_passed_on_together():
    """Merging inside a node lowers the bound, as several of the last chunks are passed on together.

    Six chunks for four ranks enter by 6 us. A port then passes on one chunk in 4 us, or three merged ones in
    3 + 3 * 1 us. The last chunk alone reaches all ranks at 6 + 2 * 4 us, the last three merged at 4 + 2 * 6.
    """
    builder = TopologyBuilder("slow to start", [0, 0, 0, 0, 1])
    ports = [builder.add_resource(f"port {r}") for r in range(4)]
    for a in range(4):
        builder.add_link(4, a, alpha_us=0, beta_us_per_mb=1)
        for b in set(range(4)) - {a}:
            link = builder.add_link(a, b, alpha_us=3, beta_us_per_mb=1)
            builder.add_hold(link, ports[a], alpha_us=3, beta_us_per_mb=1)
    nic = builder.add_resource("NIC")
    for e in range(0, 16, 4):
        builder.add_hold(e, nic, alpha_us=0, beta_us_per_mb=1)
    topology = builder.build()
    merging = frozenset(e for e in range(16) if e % 4)
    problem = problem_of(topology, custom(5, [([4], [0, 1, 2, 3])] * 6), max_merge=3, merging=merging)
    alone = problem_of(topology, custom(5, [([4], [0, 1, 2, 3])] * 6))
    assert tails(problem) < tails(alone)
    assert lower_bound(problem).check()


def test_few_can_send_to_a_node_at_first():
    """Entries into a node are limited by the number of outside ranks that hold the chunk by then.

    Each rank has a NIC of 10 us, and the root's node doubles its copies every 1 us. So the chunk can enter
    the other node at 10, 11, 12 and 12 us. One rank of that node holds the chunk at 10 us, three at 11 us
    (two of them by entries), all four at 12 us. If all ranks of the root's node had the chunk after 1 us, all
    four could have it at 11 us.
    """
    builder = TopologyBuilder("a NIC each", [0] * 4 + [1] * 4)
    ports, nics = ([builder.add_resource(f"{kind} {r}") for r in range(8)] for kind in ("port", "NIC"))
    for a in range(8):
        for b in set(range(8)) - {a}:
            near = a // 4 == b // 4
            link = builder.add_link(a, b, alpha_us=0, beta_us_per_mb=1 if near else 10)
            builder.add_hold(link, (ports if near else nics)[a], alpha_us=0, beta_us_per_mb=1 if near else 10)
    bound = lower_bound(problem_of(builder.build(), collectives.broadcast(8)))
    assert (bound.bound, bound.kind) == (12, "spread tail")
    assert bound.check()


@pytest.mark.slow
def test_what_enters_several_nodes_spreads_in_each():
    """A chunk for two other nodes enters both before it spreads: 6 us and then 2 * 1 us.

    The root's NIC sends once per 3 us. From 3 us on the first node's NIC can also send the chunk to the
    second node, which also ends at 6 us.
    """
    problem = problem_of(two_levels(4, local=1, nic=3, num_nodes=3), collectives.broadcast(12))
    claims = certificates_of(spread_tail_bounds, problem, in_network=False)
    claim = max(claims, key=lambda each: each.bound)
    assert (claim.bound, claim.limits) == (
        8,
        "the last of 2 chunks into empty nodes one by one, then copied inside to at least 4 ranks",
    )
    bound = lower_bound(problem)
    assert bound.bound == 8 == synthesize(problem).schedule.finish
    assert isinstance(bound.witness, SpreadTail) and len(bound.witness.sets) == 2
    assert bound.check()
    assert not raised(bound).check()


def test_what_enters_at_one_rank_is_far_from_others():
    """The tail counts distances inside a node, and not only the number of links.

    The node is a path of four ranks, 1 us each: from a middle rank the farther end is 2 us away. If only
    numbers of links counted, the third and fourth rank could have the chunk 1 us after the second.
    """
    builder = TopologyBuilder("path", [0, 1, 1, 1, 1])
    for rank in range(1, 5):
        builder.add_link(0, rank, alpha_us=0, beta_us_per_mb=10)
    for rank in range(1, 4):
        builder.add_link(rank, rank + 1, alpha_us=0, beta_us_per_mb=1)
        builder.add_link(rank + 1, rank, alpha_us=0, beta_us_per_mb=1)
    nic = builder.add_resource("NIC")
    for link in range(4):
        builder.add_hold(link, nic, alpha_us=0, beta_us_per_mb=10)
    bound = lower_bound(problem_of(builder.build(), custom(5, [([0], [1, 2, 3, 4])])))
    assert (bound.bound, bound.kind) == (12, "spread tail")
    assert bound.check()


@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize("nodes", [[0, 0, 0, 0], [0, 0, 1, 1]])
def test_a_rank_without_links_does_not_change_the_claim(nodes, most):
    """A rank without links does not affect the claim.

    Two chunks go around the other three ranks, in 2 us for the first and 1 us more for the second.
    """
    builder = TopologyBuilder("apart", nodes)
    for rank in range(3):
        builder.add_link(rank, (rank + 1) % 3, alpha_us=0, beta_us_per_mb=1)
    merging = frozenset(range(3))
    problem = problem_of(builder.build(), custom(4, [([0], [1, 2])] * 2), max_merge=most, merging=merging)
    bound = lower_bound(problem)
    assert bound.bound == 3
    assert bound.check()


@pytest.mark.parametrize("ranks", [5, 8])
def test_what_starts_at_one_rank_doubles(ranks):
    """Copies of one chunk double in each of three rounds of 1 us: 2, 4, 8 ranks."""
    bound = lower_bound(problem_of(full(ranks, port=True), collectives.broadcast(ranks)))
    assert bound.bound == 3
    assert bound.check()


@pytest.mark.slow
def test_a_chunk_alone_merges_with_none():
    """A reduction of one chunk on eight H100 is proven optimal although the sketch allows merging."""
    problem = make_problem(topologies.dgx_h100(1), "reduce", chunks_per_rank=1, size_bytes="1MB")
    assert problem.clauses.max_merge > 1
    assert synthesize(problem).gap == 0


@pytest.mark.parametrize(
    "problem",
    [
        problem_of(full(4), collectives.allgather(4)),
        problem_of(two_levels(2, local=1, nic=2), collectives.scan(4)),
        problem_of(two_levels(2, local=1, nic=2), collectives.allgather(4), chunk_bytes=(MB, MB, MB, 2 * MB)),
    ],
    ids=["one node", "made of others", "two sizes"],
)
def test_where_the_argument_does_not_hold_nothing_is_claimed(problem):
    """Without the assumptions of the proof there is no claim."""
    assert tails(problem) == []


def test_the_tail_waits_for_data_from_afar():
    """The tail counts from the first arrival in a node, which is late if the sender is far from the root."""
    topology = two_levels(4, local=2, nic=3)
    only = [e for e, link in enumerate(topology.links) if topology.is_internode(e) and link.src != 1]
    allowed = frozenset(range(len(topology.links))) - frozenset(only)
    problem = problem_of(topology, collectives.broadcast(8), links_allowed=allowed)
    assert max(tails(problem)) == 9


def test_the_certificate_states_its_claim():
    """The certificate describes its witness in words and as plain values."""
    problem = problem_of(two_levels(4, local=2, nic=3), collectives.allgather(8))
    bound = Certificate(problem, Fraction(1), "spread tail", "that", SpreadTail((frozenset(range(4)),), 4, 1))
    assert bound.witness_text == "spread tail: sets 0-3, least 4, last 1, backwards no, since 0"
    assert bound.to_dict()["witness"] == {
        "kind": "spread tail",
        "sets": [[0, 1, 2, 3]],
        "least": 4,
        "last": 1,
        "backwards": False,
        "since": 0,
        **{labels: [] for labels in ("awake", "inside", "entered", "pairs")},
    }


@pytest.mark.parametrize(
    "witness",
    [
        SpreadTail((frozenset(range(8)),), 4, 1),
        SpreadTail((frozenset(),), 1, 1),
        SpreadTail((frozenset(range(4)),), 5, 1),
        SpreadTail((frozenset(range(4)),), 4, 5),
        SpreadTail((frozenset(range(4)),), 4, 0),
        SpreadTail((frozenset(range(4)),), 4, -1),
        SpreadTail((frozenset((0, 99)),), 4, 1),
        SpreadTail((frozenset((0, 1)),), 2, 1),
    ],
    ids=str,
)
def test_other_ranks_and_numbers_prove_less(witness):
    """Sets that lack nothing, thresholds above the number of destinations, and unknown ranks prove nothing."""
    bound = lower_bound(problem_of(two_levels(4, local=2, nic=3), collectives.allgather(8)))
    assert isinstance(bound.witness, SpreadTail)
    assert not replace(bound, witness=witness).check()


def random_spreading(seed):
    """A few chunks of few ranks, on two to six ranks in up to three nodes, with merging."""
    rng = random.Random(f"spreading {seed}")
    per_node, num_nodes = rng.choice(((2, 1), (3, 1), (4, 1), (2, 2), (2, 2), (3, 2), (2, 3), (1, 3)))
    topology = two_levels(
        per_node,
        local=rng.choice((1, 1, 2)),
        nic=rng.choice((1, 2, 3)),
        num_nodes=num_nodes,
        alpha=rng.choice((0, 0, 1)),
        meaning=rng.choice(("occupies", "pipelined")),
    )
    ranks = range(per_node * num_nodes)
    root = [rng.choice(ranks)] if rng.random() < 0.7 else rng.sample(ranks, 2)
    num_chunks = rng.choice((1, 1, 2, 3)) if len(ranks) < 4 else rng.choice((1, 1, 2))
    wanted = [rng.sample(ranks, rng.randint(1, len(ranks))) for _ in range(num_chunks)]
    clauses = {}
    if rng.random() < 0.5:
        merging = frozenset(e for e in range(len(topology.links)) if rng.random() < 0.7)
        clauses = {"max_merge": rng.choice((2, 3)), "merging": merging}
    if num_chunks == 1 and rng.random() < 0.3:
        return problem_of(topology, custom(len(ranks), [(list(ranks), root[:1])], combining=True), **clauses)
    return problem_of(topology, custom(len(ranks), [(root, ends) for ends in wanted]), **clauses)


def random_two_levels(seed):
    """Problems on two nodes of two ranks, with ports and NICs of random costs.

    The collective is an allreduce, or sends one to three chunks from the second node.
    """
    rng = random.Random(f"two levels {seed}")
    topology = two_levels(
        2,
        local=rng.choice((1, 1, 2, 3)),
        nic=rng.choice((1, 2, 3)),
        alpha=rng.choice((0, 0, 1)),
        meaning=rng.choice(("occupies", "pipelined")),
    )
    clauses = {}
    if rng.random() < 0.2:
        clauses = {"max_merge": 2, "merging": frozenset(topology.internode_links)}
    if rng.random() < 0.3:
        return problem_of(topology, collectives.allreduce(4), **clauses)
    wanted = [[0], [1], [0, 1], [0, 1], [0, 1, 3], [0, 1, 2, 3]]
    chunks = [([rng.choice((2, 3))], rng.choice(wanted)) for _ in range(rng.randint(1, 3))]
    return problem_of(topology, custom(4, chunks), **clauses)


@pytest.mark.fuzz
@pytest.mark.parametrize("random_problem", [random_two_levels, random_spreading])
def test_no_spread_tail_is_above_the_optimum(random_problem):
    """Each claim is at most the optimum and is proven; one tick above the optimum is never proven."""
    compared = 0
    for seed in cases(f"spread tails against the optimum, {random_problem.__name__}", few=12, many=600):
        problem = random_problem(seed)
        found = certificates_of(spread_tail_bounds, problem, in_network=False)
        assert all(each.check() for each in found), seed
        optimum = optimal_ticks(problem, max_states=400)
        if optimum is None:
            continue
        compared += 1
        best = Fraction(optimum, problem.costs.ticks_per_us)
        for each in found:
            assert each.bound <= best, seed
            for least in range(4):
                for last in range(6):
                    other = replace(each.witness, least=least, last=last)
                    assert not raised(replace(each, bound=best, witness=other)).check(), seed
    assert compared > some(4, 20)
