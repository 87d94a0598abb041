"""Operations of one threadblock of an MSCCL++ plan, with barriers among its threads where needed.

The executor runs the operations of a threadblock with all of its threads, without barriers in between. Copies
and sums are done by all threads, each on its share. Signals, waits and semaphore operations are done by the
first threads only, one thread for each id that the operation lists. A put over a port channel is a request
that the first thread writes. So a ``nop``, which is a barrier, is required:

- between a copy or a sum and the operation that signals its end;
- between an operation that waits and a copy or a sum after it;
- between two copies or sums that access the same place.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from taccl.program.program import Slot

#: One MSCCL++ operation, as an entry of the plan's JSON.
Op = dict[str, Any]

#: `MAX_OPERATIONS`: executor's max operations of a threadblock.
#: `MAX_IDS`: executor's max semaphores of one operation.
MAX_OPERATIONS, MAX_IDS = 64, 16


def local(slot: Slot, count: int) -> Op:
    """JSON entry of a plan for `count` chunks in a buffer of the rank itself."""
    return {"type": slot.buffer[0], "index": slot.offset, "size": count}


class PlanThreadblock:
    """Builder of an MSCCL++ threadblock; `steps` lists the operations of each step of the program."""

    def __init__(self) -> None:
        self.steps: list[list[Op]] = []
        self._channels: dict[str, list[int]] = defaultdict(list)
        self._buffers: dict[str, list[int]] = defaultdict(list)
        self._unflushed: int | None = None
        self._forget()

    def channel(self, kind: str, number: int) -> int:
        """Index of the rank's channel `number` in the threadblock's own list; appends it if absent."""
        return _place(self._channels[kind], number)

    def buffer(self, kind: str, number: int) -> int:
        """Index of the rank's remote buffer `number` in the threadblock's own list; appends it if absent."""
        return _place(self._buffers[kind], number)

    def references(self) -> dict[str, Any]:
        """JSON fields of the plan that list the channels and remote buffers that the threadblock uses."""
        channels, buffers = sorted(self._channels.items()), sorted(self._buffers.items())
        return {
            "channels": [{"channel_type": kind, "channel_ids": ids} for kind, ids in channels],
            "remote_buffer_refs": [
                {"access_channel_type": kind, "remote_buffer_ids": ids} for kind, ids in buffers
            ],
        }

    def begin_step(self) -> None:
        """Start the next step; later operations belong to it."""
        self.steps.append([])

    def wait(self, channel: int, kind: str) -> None:
        """Add a wait for a signal on a channel."""
        self._waited(1, {"name": "wait", "channel_ids": [channel], "channel_type": kind})

    def signal(self, channel: int, kind: str) -> None:
        """Add a signal, which is sent after all earlier operations are done."""
        self._tell(1, {"name": "signal", "channel_ids": [channel], "channel_type": kind})

    def acquire(self, semaphores: Sequence[int]) -> None:
        """Add a wait until other threadblocks of the rank have released each of the semaphores."""
        for some in _groups(semaphores):
            self._waited(len(some), {"name": "sem_acquire", "semaphore_ids": some})

    def release(self, semaphores: Sequence[int]) -> None:
        """Add a release of semaphores, which happens after all earlier operations are done."""
        for some in _groups(semaphores):
            self._tell(len(some), {"name": "sem_release", "semaphore_ids": some})

    def flush(self) -> None:
        """Add a wait until data put over a port channel since the last flush, if any, has left its buffer."""
        if self._unflushed is None:
            return
        channel, self._unflushed = self._unflushed, None
        # The executor flushes as many channels as the operation lists destinations, so list one.
        op = {"name": "flush", "channel_ids": [channel], "channel_type": "port"}
        self._waited(1, op | {"dst_buff": [local(Slot("output", 0), 1)]})

    def put(self, kind: str, channel: int, source: Slot, count: int, target: Op) -> None:
        """Add a put of contiguous chunks into another rank's memory."""
        if kind == "memory":
            self.write("put", source, count, target)
            return
        op: Op = {"name": "put", "src_buff": [local(source, count)], "dst_buff": [target]}
        self._tell(1, op | {"channel_ids": [channel], "channel_type": kind})
        self._unflushed = channel

    def write(self, name: str, source: Slot, count: int, target: Op) -> None:
        """Add a write by all threads into another rank's memory: ``put`` (plain) or ``ppkt`` (packets)."""
        op = {"name": name, "src_buff": [local(source, count)], "dst_buff": [target]}
        self._move(op | {"channel_type": "memory"}, source.neighbours(count), ())

    def combine(
        self, name: str, sources: Sequence[Slot], target: Slot, count: int, *, packets: int = 0
    ) -> None:
        """Add a copy or a sum of chunks of the rank; the last `packets` sources are packets to wait for."""
        op = {
            "name": name,
            "src_buff": [local(each, count) for each in sources],
            "dst_buff": [local(target, count)],
        }
        read = [slot for each in sources[: len(sources) - packets] for slot in each.neighbours(count)]
        self._move(op, read, target.neighbours(count))

    def _forget(self) -> None:
        """Record that all threads have synchronised, so that earlier operations need no further barrier."""
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


def _place(known: list[int], wanted: int) -> int:
    if wanted not in known:
        known.append(wanted)
    return known.index(wanted)


def _groups(numbers: Sequence[int]) -> list[list[int]]:
    return [list(numbers[i : i + MAX_IDS]) for i in range(0, len(numbers), MAX_IDS)]
