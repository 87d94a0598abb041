"""Recursive multiplying: in each step, groups of two or more ranks exchange all that they hold."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from taccl._internal.arguments import checked
from taccl._internal.deadline import NEVER
from taccl.baselines.chunking import (
    cut_while_it_pays,
    finest,
    keep_soonest,
    merging,
    require_no_derivations,
    sums_everywhere,
    without_sketch,
)
from taccl.baselines.forms import complete_so_far, fastest, timed
from taccl.baselines.multiplying_batches import in_batches
from taccl.baselines.multiplying_mixes import (
    best_mix,
    first_mix,
    greedy_mix,
    mixed_transfers,
    soonest_mix,
    to_mix,
)
from taccl.baselines.multiplying_plans import BEHIND, BY_NODE, StepPlan, all_plans, is_simple
from taccl.baselines.multiplying_sends import sends_of
from taccl.baselines.multiplying_times import MOST_SENDS, Grid, StepTimes
from taccl.errors import CollectiveError

if TYPE_CHECKING:
    from collections.abc import Callable

    from taccl._internal.deadline import Deadline
    from taccl.baselines.moves import Sends
    from taccl.problem.problem import Problem
    from taccl.schedule.schedule import Schedule

#: `_MOST_PLANS`: number of plans that become schedules: those with the least estimates.
#: `_MOST_ALIKE`: number of plans of each kind that become schedules, too.
#: `MOST_TRANSFERS`: max transfers of all schedules that are built from plans.
#: `_MOST_LISTED`: max transfers of a mixed plan for list scheduling, which rarely shortens larger ones.
#: `_LATE`: max ratio of a plan's estimated finish to the best finish so far, for it to become a schedule.
_MOST_PLANS, _MOST_ALIKE, MOST_TRANSFERS, _MOST_LISTED, _LATE = 3, 3, 24_000, 12_000, 1.2
#: Max ratio of the finish of a mixed plan to its estimate for the estimate to count as right.
_AS_ESTIMATED = 1.005
#: Finer chunks are kept if they finish within this share of the time of coarser ones.
_PAYS = Fraction(99, 100)
#: Finer chunks are not tried for single plans if a mixed plan takes less than this share of their time.
_MIX_PAYS = Fraction(98, 100)
#: Numbers of pieces to cut messages of sums into, so that first pieces are forwarded earlier.
_PIECES = (1, 4)


@checked
def multiplying(problem: Problem, *, cut: bool = True) -> Schedule:
    """Recursive multiplying: in each step, groups of ranks exchange all their data.

    Groups have two or more ranks, and any number of ranks is supported. The plans with the least estimated
    times become schedules. An allreduce whose chunks may be cut also mixes plans: some chunks cross between
    nodes while others are summed or spread inside (`taccl.baselines.multiplying_mixes`). An allgather or
    reduce-scatter may gather chunks of several nodes together (`taccl.baselines.multiplying_batches`). The
    fastest schedule is returned, and its `producer` names its plan (`taccl.baselines.multiplying_plans`).
    Only the merging clauses of the sketch apply.

    Parameters
    ----------
    problem : Problem
        The problem to solve. Sums must include all ranks, and be for all ranks or for one rank each.
    cut : bool
        True to cut chunks, so that more of them follow one another.

    Raises
    ------
    CollectiveError
        If sums have other contributions or destinations, chunks derive from one another, or there would be
        too many transfers.
    TopologyError
        If no links lead from one rank to another.

    References
    ----------
    M. Ruefenacht, M. Bull and S. Booth, "Generalisation of recursive doubling for AllReduce: now with
    simulation", Parallel Computing 69 (2017).
    """
    _require_supported(problem)
    found = _mixed(problem) if cut else []
    cut = cut and (len(found) < 2 or found[1].finish > _MIX_PAYS * found[0].finish)
    # Keep the best schedule so far, in case time runs out.
    # The first schedule in `found` has finer chunks; the search for single plans continues with these.
    if found:
        keep_soonest(problem, fastest(found))
        for each in (problem, merging(problem)):
            finest(each).setdefault("multiplying", found[0])
    single = cut_while_it_pays(problem, _fastest_plan, name="multiplying", cut=cut, pays=_PAYS, merges=True)
    return fastest((single, *found))


def _mixed(problem: Problem) -> list[Schedule]:
    """[best schedule with one plan for all chunks, best one with a plan for each group of chunks].

    Empty if there are no mixed plans. The first has the coarsest chunks that mixed plans may have.
    """
    mixed = mixed_schedule(problem)
    return [] if mixed is None else [_fastest_plan(to_mix(problem)[-1]), mixed]


def mixed_schedule(
    problem: Problem,
    until: Deadline = NEVER,
    *,
    below_us: float = math.inf,
    most_transfers: float = math.inf,
    patient: bool = False,
    fits: Callable[[StepTimes, StepPlan], bool] = lambda *_: True,
    keep: Callable[[Schedule], object] | None = None,
    shows: Callable[[StepTimes], bool] = lambda _: False,
) -> Schedule | None:
    """Allreduce by the mixed plan with the least estimated finish: each group of chunks has its own plan.

    None if there is no mixed plan, as on tori and meshes and on machines with too many resources of different
    loads.

    - `until`: Deadline after which the best plan so far is built.
    - `below_us`: The plan is built only if its estimate is below this, or list scheduling may shorten it.
    - `most_transfers`: Approximate max transfers of the schedule.
    - `patient`: True for further runs of simulated annealing if time is left.
    - `fits`: True if time suffices to build a plan; otherwise it is not built.
    - `keep`: Called with a complete schedule before another search, which a deadline of the caller may end.
    - `shows`: True if little time is needed to build the best plan after the first chain of annealing, too.
    """

    def show(times: StepTimes, plan: StepPlan) -> None:
        if keep is None or not (shows(times) and fits(times, plan)):
            return
        made = _built_mix(times, plan, below_us * times.problem.costs.ticks_per_us)
        if made is not None:
            keep(made)

    if not sums_everywhere(problem):
        return None
    fit = [each for each in to_mix(problem) if mixed_transfers(each) <= most_transfers]
    first = first_mix(problem)
    equal = None if first is None else first[1]
    if equal is None or (found := soonest_mix(fit, until, first=equal, patient=patient, show=show)) is None:
        return None
    times, plan = found
    if not fits(times, plan):
        return None
    below = below_us * times.problem.costs.ticks_per_us
    made = _built_mix(times, plan, below)
    if made is None or until.has_passed or made.finish_ticks <= _AS_ESTIMATED * times.ticks(plan):
        return made
    if keep is not None:
        keep(made)
    # The estimate is too low, so a mix that is found from another start may end sooner.
    other = best_mix(times, first=equal, like=greedy_mix(times, equal), until=until)
    assert other is not None, "there are mixed plans"
    return _built_mix(times, other, min(below, made.finish_ticks), made) or made


def _built_mix(
    times: StepTimes, plan: StepPlan, below: float, best: Schedule | None = None
) -> Schedule | None:
    """Schedule of a mixed plan; None if it is not earlier than `best`, or its estimate is not below `below`.

    Small plans are built whatever their estimate is, as list scheduling may shorten them.
    """
    sends = sends_of(times, plan, 1)
    lists = len(sends.chunk) <= _MOST_LISTED
    return _sooner(times, plan, sends, best, lists=lists) if lists or times.ticks(plan) < below else None


def estimated_us(problem: Problem) -> float:
    """Estimated finish of `multiplying` in us: the least over plans of few steps; inf if there are none.

    These plans treat all chunks alike and have at most two steps in nodes and two between nodes.

    Raises `CollectiveError` if `multiplying` does not support the problem.
    """
    _require_supported(problem)
    times, plans = _plans_of(without_sketch(problem), simple=True)
    found = times.soonest(plans)
    return math.inf if found is None else found[0] / problem.costs.ticks_per_us


@dataclass(frozen=True, slots=True)
class Estimated:
    """Plan of `multiplying` with the least estimated finish, for given chunks; not yet a schedule.

    - `us`: The estimated finish; list scheduling may improve on it.
    """

    us: float
    times: StepTimes
    plan: StepPlan

    @classmethod
    def of(
        cls,
        problem: Problem,
        likely: StepPlan | None = None,
        *,
        simple: bool = False,
        most_us: float = math.inf,
        until: Deadline = NEVER,
    ) -> Estimated | None:
        """Best plan of a problem by estimate; None if the estimates of all plans exceed `most_us`.

        Raises `CollectiveError` if no plan supports the problem.

        - `likely`: Plan to estimate first, which saves time if it is among the best.
        - `simple`: True to estimate only plans of few steps, as `estimated_us` does.
        - `until`: Deadline after which the search for batches of chunks ends.
        """
        _require_supported(problem)
        times, plans = _plans_of(without_sketch(problem), simple=simple, until=until)
        found = times.soonest(plans, likely, most_us * problem.costs.ticks_per_us)
        if found is not None:
            return cls(found[0] / problem.costs.ticks_per_us, times, found[1])
        if most_us < math.inf:
            return None
        raise _too_many_sends(problem)

    @classmethod
    def mixed(cls, problem: Problem) -> Estimated | None:
        """Mixed plan of equal parts of one plan; None if there are no mixed plans.

        `mixed_schedule` improves on it by simulated annealing, and by small parts with other plans.
        """
        found = first_mix(problem) if sums_everywhere(problem) else None
        return None if found is None else cls(*found)

    @property
    def is_by_node(self) -> bool:
        """True if chunks of one node are gathered while those of the next one arrive."""
        return self.plan.how == BY_NODE

    @property
    def has_batches(self) -> bool:
        """True if such chunks are gathered in batches."""
        return self.is_by_node and bool(self.plan.sizes)

    def in_better_batches(self, finer: Problem | None = None, until: Deadline = NEVER) -> Estimated | None:
        """Plan after a further search for batches of chunks; None if it is not node by node or has none.

        - `finer`: Problem in the chunks of the new plan; default: in those of this one, which has batches.
        - `until`: Deadline after which the best plan so far is returned.
        """
        if not self.is_by_node or (finer is None and not self.has_batches):
            return None
        finer = None if finer is None else without_sketch(finer)
        times = self.times if finer is None else StepTimes(finer, Grid(finer))
        start = self.plan if finer is None else self.plan._replace(sizes=())
        found = in_batches(times, _plans_without_batches(times), start, until=until)
        per_us = times.problem.costs.ticks_per_us
        return Estimated(times.ticks(found[0]) / per_us, times, found[0]) if found else None

    def schedule(self, *, lists: bool = True) -> Schedule:
        """Schedule of the plan.

        - `lists`: True to try list scheduling, too, which doubles the time.
        """
        found = _sooner(self.times, self.plan, sends_of(self.times, self.plan, 1), None, lists=lists)
        assert found is not None, "there is no sooner one"
        return _plain_trees(found, self.times, self.plan)


def _require_supported(problem: Problem) -> None:
    """Raise `CollectiveError` unless sums are of all ranks, for one or all ranks, and no chunk is derived."""
    require_no_derivations(problem, baseline="multiplying")
    num_ranks, collective = problem.topology.num_ranks, problem.collective
    if collective.combining and any(
        len(chunk.origins) != num_ranks or len(chunk.destinations) not in (1, num_ranks)
        for chunk in collective.chunks
    ):
        raise CollectiveError(
            f"multiplying supports full reductions only, but found {collective.name}; use recursive, or "
            "synthesize it",
            where="baseline",
        )


def _plans_of(
    problem: Problem, *, simple: bool = False, until: Deadline = NEVER
) -> tuple[StepTimes, tuple[StepPlan, ...]]:
    """Estimator of step times, and all recursive-multiplying plans, of a problem.

    - `simple`: True for only the plans of few steps (`is_simple`).
    - `until`: As for `in_batches`.
    """
    times = StepTimes(problem, Grid(problem))
    plans = _plans_without_batches(times, simple=simple)
    return times, plans if simple else (*plans, *in_batches(times, plans, until=until))


def _plans_without_batches(times: StepTimes, *, simple: bool = False) -> tuple[StepPlan, ...]:
    """Plans as in `_plans_of`, but none in batches."""
    shape, most = times.grid.ranks.shape, 1 + MOST_SENDS // len(times.grid.place)
    return _plans(*shape, sums=times.sums, to_one=times.to_one, most=most, simple=simple)


@lru_cache(maxsize=16)
def _plans(
    num_nodes: int, num_local: int, *, sums: bool, to_one: bool, most: int, simple: bool
) -> tuple[StepPlan, ...]:
    """Distinct plans of `all_plans`; `simple` as in `_plans_of`. Problems in other chunks share them."""
    if simple:
        every = _plans(num_nodes, num_local, sums=sums, to_one=to_one, most=most, simple=False)
        return tuple(filter(is_simple, every))
    return tuple(dict.fromkeys(all_plans(num_nodes, num_local, sums=sums, to_one=to_one, most=most)))


def _fastest_plan(problem: Problem) -> Schedule:
    times, plans = _plans_of(problem)
    seen: Counter[str] = Counter()
    best, made = None, 0
    for number, (ticks, plan) in enumerate(times.ranked(plans)):
        is_late = best is not None and ticks > _LATE * best.finish_ticks
        if best is not None and (is_late or made + best.num_transfers > MOST_TRANSFERS):
            break
        seen[plan.how] += 1
        if number >= _MOST_PLANS and seen[plan.how] > _MOST_ALIKE:
            continue
        known: set[bytes] = set()
        for pieces in _PIECES[: problem.collective.num_chunks if times.sums else 1]:
            if best is not None and made + best.num_transfers > MOST_TRANSFERS:
                break
            sends = sends_of(times, plan, pieces)
            made += len(sends.chunk)
            order = np.stack(sends[:3]).tobytes()
            if order in known:
                continue
            known.add(order)
            found = _sooner(times, plan, sends, best)
            if found is not None:
                best, best_plan = found, plan
    if best is None:
        raise _too_many_sends(problem)
    # More parts let crossings between nodes start sooner, but end later.
    while (
        best_plan.how == BEHIND
        and 2 * len(best_plan.parts) * best_plan.block <= problem.collective.num_chunks
    ):
        best_plan = best_plan._replace(parts=best_plan.parts * 2)
        found = _sooner(times, best_plan, sends_of(times, best_plan, 1), best)
        if found is None:
            break
        best = found
    return _plain_trees(best, times, best_plan)


def _plain_trees(found: Schedule, times: StepTimes, plan: StepPlan) -> Schedule:
    """Schedule without lists of contributions if sums are made and spread along trees, else unchanged."""
    is_tree = found.carries is not None and all(
        not (part.summed or part.before or part.after)
        and all(len(times.hops(digit)) == 1 for digit in part.scattered)
        for part in plan.parts
    )
    return replace(found, carries=None, sums=()) if is_tree else found


def _too_many_sends(problem: Problem) -> CollectiveError:
    """Error for a problem that no plan supports."""
    return CollectiveError(
        f"multiplying needs more than {MOST_SENDS} sends in a step of {problem.title}; use ring or "
        "hierarchical",
        where="baseline",
    )


def _sooner(
    times: StepTimes, plan: StepPlan, sends: Sends, best: Schedule | None, *, lists: bool = True
) -> Schedule | None:
    """Schedule of a plan's sends if it finishes before `best`, the best schedule so far; else None.

    - `lists`: True to try list scheduling of the same sends, too.
    """
    least, found = sends.busy_ticks(times.problem), None
    if best is not None and least >= best.finish_ticks:
        return None
    producer = f"multiplying ({str(plan).replace('scatter', 'scatter' if times.sums else 'gather')})"
    for each in timed(times.problem, sends, producer, least=least if lists else None):
        if best is None or each.finish_ticks < best.finish_ticks:
            best = found = each
            complete_so_far(times.problem).append(each)
    return found
