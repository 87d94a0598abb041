"""Gates: resources that share the links at a border out between them, and how many chunks each lets pass.

However sends are merged and ordered, what passes a gate in a time is limited by how long each send holds it.
"""

# e link, r resource, n chunks in a send, m at most

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.analysis.certificates.needed_sends import NeededSends

    Ints = NDArray[np.int64]

__all__ = ["FOREVER", "Costs", "Gates", "Sets", "gates_of"]

#: Ticks that never come.
FOREVER = 2**61
#: More chunks than a collective has; what passes a gate is cut off there.
_MANY = 2**30


class Costs:
    """Holds and links as arrays; a send of n chunks takes ``alpha + n * beta`` ticks."""

    def __init__(self, demand: NeededSends) -> None:
        problem = demand.problem
        holds, costs, clauses = problem.topology.holds, problem.costs, problem.clauses
        units = int(costs.chunk_units[0])
        self.link = np.array([hold.link for hold in holds], dtype=np.int64)
        self.resource = np.array([hold.resource for hold in holds], dtype=np.int64)
        self.receives = np.array([hold.side == "receive" for hold in holds], dtype=bool)
        self.alpha, self.beta = costs.hold_alpha, costs.hold_beta * units
        self.link_alpha, self.link_beta = costs.link_alpha, costs.link_beta * units
        ends = problem.topology.links
        self.is_held = np.zeros(len(ends), dtype=bool)
        self.is_held[self.link] = True
        self.src = np.array([e.src for e in ends], dtype=np.int64)
        self.dst = np.array([e.dst for e in ends], dtype=np.int64)
        self.max_merge = clauses.max_merge
        self.merges = np.zeros(len(ends), dtype=bool)
        if clauses.max_merge > 1:
            self.merges[sorted(clauses.merging)] = True


@dataclass(frozen=True, slots=True)
class Gates:
    """Resources that share links out between them, and how many chunks each lets pass in how long.

    A send of n chunks, `most` at most, holds a gate for ``alpha + n * beta`` at least. `offset` is the least
    time from a send's start to its hold, and `rest` the least from there to its end, by n - 1. Over sends of
    a gate the former differ by `start_spread`, the latter by `end_spread`. Nothing starts before `release`.
    """

    of_set: Ints
    alpha: Ints
    beta: Ints
    most: Ints
    release: Ints
    offset: Ints
    rest: Ints
    start_spread: Ints
    end_spread: Ints

    def columns(self, way: int, size: int) -> Ints:
        """(num_gates, 8 + size) all that decides what passes a gate, with a number for the way before it."""
        rest = self.rest[np.minimum(np.arange(size), len(self.rest) - 1)]
        first = np.full(len(self.of_set), way)
        some = (self.alpha, self.beta, self.most, self.release, self.offset)
        return np.stack((first, *some, self.start_spread, self.end_spread, *rest), axis=1)

    @classmethod
    def from_columns(cls, rows: Ints, of_set: Ints) -> Gates:
        """The gates that `columns` gives, but for the way."""
        alpha, beta, most, release, offset, start_spread, end_spread, *rest = rows.T
        return cls(of_set, alpha, beta, most, release, offset, np.array(rest), start_spread, end_spread)

    def passed(self, ticks: Ints) -> Ints:
        """How many chunks, in sends whose holds take no longer than so many ticks together."""
        full = self.alpha + self.most * self.beta
        rounds, left = np.divmod(np.maximum(ticks, 0), np.maximum(full, 1))
        part = np.maximum(left - self.alpha, 0) // np.maximum(self.beta, 1) * (self.beta > 0)
        passed: Ints = rounds * self.most + np.minimum(part, self.most)
        return passed

    def within(self, start: Ints | int, end: int) -> Ints:
        """How many in sends that start at one moment at the earliest, and end at another at the latest."""
        time = end - np.maximum(self.release, start) - self.offset
        shape = (-1,) + (1,) * (time.ndim - 1)
        n = np.arange(1, len(self.rest) + 1).reshape(*shape, 1)  # chunks in the last send
        left = time - self.rest.reshape(*shape, time.shape[-1])
        passed: Ints = np.where((left >= 0) & (n <= self.most), n + self.passed(left), 0).max(axis=0)
        return passed

    def started(self, by: Ints | int) -> Ints:
        """How many in sends that start at a moment at the latest."""
        time = by - self.release
        return np.where(time >= 0, self.most + self.passed(time + self.start_spread), 0)

    def sends(self, by: Ints | int) -> Ints:
        """How many sends start at a moment at the latest."""
        time = by - self.release
        each = 1 + np.maximum(time + self.start_spread, 0) // np.maximum(self.alpha + self.beta, 1)
        return np.where(time >= 0, each, 0)

    def ended(self, ticks: int) -> Ints:
        """How many in sends that end in an interval of so many ticks, both its ends included."""
        return self.most + self.passed(ticks + self.end_spread)

    def arrivals(self, num: int) -> Ints:
        """(num_gates, num) when so many chunks can have come at the earliest, by sends from 0 on."""
        first = np.full((len(self.of_set), num), FOREVER)
        for n, rest in enumerate(self.rest, 1):  # chunks in the last send
            found = self._holds(np.arange(1 - n, num + 1 - n)) + rest[:, None]
            may = (self.most >= n)[:, None] & (np.arange(1, num + 1) >= n)
            np.minimum(first, found, out=first, where=may)
        soonest: Ints = first + (self.release + self.offset)[:, None]
        return soonest

    def more_ends(self, num: int) -> Ints:
        """(num_gates, num) when so many can have come at the earliest, by sends that end at 0 or later."""
        after = self._holds(np.arange(1, num + 1) - self.most[:, None]) - self.end_spread[:, None]
        return np.asarray(np.maximum(after, 0), dtype=np.int64)

    def _holds(self, chunks: Ints) -> Ints:
        """(num_gates, num) ticks that sends of so many chunks in all hold each gate for."""
        chunks, most = np.maximum(chunks, 0), self.most[:, None]
        full, part = chunks // most, chunks % most
        alpha, beta = self.alpha[:, None], self.beta[:, None]
        ticks: Ints = full * (alpha + most * beta) + (part > 0) * alpha + part * beta
        return ticks


def gates_of(costs: Costs, links: Ints, of_set: Ints, release: Ints) -> Gates:
    """Each link counts at the resource that the most of its set's links hold for longest.

    Parameters
    ----------
    links : (num,) int64
        Each holds some resource.
    of_set, release : (num_links,) int64
        Of every link of the topology: the set that it enters or leaves, and when it can be used first.
    """
    chosen = np.zeros(len(costs.merges), dtype=bool)
    chosen[links] = True
    at = np.flatnonzero(chosen[costs.link])
    e, r = costs.link[at], costs.resource[at]
    m = np.where(costs.merges[e], costs.max_merge, 1)
    alpha, beta = costs.alpha[at], costs.beta[at]
    share = (costs.max_merge // m) * alpha + costs.max_merge * beta  # ticks a chunk, times `max_merge`
    _, code, users = np.unique(
        of_set[e] * (int(r.max(initial=0)) + 1) + r, return_inverse=True, return_counts=True
    )
    code = code.ravel()
    least = np.full(len(users), FOREVER)
    np.minimum.at(least, code, share)
    weight = (users * least.astype(float))[code]
    order = np.lexsort((r, -weight, e))
    first = order[np.concatenate(([True], e[order][1:] != e[order][:-1]))] if len(order) else order
    names, gate = np.unique(code[first], return_inverse=True)
    e, m, alpha, beta, receives = e[first], m[first], alpha[first], beta[first], costs.receives[at][first]

    def least_of(values: Ints) -> Ints:
        found = np.full(len(names), FOREVER)
        np.minimum.at(found, gate, values)
        return found

    def most_of(values: Ints) -> Ints:
        return -least_of(-values)

    def send(n: Ints | int) -> tuple[Ints, Ints]:
        took, held = costs.link_alpha[e] + n * costs.link_beta[e], alpha + n * beta
        offset = np.where(receives, took - held, 0)
        return offset, took - offset

    (offset, rest), (offset_full, rest_full) = send(1), send(m)
    soonest, most = least_of(np.minimum(offset, offset_full)), most_of(m)
    sizes = range(1, int(m.max(initial=1)) + 1)
    return Gates(
        of_set=least_of(of_set[e]),
        alpha=np.where(most > 1, least_of(alpha), 0),
        beta=np.where(most > 1, least_of(beta), least_of(alpha + beta)),
        most=most,
        release=least_of(release[e]),
        offset=soonest,
        rest=np.array([least_of(np.where(n <= m, send(n)[1], FOREVER)) for n in sizes]),
        start_spread=most_of(np.maximum(offset, offset_full)) - soonest,
        end_spread=most_of(np.maximum(rest, rest_full)) - least_of(np.minimum(rest, rest_full)),
    )


@dataclass(frozen=True, slots=True)
class Sets:
    """Gates of sets, one set for all that look alike: which way and to which kind a gate leads, how many do.

    Of every kind: how much is wanted in such a set, and how many there are.
    """

    gates: Gates
    way: Ints
    times: Ints
    wanted: Ints
    alike: Ints

    @classmethod
    def of(cls, wanted: Ints, *ways: Gates) -> Sets:
        """Of gates by way, and what is wanted in every set."""
        size = max(len(each.rest) for each in ways)
        columns = np.concatenate([each.columns(way, size) for way, each in enumerate(ways)])
        of_set = np.concatenate([each.of_set for each in ways])
        rows, row = np.unique(columns, axis=0, return_inverse=True)
        found, times = np.unique(of_set * (len(rows) + 1) + row.ravel(), return_counts=True)
        gates_of: dict[int, list[tuple[int, int]]] = {}
        for code, count in zip(found.tolist(), times.tolist(), strict=True):
            i, which = divmod(code, len(rows) + 1)
            gates_of.setdefault(i, []).append((which, count))
        kinds = Counter((int(wanted[i]), tuple(gates)) for i, gates in gates_of.items())
        listed = [(kind, *gate) for kind, (_, gates) in enumerate(kinds) for gate in gates]
        kind, which, count = np.array(listed, dtype=np.int64).reshape(-1, 3).T
        return cls(
            gates=Gates.from_columns(rows[which, 1:], kind),
            way=rows[which, 0],
            times=count,
            wanted=np.array([each for each, _ in kinds], dtype=np.int64),
            alike=np.array(list(kinds.values()), dtype=np.int64),
        )

    def total(self, passed: Ints) -> Ints:
        """(...) what (..., num_gates) lets in, of each set no more than it wants."""
        through = np.minimum(passed, _MANY) * self.times
        first = np.flatnonzero(np.diff(self.gates.of_set, prepend=-1))
        found = np.add.reduceat(through, first, axis=-1)
        total: Ints = (np.minimum(found, self.wanted) * self.alike).sum(axis=-1)
        return total

    def most(self, passed: Ints, gates: Ints) -> Ints:
        """(num_cases,) what passes so many of the gates at most, of (num_cases, num_gates)."""
        order = np.argsort(-passed, axis=-1)
        count = (self.times * self.alike[self.gates.of_set])[order]
        taken = np.clip(gates[:, None] - (np.cumsum(count, axis=-1) - count), 0, count)
        most: Ints = (np.minimum(np.take_along_axis(passed, order, axis=-1), _MANY) * taken).sum(axis=-1)
        return most
