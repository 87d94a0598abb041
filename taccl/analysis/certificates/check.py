"""Check of a certificate from its witness, by arithmetic on the problem and without a solver.

The checker shares three things with the code that found the bound. The first is the problem data: costs in
ticks, links, and `Problem.open_links`. The second is the time reversal of problems (`readings`). The third is
the dynamic program over batches (`machine_ticks`), which runs again on independently derived jobs.
docs/formulation.md, "Checking", explains why this is sound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from taccl.analysis.certificates.check_borders import batches, crosses, crosses_dynamic, gossips, latency
from taccl.analysis.certificates.check_byte_counting import bytes_left
from taccl.analysis.certificates.check_dissemination import disseminated
from taccl.analysis.certificates.check_facts import Facts
from taccl.analysis.certificates.check_pair_counting import pairs_left
from taccl.analysis.certificates.check_prices import cut_dual, flow_dual
from taccl.analysis.certificates.check_spread_tail import spreads_late
from taccl.analysis.certificates.readings import as_spreading, late_part, turned_round
from taccl.analysis.certificates.witnesses import (
    Border,
    ByteCounting,
    CutDual,
    Dissemination,
    DynamicCut,
    FlowDual,
    Gossip,
    Late,
    PairCounting,
    Path,
    SingleMachine,
    SpreadTail,
    Witness,
)

if TYPE_CHECKING:
    from taccl.analysis.certificates.certificate import Certificate
    from taccl.problem import Problem

#: Functions that return the ticks that a witness proves; other witnesses are checked against given ticks.
_PROVEN: dict[type[Witness], Callable[[Facts, Any], int | Fraction]] = {
    Path: latency,
    SpreadTail: spreads_late,
    Dissemination: disseminated,
    SingleMachine: batches,
    CutDual: cut_dual,
    FlowDual: flow_dual,
}


def check_certificate(certificate: Certificate) -> bool:
    """True if the witness proves the bound."""
    ticks = certificate.bound * certificate.problem.costs.ticks_per_us
    witness, divisible = certificate.witness, certificate.divisible
    if isinstance(witness, Late):
        part = late_part(certificate.problem, witness.moment_us)
        left = certificate.bound - witness.moment_us
        return (
            part is not None and replace(certificate, problem=part, bound=left, witness=witness.inner).check()
        )
    if certificate.problem.release_us:  # a bound without release dates holds with them, too
        return replace(certificate, problem=certificate.problem.without_moments()).check()
    if witness is None:
        return ticks <= 0
    says_enough = not divisible or isinstance(witness, ByteCounting | Path | CutDual | FlowDual)
    if not says_enough or not _is_of(certificate.problem, witness):
        return False
    reading = as_spreading(certificate.problem)
    is_turned = isinstance(witness, SpreadTail | DynamicCut) and witness.backwards
    problem = turned_round(reading) if is_turned else reading
    if problem is None:
        return False
    facts = Facts(problem, divisible=divisible, in_network=certificate.in_network)
    if isinstance(witness, Border):
        return crosses(facts, witness, ticks)
    if isinstance(witness, DynamicCut):
        return crosses_dynamic(facts, witness, ticks)
    if isinstance(witness, Gossip):
        return gossips(facts, witness.ranks, ticks)
    if isinstance(witness, PairCounting):
        return pairs_left(facts, witness, ticks)
    if isinstance(witness, ByteCounting):
        return bytes_left(facts, witness, ticks)
    proven = _PROVEN[type(witness)](facts, witness)
    # Whole chunks end at whole ticks.
    return ticks <= (proven if divisible else math.ceil(proven))


def _is_of(problem: Problem, witness: Witness) -> bool:
    """True if the witness names only ranks and resources of the problem, and prices every resource."""
    ranks = frozenset(range(problem.topology.num_ranks))
    num_resources = len(problem.topology.resources)
    match witness:
        case Path():
            return 0 <= witness.chunk < problem.collective.num_chunks and witness.destination in ranks
        case Border() | ByteCounting() | Gossip() | Dissemination() | PairCounting():
            return witness.ranks <= ranks
        case DynamicCut():
            return witness.target in ranks and len(witness.moments) == len(ranks)
        case SpreadTail():
            return frozenset().union(*witness.sets) <= ranks
        case SingleMachine():
            return 0 <= witness.resource < num_resources and witness.family in ("rank", "node")
        case CutDual():
            charged = all(each.parts and frozenset().union(*each.parts) <= ranks for each in witness.charges)
            return len(witness.prices) == num_resources and charged
        case FlowDual():
            return len(witness.prices) == num_resources
    return False
