"""The symmetries of a problem as a group."""

import pytest

from taccl import collectives, topologies
from taccl.errors import SketchError
from taccl.problem.making import make_problem
from taccl.problem.problem import Clauses
from taccl.sketch.group import symmetry_group
from taccl.sketch.symmetry import offset_permutation


def problem(*symmetry):
    """An allgather over a line of 3 ranks, whose only symmetry is its mirror image."""
    clauses = Clauses(symmetry=symmetry)
    return make_problem(topologies.mesh(3), collectives.allgather(3), chunk_bytes=1, clauses=clauses)


def everyone(num_ranks, *symmetry):
    """An allgather on a full graph."""
    topology, collective = topologies.fully_connected(num_ranks), collectives.allgather(num_ranks)
    return make_problem(topology, collective, chunk_bytes=1, clauses=Clauses(symmetry=symmetry))


def test_generated():
    """The symmetry group of the line has the mirror image and the identity."""
    group = symmetry_group(problem((2, 1, 0)))
    assert (group.order, group.has((2, 1, 0)), group.has((0, 1, 2)), group.has((1, 0, 2))) == (
        2,
        True,
        True,
        False,
    )


def test_two_offsets_make_the_product_of_their_groups():
    """Shifts by 2 in groups of 4 ranks, and by 4 in groups of 8, generate a group of four elements, two times
    two."""
    offsets = (offset_permutation(8, 2, 4), offset_permutation(8, 4, 8))
    group = symmetry_group(everyone(8, *offsets))
    assert group.order == 4
    assert group.has([offsets[1][rank] for rank in offsets[0]])


def test_more_symmetries_than_are_counted():
    """A swap and a rotation of 16 ranks generate all 16! renamings, which are not listed."""
    group = symmetry_group(everyone(16, (1, 0, *range(2, 16)), offset_permutation(16, 1, 16)))
    assert (group.order, group.counted, str(group)) == (None, 4096, "more than 4096")
    assert set(group.ranks) == set(group.links) == {0}


def test_symmetries_that_fix_a_chunk():
    """On a full graph, the symmetries that fix rank 0's chunk are all renamings of the other three ranks.

    They have two orbits of ranks, and three of links: from rank 0, to rank 0, and among the others.

    `turned` has a chunk for each of the three: a symmetry that maps link 0 -> 1 into the orbit maps this
    chunk to chunk 0. These are chunks 0, 1 and 2, respectively.
    """
    whole = everyone(4, (1, 0, 2, 3), (1, 2, 3, 0))
    links = whole.topology.links
    fixing = symmetry_group(whole).fixing(0)
    assert fixing.ranks.tolist() == [0, 1, 1, 1]
    kinds = [{0: "from", 1: "to"}.get((e.src, e.dst).index(0)) if 0 in (e.src, e.dst) else "" for e in links]
    assert [kinds[e] for e in fixing.links] == kinds
    assert len(set(fixing.links.tolist())) == 3
    assert {kinds[e]: int(fixing.turned[e]) for e in set(fixing.links)} == {"from": 0, "to": 1, "": 2}


@pytest.mark.parametrize("ranks", [(1, 0, 2), (0, 1), (0, 0, 0), (0, 1, 7), (1, 2, 0)])
def test_no_symmetry(ranks):
    """A given permutation that is not a symmetry is refused with an error in the sketch."""
    with pytest.raises(SketchError, match=r"clauses\.symmetry: .* is no symmetry of"):
        symmetry_group(problem(ranks))


def test_no_symmetry_of_the_collective():
    """The mirror image is not a symmetry of a broadcast from rank 0."""
    clauses = Clauses(symmetry=((2, 1, 0),))
    turned = make_problem(topologies.mesh(3), collectives.broadcast(3), chunk_bytes=1, clauses=clauses)
    with pytest.raises(SketchError, match="is no symmetry of broadcast"):
        symmetry_group(turned)
