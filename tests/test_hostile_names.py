"""Names with any characters are shown escaped, and formats that are read back keep them."""

import csv
import dataclasses
import json
import warnings
from xml.dom import minidom

import pytest

import taccl
from taccl.analysis.simulation.steady import initiation_interval
from taccl.cli import main
from taccl.errors import ExportError, LossyConversionWarning
from taccl.formats.registry import read, write
from taccl.topology.builder import warn_of_assumptions
from tests.fuzzing import MANY

NAMES = {
    "escapes": "\x1b[31mred\x1b[0m\x07", "lines": "a\nb\r\nc\td", "direction": "\u202egnp.exe", "quotes": "\"quo'te\\",
    "markup": "</script><b>&amp;", "CDATA": "]]><!--", "null": "nul\0nul", "long": "n" * 10_000, "joined": "\U0001f469\u200d\U0001f680",
    "formula": "$\\frac$", "half": "\ud800", "delete": "\x7f\x85\u2028", "digest": "chunks", "spaces": "  ",
}  # fmt: skip
NAMES["all"] = "".join(each for each in NAMES.values() if len(each) < 100)


@pytest.fixture(params=NAMES, scope="module")
def name(request):
    """A hostile name."""
    return NAMES[request.param]


@pytest.fixture(scope="module")
def schedule(name):
    """A schedule whose topology, collective, sketch and notes have that name."""
    builder = taccl.topologies.TopologyBuilder(name, [0, 0, 1])
    for src, dst in ((0, 1), (1, 2), (2, 0)):
        builder.add_link(src, dst, alpha_us=1, beta_us_per_mb=10, name=name)
    builder.add_hold(0, builder.add_resource(name), alpha_us=1, beta_us_per_mb=10)
    builder.add_switch(name, [0, 1], [0])
    collective = dataclasses.replace(taccl.collectives.allgather(3), name=name)
    problem = taccl.make_problem(builder.build(notes=[name]), collective, chunk_bytes=1000, notes=(name,))
    found = taccl.baselines.baseline("ring", problem.with_clauses(name=name))
    return dataclasses.replace(found, producer=name)


def in_full_sight(text):
    """True if a terminal prints every character and interprets none."""
    return all(line.isprintable() for line in text.split("\n"))


def test_reprs(schedule, name):
    """No repr, text, table or error contains a control character or line break of a name."""
    problem = schedule.problem
    simulation = taccl.simulate(schedule)
    overlapping = taccl.verify(dataclasses.replace(schedule, start=schedule.start * 0, end=schedule.end * 0))
    program = taccl.lower(schedule)
    with pytest.raises(taccl.InputError) as caught:
        taccl.make_problem(problem.topology, taccl.collectives.allgather(4), chunk_bytes=1)
    bound = dataclasses.replace(taccl.lower_bound(problem), limits=name)
    on_a_line = (
        problem.topology, problem.collective, problem, schedule, simulation, initiation_interval(simulation.as_schedule()),
        bound, program, *overlapping.violations, *problem.topology.links, *problem.topology.resources, caught.value,
    )  # fmt: skip
    for each in on_a_line:
        assert repr(each).isprintable()
        assert str(each).isprintable()
    with pytest.warns(taccl.AssumptionWarning) as warned:
        warn_of_assumptions(name, ["a rate"])
    assert str(warned[0].message).isprintable()
    assert schedule.table().count("\n") == schedule.num_transfers
    for text in (repr(overlapping), schedule.table(), simulation.table(), taccl.interpret(program)):
        assert in_full_sight(str(text))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NAMES] if MANY else ["all", "long"], indirect=True, scope="module")
def test_pages_and_pictures(schedule, name):
    """HTML contains no control character or markup of a name; SVG can be parsed."""
    simulation = taccl.simulate(schedule)
    shown = [
        each._repr_html_() for each in (schedule, schedule.problem, schedule.problem.topology, simulation)
    ]
    if name == NAMES["all"]:
        shown.append(taccl.report(schedule, time_limit_s=1e-9))
    for page in shown:
        assert in_full_sight(page)
        assert "</script><b>" not in page
        page.encode()
    for picture in (taccl.plot.gantt(schedule), taccl.plot.topology(schedule.problem.topology)):
        minidom.parseString(taccl.plot.render(picture, "svg"))


def test_files_that_are_read_back(schedule, name, tmp_path):
    """Schedules, topologies and sketches keep their names in files; TOML refuses half a surrogate pair."""
    taccl.save(schedule, tmp_path / "schedule.json")
    again = taccl.load(tmp_path / "schedule.json")
    assert (again, again.producer, again.problem.notes) == (schedule, name, schedule.problem.notes)
    assert again.problem.topology == schedule.problem.topology
    topology, sketch = schedule.problem.topology, taccl.Sketch(name=name, description=name)
    if "\ud800" in name:
        with pytest.raises(ExportError, match="half of one"):
            write(topology, tmp_path / "topology.toml")
        with pytest.raises(ExportError, match="half of one"):
            sketch.to_toml()
        return
    write(topology, tmp_path / "topology.toml")
    loaded = taccl.topologies.load(tmp_path / "topology.toml")
    assert (loaded.name, loaded.links) == (topology.name, topology.links)
    assert {each.name for each in loaded.resources} == {each.name for each in topology.resources}
    assert taccl.Sketch.from_toml(sketch.to_toml()) == sketch
    assert in_full_sight(sketch.to_toml())


def test_files_of_other_tools(schedule, tmp_path):
    """Written CSV, XML and JSON can be parsed; names that they cannot hold are escaped."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LossyConversionWarning)
        for ending in (".csv", ".xml", ".trace.json", ".et"):
            write(schedule, tmp_path / f"file{ending}")
        write(schedule, tmp_path / "algorithm.json", format="upstream-algorithm")
    with open(tmp_path / "file.csv", newline="", encoding="utf-8") as file:
        assert len({len(row) for row in csv.reader(file)}) == 1
    json.loads((tmp_path / "file.trace.json").read_text())
    assert read(tmp_path / "file.xml").num_ranks == 3
    assert len(read(tmp_path / "algorithm.json")) == len(schedule)


def test_commands(schedule, name, tmp_path, capsys):
    """Neither output nor errors of commands contain control characters of a name or path."""
    path = tmp_path / f"{name[:20]}.json".replace("/", "").replace("\0", "").replace("\ud800", "\udcff")
    taccl.save(schedule, path)
    for verb in ("show", "verify", "simulate"):
        assert main([verb, str(path)]) == 0
        assert main([verb, f"{path}.json"]) == 2
        assert all(in_full_sight(each) for each in capsys.readouterr())
