"""The quotient of a problem by its symmetries: one hop or state stands for all symmetric ones.

A *state* is a chunk at a rank. A *hop* sends a chunk over a link, from states to states. The quotient has one
state for each orbit of (chunk, rank) pairs, and one hop for each orbit of (chunk, link) pairs. All members of
an orbit are routed and timed alike.

Routing, ordering, contiguity, the list scheduler and the job shop all work on `Quotient`. With the trivial
group it is the problem itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from taccl.problem.problem import Problem
from taccl.sketch.group import Symmetries


@dataclass(frozen=True, slots=True)
class Held:
    """A send of u units occupies `count` resources of one orbit, each for ``alpha + u * beta`` ticks."""

    resource: int
    alpha: int
    beta: int
    receives: bool
    count: int


@dataclass(frozen=True, slots=True)
class ChunkState:
    """An orbit of (chunk, rank) pairs: symmetric chunks at symmetric ranks.

    - `chunk`, `rank`: Chunk and rank that represent the orbit.
    - `head_ticks`: Earliest possible arrival; 0 at an origin.
    - `hops_in`, `hops_out`: Hops that enter the state, and hops that leave it.
    """

    chunk: int
    rank: int
    head_ticks: int
    is_origin: bool
    is_destination: bool
    hops_in: tuple[int, ...] = ()
    hops_out: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Hop:
    """An orbit of (chunk, link) pairs: symmetric sends of single chunks.

    - `chunk`, `link`: The pair that represents the orbit. Its link also represents the orbit of the link, so
      that hops over one orbit of links can merge.
    - `srcs`, `dsts`: States that the hop leaves and enters. `dsts` leaves out states that have the chunk from
      the start.
    - `units`, `duration`: Size of the chunk, and ticks of an unmerged send.
    - `tail_ticks`: Longest time from the end of the hop to a destination, over the destinations to which a
      shortest path contains the hop; -1 if there is none.
    - `after_ticks`: Least remaining time from the end of the hop to the nearest destination.
    - `is_own`: True if the chunk starts at the link's sender (for local-first priority).
    - `enters`: Number of the orbit of (chunk, node) that the hop enters; -1 if the link does not join nodes,
      or the chunk has only one destination.
    - `links`: Links of the orbit's pairs whose chunk is the representative of its own orbit.
    """

    chunk: int
    link: int
    link_orbit: int
    srcs: tuple[int, ...]
    dsts: tuple[int, ...]
    units: int
    duration: int
    tail_ticks: int
    after_ticks: int
    is_own: bool
    enters: int = -1
    links: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class HopLimit:
    """Limit on the number of links of a chunk's path.

    - `least`, `left`: For each state, min links of a path to it, and from it to a destination.
    - `starts_anew`: Hops with which a path begins; see `Quotient._starts_anew`.
    """

    limit: int
    least: list[int]
    left: list[int]
    starts_anew: frozenset[int]

    def after(self, m: int, hop: Hop, passed: Sequence[int]) -> int:
        """Number of links that a chunk has passed after a hop.

        - `passed`: Number of links that it has passed at each state.
        """
        return 1 if m in self.starts_anew else 1 + max(passed[p] for p in hop.srcs)

    def leads_on(self, after: int, p: int) -> bool:
        """True if a chunk that reaches a state after `after` links can still reach a destination."""
        return after + self.left[p] <= self.limit

    def is_near(self, m: int, hop: Hop) -> bool:
        """True if some path from a source over a hop to a destination has at most `limit` links."""
        after = self.after(m, hop, self.least)
        return any(self.leads_on(after, p) for p in hop.dsts)

    def is_shortest(self, m: int, hop: Hop, *, alone: bool) -> bool:
        """True if a hop is on a path of the fewest links.

        A chunk that only follows such hops never exceeds the limit before it reaches a destination.

        - `alone`: True for a chunk with one destination.
        """
        if alone:
            ahead = 1 + min(self.left[p] for p in hop.dsts)
            return m in self.starts_anew or all(self.left[a] == ahead for a in hop.srcs)
        after = self.after(m, hop, self.least)
        return any(self.least[p] == after for p in hop.dsts)


@dataclass(frozen=True)
class Quotient:
    """A problem reduced by a group of its symmetries; see `taccl.synthesis.transforms.symmetry`.

    - `link_rep`, (num_link_orbits,): Representative of each orbit of links.
    - `holds`, (num_link_orbits,): Occupations of resources by a send over each orbit of links.
    - `num_resources`: Number of orbits of resources.
    - `single_path`, (num_chunks,): True if the chunk has one destination, so that it travels along one path.
    - `link_orbit`, `resource_orbit`: Number of the orbit of each link and resource.
    """

    problem: Problem
    group: Symmetries
    states: tuple[ChunkState, ...]
    hops: tuple[Hop, ...]
    link_rep: tuple[int, ...]
    holds: tuple[tuple[Held, ...], ...]
    num_resources: int
    single_path: tuple[bool, ...]
    link_orbit: tuple[int, ...]
    resource_orbit: tuple[int, ...]

    @cached_property
    def merging(self) -> tuple[bool, ...]:
        """(num_link_orbits,) True if sends over the links may merge."""
        clauses = self.problem.clauses
        return tuple(clauses.max_merge > 1 and e in clauses.merging for e in self.link_rep)

    @cached_property
    def num_entries(self) -> int:
        """Number of orbits of (chunk, node) pairs whose chunk enters the node by a hop."""
        return 1 + max((hop.enters for hop in self.hops), default=-1)

    @cached_property
    def hops_of_link(self) -> tuple[tuple[int, ...], ...]:
        """(num_link_orbits,) hops over each orbit of links."""
        hops: list[list[int]] = [[] for _ in self.link_rep]
        for m, hop in enumerate(self.hops):
            hops[hop.link_orbit].append(m)
        return tuple(tuple(each) for each in hops)

    @cached_property
    def hop_limit(self) -> HopLimit | None:
        """Limit on the number of links of paths; None if the problem has no such limit."""
        limit = self.problem.clauses.path_limit
        if limit is None:
            return None
        never = limit + 1
        least = [0 if state.is_origin else never for state in self.states]
        left = [0 if state.is_destination else never for state in self.states]
        limits = HopLimit(limit, least, left, self._starts_anew)
        for _ in range(limit):
            known = [*least, *left]
            for m, hop in enumerate(self.hops):
                after, ahead = limits.after(m, hop, least), min([left[p] for p in hop.dsts], default=never)
                for p in hop.dsts:
                    least[p] = min(least[p], after)
                for p in hop.srcs:
                    left[p] = min(left[p], 0 if m in self._starts_anew else 1 + ahead)
            if [*least, *left] == known:
                break
        return limits

    @cached_property
    def _starts_anew(self) -> frozenset[int]:
        """First hops of chunks' paths, if the problem has derived chunks; otherwise empty.

        A derived chunk and its source share a state at the rank that derives it. Links that the source has
        passed before do not count for the derived chunk.
        """
        derives = bool(self.problem.collective.derivations)
        return frozenset(m for m, hop in enumerate(self.hops) if derives and hop.is_own)

    @cached_property
    def links_of_resource(self) -> tuple[tuple[int, ...], ...]:
        """(num_resources,) orbits of links that use each orbit of resources."""
        links: list[list[int]] = [[] for _ in range(self.num_resources)]
        for link, holds in enumerate(self.holds):
            for held in holds:
                links[held.resource].append(link)
        return tuple(tuple(dict.fromkeys(each)) for each in links)

    def earliest_start(self, hop: Hop) -> int:
        """Earliest tick at which all sources of a hop can have the chunk."""
        return max(self.states[p].head_ticks for p in hop.srcs)

    def members(self, hop: int) -> list[tuple[int, int]]:
        """The (chunk, link) pairs of a hop, one per member of its orbit."""
        return [pair for (pair,) in self.group.sends([(self.hops[hop].chunk, self.hops[hop].link)])]

    def num_members(self, hop: int) -> int:
        """Number of (chunk, link) pairs in the orbit of a hop."""
        size = self._chunk_orbit_size[int(self.group.chunks[self.hops[hop].chunk])]
        return size * len(self.hops[hop].links)

    @cached_property
    def _chunk_orbit_size(self) -> Counter[int]:
        return Counter(self.group.chunks.tolist())

    def restrict(self, hops: Iterable[tuple[int, int]]) -> Quotient:
        """Restrict the quotient to hops whose representative (chunk, link) pair is in `hops`."""
        wanted = set(hops)
        return with_hops(self, [m for m in self.hops if (m.chunk, m.link) in wanted])


def with_hops(quotient: Quotient, hops: Sequence[Hop]) -> Quotient:
    """Replace the hops of a quotient, and enter them as `hops_in` and `hops_out` of its states."""
    into: dict[int, list[int]] = defaultdict(list)
    out: dict[int, list[int]] = defaultdict(list)
    for m, hop in enumerate(hops):
        for p in hop.dsts:
            into[p].append(m)
        for p in hop.srcs:
            out[p].append(m)
    states = tuple(
        replace(state, hops_in=tuple(into[i]), hops_out=tuple(out[i]))
        for i, state in enumerate(quotient.states)
    )
    return replace(quotient, states=states, hops=tuple(hops))
