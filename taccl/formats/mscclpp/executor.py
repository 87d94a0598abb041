"""Symbolic execution and checks of MSCCL++ execution plans, by the rules of the MSCCL++ executor.

This module shares no code with the conversion of programs to plans: it derives the outcome from the JSON
alone. All threads of a threadblock copy and reduce together; they synchronise at ``nop`` only. For signals,
waits, semaphores and requests to a NIC, thread i handles the i-th id of the operation. Two threads are
simulated: the first one, and one that stands for all others. A NIC processes the requests of its channel in
order. Their completion is unknown until a ``flush``, or a signal sent over the same channel. The user of a
rank accesses its buffers before the rank begins, and again when its threadblocks have ended. One run finds
all unordered accesses, as for programs (`taccl.program.execution`).

A relaxed signal orders no writes, but reads of other ranks' memory before it have ended. Operations that
`taccl.formats.mscclpp.operations` does not list, and limits that a plan exceeds, raise an error.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from operator import add
from typing import Any

from taccl._internal.units import format_count
from taccl.errors import FormatError, TacclError, VerificationError
from taccl.formats.mscclpp.operations import FIRST_PACKET, FIXED, FLOWS, SHARED, check_gpu, collective_of_plan
from taccl.program.contents import Content, content_at_start, contents_of
from taccl.program.execution import Event, unordered
from taccl.program.layout import RankLayout, layout
from taccl.program.program import Slot

_ROOTED = ("broadcast", "reduce")
_BUFFERS = {"i": "input", "o": "output", "s": "scratch"}
#: {list of a threadblock: (field with the kind of channel, field with the ids)}.
_LISTS = {
    "channels": ("channel_type", "channel_ids"),
    "remote_buffer_refs": ("access_channel_type", "remote_buffer_ids"),
}
Op = dict[str, Any]
#: Place of a chunk: (rank, memory, index).
Place = tuple[int, str, int]
#: Reads: (index of an event, place that it reads).
Reads = frozenset[tuple[int, Place]]
#: Inbox of signals: an end of a channel, or a semaphore.
#: A channel's end is ``(kind, rank, peer, index among the rank's channels of this kind to the peer)``.
#: A semaphore is ``("semaphore", rank, number)``.
Inbox = tuple[Any, ...]


def run_plan(plan: Mapping[str, Any], *, root: int = 0, races: bool = True) -> bool:
    """Run a plan once, tracking the content of every chunk; return True if the outputs were checked.

    Outputs are checked for ``allgather``, ``allreduce``, ``reducescatter``, ``alltoall``, ``broadcast`` and
    ``reduce``.

    - `races`: True to search for unordered accesses, which takes most of the time.

    Raises `VerificationError` for the first fault. `FormatError` if the plan is malformed, exceeds a limit of
    the executor, or has an operation that is not supported here.
    """
    if not plan.get("gpus"):
        said = "found no gpus; expected one for each rank: convert the schedule or program again"
        raise FormatError(said, where="plan")
    if any("inputChunks" in gpu for gpu in plan["gpus"]):
        said = "found a plan of an earlier MSCCL++, with 'inputChunks' for 'input_chunks'"
        raise FormatError(f"{said}; write it again with a current MSCCL++", where="plan")
    run: _PlanRun | None = None
    try:
        run = _PlanRun(plan, root)
        run.run()
        if races:
            for _, earlier, later in unordered(run.events):
                raise VerificationError(f"race: nothing orders {later.by} and {earlier.by}")
        return run.check_end()
    except TacclError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        found = f"no field {error}" if isinstance(error, KeyError) else "a value of a wrong type or length"
        where = f" in {run.label}" if run is not None else ""
        said = f"found {found}{where}; expected an MSCCL++ execution plan"
        raise FormatError(said, where="plan") from None


class _PlanRun:
    """State of a plan's symbolic run: rank buffers, signals in flight, and the last event of every thread."""

    def __init__(self, plan: Mapping[str, Any], root: int) -> None:
        self.gpus: Sequence[Mapping[str, Any]] = plan["gpus"]
        self.in_place, self.packed = bool(plan["inplace"]), plan["protocol"] == "LL"
        self.halves = bool(plan.get("use_double_scratch_buffer"))  # of scratch, for calls in turn
        self.blocks: dict[tuple[int, int], Mapping[str, Any]] = {}
        for r, gpu in enumerate(self.gpus):
            check_gpu(gpu, r)
            self.blocks |= {(r, t): threadblock for t, threadblock in enumerate(gpu["threadblocks"])}
        self.collective = collective_of_plan(plan, root)
        self.layouts = (RankLayout((), ()),) * len(self.gpus)
        if self.collective is not None:
            self.layouts = layout(self.collective)
        self.users: list[set[Place]] = []  # places that each rank's user accesses, before and after the run
        self.contents: dict[Place, Content] = {}
        self.packets: dict[tuple[int, int], Content] = {}
        self.fed: dict[tuple[int, int], Reads] = {}  # {packet: reads on which its value depends}
        self.inboxes: dict[Inbox, deque[int]] = {}
        self.channels: dict[tuple[int, str], list[Inbox]] = {}
        #: {(list of a threadblock, rank, threadblock, kind of channel, index there): channel or buffer}.
        self.known: dict[tuple[str, int, int, str, int], Any] = {}
        self.events: list[Event] = []
        self.begun: list[int] = []  # event with which each rank's user begins it
        self.last: dict[Any, int] = {}  # {thread, NIC or user: its last event}
        #: {thread: reads of other ranks before its next event}.
        self.ended: dict[Any, set[tuple[int, Place]]] = {}
        self.label = ""
        for r in range(len(self.gpus)):
            self._begin(r)
        self.actions = {
            "nop": self._nop, **dict.fromkeys(("put", "pws", "pwsf"), self._put),
            "ppkt": self._put_packets, "signal": self._signal,
            "wait": self._wait, "flush": self._flush, "sem_acquire": self._wait,
            "sem_release": self._release, "rlxsignal": self._signal, "rlxwait": self._wait,
            **dict.fromkeys(FLOWS, self._combine),
        }  # fmt: skip

    def _begin(self, r: int) -> None:
        """Fill the buffers of a rank, as its user does; then let its threads and NICs begin."""
        for index, chunk in enumerate(self.layouts[r].inputs):
            assert self.collective is not None, "without it there are no inputs"
            self.contents[self._place(r, r, "i", index)] = content_at_start(self.collective, r, chunk)
        self.label = f"the caller of gpu {r}"
        # Calls that use two halves of scratch in turn need no order there; for other packets see `SHARED`.
        buffers = "io" if self.packed or self.halves else "ios"
        self.users.append({self._place(r, r, b, i) for b in buffers for i in range(self._size(r, b))})
        self.events.append(Event(self.label, (), (), self.users[r]))
        begun = self.last["user", r] = len(self.events) - 1
        self.begun.append(begun)
        for t in range(len(self.gpus[r]["threadblocks"])):
            self.last |= {(r, t, 0): begun, (r, t, 1): begun}
            self.ended |= {(r, t, 0): set(), (r, t, 1): set()}
        peers: Counter[tuple[str, int]] = Counter()
        for entry in self.gpus[r]["channels"]:
            for peer in entry["connected_to"]:
                # Channels between two ranks are paired in the order in which each rank lists them.
                kind = entry["channel_type"]
                channel = (kind, r, peer, peers[kind, peer])
                peers[kind, peer] += 1
                self.channels.setdefault((r, kind), []).append(channel)
                self.inboxes[channel] = deque()
                self.last[channel] = begun
        for number, each in enumerate(self.gpus[r].get("semaphores", ())):
            self.inboxes["semaphore", r, number] = deque([begun] * each["init_value"])

    def run(self) -> None:
        """Run all threadblocks to their ends; raise `VerificationError` if they deadlock."""
        position = dict.fromkeys(self.blocks, 0)
        awaited: dict[tuple[int, int], tuple[Any, ...]] = {}  # {threadblock: signal or packet}
        running, before = [*self.blocks], -1
        while before < (before := sum(position.values())):
            for r, t in running:
                if (r, t) in awaited and not self._has_come(awaited[r, t]):
                    continue
                ops = self.blocks[r, t]["ops"]
                for s in range(position[r, t], len(ops)):
                    op = ops[s]
                    self.label = f"operation {s} ({op['name']}) of threadblock {t} of gpu {r}"
                    absent = next((it for it in self._awaited(r, t, op) if not self._has_come(it)), None)
                    if absent is not None:
                        awaited[r, t] = absent
                        break
                    self.actions[op["name"]](r, t, op)
                    position[r, t] += 1
            running = [block for block in running if position[block] < len(self.blocks[block]["ops"])]
        stuck = [block for block, each in self.blocks.items() if position[block] < len(each["ops"])]
        for block in stuck:
            op = self.blocks[block]["ops"][position[block]]
            raise VerificationError(
                f"deadlock: {format_count(len(stuck), 'threadblock')} cannot go on; the first is threadblock "
                f"{block[1]} of gpu {block[0]}, at operation {position[block]} ({op['name']})"
            )
        for r in range(len(self.gpus)):
            self.label = f"the caller of gpu {r}, which continues"
            ended = [self.last[r, t, i] for t in range(len(self.gpus[r]["threadblocks"])) for i in (0, 1)]
            self._act(("user", r), *ended, writes=self.users[r])

    def check_end(self) -> bool:
        """True if outputs were checked; raises `VerificationError` for wrong outputs or leftover signals."""
        for inbox, signals in self.inboxes.items():
            kind, r, number = inbox[:3]
            at, left = f"a {kind} channel from gpu {number}", 0
            if kind == "semaphore":
                at, left = f"semaphore {number}", self.gpus[r]["semaphores"][number]["init_value"]
            if len(signals) != left:
                said = f"{format_count(len(signals) - left, 'signal')} too many at gpu {r} in {at}"
                raise VerificationError(said)
        if self.collective is None:
            return False
        expected = contents_of(self.collective)
        for r, where in enumerate(self.layouts):
            found = [self._content(self._place(r, r, "o", i)) for i in range(len(where.outputs))]
            wrong = [i for i, chunk in enumerate(where.outputs) if found[i] != expected[chunk]]
            if wrong:
                said = (
                    f"output: {format_count(len(wrong), 'chunk')} of gpu {r} wrong, the first is {wrong[0]}"
                )
                raise VerificationError(said)
        return True

    def _fault(self, what: str) -> VerificationError:
        return VerificationError(f"{self.label}: {what}")

    def _act(
        self,
        thread: Any,
        *after: int,
        reads: Collection[Place] = (),
        writes: Collection[Place] = (),
        received: Reads = frozenset(),
    ) -> None:
        """Record an event of a thread, after its previous event and the events `after`."""
        self.events.append(Event(self.label, {self.last[thread], *after}, reads, writes, received))
        self.last[thread] = len(self.events) - 1

    def _size(self, rank: int, buffer: str) -> int:
        chunks: int = self.gpus[rank][f"{_BUFFERS[buffer]}_chunks"]
        return chunks * 2 if buffer == "s" and self.packed else chunks

    def _place(self, rank: int, owner: int, buffer: str, index: int) -> Place:
        """Place of a chunk in a buffer of `owner`, as `rank` computes its address.

        For a buffer of another rank, the executor starts from the address that the other rank registered. It
        adds the offset that the same buffer of `rank` has within the allocation of `rank`.
        """
        slot = Slot(_BUFFERS[buffer], index)
        return owner, *self.layouts[rank].place(slot, in_place=self.in_place)

    def _places(self, rank: int, owner: int, buffer: str, chunks: Op) -> list[Place]:
        begin, end = chunks["index"], chunks["index"] + chunks["size"]
        if not 0 <= begin < end <= self._size(owner, buffer):
            raise self._fault(
                f"chunks {begin} to {end - 1} of {buffer} of gpu {owner}, which holds "
                f"{self._size(owner, buffer)}"
            )
        places = [self._place(rank, owner, buffer, index) for index in range(begin, end)]
        if buffer != "s" and not self.users[owner].issuperset(places):
            raise self._fault(f"chunks past the memory of gpu {owner}")
        return places

    def _own(self, r: int, chunks: Op) -> list[Place]:
        return self._places(r, r, chunks["type"], chunks)

    def _content(self, place: Place) -> Content:
        return self.contents.get(place) or Content.of([(place[0], place[1:])])

    def _channel(self, r: int, t: int, op: Op, i: int) -> Inbox:
        """Channel of the i-th channel id of an operation; ids are indices in the threadblock's own list."""
        kind, index = op["channel_type"], op["channel_ids"][i]
        if (key := ("channels", r, t, kind, index)) not in self.known:
            number = self._entry(self._listed(*key[:4]), index, f"{kind} channel", f"threadblock {t}")
            channels = self.channels.get((r, kind), [])
            self.known[key] = self._entry(channels, number, f"{kind} channel", f"gpu {r}")
        channel: Inbox = self.known[key]
        return channel

    def _listed(self, field: str, r: int, t: int, kind: str) -> list[int]:
        """Ids of one kind of channels in a list of a threadblock, `channels` or `remote_buffer_refs`."""
        key, ids = _LISTS[field]
        return [number for entry in self.blocks[r, t][field] if entry[key] == kind for number in entry[ids]]

    def _entry(self, entries: Sequence[Any], index: int, what: str, owner: str) -> Any:
        """Entry of a list by its index; raises `VerificationError` if `owner` has no such entry."""
        if not 0 <= index < len(entries):
            raise self._fault(f"{what} {index}; {owner} has {len(entries)}")
        return entries[index]

    def _remote(self, r: int, t: int, kind: str, dst: Op) -> tuple[int, str]:
        """Rank and buffer of a remote buffer id, which is an index in the threadblock's own list."""
        if (key := ("remote_buffer_refs", r, t, kind, dst["buffer_id"])) not in self.known:
            number = self._entry(self._listed(*key[:4]), key[4], "remote buffer", f"threadblock {t}")
            buffer = self._entry(self.gpus[r]["remote_buffers"], number, "remote buffer", f"gpu {r}")
            if kind not in buffer["access_channel_types"]:
                raise self._fault(f"its buffer is not reached over {kind} channels")
            self._entry(self.gpus, buffer["rank"], "buffer of gpu", "the plan")
            self.known[key] = buffer["rank"], buffer["type"]
        owner: tuple[int, str] = self.known[key]
        return owner

    def _inboxes(self, r: int, t: int, op: Op) -> list[Inbox]:
        """Inboxes to which an operation refers: ends of channels, or semaphores of its rank."""
        if "semaphore_ids" in op:
            every = self.gpus[r].get("semaphores", ())
            for number in op["semaphore_ids"]:
                if not 0 <= number < len(every):
                    self._entry(every, number, "semaphore", f"gpu {r}")
            return [("semaphore", r, number) for number in op["semaphore_ids"]]
        return [self._channel(r, t, op, i) for i in range(len(op["channel_ids"]))]

    def _awaited(self, r: int, t: int, op: Op) -> Sequence[tuple[Any, ...]]:
        """Inboxes and packets for which an operation waits; a packet is (rank, number of the packet)."""
        if op["name"] in ("wait", "rlxwait", "sem_acquire"):
            return self._inboxes(r, t, op)
        arriving = op["src_buff"][FIRST_PACKET[op["name"]] :] if op["name"] in FIRST_PACKET else ()
        return [(r, packet) for each in arriving for packet in _packets(each)]

    def _has_come(self, awaited: tuple[Any, ...]) -> bool:
        """True if an inbox has a signal, or a packet has arrived."""
        return bool(self.inboxes.get(awaited)) or awaited in self.packets

    def _nop(self, r: int, t: int, _op: Op) -> None:
        self._act((r, t, 0), self.last[r, t, 1])
        self.last[r, t, 1] = self.last[r, t, 0]
        self.ended[r, t, 0] |= self.ended[r, t, 1]
        self.ended[r, t, 1] |= self.ended[r, t, 0]

    def _signal(self, r: int, t: int, op: Op) -> None:
        for i, (kind, _, peer, number) in enumerate(self._inboxes(r, t, op)):
            thread: Any = (r, t, min(i, 1))
            if kind == "port":
                thread, asked = (kind, r, peer, number), self.last[thread]
                self._act(thread, asked)
            if (kind, peer, r, number) not in self.inboxes:
                raise self._fault(f"gpu {peer} has no end of the channel")
            if op["name"] == "rlxsignal" and kind == "memory":
                # No fence: it orders what the user did before the rank began, and reads that have ended.
                ended, thread = frozenset(self.ended[thread]), ("relaxed", r)
                self.last[thread] = self.begun[r]
                self._act(thread, received=ended)
            self.inboxes[kind, peer, r, number].append(self.last[thread])

    def _wait(self, r: int, t: int, op: Op) -> None:
        for i, inbox in enumerate(self._inboxes(r, t, op)):
            self._act((r, t, min(i, 1)), self.inboxes[inbox].popleft())

    def _release(self, r: int, t: int, op: Op) -> None:
        for i, inbox in enumerate(self._inboxes(r, t, op)):
            self.inboxes[inbox].append(self.last[r, t, min(i, 1)])

    def _flush(self, r: int, t: int, op: Op) -> None:
        # The executor flushes as many channels as the operation lists destinations.
        for i in range(min(len(op["channel_ids"]), len(op.get("dst_buff", ())))):
            self._act((r, t, min(i, 1)), self.last[self._channel(r, t, op, i)])

    def _put(self, r: int, t: int, op: Op) -> None:
        for i, (src, dst) in enumerate(zip(op["src_buff"], op["dst_buff"], strict=True)):
            kind = op["channel_type"]  # memory: all sources are taken from the first one's buffer
            reads = self._own(r, src | {"type": (src if kind == "port" else op["src_buff"][0])["type"]})
            targets = self._at_peer(r, t, kind, dst, src["type"] if kind == "port" else "")
            self._write(r, t, [self._content(place) for place in reads], reads, targets, op, i)
        if op["name"] == "put" or op["channel_type"] != "port":  # memory channels signal nothing here
            return
        if len(op["channel_ids"]) != len(op["dst_buff"]):
            raise self._fault(f"{len(op['channel_ids'])} channels for {len(op['dst_buff'])} destinations")
        self.label = f"the signal of {self.label}"  # events with one label are one access
        self._signal(r, t, op)
        if op["name"] == "pwsf":
            self._flush(r, t, op)

    def _write(
        self,
        r: int,
        t: int,
        values: list[Content],
        reads: list[Place],
        targets: list[Place],
        op: Op,
        i: int = 0,
        received: Reads = frozenset(),
    ) -> None:
        """Write values to the targets: over a port channel, the NIC writes; otherwise all threads write."""
        if len(values) != len(targets):
            raise self._fault(f"{len(values)} chunks go to {len(targets)}")
        if op.get("channel_type") == "port":
            self._act(self._channel(r, t, op, i), self.last[r, t, min(i, 1)], reads=reads, writes=targets)
        else:
            for thread in (0, 1):
                self._act((r, t, thread), reads=reads, writes=targets, received=received)
                self.ended[r, t, thread].update((self.last[r, t, thread], p) for p in reads if p[0] != r)
        self.contents |= zip(targets, values, strict=True)

    def _put_packets(self, r: int, t: int, op: Op) -> None:
        for src, dst in zip(op["src_buff"], op["dst_buff"], strict=True):
            reads = self._own(r, src | {"type": op["src_buff"][0]["type"]})
            values, fed = [self._content(place) for place in reads], list(map(self._read, reads))
            halves = self._send_packets(r, values, fed, self._remote(r, t, "memory", dst), dst)
            self._write(r, t, [value for value in values for _ in (0, 1)], reads, halves, op)

    def _read(self, place: Place) -> Reads:
        """Reads of a place by both threads of the next operation: {(number of the event, place)}."""
        return frozenset((len(self.events) + thread, place) for thread in (0, 1))

    def _send_packets(
        self, r: int, values: list[Content], fed: list[Reads], target: tuple[int, str], dst: Op
    ) -> list[Place]:
        """Send values as packets into a rank's scratch; return the two places of each packet in turn."""
        owner, buffer = target
        if buffer != "s":
            raise self._fault(f"packets go to {buffer}; expected s, scratch")
        if owner != r and not self.halves:
            raise FormatError(SHARED, where=self.label)
        for number, value, reads in zip(_packets(dst), values, fed, strict=True):
            if (owner, number) in self.packets:
                raise self._fault(f"packet {number} of gpu {owner} is written twice")
            self.packets[owner, number], self.fed[owner, number] = value, reads
        # Packet p occupies the places of chunks 2p and 2p + 1.
        return self._places(r, owner, "s", {"index": 2 * dst["index"], "size": 2 * dst["size"]})

    def _combine(self, r: int, t: int, op: Op) -> None:
        """Write the sum of an operation's sources to its destinations.

        The arrival of a packet does not imply that earlier writes of its sender have arrived, so no order of
        events is recorded for it. Reads on which its value depends have ended.
        """
        flow, reads = FLOWS[op["name"]], list[Place]()
        columns, fed = list[list[Content]](), list[list[Reads]]()  # of each source
        for kind, each in self._kinds(op["src_buff"], (flow.source, flow.further_sources)):
            if kind == "packets":
                columns.append([self.packets[r, packet] for packet in _packets(each)])
                fed.append([self.fed[r, packet] for packet in _packets(each)])
            else:
                places = self._own(r, each) if kind == "own" else self._at_peer(r, t, "memory", each)
                reads += places
                columns.append([self._content(place) for place in places])
                fed.append(list(map(self._read, places)))
        sums = [reduce(add, each) for each in zip(*columns, strict=True)]
        reads_of = [frozenset[tuple[int, Place]]().union(*each) for each in zip(*fed, strict=True)]
        values, targets = list[Content](), list[Place]()
        number_of: dict[Place, int] = {}  # {place of a destination: number of its chunk in the sum}
        for kind, dst in self._kinds(op["dst_buff"], flow[2:]):
            if kind.endswith("packets"):
                owner = (r, dst["type"]) if kind == "packets" else self._remote(r, t, "memory", dst)
                targets += self._send_packets(r, sums, reads_of, owner, dst)
                values += [value for value in sums for _ in (0, 1)]
            else:
                places = self._own(r, dst) if kind == "own" else self._at_peer(r, t, "memory", dst)
                number_of |= {place: number for number, place in enumerate(places)}
                targets += places
                values += sums
        # A thread writes a chunk of the sum once it has read the packets of that chunk alone.
        own = {len(self.events), len(self.events) + 1}
        received = frozenset(
            (event, place)
            for number, each in enumerate(reads_of)
            for event, place in each
            if event not in own and number_of.get(place, number) == number
        )
        self._write(r, t, values, reads, targets, {}, received=received)

    def _kinds(self, buffers: list[Op], kinds: Sequence[str]) -> Iterator[tuple[str, Op]]:
        """Yield the kind of each source or destination; the last of `kinds` is that of all further ones."""
        if not buffers:
            raise ValueError
        for place, each in enumerate(buffers):
            kind = kinds[min(place, len(kinds) - 1)]
            if not kind:
                raise self._fault(f"{len(buffers)} sources or destinations; expected {place}")
            yield kind, each

    def _at_peer(self, r: int, t: int, kind: str, chunks: Op, source: str = "") -> list[Place]:
        """Places of chunks in a buffer of another rank; `source`: own buffer from which a NIC fills them."""
        owner, buffer = self._remote(r, t, kind, chunks)
        if self.halves and "s" in (buffer, source):
            raise FormatError(FIXED, where=self.label)
        return self._places(r, owner, buffer, chunks)


def _packets(chunks: Op) -> range:
    return range(chunks["index"], chunks["index"] + chunks["size"])


def verify_plan(plan: Mapping[str, Any]) -> bool:
    """Run a plan with its root; if the plan states none, try each rank as root until one passes.

    Returns and raises as `run_plan`; if every root fails, the fault with root 0.
    """
    if isinstance(plan.get("root"), int):
        return run_plan(plan, root=plan["root"])
    try:
        return run_plan(plan)
    except VerificationError:
        for root in range(1, len(plan["gpus"]) if plan["collective"] in _ROOTED else 0):
            with suppress(VerificationError):
                return run_plan(plan, root=root)
        raise
