"""HiGHS, through highspy; runs inside a worker that never imports ortools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from taccl.solvers.model import LinearModel

if TYPE_CHECKING:
    from taccl.solvers.child import Control

__all__ = ["LIBRARIES", "availability", "run"]

#: Loaded before a memory limit is set; see `taccl.solvers.child`.
LIBRARIES = ("highspy",)

_BOUND_NEWS_S = 0.5  # how often the bound is reported between solutions


def availability(payload: dict[str, Any], control: Control) -> dict[str, Any]:
    """``{"solvers": [...]}`` with the version and licence, or why HiGHS cannot run."""
    try:
        import highspy
    except Exception as error:
        return {"solvers": [{"name": "highs", "why_not": f"highspy does not load: {error}"}]}
    return {"solvers": [{"name": "highs", "version": highspy.Highs().version(), "licence": "MIT"}]}


def run(payload: dict[str, Any], control: Control) -> dict[str, Any]:
    """Solve ``payload["model"]``; a dict with `status`, `values`, `bound`, `message` and `version`."""
    try:
        import highspy
    except Exception as error:
        return {"status": "unavailable", "message": f"highspy does not load: {error}"}
    model = LinearModel.from_message(payload["model"])
    highs = highspy.Highs()
    _set_options(highs, payload, control)
    _pass_model(highspy, highs, model)
    if payload["hint"] is not None:
        known = np.flatnonzero(np.isfinite(payload["hint"])).astype(np.int32)
        highs.setSolution(len(known), known, payload["hint"][known])
    _listen(highspy, highs, control)
    run_status = highs.run()
    return {"version": highs.version(), **_read(highspy, highs, run_status)}


def _set_options(highs: Any, payload: dict[str, Any], control: Control) -> None:
    highs.resetGlobalScheduler(True)  # the number of threads is fixed once per process otherwise
    highs.setOptionValue("output_flag", payload["log"])
    highs.setOptionValue("threads", payload["threads"])
    highs.setOptionValue("random_seed", payload["seed"] % 2**31)
    highs.setOptionValue("mip_rel_gap", payload["relative_gap"])
    highs.setOptionValue("time_limit", control.time_left_s())


def _pass_model(highspy: Any, highs: Any, model: LinearModel) -> None:
    lp = highspy.HighsLp()
    lp.num_col_ = model.num_variables
    lp.num_row_ = model.num_rows
    lp.col_cost_ = model.cost
    lp.col_lower_ = model.lower
    lp.col_upper_ = model.upper
    lp.row_lower_ = model.row_lower
    lp.row_upper_ = model.row_upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = model.row_start.astype(np.int32)
    lp.a_matrix_.index_ = model.column.astype(np.int32)
    lp.a_matrix_.value_ = model.coefficient
    kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
    if model.integer.any():
        lp.integrality_ = [kinds[integer] for integer in model.integer.tolist()]
    highs.passModel(lp)


def _listen(highspy: Any, highs: Any, control: Control) -> None:
    """Report each better solution, and the bound now and then; pass stop requests on."""
    last_news_s = 0.0

    def report_solution(event: Any) -> None:
        out = event.data_out
        control.progress(
            {
                "seconds": control.seconds(),
                "objective": out.objective_function_value,
                "bound": out.mip_dual_bound,
                "values": np.array(out.mip_solution, dtype=np.float64),
                "version": highs.version(),
            }
        )

    def check(event: Any) -> None:
        nonlocal last_news_s
        if control.stop_requested():
            event.interrupt()
        if control.seconds() - last_news_s < _BOUND_NEWS_S:
            return
        last_news_s = control.seconds()
        objective, bound = event.data_out.mip_primal_bound, event.data_out.mip_dual_bound
        control.progress(
            {
                "seconds": control.seconds(),
                "objective": objective if np.isfinite(objective) else None,
                "bound": bound if np.isfinite(bound) else None,
            }
        )

    def check_simplex(event: Any) -> None:
        if control.stop_requested():
            event.interrupt()

    highs.cbMipImprovingSolution += report_solution
    highs.cbMipInterrupt += check
    highs.cbSimplexInterrupt += check_simplex


def _read(highspy: Any, highs: Any, run_status: Any) -> dict[str, Any]:
    statuses = highspy.HighsModelStatus
    status = highs.getModelStatus()
    info = highs.getInfo()
    values = None
    if info.primal_solution_status == int(highspy.SolutionStatus.kSolutionStatusFeasible):
        values = np.array(highs.getSolution().col_value, dtype=np.float64)
    is_mip = bool(highs.getLp().integrality_)
    bound = info.mip_dual_bound if is_mip else None
    if status == statuses.kOptimal or status == statuses.kModelEmpty:
        return {
            "status": "optimal",
            "values": values if values is not None else np.zeros(highs.getNumCol()),
            "bound": bound if is_mip else info.objective_function_value,
        }
    if status == statuses.kInfeasible:
        return {"status": "infeasible"}
    if status == statuses.kUnbounded:
        return {"status": "unbounded"}
    if status == statuses.kUnboundedOrInfeasible:
        return {"status": "infeasible-or-unbounded"}
    if status == statuses.kMemoryLimit:
        return {"status": "out-of-memory", "message": "HiGHS ran out of memory", "bound": bound}
    limits = (statuses.kTimeLimit, statuses.kInterrupt, statuses.kHighsInterrupt, statuses.kIterationLimit)
    if status in limits or status == statuses.kSolutionLimit:
        reason = highs.modelStatusToString(status)
        return {
            "status": "no-solution" if values is None else "feasible",
            "values": values,
            "bound": bound,
            "message": f"HiGHS stopped: {reason.lower()}",
        }
    return {
        "status": "crashed",
        "message": f"HiGHS ended with status {highs.modelStatusToString(status)!r} ({run_status})",
    }
