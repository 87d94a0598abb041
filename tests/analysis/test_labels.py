"""Labels of witnesses, pairs (time, max number): each is the largest that the others allow, and a larger one
is refused."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

import taccl
from taccl import collectives
from taccl.analysis.certificates.gossip import gossip
from taccl.analysis.certificates.pair_counting import pair_counting_bounds
from taccl.analysis.certificates.spread_tail import SpreadTail, spread_tail_bounds
from taccl.analysis.certificates.transformed import merging_freely
from tests.analysis.claims import certificates_of, raised
from tests.analysis.tampering import labels_of
from tests.synthesis.small_problems import custom, problem_of, two_levels


def spread_tail():
    """Spread-tail certificate: three chunks of rank 0 for three nodes of two ranks."""
    topology = two_levels(2, local=1, nic=3, num_nodes=3)
    problem = problem_of(topology, custom(6, [([0], range(6))] * 3))
    found = certificates_of(spread_tail_bounds, problem, in_network=False)
    return max(found, key=lambda each: (each.bound, sum(map(len, labels_of(each.witness).values()))))


def pair_counting():
    """Pair-counting certificate: an allreduce on two nodes of four ranks."""
    topology = two_levels(4, local=1, nic=1, alpha=10, meaning="pipelined")
    problem = problem_of(topology, collectives.allreduce(8))
    return certificates_of(pair_counting_bounds, problem, in_network=False)[-1]


def byte_counting():
    """Byte-counting certificate: a reduce-scatter of small messages on a DGX-2."""
    problem = merging_freely(taccl.make_problem(taccl.topologies.dgx2(), "reduce-scatter", size_bytes=16_000))
    return taccl.lower_bound(problem, divisible=True)


def between_nodes():
    """Gossip certificate: sums of two nodes of four ranks, with heads and tails for the sends inside nodes."""
    problem = problem_of(two_levels(4, local=1, nic=5), collectives.allreduce(8))
    return certificates_of(gossip, problem)[-1]


@cache
def found_bound(make):
    """The certificate that `make` returns, computed once and cached."""
    return make()


@pytest.fixture(
    params=[spread_tail, pair_counting, byte_counting, between_nodes], ids=lambda make: make.__name__
)
def bound(request):
    """One certificate of each kind, made once and not when tests are collected."""
    return found_bound(request.param)


def places(bound):
    """[(field, labels of the field, index of one label)] for each label of the witness; asserts that there is
    one."""
    found = labels_of(bound.witness)
    assert any(found.values())
    return [(field, labels, place) for field, labels in found.items() for place in range(len(labels))]


@pytest.mark.parametrize(("later", "fewer"), [(1, 0), (0, 1)], ids=["a tick later", "a chunk fewer"])
def test_a_tighter_label_is_refused(bound, later, fewer):
    """A label one tick later, or with one chunk fewer, is refused, as the other labels allow no tighter one."""
    for field, labels, place in places(bound):
        ticks, most = labels[place]
        changed = (*labels[:place], (ticks + later, most - fewer), *labels[place + 1 :])
        assert not relabelled(bound, **{field: changed}).check(), (field, place)


def test_labels_must_ascend(bound):
    """A witness whose labels do not ascend in time is refused."""
    for field, labels, place in places(bound):
        assert not relabelled(bound, **{field: (*labels, labels[place])}).check(), (field, place)


def test_a_witness_with_its_labels_is_accepted_and_proves_no_more(bound):
    """The found bound is accepted, a larger one is refused."""
    assert bound.check()
    assert not raised(bound).check()


def test_a_witness_without_labels_proves_less(bound):
    """Without its labels the witness does not prove the bound."""
    assert not relabelled(bound, **dict.fromkeys(labels_of(bound.witness), ())).check()


def test_a_later_first_entry_is_refused():
    """A `since` (first entry of the last chunks) of 10 us is refused.

    The last three of six chunks over two NICs enter at 9 us at the earliest.
    """
    bound = found_bound(spread_tail)
    assert isinstance(bound.witness, SpreadTail) and bound.witness.since == 9
    assert not relabelled(bound, since=10).check()


def relabelled(bound, **fields):
    """The certificate with other fields in its witness."""
    witness: Any = bound.witness
    return replace(bound, witness=replace(witness, **fields))
