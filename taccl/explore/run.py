"""Perform one run of a comparison, in any process: synthesize, and return a row and a cache document."""

from __future__ import annotations

import json
import math
import os
import platform
import threading
import time
import warnings
from functools import cache
from typing import Any, NamedTuple

from taccl.errors import (
    FallbackWarning,
    InfeasibleError,
    InputError,
    NoSolutionError,
    SolverUnavailableError,
    TacclError,
    TacclWarning,
)
from taccl.explore.cache import entry_document, key_of
from taccl.explore.rows import OF_SCHEDULES, figures
from taccl.problem.collectives import allgather
from taccl.problem.making import make_problem
from taccl.problem.problem import Problem
from taccl.schedule.schedule import MANY
from taccl.solvers.process import WORKERS
from taccl.topology.registry import parse

#: Columns of a row that are options of its run.
_OPTIONS = ("backend", "seed", "time_limit_s", "threads", "parameters")
#: Min time limit in seconds of a run that shares the remaining time with other runs.
_LEAST_LIMIT_S = 0.1
#: Max seconds after the time limit of all runs at which a run may still start; later runs are left out.
_LATE_S = 1.0
#: Seconds that solver processes of a worker process wait for the next run.
_LINGER_S = 3.0

_STATUSES: tuple[tuple[type[BaseException], str], ...] = (
    (InfeasibleError, "infeasible"), (SolverUnavailableError, "unavailable"),
    (NoSolutionError, "no schedule"), (InputError, "does not fit"), (MemoryError, "out of memory"),
    (KeyboardInterrupt, "interrupted"),
)  # fmt: skip


class RunRequest(NamedTuple):
    """One synthesis run of a comparison, as its worker process receives it.

    - `row`: The run's row of the table, with the values that are known before the run.
    - `home`: Identifier of the process that called `compare` or `sweep`.
    - `stores`: True if results go into the cache.
    - `until_s`: End of all runs on the clock of `time.time`; inf if each run has its own time limit.
    - `rounds`: Number of successive runs of one worker until `until_s`, this one included.
    - `is_first`: True if the run is performed however late it begins, so that there is a result.
    """

    problem: Problem
    row: dict[str, Any]
    home: str
    stores: bool
    until_s: float = math.inf
    rounds: int = 1
    is_first: bool = True

    @property
    def is_too_late(self) -> bool:
        """True if the time limit of all runs has passed, so that this run is left out."""
        return not self.is_first and time.time() > self.until_s + _LATE_S

    @property
    def limit_s(self) -> float:
        """Time limit of the run in seconds: its own, or less if its share of the time left for all is less.

        Time that earlier runs left unused goes to no run, so that all runs of a comparison have equal limits.
        """
        left_s = max(_LEAST_LIMIT_S, (self.until_s - time.time()) / self.rounds)
        return min(float(self.row["time_limit_s"]), left_s)


def known_row(problem: Problem, row: dict[str, Any]) -> dict[str, Any]:
    """Complete a run's row with all values that are known before the run."""
    digest = problem.digest()
    topology, collective = problem.topology, problem.collective
    options = {name: row[name] for name in _OPTIONS if row[name] is not None}
    return row | {
        "topology": topology.name, "collective": collective.name, "num_ranks": topology.num_ranks,
        "size_bytes": problem.size_bytes,
        "chunks_per_rank": None if problem.chunks_open else collective.chunks_per_rank,
        "protocol": topology.protocol or None,
        "problem_digest": digest, "key": key_of(digest, **options),
    }  # fmt: skip


def perform(run: RunRequest) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Perform a run; return (row, document for the cache, or None). The row of a failed run says why."""
    if run.is_too_late:
        why = "no time was left for it; give more time"
        return run.row | {"error": why}, None
    # Import synthesis only here, as cached results do not need it.
    from taccl.synthesis.parameters import SearchParameters
    from taccl.synthesis.synthesize import synthesize

    _load_libraries()
    since = time.monotonic()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TacclWarning)
        try:
            asked = {name: run.row[name] for name in ("backend", "threads", "seed")}
            asked["time_limit_s"] = run.limit_s
            parameters = SearchParameters.from_dict(json.loads(run.row["parameters"] or "{}"))
            result = synthesize(run.problem, **asked, parameters=parameters)
        except (Exception, KeyboardInterrupt) as error:
            row = failed_row(run.row, error) | {"seconds": time.monotonic() - since}
            return row, entry_document(row["key"], row, None) if _worth_storing(row, run) else None
        finally:
            _end_solvers_soon(run.home)
    row = run.row | figures(result)
    said = (str(w.message) for w in caught if issubclass(w.category, TacclWarning))
    model = run.problem.topology.proviso
    notes = dict.fromkeys((*result.notes, *said, *([f"model: {model}"] if model else [])))
    row["notes"] = "; ".join(notes) or None
    if any(issubclass(w.category, FallbackWarning) for w in caught):
        # The schedule is that of a fallback; the backend itself found none.
        own = [stage.status for stage in result.stages if stage.solver == run.row["backend"]]
        ended = "interrupted" if result.interrupted else "no schedule"
        row |= dict.fromkeys(OF_SCHEDULES) | {
            "status": "unlicensed" if "unlicensed" in own else ended, "verified": False,
            "error": "; ".join(note for note in result.notes if note not in run.problem.notes),
            "notes": "; ".join(run.problem.notes) or None,
        }  # fmt: skip
    if not _worth_storing(row, run) or result.schedule.num_transfers > MANY:
        return row, None
    return row, entry_document(row["key"], row, result.schedule, found=result.to_dict())


def _worth_storing(row: dict[str, Any], run: RunRequest) -> bool:
    """True if the cache should store a run: not after Ctrl-C, nor after errors other than infeasibility."""
    lasting = row["verified"] or row["status"] == "infeasible"
    return run.stores and lasting and row["stopped"] != "interrupted"


def failed_row(row: dict[str, Any], error: BaseException) -> dict[str, Any]:
    """Complete the row of a run that failed: its status, and the message of the error."""
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), "crashed")
    text = str(error) if isinstance(error, TacclError) else f"{type(error).__name__}: {error}".rstrip(": ")
    return row | {"status": status, "error": text}


@cache
def _load_libraries() -> None:
    """Load the libraries of `synthesize` (about 1 s), so that no run's time includes them."""
    from taccl.synthesis.synthesize import synthesize

    ring = parse("ring:2")
    synthesize(make_problem(ring, allgather(2), chunk_bytes=1), backend="greedy", time_limit_s=1.0)


def this_process() -> str:
    """Identifier of this process, unique across machines."""
    return f"{platform.node()} {os.getpid()}"


_lingering: list[threading.Timer] = []
_one_at_a_time = threading.Lock()


def _end_solvers_soon(home: str) -> None:
    """End a worker's idle solver processes after `_LINGER_S`; keep those of the process `home`."""
    if this_process() == home:
        return
    with _one_at_a_time:
        while _lingering:
            _lingering.pop().cancel()
        timer = threading.Timer(_LINGER_S, WORKERS.end_idle)
        timer.daemon = True
        timer.start()
        _lingering.append(timer)
