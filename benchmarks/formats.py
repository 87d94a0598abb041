"""Programs and runtime formats: correctness of lowering, execution and round trips, and their times.

Part ``cases`` has a row for every sketch of the quality benchmark with each of the four collectives. Part
``figures`` has a row for each function of `FIGURES`, which returns the measured value, the required value,
and the verdict.

Examples
--------
    python -m benchmarks.formats                                     # under five minutes
    python -m benchmarks.formats --backend auto --time-limit 60      # schedules of the full portfolio
    python -m benchmarks.formats --part cases --case NDv2            # a part, some rows
    python -m benchmarks.formats --output benchmarks/results/formats.json
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import taccl
from benchmarks.cases import CASES, Case, data_folder
from benchmarks.report import parser_of, shown, summed_up, wanted
from taccl.errors import TacclError
from taccl.formats.msccl.xml import dump_msccl_xml, load_msccl_xml, parse_msccl_xml
from taccl.formats.mscclpp.executor import run_plan
from taccl.formats.mscclpp.plan import build_mscclpp_plan
from taccl.program.interpret import interpret
from taccl.program.lower import lower

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.report import Column, Row
    from taccl.schedule.schedule import Schedule

PARTS = ("cases", "figures")
COLLECTIVES = ("allgather", "alltoall", "reduce-scatter", "allreduce")
LOWER_DGX2_S, LOWER_256_S, DEADLOCK_S, NUM_FAULTS = 1.0, 10.0, 1.0, 60


_CASES: tuple[Column, ...] = (
    ("sketch and topology", "case", "<26"), ("collective", "collective", "<15"), ("steps", "steps", ">6"),
    ("lower s", "lower_s", ">8.2f"), ("runs", "interprets", ">5"), ("plan s", "plan_s", ">7.2f"),
    ("runs", "plan_runs", ">5"), ("blocks", "threadblocks", ">6"), ("scratch", "scratch_chunks", ">7"),
    ("xml s", "xml_s", ">6.2f"), ("back", "xml_comes_back", ">5"),
)  # fmt: skip
_FIGURES: tuple[Column, ...] = (
    ("figure", "name", "<48"), ("found", "found", "<34"), ("asked for", "asked", "<24"),
)  # fmt: skip


class Figure(NamedTuple):
    """A figure: its name, the measured value, the required value, and True if it is met."""

    name: str
    found: str
    asked: str
    met: bool


def main() -> int:
    """Run, print the table, and write the results; return 1 if a figure is missed."""
    parser = parser_of(__doc__)
    parser.add_argument("--part", action="append", choices=PARTS, help="default: both")
    parser.add_argument("--case", action="append", help="part of a case's name; default: all")
    parser.add_argument("--backend", default="greedy", help="that makes the schedules; default: greedy")
    parser.add_argument("--time-limit", type=float, default=0.2, help="seconds for each; default: 0.2")
    options = parser.parse_args()
    parts = options.part or list(PARTS)
    results: dict[str, list[Row]] = {}
    if "cases" in parts:
        rows = (
            run_case(case, collective, options.backend, options.time_limit)
            for case, collective in product(_sketches(options.case), COLLECTIVES)
        )
        results["cases"] = shown(_CASES, rows, lambda row: row.get("error", ""))
    if "figures" in parts:
        results["figures"] = shown(_FIGURES, (each()._asdict() for each in FIGURES))
    return summed_up(options.output, results)


def _sketches(parts: list[str] | None) -> list[Case]:
    """Cases with distinct pairs of sketch and topology, one for each pair."""
    chosen = {(each.sketch, each.topology): each for each in reversed(CASES)}
    return [each for each in reversed(chosen.values()) if wanted(each.name, parts)]


def run_case(case: Case, collective: str, backend: str, limit_s: float) -> Row:
    """Row of one schedule: CPU seconds of each conversion, and True for each that is correct."""
    row: Row = {"case": f"{case.sketch} {case.topology}", "collective": collective}
    try:
        schedule = _schedule(case, collective, backend, limit_s)
        clock = time.process_time()
        program = lower(schedule)
        row["lower_s"], clock = _since(clock)
        row["steps"] = program.num_steps
        row["interprets"] = interpret(program, capacity=1).ok
        clock = time.process_time()
        plan = build_mscclpp_plan(program, split=True)
        row["plan_s"], clock = _since(clock)
        row["plan_runs"] = run_plan(plan)
        row["threadblocks"] = max(len(gpu["threadblocks"]) for gpu in plan["gpus"])
        row["scratch_chunks"] = plan["gpus"][0]["scratch_chunks"]
        clock = time.process_time()
        again = parse_msccl_xml(dump_msccl_xml(program))
        row["xml_s"], clock = _since(clock)
        back = interpret(again)
        row["xml_comes_back"] = back.ok and back.outputs_checked and again.in_place == program.in_place
    except TacclError as error:
        row["error"] = str(error)
    row["met"] = all(row.get(name) for name in ("interprets", "plan_runs", "xml_comes_back"))
    return row


def _schedule(case: Case, collective: str, backend: str, limit_s: float) -> Schedule:
    return taccl.synthesize(case.problem(collective), backend=backend, time_limit_s=limit_s).schedule


def _since(clock: float) -> tuple[float, float]:
    now = time.process_time()
    return round(now - clock, 3), now


def lower_dgx2() -> Figure:
    """CPU seconds to lower an allgather of two DGX-2."""
    case = next(each for each in CASES if each.sketch == "sk1-dgx2-n2")
    schedule = _schedule(case, "allgather", "greedy", 0.2)
    seconds = min(_lowering_s(schedule) for _ in range(3))
    return Figure("lowering an allgather of DGX-2 x2", f"{seconds:.2f} s", f"<= {LOWER_DGX2_S:g} s",
                  seconds <= LOWER_DGX2_S)  # fmt: skip


def lower_256() -> Figure:
    """CPU seconds to lower an allgather of 256 ranks."""
    topology = taccl.topologies.parse("torus:16x16")
    problem = taccl.make_problem(topology, taccl.collectives.allgather(256), chunk_bytes=100_000)
    schedule = taccl.synthesize(problem, backend="greedy", time_limit_s=10).schedule
    seconds = _lowering_s(schedule)
    return Figure("lowering an allgather of 256 ranks", f"{seconds:.1f} s", f"<= {LOWER_256_S:g} s",
                  seconds <= LOWER_256_S)  # fmt: skip


def _lowering_s(schedule: Schedule) -> float:
    """CPU seconds to lower a schedule."""
    clock = time.process_time()
    lower(schedule)
    return time.process_time() - clock


def deadlock() -> Figure:
    """Figure: a file that deadlocks is refused with the cycle of its waiting steps, within a time limit."""
    path = data_folder().parent / "msccl-xml" / "allgather-16-deadlock.xml"
    clock = time.process_time()
    faults = interpret(load_msccl_xml(path)).faults
    seconds = time.process_time() - clock
    cycles = [len(each.steps) for each in faults if each.kind == "deadlock"]
    found = f"a cycle of {cycles[0]} steps, {seconds:.2f} s" if cycles else "accepted"
    return Figure("allgather-16-deadlock.xml is refused", found, f"its cycle, <= {DEADLOCK_S:g} s",
                  bool(cycles) and cycles[0] > 1 and seconds <= DEADLOCK_S)  # fmt: skip


def sound_files() -> Figure:
    """Figure: number of MSCCL XML files without a deadlock that are accepted, with outputs checked."""
    paths = sorted((data_folder().parent / "msccl-xml").glob("*.xml"))
    others = [path for path in paths if "deadlock" not in path.name]
    verdicts = [interpret(load_msccl_xml(path)) for path in others]
    good = sum(each.ok and each.outputs_checked for each in verdicts)
    return Figure("the other files are accepted", f"{good} of {len(others)}", "all", good == len(others) == 3)


def seeded_faults() -> Figure:
    """Figure: number of faults, inserted into valid files by the tests, that are detected."""
    tests = Path(__file__).parent.parent / "tests"
    command = [sys.executable, "-m", "pytest", "-q", "-k", "test_faults_are_caught",
               str(tests / "formats" / "msccl" / "test_msccl_faults.py")]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tests.parent)
    found = re.search(r"(\d+) passed", done.stdout)
    caught = int(found[1]) if found else 0
    met = done.returncode == 0 and caught >= NUM_FAULTS
    return Figure(
        "faults seeded in valid MSCCL XML are caught", str(caught), f"{NUM_FAULTS} of {NUM_FAULTS}", met
    )


def simulated_files() -> Figure:
    """Figure: number of MSCCL XML files without a deadlock whose simulation is sound, and their CPU seconds.

    Each file is read, and lifted to a schedule on a topology. The simulated finish must be at least the lower
    bound, and at most the schedule's finish.
    """
    fabrics = {4: "fully-connected:4", 8: "ring:8", 32: "fully-connected:32"}
    clock, good = time.process_time(), 0
    for path in sorted((data_folder().parent / "msccl-xml").glob("*.xml")):
        if "deadlock" in path.name:
            continue
        program = load_msccl_xml(path)
        topology = taccl.topologies.parse(fabrics[program.num_ranks])
        schedule = taccl.lift(program, topology=topology, size="1MB")
        bound = taccl.lower_bound(schedule.problem).bound
        good += bound <= taccl.simulate(schedule).finish <= schedule.finish
    seconds = time.process_time() - clock
    return Figure("the other files run on a topology", f"{good} of 3 in {seconds:.1f} s", "all", good == 3)


def plan_dgx2() -> Figure:
    """CPU seconds for a plan of two DGX-2 over all sizes; a check that its ranges have no gap or overlap."""
    clock = time.process_time()
    plan = taccl.plan(
        taccl.topologies.dgx2(nodes=2), "allgather", sketches=["dgx2/sk1", "dgx2/sk2"], sizes="1KB:1GB",
        backend="greedy", time_limit_s=60,
    )  # fmt: skip
    seconds = time.process_time() - clock
    ends = [(each.min_bytes, each.max_bytes) for each in plan.ranges]
    tiled = all(b[0] == a[1] + 1 for a, b in zip(ends, ends[1:], strict=False))
    found = f"{len(ends)} ranges in {seconds:.0f} s"
    return Figure("a plan of DGX-2 x2, 1KB to 1GB", found, "no gap, no overlap",
                  tiled and (ends[0][0], ends[-1][1]) == (1000, 10**9))  # fmt: skip


FIGURES: tuple[Callable[[], Figure], ...] = (
    lower_dgx2, lower_256, deadlock, sound_files, seeded_faults, simulated_files, plan_dgx2,
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
