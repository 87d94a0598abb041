"""Predictions of stock libraries and one-kernel runtimes: by hand and by physical limits."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import taccl
from taccl.errors import InputError
from taccl.measure.channels import network_channels, searched, tree_speed
from taccl.measure.in_switch import nvls_blocks
from taccl.measure.library import Run, candidates, chosen
from taccl.measure.predict import costs_of, known_machines, predicted_us, ranks_per_node, series_us
from taccl.measure.rccl import chunk_bytes
from taccl.measure.series import Series


def us(machine, collective, size, **options):
    return taccl.predict(machine, collective, size, **options).time_us


@pytest.mark.parametrize(("machine", "hop_us"), [("dgx-a100", 0.6), ("b200", 1.2)])
def test_a_small_sum_is_launch_base_and_hops(machine, hop_us):
    """The predicted time of a small allreduce is launch, base and hops.

    On 8 GPUs under LL these are 1.8 us, 6.6 us and 14 hops, which take twice as long on Blackwell.
    """
    assert us(machine, "allreduce", 8) == pytest.approx(1.8 + 6.6 + 14 * hop_us, rel=1e-3)


def test_launches_by_one_process_limit_small_operations():
    """A process of 8 GPUs enqueues 8 kernels in turn, so no operation takes less than 8 launches.

    A launch takes 4.3 us on A100 and 5 us on V100, where one process for all GPUs is the default. This is
    with one channel.
    """
    assert us("dgx-a100", "allreduce", 8, ranks_per_process=8) == pytest.approx(8 * 4.3)
    assert us("dgx-a100", "broadcast", 8, ranks_per_process=8) == pytest.approx(8 * 4.3)
    assert us("dgx1", "allreduce", 8) == us("dgx1", "allreduce", 8, ranks_per_process=8)
    assert us("dgx1", "allreduce", 8) == pytest.approx(8 * 5)


@pytest.mark.parametrize(
    ("machine", "ranks", "collective", "size_kb", "measured_us"),
    [
        ("dgx-a100", 8, "allreduce", 256, 47.5), ("dgx-a100", 8, "broadcast", 512, 58.4),
        ("dgx-a100", 8, "allgather", 1024, 73.0), ("dgx-a100", 8, "alltoall", 64, 87.7),
        ("dgx-h100", 2, "allreduce", 256, 17.7), ("dgx2", 12, "broadcast", 1024, 74.6),
    ],
)  # fmt: skip
def test_channels_delay_the_launches_of_one_process(machine, ranks, collective, size_kb, measured_us):
    """The host prepares each channel of each GPU, so larger messages, with more channels, launch later.

    Measured by microsoft/superbenchmark (A100), and in published logs of H100 and V100.
    """
    found = us(machine, collective, size_kb << 10, ranks=ranks, ranks_per_process=ranks)
    assert found == pytest.approx(measured_us, rel=0.06)


def test_a_process_for_each_gpu_does_not_limit_small_operations_on_v100():
    """With a process for each of 8 V100, 8 B take launch, base and 14 hops under LL: 18.8 us."""
    found = us("dgx1", "allreduce", 8, ranks_per_process=1)
    assert found == pytest.approx(3.8 + 6.6 + 14 * 0.6, rel=1e-3)


def test_slower_clocks_slow_the_library():
    """RCCL on MI350X has 22/24 of MI355X's rate, as the engine clocks have; AMD published 41,644 us for 8 GiB."""
    time_us = taccl.predict("mi350x", "allreduce", 2**33, ranks_per_process=8).time_us
    assert time_us == pytest.approx(41_644, rel=0.01)
    assert taccl.predict("mi355x", "allreduce", 2**33).time_us == pytest.approx(time_us * 22 / 24, rel=0.01)


def test_launches_overlap_the_operation_before():
    """Launches by one process do not delay operations that run longer than them.

    Measured on 8 GPUs of AMD in one process: 44 us up to 64 KB, and 58 us at 4 MB, where processes of one
    GPU each took 53 us.
    """
    size = 4 << 20
    assert us("mi300x", "allreduce", size, ranks_per_process=8) == us("mi300x", "allreduce", size)
    assert us("mi300x", "allreduce", 8, ranks_per_process=8) == pytest.approx(44, rel=0.05)


@pytest.mark.parametrize(
    ("size", "measured_us"), [(8 << 20, 229.6), (16 << 20, 335.9), (32 << 20, 431.3), (64 << 20, 673.5)]
)
def test_trees_of_rccl_between_nodes(size, measured_us):
    """From 8 to 128 MiB RCCL sums over trees on two nodes of MI300X; a published log of 2 x 8 MI308X has times."""
    found = taccl.predict("mi300x", "allreduce", size, nodes=2)
    assert (found.algorithm, found.protocol) == ("tree", "simple")
    assert found.time_us == pytest.approx(measured_us, rel=0.07)


@pytest.mark.parametrize(
    ("machine", "collective", "kb", "expected"),
    [
        ("mi300x", "allreduce", 512, "ring ll"), ("mi300x", "allreduce", 4096, "ring ll128"),
        ("mi300x", "allreduce", 256 << 10, "ring simple"), ("mi355x", "allreduce", 64 << 10, "ring ll128"),
        ("mi355x", "allreduce", 128 << 10, "ring simple"), ("mi300x", "allgather", 16 * 96, "ring ll"),
        ("mi300x", "allgather", 16 * 4096, "ring ll128"), ("mi300x", "allgather", 16 * 8192, "ring simple"),
    ],
)  # fmt: skip
def test_sizes_determine_the_protocols_of_rccl_between_nodes(machine, collective, kb, expected):
    """RCCL has a range of sizes for each protocol on several nodes: of whole sums, or of one rank's part."""
    found = taccl.predict(machine, collective, kb << 10, nodes=2)
    assert f"{found.algorithm} {found.protocol}" == expected


def test_chunks_of_trees_shrink_while_a_channel_has_few():
    """With 8 hops to the root, chunks have 32, 64 or 128 KiB below 8, 32 or 64 chunks, and else up to 512."""
    kib = np.array([7 * 64, 8 * 64, 31 * 128, 32 * 128, 63 * 256, 64 * 256, 64 * 512])
    assert list(chunk_bytes(1024.0 * kib, 8) / 1024) == [32, 64, 64, 128, 128, 256, 512]


@pytest.mark.parametrize("ranks", [2, 4, 7])
def test_a_subset_sends_over_the_links_between_its_ranks(ranks):
    """On 8 fully connected MI300X, a rank of a subset has one link of 45.2 GB/s to each other rank."""
    rate = 2**33 * 2 * (ranks - 1) / ranks / us("mi300x", "allreduce", 2**33, ranks=ranks) / 1000
    assert rate == pytest.approx(45.2 * (ranks - 1), rel=0.02)


def test_chosen_ranks_determine_the_links_of_a_subset():
    """On a DGX-1, two of a GPU's six NVLinks join ranks 0 and 3, and one joins ranks 0 and 1.

    A switch joins any ranks at their full rate.
    """
    costs = costs_of("dgx1")
    assert [costs.on_ranks(pair).links_share(2) for pair in ((0, 1), (0, 3))] == [1 / 6, 2 / 6]
    assert costs.on_ranks(range(8)) == costs
    assert costs_of("dgx-a100").on_ranks((0, 3)).links_share(2) == 1


def test_a_series_states_how_it_is_launched():
    """A log's header states the GPUs per process, whose launches limit the predicted times of the log's
    series."""
    alone = Series("allreduce", 8, 1, (8, 1 << 30), (1.0, 1.0), "a.log")
    costs = costs_of("dgx-a100")
    together = series_us(costs, replace(alone, ranks_per_process=8))
    assert together[0] == pytest.approx(8 * 4.3)
    assert together[1] == series_us(costs, alone)[1]


@pytest.mark.parametrize(
    ("machine", "busbw"),
    [
        ("a3-ultragpu-8g", 8 * 41.5),
        ("a4-highgpu-8g", 8 * 41.5),
        ("b200", 8 * 50 * 0.93),
        ("h200", 8 * 50 * 0.93),
    ],
)
def test_rings_are_limited_by_channels_since_hopper(machine, busbw):
    """Rings between nodes with eight NICs of 400 Gb/s have eight channels of 41.5 GB/s each: 332 GB/s of bus
    bandwidth, where NICs carry 372. Over InfiniBand the NICs are the limit."""
    size = 16 << 30
    found = size * 15 / 16 / us(machine, "allgather", size, nodes=2) / 1000
    assert found == pytest.approx(busbw, rel=0.01)


def test_all_pairs_of_ampere_exceed_the_rate_of_rings():
    """An alltoall of 8 GB on 8 A100 reaches 1.06 times the 240 GB/s in NCCL's table (measured: 256)."""
    size = 8 << 30
    busbw = size * 7 / 8 / us("dgx-a100", "alltoall", size) / 1000
    assert busbw == pytest.approx(1.06 * 240, rel=0.02)


@pytest.mark.parametrize(
    ("generation", "node_gb_per_s", "nics", "channels", "in_trees"),
    [
        ("Volta", 120, None, (6, 20), 20),  # 3 channels of 40 GB/s, split
        ("Ampere", 240, None, (12, 20), 20),  # 6 of 40, split
        ("Hopper", 370.8, None, (12, 30), 30),  # 6 of 60, split
        ("Blackwell", 721.8, None, (16, 45), 45.1),  # 8 of 90, split
        ("Ampere", 240, (8, 200), (8, 24), 30),  # too slow to split; NVLinks carry 8 trees of 30
        ("Ampere", 240, (16, 200), (16, 12), 15),
        ("Hopper", 370.8 * 8 / 7, (8, 400), (8, 48), 48),  # more than 4 channels below 50 GB/s stay whole
        ("Hopper", 370.8, (2, 100), (4, 24), 48),
        ("Blackwell", 721.8 * 72 / 71, (72, 3600), (16, 45.1), 45.1),  # limited by NVLinks
    ],
)
def test_channels_are_those_of_the_search(generation, node_gb_per_s, nics, channels, in_trees):
    """NCCL's search takes the highest speed of its table that links or NICs carry, and splits fast channels
    in two."""
    assert searched(generation, node_gb_per_s, nics) == channels
    assert tree_speed(generation, node_gb_per_s, *channels) == in_trees


def test_racks_sum_in_their_switches():
    """On two racks of GB200, 2 GB is summed in the switches (measured: 680 GB/s of busbw).

    Channels of rings and trees pass the NVLinks of all GPUs, which are slower than all NICs of a rack.
    """
    found = taccl.predict("gb200-nvl72", "allreduce", 2 << 30, nodes=2)
    assert found.algorithm == "nvls"
    assert (2 << 30) * 2 * 143 / 144 / found.time_us / 1000 == pytest.approx(680, rel=0.08)


def test_some_networks_fix_the_algorithm():
    """Between nodes, GPUDirect-TCPX runs only rings under Simple; on one node NCCL chooses the protocol."""
    found = taccl.predict("a3-highgpu-8g", "allreduce", 8, nodes=2)
    assert (found.algorithm, found.protocol) == ("ring", "simple")
    assert taccl.predict("a3-highgpu-8g", "allreduce", 8).protocol == "ll"


@pytest.mark.parametrize(
    ("machine", "nodes", "size_mb", "measured_us"),
    [
        ("gh200", 2, 2, 182.1), ("gh200", 2, 4, 294.6), ("gh200", 2, 8, 341.2),
        ("a3-megagpu-8g", 2, 4, 364.6), ("a3-megagpu-8g", 2, 16, 977.6), ("a3-megagpu-8g", 2, 32, 1059.9),
        ("b200", 1, 32, 169.7), ("b200", 1, 256, 712.6), ("b200", 1, 2048, 4605.3),
        ("a4-highgpu-8g", 1, 2048, 5102.4),
    ],
)  # fmt: skip
def test_pipelines_of_allreduces_fill_as_published(machine, nodes, size_mb, measured_us):
    """The first step of a tree fills the buffers of all channels, 16 MiB with TCPXO's buffers of 8 MiB.

    On one node of B200, NVLS sends in rounds of chunks, which Google's environment changes. Times are those of
    published logs.
    """
    assert us(machine, "allreduce", size_mb << 20, nodes=nodes) == pytest.approx(measured_us, rel=0.1)


@pytest.mark.parametrize(
    ("machine", "ranks", "size", "measured_us", "algorithm"),
    [
        ("dgx-h100", 4, 1 << 30, 4508.4, "ring"), ("dgx-h100", 8, 1 << 30, 4000.8, "nvls"),
        ("gb200-nvl72", 4, 1 << 34, 37_610, "ring"), ("gb200-nvl72", 8, 1 << 34, 35_722, "nvls"),
    ],
)  # fmt: skip
def test_four_gpus_of_a_node_sum_in_a_ring(machine, ranks, size, measured_us, algorithm):
    """NCCL's search gives NVLS a channel per GPU, so on few GPUs it finds rings faster.

    Measured on some of 8 H100 (xxrjun/nccl-tests-cluster) and on GB300 (oracle-quickstart/oci-gpu-quickstarts).
    """
    found = taccl.predict(machine, "allreduce", size, ranks=ranks)
    assert found.algorithm == algorithm
    assert found.time_us == pytest.approx(measured_us, rel=0.04)


def test_hosts_of_amd_start_later():
    """A collective between nodes starts later than in one node: by 9 us on hosts of AMD, and by 2 us on
    others."""
    network = costs_of("nd-a100-v4").network
    assert (network.start_of("AMD"), network.start_of("Intel")) == (9, 2)
    assert (costs_of("nd-a100-v4").host, costs_of("nd-h100-v5").host) == ("AMD", "Intel")


def test_sums_in_switches_are_slower_by_the_last_channel():
    """The rate of NVLS follows from the number of its channels and its efficiency.

    On 8 H100 the rate is that of 6 channels of 60 GB/s, times an efficiency of 0.85 * 5/6, times 8/7.
    """
    size = 16 << 30
    found = taccl.predict("dgx-h100", "allreduce", size)
    assert found.algorithm == "nvls"
    rate = 360 * 0.85 * 5 / 6 * 8 / 7
    turn_kb = (128 << 10) * 16 * 8 / 1000
    assert found.time_us == pytest.approx(size / turn_kb / 1000 * (turn_kb / rate + 3.4), rel=0.01)


def test_trees_of_nvls_are_limited_by_their_busiest_node():
    """On four nodes, a node within a tree sends two bytes by its NICs for each byte of the size."""
    found = taccl.predict("b200", "allreduce", 2**35, nodes=4)
    assert found.algorithm == "nvls"
    assert 0.85 * 8 * 50 / 2 <= 2**35 / found.time_us / 1000 <= 8 * 50 / 2


def test_nvls_can_be_turned_off():
    """If NVLS is turned off, a ring carries large messages."""
    assert taccl.predict("dgx-h100", "allreduce", "1GB", nvls=False).algorithm == "ring"


def test_one_gpu_per_node_takes_parallel_trees():
    """With one GPU per node and more than 8 ranks, NCCL uses its parallel trees (PAT).

    After the start their time is a base of 8 us, 14 us / 3.5 for each of 4 levels, and 2.8 us per rank.
    """
    found = taccl.predict("dgx-h100", "allgather", 8, ranks=16, nodes=16)
    start = 1.8 + costs_of("dgx-h100").network.start_us
    assert found.algorithm == "pat"
    assert found.time_us == pytest.approx(start + 8 + 4 * 14 / 3.5 + 16 * 2.8, rel=1e-3)
    assert taccl.predict("dgx-h100", "allgather", 8, ranks=8, nodes=8).algorithm == "ring"
    assert taccl.predict("dgx-h100", "allgather", 8, nodes=2).algorithm == "ring"


def test_sharp_sums_in_the_network():
    """Sums in the network (SHARP) are faster than trees between many nodes.

    On 16 nodes of 8 A100 they take 2 * (3.7 + 7 * 0.4) us inside and 31 us between nodes.
    """
    found = taccl.predict("dgx-a100", "allreduce", 8, nodes=16, sharp=True)
    assert found.algorithm == "collnet-direct"
    start = 1.8 + costs_of("dgx-a100").network.start_of("AMD")
    assert found.time_us == pytest.approx(start + 2 * (3.7 + 7 * 0.4) + 31, rel=1e-3)
    assert us("dgx-a100", "allreduce", 8, nodes=16) > found.time_us


def test_sharp_joins_the_sums_of_nodes():
    """On Hopper, NVLS and SHARP combine: 25 us inside and 18 us between nodes."""
    found = taccl.predict("dgx-h100", "allreduce", 8, nodes=16, sharp=True)
    assert found.algorithm == "nvls-sharp"
    assert found.time_us == pytest.approx(1.8 + costs_of("dgx-h100").network.start_us + 25 + 18, rel=1e-3)


def test_sharp_carries_what_the_formula_says():
    """SHARP's bandwidth is half of 8 NICs of 25 GB/s, times the efficiency of large messages."""
    size = 8 << 30
    rate = 0.5 * 8 * 25e3 * costs_of("dgx-a100").network.efficiency
    assert us("dgx-a100", "allreduce", size, nodes=16, sharp=True) == pytest.approx(size / rate, rel=0.01)


@pytest.mark.parametrize(("nodes", "gb_per_s"), [(4, 554), (32, 544), (64, 535)])
def test_sharp_sends_data_once(nodes, gb_per_s):
    """NVLS and SHARP on B200 exceed rings, by published bus bandwidths (together-nccl-tests)."""
    size, num = 16 << 30, 8 * nodes
    found = us("b200", "allreduce", size, nodes=nodes, sharp=True)
    assert size / found / 1000 * 2 * (num - 1) / num == pytest.approx(gb_per_s, rel=0.05)


def test_switches_copy_in_a_node():
    """A large allgather in a node uses NVLS.

    16 MB on 16 GB200 take 1.8 us to launch, 25 us of latency, and the transfer over 8 channels of 90 GB/s.
    NCCL multiplies this bandwidth by its efficiency 0.74, by 7/8 for 8 channels, and by 15/16 for 16 ranks.
    """
    found = taccl.predict("gb200-nvl72", "allgather", 16_000_000, ranks=16)
    assert found.algorithm == "nvls"
    assert found.time_us == pytest.approx(1.8 + 25 + 16e3 / (8 * 90 * 0.74 * 7 / 8 * 15 / 16), rel=1e-3)


@pytest.mark.parametrize(
    ("instance", "network"),
    [("p4d.24xlarge", 75), ("p5.48xlarge", 75), ("p5en.48xlarge", 35), ("p6-b200.48xlarge", 35)],
)
def test_instances_state_their_latency(instance, network):
    """The network latency of an instance type is the one that its NCCL plugin states and NCCL assumes."""
    assert costs_of(instance).network.stated_us == network


def test_instances_share_nics():
    """4 NICs of 100 Gb/s give 8 ranks 50 GB/s in each direction."""
    slow = us("p4de.24xlarge", "allgather", "8GB", nodes=2)
    assert slow == pytest.approx(8e9 * 15 / 16 / (50e3 * 0.86), rel=0.02)


def test_the_network_rate_can_be_given():
    """Twice the given NIC rate halves the time of a large allgather."""
    times = [us("dgx-a100", "allgather", "8GB", nodes=2, network_gb_per_s=rate) for rate in (10, 20)]
    assert times[0] / times[1] == pytest.approx(2, rel=0.02)


def test_the_class_of_the_network_can_be_given():
    """The network class can be given: a tree's two hops between nodes are slower on EFA than on InfiniBand."""
    small, other = (
        us("dgx-a100", "allreduce", 8, nodes=2, network=name) for name in ("infiniband", "efa-rdma-2")
    )
    hop_us = costs_of("dgx-a100", network="efa-rdma-2").network.hop_us
    assert other - small == pytest.approx(2 * hop_us, rel=1e-3)


@pytest.mark.parametrize(("nodes", "added_us"), [(2, 7.0), (4, 10.8)])
def test_hosts_look_for_the_flags_of_ll(nodes, added_us):
    """8 KiB take longer than 8 bytes on H100 over InfiniBand, per hop (NVIDIA/nccl-tests, issue 309)."""
    small, other = (us("dgx-h100", "allreduce", size, nodes=nodes) for size in (8, 8192))
    assert other - small == pytest.approx(added_us, rel=0.25)


def test_hosts_post_the_messages_of_all_channels_in_each_step_of_a_ring():
    """Allgathers on two DGX A100 take 80 us under LL128 at 256 KiB and at 1 MiB (argonne-lcf/alcf-nccl-tests)."""
    times_us = [us("dgx-a100", "allgather", size, nodes=2) for size in (1 << 18, 1 << 20)]
    assert times_us == pytest.approx([80.1, 79.5], rel=0.06)


@pytest.mark.parametrize(
    ("machine", "ranks", "size", "measured_us"),
    [
        ("gh200", 8, 64, 20.28),
        ("gh200", 8, 1 << 17, 80.5),
        ("gh200", 8, 1 << 18, 123.3),
        ("gh200", 8, 128 << 20, 1773.7),
        ("p3dn.24xlarge", 16, 1 << 18, 243.9),
        ("g4dn.8xlarge", 2, 64, 65.2),
        ("g4dn.8xlarge", 2, 1 << 30, 344981),
        ("h800", 8, 1 << 30, 8740),  # 215 GB/s of busbw (NVIDIA/nccl issue 1374)
    ],
)
def test_further_machines_are_predicted(machine, ranks, size, measured_us):
    """Published allreduces of nodes with four GH200 on Slingshot, of V100 and T4 on EFA, and of eight H800."""
    nodes = 1 if machine == "h800" else 2
    found = taccl.predict(machine, "allreduce", size, nodes=nodes, ranks=ranks)
    assert found.time_us == pytest.approx(measured_us, rel=0.15)


#: {KiB: us} of MSCCL's own page, allreduce and allgather of 8 H100 (Azure/msccl, README.md).
MSCCL = {
    "allreduce": {1: 7.5, 8: 7.67, 64: 10.36, 256: 12.86, 1024: 22.31, 8192: 68.16, 1 << 20: 4026.8},
    "allgather": {1: 5.65, 8: 5.47, 64: 5.95, 256: 7.26, 1024: 12.3, 8192: 38.54, 1 << 20: 2633},
}


@pytest.mark.parametrize(("collective", "most"), [("allreduce", 0.13), ("allgather", 0.03)])
def test_msccl_takes_what_its_page_says(collective, most):
    """MSCCL's predictions match its page: launch, steps, copies, and NCCL's algorithms for large messages."""
    found = {kib: us("nd-h100-v5", collective, kib << 10, runtime="msccl-xml") for kib in MSCCL[collective]}
    off = [abs(found[kib] / time_us - 1) for kib, time_us in MSCCL[collective].items()]
    assert np.median(off) <= most


def test_msccl_leaves_calls_without_a_file_to_nccl():
    """Calls without an MSCCL file use NCCL's algorithms and times."""
    for given in ({"nodes": 2, "collective": "allreduce"}, {"collective": "broadcast"}):
        times = [us("dgx-h100", size=1024, runtime=name, **given) for name in ("msccl-xml", "nccl")]
        assert times[0] == times[1]


def test_messages_of_mpi_take_turns():
    """A broadcast of 8 bytes to 8 ranks over MPI takes three messages of 10 us; the source says that this is
    assumed."""
    found = taccl.predict("dgx-h100", "broadcast", 8, runtime="mpi")
    assert found.time_us == pytest.approx(3 * 10, rel=1e-3)
    assert "our choice" in found.source
    assert us("dgx-h100", "allreduce", "1GB", runtime="mpi") > us("dgx-h100", "allreduce", "1GB") * 10


@pytest.mark.parametrize(
    ("machine", "source"), [("dgx1", "CUDA Graphs"), ("dgx-h100", "8 H100"), ("mi300x", "rccl-tests logs")]
)
def test_the_source_is_of_the_machine(machine, source):
    """The source of a prediction is that of the machine's own launch time."""
    assert source in taccl.predict(machine, "allreduce", "1MB").source


@pytest.mark.parametrize(("size_kb", "measured_us"), [(24, 6.18), (48, 6.62), (72, 6.91)])
def test_kernels_start_sooner_on_hopper(size_kb, measured_us):
    """The launch of a kernel takes 0.7 us less on 8 H100 than on 8 A100, as microsoft/mscclpp has measured."""
    found = taccl.predict("dgx-h100", "allreduce", size_kb << 10, runtime="mscclpp")
    assert found.launch_us == 4.25
    assert found.time_us == pytest.approx(measured_us, rel=0.06)


def test_one_kernel_has_no_base():
    """A one-kernel runtime has no base time of a library.

    It takes two steps of 0.6 us after 4.95 us, and 7/4 of the bytes at half LL's rate.
    """
    size = 8 << 10
    found = taccl.predict("dgx-a100", "allreduce", size, runtime="mscclpp")
    assert found.launch_us == 4.95
    assert found.time_us == pytest.approx(4.95 + 2 * 0.6 + 1.75 * size / (87.7e3 / 2))


def test_each_remote_peer_of_an_alltoall_costs_a_hop():
    """A second node adds 9 us of start and, for each of its 8 ranks, 3.7 us to an alltoall.

    It also ends the use of LL, whose base and hop take 4.6 us less than those of simple.
    """
    one, two = (us("dgx-a100", "alltoall", 64, nodes=nodes) for nodes in (1, 2))
    assert two - one == pytest.approx(9 + 8 * 3.7 + 4.6, rel=0.01)


@pytest.mark.parametrize(
    ("machine", "nodes", "gb_per_s"),
    [("b200", 2, 43.1), ("b200", 8, 26.0), ("b200", 32, 14.6), ("dgx-h100", 10, 15.2)],
)
def test_messages_between_many_nodes_have_few_channels(machine, nodes, gb_per_s):
    """Each rank sends to the next: 64 ranks leave two of 16 channels to a message, 80 and more leave one.

    The rates are of togethercomputer/together-nccl-tests and of xxrjun/nccl-tests-cluster (NCCL 2.29).
    """
    found = us(machine, "point-to-point", 64 << 20, nodes=nodes, version="2.29")
    assert (64 << 20) / found / 1000 == pytest.approx(gb_per_s, rel=0.1)


def test_messages_under_old_versions_have_two_channels():
    """NCCL 2.28 has two channels for a message between nodes, of which many ranks leave one."""
    found = [network_channels(16, 1, 50, num, (2, 28)) for num in (16, 32, 40)]
    assert found == [2, 2, 1]


def test_messages_use_ll_by_the_channels_of_a_peer_before_2_29():
    """On 8 B200, an alltoall of 4 MB used LL, and took longer than one of 8 MB (a published log)."""
    found = {
        (size_mb, version): taccl.predict("b200", "alltoall", size_mb << 20, version=version)
        for size_mb in (4, 8)
        for version in ("2.28", "2.29")
    }
    assert [each.protocol for each in found.values()] == ["ll", "simple", "simple", "simple"]
    times = [found[size_mb, "2.28"].time_us for size_mb in (4, 8)]
    assert times == pytest.approx([38.84, 34.62], rel=0.13)
    assert times[0] > times[1]


def test_many_peers_share_the_channels_of_an_exchange_under_ll():
    """On 64 GB300, an alltoall of 32 MB has 32 channels for 63 peers (published: 236 us)."""
    found = taccl.predict("gb200-nvl72", "alltoall", 32 << 20, ranks=64, version="2.28")
    assert found.protocol == "ll"
    assert found.time_us == pytest.approx(236, rel=0.05)


@pytest.mark.parametrize("version", ["", "2", "2.x", "two"])
def test_a_version_has_two_parts(version):
    """A version is numbers with points."""
    with pytest.raises(InputError, match="expected a version such as '2.28'"):
        taccl.predict("b200", "alltoall", 8, version=version)


@pytest.mark.parametrize(
    ("version", "nodes", "gpus", "nic_gb_per_s", "blocks"),
    [
        ((2, 28), 2, 8, 50, (32, 128 << 10)), ((2, 28), 4, 8, 50, (32, 64 << 10)),
        ((2, 30), 2, 8, 50, (32, 64 << 10)), ((2, 30), 2, 4, 50, (32, 256 << 10)),
        ((2, 30), 4, 8, 50, (24, 64 << 10)), ((2, 30), 3, 72, 50, (24, 128 << 10)),
        ((2, 30), 3, 8, 100, (24, 256 << 10)), ((2, 30), 3, 16, 100, (32, 128 << 10)),
        ((2, 30), 2, 8, 25, (32, 128 << 10)), ((2, 30), 1, 8, 50, (24, 128 << 10)),
    ],
)  # fmt: skip
def test_blocks_of_nvls_are_those_of_the_version(version, nodes, gpus, nic_gb_per_s, blocks):
    """(Blocks, bytes of a chunk) on B200 are those of NCCL's ``src/transport/nvls.cc``."""
    costs = replace(costs_of("b200").under(version), nic_gb_per_s=nic_gb_per_s)
    assert nvls_blocks(Run(costs, "allreduce", nodes * gpus, nodes, np.ones(1))) == blocks


def test_chunks_of_nvls_double_at_128_mb_on_b200():
    """Two nodes of 8 B200 take 590 to 600 us for 128 MiB, of which NCCL before 2.30 fills larger chunks."""
    found = us("b200", "allreduce", 128 << 20, nodes=2)
    assert found == pytest.approx(597, rel=0.05)


@pytest.mark.parametrize(
    ("machine", "ranks", "gb_per_s"), [("dgx-h100", 4, 98.6), ("a3-megagpu-8g", 16, 179.0)]
)
def test_large_trees_between_nodes_fill_links_or_nics(machine, ranks, gb_per_s):
    """Published allreduces of 8 GiB on two nodes exceed the maximum that NCCL's model has for trees."""
    found = taccl.predict(machine, "allreduce", 8 << 30, ranks=ranks, nodes=2)
    assert (found.algorithm, found.protocol) == ("tree", "simple")
    assert (8 << 30) / found.time_us / 1000 == pytest.approx(gb_per_s, rel=0.07)


def test_nvls_is_chosen_sooner_by_old_versions():
    """NCCL 2.26 sums 2 MiB by NVLS on four nodes of H100, NCCL 2.28 by trees (NVIDIA/nccl-tests, issue 309)."""
    found = [taccl.predict("dgx-h100", "allreduce", 2 << 20, nodes=4, version=v) for v in ("2.26", "2.28")]
    assert [each.algorithm for each in found] == ["nvls", "tree"]


def test_messages_between_nodes_never_use_ll():
    """A message of 8 bytes between nodes passes a hop under simple; in a node it uses LL."""
    protocols = [taccl.predict("b200", "point-to-point", 8, nodes=nodes).protocol for nodes in (1, 2)]
    assert protocols == ["ll", "simple"]


@pytest.mark.parametrize(("size_mb", "gb_per_s"), [(32, 80), (128, 163), (512, 356)])
def test_messages_on_h100_have_20_gb_per_s_per_channel(size_mb, gb_per_s):
    """On 8 H100, a message of 32 MB has 4 channels, and one of 128 MB has 8 (xxrjun/nccl-tests-cluster)."""
    found = us("dgx-h100", "point-to-point", size_mb << 20)
    assert (size_mb << 20) / found / 1000 == pytest.approx(gb_per_s, rel=0.1)


@pytest.mark.slow
def test_larger_messages_never_carry_more_than_the_wire():
    """No prediction exceeds the rate of a rank's links, on one node or two."""
    for machine in known_machines():
        for collective, nodes in product(("allreduce", "allgather", "alltoall", "broadcast"), (1, 2)):
            costs, num = costs_of(machine), nodes * ranks_per_node(machine)
            sizes = 2.0 ** np.arange(3, 34)
            times = predicted_us(costs, collective, num, nodes, sizes)
            assert np.isfinite(times).all() and (times > 0).all()
            assert (sizes / times / 1000 <= 2 * costs.node_gb_per_s).all()


def test_the_library_chooses_by_its_own_model():
    """On p4d NCCL assumes 75 us per hop, twice for Simple, so LL is used up to larger sizes."""
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
        ("p5.48xlarge", "allreduce", {"sharp": True, "nodes": 2}, "network='infiniband'"),
        ("mi300x", "allreduce", {"sharp": True, "nodes": 2}, "leave it out"),
    ],
)
def test_errors_for_unknown_names_list_the_known_ones(machine, collective, options, said):
    """Errors for unknown names and unsupported options list the known names, or give the limit or the
    remedy."""
    with pytest.raises(InputError, match=said):
        taccl.predict(machine, collective, 8, **options)


@pytest.mark.parametrize("rate", ["", "x", -1, 0, float("nan")])
def test_a_rate_of_the_network_is_a_number_above_zero(rate):
    """A network rate that is not a positive number is refused, and the error names the argument."""
    with pytest.raises(InputError, match="network_gb_per_s: found"):
        taccl.predict("dgx-h100", "allreduce", "1MB", nodes=2, network_gb_per_s=rate)


@pytest.mark.parametrize(("size_mb", "measured_us"), [(8, 316), (64, 1695), (1024, 25261)])
def test_an_alltoall_between_nodes_fills_its_pipelines(size_mb, measured_us):
    """The first chunks to all peers share a NIC (two DGX A100, argonne-lcf/alcf-nccl-tests, results_sophia)."""
    assert us("dgx-a100", "alltoall", size_mb << 20, nodes=2) == pytest.approx(measured_us, rel=0.13)
