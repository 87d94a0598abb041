"""Costs: exact times as integer ticks."""

from __future__ import annotations

from fractions import Fraction

import pytest
from synthesis.small_problems import custom

from taccl.costs import exact_costs
from taccl.errors import NumericsWarning, TopologyError
from taccl.problem import Problem, make_problem
from taccl.topology.topology import TopologyBuilder

MB = 10**6


def costs_of(alpha: object, beta: object, chunk_bytes: object) -> Problem:
    builder = TopologyBuilder("pair", [0, 0])
    builder.add_link(0, 1, alpha_us=alpha, beta_us_per_mb=beta)  # type: ignore[arg-type]
    return make_problem(builder.build(), custom(2, [([0], [1])] * 2), chunk_bytes=chunk_bytes)  # type: ignore[arg-type]


def test_decimal_costs_are_exact() -> None:
    """0.3 + 0.1 us for 1 MB is 4 ticks of a tenth of a microsecond."""
    costs = costs_of(0.3, "0.1", MB).costs
    assert costs.ticks_per_us == 10
    assert costs.duration(0, 1) == 4
    assert costs.us(4) == Fraction(2, 5)


def test_a_unit_is_what_all_chunks_divide_into() -> None:
    """Chunks of 4 and 6 MB have 2 and 3 units of 2 MB."""
    costs = costs_of(1, 1, [4 * MB, 6 * MB]).costs
    assert costs.chunk_units.tolist() == [2, 3]
    assert costs.duration(0, 3) == 7 * costs.ticks_per_us


def test_costs_beyond_a_picosecond_are_rounded_up_with_a_word() -> None:
    """A seventh of a millionth of a microsecond becomes a tick."""
    with pytest.warns(NumericsWarning, match="ticks"):
        costs = costs_of(Fraction(1, 7 * 10**6), 1, MB).costs
    assert costs.link_alpha.tolist() == [1]


def test_links_of_several_costs_keep_their_own() -> None:
    """Alphas of 1, 2 and 1 us, and betas of 1/2, 1 and 1 us/MB, in ticks of half a microsecond."""
    builder = TopologyBuilder("three", [0, 0])
    for alpha, beta in ((1, Fraction(1, 2)), (2, 1), (1, 1)):
        builder.add_link(0, 1, alpha_us=alpha, beta_us_per_mb=beta)
    costs = exact_costs(builder.build(), (MB, MB))
    assert costs.ticks_per_us == 2
    assert costs.link_alpha.tolist() == [2, 4, 2]
    assert costs.link_beta.tolist() == [1, 2, 2]


def test_times_of_more_than_64_bits_are_refused() -> None:
    """2^63 microseconds fit in no column."""
    with pytest.raises(TopologyError, match="64 bits"):
        costs_of(2**63, 1, MB).costs  # noqa: B018
