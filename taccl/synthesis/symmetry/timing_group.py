"""Symmetries of a problem that a schedule may have.

Several ranks behind one NIC take turns, so what one does the others cannot do at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice, permutations

import numpy as np
from numpy.typing import NDArray

from taccl._internal.caching import cached
from taccl.problem.problem import Problem
from taccl.sketch.group import Automorphism, Symmetries, symmetry_group
from taccl.sketch.symmetry import chunk_permutation, order, power

#: So many symmetries are tried at most, fewer where they take more ranks, links and resources somewhere.
_MOST_TRIED, _MOST_IMAGES = 512, 2**21
#: Images of ranks, links and resources under all symmetries of the part that is kept.
_MOST_KEPT = 2**25


@cached
def timing_group(problem: Problem) -> Symmetries:
    """A part of a problem's group that times may have: no link and its image hold one resource.

    Its order divides the size of every orbit of resources in use, so it is small however large the group is.
    """
    group, topology = symmetry_group(problem), problem.topology
    if not group.generators:
        return group
    held = [sorted({hold.resource for hold in topology.holds_of_link[e]}) for e in problem.links_allowed]
    pairs = sorted({(one, other) for each in held for one in each for other in each})
    if not pairs:
        return Symmetries(problem)
    first = topology.num_ranks + len(topology.links)
    one, other = np.array(pairs).T + first
    sizes = np.bincount(group.resources)[group.resources[one[one == other] - first]]

    def is_free(moves: NDArray[np.int32]) -> bool:
        return not (moves[..., one] == other).any()

    divisor = math.gcd(*sizes.tolist())
    most = min(divisor, group.order or divisor)
    identity = np.arange(first + len(topology.resources), dtype=np.int32)[None, :]
    tried = min(_MOST_TRIED, _MOST_IMAGES // identity.size)
    free: list[NDArray[np.int32]] = []

    def largest(candidates: Iterable[NDArray[np.int32]]) -> tuple[int, list[NDArray[np.int32]]]:
        kept = identity
        steps: list[NDArray[np.int32]] = []
        for moves in filter(is_free, islice(candidates, len(group.generators) + tried)):
            free.append(moves)
            larger = _larger(kept, [*steps, moves], is_free, min(most, _MOST_KEPT // len(moves)))
            if larger is not None:
                kept, steps = larger, [*steps, moves]
            if len(kept) == most:
                break
        return len(kept), steps

    # High orders first, as one symmetry is often enough; where they are not all, low orders first as well.
    found = largest(_candidates(group, identity.size, divisor))
    if found[0] < most:
        found = max(found, largest(free[::-1]), key=lambda each: each[0])
    return Symmetries(problem, tuple(_element(problem, moves) for moves in found[1]))


def _candidates(group: Symmetries, size: int, divides: int) -> Iterator[NDArray[np.int32]]:
    """Symmetries as where they take ranks, links and resources, in one row: generators, then others.

    These are powers of generators, and of the products of two, whose order divides a number; high ones first.
    """
    first, second = group.problem.topology.num_ranks, size - len(group.problem.topology.resources)

    def order_of(moves: NDArray[np.int32]) -> int:
        return order(moves[:first].tolist())

    generators = [
        np.concatenate((g.ranks, np.add(g.links, first), np.add(g.resources, second))).astype(np.int32)
        for g in group.generators
    ]
    generators.sort(key=order_of, reverse=True)
    yield from generators
    for moves in chain(generators, (two[one] for one, two in permutations(generators, 2))):
        period = order_of(moves)
        common = math.gcd(period, divides)
        for n in (n for n in range(common, 1, -1) if common % n == 0):
            yield np.array(power(moves.tolist(), period // n), dtype=np.int32)


def _larger(
    kept: NDArray[np.int32],
    generators: Sequence[NDArray[np.int32]],
    is_free: Callable[[NDArray[np.int32]], bool],
    most: int,
) -> NDArray[np.int32] | None:
    """The group that generators make of a smaller one, coset by coset (Dimino's algorithm).

    None where it is none larger, where times may not have some of it, or with more than `most`.
    """
    cosets, turns = [kept], [kept[0]]
    known = {row.tobytes() for row in kept}
    if generators[-1].tobytes() in known:
        return None
    for turn in turns:
        for generator in generators:
            image = generator[turn]
            if image.tobytes() in known:
                continue
            coset = image[kept]
            if (len(cosets) + 1) * len(kept) > most or not is_free(coset):
                return None
            cosets.append(coset)
            turns.append(image)
            known.update(row.tobytes() for row in coset)
    return np.concatenate(cosets)


def _element(problem: Problem, moves: NDArray[np.int32]) -> Automorphism:
    """The symmetry that takes ranks, links and resources where one row says."""
    first = problem.topology.num_ranks
    second = first + len(problem.topology.links)
    ranks = tuple(moves[:first].tolist())
    chunks = chunk_permutation(problem, ranks)
    assert chunks is not None, "products of symmetries are symmetries"
    links, resources = (moves[first:second] - first).tolist(), (moves[second:] - second).tolist()
    return Automorphism(ranks, chunks, tuple(links), tuple(resources))
