"""Columns of a schedule: stored in narrow types or derived on demand, and read in full-width types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taccl._internal.arrays import Flags, Ints
from taccl._internal.names import first_of
from taccl.errors import InputError

if TYPE_CHECKING:
    from taccl.problem.problem import Problem
    from taccl.schedule.schedule import Schedule

T = TypeVar("T", bound=np.generic)

#: `_INDEX`: (full type, min, max) of columns of indices.
#: `_TICKS`: (full type, min, max) of columns of ticks; a time plus a duration fits into 64 bits.
_INDEX, _TICKS = (np.int32, -(2**31), 2**31 - 1), (np.int64, -(2**62), 2**62)
_TYPES: dict[str, tuple[Any, int, int]] = {
    "chunk": _INDEX, "link": _INDEX, "start": _TICKS, "end": _TICKS, "group": _TICKS, "reduce": (bool, 0, 1),
}  # fmt: skip


class Kept(NamedTuple):
    """Columns that a schedule stores, each in the type in which it was given; None for a derived column.

    - `reduce`: True for transfers that reduce; or a number n, if exactly the first n transfers reduce.
    """

    chunk: NDArray[Any]
    link: NDArray[Any]
    start: NDArray[Any]
    end: NDArray[Any] | None
    group: NDArray[Any] | None
    reduce: Flags | int | None

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """{name: column} of the columns that are arrays."""
        return {name: each for name, each in self._asdict().items() if isinstance(each, np.ndarray)}


class Column(Generic[T]):
    """Descriptor of a dataclass column: set in any type, read in its full type, and derived if it is None.

    Converted or derived columns are computed when they are first read, and then cached.

    - `derive`: Function from a schedule to the column; None if the column must be given.
    """

    def __init__(self, kind: type[T], derive: Callable[[Any], NDArray[T]] | None = None) -> None:
        self._kind, self._derive = kind, derive

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __set__(self, schedule: Any, values: NDArray[Any] | int | None) -> None:
        vars(schedule)[f"_{self.name}"] = values

    def __get__(self, schedule: Any, owner: type | None = None) -> NDArray[T]:
        if schedule is None:  # `dataclass` reads the default value from the class
            if self._derive is None:
                raise AttributeError(self.name)
            return None  # type: ignore[return-value]
        known = vars(schedule)
        if self.name not in known:
            kept = getattr(schedule.kept, self.name)
            derived = self._derive is not None and not isinstance(kept, np.ndarray)
            column = self._derive(schedule) if derived else kept.astype(self._kind, copy=False)  # type: ignore[misc]
            if column is not kept:
                column.setflags(write=False)
            known[self.name] = column
        found: NDArray[T] = known[self.name]
        return found


def adds(kept: Kept, rows: slice) -> Flags:
    """(num_rows,) True for each transfer in `rows` that is added to its destination's content."""
    begin, end, _ = rows.indices(len(kept.chunk))
    if isinstance(kept.reduce, np.ndarray):
        return kept.reduce[begin:end].astype(bool, copy=False)
    if not kept.reduce:
        return np.broadcast_to(np.False_, (end - begin,))
    return np.arange(begin, end) < kept.reduce


def ends(schedule: Schedule) -> Ints:
    """End of each transfer in ticks: its start plus the link's time for its chunk alone."""
    return np.concatenate([np.zeros(0, np.int64), *(end for *_, end in schedule.blocks())])


def merged_ends(schedule: Schedule) -> Ints:
    """End of each transfer in ticks: its start plus the link's time for all chunks of its send."""
    kept, costs = schedule.kept, schedule.problem.costs
    own, units = ends(schedule), costs.chunk_units[kept.chunk]
    _, send = np.unique(schedule.group, return_inverse=True)
    of_send = np.bincount(send, weights=units).astype(np.int64)[send]
    merged: Ints = own + (of_send - units) * costs.link_beta[kept.link]
    return merged


def full_column(name: str, values: ArrayLike) -> NDArray[Any]:
    """Column converted to its full type; raises `InputError` if a value does not fit."""
    kind = _TYPES[name][0]
    try:
        found = np.asarray(values)
    except (OverflowError, TypeError, ValueError) as error:  # such as for rows of different lengths
        raise InputError(f"found values that are no column ({error})", where=f"schedule.{name}") from None
    if found.ndim == 1 and not found.size:
        found = found.astype(kind)
    check_column(name, found)
    return found.astype(kind, copy=False)


def check_column(name: str, found: NDArray[Any]) -> None:
    """Raise `InputError` unless the column is one-dimensional, and its values fit its full type."""
    kind, least, most = _TYPES[name]
    if not isinstance(found, np.ndarray):
        said = f"found a {type(found).__name__}; expected an array; make_schedule makes one"
    elif found.ndim != 1:
        said = f"found {found.ndim} dimensions; expected one, with a value per transfer"
    elif found.dtype.kind not in ("b" if kind is bool else "iu"):
        expected = (
            "bool" if kind is bool else "whole numbers of 64 bits at most; times are in ticks, of which "
            "problem.costs.ticks_per_us make a microsecond"
        )  # fmt: skip
        some = f" such as {found[0]!r}" if len(found) else ""
        said = f"found {found.dtype} values{some}; expected {expected}"
    else:
        # Do not read values if their type cannot exceed the range: columns may be large files.
        is_read = kind is not bool and len(found) and not np.can_cast(found.dtype, np.int32)
        low, high = (int(found.min()), int(found.max())) if is_read else (least, most)
        said = f"found {high if high > most else low}; expected {least} to {most}"
        if least <= low and high <= most:
            return
    raise InputError(said, where=f"schedule.{name}")


def check_lengths(columns: Mapping[str, NDArray[Any]]) -> None:
    """Raise `InputError` if columns differ in length."""
    lengths = {name: len(each) for name, each in columns.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(
            f"columns differ in length: {lengths}; give each a value per transfer", where="schedule"
        )


def narrow(found: NDArray[Any]) -> NDArray[Any]:
    """Column in the narrowest of uint16, int32 and int64 that holds its values."""
    least, most = int(found.min(initial=0)), int(found.max(initial=0))
    for kind in (np.uint16, np.int32):
        if np.iinfo(kind).min <= least and most <= np.iinfo(kind).max:
            return found.astype(kind, copy=False)
    return found


def check_carries(schedule: Schedule) -> None:
    """Raise `InputError` unless the collective reduces and every transfer names a valid sum."""
    carries, collective = schedule.carries, schedule.problem.collective
    assert carries is not None, "the schedule names contributions"
    if not collective.sums_up:
        raise InputError(
            f"found contributions in a schedule of {collective.name}, which has no sums; leave them out",
            where="schedule.contributions",
        )
    check_lengths({"chunk": schedule.chunk, "carries": carries})
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
            f"found a sum that names ranks {first_of(twice, 8)} twice; name each rank once",
            where="schedule.sums",
        )


def check_indices(problem: Problem, chunk: NDArray[np.integer], link: NDArray[np.integer]) -> None:
    """Raise `InputError` if the chunk or the link of a transfer does not exist."""
    for name, column, count in (
        ("chunk", chunk, problem.collective.num_chunks),
        ("link", link, len(problem.topology.links)),
    ):
        if len(column) and not (column.min() >= 0 and column.max() < count):
            said = f"found a {name} outside 0-{count - 1}; verify the schedule to see where"
            raise InputError(said, where="schedule")
