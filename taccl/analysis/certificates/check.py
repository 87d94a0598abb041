"""Re-checks a certificate from its witness: plain arithmetic on the problem, none of what found the bound.

Shortest ways are found here anew, in whole numbers; what must cross a set of ranks is read off the
collective once more; prices are added up link by link. Only the dynamic program over batches
(`batch_ends`), arithmetic itself, is run again as it is.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from fractions import Fraction
from typing import TYPE_CHECKING

from taccl.analysis.certificates.certificate import Border, Machine, Nested, Path, PathPrices, SetPrices
from taccl.analysis.certificates.demand import Demand, Job, as_spreading
from taccl.analysis.certificates.one_machine import machine_ticks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from taccl.analysis.certificates.certificate import Certificate, Witness
    from taccl.problem import Problem

__all__ = ["check_certificate"]


def check_certificate(certificate: Certificate) -> bool:
    """Whether the witness proves the bound."""
    facts = _Facts(as_spreading(certificate.problem), divisible=certificate.divisible)
    ticks = certificate.bound * certificate.problem.costs.ticks_per_us
    witness = certificate.witness
    if witness is None:
        return ticks <= 0
    if not _is_of(certificate.problem, witness):
        return False
    if isinstance(witness, Path):
        return ticks <= facts.latency(witness)
    if isinstance(witness, Border):
        return not certificate.divisible and facts.crosses(witness, ticks, in_network=certificate.in_network)
    if isinstance(witness, Nested):
        return not certificate.divisible and ticks <= facts.nested(witness)
    if isinstance(witness, Machine):
        return not certificate.divisible and ticks <= facts.machine(witness)
    if isinstance(witness, SetPrices):
        proven = facts.set_prices(witness, in_network=certificate.in_network)
    else:
        proven = facts.path_prices(witness)
    # Whole chunks end in whole ticks.
    return ticks <= (proven if certificate.divisible else -(-proven.numerator // proven.denominator))


def _is_of(problem: Problem, witness: Witness) -> bool:
    """Whether the witness names only what the problem has, and prices every resource."""
    ranks = frozenset(range(problem.topology.num_ranks))
    num_resources = len(problem.topology.resources)
    if isinstance(witness, Path):
        return 0 <= witness.chunk < problem.collective.num_chunks and witness.destination in ranks
    if isinstance(witness, Border):
        return witness.ranks <= ranks
    if isinstance(witness, Nested):
        return bool(witness.inner) and witness.inner <= witness.outer <= ranks
    if isinstance(witness, Machine):
        return 0 <= witness.resource < num_resources and witness.family in ("rank", "node")
    charges = witness.charges if isinstance(witness, SetPrices) else ()
    charged = all(each.parts and frozenset().union(*each.parts) <= ranks for each in charges)
    return len(witness.prices) == num_resources and charged


class _Facts:
    """What a problem says, as plain numbers."""

    def __init__(self, problem: Problem, *, divisible: bool) -> None:
        self.problem, self.divisible = problem, divisible
        self.topology, self.collective, self.clauses = problem.topology, problem.collective, problem.clauses
        self.units = problem.costs.chunk_units.tolist()
        self.by_chunk = not divisible and len(set(self.units)) == 1
        self.alpha = problem.costs.link_alpha.tolist()
        self.beta = problem.costs.link_beta.tolist()
        self.sums = self.collective.combining and not self.collective.derivations
        self.made_at = {d.chunk: d for d in self.collective.derivations}
        self.allowed = list(problem.links_allowed)
        self.holds: list[dict[int, tuple[int, int, bool]]] = [{} for _ in self.topology.links]
        alphas, betas = problem.costs.hold_alpha.tolist(), problem.costs.hold_beta.tolist()
        for hold, alpha, beta in zip(self.topology.holds, alphas, betas, strict=True):
            self.holds[hold.link][hold.resource] = (alpha, beta, hold.side == "receive")
        self.multi = any(
            len(self.topology.links[e].srcs) + len(self.topology.links[e].dsts) > 2 for e in self.allowed
        )
        self._admitted: dict[tuple[object, ...], list[int]] = {}
        self._out: dict[tuple[int, int, bool], dict[int, list[tuple[int, int]]]] = {}
        self._times: dict[tuple[object, ...], dict[int, int]] = {}

    # ---- ways

    def admitted(self, c: int, *, reducing: bool | None) -> list[int]:
        """The links that may carry a chunk: spreading, reducing, or (None) in either way."""
        data = self.collective.chunks[c]
        node = self.topology.node_of_rank
        derived = self.made_at[c].rank if c in self.made_at else -1
        ends = frozenset(node[r] for r in data.destinations)
        starts, holders = frozenset(node[r] for r in data.origins), self.problem.holders(c)
        key = (data.origins, derived, data.root, ends, starts, holders, reducing)
        if key not in self._admitted:
            modes = (False, True) if reducing is None else (reducing,)
            may = self.problem.may_carry
            self._admitted[key] = [e for e in self.allowed if any(may(e, c, reducing=mode) for mode in modes)]
        return self._admitted[key]

    def times(
        self, links: Sequence[int], units: int, starts: dict[int, int], *, backwards: bool = False
    ) -> dict[int, int]:
        """Earliest times at ranks (backwards: times left to the starts); a link waits for one source.

        `links` is a list that `admitted` returned: what was found for it is kept.
        """
        key = (id(links), units, frozenset(starts.items()), backwards)
        if key not in self._times:
            self._times[key] = self._shortest(self._arcs(links, units, backwards), starts)
        return self._times[key]

    def _arcs(self, links: Sequence[int], units: int, backwards: bool) -> dict[int, list[tuple[int, int]]]:
        """Per rank: (the rank at the other end, the time of a send) of every link."""
        key = (id(links), units, backwards)
        if key not in self._out:
            out = self._out[key] = defaultdict(list)
            for e in links:
                length = self.alpha[e] + units * self.beta[e]
                for src in self.topology.links[e].srcs:
                    for dst in self.topology.links[e].dsts:
                        a, b = (dst, src) if backwards else (src, dst)
                        out[a].append((b, length))
        return self._out[key]

    @staticmethod
    def _shortest(out: dict[int, list[tuple[int, int]]], starts: dict[int, int]) -> dict[int, int]:
        best: dict[int, int] = {}
        queue = [(time, rank) for rank, time in starts.items()]
        heapq.heapify(queue)
        while queue:
            time, rank = heapq.heappop(queue)
            if rank in best:
                continue
            best[rank] = time
            for other, length in out.get(rank, ()):
                if other not in best:
                    heapq.heappush(queue, (time + length, other))
        return best

    def origins(self, c: int, units: int | None = None) -> dict[int, int]:
        """Where a chunk is first, and when; of a derived one, where and when it is made."""
        starts = dict.fromkeys(self.collective.chunks[c].origins, 0)
        made = self.made_at.get(c)
        if made is not None:
            size = self.units[made.source] if units is None else units
            before = self.times(
                self.admitted(made.source, reducing=False), size, self.origins(made.source, units)
            )
            if made.rank in before:
                starts[made.rank] = before[made.rank]
        return starts

    def latency(self, path: Path) -> int:
        """The shortest time of a chunk to a destination; of a sum, of its farthest contribution."""
        data = self.collective.chunks[path.chunk]
        if path.destination not in data.destinations:
            return 0
        units = 0 if self.divisible else self.units[path.chunk]
        if not self.sums:
            starts = self.origins(path.chunk, 0 if self.divisible else None)
            found = self.times(self.admitted(path.chunk, reducing=False), units, starts)
            return found.get(path.destination, 0)
        links = self.admitted(path.chunk, reducing=None)
        found = self.times(links, units, {path.destination: 0}, backwards=True)
        return max(found.get(rank, 0) for rank in data.origins)

    # ---- borders

    def jobs(self, ranks: frozenset[int], *, entering: bool) -> Iterator[Job]:
        """The sends that every schedule has at the border of a set of ranks."""
        kinds = Counter(zip(self.collective.chunks, self.units, strict=True))
        example = {
            key: c
            for c, key in reversed(list(enumerate(zip(self.collective.chunks, self.units, strict=True))))
        }
        for (data, units), count in kinds.items():
            c = example[data, units]
            known = set(self.origins(c))
            if self.sums:
                sources = set(data.origins) - ranks if entering else set(data.origins) & ranks
                targets = set(data.destinations) & ranks if entering else set(data.destinations) - ranks
                if not sources or not targets:
                    continue
                every = self.admitted(c, reducing=None)
                parts = [(every, sources, targets)]
                if self.clauses.direct_crossing and len(ranks) > 1 and entering and data.root in ranks:
                    node = self.topology.node_of_rank
                    parts = []
                    for n in sorted({node[r] for r in sources}):
                        over = [
                            e
                            for e in self.admitted(c, reducing=True)
                            if any(node[r] == n for r in self.topology.links[e].srcs)
                        ]
                        theirs = {r for r in sources if node[r] == n}
                        parts.append((over, theirs, set(data.destinations) - theirs))
            else:
                links = self.admitted(c, reducing=False)
                every = links
                if entering:
                    needed = not known & ranks and bool(set(data.destinations) & ranks)
                    targets = set(data.destinations) & ranks
                else:
                    needed = known <= ranks and not set(data.destinations) <= ranks
                    targets = set(data.destinations) - ranks
                if not needed or not known:
                    continue
                parts = [(links, known, targets)]
            for over, sources, targets in parts:
                job = self._job(over, every, ranks, units, sources, targets, entering)
                yield from [job] * count if job is not None else []

    def _job(
        self, over: Sequence[int], every: Sequence[int], ranks: frozenset[int], units: int,
        sources: set[int], targets: set[int], entering: bool,
    ) -> Job | None:  # fmt: skip
        ends = self.topology.links
        crossing = []
        for e in over:
            outer, inner = (ends[e].srcs, ends[e].dsts) if entering else (ends[e].dsts, ends[e].srcs)
            if any(r in ranks for r in inner) and not all(r in ranks for r in outer):
                crossing.append(e)
        if not crossing:
            return None
        leave = {e for e in crossing}
        if self.sums:
            release = 0
            for source in sorted(sources):
                there = self.times(every, units, {source: 0})
                release = max(release, min(min(there.get(r, 0) for r in ends[e].srcs) for e in leave))
        else:
            there = self.times(every, units, dict.fromkeys(sources, 0))
            release = min(min(there.get(r, 0) for r in ends[e].srcs) for e in leave)
        tail = 0
        for target in sorted(targets):
            left = self.times(every, units, {target: 0}, backwards=True)
            tail = max(tail, min(min(left.get(r, 0) for r in ends[e].dsts) for e in leave))
        onward = self._onward(every, units, {r for e in leave for r in ends[e].dsts}) if tail else frozenset()
        return Job(frozenset(crossing), units, release, tail, onward)

    def _onward(self, every: Sequence[int], units: int, ranks: set[int]) -> frozenset[tuple[int, int]]:
        ways = [e for e in every if not ranks.isdisjoint(self.topology.links[e].srcs)]
        shared: dict[int, int] = {}
        for i, e in enumerate(ways):
            merges = self.clauses.max_merge > 1 and e in self.clauses.merging
            mine = {
                r: (0 if merges else alpha) + units * beta
                for r, (alpha, beta, receives) in self.holds[e].items()
                if not receives
            }
            shared = mine if i == 0 else {r: min(t, mine[r]) for r, t in shared.items() if r in mine}
        return frozenset(shared.items())

    def crosses(self, border: Border, ticks: Fraction, *, in_network: bool) -> bool:
        """Whether what must cross the border cannot do so in less."""
        everyone = frozenset(range(self.topology.num_ranks))
        if border.ranks == everyone:
            if self.multi or in_network or not self.sums:
                return False
            part_of: Sequence[int] = range(self.topology.num_ranks)
            links = self.allowed
            if not border.entering:
                part_of = self.topology.node_of_rank
                links = [e for e in links if self.topology.is_internode(e)]
            sends: list[int] = []
            for data, units in zip(self.collective.chunks, self.units, strict=True):
                parts = {part_of[r] for r in data.origins} & {part_of[r] for r in data.destinations}
                sends += [units] * max(0, 2 * (len(parts) - 1))
            return self._fills(sends, links, ticks)
        if self.multi:
            return False
        jobs = list(self.jobs(border.ranks, entering=border.entering))
        if not jobs:
            return ticks <= 0
        around = min(job.release for job in jobs) + min(job.tail for job in jobs)
        links = sorted({e for job in jobs for e in job.links})
        return self._fills([job.units for job in jobs], links, ticks - around)

    def _fills(self, sends: Sequence[int], links: Sequence[int], ticks: Fraction) -> bool:
        """Whether the resources that the links hold cannot pass all sends in less than `ticks`."""
        if not sends or ticks <= 0:
            return ticks <= 0
        less = -(-ticks.numerator // ticks.denominator) - 1  # the whole ticks before
        alike, size = len(set(sends)) == 1, min(sends)
        left, passed = set(links), 0
        while left:
            users: dict[int, list[int]] = defaultdict(list)
            for e in sorted(left):
                for resource in self.holds[e]:
                    users[resource].append(e)
            resource = max(users, key=lambda r: (len(users[r]), -r))
            mine = users[resource]
            alpha = min(self.holds[e][resource][0] for e in mine)
            beta = min(self.holds[e][resource][1] for e in mine)
            merges = self.clauses.max_merge > 1 and any(e in self.clauses.merging for e in mine)
            left -= set(mine)
            if not alike:
                if not beta:
                    return False
                passed += less // beta
            elif not merges:
                if not alpha + size * beta:
                    return False
                passed += less // (alpha + size * beta) * size
            else:
                if not alpha + beta:
                    return False
                full = alpha + self.clauses.max_merge * size * beta
                rounds, rest = divmod(less, full)
                part = max(0, rest - alpha) // (size * beta) if beta else 0
                passed += (rounds * self.clauses.max_merge + min(part, self.clauses.max_merge)) * size
        return passed < sum(sends)

    def machine(self, machine: Machine) -> int:
        """The one-machine bound of what must pass a resource."""
        sets = [frozenset((r,)) for r in range(self.topology.num_ranks)]
        if machine.family == "node":
            sets = [frozenset(ranks) for ranks in self.topology.ranks_of_node]
        ends = [self.topology.links[e] for e in self.allowed if machine.resource in self.holds[e]]
        near = {r for link in ends for r in (link.dsts if machine.entering else link.srcs)}
        sets = [ranks for ranks in sets if ranks & near]
        found: list[list[Job]] = []
        for ranks in sets:
            jobs = self.jobs(ranks, entering=machine.entering)
            found.append([job for job in jobs if all(machine.resource in self.holds[e] for e in job.links)])
        passing = max(found, key=len, default=[]) if self.multi else [job for jobs in found for job in jobs]
        return machine_ticks(Demand(self.problem), machine.resource, passing) if passing else 0

    # ---- two borders

    def nested(self, witness: Nested) -> int:
        """When the last chunks that cross both borders can have done so at the earliest; 0 says nothing.

        Read backwards in time, what leaves enters.
        """
        if self.sums or self.made_at or self.multi or len(set(self.units)) != 1:
            return 0
        inner, outer, count = witness.inner, witness.outer, 0
        for data in self.collective.chunks:
            starts, ends = set(data.origins), set(data.destinations)
            if witness.entering:
                count += starts.isdisjoint(outer) and not ends.isdisjoint(inner)
            else:
                count += starts <= inner and not ends <= outer
        crossing: dict[str, list[int]] = {"outer": [], "inside": [], "direct": []}
        for e in self.allowed:
            near, far = self.topology.links[e].dst, self.topology.links[e].src
            if not witness.entering:
                near, far = far, near
            if near in outer and far not in outer:
                crossing["outer"].append(e)
            if near in inner and far not in inner:
                crossing["inside" if far in outer else "direct"].append(e)
        passes = {name: self._passes(links, entering=witness.entering) for name, links in crossing.items()}
        if any(length <= 0 for rows in passes.values() for length, _, _ in rows):
            return 0
        best = 0
        for last in range(1, count + 1):  # the last so many that are in
            since = self._moment(passes["outer"], [], count - last + 1, 0)
            best = max(best, since + self._moment(passes["inside"], passes["direct"], last, since))
        return best

    def _passes(self, links: Sequence[int], *, entering: bool) -> list[tuple[int, int, int]]:
        """Resources that share the links out: (shortest hold of a chunk, its soonest end, spread of ends).

        The spread is -1 where chunks merge.
        """
        size, left, rows = self.units[0], set(links), []
        users: dict[int, list[int]] = defaultdict(list)
        for e in sorted(left):
            for resource in self.holds[e]:
                users[resource].append(e)
        for resource in sorted(users, key=lambda r: (-len(users[r]), r)):
            mine = [e for e in users[resource] if e in left]
            left -= set(mine)
            begins, ends, lengths, merges = [], [], [], False
            for e in mine:
                alpha, beta, receives = self.holds[e][resource]
                took, length = self.alpha[e] + size * self.beta[e], alpha + size * beta
                begin = max(0, took - length) if receives else 0
                if not entering:
                    begin = took - begin - length
                begins.append(begin)
                ends.append(took - begin)
                lengths.append(length)
                merges |= self.clauses.max_merge > 1 and e in self.clauses.merging
            if mine and merges:
                too_long = any(self.holds[e][resource][0] > self.alpha[e] for e in mine)
                too_long |= any(self.holds[e][resource][1] > self.beta[e] for e in mine)
                least = 0 if too_long else min(size * self.holds[e][resource][1] for e in mine)
                rows.append((least, least, -1))
            elif mine:
                rows.append((min(lengths), min(begins) + min(ends), max(ends) - min(ends)))
        return rows if not left else [(0, 0, 0)]

    @staticmethod
    def _moment(
        whole: Sequence[tuple[int, int, int]], ending: Sequence[tuple[int, int, int]], chunks: int, since: int
    ) -> int:
        """How long after some moment so many chunks can have passed; some may begin before it (`ending`)."""
        queue = [(soonest, length) for length, soonest, _ in whole]
        for length, soonest, spread in ending:
            # So many can be there at that moment already, and one more whenever a hold's length has passed.
            at_once = 1 + spread // length if spread >= 0 else since // length
            chunks -= at_once
            queue.append(
                (length - spread % length, length) if spread >= 0 else (length - since % length, length)
            )
        if chunks <= 0 or not queue:
            return 0
        heapq.heapify(queue)
        moment = 0
        for _ in range(chunks):
            moment, length = heapq.heappop(queue)
            heapq.heappush(queue, (moment + length, length))
        return moment

    # ---- prices

    def _pays(self, prices: Sequence[int]) -> list[Fraction]:
        """What a chunk (or, where sizes differ or data is divisible, a unit of it) pays on every link."""
        by_chunk = self.by_chunk
        pays = []
        for e, held in enumerate(self.holds):
            merges = self.clauses.max_merge > 1 and e in self.clauses.merging
            share = Fraction(1, self.clauses.max_merge) if merges else Fraction(1)
            total = Fraction(0)
            for resource, (alpha, beta, _) in held.items():
                total += prices[resource] * (alpha * share + beta * self.units[0] if by_chunk else beta)
            pays.append(total)
        return pays

    def set_prices(self, witness: SetPrices, *, in_network: bool) -> Fraction:
        """The bound in ticks that prices and charges prove; 0 if some send is charged more than it pays."""
        if min(witness.prices, default=0) < 0 or any(each.charge < 0 for each in witness.charges):
            return Fraction(0)
        pays = self._pays(witness.prices)
        asked = [Fraction(0)] * len(pays)
        need = Fraction(0)
        for each in witness.charges:
            part_of = {r: i for i, part in enumerate(each.parts) for r in part}
            if len(each.parts) > 1 and (in_network or self.multi or not self.sums):
                return Fraction(0)
            if len(part_of) != sum(map(len, each.parts)):
                return Fraction(0)
            for e in self.allowed:
                link = self.topology.links[e]
                if len(each.parts) > 1:
                    crosses = part_of.get(link.src, -1) != part_of.get(link.dst, -1)
                else:
                    crosses = any(r in part_of for r in link.dsts) and any(
                        r not in part_of for r in link.srcs
                    )
                if crosses:
                    asked[e] += each.charge
            need += each.charge * self._needed(each.parts)
        total = sum(witness.prices)
        if not total or any(asked[e] > pays[e] for e in self.allowed):
            return Fraction(0)
        return need / total

    def _needed(self, parts: Sequence[frozenset[int]]) -> int:
        """The least volume of what enters a set, or what the parts of a partition must exchange."""
        volume = 0
        for data, units in zip(self.collective.chunks, self.units, strict=True):
            weight = 1 if self.by_chunk else units
            starts, ends = set(data.origins), set(data.destinations)
            if len(parts) > 1:
                sharers = sum(not part.isdisjoint(starts) and not part.isdisjoint(ends) for part in parts)
                volume += weight * max(0, 2 * (sharers - 1))
            elif ends.isdisjoint(parts[0]) or not starts:
                continue
            elif starts - parts[0] if self.sums else starts.isdisjoint(parts[0]):
                volume += weight
        return volume

    def path_prices(self, witness: PathPrices) -> Fraction:
        """The bound in ticks that prices prove when every chunk takes its cheapest way."""
        if min(witness.prices, default=0) < 0 or self.sums or self.collective.derivations:
            return Fraction(0)
        pays = self._pays(witness.prices)
        scale = self.clauses.max_merge
        whole = [int(each * scale) for each in pays]
        total, known = 0, {}
        for c, data in enumerate(self.collective.chunks):
            targets = set(data.destinations) - set(data.origins)
            if not targets or not data.origins:
                continue
            links = self.admitted(c, reducing=False)
            key = (data.origins, id(links))
            if key not in known:
                known[key] = self._cheapest(links, whole, data.origins)
            weight = 1 if self.by_chunk else self.units[c]
            total += weight * max(known[key].get(r, 0) for r in targets)
        return Fraction(total, (sum(witness.prices) or 1) * scale)

    def _cheapest(self, links: Sequence[int], pays: Sequence[int], origins: Sequence[int]) -> dict[int, int]:
        out: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for e in links:
            for src in self.topology.links[e].srcs:
                out[src] += [(dst, pays[e]) for dst in self.topology.links[e].dsts]
        best: dict[int, int] = {}
        queue = [(0, rank) for rank in origins]
        while queue:
            price, rank = heapq.heappop(queue)
            if rank in best:
                continue
            best[rank] = price
            for other, more in out[rank]:
                if other not in best:
                    heapq.heappush(queue, (price + more, other))
        return best
