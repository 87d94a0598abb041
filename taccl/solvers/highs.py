"""HiGHS, through highspy; runs inside a worker that never imports ortools."""

from __future__ import annotations

from typing import Any

import numpy as np

from taccl.solvers.child import Control
from taccl.solvers.model import RELATIVE_GAP, LinearModel

LIBRARIES = ("highspy",)

#: {name of a `HighsModelStatus`: its meaning}; any other is a crash.
_STATUSES = {
    "kOptimal": "optimal",
    "kModelEmpty": "optimal",
    "kInfeasible": "infeasible",
    "kUnboundedOrInfeasible": "infeasible",  # every variable of a model has bounds
    "kMemoryLimit": "out-of-memory",
    "kTimeLimit": "feasible",
    "kInterrupt": "feasible",
    "kHighsInterrupt": "feasible",
    "kIterationLimit": "feasible",
    "kSolutionLimit": "feasible",
}


def availability(payload: dict[str, Any], control: Control) -> dict[str, Any]:
    """``{"solvers": [...]}`` with the version and licence."""
    import highspy

    return {"solvers": [{"name": "highs", "version": highspy.Highs().version(), "licence": "MIT"}]}


def run(payload: dict[str, Any], control: Control) -> dict[str, Any]:
    """Solve ``payload["model"]``; a dict with `status`, `values`, `bound`, `nodes` and `message`."""
    model = LinearModel.from_message(payload["model"])
    highs = highs_with(model)
    control.version = highs.version()
    highs.resetGlobalScheduler(True)  # the number of threads is fixed once per process otherwise
    highs.setOptionValue("output_flag", payload["log"])
    highs.setOptionValue("threads", payload["threads"])
    highs.setOptionValue("random_seed", payload["seed"] % 2**31)
    highs.setOptionValue("mip_rel_gap", RELATIVE_GAP)
    highs.setOptionValue("time_limit", control.time_left_s())
    if payload["hint"] is not None:
        known = np.flatnonzero(np.isfinite(payload["hint"])).astype(np.int32)
        highs.setSolution(len(known), known, payload["hint"][known])
    _listen(highs, control)
    return _read(highs, highs.run(), is_mip=bool(model.integer.any()))


def highs_with(model: LinearModel) -> Any:
    """HiGHS, silent, with a model in it."""
    import highspy

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
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.passModel(lp)
    return highs


def _listen(highs: Any, control: Control) -> None:
    """Report each better solution, and the bound now and then; pass stop requests on."""

    def report_solution(event: Any) -> None:
        out = event.data_out
        values = np.array(out.mip_solution, dtype=np.float64)
        control.tell(out.objective_function_value, out.mip_dual_bound, values)

    def check(event: Any) -> None:
        if control.stop_requested():
            event.interrupt()

    def report_bound(event: Any) -> None:
        control.tell_now_and_then(event.data_out.mip_primal_bound, event.data_out.mip_dual_bound)

    highs.cbMipImprovingSolution += report_solution
    highs.cbMipInterrupt += check
    highs.cbMipInterrupt += report_bound
    highs.cbSimplexInterrupt += check


def _read(highs: Any, run_status: Any, *, is_mip: bool) -> dict[str, Any]:
    import highspy

    info, name = highs.getInfo(), highs.getModelStatus().name
    status, said = _STATUSES.get(name, "crashed"), highs.modelStatusToString(highs.getModelStatus())
    values = None
    if info.primal_solution_status == int(highspy.SolutionStatus.kSolutionStatusFeasible):
        values = np.array(highs.getSolution().col_value, dtype=np.float64)
    elif status == "optimal":
        values = np.zeros(highs.getNumCol())
    messages = {
        "feasible": f"HiGHS stopped: {said.lower()}",
        "out-of-memory": "HiGHS ran out of memory",
        "crashed": f"HiGHS ended with status {said!r} ({run_status})",
    }
    bound = info.objective_function_value if status == "optimal" else None
    return {
        "status": status,
        "values": values,
        "bound": info.mip_dual_bound if is_mip else bound,
        "message": messages.get(status, ""),
        "nodes": int(info.mip_node_count) if is_mip else 0,
    }
