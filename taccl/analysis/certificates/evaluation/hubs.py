"""Hubs of sums: holds of sends into a rank and out of it, and the pairs of ranks that these serve."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
#: Value of a state that no holds reach.
_NONE = -(2**30)
#: `_PAIR`: least price of a pair to which `rounded` scales; the price is below twice this.
#: `_COST`: highest cost of a hold, more than it can gain. With 15 holds into a hub and 15 out of it, gains
#: stay below 2^29 and states above -2^31, even from `_NONE`.
_PAIR, _COST = 2**17, 2**24
#: Max number of cells of grids that are evaluated at once.
_FEW_CELLS = 100


class Gains(NamedTuple):
    """Max gains of hubs, by the number of joined pairs of a rank with itself and the ends of the last holds.

    The first axis is that number (`Hubs.owns`). The second is the latest end of the last hold into the hub.
    The third is the latest end of the last hold out of it, less the shift.

    - `middle`: A hold out of the hub that is in the middle of three sends follows.
    - `plain`: Neither such a hold follows, nor was a hold into the hub in the middle of three.
    - `onward`: A hold into the hub was in the middle of three; by its end, less the hop.
    """

    middle: Ints
    plain: Ints
    onward: Ints


class Hubs(NamedTuple):
    """Hubs on a grid of times. Worths below are in halves of a pair's price, and gains are doubled.

    - `costs`, (C + 1, C + 1): Cost per unit of a hold, by the cells at whose starts it begins and ends.
    - `least`: Cells of the shortest hold.
    - `shift`: Min cells from the end of a hold into a hub to the start of a hold out of it that follows.
    - `hop`: Min cells from the start of a send to the start of one that follows; more than C if three sends
      in a row have no time.
    - `pair`: Price of a pair of ranks.
    - `most`: Max number of holds into a hub, and of holds out of it.
    """

    costs: Ints
    least: int
    shift: int
    hop: int
    pair: int
    most: int

    @property
    def cells(self) -> int:
        """Number of cells of the grid."""
        return len(self.costs) - 1

    @classmethod
    def rounded(cls, costs: NDArray[np.int64], grid: tuple[int, int, int], pair: int, most: int) -> Hubs:
        """Hubs with costs in 32 bits, in which each hub gains that gains at the given costs and price.

        - `grid`: `least`, `shift` and `hop`.
        """
        unit = max(1, pair // _PAIR)
        return cls(np.minimum(costs // unit, _COST).astype(np.int32), *grid, -(-pair // unit), most)

    def onward(self, num_in: int, left: int) -> tuple[int, int]:
        """Worth of pairs whose paths end with a send in the middle of three: for the first such send, others.

        The sum over these sends is at least the lesser of two numbers: holds into the hub that are missing
        from `most`, and holds out of it that are joined to these sends.

        - `num_in`, `left`: Number of holds into the hub so far, and of holds out of it that follow.
        """
        free = self.most - num_in
        return min(left, free), max(-1, min(left, free - left))

    def owns(self, num_in: int, left: int) -> range:
        """Numbers of joined pairs of a rank with itself, for `num_in` holds before and `left` holds after."""
        return range(max(0, num_in + left - self.most), num_in + 1)

    def gain(self) -> bool:
        """True if some hub serves pairs worth more than its holds cost."""
        if len(self.costs) <= self.shift:
            return True
        # Usually half of the times already show a gain. To look at these takes an eighth of the CPU time.
        if self.cells > _FEW_CELLS and self.halved.gain():
            return True
        return any(
            int(each[:, -1:, -1:].max(initial=_NONE)) > 0 for now in self._stages() for each in now[0][1:]
        )

    @property
    def halved(self) -> Hubs:
        """Hubs whose holds begin and end at every second time of the grid."""
        least, shift, hop = (-(-each // 2) for each in (self.least, self.shift, self.hop))
        return Hubs(np.ascontiguousarray(self.costs[::2, ::2]), least, shift, hop, self.pair, self.most)

    def _stages(self) -> Iterator[dict[int, Gains]]:
        """Yield the max gains of hubs with 0, 1, ... holds in, by the number of holds out that are left.

        Dynamic programming in the order of time: a hold in comes before those out that are joined to it.
        """
        most = self.most
        alone = {most: np.zeros(len(self.costs), np.int32)}
        late = (np.arange(self.cells + 1)[:, None] >= 2 * self.hop).astype(np.int32)
        for left in range(most, 0, -1):
            gains = alone[left][:, None] - 2 * self.costs + self.pair * (2 + most * late)
            alone[left - 1] = np.maximum.accumulate(gains.max(axis=0)).clip(0)
        now = {left: self._none(0, left) for left in range(most + 1)}
        for left, each in now.items():
            each.middle[:] = alone[left][self.shift : self.shift + each.middle.shape[2]]
            each.plain[:] = alone[left][self.shift :]
        yield now
        for num_in in range(1, most + 1):
            now = {left: self._with_in(before, num_in, left) for left, before in now.items()}
            for left in range(most, -1, -1):
                for part in now[left]:
                    np.maximum.accumulate(part, axis=1, out=part)
                    np.maximum.accumulate(part, axis=2, out=part)
                if left:
                    self._add_out(now[left], now[left - 1], num_in, left)
            yield now

    def _none(self, num_in: int, left: int) -> Gains:
        """Gains of states that no holds reach."""
        num, size = len(self.owns(num_in, left)), len(self.costs) - self.shift
        shapes = (size, max(0, size - self.hop)), (size, size), (max(0, size - self.hop), size)
        return Gains(*(np.full((num, *shape), _NONE, np.int32) for shape in shapes))

    def _with_in(self, before: Gains, num_in: int, left: int) -> Gains:
        """Gains after hold `num_in` into the hub, with `left` holds out of it to follow."""
        found = self._none(num_in, left)
        # If the lowest number of pairs of a rank with itself rises, states with the old one join the next.
        rises = len(before.plain) == len(found.plain)
        early = (np.arange(self.cells + 1) <= self.cells - 2 * self.hop).astype(np.int32)
        net = self.pair * (2 + 2 * left + (self.most - left) * early) - 2 * self.costs
        first, other = (self.pair * each for each in self.onward(num_in, left))
        hop, size = self.hop, before.plain.shape[1]

        def put(to: Ints, best: Ints) -> None:
            to[:-1] = best[rises:]
            if rises:
                np.maximum(to[0], best[0] - 2 * self.pair, out=to[0])

        for last in range(self.least, size):
            num = last - self.least + 1
            some = net[:num, last, None]
            put(
                found.plain[:, last, last:],
                (before.plain[:, : min(num, hop), last:] + some[:hop]).max(axis=1),
            )
            if last < before.middle.shape[2]:
                put(found.middle[:, last, last:], (before.middle[:, :num, last:] + some).max(axis=1))
            if num > hop:
                best = (before.plain[:, hop:num, last:] + (some[hop:] + first)).max(axis=1)
                again = (before.onward[:, : num - hop, last:] + (some[hop:] + other)).max(axis=1)
                put(found.onward[:, last - hop, last:], np.maximum(best, again))
        return found

    def _add_out(self, gains: Gains, to: Gains, num_in: int, left: int) -> None:
        """Add the first of the last `left` holds out of the hub, which has `num_in` holds into it so far."""
        num_own, size, middle = gains.middle.shape
        late = (np.arange(self.shift, self.cells + 1)[:, None] >= 2 * self.hop).astype(np.int32)
        costs = self.costs[self.shift :, self.shift :]
        net = np.ascontiguousarray((self.pair * (2 + (self.most - num_in) * late) - 2 * costs).T)
        # Reversed in time, the last of the middle holds is the first one.
        first, other = (self.pair * each for each in self.onward(left, num_in))
        for last in range(self.least, size):
            num = last - self.least + 1
            if last < middle:
                best = (gains.middle[:, : last + 1, :num] + net[last, :num]).max(axis=2)
                found = to.middle[-num_own:, : last + 1, last]
                np.maximum(found, best + other, out=found)
                found = to.plain[-num_own:, : last + 1, last]
                np.maximum(found, best + first, out=found)
                continue
            for some, rows, each in (
                (gains.plain, last + 1, to.plain),
                (gains.onward, max(0, last + 1 - self.hop), to.onward),
            ):
                best = (some[:, :rows, :num] + net[last, :num]).max(axis=2)
                found = each[-num_own:, :rows, last]
                np.maximum(found, best, out=found)
