"""The compiled core: times by hand, a bound on schedules, and the proof beside brute force."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from taccl import Probe, verify
from taccl.deadline import NEVER
from taccl.placement.kernel import TOO_LONG, timed
from taccl.placement.placement import Placement
from taccl.placement.reorder import Case
from tests.fuzzing import cases


def racks_of_two() -> Probe:
    """Hosts 0 and 1, and 2 and 3, each pair behind an uplink as fast as one host: 1 us a MB, no latency."""
    ones = np.ones((4, 4))
    return Probe(tuple("abcd"), ones * 1e-9, ones * 1000.0, uplinks=(((0, 1), 1000.0), ((2, 3), 1000.0)))


def random_probe(rng, count):
    """Hosts in two racks, with latencies and bandwidths of their own."""
    rack = np.arange(count) % 2
    inside = rack[:, None] == rack
    latency = np.where(inside, 5.0, 9.0) * rng.uniform(0.8, 1.2, inside.shape)
    uplinks = tuple((tuple(np.flatnonzero(rack == r).tolist()), 12.5) for r in (0, 1))
    names = tuple(map(str, range(count)))
    return Probe(names, latency, 12.5 * rng.uniform(0.6, 1.0, inside.shape), uplinks=uplinks)


@pytest.mark.parametrize(("order", "us"), [((0, 1, 2, 3), 6), ((0, 2, 1, 3), 12), ((0, 1, 3, 2), 6)])
def test_messages_share_uplinks(order, us):
    """A ring of 4 MB: 6 steps of 1 MB; where racks alternate, two messages share each uplink in every step."""
    case = Case(racks_of_two(), "allreduce", "ring", 4_000_000)
    assert case.us(case.ticks(order)) == us


def test_python_and_the_kernel_agree():
    """A small case is timed by Python, so that nothing is compiled for it: to the same tick."""
    case = Case(racks_of_two(), "allreduce", "halving-doubling", 4_000_000)
    order = (3, 1, 0, 2)
    assert case.ticks(order, compiled=False) == case.ticks(order)


def test_cutoff_gives_up():
    """An order that takes 12 us is too long for 11 us, and not for 12."""
    case = Case(racks_of_two(), "allreduce", "ring", 4_000_000)
    order, ticks = np.array((0, 2, 1, 3)), case.problem.costs.ticks_per_us

    def within(us):
        return timed(*case.arrays, order, us * ticks, *case.room())

    assert within(11) == TOO_LONG
    assert within(12) == 12 * ticks


def test_no_schedule_in_the_order_is_faster():
    """What is predicted is a bound on the schedule, which holds resources together; and that is right."""
    for seed in cases("placement: no schedule in the order is faster", few=6, many=200):
        rng = np.random.default_rng(seed)
        name = ("ring", "halving-doubling", "double-tree", "hierarchical")[seed % 4]
        case = Case(random_probe(rng, 6), "allreduce", name, "1MB")
        order = tuple(rng.permutation(6).tolist())
        placement = Placement(case.problem.topology, case.algorithm, case.size_bytes, order, 0.0, 0.0, 0.0)
        schedule = placement.schedule()
        assert verify(schedule).ok
        assert case.us(case.ticks(order)) <= schedule.finish_us * (1 + 1e-12)


def test_proof_is_the_best_of_all():
    """Of 5 hosts all 120 orders are tried one by one; branch and bound finds the same, and says so."""
    for seed in cases("placement: proof is the best of all", few=4, many=100):
        rng = np.random.default_rng(seed)
        case = Case(random_probe(rng, 5), "allreduce", ("ring", "halving-doubling")[seed % 2], "1MB")
        best = min(case.ticks(order) for order in permutations(range(5)))
        start = tuple(range(5))
        found, ticks, proven = case.prove((start, case.ticks(start)), NEVER)
        assert proven
        assert case.ticks(found) == ticks == best


def test_open_hosts_bound_all_choices():
    """With some hosts open, the time is no later than with any choice of them."""
    for seed in cases("placement: open hosts bound all choices", few=4, many=200):
        rng = np.random.default_rng(seed)
        case = Case(random_probe(rng, 5), "allreduce", ("ring", "double-tree")[seed % 2], "1MB")
        for number in range(5):
            part = [*range(number), *[-1] * (5 - number)]
            bound = case.ticks(part)
            assert all(
                bound <= case.ticks((*range(number), *rest)) for rest in permutations(range(number, 5))
            )
