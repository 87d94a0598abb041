"""Script of three ranks, two of which load plans on a group: ``groups.py FOLDER``.

Errors go to ``group-RANK.json`` in the folder.
"""

import json
import os
import sys
import traceback
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

import taccl.torch
from taccl.errors import InputError
from taccl.runtime.torch_calls import module_of

#: Element counts in the plan's range that no chunk count divides, and one outside.
COUNTS = (251, 333, 1023, 9999, 3)


def numbers(count, rank):
    return ((torch.arange(count) * 7 + rank * 13) % 11 - 3).float()


def lengths(folder, group):
    """Tensors of odd lengths, in place and out of place, are summed over the group only."""
    planned = taccl.torch.load(folder / "allreduce", group)
    for count in COUNTS:
        due = numbers(count, 0) + numbers(count, 2)
        tensor, out = numbers(count, dist.get_rank()), torch.zeros(count)
        planned.all_reduce(tensor, out=out)
        assert torch.equal(tensor, numbers(count, dist.get_rank())) and torch.equal(out, due), count
        planned.all_reduce(tensor)
        assert torch.equal(tensor, due), count


def waited(folder, group):
    """Two asynchronous calls, inside and outside the plan's sizes, are each waited for."""
    planned = taccl.torch.load(folder / "allreduce", group)
    tensors = [numbers(count, dist.get_rank()) for count in COUNTS]
    works = [planned.all_reduce(each, async_op=True) for each in tensors]
    for work, tensor in zip(works, tensors, strict=True):
        work.wait()
        assert torch.equal(tensor, numbers(len(tensor), 0) + numbers(len(tensor), 2))


def rooted(folder, group):
    """The plan's root is a rank of the group, and `src` a global rank."""
    planned = taccl.torch.load(folder / "broadcast", group)
    for count in COUNTS:
        for given in ({}, {"src": 2}):
            tensor = numbers(count, dist.get_rank())
            planned.broadcast(tensor, **given)
            assert torch.equal(tensor, numbers(count, 2))


def outside(folder, group):
    """A rank outside the group gets an error."""
    try:
        taccl.torch.load(folder / "allreduce", group)
    except InputError as error:
        assert "this rank is not in the group" in str(error), error
    else:
        raise AssertionError("it was taken")
    module = module_of(taccl.lower(taccl.load(folder / "allreduce" / "range-01.json")))
    try:
        module.Collective(group)
    except ValueError as error:
        assert "this rank is not in the group; make the object at its members" in str(error), error
    else:
        raise AssertionError("it was taken")


def main(folder):
    dist.init_process_group("gloo")
    warnings.simplefilter("ignore")
    group, found = dist.new_group([0, 2]), {}
    for check in (outside,) if dist.get_rank() == 1 else (lengths, waited, rooted):
        try:
            check(folder, group)
            found[check.__name__] = ""
        except Exception:
            found[check.__name__] = traceback.format_exc()
    (folder / f"group-{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.barrier()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
    os._exit(0)
