"""Plans in PyTorch on two gloo ranks: sizes, DDP, FSDP2, and plans for other ranks."""

import json

import pytest

import taccl
from tests.effort import brief_plan
from tests.pytorch import needs_torch, started

CHECKS = ("sizes", "data_parallel", "sharded", "refused")


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """Results of all checks of two ranks, started once."""
    folder = tmp_path_factory.mktemp("plans")
    for name, topology, collective in (
        ("allreduce", "ring:2", "allreduce"), ("allgather", "ring:2", "allgather"),
        ("reduce-scatter", "ring:2", "reduce-scatter"), ("four", "ring:4", "allreduce"),
        ("apart", taccl.topologies.ring(2, ranks_per_node=1), "broadcast"),
    ):  # fmt: skip
        plan = brief_plan(topology, collective, sizes=["1KB", "64KB"], max_ranges=2, backend="greedy")
        plan.save(folder / name)
    started(2, "tests/torch/ranks.py", folder)
    return [json.loads((folder / f"found-{rank}.json").read_text()) for rank in range(2)]


@needs_torch
@pytest.mark.slow
def test_a_group_of_some_ranks_takes_a_plan(tmp_path):
    """Ranks 0 and 2 of 3 run plans of 2 ranks at odd lengths, in place and not, also asynchronously."""
    for name, given in (("allreduce", {}), ("broadcast", {"root": 1})):
        plan = brief_plan("ring:2", name, sizes=["1KB", "64KB"], max_ranges=2, backend="greedy", **given)
        plan.save(tmp_path / name)
    started(3, "tests/torch/groups.py", tmp_path)
    found = [json.loads((tmp_path / f"group-{rank}.json").read_text()) for rank in range(3)]
    passed = {"lengths": "", "waited": "", "rooted": ""}
    assert found == [passed, {"outside": ""}, passed]


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
def test_ranks_take_a_plan(two_ranks, check):
    """A check of tests/torch/ranks.py passes at both ranks."""
    assert [found[check] for found in two_ranks] == ["", ""]
