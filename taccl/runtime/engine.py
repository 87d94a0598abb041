"""The progress engine of one rank: its threadblocks in turns, its queues as MPI messages.

A step's chunks travel as one message, tagged with its channel.

A queue holds what its sender has copied out and its receiver has not taken yet: a synchronous send is done
once its receive has begun. There are never more of them than the protocol has room for, so a program waits
here where it waits in the interpreter, and nowhere else: a message of several chunks asks for less room than
its chunks one by one.
"""

from __future__ import annotations

import os
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from taccl.program.program import OPERATIONS, PROTOCOLS, OperationParts, StepAddress
from taccl.runtime.report import Wait

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.program.program import Program, Slot, Step, Threadblock
    from taccl.runtime.buffers import RankMemory

#: How long to sleep where nothing moves, at most: little beside a message, and much beside a look around.
_LONGEST_SLEEP_S = 1e-3
_SHORTEST_SLEEP_S = 2e-5
#: Looks around without a sleep, where every rank has a core of its own.
_EAGER_LOOKS = 2000
#: Looks around between two at the clock, where nothing moves.
_CLOCK_EVERY = 32


class Stuck(NamedTuple):
    """What waited when the time was up, and for how long no step had ended."""

    waits: list[Wait]
    idle_s: float


class _BoundStep(NamedTuple):
    """A step with the memory that it touches."""

    step: Step
    parts: OperationParts
    src: NDArray[Any] | None
    dst: NDArray[Any] | None


@dataclass(slots=True)
class _Block:
    """A threadblock: its moves, where it is, and what it has under way."""

    t: int
    threadblock: Threadblock
    moves: list[_BoundStep]
    landing: NDArray[Any]
    slots: list[NDArray[Any]]
    position: int = 0
    receiving: Any = None
    #: Sends that are not taken yet, the oldest first.
    sending: deque[Any] = field(default_factory=deque)
    num_sent: int = 0


class Engine:
    """What one rank runs, on its memory.

    - `communicator`: Its ranks are the program's; no other messages of theirs go over it meanwhile.
    - `crowded`: Whether ranks share cores, so that waiting must leave them to others.
    """

    def __init__(
        self, program: Program, rank: int, memory: RankMemory, communicator: Any, *, crowded: bool
    ) -> None:
        self.rank, self.memory, self.communicator, self.crowded = rank, memory, communicator, crowded
        self.capacity = PROTOCOLS[program.protocol]
        self.blocks: list[_Block] = []
        for t, threadblock in enumerate(program.ranks[rank].threadblocks):
            moves = [self._move(step) for step in threadblock.steps]
            landing = max((m.step.count for m in moves if m.parts.receives and m.parts.reads), default=0)
            leaving = max((m.step.count for m in moves if m.parts.sends), default=0)
            slots = [self._rows(leaving) for _ in range(self.capacity if leaving else 0)]
            self.blocks.append(_Block(t, threadblock, moves, self._rows(landing), slots))

    def run(self, timeout_s: float) -> Stuck | None:
        """Run every threadblock to its end; what waits, if they are not done in time."""
        for block in self.blocks:
            block.position = block.num_sent = 0
        active = list(self.blocks)
        began = moved_at = time.perf_counter()
        looks = 0
        while active:
            moved = any([self._advance(block) for block in active])
            looks = 0 if moved else looks + 1
            if looks % _CLOCK_EVERY == 0:
                now = time.perf_counter()
                moved_at = now if moved else moved_at
                if now - began > timeout_s:
                    return Stuck([self._wait(block) for block in active], now - moved_at)
            if not moved:
                self._pause(looks)
            active = [block for block in active if not self._is_done(block)]
        return None

    def abandon(self) -> None:
        """Take back the receives that nobody has sent for; for all ranks together, once a run was not done.

        Whatever was sent and not received is received into the void, so that MPI has nothing left to do.
        """
        for block in self.blocks:
            if block.receiving is not None:
                block.receiving.Cancel()
                block.receiving.Wait()
                block.receiving = None
        everyone_sent: Any = None
        while everyone_sent is None or not everyone_sent.Test():
            self._receive_into_the_void()
            for block in self.blocks:
                self._has_room(block, 1)
            if everyone_sent is None and not any(block.sending for block in self.blocks):
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

    def _move(self, step: Step) -> _BoundStep:
        def view(slot: Slot | None) -> NDArray[Any] | None:
            if slot is None:
                return None
            buffer: NDArray[Any] = getattr(self.memory, slot.buffer)
            return buffer[slot.offset : slot.offset + step.count]

        return _BoundStep(step, OPERATIONS[step.operation], view(step.src), view(step.dst))

    def _is_done(self, block: _Block) -> bool:
        return block.position == len(block.moves) and self._has_room(block, self.capacity)

    def _advance(self, block: _Block) -> bool:
        """Move a threadblock on until it has to wait; whether it moved at all."""
        moved = False
        while block.position < len(block.moves):
            move = block.moves[block.position]
            if block.receiving is None:
                if self._awaited(move) is not None or (move.parts.sends and not self._has_room(block, 1)):
                    return moved
                if move.parts.receives:
                    target = block.landing[: move.step.count] if move.parts.reads else move.dst
                    source, tag = block.threadblock.receive_from, block.threadblock.channel
                    block.receiving = self.communicator.Irecv(target, source, tag)
            if block.receiving is not None:
                if not block.receiving.Test():
                    return moved
                block.receiving = None
            self._finish(block, move)
            moved = True
        return moved

    def _awaited(self, move: _BoundStep) -> tuple[int, int] | None:
        for t, s in move.step.depends:
            if self.blocks[t].position <= s:
                return t, s
        return None

    def _has_room(self, block: _Block, wanted: int) -> bool:
        """Whether the queue that a threadblock sends into has room for so many messages."""
        while block.sending and block.sending[0].Test():
            block.sending.popleft()
        return self.capacity - len(block.sending) >= wanted

    def _finish(self, block: _Block, move: _BoundStep) -> None:
        """Do a move for which everything is there."""
        step, parts, src, dst = move
        slot = block.slots[block.num_sent % self.capacity][: step.count] if parts.sends else None
        result = dst if parts.writes else slot
        if result is not None and src is not None:
            if parts.receives and parts.reads:
                np.add(block.landing[: step.count], src, out=result)
            elif step.operation == "reduce":
                result += src
            elif parts.reads:
                result[...] = src
        if slot is not None:
            if parts.writes:
                slot[...] = dst
            target, tag = block.threadblock.send_to, block.threadblock.channel
            block.sending.append(self.communicator.Issend(slot, target, tag))
            block.num_sent += 1
        block.position += 1

    def _wait(self, block: _Block) -> Wait:
        sends = block.threadblock.sends_into(self.rank)
        if block.position == len(block.moves):
            s = max(s for s, move in enumerate(block.moves) if move.parts.sends)
            reason = f"what was sent to be received {sends}"
        else:
            s, move = block.position, block.moves[block.position]
            awaited = None if block.receiving is not None else self._awaited(move)
            if awaited is not None:
                reason = f"{StepAddress(self.rank, *awaited)}, on which it depends"
            elif move.parts.sends and block.receiving is None:
                reason = f"room {sends}"
            else:
                reason = f"a chunk {block.threadblock.receives_from(self.rank)}"
        return Wait(StepAddress(self.rank, block.t, s), str(block.moves[s].step), reason)

    def _pause(self, looks: int) -> None:
        """Leave the core to others, the longer the longer nothing has moved."""
        if not self.crowded and looks < _EAGER_LOOKS:
            return
        if looks <= 4 and hasattr(os, "sched_yield"):
            os.sched_yield()
        else:
            time.sleep(min(_LONGEST_SLEEP_S, _SHORTEST_SLEEP_S * looks))
