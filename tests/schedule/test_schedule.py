"""The schedule: columns of transfers in one order, whatever order they came in."""

import dataclasses

import numpy as np
import pytest

import taccl
from taccl import collectives
from taccl.errors import InputError
from taccl.problem.making import make_problem
from taccl.schedule.schedule import Transfer, make_schedule
from tests.synthesis.small_problems import custom, linked, problem_of

MB = 10**6


def line():  # noqa: ANN201
    """Links 0 -> 1 -> 2 of 2.5 us each; a microsecond has two ticks."""
    return linked("line", [0] * 3, [(0, 1), (1, 2)], alpha_us="0.5", beta_us_per_mb=2)


def relay(**options):  # noqa: ANN201
    """Schedule of two chunks from 0 to 2, with rows in no particular order."""
    problem = problem_of(line(), custom(3, [([0], [2]), ([0], [2])]))
    columns = {
        "chunk": [1, 0, 1, 0],
        "link": [1, 0, 0, 1],
        "start": [10, 0, 5, 5],
        "end": [15, 5, 10, 10],
        "group": [7, 3, 9, 5],
    }
    return make_schedule(problem, **{**columns, **options})


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        # Transfers are sorted by start, then by link.
        ([t[:3] for t in relay()], [(0, 0, 0), (1, 0, 5), (0, 1, 5), (1, 1, 10)]),
        # Groups 3, 9, 5, 7 are renumbered from 0 in the order of starts, so ids of 64 bits are accepted.
        ([t.group for t in relay()], [0, 1, 2, 3]),
        (relay(group=[2**40, 1, 2, 3]).num_sends, 4),
        # Every transfer is a send of its own by default.
        (relay(group=None).num_sends, 4),
        # The finish is 15 ticks of half a microsecond.
        ((relay().finish_us, str(relay().finish)), (7.5, "15/2")),
        (next(iter(relay())), Transfer(chunk=0, link=0, start_ticks=0, end_ticks=5, group=0, reduce=False)),
        (repr(relay()), "Schedule(custom on line: 4 transfers in 4 sends, finish 7.5 us)"),
    ],
    ids=["order", "groups", "groups of 64 bits", "no groups", "finish", "a transfer", "repr"],
)
def test_what_a_schedule_says(found, expected):
    """Order, groups, finish and text of a schedule of two chunks in four sends, given in no order."""
    assert found == expected


def test_merged_transfers_count_as_one_send():
    """Two transfers of one group are one send."""
    schedule = relay(start=[5, 0, 0, 5], end=[10, 5, 5, 10], group=[1, 0, 0, 1])
    assert (schedule.num_transfers, schedule.num_sends) == (4, 2)


def test_an_empty_schedule_finishes_at_once():
    """Without transfers a schedule has no finish, sends or bandwidth."""
    schedule = relay(chunk=[], link=[], start=[], end=[], group=[])
    assert (len(schedule), schedule.finish_ticks, schedule.num_sends) == (0, 0, 0)
    assert schedule.algbw_gb_per_s is None


def test_bandwidths_are_those_of_nccl_tests():
    """Allgather of 3 MB in 10 us: 3 MB / 10 us = 300 GB/s, times (n - 1) / n = 200 GB/s."""
    problem = make_problem(line(), collectives.allgather(3), size_bytes=3 * MB)
    schedule = make_schedule(problem, chunk=[0], link=[0], start=[0], end=[20])
    assert schedule.algbw_gb_per_s == pytest.approx(300)
    assert schedule.busbw_gb_per_s == pytest.approx(200)


def test_equal_schedules_have_one_digest_whatever_their_order():
    """Permuted rows and renumbered groups give the same digest."""
    one = relay()
    other = relay(
        chunk=[0, 1, 0, 1], link=[1, 0, 0, 1], start=[5, 5, 0, 10], end=[10, 10, 5, 15], group=[1, 2, 0, 4]
    )
    assert one == other
    assert hash(one) == hash(other)
    assert one.digest() == other.digest()


@pytest.mark.parametrize(
    "change",
    [{"end": [16, 5, 10, 10]}, {"reduce": [True, False, False, False]}, {"group": [7, 3, 9, 9]}],
    ids=["times", "operation", "merging"],
)
def test_another_schedule_has_another_digest(change):
    """Another time, operation or merging gives another digest."""
    assert relay(**change) != relay()


def test_columns_are_read_only():
    """The columns of a schedule are read-only arrays."""
    schedule = relay()
    with pytest.raises(ValueError, match="read-only"):
        schedule.start[0] = 1


def test_columns_of_different_length_are_refused():
    """A schedule whose columns differ in length is refused."""
    with pytest.raises(ValueError, match="differ in length"):
        relay(start=[0, 0, 0])


@pytest.mark.parametrize(
    ("column", "values", "found"),
    [
        ("chunk", [0, 1, 0, 1.7], "float64 values"),
        ("start", [0.9, 0, 5, 5], "float64 values"),
        ("end", [5.0, 5.0, 10.0, 10.0], "float64 values"),
        ("end", [float("nan"), 5, 10, 10], "float64 values"),
        ("link", ["0", "0", "1", "1"], "U1 values"),
        ("link", [None, 0, 1, 1], "object values"),
        ("chunk", np.array([2**32 + 1, 1, 0, 1]), "4294967297; expected"),
        ("start", np.array([2**63, 0, 5, 5], dtype=np.uint64), "9223372036854775808; expected"),
        ("start", [-(2**62) - 1, 0, 5, 5], "-4611686018427387905; expected"),
        ("end", [2**70, 5, 10, 10], "object values"),
        ("start", [[0, 0], [5, 5]], "2 dimensions"),
        ("start", [[0], [0, 1], 5, 5], "are no column"),
        ("start", 3, "0 dimensions"),
        ("group", [0.5, 1, 2, 3], "float64 values"),
        ("reduce", [0, 1, 0, 1], "int64 values"),
        ("reduce", [True, False], "differ in length"),
        ("group", [1, 2, 3, 4, 5], "differ in length"),
    ],
)  # fmt: skip
def test_nothing_that_was_given_is_changed(column, values, found):  # noqa: ANN001
    """Values that a column cannot hold exactly are refused rather than cut, rounded or wrapped around."""
    with pytest.raises(InputError, match=found) as caught:
        relay(**{column: values})
    assert str(caught.value.where).startswith("schedule")


@pytest.mark.parametrize(
    ("column", "values", "found"),
    [
        ("start", np.array([np.nan, 0, 5, 5]), "float64 values"),
        ("end", np.array([np.inf, 5, 10, 10]), "float64 values"),
        ("link", np.array(["0", "0", "1", "1"]), "U1 values"),
        ("chunk", [0, 1, 0, 1], "found a list"),
        ("chunk", np.zeros((2, 2), dtype=np.int32), "2 dimensions"),
        ("end", np.array([2**63, 5, 10, 10], dtype=np.uint64), "9223372036854775808"),
        ("group", np.arange(3, dtype=np.int32), "differ in length"),
        ("group", np.arange(5, dtype=np.int32), "differ in length"),
        ("end", np.arange(9), "differ in length"),
        ("reduce", np.zeros(5, dtype=bool), "differ in length"),
        ("reduce", np.zeros(4), "expected bool"),
    ],
)  # fmt: skip
def test_columns_built_by_hand_are_checked(column, values, found):  # noqa: ANN001
    """A schedule made without `make_schedule` has columns of the right kind, or is refused at once."""
    with pytest.raises(InputError, match=found):
        dataclasses.replace(relay(), **{column: values})


def test_the_table_shows_times_in_us_and_what_it_hides():
    """A table of two of four rows has times in us and states the omitted rows."""
    text = relay().table(limit=2)
    assert "2.500" in text
    assert text.endswith("... and 2 more")


def test_a_schedule_has_its_number_of_chunks():
    """A baseline for a problem with an open number of chunks fixes the number, and its bound is for that
    number."""
    problem = taccl.make_problem(taccl.topologies.ring(4), "allgather", size_bytes=4000)
    schedule = taccl.baselines.ring(problem, cut=False)
    assert problem.chunks_open and not schedule.problem.chunks_open
    assert not taccl.lower_bound(schedule.problem).divisible
