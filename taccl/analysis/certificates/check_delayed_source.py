"""Checks of delayed sources: the entries that can have ended by the time of the witness, link by link."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from fractions import Fraction

from taccl.analysis.certificates.check_facts import Facts
from taccl.analysis.certificates.check_gates import passages_of, strongest
from taccl.analysis.certificates.check_spread_tail import fastest, of_most, reached, spread_after
from taccl.analysis.certificates.witnesses import DelayedSource

#: Max missing entries whose time to spread is computed.
_MOST_SPREAD = 1000


def source_delayed(facts: Facts, witness: DelayedSource, ticks: Fraction) -> bool:
    """True if too many entries are missing at the time of the witness for all to end before `ticks`."""
    if not facts.spreads_alike or witness.since < 0:
        return False
    entries = _Entries(facts, witness)
    missing = sum(entries.wanted) - entries.entered(witness.fed, witness.since)
    if missing <= 0:
        return False
    less = math.ceil(ticks) - 1 - witness.since  # whole ticks left
    if less < 0 or entries.completed(witness.since, less) < missing:
        return True
    return missing <= _MOST_SPREAD and entries.spread(witness.sets, less, missing) < missing


class _Entries:
    """Chunks that must enter the sets of a witness, and the bottleneck resources (passages) on the way."""

    def __init__(self, facts: Facts, witness: DelayedSource) -> None:
        self.facts, self.num_sets = facts, len(witness.sets)
        self.set_of = {r: i for i, ranks in enumerate(witness.sets) for r in ranks}
        self.wanted = [0] * self.num_sets
        self.wanting: list[list[int]] = [[] for _ in range(self.num_sets)]  # wanting ranks per chunk
        release = self.release = self._read(witness)
        leaves, enters = ([self.set_of.get(r, -1) for r in ends] for ends in (facts.src, facts.dst))
        border = [e for e in release if enters[e] >= 0 and leaves[e] != enters[e]]
        targets = set(witness.targets)
        near = [e for e in release if facts.dst[e] in targets and leaves[e] == enters[e]]
        #: Passages into each set; out of early ranks, and out of entered sets; to each target.
        self.enter = passages_of(facts, border, enters, release)
        early = passages_of(facts, [e for e in border if leaves[e] < 0], leaves, release)
        onward = passages_of(facts, [e for e in border if leaves[e] >= 0], leaves, release)
        self.early, self.onward = early.get(-1, []), strongest(onward.values())
        self.inside = passages_of(facts, near, enters, release)
        direct = [e for e in border if facts.dst[e] in targets]
        self.direct = passages_of(facts, direct, enters, release)
        every = [*self.early, *self.onward]
        for by_set in (self.enter, self.inside, self.direct):
            every += [p for i, ways in by_set.items() if self.wanted[i] for p in ways]
        self.free = not all(p.hold for p in every)

    def _read(self, witness: DelayedSource) -> dict[int, int]:
        """Count the chunks that each target wants; return the earliest use of each link by one of them."""
        early = [*self.facts.outside(frozenset(self.set_of))]
        for c, _ in early:
            ends = set(self.facts.collective.chunks[c].destinations)
            for i, (ranks, target) in enumerate(zip(witness.sets, witness.targets, strict=True)):
                if target in ends:
                    self.wanted[i] += 1
                    self.wanting[i].append(len(ranks & ends))
        return self.facts.releases(early)

    # ---- what can have entered

    def entered(self, fed: int, since: int) -> int:
        """Max entries that can have ended before time `since`.

        Every passage lets in the sends that start at `fed` or later. Earlier sends add only to passages that
        they use, and add no more than all their chunks.
        """
        if self.free:
            return sum(self.wanted)
        total, gains = 0, []
        for i, ways in self.enter.items():
            if not self.wanted[i]:
                continue
            later = [p.between(fed, since - 1) for p in ways]
            total += min(self.wanted[i], sum(later))
            gains += [p.between(0, since - 1) - each for p, each in zip(ways, later, strict=True)]
        sends, chunks = self._fed_before(fed)
        return total + min(chunks, sum(heapq.nlargest(sends, gains)))

    def _fed_before(self, moment: int) -> tuple[int, int]:
        """Max sends into the sets that can have started before a given time, and max chunks in them."""
        first = heapq.merge(*(of_most(p, 1).ends(0) for p in self.early))
        when = reached(fastest([self.onward]), first, self.num_sets)  # each send reaches one more set
        ways = [(p, 0) for p in self.early]
        ways += [(p, since) for since in when if since < moment for p in self.onward]
        sends = sum(p.sends(moment - 1 - since) for p, since in ways)
        return sends, sum(p.begun(moment - 1 - since) for p, since in ways)

    # ---- what can come after

    def completed(self, since: int, ticks: int) -> int:
        """Max entries that can reach the targets within `ticks` after `since`, if none ended before."""
        if self.free:
            return sum(self.wanted)
        total, end = 0, since + ticks
        for i, wanted in enumerate(self.wanted):
            if not wanted:
                continue
            come = sum(p.between(since, end) for p in self.inside.get(i, ()))
            come += sum(min(p.over(ticks), p.between(0, end)) for p in self.direct.get(i, ()))
            total += min(wanted, come)
        return total

    def spread(self, sets: Sequence[frozenset[int]], ticks: int, most: int) -> int:
        """Max entries, up to `most`, that can have spread within `ticks`, if none has entered before."""
        total = 0
        for ranks, wanting in zip(sets, self.wanting, strict=True):
            for last in range(1, len(wanting) + 1):
                if total == most or spread_after(self.facts, ranks, self.release, wanting, last) > ticks:
                    break
                total += 1
        return total
