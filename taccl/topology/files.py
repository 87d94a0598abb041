"""Topology files: a machine, a fabric or a person's own links, as TOML or as JSON of the same schema.

A machine or a fabric, with what differs::

    schema = 1
    machine = "ndv2"            # or fabric = "torus:4x4"
    nodes = 2
    profile = "nominal"
    [constants]                 # any constant of the profile
    internode_beta_us_per_mb = 100.5

Or link by link::

    schema = 1
    ranks_per_node = 2          # or a list, one entry for every node
    nodes = 2
    [[link]]
    src = 0                     # a list of ranks: one link that reduces
    dst = 1                     # a list of ranks: one link that multicasts
    alpha_us = 0.5
    bandwidth_gb_per_s = 25     # or beta_us_per_mb
    bidirectional = true
    [[resource]]                # one send at a time over any of these links
    name = "NIC 0 egress"
    links = [[0, 2], [1, 2]]
    side = "send"
    [[switch]]                  # with a cost: a link for every ordered pair of ranks, ports in and out
    ranks = [0, 1]
    bandwidth_gb_per_s = 100

Decimal costs are exact: 0.1 is one tenth.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taccl.errors import TopologyError
from taccl.reading import parse, read_text
from taccl.topology import registry
from taccl.topology.parts import add_crossbar, check_num_links
from taccl.topology.topology import TopologyBuilder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

    from taccl.topology.file_schema import ResourceEntry, SwitchEntry, TopologyFile
    from taccl.topology.topology import Topology

    Ends = tuple[tuple[int, ...], tuple[int, ...]]

__all__ = ["MAX_FILE_BYTES", "MAX_RANKS", "load_topology"]

MAX_FILE_BYTES = 64 * 10**6
MAX_RANKS = 1_000_000


def load_topology(path: str | PathLike[str]) -> Topology:
    """The topology that a TOML or JSON file of at most 64 MB describes.

    It is JSON if its name ends in ``.json`` or its text starts with ``{``.

    Raises
    ------
    FormatError
        If the file cannot be read, is empty, too large, or neither TOML nor JSON.
    TopologyError
        If a field is unknown, missing or wrong, or a rank or link does not exist; file and field are named.
    """
    from taccl.topology.file_schema import TopologyFile
    from taccl.validation import validated

    path = Path(path)
    where = str(path)
    data = parse(read_text(path, MAX_FILE_BYTES), source=where, exact=True)
    file = validated(TopologyFile, data, source=where, error=TopologyError)
    try:
        if file.machine is None and file.fabric is None:
            return _from_links(file, path.stem)
        return _from_name(file)
    except TopologyError as error:
        field = f"{where}: {error.where}" if error.where else where
        raise TopologyError(error.message, where=field) from None


def _from_name(file: TopologyFile) -> Topology:
    """The machine or fabric that a file names, with what it says differs."""
    options: dict[str, Any] = {"alpha_meaning": file.alpha_meaning}
    for field in ("rails", "constants", "alpha_us"):
        if getattr(file, field) is not None:
            options[field] = getattr(file, field)
    if file.bandwidth_gb_per_s is not None:
        each = file.bandwidth_gb_per_s
        options["bandwidth_gb_per_s"] = each if len(each) > 1 else each[0]
    if file.ranks_per_node is not None:
        options["ranks_per_node"] = file.ranks_per_node[0]
    kind, name = ("machine", file.machine) if file.fabric is None else ("fabric", file.fabric)
    try:
        topology = registry.parse(str(name), nodes=file.nodes, profile=file.profile, **options)
    except TopologyError as error:
        where = kind if error.where == "topology" else error.where
        raise TopologyError(error.message, where=where) from None
    if (topology.machine in registry.machine_names()) != (kind == "machine"):
        raise TopologyError(f"found {name!r}, which is not a {kind}", where=kind)
    return replace(topology, name=topology.name if file.name is None else file.name)


def _from_links(file: TopologyFile, default_name: str) -> Topology:
    """The topology that a file describes link by link: links first, then switches, then resources."""
    builder = TopologyBuilder(
        default_name if file.name is None else file.name,
        _node_of_rank(file),
        alpha_meaning=file.alpha_meaning,
    )
    num_ranks = len(builder.node_of_rank)
    for i, link in enumerate(file.link):
        _check_ranks(link.src, num_ranks, f"link[{i}].src")
        _check_ranks(link.dst, num_ranks, f"link[{i}].dst")
        directions = [(link.src, link.dst), (link.dst, link.src)]
        for src, dst in directions if link.bidirectional else directions[:1]:
            builder.add_link(src, dst, alpha_us=link.alpha_us, beta_us_per_mb=link.rate(), name=link.name)
    for i, switch in enumerate(file.switch):
        _check_ranks(switch.ranks, num_ranks, f"switch[{i}].ranks")
        _add_switch(builder, switch)
    links_of: dict[Ends, list[int]] = {}
    for index, added in enumerate(builder.links):
        links_of.setdefault((added.srcs, added.dsts), []).append(index)
    named: dict[str, int] = {}
    for i, resource in enumerate(file.resource):
        if resource.continues != (resource.name in named):
            found = "no such name above" if resource.continues else f"{resource.name!r} twice"
            raise TopologyError(
                f"found {found}; give another, or continues = true for more links of a resource above",
                where=f"resource[{i}].name",
            )
        if not resource.continues:
            named[resource.name] = builder.add_resource(resource.name)
        _add_holds(builder, named[resource.name], resource, links_of, f"resource[{i}].links")
    return builder.build()


def _node_of_rank(file: TopologyFile) -> list[int]:
    counts = file.ranks_per_node or [1]
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


def _check_ranks(ranks: list[int], num_ranks: int, where: str) -> None:
    for rank in ranks:
        if rank >= num_ranks:
            raise TopologyError(
                f"rank {rank} does not exist; the topology has ranks 0-{num_ranks - 1}", where=where
            )


def _add_switch(builder: TopologyBuilder, switch: SwitchEntry) -> None:
    if switch.has_rate:
        check_num_links(len(switch.ranks) ** 2, where=f"switch {switch.name}")
        add_crossbar(
            builder, switch.ranks, name=switch.name, alpha_us=switch.alpha_us, beta_us_per_mb=switch.rate()
        )
    else:
        ranks = set(switch.ranks)
        within = [i for i, link in enumerate(builder.links) if ranks.issuperset((*link.srcs, *link.dsts))]
        builder.add_switch(switch.name, switch.ranks, within)


def _add_holds(
    builder: TopologyBuilder,
    resource: int,
    entry: ResourceEntry,
    links_of: Mapping[Ends, list[int]],
    where: str,
) -> None:
    """Add a hold of a resource for every link that the entry means."""
    for src, dst in dict.fromkeys((tuple(sorted(src)), tuple(sorted(dst))) for src, dst in entry.links):
        found = links_of.get((src, dst))
        if not found:
            ends = "->".join(",".join(map(str, end)) for end in (src, dst))
            raise TopologyError(f"link {ends} does not exist; list it under [[link]]", where=where)
        for index in found:
            link = builder.links[index]
            alpha, beta = (0, entry.rate()) if entry.has_rate else link.held_us(builder.alpha_meaning)
            alpha = alpha if entry.alpha_us is None else entry.alpha_us
            builder.add_hold(index, resource, alpha_us=alpha, beta_us_per_mb=beta, side=entry.side)
