"""Compact schedules for very many sends: each send carries one chunk, in three narrow columns.

A hundred million transfers fit in a gigabyte. A compact schedule has the figures of a `Schedule`, and
iterates without creating all transfers at once. It can be expanded to a `Schedule` if it is small enough. A
summary keeps the figures without the columns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from taccl.arguments import Bytes, Natural, checked
from taccl.errors import InputError
from taccl.problem import Problem
from taccl.schedule.figures import Figures
from taccl.schedule.schedule import Schedule, Transfer, make_schedule
from taccl.units import format_size

_BLOCK = 1 << 18
#: Rows per block in the computation of a digest; the digest depends on it, so it is fixed.
_DIGEST_BLOCK = 1 << 20
#: Bytes per transfer that `expand` needs at its peak.
_EXPANDED_BYTES = 150


@dataclass(frozen=True, eq=False)
class CompactSchedule(Figures):
    """Sends in order of start; the first `num_reducing` add to the destination's content, the rest copy.

    Parameters
    ----------
    problem : Problem
        The problem that the schedule is for.
    chunk, link, start : (num_transfers,) int of 16 to 64 bits
        Indices of chunk and link, and start in ticks, of each transfer.
    producer : str
        Description of the search or tool that made the schedule.
    num_reducing : int
        Number of transfers that reduce, if these are the first.
    reduces : (num_transfers,) bool, optional
        True for transfers that reduce, if these are not the first.
    """

    problem: Problem
    chunk: NDArray[Any]
    link: NDArray[np.int32]
    start: NDArray[Any]
    producer: str = ""
    num_reducing: int = 0
    reduces: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "problem", self.problem.in_its_chunks)
        columns = {name: np.asarray(getattr(self, name)) for name in ("chunk", "link", "start")}
        lengths = {column.shape for column in columns.values()}
        if len(lengths) > 1 or any(c.ndim != 1 or c.dtype.kind not in "iu" for c in columns.values()):
            found = ", ".join(f"{name} {c.dtype}{list(c.shape)}" for name, c in columns.items())
            raise InputError(
                f"found {found}; expected columns of whole numbers, a value per transfer", where="schedule"
            )

    @property
    def num_transfers(self) -> int:
        """Number of transfers."""
        return len(self.chunk)

    def adds(self, at: NDArray[Any]) -> NDArray[np.bool_]:
        """True for each transfer that adds to the content of its destination.

        - `at`: Indices of transfers.
        """
        return np.asarray(at < self.num_reducing if self.reduces is None else self.reduces[at], bool)

    @property
    def num_sends(self) -> int:
        """Number of sends: that of transfers, as no send is merged."""
        return self.num_transfers

    @cached_property
    def finish_ticks(self) -> int:
        """Time of the last arrival in ticks; 0 for an empty schedule."""
        return max((int(end.max()) for _, _, _, end in self.blocks()), default=0)

    @property
    def num_bytes(self) -> int:
        """Size of the columns chunk, link and start in bytes."""
        return int(self.chunk.nbytes + self.link.nbytes + self.start.nbytes)

    @checked
    def blocks(
        self, size: int = _BLOCK
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]:
        """Yield (chunk, link, start, end) of blocks of `size` transfers, in order of start; times in ticks.

        Raises `InputError` if a chunk or link does not exist, or a start needs more than 62 bits.
        """
        costs = self.problem.costs
        for first in range(0, self.num_transfers, size):
            part = slice(first, first + size)
            chunk, link = self.chunk[part].astype(np.int64), self.link[part].astype(np.int64)
            start = self.start[part].astype(np.int64)
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
            took = costs.link_alpha[link] + costs.chunk_units[chunk] * costs.link_beta[link]
            yield chunk, link, start, start + took

    def __len__(self) -> int:
        return self.num_transfers

    def __iter__(self) -> Iterator[Transfer]:
        number = 0
        for columns in self.blocks():
            adds = self.adds(np.arange(number, number + len(columns[0]))).tolist()
            rows = zip(*(column.tolist() for column in columns), adds, strict=True)
            for chunk, link, start, end, reduce in rows:
                yield Transfer(chunk, link, start, end, number, reduce)
                number += 1

    def digest(self) -> str:
        """Hash of the problem and all transfers, the same on every machine."""
        state = hashlib.sha256(self.problem.digest().encode())
        for first in range(0, self.num_transfers, _DIGEST_BLOCK):
            for column in (self.chunk, self.link, self.start):
                part = column[first : first + _DIGEST_BLOCK]
                state.update(np.ascontiguousarray(part, dtype="<i8").data)
        state.update(str(self.num_reducing).encode() if self.reduces is None else self.reduces.tobytes())
        return state.hexdigest()

    @checked
    def expand(self, *, memory_limit_bytes: Bytes = 4 * 10**9) -> Schedule:
        """The same schedule as a `Schedule`; `InputError` if it would need more memory than the limit."""
        needed = _EXPANDED_BYTES * self.num_transfers
        if needed > memory_limit_bytes:
            raise InputError(
                f"{self.num_transfers} transfers need {format_size(needed)} as a full schedule, more "
                f"than the {format_size(memory_limit_bytes)} allowed; keep it compact, or raise it",
                where="schedule",
            )
        empty = (np.zeros(0, np.int64),) * 4
        chunk, link, start, end = (np.concatenate(each) for each in zip(empty, *self.blocks(), strict=True))
        return make_schedule(
            self.problem,
            chunk=chunk,
            link=link,
            start=start,
            end=end,
            reduce=self.adds(np.arange(self.num_transfers)),
            producer=self.producer,
        )

    @checked
    def table(self, *, limit: Natural | None = None) -> str:
        """Table of the transfers as text, with times in microseconds; at most `limit` rows."""
        shown = self.num_transfers if limit is None else min(limit, self.num_transfers)
        columns = (self.chunk[:shown], self.link[:shown], self.start[:shown])
        head = CompactSchedule(self.problem, *columns, reduces=self.adds(np.arange(shown)))
        hidden = self.num_transfers - shown
        return head.expand().table() + (f"\n... and {hidden} more" if hidden else "")

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.problem.title}: "
            f"{self.num_transfers} transfers, finish {self.finish_us:.3f} us{self.predicted_text}, "
            f"{format_size(self.num_bytes)})"
        )


@dataclass(frozen=True, eq=False, repr=False)
class ScheduleSummary(CompactSchedule):
    """Summary of a schedule: only figures and digest; methods that need transfers raise `InputError`."""

    num_transfers: int = 0
    finish_ticks: int = 0
    content_digest: str = ""

    def digest(self) -> str:
        """Digest of the summarized schedule."""
        return self.content_digest

    def blocks(self, *_: Any, **__: Any) -> NoReturn:
        """Raise `InputError`: a summary has no transfers."""
        raise InputError(
            f"only a summary was kept of these {self.num_transfers} transfers; synthesize again without "
            "keep='summary', or with spill_dir= to keep them in files",
            where="schedule",
        )

    expand = table = blocks


def summarize(schedule: CompactSchedule) -> ScheduleSummary:
    """Summary of a schedule: its figures and digest, without its transfers."""
    return ScheduleSummary(
        schedule.problem,
        *(np.zeros(0, np.int32),) * 3,
        schedule.producer,
        num_transfers=schedule.num_transfers,
        finish_ticks=schedule.finish_ticks,
        content_digest=schedule.digest(),
    )
