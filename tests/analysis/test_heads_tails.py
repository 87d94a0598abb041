"""Heads and tails: minimum idle time of resources before their first and after their last use."""

from dataclasses import replace
from fractions import Fraction

import pytest

from taccl import collectives, topologies
from taccl.analysis.certificates.borders import Border
from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.certificates.finding.distances import least_time
from taccl.analysis.certificates.finding.gates import FOREVER
from taccl.analysis.certificates.finding.volume import Volume
from taccl.problem.making import make_problem
from taccl.topology.builder import TopologyBuilder
from tests.analysis.claims import raised
from tests.fuzzing import MANY
from tests.synthesis.small_problems import custom, problem_of, two_nodes


def idle_us(problem, *, divisible=False):
    """{resource name: minimum idle time in us}, of resources that some chunk needs."""
    idle = Volume(problem, divisible=divisible).heads_tails.idle(len(problem.topology.resources)).tolist()
    names = [resource.name for resource in problem.topology.resources]
    found = zip(names, idle, strict=True)
    return {name: Fraction(t, problem.costs.ticks_per_us) for name, t in found if t < FOREVER}


def chain(*betas, alpha=0, meaning="occupies"):
    """A chain in which rank i sends to i + 1 in `alpha` us plus `betas[i]` us/MB."""
    builder = TopologyBuilder("chain", [0] * (len(betas) + 1), alpha_meaning=meaning)
    for i, beta in enumerate(betas):
        builder.add_link(i, i + 1, alpha_us=alpha, beta_us_per_mb=beta)
    return builder.build()


def idle_on_chain(collective, **clauses):
    """Minimum idle times in us of the links of a chain of 1, 2 and 4 us."""
    return list(idle_us(problem_of(chain(1, 2, 4), collective, **clauses)).values())


def test_a_chunk_leaves_links_idle_before_and_after_it():
    """A chunk goes from 0 to 3: each link is idle before it arrives and while it travels on."""
    assert idle_on_chain(custom(4, [([0], [3])])) == [6, 5, 3]


def test_the_first_and_the_last_chunk_may_be_different_ones():
    """Idle ticks before the first and after the last hold may come from different chunks.

    Chunks go 0 -> 3 and 1 -> 3. The second starts on 1 -> 2 at time 0, and reaches 2 -> 3 after 2 us.
    """
    assert idle_on_chain(custom(4, [([0], [3]), ([1], [3])])) == [6, 4, 2]


def test_a_link_that_no_chunk_needs_is_left_out():
    """Link 2 -> 3 is left out if the chunk's destination is rank 2."""
    assert idle_on_chain(custom(4, [([0], [2])])) == [2, 1]


def test_a_chunk_that_many_want_ends_anywhere():
    """In a broadcast from 0 every link may carry the last send, so no link has a tail."""
    assert idle_on_chain(custom(4, [([0], [1, 2, 3])])) == [0, 1, 3]


def test_relays_say_who_may_carry():
    """A path through a rank that may not relay the chunk gives no head or tail.

    Through rank 2 the path takes 2 us instead of 10, but rank 2 is not in the chunk's group.
    """
    builder = TopologyBuilder("triangle", [0] * 3)
    for src, dst, beta in ((0, 1, 10), (0, 2, 1), (2, 1, 1)):
        builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=beta)
    pair = collectives.custom(2, precondition={0: [0]}, postcondition={0: [1]}).among((0, 1), num_ranks=3)
    problem = problem_of(builder.build(), collectives.together([pair]), relays=frozenset())
    assert list(idle_us(problem).values()) == [0]


def test_what_a_chunk_is_made_of_is_wanted_where_it_is_made():
    """In a scan on a chain the first sum may end at rank 1, where the next sum starts: no link has idle time."""
    assert idle_on_chain(collectives.scan(4)) == [0, 0, 0]


def test_a_send_outlasts_a_hold_at_its_start():
    """Latency after the hold of the sender counts as tail: 3 us."""
    assert list(
        idle_us(problem_of(chain(1, alpha=3, meaning="pipelined"), custom(2, [([0], [1])]))).values()
    ) == [3]


def test_a_hold_at_the_receiver_begins_late():
    """A hold at the receiver begins late, and one at the sender may end early.

    A send of 1 MB takes 2 + 1 us. It holds its sender for the first 1 + 1 us, which leaves 1 us after the
    hold. It holds its receiver for the last 1 us, which leaves 2 us before that hold.
    """
    builder = TopologyBuilder("port", [0, 0])
    link = builder.add_link(0, 1, alpha_us=2, beta_us_per_mb=1)
    for name, alpha, side in (("out", 1, "send"), ("in", 0, "receive")):
        builder.add_hold(link, builder.add_resource(name), alpha_us=alpha, beta_us_per_mb=1, side=side)
    problem = problem_of(builder.build(), custom(2, [([0], [1])]))
    assert idle_us(problem) == {"link 0->1": 0, "out": 1, "in": 2}


def test_divisible_data_pays_only_latency():
    """For divisible data, heads and tails contain only the alphas of the links before and after."""
    problem = problem_of(chain(1, 2, 4, alpha=3), custom(4, [([0], [3])]))
    assert list(idle_us(problem, divisible=True).values()) == [6, 6, 6]


def test_the_parts_that_a_sum_is_of_start_everywhere():
    """In an allreduce on two nodes every resource may be busy from time 0; the NIC has a tail of 2 us of
    latency."""
    idle = idle_us(problem_of(two_nodes(meaning="pipelined"), collectives.allreduce(4)))
    assert idle["NIC of node 0"] == 2
    assert idle["link 0->1"] == 0


@pytest.mark.parametrize(
    ("prices", "needed", "time"),
    [
        ([(1, 0)], 6, 6),
        ([(1, 0), (1, 4)], 6, 5),  # 5 from the first resource, 1 from the second
        ([(1, 0), (1, 9)], 6, 6),  # the second resource begins too late
        ([(2, 3), (0, 0)], 6, 6),
        ([(1, 0), (5, FOREVER)], 6, 6),
        ([(1, 3)], 0, 0),
        ([(1, FOREVER)], 0, 0),
        ([(2, 1), (1, 2)], Fraction(5, 2), Fraction(13, 6)),
    ],
)
def test_the_least_time_counts_no_resource_before_it_can_be_held(prices, needed, time):
    """`least_time` is the first time by which the prices of all resources add up to the needed amount.

    A resource (price, idle time) adds nothing before its idle time ends, and then its price in every tick.
    """
    assert least_time(prices, Fraction(needed)) == time


def test_a_counted_chunk_arrives_after_its_hold():
    """The cut-counting bound includes the latency after the last hold.

    Two chunks of 1 us each over one link, and 3 us of latency that does not hold it, take 5 us.
    """
    problem = problem_of(chain(1, alpha=3, meaning="pipelined"), custom(2, [([0], [1]), ([0], [1])]))
    bound = replace(lower_bound(problem), witness=Border(frozenset({1}), True))
    assert bound.bound == 5
    assert bound.check()
    assert not replace(bound, bound=Fraction(6)).check()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size_bytes", "nodes", "finish"),
    [(64_000, 2, "9.32"), (10**6, 2, "107.6"), *([(64_000, 4, "12.68")] if MANY else [])],
)
def test_alltoall_of_dgx2_ends_a_latency_after_its_nics(size_bytes, nodes, finish):
    """An alltoall ends a latency after its NICs are done.

    On DGX-2 the NICs are busy for 6.72, 105 or 10.08 us, by size and number of nodes (105 us/MB over 8 NICs).
    The last chunk arrives 2.6 us later.
    """
    topology = topologies.dgx2(nodes)
    problem = make_problem(topology, collectives.alltoall(topology.num_ranks), size_bytes=size_bytes)
    bound = lower_bound(problem)
    assert bound.bound == Fraction(finish)
    assert bound.check()
    assert not raised(bound).check()
