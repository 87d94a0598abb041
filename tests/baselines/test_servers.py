"""Parameter servers: the exchange collective, its verification and its time."""

import itertools
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from taccl import lower, lower_bound, make_problem
from taccl.analysis.simulation.steady import initiation_interval
from taccl.analysis.verification.verify import verify
from taccl.baselines import BASELINES, best
from taccl.baselines.servers import servers
from taccl.errors import CollectiveError
from taccl.problem.collectives import allreduce, exchange, together
from taccl.problem.problem import Problem
from taccl.program.interpret import interpret
from taccl.schedule.schedule import make_schedule
from taccl.topologies import rack
from taccl.topology import fabrics
from taccl.topology.builder import TopologyBuilder
from tests.effort import brief_synthesis
from tests.synthesis.small_problems import full, problem_of


def central(n, k, *, size="1MB", chunks_per_server=1, update_us_per_mb=0):
    """A topology of n workers and a server box of k NICs."""
    collective = exchange(n, k, chunks_per_server=chunks_per_server, update_us_per_mb=update_us_per_mb)
    return make_problem(rack(n, k), collective, size_bytes=size)


def kinds(schedule):
    """Kinds of violation that the verifier finds."""
    return {each.kind for each in verify(schedule).violations}


def test_chunks_are_kept_by_servers_in_turn():
    """Roots of chunks are assigned to the servers round-robin; all workers contribute to every chunk and
    receive its sum.

    Ranks 0 and 1 are workers, ranks 2 to 4 servers.
    """
    collective = exchange(2, 3, chunks_per_server=2)
    assert [chunk.root for chunk in collective.chunks] == [2, 3, 4, 2, 3, 4]
    assert {(chunk.origins, chunk.destinations) for chunk in collective.chunks} == {((0, 1), (0, 1))}
    assert (collective.num_ranks, collective.update_us_per_mb) == (5, 0)


def test_a_rank_may_be_both():
    """Ranks 1 and 2 are workers and servers: each keeps one chunk and contributes to both."""
    collective = exchange([1, 2], [1, 2])
    assert [(chunk.origins, chunk.root) for chunk in collective.chunks] == [((1, 2), 1), ((1, 2), 2)]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (((0, 0), (1,)), "exchange: workers: found \\[0, 0\\]"),
        (((0, 1), (2, 2)), "exchange: servers: found \\[2, 2\\]"),
        (((), (2,)), "exchange: workers: found \\[\\]"),
        (((0, -1), (2,)), "exchange: workers: rank -1 does not exist; ranks are 0-2"),
    ],
)
def test_roles_are_given_once(arguments, error):
    """An exchange with a repeated rank or an empty role is refused."""
    with pytest.raises(CollectiveError, match=error):
        exchange(*arguments)


def test_roots_are_servers():
    """A root that is no server is refused by its rank."""
    with pytest.raises(CollectiveError, match="roots: found \\[0\\], which are not servers"):
        exchange(2, 1, roots=[2, 0])


@pytest.mark.slow
@pytest.mark.parametrize(("n", "k"), [(4, 1), (4, 6), (8, 4), (8, 10), (5, 3)])
def test_the_box_or_the_line_is_what_limits(n, k):
    """An exchange is limited by a worker's link or by the server box.

    A worker moves the data once each way, and each of the box's k NICs n / k of it: 80 us/MB times max(1, n /
    k).
    """
    schedule = servers(central(n, k), cut=False)
    verify(schedule).raise_if_failed()
    assert initiation_interval(schedule).interval_us == pytest.approx(80 * max(1, n / k), rel=0.02)
    assert lower_bound(schedule.problem).bound <= schedule.finish


def test_workers_that_serve_pass_the_data_almost_twice():
    """Workers that also serve send 7/8 of the data twice: 140 us/MB for 8 ranks."""
    problem = make_problem(rack(8, 1), exchange(range(8), range(8), num_ranks=9), size_bytes="8MB")
    schedule = servers(problem, cut=False)
    assert initiation_interval(schedule).interval_us == pytest.approx(8 * 140, rel=0.02)


def test_an_update_is_waited_for():
    """Pulls wait for the servers' updates.

    Two pushes of 1 MB at 80 us/MB and 5 us, 30 us of update, and two pulls take 165 + 30 + 165 us.
    """
    problem = central(2, 1, update_us_per_mb=30)
    schedule = servers(problem, cut=False)
    verify(schedule).raise_if_failed()
    assert schedule.finish_us == 165 + 30 + 165
    assert brief_synthesis(problem).schedule.finish_us == schedule.finish_us


def test_a_pull_before_the_end_of_the_update_is_found():
    """A pull one tick before the update ends is a violation."""
    schedule = servers(central(2, 1, update_us_per_mb=30), cut=False)
    collective = replace(schedule.problem.collective, update_us_per_mb=31)
    assert kinds(replace(schedule, problem=replace(schedule.problem, collective=collective))) == {"update"}
    start, end = schedule.start.copy(), schedule.end.copy()
    first = int(np.flatnonzero(~schedule.reduce)[0])
    start[first], end[first] = start[first] - 1, end[first] - 1
    assert "update" in kinds(replace(schedule, start=start, end=end))


def test_a_sum_that_no_server_updated_is_found():
    """A complete sum that worker 0 sends to worker 1 without the server's update is a violation."""
    problem = central(2, 1)
    topology = problem.topology
    (there,), (back,) = topology.links_between(1, 0), topology.links_between(0, 1)
    took = problem.costs.duration(there, int(problem.costs.chunk_units[0]))
    rows = {"chunk": [0, 0], "link": [there, back], "start": [0, took], "end": [took, 2 * took]}
    schedule = make_schedule(problem, **rows, reduce=[True, False])
    assert kinds(schedule) == {"update"}
    plain = replace(problem.collective, update_us_per_mb=None)
    assert not kinds(replace(schedule, problem=replace(problem, collective=plain)))


@pytest.mark.parametrize(("back", "copied", "found"), [(2, 3, set()), (2, 2, {"update"}), (3, 3, {"update"})])
def test_a_copy_without_the_update_does_not_overwrite_the_updated_sum(back, copied, found):
    """Worker 0 adds up, sends the sum to the server, and a copy to worker 1.

    Worker 1 has the updated sum from the server at 3 us. Worker 0 gets the updated sum 1 us after `back`.
    """
    problem = problem_of(full(3), exchange([0, 1], [2], chunks_per_server=1))
    rows = ((1, 0, 0, True), (0, 2, 1, True), (2, 1, 2, False), (2, 0, back, False), (0, 1, copied, False))
    links = [problem.topology.links_between(src, dst)[0] for src, dst, *_ in rows]
    start, reduce = [row[2] for row in rows], [row[3] for row in rows]
    assert kinds(make_schedule(problem, chunk=[0] * 5, link=links, start=start, reduce=reduce)) == found


def test_a_copy_of_what_was_updated_counts():
    """Worker 1 may receive the updated sum from worker 0."""
    problem = central(2, 1)
    links = [problem.topology.links_between(*pair)[0] for pair in ((0, 2), (1, 2), (2, 0), (0, 1))]
    took = problem.costs.duration(links[0], int(problem.costs.chunk_units[0]))
    start = [0, took, 2 * took, 3 * took]
    schedule = make_schedule(
        problem, chunk=[0] * 4, link=links, start=start, end=[each + took for each in start],
        reduce=[True, True, False, False],
    )  # fmt: skip
    assert not kinds(schedule)


def test_partial_sums_cross_the_core_for_a_rack():
    """One partial sum of a rack crosses the core in place of its three workers' contributions.

    Each of two racks has 3 workers; for half of the data the root is in the other rack.
    """
    topology = rack(3, 2, 2, 4)
    problem = make_problem(topology, exchange(6, 4), size_bytes="4MB")

    def crossing(schedule):
        uplinks = [r for r, each in enumerate(topology.resources) if each.name.startswith("uplink")]
        held = [h.link for h in topology.holds if h.resource in uplinks]
        return sum(
            problem.chunk_bytes[c] for c, e in zip(schedule.chunk, schedule.link, strict=True) if e in held
        )

    flat, two = (servers(problem, cut=False, levels=levels) for levels in ("one", "two"))
    for schedule in (flat, two):
        verify(schedule).raise_if_failed()
    assert crossing(flat) == 3 * crossing(two) == 3 * 2 * 4 * 10**6
    assert two.finish < flat.finish
    assert servers(problem, cut=False).finish == two.finish


def test_a_relay_sends_straight_to_the_root():
    """A send from rank 1 to rank 2 is relayed by rank 0, whose own contribution is added once."""
    builder = TopologyBuilder("uneven", [0, 0, 0])
    bus = builder.add_resource("bus")
    for src, dst in itertools.permutations(range(3), 2):
        link = builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=1)
        if (src, dst) in {(0, 1), (1, 2), (2, 0), (2, 1)}:
            builder.add_hold(link, bus, alpha_us=0, beta_us_per_mb=1)
    problem = make_problem(builder.build(), "allreduce", chunk_bytes=10**6, chunks_per_rank=1)
    verify(servers(problem, cut=False, levels="two")).raise_if_failed()


def test_two_tenants_share_a_box():
    """Two groups of workers that share a server box take twice the time of one group alone, within 5 %.

    Workers 0-3 and 4-7 share a box of four NICs.
    """
    topology = rack(8, 4)
    tenants = [exchange(range(first, first + 4), range(8, 12), chunks_per_server=32) for first in (0, 4)]
    both = together([replace(each, num_ranks=12) for each in tenants])
    schedule = servers(make_problem(topology, both, chunk_bytes=10**6), cut=False)
    verify(schedule).raise_if_failed()
    of_group = np.array(both.group_of_chunk)[schedule.chunk]
    finish = [float(problem_us(schedule, schedule.end[of_group == g].max())) for g in (0, 1)]
    assert finish == pytest.approx([2 * 128 * 80] * 2, rel=0.05)


def problem_us(schedule, ticks):
    """Ticks in microseconds."""
    return schedule.problem.costs.us(ticks)


@pytest.mark.parametrize("roles", [(3, 2), ((0, 1, 2), (0, 1, 2))])
def test_an_exchange_runs(roles):
    """The lowered program gives the sum at every worker, with servers that contribute nothing."""
    collective = exchange(*roles, update_us_per_mb=1)
    problem = make_problem(rack(3, 2), replace(collective, num_ranks=5), size_bytes="1MB")
    interpret(lower(servers(problem, cut=False))).raise_if_failed()


def test_a_problem_keeps_its_update():
    """The time of an update survives conversion to plain values and back, and changes the problem's digest."""
    problem = central(2, 1, update_us_per_mb="0.5")
    assert Problem.from_dict(problem.to_dict()) == problem
    assert problem.digest() != central(2, 1).digest()


def test_updates_are_of_sums_with_roots():
    """Updates need sums with roots, and groups with different updates are not joined."""
    with pytest.raises(CollectiveError, match="update_us_per_mb: found -1"):
        replace(allreduce(2), update_us_per_mb=-1)
    with pytest.raises(CollectiveError, match="different servers' updates"):
        together([exchange(2, 1), replace(allreduce(3))])


@pytest.mark.slow
def test_chunks_are_cut_until_the_last_pulls_are_short():
    """Chunks are cut until the last pulls, which nothing overlaps, are short.

    14 servers of 24 workers keep 32 chunks each, the maximum for 32 B, so the last pulls take 1/32.
    """
    slow = rack(24, 14, gb_per_s="1e-6")
    found = servers(make_problem(slow, exchange(24, 14), size_bytes=14 * 32), levels="one")
    assert found.problem.collective.num_chunks == 14 * 32
    assert found.finish_us < 1.04 * 14 * 32 * 1000 * 24 / 14


def test_baselines_sum_at_the_servers_that_update():
    """Baselines refuse an exchange if other ranks than its servers add up; `best` takes one that does not."""
    problem = make_problem(
        fabrics.mesh(2, 2), exchange([0, 2, 3], [0, 1], update_us_per_mb=3), size_bytes=3000
    )
    for name, make in BASELINES.items():
        with suppress(CollectiveError):
            assert verify(make(problem)).ok, name
    with pytest.raises(CollectiveError, match="one-shot does not add up exchange at the servers"):
        BASELINES["one-shot"](problem)
    assert verify(best(problem)).ok
    single = make_problem(fabrics.mesh(2, 2), exchange([2], [0], num_ranks=4), size_bytes=3)
    assert verify(BASELINES["pairwise"](single)).ok  # the only worker's data passes its server


@pytest.mark.slow
def test_servers_may_be_several_hops_away():
    """Without links from workers to servers, the search is at least as fast as the fastest baseline."""
    for topology, workers in ((fabrics.mesh(2, 2), [2, 3]), (fabrics.fully_connected(4), [2, 3])):
        problem = make_problem(topology, exchange(workers, [0, 1]), size_bytes=3000)
        result = brief_synthesis(problem)
        assert result.bound.bound <= result.schedule.finish <= best(problem).finish


def test_a_sum_returns_only_after_its_update():
    """The data of the only worker take two hops to the server, its update, and two hops back."""
    line = fabrics.mesh(3, bandwidth_gb_per_s=1, alpha_us=1)
    collective = exchange([0], [2], num_ranks=3, chunks_per_server=1, update_us_per_mb=3000)
    result = brief_synthesis(make_problem(line, collective, size_bytes=1000))
    assert verify(result.schedule).ok
    assert result.schedule.finish == result.bound.bound == 4 * (1 + 1) + 3
    assert result.bound.check()


@pytest.mark.slow
def test_the_search_shares_links_better_than_baselines():
    """On a torus, all ranks are workers and servers: the search finishes earlier than every baseline."""
    collective = exchange(range(9), range(9), chunks_per_server=1, update_us_per_mb=2)
    problem = make_problem(fabrics.torus(3, 3), collective, size_bytes=63_000)
    result = brief_synthesis(problem)
    assert result.schedule.finish < Fraction(3, 4) * best(problem).finish
