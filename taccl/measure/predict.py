"""`predict`: time of a collective on a named machine, under a stock library or a one-kernel runtime."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import ceil, log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arguments import Bytes, Count, Number, checked, known_name
from taccl._internal.units import exact, format_us
from taccl.errors import InputError
from taccl.measure.library import candidates, chosen
from taccl.measure.library_costs import ASSUMED_VERSION, PAIR_RATES, Costs
from taccl.measure.model import COLLECTIVES, Choice
from taccl.measure.series import POINT_TO_POINT, Series
from taccl.runtimes.registry import runtime_named
from taccl.runtimes.runtime import Launch
from taccl.runtimes.table import RUNTIMES
from taccl.topology.machines import SHAPES
from taccl.topology.models import MODELS
from taccl.topology.networks import INSTANCES, NETWORKS
from taccl.topology.profiles import PROFILES
from taccl.topology.tuning import (
    LAUNCH_CHANNEL_US,
    LL_GB_PER_S,
    NVLINK_GB_PER_S,
    PROTOCOLS,
    VOLTA_LAUNCH_CHANNEL_US,
    VOLTA_LAUNCH_EACH_US,
    VOLTA_LAUNCH_SOURCE,
    VOLTA_LAUNCH_US,
)

#: Launch time of RCCL in us: the prior in fits to published logs.
RCCL_LAUNCH_US = 7.0
#: Time in us of an MPI message in a node, and between nodes without the network's hop (our choice).
#: MPI messages are copies by CUDA IPC in a node, and transfers by GPUDirect RDMA between nodes.
MPI_HOPS_US = (10.0, 5.0)
#: GB/s at which a rank adds in host memory, over PCIe and back (our choice).
MPI_SUM_GB_PER_S = 6.0


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted time of a collective, and how it runs.

    Parameters
    ----------
    time_us : float
        Time in us, launch included.
    algorithm, protocol : str
        Algorithm and protocol that the runtime chooses.
    launch_us : float
        Part of the time before the first step, without the protocol's base latency.
    source : str
        Origin of the runtime's figures; those of ``"mpi"`` are our choice, which no log confirms.
    """

    time_us: float
    algorithm: str
    protocol: str
    launch_us: float
    source: str = ""

    def __repr__(self) -> str:
        launch = f", of it launch {format_us(self.launch_us)}" if self.launch_us else ""
        how = ", ".join(filter(None, (self.algorithm, self.protocol)))
        origin = f"; {self.source}" if self.source else ""
        return f"Prediction({format_us(self.time_us)}{launch}: {how}{origin})"


@checked
def predict(
    machine: str, collective: str, size: Bytes, *, ranks: Count | None = None, nodes: Count = 1,
    runtime: str | None = None, network: str | None = None, network_gb_per_s: Number | None = None,
    nvls: bool = True, sharp: bool = False, ranks_per_process: Count | None = None,
    version: str | None = None,
) -> Prediction:  # fmt: skip
    """Predict the time of a collective without any measurement.

    Parameters
    ----------
    machine : str
        Name of a machine model or of an instance type, such as ``"dgx-h100"`` or ``"p5.48xlarge"``.
    collective : str
        Name of the collective.
    size : int or str
        The larger of a rank's input and output, as nccl-tests counts it.
    ranks, nodes : int
        Numbers of ranks and of equal nodes; by default all ranks of one node.
    runtime : str, optional
        Name of one of `taccl.runtimes`, such as ``"torch"``, ``"mscclpp"`` or ``"mpi"``; by default the
        library of the machine's GPUs.
    network : str, optional
        Class of the network between nodes, such as ``"roce"`` or ``"slingshot"``; by default the machine's.
    network_gb_per_s : float, optional
        Rate of a NIC, one way; by default the machine's.
    nvls : bool
        False if switches do not reduce data, as with ``NCCL_NVLS_ENABLE=0``.
    sharp : bool
        True if switches of InfiniBand reduce data between nodes (SHARP), as with its plugin and
        ``NCCL_COLLNET_ENABLE=1``.
    ranks_per_process : int, optional
        Number of GPUs whose kernels one process launches in turn, such as 8 for ``all_reduce_perf -g 8``. By
        default one, or all of a node on V100, whose benchmarks usually ran so.
    version : str, optional
        Version of the library, such as ``"2.30"``; by default 2.28 of NCCL, and the newest RCCL.

    Raises
    ------
    InputError
        If a name is unknown, the runtime does not run on the machine, ranks and nodes do not fit it, or the
        version is no version.
    """
    collective = known_name(collective, COLLECTIVES, "collective")
    rate = None if network_gb_per_s is None else float(exact(network_gb_per_s, where="network_gb_per_s"))
    if rate == 0:
        raise InputError("found 0; expected a rate above 0, such as 50", where="network_gb_per_s")
    costs = costs_of(machine, network=network, network_gb_per_s=rate).under(_version_of(version))
    num_ranks = ranks_per_node(machine) * nodes if ranks is None else ranks
    if num_ranks < 2 or num_ranks % nodes or num_ranks > nodes * ranks_per_node(machine):
        said = f"found {num_ranks} in {nodes} nodes; expected 2 or more, as many in each node"
        raise InputError(f"{said}, at most {ranks_per_node(machine)}", where="ranks")
    library = "nccl" if costs.fitted is None else "rccl"
    used = RUNTIMES[library] if runtime is None else runtime_named(runtime, "launch")
    if sharp and (costs.network.name != "infiniband" or costs.fitted is not None):
        said = f"found True; NCCL sums in switches of InfiniBand only, and {machine} has {costs.network.name}"
        raise InputError(f"{said}; leave it out, or give network='infiniband'", where="sharp")
    if used.name in ("nccl", "rccl") and used.name != library:
        said = f"found {used.name!r}; {machine} runs {library}: name that, or none"
        raise InputError(said, where="runtime")
    costs = replace(costs, nvls=costs.nvls and nvls, sharp=sharp, ranks_per_process=ranks_per_process or 0)
    launch = used.launch
    assert launch is not None, "it has launch costs"
    own_us = PROFILES[machine][0].launch_under(used.name)
    if own_us is not None:
        launch = replace(launch, us=float(own_us))
    if launch.predict:
        of_own = used.made("predict", Prediction, costs, collective, num_ranks, nodes, float(size))
        return replace(of_own, source=of_own.source or launch.source)
    found = candidates(costs, collective, num_ranks, nodes, np.array([float(size)]))
    best = found[int(chosen(found)[0])]
    launch_us = costs.launch_us if launch.us is None or launch.one_kernel else launch.us
    time_us = float(best.time_us[0]) + (launch_us - costs.launch_us)
    source = (costs.launch_source if used.name == library else "") or launch.source
    own = Prediction(time_us, best.algorithm, best.protocol, launch_us, source)
    if not launch.one_kernel:
        return own
    if nodes > 1 or collective not in _ALL_PAIRS:
        if launch.falls_back:
            return own
        found_on = f"found {collective} on {nodes} nodes"
        said = f"{found_on}; one-kernel runtimes are known for sums and copies in one node"
        raise InputError(said, where="runtime")
    all_pairs = _in_one_kernel(costs, collective, num_ranks, float(size), launch)
    return own if launch.falls_back and own.time_us < all_pairs.time_us else all_pairs


def _version_of(text: str | None) -> tuple[int, ...]:
    """Parts of a version; empty if none is given."""
    if text is None:
        return ()
    if not re.fullmatch(r"\d{1,3}(\.\d{1,3}){1,3}", text):
        raise InputError(f"found {text!r}; expected a version such as '2.28'", where="version")
    return tuple(map(int, text.split(".")))


def predicted_us(
    costs: Costs, collective: str, num_ranks: int, num_nodes: int, size_bytes: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Predicted time in us at each size, under the algorithm and protocol that the library chooses."""
    found = candidates(costs, collective, num_ranks, num_nodes, size_bytes)
    return np.array([each.time_us for each in found])[chosen(found), np.arange(len(size_bytes))]


def series_us(costs: Costs, series: Series) -> NDArray[np.float64]:
    """Predicted times in us at the sizes of a series, with its number of ranks per process if stated."""
    costs = replace(costs, ranks_per_process=series.launched_together or costs.ranks_per_process)
    sizes = np.array(series.size_bytes, float)
    return predicted_us(costs, series.collective, series.num_ranks, series.num_nodes, sizes)


def choice_of(costs: Costs, series: Series) -> Choice:
    """Algorithm that the library uses at the largest sizes of a series, if under protocol simple."""
    sizes = np.array(series.size_bytes, float)
    found = candidates(costs, series.collective, series.num_ranks, series.num_nodes, sizes)
    used = [found[place] for place in chosen(found)]
    if used[-1].protocol != "simple":
        return Choice()
    others = [place for place, each in enumerate(used) if each.algorithm != used[-1].algorithm]
    return Choice(used[-1].algorithm, float(sizes[max(others, default=-1) + 1]))


def known_machines() -> tuple[str, ...]:
    """Names of machines and instance types on which the costs of a library are known."""
    return tuple(name for name, model in MODELS.items() if model.has_library)


def ranks_per_node(machine: str) -> int:
    """Ranks of a full node of a machine or an instance type."""
    return SHAPES[known_name(machine, SHAPES, "machine")].ranks_per_node


def costs_of(machine: str, *, network: str | None = None, network_gb_per_s: float | None = None) -> Costs:
    """Cost figures of a machine or an instance type, under the stock library of its GPUs."""
    costs = _of_model(known_name(machine, known_machines(), "machine"))
    if network is not None:
        costs = replace(costs, network=NETWORKS[known_name(network, NETWORKS, "network")])
    return costs if network_gb_per_s is None else replace(costs, nic_gb_per_s=network_gb_per_s)


def figures_of_generation(generation: str) -> dict[str, Any]:
    """Fields of `Costs` of a generation of NVIDIA's GPUs: launch times, and rates of messages in a node."""
    found: dict[str, Any] = {"pair_rates": PAIR_RATES.get(generation, PAIR_RATES[""])}
    if generation != "Volta":
        return found | {"channel_launch_us": LAUNCH_CHANNEL_US}
    return found | {
        "launch_us": VOLTA_LAUNCH_US, "serial_launch_us": VOLTA_LAUNCH_EACH_US,
        "channel_launch_us": VOLTA_LAUNCH_CHANNEL_US, "launch_source": VOLTA_LAUNCH_SOURCE,
    }  # fmt: skip


def _of_model(name: str) -> Costs:
    model, shape, (default, *others) = MODELS[name], SHAPES[name], PROFILES[name]
    nominal = others[0] if others else default
    nic = 1000 / float(nominal["internode_beta_us_per_mb"])
    usual = "roce-pcie" if model.pcie else "infiniband" if model.num_nvlinks else "rccl"
    network = NETWORKS[INSTANCES[name].network if name in INSTANCES else model.network or usual]
    if model.pcie is not None:
        rate = 1000 / float(default["pcie_beta_us_per_mb"])
        return Costs(
            model.generation, rate, 2, nic, shape.ranks_per_nic, network, pcie=True, version=ASSUMED_VERSION
        )
    if model.num_nvlinks:
        generation, links = model.generation, model.num_nvlinks
        return Costs(
            generation, links * float(NVLINK_GB_PER_S[generation]), links, nic, shape.ranks_per_nic,
            network, nvls=bool(shape.nvls), nvswitch=shape.joint == "NVSwitch", pairs=shape.pairs,
            version=ASSUMED_VERSION, host=model.host, nics_per_rank=model.nics_per_rank,
            **figures_of_generation(generation),
        )  # fmt: skip
    rate, links = 1000 / float(default["xgmi_beta_us_per_mb"]), len([p for p in shape.pairs if 0 in p])
    launch = RCCL_LAUNCH_US if default.launch is None else float(default.launch.value)
    fitted = {
        each.name: (
            float(each.base_us.value),
            float(each.node_hop_us.value),
            float(each.bandwidth_share.value),
        )
        for each in default.protocols
    }
    assert model.rccl is not None, "other machines have no library"
    return Costs(
        "", links * rate, links, nic, shape.ranks_per_nic, network, pairs=shape.pairs, launch_us=launch,
        fitted=fitted, architecture=model.rccl.architecture,
        serial_launch_us=float(model.rccl.launch_each_us),
        launch_source="" if default.launch is None else default.launch.source,
    )  # fmt: skip


#: Collectives that one kernel can run, in which all pairs of ranks send concurrently.
_ALL_PAIRS = ("allreduce", "allgather", "reduce-scatter", "alltoall")


def _in_one_kernel(costs: Costs, collective: str, n: int, size: float, launch: Launch) -> Prediction:
    """Prediction for one kernel in which all pairs send: the fastest of one or two steps, LL or simple."""
    ways = {"allreduce": ((1, n - 1.0), (2, 2 * (n - 1) / n))}.get(collective, ((1, (n - 1) / n),))
    if not launch.one_shot:
        ways = ways[-1:]
    node = costs.node_gb_per_s * costs.links_share(n)
    ll_rate = (
        float(LL_GB_PER_S[costs.generation]) if costs.generation else node * PROTOCOLS[0].bandwidth_share
    )
    rates = dict(zip(("ll", "simple"), np.multiply(launch.shares, (ll_rate, node)), strict=True))
    hops = dict(zip(rates, launch.hops_us, strict=True))
    times = {
        ("one-shot" if num == 1 else "two-shot", protocol): num * hops[protocol] + volume * size / rate / 1000
        for num, volume in ways
        for protocol, rate in rates.items()
    }
    (algorithm, protocol), time_us = min(times.items(), key=lambda each: each[1])
    launch_us = costs.launch_us if launch.us is None else launch.us
    return Prediction(launch_us + float(time_us), algorithm, protocol, launch_us, launch.source)


def by_mpi(costs: Costs, collective: str, n: int, m: int, size: float) -> Prediction:
    """Predict an MPI collective on n ranks in m nodes: the faster of recursive doubling and a ring.

    An alltoall and a point-to-point message are sent between pairs.
    """
    adds = collective in ("allreduce", "reduce-scatter", "reduce")
    hop_us = MPI_HOPS_US[0] if m == 1 else MPI_HOPS_US[1] + costs.network.hop_us
    g = n // m
    network = costs.nic_gb_per_s * costs.network.efficiency / min(g, costs.ranks_per_nic)
    node = costs.node_gb_per_s * costs.links_share(2 if collective == POINT_TO_POINT else g)
    rate = min(node, network if m > 1 else np.inf, MPI_SUM_GB_PER_S if adds else np.inf)
    twice = 2 if collective == "allreduce" else 1
    rounds, kb = ceil(log2(n)), size / 1000
    rooted = collective in ("broadcast", "reduce", "allreduce")
    volume = float(rounds) if rooted else (n - 1) / n  # all data in each round, or growing parts
    ways = {
        "doubling": rounds * hop_us + volume * kb / rate,
        "ring": twice * (n - 1) * (hop_us + kb / n / rate),
    }
    if collective == POINT_TO_POINT:
        ways = {"message": hop_us + kb / rate}
    elif collective == "alltoall":
        ways = {"pairwise": (n - 1) * (hop_us + kb / n / rate)}
    algorithm, time_us = min(ways.items(), key=lambda each: each[1])
    return Prediction(time_us, algorithm, "", 0.0)
