"""The symmetries of a problem as a group."""

import pytest

from taccl import collectives, topologies
from taccl.errors import SketchError
from taccl.problem.problem import Clauses, make_problem
from taccl.sketch.group import symmetry_group
from taccl.sketch.symmetry import offset_permutation


def problem(*symmetry):
    """An allgather over a line of 3 ranks, whose one symmetry takes it end for end."""
    clauses = Clauses(symmetry=symmetry)
    return make_problem(topologies.mesh(3), collectives.allgather(3), chunk_bytes=1, clauses=clauses)


def everyone(num_ranks, *symmetry):
    """An allgather where every rank has a link to every other."""
    topology, collective = topologies.fully_connected(num_ranks), collectives.allgather(num_ranks)
    return make_problem(topology, collective, chunk_bytes=1, clauses=Clauses(symmetry=symmetry))


def test_generated():
    """The mirror image and the identity."""
    group = symmetry_group(problem((2, 1, 0)))
    assert (group.order, group.has((2, 1, 0)), group.has((0, 1, 2)), group.has((1, 0, 2))) == (
        2,
        True,
        True,
        False,
    )


def test_two_offsets_make_the_product_of_their_groups():
    """Offsets 2 in 4 and 4 in 8 make the four elements of a product of two groups of two."""
    offsets = (offset_permutation(8, 2, 4), offset_permutation(8, 4, 8))
    group = symmetry_group(everyone(8, *offsets))
    assert group.order == 4
    assert group.has([offsets[1][rank] for rank in offsets[0]])


def test_more_symmetries_than_are_counted():
    """A swap and a rotation of 16 ranks make all 16! of their renamings: nobody lists those."""
    group = symmetry_group(everyone(16, (1, 0, *range(2, 16)), offset_permutation(16, 1, 16)))
    assert (group.order, group.counted, str(group)) == (None, 4096, "more than 4096")
    assert set(group.ranks) == set(group.links) == {0}


def test_what_fixes_a_chunk():
    """Of all renamings of 4 ranks, those that leave rank 0's chunk are all of the other three ranks.

    So there are two orbits of ranks, and three of links: from rank 0, to it, and among the others. Where a chunk
    goes over link 0, 0 -> 1, it is its sender's, its receiver's or, of the other two, rank 2's.
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
    """What a person wrote by hand and is none is their mistake, not ours."""
    with pytest.raises(SketchError, match=r"clauses\.symmetry: .* is no symmetry of"):
        symmetry_group(problem(ranks))


def test_no_symmetry_of_the_collective():
    """A broadcast from rank 0 cannot be turned round."""
    clauses = Clauses(symmetry=((2, 1, 0),))
    turned = make_problem(topologies.mesh(3), collectives.broadcast(3), chunk_bytes=1, clauses=clauses)
    with pytest.raises(SketchError, match="is no symmetry of broadcast"):
        symmetry_group(turned)
