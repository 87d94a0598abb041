"""Records of NCCL's Inspector (``plugins/profiler/inspector``) as rows of nccl-tests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from typing import Any

from taccl.problem.collective import busbw_factor

#: First line of records that were converted to rows of nccl-tests.
INSPECTOR = "# NCCL Inspector"
#: {Inspector's name of a collective: nccl-tests' name, ours, and True if records state one rank's part}.
_COLLECTIVES = {
    "AllReduce": ("all_reduce", "allreduce", False),
    "AllGather": ("all_gather", "allgather", True),
    "ReduceScatter": ("reduce_scatter", "reduce-scatter", True),
    "Broadcast": ("broadcast", "broadcast", False),
    "Reduce": ("reduce", "reduce", False),
}
_HEAD = "# size count type redop root time algbw busbw #wrong"
_RANK = "#  Rank {rank} Group 0 on node{node} device {device} [?]"
#: Max number of ranks of a record; records with more are left out.
_MOST_RANKS = 10_000


def inspector_lines(objects: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of a run of nccl-tests for each collective and number of ranks in the records.

    The time of a size is the median over all records of it. Times are those of kernels.
    """
    runs: dict[tuple[str, int, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for each in objects:
        header, figures = each.get("header"), each.get("coll_perf")
        if not isinstance(header, dict) or not isinstance(figures, dict):
            continue
        name, ranks, nodes = str(figures.get("coll")), header.get("n_ranks"), header.get("nnodes")
        size, time_us = figures.get("coll_msg_size_bytes"), figures.get("coll_exec_time_us")
        counts = ranks, nodes, size, time_us
        if name in _COLLECTIVES and all(type(count) is int and count > 0 for count in counts):
            runs[name, int(ranks or 0), int(nodes or 0)][int(size or 0)].append(float(time_us or 0))
    for (name, ranks, nodes), times in sorted(runs.items()):
        if not nodes <= ranks <= _MOST_RANKS or ranks % nodes or ranks == 1:
            continue
        program, ours, is_part = _COLLECTIVES[name]
        yield INSPECTOR
        yield f"# Collective test starting: {program}_perf"
        local = ranks // nodes
        yield from (_RANK.format(rank=r, node=r // local, device=r % local) for r in range(ranks))
        yield _HEAD
        adds = "sum" if ours in ("allreduce", "reduce-scatter", "reduce") else "none"
        for size, of_size in sorted(times.items()):
            whole, time_us = size * (ranks if is_part else 1), median(of_size)
            algbw = whole / time_us / 1000
            busbw = algbw * float(busbw_factor(ours, ranks))
            yield f"{whole} {size // 4} float {adds} -1 {time_us:.2f} {algbw:.4f} {busbw:.4f} N/A"
