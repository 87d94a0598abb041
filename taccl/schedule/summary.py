"""Summary of a schedule: its figures and digest, without its transfers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from taccl.errors import InputError
from taccl.schedule.schedule import Schedule


@dataclass(frozen=True, eq=False, repr=False)
class ScheduleSummary(Schedule):
    """Figures and digest of a schedule; whatever needs its transfers raises `InputError`."""

    num_transfers: int = 0
    num_sends: int = 0
    finish_ticks: int = 0
    num_bytes: int = 0
    content_digest: str = ""

    def __post_init__(self) -> None:
        """Check nothing: there are no columns."""

    @property
    def kept(self) -> NoReturn:
        """Raise `InputError`: a summary has no transfers."""
        raise InputError(
            f"only a summary was kept of these {self.num_transfers} transfers; synthesize again without "
            "keep='summary', or with spill_dir= to keep them in files",
            where="schedule",
        )

    def digest(self) -> str:
        """Digest of the summarized schedule."""
        return self.content_digest


def summarize(schedule: Schedule) -> ScheduleSummary:
    """Summary of a schedule."""
    return ScheduleSummary(
        schedule.problem,
        *(np.zeros(0, np.int32),) * 3,
        producer=schedule.producer,
        num_transfers=schedule.num_transfers,
        num_sends=schedule.num_sends,
        finish_ticks=schedule.finish_ticks,
        content_digest=schedule.digest(),
    )
