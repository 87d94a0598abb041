"""Periodic plans: phases of recurring sends that share resources."""

import random

import pytest

from taccl.baselines.periods import periodic
from tests.fuzzing import cases


def overlaps(holds, period, phases):
    """True if two sends hold one resource at the same time in some period."""
    uses = {}
    for send, each in enumerate(holds):
        for resource, begin, lasts in each:
            uses.setdefault(resource, []).append(((phases[send] + begin) % period, lasts))
    for found in uses.values():
        found.sort()
        later = [*found[1:], (found[0][0] + period, found[0][1])]
        if any(at + lasts > after + 1e-6 for (at, lasts), (after, _) in zip(found, later, strict=True)):
            return True
    return False


def test_sends_of_one_resource_follow_one_another():
    """Two sends of 3 and 4 us have a period of 7 us, the second right after the first."""
    holds = [[("port", 0, 3)], [("port", 0, 4)]]
    period, phases = periodic(holds, [3, 4], [-1, 0], [range(2)])
    assert period == pytest.approx(7)
    assert (phases[1] - phases[0]) % period == pytest.approx(3)


def test_a_hold_of_the_end_of_a_long_send_is_between_others():
    """Three sends of 10 us that hold one receiver, each only in its last 2 us, have a period of 6 us."""
    holds = [[("into", 8, 2)] for _ in range(3)]
    period, phases = periodic(holds, [10] * 3, [-1] * 3, [range(3)])
    assert period == pytest.approx(6)
    assert not overlaps(holds, period, phases)


def test_a_cycle_of_resources_needs_more_than_the_busiest():
    """Three sends of 1 us, any two with a common resource: no two overlap, so the period is 3 us."""
    holds = [[("a", 0, 1), ("b", 0, 1)], [("b", 0, 1), ("c", 0, 1)], [("c", 0, 1), ("a", 0, 1)]]
    period, phases = periodic(holds, [1] * 3, [-1] * 3, [range(3)])
    assert period == pytest.approx(3, rel=0.01)
    assert not overlaps(holds, period, phases)


@pytest.mark.parametrize(("repeats", "period", "end"), [(1000, 4, 8), (1, 5.2, 5)])
def test_waits_count_against_periods(repeats, period, end):
    """A chain holds one port for 2 us at its start and again after 3 us. Many repetitions are done soonest with
    a period of 4 us, in which the second hold waits 3 us; one repetition has a longer period without waits."""
    holds, takes = [[("port", 0, 2)], [], [("port", 0, 2)]], [2, 1, 2]

    def end_us(period, phases):
        """End of the chain: each send starts at its next phase after the one before, or at once."""
        at = 0.0
        for send, lasts in enumerate(takes):
            at += lasts + (0.0 if phases is None else (phases[send] - at) % period)
        return at

    found, phases = periodic(holds, takes, [-1, 0, 1], [range(3)], end_us, repeats)
    assert found == pytest.approx(period)
    assert end_us(found, phases) == pytest.approx(end)


def test_without_sends_there_is_no_plan():
    """If there are no sends, there is no periodic plan."""
    assert periodic([], [], [], [[]]) is None


@pytest.mark.fuzz
def test_no_plan_holds_a_resource_twice():
    """On random sends no resource is held twice, and the period is at least the busiest resource's time."""
    for seed in cases("periodic plans", few=20, many=2000):
        rng = random.Random(seed)
        holds, takes = [], []
        for _ in range(rng.randint(1, 14)):
            takes.append(rng.uniform(1, 10))
            used = rng.sample(range(8), rng.randint(1, 4))
            holds.append([(each, rng.uniform(0, 9), rng.uniform(0.1, takes[-1])) for each in used])
        busy = [
            sum(lasts for each in holds for r, _, lasts in each if r == resource) for resource in range(8)
        ]
        found = periodic(holds, takes, [*range(-1, len(holds) - 1)], [range(len(holds))])
        assert found is None or found[0] >= max(busy) * (1 - 1e-9)
        assert found is None or not overlaps(holds, *found)
