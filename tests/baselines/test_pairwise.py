"""The pairwise exchange baseline."""

from itertools import permutations

import pytest

import taccl
from taccl.analysis.verification.verify import verify
from taccl.baselines import pairwise
from taccl.baselines.direct import exchange_us
from taccl.topology import fabrics, machines
from taccl.topology.builder import TopologyBuilder


def test_alltoall_over_direct_links(make, unit_costs):
    """With a link for every pair an alltoall takes one step."""
    schedule = pairwise(make("alltoall", fabrics.fully_connected(4, **unit_costs)))
    assert (schedule.finish_us, schedule.num_transfers) == (2, 12)


def test_alltoall_behind_a_switch_takes_turns(make, unit_costs):
    """If each rank has one port each way, an alltoall of four ranks takes three steps (shifts)."""
    # 3 shifts; each rank sends one chunk of 2 us and receives one at a time.
    assert pairwise(make("alltoall", fabrics.star(4, **unit_costs))).finish_us == 6


def test_missing_links_are_relayed(make, unit_costs):
    """On a ring, chunks for distant ranks are relayed by neighbours."""
    schedule = pairwise(make("alltoall", fabrics.ring(4, **unit_costs).without(links=range(4, 8))))
    verify(schedule).raise_if_failed()
    # 1 + 2 + 3 hops from each of 4 ranks.
    assert schedule.num_transfers == 24


def test_gather_goes_directly_to_the_root(make, unit_costs):
    """Every rank sends its chunk to the root itself."""
    topology = fabrics.fully_connected(4, **unit_costs)
    schedule = pairwise(make("gather", topology, root=2))
    assert {topology.links[t.link].dst for t in schedule} == {2}
    assert schedule.finish_us == 2


def test_chunks_of_one_pair_merge_between_nodes(make, unit_costs):
    """Chunks of one pair of ranks in different nodes merge up to the limit."""
    topology = fabrics.fully_connected(4, ranks_per_node=2, **unit_costs)
    schedule = pairwise(make("alltoall", topology, chunks_per_rank=8))
    # 4 pairs inside nodes send 8 chunks one by one; 8 pairs across send them in two sends, of 6 and 2.
    assert schedule.num_sends == 4 * 8 + 8 * 2


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [2, 4])
@pytest.mark.parametrize("machine", [machines.dgx1, machines.dgx2, machines.ndv2])
def test_ranks_that_share_nics_wait_for_none(machine, nodes):
    """An alltoall takes the time of its busiest NIC."""
    problem = taccl.make_problem(machine(nodes=nodes), "alltoall", size_bytes=256_000_000)
    assert pairwise(problem).finish_us == pytest.approx(exchange_us(problem).max(), rel=0.01)


@pytest.mark.slow
def test_relays_wait_for_no_step():
    """On DGX-1 pairs without an NVLink are relayed without delaying other chunks."""
    problem = taccl.make_problem(machines.dgx1(), "alltoall", size_bytes=256_000_000)
    assert pairwise(problem).finish_us == pytest.approx(exchange_us(problem).max(), rel=0.1)


def test_pairs_over_one_port_leave_no_port_idle():
    """In an alltoall of two pairs of ranks no port is idle; each pair is joined by a bridge.

    Each rank sends two chunks of 10 us through its port while it sends one over its bridge.
    """
    builder = TopologyBuilder("pairs", [0] * 4)
    slots = [(builder.add_resource(f"out {r}"), builder.add_resource(f"in {r}")) for r in range(4)]
    for src, dst in permutations(range(4), 2):
        near = src // 2 == dst // 2
        link = builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=1 if near else 10)
        if not near:
            builder.add_hold(link, slots[src][0], alpha_us=0, beta_us_per_mb=10)
            builder.add_hold(link, slots[dst][1], alpha_us=0, beta_us_per_mb=10, side="receive")
    problem = taccl.make_problem(builder.build(), "alltoall", size_bytes=4_000_000)
    assert pairwise(problem).finish_us == 20
