"""Schedule: columns of transfers, each of one chunk over one link in one interval."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taccl.arguments import Natural, checked
from taccl.errors import InputError
from taccl.names import first_of, numbers_table, shown
from taccl.problem import Problem
from taccl.schedule.figures import Figures
from taccl.units import format_count

#: Type and range of every column. Ticks have two spare bits, so that a time and a duration can be added.
#: Groups may have any numbers as input; `make_schedule` renumbers them as int32.
_INDEX, _TICKS = (np.int32, -(2**31), 2**31 - 1), (np.int64, -(2**62), 2**62)
_COLUMNS: dict[str, tuple[Any, int, int]] = {
    "chunk": _INDEX, "link": _INDEX, "start": _TICKS, "end": _TICKS, "group": _TICKS, "reduce": (bool, 0, 1),
}  # fmt: skip


class Transfer(NamedTuple):
    """Transfer of one chunk over one link in one interval; transfers of one `group` are one merged send.

    `contributions` are the ranks whose sum is sent, if the schedule names them; else None.
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
    """All transfers of a problem, ordered by start, link and chunk; see `make_schedule`.

    Parameters
    ----------
    problem : Problem
        The problem that the schedule is for.
    chunk, link, group : (num_transfers,) int32
        Indices of chunk, link and send. Transfers that share a group are one merged send: same link, start
        and end.
    start, end : (num_transfers,) int64
        Times in ticks; a microsecond has ``problem.costs.ticks_per_us`` ticks.
    reduce : (num_transfers,) bool
        True if the chunk is added to the destination's content, False if it replaces it.
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
        their content.
    """

    problem: Problem
    chunk: NDArray[np.int32]
    link: NDArray[np.int32]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    group: NDArray[np.int32]
    reduce: NDArray[np.bool_]
    producer: str = ""
    carries: NDArray[np.int32] | None = None
    sums: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "problem", self.problem.in_its_chunks)
        columns = {name: getattr(self, name) for name in _COLUMNS}
        for name, column in columns.items():
            if not isinstance(column, np.ndarray):
                raise InputError(
                    f"found a {type(column).__name__}; expected an array; make_schedule makes one",
                    where=f"schedule.{name}",
                )
            _column(name, column)
        _check_lengths(columns)
        if self.carries is not None:
            _check_carries(self)

    @property
    def contributions(self) -> list[tuple[int, ...]] | None:
        """Ranks whose sum each transfer carries; None if the schedule does not name contributions."""
        return None if self.carries is None else [self.sums[number] for number in self.carries.tolist()]

    @property
    def columns(self) -> dict[str, Any]:
        """All arguments of `make_schedule` for this schedule, except problem and producer."""
        return {**{name: getattr(self, name) for name in _COLUMNS}, "contributions": self.contributions}

    @property
    def num_transfers(self) -> int:
        """Number of transfers; those of a merged send count individually."""
        return len(self.chunk)

    @cached_property
    def num_sends(self) -> int:
        """Number of sends; a merged send counts once."""
        return len(np.unique(self.group))

    @property
    def finish_ticks(self) -> int:
        """Time of the last arrival in ticks; 0 for an empty schedule."""
        return int(self.end.max()) if len(self.end) else 0

    def __len__(self) -> int:
        return self.num_transfers

    def __iter__(self) -> Iterator[Transfer]:
        return self._first(None)

    def _first(self, limit: int | None) -> Iterator[Transfer]:
        columns = (self.chunk, self.link, self.start, self.end, self.group, self.reduce)
        named = self.contributions
        for i, values in enumerate(zip(*(column[:limit].tolist() for column in columns), strict=True)):
            transfer = Transfer(*values)
            yield transfer if named is None else transfer._replace(contributions=named[i])

    def _rows(self, limit: int | None) -> Iterator[tuple[str, str, str, str, str, str]]:
        """Start and end in microseconds, chunk, link, group and operation of the first transfers."""
        links, us = self.problem.topology.links, self.problem.costs.us
        for t in self._first(limit):
            start, end = (f"{float(us(ticks)):.3f}" for ticks in (t.start_ticks, t.end_ticks))
            link = shown(str(links[t.link]), 100) if 0 <= t.link < len(links) else f"no link {t.link}"
            operation = "reduce" if t.reduce else "copy"
            if t.contributions is not None:
                operation = f"sum of {first_of(t.contributions, 4)}"
            yield start, end, str(t.chunk), link, str(t.group), operation

    def digest(self) -> str:
        """Hash of the problem and all transfers, the same on every machine."""
        state = hashlib.sha256(self.problem.digest().encode())
        for column in (self.chunk, self.link, self.start, self.end, self.group):
            state.update(np.ascontiguousarray(column, dtype="<i8").tobytes())
        state.update(np.packbits(self.reduce).tobytes())
        if self.carries is not None:
            state.update(repr(self.contributions).encode())
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

    def _repr_html_(self) -> str:
        """HTML for notebooks: figures and the first transfers."""
        from taccl.html import card, facts, table

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
            f"Schedule({self.problem.title}: "
            f"{format_count(self.num_transfers, 'transfer')} in {format_count(self.num_sends, 'send')}, "
            f"finish {self.finish_us:.3f} us{self.predicted_text})"
        )


@checked
def make_schedule(
    problem: Problem,
    *,
    chunk: ArrayLike,
    link: ArrayLike,
    start: ArrayLike,
    end: ArrayLike,
    group: ArrayLike | None = None,
    reduce: ArrayLike | None = None,
    producer: str = "",
    contributions: Sequence[Collection[int]] | None = None,
) -> Schedule:
    """Make a schedule from columns in any order; groups are renumbered in order of start.

    - `chunk`, `link`, `start`, `end`, `producer`: As in `Schedule`.
    - `group`: As in `Schedule`; by default every transfer is its own send.
    - `reduce`: As in `Schedule`; by default False, or with `contributions` True for incomplete sums.
    - `contributions`: Ranks whose sum each transfer of a combining collective carries, see `Schedule`.

    Raises `InputError` if a column has values outside its type and range, or the columns differ in length.
    """
    return schedule_of(
        problem, chunk=chunk, link=link, start=start, end=end, group=group, reduce=reduce, producer=producer,
        contributions=contributions,
    )  # fmt: skip


def schedule_of(
    problem: Problem,
    *,
    chunk: ArrayLike,
    link: ArrayLike,
    start: ArrayLike,
    end: ArrayLike,
    group: ArrayLike | None = None,
    reduce: ArrayLike | None = None,
    producer: str = "",
    contributions: Sequence[Collection[int]] | None = None,
) -> Schedule:
    """Make a schedule as `make_schedule` does, without type checks of single contributions."""
    given: dict[str, Any] = {"chunk": chunk, "link": link, "start": start, "end": end}
    given |= {name: each for name, each in (("group", group), ("reduce", reduce)) if each is not None}
    columns = {name: _column(name, values) for name, values in given.items()}
    count = len(columns["chunk"])
    columns.setdefault("group", np.arange(count))
    sums: tuple[tuple[int, ...], ...] = ()
    if contributions is not None:
        number: dict[tuple[int, ...], int] = {}
        rows = [tuple(ranks) for ranks in contributions]
        in_order = {ranks: tuple(sorted(ranks)) for ranks in set(rows)}
        named = [number.setdefault(in_order[ranks], len(number)) for ranks in rows]
        columns["carries"], sums = np.array(named, dtype=np.int32), tuple(number)
        _check_lengths({name: columns[name] for name in ("chunk", "carries")})
        columns.setdefault("reduce", lacking(problem, columns["chunk"].tolist(), contributions))
    columns.setdefault("reduce", np.zeros(count, dtype=bool))
    _check_lengths(columns)
    order = np.lexsort((columns["chunk"], columns["group"], columns["link"], columns["start"]))
    columns = {name: column[order] for name, column in columns.items()}
    _, first, inverse = np.unique(columns["group"], return_index=True, return_inverse=True)
    columns["group"] = np.argsort(np.argsort(first))[inverse].astype(np.int32)
    for column in columns.values():
        column.setflags(write=False)
    return Schedule(problem, producer=producer, sums=sums, **columns)


def lacking(
    problem: Problem, chunks: Sequence[int], contributions: Sequence[Collection[int]]
) -> NDArray[np.bool_]:
    """True for each transfer whose named contributions are fewer than those of its chunk."""
    of_chunk = {c: len(chunk.origins) for c, chunk in enumerate(problem.collective.chunks)}
    rows = [tuple(ranks) for ranks in contributions]
    count = {ranks: len(set(ranks)) for ranks in set(rows)}
    known = zip(chunks, rows, strict=True)
    return np.array([count[ranks] < of_chunk.get(c, 0) for c, ranks in known], dtype=bool)


def _check_carries(schedule: Schedule) -> None:
    """Raise `InputError` unless the collective sums and every transfer names a valid sum."""
    carries, collective = schedule.carries, schedule.problem.collective
    assert carries is not None, "the schedule names what travels"
    if not collective.sums_up:
        raise InputError(
            f"found contributions in a schedule of {collective.name}, which adds nothing up; leave them out",
            where="schedule.contributions",
        )
    _check_lengths({"chunk": schedule.chunk, "carries": carries})
    if len(carries) and not (carries.min() >= 0 and carries.max() < len(schedule.sums)):
        raise InputError(
            f"found sums {carries.min()} to {carries.max()}; expected 0-{len(schedule.sums) - 1}",
            where="schedule.carries",
        )
    strange = {rank for ranks in schedule.sums for rank in ranks if not 0 <= rank < collective.num_ranks}
    if strange:
        raise InputError(
            f"found a contribution of rank {min(strange)}; there are ranks 0-{collective.num_ranks - 1}",
            where="schedule.sums",
        )
    twice = next((ranks for ranks in schedule.sums if len(set(ranks)) < len(ranks)), None)
    if twice is not None:
        raise InputError(
            f"found the sum of ranks {first_of(twice, 8)}, which names one twice; name each rank once",
            where="schedule.sums",
        )


def _column(name: str, values: ArrayLike) -> NDArray[Any]:
    """A column converted to its type; `InputError` if a value does not fit."""
    kind, least, most = _COLUMNS[name]
    try:
        column = np.asarray(values)
    except (OverflowError, TypeError, ValueError) as error:  # rows of different lengths
        raise InputError(f"found values that make no column ({error})", where=f"schedule.{name}") from None
    if column.ndim == 1 and not column.size:
        column = column.astype(kind)
    said = ""
    if column.ndim != 1:
        said = f"found {column.ndim} dimensions; expected one, with a value per transfer"
    elif column.dtype.kind not in ("b" if kind is bool else "iu"):
        expected = (
            "bool" if kind is bool else "whole numbers of 64 bits at most; times are in ticks, of which "
            "problem.costs.ticks_per_us make a microsecond"
        )  # fmt: skip
        said = f"found {column.dtype} values such as {column[0]!r}; expected {expected}"
    elif len(column) and not (least <= int(column.min()) and int(column.max()) <= most):
        outside = int(column.max()) if int(column.max()) > most else int(column.min())
        said = f"found {outside}; expected {least} to {most}"
    if said:
        raise InputError(said, where=f"schedule.{name}")
    return column.astype(kind, copy=False)


def _check_lengths(columns: dict[str, NDArray[Any]]) -> None:
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(
            f"columns differ in length: {lengths}; give each a value per transfer", where="schedule"
        )
