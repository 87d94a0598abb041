"""Phases of an allreduce that are isomorphic problems."""

import pytest

import taccl
from taccl import collectives
from taccl._internal.deadline import Deadline
from taccl.analysis.verification.verify import verify
from taccl.schedule.combine import broadcast_phase, reduce_phase
from taccl.synthesis.proposers.large_search import offer_compiled
from taccl.synthesis.proposers.stages import greedy
from taccl.synthesis.search import Options, Search
from taccl.synthesis.transforms.isomorphic import find_isomorphism, hand_over
from taccl.topology.builder import TopologyBuilder
from tests.effort import AMPLE_S
from tests.synthesis.small_problems import MB, full, problem_of, ring, star, two_nodes


def halves(problem):
    """The reduce phase reversed in time, and the broadcast phase."""
    return reduce_phase(problem), broadcast_phase(problem)


def isomorphism_of(topology, **clauses):
    """Isomorphism between the phases of an allreduce; None if there is none."""
    return find_isomorphism(
        *halves(problem_of(topology, collectives.allreduce(topology.num_ranks), **clauses))
    )


def pairs(*, meaning="occupies"):
    """Two nodes of two ranks, 1 us; each node's rank 1 sends to the other's rank 0 in 2 + 2 us."""
    builder = TopologyBuilder("pairs", [0, 0, 1, 1], alpha_meaning=meaning)
    for src, dst in ((0, 1), (1, 0), (2, 3), (3, 2)):
        builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=1)
    for src, dst in ((1, 2), (3, 0)):
        builder.add_link(src, dst, alpha_us=2, beta_us_per_mb=2)
    return builder.build()


@pytest.mark.parametrize(
    "topology", [ring(4), star(3), full(3), ring(4, meaning="pipelined")], ids=lambda t: t.name
)
def test_a_network_that_is_its_own_reverse_keeps_its_names(topology):
    """If link 2i is the reverse of link 2i + 1, ranks and chunks are mapped to themselves."""
    names = isomorphism_of(topology)
    assert names.ranks == names.chunks == tuple(range(topology.num_ranks))
    for e, image in names.links.items():
        assert topology.links[image].srcs == topology.links[e].dsts


def test_neighbours_that_send_and_receive_swap_names():
    """In reverse, rank 0 sends to the other node's rank 1, so ranks 0 and 1 of each node swap."""
    names = isomorphism_of(pairs())
    assert names.ranks == names.chunks == (1, 0, 3, 2)


@pytest.mark.parametrize("sketch", ["dgx2/sk1", "dgx2/sk2"])
def test_relays_limit_sums_by_their_roots_and_spreads_by_their_origins(sketch):
    """If one rank of each pair on a DGX-2 sends and the other one receives, the phases are isomorphic despite
    `carries_to`.
    """
    topology = taccl.topologies.dgx2(nodes=2)
    collective = collectives.allreduce(topology.num_ranks)
    problem = taccl.load_sketch(sketch).apply(topology, collective, size="1MB")
    assert problem.clauses.carries_to
    assert find_isomorphism(*halves(problem)) is not None


def one_way(beta):
    """A ring of three in one direction, with one slower link."""
    builder = TopologyBuilder("one way", [0] * 3)
    for src in range(3):
        builder.add_link(src, (src + 1) % 3, alpha_us=0, beta_us_per_mb=beta if src == 0 else 1)
    for src, slow in ((1, 3), (2, 4), (0, 5)):
        builder.add_link(src, (src - 1) % 3, alpha_us=0, beta_us_per_mb=slow)
    return builder.build()


def test_other_costs_are_another_problem():
    """Links of 2, 1 and 1 us in one direction, and 3, 4 and 5 in the other, are not isomorphic."""
    assert isomorphism_of(one_way(2)) is None


def test_a_port_on_one_side_is_another_problem():
    """A port for sending only is a port for receiving in reverse: not isomorphic."""
    assert isomorphism_of(full(3, port=True)) is None


def test_holds_that_begin_equally_late_may_begin_at_once():
    """Phases are isomorphic although holds of a NIC move from the end of a send to its start.

    Both sends over the NIC take 3 us and hold it for 2 us, so reversal in time shifts both holds by 1 us. In
    reverse, node 1 sends to node 0 through the NIC; with the nodes swapped the problem is the same.
    """
    names = isomorphism_of(two_nodes())
    assert names.ranks == (2, 3, 0, 1)


def test_a_hold_that_begins_later_for_some_is_another_problem():
    """Holds of 1 us in sends of 1 us and of 3 us: in reverse the second begins 2 us late, so not isomorphic."""
    builder = TopologyBuilder("NIC", [0, 1, 2])
    nic = builder.add_resource("NIC")
    for dst, beta in ((1, 1), (2, 3)):
        builder.add_hold(
            builder.add_link(0, dst, alpha_us=0, beta_us_per_mb=beta), nic, alpha_us=0, beta_us_per_mb=1
        )
    for src, beta in ((1, 1), (2, 3)):
        builder.add_hold(
            builder.add_link(src, 0, alpha_us=0, beta_us_per_mb=beta), nic, alpha_us=0, beta_us_per_mb=1
        )
    assert isomorphism_of(builder.build()) is None


@pytest.mark.parametrize(
    "clauses",
    [
        {"merging": frozenset({0}), "max_merge": 2},
        {"own_first": frozenset({0})},
        {"links_allowed": frozenset({0, 1, 2, 4, 5, 6, 7})},
        {"carries_from": {0: frozenset({0})}},
    ],
    ids=lambda clauses: next(iter(clauses)),
)
def test_clauses_are_part_of_the_problem(clauses):
    """With a clause on a single link of a ring of 4, the phases of an allreduce are not isomorphic.

    The reversed reduction has the clause on the opposite link. As each pair of ranks has links of another
    cost, no symmetry maps one link to the other.
    """
    assert isomorphism_of(ring(4, betas=(0, 0, 1, 1, 2, 2, 3, 3)), **clauses) is None


def searched(problem):
    """A search of the problem."""
    return Search(problem, Options(), Deadline())


@pytest.mark.parametrize("swap", [False, True], ids=["alone", "reduced"])
@pytest.mark.parametrize("meaning", ["occupies", "pipelined"])
def test_a_schedule_is_handed_over(meaning, swap):
    """The schedule of one phase, mapped to the other, verifies and has the same finish."""
    clauses = {"symmetry": ((2, 3, 0, 1),)} if swap else {}
    problem = problem_of(
        pairs(meaning=meaning),
        collectives.allreduce(4),
        chunk_bytes=MB,
        merging=frozenset({4, 5}),
        max_merge=2,
        **clauses,
    )
    one, other = (searched(half) for half in halves(problem))
    names = find_isomorphism(one.problem, other.problem)
    assert names is not None
    assert not hand_over(one, other, names)
    greedy(one, budget_s=0.0, max_runs=1)
    assert hand_over(one, other, names)
    assert one.best is not None
    assert other.best is not None
    assert verify(other.best).ok
    assert other.best.finish_ticks == one.best.finish_ticks
    assert one.quotient.group.order == (2 if swap else 1)


@pytest.mark.slow
def test_what_no_quotient_has_is_handed_over():
    """A schedule found without symmetry is also valid for a phase that is searched under symmetry."""
    alone = problem_of(ring(4), collectives.allreduce(4))
    reduced = alone.with_clauses(symmetry=((2, 3, 0, 1),))
    one, other = searched(reduce_phase(alone)), searched(broadcast_phase(reduced))
    offer_compiled(one, budget_s=AMPLE_S, num_runs=1)
    names = find_isomorphism(one.problem, other.problem)
    assert names is not None
    assert hand_over(one, other, names)
    assert one.best is not None
    assert other.best is not None
    assert verify(other.best).ok
    assert other.best.finish_ticks == one.best.finish_ticks


@pytest.mark.slow
def test_the_other_half_gets_the_best_that_was_found():
    """The best schedule of one phase, not its first, is mapped to the other phase.

    For 4 MB on a DGX-1 it is that of the compiled list scheduler, 30 us, not the first one of 40 us.
    """
    topology = taccl.topologies.dgx1(profile="nominal")
    problem = taccl.make_problem(topology, collectives.allreduce(8), size_bytes=4 * MB)
    one, other = (searched(half) for half in halves(problem))
    names = find_isomorphism(one.problem, other.problem)
    assert names is not None
    greedy(one, budget_s=0.0, max_runs=1)
    assert one.best_us == 40
    offer_compiled(one, budget_s=AMPLE_S)
    assert one.best_us == 30
    assert hand_over(one, other, names)
    assert other.best_us == 30
