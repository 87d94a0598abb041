"""Which transformations make a step quickest: combinations of them, tried in turn and scheduled."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any

from taccl.arguments import checked_as
from taccl.deadline import Deadline
from taccl.errors import WorkloadError
from taccl.units import format_count, format_us
from taccl.workload.exchange import MOST_CHUNKS, parts_of
from taccl.workload.operations import POINTWISE
from taccl.workload.schedule import schedule_workload
from taccl.workload.transform import fuse, overlap, reorder, slice_state, split

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from taccl.arguments import Count, Seconds
    from taccl.topology.topology import Topology
    from taccl.workload.costs import Rates
    from taccl.workload.step import Step
    from taccl.workload.workload import Workload

#: Up to so many allreduces, each is split or not; of more, all or none.
_MOST_APART = 3


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
    """The quickest step that combinations of all transformations lead to.

    Allreduces are split or not; what can be moved between reduce-scatter and allgather is, state is sliced,
    and point-wise operations are fused; then what follows each other tile by tile overlaps, in as many tiles
    as pays.

    Parameters
    ----------
    workload, topology, rates, communication_share
        As in `schedule_workload`.
    tiles : sequence of int
        Numbers of tiles to try, small ones first; those that do not divide are left out.
    time_limit_s : float
        When to stop, once something was tried in tiles; Ctrl-C stops at once, and keeps the best so far.
    note : callable, optional
        Told what is going on.

    Returns
    -------
    Step
        Its `workload` is the transformed one.
    """
    deadline, tried = Deadline.after(time_limit_s), 0
    best: Step | None = None

    def scheduled(some: Workload, **how: Any) -> Step:
        nonlocal best, tried
        step = schedule_workload(some, topology, rates=rates, communication_share=communication_share, **how)
        best = step if best is None or step.finish < best.finish else best
        tried += 1
        note(f"{format_count(tried, 'step')} scheduled, of which the best takes {format_us(best.finish)}")
        return step

    def in_tiles() -> list[tuple[Workload, int]]:
        """Transformed steps, and an axis to cut each along, in order of how quick stock algorithms are."""
        quick: list[tuple[float, Workload, int]] = []
        for variant in _variants(workload):
            for axis in range(max(len(tensor.shape) for tensor in variant.tensors.values()) or 1):
                some = next(filter(None, (_tiled(variant, count, axis) for count in tiles)), None)
                if some is not None and not (deadline.has_passed and quick):
                    quick.append((scheduled(some, algorithm="stock").finish_us, variant, axis))
        return [(variant, axis) for _, variant, axis in sorted(quick, key=lambda each: each[0])]

    def search() -> None:
        ways = in_tiles()
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
        for variant in _variants(workload):
            if variant is not workload and not deadline.has_passed:
                scheduled(variant)

    scheduled(workload, order="in-sequence")
    found = scheduled(workload)
    with contextlib.suppress(KeyboardInterrupt):
        search()
    return best or found


def _tiled(workload: Workload, tiles: int, axis: int) -> Workload | None:
    """`overlapped`, where that is not too large to be tried."""
    some = overlapped(workload, tiles, axis)
    return some if some and sum(part.count for part in parts_of(some)) <= MOST_CHUNKS else None


def _variants(workload: Workload) -> Iterator[Workload]:
    """The step, with each choice of allreduces split; and all that follows from that done."""
    sums = [each.name for each in workload.operations if each.kind == "allreduce"]
    choices: Iterator[Sequence[str]] = itertools.chain.from_iterable(
        itertools.combinations(sums, count) for count in range(len(sums), -1, -1)
    )
    for chosen in choices if len(sums) <= _MOST_APART else (sums, ()):
        found = workload
        for name in chosen:
            with contextlib.suppress(WorkloadError):
                found = split(found, name)
        if chosen:
            for name in [each.name for each in found.operations if each.kind == "norm"]:
                found = split(found, name)
            for name in [each.name for each in found.operations if each.is_collective]:
                if name in found.operation:
                    found = reorder(found, name)
            for old, _ in workload.state:
                with contextlib.suppress(WorkloadError):
                    found = slice_state(found, old)
        yield _fused(found)


def _fused(workload: Workload) -> Workload:
    """With every point-wise operation that can be in the last step of a collective there."""
    for collective in [each.name for each in workload.operations if each.is_collective]:
        for operation in workload.operations:
            if operation.kind in POINTWISE and not operation.fused:
                with contextlib.suppress(WorkloadError):
                    workload = fuse(workload, collective, operation.name)
    return workload


def overlapped(workload: Workload, tiles: int, axis: int) -> Workload | None:
    """With all that can be in overlaps that both compute and communicate; None if there are none."""
    done: set[str] = set()
    found = workload
    for first in workload.operations:
        if first.name in done:
            continue
        group, some = [first.name], None
        for operation in workload.operations[workload.operations.index(first) :]:
            if operation.name in done or not set(group).intersection(operation.inputs):
                continue
            with contextlib.suppress(WorkloadError):
                some = overlap(found, [*group, operation.name], tiles=tiles, axis=axis)
                group.append(operation.name)
        kinds = {workload.operation[name].is_collective for name in group}
        if some is not None and kinds == {True, False}:
            found = some
            done.update(group)
    return None if found is workload else found
