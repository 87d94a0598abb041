"""Server time: sends into and out of servers that update sums; at random and over all schedules."""

import random
from dataclasses import replace
from fractions import Fraction

import pytest

import taccl
from taccl import collectives
from taccl.analysis.certificates.server_time import server_time_bounds
from taccl.analysis.certificates.transformed import merging_freely
from tests.analysis.claims import baseline_finishes, certificates_of, num_decided, raised
from tests.analysis.test_flow_time import exchanges, random_line
from tests.analysis.test_sum_flow import crossbar
from tests.fuzzing import cases, some

MB = 10**6


def certificates(problem):
    """Certificates of all claims over all chunkings."""
    return certificates_of(server_time_bounds, problem, divisible=True, in_network=False)


def exchange_of(topology, workers, servers, size_bytes):
    """An exchange between workers and servers, in any number of chunks."""
    made = collectives.exchange(workers, servers, num_ranks=topology.num_ranks)
    return taccl.make_problem(topology, made, size_bytes=size_bytes)


def test_direct_sends_fill_the_ports_of_the_server():
    """Four workers push 1 MB each: half of the bytes come directly, the other half go out directly.

    A send takes 10 us more than its hold, and two sends before and two after the update 40 us.
    """
    topology = crossbar(5, alpha=10, overhead=0, beta=2)
    (bound,) = certificates(exchange_of(topology, [1, 2, 3, 4], [0], MB))
    assert bound.bound == 10 + 10 + 2 * Fraction(4 + 1, 2) and bound.witness.weight == Fraction(1, 2)
    assert bound.check() and not raised(bound).check()


def test_the_bound_is_at_most_the_time_of_two_sends_at_each_side():
    """With 100 MB, relays add up contributions and pass sums on, in four sends of 10 us in a row."""
    topology = crossbar(5, alpha=10, overhead=0, beta=2)
    (bound,) = certificates(exchange_of(topology, [1, 2, 3, 4], [0], 100 * MB))
    assert bound.bound == 40 and bound.check() and not raised(bound).check()


def test_only_updated_sums_have_servers():
    """Without updates, a rank may send the parts of a sum to different ranks."""
    topology = crossbar(5, alpha=10, overhead=0, beta=2)
    problem = exchange_of(topology, [1, 2, 3, 4], [0], MB)
    (bound,) = certificates(problem)
    plain = replace(problem, collective=replace(problem.collective, update_us_per_mb=None))
    assert not certificates(plain) and not replace(bound, problem=plain).check()


@pytest.mark.parametrize("field", ["server", "entering", "leaving", "weight"])
def test_a_changed_witness_proves_no_more(field):
    """With another server, fewer resources or another weight, the same bound is not proven."""
    topology = crossbar(4, alpha=10, overhead=1, beta=2)
    (bound,) = certificates(exchange_of(topology, [1, 2, 3], [0], MB))
    changed = {"server": 1, "entering": (), "leaving": (), "weight": Fraction(1, 3)}[field]
    assert bound.check() and not replace(bound, witness=replace(bound.witness, **{field: changed})).check()


@pytest.mark.fuzz
def test_no_schedule_in_any_chunks_beats_the_bound():
    """On random lines and crossbars, no schedule in 1 or 2 chunks and no baseline finishes earlier."""
    decided = claimed = 0
    for seed in cases("server time, over all schedules", few=6, many=1_000):
        rng = random.Random(f"server time {seed}")
        if rng.random() < 0.5:
            topology = random_line(rng)
        else:
            overhead = rng.choice((0, Fraction(1, 10), Fraction(1, 2), 1))
            costs = {"alpha": rng.choice((1, 2, 3, 4)), "overhead": overhead, "beta": rng.choice((1, 2, 3))}
            topology = crossbar(rng.choice((3, 3, 4)), **costs)
        problems = exchanges(topology, rng)
        found = [each for problem in problems for each in certificates(problem)]
        claimed += any(each.bound > 0 for each in found)
        limits = {"max_states": 2000, "most_chunks": 8}
        decided += num_decided(problems, found, seed, baselines=True, **limits)
    assert decided >= some(1, 100) and claimed >= some(1, 200)


@pytest.mark.fuzz
def test_no_baseline_beats_the_bound_on_crossbars():
    """On random crossbars every baseline, in any number of chunks, finishes no sooner than the claim."""
    nearest = []
    for seed in cases("server time on crossbars", few=3, many=300):
        rng = random.Random(f"servers {seed}")
        num_ranks, overhead = rng.choice((3, 4, 6, 8)), rng.choice((0, Fraction(1, 50), Fraction(1, 5)))
        topology = crossbar(num_ranks, alpha=rng.choice((1, 3)), overhead=overhead, beta=rng.choice((1, 4)))
        servers = rng.sample(range(num_ranks), rng.choice((1, 2)))
        workers = [rank for rank in range(num_ranks) if rank not in servers or rng.random() < 0.5]
        problem = exchange_of(topology, workers, servers, rng.choice((10**5, 5 * 10**5, 10**6)))
        for each in certificates(merging_freely(problem)):
            assert each.check(), seed
            nearest += [float(finish / each.bound) for finish in baseline_finishes(problem)]
    assert 1 <= min(nearest) < 1.6
