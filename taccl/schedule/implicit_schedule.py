"""Implicit schedules: a pattern of sends for one rank's chunks, which all translations of a fabric repeat.

A *place* is an element of a group of translations; each place stands for one rank. The pattern is a short
table of sends. Each row sends an *item*, a chunk of place 0, from one place to another at some time.
Translation g maps the row to a send of the same item of place g, between the images of the two places. A
pattern of R - 1 rows thus stands for the R (R - 1) transfers of an allgather. So schedules of a million ranks
fit into memory. Transfers are computed on demand: a single one, a slice, those of one rank, or all in blocks.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taccl._internal.arguments import Bytes, Count, checked, known_word
from taccl._internal.units import BYTES_PER_MB, format_count, format_size, format_us
from taccl.errors import InputError, TopologyError
from taccl.problem.collective import busbw_factor
from taccl.problem.collectives import make
from taccl.problem.costs import MAX_TICKS_PER_US, ROUNDED_TICKS_PER_US
from taccl.problem.making import make_problem
from taccl.problem.problem import Problem
from taccl.schedule.figures import Figures
from taccl.schedule.schedule import Schedule, make_schedule
from taccl.topology.named import NamedFabric
from taccl.topology.parts import check_ranks
from taccl.topology.topology import Topology
from taccl.topology.translations import LinkClass, Translations

#: Max ticks of a send, so that all sends of a schedule in sequence fit into 64 bits.
_MAX_SEND_TICKS = 2**31


class ClassTicks(NamedTuple):
    """Costs of sending one chunk in ticks, for each class of links.

    - `latency`, (num_classes,): Duration of a send.
    - `holds`: For each class, (resource class, ticks of the hold, ticks from the send's start to the hold).
    """

    ticks_per_us: int
    latency: NDArray[np.int64]
    holds: tuple[tuple[tuple[int, int, int], ...], ...]


def ticks_of(classes: tuple[LinkClass, ...], chunk_bytes: int) -> ClassTicks:
    """Costs of each link class in ticks: exact, or rounded up if exact costs need too many ticks.

    The number of ticks per microsecond is chosen as in `taccl.problem.costs.exact_costs`.
    """
    scale = Fraction(chunk_bytes, BYTES_PER_MB)
    values = [(each.alpha_us, each.beta_us_per_mb * scale) for each in classes]
    values += [(hold.alpha_us, hold.beta_us_per_mb * scale) for each in classes for hold in each.holds]

    def ticks(alpha: Fraction, beta: Fraction) -> int:
        return math.ceil(alpha * grid) + math.ceil(beta * scale * grid)

    grid = math.lcm(*{v.denominator for pair in set(values) for v in pair})
    longest = max((ticks(each.alpha_us, each.beta_us_per_mb) for each in classes), default=0)
    if grid > MAX_TICKS_PER_US or longest > _MAX_SEND_TICKS:
        grid = min(grid, ROUNDED_TICKS_PER_US)
    latency = [ticks(each.alpha_us, each.beta_us_per_mb) for each in classes]
    if max(latency, default=0) > _MAX_SEND_TICKS:
        raise TopologyError(
            f"found a send of {max(latency)} ticks; expected at most {_MAX_SEND_TICKS}: give smaller costs "
            "or chunks, or costs with fewer decimals",
            where="alpha, beta",
        )
    holds = []
    for each, whole in zip(classes, latency, strict=True):
        rows = []
        for hold in each.holds:
            length = ticks(hold.alpha_us, hold.beta_us_per_mb)
            rows.append((hold.resource, length, whole - length if hold.side == "receive" else 0))
        holds.append(tuple(rows))
    return ClassTicks(grid, np.array(latency, dtype=np.int64), tuple(holds))


class Pattern(NamedTuple):
    """Sends of the chunks of place 0, in order of start, as columns with one value per send.

    - `item`: Index of a chunk of place 0. For an alltoall it is ``offset * chunks_per_rank + piece``, where
      the offset is the destination's place; otherwise it is the piece. For a sum, place 0 is the root.
    - `src`, `dst`: Places.
    - `link_class`: Class of the link between them.
    - `start`: Start in ticks.
    - `reduce`: True if the chunk is added to the destination's content.
    """

    item: NDArray[np.int32]
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    link_class: NDArray[np.int32]
    start: NDArray[np.int64]
    reduce: NDArray[np.bool_]

    @classmethod
    def sorted(cls, *rows: ArrayLike) -> Pattern:
        """Pattern from columns whose rows may be in any order."""
        kinds = (*[np.int32] * 4, np.int64, bool)
        columns = [np.asarray(column, dtype=kind) for column, kind in zip(rows, kinds, strict=True)]
        if len({column.shape for column in columns}) > 1 or columns[0].ndim != 1:
            raise InputError(
                f"found columns of shapes {[column.shape for column in columns]}; expected one value per row",
                where="pattern",
            )
        starts = columns[4]
        if len(starts) > 1 and not (starts[1:] >= starts[:-1]).all():
            order = np.lexsort((columns[0], columns[3], starts))
            columns = [column[order] for column in columns]
        for column in columns:
            column.setflags(write=False)
        return cls(*columns)


#: Collectives that are symmetric under all translations.
IMPLICIT_COLLECTIVES = ("allgather", "reduce-scatter", "allreduce", "alltoall")
_BLOCK = 1 << 20
_SUMMARY = (
    "collective", "num_ranks", "chunks_per_rank", "chunk_bytes", "size_bytes", "producer", "num_rows",
    "num_transfers", "finish_us", "launch_us", "predicted_us", "algbw_gb_per_s", "busbw_gb_per_s",
)  # fmt: skip
#: Approximate peak memory in bytes per transfer of `ImplicitSchedule.expand`.
_BYTES_PER_TRANSFER = 150


class RankTransfer(NamedTuple):
    """Transfer of one chunk between two ranks, with its start and end in ticks."""

    chunk: int
    src: int
    dst: int
    start_ticks: int
    end_ticks: int
    reduce: bool


class TransferBlock(NamedTuple):
    """Transfers as columns, (num_transfers,) each, with the fields of `RankTransfer`."""

    chunk: NDArray[np.int64]
    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    reduce: NDArray[np.bool_]


@checked
@dataclass(frozen=True, eq=False)
class ImplicitSchedule(Figures):
    """Schedule stored as a pattern of sends, and the translations that repeat the pattern for every rank.

    Transfer ``n`` is row ``n // num_ranks`` under translation ``n % num_ranks``, so transfers are in order of
    start.

    Parameters
    ----------
    translations : Translations
        Translations of the fabric.
    collective : str
        One of `IMPLICIT_COLLECTIVES`.
    chunks_per_rank : int
        Number of chunks per rank; for an alltoall, per pair of ranks.
    chunk_bytes : int
        Size of a chunk in bytes.
    pattern : Pattern
        The pattern; `taccl.analysis.verification.verify_implicit` checks its content.
    producer : str
        Description of the search or tool that made the schedule.
    """

    translations: Translations
    collective: str
    chunks_per_rank: Count
    chunk_bytes: Bytes
    pattern: Pattern
    producer: str = ""

    def __post_init__(self) -> None:
        known_word(self.collective, IMPLICIT_COLLECTIVES, "collective")

    @property
    def host(self) -> NamedFabric | Topology:
        """The fabric that the schedule is for."""
        return self.translations.host

    @property
    def num_ranks(self) -> int:
        """Number of ranks of the fabric."""
        return self.translations.num_ranks

    @property
    def num_rows(self) -> int:
        """Number of rows of the pattern."""
        return len(self.pattern.start)

    @property
    def num_transfers(self) -> int:
        """Number of transfers of all ranks together."""
        return self.num_rows * self.num_ranks

    @property
    def num_items(self) -> int:
        """Number of chunks that belong to one rank; in an alltoall, to all its destinations together."""
        return self.chunks_per_rank * (self.num_ranks if self.collective == "alltoall" else 1)

    @cached_property
    def ticks(self) -> ClassTicks:
        """Costs of each class of links, in ticks."""
        return ticks_of(self.translations.classes, self.chunk_bytes)

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """(num_rows,) end of each row's send in ticks."""
        ends = self.pattern.start + self.ticks.latency[self.pattern.link_class]
        ends.setflags(write=False)
        return ends

    @cached_property
    def finish_ticks(self) -> int:
        """Time of the last arrival in ticks; 0 for an empty schedule."""
        return int(self.ends.max()) if self.num_rows else 0

    @property
    def finish(self) -> Fraction:
        """Time of the last arrival in microseconds, exact."""
        return Fraction(self.finish_ticks, self.ticks.ticks_per_us)

    @property
    def launch(self) -> Fraction:
        """Launch time of the machine before the first send, in exact microseconds; not part of the finish."""
        return Fraction(0) if isinstance(self.host, NamedFabric) else self.host.launch_us

    @property
    def size_bytes(self) -> int:
        """The larger of one rank's input and output buffer, as nccl-tests counts it."""
        return self.num_ranks * self.chunks_per_rank * self.chunk_bytes

    @property
    def busbw_factor(self) -> float:
        """Ratio of bus bandwidth to algorithm bandwidth, as nccl-tests defines it."""
        return busbw_factor(self.collective, self.num_ranks)

    def __len__(self) -> int:
        return self.num_transfers

    def __iter__(self) -> Iterator[RankTransfer]:
        for block in self.blocks():
            for values in zip(*(column.tolist() for column in block), strict=True):
                yield RankTransfer(*values)

    @overload
    def __getitem__(self, index: int) -> RankTransfer: ...
    @overload
    def __getitem__(self, index: slice) -> TransferBlock: ...
    def __getitem__(self, index: int | slice) -> RankTransfer | TransferBlock:
        if isinstance(index, slice):
            begin, end, step = index.indices(self.num_transfers)
            return self._transfers(np.arange(begin, end, step, dtype=np.int64))
        number = index + self.num_transfers if index < 0 else index
        if not 0 <= number < self.num_transfers:
            raise IndexError(f"transfer {index} does not exist; there are {self.num_transfers}")
        block = self._transfers(np.array([number], dtype=np.int64))
        return RankTransfer(*(column[0].item() for column in block))

    @checked
    def blocks(self, num_transfers: int = _BLOCK) -> Iterator[TransferBlock]:
        """Yield all transfers in order of start, in blocks of `num_transfers`."""
        for begin in range(0, self.num_transfers, num_transfers):
            yield self[begin : begin + num_transfers]

    @checked
    def sends_of(self, rank: int) -> TransferBlock:
        """Sends of one rank in order of start, computed without those of other ranks."""
        return self._of_rank(rank, self.pattern.src)

    @checked
    def receives_of(self, rank: int) -> TransferBlock:
        """Receives of one rank in order of start, computed without those of other ranks."""
        return self._of_rank(rank, self.pattern.dst)

    def _of_rank(self, rank: int, places: NDArray[np.int32]) -> TransferBlock:
        check_ranks([rank], self.num_ranks, where="rank", error=InputError, of="there are ranks")
        ranks = self.translations.ranks
        here = rank if ranks is None else int(np.flatnonzero(ranks == rank)[0])
        rows = np.arange(self.num_rows, dtype=np.int64)
        return self._transfers(rows * self.num_ranks + self.translations.group.taking(places, here))

    def _transfers(self, numbers: NDArray[np.int64]) -> TransferBlock:
        row, element = numbers // self.num_ranks, numbers % self.num_ranks
        shape, pattern = self.translations, self.pattern
        item, pieces = pattern.item[row].astype(np.int64), self.chunks_per_rank

        def image(place: NDArray[Any]) -> NDArray[np.int64]:
            return shape.rank_at(shape.group.translate(element, place))

        owner = shape.rank_at(element)
        if self.collective == "alltoall":
            owner, item = owner * self.num_ranks + image(item // pieces), item % pieces
        src, dst = image(pattern.src[row]), image(pattern.dst[row])
        times = pattern.start[row], self.ends[row]
        return TransferBlock(owner * pieces + item, src, dst, *times, pattern.reduce[row])

    def problem(self) -> Problem:
        """Problem that the schedule solves, with explicit links and chunks."""
        topology = self.host.to_topology() if isinstance(self.host, NamedFabric) else self.host
        collective = make(self.collective, self.num_ranks, chunks_per_rank=self.chunks_per_rank)
        return make_problem(topology, collective, chunk_bytes=self.chunk_bytes)

    @checked
    def expand(self, limit: int = 2_000_000) -> Schedule:
        """Ordinary schedule with all transfers; raises `InputError` if there are more than `limit`."""
        if self.num_transfers > limit:
            raise InputError(
                f"found {self.num_transfers} transfers, which need about "
                f"{format_size(_BYTES_PER_TRANSFER * self.num_transfers)}; expected at most {limit}: iterate "
                "over it, slice it, or give a higher limit",
                where="expand: limit",
            )
        problem, num_ranks = self.problem(), self.num_ranks
        finer, rest = divmod(problem.costs.ticks_per_us, self.ticks.ticks_per_us)
        if rest:
            raise InputError(
                f"found {self.ticks.ticks_per_us} ticks per microsecond, which {problem!r} cannot have; "
                "give costs with fewer decimals",
                where="expand",
            )
        topology = problem.topology
        codes = np.array([e.src * num_ranks + e.dst for e in topology.links], dtype=np.int64)
        order = np.argsort(codes, kind="stable")
        block = self[:]
        wanted = block.src * num_ranks + block.dst
        place = np.minimum(np.searchsorted(codes[order], wanted), max(len(codes) - 1, 0))
        missing = np.flatnonzero(codes[order][place] != wanted)
        if len(missing):
            src, dst = divmod(int(wanted[missing[0]]), num_ranks)
            raise InputError(f"{topology.name} has no link {src}->{dst}", where="expand")
        return make_schedule(
            problem,
            chunk=block.chunk,
            link=order[place],
            start=block.start * finer,
            end=block.end * finer,
            reduce=block.reduce,
            producer=self.producer,
        )

    def digest(self) -> str:
        """Hash of fabric, collective, translations and pattern, the same on every machine."""
        words = {name: getattr(self, name) for name in ("collective", "chunks_per_rank", "chunk_bytes")}
        content = {"translations": self.translations.to_dict(), **words}
        state = hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())
        for column in self.pattern[:5]:
            state.update(np.ascontiguousarray(column, dtype="<i8").tobytes())
        state.update(np.packbits(self.pattern.reduce).tobytes())
        return state.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ImplicitSchedule) and self.digest() == other.digest()

    def __hash__(self) -> int:
        return hash(self.digest())

    def summary(self) -> dict[str, Any]:
        """Figures of the schedule as plain values, for JSON; the schedule cannot be restored from them."""
        return {
            "topology": self.host.to_dict() if isinstance(self.host, NamedFabric) else self.host.name,
            **{name: getattr(self, name) for name in _SUMMARY},
            "digest": self.digest(),
        }

    def __repr__(self) -> str:
        return (
            f"ImplicitSchedule({self.collective} on {self.host.name}: "
            f"{format_count(self.num_transfers, 'transfer')} as {format_count(self.num_rows, 'row')} under "
            f"{format_count(self.num_ranks, 'translation')}, finish {format_us(self.finish_us)}"
            f"{self.predicted_text})"
        )
