"""Flow networks of topologies, their throughput, and replacement of switches by links between ranks."""

from fractions import Fraction

import numpy as np
import pytest

import taccl
from taccl.synthesis.trees.network import find_cut, least_time, network_of, split_switches, trees_per_chunk
from taccl.topologies import parse
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


MACHINES = [
    ("dgx2", 2),
    ("ndv2", 2),
    ("dgx-a100", 2),
    ("star:5", None),
    ("multidim:switch4@100,ring3@50", None),
]


def split(topology, parts):
    """Flow network of an allgather, arc capacities, chunks of each rank, and links that replace the switches."""
    collective = taccl.collectives.allgather(topology.num_ranks, chunks_per_rank=parts)
    problem = taccl.make_problem(topology, collective, size_bytes=10**9)
    network, counts = network_of(problem), np.full(topology.num_ranks, parts)
    _, capacity = least_time(network, counts, int(problem.costs.chunk_units[0]))
    return network, capacity, counts, split_switches(network, capacity, counts)[0]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "nodes"), MACHINES)
def test_links_carry_what_switches_did(name, nodes):
    """After splitting, arcs stay within capacity, and every rank can still receive all chunks."""
    network, capacity, counts, found = split(parse(name, nodes=nodes), 12)
    used, topology = np.zeros_like(capacity), parse(name, nodes=nodes)
    links = np.zeros((network.num_ranks, network.num_ranks), np.int64)
    for link, count in found.items():
        used[list(network.arcs_of_link[link])] += count
        links[topology.links[link].src, topology.links[link].dst] += count
    assert (used <= capacity).all()
    tail, head = np.nonzero(links)
    plain = network.__class__(network.num_ranks, network.num_ranks, tail, head, tail, head, (), {})
    assert find_cut(plain, links[tail, head], counts, np.arange(network.num_ranks)) is None


def test_a_port_serves_one_partner_where_that_suffices():
    """Ranks behind one switch become a ring, so each port serves one partner."""
    *_, found = split(taccl.topologies.star(5), 1)
    assert len(found) == 5


def test_nics_share_a_slower_uplink():
    """Four NICs of 25 GB/s behind an uplink of 50 GB/s each send two of eight chunks, none of them four."""
    builder = TopologyBuilder("uplinks", [0] * 4 + [1] * 4)
    uplinks = [builder.add_resource(f"uplink {node}") for node in range(2)]
    nics = [builder.add_resource(f"NIC {rank}") for rank in range(8)]
    for src in range(8):
        for dst in range(8):
            if src != dst:
                crosses = src // 4 != dst // 4
                link = builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=40 if crosses else 1)
                if crosses:
                    builder.add_hold(link, nics[src], alpha_us=0, beta_us_per_mb=40)
                    builder.add_hold(link, uplinks[src // 4], alpha_us=0, beta_us_per_mb=20)
    topology = builder.build()
    *_, found = split(topology, 2)
    sent = np.zeros(8, int)
    for link, count in found.items():
        if topology.is_internode(link):
            sent[topology.links[link].src] += count
    assert sent.tolist() == [2] * 8
