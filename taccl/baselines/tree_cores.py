"""Cores of mixes of trees on a mesh: groups of hubs in which trees end, and the first trees to them."""

from __future__ import annotations

import math
from itertools import permutations, product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl.baselines.mesh_images import images
from taccl.baselines.tree_times import Cores, Shares

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


def cores_of(dims: Dimensions, near: Ints, kind: Ints, *, wide: bool = False) -> tuple[Cores, int]:
    """(cores, least number of steps of a share).

    Hubs are one rank or two neighbours along each dimension. They exchange sums along one dimension after
    another. Cores that are images of others are left out.

    - `near`, `kind`: As in `Grid`.
    - `wide`: True if there may be more neighbours along all dimensions but the last of the exchange. There,
      sends after the first half carry whole sums, which the kernels would count as partial ones.
    """
    blocks: dict[tuple[object, ...], _Block] = {}
    copies = np.stack(images(dims))
    for low, high in product(product(*map(range, dims.sizes)), repeat=2):
        more = [b - a for a, b in zip(low, high, strict=True)]
        if min(more) < 0 or (max(more) > 1 and not wide):
            continue
        hubs = _hubs(dims, low, high)
        image = min(map(tuple, np.sort(copies[:, hubs]).tolist()))
        reach = sum(max(a, size - 1 - b) for a, b, size in zip(low, high, dims.sizes, strict=True))
        lasts = [k for k, each in enumerate(more) if each == 1] if max(more) > 1 else [len(dims) - 1]
        for last in lasts:
            order = (*(k for k in range(len(dims)) if k != last), last)
            key = image, last if max(more) > 1 else None
            blocks.setdefault(key, _Block(2 * reach + sum(more), low, high, order))
    every = sorted(blocks.values())[:_MOST_CORES]
    digits, orders = dims.digits(np.arange(dims.num_ranks)), _orders(len(dims))
    way = np.full((len(every), len(orders), dims.num_ranks), -1)
    rows: list[list[tuple[int, int, int, int]]] = []  # class, step, source, destination
    for core, (_, low, high, along) in enumerate(every):
        for s, order in enumerate(orders):
            for k in reversed(order):
                way[core, s, digits[k] < low[k]] = 2 * k + 1
                way[core, s, digits[k] > high[k]] = 2 * k
        rows.append([])
        hubs, step = _hubs(dims, low, high), 0
        for k in along:
            for i in range(high[k] - low[k]):
                for hub, (to, digit) in product(hubs, ((2 * k + 1, low[k] + i), (2 * k, high[k] - i))):
                    if digits[k, hub] == digit:
                        rows[core].append((int(kind[0, hub, to]), step + i, hub, int(near[hub, to])))
            step += high[k] - low[k]
    sends = np.full((len(every), max(map(len, rows)), 4), -1)
    for core, each in enumerate(rows):
        sends[core, : len(each)] = np.array(each).reshape(-1, 4)
    num_hubs = np.array([len(_hubs(dims, low, high)) for _, low, high, _ in every])
    length = np.array([sum(high) - sum(low) for _, low, high, _ in every])
    kinds, steps = np.ascontiguousarray(np.moveaxis(sends[..., :2], 2, 0))
    return Cores(num_hubs, length, kinds, steps, np.ascontiguousarray(sends[..., 2:]), way), every[0].steps


class _Block(NamedTuple):
    """Block of hubs.

    - `steps`: Least number of steps of a share.
    - `low`, `high`: First and last digit along each dimension.
    - `along`: Dimensions along which hubs exchange sums, in order.
    """

    steps: int
    low: tuple[int, ...]
    high: tuple[int, ...]
    along: tuple[int, ...]


def _hubs(dims: Dimensions, low: Sequence[int], high: Sequence[int]) -> list[int]:
    """Ranks of a block, ascending."""
    ranks = product(*(range(a, b + 1) for a, b in zip(low, high, strict=True)))
    return sorted(sum(x * y for x, y in zip(each, dims.strides, strict=True)) for each in ranks)


def _orders(num: int) -> Sequence[tuple[int, ...]]:
    """Orders of dimensions: all if there are few, otherwise cyclic shifts."""
    if math.factorial(num) <= _MOST_ORDERS:
        return [*permutations(range(num))]
    return [(*range(k, num), *range(k)) for k in range(num)]


def divided(shares: Shares, cores: Cores, parts: int) -> tuple[Shares, Cores]:
    """Copies of shares and cores with each step divided into `parts` steps; all sends are in the last one."""
    begin, step = ((each + 1) * parts - 1 for each in (shares.begin, shares.step))
    sends = np.repeat(shares.sends, parts, axis=2)
    sends[:, :, np.arange(sends.shape[2]) % parts < parts - 1] = 0
    closed = np.zeros(sends.shape, bool)
    copied = Shares(shares.core.copy(), begin, shares.way.copy(), step, sends, closed, shares.random.copy())
    length = np.where(cores.length > 0, (cores.length - 1) * parts + 1, 0)
    return copied, cores._replace(length=length, step=np.where(cores.kind >= 0, cores.step * parts, -1))
