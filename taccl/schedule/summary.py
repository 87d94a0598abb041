"""What is left of a compact schedule whose columns were dropped: its figures and its digest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from taccl.errors import InputError
from taccl.schedule.compact import CompactSchedule


@dataclass(frozen=True, eq=False)
class ScheduleSummary(CompactSchedule):
    """A schedule of which only the figures and the digest are kept; what needs its transfers is an error."""

    num_transfers: int = 0
    finish_ticks: int = 0
    content_digest: str = ""

    def digest(self) -> str:
        """The digest of the schedule that was dropped."""
        return self.content_digest

    def blocks(self, *_: Any, **__: Any) -> NoReturn:
        """Raises `InputError`: there are none."""
        raise InputError(
            f"only a summary was kept of these {self.num_transfers} transfers; synthesize again without "
            "keep='summary', or with spill_dir= to keep them in files",
            where="schedule",
        )

    expand = table = blocks


def summarize(schedule: CompactSchedule) -> ScheduleSummary:
    """The figures of a schedule, without its transfers."""
    return ScheduleSummary(
        schedule.problem,
        *(np.zeros(0, np.int32),) * 3,
        schedule.producer,
        num_transfers=schedule.num_transfers,
        finish_ticks=schedule.finish_ticks,
        content_digest=schedule.digest(),
    )
