"""In-switch sums (NVLS) of imported topologies: which have them, at which rate, and how NCCL's model uses them."""

from dataclasses import replace
from fractions import Fraction

import pytest

import taccl
from taccl.baselines.nccl import nccl, nccl_bounded, nccl_choices
from taccl.baselines.nvls import why_no_nvls
from taccl.formats.nccl.nvidia_smi import load_nvidia_smi
from taccl.formats.nccl.topology import load_nccl_topology
from taccl.topology.in_network import shared_links
from taccl.topology.nvls import with_nvls
from taccl.topology.registry import parse
from tests.nvswitch import matrix, server_xml

#: Rate in GB/s of sums in switches of Hopper, as of dgx-h100 in its default profile.
SUMS = Fraction("370.8") * 17 / 24


@pytest.fixture
def load(tmp_path):
    """Function that writes a file and loads it as NCCL's XML or as a matrix of nvidia-smi."""

    def loaded(text, **given):
        is_xml = text.startswith("<")
        path = tmp_path / ("server.xml" if is_xml else "server.txt")
        path.write_text(text)
        return load_nccl_topology(path, **given) if is_xml else load_nvidia_smi(path, **given)

    return loaded


def algorithms(topology, **given):
    """Algorithms that NCCL's model considers for a large allreduce."""
    problem = taccl.make_problem(topology, "allreduce", size_bytes=2**30)
    return [each.algorithm for each in nccl_choices(problem, **given)]


def sums(topology):
    """Rates in GB/s of the links that reduce or multicast."""
    return {1000 / topology.links[e].beta_us_per_mb for e in shared_links(topology)}


@pytest.mark.parametrize("text", [server_xml(90, 18), matrix(18)], ids=["xml", "topo -m"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_eight_hopper_gpus_sum_in_their_switch(load, text, nodes):
    """For eight Hopper GPUs NCCL's model chooses NVLS unless it is excluded. The rate is the same for both
    formats, and stated as an assumption."""
    topology = load(text, nodes=nodes, nic_gb_per_s=50)
    switched = with_nvls(topology)
    assert sums(switched) == {SUMS}
    assert len(shared_links(switched)) == 16 * nodes
    assert [each for each in switched.assumed if "NVLS" in each] == list(switched.assumed[-1:])
    assert algorithms(topology)[0] == "nvls"
    assert "nvls" not in algorithms(topology, nvls=False)


@pytest.mark.parametrize(
    ("topology", "collective", "why"),
    [
        ("dgx-h100", "allgather", "allreduce only"),
        ("dgx-a100", "allreduce", "no switch of this topology reduces"),
        ("dgx-a100", "allgather", "allreduce only"),
    ],
)
def test_the_reason_for_no_nvls_is_true(topology, collective, why):
    """Machines whose switches reduce lack NVLS because of the collective, others because of their switches."""
    problem = taccl.make_problem(parse(topology), collective, size_bytes=2**20)
    assert "nvls" not in {each.algorithm for each in nccl_choices(problem)}
    assert why in why_no_nvls(problem)


def test_the_schedule_of_an_import_sums_in_its_switch(load):
    """The schedule of an imported topology takes the time that NCCL's model predicts for NVLS, and a note
    states the assumption."""
    problem = taccl.make_problem(load(server_xml(90, 18)), "allreduce", size_bytes=2**30)
    best, *_ = nccl_choices(problem)
    schedule = nccl(problem)
    assert schedule.finish_us == pytest.approx(best.time_us, rel=0.02)
    _, notes = nccl_bounded(problem, schedule, best)
    assert any("assumed: NVSwitch sums data" in note for note in notes)


@pytest.mark.parametrize(
    ("text", "generation"),
    [
        (server_xml(80, 12), ""),
        (server_xml(80, 12), "Hopper"),
        (matrix(12), ""),
        (matrix(18), "Ampere"),
        (matrix(18, gpus=4), ""),
    ],
    ids=["a100 xml", "a100 links", "a100", "named a100", "4 gpus"],
)
def test_other_topologies_get_no_reducing_links(load, text, generation):
    """GPUs before Hopper, servers of fewer GPUs, and rates of no known generation get no reducing links."""
    topology = load(text)
    assert with_nvls(topology, generation) is topology


def test_an_unknown_rate_is_said(load):
    """Ports whose rate is of no known GPU get no sums, and the assumption names the remedy."""
    topology = load(matrix(8))
    found = with_nvls(topology)
    assert not sums(found)
    (said,) = set(found.assumed) - set(topology.assumed)
    assert "sums no data (NVLS), as ports of 200 GB/s are of no known GPU; nvlink_gb_per_s=" in said


def test_a_known_generation_is_no_guess(load):
    """With 8 NVLinks of a known Hopper GPU, sums take 17/24 of NCCL's rate, without an assumption."""
    topology = load(matrix(8))
    switched = with_nvls(topology, "Hopper")
    assert sums(switched) == {8 * Fraction("20.6") * 17 / 24}
    assert switched.assumed == topology.assumed


def test_files_of_nccl_show_the_generation_of_fewer_links(load):
    """Eight NVLinks at NCCL's rate for Hopper (H800) have sums; eight of Ampere's (A800) have none."""
    (rate,) = sums(with_nvls(load(server_xml(90, 8))))
    assert float(rate) == pytest.approx(8 * 20.6 * 17 / 24, rel=1e-3)
    topology = load(server_xml(80, 8))
    assert with_nvls(topology) is topology


def test_faster_links_are_of_blackwell(load):
    """Ports at NCCL's rate for Blackwell make sums at that of b200."""
    topology = load(server_xml(100, 18))
    made = taccl.topologies.b200(nvls=True)
    assert sums(with_nvls(topology)) == sums(made)


def test_lost_ranks_and_machines_by_name_are_unchanged(load):
    """No reducing links are added to seven of eight GPUs, nor to machines given by name, which have models of
    their own."""
    left = load(server_xml(90, 18)).without(ranks=[7])
    named = taccl.topologies.dgx_h100()
    assert with_nvls(left) is left
    assert with_nvls(named) is named
    own = replace(with_nvls(load(server_xml(90, 18))), assumed=())
    assert with_nvls(own) is own
