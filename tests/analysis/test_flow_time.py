"""Mean flow time: average waiting time of bytes that leave a rank and enter another; by hand and at random."""

import random
from dataclasses import replace
from fractions import Fraction
from functools import partial

import pytest

import taccl
from taccl import collectives
from taccl.analysis.certificates.flow_time import Lane, _carried, _mean_ticks, flow_time_bounds
from taccl.analysis.certificates.transformed import merging_freely
from taccl.topology.builder import TopologyBuilder
from tests.analysis.claims import baseline_finishes, both_chunkings, certificates_of, num_decided, raised
from tests.fuzzing import cases, some

MB = 10**6


#: Certificates of the claims over all chunkings.
certificates = partial(certificates_of, flow_time_bounds, divisible=True, in_network=False)


def line(num_ranks, *, alpha=2, beta=1):
    """A line of ranks with links both ways."""
    builder = TopologyBuilder("line", [0] * num_ranks)
    for rank in range(num_ranks - 1):
        for src, dst in ((rank, rank + 1), (rank + 1, rank)):
            builder.add_link(src, dst, alpha_us=alpha, beta_us_per_mb=beta)
    return builder.build()


def test_a_message_that_is_stored_and_forwarded_meets_the_bound():
    """Store and forward in one send over two links meets the bound.

    It takes 6 us for 1 MB over links of 2 us + 1 us/MB; two half sends end later.
    """
    problem = merging_freely(taccl.make_problem(line(3), "broadcast", size_bytes=MB, chunks_per_rank=1))
    (bound,) = certificates(problem)
    assert bound.bound == 6 == taccl.baselines.tree(problem, cut=False).finish
    assert bound.check() and (bound.witness.source, bound.witness.target) == (0, 2)


def test_updated_sums_come_back_from_the_server():
    """A contribution leaves its worker in 3 us, passes the middle of the line twice, and enters in 3 us.

    The worker is source and target; without updates nothing needs to come back.
    """
    exchange = collectives.exchange([2], [0], num_ranks=3, chunks_per_server=1)
    problem = merging_freely(taccl.make_problem(line(3), exchange, chunk_bytes=MB))
    (bound,) = certificates(problem)
    assert bound.bound == 3 + 2 + 2 + 3 and (bound.witness.source, bound.witness.target) == (2, 2)
    assert bound.check() and not raised(bound).check()
    plain = replace(problem, collective=replace(problem.collective, update_us_per_mb=None))
    assert not replace(bound, problem=plain).check()


def test_sends_shrink_by_the_bytes_of_a_latency():
    """For the least mean arrival, each send is smaller than the one before by the bytes that the link would
    send during one latency.

    At 1 us + 1 us per MB, 6 MB leave in sends of 3, 2 and 1 MB. They arrive at 4, 7 and 9 us; the mean over
    all bytes is 35 / 6 us.
    """
    mean, price = _mean_ticks([Lane(1, 1, 0)], 6)
    assert mean == Fraction(4 * 3 + 7 * 2 + 9 * 1, 6)
    assert _carried(Lane(1, 1, 0), price)[0] == 6


@pytest.mark.slow
def test_sums_of_a_torus_leave_and_enter_by_all_ports():
    """The bound adds the mean times in which data leave a rank by all ports, pass the links, and enter
    another rank.

    On an 8 x 8 torus, 16 KB leave by each of four ports in 0.82 us. They pass six links in 3 us, and enter in
    0.82 us.
    """
    problem = taccl.make_problem(taccl.topologies.torus(8, 8), "allreduce", size_bytes=64_000)
    (bound,) = certificates(merging_freely(problem))
    assert bound.bound == Fraction("4.64") and bound.check()


def test_the_certificate_proves_no_more():
    """The witness proves no later finish, and is refused without its resources or with another target."""
    problem = merging_freely(taccl.make_problem(line(3), "broadcast", size_bytes=MB))
    (bound,) = certificates(problem)
    assert not raised(bound).check()
    for witness in (replace(bound.witness, leaving=()), replace(bound.witness, target=1)):
        assert not replace(bound, witness=witness).check()


def test_any_price_proves_a_bound_and_none_a_larger_one():
    """A non-optimal price proves a smaller bound, and is accepted for it."""
    problem = merging_freely(taccl.make_problem(line(3), "broadcast", size_bytes=8 * MB))
    (bound,) = certificates(problem)
    for times in (Fraction(9, 10), Fraction(11, 10)):
        other = replace(bound.witness, prices=tuple(times * price for price in bound.witness.prices))
        assert not replace(bound, witness=other).check()
        assert replace(bound, witness=other, bound=bound.bound * Fraction(9, 10)).check()


@pytest.mark.fuzz
def test_no_sizes_of_sends_leave_sooner_on_average():
    """The computed mean arrival time is at most that of random sends over random lanes (resources that all
    sends hold)."""
    for seed in cases("sends of random sizes", few=200, many=5_000):
        rng = random.Random(f"sizes {seed}")
        lanes = [
            Lane(rng.choice((0, 1, 3, 10)), rng.choice((0, 1, 2, 7)), rng.choice((0, 0, 2)))
            for _ in range(rng.randint(1, 4))
        ]
        units = rng.randint(1, 60)
        mean, _ = _mean_ticks(lanes, units)
        for _ in range(20):
            sends = [[] for _ in lanes]
            cuts = sorted(rng.randint(0, units) for _ in range(rng.randint(0, 6)))
            for first, last in zip([0, *cuts], [*cuts, units], strict=True):
                if last > first:
                    rng.choice(sends).append(last - first)
            total = 0
            for lane, sizes in zip(lanes, sends, strict=True):
                now = lane.idle
                for size in sorted(sizes, reverse=rng.random() < 0.8):
                    now += lane.alpha + lane.beta * size
                    total += now * size
            assert mean * units <= total, seed


def random_line(rng):
    """A random line, ring or star of three or four ranks with unequal links, some sharing ports or pipelined."""
    num_ranks = rng.choice((3, 3, 4))
    ends = [(rank, rank + 1) for rank in range(num_ranks - 1)]
    ends += [(num_ranks - 1, 0)] if num_ranks == 4 and rng.random() < 0.4 else []
    ends = [(0, rank) for rank in range(1, num_ranks)] if rng.random() < 0.2 else ends
    builder = TopologyBuilder("random", [0] * num_ranks)
    beta, occupies = rng.choice((1, 2)), rng.random() < 0.8
    ports = {}
    for src, dst in [*ends, *((b, a) for a, b in ends)]:
        alpha = rng.choice((0, 1, 2, 3))
        overhead = alpha if occupies else rng.randint(0, alpha)
        link = builder.add_link(src, dst, alpha_us=alpha, beta_us_per_mb=beta, overhead_us=overhead)
        for side, rank in (("send", src), ("receive", dst)):
            if rng.random() < 0.3:
                port = ports.setdefault((rank, side), builder.add_resource(f"{side} {rank}"))
                held = rng.randint(0, alpha)
                builder.add_hold(
                    link, port, alpha_us=held, beta_us_per_mb=rng.randint(not held, beta), side=side
                )
    return builder.build()


def exchanges(topology, rng):
    """An exchange with random servers, of 2 MB for each server in one chunk and in two."""
    ranks = range(topology.num_ranks)
    servers = rng.sample(ranks, rng.choice((1, 1, 2)))
    workers = [rank for rank in ranks if rank not in servers or rng.random() < 0.4]
    found = []
    for parts in (1, 2):
        collective = collectives.exchange(workers, servers, num_ranks=len(ranks), chunks_per_server=parts)
        problem = taccl.make_problem(topology, collective, chunk_bytes=2 // parts * MB)
        found.append(merging_freely(problem))
    return found


@pytest.mark.fuzz
def test_no_schedule_in_any_chunks_beats_the_flow():
    """A bound over all chunkings holds for every number of chunks: on tiny problems no schedule finishes
    earlier."""
    decided = claimed = 0
    for seed in cases("mean flow time, over all schedules", few=6, many=1_000):
        rng = random.Random(f"flow {seed}")
        topology = random_line(rng)
        name = rng.choice(
            ["allreduce", "allreduce", "broadcast", "gather", "alltoall", "allgather", "reduce", "exchange"]
        )
        problems = exchanges(topology, rng) if name == "exchange" else both_chunkings(topology, name)
        found = [each for problem in problems for each in certificates(problem)]
        claimed += any(each.bound > 0 for each in found)
        limits = {"max_states": 500, "most_chunks": 8}
        decided += num_decided(problems, found, seed, baselines=True, **limits)
    assert decided > some(1, 200) and claimed > some(2, 200)


@pytest.mark.fuzz
def test_no_merged_baseline_beats_the_flow_on_grids():
    """On random tori and meshes every baseline, in every number of chunks, finishes no sooner than the claim."""
    for seed in cases("mean flow time on grids", few=2, many=300):
        rng = random.Random(f"grid {seed}")
        make = rng.choice((taccl.topologies.torus, taccl.topologies.mesh))
        sizes = [rng.choice((2, 3, 4)) for _ in range(rng.choice((1, 2, 2, 3)))]
        topology = make(
            *sizes, alpha_us=rng.choice(("0.1", "0.5", "2")), bandwidth_gb_per_s=rng.choice((10, 50))
        )
        name = rng.choice(["allreduce", "allreduce", "reduce-scatter", "broadcast"])
        problem = taccl.make_problem(topology, name, size_bytes=rng.choice((4_000, 64_000, 10**6)))
        bounds = certificates(merging_freely(problem))
        assert all(each.check() for each in bounds), seed
        best = max((each.bound for each in bounds), default=Fraction(0))
        assert all(best <= finish for finish in baseline_finishes(problem)), seed


@pytest.mark.slow
def test_flow_times_come_before_linear_programs():
    """With hardly any time, and on a mesh of 64 ranks, the bound of merged sums is that of mean flow time."""
    mesh = taccl.topologies.mesh(8, 8)
    problem = taccl.make_problem(mesh, "allreduce", size_bytes=10**6)
    assert taccl.lower_bound(problem, divisible=True, budget_s=0.01, limit_s=0.01).kind == "mean flow time"


@pytest.mark.slow
def test_flow_times_are_found_for_many_ranks():
    """1 MB summed on a mesh of 16 x 16 takes over 28 us, and not only the 15 us of its 30 hops.

    No bound beyond 28 us is sought.
    """
    problem = taccl.make_problem(taccl.topologies.mesh(16, 16), "allreduce", size_bytes=10**6)
    bound = taccl.lower_bound(problem, divisible=True, finish=28)
    assert bound.kind == "mean flow time" and bound.bound_us > 28
