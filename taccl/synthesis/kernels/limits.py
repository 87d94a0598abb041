"""Runs of a compiled search, and the best result of several."""

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
    """Until when to search, for what, from which seed, and by which constants."""

    deadline: Deadline = NEVER  # what is under way then is stopped
    #: No run but the first is begun after it, and one under way is given up; by default the deadline.
    until: Deadline | None = None
    target_ticks: int = 0  # a finish that is good enough, such as a lower bound: the search stops there
    num_runs: int | None = None  # by default as many as are worth it
    seed: int = 0
    spill_dir: str | os.PathLike[str] | None = None  # for columns, in files without names; None for memory
    parameters: SearchParameters = DEFAULTS
    #: Seconds from now on in which improvement must find something, whenever it is asked.
    idle_s: Callable[[], float] = field(default=lambda: math.inf, compare=False)


@dataclass(frozen=True, slots=True)
class Sends:
    """The sends found: a row for every send, in order of start."""

    chunk: NDArray[Any]  # uint16 or int32
    link: Int32s  # by index of the topology
    start: NDArray[Any]  # ticks, int32 or int64
    finish_ticks: int  # the last arrival


def counting(
    deadline: Deadline, signal: Ints, doing: str, count: int, steps: float, ahead: float = 0.0
) -> AbstractContextManager[None]:
    """While a kernel deals with so many things; ``signal[1]`` is how many of them are done."""
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
    """The best of several runs; None if none ends by `limit_ticks`.

    - `attempt` (function of int, int and Limits to Sends or None): The run of a number, which may give up
      what ends after so many ticks; its seed is the number on.
    - `steps`: What a run takes; see `Deadline.scope`.
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
