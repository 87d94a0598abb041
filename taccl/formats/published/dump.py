"""Write schedules as algorithm files of the published TACCL tool; `load_upstream_algorithm` reads them.

Every file is read back before it is written: each send must keep its start and end, and the schedule must be
valid under the tool's model. (The exception is an allreduce whose phases overlap: readers re-time it, and the
warning says so.) Properties for which the file has no field are omitted, with a `LossyConversionWarning` that
names them.

In the tool's model, all nodes are copies of one node. Inside a node, a pair of local ranks has some number of
parallel links, with the same cost per chunk. Every ordered pair of nodes has links between the same local
ranks. All links between nodes have one latency and one cost per chunk; only their sends merge chunks. With
more than two nodes, a rank sends to one other node at a time, and receives from one. Ranks at a switch have
an output port and an input port for each plane of the switch.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np

from taccl._internal.arguments import checked
from taccl._internal.names import first_of
from taccl._internal.reading import parse_json
from taccl._internal.units import exact, format_count, format_size
from taccl.analysis.verification.verify import verify
from taccl.errors import ExportError, InputError, LossyConversionWarning, warn
from taccl.formats.published.algorithm import read_algorithm, shift_of_second_half
from taccl.formats.published.fields import KINDS, MACHINES
from taccl.problem.problem import Clauses, Problem
from taccl.schedule.schedule import Schedule

#: {taccl's name of a collective: the published tool's name}.
_NAMES = {ours: theirs for theirs, (ours, _) in KINDS.items()}
_MACHINES = {ours: theirs for theirs, ours in MACHINES.items()}
#: Max integer in an algorithm file that readers accept.
_LARGEST = 10**15
#: Max decimal places of the decimal time units, in us, that are tried for a file.
_MOST_DIGITS = 6
_SHOWN = 3


@checked
def dump_upstream_algorithm(schedule: Schedule, *, time_unit_us: int | float | str | None = None) -> str:
    """JSON text of a schedule as an algorithm file of the published tool; a warning states the losses.

    - `time_unit_us`: Microseconds in the file's unit of time; starts are in tenths of it. Default: 1 if all
      starts and costs are exact in it, else a unit in which they are. The warning names the unit unless it
      is 1, because the file does not state it.
    """
    _check(schedule)
    problem, used = schedule.problem, set(schedule.link.tolist())
    refused: list[str] = []
    # Try the most complete variants of the file first: with all nodes, with idle links, with switches.
    ways = product(
        sorted({problem.topology.num_nodes, 1}, reverse=True),
        dict.fromkeys((tuple(sorted(used.union(problem.links_allowed))), tuple(sorted(used)))),
        (True, False),
    )
    for num_nodes, links, with_switches in ways:
        try:
            writing = _Writing(schedule, num_nodes, links, with_switches)
            unit_us = _unit(schedule, writing.costs, time_unit_us)
            text = json.dumps(writing.document(unit_us)) + "\n"
            back = _read_back(schedule, text, unit_us)
        except InputError as error:
            if error.where == "time_unit_us":
                raise
            refused.append(error.message)
        except ExportError as error:
            refused.append(str(error))
        else:
            lost = [*_always_lost(problem), *writing.lost(back), *_second_half(schedule)]
            if unit_us != 1:
                lost.append(f"the unit of time: load it with time_unit_us={_decimal(unit_us)}")
            told = f"an algorithm of the published tool cannot hold {'; '.join(lost)}"
            warn(told, LossyConversionWarning)
            return text
    reasons = "; or else ".join(dict.fromkeys((refused[0], refused[-1])))
    raise ExportError(
        f"an algorithm of the published tool cannot hold the schedule: {reasons}; write another format"
    )


def _check(schedule: Schedule) -> None:
    """Raise `ExportError` if the schedule is invalid, or the file format has no fields for its problem."""
    problem = schedule.problem
    collective = problem.collective
    if collective.derivations:
        raise ExportError(
            f"{collective.name}: an algorithm of the published tool cannot hold derived chunks; write "
            "another format"
        )
    if schedule.carries is not None:
        raise ExportError(
            "the schedule names its contributions, which an algorithm of the published tool cannot hold; "
            "write a program, such as MSCCL XML, or taccl's own format"
        )
    if len(set(problem.chunk_bytes)) > 1:
        raise ExportError(
            f"chunks of {format_size(min(problem.chunk_bytes))} and {format_size(max(problem.chunk_bytes))}: "
            "an algorithm of the published tool has one cost for all chunks; write another format"
        )
    for violation in verify(schedule).violations:
        raise ExportError(f"{violation}; verify the schedule to see all violations")


def _read_back(schedule: Schedule, text: str, unit_us: Fraction) -> Schedule:
    """The schedule as read back from the file; `ExportError` if it differs or is invalid."""
    data = parse_json(text, source="the file", exact=True)
    back = read_algorithm(data, "the file", max(schedule.problem.chunk_bytes, default=1), unit_us)
    ours, theirs = _transfers(schedule, back), _transfers(back, schedule)
    changed = next(((ours - theirs) + (theirs - ours)).elements(), None)
    if changed is not None and not shift_of_second_half(schedule.start, schedule.end, schedule.reduce):
        raise ExportError(
            f"under the tool's model the send of chunk {changed[0]} from rank {changed[1]} to {changed[2]} "
            "takes another time, as only sends between nodes merge, at one cost; search again with a given "
            "number of chunks per rank, without merged sends inside nodes"
        )
    for violation in verify(back).violations:
        raise ExportError(f"under the tool's model there is {violation}")
    return back


def _transfers(schedule: Schedule, other: Schedule) -> Counter[tuple[int, ...]]:
    """{transfer: number of times it occurs}; its times are in ticks of a grid common to both schedules."""
    links, finer = schedule.problem.topology.links, other.problem.costs.ticks_per_us
    return Counter(
        (t.chunk, links[t.link].src, links[t.link].dst, t.start_ticks * finer, t.end_ticks * finer, t.reduce)
        for t in schedule
    )


@dataclass(eq=False)
class _Writing:
    """A variant of the file to write: number of nodes, links included, and whether it has switches."""

    schedule: Schedule
    num_nodes: int
    links: Sequence[int]
    with_switches: bool

    def __post_init__(self) -> None:
        topology, costs = self.schedule.problem.topology, self.schedule.problem.costs
        self.size, rest = divmod(topology.num_ranks, self.num_nodes)
        in_order = all(node == rank // self.size for rank, node in enumerate(topology.node_of_rank))
        if rest or (self.num_nodes > 1 and not in_order):
            raise ExportError("its nodes differ in size, or their ranks are not consecutive")
        units = int(costs.chunk_units[0]) if len(costs.chunk_units) else 1
        #: `number`: {link: its index among the parallel links of the same two ranks}.
        #: `parallel`: {pair of local ranks: number of parallel links}.
        self.number, self.parallel = dict.fromkeys(self.links, 0), Counter[tuple[int, int]]()
        #: For links inside nodes: {pair of local ranks: cost of a chunk in ticks}.
        self.inside: dict[tuple[int, int], int] = {}
        #: Distinct costs of links between nodes: (alpha, cost per chunk), in ticks.
        self.across: set[tuple[int, int]] = set()
        self.receivers: dict[int, set[int]] = defaultdict(set)
        met: Counter[tuple[int, int]] = Counter()
        for e in self.links:
            link = topology.links[e]
            if len(link.srcs) > 1 or len(link.dsts) > 1:
                raise ExportError(f"link {link} joins more than two ranks")
            local = link.src % self.size, link.dst % self.size
            if link.src // self.size != link.dst // self.size:
                self.across.add((int(costs.link_alpha[e]), units * int(costs.link_beta[e])))
                self.receivers[local[0]].add(local[1])
                continue
            self.number[e] = met[link.src, link.dst]
            met[link.src, link.dst] += 1
            self.parallel[local] = max(self.parallel[local], met[link.src, link.dst])
            cost = costs.duration(e, units)
            if self.inside.setdefault(local, cost) != cost:
                raise ExportError(
                    f"links from rank {link.src} to rank {link.dst}, or their like, differ in cost"
                )
        if len(self.across) != (self.num_nodes > 1):
            raise ExportError(
                "links between nodes differ in cost" if self.across else "no link joins its nodes"
            )
        self.costs = {*self.inside.values(), *(cost for both in self.across for cost in both)}

    def lost(self, back: Schedule) -> Iterator[str]:
        """Yield the properties of the schedule that are lost in the file; `back` is the file's schedule."""
        problem = self.schedule.problem
        topology = problem.topology
        if self.num_nodes != topology.num_nodes:
            yield f"its {topology.num_nodes} nodes, which are merged into one"
        idle = len(set(problem.links_allowed).difference(self.links))
        if idle:
            yield f"{idle} of {len(problem.links_allowed)} links, which are unused"
        # In the file, every node has all links that any node has.
        added = self.num_nodes * sum(self.parallel.values()) - len(self.links)
        added += self.num_nodes * (self.num_nodes - 1) * sum(map(len, self.receivers.values()))
        if added > 0:
            yield f"the difference of its nodes: {added} links are added to make them equal"
        written, kept = back.problem.topology, set(self.links)
        alike = [_pairs(written, links) for links in _holders(written)]
        together = {
            resource: _pairs(topology, links)
            for resource, links in enumerate(each & kept for each in _holders(topology))
            if len(links) > 1
        }
        shared = [
            topology.resources[resource].name
            for resource, pairs in together.items()
            if not any(pairs <= each for each in alike)
        ]
        if shared:
            yield f"resources that links share ({first_of(shared, _SHOWN)})"
        if any(problem.costs.link_alpha[e] for e in self.links if not self._is_across(e)):
            yield "latencies inside nodes, which become part of a chunk's cost"

    def _is_across(self, e: int) -> bool:
        link = self.schedule.problem.topology.links[e]
        return link.src // self.size != link.dst // self.size

    def document(self, unit_us: Fraction) -> dict[str, Any]:
        """Content of the algorithm file, as nested dicts for JSON."""
        problem = self.schedule.problem
        name, num_ranks = problem.collective.name, problem.topology.num_ranks
        steps, chunks = self._steps(unit_us), _chunks(problem)
        starts_at, ends_at = _by_rank(chunks, num_ranks, "pre"), _by_rank(chunks, num_ranks, "post")
        return {
            "sccl_type": "algorithm",
            "name": self.schedule.producer,
            "instance": {
                "sccl_type": "instance", "steps": len(steps), "extra_rounds": 0,
                "chunks": problem.collective.chunks_per_rank, "pipeline": None, "extra_memory": None,
                "allow_exchange": False,
            },
            "input_map": _addresses(chunks, starts_at),
            "output_map": _addresses(chunks, ends_at),
            "steps": steps,
            "collective": {
                "sccl_type": "collective",
                "name": f"{_NAMES[name]}(n={num_ranks})" if name in _NAMES else name,
                "nodes": num_ranks,
                "chunks": chunks,
                "ranks": [
                    {"sccl_type": "rank", "pre": starts_at[rank], "post": ends_at[rank], "id": rank}
                    for rank in range(num_ranks)
                ],
                "triggers": {},
            },
            "topology": self._topology(unit_us),
        }  # fmt: skip

    def _steps(self, unit_us: Fraction) -> list[dict[str, Any]]:
        """Steps of the file, one for each time at which sends start.

        A step's field ``rounds`` is the time until the next step, in tenths of the file's unit of time.
        """
        problem = self.schedule.problem
        links, per_us = problem.topology.links, problem.costs.ticks_per_us
        by_start: dict[int, list[list[Any]]] = defaultdict(list)
        for t in self.schedule:
            tenths = int(Fraction(t.start_ticks, per_us) * 10 / unit_us)
            entry = [t.chunk, links[t.link].src, links[t.link].dst, tenths, self.number[t.link]]
            # The sixth entry of a send, present only in combining algorithms.
            operation = ["rrc" if t.reduce else None] if problem.collective.combining else []
            by_start[tenths].append(entry + operation)
        starts = sorted(by_start)
        finish = math.ceil(self.schedule.finish * 10 / unit_us)
        return [
            {
                "sccl_type": "step",
                "rounds": until - start,
                "sends": sorted(by_start[start], key=lambda s: (s[1], s[2], s[4], s[0])),
            }
            for start, until in zip(starts, [*starts[1:], finish], strict=False)
        ]

    def _topology(self, unit_us: Fraction) -> dict[str, Any]:
        topology, per_us = self.schedule.problem.topology, self.schedule.problem.costs.ticks_per_us

        def cost(ticks: int) -> int | float:
            value = Fraction(ticks, per_us) / unit_us
            return int(value) if value.denominator == 1 else float(value)

        ranks = range(self.size)
        (alpha, beta), *_ = (*((cost(a), cost(b)) for a, b in self.across), (-1, -1))
        switches = [
            sorted(s.ranks) for s in topology.switches if len(s.ranks) > 1 and max(s.ranks) < self.size
        ]
        return {
            "sccl_type": "topology",
            "name": f"{_MACHINES.get(topology.machine, 'Custom')}-"
            f"{topology.name.removesuffix(f' x{self.num_nodes}')}",
            "copies": self.num_nodes,
            "ngpus_per_node": self.size,
            "node_links": [[self.parallel[src, dst] for src in ranks] for dst in ranks],
            "node_invbws": [[cost(self.inside.get((src, dst), 0)) for src in ranks] for dst in ranks],
            "remote_invbw": cost(sum(*self.across)) if self.across else -1,
            "remote_alpha": alpha,
            "remote_beta": beta,
            "internode_conn": {str(src): sorted(self.receivers[src]) for src in sorted(self.receivers)},
            "local_switches": switches if self.with_switches else [],
        }


def _holders(topology: Any) -> list[set[int]]:
    """For each resource, the links whose sends hold it."""
    holders: list[set[int]] = [set() for _ in topology.resources]
    for hold in topology.holds:
        holders[hold.resource].add(hold.link)
    return holders


def _pairs(topology: Any, links: Iterable[int]) -> set[tuple[int, int]]:
    return {(topology.links[e].src, topology.links[e].dst) for e in links}


def _unit(schedule: Schedule, costs: Iterable[int], wanted: int | float | str | None) -> Fraction:
    """Microseconds in the file's unit of time: `wanted`, or the first unit in which all times are exact.

    Exact means that starts are whole tenths of the unit, and costs are exact numbers. Units tried are 1, 0.1,
    ..., 10**-6, and a unit computed from the greatest common divisor of all times.
    """
    per_us = schedule.problem.costs.ticks_per_us
    ticks = np.unique(schedule.start).tolist()

    def fits(unit_us: Fraction) -> bool:
        tenths = (Fraction(t, per_us) * 10 / unit_us for t in ticks)
        return all(t.denominator == 1 and t <= _LARGEST for t in tenths) and all(
            _is_exact(Fraction(cost, per_us) / unit_us) for cost in costs
        )

    if wanted is not None:
        given = exact(wanted, where="time_unit_us")
        if given == 0 or not fits(given):
            raise InputError(
                f"found {wanted}, of whose tenths some starts or costs are no exact number; leave it out for "
                "a unit that fits",
                where="time_unit_us",
            )
        return given
    decimal = [Fraction(1, 10**digits) for digits in range(_MOST_DIGITS + 1)]
    for unit_us in (*decimal, Fraction(10 * math.gcd(*ticks, *costs), per_us)):
        if unit_us and fits(unit_us):
            return unit_us
    raise ExportError("starts and costs share no exact unit; give costs with fewer decimals")


def _is_exact(value: Fraction) -> bool:
    return value <= _LARGEST and (value.denominator == 1 or Fraction(str(float(value))) == value)


def _always_lost(problem: Problem) -> Iterable[str]:
    yield f"the size of a chunk ({format_size(problem.chunk_bytes[0])})" if problem.chunk_bytes else "sizes"
    plain = Clauses(max_merge=6, merging=frozenset(problem.topology.internode_links))
    if problem.clauses not in (Clauses(), plain):
        name = f" {problem.clauses.name!r}" if problem.clauses.name else ""
        yield f"the clauses of the sketch{name}"
    rooted = [c for c in problem.collective.chunks if c.root not in (None, *c.destinations[:1])]
    if rooted:
        yield f"at which ranks {format_count(len(rooted), 'sum')} are gathered"


def _second_half(schedule: Schedule) -> Iterable[str]:
    """Yield a note if readers of the algorithm file will re-time its sends.

    Readers do so if all copies start after the last reduction starts, but some before a reduction ends.
    """
    if shift_of_second_half(schedule.start, schedule.end, schedule.reduce):
        yield (
            "copies that start before the last reduction ends: readers treat them as a separate phase "
            "and re-time all sends in their order"
        )


def _chunks(problem: Problem) -> list[dict[str, Any]]:
    """JSON of the chunks. As in the tool, each contribution to a sum is a chunk, at the sum's address."""
    collective = problem.collective
    return [
        {"sccl_type": "chunk", "pre": list(pre), "post": list(chunk.destinations), "addr": address}
        for address, chunk in enumerate(collective.chunks)
        for pre in ([(rank,) for rank in chunk.origins] if collective.combining else [chunk.origins])
    ]


def _by_rank(chunks: list[dict[str, Any]], num_ranks: int, end: str) -> list[list[int]]:
    """For each rank, the indices of chunks that start (``"pre"``) or must end (``"post"``) there."""
    return [[index for index, chunk in enumerate(chunks) if rank in chunk[end]] for rank in range(num_ranks)]


def _addresses(chunks: list[dict[str, Any]], by_rank: list[list[int]]) -> dict[str, list[int]]:
    return {
        str(rank): list(dict.fromkeys(chunks[index]["addr"] for index in held))
        for rank, held in enumerate(by_rank)
    }


def _decimal(value: Fraction) -> str:
    return f"{float(value):g}" if Fraction(f"{float(value):g}") == value else f"'{value}'"
