"""Programs as values."""

import dataclasses
import json

import pytest

from taccl.errors import InputError
from taccl.problem.collectives import allgather
from taccl.program.program import Program, RankProgram, Slot, Step, StepAddress
from tests.program.examples import program_of


def test_a_program_is_what_its_dictionary_says():
    """A program survives a round trip through its dictionary and JSON."""
    program = program_of("scan", "ring:3", in_place=True, protocol="LL")
    assert Program.from_dict(json.loads(json.dumps(program.to_dict()))) == program


def test_a_program_states_its_resources():
    """An allgather on two ranks has a send, a receive and a copy per rank, in a threadblock each."""
    program = program_of("allgather", "ring:2")
    assert repr(program) == (
        "Program('allgather on ring:2', out of place: 2 ranks, 6 steps, of them 2 within ranks, at most "
        "3 threadblocks and 0 chunks of scratch per rank, 1 channel, Simple)"
    )


def test_a_program_cannot_be_changed():
    """Programs are immutable."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        program_of("allgather", "ring:2").name = "other"


def test_steps_have_addresses():
    """`steps` yields addresses (rank, threadblock, step) with their steps."""
    address, step = next(iter(program_of("allgather", "ring:2").steps()))
    assert address == StepAddress(0, 0, 0)
    assert str(address) == "(rank 0, threadblock 0, step 0)"
    assert str(Step("copy", Slot("input", 0), Slot("output", 1), 2)) == "copy input[0] -> output[1] x2"
    assert str(step) == "copy input[0] -> output[0]" or step.operation == "send"


@pytest.mark.parametrize(
    ("arguments", "where"), [({"protocol": "ll"}, "protocol"), ({"collective": allgather(3)}, "program")]
)
def test_what_does_not_fit_is_named(arguments, where):
    """An unknown protocol, or a collective for another number of ranks, is refused; the error names the
    argument."""
    with pytest.raises(InputError) as caught:
        Program("x", (RankProgram(1, 1, 0, ()),), **arguments)
    assert caught.value.where == where
