"""Collectives: which chunks there are, where each starts, where each must end, and what is reduced.

A chunk is the unit of data that moves whole. In a collective that does not combine, a chunk starts at its
`origins` (any of them will do) and must reach its `destinations`. In a combining collective every origin
holds its own contribution to the chunk, and every destination must end with the sum of all of them.

A *process group* is some ranks of a larger topology: `Collective.among` puts a collective on them, and
`together` joins the collectives of several groups, so that they are scheduled as one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from taccl.errors import CollectiveError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "COLLECTIVES", "Chunk", "Collective", "Derivation", "ProcessGroup", "allgather", "allreduce", "alltoall",
    "broadcast", "custom", "gather", "make", "multi_root_broadcast", "multi_root_gather",
    "multi_root_scatter", "reduce", "reduce_scatter", "scan", "scatter", "together",
]  # fmt: skip

#: A collective of more chunks than this fills the memory of most machines by itself.
_MOST_CHUNKS = 20_000_000


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk: where it starts, where it must end.

    Parameters
    ----------
    origins : tuple of int
        Ranks that hold it at the start; of a combining collective, ranks that contribute to it.
    destinations : tuple of int
        Ranks that must hold it, or its full sum, at the end.
    root : int, optional
        Of a combining collective: the rank that the synthesizer gathers the sum at.
    """

    origins: tuple[int, ...]
    destinations: tuple[int, ...]
    root: int | None = None


@dataclass(frozen=True, slots=True)
class Derivation:
    """Once `rank` holds chunk `source` it also holds chunk `chunk`, which adds its own contribution."""

    source: int
    rank: int
    chunk: int


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """Ranks that do a collective of their own.

    Parameters
    ----------
    name : str
        Of their collective, e.g. ``"allgather"``.
    ranks : tuple of int
        Its members: the i-th is rank i of their collective.
    num_chunks : int
        How many chunks are theirs. Groups have consecutive chunks, in order.
    """

    name: str
    ranks: tuple[int, ...]
    num_chunks: int


@dataclass(frozen=True)
class Collective:
    """A named collective over `num_ranks` ranks.

    Parameters
    ----------
    chunks : tuple of Chunk
    combining : bool
        Whether contributions are reduced on their way.
    chunks_per_rank : int
        How many pieces a rank's own part of the data is cut into.
    derivations : tuple of Derivation
        Chunks that a rank makes from one it received (scan: prefix r from prefix r - 1).
    groups : tuple of ProcessGroup
        Whose collectives it joins. None: one, of all ranks that start, root or need a chunk.
    """

    name: str
    num_ranks: int
    chunks: tuple[Chunk, ...]
    combining: bool = False
    chunks_per_rank: int = 1
    derivations: tuple[Derivation, ...] = ()
    groups: tuple[ProcessGroup, ...] = ()

    def __post_init__(self) -> None:
        sound: set[int] = set()  # many chunks may share one tuple of ranks
        for index, chunk in enumerate(self.chunks):
            for role, ranks in (("origin", chunk.origins), ("destination", chunk.destinations)):
                if id(ranks) in sound:
                    continue
                sound.add(id(ranks))
                for rank in ranks:
                    if not 0 <= rank < self.num_ranks:
                        raise CollectiveError(
                            f"chunk {index}: {role} {rank} does not exist; there are ranks "
                            f"0-{self.num_ranks - 1}",
                            where=self.name,
                        )
                if len(set(ranks)) != len(ranks):
                    raise CollectiveError(f"chunk {index}: a rank is named twice as {role}", where=self.name)
            if chunk.root is not None and not 0 <= chunk.root < self.num_ranks:
                raise CollectiveError(
                    f"chunk {index}: root {chunk.root} does not exist; there are ranks "
                    f"0-{self.num_ranks - 1}",
                    where=self.name,
                )
        for each in self.derivations:
            known = 0 <= each.source < self.num_chunks and 0 <= each.chunk < self.num_chunks
            if not known or not 0 <= each.rank < self.num_ranks:
                raise CollectiveError(f"{each} names a chunk or rank that does not exist", where=self.name)
        derived = {d.chunk for d in self.derivations}
        if len(derived) < len(self.derivations):
            raise CollectiveError("a chunk is derived twice; derive it once, at one rank", where=self.name)
        for index, chunk in enumerate(self.chunks):
            if not chunk.origins and index not in derived:
                raise CollectiveError(f"chunk {index} starts nowhere; give it an origin", where=self.name)
        if self.groups:
            self._check_groups()

    def _check_groups(self) -> None:
        """Raise `CollectiveError` unless groups have known ranks, and each chunk is among one's."""
        for index, group in enumerate(self.groups):
            _check_members(group.ranks, self.num_ranks, where=f"{self.name}: group {index}")
        counted = sum(group.num_chunks for group in self.groups)
        if counted != self.num_chunks or min(group.num_chunks for group in self.groups) < 0:
            raise CollectiveError(
                f"found groups of {[group.num_chunks for group in self.groups]} chunks; expected "
                f"{self.num_chunks} in all",
                where=self.name,
            )
        for index, (group, chunks) in enumerate(zip(self.groups, self.chunks_of_group, strict=True)):
            strangers = _ranks_of(self.chunks[chunks.start : chunks.stop]).difference(group.ranks)
            if strangers:
                raise CollectiveError(
                    f"chunks {chunks.start}-{chunks.stop - 1} concern ranks {sorted(strangers)}, which are "
                    f"not in group {index}",
                    where=self.name,
                )

    @property
    def num_chunks(self) -> int:
        return len(self.chunks)

    @cached_property
    def process_groups(self) -> tuple[ProcessGroup, ...]:
        """The groups; where none are named, one of all ranks that start, root or need a chunk."""
        if self.groups or not self.chunks:
            return self.groups
        named = _ranks_of(self.chunks).union(d.rank for d in self.derivations)
        return (ProcessGroup(self.name, tuple(sorted(named)), self.num_chunks),)

    @cached_property
    def chunks_of_group(self) -> tuple[range, ...]:
        """The chunks of every process group."""
        ends = [0]
        for group in self.process_groups:
            ends.append(ends[-1] + group.num_chunks)
        return tuple(range(begin, end) for begin, end in zip(ends, ends[1:], strict=False))

    @cached_property
    def group_of_chunk(self) -> tuple[int, ...]:
        """The process group of every chunk."""
        return tuple(g for g, chunks in enumerate(self.chunks_of_group) for _ in chunks)

    @cached_property
    def size_chunks(self) -> int:
        """Chunks in the larger of one rank's input and output buffer, as nccl-tests counts size."""
        inputs, outputs = [0] * self.num_ranks, [0] * self.num_ranks
        if self.derivations:
            return self.chunks_per_rank
        for side, buffers in (("origins", inputs), ("destinations", outputs)):
            tuples = [getattr(chunk, side) for chunk in self.chunks]
            shared = Counter(map(id, tuples))  # many chunks may share one tuple of ranks
            for ranks in {id(ranks): ranks for ranks in tuples}.values():
                for rank in ranks:
                    buffers[rank] += shared[id(ranks)]
        return max(*inputs, *outputs)

    @property
    def busbw_factor(self) -> float:
        """Bus bandwidth over algorithm bandwidth, as nccl-tests defines it."""
        kinds = {(group.name, len(group.ranks)) for group in self.groups} or {(self.name, self.num_ranks)}
        factors = {_busbw_factor(name, num_ranks) for name, num_ranks in kinds}
        return factors.pop() if len(factors) == 1 else 1.0

    def among(self, ranks: Sequence[int], *, num_ranks: int) -> Collective:
        """The same collective by a process group: some ranks of a larger topology.

        Parameters
        ----------
        ranks : sequence of int
            The members; the i-th takes the part of rank i.
        num_ranks : int
            Ranks of the topology. Those that are no members may relay, unless the clause `relays` of the
            problem says otherwise.

        Raises
        ------
        CollectiveError
            If a rank is named twice or does not exist, or there are not as many as the collective has.
        """
        where = f"{self.name}: group"
        members = tuple(ranks)
        _check_members(members, num_ranks, where=where)
        if len(members) != self.num_ranks:
            raise CollectiveError(
                f"found {len(members)} members; the collective is over {self.num_ranks} ranks", where=where
            )
        placed = self._placed(members, num_ranks)
        return (
            placed
            if self.groups
            else replace(placed, groups=(ProcessGroup(self.name, members, self.num_chunks),))
        )

    def relabelled(self, permutation: Sequence[int]) -> Collective:
        """The collective with rank r renamed ``permutation[r]``; chunks keep their index."""
        return self._placed(permutation, self.num_ranks)

    def _placed(self, permutation: Sequence[int], num_ranks: int) -> Collective:
        """The collective with rank r renamed ``permutation[r]``, over `num_ranks` ranks."""

        def renamed(ranks: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(sorted(permutation[r] for r in ranks))

        return Collective(
            self.name,
            num_ranks,
            tuple(
                Chunk(
                    renamed(c.origins),
                    renamed(c.destinations),
                    None if c.root is None else permutation[c.root],
                )
                for c in self.chunks
            ),
            self.combining,
            self.chunks_per_rank,
            tuple(Derivation(d.source, permutation[d.rank], d.chunk) for d in self.derivations),
            tuple(replace(g, ranks=tuple(permutation[r] for r in g.ranks)) for g in self.groups),
        )

    def to_dict(self) -> dict[str, Any]:
        """The collective as plain values; groups only where there are any."""
        chunks = [[list(c.origins), list(c.destinations), c.root] for c in self.chunks]
        return self.outline() | {"chunks": chunks}

    def outline(self) -> dict[str, Any]:
        """The same without its chunks, which may be very many."""
        groups = {"groups": [[g.name, list(g.ranks), g.num_chunks] for g in self.groups]}
        return {
            "name": self.name,
            "num_ranks": self.num_ranks,
            "combining": self.combining,
            "chunks_per_rank": self.chunks_per_rank,
            "derivations": [[d.source, d.rank, d.chunk] for d in self.derivations],
            **(groups if self.groups else {}),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Collective:
        """The collective that `to_dict` wrote."""
        return cls(
            name=data["name"],
            num_ranks=data["num_ranks"],
            combining=data["combining"],
            chunks_per_rank=data["chunks_per_rank"],
            chunks=tuple(Chunk(tuple(o), tuple(d), root) for o, d, root in data["chunks"]),
            derivations=tuple(Derivation(*each) for each in data["derivations"]),
            groups=tuple(ProcessGroup(name, tuple(ranks), n) for name, ranks, n in data.get("groups", ())),
        )

    def __repr__(self) -> str:
        return f"Collective({self.name!r}, {self.num_ranks} ranks, {self.num_chunks} chunks)"


def broadcast(num_ranks: int, *, root: int = 0, chunks_per_rank: int = 1) -> Collective:
    """Every rank ends with the root's chunks."""
    everyone = _all_ranks("broadcast", num_ranks, chunks_per_rank)
    _known_root("broadcast", root, num_ranks)
    return Collective(
        "broadcast",
        num_ranks,
        tuple(Chunk((root,), everyone) for _ in range(chunks_per_rank)),
        chunks_per_rank=chunks_per_rank,
    )


def scatter(num_ranks: int, *, root: int = 0, chunks_per_rank: int = 1) -> Collective:
    """Rank r ends with the r-th part of the root's data."""
    everyone = _all_ranks("scatter", num_ranks, chunks_per_rank)
    _known_root("scatter", root, num_ranks)
    chunks = tuple(Chunk((root,), (rank,)) for rank in everyone for _ in range(chunks_per_rank))
    return Collective("scatter", num_ranks, chunks, chunks_per_rank=chunks_per_rank)


def gather(num_ranks: int, *, root: int = 0, chunks_per_rank: int = 1) -> Collective:
    """The root ends with every rank's chunks."""
    everyone = _all_ranks("gather", num_ranks, chunks_per_rank)
    _known_root("gather", root, num_ranks)
    chunks = tuple(Chunk((rank,), (root,)) for rank in everyone for _ in range(chunks_per_rank))
    return Collective("gather", num_ranks, chunks, chunks_per_rank=chunks_per_rank)


def allgather(num_ranks: int, *, chunks_per_rank: int = 1) -> Collective:
    """Every rank ends with every rank's chunks; chunk c starts at rank c // chunks_per_rank."""
    everyone = _all_ranks("allgather", num_ranks, chunks_per_rank)
    chunks = tuple(Chunk((rank,), everyone) for rank in everyone for _ in range(chunks_per_rank))
    return Collective("allgather", num_ranks, chunks, chunks_per_rank=chunks_per_rank)


def alltoall(num_ranks: int, *, chunks_per_rank: int = 1) -> Collective:
    """Rank d ends with the d-th part of every rank's data; chunks run over sources, then destinations.

    `chunks_per_rank` counts the chunks of one (source, destination) pair.
    """
    everyone = _all_ranks("alltoall", num_ranks, chunks_per_rank)
    chunks = tuple(Chunk((s,), (d,)) for s in everyone for d in everyone for _ in range(chunks_per_rank))
    return Collective("alltoall", num_ranks, chunks, chunks_per_rank=chunks_per_rank)


def reduce(num_ranks: int, *, root: int = 0, chunks_per_rank: int = 1) -> Collective:
    """The root ends with the sum of every rank's data."""
    everyone = _all_ranks("reduce", num_ranks, chunks_per_rank)
    _known_root("reduce", root, num_ranks)
    chunks = tuple(Chunk(everyone, (root,), root) for _ in range(chunks_per_rank))
    return Collective("reduce", num_ranks, chunks, True, chunks_per_rank)


def reduce_scatter(num_ranks: int, *, chunks_per_rank: int = 1) -> Collective:
    """Rank r ends with the r-th part of the sum; chunk c ends at rank c // chunks_per_rank."""
    everyone = _all_ranks("reduce-scatter", num_ranks, chunks_per_rank)
    chunks = tuple(Chunk(everyone, (rank,), rank) for rank in everyone for _ in range(chunks_per_rank))
    return Collective("reduce-scatter", num_ranks, chunks, True, chunks_per_rank)


def allreduce(num_ranks: int, *, chunks_per_rank: int = 1) -> Collective:
    """Every rank ends with the sum; the data is cut into num_ranks * chunks_per_rank chunks.

    Chunk c is gathered at rank c // chunks_per_rank, then spread.
    """
    everyone = _all_ranks("allreduce", num_ranks, chunks_per_rank)
    chunks = tuple(Chunk(everyone, everyone, rank) for rank in everyone for _ in range(chunks_per_rank))
    return Collective("allreduce", num_ranks, chunks, True, chunks_per_rank)


def scan(num_ranks: int, *, chunks_per_rank: int = 1) -> Collective:
    """Rank r ends with the sum over ranks 0..r.

    Chunk ``p * num_ranks + r`` is piece p of the sum over ranks 0..r. Rank 0 starts with its own; rank r
    makes its own from the sum over ranks 0..r-1 as soon as it holds that (`Derivation`).
    """
    _all_ranks("scan", num_ranks, chunks_per_rank)
    chunks: list[Chunk] = []
    derivations: list[Derivation] = []
    for piece in range(chunks_per_rank):
        for rank in range(num_ranks):
            index = piece * num_ranks + rank
            after = (rank + 1,) if rank + 1 < num_ranks else ()
            chunks.append(Chunk((0,) if rank == 0 else (), (rank, *after)))
            if rank:
                derivations.append(Derivation(index - 1, rank, index))
    return Collective("scan", num_ranks, tuple(chunks), True, chunks_per_rank, tuple(derivations))


def multi_root_broadcast(num_ranks: int, *, roots: Sequence[int], chunks_per_rank: int = 1) -> Collective:
    """Every rank ends with the chunks of all roots; chunk c starts at ``roots[c % len(roots)]``."""
    everyone = _all_ranks("multi-root-broadcast", num_ranks, chunks_per_rank)
    _known_roots("multi-root-broadcast", roots, num_ranks)
    chunks = tuple(Chunk((roots[c % len(roots)],), everyone) for c in range(len(roots) * chunks_per_rank))
    return Collective("multi-root-broadcast", num_ranks, chunks, chunks_per_rank=chunks_per_rank)


def multi_root_scatter(num_ranks: int, *, roots: Sequence[int], chunks_per_rank: int = 1) -> Collective:
    """Every root scatters its data; chunk c starts at ``roots[c % len(roots)]``."""
    everyone = _all_ranks("multi-root-scatter", num_ranks, chunks_per_rank)
    _known_roots("multi-root-scatter", roots, num_ranks)
    chunks = tuple(
        Chunk((root,), (rank,)) for rank in everyone for _ in range(chunks_per_rank) for root in roots
    )
    return Collective("multi-root-scatter", num_ranks, chunks, chunks_per_rank=chunks_per_rank)


def multi_root_gather(num_ranks: int, *, roots: Sequence[int], chunks_per_rank: int = 1) -> Collective:
    """Every root gathers its part of every rank's data; chunk c ends at ``roots[c % len(roots)]``."""
    everyone = _all_ranks("multi-root-gather", num_ranks, chunks_per_rank)
    _known_roots("multi-root-gather", roots, num_ranks)
    chunks = tuple(
        Chunk((rank,), (root,)) for rank in everyone for _ in range(chunks_per_rank) for root in roots
    )
    return Collective("multi-root-gather", num_ranks, chunks, chunks_per_rank=chunks_per_rank)


def custom(
    num_ranks: int,
    *,
    precondition: Mapping[int, Sequence[int]],
    postcondition: Mapping[int, Sequence[int]],
    combining: bool = False,
    name: str = "custom",
) -> Collective:
    """A collective from where each chunk starts and where each must end.

    Parameters
    ----------
    precondition, postcondition : mapping of chunk to ranks
        Chunks are numbered from 0 without a gap. Of a combining collective the precondition names the
        ranks that contribute, and the first destination becomes the chunk's root.

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
            where=name,
        )
    chunks = []
    for c in range(len(precondition)):
        ends = tuple(sorted(postcondition[c]))
        if combining and not ends:
            raise CollectiveError(f"chunk {c}: nobody asks for its sum; name a destination", where=name)
        chunks.append(Chunk(tuple(sorted(precondition[c])), ends, ends[0] if combining and ends else None))
    return Collective(name, num_ranks, tuple(chunks), combining)


def together(collectives: Sequence[Collective]) -> Collective:
    """The collectives of several process groups as one, to be scheduled so that they do not collide.

    Chunks are numbered through: first those of the first collective. `Collective.groups` and
    `Collective.group_of_chunk` tell whose each is. A rank may be in several groups. Beside a collective that
    combines, a chunk of one that does not is a sum of one contribution.

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
    sums = any(each.combining and not each.derivations for each in collectives)
    chunks: list[Chunk] = []
    derivations: list[Derivation] = []
    for index, each in enumerate(collectives):
        first = len(chunks)
        derivations.extend(Derivation(d.source + first, d.rank, d.chunk + first) for d in each.derivations)
        chunks.extend(_as_sums(each, index) if sums and not each.combining else each.chunks)
    if sums and derivations:
        raise CollectiveError(
            "some collectives reduce on the way, and others derive chunks from one another; schedule them "
            "apart",
            where="together",
        )
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
    )


#: Every collective that needs no more than a number of ranks, a root or roots, and a chunk partitioning.
COLLECTIVES = {
    "broadcast": broadcast, "scatter": scatter, "gather": gather, "allgather": allgather,
    "alltoall": alltoall, "reduce": reduce, "reduce-scatter": reduce_scatter, "allreduce": allreduce,
    "scan": scan, "multi-root-broadcast": multi_root_broadcast, "multi-root-scatter": multi_root_scatter,
    "multi-root-gather": multi_root_gather,
}  # fmt: skip


def make(
    name: str,
    num_ranks: int,
    *,
    root: int | None = None,
    roots: Sequence[int] | None = None,
    chunks_per_rank: int = 1,
) -> Collective:
    """The collective of that name, e.g. ``make("allgather", 16)``.

    Raises
    ------
    CollectiveError
        If the name is unknown, or a root is given to a collective that has none.
    """
    key = name.replace("_", "-").lower()
    if key not in COLLECTIVES:
        raise CollectiveError(f"found {name!r}; expected one of {', '.join(COLLECTIVES)}", where="collective")
    options: dict[str, Any] = {"chunks_per_rank": chunks_per_rank}
    if key in ("broadcast", "scatter", "gather", "reduce"):
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


def _all_ranks(name: str, num_ranks: int, chunks_per_rank: int) -> tuple[int, ...]:
    if num_ranks < 1:
        raise CollectiveError(f"found {num_ranks} ranks; expected at least one", where=name)
    if chunks_per_rank < 1:
        raise CollectiveError(f"found {chunks_per_rank} chunks per rank; expected at least one", where=name)
    parts = {"alltoall": num_ranks**2, "broadcast": 1, "reduce": 1}.get(name, num_ranks)
    num_chunks = chunks_per_rank * parts
    if num_chunks > _MOST_CHUNKS:
        raise CollectiveError(
            f"found {num_ranks} ranks with {chunks_per_rank} chunks each, {num_chunks} in all; expected at "
            f"most {_MOST_CHUNKS}: give fewer, or use synthesize_implicit on a fabric that it knows",
            where=name,
        )
    return tuple(range(num_ranks))


def _known_root(name: str, root: int, num_ranks: int) -> None:
    if not 0 <= root < num_ranks:
        raise CollectiveError(f"root {root} does not exist; there are ranks 0-{num_ranks - 1}", where=name)


def _known_roots(name: str, roots: Sequence[int], num_ranks: int) -> None:
    if not roots or len(set(roots)) != len(roots):
        raise CollectiveError(f"found roots {list(roots)}; expected distinct ranks, at least one", where=name)
    for root in roots:
        _known_root(name, root, num_ranks)


def _busbw_factor(name: str, num_ranks: int) -> float:
    if name in ("allgather", "reduce-scatter", "alltoall", "gather", "scatter"):
        return (num_ranks - 1) / num_ranks
    return 2 * (num_ranks - 1) / num_ranks if name == "allreduce" else 1.0


def _ranks_of(chunks: Sequence[Chunk]) -> set[int]:
    """Ranks that start, root or need one of the chunks."""
    # Chunks share their tuples of ranks: each is looked at once.
    distinct = {id(ranks): ranks for chunk in chunks for ranks in (chunk.origins, chunk.destinations)}
    roots = {chunk.root for chunk in chunks if chunk.root is not None}
    return roots.union(*distinct.values())


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


def _check_members(ranks: Sequence[int], num_ranks: int, *, where: str) -> None:
    """Raise `CollectiveError` unless there are members, all known and each named once."""
    if not ranks:
        raise CollectiveError("found no members; expected at least one", where=where)
    for rank in ranks:
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < num_ranks:
            raise CollectiveError(
                f"rank {rank} does not exist; there are ranks 0-{num_ranks - 1}", where=where
            )
    if len(set(ranks)) < len(ranks):
        twice = sorted({rank for rank in ranks if list(ranks).count(rank) > 1})
        raise CollectiveError(f"ranks {twice} are named twice; name each member once", where=where)
