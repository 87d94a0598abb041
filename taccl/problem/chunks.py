"""Parts of a collective: chunks with their ranks, derived chunks, process groups, and sets of ranks."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from taccl._internal import arrays
from taccl.errors import CollectiveError


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk, with the ranks where it starts and must end.

    - `origins`: Ranks that hold it at the start; in a combining collective, ranks that contribute to it.
    - `destinations`: Ranks that must hold it, or its full sum, at the end.
    - `root`: Rank at which the synthesizer sums the chunk, in a combining collective. A sum with a single
      contribution is rooted at its origin, unless its given root is its only destination.
    """

    origins: tuple[int, ...]
    destinations: tuple[int, ...]
    root: int | None = None

    def is_met(self, *, is_sum: bool, updates: bool = False) -> bool:
        """True if every destination holds the chunk, or its full sum, at the start.

        - `updates`: True if only the root, which updates the sum, can hold the full sum.
        """
        if updates:
            return {*self.origins, *self.destinations} <= {self.root} or not self.destinations
        return not self.destinations or (
            not (is_sum and len(self.origins) > 1) and set(self.destinations) <= set(self.origins)
        )


def chunks_of(
    origins: Iterable[tuple[int, ...]], destinations: Iterable[tuple[int, ...]]
) -> tuple[Chunk, ...]:
    """Chunks without roots from two columns; five times as fast as calling the class for each."""
    origins = list(origins)
    made = tuple(map(object.__new__, repeat(Chunk, len(origins))))
    for name, column in (("origins", origins), ("destinations", destinations), ("root", repeat(None))):
        deque(map(getattr(Chunk, name).__set__, made, column), maxlen=0)
    return made


def distinct(chunks: Sequence[Chunk]) -> Iterable[Chunk]:
    """Chunk objects without repetitions; the parts of a chunk that was cut are one object."""
    return dict(zip(map(id, chunks), chunks, strict=True)).values()


def converted(chunks: Sequence[Chunk], convert: Callable[[Chunk], Chunk]) -> tuple[Chunk, ...]:
    """Chunks with each distinct object converted once."""
    made = {id(chunk): convert(chunk) for chunk in distinct(chunks)}
    return tuple(map(made.__getitem__, map(id, chunks)))


@dataclass(frozen=True, slots=True)
class Derivation:
    """Chunk that a rank makes from another chunk: once `rank` holds `source`, it also holds `chunk`.

    The derived chunk is the source plus the rank's own contribution, and starts nowhere else.
    """

    source: int
    rank: int
    chunk: int


def in_turn(derivations: Sequence[Derivation], chunks: Sequence[Chunk]) -> tuple[Derivation, ...]:
    """Sort derivations so that each follows the derivation of its source chunk; omit cyclic derivations."""
    if not derivations:
        return ()
    makes: dict[int, list[Derivation]] = defaultdict(list)
    for each in derivations:
        makes[each.source].append(each)
    turn: list[Derivation] = []
    there = [c for c, chunk in enumerate(chunks) if chunk.origins]
    for c in there:  # the list grows while it is read
        turn += makes[c]
        there += [each.chunk for each in makes.pop(c)]
    return tuple(turn)


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """Process group: ranks of a topology that run a collective among themselves.

    - `name`: Name of the collective, e.g. ``"allgather"``.
    - `ranks`: Members; the i-th is rank i of the collective.
    - `num_chunks`: Number of chunks of the group's collective. Chunks are numbered group by group.
    """

    name: str
    ranks: tuple[int, ...]
    num_chunks: int


@dataclass(frozen=True, slots=True, eq=False)
class RankSets:
    """Distinct sets of ranks at which chunks start (or end), and the set of each chunk.

    - `of_chunk`, (num_chunks,) int32: Index in `sets` of each chunk's set.
    """

    sets: tuple[tuple[int, ...], ...]
    of_chunk: NDArray[np.int32]

    @classmethod
    def of(cls, ranks_of_chunk: Sequence[tuple[int, ...]]) -> RankSets:
        """Collect the distinct sets among the tuples of ranks of all chunks."""
        # Many chunks may share one very large tuple, so hash each tuple object only once.
        shared = dict(zip(map(id, ranks_of_chunk), ranks_of_chunk, strict=True))
        number: dict[tuple[int, ...], int] = {}
        number_of_id = {key: number.setdefault(ranks, len(number)) for key, ranks in shared.items()}
        of_chunk = map(number_of_id.__getitem__, map(id, ranks_of_chunk))
        return cls(tuple(number), np.fromiter(of_chunk, np.int32, len(ranks_of_chunk)))

    @property
    def sizes(self) -> NDArray[np.int64]:
        """(num_chunks,) number of ranks in each chunk's set."""
        return np.array([len(ranks) for ranks in self.sets], dtype=np.int64)[self.of_chunk]

    def flags(self, num_ranks: int) -> NDArray[np.bool_]:
        """(num_sets, num_ranks) bool array: True for the ranks of each set."""
        found = np.zeros((len(self.sets), num_ranks), bool)
        for number, ranks in enumerate(self.sets):
            found[number, list(ranks)] = True
        return found

    def meeting(self, ranks: frozenset[int]) -> NDArray[np.bool_]:
        """(num_chunks,) bool array: True for chunks whose set contains at least one of `ranks`."""
        return np.array([not ranks.isdisjoint(each) for each in self.sets], bool)[self.of_chunk]

    def among(self, chunks: range) -> Iterator[tuple[int, ...]]:
        """Distinct sets of ranks of the given consecutive chunks."""
        return (self.sets[i] for i in arrays.distinct(self.of_chunk[chunks.start : chunks.stop]).tolist())


def check_members(ranks: Sequence[int], num_ranks: int, *, where: str) -> None:
    """Raise `CollectiveError` unless there are members, all valid and each named once."""
    if not ranks:
        raise CollectiveError("found no members; expected at least one", where=where)
    for rank in ranks:
        if not 0 <= rank < num_ranks:
            said = f"rank {rank} does not exist; there are ranks 0-{num_ranks - 1}"
            raise CollectiveError(said, where=where)
    if len(set(ranks)) < len(ranks):
        twice = sorted({rank for rank in ranks if list(ranks).count(rank) > 1})
        raise CollectiveError(f"ranks {twice} are named twice; name each member once", where=where)
