"""Results of the verifier: kinds of violation, violations found so far, and the verdict on a schedule."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

from taccl._internal.names import listed, shown
from taccl._internal.units import format_count, format_us
from taccl.analysis.verification.columns import Columns
from taccl.errors import VerificationError
from taccl.problem.clauses import CLAUSES

#: Every kind of violation that `verify` reports.
KINDS = (
    "index",  # a chunk or link that does not exist
    "interval",  # a start before time 0, or an end that is not after its start
    "times",  # end - start differs from the cost model
    "merge",  # transfers of one group that cannot be one send
    "presence",  # the source does not hold the chunk when its send starts
    "contention",  # two sends hold one resource at once
    "postcondition",  # a destination ends without the chunk, or without its whole sum
    "double-count",  # a contribution is reduced a second time
    "lost-contribution",  # a copy wipes out contributions that it does not bring
    "race",  # simultaneous arrivals whose order decides what the buffer holds
    "release",  # a chunk is sent, or added to, at a rank before its release date there
    "due",  # a chunk arrives after its due date
    "update",  # a worker keeps or receives a sum that its chunk's server has not updated
    "reduce",  # a transfer reduced where only a copy is allowed (as in allgather), or the reverse
    *dict.fromkeys(each.violation for each in CLAUSES.values() if each.violation not in ("", "merge")),
    "symmetry",  # implicit schedules only: a permutation of ranks that the fabric does not have
)


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule; fields that do not apply are None.

    - `kind`: One of `KINDS`.
    - `rank`: The rank at fault: the sender, or the receiver for faults on arrival or at the end.
    - `link`: Index of the link in the topology.
    - `start_us`, `end_us`: The interval of the send.
    - `clause`: The field of `Clauses` that is broken.
    """

    kind: str
    message: str
    rank: int | None = None
    chunk: int | None = None
    link: int | None = None
    start_us: float | None = None
    end_us: float | None = None
    clause: str | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {shown(self.message, 1000)}"


@dataclass(frozen=True, slots=True, repr=False)
class Verification:
    """Result of `verify`: the violations, and some figures of the schedule.

    Parameters
    ----------
    finish_us : float
        Last arrival, in microseconds.
    num_sends : int
        Number of sends; a merged send counts once.
    num_redundant : int
        Number of arrivals of data that the rank already holds, which is allowed.
    is_complete : bool
        False if there are more violations of a kind than are listed.
    """

    violations: tuple[Violation, ...]
    finish_us: float
    num_transfers: int
    num_sends: int
    num_redundant: int
    is_complete: bool = True

    @property
    def ok(self) -> bool:
        """True if the schedule breaks no rule."""
        return not self.violations

    def counted(self, noun: str) -> str:
        """Number of violations as text, such as "2 rules" or "more than 1000 rules"."""
        return ("" if self.is_complete else "more than ") + format_count(len(self.violations), noun)

    def raise_if_failed(self) -> None:
        """Raise an error if the schedule breaks a rule.

        Raises
        ------
        VerificationError
            If there are violations; the message has their number and the first ten.
        """
        if not self.ok:
            raise VerificationError(self._text(), violations=self.violations)

    def _text(self) -> str:
        kinds = Counter(each.kind for each in self.violations)
        tally = ", ".join(f"{kind} {kinds[kind]}" for kind in KINDS if kinds[kind])
        head = f"the schedule breaks {self.counted('rule')} ({tally}):"
        return "\n".join([head, *listed(self.violations)])

    def __repr__(self) -> str:
        verdict = "ok" if self.ok else self._text()
        extra = f", {format_count(self.num_redundant, 'redundant arrival')}" if self.num_redundant else ""
        return (
            f"Verification({format_count(self.num_transfers, 'transfer')} in "
            f"{format_count(self.num_sends, 'send')}, finish {format_us(self.finish_us)}{extra}: {verdict})"
        )


#: Max violations of each kind that are listed.
MOST_LISTED = 1000


class Findings:
    """Violations of a schedule found so far, at most `MOST_LISTED` of each kind."""

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
        """Record a violation by transfer `i`, or (if `i` is None) in the final data of `chunk` at `rank`."""
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
        """Text of the start and end of a transfer."""
        return " to ".join(map(self._columns.ticks.us, self._span(i))) + " us"

    def link_text(self, link: int) -> str:
        """Text of a link: its index and its ends."""
        links = self._columns.topology.links
        return f"link {link} ({links[link]})" if 0 <= link < len(links) else f"link {link}"

    def _span(self, i: int) -> list[int]:
        """[start, end] of a transfer in ticks; [start] if its chunk or link does not exist."""
        columns = self._columns
        start, chunk, link = int(columns.start[i]), int(columns.chunk[i]), int(columns.link[i])
        if columns.end is not None:
            return [start, int(columns.end[i])]
        if 0 <= chunk < columns.collective.num_chunks and 0 <= link < len(columns.topology.links):
            return [start, start + int(columns.ticks.latency(link, columns.ticks.chunk_units[chunk]))]
        return [start]
