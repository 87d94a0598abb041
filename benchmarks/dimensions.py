"""Multi-dimensional networks: fixed order of dimensions, balanced orders, and the general search.

Every schedule is a verified allreduce, and every time is that of its sends, latency included. The first part
has products of 1,024 ranks, with 1 GB in 64 chunks and 0.5 us per hop. The finish of the fixed order over the
optimum of all mixes of orders (bandwidth only) must be the known figure. Both policies must reach 95 % of the
optimum's rate. The second part measures CPU seconds for planning, for verification send by send, and for
verification of implicit schedules. The third part compares the general search with algorithms along
dimensions, on fabrics of other papers. A row misses its figure if a finish lies below a bound.

Examples
--------
    python -m benchmarks.dimensions
    python -m benchmarks.dimensions --part products --output benchmarks/results/dimensions.json
"""

from __future__ import annotations

import itertools
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any

import taccl
from benchmarks.report import parser_of, shown, summed_up
from benchmarks.scale_fabrics import dragonfly
from taccl.analysis.verification.verify_implicit import verify_implicit
from taccl.errors import TacclError, TopologyError
from taccl.solvers.registry import package_versions
from taccl.synthesis.proposers.balanced import choose_num_chunks
from taccl.topologies import dgx_h100, mesh, parse, torus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from benchmarks.report import Column, Row
    from taccl.problem.problem import Problem

SIZE, CHUNKS, REACHED = 10**9, 64, 0.95
#: {dimensions: finish of the fixed order over the optimum, bandwidth only}.
PRODUCTS = {
    "switch16@100,switch64@100": 1.88,
    "switch16@100,switch8@100,switch8@100": 2.82,
    "switch4@100,switch8@100,switch8@100,switch4@100": 3.00,
    "switch16@200,switch8@100,switch8@50": 1.64,
    "switch8@100,switch16@25,switch8@12.5": 1.20,
}
#: `PLAN_S`: max CPU seconds to plan 1,024 ranks.
#: `LISTED_S`: max CPU seconds to time and verify a schedule of 256 ranks that lists every send.
#: `IMPLICIT_S`: max CPU seconds to verify implicit schedules.
PLAN_S, LISTED_S, IMPLICIT_S = 1.0, 20.0, 5.0
LARGE = (
    "switch16@100,switch64@100", "switch16@100,switch32@100,switch32@100", "ring16@100,ring32@100,ring32@100",
)  # fmt: skip
LISTED = "switch16@100,switch4@100,ring4@50"


def fabrics() -> dict[str, Problem]:
    """{fabric: allreduce of 64 MB}, the cases of the part "fabrics"."""
    options: dict[str, Any] = {"alpha_meaning": "pipelined"}
    whole = {
        "torus 8x8x8": torus(8, 8, 8, **options),
        "mesh 16x16": mesh(16, 16, **options),
        "dgx-h100 x64": dgx_h100(64),
        "dragonfly 9x4": dragonfly(9, 4, us_per_mb=20, **options),
        "mesh 8x8, 100 and 25 GB/s": mesh(8, 8, bandwidth_gb_per_s=[100, 25], **options),
        "torus 8x8, two failed links": torus(8, 8, **options).without(links=[(0, 1), (27, 35)]),
    }
    size = 64 * 10**6
    found = {name: taccl.make_problem(each, "allreduce", size_bytes=size) for name, each in whole.items()}
    half = taccl.collectives.allreduce(32)
    columns = [[rank for rank in range(64) if rank % 8 // 4 == side] for side in (0, 1)]
    both = taccl.collectives.together([half.among(ranks, num_ranks=64) for ranks in columns])
    found["torus 8x8, two groups"] = taccl.make_problem(torus(8, 8, **options), both, size_bytes=size)
    return found


def product(dims: str, ratio: float) -> Row:
    """Row of the part "products": fixed, balanced and general schedules on a product of dimensions."""
    name, each = f"multidim:{dims}", {}
    found = taccl.dimensions(name)
    fixed = taccl.baselines.hierarchical(found, chunks=CHUNKS, size=SIZE)
    verify_implicit(fixed).raise_if_failed()
    seconds = 0.0
    for policy in ("greedy", "lp"):
        since = time.process_time()
        each[policy] = along(name, CHUNKS, policy)
        seconds = max(seconds, time.process_time() - since)
    bound, general = each["lp"].dimension_bound, each["lp"].bound
    general_us = search(found.host)
    row = {
        "case": dims, "num_ranks": found.num_ranks, "fixed_us": fixed.finish_us, "general_us": general_us,
        **{f"{policy}_us": result.finish_us for policy, result in each.items()},
        **{f"{policy}_reached": bound.bound_us / result.finish_us for policy, result in each.items()},
        "gain": bound.gain, "expected_gain": ratio, "dimension_bound_us": bound.bound_us,
        "bound_us": general.bound_us, "cpu_s": round(seconds, 3), "missed": [],
    }  # fmt: skip
    least = min(fixed.finish_us, each["greedy"].finish_us, each["lp"].finish_us)
    misses = {
        "gain": round(bound.gain, 2) != ratio,
        **{policy: row[f"{policy}_reached"] < REACHED for policy in each},
        "a bound is beaten": general.bound_us > min(least, general_us) or bound.bound_us > least,
        "the bound is not proven": not bound.check(),
        "seconds": seconds > PLAN_S,
    }
    return row | {"missed": [what for what, is_missed in misses.items() if is_missed]}


def along(fabric: Any, chunks: int, policy: Any = "lp", size: int = SIZE) -> Any:
    """Result of the dimension-balanced algorithm, as an implicit schedule.

    - `chunks`: Chunks per rank.
    - `size`: Size in bytes as nccl-tests counts it.
    """
    num_ranks = taccl.dimensions(fabric).num_ranks
    return taccl.synthesize_implicit(
        fabric, "allreduce", chunk_size=-(-size // (chunks * num_ranks)), chunks_per_rank=chunks,
        backend="dimension-balanced", policy=policy,
    )  # fmt: skip


def search(fabric: Any, size: int = SIZE) -> float:
    """Finish in us of the general implicit search; the better of 1 and 8 chunks per rank."""
    num_ranks = taccl.dimensions(fabric).num_ranks
    return min(
        taccl.synthesize_implicit(
            fabric, "allreduce", chunk_size=-(-size // (chunks * num_ranks)), chunks_per_rank=chunks
        ).finish_us
        for chunks in (1, 8)
    )


def effort() -> Iterator[Row]:
    """Yield rows of the part "effort": CPU seconds for schedules that list sends, and for implicit ones."""
    since = time.process_time()
    problem = taccl.make_problem(
        parse(f"multidim:{LISTED}"), "allreduce", size_bytes=SIZE, chunks_per_rank=CHUNKS
    )
    built = time.process_time()
    result = taccl.synthesize(problem, backend="dimension-balanced")
    # A stage that the time limit ends is not listed.
    stages = [stage.seconds for stage in result.stages if stage.name == "dimensions"]
    cpu_s = min([*stages, time.process_time() - built])
    yield timed(f"{LISTED}, send by send", result, cpu_s, LISTED_S) | {"built_s": built - since}
    for dims in LARGE:
        since = time.process_time()
        found = along(f"multidim:{dims}", CHUNKS)
        yield timed(f"{dims}, implicit", found, time.process_time() - since, IMPLICIT_S)


def timed(name: str, found: Any, cpu_s: float, limit_s: float) -> Row:
    """Row of the part "effort", which misses its figure above `limit_s` CPU seconds."""
    return {
        "case": name, "transfers": found.schedule.num_transfers, "cpu_s": cpu_s, "limit_s": limit_s,
        "finish_us": found.finish_us, "bound_us": found.bound.bound_us,
        "missed": ["seconds"] * (cpu_s > limit_s),
    }  # fmt: skip


def fabric(name: str, problem: Problem, limit_s: float) -> Row:
    """Row of the part "fabrics": general search, and schedules along dimensions where a fabric has them."""
    row: Row = {"case": name, "num_ranks": problem.topology.num_ranks, "why": "", "missed": []}
    result = taccl.synthesize(problem, backend="greedy", time_limit_s=limit_s)
    row |= {"general_us": result.finish_us, "bound_us": result.bound_us, "producer": result.schedule.producer}
    try:
        dims = taccl.dimensions(problem.topology)
        size = problem.size_bytes or 0
        if problem.collective.groups:
            raise TopologyError("process groups are no whole collective")
        if dims.is_regular:
            chunks = choose_num_chunks(dims, "allreduce", size)
            balanced = along(problem.topology, chunks, size=size)
            fixed = taccl.baselines.hierarchical(dims, chunks=chunks, size=size)
            verify_implicit(fixed).raise_if_failed()
            row["fixed_us"] = fixed.finish_us
        else:
            balanced = taccl.synthesize(problem, backend="dimension-balanced")
            chunks = balanced.schedule.problem.collective.chunks_per_rank
            listed = taccl.baselines.hierarchical(problem, order=range(len(dims)), chunks=chunks)
            taccl.verify(listed).raise_if_failed()
            row["fixed_us"] = listed.finish_us
        row |= {"lp_us": balanced.finish_us, "dimension_bound_us": balanced.dimension_bound.bound_us}
    except TacclError as error:
        row["why"] = error.message if isinstance(error, TopologyError) else str(error)
    # The bound is for the chunks that the search chose; the other schedules have their own chunks.
    if row["bound_us"] > row["general_us"] or row.get("dimension_bound_us", 0) > row.get("lp_us", 0):
        row["missed"] = ["a bound is beaten"]
    return row


PARTS: dict[str, Callable[[float], Iterable[Row]]] = {
    "products": lambda _: itertools.starmap(product, PRODUCTS.items()),
    "effort": lambda _: effort(),
    "fabrics": lambda limit_s: (fabric(name, problem, limit_s) for name, problem in fabrics().items()),
}
COLUMNS: tuple[Column, ...] = (
    ("case", "case", "<50"), ("fixed", "fixed_us", ">11.5g"), ("greedy", "greedy_us", ">11.5g"),
    ("lp", "lp_us", ">11.5g"), ("general", "general_us", ">11.5g"),
    ("dimensions", "dimension_bound_us", ">11.5g"), ("bound", "bound_us", ">11.5g"),
)  # fmt: skip


def details(row: Row) -> str:
    """Last cells of a table row: known shares of optimal rate, gain, CPU seconds, reason of a failure."""
    rates = [f"{row[f'{policy}_reached']:>7.1%}" for policy in ("greedy", "lp") if f"{policy}_reached" in row]
    if "gain" in row:
        rates.append(f"{row['gain']:.2f}x, {row['cpu_s']:.2f} s")
    if "limit_s" in row:
        rates = [f"{row['transfers']} transfers, {row['cpu_s']:.2f} of {row['limit_s']:.0f} s of CPU"]
    return " ".join([*rates, row.get("why", "")])


def main() -> int:
    """Run, print the table, and write the results; return 1 if a row misses its figure."""
    parser = parser_of(__doc__)
    parser.add_argument("--part", action="append", choices=PARTS, help="default: all")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds of each general search")
    options = parser.parse_args()
    warnings.simplefilter("ignore", taccl.NumericsWarning)
    taccl.synthesize(  # compiles kernels before timing
        taccl.make_problem(parse("torus:4x4"), "allreduce", size_bytes=10**6, chunks_per_rank=1),
        backend="dimension-balanced",
    )
    along("torus:4x4", 1)
    parts = [PARTS[part](options.time_limit) for part in PARTS if part in (options.part or PARTS)]
    head = "(times in us; of the optimum's rate: greedy, lp)"
    results = {"rows": shown(COLUMNS, itertools.chain(*parts), details, head)}
    return summed_up(options.output, results, versions=package_versions(), size_bytes=SIZE, chunks=CHUNKS)


if __name__ == "__main__":
    sys.exit(main())
