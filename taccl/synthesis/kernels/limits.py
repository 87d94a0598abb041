"""Limits of a compiled search, and the best of several runs."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from taccl._internal.deadline import NEVER, Deadline
from taccl.synthesis.parameters import DEFAULTS, SearchParameters

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from taccl.synthesis.kernels.fabric import Int32s, Ints


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a compiled search: deadlines, target, number of runs, seed, memory, constants."""

    deadline: Deadline = NEVER  # work under way at this time is stopped
    #: Time at which runs end: no further run starts, and every run under way except the first is given up.
    #: None stands for `deadline`.
    until: Deadline | None = None
    target_ticks: int = 0  # finish at which the search stops, such as a lower bound
    num_runs: int | None = None  # max runs; None for as many as help
    seed: int = 0
    order_s: float = math.inf  # max estimated CPU seconds to order sends; above it, a simple order is used
    # Folder of unnamed files for columns of sends; None to keep these columns in memory.
    spill_dir: str | os.PathLike[str] | None = None
    parameters: SearchParameters = DEFAULTS
    #: Seconds within which improvement must gain, or end: a function called at its start and after each gain.
    idle_s: Callable[[], float] = field(default=lambda: math.inf, compare=False)


@dataclass(frozen=True, slots=True)
class Sends:
    """Sends of a schedule as columns: a row per send, in order of start."""

    chunk: NDArray[Any]  # chunk of each send, as uint16 or int32
    link: Int32s  # link of each send: its index in the topology
    start: NDArray[Any]  # start of each send in ticks, as int32 or int64
    finish_ticks: int  # time of the last arrival


def counting(
    deadline: Deadline, signal: Ints, doing: str, count: int, steps: float, ahead: float = 0.0
) -> AbstractContextManager[None]:
    """Context that reports the progress of a kernel, which counts finished items in ``signal[1]``."""
    signal[1] = 0
    return deadline.scope(doing, done=lambda: float(signal[1]) / max(1, count), steps=steps, ahead=ahead)


def best_of(
    attempt: Callable[[int, int, Limits], Sends | None],
    limits: Limits,
    num_runs: int,
    *,
    steps: float = 1.0,
    limit_ticks: int = 2**62,
) -> Sends | None:
    """Best schedule of several runs; None if none finishes by `limit_ticks`.

    - `attempt` (function of int, int and Limits to Sends or None): One run, given its number and the latest
      finish of interest, above which it may give up. Seeds of runs are consecutive.
    - `steps`: Estimated work of a run; see `Deadline.scope`.
    """
    best: Sends | None = None
    until = limits.until or limits.deadline
    for run in range(num_runs):
        if run and until.has_passed:
            break
        limit = limit_ticks if best is None else min(limit_ticks, best.finish_ticks - 1)
        if best is not None and limit < limits.target_ticks:
            break
        name = f"run {run + 1} of {num_runs}" if num_runs > 1 else ""
        deadline = until if run else limits.deadline
        with limits.deadline.scope(name, steps=steps, ahead=steps * (num_runs - run - 1)):
            found = attempt(run, limit, replace(limits, deadline=deadline, seed=limits.seed + run))
        if found is not None and found.finish_ticks <= limit:
            best = found
    return best
