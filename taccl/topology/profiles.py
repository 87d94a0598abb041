"""Named profiles of machine constants: every alpha and beta, and where it comes from.

`taccl` is what the authors of TACCL published with their code; `nominal` is what data sheets
promise, and what published bounds on bandwidth are stated for. A data sheet promises no latency, so alpha
is 0 in `nominal`. `nccl` is what NCCL takes machines for when it chooses an algorithm, with a launch and
three protocols; `rccl` is a fit to published logs, with the same.
"""

from __future__ import annotations

import os
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeAlias

from taccl.errors import TopologyError
from taccl.topology.networks import INSTANCES, NETWORKS
from taccl.topology.parts import OVERHEAD_US, beta_of_bandwidth
from taccl.topology.profile import Constant, Profile, ProtocolCosts
from taccl.topology.tuning import (
    KERNEL_LAUNCH,
    KERNEL_LAUNCH_US,
    LAUNCH,
    LAUNCH_US,
    LL_GB_PER_S,
    NVLINK_GB_PER_S,
    PCIE_HOPS_US,
    PROTOCOLS,
    SOURCE,
    Protocol,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taccl.topology.topology import Topology

    #: (GB/s each way, source); of each kind of link in a node, and of a NIC.
    _Rate: TypeAlias = tuple[int | str, str]
    _Sheet: TypeAlias = tuple[Mapping[str, _Rate], _Rate]


def profile_of(topology: Topology) -> Profile | None:
    """The profile that a machine's topology was made with, under its protocol; None if it has none."""
    known: Profile | None = topology.cache.get("profile")
    named = {each.name for each in PROFILES.get(topology.machine, ())}
    if known is None and (topology.profile in named or (named and _is_file(topology.profile))):
        known = find_profile(topology.machine, topology.profile).under(topology.protocol or None)
    return known


def _is_file(profile: str) -> bool:
    return profile.lower().endswith((".toml", ".json")) or os.path.isfile(profile)


def find_profile(machine: str, profile: str) -> Profile:
    """The profile of a machine by name, or from a file; `TopologyError` names the known ones."""
    known = {each.name: each for each in PROFILES[machine]}
    if profile not in known and _is_file(profile):
        from taccl.topology.profile_files import load_profile

        return load_profile(profile, known["nominal"])
    if profile not in known:
        raise TopologyError(
            f"found {profile!r}; {machine} has the profiles {', '.join(known)}", where=f"{machine}: profile"
        )
    return known[profile]


def _rate(name: str, gb_per_s: int | str, source: str) -> Constant:
    return Constant(name, beta_of_bandwidth(gb_per_s), f"{gb_per_s} GB/s each way: {source}")


_NO_ALPHA = "data sheets promise no latency, so none is counted"
# No source is known to us for the time that a message keeps a NIC beyond its bytes; 0 is the optimistic end,
# alpha of the link the pessimistic one, and `constants=` sets anything between.
_NIC_ALPHA = Constant(
    "nic_alpha_us",
    Fraction(0),
    "our choice: alpha is time on the way, during which the NIC serves another rank's message",
)
_OVERHEAD = "our choice: of alpha, at most so much holds a port; the rest is time on the way"
_V100 = "NVIDIA, Tesla V100 GPU Architecture (2017): NVLink 2.0, 25 GB/s per link and direction, 6 links"
_EDR = "EDR InfiniBand, 100 Gb/s"


def _nominal(machine: str, links: Mapping[str, _Rate], nic: _Rate) -> Profile:
    """Profile of the rates in data sheets."""
    link = next(iter(links))
    return Profile(
        machine,
        "nominal",
        (
            Constant(f"{link}_alpha_us", Fraction(0), _NO_ALPHA),
            Constant(f"{link}_overhead_us", OVERHEAD_US, _OVERHEAD),
            *(_rate(f"{kind}_beta_us_per_mb", *rate) for kind, rate in links.items()),
            Constant("internode_alpha_us", Fraction(0), _NO_ALPHA),
            _rate("internode_beta_us_per_mb", *nic),
            _NIC_ALPHA,
        ),
    )


def _by_protocol(
    nominal: Profile,
    name: str,
    launch: Constant,
    gb_per_s: Fraction,
    rate_source: str,
    costs: Mapping[str, tuple[Any, Any, Any]],
    source: str,
    most: Constant | None = None,
) -> Profile:
    """A profile with the rate of a link in a node, and base, hop and share by protocol.

    NICs are as promised, hops between nodes as in NCCL's tables, and of an instance type's network as of its
    class; `most` is what LL moves in a node.
    """
    network = NETWORKS[INSTANCES[nominal.machine].network] if nominal.machine in INSTANCES else None

    def costs_of(table: Protocol) -> ProtocolCosts:
        base, hop, share = (Fraction(str(value)) for value in costs[table.name])
        network_us, said = Fraction(str(table.ring_network_us)), SOURCE
        if network is not None and network.hop_us:  # simple waits for its data and for its flush
            network_us += Fraction(str(network.hop_us)) * (2 if table.name == "simple" else 1)
            said = f"{SOURCE}, and a hop of {network.name}: {network.source}"
        return ProtocolCosts(
            table.name,
            Constant("base_us", base, source),
            Constant("node_hop_us", hop, source),
            Constant("network_hop_us", network_us, said),
            Constant("bandwidth_share", share, source),
            most if table.name == "ll" else None,
        )

    kind = nominal.constants[0].name.partition("_")[0]
    beta, nic = f"{kind}_beta_us_per_mb", "nic_alpha_us"
    given = {
        beta: Constant(beta, beta_of_bandwidth(gb_per_s), rate_source),
        nic: Constant(nic, OVERHEAD_US, _OVERHEAD),
    }
    simple, ll, ll128 = (costs_of(table) for table in (PROTOCOLS[2], *PROTOCOLS[:2]))
    constants = tuple(simple.of(given.get(each.name, each)) for each in nominal.constants)
    launches = (Constant("mscclpp.launch_us", Fraction(str(KERNEL_LAUNCH_US)), KERNEL_LAUNCH),)
    protocols = (simple, ll, ll128)
    return Profile(nominal.machine, name, constants, launch, protocols, runtime=name, launches=launches)


def _published(machine: str, file: str, betas: Mapping[str, tuple[str, str]]) -> Profile:
    """Profile of TACCL's published file: (us per MB, field) for each kind of link in a node."""

    def constant(name: str, value: str, field: str) -> Constant:
        return Constant(name, Fraction(value), f"{file}: {field}")

    return Profile(
        machine,
        "taccl",
        (
            constant(f"{next(iter(betas))}_alpha_us", "0.3", "alpha"),
            *(constant(f"{kind}_beta_us_per_mb", *beta) for kind, beta in betas.items()),
            constant("internode_alpha_us", "2.6", "remote_alpha"),
            constant("internode_beta_us_per_mb", "105", "remote_beta"),
            _NIC_ALPHA,
        ),
    )


_V100_LINKS = {"nvlink": (25, _V100), "nvlink_double": (50, f"two links; {_V100}")}
_GB200 = "NVIDIA, DGX GB Rack Scale Systems User Guide:"
_MI355X = "AMD, Instinct MI355X data sheet (2025)"
_AMD = "AMD, ROCm documentation (2026): eight"
#: Servers whose GPUs talk over PCIe: generation of the GPUs, version of PCIe, GB/s that it promises, GB/s
#: that NCCL takes it for (``src/graph/topo.cc``, then the next lower speed of ``src/graph/search.cc``), GB/s
#: of the NIC of a node and its source.
_ONE_NIC = ("12.5", "one NIC of 100 Gb/s for each node: our choice")
PCIE: Mapping[str, tuple[str, str, str, str, str, str]] = {
    "v100-pcie": ("Volta", "3.0", "15.75", "12", *_ONE_NIC),
    "a100-pcie": ("Ampere", "4.0", "31.5", "20", *_ONE_NIC),
    "h100-pcie": ("Hopper", "5.0", "63", "40", *_ONE_NIC),
    "l40s": ("Ampere", "4.0", "31.5", "20", *_ONE_NIC),
    # GPUs of g4dn.12xlarge have no peer-to-peer access; NCCL copies through memory of the host.
    "t4": ("Volta", "3.0", "15.75", "6", "6.25", "Amazon, g4dn.12xlarge: one NIC of 50 Gb/s"),
}
_SHEETS: Mapping[str, _Sheet] = {
    "ndv2": (_V100_LINKS, ("12.5", f"Microsoft, Azure NDv2-series: one {_EDR}, for the virtual machine")),
    "dgx1": (_V100_LINKS, ("12.5", f"NVIDIA, DGX-1 With Tesla V100 System Architecture (2017): four {_EDR}")),
    "dgx2": (
        {"nvswitch": (150, f"six links; {_V100}")},
        ("12.5", f"NVIDIA, DGX-2 data sheet (2018): eight {_EDR}"),
    ),
    "dgx-a100": (
        {"nvswitch": (300, "NVIDIA, A100 Tensor Core GPU Architecture (2020): NVLink 3, 600 GB/s both ways")},
        (25, "NVIDIA, DGX A100 data sheet (2020): eight single-port HDR InfiniBand, 200 Gb/s"),
    ),
    "dgx-h100": (
        {"nvswitch": (450, "NVIDIA, H100 Tensor Core GPU Architecture (2022): NVLink 4, 900 GB/s both ways")},
        (50, "NVIDIA, DGX H100 data sheet (2022): eight single-port NDR InfiniBand, 400 Gb/s"),
    ),
    "h200": (
        {"nvswitch": (450, "NVIDIA, H200 Tensor Core GPU data sheet (2024): NVLink 4, 900 GB/s both ways")},
        (50, "NVIDIA, DGX H200 data sheet (2024): eight single-port NDR InfiniBand, 400 Gb/s"),
    ),
    "b200": (
        {"nvswitch": (900, "NVIDIA, DGX B200 data sheet (2024): NVLink 5, 14.4 TB/s both ways of 8 GPUs")},
        (50, "NVIDIA, DGX B200 data sheet (2024): eight single-port ConnectX-7, 400 Gb/s"),
    ),
    "gb200-nvl72": (
        {"nvswitch": (900, f"{_GB200} NVLink 5, 130 TB/s both ways of 72 GPUs")},
        (50, f"{_GB200} a ConnectX-7 of 400 Gb/s for each GPU"),
    ),
    "mi300x": (
        {"xgmi": (64, "AMD, Instinct MI300X data sheet (2023): 7 links to GPUs, 128 GB/s both ways each")},
        (50, f"{_AMD} 400 Gb/s NICs, one for each GPU"),
    ),
    **{
        name: ({"pcie": (rate, f"PCI-SIG, PCI Express {version} x16")}, (nic, said))
        for name, (_, version, rate, _, nic, said) in PCIE.items()
    },
    "mi355x": (
        {"xgmi": ("76.8", f"{_MI355X}: 7 links to GPUs, 153.6 GB/s both ways each")},
        (50, f"{_AMD} Pollara 400, one for each GPU"),
    ),
}  # fmt: skip
_MESH = {"nvlink": ("46", "node_betas_list[1]"), "nvlink_double": ("23", "node_betas_list[0]")}
_PUBLISHED = {
    "ndv2": ("TACCL's published topo-ndv2-1MB.json", _MESH),
    "dgx1": (
        "TACCL's published topo-ndv2-1MB.json (NDv2 has the same V100, NVLink 2.0 and EDR InfiniBand)", _MESH,
    ),
    "dgx2": ("TACCL's published topo-dgx2-1MB.json", {"nvswitch": ("8", "node_betas_list[0]")}),
}  # fmt: skip
#: The generation of GPUs, and how many NVLinks each has.
NVLINKS = {
    "ndv2": ("Volta", 6), "dgx1": ("Volta", 6), "dgx2": ("Volta", 6),
    "dgx-a100": ("Ampere", 12), "dgx-h100": ("Hopper", 18), "h200": ("Hopper", 18), "b200": ("Blackwell", 18),
    "gb200-nvl72": ("Blackwell", 18),
}  # fmt: skip
_RCCL: Mapping[str, tuple[str, str, str, Mapping[str, tuple[str, str, str]]]] = {
    "mi300x": (
        "7", "45.2", "allreduce, median error 1.6 %; the launch and the share of ll are priors",
        {"simple": ("7.69", "3.11", "1"), "ll": ("5.46", "0.5", "0.5"), "ll128": ("3.05", "0.41", "0.575")},
    ),
    "mi355x": (
        "20.2", "56.7", "allreduce and alltoall, median error 2.7 %",
        {"simple": ("3.72", "0.59", "1"), "ll": ("10.6", "0.37", "0.31"), "ll128": ("8.97", "0.48", "0.547")},
    ),
}  # fmt: skip
"""What fits say: the launch in us, GB/s of a link, of which logs, and (base, hop, share) by protocol."""


def _profiles(machine: str, sheet: _Sheet) -> tuple[Profile, ...]:
    """Profiles of a machine, the default first: with latencies where known, or as published."""
    nominal = _nominal(machine, *sheet)
    if machine in _PUBLISHED:
        return _published(machine, *_PUBLISHED[machine]), nominal
    if machine in NVLINKS or machine in PCIE:
        costs = {each.name: (each.ring_base_us, each.ring_hop_us, each.bandwidth_share) for each in PROTOCOLS}
        if machine in PCIE:
            generation, version, _, rate, *_ = PCIE[machine]
            said, rates = f"PCIe {version}: {SOURCE}", Fraction(rate)
            hops = zip(PROTOCOLS, PCIE_HOPS_US["ring"], strict=True)
            costs = {each.name: (each.ring_base_us, hop, each.bandwidth_share) for each, hop in hops}
        else:
            generation, num_links = NVLINKS[machine]
            rate = NVLINK_GB_PER_S[generation]
            said, rates = f"{num_links} NVLinks of {rate} GB/s: {SOURCE}", num_links * Fraction(rate)
        most = Constant("node_gb_per_s", Fraction(LL_GB_PER_S[generation]), SOURCE)
        launch = Constant("launch_us", Fraction(str(LAUNCH_US)), LAUNCH)
        return _by_protocol(nominal, "nccl", launch, rates, said, costs, SOURCE, most), nominal
    launch_us, rate, logs, fitted = _RCCL[INSTANCES[machine].machine if machine in INSTANCES else machine]
    source = f"taccl fit of published rccl-tests logs of one node: {logs}"
    launch = Constant("launch_us", Fraction(launch_us), source)
    return _by_protocol(nominal, "rccl", launch, Fraction(rate), source, fitted, source), nominal


NVLINKS.update({name: NVLINKS[each.machine] for name, each in INSTANCES.items() if each.machine in NVLINKS})
_INSTANCE_SHEETS: Mapping[str, _Sheet] = {
    name: (_SHEETS[each.machine][0], (each.nic_gb_per_s, each.source)) for name, each in INSTANCES.items()
}
PROFILES: Mapping[str, tuple[Profile, ...]] = {
    machine: _profiles(machine, sheet) for machine, sheet in {**_SHEETS, **_INSTANCE_SHEETS}.items()
}
"""Profiles of every machine model and instance type; the first is the default."""
