"""Quality and speed of synthesis: a table of all cases on one or more backends, with the finish to meet.

Every run is a separate command (``taccl synthesize``), so its seconds are those that a user waits.

Examples
--------
    python -m benchmarks.quality                                  # the portfolio, upstream costs
    python -m benchmarks.quality --cost-model physical
    python -m benchmarks.quality --backend highs --backend cpsat  # each backend alone
    python -m benchmarks.quality --plain                          # machines without a sketch
    python -m benchmarks.quality --output benchmarks/results/quality-upstream.json
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from itertools import product
from typing import TYPE_CHECKING

import taccl
from benchmarks.cases import CASES, PLAIN_CASES, Case, PlainCase, data_folder
from benchmarks.report import parser_of, shown, summed_up, wanted

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.report import Column, Row

_COLUMNS: tuple[Column, ...] = (
    ("case", "case", "<28"), ("backend", "backend", "<8"), ("finish", "finish_us", ">9.1f"),
    ("floor", "floor", ">8g"), ("bound", "bound_us", ">9.1f"), ("gap", "gap", ">7.2%"),
    ("seconds", "command_seconds", ">8.1f"),
)  # fmt: skip
_PLAIN: tuple[Column, ...] = (
    ("case", "case", "<36"), ("finish", "finish_us", ">10.2f"), ("at most", "finish_at_most", ">10.6g"),
    ("bound", "bound_us", ">10.2f"), ("gap", "gap", ">7.2%"), ("at most", "gap_at_most", ">8.2g"),
    ("seconds", "seconds", ">8.1f"),
)  # fmt: skip
BACKENDS = ("auto", "highs", "scip", "cbc", "gurobi", "cpsat", "greedy")


def main() -> int:
    """Run, print the table, and write the results; return 1 if the portfolio misses a case's figures."""
    parser = parser_of(__doc__)
    parser.add_argument("--backend", action="append", choices=[*BACKENDS, "all"], help="default: auto")
    parser.add_argument("--cost-model", choices=["upstream", "physical"], default="upstream")
    parser.add_argument("--case", action="append", help="part of a case's name; default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--time-limit", type=float, help="default: the command's own")
    parser.add_argument("--plain", action="store_true", help="machines without a sketch instead of the files")
    options = parser.parse_args()
    if options.plain:
        return run_plain(options.case, options.seed, options.output)
    backends = options.backend or ["auto"]
    if "all" in backends:
        backends = list(BACKENDS)
    runs = (
        run_case(case, backend, options.cost_model, seed=options.seed, limit_s=options.time_limit)
        for case, backend in product(CASES, backends)
        if wanted(case.name, options.case)
    )
    columns = [each for each in _COLUMNS if each[1] != "floor" or options.cost_model == "upstream"]
    rows = shown(columns, runs, _details, head="stages (seconds)")
    if rows and rows[0].get("versions"):
        print(", ".join(f"{name} {version}" for name, version in rows[0]["versions"].items()))
    return summed_up(options.output, {"rows": rows})


def run_plain(names: list[str] | None, seed: int, output: Path | None) -> int:
    """Run the portfolio on machines without a sketch, case by case; return 1 if a figure is missed."""
    rows = (run_plain_case(case, seed) for case in PLAIN_CASES if wanted(case.name, names))
    return summed_up(output, {"rows": shown(_PLAIN, rows)})


def run_plain_case(case: PlainCase, seed: int) -> Row:
    """Row of one case on a machine without a sketch, with the verdict on its figures."""
    problem, began = case.problem(), time.monotonic()
    found = taccl.synthesize(problem, time_limit_s=case.seconds, seed=seed)
    finish, bound = found.schedule.finish_us, found.bound.bound_us
    gap, seconds = finish / bound - 1, time.monotonic() - began
    most = {"finish_at_most": case.finish_us, "gap_at_most": case.gap}
    return {
        "case": case.name, "finish_us": finish, "bound_us": bound, "gap": gap, "seed": seed,
        "seconds": round(seconds, 2), "met": finish <= case.finish_us + 1e-9 and gap <= case.gap,
        **{name: value for name, value in most.items() if value < float("inf")},
    }  # fmt: skip


def run_case(case: Case, backend: str, cost_model: str, *, seed: int, limit_s: float | None) -> Row:
    """Row of a run of ``taccl synthesize``: output, seconds, and whether it met the case's figures."""
    sketch, topology = map(str, case.files)
    command = [sys.executable, "-m", "taccl", "synthesize", sketch, "--topology", topology, "--json"]
    command += ["--collective", case.collective, "--cost-model", cost_model]
    command += ["--backend", backend, "--seed", str(seed)]
    if limit_s is not None:
        command += ["--time-limit", str(limit_s)]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    row: Row = {"case": case.name, "backend": backend, "cost_model": cost_model}
    row |= {"command_seconds": round(seconds, 2), "exit_code": done.returncode, "floor": case.floor}
    # Notes name files; remove the path of the data folder on this machine.
    stdout = done.stdout.replace(f"{data_folder().as_posix()}/", "")
    try:
        printed = json.loads(stdout)
    except json.JSONDecodeError:
        printed = {"error": done.stderr.strip().splitlines()[-1] if done.stderr else "printed nothing"}
    keep = ("finish_us", "bound_us", "gap", "verified", "stopped", "producer", "stages", "versions", "notes")
    row |= {key: printed[key] for key in (*keep, "error") if key in printed}
    # Only runs of the portfolio under upstream costs have figures to meet.
    is_judged = backend == "auto" and cost_model == "upstream"
    reached = row.get("finish_us", float("inf")) <= case.floor + 1e-9 and seconds <= case.seconds
    return row | {"met": reached or not is_judged}


def _details(row: Row) -> str:
    """Error of a row, or the seconds of each stage."""
    if "finish_us" not in row:
        return f"{row.get('error', '')} (exit {row['exit_code']})"
    stages: dict[str, float] = {}
    for stage in row["stages"]:
        name = f"{stage['name']}/{stage['solver']}" if stage["solver"] != "taccl" else stage["name"]
        stages[name] = stages.get(name, 0) + stage["seconds"]
    parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in stages.items())
    return "; ".join([parts, *row.get("notes", ())])


if __name__ == "__main__":
    sys.exit(main())
