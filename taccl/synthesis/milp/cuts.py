"""Cuts on routing from the critical path of a sequenced schedule: logic-based Benders decomposition.

Routing is the master problem, ordering and merging the subproblem. Hops of a critical path, and those that
bring their chunks, are sequenced by themselves. The bound that CP-SAT proves of them holds for every routing
that makes all of them. Sources: Hooker and Ottosson, "Logic-based Benders decomposition", Mathematical
Programming 96, 2003; Jain and Grossmann, "Algorithms for hybrid MILP/CP models for a class of optimization
problems", INFORMS Journal on Computing 13 (4), 2001.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from taccl.synthesis.milp import jobshop
from taccl.synthesis.milp.jobshop_model import ALL_BATCHES
from taccl.synthesis.milp.solutions import needed_entries
from taccl.synthesis.proposers.greedy import ListSchedule, Send
from taccl.synthesis.symmetry.quotient import Quotient


@dataclass(frozen=True, slots=True)
class Cut:
    """Proof that every schedule with all of these hops finishes at `ticks` or later."""

    hops: frozenset[int]
    ticks: int


def find_cut(
    quotient: Quotient, schedule: ListSchedule, *, upper_ticks: int, lower_ticks: int, **options: Any
) -> Cut | None:
    """The cut of a schedule: of its critical path, or else of all its hops; None if neither is proven.

    - `upper_ticks`: Finish of the incumbent: a cut that reaches it excludes the routing.
    - `lower_ticks`: Proven bound: a cut must exceed it.
    - `**options`: Those of `jobshop.solve`, with the time limit of each proof.
    """
    entries = needed_entries(quotient, schedule)
    every = frozenset(entries.values())
    for hops in dict.fromkeys((critical_hops(quotient, schedule, entries), every)):
        if not _is_relaxed_exactly(quotient, hops):
            continue
        answer = jobshop.solve(
            _alone(quotient, hops), optional=(), required=hops, upper_ticks=upper_ticks - 1,
            lower_ticks=min(lower_ticks, upper_ticks - 1), **options,
        )  # fmt: skip
        if answer.status == "infeasible":
            return Cut(hops, upper_ticks)
        if answer.bound_ticks is not None and answer.bound_ticks > lower_ticks:
            return Cut(hops, answer.bound_ticks)
    return None


def critical_hops(quotient: Quotient, schedule: ListSchedule, entries: dict[int, int]) -> frozenset[int]:
    """The hops of sends that each wait for the one before, up to the finish; and all that bring their chunks.

    - `entries`: {state: hop that brings its chunk}, of the states that are needed.
    """
    sends = {m: send for send in schedule.sends for m in send.hops}
    needed = set(entries.values())
    turns: dict[tuple[int, int], Send] = {}
    for send in schedule.sends:
        for resource, _, until in _holds(quotient, send):
            turns[resource, until] = send
    at = max((sends[m] for m in needed), key=lambda send: send.end_ticks, default=None)
    critical: set[int] = set()
    while at is not None and needed.intersection(at.hops) - critical:
        critical |= needed.intersection(at.hops)
        origins = (entries.get(p) for m in at.hops if m in needed for p in quotient.hops[m].srcs)
        before = [sends[m] for m in origins if m is not None and sends[m].end_ticks == at.start_ticks]
        begins = (hold[:2] for hold in _holds(quotient, at))
        before += [turns[begin] for begin in begins if begin in turns]
        at = next((send for send in before if send is not at), None)
    pending = list(critical)
    while pending:
        for p in quotient.hops[pending.pop()].srcs:
            m = entries.get(p)
            if m is not None and m not in critical and not quotient.states[p].is_origin:
                critical.add(m)
                pending.append(m)
    return frozenset(critical)


def _holds(quotient: Quotient, send: Send) -> list[tuple[int, int, int]]:
    """(resource, begin, until) of a send, in ticks."""
    units = sum(quotient.hops[m].units for m in send.hops)
    spans = []
    for held in quotient.holds[send.link]:
        length = held.alpha + units * held.beta
        begin = send.end_ticks - length if held.receives else send.start_ticks
        spans.append((held.resource, begin, begin + length))
    return spans


def _is_relaxed_exactly(quotient: Quotient, hops: Collection[int]) -> bool:
    """True if the job shop of the hops has every way to merge, and leaving others out delays none.

    A multicast may lead to a state that another hop enters sooner.
    """
    if any(len(quotient.hops[m].dsts) > 1 for m in hops):
        return False
    counts = Counter(quotient.hops[m].link_orbit for m in hops)
    merging = [link for link in counts if quotient.merging[link]]
    beta = quotient.problem.costs.link_beta
    return all(
        counts[link] <= ALL_BATCHES
        and all(held.beta == beta[quotient.link_rep[link]] for held in quotient.holds[link] if held.receives)
        for link in merging
    )


def _alone(quotient: Quotient, hops: Collection[int]) -> Quotient:
    """The quotient with each state that one of these hops enters as a destination, and no other."""
    entered: dict[int, bool] = defaultdict(bool)
    entered |= {p: True for m in hops for p in quotient.hops[m].dsts}
    states = (replace(state, is_destination=entered[p]) for p, state in enumerate(quotient.states))
    return replace(quotient, states=tuple(states))
