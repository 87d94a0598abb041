"""Gains of ranks that gather data: all sends of a unit of two nodes together pay for all pairs of ranks."""

import random
from itertools import product

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


def sends_at_random(rng, size, ends, least):
    """Random sends (source, destination, start, end of the hold) that join all ranks of two nodes.

    Inside nodes, holds of a port into a rank do not overlap, nor do those of a port out of it.

    - `ends`: Latest ends of holds, inside nodes and between them.
    """
    ranks, found = range(2 * size), []
    for _ in range(rng.randrange(2, 4 * size * size)):
        src, dst = rng.sample(ranks, 2)
        is_far, first = src // size != dst // size, rng.randrange(ends[1] + 1)
        last = first + max(least, rng.choice((0, 1, 1, 2, 3)))
        near = (each for each in found if each[0] // size == each[1] // size)
        held = (each[2:] for each in near if each[0] == src or each[1] == dst)
        if last <= ends[is_far] and (is_far or all(last <= start or end <= first for start, end in held)):
            found.append((src, dst, first, last))
    for src, dst in product(ranks, ranks):
        if src // size != dst // size:
            found.append((src, dst, *[rng.randrange(ends[1] + 1)] * 2))
    return found


def served(sends, size, waits, end):
    """Number of ordered pairs of ranks of different nodes that a path of sends joins by a time.

    - `waits`: Times from the end of a hold to the arrival, inside nodes and between them.
    """
    times = {(rank, rank): 0 for rank in range(2 * size)}
    while True:
        before = dict(times)
        for src, dst, first, last in sends:
            arrival = last + waits[src // size != dst // size]
            for rank in range(2 * size):
                if before.get((rank, src), np.inf) <= first and arrival <= end:
                    times[rank, dst] = min(times.get((rank, dst), np.inf), arrival)
        if before == times:
            return sum(a // size != b // size for a, b in times)


@pytest.mark.fuzz
def test_sends_that_serve_all_pairs_pay_for_them():
    """Sends cost all pairs at least if one between nodes costs its gain, also if some pairs need three sends."""
    ratios = []
    for seed in cases("gathering", few=20, many=5000):
        rng = random.Random(f"gathering {seed}")
        size, least, wait, far = (rng.choice(each) for each in ((2, 2, 3, 4), (0, 1), (0, 1, 2), (2, 4, 20)))
        cells, pair = min(rng.choice((6, 9, 14)), 4 * far - 1), rng.choice((20, 50, 100, 200))
        costs, end, waits = costs_at_random(rng, cells, least), cells + far, (wait, far)
        nodes = exchange_time._Nodes(2, size, Port(least, 1, wait), Port(0, 1, far), size, 1, size)
        worth = exchange_time._worth(nodes, exchange_time._Grid(1, wait), cells, costs, pair)

        def paid(src, dst, first, last, costs=costs, size=size, worth=worth, latest=end - wait):
            if src // size != dst // size:
                return worth[first, last]
            both = (first, last), (latest - last, latest - first)
            return size * sum(costs[each] for each in both if 0 <= each[0] <= each[1] < len(costs))

        sends = sends_at_random(rng, size, (end - wait, cells), least)
        for each in sorted(sends, key=lambda each: paid(*each), reverse=True):
            fewer = [other for other in sends if other is not each]
            if served(fewer, size, waits, end) == 2 * size**2:
                sends = fewer
        ratios.append(sum(paid(*each) for each in sends) / (2 * pair * size**3))
        assert ratios[-1] >= 1, seed
    assert min(ratios) < 1.1
