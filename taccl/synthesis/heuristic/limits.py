"""How a compiled search is run, and what it finds: the best of several runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from taccl.deadline import NEVER, Deadline
from taccl.synthesis.parameters import DEFAULTS, SearchParameters

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Limits:
    """Until when to search, for what, from which seed, and by which constants.

    - `deadline`: What is under way then is stopped.
    - `until`: No run but the first is begun after it, and one under way is given up; by default the deadline.
    - `target_ticks`: A finish that is good enough, such as a lower bound: the search stops there.
    - `num_runs`: How many runs to make; by default as many as are worth it.
    - `spill_dir`: A folder for columns, in files without names; by default they are in memory.
    """

    deadline: Deadline = NEVER
    until: Deadline | None = None
    target_ticks: int = 0
    num_runs: int | None = None
    seed: int = 0
    spill_dir: str | os.PathLike[str] | None = None
    parameters: SearchParameters = DEFAULTS


@dataclass(frozen=True, slots=True)
class Sends:
    """What was found: a row for every send, in order of start.

    - `chunk`: (num_sends,) uint16 or int32.
    - `link`, (num_sends,) int32: By index of the topology.
    - `start`, (num_sends,) int32 or int64: Ticks.
    - `finish_ticks`: The last arrival.
    """

    chunk: NDArray[Any]
    link: NDArray[np.int32]
    start: NDArray[Any]
    finish_ticks: int


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
