"""The table of a comparison: one row per run, always with the same columns.

A row is a dict of plain values, None where a value does not apply. `COLUMNS` is the documented schema.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from taccl.solvers.registry import package_versions
from taccl.synthesis.result import Result

if TYPE_CHECKING:
    import pandas as pd

    from taccl.schedule.schedule import Schedule

#: Value of the column ``sketch`` for a run without a sketch; grouping in pandas would drop missing values.
NO_SKETCH = "none"


class Column(NamedTuple):
    """A column: its name with its unit, its pandas dtype, and its meaning."""

    name: str
    dtype: str
    meaning: str


_STATUS = (
    "`proven` (no schedule finishes sooner, over all chunkings), `proven for its chunks` (no schedule in the "
    "same number of chunks finishes sooner), `found`; or, without a schedule: `infeasible`, "
    "`does not fit` (sketch, topology and collective are incompatible), `unavailable`, `unlicensed`, "
    "`no schedule` (within the time), `out of memory`, `crashed`, `interrupted`, `not run`"
)

_BOUND = "best lower bound of all runs of the problem; over all chunkings if their number is open"
_GAP = "(finish - bound) / bound; 0 is optimal"
_GAP_IN_CHUNKS = "gap to the bound for these chunks; 0 is optimal for them"
_EVERY = "lower bound over all chunkings"
_SOLVER_BOUND = (
    "solver's bound for schedules with the sketch's symmetry and routing slack; missing if it routed one "
    "phase of a reduction"
)
_ROWS = "the stages as JSON, with the reasons for skipped ones: `pandas.DataFrame(json.loads(text))`"
_CACHED = "true if the result is from the cache; its seconds are those of the first run"

COLUMNS: tuple[Column, ...] = (
    Column("topology", "string", "name of the topology"),
    Column("collective", "string", "name of the collective"),
    Column("num_ranks", "Int64", "ranks of the topology"),
    Column("sketch", "string", f"name of the sketch; `{NO_SKETCH}` without one"),
    Column("size_bytes", "Int64", "larger of one rank's input and output buffer"),
    Column("chunks_per_rank", "Int64", "number of chunks that each rank's data is cut into, given or chosen"),
    Column("protocol", "string", "protocol of messages, given or chosen"),
    Column("backend", "string", "requested backend"),
    Column("seed", "Int64", "seed of the run"),
    Column("time_limit_s", "float64", "time limit of the run"),
    Column("threads", "Int64", "threads of each solver"),
    Column("parameters", "string", "non-default fields of `SearchParameters`, as JSON"),
    Column("status", "string", _STATUS),
    Column("error", "string", "the reason, if there is no schedule"),
    Column("stopped", "string", "why the search ended, as in `Result.stopped`"),
    Column("finish_us", "float64", "the last arrival"),
    Column("launch_us", "float64", "time before the first send, from the machine's profile"),
    Column("predicted_us", "float64", "launch plus finish"),
    Column("bound_us", "float64", _BOUND),
    Column("bound_scope", "string", "scope of the bound: `all chunkings`, `2 chunks per rank`"),
    Column("gap", "float64", _GAP),
    Column("gap_in_chunks", "float64", _GAP_IN_CHUNKS),
    Column("bound_over_all_chunkings_us", "float64", _EVERY),
    Column("gap_over_all_chunkings", "float64", "gap to that bound"),
    Column("algbw_gb_per_s", "float64", "size divided by finish"),
    Column("busbw_gb_per_s", "float64", "bus bandwidth, as nccl-tests counts it"),
    Column("bound_limits", "string", "the bottleneck named by the bound"),
    Column("num_transfers", "Int64", "transfers of the schedule"),
    Column("num_sends", "Int64", "sends of the schedule; a merged send counts once"),
    Column("producer", "string", "the stage that found the schedule"),
    Column("model_columns", "Int64", "variables of the largest linear model"),
    Column("model_rows", "Int64", "its rows"),
    Column("model_nonzeros", "Int64", "its nonzero coefficients"),
    Column("model_first_feasible_s", "float64", "from its solver's start to the first point it reported"),
    Column("model_proof_s", "float64", "from its solver's start to the proof that no point is better"),
    Column("routing_status", "string", "status of the last routing on a solver"),
    Column("ordering_status", "string", "status of the last job shop or contiguity model"),
    Column("solver_bound_us", "float64", _SOLVER_BOUND),
    Column("nodes", "Int64", "nodes of all branch-and-bound trees; branches of CP-SAT"),
    Column("rounds", "Int64", "number of routings"),
    Column("first_schedule_s", "float64", "from the run's start to the first verified schedule"),
    Column("best_schedule_s", "float64", "from the run's start to the returned schedule"),
    Column("proven_s", "float64", "from the run's start until the finish met the bound"),
    Column("seconds", "float64", "time of the whole run; the next rows are its parts"),
    Column("bound_s", "float64", "part: the lower bound"),
    Column("baselines_s", "float64", "part: baselines"),
    Column("chunks_s", "float64", "part: the choice of the number of chunks"),
    Column("kernels_s", "float64", "part: loading compiled functions, or waiting until they are compiled"),
    Column("suggest_s", "float64", "part: suggesting sketches, if none was given"),
    Column("quotient_s", "float64", "part: the quotient by symmetry"),
    Column("greedy_s", "float64", "part: the list scheduler"),
    Column("routing_s", "float64", "part: routing"),
    Column("ordering_s", "float64", "part: ordering by rules"),
    Column("contiguity_s", "float64", "part: contiguity"),
    Column("job_shop_s", "float64", "part: job shops, of one phase or of both"),
    Column("improve_s", "float64", "part: improvement of the best schedule by job shops"),
    Column("ruin_s", "float64", "part: its improvement by ruin and recreate"),
    Column("other_s", "float64", "part: all else, such as verification"),
    Column("stages", "string", _ROWS),
    Column("verified", "bool", "true if there is a schedule, which is then verified"),
    Column("from_cache", "bool", _CACHED),
    Column("taccl_version", "string", "version of taccl"),
    Column("solver_version", "string", "name and version of each solver that ran"),
    Column("python_version", "string", "version of Python"),
    Column("notes", "string", "notes of the run: padding, reduced symmetry, warnings"),
    Column("problem_digest", "string", "`Problem.digest()`"),
    Column("schedule_digest", "string", "`Schedule.digest()`"),
    Column("key", "string", "the result's key in the cache"),
)

#: {dtype of a column: type of its plain values}.
_KINDS: dict[str, type] = {"string": str, "Int64": int, "float64": float, "bool": bool}
#: Columns that identify the run of a row: those up to `parameters`.
LABELS = tuple(column.name for column in COLUMNS[:12])

#: Columns that a table shows by default, together with the columns of `LABELS` in which its rows differ.
SHORT = (
    "sketch", "size_bytes", "chunks_per_rank", "backend", "status", "error", "finish_us", "bound_us", "gap",
    "gap_over_all_chunkings", "algbw_gb_per_s", "seconds",
)  # fmt: skip

#: Columns of a table with details, which shows the work of each backend.
DETAILS = (
    "backend", "status", "error", "finish_us", "bound_us", "gap", "routing_status", "ordering_status",
    "solver_bound_us", "model_columns", "nodes", "rounds", "first_schedule_s", "best_schedule_s", "seconds",
)  # fmt: skip

#: Columns that compare a finish with bounds.
_GAPS = ("gap", "gap_in_chunks", "gap_over_all_chunkings")
#: `_MEASURES`: columns that follow from a schedule alone.
#: `OF_SCHEDULES`: columns that are empty without a schedule.
_MEASURES = (
    "finish_us", "launch_us", "predicted_us", "algbw_gb_per_s", "busbw_gb_per_s", "num_transfers",
    "num_sends", "producer",
)  # fmt: skip
OF_SCHEDULES = (
    *_MEASURES, *_GAPS, "first_schedule_s", "best_schedule_s", "proven_s", "schedule_digest"
)  # fmt: skip

_STAGES = (
    "bound", "baselines", "chunks", "kernels", "suggest", "quotient", "greedy", "routing", "ordering",
    "contiguity", "improve",
)  # fmt: skip
_STAGE_COLUMNS = {stage: f"{stage}_s" for stage in _STAGES}
_STAGE_COLUMNS |= dict.fromkeys(("joint", "job shop"), "job_shop_s")
_STAGE_COLUMNS |= {"bound over all chunkings": "bound_s", "ruin and recreate": "ruin_s"}
#: Fields of a stage in the column ``stages``.
_STAGE_FIELDS = ("name", "solver", "status", "began_s", "seconds", "finish_us", "bound_us", "message")
_OF_MODELS = {
    "model_columns": "num_columns", "model_rows": "num_rows", "model_nonzeros": "num_nonzeros",
    "model_first_feasible_s": "first_feasible_s", "model_proof_s": "proof_s",
}  # fmt: skip


def new_row(**known: Any) -> dict[str, Any]:
    """Row with the `known` values; the other columns are None, and the status is "not run"."""
    row: dict[str, Any] = dict.fromkeys(column.name for column in COLUMNS)
    row |= {"status": "not run", "verified": False, "from_cache": False}
    assert known.keys() <= row.keys(), f"unknown columns {sorted(known.keys() - row.keys())}"
    return row | known


def _status(row: dict[str, Any]) -> str:
    """Status of a schedule by its gaps: found, proven, or proven for its chunks."""
    if 0 not in (row["gap"], row["gap_in_chunks"]):
        return "found"
    every: float | None = row["bound_over_all_chunkings_us"]
    return "proven" if every is not None and row["finish_us"] <= every else "proven for its chunks"


def frame(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Rows as a DataFrame with the columns and dtypes of `COLUMNS`, in the rows' order."""
    import pandas as pd

    return pd.DataFrame({c.name: pd.Series([row[c.name] for row in rows], dtype=c.dtype) for c in COLUMNS})


def shortened(table: pd.DataFrame, shown: Sequence[str] = SHORT) -> pd.DataFrame:
    """Reduce a table to the columns `shown`, and those of `LABELS` in which its rows differ."""
    differ = {name for name in LABELS if table[name].nunique(dropna=False) > 1}
    return table[[column.name for column in COLUMNS if column.name in differ.union(shown)]]


def with_best_bounds(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, each with the best bound that any run on the same problem proved.

    The time for a bound is limited, so runs of one problem may prove different bounds. Each bound holds for
    all of these runs.
    """
    bounded = _with_best(rows, ("problem_digest", "bound_scope"), "gap", ("bound_us", "bound_limits"))
    return _with_best(
        bounded, ("problem_digest",), "gap_over_all_chunkings", ("bound_over_all_chunkings_us",)
    )


def _with_best(
    rows: Sequence[dict[str, Any]], labels: Sequence[str], gap: str, proof: Sequence[str]
) -> list[dict[str, Any]]:
    """The rows, each with the best bound proved in any row with equal values in the columns `labels`.

    - `gap`: Column of the gap to the bound.
    - `proof`: Column of the bound, and the columns that are copied with it.
    """
    bound, best = proof[0], dict[tuple[Any, ...], dict[str, Any]]()
    for row in rows:
        key = tuple(row[name] for name in labels)
        if row[bound] is not None and (key not in best or row[bound] > best[key][bound]):
            best[key] = row
    completed = []
    for row in rows:
        of = best.get(tuple(row[name] for name in labels))
        if row["finish_us"] is not None and of is not None and of[bound] > (row[bound] or 0.0):
            row = row | {name: of[name] for name in proof} | {gap: row["finish_us"] / of[bound] - 1}
            if (
                row["gap_in_chunks"] is None or row["gap_in_chunks"] > row[gap]
            ):  # the proved bound also holds for the row's own chunks
                row["gap_in_chunks"] = row[gap]
            row["status"] = _status(row)
        completed.append(row)
    return completed


def plain_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with plain values of the types of `COLUMNS`, ready for JSON; missing values are None."""

    def plain(value: Any, kind: type) -> Any:
        return None if value is None else kind(value)

    return [{each.name: plain(row[each.name], _KINDS[each.dtype]) for each in COLUMNS} for row in rows]


def figures(result: Result) -> dict[str, Any]:
    """{column of the table: value} for a synthesis result."""
    seconds = dict.fromkeys((*_STAGE_COLUMNS.values(), "other_s"), 0.0)
    for stage in result.stages:  # stage names may begin with a phase or a sketch
        seconds[_STAGE_COLUMNS.get(stage.name.rpartition(": ")[2], "other_s")] += stage.seconds
    seconds["other_s"] += max(0.0, result.seconds - sum(seconds.values()))
    # Omit finishes of a single phase of a reduction: one phase is not a schedule of the problem.
    known = (each.seconds for each in result.trace if each.finish_us is not None and not each.phase)
    models = [stage.model for stage in result.stages if stage.model is not None]
    num_nodes = [model.num_nodes for model in models if model.num_nodes is not None]
    largest = max(models, key=lambda model: model.num_nonzeros, default=None)
    versions = dict(result.versions) or package_versions()
    ran = [f"{stage.solver} {stage.model.solver_version}" for stage in result.stages if stage.model]
    if any(stage.solver == "cpsat" and stage.model is None for stage in result.stages):
        ran.append(f"cpsat {versions.get('ortools', '')}")
    every = result.bound_over_all_chunkings
    gaps = dict(zip(_GAPS, (result.gap, result.gap_in_chunks, result.gap_over_all_chunkings), strict=True))
    values: dict[str, Any] = {name: None if gap == math.inf else gap for name, gap in gaps.items()}
    values |= {"bound_us": result.bound_us, "finish_us": result.finish_us}
    values["bound_over_all_chunkings_us"] = None if every is None else every.bound_us
    return {
        "chunks_per_rank": result.schedule.problem.collective.chunks_per_rank,
        "bound_scope": result.bound.scope,
        "status": _status(values), **values, "stopped": result.stopped, "bound_limits": result.bound.limits,
        "first_schedule_s": min(known, default=result.seconds),
        "best_schedule_s": result.seconds if result.found_s is None else result.found_s,
        **_solved(result), "nodes": sum(num_nodes) if num_nodes else None,
        "proven_s": result.seconds if result.gap == 0 else None, "seconds": result.seconds, **seconds,
        "stages": json.dumps([{each: getattr(s, each) for each in _STAGE_FIELDS} for s in result.stages]),
        **{column: getattr(largest, name, None) for column, name in _OF_MODELS.items()},
        "taccl_version": versions.get("taccl"), "python_version": versions.get("python"),
        "solver_version": ", ".join(dict.fromkeys(map(str.strip, ran))) or None,
        **_measured(result.schedule),
    }  # fmt: skip


def _solved(result: Result) -> dict[str, Any]:
    """{column: value} from the stages that ran solvers: statuses, the solver's bound, number of routings."""
    routings = [each for each in result.stages if each.name.rpartition(": ")[2] == "routing"]
    ordered = ("joint", "job shop", "contiguity")
    orderings = [each.status for each in result.stages if each.name.rpartition(": ")[2] in ordered]
    # A solver's bound above the finish of the verified schedule is wrong: ignore it.
    bounds = [each.bound_us for each in routings if each.name == "routing" and each.bound_us is not None]
    sound = [bound for bound in bounds if bound <= result.finish_us * (1 + 1e-9)]
    return {
        "routing_status": routings[-1].status if routings else None,
        "ordering_status": orderings[-1] if orderings else None,
        "solver_bound_us": max(sound, default=None),
        "rounds": len(routings) or None,
    }


def is_of(row: dict[str, Any], schedule: Schedule) -> bool:
    """True if a row has a schedule's figures, and its gap and status agree with its lower bound."""
    bound_us, finish_us, gap = row["bound_us"], schedule.finish_us, row["gap"]
    if row != row | _measured(schedule) or bound_us is None or not 0 <= bound_us <= finish_us:
        return False
    fits = gap is None if not bound_us else math.isclose(finish_us / bound_us - 1, gap, abs_tol=1e-9)
    return fits and row["status"] == _status(row)


def _measured(schedule: Schedule) -> dict[str, Any]:
    measures = {name: getattr(schedule, name) for name in _MEASURES}
    return measures | {"schedule_digest": schedule.digest(), "verified": True}
