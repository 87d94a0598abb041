"""Linear program for the least load of links on a torus or mesh, for sums that all ranks share.

It is a relaxation over a grid of times: data of a rank flows to the farthest rank, in sends whose cost
includes latency. The program is the dual one, with prices of the time of links and of data at each place and
time as variables. Its rows are added as they are violated. The prices make the witness of
`taccl.analysis.certificates.link_time`.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from itertools import groupby, product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl.solvers.highs import GrowingProgram

if TYPE_CHECKING:
    from fractions import Fraction

    from numpy.typing import NDArray

    from taccl.topology.products import Dimensions

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]

#: `_SCALE`: largest price of a step.
#: `_SPARE`: added to the price of each step, so that sends remain feasible if prices are rounded.
_SCALE, _SPARE = 10**7, 1000
#: Largest cost of a send, as in the check.
_MOST_COST = 10
#: `_ROUNDS`: max number of linear programs.
#: `_BLOCKS`: number of intervals of the grid by which violated rows are grouped; a row of each is added.
#: `_ENOUGH`: relative violation at which no more rows are added.
_ROUNDS, _BLOCKS, _ENOUGH = 60, 24, 2e-3
#: Smallest violation of a row.
_LEAST = 1e-6
#: Durations of the sends for which the first linear program has rows, as multiples of the latency.
_FIRST = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
#: Max dual price of data and of a send in the first linear programs, divided by the number of steps.
_MOST_PRICE = 100.0

#: Distances of a rank from a source along all dimensions; ascending if all dimensions are alike.
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


class _Row(NamedTuple):
    """Condition for a send that limits the prices of a linear program.

    - `begin`, `end`: Start and end of the send, relative to the horizon.
    - `used`: True for each hop of links of this kind whose data use the send.
    """

    kind: int
    begin: float
    end: float
    used: Flags


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
        self.distance = np.array([sum(each) for each in self.places])
        #: Number of links of each kind.
        self.links = [links[kind] for kind in sorted(links)]
        self.hops = []
        for kind in sorted(links):
            rows = [
                (self.places.index(here), self.places.index(there), number * self.num_sources // links[kind])
                for (each, here, there), number in sorted(hops.items())
                if each == kind
            ]
            self.hops.append(_Hops(*np.array(rows, np.int64).T))
        # Every byte enters a corner of a mesh, over one link for each dimension.
        needed = max(2 * (self.num_ranks - 1) / sum(self.links), 0 if all(self.rings) else 1 / len(dims))
        #: Estimate of the bound in ticks; the search starts there.
        self.guess = self.diameter * alpha + busy * needed
        #: Rows that limit the prices of the latest program; the next one begins with them.
        self.limiting: list[_Row] = []

    def _place(self, digits: _Place) -> _Place:
        """Distances from rank 0 along each dimension, sorted if all dimensions are alike."""
        shapes = zip(digits, self.sizes, self.rings, strict=True)
        found = [min(x, size - x) if ring else x for x, size, ring in shapes]
        return tuple(sorted(found) if self.is_even else found)

    def _kind(self, src: _Place, dst: _Place) -> _Kind:
        """Key of a link by the coordinates of its ends, the same for links that a symmetry exchanges."""
        found = []
        for x, y, size, ring in zip(src, dst, self.sizes, self.rings, strict=True):
            found.append((0, int(x != y)) if ring else min((x, y), (size - 1 - x, size - 1 - y)))
        return tuple(sorted(found) if self.is_even else found)

    def priced(
        self, horizon: Fraction, steps: int, knots: int, *, limit_s: float = math.inf
    ) -> Priced | None:
        """Load of the busiest links, and dual prices; None if no prices are found in time.

        - `horizon`: Ticks that are divided into `steps` equal steps.
        - `knots`: Number of times between which prices are interpolated linearly.
        - `limit_s`: Time limit of the program in seconds.
        """
        return _Program(self, float(horizon), steps, knots).priced(limit_s)


class _Program:
    """Linear program of one horizon, with the mean price of link time as 1.

    - `least`: Min number of steps of a send.
    - `costs`: As from `send_costs`.
    """

    def __init__(self, loads: LinkLoads, horizon: float, steps: int, knots: int) -> None:
        latency = loads.alpha * steps / horizon
        self.loads, self.steps, self.least = loads, steps, math.floor(latency)
        self.costs = send_costs(latency, steps)
        self.knots = np.unique(np.linspace(0, steps, min(knots, steps + 1)).round().astype(np.int64))
        self.begin, self.end = (each.astype(np.int64) for each in np.triu_indices(steps + 1, self.least))
        self.source, self.far = int(loads.distance.argmin()), int(loads.distance.argmax())
        # Columns: prices of link time up to each knot, prices of places at each knot, price of a send.
        size, num_kinds, num_places = len(self.knots), len(loads.links), len(loads.places)
        self.shape = num_kinds, num_places, size
        self.per_send = size * (num_kinds + num_places)
        cost = np.zeros(self.per_send + 1)
        last = size * (num_kinds + self.far + 1) - 1
        #: Load per price of a path and per price of a send.
        self.needed = np.array([loads.num_sources, 2 * (loads.num_ranks - 1)]) * (
            loads.busy / horizon / sum(loads.links)
        )
        cost[[last, self.per_send]] = -self.needed
        column = np.arange(self.per_send)
        inner = column[column % size > 0]
        rising = np.where(inner < size * num_kinds, 1.0, -1.0)  # of link time; those of places fall
        row, ends = np.arange(len(inner)), np.arange(num_kinds) * size + size - 1
        total = len(inner) + 2
        entries = (
            np.concatenate((row, row, (total - 2, total - 1), np.full(num_kinds, total))),
            np.concatenate((inner - 1, inner, (last, self.per_send), ends)),
            np.concatenate((rising, -rising, (1.0, 1.0), loads.links)),
        )
        upper = np.append(np.zeros(len(inner)), np.full(2, _MOST_PRICE * steps))
        self.program = GrowingProgram(cost, entries, (upper, [float(steps * sum(loads.links))]))
        #: Number of rows that are not for sends.
        self.num_others = total + 1
        #: Arguments of each call of `_add`, in the order of the rows that they added.
        self.added: list[tuple[int, Ints, Flags]] = []

    def _at(self, start: int | Ints, step: Ints) -> tuple[Ints, Floats]:
        """(columns, weights) of the value at a step, (2, num_steps) each, interpolated between knots.

        - `start`: First column of the values at the knots.
        """
        j = np.clip(np.searchsorted(self.knots, step, side="right") - 1, 0, len(self.knots) - 2)
        share = (step - self.knots[j]) / (self.knots[j + 1] - self.knots[j])
        return start + np.stack((j, j + 1)), np.stack((1 - share, share))

    def _add(self, kind: int, send: Ints, used: Flags) -> None:
        """Add a row for each of some sends: the data over it costs no more than the link.

        - `used`: (num_hops, num_sends) True for each hop whose data use the send.
        """
        num_kinds, _, size = self.shape
        begin, end, number = self.begin[send], self.end[send], np.arange(len(send))
        here, there, count = self.loads.hops[kind]
        parts = [(number, np.full(len(send), self.per_send), np.ones(len(send)))]
        cost = self.costs[end - begin]
        hop, row = np.nonzero(used)
        for start, step, factor, rows in (
            (kind * size, end, -cost, number),
            (kind * size, begin, cost, number),
            ((num_kinds + there[hop]) * size, end[row], count[hop], row),
            ((num_kinds + here[hop]) * size, begin[row], -count[hop], row),
        ):
            columns, weights = self._at(start, step)
            parts.append((np.tile(rows, 2), columns.ravel(), (weights * factor).ravel()))
        rows, columns, values = (np.concatenate(each) for each in zip(*parts, strict=True))
        first = (num_kinds + self.source) * size
        some = (columns < first) | (columns >= first + size)  # prices at the source are 0
        self.program.add_rows((rows[some], columns[some], values[some]), np.zeros(len(send)))
        self.added.append((kind, send, used))

    def _limiting(self, duals: Floats) -> list[_Row]:
        """Rows for sends that have a dual price, of all those added so far."""
        found, begins, ends = [], self.begin / self.steps, self.end / self.steps
        first = self.num_others
        for kind, send, used in self.added:
            binds = np.flatnonzero(np.abs(duals[first : first + len(send)]) > _LEAST)
            found += [_Row(kind, begins[send[k]], ends[send[k]], used[:, k]) for k in binds.tolist()]
            first += len(send)
        return found

    def _add_first(self) -> None:
        """Add the first rows: those that limited the previous program, and sends of durations in `_FIRST`.

        A send of the second kind is used by all data that it leads away from its source.
        """
        table = np.full((self.steps + 1, self.steps + 1), -1)
        table[self.begin, self.end] = np.arange(len(self.begin))
        for kind, rows in groupby(self.loads.limiting, key=lambda row: row.kind):
            known = [*rows]
            ends = np.array([(row.begin, row.end) for row in known]).T * self.steps
            send = table[tuple(ends.round().astype(np.int64))]
            used = np.array([row.used for row in known]).T
            self._add(kind, send[send >= 0], used[:, send >= 0])
        apart, least = self.loads.distance, self.least
        latency = self.least + 0.5
        lengths = {least + 1, *(math.ceil(each * latency) for each in _FIRST)}
        spaced = self.begin % max(1, self.steps // _BLOCKS) == 0
        send = np.flatnonzero(spaced & np.isin(self.end - self.begin, [*lengths]))
        for kind, hops in enumerate(self.loads.hops):
            outward = apart[hops.there] > apart[hops.here]
            used = outward[:, None] & (self.begin[send] >= apart[hops.here][:, None] * least)
            used &= self.steps - self.end[send] >= (self.loads.diameter - apart[hops.there])[:, None] * least
            self._add(kind, send, used)

    def _values(self, found: Floats) -> tuple[Floats, Floats]:
        """Total price of link time up to each step, and price of data at each place and step.

        If data cannot reach a place by some step, it has the price of the farthest place at the end. If the
        farthest place cannot be reached from it any more, its price is 0.
        """
        num_kinds, num_places, size = self.shape
        columns, weights = self._at(0, np.arange(self.steps + 1))
        table = found[: self.per_send].reshape(num_kinds + num_places, size)
        values = (table[:, columns] * weights).sum(axis=1)
        times, places = values[:num_kinds], values[num_kinds:]
        np.clip(places, 0, places[self.far, -1], out=places)
        for place, apart in enumerate(self.loads.distance.tolist()):
            places[place, : apart * self.least] = places[self.far, -1]
            places[place, self.steps + 1 - (self.loads.diameter - apart) * self.least :] = 0
        places[self.source] = 0
        return times, np.minimum.accumulate(places, axis=1)

    def _charges(self, kind: int, places: Floats) -> Floats:
        """(num_hops, num_sends) price of the data of each hop in each send."""
        here, there, count = self.loads.hops[kind]
        gain = places[there][:, self.end] - places[here][:, self.begin]
        return np.maximum(gain, 0.0) * count[:, None]

    def _violation(self, found: Floats) -> float:
        """Largest ratio of the price of a send's data to that of the link; adds rows for ratios above 1."""
        times, places = self._values(found)
        size, worst = max(1, self.steps // _BLOCKS), 1.0
        block = self.begin // size * (self.steps + 1) + self.end // size
        for kind in range(len(self.loads.hops)):
            charges = self._charges(kind, places)
            price = self.costs[self.end - self.begin] * (times[kind][self.end] - times[kind][self.begin])
            total = found[self.per_send] + charges.sum(axis=0)
            worst = max(worst, float((total / np.maximum(price, _LEAST)).max()))
            over = total - price * (1 + _ENOUGH / 4)
            order = np.flatnonzero(over > _LEAST)
            if len(order):
                order = order[np.argsort(-over[order], kind="stable")]
                send = order[np.unique(block[order], return_index=True)[1]]
                self._add(kind, send, charges[:, send] > _LEAST)
        return worst

    def priced(self, limit_s: float) -> Priced | None:
        """Best prices found within `limit_s` seconds; None if none are found.

        Prices that the latest program finds are lowered until they suffice for all sends.
        """
        until, best, best_load = time.monotonic() + limit_s, None, 0.0
        self._add_first()
        for _ in range(_ROUNDS):
            solution = self.program.solved(max(0.0, until - time.monotonic()))
            if solution is None:
                break
            limiting = self._limiting(solution.duals)
            worst = self._violation(solution.values)
            if -solution.objective / worst > best_load:
                best, best_load = (solution.values, worst), -solution.objective / worst
            self.loads.limiting = limiting
            if worst < 1 + _ENOUGH:
                break
        return None if best is None else self._rounded(*best)

    def _rounded(self, found: Floats, worst: float) -> Priced:
        """Prices as whole numbers, with those of data lowered by a factor `worst`."""
        loads, (times, places) = self.loads, self._values(found)
        each = np.maximum(np.diff(times, axis=1), 0.0)
        scale = (_SCALE - _SPARE - 1) / max(each.max(), 1e-9)
        whole = np.ceil(each * scale).astype(np.int64) + _SPARE
        less = scale / worst * (1 - 1e-7)
        at_places = np.floor(places * less).astype(np.int64)
        per_send = max(0, math.floor(float(found[self.per_send]) * less))
        prices = np.array([at_places[self.far, -1], per_send])
        load = float(self.needed @ prices) * self.steps * sum(loads.links)
        first = [(loads.places[hops.here[0]], loads.places[hops.there[0]]) for hops in loads.hops]
        return Priced(
            load / float(np.array(loads.links) @ whole.sum(axis=1)),
            per_send,
            [(*ends, tuple(prices)) for ends, prices in zip(first, whole.tolist(), strict=True)],
            [(place, tuple(prices)) for place, prices in zip(loads.places, at_places.tolist(), strict=True)],
        )


def send_costs(latency: float, steps: int) -> Floats:
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
