"""``backend="dimension-balanced"`` for process groups over some dimensions of a network."""

from __future__ import annotations

import pytest

from taccl import dimensions, make_problem, synthesize
from taccl.analysis.verification.verify import verify
from taccl.errors import CollectiveError, TopologyError
from taccl.problem.collectives import make, together
from taccl.topologies import parse

NETWORK = "multidim:ring4@100,switch2@50,switch2@25"


def of_groups(groups, name="allreduce", network=NETWORK):
    """A collective of 1 MB in each process group."""
    topology = parse(network)
    inside = [make(name, len(ranks)).among(ranks, num_ranks=topology.num_ranks) for ranks in groups]
    return make_problem(topology, together(inside), size_bytes=10**6)


def test_groups_of_some_dimensions():
    """Groups along some dimensions hold the ranks that agree in all other dimensions.

    Along dimensions 0 and 2 these agree in dimension 1, a switch of two with stride 4.
    """
    assert dimensions(NETWORK).groups([0, 2]) == [(0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)]
    with pytest.raises(TopologyError, match="along: found \\[3\\]; expected different dimensions of 0 to 2"):
        dimensions(NETWORK).groups([3])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["allreduce", "alltoall"])
def test_groups_are_balanced_at_once(name):
    """Two groups at once have the finish and bound of one group alone on a network of the groups' dimensions."""
    found = synthesize(of_groups(dimensions(NETWORK).groups([0, 2]), name), backend="dimension-balanced")
    alone = parse("multidim:ring4@100,switch2@25")
    other = synthesize(make_problem(alone, name, size_bytes=10**6), backend="dimension-balanced")
    assert verify(found.schedule).ok
    assert found.finish_us == other.finish_us
    assert found.dimension_bound.bound_us == other.dimension_bound.bound_us


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([(0, 1, 2, 3), (0, 1, 2, 3)], "groups collide along their dimensions"),
        ([(0, 1, 6)], "groups"),
        ([(1, 0, 2, 3)], "of ranks in ascending order"),
    ],
    ids=["shared", "no product", "order"],
)
def test_groups_that_do_not_go_along_dimensions(groups, said):
    """Groups that share links or are not a product of dimensions are refused with the reason."""
    with pytest.raises(CollectiveError, match=said):
        synthesize(of_groups(groups), backend="dimension-balanced")


@pytest.mark.slow
def test_the_portfolio_begins_with_balanced_groups():
    """The portfolio begins with groups balanced along their dimensions.

    The groups along dimensions 1 and 3 of three sum 16 MB each, at the same time, in 251.5 us; other
    baselines take 683 us or more.
    """
    topology = parse("multidim:ring4@100,switch2@50,ring4@25")
    groups = dimensions(topology).groups([0, 2])
    several = together([make("allreduce", 16).among(ranks, num_ranks=32) for ranks in groups])
    problem = make_problem(topology, several, size_bytes=16_000_000)

    def stop(state):
        return state.finish_us is not None and state.finish_us < 300

    result = synthesize(problem, time_limit_s=300, stop_when=stop)
    assert result.finish_us <= 251.5
    assert next(each for each in result.stages if each.finish_us).name == "groups over dimensions"
