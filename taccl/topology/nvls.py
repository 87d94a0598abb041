"""NVLS in imported topologies: reductions and multicasts in NVSwitch, which NCCL uses from Hopper on."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from taccl._internal.caching import cached
from taccl.topology.builder import TopologyBuilder
from taccl.topology.in_network import PROFILES
from taccl.topology.models import MODELS
from taccl.topology.parts import LinkCost, add_aggregation
from taccl.topology.topology import Switch, Topology
from taccl.topology.tuning import NVLINK_GB_PER_S, NVLS_SHARE

#: `_ROUNDED`: relative tolerance when a switch port's rate is compared with those of a GPU generation.
#: `_EXACT`: relative tolerance for multiples of NCCL's rate for an NVLink, in imports of NCCL's files.
_ROUNDED, _EXACT = Fraction(1, 100), Fraction(1, 1000)
#: Profile name of imports whose port rates come from NCCL; other imports have data-sheet rates.
_NCCL_RATES = "nccl"
#: Part of messages that says how to correct a GPU generation that was guessed from port rates.
_STATE_RATE = "nvlink_gb_per_s= of the import states another rate"

#: Node sizes, in ranks, of the machine models whose NVSwitches reduce data.
_FULL = {each.shape.ranks_per_node for each in MODELS.values() if each.shape.nvls}


class _Ports(NamedTuple):
    """Ports of a switch, as {rank: resource} for sends and for receives, and the cost of a send."""

    out: dict[int, int]
    into: dict[int, int]
    cost: LinkCost


def with_nvls(topology: Topology, generation: str = "") -> Topology:
    """Add the multicast and reduction links of NVSwitches to an imported topology.

    Links are added if all ranks of each node share an NVSwitch. Each node must also have as many GPUs as a
    machine model with NVLS of this generation. Other topologies, such as machines by name, are returned
    unchanged.

    - `generation`: Generation of the GPUs, such as ``"Hopper"``. If it is empty, the rate of the ports
      determines the generation, and `Topology.assumed` records this guess. If the rate belongs to no known
      generation, `Topology.assumed` records that. If it belongs to GPUs without NVLS, no links are added.

    Reductions in the switch reach the same share of NCCL's port rate on GPUs with fewer NVLinks. The busbw of
    8 H800 was 215 GB/s (NVIDIA/nccl issue 1374), or 1.05 times the port rate; so was that of 8 H100.
    """
    if topology.machine or any(switch.reduces for switch in topology.switches):
        return topology
    ports = [_ports(topology, switch) for switch in topology.switches]
    known = [each for each in ports if each is not None]
    nodes = [set(ranks) for ranks in topology.ranks_of_node]
    costs = {each.cost for each in known}
    if len(costs) != 1 or len(known) < len(ports) or [set(each.out) for each in known] != nodes:
        return topology
    rate = 1000 / known[0].cost.beta_us_per_mb
    guess = port_generation(topology)
    found = generation or guess
    if not found and any(len(node) in _FULL for node in nodes):
        said = f"NVSwitch sums no data (NVLS), as ports of {float(rate):.4g} GB/s are of no known GPU"
        return replace(topology, assumed=(*topology.assumed, f"{said}; {_STATE_RATE}"))
    models = [each for each in MODELS.values() if each.generation == found and each.shape.nvls]
    sizes = {each.shape.ranks_per_node for each in models}
    if guess not in ("", *NVLS_SHARE) or any(len(node) not in sizes for node in nodes):
        return topology
    # Rate of the ports in NCCL's model. Imports from elsewhere have data-sheet rates, which are scaled.
    stated = models[0].num_nvlinks * Fraction(NVLINK_GB_PER_S[found])
    sheet = Fraction(str(models[0].links["nvswitch"][0]))
    stated = min(stated, rate * (1 if topology.profile == _NCCL_RATES else stated / sheet))
    profile = PROFILES[models[0].shape.nvls]
    share = min(Fraction(profile.efficiency) * stated / rate, Fraction(str(NVLS_SHARE[found])))
    reduces = replace(profile, efficiency=share)
    builder = TopologyBuilder.continuing(topology)
    switches = []
    for switch, each in zip(topology.switches, known, strict=True):
        links = add_aggregation(builder, each.out, each.into, each.cost, reduces=reduces, name=switch.name)
        switches.append(replace(switch, links=(*switch.links, *links), reduces=reduces))
    said = f"NVSwitch sums data (NVLS), as ports of {float(rate):.4g} GB/s are those of {found} GPUs"
    assumed = topology.assumed if generation else (*topology.assumed, f"{said}; {_STATE_RATE}")
    return replace(builder.build(), switches=tuple(switches), notes=topology.notes, assumed=assumed)


@cached
def port_generation(topology: Topology) -> str:
    """GPU generation guessed from the rate of the topology's NVSwitch ports; empty if unknown."""
    ports = [_ports(topology, switch) for switch in topology.switches]
    costs = {None if each is None else each.cost for each in ports}
    cost = costs.pop() if len(costs) == 1 else None
    return "" if cost is None else _generation(1000 / cost.beta_us_per_mb, topology.profile)


def _generation(gb_per_s: Fraction, profile: str) -> str:
    """GPU generation whose NVSwitch ports can have this rate; empty if none can.

    A port may have any rate from NCCL's figure to the data sheet's. If `profile` says that rates come from
    NCCL, a port may also have fewer NVLinks than the full machine. An H800, for example, has eight.
    """
    most_links = Counter[str]()
    for model in MODELS.values():
        most_links[model.generation] = max(most_links[model.generation], model.num_nvlinks)
    switched = [
        each for each in MODELS.values()
        if "nvswitch" in each.links and each.num_nvlinks == most_links[each.generation]
    ]  # fmt: skip
    for model in switched:
        most = Fraction(str(model.links["nvswitch"][0]))
        least = model.num_nvlinks * Fraction(NVLINK_GB_PER_S[model.generation])
        if least * (1 - _ROUNDED) <= gb_per_s <= most * (1 + _ROUNDED):
            return model.generation
    for model in switched if profile == _NCCL_RATES else ():
        num = round(gb_per_s / Fraction(NVLINK_GB_PER_S[model.generation]))
        of_num = num * Fraction(NVLINK_GB_PER_S[model.generation])
        if 1 <= num <= model.num_nvlinks and abs(gb_per_s / of_num - 1) <= _EXACT:
            return model.generation
    return ""


def _ports(topology: Topology, switch: Switch) -> _Ports | None:
    """Ports of an NVSwitch; None unless each rank has one port out and one port in, all at equal cost.

    Multicasts and reductions are left out, as they have rates of their own.
    """
    if "NVSwitch" not in switch.name:
        return None
    pairs = [e for e in switch.links if len(topology.links[e].srcs) == len(topology.links[e].dsts) == 1]
    holds = [(topology.links[e], hold) for e in pairs for hold in topology.holds_of_link[e]]
    users = Counter(hold.resource for _, hold in holds)
    out: dict[int, int] = {}
    into: dict[int, int] = {}
    costs = set()
    for link, hold in holds:
        if users[hold.resource] == 1:
            continue  # resource that only this link holds
        ports, rank = (out, link.src) if hold.side == "send" else (into, link.dst)
        if ports.setdefault(rank, hold.resource) != hold.resource:
            return None
        costs.add(LinkCost(link.alpha_us, hold.beta_us_per_mb, hold.alpha_us))
    if len(costs) != 1 or not set(out) == set(into) == set(switch.ranks):
        return None
    cost = costs.pop()
    return _Ports(out, into, cost) if cost.beta_us_per_mb else None
