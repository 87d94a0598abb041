"""Instances: parts of chunks over channels of their own."""

from __future__ import annotations

from taccl.program.interpret import interpret
from taccl.program.program import Slot
from taccl.program.replicate import replicate
from tests.program.examples import program_of


def test_one_instance_is_the_program():
    """Nothing to do."""
    program = program_of("allgather", "ring:2")
    assert replicate(program, 1) is program


def test_parts_are_neighbours_and_take_turns():
    """Of three instances the second sends slot 1 of three over channel 1."""
    program = replicate(program_of("allgather", "ring:2", in_place=True), 3)
    senders = [tb for tb in program.ranks[0].threadblocks if tb.send_to == 1]
    assert [(tb.channel, tb.steps[0].src) for tb in senders] == [
        (0, Slot("output", 0)), (1, Slot("output", 1)), (2, Slot("output", 2)),
    ]  # fmt: skip
    assert program.collective is not None
    assert program.collective.num_chunks == 6


def test_instances_of_instances():
    """Twice two are four, and all is still right."""
    program = replicate(replicate(program_of("allreduce", "ring:3"), 2), 2)
    assert program.num_channels == 4
    interpret(program, capacity=1).raise_if_failed()
