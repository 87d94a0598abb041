"""A network probed by MPI ranks: latency and bandwidth of every pair, in rounds of disjoint pairs."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from taccl.arguments import checked
from taccl.errors import ExecutionError, InputError, TacclError
from taccl.formats.files import check_writable
from taccl.placement.matrices import load_probe
from taccl.placement.probe import APART, Probe
from taccl.runtime.environment import import_mpi, launched_by
from taccl.runtime.rank_execution import gathered, patiently, told
from taccl.topology.clusters import completed, levels
from taccl.units import format_count, parse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from taccl.arguments import Count, Size

__all__ = ["pairs_of_round", "probe", "probe_on_rank"]

#: Messages before those that count.
_WARM_UP = 3
#: Large messages are fewer: a part of the small ones, and so many at least.
_FEWER, _FEWEST = 4, 3
#: A way out is shared where all together get less than this part of what each gets alone; our choice.
_SHARED = 0.75
#: Seconds for which a round may be silent.
_ROUND_S = 120.0
_TAG = 17


def pairs_of_round(num_ranks: int, number: int) -> list[tuple[int, int]]:
    """The pairs of a round: of all rounds together every pair is in one, and no rank is twice in a round.

    (The circle method of round-robin tournaments: one rank stays, the others go round. Of an odd number one
    rank pauses in every round.)
    """
    places = num_ranks + num_ranks % 2
    circle = [0, *(1 + (number + place) % (places - 1) for place in range(places - 1))]
    pairs = ((circle[i], circle[places - 1 - i]) for i in range(places // 2))
    return [(min(pair), max(pair)) for pair in pairs if max(pair) < num_ranks]


@checked
def probe(
    comm: Any = None,
    *,
    ranks: Count | None = None,
    rounds: Count | None = None,
    size: Size = "1MB",
    repetitions: Count = 20,
    path: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    note: Callable[[str], None] = lambda _: None,
) -> Probe:
    """Latency and bandwidth between MPI ranks, by messages between all pairs of them.

    In each of n - 1 rounds (n of an odd number) every rank has one partner. A small message goes back and
    forth, which gives latencies, then a large one goes forth and a small one back. Of ranks that share a
    machine, no more are at it than there are cores. Where hosts form clusters, those of one send out together
    and one by one, which shows what they share.

    Parameters
    ----------
    comm : mpi4py communicator, optional
        Whose ranks call this together; all get the same answer. By default those that a launcher started this
        process with, or else ranks started on this machine.
    ranks : int, optional
        How many to start on this machine.
    rounds : int, optional
        Fewer rounds: a sample of pairs, two rounds at least. By default all.
    size : int or str
        Of the large messages.
    repetitions : int
        Small messages of a pair that count, of which the median does; large ones are a quarter of these.
    path : path, optional
        Where the probe is written. Until then what is known is beside it, in ``PATH.part``; a probe that was
        broken off goes on from there.
    overwrite : bool
        Whether a file there may be replaced.
    note : callable, optional
        Told what is going on, at rank 0.

    Raises
    ------
    InputError
        If there are fewer than two ranks, or the file is there already.
    ExecutionError
        If there is no MPI, or a rank dies.
    """
    request = {
        "rounds": rounds, "size": parse_size(size, where="size"), "repetitions": repetitions,
        "path": None if path is None else os.path.abspath(path), "overwrite": overwrite,
    }  # fmt: skip
    launch = launched_by()
    if comm is None and launch is None:
        from taccl.runtime.launch import launched

        if ranks is None or ranks < 2:
            found = "none" if ranks is None else str(ranks)
            raise InputError(f"found {found}; expected two ranks or more to start here", where="ranks")
        if path is not None:
            check_writable(path, overwrite=overwrite)
        report = launched(
            "taccl.placement.worker", ranks, request, timeout_s=_ROUND_S + repetitions, note=note
        )
        return Probe.from_dict(report)
    mpi = import_mpi()
    comm = mpi.COMM_WORLD if comm is None else comm
    if ranks not in (None, comm.size):
        raise InputError(f"found {ranks}, but there are {comm.size} MPI ranks; leave it out", where="ranks")
    return Probe.from_dict(probe_on_rank(comm, request, note=note))


def probe_on_rank(
    comm: Any,
    request: dict[str, Any],
    *,
    note: Callable[[str], None] = lambda _: None,
    expect: Callable[[str, float | None], None] = lambda *_: None,
) -> dict[str, Any]:
    """One rank's part of a probe; every rank gets the whole of it, as plain values.

    - `request`: What `probe` was asked for, the same at every rank.
    - `expect`: Told what comes next, and within which time.
    """
    work = _Work(comm.Dup(), request, note if comm.rank == 0 else lambda _: None, expect)
    found = work.run()
    work.comm.Free()
    return found


class _Work:
    """One rank's part, and at rank 0 what all have measured."""

    def __init__(
        self,
        comm: Any,
        request: dict[str, Any],
        note: Callable[[str], None],
        expect: Callable[[str, float | None], None],
    ) -> None:
        self.comm, self.note, self.expect = comm, note, expect
        self.size_bytes, self.repetitions = int(request["size"]), int(request["repetitions"])
        every = comm.size - 1 + comm.size % 2
        self.rounds = list(range(every))
        if request["rounds"] is not None and request["rounds"] < every:
            chosen = np.linspace(0, every - 1, max(2, request["rounds"]))
            self.rounds = sorted({round(each) for each in chosen.tolist()})
        self.path = None if request["path"] is None else Path(request["path"])
        self.overwrite = bool(request["overwrite"])
        self.latency_us, self.gb_per_s, self.spread = (np.full((comm.size,) * 2, np.nan) for _ in range(3))
        self.large = np.zeros(self.size_bytes, dtype=np.uint8)
        self.small = np.zeros(1, dtype=np.uint8)

    def run(self) -> dict[str, Any]:
        """All rounds, and what shows whether ways are shared."""
        self.hosts = self._begun()
        for number, index in enumerate(self.rounds, 1):
            self.note(f"round {number} of {len(self.rounds)}")
            self._round(pairs_of_round(self.comm.size, index))
        self._settle()
        self.note("sending out of clusters together")
        uplinks = self._uplinks()
        found = told(self.comm, self._probe(uplinks).to_dict() if self.comm.rank == 0 else None)
        if self.comm.rank == 0 and self.path is not None:
            self._tried(lambda: Probe.from_dict(found).save(self.path or "", overwrite=self.overwrite))
            self._part.unlink(missing_ok=True)
        self._tried(None)
        whole: dict[str, Any] = found
        return whole

    @property
    def _part(self) -> Path:
        assert self.path is not None
        return self.path.with_name(self.path.name + ".part")

    def _begun(self) -> list[str]:
        """The hosts of all ranks; rank 0 goes on where an earlier probe of the same was broken off."""
        from mpi4py import MPI

        self.expect("agreeing on what to do", _ROUND_S)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        every = told(self.comm, gathered(self.comm, [MPI.Get_processor_name(), cores]))
        hosts: list[str] = [name for name, _ in every]
        self.cores: dict[str, int] = dict(every)
        if self.comm.size < 2:
            raise InputError("found 1 MPI rank; expected two or more", where="mpiexec")

        def begin() -> None:
            if self.path is None:
                return
            check_writable(self.path, overwrite=self.overwrite)
            if not self._part.exists():
                return
            before = load_probe(self._part)
            if list(before.hosts) != hosts:
                said = "found a probe of other hosts that was broken off; remove it, or give another path"
                raise InputError(said, where=str(self._part))
            if before.latency_us is not None and before.bandwidth_gb_per_s is not None:
                self.latency_us, self.gb_per_s = before.latency_us.copy(), before.bandwidth_gb_per_s.copy()

        self._tried(begin if self.comm.rank == 0 else None)
        known: list[bool] = told(
            self.comm,
            [
                all(np.isfinite(self.latency_us[pair]) for pair in pairs_of_round(self.comm.size, index))
                for index in self.rounds
            ],
        )
        if any(known):
            self.note(f"{format_count(sum(known), 'round')} were measured before")
        self.rounds = [index for index, is_known in zip(self.rounds, known, strict=True) if not is_known]
        return hosts

    def _tried(self, act: Callable[[], None] | None) -> None:
        """Let rank 0 do something that may fail; if it does, every rank has the same error."""
        message, error = "", None
        if act is not None:
            try:
                act()
            except TacclError as caught:
                message, error = str(caught), caught
        message = told(self.comm, message)
        if error is not None:
            raise error
        if message:
            raise ExecutionError(message)

    def _round(self, pairs: Sequence[tuple[int, int]]) -> None:
        for batch in _batches(pairs, self.hosts, self.cores):
            self.expect("a round", _ROUND_S + self.repetitions)
            patiently(self.comm.Ibarrier())
            everyone = gathered(self.comm, self._measured(batch))
            for a, b in (each for pair in batch for each in (pair, pair[::-1])):
                if everyone is not None:
                    self.latency_us[a, b], self.gb_per_s[a, b], self.spread[a, b] = everyone[a]
        if self.path is not None and self.comm.rank == 0:
            with contextlib.suppress(TacclError):  # what is kept on the way is no more than a help
                self._probe((), sampled=True).save(self._part, overwrite=True)

    def _measured(self, pairs: Sequence[tuple[int, int]]) -> list[float]:
        """From this rank to its partner: microseconds, GB/s, and the spread; nothing without one."""
        mine: list[float] = []
        for pair in pairs:
            if self.comm.rank not in pair:
                continue
            partner = sum(pair) - self.comm.rank
            for begins in pair:
                few = max(_FEWEST, self.repetitions // _FEWER)
                latency = self._there_and_back(partner, begins, self.small, self.repetitions) / 2
                large = self._there_and_back(partner, begins, self.large, few)
                if begins == self.comm.rank:
                    low, middle, high = np.percentile(latency, (25, 50, 75)).tolist()
                    one_way_s = max(float(np.median(large)) - middle, 1e-9)
                    mine = [middle * 1e6, self.size_bytes / one_way_s / 1e9, (high - low) / middle]
        return mine

    def _settle(self) -> None:
        """Measure pairs again, alone, whose directions differ much; then the faster one counts."""
        matrices = (self.latency_us, self.gb_per_s)
        apart = [np.maximum(each / each.T, each.T / each) > APART for each in matrices]
        odd = np.argwhere(np.triu(apart[0] | apart[1])) if self.comm.rank == 0 else np.empty((0, 2))
        before = [each.copy() for each in matrices]
        for a, b in told(self.comm, odd.tolist()):
            self.note(f"measuring ranks {a} and {b} again")
            self._round([(a, b)])
        if self.comm.rank == 0:
            np.fmin(before[0], self.latency_us, out=self.latency_us)
            np.fmax(before[1], self.gb_per_s, out=self.gb_per_s)
            for pair in odd.astype(int):
                both = (pair, pair[::-1])
                self.latency_us[both] = self.latency_us[both].min()
                self.gb_per_s[both] = self.gb_per_s[both].max()

    def _there_and_back(
        self, partner: int, begins: int, message: NDArray[np.uint8], count: int
    ) -> NDArray[np.float64]:
        """Seconds until a small answer to each message is here, at the rank that begins."""
        took = np.zeros(count)
        for turn in range(-_WARM_UP, count):
            if begins == self.comm.rank:
                began = time.perf_counter()
                self.comm.Send(message, dest=partner, tag=_TAG)
                self.comm.Recv(self.small, source=partner, tag=_TAG)
                took[max(turn, 0)] = time.perf_counter() - began
            else:
                self.comm.Recv(message, source=partner, tag=_TAG)
                self.comm.Send(self.small, dest=partner, tag=_TAG)
        return took

    def _uplinks(self) -> tuple[tuple[tuple[int, ...], float], ...]:
        """Clusters whose ranks get less together than one by one, and what they get together."""
        labels: list[int] | None = None
        if self.comm.rank == 0:
            found = levels(completed(self.latency_us))
            labels = found[0].tolist() if found else [0] * self.comm.size
        labels = told(self.comm, labels)
        assert labels is not None
        shared = []
        for cluster in range(max(labels) + 1):
            inside = [rank for rank, label in enumerate(labels) if label == cluster]
            outside = [rank for rank, label in enumerate(labels) if label != cluster]
            pairs = list(zip(inside, outside, strict=False))
            if len(pairs) < 2:
                continue
            alone = sum(self._rate([pair]) for pair in pairs)
            together = self._rate(pairs)
            if together < _SHARED * alone:
                shared.append((tuple(inside), together))
        return tuple(shared)

    def _rate(self, pairs: Sequence[tuple[int, int]]) -> float:
        """GB/s of all pairs together, while each sends one message after another; the same at every rank."""
        self.expect("sending out of a cluster", _ROUND_S)
        patiently(self.comm.Ibarrier())
        took = 0.0
        for src, dst in pairs:
            if self.comm.rank in (src, dst):
                other = dst if self.comm.rank == src else src
                took = float(np.median(self._there_and_back(other, src, self.large, 2 * _FEWEST)))
        longest = gathered(self.comm, took if self.comm.rank in [src for src, _ in pairs] else 0.0)
        rate = 0.0
        if longest is not None:
            rate = sum(self.size_bytes / each / 1e9 for each in longest if each)
        found: float = told(self.comm, rate)
        return found

    def _probe(self, uplinks: Any, *, sampled: bool | None = None) -> Probe:
        missing = np.isnan(self.latency_us) & ~np.eye(self.comm.size, dtype=bool)
        spread = None if np.isnan(self.spread).all() else float(np.nanmedian(self.spread))
        return Probe(
            tuple(self.hosts), self.latency_us, self.gb_per_s,
            sampled=bool(missing.any()) if sampled is None else sampled, uplinks=uplinks,
            latency_spread=spread,
        )  # fmt: skip


def _batches(
    pairs: Sequence[tuple[int, int]], hosts: Sequence[str], cores: dict[str, int]
) -> list[list[tuple[int, int]]]:
    """Pairs that are measured at one time: together they have a core for every rank, or one pair is alone."""
    batches: list[list[tuple[int, int]]] = []
    busy: Counter[str] = Counter()
    for pair in pairs:
        ours = Counter(hosts[rank] for rank in pair)
        if not batches or any(busy[host] + number > cores[host] for host, number in ours.items()):
            batches.append([])
            busy.clear()
        batches[-1].append(pair)
        busy += ours
    return batches
