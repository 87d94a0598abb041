"""Violations found so far, and their messages."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

from taccl.analysis.verification.columns import Columns
from taccl.analysis.verification.violation import KINDS, Violation

#: Max violations of each kind that are listed.
MOST_LISTED = 1000


class Findings:
    """Violations of one schedule, at most `MOST_LISTED` of each kind."""

    def __init__(self, columns: Columns) -> None:
        self.violations: list[Violation] = []
        self._columns = columns
        self._counts: Counter[str] = Counter()
        #: False if there are more violations of a kind than are listed.
        self.is_complete = True

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
        self._counts[kind] += 1
        if self._counts[kind] > MOST_LISTED:
            self.is_complete = False
            return
        columns, places = self._columns, []
        link, start_us, end_us = None, None, None
        if i is not None:
            chunk, link = int(columns.chunk[i]), int(columns.link[i])
            if rank is None and 0 <= link < len(columns.topology.links):
                rank = columns.topology.links[link].src
        if rank is not None:
            places.append(f"rank {rank}")
        places.append(f"chunk {chunk}")
        if i is not None and link is not None:
            places += [self.link_text(link), self.span_text(i)]
            start_us, end_us = (*(float(Fraction(t, columns.ticks.per_us)) for t in self._span(i)), None)[:2]
        origin = columns.clauses.where.get(clause) if clause else None
        message = f"{', '.join(places)}: {text}" + (f" ({origin})" if origin else "")
        self.violations.append(Violation(kind, message, rank, chunk, link, start_us, end_us, clause))

    def span_text(self, i: int) -> str:
        """Interval of a transfer, as text."""
        return " to ".join(map(self._columns.ticks.us, self._span(i))) + " us"

    def link_text(self, link: int) -> str:
        """Index and ends of a link, as text."""
        links = self._columns.topology.links
        return f"link {link} ({links[link]})" if 0 <= link < len(links) else f"link {link}"

    def _span(self, i: int) -> list[int]:
        """Start and end of a transfer in ticks; without an end if chunk or link do not exist."""
        columns = self._columns
        start, chunk, link = int(columns.start[i]), int(columns.chunk[i]), int(columns.link[i])
        if columns.end is not None:
            return [start, int(columns.end[i])]
        if 0 <= chunk < columns.collective.num_chunks and 0 <= link < len(columns.topology.links):
            return [start, start + int(columns.ticks.latency(link, columns.ticks.chunk_units[chunk]))]
        return [start]
