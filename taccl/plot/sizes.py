"""Finish of a schedule, its bound and the baselines over many message sizes, and the picture of them.

A schedule keeps its order at every size (`taccl.simulate`). A baseline is built for the smallest, its own and
the largest size. The fastest of the three counts at each size, as a library would choose. All have the chunks
of the problem.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.simulation.assumptions import assume
from taccl.analysis.simulation.simulate import simulate
from taccl.arguments import Duration, Size, checked
from taccl.baselines import BASELINES
from taccl.baselines.spread import without_sketch
from taccl.clauses import BINDING
from taccl.deadline import Deadline, OutOfTime
from taccl.errors import CollectiveError, InputError
from taccl.measure.logs import read_log
from taccl.plot import style
from taccl.plot.style import GREY, INK, MARKS, OKABE_ITO, axes, drawing, dress, remark, schedule_of
from taccl.problem import Problem
from taccl.schedule.compact import CompactSchedule
from taccl.schedule.schedule import Schedule
from taccl.synthesis.result import Result
from taccl.units import format_count, format_size, gb_per_s, parse_size

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

T = TypeVar("T")

#: Display names of baselines.
NAMES_OF_BASELINES = {
    "ring": "ring", "tree": "double binary tree", "recursive": "halving-doubling",
    "hierarchical": "hierarchical", "dimension-balanced": "dimension-balanced",
    "pairwise": "pairwise", "one-shot": "one-shot", "multiplying": "recursive multiplying",
    "swing": "swing", "bine": "bine trees", "in-network": "in the network", "servers": "at servers",
}  # fmt: skip
#: The bound beside a log: what no schedule under any protocol passes.
_ANY_PROTOCOL = "bound, any protocol"
#: From 1 KiB to 1 GiB, each four times the one before.
_SIZES = tuple(4**power for power in range(5, 16))
#: Seconds for the bound at each size.
_BOUND_S = 0.2
#: A schedule of more transfers takes too long to be timed at many sizes.
_MOST_TRANSFERS = 20_000


@checked
@drawing
def bandwidth(
    schedule: pd.DataFrame | Result | Schedule | CompactSchedule,
    *,
    sizes: Sequence[Size] | None = None,
    measured: Sequence[str] = (),
    ax: Axes | None = None,
) -> Axes:
    """Lines of bus bandwidth over size, for a schedule, its bound, every baseline and the best of these.

    Parameters
    ----------
    schedule : DataFrame, Result, Schedule or CompactSchedule
        Bandwidths that are worked out already (`taccl.plot.bandwidths`), or what to work them out for.
    sizes : sequence of int or str, optional
        As nccl-tests counts them, where they are to be worked out.
    measured : sequence of str
        Files of logs (see `taccl.fit`), whose bandwidths between the smallest and the largest size are drawn
        as points.
    ax : Axes, optional
        Where to draw; a new figure unless given.

    Raises
    ------
    InputError
        If a size is none, the schedule's own is not known, or it has too many transfers.
    """
    rates: Any = schedule
    if not hasattr(schedule, "attrs"):
        rates = bandwidths(schedule, sizes=sizes, measured=measured)
    if not {"problem", "baselines", "undefined", "measured"} <= set(rates.attrs):
        raise InputError("found another table; give what taccl.plot.bandwidths returned", where="schedule")
    ax = axes(ax, height=5.2)
    dashed: dict[str, Any] = {"color": INK, "linestyle": "--", "linewidth": 1.2}
    looks = {
        "bound": dashed,
        "bound, sketch aside": dashed,
        "bound under the sketch": dashed | {"linestyle": ":"},
        _ANY_PROTOCOL: dashed | {"linestyle": "-.", "color": GREY},
    }
    looks["best of baselines"] = {"color": GREY, "linewidth": 5, "alpha": 0.45}
    thin = {"linewidth": 1.0, "markersize": 4}
    others = len(MARKS) - 1  # the first is this schedule's
    for number, name in enumerate(rates.attrs["baselines"]):
        which, dashes = 1 + number % others, ("-", "--")[number // others]
        looks[name] = {"color": OKABE_ITO[which], "marker": MARKS[which], "linestyle": dashes, **thin}
    looks["this schedule"] = {"color": OKABE_ITO[0], "marker": MARKS[0], "linewidth": 2.2, "markersize": 5}
    for name in (name for name in looks if name in rates):
        line = rates[name][rates[name] > 0]
        if len(line):
            ax.plot(line.index, line, label=name, **looks[name])
    at = rates.index.tolist()
    points = [each for each in rates.attrs["measured"] if at[0] <= each[0] <= at[-1]]
    if points:
        x, y = zip(*points, strict=True)
        ax.plot(x, y, "o", label="measured", color=INK, markersize=4, markerfacecolor="none")
    problem = rates.attrs["problem"]
    ax.axvline(problem.size_bytes, color=GREY, linewidth=0.8, linestyle=":")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    shown = at if len(at) <= 13 else at[:: -(-len(at) // 13)]
    ax.set_xticks(shown, [format_size(size) for size in shown], fontsize=8, rotation=30)
    ax.minorticks_off()
    style.plain_log(ax.yaxis)
    protocol = f" under {problem.topology.protocol}" if problem.topology.protocol else ""
    own_size = f"made for {format_size(problem.size_bytes)}{protocol} (dotted), its order kept at other sizes"
    title = f"{problem.title}: bus bandwidth over size\n{own_size}"
    dress(ax, title, "size (the larger of one rank's input and output buffer)", "bus bandwidth in GB/s")
    if ax.get_lines()[1:]:
        style.legend(ax, ax.get_legend_handles_labels()[0][::-1])
    else:
        remark(ax, "nothing is sent, which takes no time and has no bandwidth")
    if rates.attrs["undefined"]:
        remark(ax, f"not defined here: {', '.join(rates.attrs['undefined'])}")
    return ax


@checked
def bandwidths(
    schedule: Result | Schedule | CompactSchedule,
    *,
    sizes: Sequence[Size] | None = None,
    budget_s: Duration = 30.0,
    measured: Sequence[str] = (),
) -> pd.DataFrame:
    """The bus bandwidth of a schedule at many sizes, what no schedule can pass, and that of every baseline.

    Parameters
    ----------
    sizes : sequence of int or str, optional
        As nccl-tests counts them. Default: from 1 KiB to 1 GiB, and the schedule's own.
    budget_s : float
        After which nothing more is timed: sizes and bounds are missing then, and ``undefined`` says which
        baselines are.
    measured : sequence of str
        Files of logs (see `taccl.fit`) of the same collective on as many ranks.

    Returns
    -------
    DataFrame
        Bus bandwidths in GB/s by size in bytes, the launch counted; missing where there is none to be had.
        Columns are ``this schedule``, its order kept; the ``bound`` that no schedule can pass, or where there
        is a sketch to obey ``bound, sketch aside`` and ``bound under the sketch``; beside a log of a machine
        with several protocols also ``bound, any protocol``, the highest of theirs; each baseline, and the
        ``best of baselines``. Its ``attrs`` are the ``problem`` at the schedule's own size, the names of
        ``baselines``, why others are ``undefined``, and the sizes and bandwidths ``measured``.

    Raises
    ------
    InputError
        If a size is none, the schedule's own is not known, it has too many transfers, or a log is of
        something else.
    """
    import pandas as pd

    limit = Deadline.after(budget_s)
    own = schedule_of(schedule)
    problem = own.problem
    if problem.size_bytes is None:
        said = "the schedule's own size is not known, so nothing can be scaled from it; give chunks a size"
        raise InputError(said, where="schedule")
    if own.num_transfers > _MOST_TRANSFERS:
        said = f"expected at most {_MOST_TRANSFERS} to be timed at many sizes; simulate it at one size"
        raise InputError(f"found {own.num_transfers} transfers; {said}", where="schedule")
    every = usual_sizes(problem.size_bytes) if sizes is None else tuple(sorted(set(map(parse_size, sizes))))
    if not every:
        raise InputError("found no size; give at least one, or leave it out", where="sizes")
    points = measured_points(problem, measured)
    alone = [_in_time(limit, simulate, own, size=size) for size in every]
    lines: dict[str, Any] = {
        "this schedule": [None if each is None else each.predicted_busbw_gb_per_s for each in alone]
    }
    free = without_sketch(problem)
    at_most = np.array(_bounds(free, every, limit), float)
    # Clauses that only guide a search bind no schedule, and merging is allowed to all.
    if problem.clauses.same(free.clauses, *(scope for scope in BINDING if scope != "merge")):
        lines["bound"] = at_most
    else:
        lines["bound, sketch aside"] = at_most
        # The search for a bound may come less far under the sketch, which passes nothing without it.
        lines["bound under the sketch"] = np.fmin(np.array(_bounds(problem, every, limit), float), at_most)
    others = [each for each in problem.topology.protocols if each != problem.topology.protocol]
    if points and others:
        # A library takes a protocol by size, so that a log may pass the bound of any single one.
        each = [_bounds(replace(free, topology=free.topology.under(name)), every, limit) for name in others]
        # NaN if time is up before every protocol has a bound.
        lines[_ANY_PROTOCOL] = np.maximum.reduce([at_most, *np.array(each, float)])
    baselines: list[str] = []
    undefined: dict[str, str] = {}
    for name in BASELINES:
        called = NAMES_OF_BASELINES[name]
        try:
            rates = _in_time(limit, _rates, name, problem, every)
            if rates is None:
                undefined[called] = f"not timed: the budget of {budget_s:g} s was spent"
                continue
            lines[called] = rates
            baselines.append(called)
        except (CollectiveError, InputError) as error:
            undefined[called] = error.message
    found = pd.DataFrame(lines, index=pd.Index(every, name="size_bytes"), dtype=float)
    found["best of baselines"] = found[baselines].max(axis=1)
    found.attrs |= {"problem": problem, "baselines": baselines, "undefined": undefined, "measured": points}
    return found


def measured_points(problem: Problem, paths: Sequence[str]) -> tuple[tuple[int, float], ...]:
    """The sizes and bus bandwidths of logs."""
    points: list[tuple[int, float]] = []
    ranks, nodes, name = problem.topology.num_ranks, problem.topology.num_nodes, problem.collective.name
    factor = problem.collective.busbw_factor
    for path in paths:
        series = read_log(path).series
        alike = [each for each in series if each.collective == name]
        fitting = [each for each in alike if each.num_ranks in (0, ranks) and each.num_nodes in (0, nodes)]
        if not fitting:
            found = ", ".join(each.title for each in series)
            wanted = f"{name} on {ranks} ranks in {format_count(nodes, 'node')}"
            raise InputError(f"found {found}; expected {wanted}: give another log", where=path)
        for each in (each.on(ranks, nodes) for each in fitting):
            pairs = zip(each.size_bytes, each.times_us, strict=True)
            points += [(size, size / time_us / 1000 * factor) for size, time_us in pairs]
    return tuple(sorted(points))


def _in_time(limit: Deadline, work: Callable[..., T], *args: Any, **named: Any) -> T | None:
    """The result of some work; None where time is up before it."""
    with suppress(OutOfTime), limit.enforced():
        return work(*args, **named)
    return None


def _bounds(problem: Problem, sizes: tuple[int, ...], limit: Deadline) -> tuple[float | None, ...]:
    """The bus bandwidth that no schedule can pass, at each size; None where time is up before it is known."""
    factor, launch = problem.collective.busbw_factor, problem.topology.launch_us

    def bound(size: int) -> float | None:
        return gb_per_s(size, launch + lower_bound(assume(problem, size=size), budget_s=_BOUND_S).bound)

    found = [_in_time(limit, bound, size) for size in sizes]
    return tuple(None if each is None else each * factor for each in found)


def usual_sizes(own_bytes: int) -> tuple[int, ...]:
    """From 1 KiB to 1 GiB, and a schedule's own in place of what is near it."""
    apart = (size for size in _SIZES if not own_bytes / 2 < size < own_bytes * 2)
    return tuple(sorted((own_bytes, *apart)))


def _rates(name: str, problem: Problem, sizes: tuple[int, ...]) -> tuple[float | None, ...]:
    """The bus bandwidths of a baseline."""
    forms: dict[tuple[bytes, bytes], Schedule] = {}
    for size in dict.fromkeys((sizes[0], problem.size_bytes, sizes[-1])):
        made = BASELINES[name](assume(problem, size=size), cut=False)  # the bound is that of its chunks
        forms.setdefault((made.chunk.tobytes(), made.link.tobytes()), made)
    simulations = [[simulate(made, size=size) for made in forms.values()] for size in sizes]
    return tuple(min(each, key=lambda found: found.finish).predicted_busbw_gb_per_s for each in simulations)
