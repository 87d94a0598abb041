"""Greedy synthesis for large problems: the compiled kernel, its arrays, and the driver."""

import random
from dataclasses import replace

import numpy as np
import pytest

import taccl
from taccl import collectives
from taccl._internal.deadline import Deadline
from taccl.analysis.verification.verify import verify
from taccl.errors import CollectiveError
from taccl.problem.collectives import together
from taccl.problem.making import make_problem
from taccl.problem.problem import Clauses
from taccl.schedule.schedule import Schedule
from taccl.synthesis.kernels.fabric import Demand, make_demand, make_fabric, problem_arrays
from taccl.synthesis.kernels.limits import Limits
from taccl.synthesis.proposers import spreading
from taccl.synthesis.proposers.spreading import Rule, spread
from taccl.topology.builder import TopologyBuilder
from taccl.topology.transform import without
from tests.fuzzing import some
from tests.synthesis.proposers.random_problems import (
    problem_of,
    random_collective,
    random_sizes,
    ring_with_chords,
)
from tests.synthesis.small_problems import linked

MB = 10**6
topologies = taccl.topologies


def solve(problem, *, rules=None, **limits):
    """The schedule that `spread` finds, as columns."""
    fabric, demand = problem_arrays(problem)
    return spread(fabric, demand, Limits(**limits), rules=rules)


def verified(problem, **options):
    """The schedule, after the verifier accepted it and its finish equals the kernel's."""
    found = solve(problem, **options)
    schedule = Schedule(problem, found.chunk, found.link, found.start, producer="greedy")
    assert verify(schedule).violations == ()
    assert schedule.finish_ticks == found.finish_ticks
    return schedule


def faults_of_columns(problem, found):
    """Faults of a schedule's columns by array arithmetic over all sends, for chunks of one size."""
    topology, costs = problem.topology, problem.costs
    src = np.array([e.src for e in topology.links])
    dst = np.array([e.dst for e in topology.links])
    units = int(costs.chunk_units[0])
    took = costs.link_alpha + units * costs.link_beta
    chunk, link, start = found.chunk.astype(np.int64), found.link, found.start.astype(np.int64)
    never = np.iinfo(np.int64).max
    there = np.full((len(costs.chunk_units), topology.num_ranks), never)
    np.minimum.at(there, (chunk, dst[link]), start + took[link])
    for c, each in enumerate(problem.collective.chunks):
        there[c, list(each.origins)] = 0
    faults = []
    if (there[chunk, src[link]] > start).any():
        faults.append("absent")
    if any((there[c, list(e.destinations)] == never).any() for c, e in enumerate(problem.collective.chunks)):
        faults.append("missing")
    length = costs.hold_alpha + units * costs.hold_beta
    holds_of_link = [[] for _ in topology.links]
    for h, hold in enumerate(topology.holds):
        holds_of_link[hold.link].append(h)
    parts = []
    for i in range(max(map(len, holds_of_link))):
        row = np.array([hs[i] if i < len(hs) else -1 for hs in holds_of_link])
        used = row[link] >= 0
        h = row[link[used]]
        receives = np.array([hold.side == "receive" for hold in topology.holds])[h]
        begin = start[used] + np.where(receives, took[link[used]] - length[h], 0)
        resource = np.array([hold.resource for hold in topology.holds])[h]
        parts.append(np.stack((resource, begin, begin + length[h])))
    rows = np.concatenate(parts, axis=1)
    rows = rows[:, np.lexsort((rows[1], rows[0]))]
    if ((rows[0, 1:] == rows[0, :-1]) & (rows[1, 1:] < rows[2, :-1])).any():
        faults.append("overlap")
    return faults


def test_links_are_looked_at_while_any_chunk_may_start():
    """If the time from a send's start to its use of a NIC depends on its size, the longest counts for a start.

    The NIC of rank 2 receives 5 MB until 5 us. From 10 us on it receives 1 MB over the slow link, which rank 1
    has from 1 us on. A chunk of 1 byte over that link would occupy the NIC almost from its start.
    """
    builder = TopologyBuilder("two links into a NIC", [0] * 4)
    nic = builder.add_resource("NIC")
    for src, dst, beta in ((0, 2, 1), (1, 2, 10), (2, 0, 1), (3, 1, 1)):
        link = builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=beta)
        if dst == 2:
            builder.add_hold(link, nic, alpha_us=0, beta_us_per_mb=1, side="receive")
    chunks = collectives.custom(
        4, precondition={0: [0], 1: [3], 2: [2]}, postcondition={0: [2], 1: [2], 2: [0]}
    )
    problem = problem_of(builder.build(), chunks, chunk_bytes=[5 * MB, MB, 1])
    fabric, _ = problem_arrays(problem)
    assert sorted(fabric.hold_lead) == [0, 5 * MB * 9]
    assert sorted(fabric.group_lead) == [0, 9]
    assert verified(problem, rules=[Rule("in-turn")]).finish_us == 11


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(some(20, 60)))
def test_random_problems_verify(seed):
    """Random topologies, collectives, alpha meanings, sizes and rules give valid schedules."""
    rng = random.Random(seed)
    topology = ring_with_chords(rng)
    names = ["allgather", "broadcast", "scatter", "gather", "alltoall"]
    collective = random_collective(
        rng, topology.num_ranks, names, most_chunks=5, most_targets=topology.num_ranks
    )
    sizes = random_sizes(rng, collective) if rng.random() < 0.4 else MB
    rule = Rule(rng.choice(["in-turn", "fewest-first"]), rng.choice((0.0, 1.0, 2.0)), rng.random() < 0.5)
    verified(problem_of(topology, collective, chunk_bytes=sizes), rules=[rule], seed=seed)


@pytest.mark.parametrize(
    ("topology", "rounds"),
    [
        # Both ranks send to each other in one round.
        (topologies.ring(2), 1),
        # Three chunks over two links into each rank.
        (topologies.ring(4), 2),
        # Three chunks through one port, and no rank waits.
        (topologies.star(4), 3),
        # A corner of 8 x 8 receives 63 chunks over 2 links.
        pytest.param(topologies.mesh(8, 8), 32, marks=pytest.mark.slow),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_an_allgather_meets_its_bound(topology, rounds):
    """An allgather takes the bound's number of rounds, 0.5 us + 20 us each."""
    problem = problem_of(topology, collectives.allgather(topology.num_ranks))
    assert verified(problem).finish_us == rounds * 20.5


def test_pipelined_alpha_does_not_hold_the_link():
    """A pipelined link is free before its chunk arrives: the second chunk starts at 20 us, not 30, and
    arrives at 50."""
    topology = linked("pair", [0, 0], [(0, 1)], alpha_us=10, beta_us_per_mb=20, alpha_meaning="pipelined")
    problem = problem_of(topology, collectives.broadcast(2, chunks_per_rank=2))
    assert verified(problem).finish_us == 50


def test_shared_ingress_is_taken_without_a_gap():
    """A shared ingress is held without a gap.

    Ranks 1 and 2 send to 0 over one NIC after 10 us of alpha: 20 us each, and the last send ends at 50.
    """
    builder = TopologyBuilder("nic", [0, 1, 2])
    nic = builder.add_resource("NIC")
    for src in (1, 2):
        link = builder.add_link(src, 0, alpha_us=10, beta_us_per_mb=20)
        builder.add_hold(link, nic, alpha_us=0, beta_us_per_mb=20, side="receive")
    assert verified(problem_of(builder.build(), collectives.custom(
        3, precondition={0: [1], 1: [2]}, postcondition={0: [0], 1: [0]}
    ))).finish_us == 50  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "topology",
    [
        topologies.mesh(12, 12),
        topologies.mesh(10, 10, bandwidth_gb_per_s=(75, 50)),
        topologies.mesh(10, 10, alpha_meaning="pipelined"),
        topologies.dgx_h100(8, profile="nominal"),
        topologies.dgx2(4),
        without(topologies.torus(9, 9), links=[(0, 1)]),
    ],
    ids=lambda t: t.name,
)
def test_larger_fabrics_by_arithmetic(topology):
    """Every send follows its chunk's arrival, all ranks get all chunks, and no resource is held twice."""
    problem = problem_of(topology, collectives.allgather(topology.num_ranks))
    assert faults_of_columns(problem, solve(problem)) == []


def test_arithmetic_check_sees_faults():
    """The arithmetic check finds a send before its data, an overlap, and a missing send."""
    problem = problem_of(topologies.ring(4), collectives.allgather(4))
    found = solve(problem)
    assert faults_of_columns(problem, found) == []
    early = np.zeros_like(found.start)
    moved = replace(found, start=early)
    assert faults_of_columns(problem, moved) == ["absent", "overlap"]
    short = replace(found, chunk=found.chunk[:-1], link=found.link[:-1], start=found.start[:-1])
    assert "missing" in faults_of_columns(problem, short)


@pytest.mark.slow
def test_every_rank_receives_a_chunk_once():
    """An allgather of n ranks is n * (n - 1) sends."""
    found = solve(problem_of(topologies.torus(6, 6), collectives.allgather(36)))
    pairs = {(c, e) for c, e in zip(found.chunk.tolist(), found.link.tolist(), strict=True)}
    assert len(found.chunk) == len(pairs) == 36 * 35


def test_columns_are_compact():
    """Stored columns take two bytes per chunk number, and four per link and start."""
    found = solve(problem_of(topologies.mesh(4, 4), collectives.allgather(16)))
    assert [a.dtype for a in (found.chunk, found.link, found.start)] == [np.uint16, np.int32, np.int32]


@pytest.mark.slow  # compiles the kernel once more
def test_long_times_need_eight_bytes():
    """A time beyond 2**31 ticks gives wider starts, and the same schedule."""
    topology = linked("slow", [0, 0, 0], ((0, 1), (1, 2)), alpha_us="0.000001", beta_us_per_mb=3000)
    problem = problem_of(topology, collectives.broadcast(3))
    assert verified(problem).finish_ticks == 2 * 3000000001
    assert solve(problem).start.dtype == np.int64


@pytest.mark.slow
def test_many_events_of_many_sizes():
    """Pipelined links keep more events in the heap than its initial size, and it grows."""
    builder = TopologyBuilder("long", [0, 0], alpha_meaning="pipelined")
    builder.add_link(0, 1, alpha_us=10**4, beta_us_per_mb=1)
    sizes = [MB, 2 * MB] * 1500
    problem = problem_of(builder.build(), collectives.broadcast(2, chunks_per_rank=3000), chunk_bytes=sizes)
    # 1500 * (1 + 2) us of beta in sequence, then the last alpha.
    assert verified(problem).finish_us == 4500 + 10**4


def test_same_seed_same_columns():
    """Two runs with one seed give the same columns; another seed gives another schedule."""
    problem = problem_of(topologies.torus(5, 5), collectives.allgather(25))
    one, two, other = (solve(problem, seed=s, num_runs=1) for s in (1, 1, 2))
    assert (one.chunk == two.chunk).all() and (one.link == two.link).all()
    assert not ((one.chunk == other.chunk).all() and (one.link == other.link).all())


@pytest.fixture
def runs(monkeypatch):
    """The list of kernel runs that `spread` starts."""
    begun = []
    run = spreading._run

    def counted(*arguments):
        begun.append(arguments)
        return run(*arguments)

    monkeypatch.setattr(spreading, "_run", counted)
    return begun


def test_search_stops_at_its_target(runs):
    """No second run starts once the target finish is met."""
    solve(problem_of(topologies.ring(4), collectives.allgather(4)), num_runs=50, target_ticks=10**6)
    assert len(runs) == 1


@pytest.mark.slow
def test_time_limit_gives_up_later_runs(runs):
    """A limit of 0.2 s allows few of ten thousand runs on a mesh; the best so far is returned."""
    problem = problem_of(topologies.mesh(12, 12), collectives.allgather(144))
    solve(problem, num_runs=10_000, until=Deadline.after(0.2))
    assert 1 <= len(runs) < 1000


def test_links_that_a_sketch_rules_out_are_not_used():
    """If a sketch allows only one direction of a ring, an allgather takes three rounds instead of two."""
    topology = topologies.ring(4)
    upwards = frozenset(e for e, ends in enumerate(topology.links) if ends.dst == (ends.src + 1) % 4)
    problem = problem_of(topology, collectives.allgather(4), links_allowed=upwards)
    assert verified(problem).finish_us == 61.5


def test_group_uses_ranks_outside_as_relays():
    """A group uses ranks outside as relays.

    Ranks 0 and 2 of a path 0 - 1 - 2 exchange chunks through 1, with two hops each.
    """
    problem = problem_of(
        topologies.mesh(3),
        collectives.custom(3, precondition={0: [0], 1: [2]}, postcondition={0: [2], 1: [0]}),
    )
    schedule = verified(problem)
    assert (schedule.num_transfers, schedule.finish_us) == (4, 41)


def test_relays_keep_to_shortest_paths():
    """Relayed chunks keep to shortest paths, and the farthest go first.

    A scatter on a line of five takes 1 + 2 + 3 + 4 sends, in four rounds.
    """
    schedule = verified(problem_of(topologies.mesh(5), collectives.scatter(5)))
    assert (schedule.num_transfers, schedule.finish_us) == (10, 82)


def test_unreachable_ranks_are_an_error():
    """A chunk that cannot reach a destination is an error: rank 1's, if the only link is from 0 to 1."""
    topology = linked("one way", [0, 0], [(0, 1)], alpha_us=0, beta_us_per_mb=1)
    with pytest.raises(CollectiveError, match="1 chunks cannot reach"):
        solve(problem_of(topology, collectives.allgather(2)))


def test_combining_collectives_are_refused():
    """A demand for greedy synthesis cannot be made of a reducing collective."""
    problem = problem_of(topologies.ring(3), collectives.allreduce(3))
    with pytest.raises(CollectiveError, match="found a reducing collective"):
        make_demand(problem.collective, problem.costs)


def test_fast_and_slow_links_form_classes():
    """Two pairs with 1 us links inside and 10 us links across form two classes and two components."""
    builder = TopologyBuilder("pairs", [0, 0, 1, 1])
    for src, dst, beta in ((0, 1, 1), (1, 0, 1), (2, 3, 1), (3, 2, 1), (0, 2, 10), (2, 0, 10)):
        builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=beta)
    problem = problem_of(builder.build(), collectives.allgather(4))
    fabric = make_fabric(problem)
    of_class = fabric.component[1].tolist()
    assert of_class[0] == of_class[1] != of_class[2] == of_class[3]
    assert fabric.fast_rate[1].tolist() == [1, 1, 1, 1]


def late_ports():
    """Two pairs exchange 8 chunks per rank over pipelined rails of 10 + 1 us and inner links of 5 + 1 us."""
    builder = TopologyBuilder("late ports", [0, 0, 1, 1], alpha_meaning="pipelined")
    for a, b in ((0, 1), (2, 3), (0, 2), (1, 3)):
        for src, dst in ((a, b), (b, a)):
            builder.add_link(src, dst, alpha_us=5 if b == a + 1 else 10, beta_us_per_mb=1)
    return problem_of(builder.build(), collectives.allgather(4, chunks_per_rank=8))


def test_fast_links_lag_by_what_they_take_beyond_what_they_are_busy():
    """A send over an inner link takes 6 us, of which the link is busy for 1 us, so its lag is 5 us."""
    problem = late_ports()
    fabric = make_fabric(problem)
    assert (fabric.fast_lag[1] / problem.costs.ticks_per_us).tolist() == [5, 5, 5, 5]


def test_slow_links_repeat_what_fast_ones_get_late():
    """Some chunks cross both slow rails, as the inner links would deliver them later.

    If each chunk crossed once, 8 per rail, the last would reach the neighbour at 10 + 8 + 5 + 1 us. Until 22
    us a rail can deliver 12 of the 16 chunks that a rank needs, which leaves 4 to the inner link.
    """
    schedule = verified(late_ports(), rules=[Rule("in-turn", rarest=True)])
    assert schedule.finish_us == 22


def test_slow_links_repeat_chunks_until_fast_ones_would_be_sooner():
    """An allgather on four DGX-H100: a rank gets 5 of the 24 chunks of other nodes over its own NIC.

    The rank's port for NVLink starts at 3.95 us, when the first chunks have entered the node. It passes 19
    chunks of 0.2416 us each, with a lag of 0.58 us, until 9.12 us. With 4 chunks over the NIC the port would
    pass 20, until 9.36 us.
    """
    problem = problem_of(
        topologies.dgx_h100(4, protocol="ll"), collectives.allgather(32), chunk_bytes=MB // 32
    )
    schedule = verified(problem, rules=[Rule("in-turn", rarest=True)], num_runs=1)
    assert round(schedule.finish_us, 2) == 9.12


def test_slow_links_bring_a_node_every_chunk_once():
    """Nodes of three ranks joined by slow rails: each chunk crosses once and is copied inside."""
    builder = TopologyBuilder("rails", [0, 0, 0, 1, 1, 1])
    for node in (0, 3):
        for a in range(3):
            for b in range(3):
                if a != b:
                    builder.add_link(node + a, node + b, alpha_us=0, beta_us_per_mb=1)
    rails = [builder.add_link(s, (s + 3) % 6, alpha_us=0, beta_us_per_mb=10) for s in range(6)]
    schedule = verified(problem_of(builder.build(), collectives.allgather(6)), rules=[Rule("in-turn")])
    # One crossing per chunk, 10 us, and 1 us to the two neighbours.
    assert (int(np.isin(schedule.link, rails).sum()), schedule.finish_us) == (6, 11)


def test_rarest_chunks_leave_a_source_once():
    """Three chunks to three neighbours, rarest first: each gets another chunk and they exchange, in 2 rounds.

    In order of arrival all three get the same chunk in each of three rounds.
    """
    collective = collectives.broadcast(4, chunks_per_rank=3)
    problem = problem_of(topologies.fully_connected(4), collective)
    rules = [Rule("in-turn", rarest=rarest) for rarest in (True, False)]
    assert [verified(problem, rules=[rule], num_runs=1).finish_us for rule in rules] == [41, 61.5]


def test_demand_of_arrays():
    """A demand is made without a `Collective`: one chunk from rank 0 of a ring to all."""
    problem = problem_of(topologies.ring(4), collectives.allgather(4))
    fabric = make_fabric(problem)
    found = spread(fabric, Demand(np.ones(1, np.int64), np.array([0, 1]), np.zeros(1, np.int32)))
    assert len(found.chunk) == 3


@pytest.fixture
def problem():
    """Three process groups of four non-adjacent ranks of a mesh, three chunks per rank."""
    parts = [range(g, 12, 3) for g in range(3)]
    joint = together(
        [collectives.allgather(4, chunks_per_rank=3).among(list(part), num_ranks=12) for part in parts]
    )
    return make_problem(taccl.topologies.mesh(3, 4), joint, chunk_bytes=10**6, clauses=Clauses())


def test_relays_lead_to_all_that_want_a_chunk(problem, monkeypatch):
    """Relays are ranks outside a chunk's group. Schedules verify, whether routes over relays are kept or
    dropped."""
    for steps in (0, 10**9):
        monkeypatch.setattr(spreading, "KEPT_STEPS", steps)
        fabric, demand = problem_arrays(problem)
        relayed, routes = spreading._with_relays(fabric, demand, Limits())
        assert (routes is None) == (steps == 0)
        assert relayed.wanted is not None and relayed.needed is demand.wanted
        assert np.bitwise_count(relayed.wanted).sum() > np.bitwise_count(relayed.needed).sum()
        found = spread(fabric, demand, Limits())
        schedule = Schedule(problem, found.chunk, found.link, found.start, producer="greedy")
        assert verify(schedule).ok
