"""Utilisation of each dimension of a network over the time of a schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arguments import checked
from taccl._internal.units import BYTES_PER_MB, format_us
from taccl.plot.style import OKABE_ITO, axes, drawing, headline
from taccl.problem.costs import hold_columns, link_ends
from taccl.schedule.implicit.schedule import ImplicitSchedule
from taccl.schedule.schedule import Schedule
from taccl.topology.products import Dimensions
from taccl.topology.recognise import dimensions as find_dimensions

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BINS = 200


@checked
@drawing
def dimensions(schedule: Schedule | ImplicitSchedule, *, ax: Axes | None = None) -> Axes:
    """Draw the busy share of each dimension of the network over time, one row per dimension.

    To compare two schedules side by side, for example with different orders of dimensions, pass an axes for
    each.

    Parameters
    ----------
    schedule : Schedule or ImplicitSchedule
        A schedule on a product of dimensions (`taccl.dimensions`).
    ax : Axes, optional
        Axes to draw on; by default those of a new figure.

    Raises
    ------
    TopologyError
        If the topology is no product.
    """
    dims, time_us, share = dimension_use(schedule)
    ax = axes(ax, height=1.2 + 0.9 * len(dims))
    begin_us = np.concatenate(([0], time_us))
    for k in range(len(dims)):
        base = len(dims) - 1 - k
        level = np.append(share[k], share[k][-1:])
        ax.fill_between(begin_us, base, base + 0.85 * level, step="post", color=OKABE_ITO[k % len(OKABE_ITO)])
        ax.axhline(base, color="#cccccc", linewidth=0.8)
    ax.set_yticks([len(dims) - 0.6 - k for k in range(len(dims))])
    ax.set_yticklabels([f"{each}\n{share[k].mean():.0%} busy" for k, each in enumerate(dims.dims)])
    ax.set_ylim(-0.05, len(dims))
    ax.set_xlim(0, schedule.finish_us or 1)
    ax.set_xlabel("time in us")
    name = schedule.collective if isinstance(schedule, ImplicitSchedule) else schedule.problem.collective.name
    size = f", {schedule.size_bytes / BYTES_PER_MB:.4g} MB" if schedule.size_bytes else ""
    headline(ax, f"{name}{size}: {schedule.producer}, {format_us(schedule.finish_us)}")
    return ax


def dimension_use(
    schedule: Schedule | ImplicitSchedule, *, num_bins: int = _BINS
) -> tuple[Dimensions, NDArray[np.float64], NDArray[np.float64]]:
    """Busy share of each dimension in equal time bins.

    - `num_bins`: Number of bins from 0 to the finish.

    Returns the dimensions, the ends of the bins in us, (num_bins,), and the shares, (dimensions, num_bins).
    """
    if isinstance(schedule, ImplicitSchedule):
        dims, shape, ticks = find_dimensions(schedule.host), schedule.translations, schedule.ticks
        to = np.array([each.dst for each in shape.classes])
        axis_of, held_of = (dims.digits(to) > 0).argmax(axis=0), [max(h[1] for h in x) for x in ticks.holds]
        # Under all translations each rank makes every send of the pattern once, so one rank stands for all.
        count = [each.num_ways for each in dims.dims]
        axis, held = axis_of[schedule.pattern.link_class], np.array(held_of)[schedule.pattern.link_class]
        begin, per_us = schedule.pattern.start, ticks.ticks_per_us
    else:
        problem = schedule.problem
        dims, columns = find_dimensions(problem.topology), hold_columns(problem.topology)
        costs = problem.costs
        src, dst = (dims.digits(ends) for ends in link_ends(problem.topology))
        axis_of = (src != dst).argmax(axis=0)
        links = np.bincount(axis_of, minlength=len(dims))
        count = [
            dims.num_ranks if each.kind == "switch" else int(links[k]) for k, each in enumerate(dims.dims)
        ]
        send, hold = columns.of_sends(schedule.link.astype(np.int64))
        units = costs.chunk_units[schedule.chunk[send]]
        held = np.zeros(len(schedule.link), np.int64)
        np.maximum.at(held, send, costs.hold_alpha[hold] + units * costs.hold_beta[hold])
        axis, begin, per_us = axis_of[schedule.link], schedule.start, costs.ticks_per_us
    time = np.linspace(0, schedule.finish_ticks, num_bins + 1)
    share = np.zeros((len(dims), num_bins))
    for k in range(len(dims)):
        some = axis == k
        done = _busy(time, begin[some]) - _busy(time, begin[some] + held[some])
        share[k] = np.diff(done) / (count[k] * np.diff(time))
    return dims, time[1:] / per_us, share


def _busy(time: NDArray[np.float64], begins: NDArray[np.int64]) -> NDArray[np.float64]:
    """Total time elapsed since each of `begins` up to each of `time`, as if nothing ever ended."""
    begins = np.sort(begins)
    count = np.searchsorted(begins, time)
    so_far = np.concatenate(([0], np.cumsum(begins, dtype=np.float64)))
    return np.asarray(count * time - so_far[count])
