"""What a program moves between ranks: it is run on names of chunks instead of numbers."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from taccl.errors import InputError
from taccl.program.execution import execute, rank_memory
from taccl.program.layout import contributions, layout
from taccl.program.matching import parcels_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from taccl.program.program import Program, Queue, StepAddress

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
    contents: list[Contributions]
    chunks: list[int]
    receivers: list[StepAddress]


def trace(program: Program) -> list[TracedMessage]:
    """What every sending step of a correct program (`taccl.interpret`) sends, in an order that it allows.

    Raises `InputError` if the program does not say what it is for, or sends what is no chunk and no sum of
    one.
    """
    collective = program.collective
    if collective is None:
        raise InputError(
            "it does not say which collective it is for; read it with collective=...", where=program.name
        )
    memory = [
        rank_memory(program, r, where, lambda rows: np.full((rows, 1), _Content(), dtype=object))
        for r, where in enumerate(layout(collective))
    ]
    for rank, where in enumerate(layout(collective)):
        for index, chunk in enumerate(where.inputs):
            memory[rank].input[index, 0] = _Content([(rank if collective.combining else -1, chunk)])
    contents: dict[StepAddress, list[NDArray[Any]]] = {}
    execution = execute(program, memory, sent=contents)
    assert execution.stuck is None, "a program is traced once it was interpreted"
    receivers: dict[StepAddress, list[StepAddress]] = defaultdict(list)
    for parcel in parcels_of(program):
        receivers[parcel.send] += [parcel.receive] * parcel.chunks
    derived: dict[Contributions, int] = {
        _Content((rank if collective.combining else -1, part) for rank, part in parts): chunk
        for chunk, parts in enumerate(contributions(collective) if collective.derivations else ())
    }
    places: Counter[Queue] = Counter()
    sent: list[TracedMessage] = []
    for address in execution.done:
        queue = program.threadblock(address).sends_into(address.rank)
        if address not in contents or queue is None:
            continue
        held = [value[0] for value in contents[address]]
        chunks = [_chunk(each, derived, address) for each in held]
        sent.append(TracedMessage(address, queue, places[queue], held, chunks, receivers[address]))
        places[queue] += 1
    return sent


class _Content(Contributions):
    """What is in a slot, which a program adds up as if it were a number."""

    __slots__ = ()

    def __add__(self, other: Contributions) -> _Content:
        return _Content(self | other)


def _chunk(content: Contributions, derived: Mapping[Contributions, int], step: StepAddress) -> int:
    """The chunk that contributions belong to."""
    chunk = derived.get(content)
    if not derived and len({c for _, c in content}) == 1:
        chunk = next(iter(content))[1]
    if chunk is None:
        raise InputError(
            f"{step} sends what is no chunk of the collective, and no sum of contributions to one; only "
            "chunks are scheduled",
            where="program",
        )
    return chunk
