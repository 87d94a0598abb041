"""Pictures over message size: bandwidth of a schedule, its bound and baselines; fits and diagnoses.

A schedule keeps its order at every size (`taccl.simulate`). A baseline is built for three sizes: the
smallest, the schedule's own, and the largest. At each size the fastest of the three is used, as a library
would choose. All have the chunks of the problem.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from taccl._internal.arguments import Duration, Size, checked
from taccl._internal.deadline import Deadline, OutOfTime
from taccl._internal.units import format_count, format_size, gb_per_s, parse_size
from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.simulation.simulate import assume, simulate
from taccl.baselines.chunking import without_sketch
from taccl.baselines.table import BASELINES, competes_in, label_of, row_of
from taccl.errors import CollectiveError, InputError
from taccl.measure.diagnosis import Diagnosis, SeriesDiagnosis
from taccl.measure.logs import read_log
from taccl.plot import style
from taccl.plot.page import html_page, picture
from taccl.plot.style import (
    GREY,
    INK,
    MARKS,
    OKABE_ITO,
    axes,
    drawing,
    dress,
    figure,
    plain_log,
    remark,
    schedule_of,
)
from taccl.problem.clauses import BINDING
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule
from taccl.synthesis.result import Result

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from taccl.measure.fitted import Fit


T = TypeVar("T")

#: Label of the bound for schedules under any protocol, which is drawn beside measured points.
_ANY_PROTOCOL = "bound, any protocol"
#: First words of the reason that is given for a baseline left out for lack of time.
NOT_TIMED = "not timed"
#: Default sizes in bytes: 1 KiB to 1 GiB, in factors of 4.
_SIZES = tuple(4**power for power in range(5, 16))
#: Max seconds for the bound at each size.
_BOUND_S = 0.2
#: Max transfers of a schedule that is timed at many sizes; more take too long.
_MOST_TRANSFERS = 20_000


@checked
@drawing
def bandwidth(
    schedule: pd.DataFrame | Result | Schedule,
    *,
    sizes: Sequence[Size] | None = None,
    measured: Sequence[str] = (),
    ax: Axes | None = None,
) -> Axes:
    """Draw bus bandwidth over size, for a schedule, its bound, each baseline and the best baseline.

    Parameters
    ----------
    schedule : DataFrame, Result or Schedule
        A schedule, or bandwidths computed before by `taccl.plot.bandwidths`.
    sizes : sequence of int or str, optional
        Sizes as nccl-tests counts them; ignored for bandwidths computed before.
    measured : sequence of str
        Paths of logs (see `taccl.fit`). Their bandwidths between the smallest and the largest size are drawn
        as points.
    ax : Axes, optional
        Axes to draw on; by default those of a new figure.

    Raises
    ------
    InputError
        If a size is invalid, the schedule's own size is unknown, or it has too many transfers.
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
        "bound without the sketch": dashed,
        "bound under the sketch": dashed | {"linestyle": ":"},
        _ANY_PROTOCOL: dashed | {"linestyle": "-.", "color": GREY},
    }
    looks["best of baselines"] = {"color": GREY, "linewidth": 5, "alpha": 0.45}
    thin = {"linewidth": 1.0, "markersize": 4}
    others = len(MARKS) - 1  # the first mark is that of this schedule
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
    own_size = f"made for {format_size(problem.size_bytes)}{protocol} (dotted), re-timed at other sizes"
    title = f"{problem.title}: bus bandwidth over size\n{own_size}"
    dress(ax, title, "size (larger of a rank's input and output buffer)", "bus bandwidth in GB/s")
    if ax.get_lines()[1:]:
        style.legend(ax, ax.get_legend_handles_labels()[0][::-1])
    else:
        remark(ax, "nothing is sent, so there is no bandwidth")
    untimed = [name for name, why in rates.attrs["undefined"].items() if why.startswith(NOT_TIMED)]
    undefined = [name for name in rates.attrs["undefined"] if name not in untimed]
    if undefined:
        remark(ax, f"not defined here: {', '.join(undefined)}")
    if untimed:
        remark(ax, f"{NOT_TIMED}, as the budget is spent: {', '.join(untimed)}")
    return ax


@checked
def bandwidths(
    schedule: Result | Schedule,
    *,
    sizes: Sequence[Size] | None = None,
    budget_s: Duration = 30.0,
    measured: Sequence[str] = (),
) -> pd.DataFrame:
    """Bus bandwidth at each of several sizes, for a schedule, its upper bound, and each baseline.

    Parameters
    ----------
    schedule : Result or Schedule
        The schedule.
    sizes : sequence of int or str, optional
        Sizes as nccl-tests counts them. Default: 1 KiB to 1 GiB, and the schedule's own size.
    budget_s : float
        Time budget in seconds. After it, remaining sizes and bounds are missing, and ``undefined`` names the
        missing baselines.
    measured : sequence of str
        Paths of logs (see `taccl.fit`) of the same collective on as many ranks and nodes.

    Returns
    -------
    DataFrame
        Bus bandwidths in GB/s, including the launch, indexed by size in bytes. NaN if undefined or not ready
        in time. The columns are:

        - ``this schedule``: the schedule, with its order kept at every size.
        - ``bound``: upper bound for any schedule. If the problem has a binding sketch, there are instead
          ``bound without the sketch`` and ``bound under the sketch``.
        - ``bound, any protocol``: maximum of the bounds over all protocols. Only with measured points, on a
          machine with several protocols.
        - one column per baseline, and ``best of baselines``.

        Its ``attrs`` hold the ``problem`` at the schedule's own size and the names of ``baselines``. They
        also hold the reasons why others are ``undefined``, and the ``measured`` points (bytes, GB/s).

    Raises
    ------
    InputError
        If a size is invalid, the schedule's own size is unknown, or it has too many transfers. Also if a log
        is of another collective or another number of ranks or nodes.
    """
    import pandas as pd

    limit = Deadline.after(budget_s)
    own = schedule_of(schedule)
    problem = own.problem
    if problem.size_bytes is None:
        said = "the schedule's size is unknown, so it cannot be scaled; give chunks a size"
        raise InputError(said, where="schedule")
    if own.num_transfers > _MOST_TRANSFERS:
        said = f"expected at most {_MOST_TRANSFERS} for many sizes; simulate it at one size"
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
    # If the sketch has no clauses that restrict schedules, apart from merging, one bound is enough.
    if problem.clauses.same(free.clauses, *(scope for scope in BINDING if scope != "merge")):
        lines["bound"] = at_most
    else:
        lines["bound without the sketch"] = at_most
        # A bound without the sketch also holds under it, so use the smaller of the two (NaN: not ready).
        lines["bound under the sketch"] = np.fmin(np.array(_bounds(problem, every, limit), float), at_most)
    others = [each for each in problem.topology.protocols if each != problem.topology.protocol]
    if points and others:
        # A library chooses the protocol by size, so a log may exceed the bound of any single protocol.
        each = [_bounds(replace(free, topology=free.topology.under(name)), every, limit) for name in others]
        # The bound is NaN at a size if time is up before every protocol has a bound there.
        lines[_ANY_PROTOCOL] = np.maximum.reduce([at_most, *np.array(each, float)])
    timed: dict[str, tuple[float | None, ...]] = {}
    undefined: dict[str, str] = {}
    # Those that are fastest most often come first, as time may be up before the last ones.
    for name in sorted(BASELINES, key=lambda name: (not competes_in(problem, name), row_of(name).place)):
        called = label_of(name)
        try:
            rates = _in_time(limit, _rates, name, problem, every)
            if rates is None:
                undefined[called] = f"{NOT_TIMED}: the time budget is spent"
            else:
                timed[called] = rates
        except (CollectiveError, InputError) as error:
            undefined[called] = error.message
    labels = [*map(label_of, BASELINES)]
    baselines = [called for called in labels if called in timed]
    undefined = {called: undefined[called] for called in labels if called in undefined}
    lines |= {called: timed[called] for called in baselines}
    found = pd.DataFrame(lines, index=pd.Index(every, name="size_bytes"), dtype=float)
    found["best of baselines"] = found[baselines].max(axis=1)
    found.attrs |= {"problem": problem, "baselines": baselines, "undefined": undefined, "measured": points}
    return found


def measured_points(problem: Problem, paths: Sequence[str]) -> tuple[tuple[int, float], ...]:
    """Points (size in bytes, bus bandwidth in GB/s) of logs, sorted; `InputError` if a log does not fit."""
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
    """Result of a function; None if time is up before it returns."""
    with suppress(OutOfTime), limit.enforced():
        return work(*args, **named)
    return None


def _bounds(problem: Problem, sizes: tuple[int, ...], limit: Deadline) -> tuple[float | None, ...]:
    """Upper bound on the bus bandwidth in GB/s at each size; None if time is up before it is found."""
    factor, launch = problem.collective.busbw_factor, problem.topology.launch_us

    def bound(size: int) -> float | None:
        return gb_per_s(size, launch + lower_bound(assume(problem, size=size), budget_s=_BOUND_S).bound)

    found = [_in_time(limit, bound, size) for size in sizes]
    return tuple(None if each is None else each * factor for each in found)


def usual_sizes(own_bytes: int) -> tuple[int, ...]:
    """A schedule's own size and the default sizes in bytes, except defaults within a factor of 2 of it."""
    apart = (size for size in _SIZES if not own_bytes / 2 < size < own_bytes * 2)
    return tuple(sorted((own_bytes, *apart)))


def _rates(name: str, problem: Problem, sizes: tuple[int, ...]) -> tuple[float | None, ...]:
    """Bus bandwidth in GB/s of a baseline at each size."""
    forms: dict[tuple[bytes, bytes], Schedule] = {}
    for size in dict.fromkeys((sizes[0], problem.size_bytes, sizes[-1])):
        made = BASELINES[name](assume(problem, size=size), cut=False)  # keep the problem's chunks
        forms.setdefault((made.chunk.tobytes(), made.link.tobytes()), made)
    simulations = [[simulate(made, size=size) for made in forms.values()] for size in sizes]
    return tuple(min(each, key=lambda found: found.finish).predicted_busbw_gb_per_s for each in simulations)


@drawing
@checked
def measured(fit: Fit, *, ax: Axes | None = None) -> Axes:
    """Draw measured and predicted times over size, for each series of a fit.

    Parameters
    ----------
    fit : Fit
        Result of `taccl.fit`.
    ax : Axes, optional
        Axes to draw on; by default those of a new figure.
    """
    ax = axes(ax)
    for number, each in enumerate(fit.series):
        colour, mark = OKABE_ITO[number % len(OKABE_ITO)], MARKS[number % len(MARKS)]
        sizes = each.series.size_bytes
        ax.plot(sizes, each.series.times_us, mark, color=colour, markersize=4, label=each.series.title)
        ax.plot(sizes, each.predicted_us, color=colour, linewidth=1.4)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    plain_log(ax.yaxis)
    ax.xaxis.set_major_formatter(lambda value, _: format_size(round(value)))
    ax.legend(fontsize=8, frameon=False, loc="upper left")
    left = fit.left_out_median_error
    told = "" if left is None else f", at held-out sizes {left:.1%}"
    title = f"{fit.machine}: measured (points) and fitted\nmedian error {fit.median_error:.1%}{told}"
    dress(ax, title, "size", "time in us")
    return ax


@drawing
@checked
def diagnosis(found: SeriesDiagnosis, *, ax: Axes | None = None) -> Axes:
    """Draw measured and predicted bus bandwidth of a series over size, and the bound at its largest size.

    Parameters
    ----------
    found : SeriesDiagnosis
        One of the series in a result of `taccl.diagnose`.
    ax : Axes, optional
        Axes to draw on; by default those of a new figure.
    """
    ax = axes(ax)
    sizes, measured_us = found.series.size_bytes, found.series.times_us
    pairs = zip(sizes, measured_us, found.predicted_us, strict=True)
    measured, expected = zip(*((found.busbw(s, m), found.busbw(s, e)) for s, m, e in pairs), strict=True)
    ax.plot(sizes, expected, color=OKABE_ITO[0], linewidth=1.4, label=f"predicted with {found.library}")
    ax.plot(sizes, measured, "o", color=OKABE_ITO[5], markersize=4, label="measured")
    if found.bound_us is not None:
        ax.axhline(
            found.busbw(sizes[-1], found.bound_us), color=GREY, linestyle="--", linewidth=1, label="bound"
        )
    ax.set_xscale("log", base=2)
    ax.set_ylim(bottom=0)
    ax.xaxis.set_major_formatter(lambda value, _: format_size(round(value)))
    ax.legend(fontsize=8, frameon=False, loc="center left")
    dress(ax, f"{found.series.title}, {found.topology}", "size", "bus bandwidth in GB/s")
    return ax


@checked
@drawing
def diagnosis_page(found: Diagnosis) -> str:
    """HTML page of a diagnosis: verdict, limits, causes, sizes and gains of each series, with a picture."""
    parts = []
    for number, each in enumerate(found.series):
        drawn = diagnosis(each, ax=figure(width=7, height=4))
        parts.append(
            f'<section class="wide">{each._repr_html_()}</section>{picture(drawn, f"series-{number}")}'
        )
    return html_page("Diagnosis of measured collectives", "".join([*parts, found.links_html()]))
