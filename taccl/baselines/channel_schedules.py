"""Collectives over channels as libraries run them, with predicted times from a model of their hops.

Every channel carries the same share of the data. If every rank holds or receives a part of its own, the parts
go round the ring of a channel. Data from or to one rank are sent in pieces, one after another, along a chain
or up and down a tree.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl.baselines.channel_sends import (
    Columns,
    as_planned_us,
    first_come_us,
    in_order_us,
    one_round,
    ring_orders,
    sends_around,
    sends_of_pieces,
)
from taccl.baselines.channels import chain_channels, ring_channels
from taccl.baselines.chunking import (
    cut_chunks,
    held_at_start,
    require_everywhere,
    run,
    without_sketch,
)
from taccl.baselines.forms import fastest
from taccl.baselines.lanes import Lanes, is_allreduce
from taccl.baselines.moves import Moves, check_number, routed
from taccl.baselines.ring import on_rings
from taccl.baselines.routes import ShortestRoutes
from taccl.schedule.timing import exact_times
from taccl.topology.models import library_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taccl.baselines.channels import Channels
    from taccl.baselines.lanes import Algorithm, Floats, Ints, Plan
    from taccl.baselines.moves import Row, Sends
    from taccl.problem.problem import Problem
    from taccl.schedule.schedule import Schedule
    from taccl.topology.topology import Topology


#: Rings are assumed to wait for one another within two limits (our choices):
#: `_LOOSE`: max ratio, either way, of rings' mean hop time to a step's busiest resource (`Lanes.tightness`).
#: `_STRETCHED`: min ratio of a step's time to its busiest resource (`Lanes.stretch`).
_LOOSE, _STRETCHED = 0.5, 1.02
#: Max transfers of ring schedules for which several orders are tried.
_FEW_TRANSFERS = 100_000
#: A periodic plan of sends is poor, so that other orders of sends are tried, if it exceeds one of two limits.
#: `_POOR`: max ratio of a plan's period to the time for which its sends hold the busiest resource.
#: `_WAITS`: max share of the total time for which a plan's first piece waits.
_POOR, _WAITS = 1.05, 0.25
#: Min ticks in a plan between the arrival of data and their next send, as starts are rounded later.
_SLACK_TICKS = 2
#: Ticks below which planned times, sums of floating-point numbers, are exact to a tick.
_EXACT_TICKS = 2.0**50
#: `_MOST_REPLAYED`: max messages to simulate (about 0.15 s), except for a schedule whose plan is poor.
#: `_MOST_PIPED`: max messages to simulate on chains or trees whose plan is poor (about 0.4 s). Fewer pieces
#: than are on their way at once would be extrapolated at too low a rate.
#: `_FEWEST_PIECES`, `_FEWEST_STEPS`: min pieces or steps of rings to simulate, despite `_MOST_REPLAYED`.
_MOST_REPLAYED, _MOST_PIPED, _FEWEST_PIECES, _FEWEST_STEPS = 20_000, 50_000, 2, 4


class Prediction(NamedTuple):
    """Predicted time of a collective over channels, without launch overhead.

    - `latency_us`: Time for 0 bytes.
    - `gb_per_s`: Algorithm bandwidth in the limit of large sizes.
    - `hop_gb_per_s`: GB/s that all channels together carry from rank to rank.
    - `time_us`: Time for the problem's size.
    """

    latency_us: float
    gb_per_s: float
    hop_gb_per_s: float
    time_us: float


def predict(problem: Problem, algorithm: Algorithm, on: Topology) -> Prediction:
    """Predicted time of an algorithm over channels of the problem's topology, with link costs of `on`."""
    assert problem.size_bytes is not None, "checked by the caller"
    lanes = Lanes(replace(problem, topology=on), algorithm, channels_of(problem, algorithm))
    mb, num, n = problem.size_bytes / 1e6, len(lanes.hops), on.num_ranks
    us_per_mb = lanes.stretch * float(lanes.busy[1].max()) / num
    hop_gb_per_s = 1000 / us_per_mb if us_per_mb else float("inf")
    if lanes.goes_round:
        steps = (n - 1) * (2 if is_allreduce(problem) else 1)
        latency_us, time_us = lanes.round_us(0, steps)[1], _around_us(lanes, mb / n / num, steps)
        us_per_mb *= steps / n
    else:
        latency_us, time_us = lanes.alone_us(0), _piped_us(lanes)
    gb_per_s = 1000 / us_per_mb if us_per_mb else float("inf")
    return Prediction(latency_us, gb_per_s, hop_gb_per_s, time_us)


def open_gb_per_s(problem: Problem, algorithm: Algorithm, on: Topology) -> float:
    """Algorithm bandwidth in GB/s over chains or trees, for large sizes, with link costs of topology `on`."""
    lanes = Lanes(replace(problem, topology=on), algorithm, channels_of(problem, algorithm))
    us_per_mb = lanes.stretch * float(lanes.busy[1].max()) / len(lanes.hops)
    return 1000 / us_per_mb if us_per_mb else float("inf")


def _around_us(lanes: Lanes, mb: float, steps: int) -> float:
    """Time in us of messages of `mb` MB that go round all rings for some steps.

    Messages of different rings wait for one another in two cases: if the mean hop takes about as long as a
    step of the busiest resource, or if that resource is idle between messages. Then several orders of the
    messages are simulated for a few steps; the shortest time is extrapolated to all steps.
    """
    apart_us, tightness = lanes.round_us(mb, steps)[1], lanes.tightness(mb)
    is_tight = _LOOSE < tightness < 1 / _LOOSE or lanes.stretch > _STRETCHED
    if lanes.relayed or len(lanes.hops) == 1 or not is_tight:
        return apart_us
    topology, columns = lanes.problem.topology, one_round(lanes, mb)
    few = min(steps, max(_FEWEST_STEPS, _MOST_REPLAYED * steps // len(columns.chunk)))

    def simulated_us(num: int) -> float:
        first = Columns._make(each[columns.step < num] for each in columns)
        orders = (np.lexsort(keys) for keys in ring_orders(first))
        times_us = [in_order_us(topology, mb, first, order) for order in orders]
        return min(*times_us, float(first_come_us(topology, mb, first)[1].max(initial=0)))

    found_us = simulated_us(few)
    if few < steps:
        each_us = (found_us - simulated_us(few // 2)) / (few - few // 2)
        found_us += (steps - few) * each_us
    return found_us


def _piped_us(lanes: Lanes) -> float:
    """Time in us of all pieces on open lanes (chains or trees): the least of several estimates.

    One estimate is a periodic plan. For many pieces, its first piece is assumed to wait half as long as
    planned. For few pieces, or if that plan is poor, two further estimates simulate messages: resources
    serve them as they become ready, or in the plan's order. Simulations of some pieces are extrapolated to
    all.
    """
    pieces = lanes.num_pieces
    if lanes.relayed:
        return lanes.pieces_us(pieces)
    mb = lanes.mb_of(pieces)
    plan, few = lanes.plan(mb, pieces), max(_FEWEST_PIECES, _MOST_REPLAYED // lanes.turns.size)
    found = []
    if plan is not None:
        first_us = (lanes.alone_us(mb) + plan.end_us) / 2 if pieces > few else plan.end_us
        found.append(first_us + (pieces - 1) * plan.period_us)
        if pieces > few and not _is_poor(plan, lanes, mb, pieces):
            return found[0]
    few = max(few, _MOST_PIPED // lanes.turns.size)

    def simulated_us(num: int, plan: Plan | None) -> float:
        topology, columns = lanes.problem.topology, sends_of_pieces(num * len(lanes.hops), lanes, plan)
        if plan is None:
            return float(first_come_us(topology, mb, columns)[1].max())
        return as_planned_us(topology, mb, columns)

    for order in (None,) if plan is None else (None, plan):
        us = simulated_us(min(int(pieces), few), order)
        if pieces > few:
            each_us = (us - simulated_us(few // 2, order)) / (few - few // 2)
            us += (pieces - few) * max(each_us, lanes.busiest_us(mb))
        found.append(us)
    return min(found)


def _is_poor(plan: Plan, lanes: Lanes, mb: float, pieces: float) -> bool:
    """True if a periodic plan leaves the busiest resource idle for long, or lets pieces wait for long.

    Then resources that serve pieces as they become ready may be faster.
    """
    waits_us, whole_us = plan.end_us - lanes.alone_us(mb), plan.end_us + (pieces - 1) * plan.period_us
    return plan.period_us > _POOR * lanes.busiest_us(mb) or waits_us > _WAITS * whole_us


def channels_of(problem: Problem, algorithm: Algorithm) -> Channels:
    """Channels of an algorithm on the problem's topology."""
    find = ring_channels if algorithm == "ring" else chain_channels
    return find(problem.topology, ShortestRoutes.of(problem).ticks)


def over_channels(problem: Problem, algorithm: Algorithm, on: Topology, *, cut: bool = True) -> Schedule:
    """Schedule of an algorithm over channels of the problem's topology, with link costs of topology `on`.

    Raises
    ------
    CollectiveError
        If a chunk does not concern every rank.
    """
    require_everywhere(problem, baseline=algorithm)
    channels = channels_of(problem, algorithm)
    problem = replace(without_sketch(problem), topology=on)
    lanes = Lanes(problem, algorithm, channels)
    if channels.wanted > len(channels.orders):
        said = (
            f"{channels.wanted} channels exceed the listing limit; {len(channels.orders)} are used, so "
            f"{library_name(problem.topology)} itself may finish earlier"
        )
        problem = replace(problem, notes=(*problem.notes, said))
    parts = min(lanes.parts, *problem.chunk_bytes) if cut else 1
    problem = cut_chunks(problem, parts) if parts > 1 else problem
    roots = lanes.roots(problem.collective.num_chunks) if is_allreduce(problem) else None
    name = _name(lanes, algorithm)
    if lanes.relayed:
        spread = partial(_round if lanes.goes_round else _down, lanes=lanes)
        sends = run(problem, spread, backwards=partial(spread, backwards=True), roots=roots)
        return sends.schedule(problem, producer=name)
    mb = max(problem.chunk_bytes) / 1e6
    slack_us = _SLACK_TICKS / float(problem.costs.ticks_per_us)
    pieces = problem.collective.num_chunks / len(lanes.hops)
    plan = None if lanes.goes_round else lanes.plan(mb, pieces, slack_us=slack_us)
    columns = (
        sends_around(problem, lanes, roots)
        if lanes.goes_round
        else sends_of_pieces(problem.collective.num_chunks, lanes, plan)
    )
    check_number(problem, len(columns.chunk))
    # Channels contend for resources. Try several orders: the plan's, first come first served, and by step.
    is_small = len(columns.chunk) <= (_FEW_TRANSFERS if lanes.goes_round else _MOST_REPLAYED)
    made = [] if plan is None else [_planned(problem, columns, name)]
    if is_small or plan is None or _is_poor(plan, lanes, mb, pieces):
        # At the mean size of a piece, as in `predict`: a slightly other size may give quite another order.
        start_us, end_us = first_come_us(on, lanes.mb_of(pieces), columns)
        made.append(_planned(problem, columns._replace(start=start_us), name, end_us=end_us))
    if is_small and lanes.goes_round:
        made += [_scheduled(problem, columns, order, name) for order in ring_orders(columns)]
    return fastest(made)


def _planned(problem: Problem, columns: Columns, name: str, *, end_us: Floats | None = None) -> Schedule:
    """Schedule of sends in the order of a plan.

    Each resource keeps the order of the planned holds if the planned times are exact to a tick, and chunks of
    these sizes can be sent in this order; the schedule is then no slower than the plan. Otherwise, sends are
    in the order of their planned starts, which chunks of any sizes permit.

    - `end_us`, (num_sends,): Planned ends; by default, starts plus durations.
    """
    ticks_per_us = float(problem.costs.ticks_per_us)
    if columns.start.max(initial=0) * ticks_per_us < _EXACT_TICKS:
        ends = None if end_us is None else np.floor(end_us * ticks_per_us).astype(np.int64)
        with suppress(ValueError):  # holds of unlike chunks overtake one another: the order has a cycle
            return exact_times(
                problem, chunk=columns.chunk, link=columns.link, ends=ends, reduce=columns.adds,
                starts=np.ceil(columns.start * ticks_per_us).astype(np.int64), producer=name,
            )  # fmt: skip
    return _scheduled(problem, columns, (columns.step, columns.start), name)


def _scheduled(problem: Problem, columns: Columns, order: Sequence[Ints | Floats], name: str) -> Schedule:
    """Schedule of sends in lexicographic order of some keys, the last key first, as in `numpy.lexsort`."""
    place = np.empty(len(columns.chunk), dtype=np.int64)
    place[np.lexsort(order)] = np.arange(len(place))
    return exact_times(
        problem, chunk=columns.chunk, link=columns.link, sequence=place, reduce=columns.adds, producer=name
    )


def _round(problem: Problem, *, lanes: Lanes, backwards: bool = False) -> Sends:
    """Sends of chunks round the rings, over relays if needed; each rank deals its chunks to the rings."""
    holder, chunk, number = held_at_start(problem)
    rings = [[src for src, _ in (hops[::-1] if backwards else hops)] for hops in lanes.hops]
    return routed(problem, Moves.of(on_rings(rings, holder, chunk, number % len(rings))))


def _down(problem: Problem, *, lanes: Lanes, backwards: bool = False) -> Sends:
    """Sends of chunks one after another along each chain or tree from its root, over relays if needed.

    - `backwards`: True to send the last chunk first, for a broadcast that is reversed to a reduction.
    """
    chunks = np.arange(problem.collective.num_chunks)
    chunks = chunks[::-1] if backwards else chunks
    num = len(lanes.hops)
    moves: list[Row] = []
    for place, c in enumerate(chunks.tolist()):
        hops = lanes.hops[c % num]
        src, dst = np.array(hops, np.int64).reshape(-1, 2).T
        moves.append((place // num + np.array(_depths(hops), np.int64), c, src, dst, False))
    return routed(problem, Moves.of(moves))


def _depths(hops: Sequence[tuple[int, int]]) -> list[int]:
    reached: dict[int, int] = {}
    for src, dst in hops:
        reached[dst] = reached.get(src, 0) + 1
    return [reached[dst] - 1 for _, dst in hops]


def _name(lanes: Lanes, algorithm: Algorithm) -> str:
    num = len(lanes.channels.orders)
    counted = f"{num} {'ring' if algorithm == 'ring' else 'chain'}{'s' * (num > 1)}"
    if algorithm == "ring":
        return f"ring ({counted}, one way)"
    within = f"double binary tree of nodes, {counted} in each"
    return f"tree ({within if lanes.problem.topology.num_nodes > 1 else f'{counted} of ranks'})"
