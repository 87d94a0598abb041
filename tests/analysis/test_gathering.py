"""Gains of ranks that gather data: all sends of a unit of two nodes together pay for all pairs of ranks."""

import random
from itertools import product

import numpy as np
import pytest

from taccl.analysis.certificates import exchange_time
from taccl.analysis.certificates.evaluation.port_prices import NEVER, Port
from tests.fuzzing import cases, some


def costs_at_random(rng, cells, least):
    """Random costs of holds on a grid, which fall with the length; `NEVER` below `least` cells."""
    prices = [rng.choice((0, 1, 2, 5, 9)) for _ in range(cells + 1)]
    found = np.full((cells + 1, cells + 1), NEVER)
    for start in range(cells + 1):
        for end in range(start + least, cells + 1):
            held = prices[start : end + 1]
            found[start, end] = 10 * sum(held) * (end - start + 3) // (len(held) * (end - start + 1))
    return found


def links_of(nodes):
    """Ordered pairs of ranks in one node, and of ranks of two nodes that have a link, on rails if `reach` is 1."""
    ranks, size = range(nodes.number * nodes.size), nodes.size
    pairs = [(a, b) for a, b in product(ranks, ranks) if a != b]
    near = [(a, b) for a, b in pairs if a // size == b // size]
    return near, [
        (a, b) for a, b in pairs if a // size != b // size and (nodes.reach > 1 or a % size == b % size)
    ]


def sends_at_random(rng, nodes, ends, least):
    """Random sends (source, destination, start, end of the hold), some between all ranks with links between nodes.

    Inside nodes, holds of a port into a rank do not overlap, nor do those of a port out of it.

    - `ends`: Latest ends of holds, inside nodes and between them.
    """
    near, far = links_of(nodes)
    found, inside = [], []
    for _ in range(rng.randrange(2, 2 * nodes.number * nodes.size**2)):
        is_far = rng.random() < 0.6
        src, dst = rng.choice(far if is_far else near)
        first = rng.randrange(ends[1] + 1)
        last = first + max(least, rng.choice((0, 1, 1, 2, 3)))
        held = (each[2:] for each in inside if each[0] == src or each[1] == dst)
        if last <= ends[is_far] and (is_far or all(last <= start or end <= first for start, end in held)):
            (found if is_far else inside).append((src, dst, first, last))
    return found + inside + [(*ends_of, *[rng.randrange(ends[1] + 1)] * 2) for ends_of in far]


def joins_all(sends, nodes, waits, end):
    """True if paths of sends join all ordered pairs of ranks of different nodes by a time.

    - `waits`: Times from the end of a hold to the arrival, inside nodes and between them.
    """
    node = [rank // nodes.size for rank in range(nodes.number * nodes.size)]
    times = np.full((len(node), len(node)), end + 1)
    np.fill_diagonal(times, 0)
    in_order, before = sorted(sends, key=lambda each: each[2:]), None
    while before is None or (before != times).any():
        before = times.copy()
        for src, dst, first, last in in_order:
            arrival = last + (waits[0] if node[src] == node[dst] else waits[1])
            np.minimum(times[:, dst], arrival, out=times[:, dst], where=times[:, src] <= first)
    return all(times[a, b] <= end for a, b in np.ndindex(times.shape) if node[a] != node[b])


@pytest.mark.fuzz
def test_sends_that_serve_all_pairs_pay_for_them():
    """Sends cost all pairs at least if one between nodes costs its gain, also if some pairs need two or three."""
    ratios = []
    for seed in cases("gathering", few=20, many=5000):
        rng = random.Random(f"gathering {seed}")
        number, size, least, wait, far = (
            rng.choice(each) for each in ((2, 2, 3, 4), (2, 2, 3), (0, 1), (0, 1, 2), (2, 4, 20))
        )
        cells, pair = min(rng.choice((6, 9, 14)), 4 * far - 1), rng.choice((20, 50, 100, 200))
        costs, end, waits = costs_at_random(rng, cells, least), cells + far, (wait, far)
        reach = rng.choice((1, size))
        nodes = exchange_time._Nodes(number, size, Port(least, 1, wait), Port(0, 1, far), size, 1, reach)
        worth = exchange_time._worth(nodes, exchange_time._Grid(1, wait), cells, costs, pair)
        sharing = size * (number - 1)

        def paid(each, costs=costs, size=size, worth=worth, latest=end - wait, sharing=sharing):
            src, dst, first, last = each
            if src // size != dst // size:
                return worth[first, last]
            both = (first, last), (latest - last, latest - first)
            return sharing * sum(costs[each] for each in both if 0 <= each[0] <= each[1] < len(costs))

        sends = sends_at_random(rng, nodes, (end - wait, cells), least)
        if not joins_all(sends, nodes, waits, end):
            continue
        for each in sorted(sends, key=paid, reverse=True):
            fewer = [other for other in sends if other is not each]
            if joins_all(fewer, nodes, waits, end):
                sends = fewer
        ratios.append(sum(map(paid, sends)) / (pair * sharing * nodes.pairs))
        assert ratios[-1] >= 1, seed
    assert len(ratios) > some(8, 2000) and min(ratios) < 1.5
