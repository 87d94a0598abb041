"""Translations: groups of symmetries with exactly one element from each place to each other.

An element is known by where it takes place 0: ``translate(g, 0) == g``. Where a fabric looks the same from
every rank, one rank's view of it is enough. The links out of place 0 stand for classes of links, each with
one link out of every place. So do the resources that they hold.

Places are ranks of the fabric. A mesh has no translations of its own; places are then positions along a ring
through its ranks, and `Translations.ranks` has the rank at each.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl._internal.address_space import require_address_space
from taccl.errors import TopologyError
from taccl.topology.topology import OTHER_SIDE, Side

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taccl.topology.named import NamedFabric
    from taccl.topology.topology import Topology


#: A table of this many places squared is still small (128 MiB).
_MAX_TABLE = 4096


@dataclass(frozen=True, slots=True)
class CyclicProduct:
    """Digits added without carry, the last modulus' digit varying fastest: tori, rings, hypercubes."""

    moduli: tuple[int, ...]

    @property
    def order(self) -> int:
        """Number of translations."""
        return math.prod(self.moduli)

    def translate(self, element: Any, place: Any) -> NDArray[np.int64]:
        """Images of places under elements; both are integers or arrays that broadcast."""
        return self._added(place, element, 1)

    def taking(self, src: Any, dst: Any) -> NDArray[np.int64]:
        """The elements that take sources to destinations."""
        return self._added(dst, src, -1)

    def _added(self, first: Any, second: Any, sign: int) -> NDArray[np.int64]:
        first, second = np.asarray(first, dtype=np.int64), np.asarray(second, dtype=np.int64)
        if all(modulus == 2 for modulus in self.moduli):
            return np.asarray(first ^ second)
        total: NDArray[np.int64] = np.zeros(np.broadcast_shapes(first.shape, second.shape), dtype=np.int64)
        stride = self.order
        for modulus in self.moduli:
            stride //= modulus
            total += (first // stride + sign * (second // stride)) % modulus * stride
        return total

    def to_dict(self) -> dict[str, Any]:
        """The group as plain values."""
        return {"kind": "cyclic product", "moduli": list(self.moduli)}


@dataclass(frozen=True)
class PermutationGroup:
    """The group that permutations of places generate; `TopologyError` unless it takes any to any in one way.

    So it is where the generators are no permutations of the same places, or these are too many for a table.
    """

    generators: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        num_places = len(self.generators[0]) if self.generators else 0
        if not 1 <= num_places <= _MAX_TABLE:
            raise TopologyError(
                f"found {len(self.generators)} generators of {num_places} ranks; expected at least one, of 1 "
                f"to {_MAX_TABLE} ranks",
                where="translations",
            )
        for each in self.generators:
            if sorted(each) != list(range(num_places)):
                raise TopologyError(
                    f"found a generator that does not name every rank 0-{num_places - 1} once",
                    where="translations",
                )
        table = self.table
        for each in self.generators:
            step = np.asarray(each)
            if not np.array_equal(step[table], table[step]):
                raise TopologyError(
                    "some rank is taken to another in two ways; give generators of a group that takes any "
                    "rank to any other in exactly one way",
                    where="translations",
                )

    @property
    def order(self) -> int:
        """Number of translations."""
        return len(self.generators[0])

    @cached_property
    def table(self) -> NDArray[np.int64]:
        """(order, order): row g is the element that takes place 0 to g.

        It is a group, and the whole of it, where ``step[table] == table[step]`` for every generator.
        """
        num_places = self.order
        table = np.full((num_places, num_places), -1, dtype=np.int64)
        table[0] = np.arange(num_places)
        reached = [0]
        steps = [np.asarray(each, dtype=np.int64) for each in self.generators]
        for here in reached:
            for step in steps:
                there = int(step[here])
                if table[there, 0] < 0:
                    table[there] = step[table[here]]
                    reached.append(there)
        if len(reached) < num_places:
            raise TopologyError(
                f"the generators take rank 0 to {len(reached)} of {num_places} ranks; expected to all",
                where="translations",
            )
        table.setflags(write=False)
        return table

    @cached_property
    def _taking(self) -> NDArray[np.int64]:
        """(order, order): row s, column d is the element that takes s to d."""
        taking = np.empty_like(self.table)
        taking[np.arange(self.order)[None, :], self.table] = np.arange(self.order)[:, None]
        return taking

    def translate(self, element: Any, place: Any) -> NDArray[np.int64]:
        """Images of places under elements; both are integers or arrays that broadcast."""
        return np.asarray(self.table[element, place])

    def taking(self, src: Any, dst: Any) -> NDArray[np.int64]:
        """The elements that take sources to destinations."""
        return np.asarray(self._taking[src, dst])

    def to_dict(self) -> dict[str, Any]:
        """The group as plain values."""
        return {"kind": "permutations", "generators": [list(each) for each in self.generators]}


_MOST_CLASSES = 2**14


class ClassHold(NamedTuple):
    """A send over a link of a class holds one resource of a class; costs and side as in `Hold`."""

    resource: int
    alpha_us: Fraction
    beta_us_per_mb: Fraction
    side: Side = "send"


@dataclass(frozen=True, slots=True)
class LinkClass:
    """The links that translations take the link from place 0 to `dst` to."""

    dst: int
    alpha_us: Fraction
    beta_us_per_mb: Fraction
    holds: tuple[ClassHold, ...]


@dataclass(frozen=True)
class Translations:
    """A fabric, a group of translations, and the classes of the links that they move about.

    - `ranks`, (num_ranks,) int64: The rank at every place; None where places are ranks.
    - `resource_class`: Of a topology: the class of every resource, -1 of those that no class holds.
    """

    host: NamedFabric | Topology
    group: CyclicProduct | PermutationGroup
    classes: tuple[LinkClass, ...]
    ranks: NDArray[np.int64] | None = None
    resource_class: tuple[int, ...] = ()

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return self.host.num_ranks

    def rank_at(self, place: NDArray[np.int64]) -> NDArray[np.int64]:
        """The ranks at places."""
        return place if self.ranks is None else np.asarray(self.ranks[place])

    def reversed(self) -> tuple[LinkClass, ...]:
        """The classes of the fabric with every link reversed, in the same order."""
        return tuple(
            LinkClass(
                int(self.group.taking(each.dst, 0)),
                each.alpha_us,
                each.beta_us_per_mb,
                tuple(hold._replace(side=OTHER_SIDE[hold.side]) for hold in each.holds),
            )
            for each in self.classes
        )

    def to_dict(self) -> dict[str, Any]:
        """All that a digest needs, as plain values."""
        return {
            "host": self.host.to_dict(),
            "group": self.group.to_dict(),
            "classes": [
                [
                    c.dst, str(c.alpha_us), str(c.beta_us_per_mb),
                    [[h.resource, str(h.alpha_us), str(h.beta_us_per_mb), h.side] for h in c.holds],
                ]
                for c in self.classes
            ],
            "ranks": None if self.ranks is None else self.ranks.tolist(),
            "resource_class": list(self.resource_class),
        }  # fmt: skip


def translations_of_fabric(fabric: NamedFabric) -> Translations:
    """The translations of any fabric but a mesh, from its definition."""
    num_ranks = fabric.num_ranks
    if fabric.kind == "mesh":
        raise TopologyError("a mesh has no translations; use the ring through it", where=fabric.name)
    if len(fabric.axes) == 1 and fabric.axes[0].kind != "ring" and num_ranks > _MOST_CLASSES:
        raise TopologyError(
            f"found {num_ranks} ranks, each linked to all others; expected at most {_MOST_CLASSES}",
            where=fabric.name,
        )
    sizes = [each.size for each in fabric.axes]
    group = CyclicProduct(tuple(reversed(sizes) if fabric.first_is_fastest else sizes))
    steps = [
        (step * stride, axis)
        for axis, (each, stride) in enumerate(zip(fabric.axes, fabric.strides, strict=True))
        for step in range(1, each.size)
        if step in (1, each.size - 1) or each.kind != "ring"
    ]
    return Translations(fabric, group, _classes(fabric, steps))


def along_ring(fabric: NamedFabric, ranks: Sequence[int] | NDArray[np.int64]) -> Translations:
    """The translations of a ring that visits every rank once, over links that a fabric has each way."""
    order = np.array(ranks, dtype=np.int64)
    if fabric.num_ranks < 3 or not np.array_equal(np.sort(order), np.arange(fabric.num_ranks)):
        raise TopologyError("found a ring that does not visit every rank once", where=fabric.name)
    axis = fabric.axis(order, np.roll(order, -1))
    if axis.min() < 0:
        at = int(np.argmin(axis))
        raise TopologyError(
            f"the ring goes from rank {order[at]} to {order[(at + 1) % len(order)]}, which are not linked",
            where=fabric.name,
        )
    if len({fabric.axes[a].beta_us_per_mb for a in np.unique(axis)}) > 1:
        raise TopologyError(
            "links along the ring differ in bandwidth: it would go at the pace of the slowest; use "
            "backend='greedy' on the topology itself",
            where=fabric.name,
        )
    order.setflags(write=False)
    first = int(axis[0])
    classes = _classes(fabric, [(1, first), (fabric.num_ranks - 1, first)])
    return Translations(fabric, CyclicProduct((fabric.num_ranks,)), classes, order)


def _classes(fabric: NamedFabric, steps: Sequence[tuple[int, int]]) -> tuple[LinkClass, ...]:
    """A class for every step and axis; links through a switch hold a port at either end too."""
    classes = []
    for own, (dst, axis) in enumerate(steps):
        alpha, beta = fabric.axes[axis].alpha_us, fabric.axes[axis].beta_us_per_mb
        held_alpha = alpha if fabric.alpha_meaning == "occupies" else Fraction(0)
        holds = [ClassHold(own, held_alpha, beta)]
        if fabric.axes[axis].kind == "switch":
            port = len(steps) + 2 * axis
            holds.append(ClassHold(port, held_alpha, beta))
            holds.append(ClassHold(port + 1, held_alpha, beta, "receive"))
        classes.append(LinkClass(dst, alpha, beta, tuple(holds)))
    return tuple(classes)


def translations_of_topology(
    topology: Topology, group: CyclicProduct | PermutationGroup | Sequence[Sequence[int]]
) -> Translations:
    """The translations of a topology: a group, or rank permutations that generate one.

    It takes any rank to any other in exactly one way, and links and resources to such of the same cost, no
    resource to itself but by the identity; links have two ends, and none beside them.
    """
    if not isinstance(group, (CyclicProduct, PermutationGroup)):
        group = PermutationGroup(tuple(tuple(int(r) for r in each) for each in group))
    where = f"{topology.name}: translations"
    if group.order != topology.num_ranks:
        raise TopologyError(
            f"found permutations of {group.order} ranks; expected {topology.num_ranks}", where=where
        )
    num_ranks = topology.num_ranks
    index: dict[tuple[int, int], int] = {}
    for e, link in enumerate(topology.links):
        if len(link.srcs) + len(link.dsts) > 2 or (link.src, link.dst) in index:
            raise TopologyError(
                f"link {link} has several ends, or another beside it; expected one link for a pair of ranks",
                where=where,
            )
        index[link.src, link.dst] = e
    members: list[list[int]] = []
    for e in topology.links_from[0]:
        images = group.translate(np.arange(num_ranks), topology.links[e].dst).tolist()
        missing = next((g for g in range(num_ranks) if (g, images[g]) not in index), None)
        if missing is not None:
            raise TopologyError(
                f"link {topology.links[e]} goes to {missing}->{images[missing]}, which is no link",
                where=where,
            )
        members.append([index[g, images[g]] for g in range(num_ranks)])
    resource_class = _resource_classes(topology, members)
    classes = []
    for links in members:
        holds = tuple(
            ClassHold(resource_class[h.resource], h.alpha_us, h.beta_us_per_mb, h.side)
            for h in topology.holds_of_link[links[0]]
        )
        held = Counter(h.resource for e in links for h in topology.holds_of_link[e])
        if max(held.values()) > 1 or len({h.resource for h in holds}) < len(holds):
            shared = topology.resources[held.most_common(1)[0][0]].name
            raise TopologyError(
                f"links that translations take to one another share resources such as {shared}; use "
                "backend='greedy', which knows shared resources one by one",
                where=where,
            )
        link = topology.links[links[0]]
        classes.append(LinkClass(link.dst, link.alpha_us, link.beta_us_per_mb, holds))
    return Translations(topology, group, tuple(classes), None, tuple(resource_class))


def _resource_classes(topology: Topology, members: Sequence[Sequence[int]]) -> list[int]:
    """A class for every resource: those that links of one class hold in the same place of their holds."""
    require_address_space()
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    def costs(e: int) -> list[tuple[Any, ...]]:
        holds = [(h.alpha_us, h.beta_us_per_mb, h.side) for h in topology.holds_of_link[e]]
        return [(topology.links[e].alpha_us, topology.links[e].beta_us_per_mb), *holds]

    joined: list[tuple[int, int]] = []
    for links in members:
        first = topology.holds_of_link[links[0]]
        for e in links:
            if costs(e) != costs(links[0]):
                raise TopologyError(
                    f"link {topology.links[links[0]]} goes to {topology.links[e]}, which costs otherwise",
                    where=f"{topology.name}: translations",
                )
            pairs = zip(first, topology.holds_of_link[e], strict=True)
            joined += [(a.resource, b.resource) for a, b in pairs]
    count, used = len(topology.resources), {r for pair in joined for r in pair}
    graph = coo_array((np.ones(len(joined)), np.array(joined).reshape(-1, 2).T), shape=(count, count))
    _, label = connected_components(graph, directed=False)
    numbers: dict[int, int] = {}
    return [numbers.setdefault(label[r], len(numbers)) if r in used else -1 for r in range(count)]
