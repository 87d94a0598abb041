"""What the list scheduler found is where a linear model starts, and what it must be better than."""

import pytest

import taccl
from taccl import collectives
from taccl.synthesis.milp import routing
from taccl.synthesis.proposers import solver_stages
from tests.synthesis.small_problems import problem_of, ring


@pytest.fixture
def models(monkeypatch):
    """Upper bounds and hints that routing models were given, in order."""
    given = []
    build, solve = routing.RoutingModel, solver_stages.solve

    def noted_build(orbits, *, upper_ticks, **options):
        given.append({"upper_ticks": upper_ticks})
        return build(orbits, upper_ticks=upper_ticks, **options)

    def noted_solve(model, solver, *, hint=None, **options):
        given[-1].setdefault("hint", hint)
        return solve(model, solver, hint=hint, **options)

    monkeypatch.setattr(routing, "RoutingModel", noted_build)
    monkeypatch.setattr(solver_stages, "solve", noted_solve)
    return given


def test_model_starts_from_the_list_scheduler(models):
    """Its finish is the cutoff, and its routing the hint, of a ring of five with links of 2, 3 and 4 us."""
    problem = problem_of(ring(5, betas=(0, 1, 2)), collectives.alltoall(5))
    result = taccl.synthesize(problem, backend="highs", time_limit_s=5)
    first = next(stage for stage in result.stages if stage.name == "greedy")
    assert problem.costs.us(models[0]["upper_ticks"]) == pytest.approx(first.finish_us)
    assert models[0]["hint"] is not None
    assert result.finish_us <= first.finish_us
