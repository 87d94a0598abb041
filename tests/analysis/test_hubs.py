"""Hubs of sums on a grid of times: random plans of a unit cost what the prices of all hubs prove."""

import random

import numpy as np
import pytest

from taccl.analysis.certificates.evaluation.hubs import Hubs
from tests.fuzzing import cases

#: Cost of holds that a plan does not have.
_DEAR = 10**6


def reached(sends, num_ranks, shift):
    """Set of ordered pairs of ranks of which the second one gets data of the first one."""
    pairs = set()
    for root in range(num_ranks):
        since = {root: -shift}
        for src, dst, start, end in sorted(sends, key=lambda each: each[2:]):
            if src in since and start >= since[src] + shift and end < since.get(dst, end + 1):
                since[dst] = end
        pairs |= {(root, rank) for rank in since if rank != root}
    return pairs


def plan_of(rng, num_ranks, cells, least, shift):
    """Random holds (source, destination, start, end) that serve all pairs of ranks, none of which can be left out."""
    sends, needed = [], num_ranks * (num_ranks - 1)
    layers = rng.choice(((0, 1), (0, 1, 1, 2), (0, 0, 1, 2, 2)))
    for _ in range(60 * num_ranks):
        src, dst = rng.sample(range(num_ranks), 2)
        first = rng.choice(layers) * (least + shift) + rng.randint(0, 2)
        send = (src, dst, first, first + least + rng.choice((0, 0, 1, 2)))
        if send[3] <= cells and all(
            send[3] <= other[2] or other[3] <= send[2]
            for other in sends
            if other[0] == src or other[1] == dst
        ):
            sends.append(send)
    if len(reached(sends, num_ranks, shift)) < needed:
        return None
    for send in rng.sample(sends, len(sends)):
        fewer = [each for each in sends if each is not send]
        if len(reached(fewer, num_ranks, shift)) == needed:
            sends = fewer
    return sends


def highest_price(costs, least, shift, hop, most):
    """Highest price of a pair at which no hub gains."""
    low, high = 0, 4 * _DEAR
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if Hubs(costs, least, shift, hop, middle, most).gain() else (middle, high)
    return low


@pytest.mark.fuzz
def test_plans_of_a_unit_cost_what_hubs_prove():
    """The sends of any plan cost at least the price of all pairs, also with three sends in a row."""
    nearest = 10.0
    for seed in cases("hubs", few=12, many=4000):
        rng = random.Random(f"hubs {seed}")
        num_ranks, least, shift = rng.choice((3, 4, 4, 5)), rng.randint(0, 2), rng.randint(2, 5)
        hop = least + shift
        cells = rng.randint(2 * hop + least, 3 * hop + least - 1)
        plan = plan_of(rng, num_ranks, cells, least, shift)
        if plan is None:
            continue
        costs = np.full((cells + 1, cells + 1), _DEAR, np.int64)
        for _, _, start, end in plan:
            costs[start, end] = rng.choice((5, 10, 20)) * 100
        price = highest_price(costs, least, shift, hop, num_ranks - 1)
        total = sum(int(costs[start, end]) for _, _, start, end in plan)
        assert total >= price * num_ranks * (num_ranks - 1), seed
        nearest = min(nearest, total / (price * num_ranks * (num_ranks - 1)))
    assert nearest < 2
