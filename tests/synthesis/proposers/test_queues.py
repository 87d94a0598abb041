"""Collectives with one destination per chunk: balanced paths, and sends along them."""

import contextlib
import math
import random
import time
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import taccl
from taccl import collectives
from taccl._internal.deadline import Deadline, OutOfTime
from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.verification.loops import accept_copies, compiled_loop
from taccl.analysis.verification.verify import verify
from taccl.errors import CollectiveError
from taccl.problem.chunks import Chunk
from taccl.problem.collective import Collective
from taccl.problem.making import make_problem
from taccl.problem.problem import Clauses
from taccl.schedule.schedule import Schedule
from taccl.synthesis.kernels import queue_kernel, spreading_kernel
from taccl.synthesis.kernels.fabric import problem_arrays
from taccl.synthesis.kernels.limits import Limits
from taccl.synthesis.proposers import queues, router
from taccl.synthesis.proposers.large import schedule_large
from taccl.synthesis.proposers.queues import send_along_trees, send_at_once, send_queued
from taccl.synthesis.proposers.router import find_paths, find_trees
from taccl.synthesis.proposers.spreading import spread
from taccl.topology.builder import TopologyBuilder
from tests.fuzzing import some
from tests.synthesis.proposers.random_problems import (
    problem_of,
    random_collective,
    random_sizes,
    ring_with_chords,
)
from tests.synthesis.small_problems import linked

MB = 10**6
topologies = taccl.topologies


def finish_us(problem, **options):
    """Finish of the schedule found, in us, after both verifiers accepted it."""
    fabric, demand = problem_arrays(problem)
    found = spread(fabric, demand, Limits(**options))
    schedule = Schedule(problem, found.chunk, found.link, found.start, producer="greedy")
    assert verify(schedule).violations == ()
    assert verify(schedule_large(problem)).ok
    assert schedule.finish_ticks == found.finish_ticks
    return schedule.finish_us


@pytest.mark.slow
@settings(max_examples=some(10, 150), deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_random_exchanges_verify(seed, several_sizes):
    """Random topologies, exchanges, alpha meanings and sizes: both verifiers accept, and no bound is beaten."""
    rng = random.Random(seed)
    topology = ring_with_chords(rng)
    collective = random_collective(
        rng, topology.num_ranks, ["alltoall", "scatter", "gather"], most_chunks=12, most_targets=1
    )
    sizes = random_sizes(rng, collective) if several_sizes else MB
    problem = problem_of(topology, collective, chunk_bytes=sizes)
    assert finish_us(problem, num_runs=2, seed=seed) >= lower_bound(problem).bound_us
    fabric, demand = problem_arrays(problem)
    at_once = send_at_once(fabric, demand, find_paths(fabric, demand))
    schedule = Schedule(problem, at_once.chunk, at_once.link, at_once.start, producer="greedy")
    assert verify(schedule).ok
    assert schedule.finish_ticks == at_once.finish_ticks


@pytest.mark.parametrize("num_ranks", [4, 16])
def test_alltoall_of_a_star_keeps_ports_busy(num_ranks):
    """Every port passes n - 1 chunks of 20.5 us; the finish is at most two rounds above that."""
    problem = problem_of(topologies.star(num_ranks), collectives.alltoall(num_ranks))
    assert (num_ranks - 1) * 20.5 <= finish_us(problem) <= (num_ranks + 1) * 20.5


def test_alltoall_of_a_mesh_meets_its_bound():
    """An alltoall on a 4 x 4 mesh meets its bound.

    8 ranks send to 8 others over 4 links, which takes 16 rounds of 20.5 us.
    """
    assert finish_us(problem_of(topologies.mesh(4, 4), collectives.alltoall(16))) == 328


def test_alltoall_of_a_torus_is_near_its_bound():
    """An alltoall on a 5 x 5 torus takes at most one round more than its bound of 15 rounds of 20.5 us.

    Each of 25 * 24 chunks crosses 2.5 links on average, and there are 100 links.
    """
    assert finish_us(problem_of(topologies.torus(5, 5), collectives.alltoall(25))) <= 328


def test_paths_balance_parallel_paths():
    """Chunks are balanced over parallel paths: half of 8 chunks go through rank 1, half through rank 2."""
    builder = TopologyBuilder("diamond", [0] * 4)
    for src, dst in ((0, 1), (0, 2), (1, 3), (2, 3)):
        builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=1)
    collective = collectives.custom(
        4, precondition={c: [0] for c in range(8)}, postcondition={c: [3] for c in range(8)}
    )
    fabric, demand = problem_arrays(problem_of(builder.build(), collective))
    paths = find_paths(fabric, demand)
    assert np.bincount(paths.slot, minlength=4).tolist() == [4, 4, 4, 4]
    assert paths.peak_ticks == 4


def test_paths_go_round_what_is_busy():
    """Chunks take a detour where the direct link is busy.

    Four chunks go from 0 to 1 at 10 us per link: at least one goes through 2, so all need 30 us.
    """
    builder = TopologyBuilder("triangle", [0] * 3)
    for src, dst in ((0, 1), (0, 2), (2, 1)):
        builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=10)
    collective = collectives.custom(
        3, precondition={c: [0] for c in range(4)}, postcondition={c: [1] for c in range(4)}
    )
    assert finish_us(problem_of(builder.build(), collective)) == 30


def test_large_chunks_choose_first():
    """Large chunks choose their paths first.

    With chunks of 3, 1, 1 and 1 MB and two paths, the large chunk gets a path of its own, 3 us per link.
    """
    builder = TopologyBuilder("diamond", [0] * 4)
    for src, dst in ((0, 1), (0, 2), (1, 3), (2, 3)):
        builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=1)
    collective = collectives.custom(
        4, precondition={c: [0] for c in range(4)}, postcondition={c: [3] for c in range(4)}
    )
    problem = problem_of(builder.build(), collective, chunk_bytes=[MB, MB, 3 * MB, MB])
    fabric, demand = problem_arrays(problem)
    assert find_paths(fabric, demand).peak_ticks * problem.costs.us(1) == 3


def test_chunk_with_several_origins_leaves_the_nearest():
    """A chunk that ranks 0 and 3 of a path of five hold reaches rank 4 in one send, from rank 3."""
    collective = collectives.custom(5, precondition={0: [0, 3]}, postcondition={0: [4]})
    fabric, demand = problem_arrays(problem_of(topologies.mesh(5), collective))
    assert len(find_paths(fabric, demand).slot) == 1


def test_chunk_that_is_there_is_not_sent():
    """A chunk of an alltoall whose source is its destination needs no send."""
    fabric, demand = problem_arrays(problem_of(topologies.ring(2), collectives.alltoall(2)))
    assert np.diff(find_paths(fabric, demand).hop_of).tolist() == [0, 1, 1, 0]


def test_target_out_of_reach_is_an_error():
    """A chunk from rank 1 to 0 is an error if the only link is from 0 to 1."""
    topology = linked("one way", [0, 0], [(0, 1)], alpha_us=0, beta_us_per_mb=1)
    fabric, demand = problem_arrays(problem_of(topology, collectives.alltoall(2)))
    with pytest.raises(CollectiveError, match="chunk 2 cannot reach"):
        find_paths(fabric, demand)


@pytest.mark.slow
def test_same_seed_same_sends():
    """Two searches with one seed give the same sends and times."""
    fabric, demand = problem_arrays(problem_of(topologies.dgx2(2), collectives.alltoall(32)))
    one, two = (send_queued(fabric, demand, Limits(seed=3, num_runs=6)) for _ in range(2))
    assert (one.link == two.link).all() and (one.start == two.start).all()


def num_runs(monkeypatch, limits):
    """Number of runs that the kernel makes for an alltoall."""
    runs, send = [], queues.send_once
    monkeypatch.setattr(queues, "send_once", lambda *given, **named: runs.append(1) or send(*given, **named))
    fabric, demand = problem_arrays(problem_of(topologies.dgx2(2), collectives.alltoall(32)))
    send_queued(fabric, demand, limits)
    return len(runs)


def test_further_runs_stop_at_the_target(monkeypatch):
    """No second run starts once the target finish is met."""
    assert num_runs(monkeypatch, Limits(target_ticks=2**40)) == 1


@pytest.mark.parametrize("name", ["alltoall", "gather"])
def test_columns_lie_in_files(name, tmp_path, monkeypatch):
    """With a spill folder, columns are in files; the sends are the same as in memory."""
    problem = problem_of(topologies.mesh(4, 4), collectives.make(name, 16))
    monkeypatch.setattr("taccl.synthesis.proposers.large.MANY", 0)  # few would be put in order in memory
    spilled, held = (schedule_large(problem, spill_dir=folder) for folder in (tmp_path, None))
    assert all(isinstance(column.base, np.memmap) for column in spilled.kept[:3])
    assert spilled.digest() == held.digest()


@pytest.mark.slow
def test_starts_are_in_order():
    """Starts of sends ascend, and are stored in the narrowest type that holds them."""
    found = schedule_large(problem_of(topologies.dgx2(2), collectives.alltoall(32)))
    assert (np.diff(found.start) >= 0).all()
    assert [each.dtype for each in found.kept[:3]] == [np.uint16] * 3


def test_starts_beyond_32_bits():
    """Two hops of 3,000,000,001 ticks need a 64-bit column of ends."""
    builder = TopologyBuilder("slow", [0] * 3)
    for src, dst in ((0, 1), (1, 2)):
        builder.add_link(src, dst, alpha_us="0.001", beta_us_per_mb=3_000_000)
    collective = collectives.custom(3, precondition={0: [0]}, postcondition={0: [2]})
    problem = problem_of(builder.build(), collective)
    found = schedule_large(problem)
    assert (found.kept.start.dtype, found.start.tolist()) == (np.int64, [0, 3_000_000_001])
    assert verify(found).ok


def test_no_run_goes_on_after_the_time_limit(monkeypatch):
    """With a limit of 0 s only the first run is made."""
    assert num_runs(monkeypatch, Limits(num_runs=100, until=Deadline.after(0))) == 1


@pytest.mark.parametrize(
    ("topology", "late_s", "is_simple"),
    [("fully-connected:6", 10, True), ("mesh:4x4", 10, False), ("mesh:4x4", 0, True)],
)
def test_short_of_time_a_simple_order_suffices(monkeypatch, topology, late_s, is_simple):
    """Once time is up, sends go in a simple order if it is close to the peak load, or another takes too long."""
    monkeypatch.setattr(queues, "_LATE_S", late_s)
    problem = make_problem(topologies.parse(topology), "alltoall", size_bytes=MB, chunks_per_rank=1)
    fabric, demand = problem_arrays(problem)
    routes = find_paths(fabric, demand)
    at_once = send_at_once(fabric, demand, routes)
    found = send_queued(fabric, demand, Limits(until=Deadline.after(0)))
    assert (found.finish_ticks == at_once.finish_ticks) == is_simple
    assert found.finish_ticks <= at_once.finish_ticks <= 1.25 * routes.peak_ticks


@pytest.mark.parametrize("topology", [topologies.ndv2(2), topologies.mesh(4, 4)])
def test_short_of_time_trees_get_a_simple_order(monkeypatch, topology):
    """Once time is up, sends along trees go in a single pass, which gives a valid schedule."""
    monkeypatch.setattr(queues, "_LATE_S", -10)
    problem = problem_of(topology, collectives.allgather(topology.num_ranks))
    fabric, demand = problem_arrays(problem)
    trees = find_trees(fabric, demand)
    limits = Limits(until=Deadline.after(0))
    found = send_along_trees(fabric, demand, limits, trees, partial(find_trees, fabric, demand))
    assert verify(Schedule(problem, found.chunk, found.link, found.start, producer="greedy")).ok
    assert found.finish_ticks == send_at_once(fabric, demand, trees).finish_ticks <= 2 * trees.peak_ticks


def test_paths_are_none_without_time():
    """A path search stopped before every chunk has a path raises OutOfTime."""
    fabric, demand = problem_arrays(problem_of(topologies.mesh(8, 8), collectives.alltoall(64)))
    with pytest.raises(OutOfTime, match="before every chunk had a path"):
        find_paths(fabric, demand, Limits(Deadline.after(0.0)))


def test_loading_kernels_does_not_count_as_time_of_a_pass(monkeypatch):
    """The first calls of the kernels take 10 s of the clock to load them; all eight passes still follow."""
    now_s, searched = [0.0], []

    def loaded(kernel):
        is_first = [True]

        def called(*given):
            now_s[0] += 10.0 * is_first.pop() if is_first else 0.0
            searched.append(kernel is route and len(given[-2]) > 0)
            return kernel(*given)

        return called

    fabric, demand = problem_arrays(problem_of(topologies.mesh(3, 3), collectives.alltoall(9)))
    route = router.route
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(router, "_PATIENCE", 9)
    for name in ("route", "choose"):
        monkeypatch.setattr(router, name, loaded(getattr(router, name)))
    find_paths(fabric, demand, Limits(Deadline(60.0)))
    assert sum(searched) == 8


def test_a_stopped_search_keeps_its_paths():
    """A stopped path search either raises OutOfTime or returns a complete path for each of 4032 chunks."""
    fabric, demand = problem_arrays(problem_of(topologies.mesh(8, 8), collectives.alltoall(64)))
    for milliseconds in (1, 3, 10, 30, 100):
        try:
            paths = find_paths(fabric, demand, Limits(Deadline.after(milliseconds / 1000)))
        except OutOfTime:
            continue
        hops = demand.origin != demand.target
        assert (np.diff(paths.hop_of) > 0).tolist() == hops.tolist()
        last = paths.slot[paths.hop_of[1:][hops] - 1]
        assert (fabric.dst[last] == demand.target[hops]).all()


@pytest.mark.slow
def test_a_limit_stops_the_search_for_paths():
    """A limit of 0.05 s stops a path search of 65280 chunks early."""
    fabric, demand = problem_arrays(problem_of(topologies.mesh(16, 16), collectives.alltoall(256)))

    def cpu_s(limit):
        began = time.process_time()
        with contextlib.suppress(OutOfTime):
            limit.run(lambda: find_paths(fabric, demand, Limits(limit)), patience_s=math.inf)
        return time.process_time() - began

    cpu_s(Deadline())  # which loads the kernels
    assert cpu_s(Deadline.after(0.05)) < cpu_s(Deadline()) / 2


def test_ranks_serve_others_in_step():
    """On four DGX-H100 each NIC receives 24 chunks of 20 us without a gap between them."""
    found = schedule_large(
        problem_of(topologies.dgx_h100(4, profile="nominal"), collectives.alltoall(32)), num_runs=1
    )
    assert found.finish_us == 480.0


def test_ranks_exchange_in_pairs():
    """On two DGX-2 no NIC, which two GPUs share, idles between sends: the alltoall meets its bound."""
    problem = make_problem(topologies.dgx2(2), "alltoall", chunk_bytes=MB)
    assert schedule_large(problem, num_runs=len(queues.PATH_RULES)).finish_us == 3362.6


@pytest.mark.slow
def test_what_is_broken_off_is_sent_at_once(monkeypatch):
    """If queueing along routes is interrupted, the routes still give a valid schedule."""
    monkeypatch.setattr(queues, "send_once", lambda *_, **__: None)
    assert verify(schedule_large(problem_of(topologies.dgx2(2), collectives.alltoall(32)))).ok


@pytest.mark.parametrize("name", ["allgather", "alltoall"])
def test_one_kernel_serves_long_and_short_schedules(name):
    """32-bit and 64-bit ticks use the same compiled kernels, so nothing is compiled during a time limit."""
    kernels = (spreading_kernel.spread_chunks, queue_kernel.send_along, compiled_loop(accept_copies))
    counts = []
    for chunk_bytes in (1, 10**15):
        collective = collectives.make(name, 3)
        sizes = [chunk_bytes, 1, 1] * (collective.num_chunks // 3)
        problem = problem_of(topologies.star(3), collective, chunk_bytes=sizes)
        found = schedule_large(problem, num_runs=1)
        assert found.kept.start.dtype == (np.uint16 if chunk_bytes == 1 else np.int64)
        assert verify(found).ok
        counts.append([len(getattr(kernel, "signatures", ())) for kernel in kernels])
    assert counts[0] == counts[1]


def through_rank_1(num_ranks):
    """A topology in which all ranks reach rank 0 through rank 1, over one link of 1 us + 1 us/MB."""
    return linked(
        "through rank 1", [0] * num_ranks, [*((rank, 1, 0, 1) for rank in range(2, num_ranks)), (1, 0, 1, 1)]
    )


def to_rank_0(num_ranks, ranks):
    """One chunk from each of some ranks to rank 0."""
    starts = {c: [rank] for c, rank in enumerate(ranks)}
    return collectives.custom(num_ranks, precondition=starts, postcondition=dict.fromkeys(starts, [0]))


def test_chunks_that_wait_for_a_link_are_merged():
    """Chunks that wait for a link are merged.

    Five chunks of 1 MB reach the relay after 1 us; two sends of at most 3 take 4 us and 3 us.
    """
    topology = through_rank_1(7)
    link = len(topology.links) - 1
    clauses = Clauses(max_merge=3, merging=frozenset([link]))
    problem = make_problem(topology, to_rank_0(7, range(2, 7)), chunk_bytes=MB, clauses=clauses)
    alone, together = (schedule_large(problem, merges=merges) for merges in (False, True))
    assert alone.finish_us == 1 + 5 * 2
    assert together.finish_us == 1 + 4 + 3
    assert verify(together).ok


def test_chunks_take_the_routes_that_merging_makes_short():
    """Chunks take the routes that are shortest with merging.

    Two of 4 chunks share a direct send of 8 + 2 us. The other two take a detour each, over two links of 5 us.
    """
    builder = TopologyBuilder("detours", [0] * 4)
    link = builder.add_link(0, 1, alpha_us=8, beta_us_per_mb=1)
    for src, dst in ((0, 2), (2, 1), (0, 3), (3, 1)):
        builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=5)
    some = range(4)
    four = collectives.custom(4, precondition={c: [0] for c in some}, postcondition={c: [1] for c in some})
    clauses = Clauses(max_merge=4, merging=frozenset([link]))
    problem = make_problem(builder.build(), four, chunk_bytes=MB, clauses=clauses)
    alone, together = (schedule_large(problem, merges=merges) for merges in (False, True))
    assert (alone.finish_us, together.finish_us) == (15, 10)
    assert verify(together).ok


def test_nothing_merges_where_latency_is_a_small_part():
    """Chunks of 1 GB with 1 us of latency are not merged, and the schedule stores no column of groups."""
    topology = through_rank_1(5)
    clauses = Clauses(max_merge=3, merging=frozenset([len(topology.links) - 1]))
    problem = make_problem(topology, to_rank_0(5, range(2, 5)), chunk_bytes=1000 * MB, clauses=clauses)
    assert schedule_large(problem, merges=True).kept.group is None


@pytest.mark.slow
def test_own_chunks_are_not_merged_with_relayed_ones():
    """Under local-first priority, own chunks and relayed chunks travel in separate sends."""
    topology = through_rank_1(4)
    link = len(topology.links) - 1
    clauses = Clauses(max_merge=4, merging=frozenset([link]), own_first=frozenset([link]))
    problem = make_problem(topology, to_rank_0(4, (1, 1, 2, 3)), chunk_bytes=MB, clauses=clauses)
    found = schedule_large(problem, merges=True)
    assert verify(found).ok
    assert found.num_sends < found.num_transfers
    assert {tuple(sorted(found.chunk[found.group == g])) for g in found.group[found.link == link]} == {
        (0, 1), (2, 3),
    }  # fmt: skip


@pytest.mark.slow
@given(seed=st.integers(0, 10**6))
@settings(max_examples=some(20, 300), deadline=None)
def test_random_problems_that_merge_are_verified(seed):
    """Random problems with merging verify, and finish no later than without it."""
    rng = random.Random(seed)
    topology = ring_with_chords(rng)
    merging = frozenset(e for e in range(len(topology.links)) if rng.random() < 0.7)
    name = rng.choice(["allgather", "alltoall", "allreduce", "scatter"])
    problem = make_problem(
        topology, collectives.make(name, topology.num_ranks, chunks_per_rank=rng.randint(1, 3)),
        chunk_bytes=rng.choice([1_000, 50_000]), clauses=Clauses(max_merge=rng.randint(2, 6), merging=merging),
    )  # fmt: skip
    alone, together = (schedule_large(problem, num_runs=1, merges=merges) for merges in (False, True))
    assert verify(together).ok
    if not problem.collective.combining:
        assert together.finish_ticks <= alone.finish_ticks


@pytest.mark.slow
def test_one_heavy_pair_spreads_over_all_paths():
    """Chunks of one heavy pair of ranks get individual paths if shared trees offer too few paths."""
    topology = taccl.topologies.dgx_h100(2)
    chunks = (*collectives.alltoall(16).chunks, *[Chunk((0,), (15,))] * 63)
    heavy = make_problem(topology, Collective("heavy pair", 16, chunks), chunk_bytes=10**6)
    fabric, demand = problem_arrays(heavy)
    shared = find_paths(fabric, demand)
    found = send_queued(fabric, demand, Limits(num_runs=1))
    assert found.finish_ticks < shared.peak_ticks
    assert found.finish_ticks <= 1.02 * lower_bound(heavy).bound * heavy.costs.ticks_per_us
