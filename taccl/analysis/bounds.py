"""Lower bounds on the finish of any schedule of a problem, each with one sentence that says what limits.

`lower_bound` is the best of: latency (the longest shortest path), counting (whole chunks that a rank, a
node or a resource must pass, over the rate of the resources they can pass), and the one-machine bound on
merging links (a link's batches, from the releases of its chunks to the tail behind the last one). All hold
for the declared problem: its topology, collective and sketch. Source of the one-machine bound: Carlier,
"The one-machine sequencing problem", 1982, here with batches.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from taccl.analysis.distances import Distances, shortest_times
from taccl.schedule.combine import reduction_half

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from fractions import Fraction

    from taccl.collective import Chunk
    from taccl.problem import Problem

__all__ = ["Bound", "lower_bound"]


@dataclass(frozen=True, slots=True)
class Bound:
    """A proven lower bound.

    Parameters
    ----------
    bound : Fraction
        Microseconds, exact.
    limits : str
        One sentence that says what limits.
    kind : str
        ``"latency"``, ``"counting"`` or ``"one machine"``; ``"none"`` where nothing must be sent.
    """

    bound: Fraction
    limits: str
    kind: str

    @property
    def bound_us(self) -> float:
        """The bound in microseconds."""
        return float(self.bound)


@dataclass(frozen=True, slots=True)
class _Claim:
    ticks: int
    limits: str
    kind: str


def lower_bound(problem: Problem) -> Bound:
    """The best proven lower bound of the declared problem: topology, collective and sketch."""
    demands = _demands(problem)
    claims = [_Claim(0, "nothing has to be sent", "none")]
    for demand in demands:
        claims.append(_latency(demand))
        claims.extend(_counting(demand))
        claims.extend(_one_machine(demand))
    best = max(claims, key=lambda claim: claim.ticks)
    return Bound(problem.costs.us(best.ticks), best.limits, best.kind)


@dataclass(frozen=True, slots=True)
class _Job:
    """One send that every schedule has: a chunk enters or leaves a set of ranks over one of `links`.

    It starts at `release` at the earliest; after its end at least `tail` ticks are left, and where there is
    a tail the chunk then holds what all its ways out share for `onward` ticks.
    """

    links: frozenset[int]
    units: int
    release: int
    tail: int
    onward: int


class _Demand:
    """What must move, and the shortest times that it takes; ranks, links and ticks of one problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.topology = problem.topology
        self.costs = problem.costs
        self.reduces_to_all = problem.collective.combining and not problem.collective.derivations
        self._times: dict[tuple[int, int, int, bool], dict[int, int]] = {}
        self._carried: dict[tuple[object, ...], int] = {}
        self._set_number: dict[tuple[int, ...], int] = {}
        self._onward: dict[tuple[int, int, int], int] = {}
        self.link_sets: list[tuple[int, ...]] = []
        self.classes: Counter[tuple[Chunk, int]] = Counter(
            (chunk, int(units))
            for chunk, units in zip(problem.collective.chunks, self.costs.chunk_units, strict=True)
        )
        self.example = {
            (chunk, int(units)): c
            for c, (chunk, units) in enumerate(
                zip(problem.collective.chunks, self.costs.chunk_units, strict=True)
            )
        }
        self.single_ended = all(
            len(self.topology.links[e].srcs) == len(self.topology.links[e].dsts) == 1
            for e in problem.links_allowed
        )

    def carried(self, c: int, reducing: bool | None = None) -> int:
        """The number in `link_sets` of the links that may carry chunk c: spreading, reducing, or either."""
        data = self.problem.collective.chunks[c]
        node = self.topology.node_of_rank
        key = (
            data.origins,
            data.root,
            frozenset(node[r] for r in data.destinations),
            reducing,
        )
        if key not in self._carried:
            modes = (False, True) if reducing is None else (reducing,)
            links = tuple(
                e
                for e in self.problem.links_allowed
                if any(self.problem.may_carry(e, c, reducing=mode) for mode in modes)
            )
            if links not in self._set_number:
                self._set_number[links] = len(self.link_sets)
                self.link_sets.append(links)
            self._carried[key] = self._set_number[links]
        return self._carried[key]

    def times(self, links: int, units: int, rank: int, *, to: bool = False) -> dict[int, int]:
        """Shortest times from (or to) a rank over a numbered set of links."""
        key = (links, units, rank, to)
        if key not in self._times:
            over = self.link_sets[links]
            self._times[key] = shortest_times(self.problem, over, {rank: 0}, units, backward=to)
        return self._times[key]

    def onward(self, links: int, units: int, rank: int) -> int:
        """How long a chunk that leaves `rank` holds what all its ways out have in common; 0 if nothing."""
        key = (links, units, rank)
        if key not in self._onward:
            out = [e for e in self.link_sets[links] if rank in self.topology.links[e].srcs]
            common = set.intersection(*(set(self.held[e]) for e in out)) if out else set()
            lengths = [min(self.length(e, r, units) for e in out) for r in common]
            self._onward[key] = max(lengths, default=0)
        return self._onward[key]

    def length(self, link: int, resource: int, units: int) -> int:
        """Ticks that a send of `units` over a link holds a resource."""
        alpha, beta, _ = self.held[link][resource]
        return alpha + units * beta

    @cached_property
    def held(self) -> list[dict[int, tuple[int, int, bool]]]:
        """Per link: resource -> (alpha, beta, held at the receiving side)."""
        table: list[dict[int, tuple[int, int, bool]]] = [{} for _ in self.topology.links]
        for index, hold in enumerate(self.topology.holds):
            alpha, beta = int(self.costs.hold_alpha[index]), int(self.costs.hold_beta[index])
            table[hold.link][hold.resource] = (alpha, beta, hold.side == "receive")
        return table

    @cached_property
    def families(self) -> list[tuple[str, list[frozenset[int]]]]:
        """Disjoint sets of ranks: each rank by itself, and each node."""
        ranks = [frozenset((r,)) for r in range(self.topology.num_ranks)]
        nodes = [frozenset(each) for each in self.topology.ranks_of_node]
        return [("rank", ranks)] + ([("node", nodes)] if len(nodes) > 1 else [])


def _demands(problem: Problem) -> list[_Demand]:
    """The problem as demands to bound: a reduction is its reverse; an allreduce stays whole."""
    collective = problem.collective
    if not collective.combining or collective.derivations:
        return [_Demand(problem)]
    everyone = set(range(collective.num_ranks))
    roots_only = all(chunk.destinations == (chunk.root,) for chunk in collective.chunks)
    if roots_only:
        if all(set(chunk.origins) == everyone for chunk in collective.chunks):
            return [_Demand(reduction_half(problem))]
        return [_Demand(reduction_half(problem.with_clauses(carries_from={}, carries_to={})))]
    return [_Demand(problem)]


def _latency(demand: _Demand) -> _Claim:
    """The longest shortest way from where a chunk starts to where it must end."""
    best = _Claim(0, "nothing has to be sent", "none")
    if demand.problem.collective.derivations:
        return _chain_latency(demand.problem)
    for (data, units), c in demand.example.items():
        links = demand.carried(c, None if demand.reduces_to_all else False)
        origins = set(data.origins) or {data.destinations[0]}
        for target in data.destinations:
            from_each = {o: demand.times(links, units, target, to=True).get(o) for o in origins}
            if None in from_each.values() and demand.reduces_to_all:
                continue
            known = [t for t in from_each.values() if t is not None]
            if not known or (target in origins and not demand.reduces_to_all):
                continue
            time = max(known) if demand.reduces_to_all else min(known)
            if time > best.ticks:
                origin = next(o for o, t in from_each.items() if t == time)
                best = _Claim(time, f"the shortest way from rank {origin} to rank {target}", "latency")
    return best


def _chain_latency(problem: Problem) -> _Claim:
    """Chunks that derive from one another travel one after the other."""
    distances = Distances(problem)
    best = _Claim(0, "nothing has to be sent", "none")
    for c, chunk in enumerate(problem.collective.chunks):
        heads = distances.of(c)[0]
        for target in chunk.destinations:
            if heads.get(target, 0) > best.ticks:
                what = f"the way of chunk {c} to rank {target}, through all that it derives from"
                best = _Claim(heads[target], what, "latency")
    return best


def _jobs(demand: _Demand, sets: Sequence[frozenset[int]], *, entering: bool) -> list[list[_Job]]:
    """For every set of ranks, the sends that must enter (or leave) it."""
    links = demand.topology.links
    result: list[list[_Job]] = []
    for ranks in sets:
        at = set()
        for e in demand.problem.links_allowed:
            outer, inner = (links[e].srcs, links[e].dsts) if entering else (links[e].dsts, links[e].srcs)
            if any(r in ranks for r in inner) and not all(r in ranks for r in outer):
                at.add(e)
        jobs: list[_Job] = []
        for (data, units), count in demand.classes.items():
            c = demand.example[data, units]
            for job in _jobs_of_chunk(demand, c, units, ranks, at, entering):
                jobs.extend([job] * count)
        result.append(jobs)
    return result


def _jobs_of_chunk(
    demand: _Demand, c: int, units: int, ranks: frozenset[int], at: set[int], entering: bool
) -> Iterable[_Job]:
    """The sends of one chunk that must enter (or leave) a set of ranks over the links `at` its border.

    A chunk that spreads enters a set that lacks it at least once. A sum that everyone needs carries the
    contributions of the rest into every set, and of the set out of it. Where the sketch lets reductions
    cross only straight to the root's node, each other node's contributions enter that node by themselves.
    """
    data = demand.problem.collective.chunks[c]
    origins, destinations = set(data.origins), set(data.destinations)
    if not demand.reduces_to_all:
        if demand.problem.collective.derivations and not origins:
            origins = {data.destinations[0]}
        inside, outside = (destinations, origins) if entering else (origins, destinations)
        if not inside & ranks or outside <= ranks or (entering and origins & ranks):
            return
        if not entering and not origins <= ranks:
            return
        targets = destinations & ranks if entering else destinations - ranks
        links = demand.carried(c, False)
        yield from _job(demand, links, links, at, units, origins, targets)
        return
    sources = origins - ranks if entering else origins & ranks
    targets = destinations & ranks if entering else destinations - ranks
    if not sources or not targets:
        return
    every = demand.carried(c)
    direct = demand.problem.clauses.direct_crossing and len(ranks) > 1
    if not (direct and entering and data.root in ranks):
        yield from _job(demand, every, every, at, units, sources, targets)
        return
    node = demand.topology.node_of_rank
    for other in sorted({node[r] for r in sources}):
        theirs = {r for r in sources if node[r] == other}
        border = {e for e in at if all(node[r] == other for r in demand.topology.links[e].srcs)}
        yield from _job(demand, demand.carried(c, True), every, border, units, theirs, destinations - theirs)


def _job(
    demand: _Demand, over: int, links: int, at: set[int], units: int, sources: set[int], targets: set[int]
) -> Iterable[_Job]:
    """The job of crossing a border over one of a set of links, after the sources and before the targets."""
    crossing = [e for e in demand.link_sets[over] if e in at]
    if not crossing:
        return
    after: list[dict[int, int]] = []
    before: list[dict[int, int]] = []
    for e in crossing:
        ends = demand.topology.links[e]
        reach = [demand.times(links, units, d) for d in ends.dsts]
        after.append({v: min((t[v] for t in reach if v in t), default=0) for v in targets})
        come = [demand.times(links, units, s, to=True) for s in ends.srcs]
        before.append({o: max((t[o] for t in come if o in t), default=0) for o in sources})
    # Several crossings may share the work, so the job is the one that serves the farthest target; of a
    # sum, the one that brings the farthest contribution. Of a copy, any source will do.
    target = max(sorted(targets), key=lambda v: min(each[v] for each in after))
    tails = [each[target] for each in after]
    if demand.reduces_to_all:
        source = max(sorted(sources), key=lambda o: min(each[o] for each in before))
        releases = [each[source] for each in before]
    else:
        releases = [min(each.values()) for each in before]
    onward = [
        min(demand.onward(links, units, d) for d in demand.topology.links[e].dsts) if tail else 0
        for e, tail in zip(crossing, tails, strict=True)
    ]
    yield _Job(frozenset(crossing), units, min(releases), min(tails), min(onward))


def _counting(demand: _Demand) -> Iterable[_Claim]:
    """Chunks that must enter or leave a set of ranks, over the rate of all the resources they can pass."""
    if not demand.single_ended:
        return
    for name, sets in demand.families:
        for entering in (True, False):
            total_jobs: list[_Job] = []
            covers: list[tuple[int, int, bool]] = []
            for ranks, jobs in zip(sets, _jobs(demand, sets, entering=entering), strict=True):
                if not jobs:
                    continue
                cover = _cover(demand, {e for job in jobs for e in job.links})
                total_jobs.extend(jobs)
                covers.extend(cover)
                window = _window(demand, jobs, cover)
                ticks = window + min(j.release for j in jobs) + min(j.tail for j in jobs)
                who = f"{name} {demand.topology.node_of_rank[min(ranks)] if name == 'node' else min(ranks)}"
                verb = "enter" if entering else "leave"
                yield _Claim(
                    ticks, f"{len(jobs)} chunks must {verb} {who} through {_count(cover)}", "counting"
                )
            if demand.reduces_to_all and name == "rank" and entering and total_jobs:
                yield from _gossip(demand, covers)


def _gossip(demand: _Demand, covers: Sequence[tuple[int, int, bool]]) -> Iterable[_Claim]:
    """A sum that n ranks share takes at least 2(n - 1) sends, whoever adds what (the gossip theorem)."""
    units, sends = [], 0
    for (data, size), count in demand.classes.items():
        members = set(data.origins) & set(data.destinations)
        if len(members) > 1:
            sends += 2 * (len(members) - 1) * count
            units.append(size)
    if sends:
        job = _Job(frozenset(), min(units), 0, 0, 0)
        window = _window(demand, [job] * sends, covers)
        yield _Claim(
            window, f"{sends} sends are needed by all ranks together, through {_count(covers)}", "counting"
        )


def _count(cover: Sequence[object]) -> str:
    return f"{len(cover)} resource{'s' if len(cover) != 1 else ''}"


def _cover(demand: _Demand, links: set[int]) -> list[tuple[int, int, bool]]:
    """Resources that all the links hold between them: (alpha, beta, merges) of each, at its fastest."""
    cover, left = [], set(links)
    merging = demand.problem.clauses.merging if demand.problem.clauses.max_merge > 1 else frozenset()
    while left:
        users: dict[int, list[int]] = defaultdict(list)
        for e in sorted(left):
            for resource in demand.held[e]:
                users[resource].append(e)
        resource = max(users, key=lambda r: (len(users[r]), -r))
        mine = users[resource]
        alpha = min(demand.held[e][resource][0] for e in mine)
        beta = min(demand.held[e][resource][1] for e in mine)
        cover.append((alpha, beta, any(e in merging for e in mine)))
        left -= set(mine)
    return cover


def _window(demand: _Demand, jobs: Sequence[_Job], cover: Sequence[tuple[int, int, bool]]) -> int:
    """The shortest time in which the resources together can pass all jobs, whole chunks each."""
    units = {job.units for job in jobs}
    size, total = min(units), sum(job.units for job in jobs)
    max_merge = demand.problem.clauses.max_merge

    def passes(time: int) -> bool:
        done = 0
        for alpha, beta, merges in cover:
            if not alpha + size * beta:
                return True  # the least alpha and the least beta of different links
            if len(units) > 1:
                done += time // beta if beta else total
                continue
            full, rest = divmod(time, alpha + max_merge * size * beta) if merges else (0, time)
            partial = min(max_merge, max(0, rest - alpha) // (size * beta)) if merges and beta else 0
            count = full * max_merge + partial if merges else time // (alpha + size * beta)
            done += count * size
        return done >= total

    low, high = 0, 1
    while not passes(high):
        high *= 2
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if passes(middle) else (middle + 1, high)
    return low


def _one_machine(demand: _Demand) -> Iterable[_Claim]:
    """Jobs that must all pass one resource, from their releases to the tail behind the last batch."""
    for name, sets in demand.families:
        for entering in (True, False):
            by_resource: dict[int, list[_Job]] = defaultdict(list)
            for jobs in _jobs(demand, sets, entering=entering):
                mine: dict[int, list[_Job]] = defaultdict(list)
                for job in jobs:
                    for resource in set.intersection(*(set(demand.held[e]) for e in job.links)):
                        mine[resource].append(job)
                for resource, some in mine.items():
                    if demand.single_ended:
                        by_resource[resource].extend(some)
                    elif len(some) > len(by_resource[resource]):
                        by_resource[resource] = some
            for resource, jobs in sorted(by_resource.items()):
                ticks = _machine_ticks(demand, resource, jobs)
                what = demand.topology.resources[resource].name
                verb = "entering" if entering else "leaving"
                yield _Claim(ticks, f"{len(jobs)} chunks {verb} a {name} must pass {what}", "one machine")


def _machine_ticks(demand: _Demand, resource: int, jobs: Sequence[_Job]) -> int:
    """The best one-machine bound over the subsets of jobs with at least a given tail."""
    links = {e for job in jobs for e in job.links}
    alpha = min(demand.held[e][resource][0] for e in links)
    beta = min(demand.held[e][resource][1] for e in links)
    lag_before = lag_after = None
    for e in links:
        hold_alpha, hold_beta, receives = demand.held[e][resource]
        size = min(job.units for job in jobs)
        lag = demand.costs.duration(e, size) - hold_alpha - size * hold_beta
        before, after = (lag, 0) if receives else (0, lag)
        lag_before = before if lag_before is None else min(lag_before, before)
        lag_after = after if lag_after is None else min(lag_after, after)
    merges = any(e in demand.problem.clauses.merging for e in links)
    max_merge = demand.problem.clauses.max_merge if merges else 1
    best = 0
    tails = sorted({job.tail for job in jobs}, reverse=True)
    for tail in tails if len(tails) <= 4 else [*tails[:3], tails[-1]]:
        some = [job for job in jobs if job.tail >= tail]
        queues = _queues(some)
        no_tail = sum(job.tail == 0 for job in some)
        onward = min((job.onward for job in some if job.tail), default=0)
        if len({job.units for job in some}) > 1:
            size = sum(job.units for job in some)
            ends = {0: min(j.release for j in some) + alpha * -(-len(some) // max_merge) + beta * size}
        else:
            ends = _batch_ends(queues, alpha, beta * some[0].units, max_merge)
        found = min(
            end + (max(0, last - 1) * onward + tail if tail else max(0, last - no_tail) * onward)
            for last, end in ends.items()
        )
        best = max(best, found + (lag_before or 0) + (lag_after or 0))
    return best


def _queues(jobs: Sequence[_Job]) -> list[list[int]]:
    """Releases of jobs that may merge with each other: those whose links overlap; sorted, per queue."""
    queues: list[tuple[set[int], list[int]]] = []
    for job in jobs:
        links, releases, apart = set(job.links), [job.release], []
        for other in queues:
            if other[0] & links:
                links |= other[0]
                releases += other[1]
            else:
                apart.append(other)
        queues = [*apart, (links, releases)]
    return [sorted(releases) for _, releases in queues]


#: Beyond this many states the queues of a machine are merged into one, which only weakens the bound.
_MAX_STATES = 20_000


def _batch_ends(queues: list[list[int]], alpha: int, beta: int, max_merge: int) -> dict[int, int]:
    """Earliest end of all batches, by the size of the last one.

    A batch of n chunks of one queue starts no earlier than the machine is free and the chunks' releases,
    and takes ``alpha + n * beta``. Dynamic programming over how many of each queue are done.
    """
    if max_merge == 1 or _states(queues) > _MAX_STATES:
        queues = [sorted(release for queue in queues for release in queue)]
    if max_merge == 1:
        end = 0
        for release in queues[0]:
            end = max(end, release) + alpha + beta
        return {1: end}
    goal = tuple(len(queue) for queue in queues)
    earliest: dict[tuple[int, ...], int] = {(0,) * len(queues): 0}
    ends: dict[int, int] = {}
    order = [(0, (0,) * len(queues))]
    seen = set()
    while order:
        _, state = heapq.heappop(order)
        if state in seen:
            continue
        seen.add(state)
        for q, queue in enumerate(queues):
            for count in range(1, min(max_merge, len(queue) - state[q]) + 1):
                after = (*state[:q], state[q] + count, *state[q + 1 :])
                end = max(earliest[state], queue[after[q] - 1]) + alpha + count * beta
                if after == goal:
                    ends[count] = min(end, ends.get(count, end))
                if end < earliest.get(after, end + 1):
                    earliest[after] = end
                heapq.heappush(order, (sum(after), after))
    return ends


def _states(queues: Sequence[Sequence[int]]) -> int:
    states = 1
    for queue in queues:
        states *= len(queue) + 1
    return states
