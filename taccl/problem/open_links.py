"""Links on which a sketch's clauses admit each chunk of a problem."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from taccl.problem.clauses import Clause, Clauses, Transit
from taccl.problem.collective import Collective
from taccl.topology.topology import Topology


class OpenLinks:
    """For each chunk of a problem, the links on which a sketch's clauses admit it; computed on demand.

    - `allowed`: Links that may carry any chunk at all.
    """

    def __init__(
        self, topology: Topology, collective: Collective, clauses: Clauses, allowed: Sequence[int]
    ) -> None:
        self._topology, self._collective = topology, collective
        self._allowed = np.zeros(len(topology.links), bool)
        self._allowed[list(allowed)] = True
        self._allowed.setflags(write=False)
        #: Clauses that refuse some chunks on some links, with {key of links: links}; see `Clause.of_link`.
        self._masks: list[tuple[Clause, dict[Hashable, list[int]]]] = []
        for each in clauses.said("chunk", "group"):
            value = getattr(clauses, each.field)
            links: dict[Hashable, list[int]] = defaultdict(list)
            for e in allowed if each.speaks_of is None else each.speaks_of(value, topology):
                links[each.of_link(value, topology, e)].append(e)
            self._masks.append((each, links))
        # `_number_of`: index in `_arrays` of each chunk's mask, by phase (-1: not computed).
        # `_numbers`: {key of a transit under each clause: index in `_arrays`}.
        self._number_of = np.full((2, collective.num_chunks if self._masks else 0), -1, np.int32)
        self._numbers: dict[tuple[Hashable, ...], int] = {}
        self._arrays: list[NDArray[np.bool_]] = []
        self._closed: dict[tuple[int, Hashable], list[int]] = {}

    @property
    def are_equal(self) -> bool:
        """True if all chunks have the same open links, in both phases."""
        return not self._masks

    def of(self, chunk: int, *, reducing: bool) -> NDArray[np.bool_]:
        """(num_links,) True for links open to a chunk; chunks that clauses treat alike share the array."""
        if not self._masks:
            return self._allowed
        number = int(self._number_of[int(reducing), chunk])
        if number < 0:
            transit = Transit(self._topology, self._collective, chunk, reducing)
            asked = tuple([each.of_transit(transit) for each, _ in self._masks])
            if asked not in self._numbers:
                self._numbers[asked] = len(self._arrays)
                self._arrays.append(self._found(asked))
            number = self._number_of[int(reducing), chunk] = self._numbers[asked]
        return self._arrays[number]

    def _found(self, asked: tuple[Hashable, ...]) -> NDArray[np.bool_]:
        found = self._allowed.copy()
        for mask in enumerate(asked):
            if mask not in self._closed:
                self._closed[mask] = self._closed_by(*mask)
            found[self._closed[mask]] = False
        found.setflags(write=False)
        return found

    def _closed_by(self, mask: int, transit: Hashable) -> list[int]:
        """Links on which a clause refuses chunks whose key (`Clause.of_transit`) is `transit`."""
        clause, links = self._masks[mask]
        alike = () if transit is None else links.items()
        return list(chain.from_iterable(some for what, some in alike if not clause.admits(transit, what)))
