"""Collectives from pre- and postconditions, between workers and servers, or of several process groups."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from taccl._internal.arguments import Count, Number, checked_as
from taccl._internal.names import in_runs
from taccl._internal.units import exact
from taccl.errors import CollectiveError
from taccl.problem.chunks import Chunk, Derivation
from taccl.problem.collective import Collective
from taccl.topology.parts import check_ranks

#: Max chunks of a collective (about 1.5 GB and 30 s to build).
_MOST_CHUNKS = 5_000_000


@checked_as(CollectiveError)
def custom(
    num_ranks: Count,
    *,
    precondition: Mapping[int, Sequence[int]],
    postcondition: Mapping[int, Sequence[int]],
    combining: bool = False,
    name: str = "custom",
) -> Collective:
    """Make a collective from the ranks at which each chunk starts and those at which it must end.

    Parameters
    ----------
    num_ranks : int
        Number of ranks.
    precondition, postcondition : mapping of chunk to ranks
        Ranks where each chunk starts, and must end. Chunks are numbered from 0 without a gap. In a combining
        collective the precondition names the ranks that contribute, and the first destination becomes the
        chunk's root.
    combining : bool
        True if contributions are reduced.
    name : str
        Name in results and messages.

    Raises
    ------
    CollectiveError
        If a chunk is missing from either condition, or names an unknown rank.
    """
    all_ranks(name, num_ranks, len(precondition))
    _check_chunks(precondition, postcondition, name)
    chunks = []
    for c in range(len(precondition)):
        ends = tuple(sorted(postcondition[c]))
        if combining and not ends:
            raise CollectiveError(f"chunk {c}: its sum has no destination; name one", where=name)
        chunks.append(Chunk(tuple(sorted(precondition[c])), ends, ends[0] if combining and ends else None))
    return Collective(name, num_ranks, tuple(chunks), combining)


def _check_chunks(precondition: Collection[int], postcondition: Collection[int], name: str) -> None:
    """Raise `CollectiveError` unless both conditions name the same chunks, numbered from 0 without gaps."""
    conditions = {"precondition": precondition, "postcondition": postcondition}
    named = {*precondition, *postcondition}
    for missing, (where, chunks) in zip(("starts", "must end"), conditions.items(), strict=True):
        if lacking := sorted(named.difference(chunks)):
            said = f"found no chunk {in_runs(lacking)}, which the other condition names"
            said = f"{said}; name the ranks where the chunk {missing}"
            raise CollectiveError(said, where=f"{name}: {where}")
    if unnamed := sorted({*range(len(named))} - named):
        said = f"found chunks up to {max(named)}, but no chunk {in_runs(unnamed)}"
        raise CollectiveError(f"{said}; number them from 0 without a gap", where=f"{name}: precondition")


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
    """Parameter-server exchange: workers push contributions; servers sum and update them; workers pull sums.

    Server ``servers[c % len(servers)]`` is the root of chunk c. A rank may be both worker and server; a
    server that is not a worker contributes nothing.

    Parameters
    ----------
    workers, servers : int or sequence of int
        Ranks, or numbers of ranks. A number of workers stands for the ranks from 0 on. A number of servers
        stands for the ranks after these workers, or from 0 on if `workers` is a sequence.
    num_ranks : int, optional
        Number of ranks of the topology; default: one more than the largest rank.
    chunks_per_server : int, optional
        Number of chunks of each server. If both this and `roots` are left out, `taccl.synthesize` chooses it.
    roots : sequence of int, optional
        Alternatively, the server of every chunk, such as `taccl.aggregation.Shards.servers`.
    update_us_per_mb : number
        Time that a server spends on each MB of a complete sum before any worker can pull it.

    Raises
    ------
    CollectiveError
        If there are no workers or servers, a rank is named twice in one role, or a root is not a server.
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
        said = f"found {strange[:16]}, which are not servers; expected ranks of {list(servers)[:16]}"
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
    """Combine collectives of several process groups into one, which is scheduled as a whole.

    Chunks are numbered consecutively, those of the first collective first. `Collective.group_of_chunk` gives
    each chunk's group in `Collective.groups`. A rank may be in several groups. If some collective combines,
    chunks of copying collectives become sums with one contribution. The number of chunks is open if all
    collectives leave it open.

    Raises
    ------
    CollectiveError
        If there are no collectives, or they differ in the number of ranks of their topology, or in the update
        of their servers. Also if some combine, and others have chunks that derive from one another or that
        start at several ranks.
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
            "found different servers' updates, or collectives without them; schedule them separately",
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
        said = "some collectives reduce, and others derive chunks; schedule them separately"
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


def all_ranks(name: str, num_ranks: int, num_chunks: int) -> tuple[int, ...]:
    """All ranks of a collective; raises `CollectiveError` if it would have too many chunks."""
    if num_chunks > _MOST_CHUNKS:
        raise CollectiveError(
            f"found chunks of {num_ranks} ranks, {num_chunks} in all; expected at most {_MOST_CHUNKS}: give "
            "fewer; taccl.synthesize_implicit lists no chunks on rings, tori and other fabrics by name",
            where=f"{name}: num_ranks, chunks_per_rank",
        )
    return tuple(range(num_ranks))


def _as_sums(collective: Collective, index: int) -> list[Chunk]:
    """Chunks of a collective without reduction, as sums with one contribution."""
    for c, chunk in enumerate(collective.chunks):
        if len(chunk.origins) > 1:
            raise CollectiveError(
                f"collective {index}, {collective.name}: chunk {c} starts at {len(chunk.origins)} ranks; "
                "next to a reducing collective, other chunks start at one rank",
                where="together",
            )
    return [replace(chunk, root=chunk.origins[0]) for chunk in collective.chunks]
