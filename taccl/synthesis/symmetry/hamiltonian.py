"""A ring through a mesh: with an even side, a way that visits every rank once and comes back to the first.

A rank in the corner of a mesh of two axes has two links in, so an allgather takes (R - 1) / 2 rounds at
least. A ring that goes both ways round takes exactly this number, for any size, and its schedule stays
implicit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from taccl.errors import TopologyError


def has_hamiltonian_ring(dims: Sequence[int]) -> bool:
    """True if a mesh has a ring through all ranks: two axes or more that have two ranks, one of them even."""
    real = [dim for dim in dims if dim > 1]
    return len(real) > 1 and any(dim % 2 == 0 for dim in real)


def hamiltonian_ring(dims: Sequence[int]) -> NDArray[np.int64]:
    """Ranks in the order in which a ring visits them, each linked to the next, the last to the first.

    One even axis is set upright; the others are gone through to and fro, as one axis. Of this sheet the first
    column is kept for the way back, and the rows of the rest are gone through to and fro. Raises
    `TopologyError` if the mesh has no such ring.
    """
    if not has_hamiltonian_ring(dims):
        raise TopologyError(
            "a mesh has no translations, and no ring visits every rank once; expected two axes of two ranks "
            "or more, one of them even; use backend='greedy' on the topology",
            where=f"mesh:{'x'.join(map(str, dims))}",
        )
    upright = next(axis for axis, dim in enumerate(dims) if dim % 2 == 0)
    grid = np.moveaxis(np.arange(int(np.prod(dims)), dtype=np.int64).reshape(dims), upright, 0)
    sheet = grid.reshape(grid.shape[0], -1)[:, _to_and_fro(grid.shape[1:])]
    rows = sheet[:, 1:].copy()
    rows[1::2] = rows[1::2, ::-1]
    return np.concatenate((rows.ravel(), sheet[::-1, 0]))


def _to_and_fro(dims: Sequence[int]) -> NDArray[np.int64]:
    """Cells of a grid, so that each is beside the next: along the last axis to and fro, and so on upwards."""
    path = np.zeros(1, dtype=np.int64)
    for dim in reversed(dims):
        size = len(path)
        turned = np.stack([path if place % 2 == 0 else path[::-1] for place in range(dim)])
        path = (turned + size * np.arange(dim, dtype=np.int64)[:, None]).ravel()
    return path
