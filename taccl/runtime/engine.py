"""The progress engine of one rank: its threadblocks in turns, its queues as MPI messages.

A step's chunks travel as messages of as many as fit into one at the size (`taccl.program.checks`), tagged
with its channel.

A queue holds the messages that its sender has copied out and its receiver has not received: a synchronous
send is done once its receive has begun. Their number is at most the protocol's, so a program waits here
exactly where it waits in the interpreter.
"""

from __future__ import annotations

import os
import time
from collections import deque
from itertools import cycle
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from taccl.program.program import OPERATIONS, PROTOCOLS, StepAddress
from taccl.runtime.report import Wait

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from taccl.program.program import Program, Slot
    from taccl.runtime.buffers import RankMemory

#: How long to sleep where nothing moves, at most: little beside a message, and much beside a look around.
_LONGEST_SLEEP_S = 1e-3
_SHORTEST_SLEEP_S = 2e-5
#: Looks around without a sleep, where every rank has a core of its own.
_EAGER_LOOKS = 2000
#: Looks around between two at the clock, where nothing moves.
_CLOCK_EVERY = 32


class Stuck(NamedTuple):
    """The waiting steps at the timeout, and the time since the last step ended."""

    waits: list[Wait]
    idle_s: float


class Engine:
    """Engine of one rank, on its memory.

    - `communicator`: Its ranks are the program's; no other messages of theirs go over it meanwhile.
    - `chunks`: Chunks that one message carries at most.
    - `crowded`: Whether ranks share cores, so that waiting must leave them to others.
    """

    def __init__(
        self,
        program: Program,
        rank: int,
        memory: RankMemory,
        communicator: Any,
        *,
        chunks: int,
        crowded: bool,
    ) -> None:
        self.chunks = chunks
        self.rank, self.memory, self.communicator, self.crowded = rank, memory, communicator, crowded
        self.capacity, self.blocks = PROTOCOLS[program.protocol], program.ranks[rank].threadblocks
        # State by threadblock: its present step, its receive under way, and its sends in flight, the oldest
        # first. Rows are buffers for received data to be added, and for data to send.
        self.position = [0] * len(self.blocks)
        self.receiving: list[Any] = [None] * len(self.blocks)
        self.sending: list[deque[Any]] = [deque() for _ in self.blocks]
        self.landing, self.leaving = [], []
        for block in self.blocks:
            steps = [(OPERATIONS[step.operation], step.count) for step in block.steps]
            most = min(max((count for _, count in steps), default=0), chunks)
            self.landing.append(self._rows(most * any(each.receives and each.reads for each, _ in steps)))
            num_slots = self.capacity * any(each.sends for each, _ in steps)
            self.leaving.append([self._rows(most) for _ in range(num_slots)])

    def run(self, timeout_s: float) -> Stuck | None:
        """Run every threadblock to its end; what waits, if they are not done in time."""
        self.position = [0] * len(self.blocks)
        running = {t: self._run(t) for t in range(len(self.blocks))}
        began = moved_at = time.perf_counter()
        looks = 0
        while running:
            num_done = sum(self.position)
            waits = {t: next(block, "") for t, block in running.items()}
            running = {t: block for t, block in running.items() if waits[t]}
            moved = sum(self.position) > num_done
            looks = 0 if moved else looks + 1
            if looks % _CLOCK_EVERY == 0:
                now = time.perf_counter()
                moved_at = now if moved else moved_at
                if running and now - began > timeout_s:
                    return Stuck([self._wait(t, waits[t]) for t in running], now - moved_at)
            if not moved:
                self._pause(looks)
        return None

    def abandon(self) -> None:
        """Cancel the receives without a send; collective over all ranks, after a run that was not done.

        Whatever was sent and not received is received into the void, so that MPI has nothing left to do.
        """
        for request in filter(None, self.receiving):
            request.Cancel()
            request.Wait()
        self.receiving = [None] * len(self.blocks)
        everyone_sent: Any = None
        while everyone_sent is None or not everyone_sent.Test():
            self._receive_into_the_void()
            is_done = [self._has_room(t, self.capacity) for t in range(len(self.blocks))]
            if everyone_sent is None and all(is_done):
                everyone_sent = self.communicator.Ibarrier()
            time.sleep(_LONGEST_SLEEP_S)

    def _receive_into_the_void(self) -> None:
        from mpi4py import MPI

        status = MPI.Status()
        while self.communicator.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG, status):
            void = bytearray(status.Get_count(MPI.BYTE))
            self.communicator.Recv([void, MPI.BYTE], status.source, status.tag)

    def _rows(self, count: int) -> NDArray[Any]:
        return np.empty((count, self.memory.input.shape[1]), self.memory.input.dtype)

    def _view(self, slot: Slot | None, begin: int, count: int) -> NDArray[Any] | None:
        """Memory of `count` chunks, from `begin` chunks behind a slot."""
        if slot is None:
            return None
        buffer: NDArray[Any] = getattr(self.memory, slot.buffer)
        return buffer[slot.offset + begin : slot.offset + begin + count]

    def _run(self, t: int) -> Iterator[str]:
        """Run a threadblock; yields what it waits for, for as long as that is not there."""
        block, landing, leaving = self.blocks[t], self.landing[t], cycle(self.leaving[t])
        chunk, into = f"a chunk {block.receives_from(self.rank)}", block.sends_into(self.rank)
        for step in block.steps:
            parts, count = OPERATIONS[step.operation], step.count
            for other, index in step.depends:
                while self.position[other] <= index:
                    yield f"{StepAddress(self.rank, other, index)}, on which it depends"
            for begin in range(0, max(count, 1), self.chunks):
                piece = min(self.chunks, count - begin)
                src, dst = (self._view(each, begin, piece) for each in (step.src, step.dst))
                while parts.sends and not self._has_room(t, 1):
                    yield f"room {into}"
                if parts.receives:
                    target = landing[:piece] if parts.reads else dst
                    receiving = self.communicator.Irecv(target, block.receive_from, block.channel)
                    self.receiving[t] = receiving
                    while not receiving.Test():
                        yield chunk
                    self.receiving[t] = None
                slot = next(leaving)[:piece] if parts.sends else None
                result = dst if parts.writes else slot
                if result is not None and src is not None:
                    if parts.receives and parts.reads:
                        np.add(landing[:piece], src, out=result)
                    elif step.operation == "reduce":
                        result += src
                    elif parts.reads:
                        result[...] = src
                if slot is not None:
                    if parts.writes:
                        slot[...] = dst
                    self.sending[t].append(self.communicator.Issend(slot, block.send_to, block.channel))
            self.position[t] += 1
        while not self._has_room(t, self.capacity):
            yield f"what was sent to be received {into}"

    def _has_room(self, t: int, wanted: int) -> bool:
        """True if the queue that a threadblock sends into has room for `wanted` messages."""
        sending = self.sending[t]
        while sending and sending[0].Test():
            sending.popleft()
        return self.capacity - len(sending) >= wanted

    def _wait(self, t: int, reason: str) -> Wait:
        steps, s = self.blocks[t].steps, self.position[t]
        if s == len(steps):  # all is done but what its last send waits for
            s = max(i for i, step in enumerate(steps) if OPERATIONS[step.operation].sends)
        return Wait(StepAddress(self.rank, t, s), str(steps[s]), reason)

    def _pause(self, looks: int) -> None:
        """Leave the core to others, the longer the longer nothing has moved."""
        if not self.crowded and looks < _EAGER_LOOKS:
            return
        if looks <= 4 and hasattr(os, "sched_yield"):
            os.sched_yield()
        else:
            time.sleep(min(_LONGEST_SLEEP_S, _SHORTEST_SLEEP_S * looks))
