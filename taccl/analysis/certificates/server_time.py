"""Server time: a bound on sums that servers update, by the sends into and out of a server.

In a short schedule, either all contributions to a byte come to its server directly, or all copies of the
updated byte leave it directly: there is no time for two sends before the update and two after it. So many
sends with that byte enter the server before the update, or leave it afterwards. See docs/formulation.md,
"Server time".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from taccl.analysis.certificates.certificate import Claim, Witness
from taccl.analysis.certificates.evaluation.facts import Facts, lanes
from taccl.analysis.certificates.finding.needed_sends import NeededSends
from taccl.problem.problem import Problem


@dataclass(frozen=True, slots=True)
class ServerTime(Witness):
    """Witness of server time: a server, resources, and the weight of sends into it.

    - `entering`, `leaving`: Resources that cover the links into the server, and out of it. A link is assigned
      to the first of them that it holds.
    - `weight`: Weight of the time of sends into the server; that of sends out of it is 1 less this.
    """

    kind = proves = "server time"
    preference = 18
    any_chunking = True
    server: int
    entering: tuple[int, ...]
    leaving: tuple[int, ...]
    weight: Fraction

    def fits(self, problem: Problem) -> bool:
        """True if the problem has the rank and the resources, named once each, and the weight is a share."""
        num_resources, named = len(problem.topology.resources), (self.entering, self.leaving)
        are_known = all(len({*some}) == len(some) and {*some} <= {*range(num_resources)} for some in named)
        return are_known and 0 <= self.server < problem.topology.num_ranks and 0 <= self.weight <= 1

    def holds(self, facts: Facts, ticks: Fraction) -> bool:
        """True if no schedule of the problem finishes before `ticks`, evaluated exactly."""
        return ticks <= _least_ticks(facts, self)


def server_time_bounds(demand: NeededSends, *, in_network: bool) -> Iterator[Claim]:
    """Yield the highest server-time bound over all servers."""
    problem = demand.problem
    if in_network or not demand.single_ended or not problem.collective.updates:
        return
    facts, best, of_best = Facts(problem, divisible=True, in_network=False), Fraction(0), None
    for server in sorted({chunk.root for chunk in problem.collective.chunks if chunk.root is not None}):
        demand.deadline.check()
        entering, leaving = (
            tuple(demand.lanes([e for e in facts.allowed if ends[e] == server]))
            for ends in (facts.dst, facts.src)
        )
        for weight in _weights(facts, ServerTime(server, entering, leaving, Fraction(1))):
            found = ServerTime(server, entering, leaving, weight)
            ticks = _least_ticks(facts, found)
            if ticks > best:
                best, of_best = ticks, found
    if of_best is not None:
        yield Claim(best, f"contributions into server {of_best.server} and updated sums out of it", of_best)


def _weights(facts: Facts, of: ServerTime) -> Iterator[Fraction]:
    """Weights at which it costs as much if all contributions to a byte come directly as if all copies do."""
    into, out = (_side(facts, of, entering=entering) for entering in (True, False))
    yield Fraction(1, 2)
    if into is None or out is None:
        return
    for pushes, pulls, _, _ in _needed(facts, of.server):
        rises, falls = (pushes - 1) * into[1], (pulls - 1) * out[1]
        if rises + falls:
            yield falls / (rises + falls)


def _side(facts: Facts, of: ServerTime, *, entering: bool) -> tuple[int, Fraction] | None:
    """(ticks before or after all holds by sends into the server or out of it, least ticks per unit of all).

    These ticks are those of a send on the other side of the server, and those in which no resource passes
    bytes. None if the resources do not cover the links, or pass bytes in no time.
    """
    near, far = (facts.dst, facts.src) if entering else (facts.src, facts.dst)
    links, others = ([e for e in facts.allowed if ends[e] == of.server] for ends in (near, far))
    found, are_covered = lanes(facts, links, of.entering if entering else of.leaving)
    if not (are_covered and found and others) or any(beta <= 0 for _, beta, _ in found):
        return None
    passed = min(alpha + wait for alpha, _, wait in found)
    rate = sum((Fraction(1, beta) for _, beta, _ in found), Fraction(0))
    return min(facts.alpha[e] for e in others) + passed, 1 / rate


def _needed(facts: Facts, server: int) -> Counter[tuple[int, int, bool, bool]]:
    """{(contributors, ranks that pull, are all contributors near, are all these ranks near): units}.

    The server itself does not count. A rank is near if a link joins it and the server.
    """
    found = Counter[tuple[int, int, bool, bool]]()
    before, after = (
        {other[e] for e in facts.allowed if ends[e] == server}
        for ends, other in ((facts.dst, facts.src), (facts.src, facts.dst))
    )
    for chunk, units in zip(facts.collective.chunks, facts.units, strict=True):
        pushes, pulls = {*chunk.origins} - {server}, {*chunk.destinations} - {server}
        if chunk.root == server and pushes and pulls:
            found[len(pushes), len(pulls), pushes <= before, pulls <= after] += units
    return found


def _relayed(facts: Facts, server: int) -> int | None:
    """Least ticks of two sends in a row to the server, and of two from it, by alphas; None if none exist."""
    ticks = 0
    for tail, head in ((facts.src, facts.dst), (facts.dst, facts.src)):
        near: dict[int, int] = {}
        for e in facts.allowed:
            if head[e] == server:
                near[tail[e]] = min(facts.alpha[e], near.get(tail[e], facts.alpha[e]))
        pairs = [
            facts.alpha[e] + near[head[e]] for e in facts.allowed if head[e] in near and tail[e] != server
        ]
        if not pairs:
            return None
        ticks += min(pairs)
    return ticks


def _least_ticks(facts: Facts, of: ServerTime) -> Fraction:
    """Ticks before which no schedule ends; 0 if nothing is proven."""
    if not facts.collective.updates or facts.multi or facts.in_network or facts.only_switches_add:
        return Fraction(0)
    needed = _needed(facts, of.server)
    into, out = (_side(facts, of, entering=entering) for entering in (True, False))
    if not needed or into is None or out is None:
        return Fraction(0)
    total = of.weight * into[0] + (1 - of.weight) * out[0]
    relayed = _relayed(facts, of.server)
    for (pushes, pulls, are_before, are_after), units in needed.items():
        ways = [*([(pushes, 1)] if are_before else []), *([(1, pulls)] if are_after else [])]
        if not ways:  # only with two sends before the update and two after it
            return Fraction(relayed or 0)
        total += units * min(of.weight * a * into[1] + (1 - of.weight) * b * out[1] for a, b in ways)
    return total if relayed is None else min(total, Fraction(relayed))
