"""Read and write steps as TOML and JSON, with a JSON Schema."""

from __future__ import annotations

import json
import math
import os
from dataclasses import MISSING, fields
from typing import Any, Literal, get_type_hints

from pydantic import create_model

from taccl._internal.arguments import checked_as
from taccl._internal.reading import parse, read_text, reads, toml_document
from taccl._internal.validation import Index, Positive, Table, validated
from taccl.errors import WorkloadError
from taccl.formats.files import write_whole
from taccl.workload.operations import Operation, Tensor
from taccl.workload.tiling import Overlap
from taccl.workload.workload import Workload

_TABLES = {"inputs": Tensor, "operations": Operation, "overlaps": Overlap}
_WORDS = {"Count": Positive, "Natural": Index, "Extended": float | Literal["inf", "-inf"]}


def _model(kind: type, **columns: Any) -> Any:
    """Pydantic model of a table in a file, with the fields of the data class `kind`.

    - `columns`: {field: its type in files}, for fields whose type in files is not that of the class.
    """
    hints = get_type_hints(kind, localns=_WORDS) | columns
    of_file: dict[str, Any] = {
        each.name: (hints[each.name], ... if each.default is MISSING else each.default)
        for each in fields(kind)
    }
    return create_model(f"{kind.__name__}File", __base__=Table, __doc__=kind.__doc__, **of_file)


_FILE = _model(
    Workload,
    **{
        name: list[_model(kind)]  # type: ignore[misc]
        for name, kind in _TABLES.items()
    },
)


@reads("workload")
@checked_as(WorkloadError)
def load_workload(path: str | os.PathLike[str]) -> Workload:
    """Load a workload, the operations of one step, from a TOML or JSON file.

    Raises
    ------
    FormatError
        If the file cannot be read.
    WorkloadError
        If the content is not a valid step; the message names the operation.
    """
    source = os.fspath(path)
    return from_dict(parse(read_text(path), source=source), source=source)


def from_dict(data: object, *, source: str = "workload") -> Workload:
    """Build a step from plain values, as `to_dict` returns them."""
    values = dict(validated(_FILE, data, source=source, error=WorkloadError))
    try:
        for name, kind in _TABLES.items():
            values[name] = tuple(kind(**dict(each)) for each in values[name])
        return Workload(**values)
    except WorkloadError as error:
        raise WorkloadError(error.message, where=f"{source}: {error.where}") from None


def to_dict(workload: Workload) -> dict[str, Any]:
    """Convert a step to plain values; fields that have their default are left out."""

    def plain(value: Any) -> Any:
        if type(value) in (*_TABLES.values(), Workload):
            every = ((each, getattr(value, each.name)) for each in fields(value))
            return {each.name: plain(one) for each, one in every if one != each.default}
        if isinstance(value, float) and math.isinf(value):
            return repr(value)  # "inf" or "-inf": JSON has no number for it
        return [plain(each) for each in value] if isinstance(value, tuple) else value

    found: dict[str, Any] = plain(workload)
    return found


@checked_as(WorkloadError)
def save_workload(workload: Workload, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write a step as TOML, or as JSON if the path ends in ``.json``.

    Parameters
    ----------
    workload : Workload
        The step; its overlaps and fused operations are written as well.
    path : path
        Path of the file.
    overwrite : bool
        True to replace an existing file.
    """
    data = to_dict(workload)
    is_json = os.fspath(path).lower().endswith(".json")
    text = json.dumps(data, indent=1) + "\n" if is_json else toml_document(data)
    write_whole(path, text, overwrite=overwrite)


def schema() -> dict[str, Any]:
    """JSON Schema of step files."""
    found: dict[str, Any] = _FILE.model_json_schema()
    return found
