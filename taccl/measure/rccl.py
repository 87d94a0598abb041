"""Predicted times of RCCL between nodes: its ranges of protocols, and its trees under simple."""

from __future__ import annotations

from math import log2
from typing import TYPE_CHECKING

import numpy as np

from taccl._internal.arrays import Floats
from taccl.measure.library_costs import Candidate
from taccl.topology import tuning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taccl.measure.library import Run

#: Index of protocol simple.
_SIMPLE = 2


def between_nodes(run: Run) -> Iterator[Candidate]:
    """Yield the algorithms of RCCL on several nodes, each at the sizes for which RCCL chooses it.

    The size determines the protocol (`tuning.RCCL_RANGES`). Trees are modelled under simple. Under LL and
    LL128, where RCCL uses trees as well, the times are those of rings.
    """
    most = tuning.RCCL_RANGES[run.costs.architecture].get(run.collective)
    if most is None:
        yield from (run.ring(p) for p in run.protocols)
        return
    has_parts = run.collective != "allreduce"  # RCCL compares sizes of one rank's part, or of whole sums
    size = run.size / run.num_ranks if has_parts else run.size
    ends = [most.ll, most.ll128, np.inf]
    starts = [0.0, most.ll, most.ll128 if _SIMPLE - 1 in run.protocols else most.ll]
    tree = run.collective == "allreduce" and run.per_node > 1
    tree_bytes = most.tree[run.num_nodes > 2] if tree else 0
    for p in run.protocols:
        used = (size > starts[p]) & (size <= ends[p])
        if p == _SIMPLE and tree_bytes:
            yield _only(_tree(run), used & (run.size <= tree_bytes))
            used &= run.size > tree_bytes
        yield _only(run.ring(p), used)


def _only(found: Candidate, used: np.ndarray) -> Candidate:
    """The candidate, chosen at the sizes `used` only."""
    return found._replace(model_us=np.where(used, 0.0, np.inf))


def _tree(run: Run) -> Candidate:
    """Times of RCCL's tree allreduce under simple: chains of ranks in nodes, joined by a binary tree.

    Chunks go up to the root and down again. Every step moves one chunk of each channel by one rank.
    """
    costs, g, m = run.costs, run.per_node, run.num_nodes
    levels = int(log2(m))
    depth = g - 1 + levels
    channels = tuning.RCCL_TREE_CHANNELS
    # In a tree of n ranks, n - 1 links carry all data up and down, i.e. 2 (n - 1) / n of it per rank.
    rate = min(run.node * g / (2 * (g - 1)), run.network * m / (2 * (m - 1)))
    chunk = np.minimum(chunk_bytes(run.size / channels, depth), run.size / channels)
    steps = np.ceil(run.size / channels / chunk) - 1 + 2 * depth
    base, hop, _ = run.fitted_costs("simple")
    hops_us = 2 * levels * run.network_us(_SIMPLE, "tree", model=False)
    latency_us = (base + 2 * (g - 1) * hop) * costs.node_latency + hops_us
    return Candidate("tree", "simple", run.size, latency_us + steps * chunk * channels / rate / 1000)


def chunk_bytes(of_channel: Floats, depth: int) -> Floats:
    """Bytes of a tree's chunk under simple (``src/enqueue.cc``), for each number of bytes of a channel.

    RCCL halves the chunk while a channel has few chunks, down to a limit for each number of them.

    - `depth`: Number of hops from a leaf of the tree to its root.
    """
    chunk = np.full(of_channel.shape, float(tuning.STEP_BYTES))
    for least, few in tuning.TREE_CHUNKS:
        while True:
            halved = (of_channel // chunk < few * depth) & (chunk > least)
            if not halved.any():
                break
            chunk[halved] /= 2
    return chunk
