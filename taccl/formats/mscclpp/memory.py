"""The memory of all ranks while an MSCCL++ plan runs: what is in it, and who touched it last.

Places are the user's before a rank begins, and again when its threadblocks have ended. In place, input and
output are one array: the smaller lies in it where the collective's own chunks of that rank are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.errors import FormatError
from taccl.units import format_count

_CHUNKS = {"i": "input_chunks", "o": "output_chunks", "s": "scratch_chunks"}
#: Two 64-bit numbers a chunk: that a wrong one looks right by chance is out of the question.
_ELEMENTS = 2
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
    """Buffers of random whole numbers, and the accesses to them; `faults` tells what `label` did wrong."""

    def __init__(
        self, plan: Mapping[str, Any], random: np.random.Generator, clocks: Clocks | None, users: range
    ) -> None:
        self.collective, self.in_place = plan["collective"], bool(plan["inplace"])
        self.packed = plan["protocol"] == "LL"
        self.gpus: Sequence[Mapping[str, Any]] = plan["gpus"]
        self.clocks, self.users = clocks, users
        self.faults: list[str] = []
        self.label = ""
        self.flags: list[set[int]] = [set() for _ in self.gpus]
        self.offsets = [self._offsets(r, gpu) for r, gpu in enumerate(self.gpus)]
        self.arrays: list[dict[str, NDArray[np.int64]]] = []
        for gpu, (begin_in, begin_out) in zip(self.gpus, self.offsets, strict=True):
            inputs, outputs = gpu["input_chunks"] + begin_in, gpu["output_chunks"] + begin_out
            scratch = gpu["scratch_chunks"] * (2 if self.packed else 1)
            sizes = {"s": scratch} | (
                {"user": max(inputs, outputs)} if self.in_place else {"i": inputs, "o": outputs}
            )
            self.arrays.append(
                {
                    name: random.integers(-(2**61), 2**61, size=(rows, _ELEMENTS), dtype=np.int64)
                    for name, rows in sizes.items()
                }
            )
        self.inputs = [
            self._whole(r, "i")[begin : begin + gpu["input_chunks"]].copy()
            for r, (gpu, (begin, _)) in enumerate(zip(self.gpus, self.offsets, strict=True))
        ]
        if clocks is not None:
            for r, memory in enumerate(self.arrays):
                for name, rows in memory.items():
                    # Packets of two calls lie in two halves of the scratch: nothing is left there.
                    for index in range(0 if self.packed and name == "s" else len(rows)):
                        place = _Place(r, name, index)
                        clocks.access(place, (users[r],), f"the user of gpu {r}", writes=True)

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

    def _whole(self, r: int, buffer: str) -> NDArray[np.int64]:
        return self.arrays[r]["user" if self.in_place and buffer in "io" else buffer]

    def rows(self, rank: int, owner: int, buffer: str, chunks: Mapping[str, Any]) -> list[_Place]:
        """The places of neighbouring chunks in a buffer of `owner`, as `rank` works out their addresses."""
        held = self.gpus[owner][_CHUNKS[buffer]] * (2 if buffer == "s" and self.packed else 1)
        begin, end = chunks["index"], chunks["index"] + chunks["size"]
        if begin < 0 or end > held or begin >= end:
            self.faults.append(
                f"{self.label}: chunks {begin} to {end - 1} of {buffer} of gpu {owner}, which holds {held}"
            )
            return []
        if buffer == "s" or not self.in_place:
            return [_Place(owner, buffer, index) for index in range(begin, end)]
        # The executor adds the offset of its own buffer in its allocation to the address of the other's.
        own = self.offsets[rank]["io".index(buffer)]
        return [_Place(owner, "user", own + index) for index in range(begin, end)]

    def read(self, place: _Place, threads: tuple[int, ...]) -> Any:
        """A chunk, read by threads."""
        self._note(place, threads, writes=False)
        return self.arrays[place.rank][place.memory][place.slot].copy()

    def write(self, place: _Place, value: Any, threads: tuple[int, ...]) -> None:
        """A chunk, written by threads."""
        self._note(place, threads, writes=True)
        memory = self.arrays[place.rank][place.memory]
        if place.slot >= len(memory):
            self.faults.append(f"{self.label}: writes past the memory of gpu {place.rank}")
            return
        memory[place.slot] = value

    def put(self, values: list[Any], targets: list[_Place], threads: tuple[int, ...]) -> None:
        """Write chunks to as many places."""
        if len(values) != len(targets):
            self.faults.append(f"{self.label}: {len(values)} chunks go to {len(targets)}")
            return
        for place, value in zip(targets, values, strict=True):
            self.write(place, value, threads)

    def send_packet(self, peer: int, number: int, value: Any, threads: tuple[int, ...]) -> None:
        """Write one packet; each has its place for itself."""
        if number in self.flags[peer]:
            self.faults.append(f"{self.label}: packet {number} of gpu {peer} is written twice")
        for half in (2 * number, 2 * number + 1):
            self.write(_Place(peer, "s", half), value, threads)
        self.flags[peer].add(number)

    def packet(self, rank: int, number: int) -> Any:
        """The data of a packet. That it came says nothing of anything else that its sender did."""
        return self.arrays[rank]["s"][2 * number].copy()

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
        """Whether it is known what the outputs must be; faults where they are not."""
        if self.collective not in _JUDGED:
            return False
        for r, gpu in enumerate(self.gpus):
            if self.collective == "reduce" and r != root:
                continue
            begin = self.offsets[r][1]
            found = self._whole(r, "o")[begin : begin + gpu["output_chunks"]]
            wrong = np.flatnonzero((found != self._wanted(r, root)).any(axis=1))
            if wrong.size:
                self.faults.append(
                    f"output: {format_count(wrong.size, 'chunk')} of gpu {r} wrong, the first is {wrong[0]}"
                )
        return True

    def _wanted(self, r: int, root: int) -> NDArray[np.int64]:
        whole = np.stack(self.inputs)
        if self.collective == "broadcast":
            return np.asarray(whole[root])
        if self.collective == "allgather":
            return whole.reshape(-1, _ELEMENTS)
        if self.collective in ("allreduce", "reduce"):
            return np.asarray(whole.sum(axis=0))
        part = whole.shape[1] // len(self.gpus)
        mine = whole[:, r * part : (r + 1) * part]
        return mine.sum(axis=0) if self.collective == "reducescatter" else mine.reshape(-1, _ELEMENTS)

    def _note(self, place: _Place, threads: tuple[int, ...], *, writes: bool) -> None:
        other = "" if self.clocks is None else self.clocks.access(place, threads, self.label, writes=writes)
        if other:
            self.faults.append(f"race: nothing orders {self.label} and {other}")
