"""Re-checks a certificate from its witness: plain arithmetic on the problem, none of what found the bound."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taccl.analysis.certificates.certificate import (
    Border,
    CutDual,
    DelayedSource,
    NestedCuts,
    Path,
    SingleMachine,
    SpreadTail,
)
from taccl.analysis.certificates.check_borders import batches, crosses, latency, nested_cuts
from taccl.analysis.certificates.check_delayed_source import source_delayed
from taccl.analysis.certificates.check_facts import Facts
from taccl.analysis.certificates.check_prices import cut_dual, flow_dual
from taccl.analysis.certificates.check_spread_tail import spreads_late
from taccl.analysis.certificates.needed_sends import as_spreading

if TYPE_CHECKING:
    from taccl.analysis.certificates.certificate import Certificate, Witness
    from taccl.problem import Problem

__all__ = ["check_certificate"]


def check_certificate(certificate: Certificate) -> bool:
    """Whether the witness proves the bound."""
    facts = Facts(as_spreading(certificate.problem), divisible=certificate.divisible)
    ticks = certificate.bound * certificate.problem.costs.ticks_per_us
    witness = certificate.witness
    if witness is None:
        return ticks <= 0
    if not _is_of(certificate.problem, witness):
        return False
    if isinstance(witness, Path):
        return ticks <= latency(facts, witness)
    if isinstance(witness, Border):
        return not certificate.divisible and crosses(facts, witness, ticks, in_network=certificate.in_network)
    if isinstance(witness, NestedCuts):
        return not certificate.divisible and ticks <= nested_cuts(facts, witness)
    if isinstance(witness, DelayedSource):
        return not certificate.divisible and source_delayed(
            facts, witness, ticks, in_network=certificate.in_network
        )
    if isinstance(witness, SpreadTail):
        return not certificate.divisible and ticks <= spreads_late(
            facts, witness, in_network=certificate.in_network
        )
    if isinstance(witness, SingleMachine):
        return not certificate.divisible and ticks <= batches(facts, witness)
    if isinstance(witness, CutDual):
        proven = cut_dual(facts, witness, in_network=certificate.in_network)
    else:
        proven = flow_dual(facts, witness)
    # Whole chunks end in whole ticks.
    return ticks <= (proven if certificate.divisible else -(-proven.numerator // proven.denominator))


def _is_of(problem: Problem, witness: Witness) -> bool:
    """Whether the witness names only what the problem has, and prices every resource."""
    ranks = frozenset(range(problem.topology.num_ranks))
    num_resources = len(problem.topology.resources)
    if isinstance(witness, Path):
        return 0 <= witness.chunk < problem.collective.num_chunks and witness.destination in ranks
    if isinstance(witness, Border):
        return witness.ranks <= ranks
    if isinstance(witness, NestedCuts):
        return bool(witness.inner) and witness.inner <= witness.outer <= ranks
    if isinstance(witness, DelayedSource):
        named = frozenset[int]().union(*witness.sets)
        disjoint = len(named) == sum(map(len, witness.sets))
        inside = len(witness.sets) == len(witness.targets) and all(
            target in each for target, each in zip(witness.targets, witness.sets, strict=True)
        )
        return named <= ranks and disjoint and inside
    if isinstance(witness, SpreadTail):
        return witness.ranks <= ranks
    if isinstance(witness, SingleMachine):
        return 0 <= witness.resource < num_resources and witness.family in ("rank", "node")
    charges = witness.charges if isinstance(witness, CutDual) else ()
    charged = all(each.parts and frozenset().union(*each.parts) <= ranks for each in charges)
    return len(witness.prices) == num_resources and charged
