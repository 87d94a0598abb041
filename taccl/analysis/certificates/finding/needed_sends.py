"""Sends that every schedule of a problem must have: those that enter or leave each set of ranks.

Bounds count such sends for disjoint sets of ranks: single ranks, and nodes. A chunk that a set lacks must
enter it. A sum that all ranks need carries contributions into and out of every set.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from taccl._internal.caching import cached
from taccl._internal.deadline import NEVER
from taccl.analysis.certificates.certificate import BorderJob
from taccl.analysis.certificates.finding.distances import Distances
from taccl.analysis.certificates.finding.gates import FOREVER, GateCosts
from taccl.analysis.certificates.finding.volume import cover_of, crossing_links
from taccl.analysis.certificates.transformed import time_reversed
from taccl.problem.costs import link_ends, wide_links
from taccl.sketch.group import find_symmetries

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from taccl.problem.chunks import Chunk
    from taccl.problem.problem import Problem
    from taccl.sketch.group import Symmetries


class ChunkKind(NamedTuple):
    """Properties of a chunk on which bounds depend; chunks of one kind need the same sends.

    - `holders`: Ranks that may ever hold the chunk; None if all may.
    - `made`: (rank, tick) pairs at which a derived chunk first exists; None for other chunks.
    """

    data: Chunk
    units: int
    holders: frozenset[int] | None
    made: tuple[tuple[int, int], ...] | None


class Lane(NamedTuple):
    """Costs in ticks of a resource that all sends over some links hold.

    - `alpha`, `beta`: A send of u units holds the resource for at least ``alpha + beta * u`` ticks.
    - `idle`: Min ticks of a send in which it does not hold the resource.
    """

    alpha: int
    beta: int
    idle: int

    def load(self, spare: Any, sends: Any, step: Any) -> tuple[Any, Any, Any]:
        """(units of all sends, units of the last one, total gain) of the loads with the highest gain.

        A unit gains `spare` ticks less those from the start of the first hold to the end of its own. Each
        send is smaller than the one before by `step`, alpha / beta, as its units delay all later ones.
        Arguments are exact, or floats.
        """
        units = (sends * spare - self.alpha * (sends * (sends + 1) // 2)) / (self.beta * (1 + sends))
        last = (spare - sends * self.alpha) / self.beta - units
        squares = sends * last**2 + sends * (sends - 1) * step * (last + step * (2 * sends - 1) / 6)
        return units, last, self.beta * (units**2 + squares) / 2


@dataclass(frozen=True, slots=True)
class _Crossing:
    """Links into (or out of) a set of ranks that may carry a chunk, and shortest times to and from them.

    - `to_border`, (num_ranks,): Least ticks from each rank to the source of one of the links.
    - `from_border`, (num_ranks,): Least ticks from the destination of one of the links to each rank.
    - `enters`: Destinations of the links.
    """

    links: frozenset[int]
    to_border: NDArray[np.float64]
    from_border: NDArray[np.float64]
    enters: frozenset[int]


class NeededSends:
    """Sends that a problem requires, and their shortest times, in ticks.

    - `problem`: A problem whose chunks are copied, or are summed for all ranks. Sums for one rank must be
      time-reversed before.
    - `is_reversed`: True if it is the problem in question reversed in time, so that texts of claims state the
      opposite directions.
    - `deadline`: Set by callers; once it has passed, `border` raises `OutOfTime`.
    - `known`: Set by callers: the highest bound so far, in ticks. Finders that cannot exceed it may end.
    """

    def __init__(self, problem: Problem, *, is_reversed: bool = False) -> None:
        self.problem, self.is_reversed = problem, is_reversed
        self.deadline = NEVER
        self.known: int | Fraction = 0
        self.topology = problem.topology
        self.distances = Distances(problem)
        self.sums_for_all = problem.collective.sums_up
        #: `allowed`: Usable links.
        #: `single_ended`: True if each usable link joins one rank to one rank.
        self.allowed = frozenset(problem.links_allowed)
        self.single_ended = self.allowed.isdisjoint(wide_links(self.topology))
        self.cache: dict[Any, Any] = {}
        self._backwards: NeededSends | None = None

    @cached_property
    def _kinds(self) -> list[ChunkKind]:
        """Kind of every chunk."""
        problem, count = self.problem, self.problem.collective.num_chunks
        holders = map(problem.holders, range(count)) if problem.clauses.relays is not None else repeat(None)
        sizes = problem.costs.chunk_units.tolist()
        kinds = list(map(ChunkKind, problem.collective.chunks, sizes, holders, repeat(None)))
        for each in problem.collective.derivations:
            made = tuple(self.distances.origins(each.chunk).items())
            kinds[each.chunk] = kinds[each.chunk]._replace(made=made)
        return kinds

    @cached_property
    def example(self) -> dict[ChunkKind, int]:
        """{kind: first chunk of this kind}."""
        found: dict[ChunkKind, int] = {}
        for c, kind in enumerate(self._kinds):
            found.setdefault(kind, c)
        return found

    @cached_property
    def classes(self) -> Counter[ChunkKind]:
        """{kind: number of its chunks}."""
        all_differ = len(self.example) == len(self._kinds)  # then hashes are reused, half of the time
        return Counter(dict.fromkeys(self.example, 1) if all_differ else self._kinds)

    @cached_property
    def num_ends(self) -> int:
        """Number of origins plus destinations of chunks, with one chunk counted for each `ChunkKind`."""
        collective = self.problem.collective
        if self.problem.clauses.relays is not None or collective.derivations:
            return sum(len(data.destinations) + len(data.origins) for data, *_ in self.classes)
        sets = collective.origin_sets, collective.destination_sets
        code = np.zeros(collective.num_chunks, dtype=np.int64)
        roots = np.array([-1 if chunk.root is None else chunk.root for chunk in collective.chunks])
        first = np.zeros(1, dtype=np.int64)
        for column in (sets[0].of_chunk, sets[1].of_chunk, self.problem.costs.chunk_units, roots):
            _, number = np.unique(column.astype(np.int64), return_inverse=True)
            code = code * (number.max(initial=0) + 1) + number
            _, first, code = np.unique(code, return_index=True, return_inverse=True)
        return sum(int(each.sizes[first].sum()) for each in sets)

    @cached_property
    def _at_rank(self) -> dict[bool, list[list[ChunkKind]]]:
        """{True: kinds of chunks that each rank wants, False: kinds of chunks that start at each rank}."""
        classes: dict[bool, list[list[ChunkKind]]] = {
            ends: [[] for _ in range(self.topology.num_ranks)] for ends in (False, True)
        }
        for kind, c in self.example.items():
            for r in kind.data.destinations:
                classes[True][r].append(kind)
            for r in self.distances.origins(c):
                classes[False][r].append(kind)
        return classes

    def spreads_alike(self, *, in_network: bool) -> bool:
        """True if all chunks have one size, none is derived, and all links join one rank to one rank.

        False if switches may reduce and multicast (`in_network`). Sums may be present: their contributions
        spread as chunks do.
        """
        alike = len({kind.units for kind in self.classes}) == 1
        return alike and self.single_ended and not self.problem.collective.derivations and not in_network

    @cached_property
    def few_start(self) -> frozenset[int]:
        """Ranks that start with chunks; empty if no more ranks want chunks."""
        chunks = self.problem.collective.chunks
        starts, ends = ({r for c in chunks for r in getattr(c, side)} for side in ("origins", "destinations"))
        return frozenset(starts) if len(starts) < len(ends) else frozenset()

    def both_directions(self) -> Iterator[tuple[NeededSends, bool]]:
        """Yield (self, False), and (needed sends of the time-reversed problem, True) if these may help.

        The time-reversed problem is used only if fewer ranks start with chunks than want chunks.
        """
        yield self, False
        if self._backwards is None and self.few_start:
            reverse = time_reversed(self.problem)
            if reverse is not None:
                self._backwards = NeededSends(reverse, is_reversed=not self.is_reversed)
        if self._backwards is not None:
            self._backwards.deadline = self.deadline
            yield self._backwards, True

    @cached_property
    def costs(self) -> GateCosts:
        """Costs of sends of chunks of the smallest size."""
        return GateCosts(self.problem, min(kind.units for kind in self.classes))

    def shared_units(self, *, in_network: bool) -> int:
        """Units of the sums that have contributions of all ranks and are wanted by all.

        0 if switches add, if a link has several sources or destinations, or if chunks are derived.
        """
        if (
            in_network
            or not self.sums_for_all
            or not self.single_ended
            or self.problem.collective.derivations
        ):
            return 0
        everyone = set(range(self.topology.num_ranks))
        return sum(
            kind.units * count
            for kind, count in self.classes.items()
            if everyone == set(kind.data.origins) == set(kind.data.destinations)
        )

    def lanes(self, links: Iterable[int]) -> dict[int, Lane]:
        """{resource: its costs} of resources that cover the links; empty if none cover all of them."""
        return {resource: self.lane(mine, resource) for resource, mine in cover_of(self.held, links)}

    def lane(self, links: Sequence[int], resource: int) -> Lane:
        """Costs of a resource: the least over some links, all of which hold it."""
        costs, longest = self.problem.costs, int(self.problem.costs.chunk_units.sum())
        alphas, betas, sides = zip(*(self.held[e][resource] for e in links), strict=True)
        idle = [
            int(costs.link_alpha[e]) - alpha + min(0, (int(costs.link_beta[e]) - beta) * longest)
            for e, alpha, beta in zip(links, alphas, betas, strict=True)
        ]
        # Holds for senders and holds for receivers may follow one another without a gap: count no idle time.
        return Lane(min(alphas), min(betas), min(idle) if len({*sides}) == 1 else min(0, *idle))

    @cached_property
    def symmetries(self) -> Symmetries:
        """Symmetries of the problem; sets of ranks that they map to each other require equal sends."""
        return find_symmetries(self.problem, self.deadline)

    @cached_property
    def held(self) -> list[dict[int, tuple[int, int, bool]]]:
        """{resource: (alpha, beta, True if held at the receiving side)} for every link."""
        costs = self.problem.costs
        table: list[dict[int, tuple[int, int, bool]]] = [{} for _ in self.topology.links]
        for index, hold in enumerate(self.topology.holds):
            alpha, beta = int(costs.hold_alpha[index]), int(costs.hold_beta[index])
            table[hold.link][hold.resource] = (alpha, beta, hold.side == "receive")
        return table

    @cached_property
    def families(self) -> list[tuple[str, list[frozenset[int]]]]:
        """Families of disjoint sets of ranks: single ranks, and nodes."""
        ranks = [frozenset((r,)) for r in range(self.topology.num_ranks)]
        nodes = [frozenset(each) for each in self.topology.ranks_of_node]
        return [("rank", ranks)] + ([("node", nodes)] if len(nodes) > 1 else [])

    def different(self, sets: list[frozenset[int]]) -> list[frozenset[int]]:
        """One of the given sets of ranks for each orbit under the problem's symmetries."""
        return [sets[i] for i in sorted(set(self.symmetries.sets(sets).tolist()))]

    def carried(self, c: int) -> int:
        """Index of the set of links that may carry a chunk, as a copy or (for sums) in a reduction."""
        return self.distances.carried(c, reducing=None if self.sums_for_all else False)

    def outside(self, ranks: frozenset[int]) -> dict[ChunkKind, set[int]]:
        """{kind: other ranks that hold its chunks or contribute to its sums}, if `ranks` lack these."""
        found = {kind: set(kind.data.origins) - ranks for kind in self.classes}
        return {
            kind: others
            for kind, others in found.items()
            if others and (self.sums_for_all or ranks.isdisjoint(kind.data.origins))
        }

    def first_uses(
        self, starts: Mapping[ChunkKind, Collection[int]], *, divisible: bool = False
    ) -> NDArray[np.int64]:
        """(num_links,) earliest tick at which each link can carry a chunk of least size; `FOREVER` if never.

        - `starts`: {kind: ranks that initially hold its chunks}.
        - `divisible`: True for data of no bytes, which no chunking precedes.
        """
        together: dict[int, set[int]] = {}
        for kind, ranks in starts.items():
            together.setdefault(self.carried(self.example[kind]), set()).update(ranks)
        src, _ = link_ends(self.topology)
        units = 0 if divisible else min(kind.units for kind in self.classes)
        release = np.full(len(src), FOREVER)
        for number, ranks in together.items():
            links = np.array(self.distances.links(number), dtype=np.int64)
            heads = self.distances.nearest(number, units, ranks)[src[links]]
            first = np.where(np.isfinite(heads), heads, FOREVER).astype(np.int64)
            release[links] = np.minimum(release[links], first)
        return release

    @cached
    def border(self, ranks: frozenset[int], *, entering: bool) -> tuple[BorderJob, ...]:
        """Sends that every schedule needs into (or out of) a set of ranks; see `BorderJob`."""
        at = frozenset(crossing_links(self.problem, (ranks,), entering=entering).tolist())
        jobs: list[BorderJob] = []
        kinds = {kind: None for r in sorted(ranks) for kind in self._at_rank[entering][r]}
        for kind in kinds:
            self.deadline.check()
            count = self.classes[kind]
            for job in self._jobs_of_chunk(self.example[kind], kind.units, ranks, at, entering):
                jobs.extend([job] * count)
        return tuple(jobs)

    def _jobs_of_chunk(
        self, c: int, units: int, ranks: frozenset[int], at: frozenset[int], entering: bool
    ) -> Iterator[BorderJob]:
        """Yield the sends of one chunk that must enter (or leave) a set of ranks over its border links.

        - `at`: Border links.

        A chunk that spreads enters a set that lacks it at least once. A sum that all ranks need carries
        outside contributions into every set, and the set's contributions out of it. If a sketch lets
        reductions cross only straight to the root's node (`direct_crossing`), contributions of each other
        node enter the root's node separately. Their targets are all destinations outside that other node.
        """
        data = self.problem.collective.chunks[c]
        starts, ends = set(self.distances.origins(c)), set(data.destinations)
        sources, targets = (starts - ranks, ends & ranks) if entering else (starts & ranks, ends - ranks)
        if not sources or not targets or not (self.sums_for_all or sources == starts):
            return
        every, node, links = self.carried(c), self.topology.node_of_rank, self.topology.links
        parts = [(every, at, sources, targets)]
        direct = self.sums_for_all and self.problem.clauses.direct_crossing and self.single_ended
        if direct and entering and len(ranks) > 1 and data.root in ranks:
            parts = []
            reducing = self.distances.carried(c, reducing=True)
            for other in sorted({node[r] for r in sources}):
                theirs, others = (
                    {r for r in sources if node[r] == other},
                    {r for r in ends if node[r] != other},
                )
                border = frozenset(e for e in at if any(node[r] == other for r in links[e].srcs))
                parts.append((reducing, border, theirs, others))
        for over, border, some, wanted in parts:
            crossing = self._crossing(over, every, border, units) if wanted else None
            if crossing is None:
                continue
            # Only one send is certain, as other sends, or the same one, may serve the other targets.
            # The certain send serves the farthest target, from a sum's farthest contribution or nearest copy.
            reached = crossing.to_border[sorted(some)]
            tail = int(crossing.from_border[sorted(wanted)].max())
            onward = self.onward(every, units, crossing.enters) if tail else frozenset[tuple[int, int]]()
            release = int(reached.max() if self.sums_for_all else reached.min())
            yield BorderJob(crossing.links, units, release, tail, onward)

    @cached
    def _crossing(self, over: int, links: int, at: frozenset[int], units: int) -> _Crossing | None:
        """Border links that may carry a chunk, and times to and from them; None if no link may.

        - `over`: Index of the set of links by which the chunk may cross the border.
        - `links`: Index of the set of links that the chunk may use before and after it crosses.
        - `at`: Border links.
        """
        crossing = sorted(at & self.distances.link_set(over))
        if not crossing:
            return None
        times = self.distances.times(links, units)
        ends = [self.topology.links[e] for e in crossing]
        # A link of several sources counts as waiting for its first source, which is a valid lower bound.
        before = times[:, sorted({r for e in ends for r in e.srcs})].T  # (source, rank)
        after = times[sorted({r for e in ends for r in e.dsts})]
        return _Crossing(
            frozenset(crossing),
            np.where(np.isfinite(before.max(axis=0)), before.min(axis=0), 0),
            np.where(np.isfinite(after.max(axis=0)), after.min(axis=0), 0),
            frozenset(r for e in ends for r in e.dsts),
        )

    @cached
    def onward(self, links: int, units: int, ranks: frozenset[int]) -> frozenset[tuple[int, int]]:
        """Holds, as (resource, ticks), that a chunk cannot avoid when it leaves one of the ranks.

        If the chunk may be merged with others, only the ticks for its bytes (beta) count.
        """
        clauses, some = self.problem.clauses, self.distances.link_set(links)
        out = [e for r in sorted(ranks) for e in self.topology.links_from[r] if e in some]
        common: set[int] | None = None
        for e in out:
            # A hold at the receiving end may begin late, so it does not limit when a chunk leaves.
            leaving = {r for r, (_, _, receives) in self.held[e].items() if not receives}
            common = leaving if common is None else common & leaving
            if not common:
                break
        merges = {e for e in out if clauses.max_merge > 1 and e in clauses.merging}

        def ticks(e: int, resource: int) -> int:
            alpha, beta, _ = self.held[e][resource]
            return (0 if e in merges else alpha) + units * beta

        return frozenset((r, min(ticks(e, r) for e in out)) for r in common or ())
