"""Node entry: data that enters a node message by message, against all schedules, baselines and random holds."""

import random
from dataclasses import replace
from fractions import Fraction

import pytest

import taccl
from taccl.analysis.certificates.evaluation.facts import Facts
from taccl.analysis.certificates.node_entry import (
    _PRICE,
    _Lanes,
    _Node,
    _node_of,
    _program,
    node_entry_bounds,
)
from taccl.analysis.certificates.transformed import as_spreading, merging_freely
from tests.analysis.claims import both_chunkings, certificates_of, is_unbeaten, raised, ratios
from tests.analysis.test_exchange_time import cluster, costs_at_random
from tests.analysis.test_node_sums import machine
from tests.fuzzing import MANY, cases, some

MB = 10**6


def certificates(problem):
    """Certificate of the last claim, the largest one, as a list; empty without claims."""
    return certificates_of(node_entry_bounds, problem, divisible=True, in_network=False)[-1:]


def collected(topology, name, size_bytes):
    """A collective over all chunkings, with sends that merge freely."""
    return merging_freely(taccl.make_problem(topology, name, size_bytes=size_bytes))


#: Two nodes whose ports inside pass on 16 MB nearly as fast as NICs bring them.
SMALL = cluster(2, 4, near=(1, Fraction(1, 50), 3), far=(4, Fraction(1, 50), 8))


@pytest.mark.slow
def test_bytes_wait_for_the_end_of_their_message():
    """16 MB in a reduce-scatter on eight MI300X take 56.3 us; equal rates alone prove 54.878 us.

    An allgather is an example in docs/formulation.md, which a test runs.
    """
    (bound,) = certificates(collected(taccl.topologies.mi300x(8), "reduce-scatter", 16 * MB))
    assert 55.2 < bound.bound_us < 56.3
    assert bound.check() and not raised(bound).check()


def test_a_latency_far_above_the_time_of_the_data():
    """The linear program is solved where a port could carry 10^11 units during the latency of one send."""
    entry, inner = (_Lanes(0, 6, 3 * 10**12, number) for number in (5, 3))
    solved = _program(_Node(entry, inner, pairs=16, most=2), 9.0027e12, limit_s=5.0)
    assert solved is not None and solved[0] > 1


def test_changed_prices_are_refused():
    """Higher credits, lower prices, a longer grid, and times or credits out of order are refused."""
    (bound,) = certificates(collected(SMALL, "allgather", 16 * MB))
    witness = bound.witness
    assert bound.check()
    later = replace(witness, times=(*witness.times[:-1], witness.times[-1] * 11 // 10))
    assert not replace(bound, bound=bound.bound * Fraction(11, 10), witness=later).check()
    for other in (
        replace(witness, credits=tuple(min(_PRICE, each + _PRICE // 10) for each in witness.credits)),
        replace(witness, credits=witness.credits[::-1]),
        replace(witness, credits=(_PRICE + 1, *witness.credits[1:])),
        replace(witness, entry_prices=tuple(each * 9 // 10 for each in witness.entry_prices)),
        replace(witness, inner_prices=tuple(each * 9 // 10 for each in witness.inner_prices)),
        replace(witness, inner_prices=(-1, *witness.inner_prices[1:])),
        replace(witness, times=(witness.times[0], witness.times[0], *witness.times[2:])),
        replace(witness, times=(witness.times[0] + 1, *witness.times[1:])),
        replace(witness, entering=witness.entering[1:]),
        replace(witness, inner=witness.inner[1:]),
        replace(witness, credits=witness.credits[1:]),
    ):
        assert not replace(bound, witness=other).check()


def test_nothing_is_claimed_for_sums_of_several_ranks_or_one_node():
    """An allreduce, a single node and nodes of one rank yield no claim."""
    for topology, name in (
        (cluster(2, 2), "allreduce"),
        (cluster(1, 4), "allgather"),
        (cluster(3, 1), "allgather"),
    ):
        assert not certificates(collected(topology, name, MB))


@pytest.mark.fuzz
def test_each_hold_pays_for_its_units():
    """Prices over a random hold are at least what its units owe, at times between those of the grid."""
    problem = as_spreading(collected(SMALL, "allgather", 16 * MB))
    (bound,) = certificates(problem)
    witness, times = bound.witness, bound.witness.times
    facts = Facts(problem, divisible=True, in_network=False)
    node = _node_of(facts, witness.ranks, witness.entering, witness.inner)

    def cost(prices, start, end):
        return sum(
            price * max(0, min(end, two) - max(start, one))
            for price, one, two in zip(prices, times, times[1:], strict=False)
        )

    def credit(time):
        return witness.credits[max(k for k, each in enumerate(times[:-1]) if each <= time)]

    nearest = []
    for seed in cases("holds of node entry", few=100, many=5000):
        rng = random.Random(f"holds of node entry {seed}")
        first = Fraction(rng.randrange(times[0] * 8, times[-1] * 8), 8)
        start, end = sorted(
            (first, min(times[-1], first + Fraction(rng.randrange(1, times[-1]), rng.randrange(1, 99))))
        )
        units = max(0, end - start - node.entry.alpha) / Fraction(node.entry.beta)
        owed = units * (_PRICE + (node.most - 1) * credit(end))
        paid = cost(witness.entry_prices, start, end)
        assert paid >= owed, seed
        nearest.append(paid / owed if owed else 2)
        units = max(0, end - start - node.inner.alpha) / Fraction(node.inner.beta)
        assert cost(witness.inner_prices, start, end) >= units * (_PRICE - credit(start)), seed
    assert min(nearest) < 1.1


@pytest.mark.fuzz
def test_no_schedule_in_any_chunks_beats_the_entries():
    """On tiny machines no schedule finishes before the claim, in one or two chunks per rank."""
    decided = claimed = 0
    for seed in cases("node entry, over all schedules", few=3, many=300):
        rng = random.Random(f"node entry {seed}")
        topology = machine(rng, rng.choice(([1, 2], [2, 1], [2, 2])), is_tiny=True)
        for problem in both_chunkings(
            topology, rng.choice(("allgather", "broadcast", "reduce-scatter", "gather"))
        ):
            found = certificates(problem)
            assert all(each.check() for each in found), seed
            best = max((each.bound for each in found), default=Fraction(0))
            claimed += best > 0
            decided += best > 0 and is_unbeaten(problem, best, max_states=1_000)
    assert decided >= some(1, 30) and claimed >= some(3, 100)


@pytest.mark.fuzz
def test_no_baseline_beats_the_entries():
    """On random machines baselines, and a search, finish no sooner than the claim, in every number of chunks."""
    nearest = []
    for seed in cases("node entry against baselines", few=2, many=200):
        rng = random.Random(f"entries {seed}")
        if rng.random() < 0.5:
            topology = machine(rng, [rng.choice((2, 3, 4))] * rng.choice((2, 3)))
        else:
            topology = cluster(
                rng.choice((2, 3)), rng.choice((2, 4)), **costs_at_random(rng), rails=rng.random() < 0.5
            )
        name = rng.choice(("allgather", "allgather", "reduce-scatter", "broadcast", "scatter", "alltoall"))
        problem = taccl.make_problem(topology, name, size_bytes=rng.choice((MB, 4 * MB, 16 * MB)))
        nearest += ratios(certificates(merging_freely(problem)), problem, seed, searched=True)
    assert 1 <= min(nearest) < (1.25 if MANY else 1.5)
