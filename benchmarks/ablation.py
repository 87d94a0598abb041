"""Ablation of the portfolio: each mechanism is left out in turn, and finishes are compared.

Time limits count work (`benchmarks.work_clock`), so the load of the machine changes nothing. The whole
portfolio is run with several seeds, which shows variation by chance. A mechanism has an effect on a case if
all finishes without it are above, or all below, those of the whole portfolio. A mechanism is only left out of
runs that use it.

Results are stored after each run, and the same command resumes after an interruption. The table covers the
cases whose runs are complete.

Examples
--------
    python -m benchmarks.ablation                                # all cases, 8 s of counted work a run
    python -m benchmarks.ablation --limit 4 --without "ruin and recreate" --case "NDv2 x4 64KB"
    python -m benchmarks.ablation --output benchmarks/results/ablation.json
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import taccl
from benchmarks.cases import CASES, PLAIN_CASES
from benchmarks.report import keep, parser_of, shown, summed_up, wanted
from benchmarks.work_clock import counted_work
from taccl.solvers.registry import package_versions
from taccl.synthesis.proposers.compiling import compile_kernels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.report import Column, Row
    from taccl.problem.problem import Problem
    from taccl.synthesis.budget import Turn
    from taccl.synthesis.result import Stage

#: Max ratio of two finishes that count as equal.
_SAME = 1 + 1e-9
#: Max runs of the list scheduler in a search that does not use restarts.
_FIRST_RUNS = 10
#: Tables of proposers in the order they run.
_TABLES = ("FIRST", "SECOND", "THIRD", "PROPOSERS", "LAST_OF_OTHERS", "LAST")
#: {case: {run by mechanism and seed: row}}.
Runs = dict[str, dict[str, "Row"]]

COLUMNS: tuple[Column, ...] = (
    ("left out", "without", "<22"), ("used in", "used", ">7d"), ("later", "later", ">5d"),
    ("sooner", "sooner", ">6d"), ("within chance", "same", ">13d"), ("mean ratio", "mean_ratio", ">10.4f"),
    ("largest", "largest_ratio", ">8.4f"), ("CPU", "cpu_ratio", ">6.2f"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mechanism:
    """A part of the search that can be left out.

    - `leave_out`: Function that leaves it out; it may return arguments of `taccl.synthesize`.
    - `stages`: Names of its rows in the table of stages. A run without any of these did not use it.
    """

    leave_out: Callable[[ExitStack], dict[str, Any] | None]
    stages: frozenset[str]


def _of_table(*names: str) -> Callable[[ExitStack], None]:
    """Function that leaves the proposers with these names out of the portfolio until its stack is closed.

    It raises `ValueError` if there is no proposer with one of the names.
    """

    def leave_out(stack: ExitStack) -> None:
        found = set[str]()

        def kept(turns: Sequence[Turn]) -> tuple[Turn, ...]:
            found.update(turn.proposer.name for turn in turns)
            return tuple(turn for turn in turns if turn.proposer.name not in names)

        modules = (import_module(f"taccl.synthesis.{name}") for name in ("proposers.table", "synthesize"))
        for module, place in product(modules, _TABLES):
            if hasattr(module, place):
                stack.enter_context(mock.patch.object(module, place, kept(getattr(module, place))))
        stages = import_module("taccl.synthesis.proposers.stages").STAGES
        stack.enter_context(mock.patch.dict(stages, {"auto": kept(stages["auto"])}))
        if not found.issuperset(names):
            raise ValueError(f"no proposer is named {', '.join({*names} - found)}")

    return leave_out


def _by_parameters(**changed: Mapping[str, Any]) -> Callable[[ExitStack], dict[str, Any]]:
    """Function that returns ``parameters=`` for `taccl.synthesize`, with the given values by group."""
    return lambda stack: {"parameters": taccl.SearchParameters.from_dict(changed)}


def _mechanism(leave_out: Callable[[ExitStack], dict[str, Any] | None], *stages: str) -> Mechanism:
    return Mechanism(leave_out, frozenset(stages))


WHOLE = "nothing"
MECHANISMS: dict[str, Mechanism] = {
    WHOLE: _mechanism(lambda stack: None),
    "baselines": _mechanism(_of_table("baselines", "first baselines", "other baselines"), "baselines"),
    "suggested sketches": _mechanism(lambda stack: {"sketch": "none"}, "suggest"),
    "restarts": _mechanism(_by_parameters(list={"share": 0.0}), "restarts"),
    "compiled": _mechanism(_of_table("compiled list scheduler"), "greedy compiled"),
    "joint job shop": _mechanism(_of_table("joint job shop"), "joint"),
    "job shop rounds": _mechanism(_of_table("job shop rounds"), "improve"),
    "all models": _mechanism(_of_table("joint job shop", "job shop rounds"), "joint", "improve"),
    "ruin and recreate": _mechanism(_of_table("ruin and recreate"), "ruin and recreate"),
    "exchanged sums": _mechanism(_of_table("exchange"), "exchange"),
}
PROBLEMS: dict[str, Callable[[], Problem]] = {
    **{case.name: case.problem for case in CASES},
    **{case.name: case.problem for case in PLAIN_CASES},
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run all cases without each mechanism, and print a row for each mechanism."""
    parser = parser_of(__doc__)
    parser.add_argument("--limit", type=float, default=8.0, help="seconds of counted work of a run")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of each run, from 0 on")
    parser.add_argument("--case", action="append", help="part of a case's name; default: all")
    parser.add_argument("--without", action="append", help="part of a mechanism's name; default: all")
    parser.add_argument("--stored", action="store_true", help="run nothing: the table of complete cases")
    parser.add_argument("--one", nargs=3, metavar=("CASE", "WITHOUT", "SEED"), help="one run, as JSON")
    options = parser.parse_args(argv)
    if options.one:
        name, without, seed = options.one
        print(json.dumps(run_one(name, without, int(seed), options.limit)))
        return 0
    names = [name for name in PROBLEMS if wanted(name, options.case)]
    mechanisms = [name for name in MECHANISMS if name == WHOLE or wanted(name, options.without)]
    facts = {"versions": package_versions(), "limit_s": options.limit, "seeds": options.seeds}
    runs = _stored(options.output, facts)
    if not options.stored:
        _compile(names)
    for name in names:
        own = runs.setdefault(name, {})
        while not options.stored and (following := next_run(own, mechanisms, options.seeds)):
            own[_key(*following)] = _in_a_process(name, *following, options.limit)
            if options.output:
                keep(options.output, {**facts, "runs": runs})
    done = {name: runs[name] for name in names if next_run(runs[name], mechanisms, options.seeds) is None}
    varied = sum(is_varied(each, options.seeds) for each in done.values())
    print(f"{len(done)} of {len(names)} cases are complete; {varied} vary by chance")
    rows = (compared(without, done, options.seeds) for without in mechanisms[1:])
    shown_rows = {"rows": shown(COLUMNS, rows)}
    return summed_up(options.output, shown_rows, **facts, cases=[*done], varied=varied, runs=runs)


def _stored(output: Path | None, facts: Mapping[str, Any]) -> Runs:
    """Runs stored in a results file, if they have the time limit of `facts`; else an empty mapping."""
    data = json.loads(output.read_text()) if output and output.exists() else {}
    return data["runs"] if data.get("limit_s") == facts["limit_s"] else {}


def _compile(names: Collection[str]) -> None:
    """Compile all kernels before the runs, whose time limits leave no time for it."""
    for name in names:
        compile_kernels(PROBLEMS[name]())


def next_run(runs: Mapping[str, Row], mechanisms: Sequence[str], seeds: int) -> tuple[str, int] | None:
    """Mechanism and seed of the next run of a case; None if all are stored.

    A mechanism gets further seeds until a run finishes within the range of the whole portfolio's finishes.
    """
    for without in mechanisms:
        is_part, whole = without != WHOLE, finishes(runs, WHOLE, seeds)
        for seed in range(seeds):
            if is_part and MECHANISMS[without].stages.isdisjoint(runs[_key(WHOLE, seed)]["used"]):
                break
            run = runs.get(_key(without, seed))
            if run is None:
                return without, seed
            if is_part and min(whole) / _SAME <= run["finish_us"] <= max(whole) * _SAME:
                break
    return None


def _key(without: str, seed: int) -> str:
    return f"{without}, seed {seed}"


def finishes(runs: Mapping[str, Row], without: str, seeds: int) -> list[float]:
    """Finishes of one case without a mechanism, one per seed.

    If the whole portfolio with a seed did not use the mechanism, its finish stands in for a missing run.
    """
    found = []
    for seed in range(seeds):
        run, whole = runs.get(_key(without, seed)), runs.get(_key(WHOLE, seed))
        if run is None and whole and MECHANISMS[without].stages.isdisjoint(whole["used"]):
            run = whole
        found += [] if run is None else [run["finish_us"]]
    return found


def is_varied(runs: Mapping[str, Row], seeds: int) -> bool:
    """True if the finish of the whole portfolio depends on its seed."""
    whole = finishes(runs, WHOLE, seeds)
    return max(whole) > min(whole) * _SAME


def compared(without: str, runs: Runs, seeds: int) -> Row:
    """Row of a mechanism: cases that finish later or sooner without it.

    Only finishes beyond the range of the whole portfolio count.
    """
    ratios: dict[str, float] = {}
    used, cpu_s = 0, [0.0, 0.0]
    for name, case in runs.items():
        whole, own = finishes(case, WHOLE, seeds), finishes(case, without, seeds)
        ratios[name] = 1.0
        if min(own) > max(whole) * _SAME or max(own) < min(whole) / _SAME:
            ratios[name] = statistics.median(own) / statistics.median(whole)
        key = _key(without, 0)
        used += key in case
        cpu_s[0] += case[_key(WHOLE, 0)]["cpu_s"]
        cpu_s[1] += case.get(key, case[_key(WHOLE, 0)])["cpu_s"]
    later = {name: ratio for name, ratio in ratios.items() if ratio > _SAME}
    sooner = {name: ratio for name, ratio in ratios.items() if ratio < 1 / _SAME}
    return {
        "without": without,
        "used": used,
        "later": len(later),
        "sooner": len(sooner),
        "same": used - len(later) - len(sooner),
        "mean_ratio": statistics.geometric_mean(ratios.values()),
        "largest_ratio": max(ratios.values()),
        "cpu_ratio": cpu_s[1] / cpu_s[0],
        "differing": later | sooner,
    }


def _in_a_process(name: str, without: str, seed: int, limit_s: float) -> Row:
    """Row of one run in its own process, so that runs share no cached data."""
    module = "benchmarks.ablation"
    command = [sys.executable, "-m", module, "--limit", str(limit_s), "--one", name, without, str(seed)]
    root = Path(__file__).parent.parent  # where the workers of solvers find these modules
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": path}
    )
    row: Row = json.loads(done.stdout)
    return row


def run_one(name: str, without: str, seed: int, limit_s: float) -> Row:
    """Finish of one case without a mechanism."""
    problem, began = PROBLEMS[name](), os.times()
    with ExitStack() as stack:
        arguments = MECHANISMS[without].leave_out(stack) or {}
        stack.enter_context(counted_work())
        result = taccl.synthesize(problem, time_limit_s=limit_s, threads=1, seed=seed, **arguments)
    return {
        "finish_us": result.finish_us,
        "bound_us": result.bound.bound_us,
        "found_by": result.schedule.producer,
        "digest": result.schedule.digest(),
        "used": sorted(_used(result.stages)),
        "cpu_s": round(sum(os.times()[:2]) - sum(began[:2]) + _cpu_of_children_s(), 2),
    }


def _used(stages: Sequence[Stage]) -> set[str]:
    """Names of the stages that a run used, in the words of `Mechanism.stages`."""
    used = set[str]()
    for stage in stages:
        *prefixes, name = stage.name.split(": ")
        used |= {name, f"{name} {stage.solver}", *prefixes}
        runs = re.match(r"(\d+) runs", stage.message) if name == "greedy" else None
        if runs and int(runs[1]) > _FIRST_RUNS:
            used.add("restarts")
    return used & frozenset[str]().union(*(each.stages for each in MECHANISMS.values()))


def _cpu_of_children_s() -> float:
    """CPU seconds that solver processes have used."""
    ticks = 0
    for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
