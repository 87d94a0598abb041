"""Alltoallv: collectives with a number of bytes for each pair of ranks, and their bound."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taccl._internal.arguments import AtLeastTwo, Bytes, Natural, checked, checked_as
from taccl._internal.arrays import Flags, Floats, Ints, distinct
from taccl._internal.caching import cached
from taccl._internal.units import format_count, format_size
from taccl.errors import CollectiveError, InputError
from taccl.problem.byte_matrices import checked_sizes
from taccl.problem.chunks import Chunk
from taccl.problem.collective import Collective
from taccl.problem.costs import HoldColumns, hold_columns, hold_costs_us, link_costs_us, link_ends
from taccl.problem.making import make_problem
from taccl.problem.problem import Clauses, Problem
from taccl.topology.topology import Topology

#: `_CHUNKS_OF_A_RANK`: number of chunks of the busiest rank's data, unless latency demands fewer.
#: `_MOST_CHUNKS`: approximate max number of chunks of all pairs together.
_CHUNKS_OF_A_RANK, _MOST_CHUNKS = 64, 30_000
_SKEW = re.compile(r"(zipf|hot):(\d+(?:\.\d*)?|\.\d+)")
#: `_FEW_PAIRS`: max pairs with data, per rank, for which smaller chunks are made to shorten pipelines.
#: With twelve pairs on 32 ranks, smaller chunks gained nothing.
#: `_FINE_CHUNKS`: approximate max number of chunks that are made smaller to shorten pipelines.
#: `_FINER`, `_MOST_FINER`: max factor by which other chunks are made smaller, and their max number per pair.
_FEW_PAIRS, _FINE_CHUNKS = 0.25, 512
_FINER, _MOST_FINER = 4, 8
#: Min ratio of a chunk's size to the bytes that a resource could pass in a hold's fixed time (alpha).
_HOLDS = 8


@checked_as(CollectiveError)
def alltoallv_problem(
    topology: Topology, sizes: ArrayLike, *, chunk_bytes: Bytes | None = None, clauses: Clauses | None = None
) -> Problem:
    """Problem of an alltoallv on a topology; parameters and errors are those of `taccl.alltoallv_problem`.

    The latter also takes machines by name, and chooses their protocol.
    """
    table = checked_sizes(sizes, topology.num_ranks, topology.name)
    most = default_chunk_bytes(topology, table) if chunk_bytes is None else chunk_bytes
    num_bytes = table[np.nonzero(table)]
    parts = -(-num_bytes // most)
    chunks = _chunks_of_pairs(-(-table // most))
    # If a pair's bytes do not divide evenly, its first chunks are a byte larger.
    place = np.arange(len(chunks)) - np.repeat(np.cumsum(parts) - parts, parts)
    sizes_of_chunks = np.repeat(num_bytes // parts, parts) + (place < np.repeat(num_bytes % parts, parts))
    notes = []
    if len(chunks) > len(parts):
        cut = f"{format_count(len(parts), 'pair')} of ranks in {format_count(len(chunks), 'chunk')}"
        notes.append(f"{cut} of at most {format_size(int(most))}; chunk_bytes= (--chunk-size) sets this size")
    collective = Collective("alltoallv", topology.num_ranks, chunks)
    return make_problem(
        topology, collective, chunk_bytes=sizes_of_chunks.tolist(), clauses=clauses, notes=notes
    )


@checked_as(CollectiveError)
def alltoallv_collective(sizes: ArrayLike, *, chunk_bytes: Bytes | None = None) -> Collective:
    """Alltoallv collective in chunks of one size, as programs and plans require.

    The bytes of each pair are rounded up to whole chunks. The size of a problem with this collective scales
    all pairs in proportion: ``make_problem(topology, collective, size_bytes="64MB")``.

    Parameters
    ----------
    sizes : (num_ranks, num_ranks) array_like of int
        Bytes from the row's rank to the column's.
    chunk_bytes : int, optional
        Bytes of a chunk. Default: a 64th of the bytes that the busiest rank sends or receives.

    Raises
    ------
    CollectiveError
        If `sizes` is not a square matrix of whole numbers of bytes.
    """
    num_ranks = len(np.atleast_1d(np.asarray(sizes, object)))
    table = checked_sizes(sizes, num_ranks, "its columns")
    most = max(1, chunk_bytes or -(-_busiest_bytes(table) // _CHUNKS_OF_A_RANK))
    return Collective("alltoallv", num_ranks, _chunks_of_pairs(-(-table // most)))


def is_uneven(problem: Problem) -> bool:
    """True for an exchange between pairs of ranks with different numbers of bytes, or between few pairs.

    Each chunk has one origin and one destination. Few pairs count if their data are cut into chunks. Pairs
    without chunks do not count.
    """
    starts, ends = problem.collective.origin_sets, problem.collective.destination_sets
    if problem.collective.combining or any(len(ranks) != 1 for ranks in (*starts.sets, *ends.sets)):
        return False
    num_bytes = np.bincount(starts.of_chunk * len(ends.sets) + ends.of_chunk, problem.chunk_bytes)
    pairs = num_bytes[num_bytes > 0]
    is_cut = len(pairs) < problem.collective.num_chunks
    return len(distinct(pairs)) > 1 or is_cut and len(pairs) <= _FEW_PAIRS * problem.topology.num_ranks


@checked
def skewed_sizes(
    num_ranks: AtLeastTwo, rank_bytes: Bytes, skew: str = "zipf:0.8", *, seed: Natural = 0
) -> NDArray[np.int64]:
    """Matrix of bytes per pair of ranks, for an alltoallv with a given skew.

    Parameters
    ----------
    num_ranks : int
        Number of ranks, at least 2.
    rank_bytes : int
        Bytes that a rank sends, on average over the ranks.
    skew : str
        ``"zipf:S"``: the k-th largest pair sends in proportion to k to the power -S, with all pairs in random
        order. ``"hot:F"``: one random pair sends F times the bytes of every other. ``"zipf:0"`` is an even
        alltoall.
    seed : int
        Seed of the random order.

    Returns
    -------
    (num_ranks, num_ranks) ndarray of int64
        Bytes from the row's rank to the column's; 0 on the diagonal.

    Raises
    ------
    InputError
        If there is a single rank, or the skew has another form.
    """
    if not (match := _SKEW.fullmatch(skew)):
        said = f"found {skew!r}; expected zipf:S, such as zipf:0.8, or hot:F, such as hot:64"
        raise InputError(said, where="skew")
    off_diagonal = ~np.eye(num_ranks, dtype=bool)
    shares = np.ones(num_ranks * (num_ranks - 1))
    if match[1] == "zipf":
        shares /= np.arange(1.0, len(shares) + 1) ** float(match[2])
    else:
        shares[0] = float(match[2])
    np.random.default_rng(seed).shuffle(shares)
    sizes = np.zeros((num_ranks, num_ranks), np.int64)
    sizes[off_diagonal] = np.rint(shares / shares.sum() * rank_bytes * num_ranks)
    return sizes


def is_skew(word: str) -> bool:
    """True if a word begins like a skew of `skewed_sizes`."""
    return word.startswith(("zipf:", "hot:"))


def _chunks_of_pairs(counts: Ints) -> tuple[Chunk, ...]:
    """Chunks of all pairs of ranks, row by row; `counts` is the matrix of the number of chunks per pair."""
    alone = [(rank,) for rank in range(len(counts))]
    pairs = zip(
        *(each.tolist() for each in np.nonzero(counts)), counts[np.nonzero(counts)].tolist(), strict=True
    )
    return tuple(
        chunk for row, column, count in pairs for chunk in (Chunk(alone[row], alone[column]),) * count
    )


def _busiest_bytes(table: Ints) -> int:
    """Max bytes that a rank sends or receives."""
    return int(max(table.sum(axis=0).max(initial=0), table.sum(axis=1).max(initial=0)))


def usual_chunk_bytes(topology: Topology, table: Ints) -> int:
    """Bytes of a chunk: small enough for chunks to be pipelined, large enough to hide latencies."""
    links = {(link.alpha_us, link.beta_us_per_mb) for link in topology.links}
    most = max(_bytes_in_alpha(links), _least_bytes(topology), _busiest_bytes(table) // _CHUNKS_OF_A_RANK)
    num_chunks = max(_MOST_CHUNKS, 2 * int(np.count_nonzero(table)))
    while (-(-table // most)).sum() > num_chunks:
        most *= 2
    return most


def default_chunk_bytes(topology: Topology, table: Ints) -> int:
    """Default bytes of a chunk: the usual ones, or fewer if that makes few more chunks.

    With fewer bytes, a path is idle for a shorter time, before its first chunk arrives and after its last one
    has left. Data of few pairs, which follow several paths over other ranks, are cut most.
    """
    usual = usual_chunk_bytes(topology, table)
    if not (num_pairs := np.count_nonzero(table)):
        return usual
    has_few_pairs = num_pairs <= _FEW_PAIRS * topology.num_ranks
    fewest = int(table.sum()) // _FINE_CHUNKS if has_few_pairs else usual // _FINER
    fine = max(_least_bytes(topology), _pipelined_bytes(topology, table), fewest)
    is_fine = 2 * fine <= usual and (-(-table // fine)).sum() <= max(
        2 * _FINE_CHUNKS, _MOST_FINER * num_pairs
    )
    return fine if is_fine else usual


def _least_bytes(topology: Topology) -> int:
    """Min bytes of a chunk; with smaller chunks, alphas would be a large share of every resource's time."""
    return max(1, _HOLDS * _bytes_in_alpha({(hold.alpha_us, hold.beta_us_per_mb) for hold in topology.holds}))


def _bytes_in_alpha(costs: Iterable[tuple[Fraction, Fraction]]) -> int:
    """Bytes that pass in the time alpha: the min over (alpha, beta) pairs; 1 if all betas are 0."""
    return min((int(alpha / beta * 10**6) for alpha, beta in costs if beta), default=1)


def _pipelined_bytes(topology: Topology, table: Ints) -> int:
    """Chunk size in bytes for the shortest pipeline over three hops.

    Let T be the lower bound of `Borders`, and b the time of a byte on the slowest link. Let h be the largest
    number of bytes that pass in the fixed time of a hold. With chunks of c bytes, fixed times extend T to
    T (1 + h / c). Filling and emptying the pipeline takes the time of two chunks, 2 b c. The sum is least at
    c = sqrt(T h / (2 b)). Links between nodes count if data cross nodes, otherwise links inside nodes.
    """
    node = np.array(topology.node_of_rank)
    src, dst = np.nonzero(table)
    crosses = bool((node[src] != node[dst]).any())
    holds = hold_columns(topology)
    from_rank, to_rank = link_ends(topology)
    rows = np.flatnonzero((node[from_rank] != node[to_rank])[holds.link] == crosses)
    costs = {(topology.holds[row].alpha_us, topology.holds[row].beta_us_per_mb) for row in rows.tolist()}
    betas = [float(beta) / 10**6 for _, beta in costs if beta]
    hidden = [float(alpha / beta) * 10**6 for alpha, beta in costs if beta]
    least_us = borders_of(topology).least_us(table)
    if not betas or math.isinf(least_us):  # infinite if a rank has data but no links for it
        return 1
    return int(math.sqrt(least_us * max(hidden) / (2 * max(betas))))


@cached
def borders_of(topology: Topology) -> Borders:
    """Cached rates and latencies at the borders of a topology's ranks and nodes."""
    return Borders(topology)


class Borders:
    """Max rates and min latencies of data that leave or enter each rank and each node, for a lower bound."""

    def __init__(self, topology: Topology) -> None:
        inside = np.eye(topology.num_ranks, dtype=bool)
        if 1 < topology.num_nodes < topology.num_ranks:
            nodes = np.array(topology.node_of_rank) == np.arange(topology.num_nodes)[:, None]
            inside = np.concatenate([inside, nodes])
        self.inside = inside
        src, dst = link_ends(topology)
        borders = inside[:, src] & ~inside[:, dst], inside[:, dst] & ~inside[:, src]
        holds, (alphas, _) = hold_columns(topology), link_costs_us(topology)
        rates = np.array([10**6 / beta if beta else math.inf for beta in hold_costs_us(topology)[1].tolist()])
        #: `rate`: Max bytes per us out of (first array) and into (second array) each rank, then each node.
        #: `lag`: Min latency in us of data out of and into each rank, then each node.
        self.rate = [np.array([_rate_across(each, holds, rates) for each in border]) for border in borders]
        self.lag = [np.where(border, alphas, math.inf).min(axis=1, initial=math.inf) for border in borders]

    def least_us(self, table: Ints) -> float:
        """Lower bound in us on the time of an all-to-all exchange; `table` has the bytes per rank pair."""
        within = (self.inside @ table * self.inside).sum(axis=1)
        crossing = self.inside @ table.sum(axis=1) - within, self.inside @ table.sum(axis=0) - within
        return max(
            float(np.max(num_bytes / rate + lag, where=num_bytes > 0, initial=0.0))
            for num_bytes, rate, lag in zip(crossing, self.rate, self.lag, strict=True)
        )


def _rate_across(crosses: Flags, holds: HoldColumns, rates: Floats) -> float:
    """Upper bound in bytes per us on the joint rate of the links in `crosses`, each limited by one resource.

    Links are assigned to resources greedily: a resource that more links use comes first. Infinite without
    links, as no data crosses then.

    - `crosses`, (num_links,): True for the links whose joint rate is bounded.
    - `rates`, (num_holds,): Bytes per us of a link on a resource, for each row of `holds`.
    """
    rows = np.flatnonzero(crosses[holds.link])
    link, resource, rates = holds.link[rows], holds.resource[rows], rates[rows]
    total = 0.0
    while len(link):
        chosen = resource == np.bincount(resource).argmax()
        total += float(rates[chosen].max())
        left = ~np.isin(link, link[chosen])
        link, resource, rates = link[left], resource[left], rates[left]
    return total or math.inf
