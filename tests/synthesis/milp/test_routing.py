"""The routing MILP: every solver proves one objective, and each block of rows does what its tag says."""

import random
from fractions import Fraction

import pytest

from taccl import collectives, load_sketch, topologies
from taccl.errors import TopologyError
from taccl.problem.problem import SwitchPolicy
from taccl.schedule.combine import reduction_half, spreading_half
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
from tests.synthesis.brute_force import TooLarge, optimal_ticks
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
    """The quotient, its model, and the schedule that bounds it."""
    quotient = take_quotient(problem, symmetry_group(problem))
    found = list_schedule(quotient, critical_priorities(quotient))
    return quotient, RoutingModel(quotient, upper_ticks=found.finish_ticks), found


def solved(problem, solver="highs"):
    """The (chunk, link) pairs, and the solution."""
    quotient, model, _ = built(problem)
    answer = solve(model.model, solver, time_limit_s=20)
    assert answer.status == "optimal"
    assert answer.values is not None
    return list(routing_of(model, answer.values)), answer


def cases():
    """Small problems that use every clause."""
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
    """HiGHS, SCIP, CBC, Gurobi and CP-SAT on the same model."""
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
    """With T alone as objective, over all ways, no schedule finishes before it."""
    problem = cases()[name]
    _, answer = solved(problem)
    assert answer.objective is not None
    assert answer.objective <= optimal_ticks(problem) / problem.costs.ticks_per_us + 1e-6


def test_every_chunk_gets_a_way():
    """Broadcast on the star: the center sends to each leaf, in 3 us for the farthest."""
    pairs, answer = solved(problem_of(star(3), collectives.broadcast(4)))
    assert [pair[1] for pair in pairs] == [0, 2, 4]
    assert answer.objective == pytest.approx(3)


def test_load_sends_chunks_round_the_other_way():
    """Four chunks 0 -> 1 in 2 us, or by rank 2 in 4: all straight would load the link for 8.

    Two and two load every link for 4, and link 2 -> 1 is idle until the first is there at 2; three and one
    take as long.
    """
    problem = problem_of(ring(3), custom(3, [([0], [1])] * 4))
    pairs, answer = solved(problem)
    assert answer.objective == pytest.approx(6)
    assert len(pairs) > 4


def test_several_origins_need_not_all_send():
    """A chunk that ranks 0 and 2 hold comes to rank 1 from one of them: links 0 -> 1 or 2 -> 1 alone."""
    pairs, answer = solved(problem_of(ring(3), custom(3, [([0, 2], [1])])))
    assert len(pairs) == 1
    assert answer.objective == pytest.approx(2)


def test_own_chunks_delay_relayed_ones():
    """0's own chunk arrives at rank 2 at 2 and takes 2, so rank 1's, over the same link, at 4."""
    problem = relayed()
    _, answer = solved(problem)
    assert answer.objective == pytest.approx(4)
    _, free = solved(problem.with_clauses(own_first=frozenset()))
    assert free.objective is not None
    assert free.objective <= 3 + 1e-6


def behind_a_port(**clauses):
    """Four chunks over two links of 1 us behind a port that passes one at a time: 4 us in any case."""
    builder = TopologyBuilder("port", [0] * 2)
    port = builder.add_resource("port")
    for _ in range(2):
        link = builder.add_link(0, 1, alpha_us=0, beta_us_per_mb=1)
        builder.add_hold(link, port, alpha_us=0, beta_us_per_mb=1)
    collective = custom(2, [([0], [1])] * 4)
    return problem_of(builder.build(), collective, objective_weight=Fraction(1, 10), **clauses)


def uses(pairs):
    """How many chunks the two links of `behind_a_port` carry, fewest first."""
    return sorted(sum(e == link for _, e in pairs) for link in (0, 1))


@pytest.mark.parametrize(
    ("policy", "used", "objective"), [("min-connections", 1, 4.1), ("max-connections", 2, 3.8)]
)
def test_switch_policies_count_connections(policy, used, objective):
    """4 us, and 0.1 for or against every link in use."""
    pairs, answer = solved(behind_a_port(switch_policies=(SwitchPolicy("s", policy, (0, 1)),)))
    assert sum(count > 0 for count in uses(pairs)) == used
    assert answer.objective == pytest.approx(objective)


def test_few_connections_are_not_bought_with_time():
    """Six chunks over six links of 1 us side by side: 0.01 a connection does not outweigh a microsecond."""
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
    """Two chunks on each of the two links: the busiest is as light, the idlest as used as can be."""
    pairs, answer = solved(behind_a_port(link_use=link_use))
    assert uses(pairs) == [2, 2]
    assert answer.objective == pytest.approx(objective)


def test_without_link_use_only_time_counts():
    """4 us however the chunks are spread."""
    assert solved(behind_a_port(link_use="free"))[1].objective == pytest.approx(4)


def test_a_hint_is_a_point_of_the_model():
    """What the list scheduler made breaks no row, whichever clauses the sketch has."""
    for name, problem in cases().items():
        quotient, model, found = built(problem)
        hint = routing_hint(model, found)
        assert hint is not None, name
        arrays = model.model.arrays()
        assert not arrays.violations(hint, 1e-6), name


def test_needed_hops_leave_out_what_leads_nowhere():
    """A broadcast needs one hop into each of the other ranks."""
    problem = problem_of(full(4), collectives.broadcast(4))
    quotient, _, found = built(problem)
    assert len(needed_hops(quotient, found)) == 3


def test_a_symmetric_routing_names_all_members():
    """Twelve (chunk, link) pairs on a ring of four, three a chunk."""
    pairs, _ = solved(cases()["symmetric ring"])
    assert len(pairs) == 12
    assert {sum(c == chunk for c, _ in pairs) for chunk in range(4)} == {3}


def test_a_solved_routing_can_be_scheduled():
    """Its hops alone suffice."""
    problem = cases()["alltoall"]
    pairs, _ = solved(problem)
    quotient = take_quotient(problem, symmetry_group(problem)).restrict(pairs)
    found = list_schedule(quotient, critical_priorities(quotient))
    assert expand(quotient, found.sends, producer="test").finish_ticks == found.finish_ticks


def coming_back():
    """A chunk goes 0 -> 1 -> 2 -> {1, 3}, 1 us each: only a multicast that comes back to rank 1 leads to rank 3."""
    topology = linked("coming back", [0] * 4, ((0, 1), (1, 2), (2, (1, 3))), alpha_us=0, beta_us_per_mb=1)
    return problem_of(topology, collectives.broadcast(4))


def test_a_multicast_may_come_to_where_the_chunk_is():
    """Rank 1 has its chunk from 0 at 1 us; that the multicast brings it again at 3 us delays nothing."""
    problem = coming_back()
    pairs, answer = solved(problem)
    assert pairs == [(0, 0), (0, 1), (0, 2)]
    assert answer.objective == pytest.approx(3)
    assert optimal_ticks(problem) == 3 * problem.costs.ticks_per_us


def test_a_state_takes_its_chunk_from_one_multicast():
    """Rank 1 needs the chunk from its own link at 1 us, to send it on; the multicast of 5 us is for rank 2."""
    builder = TopologyBuilder("early", [0] * 4)
    for src, dst, us in ((0, 1, 1), (0, (1, 2), 5), (1, 3, 4)):
        builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=us)
    _, answer = solved(problem_of(builder.build(), collectives.broadcast(4)))
    assert answer.objective == pytest.approx(5)


def test_a_single_path_may_pass_a_multicast():
    """0 -> {1, 2} -> 3 for rank 3 alone: the copy at rank 1 goes nowhere."""
    topology = linked("pass", [0] * 4, [(0, (1, 2), 0, 1), (2, 3, 0, 1), (1, 3, 0, 9)])
    pairs, answer = solved(problem_of(topology, custom(4, [([0], [3])])))
    assert pairs == [(0, 0), (0, 1)]
    assert answer.objective == pytest.approx(2)


def test_own_chunks_first_over_a_multicast():
    """Rank 1's chunk follows rank 0's on 0 -> {2, 3}, from 1 to 2 us, though rank 2 has it at 1 us by a link of its own.

    It can leave rank 2 at once: with 2 us over 2 -> 4 it is there at 3 us.
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
    """Three or four ranks, single links, multicasts and links that wait for two sources; costs of 0 to 3 us."""
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
    """On random problems that can be solved, the model has a point, none above the optimum, and takes hints."""
    compared = 0
    for seed in range(some(30, 60)):
        problem = hyper_problem(seed)
        try:
            check_reachable(problem)
            best = optimal_ticks(problem, max_states=3000)
        except (TopologyError, TooLarge):
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
    """A random problem of groups, and one of multicasts and links of several sources, unless they sum up or fail."""
    grouped, hyper = random_group_problem(seed), hyper_problem(seed)
    problems = [] if grouped.collective.combining else [grouped]
    try:
        check_reachable(hyper)
    except TopologyError:
        return problems
    return [*problems, hyper]


def behind_own_chunks(*own_mb, alpha=0):
    """0 -> 1 -> 2, 1 us a MB; rank 1's own chunks, of so many MB, leave before the one of 1 MB from rank 0.

    The second link has a latency, and is free again before a send over it has arrived.
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
    """It follows the own chunk of 3 MB, from 3 to 4 us; were it as long as that, it would not be there in time."""
    problem = behind_own_chunks(3)
    _, answer = solved(problem)
    assert answer.objective == pytest.approx(4)
    assert optimal_ticks(problem) == 4 * problem.costs.ticks_per_us


def test_a_relayed_chunk_waits_for_no_merged_send():
    """Own chunks of 3 and 1 MB, sent as one, arrive at 6 us; alone the larger would at 5, when the relayed one leaves.

    A hint that says so is a point of the model.
    """
    quotient, model, found = built(behind_own_chunks(3, 1, alpha=2))
    over = [(len(send.hops), send.start_ticks) for send in found.sends if send.link == 1]
    assert over == [(2, 0), (1, 5)]
    hint = routing_hint(model, found)
    assert hint is not None
    assert not model.model.arrays().violations(hint, 1e-6)


def test_two_resources_that_ask_the_same_of_two_hops_ask_once():
    """0 -> 1 -> 2 -> 3: the first and the last link hold A and B, either order with the same gaps on both.

    One binary says who goes first, and a schedule is a point of the model.
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
    """Whatever the list scheduler makes of a random problem, or of the halves of a sum, breaks no row."""
    for seed in seeds("schedules as points of routing models", few=25, many=1500):
        summed = random_problem(seed, combining=True)
        halves = (reduction_half(summed), spreading_half(summed))
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


@pytest.mark.parametrize("started", [True, False])
def test_cbc_out_of_time_says_so(started):
    """CBC neither dies nor calls a model infeasible where time is up at its root, with or without a start."""
    problem = problem_of(topologies.hypercube(4), collectives.allgather(16), routing_slack=0)
    quotient = take_quotient(problem)
    found = list_schedule(quotient, critical_priorities(quotient))
    model = RoutingModel(quotient, upper_ticks=found.finish_ticks)
    hint = routing_hint(model, found) if started else None
    limits = [0.02 + 0.04 * i for i in range(10)]
    answers = [solve(model.model, "cbc", time_limit_s=limit, hint=hint) for limit in limits]
    assert {answer.status for answer in answers} <= {"optimal", "feasible", "no-solution"}


def in_order(problem, solver="highs"):
    """The least T of the routing model with an order on every resource, in ticks, on a quotient by no symmetry."""
    quotient = take_quotient(problem)
    found = list_schedule(quotient, critical_priorities(quotient))
    model = RoutingModel(quotient, upper_ticks=found.finish_ticks, sequenced=range(quotient.num_resources))
    answer = solve(model.model, solver, time_limit_s=20, hint=routing_hint(model, found))
    assert answer.status == "optimal"
    assert answer.objective is not None
    return answer.objective * problem.costs.ticks_per_us


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_load_counts_from_when_the_first_hop_can_hold_the_resource(solver):
    """Three links into rank 0 share its ingress for their last 2 us: 3 chunks take 1 + 3 x 2, not 6."""
    builder = TopologyBuilder("ingress", [0] * 4)
    ingress = builder.add_resource("ingress")
    for src in (1, 2, 3):
        link = builder.add_link(src, 0, alpha_us=1, beta_us_per_mb=2)
        builder.add_hold(link, ingress, alpha_us=0, beta_us_per_mb=2, side="receive")
    problem = problem_of(builder.build(), collectives.gather(4))
    assert solved(problem, solver)[1].objective == pytest.approx(7)
    assert in_order(problem, solver) == pytest.approx(7 * problem.costs.ticks_per_us)


def test_holds_at_the_end_of_a_send_are_kept_apart_there():
    """Links of 4 and 2 us hold one ingress for their last 2 and 1 us, so both may be under way at one time."""
    problem = problem_of(late_hold(), custom(4, [([0], [2]), ([1], [3])]))
    assert in_order(problem) == optimal_ticks(problem)


def test_resources_may_be_taken_in_different_orders():
    """The long way takes the egress first and the ingress last: 2 + 6 us, with the short send in between."""
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
    """Where nothing merges and no way is left out, its least T is the least finish by exhaustive search."""
    compared = 0
    for seed in seeds("routing models with every order against exhaustive search", few=12, many=250):
        summed = random_problem(seed, combining=True)
        halves = (reduction_half(summed), spreading_half(summed))
        for given in (random_problem(seed), *halves, *copying_problems(seed)):
            problem = given.with_clauses(max_merge=1)
            if problem.collective.is_met:
                continue
            try:
                best = optimal_ticks(problem, max_states=3000)
            except TooLarge:
                continue
            assert in_order(problem) == pytest.approx(best, abs=1e-3), (seed, problem)
            compared += 1
    assert compared >= 12


@pytest.mark.slow
def test_every_number_is_a_fraction_that_scales():
    """Loads that members share and that merged sends spread are divided once, so CP-SAT has them exactly."""
    sketch = load_sketch("dgx2/sk1")
    problem = sketch.apply(sketch.topology(), collectives.allgather(32))
    quotient = take_quotient(problem, symmetry_group(problem))
    found = list_schedule(quotient, critical_priorities(quotient))
    assert found is not None
    assert any(quotient.merging)
    model = RoutingModel(quotient, upper_ticks=found.finish_ticks).model
    assert to_whole_numbers(model.arrays()).grid > 1


def test_chunks_over_a_merging_link_pay_for_whole_messages():
    """Three chunks of 1 us over a link of alpha 2 that merges two: two messages, so 3 + 2 x 2 us."""
    builder = TopologyBuilder("merging", [0, 1])
    builder.add_link(0, 1, alpha_us=2, beta_us_per_mb=1)
    collective = custom(2, [([0], [1])] * 3)
    problem = problem_of(builder.build(), collective, merging=frozenset({0}), max_merge=2)
    assert solved(problem)[1].objective == pytest.approx(7)


def test_copies_from_one_rank_leave_its_port_one_after_another():
    """A chunk that reaches rank 1 at 1 us and leaves over one port to three ranks takes 1 + 3 us."""
    builder = TopologyBuilder("port", [0] * 5)
    port = builder.add_resource("port")
    builder.add_link(0, 1, alpha_us=0, beta_us_per_mb=1)
    for dst in (2, 3, 4):
        link = builder.add_link(1, dst, alpha_us=0, beta_us_per_mb=1)
        builder.add_hold(link, port, alpha_us=0, beta_us_per_mb=1)
    assert solved(problem_of(builder.build(), collectives.broadcast(5)))[1].objective == pytest.approx(4)
