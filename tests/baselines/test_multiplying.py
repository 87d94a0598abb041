"""Recursive multiplying: finishes derived by hand."""

import math
import time
from dataclasses import replace
from fractions import Fraction
from importlib import import_module
from itertools import permutations
from random import Random

import numpy as np
import pytest

import taccl
from taccl import collectives
from taccl._internal.deadline import NEVER, Deadline, OutOfTime
from taccl.baselines import (
    chunking,
    forms,
    multiplying,
    multiplying_annealing,
    multiplying_batches,
    one_shot,
    recursive,
)
from taccl.baselines.multiplying import Estimated, mixed_schedule
from taccl.baselines.multiplying_annealing import Annealing, Run
from taccl.baselines.multiplying_mix_times import MixTimes
from taccl.baselines.multiplying_mixes import _insertable, best_mix, greedy_mix, soonest_mix, times_of, to_mix
from taccl.baselines.multiplying_plans import (
    BY_NODE,
    MIXED,
    Digit,
    PlanPart,
    StepPlan,
    all_mixable,
    all_plans,
)
from taccl.baselines.multiplying_sends import sends_of
from taccl.baselines.multiplying_times import Grid, StepTimes
from taccl.errors import CollectiveError
from taccl.problem.making import make_problem
from taccl.problem.problem import Clauses
from taccl.topology import fabrics
from taccl.topology.builder import TopologyBuilder
from taccl.topology.transform import subset

multiplying_module = import_module("taccl.baselines.multiplying")


def behind_ports(nodes, size, *, near_us, far_us, us_per_mb):
    """A topology of nodes: each rank has one port each way inside its node, and separate links to other
    nodes."""
    builder = TopologyBuilder("ports", [node for node in range(nodes) for _ in range(size)])
    ranks = range(nodes * size)
    ports = [(builder.add_resource(f"out {r}"), builder.add_resource(f"in {r}")) for r in ranks]
    for src in ranks:
        for dst in ranks:
            if src == dst:
                continue
            near = src // size == dst // size
            alpha = near_us if near else far_us
            link = builder.add_link(src, dst, alpha_us=alpha, beta_us_per_mb=us_per_mb)
            if near:
                builder.add_hold(link, ports[src][0], alpha_us=alpha, beta_us_per_mb=us_per_mb, side="send")
                builder.add_hold(
                    link, ports[dst][1], alpha_us=alpha, beta_us_per_mb=us_per_mb, side="receive"
                )
    return builder.build()


def merging(topology, collective, size_bytes):
    clauses = Clauses(max_merge=64, merging=frozenset(range(len(topology.links))))
    return make_problem(topology, collective, size_bytes=size_bytes, clauses=clauses)


def two_nodes():
    """A topology of two nodes of two ranks: 1 us inside a node, 10 us between ranks of different nodes, no
    shared resources."""
    builder = TopologyBuilder("two", [0, 0, 1, 1])
    for src in range(4):
        for dst in range(4):
            if src != dst:
                near = src // 2 == dst // 2
                builder.add_link(src, dst, alpha_us=1 if near else 10, beta_us_per_mb=1 if near else 100)
    return builder.build()


def test_some_cross_before_the_sums_in_nodes_and_some_after():
    """Half of the data crosses between nodes before it is summed in nodes, the other half after that, over
    other links.

    Two of four chunks of 20 kB take 10 us of latency and 4 us of bytes between nodes. Before or after that,
    they take 1.04 us in a node. The usual plan would take 16.08 us: scatter inside nodes, send each half of a
    node's sum across once, and gather.
    """
    problem = make_problem(two_nodes(), collectives.allreduce(4), size_bytes=80_000)
    schedule = multiplying(problem, cut=False)
    assert taccl.verify(schedule).ok
    assert schedule.finish == Fraction("15.04") < one_shot(problem, cut=False).finish
    assert schedule.producer == "multiplying (sum 2 x 2 nodes, in turns)"


def test_what_crosses_in_turns_goes_over_other_links():
    """Parts of a chunk set that cross between nodes in different steps use different links.

    Between nodes a send of n chunks takes 6 + 0.1 n us and holds its link; in a node it holds ports for 1 +
    0.1 n us. Three of eight chunks cross first, three after one step inside nodes, and two after two such
    steps, each part to another rank. The second part takes 1 + 0.5, then 6 + 0.3, then 1 + 0.6 us, 9.4 us in
    total. If all chunks crossed together, it would take 10.4 us.
    """
    topology = behind_ports(2, 4, near_us=1, far_us=6, us_per_mb=1)
    schedule = multiplying(merging(topology, collectives.allreduce(8), 800_000), cut=False)
    assert taccl.verify(schedule).ok
    assert schedule.finish == Fraction("9.4")
    assert schedule.producer == "multiplying (sum 2 x 2 x 2 nodes, in turns)"


def test_parts_one_behind_another_scatter_while_others_cross():
    """One part of the data is scattered inside nodes while another one crosses between them.

    Each half of 16 MB is scattered in a node in 4.1 + 2.1 us, crosses in 3 + 2 us, and is gathered again. The
    ports are never idle: one half crosses while the other is scattered or gathered. In a single part the data
    would take 31.4 us.
    """
    topology = behind_ports(2, 4, near_us=0.1, far_us=3, us_per_mb=1)
    schedule = multiplying(
        merging(topology, collectives.allreduce(8, chunks_per_rank=2), 16 * 10**6), cut=False
    )
    assert taccl.verify(schedule).ok
    assert schedule.finish == 4 * Fraction("6.2")
    assert schedule.producer == "multiplying (scatter 2 x 2, sum 2 nodes, one behind another)"


def test_halves_start_along_different_dimensions_of_a_torus():
    """The two halves of the data start along different dimensions of a torus.

    Each half of 16 kB takes two steps around each ring of four: four sends of 8 kB, 0.5 + 0.16 us each.
    Undivided data along one dimension after the other would take 3.28 us.
    """
    problem = merging(taccl.topologies.parse("torus:4x4"), collectives.allreduce(16), 16_000)
    schedule = multiplying(problem, cut=False)
    assert taccl.verify(schedule).ok
    assert schedule.finish == 4 * Fraction("0.66")
    assert schedule.producer == "multiplying (sum 4 x 4, round about)"


@pytest.mark.parametrize("name", ["allgather", "reduce_scatter"])
def test_what_comes_from_a_node_is_gathered_while_the_next_crosses(name):
    """Chunks that one node has received are gathered there while others cross to the next node.

    Three nodes of four have a NIC each: a port takes 1 us/MB, a NIC 0.5 us/MB and 3 us of latency. Four
    chunks of 1 MB cross to one node in 2 us, then to the other. A node gathers the chunks of one other node
    from 5 us on, and those of the second from 8 us on. Each gather takes 1 + 2 us, for one chunk and then
    two. A single gather of both would end later.
    """
    builder = TopologyBuilder("nics", [node for node in range(3) for _ in range(4)])
    nics = [(builder.add_resource(f"out {n}"), builder.add_resource(f"in {n}")) for n in range(3)]
    ports = [(builder.add_resource(f"to {r}"), builder.add_resource(f"from {r}")) for r in range(12)]
    for src in range(12):
        for dst in (r for r in range(12) if r != src):
            near = src // 4 == dst // 4
            held = ports[src][0], ports[dst][1]
            if not near:
                held = nics[src // 4][0], nics[dst // 4][1]
            cost = 1 if near else Fraction(1, 2)
            link = builder.add_link(src, dst, alpha_us=0 if near else 3, beta_us_per_mb=cost)
            for resource, side in zip(held, ("send", "receive"), strict=True):
                builder.add_hold(link, resource, alpha_us=0, beta_us_per_mb=cost, side=side)
    problem = merging(builder.build(), getattr(collectives, name)(12), 12 * 10**6)
    schedule = multiplying(problem, cut=False)
    assert taccl.verify(schedule).ok
    assert schedule.finish == 11
    assert schedule.producer.endswith("2 x 2, node by node)")


@pytest.mark.parametrize("name", ["allgather", "reduce-scatter"])
@pytest.mark.parametrize(
    ("topology", "size_bytes", "chunks_per_rank", "finish_us"),
    [
        # 2 kB hold a NIC for 0.02 + 0.08 us, after 2.68 us. 2 and 4 kB, one after another, hold the ports inside
        # for 7 * (0.02 + 2 * 0.0070922) and 7 * (0.02 + 4 * 0.0070922) us, and take 0.58 us more.
        (taccl.topologies.dgx_h100(4), 64_000, 1, "3.938"),
        # 31.25 kB hold a NIC for 0.02 + 2.5 us, after 2.68 us. Twice 31.25 kB hold the ports for
        # 7 * (0.02 + 31.25 * 0.0114025) us, and take 0.58 us more.
        (taccl.topologies.dgx_a100(2), 10**6, 2, "11.049"),
    ],
)
def test_chunks_are_gathered_in_batches(name, topology, size_bytes, chunks_per_rank, finish_us):
    """Chunks of the first node, or first chunks, are gathered as soon as they arrive, and all others later
    in one message."""
    collective = collectives.make(name, topology.num_ranks, chunks_per_rank=chunks_per_rank)
    estimated = Estimated.of(merging(topology.under("ll"), collective, size_bytes))
    schedule = estimated.schedule(lists=False)
    assert taccl.verify(schedule).ok
    assert estimated.us == pytest.approx(schedule.finish_us, abs=1e-6)
    assert schedule.finish_us == pytest.approx(float(finish_us), abs=1e-3)
    assert schedule.producer.endswith("node by node in 2 batches)")


def test_batches_are_searched_further(monkeypatch):
    """A further search joins four batches of a chunk, which hold ports longer; without time it keeps them."""
    monkeypatch.setattr(multiplying_batches, "_MOST_MOVES", 500)
    topology = taccl.topologies.dgx_h100(2)
    problem = merging(topology, collectives.allgather(16, chunks_per_rank=4), 64_000)
    inside, across = (Digit(False, 8, 1),), (Digit(True, 2, 1, turns=(1,)),)
    times = StepTimes(problem, Grid(problem))
    plan = StepPlan((*[PlanPart(inside, across)] * 4, PlanPart(inside)), BY_NODE, (1, 1, 1, 1, 4))
    start = Estimated(times.ticks(plan) / problem.costs.ticks_per_us, times, plan)
    assert start.in_better_batches(until=Deadline(0.0)).plan == plan
    found = start.in_better_batches()
    assert found.us < start.us
    assert found.us == pytest.approx(Estimated.of(problem).us)
    assert Estimated.of(problem, until=Deadline(0.0)).us >= found.us  # the first search ends at once
    whole = Estimated(1.0, times, plan._replace(sizes=()))
    assert whole.in_better_batches() is None
    assert whole.in_better_batches(problem).us < start.us


@pytest.mark.parametrize("name", ["allgather", "reduce-scatter"])
def test_chunks_may_be_gathered_before_they_cross(name):
    """The first of three chunks of each rank is gathered in its node, and then crosses to all ranks of the other
    node directly. The two other chunks cross once."""
    topology = taccl.topologies.dgx_h100(2)
    collective = collectives.make(name, topology.num_ranks, chunks_per_rank=3)
    problem = merging(topology, collective, 480_000)
    inside, across = (Digit(False, 8, 1),), (Digit(True, 2, 1, turns=(1,)),)
    parts = PlanPart(inside, after=across), PlanPart(inside, across), PlanPart(inside)
    times, plan = StepTimes(problem, Grid(problem)), StepPlan(parts, BY_NODE, (1, 2, 2))
    schedule = Estimated(0.0, times, plan).schedule(lists=False)
    assert taccl.verify(schedule).ok
    assert schedule.finish_us == pytest.approx(times.ticks(plan) / problem.costs.ticks_per_us, abs=1e-6)
    crossings = sum(topology.is_internode(each.link) for each in schedule)
    assert crossings == 16 * (8 + 2)
    assert "8, node by node in 2 batches" in schedule.producer


def test_nine_ranks_behind_ports_add_up_in_threes():
    """Nine ranks with a port each sum their data in two steps, each among three ranks.

    A step takes two messages of 1 us and 9 B each; one-shot takes eight messages.
    """
    topology = behind_ports(1, 9, near_us=1, far_us=1, us_per_mb=1)
    problem = merging(topology, collectives.allreduce(9), 9)
    schedule = multiplying(problem)
    assert taccl.verify(schedule).ok
    assert (schedule.finish, schedule.producer) == (4 * Fraction("1.000009"), "multiplying (sum 3 x 3)")
    assert one_shot(problem).finish == 8 * Fraction("1.000009")


def test_four_ranks_behind_ports_double():
    """On four ranks with a port each, multiplying takes as long as recursive doubling, which is optimal
    there."""
    topology = behind_ports(1, 4, near_us=1, far_us=1, us_per_mb=1)
    problem = merging(topology, collectives.allreduce(4), 4)
    assert multiplying(problem).finish == recursive(problem).finish == 2 * Fraction("1.000004")


@pytest.mark.slow
def test_messages_in_parts_follow_one_another():
    """A chunk crosses between nodes while the next is being summed, which is faster than messages of several
    chunks in sequence."""
    topology = behind_ports(2, 4, near_us=0.01, far_us=5, us_per_mb=1)
    problem = merging(topology, collectives.allreduce(8), 8 * 10**6)
    schedule = multiplying(problem, cut=False)
    assert taccl.verify(schedule).ok
    # The limit is the time of messages in sequence: 3 to scatter, 1 between nodes, 3 to gather.
    assert schedule.finish < 2 * 3 * 2.01 + 5 + 2


@pytest.mark.parametrize(("nodes", "size"), [(1, 6), (2, 3), (3, 4), (1, 5), (5, 1)])
@pytest.mark.parametrize(
    "name",
    ["allreduce", "reduce_scatter", "reduce", "allgather", "alltoall", "broadcast", "gather", "scatter"],
)
def test_schedules_are_right_on_any_number_of_ranks(nodes, size, name):
    """Collectives with and without sums give valid schedules for any numbers of nodes and ranks."""
    topology = behind_ports(nodes, size, near_us=1, far_us=3, us_per_mb=1)
    problem = merging(topology, collectives.make(name, nodes * size), 10**6)
    assert taccl.verify(multiplying(problem)).ok


def test_eight_ranks_behind_ports_gather_by_doubling():
    """Eight ranks behind ports gather by doubling.

    Each port sends three messages, of 1, 2 and 4 chunks of 1 B, in place of seven.
    """
    topology = behind_ports(1, 8, near_us=1, far_us=1, us_per_mb=1)
    schedule = multiplying(merging(topology, collectives.allgather(8), 8))
    assert (schedule.finish, schedule.producer) == (3 + Fraction(7, 10**6), "multiplying (gather 2 x 2 x 2)")


@pytest.mark.parametrize("name", ["allgather", "alltoall", "reduce_scatter"])
def test_chunks_for_other_nodes_are_sent_directly(name):
    """Chunks for another node go directly over its links, at the same time as the rounds inside nodes.

    Links of 6 us lead to every rank of the other node; a node takes two rounds of 1 us. If chunks went to
    ranks of equal local number only, rounds in a node would have to precede or follow the 6 us. Data takes
    negligible time.
    """
    problem = merging(behind_ports(2, 4, near_us=1, far_us=6, us_per_mb=1), getattr(collectives, name)(8), 8)
    schedule = multiplying(problem, cut=False)
    assert taccl.verify(schedule).ok
    assert 6 < schedule.finish < 6 + Fraction(1, 100)
    assert schedule.producer.endswith("straight to 4)")


def test_other_collectives_are_refused():
    """Sums to which only some ranks contribute, and scans, are refused."""
    topology = taccl.topologies.fully_connected(4)
    custom = collectives.custom(4, precondition={0: [0, 1]}, postcondition={0: [3]}, combining=True)
    for collective, why in ((collectives.scan(4), "derive"), (custom, "supports full reductions only")):
        with pytest.raises(CollectiveError, match=why):
            multiplying(make_problem(topology, collective, chunk_bytes=1000))


def test_an_order_that_cannot_be_improved_is_not_listed_again(monkeypatch):
    """If ports are never idle, list scheduling is not tried, as it could not improve the order of sends."""
    monkeypatch.setattr(forms, "listed", lambda *_, **__: pytest.fail("listed"))
    problem = make_problem(fabrics.star(2), collectives.alltoall(2), chunk_bytes=10**6)
    assert multiplying(problem, cut=False).num_transfers == 2


@pytest.mark.slow
def test_parts_behind_one_another_are_as_many_as_pay():
    """Data is divided into more pipelined parts as long as that makes the schedule faster.

    Eight parts finish an allreduce of 1 MB on two DGX-A100 in 27.1 us, four parts in 28.2 us.
    """
    topology = taccl.topologies.dgx_a100(2)
    problem = make_problem(topology, collectives.allreduce(16, chunks_per_rank=4), size_bytes=10**6)
    assert multiplying(problem, cut=False).finish_us < 27.1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["allreduce", "allgather", "reduce-scatter"])
def test_plans_are_ranked_as_by_their_whole_estimates(name):
    """The ranking of plans equals that by complete estimates, though estimates of far slower plans are cut
    short."""
    problem = make_problem(taccl.topologies.ndv2(2), name, size_bytes=10**6)
    grid = Grid(problem)
    times = StepTimes(problem, grid)
    plans = list(all_plans(*grid.ranks.shape, sums=times.sums, to_one=times.to_one, most=16))
    whole = sorted((times.ticks(plan), i, plan) for i, plan in enumerate(dict.fromkeys(plans)))
    assert list(times.ranked(plans)) == [(ticks, plan) for ticks, _, plan in whole]
    for likely in (None, plans[-1], whole[-1][2]):
        assert times.soonest(plans, likely) == (whole[0][0], whole[0][2])


def test_plans_far_behind_are_estimated_when_they_are_reached():
    """The first plan of a ranking is found although less than half of the plans have been estimated."""
    problem = make_problem(taccl.topologies.ndv2(2), "allreduce", size_bytes=10**6)
    grid = Grid(problem)
    times, begun = StepTimes(problem, grid), []
    times.ticks = lambda *of: begun.append(StepTimes.ticks(times, *of)) or begun[-1]
    next(times.ranked(all_plans(*grid.ranks.shape, sums=True, to_one=False, most=16)))
    assert sum(ticks < math.inf for ticks in begun) < len(begun) / 2


def test_estimates_end_once_the_rest_of_a_part_would_be_late():
    """An estimate with a limit ends as soon as a part would be late even if its other steps are not delayed.

    With a limit of 95 % of the plans' times, it takes a sixth fewer steps than without one.
    """
    problem = make_problem(taccl.topologies.dgx2(2), "allreduce", size_bytes=10**6)
    grid = Grid(problem)
    times, taken = StepTimes(problem, grid), []
    times._step = lambda *of: taken.append(of) or StepTimes._step(times, *of)
    plans = dict.fromkeys(all_plans(*grid.ranks.shape, sums=True, to_one=False, most=16))
    plans = [plan for plan in plans if len(plan.parts) > 1]
    limits = [0.95 * times.ticks(plan) for plan in plans]
    whole = len(taken)
    taken.clear()
    assert {times.ticks(plan, most) for plan, most in zip(plans, limits, strict=True)} == {math.inf}
    assert len(taken) < 5 / 6 * whole


def test_loads_of_direct_links_are_computed_once_for_both_kinds_of_messages():
    """Over direct links, loads do not depend on whether a rank sends the same data to all partners.

    Over relays they do: NDv2 has no links between some ranks of a node, and equal data crosses a link once.
    """
    for topology, is_direct in ((taccl.topologies.dgx_h100(2), True), (taccl.topologies.ndv2(2), False)):
        problem = make_problem(topology, "allreduce", size_bytes=10**6)
        times, digit = StepTimes(problem, Grid(problem)), Digit(False, 8, 1)
        assert (times.loads(digit, True) is times.loads(digit, False)) == is_direct


def eight_ranks(*, parts):
    """The problem of an allreduce of 1 MB in a node of eight, with each chunk cut into `parts` parts that may
    merge."""
    problem = make_problem(taccl.topologies.dgx_h100(1), collectives.allreduce(8), size_bytes=10**6)
    return chunking.cut_chunks(chunking.without_sketch(chunking.merging(problem)), parts)


@pytest.mark.slow
def test_the_search_for_a_mix_ends_at_its_deadline_with_a_plan(annealed):
    """Once time is up, a mix of equal parts or better is built, though a longer search finds a faster one."""
    problem = make_problem(taccl.topologies.dgx_h100(2), "allreduce", size_bytes=10**6)
    problem = replace(problem, chunks_open=True)
    early = mixed_schedule(problem, Deadline.after(0))
    assert taccl.verify(early).ok
    times, plan = soonest_mix(to_mix(problem))
    assert times.ticks(plan) / times.problem.costs.ticks_per_us < early.finish_us


def test_a_search_for_a_mix_makes_moves_even_if_loading_its_kernel_takes_all_the_time(monkeypatch):
    """The clock passes the deadline as the kernel is called first. A search that begins late makes no moves."""
    now_s, moves = [0.0], []

    def slow(_plans, _steps, _mixes, _room, _ticks, heats, _shares, _random):
        now_s[0] += 10.0 * (not moves)
        moves.append(len(heats))

    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(multiplying_annealing, "anneal", slow)
    problem = make_problem(taccl.topologies.ring(2), "allreduce", size_bytes=2)
    times, plan = StepTimes(problem, Grid(problem)), PlanPart((Digit(False, 2, 1),))
    for until, made in ((Deadline(1.0), [0, 5]), (Deadline(10.0), [])):
        moves.clear()
        search = Annealing(times, np.zeros(1, int), [plan], most_parts=1, until=until)
        start = [(plan, 2, (0, 0.0))]
        assert search.improved(start, Run(5, 1.0), 0) == start
        assert moves == made


def test_a_mixed_plan_is_built_only_if_it_may_be_earlier_and_time_suffices():
    """A mixed plan is not built if its estimate is not below a known finish, or if its sends are too many.

    Each of eight parts exchanges a message between any two of eight ranks of a node.
    """
    problem = make_problem(taccl.topologies.dgx_h100(2), "allreduce", size_bytes=10**6)
    problem = replace(problem, chunks_open=True)
    times = times_of(to_mix(problem)[0])
    first_us = times.ticks(greedy_mix(times)) / times.problem.costs.ticks_per_us
    assert first_us < Estimated.mixed(problem).us
    assert mixed_schedule(problem, Deadline.after(0), below_us=first_us) is None
    assert mixed_schedule(problem, Deadline.after(0), fits=lambda *_: False) is None
    part = PlanPart((), (Digit(False, 8, 1),))
    assert times.num_messages(StepPlan((part,) * 8, MIXED, (1,) * 8)) == 8 * 16 * 7
    assert Estimated.of(problem, most_us=Estimated.of(problem).us * 0.99) is None


@pytest.mark.slow
def test_a_mix_uses_ports_that_a_single_plan_leaves_idle(annealed):
    """A mix of plans uses ports in the time in which a single plan leaves them idle, between scattering and
    gathering.

    Eight ranks reduce 1 MB in k pipelined pieces. A step of seven messages of 125/k kB takes 7 (0.02 + 0.3371
    / k) us, and links add a latency of 3.4 us. A single plan takes k + 1 such steps and two latencies or
    more. A mix sends other chunks whole in the idle time.
    """
    problem, beta = eight_ranks(parts=16), Fraction(2500, 927)
    singles = [2 * Fraction("3.4") + (k + 1) * 7 * (Fraction("0.02") + beta / 8 / k) for k in range(1, 33)]
    mixed = multiplying(problem)
    assert taccl.verify(mixed).ok
    assert mixed.producer == "multiplying (scatter 8, mixed with 1 other plan in 5 parts)"
    assert mixed.finish < min(singles)


@pytest.mark.slow
def test_estimates_of_mixes_are_exact_behind_ports(annealed):
    """If all ranks have equal ports, `MixTimes` and the step timeline predict the finish of a mix of plans
    exactly."""
    problem = eight_ranks(parts=16)
    times = StepTimes(problem, Grid(problem))
    plan = best_mix(times)
    mixes = MixTimes(times, plan.parts)
    mix = list(map(mixes.timed, plan.parts, plan.sizes))
    assert multiplying(problem).finish_ticks == mixes.finish(mix) == times.ticks(plan)


def test_a_mix_is_estimated_once(monkeypatch):
    """Local search meets many mixes of plans again; each is simulated once for a limit."""
    simulated = []
    monkeypatch.setattr(
        MixTimes, "_simulated", lambda mixes, mix, most: simulated.append((mix, most)) or math.inf
    )
    times, part = StepTimes(eight_ranks(parts=3), Grid(eight_ranks(parts=3))), PlanPart((Digit(False, 8, 1),))
    mixes = MixTimes(times, [part])
    for most in (9.0, 5.0, 9.0, 10.0):
        assert mixes.finish([mixes.timed(part, 24)], most) == math.inf
    assert [most for _, most in simulated] == [9.0, 10.0]


def test_a_mix_has_all_chunks():
    """The parts' sizes add up to the number of chunks, even if that is not a power of two."""
    problem = eight_ranks(parts=3)
    assert sum(best_mix(StepTimes(problem, Grid(problem))).sizes) == 24


def test_parts_may_cross_before_and_after_the_sums_in_nodes():
    """A part of the data may be summed between nodes before or after the steps inside nodes."""
    far, near = Digit(True, 2, 1), Digit(False, 8, 1)
    begun = ("scatter", near), ("gather", near)
    assert PlanPart((near,), before=(far,)).steps() == [("sum", far), *begun]
    assert PlanPart((near,), after=(far,)).steps() == [*begun, ("sum", far)]


def behind_nics(nodes, size):
    """Nodes of ranks with a port each way, which messages hold for 1 us and 1 us/MB, and NICs on rails, with
    2 us and 1 us/MB."""
    builder = TopologyBuilder("nics", [node for node in range(nodes) for _ in range(size)])
    ends = [
        [builder.add_resource(f"{name} {r}") for name in ("out", "in", "to", "from")]
        for r in range(nodes * size)
    ]
    for src, dst in permutations(range(nodes * size), 2):
        near = src // size == dst // size
        if near or src % size == dst % size:
            costs = {"alpha_us": 1 if near else 2, "beta_us_per_mb": 1}
            link = builder.add_link(src, dst, **costs)
            builder.add_hold(link, ends[src][0 if near else 2], side="send", **costs)
            builder.add_hold(link, ends[dst][1 if near else 3], side="receive", **costs)
    return builder.build()


def test_steps_in_nodes_overlap_with_those_between_nodes():
    """6 MB on 3 nodes of 2 ranks: 20 us in whole messages, 16 us in pieces for one node each.

    Whole messages take 4 us (scatter), 2 x 3 us (scatter between nodes), 2 x 3 us (gather there), 4 us. In
    pieces of 1 MB, messages to other nodes leave after 2 and 5 us. Pieces for the own node go from 4 to 6 us.
    All sums are complete after 8 us, and reach other nodes after 11 and 14 us.
    """
    problem = merging(behind_nics(3, 2), collectives.allreduce(6), 6 * 10**6)
    times, far = StepTimes(problem, Grid(problem)), Digit(True, 3, 1)
    for near, us in ((Digit(False, 2, 1), 20), (Digit(False, 2, 1, pieces=2, own=-3), 16)):
        plan = StepPlan((PlanPart((near, far)),), "mixed", (6,))
        assert times.ticks(plan) == us * problem.costs.ticks_per_us
        schedule = sends_of(times, plan, 1).schedule(problem, producer="")
        assert schedule.finish_us == us
        assert taccl.verify(schedule).ok


@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_divided_messages_are_timed_exactly(nodes):
    """Mixes of parts with divided messages are valid, end no later than estimated, and as the kernel says."""
    problem = merging(behind_nics(nodes, 2), collectives.allreduce(2 * nodes, chunks_per_rank=12), 10**6)
    times, random = times_of(problem), Random(nodes)
    parts = list(dict.fromkeys(part for part in all_mixable(nodes, 2, most=4) if part.is_divided))
    mixes = MixTimes(times, parts)
    annealing = Annealing(times, mixes.resources, parts, most_parts=3, until=NEVER)
    for _ in range(6):
        number = random.choice((1, 3))
        delays = [(random.randrange(4), random.choice((0.0, random.uniform(0, 50)))) for _ in range(number)]
        mix = [(random.choice(parts), 24 * nodes // number, delay) for delay in delays]
        plan = StepPlan(tuple(each[0] for each in mix), "mixed", tuple(each[1] for each in mix), (*delays,))
        schedule = sends_of(times, plan, 1).schedule(problem, producer="")
        assert taccl.verify(schedule).ok
        annealing.improved(mix, Run(0, 1.0), 0)
        assert annealing.ticks[0] == pytest.approx(mixes.finish([mixes.timed(*each) for each in mix]))
        assert annealing.ticks[0] == pytest.approx(times.ticks(plan))
        assert schedule.finish_ticks <= times.ticks(plan) * (1 + 1e-9)


def test_messages_are_divided_only_if_those_between_nodes_take_turns():
    """Without NICs, messages to several nodes leave at the same time, and estimates of pieces would be low."""
    for topology, is_divisible in (
        (behind_nics(3, 2), True),
        (behind_ports(3, 2, near_us=1, far_us=1, us_per_mb=1), False),
    ):
        problem = make_problem(topology, "allreduce", size_bytes=10**6)
        assert StepTimes(problem, Grid(problem)).takes_turns(Digit(True, 3, 1)) is is_divisible


def test_estimates_of_mixes_leave_covered_resources_out():
    """Estimates of a mix use one resource, as all ports are equal and links inside a node are held no longer
    than ports."""
    times = StepTimes(eight_ranks(parts=3), Grid(eight_ranks(parts=3)))
    assert len(MixTimes(times, [PlanPart((Digit(False, 8, 1),))]).resources) == 1


def test_fixed_chunks_are_not_mixed():
    """If chunks may not be cut, a single plan is used and not a mix."""
    assert "mixed" not in multiplying(eight_ranks(parts=16), cut=False).producer


@pytest.mark.slow
def test_estimates_of_mixes_end_early_only_beyond_the_limit():
    """An estimate of a mix with a limit is the estimate without one, or infinite beyond the limit.

    No mix ends before the least time of mixes of its plans.
    """
    topology = taccl.topologies.dgx_a100(4, protocol="ll")
    problem = chunking.merging(make_problem(topology, collectives.allreduce(32), size_bytes=256_000))
    times = StepTimes(problem, Grid(problem))
    parts = list(dict.fromkeys(all_mixable(4, 8, most=16)))
    mixes, random = MixTimes(times, parts), Random(0)
    for _ in range(200):
        number = random.randint(1, 6)
        mix = [mixes.timed(random.choice(parts), random.randint(1, 32)) for _ in range(number)]
        assert mixes.finish(mix, 0.0) == math.inf
        whole = mixes.finish(mix)
        assert mixes.least([each.part for each in mix], sum(each.size for each in mix)) <= whole
        assert mixes.finish(mix, whole * (1 + 1e-9)) == whole
        assert mixes.finish(mix, whole * 0.999) == math.inf
        fresh = MixTimes(times, parts)
        again = [fresh.timed(each.part, each.size) for each in mix]
        assert fresh.finish(again, whole * 0.999) == math.inf
        assert fresh.finish(again, whole * (1 + 1e-9)) == whole


@pytest.mark.slow
def test_finer_chunks_of_a_mix_are_used_if_they_pay(annealed):
    """A mix has 512 or more chunks where parts of 1/16 of the data gain more than 0.3 %, and 128 otherwise.

    An allreduce of 256 kB on four DGX-A100 ends after 11.49 us with 128 chunks. A part that is scattered over
    32 ranks then has at least a quarter of the chunks.
    """
    topology = taccl.topologies.dgx_a100(4, protocol="ll")
    far, near = (
        mixed_schedule(make_problem(topology, "allreduce", size_bytes=size)) for size in (256_000, 8_000)
    )
    assert taccl.verify(far).ok
    assert far.problem.collective.num_chunks >= 512
    assert far.finish_us < 11
    assert near.problem.collective.num_chunks <= 128


@pytest.mark.slow
def test_a_mix_has_fine_chunks_even_if_they_gain_little(annealed):
    """On four DGX-A100 the mix of 1 MB in 1024 chunks or more ends 0.3 % before one in 512, after 35.465 us."""
    found = mixed_schedule(make_problem(taccl.topologies.dgx_a100(4), "allreduce", size_bytes=1_000_000))
    assert taccl.verify(found).ok
    assert found.problem.collective.num_chunks >= 1024
    assert found.finish_us < 35.36


def test_a_mix_scatters_some_chunks_between_nodes_first(annealed):
    """On two DGX-H100, 1 MB ends after 13.71 us if all chunks are scattered inside nodes first.

    Local search from mixes of equal parts ends at 13.50 us.
    """
    topology = taccl.topologies.dgx_h100(2, protocol="ll")
    problem = to_mix(make_problem(topology, "allreduce", size_bytes=10**6))[0]
    times = times_of(problem)
    assert times.ticks(best_mix(times)) < 13.4 * problem.costs.ticks_per_us


def test_no_mix_is_annealed_that_cannot_end_earlier(monkeypatch):
    """On a star of five ranks, equal parts of one plan use the ports all the time, so annealing does not run."""
    monkeypatch.setattr(multiplying_annealing, "anneal", None)
    times = times_of(to_mix(make_problem(taccl.topologies.star(5), "allreduce", size_bytes=10**6))[0])
    plan = best_mix(times)
    assert plan == greedy_mix(times)
    assert times.ticks(plan) <= MixTimes(times, plan.parts).least(plan.parts, sum(plan.sizes))


def test_the_kernel_of_mixes_has_the_times_of_their_estimates():
    """Simulated annealing returns a mix of the given plans, no later than its start, with all chunks.

    The kernel times a mix of random plans exactly as `MixTimes` does, with and without merging.
    """
    topology = taccl.topologies.dgx_h100(4, protocol="ll")
    plain = make_problem(topology, collectives.allreduce(32), size_bytes=256_000)
    for problem in (plain, chunking.merging(plain)):
        times, random = StepTimes(problem, Grid(problem)), Random(0)
        parts = list(dict.fromkeys(all_mixable(4, 8, most=16)))
        mixes = MixTimes(times, parts)
        annealing = Annealing(times, mixes.resources, parts, most_parts=8, until=NEVER)
        for seed in range(10):
            delays = [(random.randrange(5), random.choice((0.0, random.uniform(0, 10)))) for _ in range(4)]
            mix = [(random.choice(parts), random.randint(1, 8), delay) for delay in delays]
            start, found = (
                mixes.finish([mixes.timed(*each) for each in some])
                for some in (mix, annealing.improved(mix, Run(100, 0.01, True), seed))
            )
            assert annealing.ticks[0] == pytest.approx(found)
            assert found <= start


def test_a_mix_in_other_chunks_keeps_the_shares_of_its_parts():
    """A search in other chunks starts from the plan's parts, with sizes rounded to whole chunks."""
    problem = eight_ranks(parts=1)
    times = StepTimes(problem, Grid(problem))
    fine = best_mix(StepTimes(eight_ranks(parts=16), Grid(eight_ranks(parts=16))))
    coarse = best_mix(times, like=fine)
    assert sum(coarse.sizes) == 8
    assert all(coarse.sizes)


@pytest.mark.slow
def test_two_nodes_of_two_ranks_are_mixed(annealed):
    """Two nodes of two ranks mix plans, although their links form a ring.

    The optimum for four chunks of 64 kB is 4.767 us, by an exact model: one chunk crosses before it is summed
    in nodes, two in between, and one after. With more chunks the mix is faster.
    """
    topology = subset(taccl.topologies.dgx_h100(2, protocol="ll"), ranks=[0, 1, 8, 9])
    schedule = multiplying(make_problem(topology, "allreduce", size_bytes=64_000))
    assert taccl.verify(schedule).ok
    assert taccl.lower_bound(schedule.problem).bound_us <= schedule.finish_us < 4.767


def test_tori_are_not_mixed():
    """Tori have no mixed plans, as all their links are alike."""
    assert to_mix(make_problem(fabrics.torus(4, 4), "allreduce", size_bytes=64_000)) == []


@pytest.mark.slow
def test_small_parts_with_other_plans_are_inserted_first_or_last(monkeypatch):
    """An insertion uses idle times of the bottleneck, here of NICs that two GPUs share: 31.56 us for 32.28 us.

    Annealing finds a mix with a lower estimate, 31.22 us. It ends after 32.01 us, as the latency of a send
    delays the next one over its link. So a mix that is found from another start is built, too.
    """
    problem = make_problem(taccl.topologies.dgx2(4), "allreduce", size_bytes=10**6)
    times = times_of(next(each for each in to_mix(problem) if each.collective.num_chunks == 2048))
    plan = greedy_mix(times)
    parts = {str(part): part for part in all_mixable(4, 16, most=64)}
    whole = "scatter 2 x 2 x 2 x 2 x 4 nodes"
    named = whole, whole, "scatter 2 x 2 x 2 x 2, sum 4 nodes", "scatter 4 nodes x 2, sum 2 x 2 x 2"
    annealed = plan._replace(parts=tuple(map(parts.__getitem__, named)), sizes=(896, 888, 240, 24))
    estimates_us = [times.ticks(each) / times.problem.costs.ticks_per_us for each in (plan, annealed)]
    assert estimates_us == [pytest.approx(31.563458), pytest.approx(31.223096)]
    monkeypatch.setattr(multiplying_module, "soonest_mix", lambda *_, **__: (times, annealed))
    assert mixed_schedule(problem).finish_us <= 31.563459


def test_a_mix_is_kept_before_the_search_for_another(monkeypatch):
    """If the deadline ends the search that follows too low an estimate, the complete schedule remains."""
    problem, kept = make_problem(taccl.topologies.ndv2(2), "allreduce", size_bytes=10**9), []
    _, times, equal = multiplying_module.first_mix(problem)

    def ended(*_, **__):
        raise OutOfTime("ended")

    monkeypatch.setattr(multiplying_module, "_AS_ESTIMATED", 0)
    monkeypatch.setattr(multiplying_module, "soonest_mix", lambda *_, **__: (times, equal))
    monkeypatch.setattr(multiplying_module, "greedy_mix", ended)
    with pytest.raises(OutOfTime):
        mixed_schedule(problem, keep=kept.append)
    assert [taccl.verify(each).ok for each in kept] == [True]


def test_a_mix_is_kept_between_chains_of_annealing(monkeypatch):
    """The best plan of the first chain is built if further chains follow and little time is needed for it."""
    problem, kept = make_problem(taccl.topologies.dgx_h100(2), "allreduce", size_bytes=10**6), []
    problem = replace(problem, chunks_open=True)
    monkeypatch.setattr("taccl.baselines.multiplying_mixes._MORE_CHAINS", (((1, 0.01),),))
    last = mixed_schedule(problem, patient=True, keep=kept.append, shows=lambda _: True)
    assert [taccl.verify(each).ok for each in (*kept, last)] == [True, True]
    del kept[:]
    mixed_schedule(problem, patient=True, keep=kept.append)
    mixed_schedule(problem, keep=kept.append, shows=lambda _: True)
    assert not kept


@pytest.mark.parametrize(
    ("topology", "is_exact"), [(taccl.topologies.ndv2(4), False), (taccl.topologies.dgx_h100(4), True)]
)
def test_inexact_estimates_admit_no_other_crossings_into_a_mix(topology, is_exact):
    """Other steps between nodes would use the links of NDv2 nodes at other times than estimated."""
    times = times_of(to_mix(make_problem(topology, "allreduce", size_bytes=4 * 10**6))[-1])
    crossings = {part.crossings for part in _insertable(times, times)}
    assert (len(crossings) == 1, times.are_exact) == (not is_exact, is_exact)


def test_estimates_are_not_exact_if_latency_occupies_links_alone():
    """On DGX-2, a link is occupied during the latency of a send, unlike its NIC; on DGX-H100 neither is."""
    exact = [
        times_of(make_problem(topology, "allreduce", size_bytes=10**6)).are_exact
        for topology in (taccl.topologies.dgx2(2), taccl.topologies.dgx_h100(2))
    ]
    assert exact == [False, True]


class _Clock:
    """Clock that stands still, unless it is set, and a deadline on it."""

    def __init__(self, end_s):
        self.now_s, self.end_s = 0.0, end_s

    def monotonic(self):
        return self.now_s

    def sooner(self, _):
        return self

    at_least = sooner

    @property
    def left_s(self):
        return max(0.0, self.end_s - self.now_s)

    @property
    def has_passed(self):
        return self.left_s == 0


@pytest.mark.parametrize(("end_s", "num_batches", "is_cut"), [(1000.0, 10, False), (8.0, 7, True)])
def test_annealing_cools_down_in_the_time_left(end_s, num_batches, is_cut, monkeypatch):
    """Each batch of moves takes a second here; a run without time for all of its moves still ends cold."""
    annealing = multiplying_annealing
    clock, heats = _Clock(end_s), []

    def anneal(*given):
        given[4][:] = 100.0
        heats.append(given[5])
        clock.now_s += 1.0

    monkeypatch.setattr(annealing, "time", clock)
    monkeypatch.setattr(annealing, "anneal", anneal)
    problem = make_problem(taccl.topologies.ring(2), "allreduce", size_bytes=2)
    times, plan = StepTimes(problem, Grid(problem)), PlanPart((Digit(False, 2, 1),))
    search = annealing.Annealing(times, np.zeros(1, np.int64), [plan], most_parts=1, until=clock)
    search.improved([(plan, 2, (0, 0.0))], annealing.Run(10 * annealing._AT_ONCE, 0.5), 0)
    batches = heats[1:]  # the first call only loads the kernel
    assert len(batches) == num_batches
    assert batches[0][0] == 50.0
    assert batches[-1][-1] == pytest.approx(100 * annealing._COLD, rel=0.01)
    assert (sum(map(len, batches)) < 10 * annealing._AT_ONCE) == is_cut
