"""The nested-cut bound: what enters a node, and then a rank of it; derived by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from taccl import collectives
from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.certificates.certificate import Certificate, NestedCuts, describe_witness
from taccl.analysis.certificates.needed_sends import NeededSends
from taccl.analysis.certificates.nested_cuts import nested_cut_bounds
from taccl.problem import Clauses, Problem, make_problem
from taccl.topology.fabrics import mesh
from taccl.topology.machines import dgx_h100

MB = 10**6


def problem(name: str, nodes: int = 4, **clauses: object) -> Problem:
    """DGX-H100 with 1 MB chunks: 20 us over a NIC, 20/9 us over a port of NVSwitch; no sends merge."""
    topology = dgx_h100(nodes)
    made = collectives.make(name, topology.num_ranks)
    return make_problem(topology, made, chunk_bytes=MB, clauses=Clauses(**clauses))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "entering"), [("allgather", True), ("gather", True), ("scatter", False), ("alltoall", True)]
)
def test_the_last_chunks_still_spread_inside(name: str, entering: bool) -> None:
    """24 chunks enter a node over 8 NICs, the last 8 at 60 us: 7 of them come to a rank over its port, 20/9 us each.

    Of an alltoall 192 chunks enter a node; but of those for one rank, that has 24, the same holds.
    """
    best = max(
        ticks
        for ticks, _, witness in nested_cut_bounds(NeededSends(problem(name)))
        if witness.entering == entering
    )
    assert Fraction(best) / problem(name).costs.ticks_per_us == 60 + 7 * Fraction(20, 9)


def test_merged_chunks_may_come_at_once() -> None:
    """Then all 3 that a rank's own NIC passes by then may be among the last 8: 5 more come over its port."""
    topology = dgx_h100(4)
    merging = make_problem(
        topology,
        collectives.allgather(32),
        chunk_bytes=MB,
        clauses=Clauses(max_merge=6, merging=frozenset(topology.internode_links)),
    )
    best = max(ticks for ticks, _, _ in nested_cut_bounds(NeededSends(merging)))
    assert Fraction(best) / merging.costs.ticks_per_us == 60 + 5 * Fraction(20, 9)


def test_the_certificate_is_checked_by_arithmetic() -> None:
    """It holds, one tick more does not, and its witness is described."""
    certificate = lower_bound(problem("allgather"))
    assert certificate.kind == "nested cuts"
    assert certificate.check()
    tick = Fraction(1, problem("allgather").costs.ticks_per_us)
    assert not replace(certificate, bound=certificate.bound + tick).check()
    assert describe_witness(certificate) == "what must enter ranks 0-7, and then rank 0"


def test_a_witness_of_other_ranks_proves_nothing() -> None:
    """The inner set must be a part of the outer one."""
    certificate = lower_bound(problem("allgather"))
    strange = NestedCuts(frozenset({9}), frozenset(range(8)), True)
    assert not replace(certificate, witness=strange).check()


@pytest.mark.parametrize("name", ["allreduce", "scan"])
def test_sums_and_derived_chunks_have_none(name: str) -> None:
    """What is combined on the way may cross fewer times."""
    assert list(nested_cut_bounds(NeededSends(problem(name, 2)))) == []


def test_one_node_has_none() -> None:
    """There is no second border."""
    flat = make_problem(mesh(2, 2), collectives.allgather(4), chunk_bytes=MB)
    assert list(nested_cut_bounds(NeededSends(flat))) == []


def test_it_is_written_down() -> None:
    """As plain values."""
    witness = NestedCuts(frozenset({1}), frozenset({0, 1}), False)
    certificate = Certificate(problem("gather", 2), Fraction(1), "nested cuts", "that", witness)
    assert certificate.to_dict()["witness"] == {
        "kind": "nested cuts",
        "inner": [1],
        "outer": [0, 1],
        "entering": False,
    }
