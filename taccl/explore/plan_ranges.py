"""Plan of schedules, one for each range of message sizes, with their times and lower bounds."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from taccl._internal.arguments import Seconds, Size, checked
from taccl._internal.deadline import NEVER, Deadline
from taccl._internal.names import table
from taccl._internal.units import (
    format_count,
    format_gap,
    format_limit,
    format_size,
    format_us,
    gb_per_s,
    parse_size,
)
from taccl.analysis.certificates.certificate import Certificate
from taccl.errors import InputError
from taccl.program.program import Program
from taccl.schedule.schedule import Schedule
from taccl.synthesis.result import Stages
from taccl.topology.topology import Topology


@dataclass(frozen=True, slots=True, repr=False)
class PlanRange:
    """Schedule for a range of message sizes, both ends included.

    - `min_bytes`, `max_bytes`: Smallest and largest size, as nccl-tests counts sizes.
    - `schedule`: The verified schedule, timed at ``schedule.problem.size_bytes``. This is the size for which
      it was made, or the nearest size in the range.
    - `source`: The sketch or the baseline that the schedule is from, and the size for which it was made.
    - `finish_min`, `finish_max`: Exact finish in microseconds at `min_bytes` and at `max_bytes`.
    - `bound`, `bound_min`, `bound_max`: Lower bounds on the finish of any schedule, with any sketch and
      chunking, at the size of `schedule`, at `min_bytes` and at `max_bytes`.
    - `program`: Program for a runtime; None if there was too little time for it.
    """

    min_bytes: int
    max_bytes: int
    schedule: Schedule
    source: str
    finish_min: Fraction
    finish_max: Fraction
    bound: Certificate
    bound_min: Certificate
    bound_max: Certificate
    program: Program | None

    @property
    def gap(self) -> float:
        """Optimality gap (finish - bound) / bound at the size for which the schedule is timed."""
        return self.bound.gap(self.schedule.finish)

    @property
    def protocol(self) -> str:
        """Protocol of the range's messages; empty if the topology has no protocols."""
        return self.schedule.problem.topology.protocol

    @property
    def lowered(self) -> Program:
        """The program; a plan with programs has one in each range."""
        assert self.program is not None, "files are written only for plans with programs"
        return self.program

    def predicted_us(self, finish: Fraction) -> float:
        """Predicted time in microseconds: the schedule's launch time plus `finish`."""
        return float(self.schedule.launch + finish)

    @property
    def scratch_bytes(self) -> int | None:
        """Scratch bytes per rank that the program needs at the largest size; 0 for an unknown collective.

        None if there is no program.
        """
        if self.program is None:
            return None
        if self.program.collective is None:
            return 0
        return -(-self.max_bytes * self.program.scratch_chunks // self.program.collective.size_chunks)

    def to_dict(self) -> dict[str, Any]:
        """Figures of the range as a dict of plain values."""
        schedule, low, high = self.schedule, self.finish_min, self.finish_max
        gaps = (self.gap, self.bound_min.gap(low), self.bound_max.gap(high))
        gap, gap_min, gap_max = (None if math.isinf(each) else each for each in gaps)
        return {
            "min_bytes": self.min_bytes, "max_bytes": self.max_bytes, "source": self.source,
            "protocol": self.protocol or None, "size_bytes": schedule.problem.size_bytes,
            "finish_us": schedule.finish_us, "launch_us": schedule.launch_us,
            "predicted_us": schedule.predicted_us, "predicted_us_at_min": self.predicted_us(low),
            "predicted_us_at_max": self.predicted_us(high),
            "bound_us": self.bound.bound_us, "bound_limits": self.bound.limits, "gap": gap,
            "finish_us_at_min": float(low), "finish_us_at_max": float(high),
            "gap_at_min": gap_min, "gap_at_max": gap_max,
            "algbw_gb_per_s_at_max": gb_per_s(self.max_bytes, high), "verified": True,
            "scratch_bytes": self.scratch_bytes, "num_transfers": schedule.num_transfers,
            "num_sends": schedule.num_sends, "digest": schedule.digest(),
        }  # fmt: skip

    def __repr__(self) -> str:
        return (
            f"PlanRange({format_size(self.min_bytes)} to {format_size(self.max_bytes)}: {self.source}, "
            f"{format_us(self.finish_min)} to {format_us(self.finish_max)})"
        )


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """Schedules of a collective for contiguous ranges of message sizes, and figures of the search.

    Parameters
    ----------
    ranges : tuple of PlanRange
        Ranges in order of size; each begins one byte after the end of the previous range.
    num_candidates : int
        Number of different schedules that were compared.
    stopped : str
        ``"done"``, ``"time limit"`` or ``"interrupted"``. In the last two cases, fewer schedules were
        compared.
    runtimes : tuple of str
        Names in `taccl.runtimes` for which `save` writes files.
    lowering : mapping
        Options of `taccl.lower` by which the programs were made.
    both_places : bool
        True if `save` writes MSCCL++ plans of every range for calls in place and for calls out of place.
    stages : Stages
        A tuple of `Stage`, which add up to `seconds`; ``stages.to_frame()`` is a DataFrame. Names of the
        stages of a synthesis begin with its size and its sketch.
    until : Deadline
        Time after which `save` leaves out files that the plan can do without.
    """

    topology: Topology
    collective: str
    ranges: tuple[PlanRange, ...]
    num_candidates: int
    seconds: float
    stopped: str
    notes: tuple[str, ...] = ()
    runtimes: tuple[str, ...] = ("msccl", "mscclpp")
    lowering: Mapping[str, Any] = field(default_factory=dict)
    both_places: bool = False
    stages: Stages = Stages()
    until: Deadline = field(default=NEVER, compare=False)

    @property
    def has_programs(self) -> bool:
        """True if every range has a program, so that `save` writes files for runtimes."""
        return all(each.program is not None for each in self.ranges)

    @checked
    def range_of(self, size: Size) -> PlanRange:
        """The range of the plan that contains a size.

        Raises
        ------
        InputError
            If the size lies in no range.
        """
        size_bytes = parse_size(size)
        for each in self.ranges:
            if each.min_bytes <= size_bytes <= each.max_bytes:
                return each
        ends = f"{format_size(self.ranges[0].min_bytes)} to {format_size(self.ranges[-1].max_bytes)}"
        raise InputError(f"found {format_size(size_bytes)}; the plan is for {ends}", where="size")

    @checked
    def save(
        self, folder: str | os.PathLike[str], *, overwrite: bool = False, time_limit_s: Seconds | None = None
    ) -> tuple[Path, ...]:
        """Write programs, schedules, an index and registration scripts; see `taccl.explore.plan_files`.

        Parameters
        ----------
        folder : path
            Folder to write to.
        overwrite : bool
            True to replace a plan in the folder.
        time_limit_s : float, optional
            Seconds for all files. Files that would be late are left out, and a note in the index names them.
            The files of the plan's first runtime are always written. Default: no limit.

        Raises
        ------
        InputError
            If the folder exists and `overwrite` is False, if it holds other files than a plan's, or if it
            cannot be written.
        """
        from taccl.explore.plan_files import save_plan

        until = NEVER if time_limit_s is None else Deadline.after(time_limit_s)
        return save_plan(replace(self, until=until), folder, overwrite=overwrite)

    def to_dict(self) -> dict[str, Any]:
        """Figures of the plan and its ranges as a dict of plain values."""
        return {
            "topology": self.topology.name, "collective": self.collective,
            "num_ranks": self.topology.num_ranks, "ranges": [each.to_dict() for each in self.ranges],
            "num_candidates": self.num_candidates, "seconds": self.seconds, "stopped": self.stopped,
            "notes": list(self.notes), "stages": self.stages.to_dicts(),
        }  # fmt: skip

    def table(self) -> str:
        """The plan as a text table with one range of sizes per row."""
        launches = any(each.schedule.launch for each in self.ranges)
        head = ("from", "to", *(("protocol", "predicted") if launches else ()), "finish", "gap")
        rows: list[tuple[str, ...]] = [(*head, "algbw GB/s at the end", "schedule")]
        for each in self.ranges:
            gaps = (each.bound_min.gap(each.finish_min), each.bound_max.gap(each.finish_max))
            ends = (format_us(each.predicted_us(finish)) for finish in (each.finish_min, each.finish_max))
            predicted = (each.protocol, " to ".join(ends)) if launches else ()
            rows.append(
                (format_limit(each.min_bytes), format_limit(each.max_bytes), *predicted,
                 f"{format_us(each.finish_min)} to {format_us(each.finish_max)}",
                 " to ".join(dict.fromkeys(format_gap(gap, num_decimals=1) for gap in gaps)),
                 f"{rate:.4g}" if (rate := gb_per_s(each.max_bytes, each.finish_max)) else "-", each.source)
            )  # fmt: skip
        return table(rows)

    def __repr__(self) -> str:
        head = (
            f"Plan({self.collective} on {self.topology.name}: {format_count(len(self.ranges), 'range')} of "
            f"{format_count(self.num_candidates, 'schedule')} in {self.seconds:.1f} s, {self.stopped})"
        )
        return "\n".join([head, self.table(), *(f"note: {note}" for note in self.notes)])
