"""Plans in PyTorch on two gloo ranks: sizes, DDP, FSDP2, plans for other ranks, and damaged plans."""

import json

import pytest

import taccl
from taccl.errors import FormatError
from taccl.runtime.torch_plans import read_index, read_schedules
from tests.effort import brief_plan
from tests.pytorch import needs_torch, started

CHECKS = ("sizes", "just_outside", "as_called_before", "data_parallel", "sharded", "refused")


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """Results of all checks of two ranks, started once."""
    folder = tmp_path_factory.mktemp("plans")
    for name, topology, collective in (
        ("allreduce", "ring:2", "allreduce"), ("allgather", "ring:2", "allgather"),
        ("reduce-scatter", "ring:2", "reduce-scatter"), ("alltoall", "ring:2", "alltoall"), ("four", "ring:4", "allreduce"),
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


@pytest.fixture
def plan(tmp_path):
    """A folder with a schedule of an allreduce on two ranks."""
    problem = taccl.make_problem(taccl.topologies.ring(2), "allreduce", size_bytes=1000)
    taccl.save(taccl.baselines.ring(problem), tmp_path / "range-01.json")
    return tmp_path


def index_of(**changes):
    """The index of two adjacent ranges with one schedule, with changed fields."""
    ranges = [
        {"min_bytes": low, "max_bytes": high, "files": {"schedule": "range-01.json"}}
        for low, high in ((1000, 2000), (2001, 4000))
    ]
    whole = {
        "format": "taccl-plan", "version": 1, "collective": "allreduce", "num_ranks": 2, "ranges": ranges,
    }  # fmt: skip
    return whole | changes


def test_the_index_and_the_schedules_of_a_plan_are_read(plan):
    """Two adjacent ranges share a schedule, which is for the index's collective and ranks."""
    (plan / "plan.json").write_text(json.dumps(index_of()))
    index = read_index(plan)
    assert [(each.min_bytes, each.max_bytes) for each in index.ranges] == [(1000, 2000), (2001, 4000)]
    assert [each.problem.collective.num_ranks for each in read_schedules(plan, index)] == [2, 2]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": "other"}, ": found no plan; expected a folder of `taccl plan -o`"),
        ({"version": 2}, "/plan.json: version: found 2; "),
        ({"num_ranks": "2"}, "/plan.json: num_ranks: found '2'; "),
        ({"ranges": []}, "/plan.json: found no ranges; expected at least one: write the plan again"),
        ({"ranges": [{"min_bytes": 1}]}, r"/plan.json: ranges\[0\].max_bytes: found nothing; "),
        ({"ranges": index_of()["ranges"][::-1]}, r"ranges\[1\]: found 4000 bytes before 1000; expected asc"),
        (
            {"ranges": [index_of()["ranges"][0]] * 2},
            r"ranges\[1\]: found 2000 bytes before 1000; expected asc",
        ),
        (
            {"num_ranks": 3},
            "range-01.json: found allreduce of 2 ranks; the plan is for allreduce of 3: write",
        ),
        ({"collective": "alltoall"}, "range-01.json: found allreduce of 2 ranks; the plan is for alltoall"),
    ],
)
def test_a_damaged_index_is_refused(plan, changes, said):
    """An index with a wrong field, or with a schedule for another purpose, is refused in one sentence."""
    (plan / "plan.json").write_text(json.dumps(index_of(**changes)))
    with pytest.raises(FormatError, match=said):
        read_schedules(plan, read_index(plan))


def test_files_that_are_no_schedules_are_refused(plan):
    """A missing file and a saved topology are refused with their paths."""
    taccl.save(taccl.topologies.ring(2), plan / "topology.json")
    for name, said in (
        ("gone.json", "there is no such file"),
        ("topology.json", "found no schedule, as plan.json"),
    ):
        ranges = [{"min_bytes": 1, "max_bytes": 2, "files": {"schedule": name}}]
        (plan / "plan.json").write_text(json.dumps(index_of(ranges=ranges)))
        with pytest.raises(FormatError, match=f"/{name}: {said}"):
            read_schedules(plan, read_index(plan))
