"""Problem: a topology, a collective, chunk sizes, and the clauses of a sketch.

A `Problem` contains all input of a synthesizer.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from taccl._internal.arguments import checked_as, known_index
from taccl._internal.caching import cached
from taccl._internal.names import shown
from taccl._internal.reading import plain_values
from taccl._internal.units import exact, format_count, format_size
from taccl.errors import CollectiveError, InputError, SketchError
from taccl.problem.clauses import Clauses, SwitchPolicy
from taccl.problem.collective import Collective
from taccl.problem.costs import Costs, exact_costs, read_columns
from taccl.problem.open_links import OpenLinks
from taccl.topology.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from taccl._internal.arrays import Flags, Ints
    from taccl.problem.chunks import Chunk

__all__ = ["Clauses", "Costs", "Problem", "SwitchPolicy"]

#: Max characters of a name in a title.
_TITLE = 100
#: Number of chunks converted to JSON together; each may name all ranks.
_WRITTEN_AT_ONCE = 64


@checked_as(CollectiveError)
@dataclass(frozen=True)
class Problem:
    """A topology, a collective, chunk sizes and a sketch's clauses; see `make_problem`.

    Parameters
    ----------
    chunk_bytes : tuple of int
        Size of every chunk.
    size_bytes : int, optional
        Size for bandwidths: the larger of one rank's input and output buffer, as nccl-tests counts it. None
        if the size is unknown; then bandwidths are unknown, too.
    notes : tuple of str
        Notes for the user, e.g. on padding, or on a symmetry that was narrowed.
    chunks_open : bool
        True if the number of chunks is open: the problem gives a size and has one chunk per rank,
        `taccl.synthesize` chooses the number, and `taccl.lower_bound` holds for every number. The problem's
        collective has the same value. Equality ignores it; the digest does not.
    release_us : tuple of (chunk, rank, microseconds)
        Release dates of ranks' initial data; 0 if not listed. Before its release date, data may neither be
        sent nor have contributions added to it.
    due_us : tuple of (chunk, rank, microseconds)
        Due dates of chunks at destinations.
    """

    topology: Topology
    collective: Collective
    chunk_bytes: tuple[int, ...]
    clauses: Clauses = Clauses()
    size_bytes: int | None = None
    notes: tuple[str, ...] = field(default=(), compare=False)
    chunks_open: bool = field(default=False, compare=False)
    release_us: tuple[tuple[int, int, Fraction], ...] = ()
    due_us: tuple[tuple[int, int, Fraction], ...] = ()

    def __post_init__(self) -> None:
        if self.collective.num_ranks != self.topology.num_ranks:
            raise CollectiveError(
                f"{self.collective.name} is over {self.collective.num_ranks} ranks, but topology "
                f"{self.topology.name} has {self.topology.num_ranks}; make them equal",
                where="collective",
            )
        object.__setattr__(self, "collective", self.collective.with_chunks_open(self.chunks_open))
        read_columns(self.topology)
        if len(self.chunk_bytes) != self.collective.num_chunks or min(self.chunk_bytes, default=1) <= 0:
            raise CollectiveError(
                f"found {len(self.chunk_bytes)} chunk sizes, smallest {min(self.chunk_bytes, default=0)}; "
                f"expected {self.collective.num_chunks}, all positive",
                where="chunk_bytes",
            )
        for name in ("release_us", "due_us"):
            object.__setattr__(self, name, self._checked_dates(name))
        clauses, ranks = self.clauses, self.topology.num_ranks
        for name, noun, named in clauses.indices():
            count = ranks if noun == "rank" else len(self.topology.links)
            if named and (min(named) < 0 or max(named) >= count):
                unknown = sorted(each for each in named if not 0 <= each < count)
                said = f"{noun}s {unknown[:8]} do not exist; the topology has {noun}s 0-{count - 1}"
                raise SketchError(said, where=f"clauses.{name}")
        for ranks_to in clauses.symmetry:
            if sorted(ranks_to) != list(range(ranks)):
                raise SketchError(
                    f"found {ranks_to[:16]}, which is no symmetry of {self.topology.name}; "
                    f"name every rank 0-{ranks - 1} once",
                    where="clauses.symmetry",
                )

    def _checked_dates(self, name: str) -> tuple[tuple[int, int, Fraction], ...]:
        """Release or due dates, exact and sorted; raises `CollectiveError` for an invalid one."""
        found: dict[tuple[int, int], Fraction] = {}
        for chunk, rank, us in getattr(self, name):
            where = f"{name}: chunk {chunk}, rank {rank}"
            try:
                chunk, date = known_index(chunk, self.collective.num_chunks, "chunk"), exact(us)
            except InputError as error:
                raise CollectiveError(error.message, where=where) from None
            ends = self.collective.chunks[chunk]
            role = "origins" if name == "release_us" else "destinations"
            if rank not in getattr(ends, role):
                said = f"the rank is none of the chunk's {role}; name one of those"
                raise CollectiveError(said, where=where)
            if date < 0 or (chunk, rank) in found:
                said = "found it twice" if (chunk, rank) in found else f"found {float(date):g} us"
                raise CollectiveError(f"{said}; give one time of 0 or more", where=where)
            found[chunk, rank] = date
        return tuple((chunk, rank, us) for (chunk, rank), us in sorted(found.items()))

    @cached_property
    def release_ticks(self) -> dict[tuple[int, int], int]:
        """{(chunk, rank): release date in ticks} of release dates other than 0."""
        return {
            (chunk, rank): ceil(us * self.costs.ticks_per_us) for chunk, rank, us in self.release_us if us
        }

    def without_dates(self) -> Problem:
        """The problem without release dates and due dates."""
        return replace(self, release_us=(), due_us=()) if self.release_us or self.due_us else self

    @property
    def in_its_chunks(self) -> Problem:
        """The problem with its number of chunks fixed, as its schedules require."""
        return self._in_its_chunks if self.chunks_open else self

    @cached_property
    def _in_its_chunks(self) -> Problem:
        return replace(self, chunks_open=False)

    @cached_property
    def costs(self) -> Costs:
        """Costs of the topology and sizes of the chunks in integer units (see `exact_costs`)."""
        return exact_costs(self.topology, self.chunk_bytes)

    @cached_property
    def update_ticks(self) -> NDArray[np.int64]:
        """(num_chunks,) ticks that a chunk's root, a server, takes to update the sum; 0 without updates."""
        per_byte = (self.collective.update_us_per_mb or 0) * self.costs.ticks_per_us / Fraction(10**6)
        ticks = {size: ceil(per_byte * size) for size in {*self.chunk_bytes}}
        return np.array([*map(ticks.__getitem__, self.chunk_bytes)], np.int64)

    @cached_property
    def cache(self) -> dict[str, Any]:
        """Derived data about this problem, by name; not part of its value."""
        return {}

    @cached_property
    def links_allowed(self) -> tuple[int, ...]:
        """Indices of the links that the sketch allows."""
        allowed = self.clauses.links_allowed
        every = range(len(self.topology.links))
        return tuple(every) if allowed is None else tuple(e for e in every if e in allowed)

    @cached_property
    def own_first(self) -> frozenset[int]:
        """Links with local-first priority, except those on which the priority cannot matter.

        Without reductions, a sender has nothing to order if all chunks start there, or none does.
        """
        links = self.clauses.own_first
        if not links or self.collective.combining:
            return links
        own = Counter(rank for chunk in self.collective.chunks for rank in chunk.origins)
        both = {rank for rank, count in own.items() if count < self.collective.num_chunks}
        return frozenset(e for e in links if not both.isdisjoint(self.topology.links[e].srcs))

    @cached_property
    def _ranks_of_group(self) -> tuple[frozenset[int], ...]:
        """Ranks that may hold chunks of each process group: its members, and the relays."""
        relays = self.clauses.relays or frozenset()
        return tuple(relays.union(group.ranks) for group in self.collective.process_groups)

    def holders(self, chunk: int) -> frozenset[int] | None:
        """Ranks that may ever hold the chunk; None for all."""
        chunk = known_index(chunk, self.collective.num_chunks, "chunk")
        if self.clauses.relays is None:
            return None
        return self._ranks_of_group[self.collective.group_of_chunk[chunk]]

    def may_carry(self, link: int, chunk: int, *, reducing: bool = False) -> bool:
        """True if the clauses admit a chunk on a link, in the broadcast phase or in the reduce phase.

        Parameters
        ----------
        link, chunk : int
            Indices.
        reducing : bool
            True for the reduce phase, i.e. on the way to the chunk's root.
        """
        link = known_index(link, len(self.topology.links), "link")
        chunk = known_index(chunk, self.collective.num_chunks, "chunk")
        return bool(self.open_links(chunk, reducing=reducing)[link])

    def open_links(self, chunk: int, *, reducing: bool = False) -> NDArray[np.bool_]:
        """(num_links,) True for links that `may_carry` a chunk; chunks that clauses treat alike share it."""
        return self._open_links.of(chunk, reducing=reducing)

    def open_link_sets(self, *, reducing: bool = False) -> tuple[Ints, list[Flags]]:
        """(index of the links that `may_carry` each chunk, (num_links,) flags of different such links)."""
        return self._open_links.sets(reducing=reducing)

    @property
    def has_equal_links(self) -> bool:
        """True if the clauses admit all chunks on the same links, in both phases."""
        return self._open_links.are_equal

    @cached_property
    def _open_links(self) -> OpenLinks:
        """Links on which the clauses admit each chunk."""
        return OpenLinks(self.topology, self.collective, self.clauses, self.links_allowed)

    @cached
    def digest(self) -> str:
        """Hash of the problem's content, the same on every machine; the sketch's file name does not count."""
        outline = self._outline()
        del outline["clauses"]["where"]
        collective = outline.pop("collective")
        before = {name: outline.pop(name) for name in ("chunk_bytes", "clauses")}
        # Hash the JSON text piece by piece, since the whole text may have gigabytes.
        state = hashlib.sha256(f'{_compact(before)[:-1]},"collective":{{"chunks":['.encode())
        for number, some in enumerate(_written(self.collective.chunks)):
            state.update((("," if number else "") + some).encode())
        state.update(f"],{_compact(collective)[1:]},{_compact(outline)[1:]}".encode())
        return state.hexdigest()

    def with_clauses(self, **changes: Any) -> Problem:
        """The problem with some clauses replaced."""
        return replace(self, clauses=replace(self.clauses, **changes))

    def without_clauses(self, *fields: str) -> Problem:
        """The problem with some clauses reset to their defaults."""
        return replace(self, clauses=self.clauses.without(*fields))

    def to_dict(self) -> dict[str, Any]:
        """The problem as plain values."""
        return self._outline() | {"collective": self.collective.to_dict()}

    def _outline(self) -> dict[str, Any]:
        """The problem as plain values, without the chunks of its collective."""
        uniform = len(set(self.chunk_bytes)) == 1
        return {
            "topology": self.topology.to_dict(),
            "collective": self.collective.outline(),
            "chunk_bytes": self.chunk_bytes[0] if uniform else list(self.chunk_bytes),
            "size_bytes": self.size_bytes,
            "clauses": self.clauses.to_dict(),
            **{
                name: [[chunk, rank, str(us)] for chunk, rank, us in getattr(self, name)]
                for name in ("release_us", "due_us")
                if getattr(self, name)
            },
        }

    @classmethod
    @checked_as(CollectiveError)
    def from_dict(cls, data: dict[str, Any]) -> Problem:
        """Problem from the output of `to_dict`."""
        with plain_values("problem"):
            collective = Collective.from_dict(data["collective"])
            sizes = data["chunk_bytes"]
            return cls(
                topology=Topology.from_dict(data["topology"]),
                collective=collective,
                chunk_bytes=(sizes,) * collective.num_chunks if isinstance(sizes, int) else tuple(sizes),
                clauses=Clauses.from_dict(data["clauses"]),
                size_bytes=data["size_bytes"],
                chunks_open=collective.chunks_open,
                **{name: tuple(map(tuple, data.get(name, ()))) for name in ("release_us", "due_us")},  # type: ignore[arg-type]
            )

    @property
    def title(self) -> str:
        """Text that names the collective and the topology."""
        return f"{shown(self.collective.name, _TITLE)} on {shown(self.topology.name, _TITLE)}"

    @property
    def heading(self) -> str:
        """Text that names collective, topology, sketch, size, protocol and cost model."""
        sketch = f", sketch {shown(self.clauses.name)}" if self.clauses.name else ""
        size = f", {format_size(self.size_bytes)}" if self.size_bytes else ""
        model = " (upstream cost model)" if self.topology.cost_model == "upstream" else ""
        protocol = f", protocol {self.topology.protocol}" if self.topology.protocol else ""
        return f"{self.title}{sketch}{size}{protocol}{model}"

    def protocol_notes(self, notes: Iterable[str] = ()) -> tuple[str, ...]:
        """Notes on the choice of the protocol, among the problem's and the given ones."""
        begins = f"protocol {self.topology.protocol} is "
        return tuple(each for each in (*self.notes, *notes) if each.startswith(begins))

    def uncompared_rows(self, notes: Iterable[str] = ()) -> list[tuple[str, str]]:
        """[(name, text)] with the protocols that this one was not compared with, or [].

        - `notes`: Notes of a result, one of which may state the choice of the protocol.
        """
        own, known = self.topology.protocol, self.topology.protocols
        if len(known) < 2 or self.protocol_notes(notes):
            return []
        others = " and ".join(each for each in known if each != own)
        return [("protocol", f"{own}, not compared with {others}")]

    def facts(self) -> list[tuple[str, str]]:
        """(name, text) rows on collective, size, topology, protocol and sketch."""
        collective, topology, clauses = self.collective, self.topology, self.clauses
        sizes = sorted(set(self.chunk_bytes))
        between = f" to {format_size(sizes[-1])}" if len(sizes) > 1 else ""
        size = f" of {format_size(sizes[0])}{between}" if sizes else ""
        merging = (
            f"up to {clauses.max_merge} chunks in a send, on {format_count(len(clauses.merging), 'link')}"
        )
        return [
            ("collective", collective.name + (", with sums of named contributions" * collective.combining)),
            ("topology", topology.name),
            ("ranks", f"{topology.num_ranks} in {format_count(topology.num_nodes, 'node')}"),
            ("size", format_size(self.size_bytes) if self.size_bytes else "not known"),
            ("chunks", f"{collective.num_chunks}{size}, {collective.chunks_per_rank} per rank"),
            ("protocol", topology.protocol),
            ("sketch", clauses.name or "none"),
            ("links allowed", f"{len(self.links_allowed)} of {len(topology.links)}"),
            ("merging", merging if clauses.max_merge > 1 else ""),
        ]

    def _repr_html_(self) -> str:
        """HTML for notebooks."""
        from taccl._internal.html import card, facts

        return card(self.title, facts(self.facts()), notes=self.notes)

    def __deepcopy__(self, memo: dict[int, Any]) -> Problem:
        """The immutable problem itself: pandas deep-copies ``DataFrame.attrs`` in every operation."""
        return self

    def __repr__(self) -> str:
        size = format_size(self.size_bytes) if self.size_bytes else "size unknown"
        sketch = f", sketch {shown(repr(self.clauses.name), _TITLE)}" if self.clauses.name else ""
        return f"Problem({self.title}, {size}{sketch})"


def _written(chunks: Sequence[Chunk]) -> Iterator[str]:
    """Yield the chunks as JSON, `_WRITTEN_AT_ONCE` of them at a time, without the outer brackets."""
    shared: dict[int, str] = {}  # many chunks may share one tuple of ranks

    def written(ranks: tuple[int, ...]) -> str:
        if len(ranks) == 1:
            return f"[{ranks[0]}]"
        if id(ranks) not in shared:
            shared[id(ranks)] = _compact(ranks)
        return shared[id(ranks)]

    for first in range(0, len(chunks), _WRITTEN_AT_ONCE):
        yield ",".join(
            f"[{written(chunk.origins)},{written(chunk.destinations)},"
            f"{'null' if chunk.root is None else chunk.root}]"
            for chunk in chunks[first : first + _WRITTEN_AT_ONCE]
        )


def _compact(values: object) -> str:
    """Plain values as JSON without spaces; equal values give equal text."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"))
