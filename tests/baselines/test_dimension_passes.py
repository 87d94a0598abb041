"""Baselines along the dimensions of a product topology: kinds of dimensions, phases, and every send."""

import random
from dataclasses import replace
from fractions import Fraction

import pytest

import taccl
from taccl.analysis.verification.verify_implicit import verify_implicit
from taccl.baselines import dimension_balanced, hierarchical
from taccl.baselines.dimension_passes import Pace, form_of, plan_along
from taccl.baselines.dimension_sends import implicit_along, paces_of, schedule_along, translations_along
from taccl.baselines.hierarchical import level_orders
from taccl.errors import CollectiveError, InputError, TopologyError
from taccl.problem.collectives import make
from taccl.problem.making import make_problem
from taccl.schedule.implicit_schedule import IMPLICIT_COLLECTIVES, ticks_of
from taccl.schedule.timing import exact_times
from taccl.topologies import dgx_h100, multidim, parse
from taccl.topology.products import read_dimensions
from taccl.topology.recognise import dimensions
from tests.analysis.valid_schedules import full
from tests.fuzzing import by_turns, cases

NAMES = (
    "multidim:switch4@100,ring3@50@0.7", "multidim:ring4@50,switch3@100,fully-connected3@60", "torus:3x5",
    "torus:2x6", "hypercube:3", "ring:7", "ring:8", "star:5", "fully-connected:6", "ring:2",
)  # fmt: skip


def orders_of(rng, dims, count):
    """Random orders of the dimensions."""
    return [rng.sample(range(len(dims)), len(dims)) for _ in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "collective"), by_turns(NAMES, IMPLICIT_COLLECTIVES))
def test_any_orders_make_a_valid_schedule(name, collective):
    """Random orders of dimensions give valid schedules, listed and implicit, without redundant sends, that
    finish as planned."""
    rng = random.Random(name + collective)
    for alpha_meaning in ("occupies", "pipelined"):
        topology = parse(name, alpha_meaning=alpha_meaning)
        for host in (topology, taccl.dimensions(name).host):
            dims = dimensions(host)
            count = rng.choice((1, 3, 5))
            orders = orders_of(rng, dims, count)
            if host is topology:
                problem = make_problem(topology, collective, chunk_bytes=10000, chunks_per_rank=count)
                plan = plan_along(dims, collective, orders, paces_of(dims, problem.costs))
                schedule = schedule_along(plan, problem, producer="test")
                for each in (schedule, full(schedule)):
                    verification = taccl.verify(each)
                    assert verification.ok and not verification.num_redundant
            else:
                shape = translations_along(dims)
                ticks = ticks_of(shape.classes, 10000)
                plan = plan_along(dims, collective, orders, paces_of(dims, ticks))
                schedule = implicit_along(plan, shape, chunk_bytes=10000, producer="test")
                verification = verify_implicit(schedule)
                assert verification.ok and not verification.num_redundant
            assert schedule.finish_ticks == plan.finish_ticks


@pytest.mark.parametrize("collective", ["allgather", "reduce-scatter", "allreduce"])
def test_meshes_have_lines(collective):
    """On a mesh the schedule lists every send, as sends along its lines differ by rank, and is valid."""
    topology = parse("mesh:3x4")
    dims = dimensions(topology)
    problem = make_problem(topology, collective, chunk_bytes=10000, chunks_per_rank=3)
    plan = plan_along(dims, collective, [(0, 1), (1, 0), (1, 0)], paces_of(dims, problem.costs))
    assert taccl.verify(schedule_along(plan, problem, producer="test")).ok
    with pytest.raises(TopologyError, match="found a line"):
        translations_along(dims)


def test_an_alltoall_has_no_steps_along_a_line():
    """An alltoall along a line is refused."""
    dims = dimensions("mesh:3x4")
    with pytest.raises(CollectiveError, match="found a line"):
        plan_along(dims, "alltoall", [(0, 1)], [Pace(1, 1)] * 2)


@pytest.mark.parametrize(
    ("word", "pieces", "pace", "exchange", "runs"),
    [
        # Two pieces for each of seven other ranks pass one port in sequence.
        ("switch8@1", 2, Pace(10, 15), False, [(0, 140)]),
        # Each of the seven other ranks is reached over a link of its own.
        ("fully-connected8@1", 2, Pace(10, 15), False, [(0, 20)]),
        # Two of four other ranks are in each direction: two steps of four pieces, one after the other.
        ("ring5@1", 4, Pace(10, 10), False, [(1, 80), (-1, 80)]),
        # One neighbour is in each direction; half of the pieces for the opposite rank follow each way.
        ("ring4@1", 4, Pace(10, 10), False, [(1, 60), (-1, 60)]),
        # The second step waits for the latency of the first.
        ("ring5@1", 1, Pace(10, 100), False, [(1, 10), (1, 10), (-1, 10), (-1, 10)]),
        # Both ways a piece goes to the next rank (1 hop), and another through it to the one after (2 hops).
        ("ring5@1", 1, Pace(10, 10), True, [(1, 30), (-1, 30)]),
        # On a line of three, pieces from one end take two steps.
        ("line3@1", 2, Pace(10, 10), False, [(1, 40), (-1, 40)]),
    ],
)
def test_busy_ticks_along_a_dimension_by_hand(word, pieces, pace, exchange, runs):
    """The runs of one chunk along a dimension equal those derived by hand.

    A run is consecutive hops in one direction, given as (direction, ticks for which its links are busy).
    Direction 0 means that the dimension has only one.
    """
    each = read_dimensions(word.replace("line", "ring"))[0]
    form = form_of(replace(each, kind="line") if "line" in word else each, exchange=exchange)
    assert [(run.lane, run.busy) for run in form.runs(pieces, pace, parity=0, most=99)] == runs


def test_a_single_piece_goes_one_way_across_a_ring():
    """On a ring of four a single piece for the opposite rank cannot be halved: even chunks go one way, odd
    ones the other."""
    form = form_of(read_dimensions("ring4@1")[0], exchange=False)
    for parity, ways in ((0, [1, 1, -1]), (1, [1, -1, -1])):
        assert [run.lane for run in form.runs(1, Pace(10, 100), parity=parity, most=99)] == ways


@pytest.mark.slow
def test_steps_of_chunks_fill_gaps_where_a_ring_would_idle():
    """On a ring of 64 ranks, sends of other chunks fill the time in which one chunk would wait for latency.

    The latency is 100 times as long as a send.
    """
    dims = dimensions("multidim:ring64@1")
    plan = plan_along(dims, "allgather", [(0,)] * 64, [Pace(1, 100)])
    alone = plan_along(dims, "allgather", [(0,)], [Pace(1, 100)])
    assert alone.finish_ticks >= 32 * 100
    assert plan.finish_ticks < 64 * alone.finish_ticks / 10


def test_many_steps_are_scheduled_some_at_a_time(monkeypatch):
    """If only one run (consecutive sends of a chunk) is scheduled at a time, the schedule is valid and
    finishes as planned."""
    monkeypatch.setattr("taccl.baselines.dimension_passes._MOST_RUNS", 1)
    dims = dimensions("multidim:ring9@1,ring8@2")
    shape = translations_along(dims)
    plan = plan_along(dims, "allreduce", [(0, 1), (1, 0)], paces_of(dims, ticks_of(shape.classes, 1000)))
    assert all(len(each.runs) == 2 for each in plan.passages)
    schedule = implicit_along(plan, shape, chunk_bytes=1000, producer="test")
    assert verify_implicit(schedule).ok and schedule.finish_ticks == plan.finish_ticks


def test_hierarchical_by_hand():
    """The hierarchical allreduce on 2 x 2 ranks finishes as computed by hand.

    At 1 MB/us and one chunk of 4 MB per rank, 8 MB pass along dimension 1 and 4 MB along dimension 2. The
    reduce-scatter takes 8 + 4 us, and the allgather the same.
    """
    topology = multidim("switch2@1000,switch2@1000", alpha_us=0)
    problem = make_problem(topology, "allreduce", chunk_bytes=4 * 10**6, chunks_per_rank=1)
    assert hierarchical(problem, order=(0, 1), chunks=1).finish_us == 2 * (8 + 4)


def test_chunks_follow_one_another():
    """One chunk is sent along dimension 2 while the next is sent along dimension 1: two half chunks take 4 *
    4 us."""
    topology = multidim("switch2@1000,switch2@1000", alpha_us=0)
    problem = make_problem(topology, "allreduce", chunk_bytes=4 * 10**6, chunks_per_rank=1)
    assert hierarchical(problem, order=(0, 1), chunks=2).finish_us == 4 * 4


def test_orders_of_their_own_keep_both_dimensions_busy():
    """Two chunks in opposite orders keep both dimensions busy: 4 + 2 us in each phase."""
    topology = multidim("switch2@1000,switch2@1000", alpha_us=0)
    problem = make_problem(topology, "allreduce", chunk_bytes=2 * 10**6, chunks_per_rank=2)
    assert level_orders(dimensions(topology), 2) == [(0, 1), (1, 0)]
    assert dimension_balanced(problem, cut=False).finish_us == 2 * (4 + 2)


@pytest.mark.slow
def test_hierarchical_of_dimensions_is_implicit():
    """On 1,024 ranks the schedule is implicit and valid; on fewer ranks implicit and listed schedules finish
    at the same time."""
    large = hierarchical(taccl.dimensions("multidim:switch16@100,switch64@100"), chunks=4)
    assert large.num_ranks == 1024 and verify_implicit(large).ok
    topology = parse("multidim:switch4@100,ring3@50")
    small = hierarchical(
        taccl.dimensions(topology), order=(1, 0), chunks=2, size="1.2MB", collective="allgather"
    )
    problem = make_problem(topology, "allgather", size_bytes=1200000, chunks_per_rank=2)
    assert small.finish == hierarchical(problem, order=(1, 0), chunks=2).finish


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"chunks": 0}, "chunks: found 0"), ({"chunks": 10**9}, "chunks: found 1000000000"),
        ({"order": (0, 0)}, "expected every dimension 0-1 once"), ({"order": (0,)}, "expected every dimension"),
    ],
)  # fmt: skip
def test_odd_chunks_and_orders_are_refused(given, said):
    """Invalid numbers of chunks and invalid orders of dimensions are refused in one sentence."""
    topology = parse("multidim:switch4@100,ring3@50")
    with pytest.raises(InputError, match="found") as caught:
        hierarchical(make_problem(topology, "allreduce", size_bytes=10**6), **given)
    assert said in str(caught.value)


def test_what_has_no_dimensions_says_why():
    """Errors give the reason: NDv2 is not a product of dimensions, a broadcast has no phases along them."""
    problem = make_problem(taccl.topologies.ndv2(2), "allreduce", size_bytes=10**6)
    with pytest.raises(CollectiveError, match="no product of dimensions"):
        hierarchical(problem, order=(0, 1))
    with pytest.raises(CollectiveError, match="found broadcast; expected"):
        dimension_balanced(make_problem(parse("torus:3x3"), "broadcast", size_bytes=10**6, root=0))


@pytest.mark.slow
def test_nodes_with_rails_go_along_both_dimensions():
    """On two DGX-H100 with rails the baselines along dimensions give valid schedules."""
    problem = make_problem(dgx_h100(2), "allreduce", size_bytes=64 * 10**6)
    assert taccl.verify(hierarchical(problem)).ok and taccl.verify(dimension_balanced(problem)).ok


@pytest.mark.fuzz
def test_random_products_are_valid():
    """Schedules along random products of dimensions, with random orders and numbers of chunks, are valid."""
    for seed in cases("products", few=6, many=100):
        rng = random.Random(seed)
        words, ranks = [], 1
        while ranks < 8 or (ranks < 40 and rng.random() < 0.6):
            size = rng.randint(2, 7)
            kind = rng.choice(("ring", "switch", "fully-connected"))
            words.append(f"{kind}{size}@{rng.choice((10, 25, 12.5))}@{rng.choice((0, 0.3, 5))}")
            ranks *= size
        topology = multidim(",".join(words), alpha_meaning=rng.choice(("occupies", "pipelined")))
        dims, count = dimensions(topology), rng.randint(1, 6)
        collective = rng.choice(IMPLICIT_COLLECTIVES)
        problem = make_problem(topology, collective, chunk_bytes=rng.randint(1, 10**6), chunks_per_rank=count)
        plan = plan_along(dims, collective, orders_of(rng, dims, count), paces_of(dims, problem.costs))
        schedule = schedule_along(plan, problem, producer="test")
        assert taccl.verify(schedule).ok, (seed, topology.name, collective)


def test_merged_sums_double_where_latency_counts_most():
    """Small sums that may merge take a logarithmic number of sends along each dimension.

    On 8 x 4 ranks behind switches these are 3 + 2 sends of 2 us, not 7 + 3.
    """
    topology = multidim("switch8@100,switch4@100", alpha_us=2, alpha_meaning="occupies")
    problem = make_problem(topology, "reduce-scatter", chunk_bytes=1, chunks_per_rank=1)
    assert problem.clauses.merging  # as sums of so few bytes may
    schedule = hierarchical(problem, order=(0, 1), chunks=1)
    assert taccl.verify(schedule).ok and 10 <= schedule.finish_us < 10.1
    alone = problem.with_clauses(merging=frozenset(), max_merge=1)
    # Unmerged, a rank sends 4 * 7 pieces along one dimension and 3 along the other, in 2 us each.
    assert hierarchical(alone, order=(0, 1), chunks=1).finish_us == pytest.approx(2 * (28 + 3), abs=0.1)


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "alltoall"])
def test_merged_sends_obey_the_clauses(collective):
    """Merged sends have at most three pieces, stay in one dimension, and finish no later than unmerged ones."""
    topology = multidim("switch4@100,ring4@100", alpha_us=2, alpha_meaning="occupies")
    inside = frozenset(e for e, link in enumerate(topology.links) if abs(link.src - link.dst) < 4)
    plain = make_problem(topology, collective, chunk_bytes=10, chunks_per_rank=2)
    merging = plain.with_clauses(merging=inside, max_merge=3)
    found = hierarchical(merging, order=(0, 1), chunks=2)
    assert taccl.verify(found).ok and found.num_sends < found.num_transfers
    without = hierarchical(plain.with_clauses(merging=frozenset(), max_merge=1), order=(0, 1), chunks=2)
    assert found.finish_us <= without.finish_us


@pytest.mark.parametrize("name", ["allgather", "reduce-scatter", "allreduce", "alltoall"])
def test_each_piece_goes_on_at_once(name):
    """No send of a dimension-balanced schedule could start earlier in the given order.

    An alltoall of whole chunks waits for no other pieces between dimensions: 10 MB take 133.8 us, not 209.3 us.
    """
    topology = multidim("switch4@100,ring3@50")
    problem = make_problem(topology, make(name, 12, chunks_per_rank=1), size_bytes=10**7)
    found = dimension_balanced(problem, cut=False)
    again = exact_times(problem, chunk=found.chunk, link=found.link, starts=found.start, reduce=found.reduce)
    assert again.finish == found.finish
    if name == "alltoall":
        assert found.finish_us == pytest.approx(133.83, abs=0.01)


def test_cuts_that_load_dimensions_equally_are_tried():
    """Of an alltoall along three dimensions, two parts finish later than whole chunks, but four much sooner."""
    topology = parse("torus:4x2x2")
    whole, halves, found = (
        dimension_balanced(
            make_problem(topology, "alltoall", size_bytes=10**7, chunks_per_rank=parts), cut=cut
        )
        for parts, cut in ((1, False), (2, False), (None, True))
    )
    assert whole.finish < halves.finish
    assert found.finish < Fraction(2, 3) * whole.finish
