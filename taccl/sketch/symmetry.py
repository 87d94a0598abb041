"""Permutations of ranks, and their action on links, resources, chunks and clauses.

A permutation is a tuple: ``permutation[i]`` is the image of i.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cache, cached_property
from itertools import pairwise, repeat

import numpy as np

from taccl._internal.arrays import Ints, lexsort
from taccl._internal.caching import cached
from taccl._internal.graph_algorithms import smallest_of_orbits
from taccl.errors import SketchError
from taccl.problem.costs import hold_columns, link_ends, wide_links
from taccl.problem.problem import Clauses, Problem
from taccl.topology.links import columns_of
from taccl.topology.topology import Topology

Permutation = tuple[int, ...]


def offset_permutation(num_ranks: int, offset: int, group: int) -> Permutation:
    """Permutation that shifts each rank cyclically by `offset` inside its block of `group` ranks."""
    if num_ranks % group:
        raise SketchError(
            f"found groups of {group} ranks; expected a group size that divides the {num_ranks} ranks; "
            "rescale the sketch to the number of nodes, or correct the group"
        )
    return tuple(rank - rank % group + (rank % group + offset) % group for rank in range(num_ranks))


def block_shifts(num_ranks: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, group) of shifts inside equal blocks of `group` ranks, smallest blocks first.

    Offsets are the proper divisors of the block size, which generate all others.
    """
    sizes = [n for n in range(1, num_ranks + 1) if num_ranks % n == 0]
    for group in sizes:
        yield from ((offset, group) for offset in sizes if offset < group and group % offset == 0)


def power(permutation: Sequence[int], exponent: int) -> Permutation:
    """Permutation applied `exponent` times."""
    result, square = np.arange(len(permutation)), np.asarray(permutation, dtype=np.int64)
    while exponent:
        if exponent % 2:
            result = square[result]
        square, exponent = square[square], exponent // 2
    return tuple(result.tolist())


def order(permutation: Sequence[int]) -> int:
    """Order of the permutation: the least number of applications, at least 1, that gives the identity."""
    lengths = np.bincount(smallest_of_orbits([permutation], len(permutation)), minlength=1)
    return math.lcm(*np.maximum(lengths, 1).tolist())


@cached
def link_permutation(topology: Topology, ranks: Permutation) -> Permutation | None:
    """Image of every link when ranks are permuted; None if the topology lacks the symmetry.

    Parallel links are matched so that the resources they hold map consistently too (`resource_permutation`).
    """
    keys = _keys(topology)
    if keys.has_single_ends:
        codes = keys.ends(np.asarray(ranks))
        if not np.array_equal(np.sort(codes), keys.sorted):
            return None
        if keys.has_distinct_ends:
            found = tuple(keys.order[np.searchsorted(keys.sorted, codes)].tolist())
            return None if resource_permutation(topology, found) is None else found
    same = range(topology.num_ranks)
    unused: dict[Hashable, list[int]] = defaultdict(list)
    for index, link in enumerate(topology.links):
        unused[_ends(link.srcs, link.dsts, same), keys.of_link[index]].append(index)
    links: list[int] = []
    resources: dict[int, int] = {}
    taken: set[int] = set()
    for index, link in enumerate(topology.links):
        alike = unused.get((_ends(link.srcs, link.dsts, ranks), keys.of_link[index]), [])
        for image in alike:
            matched = _match_holds(keys, index, image, resources, taken)
            if matched is not None:
                break
        else:
            return None
        links.append(image)
        alike.remove(image)
        resources.update(matched)
        taken.update(matched.values())
    return None if resource_permutation(topology, tuple(links)) is None else tuple(links)


def _ends(srcs: Permutation, dsts: Permutation, ranks: Sequence[int]) -> tuple[Permutation, Permutation]:
    """Images of a link's sources and destinations under the permutation `ranks`, each sorted."""
    return tuple(sorted(ranks[r] for r in srcs)), tuple(sorted(ranks[r] for r in dsts))


def _arrow(ends: tuple[Permutation, Permutation]) -> str:
    return "->".join(",".join(map(str, end)) for end in ends)


@cached
def resource_permutation(topology: Topology, links: Permutation) -> Permutation | None:
    """Image of every resource when links are permuted; None if resources do not map consistently.

    A resource is identified by the links that occupy it and their costs there. Resources for which these are
    equal, and resources that no link occupies, keep their order.
    """
    keys, images = _keys(topology), np.asarray(links, dtype=np.int64)
    found = keys.resources_in_order(images)
    return _taken(keys.alike, keys.held_by(images)) if found is None else tuple(found.tolist())


def _indices_by_name(names: Iterable[Hashable]) -> dict[Hashable, list[int]]:
    """{name: indices at which it occurs}."""
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for index, name in enumerate(names):
        alike[name].append(index)
    return alike


def _taken(alike: Mapping[Hashable, list[int]], wanted: Sequence[Hashable]) -> Permutation | None:
    """Match the k-th occurrence of each wanted key to the k-th index of that key; None if one is missing."""
    if len(alike) == len(wanted):  # keys are unique
        found = [indices[0] for indices in map(alike.get, wanted) if indices]
        return tuple(found) if len(found) == len(wanted) == len(set(found)) else None
    left = {each: iter(indices) for each, indices in alike.items()}
    result = tuple(next(left.get(each, iter(())), -1) for each in wanted)
    return None if -1 in result else result


def chunk_permutation(problem: Problem, ranks: Sequence[int]) -> Permutation | None:
    """Image of every chunk when ranks are permuted; None if the collective lacks the symmetry.

    A chunk maps to the chunk of the same size with the images of its origins, destinations and root. If
    several chunks agree in these, the k-th of them maps to the k-th of the candidates.
    """
    both = cache(lambda each: (tuple(sorted(each)), tuple(sorted(ranks[r] for r in each))))
    for amounts in _amounts(problem):  # a comparison of sums is quicker than one of all chunks
        if any(amounts.get(both(each)[1]) != amount for each, amount in amounts.items()):
            return None
    here: list[Hashable] = []
    wanted: list[Hashable] = []
    for chunk, size in zip(problem.collective.chunks, problem.chunk_bytes, strict=True):
        origins, mapped_origins = both(chunk.origins)
        ends, mapped_ends = both(chunk.destinations)
        here.append((origins, ends, chunk.root, size))
        root = None if chunk.root is None else ranks[chunk.root]
        wanted.append((mapped_origins, mapped_ends, root, size))
    result = _taken(_indices_by_name(here), wanted)
    if result is None:
        return None
    derivations = {(d.source, d.rank, d.chunk) for d in problem.collective.derivations}
    if {(result[s], ranks[r], result[c]) for s, r, c in derivations} != derivations:
        return None
    if problem.clauses.relays is not None and not _keeps_holders(problem, ranks, result):
        return None
    return result


@cached
def _amounts(problem: Problem) -> list[dict[Permutation, int]]:
    """{ranks: bytes of all chunks that start there}, and the same for chunks that end there."""
    collective, sizes = problem.collective, np.array(problem.chunk_bytes)
    found: list[dict[Permutation, int]] = []
    for ends in (collective.origin_sets, collective.destination_sets):
        totals, amounts = np.zeros(len(ends.sets), sizes.dtype), Counter[Permutation]()
        np.add.at(totals, ends.of_chunk, sizes)
        for ranks, amount in zip(ends.sets, totals.tolist(), strict=True):
            amounts[tuple(sorted(ranks))] += amount
        found.append(dict(amounts))
    return found


def _keeps_holders(problem: Problem, ranks: Sequence[int], chunks: Sequence[int]) -> bool:
    """True if `ranks` maps the ranks that may hold each chunk to those that may hold the chunk's image."""
    pairs = {(problem.holders(c), problem.holders(image)) for c, image in enumerate(chunks)}
    return all(frozenset(ranks[r] for r in mine or ()) == theirs for mine, theirs in pairs)


def check_topology(topology: Topology, ranks: Permutation, *, label: str, where: str) -> Permutation:
    """Permutation of links induced by `ranks`; if there is none, `SketchError` shows a counterexample."""
    links = link_permutation(topology, ranks)
    if links is not None:
        return links
    witness = _cost_witness(topology, ranks) or _resource_witness(topology, ranks)
    raise SketchError(
        f"{label} {witness}; expected a permutation that the topology {topology.name} has; correct the "
        "offset or the group, or remove the entry",
        where=where,
    )


def check_clauses(
    topology: Topology,
    clauses: Clauses,
    ranks: Sequence[int],
    links: Sequence[int],
    *,
    label: str,
    where: str,
) -> None:
    """Raise `SketchError` if a symmetry does not map the sketch's own clauses to themselves."""
    same = range(topology.num_ranks)
    for clause in clauses.said():
        value = getattr(clauses, clause.field)
        mine = sorted(value) if clause.shape in ("links", "ranks-of-link") else []
        renamed = clause.at_links(value, mine, ranks)
        images = clause.at_links(value, [links[e] for e in mine], same)
        for e in (e for e, here, there in zip(mine, renamed, images, strict=True) if here != there):
            field, one, other = " or ".join(clause.said), str(topology.links[e]), topology.links[links[e]]
            told = f"whose {field} differ"
            if clause.shape == "links":
                one, told = f"{one}, which {field} names,", "which it does not"
            raise SketchError(f"{label} maps link {one} to {other}, {told}; make the two agree", where=where)


def narrow(problem: Problem, ranks: Sequence[int]) -> tuple[int, Permutation | None]:
    """Smallest power of a permutation that is a symmetry of the collective: (exponent, permutation).

    That power generates the subgroup of the cyclic group that fixes the collective. The permutation is None
    if the subgroup is trivial.
    """
    period = order(ranks)
    for exponent in range(1, period):
        if period % exponent == 0:
            candidate = power(ranks, exponent)
            if chunk_permutation(problem, candidate) is not None:
                return exponent, candidate
    return period, None


class _Keys:
    """Keys of links and resources that a symmetry must preserve; small integers stand for costs, for speed.

    `has_distinct_ends` is true if every link has one source, one destination and no parallel link of the same
    cost. The image of a link is then found from its `ends` alone.
    """

    def __init__(self, topology: Topology) -> None:
        number: dict[Hashable, int] = {}
        # Many links share the same cost objects, whose identities are much faster to hash than fractions.
        known: dict[tuple[int, int, str], int] = {}

        def cost(alpha_us: Fraction, beta_us_per_mb: Fraction, side: str) -> int:
            shared = id(alpha_us), id(beta_us_per_mb), side
            if shared not in known:
                ratios = alpha_us.as_integer_ratio(), beta_us_per_mb.as_integer_ratio()
                known[shared] = number.setdefault((*ratios, side), len(number))
            return known[shared]

        self._topology, self._columns = topology, hold_columns(topology)
        self.of_link = list(map(cost, *columns_of(topology.links, 2, 3), repeat("")))
        of_hold = map(cost, *columns_of(topology.holds, 2, 3, 4))
        self._of_hold = np.fromiter(of_hold, np.int64, len(topology.holds))
        self.has_single_ends = not wide_links(topology)
        ends = self.ends(np.arange(topology.num_ranks))
        self.order = np.argsort(ends, kind="stable")
        self.sorted = ends[self.order]
        self.has_distinct_ends = self.has_single_ends and bool((np.diff(self.sorted) > 0).all())

    @cached_property
    def alike(self) -> dict[Hashable, list[int]]:
        """{key of a resource (`held_by`): resources with this key}."""
        return _indices_by_name(self.held_by(np.arange(len(self.of_link))))

    @cached_property
    def _holds_in_order(self) -> tuple[Ints, Ints, Ints]:
        """(place of each hold, resource and cost at each place), with -1 at places without a hold.

        Place ``i * num_links + e`` is that of link e's i-th hold.
        """
        link, count = self._columns.link, len(self.of_link)
        order = lexsort((link,))
        ends = np.cumsum(np.bincount(link, minlength=count))
        place = np.empty(len(link), np.int64)
        place[order] = np.arange(len(link)) - np.append(0, ends)[link[order]]
        place = place * count + link
        resource, cost = np.full((2, (int(place.max(initial=-1)) // max(1, count) + 1) * count), -1)
        resource[place], cost[place] = self._columns.resource, self._of_hold
        return place, resource, cost

    def resources_in_order(self, links: Ints) -> Ints | None:
        """(num_resources,) images of resources if the i-th hold of each link maps to the i-th of its image.

        None if that is no symmetry, or if resources with equal keys do not keep their order. Resources
        without holds keep their places.
        """
        place, resource_at, cost_at = self._holds_in_order
        there = place + (links - np.arange(len(links)))[self._columns.link]
        found, resource = np.arange(len(self._topology.resources)), self._columns.resource
        found[resource] = resource_at[there]
        is_one_to_one = (np.bincount(found + 1, minlength=1 + len(found))[1:] == 1).all()
        are_alike = np.array_equal(found[resource], resource_at[there])
        is_symmetry = is_one_to_one and are_alike and (cost_at[there] == self._of_hold).all()
        first, second = self._equal_pairs
        return found if is_symmetry and (found[first] < found[second]).all() else None

    @cached_property
    def _equal_pairs(self) -> Ints:
        """Consecutive resources with equal keys, as columns; (2, num_pairs)."""
        pairs = [pair for alike in self.alike.values() for pair in pairwise(alike)]
        return np.array(pairs, np.int64).reshape(-1, 2).T

    def ends(self, ranks: Ints) -> Ints:
        """(num_links,) integer key of each link: its cost and the images of its source and destination."""
        (src, dst), count = link_ends(self._topology), self._topology.num_ranks
        codes: Ints = (np.array(self.of_link, np.int64) * count + ranks[src]) * count + ranks[dst]
        return codes

    def held_by(self, links: Ints) -> list[bytes]:
        """Key of each resource: the images of the links that occupy it, and their costs on it."""
        resource = self._columns.resource
        code = links[self._columns.link] * (self._of_hold.max(initial=0) + 1) + self._of_hold
        order = np.lexsort((code, resource))
        cuts = np.searchsorted(resource[order], np.arange(len(self._topology.resources) + 1)).tolist()
        code = code[order]
        return [code[a:b].tobytes() for a, b in pairwise(cuts)]

    @cached_property
    def holds(self) -> list[list[tuple[int, int]]]:
        """For every link, (resource, integer that stands for the cost there) of each resource it occupies."""
        holds: list[list[tuple[int, int]]] = [[] for _ in self._topology.links]
        for hold, code in zip(self._topology.holds, self._of_hold.tolist(), strict=True):
            holds[hold.link].append((hold.resource, code))
        return holds

    @cached_property
    def of_resource(self) -> list[tuple[int, ...]]:
        """For each resource, the sorted integers that stand for the costs of the links that occupy it."""
        keys: list[list[int]] = [[] for _ in self._topology.resources]
        for hold, code in zip(self._topology.holds, self._of_hold.tolist(), strict=True):
            keys[hold.resource].append(code)
        return [tuple(sorted(each)) for each in keys]


@cached
def _keys(topology: Topology) -> _Keys:
    return _Keys(topology)


def share_permutations(topology: Topology, other: Topology) -> None:
    """Copy cached permutations from `other`, a topology that differs only in the costs of its links.

    Costs that are equal in one topology must be equal in the other.
    """
    names = {each.__qualname__ for each in (link_permutation, resource_permutation, _keys)}
    for key, found in list(other.cache.items()):  # a thread left running may add to the cache
        if isinstance(key, tuple) and key[0] in {f"{__name__}.{name}" for name in names}:
            topology.cache.setdefault(key, found)


def _match_holds(
    keys: _Keys, link: int, image_link: int, resources: Mapping[int, int], taken: set[int]
) -> dict[int, int] | None:
    """Map the resources of a link to those of `image_link`; None if costs or earlier choices forbid it."""
    holds, left = keys.holds[link], list(keys.holds[image_link])
    if len(holds) != len(left):
        return None
    found: dict[int, int] = {}
    # Resources with a known image come first, so that no resource with a free choice takes that image.
    for resource, code in sorted(holds, key=lambda hold: hold[0] not in resources):
        settled = resources.get(resource, found.get(resource))
        for image, image_code in left:
            if image_code != code or keys.of_resource[image] != keys.of_resource[resource]:
                continue
            free = image not in taken and image not in found.values()
            if image == settled or (settled is None and free):
                break
        else:
            return None
        left.remove((image, image_code))
        found[resource] = image
    return found


def _cost_witness(topology: Topology, ranks: Sequence[int]) -> str | None:
    """Text on a link whose image has other costs or does not exist; None if there is no such link."""
    costs: dict[tuple[Permutation, Permutation], list[tuple[str, str]]] = defaultdict(list)
    for link in topology.links:
        ends = _ends(link.srcs, link.dsts, range(topology.num_ranks))
        costs[ends].append((f"{float(link.beta_us_per_mb):g} us/MB", f"alpha {float(link.alpha_us):g} us"))
    for (srcs, dsts), here in costs.items():
        image = _ends(srcs, dsts, ranks)
        there = costs.get(image, [])
        if sorted(here) == sorted(there):
            continue
        before, after = _arrow((srcs, dsts)), _arrow(image)
        if not there:
            return f"maps link {before} to {after}, which does not exist"
        part = 0 if sorted(h[0] for h in here) != sorted(t[0] for t in there) else 1
        has, meets = (" and ".join(sorted(each[part] for each in costs)) for costs in (here, there))
        return f"maps link {before} ({has}) to {after}, which has {meets}"
    return None


def _resource_witness(topology: Topology, ranks: Sequence[int]) -> str:
    """Text on links that share a resource, while no resource of equal costs is shared by their images."""
    links_of: list[set[tuple[tuple[int, ...], tuple[int, ...]]]] = [set() for _ in topology.resources]
    for hold in topology.holds:
        link = topology.links[hold.link]
        links_of[hold.resource].add((link.srcs, link.dsts))
    known = {frozenset(each) for each in links_of}
    for resource, each in enumerate(links_of):
        image = frozenset((tuple(ranks[r] for r in s), tuple(ranks[r] for r in d)) for s, d in each)
        if image not in known:
            return (
                f"maps the links that share {topology.resources[resource].name} with {_arrow(min(each))} to "
                f"links around {_arrow(min(image))} that share no resource alike"
            )
    return "maps links that share a resource to links that do not share one at the same costs"
