"""Topologies from the matrix of ``nvidia-smi topo -m``, which shows the links between devices of a server.

The matrix has no rates and latencies. They come from arguments; defaults are among the topology's
assumptions. Quote marks of mails and forums, colours, and text around the matrix are ignored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Literal

from taccl._internal.arguments import Number, checked_as, quoted
from taccl._internal.file_kinds import unquoted
from taccl._internal.graph_algorithms import graph_of
from taccl._internal.names import first_of, in_runs
from taccl._internal.reading import read_text
from taccl.errors import FormatError, TopologyError
from taccl.formats.nccl.matrix import NVLINK, ONE_CPU, ONE_SWITCH, SWITCHES, Matrix, read_matrix
from taccl.formats.nccl.pcie import LANES, X16_GB_PER_S, Nic, PcieServer
from taccl.formats.nccl.server import PcieUse, Wiring, build_servers, pairs_by_pcie, stated_alpha
from taccl.topology.boards import SLOT_GB_PER_S, Board, boards_in, common_board
from taccl.topology.parts import beta_of_bandwidth
from taccl.topology.topology import Topology

NvlinkUse = Literal["auto", "pairs", "switch"]

MAX_FILE_BYTES = 10**6
#: Rate of one NVLink in GB/s in each direction; the second is that of GB200.
_NVLINK_GB_PER_S, _GB200_NVLINK_GB_PER_S = 25.0, 50.0
#: GB/s each way of one NVLink on GPUs with other rates, by their data sheets.
_OTHER_NVLINKS = "20 (P100), 14 (RTX 3090, A6000) or 50 (B200)"
#: Rate in GB/s in each direction between a GPU and its CPU over NVLink-C2C (GH200, GB200; data sheets).
_C2C_GB_PER_S = 450
#: Max NVLinks of a GPU (H100, B200). If the cells of a GPU add up to more, it shares them through NVSwitch.
_MOST_NVLINKS = 18
#: (max NVLinks of a GPU, its assumed PCIe generation): P100 and V100 have 4 to 6 NVLinks, A100 has 12, H100
#: and B200 have 18.
_PCIE_BY_NVLINKS = ((6, 3), (12, 4), (_MOST_NVLINKS, 5))
#: PCIe generation assumed for GPUs with NVLink-C2C (GH200, GB200).
_COHERENT_PCIE = 5


@checked_as(TopologyError)
def load_nvidia_smi(
    path: str | os.PathLike[str],
    *,
    nodes: int = 1,
    nics: Sequence[str] | None = None,
    nvlink_joins: NvlinkUse = "auto",
    nvlink_gb_per_s: Number | None = None,
    pcie: PcieUse | None = None,
    pcie_gb_per_s: Number | None = None,
    cpu_gb_per_s: Number | None = None,
    nic_gb_per_s: Number | None = None,
    rails: bool = False,
    intranode_alpha_us: Number | None = None,
    internode_alpha_us: Number | None = None,
) -> Topology:
    """Load the topology of servers that ``nvidia-smi topo -m`` describes.

    Ranks of a node are its GPU columns. Bandwidths are in GB/s (10**9 bytes per second) per direction.

    - `nodes`: Number of such servers.
    - `nics`: Names of the devices used as NICs, as in the matrix or its legend; by default all.
    - `nvlink_joins`: Topology of NVLinks: GPUs pair by pair, or through NVSwitch. The matrix does not
      distinguish them. NVSwitch is the default for three or more GPUs with equal cells that add up to more
      than 18.
    - `nvlink_gb_per_s`: Rate of one NVLink. Default: by the name of the GPUs, if it is beside the matrix;
      else 25, that of V100, A100 and H100.
    - `pcie`: Use of PCIe between ranks without a common NVLink: only if NVLink does not connect all GPUs of a
      node (default), or always.
    - `pcie_gb_per_s`: Rate of every PCIe link. Default: NCCL's figures for 16 lanes of PCIe 3, 4, 5 and 6
      (12, 24, 48 and 96). The name of the GPUs in the file tells the generation. Without names it is the
      usual one for the number of NVLinks, or the least one that carries a NIC. The rate is at least that of a
      NIC, but for named GPUs no more than 16 lanes carry.
    - `cpu_gb_per_s`: Rate between two CPUs; no limit by default.
    - `nic_gb_per_s`: Rate of every NIC; required for more than one node.
    - `rails`: True if a rank sends across nodes only to ranks with its own local rank.
    - `intranode_alpha_us`, `internode_alpha_us`: Latency in us of links inside a node and between nodes.
      Default: 0.3 and 2.6.
    """
    where = os.fspath(path)
    text = unquoted(read_text(path, MAX_FILE_BYTES))
    matrix = read_matrix(text, where)
    boards = _boards(matrix, text)
    if nodes != 1 and len(matrix.devices) == len(matrix.gpus):
        raise TopologyError(
            f"found a matrix of GPUs alone, and nodes={nodes} needs NICs; add the rows and columns of NICs, "
            "or describe the server by [node] and [nics] in a topology file",
            where=where,
        )
    named = _names(nics, matrix, where)
    if nic_gb_per_s is None and nodes != 1:
        raise TopologyError(
            f"the file does not state the rate of a NIC, which nodes={nodes} needs; give nic_gb_per_s=, "
            "e.g. 12.5 for one of 100 Gb/s",
            where="nic_gb_per_s",
        )
    nic_beta = beta_of_bandwidth(1 if nic_gb_per_s is None else nic_gb_per_s, where="nic_gb_per_s")
    cpu_beta = None if cpu_gb_per_s is None else beta_of_bandwidth(cpu_gb_per_s, where="cpu_gb_per_s")
    server = PcieServer(Path(where).stem, gpus=list(matrix.gpus))
    server.assumed += matrix.assumed
    server.nvlinks, server.switches = _nvlinks(matrix, nvlink_joins, where)
    rates = _nvlink_guesses(matrix, boards)
    if nvlink_gb_per_s is None:
        server.nvlink_betas = [beta_of_bandwidth(rate) for rate, _ in rates]
    else:
        stated = beta_of_bandwidth(nvlink_gb_per_s, where="nvlink_gb_per_s")
        server.nvlink_betas = [stated] * len(server.gpus)
    slots = (
        _slot_guesses(server, boards, None if nic_gb_per_s is None else nic_beta, bool(matrix.coherent))
        if pcie_gb_per_s is None
        else [(beta_of_bandwidth(pcie_gb_per_s, where="pcie_gb_per_s"), "")] * len(server.gpus)
    )
    _add_tree(server, matrix, slots, cpu_beta)
    server.nics = [Nic(matrix.names.get(nic, nic), nic, nic_beta) for nic in named]
    if nic_gb_per_s is not None:
        server.lift_guesses()
    wiring = Wiring(
        nodes, pcie, rails,
        stated_alpha(intranode_alpha_us, "intranode_alpha_us"),
        stated_alpha(internode_alpha_us, "internode_alpha_us"),
    )  # fmt: skip
    if nics is None and nodes > 1:
        server.assumed += _possible_functions(matrix)
    is_pcie_used = nodes > 1 or bool(pairs_by_pcie(server, pcie))
    if is_pcie_used and (hidden := matrix.hidden()):
        server.assumed.append(
            f"{', '.join(hidden)} share no PCIe switches but those that cells show; NVLinks hide them"
        )
    if nvlink_gb_per_s is None:
        joined = {rank for pair in server.nvlinks for rank in pair}.union(*server.switches)
        server.assumed += dict.fromkeys(
            f"{rate:g} GB/s for an NVLink each way, as of {of_gpus} (nvlink_gb_per_s=)"
            for rank, (rate, of_gpus) in enumerate(rates)
            if rank in joined
        )
    server.assumed += dict.fromkeys(guess for _, guess in slots if guess)
    if cpu_gb_per_s is None and len(server.cpus) > 1:
        server.assumed.append("the rate between CPUs is unlimited (cpu_gb_per_s= limits it)")
    if nvlink_joins == "auto":
        server.assumed += _joined(server)
    if len(server.gpus) > 1 and not (server.nvlinks or server.switches):
        server.assumed.append(
            "no GPUs have NVLinks, as no cell shows them (`nvidia-smi topo -mp` omits them)"
        )
    notes = []
    if server.gpus != [f"GPU{rank}" for rank in range(len(server.gpus))]:
        notes.append(f"ranks are GPU columns in their order: {', '.join(server.gpus)}")
    return build_servers(server, wiring, profile="nvidia-smi", notes=notes)


def _each(counts: Mapping[int, int]) -> str:
    """Text on the NVLinks of each rank into a switch; names ranks with fewer links, such as broken ones."""
    most = max(counts.values())
    fewer = [f"{num} of rank {rank}" for rank, num in counts.items() if num < most]
    return f"{most} NVLinks each" + (f", but {first_of(fewer, 4)}" if fewer else "")


def _joined(server: PcieServer) -> list[str]:
    """Assumptions on NVLinks, one text each: ranks at an NVSwitch, in pairs, and without NVLinks."""
    assumed = [
        f"ranks {in_runs(counts)} share an NVSwitch, with {_each(counts)} "
        "(nvlink_joins='pairs' says otherwise)"
        for counts in server.switches
    ]
    ranks = {rank for pair in server.nvlinks for rank in pair}
    equal = len(set(server.nvlinks.values())) == 1
    if equal and len(ranks) > 2 and len(server.nvlinks) == len(ranks) * (len(ranks) - 1) // 2:
        count = next(iter(server.nvlinks.values()))
        assumed.append(
            f"{count} NVLinks join each pair of ranks {in_runs(ranks)} (nvlink_joins='switch' assumes "
            f"{count} of each rank into an NVSwitch)"
        )
    lacking = set(range(len(server.gpus))) - ranks - {rank for counts in server.switches for rank in counts}
    if lacking and len(lacking) < len(server.gpus):
        who = f"ranks {in_runs(lacking)} have" if len(lacking) > 1 else f"rank {in_runs(lacking)} has"
        assumed.append(f"{who} no NVLinks, as no cell shows them")
    return assumed


def _boards(matrix: Matrix, text: str) -> list[tuple[str, Board] | None]:
    """(name, board) of each GPU that the text names; equal names stand for all GPUs, None is unknown."""
    names = boards_in(text)
    every = common_board(names.values())
    if every is not None:
        return [every] * len(matrix.gpus)
    return [common_board([names[number]] if (number := int(gpu[3:])) in names else []) for gpu in matrix.gpus]


def _nvlink_guesses(matrix: Matrix, boards: Sequence[tuple[str, Board] | None]) -> list[tuple[float, str]]:
    """GB/s of an NVLink of each GPU each way without a stated rate, and the GPUs with this rate as text.

    - `boards`: Boards that the file names.
    """
    cpus = [matrix.affinity[gpu] for gpu in matrix.coherent if gpu in matrix.affinity]
    usual = _NVLINK_GB_PER_S, f"V100, A100 and H100; other GPUs have {_OTHER_NVLINKS}"
    if 1 < len(set(cpus)) < len(cpus):  # one affinity of all GPUs may be that of a container
        usual = _GB200_NVLINK_GB_PER_S, "GB200, as several GPUs share a CPU over NVLink-C2C"
    return [
        (named[1].nvlink_gb_per_s, f"{named[0]}, which the file names")
        if named is not None and named[1].num_nvlinks
        else usual
        for named in boards
    ]


def _slot_guesses(
    server: PcieServer,
    boards: Sequence[tuple[str, Board] | None],
    nic_beta: Fraction | None,
    is_coherent: bool,
) -> list[tuple[Fraction, str]]:
    """Beta in us per MB of each GPU's PCIe link without a stated rate, and the assumption as text.

    The generation is that of a GPU that the file names. Without a name it is the usual one for the
    number of NVLinks, or the oldest one that carries a NIC if that is newer. The rate is NCCL's for 16 lanes,
    or the NIC's as far as they carry it.

    - `boards`: Boards that the file names.
    - `is_coherent`: True if NVLink-C2C joins GPUs to their CPU.
    """
    of_rank = dict.fromkeys(range(len(server.gpus)), 0)
    for pair, count in server.nvlinks.items():
        for rank in pair:
            of_rank[rank] += count
    for counts in server.switches:
        of_rank |= counts
    most = max(of_rank.values(), default=0)
    usual = next((entry for entry in _PCIE_BY_NVLINKS if most <= entry[0]), _PCIE_BY_NVLINKS[-1])[1]
    told = f"usual for GPUs with {most} NVLinks" if most else "as nothing tells a newer one"
    if is_coherent and usual < _COHERENT_PCIE:
        usual, told = _COHERENT_PCIE, "usual for GPUs with NVLink-C2C"
    nic = 0 if nic_beta is None else 1000 / nic_beta
    needed = next((each for each, most in SLOT_GB_PER_S.items() if nic <= most), max(SLOT_GB_PER_S))
    slots = []
    for named in boards:
        if named is not None:
            generation, why = named[1].pcie, f", as of {named[0]}, which the file names"
        elif needed > usual:
            generation, why = needed, f", which carry a NIC of {float(nic):g} GB/s"
        else:
            generation, why = usual, f", {told}"
        beta = beta_of_bandwidth(X16_GB_PER_S[generation])
        if nic_beta is not None and nic_beta < beta:
            least = 0 if named is None else beta_of_bandwidth(SLOT_GB_PER_S[generation])
            beta = max(nic_beta, Fraction(least))
        what = f"{float(1000 / beta):g} GB/s for a PCIe link, {LANES} lanes of PCIe {generation}{why}"
        slots.append((beta, f"{what} (pcie_gb_per_s=)"))
    return slots


def _names(nics: Sequence[str] | None, matrix: Matrix, where: str) -> list[str]:
    gpus = set(matrix.gpus)
    others = [each for each in matrix.devices if each not in gpus and not re.fullmatch(r"CPU\d+", each)]
    if nics is None:
        return others
    by_name = {matrix.names.get(device, device): device for device in others} | {
        each: each for each in others
    }
    unknown = next((nic for nic in nics if nic not in by_name), None)
    if unknown is not None:
        raise TopologyError(
            f"found {quoted(unknown)}; expected a list of names out of {', '.join(by_name) or 'none'}",
            where=f"{where}: nics",
        )
    return [device for device in others if device in {by_name[nic] for nic in nics}]


def _possible_functions(matrix: Matrix) -> list[str]:
    """Assumption on NICs that may be functions of one card: three or more on a switch without GPUs."""
    gpus = set(matrix.gpus)
    cards = [group for group in matrix.groups(ONE_SWITCH) if len(group) > 2 and not group & gpus]
    return [
        f"{first_of([each for each in matrix.devices if each in group], 4)} are cards of their own on one "
        "PCIe switch; if they are ports or virtual functions of one card, name one (nics=)"
        for group in cards
    ]


def _add_tree(
    server: PcieServer, matrix: Matrix, slots: Sequence[tuple[Fraction, str]], cpu_beta: Fraction | None
) -> None:
    """Add to the server the PCIe tree that the cells of the matrix imply.

    - `slots`: (beta, assumption behind it) of each GPU's PCIe link; the assumption is empty if the rate is
      given. Other PCIe links have the rate of the fastest.
    """
    slot_of = dict(zip(matrix.gpus, slots, strict=True))
    fastest = min(slots)
    above: dict[str, str] = {}
    for number, group in enumerate(matrix.groups(ONE_CPU)):
        above |= dict.fromkeys(group, f"CPU {number}")
        server.add_cpu(f"CPU {number}", cpu_beta)
    outer = matrix.groups(SWITCHES)
    inner = [group for group in matrix.groups(ONE_SWITCH) if len(group) > 1 and group not in outer]
    if inner:
        server.assumed.append(
            "devices that PIX joins, below a switch that PXB shows, share a PCIe switch and "
            "its link up; a switch of Broadcom looks alike, without that link (NCCL_TOPO_DUMP_FILE tells)"
        )
    for number, group in enumerate(group for group in (*outer, *inner) if len(group) > 1):
        name, parent = f"PCIe switch {number}", above[next(iter(group))]
        above |= dict.fromkeys(group, name)
        server.add_device(name, parent, fastest[0], name=name, guess=fastest[1])
    for device in matrix.devices:
        name = matrix.names.get(device, device)
        beta, guess = slot_of.get(device, fastest)
        server.add_device(device, above[device], beta, name=name, guess=guess)
    if matrix.coherent:
        gpus = [gpu for gpu in matrix.gpus if gpu in matrix.coherent]
        server.assumed.append(
            f"NVLink-C2C joins {', '.join(gpus)} to the CPU, at {_C2C_GB_PER_S} GB/s each way, as the memory "
            "of these GPUs is a NUMA node of its own"
        )
        for gpu in gpus:
            server.add_cpu_link(gpu, beta_of_bandwidth(_C2C_GB_PER_S), fabric="C2C")


def _nvlinks(
    matrix: Matrix, joins: NvlinkUse, where: str
) -> tuple[dict[tuple[int, int], int], list[dict[int, int]]]:
    """NVLinks between pairs of local ranks, and NVSwitches with the NVLinks of each rank into them."""
    import networkx

    gpus = matrix.gpus
    count: dict[tuple[int, int], int] = {}
    for a, b in combinations(range(len(gpus)), 2):
        if match := NVLINK.match(matrix.cells[gpus[a], gpus[b]]):
            count[a, b] = int(match[1])
    switches = []
    for group in sorted(map(sorted, networkx.connected_components(graph_of(count)))):
        ranks: list[int] = group
        pairs = [*combinations(ranks, 2)]
        #: {rank: its NVLinks into a switch}; a pair of ranks has as many as the one with fewer.
        own = {rank: max(count.get(pair, 0) for pair in pairs if rank in pair) for rank in ranks}
        most = max(sum(count.get((min(a, b), max(a, b)), 0) for b in ranks) for a in ranks)
        if joins == "pairs" or (joins == "auto" and most <= _MOST_NVLINKS):
            continue
        if any(count.get((a, b), 0) != min(own[a], own[b]) for a, b in pairs):
            raise FormatError(
                f"found GPUs {', '.join(gpus[rank] for rank in ranks)} with up to {most} NVLinks each, and "
                "not as many between all of them; expected equal cells behind an NVSwitch, or at most "
                f"{_MOST_NVLINKS} each; give nvlink_joins='pairs' if NVLinks join pairs of GPUs",
                where=where,
            )
        switches.append(own)
        for pair in pairs:
            del count[pair]
    return count, switches
