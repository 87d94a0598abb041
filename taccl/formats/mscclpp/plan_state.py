"""State of a symbolic run of an MSCCL++ plan: memory of ranks, channels, and events of threads and NICs."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from taccl.errors import FormatError, VerificationError
from taccl.formats.mscclpp.operations import FIXED, collective_of_plan
from taccl.program.contents import Content, content_at_start
from taccl.program.execution import Event
from taccl.program.layout import RankLayout, layout
from taccl.program.program import Slot

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


class PlanState:
    """Buffers of all ranks, signals in flight, and the last event of every thread, NIC and user.

    Each lookup of a channel or a buffer raises `VerificationError` if the plan does not have it.
    """

    def __init__(self, plan: Mapping[str, Any], root: int) -> None:
        self.gpus: Sequence[Mapping[str, Any]] = plan["gpus"]
        self.in_place, self.packed = bool(plan["inplace"]), plan["protocol"] == "LL"
        self.halves = bool(plan.get("use_double_scratch_buffer"))  # of scratch, for calls in turn
        self.blocks: dict[tuple[int, int], Mapping[str, Any]] = {}
        for r, gpu in enumerate(self.gpus):
            self.blocks |= {(r, t): threadblock for t, threadblock in enumerate(gpu["threadblocks"])}
        self.collective = collective_of_plan(plan, root)
        self.layouts = (RankLayout((), ()),) * len(self.gpus)
        if self.collective is not None:
            self.layouts = layout(self.collective)
        self.users: list[set[Place]] = []  # places that each rank's user accesses, before and after the run
        self.contents: dict[Place, Content] = {}
        self.packets: dict[tuple[int, int], Content] = {}
        self.senders: dict[tuple[int, int], int] = {}  # {packet: rank that wrote it}
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

    def _at_peer(self, r: int, t: int, kind: str, chunks: Op, source: str = "") -> list[Place]:
        """Places of chunks in a buffer of another rank; `source`: own buffer from which a NIC fills them."""
        owner, buffer = self._remote(r, t, kind, chunks)
        if self.halves and "s" in (buffer, source):
            raise FormatError(FIXED, where=self.label)
        return self._places(r, owner, buffer, chunks)
