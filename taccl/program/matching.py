"""Which send each receive takes its chunks from, and one order in which all steps of a program can run."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING, NamedTuple

from taccl.errors import InputError
from taccl.program.checks import Queue, check_queues, check_steps
from taccl.program.program import OPERATIONS, StepAddress

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from taccl.program.program import Program

__all__ = ["Parcel", "match", "running_order"]


class Parcel(NamedTuple):
    """Neighbouring chunks that one step sends and one step receives; offsets are chunks within the steps."""

    queue: Queue
    send: StepAddress
    receive: StepAddress
    send_offset: int
    receive_offset: int
    chunks: int


def match(program: Program) -> tuple[Parcel, ...]:
    """Every parcel, by queue and in the order in which it goes through it.

    Where a send and its receive are of equally many chunks they are one parcel.

    Raises
    ------
    InputError
        If a step cannot run, a queue is shared, or more is sent than received, or the reverse.
    """
    for fault in (*check_steps(program), *check_queues(program)):
        raise InputError(f"{fault}; interpret the program for all of its faults", where="program")
    sends: dict[Queue, list[tuple[StepAddress, int]]] = defaultdict(list)
    receives: dict[Queue, list[tuple[StepAddress, int]]] = defaultdict(list)
    for address, step in program.steps():
        threadblock = program.ranks[address.rank].threadblocks[address.threadblock]
        parts = OPERATIONS[step.operation]
        if parts.sends and threadblock.send_to is not None:
            sends[Queue(address.rank, threadblock.send_to, threadblock.channel)].append((address, step.count))
        if parts.receives and threadblock.receive_from is not None:
            queue = Queue(threadblock.receive_from, address.rank, threadblock.channel)
            receives[queue].append((address, step.count))
    return tuple(parcel for queue in sorted(sends) for parcel in _zip(queue, sends[queue], receives[queue]))


def _zip(
    queue: Queue, sends: Sequence[tuple[StepAddress, int]], receives: Sequence[tuple[StepAddress, int]]
) -> Iterator[Parcel]:
    arriving = iter(receives)
    receive, wanted, taken = None, 0, 0
    for send, count in sends:
        given = 0
        while given < count:
            if receive is None or taken == wanted:
                (receive, wanted), taken = next(arriving), 0
            piece = min(count - given, wanted - taken)
            yield Parcel(queue, send, receive, given, taken, piece)
            given, taken = given + piece, taken + piece


def running_order(
    program: Program, parcels: Sequence[Parcel], *, room: int | None = None
) -> list[StepAddress]:
    """All steps in an order that dependencies and messages allow.

    Parameters
    ----------
    room : int, optional
        Parcels that a queue holds; default: all that are sent.

    Raises
    ------
    InputError
        If steps wait for each other.
    """
    takes: dict[StepAddress, list[StepAddress]] = defaultdict(list)
    queues: dict[Queue, list[Parcel]] = defaultdict(list)
    for parcel in parcels:
        takes[parcel.receive].append(parcel.send)
        queues[parcel.queue].append(parcel)
        if room is not None and len(queues[parcel.queue]) > room:
            makes_room = queues[parcel.queue][-1 - room]
            if makes_room.send != parcel.send:
                takes[parcel.send].append(makes_room.receive)
    position = {(r, t): 0 for r, rank in enumerate(program.ranks) for t in range(len(rank.threadblocks))}
    waiting: dict[StepAddress, list[tuple[int, int]]] = defaultdict(list)
    ready = deque(position)
    order: list[StepAddress] = []
    while ready:
        r, t = block = ready.popleft()
        steps = program.ranks[r].threadblocks[t].steps
        woken: list[tuple[int, int]] = []
        while position[block] < len(steps) and not woken:
            address = StepAddress(r, t, position[block])
            before = [StepAddress(r, *each) for each in steps[address.step].depends] + takes[address]
            awaited = next((each for each in before if position[each[:2]] <= each.step), None)
            if awaited is not None:
                waiting[awaited].append(block)
                break
            order.append(address)
            position[block] += 1
            woken = waiting.pop(address, [])
        if woken:
            # Those that were waiting come first, then the rest of this threadblock.
            ready.extendleft([block, *woken])
    if len(order) < program.num_steps:
        raise InputError(
            "steps of the program wait for each other; interpret it to see which", where="program"
        )
    return order
