"""Options of a search, and what is kept of its schedule."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from taccl._internal.units import format_size
from taccl.schedule.schedule import Schedule
from taccl.synthesis.observing import Observer
from taccl.synthesis.parameters import DEFAULTS, SearchParameters
from taccl.synthesis.suggesting.proposals import SketchProposal

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a search: backend, limits, seed, callbacks, what is kept of the schedule, all constants.

    - `idle_share`: Share of its time so far that improvement may last without progress; None for all of it.
    """

    backend: str = "auto"
    sketch: str | SketchProposal = "auto"
    threads: int = 1
    seed: int = 0
    memory_limit_mb: int | None = None
    log: bool = False
    observer: Observer = field(default_factory=Observer)
    keep: str = "schedule"
    spill_dir: Path | None = None
    to_file: bool = False
    parameters: SearchParameters = DEFAULTS
    policy: Literal["lp", "greedy"] = "lp"
    in_network: Literal["auto", "off", "only"] = "auto"
    idle_share: float | None = None
    began_s: float = field(default_factory=lambda: time.monotonic())

    @property
    def keeps_sends(self) -> bool:
        """True if the sends of a schedule are kept in memory."""
        return self.spill_dir is None and self.keep != "summary"

    @property
    def unobserved(self) -> Options:
        """The same for a search of another problem, whose figures are none of this one's."""
        return replace(self, observer=Observer())

    @property
    def of_solvers(self) -> dict[str, Any]:
        """Those of every solver."""
        return {each: getattr(self, each) for each in ("threads", "seed", "memory_limit_mb", "log")}

    def kept(self, schedule: Schedule) -> tuple[Schedule, list[str]]:
        """The schedule as the caller wants it kept, and what to say of that."""
        if self.keep == "summary":
            from taccl.schedule.summary import summarize

            said = f"the {schedule.num_transfers} transfers were verified and then dropped, as asked"
            return summarize(schedule), [said]
        if self.spill_dir is not None:
            from taccl.schedule.spill import spill

            said = f"the columns ({format_size(schedule.num_bytes)}) are in {self.spill_dir}, and stay there"
            return spill(schedule, self.spill_dir), [said]
        return schedule, []
