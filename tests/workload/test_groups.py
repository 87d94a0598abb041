"""Steps of process groups: layouts along each dimension, values, schedules, and sends between groups."""

from dataclasses import replace

import numpy as np
import pytest

import taccl
from taccl import Workload
from taccl.errors import WorkloadError
from taccl.workload import (
    load_workload,
    overlap,
    reorder,
    replay_step,
    save_workload,
    schedule_workload,
    split,
)
from taccl.workload.autotransform import fused, sharded
from taccl.workload.mesh import Mesh
from tests.workload.test_torch_program import hybrid, pipeline

MESH = (("dp", 2), ("tp", 2))


def step_of(**layouts):
    """A step with inputs of 8 by 8 elements in the given layouts."""
    step = Workload("groups", 4, mesh=MESH)
    for name, layout in layouts.items():
        step = step.input(name, (8, 8), layout=layout)
    return step


def test_groups_are_in_row_major_order():
    """Ranks are numbered in row-major order: on a 2 x 2 mesh ranks 0 to 3 are (0, 0), (0, 1), (1, 0), (1,
    1)."""
    mesh = Mesh(MESH)
    assert mesh.groups(["tp"]) == ((0, 1), (2, 3))
    assert mesh.groups(["dp"]) == ((0, 2), (1, 3))
    assert mesh.groups(["dp", "tp"]) == ((0, 1, 2, 3),)


def test_layouts_follow_along_each_dimension():
    """The product of rows sliced over dp, contracted over an axis sliced over tp, is partial over tp only."""
    step = step_of(x="sliced(0) over dp, sliced(1) over tp", w="sliced(0) over tp").then(
        "y", "matmul", "x", "w"
    )
    assert step.tensors["y"].layout == "sliced(0) over dp, partial over tp"
    assert step.then("s", "allreduce", "y", group="tp").tensors["s"].layout == "sliced(0) over dp"


def test_a_layout_without_a_group_is_over_all_ranks():
    """A layout without a group equals one over all dimensions."""
    assert step_of(x="sliced(0)").tensors == step_of(x="sliced(0) over dp+tp").tensors


def test_ranks_outside_a_group_relay_its_sums():
    """On a ring of four, sums of ranks 0 and 2 pass rank 1 or 3, which has nothing to add to them."""
    step = step_of(x="partial over dp").then("s", "allreduce", "x", group="dp")
    made = schedule_workload(step, taccl.topologies.ring(4), algorithm="pairwise")
    assert made.verify().ok
    np.testing.assert_allclose(replay_step(made)["s"], step.run()["s"])


def test_a_sum_is_over_its_group_only():
    """A sum is over the ranks of its group only.

    Rank r holds r: sums over tp are 1 at ranks 0 and 1, and 5 at ranks 2 and 3.
    """
    step = step_of(x="sliced(0) over dp, partial over tp").then("s", "allreduce", "x", group="tp")
    values = step.run({"x": [np.full((4, 8), rank) for rank in range(4)]})
    assert [each[0, 0] for each in values["s"]] == [1, 1, 5, 5]


def test_a_send_hands_on_what_all_ranks_of_a_stage_have():
    """Over two pipeline stages (dimension pp) a send exchanges the values of stages 0 and 1."""
    step = Workload("stages", 4, mesh=(("pp", 2), ("tp", 2))).input("x", (2, 3), layout="sliced(0) over pp")
    step = step.then("y", "send", "x", group="pp")
    values = step.run({"x": [np.full((1, 3), rank // 2) for rank in range(4)]})
    assert [each[0, 0] for each in values["y"]] == [1, 1, 0, 0]


def test_slices_are_sent_before_they_are_gathered():
    """CoCoNet's pipeline: reduce-scatter, pointwise operations and send on slices, then one allgather."""
    kinds = [each.kind for each in reorder(split(pipeline(), "sum"), "sum").operations]
    assert kinds == ["matmul", "reduce_scatter", "add", "send", "relu", "allgather"]


def test_a_collective_of_the_same_group_stays_behind():
    """A collective of the same group is not moved behind a send, as other slices would be sent."""
    step = step_of(x="sliced(0) over tp").then("g", "allgather", "x", group="tp")
    step = step.then("c", "compute", "g", shape=(8, 8), layout="sliced(0) over tp", cost_us=1)
    step = step.then("a", "alltoall", "c", axis=1, group="tp").then("s", "send", "a", group="tp")
    with pytest.raises(WorkloadError, match="is a collective itself; keep it after a"):
        reorder(step, "a", "s")


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda: pipeline(),
        lambda: fused(sharded(pipeline(), ["sum"])),
        lambda: overlap(pipeline(), ["y", "sum", "z", "sent", "out"], tiles=2),
        lambda: fused(sharded(hybrid(), ["sum", "G"])),
    ],
    ids=["pipeline", "slices", "tiles", "hybrid"],
)
def test_a_schedule_of_groups_gives_the_values_of_the_step(make):
    """The schedule is valid and finishes no earlier than its bound; its sends, replayed, give the step's
    values."""
    step = make()
    costs = (each if each.is_collective else replace(each, cost_us=2.0) for each in step.operations)
    step = replace(step, operations=tuple(costs))
    scheduled = schedule_workload(step, taccl.topologies.fully_connected(4))
    assert scheduled.verify().ok
    assert scheduled.bound <= scheduled.finish
    expected, found = step.run(), replay_step(scheduled)
    for name in step.outputs:
        for one, two in zip(found[name], expected[name], strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)


def test_files_keep_groups(tmp_path):
    """TOML and JSON files keep process groups."""
    for name in ("step.toml", "step.json"):
        save_workload(hybrid(), tmp_path / name)
        assert load_workload(tmp_path / name) == hybrid()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Workload("w", 4, mesh=(("dp", 3),)), "found {'dp': 3}, and the step is of 4 ranks"),
        (lambda: Workload("w", 4, mesh=(("dp", 2), ("dp", 2))), "give each a name of its own"),
        (lambda: step_of(x="partial over pp"), "found group 'pp'.*expected some of dp.tp"),
        (lambda: step_of(x="partial over tp, sliced(0) over tp"), "name each group once"),
        (lambda: step_of(x="partial over dp").then("y", "allreduce", "x", group="tp"),
         "along tp: allreduce needs a partial tensor; x is replicated"),
        (lambda: step_of(x="partial over dp").then("y", "allreduce", "x"), "along tp: allreduce needs a partial"),
        (lambda: step_of(x="partial over dp").then("y", "relu", "x"), "along dp: relu is not linear"),
        (lambda: step_of(x="sliced(0) over dp+tp").then("y", "allgather", "x", group="dp"),
         "cuts or joins x along dp, but tp divides these slices further"),
        (lambda: step_of(x="sliced(0) over tp", y="sliced(0) over dp").then("z", "add", "x", "y"),
         "found slices over tp and slices over dp.tp along one axis"),
        (lambda: step_of(x="replicated").then("y", "relu", "x", group="tp"), "which needs no group"),
        (lambda: Workload("w", 4).input("x", (4,), layout="partial").then("y", "allreduce", "x", group="tp"),
         "found group .*; give the step a mesh"),
    ],
)  # fmt: skip
def test_wrong_groups_are_refused(make, said):
    """The error for an invalid process group names the dimension."""
    with pytest.raises(WorkloadError, match=said):
        make()
