"""A synthesis result in three sentences: what limits it, what would help, and how certain that is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taccl._internal.units import format_gap, format_us
from taccl.analysis.certificates.scopes import under_sketch
from taccl.analysis.simulation.simulate import simulate
from taccl.errors import InputError
from taccl.synthesis.stopping import remedy_after

if TYPE_CHECKING:
    from taccl.schedule.schedule import Schedule
    from taccl.synthesis.result import Result

#: Max transfers of a schedule whose critical path is replayed (about 2 s).
_MOST_TRANSFERS = 100_000
#: Min share of latency in the critical path for which latency counts as dominant.
_MOSTLY = 0.5


def explained(result: Result) -> str:
    """Three sentences, one per line: what limits the result, what would help, and how certain that is."""
    return "\n".join((_limit(result), _help(result), _certainty(result)))


def _limit(result: Result) -> str:
    bound = result.bound
    if not bound.bound:
        return "Limit: no lower bound is proven."
    scope = f"{'over' if bound.divisible else 'for'} {bound.scope}{under_sketch(bound.problem)}"
    return f"Limit: no schedule finishes before {format_us(bound.bound)} {scope}, limited by {bound.limits}."


def _help(result: Result) -> str:
    bound = result.bound
    of = ("" if bound.divisible else f" for {bound.scope}") + under_sketch(bound.problem)
    if not bound.bound:
        gain = "without a bound, the possible gain of another schedule is unknown"
    elif result.gap:
        most = 1 - result.bound_us / result.finish_us
        how = remedy_after(result.stopped)
        gain = f"another schedule{of} gains {most:.1%} at most, and {how}"
    else:
        gain = f"no other schedule{of} finishes sooner"
    where = _critical(result.schedule)
    return f"Help: {gain}{'; ' if where else ''}{where}."


def _critical(schedule: Schedule) -> str:
    """Text that names the larger part of the critical path (latency or data), and what would shorten it."""
    if not 0 < schedule.num_transfers <= _MOST_TRANSFERS:
        return ""
    try:
        found = simulate(schedule)
        path = found.critical_path
    except InputError:  # a summary without transfers, or an order that cannot be replayed
        return ""
    links, finish_us = schedule.problem.topology.links, float(found.finish)
    if not path or not finish_us:
        return ""
    starts = [*(send.start_us for send in path[1:]), finish_us]
    # If the next send starts before this one ends, only the time until the next start counts.
    latency_us = sum(
        min(float(links[send.link].alpha_us), until_us - send.start_us)
        for send, until_us in zip(path, starts, strict=True)
    )
    share = latency_us / finish_us
    if share >= _MOSTLY:
        return f"{share:.0%} of the critical path is latency, so fewer or faster steps help most"
    busiest = found.resources[0]
    busy = f"{busiest.name} (busy {busiest.utilisation:.0%})"
    return f"{1 - share:.0%} of the critical path is data, so bandwidth helps most, first of {busy}"


def _certainty(result: Result) -> str:
    bound = result.bound
    if not bound.bound:
        proof = "the schedule is verified, but its distance from the optimum is unknown"
    elif result.standing:
        proof = f"the schedule is verified, and {result.standing} (gap {format_gap(result.gap)})"
    else:
        scope = f"{'over' if bound.divisible else 'for'} {bound.scope}{under_sketch(bound.problem)}"
        proof = f"the schedule is verified, and its gap {scope} is {format_gap(result.gap)}"
    proviso = result.schedule.problem.topology.proviso
    return f"Certainty: {proof}; {proviso or 'times hold as far as the costs of the topology do'}."
