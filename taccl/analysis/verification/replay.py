"""A schedule under judgement: its columns, exact times worked out anew, and the violations found so far."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from itertools import chain

from taccl.analysis.verification.violation import KINDS, Violation
from taccl.schedule.schedule import Schedule
from taccl.topology.topology import Hold, Link

#: Costs that need more ticks a microsecond than this may have been rounded up to one of so many.
_FINEST_TICKS_PER_US = 10**6
_BYTES_PER_MB = 10**6


class Replay:
    """A schedule's columns as lists, and the violations found so far; times are in ticks.

    - `usable` (list of int): Transfers that can be replayed: chunk and link exist, and the end is after the
      start.
    - `sends` (list of list of int): Transfers that travel together, of each group whose transfers agree on
      link, start and end.
    - `reducing` (list of bool): Whether a transfer brings a chunk towards its root, rather than spreads it;
      `check_sums` fills it in.
    - `starts_at` (list of frozenset of int): Where every chunk starts to spread: its root where it is reduced
      first, or where it is made.
    - `release` (dict of (chunk, rank) to ticks): When a rank first has what it starts with, if not from 0 on.
    - `since` (dict of (rank, chunk) to ticks): When a rank first has a chunk that is copied; `check_copies`
      fills it in.
    """

    def __init__(self, schedule: Schedule) -> None:
        problem = schedule.problem
        self.topology, self.collective, self.clauses = problem.topology, problem.collective, problem.clauses
        self.chunk_bytes = problem.chunk_bytes
        self.due_us = problem.due_us
        self.unit_bytes = math.gcd(*problem.chunk_bytes) if problem.chunk_bytes else 1
        self.ticks_per_us = int(problem.costs.ticks_per_us)
        self.chunk: list[int] = schedule.chunk.tolist()
        self.link: list[int] = schedule.link.tolist()
        self.start: list[int] = schedule.start.tolist()
        self.end: list[int] = schedule.end.tolist()
        self.group: list[int] = schedule.group.tolist()
        self.reduce: list[bool] = schedule.reduce.tolist()
        #: The contributions that each transfer names, as bits; None where ranks send what they hold.
        self.carried: list[int] | None = None
        if schedule.carries is not None:
            bits = [sum(1 << rank for rank in ranks) for ranks in schedule.sums]
            self.carried = [bits[number] for number in schedule.carries.tolist()]
        self.reducing = [False] * len(self.chunk)
        self.release = {(chunk, rank): us * self.ticks_per_us for chunk, rank, us in problem.release_us}
        self.since: dict[tuple[int, int], int | Fraction] = {}
        self.violations: list[Violation] = []
        self.usable: list[int] = []
        self.sends: list[list[int]] = []
        self.starts_at = self._starts()
        #: The ranks that contribute to every chunk, as bits.
        self.everyone = [sum(1 << rank for rank in data.origins) for data in self.collective.chunks]
        self._rounds_up = self.ticks_per_us == _FINEST_TICKS_PER_US < self._exact_ticks_per_us()
        #: {the very objects of alpha and beta, and a size: ticks}, as most links share few of them.
        self._ticks: dict[tuple[int, int, int], int | Fraction] = {}

    def report(
        self,
        kind: str,
        text: str,
        i: int | None = None,
        *,
        rank: int | None = None,
        chunk: int | None = None,
        clause: str | None = None,
    ) -> None:
        """Add a violation of transfer `i`, or of a rank and chunk at the end."""
        assert kind in KINDS
        places = []
        link = start_us = end_us = None
        if i is not None:
            chunk, link = self.chunk[i], self.link[i]
            start_us, end_us = (float(Fraction(t[i], self.ticks_per_us)) for t in (self.start, self.end))
            if rank is None and 0 <= link < len(self.topology.links):
                rank = self.topology.links[link].src
        if rank is not None:
            places.append(f"rank {rank}")
        places.append(f"chunk {chunk}")
        if i is not None:
            places += [self.link_text(self.link[i]), self.span(i)]
        origin = self.clauses.where.get(clause) if clause else None
        message = f"{', '.join(places)}: {text}" + (f" ({origin})" if origin else "")
        self.violations.append(Violation(kind, message, rank, chunk, link, start_us, end_us, clause))

    def latency(self, link: int, num_bytes: int) -> int | Fraction:
        """Ticks that a send of that size takes over a link."""
        ends = self.topology.links[link]
        return self.ticks(ends.alpha_us, ends.beta_us_per_mb, num_bytes)

    def ticks(self, alpha_us: Fraction, beta_us_per_mb: Fraction, num_bytes: int) -> int | Fraction:
        """``alpha + bytes * beta`` in ticks: exact, unless costs need a finer grid than the finest.

        Then alpha, and beta for the greatest size that all chunks are multiples of, each round up. Costs are
        those of the topology, which keeps them.
        """
        key = id(alpha_us), id(beta_us_per_mb), num_bytes
        found = self._ticks.get(key)
        if found is None:
            found = self._ticks[key] = self._exact_ticks(alpha_us, beta_us_per_mb, num_bytes)
        return found

    def _exact_ticks(self, alpha_us: Fraction, beta_us_per_mb: Fraction, num_bytes: int) -> int | Fraction:
        beta_us = beta_us_per_mb * Fraction(self.unit_bytes, _BYTES_PER_MB)
        units = num_bytes // self.unit_bytes
        if self._rounds_up:
            return math.ceil(alpha_us * self.ticks_per_us) + units * math.ceil(beta_us * self.ticks_per_us)
        return (alpha_us + units * beta_us) * self.ticks_per_us

    def bytes_of(self, members: list[int]) -> int:
        """The size of a send."""
        if len(members) == 1:
            return self.chunk_bytes[self.chunk[members[0]]]
        return sum(self.chunk_bytes[self.chunk[i]] for i in members)

    def us(self, ticks: int | Fraction) -> str:
        """Ticks as microseconds, to the picosecond."""
        return f"{float(Fraction(ticks) / self.ticks_per_us):.6f}".rstrip("0").rstrip(".")

    def span(self, i: int) -> str:
        """The interval of a transfer."""
        return f"{self.us(self.start[i])} to {self.us(self.end[i])} us"

    def link_text(self, link: int) -> str:
        """A link by index and ends."""
        links = self.topology.links
        return f"link {link} ({links[link]})" if 0 <= link < len(links) else f"link {link}"

    def _exact_ticks_per_us(self) -> int:
        """The least number of ticks a microsecond that makes all costs whole."""
        unit = Fraction(self.unit_bytes, _BYTES_PER_MB)
        both: Iterable[Link | Hold] = chain(self.topology.links, self.topology.holds)
        # Fractions take long to hash, and most links share the very objects of their costs.
        costs = {(id(each.alpha_us), id(each.beta_us_per_mb)): each for each in both}
        return math.lcm(
            *(
                cost.denominator
                for each in costs.values()
                for cost in (each.alpha_us, each.beta_us_per_mb * unit)
            )
        )

    def _starts(self) -> list[frozenset[int]]:
        """Where every chunk starts to spread: its root where it is reduced first, or where it is made."""
        starts = [
            {c.root} if self.collective.combining and c.root is not None else set(c.origins)
            for c in self.collective.chunks
        ]
        for each in self.collective.derivations:
            starts[each.chunk].add(each.rank)
        return [frozenset(ranks) for ranks in starts]
