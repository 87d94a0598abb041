"""Network probe with MPI ranks: latency and bandwidth of every pair, in rounds of disjoint pairs."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arguments import Count, Size, checked, quoted
from taccl._internal.units import format_count, parse_size
from taccl.errors import InputError, TacclError
from taccl.formats.files import check_writable
from taccl.placement.few_pairs import FewPairs, Pairs, found_by, verdict
from taccl.placement.matrices import load_probe
from taccl.placement.probe import (
    FEWER,
    FEWEST,
    MAX_ASYMMETRY,
    WARM_UP,
    Probe,
    is_few,
    median_of_known,
    passes_of,
    probe_work,
)
from taccl.runtime.environment import joined, launched_by
from taccl.runtime.launch import launched
from taccl.runtime.rank_execution import agreed, broadcast, gathered, patiently, placing
from taccl.runtime.worker import serve

#: Ranks share an uplink if their total rate is less than this share of their rates alone, added (our choice).
_SHARED = 0.75
#: Timeout in seconds for a round, to which a second is added for each repetition.
_ROUND_S = 120.0
_TAG = 17


def pairs_of_round(num_ranks: int, number: int) -> list[tuple[int, int]]:
    """Pairs of ranks that are measured in one round; no rank is in two of them.

    All rounds together contain every pair once. This is the circle method of round-robin tournaments: one
    rank stays, the others rotate. With an odd number of ranks, one rank pauses in every round.
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
    passes: Count | None = None,
    few: bool = False,
    path: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    note: Callable[[str], None] = lambda _: None,
) -> Probe:
    """Measure latency and bandwidth between MPI ranks, by messages between all pairs of ranks.

    In each of n - 1 rounds (n if n is odd) every rank has one partner. First a small message goes back and
    forth, which gives latencies; then a large message is answered by a small one, which gives bandwidths. All
    rounds are repeated in several passes, from which `taccl.reorder` tells structure from noise. If a machine
    has more ranks than cores, pairs are measured one at a time. If hosts form clusters, the ranks of each
    send out first one by one, then together, which shows whether they share an uplink.

    Parameters
    ----------
    comm : mpi4py communicator, optional
        All ranks of it call this function, and all get the same result. Default: the ranks of the launcher
        that started this process, otherwise `ranks` new processes on this machine.
    ranks : int, optional
        Number of ranks to start on this machine.
    rounds : int, optional
        Number of rounds, at least two, to measure only a sample of pairs. Default: all rounds.
    size : int or str
        Size of the large messages.
    repetitions : int
        Number of small messages of a pair in all passes, at least one in each. The number of large messages
        is a quarter of that, and at least three in each pass. Results are medians over each pass, then over
        passes.
    passes : int, optional
        Number of passes over all pairs. Default: four. More passes tell smaller gains of `taccl.reorder` from
        noise that differs from pass to pass.
    few : bool
        Whether to measure only O(n log n) pairs, find clusters from these, and check the clusters on held-out
        pairs. With fewer than 32 ranks all pairs are measured. Such a probe cannot be resumed.
    path : path, optional
        File for the result. Partial results go to ``PATH.part``, from which an interrupted probe is resumed.
    overwrite : bool
        Whether an existing file may be replaced.
    note : callable, optional
        Called at rank 0 with a line of text at each stage.

    Raises
    ------
    InputError
        If there are fewer than two ranks, or the file exists already.
    ExecutionError
        If there is no MPI, or a rank dies.
    """
    request = {
        "rounds": rounds, "size": parse_size(size, where="size"), "repetitions": repetitions,
        "path": None if path is None else os.path.abspath(path), "overwrite": overwrite, "few": few,
        "passes": passes,
    }  # fmt: skip
    launch = launched_by()
    if comm is None and launch is None:
        if ranks is None or ranks < 2:
            found = "none" if ranks is None else str(ranks)
            said = f"found {found}; expected two ranks or more to start here, such as ranks=2"
            raise InputError(said, where="ranks")
        if path is not None:
            check_writable(path, overwrite=overwrite)
        patience_s = _ROUND_S + repetitions
        return Probe.from_dict(
            launched("taccl.placement.measuring", ranks, request, timeout_s=patience_s, note=note)
        )
    with joined() as mpi:
        comm = mpi.COMM_WORLD if comm is None else comm
        if not hasattr(comm, "Dup"):
            raise InputError(f"found {quoted(comm)}; expected an mpi4py communicator", where="comm")
        if ranks not in (None, comm.size):
            said = f"found {ranks}, but there are {comm.size} MPI ranks; leave it out"
            raise InputError(said, where="ranks")
        return Probe.from_dict(_ProbeRank(comm, request, note).probe())


class _ProbeRank:
    """One rank of a running network probe; rank 0 also keeps the measurements of all ranks.

    - `request`: The arguments of `probe`, the same at every rank.
    - `expect`: Called with the name of the next stage and its time limit in seconds.
    """

    def __init__(
        self,
        comm: Any,
        request: dict[str, Any],
        note: Callable[[str], None],
        expect: Callable[[str, float | None], None] = lambda *_: None,
    ) -> None:
        self.comm, self.expect = comm.Dup(), expect
        self.note = note if comm.rank == 0 else lambda _: None
        passes, self.repetitions = passes_of(int(request["repetitions"]), request["passes"])
        self.overwrite = bool(request["overwrite"])
        self.path = None if request["path"] is None else Path(request["path"])
        self.part = None if self.path is None else self.path.with_name(self.path.name + ".part")
        every, number = comm.size - 1 + comm.size % 2, request["rounds"]
        chosen = range(every)
        if number is not None and number < every:
            chosen = np.linspace(0, every - 1, max(2, number)).round().astype(int).tolist()
        self.is_few = bool(request["few"]) and is_few(comm.size)
        self.rounds = [] if self.is_few else [pairs_of_round(comm.size, index) for index in chosen]
        self.clusters: tuple[tuple[int, ...], ...] | None = None
        self.assumed: tuple[str, ...] = ()
        self.work = probe_work(
            comm.size, rounds=len(chosen), size=int(request["size"]), repetitions=int(request["repetitions"]),
            few=self.is_few, passes=passes,
        )  # fmt: skip
        shape = passes, comm.size, comm.size
        self.latency_us, self.gb_per_s, self.spread = (np.full(shape, np.nan) for _ in range(3))
        self.large, self.small = np.zeros(int(request["size"]), dtype=np.uint8), np.zeros(1, dtype=np.uint8)

    def probe(self) -> dict[str, Any]:
        """Run the probe; return the result as plain values, the same at every rank."""
        self._begin()
        self.note(str(self.work))
        judged = self._find_clusters() if self.is_few else None
        for turn, rounds in enumerate(self.missing):
            if rounds:
                self.note(f"pass {turn + 1} of {len(self.missing)}")
            for number, pairs in enumerate(rounds, 1):
                self.note(f"round {number} of {len(rounds)}")
                self._measure(pairs, turn)
        if judged is not None:
            plan, held = judged
            assert self.clusters is not None
            self.assumed = (verdict(plan, median_of_known(self.latency_us), held, self.clusters),)
        self._settle()
        self.note("measuring shared uplinks of clusters")
        uplinks = self._uplinks()
        found: dict[str, Any] = agreed(self.comm, lambda: self._kept(uplinks))
        self.comm.Free()
        return found

    def _find_clusters(self) -> tuple[FewPairs, Pairs] | None:
        """Run the first pass of a probe of few pairs; at rank 0, return its state and the held-out pairs.

        Rank 0 chooses the pairs of each round from the latencies so far, and tells the other ranks. Later
        passes repeat the same rounds.
        """

        def measure(pairs: Pairs) -> list[float]:
            broadcast(self.comm, pairs)
            self._measure(pairs)
            self.rounds.append(pairs)
            self.note(f"round {len(self.rounds)}")
            return [float((self.latency_us[0][pair] + self.latency_us[0][pair[::-1]]) / 2) for pair in pairs]

        found: tuple[FewPairs, Pairs] | None = None
        if self.comm.rank == 0:
            plan = FewPairs(self.comm.size)
            self.clusters, held = found_by(plan, measure)
            found = plan, held
            broadcast(self.comm, [])
        else:
            while pairs := [(a, b) for a, b in broadcast(self.comm, None)]:
                self._measure(pairs)
                self.rounds.append(pairs)
        self.missing = [[], *([self.rounds] * (len(self.latency_us) - 1))]
        return found

    def _begin(self) -> None:
        """Gather the hosts of all ranks, and load the partial result of an interrupted probe."""
        from mpi4py import MPI

        self.expect("agreeing on the job", _ROUND_S)
        self.hosts: list[str] = broadcast(self.comm, gathered(self.comm, MPI.Get_processor_name()))
        _, self.is_crowded = placing(self.comm)
        if self.comm.size < 2:
            raise InputError("found 1 MPI rank; expected two or more", where="mpiexec")
        known: list[list[int]] = agreed(self.comm, self._recall)
        if whole := set.intersection(*map(set, known)):
            self.note(f"{format_count(len(whole), 'round')} were measured before")
        self.missing = [
            [pairs for number, pairs in enumerate(self.rounds) if number not in each] for each in known
        ]

    def _recall(self) -> list[list[int]]:
        """Numbers of the rounds already measured, for each pass."""
        if self.path is None or self.part is None:
            return [[] for _ in self.latency_us]
        check_writable(self.path, overwrite=self.overwrite)
        if self.part.exists() and not self.is_few:
            before = load_probe(self.part)
            if list(before.hosts) != self.hosts:
                said = "found an unfinished probe of other hosts; remove it, or give another path"
                raise InputError(said, where=str(self.part))
            if before.latency_us is not None and before.bandwidth_gb_per_s is not None:
                self._take(before)
        return [
            [number for number, pairs in enumerate(self.rounds) if all(np.isfinite(each[p]) for p in pairs)]
            for each in self.latency_us
        ]

    def _take(self, before: Probe) -> None:
        """Copy the passes of the interrupted probe `before`; without passes, its medians become pass 0."""
        for mine, whole, passes in (
            (self.latency_us, before.latency_us, before.latency_repeats_us),
            (self.gb_per_s, before.bandwidth_gb_per_s, before.bandwidth_repeats_gb_per_s),
        ):
            assert whole is not None
            for turn, each in enumerate([whole] if passes is None else passes[: len(mine)]):
                mine[turn] = np.where(np.isnan(whole), np.nan, each)

    def _kept(self, uplinks: Sequence[tuple[tuple[int, ...], float]]) -> dict[str, Any]:
        """Write the result to its file, if one is given; return the result as plain values."""
        found = self._found(uplinks)
        if self.path is not None and self.part is not None:
            found.save(self.path, overwrite=self.overwrite)
            self.part.unlink(missing_ok=True)
        return found.to_dict()

    def _measure(self, pairs: Sequence[tuple[int, int]], turn: int = 0) -> None:
        """Measure pairs in pass `turn`; keep the lower latency and higher bandwidth if a pair is repeated."""
        for batch in [[pair] for pair in pairs] if self.is_crowded else [pairs]:
            self.expect("a round", _ROUND_S + self.repetitions)
            patiently(self.comm.Ibarrier())
            pair = next((pair for pair in batch if self.comm.rank in pair), None)
            everyone = gathered(self.comm, None if pair is None else self._both_directions(pair))
            for a, b in (each for pair in batch for each in (pair, pair[::-1])):
                if everyone is not None:
                    at = turn, a, b
                    latency_us, gb_per_s, self.spread[at] = everyone[a]
                    self.latency_us[at] = np.fmin(self.latency_us[at], latency_us)
                    self.gb_per_s[at] = np.fmax(self.gb_per_s[at], gb_per_s)
        if self.part is not None and self.comm.rank == 0:
            with contextlib.suppress(TacclError):  # failure to save a partial result is not an error
                self._found(()).save(self.part, overwrite=True)

    def _both_directions(self, pair: tuple[int, int]) -> list[float]:
        """Measure messages in both directions between the two ranks of a pair.

        Returns the latency in us, bandwidth in GB/s and relative interquartile range of latencies from this
        rank to its partner.
        """
        partner, mine = sum(pair) - self.comm.rank, []
        for begins in pair:
            few = max(FEWEST, self.repetitions // FEWER)
            latency = self._there_and_back(partner, begins, self.small, self.repetitions) / 2
            large = self._there_and_back(partner, begins, self.large, few)
            if begins == self.comm.rank:
                low, middle, high = np.percentile(latency, (25, 50, 75)).tolist()
                # The large message takes at least half of the round trip, even if small ones were delayed.
                there_and_back = float(np.median(large))
                one_way_s = max(there_and_back - middle, there_and_back / 2)
                mine = [middle * 1e6, len(self.large) / one_way_s / 1e9, (high - low) / middle]
        return mine

    def _settle(self) -> None:
        """Measure pairs again whose directions differ much; keep the better figure for both directions."""
        # Only rank 0 has figures; it tells the others which pairs to measure.
        figures = np.stack([median_of_known(self.latency_us), median_of_known(self.gb_per_s)])
        transposed = figures.transpose(0, 2, 1)
        differ = (np.maximum(figures / transposed, transposed / figures) > MAX_ASYMMETRY).any(axis=0)
        for a, b in broadcast(self.comm, np.argwhere(np.triu(differ)).tolist()):
            self.note(f"measuring ranks {a} and {b} again")
            both = ([a, b], [b, a])
            for turn, (latency_us, gb_per_s) in enumerate(zip(self.latency_us, self.gb_per_s, strict=True)):
                self._measure([(a, b)], turn)
                latency_us[both] = latency_us[both].min()
                gb_per_s[both] = gb_per_s[both].max()

    def _there_and_back(
        self, partner: int, begins: int, message: NDArray[np.uint8], count: int
    ) -> NDArray[np.float64]:
        """Seconds from each message to its small answer, at the sender `begins`; zeros at the other rank."""
        took = np.zeros(count)
        for turn in range(-WARM_UP, count):
            if begins == self.comm.rank:
                began = time.perf_counter()
                self.comm.Send(message, dest=partner, tag=_TAG)
                self.comm.Recv(self.small, source=partner, tag=_TAG)
                took[max(turn, 0)] = time.perf_counter() - began
            else:
                self.comm.Recv(message, source=partner, tag=_TAG)
                self.comm.Send(self.small, dest=partner, tag=_TAG)
        return took

    def _uplinks(self) -> list[tuple[tuple[int, ...], float]]:
        """(ranks, GB/s) of clusters whose ranks send more slowly together than one by one."""
        labels = [0] * self.comm.size
        if self.comm.rank == 0 and (found := self._found(()).levels):
            labels = found[0].tolist()
        labels, shared = broadcast(self.comm, labels), []
        for cluster in range(max(labels) + 1):
            inside = [rank for rank, label in enumerate(labels) if label == cluster]
            outside = [rank for rank, label in enumerate(labels) if label != cluster]
            pairs = list(zip(inside, outside, strict=False))
            if len(pairs) > 1:
                alone, together = sum(self._rate([pair]) for pair in pairs), self._rate(pairs)
                if together < _SHARED * alone:
                    shared.append((tuple(inside), together))
        return shared

    def _rate(self, pairs: Sequence[tuple[int, int]]) -> float:
        """Total GB/s of pairs that send at the same time, message after message; the same at every rank."""
        self.expect("measuring a cluster's uplink", _ROUND_S)
        patiently(self.comm.Ibarrier())
        rate = 0.0
        for src, dst in pairs:
            if self.comm.rank in (src, dst):
                took = self._there_and_back(src + dst - self.comm.rank, src, self.large, 2 * FEWEST)
                rate = len(self.large) / float(np.median(took)) / 1e9 if self.comm.rank == src else 0.0
        found: float = broadcast(self.comm, sum(gathered(self.comm, rate) or ()))
        return found

    def _found(self, uplinks: Sequence[tuple[tuple[int, ...], float]]) -> Probe:
        latency_us, gb_per_s = median_of_known(self.latency_us), median_of_known(self.gb_per_s)
        missing = np.isnan(latency_us) & ~np.eye(self.comm.size, dtype=bool)
        return Probe(
            tuple(self.hosts), latency_us, gb_per_s, uplinks=tuple(uplinks), sampled=bool(missing.any()),
            latency_spread=None if np.isnan(self.spread).all() else float(np.nanmedian(self.spread)),
            latency_repeats_us=self.latency_us, bandwidth_repeats_gb_per_s=self.gb_per_s,
            clusters=self.clusters, assumed=self.assumed,
        )  # fmt: skip


if __name__ == "__main__":
    sys.exit(
        serve(
            sys.argv[1],
            lambda comm, request, watchdog, note: _ProbeRank(comm, request(), note, watchdog.expect).probe(),
        )
    )
