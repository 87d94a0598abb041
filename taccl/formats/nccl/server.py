"""A server as files describe it, and topologies of several such servers.

A server is a tree of PCIe: CPUs, switches, GPUs and NICs. NVLinks join GPUs pair by pair, or through
NVSwitch. A rank is a GPU, a node is a server; ``docs/formats.md`` says what the topology makes of that. A
resource is left out where another one, held by at least the same sends for at least as long, says it all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from importlib import import_module
from itertools import combinations, cycle, pairwise, permutations
from typing import Any, Literal, NamedTuple

from taccl.errors import TopologyError
from taccl.topology.parts import OVERHEAD_US, LinkCost, add_crossbar, check_count, check_num_links
from taccl.topology.topology import Side, Topology, TopologyBuilder

Pair = tuple[int, int]
#: What limits a send on its way: a name, a beta, and the end of the send that keeps it busy.
WayStep = tuple[str, Fraction, Side]

PcieUse = Literal["where-needed", "always"]

#: TACCL's published constants of NDv2 (topo-ndv2-1MB.json: alpha, remote_alpha); PCIe is given NVLink's.
INTRANODE_ALPHA_US = Fraction("0.3")
INTERNODE_ALPHA_US = Fraction("2.6")


class Nic(NamedTuple):
    """A network interface at a node of the tree."""

    name: str
    at: str
    beta_us_per_mb: Fraction


@dataclass(eq=False)
class PcieServer:
    """One node: its tree of PCIe, where in it each local rank is, and what joins them.

    - `tree`: Of CPUs, switches and devices; what limits a step from one to the next is its edge's ``step``.
    - `nvlinks` (mapping of (int, int) to int): NVLinks between two local ranks, the lower rank first.
    - `switches` (tuple of (tuple of int, int)): Local ranks that an NVSwitch joins, and NVLinks of each into
      it.
    - `nvlink_beta_us_per_mb`: Of one NVLink.
    """

    name: str
    tree: Any = field(default_factory=lambda: import_module("networkx").DiGraph())
    cpus: dict[str, Fraction | None] = field(default_factory=dict)
    gpus: list[str] = field(default_factory=list)
    nics: list[Nic] = field(default_factory=list)
    nvlinks: Mapping[tuple[int, int], int] = field(default_factory=dict)
    switches: tuple[tuple[tuple[int, ...], int], ...] = ()
    nvlink_beta_us_per_mb: Fraction = Fraction(1)

    def add_cpu(self, name: str, beta_us_per_mb: Fraction | None) -> None:
        """A CPU, with links to every other CPU of that beta; None where they limit nothing."""
        for other, beta in self.cpus.items():
            self.tree.add_edge(name, other, step=(f"{name} to {other}", beta_us_per_mb, "send"))
            self.tree.add_edge(other, name, step=(f"{other} to {name}", beta, "send"))
        self.tree.add_node(name)
        self.cpus[name] = beta_us_per_mb

    def add_device(self, key: str, parent: str, beta_us_per_mb: Fraction, *, name: str) -> None:
        """A PCIe switch or a device below another part, and the link between the two, as fast both ways."""
        self.tree.add_edge(key, parent, step=(f"PCIe out of {name}", beta_us_per_mb, "send"))
        self.tree.add_edge(parent, key, step=(f"PCIe into {name}", beta_us_per_mb, "receive"))

    def way(self, start: str, end: str) -> list[str]:
        """The parts from one to another, up and down the tree, and from one CPU to another if need be."""
        found: list[str] = import_module("networkx").shortest_path(self.tree, start, end)
        return found

    def steps(self, start: str, end: str) -> list[WayStep]:
        """The steps that limit a way: name, beta, and the end of a send that keeps each busy."""
        steps = [self.tree.edges[pair]["step"] for pair in pairwise(self.way(start, end))]
        return [(name, beta, side) for name, beta, side in steps if beta is not None]


@dataclass(frozen=True, slots=True)
class Wiring:
    """What a person decides about a topology of servers; see `load_nccl_topology` for what each means."""

    nodes: int = 1
    pcie: PcieUse = "where-needed"
    rails: bool = False
    intranode_alpha_us: Fraction = INTRANODE_ALPHA_US
    internode_alpha_us: Fraction = INTERNODE_ALPHA_US


def build_servers(server: PcieServer, wiring: Wiring, *, profile: str, notes: Iterable[str]) -> Topology:
    """The topology of ``wiring.nodes`` equal servers."""
    size, nodes = len(server.gpus), check_count(wiring.nodes, where="nodes")
    check_num_links(nodes * nodes * size * size, where=f"{server.name}: nodes")
    if nodes > 1 and not server.nics:
        raise TopologyError(
            f"found {nodes} nodes of a server without a NIC; expected a NIC to join them by; name one, or "
            "ask for one node",
            where=f"{server.name}: nodes",
        )
    builder = TopologyBuilder(
        f"{server.name} x{nodes}",
        [node for node in range(nodes) for _ in range(size)],
        profile=profile,
    )
    shared = _Shared(builder)
    by_pcie = _pairs_by_pcie(server, wiring.pcie)
    for node in range(nodes):
        _add_node(shared, server, wiring, node, by_pcie)
    nic_of_rank = _nearest_nics(server)
    if nodes > 1:
        _join_nodes(shared, server, wiring, nic_of_rank)
    shared.add_resources()
    return builder.build(notes=(*notes, *_notes(server, wiring, by_pcie, nic_of_rank)))


@dataclass(frozen=True, slots=True)
class _Shared:
    """A topology to be, and its resources: by name, the links that hold each, how long and from which end."""

    builder: TopologyBuilder
    holds: dict[str, dict[int, tuple[Fraction, Side]]] = field(default_factory=lambda: defaultdict(dict))

    def add_link(self, src: int, dst: int, alpha_us: Fraction, name: str, steps: list[WayStep]) -> None:
        """Add a link that is as slow as the slowest of its steps, and holds each of them."""
        slowest = max(beta for _, beta, _ in steps)
        link = self.builder.add_link(
            src, dst, alpha_us=alpha_us, beta_us_per_mb=slowest, overhead_us=OVERHEAD_US, name=name
        )
        for step, beta, side in steps:
            self.holds[step][link] = (beta, side)

    def add_resources(self) -> None:
        """Add the resources that say something: several links hold them, and no other one implies them.

        Of two that say the same, the later one stays: NICs come after the PCIe links that lead to them.
        """
        of_link = defaultdict(list)
        for name, holds in self.holds.items():
            for link in holds:
                of_link[link].append(name)
        dropped: set[str] = set()
        for name, holds in self.holds.items():
            others = (o for o in of_link[next(iter(holds))] if o != name and o not in dropped)
            if len(holds) == 1 or any(_implies(self.holds[other], holds) for other in others):
                dropped.add(name)
        for name, holds in self.holds.items():
            if name not in dropped:
                resource = self.builder.add_resource(name)
                for link, (beta, side) in holds.items():
                    self.builder.add_hold(link, resource, alpha_us=0, beta_us_per_mb=beta, side=side)


def _implies(outer: Mapping[int, tuple[Fraction, Side]], inner: Mapping[int, tuple[Fraction, Side]]) -> bool:
    """Whether sends that hold `outer` in turn also hold `inner` in turn."""
    return len(outer) >= len(inner) and all(
        link in outer and outer[link][1] == side and outer[link][0] >= beta
        for link, (beta, side) in inner.items()
    )


def _pairs_by_pcie(server: PcieServer, pcie: PcieUse) -> list[tuple[int, int]]:
    """Pairs of local ranks that PCIe joins: those that NVLink leaves apart, where that matters."""
    import networkx

    ranks = range(len(server.gpus))
    joined = set(server.nvlinks) | {pair for group, _ in server.switches for pair in combinations(group, 2)}
    nvlink = networkx.Graph(joined)
    nvlink.add_nodes_from(ranks)
    if networkx.is_connected(nvlink) and pcie == "where-needed":
        return []
    return [pair for pair in combinations(ranks, 2) if pair not in joined]


def _add_node(
    shared: _Shared, server: PcieServer, wiring: Wiring, node: int, by_pcie: Iterable[Pair]
) -> None:
    first, alpha_us = node * len(server.gpus), wiring.intranode_alpha_us
    for (a, b), count in sorted(server.nvlinks.items()):
        beta = server.nvlink_beta_us_per_mb / count
        name = f"NVLink x{count}" if count > 1 else "NVLink"
        for src, dst in ((a, b), (b, a)):
            shared.builder.add_link(
                first + src, first + dst, alpha_us=alpha_us, beta_us_per_mb=beta, overhead_us=OVERHEAD_US,
                name=name,
            )  # fmt: skip
    for number, (ranks, count) in enumerate(server.switches):
        which = f" {number}" if len(server.switches) > 1 else ""
        cost = LinkCost(alpha_us, server.nvlink_beta_us_per_mb / count, OVERHEAD_US)
        name = f"NVSwitch{which} of node {node}"
        add_crossbar(shared.builder, [first + rank for rank in ranks], cost, name=name, link_name="NVSwitch")
    for pair in by_pcie:
        for src, dst in (pair, pair[::-1]):
            steps = server.steps(server.gpus[src], server.gpus[dst])
            here: list[WayStep] = [(f"{name} of node {node}", beta, side) for name, beta, side in steps]
            shared.add_link(first + src, first + dst, alpha_us, "PCIe", here)


def _join_nodes(shared: _Shared, server: PcieServer, wiring: Wiring, nic_of_rank: list[int]) -> None:
    """The links of every ordered pair of nodes, with the steps to and from their NICs."""
    size = len(server.gpus)
    nics = [server.nics[nic] for nic in nic_of_rank]
    out = [server.steps(gpu, nic.at) for gpu, nic in zip(server.gpus, nics, strict=True)]
    into = [server.steps(nic.at, gpu) for gpu, nic in zip(server.gpus, nics, strict=True)]
    for here, there in permutations(range(wiring.nodes), 2):
        for src in range(size):
            for dst in (src,) if wiring.rails else range(size):
                steps: list[WayStep] = [
                    *((f"{name} of node {here}", beta, "send") for name, beta, _ in out[src]),
                    *((f"{name} of node {there}", beta, "receive") for name, beta, _ in into[dst]),
                    (f"NIC {nics[src].name} of node {here} egress", nics[src].beta_us_per_mb, "send"),
                    (f"NIC {nics[dst].name} of node {there} ingress", nics[dst].beta_us_per_mb, "receive"),
                ]
                ends = here * size + src, there * size + dst
                shared.add_link(*ends, wiring.internode_alpha_us, "network", steps)


def _nearest_nics(server: PcieServer) -> list[int]:
    """The NIC of every local rank: the nearest one; ranks to which the same ones are nearest take turns."""
    turns: dict[tuple[int, ...], Iterator[int]] = {}
    chosen = []
    for gpu in server.gpus:
        ways = [server.way(gpu, nic.at) for nic in server.nics]
        # Below a CPU, by way of one, or of two; then the number of steps.
        far = [(len(server.cpus.keys() & way), len(way)) for way in ways]
        nearest = tuple(nic for nic, each in enumerate(far) if each == min(far))
        if nearest:
            chosen.append(next(turns.setdefault(nearest, cycle(nearest))))
    return chosen


def _notes(
    server: PcieServer, wiring: Wiring, by_pcie: list[tuple[int, int]], nic_of_rank: list[int]
) -> list[str]:
    notes = [
        f"alpha is {float(wiring.intranode_alpha_us):g} us inside a node and "
        f"{float(wiring.internode_alpha_us):g} us between nodes; unless given, these are TACCL's published "
        f"constants of NDv2, with NVLink's for PCIe; it holds links and ports for {float(OVERHEAD_US):g} us"
    ]
    if by_pcie:
        notes.append(
            f"PCIe joins {len(by_pcie)} pairs of ranks of a node; its switches and CPUs are shared resources"
        )
    elif len(server.gpus) > 1:
        notes.append("NVLink joins all ranks of a node, so no link uses PCIe (pcie='always' adds such links)")
    if wiring.nodes == 1:
        notes.append("one node, so NICs are not used; nodes= asks for more")
        return notes
    ranks_of: dict[str, list[int]] = defaultdict(list)
    for rank, nic in enumerate(nic_of_rank):
        ranks_of[server.nics[nic].name].append(rank)
    listed = "; ".join(f"{nic}: {', '.join(map(str, ranks))}" for nic, ranks in ranks_of.items())
    notes.append(f"every rank sends through its nearest NIC (NIC: local ranks): {listed}")
    unused = [nic.name for nic in server.nics if nic.name not in ranks_of]
    if unused:
        notes.append(f"NICs that no rank is given: {', '.join(unused)}; nics= says which ones count")
    return notes
