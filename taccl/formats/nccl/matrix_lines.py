"""Repair the text of a topology matrix: prefixes of lines, wrapped lines, and joined words."""

from __future__ import annotations

import re
from collections.abc import Mapping

from taccl._internal.arguments import quoted

#: Pattern of one cell of the matrix.
CELL = r"X|SYS|SOC|NODE|PHB|PXB|PIX|NV[1-9]\d*"
#: Several cells of the matrix without spaces between them.
_GLUED = re.compile(rf"(?:{CELL}){{2,}}")
#: The last cell of a row, joined to the CPU affinity after it.
_GLUED_AFFINITY = re.compile(rf"({CELL})(N/A|\d[\d,-]*)")
#: `_FIRST_ROW`: row of the first GPU, which begins with its own cell. `_HEAD_WORD`: word of a header.
#: `_ROW`: beginning of a row. `_REST`: further part of a row that began on an earlier line.
_FIRST_ROW = re.compile(r"GPU\d+\s+X(?:\s|$)")
_HEAD_WORD = re.compile(r"[A-Z]+\d*|\d+|A?[a-z]+\d*(?:_\d+)*")
_ROW = re.compile(rf"([A-Za-z]\w*\d)\s+(?:{CELL})(?:\s|$)")
_REST = re.compile(r"[A-Z\d\s,/-]+")
#: First column of a header after those of devices.
_AFFINITY = re.compile(r"(?:CPU|NUMA)\s*Aff")


def unwrapped(lines: list[str]) -> list[str]:
    """Lines of a matrix whose long lines a terminal or a mail broke, each made whole, above empty lines."""
    words = [line.strip() for line in lines]
    first = next((i for i, line in enumerate(words) if _FIRST_ROW.match(line)), None)
    if first is None:
        return lines
    # The header begins with the first GPU; a title may stand above it.
    begins = re.compile(rf"{words[first].split()[0]}(?!\d)")
    above = range(first - 1, -1, -1)
    start = next((i for i in above if begins.match(words[i]) or not _is_head(words[i])), first)
    if first - start < 2 or not begins.match(words[start]):
        return lines
    end = next((i for i in range(first, len(lines)) if not words[i]), len(lines))
    width = max(map(len, lines[start:end]))
    whole = _joined_parts(lines[start:first], width)
    devices = re.findall(r"[a-zA-Z]\w*?\d+(?=\s|$|GPU|NIC)", _AFFINITY.split(whole)[0])
    blocks: list[tuple[int, list[str]]] = [(start, lines[start:first])]
    for number in range(first, len(lines)):
        row = _ROW.match(words[number])
        if row is not None and row[1] in devices:
            blocks.append((number, [lines[number]]))
        elif len(blocks) > 1 and _REST.fullmatch(words[number] or "."):
            blocks[-1][1].append(lines[number])
        elif words[number]:
            break
    made = list(lines)
    for number, parts in blocks:
        made[number : number + len(parts)] = [_joined_parts(parts, width), *[""] * (len(parts) - 1)]
    return made


def _is_head(line: str) -> bool:
    """True for a line of words of a header; one word after another, as a single pattern takes too long."""
    return bool(line) and all(map(_HEAD_WORD.fullmatch, line.split()))


def _joined_parts(parts: list[str], width: int) -> str:
    """Rejoin the parts of a line that was broken.

    A part of the full width may end within a word, but no word has a letter after a digit.
    """
    line = last = ""
    for part in parts:
        is_within = not (line[-1:].isdigit() and part[:1].isalpha())
        line += part if len(last) == width and is_within else f" {part}"
        last = part
    return line


def of_first(lines: list[str], prefix: str, others: list[int]) -> list[str]:
    """Lines of the first matrix, without prefixes such as host names; other lines are empty or left out.

    - `prefix`: Text before the columns of the header, such as a host that a launcher puts before each line.
    - `others`: Index of the second header; empty if there is none.
    """
    lines = [line.strip() for line in lines]
    if others and prefix and not lines[others[0]].startswith(prefix):
        # A launcher may mix the lines of several hosts: keep the lines of the host of the first header.
        own = [line.removeprefix(prefix) if line.startswith(prefix) else "" for line in lines]
        gpus = re.findall(r"\bGPU\d+", next(filter(None, own)))
        if set(gpus) <= {line.split()[0] for line in own if line.strip()}:
            return own
    # If the header begins with a line number or timestamp, other lines may begin with different ones.
    form = re.compile(re.sub(r"\d+", r"\\d+", re.escape(prefix)))
    begins = [(line, form.match(line)) for line in lines[: others[0] if others else None]]
    return [line[match.end() :] if match else "" for line, match in begins]


def unglued(
    words: list[str], devices: tuple[str, ...], mirror: Mapping[str, str], repairs: list[str]
) -> list[str]:
    """Words of a row, after splitting cells that have no space between them.

    The last cell may be joined to the affinity. NV120-31 may be NV12 and 0-31, or NV1 and 20-31. The row of
    the last device decides: it has the same cell, for the opposite direction.

    - `mirror` (mapping of str to str): {device: its cell in the row of the last device}.
    - `repairs`: List to which a description of each split word is appended.
    """
    split: list[str] = []
    for word in words[1:]:
        parts = [word]
        if len(split) < len(devices) and _GLUED.fullmatch(word):
            parts = re.findall(CELL, word)
        elif len(split) == len(devices) - 1 and (glued := _GLUED_AFFINITY.fullmatch(word)):
            cell = mirror.get(words[0], glued[1])
            # Do not split NV12 into NV1 and affinity 2: NV12 may be a whole cell that contradicts the
            # other direction.
            if word.startswith(cell) and not re.fullmatch(r"\d*", word.removeprefix(cell)):
                parts = [cell, word.removeprefix(cell)]
        if len(parts) > 1:
            repairs.append(f"{quoted(word)} in the row of {words[0]} is {' and '.join(parts)}")
        split += parts
    return [words[0], *split]
