"""Conversions between solutions of the routing model, routings and schedules; hops that a schedule needs."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from taccl.schedule.schedule import Schedule
from taccl.synthesis.proposers.greedy import ListSchedule, Send
from taccl.synthesis.symmetry.quotient import Quotient

if TYPE_CHECKING:
    from taccl.synthesis.milp.routing import RoutingModel


def routing_of(routing: RoutingModel, values: NDArray[np.float64]) -> dict[tuple[int, int], int]:
    """{(chunk, link): start in ticks} of a solution, including all members of each hop's orbit."""
    quotient, per_us = routing.quotient, routing.per_us
    starts: dict[tuple[int, int], int] = {}
    for m, x in routing.made.items():
        if values[x] > 0.5:
            ends = [
                values[routing.arrival[p]] for p in quotient.hops[m].dsts if values[routing.taken[m, p]] > 0.5
            ]
            start = round(min(ends) * per_us) - quotient.hops[m].duration
            starts |= dict.fromkeys(quotient.members(m), start)
    return dict(sorted(starts.items()))


def routing_hint(routing: RoutingModel, schedule: ListSchedule) -> NDArray[np.float64] | None:
    """Values of the MILP's variables for a schedule on the same quotient, as a start for the solver.

    None if the MILP lacks one of the schedule's hops. Arrivals are those of unmerged sends, since local-first
    priority makes relayed chunks wait for these only, not for merged sends.
    """
    quotient, per_us, entries = routing.quotient, routing.per_us, needed_entries(routing.quotient, schedule)
    if not routing.made.keys() >= set(entries.values()):
        return None
    values = np.zeros(routing.model.num_variables)
    for p, s in routing.arrival.items():
        values[s] = min(quotient.states[p].head_ticks, schedule.finish_ticks) / per_us
    start_ticks = {m: send.start_ticks for send in reversed(schedule.sends) for m in send.hops}
    for p, m in entries.items():
        values[routing.made[m]] = 1.0
        values[routing.taken[m, p]] = 1.0
        values[routing.arrival[p]] = (start_ticks[m] + quotient.hops[m].duration) / per_us
    if quotient.hop_limit is not None:
        passed = list(quotient.hop_limit.least)
        for m in (m for send in schedule.sends for m in send.hops):
            for p in quotient.hops[m].dsts:
                if entries.get(p) == m:
                    passed[p] = quotient.hop_limit.after(m, quotient.hops[m], passed)
        for p, u in routing.passed.items():
            values[u] = passed[p]
    values[routing.finish] = schedule.finish_ticks / per_us
    made = {m: start for m, start in start_ticks.items() if m in routing.made and values[routing.made[m]]}
    for m, start in routing.start.items():
        values[start] = made.get(m, quotient.earliest_start(quotient.hops[m])) / per_us
    for used, users in routing.connections.items():
        values[used] = max(values[x] for x in users)
    for use, links in routing.uses.items():
        extreme = max if quotient.problem.clauses.link_use == "min-max" else min
        values[use] = extreme((sum(count * values[x] for count, x in terms) for terms in links), default=0)
    for link, messages in routing.messages.items():
        chunks = sum(routing.chunks_per_link(m) for m in made if quotient.hops[m].link_orbit == link)
        values[messages] = -(-chunks // quotient.problem.clauses.max_merge)
    for pair, first in routing.goes_first.items():
        if pair.first in made and pair.second in made:
            values[first] = made[pair.second] - made[pair.first] >= pair.gap
    return values


def project(quotient: Quotient, schedule: Schedule) -> ListSchedule:
    """Project a schedule with the quotient's symmetry to its sends on the quotient."""
    number = {(hop.chunk, hop.link): m for m, hop in enumerate(quotient.hops)}
    hops: dict[int, list[int]] = defaultdict(list)
    times: dict[int, tuple[int, int]] = {}
    for t in schedule:
        if (m := number.get((t.chunk, t.link))) is not None:
            hops[t.group].append(m)
            times[t.group] = t.start_ticks, t.end_ticks
    sends = (Send(quotient.hops[some[0]].link_orbit, tuple(some), *times[g]) for g, some in hops.items())
    return ListSchedule(tuple(sends), schedule.finish_ticks)


def needed_hops(quotient: Quotient, schedule: ListSchedule) -> set[int]:
    """Hops of a schedule on which some destination depends."""
    return set(needed_entries(quotient, schedule).values())


def needed_entries(quotient: Quotient, schedule: ListSchedule) -> dict[int, int]:
    """{state (chunk at a rank): first hop that brings it}, for states on which some destination depends."""
    first = {p: m for send in reversed(schedule.sends) for m in send.hops for p in quotient.hops[m].dsts}
    needed: dict[int, int] = {}
    pending = [p for p, state in enumerate(quotient.states) if state.is_destination]
    while pending:
        p = pending.pop()
        if p in first and p not in needed:
            needed[p] = first[p]
            pending.extend(quotient.hops[first[p]].srcs)
    return needed
