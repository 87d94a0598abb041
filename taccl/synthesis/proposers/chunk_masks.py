"""Schedules that obey what a sketch says of single chunks: which links may carry them, and which go first.

Chunks to which the same links are open share a fabric of their own, on which their trees are grown; the load
that earlier trees put on links and resources is common to all. Then comes the order of sends along the trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from taccl._internal.deadline import OutOfTime
from taccl.problem.problem import Problem
from taccl.synthesis.kernels.fabric import Demand, Fabric, starts
from taccl.synthesis.kernels.limits import Limits, Sends
from taccl.synthesis.proposers.queues import send_along_trees
from taccl.synthesis.proposers.router import Routes, find_trees


def has_chunk_masks(problem: Problem) -> bool:
    """True if a sketch restricts the links, or the times, of single chunks."""
    return bool(problem.clauses.said("chunk", "group", "path", "order"))


def spread_masked(problem: Problem, fabric: Fabric, demand: Demand, limits: Limits = Limits()) -> Sends:
    """The best schedule of several along trees over the links that are open to each chunk.

    - `problem`: One whose chunks spread; `fabric` and `demand` are its arrays.

    Raises `CollectiveError` if a chunk cannot reach a rank that wants it over the links that are open to it.
    `OutOfTime` if it was stopped before there was a schedule.
    """
    masks = _masks(problem, fabric)

    def find(limits: Limits, *, waiting: float | None = None) -> Routes:
        routes = find_trees(fabric, demand, limits, masks=masks, waiting=waiting)
        return replace(routes, urgent=urgent_hops(problem, fabric, demand, routes))

    with limits.deadline.scope("", ahead=1.0):
        routes = find(limits)
    with limits.deadline.scope(""):
        best = send_along_trees(fabric, demand, limits, routes, find)
    if best is None:
        raise OutOfTime("stopped before there was a schedule along the trees; give more time")
    return best


def _masks(problem: Problem, fabric: Fabric) -> list[tuple[Fabric, NDArray[np.int64]]]:
    """Chunks to which the same links are open, and the fabric of these links alone."""
    chunks, most = problem.collective.chunks, problem.clauses.path_limit
    members: dict[tuple[object, ...], list[int]] = {}
    for c, chunk in enumerate(chunks):
        members.setdefault((id(problem.open_links(c)), most and chunk.origins), []).append(c)
    classes = []
    for alike in members.values():
        is_open = problem.open_links(alike[0])[fabric.link]
        if most is not None:
            is_open = is_open & _on_fewest_links(fabric, is_open, chunks[alike[0]].origins, most)
        kept = fabric.out_slot[is_open[fabric.out_slot]]
        out_of = starts(fabric.src[kept], fabric.num_ranks)
        classes.append((fabric._replace(out_of=out_of, out_slot=kept), np.array(alike, np.int64)))
    return classes


def _on_fewest_links(
    fabric: Fabric, is_open: NDArray[np.bool_], origins: Sequence[int], most: int
) -> NDArray[np.bool_]:
    """Slots on paths of the fewest links from some ranks: no tree of these is deeper than it must be."""
    hops = np.full(fabric.num_ranks, most + 1)
    hops[list(origins)] = 0
    for passed in range(most):
        ahead = is_open & (hops[fabric.src] == passed)
        np.minimum.at(hops, fabric.dst[ahead], passed + 1)
    found: NDArray[np.bool_] = hops[fabric.dst] == hops[fabric.src] + 1
    return found & (hops[fabric.dst] <= most)


def urgent_hops(problem: Problem, fabric: Fabric, demand: Demand, routes: Routes) -> NDArray[np.bool_] | None:
    """Hops of a link's own chunks, where the sketch has these go first."""
    if not problem.own_first:
        return None
    first = np.isin(fabric.link[routes.slot], sorted(problem.own_first))
    chunk = np.repeat(np.arange(demand.num_chunks), np.diff(demand.origin_of))
    is_own: NDArray[np.bool_] = np.isin(
        routes.chunk * fabric.num_ranks + fabric.src[routes.slot], chunk * fabric.num_ranks + demand.origin
    )
    return first & is_own
