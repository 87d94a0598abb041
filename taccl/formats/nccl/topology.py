"""Topologies from topology XML of NCCL and RCCL (``NCCL_TOPO_DUMP_FILE``, ``NCCL_TOPO_FILE``).

Missing values come from arguments, or are assumed as NCCL assumes them and listed among the topology's
assumptions. Rates are those of NCCL and RCCL, which are close to achieved rates rather than to data sheets.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

from taccl._internal.arguments import Number, checked_as, quoted
from taccl._internal.names import first_of
from taccl._internal.reading import read_text
from taccl.errors import TopologyError
from taccl.formats.nccl.elements import FABRICS, GPU_CLASSES, Given, Gpu, read_system, whole
from taccl.formats.nccl.pcie import PcieServer
from taccl.formats.nccl.server import PcieUse, Wiring, build_servers, stated_alpha
from taccl.formats.xml_elements import XmlElement, parse_xml
from taccl.topology.parts import beta_of_bandwidth, check_count
from taccl.topology.topology import Topology

Pairs = dict[tuple[int, int], int]
Switches = list[dict[int, int]]

MAX_FILE_BYTES = 16 * 10**6
#: NCCL's constants: (10 times the lowest compute capability, GB/s of one NVLink each way), descending.
_NVLINK_GB_PER_S = ((100, "40.1"), (90, "20.6"), (87, "20"), (86, "12"), (80, "20"), (70, "20"), (60, "18"))
_NVLINK_GB_PER_S_UNKNOWN = "20"
#: RCCL's constants: (prefix of the GPU's architecture, GB/s of one xGMI link each way).
_XGMI_GB_PER_S = (("gfx90a", "36"), ("gfx94", "48"), ("gfx95", "48"))
_XGMI_GB_PER_S_UNKNOWN = "24"
#: {number by which early RCCL versions write an architecture: its name}.
_GCN_NAMES = {"910": "gfx90a"}
#: Versions of the format: NCCL writes 1, RCCL writes 2.
_VERSIONS = ("1", "2")


@checked_as(TopologyError)
def load_nccl_topology(
    path: str | os.PathLike[str],
    *,
    nodes: int = 1,
    gpus: Sequence[str] | None = None,
    nics: Sequence[str] | None = None,
    nvlinks: int | Mapping[tuple[int, int], int] | None = None,
    nvlink_gb_per_s: Number | None = None,
    pcie: PcieUse | None = None,
    pcie_gb_per_s: Number | None = None,
    cpu_gb_per_s: Number | None = None,
    nic_gb_per_s: Number | None = None,
    rails: bool = False,
    intranode_alpha_us: Number | None = None,
    internode_alpha_us: Number | None = None,
) -> Topology:
    """Load the topology of servers that a topology file of NCCL or RCCL describes.

    Ranks of a node are as in the file. If the file has none, GPUs are ranks in the order of their bus ids.
    Hosts of one NVLink domain (MNNVL, as of GB200) are one node. Arguments override the file. Bandwidths are
    in GB/s (10**9 bytes per second) per direction.

    - `nodes`: Number of servers, all equal to the one in the file.
    - `gpus`, `nics`: Bus ids of the devices to use as GPUs and as NICs, if the file lacks the class of its
      devices, or lists too many. A NIC may also be given by the name of its ``<net>``.
    - `nvlinks` (int or mapping of (int, int) to int, optional): Number of NVLinks of every
      GPU into one NVSwitch. For direct NVLinks: {pair of GPUs: number of NVLinks between them}. GPUs are
      numbered in the order of ranks; if ranks share GPUs, these are fewer than the local ranks.
    - `nvlink_gb_per_s`: Rate of one NVLink or xGMI link; by default NCCL's for the GPU's compute capability,
      or RCCL's for its architecture.
    - `pcie`: Use of PCIe between ranks without a common NVLink: only if NVLink does not connect all GPUs of a
      node (default), or always.
    - `pcie_gb_per_s`: Rate of every PCIe link; by default the file's lanes times its rate per lane. A missing
      value is assumed as 16 lanes or 8 GT/s (together 12 GB/s). The link is then at least as fast as the
      fastest NIC.
    - `cpu_gb_per_s`: Rate between two CPUs; by default NCCL's for the kind of CPU, and no limit if the file
      does not state it.
    - `nic_gb_per_s`: Rate of every NIC; by default as in the file, or else the rate of the NIC's PCIe link.
    - `rails`: True if a rank sends across nodes only to ranks with its own local rank.
    - `intranode_alpha_us`: Latency in us of links inside a node; 0.3 by default.
    - `internode_alpha_us`: Latency in us of links between nodes; by default the largest latency of a NIC in
      the file, or 2.6 if the file states none.
    """
    where = os.fspath(path)
    top = parse_xml(read_text(path, MAX_FILE_BYTES), where=where)
    if top.tag != "system" or top.attributes.get("version", "1") not in _VERSIONS:
        found = f"<{top.tag[:40]}> of version {quoted(top.attributes.get('version', ''))}"
        raise top.error(
            f"found {found}; expected <system> of version 1 (NCCL) or 2 (RCCL); give a file that "
            "NCCL_TOPO_DUMP_FILE names"
        )
    given = Given(
        gpus=_names(gpus), nics=_names(nics),
        pcie_beta=_beta(pcie_gb_per_s, "pcie_gb_per_s"),
        cpu_beta=_beta(cpu_gb_per_s, "cpu_gb_per_s"),
        nic_beta=_beta(nic_gb_per_s, "nic_gb_per_s"),
    )  # fmt: skip
    system = read_system(top, given, Path(where).stem)
    server = system.server
    assumed = server.assumed
    ranked = _ranked(system.gpus, assumed)
    fabrics = (FABRICS[link.tag] for gpu in ranked for link in gpu.nvlinks)
    server.fabric = next(fabrics, FABRICS["xgmi"] if any(gpu.gcn for gpu in ranked) else server.fabric)
    server.gpus = [gpu.busid for gpu in ranked]
    if check_count(nodes, where="nodes") > 1:
        assumed += _indirect(system.indirect, ranked)
    # Ranks that share a GPU share its links, which the file lists for each of them, as in NCCL.
    gpu_of = {gpu.busid: gpu for gpu in reversed(ranked)}
    distinct = [gpu_of[busid] for busid in dict.fromkeys(server.gpus)]
    if len(distinct) < len(ranked):
        server.parts = [gpu.part for gpu in ranked]
    server.nvlinks, server.switches = (
        _nvlinks(distinct, server.fabric, assumed)
        if nvlinks is None
        else _given_nvlinks(nvlinks, len(distinct))
    )
    joined = server.nvlinks or server.switches
    _check_joined(distinct, server, system.num_hosts, top)
    if not joined and len(ranked) > 1:
        links = "NVLinks" if server.fabric == "NVLink" else f"{server.fabric} links"
        assumed.append(
            f"the server has no {links} between its GPUs, as the file lists none; nvlinks= "
            "states the number of each pair of local ranks"
            + ", or of each rank into NVSwitch"
            * (server.fabric == "NVLink")
        )
    nvlink_beta = _beta(nvlink_gb_per_s, "nvlink_gb_per_s")
    if nvlink_beta is None:
        server.nvlink_betas = _nvlink_betas(distinct, server)
    else:
        server.nvlink_betas = [nvlink_beta] * len(distinct)
    if nvlinks is None:
        _join_cpus(distinct, server)
    wiring = Wiring(
        nodes, pcie, rails,
        stated_alpha(intranode_alpha_us, "intranode_alpha_us"),
        system.latency_us or None
        if internode_alpha_us is None
        else stated_alpha(internode_alpha_us, "internode_alpha_us"),
    )  # fmt: skip
    return build_servers(server, wiring, profile="nccl", notes=())


def _names(names: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(name.strip().lower() for name in names)


def _beta(gb_per_s: Number | None, where: str) -> Fraction | None:
    return None if gb_per_s is None else beta_of_bandwidth(gb_per_s, where=where)


def _ranked(gpus: list[Gpu], assumed: list[str]) -> list[Gpu]:
    ranks = [gpu.rank for gpu in gpus if gpu.rank >= 0]
    if not ranks:
        assumed.append("the file has no ranks; GPUs are ranks in the order of their bus ids")
        return sorted(gpus, key=lambda gpu: gpu.busid)
    rank, count = Counter(ranks).most_common(1)[0]
    if count > 1:
        twice = next(gpu for gpu in gpus if gpu.rank == rank)
        raise twice.element.error(f"found rank {rank} {count} times; expected it once; correct it")
    if len(ranks) < len(gpus):
        assumed.append(f"{len(gpus) - len(ranks)} GPUs without a rank are omitted, as in NCCL and RCCL")
    if sorted(ranks) != list(range(len(ranks))):
        assumed.append("the file's ranks have gaps; they are renumbered from 0, in their order")
    return sorted((gpu for gpu in gpus if gpu.rank >= 0), key=lambda gpu: gpu.rank)


def _indirect(nics: list[str], ranked: list[Gpu]) -> list[str]:
    """Assumption on NICs and GPUs for which the file states that they lack GPUDirect RDMA."""
    gpus = [gpu.busid for gpu in ranked if gpu.element.attributes.get("gdr", "").strip() == "0"]
    names = nics + list(dict.fromkeys(gpus))
    text = "the copies in host memory that data between nodes then need are omitted"
    return [f"no GPUDirect RDMA (gdr=0) at {first_of(names, 4)}; {text}"] if names else []


def _nvlinks(ranked: list[Gpu], fabric: str, assumed: list[str]) -> tuple[Pairs, Switches]:
    """NVLinks or xGMI links between pairs of local ranks, and into the NVSwitch, as the file lists them."""
    rank_of = {gpu.busid: rank for rank, gpu in enumerate(ranked)}
    directed: Counter[tuple[int, int]] = Counter()
    into_switch: Counter[int] = Counter()
    left_out: Counter[str] = Counter()
    for rank, gpu in enumerate(ranked):
        for link in gpu.nvlinks:
            count = whole(link, "count")
            if not 0 < count <= 1024:
                raise link.error(f"found count={count}; expected 1 to 1024")
            code = link.attributes.get("tclass", "").strip().lower()
            host = gpu.busid[: gpu.busid.find("/") + 1]  # of files with several hosts
            target = host + link.attributes.get("target", "").strip().lower()
            if _is_to_cpu(link):
                continue
            if code.startswith("0x0680"):
                into_switch[rank] += count
            elif not code.startswith(GPU_CLASSES) and target not in rank_of:
                raise link.error(
                    f"found tclass={quoted(code)}; expected 0x03... or 0x1200... (GPU), or 0x068000 "
                    "(NVSwitch); correct it"
                )
            elif target == gpu.busid:
                left_out["the GPU itself"] += count
            elif target not in rank_of:
                left_out["GPUs that the file does not have"] += count
            else:
                directed[rank, rank_of[target]] += count
    for (a, b), count in directed.items():
        if directed[b, a] != count:
            raise ranked[a].element.error(
                f"found {count} {fabric}s from {ranked[a].busid} to {ranked[b].busid} and {directed[b, a]} "
                "back; expected as many; correct the counts"
            )
    assumed += [f"{count} {fabric}s to {what} are left out" for what, count in left_out.items()]
    switches: Switches = [dict(into_switch)] if into_switch else []
    return {pair: count for pair, count in directed.items() if pair[0] < pair[1]}, switches


def _join_cpus(ranked: list[Gpu], server: PcieServer) -> None:
    """Add the NVLinks between GPUs and their CPU, as in POWER servers."""
    for number, gpu in enumerate(ranked):
        count = sum(whole(link, "count") for link in gpu.nvlinks if _is_to_cpu(link))
        if count:
            server.add_cpu_link(gpu.busid, server.nvlink_beta(number) / count, fabric=server.fabric)


def _is_to_cpu(link: XmlElement) -> bool:
    return link.attributes.get("tclass", "").strip().lower().startswith("0x068001")


def _check_joined(gpus: list[Gpu], server: PcieServer, num_hosts: int, top: XmlElement) -> None:
    """Add the assumptions on GPUs without NVLinks, and on hosts that one NVSwitch joins.

    Raises `FormatError` if the file has several hosts, and no NVSwitch joins all of their GPUs.
    """
    linked = {rank for pair in server.nvlinks for rank in pair}.union(*server.switches)
    lacking = [gpu for number, gpu in enumerate(gpus) if number not in linked]
    if num_hosts > 1 and not server.switches:
        raise top.error(
            f"found CPUs of {num_hosts} hosts (host_hash), whose GPUs no NVSwitch joins; expected "
            "one host; keep its <cpu> elements, and give nodes= for several equal hosts"
        )
    if num_hosts > 1 and lacking:
        raise lacking[0].element.error(
            f"found no NVLinks to the NVSwitch that joins the GPUs of {num_hosts} hosts; expected them, "
            "as for the other GPUs; write the file again, or correct it"
        )
    if num_hosts > 1:
        server.assumed.append(f"the file's {num_hosts} hosts are one node, as NVSwitch joins their GPUs")
    for counts in server.switches:
        most = max(counts.values())
        fewer = [f"{gpus[number].busid} ({count})" for number, count in counts.items() if count < most]
        if fewer:
            server.assumed.append(f"GPUs with fewer NVLinks than the {most} of others: {first_of(fewer, 4)}")
    if linked and lacking:
        who = first_of([gpu.busid for gpu in lacking], 4)
        server.assumed.append(f"GPUs without {server.fabric}s, as the file lists none of theirs: {who}")


def _given_nvlinks(nvlinks: int | Mapping[tuple[int, int], int], num_gpus: int) -> tuple[Pairs, Switches]:
    if not isinstance(nvlinks, Mapping):
        return {}, [dict.fromkeys(range(num_gpus), check_count(nvlinks, where="nvlinks"))]
    pairs: Pairs = {}
    for pair, count in nvlinks.items():
        low, high = sorted(pair)
        if not 0 <= low < high < num_gpus:
            raise TopologyError(
                f"found {quoted(pair)}; expected two different GPUs of 0-{num_gpus - 1}", where="nvlinks"
            )
        if pairs.setdefault((low, high), check_count(count, where=f"nvlinks: {pair}")) != count:
            raise TopologyError(f"found two counts for the pair {low}, {high}; give one", where="nvlinks")
    return pairs, []


def _nvlink_betas(gpus: list[Gpu], server: PcieServer) -> list[Fraction]:
    """Beta in us per MB of one NVLink or xGMI link of each GPU: NCCL's or RCCL's constant for its kind.

    Adds the constants of joined GPUs to the server's assumptions.
    """
    fabric, unnamed = server.fabric, "GPUs that the file does not name"
    library = "NCCL" if fabric == "NVLink" else "RCCL"
    joined = {number for pair in server.nvlinks for number in pair}.union(*server.switches)
    rates, told = [], {}
    for number, gpu in enumerate(gpus):
        if fabric == "NVLink":
            known = (rate for least, rate in _NVLINK_GB_PER_S if gpu.sm >= least)
            kind = f"compute capability {gpu.sm / 10:g}" if gpu.sm >= 0 else unnamed
            rates.append(next(known, _NVLINK_GB_PER_S_UNKNOWN))
        else:
            kind = _GCN_NAMES.get(gpu.gcn, gpu.gcn if gpu.gcn.startswith("gfx") else f"gfx{gpu.gcn}")
            known = (rate for begins, rate in _XGMI_GB_PER_S if kind.startswith(begins))
            kind = kind if gpu.gcn else unnamed
            rates.append(next(known, _XGMI_GB_PER_S_UNKNOWN))
        if number in joined:
            told[kind] = rates[-1]
    server.assumed += [
        f"{rate} GB/s for one {fabric} each way, {library}'s constant for {kind} (nvlink_gb_per_s=)"
        for kind, rate in told.items()
    ]
    return [beta_of_bandwidth(rate) for rate in rates]
