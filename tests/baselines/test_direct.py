"""One-shot sums, recursive doubling and pairwise exchanges: finishes derived by hand."""

from fractions import Fraction
from importlib import import_module
from itertools import permutations

import pytest

import taccl
from taccl import collectives
from taccl.analysis.verification.verify import verify
from taccl.baselines import one_shot, pairwise, recursive
from taccl.baselines.direct import exchange_end_us, exchange_us
from taccl.errors import CollectiveError, TopologyError
from taccl.problem.chunks import Chunk
from taccl.problem.collective import Collective
from taccl.problem.making import make_problem
from taccl.problem.problem import Clauses, Problem
from taccl.topology import fabrics, machines
from taccl.topology.builder import TopologyBuilder


def test_one_message_a_link():
    """One-shot takes one message per link, for any number of chunks.

    On four fully connected ranks this is 0.5 us and 1,000 bytes at 20 us/MB.
    """
    whole = collectives.allreduce(4, chunks_per_rank=1)
    problem = make_problem(taccl.topologies.fully_connected(4), whole, size_bytes=1000)
    schedule = one_shot(problem)
    assert (schedule.finish, schedule.num_sends) == (Fraction("0.52"), 12)
    assert taccl.lower_bound(problem).bound == schedule.finish


def test_large_messages_go_chunk_by_chunk():
    """If sending all the data takes longer than a link's latency, the chunks of the problem are not
    merged."""
    topology = taccl.topologies.fully_connected(4)
    large = make_problem(topology, collectives.allreduce(4), size_bytes=10**6)
    assert large.clauses.merging == frozenset()
    assert one_shot(large, cut=False).num_sends == 4 * 12


def test_only_small_sums_merge_by_default():
    """Small sums may merge by default; the chunks of an allgather may not, however small they are."""
    topology = taccl.topologies.fully_connected(4)
    assert make_problem(topology, collectives.allgather(4), size_bytes=1000).clauses == Clauses(max_merge=6)


def test_contributions_add_up_where_they_meet():
    """Contributions that pass a common rank are added up there.

    Ranks 0 and 1 reach rank 3 through rank 2, which sends one message with the sum of all three, not three
    messages.
    """
    builder = TopologyBuilder("y", [0] * 4)
    for src, dst in ((0, 2), (1, 2), (2, 3)):
        builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=1)
    collective = collectives.custom(4, precondition={0: [0, 1, 2]}, postcondition={0: [3]}, combining=True)
    schedule = one_shot(make_problem(builder.build(), collective, chunk_bytes=10**6), cut=False)
    assert taccl.verify(schedule).ok
    assert (schedule.finish, schedule.num_sends) == (2, 3)


def test_doubling_sends_all_at_every_step():
    """Doubling takes two steps of 0.5 us and 1,000 bytes on four ranks; halving and doubling takes four."""
    problem = make_problem(taccl.topologies.fully_connected(4), collectives.allreduce(4), size_bytes=1000)
    schedule = recursive(problem)
    assert schedule.producer.startswith("recursive doubling")
    assert (schedule.finish, set(map(len, schedule.contributions))) == (Fraction("1.04"), {1, 2})
    assert taccl.verify(schedule).ok


def test_a_reduction_in_one_shot():
    """All ranks send their contribution to the root in one step."""
    problem = make_problem(
        taccl.topologies.fully_connected(5), collectives.reduce(5, root=2), size_bytes=1000
    )
    schedule = one_shot(problem)
    assert (schedule.finish, schedule.num_transfers) == (Fraction("0.52"), 4)
    assert taccl.verify(schedule).ok


def test_relays_pass_contributions_on():
    """On a ring every contribution crosses each link of its shortest paths once."""
    problem = make_problem(taccl.topologies.ring(5), collectives.allreduce(5), size_bytes=1000)
    schedule = one_shot(problem)
    assert taccl.verify(schedule).ok
    assert schedule.num_sends == 5 * 4


def test_what_adds_nothing_up_is_refused():
    """One-shot refuses collectives without sums."""
    problem = make_problem(taccl.topologies.ring(4), collectives.allgather(4), size_bytes=1000)
    with pytest.raises(CollectiveError, match="is for reductions"):
        one_shot(problem)


@pytest.mark.slow
def test_far_too_many_transfers_are_refused():
    """A one-shot sum of a hundred ranks and chunks, which has a million transfers, is refused."""
    problem = make_problem(
        taccl.topologies.fully_connected(101), collectives.allreduce(101), size_bytes=10**9
    )
    with pytest.raises(CollectiveError, match="transfers"):
        one_shot(problem)


def test_a_sum_for_a_rank_that_nothing_reaches_is_refused():
    """A sum for a rank without incoming links is refused."""
    builder = TopologyBuilder("one-way", [0] * 4)
    for src, dst in ((0, 1), (0, 2), (1, 0), (2, 1), (3, 0), (3, 2)):
        builder.add_link(src, dst, alpha_us=1, beta_us_per_mb=10)
    chunks = Chunk((0, 2), (0, 2), 0), Chunk((2, 3), (2, 3), 1)
    problem = Problem(builder.build(), Collective("sums", 4, chunks, combining=True), (10**6,) * 2)
    with pytest.raises(TopologyError, match="rank 3"):
        one_shot(problem)


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


def test_late_messages_alone_may_determine_the_end():
    """Two messages that arrive through one port after 10 us end at 12 us, although it is busy for 3 us.

    The third message passes the port before. Messages from one port have the same end if latencies follow.
    """
    for outwards in (False, True):
        builder = TopologyBuilder("ports", [0] * 4)
        port, side = builder.add_resource("port"), "send" if outwards else "receive"
        for other, alpha in ((1, 10), (2, 10), (3, 0)):
            ends = (0, other) if outwards else (other, 0)
            link = builder.add_link(*ends, alpha_us=alpha, beta_us_per_mb=1)
            builder.add_hold(link, port, alpha_us=0, beta_us_per_mb=1, side=side)
        collective = collectives.scatter if outwards else collectives.gather
        problem = make_problem(builder.build(), collective(4, root=0, chunks_per_rank=1), chunk_bytes=10**6)
        assert exchange_end_us(problem) == pairwise(problem, cut=False).finish_us == 12


def test_the_end_of_many_transfers_is_not_estimated(make, unit_costs, monkeypatch):
    """The end is only estimated if gaps may be filled, which is for few transfers."""
    problem = make("alltoall", fabrics.fully_connected(4, **unit_costs))
    module = import_module("taccl.baselines.direct")
    monkeypatch.setattr(module, "_FEW_TRANSFERS", 11)
    monkeypatch.setattr(module, "exchange_end_us", lambda problem: pytest.fail("estimated"))
    assert module._fastest(problem).num_transfers == 12
