"""Running a program on arrays: threadblocks step by step, with queues that hold so much and no more."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from taccl.program.checks import Fault, queue_ends
from taccl.program.program import OPERATIONS, PROTOCOLS, Block, Program, Queue, Slot, Step, StepAddress
from taccl.units import format_count

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.program.layout import RankLayout


@dataclass(frozen=True, slots=True)
class Memory:
    """One rank's buffers, (slots, elements) each; in place, input and output are views of one array."""

    input: NDArray[Any]
    output: NDArray[Any]
    scratch: NDArray[Any]
    #: Where input and output begin in the user's one array; None where they are two.
    offsets: tuple[int, int] | None

    def row(self, slot: Slot) -> NDArray[Any]:
        """The elements of one slot."""
        row: NDArray[Any] = getattr(self, slot.buffer)[slot.offset]
        return row

    def place(self, slot: Slot) -> tuple[str, int]:
        """One name for one place of memory."""
        if self.offsets is None or slot.buffer == "scratch":
            return slot
        return "user", slot.offset + self.offsets[slot.buffer == "output"]


@dataclass(slots=True)
class ExecutionState:
    """A run in progress, and then what is left of it.

    - `memory`: By rank.
    - `done`: Steps in the order in which they ended, which is one of those that dependencies and queues
      allow.
    - `stuck`: Why it did not run to its end.
    - `sent`: What every step sends, chunk by chunk, if that is asked for.
    """

    memory: list[Memory]
    sent: dict[StepAddress, list[NDArray[Any]]] | None = None
    done: list[StepAddress] = field(default_factory=list)
    stuck: Fault | None = None


def rank_memory(
    program: Program, rank: int, layout: RankLayout | None, rows: Callable[[int], NDArray[Any]]
) -> Memory:
    """Buffers of one rank, made by ``rows(count)``."""
    mine = program.ranks[rank]
    scratch = rows(mine.scratch_chunks)
    if not program.in_place:
        return Memory(rows(mine.input_chunks), rows(mine.output_chunks), scratch, None)
    begin_in, begin_out = (layout.input_offset, layout.output_offset) if layout else (0, 0)
    end_in, end_out = begin_in + mine.input_chunks, begin_out + mine.output_chunks
    whole = rows(max(end_in, end_out))
    return Memory(whole[begin_in:end_in], whole[begin_out:end_out], scratch, (begin_in, begin_out))


def execute(
    program: Program,
    memory: list[Memory],
    *,
    capacity: int | None = None,
    sent: dict[StepAddress, list[NDArray[Any]]] | None = None,
) -> ExecutionState:
    """Run a program whose steps are all sound (`check_steps`) and whose queues have one threadblock an end.

    - `capacity`: Chunks that a queue holds; default: as many as the protocol.
    - `sent`: Gets what every step sends, chunk by chunk.
    """
    return _Machine(program, ExecutionState(memory, sent), capacity or PROTOCOLS[program.protocol]).run()


class _Machine:
    """Threadblocks with the step each is at, and queues with what is in them."""

    def __init__(self, program: Program, execution: ExecutionState, capacity: int) -> None:
        self.execution, self.capacity = execution, capacity
        self.blocks = dict(program.threadblocks())
        self.incoming = {(r, t): threadblock.receives_from(r) for (r, t), threadblock in self.blocks.items()}
        self.outgoing = {(r, t): threadblock.sends_into(r) for (r, t), threadblock in self.blocks.items()}
        self.position: dict[Block, int] = dict.fromkeys(self.blocks, 0)
        self.item: dict[Block, int] = dict.fromkeys(self.blocks, 0)
        self.queues: dict[Queue | None, deque[NDArray[Any]]] = defaultdict(deque)
        senders, receivers = queue_ends(program)
        self.sender: dict[Queue | None, Block] = {queue: blocks[0] for queue, blocks in senders.items()}
        self.receiver: dict[Queue | None, Block] = {queue: blocks[0] for queue, blocks in receivers.items()}
        self.waiting: dict[StepAddress, list[Block]] = defaultdict(list)
        self.ready: deque[Block] = deque(self.blocks)
        self.is_ready = set(self.blocks)

    def run(self) -> ExecutionState:
        while self.ready:
            block = self.ready.popleft()
            self.is_ready.discard(block)
            self._advance(block)
        if any(self.position[block] < len(self.blocks[block].steps) for block in self.blocks):
            self.execution.stuck = self._explain()
        return self.execution

    def _wake(self, block: Block | None) -> None:
        if block is not None and block not in self.is_ready:
            self.is_ready.add(block)
            self.ready.append(block)

    def _advance(self, block: Block) -> None:
        """Run a threadblock until it has to wait."""
        rank, t = block
        steps, incoming, outgoing = self.blocks[block].steps, self.incoming[block], self.outgoing[block]
        while self.position[block] < len(steps):
            s = self.position[block]
            step, address = steps[s], StepAddress(rank, t, s)
            if not self.item[block]:
                awaited = self._awaited(rank, step)
                if awaited is not None:
                    self.waiting[awaited].append(block)
                    return
            parts = OPERATIONS[step.operation]
            while self.item[block] < step.count and step.operation != "nop":
                if parts.receives and not self.queues[incoming]:
                    return
                if parts.sends and len(self.queues[outgoing]) >= self.capacity:
                    return
                self._move(step, address, incoming, outgoing)
                self.item[block] += 1
            self.item[block] = 0
            self.position[block] += 1
            self.execution.done.append(address)
            for other in self.waiting.pop(address, ()):
                self._wake(other)

    def _awaited(self, rank: int, step: Step) -> StepAddress | None:
        for t, s in step.depends:
            if self.position[rank, t] <= s:
                return StepAddress(rank, t, s)
        return None

    def _move(self, step: Step, address: StepAddress, incoming: Queue | None, outgoing: Queue | None) -> None:
        i, memory = self.item[address[:2]], self.execution.memory[address.rank]
        parts = OPERATIONS[step.operation]
        value: NDArray[Any] | None = None
        if parts.receives:
            value = self.queues[incoming].popleft()
            self._wake(self.sender.get(incoming))
        if parts.reads:
            assert step.src is not None
            mine = memory.row(Slot(step.src.buffer, step.src.offset + i))
            value = mine.copy() if value is None else value + mine
        assert value is not None
        if parts.writes:
            assert step.dst is not None
            row = memory.row(Slot(step.dst.buffer, step.dst.offset + i))
            if step.operation == "reduce":
                row += value
            else:
                row[...] = value
        if parts.sends:
            self.queues[outgoing].append(value)
            if self.execution.sent is not None:
                self.execution.sent.setdefault(address, []).append(value)
            self._wake(self.receiver.get(outgoing))

    def _explain(self) -> Fault:
        """The steps that wait for each other, or the one that waits for what never comes."""
        path: list[Block] = []
        block: Block | None = next(b for b in self.blocks if self.position[b] < len(self.blocks[b].steps))
        reasons: dict[Block, str] = {}
        while block is not None and block not in reasons:
            path.append(block)
            follower, reasons[block] = self._waits_for(block)
            block = follower
        if block is None:
            last = path[-1]
            return Fault("deadlock", f"{self._at(last)} {reasons[last]}", (self._at(last),), rank=last[0])
        cycle = path[path.index(block) :]
        first = cycle.index(min(cycle))
        cycle = cycle[first:] + cycle[:first]
        told = "; ".join(f"{self._at(each)} {reasons[each]}" for each in cycle)
        return Fault(
            "deadlock",
            f"{format_count(len(cycle), 'step')} wait for each other: {told}",
            tuple(self._at(each) for each in cycle),
            rank=cycle[0][0],
        )

    def _at(self, block: Block) -> StepAddress:
        return StepAddress(*block, self.position[block])

    def _waits_for(self, block: Block) -> tuple[Block | None, str]:
        """The threadblock that must move first, None where none will, and the reason as text."""
        rank, _ = block
        step = self.blocks[block].steps[self.position[block]]
        awaited = None if self.item[block] else self._awaited(rank, step)
        if awaited is not None:
            return (rank, awaited.threadblock), f"depends on {awaited}"
        incoming, outgoing = self.incoming[block], self.outgoing[block]
        receives = OPERATIONS[step.operation].receives and not self.queues[incoming]
        queue, other = (incoming, self.sender) if receives else (outgoing, self.receiver)
        partner = other.get(queue)
        if partner is None or self.position[partner] >= len(self.blocks[partner].steps):
            what = "a chunk that is never sent" if receives else "room: nobody receives what is sent"
            return None, f"waits for {what} {queue}"
        return partner, f"waits for {'a chunk' if receives else 'room'} {queue}"
