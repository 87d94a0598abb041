"""Result of a synthesis: schedule, bound, stages and trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from taccl._internal import html
from taccl._internal.moved import former_names
from taccl._internal.names import note_lines, table
from taccl._internal.units import format_count
from taccl.analysis.certificates.certificate import Certificate
from taccl.analysis.certificates.dimension_bound import DimensionBound
from taccl.analysis.certificates.scopes import (
    bound_of_every_cut,
    bound_rows,
    gap_text,
    standing,
)
from taccl.errors import NumericsWarning, warn
from taccl.schedule.schedule import Schedule
from taccl.synthesis.stages import STAGE_COLUMNS, Stages, Trace

if TYPE_CHECKING:
    import pandas as pd

#: Values of `Result.stopped`: the caller's rule ended the search, or it reached the gap that was asked for.
STOPPING_RULE, GAP_MET = "stopping rule", "gap met"

#: Finish in us below which there is a warning if the profile has no latencies, as these would dominate.
_WARN_BELOW_US = 20.0


@cache
def _tell_no_latency() -> None:
    """Warn once per process that the profile has no latencies."""
    said = (
        "profile nominal has no latency: times of small messages are lower bounds (use profile nccl, or "
        "one from `taccl fit`)"
    )
    warn(said, NumericsWarning)


@dataclass(frozen=True, slots=True)
class Result:
    """A verified schedule, its bound and gap, and how it was found.

    Parameters
    ----------
    schedule : Schedule
        The schedule, verified; in compact form if it has very many transfers.
    bound : Certificate
        A proven lower bound for the problem that was asked: for its chunks, or over all chunkings if it
        leaves their number open.
    backend : str
        The backend that was asked for.
    stages : Stages
        A tuple of `Stage` in the order in which they ended; ``stages.to_frame()`` is a DataFrame.
    seconds : float
        Seconds of the whole synthesis.
    seed : int
        Seed of the search.
    versions : mapping of package to version
    stopped : str
        Why the search ended: ``"bound met"``, ``"nothing better found"``, ``"time limit"``,
        ``"gap met"`` (`until_gap`), ``"stopping rule"`` (the caller's) or ``"interrupted"`` (Ctrl-C).
    notes : tuple of str
        Notes for users: fallbacks, narrowed symmetry, padding.
    trace : Trace
        The incumbent trace, a tuple of `TraceEntry`: each better schedule when it was found; the last is the
        schedule returned. ``trace.to_frame()`` is a DataFrame.
    choice : str
        What ran and why, with the number of hops.
    dimension_bound : DimensionBound, optional
        For ``backend="dimension-balanced"``: lower bound on algorithms along dimensions, for bandwidth only.
    is_brief : bool
        True if there is no time left for a bound over all chunkings.
    bound_of_chosen : Certificate, optional
        A proven lower bound for the chosen number of chunks, if the problem left it open.
    """

    schedule: Schedule
    bound: Certificate
    backend: str
    stages: Stages
    seconds: float
    seed: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    stopped: str = ""
    notes: tuple[str, ...] = ()
    trace: Trace = Trace()
    choice: str = ""
    dimension_bound: DimensionBound | None = None
    is_brief: bool = False
    bound_of_chosen: Certificate | None = None

    def __post_init__(self) -> None:
        topology = self.schedule.problem.topology
        is_short = topology.profile == "nominal" and 0 < self.finish_us < _WARN_BELOW_US
        if is_short and not any(link.alpha_us for link in topology.links):
            _tell_no_latency()

    @property
    def interrupted(self) -> bool:
        """True if Ctrl-C ended the search."""
        return self.stopped == "interrupted"

    @property
    def finish_us(self) -> float:
        """Time of the last arrival, in microseconds."""
        return self.schedule.finish_us

    @property
    def found_s(self) -> float | None:
        """Seconds until the search first had a schedule with this finish; None without a trace."""
        finishes = ((entry.seconds, entry.finish_us) for entry in self.trace if not entry.half)
        return next((s for s, us in finishes if us is not None and us <= self.finish_us * (1 + 1e-9)), None)

    @property
    def _found_text(self) -> str:
        found_s = self.found_s
        return (
            f"in {self.seconds:.2f} s" if found_s is None else f"after {found_s:.2f} of {self.seconds:.2f} s"
        )

    @property
    def predicted_us(self) -> float:
        """Launch time of the machine plus finish, in microseconds: the value to compare with measurements."""
        return self.schedule.predicted_us

    @property
    def bound_us(self) -> float:
        """A proven lower bound on the finish of any schedule of the problem, in microseconds."""
        return self.bound.bound_us

    @property
    def gap(self) -> float:
        """(finish - bound) / bound; 0 for a proven optimum, infinite without a positive bound."""
        return self.bound.gap(self.schedule.finish)

    @property
    def bound_in_chunks(self) -> Certificate:
        """The bound for the number of chunks of the schedule, given or chosen."""
        return self.bound if self.bound_of_chosen is None else self.bound_of_chosen

    @property
    def gap_in_chunks(self) -> float:
        """The gap to `bound_in_chunks`; 0 for a proven optimum with this number of chunks."""
        return self.bound_in_chunks.gap(self.schedule.finish)

    @property
    def gap_of_every_cut(self) -> float | None:
        """The gap to `bound_of_every_cut`, the bound over all chunkings; None without that bound."""
        every = self.bound_of_every_cut
        return None if every is None else every.gap(self.schedule.finish)

    @property
    def bound_of_every_cut(self) -> Certificate | None:
        """Lower bound of the same data over all chunkings; None after Ctrl-C, or if time does not suffice."""
        if self.bound.divisible:
            return self.bound
        return None if self.interrupted or self.is_brief else bound_of_every_cut(self.bound)

    @property
    def standing(self) -> str:
        """Proof of optimality: ``"proven best"``, ``"optimal for 2 chunks per rank"``, or empty.

        Proven best: no schedule finishes earlier under the same costs, over all chunkings; under a sketch, no
        schedule that obeys it.
        """
        return standing(self.bound_in_chunks, self.schedule.finish, self.bound_of_every_cut)

    def over_all_chunkings(self) -> Result:
        """The result with the bound over all chunkings, for a problem that left the number of chunks open."""
        every = self.bound_of_every_cut
        return self if every is None else replace(self, bound=every, bound_of_chosen=self.bound)

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain values, as printed by ``taccl synthesize --json``."""
        every = self.bound_of_every_cut
        return {
            "bound_us": self.bound_us,
            "bound_limits": self.bound.limits,
            "bound_scope": self.bound.scope,
            "bound_of_every_cut_us": None if every is None else every.bound_us,
            "standing": self.standing,
            **({} if self.dimension_bound is None else self.dimension_bound.to_dict()),
            **{
                name: None if (gap := getattr(self, name)) == float("inf") else gap
                for name in ("gap", "gap_in_chunks", "gap_of_every_cut")
            },
            "backend": self.backend,
            "choice": self.choice,
            "verified": True,
            **schedule_figures(self.schedule),
            "stages": [
                {"bound" if name == "bound_us" else name: value for name, value in asdict(stage).items()}
                for stage in self.stages
            ],
            "seconds": self.seconds,
            "found_s": self.found_s,
            "seed": self.seed,
            "stopped": self.stopped,
            "interrupted": self.interrupted,
            "versions": dict(self.versions),
            "notes": list(self.notes),
            "trace": [asdict(entry) for entry in self.trace],
        }

    def facts(self) -> list[tuple[str, str]]:
        """[(name, text)] of the figures, as a terminal, a notebook and the command line show them."""
        schedule = self.schedule
        transfers, sends = schedule.num_transfers, schedule.num_sends
        bounds = self.bound_in_chunks, self.bound_of_every_cut
        is_open = self.bound_of_chosen is not None
        along = [] if self.dimension_bound is None else [("along dimensions", self.dimension_bound.text)]
        return [
            ("finish", ", ".join(filter(None, (schedule.timing, schedule.bandwidth_text)))),
            *bound_rows(*bounds, is_open=is_open),
            *along,
            ("gap", gap_text(bounds[0], schedule.finish, bounds[1], is_open=is_open)),
            ("schedule", f"{format_count(transfers, 'transfer')} in {format_count(sends, 'send')}, verified"),
            ("found by", f"{schedule.producer or self.backend}, {self._found_text}, seed {self.seed}"),
            ("backend", f"{self.backend}: {self.choice}" if self.choice else self.backend),
            *([("model", proviso)] if (proviso := schedule.problem.topology.proviso) else []),
        ]

    def stage_table(self) -> pd.DataFrame:
        """The same as ``stages.to_frame()``."""
        return self.stages.to_frame()

    def explain(self) -> str:
        """Three sentences, one per line: limit of the schedule, what would help, and how certain that is."""
        from taccl.synthesis.explaining.summary import explained

        return explained(self)

    def lines(self) -> list[str]:
        """Text lines below a title: the facts, a row per stage, and notes."""
        lines = [table(self.facts(), indent="  ")]
        if self.stages:
            lines += ["", table([STAGE_COLUMNS, *(stage.cells for stage in self.stages)], indent="  ")]
        return lines + note_lines(self.notes or self.schedule.problem.notes)

    def _repr_html_(self) -> str:
        """HTML for notebooks: the facts, and a row per stage."""
        rows = [stage.cells for stage in self.stages]
        parts = [html.facts([*self.facts(), ("stopped", self.stopped)])]
        parts += [html.table(STAGE_COLUMNS, rows)] if rows else []
        return html.card(self.schedule.problem.title, *parts, notes=self.notes)

    def __repr__(self) -> str:
        return "\n".join([self.schedule.problem.title, *self.lines()])


def schedule_figures(schedule: Schedule) -> dict[str, Any]:
    """Problem and finish of a schedule, as plain values."""
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


def with_note_on_gap(result: Result, until_gap: float, *, is_judged: bool) -> Result:
    """The result with a note on `until_gap`, the gap at which its search was to end.

    - `is_judged`: False if the search could not check the gap.
    """
    percent = f"{until_gap:.4%}".rstrip("%").rstrip("0").rstrip(".") + "%"
    if not is_judged:
        said = "was ignored: the problem is searched without release dates, or without reductions in switches"
        return replace(result, notes=(*result.notes, f"the requested gap ({percent}) {said}"))
    if result.stopped != GAP_MET:
        return result
    if result.gap <= until_gap:
        said = f"stopped at a gap of at most {percent}, as requested"
        return replace(result, notes=(said, *result.notes))
    said = f"stopped at a gap of {percent} to the bound for other roots of sums"
    return replace(result, stopped=STOPPING_RULE, notes=(said, *result.notes))


__getattr__ = former_names(
    __name__, dict.fromkeys(("ModelRun", "Stage", "TraceEntry"), "taccl.synthesis.stages")
)
