"""taccl's own schedule format: versioned JSON with the problem, the transfers and a digest.

``docs/formats.md`` lists the fields. ``bound_us`` and ``gap`` of the field ``result`` are numbers or null.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from taccl._internal.arguments import checked
from taccl._internal.caching import cached
from taccl._internal.names import shown
from taccl._internal.reading import parse_json, read_text, reads
from taccl.errors import FormatError, InputError
from taccl.formats.files import write_whole
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule

if TYPE_CHECKING:
    from taccl.analysis.certificates.certificate import Certificate

FORMAT = "taccl-schedule"
VERSION = 2
#: Version of the files of bare schedules (`Schedule.is_bare`). These files leave out derivable columns.
_BARE_VERSION = 3
#: Max seconds to compute the bound of a schedule that is saved without one.
_BOUND_S = 2.0
_LIMIT_BYTES = 10**9
_COLUMNS = {
    "chunk": np.int32, "link": np.int32, "start": np.int64, "end": np.int64, "group": np.int32,
    "reduce": np.bool_, "carries": np.int32,
}  # fmt: skip


def dump_schedule(schedule: Schedule, *, extra: dict[str, Any] | None = None) -> dict[str, Any]:
    """The schedule as a dict for JSON; `extra` (how the schedule was made) becomes the field ``result``."""
    document = _content(schedule, extra)
    return document | {"file_digest": _file_digest(document)}


def _content(schedule: Schedule, extra: dict[str, Any] | None) -> dict[str, Any]:
    """The fields of `dump_schedule`, without the digest of the file."""
    problem = schedule.problem
    document: dict[str, Any] = {
        "format": FORMAT,
        "version": _BARE_VERSION if schedule.is_bare else VERSION,
        "producer": schedule.producer,
        "finish_us": schedule.finish_us,
        "ticks_per_us": int(problem.costs.ticks_per_us),
        "digest": schedule.digest(),
        "notes": {"problem": list(problem.notes), "topology": list(problem.topology.notes)},
        "problem": problem.to_dict(),
        "transfers": _transfers(schedule),
    }
    if schedule.carries is not None:
        document["transfers"]["sums"] = [list(ranks) for ranks in schedule.sums]
    if extra is not None:
        try:
            document["result"] = json.loads(_compact(extra))  # as JSON returns it: tuples become lists
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"found a value that JSON cannot hold: {error}", where="extra") from None
    return document


def load_schedule(
    document: dict[str, Any], *, where: str = "schedule", problem: Problem | None = None
) -> Schedule:
    """Load a schedule from a dict that `dump_schedule` made.

    - `where`: Name of the document's file, for error messages.
    - `problem`: A problem that may equal the document's. If it does, the schedule uses this object, and no
      new problem is built.
    """
    _check_version(document, where)
    _check_field(document, "file_digest", _file_digest(document), where)
    try:
        notes, transfers = document["notes"], document["transfers"]
        if problem is None or document["problem"] != _plain(problem):
            problem = Problem.from_dict(document["problem"])
            topology = replace(problem.topology, notes=tuple(notes["topology"]))
            problem = replace(problem, topology=topology, notes=tuple(notes["problem"]))
        optional = ("end", "group", "reduce", "carries")[0 if document["version"] == _BARE_VERSION else 3 :]
        columns: dict[str, Any] = {
            name: np.array(transfers[name], dtype=dtype)
            for name, dtype in _COLUMNS.items()
            if name not in optional or name in transfers
        }
        read = {name: column.tolist() for name, column in columns.items()}
        if type(transfers.get("reduce")) is int:
            columns["reduce"] = read["reduce"] = transfers["reduce"]
        sums = tuple(map(tuple, transfers.get("sums", ())))
        schedule = Schedule(problem, producer=document["producer"], sums=sums, **columns)
        if document["problem"] != _plain(problem) or transfers != transfers | read:
            raise ValueError("some have the wrong type")
        result = document.get("result") or {}
        if any(type(result.get(name)) not in (int, float, type(None)) for name in ("bound_us", "gap")):
            raise ValueError("bound_us and gap of a result are numbers")
        found = {"digest": schedule.digest(), "ticks_per_us": problem.costs.ticks_per_us}
    except InputError as error:
        raise FormatError(str(error), where=where) from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise FormatError(f"found inconsistent values: {error}", where=where) from None
    for name, value in (found | {"finish_us": schedule.finish_us}).items():
        _check_field(document, name, value, where)
    for column in schedule.kept.arrays.values():
        column.setflags(write=False)
    return schedule


def _transfers(schedule: Schedule) -> dict[str, Any]:
    """{column: values} of a schedule's transfers; of a bare schedule, only the columns that it stores."""
    if schedule.is_bare:
        kept = {name: column.tolist() for name, column in schedule.kept.arrays.items()}
        reduce = schedule.kept.reduce
        return kept | ({"reduce": reduce} if isinstance(reduce, int) else {})
    columns = {name: getattr(schedule, name) for name in _COLUMNS}
    return {name: column.tolist() for name, column in columns.items() if column is not None}


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
        The schedule; an implicit one is expanded first.
    path : path
        Path of the file.
    overwrite : bool
        True to replace an existing file.
    extra : dict, optional
        Origin of the schedule, such as ``result.to_dict()``; by default its bounds and gaps are computed.

    Raises
    ------
    InputError
        If the file exists and `overwrite` is False, or it cannot be written.
    """
    write_whole(path, dump_text(schedule, extra), overwrite=overwrite)


def dump_text(schedule: Schedule, extra: dict[str, Any] | None = None) -> str:
    """Text of a schedule's file; arguments as in `save`."""
    if extra is None:
        from taccl.analysis.certificates.bounds import lower_bound  # imported late: not needed to read a file
        from taccl.analysis.certificates.scopes import bound_over_all_chunkings

        bound = lower_bound(schedule.problem, budget_s=_BOUND_S)
        extra = bounds_of(schedule, bound, bound_over_all_chunkings(bound))
    texts = {name: _texts(value) for name, value in _content(schedule, extra).items()}
    digest = _digest_of(_as_object({name: in_order for name, (_, in_order) in sorted(texts.items())}))
    written = {name: text for name, (text, _) in texts.items()} | {"file_digest": f'"{digest}"'}
    lines = (f"{json.dumps(name)}: {text}" for name, text in written.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _texts(value: Any) -> tuple[str, str]:
    """A value as JSON: (with the fields of objects in their order, with these sorted by name).

    Most of a large schedule is lists of numbers, whose text is made once.
    """
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        texts = {name: _texts(each) for name, each in value.items()}
        return (
            _as_object({name: text for name, (text, _) in texts.items()}),
            _as_object({name: text for name, (_, text) in sorted(texts.items())}),
        )
    text = _compact(value)
    return text, _sorted_text(value) if "{" in text else text


def _as_object(texts: dict[str, str]) -> str:
    """JSON of an object, from the JSON of its fields."""
    return "{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in texts.items()) + "}"


def bounds_of(schedule: Schedule, bound: Certificate, every: Certificate | None) -> dict[str, Any]:
    """Finish, bounds and gaps of a schedule, under the names that `Result.to_dict` uses.

    - `bound`: Lower bound for the schedule's own chunks.
    - `every`: Lower bound over all chunkings; None if there is none.
    """
    from taccl.analysis.certificates.scopes import standing, stronger

    best = stronger(bound, every)
    gaps = {"gap": best.gap(schedule.finish), "gap_over_all_chunkings": every and every.gap(schedule.finish)}
    return {
        "finish_us": schedule.finish_us,
        "bound_us": best.bound_us,
        "bound_limits": best.limits,
        "bound_scope": best.scope,
        "bound_over_all_chunkings_us": every and every.bound_us,
        "standing": standing(best, schedule.finish, every),
        **{name: None if gap == float("inf") else gap for name, gap in gaps.items()},
    }


@checked
def load(path: str | os.PathLike[str]) -> Schedule:
    """Load a schedule from a file that `save` wrote.

    Raises
    ------
    InputError
        If the file cannot be read; `FormatError` if it does not hold a schedule (see `load_schedule`).
    """
    return load_schedule(read_document(path), where=str(path))


@reads("schedule")
def read_document(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The JSON object in a schedule file; only its format and version are checked.

    Raises `InputError` if the file cannot be read; `FormatError` if it is not JSON or of another format or
    version.
    """
    where = str(path)
    document = parse_json(read_text(path, _LIMIT_BYTES), source=where)
    _check_version(document, where)
    return document


def _file_digest(document: dict[str, Any]) -> str:
    """Hash of all fields except the digest itself, independent of field order and whitespace."""
    return _digest_of(_sorted_text({name: each for name, each in document.items() if name != "file_digest"}))


def _digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _sorted_text(value: object) -> str:
    """A value as JSON without spaces, with the fields of objects sorted by name."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=np.generic.item)


def _check_version(document: object, where: str) -> None:
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        found = document.get("format") if isinstance(document, dict) else type(document).__name__
        raise FormatError(
            f"found {shown(repr(found), 60)}; expected the file of a schedule, with format {FORMAT!r}",
            where=f"{where}: format",
        )
    version = document.get("version")
    if version not in (VERSION, _BARE_VERSION) or isinstance(version, float):
        raise FormatError(
            f"found version {shown(repr(version), 60)}; this taccl reads versions {VERSION} and "
            f"{_BARE_VERSION}: use the one that wrote it",
            where=f"{where}: version",
        )


def _check_field(document: dict[str, Any], name: str, value: object, where: str) -> None:
    """Raise `FormatError` if a field differs from the value that the rest of the file implies."""
    if document.get(name) != value:
        raise FormatError(
            f"found {shown(repr(document.get(name)), 80)}, but the content makes it {value}: the file was "
            "edited after it was saved; save the schedule again",
            where=f"{where}: {name}",
        )


@cached
def _plain(problem: Problem) -> dict[str, Any]:
    return problem.to_dict()


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False, default=np.generic.item)
