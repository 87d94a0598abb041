"""Groups of translations: they take any place to any other in exactly one way.

An element is known by where it takes place 0: ``translate(g, 0) == g``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taccl.errors import TopologyError

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
