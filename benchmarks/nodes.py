"""Collectives of one to eight nodes at all sizes: default synthesis against the bound for its own chunks.

A row misses its figure if the gap to that bound is above the limit of its size. It also misses if another
number of chunks per rank finishes more than 1 % earlier.

Examples
--------
    python -m benchmarks.nodes --machine "dgx-a100 x4 allreduce 16MB"
    python -m benchmarks.nodes --machine "x2 allgather" --others 1 4 32
    python -m benchmarks.nodes --output benchmarks/results/nodes.json  # keeps stored rows that are not run
    python -m benchmarks.nodes --stored --output benchmarks/results/nodes.json
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from itertools import product
from typing import TYPE_CHECKING, Any

import taccl
from benchmarks.report import parser_of, shown, summed_up, wanted, with_stored
from taccl._internal.units import parse_size
from taccl.solvers.registry import package_versions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.report import Column

MACHINES = ("dgx-a100", "dgx-h100", "b200", "mi300x")
NODES = (1, 2, 3, 4, 8)
COLLECTIVES = ("allreduce", "allgather", "reduce-scatter")
#: {size: largest allowed gap to the lower bound for the result's number of chunks}.
GAPS = {
    "16KB": 0.1, "64KB": 0.1, "256KB": 0.1, "1MB": 0.05,
    "16MB": 0.03, "64MB": 0.03, "256MB": 0.01, "1GB": 0.01,
}  # fmt: skip
#: Largest gain by another number of chunks per rank, as a share of the finish.
GAIN = 0.01
#: Budget in seconds for the lower bound at the result's number of chunks, and for that over all chunkings.
BOUND_S = 5.0
COLUMNS: tuple[Column, ...] = (
    ("case", "case", "<34"), ("chunks", "chunks", ">6"), ("finish", "finish_us", ">11.5g"),
    ("bound", "bound_us", ">11.5g"), ("gap", "gap", ">8.2%"), ("limit", "limit", ">6.0%"),
    ("kind", "kind", "<16"), ("seconds", "seconds", ">8.1f"), ("CPU", "cpu_s", ">8.1f"),
    ("producer", "producer", "<44"),
)  # fmt: skip


def measured(case: str, *, limit_s: float, others: Sequence[int]) -> dict[str, Any]:
    """Row of a case, such as ``dgx-a100 x2 allreduce 16MB``: finish and bound in us, and failed checks.

    Its `load` is the load average at the start: on a busy machine, time limits end searches earlier.
    """
    load, cpu_s = round(os.getloadavg()[0], 1), time.process_time()
    machine, nodes, collective, size = case.split()
    topology = getattr(taccl.topologies, machine.replace("-", "_"))(int(nodes[1:]))
    size_bytes = parse_size(size, where="size")
    result = taccl.synthesize(
        taccl.make_problem(topology, collective, size_bytes=size_bytes), time_limit_s=limit_s
    )
    schedule = result.schedule
    cpu_s = time.process_time() - cpu_s
    bounds = [
        taccl.lower_bound(schedule.problem, divisible=divisible, budget_s=BOUND_S, finish=schedule.finish)
        for divisible in (False, True)
    ]
    best = max(bounds, key=lambda bound: bound.bound_us)
    bound_us = max(best.bound_us, result.bound_us)
    gap, missed = result.finish_us / bound_us - 1, []
    if gap > GAPS[size]:
        missed.append("gap")
    for count in others:
        cut = taccl.make_problem(topology, collective, size_bytes=size_bytes, chunks_per_rank=count)
        other_us = taccl.synthesize(cut, time_limit_s=limit_s).finish_us
        if other_us < (1 - GAIN) * result.finish_us:
            missed.append(f"{count} chunks per rank: {other_us:.5g} us")
    return {
        "case": case,
        "chunks": schedule.problem.collective.chunks_per_rank,
        "finish_us": result.finish_us,
        "bound_us": bound_us,
        "gap": gap,
        "limit": GAPS[size],
        "kind": best.kind,
        "seconds": round(result.seconds, 2),
        "cpu_s": round(cpu_s, 2),
        "load": load,
        "producer": schedule.producer,
        "missed": missed,
    }


def main() -> int:
    """Run, print the table, and write the results; return 1 if a row misses its figure."""
    parser = parser_of(__doc__)
    parser.add_argument("--machine", action="append", help="part of a case's name; default: all")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds of each search")
    parser.add_argument("--others", type=int, nargs="*", default=(), help="other numbers of chunks to try")
    parser.add_argument("--stored", action="store_true", help="run nothing: the table of stored rows")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    cases = [" ".join(parts) for parts in product(MACHINES, map("x{}".format, NODES), COLLECTIVES, GAPS)]
    stored = {row["case"]: row for row in with_stored(options.output, [], "case")}
    rows = (
        stored[case] if options.stored else measured(case, limit_s=options.time_limit, others=options.others)
        for case in cases
        if wanted(case, options.machine) and (case in stored or not options.stored)
    )
    stored |= {row["case"]: row for row in shown(COLUMNS, rows, head="(times in us)")}
    facts = {"versions": package_versions(), "limit_s": options.time_limit, "others": [*options.others]}
    return summed_up(options.output, {"rows": [stored[case] for case in cases if case in stored]}, **facts)


if __name__ == "__main__":
    sys.exit(main())
