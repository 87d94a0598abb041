"""Check that every chunk can reach its destinations, before any solver runs.

Chunks that the clauses treat alike share one search: an alltoall of 1,024 chunks on 32 ranks in two nodes
takes 64 searches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Set
from dataclasses import dataclass, replace

import numpy as np

from taccl._internal.arrays import Flags, Ints, distinct, lexsort, numbered
from taccl._internal.caching import cached
from taccl._internal.graph_algorithms import strong_components
from taccl.errors import InputError, SketchError, TopologyError
from taccl.problem.chunks import RankSets
from taccl.problem.costs import link_ends, wide_links
from taccl.problem.problem import Clauses, Problem
from taccl.topology.topology import Topology

#: Max hops of the search from rank 0 to every rank; after these, strongly connected components are computed.
_FEW_HOPS = 32


@dataclass(frozen=True, slots=True)
class Need:
    """Required delivery of a chunk from any of `starts` to all of `ends`.

    It stands for all chunks with the same ranks that the clauses treat alike.

    If `reducing`, contributions must get from each of `ends` to the root, which is the only entry of
    `starts`.
    """

    chunk: int
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    reducing: bool = False


@cached
def check_reachable(problem: Problem) -> None:
    """Raise an error if a chunk has no path to a destination over links that may carry it.

    Every contribution to a sum needs a path to the chunk's root, and the sum needs a path from the root to
    every destination. A `SketchError` names the clause that forbids the path; a `TopologyError` says that
    there is no path even without the sketch.
    """
    for demand in () if _joins_everything(problem) else unmet(problem):
        raise _explained(problem, demand)


def check_possible(problem: Problem) -> None:
    """Raise the error of `check_reachable` if no schedule solves the problem, whichever rank forms a sum.

    Sums may be formed at any rank; contributions need not reach the root unless it is a destination.
    """
    try:
        check_reachable(problem)
    except (SketchError, TopologyError):
        if not is_possible(problem):
            raise


def is_possible(problem: Problem) -> bool:
    """True if every chunk without a path to or from its root is a sum that other ranks can form."""
    return problem.collective.sums_up and all(_may_be_summed(problem, each.chunk) for each in unmet(problem))


def _may_be_summed(problem: Problem, chunk: int) -> bool:
    """True if each destination can receive the sum from a rank that can receive all contributions.

    A link of several sources carries the contributions of any of them. A sum whose only destination is its
    root is reduced along the whole path.
    """
    data = problem.collective.chunks[chunk]
    if len(data.origins) == 1 or problem.collective.updates:
        return False  # the data exist only at the one origin, or at the root that updates the sum

    def origins_of(rank: int, *, reducing: bool) -> Iterable[int]:
        return hops_from(
            problem.topology,
            (rank,),
            problem.open_links(chunk, reducing=reducing),
            reducing=True,
            limit=problem.clauses.path_limit,
        ).keys()

    sums = {
        rank
        for rank in range(problem.topology.num_ranks)
        if set(data.origins).issubset(origins_of(rank, reducing=True))
    }
    if data.destinations == (data.root,):
        return data.root in sums
    return all(not sums.isdisjoint(origins_of(rank, reducing=False)) for rank in data.destinations)


def with_moved_roots(problem: Problem) -> Problem | None:
    """Problem with each sum rooted at a rank that all contributions reach and that reaches all destinations.

    Roots that already satisfy this are kept. None if some chunk has no such rank. Links with limits on roots
    (`Clauses.carries_to`) still carry no contributions to the original roots that they exclude, if possible.
    """
    collective, ranks = problem.collective, range(problem.topology.num_ranks)
    groups = zip(collective.process_groups, collective.chunks_of_group, strict=True)
    members = {c: group.ranks for group, chunks in groups for c in chunks} if collective.groups else {}
    serving: dict[int, list[int]] = defaultdict(list)
    for rank in ranks:
        chunks = tuple(
            replace(data, root=rank) if rank in members.get(c, ranks) else data
            for c, data in enumerate(collective.chunks)
        )
        trial = replace(problem, collective=replace(collective, chunks=chunks))
        failed = {_demand_key(trial, demand.chunk) for demand in unmet(trial)}
        for c, data in enumerate(chunks):
            if data.root == rank and _demand_key(trial, c) not in failed:
                serving[c].append(rank)
    roots = []
    for c, data in enumerate(collective.chunks):
        if not serving[c]:
            return None
        wanting = [rank for rank in serving[c] if rank in data.destinations] or serving[c]
        roots.append(data.root if data.root in serving[c] else wanting[c % len(wanting)])
    rooted = tuple(replace(c, root=root) for c, root in zip(collective.chunks, roots, strict=True))
    return _with_kept_limits(problem, replace(problem, collective=replace(collective, chunks=rooted)))


def _with_kept_limits(problem: Problem, rooted: Problem) -> Problem:
    """The problem with other roots, whose links carry no contributions to original roots that they exclude.

    A link then excludes a root if any of the root's chunks had an excluded root before. If some delivery is
    impossible without these links, `rooted` is returned as it is.
    """
    pairs = zip(problem.collective.chunks, rooted.collective.chunks, strict=True)
    roots = [(old.root, new.root) for old, new in pairs if new.root is not None]
    limits = {
        link: frozenset(new for _, new in roots) - {new for old, new in roots if old not in allowed}
        for link, allowed in problem.clauses.carries_to.items()
    }
    limited = rooted.with_clauses(carries_to=limits) if limits else rooted
    return rooted if any(unmet(limited)) else limited


def _demand_key(problem: Problem, chunk: int) -> Hashable:
    """Key shared by chunks with the same demands."""
    return problem.collective.chunks[chunk], problem.holders(chunk)


def unmet(problem: Problem) -> Iterator[Need]:
    """Yield required deliveries that are impossible, each with only the ends that cannot be reached."""
    if not _all_arrive(problem):
        yield from _unmet_demands(problem)


def _unmet_demands(problem: Problem) -> Iterator[Need]:
    """Required deliveries as in `unmet`, by a search for each of `demands`."""
    known: dict[Hashable, Set[int]] = {}
    for demand in demands(problem):
        kind = demand.starts, demand.reducing, id(problem.open_links(demand.chunk, reducing=demand.reducing))
        if kind not in known:
            known[kind] = reached(problem, demand).keys()
        ends = tuple(rank for rank in demand.ends if rank not in known[kind])
        if ends:
            yield replace(demand, ends=ends)


def demands(problem: Problem) -> Iterator[Need]:
    """Yield required deliveries; each stands for all chunks that the clauses treat alike."""
    collective = problem.collective
    seen = set()
    for c, data in enumerate(collective.chunks):
        starts, ends = collective.starts[c], collective.ends[c]
        kind = data, starts, ends[len(data.destinations) :], problem.holders(c)
        is_met = collective.sums_up and data.is_met(is_sum=True, updates=collective.updates)
        if kind in seen or is_met:
            continue
        seen.add(kind)
        if collective.combining and data.root is not None:
            starts = (data.root,)
            contributors = tuple(rank for rank in data.origins if rank != data.root)
            if contributors:
                yield Need(c, starts, contributors, reducing=True)
        ends = tuple(r for r in ends if r not in starts)
        if ends:
            yield Need(c, starts, ends)


def kind_of(problem: Problem, demand: Need) -> Hashable:
    """Key of a demand; demands with equal keys may use the same links (`Problem.may_carry`)."""
    data, node = problem.collective.chunks[demand.chunk], problem.topology.node_of_rank
    crossing = problem.clauses.direct_crossing
    nodes = [frozenset(node[r] for r in ranks) for ranks in (data.origins, data.destinations) if crossing]
    origins = data.origins if data.root is None else None
    return demand.reducing, demand.starts, origins, *nodes, problem.holders(demand.chunk)


def reached(problem: Problem, demand: Need) -> dict[int, int]:
    """{rank that a demand's chunk can reach under the clauses: minimum number of links}."""
    return hops_from(
        problem.topology,
        demand.starts,
        problem.open_links(demand.chunk, reducing=demand.reducing),
        reducing=demand.reducing,
        limit=problem.clauses.path_limit,
    )


def _joins_everything(problem: Problem) -> bool:
    """True if in each process group every rank reaches every other by links with one source, for every chunk.

    Links with several sources, which need a search, join no fewer ranks. False also if only they join some.
    """
    topology, collective = problem.topology, problem.collective
    joining = [e for e in wide_links(topology) if len(topology.links[e].srcs) > 1]
    if problem.clauses.said("chunk", "path"):
        return False
    parts: dict[int, Ints] = {}
    for group, chunks in zip(collective.process_groups, collective.chunks_of_group, strict=True):
        if not chunks:
            continue
        is_open = problem.open_links(chunks[0])
        if id(is_open) not in parts:
            single = is_open.copy()
            single[joining] = False
            if _joins_all_ranks(topology, single):
                parts[id(is_open)] = np.zeros(topology.num_ranks, dtype=np.int64)
            else:
                parts[id(is_open)] = _parts_joined(topology, np.flatnonzero(single))
        if len(distinct(parts[id(is_open)][list(group.ranks)])) > 1:
            return False
    return True


def _all_arrive(problem: Problem) -> bool:
    """True if all required deliveries are possible, by a search for each set of starts and open links.

    False also for chunks derived from others, sums without a root, and links of several sources or
    destinations.
    """
    topology, collective = problem.topology, problem.collective
    if collective.derivations or wide_links(topology):
        return False
    if not collective.combining:
        return _are_reached(problem, collective.start_sets, collective.destination_sets)
    if any(chunk.root is None for chunk in collective.chunks):
        return False
    roots = RankSets.of([(chunk.root,) for chunk in collective.chunks if chunk.root is not None])
    return _are_reached(problem, roots, collective.destination_sets) and _are_reached(
        problem, roots, collective.origin_sets, reducing=True
    )


def _are_reached(problem: Problem, starts: RankSets, ends: RankSets, *, reducing: bool = False) -> bool:
    """True if every chunk gets from its starts to its ends, or, if `reducing`, from these to its starts."""
    topology, limit = problem.topology, problem.clauses.path_limit
    (number, masks), columns = problem.open_link_sets(reducing=reducing), link_ends(topology)
    src, dst = columns[::-1] if reducing else columns
    kind = numbered(number * len(starts.sets) + starts.of_chunk)[2]
    by_kind, num_alike = lexsort((kind,)), np.bincount(kind)
    for alike in np.split(by_kind, np.cumsum(num_alike)[:-1]) if len(kind) else ():
        chunk = alike[0]
        wanted = [rank for each in distinct(ends.of_chunk[alike]).tolist() for rank in ends.sets[each]]
        ahead, behind = (each[masks[number[chunk]]] for each in (src, dst))
        found = np.zeros(topology.num_ranks, bool)
        found[list(starts.sets[starts.of_chunk[chunk]])] = True
        num_found, num_hops = 0, 0
        while not found[wanted].all():
            if np.count_nonzero(found) == num_found or num_hops == limit:
                return False
            num_found, num_hops = int(np.count_nonzero(found)), num_hops + 1
            found[behind[found[ahead]]] = True
    return True


def _joins_all_ranks(topology: Topology, is_open: Flags) -> bool:
    """True if a few hops lead from rank 0 to every rank and back: a check that does not load SciPy."""
    return all(
        len(hops_from(topology, (0,), is_open, reducing=back, limit=_FEW_HOPS)) == topology.num_ranks
        for back in (False, True)
    )


def _parts_joined(topology: Topology, links: Ints) -> Ints:
    """Strongly connected component of every rank, over links with one source."""
    src, dst = (each[links] for each in link_ends(topology))
    further = np.intersect1d(links, wide_links(topology)).astype(int).tolist()
    more = [(topology.links[e].src, rank) for e in further for rank in topology.links[e].dsts[1:]]
    rows, columns = np.concatenate((np.stack((src, dst)), np.array(more, dtype=np.int64).reshape(-1, 2).T), 1)
    return strong_components(topology.num_ranks, rows, columns)


def hops_from(
    topology: Topology,
    starts: Iterable[int],
    is_open: Flags | Callable[[int], bool],
    *,
    reducing: bool = False,
    limit: int | None = None,
) -> dict[int, int]:
    """{rank: minimum number of links} of the ranks that a chunk can reach over open links, at most `limit`.

    A copy crosses a link once all the link's sources have it. With `reducing`, the ranks are those whose
    contributions can reach `starts`; a link that adds up its sources carries the contribution of any of them.

    - `is_open`: (num_links,) bool, or a predicate on link indices.
    """
    if not isinstance(is_open, np.ndarray):
        is_open = np.fromiter(map(is_open, range(len(topology.links))), bool, len(topology.links))
    wide = [topology.links[e] for e in wide_links(topology) if is_open[e]]
    single = is_open.copy()
    single[list(wide_links(topology))] = False
    ahead, behind = (each[single] for each in link_ends(topology)[:: -1 if reducing else 1])
    hops = np.full(topology.num_ranks, -1)
    hops[list(starts)] = 0
    for passed in range(topology.num_ranks if limit is None else limit):
        found = hops >= 0
        fresh = found.copy()
        fresh[behind[found[ahead]]] = True
        for link in wide:  # to copy a chunk, all sources must have it
            if found[list(link.dsts)].any() if reducing else found[list(link.srcs)].all():
                fresh[list(link.srcs if reducing else link.dsts)] = True
        if (fresh == found).all():
            break
        hops[fresh & ~found] = passed + 1
    return {rank: int(hops[rank]) for rank in np.flatnonzero(hops >= 0).tolist()}


def _explained(problem: Problem, demand: Need) -> InputError:
    """Make the error for a demand that cannot be met; its message names the clause that forbids it."""
    name, index, end = problem.collective.name, demand.chunk, demand.ends[0]
    src, dst = (end, demand.starts[0]) if demand.reducing else (demand.starts[0], end)
    what = f"{'contribution of rank ' + str(src) + ' to ' if demand.reducing else ''}chunk {index} of {name}"
    path = f"{what} cannot get from rank {src} to rank {dst}"

    def open_without(clauses: Clauses) -> bool:
        return end in reached(replace(problem, clauses=clauses), demand)

    if not open_without(Clauses()):
        free = replace(problem, clauses=Clauses())
        leads_back = end in reached(free, replace(demand, reducing=not demand.reducing))
        remedy = "make its links bidirectional" if leads_back else "add links"
        said = f"{path}: {problem.topology.name} has no path for it; {remedy}, or leave the rank out"
        return TopologyError(said, where="topology")
    loosened, sketch = dict(_loosened(problem)), problem.clauses.name or "sketch"
    guilty = [field for field, clauses in loosened.items() if open_without(clauses)]
    if not guilty:
        return SketchError(
            f"{path}: {' and '.join(loosened)} together leave no path for it; loosen one of them",
            where=problem.clauses.where.get(next(iter(loosened)), sketch),
        )
    where = problem.clauses.where.get(guilty[0], f"{sketch}: {guilty[0]}")
    others = f" (or {' or '.join(guilty[1:])})" if guilty[1:] else ""
    return SketchError(f"{path}: {guilty[0]} leaves no path for it; loosen it{others}", where=where)


def _loosened(problem: Problem) -> Iterator[tuple[str, Clauses]]:
    """(field of the sketch, clauses without it) for every clause that forbids links."""
    clauses, topology = problem.clauses, problem.topology
    said: dict[str, list[str]] = defaultdict(list)
    for clause in clauses.said("chunk", "group", "path"):
        said[clause.said[0]].append(clause.field)
    for field, together in said.items():
        yield field, clauses.without(*together)
    if clauses.links_allowed is not None:
        across = set(topology.internode_links)
        inside = set(range(len(topology.links))) - across
        for field, links in (("internode.connections", across), ("intranode.links", inside)):
            if not links <= clauses.links_allowed:
                yield field, replace(clauses, links_allowed=clauses.links_allowed | links)
