"""Flow networks of topologies, and the throughput of chunks for all ranks."""

from fractions import Fraction

import numpy as np
import pytest

import taccl
from taccl.synthesis.trees.network import least_time, network_of, trees_per_chunk
from taccl.topology.builder import TopologyBuilder


def network(topology, size=10**6):
    """Flow network of an allgather, number of chunks of each rank (one), and the problem."""
    problem = taccl.make_problem(topology, "allgather", size_bytes=size).in_its_chunks
    return network_of(problem), np.ones(topology.num_ranks, np.int64), problem


def star(*, egress, ingress):
    """Three ranks behind a switch, with ports of `egress` and `ingress` us/MB."""
    builder = TopologyBuilder("star", [0] * 3)
    out = [builder.add_resource(f"out {rank}") for rank in range(3)]
    into = [builder.add_resource(f"in {rank}") for rank in range(3)]
    for src in range(3):
        for dst in range(3):
            if src != dst:
                link = builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=2)
                builder.add_hold(link, out[src], alpha_us=0, beta_us_per_mb=egress)
                builder.add_hold(link, into[dst], alpha_us=0, beta_us_per_mb=ingress, side="receive")
    return builder.build()


def test_a_line_of_links_has_no_switch():
    """Links without shared resources are arcs between ranks."""
    found, *_ = network(taccl.topologies.ring(4))
    assert (found.num_ranks, found.num_nodes, len(found.tail)) == (4, 4, 8)


def test_ports_meet_in_one_switch():
    """Ports of three ranks become arcs to and from one additional node."""
    found, *_ = network(star(egress=2, ingress=2))
    assert found.num_nodes == 4
    assert sorted(zip(found.tail.tolist(), found.head.tolist(), strict=True)) == [
        (0, 3), (1, 3), (2, 3), (3, 0), (3, 1), (3, 2),
    ]  # fmt: skip


def test_a_switch_sends_no_more_than_it_receives():
    """If ports receive at twice the rate at which they send, half of the receiving rate is used."""
    found, *_ = network(star(egress=2, ingress=1))
    assert set(found.share) == {Fraction(1), Fraction(1, 2)}


def test_the_narrowest_set_of_ranks_limits_throughput():
    """Two pairs of ranks are joined by one slow link: two chunks cross it each way, 10 us each."""
    builder = TopologyBuilder("pairs", [0, 0, 1, 1])
    for src, dst, beta in ((0, 1, 1), (1, 0, 1), (2, 3, 1), (3, 2, 1), (1, 2, 10), (2, 1, 10)):
        builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=beta)
    found, counts, problem = network(builder.build(), size=4 * 10**6)
    ticks, capacity = least_time(found, counts, int(problem.costs.chunk_units[0]))
    assert problem.costs.us(ticks) == 20
    assert capacity[found.tail == 1][0] >= 2


@pytest.mark.parametrize(("num_ranks", "parts"), [(3, 1), (4, 2), (5, 1), (6, 2)])
def test_parts_that_fill_a_ring(num_ranks, parts):
    """Whole chunks fill both directions of a ring with an odd number of ranks; with an even number chunks
    must be halved."""
    found, counts, _ = network(taccl.topologies.ring(num_ranks))
    assert trees_per_chunk(found, counts)[1] == parts


def test_whole_chunks_take_at_least_the_optimum():
    """On a ring of four, whole chunks take two steps in both directions, half chunks one and a half."""
    topology = taccl.topologies.ring(4, alpha_us=0, bandwidth_gb_per_s=1)
    found, counts, problem = network(topology, size=4 * 10**6)
    units = int(problem.costs.chunk_units[0])
    optimum = trees_per_chunk(found, counts)[0] * units
    assert Fraction(least_time(found, counts, units)[0]) == optimum * Fraction(4, 3)
