"""Script of two ranks that load plans: ``ranks.py FOLDER``; errors go to ``found-RANK.json``."""

import json
import os
import sys
import traceback
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import taccl.torch
from taccl.errors import FallbackWarning, InputError


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(33, 65), torch.nn.ReLU(), torch.nn.Linear(65, 7))


def trained(model, steps=3):
    """Parameters after some training steps on this rank's data."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, 33)).square().sum().backward()
        optimizer.step()
    return [getattr(each, "full_tensor", lambda each=each: each)().detach() for each in model.parameters()]


def same(mine, due):
    return all(torch.equal(a, b) for a, b in zip(mine, due, strict=True))


def sizes(folder):
    """Within the plan's sizes the schedule runs, outside the stock collective, with one warning."""
    planned = taccl.torch.load(folder / "allreduce")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for count in (1024, 4, 1, 1 << 20):
            tensor = torch.full((count,), dist.get_rank() + 1.0)
            planned.all_reduce(tensor)
            assert tensor.eq(3.0).all()
            is_planned = planned.schedule_of(4 * count) is not None
            assert is_planned == (count == 1024)
    said = [str(each.message) for each in caught if issubclass(each.category, FallbackWarning)]
    assert said == [
        "allreduce of 16B is not in the plan, which is for 1KB to 64KB; the stock collective runs there"
    ], said


def just_outside(folder):
    """A size that is rounded to an end of the plan is stated in bytes, with both ends."""
    planned = taccl.torch.load(folder / "allreduce")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        planned.all_reduce(torch.ones(16001))
    said = [str(each.message) for each in caught if issubclass(each.category, FallbackWarning)]
    assert said[0].startswith("allreduce of 64004B is not in the plan, which is for 1000B to 64000B; "), said


def as_called_before(folder):
    """Arguments of PyTorch's own calls are accepted if the plan can serve them; else a sentence names them."""
    planned = taccl.torch.load(folder / "alltoall")
    rank, out = dist.get_rank(), torch.empty(1024)
    planned.all_to_all_single(out, torch.full((1024,), float(rank)), output_split_sizes=None, group=None)
    assert out[:512].eq(0).all()
    assert out[512:].eq(1).all()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        out, splits = torch.empty(1024), [[256, 768], [768, 256]][rank]
        planned.all_to_all_single(out, torch.full((1024,), float(rank)), splits, splits)
    assert int(out.sum()) == [768, 256][rank]
    assert "alltoall with split sizes is not in the plan" in str(caught[0].message)
    planned = taccl.torch.load(folder / "allreduce")
    other = dist.new_group([0, 1])
    for call, kind, said in (
        (
            lambda: planned.all_reduce(torch.ones(1024), group=other),
            InputError,
            "load the plan for that group",
        ),
        (lambda: planned.all_reduce("text"), InputError, "found no tensor"),
        (lambda: planned.all_reduce(torch.ones(1024), dist.ReduceOp.SUM, other), TypeError, "positional"),
    ):
        try:
            call()
        except kind as error:
            assert said in str(error), error
        else:
            raise AssertionError(f"no error that says {said}")


def data_parallel(folder):
    """DDP with the hook trains to the same bits as without."""
    due = trained(DistributedDataParallel(network()))
    model = DistributedDataParallel(network())
    model.register_comm_hook(None, taccl.torch.hook_of(taccl.torch.load(folder / "allreduce")))
    assert same(trained(model), due)


def sharded(folder):
    """FSDP2 with plans trains to the same bits as without."""

    def shards():
        model = network()
        for each in (model[0], model[2], model):
            fully_shard(each, mesh=mesh)
        return model

    mesh = dist.init_device_mesh("cpu", (2,))
    due = trained(shards())
    model, calls = shards(), []
    planned = [taccl.torch.load(folder / name) for name in ("allgather", "reduce-scatter")]
    for each in planned:
        plain = each.schedule_of
        each.schedule_of = lambda size, plain=plain: calls.append(size) or plain(size)
    taccl.torch.shard_with(model, all_gather=planned[0], reduce_scatter=planned[1])
    assert same(trained(model), due)
    assert calls


def refused(folder):
    """A plan for other ranks or another placement is refused in a sentence."""
    for name, said in (
        ("four", "found 2 ranks; the plan is for 4: plan for 2"),
        ("apart", "found ranks on hosts as 0,1; the plan is for 0 | 1: plan for these hosts, or pass check"),
    ):
        try:
            taccl.torch.load(folder / name)
        except InputError as error:
            assert said in str(error), error
        else:
            raise AssertionError(f"{name} was taken")
    assert taccl.torch.load(folder / "apart", check_placement=False).num_ranks == 2


def main(folder):
    dist.init_process_group("gloo")
    found = {}
    for check in (sizes, just_outside, as_called_before, data_parallel, sharded, refused):
        try:
            check(folder)
            found[check.__name__] = ""
        except Exception:
            found[check.__name__] = traceback.format_exc()
    (folder / f"found-{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.barrier()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
    os._exit(0)
