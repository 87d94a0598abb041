"""Join rows of a log that a terminal, a mail or other output broke into several lines."""

from __future__ import annotations

import re

from taccl.errors import FormatError
from taccl.measure.debug_lines import is_debug
from taccl.measure.rows import is_broken, is_complete, num_begun

#: Further part of a row that began on an earlier line; lines between the rows of a table have no figure.
_REST = re.compile(r"(?=.*[\dNn])\s*(?:[\d.eE+-]+|N/A|nan|inf)(?:\s+(?:[\d.eE+-]+|N/A|nan|inf))*\s*")
#: Line of NCCL_DEBUG, or a report that nccl-tests ends, right behind a figure or an old version's reduction.
#: A host name that begins with a digit cannot be told from the figure.
_BEHIND_FIGURE = re.compile(
    r"(?:(?<=\d)|(?<= (?:sum|min|max|avg))|(?<= (?:prod|none)))"
    r"[A-Za-z][\w.-]{0,252}(?::\d+:\d+ \[\d+\] [NR]CCL |: Test (?:timeout|\w+ failure)).*"
)
#: Min broken rows that show that the lines of a log are broken, not one row alone.
_MIN_ROWS = 3


def rows_without_debug(lines: list[str]) -> list[str]:
    """Lines of a log without the output of NCCL_DEBUG within rows, each such row on one line.

    nccl-tests prints a row in parts: before, between and after its measurements.
    """
    made = list(lines)
    for place, line in enumerate(lines):
        may_end = ("CCL " in line or ": Test " in line) and not is_debug(line)
        found = _BEHIND_FIGURE.search(line) if may_end else None
        if found is None or num_begun(line) != 1:
            continue
        made[place] = line[: found.start()]
        for at in range(place + 1, len(lines)):
            if is_debug(lines[at]):
                continue
            part = _BEHIND_FIGURE.sub("", lines[at])
            if is_complete(made[place]) or not _REST.fullmatch(part):
                break
            made[place] += f" {part}"
            made[at] = ""
    return made


def whole_rows(lines: list[str]) -> list[str]:
    """Lines of a log with each broken row on one line, above empty lines; other broken lines are joined, too.

    All broken lines have one width, at which a terminal breaks within words, and a mail between them.
    """
    broken = [
        place
        for place, (line, after) in enumerate(zip(lines, lines[1:], strict=False))
        if _REST.fullmatch(after) and num_begun(line) == 1
    ]
    if len(broken) < _MIN_ROWS:
        return lines
    width = max(len(lines[place]) for place in broken)
    glue = max(("", " "), key=lambda each: sum(is_complete(_joined(lines, at, width, each)) for at in broken))
    kept = {at for at in broken if _stands_alone(lines[at], _joined(lines, at, width, glue))}
    if len(broken) - len(kept) < max(_MIN_ROWS, len(kept)):
        return lines
    made, place = list(lines), 0
    while place < len(lines):
        is_part = place not in kept and (len(lines[place]) == width or place in broken)
        end = _end(lines, place, width) if is_part else place + 1
        if end > place + 1:
            made[place:end] = [_joined(lines, place, width, glue), *[""] * (end - place - 1)]
        place = end
    return made


def _stands_alone(line: str, joined: str) -> bool:
    """True for a row of nccl-tests that the lines after it do not complete.

    Programs may print numbers of their own below each row.
    """
    try:
        if is_broken(line):
            return False
    except FormatError:
        return True
    return len(joined.split()) == len(line.split()) or not is_complete(joined)


def _end(lines: list[str], start: int, width: int) -> int:
    """Index after the last part of a broken line."""
    end = start + 1
    while end < len(lines) and _is_part(lines[start], lines[end]):
        end += 1
        if len(lines[end - 1]) < width and not _REST.fullmatch(lines[end - 1]):
            break
    return end


def _is_part(line: str, after: str) -> bool:
    """True if `after` may continue a line: figures for a row, text that begins no other line for others."""
    if num_begun(line):
        return _REST.fullmatch(after) is not None
    return bool(after.strip()) and not after.lstrip().startswith("#") and not num_begun(after)


def _joined(lines: list[str], start: int, width: int, glue: str) -> str:
    """One line of the parts of a broken line, each but the last filled up to the width with spaces."""
    *parts, last = lines[start : _end(lines, start, width)]
    return glue.join([*(part.ljust(width) for part in parts), last])
