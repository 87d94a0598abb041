"""Matching of sends with receives, and execution orders."""

from dataclasses import replace

import pytest

from taccl.errors import InputError
from taccl.program.checks import Parcel, check_steps, match
from taccl.program.columns import columns_of
from taccl.program.execution import running_order
from taccl.program.program import Program, Queue, RankProgram, Slot, Step, StepAddress, Threadblock
from tests.program.examples import program_of, with_steps


def pair(sends, receives):
    """A program in which rank 0 sends to rank 1.

    `sends` and `receives` are the numbers of chunks of rank 0's and rank 1's steps.
    """
    give = tuple(Step("send", Slot("input", 0), None, count) for count in sends)
    take = tuple(Step("receive", None, Slot("output", 0), count) for count in receives)
    return Program(
        "x",
        (
            RankProgram(9, 9, 0, (Threadblock(give, send_to=1),)),
            RankProgram(9, 9, 0, (Threadblock(take, receive_from=0),)),
        ),
    )


def test_steps_of_one_length_are_one_parcel():
    """Equal counts at both ends match: sends of 2 and 1, received in 2 and 1."""
    queue = Queue(0, 1, 0)
    assert match(pair((2, 1), (2, 1))) == (
        Parcel(queue, StepAddress(0, 0, 0), StepAddress(1, 0, 0), 2),
        Parcel(queue, StepAddress(0, 0, 1), StepAddress(1, 0, 1), 1),
    )


def test_what_cannot_run_is_refused():
    """Sends and receives of different lengths or total counts are refused, and so are steps past a buffer."""
    with pytest.raises(InputError, match="step 0.* sends 2 chunks at once, of which .* receives 1 at once"):
        match(pair((2, 1), (1, 2)))
    with pytest.raises(InputError, match="2 chunks are sent and 1 received"):
        match(pair((2,), (1,)))
    with pytest.raises(InputError, match="taccl.interpret"):
        match(pair((20,), (20,)))


@pytest.mark.parametrize("options", [{}, {"capacity": 1}], ids=["any", "one"])
def test_every_step_comes_after_what_it_waits_for(options):
    """In the order, sends precede their receives, and steps follow their dependencies."""
    program = program_of("allreduce", "mesh:2x3", chunks_per_rank=2)
    parcels = match(program)
    place = {address: i for i, address in enumerate(running_order(program, **options))}
    assert len(place) == program.num_steps
    for parcel in parcels:
        assert place[parcel.send] < place[parcel.receive]
    for address, step in program.steps():
        for t, s in step.depends:
            assert place[StepAddress(address.rank, t, s)] < place[address]


def test_with_little_room_a_send_comes_after_the_receive_before():
    """In a queue with room for one chunk, the second send follows the first receive."""
    program = pair((1, 1), (1, 1))
    order = running_order(program, capacity=1)
    assert order.index(StepAddress(1, 0, 0)) < order.index(StepAddress(0, 0, 1))


def test_a_deadlock_has_no_order():
    """A send that depends on a step behind its own receive is a deadlock, without an order."""
    program = program_of("allgather", "ring:2", in_place=True)
    block = next(t for t, tb in enumerate(program.ranks[0].threadblocks) if tb.send_to == 1)
    other = 1 - block
    (send,) = program.ranks[0].threadblocks[block].steps
    program = with_steps(program, 0, block, (replace(send, depends=((other, 0),)),))
    (send,) = program.ranks[1].threadblocks[block].steps
    program = with_steps(program, 1, block, (replace(send, depends=((other, 0),)),))
    with pytest.raises(InputError, match="wait for each other"):
        running_order(program)


def test_numbers_beyond_64_bits_are_faults_and_no_overflow():
    """A slot and a count that no column of 64 bits holds are reported with their numbers."""
    far = Step("copy", Slot("input", 2**70), Slot("output", -(2**70)), 1)
    many = Step("copy", Slot("input", 0), Slot("output", 0), 2**70)
    program = Program("far", (RankProgram(9, 9, 0, (Threadblock((far, many)),)),))
    texts = [fault.message for fault in check_steps(program)]
    assert [str(2**70) in texts[0], str(-(2**70)) in texts[1], str(2**70 - 1) in texts[2]] == [True] * 3


def test_a_dependency_on_another_rank_or_past_the_end_is_no_step():
    """Dependencies count steps of the own rank only, so the last step's successor is no step."""
    copy = Step("copy", Slot("input", 0), Slot("output", 0))
    ranks = (
        RankProgram(1, 1, 0, (Threadblock((copy, replace(copy, depends=((0, 0), (0, 2), (1, 0))))),)),
        RankProgram(1, 1, 0, (Threadblock((copy,)), Threadblock((copy,)))),
    )
    steps = columns_of(Program("needs", ranks))
    assert steps.needs_of() == [[], [0, -1, -1], [], []]
    assert steps.addresses([1, 3]) == [StepAddress(0, 0, 1), StepAddress(1, 1, 0)]
