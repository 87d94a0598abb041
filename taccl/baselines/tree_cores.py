"""Cores of mixes of trees on a mesh: groups of hubs in which trees end, and the first trees to them."""

from __future__ import annotations

import math
from itertools import permutations, product
from typing import TYPE_CHECKING

import numpy as np

from taccl.baselines.mesh_images import images
from taccl.baselines.tree_times import Cores

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taccl.baselines.moves import Flags, Ints
    from taccl.topology.products import Dimensions

#: `_MOST_CORES`: max sets of hubs that shares may have; those nearest to all ranks are kept.
#: `_MOST_ORDERS`: max orders of the dimensions that the first trees take.
_MOST_CORES, _MOST_ORDERS = 64, 6


def at_ends(near: Ints, kind: Ints) -> Flags:
    """True for classes of links at the ranks with the fewest links (corners); none if all have as many."""
    number = (near >= 0).sum(axis=1)
    found = np.zeros(kind.max() + 1, bool)
    some = kind[:, (number == number.min()) & (number < number.max())]
    found[some[some >= 0]] = True
    return found & ~found.all()


def cores_of(dims: Dimensions, near: Ints, kind: Ints) -> tuple[Cores, int]:
    """(cores, least number of steps of a share).

    Hubs are one rank or two neighbours along each dimension. They exchange sums along one dimension after
    another. Cores that are images of others are left out.

    - `near`, `kind`: As in `Grid`.
    """
    blocks: dict[tuple[int, ...], tuple[int, tuple[int, ...], tuple[int, ...], list[int]]] = {}
    copies = np.stack(images(dims))
    for low, two in product(product(*map(range, dims.sizes)), product((0, 1), repeat=len(dims))):
        high = [a + b for a, b in zip(low, two, strict=True)]
        if any(b >= size for b, size in zip(high, dims.sizes, strict=True)):
            continue
        corners = product(*({a, b} for a, b in zip(low, high, strict=True)))
        hubs = sorted(sum(x * y for x, y in zip(each, dims.strides, strict=True)) for each in corners)
        reach = sum(max(a, size - 1 - b) for a, b, size in zip(low, high, dims.sizes, strict=True))
        image = min(map(tuple, np.sort(copies[:, hubs]).tolist()))
        blocks.setdefault(image, (2 * reach + sum(two), low, two, hubs))
    every = sorted(blocks.values())[:_MOST_CORES]
    digits, num, orders = dims.digits(np.arange(dims.num_ranks)), len(dims), _orders(len(dims))
    way = np.full((len(every), len(orders), dims.num_ranks), -1)
    sends = np.full((len(every), num * 2**num, 4), -1)  # class, step, source, destination
    for core, (_, low, two, hubs) in enumerate(every):
        for s, order in enumerate(orders):
            for k in reversed(order):
                way[core, s, digits[k] < low[k]] = 2 * k + 1
                way[core, s, digits[k] > low[k] + two[k]] = 2 * k
        for i, (step, hub) in enumerate(product(range(sum(two)), hubs)):
            k = np.flatnonzero(two)[step]
            to = 2 * k + int(digits[k, hub] == low[k])
            sends[core, i] = kind[0, hub, to], step, hub, near[hub, to]
    num_hubs = np.array([len(hubs) for *_, hubs in every])
    length = np.array([sum(two) for _, _, two, _ in every])
    kinds, steps = np.ascontiguousarray(np.moveaxis(sends[..., :2], 2, 0))
    return Cores(num_hubs, length, kinds, steps, np.ascontiguousarray(sends[..., 2:]), way), every[0][0]


def _orders(num: int) -> Sequence[tuple[int, ...]]:
    """Orders of dimensions: all if there are few, otherwise cyclic shifts."""
    if math.factorial(num) <= _MOST_ORDERS:
        return [*permutations(range(num))]
    return [(*range(k, num), *range(k)) for k in range(num)]
