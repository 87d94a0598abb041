"""Texts that several verbs show: results, and the words for problems, rates and notes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import taccl
from taccl._internal.deadline import NEVER, Deadline, OutOfTime
from taccl._internal.names import shown, table
from taccl._internal.units import format_count, format_gap, format_size, format_us
from taccl.cli.output import Answer, picked

if TYPE_CHECKING:
    from taccl.analysis.certificates.certificate import Certificate
    from taccl.analysis.verification.findings import Verification
    from taccl.problem.problem import Problem
    from taccl.schedule.schedule import Schedule
    from taccl.synthesis.result import Result


def result_answer(result: Result, deadline: Deadline = NEVER) -> Answer:
    """A result: the figures, then a row per stage.

    - `deadline`: When the bound over all chunkings is given up, which takes a second or two.
    """
    try:
        with deadline.enforced():
            result.bound_of_every_cut  # noqa: B018  it is kept
    except (KeyboardInterrupt, OutOfTime):
        result = replace(result, is_brief=True)
    try:
        return Answer("\n".join([title_of(result.schedule.problem), *result.lines()]), result.to_dict())
    except KeyboardInterrupt:  # the bound over all chunkings may take seconds: without it
        return result_answer(replace(result, stopped="interrupted"))


#: The heads of columns, and how their values are shown.
_COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "name": ("sketch", str), "size_bytes": ("size", format_size), "chunks_per_rank": ("chunks/rank", str),
    "finish_us": ("finish", format_us), "predicted_us": ("predicted", format_us),
    "bound_us": ("bound", format_us), "gap": ("gap", format_gap),
    "gap_of_every_cut": ("gap over all chunkings", format_gap), "seconds": ("seconds", "{:.2f}".format),
    "algbw_gb_per_s": ("algbw GB/s", "{:.4g}".format), "busbw_gb_per_s": ("busbw GB/s", "{:.4g}".format),
    "interval_us": ("interval", format_us),
    "interval_algbw_gb_per_s": ("algbw GB/s in tiles", "{:.4g}".format),
    "interval_limits": ("limited by", str), "utilisation": ("busy", "{:.1%}".format),
    "latency_us": ("latency", format_us), "gb_per_s": ("algbw GB/s without latency", "{:.4g}".format),
    "routing_status": ("routing", str), "ordering_status": ("ordering", str),
    "solver_bound_us": ("solver's bound", format_us), "model_columns": ("variables", str),
    "first_schedule_s": ("first at s", "{:.2f}".format), "best_schedule_s": ("best at s", "{:.2f}".format),
    "time_us": ("time by NCCL's model", format_us), "algorithm": ("considered", str),
}  # fmt: skip


def figures_table(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """Columns of plain values by name, as ``--json`` prints them; `predicted_us` where launches count."""
    launched = any(row.get("predicted_us") != row.get("finish_us") for row in rows)
    shown = [_COLUMNS.get(name, (name, str)) for name in names if launched or name != "predicted_us"]
    names = [name for name in names if launched or name != "predicted_us"]
    cells = [
        ["-" if row[name] is None else show(row[name]) for name, (_, show) in zip(names, shown, strict=True)]
        for row in rows
    ]
    return table([[head for head, _ in shown], *cells], indent="  ")


def finish_text(schedule: Schedule) -> str:
    """Finish of a schedule and its bandwidth."""
    return ", ".join(filter(None, (schedule.timing, schedule.bandwidth_text)))


def following_values(schedule: Schedule, bound: Certificate | None = None) -> dict[str, Any]:
    """The figures of a schedule, or of a program's, as plain values.

    - `bound`: One that is shown beside them; None works it out.
    """
    bound = bound or taccl.lower_bound(schedule.problem)
    gap = bound.gap(schedule.finish)
    uses = taccl.simulate(schedule).resources
    busiest = max(uses, key=lambda use: use.busy, default=None)
    return {
        "size_bytes": schedule.problem.size_bytes,
        **picked(schedule, "finish_us", "launch_us", "predicted_us", "algbw_gb_per_s", "busbw_gb_per_s"),
        "bound_us": bound.bound_us, "bound_limits": bound.limits,
        "gap": None if gap == float("inf") else gap,
        "busiest": None if busiest is None else busiest.name,
        "utilisation": 0.0 if busiest is None else busiest.utilisation,
        **picked(schedule, "num_transfers", "num_sends"),
    }  # fmt: skip


def title_of(problem: Problem) -> str:
    """Collective, topology, sketch, costs and size of a problem, as a title."""
    sketch = f", sketch {shown(problem.clauses.name)}" if problem.clauses.name else ""
    size = f", {format_size(problem.size_bytes)}" if problem.size_bytes else ""
    model = " (upstream cost model)" if problem.topology.cost_model == "upstream" else ""
    return f"{problem.title}{sketch}{size}{model}"


def transfers_text(found: Schedule | Verification) -> str:
    """Number of transfers, and of the sends that carry them."""
    return f"{format_count(found.num_transfers, 'transfer')} in {format_count(found.num_sends, 'send')}"
