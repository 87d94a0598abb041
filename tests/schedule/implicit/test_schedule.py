"""Implicit schedules: figures, lazy access and expansion. A chunk of 1000 bytes takes 2 us per hop."""

import json
from itertools import islice

import numpy as np
import pytest

from taccl import collectives
from taccl.analysis.verification.verify import verify
from taccl.errors import InputError, TopologyError
from taccl.problem.making import make_problem
from taccl.schedule.implicit_schedule import ImplicitSchedule, Pattern, ticks_of
from taccl.synthesis.symmetry.implicit import synthesize_implicit
from taccl.synthesis.symmetry.translation import translate
from taccl.topology.fabrics import multidim
from taccl.topology.named import parse_named
from taccl.topology.translations import translations_of_fabric

COSTS = {"alpha_us": 1, "bandwidth_gb_per_s": 1}


def ring3(collective="allgather", **options):
    """Implicit schedule on a ring of three: rank 0 sends its chunk to rank 1 and to rank 2 in parallel.

    Each send is one row of the pattern, over its own class of links. Translations repeat the rows for every
    rank.
    """
    shape = translations_of_fabric(parse_named("ring:3", **COSTS))
    pattern = Pattern.sorted([0, 0], [0, 0], [1, 2], [0, 1], [0, 0], [False, False])
    return ImplicitSchedule(shape, collective, 1, 1000, pattern, "test", **options)


def test_a_row_is_repeated_for_every_rank():
    """Each row of the pattern is repeated for every rank: rank g sends chunk g to g + 1 and to g + 2."""
    found = [(t.chunk, t.src, t.dst) for t in ring3()]
    assert found == [(0, 0, 1), (1, 1, 2), (2, 2, 0), (0, 0, 2), (1, 1, 0), (2, 2, 1)]


def test_counts():
    """A pattern of two rows has six transfers on three ranks."""
    schedule = ring3()
    assert (schedule.num_rows, schedule.num_transfers, len(schedule), schedule.num_ranks) == (2, 6, 6, 3)


def test_finish_is_exact():
    """1 us of alpha and 1000 bytes at 1 GB/s end at 2 us."""
    assert ring3().finish == 2
    assert ring3().finish_us == 2.0


def test_bandwidth_as_nccl_tests_counts_it():
    """3000 bytes in 2 us are 1.5 GB/s of algbw, and two thirds of that busbw."""
    schedule = ring3()
    assert schedule.algbw_gb_per_s == pytest.approx(1.5)
    assert schedule.busbw_gb_per_s == pytest.approx(1.0)


def test_an_empty_schedule_has_no_bandwidth():
    """An empty schedule has no bandwidth."""
    schedule = ImplicitSchedule(ring3().translations, "allgather", 1, 1000, Pattern.sorted(*[[]] * 6))
    assert (schedule.finish_ticks, schedule.algbw_gb_per_s, schedule.busbw_gb_per_s) == (0, None, None)


def test_one_transfer_by_number():
    """Transfers are numbered row by row: on three ranks transfer 4 is row 1, translated by one rank."""
    transfer = ring3()[4]
    assert (transfer.chunk, transfer.src, transfer.dst, transfer.start_ticks, transfer.reduce) == (
        1,
        1,
        0,
        0,
        False,
    )
    assert ring3()[-2] == transfer


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (lambda: ring3()[6], IndexError, "there are 6"),
        (lambda: ring3().sends_of(3), InputError, "rank 3 does not exist"),
        (lambda: ring3().expand(limit=5), InputError, "found 6 transfers"),
        # A broadcast does not look the same from every rank.
        (lambda: ring3("broadcast"), InputError, "expected one of allgather"),
    ],
    ids=["transfers are 0 to 5", "ranks are 0 to 2", "too much is not expanded", "another collective"],
)
def test_what_is_not_there_is_refused(ask, error, message):
    """The error for an unknown transfer, rank or collective says which exist."""
    with pytest.raises(error, match=message):
        ask()


def test_a_slice_is_columns():
    """A slice gives columns: transfers 1 and 2 of row 0."""
    block = ring3()[1:3]
    assert (block.chunk.tolist(), block.src.tolist(), block.dst.tolist()) == ([1, 2], [1, 2], [2, 0])
    assert (block.end - block.start == ring3().ticks.latency[0]).all()


def test_blocks_are_all_transfers():
    """Blocks of four contain all six transfers: four and two."""
    assert [len(block.chunk) for block in ring3().blocks(4)] == [4, 2]


def test_what_one_rank_sends_and_receives():
    """A rank's sends and receives are listed.

    On this ring of three, rank 1 sends chunk 1 in both directions, and receives chunks 0 and 2.
    """
    sends, receives = ring3().sends_of(1), ring3().receives_of(1)
    assert (sends.chunk.tolist(), sends.src.tolist(), sends.dst.tolist()) == ([1, 1], [1, 1], [2, 0])
    assert (sorted(receives.chunk.tolist()), receives.dst.tolist()) == ([0, 2], [1, 1])


@pytest.mark.parametrize("collective", ["allgather", "reduce-scatter", "allreduce", "alltoall"])
def test_what_ranks_send_is_all_there_is(collective):
    """The sends of all ranks together are all transfers."""
    shape = translations_of_fabric(parse_named("torus:3x4", **COSTS))
    schedule = translate(shape, collective, chunk_bytes=1000, chunks_per_rank=2)
    whole = sorted(zip(*(column.tolist() for column in schedule[:]), strict=True))
    for view in (schedule.sends_of, schedule.receives_of):
        parts = [zip(*(column.tolist() for column in view(rank)), strict=True) for rank in range(12)]
        assert sorted(row for part in parts for row in part) == whole


def test_transfers_start_in_order():
    """Iteration over an implicit schedule gives its transfers in order of start."""
    shape = translations_of_fabric(parse_named("torus:4x5", **COSTS))
    starts = [t.start_ticks for t in translate(shape, chunk_bytes=1000)]
    assert starts == sorted(starts)


@pytest.mark.slow
def test_many_ranks_are_iterated_lazily():
    """The first and middle of 10**10 transfers are read lazily."""
    schedule = translate(translations_of_fabric(parse_named("ring:100000", **COSTS)), chunk_bytes=1000)
    assert schedule.num_transfers == 99_999 * 10**5
    assert [t.src for t in islice(schedule, 3)] == [0, 1, 2]
    middle = schedule[5 * 10**9 + 7]
    assert (middle.dst - middle.src) % 10**5 in (1, 10**5 - 1)


def test_expansion_is_the_same_schedule():
    """The expanded schedule has the same transfers and finish, and is valid."""
    schedule = ring3()
    expanded = schedule.expand()
    assert (expanded.num_transfers, expanded.finish, expanded.algbw_gb_per_s) == (6, 2, pytest.approx(1.5))
    assert expanded.busbw_gb_per_s == pytest.approx(schedule.busbw_gb_per_s)
    assert verify(expanded).ok


def test_fine_costs_are_those_of_the_problem():
    """An implicit schedule has the tick grid of the expanded problem, even if that grid is fine.

    Bandwidths of 23, 29, 31 and 37 GB/s need 2 * 23 * 29 * 31 * 37 ticks per us, 1.5 million.
    """
    fabric = multidim("ring4@23,ring3@29,ring2@31,ring2@37")
    expanded = synthesize_implicit(fabric, chunk_size="1MB").schedule.expand()
    assert expanded.problem.costs.ticks_per_us == 2 * 23 * 29 * 31 * 37
    assert verify(expanded).ok


def test_digest_knows_the_pattern_the_costs_and_the_collective():
    """Equal schedules have equal digests; any change gives another."""
    first = ring3()
    assert first == ring3() and hash(first) == hash(ring3())
    assert first != ring3("reduce-scatter")
    later = first.pattern._replace(start=first.pattern.start + 1)
    assert first != ImplicitSchedule(first.translations, "allgather", 1, 1000, later)
    dearer = translations_of_fabric(parse_named("ring:3", alpha_us=2, bandwidth_gb_per_s=1))
    assert first != ImplicitSchedule(dearer, "allgather", 1, 1000, first.pattern)


def test_the_summary_is_json():
    """The summary is JSON with fabric, collective, counts and times."""
    found = json.loads(json.dumps(ring3().summary()))
    assert found["topology"]["name"] == "ring:3"
    assert (found["num_transfers"], found["finish_us"], found["digest"]) == (6, 2.0, ring3().digest())


def test_repr_is_one_line():
    """The repr of an implicit schedule is one line with collective, fabric, size and finish."""
    assert repr(ring3()) == (
        "ImplicitSchedule(allgather on ring:3: 6 transfers as 2 rows under 3 translations, finish 2 us)"
    )


def test_columns_of_different_lengths_are_refused():
    """A pattern whose columns differ in length is refused."""
    with pytest.raises(InputError, match="one value per row"):
        Pattern.sorted([0], [0, 0], [1], [0], [0], [False])


def test_rows_are_put_in_order_of_start():
    """Rows are sorted by start, and columns are read-only."""
    pattern = Pattern.sorted([0, 1], [0, 0], [1, 2], [0, 1], [5, 3], [False, True])
    assert (pattern.item.tolist(), pattern.reduce.tolist()) == ([1, 0], [True, False])
    with pytest.raises(ValueError, match="read-only"):
        pattern.start[0] = 9


@pytest.mark.parametrize("size", [1, 1000, 12345, 10**6])
def test_ticks_are_those_of_the_problem(size):
    """The expanded schedule has the same tick grid."""
    fabric = parse_named("torus:2x3", bandwidth_gb_per_s=[75, 50], alpha_us="0.7")
    problem = make_problem(fabric.to_topology(), collectives.allgather(6), chunk_bytes=size)
    ticks = ticks_of(translations_of_fabric(fabric).classes, size)
    assert ticks.ticks_per_us == problem.costs.ticks_per_us
    durations = {problem.costs.duration(e, 1) for e in range(len(problem.topology.links))}
    assert set(ticks.latency.tolist()) == durations


def test_absurd_costs_are_refused():
    """A send of more than 2**31 ticks is refused."""
    with pytest.raises(TopologyError, match="smaller costs"):
        ticks_of(translations_of_fabric(parse_named("ring:3", alpha_us="1e99")).classes, 1000)


def test_pipelined_links_are_free_before_a_send_ends():
    """A pipelined link is held for 1 us of the send's 2 us."""
    classes = translations_of_fabric(parse_named("ring:3", alpha_meaning="pipelined", **COSTS)).classes
    ticks = ticks_of(classes, 1000)
    assert ticks.holds[0] == ((0, ticks.ticks_per_us, 0),)
    assert np.array_equal(ticks.latency, [2 * ticks.ticks_per_us] * 2)
