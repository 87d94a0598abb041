"""Who knows what of whom: vector clocks, and the accesses to memory that nothing orders.

Every thread counts what it did. A thread that waits for another learns what that one knew when it told of
itself. Two accesses to one place, one of them a write, are in order if whoever came later knew of the
earlier; see Flanagan and Freund, FastTrack (PLDI 2009).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["Clocks"]


class Clocks:
    """The clocks of all threads, and the last accesses to every place."""

    def __init__(self, num_threads: int) -> None:
        self._known = np.zeros((num_threads, num_threads), dtype=np.int32)
        np.fill_diagonal(self._known, 1)
        # The last writers of a place as (thread, count), and those who read since; with what did it.
        self._written: dict[Any, tuple[tuple[tuple[int, int], ...], str]] = {}
        self._read: dict[Any, dict[int, tuple[int, str]]] = {}

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

    def read(self, place: Any, threads: tuple[int, ...], label: str) -> str:
        """Note a read by several threads, each perhaps of all of the place; returns what races with it."""
        writers, by = self._written.get(place, ((), ""))
        readers = self._read.setdefault(place, {})
        clash = ""
        for thread in threads:
            if by != label and any(self._known[thread, w] < count for w, count in writers):
                clash = by
            readers[thread] = (int(self._known[thread, thread]), label)
        return clash

    def write(self, place: Any, threads: tuple[int, ...], label: str) -> str:
        """Note a write likewise; the accesses of one operation do not race with each other."""
        writers, by = self._written.get(place, ((), ""))
        readers = self._read.pop(place, {})
        clash = ""
        for thread in threads:
            if by != label and any(self._known[thread, w] < count for w, count in writers):
                clash = by
            for reader, (count, reading) in readers.items():
                if reading != label and self._known[thread, reader] < count:
                    clash = reading
        self._written[place] = (tuple((t, int(self._known[t, t])) for t in threads), label)
        return clash

    def touched(self, rank: int) -> Iterator[Any]:
        """Every place of a rank that was accessed."""
        yield from [place for place in {**self._written, **self._read} if place.rank == rank]
