"""Read probes from this package's JSON, matrices in CSV, output of CUDA or ROCm tools, or logs by pair."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arguments import Number
from taccl._internal.file_kinds import unquoted
from taccl._internal.names import first_of, shown
from taccl._internal.reading import parse_json, plain_values, read_text, reads
from taccl._internal.text_kinds import MATRIX_IN_TEXT
from taccl._internal.units import format_count
from taccl.errors import FormatError, InputError
from taccl.measure.logs import log_of_text
from taccl.measure.rows import with_points
from taccl.measure.series import POINT_TO_POINT
from taccl.placement.hosts import USUAL_GB_PER_S, USUAL_OVERSUBSCRIPTION
from taccl.placement.pair_cells import Table, matrices_in, table_of, tables_of_pairs, unit_of, without_units
from taccl.placement.probe import PortUse, Probe
from taccl.topology.boards import boards_in
from taccl.topology.topology import Topology

_LIMIT_BYTES = 64 * 10**6
#: Line above a matrix of p2pBandwidthLatencyTest: direction, peer access, and quantity.
_P2P = re.compile(
    r"^(.*?)\s*P2P=(Enabled|Disabled)\s+(Bandwidth|Latency)\b.*(?:Matrix|\((?:GB/s|us)\))", re.IGNORECASE
)
#: Line above the one-way matrix of rocm_bandwidth_test, or of TransferBench's preset `p2p`.
_ROCM = re.compile(r"(?i)^\s*Unidirectional copy peak bandwidth GB/s(?!.*\bNIC\b)")
#: Line of rocm_bandwidth_test that names a device; GPUs have an id and an address as well.
_ROCM_DEVICE = re.compile(r"(?i)^\s*Device:\s+(\d+),.*,\s*[0-9a-f]+:[0-9a-f]+\.\d\s*$")
#: Row of TransferBench with the least or greatest rates of one row, or their standard deviations.
_ROCM_SPREAD = re.compile(r"^\s*[CG]PU \d+\s+(?:min|max|sd)\b")
#: Heading of a matrix of these tools; its group is the label that a launcher or a logger put before it.
_HEADING = re.compile(
    r"(?i)(.{0,120}?)(?:(?:Uni|Bi)directional\s+P2P=|P2P=(?:Enabled|Disabled)|memcpy \w+ GPU\(row\)|"
    r"Device to Device Latency|Unidirectional copy peak)"
)
#: Line of p2pBandwidthLatencyTest on a pair without peer access.
_NO_ACCESS = re.compile(r"^\s*Device=\d+ CANNOT Access Peer Device=\d+")
#: Ratio of rates through host memory to direct ones above which pairs are reported; our choice.
_FASTER = 1.1
#: Line in which nvbandwidth, if run as several processes, names the host of one process.
_PROCESS = re.compile(r"\s*Process\s+\d+\s+\(([^)\s]{1,255})\):\s+device\s")
#: Line above a one-way matrix of nvbandwidth, with the direction of the data.
_NVBANDWIDTH = re.compile(r"^memcpy \w+ GPU\(row\) (->|<-) GPU\(column\) bandwidth \(GB/s\)")
#: Beginning of the JSON that nvbandwidth prints with ``--json``; other output may surround it.
_NVBANDWIDTH_JSON = re.compile(r"^\{\s*\"nvbandwidth\"\s*:", re.MULTILINE)
#: Line before the matrices of a test of nvbandwidth, with the name of the test.
_NVBANDWIDTH_TEST = re.compile(r"^\s*Running (\w+)\.")
#: Advice on pairs of GPUs that nvbandwidth does not measure.
_NO_PEERS = "such GPUs have no peer access; p2pBandwidthLatencyTest measures them through host memory"
#: The same for rocm_bandwidth_test.
_NO_PEERS_ROCM = "such GPUs have no peer access; save the matrix as CSV, with their rates through host memory"
#: Line above a matrix of nvbandwidth with latencies between GPUs.
_NVBANDWIDTH_LATENCY = re.compile(r"^Device to Device Latency \w+ GPU\(row\) <-> GPU\(column\) \(ns\)")
#: Header of mpiGraph's matrix of rates out of each host; its MB have 2^20 bytes. `_MPIGRAPH_ROW`: its rows.
_MPIGRAPH, _MPIGRAPH_ROW = re.compile(r"Send\s+\S+:\d+\s+\S+:\d+"), re.compile(r"^(\S+:\d+) to\b")
_MPIGRAPH_GB_PER_S = 2**20 / 1e9
#: Line that users put above the log of each pair.
_PAIR = re.compile(r"^#\s*pair:?\s+(\S+)\s+(\S+)\s*$", re.IGNORECASE | re.MULTILINE)


@reads(
    "matrix of pairs", MATRIX_IN_TEXT, "probe", "matrix of nvbandwidth", "output of nvbandwidth in JSON",
    "matrix of rocm_bandwidth_test or TransferBench", "output of mpiGraph", "file of logs by pair",
)  # fmt: skip
def load_probe(path: str | os.PathLike[str]) -> Probe:
    """Load a probe from this package's JSON, or from a file that another tool wrote.

    - CSV: a row and a column for every host, with host names at the head of both, of one or of neither.
      The first cell, each entry or a comment names the unit of a time or a rate; default: latencies in us.
    - Other text with one such matrix, whose cells semicolons, tabs, bars or blanks may separate.
    - CSV: a list of pairs, a row ``host, host, figure`` each; the head of the column may name the unit.
    - Output of the CUDA sample p2pBandwidthLatencyTest: its first one-way matrices, with P2P enabled if
      present.
    - Output of nvbandwidth, also in JSON: its first one-way matrix of GPUs, and its matrix of latencies if
      present.
    - Output of rocm_bandwidth_test, or of TransferBench's preset `p2p`: its one-way matrix, without CPUs.
    - Output of mpiGraph: its matrix `Send`.
    - Logs of `ib_write_bw`, `osu_latency` or `osu_bw` one after the other, each below a line ``# pair A B``.

    Raises `FormatError` if the file is none of these, or its matrix lacks a pair; the message names row and
    column.
    """
    where, text = os.fspath(path), read_text(path, _LIMIT_BYTES)
    text = unquoted(text)
    lines = [with_points(line) for line in _unlabelled(text.splitlines())]
    try:
        if (found := _NVBANDWIDTH_JSON.search(text)) is not None:
            return _of_nvbandwidth(_printed_by_nvbandwidth(text[found.start() :], where), f"{where}, as text")
        if text.lstrip().startswith("{"):
            return _of_ours(parse_json(text, source=where), where)
        if any(_P2P.match(line) for line in lines):
            return _of_p2p(lines, where)
        if any(_NVBANDWIDTH.match(line) for line in lines):
            return _of_nvbandwidth(lines, where)
        if any(map(_ROCM.match, lines)):
            return _of_rocm(lines, where)
        if any(map(_MPIGRAPH.match, lines)):
            return _of_mpigraph(lines, where)
        return _of_pairs(text, where) if _PAIR.search(text) else _of_rows(lines, where)
    except FormatError:
        raise
    except InputError as error:  # an invalid number in the file
        raise FormatError(error.message, where=f"{where}: {error.where}") from None


def _unlabelled(lines: list[str]) -> list[str]:
    """Lines without the label that stands before the heading of a matrix.

    Lines without this label, up to its numbers, become empty.
    """
    heading = next(filter(None, map(_HEADING.match, lines)), None)
    if heading is None or not heading[1]:
        return lines
    end = len(heading[1]) - len(heading[1].rstrip())
    form = re.sub(r"(?:\\ )*\d+", r"\\s*\\d+", re.escape(heading[1].rstrip()))
    label = re.compile(rf"{form}\s{{0,{end}}}")
    return [line[match.end() :] if (match := label.match(line)) else "" for line in lines]


def load_probe_topology(
    path: str | os.PathLike[str],
    *,
    bandwidth_gb_per_s: Number = USUAL_GB_PER_S,
    oversubscription: Number = USUAL_OVERSUBSCRIPTION,
    ports: PortUse | None = None,
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
    except FormatError as error:
        raise FormatError(f"{error.message}; measure again with `taccl probe`", where=where) from None


def _of_rows(lines: Sequence[str], where: str) -> Probe:
    """Probe from lines of a CSV or, if they are no CSV, from the only matrix among them."""
    try:
        return _of_csv(lines, where)
    except FormatError:
        found = matrices_in(lines, where)
        marks = set("".join(lines)) & set(",;\t|")
        if not found and marks == {","}:
            raise
    if not found:
        said = "found numbers that are no square matrix; expected a row and a column for every host, or GPU"
        raise FormatError(f"{said}, and text around it at most", where=where)
    if len(found) > 1:
        places = first_of([str(place[0]) for place, _, _ in found], 4)
        said = f"found {len(found)} matrices, at lines {places}; expected one; keep one"
        raise FormatError(said, where=where)
    [(place, table, in_cells)] = found
    around = [line for number, line in enumerate(lines, 1) if line.strip() and number not in place]
    above = next(filter(str.strip, reversed(lines[: place[0] - 1])), "")
    probe = _of_table(table, (table.corner, in_cells, above), where)
    said = f"the matrix is that of lines {place[0]} to {place[-1]}; the text around it is ignored"
    return replace(probe, assumed=(*[said] * bool(around), *probe.assumed))


def _of_csv(lines: Sequence[str], where: str) -> Probe:
    comments = [line for line in lines if line.lstrip().startswith("#")]
    every = csv.reader("" if line in comments else line for line in lines)
    rows = {
        number: [cell.strip() for cell in row]
        for number, row in enumerate(every, 1)
        if any(map(str.strip, row))
    }
    rows, in_cells = without_units(rows, where)
    if tables := tables_of_pairs(rows, where):
        return _of_list(tables, in_cells, " ".join(comments), where)
    table = table_of(rows, where)
    return _of_table(table, (table.corner, in_cells, " ".join(comments)), where)


def _of_table(table: Table, texts: Sequence[str], where: str) -> Probe:
    """Probe from a matrix, in the unit of the first text that names one, among `texts` of its file."""
    unit = unit_of(texts, where)
    values, assumed = table.values * unit.factor, (unit.assumed,) if unit.assumed else ()
    if unit.is_rate:
        return Probe(table.names, bandwidth_gb_per_s=values, assumed=assumed)
    return Probe(table.names, values, assumed=assumed)


def _of_list(tables: Sequence[Table], in_cells: str, comments: str, where: str) -> Probe:
    """Probe from a list of pairs, which has a column of latencies, a column of rates, or both."""
    found: dict[bool, Any] = {}
    assumed: list[str] = []
    for table in tables:
        unit = unit_of((table.corner, in_cells, comments), where)
        if unit.is_rate in found:
            said = f"found two columns of {'bandwidths' if unit.is_rate else 'latencies'}"
            raise FormatError(f"{said}; keep one, and name the units, e.g. us, GB/s", where=where)
        assumed += [unit.assumed] * bool(unit.assumed)
        values = table.values * unit.factor
        is_missing = np.isnan(values) & ~np.eye(len(values), dtype=bool)
        if lone := np.argwhere(is_missing & is_missing.T).tolist():
            pair = " and ".join(table.names[i] for i in lone[0])
            said = f"found no row for {shown(pair, 90)}"
            raise FormatError(f"{said}; expected one for every pair of hosts: measure it", where=where)
        if is_missing.any():
            count = format_count(int(is_missing.sum()), "pair")
            assumed.append(f"{count} measured in one direction have the same figure in the other")
            values = np.where(is_missing, values.T, values)
        found[unit.is_rate] = values
    return Probe(tables[0].names, found.get(False), found.get(True), assumed=tuple(dict.fromkeys(assumed)))


def _of_p2p(lines: Sequence[str], where: str) -> Probe:
    """Probe from the first one-way matrices of p2pBandwidthLatencyTest, with P2P enabled if present.

    Without a one-way matrix of bandwidths, a direction has half of the two-way bandwidth, which is a sum.
    """
    heads = [(at, head) for at, line in enumerate(lines, 1) if (head := _P2P.match(line))]
    # Prefer one-way matrices, then P2P enabled. The sort is stable, so P2P writes stay before reads.
    heads.sort(key=lambda each: (each[1][1][:2].lower() == "bi", each[1][2].lower() != "enabled"))
    found: dict[str, tuple[str, Table]] = {}
    for at, head in heads:
        kind = head[3].lower()
        if kind not in found:
            found[kind] = " ".join(head[0].split()), _printed(lines, at, where)
    if (num_gpus := min(len(table.names) for _, table in found.values())) < 2:
        said = f"found a matrix of {format_count(num_gpus, 'GPU')}; expected one of two GPUs or more"
        raise FormatError(f"{said}; run the test on all GPUs", where=where)
    is_sum = {kind: kind == "bandwidth" and head[:2].lower() == "bi" for kind, (head, _) in found.items()}
    assumed = [
        f"{kind} is {'half of ' * is_sum[kind]}that of {shown(repr(head), 90)}"
        for kind, (head, _) in found.items()
    ]
    if any("p2p=disabled" in head.lower() for head, _ in found.values()):
        assumed.append("copies pass through host memory, as P2P is disabled")
    elif any(map(_NO_ACCESS.match, lines)):
        assumed.append("copies between GPUs that cannot access each other pass through host memory")
    tables = {kind: table.values / (1 + is_sum[kind]) for kind, (_, table) in found.items()}
    through_host = [at for at, head in heads if head[0].lower().startswith("unidirectional p2p=disabled")]
    if through_host and "bandwidth" in found and "=disabled" not in found["bandwidth"][0].lower():
        with suppress(FormatError):  # the matrix is only compared
            assumed += _faster_through_host(
                tables["bandwidth"], _printed(lines, through_host[0], where).values
            )
    _, last = next(reversed(found.values()))
    return Probe(
        tuple(f"GPU {i}" for i in last.names), tables.get("latency"), tables.get("bandwidth"),
        assumed=tuple(assumed), gpus=_models(last, lines),
    )  # fmt: skip


def _faster_through_host(direct: NDArray[np.float64], through_host: NDArray[np.float64]) -> list[str]:
    """Assumption on pairs whose copies through host memory are faster than direct ones; empty without."""
    if direct.shape != through_host.shape:
        return []
    known = (direct > 0) & (through_host > 0) & ~np.eye(len(direct), dtype=bool)
    gain = np.divide(through_host, direct, out=np.zeros(direct.shape), where=known)
    worst = np.unravel_index(np.argmax(gain), gain.shape)
    num = int((gain > _FASTER).sum())
    said = f"copies through host memory are faster ({through_host[worst]:.3g} for {direct[worst]:.3g} GB/s)"
    return [f"{said} in {num} of {gain.size - len(gain)} directed pairs, and not used"] if num else []


def _printed_by_nvbandwidth(text: str, where: str) -> list[str]:
    """Lines that nvbandwidth prints without ``--json``, from its JSON: GPUs, and the matrix of each test."""
    with plain_values(where):
        found = json.JSONDecoder().raw_decode(text)[0]["nvbandwidth"]
        lines = [f"Device {gpu}" for gpu in found.get("GPU Device list") or ()]
        for test in found["testcases"]:
            rows = test.get("bandwidth_matrix") or ()
            lines += [f"Running {test['name']}.", str(test.get("bandwidth_description", ""))]
            lines.append(" ".join(map(str, range(len(rows)))))
            lines += [" ".join(map(str, (number, *row))) for number, row in enumerate(rows)]
    return lines


def _of_nvbandwidth(lines: Sequence[str], where: str) -> Probe:
    """Probe from the first one-way matrix of nvbandwidth, and from its latencies.

    A pair of GPUs without a figure is an error. Early versions print sums of two-way tests below the heading
    of one-way tests.
    """

    def below(at: int) -> Table:
        columns = lines[at] if at < len(lines) else ""
        # Add the corner word that `_printed` expects.
        return _printed([*lines[:at], f"GPU {columns}", *lines[at + 1 :]], at, where, remedy=_NO_PEERS)

    heads, test = [], ""
    for at, line in enumerate(lines, 1):
        running = _NVBANDWIDTH_TEST.match(line)
        test = running[1] if running else test
        if (head := _NVBANDWIDTH.match(line)) and "bidirectional" not in test:
            heads.append((at, head))
    if not heads:
        said = "found no one-way matrix of GPUs; expected one, as of `nvbandwidth -t "
        raise FormatError(f"{said}device_to_device_memcpy_read_ce`", where=where)
    at, head = heads[0]
    table = below(at)
    latency = next((below(at) for at, line in enumerate(lines, 1) if _NVBANDWIDTH_LATENCY.match(line)), None)
    if latency is not None and latency.names != table.names:
        said = f"found latencies of {format_count(len(latency.names), 'GPU')}"
        raise FormatError(
            f"{said}, and bandwidths of {len(table.names)}; expected the same GPUs", where=where
        )
    values = table.values if head[1] == "->" else table.values.T
    told = f"bandwidth is that of the first of {len(heads)} one-way matrices, {shown(repr(head[0]), 90)}"
    hosts = {process[1] for process in map(_PROCESS.match, lines) if process}
    domain = f"GPUs of {len(hosts)} hosts, which NVLink joins, count as one server"
    return Probe(
        tuple(f"GPU {i}" for i in table.names), None if latency is None else latency.values / 1000, values,
        assumed=(*[told] * (len(heads) > 1), *[domain] * (len(hosts) > 1)),
        gpus=_models(table, lines) if len(hosts) < 2 else (),
    )  # fmt: skip


def _of_rocm(lines: Sequence[str], where: str) -> Probe:
    """Probe from the one-way matrix of rocm_bandwidth_test or TransferBench: its rows and columns of GPUs.

    Both also list CPUs, which rocm_bandwidth_test does not name as such: they have neither an address nor a
    rate of copies to themselves.
    """
    at = next(at for at, line in enumerate(lines, 1) if _ROCM.match(line))
    below = {
        number: re.sub(r"\b([CG]PU) (?=\d)", r"\1", line).replace("->", " ").replace(",", " ").split()
        for number, line in enumerate(lines[at:], at + 1)
        if line.strip() and not _ROCM_SPREAD.match(line)
    }
    head = next(iter(below.values()), [])
    rows = dict(list(below.items())[: len(head)])
    devices = {device[1] for device in map(_ROCM_DEVICE.match, lines) if device}
    own = {row[0]: dict(zip(head, row, strict=False)).get(row[0], "") for row in rows.values()}
    keep = [
        place
        for place, name in enumerate(head[1:], 1)
        if name.startswith("GPU") or name in devices or (name.isdecimal() and own.get(name, "")[:1].isdigit())
    ]
    if len(keep) < 2:
        said = f"found a matrix of {format_count(len(keep), 'GPU')}; expected one of two GPUs or more"
        raise FormatError(f"{said}; run the test on all GPUs", where=f"{where}: line {at}")
    names = {head[place] for place in keep}
    table = table_of(
        {
            number: [row[place] for place in [0, *keep] if place < len(row)]
            for number, row in rows.items()
            if row is head or row[0] in names
        },
        where, each="GPU", remedy=_NO_PEERS_ROCM,
    )  # fmt: skip
    return Probe(
        tuple(f"GPU {i}" for i in range(len(keep))), bandwidth_gb_per_s=table.values,
        assumed=("CPUs are left out",) * (len(keep) < len(head) - 1), gpus=_models(table, lines),
    )  # fmt: skip


def _models(table: Table, lines: Sequence[str]) -> tuple[str, ...]:
    """Model of the GPU of each row of a matrix, as lines above it list them; empty unless all are known."""
    models = boards_in("\n".join(lines))
    numbers = [int(name) if name.isdecimal() else -1 for name in table.names]
    return tuple(models[each] for each in numbers) if models.keys() >= set(numbers) else ()


def _of_mpigraph(lines: Sequence[str], where: str) -> Probe:
    """Probe from mpiGraph's matrix `Send`. Its names are host:rank; ranks are left out if hosts differ."""
    at = next(at for at, line in enumerate(lines) if _MPIGRAPH.match(line))
    table = _printed([_MPIGRAPH_ROW.sub(r"\1", line) for line in lines], at, where, each="host")
    hosts = tuple(name.rpartition(":")[0] for name in table.names)
    return Probe(
        hosts if len(set(hosts)) == len(hosts) else table.names,
        bandwidth_gb_per_s=table.values * _MPIGRAPH_GB_PER_S,
        assumed=("bandwidth is that of mpiGraph's matrix Send, for which all hosts send at once",),
    )


def _printed(lines: Sequence[str], at: int, where: str, *, each: str = "GPU", remedy: str = "") -> Table:
    """Matrix that begins after line `at`, with a word in its corner and a row for every column."""
    num_rows = len(lines[at].split()) if at < len(lines) else 0
    rows = [line.split() for line in lines[at : at + num_rows]]
    num_whole = sum(len(row) == num_rows for row in rows) - 1
    if num_whole < num_rows - 1 > 1:
        said = f"found {format_count(max(num_whole, 0), 'row')} of {format_count(num_rows - 1, each)}"
        said += "; expected one for each; save the output whole"
        raise FormatError(said, where=f"{where}: line {at}")
    return table_of(dict(enumerate(filter(None, rows), at + 1)), where, each=each, remedy=remedy)


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
