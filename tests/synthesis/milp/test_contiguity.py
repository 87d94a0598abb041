"""The contiguity MILP against exhaustive enumeration of merges in a fixed order."""

import itertools
from collections import defaultdict
from dataclasses import replace

import pytest

from taccl import collectives
from taccl.analysis.verification.verify import verify
from taccl.solvers.solver import solve
from taccl.synthesis.milp.ordering import TAGS, ContiguityModel, merged
from taccl.synthesis.milp.solutions import needed_hops
from taccl.synthesis.proposers.greedy import ListSchedule, Send, critical_priorities, expand, list_schedule
from taccl.synthesis.symmetry.quotient import take_quotient
from taccl.topology.builder import TopologyBuilder
from tests.fuzzing import some
from tests.synthesis.small_problems import MB, custom, problem_of, random_problem, two_nodes

SOLVERS = ("highs", "scip", "cbc", "gurobi", "cpsat")


def ordered(problem):
    """The hops of the list scheduler's schedule, in their order."""
    quotient = take_quotient(problem)
    found = list_schedule(quotient, critical_priorities(quotient))
    if found is None or not found.sends:
        return None
    needed = needed_hops(quotient, found)
    routed = quotient.restrict((quotient.hops[m].chunk, quotient.hops[m].link) for m in needed)
    again = list_schedule(routed, critical_priorities(routed))
    return None if again is None else (routed, again)


def best_merging(quotient, schedule):
    """Least finish in ticks over all partitions of consecutive hops on merging links into merged sends."""
    needed = needed_hops(quotient, schedule)
    order = [m for send in schedule.sends for m in send.hops if m in needed]
    rows = defaultdict(list)
    for m in order:
        if quotient.merging[quotient.hops[m].link_orbit]:
            rows[quotient.hops[m].link_orbit].append(m)
    followers = [m for row in rows.values() for m in row[1:]]
    finishes = []
    for choice in itertools.product((False, True), repeat=len(followers)):
        joined = {m for m, joins in zip(followers, choice, strict=True) if joins}
        finishes.append(_finish(quotient, schedule, order, joined))
    return min(finish for finish in finishes if finish is not None)


def _finish(quotient, schedule, order, joined):
    """Finish of the order if the `joined` hops join the send before them on their link; None if the clauses
    forbid it."""
    batches = []
    batch_of = {}
    last = {}
    for m in order:
        link = quotient.hops[m].link_orbit
        if m in joined:
            batches[last[link]].append(m)
        else:
            last[link] = len(batches)
            batches.append([m])
        batch_of[m] = last[link]
    clauses = quotient.problem.clauses
    links = [quotient.hops[batch[0]].link_orbit for batch in batches]
    own = [{quotient.hops[m].is_own for m in batch} for batch in batches]
    own_first = [quotient.link_rep[link] in clauses.own_first for link in links]
    if any(
        len(batch) > clauses.max_merge or (first and len(kinds) > 1)
        for batch, first, kinds in zip(batches, own_first, own, strict=True)
    ):
        return None
    units = [sum(quotient.hops[m].units for m in batch) for batch in batches]
    length = [
        quotient.problem.costs.duration(quotient.link_rep[link], u)
        for link, u in zip(links, units, strict=True)
    ]
    gaps = []  # (batch, later batch, min ticks from the start of one to that of the other)
    entered = {}
    for m in order:
        b = batch_of[m]
        gaps += [(entered[p], b, length[entered[p]]) for p in quotient.hops[m].srcs if p in entered]
        for p in quotient.hops[m].dsts:
            entered.setdefault(p, b)
    for queue in _queues(quotient, schedule).values():
        turns = []  # (batch, begin, end) of the holds of one resource
        for m, held in queue:
            b = batch_of.get(m, -1)
            if b >= 0 and (not turns or turns[-1][0] != b):
                ticks = held.alpha + held.beta * units[b]
                begin = length[b] - ticks if held.receives else 0
                turns.append((b, begin, begin + ticks))
        if len({b for b, _, _ in turns}) < len(turns):
            return None
        for (a, _, until), (b, begin, _) in itertools.pairwise(turns):
            gaps.append((a, b, until - begin))
    for a, b in itertools.permutations(range(len(batches)), 2):
        if links[a] == links[b] and own_first[a] and own[a] == {True} and own[b] == {False}:
            gaps.append((a, b, max(quotient.hops[m].duration for m in batches[a])))
    start = [0] * len(batches)
    for _ in range(len(batches) + 1):
        late = [(a, b, gap) for a, b, gap in gaps if start[a] + gap > start[b]]
        if not late:
            return max(s + ticks for s, ticks in zip(start, length, strict=True))
        for a, b, gap in late:
            start[b] = max(start[b], start[a] + gap)
    return None


def _queues(quotient, schedule):
    """Hops that hold each resource, in the order of the schedule's sends."""
    taken = defaultdict(list)
    for index, send in enumerate(schedule.sends):
        units = sum(quotient.hops[m].units for m in send.hops)
        for held in quotient.holds[send.link]:
            late = send.end_ticks - held.alpha - held.beta * units
            taken[held.resource].append((late if held.receives else send.start_ticks, index, held))
    return {
        resource: [
            (m, held)
            for _, index, held in sorted(turns, key=lambda turn: turn[:2])
            for m in schedule.sends[index].hops
        ]
        for resource, turns in taken.items()
    }


def merge(quotient, schedule, solver="highs"):
    """The MILP's merged schedule of an order, and its objective in ticks."""
    contiguity = ContiguityModel(quotient, schedule)
    answer = solve(contiguity.model, solver, time_limit_s=20)
    assert answer.status == "optimal"
    assert answer.values is not None
    assert answer.objective is not None
    found = merged(contiguity, answer.values)
    return found, answer.objective * quotient.problem.costs.ticks_per_us


def line(count, *, alpha=2, onward=0, meaning="occupies", **clauses):
    """`count` chunks from rank 0 to rank 1 over a link of alpha + 1 us each; with `onward`, further to rank
    2."""
    builder = TopologyBuilder("line", [0, 1, 1], alpha_meaning=meaning)
    builder.add_link(0, 1, alpha_us=alpha, beta_us_per_mb=1)
    builder.add_link(1, 2, alpha_us=0, beta_us_per_mb=max(1, onward))
    ways = [([0], [2 if onward else 1])] * count
    return problem_of(builder.build(), custom(3, ways), **{"merging": frozenset({0}), **clauses})


def counts(quotient, found, link=0):
    """Number of chunks in each send over a link, in order."""
    return [len(send.hops) for send in found.sends if quotient.hops[send.hops[0]].link == link]


def given(problem):
    """The list scheduler's order of a problem, which must exist."""
    found = ordered(problem)
    assert found is not None
    return found


@pytest.mark.parametrize(("max_merge", "finish"), [(2, 3 * 2 + 6), (3, 2 * 2 + 6), (6, 2 + 6)])
def test_merging_saves_one_alpha_for_each_chunk_that_joins(max_merge, finish):
    """Six chunks of 1 us: the alpha of 2 us is paid once for every send of at most `max_merge`."""
    quotient, order = given(line(6, max_merge=max_merge))
    found, objective = merge(quotient, order)
    assert objective == pytest.approx(finish)
    assert found.finish_ticks == finish
    assert max(counts(quotient, found)) <= max_merge


def test_chunks_that_have_far_to_go_do_not_wait_for_others():
    """A chunk with a long path does not wait to be merged with the next one.

    Alpha is 1 us, each chunk takes 1 us more, and then 4 us onward. The first chunk, sent alone, keeps the
    second link busy from 2 to 10 us. Merged, both chunks would arrive at 3 us, and the second link would be busy
    until 3 + 4 + 4 us.
    """
    quotient, order = given(line(2, alpha=1, onward=4, max_merge=2))
    found, objective = merge(quotient, order)
    assert objective == pytest.approx(2 + 4 + 4)
    assert counts(quotient, found) == [1, 1]


def test_the_order_need_not_merge_for_the_model_to():
    """Two separate sends of a given order, 3 us each, are merged into one of 4 us."""
    quotient, order = given(line(2, max_merge=2))
    (both,) = order.sends
    apart = tuple(Send(both.link, (m,), 3 * i, 3 * i + 3) for i, m in enumerate(both.hops))
    found, objective = merge(quotient, ListSchedule(apart, 6))
    assert objective == pytest.approx(4)
    assert counts(quotient, found) == [2]


def test_links_that_do_not_merge_send_one_by_one():
    """Three chunks over a link that does not merge take three sends of 2 + 1 us, 9 us in all."""
    quotient, order = given(line(3, max_merge=3, merging=frozenset({1})))
    found, objective = merge(quotient, order)
    assert objective == pytest.approx(9)
    assert counts(quotient, found) == [1, 1, 1]


def two_kinds(*, meaning="occupies", **clauses):
    """Rank 0 sends two own chunks and one chunk from rank 1 to rank 2: 4 us + 1 us per chunk."""
    builder = TopologyBuilder("own and relayed", [0, 0, 1], alpha_meaning=meaning)
    builder.add_link(1, 0, alpha_us=0, beta_us_per_mb=1)
    builder.add_link(0, 2, alpha_us=4, beta_us_per_mb=1)
    ways = [([0], [2]), ([0], [2]), ([1], [2])]
    return problem_of(
        builder.build(), custom(3, ways), **{"merging": frozenset({1}), "max_merge": 3, **clauses}
    )


def test_own_and_relayed_chunks_never_share_a_send():
    """Own chunks share a send of 6 us, and the relayed one follows in a send of 5 us; without local-first
    priority all three share a send of 8 us."""
    problem = two_kinds(own_first=frozenset({1}))
    quotient, order = given(problem)
    found, objective = merge(quotient, order)
    assert objective == pytest.approx(11)
    assert counts(quotient, found, link=1) == [2, 1]
    assert verify(expand(quotient, found.sends, producer="test")).ok
    _, free = merge(*given(two_kinds()))
    assert free == pytest.approx(8)


def shared_nic(*, beta, held):
    """Links 0 -> 1 and 0 -> 2 take 2 us + `beta` us/MB and hold one NIC for 1 us + `held` us/MB."""
    builder = TopologyBuilder("shared NIC", [0, 1, 2])
    nic = builder.add_resource("NIC")
    for dst in (1, 2):
        link = builder.add_link(0, dst, alpha_us=2, beta_us_per_mb=beta)
        builder.add_hold(link, nic, alpha_us=1, beta_us_per_mb=held)
    return builder.build()


def test_a_shared_resource_keeps_its_order():
    """The first and the third of three sends do not merge, as they keep their order at the NIC.

    The sends go from rank 0 to ranks 1, 2 and 1.

    A send takes 2 + 1 us and holds the NIC for 1 + 1 us. So starts are 0, 2 and 4, and the last send ends at
    7. In another order the two sends to rank 1 could merge and hold the NIC for 1 + 2 us. The send to rank 2
    would then start at 3 and end at 6.
    """
    ways = [([0], [1]), ([0], [2]), ([0], [1])]
    topology = shared_nic(beta=1, held=1)
    problem = problem_of(topology, custom(3, ways), merging=frozenset({0, 1}), max_merge=2)
    quotient, _ = given(problem)
    of_chunk = {hop.chunk: m for m, hop in enumerate(quotient.hops)}
    sends = (Send(quotient.hops[of_chunk[c]].link_orbit, (of_chunk[c],), 2 * c, 2 * c + 3) for c in range(3))
    found, objective = merge(quotient, ListSchedule(tuple(sends), 7))
    assert objective == pytest.approx(7)
    assert counts(quotient, found, link=0) == [1, 1]


def test_batches_of_a_pipelined_link_are_only_beta_apart():
    """Merged sends on a pipelined link follow each other after beta alone.

    Four chunks of 1 us go in two sends of two, with an alpha of 2 us. The sends start at 0 and 2 us and take
    4 us each.
    """
    quotient, order = given(line(4, max_merge=2, meaning="pipelined"))
    assert order.finish_ticks == 6
    _, objective = merge(quotient, order)
    assert objective == pytest.approx(6)


def test_a_merged_send_frees_a_fast_resource_early():
    """A merged send frees a resource before its own end if the resource is faster than the link.

    0 -> 1 takes 2 + 2 us per chunk, its NIC 1 + 1: two merged chunks arrive at 6, but free the NIC at 3. So 0
    -> 2, with the same costs, goes from 3 to 7.
    """
    ways = [([0], [1]), ([0], [1]), ([0], [2])]
    topology = shared_nic(beta=2, held=1)
    problem = problem_of(topology, custom(3, ways), merging=frozenset({0, 1}), max_merge=2)
    quotient, order = given(problem)
    assert best_merging(quotient, order) == order.finish_ticks == 7
    _, objective = merge(quotient, order)
    assert objective == pytest.approx(7)


def test_a_receiving_hold_begins_later_the_fuller_the_send():
    """A hold at the receiving end begins later, the more chunks a send has.

    Link 0 -> 2 takes 2 us per chunk. It holds the ingress of rank 2 at the end of a send, for 1 us per chunk.
    So a send of two chunks holds it from 2 to 4 us. Link 1 -> 2 takes 2 us and holds the ingress all the
    time. It sends first, from 0 to 2 us, and the schedule ends at 4 us.
    """
    builder = TopologyBuilder("ingress", [0, 0, 1])
    ingress = builder.add_resource("ingress")
    for src, held in ((0, 1), (1, 2)):
        link = builder.add_link(src, 2, alpha_us=0, beta_us_per_mb=2)
        builder.add_hold(link, ingress, alpha_us=0, beta_us_per_mb=held, side="receive")
    ways = [([1], [2]), ([0], [2]), ([0], [2])]
    problem = problem_of(builder.build(), custom(3, ways), merging=frozenset({0}), max_merge=2)
    quotient, _ = given(problem)
    of_chunk = {hop.chunk: m for m, hop in enumerate(quotient.hops)}
    times = ((0, 0, 2), (1, 1, 3), (2, 3, 5))
    sends = (Send(quotient.hops[of_chunk[c]].link_orbit, (of_chunk[c],), a, b) for c, a, b in times)
    found, objective = merge(quotient, ListSchedule(tuple(sends), 5))
    assert objective == pytest.approx(4)
    assert counts(quotient, found, link=0) == [2]


def test_relayed_chunks_wait_a_latency_on_links_that_do_not_merge():
    """Under local-first priority, a relayed chunk follows the last own chunk after a whole latency.

    On a pipelined link with an alpha of 4 us, own chunks start at 0 and 1 us. The relayed chunk starts 5 us
    after the second of them, at 6, and ends at 11 us.
    """
    problem = two_kinds(meaning="pipelined", own_first=frozenset({1}), merging=frozenset())
    quotient, order = given(problem)
    found, objective = merge(quotient, order)
    assert objective == pytest.approx(11)
    assert verify(expand(quotient, found.sends, producer="test")).ok


def test_hops_that_lead_nowhere_do_not_count():
    """Hops beyond the last destination add nothing: 0 -> 1 takes 3 us, and 1 -> 2, not needed, is ignored."""
    quotient, order = given(line(1, onward=1))
    states = tuple(replace(state, is_destination=state.rank == 1) for state in quotient.states)
    found, objective = merge(replace(quotient, states=states), replace(order, finish_ticks=3))
    assert objective == pytest.approx(3)
    assert counts(quotient, found) == [1]
    assert len(order.sends) == 2


@pytest.mark.slow
def test_random_orders_are_merged_optimally():
    """On random orders the objective equals the best enumerated merging, and the schedule verifies and meets
    it."""
    compared = gained = 0
    for seed in range(1, some(60, 300) + 1):
        found = ordered(random_problem(seed))
        if found is None:
            continue
        quotient, order = found
        after, objective = merge(quotient, order)
        assert objective == pytest.approx(best_merging(quotient, order), abs=1e-3), seed
        whole = expand(quotient, after.sends, producer="test")
        assert verify(whole).ok, seed
        assert whole.finish_ticks <= round(objective), seed
        compared += 1
        gained += round(objective) < order.finish_ticks
    assert compared >= some(50, 250)
    assert gained >= some(2, 10)


@pytest.mark.parametrize(
    "problem",
    [
        line(5, onward=2, max_merge=3),
        two_kinds(own_first=frozenset({1})),
        problem_of(two_nodes(), collectives.allgather(4), merging=frozenset({4, 5, 6}), max_merge=2),
        problem_of(
            two_nodes(),
            collectives.broadcast(4),
            chunk_bytes=2 * MB,
            merging=frozenset({4, 5, 6}),
            max_merge=3,
        ),
    ],
    ids=["line", "own first", "allgather", "broadcast"],
)
def test_all_solvers_prove_one_objective(problem):
    """HiGHS, SCIP, CBC, Gurobi and CP-SAT prove the same objective of one model."""
    quotient, order = given(problem)
    expected = best_merging(quotient, order)
    assert {solver: merge(quotient, order, solver)[1] for solver in SOLVERS} == pytest.approx(
        dict.fromkeys(SOLVERS, expected), abs=1e-4
    )


def test_every_tag_has_rows():
    """In a model with all features every tag in `TAGS` has rows, and every row has one of these tags."""
    two_each = collectives.allgather(4, chunks_per_rank=2)
    quotient, order = given(problem_of(two_nodes(), two_each, merging=frozenset({4, 5, 6}), max_merge=2))
    assert set(ContiguityModel(quotient, order).model.tags) == set(TAGS)
