"""Diagnoses name the fault of a machine and no other, and state what the figures cannot decide."""

import re
import sys
from dataclasses import replace

import numpy as np
import pytest

import taccl
from taccl._internal.text_kinds import TEXTS
from taccl._internal.units import format_size
from taccl.errors import FormatError, InputError
from taccl.explore.diagnose import clauses
from taccl.explore.expectation import Expectation
from taccl.explore.measured_machine import Machine, topology_of, untested_kind, untested_small
from taccl.explore.possible_gains import _runs
from taccl.explore.verdict import conclusion
from taccl.measure.causes import causes_of
from taccl.measure.curve import Kink
from taccl.measure.diagnosis import Gain
from taccl.measure.facts import Facts, OtherNics
from taccl.measure.series import Series
from taccl.runtimes.table import RUNTIMES
from taccl.topology.transform import subset
from tests.effort import AMPLE_S
from tests.explore.degraded import CASES, HALF_SLOT, NIC, NVLS, RINGS, network_log, node_log
from tests.nvswitch import matrix, server_xml

GPU = "#  Rank {} Group 0 Pid 1 on host0 device {} [0000:00:00] {}\n"


def judged(path, *more, **given):
    """Diagnosis of a log with one series, without a search for limits and better schedules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Expectation, "limits", lambda *_: ())
        return with_limits(path, *more, **given)


def with_limits(path, *more, **given):
    """Diagnosis of a log with one series, without a search for better schedules."""
    (found,) = taccl.diagnose([path, *more], gains=False, **given).series
    return found


def rates(found, grade="likely"):
    """Names of causes of slow large messages, with the given grade."""
    return {each.name for each in found.causes if each.of == "rate" and each.grade == grade}


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "text"), CASES, ids=[f"{fault}-{i}" for i, (fault, _) in enumerate(CASES)])
def test_no_fault_is_taken_for_another(log, fault, text):
    """The fault is among the causes, and every cause graded likely is the fault."""
    on = "dgx-h100" if "H100" in text else "dgx-a100"
    found = judged(log(text), topology=on)
    assert rates(found) <= {fault}
    assert fault == "none" or fault in rates(found) | rates(found, "possible")


@pytest.mark.slow
def test_a_switch_that_does_not_add_is_named(log):
    """365 GB/s of busbw on 8 H100 is the rate of rings: NVLS is off, which is the only likely cause."""
    found = judged(log(node_log(RINGS)))
    assert rates(found) == {"nvls-off"}
    assert "large messages: likely NVLS is off" in found.verdict


@pytest.mark.slow
def test_a_healthy_network_is_as_expected(log):
    """A rate of 23.3 of 25 GB/s on every NIC is judged as expected, without any cause."""
    found = judged(log(network_log([NIC] * 8)), topology="dgx-a100")
    assert found.share > 0.93
    assert not rates(found, "possible")


def test_two_of_eight_connected_gpus_have_one_link(log):
    """46 GB/s between 2 of 8 MI300X is the rate of the one link that joins them, so it is as expected."""
    gpus = "".join(GPU.format(rank, rank, "AMD Instinct MI300X") for rank in range(2))
    rows = "".join(
        f" {size} {size // 4} float sum -1 {time_us:.1f} {size / time_us / 1000:.2f} {size / time_us / 1000:.2f} 0\n"
        for size, time_us in ((8, 12.0), (2**30, 2**30 / 46e3), (2**33, 2**33 / 46e3))
    )
    found = judged(log("# all_reduce_perf\n" + gpus + rows))
    assert found.share == pytest.approx(46 / 45.2, rel=0.02)
    assert found.verdict.endswith("as expected")


@pytest.mark.parametrize(
    ("nodes", "version", "told"),
    [
        (4, "NCCL version 2.29.2\n", ""),
        (8, "NCCL version 2.29.2\n", "NCCL 2.29 gives a message between nodes 2 channels"),
        (2, "NCCL version 2.28.9\n", "NCCL 2.28 gives a message between nodes 2 channels"),
    ],
)
def test_few_channels_of_messages_between_nodes_are_told(log, nodes, version, told):
    """Messages between nodes reach half of a NIC's rate if NCCL gives them two channels, as in large jobs."""
    gpus = "".join(
        GPU.format(i, i % 8, "NVIDIA H100 80GB HBM3").replace("host0", f"host{i // 8}")
        for i in range(8 * nodes)
    )
    row = f" {2**30} {2**28} float sum -1 {2**30 / 25e3:.1f} 25.00 25.00 0\n"
    found = taccl.diagnose([log("# sendrecv_perf\n" + gpus + version + row)], "dgx-h100", gains=False)
    assert "50% of the rate of a NIC" in found.links[0]
    assert told in found.links[0]
    assert ("NCCL_NCHANNELS_PER_NET_PEER" in found.links[0]) == bool(told)


@pytest.mark.parametrize(
    ("machine", "said"),
    [("mi300x", "102% of the rate of the links between"), ("dgx-a100", "19% of the rate of a GPU inside")],
)
def test_messages_between_two_gpus_have_the_links_between_them(log, machine, said):
    """46 GB/s is the rate of the link between two MI300X, and a part of what a switch carries on A100."""
    gpus = "".join(GPU.format(rank, rank, "") for rank in range(8))
    row = f" {2**30} {2**28} float sum -1 {2**30 / 46e3:.1f} 46.00 46.00 0\n"
    found = taccl.diagnose([log("# sendrecv_perf\n" + gpus + row)], machine, gains=False)
    assert said in found.links[0]


@pytest.mark.slow
def test_sizes_at_which_the_library_chooses_late_are_on_its_curve(log):
    """On two nodes of A100, NCCL's model keeps LL up to 256 KiB; a log that follows it is as expected.

    A log that keeps LL up to 512 KiB is not.
    """
    healthy = {
        size: taccl.predict("dgx-a100", "allgather", size, nodes=2).time_us for size in 2 ** np.arange(10, 34)
    }
    late = {**healthy, 2**19: 2 * healthy[2**18]}
    gpus = "".join(
        f"#  Rank {rank} Group 0 Pid {rank} on host{rank // 8} device {rank % 8} [0000:00:00] NVIDIA A100\n"
        for rank in range(16)
    )
    verdicts = []
    for times_us in (healthy, late):
        rows = "".join(
            f" {size} {size // 4} float none -1 {time_us:.2f} {size / time_us / 1000:.2f} "
            f"{size / time_us / 1000 * 15 / 16:.2f} 0\n"
            for size, time_us in times_us.items()
        )
        verdicts.append(judged(log("# all_gather_perf\n" + gpus + rows), topology="dgx-a100").verdict)
    assert verdicts[0].endswith("as expected")
    assert verdicts[1].endswith("off the curve: 512KiB")


def perftest(gb_per_s):
    """Log of `ib_write_bw` with a rate of `gb_per_s`, in the tool's unit Gb/s."""
    head = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]"
    rate = 8 * gb_per_s
    return f"                    RDMA_Write BW Test\n{head}\n 8388608    5000    {rate:.2f}    {rate:.2f}    0.01\n"


@pytest.mark.slow
def test_logs_of_single_nics_show_a_slow_rail(log):
    """If one NIC is slow in a log of single NICs, that rail is the cause, not the PCIe lanes of all NICs."""
    text = network_log([*[NIC] * 7, HALF_SLOT])
    nics = [log(perftest(rate), f"{rate}.log") for rate in (NIC, HALF_SLOT)]
    assert rates(judged(log(text), *nics, topology="dgx-a100")) == {"slow-rail"}


@pytest.mark.slow
def test_logs_of_single_nics_exclude_lanes(log):
    """Half of the rate on two rails is blamed on an unused NIC if each NIC reaches its rate alone.

    PCIe lanes or a slow rail are not blamed.
    """
    text = network_log([*[NIC] * 6, NIC / 2, NIC / 2])
    nics = [log(perftest(NIC), f"nic{rail}.log") for rail in range(8)]
    causes = {each.name for each in judged(log(text), *nics, topology="dgx-a100").causes}
    assert "nic-unused" in causes
    assert not {"pcie", "slow-rail"} & causes


def _nics(rates, *, share, shares=None):
    """{cause of the rate: grade} where two nodes with 8 NICs of 23.3 GB/s reach a share of their rate, and
    single NICs reach the given rates."""
    facts = Facts(
        "allgather", 2, share, network_shares=shares or {"ring": share}, nic_gb_per_s=NIC, nics_per_node=8,
        nics_gb_per_s=tuple(rates),
    )  # fmt: skip
    return {each.name: each.grade for each in causes_of(facts)}


def test_slow_links_of_all_nics_are_named():
    """If each NIC alone reaches half of its rate, that explains half of the bandwidth: no NIC is unused."""
    found = _nics([12.3] * 8, share=0.5)
    assert found["slow-nics"] == "likely"
    assert not {"nic-unused", "pcie", "slow-rail"} & set(found)


def test_slow_links_of_some_nics_do_not_exclude_others():
    """If one NIC alone is measured slow, all may be slow, or this rail."""
    found = _nics([12.3], share=0.5)
    assert found["slow-nics"] == found["slow-rail"] == "possible"


@pytest.mark.parametrize(
    ("rates", "share", "named"),
    [
        ([NIC], 0.76, {"nic-unused", "slow-rail"}),  # a rail that was not measured may be slow
        ([NIC] * 8, 0.76, {"nic-unused"}),
        ([NIC] * 8, 0.5, {"nic-unused", "oversubscribed"}),  # NICs in pairs, or 2 to 1 between leaves
        ([NIC] * 4 + [NIC / 2] * 4, 0.5, {"slow-rail"}),
        ([NIC] * 7 + [0.8 * NIC], 0.4, {"slow-rail"}),  # explains 0.8 only
    ],
)
def test_logs_of_single_nics_exclude_no_more_than_they_show(rates, share, named):
    """A cause is likely only if the measured NICs exclude all others, and explain the rate."""
    found = _nics(rates, share=share)
    assert set(found) == named
    is_certain = len(named) == 1 and share != 0.4
    assert set(found.values()) == {"likely" if is_certain else "possible"}


def test_slow_nics_may_be_unused_as_well():
    """If each NIC reaches half of its rate and a node 0.375, two of eight slow NICs are unused."""
    found = _nics([NIC / 2] * 8, share=0.375)
    assert found["nic-unused"] == "likely"
    assert found["slow-nics"] == "possible"


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ((), set()),
        (("Using network Socket",), {"sockets"}),
        (("NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.4<0>",), {"nic-unused"}),
        (("Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/0",), {"gdr-off"}),
    ],
)
def test_lines_of_a_log_show_why_its_network_is_slow(log, lines, named):
    """A rate of 9 GB/s on two nodes has many possible causes; the log's own lines show the likely one."""
    debug = "".join(f"host0:12:34 [0] NCCL INFO {line}\n" for line in lines)
    found = judged(log(debug + network_log([NIC] * 7 + [9 / 8])))
    assert rates(found) == named
    evidence = {each.name: each.evidence for each in found.causes}
    assert ("sockets" in evidence) == ("NET/IB : Using" not in "".join(lines))
    names_network = bool({"sockets", "nic-unused"} & named)
    assert ("names no network" in evidence.get("other-network", "")) == (not names_network)


@pytest.mark.parametrize(("named", "share"), [("roce", 1.0), ("infiniband", 0.9)])
def test_rings_of_hopper_are_judged_by_the_named_network(named, share):
    """An allgather of 332 GB/s on two nodes of H100 is usual over RoCE, and 0.9 of the usual over InfiniBand."""
    size = 2**33
    series = Series("allgather", 16, 2, (size,), (size * 15 / 16 / 332e3,), "log")
    expected = Expectation(series, taccl.topologies.parse("dgx-h100", nodes=2), named)
    assert expected.best.time_us / series.times_us[0] == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize(("version", "more_us"), [((2, 22), 180), ((2, 28), 0), ((), 0)])
def test_times_between_nodes_of_amd_are_judged_by_the_version_of_rccl(version, more_us):
    """RCCL 2.22 starts 180 us later between nodes than new versions, which are usual without a version.

    Gains of better schedules count this start as well.
    """
    series, on = Series("allreduce", 16, 2, (8,), (50.0,), "log"), taccl.topologies.parse("mi300x", nodes=2)
    usual_us = Expectation(series, on).predicted_us[0]
    found = Expectation(series, on, version=version)
    assert found.predicted_us[0] - usual_us == pytest.approx(more_us)
    assert found.start_us == more_us


@pytest.mark.parametrize(("excluded", "names"), [((), {"slow-fabric"}), (("sockets", "gdr-off"), set())])
def test_no_other_network_delays_messages_if_the_log_shows_the_usual_path(excluded, names):
    """If a log names the expected network and GDRDMA, late small messages have no cause in the network."""
    facts = Facts("allgather", 2, 1.0, 1.7, network="RoCE (gIB)", log_network="RoCE", excluded=excluded)
    assert {each.name for each in causes_of(facts)} == names


def test_diagnoses_of_gpus_of_amd_name_rccl(log):
    """On MI300X the stock library is RCCL: verdict, tables, picture and remedies name it, and not NCCL."""
    gpus = "".join(GPU.format(rank, rank, "AMD Instinct MI300X") for rank in range(8))
    rows = "".join(
        f" {size} {size // 4} float sum -1 {time_us:.1f} {size / time_us / 1000:.2f} {size / time_us / 571:.2f} 0\n"
        for size, time_us in ((8, 46.0), (2**21, 58.4), (2**30, 9000.0), (2**33, 70000.0))
    )
    found = judged(log("# all_reduce_perf\n" + gpus + rows))
    axes = taccl.plot.diagnosis(found)
    said = [repr(found), found._repr_html_(), axes.get_legend().get_texts()[0].get_text()]
    (remedy,) = (
        each.remedy
        for each in causes_of(Facts("allreduce", 1, 0.6, is_amd=True, shares={"ll": 0.6}))
        if each.name == "protocol"
    )
    for text in (*said, remedy):
        assert re.search(r"\bRCCL\b", text)
        assert not re.search(r"\bNCCL\b", text)


@pytest.mark.parametrize(("ratio", "grade"), [(1.6, "possible"), (3.2, "likely")])
def test_numa_balancing_is_likely_only_if_it_delays_much(ratio, grade):
    """On 8 MI300X, NUMA balancing delayed small messages 3.2 times; other causes may delay them 1.6 times."""
    (cause,) = causes_of(Facts("allreduce", 1, 1.0, ratio, is_amd=True))
    assert (cause.name, cause.grade) == ("numa-balancing", grade)


@pytest.mark.parametrize("nodes", [1, 2])
def test_times_of_an_mpi_library_blame_no_setting_of_nccl(log, nodes):
    """OSU's allreduce of an MPI library is far slower than NCCL's, which shows neither P2P nor protocols."""
    rows = "".join(f"{2**k}  {28 + 2**k / 13100:.2f}\n" for k in range(3, 27))
    text = f"# OSU MPI-CUDA Allreduce Latency Test v7.3\n# Size       Avg Latency(us)\n{rows}"
    found = judged(log(text), topology="dgx-a100", nodes=nodes)
    assert {each.name for each in found.likely} == {"other-library"}
    assert not {"protocol", "protocol-switch", "one-process"} & {each.name for each in found.causes}


@pytest.mark.parametrize(
    ("joint", "ratio", "grades"),
    [
        ("NVLink", 1.0, {"p2p-disabled": "possible", "nvlinks-down": "possible"}),
        ("NVLink", None, {"p2p-disabled": "possible", "nvlinks-down": "possible"}),
        ("NVLink", 1.4, {"p2p-disabled": "likely", "nvlinks-down": "possible"}),
        ("NVSwitch", 1.0, {"p2p-disabled": "likely"}),
        ("xGMI", 1.0, {"p2p-disabled": "likely", "xgmi-down": "possible"}),
    ],
)
def test_a_rate_of_pcie_may_be_of_nvlinks_that_are_down(joint, ratio, grades):
    """Without NVLinks between pairs, GPUs talk directly over PCIe; a detour delays small messages as well."""
    found = causes_of(Facts("allreduce", 1, 0.16, ratio, joint=joint))
    assert {each.name: each.grade for each in found if each.of == "rate"} == grades


@pytest.mark.parametrize(
    ("joint", "grade"), [("NVLink", "possible"), ("xGMI", "possible"), ("NVSwitch", "likely")]
)
def test_the_rate_of_a_protocol_may_be_that_of_fewer_links(joint, grade):
    """Half of the rate, as of LL, has one explanation less where a switch joins the GPUs."""
    found = causes_of(Facts("allreduce", 1, 0.51, 1.0, joint=joint, shares={"ll": 0.5}))
    assert {each.name: each.grade for each in found}["protocol"] == grade
    assert (len(found) == 1) == (grade == "likely")


@pytest.mark.parametrize(("share", "grade"), [(0.75, "possible"), (0.77, "possible"), (0.79, "likely")])
def test_inactive_nvls_is_not_likely_if_a_forced_protocol_matches_better(share, grade):
    """On 8 B200, LL128 reaches 76 % and rings without NVLS 79 %, so 75 to 77 % may be of either."""
    found = causes_of(Facts("allreduce", 1, share, shares={"ll128": 0.76, "no nvls": 0.79}))
    assert {each.name: each.grade for each in found}["nvls-off"] == grade


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nodes", "machine", "gb_per_s", "beginning"),
    [
        (3, "dgx-h100", 361, "large messages"),
        (8, "BM.GPU.H200.8", 330, "within the error of the model (15%)"),
    ],
)
def test_the_rate_of_the_own_choice_is_in_the_verdict(log, nodes, machine, gb_per_s, beginning):
    """Rings, which NCCL chooses on 3 nodes and more although NVLS is faster, are named by their rate."""
    gpus = "".join(
        GPU.format(i, i % 8, "NVIDIA H100 80GB HBM3").replace("host0", f"host{i // 8}")
        for i in range(8 * nodes)
    )
    algbw = gb_per_s * 4 * nodes / (8 * nodes - 1)
    time_us = 2**33 / algbw / 1000
    row = f"8589934592 2147483648 float sum -1 {time_us:.0f} {algbw:.2f} {gb_per_s} 0\n"
    verdict = judged(log("# all_reduce_perf\n" + gpus + row), topology=machine).verdict
    assert f"{beginning}: NCCL's own choice, ring, has this rate, or large" in verdict


@pytest.mark.parametrize(("stated", "grade"), [({}, "possible"), ({"mnnvl-off": "MNNVL 0"}, "likely")])
def test_hosts_of_a_rack_may_lack_nvlink_between_them(stated, grade):
    """A rack of 18 hosts at 11 % may lack NVLink between hosts, not only between the GPUs of one."""
    far, near = (
        Facts("allreduce", 1, share, 1.0, joint="NVSwitch", hosts=18, stated=stated) for share in (0.11, 0.95)
    )
    grades = {each.name: each.grade for each in causes_of(far)}
    assert grades == {"p2p-disabled": "possible", "mnnvl-off": grade}
    assert not causes_of(near)


@pytest.mark.slow
def test_a_rack_at_the_rate_of_its_nics_is_not_joined_by_nvlink(log):
    """The line of a communicator on 18 hosts of GB200 shows why they have the rate of their NICs."""
    gpus = "".join(GPU.format(i, i % 4, "NVIDIA GB200").replace("host0", f"host{i // 4}") for i in range(72))
    line = "host0:1:2 [0] NCCL INFO comm 0x5 rank 0 nRanks 72 nNodes 18 localRanks 4 localRank 0 MNNVL 0\n"
    row = "17179869184 4294967296 float sum -1 352000 48.81 96.26 0\n"
    found = judged(log("# all_reduce_perf\n" + gpus + line + row))
    assert "likely NVLink does not join the hosts" in found.verdict


def _slowed(text, factor, *, from_bytes, busbw=1.75):
    """Log of a collective whose times from `from_bytes` on are longer by a factor.

    - `busbw`: its bus bandwidth over size per time; by default that of an allreduce on 8 ranks.
    """
    lines = []
    for line in text.splitlines():
        cells = line.split()
        if cells[0].isdigit() and int(cells[0]) >= from_bytes:
            time_us = float(cells[5]) * factor
            algbw = int(cells[0]) / time_us / 1000
            line = " ".join([*cells[:5], f"{time_us:.2f} {algbw:.2f} {busbw * algbw:.2f} 0"])
        lines.append(line)
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("sizes", [2**30, 2**31])
def test_a_fall_at_the_largest_sizes_is_no_static_fault(log, sizes):
    """NVLS is not off if 128 MiB and more have its bandwidth, and only the largest sizes are as slow as rings."""
    found = judged(log(_slowed(node_log(NVLS), NVLS / RINGS, from_bytes=sizes)))
    assert rates(found) == {"falls"}
    assert not rates(found, "possible")


def test_a_fall_is_neither_another_number_of_nics_nor_a_switch(log):
    """If 256 MiB have the usual rate, half of it at 2 GiB is a fall: all NICs are there, no protocol changes."""
    text = _slowed(network_log([NIC] * 8), 2, from_bytes=2**31, busbw=15 / 16)
    found = judged(log(text))
    assert "are usual with" not in found.verdict
    assert [each.name for each in found.causes] == ["falls"]


def test_times_in_place_show_that_the_network_works(log):
    """Out of place an allgather reaches 79 % of its usual rate, and in place 97 %: no NIC is at fault."""
    rows = [line for line in network_log([0.79 * NIC] * 8).splitlines() if line[0].isdigit()]
    text = "\n".join(
        [line for line in network_log([NIC] * 8).splitlines() if not line[0].isdigit()]
        + [f"{row} {0.81 * float(row.split()[5]):.2f} 0.00 0.00 0" for row in rows]
    )
    found = judged(log(text), topology="dgx-a100")
    assert [each.name for each in found.causes if each.of == "rate"] == ["place"]
    assert "likely the place of the output (in place or out of place)" in found.verdict
    assert found.causes[0].evidence.endswith("in the other place")


def test_a_fall_in_steps_is_no_change_of_protocol():
    """Times that jump at 512 MiB and at 1 GiB belong to the fall; a jump at 512 B does not."""
    steps = tuple(Kink("wrong switch", size, format_size(size)) for size in (512, 2**29, 2**30))
    spike = Kink("outlier", 2**31, "2 GiB")
    facts = Facts("allreduce", 1, 0.7, other_share=0.99, is_amd=True, kinks=(*steps, spike))
    found = {each.name: each.evidence for each in causes_of(facts)}
    assert found["protocol-switch"] == "512B (wrong switch)"
    assert set(found) == {"falls", "protocol-switch"}


@pytest.mark.slow
def test_another_collective_in_the_log_shows_that_nics_work(log):
    """Half of the rate in an allgather, after an allreduce at the whole rate, is no fault of the NICs."""
    slow = network_log([NIC / 2] * 8)
    (alone,) = taccl.diagnose([log(slow)], gains=False).series
    path = log(network_log([NIC] * 8, name="all_reduce") + slow)
    whole, half = taccl.diagnose([path], gains=False).series
    assert "4 NICs" in alone.verdict and "nic-unused" in rates(alone, "possible")
    assert not whole.causes and not half.causes
    assert "no documented cause" in half.verdict
    said = "the allreduce in the same log reaches the rate of all NICs, so they are not the cause"
    assert said in half.notes and said not in whole.notes


@pytest.mark.parametrize(("seed", "first"), [(0, 20), (3, 8)])
def test_a_slow_first_size_is_no_switch_of_protocols(log, seed, first):
    """A slow first size is called a single slow size, and no switch."""
    lines = node_log(NVLS, seed=seed).splitlines()
    place = next(index for index, line in enumerate(lines) if line.split()[0] == "1024")
    slow = _slowed(lines[place], first, from_bytes=0).strip()
    found = judged(log("\n".join([*lines[:place], slow, *lines[place + 1 :]]) + "\n"))
    assert {each.name for each in found.causes if each.of == "sizes"} == {"outlier"}


@pytest.mark.parametrize(("num", "share", "is_noise"), [(6, 0.16, True), (5, 0.16, False), (6, 0.08, False)])
def test_many_irregular_sizes_are_noise(num, share, is_noise):
    """If many sizes are irregular, a switch of protocols at the wrong size is only a possible cause."""
    kinks = tuple(Kink("wrong switch", 2**power, "") for power in range(10, 10 + num))
    found = causes_of(Facts("allreduce", 1, 0.98, kinks=kinks, irregularity=share))
    grades = {each.name: each.grade for each in found}
    assert grades.get("irregular") == ("likely" if is_noise else None)
    assert grades["protocol-switch"] == ("possible" if is_noise else "likely")


def test_no_small_messages_are_said_to_be_fast_without_any():
    """GPUDirect RDMA may be off in a log of large messages: nothing is said about small ones."""
    facts = Facts("allreduce", 2, 0.41, None, {"nvls": 0.3}, nic_gb_per_s=46.5, nics_per_node=8)
    (gdr,) = [each for each in causes_of(facts) if each.name == "gdr-off"]
    assert gdr.evidence == "30% of the NICs' rate"


def test_all_nics_in_a_log_are_in_use(log):
    """A log that lists as many NICs as the machine has excludes unused ones."""
    command = (
        "mpirun -x NCCL_IB_HCA=" + ",".join(f"mlx5_{nic}" for nic in range(8)) + " all_reduce_perf -g 1\n"
    )
    text = network_log([NIC / 4] * 8, name="all_reduce")
    listed, unlisted = (
        judged(log(each, name)) for each, name in ((command + text, "a.log"), (text, "b.log"))
    )
    names = [{each.name for each in found.causes} for found in (listed, unlisted)]
    assert "nic-unused" not in names[0] and "nic-unused" in names[1]


def test_a_detour_explains_small_messages_as_well():
    """Without direct access between GPUs, large and small messages are slow for the same reason."""
    facts = Facts("allreduce", 1, 0.06, 1.8, joint="NVSwitch")
    said = conclusion(facts, causes_of(facts), 0.06)
    assert said.count("messages: likely GPUs do not talk directly") == 2


def test_causes_that_explain_both_symptoms_come_first():
    """Without GPUDirect RDMA, both the rate and small messages suffer; a PCIe link with this rate is second."""
    facts = Facts(
        "allreduce", 2, 0.43, 1.8, {"nvls": 0.39}, nic_gb_per_s=46.5, nics_per_node=8, joint="NVSwitch",
        is_instance=True,
    )  # fmt: skip
    names = [each.name for each in causes_of(facts) if each.of == "rate"]
    assert names[0] == "gdr-off" and "slow-rail" in names
    swift = [each.name for each in causes_of(replace(facts, small_ratio=1.0)) if each.of == "rate"]
    assert "gdr-off" in swift and swift[0] != "gdr-off"
    forced = causes_of(replace(facts, shares={"ll128": 0.43}))  # which delays small messages as well
    assert forced[0].name == "protocol"


def test_few_channels_explain_a_rate_without_another_cause():
    """Half of the rate of 8 H100 is that of half of the channels, unless a protocol has this rate."""
    facts = Facts("allreduce", 1, 0.49, 1.0, joint="NVSwitch", shares={"ll": 0.29, "no nvls": 0.75})
    (found,) = causes_of(facts)
    assert (found.name, found.grade) == ("few-channels", "possible")
    assert [each.name for each in causes_of(replace(facts, shares={"ll": 0.49}))] == ["protocol"]
    stated = replace(facts, shares={"ll": 0.49}, stated={"few-channels": "the log says so"})
    assert causes_of(stated)[0][:4:3] == ("few-channels", "likely")


def test_no_rate_above_pcie_is_that_of_host_memory():
    """91 GB/s are a fifth of the rate of 8 H100, but more than a PCIe link carries."""
    facts = Facts("allreduce", 1, 0.19, 1.0, joint="NVSwitch", busbw_gb_per_s=91.0)
    assert [each.name for each in causes_of(facts)] == ["few-channels"]
    assert [each.name for each in causes_of(replace(facts, busbw_gb_per_s=22.0))] == ["p2p-disabled"]


def test_a_pair_of_slow_small_sizes_is_no_collapse():
    """A path collapses under load, not at 512 bytes."""
    kinks = [Kink("wrong switch", size, "some") for size in (512, 2**25)]
    facts = [
        Facts("allreduce", 1, 0.2, 1.0, joint="xGMI", shares={"ll": 0.5}, kinks=(each,)) for each in kinks
    ]
    named = [{each.name for each in causes_of(some)} for some in facts]
    assert ["collapse" in each for each in named] == [False, True]


def test_pairs_follow_no_forced_protocol():
    """NCCL_PROTO does not change an alltoall, so half of its rate is not that of LL."""
    facts = Facts("alltoall", 1, 0.5, 1.0, joint="NVSwitch", shares={"ll": 0.5})
    assert [each.name for each in causes_of(facts)] == ["few-channels"]


def test_the_time_of_another_protocol_is_no_slow_path(log):
    """On two a3-ultra, whose tuner plugin prefers LL128, small allgathers take its 55 us, where LL takes 34."""
    text = "# all_gather_perf\n" + "".join(
        GPU.format(i, i % 8, "NVIDIA H200").replace("host0", f"host{i // 8}") for i in range(16)
    )
    for size, time_us in ((1024, 54.1), (4096, 55.6), (16384, 57.1), (2**33, 24489.0)):
        algbw = size / time_us / 1000
        text += f" {size} {size // 64} float none -1 {time_us} {algbw:.2f} {algbw * 15 / 16:.2f} 0\n"
    found = judged(log(text), topology="a3-ultragpu-8g")
    assert found.causes[0].name == "small-protocol"
    assert "with protocol ll128" in found.causes[0].evidence


def _on_pcie(share, **given):
    """{cause of the rate: grade} where a node of GPUs on PCIe reaches a share of its rate."""
    facts = Facts("allreduce", 1, share, joint="PCIe", shares={"ll": 0.5, "simple": 1.0}, **given)
    return {each.name: each.grade for each in causes_of(facts) if each.of == "rate"}


def test_a_slower_pcie_is_told_from_a_protocol():
    """Half of the rate on PCIe has several causes, which the sizes with LL tell apart.

    If these are slow too, lanes are the likely cause; if not, a forced LL; if unknown, both are possible.
    """
    grades = [
        [_on_pcie(0.5, ll_ratio=ratio)[name] for name in ("pcie", "protocol")] for ratio in (1.9, 1.0, None)
    ]
    assert grades == [["likely", "possible"], ["possible", "likely"], ["possible", "possible"]]


def test_copies_through_host_memory_are_possible_on_pcie():
    """At 0.37 of the rate of PCIe, and 1.8 times the latency, P2P may be disabled; lanes do not match."""
    found = _on_pcie(0.37, small_ratio=1.8)
    assert found["p2p-disabled"] == "possible"
    assert "pcie" not in found


@pytest.mark.slow
@pytest.mark.parametrize(("ll", "cause"), [(5.0, "pcie"), (10.0, "protocol")])
def test_sizes_with_ll_tell_lanes_from_a_protocol(log, ll, cause):
    """8 L40S at half of their 20 GB/s have slow lanes if LL has half of its 10 GB/s too, else a forced LL."""
    text = "".join(GPU.format(rank, rank, "NVIDIA L40S") for rank in range(8))
    text += "# Collective test starting: all_reduce_perf\n#  size  count  type  redop  root  time  algbw  busbw #wrong\n"
    for power in range(10, 31):
        size = 2**power
        time_us = 22.5 + size * 14 / 8 / 1000 / (ll if power < 20 else 10.0)
        rate = size / time_us / 1000
        text += f"  {size}  {size // 4}  float  sum  -1  {time_us:.2f}  {rate:.2f}  {rate * 14 / 8:.2f}  0\n"
    assert rates(judged(log(text), topology="l40s")) == {cause}


@pytest.mark.parametrize(("is_instance", "name"), [(True, "slow-path"), (False, "slow-fabric")])
def test_slow_small_messages_are_compared_with_the_named_network(is_instance, name):
    """Slow small messages are compared with the network's usual time; another network is only a cause if no
    instance type is named."""
    facts = Facts("allreduce", 2, 1.0, 1.7, network="TCPXO", is_instance=is_instance)
    (cause,) = causes_of(facts)
    assert cause.name == name
    assert cause.evidence == "small messages take 1.7 times the usual time of TCPXO"
    assert is_instance != ("--topology" in cause.remedy)


@pytest.mark.slow
def test_an_assumed_network_is_not_judged(log):
    """Without --topology the network is assumed: no cause in it is likely, and the assumption is stated."""
    found = judged(log(network_log([HALF_SLOT] * 8)))
    assert not rates(found)
    assert "other-network" in rates(found, "possible")
    assert any("names no network" in note for note in found.notes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpu", "machine"), [("NVIDIA H200", ""), ("NVIDIA B300", "b200"), ("AMD Instinct MI325X", "mi300x")]
)
def test_a_machine_of_equal_gpus_is_an_assumption(log, gpu, machine):
    """GPUs without a machine model of their own are judged by a model with similar links, and a note says so."""
    found = judged(log(node_log(RINGS).replace("NVIDIA H100 80GB HBM3", gpu)))
    noted = [note for note in found.notes if "whose links are alike" in note]
    assert [f"the GPUs are {gpu}; {machine}, whose links are alike, is assumed (--topology)"] * bool(
        machine
    ) == noted


@pytest.mark.parametrize(("size", "chosen"), [(2**29, "nvls"), (2**34, "ring")])
def test_sums_in_switches_are_the_measure_where_they_are_fastest(size, chosen):
    """On 3 nodes of H100 sums in switches are the best choice at 512 MiB and at 16 GiB, where NCCL's model
    chooses slower rings; rings reach 0.78 of them."""
    on = taccl.topologies.parse("nd-h100-v5", nodes=3, nvls=True)
    expected = Expectation(Series("allreduce", 24, 3, (size,), (1.0,), "log"), on)
    assert expected.choices[-1][0].algorithm == chosen
    assert expected.best.algorithm == "nvls"
    assert expected.shares()["no nvls"] == pytest.approx(0.78, abs=0.02)


@pytest.mark.parametrize(
    ("of_bound", "said"),
    [(0.88, "above the prediction"), (1.3, "check --topology"), (None, "check --topology")],
)
def test_more_than_predicted_is_impossible_above_the_bound_alone(of_bound, said):
    """At 1.35 of the prediction a log contradicts the topology only if it exceeds the bound too."""
    assert said in conclusion(Facts("allreduce", 2, 1.35), (), of_bound)


@pytest.mark.parametrize(("predicted", "measured"), [(1.04, 0.95), (0.9, 1.04), (0.9, 0.95)])
def test_rates_above_the_bound_are_those_of_the_model(predicted, measured):
    """The bound is called one on the model's rates if the measured or the predicted rate is above it."""
    on, size = taccl.topologies.parse("dgx-a100"), 2**33
    bound_us = predicted * Expectation(Series("alltoall", 8, 1, (size,), (1.0,), "log"), on).best.time_us
    series = Series("alltoall", 8, 1, (size,), (bound_us / measured,), "log")
    (said,) = clauses(Expectation(series, on), Facts("alltoall", 1, 0.9), bound_us, 7 / 8)
    assert said.endswith("of the bound on the rates of the model") == (max(predicted, measured) > 1)


@pytest.mark.slow
def test_host_memory_instead_of_nvlink_is_named(log):
    """12 GB/s of busbw in a node with NVSwitch is blamed on disabled peer-to-peer access (copies through host
    memory)."""
    assert rates(judged(log(node_log(12.0)))) == {"p2p-disabled"}


@pytest.mark.slow
def test_small_sizes_alone_judge_no_bandwidth(log):
    """Up to 1 MB the bandwidth is not judged, and the verdict states the size from which it would be."""
    lines = [line for line in node_log(NVLS).splitlines() if len(line.split()[0]) <= len("1048576")]
    text = "\n".join(lines)
    found = judged(log(text))
    assert found.share is None
    assert "not judged, as bandwidth shows" in found.verdict


@pytest.mark.slow
def test_limits_are_resources_with_rate_and_use(log):
    """On two nodes the NICs, 25 GB/s each, limit an allgather; the log gives their utilisation."""
    limits = with_limits(log(network_log([NIC] * 8)), topology="dgx-a100").limits
    assert limits[0].resource.startswith("NIC ")
    assert limits[0].gb_per_s == 25
    assert 0.9 < limits[0].use <= 1.05


@pytest.mark.slow
@pytest.mark.parametrize("collective", ["allreduce", "allgather", "alltoall"])
def test_limits_of_many_nodes_are_those_of_the_first_ones(monkeypatch, collective):
    """From the schedule of 3 of 6 nodes, use and rate of the busiest resources of all 6 follow within 2 %."""
    on = taccl.topologies.dgx_h100(nodes=6, nvls=True)
    series = Series(collective, 48, 6, (2**33,), (1e5,), "log")
    whole = Expectation(series, on).limits(1e5)
    monkeypatch.setattr("taccl.explore.expectation._SCHEDULE_RANKS", 24)
    part = Expectation(series, on).limits(1e5)
    assert [(each.resource[:4], each.gb_per_s) for each in part] == [
        (each.resource[:4], each.gb_per_s) for each in whole
    ]
    assert [each.use for each in part] == pytest.approx([each.use for each in whole], rel=0.02)


def test_many_ranks_have_no_bound(monkeypatch):
    """Above a number of ranks no bound is sought."""
    series = Series("allreduce", 8, 1, (2**30,), (5000.0,), "log")
    monkeypatch.setattr("taccl.explore.expectation._BOUND_RANKS", 7)
    assert Expectation(series, taccl.topologies.dgx_h100()).bound_us() is None


@pytest.mark.slow
def test_usual_times_of_middle_sizes_are_those_of_the_library(log):
    """On machines by name each size has its own prediction, so a log that follows it is nowhere slow."""
    sizes = tuple(8 << k for k in range(31))
    times_us = [taccl.predict("gb200-nvl72", "allreduce", size, nodes=2).time_us for size in sizes]
    on = taccl.topologies.gb200_nvl72(nodes=2)
    series = Series("allreduce", 144, 2, sizes, tuple(times_us), "log")
    assert Expectation(series, on).predicted_us.tolist() == pytest.approx(times_us)


@pytest.mark.slow
def test_limits_are_of_the_algorithm_in_the_verdict(log):
    """Rings carry an allreduce of 16 A100 between nodes; on healthy NICs they use at least 0.9 of each NIC."""
    found = with_limits(log(network_log([NIC] * 8, name="all_reduce")), topology="dgx-a100")
    assert "(ring, " in found.verdict
    nic = next(each for each in found.limits if each.resource.startswith("NIC "))
    assert 0.9 < nic.use <= 1.05


@pytest.mark.slow
def test_limits_have_the_rate_of_the_messages_that_use_them(log):
    """An allgather in rings uses ports at the full rate, not at the lower one of sums in NVSwitch."""
    (port,) = with_limits(log(node_log(RINGS, name="all_gather"))).limits
    assert port.gb_per_s == pytest.approx(370.8)
    assert 0.9 < port.use <= 1.05


def test_a_slower_schedule_is_no_gain():
    """A schedule is no gain if it is predicted to be slower by more than the model's error; within the error
    it may be a gain."""
    texts = [Gain(2**30, "msccl", 100.0, us, 1.1, "").text for us in (50.0, 95.0, 105.0, 250.0)]
    assert texts == ["50% less", "within the error", "within the error", "none"]


@pytest.mark.parametrize("nodes", [1, 2])
def test_gains_count_only_protocols_that_a_plan_may_use(nodes):
    """MSCCL++ has no packets (LL) between nodes, so its gains there are those of simple, as in plans."""
    on = taccl.topologies.dgx_h100(nodes=nodes)
    problem = taccl.make_problem(on, "allreduce", size_bytes=8192)
    able = {name: [each for each in on.protocols if _runs(RUNTIMES[name], problem, each)]
            for name in ("msccl", "mscclpp")}  # fmt: skip
    assert able["mscclpp"] == (["simple", "ll"] if nodes == 1 else ["simple"])
    assert able["msccl"] == ["simple", "ll", "ll128"]


@pytest.fixture
def _one_gain(monkeypatch):
    """Seek a better schedule for the largest message alone, as each size takes half a second of CPU."""
    monkeypatch.setattr("taccl.explore.possible_gains._GAIN_SIZES", (2**30,))


@pytest.mark.slow
def test_better_schedules_come_with_error_and_command(log):
    """A predicted gain states the runtime of its schedule, the model's error on NCCL's time, and a command."""
    (found,) = taccl.diagnose([log(node_log(NVLS))]).series
    assert {each.runtime for each in found.gains} == {"msccl", "mscclpp"}
    for each in found.gains:
        assert each.error >= 1
        assert each.command.startswith("taccl plan --topology dgx-h100 --collective allreduce --sizes ")
    assert "predicted  with NCCL's error" in repr(found)
    assert not any("no log has tested" in note for note in found.notes)


@pytest.mark.slow
def test_no_schedule_is_faster_than_the_launches_of_one_process(log, monkeypatch):
    """If one process launches 8 GPUs in turn, small messages gain nothing; a note names the remedy."""
    monkeypatch.setattr("taccl.explore.possible_gains._GAIN_SIZES", (8,))
    gpus = "".join(GPU.format(rank, rank, "NVIDIA A100-SXM4-80GB") for rank in range(8))
    row = "8 2 float sum -1 35.0\n1024 256 float sum -1 35.0\n"
    text = f"# all_reduce_perf\n# nThread 1 nGpus 8\n{gpus}# size count type redop root time\n{row}"
    (found,) = taccl.diagnose([log(text)], time_limit_s=AMPLE_S).series
    assert [each.predicted_us for each in found.gains] == pytest.approx([34.4, 34.4])
    assert {each.text for each in found.gains} == {"within the error"}
    assert any("run one process for each GPU" in note for note in found.notes)


@pytest.mark.slow
def test_a_verdict_is_made_however_short_the_limit(log):
    """Without any time there is the usual verdict, with a weaker bound; notes say what is left out."""
    path = log(node_log(NVLS))
    (found,), (whole,) = (
        taccl.diagnose([path], **how).series for how in ({"time_limit_s": 1e-6}, {"gains": False})
    )
    assert (found.gains, found.limits) == ((), ())
    assert whole.limits and found.bound_us < whole.bound_us
    assert found.verdict.partition(",")[0] == whole.verdict.partition(",")[0]
    assert set(found.notes) - set(whole.notes) == {
        "time was up before the busiest resources were known; give more time",
        "time was up in the search for better schedules at 8KiB, 512KiB, 256MiB; give more time",
    }


@pytest.mark.slow
def test_the_earlier_name_of_the_limit_works(log):
    """`budget_s` is the time limit, with a warning; 0 seeks no better schedules."""
    path = log(node_log(NVLS))
    with pytest.warns(DeprecationWarning, match="budget_s is time_limit_s now"):
        (found,) = taccl.diagnose([path], budget_s=0).series
    assert found == taccl.diagnose([path], gains=False).series[0]


@pytest.mark.slow
def test_better_schedules_are_sought_briefly(log, monkeypatch):
    """An allreduce takes the first mix of plans, and searches for no better one, which takes seconds."""
    module = sys.modules["taccl.baselines.multiplying"]
    monkeypatch.setattr(module, "soonest_mix", lambda *_: pytest.fail("a search for the best mix"))
    (found,) = taccl.diagnose([log(node_log(NVLS))], time_limit_s=AMPLE_S).series
    assert {each.size_bytes for each in found.gains} == {2**13, 2**19, 2**28}


@pytest.mark.slow
@pytest.mark.usefixtures("_one_gain")
def test_better_schedules_on_several_nodes_are_untested(log):
    """A note says that no log has tested the predicted gains on two nodes."""
    (found,) = taccl.diagnose([log(network_log([NIC] * 8))], "dgx-a100", time_limit_s=AMPLE_S).series
    assert found.gains
    assert any("no log has tested" in note for note in found.notes)


@pytest.mark.slow
def test_better_schedules_have_a_launch_where_the_machine_states_none(log):
    """DGX-1's published constants have no launch cost; predicted times still include one, of 3.6 us or more.

    They have no protocols either, so no schedule is sought for small messages, and a note says so.
    """
    text = node_log(120.0, latency_us=19.0).replace("H100 80GB HBM3", "V100-SXM2-32GB")
    (found,) = taccl.diagnose([log(text)], topology="dgx1").series
    assert found.gains
    assert all(each.predicted_us > 3.6 for each in found.gains)
    assert min(each.size_bytes for each in found.gains) >= 64 * 2**20
    assert any("no better schedules are sought below 64MiB" in note for note in found.notes)


@pytest.mark.slow
def test_ranks_that_take_part_are_chosen(log):
    """`ranks` or `without_ranks` select four of eight GPUs, the number of ranks in the log."""
    lines = node_log(240.0).replace("all_reduce", "all_gather").splitlines()
    text = "\n".join(line for line in lines if "Rank" not in line or int(line.split()[2]) < 4)
    text = text.replace(" sum ", " none ")
    rows = [line.split() for line in text.splitlines() if line.split()[0].isdigit()]
    for cells in rows:
        cells[7] = f"{0.75 * float(cells[6]):.2f}"
    head = [line for line in text.splitlines() if not line.split()[0].isdigit()]
    path = log("\n".join([*head, *(" ".join(cells) for cells in rows)]))
    chosen = taccl.diagnose([path], gains=False, ranks=[0, 1, 4, 5]).series[0]
    others = taccl.diagnose([path], gains=False, without_ranks=[2, 3, 6, 7]).series[0]
    assert chosen.share == others.share
    assert not any("--ranks" in note for note in chosen.notes)


def test_logs_of_several_machines_are_refused(log):
    """Logs of different GPUs in one call are refused."""
    paths = [log(node_log(NVLS)), log(network_log([NIC] * 8), "b.log")]
    with pytest.raises(FormatError, match="diagnose them one at a time"):
        taccl.diagnose(paths)


@pytest.mark.slow
def test_gpus_of_another_machine_are_noted(log):
    """A log of H100 on a topology of A100 is diagnosed, with a note that the GPUs differ."""
    notes = taccl.diagnose([log(node_log(NVLS))], "dgx-a100", gains=False).notes
    assert any("found GPUs NVIDIA H100 80GB HBM3; dgx-a100 has A100" in note for note in notes)


def test_a_mixed_machine_is_refused(log):
    """A log with two kinds of GPUs is refused, as its machine is mixed."""
    text = node_log(NVLS).replace("device 7 [0000:00:00] NVIDIA H100", "device 7 [0000:00:00] NVIDIA A100")
    with pytest.raises(FormatError, match="found mixed GPUs.*; diagnose equal GPUs only$"):
        taccl.diagnose([log(text)])
    with pytest.raises(FormatError, match="equal GPUs only; results were wrong by the log's last lines"):
        taccl.diagnose([log(f"{text}# Out of bounds values : 3 FAILED\n")])


def test_wrong_results_are_part_of_the_verdict(log):
    """A machine with the usual rate and wrong results is not as expected."""
    found = judged(log(f"{node_log(NVLS)}# Out of bounds values : 3 FAILED\n"))
    assert found.verdict.endswith("; results were wrong by the log's last lines (Out of bounds values)")
    assert "wrong" not in judged(log(f"{node_log(NVLS)}# Out of bounds values : 0 OK\n")).verdict


def test_times_of_cpus_are_refused(log):
    """A log of gloo is refused, as it measures CPUs."""
    with pytest.raises(FormatError, match="measured by gloo, which runs on CPUs; expected a log of GPUs"):
        taccl.diagnose([log("backend gloo\n" + node_log(NVLS))])


def _gather_log():
    """Log of a gather on eight H100."""
    text = node_log(NVLS).replace("all_reduce", "gather").replace(" sum ", " none ")
    rows = [line.split() for line in text.splitlines()]
    for cells in rows:
        if cells[0].isdigit():
            cells[7] = f"{7 / 8 * float(cells[6]):.2f}"
    return "\n".join(map(" ".join, rows)) + "\n"


def test_another_collective_is_refused(log):
    """A collective that NCCL's model lacks, gather, is refused."""
    with pytest.raises(FormatError, match="found gather, which no model of NCCL or RCCL covers"):
        taccl.diagnose([log(_gather_log())])


@pytest.mark.slow
def test_another_collective_is_left_out_beside_those_of_the_model(log):
    """In a log of all collectives, a diagnosis and a fit leave out those that NCCL's model lacks, and name
    them."""
    path = log(_gather_log() + node_log(NVLS))
    found = taccl.diagnose([path], gains=False)
    fitted = taccl.fit([path], topology="dgx-h100")
    assert [each.series.collective for each in found.series] == ["allreduce"]
    for notes in (found.notes, fitted.notes):
        assert any("gather: left out, as no model of NCCL or RCCL covers them" in note for note in notes)


@pytest.mark.parametrize(("command", "grade"), [("", "possible"), ("-x NCCL_ALGO=Tree \n", "likely")])
def test_a_slower_algorithm_is_a_cause(log, command, grade):
    """On 8 A100, the rate of trees (78 % of that of rings) may be due to NCCL_ALGO, which the log may show."""
    text = command + node_log(187.0).replace("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB")
    found = judged(log(text))
    (cause,) = (each for each in found.causes if each.of == "rate")
    assert (cause.name, cause.grade) == ("algorithm", grade)


def test_unknown_gpus_ask_for_a_topology(log):
    """GPUs without a machine model are named, with what is missing and the files to give, which are read."""
    said = "found no model of AMD Instinct MI250X: no published log .* give a topology file, such as"
    with pytest.raises(InputError, match=said) as refused:
        taccl.diagnose([log(node_log(20.0).replace("NVIDIA H100 80GB HBM3", "AMD Instinct MI250X"))])
    unread = {each.name for each in TEXTS if "taccl does not read it" in each.advice}
    assert set(re.findall("output of `[^`]+`", str(refused.value))).isdisjoint(unread)


def test_a_topology_may_be_a_path_object(log, tmp_path):
    """A topology file is given by a path object or by its text."""
    taccl.write(taccl.topologies.dgx_h100(), tmp_path / "here.toml")
    found = [
        taccl.diagnose([log(node_log(300.0))], path, time_limit_s=AMPLE_S, gains=False).series[0].verdict
        for path in (tmp_path / "here.toml", str(tmp_path / "here.toml"))
    ]
    assert found[0] == found[1]


def test_partitions_of_gpus_have_no_machine(log):
    """Partitions (MIG) are not judged as the whole GPUs, whose NVLinks they lack."""
    gpu = "NVIDIA A100-SXM4-80GB MIG 3g.40gb"
    with pytest.raises(InputError, match=f"no model of {gpu}: partitions of a GPU .MIG. have no NVLinks"):
        taccl.diagnose([log(node_log(20.0).replace("NVIDIA H100 80GB HBM3", gpu))])


@pytest.mark.parametrize("gpu", ["AMD Radeon Graphics", "NVIDIA Graphics Device"])
def test_gpus_that_the_driver_did_not_know_may_be_any_machine(log, gpu):
    """Logs of MI355X and GB200 have such names: the message lists the machines, one of which the user knows."""
    text = node_log(20.0).replace("NVIDIA H100 80GB HBM3", gpu)
    with pytest.raises(InputError, match=f"no model of {gpu}: the driver did not know them; .* mi355x"):
        taccl.diagnose([log(text)])


@pytest.mark.parametrize(
    ("gpu", "busbw", "verdict"),
    [
        ("NVIDIA H800", 215.0, "as expected"),  # NVIDIA/nccl issue 1374
        ("NVIDIA GeForce RTX 5090", 28.0, "likely GPUs do not talk directly"),  # NVIDIA/nccl issue 1639
        ("NVIDIA GeForce RTX 4090", 25.3, "without a modified driver"),  # with peer-to-peer access
    ],
)
def test_further_gpus_are_judged_by_name(log, gpu, busbw, verdict):
    """GPUs with fewer NVLinks have rates of their own, and cards without peer-to-peer access say so."""
    found = judged(log(node_log(busbw).replace("NVIDIA H100 80GB HBM3", gpu)))
    assert verdict in found.verdict


@pytest.mark.parametrize(("busbw", "grade"), [(9.0, "likely"), (2.2, "possible")])
def test_cards_without_peers_may_have_another_fault(log, busbw, grade):
    """Copies through host memory explain half of the rate of PCIe, but not a tenth: lanes may be missing."""
    text = node_log(busbw).replace("NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 4090")
    found = {each.name: each.grade for each in judged(log(text)).causes}
    assert found["no-peers"] == grade
    assert "p2p-disabled" not in found and ("pcie" in found) == (busbw < 4)
    direct = text + "gpu59:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read\n"
    assert "no-peers" not in {each.name for each in judged(log(direct)).causes}


def test_gpus_of_several_machines_ask_for_one_of_them(log):
    """V100 boards are in several machines: the message names those machines alone."""
    text = node_log(20.0).replace("NVIDIA H100 80GB HBM3", "Tesla V100-SXM2-32GB")
    said = "found Tesla V100-SXM2-32GB, which ndv2 and dgx1 have; name one of them"
    with pytest.raises(InputError, match=said):
        taccl.diagnose([log(text)])


@pytest.mark.slow
def test_other_hosts_than_the_given_nodes_are_said(log):
    """A log of two hosts, judged on four nodes, has a note on the contradiction."""
    found = judged(log(network_log([NIC] * 8)), topology="dgx-a100", nodes=4)
    assert "the log lists 2 hosts, but 4 nodes were given; check --nodes" in found.notes
    assert not any("check --nodes" in note for note in judged(log(network_log([NIC] * 8)), nodes=2).notes)


@pytest.mark.slow
@pytest.mark.parametrize("kept", [0, 1, 3])
def test_assumed_nodes_are_noted_if_hosts_of_ranks_are_not_listed(log, kept):
    """A log of 16 ranks whose list of devices is shortened is judged on two nodes."""
    lines = network_log([NIC] * 8).splitlines()
    listed = [line for line in lines if "Rank" in line]
    text = "\n".join(line for line in lines if line not in listed[kept:-1])
    found = judged(log(text), topology="dgx-a100")
    said = "the log does not list the hosts of all ranks; 2 nodes assumed (--nodes)"
    assert said in found.notes


def test_another_number_of_ranks_is_refused(log):
    """A log of 8 ranks is refused for a topology of 6."""
    with pytest.raises(InputError, match="found 8 ranks; dgx-h100 x1 has 6 here"):
        taccl.diagnose([log(node_log(NVLS))], without_ranks=[6, 7])


@pytest.mark.slow
@pytest.mark.usefixtures("_one_gain")
def test_better_schedules_are_for_the_ranks_of_the_log(log):
    """For a log of eight GPUs in a rack of 72, the suggested command plans for these eight."""
    text = node_log(830.0).replace("NVIDIA H100 80GB HBM3", "NVIDIA GB200")
    found = taccl.diagnose([log(text)], time_limit_s=AMPLE_S).series[0]
    assert found.gains
    assert all("--ranks 0-7 " in each.command for each in found.gains)


#: {published log: (arguments, part of its verdict)}; without verdicts that change with NCCL's model.
PUBLISHED = {
    "unseen/mi300x_azure_x1_allreduce": ({}, "small messages: likely NUMA balancing"),
    "mi300x_x1_allreduce_rccl": ({}, "off the curve"),
    "unseen/dgx2_12gpu_broadcast": ({}, "; as expected"),
    "unseen/dgx2_12gpu_allreduce": ({}, "off the curve: 16MiB"),
    "unseen/l40s_2x1_allreduce": ({}, "8.106 GB/s bus at 8GiB is 100% of what NCCL"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_logs_are_judged_as_their_threads_do(shared_data, name):
    """Published logs are diagnosed as in the discussion threads that contain them.

    The causes are NUMA balancing on a VM, and a late protocol switch on L40S; other nodes are healthy.
    """
    given, said = PUBLISHED[name]
    assert said in judged(str(shared_data / "nccl-tests" / f"{name}.txt"), **given).verdict


@pytest.mark.slow
@pytest.mark.parametrize(("extra", "named"), [(4, {"unaligned"}), (16, set())])
def test_parts_that_are_no_multiples_of_16_bytes_are_named(log, extra, named):
    """If each rank's part of the data is no multiple of 16 bytes, an allgather at 0.6 of the expected rate is
    blamed on that."""
    text = "".join(GPU.format(rank, rank, "NVIDIA A100-SXM4-80GB") for rank in range(8))
    text += "# Collective test starting: all_gather_perf\n#  size  count  type  redop  root  time  algbw  busbw #wrong\n"
    for power in range(7, 29, 3):
        size = 8 * (2**power + extra)
        time_us = 20 + size * 7 / 8 / 144e3
        algbw = size / time_us / 1000
        text += (
            f"  {size}  {size // 4}  float  none  -1  {time_us:.2f}  {algbw:.2f}  {algbw * 7 / 8:.2f}  0\n"
        )
    found = judged(log(text), topology="dgx-a100")
    assert found.share == pytest.approx(0.6, abs=0.02)
    assert rates(found) == named


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "likely", "possible"),
    [
        ("", set(), {"numa-balancing", "one-process"}),
        ("# nThread 1 nGpus 1\n", {"numa-balancing"}, set()),
        ("# nThread 1 nGpus 8\n", set(), set()),
    ],
)
def test_launches_by_one_process_explain_slow_small_messages(log, head, likely, possible):
    """Small messages of 45 us on 8 MI300X are usual for one process, and have two causes if the log does not
    state its processes."""
    text = head + "".join(
        GPU.replace("Pid 1 ", "").format(rank, rank, "AMD Instinct MI300X") for rank in range(8)
    )
    text += "# Collective test starting: all_reduce_perf\n#  size  count  type  redop  root  time  algbw  busbw #wrong\n"
    for size in (8, 1024, 65536, 1 << 30):
        time_us = max(45.0, 40 + size * 14 / 8 / 316e3)
        algbw = size / time_us / 1000
        text += (
            f"  {size}  {size // 4}  float  sum  -1  {time_us:.2f}  {algbw:.2f}  {algbw * 14 / 8:.2f}  0\n"
        )
    causes = judged(log(text), topology="mi300x").causes
    named = {grade: {each.name for each in causes if each.grade == grade} for grade in ("likely", "possible")}
    assert named == {"likely": likely, "possible": possible}


@pytest.mark.slow
@pytest.mark.parametrize("text", [server_xml(90, 18), matrix(18)], ids=["xml", "topo -m"])
def test_files_of_hopper_servers_are_judged_as_the_machine(log, tmp_path, text):
    """On a file of its server, a log has the expected times of the machine, also of small messages.

    The cause of slow rings is that NVLS is off, on NCCL's XML and on a matrix, whose NVLinks have NCCL's rate.
    """
    path = tmp_path / ("h100.xml" if text.startswith("<") else "h100.txt")
    path.write_text(text)
    healthy, named = (judged(log(node_log(NVLS)), topology=on) for on in (str(path), "dgx-h100"))
    assert healthy.share == pytest.approx(named.share, rel=1e-3)
    assert healthy.usual_us == pytest.approx(named.usual_us, rel=1e-3)
    assert "(NVLS, " in healthy.verdict
    assert healthy.verdict.endswith("; as expected")
    rings = judged(log(node_log(RINGS)), topology=str(path))
    assert rings.share == pytest.approx(RINGS / NVLS, rel=0.03)
    assert rates(rings) == {"nvls-off"}


@pytest.mark.slow
def test_a_server_of_a_file_without_names_of_gpus_has_nvls_as_a_guess(log, tmp_path):
    """If the log names no GPUs, notes state that GPUs with 18 NVLinks are assumed to be Hopper with NVLS;
    with 12 NVLinks (A100) nothing is assumed."""
    nameless = "\n".join(line for line in node_log(NVLS).splitlines() if "Rank" not in line)
    for nvlinks, notes in ((18, ["Hopper"]), (12, [])):
        path = tmp_path / f"{nvlinks}.txt"
        path.write_text(matrix(nvlinks))
        found = judged(log(nameless), topology=str(path))
        said = [note for note in found.notes if "NVLS" in note]
        assert [word for word in ("Hopper", "Ampere") for note in said if word in note] == notes


@pytest.mark.slow
@pytest.mark.parametrize("on", ["dgx-a100", "a100.xml"])
def test_half_of_the_nics_are_unused_on_machines_and_files(log, tmp_path, on):
    """A ring at the rate of 4 of 8 NICs is recognised by the rate that messages reach on a NIC, in files too."""
    if on.endswith(".xml"):
        path = tmp_path / on
        path.write_text(server_xml(80, 12, nic_mbit_per_s=200_000))
        on = str(path)
    found = judged(log(network_log([NIC / 2] * 8, name="all_reduce")), topology=on)
    (unused,) = (each for each in found.causes if each.name == "nic-unused")
    assert unused.evidence.endswith("the rate of 4 of 8 NICs")


@pytest.mark.slow
@pytest.mark.parametrize(
    "line", ["Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/0", "Connected all rings, use ring PXN 0 GDR 0"]
)
def test_host_memory_is_in_a_healthy_verdict(log, line):
    """Usual figures do not hide that a log shows a path through host memory between nodes."""
    text = f"host0:1:2 [0] NCCL INFO {line}\n" + network_log([NIC] * 8)
    verdict = judged(log(text)).verdict
    assert "; as expected, but the log " in verdict
    assert verdict.endswith(("without GDRDMA", "GPUDirect RDMA is not used"))
    assert judged(
        log(text.replace("NET/IB/0", "NET/IB/0/GDRDMA").replace("GDR 0", "GDR 1"))
    ).verdict.endswith("expected")


def test_lines_of_a_network_do_not_count_on_one_node(log):
    """A server without InfiniBand names sockets in its log, but its collective does not use them."""
    head = "host0:1:2 [0] NCCL INFO Using network Socket\nhost0:1:2 [0] NCCL INFO use ring PXN 0 GDR 0\n"
    verdict = judged(log(head + node_log(NVLS))).verdict
    assert "the log" not in verdict


@pytest.mark.parametrize(
    "given",
    [
        {"other_nics": OtherNics(4, 92.9, True), "nics_per_node": 8},
        {"untested": "more than 16 nodes"},
        {"path_gb_per_s": 20.0, "busbw_gb_per_s": 20.0},
    ],
)
def test_a_line_of_the_log_is_in_the_verdict_beside_other_explanations(given):
    """Direct copies that the log shows to be off are named, although something else explains the rate."""
    facts = Facts("allreduce", 2, 0.5, stated={"p2p-disabled": "the log says so"}, **given)
    assert ", but the log says so" in conclusion(facts, causes_of(facts), None)


@pytest.mark.slow
@pytest.mark.parametrize("lists", [True, False])
def test_another_number_of_nics_is_the_first_uncertainty(log, lists):
    """The verdict on two nodes of A100 has the rate that is usual with four NICs, where eight are assumed.

    If the log lists the NICs, no other cause is in the verdict. For a machine by name, NICs are unused.
    """
    debug = (
        "host0:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [2]mlx5_2:1/IB [3]mlx5_3:1/IB\n"
    )
    text = (debug if lists else "") + network_log([NIC / 2] * 8, name="all_reduce")
    path = log(text)
    found = judged(path)
    usual = "large messages: 92.3 GB/s are usual with " + (
        "the 4 NICs that the log lists" if lists else "4 NICs"
    )
    assert usual in found.verdict
    assert ("cause unclear" in found.verdict) != lists
    assert not rates(found)
    named = judged(path, topology="dgx-a100")
    assert "are usual with" not in named.verdict
    assert rates(named) == ({"nic-unused"} if lists else set())


@pytest.mark.slow
def test_nics_do_not_explain_a_rate_that_does_not_depend_on_them():
    """Half of the NICs of two racks carry their allreduce as fast, so their number explains no slow one."""
    on = taccl.topologies.gb200_nvl72(nodes=2)
    expected = Expectation(Series("allreduce", 144, 2, (2**33,), (3e4,), "log"), on)
    assert expected.with_nics(36) == pytest.approx(expected.best.time_us)
    assert expected.with_nics(5) is None


def test_forced_algorithms_have_their_own_usual_times(log):
    """With NCCL_ALGO=NVLSTree, small messages take the 67 us of NVLS on two nodes, not the 29 us of trees."""
    command = "mpirun -np 16 -x NCCL_ALGO=NVLSTree ./build/all_reduce_perf -b 8 -e 8G -f 2 -g 1\n"
    gpus = "".join(
        f"#  Rank {rank} Group 0 Pid {rank} on host{rank // 8} device {rank % 8} [0000:00:00] NVIDIA H20\n"
        for rank in range(16)
    )
    rows = "".join(
        f" {size} {size // 4} float sum -1 {time_us} {size / time_us / 1000:.2f} {size / time_us / 533:.2f} 0\n"
        for size, time_us in ((8, 65.0), (1024, 65.0), (2**33, 33500.0))
    )
    free, forced = (judged(log(head + "# all_reduce_perf\n" + gpus + rows)) for head in ("", command))
    assert "65 us where 29.8 are usual; small messages: cause unclear" in free.verdict
    assert forced.verdict.endswith("65 us where 67 are usual; as expected")
    assert "NCCL_ALGO limits the library: usual times are those of nvls" in forced.notes


def test_forced_algorithms_without_a_prediction_are_noted(log):
    """PAT has no prediction for an allreduce, and a profile of the user has none for any algorithm alone."""
    head = "host0:1:2 [0] NCCL INFO NCCL_ALGO set by environment to PAT\n"
    own = "usual times are those of the library's own choice"
    notes = judged(log(head + node_log(NVLS))).notes
    assert f"no times are predicted for the log's NCCL_ALGO (pat), so {own}" in notes
    series, on = Series("allreduce", 8, 1, (2**30,), (5000.0,), "log"), taccl.topologies.dgx_h100()
    assert Expectation(series, on, algorithms=("tree", "pat")).algorithms == {"tree"}
    mine = Expectation(series, replace(on, profile="mine"), algorithms=("tree",))
    assert mine.follows_schedules and not mine.algorithms


@pytest.mark.parametrize(
    ("share", "ratio", "said"),
    [
        (0.65, 1.0, "; large messages: not judged, as predictions may be 3.3 times too fast"),
        (
            0.98,
            2.8,
            "; small messages: not judged, as predictions may be 3 times too fast (no published log of racks confirms them)",
        ),
        (0.98, 1.0, "; as expected"),
    ],
)
def test_kinds_without_a_published_log_are_not_judged(share, ratio, said):
    """On more racks than any log has, the verdict blames nothing that an error of the model may explain."""
    facts = Facts(
        "allreduce", 20, share, ratio, {"ring": share}, untested="more than 3 racks", small_untested="racks",
    )  # fmt: skip
    causes = causes_of(facts)
    assert conclusion(facts, causes, None) == f"{said}; no published log of more than 3 racks"
    assert not [each for each in causes if each.grade == "likely"]
    far = Facts(
        "allreduce", 20, 0.2, 4.0, {"ring": 0.2}, untested="more than 3 racks", small_untested="racks"
    )
    assert "not judged" not in conclusion(far, causes_of(far), None)


@pytest.mark.parametrize(
    ("machine", "nodes", "version", "large", "small"),
    [
        ("dgx-a100", 2, (2, 8), "NCCL 2.8 between nodes", "NCCL 2.8 between nodes"),
        ("dgx-a100", 2, (2, 18), "", ""), ("dgx-a100", 1, (2, 8), "", ""), ("gb200-nvl72", 2, (), "", "small messages between racks"),
    ],
)  # fmt: skip
def test_old_libraries_and_racks_are_untested(machine, nodes, version, large, small):
    """No published log confirms NCCL before 2.12 between nodes, or small messages between racks."""
    on = taccl.topologies.parse(machine, nodes=nodes)
    assert untested_kind(on, version).split(" (")[0] == large
    assert untested_small(on, version).split(" (")[0] == small


@pytest.mark.slow
def test_racks_used_in_part_are_racks():
    """Two racks with 64 of their 72 GPUs are as little tested as two whole racks."""
    part = subset(taccl.topologies.gb200_nvl72(nodes=2), ranks=[*range(64), *range(72, 136)])
    assert untested_small(part, ()) == "small messages between racks"


def test_the_algorithm_of_unjudged_figures_is_named():
    """188 us for small messages on two racks are those of trees, and so is 0.65 of the rate of NVLS on 20."""
    facts = Facts(
        "allreduce", 20, 0.65, 2.8, {"ring": 0.65}, untested="more than 3 racks", small_untested="racks",
        algorithm_shares={"tree": 0.6, "ring": 0.9}, small_ratios={"nvls": 0.48, "tree": 1.01},
    )  # fmt: skip
    said = conclusion(facts, causes_of(facts), None)
    assert "3.3 times too fast (algorithm tree has this rate)" in said
    assert "(no published log of racks confirms them; algorithm tree takes as long)" in said
    series = Series("allreduce", 144, 2, (8, 2**33), (188.0, 25_000.0), "log")
    expected = Expectation(series, taccl.topologies.gb200_nvl72(nodes=2))
    times_us = expected.algorithm_us(8)
    assert times_us["tree"] == pytest.approx(188, rel=0.02)
    assert times_us["nvls"] == pytest.approx(90, rel=0.02)


@pytest.mark.parametrize(("nodes", "is_noted"), [(16, False), (17, True)])
def test_more_nodes_than_any_log_has_are_noted(nodes, is_noted):
    """On more nodes than published logs have, a note says that predictions are not tested."""
    series = Series("allreduce", 4 * nodes, nodes, (8,), (30.0,), "a.log: line 1")
    _, notes = topology_of(series, Machine("t4", nodes), ["Tesla T4"])
    assert ("no published log has tested predictions on more than 16 nodes" in notes) == is_noted


@pytest.mark.slow
def test_the_verdict_begins_with_gpus_that_the_named_machine_lacks(shared_data):
    """A log of H100 that is judged as of DGX A100 says so first; with the right machine it does not."""
    log = str(shared_data / "nccl-tests/h100_oci_x2_allreduce_large.txt")
    said = "found GPUs NVIDIA H100 80GB HBM3; dgx-a100 has "
    assert judged(log, topology="dgx-a100").verdict.startswith(said)
    assert "found GPUs" not in judged(log, topology="dgx-h100").verdict


@pytest.mark.slow
def test_figures_of_another_machine_make_no_cause_likely(log):
    """A log of MI300X at the rate of rings on H100 is no proof that NVLS is off, if it is judged as of H100."""
    text = node_log(RINGS)
    other = text.replace("NVIDIA H100 80GB HBM3", "AMD Instinct MI300X")
    assert rates(judged(log(text), topology="dgx-h100")) == {"nvls-off"}
    found = judged(log(other), topology="dgx-h100")
    assert not rates(found) and "cause unclear (NVLS is off" in found.verdict


def test_a_slow_first_size_does_not_count_as_latency(log):
    """Of two small sizes, the first takes six times as long as the second, which is as expected."""
    gpus = "".join(GPU.format(rank, rank, "NVIDIA H100 80GB HBM3") for rank in range(8))
    usual = taccl.predict("dgx-h100", "allreduce", 8).time_us
    rows = "".join(
        f" {size} {size // 4} float sum -1 {time_us:.1f} {size / time_us / 1e3:.2f} {size / time_us / 571:.2f} 0\n"
        for size, time_us in ((8, 6 * usual), (16, usual), (2**34, 62390.0))
    )
    found = judged(log("# all_reduce_perf\n" + gpus + rows))
    assert found.small_us == pytest.approx(usual, rel=0.01)
    assert "small messages: cause" not in found.verdict


def test_logs_may_be_given_as_path_objects(tmp_path):
    """A path object is opened as its text would be, by `diagnose` and `fit`."""
    for judge in (taccl.diagnose, taccl.fit):
        with pytest.raises(FormatError, match="there is no such file"):
            judge([tmp_path / "none.log"], "dgx-h100")
