"""Protocols of a machine: latencies, shares of bandwidth, and the launch before the first step."""

from fractions import Fraction

import pytest

from taccl.errors import TopologyError
from taccl.topologies import Topology, b200, dgx2, dgx_a100, dgx_h100, gb200_nvl72, h200, mi300x, mi355x
from taccl.topology.networks import NETWORKS
from taccl.topology.registry import parse


@pytest.mark.parametrize(
    ("protocol", "alpha_us", "network_us", "gb_per_s", "nic_gb_per_s", "base_us"),
    [
        ("simple", "3.4", 14, "370.8", 50, "8.4"),
        ("ll", "0.6", "2.7", 141, 25, "6.6"),  # half of 370.8 GB/s is more than LL moves on Hopper
        ("ll128", "1.9", 4, "341.136", 46, 14),
    ],
)
def test_costs_are_those_of_the_tables(protocol, alpha_us, network_us, gb_per_s, nic_gb_per_s, base_us):
    """For each protocol, 18 NVLinks of 20.6 GB/s and the NIC have NCCL's share of their bandwidth."""
    topology = dgx_h100(2, profile="nccl", protocol=protocol)
    inner, outer = (topology.links[topology.links_between(0, dst)[0]] for dst in (1, 8))
    assert (inner.alpha_us, outer.alpha_us) == (Fraction(alpha_us), Fraction(network_us))
    assert float(1000 / inner.beta_us_per_mb) == pytest.approx(float(gb_per_s), rel=3e-4)  # to a thousandth
    assert float(1000 / outer.beta_us_per_mb) == pytest.approx(nic_gb_per_s, rel=3e-4)
    assert topology.launch_us == Fraction("1.8") + Fraction(base_us)
    assert topology.protocol == protocol


@pytest.mark.slow
@pytest.mark.parametrize("make", [dgx_a100, dgx_h100, h200, b200, gb200_nvl72, mi300x, mi355x])
def test_machines_of_today_count_latencies(make):
    """Current machines have latencies and three protocols by default; simple has the highest latency."""
    topology = make()
    assert topology.protocols == ("simple", "ll", "ll128")
    alphas = {name: topology.under(name).links[0].alpha_us for name in topology.protocols}
    assert 0 < min(alphas["ll"], alphas["ll128"]) < alphas["simple"]
    assert topology.launch_us > 7


def test_a_topology_goes_over_to_another_protocol():
    """`under` gives the same topology as construction with the other protocol."""
    simple = dgx_h100(2, profile="nccl")
    assert simple.protocols == ("simple", "ll", "ll128")
    for protocol in simple.protocols:
        assert simple.under(protocol) == dgx_h100(2, profile="nccl", protocol=protocol)
        assert simple.under(protocol).under("simple") == simple


def test_what_is_slow_stays_so():
    """A link slowed to half its bandwidth has half the bandwidth under any protocol."""
    slow = dgx_h100(profile="nccl").degraded({(0, 1): "1/2"})
    assert slow.under("ll") == dgx_h100(profile="nccl", protocol="ll").degraded({(0, 1): "1/2"})


def test_what_a_user_gave_stays():
    """A constant that the user replaced has the same value under any protocol."""
    given = {"nvswitch_alpha_us": "1.5"}
    topology = dgx_h100(profile="nccl", constants=given).under("ll")
    assert topology == dgx_h100(profile="nccl", protocol="ll", constants=given)


def test_protocol_and_launch_are_kept_in_files():
    """`to_dict` has protocol and launch, except for topologies that have neither."""
    topology = dgx_h100(profile="nccl", protocol="ll")
    assert Topology.from_dict(topology.to_dict()) == topology
    assert not {"protocol", "launch_us"} & set(dgx2().to_dict())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: dgx_h100(profile="nccl", protocol="ll3"),
            "found 'll3'; .* has the protocols simple, ll, ll128",
        ),
        (lambda: dgx2(protocol="ll"), "found 'll'; dgx2 in profile taccl has no protocols: leave it out"),
        (lambda: dgx2().under("ll"), "found 'll'; dgx2 x1 has no protocols"),
        (
            lambda: dgx_h100(profile="nccl").under("ll3"),
            "found 'll3'; .* has the protocols simple, ll, ll128",
        ),
    ],
)
def test_a_protocol_that_a_machine_lacks(make, said):
    """The error for a protocol that the machine lacks lists the machine's protocols."""
    with pytest.raises(TopologyError, match=said):
        make()


@pytest.mark.parametrize("nodes", [1, 2])
def test_ports_are_held_for_the_overhead_alone(nodes):
    """A port, a NIC and the link are held for 0.02 us plus the bytes, not for alpha."""
    topology = dgx_h100(nodes, profile="nccl")
    assert {hold.alpha_us for hold in topology.holds} == {Fraction("0.02")}


def test_an_overhead_is_part_of_alpha():
    """An overhead above alpha holds the port for alpha only; with pipelined alpha, ports are held for beta
    only."""
    held = {hold.alpha_us for hold in dgx_h100(constants={"nvswitch_alpha_us": "0.01"}).holds}
    assert held == {Fraction("0.01")}
    assert {hold.alpha_us for hold in dgx_h100(profile="nccl", alpha_meaning="pipelined").holds} == {0}


@pytest.mark.parametrize(
    ("name", "network", "protocol", "tabled_us", "times"),
    [
        ("p5.48xlarge", "efa-rdma", "ll", 2.7, 1), ("p5.48xlarge", "efa-rdma", "simple", 14, 2),
        ("a3-megagpu-8g", "tcpxo", "ll", 2.7, 1), ("a3-megagpu-8g", "tcpxo", "simple", 14, 0),
    ],
)  # fmt: skip
def test_instance_types_have_the_hops_of_their_network(name, network, protocol, tabled_us, times):
    """Links between nodes have the network's hop latency besides NCCL's; under simple, with its flush, twice.
    TCPXO has no further latency under simple."""
    topology = parse(name, nodes=2, protocol=protocol)
    alpha_us = topology.links[topology.internode_links[0]].alpha_us
    assert float(alpha_us) == pytest.approx(tabled_us + times * NETWORKS[network].hop_us)
