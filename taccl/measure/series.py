"""Content of a log: times of a collective over sizes, and notes on skipped rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal, NamedTuple

from taccl._internal.units import format_count, format_size
from taccl.measure.debug_lines import DebugFacts
from taccl.problem.collective import busbw_factor

#: Value of `Series.collective` for messages between two ranks; with bandwidths only, `streams` is set, too.
POINT_TO_POINT = "point-to-point"
#: `COMPARED_BYTES`: min bytes at which times are compared, as times of smaller sizes are noisy.
#: `RUNS_DIFFER`: min ratio of the slowest to the fastest of several runs that shows different bandwidths.
COMPARED_BYTES, RUNS_DIFFER = 2**26, 1.15
#: `BETWEEN`: the median of several runs describes none of them if it differs from each by this factor.
#: `BETWEEN_RUNS`: words of the note that says so.
BETWEEN, BETWEEN_RUNS = 1.5, "their median, which a fit uses, describes none of them"
WRONG = "results were wrong"  #: Beginning of a note of a log whose checks of results failed.


Counted = Literal["", "part", "busbw"]


@dataclass(frozen=True, slots=True)
class Series:
    """Times of one collective on a fixed number of ranks, over sizes in increasing order.

    - `num_ranks`, `num_nodes`: Numbers of ranks and nodes; 0 if the log does not state them.
    - `size_bytes`: The larger of a rank's input and output, as nccl-tests counts them.
    - `times_us`: Times in us; the median if several runs have the same size.
    - `streams`: True if messages follow one another without waiting, so that times show bandwidth only.
    - `source`: The file, with the line of the first row.
    - `ranks_per_process`: Number of GPUs whose kernels one process launches in turn (``nGpus``); 0 if the log
      does not state it.
    - `is_doubtful_process`: True if the list of devices shows more GPUs in a process than the log states.
    - `counted`: Quantity to convert once the number of ranks is known: ``"part"`` if sizes are one rank's
      part, ``"busbw"`` if times are sizes over busbw, empty if none.
    - `others_us`: Times in us in the other place (in place or out of place); 0 where the log states none.
    """

    collective: str
    num_ranks: int
    num_nodes: int
    size_bytes: tuple[int, ...]
    times_us: tuple[float, ...]
    source: str
    streams: bool = False
    counted: Counted = ""
    ranks_per_process: int = 0
    is_doubtful_process: bool = False
    others_us: tuple[float, ...] = ()

    @property
    def other_us(self) -> float:
        """Time in us of the largest size in the other place; 0 if the log does not state it."""
        return self.others_us[-1] if self.others_us else 0.0

    @property
    def launched_together(self) -> int:
        """Number of GPUs per process for predictions: as the log states it, 0 if unknown or doubtful."""
        return 0 if self.is_doubtful_process else self.ranks_per_process

    def on(self, num_ranks: int, num_nodes: int) -> Series:
        """The series on given numbers of ranks and nodes, with sizes and times as nccl-tests counts them."""
        parts = num_ranks if self.counted == "part" else 1
        factor = busbw_factor(self.collective, num_ranks) if self.counted == "busbw" else 1.0
        return replace(
            self, num_ranks=num_ranks, num_nodes=num_nodes, counted="",
            size_bytes=tuple(size * parts for size in self.size_bytes),
            times_us=tuple(time_us * factor for time_us in self.times_us),
            others_us=tuple(time_us * factor for time_us in self.others_us),
        )  # fmt: skip

    @property
    def title(self) -> str:
        """Collective, ranks and nodes: ``"allreduce on 16 ranks in 2 nodes"``."""
        nodes = f" in {format_count(self.num_nodes, 'node')}" if self.num_nodes else ""
        return f"{self.collective} on {format_count(self.num_ranks, 'rank')}{nodes}"


class Log(NamedTuple):
    """Content of a log file: its series of measurements, its GPUs, and the rows left out.

    - `gpus`: Names of the GPUs that it lists.
    - `left_out`: Rows that were left out, each with its line and the reason.
    - `notes`: Facts about the runs that contradict the model of equal GPU nodes.
    - `debug`: Facts that its lines of NCCL_DEBUG=INFO state.
    """

    path: str
    series: tuple[Series, ...]
    gpus: frozenset[str]
    left_out: tuple[str, ...]
    notes: tuple[str, ...] = ()
    debug: DebugFacts = DebugFacts()


def joined(series: Iterable[Series]) -> Iterable[Series]:
    """Merge runs of the same collective, ranks and nodes into one series, with the median time per size."""
    return map(_merged, _kinds(series))


def alike_joined(series: Iterable[Series]) -> Iterable[Series]:
    """Merge runs as `joined` does, but only those whose times of large messages agree.

    Reports often have a run before a change and one after it, whose median is the rate of neither.
    """
    for some in _kinds(series):
        size = max(set.intersection(*(set(each.size_bytes) for each in some)), default=0)
        if size < COMPARED_BYTES or some[0].streams:
            yield _merged(some)
            continue
        times = {each.source: each.times_us[each.size_bytes.index(size)] for each in some}
        groups: list[list[Series]] = []
        for each in sorted(some, key=lambda run: times[run.source]):
            if not groups or times[each.source] >= RUNS_DIFFER * times[groups[-1][0].source]:
                groups.append([])
            groups[-1].append(each)
        yield from map(_merged, sorted(groups, key=lambda group: some.index(group[0])))


def differing(times_us: Mapping[int, Sequence[float]]) -> str:
    """Clause on runs whose times of large messages differ, and on what a fit then uses; empty if they agree.

    - `times_us`: {size in bytes: times of the runs that measured it}.
    """
    size = max((size for size, times in times_us.items() if len(times) > 1), default=0)
    if size < COMPARED_BYTES:
        return ""
    times, middle = times_us[size], median(times_us[size])
    ratio = max(times) / min(times)
    if ratio < RUNS_DIFFER:
        return ""
    is_between = all(max(each, middle) > BETWEEN * min(each, middle) for each in times)
    uses = BETWEEN_RUNS if is_between else "a fit uses the median of a size"
    return f"differ by {ratio:.3g} times at {format_size(size)}; {uses}"


def differing_logs(series: Sequence[Series], paths: Sequence[str]) -> Iterator[str]:
    """Yield a note for each kind of runs that differ between logs; those within a log have a note already.

    - `paths`: Log of each series.
    """
    path_of = {id(each): path for each, path in zip(series, paths, strict=True)}
    for some in _kinds(series):
        logs = list(dict.fromkeys(path_of[id(each)] for each in some))
        if len(logs) > 1 and (clause := differing(_times_us(some))):
            yield f"{', '.join(logs)}: runs of {some[0].title} {clause}"


def _kinds(series: Iterable[Series]) -> Iterable[list[Series]]:
    """Runs of the same collective, ranks and nodes."""
    kinds: dict[Series, list[Series]] = defaultdict(list)
    for each in series:
        kinds[replace(each, size_bytes=(), times_us=(), source="", others_us=())].append(each)
    return kinds.values()


def _merged(some: Sequence[Series]) -> Series:
    """One series of several runs, with the median time of each size."""
    times, others = _times_us(some), _times_us(some, others=True)
    medians = tuple(median(times[size]) for size in sorted(times))
    others_us = tuple(median(others.get(size, [0.0])) for size in sorted(times)) if others else ()
    return replace(some[0], size_bytes=tuple(sorted(times)), times_us=medians, others_us=others_us)


def _times_us(some: Sequence[Series], *, others: bool = False) -> dict[int, list[float]]:
    """{size in bytes: times of the runs that measured it}, or those in the other place if `others`."""
    times: dict[int, list[float]] = defaultdict(list)
    for each in some:
        for size, time_us in zip(each.size_bytes, each.others_us if others else each.times_us, strict=False):
            if time_us:
                times[size].append(time_us)
    return times
