"""Read an NCCL topology file: its CPUs, PCIe switches, GPUs and NICs, and assumptions for missing values.

Constants, and values assumed for missing attributes, are those of NCCL and RCCL (`src/graph/topo.h` and
`topo.cc` of each, as of 2026). NCCL itself first queries the machine for missing values.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction

from taccl._internal.arguments import quoted
from taccl._internal.names import first_of
from taccl.formats.nccl.pcie import LANE_GB_PER_S, LANES, Nic, PcieServer
from taccl.formats.xml_elements import XmlElement
from taccl.topology.parts import beta_of_bandwidth

#: Max devices of a file; NCCL itself reads at most 256 XML elements.
_MAX_DEVICES = 1024
#: GT/s of a PCIe lane if the file lacks them.
_SPEED_UNKNOWN = "8"
#: Max lanes of a PCIe link.
_MOST_LANES = 32
_SPEED = re.compile(r"^(\d{1,3}?)(?:\.0+|(\.5))? ?GT/s")
_MBIT_PER_S_UNKNOWN = 10_000
#: Speeds of NICs are in Mbit/s; from this number on they are read as kbit/s, as written on Slingshot.
_KBIT_PER_S = 10_000_000
_GPU, _NIC, _SWITCH, _NVSWITCH = "GPU", "NIC", "PCIe switch", "NVSwitch"
#: PCI classes of GPUs: display controllers, and processing accelerators (AMD).
GPU_CLASSES = ("0x03", "0x1200")
#: {XML element for links between GPUs: name of the links}.
FABRICS = {"nvlink": "NVLink", "xgmi": "xGMI"}
#: Beta in us per MB of two lanes of PCIe 1; virtual machines report rates this low for faster bridges.
_VIRTUAL_BETA = beta_of_bandwidth(2 * LANE_GB_PER_S["2.5"])


@dataclass(frozen=True, slots=True)
class Given:
    """Arguments that override the file: bus ids of devices, and betas in us per MB."""

    gpus: tuple[str, ...] | None = None
    nics: tuple[str, ...] | None = None
    pcie_beta: Fraction | None = None
    cpu_beta: Fraction | None = None
    nic_beta: Fraction | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of the file; `rank` and `sm` (10 times its compute capability) are negative if unknown.

    - `gcn`: Architecture of an AMD GPU, such as ``"gfx942"``; empty for other GPUs.
    - `part`: Number of a partition (`mlopart`), each of which is a GPU of the file; -1 if not partitioned.
    - `element`: Its ``<gpu>`` element; if it has none, its ``<pci>`` element.
    """

    busid: str
    rank: int
    sm: int
    gcn: str
    part: int
    element: XmlElement

    @property
    def nvlinks(self) -> list[XmlElement]:
        """Elements of the NVLinks or xGMI links that the file lists for the GPU."""
        return [link for link in self.element.children if link.tag in FABRICS]


def read_system(top: XmlElement, given: Given, name: str) -> System:
    """Read the CPUs, PCIe devices, GPUs and NICs in the ``<system>`` element of a server.

    The file of an NVLink domain (MNNVL, as of GB200) has the CPUs of several hosts. Then names of CPUs and
    bus ids begin with the number of their host, as in ``1/0008:06:00.0``.

    Raises `FormatError` if an element lacks a value that no argument supplies, or has an invalid value.
    """
    system = System(given, PcieServer(name))
    if given.pcie_beta is None:
        system.server.pcie_source = "the library's rate of the stated PCIe link (pcie_gb_per_s=)"
    cpus = top.all("cpu")
    for element in (top, *cpus):
        for gpu in element.all("gpu"):
            raise gpu.error(f"found <gpu> in <{element.tag}>; expected it in a <pci>, as in NCCL's dumps")
    # A CPU without a host counts as one of the first host: files written by hand state hosts for some only.
    stated = [cpu.attributes.get("host_hash", "") for cpu in cpus]
    hosts = list(dict.fromkeys(filter(None, stated)))
    system.num_hosts = max(len(hosts), 1)
    for number, (cpu, host) in enumerate(zip(cpus, stated, strict=True)):
        index = hosts.index(host) if host else 0
        system.add_cpu(cpu, number, f"{index}/" if len(hosts) > 1 else "")
    system.finish(top)
    return system


def whole(element: XmlElement, name: str, default: int | None = None) -> int:
    """Integer value of an attribute, or `default` if it is missing or empty."""
    text = element.attributes.get(name, "").strip()
    if not text and default is not None:
        return default
    if not re.fullmatch(r"-?\d{1,9}", text):
        found = f"{name}={quoted(text)}" if text else f"no {name}"
        raise element.error(f"found {found}; expected a whole number; correct the attribute")
    return int(text)


@dataclass(slots=True)
class System:
    """Devices of an NCCL topology file, in file order, and assumptions made while its elements are read.

    - `unsaid`: Arguments of `PcieServer.add_device` for devices whose PCIe rate the file lacks.
    - `bridges`: Bridges for which the file states an implausibly low rate, as (device, parent, name).
    - `loose`: NICs outside PCIe devices, as (element, name, CPU).
    - `links`: Direct links between PCIe switches, as (switch, bus id of another).
    - `fused` (mapping of str to str): {bus id of an inner level of a switch: the switch}.
    - `cards` (mapping of str to str): {bus id without PCI function: first NIC with that bus id}. All
      functions of a NIC share one PCIe link, as in NCCL.
    - `indirect`: Names of NICs without GPUDirect RDMA.
    - `num_hosts`: Number of hosts in the file.
    - `host`: Prefix of names in the host that is being read; empty for one host.
    """

    given: Given
    server: PcieServer
    gpus: list[Gpu] = field(default_factory=list)
    latency_us: Fraction = Fraction(0)
    seen: set[str] = field(default_factory=set)
    named: set[str] = field(default_factory=set)
    unknown: list[XmlElement] = field(default_factory=list)
    assumed: Counter[str] = field(default_factory=Counter)
    cpus: Counter[str] = field(default_factory=Counter)
    passed: set[str] = field(default_factory=set)
    unsaid: list[tuple[str, str, Fraction, str]] = field(default_factory=list)
    bridges: list[tuple[str, str, str]] = field(default_factory=list)
    cards: dict[str, str] = field(default_factory=dict)
    loose: list[tuple[XmlElement, str, str]] = field(default_factory=list)
    links: list[tuple[str, str]] = field(default_factory=list)
    fused: dict[str, str] = field(default_factory=dict)
    indirect: list[str] = field(default_factory=list)
    num_hosts: int = 1
    host: str = ""

    def add_cpu(self, cpu: XmlElement, number: int, host: str) -> None:
        """Add a CPU and all devices below it in the file; `host` is a prefix of their names."""
        self.host = host
        name = f"CPU {host}{whole(cpu, 'numaid', number)}"
        self._once(name, cpu)
        beta, why = self.given.cpu_beta, "as given"
        if beta is None:
            rate, why = _cpu_rate(cpu)
            beta = rate and beta_of_bandwidth(rate)
        said = "no known limit" if beta is None else f"{float(1000 / beta):g} GB/s"
        guess = ""
        if self.given.cpu_beta is None:
            why += "" if "cpu_gb_per_s=" in why else "; cpu_gb_per_s="
            guess = f"{said} from a CPU to each other CPU ({why})"
            self.cpus[guess] += 1
        self.server.add_cpu(name, beta, guess=guess, host=host)
        self._below(cpu, name, None)

    def _below(
        self, element: XmlElement, part: str, slot_beta: Fraction | None, *, broadcom: int = 0
    ) -> None:
        """Add the devices below an element.

        - `broadcom`: Generation of PCIe of a Broadcom switch whose second level is below it; 0 for others.
        """
        for child in element.children:
            if child.tag == "pci":
                self._add_device(child, part, broadcom)
            elif child.tag in ("nic", "net"):
                for net in _nets(child):
                    if whole(net, "net", 1):
                        if slot_beta is None:
                            self.loose.append((net, _net_name(net), part))
                        else:
                            self._add_nic(net, part, _net_name(net), slot_beta)
                    else:  # a member of a merged NIC, which NCCL does not use on its own
                        self.assumed["NICs that NCCL and RCCL do not use as such (net=0) are left out"] += 1
            elif child.tag == "pcilink" and part in self.server.devices:
                self.links.append((part, self.host + child.attributes.get("target", "").strip().lower()))
            elif child.tag != "gpu":
                self.passed.add(child.tag)

    def _add_device(self, pci: XmlElement, parent: str, broadcom: int) -> None:
        busid = pci.attributes.get("busid", "").strip().lower()
        if not busid or len(busid) > 32:
            raise pci.error(f"found busid {quoted(busid)}; expected one such as 0000:10:1c.0; add it")
        busid = self.host + busid
        kind = self._kind(pci, busid)
        key = busid
        if busid in self.seen and kind in (_SWITCH, _NIC):  # RCCL repeats the id for nested switches
            key = f"{busid} #{len(self.seen)}"
        self._once(key, pci)
        if kind is None:
            self.unknown.append(pci)
            return
        if kind == _NVSWITCH:
            return
        beta, is_said = (self.given.pcie_beta, True) if self.given.pcie_beta else self._pcie_beta(pci)
        if kind == _SWITCH and broadcom and _broadcom_generation(pci, 1) == broadcom:
            self.assumed["the two levels of a PCIe switch of Broadcom are one switch, as in NCCL"] += 1
            self.fused[busid] = parent
            self._below(pci, parent, beta)
            return
        if kind == _NIC:
            key = self.cards.setdefault(busid.rpartition(".")[0] or busid, key)
        if key not in self.server.devices:
            name = f"{kind} {key}"
            self.server.add_device(key, parent, beta, name=name)
            if not is_said:
                self.unsaid.append((key, parent, beta, name))
            elif kind == _SWITCH and beta >= _VIRTUAL_BETA and self.given.pcie_beta is None:
                self.bridges.append((key, parent, name))
        if kind == _GPU and self._wanted(busid, self.given.gpus, "GPUs"):
            for gpu in pci.all("gpu") or [pci]:
                self._add_gpu(gpu, busid)
        if kind == _NIC and not any(map(_nets, pci.children)):
            self._add_nic(pci, key, busid, beta)
        self._below(pci, key, beta, broadcom=_broadcom_generation(pci, 0))

    def _add_gpu(self, element: XmlElement, busid: str) -> None:
        """Add a ``<gpu>``, of which a device has several if it is partitioned or several ranks share it."""
        if element.tag == "gpu":
            known = {*FABRICS, "c2c"}
            self.passed |= {child.tag for child in element.children if child.tag not in known}
        rank, sm, part = (whole(element, name, -1) for name in ("rank", "sm", "mlopart"))
        # ROCm names an architecture with its features, as in gfx942:sramecc+:xnack-.
        gcn = element.attributes.get("gcn", "").partition(":")[0].strip()[:20]
        self.gpus.append(Gpu(busid, rank, sm, gcn, part, element))

    def _kind(self, pci: XmlElement, busid: str) -> str | None:
        """Kind of a device; None if the file does not state it."""
        children = {child.tag for child in pci.children}
        code = pci.attributes.get("class", "").strip().lower()
        if busid in (self.given.gpus or ()):
            return _GPU
        if busid in (self.given.nics or ()):
            return _NIC
        if "gpu" in children or code.startswith(GPU_CLASSES):
            return _GPU
        if {"nic", "net"} & children or code.startswith("0x02"):
            return _NIC
        if code.startswith("0x0680"):
            return _NVSWITCH
        return _SWITCH if code or "pci" in children else None

    def _add_nic(self, element: XmlElement, part: str, name: str, slot_beta: Fraction | None) -> None:
        if not self._wanted(name, self.given.nics, "NICs", part):
            return
        beta = self.given.nic_beta
        if beta is None and element.attributes.get("speed", "").strip():
            rate = whole(element, "speed")
            if rate <= 0:  # NCCL's default for network devices with unknown speed
                rate = _MBIT_PER_S_UNKNOWN
                self.assumed[f"{rate} Mbit/s for a NIC without a speed (nic_gb_per_s=)"] += 1
            elif rate >= _KBIT_PER_S:
                self.assumed[f"the speed {rate} of a NIC is in kbit/s, not in Mbit/s (nic_gb_per_s=)"] += 1
                rate //= 1000
            beta = beta_of_bandwidth(Fraction(rate, 8000))
        elif beta is None and slot_beta is not None:
            beta = slot_beta
            self.assumed["the rate of its PCIe link for a NIC without a speed (nic_gb_per_s=)"] += 1
        if beta is None:
            raise element.error(
                f"found NIC {name[:40]} without a speed; expected one in Mbit/s; add it, or give "
                "nic_gb_per_s="
            )
        latency = element.attributes.get("latency", "").strip() or "0"
        if not re.fullmatch(r"\d{1,9}(\.\d{1,12})?", latency):
            raise element.error(f"found latency={quoted(latency)}; expected microseconds; correct it")
        self.latency_us = max(self.latency_us, Fraction(latency))
        if any(nic.name == name for nic in self.server.nics):
            name = f"{name} #{len(self.server.nics)}"
        self._once(f"NIC {name}", element)
        self.server.nics.append(Nic(name, part, beta))
        if element.attributes.get("gdr", "").strip() == "0":
            self.indirect.append(name)

    def _add_loose(self) -> None:
        """Add the NICs that lie outside PCIe devices, if the server has no other NICs or `nics=` is given.

        These NICs are virtual interfaces. NCCL writes each of them with 10 Gbit/s, and repeats it at the CPU
        of every process.
        """
        if self.server.nics and self.given.nics is None:
            names = first_of(list(dict.fromkeys(name for _, name, _ in self.loose)), 4)
            said = f"interfaces without a PCIe device are virtual and left out: {names} (nics= chooses)"
            self.assumed.update([said] if names else [])
            return
        found = set()
        for net, name, part in self.loose:
            same = tuple(net.attributes.get(each, "") for each in ("dev", "port", "guid"))
            host = part.partition("/")[0] if self.num_hosts > 1 else ""
            if any(same) and (host, name, same) in found:
                self.assumed["a NIC that the file lists at several CPUs is one"] += 1
                continue
            found.add((host, name, same))
            self._add_nic(net, part, name, None)

    def _wanted(self, name: str, given: tuple[str, ...] | None, kind: str, other: str = "") -> bool:
        hits = {name.lower(), other.lower()} & set(given or ())
        self.named |= hits
        if given is not None and not hits:
            self.assumed[f"{kind} that {kind.lower()}= does not name are left out"] += 1
        return given is None or bool(hits)

    def _once(self, name: str, element: XmlElement) -> None:
        if name in self.seen:
            raise element.error(f"found {name[:40]} twice; expected it once; correct one")
        self.seen.add(name)
        if len(self.seen) > _MAX_DEVICES:
            raise element.error(
                f"found more than {_MAX_DEVICES} devices; expected those of one server; take the rest out"
            )

    def _pcie_beta(self, pci: XmlElement) -> tuple[Fraction, bool]:
        """(PCIe link's beta in us per MB, False if the lanes or the rate are NCCL's default)."""
        lanes = whole(pci, "link_width", 0)
        if lanes < 0:
            raise pci.error(f"found link_width={lanes}; expected 0 to {_MOST_LANES} lanes; correct it")
        if lanes > _MOST_LANES:  # virtual machines report 63 or 255 for an unknown width
            lanes = 0
        match = _SPEED.match(pci.attributes.get("link_speed", "").strip())
        lane = LANE_GB_PER_S.get(match[1] + (match[2] or "")) if match else None
        rate = (lanes or LANES) * (lane or LANE_GB_PER_S[_SPEED_UNKNOWN])
        return beta_of_bandwidth(rate), bool(lanes and lane)

    def _settle_pcie(self) -> None:
        """Set the PCIe rates that the file lacks, each at least as fast as the fastest NIC.

        A bridge whose stated rate is implausibly low gets the rate of the fastest device below it. C2C links
        of a GPU become its links to the CPU, and paths to the CPU use them in place of PCIe.
        """
        fastest = min((nic.beta_us_per_mb for nic in self.server.nics), default=None)
        for key, parent, beta, name in self.unsaid:
            beta = beta if fastest is None else min(beta, fastest)
            guess = f"{float(1000 / beta):g} GB/s for a PCIe link whose lanes or GT/s the file lacks"
            guess += " (pcie_gb_per_s=)"
            self.assumed[guess] += 1
            self.server.add_device(key, parent, beta, name=name, guess=guess)
        for gpu in self.gpus:
            links = gpu.element.all("c2c")
            mb_per_s = sum(max(whole(link, "count") * whole(link, "bw"), 0) for link in links)
            if mb_per_s:
                self.server.add_cpu_link(gpu.busid, beta_of_bandwidth(Fraction(mb_per_s, 1000)), fabric="C2C")
        self.server.gpus = [gpu.busid for gpu in self.gpus]
        self.server.lift_guesses()
        tree = self.server.tree
        for key, parent, name in reversed(self.bridges):
            children = [child for child in tree.predecessors(key) if child != parent]
            below = [tree.edges[child, key]["limit"][1] for child in children]
            if not below or min(below) >= _VIRTUAL_BETA:
                continue
            guess = "the rate of the fastest device below for a bridge that states one or two lanes of PCIe 1"
            guess += " (pcie_gb_per_s=)"
            self.assumed[guess] += 1
            self.server.add_device(key, parent, min(below), name=name, guess=guess)

    def finish(self, top: XmlElement) -> None:
        """Complete the system after all elements are read; check that GPUs and named devices were found."""
        self._add_loose()
        names = ", ".join(pci.attributes["busid"] for pci in self.unknown[:4])
        names += ", ..." if len(self.unknown) > 4 else ""
        for argument, given in (("gpus", self.given.gpus), ("nics", self.given.nics)):
            missing = sorted(set(given or ()) - self.named)
            if missing:
                raise top.error(
                    f"found no device {missing[0][:40]}, which {argument}= names; give bus ids as the file "
                    "writes them"
                )
        if not self.gpus:
            lacking = f", and {len(self.unknown)} devices without a class ({names})" if names else ""
            raise top.error(
                f"found no GPU{lacking}; expected devices of class 0x03...; name them by bus id: gpus=[...], "
                "and NICs by nics=[...]"
            )
        for start, busid in self.links:
            end = self.fused.get(busid, busid)
            if end in self.server.devices and end != start:  # without a limit, as in NCCL
                for one, other in ((start, end), (end, start)):
                    limit = f"PCIe from {one} to {other}", None, "send"
                    self.server.tree.add_edge(one, other, limit=limit)
        self._settle_pcie()
        if self.unknown:
            self.assumed[f"{len(self.unknown)} devices without a class are left out ({names})"] += 1
        if len(self.server.cpus) > 1:
            self.assumed += self.cpus
            if len(self.cpus) > 1:
                self.assumed["CPUs differ; a path between two has the rate of the CPU that sends"] += 1
        if self.passed:
            passed = ", ".join(sorted(tag[:20] for tag in self.passed)[:8])
            self.assumed[f"ignored elements: {passed}"] += 1
        self.server.assumed += [
            f"{each} ({count} times)" if count > 1 else each for each, count in self.assumed.items()
        ]


def _nets(element: XmlElement) -> list[XmlElement]:
    """Networks of a ``<nic>``, or the element itself if it states a speed, as in files written by hand."""
    return element.all("net") or [element] * (element.tag in ("nic", "net") and "speed" in element.attributes)


def _broadcom_generation(pci: XmlElement, level: int) -> int:
    """Generation of PCIe of a switch of Broadcom (PEX, in base mode) that shows two levels; 0 for others.

    Such a switch sustains the full rate of all ports, so that its inner links limit nothing (NCCL's topo.cc).

    - `level`: 0 for the outer level, 1 for the inner one; devices of PCIe 4 do not tell them apart.
    """
    names = ("vendor", "device", "subsystem_vendor", "subsystem_device")
    vendor, device, other, part = (pci.attributes.get(name, "").strip().lower() for name in names)
    if (vendor, other) != ("0x1000", "0x1000") or not re.fullmatch("0x[0-9a-f]{4}", part):
        return 0
    if device == "0xc010" and part[2] == "a":
        return 4
    return 5 if device == "0xc030" and part[2] == str(level) else 0


def _net_name(net: XmlElement) -> str:
    return net.attributes.get("name", "").strip()[:60] or f"net {net.attributes.get('dev', '?')[:20]}"


def _cpu_rate(cpu: XmlElement) -> tuple[Fraction | None, str]:
    """(GB/s between two CPUs, or None if the kind of CPU is unknown; the kind, or a remedy)."""
    kind = cpu.attributes.get("arch", ""), cpu.attributes.get("vendor", "")
    family, model = (whole(cpu, name, 0) for name in ("familyid", "modelid"))
    if kind[0] in ("ppc64", "arm64"):
        return (Fraction(32), "POWER") if kind[0] == "ppc64" else (Fraction(6), "Arm")
    if kind == ("x86_64", "GenuineIntel"):
        return Fraction(_intel_rate(family, model)), f"Intel, family {family}, model {model}"
    if kind == ("x86_64", "AuthenticAMD"):
        # Earlier NCCL versions wrote AMD families 26 and 25 as 0xBF and 0xAF.
        rate = 32 if family in (26, 0xBF) else 24 if family in (25, 0xAF) else 16
        return Fraction(rate), f"AMD, family {family}"
    if kind in (("x86_64", "CentaurHauls"), ("x86_64", "  Shanghai  ")):
        return Fraction(9 if (family, model) == (7, 0x5B) else 6), "Zhaoxin"
    return None, "the file does not state the CPU model; give cpu_gb_per_s= for a limit"


def _intel_rate(family: int, model: int) -> int:
    if family != 6 or model < 0x55:
        return 6
    if model >= 0xCF or model in (0xAD, 0xAE, 0xAF):
        return 40
    return 22 if model >= 0x8F else 10
