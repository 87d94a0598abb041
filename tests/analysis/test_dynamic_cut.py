"""Dynamic cuts: chunks of few ranks reach one target over paths of different lengths; by hand and brute
force."""

from dataclasses import replace
from fractions import Fraction
from functools import partial

import pytest

from taccl import collectives
from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.certificates.dynamic_cut import DynamicCut, dynamic_cut_bounds
from taccl.problem.making import make_problem
from taccl.topology.builder import TopologyBuilder
from taccl.topology.machines import dgx2, ndv2
from tests.analysis.claims import certificates_of, raised
from tests.fuzzing import thinned
from tests.synthesis.small_problems import custom, problem_of

#: Certificates of the dynamic-cut claims.
claims = partial(certificates_of, dynamic_cut_bounds, in_network=False)


def two_ways(number):
    """A problem of `number` chunks from rank 0 to rank 2.

    They go through rank 1 in 2 + 2 us, or over a link of 5 us.
    """
    builder = TopologyBuilder("two ways", [0] * 3)
    for src, dst, beta in ((0, 1, 2), (1, 2, 2), (0, 2, 5)):
        builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=beta)
    return problem_of(builder.build(), custom(3, [([0], [2])] * number))


@pytest.mark.parametrize(("number", "finish_us"), [(2, 5), (3, 6), (4, 8), (5, 10)])
def test_chunks_arrive_one_after_another_on_both_paths(number, finish_us):
    """Chunks arrive one after another on each of two paths, and the bound counts both.

    Through rank 1 they arrive at 4, 6, 8 us and so on, over the direct link at 5 and 10 us. A static cut
    around rank 2 would let the first chunk arrive one send earlier.
    """
    (bound,) = claims(two_ways(number))
    assert bound.bound == finish_us and bound.check()
    assert not raised(bound).check()
    assert lower_bound(two_ways(number)).bound == finish_us


def test_links_too_slow_to_cross_count_in_the_check():
    """A link over which no send ends before the bound counts for the port that it holds, also in the check.

    Three parallel links of 3, 2 and 4 us hold one port at the end of a send, for 2, 1 and 2 us. Three chunks
    arrive over the second link, after 2, 3 and 4 us.
    """
    builder = TopologyBuilder("parallel links", [0, 0])
    port = builder.add_resource("port")
    for name, alpha, beta, overhead in (("a", 1, 2, 1), ("b", 1, 1, 0), ("c", 2, 2, 0)):
        link = builder.add_link(0, 1, alpha_us=alpha, beta_us_per_mb=beta, overhead_us=overhead, name=name)
        builder.add_hold(link, port, alpha_us=0, beta_us_per_mb=beta, side="receive")
    (bound,) = claims(problem_of(builder.build(), custom(2, [([0], [1])] * 3)))
    assert bound.bound == 4 and bound.check() and not raised(bound).check()


@pytest.mark.slow
@pytest.mark.parametrize("name", thinned(["scatter", "gather"]))
def test_chunks_that_wait_for_a_port_gain_nothing_by_a_detour(name):
    """Chunks that wait for a port cannot arrive earlier by a detour through another node.

    15 chunks leave rank 0 by its port in 0.3 us each; a detour out and back through NICs takes 2 * 2.6 us.
    """
    problem = make_problem(dgx2(2), name, size_bytes=32, chunks_per_rank=1)
    (port,) = {
        problem.costs.duration(e, 1)
        for e in problem.topology.links_from[0]
        if problem.topology.links[e].dst == 1
    }
    bound = max(claims(problem), key=lambda each: each.bound)
    assert bound.bound * problem.costs.ticks_per_us == 15 * port and bound.check()
    assert bound.bound == lower_bound(problem).bound


@pytest.mark.parametrize("name", ["broadcast", "reduce"])
def test_a_node_of_an_ndv2_broadcasts_two_chunks(name):
    """The bound for two chunks between ranks 0 and 7 exceeds the time of one chunk on either short path.

    One path has three fast links (9.73 us), the other a fast and a slow one (9.43 us).
    """
    problem = make_problem(ndv2(1), collectives.make(name, 8, chunks_per_rank=2), chunk_bytes=128_000)
    quick, slow = Fraction(3244, 1000), Fraction(6188, 1000)
    bound = lower_bound(problem)
    assert isinstance(bound.witness, DynamicCut) and bound.check()
    assert max(3 * quick, quick + slow) < bound.bound <= 2 * slow


def test_altered_times_prove_no_more():
    """A witness with other times at the ranks proves no more; the target's own time is ignored."""
    problem = two_ways(3)
    bound = lower_bound(problem)
    assert not replace(bound, witness=DynamicCut(2, (1, 2, 0))).check()
    assert not replace(bound, witness=DynamicCut(2, (0, 2))).check()
    assert not replace(bound, witness=DynamicCut(1, (0, 2, 6))).check()
    assert replace(bound, witness=DynamicCut(2, (0, 2, 77))).check()
    assert not replace(bound, witness=DynamicCut(2, (0, 0, 6))).check()


def test_links_that_no_send_can_cross_do_not_count():
    """Links over which no send can cross the border are left out of the check, though they share a port.

    Rank 1 is on the near side from 10 us on. Sends to it from rank 0, in 10 us, and from rank 3, from 4 us on
    in 6 us, arrive no sooner. So two chunks cross by rank 1 alone, and reach rank 2 at 11 and 12 us.
    """
    builder = TopologyBuilder("detour", [0] * 4)
    port = builder.add_resource("port into 1")
    for src, dst, beta in ((0, 3, 4), (3, 1, 6), (0, 1, 10), (1, 2, 1)):
        link = builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=beta)
        if dst == 1:
            builder.add_hold(link, port, alpha_us=0, beta_us_per_mb=6, side="receive")
    problem = problem_of(builder.build(), custom(4, [([0], [2])] * 2))
    found = claims(problem)
    assert max(each.bound for each in found) == 12
    assert all(each.check() for each in found)
