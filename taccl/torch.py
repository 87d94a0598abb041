"""Run plans in PyTorch: `load` reads a plan, and each call chooses a schedule by message size.

`hook_of` makes a communication hook for DDP, and `shard_with` passes collectives to FSDP2.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from taccl._internal.arguments import checked, quoted
from taccl._internal.units import format_count, format_size
from taccl.errors import FallbackWarning, InputError, warn
from taccl.formats.torch.rounds import METHODS
from taccl.program.lower import lower
from taccl.runtime.torch_calls import gather_texts, has_root, import_torch, module_of, size_of, stock_call
from taccl.runtime.torch_plans import read_index, read_schedules

#: Options of PyTorch's alltoall for blocks of different lengths.
_SPLITS = ("output_split_sizes", "input_split_sizes")

__all__ = ["PlannedCollective", "hook_of", "load", "shard_with"]


@checked
def load(
    folder: str | os.PathLike[str], group: Any = None, *, check_placement: bool = True
) -> PlannedCollective:
    """Load the collective of a plan for a process group; every rank of the group must call it.

    Parameters
    ----------
    folder : path
        A folder that `taccl plan -o` wrote.
    group : ProcessGroup, optional
        The process group; default: all ranks.
    check_placement : bool
        False to run a plan for several nodes on ranks that are placed differently.

    Returns
    -------
    PlannedCollective
        Object with the methods of `torch.distributed` for the plan's collective.

    Raises
    ------
    InputError
        If the plan is for another number of ranks, or for another placement of ranks on nodes.
    FormatError
        If the folder does not contain a plan, or its files are damaged or do not fit each other.
    ExportError
        If PyTorch has no such collective.
    """
    dist = import_torch().distributed
    path = Path(folder)
    index = read_index(path)
    found = dist.get_world_size(group)
    if found < 0:
        raise InputError("this rank is not in the group; load the plan at its members only", where="group")
    if found != index.num_ranks:
        said = f"found {format_count(found, 'rank')}; the plan is for {index.num_ranks}: plan for {found}"
        raise InputError(said, where=str(path))
    schedules = read_schedules(path, index)
    if check_placement:
        _check_placement(tuple(schedules[-1].problem.topology.node_of_rank), group, str(path))
    ranges = []
    for number, (each, schedule) in enumerate(zip(index.ranges, schedules, strict=True)):
        module = module_of(lower(schedule), f"taccl_{index.collective.replace('-', '_')}_{number}")
        ranges.append((each.min_bytes, each.max_bytes, module))
    return PlannedCollective(index.collective, ranges, group)


def _check_placement(nodes: tuple[int, ...], group: Any, where: str) -> None:
    """Raise `InputError` unless ranks share hosts exactly as the plan's ranks share nodes."""
    planned, found = (_grouped(each) for each in (nodes, gather_texts(socket.gethostname(), group)))
    if planned != found:
        said = f"found ranks on hosts as {_shown(found)}; the plan is for {_shown(planned)}"
        raise InputError(f"{said}: plan for these hosts, or pass check_placement=False", where=where)


def _grouped(places: Any) -> list[list[int]]:
    groups: dict[Any, list[int]] = {}
    for rank, place in enumerate(places):
        groups.setdefault(place, []).append(rank)
    return list(groups.values())


def _shown(groups: list[list[int]]) -> str:
    some = [",".join(map(str, each)) for each in groups[:4]]
    return " | ".join([*some, "..."] if len(groups) > len(some) else some)


class PlannedCollective:
    """A plan's collective for a process group, with the methods of `torch.distributed` for it.

    Calls with sizes outside the plan use PyTorch's own collective; the first one gives a warning.

    - `ranges` (list of (min bytes, max bytes, module)): Schedules by size, ascending.
    """

    def __init__(self, collective: str, ranges: list[tuple[int, int, Any]], group: Any = None) -> None:
        dist = import_torch().distributed
        self.collective, self.group = collective, group
        self.num_ranks = dist.get_world_size(group)
        self.ranges = [(low, high, module.Collective(group)) for low, high, module in ranges]
        root = ranges[0][2].ROOT
        if root is not None and group is not None:
            root = dist.get_global_rank(group, root)
        self._stock = stock_call(collective, group, root or 0)
        self._has_warned = False
        for name in METHODS[collective]:
            setattr(self, name, self._call)

    def schedule_of(self, size_bytes: int) -> Any:
        """The ``Collective`` object for a size in bytes; None if PyTorch's own collective runs."""
        return next((each for low, high, each in self.ranges if low <= size_bytes <= high), None)

    def _call(self, *tensors: Any, **options: Any) -> Any:
        """Run the schedule for the size of the tensors, or PyTorch's own collective."""
        self._check_group(options.pop("group", None))
        # A reduction operator may follow the tensors, as in PyTorch's own calls.
        given = tuple(each for each in tensors if hasattr(each, "numel") or isinstance(each, list))
        size = size_of(self.collective, given or tuple(options.values()), self.num_ranks)
        splits = [each for each in (*tensors[2:], *map(options.get, _SPLITS)) if each is not None]
        if self.collective == "alltoall" and splits:
            self._warn(f"{self.collective} with split sizes is not in the plan, which is for equal blocks")
            return self._stock(*tensors, **options)
        found = self.schedule_of(size)
        if found is not None:
            if self.collective == "alltoall":
                tensors = tensors[:2]
                options = {name: each for name, each in options.items() if name not in _SPLITS}
            return getattr(found, METHODS[self.collective][0])(*tensors, **options)
        out = options.pop("out", None)
        if out is not None:  # PyTorch's own all_reduce has no argument `out`
            first, *others = tensors or (options.pop("tensor"),)
            tensors = (out.copy_(first), *others)
        low, high = self.ranges[0][0], self.ranges[-1][1]
        called, first, last = map(format_size, (size, low, high))
        if called in (first, last):  # equal after rounding
            called, first, last = f"{size}B", f"{low}B", f"{high}B"
        self._warn(f"{self.collective} of {called} is not in the plan, which is for {first} to {last}")
        return self._stock(*tensors, **options)

    def _check_group(self, group: Any) -> None:
        """Raise `InputError` for a group other than the one for which the plan was loaded."""
        world = import_torch().distributed.group.WORLD
        if group is not None and group is not (world if self.group is None else self.group):
            said = "found another process group than the plan was loaded for"
            raise InputError(f"{said}; load the plan for that group", where="group")

    def _warn(self, said: str) -> None:
        """Warn once that PyTorch's own collective runs, with the reason."""
        if not self._has_warned:
            self._has_warned = True
            warn(f"{said}; the stock collective runs there", FallbackWarning)

    @cached_property
    def as_comm(self) -> _Comm:
        """The collective in FSDP2's interface for custom communication."""
        return _Comm(self)

    def __repr__(self) -> str:
        ends = f"{format_size(self.ranges[0][0])} to {format_size(self.ranges[-1][1])}"
        return f"PlannedCollective({self.collective}, {format_count(self.num_ranks, 'rank')}, {ends})"


class _Comm:
    """Adapter of a `PlannedCollective` to FSDP2's interface for custom communication."""

    def __init__(self, planned: PlannedCollective) -> None:
        self._planned = planned

    def allocate(self, size: Any, *, dtype: Any, device: Any) -> Any:
        """Allocate a tensor as FSDP2 does by default."""
        return import_torch().empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Any, input_tensor: Any, group: Any, op: Any = None, async_op: bool = False
    ) -> Any:
        """Run the collective as FSDP2 calls it."""
        dist = import_torch().distributed
        if dist.get_world_size(group) != self._planned.num_ranks:
            said = f"found {dist.get_world_size(group)} ranks; the plan is for {self._planned.num_ranks}"
            raise InputError(f"{said}: shard over the group that the plan was loaded for", where="mesh")
        call = getattr(self._planned, METHODS[self._planned.collective][0])
        further = {} if op is None else {"op": op}
        return call(output_tensor, input_tensor, async_op=async_op, **further)


def hook_of(planned: PlannedCollective) -> Callable[[Any, Any], Any]:
    """Make a communication hook for ``DistributedDataParallel.register_comm_hook(None, hook)``.

    As in DDP, gradients are averaged: divided by the number of ranks, then summed.

    Raises `InputError` for another collective than an allreduce.
    """
    _require(planned, "allreduce")

    def taccl_allreduce(state: Any, bucket: Any) -> Any:
        del state
        tensor = bucket.buffer().div_(planned.num_ranks)
        work = planned.all_reduce(tensor, async_op=True)  # type: ignore[attr-defined]
        return work.get_future().then(lambda future: future.value()[0])

    taccl_allreduce.__annotations__ = {}  # DDP rejects annotations other than its own types
    return taccl_allreduce


def shard_with(
    model: Any,
    *,
    all_gather: PlannedCollective | None = None,
    reduce_scatter: PlannedCollective | None = None,
) -> None:
    """Set plans as the collectives of a model's modules to which ``fully_shard`` was applied.

    Parameters
    ----------
    model : Module
        Model; every sharded module in it gets the collectives.
    all_gather, reduce_scatter : PlannedCollective, optional
        Plans of an allgather and of a reduce-scatter, for the group of the model's mesh.

    Raises
    ------
    InputError
        If a plan is for another collective, or no module is sharded by an FSDP2 that accepts collectives.
    """
    if not hasattr(model, "modules"):
        raise InputError(f"found {quoted(model)}; expected a module of PyTorch", where="model")
    sharded = [each for each in model.modules() if hasattr(each, "set_custom_all_gather")]
    if not sharded:
        said = "found no module that takes collectives; apply fully_shard first, of PyTorch 2.9 or newer"
        raise InputError(said, where="model")
    if all_gather is not None:
        _require(all_gather, "allgather")
    if reduce_scatter is not None:
        _require(reduce_scatter, "reduce-scatter")
    for each in sharded:
        if all_gather is not None:
            each.set_custom_all_gather(all_gather.as_comm)
        if reduce_scatter is not None:
            each.set_custom_reduce_scatter(reduce_scatter.as_comm)


def _require(planned: PlannedCollective, collective: str) -> None:
    if not isinstance(planned, PlannedCollective):
        said = f"found {quoted(planned)}; expected a plan that taccl.torch.load returns"
        raise InputError(said, where="plan")
    if planned.collective != collective or has_root(planned.collective):
        raise InputError(f"found a plan of {planned.collective}; expected one of {collective}", where="plan")
