"""Steps exported to other tools: programs with marks (the tiles that sends wait for), and traces with
computation."""

import warnings

import pytest

import taccl
from taccl.errors import WorkloadError
from taccl.formats.msccl.xml import dump_msccl_xml, load_msccl_xml
from taccl.program.program import Program
from taccl.workload import lower_step, overlap, save_traces, schedule_workload
from tests.formats.astra.test_chakra import _decoded as decoded
from tests.workload.test_replay import RANKS, RATES, block


@pytest.fixture(scope="module")
def step():
    """A product in four tiles, and its allreduce."""
    return schedule_workload(overlap(block(), ["y", "sum"], tiles=4), RANKS, rates=RATES)


@pytest.mark.slow
def test_marks_name_the_tiles_that_are_waited_for(step):
    """Sends for a tile of the sum wait for the mark of the product's tile; the sum's tile sets a mark of its
    own."""
    program = lower_step(step, "sum")
    assert taccl.interpret(program).ok
    assert {mark for _, each in program.steps() for mark in each.needs} == {f"y.{i}" for i in range(4)}
    assert {mark for _, each in program.steps() for mark in each.gives} == {f"sum.{i}" for i in range(4)}
    for address, each in program.steps():
        if each.src is not None and each.src.buffer == "input" and each.operation == "send":
            # The sum has 4 tiles of 4 chunks each, in order.
            assert each.needs == (f"y.{each.src.offset // 4}",), address


def test_marks_are_kept_in_files(step, tmp_path):
    """Marks, the tiles that a step of a program waits for or completes, survive both file formats.

    These are dictionaries (`to_dict`) and MSCCL XML, where other readers ignore the marks' attributes.
    """
    program = lower_step(step, "sum")
    assert Program.from_dict(program.to_dict()) == program
    path = tmp_path / "sum.xml"
    path.write_text(dump_msccl_xml(program))
    again = load_msccl_xml(path)

    def marks(some):
        return [(each.needs, each.gives) for _, each in some.steps() if each.needs or each.gives]

    assert marks(again) == marks(program)
    assert len(marks(program)) > 16


@pytest.mark.filterwarnings("ignore::taccl.LossyConversionWarning")
def test_a_step_without_sends_has_traces(tmp_path):
    """A step of two kernels without sends has traces."""
    alone = taccl.Workload("alone", 4).then("a", "compute", shape=(4,), cost_us=3)
    alone = schedule_workload(alone.then("b", "compute", "a", shape=(4,), cost_us=4), RANKS)
    for path in save_traces(alone, tmp_path / "alone.et"):
        _, nodes = decoded(path.read_bytes())
        assert [node.duration_micros for node in nodes if node.name.startswith("tile ")] == [3, 4]


def test_what_is_no_collective_is_not_lowered(step):
    """The error for an operation that is not a collective lists the collectives."""
    with pytest.raises(WorkloadError, match="y: is not a collective of block; name one of sum"):
        lower_step(step, "y")


def test_traces_carry_what_is_computed(step, tmp_path):
    """Each rank's trace has all tiles as nodes with their times, in sequence, and sends that depend on them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", taccl.LossyConversionWarning)
        paths = save_traces(step, tmp_path / "step.et")
    for rank, path in enumerate(paths):
        _, nodes = decoded(path.read_bytes())
        by_id = {node.id: node for node in nodes}
        mine = [each for each in step.tiles if each.rank == rank]
        computed = [node for node in nodes if node.name.startswith("tile ")]
        assert len(computed) == len(mine)
        assert [node.duration_micros for node in computed] == [-(-(e.end_us - e.start_us) // 1) for e in mine]
        for one, two in zip(computed, computed[1:], strict=False):
            assert one.id in two.data_deps
        first = next(node for node in nodes if node.name.startswith("send"))
        assert any(by_id[each].name == "tile 0 of y" for each in first.data_deps)
        behind = next(node for node in computed if " of z" in node.name or " of out" in node.name)
        assert any(by_id[each].name.startswith(("add", "receive")) for each in behind.data_deps)
