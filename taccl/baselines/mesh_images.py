"""Images of sends on a mesh under its symmetries, and the classes of links that they load equally."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from taccl._internal.caching import cached

if TYPE_CHECKING:
    from taccl.baselines.hubs import PlanSends
    from taccl.baselines.moves import Flags, Ints
    from taccl.topology.products import Dimensions
    from taccl.topology.topology import Topology


def _moves_of_dimensions(dims: Dimensions) -> list[tuple[int, ...]]:
    """Cyclic shifts of the dimensions that map each one to one of equal size and costs."""
    every = range(len(dims))
    moves = [(*every[k:], *every[:k]) for k in every]
    return [to for to in moves if all(dims.dims[k] == dims.dims[to[k]] for k in every)]


@cache
def images(dims: Dimensions) -> list[Ints]:
    """Permutations of the ranks: reflections, and cyclic shifts of equal dimensions."""
    digits, strides = dims.digits(np.arange(dims.num_ranks)), np.array(dims.strides)
    last, found = np.array(dims.sizes) - 1, []
    for to, turned in product(_moves_of_dimensions(dims), product((False, True), repeat=len(dims))):
        moved = np.where(np.array(turned)[:, None], last[:, None] - digits, digits)
        found.append((moved * strides[list(to)][:, None]).sum(axis=0))
    return found


def distinct_images(dims: Dimensions, sends: PlanSends) -> list[Ints]:
    """Images of a plan's sends that differ, as permutations of the ranks."""
    step, src, dst, _ = sends
    found: dict[bytes, Ints] = {}
    for to in images(dims):
        moved = np.stack((step, to[src], to[dst]))
        found.setdefault(moved[:, np.lexsort(moved)].tobytes(), to)
    return [*found.values()]


@cached
def classes_of_links(topology: Topology, dims: Dimensions) -> tuple[Ints, Ints, Ints]:
    """Classes of links that are images of one another: (table, sizes of the classes, their dimensions).

    - `table`: (num_dimensions, 2, num_ranks) class of the link from a rank downwards and upwards; -1 if none.
    """
    n, ranks = dims.num_ranks, np.arange(dims.num_ranks)
    digits, copies = dims.digits(ranks), np.stack(images(dims))
    least = np.full((len(dims), 2, n), -1, np.int64)
    for k, up in product(range(len(dims)), (0, 1)):
        exists: Flags = digits[k] < dims.sizes[k] - 1 if up else digits[k] > 0
        src = ranks[exists]
        dst = src + (1 if up else -1) * dims.strides[k]
        least[k, up, src] = (copies[:, src] * n + copies[:, dst]).min(axis=0)
    there = least >= 0
    _, kind = np.unique(least[there], return_inverse=True)
    table = np.full_like(least, -1)
    table[there] = kind
    axis = np.zeros(kind.max() + 1, np.int64)
    axis[kind] = np.nonzero(there)[0]
    return table, np.bincount(kind), axis


def links_of_ranks(dims: Dimensions, table: Ints) -> tuple[Ints, Ints]:
    """(neighbours of each rank, classes of the links to and from them), as in `tree_times.Grid`.

    - `table`: Classes of links, as from `classes_of_links`.
    """
    n, ways = dims.num_ranks, 2 * len(dims)
    near, kind = np.full((n, ways), -1), np.full((2, n, ways), -1)
    for k, up in product(range(len(dims)), (0, 1)):
        ranks = np.flatnonzero(table[k, up] >= 0)
        other = ranks + (1 if up else -1) * dims.strides[k]
        near[ranks, 2 * k + up] = other
        kind[0, ranks, 2 * k + up] = table[k, up, ranks]
        kind[1, ranks, 2 * k + up] = table[k, 1 - up, other]
    return near, kind
