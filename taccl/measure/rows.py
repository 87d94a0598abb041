"""One line of a log as a row of a table: nccl-tests and rccl-tests, perftest, OSU micro-benchmarks."""

from __future__ import annotations

import re
from typing import NamedTuple

from taccl.errors import FormatError

__all__ = ["Row", "bandwidth_row", "nccl_row", "pair_row", "plain"]

_NUMBER = r"[-+]?(?:\d{1,18}\.?\d{0,18}|\.\d{1,18})(?:[eE][-+]?\d{1,2})?"
#: Colours and cursor movements of terminals.
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
#: Size, count, type, perhaps the reduction; then perhaps the root, times and bandwidths. What launchers put
#: before it (``0:``, ``[1,0]<stdout>:``, a time, a name) is passed over.
_NCCL = re.compile(
    rf"(?:^|[\s:>|])(\d{{1,18}})[ \t]+(\d{{1,18}})[ \t]+([a-z][a-z0-9_]*)[ \t]+(?:([a-z]+)[ \t]+)?"
    rf"({_NUMBER}(?:[ \t]+(?:{_NUMBER}|N/A|nan|inf))*)[ \t|]*$"
)
_NUMBERS = re.compile(rf"(?:^|[>:|\]])[ \t]*({_NUMBER}(?:[ \t]+{_NUMBER})*)[ \t|]*$")
#: What algbw may be off by: a part of it, and half a digit of what is printed.
_TOLERANCE, _HALF_DIGIT = 0.02, 0.0051


class Row(NamedTuple):
    """Size, time, algbw and busbw; whether time and algbw agree; and the reduction, if any."""

    size_bytes: int
    time_us: float
    algbw: float
    busbw: float
    agrees: bool
    reduces: bool


def plain(line: str) -> str:
    """The line without colours, bars of a table, and the spaces at its end."""
    return _ESCAPES.sub("", line).replace("\u00a0", " ").replace("|", " ").rstrip()


def nccl_row(line: str, where: str, *, in_place: bool = False) -> Row | None:
    """The row of nccl-tests or rccl-tests in a line; None where there is none, or not of that place.

    Raises
    ------
    FormatError
        If its time is not above 0 though something was sent.
    """
    found = _NCCL.search(line)
    if found is None:
        return None
    size, reduces = int(found[1]), found[4] not in (None, "none")
    words = found[5].split()
    # A root before the times is a whole number; so may be a time. The reading that agrees is right.
    starts = (1,) if words[0] == "-1" else (1, 0) if words[0].isdigit() else (0,)
    readings = [_reading(size, words[start:], reduces, in_place) for start in starts]
    rows = [row for row in readings if row is not None]
    if not rows:
        return None
    row = next((row for row in rows if row.agrees), rows[0])
    if size and not row.time_us > 0:
        said = (
            f"found a time of {row.time_us:g} us for {size} bytes; expected more than 0; correct or remove it"
        )
        raise FormatError(said, where=where)
    return row


def _reading(size: int, words: list[str], reduces: bool, in_place: bool) -> Row | None:
    if in_place:
        words = words[len(words) // 2 :] if len(words) in (6, 8) else []
    if len(words) < 3 or "N/A" in words[:3]:
        return None
    time_us, algbw, busbw = map(float, words[:3])
    stated = size / time_us / 1000 if time_us > 0 else 0.0
    agrees = abs(stated - algbw) <= _TOLERANCE * max(stated, algbw) + _HALF_DIGIT
    return Row(size, time_us, algbw, busbw, agrees, reduces)


def bandwidth_row(line: str) -> tuple[int, float] | None:
    """Bytes and average bandwidth of a row of perftest (bytes, iterations, peak, average, messages)."""
    found = _NUMBERS.search(line)
    words = found[1].split() if found else []
    return (int(words[0]), float(words[3])) if len(words) == 5 and words[0].isdigit() else None


def pair_row(line: str) -> tuple[int, float] | None:
    """Bytes and the value of a row of OSU micro-benchmarks, which may go on with minimum and maximum."""
    found = _NUMBERS.search(line)
    words = found[1].split() if found else []
    return (int(words[0]), float(words[1])) if len(words) >= 2 and words[0].isdigit() else None
