"""Simulated annealing over mixed plans of recursive multiplying, by a kernel."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl._internal.deadline import NEVER, busy_factor
from taccl._internal.kernels import is_compiled
from taccl.baselines.multiplying_kernel import GATHER, SCATTER, SHARES, SUM, Mixes, Plans, Room, Steps, anneal
from taccl.baselines.multiplying_overlaps import follows
from taccl.baselines.multiplying_plans import Digit, PlanPart
from taccl.baselines.multiplying_times import Grid, StepTimes
from taccl.problem.making import make_problem
from taccl.topology.fabrics import ring

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taccl._internal.deadline import Deadline
    from taccl.baselines.moves import Ints
    from taccl.baselines.multiplying_mix_times import Delay

#: `_AT_ONCE`: moves between two looks at the deadline (about 6 ms of CPU).
#: `_COLD`: temperature at the end of a run, as a share of the estimated finish.
#: `_SHARE`: max share of the time left for annealing.
#: `_COMPILE_S`: CPU seconds to compile the kernel, if that was not done before.
#: `_LEAST_S`: min CPU seconds for annealing once the kernel is loaded, which takes 0.2 s of CPU.
_AT_ONCE, _COLD, _SHARE, _COMPILE_S, _LEAST_S = 2_000, 0.000_02, 0.95, 3.0, 0.1
_VERBS = {"scatter": SCATTER, "sum": SUM, "gather": GATHER}


class Run(NamedTuple):
    """Run of simulated annealing.

    - `moves`: Number of its moves.
    - `warm`: Temperature at its start, as a share of the estimated finish.
    - `delays`: True to also delay steps of parts, so that others go first.
    """

    moves: int
    warm: float
    delays: bool = False


class Annealing:
    """Search for mixes of given plans.

    - `times`: Times of steps.
    - `resources`: Indices of resources that can cause delays.
    - `plans`: Plans that parts of the chunks may have.
    - `most_parts`: Max number of parts.
    - `until`: Deadline after which the best mix so far is returned.
    - `ticks`: Finishes of the best mix and of the last one of a run.
    """

    def __init__(
        self,
        times: StepTimes,
        resources: Ints,
        plans: Sequence[PlanPart],
        *,
        most_parts: int,
        until: Deadline,
    ) -> None:
        self._until, self._most = until.sooner(_SHARE * until.left_s), most_parts
        self._has_kernel, self._per_us = False, times.problem.costs.ticks_per_us
        self._place = {plan: number for number, plan in enumerate(plans)}
        heads: dict[tuple[Digit, bool], int] = {}
        num_steps = max((len(plan.steps()) for plan in plans), default=0)
        kinds, verbs, bases, owns, backs = np.zeros((5, len(plans), num_steps), np.int64)
        kinds[:] = -1
        shares = np.zeros((len(plans), num_steps, 2, 2))
        for number, plan in enumerate(plans):
            for step, (verb, digit) in enumerate(every := plan.steps()):
                kinds[number, step] = heads.setdefault((digit, verb != "scatter"), len(heads))
                verbs[number, step], bases[number, step] = _VERBS[verb], digit.base
                owns[number, step] = digit.own
                backs[number, step], shares[number, step] = follows(every, step)
        self._plans = Plans(kinds, verbs, bases, owns, backs, shares)
        self._steps = _steps(times, heads, resources)
        self.ticks = np.full(2, math.inf)
        shape = most_parts, num_steps
        self._room = Room(
            np.zeros(shape),
            np.zeros(shape),
            np.zeros(shape),
            np.zeros(shape),
            np.zeros(shape),
            np.zeros(shape, np.int64),
            np.zeros((*shape, len(resources))),
            np.zeros(most_parts),
            np.zeros(most_parts),
            np.zeros(most_parts, np.int64),
            np.zeros(most_parts, np.int64),
            np.zeros(most_parts, np.int64),
            np.zeros((4, len(resources))),
        )

    def improved(
        self, mix: Sequence[tuple[PlanPart, int, Delay]], run: Run, seed: int
    ) -> list[tuple[PlanPart, int, Delay]]:
        """Best mix of a run that starts from a mix, as (plan, number of chunks, delayed step) of each part.

        The given mix is returned if there is no time, not even to compile the kernel.

        - `seed`: Seed of the random numbers.
        """
        least_s = 0.0 if is_compiled(anneal) else _COMPILE_S * busy_factor()
        is_late = self._until.has_passed or self._until.left_s < least_s
        if is_late or len(mix) > self._most or any(plan not in self._place for plan, _, _ in mix):
            return [*mix]
        shape = 3, self._most
        plan, size, step = np.zeros((3, *shape), np.int64)
        mixes = Mixes(np.full(3, len(mix)), plan, size, step, np.zeros(shape))
        for k, (part, number, delay) in enumerate(mix):
            plan[:, k], size[:, k] = self._place[part], number
            step[:, k], mixes.delay[:, k] = delay[0], delay[1] * self._per_us
        ticks, random, shares = self.ticks, np.array([seed + 1], np.uint64), np.array(SHARES[run.delays])
        moves, warm = run[:2]
        ticks[:] = math.inf
        anneal(self._plans, self._steps, mixes, self._room, ticks, np.zeros(0), shares, random)
        if not self._has_kernel:
            self._has_kernel = True
            self._until = self._until.at_least(_LEAST_S * busy_factor())
        first, cooled = ticks[0], np.arange(moves) / moves
        while len(cooled) and not self._until.has_passed:
            began_s, some = time.monotonic(), first * warm * (_COLD / warm) ** cooled[:_AT_ONCE]
            anneal(self._plans, self._steps, mixes, self._room, ticks, some, shares, random)
            cooled = cooled[_AT_ONCE:]
            # A run that time would cut off cools down faster, as it gains most at low temperatures.
            fit = len(some) * self._until.left_s / max(time.monotonic() - began_s, 1e-9)
            if fit < len(cooled):
                cooled = np.linspace(cooled[0], 1, max(1, int(fit)), endpoint=False)
        number, plans = mixes.number[0], [*self._place]
        found = zip(*(each[0, :number].tolist() for each in mixes[1:]), strict=True)
        return [(plans[place], size, (step, delay / self._per_us)) for place, size, step, delay in found]


def compile_annealing() -> None:
    """Compile the kernel by running it once on two ranks."""
    problem = make_problem(ring(2), "allreduce", size_bytes=2)
    times, plan = StepTimes(problem, Grid(problem)), PlanPart((Digit(False, 2, 1),))
    Annealing(times, np.zeros(1, np.int64), [plan], most_parts=1, until=NEVER).improved(
        [(plan, 2, (0, 0.0))], Run(1, 1.0), 0
    )


def _steps(times: StepTimes, heads: dict[tuple[Digit, bool], int], resources: Ints) -> Steps:
    """Times of steps between ranks that differ in a digit.

    - `heads`: {(digit, `is_same` as in `StepTimes.step`): index}.
    - `resources`: Indices of resources that can cause delays.
    """
    num_chunks = times.problem.collective.num_chunks
    ticks = np.full((len(heads), num_chunks + 1), math.inf)
    busy = np.zeros((2, len(heads), len(times.problem.topology.resources)))
    for (digit, is_same), k in heads.items():
        if times.hops(digit, is_same):
            ticks[k] = times.ticks_by_count(num_chunks, digit, is_same)
            used, _, (plain, merged), beta = times.loads(digit, is_same)
            busy[:, k, used] = plain + beta, merged
    per_chunk, per_send = np.ascontiguousarray(busy[..., resources])
    pieces = np.array([digit.pieces for digit, _ in heads], np.int64)
    return Steps(ticks, per_chunk, per_send, np.array([times.problem.clauses.max_merge]), pieces)
