"""Bounds from first arrivals: latency (shortest path of one chunk) and dissemination (data of many ranks).

A rank initially holds its own data, and gets the data of others by successive sends. A send, merged or not,
carries data of m ranks only if its sender holds data of m ranks when it starts. Dissemination bounds the time
until a rank can hold the data of all ranks that it wants. See docs/formulation.md, "Dissemination".
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain
from operator import le

import numpy as np
from numpy.typing import NDArray

from taccl._internal.units import format_count
from taccl.analysis.certificates.certificate import Claim, OfRanks, Witness
from taccl.analysis.certificates.evaluation.facts import NEVER, Facts
from taccl.analysis.certificates.evaluation.passages import GatePassage, passages_of, strongest
from taccl.analysis.certificates.finding.gates import FOREVER, Gates, Ints, fastest, gates_of
from taccl.analysis.certificates.finding.needed_sends import NeededSends
from taccl.problem.problem import Problem

#: Max ranks for which all chunks are examined for latency.
_MOST_RANKS_TIMED = 2_048
#: Number of chunks that are examined for latency on large topologies, or if time is short.
_FEW_CHUNKS = 16


@dataclass(frozen=True, slots=True)
class Path(Witness):
    """Witness of the latency bound: the shortest path of a chunk to a destination."""

    kind, proves = "path", "latency"
    preference = 1
    any_chunking = True
    chunk: int
    destination: int

    def fits(self, problem: Problem) -> bool:
        """True if the problem has the chunk and the destination rank."""
        chunks, num_ranks = problem.collective.num_chunks, problem.topology.num_ranks
        return 0 <= self.chunk < chunks and 0 <= self.destination < num_ranks

    def holds(self, facts: Facts, ticks: Fraction) -> bool:
        """True if no schedule of the problem finishes before `ticks`, evaluated exactly."""
        return ticks <= facts.rounded(_arrival(facts, self))


def latency(demand: NeededSends, *, divisible: bool, limit: float = math.inf) -> Claim:
    """Latency bound: the longest of all chunks' shortest paths; only alphas count if data is divisible.

    Only some chunks are examined above `_MOST_RANKS_TIMED` ranks, or after `limit`, a time of
    `time.monotonic`.
    """
    distances, collective = demand.distances, demand.problem.collective
    met, unknown = "nothing: every rank holds its data at the start", "no cause that was found"
    best = Claim(0, met if collective.is_met else unknown, None)
    is_large = demand.topology.num_ranks > _MOST_RANKS_TIMED
    needs_all = demand.sums_for_all or collective.derivations or demand.problem.clauses.path_limit
    if is_large and (needs_all or not demand.single_ended):
        return best
    is_short = is_large or time.monotonic() >= limit
    # Largest chunks first, in case time runs out: they tend to have the longest paths.
    sizes = demand.problem.costs.chunk_units
    order = _few_chunks(demand) if is_short else np.argsort(-sizes, kind="stable").tolist()
    all_units = [0] * len(sizes) if divisible else sizes.tolist()
    all_links = distances.all_carried(reducing=None if demand.sums_for_all else False).tolist()
    starts, ends = collective.origin_sets.of_chunk.tolist(), collective.destination_sets
    # Chunks with the same origins, links and size arrive everywhere at the same times.
    alike: dict[tuple[object, int, int], list[int]] = defaultdict(list)
    for place, c in enumerate(order):
        begins: object = tuple(distances.origins(c).items()) if collective.derivations else starts[c]
        if collective.updates:
            begins = begins, collective.chunks[c].root
        alike[begins, all_links[c], all_units[c]].append(place)
    in_order = np.array(order, dtype=np.int64)
    longest = (0, 1, 0, 0)  # (ticks, minus the chunk's place in the order, chunk, destination)
    #: {set of links: max ticks between two ranks}, for chunks at least as large as all that follow.
    farthest: dict[int, float] = {}
    for (_, links, units), places in alike.items():
        if farthest.get(links, math.inf) <= longest[0]:
            continue
        if places[0] > _FEW_CHUNKS and time.monotonic() >= limit:
            break
        chunks = in_order[places]
        data = collective.chunks[chunks[0]]
        if demand.sums_for_all and is_short and not collective.updates:  # at one destination of each chunk
            rank = data.destinations[0]
            after = distances.nearest(links, units, (rank,), backwards=True)[list(data.origins)]
            most = int(np.max(after, where=np.isfinite(after), initial=0))
            longest = max(longest, (most, -places[0], int(chunks[0]), rank))
            continue
        if demand.sums_for_all:
            times = distances.times(links, units)
            arrival = times[list(data.origins)].max(axis=0)
            if collective.updates:
                updates = 0 if divisible else int(demand.problem.update_ticks[chunks[0]])
                others = np.arange(len(arrival)) != data.root
                arrival = arrival[data.root] + others * (updates + times[data.root])
        elif is_short and not needs_all:
            arrival = distances.nearest(links, units, data.origins)
        else:
            arrival = distances.heads(int(chunks[0]), units=0 if divisible else None)
            if not (collective.derivations or is_short):
                farthest[links] = distances.longest(links, units)
        first = np.sort(np.unique(ends.of_chunk[chunks], return_index=True)[1])
        wanted = [ends.sets[number] for number in ends.of_chunk[chunks[first]].tolist()]
        ticks, number, rank = _latest(wanted, np.where(np.isfinite(arrival), arrival, 0))
        longest = max(longest, (ticks, -places[first[number]], int(chunks[first[number]]), rank))
    ticks, _, c, rank = longest
    way = "from" if demand.is_reversed else "to"
    return Claim(ticks, f"the shortest path of chunk {c} {way} rank {rank}", Path(c, rank)) if ticks else best


def _latest(wanted: list[tuple[int, ...]], arrival: NDArray[np.float64]) -> tuple[int, int, int]:
    """(latest arrival, index of the first set of ranks that waits until then, first such rank of this set).

    - `wanted`: Sets of ranks; a set may be empty.
    - `arrival`, (num_ranks,): Ticks at which each rank receives the data.
    """
    sizes = np.fromiter(map(len, wanted), np.int64, len(wanted))
    ranks = np.fromiter(chain.from_iterable(wanted), np.int64, int(sizes.sum()))
    if not len(ranks):
        return 0, 0, 0
    last = int(arrival[ranks].argmax())
    number = int(np.searchsorted(np.cumsum(sizes), last, side="right"))
    return int(arrival[ranks[last]]), number, int(ranks[last])


def _few_chunks(demand: NeededSends) -> list[int]:
    """`_FEW_CHUNKS` chunks of all sizes, a largest one first, with different origins and destinations.

    Multiples of the golden ratio choose them, as chunks at equal distances may all have one destination.
    """
    order = np.argsort(-demand.problem.costs.chunk_units, kind="stable")
    share = np.arange(min(_FEW_CHUNKS, len(order))) * (math.sqrt(1.25) - 0.5) % 1
    found: list[int] = order[(share * len(order)).astype(np.int64)].tolist()
    return found


def _arrival(facts: Facts, path: Path) -> int:
    """Min ticks for a chunk, or for the farthest contribution to a sum, to reach the path's destination.

    If a server updates the sum, the path goes by that server, which takes its time.
    """
    data = facts.collective.chunks[path.chunk]
    if path.destination not in data.destinations:
        return 0
    units = 0 if facts.divisible else facts.units[path.chunk]
    links = facts.carried(path.chunk)
    if not facts.sums:
        starts = facts.origins(path.chunk, 0 if facts.divisible else None)
        return facts.times(links, units, starts).get(path.destination, 0)
    by = data.root if facts.collective.updates and data.root is not None else path.destination
    found = facts.times(links, units, {by: 0}, backwards=True)
    ticks = max(found.get(rank, 0) for rank in data.origins)
    if by == path.destination:
        return ticks
    updates = 0 if facts.divisible else int(facts.problem.update_ticks[path.chunk])
    return ticks + updates + facts.times(links, units, {by: 0}).get(path.destination, 0)


#: Max ranks, and max nodes, for which dissemination is computed; those that lack the most data come first.
_MOST_SETS = 8
#: Max ranks of a network for which it is computed over all chunkings (10 us of CPU per link).
_MOST_RANKS = 256


@dataclass(frozen=True, slots=True)
class Dissemination(OfRanks):
    """Witness of dissemination: a set of ranks, one of which wants data of many ranks outside the set.

    - `anywhere`: Earliest ticks at which any rank can hold data of 0, 1, ... ranks, its own included.
    - `inside`: Earliest ticks at which a rank of the set can hold data of 0, 1, ... ranks outside the set.
    """

    kind = proves = "dissemination"
    preference = 7
    ranks: frozenset[int]
    anywhere: tuple[int, ...]
    inside: tuple[int, ...]

    def holds(self, facts: Facts, ticks: Fraction) -> bool:
        """True if no schedule of the problem finishes before `ticks`, evaluated exactly."""
        return ticks <= facts.rounded(_disseminated(facts, self))


def dissemination_bounds(demand: NeededSends, *, in_network: bool) -> Iterator[Claim]:
    """Yield dissemination bounds for a few ranks and a few nodes, one of each orbit under symmetry."""
    if demand.sums_for_all or not demand.spreads_alike(in_network=in_network):
        return
    if not demand.costs.merges.any():
        return
    wanted: dict[int, set[int]] = {}
    for data, *_ in demand.classes:
        if len(data.origins) == 1:
            for rank in data.destinations:
                wanted.setdefault(rank, set()).update(data.origins)
    num = max((len(some - {rank}) for rank, some in wanted.items()), default=0)
    if num < 2:
        return
    costs, links = demand.costs, np.array(sorted(demand.allowed), dtype=np.int64)

    def entered(over: Ints) -> Gates:
        return fastest(gates_of(costs, over, costs.dst))

    #: Earliest times at which some rank can hold data of 0, 1, ... ranks, its own included.
    anywhere = _earliest_ticks(num, [0, 0], (entered(links), None))

    def lacking(ranks: frozenset[int]) -> int:
        return max(len(wanted.get(rank, set()) - ranks) for rank in ranks)

    for name, sets in demand.families:
        for ranks in sorted(demand.different(sets), key=lacking, reverse=True)[:_MOST_SETS]:
            demand.deadline.check()
            number = lacking(ranks)
            if number > 1:
                node = demand.topology.node_of_rank[min(ranks)]
                where = f"rank {min(ranks)}" if name == "rank" else f"a rank of node {node}"
                of = format_count(number, "rank")
                what = f"data of {of} missing at {where}, from when senders hold it"
                if demand.is_reversed:
                    what = f"data for {of} at {where}, until receivers hold it"
                leaves, enters = (np.isin(ends[links], list(ranks)) for ends in (costs.src, costs.dst))
                border, inside = entered(links[enters & ~leaves]), entered(links[enters & leaves])
                times = tuple(_earliest_ticks(number, [0], (border, anywhere), (inside, None)))
                yield Claim(times[-1], what, Dissemination(ranks, tuple(anywhere[: number + 1]), times))


def _earliest_ticks(num: int, had: list[int], *sources: tuple[Gates, list[int] | None]) -> list[int]:
    """`had`, then the earliest ticks at which a rank can hold data of 1, 2, ..., `num` further ranks.

    - `had`: Ticks for the data that the rank has from the start.
    - `sources`: (bottleneck resources of some links into the rank, earliest ticks of the senders of these
      links). None in place of the ticks: those senders get data no earlier than the rank itself.
    """
    when = list(had)
    arrived = [np.full((len(gates.most), num), FOREVER) for gates, _ in sources]
    # Earliest ticks at which each resource is free again after it has passed the data of 0, 1, ... ranks.
    free = [np.full((len(gates.most), num + 1), FOREVER) for gates, _ in sources]
    for passed in free:
        passed[:, 0] = 0

    def bring(number: int, gates: Gates, known: list[int] | None, arrived: Ints, free: Ints) -> None:
        senders = when if known is None else known
        most = min(len(gates.rest), number, len(senders) - 1)
        if most < 1:  # no sender can hold any data yet
            return
        m = np.arange(1, most + 1)
        begin = np.maximum(
            np.array(senders[1 : most + 1]) + gates.offset[:, None], free[:, number - most : number][:, ::-1]
        )
        begin = np.where(m <= gates.most[:, None], begin, FOREVER)
        free[:, number] = (begin + gates.alpha[:, None] + m * gates.beta[:, None]).min(axis=1)
        arrived[:, number - 1] = (begin + gates.rest[:most].T).min(axis=1)

    for number in range(1, num + 1):
        for source, *times in zip(sources, arrived, free, strict=True):
            bring(number, *source, *times)
        arrivals = np.concatenate([each[:, :number].ravel() for each in arrived])
        when.append(int(np.partition(arrivals, number - 1)[number - 1]))
        for source, *times in zip(sources, arrived, free, strict=True):
            if source[1] is None:  # senders, too, can hold data of `number` ranks from now on, and send it
                bring(number, *source, *times)
    return when


def _disseminated(facts: Facts, witness: Dissemination) -> int:
    """Earliest ticks at which a rank of the set can hold all outside data it wants; 0 if unproven."""
    if not facts.spreads_alike or facts.sums or facts.divisible:
        return 0
    wanted: dict[int, set[int]] = defaultdict(set)
    for data in facts.collective.chunks:
        if len(data.origins) == 1:
            for rank in data.destinations:
                wanted[rank].update(data.origins)
    number = max((len(wanted[rank] - witness.ranks) for rank in witness.ranks), default=0)
    if not len(witness.anywhere) >= len(witness.inside) == number + 1:
        return 0
    entering = [e for e in facts.allowed if facts.dst[e] in witness.ranks]
    border, inside, every = (
        strongest(passages_of(facts, links, facts.dst).values())
        for links in (
            [e for e in entering if facts.src[e] not in witness.ranks],
            [e for e in entering if facts.src[e] in witness.ranks],
            facts.allowed,
        )
    )
    known = [(gate, witness.anywhere) for gate in every]
    sources = [(gate, witness.anywhere) for gate in border] + [(gate, witness.inside) for gate in inside]
    is_proven = _are_earliest(witness.anywhere, known, own=1) and _are_earliest(
        witness.inside, sources, own=0
    )
    return witness.inside[number] if is_proven else 0


def _are_earliest(
    times: tuple[int, ...], sources: list[tuple[GatePassage, tuple[int, ...]]], *, own: int
) -> bool:
    """True if a rank cannot hold data of 0, 1, ... ranks before `times`, by induction over arrivals.

    It is checked that no arrival is earlier than its entry of `times`, if senders get data no earlier than
    `sources` states. Senders behave so before a first violation, so there is no first violation.

    - `sources`: (bottleneck resource of links into the rank, earliest ticks at which a sender over it can
      hold data of 0, 1, ... ranks).
    - `own`: Number of ranks whose data the rank holds initially.
    """
    arrived: list[int] = []
    for gate, senders in sources:
        passed = [0]  # earliest ticks at which the resource is free after data of 0, 1, ... ranks
        for i in range(1, len(times) - own):
            begins = [
                (max(senders[m] + gate.before, passed[i - m]), m) for m in range(1, min(gate.most, i) + 1)
            ]
            passed.append(min(begin + gate.alpha + m * gate.beta for begin, m in begins))
            arrived.append(min(begin + gate.after[m - 1] for begin, m in begins))
    return bool(sources) and all(map(le, times, [0] * (own + 1) + sorted(arrived)))


#: Causes of dissemination over all chunkings, in time and in reversed time.
_LIMITS = "data into rank {}, from when senders hold it", "data out of rank {}, until receivers pass it on"


@dataclass(frozen=True, slots=True)
class ByteDissemination(OfRanks):
    """Witness of dissemination over all chunkings: a rank that wants data, and resources that cover links.

    - `resources`: Each link holds one of them. A link is assigned to the first of them that it holds.
    """

    kind, proves = "byte dissemination", "dissemination"
    preference = 7
    any_chunking = True
    ranks: frozenset[int]
    resources: tuple[int, ...]
    backwards: bool = False

    def holds(self, facts: Facts, ticks: Fraction) -> bool:
        """True if no schedule of the problem finishes before `ticks`, evaluated exactly."""
        return ticks <= _bytes_disseminated(facts, self)


def byte_dissemination_bounds(demand: NeededSends, *, in_network: bool) -> Iterator[Claim]:
    """Yield dissemination bounds over all chunkings for a few ranks, one of each orbit under symmetry."""
    if in_network or demand.sums_for_all or not demand.single_ended or demand.problem.collective.derivations:
        return
    if demand.topology.num_ranks > _MOST_RANKS:
        return
    for needed, backwards in demand.both_directions():
        facts = Facts(needed.problem, divisible=True, in_network=False)
        entering: dict[int, list[int]] = defaultdict(list)
        for e in facts.allowed:
            entering[facts.dst[e]].append(e)
        resources = tuple(dict.fromkeys(chain.from_iterable(map(needed.lanes, entering.values()))))
        for name, sets in needed.families:
            for ranks in needed.different(sets)[:_MOST_SETS] if name == "rank" else ():
                demand.deadline.check()
                witness = ByteDissemination(ranks, resources)
                ticks = _bytes_disseminated(facts, witness)
                if ticks > demand.known:
                    limits = _LIMITS[needed.is_reversed].format(*ranks)
                    yield Claim(ticks, limits, replace(witness, backwards=backwards))


def _bytes_disseminated(facts: Facts, witness: ByteDissemination) -> Fraction:
    """Earliest tick at which a rank can have all data that it wants, in any chunks; 0 if unproven.

    See docs/formulation.md, "Dissemination", on divisible data.
    """
    none = Fraction(0)
    if not facts.divisible or facts.sums or facts.multi or facts.in_network or facts.only_switches_add:
        return none
    if facts.made_at or facts.collective.updates or len(witness.ranks) != 1:
        return none
    (rank,), held, wanted = witness.ranks, Counter[int](), 0
    for data, units in zip(facts.collective.chunks, facts.units, strict=True):
        if rank in data.destinations and rank not in data.origins:
            wanted += units
            held.update(dict.fromkeys(data.origins, units))
    left, alpha, beta = set(facts.allowed), NEVER, NEVER
    entering = Counter[int]()  # {rank: number of resources over which data enters it}
    for resource in witness.resources:
        mine = {e for e in left if resource in facts.holds[e]}
        left -= mine
        entering.update({facts.dst[e] for e in mine})
        for e in mine:
            hold_alpha, hold_beta, _ = facts.holds[e][resource]
            if hold_alpha > facts.alpha[e] or hold_beta > facts.beta[e]:
                return none
            alpha, beta = min(alpha, hold_alpha), min(beta, hold_beta)
    if left or not (wanted and entering[rank]):
        return none
    most, num_lanes, each = max(held.values()), max(entering.values()), Fraction(wanted, entering[rank])
    steps = 0
    while most * (num_lanes + 1) ** steps < most + num_lanes * each:
        steps += 1
    return alpha * steps + beta * each
