"""Rail exchange: weights of sends between nodes on rails, over random paths and sets of sends, and its bound."""

import random
from fractions import Fraction
from functools import partial
from itertools import product

import pytest

import taccl
from taccl import collectives
from taccl.analysis.certificates.evaluation.facts import Facts
from taccl.analysis.certificates.rail_exchange import _rails_of, rail_exchange_bounds
from taccl.analysis.certificates.transformed import merging_freely
from taccl.topology.builder import TopologyBuilder
from tests.analysis.claims import certificates_of, num_decided, raised, ratios
from tests.analysis.test_exchange_time import cluster, costs_at_random
from tests.analysis.test_link_time import sums_of
from tests.fuzzing import MANY, cases, some

MB = 10**6
#: Kinds of sends that are neither early nor late.
MIDDLE = ("middle", "first", "last")

certificates = partial(certificates_of, rail_exchange_bounds, divisible=True, in_network=False)


def joins(sends, source, target, nodes):
    """True if sends (kind, node, node, rail) can bring data of (node, rail) `source` to `target`.

    These are all ways that the proof names, between ranks on different rails.
    """
    (a, i), (b, j) = source, target

    def some(kinds, src, dst, rail=None):
        return any(k in kinds and (s, d) == (src, dst) and rail in (None, r) for k, s, d, r in sends)

    if some(MIDDLE, a, b) or some(("early",), a, b, i) or some(("late",), a, b, j):
        return True
    for c in set(range(nodes)) - {a, b}:
        early, first = some(("early",), a, c, i), some(("first",), a, c)
        late, last = some(("late",), c, b, j), some(("last",), c, b)
        if (early or first) and (late or last):
            return True
        if (early and some(MIDDLE, c, b, i)) or (late and some(MIDDLE, a, c, j)):
            return True
    return False


@pytest.mark.fuzz
def test_each_path_takes_one_of_the_ways():
    """Sends of a random path between nodes, with kinds by their times, join its ends in a way of the proof."""
    ways = set()
    for seed in cases("paths over rails", few=1500, many=30_000):
        rng = random.Random(f"paths over rails {seed}")
        near = 10
        far, nodes, size = rng.choice((10, 12, 15, 25, 40)), rng.choice((2, 3, 4)), 4
        end = rng.choice((min(3 * near + 2 * far, 3 * far), 2 * near + 2 * far, far + 4 * near))
        end = min(end, min(3 * near + 2 * far, 3 * far)) - Fraction(1, 1 + rng.randrange(9))
        node, rail, time = 0, 0, Fraction(rng.choice((0, 0, 0, rng.randrange(20))))
        sends = set()
        while True:
            is_far = rng.random() < 0.4
            took = (far if is_far else near) * (1 + Fraction(rng.choice((0, 0, 0, rng.randrange(9))), 20))
            start, time = time, time + took
            if time > end:
                break
            if is_far:
                other = rng.choice([n for n in range(nodes) if n != node])
                kind = "middle"
                if start < near or time > end - near:
                    kind = "early" if start >= 0 and time <= end - near else "late"
                    kind = "none" if start < near and time > end - near else kind
                elif time <= end - near - far:
                    kind = "first"
                elif start >= near + far:
                    kind = "last"
                sends.add((kind, node, other, rail))
                node = other
            else:
                rail = rng.choice([n for n in range(size) if n != rail])
            if node and rail:
                assert joins(sends, (0, 0), (node, rail), nodes), seed
                ways.add(tuple(sorted(kind for kind, *_ in sends)))
            time += rng.choice((0, 0, 0, rng.randrange(9)))
    assert {("first", "last"), ("early", "late"), ("middle",), ("early",), ("late",)} <= ways


@pytest.mark.fuzz
def test_sends_that_join_all_ranks_have_the_weight():
    """Random sets of sends that join all ranks on different rails, without any that is not needed."""
    lightest = []
    for seed in cases("weights of sends over rails", few=3, many=1500):
        rng = random.Random(f"weights of sends over rails {seed}")
        nodes = rng.choice((2, 3, 3, 4))
        size = nodes + rng.choice((0, 0, 1))
        weights = {"early": nodes, "late": nodes, "middle": 2 * size}
        weights |= {"first": size * nodes, "last": size * nodes}
        kinds, hub = rng.choice((("early", "late"), tuple(weights), tuple(weights))), rng.random() < 0.7
        pairs = [(a, b) for a, b in product(range(nodes), repeat=2) if a != b]
        sends = {(kind, a, b, rail) for kind in kinds for a, b in pairs for rail in range(size)}
        ranks = [*product(range(nodes), range(size))]
        needed = [(one, two) for one, two in product(ranks, ranks) if one[0] != two[0] and one[1] != two[1]]
        order = sorted(sends)
        rng.shuffle(order)
        if hub:  # keep sends from and to one node
            order.sort(key=lambda send: 0 in send[1:3])
        bias = rng.choice(tuple(weights))
        order.sort(key=lambda send: send[0] == bias)
        for send in order:
            rest = sends - {send}
            a, b = send[1], send[2]
            touched = [(x, y) for x, y in needed if x[0] == a or y[0] == b]
            if all(joins(rest, *pair, nodes) for pair in touched):
                sends = rest
        weight = sum(weights[kind] for kind, *_ in sends)
        lightest.append(weight / (2 * size * nodes * (nodes - 1)))
        assert lightest[-1] >= 1, seed
    assert min(lightest) < (1.01 if MANY else 1.5)


def test_the_weights_are_those_of_the_proof():
    """1 MB on eight DGX-H100: the bound is the time of two sends between nodes and two inside, less the overhead.

    Sends of 56 weights take 17.5 us at the NICs. Early and late ones, within 3.4 us of an end, have half the
    weight; a send goes on for 13.98 us. Above 34.78 us, first and last sends have four times the weight.
    """
    problem = taccl.make_problem(taccl.topologies.dgx_h100(8), "allreduce", size_bytes=MB)
    (bound,) = certificates(merging_freely(problem))
    rate = Fraction(20 * 56, 64)
    assert bound.bound == (rate + Fraction(1398 + 340, 100) + 6 * Fraction(3478, 100)) / 7
    assert bound.check() and not raised(bound).check()
    assert bound.bound < Fraction(35978, 1000)


def test_long_sums_prove_the_longest_horizon():
    """16 MB prove no more than the time of three sends inside nodes and two between them."""
    problem = taccl.make_problem(taccl.topologies.dgx_h100(8), "allreduce", size_bytes=16 * MB)
    (bound,) = certificates(merging_freely(problem))
    assert bound.bound == 3 * Fraction(34, 10) + 2 * 14
    assert bound.check() and not raised(bound).check()


def test_nothing_is_claimed_without_rails():
    """Links to all ranks, more nodes than ranks of a node, one node, and other collectives yield no claim."""
    for topology in (cluster(2, 2), cluster(3, 2, rails=True), taccl.topologies.dgx_h100(1)):
        assert not certificates(merging_freely(taccl.make_problem(topology, "allreduce", size_bytes=MB)))
    rails = cluster(2, 2, rails=True)
    assert certificates(merging_freely(taccl.make_problem(rails, "allreduce", size_bytes=MB)))
    for collective in (collectives.allgather(4), collectives.reduce(4, root=0)):
        assert not certificates(merging_freely(taccl.make_problem(rails, collective, chunk_bytes=MB)))


def test_ranks_with_two_near_ranks_of_a_node_are_not_on_rails():
    """A rank has a link to one rank of each node, but a third node leads to another rank of it."""
    builder = TopologyBuilder("twisted", [node for node in range(3) for _ in range(3)])
    for src, dst in product(range(9), repeat=2):
        shift = 1 if {src // 3, dst // 3} == {0, 2} else 0
        if src // 3 == dst // 3 and src != dst:
            builder.add_link(src, dst, alpha_us=1, beta_us_per_mb=1)
        elif src // 3 != dst // 3 and (src - dst) % 3 == (shift if src < dst else -shift % 3):
            builder.add_link(src, dst, alpha_us=4, beta_us_per_mb=4)
    twisted = merging_freely(taccl.make_problem(builder.build(), "allreduce", size_bytes=MB))
    assert _rails_of(Facts(twisted, divisible=True, in_network=False)) is None


@pytest.mark.fuzz
def test_no_schedule_in_any_chunks_beats_the_rails():
    """On two nodes of two ranks no schedule in 1 or 2 chunks ends earlier, by exhaustive search."""
    decided = 0
    for seed in cases("rail exchange, over all schedules", few=2, many=200):
        rng = random.Random(f"rails {seed}")
        topology = cluster(2, 2, **costs_at_random(rng), rails=True)
        problems = [sums_of(topology, number) for number in (1, 2)]
        decided += num_decided(problems, certificates(problems[0]), seed)
    assert decided >= some(2, 20)


@pytest.mark.fuzz
def test_no_baseline_beats_the_rails():
    """On random rails baselines, and a search, finish no sooner than the claim, in every number of chunks."""
    nearest = []
    for seed in cases("rail exchange against baselines", few=2, many=300):
        rng = random.Random(f"exchanges over rails {seed}")
        nodes = rng.choice((2, 3, 4))
        topology = cluster(nodes, nodes + rng.choice((0, 1)), **costs_at_random(rng), rails=True)
        size = rng.choice((10**5, 5 * 10**5, MB, 2 * MB, 4 * MB))
        problem = taccl.make_problem(topology, "allreduce", size_bytes=size)
        nearest += ratios(certificates(merging_freely(problem)), problem, seed, searched=True)
    assert 1 <= min(nearest) < 1.25


def test_a_bound_without_time_counts_rails():
    """Without time, the bound of 1 MB on eight DGX-A100 is rail exchange, for data with its padding."""
    problem = taccl.make_problem(taccl.topologies.dgx_a100(8), "allreduce", size_bytes=MB, chunks_per_rank=32)
    bound = taccl.lower_bound(problem, divisible=True, end_s=0.0)
    assert bound.kind == "rail exchange" and bound.check()
    assert 37.2 < bound.bound_us < 37.3
