"""Schedules: columns of transfers, each of one chunk over one link from a start to an end."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taccl._internal.arguments import Natural, checked
from taccl._internal.arrays import distinct, lexsort, numbered
from taccl._internal.names import first_of, numbers_table, shown
from taccl._internal.units import format_count, format_size, format_us
from taccl.errors import InputError
from taccl.problem.problem import Problem
from taccl.schedule.columns import (
    Column,
    Kept,
    adds,
    check_carries,
    check_column,
    check_lengths,
    ends,
    full_column,
    merged_ends,
    narrow,
)
from taccl.schedule.contributions import Carried
from taccl.schedule.figures import Figures

if TYPE_CHECKING:
    import pandas as pd

_BLOCK = 1 << 18
#: Rows per block in `bare_digest`; another number would change the digests of all large schedules.
_DIGEST_BLOCK = 1 << 20
#: Transfers per block of contributions in `Schedule.digest` (about 1 MB of text).
_DIGEST_ROWS = 1 << 12
#: Max transfers of a schedule whose digest always covers all columns (see `Schedule.is_bare`).
MANY = 300_000
#: Approximate peak memory in bytes per transfer for work on full columns.
_LISTED_BYTES = 150


#: Ranks whose sum each transfer carries, one entry per transfer.
Contributions: TypeAlias = Sequence[Collection[int]]


class Transfer(NamedTuple):
    """Transfer of one chunk over one link; transfers with the same `group` are one merged send.

    `contributions` are the ranks whose sum is sent; None if the schedule does not name them.
    """

    chunk: int
    link: int
    start_ticks: int
    end_ticks: int
    group: int
    reduce: bool
    contributions: tuple[int, ...] | None = None


@checked
@dataclass(frozen=True, eq=False)
class Schedule(Figures):
    """All transfers of a problem in order of start; see `make_schedule`.

    Columns may be given in any whole-number type that holds their values, and are stored in it; they are read
    in the types below. A column that is left out takes no memory, and is derived when it is read.

    Parameters
    ----------
    problem : Problem
        The problem that the schedule solves.
    chunk, link : (num_transfers,) int32
        Indices of chunk and link.
    start : (num_transfers,) int64
        Start in ticks; a microsecond has ``problem.costs.ticks_per_us`` ticks.
    end : (num_transfers,) int64, optional
        End in ticks; by default the start plus the link's time for the bytes of the send.
    group : (num_transfers,) int32, optional
        Index of the send. Transfers that share a group are one merged send: same link, start and end. By
        default every transfer is a send of its own.
    reduce : (num_transfers,) bool, optional
        True if the chunk is added to the destination's content, False if it replaces it. A number means that
        the first `reduce` transfers are added. Default: none are.
    producer : str
        Description of the search or tool that made the schedule.
    carries : (num_transfers,) int32, optional
        For a combining collective: index in `sums` of the contributions that each transfer carries. Ranks
        then keep arrivals unreduced, and each transfer, like each final result, is a sum of disjoint
        arrivals. Without it, a rank adds up arrivals (`reduce`) and sends the sum that it holds.
    sums : tuple of tuple of int
        Distinct sets of ranks whose contributions are summed.

    Raises
    ------
    InputError
        If a column is not a one-dimensional array of its type, or the lengths differ. `taccl.verify` checks
        the content.
    """

    problem: Problem
    chunk: Column[np.int32] = Column(np.int32)
    link: Column[np.int32] = Column(np.int32)
    start: Column[np.int64] = Column(np.int64)
    end: Column[np.int64] = Column(np.int64, ends)
    group: Column[np.int32] = Column(np.int32, lambda schedule: np.arange(len(schedule), dtype=np.int32))
    reduce: Column[np.bool_] = Column(np.bool_, lambda schedule: adds(schedule.kept, slice(None)))
    producer: str = ""
    carries: NDArray[np.int32] | None = None
    sums: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "problem", self.problem.in_its_chunks)
        kept = self.kept
        given = {name: column for name, column in kept._asdict().items() if column is not None}
        if type(kept.reduce) is int:
            del given["reduce"]
        for name, column in given.items():
            check_column(name, column)
        check_lengths(given)
        if kept.group is not None and kept.end is None:
            object.__setattr__(self, "end", merged_ends(self))
        if self.carries is not None:
            check_carries(self)

    @property
    def kept(self) -> Kept:
        """Columns as they were given, in their own types; None for a derived column."""
        return Kept(*(vars(self)[f"_{name}"] for name in Kept._fields))

    @property
    def is_bare(self) -> bool:
        """True for more than 300,000 transfers without stored ends, groups or contributions."""
        return self.kept.end is None and self.carries is None and self.num_transfers > MANY

    @property
    def num_bytes(self) -> int:
        """Size of the stored columns in bytes."""
        carries = () if self.carries is None else (self.carries,)
        return sum(each.nbytes for each in (*self.kept.arrays.values(), *carries))

    @property
    def contributions(self) -> list[tuple[int, ...]] | None:
        """Ranks whose sum each transfer carries; None if the schedule does not name contributions."""
        return None if self.carries is None else [self.sums[number] for number in self.carries.tolist()]

    @property
    def columns(self) -> dict[str, Any]:
        """All arguments of `make_schedule` for this schedule, except problem and producer."""
        return {**{name: getattr(self, name) for name in Kept._fields}, "contributions": self.contributions}

    @property
    def num_transfers(self) -> int:
        """Number of transfers; each transfer of a merged send counts."""
        return len(self.kept.chunk)

    @cached_property
    def num_sends(self) -> int:
        """Number of sends; a merged send counts once."""
        group = self.kept.group
        return self.num_transfers if group is None else len(distinct(group))

    @cached_property
    def finish_ticks(self) -> int:
        """Time of the last arrival in ticks; 0 for an empty schedule."""
        return max((int(end.max()) for *_, end in self.blocks()), default=0)

    @checked
    def blocks(
        self, size: int = _BLOCK
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]:
        """Yield (chunk, link, start, end) of blocks of `size` transfers as int64; times are in ticks.

        If ends are not stored, a chunk or link that does not exist, or a start that needs more than 62 bits,
        raises `InputError`.
        """
        kept, costs = self.kept, self.problem.costs
        for first in range(0, self.num_transfers, size):
            part = slice(first, first + size)
            chunk, link, start = (each[part].astype(np.int64) for each in kept[:3])
            if kept.end is not None:
                yield chunk, link, start, kept.end[part].astype(np.int64)
                continue
            for name, column, least, count in (
                ("chunk", chunk, 0, len(costs.chunk_units)),
                ("link", link, 0, len(costs.link_beta)),
                ("start", start, -(2**62), 2**62),
            ):
                if not least <= int(column.min()) <= int(column.max()) < count:
                    raise InputError(
                        f"found {name}s {column.min()}-{column.max()}; there are {least}-{count - 1}",
                        where="schedule",
                    )
            yield (
                chunk, link, start,
                start + costs.link_alpha[link] + costs.chunk_units[chunk] * costs.link_beta[link],
            )  # fmt: skip

    def in_order(self) -> Schedule:
        """Schedule with the same transfers, sorted as `make_schedule` sorts them."""
        columns = self.kept._asdict() | {"contributions": self.contributions}
        columns["reduce"] = None if self.kept.reduce is None else self.reduce
        return make_schedule(self.problem, **columns, producer=self.producer)

    def under(self, problem: Problem, *, producer: str | None = None) -> Schedule:
        """Schedule with the same columns for another problem, and optionally with another producer."""
        producer = self.producer if producer is None else producer
        return Schedule(problem, *self.kept, producer, self.carries, self.sums)

    def listable(self, *, memory_limit_bytes: int = 4 * 10**9) -> Schedule:
        """The schedule itself; raises `InputError` if its full columns would exceed a memory limit."""
        needed = _LISTED_BYTES * self.num_transfers
        if self.kept.end is None and needed > memory_limit_bytes:
            raise InputError(
                f"{self.num_transfers} transfers need {format_size(needed)} as full columns, more than the "
                f"{format_size(memory_limit_bytes)} allowed; take fewer ranks or chunks",
                where="schedule",
            )
        return self

    def expand(self, **_: object) -> Schedule:
        """The schedule itself. Deprecated, as every schedule can read all of its columns."""
        warnings.warn("Schedule.expand() does nothing; leave it out", DeprecationWarning, stacklevel=2)
        return self

    def __len__(self) -> int:
        return self.num_transfers

    def __iter__(self) -> Iterator[Transfer]:
        return self._first(None)

    def _first(self, limit: int | None) -> Iterator[Transfer]:
        count = self.num_transfers if limit is None else min(limit, self.num_transfers)
        named, kept, size = self.contributions, self.kept, min(_BLOCK, max(1, count))
        for first, columns in zip(range(0, count, size), self.blocks(size), strict=False):
            rows = slice(first, min(first + size, count))
            group = np.arange(rows.start, rows.stop) if kept.group is None else kept.group[rows]
            names = repeat(None) if named is None else named[rows]
            values = (each.tolist() for each in (*columns, group, adds(kept, rows)))
            yield from map(Transfer._make, zip(*values, names, strict=False))

    def _rows(self, limit: int | None) -> Iterator[tuple[str, str, str, str, str, str]]:
        """Yield (start, end, chunk, link, group, operation) as text, with times in microseconds."""
        links, us = self.problem.topology.links, self.problem.costs.us
        for t in self._first(limit):
            start, end = (f"{float(us(ticks)):.3f}" for ticks in (t.start_ticks, t.end_ticks))
            link = shown(str(links[t.link]), 100) if 0 <= t.link < len(links) else f"no link {t.link}"
            operation = "reduce" if t.reduce else "copy"
            if t.contributions is not None:
                operation = f"sum of {first_of(t.contributions, 4)}"
            yield start, end, str(t.chunk), link, str(t.group), operation

    def digest(self) -> str:
        """Hash of the problem and all transfers, the same on every machine.

        It covers all columns; for `is_bare` schedules only the stored ones.
        """
        if self.is_bare:
            return bare_digest(self)
        state = hashlib.sha256(self.problem.digest().encode())
        for column in (self.chunk, self.link, self.start, self.end, self.group):
            state.update(np.ascontiguousarray(column, dtype="<i8").tobytes())
        state.update(np.packbits(self.reduce).tobytes())
        if self.carries is not None:
            texts = [repr(ranks).encode() for ranks in self.sums]  # the text of `repr(self.contributions)`
            numbers = self.carries.tolist()
            for first in range(0, len(numbers), _DIGEST_ROWS):
                block = [texts[number] for number in numbers[first : first + _DIGEST_ROWS]]
                state.update((b", " if first else b"[") + b", ".join(block))
            state.update(b"]" if numbers else b"[]")
        return state.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self.digest() == other.digest()

    def __hash__(self) -> int:
        return hash(self.digest())

    @checked
    def table(self, *, limit: Natural | None = None) -> str:
        """Table of the transfers as text, with times in microseconds; at most `limit` rows."""
        rows = [("start_us", "end_us", "chunk", "link", "group", "op"), *self._rows(limit)]
        return numbers_table(rows, hidden=self.num_transfers + 1 - len(rows))

    def to_frame(self) -> pd.DataFrame:
        """A pandas DataFrame with a row per transfer and pair of ranks, with times in microseconds.

        Its columns are those of CSV files, which ``docs/formats.md`` lists. Raises `ExportError` if the chunk
        or the link of a transfer does not exist.
        """
        import pandas as pd

        from taccl.schedule.transfers import transfers_table

        return pd.DataFrame(transfers_table(self))

    def _repr_html_(self) -> str:
        """HTML for notebooks: a table of finish, bandwidth and numbers, and the first transfers."""
        from taccl._internal.html import card, facts, table

        problem = self.problem
        figures = [
            ("finish", self.timing),
            ("bandwidth", self.bandwidth_text),
            ("transfers", f"{self.num_transfers} in {format_count(self.num_sends, 'send')}"),
            ("producer", self.producer),
        ]
        rows = [(*row[:4], row[5]) for row in self._rows(8)]
        head = ("start in us", "end in us", "chunk", "link", "")
        hidden = self.num_transfers - len(rows)
        more = f"{format_count(hidden, 'more transfer')} in schedule.table()" if hidden else ""
        return card(problem.title, facts(figures), table(head, rows), notes=(more, *problem.notes))

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.problem.title}: "
            f"{format_count(self.num_transfers, 'transfer')} in {format_count(self.num_sends, 'send')}, "
            f"finish {format_us(self.finish_us)}{self.predicted_text})"
        )


@checked
def make_schedule(
    problem: Problem,
    *,
    chunk: ArrayLike,
    link: ArrayLike,
    start: ArrayLike,
    end: ArrayLike | None = None,
    group: ArrayLike | None = None,
    reduce: ArrayLike | None = None,
    producer: str = "",
    contributions: Contributions | None = None,
) -> Schedule:
    """Make a schedule from columns in any order; groups are renumbered in order of start.

    - `chunk`, `link`, `start`, `producer`: As in `Schedule`.
    - `end`, `group`: As in `Schedule`. If neither is given, columns are stored in narrow types.
    - `reduce`: As in `Schedule`; default: False, or with `contributions` True for incomplete sums.
    - `contributions`: Ranks whose sum each transfer of a combining collective carries; see `Schedule`.

    Raises `InputError` if a column has values outside its type and range, or the columns differ in length.
    """
    columns = {
        name: full_column(name, values)
        for name, values in (("chunk", chunk), ("link", link), ("start", start))
    }
    given = {"end": end, "group": group, "reduce": reduce}
    columns |= {name: full_column(name, values) for name, values in given.items() if values is not None}
    sums: tuple[tuple[int, ...], ...] = ()
    if contributions is not None:
        try:
            carried = Carried.of(contributions)
        except TypeError:
            said = f"found {contributions!r:.60}; expected the ranks of each transfer"
            raise InputError(said, where="schedule.contributions") from None
        sums, columns["carries"] = carried.in_order()
        check_lengths({name: columns[name] for name in ("chunk", "carries")})
        if reduce is None:
            columns["reduce"] = lacking(problem, columns["chunk"], carried)
    check_lengths(columns)
    keys = [columns[name] for name in ("chunk", "group", "link", "start") if name in columns]
    order = lexsort(keys if group is not None else keys[1:])  # equal single sends keep the given order
    columns = {name: each[order] for name, each in columns.items()}
    if group is not None:
        _, first, inverse = numbered(columns["group"])
        columns["group"] = np.argsort(np.argsort(first))[inverse].astype(np.int32)
    elif end is None:
        columns |= {name: narrow(columns[name]) for name in ("chunk", "link", "start")}
    for each in columns.values():
        each.setflags(write=False)
    return Schedule(problem, producer=producer, sums=sums, **columns)


def bare_digest(schedule: Schedule) -> str:
    """Hash of the problem, and of chunk, link, start and reduction of all transfers."""
    kept, state = schedule.kept, hashlib.sha256(schedule.problem.digest().encode())
    for first in range(0, schedule.num_transfers, _DIGEST_BLOCK):
        for each in kept[:3]:
            state.update(np.ascontiguousarray(each[first : first + _DIGEST_BLOCK], dtype="<i8").data)
    reduce = kept.reduce
    state.update(reduce.tobytes() if isinstance(reduce, np.ndarray) else str(reduce or 0).encode())
    return state.hexdigest()


def lacking(
    problem: Problem, chunk: NDArray[Any], contributions: Sequence[Collection[int]]
) -> NDArray[np.bool_]:
    """(num_transfers,) True if a transfer names fewer contributions than its chunk has."""
    origins, carried = problem.collective.origin_sets, Carried.of(contributions)
    count = np.array([len(ranks) for ranks in origins.sets], np.int64)[origins.of_chunk]
    known = (chunk >= 0) & (chunk < len(count))
    lacks = known.copy()
    lacks[known] = carried.sizes[carried.number[known]] < count[chunk[known]]
    return lacks
