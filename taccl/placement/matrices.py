"""Probes in files: our own, and matrices of pairs in CSV, of p2pBandwidthLatencyTest, and in logs by pair."""

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
#: The line above a matrix of CUDA's sample: which way, whether peers reach each other, and what it states.
_P2P = re.compile(r"^(.*?)\s*P2P=(Enabled|Disabled)\s+(Bandwidth|Latency)\b.*Matrix", re.IGNORECASE)
#: The line above a one-way matrix of nvbandwidth, with the direction of the data.
_NVBANDWIDTH = re.compile(r"^memcpy \w+ GPU\(row\) (->|<-) GPU\(column\) bandwidth \(GB/s\)")
#: The line above a log of one pair, which we ask for.
_PAIR = re.compile(r"^#\s*pair:?\s+(\S+)\s+(\S+)\s*$", re.IGNORECASE | re.MULTILINE)
_BANDWIDTH = re.compile(r"bandwidth|GB/s|gb_per_s", re.IGNORECASE)
#: Cells without a number, as tools write them on the diagonal; in lower case.
_NOTHING = ("", "-", "x", "na", "n/a", "nan", "none")
_BITS = re.compile(r"Gb/s|Gbit|Gbps")


@reads("matrix of pairs", "probe", "matrix of nvbandwidth", "file of logs by pair")
def load_probe(path: str | os.PathLike[str]) -> Probe:
    """The probe in a file of our own, or in one that another tool wrote.

    - CSV: a row and a column for every host; their names may stand at the head of both. Entries are latencies
      in microseconds, or, where the first cell or a comment says so, bandwidths in GB/s or Gb/s.
    - What CUDA's sample p2pBandwidthLatencyTest prints; of its matrices those with P2P enabled, one way.
    - What nvbandwidth prints; its first matrix of GPUs one way.
    - Logs of `ib_write_bw`, `osu_latency` or `osu_bw` one after the other, each below a line ``# pair A B``.

    Raises `FormatError` if the file is none of these, or its matrix is not one of all pairs; row and column
    are named.
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
    except InputError as error:  # what is wrong with the numbers
        raise FormatError(error.message, where=f"{where}: {error.where}") from None


def load_probe_topology(
    path: str | os.PathLike[str],
    *,
    bandwidth_gb_per_s: Number = USUAL_GB_PER_S,
    oversubscription: Number = USUAL_OVERSUBSCRIPTION,
    ports: PortUse = "shared",
) -> Topology:
    """The topology of the probe, or the matrix, in a file; see `Probe.topology`."""
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
        wrong = f"without the field {error}" if is_missing else f"with a field of another kind ({error})"
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
    """One-way matrices, with peers enabled where both are there."""
    found: dict[str, NDArray[np.float64]] = {}
    heads = [(at, head) for at, line in enumerate(lines, 1) if (head := _P2P.match(line))]
    for at, head in sorted(heads, key=lambda each: (each[1][1][:2].lower() != "bi", each[1][2].lower())):
        first = lines[at].split() if at < len(lines) else []
        names, found[head[3].lower()] = _printed(lines, at, len(first), where)
    return Probe(tuple(f"GPU {i}" for i in names), found.get("latency"), found.get("bandwidth"))


def _of_nvbandwidth(lines: Sequence[str], where: str) -> Probe:
    """The first matrix one way; GPUs that cannot reach each other are refused as holes."""
    at, head = next((at, head) for at, line in enumerate(lines, 1) if (head := _NVBANDWIDTH.match(line)))
    columns = lines[at] if at < len(lines) else ""
    whole = [*lines[:at], f"GPU {columns}", *lines[at + 1 :]]  # as other tools have a word in the corner
    names, table = _printed(whole, at, len(columns.split()) + 1, where)
    return Probe(tuple(f"GPU {i}" for i in names), bandwidth_gb_per_s=table if head[1] == "->" else table.T)


def _printed(
    lines: Sequence[str], at: int, num_rows: int, where: str
) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """Names and numbers of a matrix of `count` rows, its head included, below a line."""
    rows = [line.split() for line in lines[at : at + num_rows]]
    _, names, table = _matrix(dict(enumerate(rows, at + 1)), where)
    return names, table


def _matrix(rows: dict[int, list[str]], where: str) -> tuple[str, tuple[str, ...], NDArray[np.float64]]:
    """The corner cell, hosts, and the numbers by row; nan for a cell that is no number.

    Names may stand at the head of both rows and columns.
    """
    if not rows:
        raise FormatError("found no rows; expected a matrix, a row for every host", where=where)
    first, *others = rows
    head, corner = rows[first], ""
    names = [str(i) for i in range(len(head))]
    if np.isnan([_number(cell) for cell in head[head[0].lower() in _NOTHING :]]).any():
        # A square with a corner has as many rows, its head included, as columns.
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
            if np.isnan(value) and place != len(table):  # the diagonal does not count
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
    """Probe from one log per pair; a direction that was not measured copies the other."""
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
