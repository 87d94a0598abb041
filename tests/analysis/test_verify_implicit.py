"""The judge of implicit schedules: it accepts what is valid, and refuses whatever was tampered with."""

from __future__ import annotations

import contextlib
import dataclasses
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl import topologies
from taccl.analysis.verification.verify import verify
from taccl.analysis.verification.verify_implicit import verify_implicit
from taccl.errors import InputError, VerificationError
from taccl.synthesis.symmetry.implicit import synthesize_implicit
from taccl.topology.named import parse_named
from taccl.topology.regular import CyclicProduct, PermutationGroup
from taccl.topology.translations import ClassHold, translations_of_topology
from tests.fuzzing import some

if TYPE_CHECKING:
    from taccl.schedule.implicit.schedule import ImplicitSchedule

COLLECTIVES = ("allgather", "reduce-scatter", "allreduce", "alltoall")


def made(name: str = "torus:4x4", collective: str = "allgather", **options) -> ImplicitSchedule:
    return synthesize_implicit(name, collective, **options).schedule


def with_rows(schedule: ImplicitSchedule, **columns) -> ImplicitSchedule:
    """The schedule with columns of its pattern replaced."""
    pattern = schedule.pattern._replace(**{name: np.asarray(each) for name, each in columns.items()})
    return dataclasses.replace(schedule, pattern=pattern)


def changed(schedule: ImplicitSchedule, column: str, row: int, value) -> ImplicitSchedule:
    """The schedule with one cell of its pattern replaced."""
    values = getattr(schedule.pattern, column).copy()
    values[row] = value
    return with_rows(schedule, **{column: values})


def chosen(schedule: ImplicitSchedule, rows) -> ImplicitSchedule:
    """The schedule with these rows only, in this order."""
    return with_rows(schedule, **{name: each[rows] for name, each in schedule.pattern._asdict().items()})


def with_shape(schedule: ImplicitSchedule, **changes) -> ImplicitSchedule:
    """The schedule with its translations tampered with."""
    return dataclasses.replace(schedule, translations=dataclasses.replace(schedule.translations, **changes))


def with_class(schedule: ImplicitSchedule, number: int, **changes) -> ImplicitSchedule:
    """The schedule with one class of links tampered with."""
    classes = list(schedule.translations.classes)
    classes[number] = dataclasses.replace(classes[number], **changes)
    return with_shape(schedule, classes=tuple(classes))


def kinds(schedule: ImplicitSchedule) -> set[str]:
    return {violation.kind for violation in verify_implicit(schedule).violations}


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("name", ["torus:3x4", "hypercube:3", "star:5", "fully-connected:4", "mesh:2x3"])
def test_what_is_valid_is_accepted(name, collective):
    """With the counts and the finish of the schedule, and nothing redundant."""
    schedule = made(name, collective)
    found = verify_implicit(schedule)
    found.raise_if_failed()
    assert (found.num_transfers, found.finish_us) == (schedule.num_transfers, schedule.finish_us)
    assert found.num_redundant == 0


# ---- rows


def test_a_missing_row():
    """One offset never gets the chunk; nor do those behind it, if any."""
    schedule = made()
    for row in range(schedule.num_rows):
        assert "postcondition" in kinds(chosen(schedule, np.delete(np.arange(schedule.num_rows), row)))


def test_no_rows():
    """Nobody gets anything."""
    for collective in COLLECTIVES:
        assert "postcondition" in kinds(chosen(made(collective=collective), np.arange(0)))


def test_a_row_twice():
    """Two sends of a class at once."""
    schedule = made()
    assert "contention" in kinds(chosen(schedule, [0, *range(schedule.num_rows)]))


def test_a_redundant_arrival_is_counted():
    """A row repeated after the end harms nothing: 16 transfers that nobody needed."""
    schedule = made()
    late = changed(chosen(schedule, [*range(schedule.num_rows), 0]), "start", -1, schedule.finish_ticks)
    found = verify_implicit(late)
    assert found.ok and found.num_redundant == 16
    assert verify(late.expand()).ok and verify(late.expand()).num_redundant == 16


def test_a_send_before_its_chunk_is_there():
    """The last send of a relayed chunk, at time 0."""
    schedule = made()
    relayed = int(np.flatnonzero(schedule.pattern.src)[-1])
    assert "presence" in kinds(changed(schedule, "start", relayed, 0))


def test_one_tick_too_early():
    """Chunk and link are both still on their way."""
    schedule = made()
    row = int(np.flatnonzero(schedule.pattern.start)[0])
    assert kinds(changed(schedule, "start", row, schedule.pattern.start[row] - 1)) == {
        "presence",
        "contention",
    }


def test_a_send_before_time_0():
    """Times are not negative."""
    assert kinds(changed(made(), "start", 0, -1)) == {"interval"}


def test_two_sends_of_a_class_overlap():
    """The second send of a class starts when the first has one tick left; chunks are there."""
    schedule = made("ring:4")
    pattern = schedule.pattern
    alone = with_rows(
        chosen(schedule, [0, 0]), src=[0, 1], dst=[1, 2], link_class=[0, 0], start=[0, schedule.ends[0]]
    )
    assert "contention" not in kinds(alone)
    assert "contention" in kinds(changed(alone, "start", 1, schedule.ends[0] - 1))
    assert pattern is schedule.pattern


def test_ports_of_a_star_are_shared_by_classes():
    """Two classes send at once: each link is free, the port is not."""
    schedule = made("star:5")
    assert "contention" in kinds(with_rows(schedule, start=np.zeros(schedule.num_rows, dtype=np.int64)))


@pytest.mark.parametrize("column", ["src", "dst", "link_class"])
def test_a_row_that_goes_elsewhere(column):
    """Source, destination and class of a row contradict each other."""
    schedule = made()
    value = getattr(schedule.pattern, column)[3]
    assert kinds(changed(schedule, column, 3, (value + 1) % 4)) == {"symmetry"}


@pytest.mark.parametrize(
    ("column", "value"), [("item", 1), ("item", -1), ("src", 16), ("dst", -1), ("link_class", 4)]
)
def test_indices_that_do_not_exist(column, value):
    """One item, places 0 to 15, classes 0 to 3."""
    assert kinds(changed(made(), column, 0, value)) == {"index"}


def test_columns_of_different_lengths():
    """A pattern cut short."""
    schedule = made()
    assert kinds(with_rows(schedule, start=schedule.pattern.start[:-1])) == {"index"}


def test_an_allgather_does_not_reduce():
    """Nor does an alltoall."""
    assert "reduce" in kinds(changed(made(), "reduce", 0, True))
    assert "reduce" in kinds(changed(made(collective="alltoall"), "reduce", 0, True))


def test_an_alltoall_needs_the_whole_way():
    """Without its last hop a chunk stays on its way; of another item it is where nobody wants it."""
    schedule = made(collective="alltoall")
    assert kinds(chosen(schedule, np.arange(schedule.num_rows - 1))) == {"postcondition"}
    item = int(schedule.pattern.item[-1])
    assert "postcondition" in kinds(changed(schedule, "item", -1, (item + 1) % 16))


# ---- sums


def test_a_contribution_that_is_never_sent():
    """Any row of a reduce-scatter is some place's only send."""
    schedule = made(collective="reduce-scatter")
    assert "postcondition" in kinds(chosen(schedule, np.arange(1, schedule.num_rows)))


def test_a_contribution_sent_twice():
    """After the end, where links are free."""
    schedule = made(collective="reduce-scatter")
    twice = chosen(schedule, [*range(schedule.num_rows), 0])
    assert "double-count" in kinds(changed(twice, "start", -1, schedule.finish_ticks))


def test_a_sum_that_leaves_its_root():
    """Place 0 sends to a neighbour, by a class that leads there, once all is done."""
    schedule = made(collective="reduce-scatter")
    dst = schedule.translations.classes[0].dst
    grown = chosen(schedule, [*range(schedule.num_rows), 0])
    for column, value in (("src", 0), ("dst", dst), ("link_class", 0), ("start", schedule.finish_ticks)):
        grown = changed(grown, column, -1, value)
    assert "double-count" in kinds(grown)


def test_a_partial_sum_that_leaves_too_early():
    """Before what is to be added to it has come: that never gets to the root."""
    schedule = made(collective="reduce-scatter")
    last = int(np.argmax(schedule.pattern.start))
    assert "postcondition" in kinds(changed(schedule, "start", last, 0))


def test_a_copy_wipes_out_a_sum():
    """A reduce-scatter copies nothing."""
    assert "lost-contribution" in kinds(changed(made(collective="reduce-scatter"), "reduce", 0, False))


def test_an_allreduce_spreads_whole_sums_only():
    """A copy from the root at time 0; a copy that is added instead; a sum that is copied."""
    schedule = made(collective="allreduce")
    reduce = schedule.pattern.reduce
    first_copy = int(np.flatnonzero(~reduce)[0])
    assert "lost-contribution" in kinds(changed(schedule, "start", first_copy, 0))
    assert kinds(changed(schedule, "reduce", first_copy, True)) == {"double-count"}
    assert kinds(changed(schedule, "reduce", 0, False)) == {"lost-contribution"}


# ---- translations


def test_another_group():
    """The sums of digits of 2 x 8 are no translations of 4 x 4; nor is a group of other order one at all."""
    assert kinds(with_shape(made(), group=CyclicProduct((2, 8)))) == {"symmetry"}
    assert kinds(with_shape(made(), group=CyclicProduct((4, 5)))) == {"symmetry"}
    assert kinds(with_shape(made(), group=CyclicProduct((-4, -4)))) == {"symmetry"}


def test_another_fabric():
    """A mesh lacks the links that close the rings; a hypercube has others."""
    for name in ("mesh:4x4", "ring:16", "torus:2x8"):
        assert kinds(with_shape(made(), host=parse_named(name))) == {"symmetry"}


def test_a_class_of_links_that_do_not_exist():
    """A step along both axes, to itself, out of range, or the step of another class."""
    schedule = made()
    for dst in (5, 0, 16, -1, schedule.translations.classes[1].dst):
        assert kinds(with_class(schedule, 0, dst=dst)) == {"symmetry"}


@pytest.mark.parametrize("cost", ["alpha_us", "beta_us_per_mb"])
def test_a_class_that_is_too_cheap(cost):
    """Sends would end before they can."""
    assert kinds(with_class(made(), 2, **{cost: Fraction(1, 10)})) == {"times"}


def test_costs_of_the_other_axis():
    """The axes differ: a class cannot have the other's bandwidth."""
    schedule = made("torus:4x4", bandwidth_gb_per_s=[75, 50])
    other = schedule.translations.classes[2]
    assert kinds(with_class(schedule, 0, beta_us_per_mb=other.beta_us_per_mb)) == {"times"}


def test_holds_that_are_left_out():
    """None, shorter ones, another class's, or only the link's of a star."""
    schedule = made()
    hold = schedule.translations.classes[0].holds[0]
    for holds in ((), (hold._replace(beta_us_per_mb=Fraction(0)),), (hold._replace(resource=1),)):
        assert kinds(with_class(schedule, 0, holds=holds)) == {"contention"}
    star = made("star:5")
    holds = star.translations.classes[1].holds
    assert kinds(with_class(star, 1, holds=holds[:1])) == {"contention"}


def test_ports_that_are_told_apart():
    """A class of a star claims ports of its own: then two could send at once."""
    star = made("star:5")
    own, out, into = star.translations.classes[1].holds
    for holds in (
        (own, out._replace(resource=99), into),
        (own, out, into._replace(resource=99)),
        (own, out, into._replace(resource=out.resource)),
    ):
        assert kinds(with_class(star, 1, holds=holds)) == {"contention"}


def test_ports_that_all_classes_tell_apart():
    """Every class claims ports of its own."""
    star = made("star:5")
    classes = tuple(
        dataclasses.replace(
            each,
            holds=(
                each.holds[0],
                *(h._replace(resource=50 + 2 * i + j) for j, h in enumerate(each.holds[1:])),
            ),
        )
        for i, each in enumerate(star.translations.classes)
    )
    assert kinds(with_shape(star, classes=classes)) == {"contention"}


def test_pipelined_links_are_not_occupying_ones():
    """Where alpha occupies, a hold without it is too short."""
    pipelined = made("torus:4x4", alpha_meaning="pipelined")
    assert kinds(with_shape(pipelined, host=parse_named("torus:4x4"))) == {"contention"}


def test_a_ring_that_is_none():
    """Two places swapped: the ring leaves the mesh; one place twice: it misses a rank."""
    schedule = made("mesh:4x4")
    ranks = schedule.translations.ranks.copy()
    ranks[[2, 9]] = ranks[[9, 2]]
    assert kinds(with_shape(schedule, ranks=ranks)) == {"symmetry"}
    ranks[2] = ranks[9]
    assert kinds(with_shape(schedule, ranks=ranks)) == {"symmetry"}
    assert kinds(with_shape(schedule, ranks=None)) == {"symmetry"}


# ---- topologies


def on_topology() -> ImplicitSchedule:
    shape = translations_of_topology(topologies.ring(5), [[1, 2, 3, 4, 0]])
    return synthesize_implicit(shape).schedule


def test_a_table_that_is_no_group():
    """Rows swapped, or a row that is another permutation with the same first entry."""
    for broken in ([0, 1, 3, 2, 4], None):
        schedule = on_topology()
        group = PermutationGroup(schedule.translations.group.generators)
        table = group.table.copy()
        if broken is not None:
            table = table[broken]
        else:
            table[2, [1, 2]] = table[2, [2, 1]]
        group.__dict__["table"] = table
        assert kinds(with_shape(schedule, group=group)) == {"symmetry"}


def test_a_topology_that_lost_a_link():
    """Or whose link costs otherwise, or is held for another time."""
    schedule = on_topology()
    host = schedule.host
    ends = dataclasses.replace(host.links[3], srcs=(0,), dsts=(2,))
    links = (*host.links[:3], ends, *host.links[4:])
    assert kinds(with_shape(schedule, host=dataclasses.replace(host, links=links))) == {"symmetry"}
    dear = dataclasses.replace(host.links[3], alpha_us=Fraction(9))
    links = (*host.links[:3], dear, *host.links[4:])
    assert kinds(with_shape(schedule, host=dataclasses.replace(host, links=links))) == {"times"}
    holds = tuple(dataclasses.replace(h, alpha_us=Fraction(0)) if h.link == 3 else h for h in host.holds)
    assert kinds(with_shape(schedule, host=dataclasses.replace(host, holds=holds))) == {"contention"}


def test_links_that_share_a_resource():
    """Two links of a class on one resource: translations send over both at once."""
    schedule = on_topology()
    host = schedule.host
    holds = tuple(dataclasses.replace(h, resource=0) if h.link == 1 else h for h in host.holds)
    assert kinds(with_shape(schedule, host=dataclasses.replace(host, holds=holds))) == {"contention"}


def test_classes_of_resources_that_are_wrong():
    """Too few, or a resource of the other direction's class."""
    schedule = on_topology()
    known = schedule.translations.resource_class
    assert kinds(with_shape(schedule, resource_class=known[:-1])) == {"symmetry"}
    other = (1 - known[0], *known[1:])
    assert kinds(with_shape(schedule, resource_class=other)) == {"contention"}


def test_a_class_with_a_hold_too_many():
    """What the topology does not have."""
    schedule = on_topology()
    each = schedule.translations.classes[0]
    assert kinds(with_class(schedule, 0, holds=(*each.holds, ClassHold(7, Fraction(1), Fraction(1))))) == {
        "contention"
    }


# ---- what it says


def test_messages_name_the_row():
    """Item, places and time; of many rows the first five."""
    schedule = made("torus:8x8")
    found = verify_implicit(with_rows(schedule, start=np.zeros(schedule.num_rows, dtype=np.int64)))
    with pytest.raises(VerificationError, match=r"row \d+ \(item 0, \d+->\d+ at 0.000 us\)"):
        found.raise_if_failed()
    assert any("rows more" in each.message for each in found.violations)
    assert len(found.violations) < 40


@pytest.mark.slow
@settings(max_examples=some(75, 150), deadline=None)
@given(
    name=st.sampled_from(["torus:3x3", "ring:4", "star:4", "mesh:2x3"]),
    collective=st.sampled_from(COLLECTIVES),
    column=st.sampled_from(["item", "src", "dst", "link_class", "start", "reduce"]),
    row=st.integers(0, 10**6),
    value=st.integers(-1, 9),
    rows=st.none() | st.lists(st.integers(0, 40), max_size=3),
)
def test_nothing_is_accepted_that_the_other_judge_refuses(name, collective, column, row, value, rows):
    """Any cell changed, and rows repeated or left out: what passes here is valid written out too."""
    schedule = made(name, collective)
    if rows is not None:
        left = [r for r in range(schedule.num_rows) if r not in rows[:1]] + [
            r % schedule.num_rows for r in rows[1:]
        ]
        schedule = chosen(schedule, left)
    if column == "start":
        value *= int(schedule.ticks.latency[0]) // 2
    schedule = changed(schedule, column, row % schedule.num_rows, value)
    if verify_implicit(schedule).ok:
        assert verify(schedule.expand()).ok
    elif kinds(schedule) <= {"presence", "contention", "postcondition"} and not schedule.pattern.reduce.any():
        with contextlib.suppress(InputError):  # a row of a chunk over a link that does not exist
            assert not verify(schedule.expand()).ok
