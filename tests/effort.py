"""Measures of work, and searches that end by work, since no test asserts seconds."""

from __future__ import annotations

import time
import timeit
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

import taccl
from taccl.analysis.certificates import bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

#: Time limit in seconds that no test's search reaches, so that results do not depend on the clock.
AMPLE_S = 3600.0
#: Search parameters for small problems: limits on work end each stage; solvers have 1.5 s each.
BRIEF = taccl.SearchParameters.from_dict(
    {
        "budget": {"bound_share": 1.5 / AMPLE_S, "most_bound_share": 3 / AMPLE_S, "last_every_s": 0},
        "portfolio": {
            "improve_share": 0, "half_improve_share": 0, "least_improve_s": 0,
            "joint_share": 1.5 / AMPLE_S,
        },
        "list": {"most_s": 0.001, "least_alone_s": 0.001, "alone_share": 0},
        "ruin": {"idle_runs": 1, "run_turns": 100},
        "suggesting": {"most_suggest_s": AMPLE_S},
    }
)  # fmt: skip

#: Search parameters for large problems whose result is not asserted: solvers have about 0.1 s each.
#: Suggested sketches are compared in two runs, and one of them is searched.
HASTY = taccl.SearchParameters.from_dict(
    {
        **BRIEF.to_dict(),
        "portfolio": {**BRIEF.to_dict()["portfolio"], "joint_share": 0.1 / AMPLE_S},
        "budget": {
            "bound_share": 0.1 / AMPLE_S,
            "most_bound_share": 0.5 / AMPLE_S,
            "least_every_s": 0,
            "most_every_s": 0,
            "last_every_s": 0,
        },
        "suggesting": {"most_suggest_s": AMPLE_S, "ranking_runs": 2, "sketches": 1},
    }
)
#: Search parameters that wait for a first schedule without limit; its stages are the default ones.
PATIENT = taccl.SearchParameters.from_dict({"budget": {"late_s": AMPLE_S}})


def brief_synthesis(problem: taccl.Problem, **options: Any) -> taccl.Result:
    """Result of a search whose stages end by limits on their work, long before the time limit."""
    return taccl.synthesize(problem, **{"time_limit_s": AMPLE_S, "parameters": BRIEF, **options})


def first_schedule(problem: taccl.Problem, **options: Any) -> taccl.Schedule:
    """First schedule that a search finds, for tests to which any valid schedule will do.

    No bound over all chunkings is computed, which takes three times as long as such a search.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("taccl.synthesis.bounding.look_for_bound_over_all_chunkings", lambda *_, **__: None)
        return brief_synthesis(
            problem, **{"backend": "greedy", "stop_when": lambda _: True, **options}
        ).schedule


def brief_plan(topology: taccl.Topology | str, collective: str, **options: Any) -> taccl.Plan:
    """Plan whose searches end by limits on the work of their stages, long before the time limit."""

    def synthesis(
        problem: taccl.Problem, *, time_limit_s: float, parameters: taccl.SearchParameters, **given: Any
    ) -> taccl.Result:
        brief, asked = HASTY.to_dict(), parameters.to_dict()
        merged = {name: {**brief.get(name, {}), **asked.get(name, {})} for name in {*brief, *asked}}
        return brief_synthesis(problem, parameters=taccl.SearchParameters.from_dict(merged), **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("taccl.explore.plan_search.synthesize", synthesis)
        return taccl.plan(topology, collective, **{"time_limit_s": AMPLE_S, **options})


def shorten_mixes(patch: pytest.MonkeyPatch) -> None:
    """Limit the searches for mixed plans and mixes of trees, as in all tests by default.

    A mixed plan is from a brief run of annealing, and a mix of trees from the brief sweeps alone.
    """
    patch.setattr("taccl.baselines.multiplying_mixes._RUNS", ((1000, 0.02),))
    patch.setattr("taccl.baselines.multiplying_mixes._MORE_CHAINS", ())
    patch.setattr("taccl.baselines.multiplying_mixes._MILD_RUNS", ((1000, 0.002),))
    patch.setattr("taccl.baselines.tree_mixes._LONG", 3)
    patch.setattr("taccl.baselines.tree_mixes._FEW_SENDS", 0)
    patch.setattr("taccl.baselines.tree_mixes._RESTARTS", 0)


def in_time(attempt: Callable[[float], T], enough: Callable[[T], bool]) -> T:
    """Result of `attempt` under the first of four growing time limits (in seconds) that suffices, or the
    last."""
    for limit_s in (0.5, 4.0, 32.0, 256.0):
        found = attempt(limit_s)
        if enough(found):
            break
    return found


@contextmanager
def quick_fits() -> Iterator[None]:
    """Context in which fits take a third of the time: ten samples per interval, and three folds instead of ten."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("taccl.measure.fit._RESAMPLES", 10)
        patch.setattr("taccl.measure.fit._MIN_RESAMPLES", 10)
        patch.setattr("taccl.measure.fit._FOLDS", 3)
        yield


@contextmanager
def first_bounds() -> Iterator[None]:
    """Context in which only the first families of bounds are searched, for tests that assert no tight bound."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("WHOLE_CHUNKS", "ALL_CHUNKINGS"):
            patch.setattr(bounds, name, getattr(bounds, name)[:1])
        yield


def cpu_s(work: Callable[[], object]) -> float:
    """Minimum CPU seconds of this thread for some work, in three attempts, for comparison with other work.

    The garbage collector is off, as in `timeit`: its passes over objects of earlier tests would count.
    """
    return min(timeit.repeat(work, timer=time.thread_time, repeat=3, number=1))


def assert_sound(result, problem):
    """Assert that a result's schedule is valid, solves the problem, and finishes no earlier than its
    bound."""
    taccl.verify(result.schedule).raise_if_failed()
    assert result.schedule.problem.digest() == problem.digest()
    assert 0 < result.bound_us <= result.finish_us
