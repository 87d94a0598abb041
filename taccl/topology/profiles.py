"""Named profiles of machine constants: every alpha and beta, with its source.

- `taccl`: Constants that the authors of TACCL published with their code.
- `nominal`: Rates of data sheets, which published bandwidth bounds assume. Alpha is 0, as data sheets give no
  latency.
- `nccl`: Rates and latencies with which NCCL chooses algorithms, with a launch time and three protocols.
- `rccl`: A fit to published logs of RCCL, with a launch time and three protocols.
"""

from __future__ import annotations

import os
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from taccl._internal.units import format_count
from taccl.errors import TopologyError
from taccl.topology.models import MODELS, Model, Rate, RcclFit
from taccl.topology.networks import INSTANCES, NETWORKS
from taccl.topology.parts import OVERHEAD_US, beta_of_bandwidth
from taccl.topology.profile import Constant, Profile, ProtocolCosts
from taccl.topology.tuning import (
    KERNEL_LAUNCH,
    KERNEL_LAUNCH_US,
    KERNEL_LAUNCHES,
    LAUNCH,
    LAUNCH_US,
    LL_GB_PER_S,
    NVLINK_GB_PER_S,
    PCIE_HOPS_US,
    PROTOCOLS,
    SOURCE,
    VOLTA_LAUNCH_SOURCE,
    VOLTA_LAUNCH_US,
    Protocol,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taccl.topology.topology import Topology


def profile_of(topology: Topology) -> Profile | None:
    """Profile and protocol from which a topology was made; None if it was not made from a profile."""
    known: Profile | None = topology.cache.get("profile")
    named = {each.name for each in PROFILES.get(topology.machine, ())}
    if known is None and (topology.profile in named or (named and _is_file(topology.profile))):
        known = find_profile(topology.machine, topology.profile).under(topology.protocol or None)
    return known


def measured_ratio(topology: Topology, collective: str, size_bytes: int) -> float:
    """Ratio of a library's measured time to its cost model by the topology's profile; 1 if not measured."""
    profile, sizes = profile_of(topology), (topology.num_ranks, topology.num_nodes, size_bytes)
    return 1.0 if profile is None else profile.correction(collective, *sizes)


def _is_file(profile: str) -> bool:
    return profile.lower().endswith((".toml", ".json")) or os.path.isfile(profile)


def find_profile(machine: str, profile: str) -> Profile:
    """Profile of a machine by name or from a file. Raises `TopologyError` for an unknown name."""
    known = {each.name: each for each in PROFILES[machine]}
    if profile not in known and _is_file(profile):
        from taccl.topology.profile_files import load_profile

        return load_profile(profile, known["nominal"])
    if profile not in known:
        raise TopologyError(
            f"found {profile!r}; expected a file, or one of {', '.join(known)}", where=f"{machine}: profile"
        )
    return known[profile]


def _rate(name: str, gb_per_s: int | str, source: str) -> Constant:
    return Constant(name, beta_of_bandwidth(gb_per_s), f"{gb_per_s} GB/s each way: {source}")


_NO_ALPHA = "data sheets state no latency, so it is 0"
# No source is known for the time that a message occupies a NIC beyond bytes * beta; `constants=` sets it.
# 0 is the optimistic choice, the alpha of the link the pessimistic one.
_NIC_ALPHA = Constant(
    "nic_alpha_us",
    Fraction(0),
    "our choice: alpha is propagation time, during which the NIC serves other messages",
)
_OVERHEAD = "our choice: max part of alpha that occupies a port; the rest is propagation time"


def _nominal(machine: str, links: Mapping[str, Rate], nic: Rate) -> Profile:
    """Profile ``"nominal"``, with the rates in data sheets."""
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
    generation: str = "",
) -> Profile:
    """Profile of a library: its rate inside a node, and latencies and bandwidth share of each protocol.

    NICs have their nominal rate. Hops between nodes have the latencies in NCCL's tables; for an instance
    type, the latency of its class of network is added.

    - `costs`: {protocol: (base in us, hop in us, share of the bandwidth)}.
    - `most`: Maximum rate of LL inside a node; None if not limited.
    - `generation`: Generation of NVIDIA's GPUs; empty for others.
    """
    network = NETWORKS[INSTANCES[nominal.machine].network] if nominal.machine in INSTANCES else None

    def costs_of(table: Protocol) -> ProtocolCosts:
        base, hop, share = (Fraction(str(value)) for value in costs[table.name])
        network_us, said = Fraction(str(table.ring_network_us)), SOURCE
        if network is not None and network.hop_us:
            network_us += Fraction(str(network.further_us(table.name)))
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
    beta, double, nic = f"{kind}_beta_us_per_mb", f"{kind}_double_beta_us_per_mb", "nic_alpha_us"
    given = {
        beta: Constant(beta, beta_of_bandwidth(gb_per_s), rate_source),
        double: Constant(double, beta_of_bandwidth(2 * gb_per_s), f"twice {rate_source}"),
        nic: Constant(nic, OVERHEAD_US, _OVERHEAD),
    }
    simple, ll, ll128 = (costs_of(table) for table in (PROTOCOLS[2], *PROTOCOLS[:2]))
    constants = tuple(simple.of(given.get(each.name, each)) for each in nominal.constants)
    kernel_us, said = KERNEL_LAUNCHES.get(generation, (KERNEL_LAUNCH_US, KERNEL_LAUNCH))
    launches = (Constant("mscclpp.launch_us", Fraction(str(kernel_us)), said),)
    protocols = (simple, ll, ll128)
    return Profile(nominal.machine, name, constants, launch, protocols, runtime=name, launches=launches)


def _published(machine: str, file: str, betas: Mapping[str, tuple[str, str]]) -> Profile:
    """Profile with the constants of a file that TACCL's authors published.

    - `betas`: {kind of link in a node: (us/MB, field of the file)}.
    """

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


def _of_nccl(nominal: Profile, model: Model) -> Profile:
    """Profile of NCCL, by the tables in its source code."""
    costs = {each.name: (each.ring_base_us, each.ring_hop_us, each.bandwidth_share) for each in PROTOCOLS}
    if model.pcie is not None:
        said, rates = f"PCIe {model.pcie.version}: {SOURCE}", Fraction(model.pcie.nccl_gb_per_s)
        hops = zip(PROTOCOLS, PCIE_HOPS_US["ring"], strict=True)
        costs = {each.name: (each.ring_base_us, hop, each.bandwidth_share) for each, hop in hops}
    else:
        rate = NVLINK_GB_PER_S[model.generation]
        joined = sum(count for pair, count in model.shape.pairs.items() if 0 in pair) or 1
        rates = Fraction(model.num_nvlinks, joined) * Fraction(rate)
        said = f"{format_count(model.num_nvlinks // joined, 'NVLink')} of {rate} GB/s: {SOURCE}"
    most = Constant("node_gb_per_s", Fraction(LL_GB_PER_S[model.generation]), SOURCE)
    is_old = model.generation == "Volta" and model.pcie is None
    launch_us, launch_of = (VOLTA_LAUNCH_US, VOLTA_LAUNCH_SOURCE) if is_old else (LAUNCH_US, LAUNCH)
    launch = Constant("launch_us", Fraction(str(launch_us)), launch_of)
    return _by_protocol(nominal, "nccl", launch, rates, said, costs, SOURCE, most, model.generation)


def _of_rccl(nominal: Profile, fit: RcclFit) -> Profile:
    """Profile of RCCL, by a fit to published logs."""
    source = f"taccl fit of published rccl-tests logs of one node: {fit.logs}"
    launch = Constant("launch_us", Fraction(fit.launch_us), source)
    return _by_protocol(nominal, "rccl", launch, Fraction(fit.gb_per_s), source, fit.protocols, source)


def profiles_of(machine: str, model: Model) -> tuple[Profile, ...]:
    """Profiles of a machine; the first, its default, is TACCL's, else NCCL's or RCCL's, else nominal."""
    nominal = _nominal(machine, model.links, model.nic)
    found = [nominal]
    if model.num_nvlinks or model.pcie is not None:
        found = [_of_nccl(nominal, model), nominal]
    elif model.rccl is not None:
        found = [_of_rccl(nominal, model.rccl), nominal]
    if model.published is None:
        return tuple(found)
    return _published(machine, *model.published), *reversed(found)


PROFILES: dict[str, tuple[Profile, ...]] = {name: profiles_of(name, each) for name, each in MODELS.items()}
"""Profiles of every machine model and instance type; the first is the default."""
