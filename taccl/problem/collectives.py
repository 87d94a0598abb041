"""Functions that make collectives, and `make`, which selects one of them by name.

A collective made without `chunks_per_rank` leaves the number of chunks open: it has one chunk per rank, and
`taccl.synthesize` chooses the number for a problem with a size.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain, product, repeat
from typing import Any, TypedDict, Unpack, cast
from weakref import WeakValueDictionary

from taccl._internal.arguments import Count, Natural, checked_as, known_name
from taccl._internal.names import matching
from taccl._internal.units import format_count
from taccl.errors import CollectiveError
from taccl.problem.chunks import Chunk, Derivation, chunks_of
from taccl.problem.collective import Collective
from taccl.problem.custom_collectives import all_ranks, custom, exchange, together
from taccl.topology.parts import check_ranks

__all__ = [
    "COLLECTIVES", "ROOTED", "allgather", "allgatherv", "allreduce", "alltoall", "broadcast", "custom",
    "exchange", "gather", "make", "multi_root_broadcast", "multi_root_gather", "multi_root_scatter", "reduce",
    "reduce_scatter", "scan", "scatter", "together",
]  # fmt: skip


class CollectiveArguments(TypedDict, total=False):
    """Keyword arguments of `make` that only some collectives have, such as a root.

    A function with ``**arguments: Unpack[CollectiveArguments]`` accepts each of them as a keyword. Arguments
    that are left out or None count as not given.

    - `root`: Rank that has all data at the start, or at the end. Default: 0.
    - `roots`: Ranks that each have data of their own at the start, or at the end.
    - `counts`: Number of chunks of every rank.
    """

    root: Natural | None
    roots: Sequence[int] | None
    counts: Sequence[Natural] | None


#: {argument: description of its value}, for messages and the help of the command line.
ARGUMENTS = {
    "root": "root rank",
    "roots": "root ranks such as 0,4",
    "counts": "data of each rank in equal units, such as 3,1,1,1",
}


@checked_as(CollectiveError)
def broadcast(num_ranks: Count, *, root: Natural = 0, chunks_per_rank: Count | None = None) -> Collective:
    """Broadcast: every rank ends with the root's chunks.

    Parameters
    ----------
    num_ranks, root, chunks_per_rank : int
        Number of ranks, the rank that has the data, and the number of chunks of its data.

    Raises
    ------
    CollectiveError
        If the root does not exist, or there are too many chunks.
    """
    return _from_roots("broadcast", num_ranks, (root,), chunks_per_rank)


@checked_as(CollectiveError)
def scatter(num_ranks: Count, *, root: Natural = 0, chunks_per_rank: Count | None = None) -> Collective:
    """Scatter: rank r ends with the r-th part of the root's data.

    Parameters
    ----------
    num_ranks, root, chunks_per_rank : int
        Number of ranks, the rank that has the data, and the number of chunks of each rank's part.
    """
    return _from_roots("scatter", num_ranks, (root,), chunks_per_rank)


@checked_as(CollectiveError)
def gather(num_ranks: Count, *, root: Natural = 0, chunks_per_rank: Count | None = None) -> Collective:
    """Gather: the root ends with every rank's chunks.

    Parameters
    ----------
    num_ranks, root, chunks_per_rank : int
        Number of ranks, the rank that ends with all data, and the number of chunks of each rank's data.
    """
    return _from_roots("gather", num_ranks, (root,), chunks_per_rank)


@checked_as(CollectiveError)
def allgather(num_ranks: Count, *, chunks_per_rank: Count | None = None) -> Collective:
    """Allgather: every rank ends with every rank's chunks; chunk c starts at rank c // chunks_per_rank."""
    pieces = chunks_per_rank or 1
    everyone = all_ranks("allgather", num_ranks, num_ranks * pieces)
    chunks = tuple(Chunk((rank,), everyone) for rank in everyone for _ in range(pieces))
    return _made("allgather", num_ranks, chunks, chunks_per_rank)


@checked_as(CollectiveError)
def allgatherv(
    num_ranks: Count, *, counts: Sequence[Natural], chunks_per_rank: Count | None = None
) -> Collective:
    """Allgatherv: every rank ends with all chunks; rank r starts with ``counts[r] * chunks_per_rank``.

    Chunks are numbered by rank, as in an allgather. A problem's size is that of all chunks together, so rank
    r contributes the share ``counts[r] / sum(counts)`` of it.

    Parameters
    ----------
    num_ranks : int
        Number of ranks.
    counts : sequence of int
        Amount of data of each rank, in chunks of one size; 0 for a rank that contributes nothing.
    chunks_per_rank : int, optional
        Number of pieces that each of these chunks is cut into.

    Raises
    ------
    CollectiveError
        If there is not one count for each rank, or there are too many chunks.
    """
    pieces, counts = chunks_per_rank or 1, tuple(counts)
    _check_counts(counts, num_ranks)
    everyone = all_ranks("allgatherv", num_ranks, sum(counts) * pieces)
    chunks = chain.from_iterable(
        repeat(Chunk((rank,), everyone), count * pieces) for rank, count in enumerate(counts)
    )
    return _made("allgatherv", num_ranks, tuple(chunks), chunks_per_rank)


@checked_as(CollectiveError)
def alltoall(num_ranks: Count, *, chunks_per_rank: Count | None = None) -> Collective:
    """Alltoall: rank d ends with the d-th part of every rank's data.

    Chunks are ordered by source, then by destination. `chunks_per_rank` is the number of chunks of one
    (source, destination) pair.
    """
    pieces = chunks_per_rank or 1
    everyone = all_ranks("alltoall", num_ranks, num_ranks**2 * pieces)
    alone = [(rank,) for rank in everyone]
    sources = chain.from_iterable(map(repeat, alone, repeat(num_ranks)))
    pairs = chunks_of(sources, chain.from_iterable(repeat(alone, num_ranks)))
    chunks = pairs if pieces == 1 else tuple(chain.from_iterable(map(repeat, pairs, repeat(pieces))))
    return _made("alltoall", num_ranks, chunks, chunks_per_rank)


@checked_as(CollectiveError)
def reduce(num_ranks: Count, *, root: Natural = 0, chunks_per_rank: Count | None = None) -> Collective:
    """Reduce: the root ends with the sum of every rank's data.

    Parameters
    ----------
    num_ranks, root, chunks_per_rank : int
        Number of ranks, the rank that ends with the sum, and the number of chunks of the sum.
    """
    pieces = chunks_per_rank or 1
    everyone = all_ranks("reduce", num_ranks, pieces)
    check_ranks((root,), num_ranks, where="reduce: root", error=CollectiveError, of="there are ranks")
    chunks = tuple(Chunk(everyone, (root,), root) for _ in range(pieces))
    return _made("reduce", num_ranks, chunks, chunks_per_rank, combining=True)


@checked_as(CollectiveError)
def reduce_scatter(num_ranks: Count, *, chunks_per_rank: Count | None = None) -> Collective:
    """Reduce-scatter: rank r ends with part r of the sum; chunk c ends at rank c // chunks_per_rank."""
    pieces = chunks_per_rank or 1
    everyone = all_ranks("reduce-scatter", num_ranks, num_ranks * pieces)
    chunks = tuple(Chunk(everyone, (rank,), rank) for rank in everyone for _ in range(pieces))
    return _made("reduce-scatter", num_ranks, chunks, chunks_per_rank, combining=True)


@checked_as(CollectiveError)
def allreduce(num_ranks: Count, *, chunks_per_rank: Count | None = None) -> Collective:
    """Allreduce: every rank ends with the sum, in num_ranks * chunks_per_rank chunks.

    Chunk c is summed at rank c // chunks_per_rank, then broadcast.
    """
    pieces = chunks_per_rank or 1
    everyone = all_ranks("allreduce", num_ranks, num_ranks * pieces)
    chunks = tuple(Chunk(everyone, everyone, rank) for rank in everyone for _ in range(pieces))
    return _made("allreduce", num_ranks, chunks, chunks_per_rank, combining=True)


@checked_as(CollectiveError)
def scan(num_ranks: Count, *, chunks_per_rank: Count | None = None) -> Collective:
    """Scan: rank r ends with the sum over ranks 0..r.

    Chunk ``p * num_ranks + r`` is piece p of the sum over ranks 0..r. Rank 0 starts with its own chunks.
    Rank r derives its chunk from the sum over ranks 0..r-1 as soon as it holds that sum (`Derivation`).
    """
    pieces = chunks_per_rank or 1
    all_ranks("scan", num_ranks, num_ranks * pieces)
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
    """Broadcast from several roots: all ranks end with all data; chunk c starts at ``roots[c % len(roots)]``.

    Parameters
    ----------
    num_ranks, chunks_per_rank : int
        Number of ranks, and number of chunks of each root's data.
    roots : sequence of int
        At least one rank, each once.
    """
    return _from_roots("multi-root-broadcast", num_ranks, roots, chunks_per_rank)


@checked_as(CollectiveError)
def multi_root_scatter(
    num_ranks: Count, *, roots: Sequence[int], chunks_per_rank: Count | None = None
) -> Collective:
    """Scatter from several roots: each scatters its data; chunk c starts at ``roots[c % len(roots)]``.

    Parameters
    ----------
    num_ranks, chunks_per_rank : int
        Number of ranks, and number of chunks of each rank's part of a root's data.
    roots : sequence of int
        At least one rank, each once.
    """
    return _from_roots("multi-root-scatter", num_ranks, roots, chunks_per_rank)


@checked_as(CollectiveError)
def multi_root_gather(
    num_ranks: Count, *, roots: Sequence[int], chunks_per_rank: Count | None = None
) -> Collective:
    """Gather to several roots: each gathers its part of all data; chunk c ends at ``roots[c % len(roots)]``.

    Parameters
    ----------
    num_ranks, chunks_per_rank : int
        Number of ranks, and number of chunks of each root's part of a rank's data.
    roots : sequence of int
        At least one rank, each once.
    """
    return _from_roots("multi-root-gather", num_ranks, roots, chunks_per_rank)


#: {name: function} of all collectives that `make` knows.
COLLECTIVES: dict[str, Callable[..., Collective]] = {
    "broadcast": broadcast, "scatter": scatter, "gather": gather, "allgather": allgather,
    "allgatherv": allgatherv, "alltoall": alltoall, "reduce": reduce, "reduce-scatter": reduce_scatter,
    "allreduce": allreduce, "scan": scan, "multi-root-broadcast": multi_root_broadcast,
    "multi-root-scatter": multi_root_scatter, "multi-root-gather": multi_root_gather,
}  # fmt: skip


@cache
def _arguments_taken(function: Callable[..., Collective]) -> dict[str, bool]:
    """{name: True if required} of the `CollectiveArguments` that a collective's function accepts."""
    parameters = inspect.signature(function).parameters
    names = [name for name in CollectiveArguments.__annotations__ if name in parameters]
    return {name: parameters[name].default is inspect.Parameter.empty for name in names}


def argument_names(name: str) -> tuple[str, ...]:
    """Names of the `CollectiveArguments` of a named collective; empty if `make` does not know the name."""
    return tuple(_arguments_taken(COLLECTIVES[name])) if name in COLLECTIVES else ()


#: Names of collectives with one root.
ROOTED = tuple(name for name in COLLECTIVES if "root" in argument_names(name))


def arguments_of(collective: Collective) -> CollectiveArguments:
    """Arguments with which `make` returns the given collective again, derived from its name and chunks.

    `roots` is not supported. The arguments are meaningless for a collective that `make` cannot return, such
    as a custom one under the name of another.
    """
    names, options = argument_names(collective.name), dict[str, list[Any]]()
    if "root" in names:
        ends = [each.sets for each in (collective.origin_sets, collective.destination_sets)]
        options["root"] = [sets[0][0] for sets in ends if len(sets) == 1 and len(sets[0]) == 1] or [0]
    if "counts" in names:
        at_ranks = (collective.num_contributed(), collective.num_received())
        options["counts"] = [tuple(n // collective.chunks_per_rank for n in each) for each in at_ranks]
    choices = [
        cast("CollectiveArguments", dict(zip(options, values, strict=True)))
        for values in product(*map(dict.fromkeys, options.values()))
    ]
    if len(choices) == 1:
        return choices[0]
    return next((each for each in choices if _makes(each, collective)), choices[0])


def _makes(arguments: CollectiveArguments, collective: Collective) -> bool:
    """True if `make` returns the collective for its name and these arguments."""
    try:
        made = make(
            collective.name, collective.num_ranks, chunks_per_rank=collective.chunks_per_rank, **arguments
        )
    except CollectiveError:
        return False
    return made.chunks == collective.chunks


@checked_as(CollectiveError)
def make(
    name: str,
    num_ranks: Count,
    *,
    chunks_per_rank: Count | None = None,
    **arguments: Unpack[CollectiveArguments],
) -> Collective:
    """Collective by name, e.g. ``make("allgather", 16)``.

    Parameters
    ----------
    name : str
        One of `COLLECTIVES`; case does not matter, and dashes and underscores are equivalent.
    num_ranks : int
        Number of ranks.
    chunks_per_rank : int, optional
        As in the collective's own function. If left out, `taccl.synthesize` chooses it.
    **arguments : CollectiveArguments
        Arguments of the collective's own function: `root` (default 0), `roots`, or `counts`.

    Raises
    ------
    CollectiveError
        If the name is unknown, an argument is missing, or one is given that the collective does not have.
    """
    if matching(name, ("alltoallv",)) is not None:
        said = (
            f"found {name!r}, whose sizes differ; taccl.alltoallv_problem(topology, sizes) makes its problem"
        )
        raise CollectiveError(said, where="collective")
    key = known_name(name, COLLECTIVES, "collective", CollectiveError)
    taken = _arguments_taken(COLLECTIVES[key])
    given = {argument: value for argument, value in arguments.items() if value is not None}
    for argument, value in given.items():
        if argument not in taken:
            said = f"{key} has no {argument}, but {value} was given; leave it out"
            raise CollectiveError(said, where=argument)
    for argument, is_needed in taken.items():
        if is_needed and argument not in given:
            said = f"{key} needs {argument}; give {ARGUMENTS[argument]}"
            raise CollectiveError(said, where=argument)
    if (counts := arguments.get("counts")) is not None:
        _check_counts(counts, num_ranks)
    if given:
        return COLLECTIVES[key](num_ranks, chunks_per_rank=chunks_per_rank, **given)
    asked = COLLECTIVES[key], num_ranks, chunks_per_rank
    found = _IN_USE.get(asked)
    if found is None:
        found = _IN_USE[asked] = COLLECTIVES[key](num_ranks, chunks_per_rank=chunks_per_rank)
    return found


#: {(function, number of ranks, chunks per rank): collective without further arguments}, while it is in use.
#: Commands make several problems of one collective, which may have 100,000 chunks.
_IN_USE: WeakValueDictionary[tuple[Callable[..., Collective], int, int | None], Collective] = (
    WeakValueDictionary()
)


def _check_counts(counts: Sequence[int], num_ranks: int) -> None:
    """Raise `CollectiveError` unless there is one count for each rank."""
    if len(counts) != num_ranks:
        said = f"found {format_count(len(counts), 'number')}; expected one for each of {num_ranks} ranks"
        raise CollectiveError(said, where="counts")


def _made(
    name: str, num_ranks: int, chunks: tuple[Chunk, ...], chunks_per_rank: int | None, *,
    combining: bool = False, derivations: tuple[Derivation, ...] = (),
) -> Collective:  # fmt: skip
    """Collective with the given chunks; their number is left open if `chunks_per_rank` is None."""
    return Collective(
        name, num_ranks, chunks, combining, chunks_per_rank or 1, derivations,
        chunks_open=chunks_per_rank is None,
    )  # fmt: skip


def _from_roots(name: str, num_ranks: int, roots: Sequence[int], chunks_per_rank: int | None) -> Collective:
    """Collective from or to one or several roots; chunk c belongs to ``roots[c % len(roots)]``."""
    several = name.startswith("multi")
    if several and (not roots or len(set(roots)) != len(roots)):
        said = f"found roots {list(roots)}; expected distinct ranks, at least one"
        raise CollectiveError(said, where=f"{name}: roots")
    where = f"{name}: {'roots' if several else 'root'}"
    check_ranks(roots, num_ranks, where=where, error=CollectiveError, of="there are ranks")
    parts = 1 if name.endswith("broadcast") else num_ranks
    everyone = all_ranks(name, num_ranks, parts * len(roots) * (chunks_per_rank or 1))
    pieces = [(root,) for _ in range(chunks_per_rank or 1) for root in roots]
    if name.endswith("broadcast"):
        chunks = [Chunk(root, everyone) for root in pieces]
    elif name.endswith("scatter"):
        chunks = [Chunk(root, (rank,)) for rank in everyone for root in pieces]
    else:
        chunks = [Chunk((rank,), root) for rank in everyone for root in pieces]
    return _made(name, num_ranks, tuple(chunks), chunks_per_rank)
