"""Cost figures of a machine model, from its links, and notes on logs that disagree with the model."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from fractions import Fraction
from typing import NamedTuple

from taccl._internal.names import did_you_mean, first_of, shown
from taccl._internal.units import format_count
from taccl.errors import FormatError, InputError
from taccl.measure.gpus import generation_of, gpu_models, machine_by_gpus
from taccl.measure.model import COLLECTIVES
from taccl.measure.series import Log, Series
from taccl.topology.networks import INSTANCES, NETWORKS, Network
from taccl.topology.parts import check_ranks
from taccl.topology.topology import Topology
from taccl.topology.tuning import NVLINK_GB_PER_S

#: Max number of ranks that busbw / algbw determines exactly, if both are given with two decimals.
#: A larger number is rounded to a multiple of the number of nodes, so that all nodes have equally many ranks.
COUNTABLE = 64
#: Profiles of imported topologies, whose NICs have line rates (higher than the rates that messages reach).
_LINE_RATES = ("nccl", "nvidia-smi")
#: `_NO_RATES`: profile of imports whose file states no rates.
#: `_ASSUMED_NVLINK_GB_PER_S`: assumed rate of an NVLink in imports without rates.
#: `_UNKNOWN_NVLINK_GB_PER_S`: NCCL's rate of an NVLink of an unknown generation.
_NO_RATES, _ASSUMED_NVLINK_GB_PER_S, _UNKNOWN_NVLINK_GB_PER_S = "nvidia-smi", 25, "20"
#: ((words in names of links and switches, class of network of several nodes), ...); the first match counts.
#: InfiniBand stands for RoCE as well, which reaches as large a part of its line rate.
_USUAL_NETWORKS = ((("xGMI",), "rccl"), (("NVSwitch", "NVLink"), "infiniband"), (("",), "roce-pcie"))
#: Networks, by their names in lines of logs, that only instance types of clouds have.
_OF_CLOUDS = ("efa", "tcpx", "tcpxo")


class Machine(NamedTuple):
    """Figures of a machine model for a fit; rates in GB/s from data sheets, per direction.

    - `node_gb_per_s`: Rate at which a rank can send inside its node, over all of its links.
    - `network_gb_per_s`: Rate at which a NIC can send; 0 for a single node.
    - `nvls_share`: Share of a rank's rate that sums in the node's switch reach; 0 if the switch cannot add.
    """

    name: str
    ranks_per_node: int
    ranks_per_nic: int
    node_gb_per_s: float
    network_gb_per_s: float
    nvls_share: float = 0.0


def find_machine(name: str) -> Machine:
    """Figures of a machine model by name; raises `InputError` with the known names."""
    from taccl.topology.in_network import PROFILES as SWITCHES
    from taccl.topology.machines import SHAPES
    from taccl.topology.registry import machine_names, parse

    known = machine_names()
    try:
        machine = parse(name).machine
    except InputError:
        machine = ""
    if machine not in known:
        said = f"found {shown(repr(name), 200)}; expected a machine model, by name: {', '.join(known)}"
        near = did_you_mean(name, known)
        if os.path.isfile(name):
            near = "; for a file give the topology that taccl.topologies.load makes of it"
        raise InputError(f"{said}{near}", where="topology")
    found, nvls = machine_of(parse(machine, nodes=2, profile="nominal")), SHAPES[machine].nvls
    return found._replace(nvls_share=float(SWITCHES[nvls].efficiency)) if nvls else found


def machine_of(topology: Topology, rank: int = 0) -> Machine:
    """Figures of any topology, as seen from a rank; all nodes are assumed alike."""
    across = [e for e in topology.links_from[rank] if topology.is_internode(e)]
    holds = _sends(topology, rank)
    users: dict[int, set[int]] = {}
    for hold in topology.holds:
        users.setdefault(hold.resource, set()).add(topology.links[hold.link].src)
    nics = [len(users[each]) for each, betas in holds.items() if set(across) & set(betas)]
    inside = _joint_gb_per_s(topology, _inside(topology, rank), holds)
    return Machine(
        topology.machine or topology.name, len(topology.ranks_of_node[0]), max(nics, default=1),
        inside, _joint_gb_per_s(topology, across, holds),
    )  # fmt: skip


def is_uniform_server(topology: Topology) -> bool:
    """True if a topology is one server, imported from NCCL's XML or a matrix, whose ranks are alike."""
    if topology.machine or topology.profile not in _LINE_RATES or topology.num_nodes > 1:
        return False
    num = topology.num_ranks
    return num <= COUNTABLE and len({machine_of(topology, rank) for rank in range(num)}) == 1


def _inside(topology: Topology, rank: int) -> list[int]:
    """Links of a rank inside its node, without sums and copies in switches, which have rates of their own."""
    links = topology.links
    return [
        e for e in topology.links_from[rank]
        if not topology.is_internode(e) and len(links[e].srcs) == len(links[e].dsts) == 1
    ]  # fmt: skip


def _sends(topology: Topology, rank: int) -> dict[int, dict[int, float]]:
    """{resource: {link that holds it as the rank sends: us for a MB}}."""
    holds: dict[int, dict[int, float]] = {}
    for hold in topology.holds:
        if hold.side == "send" and topology.links[hold.link].src == rank:
            holds.setdefault(hold.resource, {})[hold.link] = float(hold.beta_us_per_mb)
    return holds


def _joint_gb_per_s(topology: Topology, links: list[int], holds: dict[int, dict[int, float]]) -> float:
    """Joint rate of a rank's links in GB/s, or the rate of the resource that they share."""
    if not links:
        return 0.0
    total = float(sum(1000 / topology.links[each].beta_us_per_mb for each in links))
    shared = [max(betas[e] for e in links) for betas in holds.values() if set(links) <= set(betas)]
    return min([total, *(1000 / beta for beta in shared if beta)])


def links_share(topology: Topology, ranks: Collection[int]) -> float:
    """Share of a rank's rate inside its node that links to other `ranks` carry; the least over `ranks`.

    1 for a single rank, and for ranks that no links join.
    """
    shares = []
    for rank in ranks:
        inside, holds = _inside(topology, rank), _sends(topology, rank)
        kept = [e for e in inside if topology.links[e].dst in ranks]
        whole = _joint_gb_per_s(topology, inside, holds)
        shares.append(_joint_gb_per_s(topology, kept, holds) / whole if whole else 0.0)
    least = min(shares, default=0.0)
    return least if least and len(ranks) > 1 else 1.0


def local_ranks(
    per_node: int, num_nodes: int, ranks: Sequence[int] | None, without_ranks: Sequence[int]
) -> tuple[int, ...]:
    """Ranks of a node that take part, numbered in the node; all by default.

    - `per_node`: Ranks of a whole node.
    - `ranks`, `without_ranks`: Ranks that take part, or do not, numbered in all nodes.

    Raises `InputError` if a rank does not exist, or nodes differ.
    """
    for name, some in (("ranks", ranks or ()), ("without_ranks", without_ranks)):
        check_ranks(some, per_node * num_nodes, where=name, error=InputError, of="the machine has ranks")
    kept = set(range(per_node * num_nodes) if ranks is None else ranks) - set(without_ranks)
    nodes = {tuple(sorted(r % per_node for r in kept if r // per_node == m)) for m in range(num_nodes)}
    if len(nodes - {()}) != 1:
        found = "found no rank" if not kept else "found nodes with different ranks"
        raise InputError(f"{found}; expected the same ranks in each node", where="ranks")
    return max(nodes)


def import_network(topology: Topology) -> Network | None:
    """Class of network assumed between nodes of an imported topology; None for other topologies."""
    if topology.machine or topology.profile not in _LINE_RATES or topology.num_nodes == 1:
        return None
    names = [*(link.name for link in topology.links), *(switch.name for switch in topology.switches)]
    text = " ".join(dict.fromkeys(names))
    return next(NETWORKS[usual] for words, usual in _USUAL_NETWORKS if any(word in text for word in words))


def replaces(named: str, assumed: str) -> bool:
    """True if a machine's model may use the network that a log names instead of its own: RoCE for InfiniBand.

    NICs of these two networks have the same rates; NICs of other networks have different rates.
    """
    return (named, assumed) == ("roce", "infiniband")


def instance_of(machine: str, network: str) -> str:
    """Instance type of a cloud with a machine's nodes and a network that only clouds have; empty if none.

    The first of several types whose NICs are alike; empty if they differ. Empty for GPUs on PCIe, too, as
    clouds have more types of them than are listed.
    """
    from taccl.topology.models import MODELS

    if network not in _OF_CLOUDS or not MODELS[machine].num_nvlinks:
        return ""
    able = {
        name: each._replace(source="")
        for name, each in INSTANCES.items()
        if each.machine == machine and each.network.split("-")[0] == network
    }
    return next(iter(able)) if len(set(able.values())) == 1 else ""


def with_switches(topology: Topology, gpus: Collection[str]) -> Topology:
    """Add in-switch sums (NVLS) to a topology from a file, if NCCL uses such sums on its GPUs.

    - `gpus`: Names of the GPUs, as far as they are known.
    """
    from taccl.topology.nvls import with_nvls

    return with_nvls(topology, generation_of(gpus))


def assumed_rates(topology: Topology, gpus: Collection[str]) -> tuple[dict[str, Fraction], tuple[str, ...]]:
    """Rates in GB/s for the import of a file without rates, as arguments, and a note on each.

    NVLinks have NCCL's rate for the generation of the GPUs, which large messages reach; data sheets state
    more. The generation follows from the names of GPUs, else from the number of NVLinks. PCIe links have
    NCCL's rate for the named GPUs on PCIe. Empty if a GPU has more NVLinks than its generation
    (`port_mismatch`), or the file states rates.

    - `topology`: The import at data-sheet rates.
    """
    from taccl.topology.models import MODELS
    from taccl.topology.nvls import port_generation

    machine, generation = machine_by_gpus(gpus), generation_of(gpus)
    if topology.profile != _NO_RATES or port_mismatch(topology, gpus):
        return {}, ()
    rates: dict[str, Fraction] = {}
    notes = []
    if any("NVLink" in link.name or "NVSwitch" in link.name for link in topology.links):
        generation = generation or port_generation(topology)
        rates["nvlink_gb_per_s"] = rate = Fraction(NVLINK_GB_PER_S.get(generation, _UNKNOWN_NVLINK_GB_PER_S))
        of = f" of {generation} GPUs" if generation else ""
        notes.append(f"{float(rate):g} GB/s assumed for an NVLink{of}, as NCCL does; data sheets state more")
    pcie = None if machine is None else MODELS[machine].pcie
    if pcie is not None:
        rates["pcie_gb_per_s"] = rate = Fraction(pcie.nccl_gb_per_s)
        notes.append(f"{float(rate):g} GB/s assumed for a PCIe link, as for the GPUs of {machine}")
    return rates, tuple(notes)


def port_mismatch(topology: Topology, gpus: Collection[str]) -> str:
    """Warning if an imported topology has NVSwitch ports that its GPUs do not have; else empty."""
    from taccl.topology.models import MODELS
    from taccl.topology.nvls import port_generation

    known, guess = generation_of(gpus), "" if topology.machine else port_generation(topology)
    models = gpu_models(gpus)
    if not models or not guess:
        return ""
    rate, names = machine_of(topology).node_gb_per_s, first_of([shown(name, 60) for name in sorted(gpus)], 3)
    if known and topology.profile == _NO_RATES:
        # The file shows numbers of NVLinks, all at one assumed rate.
        own = MODELS.get(machine_by_gpus(gpus) or "")
        most = max(each.num_nvlinks for each in MODELS.values() if each.generation == known)
        most = own.num_nvlinks if own is not None else most
        is_alike = rate <= _ASSUMED_NVLINK_GB_PER_S * most
    else:
        is_alike = known == guess or not known and not any(model.startswith("MI") for model in models)
    if is_alike:
        return ""
    theirs = "exceed their NVLinks" if known == guess else f"are those of {guess}"
    said = f"the GPUs are {names}, but the file's ports of {rate:.4g} GB/s {theirs}"
    return f"{said}; check --topology, or convert it with --set nvlink_gb_per_s=RATE"


def figures_of(topology: Topology) -> Machine:
    """Figures of a topology from a file, with the rate share of in-switch sums if its switches can add."""
    shares = [float(switch.reduces.efficiency) for switch in topology.switches if switch.reduces]
    return machine_of(topology)._replace(nvls_share=min(shares, default=0.0))


def modelled(log: Log) -> Log:
    """Remove from a log the collectives that NCCL's model does not cover, and name them in a note.

    The log is unchanged if the model covers all of its collectives, or none.
    """
    others = list(dict.fromkeys(each.collective for each in log.series if each.collective not in COLLECTIVES))
    kept = tuple(each for each in log.series if each.collective in COLLECTIVES)
    if not others or not kept:
        return log
    note = f"{', '.join(others)}: left out, as no model of NCCL or RCCL covers them"
    return log._replace(series=kept, notes=(*log.notes, note))


def nodes_of(num_ranks: int, ranks_per_node: int) -> int:
    """Number of nodes of `num_ranks` ranks in a log without hosts.

    Above `COUNTABLE` ranks `num_ranks` is an estimate. It is then rounded to full nodes, except for racks,
    of which a log may have a part.
    """
    if num_ranks > COUNTABLE >= ranks_per_node:
        return round(num_ranks / ranks_per_node)
    return -(-num_ranks // ranks_per_node)


def placed(each: Series, ranks_per_node: int, nodes: int | None, most_ranks: int) -> Series:
    """The series with its numbers of ranks and nodes, assumed if the log does not state them.

    - `most_ranks`: Number of ranks of the largest log, which has `nodes` nodes.

    Above `COUNTABLE` ranks the number is rounded to equal nodes.
    """
    n = each.num_ranks or ranks_per_node * (nodes or 1)
    if each.collective not in COLLECTIVES or n < 2:
        known = f"one of {', '.join(COLLECTIVES)}, on two ranks or more"
        raise FormatError(f"found {each.collective!r} on {n} ranks; expected {known}", where=each.source)
    m = each.num_nodes or nodes_of(n, ranks_per_node)
    if ranks_per_node > COUNTABLE:  # a node is a rack, and a log lists each of its trays as a host
        m = -(-n // ranks_per_node)
    if nodes is not None and most_ranks and (ranks_per_node > COUNTABLE or not each.num_nodes):
        m = max(m, round(n * nodes / most_ranks))
    if n > COUNTABLE:
        n = m * round(n / m)
    if n > m * ranks_per_node or (nodes is not None and m > nodes and not each.streams):
        found = f"found {format_count(n, 'rank')} in {format_count(m, 'node')}"
        most = f"{format_count(nodes or m, 'node')} of {format_count(ranks_per_node, 'rank')}"
        said = f"{found}; expected at most {most}; check --topology, --nodes and --ranks"
        raise InputError(said, where=each.source)
    return each.on(n, m)
