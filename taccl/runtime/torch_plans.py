"""Plans for PyTorch: the index of a plan's folder and its schedules, checked against each other."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from taccl._internal.reading import parse_json, read_text
from taccl._internal.units import format_count
from taccl._internal.validation import Positive, validated
from taccl.errors import FormatError
from taccl.formats.saved import load as load_saved
from taccl.schedule.schedule import Schedule

_INDEX = "plan.json"
_REMEDY = ": write the plan again, or give another folder"


class _Part(BaseModel):
    """Base of the parts of an index; fields that a part does not declare are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class _Files(_Part):
    """Names of a range's files."""

    schedule: str


class _Range(_Part):
    """A range of sizes and its files."""

    min_bytes: Positive
    max_bytes: Positive
    files: _Files


class PlanIndex(_Part):
    """Index of a plan: its collective, number of ranks and ranges of sizes, ascending."""

    version: Literal[1]
    collective: str
    num_ranks: Positive
    ranges: tuple[_Range, ...]


def read_index(folder: Path) -> PlanIndex:
    """Read the index of a plan. Raises `FormatError` if the folder holds no plan, or a field is wrong."""
    source = str(folder / _INDEX)
    data = parse_json(read_text(folder / _INDEX), source=source)
    if data.get("format") != "taccl-plan":
        raise FormatError("found no plan; expected a folder of `taccl plan -o`", where=str(folder))
    index = validated(PlanIndex, data, source=source, error=FormatError, remedy=_REMEDY)
    if not index.ranges:
        raise FormatError(f"found no ranges; expected at least one{_REMEDY}", where=source)
    ends = [end for each in index.ranges for end in (each.min_bytes, each.max_bytes)]
    for place, (low, high) in enumerate(pairwise(ends)):
        if low > high or (low == high and place % 2):
            said = f"found {low} bytes before {high}; expected ascending ranges{_REMEDY}"
            raise FormatError(said, where=f"{source}: ranges[{(place + 1) // 2}]")
    return index


def read_schedules(folder: Path, index: PlanIndex) -> list[Schedule]:
    """Read the schedule of each range. Raises `FormatError` if one does not fit the index."""
    found = []
    for each in index.ranges:
        path = folder / each.files.schedule
        schedule = load_saved(path)
        if not isinstance(schedule, Schedule):
            raise FormatError(f"found no schedule, as {_INDEX} states{_REMEDY}", where=str(path))
        collective = schedule.problem.collective
        if (collective.name, collective.num_ranks) != (index.collective, index.num_ranks):
            said = f"found {collective.name} of {format_count(collective.num_ranks, 'rank')}"
            planned = f"the plan is for {index.collective} of {index.num_ranks}"
            raise FormatError(f"{said}; {planned}{_REMEDY}", where=str(path))
        found.append(schedule)
    return found
