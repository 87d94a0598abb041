"""Longest paths in a precedence graph of events, level by level.

A level has the events whose predecessors are all in earlier levels. Events that wait for each other, such as
two ranks that exchange partial sums, share a component, which is part of one level.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arrays import Flags, Ints, distinct, lexsort, ranges
from taccl._internal.graph_algorithms import strong_components

#: Times as int64, or as Python integers if they need more than 64 bits.
Ticks = NDArray[Any]


class _Batch(NamedTuple):
    """Waits of some events, sorted by event.

    - `wait`, `source`, (num_rows,): Number of each wait, and the event that is waited for.
    - `event`, `first`, `rows`, (num_targets,): Events that wait; first row and number of rows of each.
    - `rounds`: Max rounds of relaxation until the times settle, if there are no cycles of positive length.
    """

    wait: Ints
    source: Ints
    event: Ints
    first: Ints
    rows: Ints
    rounds: int

    def relax(self, since: Ticks, start: Ticks, gap: Ticks, binding: Ints) -> Ints:
        """Postpone events until their waits are over; return the events that moved.

        - `since`: Starts of the events that are waited for.
        """
        over = since[self.source] + gap[self.wait]
        latest = np.maximum.reduceat(over, self.first)
        moves = latest > start[self.event]
        event = self.event[moves]
        if len(event):
            last = np.flatnonzero(over == np.repeat(latest, self.rows))
            start[event] = latest[moves]
            binding[event] = self.wait[last[np.searchsorted(last, self.first[moves])]]
        return event


class Levels:
    """Events of a precedence graph in topological order.

    - `source`, `target`, (num_waits,): `target` waits for `source`.
    - `is_across`, (num_waits,): True for waits for an event of the previous tile.
    """

    def __init__(self, num_events: int, source: Ints, target: Ints, is_across: Flags) -> None:
        inside = np.flatnonzero(~is_across)
        level, self.component = _levels(num_events, source[inside], target[inside])
        size = np.bincount(self.component, minlength=1)[self.component]
        largest = np.ones(int(level.max(initial=-1)) + 1, np.int64)
        np.maximum.at(largest, level, size)
        # A component of n events settles within n rounds.
        rounds = np.where(largest > 1, largest + 1, 1).tolist()
        order = inside[lexsort((target[inside], level[target[inside]]))]
        self._levels = _batches(order, source, target, level, rounds)
        across = np.flatnonzero(is_across)
        across = across[lexsort((target[across],))]
        self._across = _batches(across, source, target, np.zeros(num_events, np.int64), [1])

    def earliest(self, gap: Ticks) -> Ints:
        """(num_events,) earliest start of each event, from 0, without waits across tiles.

        - `gap`, (num_waits,): Min ticks from the source's start to the target's start.

        Raises `ValueError` if events wait for each other in a cycle of positive length.
        """
        gap, num_events = in_enough_bits(gap), len(self.component)
        start, binding = np.zeros(num_events, gap.dtype), np.zeros(num_events, np.int64)
        if len(self.postpone(start, gap, binding)[1]):
            raise ValueError("the order of sends is cyclic: some wait for each other")
        return start.astype(np.int64)

    def postpone(
        self, start: Ticks, gap: Ticks, binding: Ints, before: Ticks | None = None
    ) -> tuple[bool, Ints]:
        """Postpone all events until their waits are over: (True if some moved, events that never settle).

        - `start`, `binding`, (num_events,): Start of each event, and the wait that ends last; updated in
          place.
        - `gap`, (num_waits,): Min ticks from the source's start to the target's start.
        - `before`, (num_events,): Starts of the previous tile; None ignores waits for it.
        """
        moved = False
        endless = np.zeros(0, np.int64)
        for batch in self._across:
            if before is not None:
                moved = len(batch.relax(before, start, gap, binding)) > 0
        for batch in self._levels:
            for _ in range(batch.rounds):
                late = batch.relax(start, start, gap, binding)
                if not len(late):
                    break
                moved = True
            else:
                endless = late if batch.rounds > 1 and not len(endless) else endless
        return moved, endless


def _batches(wait: Ints, source: Ints, target: Ints, level: Ints, rounds: list[int]) -> list[_Batch]:
    """Batches of waits that are sorted by the level of the target, and then by target."""
    first = np.flatnonzero(np.diff(target[wait], prepend=-1))
    sources, event, rows = source[wait], target[wait][first], np.diff(first, append=len(wait))
    ends = np.searchsorted(level[event], np.arange(len(rounds)), side="right").tolist()
    begins = np.append(first, len(wait)).tolist()
    found = []
    for low, high, most in zip([0, *ends], ends, rounds, strict=False):
        a, b = begins[low], begins[high]
        if low < high:
            of = slice(low, high)
            found.append(_Batch(wait[a:b], sources[a:b], event[of], first[of] - a, rows[of], most))
    return found


def _levels(num_events: int, source: Ints, target: Ints) -> tuple[Ints, Ints]:
    """(level, component) of each event."""
    every = np.arange(num_events)
    level = _acyclic_levels(num_events, source, target)
    if level is not None:
        return level, every
    component = strong_components(num_events, source, target)
    level = _acyclic_levels(int(component.max()) + 1, component[source], component[target])
    assert level is not None, "components have no cycles"
    return level[component], component


def _acyclic_levels(num_nodes: int, source: Ints, target: Ints) -> Ints | None:
    """(num_nodes,) most arcs on a path to each node; None if there is a cycle of several nodes."""
    differ = source != target
    source, target = source[differ], target[differ]
    order, waiting = lexsort((source,)), np.bincount(target, minlength=num_nodes)
    first, target = np.searchsorted(source[order], np.arange(num_nodes + 1)), target[order]
    level, depth = np.full(num_nodes, -1), 0
    ready = np.flatnonzero(waiting == 0)
    while len(ready):
        level[ready] = depth
        depth += 1
        later = target[ranges(first[ready], first[ready + 1])[1]]
        np.subtract.at(waiting, later, 1)
        ready = distinct(later[waiting[later] == 0])
    return None if (level < 0).any() else level


def in_enough_bits(ticks: Ticks, num_times: int = 1) -> Ticks:
    """The ticks as int64, or as Python integers if a sum of them all, `num_times` over, may be too large."""
    most = float(np.abs(ticks.astype(np.float64)).sum()) * num_times
    return ticks.astype(np.int64 if most < 2**62 else object)
