"""Recursive doubling, swing, and bine trees."""

import importlib
from fractions import Fraction

import pytest

from taccl import collectives
from taccl.analysis.verification.verify import verify
from taccl.baselines import bine, bucket, recursive, swing
from taccl.baselines.recursive import doubling, exchange, swing_partner
from taccl.errors import CollectiveError
from taccl.problem.making import make_problem
from taccl.topology import fabrics, machines

recursion = importlib.import_module("taccl.baselines.recursive")  # its name is that of a function, too


def test_allgather_of_four(make, unit_costs):
    """Allgather of four ranks takes two exchanges: one chunk, then two."""
    schedule = recursive(make("allgather", fabrics.hypercube(2, **unit_costs)))
    # In the second exchange a link carries the sender's own chunk, then its first partner's.
    assert (schedule.finish_us, schedule.num_transfers) == (4, 12)


def test_allreduce_halves_and_doubles(make, unit_costs):
    """An allreduce is the reversed allgather, then the allgather."""
    assert recursive(make("allreduce", fabrics.hypercube(2, **unit_costs))).finish_us == 8


def test_broadcast_is_a_binomial_tree(make, unit_costs):
    """A broadcast reaches 8 ranks in 3 hops."""
    schedule = recursive(make("broadcast", fabrics.hypercube(3, **unit_costs)), cut=False)
    assert (schedule.finish_us, schedule.num_transfers) == (6, 7)


def test_alltoall_carries_only_what_is_needed(make, unit_costs):
    """In an alltoall each chunk takes as many hops as source and destination differ in bits."""
    # 4 sources, each with two chunks one bit away and one chunk two bits away: 4 * (1 + 1 + 2).
    assert recursive(make("alltoall", fabrics.hypercube(2, **unit_costs))).num_transfers == 16


def test_other_numbers_of_ranks_are_refused(make, unit_costs):
    """Six ranks are not a power of two, and are refused."""
    with pytest.raises(CollectiveError, match="power of two, but found 6 ranks"):
        recursive(make("allgather", fabrics.ring(6, **unit_costs)))


def test_partners_swing_from_side_to_side():
    """Partners of rank 0 are at distances 1, 1 - 2, 1 - 2 + 4, and so on; mirrored partners are at the
    negated distances."""
    assert [swing_partner(0, step, 32) for step in range(5)] == [1, 31, 3, 27, 11]
    assert [swing_partner(0, step, 32, mirrored=True) for step in range(5)] == [31, 1, 29, 5, 21]


@pytest.mark.parametrize("size", [2, 4, 8, 16, 32, 64])
@pytest.mark.parametrize("mirrored", [False, True])
def test_partners_have_each_other_and_double_what_they_know(size, mirrored):
    """Partners are mutual, and the data that a rank has doubles with every step, in both orders of steps."""
    steps = range(size.bit_length() - 1)
    for order in (steps, steps[::-1]):
        known = [{place} for place in range(size)]
        for count, step in enumerate(order, 1):
            partner = [swing_partner(place, step, size, mirrored=mirrored) for place in range(size)]
            assert [partner[other] for other in partner] == list(range(size))
            known = [known[place] | known[partner[place]] for place in range(size)]
            assert {len(each) for each in known} == {2**count}


def test_both_directions_of_a_ring_are_used():
    """On a ring of four each rank receives three chunks over two links that are never idle."""
    problem = make_problem(
        fabrics.ring(4, alpha_us=0, bandwidth_gb_per_s=1), collectives.allgather(4), chunk_bytes=1000
    )
    schedule = swing(problem)
    verify(schedule).raise_if_failed()
    assert schedule.finish == Fraction(3, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("collective", "phases"), [("allgather", 1), ("reduce-scatter", 1), ("allreduce", 2)]
)
def test_all_links_of_a_torus_are_used(collective, phases):
    """Swing uses all links of a torus.

    On 4 x 4 ranks, 15 chunks of 4 us enter each rank over four links in parallel.
    """
    topology = fabrics.torus(4, 4, alpha_us=0, bandwidth_gb_per_s=1, ranks_per_node=4)
    problem = make_problem(topology, collectives.make(collective, 16), chunk_bytes=4000)
    schedule = swing(problem)
    verify(schedule).raise_if_failed()
    assert schedule.finish == phases * 15 * 4 / 4


def test_partners_are_a_third_less_far_than_of_doubling():
    """On a ring of 16 Swing's partners are 1 + 1 + 3 + 5 hops away; doubling's are 1 + 2 + 4 + 8."""
    problem = make_problem(fabrics.ring(16), collectives.allreduce(16), chunk_bytes=1000)
    near_first = [[[swing_partner(rank, step, 16) for rank in range(16)]] for step in range(4)]
    assert len(doubling(problem, [near_first]).chunk) == 10 * 16 * 16


def test_a_broadcast_takes_the_shortest_path(make, unit_costs):
    """A bine tree reaches the last rank over fewer hops than a binomial tree.

    On a ring of 8 these are 4 hops, instead of 4 + 2 + 1.
    """
    problem = make("broadcast", fabrics.ring(8, **unit_costs))
    assert bine(problem, cut=False).finish_us == 4 * 2
    assert recursive(problem, cut=False).finish_us == 7 * 2


@pytest.mark.parametrize("function", [swing, bine])
@pytest.mark.parametrize("collective", ["broadcast", "reduce", "scatter", "gather", "alltoall"])
@pytest.mark.parametrize(
    "topology",
    [machines.dgx2(), machines.ndv2(2), fabrics.torus(4, 2, ranks_per_node=4), fabrics.hypercube(3)],
)
def test_other_collectives(function, collective, topology):
    """Swing's broadcasts, reductions and alltoalls are valid."""
    schedule = function(
        make_problem(topology, collectives.make(collective, topology.num_ranks), chunk_bytes=10**5)
    )
    verify(schedule).raise_if_failed()


@pytest.mark.parametrize("function", [swing, bine])
def test_other_numbers_of_ranks_than_powers_of_two_are_refused_by_swing(function, make, unit_costs):
    """Six ranks are not a power of two, and are refused."""
    with pytest.raises(CollectiveError, match=f"{function.__name__} needs a power of two, but found 6 ranks"):
        function(make("allgather", fabrics.ring(6, **unit_costs)))


@pytest.mark.slow
def test_whole_sums_of_too_many_transfers_are_left_out():
    """On 256 ranks whole sums would exceed the limit on transfers, so halving is used."""
    found = swing(make_problem(fabrics.torus(16, 16), "allreduce", size_bytes=16_000))
    assert found.producer == "swing" and verify(found).ok


@pytest.mark.parametrize("baseline", [recursive, bucket])
@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter"])
def test_all_dimensions_of_a_hypercube_are_in_use(baseline, collective):
    """On a hypercube of D dimensions, n bytes take D alpha + n beta (1 - 1 / p) / D in merged messages: each
    of D parts starts with a dimension of its own."""
    for dims in (3, 6, 7):
        cube, share = fabrics.hypercube(dims), 1 - 2**-dims
        (link,) = {(each.alpha_us, each.beta_us_per_mb) for each in cube.links}
        found = baseline(make_problem(cube, collective, size_bytes=2**dims * dims * 10**4))
        expected = dims * link[0] + 2**dims * dims * Fraction(share) / 100 * link[1] / dims
        assert verify(found).ok and found.finish_us == pytest.approx(float(expected))


@pytest.mark.parametrize(("function", "most_us"), [(recursive, 42), (swing, 28), (bine, 24.5)])
def test_whole_chunks_start_with_unlike_dimensions(function, most_us):
    """With one chunk per rank, ranks start with unlike dimensions; if all start alike, most links wait."""
    torus = fabrics.torus(4, 4, 4)
    problem = make_problem(torus, "allgather", size_bytes=4_000_000, chunks_per_rank=1)
    found = function(problem)
    assert verify(found).ok and found.finish_us <= most_us
    parts = recursion._parts(recursion._grid(torus), *recursion._SIDES)
    alike = exchange(problem, parts)
    assert alike.schedule(problem, producer="alike").finish_us > 1.05 * most_us


def test_exchanges_of_many_chunks_move_only_what_is_wanted():
    """An alltoall on 128 ranks takes the hops of unlike bits, whether or not chunks spread at first."""
    problem = make_problem(fabrics.hypercube(7), "alltoall", size_bytes=4_000_000, chunks_per_rank=1)
    found = recursive(problem)
    assert verify(found).ok and found.num_transfers == 128 * 7 * 64


@pytest.mark.parametrize("collective", ["alltoall", "scatter", "gather", "broadcast"])
def test_chunks_go_where_later_steps_reach_their_destinations(collective, monkeypatch):
    """Chunks that do not spread to all ranks first arrive, too, over hardly more transfers."""
    for topology in (fabrics.hypercube(4), fabrics.mesh(4, 4), machines.dgx1(2)):
        problem = make_problem(topology, collective, size_bytes=160_000, chunks_per_rank=1)
        for partners in (recursion._SIDES, recursion._SIDES[:1]):
            parts = recursion._parts(recursion._grid(topology), *partners)
            spread = exchange(problem, parts)
            with monkeypatch.context() as patched:
                patched.setattr(recursion, "MOST_SPREAD", 0)
                found = exchange(problem, parts)
            assert verify(found.schedule(problem, producer="bounded")).ok
            assert len(found.chunk) <= 1.2 * len(spread.chunk)
