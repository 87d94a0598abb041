"""Priorities of sends along given paths, by the load of the resources that they occupy.

Two static rules complement each other: latest starts of a relaxed backward schedule, and an even distribution
of chunks over the busy time of the most loaded resource of their path. Both feed a bottleneck from the
beginning, which rules by travel time alone do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taccl.synthesis.proposers.router import holds_of

if TYPE_CHECKING:
    from taccl.synthesis.kernels.fabric import Fabric, Floats, Ints
    from taccl.synthesis.proposers.router import Routes

#: Rounds of the backward schedule; with more, the due dates of different resources contradict each other.
_ROUNDS = 2


def latest_starts(fabric: Fabric, units: Ints, routes: Routes, jitter: Floats) -> Floats:
    """(num_hops,) latest start of each hop in ticks, if the busiest resource is never idle.

    Each resource in turn is scheduled backward from the peak load by due dates, as if the others were free (a
    relaxed Schrage schedule, reversed). The due date of a hop is the latest start of the next hop of its
    path.

    - `jitter`, (num_hops,): Ticks that break ties.
    """
    hop, resource, ticks = holds_of(fabric, units, routes)
    chunk, peak = routes.chunk, float(routes.peak_ticks)
    took = fabric.alpha[routes.slot] + units[chunk] * fabric.beta[routes.slot]
    goes_on = np.append(chunk[1:] == chunk[:-1], False)
    start = np.full(len(chunk), peak) - took
    for turn in range(_ROUNDS + 1):
        for _ in range(int(np.diff(routes.hop_of).max(initial=1)) - 1):
            start[:-1] = np.where(goes_on[:-1], np.minimum(start[:-1], start[1:] - took[:-1]), start[:-1])
        if turn == _ROUNDS:
            break
        order = np.lexsort(((start + took + jitter)[hop], resource))
        on, held = hop[order], ticks[order]
        ends = np.cumsum(held)
        # An occupation can be delayed by the least slack among itself and all later ones of its resource.
        slack = start[on] + held - ends
        place = np.cumsum(np.append(0, np.diff(resource[order]) != 0))
        offset = place * (np.ptp(slack) + 1.0)
        least = np.minimum.accumulate((slack + offset)[::-1])[::-1] - offset
        np.minimum.at(start, on, least + ends - held)
    return start + jitter


def spread_starts(fabric: Fabric, units: Ints, routes: Routes, jitter: Floats) -> Floats:
    """(num_hops,) ticks at which the chunk of each hop would start on the most loaded resource of its path.

    The chunks of a resource are in random order, spread evenly over its busy time up to the peak.
    """
    hop, resource, ticks = holds_of(fabric, units, routes)
    load, chunk = np.bincount(resource, ticks), routes.chunk[hop]
    order = np.lexsort((load[resource], chunk))
    # For each chunk with hops, its occupation of the most loaded resource of its path.
    critical = order[np.append(chunk[order][1:] != chunk[order][:-1], True)]
    on, held = resource[critical], ticks[critical]
    order = np.lexsort((jitter[hop[critical]], on))
    ends = np.cumsum(held[order])
    is_first = np.append(True, np.diff(on[order]) != 0)
    done = ends - held[order] - np.maximum.accumulate(np.where(is_first, ends - held[order], 0))
    whole = load[on[order]]
    start = np.zeros(len(units))
    part = done / np.bincount(on, held)[on[order]]
    start[chunk[critical][order]] = routes.peak_ticks - whole + part * whole
    found: Floats = start[routes.chunk]
    return found
