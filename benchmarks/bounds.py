"""Lower bounds: comparison with bounds derived by hand, CPU time, and gaps to known schedules.

Every bound is checked from its witness. Seconds are CPU seconds over all threads, for the bound alone.
Building the topology and the problem, and the check, are counted separately. ``figures`` uses divisible data
and the profile ``nominal``, without alpha. ``kinds`` counts the problems in which each kind of bound is the
best. ``gaps`` compares the finishes that ``benchmarks.quality`` recorded with recomputed bounds. ``small``
does so for small alltoalls, which are latency-bound. ``--plot`` needs matplotlib.

Examples
--------
    python -m benchmarks.bounds                               # figures, speed, growth, gaps, small, kinds
    python -m benchmarks.bounds --part figures --part gaps
    python -m benchmarks.bounds --output benchmarks/results/bounds.json --plot docs/images/bounds-growth.svg
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from fractions import Fraction
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import taccl
from benchmarks.cases import CASES, te_ccl
from benchmarks.report import on_logarithms, parser_of, picture, shown, summed_up
from benchmarks.scale_fabrics import h100, rail_rings, random_regular
from taccl.analysis.certificates.bounds import claims_of
from taccl.analysis.certificates.finding.volume import Volume
from taccl.analysis.certificates.flows import multicommodity
from taccl.analysis.certificates.transformed import merging_freely
from taccl.sketch.group import find_symmetries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.report import Column, Row
    from taccl.analysis.certificates.certificate import Certificate
    from taccl.problem.problem import Problem
    from taccl.topology.topology import Topology

QUALITY = Path(__file__).resolve().parent / "results" / "quality-upstream.json"
MB = 10**6
#: `MEDIAN_GAP`: max median of the gaps of all cases.
#: `LARGEST_GAP`: max gap of any case.
MEDIAN_GAP, LARGEST_GAP = 0.02, 0.06


@dataclass(frozen=True, slots=True)
class Figure:
    """Upper bound on the bandwidth of a collective, with its derivation by hand.

    Parameters
    ----------
    expected : float
        Bandwidth in GB/s, as nccl-tests counts it.
    derived : str
        Derivation of the bound.
    in_network : bool, optional
        True if switches may reduce.
    """

    machine: str
    nodes: int
    collective: str
    expected: float
    derived: str
    in_network: bool | None = None


FIGURES = (
    Figure("dgx1", 1, "allgather", 171.43, "150 GB/s into a rank, which lacks 7/8"),
    Figure("dgx-a100", 2, "allgather", 346.67, "325 GB/s into a rank, which lacks 15/16"),
    Figure("ndv2", 2, "allgather", 25.0, "12.5 GB/s into a node, which lacks 1/2"),
    Figure("ndv2", 4, "allgather", 16.67, "12.5 GB/s into a node, which lacks 3/4"),
    Figure("dgx2", 2, "allgather", 161.29, "16 x 150 + 8 x 12.5 GB/s into 16 ranks, which lack 31/32 each"),
    Figure("ndv2", 2, "alltoall", 3.125, "12.5 GB/s into a node, 8 x 8 pieces; a rank has 16"),
    Figure("ndv2", 4, "alltoall", 2.083, "12.5 GB/s into a node, 8 x 24 pieces; a rank has 32"),
    Figure("dgx2", 2, "alltoall", 12.5, "100 GB/s into a node, 16 x 16 pieces; a rank has 32"),
    Figure("ndv2", 2, "allreduce", 12.5, "12.5 GB/s into a node, which lacks a sum", False),
    Figure("ndv2", 4, "allreduce", 8.33, "2 x (4 - 1) sends over 4 NICs of 12.5 GB/s", False),
    Figure("dgx-a100", 1, "allreduce", 171.4, "2 x (8 - 1) sends over 8 ports of 300 GB/s", False),
    Figure("dgx-a100", 1, "allreduce", 300.0, "300 GB/s into a rank, whose switch reduces", True),
)


#: Bounds with a limit on CPU time: (name, topology, collective, max CPU seconds).
SPEEDS: tuple[tuple[str, Callable[[], Topology], str, float], ...] = (
    ("DGX-H100 x16", h100(16), "allgather", 5),
    ("NDv2 x16", lambda: taccl.topologies.ndv2(16), "allgather", 5),
    ("rail rings 16x8", lambda: rail_rings(16), "allgather", 5),
    ("random 8-regular 128", lambda: random_regular(128, 8), "allgather", 5),
    ("DGX-H100 x128", h100(128), "allgather", 120),
    ("random 8-regular 64", lambda: random_regular(64, 8), "alltoall", 30),
    ("DGX-H100 x8", h100(8), "alltoall", 30),
    ("NDv2 x8", lambda: taccl.topologies.ndv2(8), "alltoall", 30),
)


@dataclass(frozen=True, slots=True)
class Small:
    """An alltoall of `size_bytes` as nccl-tests counts it, with a known finish, and the max gap to it."""

    name: str
    topology: Callable[[], Topology]
    size_bytes: int
    finish_us: str
    gap: float


SMALL = (
    Small("dgx2x2.toml", lambda: te_ccl("dgx2x2"), 64_000, "7.72", 0.001),
    Small("dgx2x2.toml", lambda: te_ccl("dgx2x2"), 10**6, "82.6", 0.001),
    Small("DGX-2 x2", lambda: taccl.topologies.dgx2(2), 64_000, "9.32", 0.001),
    Small("DGX-2 x4", lambda: taccl.topologies.dgx2(4), 64_000, "13.1", 0.04),
)

_RANKS = (16, 32, 64, 128, 256, 512, 1024)
#: Families of growing fabrics: (name, collective, topology by number of ranks, numbers of ranks).
GROWTH: tuple[tuple[str, str, Callable[[int], Topology], tuple[int, ...]], ...] = tuple(
    (name, collective, topology, sizes)
    for collective, sizes in (("allgather", _RANKS), ("alltoall", _RANKS[:4]))
    for name, topology in (
        ("DGX-H100", lambda n: h100(n // 8)()), ("random 8-regular", lambda n: random_regular(n, 8)),
    )
)  # fmt: skip


#: (topology, number of nodes) in the part `kinds`; each is combined with every collective and every size.
MACHINES = (
    *((name, nodes) for name in ("ndv2", "dgx1", "dgx2", "dgx-a100", "dgx-h100", "h200", "b200", "mi300x")
      for nodes in (1, 2, 4)),
    *((name, 1) for name in
      ("gb200-nvl72", "ring:8", "torus:4x4", "mesh:4x4", "hypercube:4", "fully-connected:8")),
)  # fmt: skip
COLLECTIVES = ("allgather", "allreduce", "reduce-scatter", "alltoall", "broadcast", "gather")
SIZES = {"1KB": 10**3, "1MB": MB, "64MB": 64 * MB}
#: Max collectives and sizes that `kinds` names for each kind.
_MOST_CASES = 4


def main() -> int:
    """Run, print the tables, and write the results; return 1 if a figure is missed."""
    parser = parser_of(__doc__)
    parser.add_argument("--part", action="append", choices=PARTS, help="default: all")
    parser.add_argument("--plot", type=Path, help="an SVG file for how cost grows")
    options = parser.parse_args()
    parts = options.part or list(PARTS)
    if options.plot is not None and "growth" not in parts:
        parser.error("--plot needs the part growth")
    taccl.lower_bound(_problem(taccl.topologies.ring(3), "alltoall"))  # loads libraries before timing
    results = {part: shown(columns, make()) for part, (make, columns) in PARTS.items() if part in parts}
    versions = {name: version(name) for name in ("taccl", "numpy", "scipy")}
    print(", ".join(f"{name} {number}" for name, number in versions.items()))
    if options.plot is not None:
        draw(results["growth"], options.plot)
    return summed_up(options.output, results, versions=versions)


def figures() -> Iterator[Row]:
    """Bandwidth bounds in GB/s, each next to that derived by hand; for alltoall, also that from flows."""
    for figure in FIGURES:
        topology = taccl.topologies.parse(figure.machine, nodes=figure.nodes, profile="nominal")
        problem = _problem(topology, figure.collective)
        began = time.process_time()
        bound = taccl.lower_bound(problem, divisible=True, in_network=figure.in_network is True)
        row = _of_bound(bound, began)
        found = bound.algbw_gb_per_s
        if figure.collective == "alltoall":
            found = _flow_gb_per_s(problem)
        met = found is not None and bound.check() and abs(found - figure.expected) <= 5e-4 * figure.expected
        name = f"{figure.collective} {figure.machine} x{figure.nodes}"
        if figure.in_network is not None:
            name += " in-network" if figure.in_network else " by ranks alone"
        about = {"figure": name, "gb_per_s": found, "expected": figure.expected}
        yield about | row | {"by_hand": figure.derived, "met": met}


def _of_bound(bound: Certificate, began: float) -> Row:
    """Common columns of a row: the bound, and the CPU seconds since `began`."""
    cpu_s = round(time.process_time() - began, 3)
    return {"cpu_s": cpu_s, "bound_us": bound.bound_us, "kind": bound.kind, "bound_limits": bound.limits}


def _flow_gb_per_s(problem: Problem) -> float:
    """Bandwidth bound in GB/s from the linear program of multicommodity flow alone."""
    volume = Volume(problem, divisible=True)
    found = multicommodity(volume, find_symmetries(problem))
    assert found is not None and found[2]
    assert problem.size_bytes is not None
    return float(problem.size_bytes / (found[0] / problem.costs.ticks_per_us) / 1000)


def speeds() -> Iterator[Row]:
    """CPU seconds of lower bounds for whole (indivisible) chunks, with the limits on them."""
    for name, topology, collective, most_s in SPEEDS:
        row = _cost(name, collective, topology())
        yield row | {"cpu_s_at_most": most_s, "met": row["met"] and row["cpu_s"] <= most_s}


def growth() -> Iterator[Row]:
    """CPU seconds of lower bounds for whole (indivisible) chunks, on fabrics of growing size."""
    for name, collective, topology, sizes in GROWTH:
        for num_ranks in sizes:
            yield _cost(name, collective, topology(num_ranks))


def _cost(name: str, collective: str, topology: Topology) -> Row:
    began = time.process_time()
    problem = _problem(topology, collective)
    problem.costs  # noqa: B018  worked out once, when first asked for
    built = time.process_time()
    row = _of_bound(bound := taccl.lower_bound(problem), built)
    bounded = time.process_time()
    return row | {
        "case": name, "collective": collective, "ranks": topology.num_ranks, "links": len(topology.links),
        "build_s": round(built - began, 3), "met": bound.check(),
        "check_s": round(time.process_time() - bounded, 3),
    }  # fmt: skip


def gaps() -> Iterator[Row]:
    """Gaps, (finish - bound) / bound, of the recorded cases, with limits on the median and the largest."""
    recorded = {row["case"]: row for row in json.loads(QUALITY.read_text())["rows"] if "finish_us" in row}
    every = []
    for case in CASES:
        if case.name not in recorded:
            continue
        problem = case.problem()
        began = time.process_time()
        bound = taccl.lower_bound(problem)
        row = _of_bound(bound, began)
        finish = Fraction(str(recorded[case.name]["finish_us"]))
        every.append(bound.gap(finish))
        met = bound.check() and bound.bound <= finish
        yield row | {"case": case.name, "finish_us": float(finish), "gap": every[-1], "met": met}
    median, largest = statistics.median(every), max(every)
    met = median <= MEDIAN_GAP and largest <= LARGEST_GAP and len(every) == len(CASES)
    told = f"median gap {median:.2%} (<= {MEDIAN_GAP:.0%}), largest {largest:.2%} (<= {LARGEST_GAP:.0%})"
    yield {"case": "all", "median_gap": median, "largest_gap": largest, "bound_limits": told, "met": met}


def small() -> Iterator[Row]:
    """Gaps between finishes and lower bounds of short alltoalls, each with the largest gap allowed."""
    for case in SMALL:
        topology = case.topology()
        problem = taccl.make_problem(topology, "alltoall", size_bytes=case.size_bytes, chunks_per_rank=1)
        began = time.process_time()
        bound = taccl.lower_bound(problem)
        row, finish = _of_bound(bound, began), Fraction(case.finish_us)
        gap = bound.gap(finish)
        met = bound.check() and 0 <= gap <= case.gap
        about = {"case": case.name, "size_bytes": case.size_bytes, "finish_us": float(finish)}
        yield about | row | {"gap": gap, "gap_at_most": case.gap, "met": met}


def kinds() -> Iterator[Row]:
    """Yield a row per kind of bound: in how many problems it is the best, or the only best.

    Rows of bounds for whole (indivisible) chunks come first. A row also names the collectives and sizes for
    which its kind most often is the only best one, or, if it never is, one of the best.
    """
    for divisible in (False, True):
        best, alone = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
        leads = defaultdict[str, list[float]](list)
        began, total = time.process_time(), 0
        for (name, nodes), collective, size in product(MACHINES, COLLECTIVES, SIZES):
            topology = taccl.topologies.parse(name, nodes=nodes if nodes > 1 else None)
            problem = taccl.make_problem(topology, collective, size_bytes=SIZES[size])
            if divisible:
                problem = merging_freely(problem)
            ticks = dict[str, Fraction]()
            for claim in claims_of(problem, divisible=divisible):
                ticks[claim.kind] = max(ticks.get(claim.kind, Fraction(0)), Fraction(claim.ticks))
            total += 1
            most = max(ticks.values())
            winners = [kind for kind, each in ticks.items() if each == most]
            for kind in winners:
                best[kind].append(f"{collective} {size}")
            if len(winners) == 1 and len(ticks) > 1:
                alone[winners[0]].append(f"{collective} {size}")
                leads[winners[0]].append(float(most / sorted(ticks.values())[-2] - 1))
        cpu_s = round(time.process_time() - began, 1)
        for kind in sorted(best, key=lambda kind: -len(best[kind])):
            cases = Counter(alone[kind] or best[kind]).most_common(_MOST_CASES)
            yield {
                "scope": "all chunkings" if divisible else "whole chunks", "problems": total, "cpu_s": cpu_s,
                "kind": kind, "best": len(best[kind]), "alone": len(alone[kind]),
                "lead": statistics.median(leads[kind]) if leads[kind] else None,
                "mostly": ", ".join(f"{case} ({number})" for case, number in cases), "met": True,
            }  # fmt: skip


_LIMITS: Column = ("limited by", "bound_limits", "<40")
_COST: tuple[Column, ...] = (
    ("case", "case", "<21"), ("collective", "collective", "<10"), ("ranks", "ranks", ">5"),
    ("links", "links", ">7"), ("build s", "build_s", ">8.2f"), ("CPU s", "cpu_s", ">8.2f"),
    ("<=", "cpu_s_at_most", ">4"), ("check s", "check_s", ">8.2f"), ("bound us", "bound_us", ">10.1f"),
    _LIMITS,
)  # fmt: skip
#: {part: (function that yields its rows, columns to print)}.
PARTS: dict[str, tuple[Callable[[], Iterator[Row]], tuple[Column, ...]]] = {
    "figures": (figures, (
        ("figure", "figure", "<36"), ("GB/s", "gb_per_s", ">8.3f"), ("expected", "expected", ">8g"),
        ("CPU s", "cpu_s", ">6.2f"), ("by hand", "by_hand", "<66"),
    )),
    "speed": (speeds, _COST),
    "growth": (growth, _COST),
    "gaps": (gaps, (
        ("case", "case", "<28"), ("finish", "finish_us", ">9.1f"), ("bound", "bound_us", ">9.1f"),
        ("gap", "gap", ">7.2%"), ("CPU s", "cpu_s", ">6.2f"), _LIMITS,
    )),
    "small": (small, (
        ("alltoall", "case", "<14"), ("bytes", "size_bytes", ">9"), ("finish", "finish_us", ">9.2f"),
        ("bound", "bound_us", ">9.2f"), ("gap", "gap", ">7.2%"), ("<=", "gap_at_most", ">6.1%"),
        ("CPU s", "cpu_s", ">6.2f"), _LIMITS,
    )),
    "kinds": (kinds, (
        ("scope", "scope", "<13"), ("kind", "kind", "<14"), ("problems", "problems", ">8"),
        ("best", "best", ">5"), ("alone", "alone", ">5"), ("lead, median", "lead", ">12.1%"),
        ("CPU s", "cpu_s", ">6.1f"), ("most often for", "mostly", "<40"),
    )),
}  # fmt: skip


def draw(rows: list[Row], path: Path) -> None:
    """Plot CPU seconds over ranks to an SVG file, one line per family."""
    families = dict.fromkeys((row["collective"], row["case"]) for row in rows)
    with picture(path, width=6.4, height=4) as axes:
        for (collective, name), marker in zip(families, "osD^", strict=True):
            mine = [row for row in rows if (row["collective"], row["case"]) == (collective, name)]
            ranks, cpu_s = [row["ranks"] for row in mine], [row["cpu_s"] for row in mine]
            axes.plot(ranks, cpu_s, marker=marker, label=f"{collective}, {name}")
        on_logarithms(axes, (row["ranks"] for row in rows), "CPU seconds of the bound")


def _problem(topology: Topology, collective: str) -> Problem:
    made = taccl.collectives.make(collective, topology.num_ranks)
    return taccl.make_problem(topology, made, chunk_bytes=MB)


if __name__ == "__main__":
    sys.exit(main())
