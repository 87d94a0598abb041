"""Allreduce of all sizes: baselines, synthesis, and bounds for 1 chunk per rank and over all chunkings.

An allreduce of 8 B to 1 GB runs on machines and on a fabric. A hop takes 1 us inside a node and 3 us between
nodes; on the fabric it takes 0.5 us. "ours" is the schedule of `taccl.synthesize`; the rivals are baselines
on the same problem. A row misses its figure if a rival finishes earlier, or if any finish lies below its
bound.

Examples
--------
    python -m benchmarks.sums
    python -m benchmarks.sums --machine dgx2 --time-limit 10
    python -m benchmarks.sums --output benchmarks/results/sums.json
"""

from __future__ import annotations

import sys
import warnings
from itertools import product
from typing import TYPE_CHECKING, Any

import taccl
from benchmarks.report import parser_of, shown, summed_up, wanted
from taccl._internal.units import format_size
from taccl.errors import InputError

if TYPE_CHECKING:
    from benchmarks.report import Column
    from taccl.topology.topology import Topology

SIZES = (8, 80, 800, 8_000, 80_000, 800_000, 8_000_000, 80_000_000, 1_000_000_000)
MACHINES = ("fully-connected:4", "dgx-a100 x1", "dgx-h100 x1", "dgx-h100 x4", "ndv2 x2")
RIVALS = ("one-shot", "recursive", "multiplying", "ring", "hierarchical", "tree")
COLUMNS: tuple[Column, ...] = (
    ("machine", "machine", "<18"), ("size", "size", ">6"),
    *((name, f"rivals_us.{name}", ">11.4g") for name in RIVALS),
    ("ours", "ours_us", ">11.4g"), ("bound", "bound_us", ">11.4g"),
    ("all chunkings", "bound_over_all_chunkings_us", ">11.4g"), ("gap", "gap", ">8.2%"),
    ("producer", "producer", "<22"),
)  # fmt: skip
#: `INSIDE_US`: latency per hop inside a node, in us.
#: `BETWEEN_US`: latency per hop between nodes, in us.
INSIDE_US, BETWEEN_US = 1, 3


def topology_of(name: str) -> Topology:
    """Machine by name, with the latencies of this benchmark."""
    if ":" in name:
        return taccl.topologies.parse(name)
    kind, nodes = name.split(" x")
    inside = "nvlink_alpha_us" if kind == "ndv2" else "nvswitch_alpha_us"
    make = getattr(taccl.topologies, kind.replace("-", "_"))
    made: Topology = make(
        int(nodes), profile="nominal", constants={inside: INSIDE_US, "internode_alpha_us": BETWEEN_US}
    )
    return made


def measured(name: str, size: int, *, limit_s: float, seed: int) -> dict[str, Any]:
    """Row of one machine and size: finishes in us, and failed checks."""
    topology = topology_of(name)
    problem = taccl.make_problem(topology, "allreduce", size_bytes=size, chunks_per_rank=1)
    rivals: dict[str, float] = {}
    for rival in RIVALS:
        try:
            schedule = taccl.baselines.baseline(rival, problem, cut=False)
        except InputError:  # the baseline does not apply here
            continue
        taccl.verify(schedule).raise_if_failed()
        rivals[rival] = schedule.finish_us
    result = taccl.synthesize(problem, time_limit_s=limit_s, seed=seed)
    any_cut = taccl.lower_bound(problem, divisible=True, budget_s=limit_s)
    least = min([*rivals.values(), result.finish_us])
    missed = []
    if result.finish_us > least:
        missed.append("a rival is faster")
    if max(result.bound_us, any_cut.bound_us) > least * (1 + 1e-12):
        missed.append("a bound is beaten")
    return {
        "machine": name,
        "size": format_size(size),
        "size_bytes": size,
        "rivals_us": rivals,
        "ours_us": result.finish_us,
        "producer": result.schedule.producer,
        "bound_us": result.bound_us,
        "bound_over_all_chunkings_us": any_cut.bound_us,
        "gap": result.gap,
        "seconds": round(result.seconds, 2),
        "missed": missed,
    }


def main() -> int:
    """Run, print the table, and write the results; return 1 if a row misses its figure."""
    parser = parser_of(__doc__)
    parser.add_argument("--machine", action="append", help="part of a machine's name; default: all")
    parser.add_argument("--time-limit", type=float, default=5.0, help="seconds of each search")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore", taccl.NumericsWarning)
    rows = (
        measured(name, size, limit_s=options.time_limit, seed=options.seed)
        for name, size in product(MACHINES, SIZES)
        if wanted(name, options.machine)
    )
    results = {"rows": shown(COLUMNS, rows, head="(times in us)")}
    return summed_up(options.output, results, time_limit_s=options.time_limit, rivals=RIVALS)


if __name__ == "__main__":
    sys.exit(main())
