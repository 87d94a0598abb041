"""MSCCL++ execution plans, run by the rules of the executor, and judged.

It knows nothing of programs and schedules: what counts is what the executor makes of the JSON. Every
threadblock has a first thread, which alone signals, waits and asks a NIC for something, and other threads,
which copy and add together with it; they meet at ``nop`` only. A NIC works through the requests of its
channel one after another, and nobody knows when, until a ``flush`` or a signal that it carries. Of each place
of memory it is kept who touched it last and what they knew by then (`Clocks`), so that
two accesses that nothing orders are found however the run goes.

Only what `taccl.formats.mscclpp.plan` writes can be run: other operations are named and refused.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import Any

from taccl.errors import FormatError, VerificationError
from taccl.formats.mscclpp.memory import Clocks, PlanMemory, packets
from taccl.program.execution import Content
from taccl.units import format_count

#: Operations that can be run.
OPERATIONS = (
    "nop", "put", "ppkt", "copy", "upkt", "re", "repkt", "signal", "wait", "flush", "sem_acquire",
    "sem_release",
)  # fmt: skip

#: Of operations that take packets: how many sources come before them.
_FIRST_PACKET = {"upkt": 0, "repkt": 1}
_MAX_OPERATIONS, _MAX_CHANNELS, _MAX_IDS = 64, 16, 16

Op = dict[str, Any]


def run_plan(plan: Mapping[str, Any], *, root: int = 0, races: bool = True) -> bool:
    """Run a plan once, keeping track of what is in every chunk; returns whether outputs were judged.

    They are of ``allgather``, ``allreduce``, ``reducescatter``, ``alltoall``, ``broadcast`` and ``reduce``;
    of the last two from or to `root`.

    - `races`: Whether accesses that nothing orders are looked for, which takes most of the time.

    Raises `VerificationError` for the first fault. `FormatError` if the plan is none, goes beyond a limit of
    the executor, or has an operation that is not known here.
    """
    try:
        return _Machine(plan, races).run(root)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise FormatError(
            f"found {type(error).__name__} {error}; expected an MSCCL++ execution plan", where="plan"
        ) from None


@dataclass(slots=True)
class _Channel:
    """One end of a channel: the signals that came in, each with what its sender knew."""

    peer: int
    inbound: deque[Any] = field(default_factory=deque)
    other: _Channel | None = None
    nic: int = -1


class _Machine:
    """Every rank's channels, semaphores and threadblocks, and the operation that each is at."""

    def __init__(self, plan: Mapping[str, Any], races: bool) -> None:
        self.gpus = plan["gpus"]
        self.blocks = [(r, t) for r, gpu in enumerate(self.gpus) for t in range(len(gpu["threadblocks"]))]
        for r, t in self.blocks:
            _check_threadblock(f"threadblock {t} of gpu {r}", t, self.gpus[r]["threadblocks"][t])
        self.threads = {block: (2 * i, 2 * i + 1) for i, block in enumerate(self.blocks)}
        self.channels = [_channels(gpu) for gpu in self.gpus]
        self._join_channels()
        self.semaphores = [
            [deque([None] * each["init_value"]) for each in gpu.get("semaphores", ())] for gpu in self.gpus
        ]
        # Two threads a threadblock, a NIC a port channel, and the user of every rank.
        count = 2 * len(self.blocks)
        for ends in self.channels:
            for channel in ends.get("port", ()):
                channel.nic, count = count, count + 1
        users = range(count, count + len(self.gpus))
        self.clocks = Clocks(users.stop) if races else None
        self.memory = PlanMemory(plan, self.clocks, users)
        for (r, _), threads in self.threads.items():
            for thread in threads:
                self._learn(thread, self._tell(users[r]))
        self.actions = {
            "nop": self._nop, "put": self._put, "ppkt": self._put_packets, "signal": self._signal,
            "wait": self._wait, "flush": self._flush, "sem_acquire": self._wait,
            "sem_release": self._release,
            **dict.fromkeys(("copy", "upkt", "re", "repkt"), self._combine),
        }  # fmt: skip

    def _join_channels(self) -> None:
        """Channels of two ranks are joined in the order in which each lists those to the other."""
        for kind in ("memory", "port"):
            ends: dict[tuple[int, int], list[_Channel]] = defaultdict(list)
            for r, channels in enumerate(self.channels):
                for channel in channels.get(kind, ()):
                    ends[r, channel.peer].append(channel)
            for (r, peer), mine in ends.items():
                for a, b in zip(mine, ends.get((peer, r), ()), strict=False):
                    a.other = b

    def run(self, root: int) -> bool:
        """Run whatever can go on until nothing can."""
        position = dict.fromkeys(self.blocks, 0)
        done, before = 0, -1
        while before < done:
            before = done
            for block in self.blocks:
                ops = self._ops(block)
                while position[block] < len(ops) and self._ready(*block, ops[position[block]]):
                    op = ops[position[block]]
                    at = f"operation {position[block]} ({op['name']})"
                    self.memory.label = f"{at} of threadblock {block[1]} of gpu {block[0]}"
                    self.actions[op["name"]](*block, op)
                    position[block] += 1
                    done += 1
        stuck = [block for block in self.blocks if position[block] < len(self._ops(block))]
        for r, t in stuck:
            s = position[r, t]
            raise VerificationError(
                f"deadlock: {format_count(len(stuck), 'threadblock')} cannot go on; the first is threadblock "
                f"{t} of gpu {r}, at operation {s} ({self._ops((r, t))[s]['name']})"
            )
        self._end()
        return self.memory.check_outputs(root)

    def _ops(self, block: tuple[int, int]) -> list[Op]:
        ops: list[Op] = self.gpus[block[0]]["threadblocks"][block[1]]["ops"]
        return ops

    def _tell(self, thread: int) -> Any:
        return None if self.clocks is None else self.clocks.snapshot(thread)

    def _learn(self, thread: int, known: Any) -> None:
        if self.clocks is not None and known is not None:
            self.clocks.join(thread, known)

    def _channel(self, r: int, t: int, op: Op, i: int) -> _Channel:
        """The channel of the i-th number of an operation, which counts in the threadblock's own list."""
        kind, threadblock = op["channel_type"], self.gpus[r]["threadblocks"][t]
        ids = _listed(threadblock["channels"], "channel_type", kind, "channel_ids")
        channel: _Channel = self.channels[r][kind][ids[op["channel_ids"][i]]]
        return channel

    def _remote(self, r: int, t: int, kind: str, number: int) -> tuple[int, str]:
        references = self.gpus[r]["threadblocks"][t]["remote_buffer_refs"]
        buffer = self.gpus[r]["remote_buffers"][
            _listed(references, "access_channel_type", kind, "remote_buffer_ids")[number]
        ]
        if kind not in buffer["access_channel_types"]:
            raise self.memory.fault(f"its buffer is not reached over {kind} channels")
        return buffer["rank"], buffer["type"]

    def _ready(self, r: int, t: int, op: Op) -> bool:
        if op["name"] in ("wait", "sem_acquire"):
            return all(self._inboxes(r, t, op))
        if op["name"] not in _FIRST_PACKET:
            return True
        arriving = op["src_buff"][_FIRST_PACKET[op["name"]] :]
        return all(packet in self.memory.flags[r] for each in arriving for packet in packets(each))

    def _inboxes(self, r: int, t: int, op: Op) -> list[deque[Any]]:
        """Where an operation looks for signals: at its ends of channels, or in semaphores of its rank."""
        if "semaphore_ids" in op:
            return [self.semaphores[r][number] for number in op["semaphore_ids"]]
        return [self._channel(r, t, op, i).inbound for i in range(len(op["channel_ids"]))]

    def _nop(self, r: int, t: int, _op: Op) -> None:
        if self.clocks is not None:
            self.clocks.meet(self.threads[r, t])

    def _signal(self, r: int, t: int, op: Op) -> None:
        for i in range(len(op["channel_ids"])):
            channel, thread = self._channel(r, t, op, i), self.threads[r, t][min(i, 1)]
            if op["channel_type"] == "port":
                self._learn(channel.nic, self._tell(thread))
                thread = channel.nic
            if channel.other is None:
                raise self.memory.fault(f"gpu {channel.peer} has no end of the channel")
            channel.other.inbound.append(self._tell(thread))

    def _wait(self, r: int, t: int, op: Op) -> None:
        for i, inbox in enumerate(self._inboxes(r, t, op)):
            self._learn(self.threads[r, t][min(i, 1)], inbox.popleft())

    def _release(self, r: int, t: int, op: Op) -> None:
        for i, inbox in enumerate(self._inboxes(r, t, op)):
            inbox.append(self._tell(self.threads[r, t][min(i, 1)]))

    def _flush(self, r: int, t: int, op: Op) -> None:
        # As many channels as there are destinations are flushed.
        for i in range(min(len(op["channel_ids"]), len(op.get("dst_buff", ())))):
            self._learn(self.threads[r, t][min(i, 1)], self._tell(self._channel(r, t, op, i).nic))

    def _put(self, r: int, t: int, op: Op) -> None:
        for i, (src, dst) in enumerate(zip(op["src_buff"], op["dst_buff"], strict=True)):
            threads: tuple[int, ...] = self.threads[r, t]
            if op["channel_type"] == "port":
                nic = self._channel(r, t, op, i).nic
                self._learn(nic, self._tell(threads[min(i, 1)]))
                threads = (nic,)
            peer, buffer = self._remote(r, t, op["channel_type"], dst["buffer_id"])
            values = self._read(r, src, threads)
            self.memory.put(values, self.memory.rows(r, peer, buffer, dst), threads)

    def _put_packets(self, r: int, t: int, op: Op) -> None:
        threads = self.threads[r, t]
        for src, dst in zip(op["src_buff"], op["dst_buff"], strict=True):
            peer, buffer = self._remote(r, t, "memory", dst["buffer_id"])
            if buffer != "s":
                raise self.memory.fault(f"packets go to {buffer}; expected s, scratch")
            for value, number in zip(self._read(r, src, threads), packets(dst), strict=False):
                self.memory.send_packet(peer, number, value, threads)

    def _combine(self, r: int, t: int, op: Op) -> None:
        """Put the sum of an operation's sources, chunks of the rank or packets, in their place."""
        sources, (dst,), threads = op["src_buff"], op["dst_buff"], self.threads[r, t]
        first = _FIRST_PACKET.get(op["name"], len(sources))
        columns = [self._read(r, each, threads) for each in sources[:first]]
        columns += [[self.memory.packet(r, packet) for packet in packets(each)] for each in sources[first:]]
        sums = [reduce(add, each) for each in zip(*columns, strict=False)]
        self.memory.put(sums, self.memory.rows(r, r, dst["type"], dst), threads)

    def _read(self, r: int, chunks: Op, threads: tuple[int, ...]) -> list[Content]:
        return [self.memory.read(place, threads) for place in self.memory.rows(r, r, chunks["type"], chunks)]

    def _end(self) -> None:
        for (r, _), threads in self.threads.items():
            for thread in threads:
                self._learn(self.memory.users[r], self._tell(thread))
        self.memory.end()
        for r, gpu in enumerate(self.gpus):
            for kind, channels in self.channels[r].items():
                for number, channel in enumerate(channels):
                    if channel.inbound:
                        left = format_count(len(channel.inbound), "signal")
                        raise VerificationError(f"{left} too many on {kind} channel {number} of gpu {r}")
            for number, semaphore in enumerate(self.semaphores[r]):
                if len(semaphore) != gpu["semaphores"][number]["init_value"]:
                    raise VerificationError(f"semaphore {number} of gpu {r} ends at {len(semaphore)}")


def _channels(gpu: Mapping[str, Any]) -> dict[str, list[_Channel]]:
    channels: dict[str, list[_Channel]] = defaultdict(list)
    for entry in gpu["channels"]:
        channels[entry["channel_type"]].extend(_Channel(peer) for peer in entry["connected_to"])
    return dict(channels)


def _listed(entries: list[Op], key: str, kind: str, ids: str) -> list[int]:
    return [number for entry in entries if entry[key] == kind for number in entry[ids]]


def _check_threadblock(where: str, number: int, threadblock: Mapping[str, Any]) -> None:
    """Raise `FormatError` beyond a limit of the executor, and for operations that are not known here."""
    ops = threadblock["ops"]
    if threadblock["id"] != number:
        raise FormatError(f"found id {threadblock['id']}; expected {number}", where=where)
    if len(ops) > _MAX_OPERATIONS:
        raise FormatError(f"found {len(ops)} operations; expected at most {_MAX_OPERATIONS}", where=where)
    for entry in (*threadblock["channels"], *threadblock["remote_buffer_refs"]):
        count = len(entry["channel_ids"] if "channel_ids" in entry else entry["remote_buffer_ids"])
        if count > _MAX_CHANNELS:
            raise FormatError(
                f"found {count} channels or buffers; expected at most {_MAX_CHANNELS}", where=where
            )
    for op in ops:
        if op["name"] not in OPERATIONS:
            raise FormatError(
                f"found operation {op['name']!r}; expected one of {', '.join(OPERATIONS)}", where=where
            )
        if len(op.get("semaphore_ids", ())) > _MAX_IDS:
            raise FormatError(f"found more than {_MAX_IDS} semaphores in an operation", where=where)
