"""The verifier of implicit schedules: valid ones are accepted, manipulated ones refused."""

import dataclasses
from fractions import Fraction

import numpy as np
import pytest

from taccl import topologies
from taccl.analysis.verification.verify import verify
from taccl.analysis.verification.verify_implicit import verify_implicit
from taccl.errors import VerificationError
from taccl.synthesis.symmetry.implicit import synthesize_implicit
from taccl.topology.named import parse_named
from taccl.topology.translations import ClassHold, CyclicProduct, PermutationGroup, translations_of_topology

COLLECTIVES = ("allgather", "reduce-scatter", "allreduce", "alltoall")


def made(name="torus:4x4", collective="allgather", **options):
    return synthesize_implicit(name, collective, **options).schedule


def with_rows(schedule, **columns):
    """The schedule with columns of its pattern replaced."""
    pattern = schedule.pattern._replace(**{name: np.asarray(each) for name, each in columns.items()})
    return dataclasses.replace(schedule, pattern=pattern)


def changed(schedule, column, row, value):
    """The schedule with one cell of its pattern replaced."""
    values = getattr(schedule.pattern, column).copy()
    values[row] = value
    return with_rows(schedule, **{column: values})


def chosen(schedule, rows):
    """The schedule with these rows only, in this order."""
    return with_rows(schedule, **{name: each[rows] for name, each in schedule.pattern._asdict().items()})


def with_shape(schedule, **changes):
    """The schedule with changed translations."""
    return dataclasses.replace(schedule, translations=dataclasses.replace(schedule.translations, **changes))


def with_class(schedule, number, **changes):
    """The schedule with one changed link class."""
    classes = list(schedule.translations.classes)
    classes[number] = dataclasses.replace(classes[number], **changes)
    return with_shape(schedule, classes=tuple(classes))


def kinds(schedule):
    return {violation.kind for violation in verify_implicit(schedule).violations}


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("name", ["torus:3x4", "hypercube:3", "star:5", "fully-connected:4", "mesh:2x3"])
def test_what_is_valid_is_accepted(name, collective):
    """Valid schedules are accepted, with their counts and finish and no redundant sends."""
    schedule = made(name, collective)
    found = verify_implicit(schedule)
    found.raise_if_failed()
    assert (found.num_transfers, found.finish_us) == (schedule.num_transfers, schedule.finish_us)
    assert found.num_redundant == 0


# ---- Changed, missing and repeated rows of a pattern.


def test_a_missing_row():
    """Without one row, ranks at some offsets from a chunk's origin never receive the chunk."""
    schedule = made()
    for row in range(schedule.num_rows):
        assert "postcondition" in kinds(chosen(schedule, np.delete(np.arange(schedule.num_rows), row)))


def test_no_rows():
    """If a pattern has no rows, the verifier says that no rank receives anything."""
    for collective in COLLECTIVES:
        assert "postcondition" in kinds(chosen(made(collective=collective), np.arange(0)))


def again(schedule):
    """The schedule with its first row repeated after the end, where links are free."""
    return changed(chosen(schedule, [*range(schedule.num_rows), 0]), "start", -1, schedule.finish_ticks)


@pytest.mark.parametrize(
    ("name", "collective", "tampered", "kind"),
    [
        # Two sends of a class at the same time.
        ("torus:4x4", "allgather", lambda s: chosen(s, [0, *range(s.num_rows)]), "contention"),
        # The last send of a relayed chunk at time 0, before its chunk arrives.
        (
            "torus:4x4",
            "allgather",
            lambda s: changed(s, "start", np.flatnonzero(s.pattern.src)[-1], 0),
            "presence",
        ),
        # Two classes send at the same time: each link of a star is free, but the port is not.
        (
            "star:5",
            "allgather",
            lambda s: with_rows(s, start=np.zeros(s.num_rows, dtype=np.int64)),
            "contention",
        ),
        # Neither an allgather nor an alltoall reduces.
        ("torus:4x4", "allgather", lambda s: changed(s, "reduce", 0, True), "reduce"),
        ("torus:4x4", "alltoall", lambda s: changed(s, "reduce", 0, True), "reduce"),
        # Each row of a reduce-scatter is the only send of the sum from one place (relative to the root).
        # Without a row a contribution is missing; if a row is repeated, a contribution is added twice.
        ("torus:4x4", "reduce-scatter", lambda s: chosen(s, np.arange(1, s.num_rows)), "postcondition"),
        ("torus:4x4", "reduce-scatter", again, "double-count"),
        # A partial sum leaves before a contribution to it arrives; that contribution never reaches the root.
        (
            "torus:4x4",
            "reduce-scatter",
            lambda s: changed(s, "start", np.argmax(s.pattern.start), 0),
            "postcondition",
        ),
        # A reduce-scatter copies nothing: a copy overwrites a sum.
        ("torus:4x4", "reduce-scatter", lambda s: changed(s, "reduce", 0, False), "lost-contribution"),
    ],
)
def test_rows_that_were_tampered_with(name, collective, tampered, kind):
    """A pattern with a changed, missing or repeated row has the expected kind of violation."""
    assert kind in kinds(tampered(made(name, collective)))


def test_a_redundant_arrival_is_counted():
    """A row repeated after the end gives 16 redundant transfers and no violation."""
    late = again(made())
    for found in (verify_implicit(late), verify(late.expand())):
        assert (found.ok, found.num_redundant) == (True, 16)


def test_one_tick_too_early():
    """A row one tick too early uses a chunk that has not arrived and a link that is busy."""
    schedule = made()
    row = int(np.flatnonzero(schedule.pattern.start)[0])
    assert kinds(changed(schedule, "start", row, schedule.pattern.start[row] - 1)) == {
        "presence",
        "contention",
    }


@pytest.mark.parametrize(
    ("options", "tampered", "kind"),
    [
        # Negative times are refused.
        ({}, lambda s: changed(s, "start", 0, -1), "interval"),
        # A column with a missing row is refused.
        ({}, lambda s: with_rows(s, start=s.pattern.start[:-1]), "index"),
        # The groups of 2 x 8, or of another order, are not translations of 4 x 4.
        *(
            ({}, lambda s, of=of: with_shape(s, group=CyclicProduct(of)), "symmetry")
            for of in ((2, 8), (4, 5), (-4, -4))
        ),
        # A mesh lacks the wrap-around links; a ring and 2 x 8 have other links.
        *(
            ({}, lambda s, name=name: with_shape(s, host=parse_named(name)), "symmetry")
            for name in ("mesh:4x4", "ring:16", "torus:2x8")
        ),
        # A wrong destination of class 0: along both axes, its source, out of range, or that of class 1.
        *(({}, lambda s, dst=dst: with_class(s, 0, dst=dst), "symmetry") for dst in (5, 0, 16, -1)),
        ({}, lambda s: with_class(s, 0, dst=s.translations.classes[1].dst), "symmetry"),
        # The axes differ in bandwidth, so a class cannot have the other's.
        (
            {"bandwidth_gb_per_s": [75, 50]},
            lambda s: with_class(s, 0, beta_us_per_mb=s.translations.classes[2].beta_us_per_mb),
            "times",
        ),
        # With alpha "occupies", a hold without alpha is too short.
        (
            {"alpha_meaning": "pipelined"},
            lambda s: with_shape(s, host=parse_named("torus:4x4")),
            "contention",
        ),
    ],
)
def test_shapes_that_were_tampered_with(options, tampered, kind):
    """A changed part of the schedule's symmetry gives violations of the expected kind only."""
    assert kinds(tampered(made("torus:4x4", **options))) == {kind}


def test_two_sends_of_a_class_overlap():
    """The second send of a class starts one tick before the first ends: a conflict."""
    schedule = made("ring:4")
    pattern = schedule.pattern
    alone = with_rows(
        chosen(schedule, [0, 0]), src=[0, 1], dst=[1, 2], link_class=[0, 0], start=[0, schedule.ends[0]]
    )
    assert "contention" not in kinds(alone)
    assert "contention" in kinds(changed(alone, "start", 1, schedule.ends[0] - 1))
    assert pattern is schedule.pattern


@pytest.mark.parametrize("column", ["src", "dst", "link_class"])
def test_a_row_that_goes_elsewhere(column):
    """Source, destination and class of a row that contradict each other are a symmetry violation."""
    schedule = made()
    value = getattr(schedule.pattern, column)[3]
    assert kinds(changed(schedule, column, 3, (value + 1) % 4)) == {"symmetry"}


@pytest.mark.parametrize(
    ("column", "value"), [("item", 1), ("item", -1), ("src", 16), ("dst", -1), ("link_class", 4)]
)
def test_indices_that_do_not_exist(column, value):
    """Items, places and classes out of range are index violations: 1 item, places 0 to 15, classes 0 to 3."""
    assert kinds(changed(made(), column, 0, value)) == {"index"}


def test_an_alltoall_needs_the_whole_path():
    """An alltoall chunk that lacks its last hop, or has another item number there, is a violation."""
    schedule = made(collective="alltoall")
    assert kinds(chosen(schedule, np.arange(schedule.num_rows - 1))) == {"postcondition"}
    item = int(schedule.pattern.item[-1])
    assert "postcondition" in kinds(changed(schedule, "item", -1, (item + 1) % 16))


# ---- Reductions.


def test_a_sum_that_leaves_its_root():
    """A reduction that sends a finished sum from its root on to a neighbour is a violation."""
    schedule = made(collective="reduce-scatter")
    dst = schedule.translations.classes[0].dst
    grown = chosen(schedule, [*range(schedule.num_rows), 0])
    for column, value in (("src", 0), ("dst", dst), ("link_class", 0), ("start", schedule.finish_ticks)):
        grown = changed(grown, column, -1, value)
    assert "double-count" in kinds(grown)


def test_an_allreduce_spreads_whole_sums_only():
    """An early copy from the root, an added copy and a copied partial sum of an allreduce are violations."""
    schedule = made(collective="allreduce")
    reduce = schedule.pattern.reduce
    first_copy = int(np.flatnonzero(~reduce)[0])
    assert "lost-contribution" in kinds(changed(schedule, "start", first_copy, 0))
    assert kinds(changed(schedule, "reduce", first_copy, True)) == {"double-count"}
    assert kinds(changed(schedule, "reduce", 0, False)) == {"lost-contribution"}


# ---- Changed translations and link classes.


@pytest.mark.parametrize("cost", ["alpha_us", "beta_us_per_mb"])
def test_a_class_that_is_too_cheap(cost):
    """A class with lower costs than its links gives a times violation."""
    assert kinds(with_class(made(), 2, **{cost: Fraction(1, 10)})) == {"times"}


def test_holds_that_are_left_out():
    """Missing, shorter or wrong holds of a link class are violations."""
    schedule = made()
    hold = schedule.translations.classes[0].holds[0]
    for holds in ((), (hold._replace(beta_us_per_mb=Fraction(0)),), (hold._replace(resource=1),)):
        assert kinds(with_class(schedule, 0, holds=holds)) == {"contention"}
    star = made("star:5")
    holds = star.translations.classes[1].holds
    assert kinds(with_class(star, 1, holds=holds[:1])) == {"contention"}


def test_a_class_with_ports_of_its_own():
    """A star's class with ports of its own would let two classes send at the same time: a violation."""
    star = made("star:5")
    own, out, into = star.translations.classes[1].holds
    for holds in (
        (own, out._replace(resource=99), into),
        (own, out, into._replace(resource=99)),
        (own, out, into._replace(resource=out.resource)),
    ):
        assert kinds(with_class(star, 1, holds=holds)) == {"contention"}


def test_classes_without_ports_in_common():
    """If the link classes of a star have no ports in common, that is a violation."""
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


def test_a_sequence_that_is_no_ring():
    """A ring through a mesh is refused if two ranks are swapped (its hops are no links), or if one is
    repeated."""
    schedule = made("mesh:4x4")
    ranks = schedule.translations.ranks.copy()
    ranks[[2, 9]] = ranks[[9, 2]]
    assert kinds(with_shape(schedule, ranks=ranks)) == {"symmetry"}
    ranks[2] = ranks[9]
    assert kinds(with_shape(schedule, ranks=ranks)) == {"symmetry"}
    assert kinds(with_shape(schedule, ranks=None)) == {"symmetry"}


# ---- Topologies that differ from the translations.


def on_topology():
    shape = translations_of_topology(topologies.ring(5), [[1, 2, 3, 4, 0]])
    return synthesize_implicit(shape).schedule


def test_a_table_that_is_no_group():
    """A group table with swapped rows, or with a wrong row, is a violation."""
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
    """A topology without a link, with another cost, or with another hold is a violation."""
    schedule = on_topology()
    host = schedule.host
    ends = host.links[3]._replace(srcs=(0,), dsts=(2,))
    links = (*host.links[:3], ends, *host.links[4:])
    assert kinds(with_shape(schedule, host=dataclasses.replace(host, links=links))) == {"symmetry"}
    dear = host.links[3]._replace(alpha_us=Fraction(9))
    links = (*host.links[:3], dear, *host.links[4:])
    assert kinds(with_shape(schedule, host=dataclasses.replace(host, links=links))) == {"times"}
    holds = tuple(h._replace(alpha_us=Fraction(0)) if h.link == 3 else h for h in host.holds)
    assert kinds(with_shape(schedule, host=dataclasses.replace(host, holds=holds))) == {"contention"}


def test_links_that_share_a_resource():
    """Two links of a class on one resource, used at the same time by translations, are a violation."""
    schedule = on_topology()
    host = schedule.host
    holds = tuple(h._replace(resource=0) if h.link == 1 else h for h in host.holds)
    assert kinds(with_shape(schedule, host=dataclasses.replace(host, holds=holds))) == {"contention"}


def test_classes_of_resources_that_are_wrong():
    """A missing resource class, or the class of the other direction's resources, is a violation."""
    schedule = on_topology()
    known = schedule.translations.resource_class
    assert kinds(with_shape(schedule, resource_class=known[:-1])) == {"symmetry"}
    other = (1 - known[0], *known[1:])
    assert kinds(with_shape(schedule, resource_class=other)) == {"contention"}


def test_a_class_with_a_hold_too_many():
    """A hold that the topology lacks is a violation."""
    schedule = on_topology()
    each = schedule.translations.classes[0]
    assert kinds(with_class(schedule, 0, holds=(*each.holds, ClassHold(7, Fraction(1), Fraction(1))))) == {
        "contention"
    }


# ---- Messages of violations.


def test_messages_name_the_row():
    """A message names item, places and time of a row; of many rows at fault it names the first five."""
    schedule = made("torus:8x8")
    found = verify_implicit(with_rows(schedule, start=np.zeros(schedule.num_rows, dtype=np.int64)))
    with pytest.raises(VerificationError, match=r"row \d+ \(item 0, \d+->\d+ at 0.000 us\)"):
        found.raise_if_failed()
    assert any("rows more" in each.message for each in found.violations)
    assert len(found.violations) < 40
