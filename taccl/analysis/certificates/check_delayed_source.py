"""Checks delayed sources: how much can have entered the sets by the moment of the witness, link by link."""

# m chunks in a send at most, n chunks in one, e a link, r a resource

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass
from itertools import count
from operator import add
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from fractions import Fraction

    from taccl.analysis.certificates.certificate import DelayedSource
    from taccl.analysis.certificates.check_facts import Facts

__all__ = ["Passage", "passages", "source_delayed"]


def source_delayed(facts: Facts, witness: DelayedSource, ticks: Fraction, *, in_network: bool) -> bool:
    """Whether too much is missing at the moment of the witness for all to be over before `ticks`."""
    if facts.multi or facts.collective.derivations or len(set(facts.units)) != 1:
        return False
    if (facts.sums and in_network) or witness.since < 0:
        return False
    entries = _Entries(facts, witness)
    missing = sum(entries.wanted) - entries.entered(witness.fed, witness.since)
    if missing <= 0:
        return False
    less = -(-ticks.numerator // ticks.denominator) - 1 - witness.since  # whole ticks that are left then
    return less < 0 or entries.completed(witness.since, less) < missing


@dataclass(frozen=True, slots=True)
class Passage:
    """A resource that sends over some links all hold: for ``alpha + n * beta`` at least, of n chunks.

    From a send's start to its hold it takes from `before` to `before_most`; from there to its end from
    ``after[n - 1]`` to `after_most`. Nothing starts before `release`.
    """

    alpha: int
    beta: int
    most: int
    release: int
    before: int
    before_most: int
    after: tuple[int, ...]
    after_most: int

    def one_after_another(self, ticks: int) -> int:
        """Chunks in sends that hold it for so many ticks in all."""
        full, rest = divmod(ticks, self.alpha + self.most * self.beta)
        part = max(0, rest - self.alpha) // self.beta if self.beta else 0
        return full * self.most + part

    def between(self, start: int, end: int) -> int:
        """Chunks in sends that neither start before one moment nor end after another."""
        first = max(start, self.release) + self.before
        found = [0]
        for n, after in enumerate(self.after, 1):
            if end - after >= first:  # when the hold of the last send begins
                found.append(n + self.one_after_another(end - after - first))
        return max(found)

    def begun(self, by: int) -> int:
        """Chunks in sends that start at a moment at the latest."""
        if by < self.release:
            return 0
        return self.most + self.one_after_another(by - self.release + self.before_most - self.before)

    def sends(self, by: int) -> int:
        """Sends that start at a moment at the latest."""
        if by < self.release:
            return 0
        return 1 + (by - self.release + self.before_most - self.before) // (self.alpha + self.beta)

    def ends(self, start: int) -> Iterator[int]:
        """When at the earliest one chunk after another has come, by sends from a moment on."""
        first = max(start, self.release) + self.before
        for chunks in count(1):
            yield first + min(
                self._held(chunks - n) + after for n, after in enumerate(self.after[:chunks], 1)
            )

    def ends_since(self, moment: int) -> Iterator[int]:
        """When at the earliest one chunk after another comes, by sends that end at a moment or later."""
        for chunks in count(1):
            later = self._held(max(0, chunks - self.most)) - self.after_most + min(self.after)
            yield moment + max(0, later)

    def _held(self, chunks: int) -> int:
        """For how long sends of so many chunks in all hold it."""
        full, part = divmod(chunks, self.most)
        return full * (self.alpha + self.most * self.beta) + (self.alpha + part * self.beta if part else 0)

    def over(self, ticks: int) -> int:
        """Chunks in sends that end at a moment, or up to so many ticks after it."""
        return self.most + self.one_after_another(ticks + self.after_most - min(self.after))


class _Entries:
    """The chunks that must enter the sets of a witness, and what each set can let in."""

    def __init__(self, facts: Facts, witness: DelayedSource) -> None:
        self.facts, self.num_sets = facts, len(witness.sets)
        self.set_of = {r: i for i, ranks in enumerate(witness.sets) for r in ranks}
        self.release: dict[int, int] = {}
        self.wanted = [0] * self.num_sets
        self._read(witness.targets)
        links = facts.topology.links
        groups: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for e in self.release:
            a, b = self.set_of.get(links[e].src), self.set_of.get(links[e].dst)
            if b is None:
                continue
            if a != b:
                groups["enter"][b].append(e)
                groups["early" if a is None else "onward"][-1 if a is None else a].append(e)
            if links[e].dst == witness.targets[b]:
                groups["inside" if a == b else "direct"][b].append(e)
        self.passages = {
            name: {i: passages(facts, some, self.release) for i, some in sorted(by_set.items())}
            for name, by_set in groups.items()
        }
        self.onward = self._strongest(self.passages.get("onward", {}).values())
        every = [
            p
            for by_set in self.passages.values()
            for i, each in by_set.items()
            for p in (each if i < 0 or self.wanted[i] else ())
        ]
        unheld = any(not facts.holds[e] for by_set in groups.values() for es in by_set.values() for e in es)
        self.free = unheld or any(p.alpha + p.beta <= 0 for p in [*every, *self.onward])
        self.soonest = min(
            (facts.alpha[e] + facts.units[0] * facts.beta[e] for es in groups["enter"].values() for e in es),
            default=0,
        )

    def _read(self, targets: Sequence[int]) -> None:
        """What each target wants, and when each link can carry some of it first."""
        facts, seen = self.facts, set()
        for c, data in enumerate(facts.collective.chunks):
            early = [r for r in data.origins if r not in self.set_of]
            if not early or (len(early) < len(data.origins) and not facts.sums):
                continue
            ends = set(data.destinations)
            for i, target in enumerate(targets):
                self.wanted[i] += target in ends
            every = facts.admitted(c, reducing=None if facts.sums else False)
            key = (tuple(early), id(every))
            if key not in seen:
                seen.add(key)
                there = facts.times(every, facts.units[c], dict.fromkeys(early, 0))
                for e in every:
                    time = there.get(facts.topology.links[e].src)
                    if time is not None:
                        self.release[e] = min(time, self.release.get(e, time))

    # ---- what can have entered

    def entered(self, fed: int, since: int) -> int:
        """The most entries that can have ended before a moment.

        Through each passage comes what starts at `fed` or later; what started before can only add to it where
        a send did, and no more than so many chunks in all.
        """
        if self.free:
            return sum(self.wanted)
        total, gains = 0, []
        for i, passages in self.passages.get("enter", {}).items():
            if not self.wanted[i]:
                continue
            later = [p.between(fed, since - 1) for p in passages]
            total += min(self.wanted[i], sum(later))
            gains += [p.between(0, since - 1) - each for p, each in zip(passages, later, strict=True)]
        sends, chunks = self._fed_before(fed)
        return total + min(chunks, sum(heapq.nlargest(sends, gains)))

    def _fed_before(self, moment: int) -> tuple[int, int]:
        """The most sends into the sets that can have started before a moment, and the most chunks in such."""
        early = self.passages.get("early", {}).get(-1, [])
        sends = sum(p.sends(moment - 1) for p in early)
        chunks = sum(p.begun(moment - 1) for p in early)
        starts = [start for p in early for start in self._starts(p, p.release, moment)]
        heapq.heapify(starts)
        for _ in range(self.num_sets):  # each send in order reaches one set more
            if not starts or starts[0] + self.soonest >= moment:
                break
            reached = heapq.heappop(starts) + self.soonest
            for p in self.onward:
                sends += p.sends(moment - 1 - reached)
                chunks += p.begun(moment - 1 - reached)
                for start in self._starts(p, reached, moment):
                    heapq.heappush(starts, start)
        return sends, chunks

    def _starts(self, passage: Passage, since: int, until: int) -> list[int]:
        """When at the earliest the sends of one chunk each start; as many as matter before a moment."""
        length, spread = passage.alpha + passage.beta, passage.before_most - passage.before
        found: list[int] = []
        while len(found) < self.num_sets:
            start = since + max(0, len(found) * length - spread)
            if start + self.soonest >= until:
                break
            found.append(start)
        return found

    @staticmethod
    def _strongest(sets: Iterable[list[Passage]]) -> list[Passage]:
        """Passages of a set that outdoes each of some: the best first ones of all, and so on."""
        places: dict[int, list[Passage]] = defaultdict(list)
        for passages in sets:
            for place, p in enumerate(sorted(passages, key=lambda p: (p.alpha + p.beta, p.beta))):
                places[place].append(p)
        return [
            Passage(
                alpha=min(p.alpha for p in some),
                beta=min(p.beta for p in some),
                most=max(p.most for p in some),
                release=0,
                before=0,
                before_most=max(p.before_most - p.before for p in some),
                after=(0,),
                after_most=0,
            )
            for _, some in sorted(places.items())
        ]

    # ---- what can come after

    def completed(self, since: int, ticks: int) -> int:
        """The most that can come to the targets in so many ticks after a moment, of what none had before."""
        if self.free:
            return sum(self.wanted)
        total, end = 0, since + ticks
        for i, wanted in enumerate(self.wanted):
            if not wanted:
                continue
            inside, direct = (self.passages.get(name, {}).get(i, ()) for name in ("inside", "direct"))
            come = sum(p.between(since, end) for p in inside)
            come += sum(min(p.over(ticks), p.between(0, end)) for p in direct)
            total += min(wanted, come)
        return total


def passages(facts: Facts, links: Iterable[int], release: Mapping[int, int]) -> list[Passage]:
    """Resources that share links out: each counts at the one that the most of them hold for longest.

    `release` says when each link can be used first.
    """
    most, size = facts.clauses.max_merge, facts.units[0]
    merging = facts.clauses.merging if most > 1 else frozenset()
    users: dict[int, list[int]] = defaultdict(list)
    for e in links:
        for r, (alpha, beta, _) in facts.holds[e].items():
            users[r].append((alpha if e in merging else most * alpha) + most * size * beta)
    weight = {r: (float(len(mine)) * min(mine), -r) for r, mine in users.items()}
    chosen: dict[int, list[int]] = defaultdict(list)
    for e in links:
        if facts.holds[e]:
            chosen[max(facts.holds[e], key=weight.__getitem__)].append(e)
    found = []
    for r, mine in sorted(chosen.items()):
        in_send = {e: most if e in merging else 1 for e in mine}
        spans = [
            (_span(facts, e, r, n), n) for e in mine for n in range(1, max(in_send.values()) + 1)
            if n <= in_send[e]
        ]  # fmt: skip
        alphas = [facts.holds[e][r][0] for e in mine]
        betas = [size * facts.holds[e][r][1] for e in mine]
        merged = max(in_send.values()) > 1
        before = [span[0] for span, _ in spans]
        after = [span[1] for span, _ in spans]
        found.append(
            Passage(
                alpha=min(alphas) if merged else 0,
                beta=min(betas) if merged else min(map(add, alphas, betas)),
                most=max(in_send.values()),
                release=min(release[e] for e in mine),
                before=min(before),
                before_most=max(before),
                after=tuple(
                    min(span[1] for span, k in spans if k == n) for n in range(1, max(in_send.values()) + 1)
                ),
                after_most=max(after),
            )
        )
    return found


def _span(facts: Facts, e: int, r: int, n: int) -> tuple[int, int]:
    """Ticks from the start of a send of n chunks to its hold, and from there to its end."""
    units = n * facts.units[0]
    alpha, beta, receives = facts.holds[e][r]
    took = facts.alpha[e] + units * facts.beta[e]
    before = took - alpha - units * beta if receives else 0
    return before, took - before
