"""If the sends of a scheduled step are replayed on data, they give the values of the untransformed
program."""

from dataclasses import replace

import numpy as np
import pytest

import taccl
from taccl import Workload
from taccl.workload import Rates, fuse, lower_step, overlap, reorder, schedule_workload, slice_state, split
from taccl.workload.meaning import random_inputs
from taccl.workload.replay import replay_step

RANKS = taccl.topologies.fully_connected(4, alpha_us=1, bandwidth_gb_per_s=10)
RATES = Rates(1, 100)


def block():
    """A step: a product of slices, its allreduce, and pointwise operations."""
    step = Workload("block", 4).input("x", (16, 8), dtype="float64", layout="sliced(1)")
    step = step.input("w", (8, 12), dtype="float64", layout="sliced(0)").input("b", (12,), dtype="float64")
    step = step.then("y", "matmul", "x", "w").then("sum", "allreduce", "y").then("z", "add", "sum", "b")
    return step.then("out", "dropout", "z", value=0.5)


def momentum():
    """A training step with momentum, whose state is replicated and can be sliced."""
    step = Workload("momentum", 4).input("g", (64,), dtype="float64", layout="partial")
    step = step.input("m", (64,), dtype="float64").input("p", (64,), dtype="float64")
    step = (
        step.then("sum", "allreduce", "g")
        .then("old", "scale", "m", value=0.9)
        .then("m_new", "add", "old", "sum")
    )
    return step.then("p_new", "subtract", "p", "m_new").updating(m="m_new").returning("p_new")


def experts():
    """A step: an alltoall to slices along another axis, an alltoall back, and a send to the next rank."""
    step = Workload("experts", 4).input("x", (4, 32, 6), dtype="float64", layout="sliced(1)")
    step = step.input("w", (4, 6, 5), dtype="float64", layout="sliced(0)").then("to", "alltoall", "x", axis=0)
    step = step.then("y", "matmul", "to", "w").then("back", "alltoall", "y", axis=1)
    return step.then("on", "send", "back", shift=1)


def large():
    """A step with a tensor of 8 MB, which is cut into two chunks."""
    step = Workload("large", 4).then(
        "g", "compute", shape=(1024, 1024), dtype="float64", layout="partial", cost_us=1
    )
    return step.then("sum", "allreduce", "g")


def sliced(step):
    """The momentum step transformed: reduce-scatter, update and allgather in four tiles, with sliced
    momentum."""
    found = slice_state(reorder(split(step, "sum"), "sum"), "m")
    return overlap(found, [each.name for each in found.operations if each.name != "old"], tiles=4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plain", "transformed"),
    [
        (block, lambda step: step),
        (block, lambda step: overlap(fuse(step, "sum", "z"), ["y", "sum", "z", "out"], tiles=8)),
        (block, lambda step: reorder(split(step, "sum"), "sum")),
        (momentum, lambda step: step),
        (momentum, sliced),
        (experts, lambda step: step),
        (experts, lambda step: overlap(step, ["to", "y", "back"], tiles=2, axis=1)),
        (large, lambda step: step),
    ],
)
def test_sends_bring_what_the_program_says(plain, transformed):
    """The replayed sends give all outputs of the untransformed program, at every rank."""
    before = plain()
    after = transformed(before)
    inputs = random_inputs(before, seed=1)
    cut = random_inputs(after, seed=1)
    expected, found = before.run(inputs), replay_step(schedule_workload(after, RANKS, rates=RATES), cut)
    for name in before.outputs:
        for rank in range(4):
            whole = expected[name][rank]
            if found[name][rank].shape != whole.shape:
                whole = np.split(whole, 4)[rank]
            np.testing.assert_allclose(found[name][rank], whole, rtol=1e-9)


@pytest.mark.parametrize("algorithm", ["one-shot", "multiplying"])
def test_sends_may_name_their_contributions(algorithm):
    """Baselines that keep arrivals unreduced give valid steps, the program's values, and valid programs."""
    topology = taccl.topologies.mesh(2, 3)
    before = Workload("sums", 6).input("x", (12, 6), dtype="float64", layout="partial")
    before = before.then("y", "reduce_scatter", "x", axis=0).then("z", "send", "y", shift=1)
    step = schedule_workload(before, topology, rates=RATES, algorithm=algorithm)
    assert step.schedule.carries is not None
    assert step.verify().ok
    assert taccl.interpret(lower_step(step, "y")).ok
    inputs = random_inputs(before)
    expected, found = before.run(inputs), replay_step(step, inputs)
    np.testing.assert_allclose(found["z"], expected["z"], rtol=1e-9)  # copies beside sums


@pytest.mark.slow
def test_sums_in_switches_beside_named_contributions():
    """A step with a sum in switches keeps its small sum in place, though the best baseline names contributions."""
    step = Workload("both", 8).input("x", (8, 8), layout="partial").input("y", (8, 8192), layout="partial")
    step = step.then("s", "allreduce", "x").then("t", "allreduce", "y")
    made = schedule_workload(step, taccl.topologies.dgx_h100(nvls=True), algorithm="best")
    assert any(len(made.topology.links[each.link].srcs) > 1 for each in made.schedule)
    assert made.verify().ok


def test_a_send_left_out_shows():
    """If a send is left out, replayed values differ, as a rank reads data that it never received."""
    step = schedule_workload(block(), RANKS, rates=RATES, algorithm="stock")
    schedule = step.schedule
    kept = np.arange(schedule.num_transfers - 1)
    columns = {
        name: getattr(schedule, name)[kept] for name in ("chunk", "link", "start", "end", "group", "reduce")
    }
    short = replace(step, schedule=replace(schedule, **columns))
    inputs = random_inputs(step.workload)
    found, whole = replay_step(short, inputs), step.workload.run(inputs)
    assert any(not np.allclose(a, b) for a, b in zip(found["out"], whole["out"], strict=True))
