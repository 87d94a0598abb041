"""Every collective by name, one of the caller's own, and those of several process groups together.

A collective that is made without `chunks_per_rank` leaves the number of chunks open: it has one chunk per
rank, and `taccl.synthesize` chooses the number for a problem that gives a size.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from taccl._internal.arguments import checked_as, known_name
from taccl._internal.units import exact
from taccl.errors import CollectiveError
from taccl.problem.collective import Chunk, Collective, Derivation
from taccl.topology.parts import check_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taccl._internal.arguments import Count, Natural, Number


__all__ = [
    "COLLECTIVES", "ROOTED", "allgather", "allreduce", "alltoall", "broadcast", "custom", "exchange",
    "gather", "make", "multi_root_broadcast", "multi_root_gather", "multi_root_scatter", "reduce",
    "reduce_scatter", "scan", "scatter", "together",
]  # fmt: skip

#: A collective of more chunks than this is refused: they take about 1.5 GB, and most of a minute to build.
_MOST_CHUNKS = 5_000_000


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
    everyone = _all_ranks("allgather", num_ranks, pieces)
    chunks = tuple(Chunk((rank,), everyone) for rank in everyone for _ in range(pieces))
    return _made("allgather", num_ranks, chunks, chunks_per_rank)


@checked_as(CollectiveError)
def alltoall(num_ranks: Count, *, chunks_per_rank: Count | None = None) -> Collective:
    """Rank d ends with the d-th part of every rank's data; chunks run over sources, then destinations.

    `chunks_per_rank` counts the chunks of one (source, destination) pair.
    """
    pieces = chunks_per_rank or 1
    everyone = _all_ranks("alltoall", num_ranks, pieces)
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
    everyone = _all_ranks("reduce", num_ranks, pieces)
    check_ranks((root,), num_ranks, where="reduce: root", error=CollectiveError, of="there are ranks")
    chunks = tuple(Chunk(everyone, (root,), root) for _ in range(pieces))
    return _made("reduce", num_ranks, chunks, chunks_per_rank, combining=True)


@checked_as(CollectiveError)
def reduce_scatter(num_ranks: Count, *, chunks_per_rank: Count | None = None) -> Collective:
    """Rank r ends with the r-th part of the sum; chunk c ends at rank c // chunks_per_rank."""
    pieces = chunks_per_rank or 1
    everyone = _all_ranks("reduce-scatter", num_ranks, pieces)
    chunks = tuple(Chunk(everyone, (rank,), rank) for rank in everyone for _ in range(pieces))
    return _made("reduce-scatter", num_ranks, chunks, chunks_per_rank, combining=True)


@checked_as(CollectiveError)
def allreduce(num_ranks: Count, *, chunks_per_rank: Count | None = None) -> Collective:
    """Every rank ends with the sum; the data is cut into num_ranks * chunks_per_rank chunks.

    Chunk c is gathered at rank c // chunks_per_rank, then spread.
    """
    pieces = chunks_per_rank or 1
    everyone = _all_ranks("allreduce", num_ranks, pieces)
    chunks = tuple(Chunk(everyone, everyone, rank) for rank in everyone for _ in range(pieces))
    return _made("allreduce", num_ranks, chunks, chunks_per_rank, combining=True)


@checked_as(CollectiveError)
def scan(num_ranks: Count, *, chunks_per_rank: Count | None = None) -> Collective:
    """Rank r ends with the sum over ranks 0..r.

    Chunk ``p * num_ranks + r`` is piece p of the sum over ranks 0..r. Rank 0 starts with its own; rank r
    makes its own from the sum over ranks 0..r-1 as soon as it holds that (`Derivation`).
    """
    pieces = chunks_per_rank or 1
    _all_ranks("scan", num_ranks, pieces)
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


@checked_as(CollectiveError)
def custom(
    num_ranks: Count,
    *,
    precondition: Mapping[int, Sequence[int]],
    postcondition: Mapping[int, Sequence[int]],
    combining: bool = False,
    name: str = "custom",
) -> Collective:
    """A collective from where each chunk starts and where each must end.

    Parameters
    ----------
    num_ranks : int
        Ranks that take part.
    precondition, postcondition : mapping of chunk to ranks
        Chunks are numbered from 0 without a gap. Of a combining collective the precondition names the
        ranks that contribute, and the first destination becomes the chunk's root.
    name : str
        As results and messages show it.

    Raises
    ------
    CollectiveError
        If a chunk is missing from either, or names an unknown rank.
    """
    _all_ranks(name, num_ranks, 1)
    expected = set(range(len(precondition)))
    if set(precondition) != expected or set(postcondition) != expected:
        missing = sorted(set(precondition) ^ set(postcondition) | (expected - set(precondition)))
        raise CollectiveError(
            f"chunks {missing} are not in both conditions, or leave a gap; expected 0..{len(expected) - 1}",
            where=f"{name}: precondition, postcondition",
        )
    chunks = []
    for c in range(len(precondition)):
        ends = tuple(sorted(postcondition[c]))
        if combining and not ends:
            raise CollectiveError(f"chunk {c}: nobody asks for its sum; name a destination", where=name)
        chunks.append(Chunk(tuple(sorted(precondition[c])), ends, ends[0] if combining and ends else None))
    return Collective(name, num_ranks, tuple(chunks), combining)


@checked_as(CollectiveError)
def exchange(
    workers: Count | Sequence[int],
    servers: Count | Sequence[int],
    *,
    num_ranks: Count | None = None,
    chunks_per_server: Count | None = None,
    roots: Sequence[int] | None = None,
    update_us_per_mb: Number = 0,
) -> Collective:
    """Workers push what they contribute to servers, which add it up, update it, and let all workers pull it.

    Server ``servers[c % len(servers)]`` keeps chunk c. A rank may be both worker and server; a server that is
    no worker contributes nothing.

    Parameters
    ----------
    workers, servers : int or sequence of int
        Ranks, or how many: then workers are ranks from 0 on, and servers those behind them.
    num_ranks : int, optional
        Ranks of the topology; default: as many as the largest rank needs.
    chunks_per_server : int, optional
        The chunks that each server keeps. Left out, as `roots` is, `taccl.synthesize` chooses the number.
    roots : sequence of int, optional
        Instead: the server of every chunk, such as `taccl.aggregation.Shards.servers`.
    update_us_per_mb : number
        For how long a server works on each MB of a sum, once it is whole and before any worker pulls it.

    Raises
    ------
    CollectiveError
        If there are no workers or servers, a rank is named twice in one role, or a chunk's server is none.
    """
    first = workers if isinstance(workers, int) else 0
    workers = tuple(range(workers)) if isinstance(workers, int) else tuple(workers)
    servers = tuple(range(first, first + servers)) if isinstance(servers, int) else tuple(servers)
    count = num_ranks or 1 + max((*workers, *servers), default=0)
    for role, ranks in (("workers", workers), ("servers", servers)):
        if not ranks or len(set(ranks)) < len(ranks):
            said = f"found {list(ranks)[:16]}; expected at least one rank, and each once in a role"
            raise CollectiveError(said, where=f"exchange: {role}")
        check_ranks(ranks, count, where=f"exchange: {role}", error=CollectiveError, of="ranks are")
    kept = tuple(roots) if roots is not None else servers * (chunks_per_server or 1)
    strange = sorted(set(kept) - set(servers))
    if strange or not kept:
        said = f"found {strange[:16]}, which are no servers; expected ranks of {list(servers)[:16]}"
        raise CollectiveError(said, where="exchange: roots")
    everyone = tuple(sorted(workers))
    return Collective(
        "exchange",
        count,
        tuple(Chunk(everyone, everyone, root) for root in kept),
        True,
        chunks_per_server or 1,
        update_us_per_mb=exact(update_us_per_mb, where="exchange: update_us_per_mb"),
        chunks_open=chunks_per_server is None and roots is None,
    )


@checked_as(CollectiveError)
def together(collectives: Sequence[Collective]) -> Collective:
    """The collectives of several process groups as one, to be scheduled so that they do not collide.

    Chunks are numbered through: first those of the first collective. `Collective.groups` and
    `Collective.group_of_chunk` give the group of each. A rank may be in several groups. Next to a combining
    collective, a chunk of a collective that does not combine is a sum of one contribution. The number of
    chunks is open if all collectives leave it open.

    Raises
    ------
    CollectiveError
        If there are none, they differ in the number of ranks of their topology, or some combine and others
        have chunks that derive from one another, or that start at several ranks.
    """
    if not collectives:
        raise CollectiveError("found no collectives; give at least one", where="together")
    num_ranks = collectives[0].num_ranks
    for index, each in enumerate(collectives):
        if each.num_ranks != num_ranks:
            raise CollectiveError(
                f"collective {index}, {each.name}, is over {each.num_ranks} ranks, and the first over "
                f"{num_ranks}; put each on its ranks of one topology with among()",
                where="together",
            )
    updates = {each.update_us_per_mb for each in collectives}
    if len(updates) > 1:
        raise CollectiveError(
            "found servers' updates of different lengths, or beside collectives without; schedule them apart",
            where="together",
        )
    sums = any(each.combining and not each.derivations for each in collectives)
    chunks: list[Chunk] = []
    derivations: list[Derivation] = []
    for index, each in enumerate(collectives):
        first = len(chunks)
        derivations.extend(Derivation(d.source + first, d.rank, d.chunk + first) for d in each.derivations)
        chunks.extend(_as_sums(each, index) if sums and not each.combining else each.chunks)
    if sums and derivations:
        said = "some collectives reduce on the way, and others derive chunks; schedule them apart"
        raise CollectiveError(said, where="together")
    names = list(dict.fromkeys(each.name for each in collectives))
    alike = len(names) == 1 < len(collectives)
    return Collective(
        f"{names[0]} x{len(collectives)}" if alike else " + ".join(names),
        num_ranks,
        tuple(chunks),
        any(each.combining for each in collectives),
        max(each.chunks_per_rank for each in collectives),
        tuple(derivations),
        tuple(group for each in collectives for group in each.process_groups),
        updates.pop(),
        chunks_open=all(each.chunks_open for each in collectives),
    )


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
    everyone = _all_ranks(name, num_ranks, chunks_per_rank or 1)
    pieces = [(root,) for _ in range(chunks_per_rank or 1) for root in roots]
    if name.endswith("broadcast"):
        chunks = [Chunk(root, everyone) for root in pieces]
    elif name.endswith("scatter"):
        chunks = [Chunk(root, (rank,)) for rank in everyone for root in pieces]
    else:
        chunks = [Chunk((rank,), root) for rank in everyone for root in pieces]
    return _made(name, num_ranks, tuple(chunks), chunks_per_rank)


def _all_ranks(name: str, num_ranks: int, chunks_per_rank: int) -> tuple[int, ...]:
    parts = {"alltoall": num_ranks**2, "broadcast": 1, "reduce": 1}.get(name, num_ranks)
    num_chunks = chunks_per_rank * parts
    if num_chunks > _MOST_CHUNKS:
        raise CollectiveError(
            f"found {num_ranks} ranks with {chunks_per_rank} chunks each, {num_chunks} in all; expected at "
            f"most {_MOST_CHUNKS}: give fewer, or use synthesize_implicit on a fabric that it knows",
            where=f"{name}: num_ranks, chunks_per_rank",
        )
    return tuple(range(num_ranks))


def _as_sums(collective: Collective, index: int) -> list[Chunk]:
    """Chunks that are not reduced as sums of one contribution."""
    for c, chunk in enumerate(collective.chunks):
        if len(chunk.origins) > 1:
            raise CollectiveError(
                f"collective {index}, {collective.name}: chunk {c} starts at {len(chunk.origins)} ranks; "
                "beside a collective that combines, a chunk that is not reduced starts at one",
                where="together",
            )
    return [replace(chunk, root=chunk.origins[0]) for chunk in collective.chunks]
