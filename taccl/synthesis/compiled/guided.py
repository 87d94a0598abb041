"""Schedules that obey what a sketch says of single chunks: which links may carry them, and which go first.

Chunks to which the same links are open share a fabric of their own, on which their trees are grown; the load
that earlier trees put on links and resources is common to all. Then comes the order of sends along the trees.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from taccl.errors import NoSolutionError
from taccl.synthesis.compiled.events import is_stopped, part, stopping
from taccl.synthesis.compiled.queues import send_along_trees
from taccl.synthesis.compiled.trees import Grove
from taccl.synthesis.compiled.trees_kernel import Wants

if TYPE_CHECKING:
    import os

    from numpy.typing import NDArray

    from taccl.problem import Problem
    from taccl.synthesis.compiled.fabric import Demand, Fabric
    from taccl.synthesis.compiled.ways import Ways

__all__ = ["find_guided_trees", "is_guided", "spread_guided"]

#: By which power of the load prices rise, pass after pass.
_STEEPNESS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
_PATIENCE = 0.25
#: Passes look at so many links in all, which takes some seconds, but there is one at least.
_MOST_STEPS = 1_000_000_000
#: How many runs are made by default, and how many of them along the same trees.
_RUNS, _ORDERS = 4, 2


def is_guided(problem: Problem) -> bool:
    """Whether a sketch says of single chunks which links may carry them, or when."""
    clauses = problem.clauses
    return bool(
        clauses.carries_from
        or clauses.carries_to
        or clauses.own_first
        or clauses.direct_crossing
        or clauses.relays is not None
    )


def spread_guided(
    problem: Problem,
    fabric: Fabric,
    demand: Demand,
    *,
    seed: int = 0,
    num_runs: int | None = None,
    target_ticks: int = 0,
    time_limit_s: float | None = None,
    spill_dir: str | os.PathLike[str] | None = None,
) -> tuple[NDArray[Any], NDArray[np.int32], NDArray[Any]]:
    """(chunk, link, start) of every send in order of start.

    Parameters
    ----------
    problem : Problem
        One whose chunks spread; `fabric` and `demand` are its arrays.
    num_runs : int, optional
        How many orders of sends to try; by default two along each of two sets of trees.
    target_ticks, time_limit_s, spill_dir
        As in `taccl.synthesis.compiled.scale.spread`.

    Raises
    ------
    CollectiveError
        If a chunk cannot reach a rank that wants it over the links that are open to it.
    """
    began = time.monotonic()
    best = None
    runs = num_runs or _RUNS
    for run in range(runs):
        left = None if time_limit_s is None else time_limit_s - (time.monotonic() - began)
        if best is not None and (is_stopped() or best.finish_ticks <= target_ticks or (left or 1.0) <= 0):
            break
        with part(f"run {run + 1} of {runs}" if runs > 1 else "", ahead=runs - run - 1):
            if run % _ORDERS == 0:
                try:
                    trees = find_guided_trees(problem, fabric, demand, seed=seed + run)
                except NoSolutionError:  # there was not the time
                    break
            with part(""):
                found = send_along_trees(
                    fabric,
                    replace(demand, ways=trees),
                    limit_ticks=2**62 if best is None else best.finish_ticks - 1,
                    num_runs=1,  # the next would be along trees that know nothing of the sketch
                    seed=seed + run,
                    target_ticks=target_ticks,
                    time_limit_s=left,
                    spill_dir=spill_dir,
                )
        best = found or best
    if best is None:
        raise NoSolutionError("found no schedule along the trees chosen")
    return best.columns


def find_guided_trees(problem: Problem, fabric: Fabric, demand: Demand, *, seed: int = 0) -> Ways:
    """Trees over the links that are open to each chunk, such that they load the fabric evenly.

    Raises
    ------
    CollectiveError
        If a chunk cannot reach a rank that wants it.
    NoSolutionError
        If it was stopped before every chunk had a tree.
    """
    grove = Grove(fabric, demand)
    grove.wants = _wants(problem, demand)
    classes = _classes(problem, fabric)
    rng = np.random.default_rng(seed)
    best, least, peak = grove.growth.way, np.inf, 0.0
    passes = max(1, _MOST_STEPS // max(1, demand.num_chunks * fabric.num_slots))
    steepnesses = _STEEPNESS[:passes]
    with stopping(grove.signal, None):
        for i, steepness in enumerate(steepnesses):
            left = demand.num_chunks
            with part(f"growing trees, pass {i + 1} of {len(steepnesses)}", ahead=len(steepnesses) - i):
                for k in rng.permutation(len(classes)):
                    grove.fabric, chunks = classes[k]
                    left -= len(chunks)
                    with part("", done=float, steps=len(chunks), ahead=left):
                        peak = grove.grow(rng.permutation(chunks), steepness, _PATIENCE, peak)
            if peak < least:
                best, least = grove.growth.way.copy(), peak
            if grove.signal[0]:
                break
    if not np.isfinite(least):
        raise NoSolutionError("stopped before every chunk had a tree; give more time")
    trees = grove.ways(best, least)
    return replace(trees, urgent=_urgent(problem, fabric, trees.hop_of, trees.slot))


def _wants(problem: Problem, demand: Demand) -> Wants:
    targets = [sorted({*c.destinations}.difference(c.origins)) for c in problem.collective.chunks]
    return Wants(
        np.array(demand.units, dtype=np.int64),
        demand.origin_of.astype(np.int64),
        demand.origin,
        np.concatenate(([0], np.cumsum([len(ranks) for ranks in targets]))).astype(np.int64),
        np.fromiter((rank for ranks in targets for rank in ranks), np.int32),
        np.ones(problem.topology.num_ranks, bool),
    )


def _classes(problem: Problem, fabric: Fabric) -> list[tuple[Fabric, NDArray[np.int64]]]:
    """Chunks to which the same links are open, and the fabric of these links alone."""
    clauses, topology, collective = problem.clauses, problem.topology, problem.collective
    node = np.array(topology.node_of_rank)
    members: dict[tuple[object, ...], list[int]] = {}
    for c, chunk in enumerate(collective.chunks):
        key: tuple[object, ...] = ()
        if clauses.carries_from:
            key += (chunk.origins,)
        if clauses.direct_crossing:
            nodes = [frozenset(node[list(ranks)].tolist()) for ranks in (chunk.origins, chunk.destinations)]
            key += tuple(nodes)
        if clauses.relays is not None:
            key += (collective.group_of_chunk[c],)
        members.setdefault(key, []).append(c)
    links, admits = fabric.link.tolist(), clauses.carries_from
    guarded = [(e, admits[link]) for e, link in enumerate(links) if link in admits]
    src_node, dst_node = node[fabric.src], node[fabric.dst]
    crosses = src_node != dst_node
    classes = []
    for chunks in members.values():
        chunk = collective.chunks[chunks[0]]
        is_open = np.ones(fabric.num_slots, bool)
        for e, admitted in guarded:
            is_open[e] = not admitted.isdisjoint(chunk.origins)
        if clauses.direct_crossing:
            starts, needs = node[list(chunk.origins)], node[list(chunk.destinations)]
            is_open &= ~crosses | (np.isin(src_node, starts) & np.isin(dst_node, needs))
        holders = problem.holders(chunks[0])
        if holders is not None:
            holds = np.isin(np.arange(fabric.num_ranks), sorted(holders))
            is_open &= holds[fabric.src] & holds[fabric.dst]
        kept = fabric.out_slot[is_open[fabric.out_slot]]
        count = np.bincount(fabric.src[kept], minlength=fabric.num_ranks)
        out_of = np.concatenate(([0], np.cumsum(count))).astype(np.int64)
        classes.append((fabric._replace(out_of=out_of, out_slot=kept), np.array(chunks, np.int64)))
    return classes


def _urgent(
    problem: Problem, fabric: Fabric, hop_of: NDArray[np.int64], slot: NDArray[np.int32]
) -> NDArray[np.bool_] | None:
    """Hops of a link's own chunks, where the sketch has these go first."""
    if not problem.clauses.own_first:
        return None
    first = np.isin(fabric.link[slot], sorted(problem.clauses.own_first))
    chunk = np.repeat(np.arange(len(hop_of) - 1), np.diff(hop_of))
    chunks = problem.collective.chunks
    starts = np.fromiter((r for c in chunks for r in c.origins), np.int64)
    keys = np.repeat(np.arange(len(chunks)), [len(c.origins) for c in chunks]) * fabric.num_ranks + starts
    is_own: NDArray[np.bool_] = np.isin(chunk * fabric.num_ranks + fabric.src[slot], keys)
    return first & is_own
