"""Symmetries that no sketch declares, for folding bounds.

A bound is folded by every symmetry at hand, not only by those that a sketch declares: the declared ones, and
the shifts inside blocks of ranks that machines, rings, meshes and tori have. A thousand ranks have a
thousand of them, so only generators are kept.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from taccl.deadline import NEVER, Deadline
from taccl.sketch.group import Element, Symmetries, smallest_of_orbits
from taccl.sketch.symmetry import (
    block_shifts,
    chunk_permutation,
    link_permutation,
    offset_permutation,
    resource_permutation,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.problem import Problem


def find_symmetries(problem: Problem, deadline: Deadline = NEVER) -> Symmetries:
    """The symmetries that a sketch declares, and shifts inside blocks of ranks that the problem has.

    `OutOfTime` is raised once the deadline has passed; what is found is kept with the problem.
    """
    if "symmetries" not in problem.memo:
        problem.memo["symmetries"] = _find(problem, deadline)
    found: Symmetries = problem.memo["symmetries"]
    return found


def _find(problem: Problem, deadline: Deadline) -> Symmetries:
    if problem.collective.derivations:
        return Symmetries(problem, ())
    kept: list[Element] = []
    merged: NDArray[np.int64] = np.arange(len(problem.topology.links))
    num_ranks = problem.topology.num_ranks
    offsets: dict[int, list[int]] = defaultdict(list)  # of the shifts found, by block
    shifts = ((offset_permutation(num_ranks, *each), *each) for each in block_shifts(num_ranks))
    for ranks, offset, block in (*((each, 1, 0) for each in problem.clauses.symmetry), *shifts):
        if block and any(offset % known == 0 for known in offsets[block]):
            continue  # found as often as that
        deadline.check()
        element = _element(problem, ranks)
        if element is None:
            continue
        offsets[block].append(offset)
        finer = smallest_of_orbits([merged, element.links], len(merged))
        if not np.array_equal(finer, merged) or not kept:
            kept.append(element)
            merged = finer
    return Symmetries(problem, tuple(kept))


def _element(problem: Problem, ranks: tuple[int, ...]) -> Element | None:
    """The symmetry that a rank permutation is of topology, collective and clauses; None where it is none."""
    links = link_permutation(problem.topology, ranks)
    resources = None if links is None else resource_permutation(problem.topology, links)
    chunks = None if resources is None else chunk_permutation(problem, ranks)  # which takes longest
    if links is None or resources is None or chunks is None:
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
