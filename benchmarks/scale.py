"""Scaling of greedy synthesis: seconds, memory and finish over bound, for fabrics too large for a MILP.

A search stops at a finish of the case's ratio times the bound. With ``--no-target`` it continues until it has
tried everything, so that two versions are compared by their best schedules.

Every case runs in a separate process, so its peak memory is measured alone. CPU seconds are those of one core
after compilation, from the problem to the columns of the schedule. Building the topology and the problem,
proving the bound and verifying the schedule are counted separately. For implicit schedules they include
everything except verification, which does not list transfers. At the end it prints the growth of time and
memory with the number of ranks, from the meshes.

Examples
--------
    python -m benchmarks.scale                                # every case but the large ones
    python -m benchmarks.scale --case mesh-32x32 --case dragonfly-9x8
    python -m benchmarks.scale --all                          # the large ones too
    python -m benchmarks.scale --output benchmarks/results/scale.json  # keeps stored rows that are not run
    python -m benchmarks.scale --all --plot docs/images/scale-growth.svg                # and draw the growth
    python -m benchmarks.scale --case dgx2-x2 --seed 0 --seed 1 --no-target    # to compare two versions
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

import taccl
from benchmarks import scale_fabrics as fabrics
from benchmarks.report import on_logarithms, parser_of, picture, shown, summed_up, with_stored
from benchmarks.scale_fabrics import MB
from benchmarks.scale_rivals import Rivals, find_rivals
from taccl.analysis.verification.verify import verify
from taccl.analysis.verification.verify_implicit import verify_implicit
from taccl.problem.collectives import together
from taccl.problem.making import make_problem
from taccl.synthesis.improve.improvement import compile_improvement
from taccl.synthesis.proposers.large import schedule_large

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.report import Column, Row
    from taccl.problem.collective import Collective
    from taccl.problem.problem import Problem
    from taccl.topology.topology import Topology

#: Time limit in seconds for a lower bound.
BOUND_S = 20.0


@dataclass(frozen=True, slots=True)
class Case:
    """A collective, by default with one 1 MB chunk per rank, and the figures to meet.

    Parameters
    ----------
    topology : function without arguments that returns a topology, or str
        A string is a fabric for `taccl.synthesize_implicit`, whose schedule is never listed.
    cpu_s : float
        Max CPU seconds.
    ratio : float
        Max ratio of finish to bound.
    sizes : function of a collective, optional
        Function that returns the size of each chunk in bytes; by default all have `chunk_bytes`.
    is_large : bool
        True to run the case only with ``--all`` or by name.
    bound_us : float, optional
        A bound derived by hand, for cases in which `taccl.lower_bound` needs too much memory.
    chunks_per_rank, chunk_bytes : int
        Number of chunks per rank, and size of a chunk in bytes.
    groups : function of a topology, optional
        Function that returns the ranks of process groups, each of which runs the collective. By default all
        ranks are one group.
    fails : function of a topology, optional
        Function that returns the topology after a failure. The case then measures `taccl.replan` of a
        schedule for the whole topology.
    spills : bool
        True to keep the schedule's columns in temporary files during the search.
    """

    name: str
    topology: Callable[[], Topology] | str
    cpu_s: float
    ratio: float
    collective: str = "allgather"
    sizes: Callable[[Collective], list[int]] | None = None
    is_large: bool = False
    bound_us: float | None = None
    chunks_per_rank: int = 1
    chunk_bytes: int = MB
    groups: Callable[[Topology], list[list[int]]] | None = None
    fails: Callable[[Topology], Topology] | None = None
    spills: bool = False


def _mesh(*dims: int, **costs: Any) -> Callable[[], Topology]:
    return lambda: taccl.topologies.mesh(*dims, **costs)


CASES = (
    Case("mesh-16x16", _mesh(16, 16), 0.2, 1.00),
    Case("mesh-32x32", _mesh(32, 32), 0.2, 1.00),
    Case("mesh-31x33", _mesh(31, 33), 0.3, 1.01),
    Case("mesh-32x32-failed-link", fabrics.mesh_with_failure, 0.3, 1.01),
    Case("torus-32x32", lambda: taccl.topologies.torus(32, 32), 0.2, 1.01),
    Case("mesh-64x64", _mesh(64, 64), 4, 1.00),
    # A corner receives 9999 chunks over 2 links, so at least 5000 rounds of 20.5 us.
    Case("mesh-100x100", _mesh(100, 100), 60, 1.00, is_large=True, bound_us=102500),
    Case("mesh-32x32-tiered", _mesh(32, 32, bandwidth_gb_per_s=(75, 50)), 1, 1.01),
    Case("mesh-30x30-uneven", lambda: fabrics.uneven_mesh(30), 2, 1.02),
    Case("mesh-50x50-uneven", lambda: fabrics.uneven_mesh(50), 10, 1.02, is_large=True),
    Case("mesh-100x100-uneven", lambda: fabrics.uneven_mesh(100), 60, 1.02, is_large=True),
    Case("mesh-200x200-uneven", lambda: fabrics.uneven_mesh(200), 600, 1.02, is_large=True, spills=True),
    Case("rail-rings-16x8", lambda: fabrics.rail_rings(16), 1, 1.05),
    Case("rail-rings-128x8", lambda: fabrics.rail_rings(128), 1, 1.05),
    Case("dragonfly-9x8", fabrics.dragonfly, 0.1, 1.02),
    Case("random-8-regular-512", lambda: fabrics.random_regular(512, 8), 1, 1.05),
    Case("random-8-regular-512", lambda: fabrics.random_regular(512, 8), 60, 1.15, "alltoall"),
    Case("dgx-h100-x64", fabrics.h100(64), 10, 1.03),
    Case("dgx-h100-x64", fabrics.h100(64), 10, 1.03, "reduce_scatter"),
    Case("dgx-h100-x64", fabrics.h100(64), 20, 1.05, "allreduce"),
    Case("dgx-h100-x64", fabrics.h100(64), 60, 1.05, "alltoall"),
    Case("spine-x64", fabrics.oversubscribed, 20, 1.05),
    Case("spine-x64", fabrics.oversubscribed, 20, 1.05, "reduce_scatter"),
    Case("spine-x64", fabrics.oversubscribed, 40, 1.08, "allreduce"),
    Case("spine-x64", fabrics.oversubscribed, 90, 1.08, "alltoall"),
    Case("spine-x64-leaves-of-16", lambda: fabrics.oversubscribed(64, 16), 20, 1.05),
    Case("spine-x64-leaves-of-16", lambda: fabrics.oversubscribed(64, 16), 90, 1.08, "alltoall"),
    Case("dgx-h100-x32-zipf", fabrics.h100(32), 1, 1.10, "alltoall", fabrics.zipf_sizes),
    Case("dgx-h100-x32-zipf-hot", fabrics.h100(32), 1, 1.10, "alltoall", fabrics.hot_sizes),
    Case("mesh-4x4", _mesh(4, 4), 0.1, 1.05, "alltoall"),
    Case("dgx2-x2", lambda: taccl.topologies.dgx2(2), 0.5, 1.00, "alltoall"),
    Case("groups-strided-x64", fabrics.h100(64), 10, 1.10, groups=fabrics.strided_groups),
    Case("groups-neighbours-x64", fabrics.h100(64), 10, 1.10, groups=fabrics.neighbouring_groups),
    Case("groups-pairs-x64", fabrics.h100(64), 10, 1.10, groups=fabrics.paired_groups),
    Case("groups-random-x64", fabrics.h100(64), 10, 1.10, groups=fabrics.random_groups),
    Case("groups-random-spine-x64", fabrics.oversubscribed, 10, 1.10, groups=fabrics.random_groups),
    Case("replan-dgx-h100-x4", fabrics.h100(4), 1, 1.25, "allreduce", fails=fabrics.without_nic),
    Case(
        "replan-dgx-h100-x4-halves", fabrics.h100(4), 1, 1.25, "allreduce", chunks_per_rank=2,
        chunk_bytes=MB // 2, fails=fabrics.without_nic,
    ),
    Case("dgx-h100-x4", fabrics.h100(4), 0.2, 1.10, "scatter"),
    Case("dgx-h100-x4", fabrics.h100(4), 0.2, 1.10, "gather"),
    Case("dgx-h100-x4", fabrics.h100(4), 2, 1.10),
    Case("dgx-h100-x4-16-chunks", fabrics.h100(4), 2, 1.20, "broadcast", chunks_per_rank=16),
    Case("dgx-h100-x4-16-chunks", fabrics.h100(4), 2, 1.20, "reduce", chunks_per_rank=16),
    Case("dgx-h100-x4-groups", fabrics.h100(4), 2, 1.14, groups=fabrics.random_quarters),
    Case("dgx2-x2-16-chunks", lambda: taccl.topologies.dgx2(2), 2, 1.10, "broadcast", chunks_per_rank=16),
    Case("dgx2-x2-groups", lambda: taccl.topologies.dgx2(2), 2, 1.25, groups=fabrics.random_quarters),
    Case("ndv2-x2-16-chunks", lambda: taccl.topologies.ndv2(2), 1, 1.00, "broadcast", chunks_per_rank=16),
    Case("ndv2-x2-groups", lambda: taccl.topologies.ndv2(2), 1, 1.10, groups=fabrics.random_quarters),
    Case("mesh-4x4-16-chunks", _mesh(4, 4), 1, 1.10, "broadcast", chunks_per_rank=16),
    Case("mesh-4x4-groups", _mesh(4, 4), 1, 1.10, groups=fabrics.random_quarters),
    Case("mesh-200x200-implicit", "mesh:200x200", 600, 1.01),
    Case("torus-200x200-implicit", "torus:200x200", 0.1, 1.001),
    Case("torus-100x100x100-implicit", "torus:100x100x100", 2, 1.001),
)  # fmt: skip


_COLUMNS: tuple[Column, ...] = (
    ("case", "case", "<24"), ("collective", "collective", "<14"), ("ranks", "ranks", ">5"),
    ("sends", "sends", ">9"), ("build s", "build_s", ">7.2f"), ("CPU s", "cpu_s", ">7.3f"),
    ("<=", "cpu_s_at_most", ">4g"), ("verify s", "verify_s", ">8.2f"), ("bound s", "bound_s", ">7.2f"),
    ("peak MB", "peak_mb", ">7"), ("finish us", "finish_us", ">10.1f"), ("bound us", "bound_us", ">10.1f"),
    ("ratio", "ratio", ">6.3f"), ("<=", "ratio_at_most", ">4.2f"), ("baseline us", "baseline_us", ">12.1f"),
    ("beside", "beside", "<28"),
)  # fmt: skip


def main() -> int:
    """Run, print the table, and write the results; return 1 if a figure is missed."""
    parser = parser_of(__doc__)
    names = sorted({c.name for c in CASES})
    parser.add_argument("--case", action="append", choices=names, help="default: not large")
    parser.add_argument("--collective", choices=sorted({c.collective for c in CASES}))
    parser.add_argument("--all", action="store_true", help="the large cases too")
    parser.add_argument("--stored", action="store_true", help="run nothing: the table of stored rows")
    parser.add_argument("--seed", type=int, action="append", help="again for a row of each; default: 0")
    parser.add_argument("--no-target", action="store_true", help="do not stop at a case's ratio")
    parser.add_argument("--plot", type=Path, help="an SVG file for a plot of the growth, of the meshes")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        (case,) = (c for c in CASES if c.name in options.case and c.collective == options.collective)
        (seed,) = options.seed
        if isinstance(case.topology, str):
            row = run_implicit(case, case.topology)
        else:
            row = run_case(case, case.topology, seed=seed, has_target=not options.no_target)
        print(json.dumps(row))
        return 0
    keys = "case", "collective", "seed"
    runs = with_stored(options.output, (), *keys) if options.stored else _runs(options)
    rows = shown(_COLUMNS, runs, lambda row: "" if row["verified"] else "INVALID")
    growth = growth_exponents(rows)
    if growth:
        print("\nmeshes: " + ", ".join(f"{what} grows as ranks ** {n:.2f}" for what, n in growth.items()))
    if options.plot is not None:
        draw(rows, options.plot)
    if not options.all:
        present = {(case.name, case.collective) for case in CASES}
        rows = [
            row
            for row in with_stored(options.output, rows, *keys)
            if (row["case"], row["collective"]) in present
        ]
    return summed_up(options.output, {"rows": rows}, growth=growth_exponents(rows))


def _runs(options: argparse.Namespace) -> Iterator[Row]:
    """Rows of the requested cases, each from a separate process."""
    for case, seed in product(CASES, options.seed or [0]):
        wanted = case.name in options.case if options.case else options.all or not case.is_large
        if wanted and options.collective in (None, case.collective):
            what = ["--case", case.name, "--collective", case.collective, "--seed", str(seed)]
            what += ["--no-target"] if options.no_target else []
            command = [sys.executable, "-m", "benchmarks.scale", "--here", *what]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            row: Row = json.loads(done.stdout)
            yield row


def run_case(case: Case, make: Callable[[], Topology], *, seed: int, has_target: bool) -> Row:
    """Row of one case, run in this process; with a target, the search stops at the case's ratio."""
    warm_up(case)
    began = time.process_time()
    topology = make()
    problem = _problem(case, topology)
    problem.costs  # noqa: B018  worked out once, when first asked for
    old = None
    if case.fails is not None:
        old = schedule_large(problem, seed=seed)
        problem = _problem(case, case.fails(topology))
    built, memory = time.process_time(), _peak_mb()
    if case.bound_us is None:
        bound, limits, bound_s = prove(problem)
    else:
        bound, limits, bound_s = Fraction(case.bound_us), "what must enter a rank, counted by hand", 0.0
    began_search = time.process_time()
    if old is None:
        ratio = Fraction(str(case.ratio)) if has_target else 1
        target = int(bound * problem.costs.ticks_per_us * ratio)
        with TemporaryDirectory() if case.spills else nullcontext() as folder:
            found = schedule_large(problem, seed=seed, target_ticks=target, spill_dir=folder)
        done, peak = time.process_time(), _peak_mb()
        verified, finish, num_sends = verify(found), found.finish, len(found)
    else:
        schedule = taccl.replan(old, problem, seed=seed).schedule
        done, peak = time.process_time(), _peak_mb()
        verified, finish, num_sends = taccl.verify(schedule), schedule.finish, schedule.num_transfers
    checked = time.process_time()
    cpu_s, reached = done - began_search, float(finish / bound)
    rivals = Rivals("bound met") if finish <= bound else find_rivals(problem, finish)
    is_first = rivals.finish is None or finish <= rivals.finish
    return {
        "seed": seed, "ranks": topology.num_ranks, "links": len(topology.links), "sends": num_sends,
        "build_s": round(built - began, 3), "bound_s": round(bound_s, 3), "peak_mb": round(peak),
        "grown_mb": round(peak - memory, 1), "finish_us": float(finish), "bound_us": float(bound),
        "limits": limits, "baseline": rivals.first,
        "baseline_us": None if rivals.finish is None else float(rivals.finish), "beside": rivals.beside,
        **judged(case, cpu_s, checked - done, reached, ok=verified.ok),
        "met": verified.ok and cpu_s <= case.cpu_s and reached <= case.ratio + 5e-4 and is_first,
    }  # fmt: skip


def judged(case: Case, cpu_s: float, verify_s: float, ratio: float, *, ok: bool) -> Row:
    """Common columns of a row: results of the case, and the figures to meet."""
    return {
        "case": case.name, "collective": case.collective, "verified": ok,
        "cpu_s": round(cpu_s, 3), "cpu_s_at_most": case.cpu_s, "verify_s": round(verify_s, 3),
        "ratio": round(ratio, 5), "ratio_at_most": case.ratio,
        "met": ok and cpu_s <= case.cpu_s and ratio <= case.ratio,
    }  # fmt: skip


def run_implicit(case: Case, fabric: str) -> Row:
    """Row of one case with an implicit schedule, run in this process."""
    verify_implicit(taccl.synthesize_implicit("torus:4x4", case.collective, chunk_size="1MB").schedule)
    memory, began = _peak_mb(), time.process_time()
    found = taccl.synthesize_implicit(fabric, case.collective, chunk_size="1MB")
    cpu_s, peak = time.process_time() - began, _peak_mb()
    since = time.process_time()
    verified = verify_implicit(found.schedule).ok
    verify_s, ratio = time.process_time() - since, 1 + found.gap
    return {
        "ranks": found.schedule.num_ranks, "sends": found.schedule.num_transfers, "peak_mb": round(peak),
        "grown_mb": round(peak - memory, 1), "finish_us": found.finish_us, "bound_us": found.bound.bound_us,
        "limits": found.bound.limits,
        "beside": "bound met" if found.gap == 0 else "nothing: too many arrivals",
        **judged(case, cpu_s, verify_s, ratio, ok=verified),
    }  # fmt: skip


def _problem(case: Case, topology: Topology) -> Problem:
    """The case's collective on a topology, over all ranks or among several groups at once."""
    if case.groups is None:
        collective = taccl.collectives.make(
            case.collective, topology.num_ranks, chunks_per_rank=case.chunks_per_rank
        )
    else:
        collective = together(
            [
                taccl.collectives.make(case.collective, len(ranks)).among(ranks, num_ranks=topology.num_ranks)
                for ranks in case.groups(topology)
            ]
        )
    return make_problem(
        topology, collective, chunk_bytes=case.chunk_bytes if case.sizes is None else case.sizes(collective)
    )


def growth_exponents(rows: list[Row]) -> dict[str, float]:
    """Growth exponents of CPU seconds and memory in the number of ranks, by least squares of logarithms.

    They are from square meshes. Memory is the increase during the case.
    """
    meshes = _square_meshes(rows)
    found = {}
    for what, name, least in (("time", "cpu_s", 1e-3), ("memory", "grown_mb", 1.0)):
        points = [(row["ranks"], row[name]) for row in meshes if row[name] >= least]
        if len(points) > 1:
            ranks, values = np.log(np.array(points, float)).T
            found[what] = round(float(np.polyfit(ranks, values, 1)[0]), 2)
    return found


def draw(rows: list[Row], path: Path) -> None:
    """Plot CPU seconds and memory over ranks of square meshes, with lines of the fitted growth."""
    meshes = sorted(_square_meshes(rows), key=lambda row: row["ranks"])
    growth = growth_exponents(rows)
    # Colours distinct under any colour vision (Okabe and Ito), each with another marker.
    looks = (
        ("time", "cpu_s", "CPU seconds", "#0072b2", "o"),
        ("memory", "grown_mb", "MB beyond the problem's own", "#d55e00", "s"),
    )
    with picture(path, width=8, height=3.6, parts=2) as axes:
        for place, (what, name, label, colour, marker) in zip(axes, looks, strict=True):
            points = [(row["ranks"], row[name]) for row in meshes if row[name] > 0]
            ranks, values = np.array(points, float).T
            place.plot(ranks, values, marker, color=colour, label="allgather, meshes")
            if what in growth:
                power = growth[what]
                through = np.exp(np.mean(np.log(values) - power * np.log(ranks)))
                fitted = through * ranks**power
                place.plot(ranks, fitted, "--", color=colour, label=f"ranks^{power:.2f}")
            on_logarithms(place, ranks, label)


def _square_meshes(rows: list[Row]) -> list[Row]:
    meshes = [row for row in rows if row["case"] in {f"mesh-{n}x{n}" for n in (16, 32, 64, 100)}]
    return [row for row in meshes if row["collective"] == "allgather"]


def warm_up(case: Case) -> None:
    """Compile the kernels, or load them from their cache."""
    compile_improvement()
    for topology in (taccl.topologies.ring(4), taccl.topologies.dgx_h100(2, profile="nominal")):
        made = taccl.collectives.make(case.collective, topology.num_ranks)
        some = taccl.collectives.make(case.collective, 2).among([0, 2], num_ranks=topology.num_ranks)
        for collective in (made, some):
            for sizes in (MB, [MB * (1 + c % 2) for c in range(collective.num_chunks)]):
                problem = make_problem(topology, collective, chunk_bytes=sizes)
                found = schedule_large(problem)
                verify(found)
                if case.fails is not None:
                    taccl.replan(found, problem)


def prove(problem: Problem) -> tuple[Fraction, str, float]:
    """Bound in us, its bottleneck as text, and CPU seconds; computed in a separate, unmeasured process."""
    forked = multiprocessing.get_context("fork")
    receiver, sender = forked.Pipe(duplex=False)

    def work() -> None:
        began = time.process_time()
        bound = taccl.lower_bound(problem, budget_s=BOUND_S)
        sender.send((bound.bound, bound.limits, time.process_time() - began))

    process = forked.Process(target=work)
    process.start()
    sender.close()
    found: tuple[Fraction, str, float] = receiver.recv()
    process.join()
    return found


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


if __name__ == "__main__":
    sys.exit(main())
