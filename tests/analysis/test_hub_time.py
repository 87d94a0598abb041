"""Hub time: the order of sends into and out of hubs; at random and over all schedules."""

import random
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import taccl
from taccl import collectives
from taccl._internal.deadline import OutOfTime
from taccl.analysis.certificates import hub_time
from taccl.analysis.certificates.evaluation.facts import Facts
from taccl.analysis.certificates.evaluation.port_prices import are_admitted, port_of
from taccl.analysis.certificates.finding.horizons import HorizonSearch
from taccl.analysis.certificates.finding.lowest_prices import highest_factors
from taccl.analysis.certificates.hub_time import hub_time_bounds
from taccl.analysis.certificates.transformed import merging_freely
from tests.analysis.claims import certificates_of, num_decided, raised, ratios
from tests.analysis.test_link_time import sums_of
from tests.analysis.test_sum_flow import crossbar
from tests.fuzzing import MANY, cases, some

MB = 10**6


def certificates(problem):
    """Certificate of the last claim, the largest one, as a list; empty without claims."""
    return certificates_of(hub_time_bounds, problem, divisible=True, in_network=False)[-1:]


@pytest.fixture
def _coarse(monkeypatch):
    """Use the coarse grid alone, whose claims are as valid as those of the fine one, unless TACCL_MANY is set."""
    if not MANY:
        monkeypatch.setattr(hub_time, "_FINE", hub_time._COARSE)


def allreduce(topology, size_bytes):
    """An allreduce over all chunkings, with sends that merge freely."""
    return merging_freely(taccl.make_problem(topology, "allreduce", size_bytes=size_bytes))


@pytest.mark.slow
def test_sums_on_one_switch_are_near_the_bound():
    """An allreduce of 1 MB on eight B200 takes 8.544 us, within 5 % of the bound; docs/formulation.md has a DGX-H100."""
    problem = taccl.make_problem(taccl.topologies.b200(1), "allreduce", size_bytes=MB)
    bound = taccl.lower_bound(problem, divisible=True)
    assert bound.kind == "hub time" and bound.check() and not raised(bound).check()
    assert 8.544 / 1.05 < bound.bound_us < 8.544


@pytest.mark.slow
@pytest.mark.usefixtures("_coarse")
def test_the_certificate_proves_no_more():
    """A witness with a longer horizon, higher factors, or fewer or other prices is refused."""
    problem = allreduce(crossbar(4, alpha=4, overhead=Fraction(1, 10), beta=4), MB)
    bound = max(certificates(problem), key=lambda each: each.bound)
    witness = bound.witness
    assert bound.check() and not raised(bound).check()
    longer = replace(witness, horizon=witness.horizon * Fraction(104, 100))
    assert not replace(bound, witness=longer, bound=bound.bound * Fraction(104, 100)).check()
    for other in (
        replace(witness, factors=tuple(2 * each for each in witness.factors)),
        replace(witness, factors=witness.factors[1:]),
        replace(witness, factors=tuple(reversed(witness.factors))),
        replace(witness, prices=witness.prices[1:]),
        replace(witness, prices=(0, *witness.prices[1:])),
        replace(witness, prices=tuple(1000 + (i % 2) * 900 for i in range(len(witness.prices)))),
        replace(witness, prices=(1, 1), factors=(1, 1)),
        replace(witness, shared=1),
    ):
        assert not replace(bound, witness=other).check()


@pytest.mark.slow
@pytest.mark.usefixtures("_coarse")
def test_whole_horizons_are_evaluated_exactly(monkeypatch):
    """A horizon given as an integer divides into cells without rounding."""
    problem = allreduce(crossbar(4, alpha=4, overhead=Fraction(1, 10), beta=4), MB)
    (*_, bound) = certificates(problem)
    alphas = []
    monkeypatch.setattr(hub_time, "are_admitted", lambda *given: alphas.append(given[2]))
    whole = replace(bound.witness, horizon=int(bound.witness.horizon))
    assert not replace(bound, witness=whole, bound=Fraction(1)).check()
    assert [type(each) for each in alphas] == [Fraction]


@pytest.mark.slow
def test_factors_lie_below_the_curve():
    """The factors of the finder are admitted, and at most 4 % below x / (x - alpha) from ten cells on."""
    problem = allreduce(crossbar(4, alpha=4, overhead=Fraction(1, 10), beta=4), MB)
    (*_, bound) = certificates(problem)
    facts = Facts(problem, divisible=True, in_network=False)
    port = port_of(facts, facts.allowed)
    cells = len(bound.witness.prices) - 1
    alpha = port.alpha * cells / (bound.witness.horizon - port.idle)
    factors = np.array(bound.witness.factors[10:]) / 10**6
    lengths = np.arange(10, cells + 1)
    curve = lengths / (lengths - float(alpha))
    assert are_admitted(bound.witness.prices, bound.witness.factors, alpha)
    assert np.all(factors <= curve) and np.all(factors > 0.96 * curve)
    for swing in (0, 0.01, 0.3, 3.0):  # of prices 1000, ..., 1000 + 1000 * swing, in one step
        prices = (1000,) * cells + (round(1000 + 1000 * swing),)
        assert are_admitted(prices, highest_factors(float(alpha), cells, swing), alpha)
    assert not are_admitted(bound.witness.prices, highest_factors(1.2 * float(alpha), cells, 0.1), alpha)


def plan_of(rng, num_ranks):
    """Random groups of sends (source, destination) in two rounds, by which every rank reaches every other."""
    ranks = rng.sample(range(num_ranks), num_ranks)
    every = [(a, b) for a in ranks for b in ranks if a != b]
    kind = rng.choice(("direct", "hub", "hubs first", "hubs last", "part"))
    if kind == "direct":
        return every, []
    hubs = ranks[: 1 if kind in ("hub", "part") else rng.randint(1, num_ranks // 2)]
    own = [(rank, hubs[i % len(hubs)]) for i, rank in enumerate(ranks[len(hubs) :])]
    spread = [(hub, rank) for hub in hubs for rank in ranks if rank != hub]
    if kind == "hubs last":
        return [(b, a) for a, b in spread], [(b, a) for a, b in own]
    if kind == "part":  # the last contribution goes to all directly
        late = own[-1][0]
        return [*own[:-1], *((late, rank) for rank in ranks if rank != late)], spread
    return own, spread


def timed(rng, sends, first, last, mean):
    """Random holds (start, end) of sends that share no port at a time, from `first` to `last`; None if late."""
    free, holds = {}, []
    for src, dst in rng.sample(sends, len(sends)):
        start = max(first, free.get((0, src), 0), free.get((1, dst), 0)) + rng.choice((0, 0, mean / 2))
        end = start + mean * rng.uniform(0.7, 1.3)
        free[0, src] = free[1, dst] = end
        holds.append((start, end))
    return holds if all(end <= last for _, end in holds) else None


def costs_in_time(problem, witness):
    """Cells of a witness, alpha and idle in cells, a function that prices holds exactly, and the cost that is needed."""
    facts = Facts(problem, divisible=True, in_network=False)
    port, num_ranks, units = port_of(facts, facts.allowed), problem.topology.num_ranks, sum(facts.units)
    cells = len(witness.prices) - 1
    cell = float((witness.horizon - port.idle) / cells)
    alpha, idle, y = port.alpha / cell, port.idle / cell, np.array(witness.prices, float)
    fine = np.linspace(0, cells, 40 * cells + 1)
    bends = np.maximum(0, np.diff(y, 2))
    raised_y = np.interp(fine, np.arange(cells + 1), y) + sum(
        bend / 2 * np.maximum(0, 1 - abs(fine - k)) for k, bend in enumerate(bends, 1)
    )
    area = np.concatenate(([0], np.cumsum((raised_y[1:] + raised_y[:-1]) / 2) / 40))

    def cost(holds):
        starts, ends = np.array(holds).T
        priced = np.interp(ends, fine, area) - np.interp(starts, fine, area)
        return (priced / (ends - starts - alpha)).sum()

    return cells, alpha, idle, cost, num_ranks * area[-1] / (units * port.beta / cell)


@pytest.mark.slow
@pytest.mark.usefixtures("_coarse")
def test_no_plan_of_a_byte_costs_less():
    """Random plans of a byte cost at least what the proof needs, at the prices and in exact times.

    They are all direct sends, one hub or several, and a hub with all contributions but one.
    """
    rng, decided = random.Random(1), 0
    small = crossbar(4, overhead=Fraction(1, 10), beta=4)
    for machine in (taccl.topologies.dgx_h100(1), small):
        problem = allreduce(machine, MB)
        witness = max(certificates(problem), key=lambda each: each.bound).witness
        cells, alpha, idle, cost, needed = costs_in_time(problem, witness)
        num_ranks = machine.num_ranks
        for _ in range(some(125, 1200)):
            first, second = plan_of(rng, num_ranks)
            mean = alpha + rng.choice((0.5, 1, 2, 4)) * cells / 40
            early = timed(rng, first, 0, cells, mean)
            if early is None:
                continue
            if not second:  # in the middle, where prices are low
                shift = rng.uniform(0, 1) * (cells - max(end for _, end in early))
                early = [(start + shift, end + shift) for start, end in early]
            ready = max(end for _, end in early) + idle
            late = timed(rng, second, ready, cells, mean)
            if late is None:
                continue
            decided += 1
            assert cost([*early, *late]) >= needed * (1 - 1e-9)
    assert decided > some(30, 200)


@pytest.mark.usefixtures("_coarse")
def test_plans_with_three_sends_in_a_row_cost_no_less():
    """Where time suffices for three sends in a row, plans in which two hubs pass sums on cost what the proof needs."""
    problem = allreduce(crossbar(4, alpha=3, overhead=Fraction(1, 10), beta=5), MB)
    (bound,) = certificates(problem)
    assert bound.check() and not raised(bound).check()
    assert 9.3 < bound.bound_us < taccl.baselines.multiplying(problem).finish_us  # three sends take 9.3 us
    cells, alpha, idle, cost, needed = costs_in_time(problem, bound.witness)
    rng, costs = random.Random(2), []
    for _ in range(some(300, 3000)):
        first, second, *others = rng.sample(range(4), 4)
        near = {first: others[:1], second: others[1:]}
        own = [(rank, hub) for hub, ranks in near.items() for rank in ranks]
        holds, since = [], 0.0
        for sends in (own, [(first, second), (second, first)], [(b, a) for a, b in own]):
            since += rng.choice((0, 0, 0.1)) * cells
            found = timed(rng, sends, since, cells, alpha + rng.choice((0.5, 1, 2)) * cells / 40)
            if found is None:
                break
            holds += found
            since = max(end for _, end in found) + idle
        else:
            costs.append(cost(holds))
    assert len(costs) > some(20, 200) and min(costs) >= needed * (1 - 1e-9)


def test_nothing_is_claimed_elsewhere():
    """Unlike links, sums of some ranks, and machines without ports yield no claim."""
    for topology in (taccl.topologies.mesh(3, 3), taccl.topologies.dgx1(1), taccl.topologies.dgx_h100(2)):
        assert certificates(allreduce(topology, MB)) == []
    topology = crossbar(4)
    for collective in (collectives.allgather(4), collectives.reduce(4, root=0)):
        assert certificates(merging_freely(taccl.make_problem(topology, collective, chunk_bytes=MB))) == []


def test_a_search_ends_between_attempts_once_time_is_up():
    """A search that proves nothing tries a few of its prices only, if time is up after these."""
    tried = []

    class Unproven(HorizonSearch):
        families = (0.1, 0.2, 0.3), (0.5, 1.0)

        def witness(self, horizon, cells, one, two):
            tried.append((one, two))

    def check():
        if len(tried) == 2:
            raise OutOfTime("time is up")

    with pytest.raises(OutOfTime):
        next(Unproven((10.0,), 40.0, (1, 1), check).lengthened(8, (0.1,)))
    assert tried[0] == (0.2, 1.0) and len(tried) == 2


@pytest.mark.fuzz
@pytest.mark.usefixtures("_coarse")
def test_no_schedule_in_any_chunks_beats_the_bound():
    """On crossbars of 3 and 4 ranks an exhaustive search finds no schedule in 1 or 2 chunks that ends earlier."""
    decided = 0
    for seed in cases("hub time, over all schedules", few=3, many=300):
        rng = random.Random(f"hub time {seed}")
        overhead = rng.choice((0, Fraction(1, 10), Fraction(1, 2), 1))
        topology = crossbar(
            rng.choice((3, 3, 4)), alpha=rng.choice((2, 3, 4)), overhead=overhead, beta=rng.choice((1, 2, 3))
        )
        problems = [sums_of(topology, number) for number in (1, 2)]
        decided += num_decided(problems, certificates(problems[0]), seed)
    assert decided >= some(1, 40)


@pytest.mark.fuzz
@pytest.mark.usefixtures("_coarse")
def test_no_baseline_beats_the_bound_on_crossbars():
    """On random crossbars every baseline, in every number of chunks, finishes no sooner than the claim."""
    nearest = []
    for seed in cases("hub time on crossbars", few=3, many=150):
        rng = random.Random(f"hubs {seed}")
        overhead = rng.choice((0, Fraction(1, 50), Fraction(1, 5)))
        num_ranks, beta = rng.choice((3, 4, 6, 8)), rng.choice((1, 4))
        topology = crossbar(num_ranks, alpha=rng.choice((1, 3)), overhead=overhead, beta=beta)
        problem = taccl.make_problem(topology, "allreduce", size_bytes=rng.choice((10**5, 5 * 10**5, 10**6)))
        nearest += ratios(certificates(merging_freely(problem)), problem, seed)
    assert 1 <= min(nearest) < 1.25
