"""The symmetries of a problem as a group: every product of what its sketch's offsets generate."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from taccl.errors import SketchError
from taccl.sketch.symmetry import chunk_permutation, compose, link_permutation, resource_permutation

if TYPE_CHECKING:
    from taccl.problem import Problem

__all__ = ["Element", "symmetry_group"]


class Element(NamedTuple):
    """One symmetry: where it takes every rank, chunk, link and resource."""

    ranks: tuple[int, ...]
    chunks: tuple[int, ...]
    links: tuple[int, ...]
    resources: tuple[int, ...]


def symmetry_group(problem: Problem) -> tuple[Element, ...]:
    """Every symmetry that the sketch's offsets generate, the identity first, then by ranks.

    Links, resources and chunks are matched for the generators only; all else are products of those.

    Raises
    ------
    SketchError
        If one of them, written by hand, is no symmetry of the problem.
    """
    if "symmetry group" not in problem.memo:
        problem.memo["symmetry group"] = _products(problem)
    group: tuple[Element, ...] = problem.memo["symmetry group"]
    return group


def _products(problem: Problem) -> tuple[Element, ...]:
    topology = problem.topology
    sizes = (
        topology.num_ranks,
        problem.collective.num_chunks,
        len(topology.links),
        len(topology.resources),
    )
    identity = Element(*(tuple(range(size)) for size in sizes))
    if problem.collective.derivations:
        return (identity,)
    generators = [_element(problem, ranks) for ranks in dict.fromkeys(problem.clauses.symmetry)]
    known = {identity.ranks: identity}
    pending = [identity]
    while pending:
        element = pending.pop()
        for generator in generators:
            product = Element(*(compose(a, b) for a, b in zip(element, generator, strict=True)))
            if product.ranks not in known:
                known[product.ranks] = product
                pending.append(product)
    return tuple(known[ranks] for ranks in sorted(known, key=lambda p: (p != identity.ranks, p)))


def _element(problem: Problem, ranks: tuple[int, ...]) -> Element:
    permutes = sorted(ranks) == list(range(problem.topology.num_ranks))
    chunks = chunk_permutation(problem, ranks) if permutes else None
    links = link_permutation(problem.topology, ranks) if permutes else None
    resources = None if links is None else resource_permutation(problem.topology, links)
    if chunks is None or links is None or resources is None:
        lacking = problem.collective.name if permutes and chunks is None else problem.topology.name
        shown = ", ".join(map(str, ranks[:16])) + (", ..." if len(ranks) > 16 else "")
        raise SketchError(
            f"found ranks taken to ({shown}), which is no symmetry of {lacking}; leave it out, or apply a "
            "sketch, which keeps only symmetries that hold",
            where="clauses.symmetry",
        )
    return Element(ranks, chunks, links, resources)
