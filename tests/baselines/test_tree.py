"""The double binary tree baseline."""

from fractions import Fraction

import pytest

from taccl import collectives
from taccl.analysis.verification.verify import verify
from taccl.baselines import tree
from taccl.baselines.tree import binary_tree, two_trees
from taccl.errors import CollectiveError
from taccl.problem.making import make_problem
from taccl.topology import fabrics, machines


def test_binary_tree_of_four():
    """In a tree of four places, 0 is the parent of 2, and 2 is the parent of 1 and 3."""
    assert binary_tree(4) == [(0, 0, 2), (1, 2, 1), (1, 2, 3)]


def test_trees_span_all_members():
    """Either tree reaches every member except the root exactly once, from a member that it has reached
    before."""
    for count in range(1, 34):
        for edges in two_trees(range(count)):
            reached = {0}
            for _, up, down in edges:
                assert up in reached
                assert down not in reached
                reached.add(down)
            assert reached == set(range(count))


def test_inner_members_of_one_tree_are_leaves_of_the_other():
    """With an odd number of members only the root has children in both trees; with an even number at most one
    other member does."""
    for count in range(3, 34):
        first, second = ({up for _, up, _ in edges} - {0} for edges in two_trees(range(count)))
        assert len(first & second) <= (count + 1) % 2


def test_broadcast_of_one_chunk(make, unit_costs):
    """One chunk goes down one tree of depth 2 among 4 ranks."""
    # 0 -> 2, then 2 -> 1 and 2 -> 3 at once: two hops of 2 us.
    assert tree(make("broadcast", fabrics.fully_connected(4, **unit_costs)), cut=False).finish_us == 4


def test_chunks_follow_one_another_down():
    """A broadcast is cut into chunks until finer chunks no longer pay."""
    size = 1 << 20
    topology = fabrics.ring(3, alpha_us=0, bandwidth_gb_per_s=1)
    schedule = tree(make_problem(topology, collectives.broadcast(3), chunk_bytes=size))
    # Half of the k chunks go 0 -> 2 -> 1, the others 0 -> 1 -> 2; all data over one link takes T.
    # The broadcast takes (1/2 + 1/k) T: k/2 chunks over each link of rank 0, and one more hop.
    # By this formula 32 chunks are 5.6 % faster than 16, but 64 are only 2.9 % faster than 32.
    assert schedule.problem.collective.num_chunks == 32
    assert schedule.finish == Fraction(size, 1000) * (Fraction(1, 2) + Fraction(1, 32))


@pytest.mark.slow
def test_all_network_cards_carry_sums_of_an_allreduce():
    """With enough chunks the two trees use every NIC of a node in both directions."""
    topology = machines.dgx_a100(2, profile="nominal")
    problem = make_problem(topology, collectives.allreduce(16, chunks_per_rank=2), size_bytes=1 << 25)
    schedule = tree(problem, cut=False)
    held = {h.resource for t in schedule for h in topology.holds_of_link[t.link]}
    cards = {i for i, each in enumerate(topology.resources) if each.name.startswith("NIC")}
    assert len(cards) == 32
    assert cards <= held


def test_broadcast_from_any_root(make, unit_costs):
    """The root of the tree is the collective's root."""
    schedule = tree(make("broadcast", fabrics.fully_connected(5, **unit_costs), root=3))
    verify(schedule).raise_if_failed()
    assert schedule.problem.topology.links[next(iter(schedule)).link].src == 3


def test_allreduce_gathers_at_rank_0(make, unit_costs):
    """All sums of an allreduce are formed at rank 0, whatever the collective's roots."""
    schedule = tree(make("allreduce", fabrics.fully_connected(4, **unit_costs)))
    links = schedule.problem.topology.links
    assert not [t for t in schedule if t.reduce and links[t.link].src == 0]
    verify(schedule).raise_if_failed()


def test_allreduce_overlaps_up_and_down(make, unit_costs):
    """Some chunks go down the tree while others still go up, so an allreduce takes less time than both phases
    in sequence."""
    topology = fabrics.fully_connected(4, **unit_costs)
    up, both = (
        tree(make("reduce", topology, chunks_per_rank=8)),
        tree(make("allreduce", topology, chunks_per_rank=2)),
    )
    assert both.finish < 2 * up.finish


@pytest.mark.slow
def test_trees_of_nodes_enter_by_different_ranks():
    """On machines of several nodes the two trees enter a node by different ranks."""
    topology = machines.dgx2(nodes=2)
    problem = make_problem(topology, collectives.broadcast(32, chunks_per_rank=4), chunk_bytes=10**6)
    schedule = tree(problem)
    entered = {topology.links[t.link].dst for t in schedule if topology.is_internode(t.link)}
    assert schedule.producer == "tree (double binary tree of nodes)"
    assert len(entered) == 2


def test_alltoall_is_refused(make, unit_costs):
    """A collective whose chunks do not concern every rank is refused."""
    with pytest.raises(CollectiveError, match="tree does not support alltoall"):
        tree(make("alltoall", fabrics.fully_connected(4, **unit_costs)))
