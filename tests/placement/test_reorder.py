"""`reorder`: gains on clouds, notes where there is none, and refusals."""

from importlib import import_module

import numpy as np
import pytest

import taccl
from taccl.errors import InputError
from taccl.placement.case import Case
from taccl.topology.transform import relabel
from tests.effort import brief_synthesis
from tests.fuzzing import MANY
from tests.placement.clouds import cloud


def crossings(order, rack):
    """Number of the ring's steps that leave a rack."""
    places = [rack[host] for host in order]
    return sum(a != b for a, b in zip(places, [*places[1:], places[0]], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("racks", [(7, 4, 3, 2), *([(4, 4, 4, 4)] if MANY else [])])
def test_a_ring_leaves_each_rack_once(racks):
    """From latencies with 10 % noise the racks are found, and the ring visits them one after another."""
    truth, probe, rack = cloud(racks, seed=1, noise=0.1)
    found = taccl.reorder(probe, "allreduce", "ring", "100MB", time_limit_s=3600)
    assert crossings(found.order, rack) == len(racks)
    case = Case(truth, "allreduce", "ring", "100MB")
    # 30 steps of 6.25 MB at 12.5 GB/s, and 20 us where the slowest step leaves a rack: 15.6 ms.
    assert case.us(case.ticks(found.order)) == pytest.approx(30 * (500 + 20), rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "racks"), [("halving-doubling", (4, 4, 4, 4)), *([("ring", (6, 4, 4, 2))] if MANY else [])]
)
def test_the_gain_is_recovered_from_latencies(algorithm, racks):
    """The probe's order recovers 95 % of the gain of the best order found on the true fabric."""
    for seed in range(4 if MANY else 1):
        truth, probe, _ = cloud(racks, seed=seed, noise=0.1)
        case = Case(truth, "allreduce", algorithm, "100MB")
        before = case.ticks(range(16))
        best = taccl.reorder(truth, algorithm=algorithm)
        found = case.ticks(taccl.reorder(probe, algorithm=algorithm, time_limit_s=3600).order)
        assert before - found >= 0.95 * (before - min(found, case.ticks(best.order)))


@pytest.mark.parametrize("name", ["fully-connected:8", "dgx2"])
def test_nothing_to_gain_if_all_hosts_are_equal(name):
    """On a symmetric fabric the given order is proven optimal."""
    found = taccl.reorder(taccl.topologies.parse(name))
    assert found.order == tuple(range(len(found.order)))
    assert found.proven
    assert found.before_us == found.after_us == found.bound_us
    assert found.why.startswith("nothing to gain: proven: no order is simulated faster than the one given")


@pytest.mark.slow
def test_the_order_given_is_never_made_worse():
    """If the given order is good, it is kept or improved."""
    truth, _, _ = cloud((3, 3, 3), seed=2)
    first = taccl.reorder(truth)
    again = taccl.reorder(relabel(truth, np.argsort(first.order).tolist()))
    assert again.before_us == first.after_us
    assert again.after_us <= again.before_us
    assert first.bound_us <= first.after_us <= first.before_us


@pytest.mark.slow
def test_up_to_ten_ranks_the_order_is_proven():
    """9 hosts in 3 racks meet the bound: no order is faster."""
    truth, _, _ = cloud((3, 3, 3), seed=2)
    found = taccl.reorder(truth)
    assert found.proven
    assert found.bound_us == found.after_us < found.before_us
    assert "no order is simulated faster" in found.why


@pytest.mark.slow
def test_one_seed_gives_one_order():
    """Two searches with one seed give the same order."""
    truth, _, _ = cloud((4, 3, 4), seed=3)
    one, other = (taccl.reorder(truth, algorithm="ring", seed=5).order for _ in range(2))
    assert one == other


@pytest.mark.slow
def test_renaming_hosts_renames_the_order():
    """If the optimum is proven, the time does not depend on the numbering of hosts."""
    truth, _, _ = cloud((3, 2, 3), seed=4)
    moved = relabel(truth, np.random.default_rng(0).permutation(8).tolist())
    assert taccl.reorder(moved).after_us == taccl.reorder(truth).after_us


@pytest.mark.slow
def test_a_schedule_of_ours_is_placed():
    """A schedule for racks in order, placed on shuffled hosts, is as fast there as on its own topology."""
    home, _, rack = cloud((2, 2, 2, 2))
    schedule = taccl.baselines.ring(taccl.make_problem(home, "allreduce", size_bytes="8MB"), cut=False)
    away, _, _ = cloud((2, 2, 2, 2), seed=0)
    found = taccl.reorder(away, "allreduce", schedule, "8MB")
    at_home = Case(home, "allreduce", schedule, "8MB")
    assert found.after_us <= at_home.us(at_home.ticks(range(8)))
    program = taccl.lower(schedule)
    assert taccl.reorder(home, "allreduce", program, "8MB").order


@pytest.mark.slow
def test_an_alltoall_is_bounded_by_its_uplinks():
    """Any placement of an alltoall is bounded by the racks' uplinks; pairwise nearly meets that bound.

    Whichever 4 of 8 ranks are in a rack, 16 of 64 pieces leave it.
    """
    truth, _, _ = cloud((4, 4))
    found = taccl.reorder(truth, "alltoall", "pairwise", "64MB")
    # 16 MB through an uplink of 12.5 GB/s take 1280 us.
    assert found.bound_us >= 1280 * (1 - 1e-6)
    assert found.after_us <= 1.5 * found.bound_us


def test_a_time_limit_still_gives_an_answer():
    """Under any time limit an order is returned."""
    truth, _, _ = cloud((4, 4, 4), seed=1)
    found = taccl.reorder(truth, time_limit_s=1e-6)
    assert sorted(found.order) == list(range(12))
    assert found.after_us <= found.before_us


def test_a_time_limit_may_leave_no_bound(monkeypatch):
    """After the time limit, ports of all pairs of hosts are not computed for a lower bound."""
    monkeypatch.setattr(import_module("taccl.placement.reorder"), "_LEAST_BOUND_S", 0.0)
    monkeypatch.delattr("taccl.placement.fabric.HostFabric._ports")
    found = taccl.reorder(taccl.topologies.mesh(4, 4), time_limit_s=1e-6)
    assert found.bound_us == 0 and not found.proven


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"size": "many"}, "size: found 'many'"),
        ({"collective": "scan"}, "collective: found 'scan'; ring is for"),
    ],
)
def test_bad_input_is_an_error_of_one_sentence(options, complaint):
    """The error for invalid input of `reorder` states what was found and what is expected."""
    with pytest.raises(InputError, match=complaint):
        taccl.reorder(taccl.topologies.ring(4), **options)


@pytest.mark.parametrize("protocol", ["ll", "simple"])
def test_protocol_of_an_algorithm_determines_the_costs(protocol):
    """Schedules and programs of a protocol are timed by its costs, as `lift` does."""
    topology = taccl.topologies.parse("dgx-h100", nodes=1)
    problem = taccl.make_problem(topology.under(protocol), "allgather", size_bytes=65536)
    schedule = taccl.baselines.ring(problem, cut=False)
    program = taccl.lower(schedule)
    lifted = taccl.lift(program, topology=topology, size=65536)
    for each in (schedule, program):
        case = Case(topology, "allgather", each, 65536)
        assert case.us(case.ticks(range(8), compiled=False)) == pytest.approx(lifted.finish_us)
        assert case.topology.protocol == protocol


def test_a_schedule_of_other_ranks_is_refused():
    """A schedule of eight ranks is refused for four hosts."""
    schedule = taccl.baselines.ring(
        taccl.make_problem(taccl.topologies.ring(8), "allgather", size_bytes="1MB")
    )
    with pytest.raises(InputError, match="a schedule of 8 ranks for 4 hosts"):
        taccl.reorder(taccl.topologies.ring(4), "allgather", schedule)


@pytest.mark.slow
def test_what_is_known_is_shown():
    """A placement is shown as text, as plain values, and in a notebook."""
    truth, _, _ = cloud((3, 3), seed=1)
    found = taccl.reorder(truth)
    assert repr(found).startswith("Placement(ring allreduce of 100MB on probe: simulated before ")
    assert found.to_dict()["order"] == list(found.order)
    assert "no order is simulated faster" in found._repr_html_()


def two_pods():
    """Probe of four racks of two hosts; the first and third rack share an uplink, and so do the others."""
    rack = np.repeat(np.arange(4), 2)
    inside, pod = rack[:, None] == rack, rack % 2
    groups = [np.flatnonzero(rack == each) for each in range(4)] + [np.flatnonzero(pod == p) for p in (0, 1)]
    uplinks = tuple((tuple(ranks.tolist()), 12.5) for ranks in groups)
    names = tuple(f"vm{number}" for number in range(8))
    probe = taccl.Probe(names, np.where(inside, 10.0, 20.0), np.full((8, 8), 12.5), uplinks=uplinks)
    return probe.topology()


@pytest.mark.slow
def test_our_ring_keeps_pods_together():
    """The ring baseline leaves each pod once, and so finishes no later than a ring in the order that
    `reorder` finds, both timed exactly."""
    topology = two_pods()
    problem = taccl.make_problem(topology, "allreduce", size_bytes="100MB")
    ours = taccl.baselines.ring(problem, cut=False)
    assert ours.finish_us <= taccl.reorder(topology).schedule().finish_us * (1 + 1e-9)


@pytest.mark.slow
def test_our_own_schedule_loses_to_no_ring():
    """A synthesized allreduce of 100 MB is no slower than the ring baseline in the same number of chunks."""
    problem = taccl.make_problem(two_pods(), taccl.collectives.allreduce(8), size_bytes="100MB")
    ours = brief_synthesis(problem, backend="greedy", seed=0)
    assert ours.schedule.finish_us <= taccl.baselines.ring(problem, cut=False).finish_us


def test_hosts_of_a_probe_are_placed_without_their_topology():
    """Costs come from the probe's arrays; the topology, with a link for each pair, is built on demand."""
    _, probe, _ = cloud((2, 2), seed=0)
    found = taccl.reorder(probe, size="8MB", time_limit_s=3600)
    assert "topology" not in vars(found.hosts)
    assert found.topology is found.hosts.topology


@pytest.mark.parametrize("name", ["ring", "halving-doubling", "double-tree:4"])
def test_costs_as_arrays_are_those_of_the_topology(name):
    """Any order takes the same time on a probe's arrays as on the links of its topology."""
    _, probe, _ = cloud((3, 3, 2), seed=0, noise=0.1)
    arrays, links = (Case(probe, "allreduce", name, "1MB", on_links=on) for on in (False, True))
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(8).tolist()
        ours, theirs = (each.us(each.ticks(order, compiled=False)) for each in (arrays, links))
        assert ours == theirs
        assert arrays.limits(order, 1)[0] == links.limits(order, 1)[0]
