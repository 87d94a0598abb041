"""Isomorphic phases of an allreduce: the schedule of one phase, renamed, is a schedule of the other.

A network with reversed links is often isomorphic to the network: with the same ranks, or with neighbours
swapped, such as when one rank of a pair sends for both and the other receives. Then one phase is searched,
for longer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from taccl.problem.clauses import CLAUSES, Clause
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule, make_schedule
from taccl.sketch.symmetry import block_shifts, offset_permutation
from taccl.synthesis.search import Search


@dataclass(frozen=True, slots=True)
class Isomorphism:
    """Ranks, chunks and allowed links of one problem, renamed to those of another."""

    ranks: tuple[int, ...]
    chunks: tuple[int, ...]
    links: Mapping[int, int]


def find_isomorphism(one: Problem, other: Problem) -> Isomorphism | None:
    """Renaming of `one` to `other`: the identity, or a shift within blocks of ranks.

    None if no such renaming exists, or if the problems differ in other ways, such as derived chunks.
    """
    if _scalars(one) != _scalars(other):
        return None
    num_ranks = one.topology.num_ranks
    asked = dict.fromkeys((*one.clauses.said(), *other.clauses.said()))
    # Both problems are broadcasts (phases of one problem), so clauses on sums do not apply.
    said = [each for each in asked if not each.in_reverse]
    other_chunks = _chunk_names(other, range(num_ranks))
    other_links = _link_names(other, range(num_ranks), said)
    shifts = (offset_permutation(num_ranks, *shift) for shift in block_shifts(num_ranks))
    for ranks in chain([tuple(range(num_ranks))], shifts):
        chunks = matched(_chunk_names(one, ranks), other_chunks)
        if len(chunks) < len(other_chunks):
            continue
        links = matched(_link_names(one, ranks, said), other_links)
        here, there = one.topology.node_of_rank, other.topology.node_of_rank
        # This mapping of nodes must be one to one.
        nodes = {(here[r], there[image]) for r, image in enumerate(ranks)}
        is_whole = len(links) == len(one.links_allowed) == len(other_links)
        if not is_whole or not len(nodes) == len({*here}) == len({*there}):
            continue
        if _holders(one, links) == _holders(other, {e: e for e in links.values()}):
            return Isomorphism(ranks, tuple(chunks[c] for c in range(len(chunks))), links)
    return None


def hand_over(found: Search, search: Search, names: Isomorphism) -> bool:
    """Propose one search's best schedule, renamed, to an isomorphic search; false if it has none."""
    best = found.best
    if best is None:
        return False
    return search.offer_whole(renamed(best, search.problem, names), producer=best.producer) is not None


def renamed(found: Schedule, problem: Problem, names: Isomorphism) -> Schedule:
    """Schedule of an isomorphic problem, with its chunks and links."""
    return make_schedule(
        problem,
        chunk=[names.chunks[c] for c in found.chunk.tolist()],
        link=[names.links[e] for e in found.link.tolist()],
        start=found.start,
        end=found.end,
        group=found.group,
        producer=found.producer,
    )


def matched(old: Iterable[tuple[int, Hashable]], new: Iterable[tuple[int, Hashable]]) -> dict[int, int]:
    """{old index: new index with the same name}; duplicates are matched in order."""
    named: dict[Hashable, list[int]] = defaultdict(list)
    for index, name in new:
        named[name].append(index)
    for indices in named.values():
        indices.reverse()
    return {index: named[name].pop() for index, name in old if named.get(name)}


def _scalars(problem: Problem) -> tuple[Hashable, ...]:
    """Properties of a problem that are unchanged if its ranks, chunks and links are renamed."""
    clauses, collective = problem.clauses, problem.collective
    return (
        problem.topology.num_ranks,
        collective.num_chunks,
        not collective.derivations and not collective.combining,
        problem.costs.ticks_per_us,
        tuple(getattr(clauses, name) for name, each in CLAUSES.items() if each.is_scalar),
        clauses.relays is None,
    )


def _chunk_names(problem: Problem, ranks: Sequence[int]) -> list[tuple[int, Hashable]]:
    """[(chunk, name), ...]; a name lists origins, destinations and size, with ranks renamed."""
    units = problem.costs.chunk_units.tolist()
    return [
        (c, (_renamed(data.origins, ranks), _renamed(data.destinations, ranks), units[c]))
        for c, data in enumerate(problem.collective.chunks)
    ]


def _link_names(problem: Problem, ranks: Sequence[int], said: Sequence[Clause]) -> list[tuple[int, Hashable]]:
    """[(link, name), ...] of allowed links; a name lists ends, costs and clauses, with ranks renamed."""
    topology, costs, clauses = problem.topology, problem.costs, problem.clauses
    links, ends = sorted(problem.links_allowed), topology.links
    parts = [each.at_links(getattr(clauses, each.field), links, ranks) for each in said]
    return [
        (
            e,
            (
                _renamed(ends[e].srcs, ranks),
                _renamed(ends[e].dsts, ranks),
                topology.is_internode(e),
                int(costs.link_alpha[e]),
                int(costs.link_beta[e]),
                *part,
            ),
        )
        for e, *part in zip(links, *parts, strict=True)
    ]


def _holders(problem: Problem, links: Mapping[int, int]) -> list[list[tuple[int, ...]]]:
    """Occupations of each resource in use, as sorted rows, to compare two problems up to renaming.

    - `links`: {link: its new number}; other links are left out.

    There is a row for each link that occupies the resource. It lists the link's new number, the alpha and
    beta cost of the occupation, and those of its delay after the send's start.
    """
    costs = problem.costs
    held: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for index, hold in enumerate(problem.topology.holds):
        if hold.link in links:
            alpha, beta = int(costs.hold_alpha[index]), int(costs.hold_beta[index])
            spare_alpha = int(costs.link_alpha[hold.link]) - alpha
            spare_beta = int(costs.link_beta[hold.link]) - beta
            late = hold.side == "receive"
            held[hold.resource].append((links[hold.link], alpha, beta, spare_alpha * late, spare_beta * late))
    resources = []
    for holds in held.values():
        # If all occupations begin at the same delay after the start of a send, the delay may be taken as 0.
        alike = len({each[3:] for each in holds}) == 1 and not holds[0][4]
        resources.append(sorted(each[:3] + ((0, 0) if alike else each[3:]) for each in holds))
    return sorted(resources)


def _renamed(ranks: Iterable[int], names: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted({names[r] for r in ranks}))
