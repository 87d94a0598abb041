"""Round trips of every format with a reader and a writer."""

import tempfile
import warnings
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import taccl
from taccl.errors import ExportError, InputError, TacclWarning
from taccl.formats.detection import format_of_content
from taccl.formats.mscclpp.executor import run_plan
from taccl.formats.mscclpp.plan import build_mscclpp_plan
from taccl.formats.registry import read, write
from taccl.formats.table import FORMATS
from taccl.program.interpret import interpret
from taccl.program.lower import lower
from tests.fuzzing import some
from tests.program.examples import schedule_of as schedule

SCHEDULES = st.tuples(
    st.sampled_from(["allgather", "alltoall", "allreduce", "reduce-scatter", "broadcast"]),
    st.sampled_from(["ring:3", "fully-connected:4", "mesh:2x3", "dgx1"]),
    st.integers(1, 3),
)
BOTH_WAYS = [each.name for each in FORMATS if each.load and each.dump]


def there_and_back(thing, kind, **options):
    """(content of the file, content of the file written again after reading, object that was read)."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", TacclWarning)
        first, second = Path(folder, "first"), Path(folder, "second")
        write(thing, first, format=kind, **options)
        assert format_of_content(first).name == kind
        again = read(first)
        write(again, second, format=kind)
        return first.read_text(), second.read_text(), again


def test_every_format_is_here():
    """Every format with a reader and a writer has a round-trip test here."""
    own = {"taccl-schedule", "taccl-topology", "taccl-topology-json", "taccl-problem"}
    assert set(BOTH_WAYS) == own | {"upstream-algorithm", "msccl-xml"}


@pytest.mark.parametrize(
    ("kind", "name"), [("taccl-topology-json", "topology"), ("taccl-problem", "problem")]
)
def test_topologies_and_problems_come_back(kind, name):
    """A topology or problem read from its file is equal, and is written as the same bytes again."""
    problem = schedule("alltoall", "mesh:2x3", chunks_per_rank=2).problem
    before = problem if name == "problem" else problem.topology
    first, second, again = there_and_back(before, kind)
    assert first == second
    assert again == before


@pytest.mark.slow
@settings(max_examples=some(2, 15), deadline=None)
@given(SCHEDULES)
def test_schedules_come_back(which):
    """A schedule read from its file has the same digest, and is written as the same bytes again."""
    name, topology, chunks = which
    before = schedule(name, topology, chunks_per_rank=chunks)
    first, second, again = there_and_back(before, "taccl-schedule")
    assert first == second
    assert again.digest() == before.digest()


@pytest.mark.slow
@settings(max_examples=some(4, 10), deadline=None)
@given(SCHEDULES)
@example(("allreduce", "dgx1", 1))
def test_upstream_algorithms_come_back(which):
    """A schedule read from the published tool's format has the same number of transfers, and verifies.

    The format refuses named contributions, which the fastest baseline may use.
    """
    name, topology, chunks = which
    before = schedule(name, topology, chunks_per_rank=chunks)
    if before.carries is not None:
        with pytest.raises(ExportError, match="names its contributions"):
            there_and_back(before, "upstream-algorithm")
        return
    _, _, again = there_and_back(before, "upstream-algorithm")
    assert len(list(again)) == len(list(before))
    assert taccl.verify(again).ok


@pytest.mark.slow
@settings(max_examples=some(2, 15), deadline=None)
@given(SCHEDULES, st.sampled_from(["Simple", "LL", "LL128"]), st.booleans(), st.integers(1, 2))
def test_programs_come_back(which, protocol, in_place, instances):
    """A program read from MSCCL XML runs correctly, and is written as the same file but for its first line."""
    name, topology, chunks = which
    program = lower(
        schedule(name, topology, chunks_per_rank=chunks),
        protocol=protocol, in_place=in_place, instances=instances, threadblocks="relay",
    )  # fmt: skip
    first, second, again = there_and_back(program, "msccl-xml", name="again")
    assert first.splitlines()[1:] == second.splitlines()[1:]
    assert again.protocol == protocol
    assert interpret(again).ok


@pytest.mark.slow
@settings(max_examples=some(5, 15), deadline=None)
@given(
    SCHEDULES,
    st.fixed_dictionaries(
        {
            "in_place": st.booleans(),
            "threadblocks": st.sampled_from(["per-direction", "per-peer", "relay"]),
            "channels": st.sampled_from(["single", "round-robin"]),
            "num_channels": st.integers(1, 2),
            "merged": st.sampled_from(["split", "pack"]),
        }
    ),
    st.integers(1, 8),
)
def test_plans_run_right(which, options, ranks_per_node):
    """MSCCL++ plans, which are not read back, run correctly on any number of equal nodes; others are refused."""
    name, topology, chunks = which
    program = lower(schedule(name, topology, chunks_per_rank=chunks), **options)
    if program.num_ranks > ranks_per_node and program.num_ranks % ranks_per_node:
        with pytest.raises(InputError, match="expected a divisor of their number"):
            build_mscclpp_plan(program, ranks_per_node=ranks_per_node, split=True)
    else:
        assert run_plan(build_mscclpp_plan(program, ranks_per_node=ranks_per_node, split=True))


@pytest.mark.slow
@settings(max_examples=some(4, 10), deadline=None)
@given(st.sampled_from(["ring:3", "mesh:2x3", "torus:3x3", "star:4", "ndv2", "dgx1"]), st.integers(1, 2))
def test_topologies_come_back(name, nodes):
    """A topology read from a TOML file has the same nodes, links and costs."""
    if name in ("ndv2", "dgx1"):
        before = taccl.topologies.parse(name, nodes=nodes)
    else:
        before = taccl.topologies.parse(name)
    _, _, again = there_and_back(before, "taccl-topology")
    assert again.node_of_rank == before.node_of_rank
    assert again.links == before.links
    assert len(again.resources) == len(before.resources)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["allgather", "alltoall", "reduce-scatter", "allreduce"])
@pytest.mark.parametrize("in_place", [False, True])
def test_what_xml_says_of_itself(name, in_place):
    """Collective, placement, protocol, sizes and instances are stored in the XML file, and read from it."""
    program = lower(schedule(name, "ring:3"), in_place=in_place, protocol="LL", instances=2)
    first, _, again = there_and_back(program, "msccl-xml", min_bytes=5, max_bytes=4096)
    head = first.splitlines()[0]
    for text in (
        f'coll="{name.replace("-", "_")}"', f'inplace="{int(in_place)}"', 'proto="LL"', 'minBytes="5"',
        'maxBytes="4096"', f'nchannels="{program.num_channels}"',
    ):  # fmt: skip
        assert text in head
    assert again.in_place == in_place
    # Out of place, separate steps copy a rank's own chunk to the output.
    if name == "allgather":
        assert (' type="cpy"' in first) == (not in_place)
