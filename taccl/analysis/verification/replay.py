"""Replay of a schedule for verification: its columns, recomputed exact times, and violations so far."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from itertools import chain

from taccl.analysis.verification.violation import KINDS, Violation
from taccl.schedule.schedule import Schedule
from taccl.topology.topology import Hold, Link

#: Finest grid, in ticks per microsecond. Costs that need a finer one may have been rounded up to this.
_FINEST_TICKS_PER_US = 10**6
_BYTES_PER_MB = 10**6


class Replay:
    """A schedule's columns as lists, and the violations found so far; times are in ticks.

    - `usable` (list of int): Transfers that can be replayed: chunk and link exist, and the end is after the
      start.
    - `sends` (list of list of int): Transfers that travel together, for each group whose transfers agree on
      link, start and end.
    - `reducing` (list of bool): True if a transfer brings a chunk towards its root rather than spreads it;
      set by `check_sums`.
    - `starts_at` (list of frozenset of int): Ranks from which every chunk spreads: its root if it is reduced
      first, otherwise its origins and the ranks that derive it.
    - `release` (dict of (chunk, rank) to ticks): Release dates of initial data, if later than 0.
    - `since` (dict of (rank, chunk) to ticks): Time from which a rank holds a copied chunk; set by
      `check_copies`.
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
        #: Contributions that each transfer names, as bit masks; None if ranks send everything they hold.
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
        #: Ranks that contribute to every chunk, as bit masks.
        self.everyone = [sum(1 << rank for rank in data.origins) for data in self.collective.chunks]
        self._rounds_up = self.ticks_per_us == _FINEST_TICKS_PER_US < self._exact_ticks_per_us()
        #: {(id of alpha, id of beta, size): ticks}; most links share a few cost objects.
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
        """Add a violation by transfer `i`, or at a rank and chunk at the end."""
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
        """Duration in ticks of a send of that size over a link."""
        ends = self.topology.links[link]
        return self.ticks(ends.alpha_us, ends.beta_us_per_mb, num_bytes)

    def ticks(self, alpha_us: Fraction, beta_us_per_mb: Fraction, num_bytes: int) -> int | Fraction:
        """``alpha + bytes * beta`` in ticks: exact, unless the costs need a grid finer than the finest.

        In that case, alpha is rounded up, and so is beta for one unit: the greatest common divisor of the
        chunk sizes. Pass the topology's own cost objects, as results are cached by object identity.
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
        """Size of a send, in bytes."""
        if len(members) == 1:
            return self.chunk_bytes[self.chunk[members[0]]]
        return sum(self.chunk_bytes[self.chunk[i]] for i in members)

    def us(self, ticks: int | Fraction) -> str:
        """Ticks as microseconds, to the picosecond."""
        return f"{float(Fraction(ticks) / self.ticks_per_us):.6f}".rstrip("0").rstrip(".")

    def span(self, i: int) -> str:
        """Interval of a transfer, as text."""
        return f"{self.us(self.start[i])} to {self.us(self.end[i])} us"

    def link_text(self, link: int) -> str:
        """Index and ends of a link, as text."""
        links = self.topology.links
        return f"link {link} ({links[link]})" if 0 <= link < len(links) else f"link {link}"

    def _exact_ticks_per_us(self) -> int:
        """Least number of ticks per microsecond that makes all costs whole."""
        unit = Fraction(self.unit_bytes, _BYTES_PER_MB)
        both: Iterable[Link | Hold] = chain(self.topology.links, self.topology.holds)
        # Hashing fractions is slow, and most links share the same cost objects.
        costs = {(id(each.alpha_us), id(each.beta_us_per_mb)): each for each in both}
        return math.lcm(
            *(
                cost.denominator
                for each in costs.values()
                for cost in (each.alpha_us, each.beta_us_per_mb * unit)
            )
        )

    def _starts(self) -> list[frozenset[int]]:
        """Ranks from which each chunk spreads: its root if reduced first, or origins and deriving ranks."""
        starts = [
            {c.root} if self.collective.combining and c.root is not None else set(c.origins)
            for c in self.collective.chunks
        ]
        for each in self.collective.derivations:
            starts[each.chunk].add(each.rank)
        return [frozenset(ranks) for ranks in starts]
