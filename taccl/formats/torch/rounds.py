"""Divide messages of a program into the fewest rounds, with one message per round and pair of ranks.

A *value* is the content of a chunk at a rank: an input, a chunk that arrived, or a sum of two values. A value
is sent in the first round after the one that completes it, so no order of messages needs fewer rounds. Sums
are local and take no round. Copies within a rank make no value: they only rename one.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from taccl._internal.names import listed
from taccl.errors import ExportError
from taccl.problem.collective import Collective
from taccl.problem.collectives import arguments_of, make
from taccl.program.checks import check_runnable
from taccl.program.execution import running_order
from taccl.program.layout import RankLayout, layout
from taccl.program.program import OPERATIONS, Program, Queue, Slot

#: {collective: names of its PyTorch methods}; a method that PyTorch 2.13 renamed has both names.
METHODS = {
    "allreduce": ("all_reduce",),
    "allgather": ("all_gather_into_tensor", "all_gather_single"),
    "reduce-scatter": ("reduce_scatter_tensor", "reduce_scatter_single"),
    "alltoall": ("all_to_all_single",), "broadcast": ("broadcast",), "reduce": ("reduce",),
    "gather": ("gather",), "scatter": ("scatter",),
}  # fmt: skip
#: Round in which outputs are read: after every other round.
AT_THE_END = 2**62


class Call(NamedTuple):
    """A collective in PyTorch's terms: its name, chunks per block, and root.

    - `name`: Name in taccl, e.g. ``"reduce-scatter"``.
    - `parts`: Number of chunks in a block, which is one rank's part of the data, or all of it (as in a
      broadcast).
    - `root`: Rank that has the data or gets it; None for a collective without one.
    """

    name: str
    parts: int
    root: int | None


@dataclass(eq=False, slots=True)
class Value:
    """Content of a chunk at a rank: an input, a received copy, or a sum of two values.

    - `contributors`: Ranks whose contributions it contains, as bits.
    - `round`: First round in which it can be sent.
    - `summands`: The two values that it is the sum of; empty otherwise.
    - `source`: The value at the sender of which this one is the copy that arrived; None if it did not arrive.
    - `input_slot`: Its slot in the input buffer; -1 if it is not an input.
    - `output_slot`: Slot of the output buffer that it must end in; -1 if it is not an output.
    - `number`: Position in order of creation.
    - `turn`: Position of a sum among the sums of its round and rank, from 1; 0 for other values.
    - `last_read`: Last (round, turn) that reads it. The turn of messages is -1, before all sums.
    """

    rank: int
    chunk: int
    contributors: int
    round: int
    number: int
    summands: tuple[Value, ...] = ()
    source: Value | None = None
    input_slot: int = -1
    output_slot: int = -1
    turn: int = 0
    last_read: tuple[int, int] = (-1, -1)

    def read_at(self, time: tuple[int, int]) -> None:
        """Record that the value is read at `time`, a (round, turn)."""
        self.last_read = max(self.last_read, time)


@dataclass(slots=True)
class Rounds:
    """Messages and sums of a program by round.

    - `arrivals` ({(round, source, destination): values at the destination}): One message each.
    - `sums` ({(round, rank): values}): Sums that are complete after the messages of a round, in order.
    - `outputs` (by rank): Value of each output slot.
    """

    call: Call
    num_rounds: int
    layouts: tuple[RankLayout, ...]
    inputs: list[list[Value]]
    outputs: list[list[Value]]
    arrivals: dict[tuple[int, int, int], list[Value]] = field(default_factory=lambda: defaultdict(list))
    sums: dict[tuple[int, int], list[Value]] = field(default_factory=lambda: defaultdict(list))

    @property
    def volume(self) -> float:
        """Share of the buffer size that the busiest rank of each round moves, summed over rounds."""
        moved: dict[tuple[int, int, str], int] = defaultdict(int)
        for (number, source, destination), values in self.arrivals.items():
            moved[number, source, "send"] += len(values)
            moved[number, destination, "receive"] += len(values)
        busiest: dict[int, int] = defaultdict(int)
        for (number, _, _), count_ in moved.items():
            busiest[number] = max(busiest[number], count_)
        slots = max(max(len(each.inputs), len(each.outputs)) for each in self.layouts)
        return sum(busiest.values()) / slots


def call_of(collective: Collective | None) -> Call:
    """PyTorch's call for a collective; `ExportError` if PyTorch has none."""
    name = "a program of no known collective" if collective is None else collective.name
    if collective is None or name not in METHODS or not collective.num_chunks:
        raise ExportError(f"PyTorch has no method for {name}; choose {', '.join(METHODS)}")
    n, chunks = collective.num_ranks, collective.num_chunks
    blocks = {"alltoall": n * n, "broadcast": 1, "reduce": 1, "allreduce": 1}.get(name, n)
    arguments, parts = arguments_of(collective), chunks // blocks
    if name != "allreduce" and chunks % blocks == 0:
        plain = make(name, n, chunks_per_rank=parts, **arguments)
        fits = _ends(plain) == _ends(collective)
    else:  # an allreduce may cut its data into any number of chunks
        everyone = tuple(range(n))
        fits = name == "allreduce" and set(_ends(collective)) == {(everyone, everyone)}
    if not fits or collective.derivations:
        said = f"this {name} has chunks or ranks that PyTorch's call lacks"
        raise ExportError(f"{said}; export one among all ranks, with as many chunks from each")
    return Call(name, parts, arguments.get("root"))


def _ends(collective: Collective) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(chunk.origins, chunk.destinations) for chunk in collective.chunks]


def rounds_of(program: Program) -> Rounds:
    """Divide a program's messages into rounds, by symbolic execution.

    Raises `ExportError` if PyTorch has no such collective, or the program does not compute it.
    """
    call = call_of(program.collective)
    assert program.collective is not None, "it has a call"
    layouts = layout(program.collective)
    faults = list(check_runnable(program, layouts))
    if faults:
        raise ExportError("\n".join(["the program cannot be executed:", *listed(faults, most=5)]))
    found = _executed(program, program.collective, call, layouts)
    _check(found, program.collective)
    _sort_into_rounds(found)
    return found


def _executed(
    program: Program, collective: Collective, call: Call, layouts: tuple[RankLayout, ...]
) -> Rounds:
    """Execute a program symbolically: inputs and outputs as values, linked to the values they are made of."""
    numbers = count()
    memory: list[dict[Slot, Value]] = []
    inputs: list[list[Value]] = []
    for rank, where in enumerate(layouts):
        mine = 1 << rank if collective.combining else 1
        own = [
            Value(rank, chunk, mine, 0, next(numbers), input_slot=slot)
            for slot, chunk in enumerate(where.inputs)
        ]
        inputs.append(own)
        memory.append({where.place(Slot("input", v.input_slot), in_place=program.in_place): v for v in own})
    under_way: dict[Queue | None, list[Value]] = defaultdict(list)
    for address in running_order(program):
        rank, step, block = address.rank, program.step(address), program.threadblock(address)
        parts, held = OPERATIONS[step.operation], memory[rank]

        def place(slot: Slot, i: int, rank: int = rank) -> Slot:
            slot = Slot(slot.buffer, slot.offset + i)
            return layouts[rank].place(slot, in_place=program.in_place)

        def read(slot: Slot, held: dict[Slot, Value] = held, address: object = address) -> Value:
            if slot not in held:
                raise ExportError(f"{address} reads {slot}, which is empty; correct the program")
            return held[slot]

        for i in range(step.count):
            value: Value | None = None
            if parts.receives:
                sent = under_way[block.receives_from(rank)].pop(0)
                after = sent.round + 1
                value = Value(rank, sent.chunk, sent.contributors, after, next(numbers), source=sent)
            if parts.reads and step.src is not None:
                own_value = read(place(step.src, i))
                value = own_value if value is None else _sum(own_value, value, next(numbers))
            if parts.writes and step.dst is not None and value is not None:
                at = place(step.dst, i)
                held[at] = _sum(read(at), value, next(numbers)) if step.operation == "reduce" else value
            if parts.sends and value is not None:
                under_way[block.sends_into(rank)].append(value)
    outputs = []
    for rank, where in enumerate(layouts):
        places = (
            where.place(Slot("output", i), in_place=program.in_place) for i in range(len(where.outputs))
        )
        found = [memory[rank].get(each) for each in places]
        if None in found:
            raise ExportError(
                f"output[{found.index(None)}] of rank {rank} is never written; correct the program"
            )
        outputs.append([each for each in found if each is not None])
    return Rounds(call, 0, layouts, inputs, outputs)


def _sum(a: Value, b: Value, number: int) -> Value:
    if a.chunk != b.chunk or a.contributors & b.contributors:
        said = f"rank {a.rank} adds chunk {b.chunk} to chunk {a.chunk}, or contributions twice"
        raise ExportError(f"{said}; correct the program")
    return Value(
        a.rank, a.chunk, a.contributors | b.contributors, max(a.round, b.round), number, summands=(a, b)
    )


def _check(found: Rounds, collective: Collective) -> None:
    """Set the output slot of every output value; raise `ExportError` for a value with wrong content."""
    for rank, (where, values) in enumerate(zip(found.layouts, found.outputs, strict=True)):
        for slot, (chunk, value) in enumerate(zip(where.outputs, values, strict=True)):
            wanted = sum(1 << r for r in collective.chunks[chunk].origins) if collective.combining else 1
            if (value.chunk, value.contributors) != (chunk, wanted):
                said = f"output[{slot}] of rank {rank} does not end with chunk {chunk}"
                raise ExportError(f"{said}, or lacks contributions; correct the program")
            value.output_slot = slot


def _sort_into_rounds(found: Rounds) -> None:
    """Fill `arrivals` and `sums` with every value that an output depends on; record when each is read."""
    needed: dict[int, Value] = {}
    pending = [value for values in found.outputs for value in values]
    while pending:
        value = pending.pop()
        if value.number not in needed:
            needed[value.number] = value
            pending += [*value.summands, *(() if value.source is None else (value.source,))]
    for number in sorted(needed):
        value = needed[number]
        if value.source is not None:
            found.arrivals[value.round - 1, value.source.rank, value.rank].append(value)
            value.source.read_at((value.round - 1, -1))
        elif value.summands:
            found.sums[value.round - 1, value.rank].append(value)
    for values in found.sums.values():
        _take_turns(values)
    for values in found.outputs:
        for value in values:
            value.read_at((AT_THE_END, 0))
    found.num_rounds = max((r + 1 for r, _, _ in found.arrivals), default=0)


def _take_turns(values: list[Value]) -> None:
    """Sort the sums of one round and rank by dependency depth, then by chunk.

    Sums of neighbouring chunks can then be computed in one operation.
    """
    depth: dict[int, int] = {}
    for value in values:  # summands come first, as their numbers are lower
        depth[value.number] = 1 + max(depth.get(each.number, 0) for each in value.summands)
    values.sort(key=lambda value: (depth[value.number], value.chunk))
    for turn, value in enumerate(values, 1):
        value.turn = turn
        for each in value.summands:
            each.read_at((value.round - 1, turn))
