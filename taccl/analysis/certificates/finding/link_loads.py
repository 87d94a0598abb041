"""Linear program for the least load of links on a torus or mesh, for sums that all ranks share.

It is a relaxation over a grid of times: data of a rank flows to the farthest rank, in sends whose cost
includes latency. Its dual prices make the witness of `taccl.analysis.certificates.link_time`.
"""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.solvers.highs import minimise
from taccl.topology.products import Dimensions

#: Largest price of a step.
_SCALE = 10**6
#: Max number of steps of a grid, and largest cost of a send, as in the check.
_MOST_STEPS, _MOST_COST = 200, 10

#: Distances of a rank from a source along all dimensions; ascending if all dimensions are alike.
_Place = tuple[int, ...]
#: Coordinates of both ends of a link along each dimension, up to symmetry.
_Kind = tuple[tuple[int, int], ...]


class _Hop(NamedTuple):
    """Links between two places that lead away from a source, all of one kind.

    - `here`, `there`: Indices of the places at both ends.
    - `number`: Number of links.
    - `kind`: Index of the kind.
    """

    here: int
    there: int
    number: int
    kind: int


class Priced(NamedTuple):
    """Load of the busiest links, and the dual prices in one unit.

    - `load`: Busy time of the busiest links in their busiest step, as a multiple of the step. If it is above
      1, no schedule ends by the horizon.
    - `per_send`: Price of a send, in addition to the prices of the hops that its data make.
    - `times`: Prices of link time, for each kind of links: (here, there, prices by step). The two places are
      those of one hop that such links make.
    - `prices`: Prices of hops: (here, there, start and length of the send, price).
    """

    load: float
    per_send: int
    times: list[tuple[_Place, _Place, tuple[int, ...]]]
    prices: list[tuple[_Place, _Place, int, int, int]]


class _Sends:
    """Possible sends on a grid of times, and flows: each is data that makes a hop in a send.

    Only flows on some path from the source to the farthest rank within the horizon are listed.

    - `begin`, `long`: Start and length of each send, in steps.
    - `hop`, `send`: Indices of the hop and the send of each flow.
    """

    def __init__(self, loads: LinkLoads, steps: int, least: int) -> None:
        begin, end = np.triu_indices(steps + 1, least)
        self.begin, self.long = begin.astype(np.int64), (end - begin).astype(np.int64)
        parts = []
        for i, hop in enumerate(loads.hops):
            soonest, rest = loads.distance[hop.here], loads.diameter - loads.distance[hop.there]
            some = np.flatnonzero((begin >= soonest * least) & (steps - end >= rest * least))
            parts.append(np.stack((np.full(len(some), i), some)))
        self.hop, self.send = np.concatenate(parts, axis=1)


class LinkLoads:
    """Linear programs for the least load of the busiest links, over a grid of times, reduced by symmetry.

    Sources are all ranks of a torus, and the corners of a mesh. Ranks at the same distances from a source
    form a place, in any order of dimensions if all are alike.

    - `dims`: Rings and lines.
    - `alpha`: Latency in ticks.
    - `busy`: Ticks for all bytes over one link.
    """

    def __init__(self, dims: Dimensions, alpha: int, busy: int) -> None:
        self.sizes, self.alpha, self.busy = dims.sizes, alpha, busy
        self.rings = tuple(each.kind == "ring" and each.size > 2 for each in dims)
        shapes = tuple(zip(self.sizes, self.rings, strict=True))
        #: True if all dimensions are alike.
        self.is_even = len({*shapes}) == 1
        self.num_ranks = math.prod(self.sizes)
        self.num_sources = math.prod(size if ring else 2 for size, ring in shapes)
        self.diameter = sum(size // 2 if ring else size - 1 for size, ring in shapes)
        hops: Counter[tuple[_Place, _Place, _Kind]] = Counter()
        links: Counter[_Kind] = Counter()
        for digits in product(*map(range, self.sizes)):
            for k, step in product(range(len(digits)), (1, -1)):
                end = digits[k] + step
                if not self.rings[k] and not 0 <= end < self.sizes[k]:
                    continue
                other = (*digits[:k], end % self.sizes[k], *digits[k + 1 :])
                here, there, kind = self._place(digits), self._place(other), self._kind(digits, other)
                links[kind] += 1
                if sum(there) > sum(here):
                    hops[here, there, kind] += 1
        self.places = sorted({place for here, there, _ in hops for place in (here, there)})
        kinds = sorted(links)
        #: Number of links of each kind.
        self.links = [links[kind] for kind in kinds]
        self.hops = [
            _Hop(self.places.index(here), self.places.index(there), count, kinds.index(kind))
            for (here, there, kind), count in sorted(hops.items())
        ]
        self.distance = [sum(each) for each in self.places]
        # Every byte enters a corner of a mesh, over one link for each dimension.
        needed = max(2 * (self.num_ranks - 1) / sum(self.links), 0 if all(self.rings) else 1 / len(dims))
        #: Estimate of the bound in ticks; the search starts there.
        self.guess = self.diameter * alpha + busy * needed

    def _place(self, digits: _Place) -> _Place:
        """Distances from rank 0 along each dimension, sorted if all dimensions are alike.

        - `digits`: Coordinates of a rank.
        """
        shapes = zip(digits, self.sizes, self.rings, strict=True)
        found = [min(x, size - x) if ring else x for x, size, ring in shapes]
        return tuple(sorted(found) if self.is_even else found)

    def _kind(self, src: _Place, dst: _Place) -> _Kind:
        """Key of a link by the coordinates of its ends, the same for links that a symmetry exchanges."""
        found = []
        for x, y, size, ring in zip(src, dst, self.sizes, self.rings, strict=True):
            found.append((0, int(x != y)) if ring else min((x, y), (size - 1 - x, size - 1 - y)))
        return tuple(sorted(found) if self.is_even else found)

    def num_columns(self, horizon: float, steps: int) -> float:
        """Number of sends and flows of the linear program; inf if the grid is too coarse or too fine."""
        least = math.floor(self.alpha * steps / horizon)
        flows, length = self.num_flows(steps, least), steps - least + 1
        if not 1 <= least <= steps <= _MOST_STEPS or not flows:
            return math.inf
        return flows + len(self.links) * length * (length + 1) // 2

    def num_flows(self, steps: int, least: int) -> int:
        """Number of flows of the linear program.

        - `steps`: Number of time steps.
        - `least`: Min number of steps of a send.
        """
        # Number of lengths (in steps) that a send over each hop can have if it starts as early as possible.
        # If it starts one step later, it can have one length fewer, and so on.
        lengths = (
            steps - (self.distance[hop.here] + self.diameter - self.distance[hop.there] + 1) * least + 1
            for hop in self.hops
        )
        return sum(each * (each + 1) // 2 for each in lengths if each > 0)

    def priced(self, horizon: Fraction, steps: int, *, limit_s: float = math.inf) -> Priced | None:
        """Load of the busiest links, and dual prices; None if the program is not solved in time.

        - `horizon`: Ticks that are divided into `steps` equal steps.
        - `limit_s`: Time limit of the program in seconds.
        """
        latency = float(self.alpha * steps / horizon)
        sends, costs = _Sends(self, steps, math.floor(latency)), send_costs(latency, steps)
        begin, long, flow_of = sends.begin, sends.long, np.array(self.hops, np.int64)[sends.hop]
        src, dst, count, kind = flow_of.T
        # Columns: sends per link of each kind, flows, waits at places, loads of links, the highest load.
        # Rows: capacities of flows, the highest load, loads, balances of places, the target, and the number
        # of sends.
        num_kinds, num_flows, num_sends = len(self.links), len(src), len(begin)
        every, kinds = np.arange(num_kinds * num_sends), np.repeat(np.arange(num_kinds), num_sends)
        points, cells = np.arange(len(self.places) * (steps + 1)), np.arange(num_kinds * steps)
        flow = len(every) + np.arange(num_flows)
        wait = len(every) + num_flows + points
        load = len(every) + num_flows + len(points) + cells
        highest, change = num_flows + cells, num_flows + len(cells) + cells
        balance = num_flows + 2 * len(cells) + points
        target, number = (num_flows + 2 * len(cells) + len(points) + i for i in range(2))
        later, not_first = np.flatnonzero(points % (steps + 1)), np.flatnonzero(cells % steps)
        far = (self.distance.index(self.diameter) + 1) * (steps + 1) - 1
        per_byte = self.busy * steps / float(horizon)
        carried, after = np.tile(costs[long] * per_byte, num_kinds), np.tile(begin + long, num_kinds)
        ended = np.flatnonzero(after < steps)
        entries = [
            (np.arange(num_flows), flow, np.ones(num_flows)),
            (np.arange(num_flows), kind * num_sends + sends.send, -count.astype(float)),
            (highest, load, np.ones(len(cells))),
            (highest, np.full(len(cells), load[-1] + 1), np.full(len(cells), -1.0)),
            (change, load, np.full(len(cells), -1.0)),
            (change[not_first], load[not_first - 1], np.ones(len(not_first))),
            (change[kinds * steps + np.tile(begin, num_kinds)], every, carried),
            (change[kinds[ended] * steps + after[ended]], ended, -carried[ended]),
            (balance, wait, np.ones(len(points))),
            (balance[later], wait[later - 1], np.full(len(later), -1.0)),
            (balance[src * (steps + 1) + begin[sends.send]], flow, np.ones(num_flows)),
            (balance[dst * (steps + 1) + (begin + long)[sends.send]], flow, np.full(num_flows, -1.0)),
            (np.array([target]), wait[[far]], np.array([-1.0])),
            (np.full(len(every), number), every, -np.array(self.links, float)[kinds]),
        ]
        upper = np.zeros(number + 1)
        upper[balance[self.distance.index(0) * (steps + 1)]] = 1.0
        upper[target], upper[number] = -1.0, -2.0 * (self.num_ranks - 1)
        objective = np.zeros(load[-1] + 2)
        objective[-1] = 1.0
        row, column, value = (np.concatenate(each) for each in zip(*entries, strict=True))
        answer = minimise(objective, (row, column, value), (upper, ()), method="ipm", limit_s=limit_s)
        if answer is None or answer.values[-1] <= 0:
            return None
        duals = np.maximum(-answer.duals, 0.0)
        times = duals[highest].reshape(num_kinds, steps) * per_byte / np.array(self.links)[:, None]
        return self._rounded(
            float(answer.values[-1]),
            sends,
            costs,
            times,
            duals[:num_flows] / self.num_sources,
            float(duals[number]),
        )

    def _rounded(
        self,
        load: float,
        sends: _Sends,
        costs: NDArray[np.float64],
        times: NDArray[np.float64],
        prices: NDArray[np.float64],
        per_send: float,
    ) -> Priced:
        """Prices as whole numbers, with those of hops lowered until the cost of each send covers them."""
        scale = _SCALE / max(times.max(), 1e-9)
        whole = np.ceil(times * scale).astype(np.int64)
        fixed = max(0, math.floor(per_send * scale * (1 - 1e-6)) - 1)
        _, _, count, kind = np.array(self.hops, np.int64)[sends.hop].T
        begin, long, size = sends.begin[sends.send], sends.long[sends.send], len(sends.begin)
        sums = np.concatenate((np.zeros((len(whole), 1)), np.cumsum(whole, axis=1)), axis=1)
        room = costs[long] * (sums[kind, begin + long] - sums[kind, begin]) - fixed - 1
        # Sum, over all sources, of the prices of the hops that their data may make in a send over a link.
        paid = prices * scale * count * self.num_sources / np.array(self.links)[kind]
        total = np.bincount(kind * size + sends.send, paid, len(whole) * size)[kind * size + sends.send]
        share = np.clip(room * (1 - 1e-7) / np.maximum(total, 1e-9), 0, 1)
        lowered = np.floor(prices * scale * share).astype(np.int64)
        ends = [(self.places[hop.here], self.places[hop.there]) for hop in self.hops]
        first = {hop.kind: i for i, hop in reversed([*enumerate(self.hops)])}
        return Priced(
            load,
            fixed,
            [(*ends[first[kind]], tuple(each)) for kind, each in enumerate(whole.tolist())],
            [
                (*ends[i], *send)
                for i, *send in zip(
                    *(each.tolist() for each in (sends.hop, begin, long, lowered)), strict=True
                )
                if send[-1]
            ],
        )


def send_costs(latency: float, steps: int) -> NDArray[np.float64]:
    """Cost per unit of data, by the length of its send in steps; 0 for sends shorter than the latency.

    A send pays this cost times the prices of its steps. `link_time` checks with the same costs.
    """
    least = math.floor(latency)

    def line(m: int, at: float) -> float:
        over = 0.5 + m - latency if m > least else 0.75 * (least + 1 - latency)
        return 1 / over - (at - latency - over) / over**2

    found = [line(least, least)]
    for m in range(least + 1, steps + 1):
        found.append(min(found[-1], line(m - 1, m), line(m, m)))
    return np.array([0.0] * least + found).clip(0, _MOST_COST)
