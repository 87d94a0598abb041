"""The sketch file: fields, errors, and writing it back."""

import json

import pytest

import taccl
from taccl.errors import SketchError
from taccl.sketch.sketch import Sketch


def read(text):
    """A sketch from the body of a TOML file."""
    return Sketch.from_toml(f"schema = 1\n{text}", source="a.toml")


def test_defaults_are_no_guidance():
    """A sketch without fields has no clause."""
    sketch = Sketch()
    assert (sketch.internode, sketch.switch, sketch.symmetry) == (None, (), ())
    assert (sketch.intranode.links, sketch.merging.max, sketch.merging.links) == ("all", 6, "internode")
    assert (sketch.objective.weight, sketch.routing.slack) == (0.01, 0.1)


def test_connections_are_numbers():
    """Local ranks in a TOML table, whose keys are text, become integers."""
    assert read("[internode]\nconnections = { 0 = [1, 2] }").internode.connections == {0: (1, 2)}


def test_crossing_is_direct_by_default():
    """In a sketch with an internode table, chunks cross between nodes directly by default."""
    assert read("[internode]").internode.crossing == "direct"


def test_chunk_size_has_units():
    """In a sketch's chunk size, MB stands for 10**6 bytes."""
    assert read("[chunks]\nsize = '2MB'").chunk_bytes == 2_000_000


def test_json_is_the_same_schema():
    """JSON with the same fields gives the same sketch."""
    text = json.dumps({"schema": 1, "internode": {"connections": {"0": [1]}}})
    assert Sketch.from_json(text).to_dict() == read("[internode]\nconnections = {0 = [1]}").to_dict()


def test_toml_round_trip():
    """A written sketch is read back unchanged."""
    text = """
name = "a \\"b\\""
machine = "ndv2"
nodes = 2
[chunks]
size = "1MB"
[internode]
connections = { 0 = [1], 2 = [3] }
relays = { 0 = [0, 1] }
own_before_relayed = true
[intranode]
links = [[0, 1], [1, 0]]
[[switch]]
ranks = [0, 1]
policy = "max-connections"
planes = 2
[[symmetry]]
offset = 8
group = 16
strict = true
[routing]
slack = 0.25
[merging]
links = "none"
"""
    sketch = read(text)
    assert Sketch.from_toml(sketch.to_toml()).to_dict() == sketch.to_dict()


def test_stated_defaults_are_written():
    """A field that is stated with its default stays stated: it may mean another problem than one left out."""
    table = "[chunks]\nper_rank = 1\n[merging]\nmax = 6\n"
    assert table in read(table).to_toml().replace("\n\n", "\n")
    assert "per_rank" not in read("[merging]\nmax = 6\n").to_toml()
    allgather = taccl.collectives.allgather
    again = Sketch.from_toml(taccl.load_sketch("ndv2/sk1").to_toml())
    assert again.apply(again.topology(), "allgather").collective.num_chunks == allgather(16).num_chunks


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("machne = 'ndv2'", r"a\.toml: machne: found an unknown field; .*did you mean 'machine'"),
        ("[internode]\nconections = {0=[1]}", r"internode\.conections: .*did you mean 'connections'"),
        ("[[switch]]\nranks = [0]\npolcy = 'free'", r"switch\[0\]\.polcy: .*did you mean 'policy'"),
        ("nodes = '2'", r"nodes: found '2'; expected a valid integer"),
        ("nodes = 0", r"nodes: found 0; expected a number greater than or equal to 1"),
        ("[chunks]\nsize = '1 banana'", r"chunks\.size: found '1 banana'; expected a size"),
        ("[internode]\nconnections = 'all'", "expected a table or 'fully-connected' or 'direct-map'"),
        ("[internode]\nconnections = [[0, 1]]", r"internode\.connections: .*a table or 'fully-connected'"),
        ("[intranode]\nlinks = 'none'", "found 'none'; expected a list of pairs or 'all'"),
        (
            "[internode]\nconnections = {x = [1]}",
            r"internode\.connections\.x: found 'x'; expected a valid int",
        ),
        ("[internode]\nconnections = {0 = []}", r"internode\.connections\.0: found an empty list"),
        ("[internode]\nconnections = {0 = [1, 1]}", r"found \[1, 1\]; expected each once"),
        ("[internode]\nconnections = {0 = [-1]}", r"connections\.0\[0\]: found -1"),
        ("[internode]\nconnections = {0=[1]}\nrelays = {3=[3]}", "relays of local rank 3, which sends to no"),
        ("[internode]\nown_before_relayed = 1", "own_before_relayed: found 1; expected a valid boolean"),
        ("[intranode]\nlinks = [[0, 1, 2]]", r"intranode\.links\[0\]: found \[0, 1, 2\]; expected 2 items"),
        ("[[switch]]\npolicy = 'free'", r"switch\[0\]\.ranks: found nothing; this field is required"),
        (
            "[[switch]]\nranks = [0]\npolicy = 'uc-min'",
            "expected 'min-connections', 'max-connections' or 'free'",
        ),
        ("[symmetry]\noffset = 8\ngroup = 16", r"symmetry: .*a list of tables; write \[\[symmetry\]\]"),
        (2 * "[[group]]\nname = 'dp'\nalong = [1]\n", "group: found 'dp' more than once"),
        ("[[symmetry]]\noffset = 8\ngroup = 8", "offset 8 in groups of 8, which moves no rank"),
        ("[routing]\nslack = -0.5", r"routing\.slack: found -0.5"),
        ("[merging]\nmax = 0", r"merging\.max: found 0"),
    ],
)
def test_wrong_field_is_named(text, message):
    """The error for a wrong field is one sentence with the file, the field, what was found and what was
    expected."""
    with pytest.raises(SketchError, match=message) as caught:
        read(text)
    assert str(caught.value).startswith("a.toml: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        # The first fault comes first in the message, then the others.
        ("schema = 1\nnodes = 0\n[merging]\nmax = 0", r"^a\.toml: nodes: .*; also merging\.max: "),
        ("name = 'x'", r"a\.toml: schema: .*add 'schema = 1'"),
        ("schema = 2", r"a\.toml: schema: found 2; expected 1"),
    ],
    ids=["all faults are told", "no version", "a later version"],
)
def test_faults_of_a_file(text, message):
    """The error for an invalid sketch file names file and field."""
    with pytest.raises(SketchError, match=message):
        Sketch.from_toml(text, source="a.toml")


def test_with_nodes_stretches_what_spans_all_nodes():
    """For another number of nodes, only symmetries that span all nodes change.

    Over four nodes a shift by 8 in groups of 16 ranks becomes a shift by 8 in groups of 32; a shift by 4 in
    groups of 8 stays.
    """
    sketch = read(
        "machine = 'ndv2'\nnodes = 2\n"
        "[[symmetry]]\noffset = 8\ngroup = 16\n[[symmetry]]\noffset = 4\ngroup = 8"
    )
    four = sketch.with_nodes(4)
    assert four.nodes == 4
    assert [(entry.offset, entry.group) for entry in four.symmetry] == [(8, 32), (4, 8)]


def test_with_nodes_drops_what_moves_nothing():
    """With one node, a shift to the next node is dropped."""
    one = read("machine = 'ndv2'\nnodes = 2\n[[symmetry]]\noffset = 8\ngroup = 16").with_nodes(1)
    assert one.symmetry == ()


def test_with_nodes_refuses_what_it_cannot_rescale():
    """A symmetry that mixes ranks of two nodes has no meaning for four."""
    sketch = read("machine = 'ndv2'\nnodes = 2\n[[symmetry]]\noffset = 4\ngroup = 16")
    with pytest.raises(SketchError, match=r"a\.toml: symmetry\[0\]: found offset 4 in groups of 16"):
        sketch.with_nodes(4)


@pytest.mark.parametrize("given", [{"nodes": 0}, {"nodes": 4, "ranks_per_node": 0}])
def test_with_nodes_refuses_zero(given):
    """Zero nodes, or ranks per node, are refused by the argument's name."""
    sketch = read("nodes = 2\n[[symmetry]]\noffset = 8\ngroup = 16")
    name = [each for each, value in given.items() if value == 0][0]
    with pytest.raises(taccl.InputError, match=f"{name}: found 0; expected a whole number of at least 1"):
        sketch.with_nodes(**given)


def test_with_nodes_needs_ranks_per_node():
    """Without a machine, `with_nodes` requires the ranks per node."""
    sketch = read("nodes = 2\n[[symmetry]]\noffset = 8\ngroup = 16")
    with pytest.raises(SketchError, match="give ranks_per_node"):
        sketch.with_nodes(4)
    assert sketch.with_nodes(4, ranks_per_node=8).symmetry[0].group == 32


def test_topology_of_machine():
    """A sketch that names its machine can build it."""
    topology = read("machine = 'ndv2'\nprofile = 'nominal'\nnodes = 2").topology()
    assert (topology.num_nodes, topology.profile) == (2, "nominal")


def test_topology_without_machine():
    """A sketch without a machine cannot build a topology."""
    with pytest.raises(SketchError, match=r"a\.toml: machine: found no machine"):
        read("").topology()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("machine = 'ndv3'", r"a\.toml: machine: found 'ndv3'"),
        ("machine = 'ndv2'\nprofile = 'nominl'", r"a\.toml: profile: found 'nominl'"),
    ],
)
def test_topology_of_unknown_machine(text, message):
    """The error for an unknown machine in a sketch file names file and field."""
    with pytest.raises(SketchError, match=message):
        read(text).topology()
