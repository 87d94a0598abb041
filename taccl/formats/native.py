"""taccl's own file of a schedule: versioned JSON that holds the problem, the transfers and a digest.

``docs/formats.md`` lists the fields; of `result`, ``bound_us`` and ``gap`` are numbers.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, create_model

from taccl.analysis.certificates.bounds import lower_bound
from taccl.arguments import checked
from taccl.caching import cached
from taccl.clauses import CLAUSES, Clause, Clauses
from taccl.errors import FormatError, InputError
from taccl.formats.files import write_whole
from taccl.names import shown
from taccl.problem import Problem
from taccl.reading import parse_json, read_text
from taccl.schedule.schedule import Schedule
from taccl.validation import validated

FORMAT = "taccl-schedule"
VERSION = 2
#: Seconds that the bound of a schedule may take when it is saved without one.
_BOUND_S = 2.0
_LIMIT_BYTES = 10**9
_COLUMNS = {"chunk": np.int32, "link": np.int32, "start": np.int64, "end": np.int64, "group": np.int32}


def dump_schedule(schedule: Schedule, *, extra: dict[str, Any] | None = None) -> dict[str, Any]:
    """The schedule as plain values; `extra` says how it was found and becomes the field ``result``."""
    problem = schedule.problem
    document: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "producer": schedule.producer,
        "finish_us": schedule.finish_us,
        "ticks_per_us": int(problem.costs.ticks_per_us),
        "digest": schedule.digest(),
        "notes": {"problem": list(problem.notes), "topology": list(problem.topology.notes)},
        "problem": problem.to_dict(),
        "transfers": {name: getattr(schedule, name).tolist() for name in (*_COLUMNS, "reduce")},
    }
    if schedule.carries is not None:
        sums = [list(ranks) for ranks in schedule.sums]
        document["transfers"] |= {"carries": schedule.carries.tolist(), "sums": sums}
    if extra is not None:
        try:
            document["result"] = json.loads(_compact(extra))  # as a reader of the file will find it
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"found what JSON cannot hold: {error}", where="extra") from None
    return document | {"file_digest": _file_digest(document)}


def load_schedule(
    document: dict[str, Any], *, where: str = "schedule", problem: Problem | None = None
) -> Schedule:
    """The schedule that `dump_schedule` wrote.

    - `where`: The file that the document came from; it leads error messages.
    - `problem`: A problem that the document's is likely to be. If it is, the schedule is one of this very
      problem, which is not built anew.
    """
    _check_version(document, where)
    fields = validated(
        _Document, document, source=where, error=FormatError,
        remedy="; save the schedule anew instead of editing its file",
    )  # fmt: skip
    columns: dict[str, Any] = {
        name: np.array(getattr(fields.transfers, name), dtype=dtype) for name, dtype in _COLUMNS.items()
    }
    columns["reduce"] = np.array(fields.transfers.reduce, dtype=bool)
    if fields.transfers.carries is not None:
        columns["carries"] = np.array(fields.transfers.carries, dtype=np.int32)
    for column in columns.values():
        column.setflags(write=False)
    if problem is None or document["problem"] != _plain(problem):
        problem = _problem(document["problem"], fields, where)
    try:
        schedule = Schedule(
            problem, producer=fields.producer, sums=tuple(map(tuple, fields.transfers.sums)), **columns
        )
    except InputError as error:
        raise FormatError(str(error), where=f"{where}: transfers") from None
    found: dict[str, Any] = {
        "digest": schedule.digest(),
        "ticks_per_us": problem.costs.ticks_per_us,
        "finish_us": schedule.finish_us,
        "file_digest": _file_digest(document),
    }
    for name, value in found.items():
        stated = getattr(fields, name)
        if stated != value:
            raise FormatError(
                f"found {stated or 'nothing'}, but the content makes it {value}: the file was changed after "
                "it was saved; save the schedule anew instead of editing its file",
                where=f"{where}: {name}",
            )
    return schedule


@checked
def save(
    schedule: Schedule,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    extra: dict[str, Any] | None = None,
) -> None:
    """Write a schedule to a file, whole or not at all, with its bound and gap.

    Parameters
    ----------
    schedule : Schedule
        Compact and implicit ones are listed first.
    path : path
        Of the file.
    extra : dict, optional
        How it was found, such as ``result.to_dict()``; by default its bound and gap are found anew.

    Raises
    ------
    InputError
        If the file exists and `overwrite` is False, or it cannot be written.
    """
    write_whole(path, dump_text(schedule, extra), overwrite=overwrite)


def dump_text(schedule: Schedule, extra: dict[str, Any] | None = None) -> str:
    """The content of a file; the rest is as in `save`."""
    if extra is None:
        bound = lower_bound(schedule.problem, budget_s=_BOUND_S)
        gap = bound.gap(schedule.finish)
        extra = {
            "finish_us": schedule.finish_us,
            "bound_us": bound.bound_us,
            "bound_limits": bound.limits,
            "gap": gap if gap < float("inf") else None,
        }
    document = dump_schedule(schedule, extra=extra)
    lines = (f"{json.dumps(name)}: {_compact(value)}" for name, value in document.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


@checked
def load(path: str | os.PathLike[str]) -> Schedule:
    """The schedule in a file that `save` wrote.

    Raises
    ------
    InputError
        If the file cannot be read; `FormatError` if it does not hold a schedule (see `load_schedule`).
    """
    return load_schedule(read_document(path), where=str(path))


def read_document(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The JSON object in a file of this format, whose fields are not checked yet.

    Raises `InputError` if the file cannot be read; `FormatError` if it is not JSON or of another format or
    version.
    """
    where = str(path)
    document = parse_json(read_text(path, _LIMIT_BYTES), source=where)
    _check_version(document, where)
    return document


def _file_digest(document: dict[str, Any]) -> str:
    """A hash of every field but itself, however the file is laid out."""
    content = {name: value for name, value in document.items() if name != "file_digest"}
    try:
        text = json.dumps(
            content, sort_keys=True, separators=(",", ":"), allow_nan=False, default=np.generic.item
        )
    except ValueError:  # a number such as 1e999, which no file of ours has
        return "none: found a number that is not finite"
    return hashlib.sha256(text.encode()).hexdigest()


def _check_version(document: object, where: str) -> None:
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        found = document.get("format") if isinstance(document, dict) else type(document).__name__
        raise FormatError(
            f"found {shown(repr(found), 60)}; expected the file of a schedule, with format {FORMAT!r}",
            where=f"{where}: format",
        )
    version = document.get("version")
    if version != VERSION or isinstance(version, float):
        raise FormatError(
            f"found version {shown(repr(version), 60)}; this taccl reads version {VERSION}: use the one that "
            "wrote it",
            where=f"{where}: version",
        )


@cached
def _plain(problem: Problem) -> Any:
    return json.loads(_compact(problem.to_dict()))


def _problem(data: dict[str, Any], fields: _Document, where: str) -> Problem:
    try:
        problem = Problem.from_dict(data)
        topology = dataclasses.replace(problem.topology, notes=tuple(fields.notes.topology))
        problem = dataclasses.replace(problem, topology=topology, notes=tuple(fields.notes.problem))
        _ = problem.costs
    except InputError as error:
        raise FormatError(str(error), where=f"{where}: problem") from None
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise FormatError(f"found values that make no problem ({error})", where=f"{where}: problem") from None
    return problem


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False, default=np.generic.item)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


_Index = Annotated[int, Field(ge=0, lt=2**31)]
_Int32 = Annotated[int, Field(ge=-(2**31), lt=2**31)]
_Ticks = Annotated[int, Field(ge=-(2**62), le=2**62)]
_Bytes = Annotated[int, Field(gt=0, lt=2**62)]
_Cost = Annotated[str, Field(pattern=r"^[0-9]+(/[0-9]*[1-9][0-9]*)?$", max_length=4000)]
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_LinkText = Annotated[str, Field(pattern=r"^[0-9]{1,10}$")]
_Hold = tuple[_Index, _Index, _Cost, _Cost, Literal["send", "receive"]]
_Chunk = tuple[list[_Index], list[_Index], _Index | None]
_Derivation = tuple[_Index, _Index, _Index]
_Group = tuple[str, list[_Index], _Index]
_SwitchPolicy = tuple[str, str, list[_Index]]


class _Link(_Strict):
    srcs: list[_Index]
    dsts: list[_Index]
    alpha_us: _Cost
    beta_us_per_mb: _Cost
    name: str


class _InNetwork(_Strict):
    slots: _Index | None = None
    payload_bytes: _Bytes | None = None
    dtype: str
    rtt_us: _Cost | None = None
    efficiency: _Cost


class _Switch(_Strict):
    name: str
    ranks: list[_Index]
    links: list[_Index]
    reduces: _InNetwork | None = None


class _Topology(_Strict):
    name: str
    machine: str
    profile: str
    cost_model: str
    alpha_meaning: Literal["occupies", "pipelined"]
    protocol: str = ""
    launch_us: _Cost = "0"
    node_of_rank: list[_Index]
    links: list[_Link]
    resources: list[str]
    holds: list[Annotated[_Hold, Field(strict=False)]]
    switches: list[_Switch]


class _Collective(_Strict):
    name: str
    num_ranks: _Index
    combining: bool
    chunks_per_rank: _Index
    chunks: list[Annotated[_Chunk, Field(strict=False)]]
    derivations: list[Annotated[_Derivation, Field(strict=False)]]
    groups: list[Annotated[_Group, Field(strict=False)]] = Field(default_factory=list)
    update_us_per_mb: _Cost | None = None


#: How the values of clauses of each shape are written.
_SHAPES: dict[str, Any] = {
    "links": list[_Index],
    "ranks": list[_Index],
    "ranks-of-link": dict[_LinkText, list[_Index]],
    "policies": list[Annotated[_SwitchPolicy, Field(strict=False)]],
    "permutations": list[list[_Index]],
    "fraction": _Cost,
}


def _written(clause: Clause) -> tuple[Any, Any]:
    """The type of a clause's values in a file, and the default where it may be left out."""
    nothing = getattr(Clauses(), clause.field)
    plain = next((kind for kind in (bool, str) if isinstance(nothing, kind)), _Index)
    shape = _SHAPES.get(clause.shape, plain)
    return (shape | None if nothing is None else shape), (None if clause.is_new else ...)


if TYPE_CHECKING:
    _Clauses = _Strict
else:
    _Clauses = create_model(
        "_Clauses",
        __base__=_Strict,
        name=(str, ...),
        where=(dict[str, str], ...),
        **{field: _written(clause) for field, clause in CLAUSES.items()},
    )


class _Problem(_Strict):
    topology: _Topology
    collective: _Collective
    chunk_bytes: _Bytes | list[_Bytes]
    size_bytes: _Bytes | None
    clauses: _Clauses
    release_us: list[list[int | str]] = Field(default_factory=list)
    due_us: list[list[int | str]] = Field(default_factory=list)


class _Transfers(_Strict):
    chunk: list[_Int32]
    link: list[_Int32]
    start: list[_Ticks]
    end: list[_Ticks]
    group: list[_Int32]
    reduce: list[bool]
    carries: list[_Index] | None = None
    sums: list[list[_Index]] = Field(default_factory=list)


class _Notes(_Strict):
    problem: list[str]
    topology: list[str]


class _Result(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    bound_us: _Finite | None = None
    gap: _Finite | None = None


class _Document(_Strict):
    format: str
    version: int
    producer: str
    finish_us: float
    ticks_per_us: _Index
    digest: str
    file_digest: str = ""
    notes: _Notes
    problem: _Problem
    transfers: _Transfers
    result: _Result | None = None
