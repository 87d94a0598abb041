"""Rail exchange: a bound on sums of nodes whose ranks have links to one rank of each other node (rails).

Nodes exchange contributions directly, or by two sends through a third node. In short schedules the second
path leaves little time for sends inside nodes. So each rank must send its own contribution away, or receive
the sum itself from another node. Each send between nodes has a weight by its times. A byte needs sends of a
given weight, and resources between nodes carry one byte after another. See docs/formulation.md, "Rail
exchange".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from taccl.analysis.certificates.certificate import Claim, OfResources
from taccl.analysis.certificates.evaluation.facts import Facts, lanes
from taccl.analysis.certificates.finding.needed_sends import NeededSends
from taccl.analysis.certificates.node_sums import least_filled


@dataclass(frozen=True, slots=True)
class RailExchange(OfResources):
    """Witness of rail exchange: resources that cover the links between nodes.

    - `resources`: The resources; a link is assigned to the first that it holds.
    """

    kind = proves = "rail exchange"
    preference = 15
    any_chunking = True
    resources: tuple[int, ...]

    def holds(self, facts: Facts, ticks: Fraction) -> bool:
        """True if no schedule of the problem finishes before `ticks`, evaluated exactly."""
        rails = _rails_of(facts)
        if rails is None or ticks > rails.longest:
            return False
        found, is_covered = lanes(facts, rails.links, self.resources)
        if not is_covered or not all(beta for _, beta, _ in found):
            return False
        weight = Fraction(0)
        for _, beta, wait in found:
            for span, rate in rails.rates.items():
                weight += rate * max(Fraction(0), ticks - wait - span) / beta
        return weight <= rails.needed


def rail_exchange_bounds(demand: NeededSends, *, in_network: bool) -> Iterator[Claim]:
    """Yield the rail-exchange bound for sums that have contributions of all ranks and are wanted by all."""
    if not demand.shared_units(in_network=in_network):
        return
    rails = _rails_of(Facts(demand.problem, divisible=True, in_network=False))
    passing = None if rails is None else demand.lanes(rails.links)
    if rails is None or not passing or not all(lane.beta for lane in passing.values()):
        return
    ticks = min(Fraction(rails.longest), least_filled(Counter(passing.values()), rails.rates, rails.needed))
    what = f"sums that {rails.nodes} nodes exchange over rails, directly or through a third node"
    yield Claim(ticks, what, RailExchange(tuple(passing)))


class _Rails(NamedTuple):
    """Nodes on rails, and weights of sends between them; all are multiplied by twice the ranks of a node.

    - `nodes`: Number of nodes.
    - `links`: Links between nodes.
    - `longest`: Longest horizon of the proof, in ticks.
    - `rates`: {ticks of a horizon in which a resource passes nothing: weight per tick from then on}.
    - `needed`: Weight of all sends of all units.
    """

    nodes: int
    links: list[int]
    longest: int
    rates: Counter[int]
    needed: int


def _rails_of(facts: Facts) -> _Rails | None:
    """The rails; None if there are none, or if the proof does not apply."""
    node, sizes = facts.topology.node_of_rank, Counter(facts.topology.node_of_rank)
    number, size = len(sizes), min(sizes.values())
    if not 2 <= number <= size or not facts.shared_units:
        return None
    inside, links = facts.links_by_place()
    if not links or not inside:
        return None
    near, far = min(facts.alpha[e] for e in inside), min(facts.alpha[e] for e in links)
    if not 0 < near <= far or not _are_on_rails(facts, links, node):
        return None
    # Early and late sends have the weight `number`. All others have twice the size, and the first and last of
    # two sends between nodes, with time for a send inside a node at both ends, `number` times the size.
    rates = Counter({0: number, 2 * near: 2 * size - number})
    rates[2 * near + far] += 2 * size * (number - 2)
    needed = 2 * size * number * (number - 1) * facts.shared_units
    return _Rails(number, links, min(3 * near + 2 * far, 3 * far), rates, needed)


def _are_on_rails(facts: Facts, links: Sequence[int], node: Sequence[int]) -> bool:
    """True if at most one rank of each node is near a rank of another node, in either direction.

    A rank is near another one if there is a link between nodes to it, or two such links through a third node.
    """

    def is_one_each(near: set[tuple[int, int]]) -> bool:
        there, back = {(a, node[b]) for a, b in near}, {(node[a], b) for a, b in near}
        return len(there) == len(back) == len(near)

    near = {(facts.src[e], facts.dst[e]) for e in links}
    if not is_one_each(near):  # so that fabrics with links between all ranks need no search for third nodes
        return False
    out: dict[int, list[int]] = {}
    for a, b in near:
        out.setdefault(a, []).append(b)
    through = ((a, b) for a, ends in out.items() for c in ends for b in out.get(c, ()))
    return is_one_each(near.union((a, b) for a, b in through if node[a] != node[b]))
