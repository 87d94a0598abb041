"""Template of generated PyTorch programs: collectives, slices, tiles, and comparison of two programs."""

#: Text before the programs; `torch_program` replaces the words in capitals between `@`.
HEAD = '''"""@TITLE@: a step of @RANKS@ ranks, written by taccl; it needs PyTorch alone.

    torchrun --nproc-per-node @RANKS@ THIS_FILE

runs `transformed` and `untransformed` on the same inputs, compares their outputs and times both. In a program
of your own, call `transformed` with the local tensors of each rank, after `init_process_group`. Collectives
run on the stream of their backend while the current stream computes.
"""

from __future__ import annotations

import functools
import os
import statistics
import sys
import time
import zlib

import torch
import torch.distributed as dist

RANKS = @RANKS@
#: Largest difference that counts as rounding, relative to the largest value of an output.
TOLERANCE = @TOLERANCE@
#: The process group whose ranks run the step; None is the default group.
GROUP = None
#: {group of a part of the ranks: ranks of each such group}.
GROUPS = @GROUPS@
# Earlier versions of PyTorch have the collectives of one tensor under their earlier names.
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class Pending:
    """Result of a collective under way."""

    def __init__(self, work, result):
        self.work, self.result = work, result

    def wait(self):
        for each in self.work:
            each.wait()
        self.work = ()
        return self.result()


def ready(value):
    """A tensor, or the result of a collective, for which the current stream waits."""
    return value.wait() if isinstance(value, Pending) else value


@functools.cache
def groups():
    """{group: (process group, number of its ranks, place of this rank)}; all ranks make them together."""
    me = dist.get_rank(GROUP)
    found = {"": (GROUP, RANKS, me)}
    for name, every in GROUPS.items():
        for ranks in every:
            known = [rank if GROUP is None else dist.get_global_rank(GROUP, rank) for rank in ranks]
            made = dist.new_group(known, use_local_synchronization=GROUP is not None)
            if me in ranks:
                found[name] = (made, len(ranks), ranks.index(me))
    return found


def all_reduce(x, over=""):
    total = x.contiguous().clone()
    work = dist.all_reduce(total, group=groups()[over][0], async_op=True)
    return Pending([work], lambda: total)


def reduce_scatter(x, axis, over=""):
    group, count, _ = groups()[over]
    given = x.movedim(axis, 0).contiguous()
    mine = given.new_empty((given.shape[0] // count, *given.shape[1:]))
    work = _reduce_scatter(mine, given, group=group, async_op=True)
    return Pending([work], lambda: mine.movedim(0, axis))


def all_gather(x, axis, over=""):
    group, count, _ = groups()[over]
    given = x.movedim(axis, 0).contiguous()
    whole = given.new_empty((given.shape[0] * count, *given.shape[1:]))
    work = _all_gather(whole, given, group=group, async_op=True)
    return Pending([work], lambda: whole.movedim(0, axis))


def all_to_all(x, before, after, over=""):
    """From slices along axis `before` to slices along axis `after`."""
    group, count, _ = groups()[over]
    given = torch.stack(x.chunk(count, after))
    taken = torch.empty_like(given)
    work = dist.all_to_all_single(taken, given, group=group, async_op=True)
    return Pending([work], lambda: torch.cat(taken.unbind(0), before))


def send(x, shift, over=""):
    """To the rank `shift` places on in the group, cyclically."""
    group, count, place = groups()[over]
    given = x.contiguous()
    there, here = (place + shift) % count, (place - shift) % count
    if there == place:
        return given
    taken = torch.empty_like(given)
    ends = [(dist.isend, given, there), (dist.irecv, taken, here)]
    peers = [dist.P2POp(way, what, group=group, group_peer=peer) for way, what, peer in ends]
    return Pending(dist.batch_isend_irecv(peers), lambda: taken)


def mine(x, axis, over=""):
    """This rank's slice of a tensor that all ranks of a group have."""
    _, count, place = groups()[over]
    return x.chunk(count, axis)[place]


def cut(x, axis, ways, tiles, tile):
    """A tile: one of `tiles` pieces of each of `ways` ranges along an axis."""
    return x.unflatten(axis, (ways, tiles, -1)).select(axis + 1, tile).flatten(axis, axis + 1)


def joined(parts, axis, ways):
    """The tensor that was cut into tiles."""
    pieces = [ready(part).unflatten(axis, (ways, -1)) for part in parts]
    return torch.stack(pieces, axis + 1).flatten(axis, axis + 2)


@functools.lru_cache(maxsize=16)
def drawn(shape, seed, device):
    """Random numbers from 0 to below 1, the same on every rank; element by element of the whole array."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator, dtype=torch.float64).to(device)


def stand_in(start, operands):
    """In place of a kernel that taccl does not know: random numbers plus the operands. Put yours here."""
    return functools.reduce(torch.add, operands, start)


def rank_seed(seed, over=""):
    return seed + 1 + groups()[over][2]


def compiled(function):
    """One kernel of a function's operations, where there is a GPU."""
    return torch.compile(function) if torch.cuda.is_available() else function


def device():
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")

'''

#: Text after the programs.
TAIL = '''

def inputs(layouts, seed=0):
    """Random local tensors: {name: (shape of the whole, dtype, layout)} to {name: tensor of this rank}."""
    found = {}
    for name, (shape, dtype, layout) in layouts.items():
        own = zlib.crc32(name.encode()) + 1000003 * seed
        for axis, over in layout:
            own = rank_seed(own, over) if axis == "partial" else own
        tensor = drawn(shape, own, device())
        tensor = ((tensor * BOUNDS[name]).floor() if name in BOUNDS else tensor).to(dtype)
        for axis, over in layout:
            tensor = tensor if axis == "partial" else mine(tensor, axis, over)
        found[name] = tensor.clone()
    return found


def compare(seed=0):
    """Largest difference of any output, relative to its largest value, on any rank."""
    found = transformed(**inputs(INPUTS, seed))
    wanted = untransformed(**inputs(UNTRANSFORMED_INPUTS, seed))
    worst = torch.zeros((), dtype=torch.float64)
    for name, (slices, partial) in OUTPUTS.items():
        got, right = found[name].double().cpu(), wanted[name].double().cpu()
        for axis, over in slices:
            right = mine(right, axis, over)
        if got.shape != right.shape:
            raise SystemExit(f"{name}: found shape {tuple(got.shape)}; expected {tuple(right.shape)}")
        if partial is not None:  # ranks may hold other parts of the same sum
            got, right = (ready(all_reduce(each.to(device()), partial)).cpu() for each in (got, right))
        off = torch.where(got == right, 0.0, (got - right).abs() / right.abs().max().clamp_min(1e-30))
        off = torch.where(got.isnan() & right.isnan(), 0.0, off)
        worst = torch.maximum(worst, off.nan_to_num(nan=torch.inf).max() if off.numel() else worst)
    worst = worst.to(device())
    dist.all_reduce(worst, op=dist.ReduceOp.MAX, group=GROUP)
    return worst.item()


def timed(program, layouts, repetitions):
    """Median seconds of a program, from a barrier to the end of this rank's work."""
    given, seconds = inputs(layouts), []
    for _ in range(repetitions + 1):
        dist.barrier(group=GROUP)
        began = time.perf_counter()
        program(**given)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:])


def main():
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    if dist.get_world_size() != RANKS:
        raise SystemExit(f"found {dist.get_world_size()} ranks; this step is of {RANKS}: start as many")
    worst = compare()
    ours, theirs = timed(transformed, INPUTS, 10), timed(untransformed, UNTRANSFORMED_INPUTS, 10)
    if dist.get_rank() == 0:
        verdict = "correct" if worst <= TOLERANCE else "WRONG"
        print(f"{verdict}: outputs differ by {worst:.2g} of their largest value (at most {TOLERANCE:.2g})")
        print(f"transformed {ours * 1e3:.3f} ms, untransformed {theirs * 1e3:.3f} ms (medians of 10)")
    dist.destroy_process_group()
    return int(worst > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
'''
