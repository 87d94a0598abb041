"""Trees and an order for all chunks of a small problem, found from what crosses between nodes.

Crossings come first, as NICs are mostly what limits; then what is sent inside nodes, around them. See
`taccl.synthesis.crossing.rounds`, `taccl.synthesis.crossing.times` and
`taccl.synthesis.crossing.nodes_kernel`. Last, all sends start as early as their order lets them.
"""

from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from taccl.collectives import make
from taccl.kernels import compiled
from taccl.problem import make_problem
from taccl.synthesis.compiled.events import is_stopped, pop, push, stopping
from taccl.synthesis.compiled.fixed import Order, Planner
from taccl.synthesis.compiled.routes import bare_trees
from taccl.synthesis.crossing.crossings import make_crossings, make_inside
from taccl.synthesis.crossing.inside_nodes import make_booked
from taccl.synthesis.crossing.nodes_kernel import list_sends, make_rows
from taccl.synthesis.crossing.rounds import MOST_ROUNDS, enter_rounds, make_plan
from taccl.synthesis.crossing.search import improve, make_room
from taccl.synthesis.crossing.times import make_times, pin, time_crossings
from taccl.topology.topology import TopologyBuilder

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.problem import Problem
    from taccl.synthesis.compiled.fixed_kernel import Network
    from taccl.synthesis.compiled.routes import Tree
    from taccl.synthesis.crossing.crossings import Crossings
    from taccl.synthesis.crossing.rounds import Plan

__all__ = ["compile_two_levels", "find_two_levels", "spread_two_levels", "suits_two_levels"]

#: Problems with more arrivals of chunks at ranks are left to others.
_MOST_ARRIVALS = 10_000
#: Rounds are filled in so many turns; of more rounds than the fewest, so many are tried.
_ROUND_TURNS, _MORE_ROUNDS = 5_000, 3
#: Crossings are timed in so many turns, so many between two looks at the clock, and then the nodes so often.
_TIME_TURNS, _AT_ONCE, _NODE_TURNS = 6_000, 250, 8
#: So many seeds are tried where chunks only spread, in seconds if there is no other limit.
_SEEDS, _SECONDS = 4, 0.7
#: The part of the seconds that crossings may take.
_CROSSING_SHARE = 0.6


def suits_two_levels(problem: Problem) -> bool:
    """Whether chunks may go any way between nodes, and there are few enough."""
    clauses, chunks = problem.clauses, problem.collective.chunks
    arrivals = sum(max(len(chunk.origins), len(chunk.destinations)) for chunk in chunks)
    return (
        1 < problem.topology.num_nodes < problem.topology.num_ranks
        and arrivals <= _MOST_ARRIVALS
        and not problem.collective.derivations
        and (problem.collective.combining or all(len(chunk.origins) == 1 for chunk in chunks))
        and clauses.relays is None
        and not (clauses.carries_from or clauses.carries_to or clauses.direct_crossing or clauses.own_first)
    )


@cache
def compile_two_levels() -> None:
    """Have the kernels compiled, if they are not: once, as what is compiled is kept on disk."""
    builder = TopologyBuilder("two nodes of two", [0, 0, 1, 1])
    for src, dst in ((0, 1), (1, 0), (2, 3), (3, 2), (0, 2), (2, 0)):
        builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=1)
    find_two_levels(make_problem(builder.build(), make("allreduce", 4), chunk_bytes=1))


def find_two_levels(
    problem: Problem, *, limit_ticks: int | None = None, seconds: float | None = None, seed: int = 0
) -> tuple[list[Tree], Order] | None:
    """Trees of all chunks and an order of their sends; None where there are none, or none that is in time.

    Parameters
    ----------
    problem : Problem
        One that `suits_two_levels`.
    limit_ticks : int, optional
        Only what ends by then counts.
    seconds : float, optional
        After which no more is tried.
    """
    began = time.monotonic()
    inside = make_inside(problem)
    if inside is None:
        return None
    x = make_crossings(problem, inside)
    plan = _find_plan(x, problem, seconds, seed)
    if plan is None:
        return None
    times = make_times(x)
    finish = pin(x, plan, times)
    if limit_ticks is not None and finish > limit_ticks + 2 * x.hop:
        return None
    booked, rows = make_booked(inside, x.num_chunks), make_rows(x, inside)
    planner, rng = Planner(problem), np.random.default_rng(seed)
    best: tuple[list[Tree], Order] | None = None
    for turn in range(_NODE_TURNS):
        if best is not None and (
            best[1].finish_ticks <= finish
            or is_stopped()
            or (seconds is not None and time.monotonic() - began > seconds)
        ):
            break
        jitter = rng.random(len(inside.link)) * (0.2 if turn else 0.0)
        count = list_sends(x, inside, plan, booked, rows, finish, jitter)
        trees = _trees(problem, rows.sends[:count])
        order = _order(planner, trees, rows.sends[:count])
        if best is None or order.finish_ticks < best[1].finish_ticks:
            best = trees, order
    if best is None or (limit_ticks is not None and best[1].finish_ticks > limit_ticks):
        return None
    return best


def spread_two_levels(
    problem: Problem, *, limit_ticks: int, seconds: float | None = None, seed: int = 0
) -> tuple[NDArray[Any], NDArray[np.int32], NDArray[np.int64]] | None:
    """(chunk, link, start) of every send in order of start, by the best of some seeds.

    Parameters
    ----------
    problem : Problem
        One that `suits_two_levels`, and in which nothing is reduced.
    limit_ticks : int
        Only what ends by then counts; None where nothing does.
    seconds : float, optional
        After which no seed but the first is begun.
    """
    compile_two_levels()
    began = time.monotonic()
    seconds = _SECONDS if seconds is None else min(seconds, _SECONDS)
    best: Order | None = None
    for run in range(_SEEDS):
        left = seconds - (time.monotonic() - began)
        if run and (left <= 0 or is_stopped()):
            break
        found = find_two_levels(problem, limit_ticks=limit_ticks, seconds=max(0.0, left), seed=seed + run)
        if found is not None:
            best = found[1]
            limit_ticks = best.finish_ticks - 1
    if best is None:
        return None
    order = np.argsort(best.start, kind="stable")
    small = np.uint16 if problem.collective.num_chunks <= 1 << 16 else np.int32
    return (
        best.sends.chunk[order].astype(small),
        best.sends.link[order].astype(np.int32),
        best.start[order],
    )


def _find_plan(x: Crossings, problem: Problem, seconds: float | None, seed: int) -> Plan | None:
    """Crossings in rounds, timed; None if there is no room in any number of rounds tried."""
    began = time.monotonic()
    node_of = np.array(problem.topology.node_of_rank)
    chunks = problem.collective.chunks
    roots = [chunk.origins[0] if chunk.root is None else chunk.root for chunk in chunks]
    fewest = x.fewest_rounds(node_of[roots])
    for num_rounds in range(fewest, min(fewest + _MORE_ROUNDS, MOST_ROUNDS) + 1):
        plan = enter_rounds(x, node_of[roots], num_rounds, turns=_ROUND_TURNS, seed=seed)
        if plan is not None:
            break
    else:
        return None
    times, room, kept = make_times(x), make_room(x), make_plan(x, plan.root)
    times.key[:] = plan.round
    finish = time_crossings(x, plan, times, 12)
    signal = np.zeros(1, np.int64)
    target = num_rounds * int((x.alpha + x.beta * int(x.units.max())).max()) + 2 * int(x.ramp[:, 0].max())
    for turn in range(_TIME_TURNS // _AT_ONCE):
        left = None if seconds is None else _CROSSING_SHARE * seconds - (time.monotonic() - began)
        if finish <= target or is_stopped() or (left is not None and left <= 0):
            break
        with stopping(signal, left):
            finish = improve(x, plan, kept, times, room, num_rounds, _AT_ONCE, target, seed + turn, signal)
    return plan


def _trees(problem: Problem, sends: NDArray[np.int64]) -> list[Tree]:
    """The trees that sends make."""
    links = problem.topology.links
    of: dict[tuple[int, bool], list[int]] = {}
    for c, link, reduces, _ in sends.tolist():
        of.setdefault((c, bool(reduces)), []).append(link)
    roots = {}
    for c, chunk in enumerate(problem.collective.chunks if problem.collective.combining else ()):
        giving = {links[link].src for link in of.get((c, True), ())}
        taking = {links[link].dst for link in of.get((c, True), ())}
        roots[c] = next(rank for rank in (*chunk.origins, *taking) if rank not in giving)
    trees = bare_trees(problem, roots=roots)
    for tree in trees:
        for link in of.get((tree.chunk, tree.reducing), ()):
            tree.link_to[links[link].src if tree.reducing else links[link].dst] = link
    return trees


def _order(planner: Planner, trees: list[Tree], rows: NDArray[np.int64]) -> Order:
    """The order that sends are in, each started as early as may be."""
    sends = planner.sends(trees)
    network, _ = planner.networks(sends)
    at = {(c, link, reduces): start for c, link, reduces, start in rows.tolist()}
    keys = zip(sends.chunk.tolist(), sends.link.tolist(), sends.reduces.tolist(), strict=True)
    key = np.array([at[send] for send in keys], np.int64)
    count = len(key)
    start = np.zeros(count, np.int64)
    start_in_order(
        network, key, network.num_before.copy(), np.zeros(network.num_resources, np.int64),
        np.zeros(count), np.zeros(count, np.int64), start,
    )  # fmt: skip
    end = start + network.duration
    return Order(sends, start, end, int(end.max(initial=0)))


@compiled
def start_in_order(
    network: Network,
    key: NDArray[np.int64],
    left: NDArray[np.int64],
    free: NDArray[np.int64],
    heap_key: NDArray[np.float64],
    heap_what: NDArray[np.int64],
    start: NDArray[np.int64],
) -> None:
    """Start sends one after another in the order of their keys, each once what it waits for is there.

    Parameters
    ----------
    left, free, heap_key, heap_what
        How many sends each waits for, and room; they are used up.
    start : (num_sends,) int64
        Zero at first; then when each starts.
    """
    size = 0
    for m in range(len(left)):
        if left[m] == 0:
            push(heap_key, heap_what, size, float(key[m]), m)
            size += 1
    while size:
        m = pop(heap_key, heap_what, size)
        size -= 1
        time = start[m]
        for h in range(network.hold_of[m], network.hold_of[m + 1]):
            time = max(time, free[network.resource[h]] - network.lead[h])
        start[m] = time
        for h in range(network.hold_of[m], network.hold_of[m + 1]):
            q = network.resource[h]
            free[q] = max(free[q], time + network.lead[h] + network.length[h])
        for i in range(network.after_of[m], network.after_of[m + 1]):
            other = network.after[i]
            start[other] = max(start[other], time + network.duration[m])
            left[other] -= 1
            if left[other] == 0:
                push(heap_key, heap_what, size, float(key[other]), other)
                size += 1
