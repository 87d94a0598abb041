"""Gains of ranks that gather data: every set of sends that serves all pairs of ranks pays for all of them."""

import random

import numpy as np
import pytest

from taccl.analysis.certificates import exchange_time
from taccl.analysis.certificates.hub_time import NEVER, Port
from tests.fuzzing import cases


def costs_at_random(rng, cells, least):
    """Random costs of holds on a grid, which fall with the length; `NEVER` below `least` cells."""
    prices = [rng.choice((0, 1, 2, 5, 9)) for _ in range(cells + 1)]
    found = np.full((cells + 1, cells + 1), NEVER)
    for start in range(cells + 1):
        for end in range(start + least, cells + 1):
            held = prices[start : end + 1]
            found[start, end] = 10 * sum(held) * (end - start + 3) // (len(held) * (end - start + 1))
    return found


def sends_at_random(rng, grid, number):
    """Random sends (source, destination, start, end) inside a node; holds into a rank do not overlap."""
    (size, cells, least, _), found = grid, []
    for _ in range(number):
        src, dst = rng.sample(range(size), 2)
        start = rng.randrange(cells)
        end = min(cells, start + max(least, rng.choice((1, 1, 2, 3))))
        is_free = all(dst != rank or end <= first or last <= start for _, rank, first, last in found)
        if end - start >= least and is_free:
            found.append((src, dst, start, end))
    return found


def gathered(sends, size, shift):
    """First time at which a rank's send may carry another rank's data: {(rank of the data, rank): time}."""
    found = {(rank, rank): 0 for rank in range(size)}
    for src, dst, start, end in sorted(sends, key=lambda send: (send[3], send[2])):
        for rank in range(size):
            if found.get((rank, src), np.inf) <= start:
                found[rank, dst] = min(found.get((rank, dst), np.inf), end + shift)
    return found


def served(here, there, crossing, size, cells, _, shift):
    """Pairs that sends between two nodes serve; sends inside the second node are given in reversed time."""
    before, after = gathered(here, size, shift), gathered(there, size, shift)
    return {
        (a, b)
        for src, dst, start, end in crossing
        for a in range(size)
        for b in range(size)
        if before.get((a, src), np.inf) <= start and after.get((b, dst), np.inf) <= cells - end
    }


def paid(sends, costs):
    """Cost of all sends."""
    return sum(int(costs[start, end]) for *_, start, end in sends)


def needed(kept, costs, complete):
    """Sends of three lists without those that `complete` does not need; the expensive ones are dropped first."""
    order = [(paid([send], costs[k]), k, send) for k in range(3) for send in kept[k]]
    for _, k, send in sorted(order, reverse=True):
        fewer = [*kept]
        fewer[k] = [other for other in kept[k] if other is not send]
        if complete(*fewer):
            kept = fewer
    return kept


@pytest.mark.fuzz
def test_sends_that_serve_all_pairs_pay_for_them():
    """No sends inside two nodes and between them cost less than all pairs, if those between cost their gains."""
    ratios = []
    for seed in cases("gathering", few=40, many=10_000):
        rng = random.Random(f"gathering {seed}")
        size, cells, least, shift = (rng.choice(each) for each in ((2, 3, 4), (6, 9, 14), (0, 1), (0, 1, 2)))
        costs, pair = costs_at_random(rng, cells, least), rng.choice((20, 50, 100, 200))
        nodes = exchange_time._Nodes(2, size, Port(least, 1, shift), Port(0, 1, 0), size, 1, size)
        worth = exchange_time._worth(nodes, exchange_time._Grid(1, shift), cells, costs, pair)
        grid = size, cells, least, shift
        here, there = (sends_at_random(rng, grid, rng.randrange(3 * size)) for _ in range(2))
        starts = [rng.randrange(cells + 1) for _ in range(rng.randrange(1, 2 * size * size))]
        crossing = [
            (rng.randrange(size), rng.randrange(size), start, min(cells, start + rng.randrange(3)))
            for start in starts
        ]

        def complete(*sends, grid=grid):
            return len(served(*sends, *grid)) == grid[0] ** 2

        if complete(here, there, crossing):
            kept = needed([here, there, crossing], (costs, costs, worth), complete)
            inside = paid(kept[0], costs) + paid(kept[1], costs)
            ratios.append((size * inside + paid(kept[2], worth)) / (pair * size**3))
            assert ratios[-1] >= 1, seed
    assert min(ratios) < 1.3
