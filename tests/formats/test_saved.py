"""Schedules, topologies, problems and sketches survive `taccl.save` and `taccl.load`."""

import json
import warnings
from dataclasses import replace
from fractions import Fraction

import pytest

import taccl
from taccl.errors import AssumptionWarning, ExportError, FormatError, InputError
from taccl.sketch.upstream import load_upstream_topology
from taccl.synthesis.proposers.large import schedule_large
from taccl.topologies import TopologyBuilder
from tests.effort import brief_synthesis
from tests.foreign import OURS, foreign_files


def _twins():
    """Parallel links of two kinds, one of which holds a port twice, in nodes with ranks out of order."""
    builder = TopologyBuilder("twins", [1, 0])
    first = builder.add_link(0, 1, alpha_us=Fraction(1, 3), beta_us_per_mb=1, name="a")
    builder.add_link(0, 1, alpha_us=0, beta_us_per_mb=1, name="a")
    port = builder.add_resource("port")
    for _ in range(2):
        builder.add_hold(first, port, alpha_us=0, beta_us_per_mb=1)
    return builder.build(notes=["a note"], assumed=["a guess"])


def _matrix():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AssumptionWarning)
        return taccl.topologies.load(OURS / "nvidia-smi" / "square.txt", nodes=2, nic_gb_per_s=10)


TOPOLOGIES = {
    "twins": _twins,
    "reversed": lambda: taccl.topologies.ndv2(1).reversed(),
    "protocol": lambda: taccl.topologies.dgx_h100(1, protocol="ll128"),
    "slower": lambda: taccl.topologies.ring(4).degraded({(0, 1): Fraction(1, 7)}),
    "rack": lambda: taccl.topologies.rack(4),
    "adding switch": lambda: taccl.topologies.in_network(4),
    "import": _matrix,
    "published": lambda: load_upstream_topology(next((OURS / "upstream-taccl" / "topo").glob("*.json"))),
}


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_every_topology_returns(name, tmp_path):
    """Links, resources, holds, notes and assumptions are equal, including those that TOML cannot hold."""
    topology = TOPOLOGIES[name]()
    path = tmp_path / "t.json"
    taccl.save(topology, path)
    for found in (taccl.load(path), taccl.topologies.load(path)):
        assert found == topology
        assert (found.notes, found.assumed) == (topology.notes, topology.assumed)


def test_topology_is_toml_by_its_ending(tmp_path):
    """With the ending .toml a topology is saved as TOML; if TOML cannot hold it, the message names JSON."""
    path = tmp_path / "t.toml"
    taccl.save(_matrix(), path)
    assert taccl.load(path).links == _matrix().links
    with pytest.raises(ExportError, match=r"taccl\.save\(topology, 'topology\.json'\)"):
        taccl.save(_twins(), tmp_path / "twins.toml")


def test_problem_returns(tmp_path):
    """Topology, chunks, clauses, release dates, notes, and an open number of chunks are equal."""
    topology = taccl.topologies.ring(4)
    collective = taccl.collectives.allgather(4)
    problem = taccl.make_problem(topology, collective, chunk_bytes=1000, notes=["padded"])
    problem = replace(problem, release_us=((0, 0, Fraction(1, 3)),))
    for number, each in enumerate((problem, taccl.make_problem(_matrix(), "allreduce", size_bytes=10**6))):
        path = tmp_path / f"{number}.json"
        taccl.save(each, path)
        found = taccl.load(path)
        assert found == each
        assert (found.notes, found.chunks_open) == (each.notes, each.chunks_open)
        assert found.topology.assumed == each.topology.assumed


@pytest.mark.parametrize("ending", ["json", "toml"])
@pytest.mark.parametrize("name", ["", *taccl.shipped_sketches()])
def test_every_sketch_returns(name, ending, tmp_path):
    """Every sketch survives as JSON and TOML, even one that states only a machine, and `load_sketch` reads it."""
    sketch = taccl.load_sketch(name) if name else taccl.Sketch(schema=1, machine="ndv2")
    path = tmp_path / f"sketch.{ending}"
    taccl.save(sketch, path)
    assert taccl.load(path) == sketch == taccl.load_sketch(path)


@pytest.mark.slow
def test_schedule_returns(tmp_path):
    """A result is saved as its schedule."""
    result = taccl.synthesize(
        taccl.make_problem(taccl.topologies.ring(3), "allgather", size_bytes=3000), backend="greedy"
    )
    taccl.save(result, tmp_path / "s.json")
    assert taccl.load(tmp_path / "s.json") == result.schedule


def test_narrow_and_implicit_schedules_are_saved(tmp_path):
    """Compact schedules, implicit schedules and results of these are read back with all transfers listed."""
    result = taccl.synthesize_implicit("ring:4")
    listed = result.schedule.expand()
    sends = sorted(zip(listed.chunk, listed.link, listed.start, strict=True))
    narrow = taccl.Schedule(listed.problem, listed.chunk, listed.link, listed.start, producer="by hand")
    for number, thing in enumerate((narrow, result.schedule, result)):
        path = tmp_path / f"{number}.json"
        taccl.save(thing, path)
        found = taccl.load(path)
        assert sorted(zip(found.chunk, found.link, found.start, strict=True)) == sends


@pytest.fixture(scope="module")
def savable():
    """{name: object that `taccl.save` refuses, as another function saves it}."""
    topology = taccl.topologies.ring(2)
    workload = taccl.Workload("w", 2).input("x", (4,), layout="sliced(0)").then("g", "allgather", "x")
    schedule = taccl.baselines.best(taccl.make_problem(topology, "allgather", size_bytes=2000))
    return {
        "program": taccl.lower(schedule),
        "step": taccl.workload.schedule_workload(workload, topology),
        "workload": workload,
    }


@pytest.mark.parametrize("name", ["program", "step", "workload"])
def test_other_objects_are_refused_with_the_call_that_saves_them(name, savable, tmp_path, monkeypatch):
    """The error for an object of another kind names the call that saves it; a step is refused, not saved as
    its sends alone."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as refused:
        taccl.save(savable[name], "x.json")
    found, _, call = refused.value.message.partition("; ")
    assert found == f"found a {name}"
    eval(call.removesuffix(" saves it"), {"taccl": taccl, **savable})
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("path", foreign_files("upstream-taccl/topo/*.json"))
def test_published_topologies_are_read_as_the_command_line_reads_them(path):
    """`taccl.topologies.load` and `taccl.load` read topology files of the published tool, with one node."""
    assert taccl.topologies.load(path) == taccl.load(path) == load_upstream_topology(path)
    assert taccl.topologies.load(path, nodes=1) == load_upstream_topology(path)


def test_other_files_are_loaded_as_what_they_hold(tmp_path):
    """A program, a machine by name, and another tool's matrix are loaded."""
    assert isinstance(taccl.load(OURS / "msccl-xml" / "allgather-4-direct.xml"), taccl.Program)
    (tmp_path / "m.toml").write_text('schema = 1\nmachine = "ndv2"\n')
    assert taccl.load(tmp_path / "m.toml").machine == "ndv2"
    assert taccl.load(OURS / "nvidia-smi" / "square.txt").num_ranks == 4


def test_text_of_no_kind_is_refused(tmp_path):
    """The error for text of no known kind lists the formats that are read."""
    (tmp_path / "x.txt").write_text("hello\n")
    with pytest.raises(FormatError, match="expected one of"):
        taccl.load(tmp_path / "x.txt")


@pytest.mark.parametrize(
    "change", [{"version": 9}, {"topology": {}}, {"topology": 3}, {"notes": None}], ids=str
)
def test_changed_topology_is_refused(change, tmp_path):
    """An unknown version, and a missing or ill-typed field, are refused with the file's name."""
    path = tmp_path / "t.json"
    taccl.save(taccl.topologies.ring(3), path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(FormatError, match=r"t\.json"):
        taccl.load(path)


def test_wrong_arguments_of_save_are_named(tmp_path):
    """An `extra` without a schedule, a problem as TOML, and an object of another kind are refused."""
    ring = taccl.topologies.ring(3)
    with pytest.raises(InputError, match="extra without a schedule"):
        taccl.save(ring, tmp_path / "t.json", extra={})
    problem = taccl.make_problem(ring, "allgather", size_bytes=3000)
    with pytest.raises(InputError, match="saved as JSON"):
        taccl.save(problem, tmp_path / "p.toml")
    with pytest.raises(InputError, match="a schedule, a result, a topology, a problem or a sketch"):
        taccl.save({}, tmp_path / "x.json")


def test_save_names_what_writes_other_objects(tmp_path):
    """For a program the message names taccl.write; a schedule's JSON may not have another format's ending."""
    schedule = taccl.baselines.ring(
        taccl.make_problem(taccl.topologies.ring(3), "allgather", size_bytes=3000)
    )
    with pytest.raises(InputError, match=r"found a program; taccl\.write\(.* saves it"):
        taccl.save(taccl.lower(schedule), tmp_path / "x.json")
    with pytest.raises(InputError, match=r"ends in \.json \(taccl\.write writes \.xml\)"):
        taccl.save(schedule, tmp_path / "x.xml")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_large_schedules_are_saved_transfer_by_transfer(tmp_path):
    """Compact and implicit schedules, and results of the latter, are saved with all transfers listed."""
    problem = taccl.make_problem(taccl.topologies.torus(3, 3), "allgather", size_bytes=9000)
    implicit = taccl.synthesize_implicit("torus:3x3", "allgather", chunk_size=1000)
    for each in (schedule_large(problem, num_runs=1), implicit, implicit.schedule):
        path = tmp_path / f"{type(each).__name__}.json"
        taccl.save(each, path)
        assert taccl.verify(taccl.load(path)).ok


@pytest.mark.slow
def test_a_saved_result_shows_the_gap_that_it_printed(tmp_path):
    """A result saved with open chunks keeps its bound over all chunkings; a schedule states its chunks."""
    topology = taccl.topologies.fully_connected(3)
    result = brief_synthesis(taccl.make_problem(topology, "allgather", size_bytes="8MB"))
    saved = {}
    for name, each in (("result", result), ("schedule", result.schedule)):
        taccl.save(each, tmp_path / f"{name}.json")
        saved[name] = json.loads((tmp_path / f"{name}.json").read_text())["result"]
    assert (saved["result"]["bound_scope"], saved["result"]["gap"]) == ("all chunkings", result.gap)
    assert saved["schedule"]["standing"] == "optimal for 1 chunk per rank"
    assert saved["schedule"]["gap_over_all_chunkings"] == pytest.approx(result.gap)
