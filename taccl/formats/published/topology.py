"""Topology of an upstream algorithm file, rebuilt under the upstream cost model.

The file holds costs as the published tool used them: whole units for a send inside a node, separate planes of
a switch, and NICs already divided among the links between nodes. `taccl.sketch.upstream` makes the same links
and ports from the same sketch and topology file.
"""

from __future__ import annotations

import re
from collections import Counter
from fractions import Fraction
from itertools import permutations

from taccl._internal.units import BYTES_PER_MB, exact
from taccl.errors import FormatError, InputError
from taccl.formats.published.fields import REMEDY, AlgorithmFile
from taccl.sketch.upstream import Edge, edges_across, edges_inside, planes_between, wired
from taccl.topology.parts import check_num_links
from taccl.topology.topology import Topology

#: Name of a topology: kind of machine, name of the topology file, and often the number of ranks per node.
_NAME = re.compile(r"^(NDv2|DGX2|HubAndSpoke|Custom)-(.+?)(?:-\(n=\d+\))?$")
MACHINES = {"NDv2": "ndv2", "DGX2": "dgx2"}


def build_topology(
    file: AlgorithmFile, chunk_bytes: int, time_unit_us: Fraction, *, reducing: bool
) -> Topology:
    """Topology with the links inside and between nodes, and the ports that serialise them.

    - `chunk_bytes`: Size in bytes of the chunk that the file's costs are for.
    - `time_unit_us`: Microseconds in the file's unit of time.
    - `reducing`: True if some sends reduce. The tool reduces over reversed links, so links without a reverse
      link get one.
    """
    fields = file.topology
    per_mb = time_unit_us * BYTES_PER_MB / chunk_bytes
    match = _NAME.match(fields.name)
    kind, name = (match[1], match[2]) if match else ("", fields.name)
    ranks, connections = range(fields.ngpus_per_node), (fields.internode_conn or {}).items()
    pairs = [
        (src, dst, fields.node_links[dst][src], fields.node_invbws[dst][src] * per_mb)
        for src, dst in permutations(ranks, 2) if fields.node_links[dst][src]
    ]  # fmt: skip
    num_links = sum(parallel for _, _, parallel, _ in pairs) * fields.copies
    num_links += sum(len(receivers) for _, receivers in connections) * fields.copies * (fields.copies - 1)
    # Equal switches are planes of one switch.
    switches = Counter(frozenset(ranks) for ranks in fields.local_switches).items()
    try:
        check_num_links(num_links * (2 if reducing else 1), where="node_links")
        inside = edges_inside(pairs, planes_between(switches, where=lambda _: "local_switches"))
        across: list[Edge] = []
        if fields.copies > 1:
            alpha_us, beta = (
                exact(getattr(fields, name), where=name) for name in ("remote_alpha", "remote_beta")
            )
            joined = [(int(sender), receiver) for sender, receivers in connections for receiver in receivers]
            across = edges_across(
                joined, fields.copies, fields.ngpus_per_node, alpha_us * time_unit_us, beta * per_mb
            )
        if reducing:
            inside += _turned_round(inside)
            across += _turned_round(across)
        return wired(
            name, MACHINES.get(kind, ""), nodes=fields.copies, size=fields.ngpus_per_node, inside=inside,
            across=across,
        )  # fmt: skip
    except InputError as error:
        raise FormatError(f"{error}; {REMEDY}", where=f"{file.where}: topology") from None


def _turned_round(edges: list[Edge]) -> list[Edge]:
    """Reversed links to add, where the opposite direction has fewer links."""
    there: Counter[tuple[int, int]] = Counter((edge.src, edge.dst) for edge in edges)
    seen: Counter[tuple[int, int]] = Counter()
    turned = []
    for edge in edges:
        seen[edge.src, edge.dst] += 1
        if seen[edge.src, edge.dst] > there[edge.dst, edge.src]:
            turned.append(edge._replace(src=edge.dst, dst=edge.src))
    return turned
