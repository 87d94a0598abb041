"""Solve a linear model with a named solver in a worker process, and check its solution."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from taccl.solvers.model import LinearModel, MilpModel
from taccl.solvers.registry import require_known, solver_task
from taccl.solvers.worker import run_task

STATUSES = (
    "optimal",  # proven within the relative gap
    "feasible",  # a limit was reached with a solution
    "infeasible",
    "no-solution",  # a limit was reached without a solution
    "interrupted",  # Ctrl-C
    "crashed",
    "out-of-memory",
    "unlicensed",
    "unavailable",
)
_WITHOUT_BOUND = ("infeasible", "unlicensed", "unavailable")
_VET_TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """Result of a solver on a model.

    - `solver`, `version`: Name of the solver; its version, empty if unknown.
    - `status`: One of `STATUSES`.
    - `objective`: Objective value of `values`; None without a solution.
    - `bound`: Lower bound on the objective, as reported by the solver; None if unknown.
    - `values`, (V,) float64 or None: Solution, checked against the model and rounded where integer. Present
      if "optimal" or "feasible". If "interrupted", "crashed" or "out-of-memory", the best known point, if
      any.
    - `seconds`: Duration of the whole call.
    - `first_feasible_s`: Time of the first reported solution; None if not reported.
    - `message`: Text for users: the reason of a failure, or a remark on the result.
    - `progress`: Tuple of (seconds, objective, bound).
    - `nodes`: Nodes of the search tree, or branches of CP-SAT; None if not reported.
    """

    solver: str
    version: str
    status: str
    objective: float | None
    bound: float | None
    values: np.ndarray | None
    seconds: float
    first_feasible_s: float | None
    message: str
    progress: tuple[tuple[float, float | None, float | None], ...]
    nodes: int | None = None


def solve(
    model: MilpModel | LinearModel,
    solver: str = "highs",
    *,
    time_limit_s: float = 60.0,
    end_s: float = math.inf,
    threads: int = 1,
    seed: int = 0,
    hint: np.ndarray | None = None,
    memory_limit_mb: int | None = None,
    log: bool = False,
    on_progress: Callable[[dict[str, Any]], None] | None = None,
) -> Solution:
    """Solve a model with a named solver. Failures of the solver are reported as a status, not an exception.

    - `solver`: One of `taccl.solvers.registry.known_solvers`, or ``pulp:NAME``.
    - `time_limit_s`: Time limit in seconds; the status is "no-solution" if it is not positive.
    - `end_s`: Time (`time.monotonic`) at which the solver's process is killed at the latest.
    - `threads`: Number of threads, at least 1.
    - `hint`, (V,) float64: Start point, nan where unknown. It need not be feasible.
    - `memory_limit_mb`: See `taccl.solvers.worker.run_task`.
    - `log`: True to print the solver's log to standard error.
    - `on_progress`: Called in this thread while the solver runs, with a dict: ``"seconds"`` since the start,
      the best ``"objective"`` and ``"bound"`` (or None), and ``"values"`` of a new solution.

    Raises `InputError` if the solver is unknown.
    """
    require_known(solver)
    arrays = model.arrays() if isinstance(model, MilpModel) else model
    options = {"solver": solver, "threads": threads, "seed": seed, "hint": hint, "log": log}
    return _Call(arrays, options, time_limit_s, end_s, memory_limit_mb, on_progress).solution()


@dataclass(slots=True)
class _Call:
    """One call of `solve`: its arguments, and the progress so far."""

    model: LinearModel
    options: dict[str, Any]
    time_limit_s: float
    end_s: float = math.inf
    memory_limit_mb: int | None = None
    on_progress: Callable[[dict[str, Any]], None] | None = None
    start_s: float = field(default_factory=time.monotonic)
    progress: list[tuple[float, float | None, float | None]] = field(default_factory=list)
    best: dict[str, Any] = field(default_factory=dict)  # last report with values
    bound: float | None = None
    nodes: int | None = None

    def solution(self) -> Solution:
        model = self.model
        # A lower bound above the upper one is found here, as some solvers raise errors for such bounds.
        for crossed, name in (
            (np.flatnonzero(model.lower > model.upper), "variable {}"),
            (np.flatnonzero(model.row_lower > model.row_upper), "row {} ({})"),
        ):
            if crossed.size:
                tag = model.tag_names[model.row_tag[crossed[0]]] if name.startswith("row") else ""
                message = f"{name.format(crossed[0], tag)} has a lower bound above its upper bound"
                return self._vetted("infeasible", message)
        if self.time_limit_s <= 0:
            return self._vetted("no-solution", "no time left to solve")

        outcome = run_task(
            *solver_task(self.options["solver"]),
            {"model": model.to_message(), **self.options},
            time_limit_s=self.time_limit_s,
            end_s=self.end_s,
            memory_limit_mb=self.memory_limit_mb,
            on_progress=self._note,
            log=self.options["log"],
        )
        result = outcome.result
        if result is None:  # the worker died or was killed; its last report still counts
            values = self.best.get("values")
            status: str = outcome.status
            if status == "timed-out":
                status = "no-solution" if values is None else "feasible"
            return self._vetted(status, outcome.message, values, self.best.get("version", ""))
        self.nodes = result.get("nodes")
        status, message, values = result["status"], result.get("message", ""), result.get("values")
        if outcome.status == "interrupted":
            status, message = "interrupted", outcome.message
            values = self.best.get("values") if values is None else values
        if values is None and status == "feasible":
            status = "no-solution"
        if result.get("bound") is not None:
            self.bound = result["bound"]
        return self._vetted(status, message, values, result.get("version", ""))

    def _note(self, news: dict[str, Any]) -> None:
        self.progress.append((news["seconds"], news["objective"], news["bound"]))
        self.bound = self.bound if news["bound"] is None else news["bound"]
        if "values" in news:
            self.best = news
        if self.on_progress is not None:
            self.on_progress(news)

    def _vetted(
        self, status: str, message: str, values: np.ndarray | None = None, version: str = ""
    ) -> Solution:
        model, solver, objective = self.model, self.options["solver"], None
        if values is not None:
            values = np.where(model.integer, np.round(values), values)
            # Move values that violate bounds within the tolerance onto the bounds.
            held = np.clip(values, model.lower, model.upper)
            values = held if np.all(np.abs(held - values) <= _VET_TOLERANCE) else values
            broken = model.violations(values, _VET_TOLERANCE)
            if broken:
                status, values = "crashed", None
                message = f"{solver} returned a point that breaks {broken[0]}"
            else:
                values.flags.writeable = False
                objective = model.objective(values)
        elif status == "optimal":
            status, message = "crashed", f"{solver} reported the model solved but returned no point"
        proven = self.bound is not None and math.isfinite(self.bound) and status not in _WITHOUT_BOUND
        return Solution(
            solver=solver,
            version=version,
            status=status,
            objective=objective,
            bound=self.bound if proven else None,
            values=values,
            seconds=time.monotonic() - self.start_s,
            first_feasible_s=next((item[0] for item in self.progress if item[1] is not None), None),
            message=message,
            progress=tuple(self.progress),
            nodes=self.nodes,
        )
