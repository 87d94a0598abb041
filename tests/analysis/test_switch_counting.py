"""Switch counting: lower bounds for sums made only in switches.

Such a bound is the time for which the sums hold a slot pool or port. Bounds are compared with values computed
by hand, and with random schedules.
"""

import random
from dataclasses import replace
from fractions import Fraction

import pytest

from taccl import errors, lower_bound, make_problem, synthesize, verify
from taccl.analysis.certificates.certificate import is_proven
from taccl.analysis.certificates.switch_counting import SwitchSums
from taccl.problem.collectives import allreduce, reduce, together
from taccl.schedule.timing import exact_times
from taccl.topologies import in_network, ring
from taccl.topology.in_network import shared_links
from tests.analysis.claims import raised
from tests.fuzzing import cases


@pytest.mark.slow
def test_a_pool_of_few_slots_bounds_sums_by_switches_alone():
    """The pool of a switch's slots bounds the sums that it makes.

    With 16 slots of 1,024 B for 10 us, 100 MB hold the pool for 61,035.15625 us, plus half a round trip.
    """
    problem = make_problem(in_network(8, slots=16), "allreduce", size_bytes=100_000_000)
    bound = lower_bound(problem, in_network="only")
    assert bound.bound == Fraction(10 * 100_000_000, 16 * 1024) + 5
    assert (bound.kind, bound.check()) == ("switch counting", True)
    assert not raised(bound).check()
    # The bound does not hold if ranks may also add, outside the switch.
    assert not replace(bound, in_network=False).check()


@pytest.mark.slow
def test_the_result_has_that_bound():
    """With in_network="only" the result has the bound by switch counting, within 0.2 % of the finish."""
    problem = make_problem(in_network(8, slots=16), "allreduce", size_bytes=100_000_000)
    result = synthesize(problem, in_network="only", time_limit_s=60)
    assert result.bound.kind == "switch counting"
    assert result.gap < 0.002


@pytest.mark.slow
def test_a_link_serves_as_many_contributions_as_its_group_has():
    """Two groups of three ranks share a pool of slots, which each sum holds once.

    A sum joins the contributions of the three ranks of a group, not of all six ranks.
    """
    groups = [[0, 1, 2], [3, 4, 5]]
    both = together([allreduce(3).among(of, num_ranks=6) for of in groups])
    problem = make_problem(in_network(6, slots=1, groups=groups), both, chunk_bytes=10**6)
    bound = lower_bound(problem, in_network="only")
    assert bound.bound == both.num_chunks * Fraction(10 * 10**6, 1024) + 5


def test_switches_that_do_not_add_are_refused():
    """On a topology without reducing switches the error names the topology, and another one that has such a
    switch."""
    with pytest.raises(errors.InputError, match="no switch of ring:4 adds"):
        lower_bound(make_problem(ring(4), "allreduce", size_bytes="1MB"), in_network="only")


def random_case(rng):
    """A problem on a random reducing switch, and a random schedule that adds only in switches."""
    workers, racks = rng.randint(3, 5), rng.choice((1, 1, 2))
    topology = in_network(
        workers, racks=racks, slots=rng.choice((1, 4, 16, 512)), payload_bytes=rng.choice((64, 1024)),
        rtt_us=rng.choice((1, 10)), gb_per_s=rng.choice((1, 12.5)),
        core_oversubscription=rng.choice((1, 2)),
    )  # fmt: skip
    num_ranks, num_chunks = workers * racks, rng.randint(1, 3)
    makes = rng.choice((allreduce, reduce))
    collective = makes(num_ranks, chunks_per_rank=num_chunks)
    size = rng.choice((10_000, 1_000_000))
    sizes = [rng.choice((size, 2 * size)) if rng.random() < 0.3 else size for _ in collective.chunks]
    problem = replace(make_problem(topology, collective, chunk_bytes=size), chunk_bytes=tuple(sizes))
    problem = replace(problem, size_bytes=None)
    links = topology.links
    rows = []
    for c, chunk in enumerate(collective.chunks):
        into = [e for e in shared_links(topology) if len(links[e].srcs) > 1]
        if chunk.destinations == (chunk.root,):
            into = [e for e in into if links[e].dst == chunk.root]
        adds = rng.choice(into)
        when = rng.random()
        rows.append((when, c, adds, True))
        if chunk.destinations != (chunk.root,):
            copies = [
                e for e in shared_links(topology)
                if len(links[e].dsts) > 1 and links[e].src == links[adds].dst
            ]  # fmt: skip
            rows.append((when + rng.random(), c, rng.choice(copies), False))
    _, chunk, link, adds = zip(*sorted(rows), strict=True)
    return problem, exact_times(problem, chunk=chunk, link=link, reduce=adds, sequence=range(len(rows)))


@pytest.mark.fuzz
def test_no_schedule_by_switches_alone_is_faster():
    """On random pools, sums, sizes and orders the bound is proven and holds; a witness with other resources
    proves no larger bound."""
    for seed in cases("switch counting against schedules", few=4, many=1_000):
        rng = random.Random(seed)
        problem, schedule = random_case(rng)
        assert verify(schedule).ok, seed
        for divisible in (False, True):
            bound = lower_bound(problem, divisible=divisible, in_network="only", budget_s=0.2)
            assert bound.bound <= schedule.finish, (seed, bound)
            assert bound.check(), (seed, bound)
            for resource in rng.sample(range(len(problem.topology.resources)), 12):
                more = max(bound.bound, schedule.finish) + Fraction(1, 1000)
                witness = SwitchSums(resource)
                assert not is_proven(problem, more, witness, divisible=divisible, in_network="only"), seed
