"""Programs, whose steps each rank executes on its input, output and scratch buffers.

A rank runs its *threadblocks* concurrently, and each threadblock runs its steps one after another. A
threadblock sends to at most one rank and receives from at most one, both over one *channel*. The messages
from one rank to another over a channel form one queue, first in, first out. Steps of different threadblocks
of a rank are ordered only by dependencies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from typing import Any, NamedTuple

from taccl._internal.arguments import checked, known_word
from taccl._internal.names import shown
from taccl._internal.reading import plain_values
from taccl._internal.units import format_count
from taccl.errors import InputError
from taccl.problem.collective import Collective

BUFFERS = ("input", "output", "scratch")
#: (rank, number of the threadblock at that rank).
Block = tuple[int, int]

#: {protocol: number of messages that a queue holds} (`taccl.program.checks`).
PROTOCOLS = {"Simple": 2, "LL": 8, "LL128": 8}


class OperationParts(NamedTuple):
    """Parts of an operation, in order of execution: receive, read `src`, write `dst`, send the result."""

    receives: bool
    reads: bool
    writes: bool
    sends: bool


#: {operation: its parts}. The result is the data received or read; if both, their sum.
OPERATIONS: Mapping[str, OperationParts] = {
    "send": OperationParts(False, True, False, True),
    "receive": OperationParts(True, False, True, False),
    "receive-send": OperationParts(True, False, True, True),
    "receive-reduce": OperationParts(True, True, True, False),
    "receive-reduce-send": OperationParts(True, True, False, True),
    "receive-reduce-copy-send": OperationParts(True, True, True, True),
    "copy": OperationParts(False, True, True, False),
    "reduce": OperationParts(False, True, True, False),  # dst = dst + src
    "nop": OperationParts(False, False, False, False),
}


class Slot(NamedTuple):
    """Place for one chunk: a buffer (input, output or scratch), and the offset in it in chunks."""

    buffer: str
    offset: int

    def neighbours(self, count: int) -> tuple[Slot, ...]:
        """`count` consecutive slots, beginning with this one."""
        if count == 1:  # most steps move one chunk
            return (self,)
        return tuple(Slot(self.buffer, self.offset + i) for i in range(count))

    def __str__(self) -> str:
        return f"{self.buffer}[{self.offset}]"


class StepAddress(NamedTuple):
    """Address of a step in a program."""

    rank: int
    threadblock: int
    step: int

    def __str__(self) -> str:
        return f"(rank {self.rank}, threadblock {self.threadblock}, step {self.step})"


class Queue(NamedTuple):
    """Messages from one rank to another over one channel, first in, first out."""

    src: int
    dst: int
    channel: int

    def __str__(self) -> str:
        return f"from rank {self.src} to rank {self.dst} over channel {self.channel}"


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction on `count` chunks that are contiguous in each buffer it accesses.

    - `operation`: One of `OPERATIONS`.
    - `src`, `dst`: First slot read, and first slot written; None if the operation does not read or write.
    - `depends` (tuple of (threadblock, step)): Steps of the same rank that must be done before this one
      begins.
    - `needs`: Names of the computed tiles that must be ready before it begins (`taccl.workload.lower_step`).
    - `gives`: Names of tiles; each tile is ready once all steps of the rank that give it are done.
    """

    operation: str
    src: Slot | None = None
    dst: Slot | None = None
    count: int = 1
    depends: tuple[tuple[int, int], ...] = ()
    needs: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()

    def __str__(self) -> str:
        places = " -> ".join(str(slot) for slot in (self.src, self.dst) if slot is not None)
        times = f" x{self.count}" if self.count != 1 else ""
        return f"{self.operation} {places}{times}".strip()


@dataclass(frozen=True, slots=True)
class Threadblock:
    """Steps that run one after another; `send_to` and `receive_from` are ranks."""

    steps: tuple[Step, ...]
    send_to: int | None = None
    receive_from: int | None = None
    channel: int = 0

    def sends_into(self, rank: int) -> Queue | None:
        """Queue that this threadblock of `rank` sends into; None if it does not send."""
        return None if self.send_to is None else Queue(rank, self.send_to, self.channel)

    def receives_from(self, rank: int) -> Queue | None:
        """Queue that this threadblock of `rank` receives from; None if it does not receive."""
        return None if self.receive_from is None else Queue(self.receive_from, rank, self.channel)


@dataclass(frozen=True, slots=True)
class RankProgram:
    """Program of one rank, and the number of chunks in its buffers."""

    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    threadblocks: tuple[Threadblock, ...]


@checked
@dataclass(frozen=True)
class Program:
    """The steps that each rank executes so that all ranks together run a collective.

    Parameters
    ----------
    name : str
        Name of the program.
    ranks : tuple of RankProgram
        Program of each rank.
    collective : Collective, optional
        The collective that it implements. It determines the positions of chunks in the user's buffers
        (`taccl.program.layout`) and the required outputs. None if unknown; outputs are then not checked.
    in_place : bool
        True if input and output are one buffer, the smaller inside the larger.
    protocol : str
        One of `PROTOCOLS`, which determines the number of messages that a queue holds.
    node_of_rank : tuple of int, optional
        Node of each rank, if known: some runtimes reach ranks of other nodes by other means. It does not
        affect execution, and is ignored when programs are compared.
    sizes_bytes : tuple of int, optional
        Smallest and largest intended size in bytes of the larger of a rank's two buffers, if known. Ignored
        when programs are compared.
    notes : tuple of str
        Notes on how it was made.
    """

    name: str
    ranks: tuple[RankProgram, ...]
    collective: Collective | None = None
    in_place: bool = False
    protocol: str = "Simple"
    node_of_rank: tuple[int, ...] | None = field(default=None, compare=False)
    sizes_bytes: tuple[int, int] | None = field(default=None, compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        known_word(self.protocol, PROTOCOLS, "protocol")
        if self.collective is not None and self.collective.num_ranks != len(self.ranks):
            raise InputError(
                f"found {format_count(len(self.ranks), 'rank')}; {self.collective.name} is over "
                f"{self.collective.num_ranks}",
                where="program",
            )

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    @cached_property
    def num_steps(self) -> int:
        """Number of steps of all threadblocks together."""
        return sum(1 for _ in self.steps())

    @cached_property
    def num_copies(self) -> int:
        """Number of steps that only move or add data within a rank."""
        return sum(step.operation in ("copy", "reduce") for _, step in self.steps())

    @cached_property
    def num_channels(self) -> int:
        """Number of channels: one more than the highest in use, at least 1."""
        return 1 + max((threadblock.channel for _, threadblock in self.threadblocks()), default=0)

    @cached_property
    def cache(self) -> dict[Any, Any]:
        """Derived data, computed once and kept with the program."""
        return {}

    @property
    def size_chunks(self) -> int:
        """Number of chunks into which a size is divided: those of the largest input or output; at least 1."""
        if self.collective is not None:
            return max(1, self.collective.size_chunks)
        return max([1, *(max(rank.input_chunks, rank.output_chunks) for rank in self.ranks)])

    @property
    def max_threadblocks(self) -> int:
        """Max number of threadblocks of a rank."""
        return max((len(rank.threadblocks) for rank in self.ranks), default=0)

    @property
    def scratch_chunks(self) -> int:
        """Max number of scratch chunks of a rank."""
        return max((rank.scratch_chunks for rank in self.ranks), default=0)

    def steps(self) -> Iterator[tuple[StepAddress, Step]]:
        """Yield every step with its address, by rank, threadblock and position."""
        for (r, t), threadblock in self.threadblocks():
            for s, step in enumerate(threadblock.steps):
                yield StepAddress(r, t, s), step

    def threadblocks(self) -> Iterator[tuple[Block, Threadblock]]:
        """Yield every threadblock with its rank and its number there."""
        for r, rank in enumerate(self.ranks):
            for t, threadblock in enumerate(rank.threadblocks):
                yield (r, t), threadblock

    def threadblock(self, address: StepAddress) -> Threadblock:
        """The threadblock of a step."""
        return self.ranks[address.rank].threadblocks[address.threadblock]

    def step(self, address: StepAddress) -> Step:
        """The step at an address."""
        return self.threadblock(address).steps[address.step]

    def to_dict(self) -> dict[str, Any]:
        """The program as plain values."""
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        return plain | {
            "collective": None if self.collective is None else self.collective.to_dict(),
            "ranks": [_plain(each) for each in self.ranks],
        }

    @classmethod
    @checked
    def from_dict(cls, data: dict[str, Any]) -> Program:
        """The program that `to_dict` turned into plain values."""
        with plain_values("program"):
            collective = None if data["collective"] is None else Collective.from_dict(data["collective"])
            ranks = tuple(map(_rank_program, data["ranks"]))
            return cls(**{**data, "collective": collective, "ranks": ranks})

    def __repr__(self) -> str:
        copies = f" of them {self.num_copies} within ranks," if self.num_copies else ""
        place = "in place" if self.in_place else "out of place"
        return (
            f"Program({shown(repr(self.name), 100)}, {place}: {format_count(self.num_ranks, 'rank')}, "
            f"{format_count(self.num_steps, 'step')},{copies} at most "
            f"{format_count(self.max_threadblocks, 'threadblock')} and "
            f"{format_count(self.scratch_chunks, 'chunk')} of scratch per rank, "
            f"{'; '.join((format_count(self.num_channels, 'channel') + ', ' + self.protocol, *self.notes))})"
        )


# Plain values are read here without pydantic, as each rank of a run reads the program.
# Loading pydantic would take longer than the rest.
def _plain(value: Any) -> Any:
    """Convert to plain values: records to {field: value} without defaults, and tuples to lists."""
    if isinstance(value, (RankProgram, Threadblock, Step)):
        given = ((each, getattr(value, each.name)) for each in fields(value))
        return {
            each.name: _plain(found)
            for each, found in given
            if each.default is MISSING or found != each.default
        }
    return list(map(_plain, value)) if isinstance(value, tuple) else value


def _rank_program(data: dict[str, Any]) -> RankProgram:
    return RankProgram(**{**data, "threadblocks": tuple(map(_threadblock, data["threadblocks"]))})


def _threadblock(data: dict[str, Any]) -> Threadblock:
    return Threadblock(**{**data, "steps": tuple(map(_step, data["steps"]))})


def _step(data: dict[str, Any]) -> Step:
    records = {name: Slot(*data[name]) for name in ("src", "dst") if name in data}
    tiles = {name: tuple(data[name]) for name in ("needs", "gives") if name in data}
    depends = tuple((threadblock, step) for threadblock, step in data.get("depends", ()))
    return Step(**data | records | tiles | {"depends": depends})
