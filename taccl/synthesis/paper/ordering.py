"""Stage 2, ordering: given a routing, who goes when on each resource, by a named rule.

Every rule is a priority for the list scheduler, which always starts the most urgent send that can start.
Source: the ordering heuristics of Shah et al., "TACCL", NSDI 2023, section 5.2, by name instead of number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from taccl.errors import InputError
from taccl.synthesis.greedy import ListSchedule, Send, list_schedule, unfold
from taccl.synthesis.paper.orbits import Move, Orbits
from taccl.synthesis.paper.routing import refold


def order(orbits: Orbits, rule: str = "longest-path-first") -> ListSchedule | None:
    """The schedule of a routing's moves under an ordering rule.

    - `orbits`: Restricted to the moves of a routing.
    - `rule`: One of `RULES`.

    Raises `InputError` if the rule is unknown.
    """
    if rule not in RULES:
        raise InputError(f"found {rule!r}; expected one of {', '.join(RULES)}", where="rule")
    remaining = _remaining(orbits)
    longest = max(remaining, default=0)
    priorities = [
        RULES[rule](orbits, move, left, longest) for move, left in zip(orbits.moves, remaining, strict=True)
    ]
    return list_schedule(orbits, priorities)


def best_order(
    orbits: Orbits, starts: Mapping[tuple[int, int], int] | None = None
) -> tuple[ListSchedule, str] | None:
    """The best schedule over all rules, and the rule that gave it; with `starts`, also in their order.

    - `starts` (mapping of (chunk, link) to ticks): When the routing model starts each send.
    """
    tried = [(order(orbits, rule), rule) for rule in RULES]
    if starts is not None:
        tried.append((_as_planned(orbits, starts), "as routed"))
    found = [(schedule, rule) for schedule, rule in tried if schedule is not None]
    return min(found, key=lambda each: each[0].finish_ticks, default=None)


def _as_planned(orbits: Orbits, starts: Mapping[tuple[int, int], int]) -> ListSchedule | None:
    """Each move by itself, in order of these starts, exactly timed; None if the order contradicts itself."""
    sends = [
        Send(move.link_orbit, (m,), start := starts[move.chunk, move.link], start + move.duration)
        for m, move in enumerate(orbits.moves)
    ]
    try:
        return refold(orbits, unfold(orbits, sends, producer="as routed"))
    except ValueError:
        return None


def _remaining(orbits: Orbits) -> list[int]:
    """Per move, the longest way from its start to the last arrival that follows from it, in ticks."""
    heights: dict[int, int] = {}
    pending = list(range(len(orbits.moves)))
    while pending:
        m = pending[-1]
        after = {n for p in orbits.moves[m].dsts for n in orbits.places[p].moves_out}
        unknown = after - heights.keys() if m not in heights else ()
        if not unknown:
            longest = max((heights[n] for n in after), default=0)
            heights[pending.pop()] = orbits.moves[m].duration + longest
        pending += unknown
    return [heights[m] for m in range(len(orbits.moves))]


def _is_of_node(orbits: Orbits, move: Move) -> bool:
    """Whether a chunk starts in the sender's node."""
    topology, origins = orbits.problem.topology, orbits.problem.collective.chunks[move.chunk].origins
    return topology.node_of_rank[topology.links[move.link].src] in {topology.node_of_rank[o] for o in origins}


#: Ordering rules by name: a move's priority, from its remaining way and the longest of any.
RULES: dict[str, Callable[[Orbits, Move, int, int], float]] = {
    "longest-path-first": lambda orbits, move, remaining, longest: remaining,
    # Chunks that start at the sender first, or in its node, then by remaining way.
    "own-chunk-first": lambda orbits, move, remaining, longest: remaining + longest * move.is_own,
    "own-node-first": lambda orbits, move, remaining, longest: (
        remaining + longest * _is_of_node(orbits, move)
    ),
    # First come, first served.
    "earliest-first": lambda orbits, move, remaining, longest: -orbits.earliest_start(move),
    # As if scheduled backward from the last hops: by remaining way, ties by the latest to come.
    "backward-from-last-hop": lambda orbits, move, remaining, longest: (
        remaining + 1e-3 * orbits.earliest_start(move)
    ),
}
