"""Schedules from the steps of a baseline: broadcast trees, and reductions as time-reversed broadcasts.

A baseline lists the chunks that each rank sends to each other rank in every step. A step becomes transfers
over the direct link, or over a shortest path of relays. No transfer goes to a rank that holds the chunk
already, so that each chunk takes a tree. None goes to a rank that neither needs the chunk nor forwards it.
A broadcast tree over reversed links, reversed in time, reduces a chunk to its root
(`taccl.schedule.combine`), so a baseline lists its broadcast half only. Chunks are cut smaller for as long
as that pays.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from taccl.baselines.routes import ShortestRoutes
from taccl.caching import cached
from taccl.errors import CollectiveError
from taccl.schedule.combine import concatenate, reduction_half, reverse, spreading_half
from taccl.schedule.timing import exact_times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from taccl.problem import Problem
    from taccl.schedule.schedule import Schedule

#: A baseline of more transfers than this is refused, and one that names what it adds up of more than half as
#: many: every one is a Python object, and takes its time.
_MOST_TRANSFERS = 2_000_000
#: Up to so many it is seen as they are made whether there are too many.
_FEW_TRANSFERS = 10_000

#: Finer chunks must finish in this share of the time, or they are not worth their messages.
_PAYS = Fraction(97, 100)
#: Schedules of more transfers are cut no further, and none of more than the latter is made by cutting.
MANY_CUT, _MOST_CUT = 20_000, 100_000

#: Chunks that go over a link together where it merges, and whose contributions are in the sum of each.
Send = tuple["Sequence[int]", int, "Sequence[tuple[int, ...]]"]


class Steps:
    """The sends of a problem, in the order in which they take their resources; none goes to a rank twice.

    `CollectiveError` says that there would be too many transfers, as soon as that is known.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem, self.routes = problem, ShortestRoutes.of(problem)
        check_number(problem, self._least_transfers())
        self._sends: list[Send] = []
        self._num_transfers = 0
        #: What each rank has: chunks as they started, or sums of what some ranks contribute.
        self._there: dict[tuple[int, tuple[int, ...]], set[int]] = defaultdict(set)
        for c, chunk in enumerate(() if problem.collective.combining else problem.collective.chunks):
            for rank in chunk.origins:
                self._there[rank, ()].add(c)

    def step(
        self,
        moves: Iterable[tuple[Sequence[int], int, int]],
        summed: Callable[[int, int], tuple[int, ...]] | None = None,
    ) -> None:
        """Pass chunks on: every move is (chunks, src, dst), and moves go hop by hop side by side.

        - `summed`: Of sums, the ranks whose contributions are in what a rank sends of a chunk, rising.
        """
        routed = [
            (
                {c: () if summed is None else summed(src, c) for c in chunks},
                self.routes.route(src, dst),
            )
            for chunks, src, dst in moves
        ]
        check_number(self.problem, self._num_transfers)
        for hop in range(max((len(route) for _, route in routed), default=0)):
            for chunks, route in routed:
                if hop < len(route):
                    self._send(chunks, route[hop])

    def send(self, chunks: Sequence[int], link: int) -> None:
        """Pass chunks that are not summed over one link."""
        self._send(dict.fromkeys(chunks, ()), link)
        check_number(self.problem, self._num_transfers)

    def _send(self, chunks: dict[int, tuple[int, ...]], link: int) -> None:
        ends = self.problem.topology.links[link]
        new = {c: ranks for c, ranks in chunks.items() if c not in self._there[ends.dst, ranks]}
        for c, ranks in new.items():
            assert ranks or c in self._there[ends.src, ranks], f"chunk {c} is not at {ends.src}"
            self._there[ends.dst, ranks].add(c)
        self._sends.append((list(new), link, list(new.values())))
        self._num_transfers += len(new)

    def schedule(self, *, producer: str) -> Schedule:
        """The schedule of all steps; of chunks that are not summed, without what no destination needs."""
        check_number(self.problem, self._num_transfers)
        sends = self._sends if self.problem.collective.combining else self._needed()
        return scheduled(self.problem, sends, producer=producer)

    def _needed(self) -> list[Send]:
        """Sends that lead to a destination, in order; from the last, each needs the one that fed it."""
        wanted = [set(chunk.destinations) for chunk in self.problem.collective.chunks]
        needed: list[Send] = []
        for chunks, link, ranks in reversed(self._sends):
            ends = self.problem.topology.links[link]
            some = [c for c in chunks if ends.dst in wanted[c]]
            for c in some:
                wanted[c].add(ends.src)
            needed.append((some, link, ranks[: len(some)]))
        return needed[::-1]

    def _least_transfers(self) -> int:
        """No fewer transfers than this: every rank that lacks a chunk gets it, and a lone one from afar.

        Small problems are not looked at closely.
        """
        chunks = self.problem.collective.chunks
        arrivals = sum(len(set(chunk.destinations) - set(chunk.origins)) for chunk in chunks)
        lone = [chunk for chunk in chunks if len(chunk.origins) == len(chunk.destinations) == 1]
        if arrivals < _FEW_TRANSFERS or not lone:
            return arrivals
        from scipy.sparse.csgraph import dijkstra

        src, dst = np.array([(chunk.origins[0], chunk.destinations[0]) for chunk in lone]).T
        starts, row = np.unique(src, return_inverse=True)
        hops = dijkstra(self.routes.graph, indices=starts, unweighted=True)[row, dst]
        beyond = np.where(np.isfinite(hops), hops, 1) - 1  # what has no route at all is refused later
        return arrivals + int(np.maximum(beyond, 0).sum())


def scheduled(problem: Problem, sends: Sequence[Send], *, producer: str) -> Schedule:
    """The schedule of sends in order; the chunks of one travel together where the link merges."""
    clauses = problem.clauses
    chunk, link, group = [], [], []
    carried: list[tuple[int, ...]] = []
    num_groups = 0
    for chunks, over, ranks in sends:
        most = clauses.max_merge if over in clauses.merging else 1
        for i, c in enumerate(chunks):
            num_groups += i % most == 0
            chunk.append(c)
            link.append(over)
            group.append(num_groups)
        carried += ranks
    return exact_times(
        problem, chunk=chunk, link=link, sequence=group, group=group,
        contributions=carried if problem.collective.combining else None, producer=producer,
    )  # fmt: skip


def check_number(problem: Problem, num_transfers: int) -> None:
    """Raise `CollectiveError` if a baseline has too many transfers."""
    most = _MOST_TRANSFERS // (2 if problem.collective.combining else 1)
    if num_transfers > most:
        raise CollectiveError(
            f"{problem.title} takes {num_transfers} transfers or more; expected at most {most}: take fewer "
            "ranks, a baseline of fewer (ring), or synthesize it, which lists transfers in less memory",
            where="baseline",
        )


def after_exchange(summed: Sequence[Sequence[int]], turns: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Whose contributions each rank has added up once it has those of another rank in every turn; rising."""
    return [
        tuple(sorted((*ranks, *(more for turn in turns for more in summed[turn[rank]]))))
        for rank, ranks in enumerate(summed)
    ]


def run(
    problem: Problem,
    spread: Callable[[Problem], Schedule],
    *,
    backwards: Callable[[Problem], Schedule] | None = None,
    roots: Sequence[int] | None = None,
) -> Schedule:
    """The schedule of any problem by an algorithm that spreads chunks.

    - `spread`: From a problem that does not combine to its schedule.
    - `backwards`: The same for what is then turned round in time; `spread` unless given.
    - `roots`: Ranks at which each chunk's sum is gathered, instead of the collective's own.
    """
    if not problem.collective.combining:
        return spread(problem)
    rooted = problem
    if roots is not None:
        pairs = zip(problem.collective.chunks, roots, strict=True)
        chunks = tuple(replace(chunk, root=root) for chunk, root in pairs)
        rooted = replace(problem, collective=replace(problem.collective, chunks=chunks))
    reduced = reverse((backwards or spread)(reduction_half(rooted)), problem)
    if rooted.collective.stays_at_roots:
        return reduced
    spread_out = spread(spreading_half(rooted))
    return concatenate([reduced, spread_out], problem, producer=spread_out.producer)


def fastest(schedules: Iterable[Schedule]) -> Schedule:
    """The schedule that finishes first; of equals, the first."""
    return min(schedules, key=lambda schedule: schedule.finish_ticks)


def cut_while_it_pays(
    problem: Problem,
    make: Callable[[Problem], Schedule],
    *,
    name: str,
    cut: bool,
    parts: int = 2,
    pays: Fraction = _PAYS,
) -> Schedule:
    """The schedule of a problem without its sketch, whose chunks are cut for as long as that pays.

    - `make`: From a problem to its schedule.
    - `name`: Name of what `make` makes; the schedule of whole chunks is made once for a problem.
    - `cut`: Whether chunks may be cut; else they are those of the problem.
    - `parts`: Into how many each is cut first; then into twice as many, and so on.
    - `pays`: Finer chunks must finish in this share of the time.
    """
    made = _whole(problem)
    if name not in made:
        made[name] = make(without_sketch(problem))
    best, problem = made[name], without_sketch(problem)
    if not best.num_transfers:
        return best
    most = min(_MOST_CUT // best.num_transfers, *problem.chunk_bytes)
    parts = min(parts, most)
    while cut and 1 < parts <= most:
        try:
            found = make(cut_chunks(problem, parts))
        except CollectiveError:  # finer than can be done
            break
        if found.finish > pays * best.finish:
            break
        best, parts = found, 2 * parts
        if 2 * found.num_transfers > MANY_CUT:
            break
    return best


@cached
def _whole(problem: Problem) -> dict[str, Schedule]:
    """Schedules of the problem's own chunks, by the name of their algorithm."""
    return {}


def cut_chunks(problem: Problem, parts: int) -> Problem:
    """The problem with every chunk cut into equal parts, which follow one another in buffers.

    As with sizes that do not divide into chunks, parts are rounded up to whole bytes, and a note says so.
    """
    padded = ", rounded up to whole bytes" * any(size % parts for size in problem.chunk_bytes)
    return replace(
        problem,
        collective=problem.collective.split(parts),
        chunk_bytes=tuple(-(-size // parts) for size in problem.chunk_bytes for _ in range(parts)),
        notes=(*problem.notes, f"each chunk is cut into {parts}{padded}"),
    )


def without_sketch(problem: Problem) -> Problem:
    """The problem with nothing left of its sketch but which links merge, and how much."""
    return replace(problem, clauses=problem.clauses.only("merge"))


def chunks_of_starts(problem: Problem) -> list[list[int]]:
    """The chunks that start at every rank; of several origins the first counts."""
    chunks: list[list[int]] = [[] for _ in range(problem.topology.num_ranks)]
    for c, chunk in enumerate(problem.collective.chunks):
        chunks[chunk.origins[0]].append(c)
    return chunks


def require_no_derivations(problem: Problem, *, baseline: str) -> None:
    """Raise `CollectiveError` for a collective whose chunks derive from one another."""
    if problem.collective.derivations:
        raise CollectiveError(
            f"{baseline} cannot do {problem.collective.name}, whose chunks derive from one another; "
            "synthesize it",
            where="baseline",
        )


def require_everywhere(problem: Problem, *, baseline: str) -> None:
    """Raise `CollectiveError` unless every chunk involves every rank, as its source or its destination."""
    require_no_derivations(problem, baseline=baseline)
    num_ranks = problem.topology.num_ranks
    for chunk in problem.collective.chunks:
        contributors = chunk.origins if problem.collective.combining else chunk.destinations
        if len({*contributors, *chunk.origins}) < num_ranks:
            raise CollectiveError(
                f"{baseline} cannot do {problem.collective.name}, whose chunks do not concern every rank; "
                "use pairwise, recursive or hierarchical",
                where="baseline",
            )


def soonest_cut_us(schedule: Schedule) -> float:
    """Estimated finish of a schedule in finer chunks.

    These cross the same links and keep them busy as long. The rest, in which whole chunks fill a pipeline, is
    divided by the number of parts at most.
    """
    busy_us, parts = _busy_us(schedule), max(2.0, MANY_CUT / schedule.num_transfers)
    return busy_us + (schedule.finish_us - busy_us) / parts


def _busy_us(schedule: Schedule) -> float:
    """Time for which the bytes of a schedule keep its busiest resource busy."""
    topology, sizes = schedule.problem.topology, np.array(schedule.problem.chunk_bytes)
    mb = np.bincount(schedule.link, sizes[schedule.chunk], minlength=len(topology.links)) / 1e6
    busy = np.zeros(len(topology.resources))
    for hold in topology.holds:
        busy[hold.resource] += mb[hold.link] * float(hold.beta_us_per_mb)
    return float(busy.max(initial=0))
