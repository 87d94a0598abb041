"""Search over transformations of a step for the fastest one; each combination is scheduled."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from taccl._internal.arguments import Count, Seconds, checked_as
from taccl._internal.deadline import Deadline
from taccl._internal.units import format_count, format_us
from taccl.errors import WorkloadError, warn
from taccl.topology.topology import Topology
from taccl.workload.costs import Rates
from taccl.workload.exchange import MOST_CHUNKS, parts_of
from taccl.workload.operations import POINTWISE
from taccl.workload.protocols import topology_of
from taccl.workload.schedule import schedule_workload
from taccl.workload.step import Step
from taccl.workload.tiling import GrowingOverlap
from taccl.workload.transform import fuse, overlap, reorder, slice_state, split
from taccl.workload.workload import Workload

_Choice = TypeVar("_Choice")

#: Max allreduces for which the search tries to split every subset; with more, it splits all of them or none.
_MOST_SUBSETS = 3


@checked_as(WorkloadError)
def autotransform(
    workload: Workload,
    topology: Topology | str,
    *,
    nodes: Count | None = None,
    profile: str | None = None,
    protocol: str | None = None,
    rates: Rates | None = None,
    communication_share: float = 0.0,
    tiles: Sequence[Count] = (4, 16, 64),
    time_limit_s: Seconds = 300.0,
    note: Callable[[str], None] = lambda _: None,
) -> Step:
    """Search combinations of all transformations for the fastest step.

    Each allreduce is split or kept whole. After a split, every operation that can move between reduce-scatter
    and allgather is moved. State is sliced. Point-wise operations are fused into collectives if possible, and
    otherwise into compute kernels. Then operations that depend on each other tile by tile are overlapped. The
    number of tiles grows until the step gets no faster.

    Three usual forms of the step are scheduled first, with one operation after another: the program itself,
    the program with fused kernels, and the program with sharded state (ZeRO-1). The program itself is then
    scheduled without this restriction. So the result is never slower than these. Other untiled steps follow,
    then tiled steps, each in order of estimated finish.

    Parameters
    ----------
    workload, topology, nodes, profile, protocol, rates, communication_share
        As in `schedule_workload`; the protocol is chosen for the given workload.
    tiles : sequence of int
        Numbers of tiles to try, ascending. Numbers that do not divide the axis, or lead to too many chunks,
        are skipped.
    time_limit_s : float
        Time limit in seconds, which applies once these steps and a tiled one are scheduled. Ctrl-C ends
        the search and keeps the best step so far.
    note : callable, optional
        Called with a line of text after each scheduled step.

    Returns
    -------
    Step
        The fastest step; its `workload` is the transformed one.
    """
    topology = topology_of(workload, topology, nodes=nodes, profile=profile, protocol=protocol)
    options = {"rates": rates, "communication_share": communication_share}
    search = _Search(workload, topology, tiles, Deadline.after(time_limit_s), note, options)
    found = search.schedule(workload, order="in-sequence")
    try:
        search.run()
    except KeyboardInterrupt:
        warn("stopped by Ctrl-C; this is the best step so far")
    return search.best or found


class _Search:
    """Search over forms of a step: `best` is the fastest step so far.

    - `tiles`: Numbers of tiles to try.
    - `note`: Called with a line of text after each scheduled step.
    - `options`: Options of `schedule_workload`.
    """

    def __init__(
        self, workload: Workload, topology: Topology, tiles: Sequence[int], deadline: Deadline,
        note: Callable[[str], None], options: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self._workload, self._topology, self._tiles = workload, topology, tiles
        self._deadline, self._note, self._options = deadline, note, options
        self._num_tried = 0
        self.best: Step | None = None

    def run(self) -> None:
        """Schedule usual forms of the step, then variants, first untiled and then in tiles."""
        forms, variants = list(_baselines(self._workload)), list(_variants(self._workload))
        for form in forms:
            if form != self._workload:
                self.schedule(form, order="in-sequence")
        for form in forms:
            if form == self._workload or not self._deadline.has_passed:
                self.schedule(form)
        others = [each for each in variants if each not in forms and not self._deadline.has_passed]
        for variant in self._by_estimate((each, each) for each in others):
            if not self._deadline.has_passed:
                self.schedule(variant)
        ways = self._by_estimate(self._in_fewest_tiles(variants))
        least = self._num_tried + 1
        for variant, axis in ways:
            last: Step | None = None
            for some in self._in_tiles(variant, axis):
                if self._deadline.has_passed and self._num_tried >= least:
                    return
                step = self.schedule(some)
                if last is not None and step.finish >= last.finish:
                    break
                last = step

    def schedule(self, some: Workload, **how: Any) -> Step:
        """Schedule a form of the step, which becomes `best` if it is the fastest so far."""
        step = schedule_workload(some, self._topology, **self._options, **how)
        self.best = step if self.best is None or step.finish < self.best.finish else self.best
        self._num_tried += 1
        tried = format_count(self._num_tried, "step")
        self._note(f"{tried} scheduled, best {format_us(self.best.finish)}")
        return step

    def _by_estimate(self, steps: Iterable[tuple[Workload, _Choice]]) -> list[_Choice]:
        """Sort choices by the finish of their steps under stock algorithms, earliest first.

        Once time is up, only the first step is estimated, and the others are left out.
        """
        quick: list[tuple[float, _Choice]] = []
        for some, choice in steps:
            if not (self._deadline.has_passed and quick):
                quick.append((self.schedule(some, algorithm="stock").finish_us, choice))
        return [choice for _, choice in sorted(quick, key=lambda each: each[0])]

    def _in_fewest_tiles(
        self, variants: Iterable[Workload]
    ) -> Iterator[tuple[Workload, tuple[Workload, int]]]:
        """Yield (variant in the fewest tiles possible, (untiled variant, axis)), by variant and axis."""
        for variant in variants:
            for axis in range(max(len(tensor.shape) for tensor in variant.tensors.values()) or 1):
                some = next(self._in_tiles(variant, axis), None)
                if some is not None:
                    yield some, (variant, axis)

    def _in_tiles(self, variant: Workload, axis: int) -> Iterator[Workload]:
        """Yield a variant in each number of tiles along an axis, without impossible ones."""
        return filter(None, (_tiled(variant, count, axis) for count in self._tiles))


def _baselines(workload: Workload) -> Iterator[Workload]:
    """Yield the step as given, then with fused compute kernels, then with sharded state as well (ZeRO-1)."""
    plain = fused(workload, collectives=False)
    yield workload
    if plain != workload:
        yield plain
    sums = [each.name for each in workload.operations if each.kind == "allreduce"]
    if sums:
        yield fused(sharded(workload, sums), collectives=False)


def _tiled(workload: Workload, tiles: int, axis: int) -> Workload | None:
    """Result of `overlapped`; None if nothing overlaps, or the step has more than `MOST_CHUNKS` chunks."""
    some = overlapped(workload, tiles, axis)
    return some if some and sum(part.count for part in parts_of(some)) <= MOST_CHUNKS else None


def _variants(workload: Workload) -> Iterator[Workload]:
    """Yield the step for each choice of allreduces to split, with operations moved and fused accordingly."""
    sums = [each.name for each in workload.operations if each.kind == "allreduce"]
    choices: Iterator[Sequence[str]] = itertools.chain.from_iterable(
        itertools.combinations(sums, count) for count in range(len(sums), -1, -1)
    )
    for chosen in choices if len(sums) <= _MOST_SUBSETS else (sums, ()):
        yield fused(sharded(workload, chosen) if chosen else workload)


def sharded(workload: Workload, sums: Sequence[str]) -> Workload:
    """Split some allreduces into reduce-scatter and allgather, and move operations between the two.

    State is sliced where possible. For an optimiser this is ZeRO-1 (Rajbhandari et al. 2020).

    - `sums`: Names of the allreduces; those that cannot be split along any axis stay whole.
    """
    for name in sums:
        with contextlib.suppress(WorkloadError):
            workload = split(workload, name)
    for name in [each.name for each in workload.operations if each.kind == "norm"]:
        workload = split(workload, name)
    for name in [each.name for each in workload.operations if each.is_collective]:
        if name in workload.operation:
            workload = reorder(workload, name)
    for old, _ in workload.state:
        with contextlib.suppress(WorkloadError):
            workload = slice_state(workload, old)
    return workload


def fused(workload: Workload, *, collectives: bool = True) -> Workload:
    """Fuse point-wise operations where legal: first into collectives, then into compute kernels.

    - `collectives`: False to fuse into compute kernels only.
    """
    heads = [each.name for each in workload.operations if each.is_collective and collectives]
    for head in heads + [each.name for each in workload.operations if not each.is_collective]:
        if not workload.operation[head].fused:
            workload = _grown(workload, head)
    return workload


def _grown(workload: Workload, head: str) -> Workload:
    """Fuse into the kernel of `head`, where legal, operations that read its results or make its operands."""
    group, tried = [head], set[str]()
    while True:
        readers = (name for each in group for name in workload.readers[each])
        read = (name for each in reversed(group) for name in workload.operation[each].inputs)
        is_free = (each for each in (*readers, *read) if each in workload.operation)
        name = next((each for each in is_free if each not in tried and each not in group), None)
        if name is None:
            return workload
        tried.add(name)
        if workload.operation[name].kind in POINTWISE and not workload.operation[name].fused:
            with contextlib.suppress(WorkloadError):
                workload = fuse(workload, head, name)
                group.append(name)
                tried.clear()


def _kinds_behind(workload: Workload) -> dict[str, set[bool]]:
    """{operation: set with True if it or an operation behind it communicates, and False if one computes}.

    An operation is behind another if it depends on the other, directly or indirectly.
    """
    kinds = {each.name: {each.is_collective} for each in workload.operations}
    for each in reversed(workload.operations):
        for name in each.inputs:
            if name in kinds:
                kinds[name] |= kinds[each.name]
    return kinds


def overlapped(workload: Workload, tiles: int, axis: int) -> Workload | None:
    """Overlap computation and communication wherever possible; None if it is possible nowhere."""
    done: set[str] = set()
    found, kinds_behind = workload, _kinds_behind(workload)
    for first in workload.operations:
        if first.name in done or len(kinds_behind[first.name]) < 2:
            continue
        group, growing = {first.name}, GrowingOverlap(found, tiles, axis)
        for operation in workload.operations[workload.place[first.name] :]:
            if operation.name in done or group.isdisjoint(operation.inputs):
                continue
            with contextlib.suppress(WorkloadError):
                growing.add(first.name, operation.name)
                group.add(operation.name)
        kinds = {workload.operation[name].is_collective for name in group}
        if len(group) > 1 and kinds == {True, False}:
            found = overlap(found, [*group], tiles=tiles, axis=axis)
            done |= group
    return None if found is workload else found
