"""Sends into and out of sets of ranks that every schedule needs: derived by hand, and checked on schedules."""

import itertools
import random
from collections import Counter
from dataclasses import replace

import pytest

from taccl import collectives
from taccl.analysis.certificates.borders import Border
from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.certificates.certificate import BorderJob
from taccl.analysis.certificates.evaluation import passages
from taccl.analysis.certificates.evaluation.facts import Facts
from taccl.analysis.certificates.finding.needed_sends import NeededSends
from taccl.analysis.verification.verify import verify
from taccl.baselines import BASELINES
from taccl.errors import CollectiveError
from taccl.problem.chunks import Chunk
from taccl.problem.collective import Collective
from taccl.problem.making import make_problem
from taccl.problem.problem import Clauses, Problem
from taccl.schedule.timing import exact_times
from taccl.synthesis.synthesize import synthesize
from taccl.topology.builder import TopologyBuilder
from tests.arguments import WITHOUT_ARGUMENTS
from tests.fuzzing import MANY, some
from tests.synthesis.small_problems import (
    custom,
    full,
    linked,
    problem_of,
    random_problem,
    ring,
    star,
    two_nodes,
)

MB = 10**6


def chain(collective, **options):
    """A problem on a chain of two nodes: 0 -> 1 in 4 us, 1 -> 2 into the other node in 10 + 1 us, 2 -> 3 in 5
    us."""
    topology = linked("chain", [0, 0, 1, 1], [(0, 1, 0, 4), (1, 2, 10, 1), (2, 3, 0, 5)])
    return problem_of(topology, collective, **options)


def held(*resource_and_ticks):
    """Resources that a job's chunk holds after it has crossed the cut: {(resource, ticks held)}, or empty."""
    return frozenset([resource_and_ticks] if resource_and_ticks else [])


def jobs_at(problem, *ranks, entering=True):
    """The jobs (sends that every schedule needs) into a set of ranks, or out of it if not `entering`."""
    return NeededSends(problem).border(frozenset(ranks), entering=entering)


def test_sends_are_needed_into_ranks_and_nodes():
    """Needed sends are found for each single rank, and for each node if there are several."""
    sets = {frozenset((r,)) for r in range(4)}
    (name, ranks), (other, nodes) = NeededSends(problem_of(two_nodes(), collectives.allgather(4))).families
    assert (name, set(ranks)) == ("rank", sets)
    assert (other, nodes) == ("node", [frozenset({0, 1}), frozenset({2, 3})])


def test_one_node_is_no_set():
    """A topology of a single node has no cut around the node, as nothing enters it."""
    assert [name for name, _ in NeededSends(problem_of(ring(4), collectives.allgather(4))).families] == [
        "rank"
    ]


@pytest.mark.parametrize(
    ("ranks", "entering", "jobs"),
    [
        # The chunk enters the node that needs it at tick 4 or later; then link 2 -> 3 is held for 5 ticks.
        ((2, 3), True, (BorderJob(frozenset({1}), 1, 4, 5, held(2, 5)),)),
        # The chunk leaves its own node over the same link.
        ((0, 1), False, (BorderJob(frozenset({1}), 1, 4, 5, held(2, 5)),)),
        # Into rank 3 over link 2: release 4 + 11, tail 0; out of rank 0: release 0, tail 11 + 5.
        ((3,), True, (BorderJob(frozenset({2}), 1, 15, 0, held()),)),
        ((0,), False, (BorderJob(frozenset({0}), 1, 0, 16, held(1, 11)),)),
        # Rank 0 holds the chunk, ranks 1 and 2 only relay it, and rank 3 keeps it.
        *(
            (ranks, entering, ())
            for ranks, entering in (((2,), True), ((0,), True), ((1,), False), ((3,), False))
        ),
    ],
)
def test_a_chunk_crosses_the_borders_on_its_way(ranks, entering, jobs):
    """A chunk from rank 0 to 3 of a chain gives a job at each cut that it crosses."""
    assert jobs_at(chain(custom(4, [([0], [3])])), *ranks, entering=entering) == jobs


def test_a_chunk_that_starts_on_both_sides_need_not_leave():
    """A chunk that starts at ranks 0 and 2 need not leave 0, nor enter the second node."""
    problem = chain(custom(4, [([0, 2], [3])]))
    assert jobs_at(problem, 0, entering=False) == jobs_at(problem, 2, 3) == ()
    assert jobs_at(problem, 3) == (BorderJob(frozenset({2}), 1, 0, 0, held()),)


def test_equal_chunks_are_all_counted():
    """Every chunk is a job of its own, even if several have the same source, destination and size.

    Three chunks of 1 unit have release 4 + 11 at rank 3, and one of 2 units has 8 + 12.
    """
    problem = chain(custom(4, [([0], [3])] * 4), chunk_bytes=[MB, MB, 2 * MB, MB])
    assert sorted(jobs_at(problem, 3), key=lambda job: job.units) == [
        *[BorderJob(frozenset({2}), 1, 15, 0, held())] * 3,
        BorderJob(frozenset({2}), 2, 20, 0, held()),
    ]


def test_the_tail_is_that_of_the_farthest_destination():
    """A chunk for ranks 2 and 3 has the tail of the farther one, 5."""
    (job,) = jobs_at(chain(custom(4, [([0], [2, 3])])), 2, 3)
    assert (job.release, job.tail) == (4, 5)


def test_of_several_links_the_best_times_count():
    """A chunk from rank 1 enters {2, 3} of a star over 0 -> 2 or 0 -> 3, 1 us after its start.

    Rank 3, the farther one, has a link of its own, so the tail is 0.
    """
    (job,) = jobs_at(problem_of(star(3), custom(4, [([1], [2, 3])])), 2, 3)
    assert (job.links, job.release, job.tail) == (frozenset({2, 4}), 1, 0)


def test_only_links_that_may_carry_the_chunk_count():
    """Without link 0 -> 1 of a full graph the chunk enters rank 1 from rank 2, after 1 us."""
    topology = full(3)
    closed = topology.links_between(0, 1)[0]
    allowed = frozenset(range(6)) - {closed}
    (job,) = jobs_at(problem_of(topology, custom(3, [([0], [1])]), links_allowed=allowed), 1)
    assert job == BorderJob(frozenset(topology.links_between(2, 1)), 1, 1, 0, held())


def test_derived_chunks_enter_from_where_they_are_made():
    """Scan on a ring of 3: only prefix 1, derived at rank 1, enters rank 2."""
    problem = problem_of(ring(3), collectives.scan(3))
    (job,) = jobs_at(problem, 2)
    assert job.links == set(problem.topology.links_to[2])
    assert 0 <= job.release <= 2


def test_a_sum_enters_and_leaves_every_rank():
    """A sum enters and leaves every rank; releases are times before the send across the cut, tails are times
    after it.

    On a ring of 4 with 2 us per hop, contributions for rank 0 come from 2 hops away. The first hop takes 2
    us, the second one crosses the cut.
    """
    problem = problem_of(ring(4), custom(4, [([0, 1, 2, 3], [0, 1, 2, 3])], combining=True))
    links = problem.topology
    (into,), (out,) = jobs_at(problem, 0), jobs_at(problem, 0, entering=False)
    assert (into.links, into.release, into.tail) == (frozenset(links.links_to[0]), 2, 0)
    assert (out.links, out.release, out.tail) == (frozenset(links.links_from[0]), 0, 2)


def test_a_rank_that_adds_nothing_has_nothing_to_send():
    """Rank 2, which needs the sum of ranks 0 and 1 but adds nothing, sends nothing."""
    problem = problem_of(full(3), custom(3, [([0, 1], [0, 1, 2])], combining=True))
    assert jobs_at(problem, 2, entering=False) == ()
    assert len(jobs_at(problem, 2)) == 1


def test_with_direct_crossing_contributions_enter_one_by_one():
    """Three nodes of two, root 0: with direct crossing each other node's contributions enter node 0
    separately."""
    builder = TopologyBuilder("three nodes", [0, 0, 1, 1, 2, 2])
    for src in range(6):
        for dst in range(6):
            if src != dst:
                builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=1)
    everyone = list(range(6))
    problem = problem_of(builder.build(), custom(6, [(everyone, everyone)], combining=True))
    assert len(jobs_at(problem, 0, 1)) == 1
    direct = problem.with_clauses(direct_crossing=True)
    jobs = jobs_at(direct, 0, 1)
    node, links = problem.topology.node_of_rank, problem.topology.links
    assert sorted({node[links[e].src] for e in job.links} for job in jobs) == [{1}, {2}]
    assert len(jobs_at(direct, 2, 3)) == 1


def test_a_witness_on_a_part_of_the_roots_node_counts_one_sum():
    """With direct crossing, node 0 may add what enters it before ranks 0 and 1 of its three get it in a send.

    So an evaluation that is asked for these two ranks counts one send, and one per other node for the node.
    """
    builder = TopologyBuilder("three nodes of three", [r // 3 for r in range(9)])
    for src, dst in itertools.permutations(range(9), 2):
        builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=1)
    everyone = list(range(9))
    problem = problem_of(builder.build(), custom(9, [(everyone, everyone)], combining=True))
    facts = Facts(problem.with_clauses(direct_crossing=True), divisible=False, in_network=False)
    assert len(list(passages.jobs(facts, frozenset((0, 1)), entering=True))) == 1
    assert len(list(passages.jobs(facts, frozenset((0, 1, 2)), entering=True))) == 2


def test_symmetry_skips_equivalent_sets():
    """On a symmetric ring of 4 one rank represents all; on a chain no rank represents another."""
    ranks = [frozenset((r,)) for r in range(4)]
    assert NeededSends(problem_of(ring(4), collectives.allgather(4))).different(ranks) == ranks[:1]
    assert NeededSends(chain(collectives.allgather(4))).different(ranks) == ranks


def test_equivalent_sets_have_the_jobs_of_the_first():
    """The jobs of each rank equal rank 0's, with links and resources mapped by the symmetry."""
    demand = NeededSends(problem_of(ring(4, betas=(0, 1)), collectives.alltoall(4)))
    (turn,) = demand.symmetries.generators
    moved = [
        BorderJob(
            frozenset(turn.links[e] for e in j.links),
            j.units,
            j.release,
            j.tail,
            frozenset((turn.resources[r], t) for r, t in j.onward),
        )
        for j in jobs_at(demand.problem, 0)
    ]
    assert len(moved) == 3
    assert Counter(moved) == Counter(jobs_at(demand.problem, turn.ranks[0]))


def test_holds_by_link():
    """A send of u units over link 4 holds the link for 2 + u us and node 0's NIC for 1 + u us.

    Both holds begin at the start of the send. Link 0 is inside node 0 and holds neither resource.
    """
    demand = NeededSends(problem_of(two_nodes(), collectives.allgather(4)))
    nic = next(i for i, r in enumerate(demand.topology.resources) if r.name == "NIC of node 0")
    own = next(iter(set(demand.held[4]) - {nic}))
    assert demand.held[4] == {own: (2, 1, False), nic: (1, 1, False)}
    assert set(demand.held[0]) & {own, nic} == set()


def test_multicast_links_are_recognised():
    """A multicast link is reported as not single-ended, unless the sketch excludes it."""
    topology = linked("multicast", [0] * 3, [(0, (1, 2)), (0, 1)], alpha_us=0, beta_us_per_mb=1)
    problem = problem_of(topology, custom(3, [([0], [1])]))
    assert not NeededSends(problem).single_ended
    assert NeededSends(problem.with_clauses(links_allowed=frozenset({1}))).single_ended


def test_a_multicast_enters_where_one_of_its_ends_is():
    """A multicast link can deliver to rank 1, just as the plain link to rank 1 can."""
    topology = linked("multicast", [0] * 3, [(0, (1, 2)), (0, 1)], alpha_us=0, beta_us_per_mb=1)
    (job,) = jobs_at(problem_of(topology, custom(3, [([0], [1])])), 1)
    assert job.links == {0, 1}


def test_links_out_share_a_port_or_nothing():
    """Behind a port a chunk blocks all other links out for 1 us; without a port it blocks none."""
    for port, onward in ((True, held(0, 1)), (False, held())):
        demand = NeededSends(problem_of(full(3, port=port), custom(3, [([0], [1])])))
        assert demand.onward(demand.distances.carried(0), 1, frozenset({0})) == onward


def test_where_nothing_leads_out_nothing_is_held():
    """No link leads out of rank 3, the end of the chain, so a chunk there holds no further resource.

    Out of rank 1, a chunk of 2 units holds link 1 -> 2 for 10 + 2 us.
    """
    demand = NeededSends(chain(custom(4, [([0], [3])])))
    assert demand.onward(demand.distances.carried(0), 1, frozenset({3})) == held()
    assert demand.onward(demand.distances.carried(0), 2, frozenset({1})) == held(1, 12)


def must_cross(problem, ranks, *, entering):
    """Chunks that start outside a set of ranks and end in it (`entering`), or start only in the set and end
    outside."""
    chunks = set()
    for c, data in enumerate(problem.collective.chunks):
        starts, ends = set(data.origins), set(data.destinations)
        if (entering and not starts & ranks and ends & ranks) or (
            not entering and starts <= ranks and not ends <= ranks
        ):
            chunks.add(c)
    return chunks


@pytest.mark.parametrize("seed", range(some(15, 200)))
def test_every_schedule_does_the_jobs(seed):
    """Each chunk that must cross a cut does, no earlier than its release and no later than its tail allows."""
    problem = random_problem(seed)
    schedule = synthesize(problem, backend="greedy", time_limit_s=0.01).schedule
    demand = NeededSends(problem)
    for _, sets in demand.families:
        for entering in (True, False):
            for ranks, jobs in ((each, demand.border(each, entering=entering)) for each in sets):
                if not jobs:
                    continue
                chunks = must_cross(problem, ranks, entering=entering)
                assert len(jobs) == len(chunks)
                links = {e for job in jobs for e in job.links}
                over = [t for t in schedule if t.link in links and t.chunk in chunks]
                assert {t.chunk for t in over} == chunks
                assert min(t.start_ticks for t in over) >= min(job.release for job in jobs)
                least = min(job.tail for job in jobs)
                assert schedule.finish_ticks >= min(t.end_ticks for t in over) + least


def large_topology(seed):
    """A random topology of up to 8 ranks in one or two nodes, with chords, ports and NICs."""
    rng = random.Random(seed)
    num_ranks = rng.choice((4, 6, 8))
    halves = rng.random() < 0.6
    builder = TopologyBuilder(
        f"random {seed}",
        [int(halves and 2 * r >= num_ranks) for r in range(num_ranks)],
        alpha_meaning=rng.choice(("occupies", "pipelined")),
    )
    pairs = [(r, (r + d) % num_ranks) for r in range(num_ranks) for d in (1, -1)]
    others = [(a, b) for a in range(num_ranks) for b in range(num_ranks) if a != b and (a, b) not in pairs]
    pairs += rng.sample(others, rng.randint(0, len(others)))
    shared = [builder.add_resource(f"shared {i}") for i in range(3)]
    for src, dst in pairs:
        alpha, beta = rng.choice((0, 1, 5)), rng.choice((1, 2, 3))
        link = builder.add_link(src, dst, alpha_us=alpha, beta_us_per_mb=beta)
        for resource in shared:
            if rng.random() < 0.2:
                side = rng.choice(("send", "receive"))
                builder.add_hold(link, resource, alpha_us=0, beta_us_per_mb=beta, side=side)
    return builder.build()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(400 if MANY else 4))
def test_no_schedule_beats_the_bound(seed):
    """The list scheduler and all baselines never beat the bound on random topologies, collectives and
    merging."""
    rng = random.Random(seed)
    topology = large_topology(seed)
    collective = collectives.make(
        rng.choice(WITHOUT_ARGUMENTS), topology.num_ranks, chunks_per_rank=rng.choice((1, 2))
    )
    links = rng.choice((frozenset(), frozenset(topology.internode_links)))
    clauses = Clauses(max_merge=rng.choice((1, 2, 6)), merging=links)
    problem = make_problem(topology, collective, chunk_bytes=MB, clauses=clauses)
    schedules = [synthesize(problem, backend="greedy", time_limit_s=0.01).schedule]
    for function in BASELINES.values():
        try:
            schedules.append(function(problem, cut=False))
        except CollectiveError:
            continue
    bound = lower_bound(problem).bound
    for schedule in schedules:
        assert verify(schedule).ok
        assert bound <= schedule.finish
        assert lower_bound(schedule.problem).bound <= schedule.finish


def test_sums_may_meet_at_a_rank_that_needs_none():
    """Sums may be added at a rank that neither contributes nor needs them.

    Ranks 0, 1 and 2 share six sums and add them at rank 3, over links of 1 us to it and from it. Each sum is
    reduced to rank 3 over three links at once, and copied over the other three 1 us later: 7 us in total.
    Sends into rank 3 do not use the links into ranks 0, 1, 2.
    """
    builder = TopologyBuilder("meeting", [0] * 4)
    for rank in range(3):
        builder.add_link(rank, 3, alpha_us=0, beta_us_per_mb=1)
        builder.add_link(3, rank, alpha_us=0, beta_us_per_mb=1)
    problem = problem_of(builder.build(), custom(4, [([0, 1, 2], [0, 1, 2])] * 6, combining=True))
    sends = [(c, 2 * r + back, c + back) for c in range(6) for back in (0, 1) for r in range(3)]
    schedule = exact_times(
        problem,
        chunk=[c for c, _, _ in sends],
        link=[e for _, e, _ in sends],
        reduce=[e % 2 == 0 for _, e, _ in sends],
        starts=[start for _, _, start in sends],
        group=list(range(len(sends))),
    )
    assert verify(schedule).ok
    assert schedule.finish == 7
    assert lower_bound(problem).bound <= 7


def test_a_sum_that_its_root_does_not_need_need_not_cross():
    """Rank 0 adds the contributions of ranks 1 and 2; the root is rank 2, in the other node, and does not
    need the sum.

    Contributions of rank 1 need not enter {0, 2}: no rank of the other node needs the sum. Neither the bound
    nor the check claims a send.
    """
    builder = TopologyBuilder("rootless", [0, 0, 1])
    for src, dst in itertools.permutations(range(3), 2):
        builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=1)
    collective = Collective("sum", 3, (Chunk((1, 2), (0,), 2),), combining=True)
    problem = Problem(builder.build(), collective, (MB,), Clauses(direct_crossing=True))
    ranks = frozenset({0, 2})
    assert NeededSends(problem).border(ranks, entering=True) == ()
    claim = replace(lower_bound(problem), bound=5, witness=Border(ranks, entering=True))
    assert not claim.check()


@pytest.mark.parametrize("collective", WITHOUT_ARGUMENTS)
def test_ends_are_counted_once_for_each_kind_of_chunk(collective):
    """The count by columns equals the one over the kinds, for chunks of one and of several sizes."""
    chunks = collectives.make(collective, 4, chunks_per_rank=4)
    for sizes in ((8,), (8, 8, 24)):
        chunk_bytes = [sizes[c % len(sizes)] for c in range(chunks.num_chunks)]
        demand = NeededSends(make_problem(ring(4), chunks, chunk_bytes=chunk_bytes))
        counted = sum(len(kind.data.origins) + len(kind.data.destinations) for kind in demand.classes)
        assert demand.num_ends == counted
