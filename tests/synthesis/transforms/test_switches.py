"""In-network reductions, alone and combined with ranks."""

from fractions import Fraction

import pytest

from taccl import lower_bound, make_problem, synthesize, verify
from taccl.baselines import baseline
from taccl.errors import CollectiveError, InfeasibleError, InputError
from taccl.problem.collectives import exchange
from taccl.topologies import dgx_h100, in_network
from taccl.topology.builder import TopologyBuilder
from taccl.topology.in_network import InNetwork
from taccl.topology.parts import LinkCost, add_aggregation
from tests.effort import brief_synthesis

SIZE = "1GB"


def allreduce(topology, size=SIZE, **arguments):
    """An allreduce whose number of chunks is open, unless given."""
    return make_problem(topology, "allreduce", size_bytes=size, **arguments)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [8, 16])
def test_a_switch_beats_the_ring_by_the_load_of_a_port(workers):
    """With in-network reduction a rank sends the data once, not 2 (n - 1) / n times: 1.75 or 1.875 times
    faster."""
    problem = allreduce(in_network(workers))
    ring, switch = (baseline(name, problem) for name in ("ring", "in-network"))
    assert verify(switch).ok
    assert ring.finish_us / switch.finish_us == pytest.approx(2 * (workers - 1) / workers, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("slots", [16, 64, 122, 512])
def test_the_pool_or_the_line_is_what_limits(slots):
    """At 10 us and 1,024 B per slot the rate is min(12.5, slots * 0.1024) GB/s, limited by port or slots,
    within 2 %."""
    schedule = baseline("in-network", allreduce(in_network(8, slots=slots)))
    assert schedule.algbw_gb_per_s == pytest.approx(min(12.5, slots * 0.1024), rel=0.02)


@pytest.mark.slow
def test_only_the_switch_is_bounded_by_the_switch():
    """With in_network="only" the bound is the time of 8 MB at 0.85 * 5/6 of 450 GB/s.

    The schedule takes the time of one more chunk, in which the last sum returns.
    """
    result = synthesize(
        allreduce(dgx_h100(1, nvls=True, profile="nominal"), "8MB", chunks_per_rank=1), in_network="only"
    )
    assert result.bound.bound_us == pytest.approx(8 / 0.31875)
    assert result.schedule.finish_us == pytest.approx(9 / 0.31875)
    assert result.schedule.producer == "in-network"


@pytest.mark.slow
def test_off_means_that_ranks_alone_reduce():
    """With in_network="off" neither schedule nor bound uses the switch's reductions.

    Four ranks at 12.5 GB/s then send 1.5 MB for 1 MB, which takes 120 us.
    """
    topology = in_network(4, rtt_us="0.01", slots=4096)
    result = brief_synthesis(allreduce(topology, "1MB", chunks_per_rank=1), in_network="off")
    assert result.bound.bound_us >= 120
    assert result.schedule.finish_us >= 120
    assert all(len(topology.links[e].ends) == 4 for e in result.schedule.link.tolist())


@pytest.mark.slow
def test_a_small_pool_and_ranks_share_the_sums():
    """64 slots give 6.6 of 12.5 GB/s: switch and ranks together beat the switch (153 ms) and the ring (140
    ms)."""
    result = brief_synthesis(allreduce(in_network(8, slots=64)))
    assert result.schedule.finish_us < 0.8 * 140_000
    assert "ring" in result.schedule.producer
    assert result.bound.bound_us <= result.schedule.finish_us
    verify(result.schedule).raise_if_failed()


@pytest.mark.slow
def test_auto_is_the_switch_where_that_is_fastest():
    """With enough slots the switch alone is fastest. No schedule of ranks is searched, as even its bound is
    later."""
    result = brief_synthesis(allreduce(in_network(8)))
    assert result.schedule.producer == "in-network"
    assert result.gap < 0.01
    assert "ranks alone" not in result.choice


@pytest.mark.slow
def test_auto_is_what_ranks_do_where_the_switch_is_slow():
    """A single slot gives 0.1 GB/s: the result is the ranks' schedule, and its bound allows sums by ranks and
    by the switch."""
    problem = allreduce(in_network(4, slots=1), "4MB", chunks_per_rank=1)
    result = brief_synthesis(problem)
    assert "ranks alone" in result.choice
    assert result.schedule.finish_us < 700
    assert result.bound.problem.clauses.links_allowed is None


@pytest.mark.parametrize(
    ("collective", "megabytes"), [("reduce-scatter", 3), ("allgather", 3), ("broadcast", 4), ("reduce", 4)]
)
def test_other_collectives_go_through_the_switch_too(collective, megabytes):
    """Of 4 MB a port carries 3 MB in collectives in which every rank has a part of the data, and 4 MB if one
    root has all."""
    problem = make_problem(in_network(4, slots=4096), collective, size_bytes="4MB", chunks_per_rank=1)
    schedule = baseline("in-network", problem, cut=False)
    assert verify(schedule).ok
    assert schedule.finish_us <= 4 * 80 + 10
    assert schedule.finish_us >= megabytes * 80


@pytest.mark.slow
def test_a_tree_of_switches_is_as_fast_as_one():
    """Two racks of four under a core oversubscribed 2:1 are as fast as one rack. An uplink of 25 GB/s carries
    each sum once, so ports still limit."""
    one, tree = (
        baseline("in-network", allreduce(topology, "256MB")).finish_us
        for topology in (in_network(8), in_network(4, racks=2, core_oversubscription=2))
    )
    assert tree == one


@pytest.mark.parametrize(
    ("topology", "size", "collective", "error", "kind"),
    [
        (
            dgx_h100(1),
            SIZE,
            "allreduce",
            "in_network: found 'only', and no switch of dgx-h100 x1 adds",
            InputError,
        ),
        (in_network(4), "2KB", "allreduce", "found chunks of 500B for packets of 1KiB", CollectiveError),
        (in_network(4), SIZE, "alltoall", "no switch adds and multicasts what chunk", CollectiveError),
        (in_network(4), SIZE, "scan", "no switch adds and multicasts what chunk", CollectiveError),
    ],
)
def test_what_no_switch_can_reduce_is_refused(topology, size, collective, error, kind):
    """With in_network="only" the error for a problem that switches cannot reduce gives the reason."""
    problem = make_problem(topology, collective, size_bytes=size, chunks_per_rank=1)
    with pytest.raises(kind, match=error):
        synthesize(problem, in_network="only")


def test_sums_by_servers_are_not_made_by_switches():
    """With in_network="only" the error for an exchange says that its servers make the sums."""
    problem = make_problem(in_network(4), exchange(range(4), [0]), size_bytes=SIZE)
    with pytest.raises(CollectiveError, match="servers make the sums"):
        synthesize(problem, in_network="only")


def test_unknown_values_of_in_network_are_refused():
    """An unknown value of `in_network` is refused."""
    with pytest.raises(InputError, match="in_network"):
        synthesize(allreduce(in_network(4)), in_network="on")


@pytest.mark.slow
def test_the_bound_of_ranks_is_above_what_the_switch_does():
    """Without the switch a rank sends 1.75 times the data, so the bound is higher."""
    problem = allreduce(in_network(8))
    links = frozenset(e for e, link in enumerate(problem.topology.links) if len(link.ends) == 4)
    alone = lower_bound(problem.with_clauses(links_allowed=links))
    assert alone.bound_us > 1.7 * baseline("in-network", problem).finish_us


@pytest.fixture(scope="module")
def switch_alone():
    """Three ranks that only the reduction and multicast links of a switch join; 1 us and 1 us per MB."""
    builder = TopologyBuilder("switch alone", [0] * 3)
    ports = [{rank: builder.add_resource(f"{way} {rank}") for rank in range(3)} for way in ("out", "in")]
    cost = LinkCost(Fraction(1), Fraction(1))
    add_aggregation(builder, *ports, cost, reduces=InNetwork(), name="switch")
    builder.add_switch("switch", range(3), range(len(builder.links)), reduces=InNetwork())
    return builder.build()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("collective", "finish_us", "producer"),
    [("reduce", 2, "in-network"), ("broadcast", 2, "in-network"), ("alltoall", 12, "list scheduler")],
)
def test_ranks_that_only_a_switch_joins_have_schedules(switch_alone, collective, finish_us, producer):
    """Where no links join pairs of ranks, the switch's links carry all data, also what each rank needs alone.

    A multicast takes 2 us and holds the ports of all. An alltoall needs six of them, one after another.
    """
    problem = make_problem(switch_alone, collective, chunk_bytes=1_000_000, chunks_per_rank=1)
    result = brief_synthesis(problem)
    assert (result.finish_us, result.schedule.producer) == (finish_us, producer)
    assert verify(result.schedule).ok and result.bound_us <= finish_us


def test_switches_that_ranks_need_are_not_left_out(switch_alone):
    """With in_network="off", the error says that only the switch joins the ranks."""
    problem = make_problem(switch_alone, "reduce", chunk_bytes=1_000_000, chunks_per_rank=1)
    with pytest.raises(InputError, match="no other links join some ranks than those of switches that add"):
        synthesize(problem, in_network="off")
    forbidden = problem.with_clauses(links_allowed=frozenset())
    with pytest.raises(InfeasibleError, match="intranode.links"):
        synthesize(forbidden, in_network="off")
