"""The problem: a topology, a collective, chunk sizes, and the clauses that a sketch adds.

`Problem` is everything a synthesizer may know. Its `costs` are the exact times of sends as integer ticks.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from taccl.collective import Chunk, Collective
from taccl.errors import CollectiveError, NumericsWarning, SketchError, TopologyError
from taccl.topology.topology import Topology
from taccl.units import BYTES_PER_MB, format_count, format_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

__all__ = ["Clauses", "Costs", "Problem", "SwitchPolicy", "alltoallv_problem", "make_problem"]

#: How finely time may be cut: beyond a picosecond, costs are rounded to it, with a word.
_MAX_TICKS_PER_US = 10**6
_MAX_FINISH_TICKS = 2**62


@dataclass(frozen=True, slots=True)
class SwitchPolicy:
    """How many of a switch's connections a routing should use: a term of the routing objective.

    `policy` is ``"min-connections"``, ``"max-connections"`` or ``"free"``; `links` are the switch's.
    """

    name: str
    policy: str
    links: tuple[int, ...]


@dataclass(frozen=True)
class Clauses:
    """What a sketch allows and asks for, in terms of links and ranks; the default asks for nothing.

    Parameters
    ----------
    links_allowed : frozenset of int, optional
        Links that may be used; None for all.
    carries_from : mapping of link to frozenset of int
        While a chunk spreads, the link carries only chunks that start at these ranks.
    carries_to : mapping of link to frozenset of int
        While a chunk is reduced, the link carries only chunks whose root is one of these ranks.
    direct_crossing : bool
        A chunk crosses between nodes only straight from a node where it starts to a node that needs it
        (while it is reduced: straight to its root's node).
    relays : frozenset of int, optional
        Ranks that may pass on chunks of process groups that they are not in; None for all. Members of a
        chunk's own group always may.
    own_first : frozenset of int
        On these links, chunks that start at the sender go before those it relays, at least one latency
        apart. (While chunks are reduced, time runs backwards: chunks whose root is the receiver go last.)
    max_merge : int
        How many chunks one send may carry.
    merging : frozenset of int
        Links whose sends may carry more than one chunk.
    symmetry : tuple of rank permutations
        Generators. They guide the search; a schedule need not have them.
    switch_policies : tuple of SwitchPolicy
    link_use : {"free", "min-max", "max-min"}
        A second objective of routing: keep the busiest link light, or the idlest link used.
    objective_weight : Fraction
        The weight mu of the routing objective's second terms.
    routing_slack : Fraction
        How much longer than its shortest path a chunk's path may be, relatively.
    where : mapping of clause to text
        ``"file: field"`` of every clause that came from a file.
    """

    name: str = ""
    links_allowed: frozenset[int] | None = None
    carries_from: Mapping[int, frozenset[int]] = field(default_factory=dict)
    carries_to: Mapping[int, frozenset[int]] = field(default_factory=dict)
    direct_crossing: bool = False
    own_first: frozenset[int] = frozenset()
    max_merge: int = 1
    merging: frozenset[int] = frozenset()
    symmetry: tuple[tuple[int, ...], ...] = ()
    switch_policies: tuple[SwitchPolicy, ...] = ()
    link_use: str = "free"
    objective_weight: Fraction = Fraction(1, 100)
    routing_slack: Fraction = Fraction(1, 10)
    where: Mapping[str, str] = field(default_factory=dict)
    relays: frozenset[int] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The clauses as plain values; `relays` only where they are limited."""
        relays = {} if self.relays is None else {"relays": sorted(self.relays)}
        return {
            "name": self.name,
            "links_allowed": None if self.links_allowed is None else sorted(self.links_allowed),
            "carries_from": {str(e): sorted(r) for e, r in sorted(self.carries_from.items())},
            "carries_to": {str(e): sorted(r) for e, r in sorted(self.carries_to.items())},
            "direct_crossing": self.direct_crossing,
            "own_first": sorted(self.own_first),
            "max_merge": self.max_merge,
            "merging": sorted(self.merging),
            "symmetry": [list(p) for p in self.symmetry],
            "switch_policies": [[s.name, s.policy, list(s.links)] for s in self.switch_policies],
            "link_use": self.link_use,
            "objective_weight": str(self.objective_weight),
            "routing_slack": str(self.routing_slack),
            "where": dict(sorted(self.where.items())),
            **relays,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Clauses:
        """The clauses that `to_dict` wrote."""
        allowed = data["links_allowed"]
        return cls(
            name=data["name"],
            links_allowed=None if allowed is None else frozenset(allowed),
            carries_from={int(e): frozenset(r) for e, r in data["carries_from"].items()},
            carries_to={int(e): frozenset(r) for e, r in data["carries_to"].items()},
            direct_crossing=data["direct_crossing"],
            own_first=frozenset(data["own_first"]),
            max_merge=data["max_merge"],
            merging=frozenset(data["merging"]),
            symmetry=tuple(tuple(p) for p in data["symmetry"]),
            switch_policies=tuple(
                SwitchPolicy(n, p, tuple(links)) for n, p, links in data["switch_policies"]
            ),
            link_use=data["link_use"],
            objective_weight=Fraction(data["objective_weight"]),
            routing_slack=Fraction(data["routing_slack"]),
            where=data["where"],
            relays=frozenset(data["relays"]) if data.get("relays") is not None else None,
        )

#: Stands for the list of chunks while what is around it is written; no name can be this.
_CHUNKS_HERE = "\0chunks\0"


@dataclass(frozen=True)
class Costs:
    """Exact times as integer ticks.

    A send of u units over link e takes ``link_alpha[e] + u * link_beta[e]`` ticks; chunk c has
    ``chunk_units[c]`` units. Holds are indexed as `Topology.holds`.

    Parameters
    ----------
    ticks_per_us : int
    link_alpha, link_beta : (num_links,) int64
    hold_alpha, hold_beta : (num_holds,) int64
    chunk_units : (num_chunks,) int64
    """

    ticks_per_us: int
    link_alpha: NDArray[np.int64]
    link_beta: NDArray[np.int64]
    hold_alpha: NDArray[np.int64]
    hold_beta: NDArray[np.int64]
    chunk_units: NDArray[np.int64]

    def duration(self, link: int, units: int) -> int:
        """Ticks from the start to the end of a send of `units` over `link`."""
        return int(self.link_alpha[link]) + units * int(self.link_beta[link])

    def us(self, ticks: int) -> Fraction:
        """Ticks as exact microseconds."""
        return Fraction(int(ticks), self.ticks_per_us)


@dataclass(frozen=True)
class Problem:
    """A topology, a collective, chunk sizes and a sketch's clauses; see `make_problem`.

    Parameters
    ----------
    chunk_bytes : tuple of int
        Size of every chunk.
    size_bytes : int, optional
        The size that bandwidths are counted from: the larger of one rank's input and output buffer, as
        nccl-tests counts it. None where the chunk size is not known (then GB/s are not either).
    notes : tuple of str
        What a person should know: padding, a symmetry that was narrowed.
    """

    topology: Topology
    collective: Collective
    chunk_bytes: tuple[int, ...]
    clauses: Clauses = Clauses()
    size_bytes: int | None = None
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if self.collective.num_ranks != self.topology.num_ranks:
            raise CollectiveError(
                f"{self.collective.name} is over {self.collective.num_ranks} ranks, but topology "
                f"{self.topology.name} has {self.topology.num_ranks}; make them equal",
                where="collective",
            )
        if len(self.chunk_bytes) != self.collective.num_chunks or min(self.chunk_bytes, default=1) <= 0:
            raise CollectiveError(
                f"found {len(self.chunk_bytes)} chunk sizes, smallest {min(self.chunk_bytes, default=0)}; "
                f"expected {self.collective.num_chunks}, all positive",
                where="chunk_bytes",
            )
        unknown = sorted(r for r in self.clauses.relays or () if not 0 <= r < self.topology.num_ranks)
        if unknown:
            raise SketchError(
                f"ranks {unknown} do not exist; the topology has ranks 0-{self.topology.num_ranks - 1}",
                where="clauses.relays",
            )

    @cached_property
    def costs(self) -> Costs:
        """Exact times as integer ticks."""
        return _ticks(self)

    @cached_property
    def memo(self) -> dict[str, Any]:
        """What others have worked out about this problem, by name; no part of its value."""
        return {}

    @cached_property
    def links_allowed(self) -> tuple[int, ...]:
        """The links that the sketch leaves, by index."""
        allowed = self.clauses.links_allowed
        every = range(len(self.topology.links))
        return tuple(every) if allowed is None else tuple(e for e in every if e in allowed)

    @cached_property
    def _derived_at(self) -> dict[int, tuple[int, ...]]:
        """The rank that makes each derived chunk."""
        return {d.chunk: (d.rank,) for d in self.collective.derivations}

    @cached_property
    def _ranks_of_group(self) -> tuple[frozenset[int], ...]:
        """Ranks that may ever hold chunks of each process group: its members, and the relays."""
        relays = self.clauses.relays or frozenset()
        return tuple(relays.union(group.ranks) for group in self.collective.process_groups)

    def holders(self, chunk: int) -> frozenset[int] | None:
        """Ranks that may ever hold a chunk; None for all."""
        if self.clauses.relays is None:
            return None
        return self._ranks_of_group[self.collective.group_of_chunk[chunk]]

    def may_carry(self, link: int, chunk: int, *, reducing: bool = False) -> bool:
        """Whether the clauses admit a chunk on a link, while it spreads or while it is reduced."""
        clauses, topology = self.clauses, self.topology
        if clauses.links_allowed is not None and link not in clauses.links_allowed:
            return False
        holders = self.holders(chunk)
        if holders is not None:
            ends = topology.links[link]
            if not holders.issuperset(ends.srcs) or not holders.issuperset(ends.dsts):
                return False
        data = self.collective.chunks[chunk]
        origins = data.origins or self._derived_at[chunk]
        if reducing:
            admitted = clauses.carries_to.get(link)
            if admitted is not None and data.root not in admitted:
                return False
        else:
            admitted = clauses.carries_from.get(link)
            starts = origins if not self.collective.combining or data.root is None else (data.root,)
            if admitted is not None and not admitted.intersection(starts):
                return False
        if clauses.direct_crossing and topology.is_internode(link):
            node = topology.node_of_rank
            ends = topology.links[link]
            src_nodes, dst_nodes = {node[r] for r in ends.srcs}, {node[r] for r in ends.dsts}
            if self.collective.combining and data.root is not None:
                if reducing:
                    return dst_nodes == {node[data.root]} and src_nodes <= {node[r] for r in origins}
                return src_nodes == {node[data.root]} and dst_nodes <= {node[r] for r in data.destinations}
            if self.collective.derivations:
                return True
            return src_nodes <= {node[r] for r in origins} and dst_nodes <= {
                node[r] for r in data.destinations
            }
        return True

    def digest(self) -> str:
        """A hash of the problem's content, the same on every machine and wherever a sketch was read from."""
        content = self._outline()
        del content["clauses"]["where"]
        # Chunks are written one by one where their list belongs: all at once they may be gigabytes.
        content["collective"]["chunks"] = _CHUNKS_HERE
        before, after = _compact(content).split(_compact(_CHUNKS_HERE))
        state = hashlib.sha256(before.encode() + b"[")
        ranks: dict[int, str] = {}
        for number, chunk in enumerate(self.collective.chunks):
            for each in (chunk.origins, chunk.destinations):
                if len(each) > 1 and id(each) not in ranks:  # which many chunks may share
                    ranks[id(each)] = _compact(each)
            parts = [ranks.get(id(each)) or _compact(each) for each in (chunk.origins, chunk.destinations)]
            state.update(f"{',' if number else ''}[{','.join([*parts, _compact(chunk.root)])}]".encode())
        state.update(b"]" + after.encode())
        return state.hexdigest()

    def with_clauses(self, **changes: Any) -> Problem:
        """The problem with some clauses replaced."""
        return replace(self, clauses=replace(self.clauses, **changes))

    def to_dict(self) -> dict[str, Any]:
        """The problem as plain values."""
        return self._outline() | {"collective": self.collective.to_dict()}

    def _outline(self) -> dict[str, Any]:
        """The same without the collective's chunks."""
        uniform = len(set(self.chunk_bytes)) == 1
        return {
            "topology": self.topology.to_dict(),
            "collective": self.collective.outline(),
            "chunk_bytes": self.chunk_bytes[0] if uniform else list(self.chunk_bytes),
            "size_bytes": self.size_bytes,
            "clauses": self.clauses.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Problem:
        """The problem that `to_dict` wrote."""
        collective = Collective.from_dict(data["collective"])
        sizes = data["chunk_bytes"]
        return cls(
            topology=Topology.from_dict(data["topology"]),
            collective=collective,
            chunk_bytes=(sizes,) * collective.num_chunks if isinstance(sizes, int) else tuple(sizes),
            clauses=Clauses.from_dict(data["clauses"]),
            size_bytes=data["size_bytes"],
        )

    def _repr_html_(self) -> str:
        """What a notebook shows: what is to be sent where, and under which sketch."""
        from taccl.html import card, facts

        collective, topology, clauses = self.collective, self.topology, self.clauses
        sizes = sorted(set(self.chunk_bytes))
        between = f" to {format_size(sizes[-1])}" if len(sizes) > 1 else ""
        size = f" of {format_size(sizes[0])}{between}" if sizes else ""
        allowed = len(self.links_allowed)
        rows = [
            ("collective", collective.name + (", whose contributions are added up" * collective.combining)),
            ("topology", topology.name),
            ("ranks", f"{topology.num_ranks} in {format_count(topology.num_nodes, 'node')}"),
            ("size", format_size(self.size_bytes) if self.size_bytes else "not known"),
            ("chunks", f"{collective.num_chunks}{size}, {collective.chunks_per_rank} per rank"),
            ("sketch", clauses.name),
            ("links allowed", f"{allowed} of {len(topology.links)}"),
            ("merging", f"up to {clauses.max_merge} chunks in a send" if clauses.max_merge > 1 else ""),
        ]
        return card(f"{collective.name} on {topology.name}", facts(rows), notes=self.notes)

    def __repr__(self) -> str:
        size = format_size(self.size_bytes) if self.size_bytes else "size unknown"
        sketch = f", sketch {self.clauses.name!r}" if self.clauses.name else ""
        return f"Problem({self.collective.name} on {self.topology.name}, {size}{sketch})"


def make_problem(
    topology: Topology,
    collective: Collective,
    *,
    chunk_bytes: int | Sequence[int] | None = None,
    size_bytes: int | None = None,
    clauses: Clauses | None = None,
    notes: Sequence[str] = (),
) -> Problem:
    """A problem from chunk sizes, or from a size as nccl-tests counts it.

    Parameters
    ----------
    chunk_bytes : int or sequence of int, optional
        Size of every chunk, or of each.
    size_bytes : int, optional
        The larger of one rank's input and output buffer; a size that does not divide into chunks is
        padded, and the problem's notes say so. Exactly one of the two is given.
    clauses : Clauses, optional
        Default: any link may carry anything; sends between nodes merge up to 6 chunks.

    Raises
    ------
    CollectiveError
        If neither or both sizes are given, or they do not fit the collective.
    """
    notes = list(notes)
    if (chunk_bytes is None) == (size_bytes is None):
        raise CollectiveError("give either a size or a chunk size, and not both", where="size, chunk_size")
    if size_bytes is not None:
        each = -(-size_bytes // collective.size_chunks)
        if each * collective.size_chunks != size_bytes:
            notes.append(
                f"size {size_bytes} B does not divide into {collective.size_chunks} chunks: each is padded "
                f"to {each} B"
            )
        sizes = (each,) * collective.num_chunks
    elif isinstance(chunk_bytes, (int, np.integer)):
        sizes = (int(chunk_bytes),) * collective.num_chunks
        size_bytes = sizes[0] * collective.size_chunks if sizes else None
    else:
        sizes = tuple(int(b) for b in chunk_bytes or ())
        size_bytes = _largest_buffer(collective, sizes) if len(sizes) == collective.num_chunks else None
    if clauses is None:
        clauses = Clauses(max_merge=6, merging=frozenset(topology.internode_links))
    return Problem(topology, collective, sizes, clauses, size_bytes, tuple(notes))


def alltoallv_problem(topology: Topology, sizes: ArrayLike, *, clauses: Clauses | None = None) -> Problem:
    """An exchange in which every rank sends every other its own number of bytes.

    Parameters
    ----------
    sizes : (num_ranks, num_ranks) array_like of int
        Bytes from the row's rank to the column's. What a rank keeps, and pairs of 0 bytes, are no chunks.

    Raises
    ------
    CollectiveError
        If the matrix is not square with a row for each rank, or holds something but whole numbers of bytes.
    """
    table = np.asarray(sizes)
    num_ranks = topology.num_ranks
    if table.shape != (num_ranks, num_ranks):
        raise CollectiveError(
            f"found a matrix of shape {table.shape}; expected {(num_ranks, num_ranks)}, a row and a column "
            f"for each rank of {topology.name}",
            where="sizes",
        )
    if table.dtype.kind not in "iu":
        raise CollectiveError(f"found {table.dtype} numbers; expected whole numbers of bytes", where="sizes")
    if (table < 0).any():
        row, column = (int(i) for i in np.argwhere(table < 0)[0])
        raise CollectiveError(
            f"found {table[row, column]} bytes from rank {row} to {column}; expected 0 or more", where="sizes"
        )
    pairs = [(int(r), int(c)) for r, c in np.argwhere(table > 0) if r != c]
    if not pairs:
        raise CollectiveError(
            "found nothing to send; expected bytes between two ranks at least", where="sizes"
        )
    collective = Collective("alltoallv", num_ranks, tuple(Chunk((r,), (c,)) for r, c in pairs))
    chunk_bytes = [int(table[pair]) for pair in pairs]
    return make_problem(topology, collective, chunk_bytes=chunk_bytes, clauses=clauses)


def _largest_buffer(collective: Collective, sizes: Sequence[int]) -> int:
    """Bytes of the larger of one rank's input and output buffer, over ranks."""
    if collective.derivations:  # rank r's output is what it makes; the rest only passes on
        made = [0] * collective.num_ranks
        for derivation in collective.derivations:
            made[derivation.rank] += sizes[derivation.chunk]
        return max(made)
    inputs, outputs = [0] * collective.num_ranks, [0] * collective.num_ranks
    for chunk, size in zip(collective.chunks, sizes, strict=True):
        for rank in chunk.origins:
            inputs[rank] += size
        for rank in chunk.destinations:
            outputs[rank] += size
    return max(*inputs, *outputs)


def _compact(values: object) -> str:
    """Plain values as JSON, the same for the same values."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"))


def _ticks(problem: Problem) -> Costs:
    """Put every cost on one integer grid."""
    topology = problem.topology
    unit_bytes = math.gcd(*problem.chunk_bytes) if problem.chunk_bytes else 1
    scale = Fraction(unit_bytes, BYTES_PER_MB)
    columns = [
        [e.alpha_us for e in topology.links],
        [e.beta_us_per_mb * scale for e in topology.links],
        [h.alpha_us for h in topology.holds],
        [h.beta_us_per_mb * scale for h in topology.holds],
    ]
    ticks_per_us = math.lcm(*{value.denominator for column in columns for value in column})
    if ticks_per_us > _MAX_TICKS_PER_US:
        ticks_per_us = _MAX_TICKS_PER_US
        warnings.warn(
            f"{topology.name}: costs need more than {_MAX_TICKS_PER_US} ticks a microsecond and were "
            "rounded up to one; give costs with fewer decimals for exact times",
            NumericsWarning,
            stacklevel=3,
        )
    in_ticks = [[math.ceil(value * ticks_per_us) for value in column] for column in columns]
    units = [b // unit_bytes for b in problem.chunk_bytes]
    # No schedule worth having lasts longer than every chunk over a way of dear links, one after another.
    dearest = max(in_ticks[0], default=0) * len(units) + max(in_ticks[1], default=0) * sum(units)
    longest = dearest * topology.num_ranks
    if longest > _MAX_FINISH_TICKS:
        raise TopologyError(
            f"found costs and chunks of {format_size(max(problem.chunk_bytes))} that need more than 64 bits "
            f"at {ticks_per_us} ticks a microsecond; give smaller costs, or costs with fewer decimals",
            where=topology.name,
        )
    link_alpha, link_beta, hold_alpha, hold_beta = map(_read_only, in_ticks)
    return Costs(ticks_per_us, link_alpha, link_beta, hold_alpha, hold_beta, _read_only(units))


def _read_only(values: Sequence[int]) -> NDArray[np.int64]:
    array = np.array(values, dtype=np.int64)
    array.setflags(write=False)
    return array
