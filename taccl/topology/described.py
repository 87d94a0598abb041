"""Machines described in a few lines: what joins the GPUs of a node, its network cards, and the network."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from typing import TYPE_CHECKING

from taccl.errors import TopologyError
from taccl.topology.machines import SHAPES
from taccl.topology.parts import LinkCost, add_internode, add_nodes, check_num_links, check_ranks
from taccl.topology.topology import TopologyBuilder

if TYPE_CHECKING:
    from taccl.topology.file_schema import NicsEntry, NodeEntry, TopologyFile
    from taccl.topology.topology import Topology


def described_machine(file: TopologyFile, default_name: str) -> Topology:
    """The topology of a file's ``[node]``, ``[nics]`` and ``[network]``.

    Nodes are alike. A network card serves one send at a time out and one in, at its rate. A network that is
    oversubscribed k times carries a k-th of what all cards of a node do, out of it and into it.

    Raises `TopologyError` if nodes are joined by no cards, cards and GPUs do not fit, or there would be too
    many links.
    """
    node, nics, network = file.node, file.nics, file.network
    assert node is not None
    num_nodes = 1 if network is None else network.nodes
    size = node.gpus
    pairs = _pairs(node)
    nic_of_gpu = {} if nics is None else _nic_of_gpu(nics, size)
    joined: list[tuple[int, int]] = []
    if num_nodes > 1:
        if nics is None or network is None:
            raise TopologyError(f"found {num_nodes} nodes, and no [nics] to join them; give it", where="nics")
        joined = [(a, b) for a in nic_of_gpu for b in nic_of_gpu if a == b or not network.rails]
    num_links = num_nodes * size**2 + num_nodes * (num_nodes - 1) * len(joined)
    check_num_links(num_links, where="node.gpus, network.nodes")
    builder = TopologyBuilder(
        default_name if file.name is None else file.name,
        [number for number in range(num_nodes) for _ in range(size)],
        alpha_meaning=file.alpha_meaning,
        launch_us=file.launch_us or Fraction(0),
    )
    costs = {count: LinkCost(node.alpha_us, node.rate() / count, node.overhead_us) for count in (1, 2)}
    add_nodes(builder, num_nodes, size, pairs, costs, switch="switch", reduces=node.reduces)
    if joined:
        assert nics is not None
        assert network is not None
        _add_network(builder, nics, nic_of_gpu, network.oversubscription, joined, size, num_nodes)
    return builder.build()


def _pairs(node: NodeEntry) -> dict[tuple[int, int], int]:
    """How many links join each pair of GPUs in a node; none behind a switch."""
    if node.fabric == "hybrid":
        if node.gpus != 8:
            raise TopologyError(
                f"found {node.gpus} GPUs; the hybrid cube mesh, that of DGX-1, has 8", where="node.gpus"
            )
        return dict(SHAPES["dgx1"].pairs)
    every = combinations(range(node.gpus), 2)
    if node.fabric == "ring":
        return {(a, b): 1 for a, b in every if b - a in (1, node.gpus - 1)}
    return dict.fromkeys(every, 1) if node.fabric == "mesh" else {}


def _nic_of_gpu(nics: NicsEntry, size: int) -> dict[int, int]:
    """The network card of every GPU that has one; cards of one GPU count as one."""
    if nics.gpus is None:
        if size % nics.count and nics.count % size:
            raise TopologyError(
                f"found {nics.count} for {size} GPUs, of which neither divides the other; say which GPUs "
                "each card serves, e.g. gpus = [[0, 1], [2, 3]]",
                where="nics.count",
            )
        return {gpu: gpu * min(nics.count, size) // size for gpu in range(size)}
    if len(nics.gpus) != nics.count:
        raise TopologyError(
            f"found {len(nics.gpus)} entries for {nics.count} cards; give the GPUs of each card",
            where="nics.gpus",
        )
    nic_of_gpu: dict[int, int] = {}
    for nic, gpus in enumerate(nics.gpus):
        check_ranks(gpus, size, where=f"nics.gpus[{nic}]", of="a node has GPUs")
        for gpu in gpus:
            if gpu in nic_of_gpu:
                raise TopologyError(
                    f"found GPU {gpu} at card {nic_of_gpu[gpu]} too; name each GPU once",
                    where=f"nics.gpus[{nic}]",
                )
            nic_of_gpu[gpu] = nic
    return nic_of_gpu


def _add_network(
    builder: TopologyBuilder,
    nics: NicsEntry,
    nic_of_gpu: dict[int, int],
    oversubscription: Fraction,
    joined: list[tuple[int, int]],
    size: int,
    num_nodes: int,
) -> None:
    num_cards = len(set(nic_of_gpu.values()))
    cards_in_one = max(1, nics.count // size) if nics.gpus is None else 1
    beta = nics.rate() / cards_in_one
    uplink_beta = beta * oversubscription / num_cards
    first = len(builder.links)
    # What no card could do at its full rate alone is as slow as the node's uplink.
    cost = LinkCost(nics.alpha_us, max(beta, uplink_beta), nics.overhead_us)
    add_internode(
        builder, num_nodes, size, joined, cost, nic_of_place=nic_of_gpu,
        nic_alpha_us=min(nics.overhead_us, nics.alpha_us), link_name="network",
    )  # fmt: skip
    if oversubscription == 1:
        return
    uplinks = [builder.add_resource(f"uplink of node {number}") for number in range(num_nodes)]
    downlinks = [builder.add_resource(f"downlink of node {number}") for number in range(num_nodes)]
    for index in range(first, len(builder.links)):
        link = builder.links[index]
        out, into = uplinks[link.src // size], downlinks[link.dst // size]
        builder.add_hold(index, out, alpha_us=0, beta_us_per_mb=uplink_beta)
        builder.add_hold(index, into, alpha_us=0, beta_us_per_mb=uplink_beta, side="receive")
