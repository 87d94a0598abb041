"""Every backend on random problems: they agree on feasibility, bounds and optima."""

import random
import warnings
from functools import cache

import pytest

from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.verification.verify import verify
from taccl.errors import InfeasibleError, SketchError, TopologyError
from taccl.sketch.reachability import check_reachable
from taccl.solvers.registry import backends
from taccl.synthesis import bounding
from taccl.synthesis.synthesize import synthesize
from tests.fuzzing import cases
from tests.synthesis.brute_force import optimal_ticks
from tests.synthesis.small_problems import random_problem

#: Backends run on every problem; the other available ones run on one problem each, in turn.
ALWAYS = ("highs", "scip", "cbc", "cpsat")
#: Time limits in seconds of backends that search until the limit; other backends finish well within 60 s.
LIMITS_S = {"auto": 0.4, "greedy": 0.25}


@pytest.fixture
def _one_bound(monkeypatch):
    """Cache the bound of a problem and of its phases, so that all backends share it."""
    known = {}

    def bound_of(problem, **_):
        key = problem.digest()
        if key not in known:
            while len(known) > 8:
                known.pop(next(iter(known)))
            known[key] = lower_bound(problem)
        return known[key]

    monkeypatch.setattr(bounding, "lower_bound", bound_of)


@cache
def others():
    """Available backends besides those always run and the one for product topologies."""
    asked = {*ALWAYS, "dimension-balanced"}
    return [each.name for each in backends() if each.available and each.name not in asked]


def sketched_problem(seed):
    """A random problem, every second one with sums; in some a sketch forbids links, perhaps too many."""
    problem, rng = random_problem(seed, combining=seed % 2 == 1), random.Random(-seed - 1)
    if rng.random() > 0.3:
        return problem
    allowed = frozenset(e for e in range(len(problem.topology.links)) if rng.random() < 0.85)
    direct = problem.collective.combining and rng.random() < 0.3
    return problem.with_clauses(links_allowed=allowed, direct_crossing=direct)


def least(problem):
    """Optimal makespan in ticks; None if infeasible or if exhaustive search would take too long."""
    try:
        check_reachable(problem)
        return optimal_ticks(problem, max_states=3000)
    except (SketchError, TopologyError):
        return None


def answer(problem, backend):
    """A backend's result without fallback to another; None if it reports infeasibility."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return synthesize(problem, backend=backend, time_limit_s=LIMITS_S.get(backend, 60), threads=1)
        except (InfeasibleError, TopologyError):
            return None


def check(problem, result, best):
    """Assert that the result verifies, respects its bound, and claims optimality only where true."""
    schedule, per_us = result.schedule, problem.costs.ticks_per_us
    assert verify(schedule).ok
    assert result.bound.bound <= schedule.finish
    named = result.backend not in LIMITS_S
    assert not named or {stage.status for stage in result.stages} <= {"done", "optimal"}
    if best is None:
        return
    assert result.bound.bound * per_us <= best
    assert schedule.carries is not None or best <= schedule.finish_ticks  # sums kept apart may be sooner
    whole = any(stage.name == "joint" and stage.status == "optimal" for stage in result.stages)
    if whole and not problem.collective.combining:
        assert schedule.finish_ticks == best
    merges = problem.clauses.max_merge > 1 and problem.clauses.merging
    if named and not merges and not problem.collective.combining:
        assert schedule.finish_ticks == best  # the routing model with every order is exact
    for stage in result.stages:  # with T alone as objective, routing is a relaxation
        if stage.name == "routing" and stage.status == "optimal":
            assert stage.bound_us is not None
            assert stage.bound_us * per_us <= best + 1e-3


def routings(result):
    """The proven optima of each routing model without orders, which all solvers must share.

    Which models are solved depends on earlier stages: a finish at the bound ends the search.
    """
    found = [
        stage for stage in result.stages if stage.name.endswith("routing") and "order on" not in stage.message
    ]
    return {
        stage.name: stage.bound_us
        for stage in reversed(found)  # the first of a name counts: later rounds have cuts
        if stage.status == "optimal" and stage.bound_us is not None
    }


@pytest.mark.fuzz
@pytest.mark.usefixtures("_one_bound")
def test_backends_agree():
    """Backends agree on feasibility, on the optimum of each routing model, and with exhaustive search."""
    for seed in cases("problems that all backends are asked about", few=2, many=150):
        problem = sketched_problem(seed)
        asked = [*ALWAYS, others()[seed % len(others())]]
        results = {backend: answer(problem, backend) for backend in asked}
        assert len({result is None for result in results.values()}) == 1, (seed, results)
        best = least(problem)
        for backend, result in results.items():
            assert result is None or result.backend == backend, (seed, backend)
            if result is not None:
                try:
                    check(problem, result, best)
                except AssertionError as error:
                    raise AssertionError(f"seed {seed}, {backend}: {result!r}") from error
        proven = [routings(results[backend]) for backend in ALWAYS if results[backend] is not None]
        for name in set().union(*proven):
            bounds = [each[name] for each in proven if name in each]
            assert max(bounds) - min(bounds) <= 1e-4, (seed, name, proven)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "backend"), [(138, "highs"), (138, "cpsat"), (804, "cpsat")])
def test_no_stage_is_infeasible(seed, backend):
    """No stage reports "infeasible" for problems that have a schedule; these are cases in which one once did."""
    problem = random_problem(seed)
    result = answer(problem, backend)
    assert result is not None
    check(problem, result, least(problem))
