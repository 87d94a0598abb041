"""A threadblock with too many steps is split into several that run one after the other."""

from dataclasses import replace

import pytest

from taccl.errors import ExportError, InputError
from taccl.formats.msccl.xml import dump_msccl_xml, parse_msccl_xml
from taccl.program.interpret import interpret
from taccl.program.program import Program, RankProgram, Slot, Step, Threadblock
from taccl.program.split import split_threadblocks, weight
from taccl.runtimes.table import RUNTIMES
from tests.program.examples import program_of


@pytest.mark.parametrize("max_steps", [4, 7, 20])
@pytest.mark.parametrize("threadblocks", ["per-direction", "per-peer"])
@pytest.mark.parametrize("name", ["allgather", "alltoall", "allreduce"])
def test_pieces_are_short_and_run_right(name, threadblocks, max_steps):
    """Pieces are short enough, run correctly with room for one chunk, and keep all steps."""
    program = program_of(name, "ring:5", chunks_per_rank=3, threadblocks=threadblocks)
    pieces = split_threadblocks(program, max_steps=max_steps)
    interpretation = interpret(pieces, capacity=1)
    assert interpretation.ok, interpretation
    assert interpretation.outputs_checked
    assert pieces.num_steps == program.num_steps
    assert all(
        sum(map(weight, block.steps)) <= max_steps for rank in pieces.ranks for block in rank.threadblocks
    )


def test_short_threadblocks_stay_as_they_are():
    """A program of short threadblocks is returned unchanged."""
    program = program_of("allgather", "ring:4")
    assert split_threadblocks(program, max_steps=100) is program


def test_only_long_threadblocks_are_cut():
    """If two channels carry 6 chunks and 1, only the threadblocks of the first channel are cut in two."""

    def rank(peer):
        send = tuple(Step("send", Slot("input", i)) for i in range(6))
        receive = tuple(Step("receive", None, Slot("output", i)) for i in range(6))
        return RankProgram(
            7, 7, 0,
            (
                Threadblock(send, send_to=peer), Threadblock(receive, receive_from=peer),
                Threadblock((Step("send", Slot("input", 6)),), send_to=peer, channel=1),
                Threadblock((Step("receive", None, Slot("output", 6)),), receive_from=peer, channel=1),
            ),
        )  # fmt: skip

    pieces = split_threadblocks(Program("x", (rank(1), rank(0))), max_steps=4)
    assert interpret(pieces, capacity=1).ok
    # Pieces have at most 3 steps, as the limit of 4 includes one that waits for the piece before.
    lengths = sorted(len(block.steps) for block in pieces.ranks[0].threadblocks)
    assert lengths == [1, 1, 3, 3, 3, 3]
    assert sorted(block.channel for block in pieces.ranks[0].threadblocks) == [0, 0, 1, 1, 2, 2]


def test_the_next_piece_waits_for_the_one_before():
    """If the copies of one threadblock are split over several, added dependencies keep them in order."""
    copies = tuple(Step("copy", Slot("input", 0), Slot("output", 0)) for _ in range(5))
    program = Program("x", (RankProgram(1, 1, 0, (Threadblock(copies),)),))
    pieces = split_threadblocks(program, max_steps=3)
    blocks = pieces.ranks[0].threadblocks
    assert [len(block.steps) for block in blocks] == [2, 2, 1]
    assert [block.steps[0].depends for block in blocks] == [(), ((0, 1),), ((1, 1),)]
    assert interpret(pieces).ok


def test_a_threadblock_that_sends_before_it_receives_is_not_split():
    """A threadblock that sends all chunks before it receives is not split, as two such ranks wait for each
    other."""

    def rank(peer):
        sends = tuple(Step("send", Slot("input", i)) for i in range(4))
        receives = tuple(Step("receive", None, Slot("output", i)) for i in range(4))
        return RankProgram(4, 4, 0, (Threadblock(sends + receives, peer, peer),))

    with pytest.raises(InputError, match="2 steps wait for each other: .* waits for room"):
        split_threadblocks(Program("x", (rank(1), rank(0)), protocol="LL"), max_steps=5)


def test_xml_beyond_its_limit_is_split_if_asked_for():
    """300 copies exceed MSCCL XML's limit per threadblock; split in two they are written and read."""
    copies = tuple(Step("copy", Slot("input", 0), Slot("output", 0)) for _ in range(300))
    program = Program("x", (RankProgram(1, 1, 0, (Threadblock(copies),)),))
    again = parse_msccl_xml(dump_msccl_xml(program, split=True))
    assert [len(block.steps) for block in again.ranks[0].threadblocks] == [255, 45]
    assert interpret(replace(again, collective=None)).ok


def test_a_split_schedule_comes_back_from_xml(monkeypatch):
    """With a limit of 7 steps an alltoall is refused, or split, and then runs correctly from its file."""
    monkeypatch.setitem(RUNTIMES, "msccl", replace(RUNTIMES["msccl"], max_steps=7))
    program = program_of("alltoall", "ring:5", chunks_per_rank=3)
    with pytest.raises(ExportError, match="at most 7 steps .* leave split=False"):
        dump_msccl_xml(program, split=False)
    again = parse_msccl_xml(dump_msccl_xml(program, split=True))
    assert again.num_channels > program.num_channels
    assert interpret(again).ok
