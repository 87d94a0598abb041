"""Topologies from the matrix of ``nvidia-smi topo -m``, which shows the links between devices of a server.

The matrix has no rates and latencies. They come from arguments; defaults are among the topology's
assumptions. Quote marks of mails and forums, colours, and text around the matrix are ignored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, permutations
from pathlib import Path
from typing import Literal

from taccl.arguments import Number, checked_as, quoted
from taccl.errors import FormatError, TopologyError
from taccl.formats.nccl.pcie import Nic, PcieServer
from taccl.formats.nccl.server import (
    INTERNODE_ALPHA_US,
    INTRANODE_ALPHA_US,
    PcieUse,
    Wiring,
    build_servers,
    pairs_by_pcie,
)
from taccl.names import first_of
from taccl.reading import read_text
from taccl.topology.parts import beta_of_bandwidth, exact_cost
from taccl.topology.topology import Topology

NvlinkUse = Literal["auto", "pairs", "switch"]

MAX_FILE_BYTES = 10**6
_MAX_DEVICES = 512
#: Rate of one NVLink in GB/s in each direction.
_NVLINK_GB_PER_S = 25
#: Max NVLinks of a GPU (H100, B200). If the cells of a GPU add up to more, it shares them through NVSwitch.
_MOST_NVLINKS = 18
#: (max NVLinks of a GPU with such a port, PCIe generation, GB/s of 16 lanes by NCCL's constants). P100 and
#: V100 have 4 to 6 NVLinks, A100 has 12, H100 and B200 have 18.
_PCIE_BY_NVLINKS = ((6, "PCIe 3", 12), (12, "PCIe 4", 24), (_MOST_NVLINKS, "PCIe 5", 48))
#: Terminal colours, and bars of a Markdown table.
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|\|")
#: Header line, which may follow quote marks of a mail or a host name that a launcher puts before each line.
_HEADER = re.compile(r"(.{0,80}?)\bGPU\d+(\s|CPU|$)")
#: Two columns of a header with commas between cells, as spreadsheets save them.
_COMMAS = re.compile(r"\bGPU\d+\s*,\s*\w+\d+\s*,", re.MULTILINE)
_NVLINK = re.compile(r"^NV([1-9]\d{0,2})$")
#: {cell of earlier drivers: current name}.
_EARLIER_CELLS = {"SOC": "SYS"}
#: One cell; then several cells without spaces between them; then a last cell without space before the
#: affinity.
_CELL = r"X|SYS|SOC|NODE|PHB|PXB|PIX|NV[1-9]\d*"
_GLUED = re.compile(rf"(?:{_CELL}){{2,}}")
_GLUED_AFFINITY = re.compile(rf"({_CELL})(N/A|\d[\d,-]*)")
_GLUED_COLUMNS = re.compile(r"(?<=\d)(?=(?:GPU|NIC|mlx\d+_)\d|CPU Affinity)")
_ONE_SWITCH, _SWITCHES, _ONE_CPU = {"PIX"}, {"PIX", "PXB"}, {"PIX", "PXB", "PHB", "NODE"}
_CELLS = "X, NV1, NV2, ..., PIX, PXB, PHB, NODE or SYS"


@checked_as(TopologyError)
def load_nvidia_smi(
    path: str | os.PathLike[str],
    *,
    nodes: int = 1,
    nics: Sequence[str] | None = None,
    nvlink_joins: NvlinkUse = "auto",
    nvlink_gb_per_s: Number = _NVLINK_GB_PER_S,
    pcie: PcieUse = "where-needed",
    pcie_gb_per_s: Number | None = None,
    cpu_gb_per_s: Number | None = None,
    nic_gb_per_s: Number | None = None,
    rails: bool = False,
    intranode_alpha_us: Number = INTRANODE_ALPHA_US,
    internode_alpha_us: Number = INTERNODE_ALPHA_US,
) -> Topology:
    """Load the topology of servers that ``nvidia-smi topo -m`` describes.

    Ranks of a node are its GPU columns. Bandwidths are in GB/s (10**9 bytes per second) per direction.

    - `nodes`: Number of such servers.
    - `nics`: Names of the devices used as NICs, as in the matrix or its legend; by default all.
    - `nvlink_joins`: Topology of NVLinks: GPUs pair by pair, or through NVSwitch. The matrix does not
      distinguish them. NVSwitch is the default for three or more GPUs with equal cells that add up to more
      than 18.
    - `nvlink_gb_per_s`: Rate of one NVLink; 25 is that of V100, A100 and H100.
    - `pcie`: Use of PCIe between ranks without a common NVLink: only if NVLink does not connect all GPUs of a
      node, or always.
    - `pcie_gb_per_s`: Rate of every PCIe link. Default: NCCL's figures for 16 lanes of PCIe 3, 4 and
      5 (12, 24 and 48), by the number of NVLinks of a GPU; at least the rate of a NIC.
    - `cpu_gb_per_s`: Rate between two CPUs; no limit by default.
    - `nic_gb_per_s`: Rate of every NIC; required for more than one node.
    - `rails`: True if a rank sends across nodes only to ranks with its own local rank.
    - `intranode_alpha_us`, `internode_alpha_us`: Latency of links in us.
    """
    where = os.fspath(path)
    matrix = _read_matrix(read_text(path, MAX_FILE_BYTES), where)
    named = _names(nics, matrix, where)
    if nic_gb_per_s is None and nodes != 1:
        raise TopologyError(
            "the file does not say how fast a NIC is; give nic_gb_per_s=, e.g. 12.5 for one of 100 Gb/s",
            where="nic_gb_per_s",
        )
    nic_beta = beta_of_bandwidth(1 if nic_gb_per_s is None else nic_gb_per_s, where="nic_gb_per_s")
    cpu_beta = None if cpu_gb_per_s is None else beta_of_bandwidth(cpu_gb_per_s, where="cpu_gb_per_s")
    server = PcieServer(Path(where).stem, gpus=list(matrix.gpus))
    server.assumed += matrix.assumed
    server.nvlinks, server.switches = _nvlinks(matrix, nvlink_joins, where)
    server.nvlink_beta_us_per_mb = beta_of_bandwidth(nvlink_gb_per_s, where="nvlink_gb_per_s")
    pcie_beta, guess = (
        _pcie_guess(server, None if nic_gb_per_s is None else nic_beta)
        if pcie_gb_per_s is None
        else (beta_of_bandwidth(pcie_gb_per_s, where="pcie_gb_per_s"), "")
    )
    _add_tree(server, matrix, pcie_beta, cpu_beta, guess)
    server.nics = [Nic(matrix.names.get(nic, nic), nic, nic_beta) for nic in named]
    if nic_gb_per_s is not None:
        server.lift_guesses()
    wiring = Wiring(
        nodes, pcie, rails,
        exact_cost(intranode_alpha_us, where="intranode_alpha_us"),
        exact_cost(internode_alpha_us, where="internode_alpha_us"),
    )  # fmt: skip
    is_pcie_used = nodes > 1 or bool(pairs_by_pcie(server, pcie))
    if is_pcie_used and (hidden := matrix.hidden()):
        server.assumed.append(
            f"{', '.join(hidden)} share no PCIe switches but those that cells show; NVLinks hide them"
        )
    if nvlink_gb_per_s == _NVLINK_GB_PER_S and (server.nvlinks or server.switches):
        server.assumed.append(
            f"{nvlink_gb_per_s} GB/s for an NVLink each way, as of V100, A100 and H100 (nvlink_gb_per_s=)"
        )
    if guess:
        server.assumed.append(guess)
    if cpu_gb_per_s is None and len(server.cpus) > 1:
        server.assumed.append("CPUs talk to each other without limit (cpu_gb_per_s=)")
    server.assumed += [
        f"ranks {ranks[0]}-{ranks[-1]} share an NVSwitch, with {count} NVLinks each (nvlink_joins='pairs' "
        "says otherwise)"
        for ranks, count in ((sorted(counts), max(counts.values())) for counts in server.switches)
        if nvlink_joins == "auto"
    ]
    notes = []
    if server.gpus != [f"GPU{rank}" for rank in range(len(server.gpus))]:
        notes.append(f"ranks are GPU columns in their order: {', '.join(server.gpus)}")
    return build_servers(server, wiring, profile="nvidia-smi", notes=notes)


def _pcie_guess(server: PcieServer, nic_beta: Fraction | None) -> tuple[Fraction, str]:
    """Beta in us per MB of PCIe links without a stated rate, and the assumption as text."""
    of_rank = dict.fromkeys(range(len(server.gpus)), 0)
    for pair, count in server.nvlinks.items():
        for rank in pair:
            of_rank[rank] += count
    for counts in server.switches:
        of_rank |= counts
    most = max(of_rank.values(), default=0)
    known = (entry for entry in _PCIE_BY_NVLINKS if most <= entry[0])
    _, generation, rate = next(known, _PCIE_BY_NVLINKS[-1])
    beta, why = beta_of_bandwidth(rate), f"{rate} GB/s for a PCIe link, 16 lanes of {generation}"
    why += f" as of GPUs with {most} NVLinks" if most else ""
    if nic_beta is not None and nic_beta < beta:
        beta, why = nic_beta, f"{float(1000 / nic_beta):g} GB/s for a PCIe link, the rate of a NIC"
    return beta, f"{why} (pcie_gb_per_s=)"


@dataclass(frozen=True, slots=True)
class _Matrix:
    """Parsed matrix.

    - `devices`: Devices in the order of their columns.
    - `cells`: {(device, device): cell}.
    - `affinity`: {device: its CPU affinity}.
    - `names`: {device: its name by the legend}.
    - `assumed`: Repairs of the text, and parts of it that are ignored.
    """

    devices: tuple[str, ...]
    cells: dict[tuple[str, str], str]
    affinity: dict[str, str]
    names: dict[str, str]
    assumed: tuple[str, ...]

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(device for device in self.devices if re.fullmatch(r"GPU\d+", device))

    def groups(self, kinds: set[str]) -> list[set[str]]:
        """Sets of devices connected by cells of these kinds, directly or through others, in column order."""
        import networkx

        near = networkx.Graph([pair for pair, cell in self.cells.items() if cell in kinds])
        near.add_nodes_from(self.devices)
        if kinds == _ONE_CPU:
            near.add_edges_from(
                (a, b) for (a, cpus), (b, other) in permutations(self.affinity.items(), 2) if cpus == other
            )
        groups = networkx.connected_components(near)
        return sorted(groups, key=lambda group: min(map(self.devices.index, group)))

    def hidden(self) -> list[str]:
        """GPUs that NVLinks join, and that may share a PCIe switch, as far as the cells tell."""
        pairs = (pair for pair in combinations(self.gpus, 2) if self._may_share(*pair))
        return list(dict.fromkeys(gpu for pair in pairs for gpu in pair))

    def _may_share(self, a: str, b: str) -> bool:
        if not _NVLINK.match(self.cells[a, b]) or self.affinity.get(a) != self.affinity.get(b):
            return False
        for other in self.devices:
            cells = [self.cells.get((gpu, other), "") for gpu in (a, b)]
            if other in (a, b) or any(map(_NVLINK.match, cells)):
                continue
            if "PIX" in cells or any(cells.count(kind) == 1 for kind in ("PXB", "SYS")):
                return False
        return True


def _read_matrix(text: str, where: str) -> _Matrix:
    if _COMMAS.search(text):
        text = text.replace(",", "\t")
    lines = [_COLOUR.sub(" ", line) for line in text.splitlines()]
    repairs: list[str] = []
    found = [(i, match) for i, line in enumerate(lines) if (match := _HEADER.match(line))]
    # Old drivers print no affinities. If some line has them, a line without is not a header.
    headers = [(i, match) for i, match in found if "CPU Affinity" in lines[i]]
    for i, _ in headers[1:2]:
        lines = lines[:i]
    start, header = next(iter(headers or [each for each in found if not each[1][1].strip()]), (None, None))
    if start is None or header is None:
        raise FormatError(
            "found no line that begins with GPU0; expected what `nvidia-smi topo -m` prints; save it whole",
            where=where,
        )
    # Each line may have a number, or a time of its own, where the header has one.
    prefix = re.compile(re.sub(r"\d+", r"\\d+", re.escape(header[1].strip())))
    begins = [(line.strip(), prefix.match(line.strip())) for line in lines]
    lines = [line[match.end() :] if match else "" for line, match in begins]
    words = _GLUED_COLUMNS.sub(" ", lines[start]).split()
    ends = [words.index(word) for word in ("CPU", "NUMA") if word in words]
    devices = tuple(words[: min(ends, default=len(words))])
    place = f"{where}: line {start + 1}"
    if len(set(devices)) < len(devices) or len(devices) > _MAX_DEVICES:
        raise FormatError(
            f"found {len(devices)} columns, {len(set(devices))} of them different; expected at most "
            f"{_MAX_DEVICES} different devices; save the output anew",
            where=place,
        )
    cells: dict[tuple[str, str], str] = {}
    affinity: dict[str, str] = {}
    rows: dict[str, tuple[int, list[str]]] = {}
    for number, line in enumerate(lines[start + 1 :], start + 2):
        if (words := line.split()) and words[0] in devices:
            rows.setdefault(words[0], (number, words))
    last = _unglued(rows[devices[-1]][1], devices, {}, []) if devices and devices[-1] in rows else []
    mirror = dict(zip(devices, last[1:], strict=False))
    for number, words in rows.values():
        words = _unglued(words, devices, mirror, repairs)
        row = [_EARLIER_CELLS.get(cell, cell) for cell in words[1 : 1 + len(devices)]]
        _check_row(words[0], row, devices, f"{where}: line {number}")
        cells |= {(words[0], device): cell for device, cell in zip(devices, row, strict=True)}
        if len(words) > 1 + len(devices) and words[0].startswith("GPU"):
            # "N/A", as in virtual machines, gives no CPUs.
            affinity |= {words[0]: cpus for cpus in words[1 + len(devices) :][:1] if cpus[0].isdigit()}
    lacking = [a for a in devices if a not in rows]
    for a in lacking:
        if re.fullmatch(r"GPU\d+", a):
            raise FormatError(f"found no row of {a}; expected one for every GPU; save it whole", where=place)
        cells |= {(a, b): cells[b, a] for b in rows}
    for a in rows:
        for b in devices[: devices.index(a)]:
            if cells[a, b] != cells[b, a]:
                raise FormatError(
                    f"found {cells[b, a]} from {b[:40]} to {a[:40]} and {cells[a, b]} back; expected the "
                    "same; save the output anew",
                    where=place,
                )
    assumed = []
    if len(headers) > 1:
        assumed.append(f"the first of {len(headers)} matrices in the file describes every node")
    if repairs:
        assumed.append(f"words without a space between them: {first_of(repairs, 4)}")
    if lacking:
        assumed.append(f"no rows of {first_of(lacking, 4)}, so that no NICs are known to be near each other")
    legend = (re.match(r"\s*(\w+): (\S+)\s*$", line) for line in lines)
    return _Matrix(
        devices,
        cells,
        affinity,
        {m[1]: m[2][:60] for m in legend if m and m[1] in devices},
        tuple(assumed),
    )


def _unglued(
    words: list[str], devices: tuple[str, ...], mirror: Mapping[str, str], repairs: list[str]
) -> list[str]:
    """Words of a row, where cells without a space between them are split.

    The last cell may be joined to the affinity. NV120-31 may be NV12 and 0-31, or NV1 and 20-31. The row of
    the last device decides, as both directions have the same cell.

    - `mirror` (mapping of str to str): {device: its cell in the row of the last device}.
    - `repairs`: List that gets an entry for each word that is split.
    """
    split: list[str] = []
    for word in words[1:]:
        parts = [word]
        if len(split) < len(devices) and _GLUED.fullmatch(word):
            parts = re.findall(_CELL, word)
        elif len(split) == len(devices) - 1 and (glued := _GLUED_AFFINITY.fullmatch(word)):
            cell = mirror.get(words[0], glued[1])
            # NV12 may also be a complete cell that contradicts the other direction.
            if word.startswith(cell) and not re.fullmatch(r"\d*", word.removeprefix(cell)):
                parts = [cell, word.removeprefix(cell)]
        if len(parts) > 1:
            repairs.append(f"{quoted(word)} in the row of {words[0]} is {' and '.join(parts)}")
        split += parts
    return [words[0], *split]


def _check_row(device: str, row: list[str], devices: tuple[str, ...], where: str) -> None:
    """Raise `FormatError` if a row is too short or has an unknown cell."""
    if len(row) < len(devices):
        raise FormatError(
            f"found {len(row)} cells of {device[:40]}; expected {len(devices)}; save the output whole",
            where=where,
        )
    for other, cell in zip(devices, row, strict=True):
        known = cell in {"SYS", *_ONE_CPU} or _NVLINK.match(cell)
        if (cell != "X") if other == device else not known:
            raise FormatError(
                f"found {quoted(cell)} from {device[:40]} to {other[:40]}; expected {_CELLS}; save the "
                "output anew",
                where=where,
            )


def _names(nics: Sequence[str] | None, matrix: _Matrix, where: str) -> list[str]:
    gpus = set(matrix.gpus)
    others = [device for device in matrix.devices if device not in gpus]
    if nics is None:
        return others
    by_name = {matrix.names.get(device, device): device for device in others} | {
        each: each for each in others
    }
    unknown = next((nic for nic in nics if nic not in by_name), None)
    if unknown is not None:
        raise TopologyError(
            f"found {quoted(unknown)}; expected a list of names out of {', '.join(others) or 'none'}",
            where=f"{where}: nics",
        )
    return [device for device in others if device in {by_name[nic] for nic in nics}]


def _add_tree(
    server: PcieServer, matrix: _Matrix, pcie_beta: Fraction, cpu_beta: Fraction | None, guess: str
) -> None:
    """Add the PCIe tree that the cells imply to the server.

    - `guess`: Assumption behind `pcie_beta`; empty if the rate is given.
    """
    above: dict[str, str] = {}
    for number, group in enumerate(matrix.groups(_ONE_CPU)):
        above |= dict.fromkeys(group, f"CPU {number}")
        server.add_cpu(f"CPU {number}", cpu_beta)
    outer = matrix.groups(_SWITCHES)
    inner = [group for group in matrix.groups(_ONE_SWITCH) if len(group) > 1 and group not in outer]
    if inner:
        server.assumed.append(
            "devices that PIX joins, below a switch that PXB shows, have a PCIe switch of their own"
        )
    for number, group in enumerate(group for group in (*outer, *inner) if len(group) > 1):
        name, parent = f"PCIe switch {number}", above[next(iter(group))]
        above |= dict.fromkeys(group, name)
        server.add_device(name, parent, pcie_beta, name=name, guess=guess)
    for device in matrix.devices:
        name = matrix.names.get(device, device)
        server.add_device(device, above[device], pcie_beta, name=name, guess=guess)


def _nvlinks(
    matrix: _Matrix, joins: NvlinkUse, where: str
) -> tuple[dict[tuple[int, int], int], list[dict[int, int]]]:
    """NVLinks between pairs of local ranks, and NVSwitches with the NVLinks of each rank into them."""
    import networkx

    gpus = matrix.gpus
    count: dict[tuple[int, int], int] = {}
    for a, b in combinations(range(len(gpus)), 2):
        if match := _NVLINK.match(matrix.cells[gpus[a], gpus[b]]):
            count[a, b] = int(match[1])
    switches = []
    for group in sorted(map(sorted, networkx.connected_components(networkx.Graph(list(count))))):
        ranks: list[int] = group
        pairs = [*combinations(ranks, 2)]
        counts = {count.get(pair, 0) for pair in pairs}
        most = max(sum(count.get((min(a, b), max(a, b)), 0) for b in ranks) for a in ranks)
        if joins == "pairs" or (joins == "auto" and most <= _MOST_NVLINKS):
            continue
        if len(counts) > 1:
            raise FormatError(
                f"found GPUs {', '.join(gpus[rank] for rank in ranks)} with up to {most} NVLinks each, and "
                "not as many between all of them; expected equal cells behind an NVSwitch, or at most "
                f"{_MOST_NVLINKS} each; say nvlink_joins='pairs' if they are joined so",
                where=where,
            )
        switches.append(dict.fromkeys(ranks, counts.pop()))
        for pair in pairs:
            del count[pair]
    return count, switches
