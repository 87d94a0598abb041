"""Classes of links by rate."""

import taccl
from taccl.problem.making import make_problem
from taccl.synthesis.kernels.fabric import problem_arrays
from taccl.topology.builder import TopologyBuilder


def two_leaves(*, uplink):
    """Ranks 0 and 1 at one leaf, 2 and 3 at another, and a link of 1 us/MB for every pair of ranks.

    With `uplink`, the ranks of a leaf share an uplink to the other leaf.
    """
    builder = TopologyBuilder("leaves", [0] * 4)
    uplinks = [builder.add_resource(f"uplink {leaf}") for leaf in range(2)]
    for src in range(4):
        for dst in range(4):
            if src != dst:
                link = builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=1)
                if uplink and src // 2 != dst // 2:
                    builder.add_hold(link, uplinks[src // 2], alpha_us=0, beta_us_per_mb=1)
    problem = make_problem(builder.build(), taccl.collectives.allgather(4), chunk_bytes=10**6)
    return problem_arrays(problem)[0]


def test_links_of_one_rate_are_one_class():
    """Links of one rate without a shared uplink form one class."""
    assert len(two_leaves(uplink=False).component) == 1


def test_links_that_ranks_share_are_slower():
    """Links over an uplink that two ranks share form a slower class."""
    fabric = two_leaves(uplink=True)
    crossing = fabric.src // 2 != fabric.dst // 2
    assert fabric.speed.tolist() == crossing.astype(int).tolist()
    assert len(set(fabric.component[1].tolist())) == 2


def test_a_port_of_one_rank_is_not_shared():
    """A rank's port on a star is used by that rank alone, so all links form one class."""
    problem = make_problem(taccl.topologies.star(4), taccl.collectives.allgather(4), chunk_bytes=10**6)
    assert len(problem_arrays(problem)[0].component) == 1
