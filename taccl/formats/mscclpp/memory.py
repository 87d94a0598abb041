"""The memory of all ranks while an MSCCL++ plan runs: what is in it, and who touched it last.

Places are the user's before a rank begins, and again when its threadblocks have ended. In place, input and
output are one array: the smaller lies in it where the collective's own chunks of that rank are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.errors import FormatError, VerificationError
from taccl.program.execution import Content
from taccl.units import format_count

_CHUNKS = {"i": "input_chunks", "o": "output_chunks", "s": "scratch_chunks"}
_JUDGED = ("allgather", "allreduce", "reducescatter", "alltoall", "broadcast", "reduce")


class _Place(NamedTuple):
    """A chunk's place: of which rank, in which memory, and where."""

    rank: int
    memory: str
    slot: int


def packets(chunks: Mapping[str, Any]) -> range:
    """The numbers of the packets that an operation names; packet p lies where chunks 2p and 2p + 1 would."""
    return range(chunks["index"], chunks["index"] + chunks["size"])


class Clocks:
    """Who knows what of whom: vector clocks of all threads, and the last accesses to every place.

    Every thread counts what it did. A thread that waits for another learns what that one knew when it told of
    itself. Two accesses to one place, one of them a write, are in order if whoever came later knew of the
    earlier; see Flanagan and Freund, FastTrack (PLDI 2009).
    """

    def __init__(self, num_threads: int) -> None:
        self._known = np.zeros((num_threads, num_threads), dtype=np.int32)
        np.fill_diagonal(self._known, 1)
        # The last writers of a place as (thread, count), and those who read since; with what did it.
        self._written: dict[_Place, tuple[tuple[tuple[int, int], ...], str]] = {}
        self._read: dict[_Place, dict[int, tuple[int, str]]] = {}

    def snapshot(self, thread: int) -> NDArray[np.int32]:
        """What a thread knows now; what it does from here on is later than that."""
        known: NDArray[np.int32] = self._known[thread].copy()
        self._known[thread, thread] += 1
        return known

    def join(self, thread: int, known: NDArray[np.int32]) -> None:
        """A thread learns what another knew."""
        np.maximum(self._known[thread], known, out=self._known[thread])

    def meet(self, threads: tuple[int, ...]) -> None:
        """Threads wait for each other."""
        for known in [self.snapshot(thread) for thread in threads]:
            for thread in threads:
                self.join(thread, known)

    def access(self, place: _Place, threads: tuple[int, ...], label: str, *, writes: bool) -> str:
        """Note an access by several threads, each perhaps to all of the place; returns what races with it.

        The accesses of one operation do not race with each other.
        """
        writers, by = self._written.get(place, ((), ""))
        readers = self._read.pop(place, {})
        earlier = [(thread, count, by) for thread, count in writers]
        if writes:
            earlier += [(reader, count, reading) for reader, (count, reading) in readers.items()]
        now = [(thread, int(self._known[thread, thread])) for thread in threads]
        if writes:
            self._written[place] = (tuple(now), label)
        else:
            self._read[place] = readers | {thread: (count, label) for thread, count in now}
        clashes = (
            what
            for thread in threads
            for other, count, what in earlier
            if what != label and self._known[thread, other] < count
        )
        return next(clashes, "")

    def touched(self, rank: int) -> list[_Place]:
        """Every place of a rank that was accessed."""
        return [place for place in {**self._written, **self._read} if place.rank == rank]


class PlanMemory:
    """What is in the buffers, and the accesses to them; what `label` does wrong is raised."""

    def __init__(self, plan: Mapping[str, Any], clocks: Clocks | None, users: range) -> None:
        self.collective, self.in_place = plan["collective"], bool(plan["inplace"])
        self.packed = plan["protocol"] == "LL"
        self.gpus: Sequence[Mapping[str, Any]] = plan["gpus"]
        self.clocks, self.users = clocks, users
        self.label = ""
        self.flags: list[set[int]] = [set() for _ in self.gpus]
        self.offsets = [self._offsets(r, gpu) for r, gpu in enumerate(self.gpus)]
        self.sizes = [self._sizes(gpu, *begins) for gpu, begins in zip(self.gpus, self.offsets, strict=True)]
        self.contents: dict[_Place, Content] = {}
        for r, (gpu, (begin, _)) in enumerate(zip(self.gpus, self.offsets, strict=True)):
            for index in range(gpu["input_chunks"]):
                self.contents[self._place(r, "i", begin + index)] = Content.of([(r, index)])
            self.label = f"the user of gpu {r}"
            for name, size in self.sizes[r].items():
                # Packets of two calls lie in two halves of the scratch: nothing is left there.
                for index in range(0 if self.packed and name == "s" else size):
                    self._note(_Place(r, name, index), (users[r],), writes=True)

    def fault(self, what: str) -> VerificationError:
        """The error that says what the operation under way does wrong."""
        return VerificationError(f"{self.label}: {what}")

    def _offsets(self, r: int, gpu: Mapping[str, Any]) -> tuple[int, int]:
        """Where input and output begin in the user's array."""
        if gpu["id"] != r:
            raise FormatError(f"found gpu {gpu['id']} in place {r}; expected them in order", where="plan")
        if gpu["input_chunks"] < 1 or gpu["output_chunks"] < 1:
            raise FormatError(
                f"gpu {r} has {gpu['input_chunks']} input and {gpu['output_chunks']} output chunks; expected "
                "at least one each",
                where="plan",
            )
        if self.in_place and self.collective == "allgather":
            return r * gpu["input_chunks"], 0
        if self.in_place and self.collective == "reducescatter":
            return 0, r * gpu["output_chunks"]
        return 0, 0

    def _sizes(self, gpu: Mapping[str, Any], begin_in: int, begin_out: int) -> dict[str, int]:
        """Chunks of each of a rank's memories."""
        inputs, outputs = gpu["input_chunks"] + begin_in, gpu["output_chunks"] + begin_out
        users = {"user": max(inputs, outputs)} if self.in_place else {"i": inputs, "o": outputs}
        return {"s": gpu["scratch_chunks"] * (2 if self.packed else 1)} | users

    def _place(self, rank: int, buffer: str, index: int) -> _Place:
        return _Place(rank, "user" if self.in_place and buffer in "io" else buffer, index)

    def rows(self, rank: int, owner: int, buffer: str, chunks: Mapping[str, Any]) -> list[_Place]:
        """The places of neighbouring chunks in a buffer of `owner`, as `rank` works out their addresses."""
        held = self.gpus[owner][_CHUNKS[buffer]] * (2 if buffer == "s" and self.packed else 1)
        begin, end = chunks["index"], chunks["index"] + chunks["size"]
        if begin < 0 or end > held or begin >= end:
            raise self.fault(f"chunks {begin} to {end - 1} of {buffer} of gpu {owner}, which holds {held}")
        # The executor adds the offset of its own buffer in its allocation to the address of the other's.
        own = 0 if buffer == "s" else self.offsets[rank]["io".index(buffer)]
        return [self._place(owner, buffer, own + index) for index in range(begin, end)]

    def read(self, place: _Place, threads: tuple[int, ...]) -> Content:
        """A chunk, read by threads."""
        self._note(place, threads, writes=False)
        return self._content(place)

    def _content(self, place: _Place) -> Content:
        return self.contents.get(place) or Content.of([(place.rank, place[1:])])

    def write(self, place: _Place, value: Content, threads: tuple[int, ...]) -> None:
        """A chunk, written by threads."""
        self._note(place, threads, writes=True)
        if place.slot >= self.sizes[place.rank][place.memory]:
            raise self.fault(f"writes past the memory of gpu {place.rank}")
        self.contents[place] = value

    def put(self, values: list[Content], targets: list[_Place], threads: tuple[int, ...]) -> None:
        """Write chunks to as many places."""
        if len(values) != len(targets):
            raise self.fault(f"{len(values)} chunks go to {len(targets)}")
        for place, value in zip(targets, values, strict=True):
            self.write(place, value, threads)

    def send_packet(self, peer: int, number: int, value: Content, threads: tuple[int, ...]) -> None:
        """Write one packet; each has its place for itself."""
        if number in self.flags[peer]:
            raise self.fault(f"packet {number} of gpu {peer} is written twice")
        for half in (2 * number, 2 * number + 1):
            self.write(_Place(peer, "s", half), value, threads)
        self.flags[peer].add(number)

    def packet(self, rank: int, number: int) -> Content:
        """The data of a packet. That it came says nothing of anything else that its sender did."""
        return self._content(_Place(rank, "s", 2 * number))

    def end(self) -> None:
        """The memory is the users' again."""
        if self.clocks is None:
            return
        for r, user in enumerate(self.users):
            self.label = f"the user of gpu {r}, who goes on"
            for place in self.clocks.touched(r):
                if not (self.packed and place.memory == "s"):
                    self._note(place, (user,), writes=True)

    def check_outputs(self, root: int) -> bool:
        """Whether it is known what the outputs must be, which they are then."""
        if self.collective not in _JUDGED:
            return False
        for r, gpu in enumerate(self.gpus):
            begin = self.offsets[r][1]
            wrong = [
                index
                for index in range(gpu["output_chunks"] if self.collective != "reduce" or r == root else 0)
                if self._content(self._place(r, "o", begin + index)) != self._wanted(r, root, index)
            ]
            if wrong:
                raise VerificationError(
                    f"output: {format_count(len(wrong), 'chunk')} of gpu {r} wrong, the first is {wrong[0]}"
                )
        return True

    def _wanted(self, rank: int, root: int, index: int) -> Content:
        """What the collective asks for in a chunk of a rank's output."""
        everyone, inputs = range(len(self.gpus)), self.gpus[rank]["input_chunks"]
        if self.collective == "broadcast":
            return Content.of([(root, index)])
        if self.collective == "allgather":
            return Content.of([divmod(index, inputs)])
        part = inputs // len(everyone)
        if self.collective == "alltoall":
            sender, place = divmod(index, part)
            return Content.of([(sender, rank * part + place)])
        first = rank * part if self.collective == "reducescatter" else 0
        return Content.of((other, first + index) for other in everyone)

    def _note(self, place: _Place, threads: tuple[int, ...], *, writes: bool) -> None:
        other = "" if self.clocks is None else self.clocks.access(place, threads, self.label, writes=writes)
        if other:
            raise VerificationError(f"race: nothing orders {self.label} and {other}")
