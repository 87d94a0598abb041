"""Hop time: sends that take data one hop farther from their origin; by hand and at random."""

import random
from dataclasses import replace
from fractions import Fraction
from functools import partial

import pytest

import taccl
from taccl.analysis.certificates.hop_time import _least_charge, hop_time_bounds
from taccl.analysis.certificates.transformed import merging_freely
from taccl.topology.builder import TopologyBuilder
from tests.analysis.claims import baseline_finishes, both_chunkings, certificates_of, num_decided, raised
from tests.fuzzing import cases, some

#: Certificates of the claims over all chunkings.
certificates = partial(certificates_of, hop_time_bounds, divisible=True, in_network=False)


def of(topology, name, size):
    """The only certificate of a collective with merged sends."""
    (found,) = certificates(merging_freely(taccl.make_problem(topology, name, size_bytes=size)))
    return found


def one_way_ring(num_ranks):
    """A ring with links of 2 us + 1 us/MB in one direction."""
    builder = TopologyBuilder("one-way", [0] * num_ranks)
    for rank in range(num_ranks):
        builder.add_link(rank, (rank + 1) % num_ranks, alpha_us=2, beta_us_per_mb=1)
    return builder.build()


@pytest.mark.parametrize("name", ["allgather", "reduce-scatter"])
@pytest.mark.parametrize("num_ranks", [2, 3, 5])
def test_the_ring_algorithm_meets_the_bound_on_a_one_way_ring(num_ranks, name):
    """1 MB per rank passes n - 1 links, each in 3 us, while all links are busy.

    A send of 3 us spends 2 us on latency. Fewer bytes per send would spend more of the links' time on it.
    """
    bound, finish = of(one_way_ring(num_ranks), name, num_ranks * 10**6), 3 * (num_ranks - 1)
    assert 0.999 * finish < bound.bound <= finish and bound.check()
    problem = replace(bound.problem, chunks_open=False)
    assert taccl.baselines.ring(problem, cut=False).finish == finish


@pytest.mark.parametrize(
    ("topology", "name", "size", "us"),
    [
        ("torus:4x8", "allgather", 250_000, 3.38),
        ("torus:4x8", "reduce-scatter", 250_000, 3.38),
        ("torus:8x8", "allgather", 10**6, 6.57),
        ("torus:4x4x8", "allgather", 10**6, 4.9),
        ("torus:4x8", "alltoall", 64_000, 3.2),
    ],
)
def test_long_paths_and_many_bytes_count_together(topology, name, size, us):
    """On tori, the bound is the highest where latency and bandwidth both matter; mean flow time proves 3.078 us
    for 250 KB on 4 x 8 ranks."""
    problem = taccl.make_problem(taccl.topologies.parse(topology), name, size_bytes=size)
    bound = taccl.lower_bound(problem, divisible=True)
    assert bound.kind == "hop time" and us <= bound.bound_us and bound.check()
    assert bound.bound <= min(baseline_finishes(problem))


def test_the_certificate_proves_no_more():
    """The witness proves no later finish, and nothing without its resources or with hops that do not fit."""
    bound = of(taccl.topologies.torus(3, 4), "allgather", 10**6)
    assert bound.check() and not raised(bound).check()
    (hops,) = bound.witness.hops
    for changed in (
        {"resources": bound.witness.resources[1:]},
        {"hops": ()},
        {"hops": (hops[1:],)},
        {"hops": ((*hops[1:], Fraction(0)),)},
        {"hops": (tuple(2 * hop for hop in hops),)},
        {"horizon": bound.witness.horizon * Fraction(101, 100)},
    ):
        assert not replace(bound, witness=replace(bound.witness, **changed)).check()
    assert not bound.witness.fits(taccl.make_problem(taccl.topologies.ring(3), "allgather", size_bytes=1000))


def test_other_hops_prove_a_smaller_bound():
    """Hops that are not the best prove less, and are accepted for that."""
    bound = of(taccl.topologies.torus(4, 4), "allgather", 10**6)
    (hops,) = bound.witness.hops
    other = replace(bound.witness, hops=(tuple(hop * Fraction(9, 10) for hop in hops),))
    assert not replace(bound, witness=other).check()
    less = replace(other, horizon=bound.witness.horizon * Fraction(9, 10))
    assert replace(bound, witness=less, bound=bound.bound * Fraction(9, 10)).check()


@pytest.mark.fuzz
def test_no_arrivals_are_charged_less():
    """The charge of random first arrivals is at least the lower bound from any other arrivals."""
    for seed in cases("arrivals", few=200, many=5_000):
        rng = random.Random(f"arrivals {seed}")
        counts = [0, *(rng.randint(0, 4) for _ in range(rng.randint(0, 4))), rng.randint(1, 3)]
        alpha, extra = Fraction(rng.randint(1, 3)), Fraction(rng.randint(1, 8), rng.randint(1, 3))
        horizon = (len(counts) - 1) * alpha + Fraction(rng.randint(1, 40), 4)

        def hops(rng=rng, counts=counts, alpha=alpha, horizon=horizon):
            shares = [rng.randint(1, 9) for _ in counts]
            spare = horizon - (len(counts) - 1) * alpha
            return [alpha + spare * Fraction(share, sum(shares)) for share in shares[1:]]

        given, start, charge = hops(), Fraction(0), Fraction(0)
        for number, hop in zip(counts[1:], given, strict=True):
            charge += 1 + extra / (hop - alpha)
            charge += max(number - 1, 0) * (1 + extra / (horizon - start - alpha))
            start += hop
        for each in (given, hops(), hops()):
            assert _least_charge(counts, each, horizon, alpha, extra) <= charge, seed


def random_network(rng):
    """A ring, line or random graph of three or four ranks, in one or both directions; links may share ports."""
    num_ranks = rng.choice((3, 3, 4))
    ends = [(rank, (rank + 1) % num_ranks) for rank in range(num_ranks)]
    if rng.random() < 0.5:
        ends = [*ends, *((b, a) for a, b in ends)]
        ends = ends if rng.random() < 0.5 else [(a, b) for a, b in ends if abs(a - b) == 1]
    elif rng.random() < 0.5:
        ends.append((rng.randrange(1, num_ranks), 0))
    builder = TopologyBuilder("random", [0] * num_ranks)
    occupies, ports = rng.random() < 0.7, {}
    alike = rng.choice((1, 2, 3)), rng.choice((1, 2))
    for src, dst in dict.fromkeys(ends):
        alpha, beta = alike if rng.random() < 0.7 else (rng.choice((0, 1, 2, 3)), rng.choice((1, 2, 3)))
        overhead = alpha if occupies else rng.randint(0, alpha)
        link = builder.add_link(src, dst, alpha_us=alpha, beta_us_per_mb=beta, overhead_us=overhead)
        for side, rank in (("send", src), ("receive", dst)):
            if rng.random() < 0.2:
                port = ports.setdefault((rank, side), builder.add_resource(f"{side} {rank}"))
                builder.add_hold(link, port, alpha_us=rng.randint(0, alpha), beta_us_per_mb=beta, side=side)
    return builder.build()


@pytest.mark.fuzz
def test_no_schedule_in_any_chunks_takes_fewer_hops():
    """A bound over all chunkings holds for every number of chunks: on tiny problems no schedule finishes
    earlier."""
    decided = claimed = 0
    for seed in cases("hop time, over all schedules", few=8, many=1_000):
        rng = random.Random(f"hops {seed}")
        names = [
            "allgather",
            "allgather",
            "broadcast",
            "scatter",
            "gather",
            "alltoall",
            "reduce-scatter",
            "reduce",
        ]
        problems = both_chunkings(random_network(rng), rng.choice(names))
        found = [each for problem in problems for each in certificates(problem)]
        claimed += any(each.bound > 0 for each in found)
        decided += num_decided(problems, found, seed, baselines=True, max_states=500, most_chunks=8)
    assert decided > some(1, 200) and claimed > some(3, 200)


@pytest.mark.fuzz
def test_no_merged_baseline_takes_fewer_hops_on_grids():
    """On random tori and meshes every baseline, in every number of chunks, finishes no sooner than the claim."""
    for seed in cases("hop time on grids", few=3, many=300):
        rng = random.Random(f"hops on grids {seed}")
        make = rng.choice((taccl.topologies.torus, taccl.topologies.torus, taccl.topologies.mesh))
        sizes = [rng.choice((2, 3, 4)) for _ in range(rng.choice((1, 2, 2, 3)))]
        topology = make(
            *sizes, alpha_us=rng.choice(("0.1", "0.5", "2")), bandwidth_gb_per_s=rng.choice((10, 50)),
            alpha_meaning=rng.choice(("occupies", "occupies", "pipelined")),
        )  # fmt: skip
        name = rng.choice(["allgather", "allgather", "reduce-scatter", "alltoall", "broadcast"])
        problem = taccl.make_problem(topology, name, size_bytes=rng.choice((4_000, 64_000, 10**6)))
        bounds = certificates(merging_freely(problem))
        assert all(each.check() for each in bounds), seed
        best = max((each.bound for each in bounds), default=Fraction(0))
        assert all(best <= finish for finish in baseline_finishes(problem)), seed
