"""`make_problem`: problems from chunk sizes, or from a size as nccl-tests counts it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

import numpy as np

from taccl._internal.arguments import Bytes, Count, checked_as
from taccl._internal.units import format_count
from taccl.errors import CollectiveError
from taccl.problem.clauses import Clauses
from taccl.problem.collective import Collective
from taccl.problem.collectives import CollectiveArguments, make
from taccl.problem.costs import hold_columns
from taccl.problem.problem import Problem
from taccl.topology.links import columns_of
from taccl.topology.topology import Topology


@checked_as(CollectiveError)
def make_problem(
    topology: Topology,
    collective: Collective | str,
    *,
    chunk_bytes: Bytes | Sequence[Bytes] | None = None,
    size_bytes: Bytes | None = None,
    chunks_per_rank: Count | None = None,
    clauses: Clauses | None = None,
    notes: Sequence[str] = (),
    **arguments: Unpack[CollectiveArguments],
) -> Problem:
    """Make a problem on a topology; parameters and errors are those of `taccl.make_problem`.

    The latter also takes machines by name, and chooses their protocol.
    """
    notes = list(notes)
    if (chunk_bytes is None) == (size_bytes is None):
        said = f"found {'neither' if size_bytes is None else 'both'}; give a size, or a chunk size"
        raise CollectiveError(said, where="size_bytes, chunk_bytes")
    if isinstance(collective, str):
        collective = make(collective, topology.num_ranks, chunks_per_rank=chunks_per_rank, **arguments)
    else:
        collective = _as_given(collective, chunks_per_rank, **arguments)
    # Costs of the "upstream" cost model hold for one chunk size only, so the number of chunks is fixed.
    can_cut = size_bytes is not None and topology.cost_model == "physical" and collective.num_chunks > 0
    chunks_open = collective.chunks_open and can_cut
    if size_bytes is not None:
        count = collective.size_chunks or 1  # 0 for a collective without chunks
        each = -(-size_bytes // count)
        if each * count != size_bytes:
            padded = f"each is padded to {each} B"
            notes.append(f"size {size_bytes} B does not divide into {count} chunks: {padded}")
        sizes = (each,) * collective.num_chunks
    elif isinstance(chunk_bytes, (int, np.integer)):
        sizes = (int(chunk_bytes),) * collective.num_chunks
        size_bytes = sizes[0] * collective.size_chunks if sizes else None
    else:
        sizes = tuple(int(b) for b in chunk_bytes or ())
        size_bytes = _largest_buffer(collective, sizes) if len(sizes) == collective.num_chunks else None
    if clauses is None:
        clauses = _default_merging(topology, collective, sum(sizes))
    return Problem(topology, collective, sizes, clauses, size_bytes, tuple(notes), chunks_open)


def by_default(problem: Problem) -> Problem:
    """The problem with default clauses only."""
    return make_problem(problem.topology, problem.collective, size_bytes=problem.size_bytes)


def default_clauses(problem: Problem) -> Clauses:
    """Clauses that `make_problem` gives to a problem of this topology, collective and size."""
    return _default_merging(problem.topology, problem.collective, sum(problem.chunk_bytes))


def merged(problem: Problem) -> Problem | None:
    """The problem with merging allowed on all links whose latency exceeds a chunk's transmission time.

    None if sends may merge there already, or if a sketch determines merging.
    """
    collective, costs, links = problem.collective, problem.costs, hold_columns(problem.topology).link
    waits = links[costs.hold_alpha > costs.hold_beta * int(costs.chunk_units.max(initial=1))]
    merging = problem.clauses.merging.union(waits.tolist())
    if merging == problem.clauses.merging or problem.clauses != by_default(problem).clauses:
        return None
    links_text = format_count(len(merging), "link")
    note = f"chunks merge into one send on {links_text}, where latency exceeds a chunk's transmission time"
    notes = (*problem.notes, f"{note}; to forbid it, set merging.links in a sketch")
    together = problem.with_clauses(merging=merging, max_merge=max(6, collective.num_chunks))
    return replace(together, notes=notes)


def _as_given(collective: Collective, chunks_per_rank: int | None, **given: Any) -> Collective:
    """The collective with the requested number of chunks.

    Raises `CollectiveError` for an argument that the given collective already fixes.
    """
    if chunks_per_rank is not None and not collective.chunks_open:
        given["chunks_per_rank"] = chunks_per_rank
    told = [name for name, value in given.items() if value is not None]
    if told:
        said = "found one with a collective object; leave it out, or name the collective"
        raise CollectiveError(said, where=told[0])
    return collective if chunks_per_rank is None else collective.split(chunks_per_rank)


def _default_merging(topology: Topology, collective: Collective, num_bytes: int) -> Clauses:
    """Default clauses: sends between nodes merge; for small sums, also sends on links with a large alpha."""
    merging = frozenset(topology.internode_links)
    if not collective.sums_up:
        return Clauses(max_merge=6, merging=merging)
    # Many links share the same cost objects, whose identities are much faster to hash than fractions.
    alphas, betas = columns_of(topology.links, 2, 3)
    costs = list(zip(map(id, alphas), map(id, betas), strict=True))
    one_of = dict(zip(costs, topology.links, strict=True))
    waits = {cost: e.alpha_us * 10**6 > e.beta_us_per_mb * num_bytes for cost, e in one_of.items()}
    slow = {e for e, cost in enumerate(costs) if waits[cost]}
    return Clauses(max_merge=max(6, collective.num_chunks) if slow else 6, merging=merging | slow)


def _largest_buffer(collective: Collective, sizes: Sequence[int]) -> int | None:
    """Bytes of the larger of one rank's input and output buffer, max over ranks; None if all are empty."""
    if collective.derivations:  # a rank's output is the chunks that it derives; others are only relayed
        made: Counter[int] = Counter()
        for each in collective.derivations:
            made[each.rank] += sizes[each.chunk]
        return max(made.values()) or None
    exact = np.int64 if sum(sizes) < 2**63 else object
    return collective.most_at_a_rank(np.array(sizes, exact)) or None
