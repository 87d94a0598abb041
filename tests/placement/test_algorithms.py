"""Stock algorithms in rank order: their messages, and proof that these carry out the collective."""

import numpy as np
import pytest

import taccl
from taccl.errors import InputError
from taccl.placement.algorithms import of_schedule, stock
from taccl.placement.case import Case
from taccl.placement.placement import Placement

KNOWN = [
    ("ring", "allreduce", 5), ("ring", "allgather", 4), ("ring", "reduce-scatter", 4),
    ("rings:3", "allreduce", 4), ("rings", "reduce-scatter", 5), ("double-tree", "allreduce", 4),
    ("double-tree", "allreduce", 7), ("double-tree:4", "allreduce", 6), ("halving-doubling", "allreduce", 8), ("halving-doubling", "allreduce", 6),
    ("halving-doubling", "allgather", 8), ("halving-doubling", "reduce-scatter", 4),
    ("doubling", "allreduce", 8), ("pairwise", "alltoall", 5), ("hierarchical", "allreduce", 6),
    ("hierarchical:2", "allreduce", 8),
]  # fmt: skip


@pytest.mark.parametrize(("name", "collective", "num_ranks"), KNOWN)
def test_algorithms_do_their_collective_in_any_order(name, collective, num_ranks):
    """With ranks placed at random, each algorithm's schedule verifies and finishes at the predicted time."""
    topology = taccl.topologies.fully_connected(num_ranks)
    case = Case(topology, collective, name, "1MB")
    order = tuple(np.random.default_rng(0).permutation(num_ranks).tolist())
    placement = Placement(topology, case.algorithm, case.size_bytes, order, 0.0, 0.0, 0.0)
    schedule = placement.schedule()
    assert taccl.verify(schedule).ok
    if not case.algorithm.in_steps:
        # Links share no resource here, so the order of messages determines the times.
        assert schedule.finish_us == case.us(case.ticks(order))


@pytest.mark.parametrize(("name", "collective"), [("double-tree:5", "allreduce"), ("pairwise", "alltoall")])
def test_messages_wait_for_all_arrivals(name, collective):
    """A message waits for each earlier arrival of its chunk; in a pairwise exchange for the step before."""
    found = stock(name, collective, 7)
    rows = list(zip(found.src, found.dst, found.chunk, found.begins, found.ends, found.message, strict=True))
    waits = set()
    for src, _, chunk, begins, _, message in rows:
        for other_src, dst, other_chunk, _, ends, other in rows:
            is_chunk = src == dst and chunk == other_chunk and ends <= begins
            is_step = src in (other_src, dst) and ends == begins
            if is_step if found.in_steps else is_chunk:
                waits.add((int(message), int(other)))
    assert {*zip(*(column.tolist() for column in found.waits()), strict=True)} == waits


def test_ring_sends_to_the_next_rank_alone():
    """A ring sends only to the next rank: 2 * 3 steps of 4 messages on a ring of 4."""
    ring = stock("ring", "allreduce", 4)
    assert set(zip(ring.src.tolist(), ring.dst.tolist(), strict=True)) == {(0, 1), (1, 2), (2, 3), (3, 0)}
    assert len(ring.message) == 24
    assert ring.reduces.sum() == 12


def test_halving_doubling_sends_half_to_the_nearest():
    """Halving and doubling sends most data to the nearest partner.

    Among 8 ranks, partners at distance 1, 2 and 4 exchange 4, 2 and 1 chunks each way, in both phases.
    """
    steps = stock("halving-doubling", "allreduce", 8)
    distance = steps.src ^ steps.dst
    assert {d: int((distance == d).sum()) for d in (1, 2, 4)} == {1: 8 * 4 * 2, 2: 8 * 2 * 2, 4: 8 * 2}


def test_a_message_waits_for_what_it_carries():
    """In a ring, each message after the first step waits for the one that delivers its chunk."""
    ring = stock("ring", "allgather", 3)
    waiting, earlier = ring.waits()
    sent = {m: (s, d) for m, s, d in zip(ring.message.tolist(), ring.src, ring.dst, strict=True)}
    assert len(waiting) == 3
    for after, before in zip(waiting.tolist(), earlier.tolist(), strict=True):
        assert sent[before][1] == sent[after][0]


def test_a_schedule_of_one_step_is_placed():
    """On two ranks, no send of an allgather waits for another, and all orders are equally fast."""
    topology = taccl.topologies.ring(2)
    problem = taccl.make_problem(topology, taccl.collectives.allgather(2), size_bytes=2000)
    schedule = taccl.baselines.ring(problem, cut=False)
    placed = taccl.reorder(topology, "allgather", schedule, 2000, time_limit_s=1.0)
    assert placed.before_us == placed.after_us == schedule.finish_us


def test_one_small_piece_goes_down_the_trees():
    """Small data go down double trees in one piece.

    On 16 hosts 10 us apart, one piece of 1 KB per tree beats the ring's 30 steps; 16 pieces do not.
    """
    hosts = taccl.Probe(tuple(map(str, range(16))), np.full((16, 16), 10.0)).topology(oversubscription=1)

    def us(name):
        case = Case(hosts, "allreduce", name, "1KB")
        return case.algorithm.name, case.us(case.ticks(range(16), compiled=False))

    assert us("double-tree")[0] == "double-tree:1"
    assert us("double-tree")[1] < us("ring")[1] < us("double-tree:16")[1]


@pytest.mark.slow
def test_large_sums_get_more_pieces():
    """Double trees with the chosen number of pieces are no slower than with 1, 4, 16 or 64 pieces."""
    hosts = taccl.Probe(tuple(map(str, range(8))), np.full((8, 8), 10.0)).topology(oversubscription=1)
    for size in ("1KB", "1MB", "64MB"):
        found, *others = (
            Case(hosts, "allreduce", f"double-tree{number}", size)
            for number in ("", ":1", ":4", ":16", ":64")
        )
        finishes = [case.us(case.ticks(range(8), compiled=False)) for case in (found, *others)]
        assert finishes[0] == min(finishes)
    assert found.algorithm.name != "double-tree:1"


def test_steps_wait_for_the_step_before():
    """In a pairwise exchange, a message waits for the send and the receive of the previous step."""
    waiting, _ = stock("pairwise", "alltoall", 4).waits()
    assert np.bincount(waiting).tolist() == [0] * 4 + [2] * 8


def test_a_schedule_of_ours_is_an_algorithm():
    """Simulated on its own topology as an algorithm, a schedule keeps its finish if links share no resource."""
    topology = taccl.topologies.fully_connected(4)
    schedule = taccl.baselines.ring(taccl.make_problem(topology, "allreduce", size_bytes=4_000_000))
    case = Case(topology, "allreduce", schedule, 4_000_000)
    assert case.us(case.ticks(range(4))) == pytest.approx(schedule.finish_us)
    assert of_schedule(schedule).collective.num_ranks == 4


@pytest.mark.parametrize(
    ("name", "collective", "num_ranks", "complaint"),
    [
        ("rong", "allreduce", 4, "did you mean 'ring'"),
        ("ring", "alltoall", 4, "found 'alltoall'; ring is for allreduce, allgather, reduce-scatter only"),
        ("ring:2", "allreduce", 4, "ring takes no number"),
        ("rings:9", "allreduce", 4, "expected a number from 1 to 4"),
        ("double-tree:300", "allreduce", 4, "expected a number from 1 to 256"),
        ("rings:x", "allreduce", 4, "expected a number"),
        ("doubling", "allreduce", 6, "needs a power of two"),
        ("halving-doubling", "allgather", 6, "needs a power of two"),
        ("hierarchical", "allreduce", 7, "no division into groups"),
        ("hierarchical:4", "allreduce", 6, "groups of 4 for 6 ranks"),
        ("ring", "allreduce", 1, "found 1 ranks"),
    ],
)
def test_what_cannot_be_done_is_refused(name, collective, num_ranks, complaint):
    """The error for an unsupported algorithm, collective or number of ranks states what was found and
    expected."""
    with pytest.raises(InputError, match=complaint):
        stock(name, collective, num_ranks)
