"""Gains of ranks that gather data of their node, by the time of the send to another node that follows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Trees(NamedTuple):
    """Gains of trees of sends that bring data of other ranks to a root.

    - `each`: Gain for the data of one rank, before costs.
    - `gains`, (R, C): Max gain, by the max number of sends and the cell at whose start the last hold into the
      root ends.
    """

    each: int
    gains: Ints

    @property
    def best(self) -> Ints:
        """Max gain by that cell; after it that of sends without costs, and 0 if no sends precede."""
        return np.concatenate((self.gains[-1], [(len(self.gains) - 1) * self.each, 0]))


def trees_of(size: int, shift: int, costs: Ints, each: int) -> Trees:
    """Trees of up to `size` ranks: holds into a rank follow one another, and its own send follows them.

    - `shift`: Min cells from the end of a hold to the start of one that follows.
    - `costs`, (C, C): Cost of a hold, by the cells at whose starts it begins and ends.
    - `each`: Gain for the data of each rank but the root.
    """
    gains = np.zeros((size, len(costs)), np.int64)
    for number in range(1, size):
        last = _ended(_before_last(gains, gains, number, shift), costs) + each
        np.maximum(gains[number - 1], last, out=gains[number])
    return Trees(each, gains)


def hub_of(own: Trees, others: Trees, shift: int, costs: Ints) -> Ints:
    """Max gain of a root that gathers data for itself and for the other ranks of another node.

    For a rank, data is gathered in one of two ways. Either it has the root's data as well, and pays for all
    sends into the root; or it has not, and pays for those that bring its data. The order is that of
    `Trees.best`.

    - `own`: Trees for the rank that the root sends to. This rank always has the root's data.
    - `others`: Trees for each of the others.
    """
    (size, _), rest = own.gains.shape, len(own.gains) - 1
    # Gain of a send into the root, with the sends before it: for all ranks, or for all but one.
    some = rest * (others.gains + others.each)
    every = some + own.gains + own.each
    gains = np.zeros_like(own.gains)
    for number in range(1, size):
        np.copyto(gains[number], gains[number - 1])
        for branches, served in ((every, size), (some, rest)):
            last = _ended(_before_last(gains, branches, number, shift), served * costs)
            np.maximum(gains[number], last, out=gains[number])
    least = own.each + rest * others.each
    found: Ints = np.maximum(least + Trees(least, gains).best, own.each + own.best + rest * others.best)
    return found


def _before_last(root: Ints, branches: Ints, number: int, shift: int) -> Ints:
    """Max gain of `number` sends, without the last hold into the root, by the cell at which it begins.

    - `root`: Gains of fewer sends, by the end of the last hold into the root.
    - `branches`: Gains of the source of the last hold with 0, 1, ... sends before it.
    """
    found: Ints = root[number - 1] + branches[0, 0]
    for sends in range(1, number if shift < len(found) else 0):
        joined = root[number - 1 - sends, shift:] + branches[sends, : len(found) - shift]
        np.maximum(found[shift:], joined, out=found[shift:])
    return found


def _ended(before: Ints, costs: Ints) -> Ints:
    """Max gain less the cost of a last hold, by the cell at whose start it ends at the latest."""
    found: Ints = np.maximum.accumulate((before[:, None] - costs).max(axis=0))
    return found
