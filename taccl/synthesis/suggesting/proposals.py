"""Proposed sketches: plans of which ranks send between nodes, with symmetries that fit.

Plans derive from features of the topology in local ranks, so they require nodes that are alike. Plans with a
single sender for a shared NIC, or for ranks without links between nodes, never came first in tests and are
not proposed. Sketches are written with comments.
"""

from __future__ import annotations

import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from taccl._internal.caching import cached
from taccl._internal.deadline import NEVER, Deadline
from taccl._internal.units import BYTES_PER_MB, format_size, format_us
from taccl.analysis.certificates.certificate import Certificate
from taccl.errors import SketchError, TopologyError
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule
from taccl.sketch.group import symmetry_group
from taccl.sketch.symmetry import (
    block_shifts,
    check_clauses,
    chunk_permutation,
    link_permutation,
    offset_permutation,
)
from taccl.synthesis.symmetry.timing_group import timing_group
from taccl.topology.topology import Topology

if TYPE_CHECKING:
    from taccl.sketch.sketch import Sketch


#: Max links for which shifts are checked (the check takes too long beyond).
_MOST_LINKS = 200_000

Ranks = tuple[int, ...]


@dataclass(frozen=True, slots=True, order=True)
class Shift:
    """Symmetry of a sketch: maps rank r to (r + offset) mod group within its block of `group` ranks."""

    group: int
    offset: int

    def ranks(self, num_ranks: int) -> tuple[int, ...]:
        """Image of each rank."""
        return offset_permutation(num_ranks, self.offset, self.group)

    def repeats_one_of(self, known: Iterable[Shift]) -> bool:
        """True if this shift is a multiple of a known one with blocks of the same size."""
        return any(each.group == self.group and self.offset % each.offset == 0 for each in known)


@dataclass(frozen=True)
class SketchShape:
    """Features of a topology of equal nodes that matter for a sketch; ranks are local ranks of a node."""

    topology: Topology
    ranks_per_node: int
    shifts: tuple[Shift, ...]

    def is_small(self, chunk_bytes: int) -> bool:
        """True if the latency of the fastest link between nodes is at least a chunk's transmission time.

        With a single node, the fastest link inside it counts.
        """
        alpha_us, beta_us_per_mb = self._quickest
        return alpha_us >= beta_us_per_mb * Fraction(chunk_bytes, BYTES_PER_MB)

    @cached_property
    def _quickest(self) -> tuple[Fraction, Fraction]:
        """Alpha and beta of the fastest link between nodes, or inside a single node."""
        topology = self.topology
        links = (topology.links[e] for e in topology.internode_links or range(len(topology.links)))
        # Links of one kind mostly share their fractions, whose identities are compared faster.
        kinds = {(id(link.alpha_us), id(link.beta_us_per_mb)): link for link in links}
        costs = [(link.alpha_us, link.beta_us_per_mb) for link in kinds.values()]
        return min(costs, key=sum)

    @cached_property
    def switches(self) -> tuple[Ranks, ...]:
        """Sets of local ranks behind a switch: as declared, or ranks with ports that all reach each other.

        A rank has a port if a single resource is used by all its sends inside its node.
        """
        declared = self._in_every_node(switch.ranks for switch in self.topology.switches)
        if declared:
            return declared
        users: dict[int, list[int]] = defaultdict(list)
        for hold in self.topology.holds:
            users[hold.resource].append(hold.link)
        ports: Counter[frozenset[int]] = Counter()
        for links in users.values():
            srcs = {self.topology.links[e].src for e in links}
            if len(srcs) == 1 and len(links) > 1 and not any(map(self.topology.is_internode, links)):
                ports[frozenset(srcs.union(self.topology.links[e].dst for e in links))] += 1
        return self._in_every_node(ranks for ranks, count in ports.items() if count >= len(ranks))

    @cached_property
    def joined(self) -> frozenset[tuple[int, int]]:
        """(src, dst) local ranks such that src of each node has a link to dst of each other node."""
        count: dict[tuple[int, int], set[tuple[int, int]]] = defaultdict(set)
        topology = self.topology
        node, local = topology.node_of_rank, topology.local_rank
        for e in topology.internode_links:
            link = topology.links[e]
            count[local[link.src], local[link.dst]].add((node[link.src], node[link.dst]))
        pairs = topology.num_nodes * (topology.num_nodes - 1)
        return frozenset(ends for ends, found in count.items() if len(found) == pairs)

    def _in_every_node(self, sets: Iterable[Iterable[int]]) -> tuple[Ranks, ...]:
        """Sets of ranks within a node, in local ranks, that exist in every node."""
        nodes_of: dict[Ranks, set[int]] = defaultdict(set)
        for ranks in sets:
            nodes = {self.topology.node_of_rank[r] for r in ranks}
            if len(nodes) == 1:
                nodes_of[tuple(sorted(self.topology.local_rank[r] for r in ranks))] |= nodes
        return tuple(sorted(s for s, nodes in nodes_of.items() if len(nodes) == self.topology.num_nodes))


@dataclass(frozen=True, slots=True)
class InternodePlan:
    """Choice of the ranks that send between nodes, with its reason (`why`).

    - `internode`: {field: (value, comment)} of the sketch's table ``[internode]``.
    """

    name: str
    why: str
    internode: Mapping[str, tuple[object, str]] = field(default_factory=dict)


def find_shape(topology: Topology, *, deadline: Deadline = NEVER) -> SketchShape:
    """Features of a topology for the author of a sketch.

    Raises `TopologyError` if nodes differ in their number of ranks, there are hyperedges, or there is only
    one rank; `OutOfTime` at the deadline.
    """
    sizes = sorted({len(ranks) for ranks in topology.ranks_of_node})
    refused = ""
    if len(sizes) > 1:
        refused = (
            f"nodes of {', '.join(map(str, sizes))} ranks; a sketch speaks of local ranks of every node, so "
            "it is suggested only where nodes are alike"
        )
    elif topology.num_ranks < 2 or not topology.links:
        refused = "nothing to send over; expected two ranks and a link at least"
    elif any(len(link.srcs) + len(link.dsts) > 2 for link in topology.links):
        refused = "links of several sources or destinations, for which no sketch is suggested"
    if refused:
        raise TopologyError(f"found {refused}", where=topology.name)
    return SketchShape(topology, sizes[0], find_shifts(topology, deadline=deadline))


def relay_plans(shape: SketchShape) -> Iterator[InternodePlan]:
    """Plans of which ranks send between nodes, as links permit; the least restrictive comes last."""
    if shape.topology.num_nodes == 1:
        yield InternodePlan("one-node", "there is one node, so no rank relays")
        return
    local = range(shape.ranks_per_node)
    if all((r, r) in shape.joined for r in local):
        same_number = {"connections": ("direct-map", "Local rank i to local rank i of every other node.")}
        nobody = {r: (r,) for r in local}, "No relays: each sender carries only its own chunks."
        yield InternodePlan(
            "own-chunks",
            "every rank sends its own chunks to the rank with its number, once for each node: "
            "every NIC is in use, and no chunk crosses twice",
            {**same_number, "relays": nobody},
        )
        why = "every rank sends to the rank with its number, any chunk: every NIC is in use"
        yield InternodePlan("same-number", why, same_number)
    why = "any rank may send any chunk over any link; the search decides which NICs are used"
    yield InternodePlan("free", why)


def find_shifts(topology: Topology, *, deadline: Deadline = NEVER) -> tuple[Shift, ...]:
    """All symmetries of a topology that are shifts within blocks of ranks, and map nodes to nodes.

    Raises `OutOfTime` at the deadline.
    """
    found: list[Shift] = []
    node = topology.node_of_rank
    for offset, group in block_shifts(topology.num_ranks) if len(topology.links) <= _MOST_LINKS else ():
        deadline.check()
        shift = Shift(group, offset)
        ranks = shift.ranks(topology.num_ranks)
        whole_nodes = len({(node[r], node[image]) for r, image in enumerate(ranks)}) == topology.num_nodes
        is_known = shift.repeats_one_of(found)
        if is_known or (whole_nodes and link_permutation(topology, ranks) is not None):
            found.append(shift)
    return tuple(found)


#: First line of sketch files, for editors.
_SCHEMA_LINE = "#:schema sketch.schema.json"
_WIDTH = 100


@dataclass(frozen=True, slots=True)
class SketchProposal:
    """A sketch that suits a topology, a collective and a size, with a bound and a first schedule.

    Parameters
    ----------
    sketch : Sketch
    bound : Certificate
        A proven lower bound on the finish of all schedules that obey the sketch.
    schedule : Schedule
        A quick schedule by the list scheduler, verified.
    why : str
        Reason for the sketch, as a sentence.
    comments : mapping of str to str
        Comments that `to_toml` writes above tables and fields, by name: ``"symmetry"``,
        ``"internode.connections"``.
    """

    sketch: Sketch
    bound: Certificate = field(compare=False)
    schedule: Schedule = field(compare=False)
    why: str
    comments: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def finish_us(self) -> float:
        """Finish of the proposal's schedule, in microseconds."""
        return self.schedule.finish_us

    @property
    def problem(self) -> Problem:
        """The problem under the sketch: its topology, and its collective in the sketch's chunks."""
        return self.bound.problem

    @property
    def bound_us(self) -> float:
        """The bound in microseconds."""
        return self.bound.bound_us

    @property
    def limits(self) -> str:
        """Resource or argument that limits the bound, as text."""
        return self.bound.limits

    def to_toml(self) -> str:
        """The sketch as commented TOML, for editing; `taccl.load_sketch` reads it."""
        problem = self.problem
        size = f" of {format_size(problem.size_bytes)}" if problem.size_bytes else ""
        header = [
            f"Suggested for {problem.collective.name}{size} on {problem.topology.name}.",
            f"{self.why[:1].upper()}{self.why[1:]}.",
            f"A first schedule ends after {format_us(self.finish_us)}; none that obeys this sketch ends "
            f"before {format_us(self.bound_us)} ({self.limits}).",
        ]
        lines = [_SCHEMA_LINE, *(line for paragraph in header for line in _wrapped(paragraph))]
        table, left = "", dict(self.comments)
        for line in self.sketch.to_toml().splitlines():
            name = line.partition(" = ")[0]
            if line.startswith("["):
                name = table = line.strip("[]")
            elif table:
                name = f"{table}.{name}"
            # If several tables have the same name, only the first is commented.
            comment = left.pop(name, None) if line else None
            lines += [*_wrapped(comment), line] if comment else [line]
        return "\n".join(lines) + "\n"

    def __repr__(self) -> str:
        return (
            f"SketchProposal({self.sketch.name!r}: finish {format_us(self.finish_us)}, bound "
            f"{format_us(self.bound_us)}; {self.why})"
        )


def _wrapped(paragraph: str) -> list[str]:
    return textwrap.wrap(paragraph, _WIDTH, initial_indent="# ", subsequent_indent="# ")


def make_sketch(
    problem: Problem, shape: SketchShape, plan: InternodePlan, max_merge: int, shifts: Sequence[Shift] = ()
) -> Sketch:
    """Sketch of a plan for a problem's chunks; `max_merge` chunks may merge, `shifts` are its symmetries."""
    from taccl.sketch.sketch import Sketch  # imports pydantic, which takes 0.12 s of CPU

    per_rank, sizes = problem.collective.chunks_per_rank, sorted(set(problem.chunk_bytes))
    num_nodes = problem.topology.num_nodes
    merging = "" if max_merge > 1 or num_nodes == 1 else "-unmerged"
    content: dict[str, Any] = {"schema": 1, "name": f"auto-{plan.name}{merging}-{per_rank}"}
    content |= {**_machine(problem.topology), "nodes": num_nodes, "chunks": {"per_rank": per_rank}}
    if len(sizes) == 1:
        content["chunks"]["size"] = sizes[0]
        policy = "max-connections" if shape.is_small(sizes[0]) else "min-connections"
        content["switch"] = [
            {"name": f"switch {i}", "ranks": ranks, "policy": policy}
            for i, ranks in enumerate(shape.switches)
        ]
    if plan.internode:
        content["internode"] = {name: value for name, (value, _) in plan.internode.items()}
    if num_nodes > 1:
        content["merging"] = {"max": max_merge}
    content["symmetry"] = [{"offset": shift.offset, "group": shift.group} for shift in shifts]
    return Sketch.from_dict({key: value for key, value in content.items() if value})


def fitting_shifts(
    problem: Problem, shifts: Sequence[Shift], *, deadline: Deadline = NEVER
) -> tuple[Shift, ...]:
    """Shifts that are symmetries of clauses and collective, too, and let symmetric sends be simultaneous.

    In the group that they generate, each symmetry but the identity moves every rank and every used resource.
    So the group has at most as many elements as there are ranks, and symmetric sends can be simultaneous.
    Shifts within the longest blocks come first. At the deadline, the shifts found so far are returned.
    """
    found: list[Shift] = []
    for shift in sorted(shifts, key=lambda each: (-each.group, each.offset)):
        if deadline.has_passed:
            break
        generators = tuple(each.ranks(problem.topology.num_ranks) for each in (*found, shift))
        if not shift.repeats_one_of(found) and _reduces_problem(problem, generators):
            found.append(shift)
    return tuple(found)


def _reduces_problem(problem: Problem, permutations: tuple[tuple[int, ...], ...]) -> bool:
    """True if the last permutation is a symmetry, and the group of all lets symmetric sends be simultaneous.

    In that group, only the identity may leave a rank or a used resource in its place.
    """
    topology, clauses, ranks = problem.topology, problem.clauses, permutations[-1]
    links, renamed = link_permutation(topology, ranks), problem.with_clauses(symmetry=permutations)
    if links is None or chunk_permutation(problem, ranks) is None:
        return False
    try:
        check_clauses(topology, clauses, ranks, links, label="", where="")
    except SketchError:
        return False
    group = symmetry_group(renamed)
    # Each rank has as many images as the group has elements, so that only the identity fixes it.
    moved = (np.bincount(group.ranks)[group.ranks] == group.order).all()
    return bool(moved) and timing_group(renamed).order == group.order


@cached
def _machine(topology: Topology) -> dict[str, str]:
    """Fields ``machine`` and ``profile``, if these alone reproduce the topology; otherwise empty."""
    from taccl.topology.registry import machine_names, parse

    if topology.machine not in machine_names() or topology.cost_model != "physical":
        return {}
    is_usual = topology.cache.get("is_usual") or topology == parse(
        topology.machine, nodes=topology.num_nodes, profile=topology.profile or None
    )
    return {"machine": topology.machine, "profile": topology.profile} if is_usual else {}
