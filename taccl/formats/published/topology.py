"""The topology that an upstream algorithm file was made for, rebuilt under the upstream cost model.

The file holds costs as the published tool used them: whole units for a send inside a node, planes of a switch
already apart, and the NICs already split among the links between nodes. The same sketch and topology file
read by `taccl.sketch.upstream` make the same links and ports.
"""

from __future__ import annotations

import re
from collections import Counter
from fractions import Fraction
from itertools import permutations

from taccl.errors import FormatError, InputError
from taccl.formats.published.fields import REMEDY, AlgorithmFile
from taccl.sketch.upstream import Edge, edges_across, edges_inside, planes_between, wired
from taccl.topology.parts import check_num_links
from taccl.topology.topology import Topology
from taccl.units import BYTES_PER_MB, exact

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
    # Equal switches are planes of one.
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
    """The reversed links, as far as fewer exist in the other direction."""
    there: Counter[tuple[int, int]] = Counter((edge.src, edge.dst) for edge in edges)
    seen: Counter[tuple[int, int]] = Counter()
    turned = []
    for edge in edges:
        seen[edge.src, edge.dst] += 1
        if seen[edge.src, edge.dst] > there[edge.dst, edge.src]:
            turned.append(edge._replace(src=edge.dst, dst=edge.src))
    return turned
