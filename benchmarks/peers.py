"""Our schedules compared with figures of other synthesizers and algorithms, one row per comparison.

- ForestColl, TE-CCL, TACOS, Swing, bucket: figures in ``benchmarks/data/peers.csv``, each with its source.
- SCCL: (chunks, steps, rounds) on DGX-1 cost steps x alpha + rounds / chunks x size x beta. Beta is that of a
  single NVLink (Cai et al., PPoPP 2021).
- BFB, MCF: optima of the peers' linear programs, solved here (`benchmarks.peer_graphs`).
- FAST: the larger of the bytes into and out of a node, divided by the rate of its NICs (Lei et al., arXiv
  2505.09764). Ours is `taccl.AllToAllV`, warm, in at most 1 s of CPU for 32 ranks and 5 s for 128.

A row misses its figure if our finish is more than the allowed multiple of the peer's figure. If our lower
bound is larger than that figure, it counts instead. The bound is for the number of chunks per rank if the row
states one, else over all chunkings. Topology files are in the folder of the environment variable
``TACCL_TEST_DATA`` (default ``../shared/data``).

Examples
--------
    python -m benchmarks.peers
    python -m benchmarks.peers --only SCCL --only "TACOS hetero" --limit 10
    python -m benchmarks.peers --output benchmarks/results/peers.json  # keeps stored rows that are not run
"""

from __future__ import annotations

import csv
import sys
import time
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import networkx
import numpy as np

import taccl
from benchmarks.cases import MB, data_folder
from benchmarks.peer_graphs import GRAPHS, bfb, multicommodity
from benchmarks.report import parser_of, shown, summed_up, wanted, with_stored
from taccl._internal.units import format_size
from taccl.solvers.registry import package_versions
from taccl.synthesis.proposers.compiling import compile_kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from benchmarks.report import Column, Row
    from taccl.topology.topology import Topology

FIGURES = Path(__file__).parent / "data" / "peers.csv"
#: Relative rounding of stored figures.
_ROUNDING = 1e-5
#: `_GRAPH_GB_PER_S`: bandwidth in GB/s of the links of `GRAPHS`.
#: `_GRAPH_ALPHA_US`: alpha in us of the links of `GRAPHS`.
_GRAPH_GB_PER_S, _GRAPH_ALPHA_US = 100, 1
_BFB_ALLGATHERS = (
    "circulant 13 {2,3}", "circulant 25 {3,4}", "circulant 41 {4,5}", "Petersen", "Heawood", "torus 3x5",
    "Q4", "GenKautz(4,16)", "GenKautz(2,12)", "GenKautz(4,32)",
)  # fmt: skip
_BFB_ALLREDUCES = ("circulant 13 {2,3}", "Petersen", "torus 3x5")
_MCF_ALLTOALLS = (
    "K4,4", "Q3", "twisted Q3", "Q4", "Petersen", "Heawood", "torus 3x3", "torus 3x3x3", "GenKautz(4,16)",
)  # fmt: skip
#: {collective: (chunks, steps, rounds) of SCCL's algorithms on DGX-1}.
_SCCL = {
    "allgather": ((1, 2, 2), (2, 2, 3), (6, 3, 7)),
    "broadcast": ((2, 2, 2), (6, 3, 3), (6, 3, 5), (12, 4, 4), (18, 5, 5)),
    "gather": ((1, 2, 2), (6, 3, 7)),
    "alltoall": ((8, 2, 3), (24, 2, 8)),
    "allreduce": ((16, 4, 6), (48, 6, 14)),
}
#: `_SCCL_US`: microseconds that a rank's buffer takes over a single NVLink.
#: `_SCCL_BYTES`: bytes of a rank's buffer.
#: `_SCCL_GATHERS`: collectives whose size is that of the buffers of all eight ranks together.
_SCCL_US, _SCCL_BYTES, _SCCL_GATHERS = 1000, 25 * MB, ("allgather", "gather")
#: `_FAST_NODES`: {nodes of DGX-H100: max CPU seconds of a schedule and its verification}.
#: `_FAST_BYTES`: mean bytes that a rank sends.
_FAST_NODES, _FAST_BYTES = {2: 1.0, 4: 1.0, 16: 5.0}, 64 * MB
_FAST_GAP, _FAST_BOUND_S = 1.05, 10.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """A collective on a machine, with the peer's time for it.

    Parameters
    ----------
    most : float
        Allowed multiple of the peer's time.
    sizes : (num_ranks, num_ranks) ndarray of int, optional
        Bytes of each pair; the collective is alltoallv.
    cpu_s_at_most : float, optional
        Allowed CPU seconds.
    """

    peer: str
    case: str
    machine: Callable[[], Topology]
    collective: str
    size_bytes: int
    peer_us: float
    most: float
    chunks_per_rank: int | None = None
    sizes: NDArray[np.int64] | None = None
    cpu_s_at_most: float | None = None

    @property
    def name(self) -> str:
        """Peer, case and collective; unique."""
        return f"{self.peer} {self.case} {self.collective} {self.size_bytes}"


def comparisons() -> Iterator[Comparison]:
    """All comparisons, peer by peer."""
    with FIGURES.open() as file:
        for row in csv.DictReader(file):
            chunks = int(row["chunks_per_rank"]) if row["chunks_per_rank"] else None
            machine = partial(_machine, row["machine"], row["gb_per_s"], row["alpha_us"])
            yield Comparison(
                row["peer"], row["case"], machine, row["collective"], int(row["bytes"]),
                float(row["peer_us"]), float(row["most"]), chunks,
            )  # fmt: skip
    for collective, algorithms in _SCCL.items():
        for (chunks, steps, rounds), alpha in product(algorithms, (0.01, 1)):
            alpha_us = round(alpha * _SCCL_US)
            yield Comparison(
                "SCCL", f"({chunks},{steps},{rounds}) alpha {alpha}", partial(_dgx1, alpha_us), collective,
                _SCCL_BYTES * (8 if collective in _SCCL_GATHERS else 1),
                steps * alpha_us + rounds / chunks * _SCCL_US, 1,
            )  # fmt: skip
    times = [("allgather", name, 1) for name in _BFB_ALLGATHERS]
    for collective, name, passes in [*times, *(("allreduce", name, 2) for name in _BFB_ALLREDUCES)]:
        num_steps, num_rounds = bfb(GRAPHS[name])
        us = passes * (num_steps * _GRAPH_ALPHA_US + num_rounds * _us_of_part(name))
        yield Comparison("BFB", name, partial(_graph, name), collective, 1000 * MB, us, 1)
    for name in _MCF_ALLTOALLS:
        us = multicommodity(GRAPHS[name]) * _us_of_part(name)
        yield Comparison("MCF", name, partial(_graph, name), "alltoall", 1000 * MB, us, 1.007)
    for nodes, most_s in _FAST_NODES.items():
        topology, num_ranks = partial(taccl.topologies.dgx_h100, nodes), 8 * nodes
        one = np.full((num_ranks, num_ranks), MB)
        one[0, -1] = _FAST_BYTES
        matrices = {
            f"zipf:{s}": taccl.skewed_sizes(num_ranks, _FAST_BYTES, f"zipf:{s}") for s in (0.4, 0.8, 1.2)
        }
        for name, sizes in {**matrices, "one hot pair": one}.items():
            yield Comparison(
                "FAST", f"dgx-h100 x{nodes} {name}", topology, "alltoallv",
                int(round(sizes.sum() / num_ranks, -3)), _between_nodes_us(sizes, topology()), _FAST_GAP,
                sizes=sizes, cpu_s_at_most=most_s,
            )  # fmt: skip


def _machine(name: str, gb_per_s: str, alpha_us: str) -> Topology:
    """Topology of a file in the folder of test data, or of a fabric, with costs per dimension if given."""
    if name.endswith(".toml"):
        return taccl.topologies.load(data_folder().parent / name)
    if not gb_per_s:
        return taccl.topologies.parse(name)
    kind, dims = name.split(":")
    make: Callable[..., Topology] = getattr(taccl.topologies, kind)
    rates = gb_per_s.split("x")
    ranks = [int(size) for size in dims.split("x")]
    return make(*ranks, bandwidth_gb_per_s=rates * (len(ranks) // len(rates)), alpha_us=alpha_us)


def _dgx1(alpha_us: float) -> Topology:
    """DGX-1 with a given latency of all links."""
    file = taccl.topologies.load(data_folder().parent / "peers" / "dgx1.toml")
    graph = networkx.DiGraph()
    graph.add_nodes_from(range(file.num_ranks))
    for link in file.links:
        graph.add_edge(link.src, link.dst, alpha_us=alpha_us, beta_us_per_mb=link.beta_us_per_mb)
    return taccl.topologies.from_networkx(graph, name="dgx1", alpha_meaning="pipelined")


def _graph(name: str) -> Topology:
    """Topology of a graph in `GRAPHS`."""
    graph = GRAPHS[name].copy()
    networkx.set_edge_attributes(graph, _GRAPH_GB_PER_S, "bandwidth_gb_per_s")
    networkx.set_edge_attributes(graph, _GRAPH_ALPHA_US, "alpha_us")
    return taccl.topologies.from_networkx(graph, name=name, alpha_meaning="pipelined")


def _us_of_part(name: str) -> float:
    """Time in us to send a rank's part of 1 GB over one link of a graph in `GRAPHS`."""
    return 1000 * MB / len(GRAPHS[name]) / (_GRAPH_GB_PER_S * 1000)


def _between_nodes_us(sizes: NDArray[np.int64], topology: Topology) -> float:
    """Time in us to send the busiest node's data over all its NICs, one per rank."""
    nodes, ranks = topology.num_nodes, topology.num_ranks // topology.num_nodes
    flows = sizes.reshape(nodes, ranks, nodes, ranks).sum(axis=(1, 3))
    flows[np.diag_indices(nodes)] = 0
    beta = max(link.beta_us_per_mb for i, link in enumerate(topology.links) if topology.is_internode(i))
    busiest = max(flows.sum(axis=0).max(), flows.sum(axis=1).max())
    return float(busiest / ranks / MB * beta)


def measured(comparison: Comparison, *, limit_s: float, seed: int) -> Row:
    """Row of a comparison: our finish and bound in us, our finish over the peer's, and failed checks."""
    topology = comparison.machine()
    if comparison.sizes is not None:
        scheduler = taccl.AllToAllV(topology, seed=seed)
        scheduler.schedule(np.ones_like(comparison.sizes))  # loads the kernels
        since = time.process_time()
        schedule = scheduler.schedule(comparison.sizes)
        cpu_s = time.process_time() - since
        bound_us = taccl.lower_bound(schedule.problem, divisible=True, budget_s=_FAST_BOUND_S).bound_us
    else:
        problem = taccl.make_problem(
            topology, comparison.collective, size_bytes=comparison.size_bytes,
            chunks_per_rank=comparison.chunks_per_rank,
        )  # fmt: skip
        compile_kernels(problem)
        since = time.process_time()
        found = taccl.synthesize(problem, time_limit_s=limit_s, seed=seed)
        cpu_s, schedule, bound_us = time.process_time() - since, found.schedule, found.bound_us
    allowed_us = comparison.most * max(comparison.peer_us, bound_us) * (1 + _ROUNDING)
    is_late = comparison.cpu_s_at_most is not None and cpu_s > comparison.cpu_s_at_most
    chunks = comparison.chunks_per_rank
    return {
        "name": comparison.name, "peer": comparison.peer, "case": comparison.case,
        "collective": comparison.collective, "size": format_size(comparison.size_bytes),
        "chunks": "" if chunks is None else str(chunks), "peer_us": comparison.peer_us,
        "ours_us": schedule.finish_us, "ratio": schedule.finish_us / comparison.peer_us,
        "most": comparison.most, "bound_us": bound_us, "gap": schedule.finish_us / bound_us - 1,
        "producer": schedule.producer, "cpu_s": round(cpu_s, 3), "cpu_s_at_most": comparison.cpu_s_at_most,
        "missed": ["finish"] * (schedule.finish_us > allowed_us) + ["CPU"] * is_late,
    }  # fmt: skip


def main() -> int:
    """Run, print the table, and write the results; return 1 if a row misses its figure."""
    parser = parser_of(__doc__)
    parser.add_argument(
        "--only", action="append", help="a part of a row's name: peer, case, collective, bytes"
    )
    parser.add_argument("--stored", action="store_true", help="run nothing: the table of stored rows")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds of each search")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chosen, stored = list(comparisons()), {}
    if options.only or options.stored:
        stored = {row["name"]: row for row in with_stored(options.output, [], "name")}
    rows = shown(
        COLUMNS,
        (
            stored[each.name] if options.stored else measured(each, limit_s=options.limit, seed=options.seed)
            for each in chosen
            if wanted(each.name, options.only) and (each.name in stored or not options.stored)
        ),
        head="(times in us)",
    )
    stored |= {row["name"]: row for row in rows}
    rows = [stored[each.name] for each in chosen if each.name in stored]
    return summed_up(options.output, {"rows": rows}, versions=package_versions(), limit_s=options.limit)


COLUMNS: tuple[Column, ...] = (
    ("peer", "peer", "<10"), ("case", "case", "<26"), ("collective", "collective", "<14"),
    ("size", "size", ">8"), ("chunks", "chunks", ">6"), ("theirs", "peer_us", ">10.3f"),
    ("ours", "ours_us", ">10.3f"), ("ratio", "ratio", ">7.4f"), ("at most", "most", ">7"),
    ("bound", "bound_us", ">10.3f"), ("gap", "gap", ">7.2%"), ("CPU s", "cpu_s", ">7.2f"),
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
