"""Maximum bandwidth of NCCL's trees: the number of channels times the maximum for each channel."""

import pytest

import taccl
from taccl.baselines.nccl import nccl, nccl_choices
from taccl.formats.nccl.nvidia_smi import load_nvidia_smi
from taccl.formats.nccl.topology import load_nccl_topology
from taccl.measure.channel_limits import few_channels, tree_limit_gb_per_s
from taccl.measure.predict import costs_of
from taccl.measure.series import Series
from tests.nvswitch import matrix, server_xml

pytestmark = pytest.mark.filterwarnings("ignore::taccl.errors.AssumptionWarning")


@pytest.fixture
def server(tmp_path):
    """Function that loads NCCL's XML of a server."""

    def loaded(sm, nvlinks, nodes, **given):
        path = tmp_path / "server.xml"
        path.write_text(server_xml(sm, nvlinks, **given))
        return load_nccl_topology(path, nodes=nodes)

    return loaded


@pytest.mark.parametrize(
    ("sm", "nvlinks", "nodes", "mbit", "limit"),
    [
        (80, 12, 2, 200_000, 8 * 23.6 / 2),
        (80, 12, 4, 200_000, 8 * 17.8 / 2),
        (90, 18, 2, 400_000, 8 * 41.4 / 2),
        (80, 12, 1, 200_000, 12 * 24.0 / 2),
        (60, 4, 2, 200_000, float("inf")),
    ],
    ids=["a100 x2", "a100 x4", "h100 x2", "a100 x1", "unknown rate"],
)
def test_the_limit_is_of_all_channels(server, sm, nvlinks, nodes, mbit, limit):
    """The limit counts all channels: eight for eight NICs, or six of 40 GB/s, each split in two, for 240 GB/s
    in a node."""
    topology = server(sm, nvlinks, nodes, nic_mbit_per_s=mbit)
    assert tree_limit_gb_per_s(topology) == pytest.approx(limit)


def test_files_and_machines_have_the_same_limit(server, tmp_path):
    """An A100 server as XML, as a matrix of nvidia-smi and by name has one limit."""
    path = tmp_path / "matrix.txt"
    path.write_text(matrix(12))
    found = (
        server(80, 12, 2, nic_mbit_per_s=200_000),
        load_nvidia_smi(path, nodes=2, nic_gb_per_s=25),
        taccl.topologies.dgx_a100(2),
    )
    assert {tree_limit_gb_per_s(each) for each in found} == {8 * 23.6 / 2}


def test_machines_without_nccl_have_no_limit():
    """RCCL's tuning, and fabrics by name, have no limit for each channel."""
    assert tree_limit_gb_per_s(taccl.topologies.mi300x(2)) == float("inf")
    assert tree_limit_gb_per_s(taccl.topologies.ring(4)) == float("inf")


@pytest.mark.slow
@pytest.mark.parametrize("by_name", [True, False], ids=["name", "file"])
def test_two_nodes_of_a100_use_rings(server, by_name):
    """A large allreduce on 2 x 8 A100 uses rings, as in published logs: trees carry 94.4 GB/s, rings 106.7."""
    on = taccl.topologies.dgx_a100(2) if by_name else server(80, 12, 2, nic_mbit_per_s=200_000)
    problem = taccl.make_problem(on, "allreduce", size_bytes=2**30)
    best, *others = nccl_choices(problem)
    tree = next(each for each in others if each.algorithm == "tree")
    assert best.algorithm == "ring"
    assert (best.gb_per_s, tree.gb_per_s) == pytest.approx((200 * 8 / 15, 94.4), rel=0.01)


@pytest.mark.slow
def test_the_schedule_of_a_tree_has_its_limit(server):
    """Links of a tree's schedule have the limited rate, so the schedule takes the time of the formula."""
    problem = taccl.make_problem(server(80, 12, 2, nic_mbit_per_s=200_000), "allreduce", size_bytes=2**14)
    best, *_ = nccl_choices(problem)
    assert best.algorithm == "tree"
    assert nccl(problem).predicted_us == pytest.approx(best.time_us, rel=0.1)


def test_few_channels_limit_messages_in_large_jobs():
    """On B200, 128 ranks leave one channel to a message between nodes; 16 ranks leave four, enough for a NIC.

    A message that fills the NIC anyway has more, and one far below the rate of a channel has another cause.
    """
    clauses = [
        few_channels(
            costs_of("b200"),
            Series("point-to-point", 8 * nodes, nodes, (2**30,), (2**30 / (1000 * rate),), "a.log"),
            version=(2, 29),
        )
        for nodes, rate in ((2, 15.0), (16, 15.0), (16, 46.0), (16, 7.0))
    ]
    assert clauses == [
        "",
        "NCCL 2.29 gives a message between nodes 1 channel of about 14 GB/s among 128 ranks",
        "",
        "",
    ]
