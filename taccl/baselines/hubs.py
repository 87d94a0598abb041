"""Allreduce on tori by hubs: each ring collects its sums at a few hubs, which exchange them for all.

With more hubs per ring there are fewer steps and more sends. Few hubs suit large sums, many suit small ones.
`hub_sends` chooses their number for each dimension.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from math import prod
from typing import NamedTuple, Protocol

import numpy as np

from taccl._internal.arrays import lexsort
from taccl.baselines.edge_hubs import edge_plans
from taccl.baselines.moves import Flags, Ints, Moves, Row, Sends, routed
from taccl.problem.problem import Problem
from taccl.topology.products import Dimensions
from taccl.topology.recognise import links_along

#: Columns of sends: step, source, destination, and flags (num_ranks) of the ranks in the sum.
PlanSends = tuple[Ints, Ints, Ints, Flags]


#: Max number of dimensions for which each may have its own number of hubs (up to 256 plans).
_MOST_MIXED = 4
#: `_MOST_RANKS`: max ranks of a torus for which plans are made (at most about 0.7 s of CPU, 0.1 s if known).
#: `_MOST_TRANSFERS`: max transfers of a plan.
_MOST_RANKS, _MOST_TRANSFERS = 256, 400_000


class RingSend(NamedTuple):
    """Send between neighbours on a ring: in step `step`, `src` sends the sum of ranks `adds` to `dst`."""

    step: int
    src: int
    dst: int
    adds: frozenset[int]


class RingPlan(NamedTuple):
    """Allreduce on a ring in three phases, so that other dimensions can do theirs in between.

    - `collect`: Sends that collect partial sums at hubs.
    - `exchange`: Sends that begin at the hubs; after them, the ranks `whole` have the sum.
    - `spread`: Sends of the sum to all other ranks.
    - `hubs`: {hub: ranks whose sum it has collected}.
    - `period`: Least shift along the ring that maps the plan to itself.
    - `is_even`: True if both directions of the ring carry equally many sends in each step.
    """

    collect: Sequence[RingSend]
    exchange: Sequence[RingSend]
    spread: Sequence[RingSend]
    hubs: Mapping[int, frozenset[int]]
    whole: Iterable[int]
    period: int
    is_even: bool = True


class HubPlan(NamedTuple):
    """Plan of an allreduce on a torus, which takes one dimension after another.

    The chunks have one part for each cyclic order of dimensions, so all dimensions carry equal shares.

    - `names`: Names of ring plans (`ring_plan`): `names[i]` is that of the dimension which a part takes i-th.
    """

    names: tuple[str, ...]
    dims: Dimensions

    def __str__(self) -> str:
        return ", then ".join(self.names)

    @property
    def orders(self) -> list[tuple[int, ...]]:
        """Cyclic orders of the dimensions."""
        every = range(len(self.dims))
        return [(*every[k:], *every[:k]) for k in every]

    def rings(self, order: Sequence[int]) -> dict[int, RingPlan]:
        """{dimension: its ring plan} for an order of the dimensions."""
        return {k: ring_plan(name, self.dims.sizes[k]) for k, name in zip(order, self.names, strict=True)}

    def copies(self, order: Sequence[int]) -> list[Ints]:
        """Permutations of the ranks; a plan's images under all of them together load all links equally."""
        digits, found = self.dims.digits(np.arange(self.dims.num_ranks)), []
        sizes, strides = (np.array(each)[:, None] for each in (self.dims.sizes, self.dims.strides))
        for sign, *shifts in product(*self._images(order)):
            moved = (sign * digits + np.array(shifts)[:, None]) % sizes
            found.append((moved * strides).sum(axis=0))
        return found

    def _images(self, order: Sequence[int]) -> list[Sequence[int]]:
        """Signs of the ranks' digits that make the images of a plan, then shifts along each dimension."""
        rings = self.rings(order)
        signs = (1,) if all(ring.is_even for ring in rings.values()) else (1, -1)
        return [signs, *(range(rings[k].period) for k in range(len(self.dims)))]

    @property
    def num_parts(self) -> int:
        """Number of parts of the data, such that each order, and each image of its plan, has equally many."""
        return len(self.orders) * math.lcm(*(prod(map(len, self._images(each))) for each in self.orders))

    def groups(self) -> Iterator[tuple[PlanSends, list[Ints]]]:
        """Yield (sends, permutations of the ranks) for each order of the dimensions."""
        for order in self.orders:
            copies = self.copies(order)
            repeats = self.num_parts // len(self.orders) // len(copies)
            yield plan_sends(self.dims, phases(self.dims, self.rings(order), order)), copies * repeats

    def parts_per_chunk(self, problem: Problem) -> int:
        """Least number of parts of each chunk with which all links carry equally many parts."""
        return self.num_parts // math.gcd(self.num_parts, problem.topology.num_ranks)

    def num_transfers(self, problem: Problem) -> int:
        """Number of transfers of the chunks of a problem."""
        return self._loads().total() * problem.collective.num_chunks // len(self.orders)

    def _loads(self) -> Counter[tuple[int, int]]:
        """{(step, dimension): number of sends} of all orders together."""
        loads = Counter[tuple[int, int]]()
        for order in self.orders:
            for phase in phases(self.dims, self.rings(order), order):
                num_lines = prod(len(digits) for digits in phase.at.values())
                for send in phase.sends:
                    loads[phase.first + send.step, phase.axis] += num_lines
        return loads

    def estimated_us(self, problem: Problem) -> float:
        """Estimated finish if steps follow one another, and a link merges all that it sends in a step."""
        dims, costs = self.dims, problem.costs
        links, loads = [int(table[0, 1]) for table in links_along(problem.topology, dims)], self._loads()
        units_per_send = int(costs.chunk_units.sum()) / len(self.orders) / dims.num_ranks
        ticks = Counter[int]()
        for (step, k), number in loads.items():
            units = number * units_per_send / (2 if dims.sizes[k] > 2 else 1)  # two directions
            ticks[step] = max(ticks[step], costs.link_alpha[links[k]] + units * costs.link_beta[links[k]])
        return float(sum(ticks.values())) / costs.ticks_per_us


def soonest_hub_plan(problem: Problem, dims: Dimensions) -> PartPlan | None:
    """Plan with the least estimated finish.

    None if some dimension is a line, or if there are too many ranks or transfers.
    """
    num = len(dims)
    if dims.num_ranks > _MOST_RANKS or any(each.kind != "ring" and each.size > 2 for each in dims):
        return None
    names = product(_RINGS, repeat=num) if num <= _MOST_MIXED else ((name,) * num for name in _RINGS)
    every: list[PartPlan] = [*(HubPlan(each, dims) for each in names), *edge_plans(dims)]
    plans = [plan for plan in every if plan.num_transfers(problem) <= _MOST_TRANSFERS]
    return min(plans, key=lambda plan: plan.estimated_us(problem), default=None)


class PartPlan(Protocol):
    """Plan of an allreduce in which parts of the chunks take different paths."""

    @property
    def num_parts(self) -> int:
        """Number of parts of the chunks."""
        ...

    def groups(self) -> Iterable[tuple[PlanSends, Sequence[Ints]]]:
        """(sends, permutations of the ranks); each permuted copy of the sends is for a part of the chunks."""
        ...

    def parts_per_chunk(self, problem: Problem) -> int:
        """Least number of parts of each chunk with which all parts have equally many chunks."""
        ...

    def num_transfers(self, problem: Problem) -> int:
        """Number of transfers of the chunks of a problem."""
        ...

    def estimated_us(self, problem: Problem) -> float:
        """Estimated finish if steps follow one another, and a link merges all that it sends in a step."""
        ...


def hub_sends(problem: Problem, plan: PartPlan) -> Sends:
    """Sends of an allreduce; each part of the chunks follows a copy of the plan with permuted ranks."""
    chunks, part, num_parts = np.arange(problem.collective.num_chunks), 0, plan.num_parts
    number_of: dict[bytes, int] = {}
    sums: list[tuple[int, ...]] = []
    parts: list[Ints] = []
    for sends_of_plan, copies in plan.groups():
        step, src, dst, adds = sends_of_plan
        packed, which = np.unique(np.packbits(adds, axis=1), axis=0, return_inverse=True)
        distinct = np.unpackbits(packed, axis=1, count=adds.shape[1])
        for to in copies:
            moved = distinct[:, np.argsort(to)]
            number = np.empty(len(moved), np.int64)
            for i, key in enumerate(map(bytes, np.packbits(moved, axis=1))):
                if key not in number_of:
                    number_of[key] = len(sums)
                    sums.append(tuple(np.flatnonzero(moved[i]).tolist()))
                number[i] = number_of[key]
            sends = np.stack((step, to[src], to[dst], number[which.ravel()]))
            mine = chunks[part::num_parts]
            parts.append(np.vstack((np.repeat(sends, len(mine), axis=1), np.tile(mine, len(step)))))
            part += 1
    columns = np.concatenate(parts, axis=1)
    is_whole = np.array([len(ranks) == problem.topology.num_ranks for ranks in sums])[columns[3]]
    # A send adds or copies all of its chunks, which follow one another.
    order = lexsort((*columns[[4, 2, 1]], is_whole, columns[0]))
    step, src, dst, carries, chunk = columns[:, order]
    begins = np.flatnonzero(np.diff(2 * step + is_whole[order], prepend=-1))
    rows: list[Row] = [
        (step[some], chunk[some], src[some], dst[some], True)
        for some in np.split(np.arange(len(step)), begins[1:])
    ]
    return routed(problem, Moves.of(rows), sums=sums, carries=carries)


class Phase(NamedTuple):
    """Sends of one phase along dimension `axis`, from step `first` on, on some of its lines.

    - `at`: For every other dimension, {digit: digits}: only lines with such a digit take part. Their partial
      sums contain the contributions of the listed digits.
    """

    first: int
    axis: int
    sends: Sequence[RingSend]
    at: Mapping[int, Mapping[int, frozenset[int]]]


def phases(dims: Dimensions, rings: Mapping[int, RingPlan], order: Sequence[int]) -> Iterator[Phase]:
    """Yield all phases: dimensions collect in order, then exchange and spread in the opposite order.

    - `rings`: {dimension: its ring plan}.
    """
    sizes, first = dims.sizes, 0
    # {dimension: {digit: digits whose contributions its ranks hold}}. Digits that take no part are left out.
    # At first each digit has its own contribution only.
    at = {k: {digit: frozenset([digit]) for digit in range(sizes[k])} for k in order}
    every: list[tuple[int, Sequence[RingSend], Iterable[int]]] = [
        *((k, rings[k].collect, ()) for k in order),
        *((k, rings[k].exchange, rings[k].whole) for k in reversed(order)),
        *((k, rings[k].spread, range(sizes[k])) for k in reversed(order)),
    ]
    for k, sends, whole in every:
        yield Phase(first, k, sends, {j: at[j] for j in order if j != k})
        first += 1 + max((each.step for each in sends), default=-1)
        at[k] = dict.fromkeys(whole, frozenset(range(sizes[k]))) or {**rings[k].hubs}


def plan_sends(dims: Dimensions, phases: Iterable[Phase]) -> PlanSends:
    """Columns of the sends of all phases."""
    digits = dims.digits(np.arange(dims.num_ranks))
    columns: list[tuple[Ints, Ints, Ints, Flags]] = []
    for phase in phases:
        on_lines = np.ones(dims.num_ranks, bool)
        for j, has in phase.at.items():
            on_lines &= np.isin(digits[j], [*has])
        for step, here, there, ranks in phase.sends:
            src = np.flatnonzero(on_lines & (digits[phase.axis] == here))
            adds = np.tile(np.isin(digits[phase.axis], [*ranks]), (len(src), 1))
            for j, has in phase.at.items():
                table = np.zeros((dims.sizes[j],) * 2, bool)
                for digit, some in has.items():
                    table[digit, [*some]] = True
                adds &= table[digits[j][src]][:, digits[j]]
            dst = src + (there - here) * dims.strides[phase.axis]
            columns.append((np.full(len(src), phase.first + step, np.int64), src, dst, adds))
    steps, srcs, dsts, flags = zip(*columns, strict=True)
    return np.concatenate(steps), np.concatenate(srcs), np.concatenate(dsts), np.concatenate(flags)


@cache
def ring_plan(name: str, size: int) -> RingPlan:
    """Ring plan by its name; a ring that is too small for it, or odd, has the plan with hubs everywhere."""
    return _RINGS[name](size) or _all_hubs(size)


def _all_hubs(size: int) -> RingPlan:
    """Plan in which every rank is a hub. On an even ring, a rank exchanges with both neighbours in turn.

    In each step but the second, a rank passes on what it received in the step before. In the second step it
    sends all it has. On an odd ring, sums pass in both directions.
    """
    sends = []
    if size % 2:
        for step in range(size // 2):
            for rank, way in product(range(size), (1, -1)):
                adds = frozenset((rank - way * k) % size for k in range(step + 1))
                sends.append(RingSend(step, rank, (rank + way) % size, adds))
    else:
        passed = [frozenset([rank]) for rank in range(size)]
        for step in range(size // 2):
            to = [(rank + (1 if (rank + step) % 2 == 0 else -1)) % size for rank in range(size)]
            sends += [RingSend(step, rank, to[rank], passed[rank]) for rank in range(size)]
            passed = [passed[to[rank]] | (passed[rank] if step == 0 else frozenset()) for rank in range(size)]
    period = 1 if size % 2 or size == 2 else 2
    return RingPlan((), sends, (), {k: frozenset([k]) for k in range(size)}, range(size), period)


def _two_arcs(size: int) -> RingPlan | None:
    """Plan in which two arcs sum up to their middles, exchange sums at their ends, and spread the total.

    None if the ring is odd, or an arc has fewer than three ranks.
    """
    arc = size // 2
    if size % 2 or arc < 3:
        return None
    left, right = (arc - 1) // 2, arc // 2  # the hubs of an arc, which are the same if it is odd
    collect, exchange, spread = list[RingSend](), list[RingSend](), list[RingSend]()
    hubs = dict[int, frozenset[int]]()
    outwards = right > left
    for base in (0, arc):
        half, whole = frozenset(range(base, base + arc)), frozenset(range(size))
        low, high = frozenset(range(base, base + left + 1)), frozenset(range(base + right, base + arc))
        hubs |= {base + left: low, base + right: high} if outwards else {base + left: half}
        for k in range(left):
            collect.append(RingSend(k, base + k, base + k + 1, frozenset(range(base, base + k + 1))))
            mirrored = frozenset(range(base + arc - 1 - k, base + arc))
            collect.append(RingSend(k, base + arc - 1 - k, base + arc - 2 - k, mirrored))
            exchange.append(RingSend(outwards + k, base + right + k, base + right + k + 1, half))
            exchange.append(RingSend(outwards + k, base + left - k, base + left - k - 1, half))
            spread.append(RingSend(k, base + k, base + k + 1, whole))
            if base + arc - 2 - k > base + left:
                spread.append(RingSend(k, base + arc - 1 - k, base + arc - 2 - k, whole))
        if outwards:
            exchange += [
                RingSend(0, base + left, base + right, low),
                RingSend(0, base + right, base + left, high),
            ]
        crossing = outwards + left
        exchange.append(RingSend(crossing, base + arc - 1, (base + arc) % size, half))
        exchange.append(RingSend(crossing, base, (base - 1) % size, half))
    return RingPlan(collect, exchange, spread, hubs, (0, arc - 1, arc, size - 1), arc, is_even=outwards)


def _two_hubs(size: int) -> RingPlan | None:
    """Plan in which two neighbouring hubs each collect the sum of half of the ring, and exchange the sums."""
    if size % 2 or size < 4:
        return None
    near = size // 2 - 1
    halves = {near: frozenset(range(near + 1)), near + 1: frozenset(range(near + 1, size))}
    collect = []
    for k in range(near):
        collect.append(RingSend(k, k, k + 1, frozenset(range(k + 1))))
        collect.append(RingSend(k, size - 1 - k, size - 2 - k, frozenset(range(size - 1 - k, size))))
    exchange = [RingSend(0, near, near + 1, halves[near]), RingSend(0, near + 1, near, halves[near + 1])]
    return RingPlan(collect, exchange, _returned(collect, size), halves, (*halves,), size)


def _one_hub(size: int) -> RingPlan | None:
    """Plan in which one hub collects the sum from both directions of the ring, and returns it.

    None for fewer than 3 ranks.
    """
    if size < 3:
        return None
    far, collect = size // 2, []
    for way, reach in ((1, far), (-1, size - 1 - far)):
        for k in range(reach):
            adds = frozenset(-way * (reach - i) % size for i in range(k + 1))
            src = -way * (reach - k)
            collect.append(RingSend(far - reach + k, src % size, (src + way) % size, adds))
    every = {0: frozenset(range(size))}
    return RingPlan(collect, (), _returned(collect, size), every, (0,), size, is_even=bool(size % 2))


def _returned(collect: Sequence[RingSend], size: int) -> list[RingSend]:
    """Sends of the whole sum back along the links over which it was collected."""
    last, whole = max(send.step for send in collect), frozenset(range(size))
    return [RingSend(last - send.step, send.dst, send.src, whole) for send in collect]


#: {name: function from the size of a ring to its plan; None if the plan does not fit the size}.
_RINGS: dict[str, Callable[[int], RingPlan | None]] = {
    "every rank": _all_hubs,
    "two arcs": _two_arcs,
    "two hubs": _two_hubs,
    "one hub": _one_hub,
}
