"""Prediction of NCCL's choice, and its schedule."""

import re

import pytest

import taccl
import taccl.measure.predict
import taccl.topology.transform
from benchmarks.fit import baseline_row
from taccl._internal.units import format_us
from taccl.baselines import nccl, nccl_choices
from taccl.baselines.nccl import choice_gap, model_gap, nccl_bounded, nccl_candidate, scheduled
from taccl.errors import CollectiveError
from taccl.topology.builder import TopologyBuilder
from taccl.topology.registry import parse
from tests.effort import quick_fits
from tests.formats.nccl.servers import load_quietly
from tests.fuzzing import MANY, by_turns, thinned
from tests.measure.logs import row


def problem_of(topology, collective="allreduce", size=2**20):
    """The problem of a collective of the given size."""
    return taccl.make_problem(topology, collective, size_bytes=size)


def test_the_model_by_hand():
    """The predicted time of a ring under LL equals the sum computed by hand.

    The terms are launch and base latency, 14 hops of 0.6 us, and 1.75 times the bytes at the ring's rate.
    """
    topology = taccl.topologies.dgx_h100(profile="nccl")
    (found,) = (
        each
        for each in nccl_choices(problem_of(topology))
        if (each.algorithm, each.protocol) == ("ring", "ll")
    )
    beta = topology.under("ll").links[0].beta_us_per_mb
    assert found.latency_us == pytest.approx(1.8 + 6.6 + 14 * 0.6)
    assert found.time_us == pytest.approx(found.latency_us + 1.75 * 2**20 / 1e6 * float(beta))


@pytest.mark.slow
def test_protocols_follow_one_another():
    """As messages grow, the best protocol changes from one of low latency to one of high bandwidth."""
    topology = taccl.topologies.dgx_h100(profile="nccl")
    sizes = 8, 2**24, 2**30
    best = [nccl_choices(problem_of(topology, size=size), nvls=False)[0].protocol for size in sizes]
    assert best == ["ll", "ll128", "simple"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("collective", "nodes"),
    by_turns(["allreduce", "allgather", "reduce-scatter", "broadcast", "alltoall"], [1, 2]),
)
def test_the_schedule_is_valid_under_the_protocol_chosen(collective, nodes):
    """The schedule is valid under the chosen protocol, and its producer names algorithm and protocol."""
    problem = problem_of(taccl.topologies.dgx_h100(nodes, profile="nccl"), collective)
    best, found = nccl_choices(problem)[0], nccl(problem)
    assert taccl.verify(found).ok
    assert found.problem.topology.protocol == best.protocol
    assert found.producer.startswith(f"nccl ({best.algorithm}, {best.protocol}, {best.channels} channels: ")


def test_one_ring_takes_what_the_model_says():
    """Behind a switch a ring takes the model's time: launch, 14 hops and 14 chunks."""
    problem = problem_of(taccl.topologies.dgx_h100(profile="nccl"), size=2**30)
    (best, *_) = nccl_choices(problem, nvls=False)
    assert nccl(problem, nvls=False).predicted_us == pytest.approx(best.time_us, rel=1e-3)


@pytest.mark.slow
def test_eight_ranks_that_are_all_linked_have_seven_rings():
    """Seven rings use all links of a mesh of eight.

    They have 448 GB/s per rank, so 448 * 4 / 7 of algorithm bandwidth.
    """
    problem = problem_of(taccl.topologies.mi300x(profile="nominal"), size=7 * 2**27)
    assert nccl(problem).algbw_gb_per_s == pytest.approx(448 * 4 / 7, rel=1e-6)


def test_switches_that_add_are_used():
    """NVLS is chosen where switches reduce.

    Each byte goes to the switch and back once, at 450 GB/s with 0.85 efficiency on 5 of 6 channels. The last
    piece's way back comes on top.
    """
    problem = problem_of(taccl.topologies.dgx_h100(profile="nominal", nvls=True), size=2**30)
    best, found = nccl_choices(problem)[0], nccl(problem)
    promised_us = 2**30 / 450e3 / (0.85 * 5 / 6)
    assert (best.algorithm, best.gb_per_s) == ("nvls", pytest.approx(450 * 0.85 * 5 / 6))
    assert taccl.verify(found).ok
    assert promised_us < found.finish_us < 1.05 * promised_us
    assert promised_us < best.time_us < 1.05 * promised_us


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "nodes", "size"),
    [
        ("nccl-topo/aws-p4d-24xl-topo.xml", 2, 2**16),  # the link between its CPUs limits it
        ("nccl-topo/azure-ndv4-topo.xml", 1, 2**20),  # links of PCIe switches
        ("nccl-topo/azure-ndv5-topo.xml", 2, 2**20),  # a link between CPUs that few messages use
        ("nccl-topo/azure-ndv2-topo.xml", 2, 2**16),  # one NIC, near to two GPUs
        ("reported/smi/ragged.txt", 2, 2**20),  # PCIe switches with two GPUs and two NICs
    ],
)
def test_alltoalls_of_servers_from_files_take_what_the_model_says(shared_data, file, nodes, size):
    """Alltoalls through shared links inside servers are valid, and within 10 % of the model's time."""
    rates = {"nic_gb_per_s": 12.5} if file.endswith(".txt") else {}
    problem = problem_of(load_quietly(shared_data / file, nodes=nodes, **rates), "alltoall", size)
    found = nccl(problem)
    assert taccl.verify(found).ok
    assert found.predicted_us == pytest.approx(nccl_choices(problem)[0].time_us, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "nodes", "size"),
    [
        *(("dgx-h100", nodes, size) for nodes, size in ((2, 2**26), (4, 2**24))),
        ("b200", 3, 2**26),
        *([("dgx-h100", 8, 2**26)] if MANY else []),
    ],
)
def test_sums_in_switches_take_what_the_model_says(machine, nodes, size):
    """Schedules of NVLS on several nodes are valid, and within 5 % of the time that the model predicts."""
    problem = problem_of(parse(machine, nodes=nodes), size=size)
    way = nccl_candidate(problem, "nvls", "simple")
    found = scheduled(problem, way)
    assert taccl.verify(found).ok and way.algorithm == "nvls"
    assert found.predicted_us == pytest.approx(way.time_us, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "algorithm", "protocol", "latency_us"),
    [
        # Launch, base, 14 hops in nodes and 2 hops between nodes, which EFA delays by 67 us each.
        ("p4d.24xlarge", "tree", "ll", 1.8 + 6.6 + 0.2 + 14 * 0.6 + 2 * (5.0 + 67)),
        ("p5.48xlarge", "nvls", "simple", 1.8 + 8.4 + 25 + 2 * (20.9 + 2 * 18)),
        ("dgx-h100", "nvls", "simple", 1.8 + 8.4 + 25 + 2 * 20.9),
    ],
)
def test_hops_between_nodes_have_the_latency_of_their_algorithm(machine, algorithm, protocol, latency_us):
    """Trees and NVLS have NCCL's latencies between nodes, to which the network of a cloud adds its own once."""
    problem = problem_of(parse(machine, nodes=2), size=1)
    found = {(each.algorithm, each.protocol): each.latency_us for each in nccl_choices(problem)}
    assert found[algorithm, protocol] == pytest.approx(latency_us, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2])
def test_switches_that_can_add_do_by_default(nodes):
    """A plain H100 machine includes NVLS by default; it can be turned off."""
    problem = problem_of(taccl.topologies.dgx_h100(nodes), size=2**28)
    best = nccl_choices(problem)[0]
    assert best.algorithm == "nvls"
    assert "nvls" not in {each.algorithm for each in nccl_choices(problem, nvls=False)}
    found = nccl(problem)
    assert taccl.verify(found).ok
    bounded, notes = nccl_bounded(problem, found, best)
    assert len(bounded.topology.links) > len(problem.topology.links)
    assert any("--no-nvls" in note for note in notes)


@pytest.mark.slow
def test_a_prediction_that_differs_is_a_note():
    """If `predict` expects another time of NCCL, a note has it; changed machines, which it does not know, have
    no such note."""
    problem = problem_of(taccl.topologies.dgx_a100(2), size=10**6)
    best = nccl_choices(problem)[0]
    expected = taccl.measure.predict.predict("dgx-a100", "allreduce", 10**6, nodes=2)
    assert expected.time_us > 1.1 * best.time_us
    said = f"NCCL itself is expected to take {format_us(expected.time_us)} on dgx-a100"
    _, notes = nccl_bounded(problem, nccl(problem), best)
    assert any(note.startswith(said) and "from measured logs" in note for note in notes)
    slower = taccl.topology.transform.degraded(problem.topology, {(0, 8): 0.5})
    changed = problem_of(slower, size=10**6)
    _, notes = nccl_bounded(changed, nccl(changed), nccl_choices(changed)[0])
    assert not any("NCCL itself" in note for note in notes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "nodes", "size"),
    [("dgx-h100", 2, 10**6), ("dgx-h100", 2, 16 * 10**6), ("dgx-a100", 2, 10**6), ("mi300x", 1, 2**16)],
)
def test_one_choice_on_machines_by_name(monkeypatch, machine, nodes, size):
    """The first candidate has the algorithm and protocol of `predict`, and a note says which other one is
    faster on the topology's links.

    On 2 x 8 GPUs with rails, 144 links suffice to tell the machine; without rails it would have 256.
    """
    monkeypatch.setattr("taccl.topology.parts.MAX_LINKS", 144)
    problem = problem_of(parse(machine, nodes=nodes), size=size)
    expected = taccl.measure.predict.predict(machine, "allreduce", size, nodes=nodes)
    able = nccl_choices(problem)
    assert (able[0].algorithm, able[0].protocol) == (expected.algorithm, expected.protocol)
    best = min(able, key=lambda each: each.time_us)
    note = choice_gap(problem.topology, able)
    assert bool(note) == (best is not able[0])
    assert not note or f"although {best.algorithm}, {best.protocol} has a shorter modelled time" in note


@pytest.mark.slow
def test_one_candidate_is_that_of_all():
    """A candidate by algorithm and protocol is that of all; NCCL's choice stands in for one that is missing."""
    problem = problem_of(taccl.topologies.dgx_h100(nodes=2, nvls=True), size=2**20)
    able = nccl_choices(problem)
    assert [nccl_candidate(problem, each.algorithm, each.protocol) for each in able] == list(able)
    assert nccl_candidate(problem, "pat", "simple") == able[0]


@pytest.mark.slow
def test_notes_on_gpus_of_amd_name_rccl():
    """On MI300X the baseline stands for RCCL, as a note says, and no note on rings claims a figure of NCCL."""
    problem = problem_of(taccl.topologies.mi300x(2), size=4 * 10**6)
    able = nccl_choices(problem)
    schedule = scheduled(problem, able[0])
    _, notes = nccl_bounded(problem, schedule, able[0])
    assert notes[0] == "nccl stands for RCCL, the library of these GPUs"
    slower = schedule.problem.topology, (able[0]._replace(time_us=1000.0), *able[1:])
    told = [*notes, choice_gap(*slower), model_gap(schedule, able[0]._replace(time_us=1.0))]
    assert all(told)
    assert not any(re.search(r"\bNCCL\b", said) for said in told)


@pytest.mark.slow
def test_changed_machines_have_the_fastest_choice():
    """A machine that `predict` does not know has the fastest candidate first, which needs no note."""
    slower = taccl.topology.transform.degraded(taccl.topologies.dgx_h100(), {(0, 1): 0.5})
    able = nccl_choices(problem_of(slower, size=10**6))
    assert able[0] == min(able, key=lambda each: each.time_us)
    assert choice_gap(slower, able) == ""


@pytest.mark.slow
def test_a_note_does_not_explain_a_faster_library_by_slower_links():
    """If `predict` expects NCCL to be faster than the schedule, the note says so, and to compare with it."""
    problem = problem_of(taccl.topologies.b200(4), size=10**9)
    best = nccl_choices(problem)[0]
    _, notes = nccl_bounded(problem, scheduled(problem, best, cut=False), best)
    (said,) = (note for note in notes if note.startswith("NCCL itself"))
    assert "less than this schedule" in said
    assert "links' rates" not in said


def test_changed_machines_keep_their_switches():
    """A topology with a removed link has no NVLS."""
    topology = taccl.topology.transform.without(taccl.topologies.dgx_h100(), links=[(0, 1)])
    assert "nvls" not in {each.algorithm for each in nccl_choices(problem_of(topology))}


@pytest.mark.slow
@pytest.mark.parametrize("nodes", thinned([2, 3]))
def test_nodes_whose_switches_add_are_joined_by_trees(nodes):
    """NVLS nodes are joined by trees, over which NICs share the data.

    Each of eight NICs carries an eighth of the data: once each way for two nodes, one and a half times for
    three, whose trees are chains.
    """
    problem = problem_of(taccl.topologies.dgx_h100(nodes, nvls=True), size=2**30)
    best, found = nccl_choices(problem)[0], nccl(problem)
    assert best.algorithm == "nvls"
    assert taccl.verify(found).ok
    assert found.predicted_us == pytest.approx(best.time_us, rel=0.1)


@pytest.mark.slow
def test_the_protocol_that_was_seen_is_taken(tmp_path, _quick_fits):
    """At the sizes of a log, a profile fitted to it uses the log's protocol; at other sizes it considers all
    fitted protocols."""
    sizes = tuple(2**power for power in range(3, 30, 3))
    rows = (row(size, 15.0 if size < 2**16 else 60.0 + size / 200e3) for size in sizes)
    (tmp_path / "a.log").write_text("# all_reduce_perf\n" + "\n".join(rows))
    (tmp_path / "mine.toml").write_text(taccl.fit([str(tmp_path / "a.log")], "dgx-h100").to_toml())
    topology = taccl.topologies.dgx_h100(profile=str(tmp_path / "mine.toml"))
    assert {each.protocol for each in nccl_choices(problem_of(topology, size=2**12))} == {"ll"}
    assert len({each.protocol for each in nccl_choices(problem_of(topology, size=2**33))}) > 1


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (lambda: problem_of(taccl.topologies.ring(4), "scan"), "nccl has no scan; it has allreduce"),
        (
            lambda: problem_of(TopologyBuilder("one", [0]).build(), taccl.collectives.allgather(1)),
            "at least two ranks",
        ),
    ],
)
def test_what_nccl_lacks_is_refused(problem, said):
    """A collective that NCCL lacks, and a single rank, are refused in one sentence."""
    with pytest.raises(CollectiveError, match=said):
        nccl(problem())


@pytest.mark.slow
@pytest.mark.parametrize(
    "log", ["p5_x1_allreduce_aws_batch", *(["mi300x_x1_allreduce_rccl"] if MANY else [])]
)
def test_fitted_profiles_predict_their_logs(shared_data, log):
    """Times of NCCL's schedule under a fitted profile differ from the log's times by at most 15 %
    (median)."""
    with quick_fits():
        assert baseline_row(shared_data / "nccl-tests", log)["met"]


@pytest.mark.slow
def test_the_bound_is_of_links_that_no_algorithm_slows():
    """The bound uses the full bandwidth, though NCCL's model gives trees 0.92 of it."""
    topology = taccl.topologies.dgx_h100(2, profile="nccl")
    problem = problem_of(topology, size=2**12)
    chosen = nccl_choices(problem)[0]
    bounded, notes = nccl_bounded(problem, nccl(problem), chosen)
    assert chosen.algorithm == "tree"
    assert bounded.topology.links == topology.under(chosen.protocol).links
    slowed = nccl(problem).problem.topology
    assert slowed.links != bounded.topology.links and not bounded.topology.assumed
    assert any("links have tree's rates in NCCL's tables" in each for each in slowed.assumed)
    assert any("links have tree's rates in NCCL's tables" in note for note in notes)
    assert f"protocol {chosen.protocol} is the choice of NCCL here, for finish and bound" in notes
