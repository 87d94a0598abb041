"""Link time: busy links against hops to the farthest rank of a torus or mesh; at random and over all schedules."""

import random
import tracemalloc
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import pairwise

import pytest

import taccl
from taccl import collectives
from taccl._internal.deadline import Deadline
from taccl.analysis.certificates import link_time
from taccl.analysis.certificates.certificate import Certificate
from taccl.analysis.certificates.finding.link_loads import LinkLoads, send_costs
from taccl.analysis.certificates.finding.needed_sends import NeededSends
from taccl.analysis.certificates.flow_time import flow_time_bounds
from taccl.analysis.certificates.link_time import (
    _PARTS,
    LinkTime,
    PlacePrices,
    TimePrices,
    _least_costs,
    link_time_bounds,
)
from taccl.analysis.certificates.transformed import merging_freely
from taccl.topology.builder import TopologyBuilder
from taccl.topology.recognise import grid_of
from tests.analysis.claims import baseline_finishes, certificates_of, num_decided
from tests.fuzzing import MANY, cases, some

#: Certificates of the claims over all chunkings.
certificates = partial(certificates_of, link_time_bounds, divisible=True, in_network=False)


@pytest.fixture
def _rough(monkeypatch):
    """Solve only the programs on the rough grid, whose claims are as valid as those of larger ones, unless TACCL_MANY is set."""
    if not MANY:
        monkeypatch.setattr(link_time, "_GRIDS", link_time._GRIDS[:1])


def allreduce(topology, size_bytes):
    """An allreduce over all chunkings, with sends that merge freely."""
    return merging_freely(taccl.make_problem(topology, "allreduce", size_bytes=size_bytes))


def ring_of(num_ranks, alpha, beta, *, shared=False, closed=True):
    """A ring with a latency in us and us per MB; if `shared`, each rank's links out share a port.

    It is a line if it is not `closed`.
    """
    builder = TopologyBuilder("ring", [0] * num_ranks)
    for rank in range(num_ranks):
        port = builder.add_resource(f"port {rank}") if shared else None
        for way in (1, -1):
            if not closed and not 0 <= rank + way < num_ranks:
                continue
            link = builder.add_link(rank, (rank + way) % num_ranks, alpha_us=alpha, beta_us_per_mb=beta)
            if port is not None:
                builder.add_hold(link, port, alpha_us=alpha, beta_us_per_mb=beta, side="send")
    return builder.build()


@pytest.mark.slow
@pytest.mark.usefixtures("_rough")
def test_merged_sums_are_near_the_bound():
    """On a torus of 4 x 4 x 4 an allreduce of 1 MB takes 11.084 us, 16 % more than the rough grid proves.

    Tori and meshes of two dimensions are examples in docs/formulation.md, which a test runs.
    """
    best = max(certificates(allreduce(taccl.topologies.torus(4, 4, 4), 10**6)), key=lambda each: each.bound)
    assert best.check() and 9.4 < best.bound_us < 11.0834


@pytest.mark.parametrize(
    ("sizes", "num_bytes", "proven_us", "finish_us"),
    [((5,), 1_000_000, 17.99, 18), ((3, 3), 64_000, 2.13, 2.14)],
)
def test_each_farthest_rank_of_an_odd_ring_counts(sizes, num_bytes, proven_us, finish_us):
    """Each source has two farthest ranks per odd ring; paths to either of them would prove 17.37 and 1.6 us."""
    made = taccl.topologies.torus(*sizes) if len(sizes) > 1 else taccl.topologies.ring(*sizes)
    best = max(each.bound_us for each in certificates(allreduce(made, num_bytes)))
    assert proven_us < best <= finish_us


@pytest.mark.slow
def test_horizons_of_few_latencies_are_bounded_too():
    """On a mesh of 2 x 3, sums of 30 KB take 3.008 us, six latencies. Prices that may be cut off prove 1.9 us."""
    best = max(certificates(allreduce(taccl.topologies.mesh(2, 3), 30_000)), key=lambda each: each.bound)
    assert best.check() and 2.35 < best.bound_us < 3.008


@pytest.mark.slow
def test_prices_change_over_time():
    """On a mesh, links out of corners cost most in the first half; the bound exceeds that of mean flow time."""
    problem = allreduce(taccl.topologies.mesh(3, 3), 16_000)
    best = max(certificates(problem), key=lambda each: each.bound)
    corner = next(each.prices for each in best.witness.times if each[:2] == ((0, 0), (0, 1)))
    half = len(corner) // 2
    assert sum(corner[:half]) > 2 * sum(corner[half:])
    assert best.check() and best.bound > best_flow_time(problem)


def best_flow_time(problem):
    """Best bound of mean flow time over all chunkings, in us."""
    found = certificates_of(flow_time_bounds, problem, divisible=True, in_network=False)
    return max(each.bound for each in found)


def test_costs_lie_below_the_curve():
    """With straight lines between whole lengths, costs fall, are at most 1 / (x - latency), and close to it."""
    for latency in (Fraction(1), Fraction(5, 4), Fraction(29, 10), Fraction(10, 3)):
        least = int(latency)
        costs = [0] * least + [Fraction(each, _PARTS) for each in _least_costs(latency, 12)]
        assert send_costs(float(latency), 12).tolist() == pytest.approx(
            [float(each) for each in costs], abs=1e-7
        )
        assert all(after <= cost for cost, after in pairwise(costs[least:]))
        for m in range(least, 12):
            for part in range(1, 11):
                x = m + Fraction(part, 10)
                if x > latency:
                    assert costs[m] + (costs[m + 1] - costs[m]) * Fraction(part, 10) <= 1 / (x - latency)
        assert costs[12] > Fraction(98, 100) / (12 - latency)


@pytest.mark.slow
@pytest.mark.usefixtures("_rough")
def test_the_certificate_proves_no_more():
    """A witness with a longer horizon, other sizes or steps, fewer or higher prices is refused."""
    problem = allreduce(taccl.topologies.torus(4, 4), 64_000)
    bound = max(certificates(problem), key=lambda each: each.bound)
    witness = bound.witness
    assert bound.check() and not replace(bound, bound=bound.bound + Fraction(1, 10**9)).check()
    longer = replace(witness, horizon=witness.horizon * Fraction(102, 100))
    assert not replace(bound, witness=longer, bound=bound.bound * Fraction(102, 100)).check()
    (place, prices), *rest = witness.places
    *others, (far, most) = witness.places
    time = witness.times[0]

    def priced(*prices):
        return tuple(PlacePrices(*each) for each in prices)

    for other in (
        replace(witness, sizes=(16,), rings=(True,)),
        replace(witness, sizes=(2, 8)),
        replace(witness, rings=(False, False)),
        replace(witness, rings=(True,)),
        replace(witness, steps=witness.steps + 1),
        replace(witness, steps=0),
        replace(witness, steps=10**9),
        replace(witness, times=()),
        replace(witness, times=(), places=(), per_send=0),
        replace(witness, times=(time._replace(prices=time.prices[1:]),)),
        replace(witness, times=(time._replace(prices=tuple(2 * each for each in time.prices)),)),
        replace(witness, times=(time._replace(prices=tuple(each // 2 for each in time.prices)),)),
        replace(witness, times=(time._replace(prices=(10**18, *time.prices[1:])),)),
        replace(witness, per_send=10 * witness.per_send + 10**7),
        replace(witness, places=witness.places[len(rest) // 2 :]),
        replace(witness, places=witness.places[: len(rest) // 2]),
        replace(witness, places=priced(*others, (far, most[1:]))),
        replace(witness, places=priced(*others, (far, (0, *most[1:])))),
        replace(witness, places=priced(*others, (far, (10**18, *most[1:])))),
        replace(witness, places=priced(*others, (far, (*most[:-1], -1)))),
        replace(witness, places=priced((place, (10**6, *prices[1:])), *rest)),
        replace(witness, places=priced(*witness.places, (far, most))),
        replace(witness, places=priced(*witness.places, ((9, 9), most))),
        replace(
            witness, places=priced(*((each, tuple(2 * x for x in prices)) for each, prices in witness.places))
        ),
    ):
        assert not replace(bound, witness=other).check()


def test_whole_horizons_are_evaluated_exactly():
    """A latency just below three steps, with a horizon given as an integer, is not rounded up to three."""
    ticks = 3 * 2**53
    problem = sums_of(ring_of(4, ticks, ticks), 1)
    loads = LinkLoads(grid_of(problem.topology), ticks, 2 * ticks)
    found = loads.priced(Fraction(3 * ticks), 9, 10)
    times = tuple(TimePrices(*each) for each in found.times)
    places = tuple(PlacePrices(*each) for each in found.places)
    for horizon, is_proven in ((3 * ticks, True), (3 * ticks + 1, False)):
        witness = LinkTime(horizon, loads.sizes, loads.rings, 9, found.per_send, times, places)
        bound = Fraction(horizon) / problem.costs.ticks_per_us
        assert Certificate(problem, bound, "link time", "", witness, True).check() is is_proven


def test_large_sums_have_no_program():
    """Grids with too many flows are refused before their sends are listed: there would be millions for 256 MB."""
    problem = allreduce(taccl.topologies.torus(4, 4), 256 * 10**6)
    tracemalloc.start()
    assert certificates(problem) == []
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < 10**7


def test_programs_end_in_time():
    """A linear program gets the time that is left, and no claim is made once none is left."""
    demand = NeededSends(allreduce(taccl.topologies.torus(3, 3), 16_000))
    assert [*link_time_bounds(demand, in_network=False)]
    limits = []

    def priced(self, horizon, steps, knots, *, limit_s):
        limits.append(limit_s)
        return solved(self, horizon, steps, knots, limit_s=0)

    solved, demand.deadline = LinkLoads.priced, Deadline.after(60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LinkLoads, "priced", priced)
        assert not [*link_time_bounds(demand, in_network=False)]
    assert limits and max(limits) <= 60


@pytest.mark.slow
def test_prices_of_too_long_a_horizon_prove_a_shorter_one(monkeypatch):
    """One linear program suffices for a claim, also if its links are loaded less than fully."""
    solved, loads = LinkLoads.priced, []

    def priced(self, horizon, steps, knots, *, limit_s):
        if loads:
            return None
        found = solved(self, horizon, steps, knots, limit_s=limit_s)
        loads.append((horizon, found.load))
        return found

    monkeypatch.setattr(LinkLoads, "priced", priced)
    problem = allreduce(taccl.topologies.torus(4, 4), 4 * 10**6)
    (found,) = certificates(problem)
    ((horizon, load),) = loads
    assert 0.5 < load < 1 and found.check()
    assert found.bound * problem.costs.ticks_per_us == pytest.approx(float(horizon) * load, rel=0.001)


def test_nothing_is_claimed_elsewhere():
    """Networks without a grid, links that share a port, and sums of some ranks yield no claim."""
    for topology in (taccl.topologies.dgx1(1), ring_of(4, 1, 1, shared=True)):
        assert certificates(allreduce(topology, 10**6)) == []
    ring = ring_of(4, 1, 1)
    assert certificates(allreduce(ring, 10**6))
    for collective in (collectives.allgather(4), collectives.reduce(4, root=0)):
        assert certificates(merging_freely(taccl.make_problem(ring, collective, chunk_bytes=10**6))) == []


def sums_of(topology, num_chunks):
    """Sums of 2 MB together of all ranks, in some chunks, that all want; sends merge freely."""
    every = [*range(topology.num_ranks)]
    sums = dict.fromkeys(range(num_chunks), every)
    collective = collectives.custom(len(every), precondition=sums, postcondition=sums, combining=True)
    return merging_freely(taccl.make_problem(topology, collective, chunk_bytes=2 * 10**6 // num_chunks))


@pytest.mark.fuzz
@pytest.mark.usefixtures("_rough")
def test_no_schedule_in_any_chunks_beats_the_bound():
    """On rings and lines of 3 and 4 ranks no schedule in 1 or 2 chunks ends earlier, by exhaustive search."""
    decided = 0
    for seed in cases("link time, over all schedules", few=3, many=300, first=2):
        rng = random.Random(f"link time {seed}")
        costs = rng.choice((1, 2, 3)), rng.choice((1, 1, 2, 4))
        ring = ring_of(rng.choice((3, 3, 4)), *costs, closed=rng.random() < 0.6)
        problems = [sums_of(ring, number) for number in (1, 2)]
        found = [each for problem in problems for each in certificates(problem)]
        decided += num_decided(problems, found, seed)
    assert decided > some(1, 50)


@pytest.mark.fuzz
@pytest.mark.usefixtures("_rough")
def test_no_baseline_beats_the_bound_on_tori_and_meshes():
    """On small tori and meshes every baseline in finer chunks finishes no sooner."""
    nearest = []
    for seed in cases("link time on tori", few=2, many=60, first=1):
        rng = random.Random(f"torus {seed}")
        sizes = rng.choice(((3, 3), (4, 4), (5,), (8,), (3, 3, 3), (3, 4), (2, 4), (2, 2, 2), (2, 5)))
        kind = rng.choice((taccl.topologies.torus, taccl.topologies.mesh))
        made = kind(*sizes) if len(sizes) > 1 else taccl.topologies.ring(*sizes)
        problem = allreduce(made, rng.choice((16_000, 64_000, 200_000, 600_000)))
        bounds = certificates(problem)
        assert all(each.check() for each in bounds), seed
        best = max((each.bound for each in bounds), default=None)
        if best is not None:
            nearest.append(float(min(baseline_finishes(problem)) / best))
    assert nearest and min(nearest) >= 1
