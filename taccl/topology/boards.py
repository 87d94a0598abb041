"""GPU boards by the names that drivers print: their NVLinks or xGMI links and PCIe slots, by data sheets."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

#: {PCIe generation: GB/s of 16 lanes each way, after line coding}.
SLOT_GB_PER_S = {3: 15.75, 4: 31.5, 5: 63.0, 6: 121.0}


class Board(NamedTuple):
    """Links of a GPU board.

    - `num_nvlinks`: Max number of NVLinks, on boards of AMD of xGMI links; 0 for boards without any.
    - `nvlink_gb_per_s`: GB/s of one such link each way.
    - `pcie`: PCIe generation of its slot.
    - `fabric`: Name of the links.
    - `is_meshed`: True if such links join every pair of these GPUs in a server.
    """

    num_nvlinks: int
    nvlink_gb_per_s: float
    pcie: int
    fabric: str = "NVLink"
    is_meshed: bool = False


#: ((pattern in names of boards, board), ...), by the data sheets; the first match counts.
_BOARDS = tuple(
    (re.compile(pattern, re.IGNORECASE), Board(*board))
    for pattern, *board in (
        (r"\bAda Generation", 0, 0, 4),
        (r"\bP100-SXM", 4, 20, 3),
        (r"\bV100-(?:SXM|DGXS)", 6, 25, 3),
        (r"\b(?:P100|V100S?|P40|P4|M60|K80|T4|GTX|TITAN X[Pp]?|TITAN V)\b", 0, 0, 3),
        (r"\bQuadro RTX [68]000|\bTITAN RTX|\bRTX 2080 Ti", 2, 25, 3),
        (r"\bQuadro RTX 5000|\bRTX 2080", 1, 25, 3),
        (r"\bQuadro RTX|\bRTX 20\d\d|\bGTX 16\d\d", 0, 0, 3),
        (r"\bA[18]00\b", 12, 25, 4),
        (r"\bA30\b", 4, 25, 4),
        (r"\bA40\b|\bRTX A(?:4500|5000|5500|6000)|\bRTX 3090", 4, 14.0625, 4),
        (r"\b(?:A10G?|A16|A2|L4|L20|L40S?)\b|\bRTX (?:[34]0\d\d|A\d{4})", 0, 0, 4),
        (r"\bG?B300\b", 18, 50, 6),
        (r"\bG?B[12]00\b", 18, 50, 5),
        (r"\bG?H(?:100|200|800|20)\b", 18, 25, 5),
        (r"\bRTX (?:50\d\d|PRO \d{4})", 0, 0, 5),
        (r"\bMI300A\b", 8, 64, 5, "xGMI", True),
        (r"\bMI3(?:00X|08X|25X)", 7, 64, 5, "xGMI", True),
        (r"\bMI35[05]X", 7, 76.8, 5, "xGMI", True),
        (r"\bMI210\b", 3, 50, 4, "xGMI"),
        (r"\bMI100\b", 3, 46, 4, "xGMI"),
        (r"\bMI[56]0\b|\bRadeon Pro VII\b", 2, 46, 4, "xGMI"),
    )
)
#: Line that names one or more GPUs by number, as of ``nvidia-smi -L``, benchmarks and bug reports.
_LISTED = re.compile(
    r"(?im)^.{0,80}?\b(?:GPU|Device):?\s+(\d{1,3}(?:,\d{1,3}){0,63})[:,]\s+([^,(|\n]{2,80}?)\s*(?:[,(|]|$)"
)
#: Line of the table of ``nvidia-smi`` that names a GPU.
_IN_TABLE = re.compile(
    r"(?m)^\W{0,4}\|\s+(\d{1,3})\s+((?:NVIDIA|Tesla|Quadro|GeForce|TITAN)\b[^|\n]{2,60}?)(?:\s{2,}|\s+\|)"
)


def board_of(name: str) -> Board | None:
    """Board with a name such as ``"Tesla V100-SXM2-16GB"``; None if unknown, or a part of a GPU (MIG)."""
    if re.search(r"\bMIG\b", name):
        return None
    return next((board for pattern, board in _BOARDS if pattern.search(name)), None)


def boards_in(text: str) -> dict[int, str]:
    """{number of a GPU: its name}, of the GPUs in a text whose boards are known."""
    found: dict[int, str] = {}
    for match in (*_LISTED.finditer(text), *_IN_TABLE.finditer(text)):
        if board_of(match[2]) is not None:
            found |= {int(number): match[2].strip() for number in match[1].split(",")}
    return found


def common_board(names: Iterable[str]) -> tuple[str, Board] | None:
    """(a name, board) if the boards of all names have equal links; None otherwise, or without names."""
    known = {name: board_of(name) for name in names}
    if len(set(known.values())) != 1:
        return None
    name, board = next(iter(known.items()))
    return None if board is None else (name, board)
