"""What a schedule, its bound and the baselines come to at many message sizes, and the picture of it.

A schedule keeps its order at every size (`taccl.simulate`). So does a baseline, which is made anew for the
smallest, its own and the largest size, and of these the fastest is taken at each size: a library would choose
as well. All have the chunks of the problem.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.simulation.assumptions import assume
from taccl.analysis.simulation.simulate import simulate
from taccl.arguments import Duration, Size, checked
from taccl.baselines import BASELINES
from taccl.baselines.spread import without_sketch
from taccl.clauses import BINDING
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
    from matplotlib.axes import Axes

#: What people call them.
NAMES_OF_BASELINES = {
    "ring": "ring", "tree": "double binary tree", "recursive": "halving-doubling",
    "hierarchical": "hierarchical", "dimension-balanced": "dimension-balanced",
    "pairwise": "pairwise", "one-shot": "one-shot", "multiplying": "recursive multiplying",
    "swing": "swing", "bine": "bine trees", "in-network": "in the network", "servers": "at servers",
}  # fmt: skip
#: From 1 KiB to 1 GiB, each four times the one before.
_SIZES = tuple(4**power for power in range(5, 16))
#: Seconds for the bound at each size.
_BOUND_S = 0.2
#: A schedule of more transfers takes too long to be timed at many sizes.
_MOST_TRANSFERS = 20_000


@dataclass(frozen=True, slots=True)
class Bandwidths:
    """Bus bandwidths in GB/s, one at each size, the launch counted; None where there is none to be had.

    Parameters
    ----------
    problem : Problem
        At the schedule's own size.
    sizes_bytes : tuple of int
        In rising order.
    schedule : tuple of float
        Of the schedule, its order kept.
    bound : tuple of float or None
        What no schedule on the topology can pass, the sketch left aside but for merging.
    bound_under_sketch : tuple of float or None
        What no schedule that obeys the sketch can pass; empty where there is no sketch to obey.
    baselines : mapping of name to tuple of float
    undefined : mapping of name to text
        Why there is no such baseline here.
    measured : tuple of (int, float)
        Sizes and bus bandwidths of logs.
    """

    problem: Problem
    sizes_bytes: tuple[int, ...]
    schedule: tuple[float | None, ...]
    bound: tuple[float | None, ...]
    bound_under_sketch: tuple[float | None, ...] = ()
    baselines: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    undefined: Mapping[str, str] = field(default_factory=dict)
    measured: tuple[tuple[int, float], ...] = ()

    def _repr_html_(self) -> str:
        """What a notebook shows: GB/s by size, and how many times the best baseline the schedule comes to."""
        from taccl.html import card, table

        bound = "bound, sketch aside" if self.bound_under_sketch else "bound"
        lines = {"this schedule": self.schedule, bound: self.bound}
        lines |= {"bound under the sketch": self.bound_under_sketch} if self.bound_under_sketch else {}
        lines |= {NAMES_OF_BASELINES[name]: rates for name, rates in self.baselines.items()}
        rows = []
        for at, best in enumerate(self.best_baseline):
            rates = [line[at] for line in lines.values()]
            times = f"{rates[0] / best[1]:.2f}x" if best and rates[0] else ""
            cells = ("" if rate is None else f"{rate:.4g}" for rate in rates)
            rows.append((format_size(self.sizes_bytes[at]), *cells, times))
        head = ("size", *lines, "over the best baseline")
        undefined = [f"{NAMES_OF_BASELINES[name]}: {why}" for name, why in self.undefined.items()]
        title = f"bus bandwidth of {self.problem.title} in GB/s"
        return card(title, table(head, rows), notes=undefined)

    @property
    def best_baseline(self) -> tuple[tuple[str, float] | None, ...]:
        """Name and bus bandwidth of the fastest baseline at each size."""
        best: list[tuple[str, float] | None] = []
        for index in range(len(self.sizes_bytes)):
            rates = [(name, rates[index] or 0.0) for name, rates in self.baselines.items() if rates[index]]
            best.append(max(rates, key=lambda each: each[1], default=None))
        return tuple(best)


@checked
@drawing
def bandwidth(
    schedule: Bandwidths | Result | Schedule | CompactSchedule,
    *,
    sizes: Sequence[Size] | None = None,
    measured: Sequence[str] = (),
    ax: Axes | None = None,
) -> Axes:
    """Lines of bus bandwidth over size, for a schedule, its bound, every baseline and the best of these.

    Parameters
    ----------
    schedule : Bandwidths, Result, Schedule or CompactSchedule
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
    found = schedule
    if not isinstance(found, Bandwidths):
        found = bandwidths(found, sizes=sizes, measured=measured)
    ax = axes(ax, height=5.2)
    at, aside = found.sizes_bytes, found.bound_under_sketch
    dashed = {"color": INK, "linestyle": "--", "linewidth": 1.2}
    ends: list[tuple[Sequence[float | None], str, dict[str, Any]]] = [
        (found.bound, "bound, sketch aside" if aside else "bound", dashed),
        (aside, "bound under the sketch", dashed | {"linestyle": ":"}),
    ]
    if found.baselines:
        best = [None if each is None else each[1] for each in found.best_baseline]
        ends.append((best, "best of baselines", {"color": GREY, "linewidth": 5, "alpha": 0.45}))
    thin = {"linewidth": 1.0, "markersize": 4}
    others = len(MARKS) - 1  # the first is this schedule's
    for number, (name, rates) in enumerate(found.baselines.items()):
        which, dashes = 1 + number % others, ("-", "--")[number // others]
        marked = {"color": OKABE_ITO[which], "marker": MARKS[which], "linestyle": dashes, **thin}
        ends.append((rates, NAMES_OF_BASELINES[name], marked))
    own = {"color": OKABE_ITO[0], "marker": MARKS[0], "linewidth": 2.2, "markersize": 5}
    ends.append((found.schedule, "this schedule", own))
    for line, label, how in ends:
        points = [(size, rate) for size, rate in zip(at, line, strict=bool(line)) if rate]
        if points:
            ax.plot(*zip(*points, strict=True), label=label, **how)
    points = [each for each in found.measured if at[0] <= each[0] <= at[-1]]
    if points:
        x, y = zip(*points, strict=True)
        ax.plot(x, y, "o", label="measured", color=INK, markersize=4, markerfacecolor="none")
    problem = found.problem
    assert problem.size_bytes is not None, "bandwidths needs it"
    ax.axvline(problem.size_bytes, color=GREY, linewidth=0.8, linestyle=":")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    shown = at if len(at) <= 13 else at[:: -(-len(at) // 13)]
    ax.set_xticks(shown, [format_size(size) for size in shown], fontsize=8, rotation=30)
    ax.minorticks_off()
    style.plain_log(ax.yaxis)
    own_size = f"made for {format_size(problem.size_bytes)} (dotted), its order kept at other sizes"
    title = f"{problem.title}: bus bandwidth over size\n{own_size}"
    dress(ax, title, "size (the larger of one rank's input and output buffer)", "bus bandwidth in GB/s")
    if ax.get_lines()[1:]:
        style.legend(ax, ax.get_legend_handles_labels()[0][::-1])
    else:
        remark(ax, "nothing is sent, which takes no time and has no bandwidth")
    if found.undefined:
        names = ", ".join(NAMES_OF_BASELINES[name] for name in found.undefined)
        remark(ax, f"not defined here: {names}")
    return ax


@checked
def bandwidths(
    schedule: Result | Schedule | CompactSchedule,
    *,
    sizes: Sequence[Size] | None = None,
    budget_s: Duration = 30.0,
    measured: Sequence[str] = (),
) -> Bandwidths:
    """The bus bandwidth of a schedule at many sizes, what no schedule can pass, and that of every baseline.

    Parameters
    ----------
    sizes : sequence of int or str, optional
        As nccl-tests counts them. Default: from 1 KiB to 1 GiB, and the schedule's own.
    budget_s : float
        When baselines are left out that are not timed yet; `Bandwidths.undefined` says which.
    measured : sequence of str
        Files of logs (see `taccl.fit`) of the same collective on as many ranks.

    Raises
    ------
    InputError
        If a size is none, the schedule's own is not known, it has too many transfers, or a log is of
        something else.
    """
    began = time.monotonic()
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
    rates = tuple(simulate(own, size=size).predicted_busbw_gb_per_s for size in every)
    free = without_sketch(problem)
    baselines: dict[str, tuple[float | None, ...]] = {}
    undefined: dict[str, str] = {}
    for name in BASELINES:
        if time.monotonic() - began > budget_s:
            undefined[name] = f"not timed: {budget_s:g} s were over"
            continue
        try:
            baselines[name] = _rates(name, problem, every)
        except (CollectiveError, InputError) as error:
            undefined[name] = error.message
    at_most = _bounds(free, every)
    # What guides a search binds no schedule, and merging is left to all.
    under: tuple[float | None, ...] = ()
    if not problem.clauses.same(free.clauses, *(scope for scope in BINDING if scope != "merge")):
        # The search for a bound may come less far under the sketch, which passes nothing without it.
        pairs = zip(_bounds(problem, every), at_most, strict=True)
        under = tuple(a if a is None or b is None else min(a, b) for a, b in pairs)
    return Bandwidths(problem, every, rates, at_most, under, baselines, undefined, points)


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


def _bounds(problem: Problem, sizes: tuple[int, ...]) -> tuple[float | None, ...]:
    """The bus bandwidth that no schedule can pass, at each size."""
    factor, launch = problem.collective.busbw_factor, problem.topology.launch_us
    bounds = (lower_bound(assume(problem, size=size), budget_s=_BOUND_S).bound for size in sizes)
    found = [gb_per_s(size, launch + bound) for size, bound in zip(sizes, bounds, strict=True)]
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
