"""Bounds on sums that several nodes share: their sends between nodes, the additions in nodes before and the
copies after."""

import random
from dataclasses import replace
from fractions import Fraction
from functools import partial

import pytest

from taccl import collectives
from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.certificates.gossip import Gossip, gossip
from taccl.problem.chunks import Chunk
from taccl.problem.collective import Collective
from tests.analysis.claims import certificates_of, raised
from tests.effort import brief_synthesis
from tests.fuzzing import cases, some
from tests.synthesis.small_problems import custom, problem_of, two_levels

#: Certificates of the claims about sends between ranks, sends between nodes, and sends between nodes with
#: heads and tails.
certificates = partial(certificates_of, gossip)


def claims(problem):
    """Bounds of `certificates`, in microseconds."""
    return [each.bound for each in certificates(problem)]


def test_sums_are_made_before_they_cross_and_spread_after():
    """Additions inside nodes precede the sends between nodes, and copies inside nodes follow them.

    Four sums through a NIC each way need 4 sends of 3 us; before them 1 us for an addition inside a node, and
    after them 1 us for a copy.
    """
    problem = problem_of(two_levels(2, local=1, nic=3), collectives.allreduce(4))
    assert claims(problem)[1:] == [12, 14]
    bound = lower_bound(problem)
    assert bound.bound >= 14 and bound.check()


@pytest.mark.parametrize(("size", "local", "nic", "expected"), [(2, 2, 3, [12, 15]), (4, 1, 5, [40, 44])])
def test_early_and_late_sends_count_half(size, local, nic, expected):
    """A send between nodes counts half if it starts before the additions in its node end, or ends after the
    copies begin.

    With two ranks per node, the additions (the head) and the copies (the tail) take 2 us each. Three whole
    sends and two halves make up the four required sends: five sends of 3 us take 15 us. Four ranks add, and
    copy, in 2 * 1 us each; 8 sends each way take 40 us.
    """
    problem = problem_of(two_levels(size, local=local, nic=nic), collectives.allreduce(2 * size))
    assert claims(problem)[1:] == expected


def test_the_ends_take_no_longer_than_a_crossing():
    """If links inside a node take 7 us, an early send over the NIC delivers after only 2 us.

    So the time before the first send is at most the 2 us of one send between nodes.
    """
    problem = problem_of(
        two_levels(2, local=7, nic=2), custom(4, [(range(4), [0, 1, 2])] * 4, combining=True)
    )
    assert claims(problem)[1:] == [8, 10]


def test_heads_and_tails_fit_between_two_sends():
    """Two sums need two sends of 3 us each way between the nodes, which take 6 us in sequence.

    The additions in the nodes (heads) and the copies (tails) take 1 us each. They fit between the two sends,
    so they add nothing to the bound.
    """
    two = problem_of(two_levels(2, local=1, nic=3), custom(4, [(range(4), range(4))] * 2, combining=True))
    assert claims(two)[1:] == [6]


def test_merged_chunks_count_one_behind_the_other():
    """Chunks occupy the NIC one after another, whether they are merged or not, so the bound is the same.

    Each of 4 chunks each way holds the NIC for 3 us; the last one arrives 1 us after its hold.
    """
    topology = two_levels(2, local=1, nic=3, alpha=1)
    alone, merged = (
        problem_of(
            topology, collectives.allreduce(4), max_merge=most, merging=frozenset(topology.internode_links)
        )
        for most in (1, 4)
    )
    assert (claims(alone)[-1], claims(merged)[-1]) == (15, 15)


def test_an_early_send_counts_by_what_its_sender_can_hold():
    """An early send counts by the contributions that its sender can have received by then.

    After 1 us the sender can have the contributions of two of four ranks, after 2 us those of all four: 16
    sends of 2 us each way take 36 us, not 34.
    """
    problem = problem_of(two_levels(4, local=1, nic=2), collectives.allreduce(8, chunks_per_rank=2))
    assert claims(problem)[1:] == [32, 36]


def test_sums_that_one_rank_of_a_node_adds_to_need_no_head():
    """If a sum has one contributor per node, no additions precede its sends between nodes; with one
    destination per node, no copies follow."""
    chunks = tuple(Chunk((0, 2), (0, 1, 2, 3), 0) for _ in range(4))
    problem = problem_of(two_levels(2, local=2, nic=3), Collective("sums", 4, chunks, combining=True))
    assert claims(problem)[1:] == [12, 14]


def gated(per_node, gates, **costs):
    """Two-level topology and clauses by which only the first `gates` ranks of a node reach other nodes."""
    topology = two_levels(per_node, **costs)
    far = (e for e in topology.internode_links)
    shut = {
        e for e in far if max(topology.links[e].src % per_node, topology.links[e].dst % per_node) >= gates
    }
    return topology, {"links_allowed": frozenset(range(len(topology.links))) - shut}


def test_ranks_of_a_node_that_others_cannot_reach_share_sums_through_those_that_can():
    """Ranks that reach other nodes only through one rank of their node share its port.

    Two of 3 ranks do so: 6 sums take 24 sends over 3 ports, 8 us.
    """
    topology, clauses = gated(3, 1, local=1, nic=1)
    problem = problem_of(topology, collectives.allreduce(6), **clauses)
    found = {claim.witness: claim.bound for claim in certificates(problem)}
    assert found[Gossip(frozenset((0, 1, 2)))] == 8
    bound = replace(lower_bound(problem), bound=Fraction(8), witness=Gossip(frozenset((3, 4, 5))))
    assert bound.check()
    assert not raised(bound).check()
    assert not replace(bound, witness=Gossip(frozenset((0, 1, 3)))).check()


def test_ranks_that_others_reach_need_no_sends_among_themselves():
    """Ranks that other nodes reach directly need no sends among themselves, and count as outside.

    Other nodes reach two of a node's 3 ranks; the third rank needs 2 sends per sum through its port.
    """
    topology, clauses = gated(3, 2, local=1, nic=1)
    problem = problem_of(topology, collectives.allreduce(6), **clauses)
    found = {claim.witness: claim.bound for claim in certificates(problem)}
    assert found[Gossip(frozenset((0, 1, 2)))] == 6
    open_to_all = problem_of(gated(3, 3, local=1, nic=1)[0], collectives.allreduce(6))
    everyone = frozenset(range(6))
    found = {(claim.witness.ranks, claim.witness.between_nodes) for claim in certificates(open_to_all)}
    assert found == {(everyone, False), (everyone, True)}


@pytest.mark.parametrize("chunk_bytes", [(10**6,) * 3 + (2 * 10**6,)])
def test_chunks_of_two_sizes_are_only_counted(chunk_bytes):
    """Chunks of two sizes are bounded without heads and tails, as sends have no common duration."""
    problem = problem_of(two_levels(2, local=2, nic=3), collectives.allreduce(4), chunk_bytes=chunk_bytes)
    assert claims(problem)[1:] == [12]


def test_the_check_proves_what_is_claimed_and_no_more():
    """The check recomputes heads and tails; it accepts the claim and refuses one tick more."""
    problem = problem_of(two_levels(4, local=1, nic=5), collectives.allreduce(8))
    bound = certificates(problem)[-1]
    assert bound.bound == 40 + 4 and bound.check()
    assert not raised(bound).check()


@pytest.mark.fuzz
def test_no_schedule_beats_the_claim():
    """No schedule beats the claim on nodes with a bus or a NIC each, merged or not, for random sums."""
    found = 0
    for seed in cases("gossip between nodes", few=3, many=400, first=3):
        rng = random.Random(f"gossip {seed}")
        per_node, num_nodes = rng.choice(((2, 2), (3, 2), (1, 3), (2, 3), (1, 4)))
        nic = rng.choice((1, 2, 3))
        alpha = rng.choice((0, 1, 5, 20))
        topology, gates = gated(
            per_node,
            rng.randint(1, per_node),
            local=rng.choice((1, 2, 3)),
            nic=nic,
            num_nodes=num_nodes,
            alpha=alpha,
            meaning=rng.choice(("occupies", "pipelined")),
        )
        n = topology.num_ranks
        chunks = [Chunk(tuple(range(n)), tuple(range(n)), rng.randrange(n)) for _ in range(rng.randint(2, n))]
        merges = (
            {"max_merge": 2, "merging": frozenset(topology.internode_links)} if rng.random() < 0.5 else {}
        )
        problem = problem_of(
            topology, Collective("sums", n, tuple(chunks), combining=True), **merges, **gates
        )
        best = brief_synthesis(problem, sketch="none").schedule.finish
        bounds = certificates(problem)
        assert all(each.bound <= best and each.check() for each in bounds), seed
        found += len(bounds) >= 3
    assert found >= some(1, 60)
