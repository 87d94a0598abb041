"""Stage 2, ordering: given a routing, who goes when on each resource, by a named rule.

Every rule is a priority for the list scheduler, which always starts the most urgent send that can start.
Source: the ordering heuristics of Shah et al., "TACCL", NSDI 2023, section 5.2, by name instead of number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from taccl.errors import InputError
from taccl.synthesis.milp.solutions import project
from taccl.synthesis.proposers.greedy import ListSchedule, Send, expand, list_schedule
from taccl.synthesis.symmetry.quotient import Hop, Quotient


def order(quotient: Quotient, rule: str = "longest-path-first") -> ListSchedule | None:
    """The schedule of a routing's hops under an ordering rule.

    - `quotient`: Restricted to the hops of a routing.
    - `rule`: One of `RULES`.

    Raises `InputError` if the rule is unknown.
    """
    if rule not in RULES:
        raise InputError(f"found {rule!r}; expected one of {', '.join(RULES)}", where="rule")
    remaining = _remaining(quotient)
    longest = max(remaining, default=0)
    priorities = [
        RULES[rule](quotient, hop, left, longest) for hop, left in zip(quotient.hops, remaining, strict=True)
    ]
    return list_schedule(quotient, priorities)


def best_order(
    quotient: Quotient, starts: Mapping[tuple[int, int], int] | None = None
) -> tuple[ListSchedule, str] | None:
    """The best schedule over all rules, and the rule that gave it; with `starts`, also in their order.

    - `starts` (mapping of (chunk, link) to ticks): When the routing model starts each send.
    """
    tried = [(order(quotient, rule), rule) for rule in RULES]
    if starts is not None:
        tried.append((_as_planned(quotient, starts), "as routed"))
    found = [(schedule, rule) for schedule, rule in tried if schedule is not None]
    return min(found, key=lambda each: each[0].finish_ticks, default=None)


def _as_planned(quotient: Quotient, starts: Mapping[tuple[int, int], int]) -> ListSchedule | None:
    """Each hop by itself, in order of these starts, exactly timed; None if the order contradicts itself."""
    sends = [
        Send(hop.link_orbit, (m,), start := starts[hop.chunk, hop.link], start + hop.duration)
        for m, hop in enumerate(quotient.hops)
    ]
    try:
        return project(quotient, expand(quotient, sends, producer="as routed"))
    except ValueError:
        return None


def _remaining(quotient: Quotient) -> list[int]:
    """Per hop, the longest path from its start to the last arrival that follows from it, in ticks.

    A multicast may lead back to where the chunk has been: nothing follows from that.
    """
    heights: dict[int, int] = {}
    under_way: set[int] = set()
    pending = list(range(len(quotient.hops)))
    while pending:
        m = pending[-1]
        after = {n for p in quotient.hops[m].dsts for n in quotient.states[p].hops_out}
        unknown = after - heights.keys() - under_way if m not in heights else ()
        if not unknown:
            longest = max((heights[n] for n in after if n in heights), default=0)
            heights[pending.pop()] = quotient.hops[m].duration + longest
        else:
            under_way.add(m)
        pending += unknown
    return [heights[m] for m in range(len(quotient.hops))]


#: Ordering rules by name: a hop's priority, from its remaining way and the longest of any.
RULES: dict[str, Callable[[Quotient, Hop, int, int], float]] = {
    "longest-path-first": lambda quotient, hop, remaining, longest: remaining,
    # Chunks that start at the sender first, then by remaining way.
    "own-chunk-first": lambda quotient, hop, remaining, longest: remaining + longest * hop.is_own,
    # First come, first served.
    "earliest-first": lambda quotient, hop, remaining, longest: -quotient.earliest_start(hop),
}
