"""Columns of a schedule: kept in narrow types, or left out and derived."""

import dataclasses

import numpy as np
import pytest

import taccl
from taccl.errors import InputError
from taccl.schedule.columns import narrow
from taccl.schedule.schedule import Schedule, make_schedule
from tests.analysis import valid_schedules as valid
from tests.schedule.test_schedule import relay


def bare(**options):
    """The relay of two chunks with only chunk, link and start columns."""
    return relay(end=None, group=None, **options)


@pytest.mark.parametrize(
    ("name", "values", "kind"),
    [
        # The absent column of ends: a send takes 2.5 us, which is five ticks.
        ("end", [5, 10, 10, 15], np.int64),
        # Every transfer is a send of its own, in order.
        ("group", [0, 1, 2, 3], np.int32),
        # Without a column of reductions all transfers are copies.
        ("reduce", [False] * 4, np.bool_),
    ],
)
def test_absent_columns_are_derived(name, values, kind):
    """Absent columns are derived on reading, in full types, and not stored."""
    assert getattr(bare().kept, name) is None
    assert (getattr(bare(), name).tolist(), getattr(bare(), name).dtype) == (values, kind)
    assert [getattr(bare(), name).dtype for name in ("chunk", "link", "start")] == [
        np.int32,
        np.int32,
        np.int64,
    ]
    assert (bare().finish_ticks, bare().num_sends) == (15, 4)


def test_the_first_transfers_may_reduce():
    """If the reduce column is a number n, the first n transfers reduce."""
    schedule = Schedule(bare().problem, *bare().kept[:3], reduce=2)
    assert schedule.reduce.tolist() == [True, True, False, False]
    assert [each.reduce for each in schedule] == [True, True, False, False]


def test_a_merged_send_lasts_as_long_as_all_of_its_chunks():
    """A merged send pays alpha once, and beta for all of its chunks.

    Two chunks in one send take 0.5 us and twice 2 us: nine ticks of half a microsecond.
    """
    schedule = relay(chunk=[0, 1], link=[0, 0], start=[0, 0], end=None, group=[0, 0])
    assert schedule.end.tolist() == [9, 9]


def test_narrow_types_hold_all_values():
    """Each column has the narrowest of three types that holds all of its values."""
    for most, kind in ((2**16 - 1, np.uint16), (2**16, np.int32), (2**31 - 1, np.int32), (2**31, np.int64)):
        assert narrow(np.array([0, most])).dtype == kind
    assert narrow(np.array([-1, 1])).dtype == np.int32


def test_needed_columns_take_at_most_11_bytes_a_transfer():
    """A transfer takes at most 11 bytes: 4 for the chunk, 2 for the link, 4 for the start, 1 for the reduction."""
    schedule = make_schedule(
        bare().problem, chunk=[2_100_000, 0], link=[0, 60_000], start=[0, 2**31 - 1], reduce=[True, False]
    )
    assert schedule.num_bytes / len(schedule) <= 11


def test_reading_leaves_stored_columns_unchanged():
    """Reading full columns leaves the stored narrow ones unchanged."""
    schedule = bare()
    size = schedule.num_bytes
    assert schedule.columns.keys() > {"end", "group", "reduce"}
    assert (schedule.num_bytes, schedule.kept.end) == (size, None)


def test_a_derived_column_is_computed_once():
    """A derived column is computed once and is read-only."""
    schedule = bare()
    assert schedule.end is schedule.end
    with pytest.raises(ValueError, match="read-only"):
        schedule.end[0] = 1


def test_absent_columns_change_no_digest_table_or_transfer():
    """Digest, table and transfers of a schedule without some columns equal those with all columns."""
    assert bare() == relay()
    assert bare().table() == relay().table()
    assert list(bare()) == list(relay())
    assert bare()._repr_html_() == relay()._repr_html_()


def test_another_problem_gets_the_columns_that_are_kept():
    """Under another problem stored columns are kept, and ends are derived from its costs."""
    problem = dataclasses.replace(bare().problem, release_us=((0, 0, 1),))
    again = bare().under(problem, producer="again")
    assert (again.problem, again.producer, again.kept.end) == (problem, "again", None)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        # Fractions would be cut off where the schedule is verified or hashed.
        ({"start": np.zeros(3)}, "float64 values"),
        ({"chunk": np.zeros(2, int)}, "differ in length"),
        ({"link": np.zeros((3, 1), int)}, "2 dimensions"),
        # Transfers of unknown chunks or links are refused, as their ends are unknown.
        ({"chunk": np.array([-1, 0, 0])}, "found chunks"),
        ({"link": np.array([10**6, 0, 0])}, "found links"),
        ({"start": np.array([2**62, 0, 0])}, "found starts"),
    ],
)
def test_invalid_columns_are_refused(changed, message):
    """Columns must be integers of equal length, of existing chunks and links."""
    columns = {name: np.zeros(3, int) for name in ("chunk", "link", "start")} | changed
    with pytest.raises(InputError, match=message):
        _ = Schedule(bare().problem, **columns).end


def test_absent_columns_are_verified():
    """Schedules with absent columns are verified like full ones."""
    assert taccl.verify(bare()).ok
    early = make_schedule(bare().problem, chunk=[0, 0, 1, 1], link=[0, 1, 0, 1], start=[0, 4, 5, 10])
    assert {each.kind for each in taccl.verify(early).violations} == {"presence"}


def test_in_order_gives_the_order_of_make_schedule():
    """`in_order` sorts as `make_schedule` does."""
    kept = [column[::-1] for column in bare().kept[:3]]
    schedule = Schedule(bare().problem, *kept)
    assert schedule != bare()
    assert schedule.in_order() == bare()


def test_in_order_keeps_what_is_merged_and_named():
    """`in_order` keeps groups and contributions with their transfers."""
    for schedule in (valid.merged(), valid.relay()):
        assert schedule.in_order() == schedule


def test_expand_is_deprecated():
    """`expand` is deprecated, and returns the schedule itself."""
    schedule = bare()
    with pytest.warns(DeprecationWarning, match="does nothing"):
        assert schedule.expand() is schedule


def test_a_schedule_too_large_for_full_columns_is_refused(monkeypatch):
    """A schedule too large for full columns is refused with the memory needed; the verifier still accepts it."""
    monkeypatch.setattr("taccl.schedule.schedule._LISTED_BYTES", 2 * 10**9)
    with pytest.raises(InputError, match="4 transfers need 8GB as full columns, more than the 4GB allowed"):
        taccl.lower(bare())
    assert taccl.verify(bare()).ok
    assert relay().listable() == relay()


@pytest.mark.parametrize("name", ["chunk", "link", "start"])
def test_columns_that_nothing_derives_are_required(name):
    """Chunk, link and start columns are required."""
    columns = {"chunk": [0], "link": [0], "start": [0]} | {name: None}
    with pytest.raises(InputError, match=f"schedule.{name}: found"):
        make_schedule(bare().problem, **columns)
