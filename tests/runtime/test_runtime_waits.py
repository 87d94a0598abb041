"""Which of many waiting steps come first: those at fault."""

from __future__ import annotations

from taccl.program.program import StepAddress
from taccl.runtime.report import Wait
from taccl.runtime.waits import cause_first
from tests.runtime.small_programs import program_for


def waiting(rank: int, threadblock: int, peer: int | None, **fields: object) -> Wait:
    """A threadblock that waits for a chunk of another rank, or for a step of its own."""
    channel = None if peer is None else 0
    return Wait(
        StepAddress(rank, threadblock, 0), "receive", "a chunk", peer, channel, peer is not None, **fields
    )


def receiver(program, rank: int, peer: int) -> int:
    """The threadblock of a rank that receives from another."""
    return next(t for t, block in enumerate(program.ranks[rank].threadblocks) if block.receive_from == peer)


def sender(program, rank: int, peer: int) -> int:
    """The threadblock of a rank that sends to another."""
    return next(t for t, block in enumerate(program.ranks[rank].threadblocks) if block.send_to == peer)


def test_in_vain_first():
    """Rank 2 waits for rank 1, which waits for rank 0, which is done."""
    program = program_for("allgather")
    first = waiting(2, receiver(program, 2, 1), 1)
    relay = waiting(1, sender(program, 1, 2), None, depends_on=StepAddress(1, receiver(program, 1, 0), 0))
    cause = waiting(1, receiver(program, 1, 0), 0)
    ordered, num_in_cycle = cause_first(program, [first, relay, cause])
    assert num_in_cycle == 0
    assert [each.address for each in ordered] == [cause.address, first.address, relay.address]
    assert ordered[0].reason == "a chunk, but rank 0 has nothing more to do there"


def test_cycle_first():
    """Rank 1's sender waits for its receiver, that for rank 0's sender, and so on around; rank 3 waits, too."""
    program = program_for("allgather")
    ring = []
    for rank, before in ((0, 1), (1, 0)):
        got = receiver(program, rank, before)
        ring += [
            waiting(rank, got, before),
            waiting(rank, sender(program, rank, before), None, depends_on=StepAddress(rank, got, 0)),
        ]
    outside = waiting(3, receiver(program, 3, 0), 0)
    also = waiting(0, sender(program, 0, 3), None, depends_on=StepAddress(0, receiver(program, 0, 1), 0))
    ordered, num_in_cycle = cause_first(program, [outside, also, *ring])
    assert num_in_cycle == 4
    assert {each.address for each in ordered[:4]} == {each.address for each in ring}
    assert len(ordered) == 6
