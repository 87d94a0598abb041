"""Symmetry group of a problem, given by generators, and its orbits of ranks, chunks, links and resources.

The group is either declared by the sketch (`symmetry_group`) or found (`find_symmetries`). It is never
enumerated except to count it, as three lines of a sketch can declare more symmetries than fit into memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arrays import Ints
from taccl._internal.caching import cached
from taccl._internal.deadline import NEVER, Deadline
from taccl._internal.graph_algorithms import smallest_of_orbits
from taccl.errors import SketchError
from taccl.problem.problem import Problem
from taccl.sketch.symmetry import (
    block_shifts,
    chunk_permutation,
    link_permutation,
    offset_permutation,
    order,
    resource_permutation,
)

#: `_MOST_COUNTED`: maximum number of symmetries that are counted.
#: `_MOST_IMAGES`: maximum number of rank images stored while counting.
_MOST_COUNTED, _MOST_IMAGES = 4096, 2**26


class Automorphism(NamedTuple):
    """A symmetry of a problem, as the image of every rank, chunk, link and resource."""

    ranks: tuple[int, ...]
    chunks: tuple[int, ...]
    links: tuple[int, ...]
    resources: tuple[int, ...]


class Fixing(NamedTuple):
    """Orbits of ranks and links under the symmetries that fix one chunk.

    - `ranks`, (num_ranks,); `links`, (num_links,): Smallest index in the orbit of each.
    - `turned`, (num_links,): Defined for the smallest link of each orbit: the smallest chunk c with the
      following property. Some symmetry of the whole group maps c to the fixed chunk. The same symmetry maps
      the smallest link of the orbit under the whole group into the orbit under the fixing symmetries.
    """

    ranks: Ints
    links: Ints
    turned: Ints


@dataclass(frozen=True)
class Symmetries:
    """Symmetry group of a problem: its generators and its orbits.

    Each orbit array maps an index to the smallest index of its orbit.
    """

    problem: Problem
    generators: tuple[Automorphism, ...] = ()

    @cached_property
    def ranks(self) -> Ints:
        """(num_ranks,) smallest rank in the orbit of each rank."""
        return self._orbits("ranks", self.problem.topology.num_ranks)

    @cached_property
    def links(self) -> Ints:
        """(num_links,) smallest link index in the orbit of each link."""
        return self._orbits("links", len(self.problem.topology.links))

    @cached_property
    def resources(self) -> Ints:
        """(num_resources,) smallest resource index in the orbit of each resource."""
        return self._orbits("resources", len(self.problem.topology.resources))

    @cached_property
    def chunks(self) -> Ints:
        """(num_chunks,) smallest chunk in the orbit of each chunk."""
        return self._orbits("chunks", self.problem.collective.num_chunks)

    def _orbits(self, what: str, size: int) -> Ints:
        return smallest_of_orbits([getattr(g, what) for g in self.generators], size)

    def sets(self, sets: Sequence[frozenset[int]]) -> Ints:
        """(num_sets,) smallest index in each set's orbit, for disjoint sets of ranks.

        The symmetries must map these sets to one another.
        """
        of_rank = {r: i for i, ranks in enumerate(sets) for r in ranks}
        first = [min(ranks) for ranks in sets]
        return smallest_of_orbits([[of_rank[g.ranks[r]] for r in first] for g in self.generators], len(sets))

    def images(self, parts: tuple[frozenset[int], ...]) -> list[tuple[frozenset[int], ...]]:
        """Distinct images of a family of disjoint rank sets under the group.

        Each image lists its sets in order of their smallest ranks.
        """
        images = [tuple(sorted(parts, key=min))]
        known = set(images)
        for here in images:
            for g in self.generators:
                moved = (frozenset(g.ranks[r] for r in part) for part in here)
                image = tuple(sorted(moved, key=min))
                if image not in known:
                    known.add(image)
                    images.append(image)
        return sorted(images, key=lambda each: [sorted(part) for part in each])

    def sends(self, pairs: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
        """Apply all symmetries to a list of (chunk, link) pairs; return the distinct images.

        Images with the same pairs in another order count as equal.
        """
        images = [list(pairs)]
        known = {tuple(sorted(pairs))}
        for here in images:
            for g in self.generators:
                image = [(g.chunks[c], g.links[e]) for c, e in here]
                name = tuple(sorted(image))
                if name not in known:
                    known.add(name)
                    images.append(image)
        return images

    def fixing(self, chunk: int) -> Fixing:
        """Orbits of ranks and links under the stabiliser of a chunk.

        The stabiliser is generated by round trips (Schreier's lemma). Each goes from the chunk to another
        chunk of its orbit, by a generator of the group to a third chunk, and back.
        """
        topology, start = self.problem.topology, self.problem.topology.num_ranks
        here = np.arange(start + len(topology.links), dtype=np.int32)
        orbits, back = here.astype(np.int64), {chunk: here}
        pending = [chunk]
        for at in pending:
            there = _inverse(back[at])
            for g, moves in zip(self.generators, self._moves, strict=True):
                image, moved = g.chunks[at], moves[there]
                if image not in back:
                    back[image] = _inverse(moved)
                    pending.append(image)
                elif (orbits[round_trip := back[image][moved]] != orbits).any():
                    orbits = smallest_of_orbits([orbits, round_trip], len(here))
        links = orbits[start:] - start
        turned = np.full(len(links), chunk)
        smallest = start + np.flatnonzero(self.links == np.arange(len(links)))
        for at in sorted(back, reverse=True) if self.generators else ():
            turned[links[back[at][smallest] - start]] = at
        return Fixing(orbits[:start], links, turned)

    @cached_property
    def _moves(self) -> list[NDArray[np.int32]]:
        """Each generator as one permutation: of ranks, followed by links (numbered on from the last rank)."""
        start = self.problem.topology.num_ranks
        moves = (np.concatenate((g.ranks, np.add(g.links, start))) for g in self.generators)
        return [each.astype(np.int32) for each in moves]

    @cached_property
    def order(self) -> int | None:
        """Order of the group as permutations of ranks; None if it is too large to count."""
        if len(self.generators) == 1:
            return order(self.generators[0].ranks)
        return None if self._listed is None else len(self._listed)

    @property
    def counted(self) -> int:
        """Order of the group, or the maximum number counted if it is larger."""
        return _MOST_COUNTED if self.order is None else self.order

    def has(self, ranks: Sequence[int]) -> bool:
        """True if a permutation of ranks is in the group.

        If the group is too large to count, only its generators are found to be in it.
        """
        if tuple(ranks) in {g.ranks for g in self.generators}:
            return True
        return self._listed is not None and np.asarray(ranks, dtype=np.int32).tobytes() in self._listed

    @cached_property
    def _listed(self) -> set[bytes] | None:
        num_ranks = self.problem.topology.num_ranks
        most = min(_MOST_COUNTED, _MOST_IMAGES // num_ranks)
        generators = [np.asarray(g.ranks, dtype=np.int32) for g in self.generators]
        pending = [np.arange(num_ranks, dtype=np.int32)]
        known = {pending[0].tobytes()}
        while pending:
            ranks = pending.pop()
            for generator in generators:
                image = generator[ranks]
                if image.tobytes() not in known:
                    if len(known) == most:
                        return None
                    known.add(image.tobytes())
                    pending.append(image)
        return known

    def __str__(self) -> str:
        return f"more than {_MOST_COUNTED}" if self.order is None else str(self.order)


@cached
def symmetry_group(problem: Problem) -> Symmetries:
    """Symmetry group that the problem's clauses declare. Raises `SketchError` for a declared non-symmetry."""
    if problem.collective.derivations:
        return Symmetries(problem)
    generators = []
    for ranks in dict.fromkeys(problem.clauses.symmetry):
        element = _element(problem, ranks)
        if element is None:
            moves_chunks = chunk_permutation(problem, ranks) is not None
            lacking = problem.topology.name if moves_chunks else problem.collective.name
            shown = ", ".join(map(str, ranks[:16])) + (", ..." if len(ranks) > 16 else "")
            raise SketchError(
                f"found ({shown}), which is no symmetry of {lacking}; leave it out, or apply a sketch, "
                "which keeps only symmetries that hold",
                where="clauses.symmetry",
            )
        if element.ranks != tuple(range(problem.topology.num_ranks)):
            generators.append(element)
    return Symmetries(problem, tuple(generators))


def find_symmetries(problem: Problem, deadline: Deadline = NEVER) -> Symmetries:
    """Find symmetries of a problem: those that its sketch declares, and shifts inside blocks of ranks.

    Machines, rings, meshes and tori have such shifts. Only generators are kept (in the problem's cache), as a
    thousand ranks have a thousand shifts. Raises `OutOfTime` once the deadline has passed.
    """
    if "symmetries" not in problem.cache:
        elements = () if problem.collective.derivations else tuple(_found(problem, deadline))
        problem.cache["symmetries"] = Symmetries(problem, elements)
    found: Symmetries = problem.cache["symmetries"]
    return found


def _found(problem: Problem, deadline: Deadline) -> Iterator[Automorphism]:
    """Yield generators: the first symmetry found, then each symmetry that merges further orbits of links."""
    merged: Ints = np.arange(len(problem.topology.links))
    num_ranks = problem.topology.num_ranks
    offsets: dict[int, list[int]] = defaultdict(list)  # {block size: offsets found}
    shifts = ((offset_permutation(num_ranks, *each), *each) for each in block_shifts(num_ranks))
    for ranks, offset, block in (*((each, 1, 0) for each in problem.clauses.symmetry), *shifts):
        if block and any(offset % known == 0 for known in offsets[block]):
            continue  # the shift is in the group already, as a multiple of a known offset
        deadline.check()
        element = _element(problem, ranks)
        if element is None or not _keeps_clauses(problem, element):
            continue
        is_first = not any(offsets.values())
        offsets[block].append(offset)
        finer = smallest_of_orbits([merged, element.links], len(merged))
        if is_first or not np.array_equal(finer, merged):
            merged = finer
            yield element


def _element(problem: Problem, ranks: tuple[int, ...]) -> Automorphism | None:
    """Extend a permutation of ranks to a symmetry of topology and collective; None if there is none."""
    links = link_permutation(problem.topology, ranks)
    # Images of chunks take longer to compute than those of links, so they come second.
    chunks = None if links is None else chunk_permutation(problem, ranks)
    if links is None or chunks is None:
        return None
    resources = resource_permutation(problem.topology, links)
    assert resources is not None, "links are permuted so that resources are"
    return Automorphism(ranks, chunks, links, resources)


def _keeps_clauses(problem: Problem, element: Automorphism) -> bool:
    """True if the clauses are invariant, and every node maps to a whole node."""
    clauses, node = problem.clauses, problem.topology.node_of_rank
    for clause in clauses.said("link", "chunk", "merge"):
        value = getattr(clauses, clause.field)
        if clause.image(value, element.ranks, element.links) != value:
            return False
    if not clauses.direct_crossing and len(set(node)) == 1:
        return True
    return len({(n, node[element.ranks[r]]) for r, n in enumerate(node)}) == len(set(node))


def _inverse(permutation: NDArray[np.int32]) -> NDArray[np.int32]:
    inverse = np.empty_like(permutation)
    inverse[permutation] = np.arange(len(permutation))
    return inverse
