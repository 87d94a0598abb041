"""Sum flow: sends of sums that end early or start late; by hand, against all schedules, and at random."""

import random
from dataclasses import replace
from fractions import Fraction
from functools import partial

import numpy as np
import pytest

import taccl
from taccl import collectives
from taccl.analysis.certificates.sum_flow import Lane, _gain, _gain_near, _most_gained, sum_flow_bounds
from taccl.analysis.certificates.transformed import merging_freely
from taccl.topology.builder import TopologyBuilder
from tests.analysis.claims import baseline_finishes, both_chunkings, certificates_of, num_decided, raised
from tests.fuzzing import cases, some

MB = 10**6


#: Certificates of the sum-flow claims.
certificates = partial(certificates_of, sum_flow_bounds, divisible=True, in_network=False)


def crossbar(num_ranks, *, alpha=4, overhead=1, beta=1):
    """Ranks joined by a switch: a port out of each and one into it, held for `overhead` and the bytes."""
    builder = TopologyBuilder("crossbar", [0] * num_ranks)
    ports = {
        (side, rank): builder.add_resource(f"{side} {rank}")
        for side in ("send", "receive")
        for rank in range(num_ranks)
    }
    for src in range(num_ranks):
        for dst in range(num_ranks):
            if src != dst:
                link = builder.add_link(src, dst, alpha_us=alpha, beta_us_per_mb=beta, overhead_us=overhead)
                for side, rank in (("send", src), ("receive", dst)):
                    builder.add_hold(
                        link, ports[side, rank], alpha_us=overhead, beta_us_per_mb=beta, side=side
                    )
    return builder.build()


def test_sums_on_a_dgx_h100_need_more_than_their_bytes():
    """An allreduce of 1 MB on eight H100 takes longer than its bytes at the ports' rate: 9.39 us.

    3.38 us pass before the first arrival, and as many after the last start.
    """
    problem = taccl.make_problem(taccl.topologies.dgx_h100(1), "allreduce", size_bytes=MB)
    (bound,) = certificates(merging_freely(problem))
    assert bound.kind == "sum flow" and 9.39 < bound.bound_us < 9.4
    assert bound.check()
    assert not raised(bound).check()


def test_gains_of_two_sends_by_hand():
    """The maximum gains of one and of two sends equal those computed by hand.

    The gain of a send is its units, times the ticks from its end to the horizon.

    Sends have a latency of 2 ticks and take 1 tick per unit; the horizon is tick 10. One send of u units
    gains u (8 - u), at most 16. A second send of v units gains v (6 - u - v) more. Both gain at most 52/3, at
    u = 10/3 and v = 4/3.
    """
    lane = Lane(2, 1, 0)
    one, two = Fraction(16), Fraction(52, 3)
    assert _gain(lane, Fraction(10), Fraction(0)) == max(one, two)
    assert _most_gained(Fraction(10), 2, 1, Fraction(0)) == max(one, two)
    # At a price of 1 per unit a send also pays for the 2 units that would fit into its latency.
    # So two sends gain less than one.
    assert _gain(lane, Fraction(10), Fraction(1)) == max(one - 2, two - 4)


def test_the_certificate_proves_no_more():
    """A witness with fewer resources, a lower price, or a longer or empty horizon is refused."""
    problem = merging_freely(taccl.make_problem(crossbar(6), "allreduce", size_bytes=6 * MB))
    (bound,) = certificates(problem)
    assert bound.check()
    witness = bound.witness
    for other in (
        replace(witness, resources=witness.resources[1:]),
        replace(witness, resources=()),
        replace(witness, price=witness.price / 1000),
        replace(witness, horizon=100 * witness.horizon),
        replace(witness, horizon=Fraction(0)),
        replace(witness, price=Fraction(0)),
    ):
        assert not replace(bound, witness=other).check()


def test_sums_of_some_ranks_prove_nothing():
    """Sums that one rank does not contribute to, or does not want, yield no claim."""
    topology = crossbar(4)
    for collective in (
        collectives.reduce(4, root=0),
        collectives.allgather(4),
        collectives.custom(4, precondition={0: [0, 1, 2]}, postcondition={0: [0, 1, 2, 3]}, combining=True),
    ):
        problem = merging_freely(taccl.make_problem(topology, collective, chunk_bytes=MB))
        assert certificates(problem) == []


def sends_of_a_sum(rng, num_ranks):
    """Random sends (start, end) by which all ranks get all contributions; each takes 1 to 3 ticks."""
    held = {rank: {0: {rank}} for rank in range(num_ranks)}  # {rank: {tick: what arrives}}
    sends, rank_of, now = [], list(range(num_ranks)), 0
    shape = rng.choice(("any", "hub", "halves"))
    while any(len(set().union(*held[rank].values())) < num_ranks for rank in rank_of):
        for _ in range(rng.choice((1, 1, 2, num_ranks))):
            src, dst = rng.sample(rank_of, 2)
            if shape == "hub" and rng.random() < 0.7:
                src, dst = rng.choice(((0, dst), (src, 0)))
            elif shape == "halves" and rng.random() < 0.6:
                src, dst = rng.choice(((src % 2, dst), (src, dst % 2)))
            there = set().union(*(some for when, some in held[src].items() if when <= now))
            known = set().union(*held[dst].values())
            if src == dst or there <= known:
                continue
            end = now + rng.randint(1, 3)
            held[dst][end] = held[dst].get(end, set()) | there
            sends.append((now, end))
        now += 1
    return sends


@pytest.mark.fuzz
def test_few_sends_are_under_way_or_many_are_needed():
    """At any time, (n - 2) * s + (number of sends) >= n (n - 1), if s sends have ended or not started."""
    tight = 0
    for seed in cases("sends of a sum at a time", few=300, many=30_000):
        rng = random.Random(f"sum {seed}")
        num_ranks = rng.choice((3, 3, 4, 5, 8))
        sends = sends_of_a_sum(rng, num_ranks)
        for tick in range(max(end for _, end in sends) + 1):
            apart = sum(end <= tick or start >= tick for start, end in sends)
            left = (num_ranks - 2) * apart + len(sends) - num_ranks * (num_ranks - 1)
            assert left >= 0, seed
            tight += left == 0
    assert tight


@pytest.mark.fuzz
def test_no_sizes_of_sends_gain_more():
    """The finder and the checker compute the same maximum gain of the sends of a lane; random sends gain no
    more.

    A lane is a resource that all sends hold. A send gains its units, times the ticks from its end to the
    horizon, less the price of its latency.
    """
    for seed in cases("gains of sends", few=200, many=5_000):
        rng = random.Random(f"gain {seed}")
        lane = Lane(rng.choice((0, 1, 3, 10)), rng.choice((1, 2, 7)), rng.choice((0, 0, 2)))
        horizon, price = Fraction(rng.randint(1, 200), 2), Fraction(rng.randint(0, 30), 3)
        most = _gain(lane, horizon, price)
        assert most == _most_gained(horizon - lane.idle, lane.alpha, lane.beta, price), seed
        (near,) = _gain_near(lane, np.array([float(horizon)]), np.array([float(price)]))
        assert near == pytest.approx(float(most)), seed
        for _ in range(20):
            now, gained = Fraction(lane.idle), Fraction(0)
            for size in (Fraction(rng.randint(1, 40), 2) for _ in range(rng.randint(0, 7))):
                now += lane.alpha + lane.beta * size
                if now < horizon:
                    gained += size * (horizon - now) - price * Fraction(lane.alpha, lane.beta)
            assert gained <= most, seed


def random_machine(rng, num_ranks):
    """All pairs of ranks joined, with unequal costs; some links share a port at one end or at both."""
    builder = TopologyBuilder("random", [0] * num_ranks)
    beta, ports = rng.choice((1, 2)), {}
    alpha, overlaps = rng.choice((1, 2, 3)), rng.random() < 0.7
    for src in range(num_ranks):
        for dst in range(num_ranks):
            if src == dst or rng.random() < 0.1:
                continue
            latency = alpha + rng.choice((0, 0, 1))
            overhead = rng.randint(0, latency) if overlaps else latency
            link = builder.add_link(src, dst, alpha_us=latency, beta_us_per_mb=beta, overhead_us=overhead)
            for side, rank in (("send", src), ("receive", dst)):
                if rng.random() < 0.5:
                    port = ports.setdefault((rank, side), builder.add_resource(f"{side} {rank}"))
                    builder.add_hold(link, port, alpha_us=overhead, beta_us_per_mb=beta, side=side)
    return builder.build()


@pytest.mark.fuzz
def test_no_schedule_in_any_chunks_beats_the_flow():
    """A claim over all chunkings holds for every number of chunks: on tiny problems no schedule finishes
    earlier, nor does a baseline."""
    decided = claimed = 0
    for seed in cases("sum flow, over all schedules", few=6, many=1_000):
        rng = random.Random(f"sum flow {seed}")
        topology = random_machine(rng, rng.choice((3, 3, 3, 4)))
        problems = both_chunkings(topology, "allreduce")
        try:
            found = [each for problem in problems for each in certificates(problem)]
        except taccl.InputError:  # some rank is cut off
            continue
        claimed += any(each.bound > 0 for each in found)
        limits = {"max_states": 300, "most_chunks": 4}
        decided += num_decided(problems, found, seed, baselines=True, **limits)
    assert decided > some(1, 100) and claimed > some(2, 400)


@pytest.mark.fuzz
def test_no_baseline_beats_the_flow_on_crossbars():
    """On random crossbars every baseline, in every number of chunks, finishes no sooner than the claim."""
    nearest = []
    for seed in cases("sum flow on crossbars", few=2, many=300):
        rng = random.Random(f"crossbar {seed}")
        overhead = rng.choice((0, Fraction(1, 50), Fraction(1, 5)))
        topology = crossbar(
            rng.choice((3, 4, 6, 8)), alpha=rng.choice((1, 3)), overhead=overhead, beta=rng.choice((1, 4))
        )
        problem = taccl.make_problem(topology, "allreduce", size_bytes=rng.choice((10**5, 10**6, 3 * 10**6)))
        bounds = certificates(merging_freely(problem))
        assert all(each.check() for each in bounds), seed
        nearest += [float(finish / each.bound) for finish in baseline_finishes(problem) for each in bounds]
    assert 1 <= min(nearest) < 1.25
