"""One rank's part of an MSCCL++ plan: its threadblocks, channels, remote buffers and semaphores.

Every queue of the program has its own channel, with signals in both directions. Signals of the sender
announce data; signals of the receiver announce that there is room for data. If one threadblock waits for
another, the pair has a counting semaphore of its own.

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
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from taccl.errors import ExportError
from taccl.formats.mscclpp.messages import PlacedMessages
from taccl.program.program import OPERATIONS, Program, Queue, Slot, Step, StepAddress


class PlanGpu:
    """One rank's part of an MSCCL++ plan, built from the rank's threadblocks and messages."""

    def __init__(
        self,
        program: Program,
        rank: int,
        nodes: Sequence[int],
        messages: PlacedMessages,
        queues: Sequence[Queue],
    ) -> None:
        self.program, self.rank, self.nodes, self.messages = program, rank, nodes, messages
        self.threadblocks = program.ranks[rank].threadblocks
        self.channel_of: dict[Queue, tuple[str, int]] = {}
        self.peers: dict[str, list[int]] = {"memory": [], "port": []}
        self.remote_buffers: list[tuple[int, str]] = []
        # MSCCL++ pairs the channels between two ranks by their order, so both ranks list them in one order.
        for queue in queues:
            if rank in (queue.src, queue.dst):
                peer = queue.dst if rank == queue.src else queue.src
                kind = self._kind(peer)
                self.channel_of[queue] = (kind, len(self.peers[kind]))
                self.peers[kind].append(peer)
        self.was_split = False
        self.waits, self.releases, self.num_semaphores = self._semaphores()

    def plan(self, buffers: tuple[int, int], split: bool, max_threadblocks: int) -> dict[str, Any]:
        """JSON object of this rank in the plan; `buffers` are its numbers of input and output chunks."""
        threadblocks: list[dict[str, Any]] = []
        for t in range(len(self.threadblocks)):
            own = self._threadblock(t)
            for ops in self._pieces(t, own.steps, split):
                threadblocks.append({"id": len(threadblocks), "ops": ops} | own.references())
        if len(threadblocks) > max_threadblocks:
            found, count = "", len(self.threadblocks)
            remedy = "lower the schedule with threadblocks='per-peer', or fewer num_channels or instances"
            if count <= max_threadblocks:
                found = f": its {count} threadblocks are split after {MAX_OPERATIONS} operations each"
                remedy = "make the schedule in fewer chunks"
            raise ExportError(
                f"MSCCL++ runs at most {max_threadblocks} threadblocks per rank at once, but rank "
                f"{self.rank} has {len(threadblocks)}{found}",
                remedy=f"{remedy}, or give max_threadblocks (the GPU's number of multiprocessors)",
            )
        return {
            "id": self.rank,
            "input_chunks": buffers[0],
            "output_chunks": buffers[1],
            "scratch_chunks": self.messages.scratch_chunks,
            "threadblocks": threadblocks,
            "channels": [
                {"channel_type": kind, "connected_to": peers} for kind, peers in self.peers.items() if peers
            ],
            "remote_buffers": [
                {"rank": peer, "type": buffer, "access_channel_types": [self._kind(peer)]}
                for peer, buffer in self.remote_buffers
            ],
            "semaphores": [{"init_value": 0}] * self.num_semaphores,
        }

    def _kind(self, peer: int) -> str:
        return "memory" if self.nodes[peer] == self.nodes[self.rank] else "port"

    def _semaphores(self) -> tuple[dict[StepAddress, list[int]], dict[StepAddress, list[int]], int]:
        """({step: semaphores it acquires}, {step: semaphores it releases}, number of semaphores).

        A wait that an earlier wait of the same threadblock implies needs no semaphore.
        """
        numbers: dict[tuple[int, int], int] = {}
        waits: dict[StepAddress, list[int]] = defaultdict(list)
        released: dict[StepAddress, list[int]] = defaultdict(list)
        for t, threadblock in enumerate(self.threadblocks):
            passed: dict[int, int] = {}
            for s, step in enumerate(threadblock.steps):
                # The dict keeps the latest step of each threadblock.
                for other, index in dict(sorted(step.depends)).items():
                    if other == t or passed.get(other, -1) >= index:
                        continue
                    passed[other] = index
                    number = numbers.setdefault((other, t), len(numbers))
                    waits[StepAddress(self.rank, t, s)].append(number)
                    released[StepAddress(self.rank, other, index)].append(number)
        return waits, released, len(numbers)

    def _pieces(self, t: int, steps: Sequence[list[Op]], split: bool) -> Iterator[list[Op]]:
        total = sum(len(each) for each in steps)
        if total <= MAX_OPERATIONS:
            yield [op for each in steps for op in each]
            return
        if not split:
            raise ExportError(
                f"MSCCL++ holds at most {MAX_OPERATIONS} operations per threadblock, and threadblock {t} of "
                f"rank {self.rank} makes {total}",
                remedy="leave split=False out, or lower the schedule with channels='round-robin', "
                f"num_channels={-(-total // MAX_OPERATIONS)}",
            )
        self.was_split = True
        room = MAX_OPERATIONS - 4  # two operations begin a piece, and two end it
        ops: list[Op] = []
        for each in steps:
            if len(ops) + len(each) > room:
                hand_on = self.num_semaphores
                self.num_semaphores += 1
                yield [*ops, {"name": "nop"}, {"name": "sem_release", "semaphore_ids": [hand_on]}]
                ops = [{"name": "sem_acquire", "semaphore_ids": [hand_on]}, {"name": "nop"}]
            ops += each
        yield ops

    def _threadblock(self, t: int) -> PlanThreadblock:
        ops = PlanThreadblock()
        ops.begin_step()
        for parcel in self.messages.opening.get((self.rank, t), ()):
            ops.signal(*self._channel(ops, parcel.queue))
        for s, step in enumerate(self.threadblocks[t].steps):
            address = StepAddress(self.rank, t, s)
            ops.begin_step()
            parts = OPERATIONS[step.operation]
            if not parts.sends:
                ops.flush()
            ops.acquire(self.waits.get(address, ()))
            self._step(ops, address, step)
            if address in self.releases:
                ops.flush()
                ops.release(self.releases[address])
        ops.begin_step()
        ops.flush()
        return ops

    def _step(self, ops: PlanThreadblock, address: StepAddress, step: Step) -> None:
        parcel = None if self.messages.packets else self.messages.received.get(address)
        if parcel is not None:
            if parcel in self.messages.crowded:
                ops.flush()
                ops.signal(*self._channel(ops, parcel.queue))
            ops.wait(*self._channel(ops, parcel.queue))
        source = self._work(ops, address, step)
        parcel = self.messages.sent.get(address)
        if parcel is None:
            return
        assert source is not None, "what is sent is somewhere"
        channel, kind = self._channel(ops, parcel.queue)
        landing = self.messages.landing[parcel.receive]
        buffer = self._remote_buffer(ops, parcel.queue.dst, landing.buffer[0])
        target = {"buffer_id": buffer, "index": landing.offset, "size": parcel.chunks}
        if self.messages.packets:
            ops.write("ppkt", source, parcel.chunks, target)
            return
        if parcel in self.messages.awaiting:
            ops.wait(channel, kind)
        ops.put(kind, channel, source, parcel.chunks, target)
        ops.signal(channel, kind)

    def _work(self, ops: PlanThreadblock, address: StepAddress, step: Step) -> Slot | None:
        """Add the operations that a step does within its rank to `ops`; return the slot of their result."""
        src, dst = self._own(step.src), self._own(step.dst)
        landing = self.messages.landing.get(address)
        if landing is None and not OPERATIONS[step.operation].writes:
            return src
        if step.operation == "receive-reduce-send":
            dst = self.messages.sums[address]
        assert dst is not None
        sources = [each for each in (src, landing) if each is not None]
        if landing is None:
            added = [dst] if step.operation == "reduce" else []
            ops.combine("re" if added else "copy", [*added, *sources], dst, step.count)
        elif self.messages.packets:
            ops.combine("repkt" if src is not None else "upkt", sources, dst, step.count, packets=1)
        elif src is not None:
            ops.combine("re", sources, dst, step.count)
        return dst

    def _channel(self, ops: PlanThreadblock, queue: Queue) -> tuple[int, str]:
        """(id of a queue's channel in the threadblock's own list, kind of the channel)."""
        kind, number = self.channel_of[queue]
        return ops.channel(kind, number), kind

    def _remote_buffer(self, ops: PlanThreadblock, peer: int, buffer: str) -> int:
        if (peer, buffer) not in self.remote_buffers:
            self.remote_buffers.append((peer, buffer))
        return ops.buffer(self._kind(peer), self.remote_buffers.index((peer, buffer)))

    def _own(self, slot: Slot | None) -> Slot | None:
        if slot is None:
            return None
        return self.messages.layouts[self.rank].canonical(slot, in_place=self.program.in_place)


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
