"""Protocols of steps on machines by name."""

import pytest

import taccl
from taccl import Workload
from taccl.workload import Rates, autotransform, overlap, schedule_workload


def summed(num_bytes, num_ranks=8):
    """A step that computes a gradient and adds it up over all ranks."""
    step = Workload("step", num_ranks).then(
        "g", "compute", shape=(16, num_bytes // 64), layout="partial", cost_us=10
    )
    return step.then("sum", "allreduce", "g").returning("sum")


def stock(step, topology, **how):
    """The step with its collectives by stock algorithms, which are found soonest."""
    return schedule_workload(step, topology, algorithm="stock", **how)


@pytest.mark.slow
@pytest.mark.parametrize("num_bytes", [64_000, 16_000_000])
def test_a_step_has_the_protocol_of_its_collective(num_bytes):
    """The protocol is that of the collective alone by name, in one tile or many; the step's text names it."""
    problem = taccl.make_problem("dgx-a100", "allreduce", size_bytes=num_bytes)
    step = stock(summed(num_bytes), "dgx-a100")
    assert step.topology == problem.topology
    assert f"on dgx-a100 x1, protocol {problem.topology.protocol}: " in repr(step)
    assert stock(overlap(summed(num_bytes), ["g", "sum"], tiles=4), "dgx-a100").topology == step.topology


@pytest.mark.slow
def test_a_step_on_a_topology_keeps_its_protocol():
    """A `Topology` keeps its protocol unless ``protocol="auto"``; a protocol by name is kept."""
    topology = taccl.topologies.dgx_a100()
    assert stock(summed(64_000), topology).topology is topology
    assert stock(summed(64_000), "dgx-a100", protocol="simple").topology == topology
    assert stock(summed(64_000), topology, protocol="auto").topology.protocol == "ll"


@pytest.mark.slow
def test_the_best_step_has_one_protocol():
    """All forms of a step have the protocol of its given form, here on a server of four GPUs."""
    step = summed(4096, num_ranks=4)
    found = autotransform(step, "t4", rates=Rates(1, 100), tiles=(4,), time_limit_s=0.1)
    assert found.topology == schedule_workload(step, "t4", rates=Rates(1, 100)).topology
    assert found.topology.protocol != "simple" and found.verify().ok
