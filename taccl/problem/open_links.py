"""Links on which a sketch's clauses admit each chunk of a problem."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from functools import cached_property
from itertools import chain

import numpy as np

from taccl._internal.arrays import Flags, Ints, numbered
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
        # `_number_of`: index in `_arrays` of the mask of each class of chunks, by phase (-1: not computed).
        # `_numbers`: {key of a transit under each clause: index in `_arrays`}.
        self._number_of: tuple[dict[int, int], dict[int, int]] = {}, {}
        self._numbers: dict[tuple[Hashable, ...], int] = {}
        self._arrays: list[Flags] = []
        self._closed: dict[tuple[int, Hashable], Ints] = {}

    @property
    def are_equal(self) -> bool:
        """True if all chunks have the same open links, in both phases."""
        return not self._masks

    def of(self, chunk: int, *, reducing: bool) -> Flags:
        """(num_links,) True for links open to a chunk; chunks that clauses treat alike share the array."""
        if not self._masks:
            return self._allowed
        return self._arrays[self._number(int(self._classes[1][chunk]), reducing)]

    def sets(self, *, reducing: bool) -> tuple[Ints, list[Flags]]:
        """(index of the links open to each chunk, different such links); see `of`."""
        if not self._masks:
            return np.zeros(self._collective.num_chunks, np.int64), [self._allowed]
        first, of_chunk = self._classes
        number = np.array([self._number(each, reducing) for each in range(len(first))], np.int64)
        return number[of_chunk], self._arrays

    def _number(self, of_class: int, reducing: bool) -> int:
        """Index in `_arrays` of the links open to a class of chunks."""
        known = self._number_of[int(reducing)]
        if of_class not in known:
            chunk = int(self._classes[0][of_class])
            transit = Transit(self._topology, self._collective, chunk, reducing)
            asked = tuple([each.of_transit(transit) for each, _ in self._masks])
            if asked not in self._numbers:
                self._numbers[asked] = len(self._arrays)
                self._arrays.append(self._found(asked))
            known[of_class] = self._numbers[asked]
        return known[of_class]

    @cached_property
    def _classes(self) -> tuple[Ints, Ints]:
        """(first chunk of each class, class of each chunk).

        The chunks of a class have the same starts, nodes of their destinations, root and process group. Keys
        of transits (`Clause.of_transit`) depend on nothing else.
        """
        collective, node = self._collective, self._topology.node_of_rank
        ends, numbers = collective.destination_sets, dict[frozenset[int], int]()
        nodes = (frozenset(node[rank] for rank in ranks) for ranks in ends.sets)
        number_of = np.array([numbers.setdefault(each, len(numbers)) for each in nodes], np.int64)
        columns = [collective.start_sets.of_chunk.astype(np.int64), number_of[ends.of_chunk]]
        if collective.combining:
            roots = (-1 if chunk.root is None else chunk.root for chunk in collective.chunks)
            columns.append(np.fromiter(roots, np.int64, collective.num_chunks) + 1)
        if collective.groups:
            columns.append(np.array(collective.group_of_chunk, np.int64))
        first, of_chunk = np.zeros(1, np.int64), np.zeros(collective.num_chunks, np.int64)
        for column in columns:
            _, first, of_chunk = numbered(of_chunk * (int(column.max(initial=0)) + 1) + column)
        return first, of_chunk

    def _found(self, asked: tuple[Hashable, ...]) -> Flags:
        found = self._allowed.copy()
        for mask in enumerate(asked):
            if mask not in self._closed:
                self._closed[mask] = self._closed_by(*mask)
            found[self._closed[mask]] = False
        found.setflags(write=False)
        return found

    def _closed_by(self, mask: int, transit: Hashable) -> Ints:
        """Links on which a clause refuses chunks whose key (`Clause.of_transit`) is `transit`."""
        clause, links = self._masks[mask]
        alike = () if transit is None else links.items()
        refused = (some for what, some in alike if not clause.admits(transit, what))
        return np.array(list(chain.from_iterable(refused)), np.int64)
