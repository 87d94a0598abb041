"""How far greedy synthesis scales: seconds, memory and finish over bound, for fabrics no MILP reaches.

    python -m benchmarks.scale                                # every case but the large ones
    python -m benchmarks.scale --case mesh-32x32 --case dragonfly
    python -m benchmarks.scale --all                          # the large ones too
    python -m benchmarks.scale --output benchmarks/results/scale.json

Every case runs in a process of its own, so that its peak memory is its own. CPU seconds are those of one
core after compilation, from the topology to the columns of the schedule; building the topology and the
problem is counted apart. The bound counts the whole chunks that every rank and every node must receive, over
all its links, and the longest of the shortest ways.
"""

from __future__ import annotations

import argparse
import json
import platform
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
from taccl.problem import Problem, make_problem
from taccl.synthesis.fabric import Demand, Fabric, problem_arrays
from taccl.synthesis.scale import spread
from taccl.topology.topology import Hold, Resource, Topology, TopologyBuilder
from taccl.topology.transform import without

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

ALPHA_US = "0.5"
MB = 10**6


@dataclass(frozen=True, slots=True)
class Case:
    """An allgather of 1 MB chunks, one a rank, and the figures to meet.

    Parameters
    ----------
    cpu_s : float
        CPU seconds at most.
    ratio : float
        Finish over bound at most.
    is_large : bool
        Left out unless asked for.
    """

    name: str
    topology: Callable[[], Topology]
    cpu_s: float
    ratio: float
    is_large: bool = False


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


def oversubscribed(nodes: int = 64, nodes_per_leaf: int = 16) -> Topology:
    """DGX-H100 on rails whose leaves share a spine, two to one oversubscribed.

    A leaf joins one rail of `nodes_per_leaf` nodes. What leaves it for another goes over its uplinks, what
    enters over its downlinks, each half as fast as the ports of its nodes together.
    """
    topology = taccl.topologies.dgx_h100(nodes)
    resources, holds = list(topology.resources), list(topology.holds)
    num_leaves = -(-nodes // nodes_per_leaf) * 8
    resources += [Resource(f"{way} of leaf {leaf}") for way in ("uplinks", "downlinks") for leaf in range(num_leaves)]
    for index in topology.internode_links:
        link = topology.links[index]
        src, dst = (8 * (rank // 8 // nodes_per_leaf) + rank % 8 for rank in (link.src, link.dst))
        if src != dst:
            first, beta = len(topology.resources), 2 * link.beta_us_per_mb / nodes_per_leaf
            holds.append(Hold(index, first + src, Fraction(0), beta, "send"))
            holds.append(Hold(index, first + num_leaves + dst, Fraction(0), beta, "receive"))
    name = f"{topology.name}, 2:1 spine"
    return replace(topology, name=name, machine="", resources=tuple(resources), holds=tuple(holds))


def mesh_with_failure() -> Topology:
    """A mesh of 32 x 32 ranks that lost one link in its middle."""
    mesh = taccl.topologies.mesh(32, 32)
    return without(mesh, links=[(16 * 32 + 15, 16 * 32 + 16)])


CASES = (
    Case("mesh-32x32", lambda: taccl.topologies.mesh(32, 32), 0.2, 1.00),
    Case("mesh-31x33", lambda: taccl.topologies.mesh(31, 33), 0.3, 1.01),
    Case("mesh-32x32-failed-link", mesh_with_failure, 0.3, 1.01),
    Case("torus-32x32", lambda: taccl.topologies.torus(32, 32), 0.2, 1.01),
    Case("mesh-64x64", lambda: taccl.topologies.mesh(64, 64), 4, 1.00),
    Case("mesh-100x100", lambda: taccl.topologies.mesh(100, 100), 60, 1.00, is_large=True),
    Case(
        "mesh-32x32-tiered",
        lambda: taccl.topologies.mesh(32, 32, bandwidth_gb_per_s=(75, 50)),
        1,
        1.01,
    ),
    Case("rail-rings-16x8", lambda: rail_rings(16), 1, 1.05),
    Case("rail-rings-128x8", lambda: rail_rings(128), 1, 1.05),
    Case("dragonfly-9x8", dragonfly, 0.1, 1.10),
    Case("dgx-h100-x64", lambda: taccl.topologies.dgx_h100(64), 10, 1.03),
    Case("spine-x64", oversubscribed, 20, 1.05),
    Case("random-8-regular-512", lambda: random_regular(512, 8), 1, 1.05),
)


def main() -> int:
    """Run, print the table, write the results; 1 if a figure is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--case", action="append", choices=[c.name for c in CASES], help="default: not large")
    parser.add_argument("--all", action="store_true", help="the large cases too")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="a JSON file for the results")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        (case,) = (c for c in CASES if c.name in options.case)
        print(json.dumps(run_case(case, seed=options.seed)))
        return 0
    rows = []
    print(_header(), flush=True)
    for case in CASES:
        if case.name in options.case if options.case else options.all or not case.is_large:
            command = [sys.executable, "-m", "benchmarks.scale", "--here", "--case", case.name]
            done = subprocess.run(
                [*command, "--seed", str(options.seed)], stdout=subprocess.PIPE, text=True, check=True
            )
            rows.append(json.loads(done.stdout))
            print(_line(rows[-1]), flush=True)
    misses = sum(not row["met"] for row in rows)
    print(f"\n{len(rows)} cases, {misses} missed; {platform.platform()}, Python {platform.python_version()}")
    if options.output is not None:
        command = ["python -m benchmarks.scale", *sys.argv[1:]]
        document = {"command": " ".join(command), "machine": platform.platform(), "rows": rows}
        options.output.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if misses else 0


def run_case(case: Case, *, seed: int = 0) -> dict[str, Any]:
    """One case in this process."""
    warm_up()
    began = time.process_time()
    topology = case.topology()
    problem = make_problem(topology, taccl.collectives.allgather(topology.num_ranks), chunk_bytes=MB)
    problem.costs  # noqa: B018  worked out once, when first asked for
    built = time.process_time()
    fabric, demand = problem_arrays(problem)
    arrays = time.process_time()
    bound = bound_ticks(problem, fabric, demand)
    bounded = time.process_time()
    found = spread(fabric, demand, seed=seed, target_ticks=int(case.ratio * bound))
    done = time.process_time()
    cpu_s = arrays - built + done - bounded
    ratio = found.finish_ticks / bound
    return {
        "case": case.name,
        "ranks": topology.num_ranks,
        "links": len(topology.links),
        "sends": len(found.chunk),
        "build_s": round(built - began, 3),
        "cpu_s": round(cpu_s, 3),
        "cpu_s_at_most": case.cpu_s,
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000),
        "finish_us": found.finish_ticks / problem.costs.ticks_per_us,
        "bound_us": bound / problem.costs.ticks_per_us,
        "ratio": round(ratio, 5),
        "ratio_at_most": case.ratio,
        "rule": f"{found.rule.order} {found.rule.theta:g}",
        "runs": found.num_runs,
        "met": bool(cpu_s <= case.cpu_s and ratio <= case.ratio + 5e-4),
    }


def warm_up() -> None:
    """Have the kernel compiled, or read from its cache."""
    topology = taccl.topologies.ring(3)
    problem = make_problem(topology, taccl.collectives.allgather(3), chunk_bytes=MB)
    spread(*problem_arrays(problem))


def bound_ticks(problem: Problem, fabric: Fabric, demand: Demand) -> int:
    """A lower bound on the finish of an allgather: counting, into ranks and nodes, and latency."""
    units = int(demand.units[0])
    num_ranks = fabric.num_ranks
    node = np.asarray(problem.topology.node_of_rank)
    best = latency_ticks(fabric, units)
    for place in (np.arange(num_ranks), node):
        inside = place[fabric.src] == place[fabric.dst]
        size = np.bincount(place[demand.origin], minlength=int(place.max()) + 1)
        needed = demand.num_chunks - size
        best = max(best, counting_ticks(fabric, units, np.where(inside, -1, place[fabric.dst]), needed))
    return best


def counting_ticks(fabric: Fabric, units: int, place: NDArray[Any], needed: NDArray[np.int64]) -> int:
    """The least time in which every place can receive the chunks it needs over links and resources.

    Parameters
    ----------
    place : (num_slots,)
        The place that a slot enters, -1 for none.
    needed : (num_places,)
    """
    entering = np.flatnonzero(place >= 0)
    if not len(entering) or not needed.any():
        return 0
    took = fabric.alpha + units * fabric.beta
    own = fabric.own_alpha + units * fabric.own_beta
    hold_slot = np.repeat(np.arange(fabric.num_slots), np.diff(fabric.hold_of))
    rows = np.flatnonzero(place[hold_slot] >= 0)
    length = fabric.hold_alpha[rows] + units * fabric.hold_beta[rows]
    # Every slot is counted once: by itself, or with the others that enter by one of its resources.
    resource_of = np.full(fabric.num_slots, -1)
    receiving = fabric.hold_receives[rows]
    resource_of[hold_slot[rows[receiving]]] = fabric.hold_resource[rows[receiving]]
    pairs = place[entering].astype(np.int64) * (fabric.num_resources + 1) + resource_of[entering] + 1
    names, group = np.unique(pairs, return_inverse=True)
    alone = names % (fabric.num_resources + 1) == 0
    hold = np.full(len(names), 2**62)
    lead = np.full(len(names), 2**62)
    group_of_slot = np.full(fabric.num_slots, -1)
    group_of_slot[entering] = group
    counted = receiving & (fabric.hold_resource[rows] == resource_of[hold_slot[rows]])
    groups = group_of_slot[hold_slot[rows[counted]]]
    np.minimum.at(hold, groups, length[counted])
    np.minimum.at(lead, groups, took[hold_slot[rows[counted]]] - length[counted])

    def short(ticks: NDArray[np.int64]) -> NDArray[np.bool_]:
        each = ticks[place[entering]]
        count = np.where(each >= took[entering], (each - took[entering]) // own[entering] + 1, 0)
        total = np.bincount(group, weights=count, minlength=len(names)).astype(np.int64)
        of_group = ticks[names // (fabric.num_resources + 1)]
        shared = np.where(alone, total, np.maximum(of_group - lead, 0) // hold)
        received = np.bincount(
            names // (fabric.num_resources + 1), weights=np.minimum(total, shared), minlength=len(needed)
        )
        return received < needed

    low = np.zeros(len(needed), np.int64)
    high = np.full(len(needed), int(took.max()) * int(needed.max() + 1))
    while (high - low > 1).any():
        middle = (low + high) // 2
        is_short = short(middle)
        low, high = np.where(is_short, middle, low), np.where(is_short, high, middle)
    return int(high[needed > 0].max())


def latency_ticks(fabric: Fabric, units: int, most_sources: int = 1024) -> int:
    """The longest of the shortest ways from (at most so many) ranks to all others."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    took = fabric.alpha + units * fabric.beta
    order = np.lexsort((-took, fabric.dst, fabric.src))
    graph = csr_array(
        (took[order].astype(float), (fabric.src[order], fabric.dst[order])),
        shape=(fabric.num_ranks, fabric.num_ranks),
    )
    sources = np.linspace(0, fabric.num_ranks - 1, min(most_sources, fabric.num_ranks)).astype(int)
    if fabric.num_ranks > most_sources:
        sources = sources[:16]
    return int(dijkstra(graph, indices=sources).max())


def _header() -> str:
    return (
        f"{'case':<24} {'ranks':>6} {'sends':>10} {'build s':>8} {'CPU s':>8} {'<=':>5} {'peak MB':>8} "
        f"{'finish us':>11} {'bound us':>11} {'ratio':>7} {'<=':>5} {'runs':>4}  rule"
    )


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['case']:<24} {row['ranks']:>6} {row['sends']:>10} {row['build_s']:>8.2f} {row['cpu_s']:>8.3f} "
        f"{row['cpu_s_at_most']:>5g} {row['peak_mb']:>8} {row['finish_us']:>11.1f} {row['bound_us']:>11.1f} "
        f"{row['ratio']:>7.4f} {row['ratio_at_most']:>5.2f} {row['runs']:>4}  {row['rule']}"
        f"{'' if row['met'] else '  MISSED'}"
    )


if __name__ == "__main__":
    sys.exit(main())
