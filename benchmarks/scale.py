"""How far greedy synthesis scales: seconds, memory and finish over bound, for fabrics no MILP reaches.

    python -m benchmarks.scale                                # every case but the large ones
    python -m benchmarks.scale --case mesh-32x32 --case dragonfly-9x8
    python -m benchmarks.scale --all                          # the large ones too
    python -m benchmarks.scale --output benchmarks/results/scale.json

Every case runs in a process of its own, so that its peak memory is its own. CPU seconds are those of one
core after compilation, from the problem to the columns of the schedule; building the topology and the
problem, proving the bound and verifying the schedule are counted apart. In the end it says how time and
memory grow with the number of ranks, from the meshes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import resource
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import taccl
from benchmarks.machine import machine
from taccl.analysis.verification.verify_compact import verify_compact
from taccl.problem import Problem, make_problem
from taccl.synthesis.large import schedule_large
from taccl.topology.topology import Hold, Resource, Topology, TopologyBuilder
from taccl.topology.transform import without

if TYPE_CHECKING:
    from collections.abc import Callable

    from taccl.collective import Collective

ALPHA_US = "0.5"
MB = 10**6
#: Seconds for a bound.
BOUND_S = 20.0


@dataclass(frozen=True, slots=True)
class Case:
    """A collective of 1 MB chunks, one a rank, and the figures to meet.

    Parameters
    ----------
    cpu_s : float
        CPU seconds at most.
    ratio : float
        Finish over bound at most.
    sizes : function of a collective, optional
        Bytes of every chunk, if not 1 MB.
    is_large : bool
        Left out unless asked for.
    bound_us : float, optional
        A bound counted by hand, where `taccl.lower_bound` takes too much memory.
    """

    name: str
    topology: Callable[[], Topology]
    cpu_s: float
    ratio: float
    collective: str = "allgather"
    sizes: Callable[[Collective], list[int]] | None = None
    is_large: bool = False
    bound_us: float | None = None


def rail_rings(nodes: int) -> Topology:
    """`nodes` full meshes of 8 ranks at 50 GB/s; ranks of one local rank form a ring at 12.5 GB/s."""
    builder = TopologyBuilder(f"rail-rings x{nodes}", [rank // 8 for rank in range(8 * nodes)])
    for node in range(nodes):
        for a in range(8):
            for b in range(8):
                if a != b:
                    builder.add_link(8 * node + a, 8 * node + b, alpha_us=ALPHA_US, beta_us_per_mb=20)
    for node in range(nodes):
        for rail in range(8):
            here, there = 8 * node + rail, 8 * ((node + 1) % nodes) + rail
            for src, dst in ((here, there), (there, here)):
                builder.add_link(src, dst, alpha_us=ALPHA_US, beta_us_per_mb=80)
    return builder.build()


def dragonfly(groups: int = 9, ranks: int = 8) -> Topology:
    """Groups of ranks joined fully at 100 GB/s, and one link at 25 GB/s from every group to every other."""
    builder = TopologyBuilder(f"dragonfly {groups}x{ranks}", [g for g in range(groups) for _ in range(ranks)])
    for group in range(groups):
        for a in range(ranks):
            for b in range(ranks):
                if a != b:
                    builder.add_link(
                        group * ranks + a, group * ranks + b, alpha_us=ALPHA_US, beta_us_per_mb=10
                    )
    for group in range(groups):
        for step in range(1, groups):
            other = (group + step) % groups
            src, dst = group * ranks + step - 1, other * ranks + groups - step - 1
            builder.add_link(src, dst, alpha_us=ALPHA_US, beta_us_per_mb=40)
    return builder.build()


def random_regular(num_ranks: int, degree: int, seed: int = 0) -> Topology:
    """A random graph in which every rank has `degree` neighbours, joined both ways at 50 GB/s."""
    rng = random.Random(seed)
    ends = [rank for rank in range(num_ranks) for _ in range(degree)]
    edges: set[tuple[int, int]] = set()
    while len(edges) * 2 < num_ranks * degree:
        # Pair ends at random; what makes a loop or a double edge goes back, with some of the others.
        used = {rank: 0 for rank in range(num_ranks)}
        for edge in list(edges):
            if rng.random() < 0.1:
                edges.discard(edge)
        for a, b in edges:
            used[a] += 1
            used[b] += 1
        ends = [rank for rank in range(num_ranks) for _ in range(degree - used[rank])]
        rng.shuffle(ends)
        for a, b in zip(ends[::2], ends[1::2], strict=True):
            if a != b and (min(a, b), max(a, b)) not in edges:
                edges.add((min(a, b), max(a, b)))
    builder = TopologyBuilder(f"random {degree}-regular {num_ranks}", [0] * num_ranks)
    for a, b in sorted(edges):
        for src, dst in ((a, b), (b, a)):
            builder.add_link(src, dst, alpha_us=ALPHA_US, beta_us_per_mb=20)
    return builder.build()


def oversubscribed(nodes: int = 64, nodes_per_leaf: int = 32) -> Topology:
    """DGX-H100 on rails whose leaves share a spine, two to one oversubscribed.

    A leaf joins one rail of `nodes_per_leaf` nodes. What leaves it for another leaf goes over an uplink, and
    enters over a downlink, each as fast as a port, and each shared by two nodes.
    """
    topology = taccl.topologies.dgx_h100(nodes)
    resources, holds = list(topology.resources), list(topology.holds)
    for side in ("uplink", "downlink"):
        resources += [Resource(f"{side} {i} of rail {r}") for i in range(-(-nodes // 2)) for r in range(8)]
    first, half = len(topology.resources), -(-nodes // 2) * 8
    for index in topology.internode_links:
        link = topology.links[index]
        src, dst = link.src // 8, link.dst // 8
        if src // nodes_per_leaf != dst // nodes_per_leaf:
            uplink, downlink = (first + node // 2 * 8 + link.src % 8 for node in (src, dst))
            holds.append(Hold(index, uplink, Fraction(0), link.beta_us_per_mb, "send"))
            holds.append(Hold(index, downlink + half, Fraction(0), link.beta_us_per_mb, "receive"))
    name = f"{topology.name}, 2:1 spine"
    return replace(topology, name=name, machine="", resources=tuple(resources), holds=tuple(holds))


def mesh_with_failure() -> Topology:
    """A mesh of 32 x 32 ranks that lost one link in its middle."""
    mesh = taccl.topologies.mesh(32, 32)
    return without(mesh, links=[(16 * 32 + 15, 16 * 32 + 16)])


def zipf_sizes(collective: Collective, *, by_destination: bool = False, seed: int = 0) -> list[int]:
    """Bytes of an alltoall's chunks: a rank's to all others are Zipf with exponent 0.8, 1 MB on average.

    Which destination a rank sends the most to is random, or (`by_destination`) the same for all.
    """
    rng = np.random.default_rng(seed)
    num_ranks = collective.num_ranks
    weights = np.arange(1, num_ranks + 1) ** -0.8
    kilobytes = np.maximum(1, np.round(1000 * weights / weights.mean())).astype(int)
    orders = [rng.permutation(num_ranks) for _ in range(num_ranks)]
    order = [orders[0] if by_destination else orders[c.origins[0]] for c in collective.chunks]
    return [
        1000 * int(kilobytes[places[c.destinations[0]]])
        for places, c in zip(order, collective.chunks, strict=True)
    ]


def hot_sizes(collective: Collective) -> list[int]:
    """`zipf_sizes` in which the same destinations are popular with all."""
    return zipf_sizes(collective, by_destination=True)


def _h100(nodes: int) -> Callable[[], Topology]:
    return lambda: taccl.topologies.dgx_h100(nodes)


def _mesh(*dims: int, **costs: Any) -> Callable[[], Topology]:
    return lambda: taccl.topologies.mesh(*dims, **costs)


CASES = (
    Case("mesh-16x16", _mesh(16, 16), 0.2, 1.00),
    Case("mesh-32x32", _mesh(32, 32), 0.2, 1.00),
    Case("mesh-31x33", _mesh(31, 33), 0.3, 1.01),
    Case("mesh-32x32-failed-link", mesh_with_failure, 0.3, 1.01),
    Case("torus-32x32", lambda: taccl.topologies.torus(32, 32), 0.2, 1.01),
    Case("mesh-64x64", _mesh(64, 64), 4, 1.00),
    # A corner receives 9999 chunks over 2 links, in 5000 rounds of 20.5 us at least.
    Case("mesh-100x100", _mesh(100, 100), 60, 1.00, is_large=True, bound_us=102500),
    Case("mesh-32x32-tiered", _mesh(32, 32, bandwidth_gb_per_s=(75, 50)), 1, 1.01),
    Case("rail-rings-16x8", lambda: rail_rings(16), 1, 1.05),
    Case("rail-rings-128x8", lambda: rail_rings(128), 1, 1.05),
    Case("dragonfly-9x8", dragonfly, 0.1, 1.10),
    Case("random-8-regular-512", lambda: random_regular(512, 8), 1, 1.05),
    Case("random-8-regular-512", lambda: random_regular(512, 8), 60, 1.15, "alltoall"),
    Case("dgx-h100-x64", _h100(64), 10, 1.03),
    Case("dgx-h100-x64", _h100(64), 10, 1.03, "reduce_scatter"),
    Case("dgx-h100-x64", _h100(64), 20, 1.05, "allreduce"),
    Case("dgx-h100-x64", _h100(64), 60, 1.05, "alltoall"),
    Case("spine-x64", oversubscribed, 20, 1.05),
    Case("spine-x64", oversubscribed, 20, 1.05, "reduce_scatter"),
    Case("spine-x64", oversubscribed, 40, 1.08, "allreduce"),
    Case("spine-x64", oversubscribed, 90, 1.08, "alltoall"),
    Case("spine-x64-leaves-of-16", lambda: oversubscribed(64, 16), 20, 1.05),
    Case("spine-x64-leaves-of-16", lambda: oversubscribed(64, 16), 90, 1.08, "alltoall"),
    Case("dgx-h100-x32-zipf", _h100(32), 1, 1.10, "alltoall", zipf_sizes),
    Case("dgx-h100-x32-zipf-hot", _h100(32), 1, 1.10, "alltoall", hot_sizes),
    Case("mesh-4x4", _mesh(4, 4), 0.1, 1.05, "alltoall"),
    Case("dgx2-x2", lambda: taccl.topologies.dgx2(2), 0.5, 1.05, "alltoall"),
    Case("dgx-h100-x4", _h100(4), 0.2, 1.25, "scatter"),
)


def main() -> int:
    """Run, print the table, write the results; 1 if a figure is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    names = sorted({c.name for c in CASES})
    parser.add_argument("--case", action="append", choices=names, help="default: not large")
    parser.add_argument("--collective", choices=sorted({c.collective for c in CASES}))
    parser.add_argument("--all", action="store_true", help="the large cases too")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="a JSON file for the results")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        (case,) = (c for c in CASES if c.name in options.case and c.collective == options.collective)
        print(json.dumps(run_case(case, seed=options.seed)))
        return 0
    rows = []
    print(_header(), flush=True)
    for case in CASES:
        wanted = case.name in options.case if options.case else options.all or not case.is_large
        if wanted and options.collective in (None, case.collective):
            what = ["--case", case.name, "--collective", case.collective, "--seed", str(options.seed)]
            command = [sys.executable, "-m", "benchmarks.scale", "--here", *what]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            rows.append(json.loads(done.stdout))
            print(_line(rows[-1]), flush=True)
    growth = growth_exponents(rows)
    if growth:
        print("\nmeshes: " + ", ".join(f"{what} grows as ranks ** {n:.2f}" for what, n in growth.items()))
    misses = sum(not row["met"] for row in rows)
    print(f"\n{len(rows)} cases, {misses} missed; {machine()}")
    if options.output is not None:
        command = ["python -m benchmarks.scale", *sys.argv[1:]]
        document = {"command": " ".join(command), "machine": machine(), "rows": rows}
        options.output.write_text(json.dumps(document | {"growth": growth}, indent=1) + "\n")
    return 1 if misses else 0


def run_case(case: Case, *, seed: int = 0) -> dict[str, Any]:
    """One case in this process."""
    warm_up(case.collective)
    began = time.process_time()
    topology = case.topology()
    collective = taccl.collectives.make(case.collective, topology.num_ranks)
    sizes = MB if case.sizes is None else case.sizes(collective)
    problem = make_problem(topology, collective, chunk_bytes=sizes)
    problem.costs  # noqa: B018  worked out once, when first asked for
    built, memory = time.process_time(), _peak_mb()
    if case.bound_us is None:
        bound, limits, bound_s = prove(problem)
    else:
        bound, limits, bound_s = Fraction(case.bound_us), "what must enter a rank, counted by hand", 0.0
    began_search = time.process_time()
    target = int(bound * problem.costs.ticks_per_us * Fraction(str(case.ratio)))
    found = schedule_large(problem, seed=seed, target_ticks=target)
    done, peak = time.process_time(), _peak_mb()
    verified = verify_compact(found)
    checked = time.process_time()
    cpu_s, ratio = done - began_search, float(found.finish / bound)
    return {
        "case": case.name,
        "collective": case.collective,
        "ranks": topology.num_ranks,
        "links": len(topology.links),
        "sends": len(found),
        "build_s": round(built - began, 3),
        "cpu_s": round(cpu_s, 3),
        "cpu_s_at_most": case.cpu_s,
        "verify_s": round(checked - done, 3),
        "bound_s": round(bound_s, 3),
        "peak_mb": round(peak),
        "grown_mb": round(peak - memory, 1),
        "finish_us": found.finish_us,
        "bound_us": float(bound),
        "limits": limits,
        "ratio": round(ratio, 5),
        "ratio_at_most": case.ratio,
        "verified": verified.ok,
        "met": bool(verified.ok and cpu_s <= case.cpu_s and ratio <= case.ratio + 5e-4),
    }


def growth_exponents(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The slopes of CPU seconds and of memory over the number of ranks, both as logarithms, by least squares.

    Over square meshes; memory is what a case took beyond what the process had before.
    """
    meshes = [row for row in rows if row["case"] in {f"mesh-{n}x{n}" for n in (16, 32, 64, 100)}]
    meshes = [row for row in meshes if row["collective"] == "allgather"]
    found = {}
    for what, name, least in (("time", "cpu_s", 1e-3), ("memory", "grown_mb", 1.0)):
        points = [(row["ranks"], row[name]) for row in meshes if row[name] >= least]
        if len(points) > 1:
            ranks, values = np.log(np.array(points, float)).T
            found[what] = round(float(np.polyfit(ranks, values, 1)[0]), 2)
    return found


def warm_up(collective: str) -> None:
    """Have the kernels compiled, or read from their cache."""
    for topology in (taccl.topologies.ring(3), taccl.topologies.dgx_h100(2)):
        made = taccl.collectives.make(collective, topology.num_ranks)
        for sizes in (MB, [MB * (1 + c % 2) for c in range(made.num_chunks)]):
            found = schedule_large(make_problem(topology, made, chunk_bytes=sizes))
            verify_compact(found)


def prove(problem: Problem) -> tuple[Fraction, str, float]:
    """The bound in us, what limits, and CPU seconds; by a process of its own, whose memory is not counted."""
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


def _header() -> str:
    return (
        f"{'case':<24} {'collective':<14} {'ranks':>5} {'sends':>9} {'build s':>7} {'CPU s':>7} {'<=':>4} "
        f"{'verify s':>8} {'bound s':>7} {'peak MB':>7} {'finish us':>10} {'bound us':>10} {'ratio':>6} "
        f"{'<=':>4}"
    )


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['case']:<24} {row['collective']:<14} {row['ranks']:>5} {row['sends']:>9} "
        f"{row['build_s']:>7.2f} {row['cpu_s']:>7.3f} {row['cpu_s_at_most']:>4g} {row['verify_s']:>8.2f} "
        f"{row['bound_s']:>7.2f} {row['peak_mb']:>7} {row['finish_us']:>10.1f} {row['bound_us']:>10.1f} "
        f"{row['ratio']:>6.3f} {row['ratio_at_most']:>4.2f}{'' if row['met'] else '  MISSED'}"
        f"{'' if row['verified'] else '  INVALID'}"
    )


if __name__ == "__main__":
    sys.exit(main())
