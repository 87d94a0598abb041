"""Progress engine of one rank: runs its threadblocks in turn, with MPI messages for its queues.

A step sends its chunks in messages, each with as many chunks as fit at this size (`taccl.program.checks`).
The tag of a message is its channel.

A queue holds the messages that were sent and not yet received: a synchronous send completes once its receive
has begun. Their number is limited as by the protocol, so a program blocks here exactly where it blocks in the
interpreter.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.program.program import OPERATIONS, PROTOCOLS, Program, Slot, StepAddress
from taccl.runtime.buffers import RankMemory
from taccl.runtime.report import Wait

#: Max seconds to sleep while nothing progresses, so that a message is noticed soon.
_LONGEST_SLEEP_S = 1e-3
#: Seconds by which the sleep grows at each poll while nothing progresses; long compared with a poll.
_SLEEP_STEP_S = 2e-5
#: Polls without a sleep, if every rank has a core of its own.
_EAGER_POLLS = 2000
#: Polls between two readings of the clock, while nothing progresses.
_CLOCK_EVERY = 32


class Stuck(NamedTuple):
    """The waiting steps at the timeout, and the time since the last step ended."""

    waits: list[Wait]
    idle_s: float


class Engine:
    """Progress engine, which executes the threadblocks of one rank on the rank's buffers.

    - `communicator`: Communicator of the program's ranks, used for no other messages meanwhile.
    - `chunks`: Max chunks of a message.
    - `crowded`: True if ranks share cores, so that a waiting rank must yield its core.
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
        # State by threadblock: current step, receive under way, and sends in flight, oldest first.
        # Buffers by threadblock: `landing` for received data to be added, `leaving` for data to send.
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
        """Run all threadblocks to their ends; return the waiting steps if time runs out first, else None."""
        self.position = [0] * len(self.blocks)
        running = {t: self._run(t) for t in range(len(self.blocks))}
        began = moved_at = time.perf_counter()
        polls = 0
        while running:
            num_done = sum(self.position)
            waits = {t: next(block, "") for t, block in running.items()}
            running = {t: block for t, block in running.items() if waits[t]}
            moved = sum(self.position) > num_done
            polls = 0 if moved else polls + 1
            if polls % _CLOCK_EVERY == 0:
                now = time.perf_counter()
                moved_at = now if moved else moved_at
                if running and now - began > timeout_s:
                    return Stuck([self._wait(t, waits[t]) for t in running], now - moved_at)
            if not moved:
                self._pause(polls)
        return None

    def abandon(self) -> None:
        """Clean up after a timeout: cancel open receives, and discard the messages in flight.

        All ranks must call it.
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
        """View of `count` chunks, the first of them `begin` chunks after `slot`; None if `slot` is None."""
        if slot is None:
            return None
        buffer: NDArray[Any] = getattr(self.memory, slot.buffer)
        return buffer[slot.offset + begin : slot.offset + begin + count]

    def _run(self, t: int) -> Iterator[str]:
        """Run a threadblock; while it waits, yield the reason at every poll."""
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
        if s == len(steps):  # all steps are done, but the last send is not received
            s = max(i for i, step in enumerate(steps) if OPERATIONS[step.operation].sends)
        return Wait(StepAddress(self.rank, t, s), str(steps[s]), reason)

    def _pause(self, polls: int) -> None:
        """Yield the core, or sleep: the longer nothing has progressed, the longer the sleep."""
        if not self.crowded and polls < _EAGER_POLLS:
            return
        if polls <= 4 and hasattr(os, "sched_yield"):
            os.sched_yield()
        else:
            time.sleep(min(_LONGEST_SLEEP_S, _SLEEP_STEP_S * polls))
