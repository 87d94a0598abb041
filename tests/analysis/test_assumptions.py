"""Bounds and results of imported topologies state the number of assumptions that they rest on."""

from dataclasses import replace

import pytest

import taccl
from taccl.cli import main
from taccl.cli.output import result_answer
from tests.effort import brief_synthesis

RING = taccl.topologies.ring(5, alpha_us=0)


@pytest.mark.slow
def test_results_state_their_number_of_assumptions(tmp_path):
    """Results, saved results and figures of an imported topology state its number of assumptions."""
    topology = replace(RING, assumed=("every port 12.5 GB/s", "no uplinks"))
    problem = taccl.make_problem(topology, "allgather", size_bytes=5_000_000, chunks_per_rank=1)
    result = brief_synthesis(problem)
    assert result.standing == "proven best for this model"
    answer = result_answer(result)
    assert "2 assumptions of the topology (taccl show lists them)" in answer.text
    assert answer.values["assumed"] == list(topology.assumed)
    taccl.save(result, tmp_path / "s.json")
    assert taccl.load(tmp_path / "s.json").problem.topology.assumed == topology.assumed


def test_bound_of_an_import_names_its_assumptions(tmp_path, capsys):
    """`taccl bound` counts the assumptions of a topology or schedule, and `taccl show` lists them."""
    topology = replace(RING, assumed=("every port 12.5 GB/s",))
    path, schedule = str(tmp_path / "t.json"), str(tmp_path / "s.json")
    taccl.save(topology, path)
    ring = taccl.baselines.ring(taccl.make_problem(topology, "allgather", size_bytes=5_000_000))
    taccl.save(ring, schedule, extra={})
    assert main(["bound", "--topology", path, "--collective", "allgather", "--size", "5MB"]) == 0
    assert "1 assumption of the topology" in capsys.readouterr().out
    for each in (path, schedule):
        assert main(["show", each]) == 0
        assert "assumed: every port 12.5 GB/s" in capsys.readouterr().out
