"""Lower bounds on the finish of any schedule of a problem, each with a witness and one sentence.

`lower_bound` is the best of: latency (the longest shortest way), cut counting (whole chunks that a rank or a
node must pass, over the rate of the resources they can pass), nested cuts (what must enter a node, and then a
rank of it, or leave them), delayed sources (ranks that can only send once something has reached them), spread
tails (what enters a node last must still spread inside), the single-machine relaxation (a resource's batches,
from the releases of its chunks to the tail behind the last one), throughput (the best prices of resources and
sets of ranks) and multicommodity flow (the best prices of resources and ways).
All hold for the declared problem: its topology, collective and sketch.
"""

from __future__ import annotations

import contextlib
import heapq
import math
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl.analysis.certificates.certificate import Border, Certificate, Path, SingleMachine
from taccl.analysis.certificates.cuts import throughput
from taccl.analysis.certificates.delayed_source import delayed_source_bounds
from taccl.analysis.certificates.flows import multicommodity
from taccl.analysis.certificates.needed_sends import Job, NeededSends, as_spreading
from taccl.analysis.certificates.nested_cuts import nested_cut_bounds
from taccl.analysis.certificates.single_machine import machine_ticks
from taccl.analysis.certificates.spread_tail import spread_tail_bounds
from taccl.analysis.certificates.symmetries import find_symmetries
from taccl.analysis.certificates.volume import Volume, crossing_links
from taccl.arguments import checked
from taccl.deadline import NEVER, Deadline, OutOfTime
from taccl.sketch.reachability import check_reachable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from taccl.analysis.certificates.certificate import Witness
    from taccl.arguments import Duration
    from taccl.problem import Problem

__all__ = ["lower_bound"]

#: Beyond so many pairs of a chunk and a rank that needs it, borders are only counted, not timed.
_MAX_TIMED = 60_000
#: Up to so many that differ all claims but those of linear programs take a moment, and are never left out.
_MAX_BRIEF = 3_000
#: Beyond so many ranks only some chunks' shortest ways are found.
_MOST_RANKS_TIMED = 2_048
_FEW_CHUNKS = 16
#: Seconds for finding sets of ranks that are crossed too little, by default.
_CUTS_S = 20.0
#: Seconds that linear programs get in any case once they are begun.
_LEAST_S = 1.0


@dataclass(frozen=True, slots=True)
class _Claim:
    """A bound in ticks, which may be a fraction where data is divisible."""

    ticks: int | Fraction
    limits: str
    kind: str
    witness: Witness | None


@checked
def lower_bound(
    problem: Problem,
    *,
    divisible: bool = False,
    in_network: bool | None = None,
    budget_s: Duration = _CUTS_S,
    limit_s: Duration | None = None,
    finish: Fraction | None = None,
) -> Certificate:
    """The best proven lower bound of the declared problem: topology, collective and sketch.

    Parameters
    ----------
    problem : Problem
        With its clauses, which the bound heeds.
    divisible : bool
        Bound data that may be cut as finely as one likes, rather than whole chunks.
    in_network : bool, optional
        Whether switches are granted to reduce what passes them. Default: where links of the topology do.
    budget_s : float
        When to stop looking for what limits more: the bound holds at any time. Latency is always found, and
        one claim beside it is looked for, which may take some seconds more; of small problems all that
        need no linear program are.
    limit_s : float, optional
        When to stop looking for these, too, once there is one.
    finish : Fraction, optional
        Of a schedule, in microseconds: a bound that meets it is the best, and nothing more is looked for.

    Raises
    ------
    InputError
        If a chunk cannot reach a destination: the error names the rank, the chunk and the clause.
    """
    began = time.monotonic()
    deadline, limit = began + budget_s, math.inf if limit_s is None else began + limit_s
    check_reachable(problem)
    reads = as_spreading(problem)
    demand = NeededSends(reads)
    granted = not demand.single_ended if in_network is None else in_network
    volume = Volume(reads, divisible=divisible, distances=demand.distances)
    latency = _latency(demand, divisible=divisible)
    # In the order in which claims that say the same are preferred; what is quick is looked for first.
    prices = partial(
        _throughput, volume, in_network=granted, deadline=deadline, limit=limit, known=int(latency.ticks)
    )
    finders: list[Callable[[], Iterator[_Claim]]] = [prices]
    arrivals, pairs = _arrivals(demand)
    is_small = pairs <= _MAX_BRIEF and arrivals <= _MAX_TIMED
    if not divisible and pairs <= _MAX_TIMED:
        counting = partial(_counting, demand, in_network=granted)
        finders += [counting, partial(_single_machine, demand)]
    elif not divisible:
        counting = partial(_counted, demand, volume)
        finders.insert(0, counting)
    quick: list[Callable[[], Iterator[_Claim]]] = []
    if not divisible:
        quick = [counting, partial(_nested_cuts, demand)]
        if pairs <= _MAX_TIMED:
            quick.append(partial(_delayed_sources, demand, in_network=granted))
        quick.append(partial(_spread_tails, demand, in_network=granted))
        finders += quick[1:]
    found: dict[Callable[[], Iterator[_Claim]], list[_Claim]] = {find: [] for find in finders}
    enough = None if finish is None else finish * problem.costs.ticks_per_us
    best = latency.ticks
    slow = [find for find in finders if find not in quick]
    if is_small:
        slow.sort(key=lambda find: find is prices)
    for find in [*quick, *slow]:
        brief = find is not prices and is_small
        until = limit if brief else min(deadline, limit)
        if any(found.values()) and time.monotonic() >= until:
            continue
        demand.deadline = Deadline(until) if any(found.values()) else NEVER
        with contextlib.suppress(OutOfTime):
            for claim in find() if enough is None or best < enough else ():
                found[find].append(claim)
                demand.deadline = Deadline(until)
                best = max(best, claim.ticks)
                if time.monotonic() >= until or (enough is not None and best >= enough):
                    break
    strongest = max([latency, *chain.from_iterable(found.values())], key=lambda claim: claim.ticks)
    bound = Fraction(strongest.ticks) / problem.costs.ticks_per_us
    return Certificate(
        problem, bound, strongest.kind, strongest.limits, strongest.witness, divisible, granted
    )


def _arrivals(demand: NeededSends) -> tuple[int, int]:
    """How many crossings of a chunk into, or out of, a rank there are; and how many of them differ."""
    arrivals = sum(len(data.destinations) + len(data.origins) for data, *_ in demand.classes)
    same = len(demand.symmetries.ranks) // max(1, len(set(demand.symmetries.ranks.tolist())))
    return arrivals, arrivals // same


def _throughput(
    volume: Volume, *, in_network: bool, deadline: float, limit: float, known: int
) -> Iterator[_Claim]:
    """The best prices, by linear programs; in whole ticks where chunks travel whole."""
    symmetries = find_symmetries(volume.problem)
    deadline = max(deadline, min(limit, time.monotonic() + _LEAST_S))

    def ticks(bound: Fraction) -> int | Fraction:
        return -(-bound.numerator // bound.denominator) if volume.by_chunk else bound

    left = deadline - time.monotonic()
    found = throughput(volume, symmetries, in_network=in_network, budget_s=left, known=known)
    if found is not None:
        bound, witness = found
        dearest = max(witness.charges, key=lambda each: (each.charge, len(each.parts)))
        yield _Claim(ticks(bound), _what_crosses(volume, dearest.parts), "throughput", witness)
    if volume.spreads and all(len(chunk.destinations) <= 2 for chunk in volume.collective.chunks):
        left = max(deadline - time.monotonic(), 0.0)
        flowed = multicommodity(volume, symmetries, budget_s=left, known=known)
        if flowed is not None:
            bound, paths, solved = flowed
            dear = max(range(len(paths.prices)), key=lambda r: paths.prices[r])
            count = sum(price > 0 for price in paths.prices)
            name = volume.problem.topology.resources[dear].name
            what = f"all ways together, over the rate of {name}" + (
                f" and {count - 1} resources like it" if count > 1 else ""
            )
            yield _Claim(
                ticks(bound), what if solved else f"distance times volume: {what}", "multicommodity", paths
            )


def _what_crosses(volume: Volume, parts: tuple[frozenset[int], ...]) -> str:
    """What limits, in words."""
    topology = volume.problem.topology
    if len(parts) > 1:
        return f"what {len(parts)} parts of the ranks must exchange to share each sum"
    ranks = parts[0]
    rest = set(range(topology.num_ranks)) - ranks
    for verb, some in (("enter", set(ranks)), ("leave", rest)):
        if len(some) == 1:
            return f"what must {verb} rank {min(some)}, and ranks like it"
        nodes = {topology.node_of_rank[r] for r in some}
        if len(nodes) == 1 and some == set(topology.ranks_of_node[min(nodes)]):
            return f"what must {verb} node {min(nodes)}, and nodes like it"
    shown = ", ".join(map(str, sorted(ranks)[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"what must enter ranks {shown} ({len(ranks)} of them)"


def _latency(demand: NeededSends, *, divisible: bool) -> _Claim:
    """The longest shortest way from where a chunk starts to where it must end; in alphas, if divisible."""
    best = _Claim(0, "nothing has to be sent", "none", None)
    if demand.topology.num_ranks > _MOST_RANKS_TIMED:
        return _some_latency(demand, divisible=divisible)
    # Chunks that start alike and go over the same links are everywhere at the same time.
    alike: dict[tuple[tuple[int, ...], int, int], list[float]] = {}
    for (data, whole, _, made), c in demand.example.items():
        units = 0 if divisible else whole
        links = demand.distances.carried(c, reducing=None if demand.sums_for_all else False)
        heads = alike.get((data.origins, links, units)) if made is None else None
        if heads is None:
            if demand.sums_for_all:
                arrival = demand.distances.times(links, units)[list(data.origins)].max(axis=0)
            else:
                arrival = demand.distances.heads(c, units=0 if divisible else None)
            heads = np.where(np.isfinite(arrival), arrival, 0).tolist()
            if made is None:
                alike[data.origins, links, units] = heads
        target = max(data.destinations, key=heads.__getitem__, default=None)
        if target is not None and heads[target] > best.ticks:
            what = f"the shortest way of chunk {c} to rank {target}"
            best = _Claim(int(heads[target]), what, "latency", Path(c, target))
    return best


def _some_latency(demand: NeededSends, *, divisible: bool) -> _Claim:
    """The same of a few chunks, where there are too many ranks for the times between all of them."""
    best = _Claim(0, "nothing has to be sent", "none", None)
    if not demand.single_ended or demand.sums_for_all or demand.problem.collective.derivations:
        return best
    if not demand.problem.links_allowed:
        return best
    few = list(demand.example.items())
    for (data, whole, *_), c in few[:: max(1, len(few) // _FEW_CHUNKS)]:
        heads = demand.distances.nearest(demand.distances.carried(c), 0 if divisible else whole, data.origins)
        targets = [r for r in data.destinations if np.isfinite(heads[r])]
        farthest = max(targets, key=lambda r: heads[r], default=None)
        if farthest is not None and heads[farthest] > best.ticks:
            what = f"the shortest way of chunk {c} to rank {farthest}"
            best = _Claim(int(heads[farthest]), what, "latency", Path(c, farthest))
    return best


def _counting(demand: NeededSends, *, in_network: bool) -> Iterator[_Claim]:
    """Chunks that must enter or leave a set of ranks, over the rate of all the resources they can pass."""
    if not demand.single_ended:
        return
    if demand.sums_for_all and not in_network:
        yield from _gossip(demand)
    for name, sets in reversed(demand.families):  # what enters nodes limits more often, and they are fewer
        for entering in (True, False):
            for ranks in demand.different(sets):
                border = demand.border(ranks, entering=entering)
                if border is None:
                    continue
                jobs = border.jobs
                sends = Counter(job.units for job in jobs)
                cover = _cover(demand, {e for job in jobs for e in job.links}, min(sends))
                early, late = min(job.release for job in jobs), min(job.tail for job in jobs)
                ticks = early + _window(demand, sends, cover) + late
                which = (
                    demand.topology.node_of_rank[min(border.ranks)] if name == "node" else min(border.ranks)
                )
                verb = "enter" if entering else "leave"
                chunks = f"{len(jobs)} chunks" if len(jobs) > 1 else "a chunk"
                what = f"{chunks} must {verb} {name} {which} through {_number(cover)}"
                yield _Claim(ticks, what, "cut counting", Border(border.ranks, entering))


def _nested_cuts(demand: NeededSends) -> Iterator[_Claim]:
    """Chunks that must enter a node, and then still come to a rank of it."""
    for ticks, limits, witness in nested_cut_bounds(demand):
        yield _Claim(ticks, limits, "nested cuts", witness)


def _delayed_sources(demand: NeededSends, *, in_network: bool) -> Iterator[_Claim]:
    """Chunks that only few hold at first."""
    for ticks, limits, witness in delayed_source_bounds(demand, in_network=in_network):
        yield _Claim(ticks, limits, "delayed source", witness)


def _spread_tails(demand: NeededSends, *, in_network: bool) -> Iterator[_Claim]:
    """Chunks that enter a node last, and must then still spread to its ranks."""
    for ticks, limits, witness in spread_tail_bounds(demand, in_network=in_network):
        yield _Claim(ticks, limits, "spread tail", witness)


def _counted(demand: NeededSends, volume: Volume) -> Iterator[_Claim]:
    """`_counting` without times: whole chunks that must enter each rank and node, for very many of them."""
    if not (volume.by_chunk and volume.spreads and demand.single_ended):
        return
    size = int(demand.problem.costs.chunk_units[0])
    for name, sets in demand.families:
        for ranks in demand.different(sets):
            needed = volume.needed((ranks,))
            if needed:
                cover = _cover(demand, set(crossing_links(demand.problem, (ranks,)).tolist()), size)
                number = demand.topology.node_of_rank[min(ranks)] if name == "node" else min(ranks)
                what = f"{needed} chunks must enter {name} {number} through {_number(cover)}"
                ticks = _window(demand, Counter({size: needed}), cover)
                yield _Claim(ticks, what, "cut counting", Border(ranks, True))


def _gossip(demand: NeededSends) -> Iterator[_Claim]:
    """A sum that n ranks (or nodes) share takes at least 2(n - 1) sends, whoever adds what.

    Each one's contribution must leave it and the sum must reach it: until some one holds the sum, n - 1
    sends have been made at least, and each of the n - 1 others then still needs one.
    """
    topology = demand.topology
    everyone = frozenset(range(topology.num_ranks))
    for name, part_of, links in (
        ("ranks", tuple(range(topology.num_ranks)), set(demand.problem.links_allowed)),
        ("nodes", topology.node_of_rank, set(demand.problem.links_allowed) & set(topology.internode_links)),
    ):
        sends: Counter[int] = Counter()
        for kind, count in demand.classes.items():
            parts = {part_of[r] for r in kind.data.origins} & {part_of[r] for r in kind.data.destinations}
            if len(parts) > 1:
                sends[kind.units] += 2 * (len(parts) - 1) * count
        if sends and links:
            cover = _cover(demand, links, min(sends))
            number = sends.total()
            what = f"{number} sends are needed between all {name} together, through {_number(cover)}"
            ticks = _window(demand, sends, cover)
            yield _Claim(ticks, what, "cut counting", Border(everyone, name == "ranks"))


def _number(cover: Sequence[object]) -> str:
    return f"{len(cover)} resource{'s' if len(cover) != 1 else ''}"


class _Gate(NamedTuple):
    """A resource that some links hold, at its fastest.

    Of the time from the start of the first send to the end of the last it is not held for `idle` ticks.
    """

    alpha: int
    beta: int
    merges: bool
    idle: int


def _cover(demand: NeededSends, links: set[int], size: int) -> list[_Gate]:
    """Resources that all the links hold between them, by sends of so many units at least."""
    cover, left = [], set(links)
    merging = demand.problem.clauses.merging if demand.problem.clauses.max_merge > 1 else frozenset()
    users: dict[int, list[int]] = defaultdict(list)
    for e in sorted(left):
        for resource in demand.held[e]:
            users[resource].append(e)
    queue = [(-len(mine), resource) for resource, mine in users.items()]
    heapq.heapify(queue)
    while left:  # next the resource that the most of the links left hold
        count, resource = heapq.heappop(queue)
        mine = [e for e in users[resource] if e in left]
        if len(mine) < -count:
            heapq.heappush(queue, (-len(mine), resource))
            continue
        held = [demand.held[e][resource] for e in mine]
        rests = [
            demand.problem.costs.duration(e, size) - alpha - size * beta
            for e, (alpha, beta, _) in zip(mine, held, strict=True)
        ]
        before = min(rest if late else 0 for rest, (_, _, late) in zip(rests, held, strict=True))
        after = min(0 if late else rest for rest, (_, _, late) in zip(rests, held, strict=True))
        alpha, beta = min(alpha for alpha, _, _ in held), min(beta for _, beta, _ in held)
        cover.append(_Gate(alpha, beta, any(e in merging for e in mine), before + after))
        left -= set(mine)
    return cover


def _window(demand: NeededSends, sends: Counter[int], cover: Sequence[_Gate]) -> int:
    """The shortest time in which the resources together can pass so many whole chunks of each size.

    All their bytes have to pass, and so many sends, each of the smallest chunk at least.
    """
    count, size = sends.total(), min(sends)
    total = sum(units * number for units, number in sends.items())
    max_merge = demand.problem.clauses.max_merge

    def passes(time: int) -> bool:
        done = passed = 0
        for alpha, beta, merges, idle in cover:
            if not alpha + beta:
                return True
            most = max_merge if merges else 1
            busy = max(0, time - idle)
            full, rest = divmod(busy, alpha + most * size * beta)
            done += full * most + (max(0, rest - alpha) // (size * beta) if beta else 0)
            passed += busy // beta if beta else total
        return done >= count and passed >= total

    low, high = 0, 1
    while not passes(high):
        high *= 2
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if passes(middle) else (middle + 1, high)
    return low


def _single_machine(demand: NeededSends) -> Iterator[_Claim]:
    """Jobs that must all pass one resource, from their releases to the tail behind the last batch.

    Sets of ranks are disjoint, so jobs of different sets are different sends, unless a link multicasts or
    reduces: then each set counts by itself.
    """
    links_of: dict[int, list[int]] = defaultdict(list)
    for e in demand.problem.links_allowed:
        for resource in demand.held[e]:
            links_of[resource].append(e)
    ends = demand.topology.links

    @cache
    def jobs_over(ranks: frozenset[int], entering: bool) -> dict[frozenset[int], list[Job]]:
        border = demand.border(ranks, entering=entering)
        over: dict[frozenset[int], list[Job]] = defaultdict(list)
        for job in border.jobs if border is not None else ():
            over[job.links].append(job)
        return over

    for resource in sorted(set(demand.symmetries.resources[sorted(links_of)].tolist())):
        name = demand.topology.resources[resource].name
        for family, sets in demand.families:
            set_of = {r: ranks for ranks in sets for r in ranks}
            for entering in (True, False):
                near = {
                    set_of[r]
                    for e in links_of[resource]
                    for r in (ends[e].dsts if entering else ends[e].srcs)
                }
                jobs: list[Job] = []
                for ranks in sorted(near, key=min):
                    mine = [
                        job
                        for links, some in jobs_over(ranks, entering).items()
                        if len(links) <= len(links_of[resource])
                        and all(resource in demand.held[e] for e in links)
                        for job in some
                    ]
                    jobs = [*jobs, *mine] if demand.single_ended else max(jobs, mine, key=len)
                if jobs:
                    verb = "entering" if entering else "leaving"
                    chunks = f"{len(jobs)} chunks" if len(jobs) > 1 else "a chunk"
                    limits = f"{chunks} {verb} a {family} must pass {name}"
                    witness = SingleMachine(resource, family, entering)
                    yield _Claim(machine_ticks(demand, resource, jobs), limits, "single machine", witness)
