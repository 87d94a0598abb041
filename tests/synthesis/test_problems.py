"""Problems on machines by name: the same question in Python and on the command line has the same answer."""

import pytest

import taccl
from taccl.cli import main


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
    assert chosen == taccl.choose_protocol(kept)


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


#: (machine, nodes, collective, size): each machine on one and two nodes, each collective at both sizes.
QUESTIONS = [
    (machine, nodes, ("allgather", "allreduce", "alltoall")[(place + nodes) % 3], size)
    for place, machine in enumerate(("dgx-a100", "dgx-h100", "mi300x", "b200", "l40s", "gh200"))
    for nodes, size in ((1, "64KB"), (2, "4MB"))
]


@pytest.fixture
def asked(monkeypatch, capsys):
    """Function that runs ``taccl synthesize`` up to the search, and returns the problem of the search."""
    found = []

    def searched(problem, **_):
        found.append(problem)
        raise taccl.NoSolutionError("asked", bound_us=None)

    monkeypatch.setattr(taccl, "synthesize", searched)

    def command(machine, nodes, collective, size):
        main(["synthesize", machine, "--nodes", str(nodes), "--collective", collective, "--size", size])
        capsys.readouterr()
        return found[-1]

    return command


@pytest.mark.slow
def test_python_and_the_command_line_ask_for_the_same(asked):
    """On six machines, the problem of a command has the protocol, chunks and notes of Python's problem."""
    for machine, nodes, collective, size in QUESTIONS:
        in_python = taccl.make_problem(machine, collective, nodes=nodes, size_bytes=size)
        of_command = asked(machine, nodes, collective, size)
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
