"""Spread-tail bounds for chunks with one destination: a chunk must still travel from the rank where it enters
a node to its destination there."""

from dataclasses import replace
from fractions import Fraction

import pytest

from taccl import collectives
from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.certificates.spread_tail import SpreadTail, spread_tail_bounds
from taccl.problem.making import make_problem
from taccl.problem.problem import Clauses
from taccl.topology.fabrics import mesh
from taccl.topology.machines import dgx_h100
from tests.analysis.claims import certificates_of, raised

MB = 10**6


def problem(name, nodes=4, **clauses):
    """A problem on `nodes` DGX-H100 with 1 MB chunks: 20 us over a NIC, 20/9 us over an NVSwitch port, by
    default no merging."""
    topology = dgx_h100(nodes, profile="nominal")
    made = collectives.make(name, topology.num_ranks)
    return make_problem(topology, made, chunk_bytes=MB, clauses=Clauses(**clauses))


def best_us(problem, *, backwards=False):
    """Greatest bound in us from the last chunks to enter a single set of ranks, which must still spread there.

    - `backwards`: Use only bounds on the time-reversed problem, instead of those on the problem itself.
    """
    return max(
        claim.bound
        for claim in certificates_of(spread_tail_bounds, problem, in_network=False)
        if isinstance(claim.witness, SpreadTail)
        and len(claim.witness.sets) == 1
        and claim.witness.backwards == backwards
    )


@pytest.mark.parametrize(("name", "entering"), [("allgather", True), ("gather", True), ("scatter", False)])
def test_the_last_chunks_still_spread_inside(name, entering):
    """The last chunks that enter a node must still spread over its ports.

    24 chunks enter over 8 NICs, the last 8 at 60 us; 7 of these reach a rank over its port, in 20/9 us each.
    """
    assert best_us(problem(name), backwards=not entering) == 60 + 7 * Fraction(20, 9)


def test_merged_chunks_may_come_at_once():
    """With merging, more of the last chunks may arrive over a rank's own NIC, so fewer follow by its port.

    All 3 chunks that enter over the rank's own NIC may be among the last 8 at 60 us, so 5 follow by its port.
    """
    topology = dgx_h100(4, profile="nominal")
    merging = make_problem(
        topology,
        collectives.allgather(32),
        chunk_bytes=MB,
        clauses=Clauses(max_merge=6, merging=frozenset(topology.internode_links)),
    )
    assert best_us(merging) >= 60 + 5 * Fraction(20, 9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gather", "scatter"])
def test_the_certificate_is_checked_by_arithmetic(name):
    """The certificate passes its check; a bound one tick larger and a witness reversed in time fail it."""
    certificate = lower_bound(problem(name))
    witness = certificate.witness
    assert certificate.kind == "spread tail"
    assert isinstance(witness, SpreadTail)
    assert certificate.check()
    assert not raised(certificate).check()
    assert not replace(certificate, witness=replace(witness, backwards=not witness.backwards)).check()
    assert witness.backwards == (name == "scatter")
    assert certificate.witness_text.startswith("spread tail: sets 0-7, least 1, last 8")


@pytest.mark.slow
def test_sums_and_derived_chunks_are_not_read_backwards():
    """A reversed witness is refused for sums, scans and broadcasts, which have no reverse of this kind."""
    certificate = lower_bound(problem("scatter"))
    for name in ("allreduce", "scan", "broadcast"):
        assert not replace(certificate, problem=problem(name)).check()


def test_ranks_of_one_node_are_no_nodes():
    """Ranks of one node give no claim, as no node lacks data."""
    flat = make_problem(mesh(2, 2), collectives.allgather(4), chunk_bytes=MB)
    assert certificates_of(spread_tail_bounds, flat, in_network=False) == []
