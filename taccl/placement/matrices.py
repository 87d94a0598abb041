"""Probes in files: our own, and matrices of pairs in CSV, of p2pBandwidthLatencyTest, and in logs by pair."""

from __future__ import annotations

import csv
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

_LIMIT_BYTES = 64 * 10**6
#: The line above a matrix of CUDA's sample: which way, whether peers reach each other, and what it states.
_P2P = re.compile(r"^(.*?)\s*P2P=(Enabled|Disabled)\s+(Bandwidth|Latency)\b.*Matrix", re.IGNORECASE)
#: The line above a log of one pair, which we ask for.
_PAIR = re.compile(r"^#\s*pair:?\s+(\S+)\s+(\S+)\s*$", re.IGNORECASE | re.MULTILINE)
_BANDWIDTH = re.compile(r"bandwidth|GB/s|gb_per_s", re.IGNORECASE)
#: What may stand on the diagonal.
_NOTHING = ("", "-", "x", "X")
_BITS = re.compile(r"Gb/s|Gbit|Gbps")


def load_probe(path: str | os.PathLike[str]) -> Probe:
    """The probe in a file of our own, or in one that another tool wrote.

    - CSV: a row and a column for every host; their names may stand at the head of both. Entries are latencies
      in microseconds, or, where the first cell or a comment says so, bandwidths in GB/s or Gb/s.
    - What CUDA's sample p2pBandwidthLatencyTest prints; of its matrices those with P2P enabled, one way.
    - Logs of `ib_write_bw`, `osu_latency` or `osu_bw` one after the other, each below a line ``# pair A B``.

    Raises `FormatError` if the file is none of these, or its matrix is not one of all pairs; row and column
    are named.
    """
    where, text = os.fspath(path), read_text(path, _LIMIT_BYTES)
    lines = text.splitlines()
    try:
        if text.lstrip().startswith("{"):
            return _of_ours(parse_json(text, source=where), where)
        if any(_P2P.match(line) for line in lines):
            return _of_p2p(lines, where)
        return _of_pairs(text, where) if _PAIR.search(text) else _of_csv(lines, where)
    except FormatError:
        raise
    except InputError as error:  # what is wrong with the numbers
        raise FormatError(error.message, where=f"{where}: {error.where}") from None


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


def _of_ours(data: dict[str, Any], where: str) -> Probe:
    if data.get("format") != "taccl-probe" or data.get("version") != 1:
        raise FormatError("found no probe; expected what `taccl probe -o` writes", where=where)
    try:
        return Probe.from_dict(data)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        said = f"found a probe whose fields are not of their kind ({error}); write it anew"
        raise FormatError(said, where=where) from None


def _of_csv(lines: Sequence[str], where: str) -> Probe:
    comments = [line for line in lines if line.lstrip().startswith("#")]
    rows = [
        (number, [cell.strip() for cell in row])
        for number, row in enumerate(csv.reader("" if line in comments else line for line in lines), 1)
        if any(cell.strip() for cell in row)
    ]
    if not rows:
        raise FormatError("found no rows; expected a matrix, a row for every host", where=where)
    head, corner = rows[0][1], ""
    names = [str(i) for i in range(len(head))]
    if any(_number(cell) is None for cell in head[head[0] in _NOTHING :]):
        # A square with a corner has as many rows, its head included, as columns.
        corner, names = (head[0], head[1:]) if len(head) == len(rows) else ("", head)
        rows = rows[1:]
    count = len(names)
    matrix: list[list[float | None]] = []
    for number, row in rows:
        cells = row[len(row) == count + 1 :]
        if len(cells) != count:
            said = f"found {len(cells)} entries; expected {count}, one for every host"
            raise FormatError(said, where=f"{where}: line {number}")
        values = [_number(cell) for cell in cells]
        for j, (cell, value) in enumerate(zip(cells, values, strict=True)):
            if value is None and cell and (j != len(matrix) or cell not in _NOTHING):
                said = f"found {shown(repr(cell), 60)} in column {j}; expected a number"
                raise FormatError(said, where=f"{where}: line {number}")
        matrix.append(values)
    if len(matrix) != count:
        said = f"found {len(matrix)} rows of {count} entries; expected a square, a row for every host"
        raise FormatError(said, where=where)
    table, said = np.array(matrix, dtype=np.float64), " ".join((corner, *comments))
    if _BITS.search(said):
        return Probe(tuple(names), bandwidth_gb_per_s=table / 8)
    if _BANDWIDTH.search(said):
        return Probe(tuple(names), bandwidth_gb_per_s=table)
    return Probe(tuple(names), latency_us=table)


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _of_p2p(lines: Sequence[str], where: str) -> Probe:
    """One-way matrices, with peers enabled where both are there."""
    found: dict[str, tuple[tuple[bool, bool], NDArray[np.float64]]] = {}
    for at, line in enumerate(lines):
        if head := _P2P.match(line):
            rank = (not head[1].lower().startswith("bi"), head[2].lower() == "enabled")
            kind = head[3].lower()
            if kind not in found or rank > found[kind][0]:
                found[kind] = rank, _grid(lines[at + 1 :], f"{where}: line {at + 2}")
    matrices = {kind: matrix for kind, (_, matrix) in found.items()}
    hosts = tuple(f"GPU {i}" for i in range(max(map(len, matrices.values()))))
    return Probe(hosts, matrices.get("latency"), matrices.get("bandwidth"))


def _grid(lines: Sequence[str], where: str) -> NDArray[np.float64]:
    """The matrix below a head of column numbers, each row behind its own."""
    count = len(lines[0].split()) - 1 if lines else 0
    rows = [[_number(cell) for cell in line.split()] for line in lines[1 : 1 + max(count, 0)]]
    number = next((i for i, row in enumerate(rows) if len(row) != count + 1 or None in row), len(rows))
    if count < 2 or number < count:
        found = shown(repr(lines[1 + number].strip()), 80) if number + 1 < len(lines) else "the end"
        said = f"found {found}; expected row {number} of {max(count, 2)} numbers"
        raise FormatError(said, where=where)
    return np.array(rows, dtype=np.float64)[:, 1:]


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
