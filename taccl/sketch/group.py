"""The symmetries of a problem as a group: every product of what its sketch's offsets generate."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

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
    """
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
    chunks = chunk_permutation(problem, ranks)
    links = link_permutation(problem.topology, ranks)
    assert chunks is not None, "a sketch keeps only symmetries that its collective has"
    assert links is not None, "a sketch keeps only symmetries that its topology has"
    resources = resource_permutation(problem.topology, links)
    assert resources is not None, "a sketch keeps only symmetries that its topology has"
    return Element(ranks, chunks, links, resources)
