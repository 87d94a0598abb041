"""Search for prices of data that load the links of a torus or mesh most, for sums that all ranks share.

Prices of data at each place and time determine which price of link time every send needs. The heaviest
sequence of sends over a link needs the highest total price; it is found as a longest path. A linear program
over the heaviest sequences so far proposes the next prices of data (cutting planes). The best prices are the
witness of `taccl.analysis.certificates.link_time`.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl.solvers.highs import GrowingProgram

if TYPE_CHECKING:
    from collections.abc import Iterable
    from fractions import Fraction

    from numpy.typing import NDArray

    from taccl.topology.products import Dimensions

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]

#: Largest price of a step.
_SCALE = 10**7
#: `_MOST_COST`: largest cost of a send. `_PARTS`: costs are multiples of 1 / `_PARTS`. Both as in the check.
_MOST_COST, _PARTS = 10, 10**8
#: `_ROUNDS`: max number of linear programs on meshes, and on tori. Tori have few kinds of links, so that each
#: program adds few rows. The search ends after `_SMALL` programs in a row that promise a gain of load below
#: `_ENOUGH`, for two knots; less for more knots.
_ROUNDS, _ENOUGH, _SMALL = (40, 100), 4e-3, 3
#: `_RADIUS`: first, least and largest change of a price from one program to the next. The unit is the price
#: of a path divided by the number of its hops.
#: `_WIDER`, `_NARROWER`: factors of this change after prices that are better, or are not.
_RADIUS, _WIDER, _NARROWER = (0.3, 0.005, 1.0), 2.0, 0.7
#: Largest relative change of the prices of a path and of a send, per unit of the radius.
_PATH_CHANGE, _SEND_CHANGE = 0.3, 3.0
#: First prices, divided by that of a path: fall over the horizon, rise from the source to the farthest place,
#: and price of a hop at the source.
_FALL, _RISE, _LOWEST = 1.54, 0.54, 1.03
#: First price of a send, divided by that with which all sends need as much as all paths.
_PER_SEND = 0.04

#: Prices that are cut off may stay so although others would prove more. So in short horizons on small meshes,
#: prices at knots are bounded instead, and there are more knots.
#: `_SHORT`: least time of a path divided by the horizon. `_FEW_KINDS`: max number of kinds of links. Both
#: are our choice.
_SHORT, _FEW_KINDS = 0.6, 14

#: Distances of a rank from a source along all dimensions; ascending if all dimensions are alike.
#: On odd rings they are distances in the direction that the source faces.
_Place = tuple[int, ...]
#: Coordinates of both ends of a link along each dimension, up to symmetry.
_Kind = tuple[tuple[int, int], ...]


class _Hops(NamedTuple):
    """Hops that links of one kind make, as seen from the sources; one entry per hop.

    - `here`, `there`: Indices of the places at both ends.
    - `sources`: Number of sources from which a link makes this hop.
    """

    here: Ints
    there: Ints
    sources: Ints


class Priced(NamedTuple):
    """Load of the links that the prices prove, and the prices in one unit.

    - `load`: Lower bound on the mean busy time of links, weighted by prices, as a multiple of the horizon. If
      it is 1 or more, no schedule ends before the horizon.
    - `per_send`: Price of a send, in addition to the prices of the hops that its data make.
    - `times`: Prices of link time, for each kind of links: (here, there, prices by step). The two places are
      those of one hop that such links make.
    - `places`: Prices of data at each place, by step.
    """

    load: float
    per_send: int
    times: list[tuple[_Place, _Place, tuple[int, ...]]]
    places: list[tuple[_Place, tuple[int, ...]]]


class _Prices(NamedTuple):
    """Prices of data before they are cut off at 0 and at the price of a path.

    - `knots`: (num_places, num_knots) prices at equally distant times; straight lines lie in between.
    - `path`, `send`: Price of a path, and additional price of a send.
    """

    knots: Floats
    path: float
    send: float


class LinkLoads:
    """Search for prices with the most load of links, over a grid of times, reduced by symmetry.

    Sources are all ranks of a torus, and the corners of a mesh. Ranks at the same distances from a source
    form a place, in any order of dimensions if all are alike. On odd rings, a source faces a direction, and
    distances are counted in this direction only.

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
        self._is_odd = tuple(ring and size % 2 == 1 for size, ring in shapes)
        directions = 2 ** sum(self._is_odd)
        self.num_sources = directions * math.prod(size if ring else 2 for size, ring in shapes)
        farthest = [size // 2 if ring else size - 1 for size, ring in shapes]
        self.diameter = sum(farthest)
        hops: Counter[tuple[_Kind, _Place, _Place]] = Counter()
        links: Counter[_Kind] = Counter()
        for digits in product(*map(range, self.sizes)):
            for k, step in product(range(len(digits)), (1, -1)):
                end = digits[k] + step
                if self.rings[k] or 0 <= end < self.sizes[k]:
                    other = (*digits[:k], end % self.sizes[k], *digits[k + 1 :])
                    kind = self._kind(digits, other)
                    links[kind] += 1
                    hops[kind, self._place(digits), self._place(other)] += 1
        self.places = sorted({here for _, here, _ in hops})
        self.distance = np.array([self._distance(each) for each in self.places])
        #: Place at the other end of each place: where data that were there are in reversed time.
        self.reverse = np.array(
            [self.places.index(self._place(np.subtract(farthest, each).tolist())) for each in self.places]
        )
        #: Number of links of each kind.
        self.links = np.array([links[kind] for kind in sorted(links)])
        self.hops = []
        for kind in sorted(links):
            rows = [
                (self.places.index(here), self.places.index(there), number * self.num_sources // links[kind])
                for (each, here, there), number in sorted(hops.items())
                if each == kind
            ]
            self.hops.append(_Hops(*np.array(rows, np.int64).T))
        self.reversals = self._reversals()
        # Every byte enters a corner of a mesh, over one link for each dimension.
        needed = max(2 * (self.num_ranks - 1) / self.links.sum(), 0 if all(self.rings) else 1 / len(dims))
        #: Estimate of the bound in ticks; the search starts there.
        self.guess = self.diameter * alpha + busy * needed
        #: Best prices for the latest grid; the next search begins with them.
        self.latest: _Prices | None = None

    def _place(self, digits: Iterable[int]) -> _Place:
        """Place of a rank, or of digits beyond the sizes, as seen from rank 0."""
        shapes = zip(digits, self.sizes, self.rings, self._is_odd, strict=True)
        found = [
            x % size if odd else min(x % size, -x % size) if ring else x for x, size, ring, odd in shapes
        ]
        return tuple(sorted(found) if self.is_even else found)

    def _distance(self, place: _Place) -> int:
        """Number of hops from the source to a place."""
        shapes = zip(place, self.sizes, self._is_odd, strict=True)
        return sum(min(x, size - x) if odd else x for x, size, odd in shapes)

    def _kind(self, src: _Place, dst: _Place) -> _Kind:
        """Key of a link by the coordinates of its ends, the same for links that a symmetry exchanges."""
        found = []
        for x, y, size, ring in zip(src, dst, self.sizes, self.rings, strict=True):
            found.append((0, int(x != y)) if ring else min((x, y), (size - 1 - x, size - 1 - y)))
        return tuple(sorted(found) if self.is_even else found)

    def _reversals(self) -> list[int]:
        """Reverse of each kind of links: in reversed time, sums take its hops backwards."""
        kinds = {tuple(sorted(zip(*each, strict=True))): kind for kind, each in enumerate(self.hops)}
        return [
            kinds[tuple(sorted(zip(self.reverse[there], self.reverse[here], sources, strict=True)))]
            for here, there, sources in self.hops
        ]

    def priced(
        self, horizon: Fraction, steps: int, knots: int, *, limit_s: float = math.inf
    ) -> Priced | None:
        """Prices of the most load that are found; None if none are found in time.

        - `horizon`: Ticks that are divided into `steps` equal steps.
        - `knots`: Number of times between which prices of data lie on straight lines.
        - `limit_s`: Time limit in seconds.
        """
        return _Search(self, float(horizon), steps, knots).priced(limit_s)


class _Search:
    """Search over the prices for one horizon, with the mean price of link time as 1.

    Prices are the same in reversed time: the price of a place and that of the reverse place add up to the
    price of a path. So there are columns for half of the prices and kinds of links.

    - `least`: Min number of steps of a send.
    - `stretch`: (steps + 1, steps + 1) price of link time that a price of 1 needs. Sends end in the row's
      step and begin in the column's; 0 for those that are too short.
    """

    def __init__(self, loads: LinkLoads, horizon: float, steps: int, knots: int) -> None:
        latency = loads.alpha * steps / horizon
        self.loads, self.steps, self.least = loads, steps, math.floor(latency)
        reach = min(0.9, loads.diameter * loads.alpha / horizon)
        #: True if no price at a knot is below 0 or above that of a path.
        self.bounded = reach > _SHORT and len(loads.links) <= _FEW_KINDS and not all(loads.rings)
        costs = send_costs(latency, steps)
        length = np.subtract.outer(np.arange(steps + 1), np.arange(steps + 1))
        self.stretch = np.where(length < self.least, 0.0, 1 / costs[np.maximum(length, self.least)])
        self.source = int(loads.distance.argmin())
        self.far = int(loads.reverse[self.source])
        pairs = [*enumerate(loads.reversals)]
        self.kinds = [kind for kind, other in pairs if kind <= other]
        self.numbers = np.array([loads.links[a] * (1 if a == b else 2) for a, b in pairs if a <= b])
        self.mean = steps * int(loads.links.sum())
        #: Load per price of a path and per price of a send.
        self.needed = np.array([loads.num_sources, 2 * (loads.num_ranks - 1)]) * (
            loads.busy / horizon * steps
        )
        if self.bounded:
            knots = 1 + round((knots - 1) / (1 - reach))
        at = np.linspace(0, knots - 1, steps + 1)
        #: Knot before each step, and how far the step is towards the next one.
        self.knot = np.minimum(at.astype(np.int64), knots - 2)
        self.share = at - self.knot
        self._number_columns(len(loads.places), knots)

    def _number_columns(self, num_places: int, num_knots: int) -> None:
        """Set the column of each price, and how the price depends on it and on the price of a path."""
        shape = num_places, num_knots
        #: Prices are `sign` times the column, plus `part` times the price of a path.
        self.column, self.sign, self.part = np.zeros(shape, np.int64), np.zeros(shape), np.zeros(shape)
        self.part[self.far] = 1
        number = 0
        for place, knot in product(range(num_places), range(num_knots)):
            other = self.loads.reverse[place], num_knots - 1 - knot
            if place in (self.source, self.far) or self.sign[place, knot]:
                continue
            if other == (place, knot):
                self.part[place, knot] = 0.5
                continue
            self.column[other], self.sign[other], self.part[other] = number, -1, 1
            self.column[place, knot], self.sign[place, knot] = number, 1
            number += 1
        self.path, self.send, self.size = number, number + 1, number + 2

    def _first(self) -> Floats:
        """Columns of the latest prices of another grid, or of a first guess."""
        loads, num_knots = self.loads, self.column.shape[1]
        at, latest = np.linspace(0, 1, num_knots), loads.latest
        found = np.zeros(self.size)
        if latest is None:
            path, found[self.send] = 1.0, _PER_SEND * float(self.needed[0] / self.needed[1])
            knots = _LOWEST + _RISE * (loads.distance / loads.diameter)[:, None] - _FALL * at
        else:
            path, found[self.send] = latest.path, latest.send
            before = np.linspace(0, 1, latest.knots.shape[1])
            knots = np.array([np.interp(at, before, each) for each in latest.knots])
        found[self.path] = path
        if self.bounded:
            knots = knots.clip(0, path)
        some = self.sign > 0
        found[self.column[some]] = knots[some]
        return found

    def _prices(self, columns: Floats) -> _Prices:
        path, send = columns[self.path], columns[self.send]
        return _Prices(self.sign * columns[self.column] + self.part * path, float(path), float(send))

    def _values(self, prices: _Prices) -> tuple[Floats, Flags, Flags]:
        """(price of data at each place and step, which are not cut off, and which are that of a path).

        If data cannot reach a place by some step, it has the price of a path. If the farthest place cannot be
        reached from it any more, its price is 0.
        """
        line = prices.knots[:, self.knot] * (1 - self.share) + prices.knots[:, self.knot + 1] * self.share
        full = (line >= prices.path) & (not self.bounded)
        low = np.zeros(full.shape, bool)
        distance = self.loads.distance
        for place, (apart, left) in enumerate(zip(distance, distance[self.loads.reverse], strict=True)):
            full[place, : apart * self.least] = True
            low[place, self.steps + 1 - left * self.least :] = True
        full[self.source], full[self.far] = False, True
        low[self.source] = True
        low |= (line <= 0) & (not self.bounded)
        full &= ~low
        return np.where(full, prices.path, np.where(low, 0, line)), ~(low | full), full

    def _heaviest(self, kinds: list[int], values: Floats, per_send: float) -> tuple[Floats, Ints]:
        """Least total price of a link's time up to each step, and where the send that determines it begins.

        Both are (num_kinds, steps + 1) for some kinds of links; -1 if no send determines it.
        """
        charges = np.empty((len(kinds), *self.stretch.shape))
        for charge, kind in zip(charges, kinds, strict=True):
            charge[:] = per_send
            for here, there, number in zip(*self.loads.hops[kind], strict=True):
                if here != there:
                    charge += number * np.maximum(values[there][:, None] - values[here], 0)
            charge *= self.stretch
        total, begin = np.zeros((len(kinds), self.steps + 1)), np.full((len(kinds), self.steps + 1), -1)
        each = np.arange(len(kinds))
        for end in range(self.least, self.steps + 1):
            ways = total[:, : end - self.least + 1] + charges[:, end, : end - self.least + 1]
            best = ways.argmax(axis=1)
            rises = ways[each, best] > total[:, end - 1]
            total[:, end] = np.where(rises, ways[each, best], total[:, end - 1])
            begin[rises, end] = best[rises]
        return total, begin

    def _gradient(self, kind: int, begin: Ints, values: Floats, inside: Flags, full: Flags) -> Floats:
        """Change of the heaviest sequence's total price over links of a kind, per change of each column."""
        ends, end = [], self.steps
        while end > 0:
            if begin[end] >= 0:
                ends.append(end)
            end = begin[end] if begin[end] >= 0 else end - 1
        stop = np.array(ends, np.int64)
        start = begin[stop]
        stretch = self.stretch[stop, start]
        found, knots = np.zeros(self.size), np.zeros(self.column.shape)
        found[self.send] = stretch.sum()
        for here, there, number in zip(*self.loads.hops[kind], strict=True):
            used = values[there, stop] > values[here, start]
            for place, step, weight in ((there, stop, number * stretch), (here, start, -number * stretch)):
                found[self.path] += weight[used & full[place, step]].sum()
                some = used & inside[place, step]
                knot, share, moved = self.knot[step[some]], self.share[step[some]], weight[some]
                np.add.at(knots[place], knot, moved * (1 - share))
                np.add.at(knots[place], knot + 1, moved * share)
        np.add.at(found, self.column, knots * self.sign)
        found[self.path] += (knots * self.part).sum()
        return found

    def priced(self, limit_s: float) -> Priced | None:
        """Best prices found within `limit_s` seconds; None if none are found."""
        until, radius = time.monotonic() + limit_s, _RADIUS[0]
        columns, best, best_load = self._first(), None, 0.0
        program, enough, small = self._program(), _ENOUGH / (self.column.shape[1] - 1), 0
        number = np.arange(len(self.kinds))
        for _ in range(_ROUNDS[all(self.loads.rings)]):
            if time.monotonic() > until:
                break
            prices = self._prices(columns)
            values, inside, full = self._values(prices)
            total, begin = self._heaviest(self.kinds, values, prices.send)
            load = float(self.needed @ columns[[self.path, self.send]]) / float(self.numbers @ total[:, -1])
            if load > best_load:
                radius = min(radius * _WIDER, _RADIUS[2]) if best is not None else radius
                best_load = load
                best = columns * (self.mean / float(self.numbers @ total[:, -1]))
            else:
                radius = max(radius * _NARROWER, _RADIUS[1])
            assert best is not None, "prices have some load"
            each = np.stack(
                [self._gradient(kind, begin[k], values, inside, full) for k, kind in enumerate(self.kinds)]
            )
            row, column = np.nonzero(each)
            program.add_rows(
                (
                    np.concatenate((row, number)),
                    np.concatenate((column, self.size + number)),
                    np.concatenate((each[row, column], np.full(len(number), -1.0))),
                ),
                np.zeros(len(number)),
            )
            program.set_bounds(*self._box(best, radius))
            solution = program.solved(max(0.0, until - time.monotonic()))
            if solution is None:
                break
            gain = -solution.objective - best_load
            small = small + 1 if gain < enough * min(1.0, radius / _RADIUS[0]) else 0
            if small == _SMALL:
                break
            columns = solution.values[: self.size]
        if best is None:
            return None
        self.loads.latest = self._prices(best)
        return self._rounded(self.loads.latest)

    def _program(self) -> GrowingProgram:
        """Linear program with columns for prices, and the total price of the links of each kind."""
        num_kinds = len(self.kinds)
        cost = np.zeros(self.size + num_kinds)
        cost[[self.path, self.send]] = -self.needed / self.mean
        # Prices fall from knot to knot; that limits one of a price and its reverse.
        rows: list[tuple[int, int, float]] = []
        upper: list[float] = []
        for place, knot in product(*map(range, self.column[:, 1:].shape)):
            for at, sign in ((knot + 1, 1.0), (knot, -1.0)):
                rows.append((len(upper), int(self.column[place, at]), sign * self.sign[place, at]))
                rows.append((len(upper), self.path, sign * self.part[place, at]))
            upper.append(0.0)
        for column in range(self.path if self.bounded else 0):
            rows += [(len(upper), column, 1.0), (len(upper), self.path, -1.0)]
            upper.append(0.0)
        rows += [(len(upper), self.size + k, float(each)) for k, each in enumerate(self.numbers)]
        upper.append(self.mean)
        row, column, value = np.array(rows).T
        some = value != 0
        entries = row[some].astype(np.int64), column[some].astype(np.int64), value[some]
        return GrowingProgram(cost, entries, (upper, []))

    def _box(self, best: Floats, radius: float) -> tuple[Floats, Floats]:
        """Least and largest value of each column near the best prices."""
        path, send = best[self.path], best[self.send]
        change = np.full(self.size, radius * path / self.loads.diameter)
        change[self.path] = _PATH_CHANGE * radius * path
        least = _PER_SEND * path * float(self.needed[0] / self.needed[1])
        change[self.send] = _SEND_CHANGE * radius * max(send, least)
        low, high = best - change, best + change
        if self.bounded:
            low = np.maximum(low, 0)
        low[self.send] = max(0.0, low[self.send])
        return low, high

    def _rounded(self, prices: _Prices) -> Priced:
        """Prices as whole numbers."""
        loads, every = self.loads, [*range(len(self.loads.hops))]
        values = np.minimum.accumulate(self._values(prices)[0], axis=1).clip(0, prices.path)
        rough, _ = self._heaviest(every, values, prices.send)
        # Rounding changes the price of a send by less than 1 for each source, and that of its time by less
        # than this for each of its steps.
        most = _SCALE * (1 - 1e-6) - 2 - loads.num_sources * self.steps
        scale = most / max(float(np.diff(rough, axis=1).max()), 1e-9)
        at_places = np.floor(values * scale)
        per_send = math.floor(prices.send * scale)
        total, _ = self._heaviest(every, at_places, per_send)
        whole = np.ceil(np.diff(total, axis=1)).astype(np.int64) + 1
        load = float(self.needed @ np.array([at_places[self.far, -1], per_send])) / float(
            loads.links @ whole.sum(axis=1)
        )
        first = [(loads.places[hops.here[0]], loads.places[hops.there[0]]) for hops in loads.hops]
        steps = at_places.astype(np.int64).tolist()
        return Priced(
            load,
            per_send,
            [(*ends, tuple(each)) for ends, each in zip(first, whole.tolist(), strict=True)],
            [(place, tuple(each)) for place, each in zip(loads.places, steps, strict=True)],
        )


def send_costs(latency: float, steps: int) -> Floats:
    """Cost per unit of data, by the length of its send in steps; 0 for sends shorter than the latency.

    A send pays this cost times the prices of its steps. `link_time` checks with costs that are not lower.
    """
    least = math.floor(latency)

    def line(m: int, at: float) -> float:
        over = 0.5 + m - latency if m > least else 0.75 * (least + 1 - latency)
        return 1 / over - (at - latency - over) / over**2

    found = [line(least, least)]
    for m in range(least + 1, steps + 1):
        found.append(min(found[-1], line(m - 1, m), line(m, m)))
    whole = np.floor(np.array(found).clip(0, _MOST_COST) * _PARTS) - 1
    return np.append(np.zeros(least), np.maximum(whole, 1) / _PARTS)
