"""Switches that reduce: their links, the resources that these links occupy, and their files."""

from dataclasses import replace
from fractions import Fraction

import pytest

from taccl import collectives
from taccl.analysis.simulation.simulate import simulate
from taccl.analysis.verification.verify import verify
from taccl.errors import TopologyError
from taccl.problem.making import make_problem
from taccl.schedule.timing import exact_times
from taccl.topologies import InNetwork, Topology, dgx_h100, gb200_nvl72, parse
from taccl.topology.file_writer import dump_topology
from taccl.topology.files import load_topology
from taccl.topology.in_network import PROFILES

SWITCH = "schema = 1\nranks_per_node = 4\n[[switch]]\nranks = [0, 1, 2, 3]\nbandwidth_gb_per_s = 10\n"


def loaded(folder, text):
    """Topology of a file with the given text."""
    path = folder / "mine.toml"
    path.write_text(text)
    return load_topology(path)


def summed_at_rank_0(topology, *, num_chunks=1, megabytes=1):
    """Schedule of an allreduce: the switch adds each chunk on its way to rank 0, then multicasts it."""
    into, out = (e for e, link in enumerate(topology.links) if len(link.ends) > 5 and 0 in (link.src, link.dst)
                 and (link.dsts == (0,) or link.srcs == (0,)))  # fmt: skip
    collective = collectives.allreduce(topology.num_ranks).split(num_chunks)
    problem = make_problem(topology, collective, chunk_bytes=megabytes * 10**6)
    chunks = range(collective.num_chunks)
    return exact_times(
        problem, chunk=[*chunks, *chunks], link=[into] * len(chunks) + [out] * len(chunks),
        sequence=[*range(2 * len(chunks))], reduce=[True] * len(chunks) + [False] * len(chunks), producer="test",
    )  # fmt: skip


def test_a_link_of_several_ends_shares_the_port_of_each():
    """A reduction of ranks 1, 2, 3 into 0 holds their ports out, 0's port in, and its own resource."""
    topology = dgx_h100(1, nvls=True)
    into, out = topology.switches[0].links[-16], topology.switches[0].links[-15]
    assert (topology.links[into].ends, topology.links[out].ends) == ("1,2,3,4,5,6,7->0", "0->1,2,3,4,5,6,7")
    ordinary = {h.resource for e in range(56) for h in topology.holds_of_link[e] if h.resource != e}
    for link in (into, out):
        held = {hold.resource for hold in topology.holds_of_link[link]}
        assert len(held & ordinary) == 8


def test_sums_pass_at_the_efficiency_of_the_switch():
    """Sums in a switch have part of a port's rate.

    On Hopper they reach 0.85 of 450 GB/s on 5 of 6 channels: 2.22 / (0.85 * 5/6) us/MB.
    """
    topology = dgx_h100(1, nvls=True, profile="nominal", constants={"nvswitch_alpha_us": 0})
    assert topology.links[-1].beta_us_per_mb == Fraction(1000, 450) / (Fraction("0.85") * Fraction(5, 6))
    assert topology.links[-1].alpha_us == 0
    assert topology.switches[0].reduces == PROFILES["nvls-hopper"]


@pytest.mark.slow
def test_blackwell_adds_too_and_ampere_does_not():
    """Racks of 72 have 72 reduction and 72 multicast links; DGX-A100 refuses nvls."""
    assert sum(len(link.srcs) > 1 for link in gb200_nvl72(1, nvls=True).links) == 72
    with pytest.raises(TopologyError, match="dgx-a100: nvls: found True, but dgx-a100 has none"):
        parse("dgx-a100", nvls=True)


def test_the_pool_is_what_all_sums_share(tmp_path):
    """All sums of a switch share its pool of slots; multicasts do not use it.

    4 slots of 1,000 bytes per 10 us are 0.4 GB/s, or 2,500 us/MB; multicasts have the port's 10 GB/s.
    """
    text = SWITCH + "[switch.reduces]\nslots = 4\npayload_bytes = 1000\nrtt_us = 10\n"
    topology = loaded(tmp_path, text)
    into = [e for e, link in enumerate(topology.links) if len(link.srcs) > 1]
    pools = {h.resource for e in into for h in topology.holds_of_link[e]} - {
        h.resource for e in range(12) for h in topology.holds_of_link[e]
    }
    pools = {r for r in pools if sum(h.resource == r for h in topology.holds) == 4}
    assert [topology.resources[pool].name for pool in pools] == ["pool (switch)"]
    assert {topology.links[e].beta_us_per_mb for e in into} == {2500}
    assert {hold.beta_us_per_mb for hold in topology.holds if hold.resource in pools} == {2500}
    assert topology.links[-1].beta_us_per_mb == 100
    assert topology.links[-1].alpha_us == 5


def test_sums_of_a_switch_verify_and_take_what_they_hold(tmp_path):
    """Sums in a switch hold its ports and its pool, and their schedule verifies.

    Four chunks of 1 MB at 10 GB/s enter rank 0 in sequence, 100 us each; the last leaves in 100 more.
    """
    schedule = summed_at_rank_0(loaded(tmp_path, SWITCH + "reduces = {}\n"))
    verify(schedule).raise_if_failed()
    assert schedule.finish_us == 5 * 100


def test_two_ranks_have_nothing_to_add_on_the_way(tmp_path):
    """A switch of two ranks has no reduction links, only its two ordinary links."""
    topology = loaded(tmp_path, SWITCH.replace("[0, 1, 2, 3]", "[0, 1]") + "reduces = 'sharp'\n")
    assert len(topology.links) == 2


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_files_keep_what_a_switch_adds(tmp_path, name):
    """Topology files and plain values of every known switch give the same topology again."""
    topology = loaded(tmp_path, SWITCH + f"reduces = '{name}'\n")
    assert topology.switches[0].reduces == PROFILES[name]
    again = loaded(tmp_path, dump_topology(topology))
    assert again.switches == topology.switches
    assert set(again.links) == set(topology.links)
    assert Topology.from_dict(topology.to_dict()) == topology


def test_a_node_of_few_lines_may_have_such_a_switch(tmp_path):
    """`reduces` of a node is accepted only if its fabric is a switch."""
    text = (
        "schema = 1\n[node]\ngpus = 4\nfabric = 'switch'\nbandwidth_gb_per_s = 9\nreduces = 'nvls-hopper'\n"
    )
    assert len(loaded(tmp_path, text).links) == 12 + 8
    with pytest.raises(TopologyError, match="found reduces in a ring; only a switch reduces"):
        loaded(tmp_path, text.replace("'switch'", "'ring'"))
    machine = "schema = 1\nmachine = 'dgx-h100'\nnvls = true\n"
    assert loaded(tmp_path, machine) == dgx_h100(1, nvls=True)


def test_another_profile_of_a_machine_keeps_its_switch():
    """Simulated under its machine's own profile, a schedule over NVLink SHARP keeps its finish."""
    schedule = summed_at_rank_0(dgx_h100(1, nvls=True))
    assert simulate(schedule, profile=schedule.problem.topology.profile).finish_us == schedule.finish_us


def test_a_switch_loses_what_its_lost_ranks_took_part_in():
    """Without rank 7 no reduction or multicast link remains, as each included it."""
    left = dgx_h100(1, nvls=True).without(ranks=[7])
    assert not any(len(link.srcs) + len(link.dsts) > 2 for link in left.links)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"slots": 0}, "slots: found 0; expected a whole number of at least 1"),
        ({"slots": 4}, "slots: found slots without payload_bytes and an rtt_us above 0"),
        ({"slots": 4, "payload_bytes": 8, "rtt_us": 0}, "slots: found slots without"),
        ({"dtype": "int7"}, "dtype: found 'int7'; expected"),
        ({"efficiency": 0}, "efficiency: found 0; expected a part of the bandwidth"),
        ({"efficiency": 2}, "efficiency: found 2; expected a part"),
        ({"rtt_us": -1}, "rtt_us: found -1"),
    ],
)
def test_what_no_switch_can_do_is_refused(said, error):
    """The error for an impossible switch names the field, what was found, and what is expected."""
    with pytest.raises(TopologyError, match=error):
        InNetwork(**said)
    with pytest.raises(TopologyError, match=error):
        replace(InNetwork(), **said)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("reduces = 'nvl'", "expected one of switchml-10g"),
        ("reduces = 3", "found 3; expected a name such as 'nvls-hopper', or slots"),
        (
            "reduces = { slot = 3 }",
            "found 'slot'; expected a name such as 'nvls-hopper', or slots, payload_bytes",
        ),
        ("reduces = { slots = 0 }", "slots: found 0"),
    ],
)
def test_files_say_where_a_switch_is_wrong(tmp_path, text, error):
    """The error for a wrong switch in a file names file and field, and what to write instead."""
    with pytest.raises(TopologyError, match=error) as caught:
        loaded(tmp_path, SWITCH + text)
    assert "mine.toml: switch[0].reduces" in str(caught.value)
