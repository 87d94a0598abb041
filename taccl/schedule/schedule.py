"""The schedule: which chunk goes over which link in which interval, as columns of transfers."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator
    from fractions import Fraction

    from numpy.typing import ArrayLike, NDArray

    from taccl.problem import Problem

__all__ = ["Schedule", "Transfer", "make_schedule"]


class Transfer(NamedTuple):
    """One chunk over one link in one interval; transfers of one `group` travel in one send."""

    chunk: int
    link: int
    start_ticks: int
    end_ticks: int
    group: int
    reduce: bool


@dataclass(frozen=True, eq=False)
class Schedule:
    """All transfers of a problem, ordered by start, link and chunk; see `make_schedule`.

    Parameters
    ----------
    chunk, link, group : (num_transfers,) int32
        Transfers that share a group are one merged send: same link, start and end.
    start, end : (num_transfers,) int64
        Ticks; ``problem.costs.ticks_per_us`` of them make a microsecond.
    reduce : (num_transfers,) bool
        Whether the chunk is added to what the destination holds, rather than put in its place.
    producer : str
        What made the schedule.
    """

    problem: Problem
    chunk: NDArray[np.int32]
    link: NDArray[np.int32]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    group: NDArray[np.int32]
    reduce: NDArray[np.bool_]
    producer: str = ""

    @property
    def num_transfers(self) -> int:
        return len(self.chunk)

    @cached_property
    def num_sends(self) -> int:
        """Sends, counting merged transfers once."""
        return len(np.unique(self.group))

    @property
    def finish_ticks(self) -> int:
        """The last arrival, in ticks; 0 of an empty schedule."""
        return int(self.end.max()) if len(self.end) else 0

    @property
    def finish(self) -> Fraction:
        """The last arrival, in exact microseconds."""
        return self.problem.costs.us(self.finish_ticks)

    @property
    def finish_us(self) -> float:
        """The last arrival, in microseconds."""
        return float(self.finish)

    @property
    def algbw_gb_per_s(self) -> float | None:
        """Size over finish in GB/s, as nccl-tests defines it; None where the size is not known."""
        size_bytes = self.problem.size_bytes
        if size_bytes is None or not self.finish_ticks:
            return None
        return float(size_bytes / self.finish / 1000)

    @property
    def busbw_gb_per_s(self) -> float | None:
        """Bus bandwidth in GB/s, as nccl-tests defines it; None where the size is not known."""
        algbw = self.algbw_gb_per_s
        return None if algbw is None else algbw * self.problem.collective.busbw_factor

    def __len__(self) -> int:
        return self.num_transfers

    def __iter__(self) -> Iterator[Transfer]:
        columns = (self.chunk, self.link, self.start, self.end, self.group, self.reduce)
        for values in zip(*(column.tolist() for column in columns), strict=True):
            yield Transfer(*values)

    def digest(self) -> str:
        """A hash of the problem and of every transfer, the same on every machine."""
        state = hashlib.sha256(self.problem.digest().encode())
        for column in (self.chunk, self.link, self.start, self.end, self.group):
            state.update(np.ascontiguousarray(column, dtype="<i8").tobytes())
        state.update(np.packbits(self.reduce).tobytes())
        return state.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self.digest() == other.digest()

    def __hash__(self) -> int:
        return hash(self.digest())

    def table(self, *, limit: int | None = None) -> str:
        """The transfers as text, one row each, times in microseconds."""
        links, us = self.problem.topology.links, self.problem.costs.us
        rows = [("start_us", "end_us", "chunk", "link", "group", "op")]
        for index, t in enumerate(self):
            if limit is not None and index == limit:
                break
            start, end = (f"{float(us(ticks)):.3f}" for ticks in (t.start_ticks, t.end_ticks))
            operation = "reduce" if t.reduce else "copy"
            rows.append((start, end, str(t.chunk), str(links[t.link]), str(t.group), operation))
        widths = [max(len(row[i]) for row in rows) for i in range(6)]
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
        ]
        hidden = self.num_transfers - (len(rows) - 1)
        return "\n".join(lines + ([f"... and {hidden} more"] if hidden else []))

    def __repr__(self) -> str:
        return (
            f"Schedule({self.problem.collective.name} on {self.problem.topology.name}: "
            f"{self.num_transfers} transfers in {self.num_sends} sends, finish {self.finish_us:.3f} us)"
        )


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
) -> Schedule:
    """A schedule from columns in any order; groups are renumbered in order of start.

    Parameters
    ----------
    group : array_like of int, optional
        Default: every transfer is a send of its own.
    reduce : array_like of bool, optional
        Default: nothing is reduced.

    Raises
    ------
    ValueError
        If the columns differ in length.
    """
    columns: dict[str, NDArray[Any]] = {
        "chunk": np.asarray(chunk, dtype=np.int32),
        "link": np.asarray(link, dtype=np.int32),
        "start": np.asarray(start, dtype=np.int64),
        "end": np.asarray(end, dtype=np.int64),
    }
    count = len(columns["chunk"])
    columns["group"] = np.arange(count) if group is None else np.asarray(group, dtype=np.int64)
    columns["reduce"] = np.zeros(count, bool) if reduce is None else np.asarray(reduce, dtype=bool)
    lengths = {name: len(column) for name, column in columns.items()}
    if set(lengths.values()) != {count}:
        raise ValueError(f"columns differ in length: {lengths}")
    order = np.lexsort((columns["chunk"], columns["group"], columns["link"], columns["start"]))
    columns = {name: column[order] for name, column in columns.items()}
    _, first, inverse = np.unique(columns["group"], return_index=True, return_inverse=True)
    rank_of_group = np.empty(len(first), dtype=np.int32)
    rank_of_group[np.argsort(first, kind="stable")] = np.arange(len(first), dtype=np.int32)
    columns["group"] = rank_of_group[inverse] if count else columns["group"].astype(np.int32)
    for column in columns.values():
        column.setflags(write=False)
    return Schedule(problem, producer=producer, **columns)
