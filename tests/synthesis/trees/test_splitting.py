"""Replacement of switches by links between ranks, with equal throughput."""

import numpy as np
import pytest

import taccl
from taccl.synthesis.trees.network import find_cut, least_time, network_of, split_switches
from taccl.topologies import parse

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
    return network, capacity, counts, split_switches(network, capacity, counts)


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
