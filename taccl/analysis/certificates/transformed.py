"""Transformed problems for bounds: time-reversed, without useless merging or padding, or a part of the data.

The part is the data that enters a node, or the data of late releases. A bound from a release date on is that
date plus a bound for the data released then or later. Scheduling on a single machine has the same bound, with
the sum of processing times in place of `lower_bound`. For a sum, only contributions released then or later
count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from taccl.errors import InputError
from taccl.problem.chunks import Chunk
from taccl.problem.collective import Collective
from taccl.problem.costs import hold_columns
from taccl.problem.making import default_clauses
from taccl.problem.problem import Problem
from taccl.schedule.combine import reduce_phase
from taccl.sketch.symmetry import share_permutations
from taccl.topology.in_network import shared_links
from taccl.topology.transform import rescaled

if TYPE_CHECKING:
    from taccl.topology.topology import Topology

#: Max release dates from which a bound is computed.
_MOST_DATES = 6


def as_spreading(problem: Problem) -> Problem:
    """Return the problem to bound: reductions to one rank are time-reversed, and useless merging is disabled.

    If some ranks contribute nothing, a reduction's result may also travel on as a copy. Clauses on paths, and
    on the chunks that a link carries, would then apply differently in reverse, so they are dropped.
    """
    return _merging_where_it_gains(_reversed_if_to_root(problem))


def _merging_where_it_gains(problem: Problem) -> Problem:
    """Disable merging over links where n single sends take no longer than a merged send of n chunks.

    These are links without alpha whose resources are held for the whole send. Single sends in sequence take
    the same time there, and no chunk leaves earlier or arrives later. Sums are excluded, as later sends may
    include more contributions. `max_merge` is capped at the number of chunks.
    """
    most = max(problem.collective.num_chunks, 1)
    if problem.clauses.max_merge > most:
        problem = problem.with_clauses(max_merge=most)
    clauses, costs = problem.clauses, problem.costs
    merging = np.array(sorted(clauses.merging), np.int64)
    if problem.collective.combining or clauses.max_merge == 1 or (costs.link_alpha[merging] > 0).all():
        return problem
    link = hold_columns(problem.topology).link
    gains = costs.link_alpha > 0
    gains[link[(costs.hold_alpha > 0) | (costs.hold_beta != costs.link_beta[link])]] = True
    return problem.with_clauses(merging=frozenset(merging[gains[merging]].tolist()))


def is_reversed(problem: Problem) -> bool:
    """True if `as_spreading` reverses the problem in time: its sums are only for one rank each."""
    collective = problem.collective
    return collective.combining and not collective.derivations and collective.stays_at_roots


def _reversed_if_to_root(problem: Problem) -> Problem:
    if not is_reversed(problem):
        return problem
    collective = problem.collective
    everyone = set(range(collective.num_ranks))
    if all(set(chunk.origins) == everyone for chunk in collective.chunks):
        return reduce_phase(problem)
    lost = ("carries_from", "carries_to", *(each.field for each in problem.clauses.said("path")))
    return reduce_phase(problem.without_clauses(*lost))


def over_links(problem: Problem, *, shared: bool) -> Problem:
    """Return the problem with only the multicast and reduction links of reducing switches, or without these.

    - `shared`: True to keep only these links, False to remove them.
    """
    several = set(shared_links(problem.topology))
    if not several and not shared:
        return problem
    allowed = frozenset(e for e in problem.links_allowed if (e in several) == shared)
    return problem.with_clauses(links_allowed=allowed)


def check_switches_add(topology: Topology) -> None:
    """Raise `InputError` unless some switch of the topology reduces."""
    if not shared_links(topology):
        raise InputError(
            f"found 'only', and no switch of {topology.name} adds; expected a topology with one, such as "
            "taccl.topologies.in_network(8)",
            where="in_network",
        )


def by_switches_alone(problem: Problem) -> Problem:
    """Return the problem with only the multicast and reduction links of reducing switches.

    If every sum is only for its root, multicast links are removed, too.
    """
    problem = over_links(problem, shared=True)
    collective, links = problem.collective, problem.topology.links
    if not collective.sums_up or not collective.stays_at_roots:
        return problem
    if any(len(chunk.origins) == 1 for chunk in collective.chunks):  # copied, so it needs multicast links
        return problem
    adding = frozenset(e for e in problem.links_allowed if len(links[e].srcs) > 1)
    return problem.with_clauses(links_allowed=adding)


def time_reversed(problem: Problem) -> Problem | None:
    """Return the time-reversed problem; None unless every chunk goes unreduced from one rank to one rank.

    The clause `carries_from` (allowed origins of the chunks on a link) is dropped, as it would apply to
    destinations.
    """
    collective = problem.collective
    single = all(len(chunk.origins) == len(chunk.destinations) == 1 for chunk in collective.chunks)
    if collective.combining or collective.derivations or not single:
        return None
    exchanged = tuple(Chunk(chunk.destinations, chunk.origins) for chunk in collective.chunks)
    return replace(
        problem.without_clauses("carries_from"),
        topology=problem.topology.reversed(),
        collective=replace(collective, name=f"{collective.name}, backwards", chunks=exchanged),
    )


def merging_freely(problem: Problem) -> Problem:
    """Return the problem with unlimited merging on all links.

    The problem is returned unchanged if it has a clause on anything but merging, or limits merging more than
    the default does. The default limit is no restriction: the search may merge more if that finishes sooner.
    """
    clauses = problem.clauses
    if clauses != clauses.only("merge"):
        return problem
    default = default_clauses(problem)
    if not (clauses.merging >= default.merging and clauses.max_merge >= default.max_merge):
        return problem
    everywhere, most = frozenset(problem.links_allowed), max(clauses.max_merge, problem.collective.num_chunks)
    return problem.with_clauses(merging=everywhere, max_merge=most)


def share_of_data(problem: Problem) -> Fraction:
    """Bytes of data over those of whole chunks, which padding rounds up; 1 without padding."""
    padded = problem.collective.size_chunks * problem.chunk_bytes[0] if problem.chunk_bytes else 0
    if problem.size_bytes is None or not 0 < problem.size_bytes < padded or len(set(problem.chunk_bytes)) > 1:
        return Fraction(1)
    return Fraction(problem.size_bytes, padded)


def without_padding(problem: Problem) -> Problem:
    """Return the problem of the data alone: betas are reduced by the share of padding in its bytes.

    Its size is unset, so that padding is taken off once. A problem without padding is returned unchanged.
    """
    share = share_of_data(problem)
    if share == 1:
        return problem
    topology = rescaled(problem.topology, dict.fromkeys(((False, "beta"), (True, "beta")), share))
    share_permutations(topology, problem.topology)
    return replace(problem, topology=topology, size_bytes=None)


def late_part(problem: Problem, date: Fraction) -> Problem | None:
    """Problem of the data released at `date` (in us) or later; None if no such problem can be made.

    Time 0 of this problem is `date`. It cannot be made if no data is that late, if chunks are derived, or if
    a clause limits relays. For sums, clauses on chunks are dropped, as they would apply to fewer origins.
    """
    release = {(chunk, rank): us for chunk, rank, us in problem.release_us}
    collective, chunks, sizes = problem.collective, [], []
    for index, chunk in enumerate(collective.chunks):
        late = tuple(rank for rank in chunk.origins if release.get((index, rank), 0) >= date)
        if chunk.is_met(is_sum=collective.sums_up):  # needs no send
            continue
        if late and (collective.sums_up or late == chunk.origins):
            chunks.append(replace(chunk, origins=late))
            sizes.append(problem.chunk_bytes[index])
    # A clause on relays depends on process groups, which the problem of the late data does not keep.
    if not chunks or collective.derivations or problem.clauses.relays is not None:
        return None
    if collective.sums_up:
        problem = _without_clauses_on_chunks(problem)
    return _part(problem, chunks, sizes)


def into_node(problem: Problem, node: int) -> Problem | None:
    """Problem of the data that ranks of a node need, and of which nothing starts in the node.

    None if there is no such data, if sums are made or chunks are derived, or if a clause limits relays.
    Clauses on chunks are dropped if a chunk has destinations elsewhere, too, as they may depend on these.
    """
    collective, ranks = problem.collective, frozenset(problem.topology.ranks_of_node[node])
    if collective.combining or collective.derivations or problem.clauses.relays is not None:
        return None
    chunks, sizes, is_cut = [], [], False
    for chunk, size in zip(collective.chunks, problem.chunk_bytes, strict=True):
        here = tuple(rank for rank in chunk.destinations if rank in ranks)
        if here and ranks.isdisjoint(chunk.origins):
            chunks.append(replace(chunk, destinations=here))
            sizes.append(size)
            is_cut |= here != chunk.destinations
    if is_cut:
        problem = _without_clauses_on_chunks(problem)
    return _part(problem, chunks, sizes) if chunks else None


def _part(problem: Problem, chunks: Sequence[Chunk], sizes: Sequence[int]) -> Problem:
    """The problem with these chunks instead of its own; servers do not update them."""
    collective = problem.collective
    part = Collective(collective.name, collective.num_ranks, tuple(chunks), collective.combining)
    return replace(
        problem, collective=part, chunk_bytes=tuple(sizes), release_us=(), due_us=(), chunks_open=False
    )


def _without_clauses_on_chunks(problem: Problem) -> Problem:
    """The problem without clauses that depend on the origins, destinations or roots of chunks."""
    return problem.without_clauses(*(each.field for each in problem.clauses.said("chunk")))


def ticks_of_part(part: Problem, problem: Problem) -> Fraction:
    """Ticks of `problem` per tick of `part`, whose chunk sizes may give it ticks of another length."""
    return Fraction(problem.costs.ticks_per_us, part.costs.ticks_per_us)


def release_dates(problem: Problem) -> list[Fraction]:
    """Release dates from which a bound is computed, ascending, at most `_MOST_DATES`.

    If there are more, the first and the last are taken, and those that promise the highest bounds. The
    promise of a date is its share of the last date, plus the share of data released at this date or later.
    """
    release = {(chunk, rank): us for chunk, rank, us in problem.release_us}
    when = [
        (min(release.get((index, rank), 0) for rank in chunk.origins), problem.chunk_bytes[index])
        for index, chunk in enumerate(problem.collective.chunks)
        if chunk.origins
    ]
    found = sorted({us for _, _, us in problem.release_us if us})
    if len(found) <= _MOST_DATES:
        return found
    last, total = float(found[-1]), sum(size for _, size in when)

    def promise(date: Fraction) -> float:
        return float(date) / last + sum(size for us, size in when if us >= date) / total

    return sorted({found[0], found[-1], *sorted(found, key=promise)[2 - _MOST_DATES :]})
