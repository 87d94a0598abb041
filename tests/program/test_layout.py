"""Positions of chunks in the user's buffers, and allocation of scratch slots by liveness."""

import pytest

from taccl.problem.chunks import Chunk, Derivation
from taccl.problem.collective import Collective
from taccl.problem.collectives import (
    allgather,
    allreduce,
    alltoall,
    gather,
    make,
    reduce_scatter,
    scan,
    scatter,
)
from taccl.program.layout import FOREVER, START, Allocator, RankLayout, Value, layout
from taccl.program.program import Slot


def test_allgather_has_its_own_part_inside_the_output():
    """In an allgather each rank starts with its own chunks at their places in the output.

    Rank 1 of 3 starts with chunks 2 and 3, at slots 2 and 3.
    """
    where = layout(allgather(3, chunks_per_rank=2))[1]
    assert where.inputs == (2, 3)
    assert where.outputs == (0, 1, 2, 3, 4, 5)
    assert (where.input_offset, where.output_offset) == (2, 0)
    assert where.canonical(Slot("input", 1), in_place=True) == Slot("output", 3)
    assert where.canonical(Slot("input", 1), in_place=False) == Slot("input", 1)


def test_reduce_scatter_has_its_output_inside_the_input():
    """In a reduce-scatter, rank 2 of 3 has its output, chunk 2, inside its input, at slot 2."""
    where = layout(reduce_scatter(3))[2]
    assert (where.inputs, where.outputs, where.output_offset) == ((0, 1, 2), (2,), 2)
    assert where.canonical(Slot("output", 0), in_place=True) == Slot("input", 2)


def test_alltoall_orders_inputs_by_destination_and_outputs_by_source():
    """An alltoall orders inputs by destination and outputs by source: chunk 2 s + d goes from s to d."""
    first, second = layout(alltoall(2))
    assert (first.inputs, first.outputs) == ((0, 1), (0, 2))
    assert (second.inputs, second.outputs) == ((2, 3), (1, 3))
    assert (second.input_offset, second.output_offset) == (0, 0)


def test_roots_of_scatter_and_gather_have_their_part_inside():
    """Only the root of a scatter or gather has the large buffer, with its own part inside."""
    assert layout(scatter(3, root=1))[1].output_offset == 1
    assert layout(scatter(3, root=1))[0].inputs == ()
    assert layout(gather(3, root=1))[1].input_offset == 1


def test_scan_holds_contributions_and_prefixes():
    """Scan: slot p is piece p at every rank; chunk 3 p + r is piece p of the sum over ranks 0..r."""
    assert [where.inputs for where in layout(scan(3, chunks_per_rank=2))] == [(0, 3), (1, 4), (2, 5)]

    assert [where.outputs for where in layout(scan(3, chunks_per_rank=2))] == [(0, 3), (1, 4), (2, 5)]


def test_a_derived_chunk_is_an_output_wherever_it_ends():
    """A chunk is an output at its destinations, except at a rank that derives another chunk from it."""
    chunks = (Chunk((0,), (0, 1)), Chunk((), (0, 1, 2)))
    made = Collective("made", 3, chunks, True, derivations=(Derivation(0, 1, 1),))
    assert [where.inputs for where in layout(made)] == [(0,), (1,), ()]
    assert [where.outputs for where in layout(made)] == [(0, 1), (1,), (1,)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["allgather", "reduce-scatter", "allreduce", "alltoall"])
def test_parts_of_chunks_are_neighbours(name):
    """A collective whose chunks are split in two equals the collective with two chunks per rank, also in its
    layout."""
    split, made = make(name, 3).split(2), make(name, 3, chunks_per_rank=2)
    assert split.chunks == made.chunks
    assert layout(split) == layout(made)


def test_one_part_is_the_collective_itself():
    """`split(1)` returns the same collective."""
    collective = allreduce(2, chunks_per_rank=1)
    assert collective.split(1) is collective


def allocator():
    """Allocator of a rank without input whose output is chunk 0."""
    return Allocator(RankLayout((), (0,)), False)


def test_an_output_goes_where_it_must_be():
    """The final value of a chunk is placed in its output slot."""
    value = Value(0, born=5, final=True)
    allocator().place([value])
    assert value.slot == Slot("output", 0)


def test_slots_are_used_again():
    """Three relayed chunks, of which two are alive at once, need two slots."""
    each = allocator()
    values = [Value(1, 10, read_until=30), Value(2, 20, read_until=50), Value(3, 40, read_until=60)]
    for value in values:
        each.place([value])
    assert [value.place.offset for value in values] == [0, 1, 0]


def test_a_slot_is_free_only_after_its_last_read():
    """A slot read until the next arrival is not reused, as the send may still be running."""
    each = allocator()
    first, second = Value(1, 10, read_until=30), Value(2, 30, read_until=40)
    each.place([first])
    each.place([second])
    assert second.place == Slot("scratch", 1)


def test_what_arrives_together_is_kept_together():
    """Chunks that arrive together are kept in adjacent slots.

    Slot 0 is taken, so two such chunks start at slot 1.
    """
    each = allocator()
    for value in (Value(1, 10, read_until=99), Value(2, 10, read_until=15)):
        each.place([value])
    pair = [Value(3, 20, read_until=30), Value(4, 20, read_until=30)]
    each.place(pair)
    assert [value.place.offset for value in pair] == [1, 2]


def test_a_sum_stays_in_its_slot():
    """A sum reuses the slot of its operand, unless a send still reads the slot."""
    for read_until, expected in ((START, 0), (20, 1)):
        each = allocator()
        before = Value(1, 10, read_until=read_until, added_at=20)
        after = Value(1, 20, read_until=30, added_to=before)
        each.place([before])
        each.place([after])
        assert after.place.offset == expected


def test_an_output_is_never_overwritten():
    """A slot that holds an output is never reused."""
    assert not Value(0, 5, read_until=6, final=True).makes_room(Value(1, FOREVER - 1))
