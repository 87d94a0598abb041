"""Symmetries that a schedule may have: those under which symmetric sends can be simultaneous.

Ranks that share a NIC must take turns, so a schedule cannot treat them alike at the same time.
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

#: `_MOST_TRIED`: max symmetries tried.
#: `_MOST_IMAGES`: max images of ranks, links and resources under all symmetries tried.
_MOST_TRIED, _MOST_IMAGES = 512, 2**21
#: Max images of ranks, links and resources under all symmetries of the subgroup that is kept.
_MOST_KEPT = 2**25


@cached
def timing_group(problem: Problem) -> Symmetries:
    """Subgroup of a problem's symmetries that schedules may have: no link shares a resource with its image.

    Its order divides the size of every orbit of used resources, so it is small even if the group is large.
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

    # Symmetries of high order come first, as one is often enough.
    # If the group found is not the largest possible, a second attempt starts with those of low order.
    found = largest(_candidates(group, identity.size, divisor))
    if found[0] < most:
        found = max(found, largest(free[::-1]), key=lambda each: each[0])
    return Symmetries(problem, tuple(_element(problem, moves) for moves in found[1]))


def _candidates(group: Symmetries, size: int, divides: int) -> Iterator[NDArray[np.int32]]:
    """Symmetries, each as a row of the images of ranks, links and resources: generators first, then others.

    The others are powers of generators, and of products of two, whose order divides `divides`; high orders
    first.
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
    """Elements of the group that `generators` generate (Dimino's algorithm, by cosets).

    None if this group is not larger than the one without the last generator. None also if it has more than
    `most` elements, or an element that is not `is_free`.

    - `kept`: Elements of the group that all generators but the last generate.
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
    """The symmetry given by a row of images of ranks, links and resources."""
    first = problem.topology.num_ranks
    second = first + len(problem.topology.links)
    ranks = tuple(moves[:first].tolist())
    chunks = chunk_permutation(problem, ranks)
    assert chunks is not None, "products of symmetries are symmetries"
    links, resources = (moves[first:second] - first).tolist(), (moves[second:] - second).tolist()
    return Automorphism(ranks, chunks, tuple(links), tuple(resources))
