"""Sums between nodes: a bound over all chunkings, by hand, against all schedules, and against baselines."""

import random
from fractions import Fraction
from functools import partial

import pytest

import taccl
from taccl.analysis.certificates.node_sums import node_sum_bounds
from taccl.analysis.certificates.transformed import merging_freely
from taccl.topology.builder import TopologyBuilder
from tests.analysis.claims import both_chunkings, certificates_of, is_unbeaten, raised, ratios
from tests.fuzzing import cases, some

MB = 10**6


#: Certificates of the claims on sums between nodes, over all chunkings.
certificates = partial(certificates_of, node_sum_bounds, divisible=True, in_network=False)


def machine(rng, sizes, *, is_tiny=False):
    """Nodes of the given numbers of ranks, with random costs, and NICs that some ranks share.

    - `is_tiny`: True for costs of few ticks, so that all schedules can be tried.
    """
    builder = TopologyBuilder("nodes", [node for node, size in enumerate(sizes) for _ in range(size)])
    alpha, overhead = rng.choice((0, 1, 2)), rng.choice((0, Fraction(1, 4)))
    beta, far_alpha, far_beta = rng.choice((1, 2)), rng.choice((1, 3, 4)), rng.choice((2, 5))
    if is_tiny:
        alpha, overhead, beta, far_alpha, far_beta = rng.choice((0, 1)), 0, 1, 1, rng.choice((1, 2))
    node = [node for node, size in enumerate(sizes) for _ in range(size)]
    sides = rng.choice((("send",), ("receive",), ("send", "receive")))
    shares, is_open = rng.choice((1, 1, 2)), rng.random() < 0.5
    nics = {
        (side, rank): builder.add_resource(f"NIC {side} {rank}")
        for side in sides
        for rank in range(0, len(node), shares)
    }
    for src in range(len(node)):
        for dst in range(len(node)):
            if src == dst:
                continue
            if node[src] == node[dst]:
                builder.add_link(
                    src, dst, alpha_us=alpha + overhead, beta_us_per_mb=beta, overhead_us=overhead
                )
            elif is_open or (src + dst) % 2 == 0 or sizes[node[src]] == 1 or sizes[node[dst]] == 1:
                held = rng.choice((0, overhead))
                link = builder.add_link(
                    src, dst, alpha_us=far_alpha, beta_us_per_mb=far_beta, overhead_us=overhead
                )
                for side, rank in (("send", src), ("receive", dst)):
                    if (side, rank // shares * shares) in nics:
                        builder.add_hold(
                            link, nics[side, rank // shares * shares],
                            alpha_us=held, beta_us_per_mb=far_beta, side=side,
                        )  # fmt: skip
    return builder.build()


def test_sums_of_eight_nodes_wait_for_the_first_ones_and_the_last_copies():
    """16 MB on eight DGX H100: 14 sends per byte over 64 NICs, and waits at both ends.

    The bytes take 70 us at the NICs, and each send goes on for 13.98 us. On average over the ranks of a node,
    3.0275 us pass until a rank holds a further contribution, and as many until a further copy is made.
    """
    problem = taccl.make_problem(taccl.topologies.dgx_h100(8), "allreduce", size_bytes=16 * MB)
    (bound,) = certificates(merging_freely(problem))
    waits = [0, *(Fraction(340 + 2 * i, 100) for i in range(7))]
    assert bound.kind == "sums between nodes"
    assert bound.bound == 70 + Fraction(1398, 100) + 2 * sum(waits) / 8
    assert bound.check()
    assert not raised(bound).check()


def test_small_data_prove_nothing():
    """If latencies take most of the time, a send may be both early and late, and nothing is claimed."""
    problem = taccl.make_problem(taccl.topologies.dgx_h100(8), "allreduce", size_bytes=10**5)
    assert not certificates(merging_freely(problem))
    for name in ("allgather", "reduce-scatter", "alltoall"):
        other = taccl.make_problem(taccl.topologies.dgx_h100(2), name, size_bytes=16 * MB)
        assert not certificates(merging_freely(other))


@pytest.mark.fuzz
def test_no_schedule_in_any_chunks_beats_the_sums_between_nodes():
    """On tiny machines no schedule finishes before the claim, in one or two chunks per rank."""
    decided = claimed = 0
    for seed in cases("sums between nodes, over all schedules", few=3, many=300):
        rng = random.Random(f"sums between nodes {seed}")
        topology = machine(rng, rng.choice(([1, 1], [1, 2], [2, 1], [1, 1, 1])), is_tiny=True)
        for problem in both_chunkings(topology, "allreduce"):
            found = certificates(problem)
            assert all(each.check() for each in found), seed
            best = max((each.bound for each in found), default=Fraction(0))
            claimed += best > 0
            decided += best > 0 and is_unbeaten(problem, best, max_states=1_000)
    assert decided > some(0, 30) and claimed > some(2, 200)


@pytest.mark.fuzz
def test_no_baseline_beats_the_sums_between_nodes():
    """On random machines baselines, and a search, finish no sooner than the claim, in every number of chunks."""
    nearest = []
    for seed in cases("sums between nodes against baselines", few=2, many=300):
        rng = random.Random(f"baselines between nodes {seed}")
        topology = machine(rng, [rng.choice((1, 2, 3, 4))] * rng.choice((2, 3, 4)))
        problem = taccl.make_problem(topology, "allreduce", size_bytes=rng.choice((8, 24, 48)) * MB)
        bounds = certificates(merging_freely(problem))
        assert not any(raised(each).check() for each in bounds), seed
        nearest += ratios(bounds, problem, seed, searched=True)
    assert 1 <= min(nearest) < 1.25
