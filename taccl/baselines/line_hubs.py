"""Plans of an allreduce on a mesh by hubs of each line, and their loads of the links.

A plan collects the sums of each line at one hub, or at two neighbours that exchange their sums. The hubs may
be anywhere on the line, and phases may begin late.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import combinations_with_replacement, permutations, product
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from taccl._internal.caching import cached
from taccl.baselines.hubs import RingPlan, RingSend, phases, plan_sends

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from taccl.baselines.hubs import Phase, PlanSends
    from taccl.baselines.moves import Flags, Ints
    from taccl.topology.products import Dimensions
    from taccl.topology.topology import Topology

    Floats = NDArray[np.float64]

#: Max combinations of hubs along the dimensions; if there are more, only some hubs of each line are used.
_MOST_HUBS = 200
#: Limits on the plans with a given number of steps (`late_plans`):
#: `_MOST_WAITS`: max plans if each phase may begin late. If there are more, idle steps may only precede the
#: first phase or the first exchange between hubs, or follow the last phase. If there are still more, none
#: precede the exchange.
#: `_MOST_LOADS`: max product of the numbers of plans, steps and classes of links. At this limit, a linear
#: program of these loads takes about 2.5 s.
_MOST_WAITS, _MOST_LOADS = 2000, 4_000_000


class Line(NamedTuple):
    """Hubs of a line, `first` and `last`: the same rank, or neighbours.

    - `early`: True if the shorter side of the line collects its sums as early as possible.
    """

    first: int
    last: int
    early: bool


class LatePlan(NamedTuple):
    """Hubs of each dimension's lines, the order of dimensions, and idle steps before each phase."""

    lines: tuple[Line, ...]
    order: tuple[int, ...]
    waits: tuple[int, ...]

    def phases(self, dims: Dimensions) -> Iterator[Phase]:
        """Yield the phases of the plan."""
        plans = {k: line_plan(size, self.lines[k]) for k, size in enumerate(dims.sizes)}
        return phases(dims, plans, self.order, self.waits)

    def sends(self, dims: Dimensions) -> PlanSends:
        """Columns of the sends."""
        return plan_sends(dims, self.phases(dims))


class MeshPlan(Protocol):
    """Plan of an allreduce on a mesh, in steps."""

    def sends(self, dims: Dimensions) -> PlanSends:
        """Columns of the sends."""
        ...


class MeshPlans(NamedTuple):
    """Plans with equal numbers of steps, and the mean number of their sends over a link of each class.

    - `loads`: (num_plans, 2, num_classes, num_steps): sends that copy, then sends that are added up.
    """

    plans: Sequence[MeshPlan]
    loads: Floats

    def only(self, some: Ints) -> MeshPlans:
        """Some of the plans."""
        return MeshPlans([self.plans[j] for j in some.tolist()], self.loads[some])


def late_plans(topology: Topology, dims: Dimensions, num_steps: int) -> MeshPlans | None:
    """Plans of `num_steps` steps whose loads differ; None if there are too many."""
    bases = [each for each in _plans_without_waits(topology, dims) if each[2] <= num_steps]
    num_gaps = 3 * len(dims) + 1

    def num_plans(*, gaps: int) -> int:
        return sum(math.comb(num_steps - length + gaps - 1, gaps - 1) for _, _, length in bases)

    choices = (tuple(range(num_gaps)), (0, len(dims), num_gaps - 1), (0, num_gaps - 1))
    places = next((each for each in choices if num_plans(gaps=len(each)) <= _MOST_WAITS), choices[-1])
    if num_plans(gaps=len(places)) * num_steps * len(classes_of_links(topology, dims)[1]) > _MOST_LOADS:
        return None
    found: dict[bytes, tuple[LatePlan, Floats]] = {}
    for (lines, order), parts, length in bases:
        for idle in combinations_with_replacement(places, num_steps - length):
            waits = np.bincount(np.array(idle, np.int64), minlength=num_gaps)
            load, first = np.zeros((2, len(parts[0]), num_steps)), 0
            for number, (wait, part) in enumerate(zip(waits.tolist(), parts, strict=False)):
                first += wait
                load[int(number < 2 * len(dims)), :, first : first + part.shape[1]] += part
                first += part.shape[1]
            found.setdefault(load.tobytes(), (LatePlan(lines, order, tuple(waits[:-1].tolist())), load))
    plans, loads = zip(*found.values(), strict=True)
    return MeshPlans([*plans], np.stack(loads))


def least_steps(topology: Topology, dims: Dimensions) -> int:
    """Least number of steps of a plan."""
    return min(num_steps for _, _, num_steps in _plans_without_waits(topology, dims))


@cached
def _plans_without_waits(
    topology: Topology, dims: Dimensions
) -> list[tuple[tuple[tuple[Line, ...], tuple[int, ...]], list[Floats], int]]:
    """((hubs, order), loads of each phase, number of steps) of all plans without idle steps."""
    table, size, _ = classes_of_links(topology, dims)
    digits = dims.digits(np.arange(dims.num_ranks))
    known: dict[tuple[object, ...], Floats] = {}

    def load(phase: Phase) -> Floats:
        """(num_classes, num_steps) sends of a phase over a link of each class."""
        key = (phase.axis, tuple(phase.sends), *(tuple(phase.at[j]) for j in sorted(phase.at)))
        if key not in known:
            on_lines = np.ones(dims.num_ranks, bool)
            for j, has in phase.at.items():
                on_lines &= np.isin(digits[j], [*has])
            made = np.zeros((len(size), 1 + max((send.step for send in phase.sends), default=-1)))
            for send in phase.sends:
                src = np.flatnonzero(on_lines & (digits[phase.axis] == send.src))
                np.add.at(made[:, send.step], table[phase.axis, int(send.dst > send.src), src], 1)
            known[key] = made / size[:, None]
        return known[key]

    found, moves = [], _moves_of_dimensions(dims)
    orders = {min(tuple(to[k] for k in order) for to in moves) for order in permutations(range(len(dims)))}
    for lines in product(*_lines(dims)):
        for order in sorted(orders):
            waits = (0,) * (3 * len(dims))
            parts = [load(each) for each in LatePlan(lines, order, waits).phases(dims)]
            found.append(((lines, order), parts, sum(part.shape[1] for part in parts)))
    return found


def _lines(dims: Dimensions) -> list[list[Line]]:
    """Possible hubs of each dimension; hubs that are mirror images of others are left out."""
    most = max(2, int(_MOST_HUBS ** (1 / len(dims))))
    found = []
    for size in dims.sizes:
        lines = [
            Line(first, last, early)
            for first, last in (
                *((hub, hub) for hub in reversed(range((size + 1) // 2))),
                *((hub, hub + 1) for hub in reversed(range(size // 2))),
            )
            for early in ((False, True) if 0 < first != size - 1 - last else (False,))
        ]
        if len(lines) > most:
            lines = [line for line in lines if not line.early]
        if len(lines) > most:  # evenly spaced, with the hubs in the middle
            some = np.linspace(0, len(lines) - 1, most).round().astype(int)
            lines = [lines[i] for i in some.tolist()]
        found.append(lines)
    return found


@cache
def line_plan(size: int, line: Line) -> RingPlan:
    """Plan of a line: each side of the hubs sends its sum to the nearest hub, and gets the total back."""
    first, last, early = line
    below, above = first, size - 1 - last
    longest, collect = max(below, above), list[RingSend]()
    for k in range(below):
        step = k if early else longest - below + k
        collect.append(RingSend(step, k, k + 1, frozenset(range(k + 1))))
    for k in range(above):
        step = k if early else longest - above + k
        collect.append(RingSend(step, size - 1 - k, size - 2 - k, frozenset(range(size - 1 - k, size))))
    every = frozenset(range(size))
    spread = [RingSend(longest - 1 - send.step, send.dst, send.src, every) for send in collect]
    if first == last:
        return RingPlan(collect, (), spread, {first: every}, (first,), size)
    sums = {first: frozenset(range(last)), last: frozenset(range(last, size))}
    exchange = [RingSend(0, first, last, sums[first]), RingSend(0, last, first, sums[last])]
    return RingPlan(collect, exchange, spread, sums, (first, last), size)


def _moves_of_dimensions(dims: Dimensions) -> list[tuple[int, ...]]:
    """Cyclic shifts of the dimensions that map each one to one of equal size and costs."""
    every = range(len(dims))
    moves = [(*every[k:], *every[:k]) for k in every]
    return [to for to in moves if all(dims.dims[k] == dims.dims[to[k]] for k in every)]


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
