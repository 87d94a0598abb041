"""Result of a synthesis: schedule, bound, stages and trace."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from taccl._internal import html
from taccl._internal.names import note_lines, table
from taccl._internal.units import format_count, format_us
from taccl.analysis.certificates.certificate import Certificate
from taccl.analysis.certificates.dimension_bound import DimensionBound
from taccl.analysis.certificates.scopes import (
    bound_over_all_chunkings,
    bound_rows,
    gap_text,
    known_bound_over_all_chunkings,
    standing,
)
from taccl.errors import NumericsWarning, warn
from taccl.schedule.figures import schedule_figures
from taccl.schedule.schedule import Schedule
from taccl.synthesis.stopping import GAP_MET, INTERRUPTED, STOPPING_RULE

if TYPE_CHECKING:
    import pandas as pd

    from taccl.problem.problem import Problem

#: Headings of the tables of stages and of trace entries.
STAGE_COLUMNS = ("stage", "solver", "status", "seconds", "finish", "its bound", "")
TRACE_COLUMNS = ("seconds", "finish", "bound", "phase")

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
class ModelRun:
    """Size of a linear model that a solver worked on, and times of the solver since its start.

    - `num_nonzeros`: Nonzero coefficients.
    - `first_feasible_s`, `proof_s`: When the solver found its first feasible point, and when it proved the
      optimum; None if it did not.
    """

    num_columns: int
    num_rows: int
    num_nonzeros: int
    first_feasible_s: float | None = None
    proof_s: float | None = None
    solver_version: str = ""
    num_nodes: int | None = None  # nodes of the search tree; for CP-SAT, branches


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of a synthesis.

    Its bound is the solver's bound on the stage's own model, which may exclude some paths and asymmetric
    routes. So it is not a bound on the problem. A job shop, or a routing with orders, may instead report a
    bound that was known before it began. Only the bound of the stage ``"bound"`` is the problem's.
    """

    name: str  # "greedy", "routing", "contiguity", "job shop", "improve" ...
    solver: str  # program that ran, e.g. "highs"; "taccl" for the library's own code
    status: str  # a status of `taccl.solvers.solver.Solution`, or "done", "skipped"
    seconds: float
    finish_us: float | None = None  # finish of the schedule found
    bound_us: float | None = None
    message: str = ""  # reason of a skip or failure, for users
    model: ModelRun | None = None  # size of the linear model, for stages that solved one
    began_s: float = 0.0  # seconds from the start of the synthesis to that of the stage

    @property
    def cells(self) -> tuple[str, ...]:
        """The stage as a row of a table with `STAGE_COLUMNS`."""
        finish, bound = ("" if us is None else format_us(us) for us in (self.finish_us, self.bound_us))
        return self.name, self.solver, self.status, f"{self.seconds:.2f}", finish, bound, self.message


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """Best finish and bound, `seconds` after a synthesis began.

    In a phase of a reduction (`phase`: ``"reduce"`` or ``"broadcast"``), the finish and the bound are those
    of the phase alone.
    """

    seconds: float
    finish_us: float | None
    bound_us: float | None
    phase: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        """The entry as a row of a table with `TRACE_COLUMNS`."""
        finish, bound = ("" if us is None else format_us(us) for us in (self.finish_us, self.bound_us))
        return f"{self.seconds:.2f}", finish, bound, self.phase


class Stages(tuple[Stage, ...]):
    """Stages of a synthesis in the order in which they ended."""

    __slots__ = ()

    def to_frame(self) -> pd.DataFrame:
        """A pandas DataFrame with a row per stage: seconds, and its finish and bound in us.

        Seconds of a stage exclude those of stages nested in it, so that the rows add up to the time of the
        search.
        """
        return _frame(self, "name solver status began_s seconds finish_us bound_us message")

    def to_dicts(self) -> list[dict[str, Any]]:
        """The stages as plain values, as ``--json`` prints them."""
        return [
            {"bound" if name == "bound_us" else name: value for name, value in asdict(stage).items()}
            for stage in self
        ]

    def _repr_html_(self) -> str:
        """HTML for notebooks: a row per stage."""
        return html.table(STAGE_COLUMNS, [stage.cells for stage in self])

    def __repr__(self) -> str:
        return table([STAGE_COLUMNS, *(stage.cells for stage in self)])


class Trace(tuple[TraceEntry, ...]):
    """Incumbent trace: an entry for each better schedule or bound; the last entry is that of the result."""

    __slots__ = ()

    @classmethod
    def of(cls, entries: Iterable[TraceEntry], last: TraceEntry) -> Trace:
        """Trace of searches that may use different chunks, in order of time, ended by the result's entry.

        Each entry of a whole schedule has the best finish and bound so far. A bound above that of the result
        was proven for other chunks, and is left out. So is an entry without news in its phase.
        """
        kept: list[TraceEntry] = []
        known: dict[str, tuple[float | None, float | None]] = {"": (None, None)}
        highest = math.inf if last.bound_us is None else last.bound_us
        for entry in entries:
            was, now = known.get(entry.phase), (entry.finish_us, entry.bound_us)
            if not entry.phase:
                finishes = [us for us in (known[""][0], entry.finish_us) if us is not None]
                bounds = [us for us in (known[""][1], entry.bound_us) if us is not None and us <= highest]
                now = min(finishes, default=None), max(bounds, default=None)
            if now != was:
                known[entry.phase] = now
                kept.append(replace(entry, finish_us=now[0], bound_us=now[1]))
        return cls((*kept, last))

    def to_frame(self) -> pd.DataFrame:
        """A pandas DataFrame with a row per entry: seconds, finish and bound in us, and the phase."""
        return _frame(self, "seconds finish_us bound_us phase")

    def _repr_html_(self) -> str:
        """HTML for notebooks: a row per entry."""
        return html.table(TRACE_COLUMNS, [entry.cells for entry in self])

    def __repr__(self) -> str:
        return table([TRACE_COLUMNS, *(entry.cells for entry in self)])


def _frame(rows: Iterable[Any], names: str) -> pd.DataFrame:
    """A DataFrame of the attributes `names` of rows; times in us are floats, NaN for None."""
    import pandas as pd

    columns = names.split()
    found = pd.DataFrame([[getattr(row, name) for name in columns] for row in rows], columns=columns)
    return found.astype({name: "float64" for name in columns if name.endswith("_us")})


def _renamed(name: str, new: str) -> None:
    warnings.warn(f"Result.{name} is {new} now", DeprecationWarning, stacklevel=3)


@dataclass(frozen=True, slots=True)
class Result:
    """A verified schedule, its bound and gap, and how it was found.

    Parameters
    ----------
    schedule : Schedule
        The schedule, verified; in compact form if it has very many transfers.
    bound : Certificate
        A proven lower bound for the given problem: for its chunks, or over all chunkings if it leaves their
        number open.
    backend : str
        The backend that was chosen, such as ``"auto"``.
    stages : Stages
        A tuple of `Stage` in the order in which they ended; ``stages.to_frame()`` is a DataFrame.
    seconds : float
        Seconds of the whole synthesis.
    seed : int
        Seed of the search.
    versions : mapping of package to version
    stopped : str
        Why the search ended: ``"bound met"``, ``"nothing better found"``, ``"time limit"``,
        ``"gap met"`` (`until_gap`), ``"stopping rule"`` (the caller's), or ``"interrupted"`` (Ctrl-C).
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
        return self.stopped == INTERRUPTED

    @property
    def problem(self) -> Problem:
        """The problem of the schedule: under its protocol, and in its number of chunks."""
        return self.schedule.problem

    @property
    def finish_us(self) -> float:
        """Time of the last arrival, in microseconds."""
        return self.schedule.finish_us

    @property
    def found_s(self) -> float | None:
        """Seconds until the search first had a schedule with the result's finish; None without a trace."""
        finishes = ((entry.seconds, entry.finish_us) for entry in self.trace if not entry.phase)
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
    def gap_over_all_chunkings(self) -> float | None:
        """The gap to `bound_over_all_chunkings`, the bound over all chunkings; None without that bound."""
        every = self.bound_over_all_chunkings
        return None if every is None else every.gap(self.schedule.finish)

    @property
    def bound_over_all_chunkings(self) -> Certificate | None:
        """Lower bound of the same data over all chunkings; None if time does not suffice.

        After Ctrl-C none is computed, but one that the search has found counts.
        """
        is_at_once = self.interrupted or self.is_brief
        return (known_bound_over_all_chunkings if is_at_once else bound_over_all_chunkings)(self.bound)

    @property
    def bound_of_every_cut(self) -> Certificate | None:
        """Former name of `bound_over_all_chunkings`."""
        _renamed("bound_of_every_cut", "bound_over_all_chunkings")
        return self.bound_over_all_chunkings

    @property
    def gap_of_every_cut(self) -> float | None:
        """Former name of `gap_over_all_chunkings`."""
        _renamed("gap_of_every_cut", "gap_over_all_chunkings")
        return self.gap_over_all_chunkings

    @property
    def standing(self) -> str:
        """Proof of optimality: ``"proven best"``, ``"optimal for 2 chunks per rank"``, or empty.

        Proven best: no schedule finishes earlier under the same costs, over all chunkings; under a sketch, no
        schedule that obeys it.
        """
        return standing(self.bound_in_chunks, self.schedule.finish, self.bound_over_all_chunkings)

    def over_all_chunkings(self, *, at_once: bool = False) -> Result:
        """The result with the bound over all chunkings, for a problem that left the number of chunks open.

        - `at_once`: True to compute none; a bound that the search has found counts.
        """
        every = known_bound_over_all_chunkings(self.bound) if at_once else self.bound_over_all_chunkings
        return self if every is None else replace(self, bound=every, bound_of_chosen=self.bound)

    def to_dict(self) -> dict[str, Any]:
        """The result as plain values, as printed by ``taccl synthesize --json``."""
        every = self.bound_over_all_chunkings
        return {
            "bound_us": self.bound_us,
            "bound_limits": self.bound.limits,
            "bound_scope": self.bound.scope,
            "bound_over_all_chunkings_us": None if every is None else every.bound_us,
            "standing": self.standing,
            **({} if self.dimension_bound is None else self.dimension_bound.to_dict()),
            **{
                name: None if (gap := getattr(self, name)) == float("inf") else gap
                for name in ("gap", "gap_in_chunks", "gap_over_all_chunkings")
            },
            "backend": self.backend,
            "choice": self.choice,
            "verified": True,
            **schedule_figures(self.schedule),
            "stages": self.stages.to_dicts(),
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
        """[(name, text)] of the main results, as a terminal, a notebook and the command line show them."""
        schedule = self.schedule
        transfers, sends = schedule.num_transfers, schedule.num_sends
        bounds = self.bound_in_chunks, self.bound_over_all_chunkings
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
            *self.problem.uncompared_rows(self.notes),
            *([("model", proviso)] if (proviso := schedule.problem.topology.proviso) else []),
        ]

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
        return html.card(self.problem.heading, *parts, notes=self.notes)

    def __repr__(self) -> str:
        return "\n".join([self.problem.heading, *self.lines()])


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


class StageLog:
    """Log of steps that follow one another; each begins when the one before ends, so that they add up."""

    def __init__(self) -> None:
        self._began_s = self._since_s = time.monotonic()
        self._rows: list[Stage] = []

    @property
    def seconds(self) -> float:
        """Seconds since the log began."""
        return time.monotonic() - self._began_s

    @property
    def stages(self) -> Stages:
        """The steps that have ended."""
        return Stages(self._rows)

    def end(
        self,
        name: str,
        *,
        status: str = "done",
        finish_us: float | None = None,
        message: str = "",
        within: Stages = Stages(),
    ) -> None:
        """Add a step, which lasted from the end of the one before until now.

        - `within`: Stages of a search in this step. They are added first, under names that begin with the
          step's; the seconds of the step exclude them.
        """
        began_s, now_s = self._since_s - self._began_s, time.monotonic()
        seconds = now_s - self._since_s - sum(each.seconds for each in within)
        self._rows += [
            replace(each, name=f"{name}: {each.name}", began_s=began_s + each.began_s) for each in within
        ]
        self._rows.append(Stage(name, "taccl", status, seconds, finish_us, None, message, began_s=began_s))
        self._since_s = now_s
