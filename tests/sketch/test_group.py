"""The symmetries of a problem as a group."""

from __future__ import annotations

import pytest

from taccl import collectives, topologies
from taccl.errors import SketchError
from taccl.problem import Clauses, make_problem
from taccl.sketch.group import symmetry_group


def problem(*symmetry):
    """An allgather over a line of 3 ranks, whose one symmetry takes it end for end."""
    clauses = Clauses(symmetry=symmetry)
    return make_problem(topologies.mesh(3), collectives.allgather(3), chunk_bytes=1, clauses=clauses)


def test_generated():
    """The mirror image and the identity."""
    assert [each.ranks for each in symmetry_group(problem((2, 1, 0)))] == [(0, 1, 2), (2, 1, 0)]


@pytest.mark.parametrize("ranks", [(1, 0, 2), (0, 1), (0, 0, 0), (0, 1, 7), (1, 2, 0)])
def test_no_symmetry(ranks):
    """What a person wrote by hand and is none is their mistake, not ours."""
    with pytest.raises(SketchError, match=r"clauses\.symmetry: .* is no symmetry of"):
        symmetry_group(problem(ranks))


def test_no_symmetry_of_the_collective():
    """A broadcast from rank 0 cannot be turned round."""
    clauses = Clauses(symmetry=((2, 1, 0),))
    turned = make_problem(topologies.mesh(3), collectives.broadcast(3), chunk_bytes=1, clauses=clauses)
    with pytest.raises(SketchError, match="is no symmetry of broadcast"):
        symmetry_group(turned)
