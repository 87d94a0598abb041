"""Checks of dissemination: earliest times at which one rank can hold data of several, send by send."""

# m ranks whose data is in a send

from __future__ import annotations

from collections import defaultdict

from taccl.analysis.certificates.check_facts import NEVER, Facts
from taccl.analysis.certificates.check_gates import GatePassage, passages_of, strongest
from taccl.analysis.certificates.witnesses import Dissemination

#: Earliest times at which senders can hold data of 0, 1, ... ranks; None stands for the entered ranks' times.
Known = list[int] | None


def disseminated(facts: Facts, witness: Dissemination) -> int:
    """Earliest time at which a rank of the set can hold all its wanted outside data; 0 proves nothing."""
    if not facts.spreads_alike or facts.sums or facts.divisible:
        return 0
    wanted: dict[int, set[int]] = defaultdict(set)
    for data in facts.collective.chunks:
        if len(data.origins) == 1:
            for rank in data.destinations:
                wanted[rank].update(data.origins)
    number = max((len(wanted[rank] - witness.ranks) for rank in witness.ranks), default=0)
    entering = [e for e in facts.allowed if facts.dst[e] in witness.ranks]
    border, inside, every = (
        strongest(passages_of(facts, links, facts.dst).values())
        for links in (
            [e for e in entering if facts.src[e] not in witness.ranks],
            [e for e in entering if facts.src[e] in witness.ranks],
            facts.allowed,
        )
    )
    anywhere = _learnt([(way, None) for way in every], [0, 0], number)
    ways: list[tuple[GatePassage, Known]] = [(way, anywhere) for way in border]
    return _learnt([*ways, *((way, None) for way in inside)], [0], number)[number]


def _learnt(ways: list[tuple[GatePassage, Known]], had: list[int], number: int) -> list[int]:
    """Earliest times at which a rank that is entered in these ways can hold data of 0, 1, ... ranks.

    - `had`: First times of the result, which are known.
    """
    when = list(had)
    passed = [[0] for _ in ways]  # when each way is free after bringing that much
    came: list[list[int]] = [[] for _ in ways]  # arrivals, by number of ranks

    def best(place: int, m_in_all: int) -> tuple[int, int]:
        way, known = ways[place]
        senders = when if known is None else known
        found = [(NEVER, NEVER)]
        for m in range(1, min(way.most, m_in_all, len(senders) - 1) + 1):
            begin = max(senders[m] + way.before, passed[place][m_in_all - m])
            found.append((begin + way.alpha + m * way.beta, begin + way.after[m - 1]))
        return min(left for left, _ in found), min(over for _, over in found)

    for i in range(1, number + 1):
        for place in range(len(ways)):
            left, over = best(place, i)
            passed[place].append(left)
            came[place].append(over)
        when.append(sorted(over for some in came for over in some)[i - 1])
        for place, (_, known) in enumerate(ways):
            if known is None:  # some rank holds that much now, and may send it on
                passed[place][i], came[place][i - 1] = best(place, i)
    return when
