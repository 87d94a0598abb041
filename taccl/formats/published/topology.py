"""The topology that an upstream algorithm file was made for, rebuilt under the upstream cost model.

The file holds costs as the published tool used them: whole units for a send inside a node, planes of a switch
already apart, and the NICs already split among the links between nodes. The same sketch and topology file
read by `taccl.sketch.upstream` make the same links and ports.
"""

from __future__ import annotations

import re
from collections import Counter
from fractions import Fraction
from typing import TYPE_CHECKING

from taccl.errors import FormatError, InputError
from taccl.sketch.upstream import Edge, planes_between, wired
from taccl.topology.parts import check_num_links
from taccl.units import BYTES_PER_MB

if TYPE_CHECKING:
    from taccl.formats.published.fields import AlgorithmFile, TopologyFields
    from taccl.topology.topology import Topology

#: The tool puts the kind of machine before the name of its topology file, and often the ranks in a node
#: after it.
_NAME = re.compile(r"^(NDv2|DGX2|HubAndSpoke|Custom)-(.+?)(?:-\(n=\d+\))?$")
MACHINES = {"NDv2": "ndv2", "DGX2": "dgx2"}


def build_topology(
    file: AlgorithmFile, chunk_bytes: int, time_unit_us: Fraction, *, reducing: bool
) -> Topology:
    """Links inside and between nodes, and the ports that serialise them.

    - `chunk_bytes`: Bytes that the file's costs are for.
    - `time_unit_us`: Microseconds in the file's unit of time.
    - `reducing`: Whether some sends reduce. The tool reduces over its links turned round, so those that lack
      the other direction get it.
    """
    fields = file.topology
    _check_size(fields, file.where, reducing=reducing)
    per_mb = time_unit_us * BYTES_PER_MB / chunk_bytes
    inside = _inside(fields, file.where, per_mb)
    across = _across(fields, file.where, per_mb, time_unit_us) if fields.copies > 1 else []
    if reducing:
        inside += _turned_round(inside)
        across += _turned_round(across)
    match = _NAME.match(fields.name)
    kind, name = (match[1], match[2]) if match else ("", fields.name)
    try:
        return wired(
            name, MACHINES.get(kind, ""), nodes=fields.copies, size=fields.ngpus_per_node, inside=inside,
            across=across,
        )  # fmt: skip
    except InputError as error:
        raise FormatError(
            f"{error}; write the file anew with the tool that made it", where=f"{file.where}: topology"
        ) from None


def _check_size(fields: TopologyFields, where: str, *, reducing: bool) -> None:
    """Raise `FormatError` for a topology that memory could not hold."""
    inside = sum(map(sum, fields.node_links)) * fields.copies
    receivers = sum(map(len, (fields.internode_conn or {}).values()))
    across = receivers * fields.copies * (fields.copies - 1)
    try:
        check_num_links((inside + across) * (2 if reducing else 1), where=f"{where}: topology")
    except InputError as error:
        raise FormatError(error.message, where=error.where) from None


def _inside(fields: TopologyFields, where: str, per_mb: Fraction) -> list[Edge]:
    """Links inside node 0; of parallel ones through a switch, each has a plane."""
    # Equal switches are planes of one.
    switches = Counter(frozenset(ranks) for ranks in fields.local_switches).items()
    planes = planes_between(switches, where=lambda _: f"{where}: topology.local_switches", error=FormatError)
    edges = []
    ranks = range(fields.ngpus_per_node)
    for src in ranks:
        for dst in ranks:
            parallel, cost = fields.node_links[dst][src], fields.node_invbws[dst][src]
            if src == dst or not parallel:
                continue
            if cost == 0:
                raise FormatError(
                    f"found cost 0 of the link from local rank {src} to {dst}; expected more; give it a "
                    "cost, or take the link out of node_links",
                    where=f"{where}: topology.node_invbws[{dst}][{src}]",
                )
            switch, num_planes = planes.get((src, dst), (None, 1))
            for number in range(parallel):
                plane = number % num_planes
                through = None if switch is None else (switch, plane)
                name = f"plane {plane}" if num_planes > 1 else ""
                edges.append(Edge(src, dst, Fraction(0), cost * per_mb, through, name))
    return edges


def _across(fields: TopologyFields, where: str, per_mb: Fraction, time_unit_us: Fraction) -> list[Edge]:
    """Links between nodes: the connections, for every ordered pair of nodes."""
    alpha_us = fields.remote_cost("remote_alpha", where) * time_unit_us
    beta = fields.remote_cost("remote_beta", where)
    if beta == 0:
        raise FormatError(
            "found 0; expected the cost of a chunk between nodes, which is more; correct it",
            where=f"{where}: topology.remote_beta",
        )
    size, nodes = fields.ngpus_per_node, range(fields.copies)
    connections = {int(sender): receivers for sender, receivers in (fields.internode_conn or {}).items()}
    return [
        Edge(here * size + sender, there * size + receiver, alpha_us, beta * per_mb)
        for here in nodes for there in nodes if here != there
        for sender, receivers in connections.items() for receiver in receivers
    ]  # fmt: skip


def _turned_round(edges: list[Edge]) -> list[Edge]:
    """The links turned round, as far as there are fewer of them in the other direction."""
    there: Counter[tuple[int, int]] = Counter((edge.src, edge.dst) for edge in edges)
    seen: Counter[tuple[int, int]] = Counter()
    turned = []
    for edge in edges:
        seen[edge.src, edge.dst] += 1
        if seen[edge.src, edge.dst] > there[edge.dst, edge.src]:
            turned.append(edge._replace(src=edge.dst, dst=edge.src))
    return turned
