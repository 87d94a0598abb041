"""Allocation of scratch slots by liveness."""

from taccl.program.layout import FOREVER, START, Allocator, RankLayout, Value
from taccl.program.program import Slot


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
