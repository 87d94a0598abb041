"""Input files of any kind, recognised by their fields and named by their kind in messages."""

import pytest

from taccl._internal.file_kinds import _FIELDS, kinds_in
from taccl.sketch.sketch import Sketch
from taccl.topology.file_schema import FabricFile, LinksFile, MachineFile, NodeFile

BY_NODE = """
schema = 1
[node]
gpus = 2
fabric = "mesh"
bandwidth_gb_per_s = 10
"""


def _fields(*schemas):
    return {each.alias or name for schema in schemas for name, each in schema.model_fields.items()}


def test_a_field_that_only_one_kind_has_identifies_the_kind():
    """Fields that only topologies or sketches have identify the kind.

    Constants and protocols do not, as profiles and MSCCL++ plans have them, too.
    """
    topologies, sketches = _fields(MachineFile, FabricFile, NodeFile, LinksFile), _fields(Sketch)
    assert topologies - sketches == _FIELDS["topology"] | {"constants", "protocol"}
    assert kinds_in({"schema": 1, "constants": {}}) == ["topology"]
    assert (sketches - topologies) | {"$schema"} == _FIELDS["sketch"] | {"description"}


def test_a_topology_by_node_stands_where_a_sketch_may(run, tmp_path):
    """A topology file with `node` is not read as a sketch with unknown fields."""
    path = tmp_path / "mine.toml"
    path.write_text(BY_NODE)
    assert run("bound", str(path), "--collective", "allgather", "--size", "1MB")[0] == 0


@pytest.mark.parametrize(
    "verb", ["verify", "simulate", "report -o page.html", "plot -o picture.svg --what gantt"]
)
def test_a_topology_is_no_schedule(run, tmp_path, verb):
    """If a schedule is expected, the message calls a topology file a topology, rather than invalid JSON."""
    path = tmp_path / "mine.toml"
    path.write_text(BY_NODE)
    verb, *options = verb.split()
    code, _, said = run(verb, str(path), *options)
    advice = f"`taccl show {path}` reads it"
    assert (code, said) == (2, f"taccl: error: {path}: found a topology; expected a schedule; {advice}\n")
