"""Which send each receive takes its chunks from, and one order in which all steps of a program can run."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from taccl.errors import InputError
from taccl.program.checks import check_queues, check_steps, traffic
from taccl.program.program import Program, Queue, StepAddress


class Parcel(NamedTuple):
    """Neighbouring chunks that one step sends and one step receives."""

    queue: Queue
    send: StepAddress
    receive: StepAddress
    chunks: int


def match(program: Program) -> tuple[Parcel, ...]:
    """Every parcel, by queue and in the order in which it goes through it."""
    for fault in (*check_steps(program), *check_queues(program)):
        raise InputError(f"{fault}; interpret the program for all of its faults", where="program")
    return tuple(parcels_of(program))


def parcels_of(program: Program) -> Iterator[Parcel]:
    """The same of any program, as far as what is sent is received."""
    sent, received = traffic(program)
    for queue in sorted(sent):
        for (send, step), (receive, _) in zip(sent[queue], received[queue], strict=False):
            yield Parcel(queue, send, receive, step.count)


def running_order(
    program: Program, parcels: Sequence[Parcel], *, room: int | None = None
) -> list[StepAddress]:
    """All steps in an order that dependencies and messages allow.

    - `room`: Parcels that a queue holds; default: all that are sent.
    """
    takes: dict[StepAddress, list[StepAddress]] = defaultdict(list)
    queues: dict[Queue, list[Parcel]] = defaultdict(list)
    for parcel in parcels:
        takes[parcel.receive].append(parcel.send)
        queues[parcel.queue].append(parcel)
        if room is not None and len(queues[parcel.queue]) > room:
            takes[parcel.send].append(queues[parcel.queue][-1 - room].receive)
    threadblocks = dict(program.threadblocks())
    position = dict.fromkeys(threadblocks, 0)
    waiting: dict[StepAddress, list[tuple[int, int]]] = defaultdict(list)
    ready = deque(position)
    order: list[StepAddress] = []
    while ready:
        r, t = block = ready.popleft()
        steps = threadblocks[block].steps
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
