"""Checks of certificates: found witnesses of every kind are accepted, changed ones are refused."""

import random
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taccl import collectives
from taccl.analysis.certificates.borders import Border, SingleMachine
from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.certificates.certificate import Late, Witness, is_exact
from taccl.analysis.certificates.cuts import CutDual, SetCharge
from taccl.analysis.certificates.first_arrivals import Path
from taccl.analysis.certificates.flows import FlowDual
from taccl.analysis.certificates.spread_tail import SpreadTail
from taccl.topology.builder import TopologyBuilder
from tests.analysis.tampering import changed, made_up, with_one_number, witness_classes
from tests.fuzzing import cases, fuzzed
from tests.synthesis.brute_force import optimal_ticks
from tests.synthesis.small_problems import (
    custom,
    full,
    joined,
    merged,
    problem_of,
    random_problem,
    ring,
    two_levels,
    two_nodes,
)

KINDS = (
    "latency",
    "cut counting",
    "spread tail",
    "dissemination",
    "pair counting",
    "single machine",
    "throughput",
    "multicommodity",
)


@cache
def found():
    """Certificates of every kind for random problems, with whole chunks and divisible data."""
    certificates = []
    for seed in cases("certificates tampered with", few=30, many=800):
        problem = random_problem(seed, combining=seed % 2 == 0)
        for divisible in (False, True):
            certificates.append(lower_bound(problem, divisible=divisible))
    certificates += [lower_bound(_one_way(), divisible=divisible) for divisible in (False, True)]
    certificates.append(lower_bound(problem_of(two_levels(4, local=2, nic=3), collectives.allgather(8))))
    certificates.append(lower_bound(merged(joined([0] * 4), "allgather", 4)))
    far = two_levels(4, local=1, nic=1, alpha=10, meaning="pipelined")
    certificates.append(lower_bound(problem_of(far, collectives.allreduce(8))))
    three_nodes = two_levels(2, local=1, nic=3, num_nodes=3)
    certificates.append(lower_bound(problem_of(three_nodes, custom(6, [([0], range(6))] * 3))))
    return tuple(certificates)


def _one_way():
    """The problem of an alltoall on a one-way ring, whose bound comes from the lengths of paths."""
    builder = TopologyBuilder("one-way ring", [0] * 4)
    for rank in range(4):
        builder.add_link(rank, (rank + 1) % 4, alpha_us=0, beta_us_per_mb=1)
    return problem_of(builder.build(), collectives.alltoall(4))


def of_kind(kind):
    """Certificates of one kind with a bound above 0."""
    return [each for each in found() if each.kind == kind and each.bound > 0]


@pytest.mark.parametrize("kind", witness_classes(), ids=lambda each: each.kind)
def test_random_witnesses_of_every_class_are_judged(kind):
    """A random witness of each class, and a changed one, name parts of the problem and are judged without an
    error."""
    problem, rng = problem_of(full(3, port=True), collectives.allreduce(3)), random.Random(1)
    made = made_up(problem, rng, [kind])
    assert type(made) is kind and made.fits(problem)
    for divisible in (False, True):
        above = lower_bound(problem, divisible=divisible)
        above = replace(above, bound=10**6 * above.bound)
        assert not any(replace(above, witness=each).check() for each in (made, changed(made, problem, rng)))


@pytest.mark.slow
def test_examples_include_every_kind():
    """Every kind of witness occurs among the certificates, so no test below is empty."""
    kinds = Counter(each.kind for each in found())
    assert set(KINDS) <= set(kinds)
    assert all(of_kind(kind) for kind in KINDS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_found_is_accepted(kind):
    """Every certificate that `lower_bound` returns is accepted."""
    assert all(each.check() for each in of_kind(kind))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_lower_bound_than_was_found_is_accepted(kind):
    """A witness also proves any smaller bound."""
    assert all(replace(each, bound=each.bound / 2).check() for each in of_kind(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_a_raised_bound_is_refused(kind):
    """A bound raised by one tick (whole chunks) or by 1e-9 us (divisible data) is refused."""
    for each in of_kind(kind):
        little = Fraction(1, 10**9) if each.divisible else Fraction(1, each.problem.costs.ticks_per_us)
        assert not replace(each, bound=each.bound + little).check()


@pytest.mark.parametrize("kind", KINDS)
def test_no_witness_is_refused(kind):
    """A bound above 0 without a witness is refused."""
    assert not any(replace(each, witness=None).check() for each in of_kind(kind))


@pytest.mark.parametrize(
    "convert",
    [
        float,
        np.float64,
        lambda each: np.int64(each) if each % 1 == 0 else float(each),
        lambda each: bool(each) if type(each) is int and each in (0, 1) else float(each),
        lambda each: str(each),
    ],
    ids=["float", "numpy float", "numpy integer", "truth value", "text"],
)
def test_numbers_that_are_not_exact_are_refused(convert):
    """A witness of any kind is refused if one of its numbers is a float, numpy's, a truth value or text."""
    rng, problem, tried = random.Random(0), random_problem(0), Counter()
    while missing_kinds(tried):
        witness = made_up(problem, rng)
        for each in (witness, Late(Fraction(1, 2), witness)):
            assert is_exact(each, type(each))
            for other in with_one_number(each, convert):
                assert not is_exact(other, type(other)), other
                tried[witness.kind] += 1
        assert tried.total() < 10**5, missing_kinds(tried)


def missing_kinds(tried, base=Witness):
    """Kinds of the library's witnesses, other than late parts, that are not in `tried`."""
    found = {kind for each in base.__subclasses__() for kind in missing_kinds(tried, each)}
    own = base.__module__.startswith("taccl.") and hasattr(base, "kind") and base.kind != Late.kind
    return found | {base.kind} - set(tried) if own else found


def test_certificates_with_inexact_numbers_are_refused():
    """A certificate is refused if its bound, or one number of its witness, is a float."""
    for kind in KINDS:
        for each in of_kind(kind)[:2]:
            assert each.check()
            assert not replace(each, bound=float(each.bound)).check()
            for other in with_one_number(each.witness, float):
                assert not replace(each, witness=other).check()


def test_a_path_to_an_origin_is_refused():
    """A path that ends at an origin of its chunk is refused."""
    for each in of_kind("latency"):
        assert isinstance(each.witness, Path)
        origins = each.problem.collective.chunks[each.witness.chunk].origins
        if not each.problem.collective.combining:
            assert not replace(each, witness=replace(each.witness, destination=origins[0])).check()


def test_a_cut_around_all_ranks_is_refused():
    """A cut around all ranks is refused unless chunks are summed, since no chunk enters such a set."""
    for each in of_kind("cut counting"):
        everyone = frozenset(range(each.problem.topology.num_ranks))
        if not each.problem.collective.combining:
            assert not replace(each, witness=Border(everyone, True)).check()


@pytest.mark.parametrize("kind", ["cut counting", "spread tail", "single machine"])
def test_witnesses_of_whole_chunks_are_refused_for_divisible_data(kind):
    """A witness that counts whole chunks is refused for divisible data."""
    assert not any(replace(each, divisible=True).check() for each in of_kind(kind))


def test_charges_above_the_prices_are_refused():
    """Doubled charges of sets of ranks at the same prices are refused: some send is charged more than its
    resources cost."""
    for each in of_kind("throughput"):
        assert isinstance(each.witness, CutDual)
        charges = tuple(replace(some, charge=2 * some.charge) for some in each.witness.charges)
        assert not replace(each, witness=replace(each.witness, charges=charges)).check()


@pytest.mark.parametrize("kind", ["throughput", "multicommodity"])
def test_prices_below_zero_are_refused(kind):
    """Negative prices are refused: they would reduce the sum of prices."""
    for each in of_kind(kind):
        assert isinstance(each.witness, (CutDual, FlowDual))
        prices = (*each.witness.prices[:-1], -1)
        assert not replace(each, witness=replace(each.witness, prices=prices)).check()


@pytest.mark.parametrize("kind", ["throughput", "multicommodity"])
def test_prices_of_nothing_are_refused(kind):
    """Prices that are all 0 are refused."""
    for each in of_kind(kind):
        assert isinstance(each.witness, (CutDual, FlowDual))
        free = (0,) * len(each.witness.prices)
        assert not replace(each, witness=replace(each.witness, prices=free)).check()


def test_charges_below_zero_are_refused():
    """Negative charges are refused: they would allow larger charges elsewhere."""
    for each in of_kind("throughput"):
        assert isinstance(each.witness, CutDual)
        minus = SetCharge((frozenset((0,)),), Fraction(-1))
        witness = replace(each.witness, charges=(*each.witness.charges, minus))
        assert not replace(each, witness=witness).check()


def test_a_dropped_charge_is_refused_of_divisible_data():
    """For divisible data the charge of each set of ranks adds to the bound, so a witness that lacks one is
    refused.

    For whole chunks it may pass, as their bound is rounded up.
    """
    bound = lower_bound(problem_of(full(4, port=True), collectives.allgather(4)), divisible=True)
    assert isinstance(bound.witness, CutDual)
    assert bound.witness.charges
    for i in range(len(bound.witness.charges)):
        fewer = bound.witness.charges[:i] + bound.witness.charges[i + 1 :]
        assert not replace(bound, witness=replace(bound.witness, charges=fewer)).check()


def test_prices_without_charges_are_refused():
    """Prices without charges prove no bound above 0 and are refused."""
    for each in of_kind("throughput"):
        assert isinstance(each.witness, CutDual)
        assert not replace(each, witness=replace(each.witness, charges=())).check()


def test_partitions_prove_nothing_where_switches_reduce():
    """A partition's charge for exchanges between its parts is refused if switches reduce."""
    bound = lower_bound(problem_of(full(4), collectives.allreduce(4)), divisible=True, in_network=False)
    assert isinstance(bound.witness, CutDual)
    assert any(len(each.parts) > 1 for each in bound.witness.charges)
    assert bound.check()
    assert not replace(bound, in_network=True).check()


def test_a_partition_whose_parts_overlap_is_refused():
    """A partition with overlapping parts is refused: a rank in two parts would be charged for its own data."""
    bound = lower_bound(problem_of(full(4), collectives.allreduce(4)), divisible=True, in_network=False)
    assert isinstance(bound.witness, CutDual)
    charges = tuple(replace(each, parts=(*each.parts, frozenset((0,)))) for each in bound.witness.charges)
    assert not replace(bound, witness=replace(bound.witness, charges=charges)).check()


def test_a_partition_is_refused_for_copies():
    """A witness that charges a partition (sets of ranks) is refused for copied chunks: k parts need k - 1
    sends of a copy, but 2 (k - 1) of a sum."""
    problem = problem_of(full(3), collectives.allgather(3))
    parts = tuple(frozenset((r,)) for r in range(3))
    prices = (1,) * len(problem.topology.resources)
    witness = CutDual(prices, (SetCharge(parts, Fraction(1)),))
    bound = lower_bound(problem, divisible=True)
    assert not replace(bound, bound=Fraction(1, 100), witness=witness).check()


@pytest.mark.parametrize("combining", [False, True], ids=["copies", "sums"])
def test_prices_of_paths_are_refused_for_sums(combining):
    """Prices of paths are refused for sums, whose contributions share paths."""
    problem = problem_of(ring(4), collectives.allreduce(4) if combining else collectives.alltoall(4))
    witness = FlowDual((1,) * len(problem.topology.resources))
    bound = replace(lower_bound(problem, divisible=True), bound=Fraction(1, 100), witness=witness)
    assert bound.check() is not combining


@pytest.mark.parametrize(
    "witness",
    [
        Path(99, 0),
        Path(-1, 0),
        Path(0, 99),
        Path(0, -1),
        Border(frozenset((99,)), True),
        Border(frozenset((-1,)), False),
        Border(frozenset(), True),
        SpreadTail((frozenset((0, 99)),), 1, 1),
        SpreadTail((frozenset((0, 1, 2)),), 1, 1),
        SpreadTail((frozenset(),), 0, 0),
        SingleMachine(99, "rank", True),
        SingleMachine(-1, "rank", True),
        SingleMachine(0, "switch", True),
        CutDual((), ()),
        CutDual((1,), (SetCharge((frozenset((0,)),), Fraction(1)),)),
        CutDual((1,) * 99, (SetCharge((frozenset((0,)),), Fraction(1)),)),
        CutDual((1,) * 6, (SetCharge((), Fraction(1)),)),
        CutDual((1,) * 6, (SetCharge((frozenset((7,)),), Fraction(1)),)),
        CutDual((1,) * 6, (SetCharge((frozenset(),), Fraction(1)),)),
        FlowDual(()),
        FlowDual((1,)),
        FlowDual((1,) * 99),
    ],
    ids=str,
)
@pytest.mark.parametrize("divisible", [False, True])
def test_a_witness_of_another_problem_is_refused(witness, divisible):
    """A witness with ranks, chunks or resources that the problem lacks is refused without an exception."""
    bound = lower_bound(problem_of(ring(3), collectives.allgather(3)), divisible=divisible)
    assert len(bound.problem.topology.resources) == 6
    assert not replace(bound, witness=witness).check()


def test_a_certificate_of_a_slower_problem_is_refused():
    """A certificate of a slow ring is refused for a fast one."""
    slow = lower_bound(problem_of(ring(5, betas=(3,)), collectives.allgather(5)))
    fast = problem_of(ring(5), collectives.allgather(5))
    assert slow.check()
    assert not replace(slow, problem=fast).check()


def test_a_shared_nic_counts_once():
    """Two sends of 3 us hold a NIC for 2 us: the single-machine bound proves 5 us, not 6."""
    problem = problem_of(two_nodes(), custom(4, [([0], [2]), ([1], [3])]), links_allowed=frozenset({4, 5}))
    nic = next(i for i, r in enumerate(problem.topology.resources) if r.name == "NIC of node 0")
    ends = tuple(us * problem.costs.ticks_per_us for us in (0, 2, 4))
    bound = replace(lower_bound(problem), witness=SingleMachine(nic, "node", True, ends=ends))
    assert replace(bound, bound=Fraction(5)).check()
    assert not replace(bound, bound=Fraction(6)).check()


@fuzzed(few=7, many=600)
@given(seed=st.integers(0, 2**32 - 1), combining=st.booleans())
def test_no_witness_proves_more_than_the_least_finish(seed, combining):
    """Made-up and changed witnesses never prove one tick more than the optimum."""
    problem = random_problem(seed, combining=combining)
    least = optimal_ticks(problem, max_states=300)
    if least is None:
        return
    rng = random.Random(seed)
    above = Fraction(least + 1, problem.costs.ticks_per_us)
    start = lower_bound(problem)
    for divisible in (False, True):
        base = replace(start, bound=above, divisible=divisible)
        for _ in range(8):
            assert not replace(base, witness=made_up(problem, rng)).check()
        witness = lower_bound(problem, divisible=divisible).witness
        for _ in range(8 if witness is not None else 0):
            witness = changed(witness, problem, rng)
            assert not replace(base, witness=witness).check()
            if isinstance(witness, CutDual) and not witness.charges:
                break
