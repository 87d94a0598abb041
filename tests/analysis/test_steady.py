"""`initiation_interval`: the minimum period between tiles, and the critical cycle."""

from dataclasses import replace
from fractions import Fraction

import pytest

from taccl import baselines, collectives, topologies
from taccl.analysis.simulation.simulate import simulate
from taccl.analysis.simulation.steady import initiation_interval
from taccl.problem.making import make_problem
from taccl.schedule.schedule import make_schedule
from taccl.topology.builder import TopologyBuilder
from tests.analysis.random_schedules import few_schedules, random_schedules
from tests.analysis.valid_schedules import MB, Row, allreduce, build, ingress_nic, relay, shared_nic
from tests.fuzzing import thinned


def there_and_back():
    """Schedule along the path 0 -> 1 -> 2 -> 3 in 2, 5 and 2 us; the first and the last hop share a bus.

    The bus is held for 4 us per tile. The next tile's first hop waits for this tile's last hop, which waits
    for the 5 us between: 9 us per tile, with the bus in use for 4 us.
    """
    topology = TopologyBuilder("bus", [0, 0, 0, 0])
    bus = topology.add_resource("bus")
    for (src, dst), beta in (((0, 1), 2), ((1, 2), 5), ((2, 3), 2)):
        link = topology.add_link(src, dst, alpha_us=0, beta_us_per_mb=beta)
        if beta == 2:
            topology.add_hold(link, bus, alpha_us=0, beta_us_per_mb=2)
    problem = make_problem(topology.build(), collectives.broadcast(4), chunk_bytes=MB)
    return build(problem, [Row(0, 0, 0, 2), Row(0, 1, 2, 7), Row(0, 2, 7, 9)])


def three_buses(starts):
    """Schedule of three chunks of two hops, 3 us each: chunk 0 over buses A and B, 1 over B and C, 2 over C
    and A.

    `starts` has the starts of the chunks' first hops; their last hops start 3 us later.
    """
    topology = TopologyBuilder("three buses", [0] * 9)
    buses = [topology.add_resource(f"bus {name}") for name in "ABC"]
    for i in range(3):
        for hop in range(2):
            link = topology.add_link(3 * i + hop, 3 * i + hop + 1, alpha_us=0, beta_us_per_mb=3)
            topology.add_hold(link, buses[(i + hop) % 3], alpha_us=0, beta_us_per_mb=3)
    collective = collectives.custom(
        9, precondition={i: [3 * i] for i in range(3)}, postcondition={i: [3 * i + 2] for i in range(3)}
    )
    problem = make_problem(topology.build(), collective, chunk_bytes=MB)
    rows = [
        Row(i, 2 * i + hop, at + 3 * hop, at + 3 * hop + 3) for i, at in enumerate(starts) for hop in range(2)
    ]
    return build(problem, rows)


def test_busiest_resource_limits_a_relay():
    """Tiles follow each other at the interval of the busiest resource.

    Over hops of 3 and 2.5 us there is a tile of 1 MB every 3 us, though each takes 5.5.
    """
    steady = initiation_interval(relay())
    assert (steady.interval, steady.busiest_load, steady.busiest_resource) == (3, 3, "link 0->1")
    assert steady.limits == "link 0->1 is never idle"
    assert steady.algbw_gb_per_s == steady.busbw_gb_per_s == pytest.approx(1000 / 3)
    assert repr(steady) == (
        "SteadyState(broadcast on line: a tile every 3 us, algbw 333.3 GB/s, busbw 333.3 GB/s; link 0->1 is never idle)"
    )


@pytest.mark.parametrize(
    ("schedule", "interval"),
    [
        # Two sends hold a NIC for 9 us each.
        (shared_nic(), 18),
        # The receiving NIC is held for 2 * 5 us; the first link is held for longer, 12 us.
        (ingress_nic(), 12),
        # An allreduce in which every link is used twice, for 2 us each.
        (allreduce(), 4),
        # At ten times the size a relay's first hop takes 1 + 20 us.
        (simulate(relay(), size="10MB").as_schedule(), 21),
    ],
    ids=["a shared resource", "an ingress", "a reduction", "another size"],
)
def test_what_is_never_idle_limits(schedule, interval):
    """The initiation interval of these schedules is the time for which a tile holds the busiest resource."""
    assert initiation_interval(schedule).interval == interval


def test_cycle_through_data_limits():
    """The bus is held for 4 us per tile, but data dependencies give a cycle of 9 us."""
    steady = initiation_interval(there_and_back())
    assert (steady.interval, steady.busiest_load, steady.cycle_tiles) == (9, 5, 1)
    assert [(step.link_name, step.start, step.waited_for) for step in steady.cycle] in (
        [("0->1", 2, "resource"), ("1->2", 4, "data"), ("2->3", 9, "data")],
        [("1->2", 2, "data"), ("2->3", 7, "data"), ("0->1", 9, "resource")],
        [("2->3", 5, "data"), ("0->1", 7, "resource"), ("1->2", 9, "data")],
    )


def test_limits_say_what_the_cycle_is():
    """`limits` describes the cycle of three sends, and the busiest resource, in use for 5 of 9 us."""
    limits = initiation_interval(there_and_back()).limits
    assert limits == (
        "3 sends wait for one another in a cycle over 1 tile; the busiest resource, link 1->2, is in use for "
        "55.6% of the time"
    )


def test_every_bus_is_always_busy():
    """All chunks start at 0: each bus serves one first hop and one last hop, 6 us, and is never idle."""
    steady = initiation_interval(three_buses([0, 0, 0]))
    assert (steady.interval, steady.busiest_load) == (6, 6)


def test_cycle_over_two_tiles_limits():
    """The interval may be limited by a cycle of waits over two tiles, not by the busiest resource.

    Two tiles take 18 us, though a tile holds each bus for only 6 us. Chunk 0 starts at 6 us, after chunk 2's
    last hop on bus A. Bus A serves chunk 2's last hop and then chunk 0's first. Bus B serves chunk 1's first
    hop and then chunk 0's last. Bus C serves chunk 2's first hop and then chunk 1's last. The cycle has six
    steps of 3 us: chunk 2 over C and A, chunk 0 over A and B, and the next tile's chunk 1 over B and C. Chunk
    2 of the third tile follows over C.
    """
    steady = initiation_interval(three_buses([6, 0, 0]))
    assert (steady.interval, steady.busiest_load, steady.cycle_tiles) == (9, 6, 2)
    assert len(steady.cycle) == 6
    assert [step.start for step in steady.cycle] == [3, 6, 9, 12, 15, 18]
    assert {step.tile for step in steady.cycle} <= {0, 1, 2}


def test_tiles_overlap():
    """A tile takes 12 us by itself, and the next one starts after 9 us."""
    schedule = three_buses([6, 0, 0])
    assert schedule.finish_us == 12
    finishes = simulate(schedule, tiles=100).finishes
    assert (finishes[99] - finishes[49]) / 50 == 9


def test_schedule_without_transfers_has_no_interval():
    """A schedule without transfers has an interval of 0."""
    steady = initiation_interval(make_schedule(relay().problem, chunk=[], link=[], start=[], end=[]))
    assert (steady.interval, steady.cycle, steady.algbw_gb_per_s, steady.check()) == (0, (), None, True)
    assert "no resource is held" in repr(steady)


@pytest.mark.slow
def test_random_intervals_are_proven():
    """Intervals of random schedules are proven by a cycle and by potentials, and are at least the load of the
    busiest resource."""
    for schedule in thinned(random_schedules(), every=2):
        steady = initiation_interval(schedule)
        assert steady.check()
        assert steady.interval >= steady.busiest_load
        assert [0, *(step.start for step in steady.cycle)][-1] == steady.cycle_tiles * steady.interval


@pytest.mark.slow
def test_random_intervals_agree_with_many_tiles():
    """1,000 tiles of random schedules follow one another at the initiation interval, within a thousandth."""
    for schedule in few_schedules():
        steady = initiation_interval(schedule)
        finishes = simulate(schedule, tiles=1000).finishes
        slope = (finishes[999] - finishes[499]) / 500
        assert abs(slope - steady.interval) <= steady.interval / 1000


@pytest.mark.slow
@pytest.mark.parametrize("name", ["allgather", "allreduce"])
@pytest.mark.parametrize("baseline", ["ring", "hierarchical"])
def test_machine_intervals_agree_with_many_tiles(baseline, name):
    """100 tiles on two NDv2 follow one another at the initiation interval, within a thousandth."""
    topology = topologies.ndv2(2)
    problem = make_problem(topology, collectives.make(name, topology.num_ranks), chunk_bytes=MB)
    schedule = baselines.baseline(baseline, problem)
    finishes = simulate(schedule, tiles=100).finishes
    interval = initiation_interval(schedule).interval
    assert abs((finishes[99] - finishes[49]) / 50 - interval) <= interval / 1000


@pytest.mark.slow
def test_some_cycle_reaches_over_several_tiles():
    """Among random schedules some have a critical cycle that spans several tiles."""
    assert any(initiation_interval(schedule).cycle_tiles > 1 for schedule in random_schedules())


@pytest.mark.parametrize("wrong", [Fraction(8), Fraction(10)])
def test_check_refuses_another_interval(wrong):
    """A shorter interval violates the cycle, a longer one is not the minimum: both are refused."""
    steady = initiation_interval(there_and_back())
    assert steady.check()
    assert not replace(steady, interval=wrong).check()


def test_check_refuses_potentials_that_break_a_wait():
    """Potentials of zero violate every wait for data and are refused."""
    steady = initiation_interval(there_and_back())
    assert not replace(steady, _potentials=(0, 0, 0)).check()


def test_check_refuses_numbers_that_are_not_exact():
    """An interval or potentials as floats are refused: arithmetic with these would round."""
    steady = initiation_interval(there_and_back())
    assert not replace(steady, interval=float(steady.interval)).check()
    assert not replace(steady, _potentials=tuple(map(float, steady._potentials))).check()


def test_table_has_a_row_for_each_send():
    """The table of an initiation interval has a heading and the three sends of the critical cycle."""
    lines = initiation_interval(there_and_back()).table().splitlines()
    assert len(lines) == 4
    assert any(line.endswith("resource: bus") for line in lines)
