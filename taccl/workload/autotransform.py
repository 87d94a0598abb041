"""Search over transformations of a step for the fastest one; each combination is scheduled."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from taccl._internal.arguments import Count, Seconds, checked_as
from taccl._internal.deadline import Deadline
from taccl._internal.units import format_count, format_us
from taccl.errors import WorkloadError
from taccl.topology.topology import Topology
from taccl.workload.costs import Rates
from taccl.workload.exchange import MOST_CHUNKS, parts_of
from taccl.workload.operations import POINTWISE
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
    topology: Topology,
    *,
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
    the program with fused kernels, and the program with sharded state (ZeRO-1). So the result is never slower
    than these. Other untiled steps follow, then tiled steps, each in order of estimated finish.

    Parameters
    ----------
    workload, topology, rates, communication_share
        As in `schedule_workload`.
    tiles : sequence of int
        Numbers of tiles to try, ascending. Numbers that do not divide the axis, or lead to too many chunks,
        are skipped.
    time_limit_s : float
        Time limit in seconds, which applies once the usual forms and a tiled step are scheduled. Ctrl-C ends
        the search and keeps the best step so far.
    note : callable, optional
        Called with a line of text after each scheduled step.

    Returns
    -------
    Step
        The fastest step; its `workload` is the transformed one.
    """
    deadline, tried = Deadline.after(time_limit_s), 0
    best: Step | None = None

    def scheduled(some: Workload, **how: Any) -> Step:
        nonlocal best, tried
        step = schedule_workload(some, topology, rates=rates, communication_share=communication_share, **how)
        best = step if best is None or step.finish < best.finish else best
        tried += 1
        note(f"{format_count(tried, 'step')} scheduled, best {format_us(best.finish)}")
        return step

    def by_estimate(steps: Iterable[tuple[Workload, _Choice]]) -> list[_Choice]:
        """Sort choices by the finish of their steps under stock algorithms, earliest first.

        Once time is up, only the first step is estimated, and the others are left out.
        """
        quick: list[tuple[float, _Choice]] = []
        for some, choice in steps:
            if not (deadline.has_passed and quick):
                quick.append((scheduled(some, algorithm="stock").finish_us, choice))
        return [choice for _, choice in sorted(quick, key=lambda each: each[0])]

    def in_tiles() -> Iterator[tuple[Workload, tuple[Workload, int]]]:
        """Yield (variant in the fewest tiles possible, (untiled variant, axis)), by variant and axis."""
        for variant in variants:
            for axis in range(max(len(tensor.shape) for tensor in variant.tensors.values()) or 1):
                some = next(filter(None, (_tiled(variant, count, axis) for count in tiles)), None)
                if some is not None:
                    yield some, (variant, axis)

    def search() -> None:
        for form in forms:
            if form != workload:
                scheduled(form, order="in-sequence")
        for form in forms:
            if not deadline.has_passed:
                scheduled(form)
        others = [each for each in variants if each not in forms]
        for variant in [] if deadline.has_passed else by_estimate((each, each) for each in others):
            if not deadline.has_passed:
                scheduled(variant)
        ways = by_estimate(in_tiles())
        least = tried + 1
        for variant, axis in ways:
            last: Step | None = None
            for some in filter(None, (_tiled(variant, count, axis) for count in tiles)):
                if deadline.has_passed and tried >= least:
                    return
                step = scheduled(some)
                if last is not None and step.finish >= last.finish:
                    break
                last = step

    found = scheduled(workload, order="in-sequence")
    with contextlib.suppress(KeyboardInterrupt):
        forms, variants = list(_baselines(workload)), list(_variants(workload))
        search()
    return best or found


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
