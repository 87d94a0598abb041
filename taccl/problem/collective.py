"""Definition of a collective: its chunks, their origins and destinations, and reductions.

A chunk is the unit of data that moves as a whole. In a collective that does not combine, a chunk starts at
its `origins`, each of which has a copy, and must reach its `destinations`. In a combining collective every
origin holds its own contribution to the chunk, and every destination must end with the sum of all of them.

A *process group* is a subset of the ranks of a topology: `Collective.among` puts a collective on one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arguments import Count, checked_as
from taccl._internal.names import shown
from taccl._internal.reading import plain_values
from taccl._internal.units import exact, format_count
from taccl.errors import CollectiveError
from taccl.problem.chunks import (
    Chunk,
    Derivation,
    ProcessGroup,
    RankSets,
    check_members,
    converted,
    distinct,
    in_turn,
)


@checked_as(CollectiveError)
@dataclass(frozen=True)
class Collective:
    """A named collective over `num_ranks` ranks.

    Parameters
    ----------
    chunks : tuple of Chunk
        The chunks. Schedules, problems and programs refer to a chunk by its index here.
    combining : bool
        True if contributions are reduced on their way.
    chunks_per_rank : int
        Number of chunks of each rank's own part of the data.
    derivations : tuple of Derivation
        Chunks that a rank derives from one that it received (scan: prefix r from prefix r - 1).
    groups : tuple of ProcessGroup
        Process groups whose collectives are combined. Default: one group of all ranks at which
        a chunk starts, has its root, or must end.
    update_us_per_mb : Fraction, optional
        For combining collectives whose roots are servers: time that the root spends on each MB of a complete
        sum before it sends any of it. None: no update; sums may be made and forwarded anywhere.
    chunks_open : bool
        True if the number of chunks was left open. The collective then has one chunk per rank, and
        `taccl.synthesize` chooses the number for a problem with a size. Equality ignores it.
    """

    name: str
    num_ranks: int
    chunks: tuple[Chunk, ...]
    combining: bool = False
    chunks_per_rank: int = 1
    derivations: tuple[Derivation, ...] = ()
    groups: tuple[ProcessGroup, ...] = ()
    update_us_per_mb: Fraction | None = None
    chunks_open: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        self._read_chunks()
        if self.update_us_per_mb is not None:
            self._check_update()
        for role, ends in (("origin", self.origin_sets), ("destination", self.destination_sets)):
            for number, ranks in enumerate(ends.sets):
                strange = [rank for rank in ranks if not 0 <= rank < self.num_ranks]
                if not strange and len(set(ranks)) == len(ranks):
                    continue
                index = int(np.argmax(ends.of_chunk == number))
                if strange:
                    raise self._no_such(index, role, strange[0])
                raise CollectiveError(f"chunk {index}: a rank is named twice as {role}", where=self.name)
        for root in {chunk.root for chunk in self.chunks}:
            if root is not None and not 0 <= root < self.num_ranks:
                index = next(i for i, chunk in enumerate(self.chunks) if chunk.root == root)
                raise self._no_such(index, "root", root)
        for each in self.derivations:
            known = 0 <= each.source < self.num_chunks and 0 <= each.chunk < self.num_chunks
            if not known or not 0 <= each.rank < self.num_ranks:
                raise CollectiveError(f"{each} names a chunk or rank that does not exist", where=self.name)
            if origins := self.chunks[each.chunk].origins:
                said = f"chunk {each.chunk} is derived, and starts at rank {origins[0]}; leave one out"
                raise CollectiveError(said, where=self.name)
        made = {each.chunk for each in self.derivations_in_turn}
        if len(made) < len(self.derivations_in_turn):
            raise CollectiveError("a chunk is derived twice; derive it once, at one rank", where=self.name)
        if () in self.origin_sets.sets:
            for index, chunk in enumerate(self.chunks):
                if not chunk.origins and index not in made:
                    said = f"chunk {index} has no origin and no source; give it one"
                    raise CollectiveError(said, where=self.name)
        if self.sums_up:
            self._check_roots()
        if self.groups:
            self._check_groups()

    def _read_chunks(self) -> None:
        """Convert ranks of chunks to Python integers in tuples, unless they already are."""
        both = [c.origins for c in self.chunks] + [c.destinations for c in self.chunks]
        ends = dict(zip(map(id, both), both, strict=True)).values()
        plain = set(map(type, ends)) <= {tuple} and set(map(type, chain.from_iterable(ends))) <= {int}
        if plain and {type(chunk.root) for chunk in self.chunks} <= {int, type(None)}:
            return
        read = tuple(_chunk(each.origins, each.destinations, each.root) for each in self.chunks)
        object.__setattr__(self, "chunks", read)

    def _check_update(self) -> None:
        """Raise `CollectiveError` unless chunks are sums with a root, and `update_us_per_mb` is 0 or more."""
        update = Fraction(self.update_us_per_mb or 0)
        object.__setattr__(self, "update_us_per_mb", update)
        if not self.sums_up or any(chunk.root is None for chunk in self.chunks) or update < 0:
            said = f"found an update of {update} us/MB; expected 0 or more, of sums that have a root"
            raise CollectiveError(said, where=self.name)

    def _check_roots(self) -> None:
        """Make the only contributor the root of each sum with a single contribution (see `Chunk.root`).

        If servers update sums (`update_us_per_mb`), given roots stay.

        Raises `CollectiveError` if a sum is left without a root.
        """
        if self.update_us_per_mb is None and any(map(_is_whole, distinct(self.chunks))):
            chunks = converted(self.chunks, lambda c: replace(c, root=c.origins[0]) if _is_whole(c) else c)
            object.__setattr__(self, "chunks", chunks)
        if any(chunk.root is None for chunk in distinct(self.chunks)):
            index = next(index for index, chunk in enumerate(self.chunks) if chunk.root is None)
            raise CollectiveError(f"chunk {index}: its sum has no root; name a rank", where=self.name)

    def _no_such(self, index: int, role: str, rank: int) -> CollectiveError:
        said = f"chunk {index}: {role} {rank} does not exist; there are ranks 0-{self.num_ranks - 1}"
        return CollectiveError(said, where=self.name)

    def _check_groups(self) -> None:
        """Raise `CollectiveError` unless groups have valid ranks, and each chunk belongs to one group."""
        for index, group in enumerate(self.groups):
            check_members(group.ranks, self.num_ranks, where=f"{self.name}: group {index}")
        counted = sum(group.num_chunks for group in self.groups)
        if counted != self.num_chunks or min(group.num_chunks for group in self.groups) < 0:
            found = f"found groups of {[group.num_chunks for group in self.groups]} chunks"
            raise CollectiveError(f"{found}; expected {self.num_chunks} in all", where=self.name)
        for index, (group, chunks) in enumerate(zip(self.groups, self.chunks_of_group, strict=True)):
            strangers = self._ranks_of(chunks).difference(group.ranks)
            if strangers:
                named = f"chunks {chunks.start}-{chunks.stop - 1} concern ranks {sorted(strangers)}"
                raise CollectiveError(f"{named}, which are not in group {index}", where=self.name)

    @property
    def num_chunks(self) -> int:
        """Number of chunks."""
        return len(self.chunks)

    @property
    def sums_up(self) -> bool:
        """True if contributions are reduced on their way, rather than whole chunks copied."""
        return self.combining and not self.derivations

    @property
    def updates(self) -> bool:
        """True if each sum is complete only once its root, a server, has updated it."""
        return self.update_us_per_mb is not None

    @property
    def stays_at_roots(self) -> bool:
        """True if the root of every sum is its only destination, as in a reduce or a reduce-scatter."""
        return all(chunk.destinations == (chunk.root,) for chunk in distinct(self.chunks))

    @cached_property
    def is_met(self) -> bool:
        """True if every destination has its data at the start, so that no send is needed."""
        if not self.derivations:
            return all(
                chunk.is_met(is_sum=self.combining, updates=self.updates) for chunk in distinct(self.chunks)
            )
        held = {(c, rank) for c, chunk in enumerate(self.chunks) for rank in chunk.origins}
        for each in self.derivations_in_turn:
            if (each.source, each.rank) in held:
                held.add((each.chunk, each.rank))
        return all((c, rank) in held for c, chunk in enumerate(self.chunks) for rank in chunk.destinations)

    @cached_property
    def derivations_in_turn(self) -> tuple[Derivation, ...]:
        """Derivations, sorted so that each follows that of its source chunk; cyclic ones are omitted."""
        return in_turn(self.derivations, self.chunks)

    @cached_property
    def starts(self) -> tuple[tuple[int, ...], ...]:
        """Ranks at which each chunk starts, or is derived from another chunk."""
        made = {each.chunk: (each.rank,) for each in self.derivations}
        return tuple(chunk.origins or made[c] for c, chunk in enumerate(self.chunks))

    @cached_property
    def ends(self) -> tuple[tuple[int, ...], ...]:
        """Ranks that each chunk must reach: its destinations, and ranks that derive other chunks from it."""
        ends = [chunk.destinations for chunk in self.chunks]
        for each in reversed(self.derivations_in_turn):
            if ends[each.chunk] and each.rank not in ends[each.source]:
                ends[each.source] += (each.rank,)
        return tuple(ends)

    @cached_property
    def origin_sets(self) -> RankSets:
        """Distinct sets of ranks at which chunks start."""
        return RankSets.of([chunk.origins for chunk in self.chunks])

    @cached_property
    def start_sets(self) -> RankSets:
        """Distinct sets of ranks at which chunks start or are derived (`starts`)."""
        return RankSets.of(self.starts) if self.derivations else self.origin_sets

    @cached_property
    def destination_sets(self) -> RankSets:
        """Distinct sets of ranks at which chunks must end."""
        return RankSets.of([chunk.destinations for chunk in self.chunks])

    def _ranks_of(self, chunks: range) -> set[int]:
        """Ranks at which one of the given chunks starts, has its root, or must end."""
        roots = {chunk.root for chunk in self.chunks[chunks.start : chunks.stop] if chunk.root is not None}
        return roots.union(*self.origin_sets.among(chunks), *self.destination_sets.among(chunks))

    @cached_property
    def process_groups(self) -> tuple[ProcessGroup, ...]:
        """The given groups; by default one, of all ranks where a chunk starts, has its root or must end."""
        if self.groups or not self.chunks:
            return self.groups
        named = self._ranks_of(range(self.num_chunks)).union(d.rank for d in self.derivations)
        return (ProcessGroup(self.name, tuple(sorted(named)), self.num_chunks),)

    @cached_property
    def chunks_of_group(self) -> tuple[range, ...]:
        """Range of chunks of each process group."""
        ends = tuple(accumulate((group.num_chunks for group in self.process_groups), initial=0))
        return tuple(map(range, ends, ends[1:]))

    @cached_property
    def group_of_chunk(self) -> tuple[int, ...]:
        """Index of the process group of each chunk."""
        return tuple(g for g, chunks in enumerate(self.chunks_of_group) for _ in chunks)

    @cached_property
    def size_chunks(self) -> int:
        """Number of chunks in the larger of one rank's input and output buffer, as nccl-tests counts size."""
        if self.derivations:
            return self.chunks_per_rank
        return self.most_at_a_rank(np.ones(self.num_chunks, np.int64))

    def most_at_a_rank(self, weights: NDArray[Any]) -> int:
        """Max over ranks of the total weight of the chunks that start, or that must end, at the rank."""
        most = 0
        for ends in (self.origin_sets, self.destination_sets):
            of_set = np.zeros(len(ends.sets), weights.dtype)
            np.add.at(of_set, ends.of_chunk, weights)
            of_rank = np.zeros(self.num_ranks, weights.dtype)
            for ranks, weight in zip(ends.sets, of_set, strict=True):
                of_rank[list(ranks)] += weight
            most = max(most, int(of_rank.max(initial=0)))
        return most

    @property
    def busbw_factor(self) -> float:
        """Ratio of bus bandwidth to algorithm bandwidth, as nccl-tests defines them.

        For an allgatherv, which nccl-tests lacks, it is the share of the data that is received by the rank
        that contributes least; with equal contributions this is the factor of an allgather. 1 if process
        groups have different factors.
        """
        everyone, every_chunk = tuple(range(self.num_ranks)), range(self.num_chunks)
        groups = self.groups or (ProcessGroup(self.name, everyone, self.num_chunks),)
        factors = set()
        for group, chunks in zip(groups, self.chunks_of_group if self.groups else [every_chunk], strict=True):
            if group.name == "allgatherv" and chunks:
                contributed = self.num_contributed(chunks)
                factors.add(1 - min(contributed[rank] for rank in group.ranks) / len(chunks))
            else:
                factors.add(busbw_factor(group.name, len(group.ranks)))
        return factors.pop() if len(factors) == 1 else 1.0

    def num_contributed(self, chunks: range | None = None) -> tuple[int, ...]:
        """Number of chunks that start at each rank, among all chunks or a range of them."""
        some = self.chunks if chunks is None else self.chunks[chunks.start : chunks.stop]
        counts = Counter(chain.from_iterable(chunk.origins for chunk in some))
        return tuple(counts[rank] for rank in range(self.num_ranks))

    def num_received(self) -> tuple[int, ...]:
        """Number of chunks that must end at each rank."""
        counts = Counter(chain.from_iterable(chunk.destinations for chunk in self.chunks))
        return tuple(counts[rank] for rank in range(self.num_ranks))

    def with_chunks_open(self, is_open: bool) -> Collective:
        """The same collective with its number of chunks left open, or fixed."""
        if self.chunks_open == is_open:
            return self
        other = copy(self)  # keeps the cached properties, which do not depend on `is_open`
        object.__setattr__(other, "chunks_open", is_open)
        return other

    @checked_as(CollectiveError)
    def split(self, parts: Count) -> Collective:
        """The same collective with every chunk cut into `parts` parts that are adjacent in every buffer.

        The number of chunks is then fixed.
        """
        if parts == 1:
            return self.with_chunks_open(False)
        # Chunk c becomes c * parts + 0, 1, ..., so that parts are adjacent.
        # Part p of a derived chunk derives from part p of the source.
        derivations = tuple(
            Derivation(d.source * parts + p, d.rank, d.chunk * parts + p)
            for d in self.derivations
            for p in range(parts)
        )
        return replace(
            self,
            chunks=tuple(each for each in self.chunks for _ in range(parts)),
            chunks_per_rank=self.chunks_per_rank * parts,
            chunks_open=False,
            derivations=derivations,
            groups=tuple(replace(group, num_chunks=group.num_chunks * parts) for group in self.groups),
        )

    @checked_as(CollectiveError)
    def among(self, ranks: Sequence[int], *, num_ranks: int) -> Collective:
        """The same collective for a process group: some ranks of a larger topology.

        Parameters
        ----------
        ranks : sequence of int
            Members of the group; the i-th is rank i of the collective.
        num_ranks : int
            Number of ranks of the topology. Other ranks may relay, unless the problem's clause `relays` says
            otherwise.

        Raises
        ------
        CollectiveError
            If a rank is named twice or does not exist, or the number of members is not the collective's
            number of ranks.
        """
        where = f"{self.name}: ranks of the group"
        members = tuple(ranks)
        check_members(members, num_ranks, where=where)
        if len(members) != self.num_ranks:
            said = f"found {len(members)} members; the collective is over {self.num_ranks} ranks"
            raise CollectiveError(said, where=where)

        def renamed(ranks: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(sorted(members[r] for r in ranks))

        chunks = tuple(
            Chunk(renamed(c.origins), renamed(c.destinations), None if c.root is None else members[c.root])
            for c in self.chunks
        )
        groups = tuple(replace(g, ranks=tuple(members[r] for r in g.ranks)) for g in self.groups)
        return replace(
            self,
            num_ranks=num_ranks,
            chunks=chunks,
            derivations=tuple(replace(d, rank=members[d.rank]) for d in self.derivations),
            groups=groups or (ProcessGroup(self.name, members, self.num_chunks),),
        )

    def to_dict(self) -> dict[str, Any]:
        """Collective as plain values; `groups`, `update_us_per_mb` and `chunks_open` only if they are set."""
        chunks = [[list(c.origins), list(c.destinations), c.root] for c in self.chunks]
        return self.outline() | {"chunks": chunks}

    def outline(self) -> dict[str, Any]:
        """The collective as plain values, without its chunks, which may be very many."""
        groups = {"groups": [[g.name, list(g.ranks), g.num_chunks] for g in self.groups]}
        named = {name: getattr(self, name) for name in ("name", "num_ranks", "combining", "chunks_per_rank")}
        derivations = [[d.source, d.rank, d.chunk] for d in self.derivations]
        update = {} if self.update_us_per_mb is None else {"update_us_per_mb": str(self.update_us_per_mb)}
        is_open = {"chunks_open": True} if self.chunks_open else {}
        return {**named, "derivations": derivations, **(groups if self.groups else {}), **update, **is_open}

    @classmethod
    @checked_as(CollectiveError)
    def from_dict(cls, data: dict[str, Any]) -> Collective:
        """Collective from the output of `to_dict`."""
        with plain_values("collective"):
            groups = data.get("groups", ())
            update = data.get("update_us_per_mb")
            return cls(
                **{name: data[name] for name in ("name", "num_ranks", "combining", "chunks_per_rank")},
                chunks=tuple(Chunk(tuple(o), tuple(d), root) for o, d, root in data["chunks"]),
                derivations=tuple(Derivation(*each) for each in data["derivations"]),
                groups=tuple(ProcessGroup(name, tuple(ranks), n) for name, ranks, n in groups),
                update_us_per_mb=exact(update) if update else None,
                chunks_open=data.get("chunks_open", False),
            )

    def __repr__(self) -> str:
        ranks, chunks = format_count(self.num_ranks, "rank"), format_count(self.num_chunks, "chunk")
        return f"Collective({shown(repr(self.name), 100)}, {ranks}, {chunks})"


@checked_as(CollectiveError)
def _chunk(origins: tuple[int, ...], destinations: tuple[int, ...], root: int | None) -> Chunk:
    return Chunk(origins, destinations, root)


def _is_whole(chunk: Chunk) -> bool:
    """True if a sum has a single contribution, and its root is not its only destination."""
    return len(chunk.origins) == 1 and chunk.destinations != (chunk.root,)


def busbw_factor(name: str, num_ranks: int) -> float:
    """Ratio of bus bandwidth to algorithm bandwidth of a named collective, as nccl-tests defines them."""
    if name in ("allgather", "reduce-scatter", "alltoall", "gather", "scatter"):
        return (num_ranks - 1) / num_ranks
    return 2 * (num_ranks - 1) / num_ranks if name == "allreduce" else 1.0
