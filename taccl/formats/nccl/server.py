"""Topologies of several equal servers, all described by one file.

A rank is a GPU, and a node is a server; ``docs/formats.md`` describes the resulting topology. A resource is
omitted if another resource implies it: every send that holds the first also holds the other, for at least as
long.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations, permutations
from typing import Literal

from taccl._internal.arguments import Number
from taccl._internal.graph_algorithms import graph_of
from taccl._internal.units import format_count
from taccl.errors import TopologyError
from taccl.formats.nccl.nics import Nics
from taccl.formats.nccl.pcie import PathLimit, PcieServer, gb_per_s
from taccl.topology.builder import TopologyBuilder
from taccl.topology.parts import (
    OVERHEAD_US,
    LinkCost,
    add_crossbar,
    beta_of_bandwidth,
    check_count,
    check_num_links,
    exact_cost,
)
from taccl.topology.topology import Side, Topology

Pair = tuple[int, int]

PcieUse = Literal["where-needed", "always"]

#: NCCL's constants (2.30), in GB/s each way: between ranks of one GPU, and between partitions of a GPU.
SHARED_GB_PER_S, PARTS_GB_PER_S = 5000, 2618
#: Latency in us of links inside a node (NVLink and PCIe): alpha in TACCL's topo-ndv2-1MB.json.
INTRANODE_ALPHA_US = Fraction("0.3")
#: Latency in us of links between nodes: remote_alpha in TACCL's topo-ndv2-1MB.json.
INTERNODE_ALPHA_US = Fraction("2.6")


@dataclass(frozen=True, slots=True)
class Wiring:
    """Options for a topology of servers; see `load_nccl_topology` for their meaning.

    None stands for a default, which is among the topology's assumptions.
    """

    nodes: int = 1
    pcie: PcieUse | None = None
    rails: bool = False
    intranode_alpha_us: Fraction | None = None
    internode_alpha_us: Fraction | None = None

    @property
    def latencies_us(self) -> tuple[Fraction, Fraction]:
        """Latencies in us of links inside a node and between nodes."""
        inside, between = self.intranode_alpha_us, self.internode_alpha_us
        return (
            INTRANODE_ALPHA_US if inside is None else inside,
            INTERNODE_ALPHA_US if between is None else between,
        )


def stated_alpha(alpha_us: Number | None, where: str) -> Fraction | None:
    """Latency in us that an argument states, exact; None if it states none."""
    return None if alpha_us is None else exact_cost(alpha_us, where=where)


def build_servers(server: PcieServer, wiring: Wiring, *, profile: str, notes: Iterable[str]) -> Topology:
    """The topology of ``wiring.nodes`` equal servers; an `AssumptionWarning` lists the assumptions."""
    size, nodes = len(server.gpus), check_count(wiring.nodes, where="nodes")
    check_num_links(nodes * nodes * size * size, where=f"{server.name}: nodes")
    if nodes > 1 and not server.nics:
        raise TopologyError(
            f"found {nodes} nodes of a server without a NIC; name a NIC (nics=), or ask for one node",
            where=f"{server.name}: nodes",
        )
    builder = TopologyBuilder(
        f"{server.name} x{nodes}", [node for node in range(nodes) for _ in range(size)], profile=profile
    )
    shared = _Shared(builder)
    by_pcie = pairs_by_pcie(server, wiring.pcie)
    for node in range(nodes):
        _add_node(shared, server, wiring, node, by_pcie)
    nics = Nics(server, rails=wiring.rails) if nodes > 1 else None
    if nics is not None:
        _join_nodes(shared, server, wiring, nics)
    shared.add_resources()
    assumed = [*_limits_guessed(server, by_pcie, nics), *server.assumed]
    assumed += _assumptions(server, wiring, by_pcie, nics)
    return builder.build(notes=(*notes, *_notes(by_pcie, nics)), assumed=assumed)


@dataclass(frozen=True, slots=True)
class _Shared:
    """A topology under construction, and for each resource the links whose sends hold it.

    - `holds`: {resource: {link: (beta in us per MB, end of a send that holds it: "send" or "receive")}}.
    """

    builder: TopologyBuilder
    holds: dict[str, dict[int, tuple[Fraction, Side]]] = field(default_factory=lambda: defaultdict(dict))

    def add_link(self, src: int, dst: int, alpha_us: Fraction, name: str, limits: list[PathLimit]) -> None:
        """Add a link with the lowest of its path's rate limits; its sends hold the resource of each limit."""
        slowest = max(beta for _, beta, _ in limits)
        link = self.builder.add_link(
            src, dst, alpha_us=alpha_us, beta_us_per_mb=slowest, overhead_us=OVERHEAD_US, name=name
        )
        for resource, beta, side in limits:
            self.holds[resource][link] = (beta, side)

    def add_resources(self) -> None:
        """Add the resources that several links hold and that no other resource makes redundant.

        Among equivalent resources the last is kept, so NICs rather than the PCIe links that lead to them.
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
    """True if no two sends can overlap at resource `inner` as long as none overlap at resource `outer`.

    - `outer`, `inner`: {link: (beta in us per MB, end of a send that holds it: "send" or "receive")}.
    """
    return len(outer) >= len(inner) and all(
        link in outer and outer[link][1] == side and outer[link][0] >= beta
        for link, (beta, side) in inner.items()
    )


def pairs_by_pcie(server: PcieServer, pcie: PcieUse | None) -> list[tuple[int, int]]:
    """Pairs of local ranks without a common NVLink, which are linked over PCIe.

    Empty if NVLinks connect all ranks of a node, and `pcie` is not ``"always"``.
    """
    import networkx

    ranks, gpus = range(len(server.gpus)), server.gpu_numbers
    linked = set(server.nvlinks) | {
        pair for group in server.switches for pair in combinations(sorted(group), 2)
    }
    ends = {(a, b): (gpus[a], gpus[b]) for a, b in combinations(ranks, 2)}
    joined = {pair for pair, (a, b) in ends.items() if a == b or (min(a, b), max(a, b)) in linked}
    if networkx.is_connected(graph_of(joined, ranks)) and pcie != "always":
        return []
    return [pair for pair in combinations(ranks, 2) if pair not in joined]


def _add_node(
    shared: _Shared, server: PcieServer, wiring: Wiring, node: int, by_pcie: Iterable[Pair]
) -> None:
    first, (alpha_us, _) = node * len(server.gpus), wiring.latencies_us
    if server.parts:
        _add_sharing(shared, server, alpha_us, node)
    for (a, b), count in () if server.parts else sorted(server.nvlinks.items()):
        beta = server.nvlink_beta(a, b) / count
        name = f"{server.fabric} x{count}" if count > 1 else server.fabric
        for src, dst in ((a, b), (b, a)):
            shared.builder.add_link(
                first + src, first + dst, alpha_us=alpha_us, beta_us_per_mb=beta, overhead_us=OVERHEAD_US,
                name=name,
            )  # fmt: skip
    for number, counts in enumerate(() if server.parts else server.switches):
        which = f" {number}" if len(server.switches) > 1 else ""
        betas = {first + rank: server.nvlink_beta(rank) / count for rank, count in counts.items()}
        cost = LinkCost(alpha_us, max(betas.values()), OVERHEAD_US)
        name = f"NVSwitch{which} of node {node}"
        add_crossbar(shared.builder, sorted(betas), cost, name=name, link_name="NVSwitch", port_betas=betas)
    for pair in by_pcie:
        for src, dst in (pair, pair[::-1]):
            limits = server.limits(server.gpus[src], server.gpus[dst])
            here: list[PathLimit] = [(f"{name} of node {node}", beta, side) for name, beta, side in limits]
            shared.add_link(first + src, first + dst, alpha_us, "PCIe", here)


def _add_sharing(shared: _Shared, server: PcieServer, alpha_us: Fraction, node: int) -> None:
    """Add the links of a node in which ranks share GPUs, and the links between these GPUs.

    Partitions of a GPU divide its links equally, as in NCCL; ranks of one partition share its part.
    """
    gpus, parts, first = server.gpu_numbers, server.parts, node * len(server.gpus)
    betas = {pair: server.nvlink_beta(*pair) / count for pair, count in server.nvlinks.items()}
    num_parts = [len({part for gpu, part in zip(gpus, parts, strict=True) if gpu == own}) for own in gpus]
    names = [
        f"{gpu}" if num == 1 else f"{gpu} part {part}"
        for gpu, part, num in zip(gpus, parts, num_parts, strict=True)
    ]
    for a, b in permutations(range(len(gpus)), 2):
        src, dst = gpus[a], gpus[b]
        if src == dst:
            rate = SHARED_GB_PER_S if parts[a] == parts[b] else PARTS_GB_PER_S
            shared.builder.add_link(
                first + a, first + b, alpha_us=alpha_us, beta_us_per_mb=beta_of_bandwidth(rate),
                overhead_us=OVERHEAD_US, name="GPU",
            )  # fmt: skip
        elif (beta := betas.get((min(src, dst), max(src, dst)))) is not None:
            name = f"{server.fabric} from GPU {names[a]} to {names[b]} of node {node}"
            divided = beta * num_parts[a] * num_parts[b]
            shared.add_link(first + a, first + b, alpha_us, server.fabric, [(name, divided, "send")])
        for number, counts in enumerate(server.switches):
            if src != dst and src in counts and dst in counts:
                name = f"NVSwitch {number} of node {node}"
                ends = ((a, src), (b, dst))
                sent, received = (
                    server.nvlink_beta(gpu) * num_parts[rank] / counts[gpu] for rank, gpu in ends
                )
                limits: list[PathLimit] = [
                    (f"{name} from GPU {names[a]}", sent, "send"),
                    (f"{name} to GPU {names[b]}", received, "receive"),
                ]
                shared.add_link(first + a, first + b, alpha_us, "NVSwitch", limits)


def _join_nodes(shared: _Shared, server: PcieServer, wiring: Wiring, nics: Nics) -> None:
    """Add links between every ordered pair of nodes; each holds the PCIe links and NICs on its path."""
    size, (_, alpha_us) = len(server.gpus), wiring.latencies_us
    out = [nics.limits(rank, "send") for rank in range(size)]
    into = [nics.limits(rank, "receive") for rank in range(size)]
    for here, there in permutations(range(wiring.nodes), 2):
        for src in range(size):
            for dst in (src,) if wiring.rails else range(size):
                limits: list[PathLimit] = [
                    *((f"{name} of node {here}", beta, side) for name, beta, side in out[src]),
                    *((f"{name} of node {there}", beta, side) for name, beta, side in into[dst]),
                    *nics.ports(src, here, "send"),
                    *nics.ports(dst, there, "receive"),
                ]
                ends = here * size + src, there * size + dst
                shared.add_link(*ends, alpha_us, "network", limits)


def _limits_guessed(server: PcieServer, by_pcie: Iterable[Pair], nics: Nics | None) -> list[str]:
    """Notes on assumed rates that limit a path below the rates that the file or an argument states."""
    guesses = [
        f"NICs {', '.join(names)} ({gb_per_s(limit.nics_beta_us_per_mb)}) are reached at "
        f"{gb_per_s(limit.beta_us_per_mb)} only, limited by {limit.guess}{limit.whom}"
        for limit, names in ([] if nics is None else nics.undercut().items())
    ]
    pairs_of: dict[tuple[str, Fraction], int] = defaultdict(int)
    for src, dst in by_pcie:
        limits = server.limits(server.gpus[src], server.gpus[dst])
        name, slowest, _ = max(limits, key=lambda limit: limit[1])
        stated = (beta for each, beta, _ in limits if each not in server.guesses)
        if name in server.guesses and min(stated, default=slowest) < slowest:
            pairs_of[server.guesses[name], slowest] += 1
    return guesses + [
        f"{format_count(count, 'pair')} of local ranks reach {gb_per_s(slowest)} over PCIe, limited by "
        f"{guess}"
        for (guess, slowest), count in pairs_of.items()
    ]


def _notes(by_pcie: list[Pair], nics: Nics | None) -> list[str]:
    notes = []
    if by_pcie:
        notes.append(
            f"PCIe joins {format_count(len(by_pcie), 'pair')} of ranks of a node; its switches and CPUs are "
            "shared resources"
        )
    if nics is None:
        return [*notes, "NICs are unused, as there is one node (nodes= sets another number)"]
    return [
        *notes,
        "every rank sends through its nearest NICs, and farther ones that are faster (NIC: local ranks): "
        f"{nics.owners()}",
    ]


def _assumptions(server: PcieServer, wiring: Wiring, by_pcie: list[Pair], nics: Nics | None) -> list[str]:
    """Assumptions on latencies, and parts of a server that its topology omits."""
    inside, between = wiring.latencies_us
    assumed = [
        f"{float(alpha):g} us for a message {where} ({argument}), TACCL's published constant of NDv2"
        for is_assumed, alpha, where, argument in (
            (
                wiring.intranode_alpha_us is None and len(server.gpus) > 1,
                inside, "inside a node", "intranode_alpha_us=",
            ),
            (
                wiring.internode_alpha_us is None and wiring.nodes > 1,
                between, "between nodes", "internode_alpha_us=",
            ),
        )
        if is_assumed
    ]  # fmt: skip
    if server.parts:
        pairs = combinations(range(len(server.gpus)), 2)
        same = {server.parts[a] == server.parts[b] for a, b in pairs if server.gpus[a] == server.gpus[b]}
        rates = [f"{SHARED_GB_PER_S if each else PARTS_GB_PER_S} GB/s" for each in sorted(same)]
        how = f"ranks that share a GPU share its {server.fabric} and PCIe links"
        if False in same:
            how = f"partitions of a GPU divide its {server.fabric} links equally, and share its PCIe link"
        assumed.append(f"{how}; {' or '.join(rates)} between them, as in NCCL")
        assumed += ["sums in NVSwitch (NVLS) are omitted"] if server.switches else []
    if not by_pcie and len(server.gpus) > 1 and wiring.pcie is None:
        assumed.append(
            f"{server.fabric} joins all ranks of a node, so PCIe between them is omitted (pcie='always' "
            "adds it)"
        )
    if nics is not None:
        assumed.append("the network is non-blocking, and all nodes are equal")
        assumed += nics.assumptions()
    return assumed
