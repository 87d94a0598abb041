"""Symmetries that no sketch declares, for folding bounds.

A bound is folded by every symmetry at hand, not only by those that a sketch declares: the declared ones, and
the shifts inside blocks of ranks that machines, rings, meshes and tori have. A thousand ranks have a
thousand of them, so only generators are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taccl.costs import hold_columns, link_ends
from taccl.memo import kept
from taccl.sketch.group import Element, Symmetries, smallest_of_orbits
from taccl.sketch.symmetry import (
    block_shifts,
    chunk_permutation,
    link_permutation,
    offset_permutation,
    resource_permutation,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from taccl.problem import Problem


@kept
def find_symmetries(problem: Problem) -> Symmetries:
    """The symmetries that a sketch declares, and shifts inside blocks of ranks that the problem has."""
    if problem.collective.derivations:
        return Symmetries(problem, ())
    kept: list[Element] = []
    merged: NDArray[np.int64] = np.arange(len(problem.topology.links))
    looks = _Looks(problem)
    num_ranks = problem.topology.num_ranks
    shifts = (offset_permutation(num_ranks, *each) for each in block_shifts(num_ranks))
    for ranks in dict.fromkeys((*problem.clauses.symmetry, *shifts)):
        if not looks.fits(ranks):
            continue
        element = _element(problem, ranks, looks)
        if element is None:
            continue
        finer = smallest_of_orbits([*(g.links for g in kept), element.links], len(merged))
        if not np.array_equal(finer, merged) or not kept:
            kept.append(element)
            merged = finer
    return Symmetries(problem, tuple(kept))


class _Looks:
    """A quick look at whether a rank permutation may be a symmetry: links keep their ends and costs."""

    def __init__(self, problem: Problem) -> None:
        topology, costs = problem.topology, problem.costs
        self.single = all(len(e.srcs) == len(e.dsts) == 1 for e in topology.links)
        self.num_ranks = topology.num_ranks
        self.src, self.dst = link_ends(topology)
        kinds = np.stack((costs.link_alpha, costs.link_beta), axis=1)
        self.kind = np.unique(kinds, axis=0, return_inverse=True)[1].ravel() if len(kinds) else self.src
        codes = self._codes(np.arange(self.num_ranks))
        self.order = np.argsort(codes, kind="stable")
        self.sorted = codes[self.order]
        #: Where no two links are alike, links and then resources are found by their codes.
        self.distinct = self.single and bool((np.diff(self.sorted) > 0).all())
        holds = hold_columns(topology)
        self.hold_link, self.hold_resource = holds.link, holds.resource
        cost = np.stack((costs.hold_alpha, costs.hold_beta, holds.receives), axis=1)
        self.hold_kind = np.unique(cost, axis=0, return_inverse=True)[1].ravel()
        self.num_resources = len(problem.topology.resources)
        self.by_holds: dict[bytes, int] = {}
        if self.distinct:
            self.by_holds = {key: r for r, key in enumerate(self._signatures(np.arange(len(self.src))))}

    def _codes(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        sources = self.kind * self.num_ranks + ranks[self.src]
        codes: NDArray[np.int64] = sources * self.num_ranks + ranks[self.dst]
        return codes

    def _signatures(self, links: NDArray[np.int64]) -> list[bytes]:
        """What every resource is known by: the links that hold it, and at what cost."""
        code = links[self.hold_link] * (int(self.hold_kind.max(initial=0)) + 1) + self.hold_kind
        order = np.lexsort((code, self.hold_resource))
        cuts = np.searchsorted(self.hold_resource[order], np.arange(self.num_resources + 1))
        code = code[order]
        return [code[a:b].tobytes() for a, b in zip(cuts, cuts[1:], strict=False)]

    def moves(self, ranks: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Where links and resources go under a permutation that fits; None where it takes a closer look."""
        if not self.distinct or len(self.by_holds) < self.num_resources:
            return None
        links = self.order[np.searchsorted(self.sorted, self._codes(np.asarray(ranks)))]
        resources = [self.by_holds.get(key) for key in self._signatures(links)]
        if any(r is None for r in resources):
            return None
        return tuple(links.tolist()), tuple(r for r in resources if r is not None)

    def fits(self, ranks: Sequence[int]) -> bool:
        return not self.single or np.array_equal(np.sort(self._codes(np.asarray(ranks))), self.sorted)


def _element(problem: Problem, ranks: tuple[int, ...], looks: _Looks) -> Element | None:
    """The symmetry that a rank permutation is of topology, collective and clauses; None where it is none."""
    chunks = chunk_permutation(problem, ranks)
    moves = None if chunks is None else looks.moves(ranks)
    if moves is not None:
        links, resources = moves
    else:
        links = None if chunks is None else link_permutation(problem.topology, ranks)  # type: ignore[assignment]
        resources = None if links is None else resource_permutation(problem.topology, links)  # type: ignore[assignment]
    if chunks is None or links is None or resources is None:
        return None
    clauses, node = problem.clauses, problem.topology.node_of_rank
    for clause in clauses.said("link", "chunk", "merge"):
        value = getattr(clauses, clause.field)
        if clause.image(value, ranks, links) != value:
            return None
    if clauses.direct_crossing or len(set(node)) > 1:
        image: dict[int, int] = {}
        for r, n in enumerate(node):
            if image.setdefault(n, node[ranks[r]]) != node[ranks[r]]:
                return None
    return Element(ranks, chunks, links, resources)
