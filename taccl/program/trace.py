"""What a program moves between ranks: it is run on names of chunks instead of numbers."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from taccl.errors import InputError
from taccl.program.checks import Queue
from taccl.program.execution import allocate_memory, execute
from taccl.program.layout import layout
from taccl.program.program import OPERATIONS, Slot

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.collective import Collective
    from taccl.program.program import Program, StepAddress

__all__ = ["Contributions", "TracedMessage", "trace"]

#: What a slot holds: whose contribution to which chunk; of what is not added up, -1 for whoever had it.
Contributions = frozenset[tuple[int, int]]


@dataclass(eq=False, slots=True)
class TracedMessage:
    """What one step sends: its chunks, what is in each, and the steps that receive them, one by one.

    `place` counts what went through the queue before it.
    """

    step: StepAddress
    queue: Queue
    place: int
    contents: list[Contributions] = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)
    receivers: list[StepAddress] = field(default_factory=list)


def trace(program: Program) -> list[TracedMessage]:
    """What every sending step of a correct program (`taccl.interpret`) sends, in an order that it allows.

    Raises
    ------
    InputError
        If the program does not say what it is for, or sends what is no chunk and no sum of one.
    """
    collective = program.collective
    if collective is None:
        raise InputError(
            "it does not say which collective it is for; read it with collective=...", where=program.name
        )
    layouts = layout(collective)
    name_of = _Names(collective)

    def fill(rows: int, _rank: int) -> NDArray[np.int8]:
        return np.zeros((rows, 1), dtype=np.int8)

    execution = execute(program, allocate_memory(program, layouts, fill))
    assert execution.stuck is None, "a program is traced once it was interpreted"
    held: list[dict[tuple[str, int], Contributions]] = [{} for _ in program.ranks]
    for rank, where in enumerate(layouts):
        for index, chunk in enumerate(where.inputs):
            mine = frozenset(((rank if collective.combining else -1, chunk),))
            held[rank][execution.memory[rank].place(Slot("input", index))] = mine
    queues: dict[Queue, deque[tuple[Contributions, TracedMessage]]] = defaultdict(deque)
    places: dict[Queue, int] = defaultdict(int)
    sent: list[TracedMessage] = []
    for address in execution.done:
        rank, t, s = address
        threadblock = program.ranks[rank].threadblocks[t]
        step = threadblock.steps[s]
        parts, memory, mine_of = OPERATIONS[step.operation], execution.memory[rank], held[rank]
        source, target = (
            -1 if peer is None else peer for peer in (threadblock.receive_from, threadblock.send_to)
        )
        incoming = Queue(source, rank, threadblock.channel)
        outgoing = Queue(rank, target, threadblock.channel)
        if parts.sends:
            sent.append(TracedMessage(address, outgoing, places[outgoing]))
            places[outgoing] += 1
        for i in range(step.count if step.operation != "nop" else 0):
            value: Contributions = frozenset()
            if parts.receives:
                value, message = queues[incoming].popleft()
                message.receivers.append(address)
            if parts.reads and step.src is not None:
                place = memory.place(Slot(step.src.buffer, step.src.offset + i))
                value = value | mine_of.get(place, frozenset())
            if parts.writes and step.dst is not None:
                place = memory.place(Slot(step.dst.buffer, step.dst.offset + i))
                before = mine_of.get(place, frozenset()) if step.operation == "reduce" else frozenset()
                mine_of[place] = before | value
            if parts.sends:
                sent[-1].contents.append(value)
                sent[-1].chunks.append(name_of.chunk(value, address))
                queues[outgoing].append((value, sent[-1]))
    return sent


class _Names:
    """Which chunk contributions belong to."""

    def __init__(self, collective: Collective) -> None:
        self.derived: dict[Contributions, int] = {}
        for each in collective.derivations:  # each after the one that it is made from
            source = collective.chunks[each.source].origins
            before = next((whole for whole, c in self.derived.items() if c == each.source), None)
            if before is None:
                ranks = source if collective.combining else (-1,)
                before = frozenset((rank, each.source) for rank in ranks)
                self.derived[before] = each.source
            self.derived[before | {(each.rank if collective.combining else -1, each.chunk)}] = each.chunk

    def chunk(self, value: Contributions, step: StepAddress) -> int:
        chunk = self.derived.get(value, -1) if self.derived else -1
        if not self.derived and len({c for _, c in value}) == 1:
            chunk = next(iter(value))[1]
        if chunk < 0:
            raise InputError(
                f"{step} sends what is no chunk of the collective, and no sum of contributions to one; only "
                "chunks are scheduled",
                where="program",
            )
        return chunk
