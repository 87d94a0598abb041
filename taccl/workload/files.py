"""Steps in TOML and JSON: their schema, read and written."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from taccl.arguments import checked_as
from taccl.errors import WorkloadError
from taccl.formats.files import write_whole
from taccl.reading import parse, read_text, toml_text
from taccl.validation import validated
from taccl.workload.operations import Operation, Tensor, infer
from taccl.workload.workload import Overlap, Workload, seed_of

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["load_workload", "save_workload", "schema", "to_dict"]

_Count = Annotated[int, Field(strict=True, ge=1)]
_Natural = Annotated[int, Field(strict=True, ge=0)]
_Cost = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TensorEntry(_Table):
    """What is there when the step begins."""

    name: str
    shape: tuple[_Count, ...]
    dtype: str = "float32"
    layout: str = "replicated"
    becomes: str | None = Field(None, description="what replaces it: then it is kept from step to step")


class OperationEntry(_Table):
    """What makes a tensor of its name."""

    name: str
    kind: str
    inputs: tuple[str, ...] = ()
    axis: _Natural | None = None
    value: float | None = None
    seed: _Natural | None = None
    shift: int = 1
    shape: tuple[_Count, ...] = ()
    dtype: str = "float32"
    layout: str = "replicated"
    cost_us: _Cost | None = None
    flops: _Cost | None = None
    memory_bytes: _Cost | None = None
    fused: str = Field("", description="the collective into whose last step it is fused")


class OverlapEntry(_Table):
    """What runs tile by tile."""

    operations: tuple[str, ...]
    tiles: _Count
    axis: _Natural = 0


class WorkloadFile(_Table):
    """The whole file."""

    name: str
    num_ranks: _Count
    returned: tuple[str, ...] = ()
    input: list[TensorEntry] = []
    operation: list[OperationEntry] = []
    overlap: list[OverlapEntry] = []


@checked_as(WorkloadError)
def load_workload(path: str | os.PathLike[str]) -> Workload:
    """The step in a TOML or JSON file.

    Raises
    ------
    FormatError
        If the file cannot be read.
    WorkloadError
        If it says something that makes no step; the message names the operation.
    """
    source = os.fspath(path)
    return from_dict(parse(read_text(path), source=source), source=source)


def from_dict(data: object, *, source: str = "workload") -> Workload:
    """The step that `to_dict` wrote."""
    file = validated(WorkloadFile, data, source=source, error=WorkloadError)
    inputs = tuple(Tensor(each.name, each.shape, each.dtype, each.layout) for each in file.input)
    tensors = {each.name: each for each in inputs}
    operations = []
    try:
        for entry in file.operation:
            seed = seed_of(entry.name, entry.kind) if entry.seed is None else entry.seed
            made = Operation(**(entry.model_dump() | {"seed": seed}))
            if all(name in tensors for name in made.inputs):
                read = [tensors[name] for name in made.inputs]
                if made.kind == "compute":
                    made = replace(made, reads=tuple(each.layout for each in read))
                tensors[made.name] = infer(made, read, file.num_ranks)
            operations.append(made)
        return Workload(
            file.name,
            file.num_ranks,
            inputs,
            tuple(operations),
            file.returned,
            tuple((each.name, each.becomes) for each in file.input if each.becomes),
            tuple(Overlap(each.operations, each.tiles, each.axis) for each in file.overlap),
        )
    except WorkloadError as error:
        raise WorkloadError(error.message, where=f"{source}: {error.where}") from None


def to_dict(workload: Workload) -> dict[str, Any]:
    """The step as plain values."""
    successor = dict(workload.state)
    inputs = [
        {"name": each.name, "shape": list(each.shape), "dtype": each.dtype, "layout": each.layout}
        | ({"becomes": successor[each.name]} if each.name in successor else {})
        for each in workload.inputs
    ]
    operations = []
    for each in workload.operations:
        options = {name: list(v) if isinstance(v, tuple) else v for name, v in each.options().items()}
        fused = {"fused": each.fused} if each.fused else {}
        operations.append(
            {"name": each.name, "kind": each.kind, "inputs": list(each.inputs)} | options | fused
        )
    return {
        "name": workload.name,
        "num_ranks": workload.num_ranks,
        "returned": list(workload.returned),
        "input": inputs,
        "operation": operations,
        "overlap": [
            {"operations": list(each.operations), "tiles": each.tiles, "axis": each.axis}
            for each in workload.overlaps
        ],
    }


@checked_as(WorkloadError)
def save_workload(workload: Workload, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write a step as TOML, or as JSON where the path ends in ``.json``.

    Parameters
    ----------
    workload : Workload
        With its overlaps and what is fused.
    path : path
        Of the file.
    overwrite : bool
        Whether a file that is there may be replaced.
    """
    data = to_dict(workload)
    is_json = os.fspath(path).lower().endswith(".json")
    write_whole(path, json.dumps(data, indent=1) + "\n" if is_json else _toml(data), overwrite=overwrite)


def schema() -> dict[str, Any]:
    """The JSON Schema of such files."""
    return WorkloadFile.model_json_schema()


def _toml(data: Mapping[str, Any]) -> str:
    lines = [
        f"{key} = {_value(value)}"
        for key, value in data.items()
        if key not in ("input", "operation", "overlap")
    ]
    for table in ("input", "operation", "overlap"):
        for each in data[table]:
            lines += ["", f"[[{table}]]", *(f"{key} = {_value(value)}" for key, value in each.items())]
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    if isinstance(value, str):
        return toml_text(value)
    return f"[{', '.join(map(_value, value))}]" if isinstance(value, list) else repr(value)
