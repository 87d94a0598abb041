"""Lines of NCCL_DEBUG=INFO show or exclude causes of slow collectives."""

import pytest

from taccl.measure.debug_lines import debug_facts


def facts_of(*lines):
    """Facts that lines state, after the host, process, thread and device that NCCL prints."""
    return debug_facts("\n".join(f"node-0:41200:41300 [0] NCCL INFO {line}" for line in lines))


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("Using network Socket", "sockets"),
        ("Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/0", "gdr-off"),
        ("Connected all rings, use ring PXN 0 GDR 0", "gdr-off"),
        ("NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'", "gdr-off"),
        ("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", "p2p-disabled"),
        ("NVLS multicast support is not available on dev 0 (NVLS_NCHANNELS 0)", "nvls-off"),
        ("NCCL_NVLS_ENABLE set by environment to 0.", "nvls-off"),
        ("NCCL_MNNVL_ENABLE set by environment to 0.", "mnnvl-off"),
        ("comm 0x55 rank 0 nRanks 72 nNodes 18 localRanks 4 localRank 0 MNNVL 0", "mnnvl-off"),
        ("NCCL_ALGO set by environment to Ring", "nvls-off"),
        ("NCCL_P2P_DISABLE set by environment to 1.", "p2p-disabled"),
        ("NCCL_P2P_LEVEL set by environment to LOC", "p2p-disabled"),
        ("NCCL_NET_GDR_LEVEL set by environment to LOC", "gdr-off"),
        ("NCCL_ALGO set by environment to ^NVLS,NVLSTree", "nvls-off"),
        ("Channel 00/0 : 7[7] -> 8[0] [send] via NET/AWS Libfabric/0", "gdr-off"),
        ("NCCL_PROTO set by environment to LL", "protocol"),
        ("NCCL_PROTO set by environment to ^Simple", "protocol"),
    ],
)
def test_a_line_shows_a_cause(line, cause):
    """Each of these lines is evidence of one cause; a set algorithm is one by itself, too."""
    assert set(facts_of(line).causes) - {"algorithm"} == {cause}


@pytest.mark.parametrize("host", ["a3-TCPX-0", "FasTrak-1", "cxi"])
def test_hosts_name_no_network(host):
    """The name of a host before the message is no evidence of a network."""
    assert debug_facts(f"{host}:41200:41300 [0] NCCL INFO Using network IB").network == ""


@pytest.mark.parametrize(
    ("line", "causes"),
    [
        ("mpirun -np 8 -x NCCL_ALGO=Tree ./build/all_reduce_perf -b 8", {"algorithm", "nvls-off"}),
        ("NCCL_PROTO='LL' ./all_reduce_perf -g 8", {"protocol"}),
        ("    -x NCCL_P2P_DISABLE=1 \\", {"p2p-disabled"}),
        ("export NCCL_NVLS_ENABLE=0", {"nvls-off"}),
        ("mpirun -x NCCL_NET=Socket ./all_reduce_perf", {"sockets"}),
        ("mpirun -x NCCL_IB_DISABLE=1 ./all_reduce_perf", {"sockets"}),
        ("mpirun -x NCCL_IB_DISABLE=1 -x FI_PROVIDER=cxi ./all_reduce_perf", set()),
        ("someone proposed NCCL_NVLS_ENABLE=0, which is not set here", set()),
    ],
)
def test_a_command_shows_causes(line, causes):
    """Commands that set variables are evidence, too; sentences about variables are not."""
    assert set(debug_facts(line).causes) == causes


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.4<0>", "sockets"),
        ("Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/0/GDRDMA(PCI)", "gdr-off"),
        ("Channel 00/0 : 7[7] -> 8[0] [send] via NET/A Plugin/0/GDRDMA", "gdr-off"),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read", "p2p-disabled"),
        ("NVLS comm 0x55d0 headRank 0 nHeads 8 buffSize 1048576", "nvls-off"),
        ("Connected NVLS tree", "nvls-off"),
    ],
)
def test_a_line_excludes_a_cause(line, cause):
    """A line that shows the healthy path excludes its fault."""
    assert facts_of(line).excluded == {cause}


@pytest.mark.parametrize(
    "line",
    [
        "NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)",
        "NCCL_PROTO set by environment to LL,LL128,Simple",
        "NCCL_ALGO set by environment to NVLS,Ring",
        "NCCL_P2P_DISABLE set by environment to 0.",
        "NCCL_ALGO set by environment to ^Tree",
        "NCCL_PROTO set by environment to ^LL128",
        "NCCL_NET_GDR_LEVEL set by environment to SYS",
        "Channel 00/02 :    0   1   2   3",
    ],
)
def test_usual_lines_show_nothing(line):
    """Lines of healthy runs show no cause."""
    assert not facts_of(line).causes


def test_nics_are_counted():
    """Each rank lists the NICs of its node; the shortest list counts."""
    whole, part = "[0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/IB/SHARP", "[0]mlx5_0:1/IB/SHARP"
    found = facts_of(*(f"NET/IB : Using {each} [RO]; OOB ib0:10.0.0.4<0>" for each in (whole, part)))
    assert (found.num_nics, found.network) == (1, "infiniband")


def test_some_paths_through_host_memory_are_counted():
    """Channels without GDRDMA are counted; paths over SHM beside P2P neither show nor exclude a cause."""
    found = facts_of(
        "Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/0/GDRDMA",
        "Channel 01/0 : 3[3] -> 12[4] [send] via NET/IB/4",
        "Channel 00/0 : 0[0] -> 1[1] via P2P/IPC",
        "Channel 00 : 3[3] -> 4[4] via SHM/direct/direct",
    )
    assert list(found.causes) == ["gdr-off"]
    assert "1 of 2" in found.causes["gdr-off"]
    assert not found.excluded


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NCCL version 2.8.3+cuda11.2", (2, 8)),
        ("# nccl-tests version 2.17.6 nccl-headers=22803 nccl-library=22803", (2, 28)),
        ("RCCL version : 2.27.3", (2, 27)),
        ("# rccl-tests version 2.17.9-develop:4a65e8d rccl-headers=22707 rccl-library=22803", (2, 28)),
        ("# AAC10, RCCL 2.22.3, ROCm 6.4.2", (2, 22)),
        ("# RCCL 2.22.3 is older than this\nRCCL version 2.20.5+hip6.2 HEAD:d380693+", (2, 20)),
        ("ROCm version : 6.4.2.0-120-e7d83f5", ()),
    ],
)
def test_the_version_of_the_library_is_read(text, version):
    """The version is in a line of the library, in the header of new nccl-tests, or in a remark."""
    assert debug_facts(text).version == version


@pytest.mark.parametrize(
    ("value", "algorithms"),
    [
        ("NVLSTree", {"nvls"}),
        ("Ring,Tree", {"ring", "tree"}),
        ("^NVLS", set()),
        ("CollnetDirect,Ring", set()),
    ],
)
def test_forced_algorithms_are_read(value, algorithms):
    """NCCL_ALGO in a command or a line names algorithms as predictions do; other values limit nothing."""
    assert debug_facts(f"mpirun -x NCCL_ALGO={value} all_reduce_perf").algorithms == algorithms
    assert (
        debug_facts(f"a:1:1 [0] NCCL INFO NCCL_ALGO set by environment to {value}.").algorithms == algorithms
    )


@pytest.mark.parametrize(
    ("line", "num_nics"),
    [
        ("mpirun -x NCCL_IB_HCA=mlx5_0:1,mlx5_1:1,mlx5_4:1 ./all_reduce_perf", 3),
        ("    -x NCCL_IB_HCA=mlx5_0\\,mlx5_1 \\", 2),
        ("export NCCL_IB_HCA='=mlx5_0,mlx5_1,mlx5_1'", 2),
        ("n:1:2 [0] NCCL INFO NCCL_IB_HCA set by environment to ionic_0,ionic_1", 2),
        ("export NCCL_IB_HCA=mlx5", 0),
        ("export NCCL_IB_HCA=^mlx5_0,mlx5_1", 0),
        ("some try NCCL_IB_HCA=mlx5_0,mlx5_1 here", 0),
    ],
)
def test_nics_that_a_command_chooses_are_counted(line, num_nics):
    """NCCL_IB_HCA with several full names states the number of NICs, unless lines of the library do."""
    assert debug_facts(line).num_nics == num_nics
    listed = "n:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>"
    assert debug_facts(f"{line}\n{listed}").num_nics == 1
