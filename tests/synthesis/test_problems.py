"""Problems on machines by name: the same question in Python and on the command line has the same answer."""

import itertools
from dataclasses import replace

import pytest

import taccl
from taccl.cli import main
from tests.fuzzing import thinned


def test_a_machine_by_name_leaves_the_protocol_to_the_library():
    """64 KB on a DGX-A100 are sent by LL; a note has the times of the others, and no note if it is given."""
    problem = taccl.make_problem("dgx-a100", "allgather", nodes=1, size_bytes="64KB")
    assert problem.topology == taccl.topologies.dgx_a100(1, protocol="ll")
    assert "protocol ll is predicted to be the fastest for 64KB" in problem.notes[-1]
    assert problem.heading == "allgather on dgx-a100 x1, 64KB, protocol ll"
    fixed = taccl.make_problem("dgx-a100", "allgather", size_bytes="64KB", protocol="LL128")
    assert (fixed.topology.protocol, fixed.notes) == ("ll128", ())


def test_a_topology_keeps_its_protocol_unless_asked():
    """A `Topology` keeps its protocol; ``protocol="auto"`` makes the choice that its name would have."""
    topology = taccl.topologies.dgx_a100()
    kept = taccl.make_problem(topology, "allgather", size_bytes="64KB")
    assert (kept.topology, kept.notes) == (topology, ())
    chosen = taccl.make_problem(topology, "allgather", size_bytes="64KB", protocol="auto")
    assert chosen == taccl.make_problem("dgx-a100", "allgather", size_bytes="64KB")
    assert chosen == taccl.choose_protocol(kept) and len(taccl.choose_protocol(chosen).notes) == 1
    other = replace(chosen, topology=topology.under("ll128"), notes=("protocol ll128 is used uncompared",))
    assert taccl.choose_protocol(other).notes == chosen.notes


def test_fabrics_have_no_protocols_to_choose():
    """A fabric by name has one set of costs."""
    named = taccl.make_problem("ring:4", "allgather", size_bytes="64KB")
    assert named == taccl.make_problem(taccl.topologies.ring(4), "allgather", size_bytes="64KB")
    assert taccl.make_problem("ring:4", "allgather", size_bytes="64KB", protocol="auto") == named


@pytest.mark.parametrize(
    ("given", "said"),
    [({"nodes": 2}, "nodes: found 2, but the topology"), ({"profile": "x"}, "profile: found 'x', but")],
)
def test_a_topology_has_its_own_nodes_and_profile(given, said):
    """Options of a name are errors beside a `Topology`."""
    with pytest.raises(taccl.CollectiveError, match=said):
        taccl.make_problem(taccl.topologies.ring(4), "allgather", size_bytes=1000, **given)


#: (machine, nodes, collective, size) of 72 questions, of which seven are asked by default.
QUESTIONS = thinned(
    itertools.product(
        ("dgx-a100", "dgx-h100", "mi300x", "b200", "l40s", "gh200"),
        (1, 2),
        ("allgather", "allreduce", "alltoall"),
        ("64KB", "4MB"),
    ),
    every=11,
)


@pytest.fixture
def asked(monkeypatch, capsys):
    """Function that runs ``taccl synthesize`` up to the search, and returns the problem of the search."""
    found = []

    def searched(problem, **_):
        found.append(problem)
        raise taccl.NoSolutionError("asked", bound_us=None)

    monkeypatch.setattr(taccl, "synthesize", searched)

    def command(*words):
        main(["synthesize", *map(str, words)])
        capsys.readouterr()
        return found[-1]

    return command


@pytest.mark.slow
def test_python_and_the_command_line_ask_for_the_same(asked):
    """On six machines, the problem of a command has the protocol, chunks and notes of Python's problem."""
    for machine, nodes, collective, size in QUESTIONS:
        in_python = taccl.make_problem(machine, collective, nodes=nodes, size_bytes=size)
        of_command = asked(machine, "--nodes", nodes, "--collective", collective, "--size", size)
        assert (of_command, of_command.notes) == (in_python, in_python.notes), (machine, nodes, collective)
        assert of_command.digest() == in_python.digest() and of_command.chunks_open


@pytest.mark.slow
def test_python_and_the_command_line_answer_the_same(capsys):
    """The first schedule within a gap of 1000 % is the same, and both answers name its protocol."""
    words = ("--collective", "alltoall", "--size", "64KB", "--until-gap", "1000%")
    assert main(["synthesize", "mi300x", *words]) == 0
    printed = capsys.readouterr().out
    result = taccl.synthesize(taccl.make_problem("mi300x", "alltoall", size_bytes="64KB"), until_gap="1000%")
    assert result.problem.topology.protocol == "ll128"
    title, finish, *_ = repr(result).splitlines()
    assert [title, finish.split()] == [
        each if each == title else each.split() for each in printed.splitlines()[:2]
    ]
    assert title == "alltoall on mi300x x1, 64KB, protocol ll128"


#: A sketch for two DGX-A100, in chunks of 64 KB; `{machine}` stands for further lines.
SKETCH = (
    'schema = 1\nname = "own"\n{machine}[chunks]\nsize = "64KB"\n[internode]\nconnections = "direct-map"\n'
)
OF_MACHINE = 'machine = "dgx-a100"\nnodes = 2\n'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "named", "words"),
    [
        (OF_MACHINE, (None, {}), ()),
        (OF_MACHINE, ("dgx-a100", {}), ("--topology", "dgx-a100")),
        (OF_MACHINE, (None, {"nodes": 1}), ("--nodes", "1")),
        ("", ("dgx-a100", {"nodes": 2, "size_bytes": "8MB"}), ("--topology", "dgx-a100", "--nodes", "2", "--size", "8MB")),
        ("", ("dgx-a100", {"protocol": "simple"}), ("--topology", "dgx-a100", "--protocol", "simple")),
    ],
)  # fmt: skip
def test_sketches_ask_for_the_same(asked, tmp_path, machine, named, words):
    """A sketch supplies machine, nodes and size in Python as on the command line; names may override them."""
    path = tmp_path / "own.toml"
    path.write_text(SKETCH.format(machine=machine))
    topology, options = named
    in_python = taccl.make_problem(topology, "allgather", sketch=path, **options)
    of_command = asked(path, "--collective", "allgather", *words)
    assert (of_command, of_command.notes) == (in_python, in_python.notes)
    assert of_command.digest() == in_python.digest() and of_command.chunks_open
    by_object = taccl.collectives.allgather(in_python.topology.num_ranks)
    assert taccl.make_problem(topology, by_object, sketch=path, **options).digest() == in_python.digest()


def test_a_problem_needs_a_topology_and_one_source_of_clauses():
    """Errors name what is missing, and clauses that a sketch states already."""
    with pytest.raises(taccl.CollectiveError, match="topology: found none"):
        taccl.make_problem(None, "allgather", size_bytes=1000)
    clauses = taccl.make_problem("ring:4", "allgather", size_bytes=1000).clauses
    with pytest.raises(taccl.CollectiveError, match="clauses: found clauses beside a sketch"):
        taccl.make_problem("ring:4", "allgather", sketch=taccl.Sketch(), clauses=clauses)


def test_results_say_that_a_protocol_was_not_compared():
    """Facts of a result name other protocols, unless a note states the choice, or there are none."""
    topology = taccl.topologies.dgx_a100()
    given = taccl.make_problem(topology, "allgather", size_bytes="64KB")
    assert given.uncompared_rows() == [("protocol", "simple, not compared with ll and ll128")]
    assert given.uncompared_rows(["protocol simple is the choice of NCCL here"]) == []
    assert taccl.choose_protocol(given).uncompared_rows() == []
    assert taccl.make_problem("ring:4", "allgather", size_bytes=1000).uncompared_rows() == []


@pytest.mark.slow
def test_exchanges_are_cut_for_the_chosen_protocol(asked):
    """A skewed exchange of 64 KB is cut as if its chosen protocol had been given, also by the command line."""
    sizes = taccl.skewed_sizes(16, 64_000, "zipf:1")
    chosen = taccl.alltoallv_problem("dgx-h100", sizes, nodes=2)
    assert chosen == taccl.alltoallv_problem(taccl.topologies.dgx_h100(2, protocol="ll"), sizes)
    assert chosen.notes[-1].startswith("protocol ll is predicted to be the fastest")
    words = ("--collective", "alltoallv", "--matrix", "zipf:1", "--size", "64KB")
    assert asked("dgx-h100", "--nodes", "2", *words) == chosen
