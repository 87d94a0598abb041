"""Ablation of the portfolio: each mechanism is left out in turn, and finishes are compared with the whole.

Time limits count CPU: a run's clock is the CPU of its process and of its solvers, which have one thread each.
So other work on the machine moves few figures. Limits of solvers are still of the wall clock: the row that
leaves nothing out again shows what chance does.

Examples
--------
    python -m benchmarks.ablation                                # all cases, 8 s of CPU a run
    python -m benchmarks.ablation --limit 4 --without "ruin and recreate" --case NDv2
    python -m benchmarks.ablation --output benchmarks/results/ablation.json
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import taccl
from benchmarks.cases import CASES, PLAIN_CASES
from benchmarks.report import parser_of, shown, summed_up, wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from benchmarks.report import Column, Row
    from taccl.problem.problem import Problem
    from taccl.synthesis.budget import Turn

#: A run's clock moves at least this fast beside the wall clock, so that nothing waits for work that is none.
_LEAST_RATE = 0.05
#: Finishes that differ by less are equal.
_SAME = 1 + 1e-9

_COLUMNS: tuple[Column, ...] = (
    ("left out", "without", "<22"), ("cases later", "later", ">11d"), ("sooner", "sooner", ">6d"),
    ("mean ratio", "mean_ratio", ">10.4f"), ("largest", "largest_ratio", ">8.4f"), ("CPU", "cpu_s", ">7.0f"),
)  # fmt: skip


def _of_table(*names: str) -> Callable[[ExitStack], None]:
    """Leave proposers out of the tables of the portfolio."""

    def leave_out(stack: ExitStack) -> None:
        table = import_module("taccl.synthesis.proposers.table")
        stages = import_module("taccl.synthesis.proposers.stages")
        synthesizing = import_module("taccl.synthesis.synthesize")

        def kept(turns: Sequence[Turn]) -> tuple[Turn, ...]:
            return tuple(turn for turn in turns if turn.proposer.name not in names)

        stack.enter_context(mock.patch.object(table, "PROPOSERS", kept(table.PROPOSERS)))
        stack.enter_context(mock.patch.dict(stages.STAGES, {"auto": kept(stages.STAGES["auto"])}))
        for place in ("FIRST", "LAST"):
            stack.enter_context(mock.patch.object(synthesizing, place, kept(getattr(table, place))))

    return leave_out


def _by_parameters(**changed: Mapping[str, Any]) -> Callable[[ExitStack], dict[str, Any]]:
    """Set parameters of the search, by group."""
    return lambda stack: {"parameters": taccl.SearchParameters.from_dict(changed)}


#: {mechanism: a function that leaves it out, and may return arguments of `taccl.synthesize`}.
MECHANISMS: dict[str, Callable[[ExitStack], dict[str, Any] | None]] = {
    "nothing": lambda stack: None,
    "nothing, again": lambda stack: None,
    "baselines": _of_table("baselines", "first baselines", "other baselines"),
    "suggested sketches": lambda stack: {"sketch": "none"},
    "restarts": _by_parameters(list={"share": 0.0}),
    "compiled": _of_table("compiled list scheduler"),
    "joint job shop": _of_table("joint job shop"),
    "routing MILP": _of_table("routing MILP"),
    "job shop rounds": _of_table("job shop rounds"),
    "all models": _of_table("joint job shop", "routing MILP", "job shop rounds"),
    "ruin and recreate": _of_table("ruin and recreate"),
    "chunks as one": _of_table("chunks as one"),
    "exchanged sums": _of_table("exchange"),
    "contributions apart": _by_parameters(portfolio={"apart_hops": 0}),
}
PROBLEMS: dict[str, Callable[[], Problem]] = {
    **{case.name: case.problem for case in CASES},
    **{case.name: case.problem for case in PLAIN_CASES},
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run all cases without each mechanism, and print a row for each mechanism."""
    parser = parser_of(__doc__)
    parser.add_argument("--limit", type=float, default=8.0, help="seconds of CPU of a run")
    parser.add_argument("--case", action="append", help="part of a case's name; default: all")
    parser.add_argument("--without", action="append", help="part of a mechanism's name; default: all")
    parser.add_argument("--one", nargs=2, metavar=("CASE", "WITHOUT"), help="one run, as JSON")
    options = parser.parse_args(argv)
    if options.one:
        name, without = options.one
        print(json.dumps(run_one(name, without, options.limit)))
        return 0
    names = [name for name in PROBLEMS if wanted(name, options.case)]
    runs: dict[str, dict[str, Row]] = {}

    def rows() -> Iterator[Row]:
        for without in MECHANISMS:
            if without == "nothing" or wanted(without, options.without):
                runs[without] = {name: _in_a_process(name, without, options.limit) for name in names}
                yield _compared(without, runs[without], runs["nothing"])

    found = shown(_COLUMNS, rows())
    return summed_up(options.output, {"rows": found}, limit_cpu_s=options.limit, runs=runs)


def _compared(without: str, runs: Mapping[str, Row], whole: Mapping[str, Row]) -> Row:
    """One row: finishes without a mechanism over finishes with all."""
    ratios = {name: run["finish_us"] / whole[name]["finish_us"] for name, run in runs.items()}
    return {
        "without": without,
        "later": sum(ratio > _SAME for ratio in ratios.values()),
        "sooner": sum(ratio < 1 / _SAME for ratio in ratios.values()),
        "mean_ratio": statistics.geometric_mean(ratios.values()),
        "largest_ratio": max(ratios.values()),
        "cpu_s": sum(run["cpu_s"] for run in runs.values()),
        "later_cases": {name: ratio for name, ratio in ratios.items() if ratio > _SAME},
    }


def _in_a_process(name: str, without: str, limit_s: float) -> Row:
    """One run in a process of its own, so that none finds what another worked out."""
    command = [sys.executable, "-m", "benchmarks.ablation", "--limit", str(limit_s), "--one", name, without]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    row: Row = json.loads(done.stdout)
    return row


def run_one(name: str, without: str, limit_s: float) -> Row:
    """Finish of one case without a mechanism."""
    problem = PROBLEMS[name]()
    with ExitStack() as stack:
        arguments = MECHANISMS[without](stack) or {}
        began_s = _cpu_s()
        stack.enter_context(_cpu_clock())
        result = taccl.synthesize(problem, time_limit_s=limit_s, threads=1, **arguments)
    return {
        "finish_us": result.finish_us,
        "bound_us": result.bound.bound_us,
        "found_by": result.schedule.producer,
        "cpu_s": _cpu_s() - began_s,
    }


def _cpu_clock() -> Any:
    """Have `time.monotonic` count CPU."""
    wall, began_wall_s, began_cpu_s, last_s = time.monotonic, time.monotonic(), _cpu_s(), 0.0

    def clock() -> float:
        nonlocal last_s
        last_s = max(last_s, _cpu_s() - began_cpu_s, _LEAST_RATE * (wall() - began_wall_s))
        return began_wall_s + last_s

    return mock.patch("time.monotonic", clock)


def _cpu_s() -> float:
    """CPU of this process, of its children, and of their children that have ended."""
    ticks = 0
    with suppress(OSError):
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        for child in children:
            with suppress(OSError):
                fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                ticks += sum(map(int, fields[11:15]))
    return sum(os.times()[:4]) + ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
