"""Racks of workers: switches that reduce, and parameter servers."""

import pytest

from taccl import lower_bound, make_problem, verify
from taccl.aggregation import place_shards
from taccl.analysis.simulation.steady import initiation_interval
from taccl.baselines import baseline, servers
from taccl.errors import CollectiveError, TopologyError
from taccl.problem.collectives import allreduce, exchange, together
from taccl.topologies import in_network, rack


def held(topology, link):
    """{other resource that a link holds: us per MB}."""
    return {
        topology.resources[hold.resource].name: float(hold.beta_us_per_mb)
        for hold in topology.holds_of_link[link]
        if topology.resources[hold.resource].name != f"link {topology.links[link]}"
    }


def test_one_switch_adds_for_all_workers():
    """A switch of three workers has a reduction into each and a multicast from each, besides six links.

    A rate of 12.5 GB/s is 80 us/MB.
    """
    topology = in_network(3)
    assert (len(topology.links), topology.switches[0].reduces.slots) == (12, 512)
    # 512 slots of 1,024 B for 10 us each: 52.4 GB/s, faster than a port.
    pool = pytest.approx(10 * 10**6 / (512 * 1024))
    assert held(topology, 6) == {
        "port out of 1": 80, "port out of 2": 80, "port into 0": 80, "pool (switch)": pool,
    }  # fmt: skip


def test_partial_sums_cross_the_core_once():
    """One partial sum of each rack crosses the core, over an oversubscribed uplink.

    With two racks of two, the uplink into rank 0's rack has 2 * 12.5 / 4 GB/s.
    """
    topology = in_network(2, racks=2, core_oversubscription=4)
    into, out = (topology.switches[-1].links[i] for i in (0, 1))
    assert topology.links[into].ends == "1,2,3->0"
    assert {name: held(topology, into)[name] for name in ("uplink of rack 1", "downlink of rack 0")} == {
        "uplink of rack 1": 160, "downlink of rack 0": 160,
    }  # fmt: skip
    assert "uplink of rack 0" not in held(topology, into)
    assert {name for name in held(topology, out) if "link" in name} == {
        "uplink of rack 0",
        "downlink of rack 1",
    }
    assert topology.links[into].beta_us_per_mb == 160


def test_groups_sum_apart_and_share_the_slots():
    """Groups of workers sum in parallel, and divide the switch's slots among them.

    Two groups of four workers take 80 us/MB each, or 305 us/MB if each has half of 64 slots.
    """
    groups = [range(4), range(4, 8)]
    both = together([allreduce(4, chunks_per_rank=16).among(list(group), num_ranks=8) for group in groups])
    for slots, us_per_mb in ((512, 80), (64, 2 * 10**7 / (64 * 1024))):
        problem = make_problem(in_network(8, slots=slots, groups=groups), both, chunk_bytes=10**6)
        schedule = baseline("in-network", problem, cut=False)
        assert verify(schedule).ok
        assert schedule.finish_us == pytest.approx(64 * us_per_mb, rel=0.03)
    with pytest.raises(CollectiveError, match="just the ranks that contribute"):
        baseline("in-network", make_problem(in_network(8), both, chunk_bytes=10**6))


def test_workers_come_before_the_cards_of_boxes():
    """Workers have lower ranks than the NICs of server boxes.

    Two racks have three workers and a box with two NICs each: ranks 0-5, then 6-7 and 8-9.
    """
    topology = rack(3, 2, 2, 2)
    assert topology.node_of_rank == (0, 1, 2, 3, 4, 5, 6, 6, 7, 7)
    inside, across = (topology.links_between(src, dst)[0] for src, dst in ((0, 6), (0, 8)))
    assert not any("uplink" in name for name in held(topology, inside))
    assert held(topology, across)["uplink of rack 0"] == pytest.approx(80 * 2 / 3)


def test_one_rack_has_no_core():
    """A single rack has no oversubscribed uplink."""
    assert not any("uplink" in each.name for each in rack(4, 2, 1, 8).resources)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: in_network(1), "workers: found 1"),
        (lambda: in_network(8, slots=0), "slots: found 0"),
        (lambda: in_network(8, dtype="int7"), "dtype: found 'int7'"),
        (lambda: in_network(8, rtt_us=0), "found slots without"),
        (lambda: in_network(8, groups=[[0, 1, 1]]), "groups: found .0, 1, 1.; expected three ranks or more"),
        (lambda: in_network(8, groups=[[0, 1, 8]]), "groups: rank 8 does not exist"),
        (lambda: in_network(8, racks=2, core_oversubscription=0.5), "core_oversubscription: found 0.5"),
        (lambda: rack(8, 0), "box_nics"),
        (lambda: rack(8, 4, gb_per_s=0), "gb_per_s: found 0 GB/s"),
        (lambda: rack(8, 4, box_gb_per_s=0), "box_gb_per_s: found 0 GB/s"),
        (lambda: rack(10**9, 4), "links; expected at most"),
        (lambda: rack(4000, 4), "links; expected at most"),
    ],
)
def test_what_is_no_rack_is_refused(make, error):
    """The error for an impossible rack names the argument in one sentence."""
    with pytest.raises(TopologyError, match=error):
        make()


@pytest.mark.slow
def test_the_cores_of_a_box_limit_what_it_adds():
    """The CPU cores of a server box limit the rate at which it adds.

    Eight workers push to ten NICs of 12.5 GB/s; cores adding 50 GB/s take 160 us/MB instead of 80.
    """
    topology = rack(8, 10, box_gb_per_s=50)
    problem = make_problem(topology, exchange(8, 10), chunk_bytes=10**6)
    schedule = servers(problem, cut=False)
    assert verify(schedule).ok
    assert initiation_interval(schedule).interval_us == pytest.approx(10 * 160, rel=0.02)
    assert lower_bound(problem).bound_us <= schedule.finish_us
    assert [each.name for each in topology.resources if "cores" in each.name] == ["cores of box 0"]


def test_cores_slower_than_a_card_slow_every_push():
    """With one NIC of 12.5 GB/s and cores that add 10 GB/s, a MB takes 100 us in and 80 us out."""
    topology = rack(2, 1, box_gb_per_s=10)
    there, back = topology.links_between(0, 2)[0], topology.links_between(2, 0)[0]
    assert [topology.links[e].beta_us_per_mb for e in (there, back)] == [100, 80]
    assert place_shards([5000], topology, [2]).card_us == {"cores of box 0": 0.5}
