"""Names and tables in generated PyTorch programs: tensors, groups, layouts of inputs, slices of outputs."""

from __future__ import annotations

import keyword
import re
from typing import TYPE_CHECKING

from taccl.workload.kind_programs import FUNCTIONS
from taccl.workload.torch_template import HEAD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taccl.workload.operations import Tensor
    from taccl.workload.workload import Workload

#: Names that the generated module uses itself, which tensors may not shadow.
_TAKEN = frozenset(re.findall(r"^(?:def|class|import) (\w+)", HEAD + FUNCTIONS, re.MULTILINE)) | {
    "dist", "t", "turn", "tuple", "isinstance", "range", "float", "int", "RANKS",
}  # fmt: skip


def group_name(workload: Workload, dims: Sequence[str], groups: set[str]) -> str:
    """Name of the process group over some mesh dimensions; empty for all ranks. It is added to `groups`."""
    name = "" if len(dims) == len(workload.grid.names) else "+".join(dims)
    groups.add(name)
    return name


def _layout(workload: Workload, tensor: Tensor, groups: set[str]) -> tuple[tuple[int | str, str], ...]:
    """Pairs of (axis of slices or "partial", group) that describe a tensor's layout."""
    grid = workload.grid
    found: list[tuple[int | str, str]] = []
    if partial := grid.partial(tensor):
        found.append(("partial", group_name(workload, partial, groups)))
    for axis in range(len(tensor.shape)):
        if dims := grid.slicing(tensor, axis):
            found.append((axis, group_name(workload, dims, groups)))
    return tuple(found)


def compared(workload: Workload, plain: Workload, name: str, groups: set[str]) -> tuple[object, str | None]:
    """Layout of an output of a transformed step, for its comparison with the output of the plain step.

    Returns (slices, group). Slices are (axis, group) pairs for axes that the transformed step slices over
    a group, but the plain step does not. The last item is the group over which the output of the transformed
    step is partial; None if it is not partial.
    """
    grid, ours, theirs = workload.grid, workload.tensors[name], plain.tensors[name]
    slices = []
    for axis in range(len(ours.shape)):
        more = [dim for dim in grid.slicing(ours, axis) if dim not in grid.slicing(theirs, axis)]
        if more:
            slices.append((axis, group_name(workload, more, groups)))
    partial = grid.partial(ours)
    return tuple(slices), group_name(workload, partial, groups) if partial else None


def table_of_inputs(workload: Workload, groups: set[str]) -> str:
    """Python source of a dict {input: (shape, type, layout)}."""
    rows = (
        f"    {local_name(each.name, workload)!r}: ({each.shape}, torch.{each.dtype}, "
        f"{_layout(workload, each, groups)!r}),"
        for each in workload.inputs
    )
    return "\n".join(["{", *rows, "}"])


def local_name(name: str, workload: Workload) -> str:
    """Name of a tensor's variable; prefixed if it is a Python keyword or a name that the module uses."""
    while keyword.iskeyword(name) or name in _TAKEN or name.startswith(("kernel_", "_")):
        name = f"t_{name}"
        while name in workload.tensors:
            name = f"t_{name}"
    return name
