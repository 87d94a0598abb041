"""Read topology files (TOML or JSON): a named machine or fabric, a node with its network, or links.

The fields are documented in docs/formats.md. Decimal costs are exact: 0.1 is one tenth.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taccl._internal.names import first_of, shown
from taccl._internal.reading import parse, read_text, reads
from taccl.errors import TopologyError
from taccl.topology import registry
from taccl.topology.builder import TopologyBuilder
from taccl.topology.links import OTHER_SIDE, Hold, Resource
from taccl.topology.machines import SHAPES
from taccl.topology.parts import (
    LinkCost,
    Network,
    add_crossbar,
    add_nodes,
    check_num_links,
    check_ranks,
    hold_ends,
    links_among,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from os import PathLike

    from taccl.topology import file_schema as schema
    from taccl.topology.topology import Side, Topology

    Ends = tuple[tuple[int, ...], tuple[int, ...]]

MAX_FILE_BYTES = 64 * 10**6
MAX_RANKS = 1_000_000


@reads("topology")
def load_topology(path: str | PathLike[str]) -> Topology:
    """Load a topology from a TOML or JSON file of at most 64 MB.

    The file is JSON if its name ends in ``.json`` or its text starts with ``{``.

    Raises `FormatError` if the file cannot be read, is empty, too large, or neither TOML nor JSON. Raises
    `TopologyError` if a field is unknown, missing or wrong, or a rank or link does not exist; the message
    names file and field.
    """
    from taccl._internal.validation import validated
    from taccl.topology import file_schema as schema

    path = Path(path)
    where = str(path)
    data = parse(read_text(path, MAX_FILE_BYTES), source=where, exact=True)
    made: dict[str, tuple[type[schema.TopologyFile], Callable[[Any, str], Topology]]] = {
        "machine": (schema.MachineFile, _from_name), "fabric": (schema.FabricFile, _from_name),
        "node": (schema.NodeFile, _described_machine), "ranks_per_node": (schema.LinksFile, _from_links),
    }  # fmt: skip
    kind = next((each for each in made if each in data), None)
    if kind is None:
        fields = shown(first_of([*map(repr, data)], 4), 120) or "no fields"
        said = f"found {fields}; expected one of {', '.join(made)}; check the path, or add one of them"
        raise TopologyError(said, where=where)
    model, make = made[kind]
    file = validated(model, data, source=where, error=TopologyError)
    try:
        topology = make(file, path.stem)
        if file.assumed:
            cache, topology = topology.cache, replace(topology, assumed=tuple(file.assumed))
            topology.cache.update(cache)
        return topology
    except TopologyError as error:
        raise TopologyError(error.message, where=": ".join(filter(None, (where, error.where)))) from None


def _from_name(file: schema.MachineFile | schema.FabricFile, _: str) -> Topology:
    """Machine or fabric by the name in a file, with the file's other fields as options."""
    kind = "machine" if hasattr(file, "machine") else "fabric"
    name = getattr(file, kind)
    said = {
        field: getattr(file, field) for field in file.model_fields_set - {"schema_", "name", "assumed", kind}
    }
    if len(said.get("bandwidth_gb_per_s") or ()) == 1:
        said["bandwidth_gb_per_s"] = said["bandwidth_gb_per_s"][0]
    try:
        topology = registry.parse(name, **said)
    except TopologyError as error:
        where = kind if error.where == "topology" else error.where
        raise TopologyError(error.message, where=where) from None
    if (topology.machine in registry.machine_names()) != (kind == "machine"):
        raise TopologyError(f"found {name!r}, which is not a {kind}", where=kind)
    renamed = replace(topology, name=topology.name if file.name is None else file.name)
    renamed.cache.update(topology.cache)
    return renamed


def _described_machine(file: schema.NodeFile, default_name: str) -> Topology:
    """Topology of a file with ``[node]``, ``[nics]`` and ``[network]``.

    All nodes are equal. A NIC does one send and one receive at a time, at its rate. With oversubscription k,
    a node's uplink and downlink have 1/k of the total rate of its NICs.
    """
    node, nics, network = file.node, file.nics, file.network
    num_nodes = 1 if network is None else network.nodes
    size = node.gpus
    pairs = _pairs(node)
    check_num_links(num_nodes * size, where="node.gpus, network.nodes")
    builder = TopologyBuilder(
        default_name if file.name is None else file.name,
        [number for number in range(num_nodes) for _ in range(size)],
        alpha_meaning=file.alpha_meaning,
        launch_us=file.launch_us,
    )
    costs = {count: LinkCost(node.alpha_us, node.rate() / count, node.overhead_us) for count in (1, 2)}
    joint, uplink_beta = None, Fraction(0)
    if num_nodes > 1 and (nics is None or network is None):
        raise TopologyError(f"found {num_nodes} nodes, and no [nics] to join them; give it", where="nics")
    if nics is not None:
        nic_of_gpu = _nic_of_gpu(nics, size)
        if network is not None:
            beta = nics.rate() / (max(1, nics.count // size) if nics.gpus is None else 1)
            uplink_beta = beta * network.oversubscription / len(set(nic_of_gpu.values()))
            # A link is at most as fast as the node's uplink.
            cost = LinkCost(nics.alpha_us, max(beta, uplink_beta), nics.overhead_us)
            held_us = min(nics.overhead_us, nics.alpha_us)
            joint = Network(cost, held_us, nic_of_gpu, network.rails, "network")
    where = "node.gpus, network.nodes"
    add_nodes(builder, pairs, costs, joint, switch="switch", reduces=node.reduces, where=where)
    if num_nodes > 1 and network is not None and network.oversubscription != 1:
        uplinks, downlinks = (
            [builder.add_resource(f"{way}link of node {number}") for number in range(num_nodes)]
            for way in ("up", "down")
        )
        for index, link in enumerate(builder.links):
            if link.src // size != link.dst // size:
                ends = uplinks[link.src // size], downlinks[link.dst // size]
                hold_ends(builder, index, *ends, beta=uplink_beta)
    return builder.build()


def _pairs(node: schema.NodeEntry) -> dict[tuple[int, int], int]:
    """{pair of GPUs in a node: number of links between them}; empty if a switch joins the GPUs."""
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


def _nic_of_gpu(nics: schema.NicsEntry, size: int) -> dict[int, int]:
    """{GPU: its NIC} for the GPUs that have a NIC; several NICs of one GPU count as one."""
    if nics.gpus is None:
        if size % nics.count and nics.count % size:
            raise TopologyError(
                f"found {nics.count} for {size} GPUs, and neither number divides the other; list each "
                "NIC's GPUs, e.g. gpus = [[0, 1], [2, 3]]",
                where="nics.count",
            )
        return {gpu: gpu * min(nics.count, size) // size for gpu in range(size)}
    if len(nics.gpus) != nics.count:
        raise TopologyError(
            f"found {len(nics.gpus)} entries for {nics.count} NICs; give the GPUs of each NIC",
            where="nics.gpus",
        )
    nic_of_gpu: dict[int, int] = {}
    for nic, gpus in enumerate(nics.gpus):
        check_ranks(gpus, size, where=f"nics.gpus[{nic}]", of="a node has GPUs")
        for gpu in gpus:
            if gpu in nic_of_gpu:
                raise TopologyError(
                    f"found GPU {gpu} at NIC {nic_of_gpu[gpu]} too; name each GPU once",
                    where=f"nics.gpus[{nic}]",
                )
            nic_of_gpu[gpu] = nic
    return nic_of_gpu


def _from_links(file: schema.LinksFile, default_name: str) -> Topology:
    """Topology of a file that lists every link: links are added first, then switches, then resources."""
    builder = TopologyBuilder(
        default_name if file.name is None else file.name,
        _node_of_rank(file),
        alpha_meaning=file.alpha_meaning,
        launch_us=file.launch_us,
    )
    num_ranks = len(builder.node_of_rank)
    sharing: list[int] = []
    for i, link in enumerate(file.link):
        check_ranks(link.src, num_ranks, where=f"link[{i}].src")
        check_ranks(link.dst, num_ranks, where=f"link[{i}].dst")
        directions = [(link.src, link.dst), (link.dst, link.src)]
        for src, dst in directions if link.bidirectional else directions[:1]:
            ends = (ranks if len(ranks) > 1 else ranks[0] for ranks in (src, dst))
            added = builder.add_link(
                *ends, alpha_us=link.alpha_us, beta_us_per_mb=link.rate(), overhead_us=link.overhead_us,
                name=link.name,
            )  # fmt: skip
            if len(src) + len(dst) > 2 and not link.own_port:
                sharing.append(added)
    for i, switch in enumerate(file.switch):
        check_ranks(switch.ranks, num_ranks, where=f"switch[{i}].ranks")
        if switch.has_rate:
            check_num_links(len(switch.ranks) ** 2, where=f"switch {switch.name}")
            cost = LinkCost(switch.alpha_us, switch.rate(), switch.overhead_us)
            add_crossbar(builder, switch.ranks, cost, name=switch.name, reduces=switch.reduces)
        else:
            links = links_among(builder.links, switch.ranks)
            builder.add_switch(switch.name, switch.ranks, links, reduces=switch.reduces)
    links_of: dict[Ends, list[int]] = {}
    for index, built in enumerate(builder.links):
        links_of.setdefault((built.srcs, built.dsts), []).append(index)
    named: dict[str, int] = {}
    for i, resource in enumerate(file.resource):
        if resource.continues != (resource.name in named):
            found = "no such name above" if resource.continues else f"{resource.name!r} twice"
            raise TopologyError(
                f"found {found} again; rename it, or give continues = true to add links to it",
                where=f"resource[{i}].name",
            )
        if not resource.continues:
            named[resource.name] = builder.add_resource(resource.name)
        _add_holds(builder, named[resource.name], resource, links_of, f"resource[{i}].links")
    return _with_shared_ports(builder.build(), sharing)


def _with_shared_ports(topology: Topology, sharing: list[int]) -> Topology:
    """Make the multicast and reduction links `sharing` share the ports of their ranks.

    Such a link holds every resource of the ordinary links from its sources to its destinations, except the
    resource that each link has for itself. If an ordinary link holds only its own resource, both links also
    hold a new port. If several links of `sharing` send from one rank, they share a further new port of that
    rank; so do several that arrive at one rank.
    """
    if not sharing:
        return topology
    resources, holds = list(topology.resources), list(topology.holds)
    held = {(hold.link, hold.resource) for hold in holds}
    ports: dict[str, int] = {}

    def port(name: str) -> int:
        if name not in ports:
            ports[name] = len(resources)
            resources.append(Resource(name))
        return ports[name]

    def share(link: int, resource: int, side: Side = "send") -> None:
        if (link, resource) not in held:
            held.add((link, resource))
            own = topology.holds_of_link[link][0]  # on the link's own resource
            holds.append(Hold(link, resource, own.alpha_us, own.beta_us_per_mb, side))

    for side in OTHER_SIDE:
        field = "srcs" if side == "send" else "dsts"
        ends = [(link, rank) for link in sharing for rank in getattr(topology.links[link], field)]
        number = Counter(rank for _, rank in ends)
        for link, rank in ends:
            if number[rank] > 1:
                share(link, port(f"port {'out' if side == 'send' else 'in'} {rank}"), side)
    for link in sharing:
        for src, dst in product(topology.links[link].srcs, topology.links[link].dsts):
            for other in topology.links_between(src, dst):
                if len(topology.links[other].srcs) + len(topology.links[other].dsts) > 2:
                    continue
                _, *shared = topology.holds_of_link[other]
                for hold in shared:
                    share(link, hold.resource, hold.side)
                if not shared:
                    both = port(f"port of link {other}, {topology.links[other].ends}")
                    share(other, both)
                    share(link, both)
    return replace(topology, resources=tuple(resources), holds=tuple(holds))


def _node_of_rank(file: schema.LinksFile) -> list[int]:
    counts = file.ranks_per_node
    nodes = len(counts) if file.nodes is None else file.nodes
    if len(counts) not in (1, nodes):
        raise TopologyError(
            f"found {len(counts)} numbers for {nodes} nodes; give one, or one for every node",
            where="ranks_per_node",
        )
    num_ranks = sum(counts) if len(counts) > 1 else counts[0] * nodes
    if num_ranks > MAX_RANKS:
        raise TopologyError(f"found {num_ranks} ranks; expected at most {MAX_RANKS}", where="ranks_per_node")
    counts = counts if len(counts) > 1 else counts * nodes
    return [node for node, count in enumerate(counts) for _ in range(count)]


def _add_holds(
    builder: TopologyBuilder,
    resource: int,
    entry: schema.ResourceEntry,
    links_of: Mapping[Ends, list[int]],
    where: str,
) -> None:
    """Add a hold of a resource for every link that the entry lists."""
    held: set[int] = set()
    for src, dst, which in entry.links:
        ends = tuple(sorted(src)), tuple(sorted(dst))
        for index in _links_meant(builder, links_of.get(ends, []), ends, which, where):
            if index in held:
                continue
            held.add(index)
            link = builder.links[index]
            alpha, beta = (0, entry.rate()) if entry.has_rate else link.held_us(builder.alpha_meaning)
            alpha = alpha if entry.alpha_us is None else entry.alpha_us
            builder.add_hold(index, resource, alpha_us=alpha, beta_us_per_mb=beta, side=entry.side)


def _links_meant(
    builder: TopologyBuilder, found: list[int], ends: Ends, which: str | int | None, where: str
) -> list[int]:
    """Links between the same ranks, or the one that `which` selects; `TopologyError` if there is none."""
    if isinstance(which, str):
        found = [index for index in found if builder.links[index].name == which]
    elif which is not None:
        found = found[which : which + 1]
    if not found:
        named = "->".join(",".join(map(str, end)) for end in ends) + ("" if which is None else f" ({which})")
        raise TopologyError(f"link {named} does not exist; list it under [[link]]", where=where)
    return found
