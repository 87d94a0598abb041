"""Finish time and bandwidths of a schedule, be it ordinary, implicit or simulated."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from taccl._internal.units import format_rates, format_us, gb_per_s

if TYPE_CHECKING:
    from taccl.schedule.schedule import Schedule


class Figures:
    """Mixin with the finish time and bandwidths of a schedule; subclasses define `finish_ticks`."""

    if TYPE_CHECKING:
        problem: Any

        @property
        def finish_ticks(self) -> int:
            """Time of the last arrival in ticks; 0 for an empty schedule."""

    @property
    def finish(self) -> Fraction:
        """Time of the last arrival in microseconds, exact."""
        finish: Fraction = self.problem.costs.us(self.finish_ticks)
        return finish

    @property
    def finish_us(self) -> float:
        """Time of the last arrival in microseconds."""
        return float(self.finish)

    @property
    def launch(self) -> Fraction:
        """Launch time of the machine before the first send, in exact microseconds; not part of the finish."""
        launch: Fraction = self.problem.topology.launch_us
        return launch

    @property
    def launch_us(self) -> float:
        """Launch time of the machine before the first send, in microseconds."""
        return float(self.launch)

    @property
    def predicted_us(self) -> float:
        """Launch plus finish in microseconds, to be compared with measurements."""
        return float(self.launch + self.finish)

    @property
    def predicted_text(self) -> str:
        """Suffix of a finish time: ``", predicted 9 us with a launch of 8 us"``; empty without a launch."""
        if not self.launch:
            return ""
        return f", predicted {format_us(self.launch + self.finish)} with a launch of {format_us(self.launch)}"

    @property
    def timing(self) -> str:
        """Finish as text, with launch plus finish if the machine has a launch time."""
        return format_us(self.finish) + self.predicted_text

    @property
    def size_bytes(self) -> int | None:
        """The larger of one rank's input and output buffer, as nccl-tests counts it; None if not known."""
        size: int | None = self.problem.size_bytes
        return size

    @property
    def busbw_factor(self) -> float:
        """Ratio of bus bandwidth to algorithm bandwidth, as nccl-tests defines it."""
        factor: float = self.problem.collective.busbw_factor
        return factor

    @property
    def algbw_gb_per_s(self) -> float | None:
        """Size over finish in GB/s, as nccl-tests defines it; None without a size, or if nothing is sent."""
        return gb_per_s(self.size_bytes, self.finish)

    @property
    def busbw_gb_per_s(self) -> float | None:
        """Bus bandwidth in GB/s, as nccl-tests defines it; None without a size, or if nothing is sent."""
        algbw = self.algbw_gb_per_s
        return None if algbw is None else algbw * self.busbw_factor

    @property
    def bandwidth_text(self) -> str:
        """Algorithm and bus bandwidth as text; empty if they are unknown."""
        return format_rates(self.algbw_gb_per_s, self.busbw_factor)

    @property
    def predicted_busbw_gb_per_s(self) -> float | None:
        """Bus bandwidth in GB/s with the launch time included, as in measurements; None without a size."""
        algbw = gb_per_s(self.size_bytes, self.launch + self.finish)
        return None if algbw is None else algbw * self.busbw_factor


def schedule_figures(schedule: Schedule) -> dict[str, Any]:
    """{name: plain value} of a schedule's problem, times, bandwidths and counts."""
    problem = schedule.problem
    return {
        "finish_us": schedule.finish_us,
        "launch_us": schedule.launch_us,
        "predicted_us": schedule.predicted_us,
        "algbw_gb_per_s": schedule.algbw_gb_per_s,
        "busbw_gb_per_s": schedule.busbw_gb_per_s,
        "collective": problem.collective.name,
        "topology": problem.topology.name,
        "sketch": problem.clauses.name or None,
        "cost_model": problem.topology.cost_model,
        "assumed": list(problem.topology.assumed),
        "protocol": problem.topology.protocol or None,
        "size_bytes": problem.size_bytes,
        "num_ranks": problem.topology.num_ranks,
        "num_chunks": problem.collective.num_chunks,
        "chunks_per_rank": problem.collective.chunks_per_rank,
        "num_transfers": schedule.num_transfers,
        "num_sends": schedule.num_sends,
        "producer": schedule.producer,
        "digest": schedule.digest(),
    }
