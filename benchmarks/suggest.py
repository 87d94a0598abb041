"""Automatic sketches, compared with the shipped ones and with physical bounds.

Two tables. The first has every case of `benchmarks.cases` twice:

- *physical*: the machine, the collective and the size in bytes of the case. The shipped sketch has its own
  number of chunks per rank; the automatic one chooses it, as for any size.
- *upstream*: the links, ports and shares of NICs that the published tool derives from the case's two files.
  Chunks are those of the case, as its costs are for this chunk size only. The automatic side ignores the
  shipped sketch's clauses.

In both, the two sides are searched in this process, one after the other, with the same limit and threads. The
time of the automatic side includes the suggestion. The second table has larger machines without a shipped
sketch. Their schedules are compared with the bound of the physical problem for divisible data, without
in-network reduction.

Examples
--------
    python -m benchmarks.suggest
    python -m benchmarks.suggest --case "DGX-2 x2" --time-limit 30
    python -m benchmarks.suggest --output benchmarks/results/suggest.json
"""

from __future__ import annotations

import sys
import time
import warnings
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import taccl
from benchmarks.cases import CASES, Case
from benchmarks.report import parser_of, shown, summed_up, wanted

if TYPE_CHECKING:
    from benchmarks.report import Column, Row
    from taccl.problem.problem import Problem

#: Max ratio of the automatic sketch's finish to the shipped sketch's.
WORST_RATIO = 1.02
#: `WORST_GAP`: max gap to the physical bound.
#: `MOST_SECONDS`: max seconds of a search until its gap is that small.
WORST_GAP, MOST_SECONDS = 0.10, 60.0
LARGER = tuple(product(("dgx-a100", "dgx-h100"), ("allgather", "allreduce", "alltoall")))
LARGER_NODES, LARGER_SIZE = 4, "64MB"
SHIPPED: tuple[Column, ...] = (
    ("case", "case", "<28"), ("costs", "cost_model", "<9"), ("shipped", "shipped_us", ">9.2f"),
    ("auto", "automatic_us", ">9.2f"), ("ratio", "ratio", ">7.3f"), ("bound", "bound_us", ">9.2f"),
    ("shipped s", "shipped_seconds", ">9.1f"), ("auto s", "automatic_seconds", ">7.1f"),
)  # fmt: skip
BOUNDED: tuple[Column, ...] = (
    ("machine", "case", "<28"), ("finish", "finish_us", ">9.2f"), ("bound", "bound_us", ">9.2f"),
    ("gap", "gap", ">7.2%"), ("seconds", "seconds", ">8.1f"),
)  # fmt: skip


def main() -> int:
    """Run, print the tables, and write the results; return 1 if a figure is missed."""
    parser = parser_of(__doc__)
    parser.add_argument("--case", action="append", help="part of a case's or a machine's name; default: all")
    parser.add_argument("--cost-model", choices=["upstream", "physical", "both"], default="both")
    parser.add_argument("--time-limit", type=float, default=40.0, help="seconds of each search")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore", taccl.NumericsWarning)
    models = ["physical", "upstream"] if options.cost_model == "both" else [options.cost_model]
    searched = {"limit_s": options.time_limit, "seed": options.seed}
    shipped = (
        against_shipped(case, model, **searched)
        for case, model in product(CASES, models)
        if wanted(case.name, options.case)
    )
    larger = (
        against_bound(name, collective, **searched)
        for name, collective in LARGER
        if wanted(f"{collective} {name} x{LARGER_NODES}", options.case)
    )
    rows = [*shown(SHIPPED, shipped), *shown(BOUNDED, larger)]
    return summed_up(options.output, {"rows": rows}, time_limit_s=options.time_limit)


def against_shipped(case: Case, cost_model: str, *, limit_s: float, seed: int) -> Row:
    """Row of one case, with the shipped and with the suggested sketch."""
    shipped = case.problem(cost_model=cost_model)
    by_hand = _synthesized(shipped, limit_s, seed, sketch="none")
    since = time.monotonic()
    if cost_model == "upstream":
        plain = taccl.make_problem(shipped.topology, shipped.collective, chunk_bytes=shipped.chunk_bytes[0])
        automatic = _synthesized(replace(plain, size_bytes=shipped.size_bytes), limit_s, seed)
    else:
        automatic = _suggested(shipped, case.collective, limit_s, seed)
    seconds = time.monotonic() - since
    ratio = automatic.finish_us / by_hand.finish_us
    return {
        "case": case.name,
        "cost_model": cost_model,
        "shipped_us": by_hand.finish_us,
        "shipped_seconds": round(by_hand.seconds, 2),
        "automatic_us": automatic.finish_us,
        "automatic_seconds": round(seconds, 2),
        "chunks_per_rank": automatic.schedule.problem.collective.chunks_per_rank,
        "producer": automatic.schedule.producer,
        "bound_us": automatic.bound_us,
        "ratio": round(ratio, 5),
        "met": ratio <= WORST_RATIO,
    }


def against_bound(name: str, collective: str, *, limit_s: float, seed: int) -> Row:
    """Row of one larger machine, with the bound of its physical problem."""
    topology = taccl.topologies.parse(name, nodes=LARGER_NODES, profile="nominal")
    size_bytes = 64 * 10**6
    since = time.monotonic()
    plain = taccl.make_problem(
        topology, taccl.collectives.make(collective, topology.num_ranks), size_bytes=size_bytes
    )
    found = _suggested(plain, collective, limit_s, seed)
    seconds = time.monotonic() - since
    bound = taccl.lower_bound(plain, divisible=True, in_network=False)
    gap = found.finish_us / bound.bound_us - 1
    return {
        "case": f"{collective} {name} x{LARGER_NODES}",
        "size": LARGER_SIZE,
        "finish_us": found.finish_us,
        "bound_us": bound.bound_us,
        "limits": bound.limits,
        "gap": round(gap, 5),
        "chunks_per_rank": found.schedule.problem.collective.chunks_per_rank,
        "producer": found.schedule.producer,
        "seconds": round(seconds, 2),
        "met": gap <= WORST_GAP and seconds <= MOST_SECONDS,
    }


def _suggested(problem: Problem, collective: str, limit_s: float, seed: int) -> taccl.Result:
    """Result for a user who gives only a topology, a collective and a size."""
    since = time.monotonic()
    proposals = taccl.suggest_sketches(
        problem.topology, collective, problem.size_bytes, time_limit_s=0.3 * limit_s, seed=seed, most=1
    )
    cut = proposals[0].problem.collective
    plain = taccl.make_problem(problem.topology, cut, size_bytes=problem.size_bytes)
    left_s = limit_s - (time.monotonic() - since)
    return _synthesized(plain, left_s, seed, sketch=proposals[0])


def _synthesized(problem: Problem, limit_s: float, seed: int, **options: Any) -> taccl.Result:
    result = taccl.synthesize(problem, time_limit_s=limit_s, seed=seed, **options)
    taccl.verify(result.schedule).raise_if_failed()
    return result


if __name__ == "__main__":
    sys.exit(main())
