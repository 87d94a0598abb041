"""What is left of a compact schedule whose columns were dropped: its figures and its digest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from taccl.errors import InputError
from taccl.schedule.compact import CompactSchedule

if TYPE_CHECKING:
    from taccl.schedule.schedule import Schedule

__all__ = ["ScheduleSummary", "summarize"]


@dataclass(frozen=True, eq=False)
class ScheduleSummary(CompactSchedule):
    """A schedule of which only the figures are kept; whatever needs its transfers is an error.

    Parameters
    ----------
    num_dropped : int
        How many transfers it had.
    last_ticks : int
        When the last of them ended.
    content_digest : str
        `CompactSchedule.digest` of what was dropped.
    """

    num_dropped: int = 0
    last_ticks: int = 0
    content_digest: str = ""

    @property
    def num_transfers(self) -> int:
        """How many transfers there were."""
        return self.num_dropped

    @property
    def num_sends(self) -> int:
        """How many sends there were."""
        return self.num_dropped

    @property
    def finish_ticks(self) -> int:
        """The last arrival, in ticks."""
        return self.last_ticks

    def digest(self) -> str:
        """The digest of the schedule that was dropped."""
        return self.content_digest

    def blocks(self, size: int = 0) -> NoReturn:
        """There are none.

        Raises
        ------
        InputError
            Always.
        """
        raise InputError(
            f"only a summary was kept of these {self.num_dropped} transfers; synthesize again without "
            "keep='summary', or with spill_dir= to keep them in files",
            where="schedule",
        )

    def expand(self, *, memory_limit_bytes: int = 0) -> Schedule:
        """There is nothing to expand; raises as `blocks` does."""
        return self.blocks()

    def table(self, *, limit: int | None = None) -> str:
        """There is nothing to show; raises as `blocks` does."""
        return self.blocks()

    def __repr__(self) -> str:
        return (
            f"ScheduleSummary({self.problem.title}: "
            f"{self.num_transfers} transfers that were not kept, finish {self.finish_us:.3f} us)"
        )


def summarize(schedule: CompactSchedule) -> ScheduleSummary:
    """The figures of a schedule, without its transfers."""
    return ScheduleSummary(
        schedule.problem,
        np.zeros(0, np.int32),
        np.zeros(0, np.int32),
        np.zeros(0, np.int32),
        schedule.producer,
        num_dropped=schedule.num_transfers,
        last_ticks=schedule.finish_ticks,
        content_digest=schedule.digest(),
    )
