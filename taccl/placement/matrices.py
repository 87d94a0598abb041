"""Probes in files: our own, and matrices of pairs in CSV, of p2pBandwidthLatencyTest, and in logs by pair."""

from __future__ import annotations

import csv
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from taccl.errors import FormatError, InputError
from taccl.measure.logs import log_of_text
from taccl.measure.series import POINT_TO_POINT
from taccl.names import shown
from taccl.placement.probe import USUAL_GB_PER_S, USUAL_OVERSUBSCRIPTION, Probe
from taccl.reading import parse_json, read_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from taccl.arguments import Number
    from taccl.topology.topology import Topology

__all__ = ["load_probe", "load_probe_topology", "read_matrices"]

_LIMIT_BYTES = 64 * 10**6
#: The line above a matrix of CUDA's sample: which way, whether peers reach each other, and what it states.
_P2P = re.compile(r"^(.*?)\s*P2P=(Enabled|Disabled)\s+(Bandwidth|Latency)\b.*Matrix", re.IGNORECASE)
#: The line above a log of one pair, which we ask for.
_PAIR = re.compile(r"^#\s*pair:?\s+(\S+)\s+(\S+)\s*$", re.IGNORECASE | re.MULTILINE)
_BANDWIDTH = re.compile(r"bandwidth|GB/s|gb_per_s", re.IGNORECASE)
_BITS = re.compile(r"Gb/s|Gbit|Gbps")


def load_probe(path: str | os.PathLike[str]) -> Probe:
    """The probe in a file of our own, or the matrix in another tool's; see `read_matrices`."""
    text = read_text(path, _LIMIT_BYTES)
    if not text.lstrip().startswith("{"):
        return read_matrices(path)
    where = str(path)
    data = parse_json(text, source=where)
    if data.get("format") != "taccl-probe" or data.get("version") != 1:
        raise FormatError("found no probe; expected what `taccl probe -o` writes", where=where)
    try:
        return Probe.from_dict(data)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise FormatError(error.message, where=f"{where}: {error.where}") from None
        said = f"found a probe whose fields are not of their kind ({error}); write it anew"
        raise FormatError(said, where=where) from None


def load_probe_topology(
    path: str | os.PathLike[str],
    *,
    bandwidth_gb_per_s: Number = USUAL_GB_PER_S,
    oversubscription: Number = USUAL_OVERSUBSCRIPTION,
) -> Topology:
    """The topology of the probe, or the matrix, in a file; see `Probe.topology`."""
    return load_probe(path).topology(
        name=Path(path).stem, bandwidth_gb_per_s=bandwidth_gb_per_s, oversubscription=oversubscription
    )


def read_matrices(path: str | os.PathLike[str]) -> Probe:
    """The probe in a file that another tool wrote.

    - CSV: a row and a column for every host; their names may stand at the head of both. Entries are latencies
      in microseconds, or, where the first cell or a comment says so, bandwidths in GB/s or Gb/s.
    - What CUDA's sample p2pBandwidthLatencyTest prints; of its matrices those with P2P enabled, one way.
    - Logs of `ib_write_bw`, `osu_latency` or `osu_bw` one after the other, each below a line ``# pair A B``.

    Raises
    ------
    FormatError
        If the file is none of these, or its matrix is not one of all pairs; row and column are named.
    """
    where, text = os.fspath(path), read_text(path, _LIMIT_BYTES)
    lines = text.splitlines()
    try:
        if any(_P2P.match(line) for line in lines):
            return _of_p2p(lines, where)
        if _PAIR.search(text):
            return _of_pairs(text, where)
        return _of_csv(lines, where)
    except FormatError:
        raise
    except InputError as error:  # what is wrong with the numbers
        raise FormatError(error.message, where=f"{where}: {error.where}") from None


def _of_csv(lines: Sequence[str], where: str) -> Probe:
    comments = [line for line in lines if line.lstrip().startswith("#")]
    rows = [
        (number, [cell.strip() for cell in row])
        for number, row in enumerate(csv.reader("" if line in comments else line for line in lines), 1)
        if any(cell.strip() for cell in row)
    ]
    if not rows:
        raise FormatError("found no rows; expected a matrix, a row for every host", where=where)
    first = rows[0][1]
    has_head = (
        any(_number(cell) is None for cell in first[1:]) or _number(first[0]) is None and bool(first[0])
    )
    corner, names = "", [str(i) for i in range(len(first))]
    if has_head:
        corner, names = first[0], first[1:]
        rows = rows[1:]
        if rows and len(rows[0][1]) == len(first) and len(rows) == len(first):  # no corner: names alone
            corner, names = "", first
    labelled = bool(rows) and len(rows[0][1]) == len(names) + 1
    count = len(names)
    for number, row in rows:
        if len(row) - labelled != count:
            said = f"found {len(row) - labelled} entries; expected {count}, one for every host"
            raise FormatError(said, where=f"{where}: line {number}")
    if len(rows) != count:
        said = f"found {len(rows)} rows of {count} entries; expected a square, a row for every host"
        raise FormatError(said, where=where)
    matrix = np.full((count, count), np.nan)
    for i, (number, row) in enumerate(rows):
        for j, cell in enumerate(row[labelled:]):
            value = _number(cell)
            if value is None and (i != j or cell not in ("", "-", "x", "X")) and cell:
                said = f"found {shown(repr(cell), 60)} in column {j}; expected a number"
                raise FormatError(said, where=f"{where}: line {number}")
            matrix[i, j] = np.nan if value is None else value
    said = " ".join((corner, *comments))
    if _BITS.search(said):
        return Probe(tuple(names), bandwidth_gb_per_s=matrix / 8)
    if _BANDWIDTH.search(said):
        return Probe(tuple(names), bandwidth_gb_per_s=matrix)
    return Probe(tuple(names), latency_us=matrix)


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _of_p2p(lines: Sequence[str], where: str) -> Probe:
    """One-way matrices, with peers enabled where both are there."""
    found: dict[str, tuple[tuple[bool, bool], NDArray[np.float64]]] = {}
    for at, line in enumerate(lines):
        head = _P2P.match(line)
        if head is None:
            continue
        rank = (not head[1].lower().startswith("bi"), head[2].lower() == "enabled")
        kind = head[3].lower()
        if kind not in found or rank > found[kind][0]:
            found[kind] = rank, _grid(lines, at + 1, where)
    sizes = {len(matrix) for _, matrix in found.values()}
    if len(sizes) > 1:
        raise FormatError(f"found matrices of {' and '.join(map(str, sorted(sizes)))} GPUs", where=where)
    hosts = tuple(f"GPU {i}" for i in range(sizes.pop()))
    matrices = {kind: matrix for kind, (_, matrix) in found.items()}
    return Probe(hosts, matrices.get("latency"), matrices.get("bandwidth"))


def _grid(lines: Sequence[str], at: int, where: str) -> NDArray[np.float64]:
    """The matrix below a head of column numbers."""
    head = lines[at].split() if at < len(lines) else []
    count = len(head) - 1
    rows: list[list[float | None]] = []
    for number, line in enumerate(lines[at + 1 : at + 1 + count], at + 2):
        cells = [_number(cell) for cell in line.split()]
        if len(cells) != count + 1 or None in cells or cells[0] != len(rows):
            said = f"found {shown(repr(line.strip()), 80)}; expected row {len(rows)} of {count} numbers"
            raise FormatError(said, where=f"{where}: line {number}")
        rows.append(cells[1:])
    if count < 2 or len(rows) != count:
        said = f"found {len(rows)} rows of {max(count, 0)} columns; expected two GPUs or more, and all rows"
        raise FormatError(said, where=f"{where}: line {at + 1}")
    return np.array(rows, dtype=np.float64)


def _of_pairs(text: str, where: str) -> Probe:
    """Of every pair its log; a direction that was not measured is taken from the other."""
    heads = list(_PAIR.finditer(text))
    hosts = tuple(dict.fromkeys(name for head in heads for name in (head[1], head[2])))
    place = {name: number for number, name in enumerate(hosts)}
    tables = {kind: np.full((len(hosts), len(hosts)), np.nan) for kind in ("latency", "bandwidth")}
    for head, after in zip(heads, [*heads[1:], None], strict=True):
        src, dst = place[head[1]], place[head[2]]
        here = f"{where}: pair {shown(head[1], 60)} {shown(head[2], 60)}"
        if src == dst:
            raise FormatError("found one host twice; expected two hosts", where=here)
        log = log_of_text(text[head.end() : after.start() if after else None], here)
        for each in log.series:
            if each.collective != POINT_TO_POINT:
                continue
            kind = "bandwidth" if each.streams else "latency"
            if not np.isnan(tables[kind][src, dst]):
                raise FormatError(f"found two {kind} logs; expected one of each pair", where=here)
            slot = -1 if each.streams else 0
            value = each.times_us[slot]
            tables[kind][src, dst] = each.size_bytes[slot] / value / 1000 if each.streams else value
    for table in tables.values():
        np.copyto(table, table.T, where=np.isnan(table))
    known = {kind: None if np.isnan(table).all() else table for kind, table in tables.items()}
    return Probe(hosts, known["latency"], known["bandwidth"])
