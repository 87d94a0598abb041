"""One rank that compares modules for PyTorch with the stock collectives: ``ranks.py FOLDER`` under gloo.

The folder holds the modules and ``cases.json``: a list of [name of a module, ranks of a group, name of a
check]. The rank writes ``found-RANK.json``: a description of the fault in each case, or "".
"""

import importlib.util
import itertools
import json
import os
import sys
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

SIZES = (0, 1, 7, 64)


def numbers(rank, count, dtype=torch.int64):
    """Small numbers, whose sums are exact in every element type."""
    return ((torch.arange(count) * 7 + rank * 13) % 11 - 3).to(dtype)


class Both:
    """A module's collective and PyTorch's own, called with equal inputs."""

    def __init__(self, module, group):
        self.group, self.rank, self.ranks = group, dist.get_rank(group), dist.get_world_size(group)
        self.collective, self.module = module.Collective(group), module
        self.root = None if module.ROOT is None else dist.get_global_rank(group, module.ROOT)

    def each(self, ours, stock, make):
        """(outputs of the module, outputs of PyTorch) for the inputs that `make` returns."""
        mine, other = make(), make()
        work = ours(*mine)
        if work is not None:
            work.wait()
        stock(*other)
        assert same(mine, other), f"found {mine}; expected {other}"


def same(mine, other):
    flat = [each for some in mine for each in (some if isinstance(some, list) else [some])]
    due = [each for some in other for each in (some if isinstance(some, list) else [some])]
    return all(torch.equal(a, b) for a, b in zip(flat, due, strict=True) if a is not None)


def all_reduce(both, count=7, dtype=torch.int64, op=dist.ReduceOp.SUM, **options):
    both.each(
        lambda tensor: both.collective.all_reduce(tensor, op, **options),
        lambda tensor: dist.all_reduce(tensor, op, group=both.group),
        lambda: [numbers(both.rank, count, dtype)],
    )


def reduce(both, count=7, **options):
    made = [numbers(both.rank, count)]
    due = [made[0].clone()]
    dist.reduce(due[0], both.root, group=both.group)
    before = made[0].clone()
    work = both.collective.reduce(made[0], **options)
    if work is not None:
        work.wait()
    # PyTorch leaves the tensors of other ranks undefined; the module leaves them unchanged.
    assert torch.equal(made[0], due[0] if both.rank == both.module.ROOT else before)


def broadcast(both, count=7, **options):
    both.each(
        lambda tensor: both.collective.broadcast(tensor, **options),
        lambda tensor: dist.broadcast(tensor, both.root, group=both.group),
        lambda: [numbers(both.rank, count)],
    )


def all_gather(both, count=7, dtype=torch.int64, **options):
    both.each(
        lambda output, input: both.collective.all_gather_into_tensor(output, input, **options),
        lambda output, input: dist.all_gather_single(output, input, group=both.group),
        lambda: [torch.zeros(both.ranks * count, dtype=dtype), numbers(both.rank, count, dtype)],
    )


def reduce_scatter(both, count=7, dtype=torch.int64, op=dist.ReduceOp.SUM, **options):
    both.each(
        lambda output, input: both.collective.reduce_scatter_tensor(output, input, op, **options),
        lambda output, input: dist.reduce_scatter_single(output, input, op, group=both.group),
        lambda: [torch.zeros(count, dtype=dtype), numbers(both.rank, both.ranks * count, dtype)],
    )


def all_to_all(both, count=7, dtype=torch.int64, **options):
    both.each(
        lambda output, input: both.collective.all_to_all_single(output, input, **options),
        lambda output, input: dist.all_to_all_single(output, input, group=both.group),
        lambda: [torch.zeros(both.ranks * count, dtype=dtype), numbers(both.rank, both.ranks * count, dtype)],
    )


def gather(both, count=7, **options):
    is_root = both.rank == both.module.ROOT
    both.each(
        lambda tensor, tensors: both.collective.gather(tensor, tensors, **options),
        lambda tensor, tensors: dist.gather(tensor, tensors, both.root, group=both.group),
        lambda: [
            numbers(both.rank, count),
            [torch.zeros(count, dtype=torch.int64) for _ in range(both.ranks)] if is_root else None,
        ],
    )


def scatter(both, count=7, **options):
    is_root = both.rank == both.module.ROOT
    both.each(
        lambda tensor, tensors: both.collective.scatter(tensor, tensors, **options),
        lambda tensor, tensors: dist.scatter(tensor, tensors, both.root, group=both.group),
        lambda: [
            torch.zeros(count, dtype=torch.int64),
            [numbers(rank, count) for rank in range(both.ranks)] if is_root else None,
        ],
    )


CALLS = {
    "all_reduce": all_reduce, "reduce": reduce, "broadcast": broadcast,
    "all_gather_into_tensor": all_gather, "reduce_scatter_tensor": reduce_scatter,
    "all_to_all_single": all_to_all, "gather": gather, "scatter": scatter,
}  # fmt: skip


def call_of(both):
    return next(call for name, call in CALLS.items() if hasattr(both.collective, name))


def sizes(both):
    """Every length, including 0 and one that no number of chunks divides."""
    for count in SIZES:
        if count or call_of(both) not in (
            all_to_all,
            reduce_scatter,
            gather,
            scatter,
        ):  # gloo's own fail there
            call_of(both)(both, count)


def even_chunks(both):
    """Chunks of a block differ by at most one element, at every length."""
    parts = both.module.PARTS
    for block in range(4 * parts):
        begins = both.module._begins(block)
        lengths = [end - begin for begin, end in itertools.pairwise(begins)]
        assert len(lengths) == parts and sum(lengths) == block and max(lengths) - min(lengths) <= 1, lengths
        all_reduce(both, block)


def waited(both):
    """Two simultaneous asynchronous calls, each waited for."""
    call_of(both)(both, 7, async_op=True)
    if hasattr(both.collective, "all_reduce"):
        tensors = [numbers(both.rank, 9), numbers(both.rank, 5)]
        works = [both.collective.all_reduce(each, async_op=True) for each in tensors]
        dist.barrier(both.group)  # another collective of the group meanwhile
        assert all(work.wait() for work in reversed(works))
        assert all(work.is_completed() for work in works)
        assert [works[0].get_future().value()[0] is tensors[0]]
        for tensor, count in zip(tensors, (9, 5), strict=True):
            due = numbers(both.rank, count)
            dist.all_reduce(due, group=both.group)
            assert torch.equal(tensor, due)


def loaded_twice(both):
    """Calls of two loads of one file, and of another file, are in flight together on one group."""
    file = Path(both.module.__file__)
    names = {"first": file.stem, "again": file.stem, "other": "allreduce-pairs"}
    modules = [loaded(file.with_name(f"{stem}.py"), name) for name, stem in names.items()]
    every = [module.Collective(both.group) for module in modules]
    for step in range(40):
        tensors = [numbers(both.rank + place + step, 99) for place in range(3)]
        works = [each.all_reduce(mine, async_op=True) for each, mine in zip(every, tensors, strict=True)]
        assert all(work.wait() for work in works)
        for place, tensor in enumerate(tensors):
            due = sum(numbers(rank + place + step, 99) for rank in range(both.ranks))
            assert torch.equal(tensor, due), (step, place)


def chained(both):
    """A call of a group whose ranks are also in other groups, with other numbers of calls so far."""
    all_reduce(both, 7)


def called_back(both):
    """A callback of an asynchronous call makes another call of the group, and waits for it."""
    first, second = numbers(both.rank, 9), numbers(both.rank, 5)
    dist.barrier(both.group)
    work = both.collective.all_reduce(first, async_op=True)
    other = both.module.Collective(both.group)
    work.get_future().then(lambda _: other.all_reduce(second)).wait()
    assert torch.equal(second, sum(numbers(rank, 5) for rank in range(both.ranks)))


def inference(both):
    """Calls on tensors of inference mode, made within that mode and after it, in the thread and outside it."""
    due = sum(numbers(rank, 7, torch.float32) for rank in range(both.ranks))
    with torch.inference_mode():
        every = [numbers(both.rank, 7, torch.float32) for _ in range(6)]
        both.collective.all_reduce(every[0])
    both.collective.all_reduce(every[1])
    with torch.inference_mode():
        both.collective.all_reduce(every[2], async_op=True).wait()
        both.collective.all_reduce(every[3])
    both.collective.all_reduce(every[4], async_op=True).wait()
    both.collective.all_reduce(every[5])
    assert all(torch.equal(each, due) for each in every)
    assert not torch.is_inference_mode_enabled()
    usual = torch.ones(7, requires_grad=True)
    both.collective.all_reduce(usual, async_op=True).wait()
    assert usual.requires_grad and not usual.is_inference()


def types(both):
    """Integer and floating-point types, and types that gloo cannot reduce."""
    for dtype in (torch.uint8, torch.int32, torch.float16, torch.float64):
        call_of(both)(both, 7, dtype)
    for dtype in (torch.bfloat16, torch.complex64):
        due = sum(numbers(rank, 6, dtype) for rank in range(both.ranks))
        mine = numbers(both.rank, 6, dtype)
        both.collective.all_reduce(mine)
        assert torch.equal(mine, due), f"found {mine}; expected {due}"


def reductions(both):
    """Every reduction operator."""
    for name in ("MAX", "MIN", "PRODUCT", "BAND", "BOR", "BXOR"):
        kind = getattr(dist.ReduceOp, name)
        for op in (kind, dist.ReduceOp(kind)):
            call_of(both)(both, 7, torch.int64, op)
    due = sum(numbers(rank, 8, torch.float64) for rank in range(both.ranks)) / both.ranks
    for op in (dist.ReduceOp.AVG, dist.ReduceOp(dist.ReduceOp.AVG)):
        mean = numbers(both.rank, 8, torch.float64)
        both.collective.all_reduce(mean, op)
        assert torch.equal(mean, due)
    for op, tensor in (
        (dist.ReduceOp.AVG, torch.ones(3, dtype=torch.int32)),
        (dist.ReduceOp.PREMUL_SUM, mean),
        (dist.ReduceOp.SUM, torch.ones(3, dtype=torch.uint16)),
        (dist.ReduceOp.AVG, torch.ones(3).to(torch.float8_e4m3fn)),
        (dist.ReduceOp(dist.ReduceOp.BAND), torch.ones(3)),
        (dist.ReduceOp.MAX, torch.ones(3, dtype=torch.complex64)),
    ):
        try:
            both.collective.all_reduce(tensor, op)
        except ValueError as error:
            assert "; expected" in str(error)
        else:
            raise AssertionError(f"{op} was taken")


def out_of_place(both):
    """Out of place, the input is unchanged."""
    tensor, out = numbers(both.rank, 7), torch.zeros(7, dtype=torch.int64)
    both.collective.all_reduce(tensor, out=out)
    due = numbers(both.rank, 7)
    dist.all_reduce(due, group=both.group)
    assert torch.equal(tensor, numbers(both.rank, 7))
    assert torch.equal(out, due)


def in_place(both):
    """Input and output share one buffer: the smaller one is this rank's block of the larger."""
    n, rank = both.ranks, both.rank
    if hasattr(both.collective, "all_gather_into_tensor"):
        whole, due = torch.zeros(n * 5, dtype=torch.int64), torch.zeros(n * 5, dtype=torch.int64)
        whole.view(n, -1)[rank] = numbers(rank, 5)
        both.collective.all_gather_into_tensor(whole, whole.view(n, -1)[rank])
        dist.all_gather_single(due, numbers(rank, 5), group=both.group)
        assert torch.equal(whole, due)
    elif hasattr(both.collective, "reduce_scatter_tensor"):
        whole, due = numbers(rank, n * 5), torch.zeros(5, dtype=torch.int64)
        both.collective.reduce_scatter_tensor(whole.view(n, -1)[rank], whole)
        dist.reduce_scatter_single(due, numbers(rank, n * 5), group=both.group)
        assert torch.equal(whole.view(n, -1)[rank], due)
    else:
        whole, due = numbers(rank, n * 5), torch.zeros(n * 5, dtype=torch.int64)
        both.collective.all_to_all_single(whole, whole)
        dist.all_to_all_single(due, numbers(rank, n * 5), group=both.group)
        assert torch.equal(whole, due)


def strided(both):
    """Tensors that are not contiguous, and parameters that require gradients."""
    whole = numbers(both.rank, 24, torch.float32).view(4, 6)
    tensor = whole.t()[1:3]
    due = tensor.clone()
    dist.all_reduce(due, group=both.group)
    both.collective.all_reduce(tensor)
    assert torch.equal(tensor, due)
    assert torch.equal(whole[:, 0], numbers(both.rank, 24, torch.float32).view(4, 6)[:, 0])
    parameter = torch.nn.Parameter(numbers(both.rank, 4, torch.float32))
    both.collective.all_reduce(parameter)
    assert parameter.requires_grad


def loaded(path, name):
    """Execute the file of a module, and return the module."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(folder):
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, found = dist.get_rank(), {}
    groups, modules = {}, {}
    for name, ranks, check in json.loads((folder / "cases.json").read_text()):
        key = tuple(ranks)
        if key not in groups:
            groups[key] = dist.new_group(ranks)
        if rank not in ranks:
            continue
        if name not in modules:
            modules[name] = loaded(folder / f"{name}.py", name)
        try:
            globals()[check](Both(modules[name], groups[key]))
            found[f"{name} {check}"] = ""
        except Exception:
            found[f"{name} {check}"] = traceback.format_exc()
    (folder / f"found-{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
    os._exit(0)  # PyTorch takes half a second to end
