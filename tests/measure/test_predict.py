"""Predictions of stock libraries and one-kernel runtimes, by hand and by their physics."""

import numpy as np
import pytest

import taccl
from taccl.errors import InputError
from taccl.measure.library import candidates, chosen
from taccl.measure.predict import costs_of, known_machines, predicted_us, ranks_per_node


def us(machine, collective, size, **options):
    return taccl.predict(machine, collective, size, **options).time_us


def test_a_small_sum_is_launch_base_and_hops():
    """8 A100 under LL: 1.8 us of launch, 6.6 of base, 14 hops of 0.6 us."""
    assert us("dgx-a100", "allreduce", 8) == pytest.approx(1.8 + 6.6 + 14 * 0.6, rel=1e-3)


def test_sums_in_switches_are_slower_by_the_last_channel():
    """On 8 H100 6 channels of 60 GB/s give 0.85 * 5/6 of 360 GB/s, of which 8/7 count for data."""
    size = 16 << 30
    found = taccl.predict("dgx-h100", "allreduce", size)
    assert found.algorithm == "nvls"
    rate = 360 * 0.85 * 5 / 6 * 8 / 7
    turn_kb = (128 << 10) * 16 * 8 / 1000
    assert found.time_us == pytest.approx(size / turn_kb / 1000 * (turn_kb / rate + 3.4), rel=0.01)


def test_nvls_can_be_turned_off():
    """Without sums in switches a ring carries large messages."""
    assert taccl.predict("dgx-h100", "allreduce", "1GB", nvls=False).algorithm == "ring"


@pytest.mark.parametrize(
    ("instance", "network"), [("p4d.24xlarge", 75), ("p5.48xlarge", 75), ("p5en.48xlarge", 35)]
)
def test_instances_state_their_latency(instance, network):
    """The plugin's latency is what NCCL chooses by."""
    assert costs_of(instance).network.stated_us == network


def test_instances_share_nics():
    """4 NICs of 100 Gb/s carry half of what 8 of 50 GB/s do for 8 ranks, in every direction: 50 GB/s."""
    slow = us("p4de.24xlarge", "allgather", "8GB", nodes=2)
    assert slow == pytest.approx(8e9 * 15 / 16 / (50e3 * 0.86), rel=0.02)


def test_the_network_rate_can_be_given():
    """Twice the rate of a NIC halves the time of a large allgather."""
    times = [us("dgx-a100", "allgather", "8GB", nodes=2, network_gb_per_s=rate) for rate in (10, 20)]
    assert times[0] / times[1] == pytest.approx(2, rel=0.02)


def test_the_class_of_the_network_can_be_given():
    """Slingshot's hop is beyond InfiniBand's, and it starts as that does: two hops up and down a tree."""
    small, other = (
        us("dgx-a100", "allreduce", 8, nodes=2, network=name) for name in ("infiniband", "slingshot")
    )
    assert other - small == pytest.approx(2 * costs_of("dgx-a100", network="slingshot").network.hop_us)


def test_one_kernel_has_no_base():
    """Two steps of 0.6 us after 4.95 us: 7/4 of the bytes at half of LL's rate."""
    size = 8 << 10
    found = taccl.predict("dgx-a100", "allreduce", size, runtime="mscclpp")
    assert found.launch_us == 4.95
    assert found.time_us == pytest.approx(4.95 + 2 * 0.6 + 1.75 * size / (87.7e3 / 2))


def test_each_remote_peer_of_an_alltoall_costs_a_hop():
    """A second node adds its start and 8 peers at 3.7 us each."""
    one, two = (us("dgx-a100", "alltoall", 64, nodes=nodes) for nodes in (1, 2))
    assert two - one == pytest.approx(9 + 8 * 3.7, rel=0.01)


@pytest.mark.parametrize("machine", known_machines())
@pytest.mark.parametrize("collective", ["allreduce", "allgather", "alltoall", "broadcast"])
def test_larger_messages_never_carry_more_than_the_wire(machine, collective):
    """No prediction beats a rank's links, on one node or two."""
    for nodes in (1, 2):
        costs, num = costs_of(machine), nodes * ranks_per_node(machine)
        sizes = 2.0 ** np.arange(3, 34)
        times = predicted_us(costs, collective, num, nodes, sizes)
        assert np.isfinite(times).all() and (times > 0).all()
        assert (sizes / times / 1000 <= 2 * costs.node_gb_per_s).all()


def test_the_library_chooses_by_its_own_model():
    """On p4d NCCL adds 75 us a hop, twice for simple: LL up to where that pays."""
    sizes = np.array([1e6])
    found = candidates(costs_of("p4d.24xlarge"), "allreduce", 16, 2, sizes)
    best = found[int(chosen(found)[0])]
    assert best.protocol == "ll"
    assert {each.protocol for each in found} == {"ll", "simple"}


@pytest.mark.parametrize(
    ("machine", "collective", "options", "said"),
    [
        ("dgx-h10", "allreduce", {}, "dgx-h100"),
        ("dgx-h100", "allreduc", {}, "allreduce"),
        ("dgx-h100", "allreduce", {"runtime": "rccl"}, "nccl"),
        ("mi300x", "allreduce", {"runtime": "nccl"}, "rccl"),
        ("dgx-h100", "allreduce", {"runtime": "gloo"}, "mscclpp"),
        ("dgx-h100", "allreduce", {"ranks": 9}, "at most 8"),
        ("dgx-h100", "allreduce", {"network": "myrinet"}, "slingshot"),
        ("dgx-h100", "broadcast", {"runtime": "mscclpp"}, "one-kernel"),
    ],
)
def test_what_is_not_known_is_said(machine, collective, options, said):
    """Errors name what is known instead."""
    with pytest.raises(InputError, match=said):
        taccl.predict(machine, collective, 8, **options)
