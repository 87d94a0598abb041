"""Named profiles of machine constants: every alpha and beta, and where it comes from.

`taccl` is what the authors of TACCL published with their code; `nominal` is what data sheets
promise, and what published bounds on bandwidth are stated for. A data sheet promises no latency, so alpha
is 0 in `nominal`. `nccl` is what NCCL takes machines for when it chooses an algorithm, with a launch and
three protocols.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from taccl.errors import TopologyError
from taccl.topology.parts import OVERHEAD_US, beta_of_bandwidth
from taccl.topology.profile import Constant, Profile, ProtocolCosts
from taccl.topology.tuning import (
    LAUNCH,
    LAUNCH_US,
    LL_GB_PER_S,
    NVLINK_GB_PER_S,
    PROTOCOLS,
    SOURCE,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taccl.topology.topology import Topology

__all__ = ["PROFILES", "find_profile", "profile_of"]


def profile_of(topology: Topology) -> Profile | None:
    """The profile that a machine's topology was made with, under its protocol; None if it has none."""
    known: Profile | None = topology.memo.get("profile")
    named = {each.name for each in PROFILES.get(topology.machine, ())}
    if known is None and (topology.profile in named or (named and _is_file(topology.profile))):
        known = find_profile(topology.machine, topology.profile).under(topology.protocol or None)
    return known


def _is_file(profile: str) -> bool:
    return profile.lower().endswith((".toml", ".json"))


def find_profile(machine: str, profile: str) -> Profile:
    """The profile of a machine by name, or from a file; `TopologyError` names the known ones."""
    known = {each.name: each for each in PROFILES[machine]}
    if _is_file(profile):
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


def _nominal(machine: str, link: str, nic: tuple[int | str, str], **rates: tuple[int | str, str]) -> Profile:
    """What data sheets promise: (GB/s, source) of a NIC, and of each kind of link in a node."""
    return Profile(
        machine,
        "nominal",
        (
            Constant(f"{link}_alpha_us", Fraction(0), _NO_ALPHA),
            Constant(f"{link}_overhead_us", OVERHEAD_US, _OVERHEAD),
            *(_rate(f"{kind}_beta_us_per_mb", *rate) for kind, rate in rates.items()),
            Constant("internode_alpha_us", Fraction(0), _NO_ALPHA),
            _rate("internode_beta_us_per_mb", *nic),
            _NIC_ALPHA,
        ),
    )


def _nccl(nominal: Profile, generation: str, num_links: int) -> Profile:
    """What NCCL's tables say of GPUs of a generation with so many NVLinks each; NICs are as promised."""
    named = {each.name: each for each in PROTOCOLS}

    def costs(name: str) -> ProtocolCosts:
        table = named[name]

        def tabled(what: str, value: float | str) -> Constant:
            return Constant(what, Fraction(str(value)), SOURCE)

        return ProtocolCosts(
            name,
            tabled("base_us", table.ring_base_us),
            tabled("node_hop_us", table.ring_hop_us),
            tabled("network_hop_us", table.ring_network_us),
            tabled("bandwidth_share", table.bandwidth_share),
            tabled("node_gb_per_s", LL_GB_PER_S[generation]) if name == "ll" else None,
        )

    protocols = tuple(costs(name) for name in ("simple", "ll", "ll128"))
    rate = num_links * Fraction(NVLINK_GB_PER_S[generation])
    source = f"{num_links} NVLinks of {NVLINK_GB_PER_S[generation]} GB/s: {SOURCE}"
    given = {
        "nvswitch_beta_us_per_mb": Constant("nvswitch_beta_us_per_mb", beta_of_bandwidth(rate), source),
        "nic_alpha_us": Constant("nic_alpha_us", OVERHEAD_US, _OVERHEAD),
    }
    constants = tuple(protocols[0].of(given.get(each.name, each)) for each in nominal.constants)
    launch = Constant("launch_us", Fraction(str(LAUNCH_US)), LAUNCH)
    return Profile(nominal.machine, "nccl", constants, launch, protocols)


def _published(machine: str, link: str, file: str, remark: str = "", **betas: tuple[int, str]) -> Profile:
    """What TACCL's file says: (us per MB, field) of each kind of link in a node."""

    def constant(name: str, value: int | str, field: str) -> Constant:
        return Constant(name, Fraction(value), f"{file}: {field}{remark}")

    return Profile(
        machine,
        "taccl",
        (
            constant(f"{link}_alpha_us", "0.3", "alpha"),
            *(constant(f"{kind}_beta_us_per_mb", *beta) for kind, beta in betas.items()),
            constant("internode_alpha_us", "2.6", "remote_alpha"),
            constant("internode_beta_us_per_mb", 105, "remote_beta"),
            _NIC_ALPHA,
        ),
    )


def _mesh(machine: str, nic_source: str, remark: str = "") -> tuple[Profile, Profile]:
    return (
        _published(
            machine, "nvlink", "TACCL's published topo-ndv2-1MB.json", remark,
            nvlink=(46, "node_betas_list[1]"), nvlink_double=(23, "node_betas_list[0]"),
        ),
        _nominal(
            machine, "nvlink", ("12.5", nic_source), nvlink=(25, _V100),
            nvlink_double=(50, f"two links; {_V100}"),
        ),
    )  # fmt: skip


_DATA_SHEETS: Mapping[str, tuple[Profile, ...]] = {
    "ndv2": _mesh("ndv2", f"Microsoft, Azure NDv2-series: one {_EDR}, for the virtual machine"),
    "dgx1": _mesh(
        "dgx1",
        f"NVIDIA, DGX-1 With Tesla V100 System Architecture (2017): four {_EDR}",
        " (NDv2's, which has the same V100, NVLink 2.0 and EDR InfiniBand)",
    ),
    "dgx2": (
        _published(
            "dgx2", "nvswitch", "TACCL's published topo-dgx2-1MB.json", nvswitch=(8, "node_betas_list[0]")
        ),
        _nominal(
            "dgx2",
            "nvswitch",
            ("12.5", f"NVIDIA, DGX-2 data sheet (2018): eight {_EDR}"),
            nvswitch=(150, f"six links; {_V100}"),
        ),
    ),
    "dgx-a100": (
        _nominal(
            "dgx-a100",
            "nvswitch",
            (25, "NVIDIA, DGX A100 data sheet (2020): eight single-port HDR InfiniBand, 200 Gb/s"),
            nvswitch=(
                300, "NVIDIA, A100 Tensor Core GPU Architecture (2020): NVLink 3, 600 GB/s both ways",
            ),
        ),
    ),
    "dgx-h100": (
        _nominal(
            "dgx-h100",
            "nvswitch",
            (50, "NVIDIA, DGX H100 data sheet (2022): eight single-port NDR InfiniBand, 400 Gb/s"),
            nvswitch=(
                450, "NVIDIA, H100 Tensor Core GPU Architecture (2022): NVLink 4, 900 GB/s both ways",
            ),
        ),
    ),
    "h200": (
        _nominal(
            "h200",
            "nvswitch",
            (50, "NVIDIA, DGX H200 data sheet (2024): eight single-port NDR InfiniBand, 400 Gb/s"),
            nvswitch=(450, "NVIDIA, H200 Tensor Core GPU data sheet (2024): NVLink 4, 900 GB/s both ways"),
        ),
    ),
    "b200": (
        _nominal(
            "b200",
            "nvswitch",
            (50, "NVIDIA, DGX B200 data sheet (2024): eight single-port ConnectX-7, 400 Gb/s"),
            nvswitch=(900, "NVIDIA, DGX B200 data sheet (2024): NVLink 5, 14.4 TB/s both ways of 8 GPUs"),
        ),
    ),
    "gb200-nvl72": (
        _nominal(
            "gb200-nvl72",
            "nvswitch",
            (50, "NVIDIA, DGX GB200 data sheet (2024): 72 single-port ConnectX-7, 400 Gb/s"),
            nvswitch=(900, "NVIDIA, GB200 NVL72 data sheet (2024): NVLink 5, 130 TB/s both ways of 72 GPUs"),
        ),
    ),
    "mi300x": (
        _nominal(
            "mi300x",
            "xgmi",
            (50, "AMD, ROCm documentation (2026): eight 400 Gb/s NICs, one for each GPU"),
            xgmi=(64, "AMD, Instinct MI300X data sheet (2023): 7 links to GPUs, 128 GB/s both ways each"),
        ),
    ),
    "mi355x": (
        _nominal(
            "mi355x",
            "xgmi",
            (50, "AMD, ROCm documentation (2026): eight Pollara 400, one for each GPU"),
            xgmi=(
                "76.8",
                "AMD, Instinct MI355X data sheet (2025): 7 links to GPUs, 153.6 GB/s both ways each",
            ),
        ),
    ),
}  # fmt: skip
#: The generation of GPUs, and how many NVLinks each has.
_NVLINKS = {
    "dgx-a100": ("Ampere", 12), "dgx-h100": ("Hopper", 18), "h200": ("Hopper", 18), "b200": ("Blackwell", 18),
    "gb200-nvl72": ("Blackwell", 18),
}  # fmt: skip
PROFILES: Mapping[str, tuple[Profile, ...]] = {
    machine: (_nccl(known[0], *_NVLINKS[machine]), *known) if machine in _NVLINKS else known
    for machine, known in _DATA_SHEETS.items()
}
"""Profiles of every machine model; the first is the default."""
