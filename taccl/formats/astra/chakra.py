"""Chakra execution traces, one per rank, that ASTRA-sim runs as a custom collective.

A trace is a graph of nodes. A node is a send, a receive, the computation of a sum, or a computed tile of a
workload's step (`Computed`), which has a duration. ``docs/formats.md`` states the dependencies of each kind,
and the information that a trace loses.

`taccl.formats.astra.et_def` has the messages of a file. See https://github.com/astra-sim/astra-sim
(``CustomAlgorithm.cc``).
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from io import BytesIO
from math import ceil
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from taccl._internal.names import first_of
from taccl.analysis.simulation.events import Events
from taccl.errors import ExportError, LossyConversionWarning, warn
from taccl.formats.astra.et_def import message_classes
from taccl.problem.problem import Problem
from taccl.schedule.precedence import DATA
from taccl.schedule.schedule import Schedule
from taccl.topology.links import Link

_COMP, _SEND, _RECEIVE = 4, 5, 6
_VERSION = "0.0.4"
_SUFFIX = ".et"
#: Collectives whose chunks ASTRA-sim can scale to another message size.
_SCALED = frozenset(("allgather", "allreduce", "alltoall", "reduce-scatter"))
_SHOWN = 3


class Computed(NamedTuple):
    """A computation of one rank, with its times and dependencies.

    - `start_us`, `end_us`: Times in microseconds.
    - `after`: Indices of the computations that it waits for.
    - `chunks`: Chunks that must arrive at the rank before it starts.
    """

    name: str
    rank: int
    start_us: Fraction
    end_us: Fraction
    after: frozenset[int]
    chunks: frozenset[int]


def dump_chakra(
    schedule: Schedule,
    path: str | os.PathLike[str],
    computed: Sequence[Computed] = (),
    sources: Mapping[tuple[int, int], Computed] = MappingProxyType({}),
) -> dict[Path, bytes]:
    """Chakra traces as {file: content}, one file per rank (``PREFIX.0.et``, ...); warns of lost information.

    - `schedule`: A schedule whose links each join two ranks.
    - `path`: Prefix of the files' names, or ``PREFIX.et``.
    - `computed`: Computations of all ranks to include in the traces.
    - `sources`: {(chunk, origin): dependencies of the contribution that the origin sends}.

    Raises `ExportError` if a link that the schedule uses joins more than two ranks, and `InputError` if the
    schedule does not fit its problem.
    """
    problem = schedule.problem
    links = problem.topology.links
    wide = next((e for e in set(schedule.link.tolist()) if len(links[e].srcs) + len(links[e].dsts) > 2), None)
    if wide is not None:
        raise ExportError(
            f"link {links[wide]} joins more than two ranks, but an execution trace has only point-to-point "
            "sends; synthesize without switches that multicast or reduce"
        )
    events = Events(schedule, problem)
    lost = ["times and costs: the simulator times the sends on its own network"]
    crossing = _shared_by_ranks(problem, events)
    if any((each.end_us - each.start_us).denominator > 1 for each in computed):
        lost.append("fractions of microseconds of computations, which are rounded up")
    if crossing:
        shared = first_of(crossing, _SHOWN)
        lost.append(f"the order of sends of different ranks on shared resources ({shared})")
    warn(f"an execution trace cannot hold {'; '.join(lost)}", LossyConversionWarning)
    prefix = os.fspath(path).removesuffix(_SUFFIX)
    return {
        Path(f"{prefix}.{rank}{_SUFFIX}"): _encoded(nodes, problem)
        for rank, nodes in enumerate(_nodes(schedule, events, computed, sources))
    }


@dataclass(slots=True)
class _Node:
    """A node of one rank's trace; `after` has the ids of nodes that it waits for.

    In the file, every node has the attribute ``is_cpu_op`` false.
    """

    kind: int
    name: str
    after: set[int] = field(default_factory=set)
    attributes: Sequence[Mapping[str, Any]] = ()
    duration_us: int = 0


class _Traces:
    """Traces of all ranks under construction: `nodes` has each rank's nodes, and a node's id is its index."""

    def __init__(
        self, schedule: Schedule, events: Events, sources: Mapping[tuple[int, int], Computed]
    ) -> None:
        self._schedule, self._events, self._sources = schedule, events, sources
        self._links = schedule.problem.topology.links
        self._total = _total_chunks(schedule.problem)
        self.nodes: list[list[_Node]] = [[] for _ in range(schedule.problem.topology.num_ranks)]
        #: {send: its node}.
        self._sent: dict[int, int] = {}
        #: {send: node at its destination after which its chunks are available}.
        self._arrived: dict[int, int] = {}
        #: {computation: its node}.
        self._made: dict[int, int] = {}
        #: {(chunk, rank): nodes of its arrivals}.
        self._came = defaultdict[tuple[int, int], set[int]](set)
        #: {rank: node of its last computation}.
        self._busy: dict[int, int] = {}

    def _add(self, rank: int, node: _Node) -> int:
        """Add a node of a rank; return its id."""
        self.nodes[rank].append(node)
        return len(self.nodes[rank]) - 1

    def _known(self, each: Computed | None) -> set[int]:
        """Nodes that a computation waits for."""
        if each is None:
            return set()
        return {self._made[i] for i in each.after}.union(*(self._came[c, each.rank] for c in each.chunks))

    def compute(self, index: int, tile: Computed) -> None:
        """Add the node of a computation."""
        last = {self._busy[tile.rank]} if tile.rank in self._busy else set()
        node = _Node(
            _COMP, tile.name, {*self._known(tile), *last}, duration_us=ceil(tile.end_us - tile.start_us)
        )
        self._made[index] = self._busy[tile.rank] = self._add(tile.rank, node)

    def send(self, s: int) -> None:
        """Add the node of a send at its source."""
        ends, chunks, name = self._message(s)
        own = {node for c in chunks for node in self._known(self._sources.get((c, ends.src)))}
        attributes = self._attributes(s, _SEND, "comm_dst", ends.dst)
        self._sent[s] = self._add(ends.src, _Node(_SEND, f"send {name} to {ends.dst}", own, attributes))

    def receive(self, s: int) -> None:
        """Add the node of a receive at its destination, and one for the sum if the send adds to a chunk."""
        ends, chunks, name = self._message(s)
        rank, attributes = ends.dst, self._attributes(s, _RECEIVE, "comm_src", ends.src)
        node = self._add(rank, _Node(_RECEIVE, f"receive {name} from {ends.src}", attributes=attributes))
        if self._schedule.reduce[self._events.transfers[s][0]]:
            own = {each for c in chunks for each in self._known(self._sources.get((c, rank)))}
            node = self._add(rank, _Node(_COMP, f"add {name} of {ends.src}", {node, *own}))
        self._arrived[s] = node
        for chunk in chunks:
            self._came[chunk, rank].add(node)

    def _message(self, s: int) -> tuple[Link, list[int], str]:
        """(link of a send, its chunks, their name)."""
        chunks = [int(self._schedule.chunk[t]) for t in self._events.transfers[s]]
        return self._links[self._events.link[s]], chunks, "chunk " + " ".join(map(str, chunks))

    def _attributes(self, s: int, kind: int, end: str, peer: int) -> list[dict[str, Any]]:
        """Attributes of a send or a receive.

        - `end`: Name of the attribute with the rank at the other end, `peer`.
        """
        _, chunks, _ = self._message(s)
        total, sizes = self._total, self._schedule.problem.chunk_bytes
        return [
            {"name": "comm_type", "int64_val": kind},
            {"name": end, "int32_val": peer},
            {"name": "comm_size", "int64_val": sum(sizes[c] for c in chunks)},
            {"name": "comm_tag", "int32_val": s},
            {"name": "msg_chunk_cnt", "int32_val": len(chunks) if total else -1},
            {"name": "msg_chunk_idx", "int32_val": chunks[0] % total if total else -1},
            {"name": "total_chunk_cnt", "int32_val": total or -1},
        ]

    def order(self) -> None:
        """Make sends wait for the data that they read, and for earlier sends through the same resource."""
        events = self._events
        awaited = defaultdict[int, list[int]](list)
        is_data = events.waits.cause == DATA
        for source, target in zip(*(each[is_data].tolist() for each in events.waits[:2]), strict=True):
            awaited[target].append(source)
        for s, node in self._sent.items():
            mine = self.nodes[self._links[events.link[s]].src]
            mine[node].after |= {self._arrived[each] for each in _sources(awaited, s, events.num_sends)}
        for before, s in _kept_order(events):
            mine = self.nodes[self._links[events.link[s]].src]
            mine[self._sent[s]].after.add(self._sent[before])


def _nodes(
    schedule: Schedule,
    events: Events,
    computed: Sequence[Computed],
    sources: Mapping[tuple[int, int], Computed],
) -> list[list[_Node]]:
    """Nodes of every rank; a node's id is its index."""
    traces, per_us = _Traces(schedule, events, sources), schedule.problem.costs.ticks_per_us
    # At equal times, arrivals come before starts, so that a node waits only for nodes listed before it.
    times: list[tuple[Fraction | int, int, int]] = [(t, 0, s) for s, t in enumerate(events.end)]
    times += [(each.start_us * per_us, 1, i) for i, each in enumerate(computed)]
    times += [(t, 2, s) for s, t in enumerate(events.start)]
    for _, kind, index in sorted(times):
        if kind == 1:
            traces.compute(index, computed[index])
        elif kind == 2:
            traces.send(index)
        else:
            traces.receive(index)
    traces.order()
    for each in traces.nodes:
        if not each:  # ASTRA-sim reports a trace without a ready node as a deadlock
            each.append(_Node(_COMP, "nothing to do"))
    return traces.nodes


def _sources(awaited: Mapping[int, Sequence[int]], send: int, num_sends: int) -> set[int]:
    """Sends whose arrivals a send waits for.

    - `awaited`: {event: events whose data it waits for}.
    """
    found: set[int] = set()
    pending = [send]
    while pending:
        for source in awaited.get(pending.pop(), ()):
            if source < num_sends:
                found.add(source)
            else:  # an event that waits for several arrivals: follow it to these
                pending.append(source)
    return found


def _kept_order(events: Events) -> set[tuple[int, int]]:
    """Pairs of successive sends of one rank through one resource; the trace keeps their order."""
    links = events.problem.topology.links
    pairs = set()
    last: dict[tuple[int, int], int] = {}
    for resource, send in zip(*(column.tolist() for column in events.held[:2]), strict=True):
        place = resource, links[events.link[send]].src
        before = last.get(place)
        if before is not None and events.end[before] <= events.start[send]:
            pairs.add((before, send))
        last[place] = send
    return pairs


def _shared_by_ranks(problem: Problem, events: Events) -> list[str]:
    links, resources = problem.topology.links, problem.topology.resources
    used = zip(*(column.tolist() for column in events.held[:2]), strict=True)
    pairs = {(resource, links[events.link[send]].src) for resource, send in used}
    counts = Counter(resource for resource, _ in pairs)
    return [resources[resource].name for resource in sorted(counts) if counts[resource] > 1]


def _total_chunks(problem: Problem) -> int:
    """Number of chunks of the collective (``total_chunk_cnt``); 0 if ASTRA-sim cannot scale its chunks."""
    collective = problem.collective
    alike = len(set(problem.chunk_bytes)) == 1 and collective.name in _SCALED
    return collective.size_chunks if alike and collective.size_chunks % collective.num_ranks == 0 else 0


def _encoded(nodes: Sequence[_Node], problem: Problem) -> bytes:
    from google.protobuf.proto import serialize_length_prefixed

    file, (metadata, message) = BytesIO(), message_classes()
    about = {"name": "schedule", "string_val": problem.title}
    serialize_length_prefixed(metadata(version=_VERSION, attr=[about]), file)
    for number, node in enumerate(nodes):
        attributes = [*node.attributes, {"name": "is_cpu_op", "bool_val": False}]
        made = message(
            id=number, name=node.name, type=node.kind, data_deps=sorted(node.after),
            duration_micros=node.duration_us, attr=attributes,
        )  # fmt: skip
        serialize_length_prefixed(made, file)
    return file.getvalue()
