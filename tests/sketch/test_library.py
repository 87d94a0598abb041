"""Sketches by shipped name, and by path."""

import pytest

from taccl import collectives
from taccl.errors import FormatError, SketchError
from taccl.sketch.library import load_sketch, shipped_sketches
from tests.foreign import OURS


def test_shipped_names():
    """Both machines come with sk1 and sk2 for one, two and four nodes."""
    expected = {f"{m}/{s}{n}" for m in ("ndv2", "dgx2") for s in ("sk1", "sk2") for n in ("", "-n1", "-n4")}
    assert expected | {"ndv2/sk3"} == set(shipped_sketches())


@pytest.mark.parametrize("name", shipped_sketches())
def test_every_shipped_sketch_applies(name):
    """Each shipped sketch applies to its machine, with its whole symmetry."""
    sketch = load_sketch(name)
    topology = sketch.topology()
    chunks = collectives.make("allgather", topology.num_ranks, chunks_per_rank=sketch.chunks.per_rank)
    problem = sketch.apply(topology, chunks)
    assert problem.notes == ()
    assert len(problem.clauses.symmetry) == len(sketch.symmetry)


@pytest.mark.parametrize("name", shipped_sketches())
def test_shipped_name_follows_from_the_path(name):
    """A shipped sketch has the name of its file."""
    assert load_sketch(name).name == name.replace("/", "-")


@pytest.mark.parametrize(
    ("machine", "stem"), [("ndv2", "sk1"), ("ndv2", "sk2"), ("dgx2", "sk1"), ("dgx2", "sk2")]
)
def test_four_nodes_are_two_rescaled(machine, stem):
    """The shipped sketch for four nodes equals the two-node sketch rescaled by `with_nodes`."""
    two, four = (
        load_sketch(f"{machine}/{stem}").with_nodes(4).to_dict(),
        load_sketch(f"{machine}/{stem}-n4").to_dict(),
    )
    assert {**two, "name": ""} == {**four, "name": ""}


def test_path_to_toml_and_json(tmp_path):
    """A sketch is read from the path of a TOML or a JSON file."""
    (tmp_path / "a.toml").write_text("schema = 1\nname = 'a'")
    (tmp_path / "a.json").write_text('{"schema": 1, "name": "a"}')
    assert load_sketch(tmp_path / "a.toml").to_dict() == load_sketch(str(tmp_path / "a.json")).to_dict()


def test_upstream_sketch_is_recognised():
    """A file of the published tool is recognised by its content."""
    sketch = load_sketch(OURS / "upstream-taccl" / "sketch" / "ndv2-n2.json")
    assert (sketch.name, sketch.nodes) == ("ndv2-n2", 2)


def test_unknown_name():
    """A misspelt name gets the nearest shipped one as suggestion."""
    with pytest.raises(SketchError, match=r"ndv2/sk9: found no such file .*did you mean 'ndv2/sk"):
        load_sketch("ndv2/sk9")


def test_missing_file():
    """A missing path is reported as a file, not as a name."""
    with pytest.raises(FormatError, match=r"none\.toml: there is no such file"):
        load_sketch("none.toml")


def test_message_has_the_path(tmp_path):
    """The error for a wrong field of a sketch file has the file's path as given."""
    path = tmp_path / "a.toml"
    path.write_text("schema = 1\nmachin = 2")
    with pytest.raises(SketchError) as caught:
        load_sketch(path)
    assert str(caught.value).startswith(f"{path}: machin: ")
