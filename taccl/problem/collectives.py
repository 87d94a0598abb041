"""Every collective by name.

A collective that is made without `chunks_per_rank` leaves the number of chunks open: it has one chunk per
rank, and `taccl.synthesize` chooses the number for a problem that gives a size.
"""

from __future__ import annotations

from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from taccl._internal.arguments import checked_as, known_name
from taccl.errors import CollectiveError
from taccl.problem.collective import Chunk, Collective, Derivation
from taccl.problem.custom_collectives import all_ranks, custom, exchange, together
from taccl.topology.parts import check_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taccl._internal.arguments import Count, Natural


__all__ = [
    "COLLECTIVES", "ROOTED", "allgather", "allreduce", "alltoall", "broadcast", "custom", "exchange",
    "gather", "make", "multi_root_broadcast", "multi_root_gather", "multi_root_scatter", "reduce",
    "reduce_scatter", "scan", "scatter", "together",
]  # fmt: skip


@checked_as(CollectiveError)
def broadcast(num_ranks: Count, *, root: Natural = 0, chunks_per_rank: Count | None = None) -> Collective:
    """Every rank ends with the root's chunks.

    Parameters
    ----------
    num_ranks, root, chunks_per_rank : int
        Ranks that take part, the rank that has the data, and the pieces of its data.

    Raises
    ------
    CollectiveError
        If a root is no rank, or there are too many chunks.
    """
    return _from_roots("broadcast", num_ranks, (root,), chunks_per_rank)


@checked_as(CollectiveError)
def scatter(num_ranks: Count, *, root: Natural = 0, chunks_per_rank: Count | None = None) -> Collective:
    """Rank r ends with the r-th part of the root's data.

    Parameters
    ----------
    num_ranks, root, chunks_per_rank : int
        Ranks that take part, the rank that has the data, and the pieces of each rank's part.
    """
    return _from_roots("scatter", num_ranks, (root,), chunks_per_rank)


@checked_as(CollectiveError)
def gather(num_ranks: Count, *, root: Natural = 0, chunks_per_rank: Count | None = None) -> Collective:
    """The root ends with every rank's chunks.

    Parameters
    ----------
    num_ranks, root, chunks_per_rank : int
        Ranks that take part, the rank that ends with everything, and the pieces of each rank's data.
    """
    return _from_roots("gather", num_ranks, (root,), chunks_per_rank)


@checked_as(CollectiveError)
def allgather(num_ranks: Count, *, chunks_per_rank: Count | None = None) -> Collective:
    """Every rank ends with every rank's chunks; chunk c starts at rank c // chunks_per_rank."""
    pieces = chunks_per_rank or 1
    everyone = all_ranks("allgather", num_ranks, pieces)
    chunks = tuple(Chunk((rank,), everyone) for rank in everyone for _ in range(pieces))
    return _made("allgather", num_ranks, chunks, chunks_per_rank)


@checked_as(CollectiveError)
def alltoall(num_ranks: Count, *, chunks_per_rank: Count | None = None) -> Collective:
    """Rank d ends with the d-th part of every rank's data; chunks run over sources, then destinations.

    `chunks_per_rank` counts the chunks of one (source, destination) pair.
    """
    pieces = chunks_per_rank or 1
    everyone = all_ranks("alltoall", num_ranks, pieces)
    alone = [(rank,) for rank in everyone]
    pairs = (Chunk(s, d) for s in alone for d in alone)
    chunks = tuple(chain.from_iterable(repeat(pair, pieces) for pair in pairs))
    return _made("alltoall", num_ranks, chunks, chunks_per_rank)


@checked_as(CollectiveError)
def reduce(num_ranks: Count, *, root: Natural = 0, chunks_per_rank: Count | None = None) -> Collective:
    """The root ends with the sum of every rank's data.

    Parameters
    ----------
    num_ranks, root, chunks_per_rank : int
        Ranks that take part, the rank that ends with the sum, and the pieces of the sum.
    """
    pieces = chunks_per_rank or 1
    everyone = all_ranks("reduce", num_ranks, pieces)
    check_ranks((root,), num_ranks, where="reduce: root", error=CollectiveError, of="there are ranks")
    chunks = tuple(Chunk(everyone, (root,), root) for _ in range(pieces))
    return _made("reduce", num_ranks, chunks, chunks_per_rank, combining=True)


@checked_as(CollectiveError)
def reduce_scatter(num_ranks: Count, *, chunks_per_rank: Count | None = None) -> Collective:
    """Rank r ends with the r-th part of the sum; chunk c ends at rank c // chunks_per_rank."""
    pieces = chunks_per_rank or 1
    everyone = all_ranks("reduce-scatter", num_ranks, pieces)
    chunks = tuple(Chunk(everyone, (rank,), rank) for rank in everyone for _ in range(pieces))
    return _made("reduce-scatter", num_ranks, chunks, chunks_per_rank, combining=True)


@checked_as(CollectiveError)
def allreduce(num_ranks: Count, *, chunks_per_rank: Count | None = None) -> Collective:
    """Every rank ends with the sum; the data is cut into num_ranks * chunks_per_rank chunks.

    Chunk c is gathered at rank c // chunks_per_rank, then spread.
    """
    pieces = chunks_per_rank or 1
    everyone = all_ranks("allreduce", num_ranks, pieces)
    chunks = tuple(Chunk(everyone, everyone, rank) for rank in everyone for _ in range(pieces))
    return _made("allreduce", num_ranks, chunks, chunks_per_rank, combining=True)


@checked_as(CollectiveError)
def scan(num_ranks: Count, *, chunks_per_rank: Count | None = None) -> Collective:
    """Rank r ends with the sum over ranks 0..r.

    Chunk ``p * num_ranks + r`` is piece p of the sum over ranks 0..r. Rank 0 starts with its own; rank r
    makes its own from the sum over ranks 0..r-1 as soon as it holds that (`Derivation`).
    """
    pieces = chunks_per_rank or 1
    all_ranks("scan", num_ranks, pieces)
    chunks: list[Chunk] = []
    derivations: list[Derivation] = []
    for piece in range(pieces):
        for rank in range(num_ranks):
            index = piece * num_ranks + rank
            after = (rank + 1,) if rank + 1 < num_ranks else ()
            chunks.append(Chunk((0,) if rank == 0 else (), (rank, *after)))
            if rank:
                derivations.append(Derivation(index - 1, rank, index))
    return _made(
        "scan", num_ranks, tuple(chunks), chunks_per_rank, combining=num_ranks > 1,
        derivations=tuple(derivations),
    )  # fmt: skip


@checked_as(CollectiveError)
def multi_root_broadcast(
    num_ranks: Count, *, roots: Sequence[int], chunks_per_rank: Count | None = None
) -> Collective:
    """Every rank ends with the chunks of all roots; chunk c starts at ``roots[c % len(roots)]``.

    Parameters
    ----------
    num_ranks, chunks_per_rank : int
        Ranks that take part, and the pieces of each root's data.
    roots : sequence of int
        At least one rank, each once.
    """
    return _from_roots("multi-root-broadcast", num_ranks, roots, chunks_per_rank)


@checked_as(CollectiveError)
def multi_root_scatter(
    num_ranks: Count, *, roots: Sequence[int], chunks_per_rank: Count | None = None
) -> Collective:
    """Every root scatters its data; chunk c starts at ``roots[c % len(roots)]``.

    Parameters
    ----------
    num_ranks, chunks_per_rank : int
        Ranks that take part, and the pieces of each rank's part of a root's data.
    roots : sequence of int
        At least one rank, each once.
    """
    return _from_roots("multi-root-scatter", num_ranks, roots, chunks_per_rank)


@checked_as(CollectiveError)
def multi_root_gather(
    num_ranks: Count, *, roots: Sequence[int], chunks_per_rank: Count | None = None
) -> Collective:
    """Every root gathers its part of every rank's data; chunk c ends at ``roots[c % len(roots)]``.

    Parameters
    ----------
    num_ranks, chunks_per_rank : int
        Ranks that take part, and the pieces of each root's part of a rank's data.
    roots : sequence of int
        At least one rank, each once.
    """
    return _from_roots("multi-root-gather", num_ranks, roots, chunks_per_rank)


#: Every collective that needs no more than a number of ranks, a root or roots, and a chunk partitioning.
COLLECTIVES = {
    "broadcast": broadcast, "scatter": scatter, "gather": gather, "allgather": allgather,
    "alltoall": alltoall, "reduce": reduce, "reduce-scatter": reduce_scatter, "allreduce": allreduce,
    "scan": scan, "multi-root-broadcast": multi_root_broadcast, "multi-root-scatter": multi_root_scatter,
    "multi-root-gather": multi_root_gather,
}  # fmt: skip

#: Those with one root.
ROOTED = ("broadcast", "scatter", "gather", "reduce")


@checked_as(CollectiveError)
def make(
    name: str,
    num_ranks: Count,
    *,
    root: Natural | None = None,
    roots: Sequence[int] | None = None,
    chunks_per_rank: Count | None = None,
) -> Collective:
    """The collective of that name, e.g. ``make("allgather", 16)``.

    Parameters
    ----------
    name : str
        One of `COLLECTIVES`; case does not matter, and dashes and underscores are alike.
    num_ranks : int
        Ranks that take part.
    root : int, optional
        Of a collective with one root; by default 0.
    roots : sequence of int, optional
        Of a collective with several, which needs them.
    chunks_per_rank : int, optional
        As in the collective's own function. Left out, `taccl.synthesize` chooses it.

    Raises
    ------
    CollectiveError
        If the name is unknown, or a root is given to a collective that has none.
    """
    key = known_name(name, COLLECTIVES, "collective", CollectiveError)
    options: dict[str, Any] = {"chunks_per_rank": chunks_per_rank}
    if key in ROOTED:
        options["root"] = 0 if root is None else root
    elif root is not None:
        raise CollectiveError(f"{key} has no root, but root {root} was given; leave it out", where="root")
    if key.startswith("multi-root"):
        if not roots:
            raise CollectiveError(f"{key} needs roots; give at least one", where="roots")
        options["roots"] = tuple(roots)
    elif roots is not None:
        raise CollectiveError(f"{key} takes no list of roots; leave it out", where="roots")
    collective: Collective = COLLECTIVES[key](num_ranks, **options)  # type: ignore[operator]
    return collective


def _made(
    name: str, num_ranks: int, chunks: tuple[Chunk, ...], chunks_per_rank: int | None, *,
    combining: bool = False, derivations: tuple[Derivation, ...] = (),
) -> Collective:  # fmt: skip
    """A collective by name, with its number of chunks left open where `chunks_per_rank` is None."""
    return Collective(
        name, num_ranks, chunks, combining, chunks_per_rank or 1, derivations,
        chunks_open=chunks_per_rank is None,
    )  # fmt: skip


def _from_roots(name: str, num_ranks: int, roots: Sequence[int], chunks_per_rank: int | None) -> Collective:
    """A collective from or to one root or several; of each piece there is a chunk for every root in turn."""
    several = name.startswith("multi")
    if several and (not roots or len(set(roots)) != len(roots)):
        said = f"found roots {list(roots)}; expected distinct ranks, at least one"
        raise CollectiveError(said, where=f"{name}: roots")
    where = f"{name}: {'roots' if several else 'root'}"
    check_ranks(roots, num_ranks, where=where, error=CollectiveError, of="there are ranks")
    everyone = all_ranks(name, num_ranks, chunks_per_rank or 1)
    pieces = [(root,) for _ in range(chunks_per_rank or 1) for root in roots]
    if name.endswith("broadcast"):
        chunks = [Chunk(root, everyone) for root in pieces]
    elif name.endswith("scatter"):
        chunks = [Chunk(root, (rank,)) for rank in everyone for root in pieces]
    else:
        chunks = [Chunk((rank,), root) for rank in everyone for root in pieces]
    return _made(name, num_ranks, tuple(chunks), chunks_per_rank)
