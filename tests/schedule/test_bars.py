"""Bars of a Gantt chart: rows, lengths, contents, and omitted rows."""

import dataclasses

import numpy as np
import pytest

from taccl import collectives
from taccl.errors import InputError
from taccl.schedule.bars import SEVERAL, bars_of, busy_shares
from taccl.schedule.schedule import make_schedule
from tests.synthesis.small_problems import custom, full, problem_of, ring


def test_a_bar_for_every_send(exchange):
    """Every send has a bar in the row of its link."""
    bars = bars_of(exchange, "link")
    assert bars.rows == ("0->1", "1->0")
    assert bars.row.tolist() == [0, 0, 1]
    assert bars.start_us.tolist() == [0, 1, 0]
    assert bars.end_us.tolist() == [1, 2, 1]
    assert bars.chunk.tolist() == bars.origin.tolist() == [0, 0, 1]


def test_rows_are_ranks_that_send(exchange):
    """Grouped by rank, rank 0 has two bars for its two sends, and rank 1 has one."""
    bars = bars_of(exchange, "rank")
    assert bars.rows == ("rank 0", "rank 1")
    assert np.bincount(bars.row).tolist() == [2, 1]


def test_merged_sends_are_one_bar():
    """Chunks that share a send are one bar, marked as several chunks.

    Two chunks of 1 MB take 1 us of alpha and 1 us each.
    """
    problem = problem_of(ring(2), custom(2, [([0], [1])] * 2), merging=frozenset({0}), max_merge=2)
    ticks = problem.costs.ticks_per_us
    schedule = make_schedule(
        problem, chunk=[0, 1], link=[0, 0], start=[0, 0], end=[3 * ticks] * 2, group=[0, 0]
    )
    bars = bars_of(schedule, "link")
    assert bars.chunk.tolist() == [SEVERAL]
    assert bars.origin.tolist() == [0]
    assert bars.end_us.tolist() == [3]


def test_resources_are_held_from_either_end():
    """A resource that is held during one end of a send has its bar at that end.

    A port held until the send's end for 1 of 3 us has a bar from 2 to 3 us; the link's own is from 0 to 3.
    """
    from taccl.topology.builder import TopologyBuilder

    builder = TopologyBuilder("two", [0, 0])
    link = builder.add_link(0, 1, alpha_us=1, beta_us_per_mb=2)
    builder.add_hold(link, builder.add_resource("port in"), alpha_us=0, beta_us_per_mb=1, side="receive")
    problem = problem_of(builder.build(), custom(2, [([0], [1])]))
    schedule = make_schedule(problem, chunk=[0], link=[0], start=[0], end=[3 * problem.costs.ticks_per_us])
    bars = bars_of(schedule, "resource")
    spans = dict(zip(bars.rows, zip(bars.start_us.tolist(), bars.end_us.tolist(), strict=True), strict=True))
    assert spans == {"link 0->1": (0, 3), "port in": (2, 3)}
    assert busy_shares(schedule).tolist() == pytest.approx([1, 1 / 3])


def test_overlapping_bars_get_lanes_of_their_own():
    """Two simultaneous sends of rank 0 are drawn in two lanes of its row."""
    problem = problem_of(full(3), collectives.broadcast(3))
    first = problem.topology.links_between(0, 1)[0], problem.topology.links_between(0, 2)[0]
    schedule = make_schedule(
        problem, chunk=[0, 0], link=first, start=[0, 0], end=[problem.costs.ticks_per_us] * 2
    )
    bars = bars_of(schedule, "rank")
    assert bars.lane.tolist() == [0, 1]
    assert bars.num_lanes.tolist() == [2, 2]


def test_the_busiest_rows_are_kept(exchange):
    """If rows are limited, the busiest ones are kept: link 0, busy for 2 us, and not link 1, for 1 us."""
    bars = bars_of(exchange, "link", max_rows=1)
    assert bars.rows == ("0->1",)
    assert (bars.num_rows, bars.num_hidden) == (2, 1)


def test_busy_shares_match_the_simulation(found):
    """The busy shares of resources in a chart equal the simulation's utilisation."""
    import taccl

    shares = busy_shares(found.schedule)
    names = [each.name for each in found.schedule.problem.topology.resources]
    for use in taccl.simulate(found.schedule).resources:
        assert shares[names.index(use.name)] == pytest.approx(use.utilisation)


@pytest.mark.parametrize(("option", "value"), [("by", "node"), ("max_rows", 0)])
def test_unknown_options_are_refused(exchange, option, value):
    """The error for an unknown option or value names the option."""
    with pytest.raises(InputError, match=option):
        bars_of(exchange, **{option: value})


@pytest.mark.parametrize("column", ["chunk", "link"])
def test_transfers_of_nothing_are_refused(exchange, column):
    """A chunk or a link that does not exist is an error that says so."""
    wrong = dataclasses.replace(exchange, **{column: np.full(3, 9, dtype=np.int32)})
    with pytest.raises(InputError, match=f"found a {column} outside 0-"):
        bars_of(wrong)
