"""Columns of a schedule as the verifier reads them.

A column that a schedule does not keep is derived here. `end` follows from the start and the exact costs.
`group` makes each transfer a send of its own, `reduce` is False, and a transfer carries all contributions
that its sender holds. The verifier computes its own costs in ticks from the topology's exact fractions
(`ExactTicks`).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arrays import ranges
from taccl.errors import InputError
from taccl.problem.chunks import RankSets
from taccl.problem.costs import cost_columns, link_ends, wide_links
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule

#: Transfers per block, so that the columns of a block fit into the processor's cache.
BLOCK = 1 << 16
#: `SOME`: min transfers for which sorts of whole columns replace interpreted loops, where they can.
#: `MANY`: min transfers of a schedule for which compiled loops are used, if numba is loaded.
#: `_TIMES_UNLOADED`: factor on `MANY` while numba is not loaded, which takes 0.2 to 0.3 s of CPU.
#: Sorts judge sums along trees almost as quickly as compiled loops, and copies in three times the time.
SOME, MANY, _TIMES_UNLOADED = 1 << 8, 1 << 15, 32
#: Ticks per microsecond of problems with rounded costs: their exact costs would need finer ticks.
_ROUNDED_TICKS_PER_US = (10**9, 10**6)
_BYTES_PER_MB = 10**6
#: Range of starts in ticks, `_LEAST` to below `_MOST`: a start plus a duration fits into 64 bits.
_LEAST, _MOST = -(2**62), 2**62


class Block(NamedTuple):
    """Consecutive transfers in order of start; `first` is the index of the first one.

    - `chunk`, `link`, `start`, `end`, (num_transfers,) int64: Times in ticks.
    - `units`, (num_transfers,) int64: Size of the send in units of `ExactTicks`, at its first transfer. It is
      -1 at the other transfers of a merged send, and in groups that are not valid sends.
    """

    first: int
    chunk: NDArray[np.int64]
    link: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    units: NDArray[np.int64]

    @property
    def rows(self) -> slice:
        """Indices of the transfers."""
        return slice(self.first, self.first + len(self.chunk))


class LinkEnds(NamedTuple):
    """Ranks at the ends of links as flat arrays, all int64.

    Link e has the sources ``rank[first[e]:middle[e]]`` and the destinations ``rank[middle[e]:first[e + 1]]``.
    """

    first: NDArray[np.int64]
    middle: NDArray[np.int64]
    rank: NDArray[np.int64]

    @classmethod
    def of(cls, problem: Problem) -> LinkEnds:
        """Ends of a topology's links."""
        links = problem.topology.links
        src, dst = link_ends(problem.topology)
        first = np.arange(0, 2 * len(links) + 2, 2)
        wide = wide_links(problem.topology)
        if not wide:
            return cls(first, first[:-1] + 1, np.stack((src, dst), axis=1).ravel())
        flat = list(chain.from_iterable((*link.srcs, *link.dsts) for link in links))
        counts = np.array([(len(link.srcs), len(link.dsts)) for link in links], np.int64)
        first = np.concatenate(([0], np.cumsum(counts.sum(axis=1))))
        return cls(first, first[:-1] + counts[:, 0], np.array(flat, np.int64))

    def sources(self, link: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(send, rank) columns, a row for every source rank of each send; send k uses ``link[k]``."""
        return self._of(self.first[link], self.middle[link])

    def destinations(self, link: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(send, rank) columns, a row for every destination rank of each send; send k uses ``link[k]``."""
        return self._of(self.middle[link], self.first[link + 1])

    def _of(
        self, low: NDArray[np.int64], high: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if (high - low == 1).all():
            return np.arange(len(low)), self.rank[low]
        send, place = ranges(low, high)
        return send, self.rank[place]


class ExactTicks:
    """Costs in ticks, computed from exact fractions; all arrays are int64.

    A send of u units over link e lasts ``(link_alpha[e] + u * link_beta[e]) / divisor`` ticks. `divisor` is 1
    if all costs are whole ticks. It is also 1 if the ticks are femtoseconds or picoseconds, and costs need
    finer ones. Alpha and the beta of one unit are then rounded up; a unit is the greatest common divisor of
    chunk sizes.
    """

    def __init__(self, problem: Problem) -> None:
        sizes = set(problem.chunk_bytes)
        self.per_us = int(problem.costs.ticks_per_us)
        self.unit_bytes = math.gcd(*sizes) if sizes else 1
        self.chunk_units = np.array(problem.chunk_bytes, dtype=np.int64) // self.unit_bytes
        unit = Fraction(self.unit_bytes, _BYTES_PER_MB)
        found = cost_columns(problem.topology)
        columns = [
            [value * scale for value in values]
            for (values, _), scale in zip(found, (Fraction(1), unit) * 2, strict=True)
        ]
        finest = math.lcm(*(value.denominator for values in columns for value in values))
        if self.per_us in _ROUNDED_TICKS_PER_US and self.per_us < finest:
            columns = [[Fraction(math.ceil(v * self.per_us)) for v in values] for values in columns]
        else:
            columns = [[value * self.per_us for value in values] for values in columns]
        self.divisor = math.lcm(*(value.denominator for values in columns for value in values))
        self.link_alpha, self.link_beta, self.hold_alpha, self.hold_beta = (
            np.array([int(value * self.divisor) for value in values], np.int64)[index]
            for values, (_, index) in zip(columns, found, strict=True)
        )

    def latency(self, link: Any, units: Any) -> Any:
        """Duration of sends in ticks, rounded up to whole ticks."""
        ticks = self.link_alpha[link] + units * self.link_beta[link]
        return ticks if self.divisor == 1 else -(-ticks // self.divisor)

    def exact_latency(self, link: int, units: int) -> Fraction:
        """Exact duration of a send in ticks."""
        return Fraction(int(self.link_alpha[link]) + units * int(self.link_beta[link]), self.divisor)

    def us(self, ticks: int | Fraction) -> str:
        """Ticks as text in microseconds, to the picosecond."""
        return f"{float(Fraction(ticks) / self.per_us):.6f}".rstrip("0").rstrip(".")


class Columns:
    """Columns of a schedule's transfers. The verifier removes invalid transfers and sorts the rest by start.

    - `chunk`, `link`, `start`: As in the schedule, with its narrow integer types.
    - `end`, `group`: As in the schedule; None if it does not keep them.
    - `carried`, (num_transfers,) int64: Index in `sums` of the contributions that each transfer names.
      None if ranks send all that they hold.
    - `sums`: Distinct sets of contributions that transfers name, as bit masks.
    - `units`: As in `Block`; None if every transfer is a send of its own.
    """

    def __init__(self, schedule: Schedule) -> None:
        problem = schedule.problem
        self.problem, self.topology, self.collective = problem, problem.topology, problem.collective
        self.clauses, self.ticks, self.ends = problem.clauses, ExactTicks(problem), LinkEnds.of(problem)
        self.chunk, self.link, self.start, self.end, self.group, reduce = schedule.kept
        many = MANY * (1 if "numba" in sys.modules else _TIMES_UNLOADED)
        #: True if the schedule has enough transfers for compiled loops; sorts judge named sums as quickly.
        self.is_large = schedule.carries is None and len(self) >= many
        #: True if it has enough of them for sorts of whole columns in place of interpreted loops.
        self.is_sorted = not self.is_large and len(self) >= SOME
        #: (num_links,) Duration in ticks of a chunk over each link; None if chunks have several sizes.
        self._of_link: NDArray[np.int64] | None = None
        if len(set(problem.chunk_bytes)) == 1:
            units = self.ticks.chunk_units[0]
            self._of_link = self.ticks.latency(np.arange(len(self.topology.links)), units)
        self.units: NDArray[np.int64] | None = None
        self.carried: NDArray[np.int64] | None = None
        self.sums: list[int] = []
        self._reduces = reduce if isinstance(reduce, np.ndarray) else None
        self._num_reducing = int(reduce.sum()) if isinstance(reduce, np.ndarray) else reduce or 0
        if schedule.carries is not None:
            index: dict[int, int] = {}
            of_sum = [index.setdefault(sum(1 << r for r in ranks), len(index)) for ranks in schedule.sums]
            self.sums, self.carried = list(index), np.array(of_sum, np.int64)[schedule.carries]
        if len(self.start) and not _LEAST <= int(self.start.min()) <= int(self.start.max()) < _MOST:
            raise InputError(
                f"found starts {self.start.min()}-{self.start.max()}; expected times of 62 bits in ticks",
                where="schedule.start",
            )

    def __len__(self) -> int:
        return len(self.chunk)

    @property
    def reduces_any(self) -> bool:
        """True if some transfer is added to what its destination holds."""
        return self._num_reducing > 0

    def adds(self, rows: slice | NDArray[Any]) -> NDArray[np.bool_]:
        """(num_rows,) True for each of the given transfers that is added to what its destination holds."""
        if self._reduces is not None:
            return np.asarray(self._reduces[rows], bool)
        at = np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else rows
        return np.asarray(at < self._num_reducing, bool)

    def read(self, rows: slice | NDArray[Any]) -> tuple[NDArray[np.int64], ...]:
        """(chunk, link, start, end) of the given transfers, as int64."""
        chunk, link, start = (column[rows].astype(np.int64) for column in (self.chunk, self.link, self.start))
        if self.end is not None:
            return chunk, link, start, self.end[rows].astype(np.int64)
        return chunk, link, start, start + self.durations(chunk, link)

    def durations(self, chunk: NDArray[np.int64], link: NDArray[np.int64]) -> NDArray[np.int64]:
        """Duration in ticks of each transfer as a send of its own."""
        if self._of_link is not None:
            return self._of_link[link]
        return np.asarray(self.ticks.latency(link, self.ticks.chunk_units[chunk]))

    def take(self, rows: NDArray[np.int64]) -> None:
        """Keep only the given transfers, in the given order."""
        self._reduces = self.adds(rows) if self.reduces_any else None
        self._num_reducing = 0 if self._reduces is None else int(self._reduces.sum())
        self.chunk, self.link, self.start = self.chunk[rows], self.link[rows], self.start[rows]
        self.end = None if self.end is None else self.end[rows]
        self.group = None if self.group is None else self.group[rows]
        self.carried = None if self.carried is None else self.carried[rows]

    def sort(self) -> None:
        """Sort the transfers by start, if they are not sorted yet."""
        if (self.start[1:] < self.start[:-1]).any():
            self.take(np.argsort(self.start, kind="stable"))

    def blocks(self) -> Iterator[Block]:
        """Yield all transfers in blocks; in one block if the schedule states ends, as these may be wrong."""
        size = BLOCK if self.end is None else max(1, len(self))
        for first in range(0, len(self), size):
            rows = slice(first, first + size)
            chunk, link, start, end = self.read(rows)
            units = self.ticks.chunk_units[chunk] if self.units is None else self.units[rows]
            yield Block(first, chunk, link, start, end, units)

    def start_sets(self) -> RankSets:
        """Ranks from which each chunk spreads: the root of a sum; else origins and ranks that derive it."""
        collective = self.collective
        starts = [
            data.origins if data.root is None or not collective.combining else (data.root,)
            for data in collective.chunks
        ]
        for each in collective.derivations:
            starts[each.chunk] = tuple({*starts[each.chunk], each.rank})
        return RankSets.of(starts)


def roots_of(problem: Problem) -> NDArray[np.int64]:
    """(num_chunks,) Root of every chunk that is reduced; -1 for other chunks."""
    collective = problem.collective
    if not collective.combining:
        return np.full(collective.num_chunks, -1)
    return np.array([-1 if data.root is None else data.root for data in collective.chunks], np.int64)


def flat_sets(sets: RankSets) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(ranks, first, end), all int64: the set of chunk c is ``ranks[first[c]:end[c]]``."""
    offsets = np.cumsum([0, *map(len, sets.sets)])
    return pairs(sets.sets)[1], offsets[sets.of_chunk], offsets[sets.of_chunk + 1]


def pairs(
    ranks_of_chunk: Sequence[tuple[int, ...]], *, first: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(chunk, rank) columns of all pairs, given the ranks of each chunk; chunks are numbered from `first`."""
    counts = np.fromiter(map(len, ranks_of_chunk), np.int64, len(ranks_of_chunk))
    rank = np.fromiter(chain.from_iterable(ranks_of_chunk), np.int64, int(counts.sum()))
    return np.repeat(np.arange(first, first + len(counts)), counts), rank
