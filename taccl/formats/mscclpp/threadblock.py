"""The operations of one threadblock of an MSCCL++ plan, with the barriers among its threads put where needed.

The executor runs the operations of a threadblock with all of its threads, and puts no barrier in between.
Copies and sums are done by all threads, each its share. Signals, waits and semaphores are for the first
threads only, one for each number listed, and a put over a port channel is a request that the first thread
writes. So a ``nop``, which is a barrier, has to stand

- between a copy or a sum and the operation that tells somebody of it,
- between an operation that waits and a copy or a sum after it,
- between two copies or sums that touch one place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taccl.program.program import Slot

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["MAX_IDS", "MAX_OPERATIONS", "Op", "PlanThreadblock", "local", "remote"]

#: One operation, as it stands in the plan.
Op = dict[str, Any]

#: Limits of the executor: operations of a threadblock, and semaphores of one operation.
MAX_OPERATIONS, MAX_IDS = 64, 16


def local(slot: Slot, count: int) -> Op:
    """Chunks in a buffer of the rank itself."""
    return {"type": slot.buffer[0], "index": slot.offset, "size": count}


def remote(buffer_id: int, index: int, count: int) -> Op:
    """Chunks in a buffer of another rank, by its number in the threadblock's list."""
    return {"buffer_id": buffer_id, "index": index, "size": count}


class PlanThreadblock:
    """Operations step by step: `steps` has a list of them for each step of the program."""

    def __init__(self) -> None:
        self.steps: list[list[Op]] = []
        self._unflushed: int | None = None
        self._forget()

    def begin_step(self) -> None:
        """What follows belongs to the next step."""
        self.steps.append([])

    def wait(self, channel: int, kind: str) -> None:
        """Wait for a signal."""
        self._waited(1, {"name": "wait", "channel_ids": [channel], "channel_type": kind})

    def signal(self, channel: int, kind: str) -> None:
        """Send a signal, after everything before it is done."""
        self._tell(1, {"name": "signal", "channel_ids": [channel], "channel_type": kind})

    def acquire(self, semaphores: Sequence[int]) -> None:
        """Wait until other threadblocks of the rank have released each of the semaphores."""
        for some in _groups(semaphores):
            self._waited(len(some), {"name": "sem_acquire", "semaphore_ids": some})

    def release(self, semaphores: Sequence[int]) -> None:
        """Release semaphores, after everything before is done."""
        for some in _groups(semaphores):
            self._tell(len(some), {"name": "sem_release", "semaphore_ids": some})

    def flush(self) -> None:
        """Wait until what was put over a port channel has left its buffers, if anything was."""
        if self._unflushed is None:
            return
        channel, self._unflushed = self._unflushed, None
        # The executor flushes as many channels as the operation has destinations, so it gets one.
        self._waited(
            1,
            {
                "name": "flush",
                "channel_ids": [channel],
                "channel_type": "port",
                "dst_buff": [local(Slot("output", 0), 1)],
            },
        )

    def put(self, kind: str, channel: int, source: Slot, count: int, target: Op) -> None:
        """Write neighbouring chunks into another rank's memory."""
        op: Op = {"name": "put", "src_buff": [local(source, count)], "dst_buff": [target]}
        if kind == "memory":
            self._move(op | {"channel_type": kind}, _slots(source, count), ())
            return
        self._tell(1, op | {"channel_ids": [channel], "channel_type": kind})
        self._unflushed = channel

    def put_packets(self, source: Slot, count: int, target: Op) -> None:
        """Write neighbouring chunks into another rank's scratch, as packets that say when they are there."""
        op = {"name": "ppkt", "src_buff": [local(source, count)], "dst_buff": [target]}
        self._move(op | {"channel_type": "memory"}, _slots(source, count), ())

    def copy(self, source: Slot, target: Slot, count: int) -> None:
        """Copy chunks within the rank."""
        op = {"name": "copy", "src_buff": [local(source, count)], "dst_buff": [local(target, count)]}
        self._move(op, _slots(source, count), _slots(target, count))

    def unpack(self, packet: int, target: Slot, count: int) -> None:
        """Copy packets to where their data belongs, as they come."""
        packets = local(Slot("scratch", packet), count)
        self._move(
            {"name": "upkt", "src_buff": [packets], "dst_buff": [local(target, count)]},
            (),
            _slots(target, count),
        )

    def reduce(self, first: Slot, second: Slot, target: Slot, count: int) -> None:
        """Add chunks within the rank."""
        sources = [local(first, count), local(second, count)]
        self._move(
            {"name": "re", "src_buff": sources, "dst_buff": [local(target, count)]},
            (*_slots(first, count), *_slots(second, count)),
            _slots(target, count),
        )

    def reduce_packets(self, first: Slot, packet: int, target: Slot, count: int) -> None:
        """Add packets, as they come, to chunks of the rank."""
        sources = [local(first, count), local(Slot("scratch", packet), count)]
        self._move(
            {"name": "repkt", "src_buff": sources, "dst_buff": [local(target, count)]},
            _slots(first, count),
            _slots(target, count),
        )

    def _forget(self) -> None:
        """All threads are at one point."""
        self._moved = self._has_waited = self._several_waited = False
        self._read: set[Slot] = set()
        self._written: set[Slot] = set()

    def _nop(self) -> None:
        self.steps[-1].append({"name": "nop"})
        self._forget()

    def _waited(self, threads: int, op: Op) -> None:
        self.steps[-1].append(op)
        self._has_waited = True
        self._several_waited |= threads > 1

    def _tell(self, threads: int, op: Op) -> None:
        if self._moved or self._several_waited or (self._has_waited and threads > 1):
            self._nop()
        self.steps[-1].append(op)

    def _move(self, op: Op, reads: Iterable[Slot], writes: Iterable[Slot]) -> None:
        reads, writes = set(reads), set(writes)
        if self._has_waited or writes & (self._read | self._written) or reads & self._written:
            self._nop()
        self.steps[-1].append(op)
        self._moved = True
        self._read |= reads
        self._written |= writes


def _slots(first: Slot, count: int) -> tuple[Slot, ...]:
    return tuple(Slot(first.buffer, first.offset + i) for i in range(count))


def _groups(numbers: Sequence[int]) -> list[list[int]]:
    return [list(numbers[i : i + MAX_IDS]) for i in range(0, len(numbers), MAX_IDS)]
