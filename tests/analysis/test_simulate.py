"""`simulate`: a schedule replayed under other assumptions."""

from dataclasses import replace
from fractions import Fraction

import pytest

from taccl import baselines, collectives, topologies
from taccl.analysis.simulation.simulate import assume, simulate
from taccl.analysis.verification.verify import verify
from taccl.errors import InputError
from taccl.problem.making import make_problem
from taccl.problem.problem import Clauses
from taccl.schedule.schedule import make_schedule
from taccl.topology.builder import TopologyBuilder
from taccl.topology.profiles import find_profile
from tests.analysis.random_schedules import few_schedules, random_schedules
from tests.analysis.valid_schedules import (
    MB,
    SMALL,
    Row,
    build,
    coarse_grid,
    ingress_nic,
    merged,
    own_first,
    own_last,
    relay,
    shared_nic,
)
from tests.effort import cpu_s
from tests.fuzzing import MANY, some, thinned


def machine_problem(topology, name="allgather"):
    return make_problem(topology, collectives.make(name, topology.num_ranks), chunk_bytes=MB)


def two_sends():
    """Schedule of chunks 0 and 1 in sequence over one link of 1 + 1 us, from 0 to 2 and from 2 to 4."""
    topology = TopologyBuilder("pair", [0, 0])
    topology.add_link(0, 1, alpha_us=1, beta_us_per_mb=1)
    problem = make_problem(topology.build(), collectives.broadcast(2, chunks_per_rank=2), chunk_bytes=MB)
    return build(problem, [Row(0, 0, 0, 2), Row(1, 0, 2, 4)])


def exchange():
    """Schedule of two partial sums, one each way, from 0 to 5 us and from 1 to 6.

    Links of 4 + 1 us share a bus for 1 us.
    """
    topology = TopologyBuilder("exchange", [0, 0])
    bus = topology.add_resource("bus")
    for src, dst in ((0, 1), (1, 0)):
        link = topology.add_link(src, dst, alpha_us=4, beta_us_per_mb=1)
        topology.add_hold(link, bus, alpha_us=0, beta_us_per_mb=1)
    ends = {0: [0, 1]}
    collective = collectives.custom(2, precondition=ends, postcondition=ends, combining=True)
    problem = make_problem(topology.build(), collective, chunk_bytes=MB)
    return build(problem, [Row(0, 0, 0, 5, reduce=True), Row(0, 1, 1, 6, reduce=True)])


def waiting_for_own():
    """Schedule with local-first priority: chunk 0 arrives at rank 1 at 1 us, and waits until rank 1's own
    chunk has been sent at 2 us."""
    topology = TopologyBuilder("own first", [0, 1, 2], alpha_meaning="pipelined")
    topology.add_link(0, 1, alpha_us=0, beta_us_per_mb=1)
    topology.add_link(1, 2, alpha_us=1, beta_us_per_mb=1)
    collective = collectives.custom(3, precondition={0: [0], 1: [1]}, postcondition={0: [2], 1: [2]})
    clauses = Clauses(own_first=frozenset({1}))
    problem = make_problem(topology.build(), collective, chunk_bytes=MB, clauses=clauses)
    return build(problem, [Row(1, 1, 0, 2), Row(0, 0, 0, 1), Row(0, 1, 2, 4)])


#: Schedules without slack: in `ingress_nic` one send starts 1 us late.
EARLY = [each for each in SMALL if each is not ingress_nic] + [coarse_grid, exchange, waiting_for_own]


# Simulation under a schedule's own assumptions.


@pytest.mark.parametrize("example", EARLY, ids=lambda each: each.__name__)
@pytest.mark.filterwarnings("ignore::taccl.errors.NumericsWarning")
def test_schedule_as_early_as_possible_keeps_its_times(example):
    """Schedules without slack keep their times if simulated under their own assumptions."""
    schedule = example()
    assert simulate(schedule).as_schedule() == schedule


@pytest.mark.slow
def test_random_schedules_keep_their_finish():
    """Random schedules that are simulated under their own assumptions keep their times exactly."""
    schedules = random_schedules()
    assert len(schedules) > some(100, 1000)
    for schedule in schedules[:: 1 if MANY else 8]:
        simulation = simulate(schedule)
        assert simulation.finish == schedule.finish
        starts = simulation.as_schedule()
        assert (starts.start == schedule.start).all() and (starts.group == schedule.group).all()


def test_later_turn_at_an_ingress_may_start_first():
    """A send that is second to hold an ingress may start as early as the first one.

    The 6 us send holds the ingress until 6. The 12 us send starts at 0 as well, and holds it from 7 to 12.
    """
    simulation = simulate(ingress_nic())
    assert simulation.as_schedule().start.tolist() == [0, 0]
    assert simulation.finish_us == 12


@pytest.mark.parametrize("name", ["allgather", "alltoall", "allreduce", "reduce"])
@pytest.mark.parametrize("topology", ["ndv2", "dgx2", "torus:3x3"])
def test_baselines_keep_their_finish(topology, name):
    """The best baseline on real machines keeps its finish in a simulation."""
    schedule = baselines.best(machine_problem(topologies.parse(topology), name), cut=False)
    assert simulate(schedule).finish == schedule.finish


def scaled(topology, factor, *fields):
    """A topology with the costs of links and holds multiplied by a factor."""
    links, holds = (
        tuple(each._replace(**{name: getattr(each, name) * factor for name in fields}) for each in all_of)
        for all_of in (topology.links, topology.holds)
    )
    return replace(topology, links=links, holds=holds)


@pytest.mark.parametrize(
    ("schedule", "assumed", "finish"),
    [
        # The schedule starts its second send at 7 us; the simulation starts it as early as possible, at 3 us.
        (build(relay().problem, [Row(0, 0, 2, 8), Row(0, 1, 14, 19)]), {}, Fraction("5.5")),
        # Two sends of 2 us that overlap on one link in the schedule take 4 us.
        (build(two_sends().problem, [Row(0, 0, 0, 2), Row(1, 0, 1, 3)]), {}, 4),
        # 2 + 2 us at alpha 1 and beta 1 for 1 MB each; ten times the size is 11 + 11.
        (two_sends(), {"size": "20MB"}, 22),
        # The second send starts when the first one's byte time is over, at 1, and ends at 3.
        (two_sends(), {"alpha": "pipelined"}, 3),
        # If all costs are doubled, the schedule takes twice the time.
        (relay(), {"topology": scaled(relay().problem.topology, 2, "alpha_us", "beta_us_per_mb")}, 11),
        # At ten times the size the two merged chunks still leave together, in one alpha.
        (merged(), {"size": 10 * merged().problem.size_bytes}, 11 + 5 + 200 + 105),
    ],
    ids=["slack", "an overlap", "a size", "pipelined alpha", "a topology", "merges"],
)
def test_finish_under_assumptions(schedule, assumed, finish):
    """Slack is removed, resources are respected, and costs follow size, alpha and topology."""
    assert simulate(schedule, **assumed).finish == finish


def test_schedule_without_transfers_finishes_at_once():
    """A schedule without transfers finishes at 0 and has no critical path."""
    schedule = make_schedule(two_sends().problem, chunk=[], link=[], start=[], end=[])
    simulation = simulate(schedule)
    assert (simulation.finish, simulation.critical_path, simulation.resources) == (0, (), ())
    assert "finish 0 us" in repr(simulation)


# Simulation under other assumptions.


def test_size_is_rounded_up_as_problems_are():
    """A size that does not divide evenly gives the same chunks as `make_problem`."""
    problem = machine_problem(topologies.ndv2())
    assert assume(problem, size=1001) == make_problem(problem.topology, problem.collective, size_bytes=1001)


def test_unequal_chunks_scale_in_proportion():
    """Chunks of 2 and 3 MB become 1 and 1.5 MB at half the size."""
    problem = make_problem(
        two_sends().problem.topology, collectives.alltoall(2), chunk_bytes=[MB, 2 * MB, 3 * MB, MB]
    )
    assert problem.size_bytes == 4 * MB
    assert assume(problem, size="2MB").chunk_bytes == (MB // 2, MB, 3 * MB // 2, MB // 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", thinned(topologies.machine_names(), every=5))
def test_alpha_is_that_of_the_machine_model(name):
    """A machine switched to the other meaning of alpha equals one built with it."""
    profile = find_profile(name, topologies.parse(name).profile)
    inside = profile.constants[0].name
    assert inside.endswith("_alpha_us")
    constants = {"internode_alpha_us": 3, inside: 1}
    made = {
        each: topologies.parse(name, nodes=2, alpha_meaning=each, constants=constants)
        for each in ("occupies", "pipelined")
    }
    for meaning, other in (("occupies", "pipelined"), ("pipelined", "occupies")):
        assert assume(machine_problem(made[other]), alpha=meaning).topology == made[meaning]


@pytest.mark.parametrize("name", ["ndv2", "dgx1", "dgx2"])
def test_profile_is_that_of_the_machine_model(name):
    """A machine switched to another profile equals one built with it."""
    problem = machine_problem(topologies.parse(name, nodes=2, profile="taccl"))
    expected = topologies.parse(name, nodes=2, profile="nominal")
    assert assume(problem, profile="nominal").topology == expected


def test_profile_of_a_machine_without_rails():
    """A cluster cabled without rails keeps all its links if its cost profile is changed."""
    topology = topologies.dgx_a100(2, rails=False, constants={"internode_alpha_us": 5}, profile="nominal")
    expected = topologies.dgx_a100(2, rails=False, profile="nominal")
    assert assume(machine_problem(topology), profile="nominal").topology == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "assumption", [{"size": "1KB"}, {"size": "1GB"}, {"alpha": "pipelined"}, {"alpha": "occupies"}]
)
def test_replays_are_valid_schedules(assumption):
    """Simulated times under any assumption form a valid schedule."""
    for schedule in few_schedules():
        verify(simulate(schedule, **assumption).as_schedule()).raise_if_failed()


@pytest.mark.parametrize("example", [own_first, own_last, waiting_for_own], ids=lambda each: each.__name__)
def test_own_first_is_kept_at_another_size(example):
    """The gap that local-first priority requires scales with the size."""
    verify(simulate(example(), size="7MB").as_schedule()).raise_if_failed()


# Simulation of several tiles, which are equal parts of a large message.


def test_tiles_follow_on_every_resource():
    """A tile starts on each link as soon as the tile before has left it.

    Hops take 3 and 2.5 us. The first link is never idle, so n tiles take 3 n + 2.5 us.
    """
    simulation = simulate(relay(), tiles=4)
    assert simulation.finish == Fraction("14.5")
    assert simulation.finishes == tuple(Fraction(3 * n) + Fraction("2.5") for n in (1, 2, 3, 4))
    assert simulation.algbw_gb_per_s == pytest.approx(4000 / 14.5)


@pytest.mark.parametrize(
    ("schedule", "assumed", "message"),
    [
        # Too many steps are refused before any memory is allocated, with the limit.
        (
            two_sends(),
            {"tiles": 10**8},
            "tiles: found 100000000 tiles of 2 sends.*expected at most 50000000:",
        ),
        # Profile and topology would both set the costs.
        (relay(), {"profile": "nominal", "topology": relay().problem.topology}, "leave one out"),
        # The error lists the machine's profiles.
        (baselines.ring(machine_problem(topologies.ndv2())), {"profile": "fast"}, "taccl, nominal"),
        (relay(), {"topology": two_sends().problem.topology}, "has 2 ranks, but the schedule's line has 3"),
        # Without alpha each partial sum would have to arrive before the other leaves: a cycle.
        (
            exchange(),
            {"topology": scaled(exchange().problem.topology, 0, "alpha_us")},
            "cannot be kept under these assumptions: sends of groups 0, 1",
        ),
        (build(relay().problem, [Row(0, 1, 0, 5)]), {}, "rank 1 sends chunk 0, which it never holds"),
        # A merged send over two links is refused.
        (build(relay().problem, [Row(0, 0, 0, 6, 1), Row(0, 1, 6, 11, 1)]), {}, "differ in link"),
    ],
    ids=["tiles", "two sources of costs", "a profile", "a shape", "an order", "a chunk", "a group"],
)
def test_what_cannot_be_simulated_is_refused(schedule, assumed, message):
    """Assumptions that cannot be simulated are refused with one sentence."""
    with pytest.raises(InputError, match=message):
        simulate(schedule, **assumed)


def test_tile_waits_for_the_last_send_of_the_tile_before():
    """A tile's first send on a link waits for the last send of the tile before.

    Chunks leave in the order 0, 1, 0, 1: three tiles of two 2 us sends take 12 us.
    """
    simulation = simulate(two_sends(), tiles=3)
    assert [step.chunks for step in simulation.critical_path] == [(0,), (1,)] * 3
    assert [step.tile for step in simulation.critical_path] == [0, 0, 1, 1, 2, 2]
    assert simulation.finish_us == 12


# Simulation with random durations of sends (jitter).


def test_jitter_is_reproducible():
    """Equal seeds give equal finishes, different seeds different ones."""
    schedule = relay()
    finishes = [simulate(schedule, jitter=0.2, seed=seed).finish for seed in (5, 5, 6)]
    assert finishes[0] == finishes[1] != finishes[2]


def test_jitter_stays_within_its_width():
    """With a jitter of 0.1, dependent sends take between 0.9 and 1.1 times as long in total."""
    for seed in range(50):
        assert Fraction("4.95") <= simulate(relay(), jitter=0.1, seed=seed).finish <= Fraction("6.05")


def test_jitter_differs_from_tile_to_tile():
    """The duration of every send of every tile has a random factor of its own."""
    path = simulate(two_sends(), tiles=2, jitter=0.5).critical_path
    assert len({step.end - step.start for step in path}) == 4


def test_jittered_times_add_up():
    """With jitter, too, the busy time of a resource and its idle times by cause add up to the finish."""
    simulation = simulate(shared_nic(), tiles=3, jitter=0.3)
    for use in simulation.resources:
        idle = use.idle_for_data + use.idle_for_clause + use.idle_for_resource + use.idle_at_end
        assert use.busy + idle == simulation.finish


# The critical path of a simulation.


def test_critical_path_names_chunk():
    """The critical path names the chunk that the second hop of a relay waits for."""
    first, second = simulate(relay()).critical_path
    assert (first.waited_for, first.start, first.end) == ("nothing", 0, 3)
    assert (second.waited_for, second.what, second.start_us, second.end_us) == ("data", "chunk 0", 3, 5.5)
    assert (second.link, second.link_name, second.tile, second.group) == (1, "1->2", 0, 1)


def test_a_send_may_wait_for_a_resource():
    """The critical path names the NIC for which the second send waits until 9 us."""
    simulation = simulate(shared_nic())
    assert simulation.critical_path[1].what == "NIC of node 0"
    use = {each.name: each for each in simulation.resources}
    assert use["link 1->3"].idle_for_resource == 9
    assert (use["NIC of node 0"].busy, use["NIC of node 0"].idle_at_end) == (18, 3)


def test_a_send_may_wait_for_a_clause():
    """The critical path names the clause that makes a send wait while its link is idle.

    Here own-first makes a relayed chunk wait 1 us.
    """
    simulation = simulate(waiting_for_own())
    last = simulation.critical_path[-1]
    assert (last.waited_for, last.what) == ("clause", "own_first")
    use = {each.name: each for each in simulation.resources}["link 1->2"]
    assert (use.busy, use.idle_for_clause, use.idle_for_data) == (2, 1, 0)


@pytest.mark.slow
def test_critical_path_adds_up_to_the_finish():
    """The critical path starts at 0, ends at the finish, and each step starts when its cause ends."""
    for schedule in random_schedules():
        simulation = simulate(schedule)
        path = simulation.critical_path
        assert not path or (path[0].start == 0 and path[-1].end == simulation.finish)
        assert all(step.waited_for != "nothing" for step in path[1:])
        for before, step in zip(path, path[1:], strict=False):
            if step.waited_for == "data" and "first" not in step.what:
                assert step.start == before.end
            if step.waited_for == "resource" and step.what == f"link {step.link_name}":
                held = [h for h in schedule.problem.topology.holds_of_link[step.link] if h.side == "send"][0]
                size = sum(schedule.problem.chunk_bytes[c] for c in before.chunks)
                assert step.start == before.start + held.alpha_us + held.beta_us_per_mb * size / MB


# Busy and idle times of resources.


def test_resource_use_of_a_relay():
    """Times that a resource is busy, idle for lack of data, and idle at the end add up to the finish.

    The first link is busy 3 us, then idle 2.5 us. The second waits 3 us for data and is busy 2.5 us.
    """
    first, second = simulate(relay()).resources
    assert (first.name, first.busy, first.idle_at_end, first.num_sends) == (
        "link 0->1",
        3,
        Fraction("2.5"),
        1,
    )
    assert (second.busy, second.idle_for_data, second.idle_at_end) == (Fraction("2.5"), 3, 0)
    assert second.utilisation == pytest.approx(2.5 / 5.5)


@pytest.mark.slow
def test_utilisation_is_at_most_one():
    """Busy and idle times add up to the finish, and none is negative."""
    for schedule in few_schedules():
        simulation = simulate(schedule, tiles=3)
        for use in simulation.resources:
            parts = (use.busy, use.idle_for_data, use.idle_for_clause, use.idle_for_resource, use.idle_at_end)
            assert min(parts) >= 0
            assert sum(parts) == simulation.finish
            assert 0 < use.utilisation <= 1


def test_tables_have_a_row_each():
    """Tables have a heading, a row per resource or step, and a count of omitted rows."""
    simulation = simulate(shared_nic())
    assert len(simulation.table().splitlines()) == 1 + 3
    assert simulation.table(limit=1).splitlines()[-1] == "... and 2 more"
    assert simulation.path_table().splitlines()[-1].endswith("resource: NIC of node 0")


def test_repr_says_what_was_assumed():
    """The repr of a simulation shows size, meaning of alpha, tiles, jitter, seed, finish and bandwidth."""
    text = repr(simulate(two_sends(), size="2MB", alpha="pipelined", tiles=2, jitter=0.1, seed=3))
    assert "broadcast on pair, 2MB, alpha pipelined, 2 tiles, jitter 0.1, seed 3: finish" in text
    assert text.endswith("GB/s)")


# CPU time of a simulation.


@pytest.mark.slow
def test_large_schedule_is_fast():
    """Four times as many sends, 4,032, take less than 16 times the CPU time."""
    small, large = (
        baselines.ring(machine_problem(topologies.parse(fabric))) for fabric in ("torus:4x8", "torus:8x8")
    )
    assert simulate(large).finish == large.finish
    assert cpu_s(lambda: simulate(large)) < 12 * cpu_s(lambda: simulate(small))


# Invalid arguments of `simulate`.


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"size": "much"}, "size"),
        ({"alpha": "occupied"}, "alpha"),
        ({"profile": "nominal"}, "profile"),
        ({"tiles": 0}, "tiles"),
        ({"tiles": 1.5}, "tiles"),
        ({"jitter": 1.0}, "jitter"),
        ({"jitter": -0.1}, "jitter"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_assumption_is_refused(options, where):
    """The error for an invalid option of `simulate` names the option."""
    with pytest.raises(InputError) as caught:
        simulate(relay(), **options)
    assert caught.value.where == where


def test_size_needs_a_known_size():
    """Size cannot be scaled if the problem's size is unknown."""
    problem = two_sends().problem
    unknown = type(problem)(problem.topology, problem.collective, problem.chunk_bytes)
    schedule = make_schedule(unknown, chunk=[0], link=[0], start=[0], end=[2])
    with pytest.raises(InputError, match="is unknown"):
        simulate(schedule, size="1MB")


@pytest.mark.parametrize("row", [Row(7, 0, 0, 6), Row(0, 9, 0, 6)])
def test_unknown_chunk_or_link_is_refused(row):
    """A schedule with an unknown chunk or link is refused by `simulate`."""
    with pytest.raises(InputError, match="verify the schedule"):
        simulate(build(relay().problem, [row]))


def test_tiles_are_no_schedule():
    """`as_schedule` refuses a simulation of several tiles."""
    with pytest.raises(InputError, match="one tile"):
        simulate(relay(), tiles=2).as_schedule()
