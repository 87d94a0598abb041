"""Costs: exact times as integer ticks."""

import warnings
from fractions import Fraction

import numpy as np
import pytest

from taccl.errors import NumericsWarning, TopologyError
from taccl.problem.costs import exact_costs, hold_columns, hold_costs_us, link_costs_us, ranks_differ
from taccl.problem.making import make_problem
from taccl.topology import machines
from taccl.topology.builder import TopologyBuilder
from tests.synthesis.small_problems import custom, linked

MB = 10**6


def costs_of(alpha, beta, chunk_bytes):
    topology = linked("pair", [0, 0], [(0, 1)], alpha_us=alpha, beta_us_per_mb=beta)
    return make_problem(topology, custom(2, [([0], [1])] * 2), chunk_bytes=chunk_bytes)


def test_decimal_costs_are_exact():
    """Decimal costs are exact in ticks: 0.3 + 0.1 us for 1 MB is 4 ticks of a tenth of a microsecond."""
    costs = costs_of(0.3, "0.1", MB).costs
    assert costs.ticks_per_us == 10
    assert costs.duration(0, 1) == 4
    assert costs.us(4) == Fraction(2, 5)


def test_a_unit_is_what_all_chunks_divide_into():
    """The unit is the greatest common divisor: chunks of 4 and 6 MB have 2 and 3 units."""
    costs = costs_of(1, 1, [4 * MB, 6 * MB]).costs
    assert costs.chunk_units.tolist() == [2, 3]
    assert costs.duration(0, 3) == 7 * costs.ticks_per_us


def test_costs_beyond_a_femtosecond_are_rounded_up_with_a_warning():
    """Costs that need finer ticks than a femtosecond are rounded up to it, with a warning that says by how much."""
    with pytest.warns(NumericsWarning, match="rounded up to a femtosecond, by at most 6e.02 %"):
        costs = costs_of(Fraction(1, 7 * 10**9), 1, MB).costs
    assert (costs.link_alpha.tolist(), costs.ticks_per_us) == ([1], 10**9)


def test_rounded_costs_of_odd_bytes_are_near_the_exact_ones():
    """If all chunks have only one byte as a common unit, the time of a byte is rounded by at most 0.1 %.

    1 us/MB is a picosecond per byte: a little more must not become two.
    """
    beta = 1 + Fraction(1, 10**10)
    with pytest.warns(NumericsWarning, match="rounded up to a femtosecond, by at most 0.1 %"):
        costs = costs_of(1, beta, [345_999, 346_001]).costs
    byte_us = costs.us(int(costs.link_beta[0]))
    assert beta <= byte_us * MB < beta * Fraction(1001, 1000)


def test_times_that_are_too_long_for_a_fine_grid_are_rounded():
    """Costs are rounded to a coarser grid if times exceed 64 bits on the exact one.

    10^13 us exceed 64 bits at 7 * 10^6 ticks per us, but not at 10^6.
    """
    with pytest.warns(NumericsWarning, match="rounded up to a picosecond"):
        costs = costs_of(10**12, Fraction(1, 7 * 10**6), MB).costs
    assert (costs.link_beta.tolist(), costs.ticks_per_us) == ([1], 10**6)


def test_costs_of_several_rates_are_exact():
    """64 GB/s and 450 GB/s give an exact grid of 14.4 million ticks per us, without a warning."""
    topology = linked("two", [0, 0], ((0, 1, 0, Fraction(1000, gb_per_s)) for gb_per_s in (64, 450)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        costs = exact_costs(topology, (1001, 1003))
    assert costs.ticks_per_us == 14_400_000
    assert costs.link_beta.tolist() == [225, 32]


def test_rounding_is_reported_once():
    """One warning about rounding is given per topology, for any number of problems."""
    topology = linked("odd", [0, 0], [(0, 1)], alpha_us=Fraction(1, 7 * 10**9), beta_us_per_mb=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for size in (1, 2, 3):
            exact_costs(topology, (size * MB,))
    assert len(caught) == 1


def test_links_of_several_costs_keep_their_own():
    """Alphas of 1, 2 and 1 us and betas of 1/2, 1 and 1 us/MB are kept in ticks of 0.5 us."""
    builder = TopologyBuilder("three", [0, 0])
    for alpha, beta in ((1, Fraction(1, 2)), (2, 1), (1, 1)):
        builder.add_link(0, 1, alpha_us=alpha, beta_us_per_mb=beta)
    costs = exact_costs(builder.build(), (MB, MB))
    assert costs.ticks_per_us == 2
    assert costs.link_alpha.tolist() == [2, 4, 2]
    assert costs.link_beta.tolist() == [1, 2, 2]


def test_times_of_more_than_64_bits_are_refused():
    """Times above 64 bits, such as 2^63 us, are refused."""
    with pytest.raises(TopologyError, match="64 bits"):
        costs_of(2**63, 1, MB).costs  # noqa: B018


def test_holds_of_sends_are_listed_send_by_send():
    """Resources that each link holds: the first link holds itself and a shared port, the second only
    itself."""
    builder = TopologyBuilder("three", [0] * 3)
    port = builder.add_resource("port")
    for dst in (1, 2):
        link = builder.add_link(0, dst, alpha_us=0, beta_us_per_mb=1)
        if dst == 1:
            builder.add_hold(link, port, alpha_us=0, beta_us_per_mb=1, side="receive")
    topology = builder.build()
    columns = hold_columns(topology)
    send, hold = columns.of_sends(np.array([1, 0, 1]))
    assert send.tolist() == [0, 1, 1, 2]
    assert columns.link[hold].tolist() == [1, 0, 0, 1]
    assert columns.receives[hold].sum() == 1
    assert hold_columns(topology) is columns


def test_ranks_differ_if_costs_of_links_differ_between_ranks_or_directions():
    """All ranks of a line have equal links; a slow rank, or rings of two rates in opposite directions, differ."""
    costs = {"alpha_us": 1, "beta_us_per_mb": 1}
    line = linked("line", [0] * 3, [(0, 1), (1, 0), (1, 2), (2, 1)], **costs)
    around = [(rank, (rank + 1) % 3) for rank in range(3)]
    ring = linked("ring", [0] * 3, around + [(dst, src) for src, dst in around], **costs)
    assert not ranks_differ(line)
    assert not ranks_differ(ring)
    assert not ranks_differ(ring.reversed())
    assert ranks_differ(line.degraded({0: 0.5, 1: 0.5}))
    assert ranks_differ(ring.degraded({0: 0.5, 1: 0.5, 2: 0.5}))
    assert ranks_differ(linked("one way", [0] * 3, around, **costs))


def test_costs_of_links_and_holds_as_numbers():
    """Floating-point costs are those of each link and each hold, in order."""
    topology = machines.ndv2(nodes=2)
    for rows, found in (
        (topology.links, link_costs_us(topology)),
        (topology.holds, hold_costs_us(topology)),
    ):
        assert found[0].tolist() == [float(each.alpha_us) for each in rows]
        assert found[1].tolist() == [float(each.beta_us_per_mb) for each in rows]
