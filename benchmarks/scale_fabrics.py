"""Fabrics, chunk sizes and process groups of the scaling benchmark, besides taccl's own machines."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

import taccl
from taccl.topology.builder import TopologyBuilder
from taccl.topology.topology import AlphaMeaning, Hold, Resource, Topology
from taccl.topology.transform import without

if TYPE_CHECKING:
    from collections.abc import Callable

    from taccl.problem.collective import Collective

ALPHA_US = "0.5"
MB = 10**6


def h100(nodes: int) -> Callable[[], Topology]:
    """Function that returns DGX-H100 nodes at the rates of data sheets."""
    return lambda: taccl.topologies.dgx_h100(nodes, profile="nominal")


def uneven_mesh(size: int, seed: int = 0) -> Topology:
    """Mesh of `size` x `size` ranks without latency; each link direction has a random rate, 10 to 50 GB/s."""
    rng = np.random.default_rng(seed)
    ranks = np.arange(size * size).reshape(size, size)
    builder = TopologyBuilder(f"uneven mesh {size}x{size}", [0] * ranks.size)
    beside = (np.stack((ranks[:, :-1], ranks[:, 1:])), np.stack((ranks[:-1], ranks[1:])))
    for a, b in np.concatenate([each.reshape(2, -1) for each in beside], axis=1).T.tolist():
        for src, dst in ((a, b), (b, a)):
            builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=int(rng.integers(20, 101)))
    return builder.build()


def rail_rings(nodes: int) -> Topology:
    """Topology of `nodes` full meshes of 8 ranks at 50 GB/s, with a ring at 12.5 GB/s for each local rank."""
    builder = TopologyBuilder(f"rail-rings x{nodes}", [rank // 8 for rank in range(8 * nodes)])
    for node in range(nodes):
        for src, dst in itertools.permutations(range(8 * node, 8 * node + 8), 2):
            builder.add_link(src, dst, alpha_us=ALPHA_US, beta_us_per_mb=20)
    for node in range(nodes):
        for rail in range(8):
            here, there = 8 * node + rail, 8 * ((node + 1) % nodes) + rail
            for src, dst in ((here, there), (there, here)):
                builder.add_link(src, dst, alpha_us=ALPHA_US, beta_us_per_mb=80)
    return builder.build()


def dragonfly(
    groups: int = 9, ranks: int = 8, *, us_per_mb: int = 10, alpha_meaning: AlphaMeaning = "occupies"
) -> Topology:
    """Dragonfly: fully connected groups at 100 GB/s, and one link at 25 GB/s from every group to every other.

    If there are more other groups than ranks in a group, ranks have several of these links.
    """
    nodes = [group for group in range(groups) for _ in range(ranks)]
    builder = TopologyBuilder(f"dragonfly {groups}x{ranks}", nodes, alpha_meaning=alpha_meaning)
    for group in range(groups):
        for src, dst in itertools.permutations(range(group * ranks, (group + 1) * ranks), 2):
            builder.add_link(src, dst, alpha_us=ALPHA_US, beta_us_per_mb=us_per_mb)
    for group in range(groups):
        for step in range(1, groups):
            other = (group + step) % groups
            src, dst = group * ranks + (step - 1) % ranks, other * ranks + (groups - step - 1) % ranks
            builder.add_link(src, dst, alpha_us=ALPHA_US, beta_us_per_mb=40)
    return builder.build()


def random_regular(num_ranks: int, degree: int, seed: int = 0) -> Topology:
    """Random graph in which every rank has `degree` neighbours, with links in both directions at 50 GB/s."""
    rng = random.Random(seed)
    ends = [rank for rank in range(num_ranks) for _ in range(degree)]
    edges: set[tuple[int, int]] = set()
    while len(edges) * 2 < num_ranks * degree:
        # Pair ends at random; pairs that form a loop or a double edge are returned, with some others.
        used = {rank: 0 for rank in range(num_ranks)}
        for edge in list(edges):
            if rng.random() < 0.1:
                edges.discard(edge)
        for a, b in edges:
            used[a] += 1
            used[b] += 1
        ends = [rank for rank in range(num_ranks) for _ in range(degree - used[rank])]
        rng.shuffle(ends)
        for a, b in zip(ends[::2], ends[1::2], strict=True):
            if a != b and (min(a, b), max(a, b)) not in edges:
                edges.add((min(a, b), max(a, b)))
    builder = TopologyBuilder(f"random {degree}-regular {num_ranks}", [0] * num_ranks)
    for a, b in sorted(edges):
        for src, dst in ((a, b), (b, a)):
            builder.add_link(src, dst, alpha_us=ALPHA_US, beta_us_per_mb=20)
    return builder.build()


def oversubscribed(nodes: int = 64, nodes_per_leaf: int = 32) -> Topology:
    """DGX-H100 on rails whose leaf switches share a spine with 2:1 oversubscription.

    A leaf joins one rail of `nodes_per_leaf` nodes. Traffic to another leaf uses an uplink and a downlink,
    each as fast as a port and shared by two nodes.
    """
    topology = taccl.topologies.dgx_h100(nodes, profile="nominal")
    resources, holds = list(topology.resources), list(topology.holds)
    for side in ("uplink", "downlink"):
        resources += [Resource(f"{side} {i} of rail {r}") for i in range(-(-nodes // 2)) for r in range(8)]
    first, half = len(topology.resources), -(-nodes // 2) * 8
    for index in topology.internode_links:
        link = topology.links[index]
        src, dst = link.src // 8, link.dst // 8
        if src // nodes_per_leaf != dst // nodes_per_leaf:
            uplink, downlink = (first + node // 2 * 8 + link.src % 8 for node in (src, dst))
            holds.append(Hold(index, uplink, Fraction(0), link.beta_us_per_mb, "send"))
            holds.append(Hold(index, downlink + half, Fraction(0), link.beta_us_per_mb, "receive"))
    name = f"{topology.name}, 2:1 spine"
    return replace(topology, name=name, machine="", resources=tuple(resources), holds=tuple(holds))


def mesh_with_failure() -> Topology:
    """Mesh of 32 x 32 ranks without one link in its middle."""
    mesh = taccl.topologies.mesh(32, 32)
    return without(mesh, links=[(16 * 32 + 15, 16 * 32 + 16)])


def zipf_sizes(collective: Collective, *, by_destination: bool = False, seed: int = 0) -> list[int]:
    """Chunk sizes of an alltoall in bytes: for each rank, Zipf's law of exponent 0.8, averaging 1 MB.

    - `by_destination`: True if all ranks send most to the same destinations; else their order is random.
    """
    rng = np.random.default_rng(seed)
    num_ranks = collective.num_ranks
    weights = np.arange(1, num_ranks + 1) ** -0.8
    kilobytes = np.maximum(1, np.round(1000 * weights / weights.mean())).astype(int)
    orders = [rng.permutation(num_ranks) for _ in range(num_ranks)]
    order = [orders[0] if by_destination else orders[c.origins[0]] for c in collective.chunks]
    return [
        1000 * int(kilobytes[places[c.destinations[0]]])
        for places, c in zip(order, collective.chunks, strict=True)
    ]


def hot_sizes(collective: Collective) -> list[int]:
    """Chunk sizes of `zipf_sizes` in which all ranks send most to the same destinations."""
    return zipf_sizes(collective, by_destination=True)


def strided_groups(topology: Topology) -> list[list[int]]:
    """16 equal groups, each of every 16th rank: one local rank of every second node."""
    return [list(range(first, topology.num_ranks, 16)) for first in range(16)]


def neighbouring_groups(topology: Topology) -> list[list[int]]:
    """16 equal groups, each of consecutive nodes."""
    size = topology.num_ranks // 16
    return [list(range(first, first + size)) for first in range(0, topology.num_ranks, size)]


def paired_groups(topology: Topology) -> list[list[int]]:
    """Groups of two ranks from each of 16 consecutive nodes, on nodes of 8 ranks."""
    return [
        [8 * node + 2 * pair + i for node in range(first, first + 16) for i in range(2)]
        for first in range(0, topology.num_nodes, 16)
        for pair in range(4)
    ]


def random_groups(topology: Topology, count: int = 16, seed: int = 0) -> list[list[int]]:
    """`count` equal groups of random ranks."""
    ranks = list(range(topology.num_ranks))
    random.Random(seed).shuffle(ranks)
    size = len(ranks) // count
    return [sorted(ranks[first : first + size]) for first in range(0, len(ranks), size)]


def random_quarters(topology: Topology) -> list[list[int]]:
    """4 equal groups of random ranks."""
    return random_groups(topology, 4, seed=1)


def without_nic(topology: Topology) -> Topology:
    """The topology without NIC 0 of node 0."""
    return without(topology, resources=["NIC 0 of node 0 egress", "NIC 0 of node 0 ingress"])
