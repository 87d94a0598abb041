"""Process groups of a sketch: names for groups along dimensions, their collectives, and errors."""

import pytest

import taccl
from taccl.cli import main
from taccl.errors import SketchError
from tests.effort import AMPLE_S

NETWORK = "multidim:ring4@100,switch2@50,switch2@25"
TEXT = """schema = 1
name = "parallel"
[chunks]
size = "1MB"
[[group]]
name = "tp"
along = [1]
[[group]]
name = "dp"
along = [3, 2]
"""


@pytest.mark.slow
def test_a_collective_runs_in_all_groups_of_a_name():
    """A collective runs in all groups that share a name: here four data-parallel groups of four ranks."""
    sketch, network = taccl.Sketch.from_toml(TEXT), taccl.topologies.parse(NETWORK)
    problem = sketch.apply(network, "allreduce", group="dp", size="1MB")
    assert [each.ranks for each in problem.collective.groups] == [
        (rank, rank + 4, rank + 8, rank + 12) for rank in range(4)
    ]
    result = taccl.synthesize(problem, backend="dimension-balanced", time_limit_s=AMPLE_S)
    assert taccl.verify(result.schedule).ok
    assert taccl.Sketch.from_toml(sketch.to_toml()) == sketch


@pytest.mark.slow
def test_groups_of_a_sketch_on_the_command_line(tmp_path, capsys):
    """`--along` takes the name of groups in the sketch, or dimensions."""
    path = tmp_path / "parallel.toml"
    path.write_text(TEXT)
    asked = ["bound", str(path), "--topology", NETWORK, "--collective", "allreduce", "--size", "1MB"]
    said = []
    for along in ("dp", "2,3"):
        assert main([*asked, "--along", along]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]


@pytest.mark.parametrize(
    ("network", "group", "said"),
    [
        (NETWORK, "pp", "found no group 'pp'; expected one of tp, dp"),
        ("multidim:ring4@100,switch2@50", "dp", "expected different dimensions of 1 to 2"),
    ],
)
def test_groups_that_do_not_fit_are_named(network, group, said):
    """Unknown names, and dimensions that the topology lacks, are errors with the place in the sketch."""
    sketch = taccl.Sketch.from_toml(TEXT, source="parallel.toml")
    with pytest.raises(SketchError, match=said) as found:
        sketch.apply(taccl.topologies.parse(network), "allreduce", group=group)
    assert "parallel.toml: group" in str(found.value)
