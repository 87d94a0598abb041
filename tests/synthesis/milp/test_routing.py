"""The routing MILP: every solver proves one objective, and each tagged block of rows has its effect."""

import random
from fractions import Fraction

import pytest

from taccl import collectives, load_sketch, topologies
from taccl.errors import TopologyError
from taccl.problem.problem import SwitchPolicy
from taccl.schedule.combine import broadcast_phase, reduce_phase
from taccl.sketch.group import symmetry_group
from taccl.sketch.reachability import check_reachable
from taccl.solvers.cpsat import to_whole_numbers
from taccl.solvers.solver import solve
from taccl.synthesis.milp.routing import RoutingModel
from taccl.synthesis.milp.solutions import needed_hops, routing_hint, routing_of
from taccl.synthesis.proposers.greedy import critical_priorities, expand, list_schedule
from taccl.synthesis.symmetry.quotient import take_quotient
from taccl.synthesis.symmetry.timing_group import timing_group
from taccl.topology.builder import TopologyBuilder
from tests.fuzzing import cases as seeds
from tests.fuzzing import some
from tests.synthesis.brute_force import optimal_ticks
from tests.synthesis.small_problems import (
    MB,
    custom,
    full,
    late_hold,
    linked,
    problem_of,
    random_group_problem,
    random_problem,
    relayed,
    ring,
    star,
    two_nodes,
)

SOLVERS = ("highs", "scip", "cbc", "gurobi", "cpsat")


def built(problem):
    """The quotient, its routing model, and the list schedule whose finish is the model's upper limit."""
    quotient = take_quotient(problem, symmetry_group(problem))
    found = list_schedule(quotient, critical_priorities(quotient))
    return quotient, RoutingModel(quotient, upper_ticks=found.finish_ticks), found


def solved(problem, solver="highs"):
    """(chunk, link) pairs of the routing, and the solution."""
    quotient, model, _ = built(problem)
    answer = solve(model.model, solver, time_limit_s=20)
    assert answer.status == "optimal"
    assert answer.values is not None
    return list(routing_of(model, answer.values)), answer


def cases():
    """Small problems that together use every clause."""
    quarter = tuple((r + 1) % 4 for r in range(4))
    heavy = ring(4, betas=(0, 1, 2))
    use = {"objective_weight": Fraction(1, 10)}
    return {
        "ring": problem_of(heavy, collectives.allgather(4)),
        "symmetric ring": problem_of(ring(4), collectives.allgather(4), symmetry=(quarter,)),
        "alltoall": problem_of(heavy, collectives.alltoall(4)),
        "star": problem_of(star(3), collectives.scatter(4)),
        "two nodes": problem_of(
            two_nodes(), collectives.allgather(4), merging=frozenset({4, 5, 6}), max_merge=2
        ),
        "own first": relayed(),
        "few connections": problem_of(
            full(4), collectives.allgather(4), switch_policies=(SwitchPolicy("s", "min-connections", tuple(range(12))),), **use
        ),
        "many connections": problem_of(
            full(4), collectives.broadcast(4), switch_policies=(SwitchPolicy("s", "max-connections", tuple(range(12))),), **use
        ),
        "light links": problem_of(full(4, port=True), collectives.broadcast(4), link_use="min-max", **use),
        "used links": problem_of(full(3, port=True), collectives.alltoall(3), link_use="max-min", **use),
    }  # fmt: skip


@pytest.mark.parametrize("name", cases())
def test_all_solvers_prove_one_objective(name):
    """HiGHS, SCIP, CBC, Gurobi and CP-SAT prove the same objective of one model."""
    _, model, _ = built(cases()[name])
    answers = {solver: solve(model.model, solver, time_limit_s=20) for solver in SOLVERS}
    assert {solver: answer.status for solver, answer in answers.items()} == dict.fromkeys(SOLVERS, "optimal")
    expected = answers["highs"].objective
    assert {solver: answer.objective for solver, answer in answers.items()} == pytest.approx(
        dict.fromkeys(SOLVERS, expected), abs=1e-5
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ring", "symmetric ring", "star", "two nodes", "own first"])
def test_the_objective_is_a_relaxation(name):
    """With the makespan alone as objective and all paths allowed, the optimum is a lower bound."""
    problem = cases()[name]
    _, answer = solved(problem)
    assert answer.objective is not None
    assert answer.objective <= optimal_ticks(problem) / problem.costs.ticks_per_us + 1e-6


def test_every_chunk_gets_a_path():
    """In a broadcast on the star the center sends to each leaf, in 3 us for the farthest."""
    pairs, answer = solved(problem_of(star(3), collectives.broadcast(4)))
    assert [pair[1] for pair in pairs] == [0, 2, 4]
    assert answer.objective == pytest.approx(3)


def test_load_sends_chunks_over_a_detour():
    """The load of a direct link makes some chunks take a detour.

    Four chunks go 0 -> 1 in 2 us directly or in 4 through rank 2; all on the direct link would load it for 8
    us. With two chunks on each path, every link is loaded for 4 us, and link 2 -> 1 is idle until the first
    chunk arrives at 2: 6 us. With three chunks on the direct link it is loaded for 6 us, too.
    """
    problem = problem_of(ring(3), custom(3, [([0], [1])] * 4))
    pairs, answer = solved(problem)
    assert answer.objective == pytest.approx(6)
    assert len(pairs) > 4


def test_several_origins_need_not_all_send():
    """A chunk that ranks 0 and 2 hold reaches rank 1 from one of them, over one link."""
    pairs, answer = solved(problem_of(ring(3), custom(3, [([0, 2], [1])])))
    assert len(pairs) == 1
    assert answer.objective == pytest.approx(2)


def test_own_chunks_delay_relayed_ones():
    """Rank 0's own chunk occupies the link until 2 us, so rank 1's chunk arrives at 4 us."""
    problem = relayed()
    _, answer = solved(problem)
    assert answer.objective == pytest.approx(4)
    _, free = solved(problem.with_clauses(own_first=frozenset()))
    assert free.objective is not None
    assert free.objective <= 3 + 1e-6


def behind_a_port(**clauses):
    """Four chunks over two links of 1 us behind a port that passes one at a time take 4 us."""
    builder = TopologyBuilder("port", [0] * 2)
    port = builder.add_resource("port")
    for _ in range(2):
        link = builder.add_link(0, 1, alpha_us=0, beta_us_per_mb=1)
        builder.add_hold(link, port, alpha_us=0, beta_us_per_mb=1)
    collective = custom(2, [([0], [1])] * 4)
    return problem_of(builder.build(), collective, objective_weight=Fraction(1, 10), **clauses)


def uses(pairs):
    """Number of chunks on each of the two links of `behind_a_port`, fewest first."""
    return sorted(sum(e == link for _, e in pairs) for link in (0, 1))


@pytest.mark.parametrize(
    ("policy", "used", "objective"), [("min-connections", 1, 4.1), ("max-connections", 2, 3.8)]
)
def test_switch_policies_count_connections(policy, used, objective):
    """Policy "min-connections" adds 0.1 us to the objective for every link in use, "max-connections" subtracts
    it."""
    pairs, answer = solved(behind_a_port(switch_policies=(SwitchPolicy("s", policy, (0, 1)),)))
    assert sum(count > 0 for count in uses(pairs)) == used
    assert answer.objective == pytest.approx(objective)


def test_few_connections_are_not_bought_with_time():
    """Six chunks use all six parallel links of 1 us: 0.01 per connection does not outweigh a microsecond."""
    problem = problem_of(
        linked("parallel", [0] * 2, ((0, 1) for _ in range(6)), alpha_us=0, beta_us_per_mb=1),
        custom(2, [([0], [1])] * 6),
        switch_policies=(SwitchPolicy("s", "min-connections", tuple(range(6))),),
    )
    pairs, answer = solved(problem)
    assert {e for _, e in pairs} == set(range(6))
    assert answer.objective == pytest.approx(1 + 0.01 * 6)


@pytest.mark.parametrize(("link_use", "objective"), [("min-max", 4.2), ("max-min", 3.8)])
def test_link_use_spreads_the_load(link_use, objective):
    """Both values of `link_use` balance the load: each of two links carries two of four chunks.

    "min-max" minimises the load of the busiest link, "max-min" maximises that of the least busy one.
    """
    pairs, answer = solved(behind_a_port(link_use=link_use))
    assert uses(pairs) == [2, 2]
    assert answer.objective == pytest.approx(objective)


def test_without_link_use_only_time_counts():
    """With `link_use` "free" only time counts: 4 us for any balance."""
    assert solved(behind_a_port(link_use="free"))[1].objective == pytest.approx(4)


def test_a_hint_is_a_point_of_the_model():
    """As a hint, the list schedule violates no row of the routing model, under any clause."""
    for name, problem in cases().items():
        quotient, model, found = built(problem)
        hint = routing_hint(model, found)
        assert hint is not None, name
        arrays = model.model.arrays()
        assert not arrays.violations(hint, 1e-6), name


def test_needed_hops_leave_out_what_leads_nowhere():
    """Needed hops exclude useless ones: a broadcast needs one hop into each of the other ranks."""
    problem = problem_of(full(4), collectives.broadcast(4))
    quotient, _, found = built(problem)
    assert len(needed_hops(quotient, found)) == 3


def test_a_symmetric_routing_names_all_members():
    """A symmetric routing on a ring of four lists all twelve (chunk, link) pairs, three per chunk."""
    pairs, _ = solved(cases()["symmetric ring"])
    assert len(pairs) == 12
    assert {sum(c == chunk for c, _ in pairs) for chunk in range(4)} == {3}


def test_a_solved_routing_can_be_scheduled():
    """The hops of a solved routing suffice for a list schedule."""
    problem = cases()["alltoall"]
    pairs, _ = solved(problem)
    quotient = take_quotient(problem, symmetry_group(problem)).restrict(pairs)
    found = list_schedule(quotient, critical_priorities(quotient))
    assert expand(quotient, found.sends, producer="test").finish_ticks == found.finish_ticks


def coming_back():
    """A chunk goes 0 -> 1 -> 2 -> {1, 3}, 1 us each: rank 3 is reached only by a multicast that also returns
    to 1."""
    topology = linked("coming back", [0] * 4, ((0, 1), (1, 2), (2, (1, 3))), alpha_us=0, beta_us_per_mb=1)
    return problem_of(topology, collectives.broadcast(4))


def test_a_multicast_may_come_to_where_the_chunk_is():
    """A multicast may deliver a chunk to a rank that holds it already, and delays nothing there.

    Rank 1 has the chunk from 0 at 1 us, and the multicast delivers it again at 3 us.
    """
    problem = coming_back()
    pairs, answer = solved(problem)
    assert pairs == [(0, 0), (0, 1), (0, 2)]
    assert answer.objective == pytest.approx(3)
    assert optimal_ticks(problem) == 3 * problem.costs.ticks_per_us


def test_a_state_takes_its_chunk_from_one_multicast():
    """A rank may take a chunk from one link, although a multicast delivers it later, too.

    Rank 1 takes the chunk from its own link at 1 us, to relay it; the multicast of 5 us serves rank 2.
    """
    builder = TopologyBuilder("early", [0] * 4)
    for src, dst, us in ((0, 1, 1), (0, (1, 2), 5), (1, 3, 4)):
        builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=us)
    _, answer = solved(problem_of(builder.build(), collectives.broadcast(4)))
    assert answer.objective == pytest.approx(5)


def test_a_single_path_may_pass_a_multicast():
    """The path of a chunk with one destination may include a multicast.

    A chunk for rank 3 alone goes 0 -> {1, 2} -> 3; its copy at rank 1 is unused.
    """
    topology = linked("pass", [0] * 4, [(0, (1, 2), 0, 1), (2, 3, 0, 1), (1, 3, 0, 9)])
    pairs, answer = solved(problem_of(topology, custom(4, [([0], [3])])))
    assert pairs == [(0, 0), (0, 1)]
    assert answer.objective == pytest.approx(2)


def test_own_chunks_first_over_a_multicast():
    """Local-first priority also holds on a multicast link.

    Rank 1's chunk follows rank 0's on 0 -> {2, 3}, from 1 to 2 us. A direct link delivers it to rank 2
    already at 1 us. It can leave rank 2 at 1 us: over 2 -> 4 it arrives at 3 us.
    """
    builder = TopologyBuilder("own", [0] * 5)
    for src, dst, us in ((1, 0, 1), (1, 2, 1), (0, (2, 3), 1), (2, 4, 2)):
        builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=us)
    collective = custom(5, [([0], [2, 3]), ([1], [2, 3, 4])])
    problem = problem_of(builder.build(), collective, own_first=frozenset({2}))
    _, answer = solved(problem)
    assert answer.objective == pytest.approx(3)
    assert optimal_ticks(problem) == 3 * problem.costs.ticks_per_us


def hyper_problem(seed):
    """A random problem of three or four ranks with plain, multicast and two-source links; costs of 0 to 3 us."""
    rng = random.Random(seed)
    num_ranks = rng.choice((3, 4))
    builder = TopologyBuilder(f"hyper {seed}", [0] * num_ranks)
    for _ in range(rng.randint(num_ranks, num_ranks + 4)):
        ranks = rng.sample(range(num_ranks), 3 if rng.random() < 0.5 else 2)
        ends = (ranks[0], ranks[1:]) if rng.random() < 0.7 else (ranks[:-1], ranks[-1])
        builder.add_link(*ends, alpha_us=rng.randint(0, 1), beta_us_per_mb=rng.randint(1, 3))
    ways = [
        ([rng.randrange(num_ranks)], sorted(rng.sample(range(num_ranks), rng.randint(1, num_ranks))))
        for _ in range(rng.randint(1, 2))
    ]
    return problem_of(builder.build(), custom(num_ranks, ways))


@pytest.mark.slow
def test_links_of_several_ends_leave_a_relaxation():
    """On feasible random problems the model accepts hints, and its optimum is at most that of exhaustive
    search."""
    compared = 0
    for seed in range(some(30, 60)):
        problem = hyper_problem(seed)
        try:
            check_reachable(problem)
            best = optimal_ticks(problem, max_states=3000)
        except TopologyError:
            continue
        if best is None:
            continue
        quotient = take_quotient(problem)
        model = RoutingModel(quotient, upper_ticks=best)
        answer = solve(model.model, "highs", time_limit_s=20)
        assert answer.status == "optimal", seed
        assert answer.objective is not None
        assert answer.objective <= best / problem.costs.ticks_per_us + 1e-6, seed
        found = list_schedule(quotient, critical_priorities(quotient))
        assert found is not None, seed
        model = RoutingModel(quotient, upper_ticks=found.finish_ticks)
        hint = routing_hint(model, found)
        assert hint is not None
        assert not model.model.arrays().violations(hint, 1e-6), seed
        compared += 1
    assert compared >= some(7, 15)


def copying_problems(seed):
    """A random problem of groups and one of multicast and two-source links, those of both that are feasible
    and without sums."""
    grouped, hyper = random_group_problem(seed), hyper_problem(seed)
    problems = [] if grouped.collective.combining else [grouped]
    try:
        check_reachable(hyper)
    except TopologyError:
        return problems
    return [*problems, hyper]


def behind_own_chunks(*own_mb, alpha=0):
    """Path 0 -> 1 -> 2 at 1 us/MB; rank 1's own chunks of the given MB leave before a 1 MB chunk from rank 0.

    The second link is pipelined: it is free again before its latency has passed.
    """
    return problem_of(
        linked("behind", [0] * 3, [(0, 1, 0, 1), (1, 2, alpha, 1)], alpha_meaning="pipelined"),
        custom(3, [([0], [2]), *([([1], [2])] * len(own_mb))]),
        chunk_bytes=[MB, *(each * MB for each in own_mb)],
        own_first=frozenset({1}),
        merging=frozenset({1}),
        max_merge=2,
    )


def test_a_relayed_chunk_is_as_long_as_itself():
    """A relayed chunk follows the own chunk of 3 MB and takes its own 1 us, from 3 to 4 us."""
    problem = behind_own_chunks(3)
    _, answer = solved(problem)
    assert answer.objective == pytest.approx(4)
    assert optimal_ticks(problem) == 4 * problem.costs.ticks_per_us


def test_a_relayed_chunk_waits_for_no_merged_send():
    """Under local-first priority a relayed chunk waits as if own chunks went one by one, not merged.

    Own chunks of 3 and 1 MB, merged, arrive at 6 us; the relayed one may leave at 5, as if the larger went
    alone. A hint with these times violates no row of the model.
    """
    quotient, model, found = built(behind_own_chunks(3, 1, alpha=2))
    over = [(len(send.hops), send.start_ticks) for send in found.sends if send.link == 1]
    assert over == [(2, 0), (1, 5)]
    hint = routing_hint(model, found)
    assert hint is not None
    assert not model.model.arrays().violations(hint, 1e-6)


def test_two_resources_that_ask_the_same_of_two_hops_ask_once():
    """Two hops that must keep the same distance in time on two shared resources get one binary variable for
    their order.

    These are the first and the last link of 0 -> 1 -> 2 -> 3, which share resources A and B. The list
    schedule violates no row of the model.
    """
    builder = TopologyBuilder("twice", [0] * 4)
    for src, alpha, beta in ((0, 0, 2), (1, 2, 2), (2, 1, 1)):
        builder.add_link(src, src + 1, alpha_us=alpha, beta_us_per_mb=beta)
    a, b = (builder.add_resource(name) for name in "AB")
    for link, resource, alpha, beta in ((0, a, 0, 1), (0, b, 0, 1), (2, a, 0, 1), (2, b, 1, 0)):
        builder.add_hold(link, resource, alpha_us=alpha, beta_us_per_mb=beta, side="receive")
    collective = custom(4, [([0], [0, 1, 3])])
    problem = problem_of(builder.build(), collective, merging=frozenset({0}), max_merge=3)
    quotient, _, found = built(problem)
    every = range(quotient.num_resources)
    model = RoutingModel(quotient, upper_ticks=found.finish_ticks, sequenced=every)
    hint = routing_hint(model, found)
    assert hint is not None
    assert len(model.goes_first) == 1
    assert not model.model.arrays().violations(hint, 1e-6)


@pytest.mark.fuzz
def test_schedules_are_points_of_the_model():
    """List schedules of random problems, and of both phases of sums, violate no row of the model."""
    for seed in seeds("schedules as points of routing models", few=12, many=1500):
        summed = random_problem(seed, combining=True)
        halves = (reduce_phase(summed), broadcast_phase(summed))
        for problem in (random_problem(seed), *halves, *copying_problems(seed)):
            quotient = take_quotient(problem, timing_group(problem))
            for noise in (0.0, 2.0, 8.0):
                priorities = critical_priorities(quotient, noise=noise, seed=seed)
                found = list_schedule(quotient, priorities)
                assert found is not None, seed
                for sequenced in ((), range(quotient.num_resources)):
                    model = RoutingModel(quotient, upper_ticks=found.finish_ticks, sequenced=sequenced)
                    hint = routing_hint(model, found)
                    assert hint is not None, seed
                    assert not model.model.arrays().violations(hint, 1e-6), (seed, sequenced)


@pytest.mark.slow
@pytest.mark.parametrize("started", [True, False])
def test_cbc_out_of_time_reports_no_solution(started):
    """At the time limit CBC reports no solution, with and without a start, rather than "infeasible" or a
    crash."""
    problem = problem_of(topologies.hypercube(4), collectives.allgather(16), routing_slack=0)
    quotient = take_quotient(problem)
    found = list_schedule(quotient, critical_priorities(quotient))
    model = RoutingModel(quotient, upper_ticks=found.finish_ticks)
    hint = routing_hint(model, found) if started else None
    limits = [0.02 + 0.04 * i for i in range(10)]
    answers = [solve(model.model, "cbc", time_limit_s=limit, hint=hint) for limit in limits]
    assert {answer.status for answer in answers} <= {"optimal", "feasible", "no-solution"}


def in_order(problem, solver="highs"):
    """Optimum in ticks of the routing model that orders the hops on every resource, without symmetry."""
    quotient = take_quotient(problem)
    found = list_schedule(quotient, critical_priorities(quotient))
    model = RoutingModel(quotient, upper_ticks=found.finish_ticks, sequenced=range(quotient.num_resources))
    answer = solve(model.model, solver, time_limit_s=20, hint=routing_hint(model, found))
    assert answer.status == "optimal"
    assert answer.objective is not None
    return answer.objective * problem.costs.ticks_per_us


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_load_counts_from_when_the_first_hop_can_hold_the_resource(solver):
    """The load of a resource counts from the first possible hold.

    Three links into rank 0 share its ingress for their last 2 us: 3 chunks take 1 + 3 x 2 us, not 6.
    """
    builder = TopologyBuilder("ingress", [0] * 4)
    ingress = builder.add_resource("ingress")
    for src in (1, 2, 3):
        link = builder.add_link(src, 0, alpha_us=1, beta_us_per_mb=2)
        builder.add_hold(link, ingress, alpha_us=0, beta_us_per_mb=2, side="receive")
    problem = problem_of(builder.build(), collectives.gather(4))
    assert solved(problem, solver)[1].objective == pytest.approx(7)
    assert in_order(problem, solver) == pytest.approx(7 * problem.costs.ticks_per_us)


def test_holds_at_the_end_of_a_send_are_kept_apart_there():
    """Links of 4 and 2 us hold one ingress for their last 2 and 1 us, so their sends may overlap."""
    problem = problem_of(late_hold(), custom(4, [([0], [2]), ([1], [3])]))
    assert in_order(problem) == optimal_ticks(problem)


@pytest.mark.slow
def test_resources_may_be_taken_in_different_orders():
    """Two sends may hold a shared egress in one order and a shared ingress in the other.

    A send of 8 us holds the egress for its first 2 us and the ingress for its last 2. Short sends that start
    later pass the ingress before the long one.
    """
    builder = TopologyBuilder("two ways", [0, 0])
    egress, ingress = builder.add_resource("egress"), builder.add_resource("ingress")
    for alpha in (6, 0):
        link = builder.add_link(0, 1, alpha_us=alpha, beta_us_per_mb=2)
        builder.add_hold(link, egress, alpha_us=0, beta_us_per_mb=2)
        builder.add_hold(link, ingress, alpha_us=0, beta_us_per_mb=2, side="receive")
    problem = problem_of(builder.build(), custom(2, [([0], [1])] * 5))
    assert in_order(problem) == optimal_ticks(problem)


@pytest.mark.fuzz
def test_a_model_with_every_order_is_exact():
    """The model that orders the hops on every resource has the optimum of exhaustive search.

    Sends do not merge, and all paths are allowed.
    """
    compared = 0
    for seed in seeds("routing models with every order against exhaustive search", few=12, many=250):
        summed = random_problem(seed, combining=True)
        halves = (reduce_phase(summed), broadcast_phase(summed))
        for given in (random_problem(seed), *halves, *copying_problems(seed)):
            problem = given.with_clauses(max_merge=1)
            if problem.collective.is_met:
                continue
            best = optimal_ticks(problem, max_states=3000)
            if best is None:
                continue
            assert in_order(problem) == pytest.approx(best, abs=1e-3), (seed, problem)
            compared += 1
    assert compared >= 12


@pytest.mark.slow
def test_every_number_is_a_fraction_that_scales():
    """Coefficients of a model with symmetry and merging are exact fractions that scale to CP-SAT's integers."""
    sketch = load_sketch("dgx2/sk1")
    problem = sketch.apply(sketch.topology(), collectives.allgather(32))
    quotient = take_quotient(problem, symmetry_group(problem))
    found = list_schedule(quotient, critical_priorities(quotient))
    assert found is not None
    assert any(quotient.merging)
    model = RoutingModel(quotient, upper_ticks=found.finish_ticks).model
    assert to_whole_numbers(model.arrays()).grid > 1


def test_chunks_over_a_merging_link_pay_for_whole_messages():
    """On a merging link the model counts alpha for whole numbers of sends.

    Three chunks of 1 us over a link of alpha 2 that merges two take two sends: 3 + 2 x 2 us.
    """
    builder = TopologyBuilder("merging", [0, 1])
    builder.add_link(0, 1, alpha_us=2, beta_us_per_mb=1)
    collective = custom(2, [([0], [1])] * 3)
    problem = problem_of(builder.build(), collective, merging=frozenset({0}), max_merge=2)
    assert solved(problem)[1].objective == pytest.approx(7)


def test_copies_from_one_rank_leave_its_port_one_after_another():
    """Copies of a chunk leave a rank's port one after another.

    A chunk that reaches rank 1 at 1 us and leaves over one port to three ranks takes 1 + 3 us.
    """
    builder = TopologyBuilder("port", [0] * 5)
    port = builder.add_resource("port")
    builder.add_link(0, 1, alpha_us=0, beta_us_per_mb=1)
    for dst in (2, 3, 4):
        link = builder.add_link(1, dst, alpha_us=0, beta_us_per_mb=1)
        builder.add_hold(link, port, alpha_us=0, beta_us_per_mb=1)
    assert solved(problem_of(builder.build(), collectives.broadcast(5)))[1].objective == pytest.approx(4)
