"""Readers of probe files: this package's JSON, matrices in CSV, output of CUDA tools, and logs by pair."""

from __future__ import annotations

import csv
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from taccl._internal.file_kinds import unquoted
from taccl._internal.names import shown
from taccl._internal.reading import parse_json, read_text, reads
from taccl.errors import FormatError, InputError
from taccl.measure.logs import log_of_text
from taccl.measure.series import POINT_TO_POINT
from taccl.placement.hosts import USUAL_GB_PER_S, USUAL_OVERSUBSCRIPTION
from taccl.placement.probe import PortUse, Probe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from taccl._internal.arguments import Number
    from taccl.topology.topology import Topology

_LIMIT_BYTES = 64 * 10**6
#: Line above a matrix of p2pBandwidthLatencyTest: direction, peer access, and quantity.
_P2P = re.compile(r"^(.*?)\s*P2P=(Enabled|Disabled)\s+(Bandwidth|Latency)\b.*Matrix", re.IGNORECASE)
#: Line above a one-way matrix of nvbandwidth, with the direction of the data.
_NVBANDWIDTH = re.compile(r"^memcpy \w+ GPU\(row\) (->|<-) GPU\(column\) bandwidth \(GB/s\)")
#: Line that users put above the log of each pair.
_PAIR = re.compile(r"^#\s*pair:?\s+(\S+)\s+(\S+)\s*$", re.IGNORECASE | re.MULTILINE)
_BANDWIDTH = re.compile(r"bandwidth|GB/s|gb_per_s", re.IGNORECASE)
#: Cells without a number that tools write on the diagonal, in lower case.
_NOTHING = ("", "-", "x", "na", "n/a", "nan", "none")
_BITS = re.compile(r"Gb/s|Gbit|Gbps")


@reads("matrix of pairs", "probe", "matrix of nvbandwidth", "file of logs by pair")
def load_probe(path: str | os.PathLike[str]) -> Probe:
    """Load a probe from this package's JSON, or from a file that another tool wrote.

    - CSV: a row and a column for every host, with host names at the head of both, of one or of neither.
      Entries are latencies in us, or bandwidths in GB/s or Gb/s if the first cell or a comment says so.
    - Output of the CUDA sample p2pBandwidthLatencyTest: its one-way matrices, with P2P enabled if present.
    - Output of nvbandwidth: its first one-way matrix of GPUs.
    - Logs of `ib_write_bw`, `osu_latency` or `osu_bw` one after the other, each below a line ``# pair A B``.

    Raises `FormatError` if the file is none of these, or its matrix lacks a pair; the message names row and
    column.
    """
    where, text = os.fspath(path), read_text(path, _LIMIT_BYTES)
    text = unquoted(text)
    lines = text.splitlines()
    try:
        if text.lstrip().startswith("{"):
            return _of_ours(parse_json(text, source=where), where)
        if any(_P2P.match(line) for line in lines):
            return _of_p2p(lines, where)
        if any(_NVBANDWIDTH.match(line) for line in lines):
            return _of_nvbandwidth(lines, where)
        return _of_pairs(text, where) if _PAIR.search(text) else _of_csv(lines, where)
    except FormatError:
        raise
    except InputError as error:  # an invalid number in the file
        raise FormatError(error.message, where=f"{where}: {error.where}") from None


def load_probe_topology(
    path: str | os.PathLike[str],
    *,
    bandwidth_gb_per_s: Number = USUAL_GB_PER_S,
    oversubscription: Number = USUAL_OVERSUBSCRIPTION,
    ports: PortUse = "shared",
) -> Topology:
    """Topology of the probe or matrix in a file; see `Probe.topology`."""
    return load_probe(path).topology(
        name=Path(path).stem,
        bandwidth_gb_per_s=bandwidth_gb_per_s,
        oversubscription=oversubscription,
        ports=ports,
    )


def _of_ours(data: dict[str, Any], where: str) -> Probe:
    if data.get("format") != "taccl-probe" or data.get("version") != 1:
        raise FormatError("found no probe; expected what `taccl probe -o` writes", where=where)
    try:
        return Probe.from_dict(data)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        is_missing = isinstance(error, KeyError)
        wrong = f"without the field {error}" if is_missing else f"with an invalid field ({error})"
        said = f"found a probe {wrong}; measure again with `taccl probe`"
        raise FormatError(said, where=where) from None


def _of_csv(lines: Sequence[str], where: str) -> Probe:
    comments = [line for line in lines if line.lstrip().startswith("#")]
    every = csv.reader("" if line in comments else line for line in lines)
    rows = {
        number: [cell.strip() for cell in row]
        for number, row in enumerate(every, 1)
        if any(map(str.strip, row))
    }
    corner, names, table = _matrix(rows, where)
    said = " ".join((corner, *comments))
    if _BITS.search(said):
        return Probe(names, bandwidth_gb_per_s=table / 8)
    is_rate = bool(_BANDWIDTH.search(said))
    return Probe(names, None if is_rate else table, table if is_rate else None)


def _of_p2p(lines: Sequence[str], where: str) -> Probe:
    """Probe from the matrices of p2pBandwidthLatencyTest: one-way, and with P2P enabled if present."""
    found: dict[str, NDArray[np.float64]] = {}
    heads = [(at, head) for at, line in enumerate(lines, 1) if (head := _P2P.match(line))]
    for at, head in sorted(heads, key=lambda each: (each[1][1][:2].lower() != "bi", each[1][2].lower())):
        first = lines[at].split() if at < len(lines) else []
        names, found[head[3].lower()] = _printed(lines, at, len(first), where)
    return Probe(tuple(f"GPU {i}" for i in names), found.get("latency"), found.get("bandwidth"))


def _of_nvbandwidth(lines: Sequence[str], where: str) -> Probe:
    """Probe from the first one-way matrix of nvbandwidth; a pair of GPUs without a figure is an error."""
    at, head = next((at, head) for at, line in enumerate(lines, 1) if (head := _NVBANDWIDTH.match(line)))
    columns = lines[at] if at < len(lines) else ""
    whole = [*lines[:at], f"GPU {columns}", *lines[at + 1 :]]  # other tools have a word in the corner
    names, table = _printed(whole, at, len(columns.split()) + 1, where)
    return Probe(tuple(f"GPU {i}" for i in names), bandwidth_gb_per_s=table if head[1] == "->" else table.T)


def _printed(
    lines: Sequence[str], at: int, num_rows: int, where: str
) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """GPU names and values of a printed matrix that begins after line `at`; `num_rows` includes its head."""
    rows = [line.split() for line in lines[at : at + num_rows]]
    _, names, table = _matrix(dict(enumerate(rows, at + 1)), where)
    return names, table


def _matrix(rows: dict[int, list[str]], where: str) -> tuple[str, tuple[str, ...], NDArray[np.float64]]:
    """Corner cell, host names, and values by row; nan for a diagonal cell that is not a number.

    Names may stand at the head of rows and of columns.
    """
    if not rows:
        raise FormatError("found no rows; expected a matrix, a row for every host", where=where)
    first, *others = rows
    head, corner = rows[first], ""
    names = [str(i) for i in range(len(head))]
    if np.isnan([_number(cell) for cell in head[head[0].lower() in _NOTHING :]]).any():
        # A square matrix with a corner has as many rows (head included) as columns.
        corner, names = (head[0], head[1:]) if len(head) == len(rows) else ("", head)
        rows = {number: rows[number] for number in others}
    table: list[list[float]] = []
    begin = int(any(len(row) == len(names) + 1 for row in rows.values()))
    for number, row in rows.items():
        cells = row[begin:]
        if len(cells) != len(names):
            said = f"found {len(cells)} entries; expected {len(names)}, one for every host"
            raise FormatError(said, where=f"{where}: line {number}")
        values = [_number(cell) for cell in cells]
        for place, (cell, value) in enumerate(zip(cells, values, strict=True)):
            if np.isnan(value) and place != len(table):  # the diagonal is unused
                here = f"{where}: line {number}, column {begin + place + 1}"
                said = f"found {shown(repr(cell), 60)}; expected a number for every pair of hosts"
                raise FormatError(f"{said}; measure it, or leave the host out", where=here)
        table.append(values)
    return corner, tuple(names), np.array(table)


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return float("nan")


def _of_pairs(text: str, where: str) -> Probe:
    """Probe from one log per pair; a direction that was not measured gets the figure of the other."""
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
                raise FormatError(f"found two {kind} logs; expected one for each pair", where=here)
            slot = -1 if each.streams else 0
            value = each.times_us[slot]
            tables[kind][src, dst] = each.size_bytes[slot] / value / 1000 if each.streams else value
    for table in tables.values():
        np.copyto(table, table.T, where=np.isnan(table))
    known = {kind: None if np.isnan(table).all() else table for kind, table in tables.items()}
    return Probe(hosts, known["latency"], known["bandwidth"])
