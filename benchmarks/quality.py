"""How good, how fast: a table of every case on one backend or more, against bounds and floors.

    python -m benchmarks.quality                                  # the portfolio, upstream costs
    python -m benchmarks.quality --cost-model physical
    python -m benchmarks.quality --backend highs --backend cpsat  # each backend alone
    python -m benchmarks.quality --plain                          # machines without a sketch
    python -m benchmarks.quality --output benchmarks/results/quality-upstream.json

Every run is a command of its own (``taccl synthesize``), so that its seconds are what a person waits.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import taccl
from benchmarks.cases import CASES, PLAIN_CASES, Case, data_folder
from benchmarks.machine import machine

BACKENDS = ("auto", "highs", "scip", "cbc", "gurobi", "cpsat", "greedy")


def main() -> int:
    """Run, print the table, write the results; 1 if a floor is missed by the portfolio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--backend", action="append", choices=[*BACKENDS, "all"], help="default: auto")
    parser.add_argument("--cost-model", choices=["upstream", "physical"], default="upstream")
    parser.add_argument("--case", action="append", help="part of a case's name; default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--time-limit", type=float, help="default: the command's own")
    parser.add_argument("--output", type=Path, help="a JSON file for the results")
    parser.add_argument("--plain", action="store_true", help="machines without a sketch instead of the files")
    options = parser.parse_args()
    if options.plain:
        return run_plain(options.case, options.seed, options.output)
    backends = options.backend or ["auto"]
    if "all" in backends:
        backends = list(BACKENDS)
    cases = [c for c in CASES if not options.case or any(part in c.name for part in options.case)]
    rows = []
    print(_header(), flush=True)
    for case in cases:
        for backend in backends:
            row = run_case(case, backend, options.cost_model, seed=options.seed, limit_s=options.time_limit)
            rows.append(row)
            print(_line(row), flush=True)
    misses = [row for row in rows if row["verdict"] == "missed"]
    print(f"\n{len(rows)} runs, {len(misses)} below their floor; {machine()}")
    if rows and rows[0].get("versions"):
        print(", ".join(f"{name} {version}" for name, version in rows[0]["versions"].items()))
    if options.output is not None:
        command = " ".join(["python -m benchmarks.quality", *sys.argv[1:]])
        document = {"command": command, "machine": machine(), "rows": rows}
        options.output.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if misses else 0


def run_plain(names: list[str] | None, seed: int, output: Path | None) -> int:
    """The portfolio on machines without a sketch, a case after the other; 1 if a figure is missed."""
    rows = []
    print(
        f"{'case':<36} {'finish':>10} {'at most':>10} {'bound':>10} {'gap':>7} {'at most':>8} {'seconds':>8}"
    )
    for case in PLAIN_CASES:
        if names and not any(part in case.name for part in names):
            continue
        problem, began = case.problem(), time.monotonic()
        found = taccl.synthesize(problem, time_limit_s=case.seconds, seed=seed)
        finish, bound = found.schedule.finish_us, found.bound.bound_us
        gap, seconds = finish / bound - 1, time.monotonic() - began
        met = finish <= case.finish_us + 1e-9 and gap <= case.gap
        row = {"case": case.name, "finish_us": finish, "bound_us": bound, "gap": gap, "seed": seed}
        rows.append(row | {"seconds": round(seconds, 2), "verdict": "met" if met else "missed"})
        print(
            f"{case.name:<36} {finish:>10.2f} {case.finish_us:>10.6g} {bound:>10.2f} {gap:>7.2%} "
            f"{case.gap:>8.2g} {seconds:>8.1f} {'met' if met else 'missed'}",
            flush=True,
        )
    misses = sum(row["verdict"] == "missed" for row in rows)
    print(f"\n{len(rows)} runs, {misses} missed; {machine()}")
    if output is not None:
        command = " ".join(["python -m benchmarks.quality", *sys.argv[1:]])
        output.write_text(
            json.dumps({"command": command, "machine": machine(), "rows": rows}, indent=1) + "\n"
        )
    return 1 if misses else 0


def run_case(
    case: Case, backend: str, cost_model: str, *, seed: int = 0, limit_s: float | None = None
) -> dict[str, Any]:
    """One run as a command: what it printed, its seconds, and whether it meets the case's floor."""
    folder = data_folder()
    command = [sys.executable, "-m", "taccl", "synthesize", str(folder / "sketch" / f"{case.sketch}.json")]
    command += ["--topology", str(folder / "topo" / f"{case.topology}.json"), "--json"]
    command += ["--collective", case.collective, "--cost-model", cost_model]
    command += ["--backend", backend, "--seed", str(seed)]
    if limit_s is not None:
        command += ["--time-limit", str(limit_s)]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    row: dict[str, Any] = {"case": case.name, "backend": backend, "cost_model": cost_model}
    row |= {"command_seconds": round(seconds, 2), "exit_code": done.returncode, "floor": case.floor}
    # Notes name files; where they lie on this machine is nobody's business.
    stdout = done.stdout.replace(f"{data_folder().as_posix()}/", "")
    try:
        printed = json.loads(stdout)
    except json.JSONDecodeError:
        printed = {"error": done.stderr.strip().splitlines()[-1] if done.stderr else "printed nothing"}
    keep = ("finish_us", "bound_us", "gap", "verified", "stopped", "producer", "stages", "versions", "notes")
    row |= {key: printed[key] for key in (*keep, "error") if key in printed}
    row["verdict"] = _verdict(case, row)
    return row


def _verdict(case: Case, row: dict[str, Any]) -> str:
    """Whether a run of the portfolio on upstream's costs meets its figures; others have none to meet."""
    if "finish_us" not in row:
        return "failed"
    if row["backend"] != "auto" or row["cost_model"] != "upstream":
        return ""
    met = row["finish_us"] <= case.floor + 1e-9 and row["command_seconds"] <= case.seconds
    return "met" if met else "missed"


def _header() -> str:
    return (
        f"{'case':<28} {'backend':<8} {'finish':>9} {'floor':>8} {'bound':>9} {'gap':>7} {'seconds':>8} "
        f"{'':<7} stages (seconds)"
    )


def _line(row: dict[str, Any]) -> str:
    start = f"{row['case']:<28} {row['backend']:<8} "
    if "finish_us" not in row:
        return f"{start}{row.get('error', '')} (exit {row['exit_code']}, {row['command_seconds']} s)"
    floor = f"{row['floor']:g}" if row["cost_model"] == "upstream" else "-"
    stages: dict[str, float] = {}
    for stage in row["stages"]:
        name = f"{stage['name']}/{stage['solver']}" if stage["solver"] != "taccl" else stage["name"]
        stages[name] = stages.get(name, 0) + stage["seconds"]
    parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in stages.items())
    notes = f"; {'; '.join(row['notes'])}" if row.get("notes") else ""
    return (
        f"{start}{row['finish_us']:>9.1f} {floor:>8} {row['bound_us']:>9.1f} {row['gap']:>7.2%} "
        f"{row['command_seconds']:>8.1f} {row['verdict']:<7} {parts}{notes}"
    )


if __name__ == "__main__":
    sys.exit(main())
