"""Algorithm files of the published tool: checked fields, and the topology and collective they describe.

The published TACCL tool writes nested objects, each marked by a field ``sccl_type``. Matrices are indexed
[destination][source]. Costs are for one chunk, as the published tool used them: inside a node, without a
separate latency. Every plane of a switch has ports of its own. Costs between nodes already include the
sharing of NICs among links. `taccl.sketch.upstream` makes the same links and ports from the tool's sketch and
topology file.

Chunks with the same address are contributions to one sum. The tool's own allreduce is an exception: its sends
name chunks by their index in the list of chunks, and many chunks share an address without being one sum.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import permutations
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, model_validator

from taccl._internal.arguments import quoted
from taccl._internal.units import BYTES_PER_MB, exact
from taccl._internal.validation import Cost, validated
from taccl.errors import FormatError, InputError
from taccl.problem.chunks import Chunk
from taccl.problem.collective import Collective
from taccl.problem.collectives import arguments_of, make
from taccl.sketch.upstream_wiring import Edge, edges_across, edges_inside, planes_between, wired
from taccl.topology.parts import check_num_links
from taccl.topology.topology import Topology

REMEDY = "write the file again with the tool that made it"

#: Index of a rank, chunk or link.
_Index = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
#: Number of ranks or nodes; at least 1.
_Count = Annotated[int, Field(strict=True, ge=1, lt=2**31)]
#: Start in tenths of the file's unit of time, limited so that the tick grid does not overflow.
_Tenths = Annotated[int, Field(strict=True, ge=0, le=10**15)]

#: Name of a topology: kind of machine, name of the topology file, and often the number of ranks per node.
_NAME = re.compile(r"^(NDv2|DGX2|HubAndSpoke|Custom)-(.+?)(?:-\(n=\d+\))?$")
MACHINES = {"NDv2": "ndv2", "DGX2": "dgx2"}

_LONGEST_NAME = 200

#: {published tool's name: (taccl's name, power)}; on n ranks, chunks are a multiple of n ** power.
KINDS = {
    "Allgather": ("allgather", 1), "Alltoall": ("alltoall", 2), "Broadcast": ("broadcast", 0),
    "Scatter": ("scatter", 1), "Gather": ("gather", 1), "Allreduce": ("allreduce", 1),
    "Reduce": ("reduce", 0), "ReduceScatter": ("reduce-scatter", 1),
}  # fmt: skip


class _FileObject(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class SendEntry(NamedTuple):
    """One send in a step of an algorithm file.

    - `start`: Start in tenths of the file's unit of time.
    - `number`: Index of the send's link among the parallel links from source to destination.
    """

    chunk: _Index
    src: _Index
    dst: _Index
    start: _Tenths
    number: _Index
    operation: Literal["rrc"] | None = None


def _as_list(entry: object) -> object:
    if isinstance(entry, list) and len(entry) == 3:
        raise ValueError(
            f"found {quoted(entry)}, a send of SCCL, which has no time; expected an algorithm of TACCL "
            "(MSCCL XML of it, as `msccl solve ncclize` writes, is read)"
        )
    if not isinstance(entry, list) or len(entry) not in (5, 6):
        raise ValueError(
            f"found {quoted(entry)}; expected [chunk, source, destination, start, link], and 'rrc' or null"
        )
    return entry


class TopologyFields(_FileObject):
    """Topology in an algorithm file; with one node, fields for links between nodes are -1 or null."""

    name: str
    copies: _Count
    ngpus_per_node: _Count
    node_links: list[list[_Index]]
    node_invbws: list[list[Cost]]
    remote_alpha: Any = None
    remote_beta: Any = None
    internode_conn: dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], list[_Index]] | None = None
    local_switches: list[list[_Index]]

    @model_validator(mode="after")
    def _fits_a_node(self) -> Self:
        size = self.ngpus_per_node
        for field in ("node_links", "node_invbws"):
            if [len(row) for row in getattr(self, field)] != [size] * size:
                raise ValueError(f"found {field} of another shape; expected {size} rows of {size}; {REMEDY}")
        named = {f"local_switches[{i}]": ranks for i, ranks in enumerate(self.local_switches)}
        if self.copies > 1:
            if not self.internode_conn:
                raise ValueError(f"found no internode_conn; expected connections between nodes; {REMEDY}")
            named |= {f"internode_conn[{src!r}]": dsts for src, dsts in self.internode_conn.items()}
            named["internode_conn"] = [int(sender) for sender in self.internode_conn]
        for field, ranks in named.items():
            if max(ranks, default=0) >= size or len(set(ranks)) < len(ranks):
                found = quoted(str(ranks))
                raise ValueError(
                    f"found {field} {found}; expected distinct local ranks 0-{size - 1}; {REMEDY}"
                )
        return self


class ChunkFields(_FileObject):
    """A chunk: ranks where it starts (`pre`) and must end (`post`), and its address in their buffers."""

    pre: list[_Index]
    post: list[_Index]
    addr: _Index


class CollectiveFields(_FileObject):
    """The collective in an algorithm file."""

    name: str
    nodes: _Count
    chunks: Annotated[list[ChunkFields], Field(min_length=1)]
    ranks: list[Any]
    triggers: Annotated[dict[str, Any], Field(max_length=0)] = Field(default_factory=dict)


class _StepFields(_FileObject):
    sends: list[Annotated[SendEntry, BeforeValidator(_as_list)]]


class AlgorithmFile(_FileObject):
    """An algorithm file; reading checks that its fields have valid types and agree with each other."""

    sccl_type: Literal["algorithm"]
    name: str
    steps: list[_StepFields]
    collective: CollectiveFields
    topology: TopologyFields

    _source: str = PrivateAttr(default="")

    @property
    def where(self) -> str:
        """Name of the file for error messages."""
        return self._source

    @property
    def num_ranks(self) -> int:
        """Number of ranks of all nodes."""
        return self.topology.copies * self.topology.ngpus_per_node

    @property
    def sends(self) -> list[tuple[str, SendEntry]]:
        """All sends of the file, each with the path of its JSON field."""
        return [
            (f"steps[{s}].sends[{i}]", send)
            for s, step in enumerate(self.steps) for i, send in enumerate(step.sends)
        ]  # fmt: skip

    @model_validator(mode="after")
    def _agree(self) -> Self:
        num_ranks = self.num_ranks
        for found, field in ((self.collective.nodes, "nodes"), (len(self.collective.ranks), "ranks")):
            if found != num_ranks:
                raise ValueError(
                    f"found {found} ranks in collective.{field}, but the topology has {num_ranks}; {REMEDY}"
                )
        for place, send in self.sends:
            if max(send.src, send.dst) >= num_ranks or send.src == send.dst:
                raise ValueError(
                    f"found a send from rank {send.src} to rank {send.dst} in {place}; expected two of ranks "
                    f"0-{num_ranks - 1}; {REMEDY}"
                )
        return self


def algorithm_file(data: dict[str, Any], *, where: str) -> AlgorithmFile:
    """Check the fields of an algorithm file's JSON; `FormatError` names an invalid field."""
    file = validated(AlgorithmFile, data, source=where, error=FormatError, remedy=f"; {REMEDY}")
    file._source = where
    return file


def build_topology(
    file: AlgorithmFile, chunk_bytes: int, time_unit_us: Fraction, *, reducing: bool
) -> Topology:
    """Topology of an algorithm file: links inside and between nodes, and ports that serialise sends.

    - `chunk_bytes`: Size in bytes of the chunk that the file's costs are for.
    - `time_unit_us`: Microseconds in the file's unit of time.
    - `reducing`: True if some sends reduce. The tool reduces over reversed links, so each link without a
      reverse link gets one.
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
    # Switches with the same ranks are planes of one switch.
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
            inside += _reversed_edges(inside)
            across += _reversed_edges(across)
        return wired(
            name, MACHINES.get(kind, ""), nodes=fields.copies, size=fields.ngpus_per_node, inside=inside,
            across=across,
        )  # fmt: skip
    except InputError as error:
        raise FormatError(f"{error}; {REMEDY}", where=f"{file.where}: topology") from None


def _reversed_edges(edges: list[Edge]) -> list[Edge]:
    """Links to add so that every pair of ranks has as many links in one direction as in the other."""
    there: Counter[tuple[int, int]] = Counter((edge.src, edge.dst) for edge in edges)
    seen: Counter[tuple[int, int]] = Counter()
    turned = []
    for edge in edges:
        seen[edge.src, edge.dst] += 1
        if seen[edge.src, edge.dst] > there[edge.dst, edge.src]:
            turned.append(edge._replace(src=edge.dst, dst=edge.src))
    return turned


def collective_of(file: AlgorithmFile) -> tuple[dict[int, int], Collective, list[str]]:
    """({number of a chunk in sends: its index in the collective}, the collective, notes for the user)."""
    chunks = file.collective.chunks
    by_address: dict[int, list[ChunkFields]] = defaultdict(list)
    for each in chunks:
        by_address[each.addr].append(each)
    numbered = {address: index for index, address in enumerate(by_address)}
    if len(by_address) == len(chunks):
        alone = [Chunk(tuple(sorted(each.pre)), tuple(sorted(each.post))) for each in chunks]
        return numbered, _named(file, alone, combining=False), []
    sends = [send for _, send in file.sends]
    numbers = {send.chunk for send in sends}
    if numbers.issubset(by_address) or not any(send.operation for send in sends):
        sums = [_sum(file, address, parts) for address, parts in by_address.items()]
        return numbered, _named(file, sums, combining=True), []
    # The tool's own allreduce: sends name chunks by number, and every rank contributes to each chunk.
    # A chunk is summed at the rank where the file says that it starts.
    everyone = tuple(range(file.num_ranks))
    pieces = []
    for index, each in enumerate(chunks):
        if len(each.pre) != 1 or not each.post:
            raise FormatError(
                f"found {len(each.pre)} ranks where it starts and {len(each.post)} where it ends; expected "
                f"one rank, at which it is summed, and at least one; {REMEDY}",
                where=f"{file.where}: collective.chunks[{index}]",
            )
        pieces.append(Chunk(everyone, tuple(sorted(each.post)), each.pre[0]))
    note = (
        f"{file.where}: sends name {len(numbers)} chunks, but the buffers hold {len(by_address)}; chunks "
        "are read as pieces of every rank's data, and buffer maps are ignored"
    )
    return {index: index for index in range(len(pieces))}, _named(file, pieces, combining=True), [note]


def _sum(file: AlgorithmFile, address: int, parts: Sequence[ChunkFields]) -> Chunk:
    """The chunk that sums the contributions with one address; its root is its lowest destination."""
    origins = sorted(rank for each in parts for rank in each.pre)
    destinations = sorted(parts[0].post)
    if (
        any(sorted(each.post) != destinations for each in parts)
        or len(set(origins)) < len(origins)
        or not destinations
    ):
        raise FormatError(
            f"address {address}: found contributions that end at different ranks, come twice from one, or "
            "end nowhere; expected one sum with common destinations: others (scan) are not supported",
            where=f"{file.where}: collective.chunks",
        )
    return Chunk(tuple(origins), tuple(destinations), destinations[0])


def _named(file: AlgorithmFile, chunks: list[Chunk], *, combining: bool) -> Collective:
    """Collective of `chunks`: taccl's for the name in the file if chunks match it, else with that name."""
    stated = file.collective.name
    collective = Collective(stated[:_LONGEST_NAME], file.num_ranks, tuple(chunks), combining)
    name = stated.partition("(")[0]
    if name not in KINDS:
        return collective
    kind, fewest = KINDS[name][0], file.num_ranks ** KINDS[name][1]
    per_rank, rest = divmod(len(chunks), fewest)
    if rest or not per_rank:
        return collective
    named = replace(collective, name=kind, chunks_per_rank=per_rank)
    known = make(kind, file.num_ranks, chunks_per_rank=per_rank, **arguments_of(named))
    return named if _ends(known) == _ends(named) else collective


def _ends(collective: Collective) -> Counter[tuple[object, ...]]:
    """{(origins, destinations, combining): number of chunks}; leaves out roots, which may differ."""
    return Counter((c.origins, c.destinations, collective.combining) for c in collective.chunks)
