"""The compiled simulation: times by hand, bounds on schedules, and proofs compared with brute force."""

from itertools import permutations

import numpy as np
import pytest

import taccl
from taccl import Probe, verify
from taccl._internal.deadline import NEVER
from taccl.placement.case import Case
from taccl.placement.fabric import NO_FLOWS, _second_eigenvalue
from taccl.placement.kernel import TOO_LONG, timed
from taccl.placement.placement import Placement
from taccl.topology.builder import TopologyBuilder
from tests.fuzzing import cases


def racks_of_two():
    """Probe of hosts 0, 1 and 2, 3, each pair behind an uplink as fast as a host: 1 us per MB, no latency."""
    ones = np.ones((4, 4))
    return Probe(tuple("abcd"), ones * 1e-9, ones * 1000.0, uplinks=(((0, 1), 1000.0), ((2, 3), 1000.0)))


def random_probe(rng, count):
    """Probe of hosts in two racks, with random latencies and bandwidths."""
    rack = np.arange(count) % 2
    inside = rack[:, None] == rack
    latency = np.where(inside, 5.0, 9.0) * rng.uniform(0.8, 1.2, inside.shape)
    uplinks = tuple((tuple(np.flatnonzero(rack == r).tolist()), 12.5) for r in (0, 1))
    names = tuple(map(str, range(count)))
    return Probe(names, latency, 12.5 * rng.uniform(0.6, 1.0, inside.shape), uplinks=uplinks)


@pytest.mark.parametrize(("order", "us"), [((0, 1, 2, 3), 6), ((0, 2, 1, 3), 12), ((0, 1, 3, 2), 6)])
def test_messages_share_uplinks(order, us):
    """A ring of 4 MB takes 6 steps of 1 MB; if racks alternate, two messages share each uplink in a step."""
    case = Case(racks_of_two(), "allreduce", "ring", 4_000_000)
    assert case.us(case.ticks(order)) == us


def test_python_and_the_kernel_agree():
    """A small case is timed in Python, without compilation, and to the same tick as by the kernel."""
    case = Case(racks_of_two(), "allreduce", "halving-doubling", 4_000_000)
    order = (3, 1, 0, 2)
    assert case.ticks(order, compiled=False) == case.ticks(order)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ring", "rings:2", "hierarchical:4"])
def test_paths_of_flows_give_the_same_times(algorithm):
    """Messages over copied paths of flows end at the same ticks as over the paths of all pairs."""
    rng = np.random.default_rng(3)
    for hosts in (random_probe(rng, 16), taccl.topologies.parse("torus:4x4"), uneven(rng, 16)):
        case = Case(hosts, "allreduce", algorithm, 4_000_000)
        assert len(case.relaxed.flows.src), "each flow has many messages"
        paths_of_pairs = case.messages, case.fabric.paths, case.relaxed._replace(flows=NO_FLOWS)
        order, room, other = rng.permutation(16), case.room(), case.room()
        assert timed(*case.arrays, order, TOO_LONG, room) == timed(*paths_of_pairs, order, TOO_LONG, other)
        assert (room.end == other.end).all()


@pytest.mark.slow
@pytest.mark.parametrize(("collective", "algorithm"), [("allreduce", "ring"), ("alltoall", "pairwise")])
def test_a_case_of_some_orders_gives_the_same_times(collective, algorithm):
    """Cases with only the paths of two orders time these orders as a case with all paths does."""
    probe = random_probe(np.random.default_rng(4), 16)
    case = Case(probe, collective, algorithm, 4_000_000)
    orders = tuple(range(16)), tuple(reversed(range(0, 16, 2))) + tuple(range(1, 16, 2))
    few = Case(probe, collective, algorithm, 4_000_000, like=case, only=orders)
    assert (len(few.fabric.paths.link) < len(case.fabric.paths.link)) == (algorithm == "ring")
    assert [few.ticks(each) for each in orders] == [case.ticks(each) for each in orders]


@pytest.mark.slow
def test_cutoff_gives_up():
    """An order that takes 12 us is rejected with a cutoff of 11 us, but not with a cutoff of 12 us."""
    case = Case(racks_of_two(), "allreduce", "ring", 4_000_000)
    order, ticks = np.array((0, 2, 1, 3)), case.ticks_per_us

    def within(us):
        return timed(*case.arrays, order, us * ticks, case.room())

    assert within(11) == TOO_LONG
    assert within(12) == 12 * ticks


def uneven(rng, count):
    """Random topology whose links have three rates and latencies; some links share a resource.

    On such a fabric, an error in the holds of resources changes times.
    """
    builder = TopologyBuilder("uneven", [0] * count)
    out, into = ([builder.add_resource(f"{way} {r}") for r in range(count)] for way in ("out", "in"))
    shared = builder.add_resource("shared")
    for src, dst in permutations(range(count), 2):
        beta, alpha = int(rng.choice([1, 2, 5])), int(rng.choice([0, 1, 10]))
        link = builder.add_link(src, dst, alpha_us=alpha, beta_us_per_mb=beta)
        builder.add_hold(link, out[src], alpha_us=0, beta_us_per_mb=beta)
        builder.add_hold(link, into[dst], alpha_us=0, beta_us_per_mb=beta, side="receive")
        if rng.random() < 0.3:
            builder.add_hold(link, shared, alpha_us=0, beta_us_per_mb=1)
    return builder.build()


def test_second_eigenvalue_of_circulant_matrices():
    """The Laplacian of a ring of 6 has 2 - 2 cos 60 deg = 1, by transform and by a general method."""
    ring = 2 * np.eye(6) - np.roll(np.eye(6), 1, axis=0) - np.roll(np.eye(6), -1, axis=0)
    order = [0, 3, 1, 4, 2, 5]
    assert [_second_eigenvalue(ring), _second_eigenvalue(ring[np.ix_(order, order)])] == pytest.approx([1, 1])


def placed(case, order):
    """Placement of a case's ranks in the given order, with all times 0."""
    return Placement(case.topology, case.algorithm, case.size_bytes, tuple(order), 0.0, 0.0, 0.0)


STOCK = [
    ("ring", "allreduce"), ("halving-doubling", "allreduce"), ("double-tree", "allreduce"),
    ("pairwise", "alltoall"), ("hierarchical", "allreduce"), ("rings:2", "allgather"),
    ("rings:2", "reduce-scatter"),
]  # fmt: skip


@pytest.mark.slow
def test_the_simulated_time_is_the_finish_of_a_verified_schedule():
    """On irregular fabrics times equal the schedule's finish to the tick; relaxed times are never later."""
    for seed in cases("placement: the simulated time is the finish of a schedule", few=14, many=400):
        rng = np.random.default_rng(seed)
        name, collective = STOCK[seed % len(STOCK)]
        topology = uneven(rng, 6) if seed % 2 else random_probe(rng, 6).topology()
        case = Case(topology, collective, name, ("1KB", "1MB")[seed // 2 % 2])
        order = rng.permutation(6).tolist()
        schedule, ticks = placed(case, order).schedule(), case.ticks(order, compiled=False)
        assert verify(schedule).ok
        assert schedule.finish_us == case.us(ticks)
        assert case.ticks(order, compiled=False, is_relaxed=True) <= ticks


def test_steps_of_a_pairwise_exchange_are_in_its_schedule():
    """The steps of a pairwise exchange are kept in its schedule.

    Three ranks exchange 3 MB, 1 MB in each of 2 steps; one link of 5 us per MB delays both steps.
    """
    builder = TopologyBuilder("t", [0, 0, 0])
    for src, dst in permutations(range(3), 2):
        builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=5 if (src, dst) == (0, 1) else 1)
    case = Case(builder.build(), "alltoall", "pairwise", 3_000_000)
    schedule = placed(case, range(3)).schedule()
    # Ranks 0 and 1 end their first step after 5 us, and their second after 6; the links alone would allow 5.
    assert schedule.finish_us == case.us(case.ticks(range(3))) == 6
    assert verify(schedule).ok


@pytest.mark.slow
@pytest.mark.parametrize(("name", "collective"), [("pairwise", "alltoall"), ("rings:2", "allreduce")])
def test_no_schedule_of_another_order_refutes_a_proof(name, collective):
    """No schedule of any of the 24 orders of 4 hosts finishes before the proven optimum or the bound."""
    for seed in range(3):
        topology = uneven(np.random.default_rng(seed), 4)
        found = taccl.reorder(topology, collective, name, "100KB", seed=seed)
        case = Case(topology, collective, name, "100KB")
        finishes = [placed(case, order).schedule().finish_us for order in permutations(range(4))]
        assert found.proven
        assert found.schedule().finish_us == found.after_us == min(finishes)
        assert found.bound_us <= min(finishes)


def test_proof_is_the_best_of_all():
    """Branch and bound finds the best of all 120 orders of 5 hosts, and reports it as proven."""
    for seed in cases("placement: proof is the best of all", few=4, many=100):
        rng = np.random.default_rng(seed)
        case = Case(random_probe(rng, 5), "allreduce", ("ring", "halving-doubling")[seed % 2], "1MB")
        best = min(case.ticks(order) for order in permutations(range(5)))
        start = tuple(range(5))
        found, ticks, proven = case.prove((start, case.ticks(start)), NEVER)
        assert proven
        assert case.ticks(found) == ticks == best


def test_open_hosts_bound_all_choices():
    """The time of a partial order (-1: undecided host) is at most that of every order that completes it."""
    for seed in cases("placement: open hosts bound all choices", few=4, many=200):
        rng = np.random.default_rng(seed)
        case = Case(random_probe(rng, 5), "allreduce", ("ring", "double-tree")[seed % 2], "1MB")
        for number in range(5):
            part = [*range(number), *[-1] * (5 - number)]
            bound = case.ticks(part)
            assert all(
                bound <= case.ticks((*range(number), *rest)) for rest in permutations(range(number, 5))
            )


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ring", "double-tree:4", "halving-doubling"])
def test_loads_that_are_compared_first_change_no_search(monkeypatch, algorithm):
    """The load of the busiest resource, compared first, rejects an order only if its makespan would, too."""
    found = []
    for fewest in (0, 10**9):
        monkeypatch.setattr("taccl.placement.fabric._FEW_FLOWS", fewest)
        case = Case(random_probe(np.random.default_rng(3), 8), "allreduce", algorithm, "1MB")
        found.append(case.search(range(8), seed=1, effort=0.02))
    assert found[0] == found[1]
