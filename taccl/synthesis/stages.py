"""Log of a search: its stages, and the trace of its incumbents and bounds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from taccl._internal.units import format_us

if TYPE_CHECKING:
    import pandas as pd


#: Headings of the table of stages.
STAGE_COLUMNS = ("stage", "solver", "status", "seconds", "finish", "its bound", "")


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
    num_nodes: int | None = None  # of the search tree; branches for CP-SAT


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of a synthesis.

    Its bound is the solver's bound on the stage's own model, which may exclude some paths and asymmetric
    routes. So it is not a bound on the problem. A job shop, or a routing with orders, may also report an
    earlier bound. Only the bound of the stage ``"bound"`` is the problem's.
    """

    name: str  # "greedy", "routing", "contiguity", "job shop", "improve" ...
    solver: str  # program that ran, e.g. "highs"; "taccl" for the library's own code
    status: str  # a status of `taccl.solvers.solver.Solution`, or "done", "skipped"
    seconds: float
    finish_us: float | None = None  # of the schedule found
    bound_us: float | None = None
    message: str = ""  # for users: reason of a skip or failure
    model: ModelRun | None = None  # for stages that solved a linear model
    began_s: float = 0.0  # seconds since the start

    @property
    def cells(self) -> tuple[str, ...]:
        """The stage as a row of a table with `STAGE_COLUMNS`."""
        finish, bound = ("" if us is None else format_us(us) for us in (self.finish_us, self.bound_us))
        return self.name, self.solver, self.status, f"{self.seconds:.2f}", finish, bound, self.message


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """Best finish and bound, `seconds` after a synthesis began.

    In a phase of a reduction (`half`: ``"reduce"`` or ``"spread"``), the finish and the bound are those of
    the phase alone.
    """

    seconds: float
    finish_us: float | None
    bound_us: float | None
    half: str = ""


class Stages(tuple[Stage, ...]):
    """Stages of a synthesis in the order in which they ended."""

    __slots__ = ()

    def to_frame(self) -> pd.DataFrame:
        """A pandas DataFrame with a row per stage: seconds, and its finish and bound in us.

        Seconds of a stage exclude those of stages nested in it, so that the rows add up to the time of the
        search.
        """
        return _frame(self, "name solver status began_s seconds finish_us bound_us message")


class Trace(tuple[TraceEntry, ...]):
    """Incumbent trace: an entry for each better schedule or bound; the last entry is that of the result."""

    __slots__ = ()

    @classmethod
    def of(cls, entries: Iterable[TraceEntry], last: TraceEntry) -> Trace:
        """Trace of searches that may use different chunks, in order of time, ended by the result's entry.

        Entries of a whole schedule that finishes later than an earlier one keep their bound, with the earlier
        finish. A bound above the best finish so far was proven for other chunks, and is left out.
        """
        kept: list[TraceEntry] = []
        best_us = math.inf
        for entry in entries:
            if entry.half:
                kept.append(entry)
                continue
            was_us, best_us = best_us, min(best_us, math.inf if entry.finish_us is None else entry.finish_us)
            is_known = entry.bound_us is not None and entry.bound_us <= best_us
            if best_us < was_us or is_known:
                finish_us = None if best_us == math.inf else best_us
                kept.append(
                    replace(entry, finish_us=finish_us, bound_us=entry.bound_us if is_known else None)
                )
        return cls((*kept, last))

    def to_frame(self) -> pd.DataFrame:
        """A pandas DataFrame with a row per entry: seconds, finish and bound in us, and the phase."""
        return _frame(self, "seconds finish_us bound_us half")


def _frame(rows: Iterable[Any], names: str) -> pd.DataFrame:
    """A DataFrame of attributes by name; times in us are numbers, NaN for None."""
    import pandas as pd

    columns = names.split()
    found = pd.DataFrame([[getattr(row, name) for name in columns] for row in rows], columns=columns)
    return found.astype({name: "float64" for name in columns if name.endswith("_us")})
