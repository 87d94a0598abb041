"""Pair counting: each contribution must reach each rank that needs the sum; by hand and at random."""

import random
from dataclasses import replace
from fractions import Fraction
from functools import partial

import pytest

from taccl import collectives
from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.certificates.pair_counting import PairCounting, pair_counting_bounds
from taccl.baselines import multiplying, one_shot
from taccl.synthesis.synthesize import synthesize
from taccl.topology.builder import TopologyBuilder
from tests.analysis.claims import certificates_of, is_unbeaten, raised
from tests.fuzzing import MANY, cases, some
from tests.synthesis.small_problems import custom, joined, merged, problem_of, two_levels

#: Certificates of the claims about ranks and about nodes.
certificates = partial(certificates_of, pair_counting_bounds, in_network=False)


def claims(problem):
    """Claims about ranks and about nodes, in microseconds."""
    return [each.bound for each in certificates(problem)]


@pytest.mark.slow
def test_what_is_sent_at_once_is_of_one_rank_only():
    """A rank's first send delivers one contribution, and only later ones deliver sums of two.

    A rank of four needs three contributions by sends of 2 us each, so two sends, 4 us.
    """
    problem = problem_of(joined([0] * 4), custom(4, [(range(4), range(4))], combining=True))
    assert set(claims(problem)) == {4}
    bound = lower_bound(problem)
    assert bound.bound == 4 == synthesize(problem).schedule.finish


def test_between_nodes_early_and_late_sends_serve_fewer():
    """Between nodes, early and late sends serve fewer pairs of contribution and rank.

    16 pairs must be served by sends of 11 us. A send serves four pairs if it starts after 1 us and ends 1 us
    before the finish. In 15 us five sends fit in sequence, two of which serve only two pairs: 16. In 14 us
    four fit, two of which serve only two pairs: 12.
    """
    problem = problem_of(
        two_levels(2, local=1, nic=1, alpha=10, meaning="pipelined"), collectives.allreduce(4)
    )
    assert claims(problem)[-1] == 15


def test_contributions_that_no_rank_outside_adds_make_no_pairs():
    """A rank that contributes nothing and needs nothing adds no pairs of contribution and rank."""
    problem = problem_of(joined([0] * 3), custom(3, [([0, 1], [0, 1])], combining=True))
    assert set(claims(problem)) == {2}


def test_copies_and_sums_for_one_rank_have_no_pairs():
    """Copies and sums for one rank yield no claim; such sums are bounded as copies in reversed time."""
    assert claims(problem_of(joined([0] * 3), collectives.allgather(3))) == []
    assert claims(problem_of(joined([0] * 3), collectives.reduce(3))) == []


def test_a_resource_whose_sends_may_be_free_gives_no_claim():
    """No claim is made about a rank that can receive any number of sends at once, as far as they are counted.

    Sends into rank 0 share a port. One link holds it for 4 us, the other for 2 us per MB. If they merge, only
    the least latency and the least time per MB are counted, which are 0 and 0.
    """
    builder = TopologyBuilder("unlike holds", [0] * 3)
    port = builder.add_resource("port")
    for src, dst in ((0, 1), (1, 2)):
        builder.add_link(src, dst, alpha_us=1, beta_us_per_mb=1)
    link = builder.add_link(2, 0, alpha_us=4, beta_us_per_mb=1)
    builder.add_hold(link, port, alpha_us=4, beta_us_per_mb=0)
    link = builder.add_link(1, 0, alpha_us=1, beta_us_per_mb=2)
    builder.add_hold(link, port, alpha_us=0, beta_us_per_mb=2)
    problem = merged(builder.build(), "allreduce", 2)
    found = certificates(problem)
    assert [min(each.witness.ranks) for each in found] == [1, 2]
    assert all(each.bound > 0 and each.check() for each in found)
    assert replace(found[0], bound=Fraction(0), witness=PairCounting(frozenset({0}))).check()


def test_the_certificate_names_the_rank_that_limits():
    """The certificate says what limits: rank 0 of three needs 6 contributions, from two ranks to each of three
    sums."""
    problem = problem_of(joined([0] * 3), collectives.allreduce(3))
    said = [each.limits for each in certificates(problem)]
    assert "6 contributions that rank 0 needs" in said


def test_the_certificate_states_its_claim_and_proves_no_more():
    """The certificate describes its witness in words and as plain values, and proves no more."""
    problem = problem_of(
        two_levels(4, local=1, nic=1, alpha=10, meaning="pipelined"), collectives.allreduce(8)
    )
    bound = lower_bound(problem)
    assert (bound.bound, bound.kind) == (21, "pair counting") and bound.check()
    assert not raised(bound).check()
    assert bound.limits == "128 pairs of a contribution and a rank in node 0 that needs it"
    assert bound.witness_text == "pair counting: ranks 0-3, collected (2), spread (2)"
    assert bound.to_dict()["witness"] == {
        "kind": "pair counting",
        "ranks": [0, 1, 2, 3],
        "collected": [[1, 1], [2, 2]],
        "spread": [[1, 1], [2, 2]],
    }
    for other in ((), range(8), (9,)):
        assert not replace(bound, witness=PairCounting(frozenset(other))).check()


def random_sums(seed, *, tiny):
    """A random problem of sums on up to four ranks if `tiny`, else up to nine, in one to three nodes; some
    links merge."""
    rng = random.Random(f"pairs {seed}")
    few = [[0, 0, 0], [0, 0, 0, 0], [0, 0, 1], [0, 0, 1, 1], [0, 1, 1]]
    more = [[0] * 5, [0] * 4 + [1] * 4, [0] * 3 + [1] * 3, [0, 0, 1, 1, 2, 2], [0] * 3 + [1] * 3 + [2] * 3]
    nodes = rng.choice(few if tiny else more)
    topology = joined(
        nodes,
        alpha=rng.choice((0, 1, 2)),
        beta=rng.choice((1, 1, 2)),
        far=rng.choice((1, 2, 3)) if tiny else rng.choice((1, 3, 10, 30)),
        shared=rng.random() < 0.5,
    )
    n, chunks = len(nodes), rng.choice((1, 1, 2) if tiny else (1, 2, len(nodes), 2 * len(nodes)))
    everyone = range(n)
    ends = [everyone if rng.random() < 0.7 else sorted(rng.sample(everyone, 2)) for _ in range(chunks)]
    collective = custom(n, [(everyone, some if tiny else everyone) for some in ends], combining=True)
    merging = frozenset(e for e in range(len(topology.links)) if rng.random() < 0.7)
    return problem_of(topology, collective, max_merge=rng.choice((1, 2, 4)), merging=merging)


@pytest.mark.fuzz
def test_no_order_of_additions_beats_the_pairs():
    """On tiny problems no order of additions beats a claim, and each claim is proven."""
    decided = 0
    for seed in cases("pair counting, over all ways to add", few=12, many=600):
        problem = random_sums(seed, tiny=True)
        found = certificates(problem)
        assert all(each.check() for each in found), seed
        decided += is_unbeaten(problem, max(each.bound for each in found), max_states=4000 if MANY else 400)
    assert decided > some(3, 40)


@pytest.mark.fuzz
def test_no_schedule_beats_the_pairs():
    """On up to nine ranks, with sums formed at many of them, no schedule beats a claim."""
    for seed in cases("pair counting against schedules", few=5, many=600):
        problem = random_sums(seed, tiny=False)
        found = certificates(problem)
        assert all(each.check() for each in found), seed
        best = min(make(problem, cut=False).finish for make in (multiplying, one_shot))
        assert max(each.bound for each in found) <= best, seed
