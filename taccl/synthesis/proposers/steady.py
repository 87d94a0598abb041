"""Schedules without idle gaps, for large messages that are cut into tiles.

Each tile repeats the schedule. Without gaps, tiles follow one another at the rate of the busiest resource.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taccl.synthesis.kernels.limits import Limits, Sends
from taccl.synthesis.proposers.queues import send_at_earliest, send_once, slots_of

if TYPE_CHECKING:
    from taccl.synthesis.kernels.fabric import Demand, Fabric, Floats, Ints
    from taccl.synthesis.proposers.router import Routes


#: `_STEADY_WEIGHTS`: weights to try for due dates in the priority of waiting chunks; the time of a chunk's
#: remaining route has weight 1.
#: `_MOST_DELAYS`: max rounds that delay the first starts on resources with idle gaps.
_STEADY_WEIGHTS, _MOST_DELAYS = (0.2, 0.35), 12


def send_without_gaps(
    fabric: Fabric, demand: Demand, routes: Routes, turn: Floats, limits: Limits = Limits()
) -> Sends | None:
    """Best schedule in which no resource's span, from first to last use, exceeds the busiest one's busy time.

    The tiles of a large message can then follow one another at the rate of the busiest resource. Resources
    that idle between sends begin later. None if no such schedule is found.
    """
    found = (_gapless(fabric, demand, routes, each * turn, limits) for each in _STEADY_WEIGHTS)
    return min(filter(None, found), key=lambda sends: sends.finish_ticks, default=None)


def _gapless(fabric: Fabric, demand: Demand, routes: Routes, turn: Floats, limits: Limits) -> Sends | None:
    """Schedule without idle gaps (see `send_without_gaps`); None if none is found in `_MOST_DELAYS` rounds.

    - `turn`, (num_chunks,): The `turn` of `send_in_turn`, multiplied by one of `_STEADY_WEIGHTS`.
    """
    begins, due = np.zeros(fabric.num_slots, np.int64), routes.peak_ticks * turn
    for _ in range(_MOST_DELAYS):
        found = send_once(fabric, demand, routes, 2**62, limits, rule="travel time", due=due, begins=begins)
        if found is None:
            break
        late = _late_begins(fabric, int(demand.units[0]), found)
        if late is None:
            return send_at_earliest(fabric, demand, routes, found)
        begins = np.maximum(begins, late)
    return None


def _late_begins(fabric: Fabric, size: int, found: Sends) -> Ints | None:
    """(num_slots,) earliest starts on links, in ticks, delayed to remove idle time; None if there is none.

    A link or resource has idle time if the span from its first to its last use exceeds the busy time of the
    busiest one. Its uses then start later by the difference.

    - `size`: Size of every chunk.
    """
    num_slots, slot = fabric.num_slots, slots_of(fabric, found)
    count, start = np.bincount(slot, minlength=num_slots), found.start.astype(np.int64)
    first, last = np.full(num_slots, 2**62), np.full(num_slots, -(2**62))
    np.minimum.at(first, slot, start)
    np.maximum.at(last, slot, start)
    own, took = fabric.own_alpha + size * fabric.own_beta, fabric.alpha + size * fabric.beta
    user = np.repeat(np.arange(num_slots), np.diff(fabric.hold_of))
    held = fabric.hold_alpha + size * fabric.hold_beta
    lead = np.where(fabric.hold_receives, took[user] - held, 0)
    # Busy ticks of all links, followed by those of all shared resources.
    load = np.concatenate((count * own, np.zeros(fabric.num_resources, np.int64)))
    begin = np.concatenate((first, np.full(fabric.num_resources, 2**62)))
    end = np.concatenate((last + own, np.full(fabric.num_resources, -(2**62))))
    resource = num_slots + fabric.hold_resource
    np.add.at(load, resource, count[user] * held)
    np.minimum.at(begin, resource, first[user] + lead)
    np.maximum.at(end, resource, last[user] + lead + held)
    over = np.where(load > 0, end - begin - load.max(), 0)
    if (over <= 0).all():
        return None
    begin = np.where(over > 0, begin + over, 0)
    late = begin[:num_slots].copy()
    np.maximum.at(late, user, begin[resource] - np.where(over[resource] > 0, lead, 0))
    return late
