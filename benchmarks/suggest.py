"""Automatic sketches against the shipped ones, and against physical bounds.

    python -m benchmarks.suggest
    python -m benchmarks.suggest --case "DGX-2 x2" --time-limit 30
    python -m benchmarks.suggest --output benchmarks/results/suggest.json

Two tables. The first has every case of `benchmarks.cases` twice:

- *physical*: the machine, the collective and the size in bytes of the case. The shipped sketch keeps its own
  number of chunks per rank; the automatic one chooses it, as for any size.
- *upstream*: the links, ports and shares of NICs that the published tool makes of the case's two files, and
  the case's chunks, whose costs are for that chunk size only. The shipped sketch's clauses are set aside.

Either way both sides are searched in this process, one after the other, with the same limit and threads; the
automatic side's time includes suggesting. The second table has larger machines, for which no sketch is
shipped, against the bound of the physical problem for data that may be cut at will, without reduction inside
switches.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import taccl
from benchmarks.cases import CASES, Case, data_folder
from benchmarks.machine import machine
from taccl.sketch.upstream import load_problem

if TYPE_CHECKING:
    from taccl.problem import Problem

#: The automatic finish over that of the shipped sketch, at most.
WORST_RATIO = 1.02
#: The gap to the physical bound, at most, and the seconds in which it is to be reached.
WORST_GAP, MOST_SECONDS = 0.10, 60.0
LARGER = tuple(product(("dgx-a100", "dgx-h100"), ("allgather", "allreduce", "alltoall")))
LARGER_NODES, LARGER_SIZE = 4, "64MB"


def main() -> int:
    """Run, print the tables, write the results; 1 if a figure is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--case", action="append", help="part of a case's or a machine's name; default: all")
    parser.add_argument("--cost-model", choices=["upstream", "physical", "both"], default="both")
    parser.add_argument("--time-limit", type=float, default=40.0, help="seconds of each search")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="a JSON file for the results")
    options = parser.parse_args()
    warnings.simplefilter("ignore", taccl.NumericsWarning)
    models = ["physical", "upstream"] if options.cost_model == "both" else [options.cost_model]
    rows: list[dict[str, Any]] = []
    print(f"{'case':<28} {'costs':<9} {'shipped':>9} {'auto':>9} {'ratio':>7} {'bound':>9} {'seconds':>13}")
    for case in CASES:
        for model in models:
            if _wanted(case.name, options.case):
                rows.append(against_shipped(case, model, limit_s=options.time_limit, seed=options.seed))
                print(_shipped_line(rows[-1]), flush=True)
    print(f"\n{'machine':<28} {'finish':>9} {'bound':>9} {'gap':>7} {'seconds':>8}")
    for name, collective in LARGER:
        if _wanted(f"{collective} {name} x{LARGER_NODES}", options.case):
            rows.append(against_bound(name, collective, limit_s=options.time_limit, seed=options.seed))
            print(_bound_line(rows[-1]), flush=True)
    missed = [row for row in rows if not row["met"]]
    print(f"\n{len(rows)} rows, {len(missed)} miss their figure; {machine()}")
    if options.output is not None:
        command = " ".join(["python -m benchmarks.suggest", *sys.argv[1:]])
        document = {
            "command": command,
            "machine": machine(),
            "time_limit_s": options.time_limit,
            "rows": rows,
        }
        options.output.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if missed else 0


def against_shipped(case: Case, cost_model: str, *, limit_s: float, seed: int) -> dict[str, Any]:
    """One case with the shipped sketch, and with the one that is suggested."""
    folder = data_folder()
    shipped = load_problem(
        folder / "sketch" / f"{case.sketch}.json",
        folder / "topo" / f"{case.topology}.json",
        collective=case.collective,
        cost_model=cost_model,  # type: ignore[arg-type]
    )
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


def against_bound(name: str, collective: str, *, limit_s: float, seed: int) -> dict[str, Any]:
    """One larger machine, against the bound of its physical problem."""
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
    """What a person gets who gives a topology, a collective and a size, and no more."""
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


def _wanted(name: str, parts: list[str] | None) -> bool:
    return not parts or any(part in name for part in parts)


def _shipped_line(row: dict[str, Any]) -> str:
    seconds = f"{row['shipped_seconds']:.1f} / {row['automatic_seconds']:.1f}"
    return (
        f"{row['case']:<28} {row['cost_model']:<9} {row['shipped_us']:>9.2f} {row['automatic_us']:>9.2f} "
        f"{row['ratio']:>7.3f} {row['bound_us']:>9.2f} {seconds:>13} {'' if row['met'] else 'missed'}"
    )


def _bound_line(row: dict[str, Any]) -> str:
    return (
        f"{row['case']:<28} {row['finish_us']:>9.2f} {row['bound_us']:>9.2f} {row['gap']:>7.2%} "
        f"{row['seconds']:>8.1f} {'' if row['met'] else 'missed'}"
    )


if __name__ == "__main__":
    sys.exit(main())
