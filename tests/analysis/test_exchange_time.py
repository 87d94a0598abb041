"""Exchange time: sums that nodes exchange directly, after sends in each node; at random and over all schedules."""

import math
import random
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest

import taccl
from taccl import collectives
from taccl.analysis.certificates import exchange_time
from taccl.analysis.certificates.evaluation import port_prices
from taccl.analysis.certificates.evaluation.facts import Facts
from taccl.analysis.certificates.evaluation.port_prices import are_admitted, twice_priced
from taccl.analysis.certificates.exchange_time import exchange_time_bounds
from taccl.analysis.certificates.finding.lowest_prices import highest_factors
from taccl.analysis.certificates.finding.needed_sends import NeededSends
from taccl.analysis.certificates.transformed import merging_freely
from taccl.topology.builder import TopologyBuilder
from tests.analysis.claims import baseline_finishes, certificates_of, num_decided, raised, ratios
from tests.analysis.test_link_time import sums_of
from tests.fuzzing import MANY, cases, some

MB = 10**6


def certificates(problem):
    """Certificate of the last claim, the largest one, as a list; empty without claims."""
    return certificates_of(exchange_time_bounds, problem, divisible=True, in_network=False)[-1:]


def cluster(nodes, size, *, near=(1, 0, 1), far=(4, 0, 4), rails=False):
    """Nodes of equal size. Costs are (alpha, overhead, beta); each rank has a port and a NIC, in and out.

    With `rails`, links between nodes join ranks of equal local rank only.
    """
    builder = TopologyBuilder("cluster", [node for node in range(nodes) for _ in range(size)])
    num_ranks = nodes * size
    ports = {
        (side, rank, is_far): builder.add_resource(f"{side} {rank} {is_far}")
        for side in ("send", "receive")
        for rank in range(num_ranks)
        for is_far in (False, True)
    }
    for src in range(num_ranks):
        for dst in range(num_ranks):
            is_far = src // size != dst // size
            if src != dst and not (is_far and rails and (src - dst) % size):
                alpha, overhead, beta = far if is_far else near
                link = builder.add_link(src, dst, alpha_us=alpha, beta_us_per_mb=beta, overhead_us=overhead)
                for side, rank in (("send", src), ("receive", dst)):
                    builder.add_hold(
                        link, ports[side, rank, is_far], alpha_us=overhead, beta_us_per_mb=beta, side=side
                    )
    return builder.build()


def allreduce(topology, size_bytes):
    """An allreduce over all chunkings, with sends that merge freely."""
    return merging_freely(taccl.make_problem(topology, "allreduce", size_bytes=size_bytes))


@pytest.mark.slow
def test_sums_that_nodes_exchange_are_near_the_bound():
    """An allreduce of 1 MB on four nodes of eight B200 takes 28.078 us, within 5 % of the bound.

    Two DGX-H100 are an example in docs/formulation.md, which a test runs.
    """
    problem = taccl.make_problem(taccl.topologies.b200(4), "allreduce", size_bytes=MB)
    bound = taccl.lower_bound(problem, divisible=True)
    assert bound.kind == "exchange time" and bound.check() and not raised(bound).check()
    assert 28.078 / 1.05 < bound.bound_us < 28.078


@pytest.mark.slow
def test_data_that_passes_between_nodes_twice_is_counted(monkeypatch):
    """On three nodes on rails the bound exceeds the time of two sends between nodes, but no baseline's finish."""
    topology = cluster(3, 2, near=(2, Fraction(1, 50), 1), far=(4, 0, 5), rails=True)
    monkeypatch.setattr(exchange_time, "_GRIDS", exchange_time._GRIDS[:1])
    problem = taccl.make_problem(topology, "allreduce", size_bytes=MB)
    (bound,) = certificates(merging_freely(problem))
    assert bound.check() and not raised(bound).check()
    assert 2 * 4 < bound.bound < min(baseline_finishes(problem, cut=False))


@pytest.mark.slow
def test_two_nodes_leave_time_for_three_sends_between_them(monkeypatch):
    """Between two nodes data passes once or three times: the bound exceeds two sends there and two inside."""
    topology = cluster(2, 2, near=(1, Fraction(1, 50), 4), far=(4, 0, 12))
    monkeypatch.setattr(exchange_time, "_GRIDS", exchange_time._GRIDS[:1])
    problem = taccl.make_problem(topology, "allreduce", size_bytes=MB)
    (bound,) = certificates(merging_freely(problem))
    assert bound.check() and not raised(bound).check()
    assert 2 * 4 + 2 * 1 < bound.bound < min(baseline_finishes(problem, cut=False))


def test_short_sums_end_before_three_hops_in_a_row(monkeypatch):
    """The bound exceeds a send between nodes and one inside; for fewer bytes, a second one inside does not fit."""
    topology, found = cluster(2, 3, near=(1, Fraction(1, 50), 10), far=(4, Fraction(1, 50), 60)), []
    monkeypatch.setattr(exchange_time, "_GRIDS", ((80, (0.04, 0.02)),))
    for size in (16_000, 64_000):
        (bound,) = certificates(allreduce(topology, size))
        assert bound.check() and not raised(bound).check()
        found.append(bound.bound_us)
    assert 4 + 1 < found[0] < 4 + 2 < found[1]


def test_nothing_is_sought_above_the_longest_horizon(monkeypatch):
    """If other arguments prove the longest horizon or more, no prices are searched."""
    problem = allreduce(cluster(2, 3, near=(1, Fraction(1, 50), 10), far=(4, Fraction(1, 50), 60)), 16_000)
    longest = exchange_time._nodes_of(Facts(problem, divisible=True, in_network=False)).longest
    sought = []
    monkeypatch.setattr(exchange_time._Search, "lengthened", lambda *_: sought.append(True) or ())
    for known, number in ((longest, 0), (longest - 1, 1)):
        demand = NeededSends(problem)
        demand.known = known
        assert not [*exchange_time_bounds(demand, in_network=False)]
        assert len(sought) == number


@pytest.mark.parametrize("rails", [False, True])
def test_a_send_is_the_first_of_several_for_few_ranks(rails):
    """After a send between nodes, another one reaches no more ranks than the bound counts, on any shifted grid.

    Hops take 1 us in nodes and 4 us between them. Hops in nodes may follow the second send.
    """
    topology = cluster(4, 3, near=(1, 0, 1), far=(4, 0, 4), rails=rails)
    facts = Facts(allreduce(topology, MB), divisible=True, in_network=False)
    nodes, per_us, cells = exchange_time._nodes_of(facts), facts.problem.costs.ticks_per_us, 40
    rng, horizon = random.Random(0), 14 * per_us
    grid = exchange_time._grid(nodes, Fraction(horizon), cells)
    most, early = exchange_time._onwards(nodes, grid, cells), exchange_time._num_early(nodes, grid, cells)
    joined, follow = set(), 0
    # Rank 0 sends to rank 3, the first of the next node; the second send goes to the other two nodes.
    direct = {6, 9} if rails else {*range(6, 12)}
    for _ in range(400):
        end = Fraction(rng.randrange(1, 9000), 1000) * per_us  # of the hold
        left = horizon - (end + nodes.nic.idle) - 4 * per_us  # once both sends between nodes have ended
        ends = range(6, 12) if left > per_us else direct if left > 0 else ()
        f = min(cells, math.floor(end / grid.cell + Fraction(rng.randrange(100), 100)))
        assert len(ends) <= most[f]
        assert left <= 4 * per_us or f < early
        joined.add(len(ends))
        follow += left > 4 * per_us
    assert joined == ({0, 2, 6} if rails else {0, 6})
    assert follow


@pytest.mark.fuzz
def test_holds_of_a_port_cost_no_more_than_its_time():
    """All units in holds one after another cost at most the price of the time, on average over shifted grids.

    Some of the holds end after the last price of a port, and cost nothing.
    """
    ratios = []
    for seed in cases("costs of holds", few=40, many=4000):
        rng = random.Random(f"costs of holds {seed}")
        cells, alpha = rng.choice((2, 3, 5)), Fraction(rng.choice((0, 0, 3, 10, 15)), 10)
        prices = rng.choice(([5] * (cells + 1), [rng.randrange(1, 9) for _ in range(cells + 1)]))
        swing = max(abs(one - two) for one, two in pairwise(prices)) / min(prices)
        factors = highest_factors(float(alpha), cells, swing)
        assert are_admitted(prices, factors, alpha)
        costs = exchange_time._costs_of_ports(prices, factors, math.floor(alpha))
        ends = (Fraction(rng.randrange(8 * cells + 16), 8) for _ in range(rng.randrange(1, 9)))
        times = [Fraction(0), *sorted(ends)]
        paid = Fraction(0)
        for start, end in pairwise(times):
            # Moved times change at these shifts of the grid.
            shifts = sorted({Fraction(0), Fraction(1), *((-time) % 1 for time in (start, end))})
            for low, high in pairwise(shifts):
                first, last = math.floor(start + low), math.floor(end + low)
                if end - start > alpha and last < len(costs):
                    paid += (end - start - alpha) * (high - low) * int(costs[first, last])
        ratios.append(2 * paid / twice_priced(prices) / 10**6)
        assert ratios[-1] <= 1, seed
    assert max(ratios) > 0.6


@pytest.mark.slow
def test_each_longer_horizon_is_a_claim(monkeypatch):
    """A search that a deadline ends has proven more than its first horizon."""
    problem = allreduce(cluster(2, 2, near=(1, Fraction(1, 50), 4), far=(6, 0, 4)), MB)
    monkeypatch.setattr(exchange_time, "_GRIDS", exchange_time._GRIDS[:1])
    found = certificates_of(exchange_time_bounds, problem, divisible=True, in_network=False)
    bounds = [each.bound for each in found]
    assert len(bounds) > 1 and bounds == sorted(set(bounds))


@pytest.mark.slow
def test_the_certificate_proves_no_more(monkeypatch):
    """A witness with a longer horizon, higher factors, or fewer or lower prices is refused."""
    problem = allreduce(cluster(2, 2, near=(1, Fraction(1, 50), 4), far=(6, 0, 4)), MB)
    monkeypatch.setattr(exchange_time, "_GRIDS", exchange_time._GRIDS[:1])
    (bound,) = certificates(problem)
    witness = bound.witness
    assert bound.check() and not raised(bound).check()
    longer = replace(witness, horizon=witness.horizon * Fraction(104, 100))
    assert not replace(bound, witness=longer, bound=bound.bound * Fraction(104, 100)).check()
    for other in (
        replace(witness, nic_factors=tuple(2 * each for each in witness.nic_factors)),
        replace(witness, port_factors=witness.port_factors[1:]),
        replace(witness, port_prices=witness.port_prices[9:], port_factors=witness.port_factors[9:]),
        replace(witness, nic_prices=tuple((each + 1) // 2 for each in witness.nic_prices)),
        replace(witness, nic_prices=(0, *witness.nic_prices[1:])),
        replace(witness, port_prices=tuple(9 * each for each in witness.port_prices)),
    ):
        assert not replace(bound, witness=other).check()


@pytest.mark.slow
def test_whole_horizons_are_evaluated_exactly(monkeypatch):
    """A horizon given as an integer divides into cells without rounding."""
    problem = allreduce(cluster(2, 2, near=(1, Fraction(1, 50), 4), far=(6, 0, 4)), MB)
    monkeypatch.setattr(exchange_time, "_GRIDS", exchange_time._GRIDS[:1])
    (bound,) = certificates(problem)
    alphas = []
    monkeypatch.setattr(port_prices, "are_admitted", lambda *given: alphas.append(given[2]))
    whole = replace(bound.witness, horizon=int(bound.witness.horizon))
    assert not replace(bound, witness=whole, bound=Fraction(1)).check()
    assert [type(each) for each in alphas] == [Fraction]


def test_nothing_is_claimed_elsewhere():
    """One node, unequal nodes, sums of some ranks, large sums, and nodes without ports yield no claim."""
    for topology in (taccl.topologies.dgx_h100(1), taccl.topologies.ndv2(2)):
        assert certificates(allreduce(topology, MB)) == []
    small = cluster(2, 2)
    assert certificates(allreduce(small, 100 * MB)) == []
    for collective in (collectives.allgather(4), collectives.reduce(4, root=0)):
        assert certificates(merging_freely(taccl.make_problem(small, collective, chunk_bytes=MB))) == []


def costs_at_random(rng):
    """Random costs (alpha, overhead, beta) of sends in nodes and between nodes."""
    near, far = rng.choice((1, 2)), rng.choice((2, 3, 4, 6, 9))
    held = [rng.choice((0, Fraction(1, 50), Fraction(1, 5))) for _ in range(2)]
    return {"near": (near, held[0], rng.choice((1, 2, 4))), "far": (far, held[1], rng.choice((1, 4, 8, 12)))}


@pytest.mark.fuzz
def test_no_schedule_in_any_chunks_beats_the_bound(monkeypatch):
    """On two or three nodes of two ranks no schedule in 1 or 2 chunks ends earlier, by exhaustive search."""
    if not MANY:
        monkeypatch.setattr(exchange_time, "_GRIDS", exchange_time._GRIDS[:1])
    decided = 0
    for seed in cases("exchange time, over all schedules", few=2, many=200):
        rng = random.Random(f"exchange time {seed}")
        topology = cluster(2 + seed % 2, 2, **costs_at_random(rng), rails=rng.random() < 0.5)
        problems = [sums_of(topology, number) for number in (1, 2)]
        decided += num_decided(problems, certificates(problems[0]), seed)
    assert decided >= some(1, 20)


@pytest.mark.fuzz
def test_no_baseline_beats_the_bound(monkeypatch):
    """On random clusters baselines, and a search, finish no sooner than the claim, in every number of chunks."""
    if not MANY:
        monkeypatch.setattr(exchange_time, "_GRIDS", exchange_time._GRIDS[:1])
    nearest = []
    for seed in cases("exchange time against baselines", few=2, many=150):
        rng = random.Random(f"exchanges {seed}")
        nodes, size, rails = rng.choice((2, 2, 3, 4)), rng.choice((2, 3, 4)), rng.random() < 0.5
        topology = cluster(nodes, size, **costs_at_random(rng), rails=rails)
        problem = taccl.make_problem(
            topology, "allreduce", size_bytes=rng.choice((10**5, 5 * 10**5, MB, 2 * MB))
        )
        nearest += ratios(certificates(merging_freely(problem)), problem, seed, searched=True)
    assert 1 <= min(nearest) < 1.25
